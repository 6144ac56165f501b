//! The queue in front of the credits: items that were accepted and wait to be let in.
//!
//! An item in the queue has its number and its ticket, and no credit yet. It leaves in one of three
//! ways: it is let in, in the order of arrival; it is dropped, because the queue is full and the
//! policy says so; or it is found to be late, too old or given up, which costs no computing.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::credit::{Ask, Place};
use crate::engine::Engine;
use crate::error::{ErrorKind, ItemError, PushErrorKind};
use crate::item::Item;
use crate::options::WhenFull;
use crate::payload::Payload;
use crate::spans;
use crate::supervise::discard;
use crate::sync::{Arc, AtomicU64, Mutex, MutexGuard, Ordering, lock};

pub(crate) struct Queue<P> {
    pub(crate) policy: WhenFull,
    /// How long an item may wait.
    pub(crate) max_age: Option<Duration>,
    pub(crate) capacity: usize,
    pub(crate) dropped: AtomicU64,
    pub(crate) expired: AtomicU64,
    line: Mutex<Line<P>>,
}

struct Line<P> {
    waiting: VecDeque<Waiting<P>>,
    /// A thread is letting items in.
    pumping: bool,
}

pub(crate) struct Waiting<P> {
    pub(crate) item: Arc<Item<P>>,
    pub(crate) inputs: Vec<P>,
    pub(crate) bytes: usize,
}

/// What became of a push that did not wait.
pub(crate) enum Offered<P> {
    /// It was given this credit.
    Flight(usize, Vec<P>),
    /// It lies in the queue, or was dropped; it has a result or will have one.
    Taken(Arc<Item<P>>),
}

impl<P> Queue<P> {
    pub(crate) fn new(policy: WhenFull, max_age: Option<Duration>, capacity: usize) -> Self {
        Self {
            policy,
            max_age,
            capacity,
            dropped: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            line: Mutex::new(Line { waiting: VecDeque::new(), pumping: false }),
        }
    }

    /// Forgets what lies in it: the pipeline stopped and the items have their results.
    pub(crate) fn clear(&self) {
        let waiting = std::mem::take(&mut lock(&self.line).waiting);
        waiting.into_iter().for_each(|waiting| discard(waiting.inputs));
    }
}

impl<P: Payload> Engine<P> {
    /// Takes a credit or a place in the queue without waiting. Where there is neither, the policy
    /// decides: `insist` keeps it from dropping anything.
    pub(crate) fn offer(
        self: &Arc<Self>,
        inputs: Vec<P>,
        bytes: usize,
        deadline: Option<Instant>,
        insist: bool,
        at_ns: u64,
    ) -> Result<Offered<P>, (PushErrorKind, Vec<P>)> {
        let ask = Ask { bytes, queue: self.queue.capacity > 0, at_ns };
        let mut line = lock(&self.queue.line);
        let mut place = self.credits.try_acquire(ask);
        if matches!(place, Err(PushErrorKind::Full)) {
            let stale = self.take_stale(&mut line);
            if !stale.is_empty() {
                drop(line);
                stale.into_iter().for_each(|(waiting, error)| self.discard(waiting, error));
                line = lock(&self.queue.line);
                place = self.credits.try_acquire(ask);
            }
        }
        match place {
            Ok(Place::Flight(charge)) => Ok(Offered::Flight(charge, inputs)),
            Ok(Place::Queue) => self.line_up(line, inputs, bytes, deadline).map(Offered::Taken),
            Err(PushErrorKind::Full) if !insist && self.queue.policy.drops() => {
                let oldest = match self.queue.policy {
                    WhenFull::DropOldest => line.waiting.pop_front(),
                    _ => None,
                };
                match oldest {
                    None => {
                        drop(line);
                        self.drop_newest(inputs, deadline).map(Offered::Taken)
                    }
                    Some(oldest) => {
                        // The new item takes the place of the one that is dropped.
                        let taken = self.line_up(line, inputs, bytes, deadline);
                        self.settle_dropped(&oldest.item);
                        discard(oldest.inputs);
                        taken.map(Offered::Taken)
                    }
                }
            }
            Err(kind) => Err((kind, inputs)),
        }
    }

    /// Puts an item that holds a place of the queue into it.
    pub(crate) fn enqueue(
        self: &Arc<Self>,
        inputs: Vec<P>,
        bytes: usize,
        deadline: Option<Instant>,
    ) -> Result<Arc<Item<P>>, (PushErrorKind, Vec<P>)> {
        let line = lock(&self.queue.line);
        self.line_up(line, inputs, bytes, deadline)
    }

    fn line_up(
        self: &Arc<Self>,
        mut line: MutexGuard<'_, Line<P>>,
        inputs: Vec<P>,
        bytes: usize,
        deadline: Option<Instant>,
    ) -> Result<Arc<Item<P>>, (PushErrorKind, Vec<P>)> {
        let start_by = self.queue.max_age.and_then(|age| Instant::now().checked_add(age));
        // Numbered under the lock of the queue, so that numbers rise along it.
        match self.enter_queue(deadline, start_by) {
            Ok(item) => {
                line.waiting.push_back(Waiting { item: Arc::clone(&item), inputs, bytes });
                drop(line);
                // A credit may have come back, or the queue may have been swept by a stop, before
                // the item was in it.
                self.pump();
                if self.has_stopped() {
                    self.queue.clear();
                }
                Ok(item)
            }
            Err(cause) => {
                drop(line);
                self.credits.unqueue().wake();
                Err((PushErrorKind::Closed(cause), inputs))
            }
        }
    }

    fn drop_newest(
        self: &Arc<Self>,
        inputs: Vec<P>,
        deadline: Option<Instant>,
    ) -> Result<Arc<Item<P>>, (PushErrorKind, Vec<P>)> {
        match self.enter_queue(deadline, None) {
            Ok(item) => {
                self.settle_dropped(&item);
                discard(inputs);
                Ok(item)
            }
            Err(cause) => Err((PushErrorKind::Closed(cause), inputs)),
        }
    }

    /// Lets items in from the queue, as many as there are credits for. Never blocks; called whenever
    /// room may have come into being.
    pub(crate) fn pump(self: &Arc<Self>) {
        if self.queue.capacity == 0 {
            return;
        }
        let mut line = lock(&self.queue.line);
        // The one that pumps looks for room under this lock before it ends, so it sees what the
        // caller gave back.
        if std::mem::replace(&mut line.pumping, true) {
            return;
        }
        loop {
            let stale = self.take_stale_head(&mut line);
            if let Some((waiting, error)) = stale {
                drop(line);
                self.discard(waiting, error);
                line = lock(&self.queue.line);
                continue;
            }
            let promoted =
                line.waiting.front().and_then(|waiting| self.credits.promote(waiting.bytes));
            let Some((charge, wakeups)) = promoted else {
                line.pumping = false;
                return;
            };
            let next = line.waiting.pop_front();
            drop(line);
            wakeups.wake();
            if let Some(Waiting { item, inputs, bytes }) = next {
                item.leave_queue();
                item.weight.admit(bytes, charge);
                self.inject(&item, inputs, self.time(Instant::now()));
            }
            self.credits.injected().wake();
            line = lock(&self.queue.line);
        }
    }

    /// Ends the wait of items that are late, too old or given up.
    pub(crate) fn sweep_queue(self: &Arc<Self>) {
        let stale = self.take_stale(&mut lock(&self.queue.line));
        stale.into_iter().for_each(|(waiting, error)| self.discard(waiting, error));
    }

    fn take_stale(&self, line: &mut Line<P>) -> Vec<(Waiting<P>, ItemError)> {
        let mut stale = Vec::new();
        let mut place = 0;
        while place < line.waiting.len() {
            let why = line.waiting.get(place).and_then(|waiting| waiting.item.skip_queue());
            match why.and_then(|error| Some((line.waiting.remove(place)?, error))) {
                Some(found) => stale.push(found),
                None => place += 1,
            }
        }
        stale
    }

    fn take_stale_head(&self, line: &mut Line<P>) -> Option<(Waiting<P>, ItemError)> {
        let error = line.waiting.front()?.item.skip_queue()?;
        Some((line.waiting.pop_front()?, error))
    }

    /// Settles an item that was taken out of the queue, and gives its place back.
    fn discard(&self, waiting: Waiting<P>, error: ItemError) {
        if error.kind() == ErrorKind::Expired {
            spans::turned_away(&self.name, waiting.item.seq(), &error);
            self.queue.expired.fetch_add(1, Ordering::Relaxed);
        }
        self.settle_queued(&waiting.item, error);
        self.credits.unqueue().wake();
        discard(waiting.inputs);
    }

    fn settle_dropped(&self, item: &Item<P>) {
        self.queue.dropped.fetch_add(1, Ordering::Relaxed);
        let message = match self.queue.policy {
            WhenFull::DropOldest => "the queue of the pipeline was full of newer items",
            _ => "the pipeline and its queue were full",
        };
        let error = ItemError::new(ErrorKind::Dropped, message).at(None, item.seq());
        spans::turned_away(&self.name, item.seq(), &error);
        self.settle_queued(item, error);
    }
}
