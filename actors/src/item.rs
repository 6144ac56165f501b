//! One item: its number, its matching cells, and the cell that its result goes into.

use std::task::{Context, Poll, Waker};
use std::time::Instant;

use crate::error::{ErrorKind, ItemError};
use crate::join::{Cells, Join};
use crate::packet::Seq;
use crate::state::Carried;
use crate::sync::{Arc, AtomicBool, AtomicU64, Condvar, Mutex, Ordering, lock, wait_until};

/// The result of an item: one payload per sink port, or why there is none.
pub(crate) type Outcome<P> = Result<Vec<P>, ItemError>;

/// What every packet of an item points to.
pub(crate) struct Item<P> {
    pub(crate) seq: Seq,
    pub(crate) deadline: Option<Instant>,
    pub(crate) stream: Option<Arc<Carried<P>>>,
    pub(crate) cells: Cells<P>,
    /// Its place in the table of items in flight.
    pub(crate) slot: usize,
    pub(crate) admitted: Instant,
    /// The bytes of its payloads, and the most that they were.
    pub(crate) bytes: AtomicU64,
    pub(crate) bytes_peak: AtomicU64,
    cancelled: AtomicBool,
    result: Mutex<ResultCell<P>>,
    settled: Condvar,
}

/// The one-shot cell between the sink and a ticket.
enum ResultCell<P> {
    Empty(Option<Waker>),
    Full(Outcome<P>),
    Taken,
}

impl<P> Item<P> {
    pub(crate) fn new(
        seq: Seq,
        slot: usize,
        deadline: Option<Instant>,
        stream: Option<Arc<Carried<P>>>,
        joins: &[Join],
        edges: usize,
        admitted: Instant,
    ) -> Self {
        Self {
            seq,
            deadline,
            stream,
            cells: Cells::new(joins, edges),
            slot,
            admitted,
            bytes: AtomicU64::new(0),
            bytes_peak: AtomicU64::new(0),
            cancelled: AtomicBool::new(false),
            result: Mutex::new(ResultCell::Empty(None)),
            settled: Condvar::new(),
        }
    }

    /// Puts the result into the cell; only the first one counts. `meanwhile` runs before anybody
    /// can see the result, so what it releases is free once the result is seen.
    pub(crate) fn settle<R>(
        &self,
        outcome: Outcome<P>,
        meanwhile: impl FnOnce(bool) -> R,
    ) -> (bool, R) {
        let mut cell = lock(&self.result);
        let first = matches!(*cell, ResultCell::Empty(_));
        let released = meanwhile(first);
        if !first {
            return (false, released);
        }
        let before = std::mem::replace(&mut *cell, ResultCell::Full(outcome));
        self.settled.notify_all();
        drop(cell);
        if let ResultCell::Empty(Some(waker)) = before {
            waker.wake();
        }
        (true, released)
    }

    /// Settles with an error and lets the actors skip the item. True if it had no result yet.
    pub(crate) fn abort(&self, error: ItemError) -> bool {
        self.cancelled.store(true, Ordering::Release);
        self.settle(Err(error.at(None, self.seq)), |_| ()).0
    }

    /// Why an actor need not compute this item any more.
    pub(crate) fn skip(&self) -> Option<ItemError> {
        if self.cancelled.load(Ordering::Acquire) {
            return Some(ItemError::new(ErrorKind::Cancelled, "the item was given up"));
        }
        self.late().then(|| self.expired())
    }

    /// True once the deadline has passed.
    pub(crate) fn late(&self) -> bool {
        self.deadline.is_some_and(|deadline| Instant::now() >= deadline)
    }

    pub(crate) fn expired(&self) -> ItemError {
        ItemError::new(ErrorKind::Expired, "the deadline of the item passed").at(None, self.seq)
    }

    pub(crate) fn is_settled(&self) -> bool {
        !matches!(*lock(&self.result), ResultCell::Empty(_))
    }

    /// Takes the result if it is there.
    pub(crate) fn try_take(&self) -> Option<Outcome<P>> {
        lock(&self.result).take()
    }

    /// Takes the result, waiting for it until `deadline`.
    pub(crate) fn take_until(&self, deadline: Option<Instant>) -> Option<Outcome<P>> {
        let mut cell = lock(&self.result);
        loop {
            if let Some(outcome) = cell.take() {
                return Some(outcome);
            }
            let over = deadline.is_some_and(|deadline| Instant::now() >= deadline);
            if over || matches!(*cell, ResultCell::Taken) {
                return None;
            }
            cell = wait_until(&self.settled, cell, deadline);
        }
    }

    /// Takes the result for a future.
    pub(crate) fn poll_take(&self, context: &Context<'_>) -> Poll<Outcome<P>> {
        let mut cell = lock(&self.result);
        if let Some(outcome) = cell.take() {
            return Poll::Ready(outcome);
        }
        match &mut *cell {
            ResultCell::Empty(Some(waker)) => waker.clone_from(context.waker()),
            ResultCell::Empty(none) => *none = Some(context.waker().clone()),
            ResultCell::Full(_) | ResultCell::Taken => {
                let message = "the result of this ticket was taken before";
                return Poll::Ready(Err(ItemError::new(ErrorKind::Invalid, message)));
            }
        }
        Poll::Pending
    }
}

impl<P> ResultCell<P> {
    fn take(&mut self) -> Option<Outcome<P>> {
        match std::mem::replace(self, Self::Taken) {
            Self::Full(outcome) => Some(outcome),
            other => {
                *self = other;
                None
            }
        }
    }
}
