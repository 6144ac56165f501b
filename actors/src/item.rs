//! One item: its number, its matching cells, and the cell that its result goes into.

use std::time::Instant;

use crate::error::{ErrorKind, ItemError};
use crate::join::{Cells, Join};
use crate::packet::Seq;
use crate::result::ResultCell;
use crate::state::Carried;
use crate::sync::{Arc, AtomicBool, Ordering};

/// The result of an item: one payload per sink port, or why there is none.
pub(crate) type Outcome<P> = Result<Vec<P>, ItemError>;

/// What every packet of an item points to.
///
/// An item is used again once nobody holds it: see [`Flight`](crate::engine::Flight).
pub(crate) struct Item<P> {
    pub(crate) seq: Seq,
    pub(crate) deadline: Option<Instant>,
    pub(crate) stream: Option<Arc<Carried<P>>>,
    pub(crate) admitted: Instant,
    cancelled: AtomicBool,
    pub(crate) cells: Cells<P>,
    pub(crate) result: ResultCell<P>,
}

/// What an admission says about the item that it makes.
pub(crate) struct Admission<P> {
    pub(crate) deadline: Option<Instant>,
    pub(crate) stream: Option<Arc<Carried<P>>>,
    pub(crate) admitted: Instant,
}

impl<P> Item<P> {
    pub(crate) fn new(seq: Seq, admission: Admission<P>, joins: &[Join]) -> Self {
        Self {
            seq,
            deadline: admission.deadline,
            stream: admission.stream,
            admitted: admission.admitted,
            cancelled: AtomicBool::new(false),
            cells: Cells::new(joins),
            result: ResultCell::new(),
        }
    }

    /// Makes another item of this one, whose cells are empty and whose result was taken.
    pub(crate) fn renew(&mut self, seq: Seq, admission: Admission<P>, joins: &[Join]) {
        self.seq = seq;
        self.deadline = admission.deadline;
        self.stream = admission.stream;
        self.admitted = admission.admitted;
        self.cancelled.store(false, Ordering::Relaxed);
        self.cells.renew(joins);
        self.result.renew();
    }

    /// Settles with an error and lets the actors skip the item. True if it had no result yet.
    pub(crate) fn abort(&self, error: ItemError) -> bool {
        self.cancelled.store(true, Ordering::Release);
        self.result.settle(Err(error.at(None, self.seq)))
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
}
