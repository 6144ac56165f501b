//! What became of a pipeline's items, and when.

use crate::metrics::Mark;
use crate::sync::{AtomicU64, Ordering};

/// The account of a pipeline's items. It lies under the lock of the credits, and is laid out for
/// that: what the sink and the source both write comes first, then what the source alone does.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub(crate) struct Counts {
    /// Items with a result.
    pub(crate) completed: u64,
    last_ns: u64,
    /// Completions until as many have come as may be in flight since the pipeline was last empty.
    to_fill: u64,
    filled_ns: u64,
    /// Items that were admitted.
    pub(crate) admitted: u64,
    /// When the first item was admitted.
    first_ns: u64,
    /// When the pipeline was last empty and an item was admitted, and the items completed by then.
    began_ns: u64,
    began_items: u64,
    /// What will have been completed once the pipeline is filled.
    fill: u64,
    /// The last completion before the last admission.
    fed_ns: u64,
    fed_items: u64,
    /// Results of items that were never let in: they are no throughput.
    turned_away: u64,
    /// Results that are errors, the filtered ones apart.
    pub(crate) failed: u64,
    pub(crate) filtered: u64,
}

/// What a result is counted as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Value,
    Failed,
    Filtered,
    /// Never let in.
    TurnedAway,
}

pub(crate) fn load(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

impl Counts {
    /// Items that came through.
    pub(crate) const fn through(&self) -> u64 {
        self.completed.saturating_sub(self.turned_away)
    }

    /// An item enters at `at_ns`. If all before it are done the pipeline was empty, and as many
    /// completions as `limit` will have filled it. What was completed so far was completed while the
    /// pipeline was fed.
    pub(crate) fn feed(&mut self, at_ns: u64, limit: usize) {
        let items = self.through();
        if self.admitted == self.completed {
            self.filled_ns = 0;
            self.to_fill = limit as u64;
            self.fill = items + limit as u64;
            self.began_items = items;
            self.began_ns = at_ns.max(1);
            if self.first_ns == 0 {
                self.first_ns = at_ns.max(1);
            }
        }
        self.admitted += 1;
        self.fed_items = items;
        self.fed_ns = self.last_ns;
    }

    /// An item has its result, at `now_ns`.
    pub(crate) fn result(&mut self, now_ns: u64, verdict: Verdict) {
        self.last_ns = self.last_ns.max(now_ns);
        self.completed += 1;
        match verdict {
            Verdict::Value => {}
            Verdict::Failed => self.failed += 1,
            Verdict::Filtered => self.filtered += 1,
            Verdict::TurnedAway => {
                self.failed += 1;
                self.turned_away += 1;
                return;
            }
        }
        if self.to_fill > 0 {
            self.to_fill -= 1;
            if self.to_fill == 0 {
                self.filled_ns = now_ns;
            }
        }
    }

    pub(crate) fn first(&self) -> Option<Mark> {
        mark(self.first_ns, 0)
    }

    pub(crate) fn began(&self) -> Option<Mark> {
        mark(self.began_ns, self.began_items)
    }

    pub(crate) fn filled(&self) -> Option<Mark> {
        mark(self.filled_ns, self.fill)
    }

    pub(crate) fn fed(&self) -> Option<Mark> {
        mark(self.fed_ns, self.fed_items)
    }

    pub(crate) fn last(&self) -> Option<Mark> {
        mark(self.last_ns, self.through())
    }
}

fn mark(at_ns: u64, items: u64) -> Option<Mark> {
    (at_ns > 0).then_some(Mark { items, at_ns })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipeline_is_filled_by_as_many_completions_as_may_be_in_flight() {
        let mut counts = Counts::default();
        for at_ns in [1, 2, 3] {
            counts.feed(at_ns, 2);
        }
        counts.result(10, Verdict::TurnedAway);
        counts.result(11, Verdict::Value);
        assert_eq!(counts.filled(), None);
        counts.result(12, Verdict::Filtered);
        assert_eq!(counts.filled(), Some(Mark { items: 2, at_ns: 12 }));
        assert_eq!((counts.first(), counts.began()), (mark(1, 0), mark(1, 0)));
        assert_eq!(counts.last(), Some(Mark { items: 2, at_ns: 12 }));
        counts.feed(20, 2);
        assert_eq!((counts.began(), counts.filled()), (mark(20, 2), None));
        assert_eq!(counts.fed(), Some(Mark { items: 2, at_ns: 12 }));
        assert_eq!((counts.completed, counts.failed, counts.filtered), (3, 1, 1));
    }
}
