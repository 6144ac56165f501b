//! Which actor threads have ended.

use std::collections::BTreeSet;
use std::task::Waker;
#[cfg(feature = "control")]
use std::task::{Context, Poll};
use std::time::Instant;

use crate::sync::{Condvar, Mutex, lock, thread, wait_until};

/// Which actor threads have ended.
pub(crate) struct Exits {
    state: Mutex<Threads>,
    changed: Condvar,
}

struct Threads {
    running: BTreeSet<usize>,
    ids: Vec<Option<thread::ThreadId>>,
    left_behind: BTreeSet<usize>,
    wakers: Vec<Waker>,
}

impl Exits {
    pub(crate) fn new(actors: usize) -> Self {
        let threads = Threads {
            running: BTreeSet::new(),
            ids: vec![None; actors],
            left_behind: BTreeSet::new(),
            wakers: Vec::new(),
        };
        Self { state: Mutex::new(threads), changed: Condvar::new() }
    }

    /// Counts a thread as running; called before it is spawned.
    pub(crate) fn starting(&self, me: usize) {
        lock(&self.state).running.insert(me);
    }

    pub(crate) fn started(&self, me: usize) {
        lock(&self.state).ids[me] = Some(thread::current().id());
    }

    pub(crate) fn ended(&self, me: usize) {
        let mut state = lock(&self.state);
        state.running.remove(&me);
        state.left_behind.remove(&me);
        self.changed.notify_all();
        if state.running.is_empty() {
            let wakers = std::mem::take(&mut state.wakers);
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Ready once every actor thread has ended.
    #[cfg(feature = "control")]
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.running.is_empty() {
            return Poll::Ready(());
        }
        if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            state.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }

    pub(crate) fn left_behind(&self) -> Vec<usize> {
        lock(&self.state).left_behind.iter().copied().collect()
    }

    /// Waits until every actor thread but the calling one has ended, and gives those that have not
    /// when `deadline` passes.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Vec<usize> {
        let me = thread::current().id();
        let mut state = lock(&self.state);
        loop {
            let others = |state: &Threads| -> Vec<usize> {
                let running = state.running.iter().copied();
                running.filter(|&actor| state.ids[actor] != Some(me)).collect()
            };
            let left = others(&state);
            if left.is_empty() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                state.left_behind.extend(&left);
                return left;
            }
            state = wait_until(&self.changed, state, deadline);
        }
    }
}
