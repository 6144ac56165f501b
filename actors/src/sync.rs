//! The one place that names synchronisation primitives.
//!
//! Everything else in the crate takes locks, atomics, channels and threads from here, so that a
//! model checker's versions can be put in their place in one file. A lock whose holder panicked is
//! taken over as it is: every critical section of this crate leaves its data consistent at each
//! step, and user code never runs under one of its locks except where that is said.

pub(crate) use crossbeam_channel::{Receiver, RecvTimeoutError, Select, Sender, bounded};
pub(crate) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
pub(crate) use std::thread;

use std::time::Instant;

/// Receives from one of two channels, whichever has something first.
pub(crate) fn recv_either<T>(
    one: &Receiver<T>,
    other: &Receiver<T>,
    deadline: Option<Instant>,
) -> Result<T, RecvTimeoutError> {
    let mut select = Select::new();
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

/// Locks `mutex`, also when an earlier holder panicked.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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
