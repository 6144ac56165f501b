//! An actor-based dataflow runtime for machine-learning inference.
//!
//! A graph is cut into per-device *segments*; each segment becomes a *device actor* that owns
//! its compiled graph; actors are joined by bounded channels that carry *boundary tensors*, so
//! that *micro-batches* stream through all devices at once.
//!
//! # Using it
//!
//! 1. **Get a graph**: [`import::load`] reads a model file, [`ops::builder::GraphBuilder`] builds
//!    one by hand.
//! 2. **Place it**: [`DeviceMap`] says which node runs where; [`partition::Plan`] is its file form.
//!    Without one, everything runs on `cpu`.
//! 3. **Run it**: [`Pipeline`] streams items through device actors; [`HeteroExecutable`] and
//!    [`compile_with`] run the same segments one after the other, and are what streaming is
//!    compared with.
//!
//! Everything that can go wrong is an [`Error`] with a [`kind`](Error::kind) and a message that
//! names the user's own thing; nothing panics. Handles are `Clone + Send + Sync` and take `&self`.
//!
//! # Extending it
//!
//! A [`Registry`] holds the operators and devices; [`extend`] is the prelude for adding some. The
//! built-in ones are rows of [`ops::TABLE`], [`device::FAMILIES`] and [`passes::PASSES`].
//!
//! # Features
//!
//! - `onnx` (default): reading ONNX models.
//! - `cli` (default): the `brigade` program.
//! - `actix` (default): the control plane of the actors and [`pipeline::FrontDoor`].
//! - `cluster`: stages on the workers of other machines, over gRPC and mutual TLS; `docs/cluster.md` is
//!   its manual.
//! - `wgpu`: the device `wgpu:0`, GPUs through Vulkan, Metal or Direct3D 12.
//! - `cuda-12` or `cuda-13`: the device `cuda:0`, GPUs of NVIDIA through the driver.

pub mod bench;
pub mod check;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(feature = "cluster")]
pub mod cluster;
pub mod device;
pub mod error;
pub mod extend;
pub mod gpu;
pub mod graph;
pub mod import;
pub mod kernels;
pub mod ops;

pub mod partition;
pub mod passes;
pub mod pipeline;
pub mod prelude;
mod registry;
pub mod tensor;

/// The actor runtime, for topologies of a program's own:
/// [`HeteroExecutable::splice`] puts models into them.
pub use brigade_actors as actors;
pub use brigade_actors::{CpuPolicy, CpuReport, System};
pub use device::DeviceId;
pub use error::{Error, ErrorKind, Result};
pub use import::{WeightCache, WeightRef};
pub use ops::{CompileOptions, Precision};
pub use partition::DeviceMap;
pub use pipeline::{CompiledGraph, HeteroExecutable, Pipeline, compile_with};
pub use registry::Registry;
pub use tensor::{DType, Shape, Tensor, Value};

/// The README's program, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;

#[cfg(all(doctest, feature = "cluster"))]
#[doc = include_str!("../docs/cluster.md")]
pub struct ClusterManual;
