//! The 6 × 16 tile for AVX2: bytes are widened, so that pairs of products never saturate.

use super::kernel::{Kernel, Tile};
use std::arch::x86_64::*;

const ROWS: usize = 6;
const COLS: usize = 16;

pub(super) static KERNEL: Kernel =
    Kernel { rows: ROWS, cols: COLS, group: 2, block: 512, bytes: false, tile };

/// # Safety
/// The pointers of the tile are valid for what it describes; the CPU has AVX2.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile(t: &Tile) {
    // SAFETY: the caller's promise; a tile has 1 to 6 rows.
    unsafe {
        match t.rows {
            1 => rows::<1>(t),
            2 => rows::<2>(t),
            3 => rows::<3>(t),
            4 => rows::<4>(t),
            5 => rows::<5>(t),
            _ => rows::<ROWS>(t),
        }
    }
}

/// # Safety
/// As for [`tile`], for R rows.
#[target_feature(enable = "avx2,fma")]
unsafe fn rows<const R: usize>(t: &Tile) {
    let mut acc = [[_mm256_setzero_si256(); 2]; R];
    // SAFETY: the caller's promise.
    unsafe {
        if t.accumulate {
            for i in 0..R {
                for v in 0..2 {
                    acc[i][v] = _mm256_loadu_si256(t.c.add(i * t.c_row + v * 8).cast());
                }
            }
        }
        let (mut a, mut b) = (t.a, t.b);
        for _ in 0..t.groups {
            let b0 = _mm256_cvtepi8_epi16(_mm_loadu_si128(b.cast()));
            let b1 = _mm256_cvtepi8_epi16(_mm_loadu_si128(b.add(16).cast()));
            for i in 0..R {
                let x = _mm256_set1_epi32(a.add(i * t.a_row).cast::<i32>().read_unaligned());
                acc[i][0] = _mm256_add_epi32(acc[i][0], _mm256_madd_epi16(x, b0));
                acc[i][1] = _mm256_add_epi32(acc[i][1], _mm256_madd_epi16(x, b1));
            }
            a = a.wrapping_add(4);
            b = b.wrapping_add(2 * COLS);
        }
        if !t.zeros.rows.is_null() {
            for v in 0..2 {
                let zero = _mm256_loadu_si256(t.zeros.cols.add(v * 8).cast());
                for i in 0..R {
                    let sum = _mm256_set1_epi32(*t.zeros.rows.add(i));
                    acc[i][v] = _mm256_sub_epi32(acc[i][v], _mm256_mullo_epi32(sum, zero));
                }
            }
        }
        for i in 0..R {
            for v in 0..2 {
                _mm256_storeu_si256(t.c.add(i * t.c_row + v * 8).cast(), acc[i][v]);
            }
        }
    }
}

/// The elements less their zero point.
#[target_feature(enable = "avx2")]
pub(super) fn widen<T: Copy + Into<i16>>(row: &[T], zero: i16, out: &mut [i16]) {
    super::pack::widen(row, zero, out);
}

/// The sum of the elements.
#[target_feature(enable = "avx2")]
pub(super) fn sum(row: &[i16]) -> i32 {
    super::pack::sum(row)
}
