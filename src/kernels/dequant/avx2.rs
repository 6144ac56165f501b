//! AVX2: the lanes are rows of weights, four weights of each multiply four bytes at a time.

use super::activations::{Row, scale_of};
use super::layout::{Code, LANES};
use super::products::{self, Dot};
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

/// Products by pairs: two of an unsigned and a signed byte are summed in 16 bits.
pub(super) struct Pairs;

impl Dot for Pairs {
    const WIDE: bool = false;

    #[inline(always)]
    unsafe fn dot(sum: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_add_epi16(sum, _mm256_maddubs_epi16(unsigned, signed)) }
    }

    #[inline(always)]
    unsafe fn dots(sum: __m256i, [a, z]: [__m256i; 2], [qa, qz]: [__m256i; 2]) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe {
            let both = _mm256_add_epi16(_mm256_maddubs_epi16(a, qa), _mm256_maddubs_epi16(z, qz));
            _mm256_add_epi16(sum, both)
        }
    }

    #[inline(always)]
    unsafe fn total(sum: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_madd_epi16(sum, _mm256_set1_epi16(1)) }
    }

    #[inline(always)]
    unsafe fn scaled(sum: __m256i, scale: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_madd_epi16(sum, scale) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn short<const C: u8, const R: usize>(
        w: *const u8,
        blocks: usize,
        x: [Row<'_>; R],
        out: &mut [[f32; LANES]],
    ) {
        // SAFETY: the caller's promises.
        unsafe { products::short::<Self, C, R>(w, blocks, x, out) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn long<const FIFTH: bool, const R: usize>(
        w: *const u8,
        blocks: usize,
        x: [Row<'_>; R],
        out: &mut [[f32; LANES]],
    ) {
        // SAFETY: the caller's promises.
        unsafe { products::long::<Self, FIFTH, R>(w, blocks, x, out) }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn six<const R: usize>(
        w: *const u8,
        blocks: usize,
        x: [Row<'_>; R],
        out: &mut [[f32; LANES]],
    ) {
        // SAFETY: the caller's promises.
        unsafe { products::six::<Self, R>(w, blocks, x, out) }
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
pub(super) unsafe fn four(p: *const i8) -> __m256i {
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
