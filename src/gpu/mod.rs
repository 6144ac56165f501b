//! What GPUs run: kernels as trees that two dialects print, and graphs as launches of them.
//!
//! A kernel is written once, in [`ir`](self): typed expressions, buffers, loops, memory of a group
//! and barriers. It is printed as WGSL and as CUDA C ([`Kernel::wgsl`], [`Kernel::cuda`]). The
//! table of operators that kernels are there for is [`TABLE`]; [`Lowered`] makes launches of a graph
//! whose extents are known. Nothing here needs a driver: devices take the launches and the text.

mod cuda;
mod families;
mod ir;
mod lower;
mod math;
mod wgsl;

pub use families::product::Tiling;
pub use ir::{Kernel, Scalar};
pub use lower::{
    InputPlace, Launch, Lowered, LoweringOptions, Operand, OutputPlace, ProductCall, Row, TABLE,
    device_scalar, extent_inputs, narrowed, refusals, row_of, supports, widened,
};
