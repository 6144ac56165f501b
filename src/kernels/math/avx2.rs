//! The functions on eight lanes (AVX2 and FMA).

use super::poly;
use std::arch::x86_64::*;

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::kernels) fn splat(x: f32) -> __m256 {
    _mm256_set1_ps(x)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn horner<const N: usize>(z: __m256, coefficients: [f32; N]) -> __m256 {
    let mut acc = splat(coefficients[0]);
    for i in 1..N {
        acc = _mm256_fmadd_ps(acc, z, splat(coefficients[i]));
    }
    acc
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn abs(x: __m256) -> __m256 {
    _mm256_andnot_ps(splat(-0.0), x)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn copysign(magnitude: __m256, sign: __m256) -> __m256 {
    _mm256_or_ps(magnitude, _mm256_and_ps(splat(-0.0), sign))
}

/// 2^n for integers -126 ≤ n ≤ 127.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn exp2i(n: __m256i) -> __m256 {
    _mm256_castsi256_ps(_mm256_slli_epi32::<23>(_mm256_add_epi32(n, _mm256_set1_epi32(127))))
}

/// The larger of two values; NaN where either is. The maximum answers its second operand when one
/// is NaN, so `a` stays NaN by itself and the mask adds `b`.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::kernels) fn max_or_nan(a: __m256, b: __m256) -> __m256 {
    _mm256_or_ps(_mm256_max_ps(b, a), _mm256_cmp_ps::<_CMP_UNORD_Q>(b, b))
}

/// The smaller of two values; NaN where either is.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::kernels) fn min_or_nan(a: __m256, b: __m256) -> __m256 {
    _mm256_or_ps(_mm256_min_ps(b, a), _mm256_cmp_ps::<_CMP_UNORD_Q>(b, b))
}

/// x clamped to lo..=hi; NaN stays NaN, because max and min answer their second operand then.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::kernels) fn clamp(x: __m256, lo: __m256, hi: __m256) -> __m256 {
    _mm256_min_ps(hi, _mm256_max_ps(lo, x))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::kernels) fn exp(x: __m256) -> __m256 {
    let x = clamp(x, splat(-104.0), splat(89.0));
    let n = _mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(_mm256_mul_ps(
        x,
        splat(std::f32::consts::LOG2_E),
    ));
    let r = _mm256_fnmadd_ps(n, splat(poly::LN2_HI), x);
    let r = _mm256_fnmadd_ps(n, splat(poly::LN2_LO), r);
    let q = horner(r, poly::EXP);
    let p = _mm256_add_ps(splat(1.0), _mm256_fmadd_ps(_mm256_mul_ps(r, r), q, r));
    // In two steps, because 2^128 and the subnormal powers are no float factors of their own.
    let n = _mm256_cvtps_epi32(n);
    let half = _mm256_srai_epi32::<1>(n);
    let rest = _mm256_sub_epi32(n, half);
    _mm256_mul_ps(_mm256_mul_ps(p, exp2i(half)), exp2i(rest))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::kernels) fn log(x: __m256) -> __m256 {
    let subnormal = _mm256_cmp_ps::<_CMP_LT_OQ>(x, splat(f32::MIN_POSITIVE));
    let scaled = _mm256_blendv_ps(x, _mm256_mul_ps(x, splat(8_388_608.0)), subnormal);
    let bits = _mm256_castps_si256(scaled);
    // The exponent relative to √½, so that the mantissa lies in √½..√2 and ln near 1 is exact.
    let offset = _mm256_set1_epi32(0x3f35_04f3);
    let above = _mm256_sub_epi32(bits, offset);
    let n = _mm256_srai_epi32::<23>(above);
    let m = _mm256_castsi256_ps(_mm256_add_epi32(
        _mm256_and_si256(above, _mm256_set1_epi32(0x007f_ffff)),
        offset,
    ));
    let n = _mm256_sub_ps(_mm256_cvtepi32_ps(n), _mm256_and_ps(subnormal, splat(23.0)));
    let f = _mm256_sub_ps(m, splat(1.0));
    let s = _mm256_div_ps(f, _mm256_add_ps(splat(2.0), f));
    let z = _mm256_mul_ps(s, s);
    let r = _mm256_mul_ps(z, horner(z, poly::LOG));
    let half_square = _mm256_mul_ps(splat(0.5), _mm256_mul_ps(f, f));
    // n·ln2 - ((f²/2 - (s·(f²/2 + r) + n·ln2_lo)) - f)
    let inner =
        _mm256_fmadd_ps(n, splat(poly::LN2_LO), _mm256_mul_ps(s, _mm256_add_ps(half_square, r)));
    let inner = _mm256_sub_ps(_mm256_sub_ps(half_square, inner), f);
    let y = _mm256_fmsub_ps(n, splat(poly::LN2_HI), inner);
    let y =
        _mm256_blendv_ps(y, splat(f32::NEG_INFINITY), _mm256_cmp_ps::<_CMP_EQ_OQ>(x, splat(0.0)));
    let infinite = _mm256_cmp_ps::<_CMP_EQ_OQ>(x, splat(f32::INFINITY));
    let y = _mm256_blendv_ps(y, x, infinite);
    // Not (x ≥ 0): negative or NaN.
    _mm256_blendv_ps(y, splat(f32::NAN), _mm256_cmp_ps::<_CMP_NGE_UQ>(x, splat(0.0)))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::kernels) fn tanh(x: __m256) -> __m256 {
    let t = abs(x);
    let z = _mm256_mul_ps(x, x);
    let small = _mm256_fmadd_ps(_mm256_mul_ps(x, z), horner(z, poly::TANH), x);
    // 1 - 2 / (e^2t + 1)
    let e = exp(_mm256_add_ps(t, t));
    let one = splat(1.0);
    let large = _mm256_sub_ps(one, _mm256_div_ps(splat(2.0), _mm256_add_ps(e, one)));
    let is_large = _mm256_cmp_ps::<_CMP_GT_OQ>(t, splat(0.625));
    _mm256_blendv_ps(small, copysign(large, x), is_large)
}

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::kernels) fn sigmoid(x: __m256) -> __m256 {
    let e = exp(_mm256_or_ps(x, splat(-0.0)));
    let top = _mm256_blendv_ps(splat(1.0), e, x);
    _mm256_div_ps(top, _mm256_add_ps(splat(1.0), e))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::kernels) fn erf(x: __m256) -> __m256 {
    let t = abs(x);
    let z = _mm256_mul_ps(x, x);
    let small = _mm256_fmadd_ps(x, horner(z, poly::ERF), x);
    let clamped = _mm256_min_ps(splat(4.1), t);
    let tail = exp(horner(clamped, poly::LOG_ERFC));
    let large = copysign(_mm256_sub_ps(splat(1.0), tail), x);
    _mm256_blendv_ps(small, large, _mm256_cmp_ps::<_CMP_GT_OQ>(t, splat(1.0)))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::kernels) fn hard_swish(x: __m256) -> __m256 {
    let gate = _mm256_fmadd_ps(x, splat(1.0 / 6.0), splat(0.5));
    _mm256_mul_ps(x, clamp(gate, splat(0.0), splat(1.0)))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
pub(in crate::kernels) fn gelu(x: __m256) -> __m256 {
    let e = erf(_mm256_mul_ps(x, splat(std::f32::consts::FRAC_1_SQRT_2)));
    _mm256_mul_ps(_mm256_mul_ps(splat(0.5), x), _mm256_add_ps(splat(1.0), e))
}

/// The functions on whole slices; the tail goes through the same lanes as the rest.
pub(super) mod slice {
    use std::arch::x86_64::*;

    macro_rules! slice_functions {
        ($($name:ident)*) => { $(
            #[target_feature(enable = "avx2,fma")]
            pub(in crate::kernels::math) fn $name(x: &mut [f32]) {
                let mut chunks = x.chunks_exact_mut(8);
                for c in &mut chunks {
                    // SAFETY: each chunk has 8 elements.
                    unsafe {
                        let v = _mm256_loadu_ps(c.as_ptr());
                        _mm256_storeu_ps(c.as_mut_ptr(), super::$name(v));
                    }
                }
                let rest = chunks.into_remainder();
                if !rest.is_empty() {
                    let mut lanes = [0.0; 8];
                    lanes[..rest.len()].copy_from_slice(rest);
                    // SAFETY: `lanes` has 8 elements.
                    unsafe {
                        let v = _mm256_loadu_ps(lanes.as_ptr());
                        _mm256_storeu_ps(lanes.as_mut_ptr(), super::$name(v));
                    }
                    rest.copy_from_slice(&lanes[..rest.len()]);
                }
            }
        )* };
    }
    slice_functions!(exp log tanh sigmoid erf);
}
