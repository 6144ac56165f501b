//! One item: its number, where it comes from, its matching cells, and the cell that its result goes
//! into.

use std::time::Instant;

use crate::batch::Live;
use crate::budget::Budget;
use crate::error::{ErrorKind, ItemError};
use crate::gather::Gather;
use crate::join::{Cells, Join};
use crate::packet::Seq;
use crate::region::{ROOT, RegionId};
use crate::result::ResultCell;
use crate::state::Carried;
use crate::supervise::discard;
use crate::sync::{Apart, Arc, AtomicBool, Mutex, Ordering, own};
use crate::weight::Weight;

/// The result of an item: one payload per sink port, or why there is none.
pub(crate) type Outcome<P> = Result<Vec<P>, ItemError>;

/// What every packet of an item points to.
///
/// An item is used again once nobody holds it: see [`Flight`](crate::flight::Flight). What differs
/// from one use to the next lies apart from the rest: the number (messages carry it along, so an actor
/// does not look here) and the result. The rest is mostly what it was before, and is written only
/// where it is not, so that reading it costs an actor nothing.
pub(crate) struct Item<P> {
    seq: Apart<Seq>,
    pub(crate) deadline: Option<Instant>,
    pub(crate) stream: Option<Arc<Carried<P>>>,
    /// The region that it flows in.
    pub(crate) region: RegionId,
    pub(crate) lineage: Lineage<P>,
    pub(crate) weight: Weight,
    /// When it has waited too long in the queue.
    pub(crate) start_by: Option<Instant>,
    /// It waits in the queue in front of the credits.
    queued: AtomicBool,
    cancelled: AtomicBool,
    pub(crate) cells: Cells<P>,
    /// Where the lists of its children are gathered.
    pub(crate) gathers: Box<[Mutex<Gather<P>>]>,
    pub(crate) result: Apart<ResultCell<P>>,
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
    /// How many edges the topology has: an item has a stamp for each.
    pub(crate) edges: usize,
}

/// What an admission says about the item that it makes.
pub(crate) struct Admission<P> {
    pub(crate) deadline: Option<Instant>,
    pub(crate) stream: Option<Arc<Carried<P>>>,
    /// When, in nanoseconds since the spawn.
    pub(crate) admitted_ns: u64,
    /// It has to wait in the queue first, until `start_by` at most.
    pub(crate) queued: bool,
    pub(crate) start_by: Option<Instant>,
}

impl<P> Item<P> {
    /// An item of the source.
    pub(crate) fn new(seq: Seq, admission: Admission<P>, shape: &Shape) -> Self {
        Self {
            seq: Apart(seq),
            deadline: admission.deadline,
            stream: admission.stream,
            region: ROOT,
            lineage: Lineage::Root,
            weight: Weight::default(),
            start_by: admission.start_by,
            queued: AtomicBool::new(admission.queued),
            cancelled: AtomicBool::new(false),
            cells: Cells::new(&shape.joins, shape.edges),
            gathers: (0..shape.gathers).map(|_| Mutex::default()).collect(),
            result: Apart(ResultCell::new(admission.admitted_ns)),
        }
    }

    /// Makes another item of the source of this one, of the same shape.
    pub(crate) fn renew(&mut self, seq: Seq, admission: Admission<P>, shape: &Shape) {
        self.seq.0 = seq;
        change(&mut self.deadline, admission.deadline);
        change(&mut self.start_by, admission.start_by);
        if self.stream.is_some() || admission.stream.is_some() {
            discard(std::mem::replace(&mut self.stream, admission.stream));
        }
        self.weight.renew();
        put(&self.queued, admission.queued);
        put(&self.cancelled, false);
        self.cells.renew(&shape.joins);
        for gather in &mut self.gathers {
            own(gather).renew();
        }
        self.result.0.renew(admission.admitted_ns);
    }

    /// Its number.
    pub(crate) fn seq(&self) -> Seq {
        *self.seq
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
                ItemError::new(ErrorKind::Expired, message).at(None, self.seq())
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
        let admission = Admission {
            deadline: parent.deadline,
            stream: parent.stream.clone(),
            admitted_ns: parent.result.admitted_ns,
            queued: false,
            start_by: None,
        };
        let mut child = Self::new(parent.seq().child(place), admission, shape);
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
        let seq = members.first().map_or(Seq::new(0), |first| first.seq());
        let deadlines = members.iter().map(|member| member.deadline);
        let deadline = deadlines.reduce(|one, other| Some(one?.max(other?))).flatten();
        let admission =
            Admission { deadline, stream: None, admitted_ns: 0, queued: false, start_by: None };
        let mut batch = Self::new(seq, admission, shape);
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
            Lineage::Root | Lineage::Child { .. } => error.at(Some(actor), self.seq()),
        }
    }

    /// Settles with an error and lets the actors skip the item. True if it had no result yet.
    pub(crate) fn abort(&self, error: ItemError) -> bool {
        let first = self.result.settle(Err(error.at(None, self.seq())));
        // Only now: an actor that skips the item brings an error of its own to the sink.
        self.cancelled.store(true, Ordering::Release);
        first
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
        ItemError::new(ErrorKind::Expired, "the deadline of the item passed").at(None, self.seq())
    }
}

/// Writes only what differs: a cache line that stays as it is stays where it is read.
fn change<T: PartialEq>(place: &mut T, value: T) {
    if *place != value {
        *place = value;
    }
}

fn put(place: &AtomicBool, value: bool) {
    if place.load(Ordering::Relaxed) != value {
        place.store(value, Ordering::Relaxed);
    }
}

impl<P> Drop for Item<P> {
    fn drop(&mut self) {
        discard(self.stream.take());
        self.cells.clear();
        for gather in &mut self.gathers {
            own(gather).renew();
        }
        self.result.0.clear();
        if let Lineage::Batch { kept, .. } = &mut self.lineage {
            discard(own(kept).drain(..));
        }
        // No inbox, cell or stage holds it any more: its place is free.
        match &self.lineage {
            Lineage::Root => {}
            Lineage::Child { budget, .. } => budget.release(),
            Lineage::Batch { live, .. } => live.one_less(),
        }
    }
}
