//! AVX2: weights as floats, for products that are not rounded.

use super::avx2::{
    BITS4, BITS8, IQ4_NL, MXFP4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, fifths, halves, load, low, pair,
    scales,
};
use super::layout::{Code, LANES};
use std::arch::x86_64::*;
use std::ops::Range;

const Q4_K: u8 = Code::Q4K as u8;
const Q5_K: u8 = Code::Q5K as u8;
const Q6_K: u8 = Code::Q6K as u8;

/// Groups of eight rows whose sums are made side by side, to hide the latency of each.
pub(super) const GROUPS: usize = 4;

macro_rules! by_code {
    ($code:expr, $f:ident ( $($arg:expr),* )) => {
        match $code {
            Code::Q4_0 => $f::<Q4_0>($($arg),*),
            Code::Q4_1 => $f::<Q4_1>($($arg),*),
            Code::Q5_0 => $f::<Q5_0>($($arg),*),
            Code::Q5_1 => $f::<Q5_1>($($arg),*),
            Code::Q8_0 => $f::<Q8_0>($($arg),*),
            Code::Iq4Nl => $f::<IQ4_NL>($($arg),*),
            Code::Mxfp4 => $f::<MXFP4>($($arg),*),
            Code::Bits4 => $f::<BITS4>($($arg),*),
            Code::Bits8 => $f::<BITS8>($($arg),*),
            Code::Q4K => $f::<Q4_K>($($arg),*),
            Code::Q5K => $f::<Q5_K>($($arg),*),
            Code::Q6K => $f::<Q6_K>($($arg),*),
        }
    };
}

/// Weights `ks` of a group of eight rows, as lines of eight floats, `stride` apart; both ends are
/// multiples of four.
///
/// # Safety
/// The CPU has AVX2, FMA and F16C; `group` is whole blocks that hold these weights, and `out` is
/// valid for the lines.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn lines(
    code: Code,
    group: &[u8],
    ks: Range<usize>,
    out: *mut f32,
    stride: usize,
) {
    // SAFETY: the caller's promises.
    unsafe { by_code!(code, lines_of(group.as_ptr(), ks, out, stride)) }
}

/// # Safety
/// As for [`lines`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn lines_of<const C: u8>(group: *const u8, ks: Range<usize>, out: *mut f32, stride: usize) {
    let code = const { code_of(C) };
    let (mut k, mut to) = (ks.start, out);
    // SAFETY: the caller's promises.
    unsafe {
        while k < ks.end {
            let p = group.add(k / code.weights() * code.bytes());
            let s = k % code.weights() / 32;
            if k.is_multiple_of(32) && k + 32 <= ks.end {
                let (first, second) = (unit::<C>(p, s, 0), unit::<C>(p, s, 1));
                for v in 0..4 {
                    let (a, z) = registers::<C>(p, s, v);
                    store(floats::<C>(a, first), to.add(4 * v * stride), stride);
                    store(floats::<C>(z, second), to.add((4 * v + 16) * stride), stride);
                }
                (k, to) = (k + 32, to.wrapping_add(32 * stride));
            } else {
                let g = k % 32 / 4;
                let four = floats::<C>(register::<C>(p, s, g), unit::<C>(p, s, g / 4));
                store(four, to, stride);
                (k, to) = (k + 4, to.wrapping_add(4 * stride));
            }
        }
    }
}

/// # Safety
/// `to` is valid for four lines of eight floats, `stride` apart.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn store(four: [__m256; 4], to: *mut f32, stride: usize) {
    for j in 0..4 {
        // SAFETY: the caller's promise.
        unsafe { _mm256_storeu_ps(to.add(j * stride), four[j]) };
    }
}

/// The products of up to [`GROUPS`] groups of eight rows of weights with one row of numbers, each
/// sum one chain of multiply-adds in the order of the weights.
///
/// # Safety
/// The CPU has AVX2, FMA and F16C; `weights` are whole groups of `group` bytes, each of whole
/// blocks, and `x` is as long as their rows.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn groups(
    code: Code,
    weights: &[u8],
    group: usize,
    x: &[f32],
    out: &mut [[f32; LANES]; GROUPS],
) {
    // SAFETY: the caller's promises.
    unsafe {
        match weights.len() / group.max(1) {
            GROUPS => by_code!(code, chains_of_four(weights, group, x, out)),
            n => {
                for i in 0..n {
                    let own = &weights[i * group..][..group];
                    by_code!(code, chain(own, group, x, &mut out[i..]));
                }
            }
        }
    }
}

/// # Safety
/// As for [`groups`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn chains_of_four<const C: u8>(
    weights: &[u8],
    group: usize,
    x: &[f32],
    out: &mut [[f32; LANES]],
) {
    // SAFETY: the caller's promises.
    unsafe { chains::<C, GROUPS>(weights, group, x, out) }
}

/// # Safety
/// As for [`groups`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn chain<const C: u8>(weights: &[u8], group: usize, x: &[f32], out: &mut [[f32; LANES]]) {
    // SAFETY: the caller's promises.
    unsafe { chains::<C, 1>(weights, group, x, out) }
}

/// # Safety
/// As for [`groups`], of which there are G.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn chains<const C: u8, const G: usize>(
    weights: &[u8],
    group: usize,
    x: &[f32],
    out: &mut [[f32; LANES]],
) {
    let code = const { code_of(C) };
    let mut acc = [_mm256_setzero_ps(); G];
    // SAFETY: the caller's promises.
    unsafe {
        for b in 0..group / code.bytes() {
            let p = weights.as_ptr().add(b * code.bytes());
            let x = x.as_ptr().add(b * code.weights());
            for s in 0..code.weights() / 32 {
                for half in 0..2 {
                    let mut units = [(_mm256_setzero_ps(), _mm256_setzero_ps()); G];
                    for q in 0..G {
                        units[q] = unit::<C>(p.add(q * group), s, half);
                    }
                    for g in 4 * half..4 * half + 4 {
                        let x = x.add(32 * s + 4 * g);
                        for q in 0..G {
                            let register = register::<C>(p.add(q * group), s, g);
                            let w = floats::<C>(register, units[q]);
                            for j in 0..4 {
                                acc[q] =
                                    _mm256_fmadd_ps(_mm256_broadcast_ss(&*x.add(j)), w[j], acc[q]);
                            }
                        }
                    }
                }
            }
        }
    }
    for (out, acc) in out.iter_mut().zip(acc) {
        // SAFETY: a row of the output holds eight floats.
        unsafe { _mm256_storeu_ps(out.as_mut_ptr(), acc) };
    }
}

const fn code_of(c: u8) -> Code {
    match c {
        Q4_K => Code::Q4K,
        Q5_K => Code::Q5K,
        Q6_K => Code::Q6K,
        c => super::avx2::code_of(c),
    }
}

/// Scale and minimum of eight rows, for half of the 32 weights `s`.
///
/// # Safety
/// `p` is valid for a block of eight rows with the 32 weights `s`.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unit<const C: u8>(p: *const u8, s: usize, half: usize) -> (__m256, __m256) {
    // SAFETY: the caller's promises.
    unsafe {
        match C {
            Q4_K | Q5_K => {
                let scale = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.add(32 + 8 * s).cast()));
                // The minima of both 32 weights of a row lie in 16 bits.
                let both = _mm_loadu_si128(p.add(96 + 16 * (s / 2)).cast());
                let both = _mm256_cvtepu16_epi32(both);
                let minimum = match s % 2 {
                    0 => _mm256_and_si256(both, _mm256_set1_epi32(0xFF)),
                    _ => _mm256_srli_epi32::<8>(both),
                };
                (
                    _mm256_mul_ps(halves(p), _mm256_cvtepi32_ps(scale)),
                    _mm256_mul_ps(halves(p.add(2 * LANES)), _mm256_cvtepi32_ps(minimum)),
                )
            }
            Q6_K => {
                // The scales of both halves of a row lie in 16 bits.
                let both = _mm_loadu_si128(p.add(16 + 16 * s).cast());
                let both = _mm256_cvtepu16_epi32(both);
                let scale = match half {
                    0 => _mm256_srai_epi32::<24>(_mm256_slli_epi32::<24>(both)),
                    _ => _mm256_srai_epi32::<24>(_mm256_slli_epi32::<16>(both)),
                };
                (_mm256_mul_ps(halves(p), _mm256_cvtepi32_ps(scale)), _mm256_setzero_ps())
            }
            Q4_1 | Q5_1 => (halves(p), halves(p.add(2 * LANES))),
            _ => (scales::<C>(p), _mm256_setzero_ps()),
        }
    }
}

/// Register `g` of the 32 weights `s`; see [`registers`].
///
/// # Safety
/// As for [`unit`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn register<const C: u8>(p: *const u8, s: usize, g: usize) -> __m256i {
    // SAFETY: the caller's promises.
    let (a, z) = unsafe { registers::<C>(p, s, g % 4) };
    if g < 4 { a } else { z }
}

/// Registers `v` and `v + 4` of the 32 weights `s`: bytes, unsigned but for the formats that
/// multiply signed.
///
/// # Safety
/// As for [`unit`].
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn registers<const C: u8>(p: *const u8, s: usize, v: usize) -> (__m256i, __m256i) {
    let code = const { code_of(C) };
    // SAFETY: the caller's promises.
    unsafe {
        if !code.is_k() {
            return pair::<C>(p, v);
        }
        let q = p.add(code.codes_at(s));
        let n = load(q.add(code.nibbles_at() + 32 * v));
        let (a, z) = (low(n), low(_mm256_srli_epi16::<4>(n)));
        let (x, y) = match C {
            Q5_K => fifths(load(q), v),
            Q6_K => {
                let high = _mm256_set1_epi8(0x30);
                let (x, y) = (load(q), load(q.add(32)));
                let (x, y) = match v {
                    0 => (_mm256_slli_epi16::<4>(x), _mm256_slli_epi16::<4>(y)),
                    1 => (_mm256_slli_epi16::<2>(x), _mm256_slli_epi16::<2>(y)),
                    2 => (x, y),
                    _ => (_mm256_srli_epi16::<2>(x), _mm256_srli_epi16::<2>(y)),
                };
                (_mm256_and_si256(x, high), _mm256_and_si256(y, high))
            }
            _ => return (a, z),
        };
        (_mm256_or_si256(a, x), _mm256_or_si256(z, y))
    }
}

/// Byte j of every lane as float j, with the roundings of the format's decoder.
#[inline]
#[target_feature(enable = "avx2,fma,f16c")]
fn floats<const C: u8>(register: __m256i, (scale, minimum): (__m256, __m256)) -> [__m256; 4] {
    let whole = [
        _mm256_slli_epi32::<24>(register),
        _mm256_slli_epi32::<16>(register),
        _mm256_slli_epi32::<8>(register),
        register,
    ];
    let offset = const { code_of(C).offset() };
    let mut out = [scale; 4];
    for j in 0..4 {
        let v = match C {
            Q8_0 | BITS8 | IQ4_NL => _mm256_srai_epi32::<24>(whole[j]),
            _ => _mm256_srli_epi32::<24>(whole[j]),
        };
        let v = if offset == 0 { v } else { _mm256_sub_epi32(v, _mm256_set1_epi32(offset)) };
        let v = _mm256_mul_ps(scale, _mm256_cvtepi32_ps(v));
        out[j] = match C {
            Q4_1 | Q5_1 => _mm256_add_ps(v, minimum),
            Q4_K | Q5_K => _mm256_sub_ps(v, minimum),
            _ => v,
        };
    }
    out
}
