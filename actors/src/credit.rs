//! Credits: the right of an item to be in flight.
//!
//! A pure state machine behind one lock: how many credits are out, how many may be, whether the
//! source is closed, and who waits for what.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use crate::error::{ItemError, PushErrorKind};
use crate::sync::{Condvar, Mutex, lock, wait_until};

/// The credits of one source.
pub(crate) struct Credits {
    state: Mutex<State>,
    freed: Condvar,
    idle: Condvar,
}

/// What every credit looks at comes first, on one cache line.
#[repr(C)]
struct State {
    used: usize,
    limit: usize,
    /// Threads in `acquire`; spares the wake-up where nobody waits.
    blocked: usize,
    /// Threads in `wait_idle`.
    draining: usize,
    closed: Option<ItemError>,
    next_waiter: u64,
    waiting: VecDeque<(u64, Waker)>,
    idle_wakers: Vec<Waker>,
}

/// Wakers to be called once no lock is held.
#[must_use]
pub(crate) struct Wakeups(Vec<Waker>, Option<Waker>);

impl Wakeups {
    pub(crate) fn wake(self) {
        for waker in self.0.into_iter().chain(self.1) {
            waker.wake();
        }
    }
}

impl Credits {
    pub(crate) fn new(limit: usize) -> Self {
        Self {
            state: Mutex::new(State {
                used: 0,
                limit,
                closed: None,
                blocked: 0,
                draining: 0,
                next_waiter: 0,
                waiting: VecDeque::new(),
                idle_wakers: Vec::new(),
            }),
            freed: Condvar::new(),
            idle: Condvar::new(),
        }
    }

    /// Takes a credit if one is free.
    pub(crate) fn try_acquire(&self) -> Result<(), PushErrorKind> {
        lock(&self.state).take()
    }

    /// Takes a credit, waiting for one until `deadline`.
    pub(crate) fn acquire(&self, deadline: Option<Instant>) -> Result<(), PushErrorKind> {
        let mut state = lock(&self.state);
        loop {
            match state.take() {
                Err(PushErrorKind::Full) => {}
                other => return other,
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(PushErrorKind::Expired);
            }
            state.blocked += 1;
            state = wait_until(&self.freed, state, deadline);
            state.blocked -= 1;
        }
    }

    /// Takes a credit for a future; `waiter` is its place in the queue, kept between polls.
    pub(crate) fn poll_acquire(
        &self,
        waiter: &mut Option<u64>,
        context: &Context<'_>,
    ) -> Poll<Result<(), PushErrorKind>> {
        let mut state = lock(&self.state);
        match state.take() {
            Err(PushErrorKind::Full) => {}
            other => {
                state.forget(waiter.take());
                return Poll::Ready(other);
            }
        }
        let id = match *waiter {
            Some(id) => id,
            None => {
                state.next_waiter += 1;
                state.next_waiter
            }
        };
        *waiter = Some(id);
        match state.waiting.iter_mut().find(|(other, _)| *other == id) {
            Some((_, waker)) => waker.clone_from(context.waker()),
            None => state.waiting.push_back((id, context.waker().clone())),
        }
        Poll::Pending
    }

    /// Leaves the queue of futures. One that had been woken and goes without its credit passes the
    /// wake-up on.
    pub(crate) fn leave(&self, waiter: u64) {
        let next = {
            let mut state = lock(&self.state);
            if state.forget(Some(waiter)) || state.used >= state.limit {
                None
            } else {
                state.waiting.pop_front()
            }
        };
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }

    /// Gives a credit back. The wakers are for the caller to call, outside every lock.
    pub(crate) fn release(&self) -> Wakeups {
        let mut state = lock(&self.state);
        state.used = state.used.saturating_sub(1);
        let mut idle = Vec::new();
        if state.used == 0 {
            if state.draining > 0 {
                self.idle.notify_all();
            }
            if !state.idle_wakers.is_empty() {
                idle = std::mem::take(&mut state.idle_wakers);
            }
        }
        if state.blocked > 0 {
            self.freed.notify_one();
        }
        let next = state.waiting.pop_front().map(|(_, waker)| waker);
        Wakeups(idle, next)
    }

    /// Refuses every later and every waiting acquisition with `cause`; the first cause stays.
    pub(crate) fn close(&self, cause: ItemError) {
        let wakers = {
            let mut state = lock(&self.state);
            state.closed.get_or_insert(cause);
            self.freed.notify_all();
            std::mem::take(&mut state.waiting)
        };
        for (_, waker) in wakers {
            waker.wake();
        }
    }

    /// Counts every credit as returned: the pipeline stopped and its items have their results.
    pub(crate) fn abandon(&self) {
        let wakers = {
            let mut state = lock(&self.state);
            state.used = 0;
            self.idle.notify_all();
            std::mem::take(&mut state.idle_wakers)
        };
        for waker in wakers {
            waker.wake();
        }
    }

    /// Waits until no credit is out; gives the number that is out when `deadline` passes.
    pub(crate) fn wait_idle(&self, deadline: Option<Instant>) -> usize {
        let mut state = lock(&self.state);
        while state.used > 0 {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break;
            }
            state.draining += 1;
            state = wait_until(&self.idle, state, deadline);
            state.draining -= 1;
        }
        state.used
    }

    /// Ready once no credit is out.
    pub(crate) fn poll_idle(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.used == 0 {
            return Poll::Ready(());
        }
        if !state.idle_wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            state.idle_wakers.push(context.waker().clone());
        }
        Poll::Pending
    }

    /// Credits that are out.
    pub(crate) fn used(&self) -> usize {
        lock(&self.state).used
    }

    /// Credits that there are.
    pub(crate) fn limit(&self) -> usize {
        lock(&self.state).limit
    }
}

impl State {
    fn take(&mut self) -> Result<(), PushErrorKind> {
        if let Some(cause) = &self.closed {
            return Err(PushErrorKind::Closed(cause.clone()));
        }
        if self.used >= self.limit {
            return Err(PushErrorKind::Full);
        }
        self.used += 1;
        Ok(())
    }

    /// Takes a future out of the queue; true if it was still in it.
    fn forget(&mut self, waiter: Option<u64>) -> bool {
        let place = waiter.and_then(|id| self.waiting.iter().position(|(other, _)| *other == id));
        place.and_then(|place| self.waiting.remove(place)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use std::time::Duration;

    #[test]
    fn credits_are_bounded_and_return() {
        let credits = Credits::new(2);
        assert!(credits.try_acquire().is_ok());
        assert!(credits.try_acquire().is_ok());
        assert!(matches!(credits.try_acquire(), Err(PushErrorKind::Full)));
        credits.release().wake();
        assert!(credits.try_acquire().is_ok());
        assert_eq!(credits.used(), 2);
    }

    #[test]
    fn a_wait_ends_at_its_deadline_and_at_a_close() {
        let credits = Credits::new(0);
        let deadline = Instant::now() + Duration::from_millis(10);
        assert!(matches!(credits.acquire(Some(deadline)), Err(PushErrorKind::Expired)));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| credits.acquire(None));
            std::thread::sleep(Duration::from_millis(10));
            credits.close(ItemError::new(ErrorKind::Shutdown, "over"));
            assert!(matches!(waiting.join().unwrap(), Err(PushErrorKind::Closed(_))));
        });
    }

    #[test]
    fn a_woken_future_that_leaves_passes_the_wake_up_on() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicUsize, Ordering};
        struct Count(AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let credits = Credits::new(1);
        credits.try_acquire().unwrap();
        let (a, b) = (Arc::new(Count(AtomicUsize::new(0))), Arc::new(Count(AtomicUsize::new(0))));
        let (wake_a, wake_b) = (Waker::from(Arc::clone(&a)), Waker::from(Arc::clone(&b)));
        let (mut place_a, mut place_b) = (None, None);
        assert!(credits.poll_acquire(&mut place_a, &Context::from_waker(&wake_a)).is_pending());
        assert!(credits.poll_acquire(&mut place_b, &Context::from_waker(&wake_b)).is_pending());
        credits.release().wake();
        assert_eq!((a.0.load(Ordering::SeqCst), b.0.load(Ordering::SeqCst)), (1, 0));
        credits.leave(place_a.unwrap());
        assert_eq!(b.0.load(Ordering::SeqCst), 1);
        let ready = credits.poll_acquire(&mut place_b, &Context::from_waker(&wake_b));
        assert!(matches!(ready, Poll::Ready(Ok(()))));
    }
}
