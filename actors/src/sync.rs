//! The one place that names synchronisation primitives.
//!
//! Everything else in the crate takes locks, atomics, channels and threads from here, so that a
//! model checker's versions stand in their place with `--cfg loom` (every interleaving of a small
//! piece, `races.rs`) or `--cfg shuttle` (random ones of whole pipelines, `tests/shuttle.rs`). The
//! channel has no such version: models use a stand-in. Handles and mere figures are counted by `std`
//! in models too. A lock whose holder panicked is taken over as it is: every critical section of this
//! crate leaves its data consistent at each step, and user code never runs under one of its locks
//! except where that is said.

pub(crate) use primitives::*;
pub(crate) use std::sync::{Arc, PoisonError, Weak};

/// A figure that nothing waits for and no decision is made by. It has no model: which figure is
/// counted may depend on the clock, and there are thousands of them.
pub(crate) use std::sync::atomic::AtomicU64 as Tally;

#[cfg(not(any(loom, shuttle)))]
mod primitives {
    pub(crate) use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
    pub(crate) use std::sync::atomic::{
        AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(crate) use std::sync::{Condvar, Mutex, MutexGuard};
    pub(crate) use std::thread;
}

#[cfg(any(loom, shuttle))]
mod queue;

#[cfg(loom)]
mod primitives {
    pub(crate) use super::queue::{Receiver, RecvTimeoutError, Sender, bounded};
    pub(crate) use loom::sync::atomic::{
        AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(crate) use loom::sync::{Condvar, Mutex, MutexGuard};

    pub(crate) mod thread {
        pub(crate) use loom::thread::*;
        pub(crate) use std::thread::panicking;

        /// Time does not pass in a model.
        pub(crate) fn sleep(_: std::time::Duration) {
            yield_now();
        }
    }
}

#[cfg(shuttle)]
mod primitives {
    pub(crate) use super::queue::{Receiver, RecvTimeoutError, Sender, bounded};
    pub(crate) use shuttle::sync::atomic::{
        AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
    };
    pub(crate) use shuttle::sync::{Condvar, Mutex, MutexGuard};

    pub(crate) mod thread {
        pub(crate) use shuttle::thread::*;
        pub(crate) use std::thread::panicking;
    }
}

use std::ops::Deref;
use std::time::{Duration, Instant};

/// Receives from one of two channels, whichever has something first.
#[cfg(not(any(loom, shuttle)))]
pub(crate) fn recv_either<T>(
    one: &Receiver<T>,
    other: &Receiver<T>,
    deadline: Option<Instant>,
) -> Result<T, RecvTimeoutError> {
    let mut select = crossbeam_channel::Select::new();
    select.recv(one);
    select.recv(other);
    let chosen = match deadline {
        None => select.select(),
        Some(deadline) => {
            select.select_deadline(deadline).map_err(|_| RecvTimeoutError::Timeout)?
        }
    };
    let from = if chosen.index() == 0 { one } else { other };
    chosen.recv(from).map_err(|_| RecvTimeoutError::Disconnected)
}

/// Receives from one of two channels: looks at both in turn.
#[cfg(any(loom, shuttle))]
pub(crate) fn recv_either<T>(
    one: &Receiver<T>,
    other: &Receiver<T>,
    deadline: Option<Instant>,
) -> Result<T, RecvTimeoutError> {
    loop {
        if let Ok(message) = one.try_recv().or_else(|_| other.try_recv()) {
            return Ok(message);
        }
        if deadline.is_some() {
            return Err(RecvTimeoutError::Timeout);
        }
        thread::yield_now();
    }
}

/// Locks `mutex`, also when an earlier holder panicked.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What `mutex` guards, where nobody else has it. Who has it is counted by `std`, which a model does
/// not see: there the lock is taken once, to show what came before.
pub(crate) fn own<T>(mutex: &mut Mutex<T>) -> &mut T {
    #[cfg(any(loom, shuttle))]
    drop(lock(mutex));
    mutex.get_mut().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on `condvar` until it is notified or `deadline` passes; spurious wake-ups happen.
pub(crate) fn wait_until<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    deadline: Option<Instant>,
) -> MutexGuard<'a, T> {
    match deadline {
        None => condvar.wait(guard).unwrap_or_else(PoisonError::into_inner),
        Some(deadline) => {
            let left = deadline.saturating_duration_since(Instant::now());
            condvar.wait_timeout(guard, left).unwrap_or_else(PoisonError::into_inner).0
        }
    }
}

/// Looks at `ready` again and again until it is true or `time` has passed.
pub(crate) fn spin_until(time: Duration, mut ready: impl FnMut() -> bool) {
    // In a model nothing is gained by looking again.
    if time.is_zero() || cfg!(any(loom, shuttle)) {
        return;
    }
    let mut begun = None;
    loop {
        for _ in 0..SPINS_A_LOOK_AT_THE_CLOCK {
            if ready() {
                return;
            }
            std::hint::spin_loop();
        }
        if begun.get_or_insert_with(Instant::now).elapsed() >= time {
            return;
        }
    }
}

const SPINS_A_LOOK_AT_THE_CLOCK: u32 = 64;

/// Keeps what different threads write apart: on cache lines (and pairs of them) of its own.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Apart<T>(pub(crate) T);

impl<T> Deref for Apart<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
