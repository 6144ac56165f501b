//! The kernels for AVX2 and FMA.

use super::BLOCK;
use super::pool::PoolRow;
use crate::kernels::math::avx2::{max_or_nan, splat};
use std::arch::x86_64::*;

/// Transposes eight vectors of eight.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn transpose(r: [__m256; 8]) -> [__m256; 8] {
    let mut t = [_mm256_setzero_ps(); 8];
    for i in 0..4 {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    let mut u = [_mm256_setzero_ps(); 8];
    for h in 0..2 {
        for i in 0..2 {
            let (a, b) = (t[4 * h + i], t[4 * h + 2 + i]);
            u[4 * h + 2 * i] = _mm256_shuffle_ps::<0b01_00_01_00>(a, b);
            u[4 * h + 2 * i + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(a, b);
        }
    }
    let mut out = [_mm256_setzero_ps(); 8];
    for i in 0..4 {
        out[i] = _mm256_permute2f128_ps::<0x20>(u[i], u[4 + i]);
        out[4 + i] = _mm256_permute2f128_ps::<0x31>(u[i], u[4 + i]);
    }
    out
}

/// Eight planes of `plane` positions, side by side or blocked, into the other layout.
///
/// # Safety
/// `x` and `out` hold 8 · `plane` elements each.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn reorder<const BLOCKED: bool>(x: *const f32, plane: usize, out: *mut f32) {
    let mut p = 0;
    while p + 8 <= plane {
        let mut v = [_mm256_setzero_ps(); 8];
        for i in 0..8 {
            // SAFETY: positions p..p + 8 of all eight planes exist.
            v[i] = unsafe {
                _mm256_loadu_ps(x.add(if BLOCKED { i * plane + p } else { (p + i) * 8 }))
            };
        }
        let v = transpose(v);
        for i in 0..8 {
            // SAFETY: as above.
            unsafe {
                _mm256_storeu_ps(out.add(if BLOCKED { (p + i) * 8 } else { i * plane + p }), v[i]);
            }
        }
        p += 8;
    }
    while p < plane {
        for c in 0..8 {
            let (plain, blocked) = (c * plane + p, p * 8 + c);
            let (from, to) = if BLOCKED { (plain, blocked) } else { (blocked, plain) };
            // SAFETY: as above.
            unsafe { *out.add(to) = *x.add(from) };
        }
        p += 1;
    }
}

/// The mean of blocked positions: `scale` times their sum.
#[target_feature(enable = "avx2,fma")]
pub(super) fn mean(x: &[f32], scale: f32, out: &mut [f32]) {
    let mut sums = [_mm256_setzero_ps(); 4];
    let mut fours = x.chunks_exact(4 * BLOCK);
    for v in &mut fours {
        for i in 0..4 {
            // SAFETY: a chunk holds four vectors.
            let v = unsafe { _mm256_loadu_ps(v.as_ptr().add(i * BLOCK)) };
            sums[i] = _mm256_add_ps(sums[i], v);
        }
    }
    for (i, v) in fours.remainder().chunks_exact(BLOCK).enumerate() {
        // SAFETY: a chunk holds one vector.
        sums[i & 3] = _mm256_add_ps(sums[i & 3], unsafe { _mm256_loadu_ps(v.as_ptr()) });
    }
    let sum = _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
    let out = &mut out[..BLOCK];
    // SAFETY: the output holds one vector.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_mul_ps(sum, splat(scale))) };
}

/// Maxima or sums of one row.
#[target_feature(enable = "avx2,fma")]
pub(super) fn pool_row(job: &PoolRow<'_>, max: bool, out: &mut [f32]) {
    if max { pool_taps::<true>(job, out) } else { pool_taps::<false>(job, out) }
}

#[target_feature(enable = "avx2,fma")]
fn pool_taps<const MAX: bool>(job: &PoolRow<'_>, out: &mut [f32]) {
    let [stride, dilation, pad] = job.steps;
    let start = splat(if MAX { f32::NEG_INFINITY } else { 0.0 });
    for (x, (o, taps)) in out.chunks_exact_mut(BLOCK).zip(job.columns).enumerate() {
        let mut acc = start;
        if !taps.is_empty() {
            let first = (x * stride + taps.start * dilation - pad) * BLOCK;
            let span = (taps.len() - 1) * dilation * BLOCK + BLOCK;
            for row in job.rows {
                // Checks all taps of this row.
                let from = job.image[row + first..][..span].as_ptr();
                for t in 0..taps.len() {
                    // SAFETY: the taps were checked just above.
                    let v = unsafe { _mm256_loadu_ps(from.add(t * dilation * BLOCK)) };
                    acc = if MAX { max_or_nan(acc, v) } else { _mm256_add_ps(acc, v) };
                }
            }
        }
        // SAFETY: a chunk holds one vector.
        unsafe { _mm256_storeu_ps(o.as_mut_ptr(), acc) };
    }
}
