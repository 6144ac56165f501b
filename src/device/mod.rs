//! Devices: what compiles and runs a graph.
//!
//! [`FAMILIES`] is the one list of the devices that are built in; a user adds more to a
//! [`Registry`](crate::Registry).

mod cpu;
#[cfg(feature = "_cuda")]
mod cuda;
#[cfg(any(feature = "wgpu", feature = "_cuda"))]
mod gpu;
mod id;
mod instance;
mod limits;
mod link;
mod synthetic;
#[cfg(feature = "wgpu")]
mod wgpu;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::Serialize;

use crate::error::{Error, ErrorKind, Result};
use crate::graph::{Fact, Graph, Node};
use crate::import::WeightRef;
use crate::ops::{CompileOptions, OpRegistry, SegmentProfile, listed_precisions};

#[cfg(feature = "wgpu")]
pub use self::wgpu::WgpuDevice;
pub use crate::ops::Precision;
pub use cpu::CpuDevice;
#[cfg(feature = "_cuda")]
pub use cuda::{CudaDevice, CudaKernels, capability as cuda_capability};
pub use id::DeviceId;
pub use instance::{Delivery, Instance, InstanceOptions, Submitted, run_submitted, thread_waker};
pub use limits::{MAX_DEVICE_NUMBER, MAX_IN_FLIGHT, MAX_REPLICAS, MAX_THREADS};
pub(crate) use limits::{check_in_flight, check_replicas, check_threads};
pub use link::LinkFigures;
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
pub static FAMILIES: &[Family] = &[
    Family {
        kind: "cpu",
        summary: "this machine's CPU; each number is one more device with threads of its own",
        open: |n, ops| Ok(Arc::new(CpuDevice::new(n, ops.clone()))),
        list: || vec![0],
    },
    #[cfg(feature = "wgpu")]
    Family {
        kind: "wgpu",
        summary: "GPUs through Vulkan, Metal or Direct3D 12: f32, what it lacks falls back",
        open: |n, ops| Ok(Arc::new(WgpuDevice::new(n, ops.clone())?)),
        list: || vec![0],
    },
    #[cfg(feature = "_cuda")]
    Family {
        kind: "cuda",
        summary: "GPUs of NVIDIA through its driver: f32, what it lacks falls back",
        open: |n, ops| Ok(Arc::new(CudaDevice::new(n, ops.clone())?)),
        list: CudaDevice::numbers,
    },
];

/// Kinds of devices that this build leaves out, and the feature that brings them.
pub static LEFT_OUT: &[(&str, &str)] = &[
    #[cfg(not(feature = "wgpu"))]
    ("wgpu", "wgpu"),
    #[cfg(not(feature = "_cuda"))]
    ("cuda", "cuda-12"),
];

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

    /// Whether it has memory of its own, so that its segments hand tensors over where they lie
    /// ([`Value::Resident`](crate::Value::Resident)). A device without takes and gives tensors on
    /// the host only.
    fn has_own_memory(&self) -> bool {
        false
    }

    /// What it computes products in; the first is what it does unless told. Whoever places a graph on
    /// it refuses all others ([`check_precision`]), so that [`compile`](Self::compile) gets none of
    /// them in [`CompileOptions::precision`].
    fn precisions(&self) -> &[Precision] {
        &[Precision::F32]
    }

    /// The name of that memory, which [`Resident::device`](crate::tensor::Resident::device) of its
    /// tensors gives. Devices that name the same one hand tensors over to each other.
    fn memory(&self) -> Option<String> {
        self.has_own_memory().then(|| self.id().to_string())
    }

    /// As [`compile`](Self::compile), for a device that reads weights itself: `weights` has those
    /// parameters that are bound to a reference and not to a tensor.
    ///
    /// # Errors
    /// As [`compile`](Self::compile).
    fn compile_with(
        &self,
        graph: Graph,
        weights: &[WeightRef],
        options: &CompileOptions,
    ) -> Result<Arc<dyn CompiledSegment>> {
        match weights.first() {
            None => self.compile(graph, options),
            Some(weight) => Err(Error::new(
                ErrorKind::Internal,
                format!("parameter `{}` was not loaded", weight.name),
            )),
        }
    }

    /// As [`compile_with`](Self::compile_with), while other segments are compiled elsewhere: a device that
    /// only waits for somebody gives up once nobody wants the segment any more, since another one could
    /// not be compiled.
    ///
    /// # Errors
    /// As [`compile`](Self::compile), and when it is abandoned.
    fn compile_unless(
        &self,
        abandoned: &AtomicBool,
        graph: Graph,
        weights: &[WeightRef],
        options: &CompileOptions,
    ) -> Result<Arc<dyn CompiledSegment>> {
        let _ = abandoned;
        self.compile_with(graph, weights, options)
    }

    /// Whether it reads the weights of its segments itself, where it is.
    fn reads_weights(&self) -> bool {
        false
    }

    /// Whether it can run a node whose inputs have these facts (`None`: left out).
    fn supports(&self, node: &Node, facts: &[Option<Fact>]) -> Support;

    /// Whether it can run each of these nodes, whose inputs have these facts: what
    /// [`supports`](Self::supports) says of each. A device that has to ask somebody asks for all of
    /// them at once.
    ///
    /// # Errors
    /// If that cannot be found out, which says nothing about the nodes.
    fn supports_all(&self, nodes: &[(&Node, Vec<Option<Fact>>)]) -> Result<Vec<Support>> {
        Ok(nodes.iter().map(|(node, facts)| self.supports(node, facts)).collect())
    }

    /// As [`supports_all`](Self::supports_all), of the nodes of a graph in order: for a device to which
    /// a node and the facts of its inputs do not tell everything, such as where indices come from.
    ///
    /// # Errors
    /// As [`supports_all`](Self::supports_all).
    fn supports_graph(
        &self,
        graph: &Graph,
        nodes: &[(&Node, Vec<Option<Fact>>)],
    ) -> Result<Vec<Support>> {
        let _ = graph;
        self.supports_all(nodes)
    }

    /// What the way between its memory and that of another device takes, where that is worth
    /// reckoning with and known, or can be measured now: a network, a bus. Placements that balance
    /// stages cut where it carries what has to cross.
    fn link_to(&self, other: &DeviceId) -> Option<LinkFigures> {
        let _ = other;
        None
    }

    /// Compiles a graph, all of whose parameters are bound.
    ///
    /// # Errors
    /// If a node cannot be run here; names it.
    fn compile(&self, graph: Graph, options: &CompileOptions) -> Result<Arc<dyn CompiledSegment>>;
}

/// Checks that a device computes products in this precision.
///
/// # Errors
/// If it does not: names the device, the precision and what it offers.
pub fn check_precision(device: &dyn Device, precision: Precision) -> Result<()> {
    let offered = device.precisions();
    if offered.contains(&precision) {
        return Ok(());
    }
    let id = device.id();
    Err(Error::new(
        ErrorKind::Unsupported,
        format!("device `{id}` does not compute in {precision}"),
    )
    .with_help(format!("it offers {}", listed_precisions(offered))))
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
    /// Cores that it has, if known.
    pub cores: Option<usize>,
    /// Memory in bytes, if known.
    pub memory_bytes: Option<u64>,
    /// How many actors may compute on it at once.
    pub lanes: usize,
    /// Whether it is a program on the CPU that stands in for another device, such as a software
    /// Vulkan driver: right, but slower than the CPU device.
    pub software: bool,
}

impl DeviceInfo {
    /// The order in which devices of these kinds are worth using where nobody says: accelerators
    /// first, then the CPU, then programs on the CPU that stand in for an accelerator.
    ///
    /// ```
    /// use brigade::Registry;
    /// let cpu = Registry::default().device(&"cpu".parse()?)?.probe().unwrap();
    /// assert_eq!(cpu.rank("cpu"), 1);
    /// assert_eq!(brigade::device::DeviceInfo { software: true, ..cpu }.rank("wgpu"), 2);
    /// # Ok::<(), brigade::Error>(())
    /// ```
    pub fn rank(&self, kind: &str) -> u8 {
        match (self.software, kind) {
            (true, _) => 2,
            (false, "cpu") => 1,
            _ => 0,
        }
    }
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
        let help = match id.worker() {
            None => "`brigade devices` lists those that are".to_owned(),
            Some(worker) => format!("see what the worker `{worker}` says where it runs"),
        };
        Error::new(ErrorKind::Device, format!("device `{id}` is not available: {}", self.reason))
            .with_help(help)
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
    fn instance(&self, options: InstanceOptions) -> Result<Box<dyn Instance>>;

    /// Makes the way for an output to an input of a neighbour that shares its memory. Called once
    /// for each such edge, before any instance is made.
    ///
    /// # Errors
    /// If there is no way, or the two sides do not agree on what goes there.
    fn connect(&self, output: usize, to: &dyn CompiledSegment, input: usize) -> Result<()> {
        let _ = (output, to, input);
        Ok(())
    }

    /// The segment behind the trait, for devices to know their own.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }

    /// What its instances did, node by node; `None` unless it was compiled with
    /// [`CompileOptions::profile`], and from a device that does not look inside.
    fn profile(&self) -> Option<SegmentProfile> {
        None
    }
}
