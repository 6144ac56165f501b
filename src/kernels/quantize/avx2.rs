//! Eight numbers at a time.

use super::{Byte, Spread};
use crate::kernels::math::avx2::splat;
use std::arch::x86_64::*;

/// Eight numbers as whole ones near their zero points: within ±(2^20 + 2^8) of 0.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::kernels) fn whole(x: __m256, scale: __m256, zero: __m256i) -> __m256i {
    const END: f32 = (1 << 20) as f32;
    // The maximum answers its second operand where x is NaN.
    let v = _mm256_max_ps(_mm256_div_ps(x, scale), splat(-END));
    let v = _mm256_min_ps(v, splat(END));
    _mm256_add_epi32(_mm256_cvtps_epi32(v), zero)
}

/// 32 whole numbers, saturated to bytes.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::kernels) fn pack32<Q: Byte>(v: [__m256i; 4]) -> __m256i {
    let (lo, hi) = (_mm256_packs_epi32(v[0], v[1]), _mm256_packs_epi32(v[2], v[3]));
    let bytes =
        if Q::RANGE.0 < 0.0 { _mm256_packs_epi16(lo, hi) } else { _mm256_packus_epi16(lo, hi) };
    // Packing works in halves of 128 bits.
    _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn load(s: Spread<'_>, i: usize) -> __m256 {
    match s {
        Spread::One(v) => splat(v),
        // SAFETY: the caller's promise that 8 elements follow.
        Spread::Each(v) => unsafe { _mm256_loadu_ps(v.as_ptr().add(i)) },
    }
}

/// How many of the first elements it did.
///
/// # Safety
/// The CPU has AVX2; `out` and what is spread are not shorter than `x`.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn quantize<Q: Byte>(
    x: &[f32],
    scale: Spread<'_>,
    zero: Spread<'_>,
    out: &mut [Q],
) -> usize {
    let n = x.len() / 32 * 32;
    for i in (0..n).step_by(32) {
        let mut v = [_mm256_setzero_si256(); 4];
        for l in 0..4 {
            let at = i + 8 * l;
            // SAFETY: 32 elements follow i.
            unsafe {
                let zero = _mm256_cvtps_epi32(load(zero, at));
                v[l] = whole(_mm256_loadu_ps(x.as_ptr().add(at)), load(scale, at), zero);
            }
        }
        // SAFETY: as above; a byte each.
        unsafe { _mm256_storeu_si256(out.as_mut_ptr().add(i).cast(), pack32::<Q>(v)) };
    }
    n
}

/// How many of the first elements it did.
///
/// # Safety
/// As for [`quantize`].
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn dequantize<Q: Byte>(
    x: &[Q],
    scale: Spread<'_>,
    zero: Spread<'_>,
    out: &mut [f32],
) -> usize {
    let n = x.len() / 8 * 8;
    for i in (0..n).step_by(8) {
        // SAFETY: 8 elements follow i.
        unsafe {
            let bytes = _mm_loadl_epi64(x.as_ptr().add(i).cast());
            let v = if Q::RANGE.0 < 0.0 {
                _mm256_cvtepi8_epi32(bytes)
            } else {
                _mm256_cvtepu8_epi32(bytes)
            };
            let v = _mm256_sub_ps(_mm256_cvtepi32_ps(v), load(zero, i));
            _mm256_storeu_ps(out.as_mut_ptr().add(i), _mm256_mul_ps(v, load(scale, i)));
        }
    }
    n
}
