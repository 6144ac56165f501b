//! Edges: how a payload gets from one port to the next.

use crate::engine::{End, Engine};
use crate::error::ItemError;
use crate::gather::Part;
use crate::item::{Item, Lineage};
use crate::join::Join;
use crate::packet::{Delivery, Message, Stamp};
use crate::payload::Payload;
use crate::region::RegionId;
use crate::supervise::discard;
use crate::sync::{Arc, Sender, lock};

/// One edge, seen from the port that gives.
pub(crate) struct Target<P> {
    /// The number of the edge.
    pub(crate) edge: usize,
    pub(crate) to: Taker<P>,
}

/// The taking side of an edge.
pub(crate) enum Taker<P> {
    /// The one port of an actor: its inbox is the edge.
    Only { actor: usize, inbox: Sender<Message<P>> },
    /// One of several ports: the item's cells match them.
    Join { actor: usize, join: Join, port: usize, inbox: Sender<Message<P>> },
    /// The port of a collect: a list in the item's parent matches the children.
    Collect { slot: usize, inbox: Sender<Message<P>> },
    /// A sink port.
    Sink { port: usize },
}

impl<P: Payload> Engine<P> {
    /// Hands `payload` to everybody who takes it; the last one gets the handles themselves.
    pub(crate) fn send(
        self: &Arc<Self>,
        to: &[Target<P>],
        item: Arc<Item<P>>,
        payload: P,
        stamp: Stamp,
    ) {
        if let Some((last, rest)) = to.split_last() {
            if self.credits.weighs() {
                // Every taker holds a handle, and gives it back on its own.
                let bytes = payload.bytes().saturating_mul(to.len());
                self.hold_bytes(&item, bytes);
            }
            for target in rest {
                self.deliver(target, Arc::clone(&item), Ok(payload.share()), stamp);
            }
            self.deliver(last, item, Ok(payload), stamp);
        } else {
            discard(Some(payload));
        }
    }

    /// Whether everybody who takes from this port is an actor of `memory`.
    pub(crate) fn stays_in(&self, to: &[Target<P>], memory: &str) -> bool {
        to.iter().all(|target| match &target.to {
            Taker::Only { actor, .. } | Taker::Join { actor, .. } => {
                *self.actors[*actor].memory == *memory
            }
            Taker::Collect { .. } | Taker::Sink { .. } => false,
        })
    }

    /// Hands an error to everybody who would have taken a payload.
    pub(crate) fn send_error(
        self: &Arc<Self>,
        to: &[Target<P>],
        item: &Arc<Item<P>>,
        error: &ItemError,
        stamp: Stamp,
    ) {
        for target in to {
            self.deliver(target, Arc::clone(item), Err(error.clone()), stamp);
        }
    }

    fn deliver(
        self: &Arc<Self>,
        target: &Target<P>,
        item: Arc<Item<P>>,
        delivery: Delivery<P>,
        stamp: Stamp,
    ) {
        let edge = &self.edges[target.edge];
        let meter = &edge.meter;
        match &target.to {
            Taker::Only { inbox, .. } => {
                meter.send(None);
                // Never blocks: an inbox has room for every item that can be in flight. An inbox
                // whose actor has ended belongs to a stopped pipeline, whose items are settled.
                if let Err(unsent) = inbox.send(Message::Packet(item, delivery, stamp)) {
                    unsent.0.discard();
                }
            }
            Taker::Join { actor, join, port, inbox } => {
                item.cells.stamp(target.edge, stamp.at_ns);
                // Not past its capacity: then there is no need to look at the account of the actor.
                let more = meter.peak() < edge.capacity as u64;
                meter.send(more.then(|| self.taken(*actor)));
                if item.cells.fill(*join, *port, Some(delivery)) {
                    let _ = inbox.send(Message::Ready(item, stamp.number));
                }
            }
            Taker::Collect { slot, inbox } => {
                item.cells.stamp(target.edge, stamp.at_ns);
                meter.send(None);
                self.absorb(*slot, inbox, &item, Part::One(delivery));
            }
            Taker::Sink { port } => {
                meter.send(None);
                if self.sink.ports == 1 && matches!(item.lineage, Lineage::Root) {
                    self.finish_with(item, delivery, stamp.at_ns);
                } else {
                    item.cells.stamp(target.edge, stamp.at_ns);
                    self.leave(*port, &item, Part::One(delivery));
                }
            }
        }
    }

    /// Says that an actor which nobody takes anything from has seen the item: an item is not
    /// finished before every actor is. What such an actor filters out is nobody's loss.
    pub(crate) fn done(
        self: &Arc<Self>,
        port: usize,
        item: &Arc<Item<P>>,
        error: Option<ItemError>,
    ) {
        let error = error.filter(|error| !error.is_filtered());
        self.leave(port, item, error.map_or(Part::Nothing, |error| Part::One(Err(error))));
    }

    /// Takes a child into the list of a collect; the last one sends the parent there.
    fn absorb(&self, slot: usize, inbox: &Sender<Message<P>>, item: &Arc<Item<P>>, part: Part<P>) {
        if let Lineage::Child { parent, index, .. } = &item.lineage
            && lock(&parent.gathers[slot]).put(*index, part, self.child_bytes)
        {
            let _ = inbox.send(Message::ready(parent));
        }
    }

    /// Takes what an item leaves at a port of the sink: an item of the source fills the sink's cell,
    /// a child its place in its parent's list, a batch stands for its members.
    pub(crate) fn leave(self: &Arc<Self>, port: usize, item: &Arc<Item<P>>, part: Part<P>) {
        match &item.lineage {
            Lineage::Root => {
                let delivery = match part {
                    Part::One(delivery) => Some(delivery),
                    Part::Nothing | Part::Many(_) => part.into_error().map(Err),
                };
                if item.cells.fill(self.sink, port, delivery) {
                    self.finish(item);
                }
            }
            Lineage::Child { parent, index, .. } => {
                let Some(slot) = self.regions[item.region].exits[port] else {
                    return;
                };
                let complete = lock(&parent.gathers[slot]).put(*index, part, self.child_bytes);
                if complete {
                    self.gathered(port, slot, parent);
                }
            }
            Lineage::Batch { members, .. } => {
                let error = part.into_error();
                for member in members {
                    let error = error.clone().map(|error| error.at(None, member.seq()));
                    self.done(port, member, error);
                }
            }
        }
    }

    /// All children of `item` have come to a port of the sink.
    fn gathered(self: &Arc<Self>, port: usize, slot: usize, item: &Arc<Item<P>>) {
        if matches!(item.lineage, Lineage::Root) {
            // Its list stays where it is until the sink takes it.
            if item.cells.fill(self.sink, port, None) {
                self.finish(item);
            }
            return;
        }
        let list = lock(&item.gathers[slot]).take();
        self.leave(port, item, list.map_or_else(|fault| Part::One(Err(fault)), Part::Many));
    }

    /// Says at every end of region `region` how many children `item` has there, and why the lists
    /// are worth nothing if so.
    pub(crate) fn end_children(
        self: &Arc<Self>,
        region: RegionId,
        item: &Arc<Item<P>>,
        count: usize,
        fault: Option<&ItemError>,
    ) {
        for end in &self.regions[region].ends {
            match end {
                End::Collect { slot, inbox } => {
                    if lock(&item.gathers[*slot]).announce(count, fault.cloned()) {
                        let _ = inbox.send(Message::ready(item));
                    }
                }
                End::Sink { port } => {
                    let Some(slot) = self.regions[region].exits[*port] else {
                        continue;
                    };
                    let complete = lock(&item.gathers[slot]).announce(count, fault.cloned());
                    if complete {
                        self.gathered(*port, slot, item);
                    }
                }
                End::Unbatch { .. } => {}
            }
        }
    }

    /// Takes an item past the region of batches that it cannot enter, because it is an error.
    pub(crate) fn bypass(
        self: &Arc<Self>,
        region: RegionId,
        item: &Arc<Item<P>>,
        error: &ItemError,
    ) {
        for end in &self.regions[region].ends {
            match end {
                End::Unbatch { inbox } => {
                    let stamp = Stamp { number: item.seq().number(), at_ns: 0 };
                    let message = Message::Packet(Arc::clone(item), Err(error.clone()), stamp);
                    let _ = inbox.send(message);
                }
                End::Sink { port } => self.done(*port, item, Some(error.clone())),
                End::Collect { .. } => {}
            }
        }
    }
}
