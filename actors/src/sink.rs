//! The sink: where an item becomes a result.

use crate::engine::Engine;
use crate::error::{ErrorKind, ItemError};
use crate::item::{Item, Outcome};
use crate::packet::Delivery;
use crate::payload::Payload;
use crate::sync::Arc;

impl<P: Payload> Engine<P> {
    /// Every port of the sink holds the item: no actor will touch it any more.
    pub(crate) fn finish(self: &Arc<Self>, item: &Arc<Item<P>>) {
        self.conclude(item, self.gather(item));
    }

    /// The one port of the sink holds the item.
    pub(crate) fn finish_with(self: &Arc<Self>, item: &Arc<Item<P>>, delivery: Delivery<P>) {
        let outcome = match delivery {
            Ok(payload) => {
                let mut outputs = item.result.borrow();
                outputs.push(payload);
                Ok(outputs)
            }
            Err(error) => Err(error.at(None, item.seq)),
        };
        self.conclude(item, outcome);
    }

    fn conclude(self: &Arc<Self>, item: &Arc<Item<P>>, mut outcome: Outcome<P>) {
        if outcome.is_ok() && item.late() {
            outcome = Err(item.expired());
        }
        match &item.stream {
            None => self.retire(item, outcome),
            Some(stream) => {
                stream.carry(item.seq, &outcome);
                self.retire(item, outcome);
                stream.advance(self);
            }
        }
    }

    fn gather(&self, item: &Item<P>) -> Outcome<P> {
        let mut outputs = item.result.borrow();
        let mut errors = Vec::new();
        for port in 0..self.sink.ports {
            match item.cells.take(self.sink, port) {
                Some(Ok(payload)) => outputs.push(payload),
                Some(Err(error)) => errors.push(error),
                None => {}
            }
        }
        match ItemError::join(errors) {
            Some(error) => Err(error.at(None, item.seq)),
            None if outputs.len() == self.sinks => Ok(outputs),
            None => {
                let message = "a sink port was reached without a payload";
                Err(ItemError::new(ErrorKind::Contract, message).at(None, item.seq))
            }
        }
    }
}
