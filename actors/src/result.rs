//! The one-shot cell between the sink and a ticket.

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use crate::counts::Verdict;
use crate::error::{ErrorKind, ItemError};
use crate::item::Outcome;
use crate::supervise::discard;
use crate::sync::{
    AtomicU32, Condvar, Mutex, MutexGuard, Ordering, lock, own, spin_until, wait_until,
};

/// Takes the first settlement and refuses the others; gives it away once. It also knows whether the
/// item has retired.
///
/// What a settlement writes, and what a waiter looks at, comes first and fits one cache line, so
/// that a result changes hands with one transfer.
#[repr(C)]
pub(crate) struct ResultCell<P> {
    book: Mutex<Book<P>>,
    /// `EMPTY`, `FULL` or `TAKEN`. Written under the lock, so that a waiter need not take it to look.
    mark: AtomicU32,
    settled: Condvar,
    /// When the item was admitted, in nanoseconds since the spawn.
    pub(crate) admitted_ns: u64,
    /// Who is to be told of the result, where the book says that somebody is. Its lock is taken
    /// after that of the book.
    waker: Mutex<Option<Waker>>,
}

struct Book<P> {
    /// As long as there is no result, the vector that the inputs came in: it carries the result.
    outcome: Outcome<P>,
    /// The payload of a result with one, which its taker puts into that vector.
    one: Option<P>,
    /// Threads in `take_until`: without one, a settlement wakes nobody.
    waiting: u16,
    /// A future left its waker.
    polled: bool,
    retired: bool,
    /// Nobody will take the result.
    forsaken: bool,
}

/// What a cell is settled with.
pub(crate) enum Settlement<P> {
    /// One payload, for a vector that the cell has.
    One(P),
    Whole(Outcome<P>),
}

impl<P> Settlement<P> {
    pub(crate) fn verdict(&self) -> Verdict {
        match self {
            Self::One(_) | Self::Whole(Ok(_)) => Verdict::Value,
            Self::Whole(Err(error)) if error.is_filtered() => Verdict::Filtered,
            Self::Whole(Err(_)) => Verdict::Failed,
        }
    }

    /// Drops it, whatever its payloads do.
    pub(crate) fn discard(self) {
        match self {
            Self::One(payload) => discard(Some(payload)),
            Self::Whole(outcome) => discard(outcome.into_iter().flatten()),
        }
    }
}

/// What is left to do after a settlement, under no lock.
#[must_use]
pub(crate) struct Aftermath<P> {
    /// To be dropped: dropping a payload may run anything.
    unwanted: Option<Settlement<P>>,
    waiting: bool,
    polled: bool,
}

impl<P> Aftermath<P> {
    const fn none(unwanted: Option<Settlement<P>>) -> Self {
        Self { unwanted, waiting: false, polled: false }
    }

    /// Whether somebody waits, so that the cell is still needed.
    pub(crate) const fn wakes(&self) -> bool {
        self.waiting || self.polled
    }

    /// Drops what was unwanted, where nobody waits.
    pub(crate) fn discard(self) {
        if let Some(unwanted) = self.unwanted {
            unwanted.discard();
        }
    }
}

/// As long as a channel's own receive looks before it sleeps, so that an item that is nearly done
/// costs no wake-up.
const BRIEF: Duration = Duration::from_micros(4);

const EMPTY: u32 = 0;
const FULL: u32 = 1;
const TAKEN: u32 = 2;

impl<P> ResultCell<P> {
    // Not const: a model's locks are not.
    pub(crate) fn new(admitted_ns: u64) -> Self {
        Self {
            book: Mutex::new(Book::new()),
            mark: AtomicU32::new(EMPTY),
            settled: Condvar::new(),
            admitted_ns,
            waker: Mutex::new(None),
        }
    }

    /// Empties the cell for another item.
    pub(crate) fn renew(&mut self, admitted_ns: u64) {
        self.admitted_ns = admitted_ns;
        self.clear();
        let book = own(&mut self.book);
        if book.polled {
            *own(&mut self.waker) = None;
        }
        *book = Book::new();
        self.mark.store(EMPTY, Ordering::Relaxed);
    }

    /// Drops the payloads that are in it.
    pub(crate) fn clear(&mut self) {
        let book = own(&mut self.book);
        discard(book.one.take());
        if let Ok(outputs) = &mut book.outcome {
            discard(outputs.drain(..));
        }
    }

    /// Keeps an empty vector for the result.
    pub(crate) fn lend(&self, vector: Vec<P>) {
        let mut book = lock(&self.book);
        if self.is(EMPTY) {
            book.outcome = Ok(vector);
        }
    }

    /// The vector that was lent.
    pub(crate) fn borrow(&self) -> Vec<P> {
        let mut book = lock(&self.book);
        if self.is(EMPTY) { book.take_vector() } else { Vec::new() }
    }

    /// Puts the result into the cell; only the first one counts, and it is true for that.
    pub(crate) fn settle(&self, outcome: Outcome<P>) -> bool {
        let (first, aftermath) = self.settle_with(Settlement::Whole(outcome), |_, first| first);
        self.attend(aftermath);
        first
    }

    /// Settles and retires at once. `release` runs if nobody retired the item before, and is told
    /// whether this result counts; nobody sees the result before that, so what it releases is free
    /// once the result is seen.
    pub(crate) fn conclude<R>(
        &self,
        settlement: Settlement<P>,
        release: impl FnOnce(bool) -> R,
    ) -> (Option<R>, Aftermath<P>) {
        self.settle_with(settlement, |book, first| {
            (!std::mem::replace(&mut book.retired, true)).then(|| release(first))
        })
    }

    fn settle_with<R>(
        &self,
        settlement: Settlement<P>,
        meanwhile: impl FnOnce(&mut Book<P>, bool) -> R,
    ) -> (R, Aftermath<P>) {
        let mut book = lock(&self.book);
        let first = self.is(EMPTY);
        let released = meanwhile(&mut book, first);
        if !first {
            return (released, Aftermath::none(Some(settlement)));
        }
        if book.forsaken {
            self.mark.store(TAKEN, Ordering::Release);
            return (released, Aftermath::none(Some(settlement)));
        }
        match settlement {
            Settlement::One(payload) => book.one = Some(payload),
            Settlement::Whole(outcome) => book.outcome = outcome,
        }
        let aftermath =
            Aftermath { unwanted: None, waiting: book.waiting > 0, polled: book.polled };
        // Last, so that a waiter who sees it does not find the lock taken for long.
        self.mark.store(FULL, Ordering::Release);
        (released, aftermath)
    }

    /// Tells those who wait of the result. Called under no lock.
    pub(crate) fn attend(&self, aftermath: Aftermath<P>) {
        let Aftermath { unwanted, waiting, polled } = aftermath;
        if let Some(unwanted) = unwanted {
            unwanted.discard();
        }
        if waiting {
            self.settled.notify_all();
        }
        if polled {
            let waker = lock(&self.waker).take();
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    }

    /// Marks the item as retired; true for the one call that does.
    pub(crate) fn retire(&self) -> bool {
        !std::mem::replace(&mut lock(&self.book).retired, true)
    }

    pub(crate) fn is_retired(&self) -> bool {
        lock(&self.book).retired
    }

    /// Like [`is_retired`](Self::is_retired), where nobody else has the cell.
    pub(crate) fn has_retired(&mut self) -> bool {
        own(&mut self.book).retired
    }

    pub(crate) fn is_settled(&self) -> bool {
        if self.is_marked() {
            return true;
        }
        // An empty mark says nothing: its credit may be back already, but only while it is locked.
        let _book = lock(&self.book);
        self.is_marked()
    }

    fn is_marked(&self) -> bool {
        self.mark.load(Ordering::Acquire) != EMPTY
    }

    /// Under the lock of the book.
    fn is(&self, mark: u32) -> bool {
        self.mark.load(Ordering::Relaxed) == mark
    }

    /// Takes the result if it is there.
    pub(crate) fn try_take(&self) -> Option<Outcome<P>> {
        self.take(&mut lock(&self.book)).map(Taken::whole)
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
            let taken = self.take(&mut book);
            if taken.is_some() || !self.is(EMPTY) {
                drop(book);
                return taken.map(Taken::whole);
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
        if let Some(taken) = self.take(&mut book) {
            drop(book);
            return Poll::Ready(taken.whole());
        }
        if !self.is(EMPTY) {
            let message = "the result of this ticket was taken before";
            return Poll::Ready(Err(ItemError::new(ErrorKind::Invalid, message)));
        }
        book.polled = true;
        match &mut *lock(&self.waker) {
            Some(waker) => waker.clone_from(context.waker()),
            none => *none = Some(context.waker().clone()),
        }
        Poll::Pending
    }

    /// Says that nobody will take the result: it is dropped now, or as soon as it comes.
    pub(crate) fn forsake(&self) {
        if self.mark.load(Ordering::Acquire) == TAKEN {
            return;
        }
        let mut book = lock(&self.book);
        book.forsaken = true;
        let taken = self.take(&mut book);
        let waker = if book.polled { self.disarm(&mut book) } else { None };
        drop(book);
        drop(waker);
        if let Some(Taken { outcome, one }) = taken {
            discard(outcome.into_iter().flatten().chain(one));
        }
    }

    fn disarm(&self, book: &mut MutexGuard<'_, Book<P>>) -> Option<Waker> {
        book.polled = false;
        lock(&self.waker).take()
    }

    fn take(&self, book: &mut Book<P>) -> Option<Taken<P>> {
        if !self.is(FULL) {
            return None;
        }
        let outcome = std::mem::replace(&mut book.outcome, Ok(Vec::new()));
        let one = book.one.take();
        self.mark.store(TAKEN, Ordering::Release);
        Some(Taken { outcome, one })
    }
}

/// A result on its way out.
struct Taken<P> {
    outcome: Outcome<P>,
    one: Option<P>,
}

impl<P> Taken<P> {
    fn whole(self) -> Outcome<P> {
        let mut outputs = self.outcome?;
        outputs.extend(self.one);
        Ok(outputs)
    }
}

impl<P> Book<P> {
    const fn new() -> Self {
        let outcome = Ok(Vec::new());
        Self { outcome, one: None, waiting: 0, polled: false, retired: false, forsaken: false }
    }

    fn take_vector(&mut self) -> Vec<P> {
        std::mem::replace(&mut self.outcome, Ok(Vec::new())).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conclude<P, R>(
        cell: &ResultCell<P>,
        outcome: Outcome<P>,
        release: impl FnOnce(bool) -> R,
    ) -> Option<R> {
        let (released, aftermath) = cell.conclude(Settlement::Whole(outcome), release);
        cell.attend(aftermath);
        released
    }

    #[test]
    fn the_first_result_counts_and_is_given_away_once() {
        let cell = ResultCell::new(0);
        cell.lend(Vec::with_capacity(7));
        assert!(cell.try_take().is_none() && !cell.is_settled());
        let mut outputs = cell.borrow();
        assert_eq!(outputs.capacity(), 7);
        outputs.push(5);
        assert_eq!(conclude(&cell, Ok(outputs), |first| first), Some(true));
        assert!(!cell.settle(Ok(vec![6])));
        assert!(!cell.retire() && cell.is_retired() && cell.is_settled());
        assert_eq!(cell.try_take().unwrap().unwrap(), [5]);
        assert!(cell.take_until(None, Duration::ZERO).is_none());
    }

    #[test]
    fn one_payload_comes_in_the_vector_that_was_lent() {
        let mut cell = ResultCell::new(0);
        cell.lend(Vec::with_capacity(7));
        let (_, aftermath) = cell.conclude(Settlement::One(5), |first| assert!(first));
        cell.attend(aftermath);
        let outputs = cell.try_take().unwrap().unwrap();
        assert_eq!((&*outputs, outputs.capacity()), (&[5][..], 7));
        assert!(cell.has_retired() && cell.try_take().is_none());
        cell.renew(1);
        assert!(!cell.is_settled() && !cell.has_retired());
    }

    #[test]
    fn a_settlement_before_the_sink_leaves_the_credit_to_the_sink() {
        let cell = ResultCell::new(0);
        assert!(cell.settle(Err(ItemError::failed("given up"))));
        assert_eq!(conclude(&cell, Ok(vec![1]), |first| first), Some(false));
        assert_eq!(conclude(&cell, Ok(vec![2]), |_| ()), None);
        assert!(cell.try_take().unwrap().is_err());
    }

    #[test]
    fn a_result_that_nobody_wants_is_dropped_at_once() {
        let payload = std::sync::Arc::new(1);
        for early in [true, false] {
            let cell = ResultCell::new(0);
            if early {
                cell.forsake();
            }
            let (_, aftermath) =
                cell.conclude(Settlement::One(std::sync::Arc::clone(&payload)), |_| ());
            cell.attend(aftermath);
            cell.forsake();
            assert_eq!(std::sync::Arc::strong_count(&payload), 1);
        }
    }

    #[test]
    fn what_a_settlement_writes_and_a_waiter_reads_fits_a_cache_line() {
        assert!(std::mem::offset_of!(ResultCell<std::sync::Arc<u64>>, waker) <= 64);
    }
}
