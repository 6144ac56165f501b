//! What an item weighs: the bytes that its payloads keep alive.
//!
//! An item is charged at its admission with what it is expected to hold at its peak. Its payloads
//! are weighed as they travel, so that an item that turns out to be heavier is charged with more,
//! and those after it are charged with as much from the start. Only pipelines with a byte budget
//! weigh anything.

use crate::credit::Credits;
use crate::sync::{AtomicUsize, Ordering};

/// The bytes of one item.
#[derive(Default)]
pub(crate) struct Weight {
    /// Those of its inputs.
    input: AtomicUsize,
    /// What its credit is charged with.
    charge: AtomicUsize,
    held: AtomicUsize,
    peak: AtomicUsize,
}

/// The bytes of all items together.
#[derive(Default)]
pub(crate) struct Total {
    held: AtomicUsize,
    peak: AtomicUsize,
}

impl Weight {
    /// The item was admitted with inputs of `input` bytes, charged with `charge`.
    pub(crate) fn admit(&self, input: usize, charge: usize) {
        if input > 0 || charge > 0 {
            self.input.store(input, Ordering::Relaxed);
            self.charge.store(charge, Ordering::Relaxed);
        }
    }

    /// Weighs nothing again, for another item.
    pub(crate) fn renew(&self) {
        for figure in [&self.input, &self.charge, &self.held, &self.peak] {
            if figure.load(Ordering::Relaxed) != 0 {
                figure.store(0, Ordering::Relaxed);
            }
        }
    }

    /// A payload of `bytes` came into being.
    pub(crate) fn add<H>(&self, bytes: usize, total: &Total, credits: &Credits<H>) {
        let held = self.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(held, Ordering::Relaxed);
        let all = total.held.fetch_add(bytes, Ordering::Relaxed) + bytes;
        total.peak.fetch_max(all, Ordering::Relaxed);
        let charge = self.charge.fetch_max(held, Ordering::AcqRel);
        if held > charge {
            credits.raise(held - charge);
        }
    }

    /// Payloads of `bytes` are gone.
    pub(crate) fn sub(&self, bytes: usize, total: &Total) {
        // A payload may weigh less when it arrives than when it was sent, never the total.
        let before = take(&self.held, bytes);
        take(&total.held, bytes.min(before));
    }

    /// The item retires: nothing of it is in the pipeline any more. Tells `learn` what it held
    /// beyond its inputs if it came through, and gives what its credit is charged with.
    pub(crate) fn retire(&self, complete: bool, total: &Total, learn: impl FnOnce(usize)) -> usize {
        take(&total.held, self.held.swap(0, Ordering::Relaxed));
        if complete {
            let input = self.input.load(Ordering::Relaxed);
            learn(self.peak.load(Ordering::Relaxed).saturating_sub(input));
        }
        self.charge.load(Ordering::Acquire)
    }
}

/// Takes `bytes` off, as far as there are so many; gives what there was.
fn take(from: &AtomicUsize, bytes: usize) -> usize {
    let mut before = from.load(Ordering::Relaxed);
    loop {
        let after = before.saturating_sub(bytes);
        match from.compare_exchange_weak(before, after, Ordering::Relaxed, Ordering::Relaxed) {
            Ok(_) => return before,
            Err(now) => before = now,
        }
    }
}

impl Total {
    /// What is held now, and the most that ever was.
    pub(crate) fn snapshot(&self) -> (usize, usize) {
        (self.held.load(Ordering::Relaxed), self.peak.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::credit::{Ask, Bounds, Place};

    #[test]
    fn an_item_that_grows_is_charged_with_more_and_the_next_from_the_start() {
        let bounds = Bounds { items: 8, bytes: Some(1000), item_bytes: Some(0), queue: 0 };
        let (credits, total) =
            (Credits::<()>::new(bounds, std::time::Instant::now()), Total::default());
        let ask = Ask { bytes: 100, queue: false, at_ns: 0 };
        assert_eq!(credits.try_acquire(ask).unwrap(), Place::Flight(100));
        let weight = Weight::default();
        weight.admit(100, 100);
        weight.add(100, &total, &credits);
        weight.sub(100, &total);
        weight.add(400, &total, &credits);
        assert_eq!(total.snapshot(), (400, 400));
        assert_eq!(credits.try_acquire(Ask { bytes: 601, queue: false, at_ns: 0 }).ok(), None);
        assert_eq!(weight.retire(true, &total, |extra| credits.open().learn(extra)), 400);
        credits.open().release(400).wake();
        assert_eq!(total.snapshot(), (0, 400));
        assert_eq!(credits.try_acquire(ask).unwrap(), Place::Flight(400));
    }
}
