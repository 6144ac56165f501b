//! Matching: which ports hold an item.
//!
//! The matching table is cut by item: each item brings one cell for every input port of every join
//! (and of the sink), and a count of the ports that are still empty. The *senders* fill it; whoever
//! empties the count has completed the match. There is nothing to look up, to resize or to remove:
//! the table of an item goes with the item.

use crate::packet::Delivery;
use crate::supervise::discard;
use crate::sync::{AtomicU64, Mutex, Ordering, lock, own};

/// Where the cells of one join lie in each item.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Join {
    /// Its place in the list of joins.
    pub(crate) index: usize,
    /// Its first cell.
    pub(crate) first: usize,
    /// Its number of ports, and so of cells.
    pub(crate) ports: usize,
}

/// The cells of one item.
pub(crate) struct Cells<P> {
    cells: Box<[Mutex<Option<Delivery<P>>>]>,
    /// For each join, how many of its ports are empty; then the stamps. Senders write both, so they
    /// lie together.
    marks: Box<[AtomicU64]>,
    joins: usize,
}

impl<P> Cells<P> {
    /// Empty cells for these joins, and stamps for so many edges.
    pub(crate) fn new(joins: &[Join], edges: usize) -> Self {
        let cells = joins.iter().map(|join| join.ports).sum();
        Self {
            cells: (0..cells).map(|_| Mutex::new(None)).collect(),
            marks: marks(joins).chain((0..edges).map(|_| 0)).map(AtomicU64::new).collect(),
            joins: joins.len(),
        }
    }

    /// Empties the cells for another item.
    pub(crate) fn renew(&mut self, joins: &[Join]) {
        for cell in &mut self.cells {
            let cell = own(cell);
            if cell.is_some() {
                discard(cell.take().and_then(Result::ok));
            }
        }
        for (mark, fresh) in self.marks.iter().zip(marks(joins).chain(std::iter::repeat(0))) {
            if mark.load(Ordering::Relaxed) != fresh {
                mark.store(fresh, Ordering::Relaxed);
            }
        }
    }

    /// Drops what lies in the cells.
    pub(crate) fn clear(&mut self) {
        for cell in &mut self.cells {
            discard(own(cell).take().and_then(Result::ok));
        }
    }

    /// Notes when the item was put onto `edge`, one into a join or into a sink of several ports: on the
    /// others the message carries that along. What hands the item over makes it visible.
    pub(crate) fn stamp(&self, edge: usize, at_ns: u64) {
        self.marks[self.joins + edge].store(at_ns.max(1), Ordering::Relaxed);
    }

    /// Takes the stamp of `edge`; 0 if there is none. Only the taker of the item calls this.
    pub(crate) fn unstamp(&self, edge: usize) -> u64 {
        let stamp = self.stamped(edge);
        if stamp > 0 {
            self.marks[self.joins + edge].store(0, Ordering::Relaxed);
        }
        stamp
    }

    /// When the item was put onto `edge`; 0 if it was not.
    pub(crate) fn stamped(&self, edge: usize) -> u64 {
        self.marks[self.joins + edge].load(Ordering::Relaxed)
    }

    /// Fills a port; `None` fills it with nothing but the fact that it was reached. True for the
    /// one call that completes the match.
    pub(crate) fn fill(&self, join: Join, port: usize, delivery: Option<Delivery<P>>) -> bool {
        if let Some(delivery) = delivery {
            *lock(&self.cells[join.first + port]) = Some(delivery);
        }
        // Acquire-release: the completer sees what every other sender put into its cell.
        self.marks[join.index].fetch_sub(1, Ordering::AcqRel) == 1
    }

    /// Takes what a port holds.
    pub(crate) fn take(&self, join: Join, port: usize) -> Option<Delivery<P>> {
        lock(&self.cells[join.first + port]).take()
    }
}

/// How many ports each join has.
fn marks(joins: &[Join]) -> impl Iterator<Item = u64> {
    joins.iter().map(|join| join.ports as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ItemError;

    #[test]
    fn exactly_one_sender_completes_a_match() {
        let join = Join { index: 0, first: 0, ports: 4 };
        for _ in 0..200 {
            let cells = Cells::<u64>::new(&[join], 0);
            let completed: usize = std::thread::scope(|scope| {
                let senders: Vec<_> = (0..4)
                    .map(|port| {
                        let cells = &cells;
                        scope.spawn(move || cells.fill(join, port, Some(Ok(port as u64))))
                    })
                    .collect();
                senders.into_iter().map(|sender| usize::from(sender.join().unwrap())).sum()
            });
            assert_eq!(completed, 1);
            for port in 0..4 {
                assert_eq!(cells.take(join, port).unwrap().unwrap(), port as u64);
            }
        }
    }

    #[test]
    fn joins_of_one_item_do_not_mix() {
        let joins = [Join { index: 0, first: 0, ports: 1 }, Join { index: 1, first: 1, ports: 2 }];
        let cells = Cells::<u64>::new(&joins, 0);
        assert!(!cells.fill(joins[1], 1, Some(Err(ItemError::failed("no")))));
        assert!(cells.fill(joins[0], 0, Some(Ok(1))));
        assert!(cells.fill(joins[1], 0, None));
        assert_eq!(cells.take(joins[0], 0).unwrap().unwrap(), 1);
        assert!(cells.take(joins[1], 0).is_none());
        assert!(cells.take(joins[1], 1).unwrap().is_err());
    }
}
