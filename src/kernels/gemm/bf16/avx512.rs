//! The 14 × 32 tile for AVX512-BF16, which multiplies pairs.

use crate::kernels::gemm::avx512;
use crate::kernels::gemm::kernel::{Kernel, Tile};
use std::arch::x86_64::*;

const ROWS: usize = 14;
const COLS: usize = 32;

/// Rows of a panel that are asked for ahead.
const AHEAD: usize = 16;

/// Operands are words that hold pairs, its depths are pairs.
pub(super) static KERNEL: Kernel =
    Kernel { rows: ROWS, cols: COLS, tile, vector: avx512::KERNEL.vector };

/// # Safety
/// As for [`Kernel::tile`]; B is a panel, and the CPU has AVX512-BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn tile(t: &Tile<'_>) {
    macro_rules! by_rows {
        ($v:literal; $($r:literal)*) => {
            match t.rows {
                $($r => rows::<$r, $v>(t),)*
                _ => rows::<ROWS, $v>(t),
            }
        };
    }
    // SAFETY: the tile has 1 to 14 rows, and its pointers are valid for what it describes. Sums that
    // end here get their epilogue from the tile of f32, which adds nothing to them.
    unsafe {
        match t.narrow {
            false => by_rows!(2; 1 2 3 4 5 6 7 8 9 10 11 12 13),
            true => by_rows!(1; 1 2 3 4 5 6 7 8 9 10 11 12 13),
        }
        if t.finish.is_some() {
            (avx512::KERNEL.tile)(&Tile { k: 0, accumulate: true, ..*t });
        }
    }
}

#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
fn pairs(word: __m512i) -> __m512bh {
    // SAFETY: both are 512 bits.
    unsafe { std::mem::transmute(word) }
}

/// R rows by V vectors of 16 columns.
///
/// # Safety
/// As for [`tile`], for R rows and V · 16 columns.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn rows<const R: usize, const V: usize>(t: &Tile<'_>) {
    // SAFETY: the pointers are valid for R rows, k depths and the columns of the tile.
    unsafe {
        let mut acc = [[_mm512_setzero_ps(); V]; R];
        if t.accumulate {
            for i in 0..R {
                for v in 0..V {
                    acc[i][v] = _mm512_loadu_ps(t.c.add(i * t.c_row + v * 16));
                }
            }
        }
        let (mut a, mut b) = (t.a, t.b);
        for p in 0..t.k {
            if t.a_k == 1 && p % 16 == 0 {
                for i in 0..R {
                    let line = t.a_next.wrapping_add(i * t.a_row + p);
                    _mm_prefetch::<_MM_HINT_T0>(line.cast());
                }
            }
            let mut bv = [pairs(_mm512_setzero_si512()); V];
            for v in 0..V {
                bv[v] = pairs(_mm512_loadu_si512(b.add(v * 16).cast()));
                let next = b.wrapping_add(AHEAD * COLS + v * 16);
                _mm_prefetch::<_MM_HINT_T0>(next.cast());
            }
            for i in 0..R {
                let x = pairs(_mm512_set1_epi32(*a.add(i * t.a_row).cast::<i32>()));
                for v in 0..V {
                    acc[i][v] = _mm512_dpbf16_ps(acc[i][v], x, bv[v]);
                }
            }
            a = a.wrapping_add(t.a_k);
            b = b.wrapping_add(t.b_k);
        }
        for i in 0..R {
            for v in 0..V {
                _mm512_storeu_ps(t.c.add(i * t.c_row + v * 16), acc[i][v]);
            }
        }
    }
}

/// # Safety
/// As for the portable one, with 32 columns; `x` holds a word for each pair, and the CPU has
/// AVX512-BF16.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
pub(super) unsafe fn panels(panels: *const u32, pairs: usize, x: &[f32], y: &mut [f32]) {
    let mut i = 0;
    for group in y.chunks_mut(4 * COLS) {
        let p = panels.wrapping_add(i * pairs * COLS);
        // SAFETY: the panels of the group are there.
        unsafe {
            match group.len() / COLS {
                4 => panel_group::<4>(p, pairs, x, group),
                3 => panel_group::<3>(p, pairs, x, group),
                2 => panel_group::<2>(p, pairs, x, group),
                _ => panel_group::<1>(p, pairs, x, group),
            }
        }
        i += 4;
    }
}

/// P panels side by side.
///
/// # Safety
/// As for [`panels`]; `y` holds P · COLS elements.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")]
unsafe fn panel_group<const P: usize>(panels: *const u32, count: usize, x: &[f32], y: &mut [f32]) {
    let mut acc = [[_mm512_setzero_ps(); 2]; P];
    // SAFETY: the caller's promise; prefetching beyond the end touches nothing.
    unsafe {
        for (k, x) in x.iter().enumerate() {
            let x = pairs(_mm512_set1_epi32(x.to_bits() as i32));
            for p in 0..P {
                let b = panels.add((p * count + k) * COLS);
                for v in 0..2 {
                    let next = b.wrapping_add(32 * COLS + v * 16);
                    _mm_prefetch::<_MM_HINT_T0>(next.cast());
                    let w = pairs(_mm512_loadu_si512(b.add(v * 16).cast()));
                    acc[p][v] = _mm512_dpbf16_ps(acc[p][v], x, w);
                }
            }
        }
        for p in 0..P {
            for v in 0..2 {
                _mm512_storeu_ps(y.as_mut_ptr().add(p * COLS + v * 16), acc[p][v]);
            }
        }
    }
}
