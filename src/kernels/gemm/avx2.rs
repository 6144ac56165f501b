//! The 6 × 16 tile for AVX2 and FMA.

use super::kernel::{Finish, Kernel, Tile, VectorKernels};
use crate::kernels::Activation;
use crate::kernels::math::avx2 as math;
use std::arch::x86_64::*;

const ROWS: usize = 6;
const COLS: usize = 16;

/// Rows of B are those of a panel, one after the other.
const PANEL: u8 = 0;
/// Rows of B lie at equal distances.
const STRIDED: u8 = 1;
/// Rows of B lie at given places.
const SCATTERED: u8 = 2;

pub(super) static KERNEL: Kernel =
    Kernel { rows: ROWS, cols: COLS, tile, vector: VectorKernels { dot_rows, add_rows, panels } };

/// # Safety
/// As for [`Kernel::tile`].
#[target_feature(enable = "avx2,fma")]
unsafe fn tile(t: &Tile<'_>) {
    macro_rules! by_rows {
        ($v:literal, $packed:literal, $b:ident) => {
            match t.rows {
                1 => rows::<1, $v, $packed, $b>(t),
                2 => rows::<2, $v, $packed, $b>(t),
                3 => rows::<3, $v, $packed, $b>(t),
                4 => rows::<4, $v, $packed, $b>(t),
                5 => rows::<5, $v, $packed, $b>(t),
                _ => rows::<ROWS, $v, $packed, $b>(t),
            }
        };
    }
    let packed = t.a_row == 1 && t.a_k == t.rows;
    let panel = t.b_k == COLS;
    // SAFETY: the tile has 1 to 6 rows, and its pointers are valid for what it describes.
    unsafe {
        match (t.narrow, packed, t.b_at) {
            (false, _, Some(_)) => by_rows!(2, true, SCATTERED),
            (true, _, Some(_)) => by_rows!(1, true, SCATTERED),
            (false, true, None) if panel => by_rows!(2, true, PANEL),
            (true, true, None) if panel => by_rows!(1, true, PANEL),
            (false, true, None) => by_rows!(2, true, STRIDED),
            (true, true, None) => by_rows!(1, true, STRIDED),
            (false, false, None) if panel => by_rows!(2, false, PANEL),
            (true, false, None) if panel => by_rows!(1, false, PANEL),
            (false, false, None) => by_rows!(2, false, STRIDED),
            (true, false, None) => by_rows!(1, false, STRIDED),
        }
        if let Some(f) = &t.finish {
            second_pass(f, t);
        }
    }
}

/// R rows by V vectors of 8 columns. The accumulators meet only loops that are unrolled whole, so
/// that they stay in registers; whatever needs a choice per value is left to [`second_pass`].
///
/// # Safety
/// As for [`Kernel::tile`], for R rows and V · 8 columns.
#[target_feature(enable = "avx2,fma")]
unsafe fn rows<const R: usize, const V: usize, const PACKED: bool, const B: u8>(t: &Tile<'_>) {
    // SAFETY: the pointers are valid for R rows, k depths and the columns of the tile.
    unsafe {
        let mut acc = [[_mm256_setzero_ps(); V]; R];
        if t.accumulate {
            for i in 0..R {
                for v in 0..V {
                    acc[i][v] = _mm256_loadu_ps(t.c.add(i * t.c_row + v * 8));
                }
            }
        }
        // The output is asked for while the sums are made.
        for i in 0..R {
            _mm_prefetch::<_MM_HINT_T0>(t.c.wrapping_add(i * t.c_row).cast());
            _mm_prefetch::<_MM_HINT_T0>(t.c.wrapping_add(i * t.c_row + V * 8 - 1).cast());
        }
        let scattered = t.b_at.unwrap_or(&[]).as_ptr();
        // A step is unrolled: what is not a multiply-add or one of its loads takes the place of
        // one where another thread shares the core.
        let (mut p, mut a, mut b, mut next) = (0, t.a, t.b, t.b_next);
        macro_rules! step {
            ($l:expr) => {{
                let line = match B {
                    SCATTERED => t.b.add(*scattered.add(p + $l)),
                    PANEL => b.add($l * COLS),
                    _ => b.add($l * t.b_k),
                };
                let mut bv = [_mm256_setzero_ps(); V];
                for v in 0..V {
                    bv[v] = _mm256_loadu_ps(line.add(v * 8));
                }
                for i in 0..R {
                    let at = if PACKED { $l * R + i } else { i * t.a_row + $l };
                    let x = _mm256_broadcast_ss(&*a.add(at));
                    for v in 0..V {
                        acc[i][v] = _mm256_fmadd_ps(x, bv[v], acc[i][v]);
                    }
                }
            }};
        }
        while p + 4 <= t.k {
            if B == PANEL {
                _mm_prefetch::<_MM_HINT_T0>(next.cast());
                _mm_prefetch::<_MM_HINT_T0>(next.wrapping_add(COLS).cast());
                next = next.wrapping_add(2 * COLS);
            }
            if !PACKED && p % 16 == 0 {
                // Rows that lie far apart are asked for a tile ahead, a line of each at a time.
                for i in 0..R {
                    let line = t.a_next.wrapping_add(i * t.a_row + p);
                    _mm_prefetch::<_MM_HINT_T0>(line.cast());
                }
            }
            step!(0);
            step!(1);
            step!(2);
            step!(3);
            p += 4;
            a = a.wrapping_add(if PACKED { 4 * R } else { 4 });
            b = b.wrapping_add(4 * t.b_k);
        }
        while p < t.k {
            step!(0);
            p += 1;
            a = a.wrapping_add(if PACKED { R } else { 1 });
            b = b.wrapping_add(t.b_k);
        }
        if let Some(f) = &t.finish {
            if f.alpha != 1.0 {
                let alpha = math::splat(f.alpha);
                for i in 0..R {
                    for v in 0..V {
                        acc[i][v] = _mm256_mul_ps(acc[i][v], alpha);
                    }
                }
            }
            if f.beta != 0.0 {
                let beta = math::splat(f.beta);
                for i in 0..R {
                    for v in 0..V {
                        let c = _mm256_loadu_ps(t.c.add(i * t.c_row + v * 8));
                        acc[i][v] = _mm256_fmadd_ps(c, beta, acc[i][v]);
                    }
                }
            }
            if !f.row_bias.is_null() {
                for i in 0..R {
                    let x = _mm256_broadcast_ss(&*f.row_bias.add(i));
                    for v in 0..V {
                        acc[i][v] = _mm256_add_ps(acc[i][v], x);
                    }
                }
            }
            if !f.col_bias.is_null() {
                for v in 0..V {
                    let x = _mm256_loadu_ps(f.col_bias.add(v * 8));
                    for i in 0..R {
                        acc[i][v] = _mm256_add_ps(acc[i][v], x);
                    }
                }
            }
            if !f.residual.is_null() && !f.residual_last {
                for i in 0..R {
                    for v in 0..V {
                        let x = _mm256_loadu_ps(f.residual.add(i * f.residual_row + v * 8));
                        acc[i][v] = _mm256_add_ps(acc[i][v], x);
                    }
                }
            }
            if let Some((lo, hi)) = f.activation.bounds()
                && f.activation != Activation::None
            {
                let (lo, hi) = (math::splat(lo), math::splat(hi));
                for i in 0..R {
                    for v in 0..V {
                        acc[i][v] = math::clamp(acc[i][v], lo, hi);
                    }
                }
            }
        }
        for i in 0..R {
            for v in 0..V {
                _mm256_storeu_ps(t.c.add(i * t.c_row + v * 8), acc[i][v]);
            }
        }
    }
}

/// Applies to the lines just stored, still in the first-level cache, what is more than a clamp.
///
/// # Safety
/// As for [`Kernel::tile`].
#[target_feature(enable = "avx2,fma")]
unsafe fn second_pass(f: &Finish, t: &Tile<'_>) {
    macro_rules! each {
        (|$x:ident| $body:expr) => {
            for i in 0..t.rows {
                for v in 0..if t.narrow { 1 } else { 2 } {
                    // SAFETY: the tile's rows and columns are valid.
                    unsafe {
                        let c = t.c.add(i * t.c_row + v * 8);
                        let $x = _mm256_loadu_ps(c);
                        _mm256_storeu_ps(c, $body);
                    }
                }
            }
        };
    }
    match f.activation {
        Activation::None | Activation::Relu | Activation::Clip { .. } => {}
        Activation::HardSwish => each!(|x| math::hard_swish(x)),
        Activation::HardSigmoid { alpha, beta } => {
            let (a, b) = (math::splat(alpha), math::splat(beta));
            let (zero, one) = (math::splat(0.0), math::splat(1.0));
            each!(|x| math::clamp(_mm256_fmadd_ps(x, a, b), zero, one));
        }
        Activation::Sigmoid => each!(|x| math::sigmoid(x)),
        Activation::Silu => each!(|x| _mm256_mul_ps(x, math::sigmoid(x))),
        Activation::Gelu => each!(|x| math::gelu(x)),
        Activation::Tanh => each!(|x| math::tanh(x)),
    }
    if f.residual_last && !f.residual.is_null() {
        for i in 0..t.rows {
            for v in 0..if t.narrow { 1 } else { 2 } {
                // SAFETY: the tile's rows and columns are valid in C and in the residual.
                unsafe {
                    let c = t.c.add(i * t.c_row + v * 8);
                    let r = _mm256_loadu_ps(f.residual.add(i * f.residual_row + v * 8));
                    _mm256_storeu_ps(c, _mm256_add_ps(_mm256_loadu_ps(c), r));
                }
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn sum_lanes(v: __m256) -> f32 {
    let x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
    let x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)))
}

/// # Safety
/// As for [`VectorKernels::dot_rows`].
#[target_feature(enable = "avx2,fma")]
unsafe fn dot_rows(matrix: *const f32, row: usize, x: &[f32], y: &mut [f32]) {
    let (k, xp) = (x.len(), x.as_ptr());
    let mut tail = [0.0f32; 8];
    tail[..k % 8].copy_from_slice(&x[k - k % 8..]);
    let whole = k - k % 8;
    for (i, y) in y.iter_mut().enumerate() {
        // SAFETY: row i holds k elements, as does x.
        unsafe {
            let r = matrix.add(i * row);
            let mut acc = [_mm256_setzero_ps(); 4];
            let mut p = 0;
            while p + 32 <= whole {
                for l in 0..4 {
                    let (a, b) =
                        (_mm256_loadu_ps(r.add(p + l * 8)), _mm256_loadu_ps(xp.add(p + l * 8)));
                    acc[l] = _mm256_fmadd_ps(a, b, acc[l]);
                }
                p += 32;
            }
            while p < whole {
                let (a, b) = (_mm256_loadu_ps(r.add(p)), _mm256_loadu_ps(xp.add(p)));
                acc[0] = _mm256_fmadd_ps(a, b, acc[0]);
                p += 8;
            }
            if whole < k {
                let mut last = [0.0f32; 8];
                std::ptr::copy_nonoverlapping(r.add(whole), last.as_mut_ptr(), k - whole);
                let (a, b) = (_mm256_loadu_ps(last.as_ptr()), _mm256_loadu_ps(tail.as_ptr()));
                acc[1] = _mm256_fmadd_ps(a, b, acc[1]);
            }
            let s = _mm256_add_ps(_mm256_add_ps(acc[0], acc[1]), _mm256_add_ps(acc[2], acc[3]));
            *y = sum_lanes(s);
        }
    }
}

/// # Safety
/// As for [`VectorKernels::add_rows`].
#[target_feature(enable = "avx2,fma")]
unsafe fn add_rows(matrix: *const f32, row: usize, x: &[f32], y: &mut [f32]) {
    y.fill(0.0);
    let n = y.len();
    let yp = y.as_mut_ptr();
    // Four rows at a time, so that y is read and written a quarter as often.
    for (g, xs) in x.chunks(4).enumerate() {
        // SAFETY: rows 4g.. of the matrix hold n elements, as does y.
        unsafe {
            let r = matrix.add(4 * g * row);
            let mut j = 0;
            if let &[x0, x1, x2, x3] = xs {
                let xv = [math::splat(x0), math::splat(x1), math::splat(x2), math::splat(x3)];
                while j + 8 <= n {
                    let mut s = _mm256_loadu_ps(yp.add(j));
                    for l in 0..4 {
                        s = _mm256_fmadd_ps(xv[l], _mm256_loadu_ps(r.add(l * row + j)), s);
                    }
                    _mm256_storeu_ps(yp.add(j), s);
                    j += 8;
                }
            }
            while j < n {
                let mut s = *yp.add(j);
                for (l, x) in xs.iter().enumerate() {
                    s = x.mul_add(*r.add(l * row + j), s);
                }
                *yp.add(j) = s;
                j += 1;
            }
        }
    }
}

/// # Safety
/// As for [`VectorKernels::panels`].
#[target_feature(enable = "avx2,fma")]
unsafe fn panels(panels: *const f32, panel: usize, x: &[f32], y: &mut [f32]) {
    let mut i = 0;
    for group in y.chunks_mut(4 * COLS) {
        // SAFETY: panel i and the following ones, as many as the group has, hold x.len() rows of
        // COLS elements; prefetching beyond the end touches nothing.
        unsafe {
            let p = panels.add(i * panel);
            match group.len() / COLS {
                4 => panel_group::<4>(p, panel, x, group),
                3 => panel_group::<3>(p, panel, x, group),
                2 => panel_group::<2>(p, panel, x, group),
                _ => panel_group::<1>(p, panel, x, group),
            }
        }
        i += 4;
    }
}

/// P panels side by side: enough sums in flight to hide their latency, and P streams to read.
///
/// # Safety
/// P panels hold x.len() rows of COLS elements; `y` holds P · COLS elements.
#[target_feature(enable = "avx2,fma")]
unsafe fn panel_group<const P: usize>(panels: *const f32, panel: usize, x: &[f32], y: &mut [f32]) {
    let mut acc = [[_mm256_setzero_ps(); 2]; P];
    // SAFETY: the caller's promise.
    unsafe {
        for (k, &x) in x.iter().enumerate() {
            let x = math::splat(x);
            for p in 0..P {
                let b = panels.add(p * panel + k * COLS);
                _mm_prefetch::<_MM_HINT_T0>(b.wrapping_add(64 * COLS).cast());
                acc[p][0] = _mm256_fmadd_ps(x, _mm256_loadu_ps(b), acc[p][0]);
                acc[p][1] = _mm256_fmadd_ps(x, _mm256_loadu_ps(b.add(8)), acc[p][1]);
            }
        }
        for p in 0..P {
            _mm256_storeu_ps(y.as_mut_ptr().add(p * COLS), acc[p][0]);
            _mm256_storeu_ps(y.as_mut_ptr().add(p * COLS + 8), acc[p][1]);
        }
    }
}
