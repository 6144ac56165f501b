//! The sink: where an item becomes a result.

use crate::engine::Engine;
use crate::error::{ErrorKind, ItemError};
use crate::item::{Item, Outcome};
use crate::payload::Payload;
use crate::sync::Arc;

impl<P: Payload> Engine<P> {
    /// Every port of the sink holds the item: no actor will touch it any more.
    pub(crate) fn finish(self: &Arc<Self>, item: &Arc<Item<P>>) {
        let mut outcome = self.gather(item);
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
        let mut outputs = Vec::with_capacity(self.sinks);
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
