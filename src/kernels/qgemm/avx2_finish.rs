//! Sums of products, finished on eight lanes.

use super::finish::{Grid, QEpilogue};
use crate::kernels::math::avx2::{self as math, splat};
use crate::kernels::quantize::avx2::{pack32, whole};
use crate::kernels::{Activation, Spread};
use std::arch::x86_64::*;

#[inline]
#[target_feature(enable = "avx2,fma")]
fn activate(activation: Activation, x: __m256) -> __m256 {
    match activation {
        Activation::None => x,
        Activation::Relu => math::clamp(x, splat(0.0), splat(f32::INFINITY)),
        Activation::Clip { lo, hi } => math::clamp(x, splat(lo), splat(hi)),
        Activation::HardSwish => math::hard_swish(x),
        Activation::HardSigmoid { alpha, beta } => {
            let line = _mm256_fmadd_ps(x, splat(alpha), splat(beta));
            math::clamp(line, splat(0.0), splat(1.0))
        }
        Activation::Sigmoid => math::sigmoid(x),
        Activation::Silu => _mm256_mul_ps(x, math::sigmoid(x)),
        Activation::Gelu => math::gelu(x),
        Activation::Tanh => math::tanh(x),
    }
}

/// The bytes nearest to numbers, as whole numbers.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn nearest(grid: Grid, x: __m256) -> __m256i {
    whole(x, splat(grid.scale), _mm256_set1_epi32(grid.zero))
}

/// Eight sums before they are rounded to bytes, from column j.
///
/// # Safety
/// `sums` and the slices of the epilogue hold 8 elements from there on.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn finished(e: &QEpilogue<'_>, j: usize, sums: *const i32) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        let scale = match e.scale {
            Spread::One(s) => splat(s),
            Spread::Each(s) => _mm256_loadu_ps(s.as_ptr().add(j)),
        };
        let mut x = _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_loadu_si256(sums.cast())), scale);
        if let Some(bias) = e.bias {
            x = _mm256_add_ps(x, _mm256_loadu_ps(bias.as_ptr().add(j)));
        }
        if let Some(grid) = e.grid {
            let (lo, hi) = grid.range();
            let q = nearest(grid, x);
            let q = _mm256_max_epi32(q, _mm256_set1_epi32(lo as i32));
            let q = _mm256_min_epi32(q, _mm256_set1_epi32(hi as i32));
            let q = _mm256_sub_epi32(q, _mm256_set1_epi32(grid.zero));
            x = _mm256_mul_ps(_mm256_cvtepi32_ps(q), splat(grid.scale));
        }
        if let Some(addend) = e.addend {
            x = _mm256_add_ps(x, _mm256_loadu_ps(addend.as_ptr().add(j)));
        }
        activate(e.activation, x)
    }
}

/// The rest of a row, in slices that are as long as a group of lanes.
struct Rest {
    sums: [i32; 32],
    scale: [f32; 32],
    bias: [f32; 32],
    addend: [f32; 32],
}

impl Rest {
    fn new(e: &QEpilogue<'_>, from: usize, sums: &[i32]) -> Self {
        let n = (sums.len() - from).min(32);
        let mut rest = Self { sums: [0; 32], scale: [0.0; 32], bias: [0.0; 32], addend: [0.0; 32] };
        rest.sums[..n].copy_from_slice(&sums[from..from + n]);
        for i in 0..n {
            rest.scale[i] = e.scale.at(from + i);
            rest.bias[i] = e.bias.map_or(0.0, |b| b[from + i]);
            rest.addend[i] = e.addend.map_or(0.0, |b| b[from + i]);
        }
        rest
    }

    fn epilogue<'a>(&'a self, e: &QEpilogue<'a>) -> QEpilogue<'a> {
        QEpilogue {
            scale: Spread::Each(&self.scale),
            bias: e.bias.map(|_| &self.bias[..]),
            addend: e.addend.map(|_| &self.addend[..]),
            ..*e
        }
    }
}

/// # Safety
/// The CPU has AVX2 and FMA; the slices of the epilogue are not shorter than `sums`.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn row_floats(e: &QEpilogue<'_>, sums: &[i32], out: &mut [f32]) {
    let n = sums.len().min(out.len());
    for j in (0..n / 8 * 8).step_by(8) {
        // SAFETY: 8 elements follow j.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr().add(j), finished(e, j, sums.as_ptr().add(j)));
        }
    }
    if !n.is_multiple_of(8) {
        let from = n / 8 * 8;
        let rest = Rest::new(e, from, sums);
        let mut lanes = [0.0; 8];
        // SAFETY: all of these hold 8 elements.
        unsafe {
            let x = finished(&rest.epilogue(e), 0, rest.sums.as_ptr());
            _mm256_storeu_ps(lanes.as_mut_ptr(), x);
        }
        out[from..n].copy_from_slice(&lanes[..n - from]);
    }
}

/// # Safety
/// As for [`row_floats`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn row_bytes(e: &QEpilogue<'_>, grid: Grid, sums: &[i32], out: &mut [u8]) {
    let n = sums.len().min(out.len());
    for j in (0..n / 32 * 32).step_by(32) {
        // SAFETY: 32 elements follow j.
        unsafe {
            let bytes = bytes(e, grid, j, sums.as_ptr().add(j));
            _mm256_storeu_si256(out.as_mut_ptr().add(j).cast(), bytes);
        }
    }
    if !n.is_multiple_of(32) {
        let from = n / 32 * 32;
        let rest = Rest::new(e, from, sums);
        let mut lanes = [0u8; 32];
        // SAFETY: all of these hold 32 elements.
        unsafe {
            let bytes = bytes(&rest.epilogue(e), grid, 0, rest.sums.as_ptr());
            _mm256_storeu_si256(lanes.as_mut_ptr().cast(), bytes);
        }
        out[from..n].copy_from_slice(&lanes[..n - from]);
    }
}

/// # Safety
/// As for [`finished`], for 32 elements.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn bytes(e: &QEpilogue<'_>, grid: Grid, j: usize, sums: *const i32) -> __m256i {
    let mut v = [_mm256_setzero_si256(); 4];
    for l in 0..4 {
        // SAFETY: the caller's promise.
        v[l] = nearest(grid, unsafe { finished(e, j + 8 * l, sums.add(8 * l)) });
    }
    if grid.signed { pack32::<i8>(v) } else { pack32::<u8>(v) }
}
