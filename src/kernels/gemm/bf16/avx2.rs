//! The kernels for AVX2 and FMA: bfloat16 is widened by a shift or a mask.

use super::scalar;
use std::arch::x86_64::*;

/// As [`scalar::round`].
///
/// # Safety
/// The CPU has AVX2.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn round(from: &[f32], to: &mut [f32]) {
    scalar::round(from, to);
}

/// As [`scalar::widen`], for a width that is a multiple of 16. The memory is asked for the words that
/// lie `ahead`.
///
/// # Safety
/// The CPU has AVX2.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn widen(words: &[u32], width: usize, ahead: usize, out: &mut [f32]) {
    let upper = _mm256_set1_epi32(0xFFFF_0000_u32 as i32);
    let whole = out.len() / (2 * width);
    let (both, rest) = out.split_at_mut(2 * whole * width);
    for (words, lines) in words.chunks_exact(width).zip(both.chunks_exact_mut(2 * width)) {
        let (even, odd) = lines.split_at_mut(width);
        for ((words, even), odd) in
            words.chunks_exact(16).zip(even.chunks_exact_mut(16)).zip(odd.chunks_exact_mut(16))
        {
            // SAFETY: all three hold 16 elements; what is asked for is not read.
            unsafe {
                let (words, even, odd) = (words.as_ptr(), even.as_mut_ptr(), odd.as_mut_ptr());
                _mm_prefetch::<_MM_HINT_T0>(words.wrapping_add(ahead).cast());
                for v in [0, 8] {
                    let w = _mm256_loadu_si256(words.add(v).cast());
                    _mm256_storeu_si256(even.add(v).cast(), _mm256_slli_epi32::<16>(w));
                    _mm256_storeu_si256(odd.add(v).cast(), _mm256_and_si256(w, upper));
                }
            }
        }
    }
    if let Some(words) = words.get(whole * width..).filter(|_| !rest.is_empty()) {
        scalar::widen(words, width, rest);
    }
}

/// Words that are asked for ahead.
const AHEAD: usize = 1024;

/// Panels of V vectors of 8 columns.
///
/// # Safety
/// As for [`scalar::panels`], with V · 8 columns; the CPU has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn panels<const V: usize>(
    panels: *const u32,
    pairs: usize,
    x: &[f32],
    y: &mut [f32],
) {
    // As many sums in flight as hide their latency, and as many streams to read.
    let together = 8 / V;
    let mut i = 0;
    for group in y.chunks_mut(together * V * 8) {
        let p = panels.wrapping_add(i * pairs * V * 8);
        // SAFETY: the panels of the group are there.
        unsafe {
            match group.len() / (V * 8) {
                4 => panel_group::<4, V>(p, pairs, x, group),
                3 => panel_group::<3, V>(p, pairs, x, group),
                2 => panel_group::<2, V>(p, pairs, x, group),
                _ => panel_group::<1, V>(p, pairs, x, group),
            }
        }
        i += together;
    }
}

/// P panels side by side.
///
/// # Safety
/// As for [`panels`]; `y` holds P panels' columns.
#[target_feature(enable = "avx2,fma")]
unsafe fn panel_group<const P: usize, const V: usize>(
    panels: *const u32,
    pairs: usize,
    x: &[f32],
    y: &mut [f32],
) {
    let upper = _mm256_set1_epi32(0xFFFF_0000_u32 as i32);
    let mut acc = [[_mm256_setzero_ps(); V]; P];
    // SAFETY: the caller's promise; prefetching beyond the end touches nothing.
    unsafe {
        for (k, x) in x.as_chunks::<2>().0.iter().enumerate() {
            let (even, odd) = (_mm256_set1_ps(x[0]), _mm256_set1_ps(x[1]));
            for p in 0..P {
                let b = panels.add((p * pairs + k) * V * 8);
                for v in 0..V {
                    if v % 2 == 0 {
                        _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(AHEAD + v * 8).cast());
                    }
                    let w = _mm256_loadu_si256(b.add(v * 8).cast());
                    let low = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(w));
                    let high = _mm256_castsi256_ps(_mm256_and_si256(w, upper));
                    acc[p][v] = _mm256_fmadd_ps(even, low, acc[p][v]);
                    acc[p][v] = _mm256_fmadd_ps(odd, high, acc[p][v]);
                }
            }
        }
        for p in 0..P {
            for v in 0..V {
                _mm256_storeu_ps(y.as_mut_ptr().add((p * V + v) * 8), acc[p][v]);
            }
        }
    }
}
