//! A compiled segment as the stage of a device actor.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use brigade_actors::{
    ErrorKind as ItemErrorKind, Factory, Firing, ItemError, Outbox, Payload, Stage,
};

use crate::device::{CompiledSegment, DeviceId, Instance};
use crate::error::{Error, ErrorKind, Result, err};
use crate::tensor::Value;

impl Payload for Value {
    fn bytes(&self) -> usize {
        Self::bytes(self)
    }

    fn share(&self) -> Self {
        self.clone()
    }
}

/// Calls into a device, whose panics become errors.
pub(crate) fn caught<T>(
    device: &DeviceId,
    doing: &str,
    call: impl FnOnce() -> Result<T>,
) -> Result<T> {
    let words = |payload: Box<dyn Any + Send>| {
        let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
        text.or_else(|| payload.downcast_ref::<String>().cloned()).unwrap_or_default()
    };
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        Err(err!(Panic, "{doing} panicked: {}", words(payload)).with_device(device.to_string()))
    })
}

/// Checks that a device gave as many outputs as the segment has.
pub(crate) fn counted(
    device: &DeviceId,
    outputs: Vec<Value>,
    expected: usize,
) -> Result<Vec<Value>> {
    if outputs.len() == expected {
        return Ok(outputs);
    }
    Err(err!(Kernel, "the device gave {} outputs of {expected}", outputs.len())
        .with_device(device.to_string()))
}

struct SegmentStage {
    instance: Box<dyn Instance>,
    device: DeviceId,
    outputs: usize,
}

impl<P> Stage<P> for SegmentStage
where
    P: From<Value> + TryInto<Value>,
    P::Error: Display,
{
    fn submit(&mut self, firing: Firing<P>, out: &mut Outbox<P>) -> Result<(), ItemError> {
        let outputs = self
            .instance
            .run(values(firing.inputs)?)
            .and_then(|outputs| counted(&self.device, outputs, self.outputs))
            .map_err(ItemError::from_error)?;
        for (port, value) in outputs.into_iter().enumerate() {
            out.emit(port, value.into());
        }
        Ok(())
    }
}

/// What the ports of a segment were given, as values.
fn values<P>(inputs: Vec<P>) -> Result<Vec<Value>, ItemError>
where
    P: TryInto<Value>,
    P::Error: Display,
{
    let value = |(port, payload): (usize, P)| {
        payload.try_into().map_err(|e| {
            ItemError::failed(format!("input {port} of the segment is not a value: {e}"))
        })
    };
    inputs.into_iter().enumerate().map(value).collect()
}

/// So that functions between models can use `?`.
impl From<Error> for ItemError {
    fn from(error: Error) -> Self {
        Self::from_error(error)
    }
}

/// Builds instances of a compiled segment with so many outputs, on the thread of the actor that
/// asks.
pub(crate) fn factory<P>(
    segment: Arc<dyn CompiledSegment>,
    device: DeviceId,
    outputs: usize,
) -> Factory<P>
where
    P: Payload + From<Value> + TryInto<Value>,
    <P as TryInto<Value>>::Error: Display,
{
    Box::new(move |_| {
        let instance = caught(&device, "starting an instance", || segment.instance())
            .map_err(|e| ItemError::from_error(e.with_device(device.to_string())))?;
        Ok(Box::new(SegmentStage { instance, device: device.clone(), outputs }))
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
