//! What operators do with items on the thread of their actor: fan out, hold back, split.

use std::time::Instant;

use crate::error::{ErrorKind, ItemError};
use crate::item::{Item, Lineage};
use crate::metrics::Phase;
use crate::packet::{Stamp, Work};
use crate::payload::Payload;
use crate::region::RegionId;
use crate::supervise::{discard, guarded};
use crate::sync::{Arc, Ordering, lock};
use crate::worker::{Actor, Duty};

impl<P: Payload> Actor<P> {
    /// Makes the children of an item and sends them, as the budget allows; then says at every end of
    /// their region how many there are. Holds no lane.
    pub(crate) fn fan_out(
        &self,
        region: RegionId,
        item: &Arc<Item<P>>,
        lists: Vec<Vec<P>>,
        mut at_ns: u64,
    ) {
        let engine = &self.seed.engine;
        if let Some(port) = self.seed.done {
            discard(lists.into_iter().flatten());
            return engine.done(port, item, None);
        }
        let count = lists.first().map_or(0, Vec::len);
        if let Some(error) = unequal(&lists, count, "the children that it announced") {
            let error = item.blame(error, &self.cell().actor);
            discard(lists.into_iter().flatten());
            return engine.end_children(region, item, 0, Some(&error));
        }
        let Some((_, budget)) = &engine.regions[region].budget else {
            return;
        };
        let mut lists: Vec<_> = lists.into_iter().map(Vec::into_iter).collect();
        let mut made = 0;
        let mut fault = None;
        while made < count && fault.is_none() {
            let mut granted = budget.try_acquire(count - made);
            if granted == 0 {
                self.cell().meter.enter(Phase::Blocked);
                granted = budget.acquire(count - made, || self.stopped());
                at_ns = engine.time(self.cell().meter.enter(Phase::Other));
                if granted == 0 {
                    discard(lists.into_iter().flatten());
                    return;
                }
            }
            // All at once, so that a batch behind waits for those that come and for no others.
            engine.enters(region, granted);
            for _ in 0..granted {
                let shape = &engine.regions[region].shape;
                let child = Item::child(item, made, region, shape, budget);
                made += 1;
                let stamp = Stamp { number: child.seq().number(), at_ns };
                for (port, list) in lists.iter_mut().enumerate() {
                    if let Some(payload) = list.next() {
                        self.send(&child, port, payload, stamp);
                    }
                }
            }
            fault = item.skip();
        }
        discard(lists.into_iter().flatten());
        let fault = fault.filter(|_| made < count);
        let fault = fault.map(|fault| item.blame(fault, &self.cell().actor));
        engine.end_children(region, item, made, fault.as_ref());
    }

    /// Sends the members of a batch on, each with its own payloads.
    pub(crate) fn unbatch(&self, batch: &Arc<Item<P>>, lists: Vec<Vec<P>>, at_ns: u64) {
        let members = batch.members();
        if let Some(error) = unequal(&lists, members.len(), "the members of the batch") {
            let error = batch.blame(error, &self.cell().actor);
            discard(lists.into_iter().flatten());
            for member in members {
                self.send_error(member, &error.clone().at(None, member.seq()), at_ns);
            }
            return;
        }
        let mut lists: Vec<_> = lists.into_iter().map(Vec::into_iter).collect();
        for member in members {
            let stamp = Stamp { number: member.seq().number(), at_ns };
            for (port, list) in lists.iter_mut().enumerate() {
                if let Some(payload) = list.next() {
                    self.send(member, port, payload, stamp);
                }
            }
            self.report_done(member, None);
        }
    }

    /// Holds a member back until its batch leaves. One that is an error goes past the batches.
    pub(crate) fn admit_member(&mut self, item: Arc<Item<P>>, inputs: Result<Vec<P>, ItemError>) {
        let skip = item.skip();
        let Duty::Batch(batcher) = &mut self.seed.duty else {
            return;
        };
        batcher.arrived += 1;
        let keyed = match (inputs, skip) {
            (Err(error), _) => Err(error),
            (Ok(inputs), Some(error)) => {
                discard(inputs);
                Err(error)
            }
            (Ok(inputs), None) => match inputs.into_iter().next() {
                Some(payload) => {
                    match guarded("the key of the batch", || Ok(batcher.held.key(&payload))) {
                        Ok(key) => Ok((key, payload)),
                        Err(error) => {
                            discard(Some(payload));
                            Err(error)
                        }
                    }
                }
                None => Err(ItemError::failed("the batch was given no payload")),
            },
        };
        match keyed {
            Ok((key, payload)) => {
                if let Some(full) = batcher.held.add(key, item, payload) {
                    self.make_batch(full);
                }
            }
            Err(error) => self.pass(&item, 0, error),
        }
    }

    /// Lets batches go whose time has come, and those that hold all that can still arrive, while the
    /// actors behind are short of work.
    pub(crate) fn flush_batches(&mut self) {
        loop {
            let Duty::Batch(batcher) = &mut self.seed.duty else {
                return;
            };
            if batcher.held.is_empty() {
                return;
            }
            let region = &self.seed.engine.regions[batcher.takes];
            let all_here = region.entered.load(Ordering::Acquire) == batcher.arrived;
            let leaving = if all_here && batcher.live.count() < batcher.enough {
                batcher.held.oldest()
            } else {
                batcher.held.due(Instant::now())
            };
            match leaving {
                Some(members) => self.make_batch(members),
                None => return,
            }
        }
    }

    /// Makes an item of members that leave together. Those that were given up meanwhile stay out.
    fn make_batch(&mut self, members: Vec<(Arc<Item<P>>, P)>) {
        let mut items = Vec::with_capacity(members.len());
        let mut inputs = self.outbox.inputs();
        for (member, payload) in members {
            match member.skip() {
                Some(error) => {
                    discard(Some(payload));
                    self.pass(&member, 0, error);
                }
                None => {
                    items.push(member);
                    inputs.push(payload);
                }
            }
        }
        let Duty::Batch(batcher) = &self.seed.duty else {
            return;
        };
        if items.is_empty() {
            return self.outbox.recycle(inputs);
        }
        let kept = if batcher.held.retries() && items.len() > 1 {
            inputs.iter().map(Payload::share).collect()
        } else {
            Vec::new()
        };
        let shape = &self.seed.engine.regions[batcher.region].shape;
        let item = Item::batch(items, kept, batcher.region, shape, &batcher.live);
        let (seq, inputs, children) = (item.seq(), Ok(inputs), Vec::new());
        self.backlog.push_back(Work { item, seq, since_ns: 0, inputs, children, tries: 0 });
    }

    /// Makes a batch of each member of a batch that failed.
    pub(crate) fn retry(&mut self, batch: &Arc<Item<P>>) {
        let Lineage::Batch { members, kept, .. } = &batch.lineage else {
            return;
        };
        let kept = std::mem::take(&mut *lock(kept));
        for (member, payload) in members.iter().zip(kept) {
            self.make_batch(vec![(Arc::clone(member), payload)]);
        }
    }
}

/// True if the members of a failed batch can be tried again.
pub(crate) fn is_retried<P>(batch: &Item<P>, error: &ItemError) -> bool {
    let Lineage::Batch { kept, .. } = &batch.lineage else {
        return false;
    };
    let by_a_stage = matches!(
        error.kind(),
        ErrorKind::Failed | ErrorKind::Panicked | ErrorKind::Contract | ErrorKind::Limit
    );
    by_a_stage && !lock(kept).is_empty()
}

/// A breach of contract if a list is not as long as it must be.
fn unequal<P>(lists: &[Vec<P>], count: usize, of: &str) -> Option<ItemError> {
    let (port, list) = lists.iter().enumerate().find(|(_, list)| list.len() != count)?;
    let message = format!("output {port} was given {} payloads for {count} of {of}", list.len());
    Some(ItemError::new(ErrorKind::Contract, message))
}
