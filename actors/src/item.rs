//! One item: its number, where it comes from, its matching cells, and the cell that its result goes
//! into.

use std::task::{Context, Poll, Waker};
use std::time::Instant;

use crate::batch::Live;
use crate::budget::Budget;
use crate::error::{ErrorKind, ItemError};
use crate::gather::Gather;
use crate::join::{Cells, Join};
use crate::packet::Seq;
use crate::region::{ROOT, RegionId};
use crate::state::Carried;
use crate::sync::{Arc, AtomicBool, Condvar, Mutex, Ordering, lock, wait_until};
use crate::weight::Weight;

/// The result of an item: one payload per sink port, or why there is none.
pub(crate) type Outcome<P> = Result<Vec<P>, ItemError>;

/// What every packet of an item points to.
pub(crate) struct Item<P> {
    pub(crate) seq: Seq,
    pub(crate) deadline: Option<Instant>,
    pub(crate) stream: Option<Arc<Carried<P>>>,
    pub(crate) cells: Cells<P>,
    /// Where the lists of its children are gathered.
    pub(crate) gathers: Box<[Mutex<Gather<P>>]>,
    /// The region that it flows in.
    pub(crate) region: RegionId,
    pub(crate) lineage: Lineage<P>,
    /// Its place in the table of items in flight.
    pub(crate) slot: usize,
    pub(crate) admitted: Instant,
    pub(crate) weight: Weight,
    /// When it has waited too long in the queue.
    pub(crate) start_by: Option<Instant>,
    /// It waits in the queue in front of the credits.
    queued: AtomicBool,
    cancelled: AtomicBool,
    result: Mutex<ResultCell<P>>,
    settled: Condvar,
}

/// Where an item comes from.
pub(crate) enum Lineage<P> {
    /// The source: it holds a credit and is in the table of items in flight.
    Root,
    /// A fan-out: it holds a credit of the fan-out's budget until its last handle goes.
    Child { parent: Arc<Item<P>>, index: usize, budget: Arc<Budget> },
    /// A batch: its members, and their payloads if they may be tried again.
    Batch { members: Vec<Arc<Item<P>>>, kept: Mutex<Vec<P>>, live: Arc<Live> },
}

/// What the items of a region are made with.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shape {
    /// The joins of the region; at the root, the sink last.
    pub(crate) joins: Vec<Join>,
    /// How many lists of children an item gathers.
    pub(crate) gathers: usize,
}

/// The one-shot cell between the sink and a ticket.
enum ResultCell<P> {
    Empty(Option<Waker>),
    Full(Outcome<P>),
    Taken,
}

impl<P> Item<P> {
    /// An item of the source.
    pub(crate) fn new(
        seq: Seq,
        slot: usize,
        deadline: Option<Instant>,
        stream: Option<Arc<Carried<P>>>,
        shape: &Shape,
        admitted: Instant,
    ) -> Self {
        Self {
            seq,
            deadline,
            stream,
            cells: Cells::new(&shape.joins),
            gathers: (0..shape.gathers).map(|_| Mutex::default()).collect(),
            region: ROOT,
            lineage: Lineage::Root,
            slot,
            admitted,
            weight: Weight::default(),
            start_by: None,
            queued: AtomicBool::new(false),
            cancelled: AtomicBool::new(false),
            result: Mutex::new(ResultCell::Empty(None)),
            settled: Condvar::new(),
        }
    }

    /// The same item, waiting in the queue until `start_by` at most.
    pub(crate) fn in_queue(mut self, start_by: Option<Instant>) -> Self {
        self.start_by = start_by;
        self.queued = AtomicBool::new(true);
        self
    }

    pub(crate) fn leave_queue(&self) {
        self.queued.store(false, Ordering::Release);
    }

    /// When the wait of an item in the queue ends whatever happens.
    pub(crate) fn queued_until(&self) -> Option<Instant> {
        self.start_by.filter(|_| self.queued.load(Ordering::Acquire))
    }

    /// Why an item need not be let in from the queue any more.
    pub(crate) fn skip_queue(&self) -> Option<ItemError> {
        self.skip().or_else(|| {
            let old = self.start_by.is_some_and(|until| Instant::now() >= until);
            old.then(|| {
                let message = "the item waited in the queue for longer than it may";
                ItemError::new(ErrorKind::Expired, message).at(None, self.seq)
            })
        })
    }

    /// Child `index` of an item. The caller has taken the credit that it holds.
    pub(crate) fn child(
        parent: &Arc<Self>,
        index: usize,
        region: RegionId,
        shape: &Shape,
        budget: &Arc<Budget>,
    ) -> Arc<Self> {
        let place = u32::try_from(index).unwrap_or(u32::MAX);
        let (seq, stream) = (parent.seq.child(place), parent.stream.clone());
        let mut child = Self::new(seq, usize::MAX, parent.deadline, stream, shape, parent.admitted);
        child.region = region;
        let (parent, budget) = (Arc::clone(parent), Arc::clone(budget));
        child.lineage = Lineage::Child { parent, index, budget };
        Arc::new(child)
    }

    /// A batch of these items. Its deadline is the last of theirs.
    pub(crate) fn batch(
        members: Vec<Arc<Self>>,
        kept: Vec<P>,
        region: RegionId,
        shape: &Shape,
        live: &Arc<Live>,
    ) -> Arc<Self> {
        let seq = members.first().map_or(Seq::new(0), |first| first.seq);
        let deadlines = members.iter().map(|member| member.deadline);
        let deadline = deadlines.reduce(|one, other| Some(one?.max(other?))).flatten();
        let mut batch = Self::new(seq, usize::MAX, deadline, None, shape, Instant::now());
        batch.region = region;
        live.one_more();
        let live = Arc::clone(live);
        batch.lineage = Lineage::Batch { members, kept: Mutex::new(kept), live };
        Arc::new(batch)
    }

    /// The items that this one stands for: the members of a batch, else none.
    pub(crate) fn members(&self) -> &[Arc<Self>] {
        match &self.lineage {
            Lineage::Batch { members, .. } => members,
            Lineage::Root | Lineage::Child { .. } => &[],
        }
    }

    /// The items of the source that this one is made of, each with its share of `bytes`.
    pub(crate) fn for_roots(&self, bytes: usize, visit: &mut dyn FnMut(&Self, usize)) {
        match &self.lineage {
            Lineage::Root => visit(self, bytes),
            Lineage::Child { parent, .. } => parent.for_roots(bytes, visit),
            Lineage::Batch { members, .. } => {
                let share = bytes / members.len().max(1);
                let mut rest = bytes - share * members.len();
                for member in members {
                    member.for_roots(share + std::mem::take(&mut rest), visit);
                }
            }
        }
    }

    /// `error`, placed at an actor and at this item. That of a batch is placed at its members later.
    pub(crate) fn blame(&self, error: ItemError, actor: &Arc<str>) -> ItemError {
        match self.lineage {
            Lineage::Batch { .. } => error.of(actor),
            Lineage::Root | Lineage::Child { .. } => error.at(Some(actor), self.seq),
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
        let given_up = || ItemError::new(ErrorKind::Cancelled, "the item was given up");
        if self.cancelled.load(Ordering::Acquire) {
            return Some(given_up());
        }
        let above = match &self.lineage {
            Lineage::Root => None,
            Lineage::Child { parent, .. } => parent.skip(),
            Lineage::Batch { members, .. } => {
                members.iter().all(|member| member.skip().is_some()).then(given_up)
            }
        };
        above.or_else(|| self.late().then(|| self.expired()))
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

impl<P> Drop for Item<P> {
    fn drop(&mut self) {
        // No inbox, cell or stage holds it any more: its place is free.
        match &self.lineage {
            Lineage::Root => {}
            Lineage::Child { budget, .. } => budget.release(),
            Lineage::Batch { live, .. } => live.one_less(),
        }
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
