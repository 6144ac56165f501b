//! Devices: what compiles and runs a graph.
//!
//! [`FAMILIES`] is the one list of the devices that are built in; a user adds more to a
//! [`Registry`](crate::Registry).

mod cpu;
mod id;
mod synthetic;

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::graph::{Fact, Graph, Node};
use crate::ops::{CompileOptions, OpRegistry};
use crate::tensor::Value;

pub use cpu::CpuDevice;
pub use id::DeviceId;
pub use synthetic::SyntheticDevice;

/// A kind of device that is built in.
#[derive(Debug)]
pub struct Family {
    /// The kind, the first part of a device's name.
    pub kind: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
    /// Opens the device with this number.
    pub open: fn(u32, &OpRegistry) -> Result<Arc<dyn Device>>,
    /// The numbers that a listing shows.
    pub list: fn() -> Vec<u32>,
}

/// Every kind of device that is built in.
pub static FAMILIES: &[Family] = &[Family {
    kind: "cpu",
    summary: "this machine's CPU; each number is one more device with threads of its own",
    open: |n, ops| Ok(Arc::new(CpuDevice::new(n, ops.clone()))),
    list: || vec![0],
}];

/// Something that compiles and runs graphs.
pub trait Device: Send + Sync + fmt::Debug {
    /// The name.
    fn id(&self) -> &DeviceId;

    /// What the device is; never panics, and does not need the device to be there.
    ///
    /// # Errors
    /// Why it cannot be used here.
    fn probe(&self) -> Result<DeviceInfo, Unavailable>;

    /// How many actors may compute on it at once.
    fn lanes(&self) -> usize {
        1
    }

    /// Whether it can run a node whose inputs have these facts (`None`: left out).
    fn supports(&self, node: &Node, facts: &[Option<Fact>]) -> Support;

    /// Compiles a graph, all of whose parameters are bound.
    ///
    /// # Errors
    /// If a node cannot be run here; names it.
    fn compile(&self, graph: Graph, options: &CompileOptions) -> Result<Arc<dyn CompiledSegment>>;
}

/// Whether a device can run a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// It can.
    Yes,
    /// It can, with less range or precision than the graph asks for; why.
    Narrowed(String),
    /// It cannot; why.
    No(String),
}

impl Support {
    /// Whether it can, perhaps narrowed.
    pub fn is_supported(&self) -> bool {
        !matches!(self, Self::No(_))
    }
}

/// What a device is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceInfo {
    /// The name of the product.
    pub name: String,
    /// Its features, such as instruction sets.
    pub features: Vec<String>,
    /// Cores that it has.
    pub cores: usize,
    /// Memory in bytes, if known.
    pub memory_bytes: Option<u64>,
    /// How many actors may compute on it at once.
    pub lanes: usize,
}

/// Why a device cannot be used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unavailable {
    /// The reason.
    pub reason: String,
}

impl fmt::Display for Unavailable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.reason)
    }
}

impl std::error::Error for Unavailable {}

impl Unavailable {
    /// The error for a device that was named and is not there.
    pub fn into_error(self, id: &DeviceId) -> Error {
        Error::new(ErrorKind::Device, format!("device `{id}` is not available: {}", self.reason))
            .with_help("`brigade devices` lists those that are")
    }
}

/// A graph compiled for one device. Weights live here and are shared by all instances.
pub trait CompiledSegment: Send + Sync + fmt::Debug {
    /// The inputs' names and facts, in order.
    fn inputs(&self) -> Vec<(String, Fact)>;

    /// The outputs' names, in order.
    fn outputs(&self) -> Vec<String>;

    /// Bytes of weights that it holds.
    fn weight_bytes(&self) -> usize;

    /// Working state for one actor. It is made and used on that actor's thread, so it need not be
    /// `Send`.
    ///
    /// # Errors
    /// If threads or memory cannot be had.
    fn instance(&self) -> Result<Box<dyn Instance>>;
}

/// The working state of one actor on a compiled segment.
pub trait Instance {
    /// How many items it can work on at once.
    fn slots(&self) -> usize {
        1
    }

    /// Computes one item, inputs in the segment's order.
    ///
    /// # Errors
    /// If the inputs are not what was declared, or a kernel fails; names the node.
    fn run(&mut self, inputs: Vec<Value>) -> Result<Vec<Value>>;

    /// As [`Self::run`]; `observe` sees the name, operator and outputs of each node. A device that
    /// cannot look inside runs without it.
    ///
    /// # Errors
    /// As [`Self::run`].
    fn run_observed(
        &mut self,
        inputs: Vec<Value>,
        observe: &mut dyn FnMut(&str, &str, &[Value]),
    ) -> Result<Vec<Value>> {
        let _ = observe;
        self.run(inputs)
    }
}
