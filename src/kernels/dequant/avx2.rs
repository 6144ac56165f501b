//! AVX2: the lanes are rows of weights, four weights of each multiply four bytes at a time.

use super::activations::{Row, scale_of};
use super::layout::{Code, LANES};
use crate::kernels::blocks::{E2M1, IQ4};
use std::arch::x86_64::*;

pub(super) const Q4_0: u8 = Code::Q4_0 as u8;
pub(super) const Q4_1: u8 = Code::Q4_1 as u8;
pub(super) const Q5_0: u8 = Code::Q5_0 as u8;
pub(super) const Q5_1: u8 = Code::Q5_1 as u8;
pub(super) const Q8_0: u8 = Code::Q8_0 as u8;
pub(super) const IQ4_NL: u8 = Code::Iq4Nl as u8;
pub(super) const MXFP4: u8 = Code::Mxfp4 as u8;
pub(super) const BITS4: u8 = Code::Bits4 as u8;
pub(super) const BITS8: u8 = Code::Bits8 as u8;

/// Bytes ahead of the weights in use that are asked for.
const AHEAD: usize = 2048;

/// The products of eight rows of weights with 1 to 4 rows of numbers.
///
/// # Safety
/// The CPU has AVX2, FMA and F16C; `weights` are whole blocks, each row of `x` is as long as they
/// are, and `out` has as many rows as `x`.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn group(code: Code, weights: &[u8], x: &[Row<'_>], out: &mut [[f32; LANES]]) {
    let blocks = weights.len() / code.bytes();
    let w = weights.as_ptr();
    macro_rules! by_rows {
        ($f:ident $(, $c:expr)*) => {
            match x {
                [a] => $f::<$($c,)* 1>(w, blocks, [*a], out),
                [a, b] => $f::<$($c,)* 2>(w, blocks, [*a, *b], out),
                [a, b, c] => $f::<$($c,)* 3>(w, blocks, [*a, *b, *c], out),
                [a, b, c, d, ..] => $f::<$($c,)* 4>(w, blocks, [*a, *b, *c, *d], out),
                [] => {}
            }
        };
    }
    // SAFETY: the caller's promises.
    unsafe {
        match code {
            Code::Q4_0 => by_rows!(short, Q4_0),
            Code::Q4_1 => by_rows!(short, Q4_1),
            Code::Q5_0 => by_rows!(short, Q5_0),
            Code::Q5_1 => by_rows!(short, Q5_1),
            Code::Q8_0 => by_rows!(short, Q8_0),
            Code::Iq4Nl => by_rows!(short, IQ4_NL),
            Code::Mxfp4 => by_rows!(short, MXFP4),
            Code::Bits4 => by_rows!(short, BITS4),
            Code::Bits8 => by_rows!(short, BITS8),
            Code::Q4K => by_rows!(long, false),
            Code::Q5K => by_rows!(long, true),
            Code::Q6K => by_rows!(six),
        }
    }
}

pub(super) const fn code_of(c: u8) -> Code {
    match c {
        Q4_0 => Code::Q4_0,
        Q4_1 => Code::Q4_1,
        Q5_0 => Code::Q5_0,
        Q5_1 => Code::Q5_1,
        Q8_0 => Code::Q8_0,
        IQ4_NL => Code::Iq4Nl,
        BITS4 => Code::Bits4,
        BITS8 => Code::Bits8,
        _ => Code::Mxfp4,
    }
}

/// # Safety
/// `p` is valid for 32 bytes.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn load(p: *const u8) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_loadu_si256(p.cast()) }
}

/// Eight halves as floats.
///
/// # Safety
/// `p` is valid for 16 bytes.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn halves(p: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
}

/// Four bytes of a row in each lane.
///
/// # Safety
/// `p` is valid for 4 bytes.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn four(p: *const i8) -> __m256i {
    // SAFETY: the caller's promise.
    unsafe { _mm256_set1_epi32(p.cast::<i32>().read_unaligned()) }
}

#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn low(v: __m256i) -> __m256i {
    _mm256_and_si256(v, _mm256_set1_epi8(15))
}

/// The scales of eight rows of a block of 32.
///
/// # Safety
/// `p` is valid for the block.
#[inline]
#[target_feature(enable = "avx2,f16c")]
pub(super) unsafe fn scales<const C: u8>(p: *const u8) -> __m256 {
    // SAFETY: the caller's promise.
    unsafe {
        if C == BITS4 || C == BITS8 {
            return _mm256_loadu_ps(p.cast());
        }
        if C != MXFP4 {
            return halves(p);
        }
        let e = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p.cast()));
        let one = _mm256_set1_epi32(1);
        let normal = _mm256_slli_epi32::<23>(_mm256_sub_epi32(e, one));
        let small = _mm256_sllv_epi32(_mm256_set1_epi32(0x0020_0000), e);
        let is_normal = _mm256_cmpgt_epi32(e, one);
        _mm256_castsi256_ps(_mm256_blendv_epi8(small, normal, is_normal))
    }
}

/// Registers `v` and `v + 4` of 32 weights: unsigned, or signed where the format multiplies so.
///
/// # Safety
/// `p` is valid for a block.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) unsafe fn pair<const C: u8>(p: *const u8, v: usize) -> (__m256i, __m256i) {
    let code = const { code_of(C) };
    // SAFETY: the caller's promise.
    unsafe {
        let q = p.add(code.codes_at(0));
        if C == Q8_0 || C == BITS8 {
            return (load(q.add(32 * v)), load(q.add(32 * (v + 4))));
        }
        if code.has_fifth() {
            let n = load(q.add(32 + 32 * v));
            let (a, b) = (low(n), low(_mm256_srli_epi16::<4>(n)));
            let h = load(q);
            let (x, y) = fifths(h, v);
            return (_mm256_or_si256(a, x), _mm256_or_si256(b, y));
        }
        let n = load(q.add(32 * v));
        let (a, b) = (low(n), low(_mm256_srli_epi16::<4>(n)));
        match C {
            IQ4_NL => (look_up(&IQ4, 0, a), look_up(&IQ4, 0, b)),
            MXFP4 => (look_up(&E2M1, 12, a), look_up(&E2M1, 12, b)),
            _ => (a, b),
        }
    }
}

/// The fifth bits of registers `v` and `v + 4`, in place.
#[inline]
#[target_feature(enable = "avx2")]
pub(super) fn fifths(h: __m256i, v: usize) -> (__m256i, __m256i) {
    let bit = _mm256_set1_epi8(16);
    let (a, b) = match v {
        0 => (_mm256_slli_epi16::<4>(h), h),
        1 => (_mm256_slli_epi16::<3>(h), _mm256_srli_epi16::<1>(h)),
        2 => (_mm256_slli_epi16::<2>(h), _mm256_srli_epi16::<2>(h)),
        _ => (_mm256_slli_epi16::<1>(h), _mm256_srli_epi16::<3>(h)),
    };
    (_mm256_and_si256(a, bit), _mm256_and_si256(b, bit))
}

#[inline]
#[target_feature(enable = "avx2")]
fn look_up(table: &[i8; 16], offset: i8, index: __m256i) -> __m256i {
    // SAFETY: the table has 16 bytes.
    let t = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
    let t = _mm_add_epi8(t, _mm_set1_epi8(offset));
    _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), index)
}

/// Formats in blocks of 32.
///
/// # Safety
/// As for [`group`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn short<const C: u8, const R: usize>(
    w: *const u8,
    blocks: usize,
    x: [Row<'_>; R],
    out: &mut [[f32; LANES]],
) {
    let code = const { code_of(C) };
    let signed = C == Q8_0 || C == BITS8 || C == IQ4_NL;
    // So many registers in a row may be summed in 16 bits: 8 · 2 · 15 · 127 is within them.
    let runs = if C == Q4_0 || C == Q4_1 || C == BITS4 { 1 } else { 2 };
    let ones = _mm256_set1_epi16(1);
    let mut acc = [_mm256_setzero_ps(); R];
    // SAFETY: the caller's promises; what is asked for ahead is not read.
    unsafe {
        for b in 0..blocks {
            let p = w.add(b * code.bytes());
            let mut ahead = 0;
            while ahead < code.bytes() {
                _mm_prefetch::<_MM_HINT_T0>(p.wrapping_add(AHEAD + ahead).cast());
                ahead += 64;
            }
            let scale = scales::<C>(p);
            let mut total = [_mm256_setzero_si256(); R];
            for run in 0..runs {
                let mut part = [_mm256_setzero_si256(); R];
                for v in run * 4 / runs..(run + 1) * 4 / runs {
                    let (a, z) = pair::<C>(p, v);
                    for i in 0..R {
                        let q = x[i].bytes.as_ptr().add(b * 32 + 4 * v);
                        let (qa, qz) = (four(q), four(q.add(16)));
                        if signed {
                            let (ua, uz) = (_mm256_abs_epi8(a), _mm256_abs_epi8(z));
                            let (qa, qz) = (_mm256_sign_epi8(qa, a), _mm256_sign_epi8(qz, z));
                            let ma = _mm256_madd_epi16(_mm256_maddubs_epi16(ua, qa), ones);
                            let mz = _mm256_madd_epi16(_mm256_maddubs_epi16(uz, qz), ones);
                            total[i] = _mm256_add_epi32(total[i], _mm256_add_epi32(ma, mz));
                        } else {
                            let m = _mm256_add_epi16(
                                _mm256_maddubs_epi16(a, qa),
                                _mm256_maddubs_epi16(z, qz),
                            );
                            part[i] = _mm256_add_epi16(part[i], m);
                        }
                    }
                }
                if !signed {
                    for i in 0..R {
                        let m = _mm256_madd_epi16(part[i], ones);
                        total[i] = _mm256_add_epi32(total[i], m);
                    }
                }
            }
            for i in 0..R {
                if code.offset() != 0 {
                    let offset = _mm256_set1_epi32(*x[i].sums.as_ptr().add(b));
                    total[i] = _mm256_sub_epi32(total[i], offset);
                }
                let d = _mm256_broadcast_ss(&*x[i].scales.as_ptr().add(b));
                acc[i] =
                    _mm256_fmadd_ps(_mm256_cvtepi32_ps(total[i]), _mm256_mul_ps(scale, d), acc[i]);
                if code.has_minimum() {
                    let m = _mm256_broadcast_ss(&*x[i].moments.as_ptr().add(b));
                    acc[i] = _mm256_fmadd_ps(halves(p.add(2 * LANES)), m, acc[i]);
                }
            }
        }
    }
    for i in 0..R {
        // SAFETY: a row of the output holds eight floats.
        unsafe { _mm256_storeu_ps(out[i].as_mut_ptr(), acc[i]) };
    }
}

/// Q4_K and Q5_K.
///
/// # Safety
/// As for [`group`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn long<const FIFTH: bool, const R: usize>(
    w: *const u8,
    blocks: usize,
    x: [Row<'_>; R],
    out: &mut [[f32; LANES]],
) {
    let code = if FIFTH { Code::Q5K } else { Code::Q4K };
    // Byte r of eight, as both halves of lane r.
    let spread = _mm256_setr_epi8(
        0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, 4, -1, 4, -1, 5, -1, 5, -1, 6, -1,
        6, -1, 7, -1, 7, -1,
    );
    let mut acc = [_mm256_setzero_ps(); R];
    // SAFETY: the caller's promises; what is asked for ahead is not read.
    unsafe {
        for b in 0..blocks {
            let p = w.add(b * code.bytes());
            let (mut total, mut minima) =
                ([_mm256_setzero_si256(); R], [_mm256_setzero_si256(); R]);
            for s in 0..8 {
                let q = p.add(code.codes_at(s));
                _mm_prefetch::<_MM_HINT_T0>(q.wrapping_add(AHEAD).cast());
                _mm_prefetch::<_MM_HINT_T0>(q.wrapping_add(AHEAD + 64).cast());
                let eight = p.add(32 + 8 * s).cast::<i64>().read_unaligned();
                let scale = _mm256_shuffle_epi8(_mm256_set1_epi64x(eight), spread);
                let nibbles = if FIFTH { q.add(32) } else { q };
                let runs = if FIFTH { 2 } else { 1 };
                for run in 0..runs {
                    let mut part = [_mm256_setzero_si256(); R];
                    for v in run * 4 / runs..(run + 1) * 4 / runs {
                        let n = load(nibbles.add(32 * v));
                        let (mut a, mut z) = (low(n), low(_mm256_srli_epi16::<4>(n)));
                        if FIFTH {
                            let (ha, hz) = fifths(load(q), v);
                            (a, z) = (_mm256_or_si256(a, ha), _mm256_or_si256(z, hz));
                        }
                        for i in 0..R {
                            let q = x[i].bytes.as_ptr().add(b * 256 + s * 32 + 4 * v);
                            let m = _mm256_add_epi16(
                                _mm256_maddubs_epi16(a, four(q)),
                                _mm256_maddubs_epi16(z, four(q.add(16))),
                            );
                            part[i] = _mm256_add_epi16(part[i], m);
                        }
                    }
                    for i in 0..R {
                        let m = _mm256_madd_epi16(part[i], scale);
                        total[i] = _mm256_add_epi32(total[i], m);
                    }
                }
            }
            for t in 0..4 {
                let m = _mm256_cvtepu8_epi16(_mm_loadu_si128(p.add(96 + 16 * t).cast()));
                for i in 0..R {
                    let sums = _mm256_set1_epi32(*x[i].sums.as_ptr().add(b * 4 + t));
                    minima[i] = _mm256_add_epi32(minima[i], _mm256_madd_epi16(m, sums));
                }
            }
            let (scale, minimum) = (halves(p), halves(p.add(2 * LANES)));
            for i in 0..R {
                let d = _mm256_broadcast_ss(&*x[i].scales.as_ptr().add(b));
                acc[i] =
                    _mm256_fmadd_ps(_mm256_cvtepi32_ps(total[i]), _mm256_mul_ps(scale, d), acc[i]);
                acc[i] = _mm256_fnmadd_ps(
                    _mm256_cvtepi32_ps(minima[i]),
                    _mm256_mul_ps(minimum, d),
                    acc[i],
                );
            }
        }
    }
    for i in 0..R {
        // SAFETY: a row of the output holds eight floats.
        unsafe { _mm256_storeu_ps(out[i].as_mut_ptr(), acc[i]) };
    }
}

/// Q6_K.
///
/// # Safety
/// As for [`group`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn six<const R: usize>(
    w: *const u8,
    blocks: usize,
    x: [Row<'_>; R],
    out: &mut [[f32; LANES]],
) {
    let code = Code::Q6K;
    // Byte 2 r of sixteen, as the upper half of both halves of lane r.
    let even = _mm256_setr_epi8(
        -1, 0, -1, 0, -1, 2, -1, 2, -1, 4, -1, 4, -1, 6, -1, 6, -1, 8, -1, 8, -1, 10, -1, 10, -1,
        12, -1, 12, -1, 14, -1, 14,
    );
    // Of the places that give a zero only the top bit counts, so adding 1 changes the others alone.
    let odd = _mm256_or_si256(even, _mm256_set1_epi8(1));
    let high = _mm256_set1_epi8(0x30);
    let mut acc = [_mm256_setzero_ps(); R];
    // SAFETY: the caller's promises; what is asked for ahead is not read.
    unsafe {
        for b in 0..blocks {
            let p = w.add(b * code.bytes());
            let (mut total, mut offsets) =
                ([_mm256_setzero_si256(); R], [_mm256_setzero_si256(); R]);
            for s in 0..8 {
                let q = p.add(code.codes_at(s));
                for line in 0..3 {
                    _mm_prefetch::<_MM_HINT_T0>(q.wrapping_add(AHEAD + 64 * line).cast());
                }
                let both = _mm_loadu_si128(p.add(16 + 16 * s).cast());
                let twice = _mm256_broadcastsi128_si256(both);
                let first = _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(twice, even));
                let second = _mm256_srai_epi16::<8>(_mm256_shuffle_epi8(twice, odd));
                let pairs = _mm256_cvtepi8_epi16(both);
                for i in 0..R {
                    let sums = _mm256_set1_epi32(*x[i].sums.as_ptr().add(b * 8 + s));
                    offsets[i] = _mm256_add_epi32(offsets[i], _mm256_madd_epi16(pairs, sums));
                }
                let (ha, hz) = (load(q), load(q.add(32)));
                for half in 0..2 {
                    let (mut sa, mut sz) =
                        ([_mm256_setzero_si256(); R], [_mm256_setzero_si256(); R]);
                    for v in 2 * half..2 * half + 2 {
                        let n = load(q.add(64 + 32 * v));
                        let (xa, xz) = match v {
                            0 => (_mm256_slli_epi16::<4>(ha), _mm256_slli_epi16::<4>(hz)),
                            1 => (_mm256_slli_epi16::<2>(ha), _mm256_slli_epi16::<2>(hz)),
                            2 => (ha, hz),
                            _ => (_mm256_srli_epi16::<2>(ha), _mm256_srli_epi16::<2>(hz)),
                        };
                        let a = _mm256_or_si256(low(n), _mm256_and_si256(xa, high));
                        let z = _mm256_or_si256(
                            low(_mm256_srli_epi16::<4>(n)),
                            _mm256_and_si256(xz, high),
                        );
                        for i in 0..R {
                            let q = x[i].bytes.as_ptr().add(b * 256 + s * 32 + 4 * v);
                            sa[i] = _mm256_add_epi16(sa[i], _mm256_maddubs_epi16(a, four(q)));
                            sz[i] =
                                _mm256_add_epi16(sz[i], _mm256_maddubs_epi16(z, four(q.add(16))));
                        }
                    }
                    for i in 0..R {
                        let m = _mm256_add_epi32(
                            _mm256_madd_epi16(sa[i], first),
                            _mm256_madd_epi16(sz[i], second),
                        );
                        total[i] = _mm256_add_epi32(total[i], m);
                    }
                }
            }
            let scale = halves(p);
            for i in 0..R {
                let all = _mm256_sub_epi32(total[i], _mm256_slli_epi32::<5>(offsets[i]));
                let d = _mm256_broadcast_ss(&*x[i].scales.as_ptr().add(b));
                acc[i] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(all), _mm256_mul_ps(scale, d), acc[i]);
            }
        }
    }
    for i in 0..R {
        // SAFETY: a row of the output holds eight floats.
        unsafe { _mm256_storeu_ps(out[i].as_mut_ptr(), acc[i]) };
    }
}

/// Rounds one block of a multiple of 32 numbers; returns its scale.
///
/// # Safety
/// The CPU has AVX2.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn round_block(x: &[f32], bytes: &mut [i8]) -> f32 {
    let magnitude = _mm256_set1_epi32(0x7FFF_FFFF);
    let mut most = _mm256_setzero_si256();
    for x in x.chunks_exact(8) {
        // SAFETY: eight floats.
        let v = unsafe { _mm256_loadu_si256(x.as_ptr().cast()) };
        most = _mm256_max_epi32(most, _mm256_and_si256(v, magnitude));
    }
    let m = _mm_max_epi32(_mm256_castsi256_si128(most), _mm256_extracti128_si256::<1>(most));
    let m = _mm_max_epi32(m, _mm_shuffle_epi32::<0b01_00_11_10>(m));
    let m = _mm_max_epi32(m, _mm_shuffle_epi32::<0b10_11_00_01>(m));
    let (scale, inverse) = scale_of(_mm_cvtsi128_si32(m).cast_unsigned());
    if inverse == 0.0 {
        bytes.fill(0);
        return scale;
    }
    let inverse = _mm256_set1_ps(inverse);
    let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    for (x, bytes) in x.chunks_exact(32).zip(bytes.chunks_exact_mut(32)) {
        // SAFETY: 32 floats and 32 bytes.
        unsafe {
            let at = |i: usize| {
                _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x.as_ptr().add(8 * i)), inverse))
            };
            let (a, b) = (_mm256_packs_epi32(at(0), at(1)), _mm256_packs_epi32(at(2), at(3)));
            let all = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(a, b), order);
            _mm256_storeu_si256(bytes.as_mut_ptr().cast(), all);
        }
    }
    scale
}
