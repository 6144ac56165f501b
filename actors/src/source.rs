//! The source: how items enter.

use std::task::{Context, Poll};
use std::time::Instant;

use crate::credit::{Ask, Place};
use crate::engine::Engine;
use crate::error::{ItemError, PushError, PushErrorKind};
use crate::item::{Admission, Item};
use crate::options::WhenFull;
use crate::payload::Payload;
use crate::queue::Offered;
use crate::state::Carried;
use crate::sync::Arc;

/// How long a push waits for a credit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// Not at all.
    None,
    /// Until there is one or the pipeline ends.
    Endless,
    /// Until this instant, which is the item's deadline too.
    Until(Instant),
}

impl Patience {
    const fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until(deadline) => Some(deadline),
            Self::None | Self::Endless => None,
        }
    }
}

impl<P: Payload> Engine<P> {
    /// Checks that there is one input per source port.
    pub(crate) fn check_arity(&self, given: usize) -> Result<(), PushErrorKind> {
        let expected = self.sources.len();
        if given == expected { Ok(()) } else { Err(PushErrorKind::Arity { expected, given }) }
    }

    /// The bytes of these payloads, where they count.
    pub(crate) fn weigh<'a>(&self, payloads: impl Iterator<Item = &'a P>) -> usize {
        if !self.credits.weighs() {
            return 0;
        }
        payloads.fold(0, |sum, payload| sum.saturating_add(payload.bytes()))
    }

    /// Accepts one item and puts it onto its edges or into the queue. `insist` keeps the policy from
    /// refusing or dropping what may wait: a stream reads no faster than it is let in.
    pub(crate) fn accept(
        self: &Arc<Self>,
        inputs: Vec<P>,
        patience: Patience,
        insist: bool,
    ) -> Result<Arc<Item<P>>, PushError<Vec<P>>> {
        if let Err(kind) = self.check_arity(inputs.len()) {
            return Err(PushError::new(kind, inputs));
        }
        let deadline = patience.deadline();
        if deadline.is_some_and(|deadline| Instant::now() >= deadline) && self.ending().is_none() {
            return Err(PushError::new(PushErrorKind::Expired, inputs));
        }
        let bytes = self.weigh(inputs.iter());
        let at_ns = self.time(Instant::now());
        let waits = insist || self.queue.policy == WhenFull::Wait;
        if matches!(patience, Patience::None) || !waits {
            return match self.offer(inputs, bytes, deadline, insist, at_ns) {
                Ok(Offered::Flight(charge, inputs)) => {
                    self.start(inputs, bytes, charge, deadline, at_ns)
                }
                Ok(Offered::Taken(item)) => Ok(item),
                Err((kind, inputs)) => Err(PushError::new(kind, inputs)),
            };
        }
        let ask = Ask { bytes, queue: self.queue.capacity > 0, at_ns };
        match self.credits.acquire(ask, deadline) {
            Ok((place, at_ns)) => self.place(place, inputs, bytes, deadline, at_ns),
            Err(kind) => Err(PushError::new(kind, inputs)),
        }
    }

    /// Like [`accept`](Self::accept) for a future.
    pub(crate) fn poll_accept(
        self: &Arc<Self>,
        inputs: &mut Option<Vec<P>>,
        waiter: &mut Option<u64>,
        context: &Context<'_>,
    ) -> Poll<Result<Arc<Item<P>>, PushError<Vec<P>>>> {
        let given = inputs.take().unwrap_or_default();
        if self.queue.policy != WhenFull::Wait || given.len() != self.sources.len() {
            return Poll::Ready(self.accept(given, Patience::None, false));
        }
        let bytes = self.weigh(given.iter());
        let at_ns = self.time(Instant::now());
        let ask = Ask { bytes, queue: self.queue.capacity > 0, at_ns };
        match self.credits.poll_acquire(ask, waiter, context) {
            Poll::Pending => {
                *inputs = Some(given);
                Poll::Pending
            }
            Poll::Ready(Ok(place)) => Poll::Ready(self.place(place, given, bytes, None, at_ns)),
            Poll::Ready(Err(kind)) => Poll::Ready(Err(PushError::new(kind, given))),
        }
    }

    fn place(
        self: &Arc<Self>,
        place: Place,
        inputs: Vec<P>,
        bytes: usize,
        deadline: Option<Instant>,
        at_ns: u64,
    ) -> Result<Arc<Item<P>>, PushError<Vec<P>>> {
        match place {
            Place::Flight(charge) => self.start(inputs, bytes, charge, deadline, at_ns),
            Place::Queue => {
                let queued = self.enqueue(inputs, bytes, deadline);
                queued.map_err(|(kind, inputs)| PushError::new(kind, inputs))
            }
        }
    }

    /// Puts an item that holds a credit onto its edges.
    fn start(
        self: &Arc<Self>,
        inputs: Vec<P>,
        bytes: usize,
        charge: usize,
        deadline: Option<Instant>,
        at_ns: u64,
    ) -> Result<Arc<Item<P>>, PushError<Vec<P>>> {
        match self.enter_flight(deadline, None, bytes, charge, at_ns) {
            Ok(item) => {
                self.inject(&item, inputs, at_ns);
                Ok(item)
            }
            Err(kind) => Err(PushError::new(kind, inputs)),
        }
    }

    /// Takes a credit for an item of a stream and makes an item of it. Such an item is never
    /// queued and never dropped: the state of its stream would go with it.
    pub(crate) fn admit(
        self: &Arc<Self>,
        bytes: usize,
        patience: Patience,
        insist: bool,
        stream: Arc<Carried<P>>,
    ) -> Result<Arc<Item<P>>, PushErrorKind> {
        let at_ns = self.time(Instant::now());
        let ask = Ask { bytes, queue: false, at_ns };
        let refuses = !insist && self.queue.policy == WhenFull::Refuse;
        let (place, at_ns) = match patience {
            Patience::Endless | Patience::Until(_) if !refuses => {
                self.credits.acquire(ask, patience.deadline())?
            }
            _ => (self.credits.try_acquire(ask)?, at_ns),
        };
        match place {
            Place::Flight(charge) => {
                self.enter_flight(patience.deadline(), Some(stream), bytes, charge, at_ns)
            }
            Place::Queue => {
                self.credits.unqueue().wake();
                Err(PushErrorKind::Full)
            }
        }
    }

    fn enter_flight(
        self: &Arc<Self>,
        deadline: Option<Instant>,
        stream: Option<Arc<Carried<P>>>,
        bytes: usize,
        charge: usize,
        admitted_ns: u64,
    ) -> Result<Arc<Item<P>>, PushErrorKind> {
        let admission = Admission { deadline, stream, admitted_ns, queued: false, start_by: None };
        match self.enter(admission) {
            Ok(item) => {
                item.weight.admit(bytes, charge);
                Ok(item)
            }
            Err(cause) => {
                self.credits.refuse(charge).wake();
                Err(PushErrorKind::Closed(cause))
            }
        }
    }

    /// Numbers an item that waits in the queue.
    pub(crate) fn enter_queue(
        &self,
        deadline: Option<Instant>,
        start_by: Option<Instant>,
    ) -> Result<Arc<Item<P>>, ItemError> {
        let admitted_ns = self.time(Instant::now());
        let stream = None;
        let item =
            self.enter(Admission { deadline, stream, admitted_ns, queued: true, start_by })?;
        self.credits.feed(admitted_ns);
        Ok(item)
    }
}
