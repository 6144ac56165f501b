//! Credits: the right of an item to be in flight.
//!
//! A pure state machine behind one lock: how many credits are out, how many may be, how many bytes
//! they stand for, how many items wait in the queue in front of them, whether the source is closed,
//! and who waits for what. The account of the items lies under the same lock, since whoever takes or
//! gives back a credit counts an item: so an item costs the cache line of the lock once on its way in
//! and once on its way out.

use std::collections::VecDeque;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use crate::counts::Counts;
use crate::error::{ItemError, PushErrorKind};
use crate::metrics::nanos;
use crate::sync::{Condvar, Mutex, MutexGuard, lock, wait_until};

/// The credits of one source. `H` is a handle on an item: see [`Ledger::keep`].
#[repr(C)]
pub(crate) struct Credits<H = ()> {
    state: Mutex<State<H>>,
    freed: Condvar,
    idle: Condvar,
    /// Whether payloads are weighed at all.
    budgeted: bool,
    /// What times are counted from.
    origin: Instant,
}

/// The credits and the account, locked.
pub(crate) struct Ledger<'a, H> {
    state: MutexGuard<'a, State<H>>,
    credits: &'a Credits<H>,
}

/// What bounds a source.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Items in flight.
    pub(crate) items: usize,
    /// Bytes in flight.
    pub(crate) bytes: Option<usize>,
    /// What one item is expected to hold at its peak; unsaid, the first item shows it.
    pub(crate) item_bytes: Option<usize>,
    /// Items that wait in front of the credits.
    pub(crate) queue: usize,
}

/// What a push was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// A credit, charged with so many bytes.
    Flight(usize),
    /// A place in the queue.
    Queue,
}

/// What a push asks for.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Ask {
    /// The bytes of its inputs.
    pub(crate) bytes: usize,
    /// Whether a place in the queue will do.
    pub(crate) queue: bool,
    /// When, in nanoseconds since the spawn.
    pub(crate) at_ns: u64,
}

/// What both ends write comes first, on one cache line with the lock; then the line that only
/// admissions write; then what hardly ever changes.
#[repr(C)]
struct State<H> {
    used: usize,
    /// Places of the queue that are taken.
    queued: usize,
    /// The last handle on an item that retired; see [`Ledger::keep`].
    spent: Option<H>,
    counts: Counts,
    limit: usize,
    /// Places in the queue.
    queue: usize,
    /// Threads in `wait_idle`; spares the wake-up where nobody waits.
    draining: usize,
    /// An item has left the queue and is not on its edges yet: nobody overtakes it.
    injecting: bool,
    weigh: Option<Scales>,
    /// Threads in `acquire`, in the order of their arrival.
    line: VecDeque<u64>,
    closed: Option<ItemError>,
    next_waiter: u64,
    waiting: VecDeque<(u64, Waker)>,
    idle_wakers: Vec<Waker>,
}

/// The bytes of the items in flight.
struct Scales {
    budget: usize,
    /// What the credits that are out are charged with.
    charged: usize,
    /// The most that an item held beyond its inputs.
    extra: usize,
    /// An item came through, so `extra` is known.
    known: bool,
    expected: usize,
}

impl Scales {
    /// What an item with inputs of `bytes` is charged with. As long as no item came through, one is
    /// charged with everything, so that it goes alone.
    fn charge(&self, bytes: usize) -> usize {
        if !self.known {
            return self.budget.max(bytes);
        }
        bytes.saturating_add(self.extra).max(self.expected)
    }
}

/// Wakers to be called once no lock is held.
#[must_use]
#[derive(Default)]
pub(crate) struct Wakeups {
    idle: Vec<Waker>,
    next: Option<Waker>,
    /// Items wait in the queue: whoever gave room lets them in.
    pub(crate) queued: bool,
    /// Every credit was out before this one came back.
    pub(crate) full: bool,
}

impl Wakeups {
    pub(crate) fn wake(self) {
        for waker in self.idle.into_iter().chain(self.next) {
            waker.wake();
        }
    }
}

impl<H> Credits<H> {
    pub(crate) fn new(bounds: Bounds, origin: Instant) -> Self {
        let weigh = bounds.bytes.map(|budget| Scales {
            budget,
            charged: 0,
            extra: 0,
            known: bounds.item_bytes.is_some(),
            expected: bounds.item_bytes.unwrap_or(0),
        });
        Self {
            budgeted: weigh.is_some(),
            origin,
            state: Mutex::new(State {
                used: 0,
                spent: None,
                counts: Counts::default(),
                limit: bounds.items,
                closed: None,
                draining: 0,
                queue: bounds.queue,
                queued: 0,
                injecting: false,
                weigh,
                line: VecDeque::new(),
                next_waiter: 0,
                waiting: VecDeque::new(),
                idle_wakers: Vec::new(),
            }),
            freed: Condvar::new(),
            idle: Condvar::new(),
        }
    }

    /// Whether payloads are weighed.
    pub(crate) const fn weighs(&self) -> bool {
        self.budgeted
    }

    /// Takes a credit, or a place in the queue, if one is free.
    pub(crate) fn try_acquire(&self, ask: Ask) -> Result<Place, PushErrorKind> {
        let mut state = lock(&self.state);
        let taken = state.take(ask, None);
        let spent = state.spent.take();
        drop(state);
        drop(spent);
        taken
    }

    /// Takes a credit or a place, waiting for one until `deadline`. Says when it was taken.
    pub(crate) fn acquire(
        &self,
        mut ask: Ask,
        deadline: Option<Instant>,
    ) -> Result<(Place, u64), PushErrorKind> {
        let mut state = lock(&self.state);
        let mut me = None;
        let taken = loop {
            match state.take(ask, me) {
                Err(PushErrorKind::Full) => {}
                other => break other,
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break Err(PushErrorKind::Expired);
            }
            if me.is_none() {
                state.next_waiter += 1;
                me = Some(state.next_waiter);
                state.line.extend(me);
            }
            state = wait_until(&self.freed, state, deadline);
            ask.at_ns = nanos(self.origin.elapsed());
        };
        let spent = state.spent.take();
        if me.is_some() {
            state.line.retain(|other| Some(*other) != me);
            self.notify(&state);
            let next = state.next_future();
            drop(state);
            if let Some(next) = next {
                next.wake();
            }
        } else {
            drop(state);
        }
        drop(spent);
        taken.map(|place| (place, ask.at_ns))
    }

    /// Takes a credit or a place for a future; `waiter` is its place in the line, kept between
    /// polls.
    pub(crate) fn poll_acquire(
        &self,
        ask: Ask,
        waiter: &mut Option<u64>,
        context: &Context<'_>,
    ) -> Poll<Result<Place, PushErrorKind>> {
        let mut state = lock(&self.state);
        match state.take(ask, None) {
            Err(PushErrorKind::Full) => {}
            other => {
                state.forget(waiter.take());
                let next = state.next_future();
                let spent = state.spent.take();
                drop(state);
                drop(spent);
                if let Some(next) = next {
                    next.wake();
                }
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

    /// Leaves the line of futures. One that had been woken and goes without its credit passes the
    /// wake-up on.
    pub(crate) fn leave(&self, waiter: u64) {
        let next = {
            let mut state = lock(&self.state);
            if state.forget(Some(waiter)) { None } else { state.next_future() }
        };
        if let Some(waker) = next {
            waker.wake();
        }
    }

    /// Gives back a credit whose item was not admitted after all.
    pub(crate) fn refuse(&self, bytes: usize) -> Wakeups {
        let mut ledger = self.open();
        ledger.state.counts.admitted = ledger.state.counts.admitted.saturating_sub(1);
        ledger.release(bytes)
    }

    /// Locks the credits and the account.
    pub(crate) fn open(&self) -> Ledger<'_, H> {
        Ledger { state: lock(&self.state), credits: self }
    }

    /// Counts an item that enters without a credit, into the queue.
    pub(crate) fn feed(&self, at_ns: u64) {
        let mut state = lock(&self.state);
        let limit = state.limit;
        state.counts.feed(at_ns, limit);
    }

    /// The account of the items, as of one moment.
    pub(crate) fn counts(&self) -> Counts {
        lock(&self.state).counts
    }

    /// Takes a credit for the item at the head of the queue, which has inputs of `bytes`; gives
    /// what it is charged with. Nobody else enters until [`injected`](Self::injected) is called.
    pub(crate) fn promote(&self, bytes: usize) -> Option<(usize, Wakeups)> {
        let mut state = lock(&self.state);
        if state.queued == 0 {
            return None;
        }
        let charge = state.fits(bytes)?;
        state.queued -= 1;
        state.enter(charge);
        state.injecting = true;
        let wakeups = self.freed(&mut state);
        Some((charge, wakeups))
    }

    /// The item that left the queue is on its edges.
    pub(crate) fn injected(&self) -> Wakeups {
        let mut state = lock(&self.state);
        state.injecting = false;
        self.freed(&mut state)
    }

    /// Gives a place in the queue back without a credit.
    pub(crate) fn unqueue(&self) -> Wakeups {
        let mut state = lock(&self.state);
        state.queued = state.queued.saturating_sub(1);
        self.freed(&mut state)
    }

    /// Charges a credit that is out with more than it was given for.
    pub(crate) fn raise(&self, bytes: usize) {
        if let Some(scales) = &mut lock(&self.state).weigh {
            scales.charged = scales.charged.saturating_add(bytes);
        }
    }

    /// Changes the number of credits. Those that are out stay out.
    pub(crate) fn set_limit(&self, limit: usize) -> Wakeups {
        let (mut wakeups, woken) = {
            let mut state = lock(&self.state);
            let more = limit.saturating_sub(state.limit);
            state.limit = limit;
            let wakeups = self.freed(&mut state);
            let more = more.saturating_sub(1).min(state.waiting.len());
            let woken: Vec<_> = state.waiting.drain(..more).map(|(_, waker)| waker).collect();
            (wakeups, woken)
        };
        wakeups.idle.extend(woken);
        wakeups
    }

    /// Refuses every later and every waiting acquisition with `cause`; the first cause stays. Items
    /// in the queue still get their credits.
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

    /// Counts every credit and every place as returned: the pipeline stopped and its items have
    /// their results.
    pub(crate) fn abandon(&self) {
        let wakers = {
            let mut state = lock(&self.state);
            state.used = 0;
            state.queued = 0;
            if let Some(scales) = &mut state.weigh {
                scales.charged = 0;
            }
            self.idle.notify_all();
            std::mem::take(&mut state.idle_wakers)
        };
        for waker in wakers {
            waker.wake();
        }
    }

    /// Waits until no credit is out and the queue is empty; gives the number of items that are left
    /// when `deadline` passes.
    pub(crate) fn wait_idle(&self, deadline: Option<Instant>) -> usize {
        let mut state = lock(&self.state);
        while !state.is_idle() {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                break;
            }
            state.draining += 1;
            state = wait_until(&self.idle, state, deadline);
            state.draining -= 1;
        }
        state.used + state.queued
    }

    /// Ready once no credit is out and the queue is empty.
    pub(crate) fn poll_idle(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.is_idle() {
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

    /// Items in the queue.
    pub(crate) fn queued(&self) -> usize {
        lock(&self.state).queued
    }

    /// After something was given back: wakes who waits for it.
    fn freed(&self, state: &mut State<H>) -> Wakeups {
        let mut wakeups = Wakeups { queued: state.queued > 0, ..Wakeups::default() };
        if state.is_idle() {
            if state.draining > 0 {
                self.idle.notify_all();
            }
            if !state.idle_wakers.is_empty() {
                wakeups.idle = std::mem::take(&mut state.idle_wakers);
            }
        }
        self.notify(state);
        wakeups.next = state.next_future();
        wakeups
    }

    /// Wakes the threads in the line, if there is room for one.
    fn notify(&self, state: &State<H>) {
        if state.line.is_empty() || !state.has_room() {
            return;
        }
        if state.is_fair() {
            self.freed.notify_all();
        } else {
            self.freed.notify_one();
        }
    }
}

impl<H> Ledger<'_, H> {
    /// Gives back a credit that was charged with `bytes`. The wakers are for the caller to call,
    /// outside every lock.
    pub(crate) fn release(&mut self, bytes: usize) -> Wakeups {
        let state = &mut *self.state;
        let full = state.used >= state.limit;
        state.used = state.used.saturating_sub(1);
        if let Some(scales) = &mut state.weigh {
            scales.charged = scales.charged.saturating_sub(bytes);
        }
        Wakeups { full, ..self.credits.freed(state) }
    }

    /// Learns from an item that came through how much it held at its peak beyond its inputs.
    pub(crate) fn learn(&mut self, extra: usize) {
        if let Some(scales) = &mut self.state.weigh {
            scales.extra = scales.extra.max(extra);
            scales.known = true;
        }
    }

    /// The account of the items.
    pub(crate) fn counts(&mut self) -> &mut Counts {
        &mut self.state.counts
    }

    /// Takes the sink's handle on an item that retired, for the next admission to drop: so the
    /// handles of an item are counted by the threads of its callers, and the cache line of that
    /// count stays with them. Gives a handle back that there is no place for.
    pub(crate) fn keep(&mut self, handle: H) -> Option<H> {
        match &mut self.state.spent {
            Some(_) => Some(handle),
            free => {
                *free = Some(handle);
                None
            }
        }
    }
}

impl<H> State<H> {
    fn is_idle(&self) -> bool {
        self.used == 0 && self.queued == 0
    }

    /// Where the sizes of items or their age matter, threads are served in the order in which they
    /// came: a large item is not overtaken for ever by small ones.
    const fn is_fair(&self) -> bool {
        self.weigh.is_some() || self.queue > 0
    }

    fn take(&mut self, ask: Ask, me: Option<u64>) -> Result<Place, PushErrorKind> {
        if let Some(cause) = &self.closed {
            return Err(PushErrorKind::Closed(cause.clone()));
        }
        let first = self.line.front().copied();
        if self.is_fair() && first.is_some() && first != me {
            return Err(PushErrorKind::Full);
        }
        if self.queued == 0
            && !self.injecting
            && let Some(charge) = self.fits(ask.bytes)
        {
            self.enter(charge);
            self.counts.feed(ask.at_ns, self.limit);
            return Ok(Place::Flight(charge));
        }
        if ask.queue && self.queued < self.queue {
            self.queued += 1;
            return Ok(Place::Queue);
        }
        Err(PushErrorKind::Full)
    }

    /// What an item with inputs of `bytes` is charged with, if it may enter now. An item that is
    /// larger than the budget enters alone.
    fn fits(&self, bytes: usize) -> Option<usize> {
        if self.used >= self.limit {
            return None;
        }
        let Some(scales) = &self.weigh else {
            return Some(0);
        };
        let charge = scales.charge(bytes);
        let fits = scales.charged.saturating_add(charge) <= scales.budget;
        (fits || self.used == 0).then_some(charge)
    }

    fn enter(&mut self, charge: usize) {
        self.used += 1;
        if let Some(scales) = &mut self.weigh {
            scales.charged = scales.charged.saturating_add(charge);
        }
    }

    /// The next future to be woken, if there is room for it.
    fn next_future(&mut self) -> Option<Waker> {
        if self.has_room() { self.waiting.pop_front().map(|(_, waker)| waker) } else { None }
    }

    fn has_room(&self) -> bool {
        self.used < self.limit || self.queued < self.queue || self.closed.is_some()
    }

    /// Takes a future out of the line; true if it was still in it.
    fn forget(&mut self, waiter: Option<u64>) -> bool {
        let place = waiter.and_then(|id| self.waiting.iter().position(|(other, _)| *other == id));
        place.and_then(|place| self.waiting.remove(place)).is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use std::sync::Arc;
    use std::time::Duration;

    fn bounded(items: usize) -> Credits {
        let bounds = Bounds { items, bytes: None, item_bytes: None, queue: 0 };
        Credits::new(bounds, Instant::now())
    }

    fn weighed(bytes: usize, item_bytes: Option<usize>) -> Credits {
        let bounds = Bounds { items: 9, bytes: Some(bytes), item_bytes, queue: 0 };
        Credits::new(bounds, Instant::now())
    }

    fn ask(bytes: usize) -> Ask {
        Ask { bytes, queue: true, at_ns: 0 }
    }

    #[test]
    fn what_both_ends_write_fits_one_cache_line() {
        let fed = std::mem::offset_of!(Counts, admitted);
        assert!(8 + std::mem::offset_of!(State<Arc<u64>>, counts) + fed <= 64);
    }

    #[test]
    fn a_spent_handle_goes_with_the_next_admission() {
        let credits = Credits::new(
            Bounds { items: 2, bytes: None, item_bytes: None, queue: 0 },
            Instant::now(),
        );
        let item = Arc::new(());
        assert!(credits.open().keep(Arc::clone(&item)).is_none());
        assert!(credits.open().keep(Arc::clone(&item)).is_some(), "there is one place");
        assert_eq!(Arc::strong_count(&item), 2);
        assert!(credits.try_acquire(Ask::default()).is_ok());
        assert_eq!(Arc::strong_count(&item), 1);
    }

    #[test]
    fn bytes_are_bounded_and_an_item_larger_than_the_budget_goes_alone() {
        let credits = weighed(100, Some(0));
        assert_eq!(credits.try_acquire(ask(60)).unwrap(), Place::Flight(60));
        assert!(matches!(credits.try_acquire(ask(41)), Err(PushErrorKind::Full)));
        assert_eq!(credits.try_acquire(ask(40)).unwrap(), Place::Flight(40));
        credits.open().release(60).wake();
        assert!(matches!(credits.try_acquire(ask(500)), Err(PushErrorKind::Full)));
        credits.open().release(40).wake();
        assert_eq!(credits.try_acquire(ask(500)).unwrap(), Place::Flight(500));
        assert!(matches!(credits.try_acquire(ask(0)), Err(PushErrorKind::Full)));
    }

    #[test]
    fn the_first_item_goes_alone_and_shows_what_the_next_are_charged_with() {
        let credits = weighed(100, None);
        assert_eq!(credits.try_acquire(ask(10)).unwrap(), Place::Flight(100));
        assert!(credits.try_acquire(ask(10)).is_err());
        credits.open().learn(30);
        credits.open().release(100).wake();
        for _ in 0..2 {
            assert_eq!(credits.try_acquire(ask(10)).unwrap(), Place::Flight(40));
        }
        assert!(credits.try_acquire(ask(10)).is_err());
        credits.raise(20);
        credits.open().release(60).wake();
        assert_eq!(credits.try_acquire(ask(30)).unwrap(), Place::Flight(60));
    }

    #[test]
    fn a_large_item_is_not_overtaken_for_ever() {
        let credits = weighed(10, Some(0));
        assert!(credits.try_acquire(ask(5)).is_ok());
        std::thread::scope(|scope| {
            let large = scope.spawn(|| credits.acquire(ask(10), None));
            while lock(&credits.state).line.is_empty() {
                std::thread::yield_now();
            }
            assert!(matches!(credits.try_acquire(ask(1)), Err(PushErrorKind::Full)));
            credits.open().release(5).wake();
            assert_eq!(large.join().unwrap().unwrap().0, Place::Flight(10));
        });
        credits.open().release(10).wake();
        assert!(credits.try_acquire(ask(1)).is_ok());
    }

    #[test]
    fn nobody_overtakes_the_queue_and_it_keeps_the_source_busy() {
        let bounds = Bounds { items: 1, bytes: None, item_bytes: None, queue: 2 };
        let credits: Credits = Credits::new(bounds, Instant::now());
        assert_eq!(credits.try_acquire(ask(0)).unwrap(), Place::Flight(0));
        for _ in 0..2 {
            assert_eq!(credits.try_acquire(ask(0)).unwrap(), Place::Queue);
        }
        assert!(credits.try_acquire(ask(0)).is_err());
        assert!(credits.promote(0).is_none());
        let wakeups = credits.open().release(0);
        assert!(wakeups.queued, "somebody has to let the next one in");
        wakeups.wake();
        assert_eq!(credits.wait_idle(Some(Instant::now())), 2);
        assert!(credits.try_acquire(Ask::default()).is_err(), "would overtake");
        assert!(credits.promote(0).is_some());
        credits.open().release(0).wake();
        credits.unqueue().wake();
        assert!(credits.try_acquire(Ask::default()).is_err(), "would overtake the one on its way");
        credits.injected().wake();
        assert_eq!(credits.wait_idle(None), 0);
        assert!(credits.try_acquire(Ask::default()).is_ok());
    }

    #[test]
    fn more_credits_let_more_in_and_fewer_take_none_away() {
        let credits = bounded(1);
        assert!(credits.try_acquire(Ask::default()).is_ok());
        credits.set_limit(2).wake();
        assert!(credits.try_acquire(Ask::default()).is_ok());
        credits.set_limit(1).wake();
        assert_eq!((credits.used(), credits.limit()), (2, 1));
        credits.open().release(0).wake();
        assert!(credits.try_acquire(Ask::default()).is_err());
    }

    #[test]
    fn credits_are_bounded_and_return() {
        let credits = bounded(2);
        assert!(credits.try_acquire(Ask::default()).is_ok());
        assert!(credits.try_acquire(Ask::default()).is_ok());
        assert!(matches!(credits.try_acquire(Ask::default()), Err(PushErrorKind::Full)));
        credits.open().release(0).wake();
        assert!(credits.try_acquire(Ask::default()).is_ok());
        assert_eq!(credits.used(), 2);
    }

    #[test]
    fn a_wait_ends_at_its_deadline_and_at_a_close() {
        let credits = bounded(0);
        let deadline = Instant::now() + Duration::from_millis(10);
        assert!(matches!(
            credits.acquire(Ask::default(), Some(deadline)),
            Err(PushErrorKind::Expired)
        ));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| credits.acquire(Ask::default(), None));
            std::thread::sleep(Duration::from_millis(10));
            credits.close(ItemError::new(ErrorKind::Shutdown, "over"));
            assert!(matches!(waiting.join().unwrap(), Err(PushErrorKind::Closed(_))));
        });
    }

    #[test]
    fn a_woken_future_that_leaves_passes_the_wake_up_on() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        struct Count(AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::SeqCst);
            }
        }
        let credits = bounded(1);
        credits.try_acquire(Ask::default()).unwrap();
        let (a, b) = (Arc::new(Count(AtomicUsize::new(0))), Arc::new(Count(AtomicUsize::new(0))));
        let (wake_a, wake_b) = (Waker::from(Arc::clone(&a)), Waker::from(Arc::clone(&b)));
        let (mut place_a, mut place_b) = (None, None);
        assert!(
            credits
                .poll_acquire(Ask::default(), &mut place_a, &Context::from_waker(&wake_a))
                .is_pending()
        );
        assert!(
            credits
                .poll_acquire(Ask::default(), &mut place_b, &Context::from_waker(&wake_b))
                .is_pending()
        );
        credits.open().release(0).wake();
        assert_eq!((a.0.load(Ordering::SeqCst), b.0.load(Ordering::SeqCst)), (1, 0));
        credits.leave(place_a.unwrap());
        assert_eq!(b.0.load(Ordering::SeqCst), 1);
        let ready =
            credits.poll_acquire(Ask::default(), &mut place_b, &Context::from_waker(&wake_b));
        assert!(matches!(ready, Poll::Ready(Ok(_))));
    }
}
