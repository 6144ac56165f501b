//! An actor-based dataflow runtime for machine-learning inference.
//!
//! A graph is cut into per-device *segments*; each segment becomes a *device actor* that owns
//! its compiled graph; actors are joined by bounded channels that carry *boundary tensors*, so
//! that *micro-batches* stream through all devices at once.

pub mod error;
pub mod graph;
pub mod import;
pub mod kernels;
pub mod tensor;

pub use error::{Error, ErrorKind, Result};
pub use tensor::{DType, Shape, Tensor, Value};
