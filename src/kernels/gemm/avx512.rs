//! The 14 × 32 tile for AVX-512.

use super::kernel::{Finish, Kernel, Tile, VectorKernels};
use crate::kernels::Activation;
use crate::kernels::math::avx512::{self as math, splat};
use std::arch::x86_64::*;

const ROWS: usize = 14;
const COLS: usize = 32;

/// Rows of a panel that are asked for ahead: two panels and a tile of A do not fit into a
/// first-level cache of 32 KiB, so B comes from the second level as it is needed.
const AHEAD: usize = 16;

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
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn tile(t: &Tile<'_>) {
    macro_rules! by_rows {
        ($v:literal, $packed:literal, $b:ident; $($r:literal)*) => {
            match t.rows {
                $($r => rows::<$r, $v, $packed, $b>(t),)*
                _ => rows::<ROWS, $v, $packed, $b>(t),
            }
        };
        ($v:literal, $packed:literal, $b:ident) => {
            by_rows!($v, $packed, $b; 1 2 3 4 5 6 7 8 9 10 11 12 13)
        };
    }
    let packed = t.a_row == 1 && t.a_k == t.rows;
    let panel = t.b_k == COLS;
    // SAFETY: the tile has 1 to 14 rows, and its pointers are valid for what it describes.
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

/// R rows by V vectors of 16 columns. The accumulators meet only loops that are unrolled whole, so
/// that they stay in registers; whatever needs a choice per value is left to [`second_pass`].
///
/// # Safety
/// As for [`Kernel::tile`], for R rows and V · 16 columns.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn rows<const R: usize, const V: usize, const PACKED: bool, const B: u8>(t: &Tile<'_>) {
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
        // The output is asked for while the sums are made.
        for i in 0..R {
            for v in 0..V {
                _mm_prefetch::<_MM_HINT_T0>(t.c.wrapping_add(i * t.c_row + v * 16).cast());
            }
        }
        let scattered = t.b_at.unwrap_or(&[]).as_ptr();
        let (mut p, mut a, mut b) = (0, t.a, t.b);
        macro_rules! step {
            ($l:expr) => {{
                let line = match B {
                    SCATTERED => t.b.add(*scattered.add(p + $l)),
                    PANEL => b.add($l * COLS),
                    _ => b.add($l * t.b_k),
                };
                let mut bv = [_mm512_setzero_ps(); V];
                for v in 0..V {
                    bv[v] = _mm512_loadu_ps(line.add(v * 16));
                    if B == PANEL {
                        let next = line.wrapping_add(AHEAD * COLS + v * 16);
                        _mm_prefetch::<_MM_HINT_T0>(next.cast());
                    }
                }
                for i in 0..R {
                    let at = if PACKED { $l * R + i } else { i * t.a_row + $l };
                    let x = splat(*a.add(at));
                    for v in 0..V {
                        acc[i][v] = _mm512_fmadd_ps(x, bv[v], acc[i][v]);
                    }
                }
            }};
        }
        if PACKED {
            while p + 2 <= t.k {
                step!(0);
                step!(1);
                p += 2;
                a = a.wrapping_add(2 * R);
                b = b.wrapping_add(2 * t.b_k);
            }
        }
        // Rows as they lie are not unrolled: loads of two depths at once would be taken apart in
        // registers that the sums need.
        while p < t.k {
            if !PACKED && p % 16 == 0 {
                // Rows that lie far apart are asked for a tile ahead, a line of each at a time.
                for i in 0..R {
                    let line = t.a_next.wrapping_add(i * t.a_row + p);
                    _mm_prefetch::<_MM_HINT_T0>(line.cast());
                }
            }
            step!(0);
            p += 1;
            a = a.wrapping_add(if PACKED { R } else { 1 });
            b = b.wrapping_add(t.b_k);
        }
        if let Some(f) = &t.finish {
            if f.alpha != 1.0 {
                let alpha = splat(f.alpha);
                for i in 0..R {
                    for v in 0..V {
                        acc[i][v] = _mm512_mul_ps(acc[i][v], alpha);
                    }
                }
            }
            if f.beta != 0.0 {
                let beta = splat(f.beta);
                for i in 0..R {
                    for v in 0..V {
                        let c = _mm512_loadu_ps(t.c.add(i * t.c_row + v * 16));
                        acc[i][v] = _mm512_fmadd_ps(c, beta, acc[i][v]);
                    }
                }
            }
            if !f.row_bias.is_null() {
                for i in 0..R {
                    let x = splat(*f.row_bias.add(i));
                    for v in 0..V {
                        acc[i][v] = _mm512_add_ps(acc[i][v], x);
                    }
                }
            }
            if !f.col_bias.is_null() {
                for v in 0..V {
                    let x = _mm512_loadu_ps(f.col_bias.add(v * 16));
                    for i in 0..R {
                        acc[i][v] = _mm512_add_ps(acc[i][v], x);
                    }
                }
            }
            if !f.residual.is_null() && !f.residual_last {
                for i in 0..R {
                    for v in 0..V {
                        let x = _mm512_loadu_ps(f.residual.add(i * f.residual_row + v * 16));
                        acc[i][v] = _mm512_add_ps(acc[i][v], x);
                    }
                }
            }
            if let Some((lo, hi)) = f.activation.bounds()
                && f.activation != Activation::None
            {
                let (lo, hi) = (splat(lo), splat(hi));
                for i in 0..R {
                    for v in 0..V {
                        acc[i][v] = math::clamp(acc[i][v], lo, hi);
                    }
                }
            }
        }
        for i in 0..R {
            for v in 0..V {
                _mm512_storeu_ps(t.c.add(i * t.c_row + v * 16), acc[i][v]);
            }
        }
    }
}

/// Applies to the lines just stored, still in the first-level cache, what is more than a clamp.
///
/// # Safety
/// As for [`Kernel::tile`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn second_pass(f: &Finish, t: &Tile<'_>) {
    macro_rules! each {
        (|$x:ident| $body:expr) => {
            for i in 0..t.rows {
                for v in 0..if t.narrow { 1 } else { 2 } {
                    // SAFETY: the tile's rows and columns are valid.
                    unsafe {
                        let c = t.c.add(i * t.c_row + v * 16);
                        let $x = _mm512_loadu_ps(c);
                        _mm512_storeu_ps(c, $body);
                    }
                }
            }
        };
    }
    match f.activation {
        Activation::None | Activation::Relu | Activation::Clip { .. } => {}
        Activation::HardSwish => each!(|x| math::hard_swish(x)),
        Activation::HardSigmoid { alpha, beta } => {
            let (a, b) = (splat(alpha), splat(beta));
            let (zero, one) = (splat(0.0), splat(1.0));
            each!(|x| math::clamp(_mm512_fmadd_ps(x, a, b), zero, one));
        }
        Activation::Sigmoid => each!(|x| math::sigmoid(x)),
        Activation::Silu => each!(|x| _mm512_mul_ps(x, math::sigmoid(x))),
        Activation::Gelu => each!(|x| math::gelu(x)),
        Activation::Tanh => each!(|x| math::tanh(x)),
    }
    if f.residual_last && !f.residual.is_null() {
        for i in 0..t.rows {
            for v in 0..if t.narrow { 1 } else { 2 } {
                // SAFETY: the tile's rows and columns are valid in C and in the residual.
                unsafe {
                    let c = t.c.add(i * t.c_row + v * 16);
                    let r = _mm512_loadu_ps(f.residual.add(i * f.residual_row + v * 16));
                    _mm512_storeu_ps(c, _mm512_add_ps(_mm512_loadu_ps(c), r));
                }
            }
        }
    }
}

/// The first `n` of 16 lanes.
fn first(n: usize) -> __mmask16 {
    if n >= 16 { !0 } else { (1 << n) - 1 }
}

/// # Safety
/// As for [`VectorKernels::dot_rows`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn dot_rows(matrix: *const f32, row: usize, x: &[f32], y: &mut [f32]) {
    let (k, xp) = (x.len(), x.as_ptr());
    for (i, y) in y.iter_mut().enumerate() {
        // SAFETY: row i holds k elements, as does x; a mask keeps the last loads within them.
        unsafe {
            let r = matrix.add(i * row);
            let mut acc = [_mm512_setzero_ps(); 4];
            let mut p = 0;
            while p + 64 <= k {
                for l in 0..4 {
                    let (a, b) =
                        (_mm512_loadu_ps(r.add(p + l * 16)), _mm512_loadu_ps(xp.add(p + l * 16)));
                    acc[l] = _mm512_fmadd_ps(a, b, acc[l]);
                }
                p += 64;
            }
            let mut l = 0;
            while p < k {
                let mask = first(k - p);
                let (a, b) =
                    (_mm512_maskz_loadu_ps(mask, r.add(p)), _mm512_maskz_loadu_ps(mask, xp.add(p)));
                acc[l] = _mm512_fmadd_ps(a, b, acc[l]);
                p += 16;
                l += 1;
            }
            let s = _mm512_add_ps(_mm512_add_ps(acc[0], acc[1]), _mm512_add_ps(acc[2], acc[3]));
            *y = _mm512_reduce_add_ps(s);
        }
    }
}

/// # Safety
/// As for [`VectorKernels::add_rows`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn add_rows(matrix: *const f32, row: usize, x: &[f32], y: &mut [f32]) {
    let n = y.len();
    let yp = y.as_mut_ptr();
    y.fill(0.0);
    // Four rows at a time, so that y is read and written a quarter as often.
    for (g, xs) in x.chunks(4).enumerate() {
        let r = matrix.wrapping_add(4 * g * row);
        let mut j = 0;
        while j < n {
            let mask = first(n - j);
            // SAFETY: rows 4g.. of the matrix hold n elements, as does y; the mask keeps to them.
            unsafe {
                let mut s = _mm512_maskz_loadu_ps(mask, yp.add(j));
                for (l, x) in xs.iter().enumerate() {
                    let v = _mm512_maskz_loadu_ps(mask, r.add(l * row + j));
                    s = _mm512_fmadd_ps(splat(*x), v, s);
                }
                _mm512_mask_storeu_ps(yp.add(j), mask, s);
            }
            j += 16;
        }
    }
}

/// # Safety
/// As for [`VectorKernels::panels`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn panels(panels: *const f32, panel: usize, x: &[f32], y: &mut [f32]) {
    let mut i = 0;
    for group in y.chunks_mut(4 * COLS) {
        let p = panels.wrapping_add(i * panel);
        // SAFETY: panel i and the following ones, as many as the group has, hold x.len() rows of
        // COLS elements.
        unsafe {
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
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn panel_group<const P: usize>(panels: *const f32, panel: usize, x: &[f32], y: &mut [f32]) {
    let mut acc = [[_mm512_setzero_ps(); 2]; P];
    // SAFETY: the caller's promise; prefetching beyond the end touches nothing.
    unsafe {
        for (k, &x) in x.iter().enumerate() {
            let x = splat(x);
            for p in 0..P {
                let b = panels.add(p * panel + k * COLS);
                for v in 0..2 {
                    let next = b.wrapping_add(32 * COLS + v * 16);
                    _mm_prefetch::<_MM_HINT_T0>(next.cast());
                    acc[p][v] = _mm512_fmadd_ps(x, _mm512_loadu_ps(b.add(v * 16)), acc[p][v]);
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
