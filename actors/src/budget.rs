//! The budget of a fan-out: how many of its children may be alive at once.

use crate::sync::{AtomicUsize, Condvar, Mutex, Ordering, lock, wait_until};

/// The count credits of one fan-out. A child takes one when it is made and gives it back when its
/// last handle goes.
pub(crate) struct Budget {
    limit: usize,
    used: Mutex<usize>,
    freed: Condvar,
    peak: AtomicUsize,
}

impl Budget {
    pub(crate) fn new(limit: usize) -> Self {
        Self { limit, used: Mutex::new(0), freed: Condvar::new(), peak: AtomicUsize::new(0) }
    }

    /// Takes as many of `wanted` credits as are free, without waiting.
    pub(crate) fn try_acquire(&self, wanted: usize) -> usize {
        self.take(&mut lock(&self.used), wanted)
    }

    /// Takes at least one of `wanted` credits, waiting for it; 0 if `stop` said so first.
    pub(crate) fn acquire(&self, wanted: usize, stop: impl Fn() -> bool) -> usize {
        let mut used = lock(&self.used);
        loop {
            let taken = self.take(&mut used, wanted);
            if taken > 0 || stop() {
                return taken;
            }
            used = wait_until(&self.freed, used, None);
        }
    }

    fn take(&self, used: &mut usize, wanted: usize) -> usize {
        let taken = wanted.min(self.limit.saturating_sub(*used));
        *used += taken;
        self.peak.fetch_max(*used, Ordering::Relaxed);
        taken
    }

    /// Gives one credit back.
    pub(crate) fn release(&self) {
        let mut used = lock(&self.used);
        *used = used.saturating_sub(1);
        drop(used);
        self.freed.notify_one();
    }

    /// Makes a waiting fan-out look at its stop flag.
    pub(crate) fn interrupt(&self) {
        // Under the lock, so that it does not fall between the look at the flag and the wait.
        let _used = lock(&self.used);
        self.freed.notify_all();
    }

    /// Credits that are out, and the most that ever were.
    pub(crate) fn level(&self) -> (usize, usize) {
        (*lock(&self.used), self.peak.load(Ordering::Relaxed))
    }

    pub(crate) const fn limit(&self) -> usize {
        self.limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sync::AtomicBool;

    #[test]
    fn a_waiter_gets_what_is_freed_and_ends_when_told_to_stop() {
        let budget = Budget::new(3);
        assert_eq!(budget.try_acquire(2), 2);
        assert_eq!(budget.acquire(5, || false), 1);
        assert_eq!(budget.try_acquire(1), 0);
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| budget.acquire(2, || stop.load(Ordering::Acquire)));
            budget.release();
            assert_eq!(waiter.join().unwrap(), 1);
            let waiter = scope.spawn(|| budget.acquire(2, || stop.load(Ordering::Acquire)));
            stop.store(true, Ordering::Release);
            budget.interrupt();
            assert_eq!(waiter.join().unwrap(), 0);
        });
        assert_eq!(budget.level(), (3, 3));
    }
}
