//! The functions on sixteen lanes (AVX-512), for the ends of products: to the bit those on eight.

use super::poly;
use std::arch::x86_64::*;

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in crate::kernels) fn splat(x: f32) -> __m512 {
    _mm512_set1_ps(x)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn horner<const N: usize>(z: __m512, coefficients: [f32; N]) -> __m512 {
    let mut acc = splat(coefficients[0]);
    for i in 1..N {
        acc = _mm512_fmadd_ps(acc, z, splat(coefficients[i]));
    }
    acc
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn abs(x: __m512) -> __m512 {
    _mm512_andnot_ps(splat(-0.0), x)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn copysign(magnitude: __m512, sign: __m512) -> __m512 {
    _mm512_or_ps(magnitude, _mm512_and_ps(splat(-0.0), sign))
}

/// `large` where |x| is above `limit`, else `small`; the limit is not met by NaN.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn above(t: __m512, limit: f32, small: __m512, large: __m512) -> __m512 {
    let is_large = _mm512_cmp_ps_mask::<_CMP_GT_OQ>(t, splat(limit));
    _mm512_mask_blend_ps(is_large, small, large)
}

/// 2^n for integers -126 ≤ n ≤ 127.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn exp2i(n: __m512i) -> __m512 {
    _mm512_castsi512_ps(_mm512_slli_epi32::<23>(_mm512_add_epi32(n, _mm512_set1_epi32(127))))
}

/// x clamped to lo..=hi; NaN stays NaN, because max and min answer their second operand then.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in crate::kernels) fn clamp(x: __m512, lo: __m512, hi: __m512) -> __m512 {
    _mm512_min_ps(hi, _mm512_max_ps(lo, x))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in crate::kernels) fn exp(x: __m512) -> __m512 {
    let x = clamp(x, splat(-104.0), splat(89.0));
    let n = _mm512_mul_ps(x, splat(std::f32::consts::LOG2_E));
    let n = _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(n);
    let r = _mm512_fnmadd_ps(n, splat(poly::LN2_HI), x);
    let r = _mm512_fnmadd_ps(n, splat(poly::LN2_LO), r);
    let q = horner(r, poly::EXP);
    let p = _mm512_add_ps(splat(1.0), _mm512_fmadd_ps(_mm512_mul_ps(r, r), q, r));
    // In two steps, because 2^128 and the subnormal powers are no float factors of their own.
    let n = _mm512_cvtps_epi32(n);
    let half = _mm512_srai_epi32::<1>(n);
    let rest = _mm512_sub_epi32(n, half);
    _mm512_mul_ps(_mm512_mul_ps(p, exp2i(half)), exp2i(rest))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in crate::kernels) fn tanh(x: __m512) -> __m512 {
    let t = abs(x);
    let z = _mm512_mul_ps(x, x);
    let small = _mm512_fmadd_ps(_mm512_mul_ps(x, z), horner(z, poly::TANH), x);
    // 1 - 2 / (e^2t + 1)
    let e = exp(_mm512_add_ps(t, t));
    let one = splat(1.0);
    let large = _mm512_sub_ps(one, _mm512_div_ps(splat(2.0), _mm512_add_ps(e, one)));
    above(t, 0.625, small, copysign(large, x))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in crate::kernels) fn sigmoid(x: __m512) -> __m512 {
    let e = exp(_mm512_or_ps(x, splat(-0.0)));
    let negative = _mm512_movepi32_mask(_mm512_castps_si512(x));
    let top = _mm512_mask_blend_ps(negative, splat(1.0), e);
    _mm512_div_ps(top, _mm512_add_ps(splat(1.0), e))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn erf(x: __m512) -> __m512 {
    let t = abs(x);
    let z = _mm512_mul_ps(x, x);
    let small = _mm512_fmadd_ps(x, horner(z, poly::ERF), x);
    let clamped = _mm512_min_ps(splat(4.1), t);
    let tail = exp(horner(clamped, poly::LOG_ERFC));
    let large = copysign(_mm512_sub_ps(splat(1.0), tail), x);
    above(t, 1.0, small, large)
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in crate::kernels) fn hard_swish(x: __m512) -> __m512 {
    let gate = _mm512_fmadd_ps(x, splat(1.0 / 6.0), splat(0.5));
    _mm512_mul_ps(x, clamp(gate, splat(0.0), splat(1.0)))
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(in crate::kernels) fn gelu(x: __m512) -> __m512 {
    let e = erf(_mm512_mul_ps(x, splat(std::f32::consts::FRAC_1_SQRT_2)));
    _mm512_mul_ps(_mm512_mul_ps(splat(0.5), x), _mm512_add_ps(splat(1.0), e))
}
