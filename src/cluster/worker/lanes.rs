//! The lanes of the worker's devices, which all its sessions share.
//!
//! The session that was served longest ago comes first; of one session, the stage that is most
//! downstream, then the lowest firing, so that items leave before new ones enter.

use std::cmp::Reverse;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::lock;
use crate::cluster::message::FiringKey;

/// How long a wait goes without a look at whether it is still wanted.
const LOOK: Duration = Duration::from_millis(20);

/// The lanes of one device.
#[derive(Debug)]
pub(super) struct Lanes {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    free: usize,
    waiting: Vec<Waiting>,
    /// Counts the grants.
    turn: u64,
    tickets: u64,
}

#[derive(Debug)]
struct Waiting {
    ticket: u64,
    /// The turn in which the session was served last.
    served: Arc<AtomicU64>,
    of: FiringKey,
}

/// A lane that is held.
#[derive(Debug)]
pub(super) struct Lane(Arc<Lanes>);

impl Lanes {
    pub(super) fn new(lanes: usize) -> Arc<Self> {
        let state = State { free: lanes.max(1), waiting: Vec::new(), turn: 0, tickets: 0 };
        Arc::new(Self { state: Mutex::new(state), changed: Condvar::new() })
    }

    /// Waits for a lane; `None` if it is told to stop.
    pub(super) fn hold(
        self: &Arc<Self>,
        served: &Arc<AtomicU64>,
        of: FiringKey,
        stop: &AtomicBool,
    ) -> Option<Lane> {
        let mut state = lock(&self.state);
        state.tickets += 1;
        let ticket = state.tickets;
        state.waiting.push(Waiting { ticket, served: Arc::clone(served), of });
        loop {
            if stop.load(Ordering::Relaxed) {
                state.waiting.retain(|w| w.ticket != ticket);
                self.changed.notify_all();
                return None;
            }
            let rank = |w: &Waiting| {
                (w.served.load(Ordering::Relaxed), Reverse(w.of.stage), w.of.firing, w.ticket)
            };
            let first = state.waiting.iter().min_by_key(|w| rank(w)).map(|w| w.ticket);
            if state.free > 0 && first == Some(ticket) {
                state.free -= 1;
                state.turn += 1;
                served.store(state.turn, Ordering::Relaxed);
                state.waiting.retain(|w| w.ticket != ticket);
                // Another lane may be free for whoever comes first now.
                if state.free > 0 && !state.waiting.is_empty() {
                    self.changed.notify_all();
                }
                return Some(Lane(Arc::clone(self)));
            }
            let wait = self.changed.wait_timeout(state, LOOK);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.free += 1;
        if !state.waiting.is_empty() {
            self.0.changed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    fn of(stage: u64, firing: u64) -> FiringKey {
        FiringKey { stage, firing }
    }

    #[test]
    fn downstream_comes_first_and_sessions_take_turns() {
        let lanes = Lanes::new(1);
        let (one, two) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let stop = Arc::new(AtomicBool::new(false));
        let held = lanes.hold(&one, of(0, 0), &stop).unwrap();
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut threads = Vec::new();
        let asks = [(&one, of(1, 7)), (&one, of(2, 9)), (&one, of(2, 8)), (&two, of(0, 3))];
        for (n, (served, of)) in asks.into_iter().enumerate() {
            let (own, served, stop, order) =
                (Arc::clone(&lanes), Arc::clone(served), Arc::clone(&stop), Arc::clone(&order));
            threads.push(std::thread::spawn(move || {
                let lane = own.hold(&served, of, &stop).unwrap();
                lock(&order).push(of);
                drop(lane);
            }));
            let deadline = Instant::now() + Duration::from_secs(10);
            while lock(&lanes.state).waiting.len() <= n {
                assert!(Instant::now() < deadline);
                std::thread::yield_now();
            }
        }
        drop(held);
        for thread in threads {
            thread.join().unwrap();
        }
        assert_eq!(*lock(&order), [of(0, 3), of(2, 8), of(2, 9), of(1, 7)]);
    }

    #[test]
    fn a_wait_ends_when_it_is_told_to() {
        let lanes = Lanes::new(1);
        let served = Arc::new(AtomicU64::new(0));
        let _held = lanes.hold(&served, of(0, 0), &AtomicBool::new(false)).unwrap();
        assert!(lanes.hold(&served, of(0, 1), &AtomicBool::new(true)).is_none());
        assert!(lock(&lanes.state).waiting.is_empty());
    }
}
