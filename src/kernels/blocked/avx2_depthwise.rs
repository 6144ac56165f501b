//! Depthwise convolution for AVX2 and FMA.

use super::avx2::{Finish, LINE};
use super::{BLOCK, taps_inside};
use std::arch::x86_64::*;

/// What one output row of one block is summed from. The rows of taps that lie in the image only.
#[derive(Clone, Copy)]
pub(super) struct DepthRow<'a> {
    /// The image from the first row of taps on.
    pub(super) x: &'a [f32],
    /// Columns of the image.
    pub(super) width: usize,
    /// Floats from one row of taps to the next; their number.
    pub(super) row: usize,
    pub(super) rows: usize,
    /// [rows][taps][8].
    pub(super) weights: &'a [f32],
    /// Columns of taps, the distances of outputs and of taps, the columns left of the image.
    pub(super) taps: usize,
    pub(super) stride: usize,
    pub(super) dilation: usize,
    pub(super) pad: usize,
    pub(super) bias: Option<&'a [f32]>,
    pub(super) finish: Finish,
}

/// Computes a row.
///
/// # Safety
/// The CPU has AVX2 and FMA. A residual is as long as `out`.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn depth_row(r: &DepthRow<'_>, out: &mut [f32]) {
    let width = out.len() / BLOCK;
    // Checks what any tap reads.
    if let Some(last) = r.rows.checked_sub(1) {
        let _ = &r.x[last * r.row..][..r.width * BLOCK];
    }
    let _ = &r.weights[..r.rows * r.taps * BLOCK];
    let bias = match r.bias {
        // SAFETY: eight floats were asked for.
        Some(b) => unsafe { _mm256_loadu_ps(b[..BLOCK].as_ptr()) },
        None => _mm256_setzero_ps(),
    };
    macro_rules! by_width {
        ($k:literal, $s:literal, $most:literal; $($p:literal)*) => {{
            let tiles = width.div_ceil($most);
            let p = width.div_ceil(tiles);
            match p {
                $($p => row_of_tiles::<$p, $k, $s>(r, bias, out),)*
                _ => {}
            }
        }};
    }
    // SAFETY: the caller's promise, and the checks above.
    unsafe {
        match (r.taps, r.stride, r.dilation) {
            _ if width == 0 => {}
            (3, 1, 1) => by_width!(3, 1, 10; 1 2 3 4 5 6 7 8 9 10),
            (5, 1, 1) => by_width!(5, 1, 10; 1 2 3 4 5 6 7 8 9 10),
            (7, 1, 1) => by_width!(7, 1, 8; 1 2 3 4 5 6 7 8),
            (3, 2, 1) => by_width!(3, 2, 8; 1 2 3 4 5 6 7 8),
            (5, 2, 1) => by_width!(5, 2, 8; 1 2 3 4 5 6 7 8),
            (7, 2, 1) => by_width!(7, 2, 8; 1 2 3 4 5 6 7 8),
            _ => any_window(r, bias, out),
        }
    }
}

/// Tiles of P positions; the last one is moved left until it is whole, and computes some positions
/// once more, to the same bits.
///
/// # Safety
/// As for [`depth_row`]; `out` holds at least P positions.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn row_of_tiles<const P: usize, const K: usize, const S: usize>(
    r: &DepthRow<'_>,
    bias: __m256,
    out: &mut [f32],
) {
    let width = out.len() / BLOCK;
    let mut x = 0;
    while x < width {
        let at = x.min(width - P);
        let first = at * S;
        let inside = first >= r.pad && first - r.pad + (P - 1) * S + K <= r.width;
        // SAFETY: the tile lies in the row, and inside the image where that is claimed.
        unsafe {
            let to = out.as_mut_ptr().add(at * BLOCK);
            if inside {
                tile::<P, K, S, false>(r, bias, at, to);
            } else {
                tile::<P, K, S, true>(r, bias, at, to);
            }
        }
        x += P;
    }
}

/// P positions from `at` on. One row of weights stays in registers, and each input vector is
/// loaded once for all the positions that see it.
///
/// # Safety
/// As for [`depth_row`]; without EDGE all the columns of taps lie in the image.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const P: usize, const K: usize, const S: usize, const EDGE: bool>(
    r: &DepthRow<'_>,
    bias: __m256,
    at: usize,
    out: *mut f32,
) {
    let mut acc = [[bias]; P];
    let first = (at * S).wrapping_sub(r.pad);
    let mut row = r.x.as_ptr().wrapping_add(first.wrapping_mul(BLOCK));
    let mut w = r.weights.as_ptr();
    // The row below, which the next output row sees, and the output of the next tile.
    let below = row.wrapping_add(r.rows * r.row);
    for l in 0..(P * S * BLOCK).div_ceil(LINE) {
        _mm_prefetch::<_MM_HINT_T0>(below.wrapping_add(l * LINE).cast());
    }
    for l in 0..(P * BLOCK).div_ceil(LINE) {
        let next = out.wrapping_add(P * BLOCK + l * LINE);
        _mm_prefetch::<_MM_HINT_ET0>(next.cast_const().cast());
    }
    for _ in 0..r.rows {
        let mut wv = [_mm256_setzero_ps(); K];
        for k in 0..K {
            // SAFETY: the weights hold `rows` times K vectors.
            wv[k] = unsafe { _mm256_loadu_ps(w.add(k * BLOCK)) };
        }
        macro_rules! columns {
            ($($x:literal)*) => { $(
                if $x < (P - 1) * S + K && !(EDGE && first.wrapping_add($x) >= r.width) {
                    // SAFETY: the column lies in the image.
                    let v = unsafe { _mm256_loadu_ps(row.wrapping_add($x * BLOCK)) };
                    for k in 0..K {
                        let column: usize = $x;
                        if let Some(d) = column.checked_sub(k)
                            && d % S == 0
                            && d / S < P
                        {
                            let p = d / S;
                            acc[p][0] = _mm256_fmadd_ps(v, wv[k], acc[p][0]);
                        }
                    }
                }
            )* };
        }
        columns!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20);
        row = row.wrapping_add(r.row);
        w = w.wrapping_add(K * BLOCK);
    }
    let residual = match r.finish.residual.is_null() {
        true => std::ptr::null(),
        false => r.finish.residual.wrapping_add(at * BLOCK),
    };
    // SAFETY: the caller's promise about the output and the residual.
    unsafe { r.finish.store::<P, 1>(acc, out, residual, 0) };
}

/// Windows of any size, stride and dilation.
///
/// # Safety
/// As for [`depth_row`].
#[target_feature(enable = "avx2,fma")]
unsafe fn any_window(r: &DepthRow<'_>, bias: __m256, out: &mut [f32]) {
    let width = out.len() / BLOCK;
    let reach = (r.taps - 1) * r.dilation + 1;
    let mut x = 0;
    while x < width {
        let first = x * r.stride;
        let inside = |n: usize| {
            x + n <= width
                && first >= r.pad
                && first - r.pad + (n - 1) * r.stride + reach <= r.width
        };
        // SAFETY: the positions lie in the row, and their taps in the image.
        unsafe {
            let to = out.as_mut_ptr().add(x * BLOCK);
            if inside(8) {
                positions::<8>(r, bias, x, 0..r.taps, to);
                x += 8;
            } else if inside(4) {
                positions::<4>(r, bias, x, 0..r.taps, to);
                x += 4;
            } else {
                let taps = taps_inside(x, r.width, r.taps, r.stride, r.dilation, r.pad);
                positions::<1>(r, bias, x, taps, to);
                x += 1;
            }
        }
    }
}

/// P positions from `x` on, of the given columns of taps.
///
/// # Safety
/// These columns lie in the image for all P positions; `out` holds them.
#[target_feature(enable = "avx2,fma")]
unsafe fn positions<const P: usize>(
    r: &DepthRow<'_>,
    bias: __m256,
    x: usize,
    taps: std::ops::Range<usize>,
    out: *mut f32,
) {
    let mut acc = [[bias]; P];
    let first = (x * r.stride + taps.start * r.dilation).wrapping_sub(r.pad);
    for ky in 0..r.rows {
        let mut from =
            r.x.as_ptr().wrapping_add(first.wrapping_mul(BLOCK).wrapping_add(ky * r.row));
        let mut w = r.weights.as_ptr().wrapping_add((ky * r.taps + taps.start) * BLOCK);
        for _ in taps.clone() {
            // SAFETY: the caller's promise.
            unsafe {
                let wv = _mm256_loadu_ps(w);
                for p in 0..P {
                    let v = _mm256_loadu_ps(from.add(p * r.stride * BLOCK));
                    acc[p][0] = _mm256_fmadd_ps(v, wv, acc[p][0]);
                }
            }
            from = from.wrapping_add(r.dilation * BLOCK);
            w = w.wrapping_add(BLOCK);
        }
    }
    let residual = match r.finish.residual.is_null() {
        true => std::ptr::null(),
        false => r.finish.residual.wrapping_add(x * BLOCK),
    };
    // SAFETY: the caller's promise about the output and the residual.
    unsafe { r.finish.store::<P, 1>(acc, out, residual, 0) };
}
