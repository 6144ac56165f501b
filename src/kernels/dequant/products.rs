//! Integer products of eight rows of weights, for whatever multiplies and sums their bytes.

use super::activations::Row;
use super::avx2::{
    BITS4, BITS8, IQ4_NL, MXFP4, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, code_of, fifths, four, halves, load,
    low, pair, scales,
};
use super::layout::{Code, LANES};
use std::arch::x86_64::*;

/// Bytes ahead of the weights in use that are asked for.
const AHEAD: usize = 2048;

/// How an instruction set sums products of bytes, and the products of rows made with that.
///
/// The generic functions of this file have no target features of their own: they become part of
/// those of each implementation, which have.
///
/// # Safety
/// Every function asks for a CPU with the implementation's instructions; those on rows ask for what
/// [`group`] does, with the blocks at `w`.
pub(super) trait Dot {
    /// Whether such sums have 32 bits: they do not overflow, and signed weights are raised by 128.
    /// Otherwise they have 16, and four additions of products of 7-bit numbers may.
    const WIDE: bool;

    /// `sum` and products of unsigned bytes with signed ones.
    ///
    /// # Safety
    /// As for [`Dot`].
    unsafe fn dot(sum: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i;

    /// The same of two registers each.
    ///
    /// # Safety
    /// As for [`Dot`].
    unsafe fn dots(sum: __m256i, unsigned: [__m256i; 2], signed: [__m256i; 2]) -> __m256i;

    /// The sum of each lane in 32 bits.
    ///
    /// # Safety
    /// As for [`Dot`].
    unsafe fn total(sum: __m256i) -> __m256i;

    /// That sum times the lane's scale, which is given in both halves of 16 bits.
    ///
    /// # Safety
    /// As for [`Dot`].
    unsafe fn scaled(sum: __m256i, scale: __m256i) -> __m256i;

    /// Formats in blocks of 32.
    ///
    /// # Safety
    /// As for [`Dot`].
    unsafe fn short<const C: u8, const R: usize>(
        w: *const u8,
        blocks: usize,
        x: [Row<'_>; R],
        out: &mut [[f32; LANES]],
    );

    /// Q4_K and Q5_K.
    ///
    /// # Safety
    /// As for [`Dot`].
    unsafe fn long<const FIFTH: bool, const R: usize>(
        w: *const u8,
        blocks: usize,
        x: [Row<'_>; R],
        out: &mut [[f32; LANES]],
    );

    /// Q6_K.
    ///
    /// # Safety
    /// As for [`Dot`].
    unsafe fn six<const R: usize>(
        w: *const u8,
        blocks: usize,
        x: [Row<'_>; R],
        out: &mut [[f32; LANES]],
    );
}

/// The products of eight rows of weights with 1 to 4 rows of numbers.
///
/// # Safety
/// The CPU has the instructions of D; `weights` are whole blocks, each row of `x` is as long as they
/// are, and `out` has as many rows as `x`.
pub(super) unsafe fn group<D: Dot>(
    code: Code,
    weights: &[u8],
    x: &[Row<'_>],
    out: &mut [[f32; LANES]],
) {
    let blocks = weights.len() / code.bytes();
    let w = weights.as_ptr();
    macro_rules! by_rows {
        ($f:ident $(, $c:expr)*) => {
            match x {
                [a] => D::$f::<$($c,)* 1>(w, blocks, [*a], out),
                [a, b] => D::$f::<$($c,)* 2>(w, blocks, [*a, *b], out),
                [a, b, c] => D::$f::<$($c,)* 3>(w, blocks, [*a, *b, *c], out),
                [a, b, c, d, ..] => D::$f::<$($c,)* 4>(w, blocks, [*a, *b, *c, *d], out),
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

/// Formats in blocks of 32.
///
/// # Safety
/// As for [`group`].
#[inline(always)]
pub(super) unsafe fn short<D: Dot, const C: u8, const R: usize>(
    w: *const u8,
    blocks: usize,
    x: [Row<'_>; R],
    out: &mut [[f32; LANES]],
) {
    let code = const { code_of(C) };
    let signed = const { code_of(C).is_signed() };
    // So many registers in a row may be summed in 16 bits: 8 · 2 · 15 · 127 is within them.
    let runs = if D::WIDE || C == Q4_0 || C == Q4_1 || C == BITS4 { 1 } else { 2 };
    // SAFETY: the caller's promises; what is asked for ahead is not read; a row of the
    // output holds eight floats.
    unsafe {
        let ones = _mm256_set1_epi16(1);
        let mut acc = [_mm256_setzero_ps(); R];
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
                    let (mut a, mut z) = pair::<C>(p, v);
                    if signed && D::WIDE {
                        let top = _mm256_set1_epi8(-128);
                        (a, z) = (_mm256_xor_si256(a, top), _mm256_xor_si256(z, top));
                    }
                    for i in 0..R {
                        let q = x[i].bytes.as_ptr().add(b * 32 + 4 * v);
                        let (qa, qz) = (four(q), four(q.add(16)));
                        if signed && !D::WIDE {
                            let (ua, uz) = (_mm256_abs_epi8(a), _mm256_abs_epi8(z));
                            let (qa, qz) = (_mm256_sign_epi8(qa, a), _mm256_sign_epi8(qz, z));
                            let ma = _mm256_madd_epi16(_mm256_maddubs_epi16(ua, qa), ones);
                            let mz = _mm256_madd_epi16(_mm256_maddubs_epi16(uz, qz), ones);
                            total[i] = _mm256_add_epi32(total[i], _mm256_add_epi32(ma, mz));
                        } else {
                            part[i] = D::dots(part[i], [a, z], [qa, qz]);
                        }
                    }
                }
                if !signed || D::WIDE {
                    for i in 0..R {
                        total[i] = _mm256_add_epi32(total[i], D::total(part[i]));
                    }
                }
            }
            for i in 0..R {
                if code.raised(D::WIDE) != 0 {
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
        for i in 0..R {
            _mm256_storeu_ps(out[i].as_mut_ptr(), acc[i]);
        }
    }
}

/// Q4_K and Q5_K.
///
/// # Safety
/// As for [`group`].
#[inline(always)]
pub(super) unsafe fn long<D: Dot, const FIFTH: bool, const R: usize>(
    w: *const u8,
    blocks: usize,
    x: [Row<'_>; R],
    out: &mut [[f32; LANES]],
) {
    let code = if FIFTH { Code::Q5K } else { Code::Q4K };
    // SAFETY: the caller's promises; what is asked for ahead is not read; a row of the
    // output holds eight floats.
    unsafe {
        // Byte r of eight, as both halves of lane r.
        let spread = _mm256_setr_epi8(
            0, -1, 0, -1, 1, -1, 1, -1, 2, -1, 2, -1, 3, -1, 3, -1, 4, -1, 4, -1, 5, -1, 5, -1, 6,
            -1, 6, -1, 7, -1, 7, -1,
        );
        let mut acc = [_mm256_setzero_ps(); R];
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
                let runs = if FIFTH && !D::WIDE { 2 } else { 1 };
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
                            part[i] = D::dots(part[i], [a, z], [four(q), four(q.add(16))]);
                        }
                    }
                    for i in 0..R {
                        total[i] = _mm256_add_epi32(total[i], D::scaled(part[i], scale));
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
        for i in 0..R {
            _mm256_storeu_ps(out[i].as_mut_ptr(), acc[i]);
        }
    }
}

/// Q6_K.
///
/// # Safety
/// As for [`group`].
#[inline(always)]
pub(super) unsafe fn six<D: Dot, const R: usize>(
    w: *const u8,
    blocks: usize,
    x: [Row<'_>; R],
    out: &mut [[f32; LANES]],
) {
    let code = Code::Q6K;
    // SAFETY: the caller's promises; what is asked for ahead is not read; a row of the
    // output holds eight floats.
    unsafe {
        // Byte 2 r of sixteen, as the upper half of both halves of lane r.
        let even = _mm256_setr_epi8(
            -1, 0, -1, 0, -1, 2, -1, 2, -1, 4, -1, 4, -1, 6, -1, 6, -1, 8, -1, 8, -1, 10, -1, 10,
            -1, 12, -1, 12, -1, 14, -1, 14,
        );
        // Of the places that give a zero only the top bit counts, so adding 1 changes the others alone.
        let odd = _mm256_or_si256(even, _mm256_set1_epi8(1));
        let high = _mm256_set1_epi8(0x30);
        let mut acc = [_mm256_setzero_ps(); R];
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
                let runs = if D::WIDE { 1 } else { 2 };
                for run in 0..runs {
                    let (mut sa, mut sz) =
                        ([_mm256_setzero_si256(); R], [_mm256_setzero_si256(); R]);
                    for v in run * 4 / runs..(run + 1) * 4 / runs {
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
                            sa[i] = D::dot(sa[i], a, four(q));
                            sz[i] = D::dot(sz[i], z, four(q.add(16)));
                        }
                    }
                    for i in 0..R {
                        let m = _mm256_add_epi32(D::scaled(sa[i], first), D::scaled(sz[i], second));
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
        for i in 0..R {
            _mm256_storeu_ps(out[i].as_mut_ptr(), acc[i]);
        }
    }
}
