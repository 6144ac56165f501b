//! Devices as a user registers them: they compute as the CPU does and misbehave as they are told.

#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

pub(crate) mod queued;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use brigade::device::{
    CompiledSegment, CpuDevice, Device, DeviceInfo, Instance, InstanceOptions, Support, Unavailable,
};
use brigade::graph::{Fact, Graph, Node};
use brigade::ops::OpRegistry;
use brigade::{CompileOptions, DeviceId, Error, ErrorKind, Precision, Result, Value};

/// The name of a device.
pub(crate) fn id(name: &str) -> DeviceId {
    name.parse().unwrap()
}

/// A CPU device under another name.
pub(crate) fn alias(name: &str) -> Arc<dyn Device> {
    Arc::new(CpuDevice::named(id(name), OpRegistry::default()))
}

/// What is wrong with a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// It is not there, for this reason.
    Absent(&'static str),
    /// Its compiler panics.
    CompilePanics(&'static str),
    /// No instance can be had of it, for this reason.
    NoInstance(&'static str),
    /// Making an instance panics.
    InstancePanics(&'static str),
    /// Running panics where the first element of the first input is this.
    PanicsOn(f32, &'static str),
    /// Running gives one output too few.
    ForgetsAnOutput,
}

/// A device of the user's own that refuses some operators and counts what it compiles.
#[derive(Debug)]
pub(crate) struct Custom {
    cpu: CpuDevice,
    refuses: &'static [&'static str],
    fault: Fault,
    offers: &'static [Precision],
    asked: Mutex<Vec<Precision>>,
    compiled: AtomicUsize,
    instances: Arc<AtomicUsize>,
}

impl Custom {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            cpu: CpuDevice::named(id(name), OpRegistry::default()),
            refuses: &[],
            fault: Fault::None,
            offers: &[Precision::F32],
            asked: Mutex::default(),
            compiled: AtomicUsize::new(0),
            instances: Arc::default(),
        }
    }

    pub(crate) fn refusing(mut self, ops: &'static [&'static str]) -> Self {
        self.refuses = ops;
        self
    }

    /// Offers to compute in these, and computes in f32 all the same.
    pub(crate) fn offering(mut self, precisions: &'static [Precision]) -> Self {
        self.offers = precisions;
        self
    }

    /// The precision of each segment that it was to compile, in order.
    pub(crate) fn asked(&self) -> Vec<Precision> {
        self.asked.lock().unwrap().clone()
    }

    pub(crate) fn with(mut self, fault: Fault) -> Self {
        self.fault = fault;
        self
    }

    /// How many segments were compiled so far.
    pub(crate) fn compiled(&self) -> usize {
        self.compiled.load(Ordering::SeqCst)
    }

    /// How many instances were made so far.
    pub(crate) fn instances(&self) -> usize {
        self.instances.load(Ordering::SeqCst)
    }
}

impl Device for Custom {
    fn id(&self) -> &DeviceId {
        self.cpu.id()
    }

    fn probe(&self) -> Result<DeviceInfo, Unavailable> {
        match self.fault {
            Fault::Absent(why) => Err(Unavailable { reason: why.to_owned() }),
            _ => self.cpu.probe(),
        }
    }

    fn precisions(&self) -> &[Precision] {
        self.offers
    }

    fn supports(&self, node: &Node, facts: &[Option<Fact>]) -> Support {
        if self.refuses.contains(&node.op.as_str()) {
            return Support::No(format!("it has no kernel for {}", node.op));
        }
        self.cpu.supports(node, facts)
    }

    fn compile(&self, graph: Graph, options: &CompileOptions) -> Result<Arc<dyn CompiledSegment>> {
        if let Fault::CompilePanics(why) = self.fault {
            panic!("{why}");
        }
        for node in graph.nodes() {
            assert!(!self.refuses.contains(&node.op.as_str()), "{} was refused", node.name);
        }
        self.compiled.fetch_add(1, Ordering::SeqCst);
        self.asked.lock().unwrap().push(options.precision);
        let options = CompileOptions { precision: Precision::F32, ..options.clone() };
        let inner = self.cpu.compile(graph, &options)?;
        let instances = Arc::clone(&self.instances);
        Ok(Arc::new(CustomSegment { inner, fault: self.fault, instances }))
    }
}

#[derive(Debug)]
struct CustomSegment {
    inner: Arc<dyn CompiledSegment>,
    fault: Fault,
    instances: Arc<AtomicUsize>,
}

impl CompiledSegment for CustomSegment {
    fn inputs(&self) -> Vec<(String, Fact)> {
        self.inner.inputs()
    }

    fn outputs(&self) -> Vec<String> {
        self.inner.outputs()
    }

    fn weight_bytes(&self) -> usize {
        self.inner.weight_bytes()
    }

    fn instance(&self, options: InstanceOptions) -> Result<Box<dyn Instance>> {
        match self.fault {
            Fault::NoInstance(why) => return Err(Error::new(ErrorKind::Device, why)),
            Fault::InstancePanics(why) => panic!("{why}"),
            _ => {}
        }
        self.instances.fetch_add(1, Ordering::SeqCst);
        Ok(Box::new(CustomInstance { inner: self.inner.instance(options)?, fault: self.fault }))
    }
}

struct CustomInstance {
    inner: Box<dyn Instance>,
    fault: Fault,
}

impl Instance for CustomInstance {
    fn run(&mut self, inputs: Vec<Value>) -> Result<Vec<Value>> {
        if let Fault::PanicsOn(bad, why) = self.fault
            && inputs[0].tensor()?.as_slice::<f32>()?[0] == bad
        {
            panic!("{why}");
        }
        let mut outputs = self.inner.run(inputs)?;
        if self.fault == Fault::ForgetsAnOutput {
            outputs.pop();
        }
        Ok(outputs)
    }
}
