//! AVX-512 VNNI: as AVX2, with one instruction for four products of bytes and their sum.
//!
//! Vectors stay 256 bits wide, so that the layout is that of AVX2: a product with one row waits for
//! memory in either width.

use super::activations::Row;
use super::layout::LANES;
use super::products::{self, Dot};
use std::arch::x86_64::*;

/// Products by fours, summed in 32 bits.
pub(super) struct Fours;

impl Dot for Fours {
    const WIDE: bool = true;

    #[inline(always)]
    unsafe fn dot(sum: __m256i, unsigned: __m256i, signed: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_dpbusd_epi32(sum, unsigned, signed) }
    }

    #[inline(always)]
    unsafe fn dots(sum: __m256i, [a, z]: [__m256i; 2], [qa, qz]: [__m256i; 2]) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { Self::dot(Self::dot(sum, a, qa), z, qz) }
    }

    #[inline(always)]
    unsafe fn total(sum: __m256i) -> __m256i {
        sum
    }

    #[inline(always)]
    unsafe fn scaled(sum: __m256i, scale: __m256i) -> __m256i {
        // SAFETY: the caller's promise.
        unsafe { _mm256_mullo_epi32(sum, _mm256_srai_epi32::<16>(scale)) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn short<const C: u8, const R: usize>(
        w: *const u8,
        blocks: usize,
        x: [Row<'_>; R],
        out: &mut [[f32; LANES]],
    ) {
        // SAFETY: the caller's promises.
        unsafe { products::short::<Self, C, R>(w, blocks, x, out) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn long<const FIFTH: bool, const R: usize>(
        w: *const u8,
        blocks: usize,
        x: [Row<'_>; R],
        out: &mut [[f32; LANES]],
    ) {
        // SAFETY: the caller's promises.
        unsafe { products::long::<Self, FIFTH, R>(w, blocks, x, out) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
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
