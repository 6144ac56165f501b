//! Lanes: the right to compute on a device now.
//!
//! Who asks while a lane is free gets it at once. When one is given back, it goes to the asking
//! actor that is most downstream, ties to the lowest item, so that items leave before new ones
//! enter. Between pipelines that share a device, the one that was served longest ago comes first.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use crate::packet::Seq;
use crate::sync::{Arc, AtomicBool, AtomicU32, Condvar, Mutex, Ordering, lock, wait_until};

/// The lanes of one device.
pub(crate) struct Lanes {
    pub(crate) device: Arc<str>,
    state: Mutex<State>,
}

struct State {
    total: usize,
    held: usize,
    /// Lanes held by threads that were left behind. A thread may come back before it was counted.
    poisoned: isize,
    waiting: Vec<Waiter>,
    turn: u64,
    served: HashMap<u64, u64>,
    /// The pipeline that was served last.
    last: Option<u64>,
    /// Holders that know it: a lane that was given to a sleeping actor is held before it computes.
    computing: usize,
    busy_since: Option<Instant>,
    busy: Duration,
}

struct Waiter {
    seat: Arc<Seat>,
    seq: Seq,
}

/// One actor's place at the lanes of its device.
pub(crate) struct Seat {
    /// The pipeline of the actor.
    pipeline: u64,
    /// How many actors can follow this one: the lower, the more downstream.
    height: usize,
    granted: AtomicBool,
    changed: Condvar,
}

impl Seat {
    pub(crate) fn new(pipeline: u64, height: usize) -> Arc<Self> {
        Arc::new(Self {
            pipeline,
            height,
            granted: AtomicBool::new(false),
            changed: Condvar::new(),
        })
    }
}

/// The answer to an actor that asked for a lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grant {
    /// It holds one.
    Held,
    /// It was told to stop.
    Stopped,
    /// No lane is left that could ever be given: stuck threads hold them all.
    Poisoned,
}

impl Lanes {
    pub(crate) fn new(device: &str, total: usize) -> Arc<Self> {
        Arc::new(Self {
            device: Arc::from(device),
            state: Mutex::new(State {
                total,
                held: 0,
                poisoned: 0,
                waiting: Vec::new(),
                turn: 0,
                served: HashMap::new(),
                last: None,
                computing: 0,
                busy_since: None,
                busy: Duration::ZERO,
            }),
        })
    }

    /// Takes a lane at `now` without waiting, if one is free.
    pub(crate) fn try_acquire(&self, seat: &Seat, now: Instant) -> bool {
        let mut state = lock(&self.state);
        let free = state.held < state.total && state.waiting.is_empty();
        if free {
            state.take(seat.pipeline);
            state.compute(now);
        }
        free
    }

    /// Takes a lane for item `seq`, waiting until one is given or `stop` says so.
    pub(crate) fn acquire(&self, seat: &Arc<Seat>, seq: Seq, stop: impl Fn() -> bool) -> Grant {
        let mut state = lock(&self.state);
        if state.held < state.total && state.waiting.is_empty() {
            state.take(seat.pipeline);
            state.compute(Instant::now());
            return Grant::Held;
        }
        state.waiting.push(Waiter { seat: Arc::clone(seat), seq });
        loop {
            if seat.granted.swap(false, Ordering::AcqRel) {
                state.compute(Instant::now());
                return Grant::Held;
            }
            let stopped = stop();
            if stopped || (state.poisoned > 0 && state.poisoned.unsigned_abs() == state.total) {
                state.waiting.retain(|waiter| !Arc::ptr_eq(&waiter.seat, seat));
                return if stopped { Grant::Stopped } else { Grant::Poisoned };
            }
            state = wait_until(&seat.changed, state, None);
        }
    }

    /// True if an actor waits that comes before this one: a holder that could go on gives way.
    pub(crate) fn gives_way(&self, seat: &Seat, seq: Seq) -> bool {
        let state = lock(&self.state);
        let own = state.key(seat, seq);
        state.waiting.iter().any(|waiter| state.key(&waiter.seat, waiter.seq) < own)
    }

    /// How many lanes there are.
    pub(crate) fn total(&self) -> usize {
        lock(&self.state).total
    }

    /// Gives a lane back at `now`.
    #[cfg(any(test, loom))]
    pub(crate) fn release(&self, now: Instant) {
        self.give_back(&mut lock(&self.state), now);
    }

    fn give_back(&self, state: &mut State, now: Instant) {
        state.held = state.held.saturating_sub(1);
        state.computing = state.computing.saturating_sub(1);
        if state.computing == 0
            && let Some(since) = state.busy_since.take()
        {
            state.busy += now.saturating_duration_since(since);
        }
        state.grant();
    }

    /// Makes every waiting actor look at its stop flag.
    pub(crate) fn interrupt(&self) {
        for waiter in &lock(&self.state).waiting {
            waiter.seat.changed.notify_all();
        }
    }

    /// Counts a lane as lost, because the thread that holds it was left behind.
    #[cfg(test)]
    fn poison(&self) {
        lock(&self.state).poison();
    }

    /// Lanes in all, lanes held, lanes poisoned, and the time in which at least one was used.
    pub(crate) fn snapshot(&self, now: Instant) -> (usize, usize, usize, Duration) {
        let state = lock(&self.state);
        let running = state.busy_since.map(|since| now.saturating_duration_since(since));
        let poisoned = state.poisoned.max(0).unsigned_abs();
        (state.total, state.held, poisoned, state.busy + running.unwrap_or_default())
    }
}

impl State {
    fn poison(&mut self) {
        self.poisoned += 1;
        for waiter in &self.waiting {
            waiter.seat.changed.notify_all();
        }
    }

    fn take(&mut self, pipeline: u64) {
        self.held += 1;
        // The one that was served last stays so: a device of one pipeline keeps no order.
        if self.last != Some(pipeline) {
            self.turn += 1;
            self.served.insert(pipeline, self.turn);
            self.last = Some(pipeline);
        }
    }

    fn compute(&mut self, now: Instant) {
        self.computing += 1;
        self.busy_since.get_or_insert(now);
    }

    /// The smallest key comes first.
    fn key(&self, seat: &Seat, seq: Seq) -> (u64, usize, Seq) {
        (self.served.get(&seat.pipeline).copied().unwrap_or(0), seat.height, seq)
    }

    fn grant(&mut self) {
        while self.held < self.total {
            let keys = self.waiting.iter().map(|waiter| self.key(&waiter.seat, waiter.seq));
            let Some((place, _)) = keys.enumerate().min_by_key(|(_, key)| *key) else {
                return;
            };
            let waiter = self.waiting.swap_remove(place);
            self.take(waiter.seat.pipeline);
            waiter.seat.granted.store(true, Ordering::Release);
            waiter.seat.changed.notify_all();
        }
    }
}

/// An actor's hold on a lane of its device.
pub(crate) struct LaneHold {
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) seat: Arc<Seat>,
    /// `FREE`, `HELD`, or held by a thread that was left behind. Changed under the lock of the lanes.
    state: AtomicU32,
}

const FREE: u32 = 0;
const HELD: u32 = 1;
const POISONED: u32 = 2;

impl LaneHold {
    pub(crate) fn new(lanes: Arc<Lanes>, seat: Arc<Seat>) -> Self {
        Self { lanes, seat, state: AtomicU32::new(FREE) }
    }

    /// Takes a lane at `now`, if one is free.
    pub(crate) fn try_acquire(&self, now: Instant) -> bool {
        let held = self.lanes.try_acquire(&self.seat, now);
        if held {
            self.state.store(HELD, Ordering::Release);
        }
        held
    }

    pub(crate) fn acquire(&self, seq: Seq, stop: impl Fn() -> bool) -> Grant {
        let grant = self.lanes.acquire(&self.seat, seq, stop);
        if grant == Grant::Held {
            self.state.store(HELD, Ordering::Release);
        }
        grant
    }

    /// Gives the lane back at `now`, if one is held.
    pub(crate) fn release(&self, now: Instant) {
        // Its own thread alone takes the lane.
        if self.state.load(Ordering::Relaxed) == FREE {
            return;
        }
        let mut state = lock(&self.lanes.state);
        if self.state.load(Ordering::Relaxed) == POISONED {
            // The thread had been left behind and came back: its lane counts again.
            state.poisoned -= 1;
        }
        self.state.store(FREE, Ordering::Release);
        self.lanes.give_back(&mut state, now);
    }

    pub(crate) fn poison(&self) {
        let mut state = lock(&self.lanes.state);
        if self.state.load(Ordering::Relaxed) == HELD {
            self.state.store(POISONED, Ordering::Release);
            state.poison();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lane_goes_to_the_most_downstream_actor_then_to_the_lowest_item() {
        let lanes = Lanes::new("g", 1);
        let holder = Seat::new(0, 9);
        assert!(lanes.try_acquire(&holder, Instant::now()));
        let order = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            for (height, seq) in [(2, 0), (0, 7), (1, 3), (0, 4)] {
                let before = lock(&lanes.state).waiting.len();
                let (lanes, order) = (&lanes, &order);
                scope.spawn(move || {
                    let seat = Seat::new(0, height);
                    assert_eq!(lanes.acquire(&seat, Seq::new(seq), || false), Grant::Held);
                    lock(order).push((height, seq));
                    lanes.release(Instant::now());
                });
                while lock(&lanes.state).waiting.len() == before {
                    std::thread::yield_now();
                }
            }
            assert!(lanes.gives_way(&holder, Seq::new(0)));
            lanes.release(Instant::now());
        });
        assert_eq!(*lock(&order), [(0, 4), (0, 7), (1, 3), (2, 0)]);
        assert_eq!(lanes.snapshot(Instant::now()).1, 0);
    }

    #[test]
    fn a_stopped_waiter_and_a_poisoned_lane_end_the_wait() {
        let lanes = Lanes::new("g", 1);
        assert!(lanes.try_acquire(&Seat::new(0, 0), Instant::now()));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let stopped = scope.spawn(|| {
                lanes.acquire(&Seat::new(0, 0), Seq::new(1), || stop.load(Ordering::Acquire))
            });
            while lock(&lanes.state).waiting.is_empty() {
                std::thread::yield_now();
            }
            stop.store(true, Ordering::Release);
            lanes.interrupt();
            assert_eq!(stopped.join().unwrap(), Grant::Stopped);
            lanes.poison();
            let poisoned = lanes.acquire(&Seat::new(1, 0), Seq::new(1), || false);
            assert_eq!(poisoned, Grant::Poisoned);
        });
    }
}
