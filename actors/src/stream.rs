//! Streams: many items, results in order.

use std::collections::VecDeque;
use std::fmt;
use std::time::Instant;

use crate::error::{ItemError, PushError, PushErrorKind};
use crate::payload::Payload;
use crate::pipeline::Pipeline;
use crate::source::Patience;
use crate::state::{Binding, Carried};
use crate::sync::Arc;
use crate::ticket::Ticket;

/// The results of a stream, in the order of its inputs; see [`Pipeline::stream`].
///
/// Once the pipeline takes no more items, the item that could not be pushed gets the cause as its
/// result, and the stream ends.
#[must_use = "a stream is driven by taking its results"]
pub struct Results<P: Payload, I: Iterator> {
    push: Box<Push<P, I::Item>>,
    /// How many results may lie untaken or be on their way: the stream's own credits.
    window: Box<dyn Fn() -> usize + Send + Sync>,
    inputs: I,
    /// Read from the input and refused, because the pipeline was full of other items.
    held: Option<I::Item>,
    claims: VecDeque<Claim<P>>,
    exhausted: bool,
}

type Push<P, T> = dyn Fn(T, Patience) -> Result<Ticket<P>, PushError<T>> + Send + Sync;

/// What a result is taken from.
enum Claim<P: Payload> {
    Ticket(Ticket<P>),
    /// The item was never admitted.
    Refused(ItemError),
}

impl<P: Payload, I: Iterator> Results<P, I> {
    pub(crate) fn new(
        window: impl Fn() -> usize + Send + Sync + 'static,
        inputs: I,
        push: impl Fn(I::Item, Patience) -> Result<Ticket<P>, PushError<I::Item>>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        Self {
            push: Box::new(push),
            window: Box::new(window),
            inputs,
            held: None,
            claims: VecDeque::new(),
            exhausted: false,
        }
    }

    /// Items that were pushed and whose result was not taken yet.
    #[must_use]
    pub fn ahead(&self) -> usize {
        self.claims.len()
    }

    /// Pushes until the window is full, the input ends, or the pipeline is full of other items.
    fn fill(&mut self) {
        let window = (self.window)().max(1);
        while !self.exhausted && self.claims.len() < window {
            let Some(input) = self.held.take().or_else(|| self.inputs.next()) else {
                self.exhausted = true;
                return;
            };
            // With results to wait for, waiting for a credit could be waiting for oneself.
            let alone = self.claims.is_empty();
            match (self.push)(input, if alone { Patience::Endless } else { Patience::None }) {
                Ok(ticket) => self.claims.push_back(Claim::Ticket(ticket)),
                Err(error) if error.is_full() => {
                    self.held = Some(error.into_inputs());
                    return;
                }
                Err(error) => {
                    self.exhausted = matches!(error.kind(), PushErrorKind::Closed(_));
                    self.claims.push_back(Claim::Refused(error.into_item_error()));
                }
            }
        }
    }
}

impl<P: Payload, I: Iterator> Iterator for Results<P, I> {
    type Item = Result<Vec<P>, ItemError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.fill();
        self.claims.pop_front().map(|claim| match claim {
            Claim::Ticket(ticket) => ticket.wait(),
            Claim::Refused(error) => Err(error),
        })
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        if self.exhausted {
            return (self.claims.len(), Some(self.claims.len()));
        }
        let here = self.claims.len() + usize::from(self.held.is_some());
        let upper = self.inputs.size_hint().1.and_then(|upper| upper.checked_add(here));
        (self.claims.len(), upper)
    }
}

impl<P: Payload, I: Iterator> fmt::Debug for Results<P, I> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Results")
            .field("window", &(self.window)())
            .field("ahead", &self.ahead())
            .field("exhausted", &self.exhausted)
            .finish_non_exhaustive()
    }
}

/// A stream of carried state; see [`Pipeline::open_stream`].
///
/// Items run one at a time and in order. An item that is pushed while another runs takes its credit
/// and waits in the stream. If an item fails, the state that the next one needs is lost: every
/// following item gets an error of kind [`ErrorKind::StateLost`](crate::ErrorKind::StateLost) until
/// the stream is [reset](Self::reset). Dropping the handle closes the stream; what was pushed still
/// runs.
///
/// ```
/// use brigade_actors::{Binding, ItemError, Options, Pipeline, Topology, stage_fn};
///
/// /// Carries the output back into the second source.
/// struct Sum(i64);
///
/// impl Binding<i64> for Sum {
///     fn bind(&mut self, inputs: &mut Vec<Option<i64>>) -> Result<(), ItemError> {
///         inputs[1] = Some(self.0);
///         Ok(())
///     }
///
///     fn carry(&mut self, outputs: &[i64]) -> Result<(), ItemError> {
///         self.0 = outputs[0];
///         Ok(())
///     }
/// }
///
/// let mut builder = Topology::<i64>::builder();
/// let (x, state) = (builder.source("x"), builder.source("state"));
/// let add = builder.actor("add", "cpu", 2, 1, stage_fn(|v: Vec<i64>| Ok(vec![v[0] + v[1]])));
/// let y = builder.sink("y");
/// builder.connect(x, add.input(0)).connect(state, add.input(1)).connect(add.output(0), y);
/// let pipeline = Pipeline::spawn(builder.build()?, Options::new())?;
///
/// let stream = pipeline.open_stream(Sum(0));
/// let sums = stream.stream((1..=4).map(|n| vec![Some(n), None]));
/// let sums: Result<Vec<_>, _> = sums.collect();
/// assert_eq!(sums?, [[1], [3], [6], [10]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct StreamHandle<P: Payload> {
    pipeline: Pipeline<P>,
    state: Arc<Carried<P>>,
}

/// A stream of carried state reads this far ahead: one item runs, one waits for it.
const STATE_WINDOW: usize = 2;

impl<P: Payload> StreamHandle<P> {
    pub(crate) const fn new(pipeline: Pipeline<P>, state: Arc<Carried<P>>) -> Self {
        Self { pipeline, state }
    }

    /// The number of the stream, as its firings name it.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.state.id
    }

    /// Pushes the next item: one place per source port, `None` where the binding fills it. Waits
    /// for a credit, not for the items before it.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::push`].
    pub fn push(&self, inputs: Vec<Option<P>>) -> Result<Ticket<P>, PushError<Vec<Option<P>>>> {
        push(&self.pipeline, &self.state, inputs, Patience::Endless, false)
    }

    /// Like [`push`](Self::push), but does not wait for a credit.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::try_push`].
    pub fn try_push(&self, inputs: Vec<Option<P>>) -> Result<Ticket<P>, PushError<Vec<Option<P>>>> {
        push(&self.pipeline, &self.state, inputs, Patience::None, false)
    }

    /// Like [`push`](Self::push), for an item whose result is wanted by `deadline`. An item that is
    /// late has failed, and the state of the stream with it.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::push_deadline`].
    pub fn push_deadline(
        &self,
        inputs: Vec<Option<P>>,
        deadline: Instant,
    ) -> Result<Ticket<P>, PushError<Vec<Option<P>>>> {
        push(&self.pipeline, &self.state, inputs, Patience::Until(deadline), false)
    }

    /// Streams items of this stream; results come in order, one for each.
    pub fn stream<I>(&self, inputs: I) -> Results<P, I::IntoIter>
    where
        I: IntoIterator<Item = Vec<Option<P>>>,
    {
        let (pipeline, state) = (self.pipeline.clone(), Arc::clone(&self.state));
        let limit = self.pipeline.clone();
        let window = move || limit.in_flight_limit().min(STATE_WINDOW);
        Results::new(window, inputs.into_iter(), move |inputs, patience| {
            push(&pipeline, &state, inputs, patience, true)
        })
    }

    /// Starts anew, behind the items that were pushed before: the items after this carry the state
    /// of `binding`, and a lost state is forgotten.
    pub fn reset(&self, binding: impl Binding<P>) {
        self.state.reset(self.pipeline.engine(), Box::new(binding));
    }

    /// Why the state of the stream is lost; `None` while it is not.
    #[must_use]
    pub fn lost(&self) -> Option<ItemError> {
        self.state.lost()
    }

    /// Closes the stream. What was pushed still runs; its tickets get their results.
    pub fn close(self) {}
}

fn push<P: Payload>(
    pipeline: &Pipeline<P>,
    state: &Arc<Carried<P>>,
    inputs: Vec<Option<P>>,
    patience: Patience,
    insist: bool,
) -> Result<Ticket<P>, PushError<Vec<Option<P>>>> {
    let engine = pipeline.engine();
    let bytes = engine.weigh(inputs.iter().flatten());
    let admitted = engine
        .check_arity(inputs.len())
        .and_then(|()| engine.admit(bytes, patience, insist, Arc::clone(state)));
    match admitted {
        Ok(item) => {
            state.enqueue(engine, Arc::clone(&item), inputs);
            Ok(Ticket::new(item, Arc::clone(engine)))
        }
        Err(kind) => Err(PushError::new(kind, inputs)),
    }
}

impl<P: Payload> fmt::Debug for StreamHandle<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamHandle").field("id", &self.id()).finish_non_exhaustive()
    }
}
