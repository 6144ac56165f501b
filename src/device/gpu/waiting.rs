//! What happens beside actors: faults of a device, and the thread that waits for it.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

pub(in crate::device) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What went wrong with a device outside of any call, and who is to hear of it.
#[derive(Debug, Default)]
pub(in crate::device) struct Faults {
    lost: Mutex<Option<String>>,
    listeners: Mutex<HashMap<u64, Waker>>,
}

impl Faults {
    /// The device is lost, for this reason unless there is one already.
    pub(in crate::device) fn lose(&self, why: String) {
        lock(&self.lost).get_or_insert(why);
        // Whoever is woken may forget a listener.
        let listeners = std::mem::take(&mut *lock(&self.listeners));
        for (_, waker) in listeners {
            waker.wake();
        }
    }

    /// Why the device is lost, if it is.
    pub(in crate::device) fn lost(&self) -> Option<String> {
        lock(&self.lost).clone()
    }

    /// Wakes `waker` if the device is lost, until the number that is returned is forgotten.
    pub(in crate::device) fn listen(&self, waker: &Waker) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        lock(&self.listeners).insert(number, waker.clone());
        if self.lost().is_some() {
            waker.wake_by_ref();
        }
        number
    }

    /// Wakes that one no more.
    pub(in crate::device) fn forget(&self, listener: u64) {
        lock(&self.listeners).remove(&listener);
    }
}

/// Nothing is completed any more once a waiting thread has ended, whatever ended it.
pub(in crate::device) struct Ended {
    faults: Arc<Faults>,
    expected: bool,
}

impl Ended {
    /// To be dropped at the end of the thread.
    pub(in crate::device) fn new(faults: Arc<Faults>) -> Self {
        Self { faults, expected: false }
    }

    /// It ends as it should.
    #[cfg_attr(not(feature = "_cuda"), allow(dead_code))]
    pub(in crate::device) fn expected(mut self) {
        self.expected = true;
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        if !self.expected {
            self.faults.lose("the thread that waits for it has ended".to_owned());
        }
    }
}

/// The duties of a waiting thread, in order.
#[derive(Debug)]
pub(in crate::device) struct Duties<D> {
    queue: Mutex<VecDeque<D>>,
    more: Condvar,
}

impl<D> Default for Duties<D> {
    fn default() -> Self {
        Self { queue: Mutex::default(), more: Condvar::new() }
    }
}

impl<D> Duties<D> {
    /// One more.
    pub(in crate::device) fn add(&self, duty: D) {
        lock(&self.queue).push_back(duty);
        self.more.notify_one();
    }

    /// The next one, once there is one.
    pub(in crate::device) fn next(&self) -> D {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(duty) = queue.pop_front() {
                return duty;
            }
            queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
