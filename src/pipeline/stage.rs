//! A compiled segment as the stage of a device actor.

use std::sync::Arc;

use brigade_actors::{
    ErrorKind as ItemErrorKind, Factory, Firing, ItemError, Outbox, Payload, Stage,
};

use crate::device::{CompiledSegment, Instance};
use crate::error::{Error, ErrorKind};
use crate::tensor::Value;

impl Payload for Value {
    fn bytes(&self) -> usize {
        Self::bytes(self)
    }

    fn share(&self) -> Self {
        self.clone()
    }
}

struct SegmentStage {
    instance: Box<dyn Instance>,
}

impl Stage<Value> for SegmentStage {
    fn submit(&mut self, firing: Firing<Value>, out: &mut Outbox<Value>) -> Result<(), ItemError> {
        let outputs = self.instance.run(firing.inputs).map_err(ItemError::from_error)?;
        for (port, value) in outputs.into_iter().enumerate() {
            out.emit(port, value);
        }
        Ok(())
    }
}

/// Builds instances of a compiled segment, on the thread of the actor that asks.
pub(crate) fn factory(segment: Arc<dyn CompiledSegment>) -> Factory<Value> {
    Box::new(move |_| {
        let instance = segment.instance().map_err(ItemError::from_error)?;
        Ok(Box::new(SegmentStage { instance }))
    })
}

/// The error of an item as an error of this crate.
pub(crate) fn item_error(error: &ItemError) -> Error {
    let number = error.seq().map(|s| s.number());
    let mut out = match error.downcast_ref::<Error>() {
        Some(inner) => inner.clone(),
        None => {
            let kind = match error.kind() {
                ItemErrorKind::Panicked => ErrorKind::Panic,
                ItemErrorKind::Expired => ErrorKind::Deadline,
                ItemErrorKind::Shutdown | ItemErrorKind::Cancelled | ItemErrorKind::StageDown => {
                    ErrorKind::Stopped
                }
                ItemErrorKind::Dropped => ErrorKind::Full,
                _ => ErrorKind::Kernel,
            };
            Error::new(kind, error.to_string())
        }
    };
    if let Some(n) = number {
        out = out.with_item(n);
    }
    out
}
