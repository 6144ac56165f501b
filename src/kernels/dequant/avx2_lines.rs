//! AVX2: weights as floats, for products that are not rounded.

use super::avx2::{
    BITS4, BITS8, IQ4_NL, MXFP4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, fifths, halves, load, low, pair,
    scales,
};
use super::layout::{Code, LANES};
use std::arch::x86_64::*;

/// Weights `first..first + 4` of eight rows, as four lines of eight floats, `stride` apart; `first`
/// is a multiple of four.
///
/// # Safety
/// The CPU has AVX2, FMA and F16C; `block` holds a block of eight rows.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn lines(code: Code, block: &[u8], first: usize, out: &mut [f32], stride: usize) {
    let (s, g) = (first / 32, first % 32 / 4);
    let p = block.as_ptr();
    // SAFETY: the caller's promises; register g of 32 weights lies within their block.
    unsafe {
        match code {
            Code::Q4_0 => short::<Q4_0>(p, g, out, stride),
            Code::Q4_1 => short::<Q4_1>(p, g, out, stride),
            Code::Q5_0 => short::<Q5_0>(p, g, out, stride),
            Code::Q5_1 => short::<Q5_1>(p, g, out, stride),
            Code::Q8_0 => short::<Q8_0>(p, g, out, stride),
            Code::Iq4Nl => short::<IQ4_NL>(p, g, out, stride),
            Code::Mxfp4 => short::<MXFP4>(p, g, out, stride),
            Code::Bits4 => short::<BITS4>(p, g, out, stride),
            Code::Bits8 => short::<BITS8>(p, g, out, stride),
            Code::Q4K | Code::Q5K => {
                let q = p.add(code.codes_at(s));
                let n = load(q.add(code.nibbles_at() + 32 * (g % 4)));
                let mut register = if g < 4 { low(n) } else { low(_mm256_srli_epi16::<4>(n)) };
                if code.has_fifth() {
                    let (a, z) = fifths(load(q), g % 4);
                    register = _mm256_or_si256(register, if g < 4 { a } else { z });
                }
                let s_bytes = _mm_loadl_epi64(p.add(32 + 8 * s).cast());
                let scale = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(s_bytes));
                // Both minima of a lane's row lie in 16 bits.
                let both = _mm_loadu_si128(p.add(96 + 16 * (s / 2)).cast());
                let both = _mm256_cvtepu16_epi32(both);
                let minimum = match s % 2 {
                    0 => _mm256_and_si256(both, _mm256_set1_epi32(0xFF)),
                    _ => _mm256_srli_epi32::<8>(both),
                };
                let scale = _mm256_mul_ps(halves(p), scale);
                let minimum = _mm256_mul_ps(halves(p.add(2 * LANES)), _mm256_cvtepi32_ps(minimum));
                each::<false>(register, 0, out, stride, |v| {
                    _mm256_sub_ps(_mm256_mul_ps(scale, v), minimum)
                });
            }
            Code::Q6K => {
                let q = p.add(code.codes_at(s));
                let n = load(q.add(64 + 32 * (g % 4)));
                let n = if g < 4 { low(n) } else { low(_mm256_srli_epi16::<4>(n)) };
                let h = load(q.add(g / 4 * 32));
                let h = match g % 4 {
                    0 => _mm256_slli_epi16::<4>(h),
                    1 => _mm256_slli_epi16::<2>(h),
                    2 => h,
                    _ => _mm256_srli_epi16::<2>(h),
                };
                let register = _mm256_or_si256(n, _mm256_and_si256(h, _mm256_set1_epi8(0x30)));
                let both = _mm_loadu_si128(p.add(16 + 16 * s).cast());
                let both = _mm256_cvtepu16_epi32(both);
                let scale = match g / 4 {
                    0 => _mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(both)),
                    _ => _mm256_srai_epi32::<24>(_mm256_slli_epi32::<16>(both)),
                };
                let scale = _mm256_mul_ps(halves(p), _mm256_cvtepi32_ps(scale));
                each::<false>(register, 32, out, stride, |v| _mm256_mul_ps(scale, v));
            }
        }
    }
}

/// # Safety
/// As for [`lines`], for register `g` of a block of 32.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn short<const C: u8>(p: *const u8, g: usize, out: &mut [f32], stride: usize) {
    // SAFETY: the caller's promises.
    unsafe {
        let (a, z) = pair::<C>(p, g % 4);
        let register = if g < 4 { a } else { z };
        let scale = scales::<C>(p);
        match C {
            Q4_1 | Q5_1 => {
                let minimum = halves(p.add(2 * LANES));
                each::<false>(register, 0, out, stride, |v| {
                    _mm256_add_ps(_mm256_mul_ps(v, scale), minimum)
                });
            }
            Q8_0 | BITS8 | IQ4_NL => {
                each::<true>(register, 0, out, stride, |v| _mm256_mul_ps(scale, v));
            }
            _ => {
                let offset = match C {
                    Q4_0 | BITS4 => 8,
                    Q5_0 => 16,
                    _ => 12,
                };
                each::<false>(register, offset, out, stride, |v| _mm256_mul_ps(scale, v));
            }
        }
    }
}

/// Byte j of every lane, less `offset`, as line j.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn each<const SIGNED: bool>(
    register: __m256i,
    offset: i32,
    out: &mut [f32],
    stride: usize,
    float: impl Fn(__m256) -> __m256,
) {
    let whole = [
        _mm256_slli_epi32::<24>(register),
        _mm256_slli_epi32::<16>(register),
        _mm256_slli_epi32::<8>(register),
        register,
    ];
    for (line, whole) in out.chunks_mut(stride.max(1)).zip(whole) {
        let v =
            if SIGNED { _mm256_srai_epi32::<24>(whole) } else { _mm256_srli_epi32::<24>(whole) };
        let v = float(_mm256_cvtepi32_ps(_mm256_sub_epi32(v, _mm256_set1_epi32(offset))));
        let line = &mut line[..LANES];
        // SAFETY: the line has eight floats.
        unsafe { _mm256_storeu_ps(line.as_mut_ptr(), v) };
    }
}
