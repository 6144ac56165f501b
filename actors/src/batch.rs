//! Members on their way into batches.

use std::time::{Duration, Instant};

use crate::inbox::StageWaker;
use crate::item::Item;
use crate::operator::Batching;
use crate::payload::Payload;
use crate::sync::{Arc, AtomicUsize, Ordering};

/// The batches of one batching actor that are alive.
pub(crate) struct Live {
    count: AtomicUsize,
    /// Wakes the batching actor, which may hold back members until one goes.
    waker: StageWaker,
}

impl Live {
    pub(crate) fn new(waker: StageWaker) -> Self {
        Self { count: AtomicUsize::new(0), waker }
    }

    pub(crate) fn one_more(&self) {
        self.count.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn one_less(&self) {
        self.count.fetch_sub(1, Ordering::AcqRel);
        self.waker.wake();
    }

    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }
}

/// The members that a batching actor holds back, by key.
pub(crate) struct Held<P> {
    batching: Batching<P>,
    buckets: Vec<Bucket<P>>,
}

struct Bucket<P> {
    key: u64,
    members: Vec<(Arc<Item<P>>, P)>,
    bytes: usize,
    /// When its oldest member came.
    since: Instant,
}

impl<P: Payload> Held<P> {
    pub(crate) const fn new(batching: Batching<P>) -> Self {
        Self { batching, buckets: Vec::new() }
    }

    pub(crate) const fn retries(&self) -> bool {
        self.batching.retry
    }

    /// The key of a payload: user code, so the caller guards it.
    pub(crate) fn key(&mut self, payload: &P) -> u64 {
        self.batching.key.as_mut().map_or(0, |key| key(payload))
    }

    /// Takes a member in. Gives the batch that it makes full, if it does.
    pub(crate) fn add(
        &mut self,
        key: u64,
        member: Arc<Item<P>>,
        payload: P,
    ) -> Option<Vec<(Arc<Item<P>>, P)>> {
        let place = match self.buckets.iter().position(|bucket| bucket.key == key) {
            Some(place) => place,
            None => {
                let since = Instant::now();
                self.buckets.push(Bucket { key, members: Vec::new(), bytes: 0, since });
                self.buckets.len() - 1
            }
        };
        let bucket = &mut self.buckets[place];
        bucket.bytes = bucket.bytes.saturating_add(payload.bytes());
        bucket.members.push((member, payload));
        let full = bucket.members.len() >= self.batching.count
            || self.batching.bytes.is_some_and(|bytes| bucket.bytes >= bytes);
        full.then(|| self.buckets.remove(place).members)
    }

    /// The batch whose oldest member came first. Buckets are made in that order.
    pub(crate) fn oldest(&mut self) -> Option<Vec<(Arc<Item<P>>, P)>> {
        (!self.buckets.is_empty()).then(|| self.buckets.remove(0).members)
    }

    /// The oldest batch, if its oldest member has waited long enough.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Vec<(Arc<Item<P>>, P)>> {
        self.deadline().filter(|deadline| *deadline <= now).and_then(|_| self.oldest())
    }

    /// When the oldest batch is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let age: Duration = self.batching.age?;
        self.buckets.first()?.since.checked_add(age)
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }
}
