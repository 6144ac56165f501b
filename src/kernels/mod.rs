//! Kernels over slices and packed weights: pure functions that know no tensor and no graph.
//!
//! One folder per family, one file per architecture. Every public function checks the lengths
//! of its slices and returns [`KernelError`] when one is too short; nothing here panics or
//! reads out of bounds, whatever a safe caller passes.
//!
//! # Bit for bit
//! A kernel computes on the calling thread unless its caller passes a [`Parallel`] with more
//! threads. The order in which one output element is summed depends on the shape of the problem
//! alone, never on how the work was split, so any number of threads gives the same bits.
//!
//! # Architectures
//! [`Isa::best`] is found once per process. Packed weights remember the [`Isa`] they were packed
//! for, so that a layout never meets the wrong kernel.

mod aligned;
mod blocked;
mod blocks;
mod conv;
mod dequant;
mod epilogue;
mod error;
mod gemm;
mod isa;
pub mod math;
mod parallel;
mod peak;
mod pool;
mod qgemm;
mod quantize;
mod strip;
mod window;

pub use blocked::{
    BLOCK, BlockedConv, ConvInput, blocked_average_pool2d, blocked_conv2d,
    blocked_global_average_pool, blocked_max_pool2d, from_blocked, to_blocked,
};
pub use blocks::{BITS4, BITS8, BlockFormat, FORMATS as BLOCK_FORMATS};
pub use conv::{
    ConvEpilogue, ConvNd, PackedConv, PackedConvTranspose, conv_nd, conv_transpose2d, conv2d,
};
pub use dequant::{BlockMatrix, PackedBlocks, dequant_matmul};
pub use epilogue::{Activation, Bias, Epilogue, Residual};
pub use error::KernelError;
pub use gemm::{Lhs, MatMut, MatRef, PackedA, PackedB, PackedBf16, Partition, Rhs, gemm};
pub use isa::Isa;
pub use parallel::{Parallel, Serial, split_range};
pub use peak::{fma_burst, fma_gflops, read_gb_per_s};
pub use pool::{
    AveragePool, PoolKind, average_pool2d, global_average_pool, global_max_pool, max_pool2d,
    pool_nd,
};
pub use qgemm::{Bytes, Grid, PackedQ, QEpilogue, QMatRef, QOut, qgemm, qgemm_into};
pub use quantize::{Byte, Spread, dequantize, quantize};
pub(crate) use quantize::{quantize_one, round_even};
pub use window::Window;

#[cfg(test)]
mod testing;
