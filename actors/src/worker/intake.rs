//! How an actor takes a message in: the inputs that it stands for, gathered into a piece of work.

use crate::error::ItemError;
use crate::item::{Item, Lineage};
use crate::packet::{Message, Seq, Stamp, Work};
use crate::payload::Payload;
use crate::supervise::discard;
use crate::sync::lock;
use crate::worker::{Actor, Duty};

impl<P: Payload> Actor<P> {
    /// Gathers the inputs of an item out of an inbox that held `level`.
    pub(super) fn take_in(&mut self, message: Message<P>, level: usize) {
        // What lies in front of a join is counted by its edges.
        let level = if self.seed.join.is_some() { 0 } else { level.max(1) };
        self.cell().meter.held(level);
        let mut inputs = self.outbox.inputs();
        let mut children = Vec::new();
        let (item, stamp, error) = match message {
            Message::Packet(item, Ok(payload), stamp) => {
                inputs.push(payload);
                (item, stamp, None)
            }
            Message::Packet(item, Err(error), stamp) => (item, stamp, Some(error)),
            Message::Ready(item, number) => {
                let error = match self.seed.duty {
                    Duty::Collect { slot } => match lock(&item.gathers[slot]).take() {
                        Ok(list) => {
                            children = list;
                            None
                        }
                        Err(fault) => Some(fault),
                    },
                    Duty::Merge => self.choose(&item, &mut inputs),
                    _ => self.match_ports(&item, &mut inputs),
                };
                let lists = matches!(self.seed.duty, Duty::Collect { .. });
                let joined = self.seed.join.is_some() && !lists;
                let at_ns = if joined { Work::<P>::JOINED } else { 0 };
                (item, Stamp { number, at_ns }, error)
            }
            Message::Gathered(work) => {
                self.outbox.recycle(inputs);
                self.backlog.push_back(*work);
                return;
            }
            Message::Retry(batch) => return self.retry(&batch),
            Message::Wake => return,
        };
        let inputs = match error {
            None => Ok(inputs),
            Some(error) => {
                self.outbox.recycle(inputs);
                Err(error)
            }
        };
        if matches!(self.seed.duty, Duty::Batch(_)) {
            // It lies in its edge until its batch leaves.
            if let [edge] = *self.seed.arrivals {
                item.cells.stamp(edge, stamp.at_ns);
            }
            self.admit_member(item, inputs);
        } else {
            let seq = match item.lineage {
                Lineage::Root => Seq::new(stamp.number),
                Lineage::Child { .. } | Lineage::Batch { .. } => item.seq(),
            };
            let since_ns = stamp.at_ns;
            self.backlog.push_back(Work { item, seq, since_ns, inputs, children, tries: 0 });
        }
    }

    /// Takes what every port of a join holds.
    fn match_ports(&self, item: &Item<P>, inputs: &mut Vec<P>) -> Option<ItemError> {
        let join = self.seed.join?;
        let mut errors = Vec::new();
        for port in 0..join.ports {
            match item.cells.take(join, port) {
                Some(Ok(payload)) => inputs.push(payload),
                Some(Err(error)) => errors.push(error),
                None => {}
            }
        }
        ItemError::join(errors)
    }

    /// Takes the payload of the lowest port that holds one, unless a port failed.
    fn choose(&self, item: &Item<P>, inputs: &mut Vec<P>) -> Option<ItemError> {
        let error = self.match_ports(item, inputs);
        if let Some(error) = error
            && (inputs.is_empty() || !error.is_filtered())
        {
            return Some(error);
        }
        while inputs.len() > 1 {
            discard(inputs.pop());
        }
        None
    }
}
