//! Carried state: streams whose items feed each other.
//!
//! Items of one stream run one at a time and in order; what one leaves behind is bound to the next
//! before it is injected. Several streams interleave. An item that waits for the one before it
//! holds its credit already, so injecting it never blocks.

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

use crate::engine::Engine;
use crate::error::{ErrorKind, ItemError};
use crate::item::Item;
use crate::packet::Seq;
use crate::payload::Payload;
use crate::result::Settlement;
use crate::supervise::{discard, panicked};
use crate::sync::{Arc, Mutex, lock};

/// How the state of a stream gets from the result of one item into the inputs of the next.
///
/// Runs on the thread that finished the item, or on the pushing thread; never under a lock, and
/// never twice at a time.
pub trait Binding<P>: Send + 'static {
    /// Completes the inputs of the next item: puts a payload into every place that holds `None`.
    ///
    /// # Errors
    ///
    /// The error becomes the item's result, and the state of the stream is lost.
    fn bind(&mut self, inputs: &mut Vec<Option<P>>) -> Result<(), ItemError>;

    /// Looks at the result of an item, one payload per sink port, and keeps what the next needs.
    ///
    /// # Errors
    ///
    /// The item keeps its value; the state of the stream is lost.
    fn carry(&mut self, outputs: &[P]) -> Result<(), ItemError>;
}

/// One stream, as its items see it.
pub(crate) struct Carried<P> {
    pub(crate) id: u64,
    state: Mutex<State<P>>,
}

struct State<P> {
    /// Elsewhere while it runs; only the thread that owns `busy` takes it.
    binding: Option<Box<dyn Binding<P>>>,
    /// An item of the stream is in the pipeline, or a thread is about to inject one.
    busy: bool,
    lost: Option<ItemError>,
    queue: VecDeque<Entry<P>>,
}

enum Entry<P> {
    Item(Arc<Item<P>>, Vec<Option<P>>),
    Reset(Box<dyn Binding<P>>),
}

impl<P> Entry<P> {
    /// Drops it, whatever its payloads do.
    fn discard(self) {
        match self {
            Self::Item(_, inputs) => discard(inputs.into_iter().flatten()),
            Self::Reset(binding) => discard(Some(binding)),
        }
    }
}

impl<P> fmt::Debug for Carried<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {}", self.id)
    }
}

impl<P: 'static> Carried<P> {
    pub(crate) fn new(id: u64, binding: Box<dyn Binding<P>>) -> Arc<Self> {
        Arc::new(Self {
            id,
            state: Mutex::new(State {
                binding: Some(binding),
                busy: false,
                lost: None,
                queue: VecDeque::new(),
            }),
        })
    }

    /// Looks at the result of the item that was in the pipeline.
    pub(crate) fn carry(&self, seq: Seq, settlement: &Settlement<P>) {
        let carried = match settlement {
            Settlement::One(output) => {
                self.with_binding(|binding| binding.carry(std::slice::from_ref(output)))
            }
            Settlement::Whole(Ok(outputs)) => self.with_binding(|binding| binding.carry(outputs)),
            // It left nothing behind, and took nothing away.
            Settlement::Whole(Err(error)) if error.is_filtered() => Ok(()),
            Settlement::Whole(Err(error)) => Err(error.clone()),
        };
        if let Err(error) = carried {
            lock(&self.state).lost.get_or_insert(error.at(None, seq));
        }
    }

    /// Forgets what is queued: the pipeline stopped and the items have their results.
    pub(crate) fn abandon(&self) {
        let queue = std::mem::take(&mut lock(&self.state).queue);
        queue.into_iter().for_each(Entry::discard);
    }

    /// Why the stream has no state any more.
    pub(crate) fn lost(&self) -> Option<ItemError> {
        lock(&self.state).lost.clone()
    }

    fn with_binding(
        &self,
        run: impl FnOnce(&mut dyn Binding<P>) -> Result<(), ItemError>,
    ) -> Result<(), ItemError> {
        let taken = lock(&self.state).binding.take();
        let Some(mut binding) = taken else {
            return Err(ItemError::new(ErrorKind::StateLost, "the binding of the stream is gone"));
        };
        let verdict = catch_unwind(AssertUnwindSafe(|| run(&mut *binding)));
        lock(&self.state).binding = Some(binding);
        verdict.unwrap_or_else(|panic| Err(panicked("the binding of the stream", &*panic)))
    }

    fn push(&self, entry: Entry<P>) -> bool {
        let mut state = lock(&self.state);
        state.queue.push_back(entry);
        !std::mem::replace(&mut state.busy, true)
    }
}

impl<P: Payload> Carried<P> {
    /// Queues an item; injects it if the stream is free.
    pub(crate) fn enqueue(
        &self,
        engine: &Arc<Engine<P>>,
        item: Arc<Item<P>>,
        inputs: Vec<Option<P>>,
    ) {
        if self.push(Entry::Item(item, inputs)) {
            self.advance(engine);
        }
        // A stop may have swept the queue before the item was in it.
        if engine.has_stopped() {
            self.abandon();
        }
    }

    /// Starts anew with `binding`, behind what is queued.
    pub(crate) fn reset(&self, engine: &Arc<Engine<P>>, binding: Box<dyn Binding<P>>) {
        if self.push(Entry::Reset(binding)) {
            self.advance(engine);
        }
    }

    /// Injects the next item that can be, or leaves the stream free. Called by the owner of `busy`.
    pub(crate) fn advance(&self, engine: &Arc<Engine<P>>) {
        loop {
            let (item, mut inputs, lost) = {
                let mut state = lock(&self.state);
                match state.queue.pop_front() {
                    None => {
                        state.busy = false;
                        return;
                    }
                    Some(Entry::Reset(binding)) => {
                        state.lost = None;
                        let before = state.binding.replace(binding);
                        drop(state);
                        discard(before);
                        continue;
                    }
                    Some(Entry::Item(item, inputs)) => (item, inputs, state.lost.clone()),
                }
            };
            if let Some(lost) = lost {
                discard(inputs.into_iter().flatten());
                let error = state_lost(lost).at(None, item.seq());
                let now = engine.time(Instant::now());
                engine.retire(item, Settlement::Whole(Err(error)), now);
                continue;
            }
            let bound = match item.skip() {
                Some(error) => {
                    discard(inputs.into_iter().flatten());
                    Err(error)
                }
                None => self
                    .with_binding(|binding| binding.bind(&mut inputs))
                    .and_then(|()| complete(inputs, engine.sources.len())),
            };
            match bound {
                Ok(inputs) => {
                    let now = engine.time(Instant::now());
                    return engine.inject(&item, inputs, now);
                }
                Err(error) => {
                    let error = error.at(None, item.seq());
                    lock(&self.state).lost.get_or_insert(error.clone());
                    let now = engine.time(Instant::now());
                    engine.retire(item, Settlement::Whole(Err(error)), now);
                }
            }
        }
    }
}

fn complete<P>(inputs: Vec<Option<P>>, sources: usize) -> Result<Vec<P>, ItemError> {
    if inputs.len() != sources {
        let message = format!("the binding left {} inputs for {sources} sources", inputs.len());
        return Err(ItemError::new(ErrorKind::Invalid, message));
    }
    let empty = inputs.iter().position(Option::is_none);
    match empty {
        None => Ok(inputs.into_iter().flatten().collect()),
        Some(port) => {
            let message = format!("source port {port} was neither pushed nor bound");
            Err(ItemError::new(ErrorKind::Invalid, message))
        }
    }
}

fn state_lost(cause: ItemError) -> ItemError {
    let message = format!("an earlier item of the stream failed ({cause}); reset the stream");
    ItemError::new(ErrorKind::StateLost, message).with_source(Arc::new(cause))
}
