//! An actor-based dataflow runtime for machine-learning inference.
//!
//! A graph is cut into per-device *segments*; each segment becomes a *device actor* that owns
//! its compiled graph; actors are joined by bounded channels that carry *boundary tensors*, so
//! that *micro-batches* stream through all devices at once.

pub mod bench;
pub mod check;
#[cfg(feature = "cli")]
pub mod cli;
pub mod device;
pub mod error;
pub mod graph;
pub mod import;
pub mod kernels;
pub mod ops;

pub mod partition;
pub mod passes;
pub mod pipeline;
mod registry;
pub mod tensor;

pub use device::DeviceId;
pub use error::{Error, ErrorKind, Result};
pub use ops::CompileOptions;
pub use partition::DeviceMap;
pub use pipeline::{CompiledGraph, HeteroExecutable, Pipeline, compile_with};
pub use registry::Registry;
pub use tensor::{DType, Shape, Tensor, Value};
