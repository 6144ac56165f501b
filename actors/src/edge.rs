//! Edges: how a payload gets from one port to the next.

use crate::engine::Engine;
use crate::error::ItemError;
use crate::item::Item;
use crate::join::Join;
use crate::packet::{Delivery, Message};
use crate::payload::Payload;
use crate::sync::{Arc, Sender};

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
    /// A sink port.
    Sink { port: usize },
}

impl<P: Payload> Engine<P> {
    /// Hands `payload` to everybody who takes it; the last one gets the handle itself.
    pub(crate) fn send(
        self: &Arc<Self>,
        to: &[Target<P>],
        item: &Arc<Item<P>>,
        payload: P,
        at_ns: u64,
    ) {
        if let Some((last, rest)) = to.split_last() {
            for target in rest {
                self.deliver(target, item, Ok(payload.share()), at_ns);
            }
            self.deliver(last, item, Ok(payload), at_ns);
        }
    }

    /// Hands an error to everybody who would have taken a payload.
    pub(crate) fn send_error(
        self: &Arc<Self>,
        to: &[Target<P>],
        item: &Arc<Item<P>>,
        error: &ItemError,
        at_ns: u64,
    ) {
        for target in to {
            self.deliver(target, item, Err(error.clone()), at_ns);
        }
    }

    fn deliver(
        self: &Arc<Self>,
        target: &Target<P>,
        item: &Arc<Item<P>>,
        delivery: Delivery<P>,
        at_ns: u64,
    ) {
        item.cells.stamp(target.edge, at_ns);
        let meter = &self.edges[target.edge].meter;
        match &target.to {
            Taker::Only { actor, inbox } => {
                meter.send(Some(&self.actors[*actor].meter.taken));
                // Never blocks: an inbox has room for every item that can be in flight. An inbox
                // whose actor has ended belongs to a stopped pipeline, whose items are settled.
                let _ = inbox.send(Message::Packet(Arc::clone(item), delivery));
            }
            Taker::Join { actor, join, port, inbox } => {
                meter.send(Some(&self.actors[*actor].meter.taken));
                if item.cells.fill(*join, *port, Some(delivery)) {
                    let _ = inbox.send(Message::Ready(Arc::clone(item)));
                }
            }
            Taker::Sink { port } => {
                meter.send(None);
                if item.cells.fill(self.sink, *port, Some(delivery)) {
                    self.finish(item);
                }
            }
        }
    }

    /// Says that an actor which nobody takes anything from has seen the item: an item is not
    /// finished before every actor is.
    pub(crate) fn done(
        self: &Arc<Self>,
        port: usize,
        item: &Arc<Item<P>>,
        error: Option<ItemError>,
    ) {
        if item.cells.fill(self.sink, port, error.map(Err)) {
            self.finish(item);
        }
    }
}
