//! The left operand rounded to bytes, a scale for each block of the weights' length.

use super::layout::Code;
use crate::kernels::isa::{Isa, Kind};
use crate::kernels::round_even;

/// Numbers all of whose block are smaller than this count as zero: the inverse of their scale does
/// not fit into an f32.
const LEAST: f32 = 127.0 * f32::MIN_POSITIVE;

/// Rows of bytes with their scales.
#[derive(Debug, Default)]
pub(super) struct Activations {
    k: usize,
    block: usize,
    /// The numbers, k for each row.
    bytes: Vec<i8>,
    /// A scale for each block.
    scales: Vec<f32>,
    /// The kernel's share of what offsets and minima need: for blocks of 32 the offset times the
    /// sum of the block's bytes; for Q4_K and Q5_K the sums of 32 bytes, for Q6_K those of 16, two
    /// of them as halves of one word.
    sums: Vec<i32>,
    /// For blocks of 32: their scale times the sum of their bytes.
    moments: Vec<f32>,
}

/// One row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Row<'a> {
    pub bytes: &'a [i8],
    pub scales: &'a [f32],
    // The portable kernels have no use for these.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
    pub sums: &'a [i32],
    pub moments: &'a [f32],
}

impl Activations {
    /// Rounds rows of `k` numbers, `k` being whole blocks. A block that holds NaN or an infinity
    /// gets NaN for its scale.
    pub(super) fn round(&mut self, isa: Isa, code: Code, x: &[f32], k: usize) {
        (self.k, self.block) = (k, code.weights());
        let blocks = x.len() / self.block;
        self.bytes.resize(x.len(), 0);
        self.scales.resize(blocks, 0.0);
        self.sums.resize(blocks * sums(code), 0);
        self.moments.resize(if code.is_k() { 0 } else { blocks }, 0.0);
        let from = x.chunks_exact(self.block).zip(self.bytes.chunks_exact_mut(self.block));
        for ((x, bytes), scale) in from.zip(&mut self.scales) {
            *scale = match isa.kind() {
                Kind::Scalar => round_block(x, bytes),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: every other instruction set includes AVX2, FMA and F16C.
                _ => unsafe { super::avx2::round_block(x, bytes) },
            };
        }
        let total = |bytes: &[i8]| bytes.iter().map(|b| i32::from(*b)).sum::<i32>();
        match code {
            Code::Q4K | Code::Q5K | Code::Q6K => {
                let each = if code == Code::Q6K { 16 } else { 32 };
                for (pair, sum) in self.bytes.chunks_exact(2 * each).zip(&mut self.sums) {
                    let (a, b) = pair.split_at(each);
                    *sum = (total(a) & 0xFFFF) | (total(b) << 16);
                }
            }
            _ => {
                let offset = code.raised(isa.has_vnni());
                let blocks = self.bytes.chunks_exact(32).zip(&self.scales);
                let to = self.sums.iter_mut().zip(&mut self.moments);
                for ((bytes, scale), (sum, moment)) in blocks.zip(to) {
                    let all = total(bytes);
                    (*sum, *moment) = (offset * all, scale * all as f32);
                }
            }
        }
    }

    /// Row `i`.
    pub(super) fn row(&self, i: usize) -> Row<'_> {
        let blocks = self.k / self.block;
        let each = self.sums.len().checked_div(self.scales.len()).unwrap_or(0);
        let moments = if self.moments.is_empty() { 0 } else { blocks };
        Row {
            bytes: &self.bytes[i * self.k..][..self.k],
            scales: &self.scales[i * blocks..][..blocks],
            sums: &self.sums[i * blocks * each..][..blocks * each],
            moments: &self.moments[i * moments..][..moments],
        }
    }
}

/// Words of sums for one block.
fn sums(code: Code) -> usize {
    match code {
        Code::Q4K | Code::Q5K => 4,
        Code::Q6K => 8,
        _ => 1,
    }
}

/// The scale of a block whose largest magnitude has these bits, and its inverse.
pub(super) fn scale_of(largest: u32) -> (f32, f32) {
    let largest = f32::from_bits(largest);
    if !largest.is_finite() {
        return (f32::NAN, 0.0);
    }
    if largest < LEAST { (0.0, 0.0) } else { (largest / 127.0, 127.0 / largest) }
}

/// Rounds one block; returns its scale.
fn round_block(x: &[f32], bytes: &mut [i8]) -> f32 {
    let largest = x.iter().fold(0, |most, v| most.max(v.to_bits() & 0x7FFF_FFFF));
    let (scale, inverse) = scale_of(largest);
    if inverse == 0.0 {
        bytes.fill(0);
        return scale;
    }
    for (b, v) in bytes.iter_mut().zip(x) {
        *b = round_even(v * inverse) as i8;
    }
    scale
}
