//! The one-shot cell between the sink and a ticket.

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::error::{ErrorKind, ItemError};
use crate::item::Outcome;
use crate::sync::{Apart, AtomicU32, Condvar, Mutex, Ordering, lock, spin_until, wait_until};

/// Takes the first settlement and refuses the others; gives it away once. It also knows whether the
/// item has retired.
pub(crate) struct ResultCell<P> {
    /// `EMPTY`, `FULL` or `TAKEN`. Written under the lock, so that a waiter need not take it to look;
    /// apart from it, so that one who looks again and again does not hold up the one who writes.
    mark: Apart<AtomicU32>,
    book: Apart<Mutex<Book<P>>>,
    settled: Condvar,
}

/// Small enough for one cache line with its lock.
struct Book<P> {
    content: Content<P>,
    /// Threads in `take_until`: without one, a settlement wakes nobody.
    waiting: u32,
    retired: bool,
    /// Nobody will take the result.
    forsaken: bool,
}

enum Content<P> {
    /// The vector that the inputs came in, which carries the result, and who is to be told of it.
    Empty(Vec<P>, Option<Waker>),
    Full(Outcome<P>),
    Taken,
}

/// As long as a channel's own receive looks before it sleeps, so that an item that is nearly done
/// costs no wake-up.
const BRIEF: Duration = Duration::from_micros(4);

const EMPTY: u32 = 0;
const FULL: u32 = 1;
const TAKEN: u32 = 2;

impl<P> ResultCell<P> {
    pub(crate) fn new() -> Self {
        Self {
            mark: Apart(AtomicU32::new(EMPTY)),
            book: Apart(Mutex::new(Book::new())),
            settled: Condvar::new(),
        }
    }

    /// Empties the cell for another item.
    pub(crate) fn renew(&mut self) {
        self.mark.store(EMPTY, Ordering::Relaxed);
        *lock(&self.book) = Book::new();
    }

    /// Keeps an empty vector for the result.
    pub(crate) fn lend(&self, vector: Vec<P>) {
        if let Content::Empty(spare, _) = &mut lock(&self.book).content {
            *spare = vector;
        }
    }

    /// The vector that was lent.
    pub(crate) fn borrow(&self) -> Vec<P> {
        match &mut lock(&self.book).content {
            Content::Empty(spare, _) => std::mem::take(spare),
            Content::Full(_) | Content::Taken => Vec::new(),
        }
    }

    /// Puts the result into the cell; only the first one counts, and it is true for that.
    pub(crate) fn settle(&self, outcome: Outcome<P>) -> bool {
        self.settle_with(outcome, |_, _| ()).0
    }

    /// Settles and retires at once. `release` runs if nobody retired the item before, and is told
    /// whether this result counts; nobody sees the result before that, so what it releases is free
    /// once the result is seen.
    pub(crate) fn conclude<R>(
        &self,
        outcome: Outcome<P>,
        release: impl FnOnce(bool) -> R,
    ) -> Option<R> {
        let (_, released) = self.settle_with(outcome, |book, first| {
            (!std::mem::replace(&mut book.retired, true)).then(|| release(first))
        });
        released
    }

    fn settle_with<R>(
        &self,
        outcome: Outcome<P>,
        meanwhile: impl FnOnce(&mut Book<P>, bool) -> R,
    ) -> (bool, R) {
        let mut book = lock(&self.book);
        let first = matches!(book.content, Content::Empty(..));
        let released = meanwhile(&mut book, first);
        if !first {
            return (false, released);
        }
        let (content, mark, unwanted) = match book.forsaken {
            false => (Content::Full(outcome), FULL, None),
            true => (Content::Taken, TAKEN, Some(outcome)),
        };
        let before = std::mem::replace(&mut book.content, content);
        self.mark.store(mark, Ordering::Release);
        let waiting = book.waiting > 0;
        drop(book);
        drop(unwanted);
        if waiting {
            self.settled.notify_all();
        }
        if let Content::Empty(_, Some(waker)) = before {
            waker.wake();
        }
        (true, released)
    }

    /// Marks the item as retired; true for the one call that does.
    pub(crate) fn retire(&self) -> bool {
        !std::mem::replace(&mut lock(&self.book).retired, true)
    }

    pub(crate) fn is_retired(&self) -> bool {
        lock(&self.book).retired
    }

    pub(crate) fn is_settled(&self) -> bool {
        // An empty mark says nothing: its credit may be back already, but only while it is locked.
        self.is_marked() || !matches!(lock(&self.book).content, Content::Empty(..))
    }

    fn is_marked(&self) -> bool {
        self.mark.load(Ordering::Acquire) != EMPTY
    }

    /// Takes the result if it is there.
    pub(crate) fn try_take(&self) -> Option<Outcome<P>> {
        self.take(&mut lock(&self.book))
    }

    /// Takes the result, waiting for it until `deadline`; looks for it for a while before it sleeps.
    pub(crate) fn take_until(
        &self,
        deadline: Option<Instant>,
        spin: Duration,
    ) -> Option<Outcome<P>> {
        spin_until(spin.max(BRIEF), || self.is_marked());
        let mut book = lock(&self.book);
        loop {
            let outcome = self.take(&mut book);
            if outcome.is_some() || !matches!(book.content, Content::Empty(..)) {
                return outcome;
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return None;
            }
            book.waiting += 1;
            book = wait_until(&self.settled, book, deadline);
            book.waiting -= 1;
        }
    }

    /// Takes the result for a future.
    pub(crate) fn poll_take(&self, context: &Context<'_>) -> Poll<Outcome<P>> {
        let mut book = lock(&self.book);
        if let Some(outcome) = self.take(&mut book) {
            return Poll::Ready(outcome);
        }
        match &mut book.content {
            Content::Empty(_, Some(waker)) => waker.clone_from(context.waker()),
            Content::Empty(_, none) => *none = Some(context.waker().clone()),
            Content::Full(_) | Content::Taken => {
                let message = "the result of this ticket was taken before";
                return Poll::Ready(Err(ItemError::new(ErrorKind::Invalid, message)));
            }
        }
        Poll::Pending
    }

    /// Says that nobody will take the result: it is dropped now, or as soon as it comes.
    pub(crate) fn forsake(&self) {
        if self.mark.load(Ordering::Acquire) == TAKEN {
            return;
        }
        let unwanted = {
            let mut book = lock(&self.book);
            book.forsaken = true;
            if let Content::Empty(_, waker) = &mut book.content {
                (None, waker.take())
            } else {
                (self.take(&mut book), None)
            }
        };
        drop(unwanted);
    }

    fn take(&self, book: &mut Book<P>) -> Option<Outcome<P>> {
        match std::mem::replace(&mut book.content, Content::Taken) {
            Content::Full(outcome) => {
                self.mark.store(TAKEN, Ordering::Release);
                Some(outcome)
            }
            other => {
                book.content = other;
                None
            }
        }
    }
}

impl<P> Book<P> {
    const fn new() -> Self {
        let content = Content::Empty(Vec::new(), None);
        Self { content, waiting: 0, retired: false, forsaken: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_result_counts_and_is_given_away_once() {
        let cell = ResultCell::new();
        cell.lend(Vec::with_capacity(7));
        assert!(cell.try_take().is_none() && !cell.is_settled());
        let mut outputs = cell.borrow();
        assert_eq!(outputs.capacity(), 7);
        outputs.push(5);
        assert_eq!(cell.conclude(Ok(outputs), |first| first), Some(true));
        assert!(!cell.settle(Ok(vec![6])));
        assert!(!cell.retire() && cell.is_retired() && cell.is_settled());
        assert_eq!(cell.try_take().unwrap().unwrap(), [5]);
        assert!(cell.take_until(None, Duration::ZERO).is_none());
    }

    #[test]
    fn a_settlement_before_the_sink_leaves_the_credit_to_the_sink() {
        let cell = ResultCell::new();
        assert!(cell.settle(Err(ItemError::failed("given up"))));
        assert_eq!(cell.conclude(Ok(vec![1]), |first| first), Some(false));
        assert_eq!(cell.conclude(Ok(vec![2]), |_| ()), None);
        assert!(cell.try_take().unwrap().is_err());
    }

    #[test]
    fn a_result_that_nobody_wants_is_dropped_at_once() {
        let payload = std::sync::Arc::new(1);
        for early in [true, false] {
            let cell = ResultCell::new();
            if early {
                cell.forsake();
            }
            assert!(cell.settle(Ok(vec![std::sync::Arc::clone(&payload)])));
            cell.forsake();
            assert_eq!(std::sync::Arc::strong_count(&payload), 1);
        }
    }

    #[test]
    fn a_lock_and_what_it_guards_fit_a_cache_line() {
        assert!(size_of::<Mutex<Book<u64>>>() <= 64);
    }
}
