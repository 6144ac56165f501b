//! The device of a worker, as the pipeline sees it.

use std::any::Any;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::hub::Hub;
use super::open::Open;
use super::state::{Desk, Input};
use crate::cluster::StageSpec;
use crate::cluster::message::FiringKey;
use crate::cluster::spec::directive;
use crate::device::{
    CompiledSegment, Delivery, Device, DeviceId, DeviceInfo, Instance, InstanceOptions,
    LinkFigures, Submitted, Support, Unavailable, run_submitted,
};
use crate::error::{Result, bail, err};
use crate::graph::{Fact, Graph, Node};
use crate::import::WeightRef;
use crate::ops::{CompileOptions, Precision};
use crate::tensor::Value;

/// Items that one actor has at its worker: enough to hide the way there and back.
const SLOTS: usize = 8;

/// How many actors may have work on one device of a worker: the worker sees to its lanes itself.
const LANES: usize = 1024;

/// Every device that workers offer, and `auto` on each.
pub(super) fn offered(hub: &Arc<Open>) -> Vec<Arc<dyn Device>> {
    let mut out: Vec<Arc<dyn Device>> = Vec::new();
    for id in hub.offered() {
        out.push(Arc::new(RemoteDevice { id, hub: Arc::clone(hub) }));
    }
    out
}

/// Gives the devices of workers by their names, whether a listing shows them or not.
pub(super) fn source(hub: &Arc<Open>) -> impl Fn(&DeviceId) -> Option<Arc<dyn Device>> + use<> {
    let hub = Arc::clone(hub);
    move |id| {
        hub.has_worker(id.worker()?)
            .then(|| Arc::new(RemoteDevice { id: id.clone(), hub: Arc::clone(&hub) }) as _)
    }
}

#[derive(Debug)]
struct RemoteDevice {
    id: DeviceId,
    hub: Arc<Open>,
}

impl Device for RemoteDevice {
    fn id(&self) -> &DeviceId {
        &self.id
    }

    fn probe(&self) -> Result<DeviceInfo, Unavailable> {
        self.hub.probe(&self.id).map_err(|reason| Unavailable { reason })
    }

    fn lanes(&self) -> usize {
        LANES
    }

    fn has_own_memory(&self) -> bool {
        true
    }

    fn memory(&self) -> Option<String> {
        Some(self.hub.memory().to_owned())
    }

    fn precisions(&self) -> &[Precision] {
        // What its own device does not compute in, the worker refuses.
        &Precision::ALL
    }

    fn reads_weights(&self) -> bool {
        true
    }

    fn supports(&self, node: &Node, facts: &[Option<Fact>]) -> Support {
        match self.supports_all(&[(node, facts.to_vec())]) {
            Ok(mut all) => {
                all.pop().unwrap_or_else(|| Support::No("its worker does not say".to_owned()))
            }
            Err(e) => Support::No(e.headline()),
        }
    }

    fn supports_all(&self, nodes: &[(&Node, Vec<Option<Fact>>)]) -> Result<Vec<Support>> {
        self.hub.supports(&self.id, &directive(&self.id), nodes)
    }

    fn link_to(&self, other: &DeviceId) -> Option<LinkFigures> {
        self.hub.link(&self.id, other)
    }

    fn compile(&self, graph: Graph, options: &CompileOptions) -> Result<Arc<dyn CompiledSegment>> {
        self.compile_with(graph, &[], options)
    }

    fn compile_with(
        &self,
        graph: Graph,
        weights: &[WeightRef],
        options: &CompileOptions,
    ) -> Result<Arc<dyn CompiledSegment>> {
        self.compile_unless(&AtomicBool::new(false), graph, weights, options)
    }

    fn compile_unless(
        &self,
        abandoned: &AtomicBool,
        graph: Graph,
        weights: &[WeightRef],
        options: &CompileOptions,
    ) -> Result<Arc<dyn CompiledSegment>> {
        let named = |e: crate::Error| e.with_device(self.id.to_string());
        let spec = StageSpec::of_segment(graph, weights, options, self.hub.roots())
            .map_err(named)?
            .device_of_worker(&self.id);
        let stage = self.hub.ship(&self.id, &spec, abandoned).map_err(named)?;
        Ok(Arc::new(RemoteSegment {
            stage,
            hub: Arc::clone(&self.hub),
            inputs: spec.inputs().into_iter().map(|(n, f)| (n.to_owned(), f.clone())).collect(),
            outputs: spec.outputs().into_iter().map(|(n, _)| n.to_owned()).collect(),
        }))
    }
}

/// A stage that was shipped.
#[derive(Debug)]
struct RemoteSegment {
    stage: u64,
    hub: Arc<Open>,
    inputs: Vec<(String, Fact)>,
    outputs: Vec<String>,
}

impl Drop for RemoteSegment {
    fn drop(&mut self) {
        self.hub.drop_stage(self.stage);
    }
}

impl CompiledSegment for RemoteSegment {
    fn inputs(&self) -> Vec<(String, Fact)> {
        self.inputs.clone()
    }

    fn outputs(&self) -> Vec<String> {
        self.outputs.clone()
    }

    fn weight_bytes(&self) -> usize {
        self.hub.weight_bytes(self.stage)
    }

    fn instance(&self, options: InstanceOptions) -> Result<Box<dyn Instance>> {
        let deliveries = (0..self.outputs.len()).map(|o| options.delivery(o)).collect();
        Ok(Box::new(RemoteInstance {
            stage: self.stage,
            hub: Arc::clone(&self.hub),
            deliveries,
            desk: Arc::new(Desk::new(options.waker)),
            computed: Vec::new(),
        }))
    }

    fn connect(&self, output: usize, to: &dyn CompiledSegment, input: usize) -> Result<()> {
        let to = to.as_any().and_then(|any| any.downcast_ref::<Self>());
        let Some(to) = to.filter(|to| Arc::ptr_eq(&to.hub, &self.hub)) else {
            bail!(Internal, "a neighbour on a worker is of another cluster");
        };
        self.hub.connect(self.stage, output, to.stage, input)
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }
}

struct RemoteInstance {
    stage: u64,
    hub: Arc<Open>,
    deliveries: Vec<Delivery>,
    desk: Arc<Desk>,
    /// Of what the last poll gave.
    computed: Vec<(u64, Duration)>,
}

impl Instance for RemoteInstance {
    fn slots(&self) -> usize {
        SLOTS
    }

    fn run(&mut self, inputs: Vec<Value>) -> Result<Vec<Value>> {
        run_submitted(self, inputs)
    }

    fn submit(&mut self, item: u64, inputs: Vec<Value>) -> Result<Submitted> {
        let input = |value: Value| match value {
            Value::Resident(r) => match r.completed::<HeldOutput>() {
                Some(Ok(_)) if r.device() == self.hub.memory() => r
                    .shared::<HeldOutput>()
                    .map(Input::Held)
                    .ok_or_else(|| err!(Internal, "{} is held by nobody", r.describe())),
                _ => Err(err!(Internal, "{} is of another device", r.describe())),
            },
            other => Ok(Input::Host(other)),
        };
        let inputs = inputs.into_iter().map(input).collect::<Result<Vec<Input>>>()?;
        self.hub.submit(self.stage, item, inputs, &self.deliveries, &self.desk)?;
        Ok(Submitted::Pending)
    }

    fn poll(&mut self, finished: &mut dyn FnMut(u64, Result<Vec<Value>>)) -> Result<()> {
        self.computed.clear();
        for (number, result, computed) in self.desk.take() {
            self.computed.extend(computed.map(|time| (number, time)));
            finished(number, result);
        }
        Ok(())
    }

    fn computed(&mut self, item: u64) -> Option<Duration> {
        self.computed.iter().find(|(number, _)| *number == item).map(|(_, time)| *time)
    }
}

/// The outputs of a firing, which its worker keeps as long as this is held.
pub(super) struct Held {
    pub(super) key: FiringKey,
    pub(super) hub: Weak<Hub>,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(hub) = self.hub.upgrade() {
            hub.let_go(self.key);
        }
    }
}

/// One of these outputs.
pub(super) struct HeldOutput {
    pub(super) held: Arc<Held>,
    pub(super) output: u32,
}

impl fmt::Debug for HeldOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeldOutput({:?}, {})", self.held.key, self.output)
    }
}
