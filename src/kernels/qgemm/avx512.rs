//! Tiles of 32 columns for AVX-512, with dot products of bytes (VNNI) and without.

use super::kernel::{Kernel, Product, Tile};
use std::arch::x86_64::*;

const COLS: usize = 32;
/// Rows where sums, two vectors of B, one of A and one of products have to fit into registers.
const PAIR_ROWS: usize = 12;
/// Rows where nothing comes between A, B and the sums.
const DOT_ROWS: usize = 14;
/// Groups that are asked for ahead.
const AHEAD: usize = 16;

/// Bytes are widened, so that pairs of products never saturate.
pub(super) static KERNEL: Kernel =
    Kernel { rows: PAIR_ROWS, cols: COLS, group: 2, block: 512, bytes: false, tile: pair_tile };

/// Four products of bytes are added to a sum at once, and nothing saturates.
pub(super) static DOT_KERNEL: Kernel =
    Kernel { rows: DOT_ROWS, cols: COLS, group: 4, block: 512, bytes: true, tile: dot_tile };

/// # Safety
/// The pointers of the tile are valid for what it describes; the CPU has AVX-512.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn pair_tile(t: &Tile) {
    macro_rules! by_rows {
        ($v:literal; $($r:literal)*) => {
            match t.rows {
                $($r => pair_rows::<$r, $v>(t),)*
                _ => pair_rows::<PAIR_ROWS, $v>(t),
            }
        };
    }
    // SAFETY: the caller's promise; a tile has 1 to 12 rows.
    unsafe {
        if t.narrow {
            by_rows!(1; 1 2 3 4 5 6 7 8 9 10 11)
        } else {
            by_rows!(2; 1 2 3 4 5 6 7 8 9 10 11)
        }
    }
}

/// # Safety
/// The pointers of the tile are valid for what it describes; the CPU has AVX-512 and VNNI.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn dot_tile(t: &Tile) {
    macro_rules! by_rows {
        ($v:literal; $($r:literal)*) => {
            match t.rows {
                $($r => dot_rows::<$r, $v>(t),)*
                _ => dot_rows::<DOT_ROWS, $v>(t),
            }
        };
    }
    // SAFETY: the caller's promise; a tile has 1 to 14 rows.
    unsafe {
        if t.narrow {
            by_rows!(1; 1 2 3 4 5 6 7 8 9 10 11 12 13)
        } else {
            by_rows!(2; 1 2 3 4 5 6 7 8 9 10 11 12 13)
        }
    }
}

/// # Safety
/// As for [`pair_tile`], for R rows and V · 16 columns.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn pair_rows<const R: usize, const V: usize>(t: &Tile) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut acc = load::<R, V>(t);
        let (mut a, mut b) = (t.a, t.b);
        for _ in 0..t.groups {
            let mut bv = [_mm512_setzero_si512(); V];
            for v in 0..V {
                bv[v] = _mm512_cvtepi8_epi16(_mm256_loadu_si256(b.add(v * 32).cast()));
            }
            _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(AHEAD * 2 * COLS));
            for i in 0..R {
                let x = broadcast(a.add(i * t.a_row));
                for v in 0..V {
                    acc[i][v] = _mm512_add_epi32(acc[i][v], _mm512_madd_epi16(x, bv[v]));
                }
            }
            a = a.wrapping_add(4);
            b = b.wrapping_add(2 * COLS);
        }
        subtract(t.zeros, &mut acc);
        store(t, &acc);
    }
}

/// # Safety
/// As for [`dot_tile`], for R rows and V · 16 columns.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn dot_rows<const R: usize, const V: usize>(t: &Tile) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut acc = load::<R, V>(t);
        let (mut a, mut b) = (t.a, t.b);
        for _ in 0..t.groups {
            let mut bv = [_mm512_setzero_si512(); V];
            for v in 0..V {
                bv[v] = _mm512_loadu_si512(b.add(v * 64).cast());
                _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(AHEAD * 4 * COLS + v * 64));
            }
            for i in 0..R {
                let x = broadcast(a.add(i * t.a_row));
                for v in 0..V {
                    acc[i][v] = _mm512_dpbusd_epi32(acc[i][v], x, bv[v]);
                }
            }
            a = a.wrapping_add(4);
            b = b.wrapping_add(4 * COLS);
        }
        subtract(t.shifts, &mut acc);
        subtract(t.zeros, &mut acc);
        store(t, &acc);
    }
}

/// Four bytes in every lane.
///
/// # Safety
/// Four bytes follow.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn broadcast(a: *const u8) -> __m512i {
    // SAFETY: the caller's promise.
    _mm512_set1_epi32(unsafe { a.cast::<i32>().read_unaligned() })
}

/// What the sums start from.
///
/// # Safety
/// C is valid for R rows of V · 16 columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn load<const R: usize, const V: usize>(t: &Tile) -> [[__m512i; V]; R] {
    let mut acc = [[_mm512_setzero_si512(); V]; R];
    if t.accumulate {
        for i in 0..R {
            for v in 0..V {
                // SAFETY: the caller's promise.
                acc[i][v] = unsafe { _mm512_loadu_si512(t.c.add(i * t.c_row + v * 16).cast()) };
            }
        }
    }
    acc
}

/// # Safety
/// Where there is a product, it has R rows and V · 16 columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn subtract<const R: usize, const V: usize>(p: Product, acc: &mut [[__m512i; V]; R]) {
    if p.rows.is_null() {
        return;
    }
    for v in 0..V {
        // SAFETY: the caller's promise.
        let col = unsafe { _mm512_loadu_si512(p.cols.add(v * 16).cast()) };
        for i in 0..R {
            // SAFETY: the caller's promise.
            let row = _mm512_set1_epi32(unsafe { *p.rows.add(i) });
            acc[i][v] = _mm512_sub_epi32(acc[i][v], _mm512_mullo_epi32(row, col));
        }
    }
}

/// # Safety
/// C is valid for R rows of V · 16 columns.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn store<const R: usize, const V: usize>(t: &Tile, acc: &[[__m512i; V]; R]) {
    for i in 0..R {
        for v in 0..V {
            // SAFETY: the caller's promise.
            unsafe { _mm512_storeu_si512(t.c.add(i * t.c_row + v * 16).cast(), acc[i][v]) };
        }
    }
}

/// Unsigned bytes that stand for signed ones: 128 more.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn raise(row: &[i8], out: &mut [u8]) {
    for (o, &x) in out.iter_mut().zip(row) {
        *o = (x as u8) ^ 0x80;
    }
}

/// The sum of the bytes.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn sum(row: &[u8]) -> i32 {
    row.iter().fold(0i32, |s, x| s.wrapping_add(i32::from(*x)))
}
