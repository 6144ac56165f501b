//! A compiled segment as the stage of a device actor.

use std::any::Any;
use std::fmt::Display;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::{Wake, Waker};

use brigade_actors::{
    ErrorKind as ItemErrorKind, Factory, Firing, ItemError, Outbox, Payload, Seq, Stage, StageWaker,
};

use crate::device::{CompiledSegment, Delivery, DeviceId, Instance, InstanceOptions, Submitted};
use crate::error::{Error, ErrorKind, Result, err};
use crate::partition::{Segmentation, Target};
use crate::tensor::Value;

impl Payload for Value {
    fn bytes(&self) -> usize {
        Self::bytes(self)
    }

    fn share(&self) -> Self {
        self.clone()
    }

    fn ready(&self) -> bool {
        match self {
            Self::Resident(r) => r.ready().is_done(),
            _ => true,
        }
    }
}

/// Where each output of each segment is needed: in its device's memory only where somebody there
/// reads it, and on the host where anybody else does.
pub(crate) fn deliveries(
    split: &Segmentation,
    memories: &[Option<Arc<str>>],
) -> Vec<Vec<Delivery>> {
    let of = |segment: usize, output: usize| {
        if memories[segment].is_none() {
            return Delivery::Host;
        }
        let stays = |target: &Target| match target {
            Target::Segment { index, .. } => memories[*index] == memories[segment],
            Target::Output(_) => false,
        };
        let targets = split.output_targets(segment, output);
        match (targets.iter().any(stays), targets.iter().all(stays)) {
            (_, true) => Delivery::Device,
            (true, false) => Delivery::Both,
            (false, false) => Delivery::Host,
        }
    };
    let segments = split.segments().iter();
    segments.map(|s| (0..s.graph.outputs().len()).map(|o| of(s.index, o)).collect()).collect()
}

/// The inputs of a segment as its device takes them: what lies in the memory of another device is
/// replaced by its copy on the host.
pub(crate) fn local(
    device: &DeviceId,
    memory: Option<&str>,
    mut inputs: Vec<Value>,
) -> Result<Vec<Value>> {
    for value in &mut inputs {
        let Value::Resident(r) = value else { continue };
        if memory == Some(r.device()) {
            continue;
        }
        let Some(copy) = r.host() else {
            return Err(err!(Internal, "{} has no copy on the host", r.describe())
                .with_device(device.to_string()));
        };
        *value = copy.clone().into();
    }
    Ok(inputs)
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

/// A value as an output of the graph: its copy on the host where it also stays on a device.
pub(crate) fn on_host(value: Value) -> Value {
    match value {
        Value::Resident(r) => match r.host() {
            Some(copy) => copy.clone().into(),
            None => Value::Resident(r),
        },
        other => other,
    }
}

/// Checks that a device gave as many outputs as the segment has, each where it is needed.
pub(crate) fn checked(
    device: &DeviceId,
    memory: Option<&str>,
    mut outputs: Vec<Value>,
    needed: &[Delivery],
) -> Result<Vec<Value>> {
    if outputs.len() != needed.len() {
        return Err(err!(Kernel, "the device gave {} outputs of {}", outputs.len(), needed.len())
            .with_device(device.to_string()));
    }
    for (i, (value, needed)) in outputs.iter_mut().zip(needed).enumerate() {
        let Value::Resident(r) = value else { continue };
        if *needed == Delivery::Host || memory != Some(r.device()) {
            let Some(copy) = r.host().cloned() else {
                let words = r.describe();
                return Err(err!(Kernel, "output {i} is {words} and needed on the host")
                    .with_device(device.to_string()));
            };
            *value = copy.into();
        } else if *needed == Delivery::Both && r.host().is_none() {
            let words = r.describe();
            return Err(err!(Kernel, "output {i} is {words} and needed on the host, too")
                .with_device(device.to_string()));
        }
    }
    Ok(outputs)
}

/// An item that an instance works on.
struct Open {
    number: u64,
    seq: Seq,
}

struct SegmentStage {
    instance: Box<dyn Instance>,
    device: DeviceId,
    /// Where its device keeps tensors.
    memory: Option<Arc<str>>,
    /// How many values the segment reads: without any, what starts it is dropped.
    inputs: usize,
    outputs: Vec<Delivery>,
    /// The number that the next item gets here. The numbers of items are not enough: one item may
    /// come several times.
    next: u64,
    open: Vec<Open>,
    /// Those that a poll gave, by both numbers; kept for its memory.
    polled: Vec<Open>,
}

impl<P> Stage<P> for SegmentStage
where
    P: From<Value> + TryInto<Value>,
    P::Error: Display,
{
    fn slots(&self) -> usize {
        self.instance.slots()
    }

    fn submit(&mut self, firing: Firing<P>, out: &mut Outbox<P>) -> Result<(), ItemError> {
        let number = self.next;
        let mut given = firing.inputs;
        given.truncate(self.inputs);
        let submitted = local(&self.device, self.memory.as_deref(), values(given)?)
            .and_then(|inputs| self.instance.submit(number, inputs))
            .and_then(|submitted| match submitted {
                Submitted::Done(outputs) => {
                    checked(&self.device, self.memory.as_deref(), outputs, &self.outputs)
                        .map(Submitted::Done)
                }
                Submitted::Pending => Ok(Submitted::Pending),
            })
            .map_err(ItemError::from_error)?;
        match submitted {
            Submitted::Done(outputs) => {
                let mut outputs: Vec<P> = outputs.into_iter().map(P::from).collect();
                for (port, payload) in outputs.drain(..).enumerate() {
                    out.emit(port, payload);
                }
                out.recycle(outputs);
            }
            Submitted::Pending => {
                self.next = self.next.wrapping_add(1);
                self.open.push(Open { number, seq: firing.seq });
                out.defer();
            }
        }
        Ok(())
    }

    fn poll(&mut self, out: &mut Outbox<P>) -> Result<(), ItemError> {
        let Self { instance, device, memory, outputs: needed, open, polled: given, .. } = self;
        given.clear();
        let polled = instance.poll(&mut |number, result| {
            let Some(at) = open.iter().position(|o| o.number == number) else { return };
            let one = open.swap_remove(at);
            let seq = one.seq;
            given.push(one);
            let memory = memory.as_deref();
            match result.and_then(|outputs| checked(device, memory, outputs, needed)) {
                Ok(outputs) if outputs.is_empty() => out.finish(seq),
                Ok(outputs) => {
                    for (port, value) in outputs.into_iter().enumerate() {
                        out.emit_for(seq, port, value.into());
                    }
                }
                Err(e) => out.fail(seq, ItemError::from_error(e)),
            }
        });
        if polled.is_err() {
            open.clear();
        }
        for one in given.drain(..) {
            if let Some(time) = instance.computed(one.number) {
                out.computed_for(one.seq, time);
            }
        }
        polled.map_err(ItemError::from_error)
    }

    fn cancel(&mut self, seq: Seq, _out: &mut Outbox<P>) {
        for open in self.open.iter().filter(|o| o.seq == seq) {
            self.instance.cancel(open.number);
        }
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

/// The waker of an actor as the standard library's.
struct ActorWaker(StageWaker);

impl Wake for ActorWaker {
    fn wake(self: Arc<Self>) {
        self.0.wake();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake();
    }
}

/// Builds instances of a compiled segment that reads so many values and whose outputs are needed
/// there, on the thread of the actor that asks.
pub(crate) fn factory<P>(
    segment: Arc<dyn CompiledSegment>,
    device: DeviceId,
    memory: Option<Arc<str>>,
    inputs: usize,
    outputs: Vec<Delivery>,
) -> Factory<P>
where
    P: Payload + From<Value> + TryInto<Value>,
    <P as TryInto<Value>>::Error: Display,
{
    Box::new(move |context| {
        let options = InstanceOptions {
            waker: Waker::from(Arc::new(ActorWaker(context.waker))),
            outputs: outputs.clone(),
            threads: (context.threads > 0).then_some(context.threads),
        };
        let instance = caught(&device, "starting an instance", || segment.instance(options))
            .map_err(|e| ItemError::from_error(e.with_device(device.to_string())))?;
        Ok(Box::new(SegmentStage {
            instance,
            device: device.clone(),
            memory: memory.clone(),
            inputs,
            outputs: outputs.clone(),
            next: 0,
            open: Vec::new(),
            polled: Vec::new(),
        }))
    })
}

/// The words of an error without the number of its item, which the error of this crate names in a
/// place of its own.
fn without_item(error: &ItemError) -> String {
    let text = error.to_string();
    let Some(seq) = error.seq() else { return text };
    let rest = text.strip_prefix(&format!("item {seq}"));
    let rest = rest.and_then(|r| r.strip_prefix(" at ").or_else(|| r.strip_prefix(": ")));
    rest.map_or_else(|| text.clone(), str::to_owned)
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
            Error::new(kind, without_item(error))
        }
    };
    if let Some(n) = number {
        out = out.with_item(n);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_its_item_once() {
        use brigade_actors::{Options, Pipeline, Topology};
        let mut builder = Topology::<Value>::builder();
        let x = builder.source("x");
        let actor = builder.map("fragile", "host", |_| Err(ItemError::failed("it broke")));
        let y = builder.sink("y");
        builder.connect(x, actor.input(0)).connect(actor.output(0), y);
        let pipeline = Pipeline::spawn(builder.build().unwrap(), Options::new()).unwrap();
        let one = vec![Value::from(crate::Tensor::scalar(1_i64))];
        let error = pipeline.push(one).unwrap().wait().unwrap_err();
        let text = item_error(&error).to_string();
        assert_eq!(text, "actor `fragile`: it broke [item 0]");
    }
}
