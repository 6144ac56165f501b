//! What became of a pipeline's items, and when.

use crate::histogram::Recorder;
use crate::metrics::Mark;
use crate::sync::{AtomicU64, Ordering};

/// The account of a pipeline's items.
pub(crate) struct Counts {
    pub(crate) completed: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) filtered: AtomicU64,
    pub(crate) latency: Recorder,
    /// Results of items that were never let in: they are no throughput.
    pub(crate) turned_away: AtomicU64,
    /// When the first item was admitted.
    pub(crate) first_ns: AtomicU64,
    /// When the pipeline was last empty and an item was admitted, and the items completed by then.
    pub(crate) began_ns: AtomicU64,
    pub(crate) began_items: AtomicU64,
    /// When, since then, as many items had been completed as may be in flight, and all of them.
    pub(crate) filled_ns: AtomicU64,
    pub(crate) fill: AtomicU64,
    /// The last completion before the last admission.
    pub(crate) fed_ns: AtomicU64,
    pub(crate) fed_items: AtomicU64,
    pub(crate) last_ns: AtomicU64,
}

impl Counts {
    pub(crate) fn new() -> Self {
        Self {
            completed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            filtered: AtomicU64::new(0),
            latency: Recorder::new(),
            turned_away: AtomicU64::new(0),
            first_ns: AtomicU64::new(0),
            began_ns: AtomicU64::new(0),
            began_items: AtomicU64::new(0),
            filled_ns: AtomicU64::new(0),
            fill: AtomicU64::new(0),
            fed_ns: AtomicU64::new(0),
            fed_items: AtomicU64::new(0),
            last_ns: AtomicU64::new(0),
        }
    }
}

pub(crate) fn load(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

impl Counts {
    /// Items that came through.
    pub(crate) fn through(&self) -> u64 {
        self.completed.load(Ordering::Acquire).saturating_sub(load(&self.turned_away))
    }

    /// An item enters behind `admitted_before` others. If all of them are done the pipeline was empty,
    /// and as many completions as `limit` will have filled it. What was completed so far was completed
    /// while the pipeline was fed.
    pub(crate) fn feed(&self, admitted_before: u64, at_ns: u64, limit: impl FnOnce() -> usize) {
        let completed = self.completed.load(Ordering::Acquire);
        let items = completed.saturating_sub(load(&self.turned_away));
        if admitted_before == completed {
            self.filled_ns.store(0, Ordering::Relaxed);
            self.fill.store(items + limit() as u64, Ordering::Relaxed);
            self.began_items.store(items, Ordering::Relaxed);
            self.began_ns.store(at_ns.max(1), Ordering::Relaxed);
            if load(&self.first_ns) == 0 {
                self.first_ns.store(at_ns.max(1), Ordering::Relaxed);
            }
        }
        self.fed_items.store(items, Ordering::Relaxed);
        self.fed_ns.store(load(&self.last_ns), Ordering::Relaxed);
    }

    /// An item has its result, at `now_ns`.
    pub(crate) fn result(&self, latency_ns: u64, now_ns: u64, failed: bool) {
        self.latency.record(latency_ns);
        self.last_ns.fetch_max(now_ns, Ordering::Relaxed);
        let completed = self.completed.fetch_add(1, Ordering::Release) + 1;
        if completed.saturating_sub(load(&self.turned_away)) == load(&self.fill) {
            self.filled_ns.store(now_ns, Ordering::Relaxed);
        }
        if failed {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn mark(at_ns: &AtomicU64, items: u64) -> Option<Mark> {
        let at_ns = load(at_ns);
        (at_ns > 0).then_some(Mark { items, at_ns })
    }
}
