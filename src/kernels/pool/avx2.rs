//! Pooling of one band for AVX2.

use crate::kernels::math::avx2::{max_or_nan, splat};
use crate::kernels::strip::{SLACK, Strip};
use std::arch::x86_64::*;

/// Maxima or sums of all outputs of one band, in rows of `width`.
#[target_feature(enable = "avx2,fma")]
pub(super) fn pool(s: &Strip<'_>, maximum: bool, width: usize, out: &mut [f32]) {
    let rows = out.len() / width.max(1);
    if rows == 0 || width == 0 {
        return;
    }
    let last_row = (rows - 1) * s.row_stride + (s.taps - 1) * s.row_dilation;
    let last_column = s.columns.iter().max().copied().unwrap_or(0);
    // Checks the last element that any step reads.
    let _ = &s.data[last_row * s.row..][..last_column + width - 1 + SLACK];
    for (y, line) in out.chunks_exact_mut(width).enumerate() {
        let first = s.data[y * s.row_stride * s.row..].as_ptr();
        for (x, part) in line.chunks_mut(16).enumerate() {
            // SAFETY: the strip was checked for all rows and for 16 columns from any output on.
            let sums = unsafe {
                let from = first.add(x * 16);
                if maximum { step::<true>(s, from) } else { step::<false>(s, from) }
            };
            let mut lanes = [0.0f32; 16];
            // SAFETY: there are 16 lanes.
            unsafe {
                _mm256_storeu_ps(lanes.as_mut_ptr(), sums[0]);
                _mm256_storeu_ps(lanes.as_mut_ptr().add(8), sums[1]);
            }
            part.copy_from_slice(&lanes[..part.len()]);
        }
    }
}

/// Sixteen neighbouring outputs.
///
/// # Safety
/// The strip holds 16 columns from each tap of `from` on.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn step<const MAX: bool>(s: &Strip<'_>, from: *const f32) -> [__m256; 2] {
    let mut acc = [splat(if MAX { f32::NEG_INFINITY } else { 0.0 }); 2];
    for ky in 0..s.taps {
        for column in s.columns {
            for v in 0..2 {
                // SAFETY: the caller's promise.
                let x = unsafe {
                    _mm256_loadu_ps(from.add(ky * s.row_dilation * s.row + column + v * 8))
                };
                acc[v] = if MAX { max_or_nan(acc[v], x) } else { _mm256_add_ps(acc[v], x) };
            }
        }
    }
    acc
}
