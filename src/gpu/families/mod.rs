//! The kernels: each a function that writes one down for its parameters.

pub(super) mod convolution;
pub(super) mod elementwise;
pub(super) mod movement;
pub(super) mod pool;
pub(super) mod product;
pub(super) mod quantized;
pub(super) mod rows;

/// Threads of a group of the kernels over a flat range.
pub(super) const FLAT: u32 = 64;

/// Most axes of a tensor, after neighbouring ones that lie as one are joined.
pub(super) const AXES: usize = 8;
