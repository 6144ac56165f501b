//! The sink: where an item becomes a result.

use std::time::Instant;

use crate::engine::Engine;
use crate::error::{ErrorKind, ItemError};
use crate::item::{Item, Outcome};
use crate::packet::Delivery;
use crate::payload::Payload;
use crate::result::Settlement;
use crate::supervise::discard;
use crate::sync::{Arc, lock};

impl<P: Payload> Engine<P> {
    /// Every port of the sink holds the item: no actor will touch it any more.
    pub(crate) fn finish(self: &Arc<Self>, item: &Arc<Item<P>>) {
        let outcome = self.gather(item);
        let now = self.time(Instant::now());
        self.conclude(Arc::clone(item), Settlement::Whole(outcome), now);
    }

    /// The one port of the sink holds the item, since `at_ns`.
    pub(crate) fn finish_with(
        self: &Arc<Self>,
        item: Arc<Item<P>>,
        delivery: Delivery<P>,
        at_ns: u64,
    ) {
        let settlement = match delivery {
            Ok(payload) => Settlement::One(payload),
            Err(error) => Settlement::Whole(Err(error.at(None, item.seq()))),
        };
        self.conclude(item, settlement, at_ns);
    }

    fn conclude(self: &Arc<Self>, item: Arc<Item<P>>, mut settlement: Settlement<P>, now_ns: u64) {
        if !matches!(settlement, Settlement::Whole(Err(_))) && item.late() {
            let expired = Settlement::Whole(Err(item.expired()));
            std::mem::replace(&mut settlement, expired).discard();
        }
        match item.stream.clone() {
            None => self.retire(item, settlement, now_ns),
            Some(stream) => {
                stream.carry(item.seq(), &settlement);
                self.retire(item, settlement, now_ns);
                stream.advance(self);
            }
        }
    }

    fn gather(&self, item: &Item<P>) -> Outcome<P> {
        let mut outputs = item.result.borrow();
        let mut errors = Vec::new();
        let mut missing = false;
        for port in 0..self.sink.ports {
            let delivery = item.cells.take(self.sink, port);
            match (delivery, self.listed[port]) {
                (Some(Ok(payload)), _) => outputs.push(payload),
                (Some(Err(error)), _) => errors.push(error),
                (None, Some(slot)) => match lock(&item.gathers[slot]).take() {
                    Ok(children) => sort(children, &mut outputs, &mut errors),
                    // What an actor at the end of a branch did not get is no part of the result.
                    Err(fault) if port >= self.sinks && fault.is_filtered() => {}
                    Err(fault) => errors.push(fault),
                },
                (None, None) => missing |= port < self.sinks,
            }
        }
        match ItemError::join(errors) {
            Some(error) => {
                discard(outputs);
                Err(error.at(None, item.seq()))
            }
            None if !missing => Ok(outputs),
            None => {
                discard(outputs);
                let message = "a sink port was reached without a payload";
                Err(ItemError::new(ErrorKind::Contract, message).at(None, item.seq()))
            }
        }
    }
}

/// Takes children apart that came to the sink: the filtered ones are no part of the result.
fn sort<P>(children: Vec<Delivery<P>>, outputs: &mut Vec<P>, errors: &mut Vec<ItemError>) {
    for child in children {
        match child {
            Ok(payload) => outputs.push(payload),
            Err(error) if error.is_filtered() => {}
            Err(error) => errors.push(error),
        }
    }
}
