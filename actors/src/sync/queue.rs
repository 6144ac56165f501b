//! A stand-in for the channel in models: the same behaviour out of the model's lock and condition
//! variable. Time does not pass in a model, so a wait with a deadline ends after one look round.

use std::collections::VecDeque;

use super::{Arc, Condvar, Mutex, lock, thread, wait_until};
use std::time::Instant;

struct Shared<T> {
    state: Mutex<State<T>>,
    filled: Condvar,
}

struct State<T> {
    queue: VecDeque<T>,
    capacity: usize,
    senders: usize,
    receivers: usize,
}

pub(crate) struct Sender<T>(Arc<Shared<T>>);

pub(crate) struct Receiver<T>(Arc<Shared<T>>);

/// The message could not be sent.
#[derive(Debug)]
pub(crate) struct Refused<T>(pub(crate) T);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RecvTimeoutError {
    Timeout,
    Disconnected,
}

pub(crate) fn bounded<T>(capacity: usize) -> (Sender<T>, Receiver<T>) {
    let state = State { queue: VecDeque::new(), capacity, senders: 1, receivers: 1 };
    let shared = Arc::new(Shared { state: Mutex::new(state), filled: Condvar::new() });
    (Sender(Arc::clone(&shared)), Receiver(shared))
}

impl<T> Sender<T> {
    pub(crate) fn try_send(&self, message: T) -> Result<(), Refused<T>> {
        let mut state = lock(&self.0.state);
        if state.receivers == 0 || state.queue.len() >= state.capacity {
            return Err(Refused(message));
        }
        state.queue.push_back(message);
        drop(state);
        self.0.filled.notify_one();
        Ok(())
    }

    /// A send that would have to wait is a fault in a model: inboxes have room for every item.
    pub(crate) fn send(&self, message: T) -> Result<(), Refused<T>> {
        let sent = self.try_send(message);
        assert!(
            sent.is_ok() || lock(&self.0.state).receivers == 0,
            "a send inside a pipeline waits"
        );
        sent
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        lock(&self.0.state).senders += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        lock(&self.0.state).senders -= 1;
        self.0.filled.notify_all();
    }
}

impl<T> Receiver<T> {
    pub(crate) fn len(&self) -> usize {
        lock(&self.0.state).queue.len()
    }

    pub(crate) fn try_recv(&self) -> Result<T, RecvTimeoutError> {
        lock(&self.0.state).queue.pop_front().ok_or(RecvTimeoutError::Timeout)
    }

    pub(crate) fn recv(&self) -> Result<T, RecvTimeoutError> {
        let mut state = lock(&self.0.state);
        loop {
            if let Some(message) = state.queue.pop_front() {
                return Ok(message);
            }
            if state.senders == 0 {
                return Err(RecvTimeoutError::Disconnected);
            }
            state = wait_until(&self.0.filled, state, None);
        }
    }

    pub(crate) fn recv_deadline(&self, _: Instant) -> Result<T, RecvTimeoutError> {
        thread::yield_now();
        let mut state = lock(&self.0.state);
        match state.queue.pop_front() {
            Some(message) => Ok(message),
            None if state.senders == 0 => Err(RecvTimeoutError::Disconnected),
            None => Err(RecvTimeoutError::Timeout),
        }
    }
}

impl<T> Clone for Receiver<T> {
    fn clone(&self) -> Self {
        lock(&self.0.state).receivers += 1;
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let left = {
            let mut state = lock(&self.0.state);
            state.receivers -= 1;
            if state.receivers > 0 {
                return;
            }
            std::mem::take(&mut state.queue)
        };
        drop(left);
    }
}
