//! Depthwise convolution for AVX-512: a vector holds two neighbouring positions of a block.

use super::BLOCK;
use super::avx2::LINE;
use super::avx2_depthwise::{DepthRow, depth_row as depth_row_of_eights};
use super::avx512::act;
use std::arch::x86_64::*;

/// Floats of a vector: two positions.
const LANES: usize = 2 * BLOCK;

/// Computes a row. Windows that vectors of two positions do not suit are left to those of one.
///
/// # Safety
/// The CPU has AVX-512. A residual is as long as `out`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn depth_row(r: &DepthRow<'_>, out: &mut [f32]) {
    let width = out.len() / BLOCK;
    // Checks what any tap reads.
    if let Some(last) = r.rows.checked_sub(1) {
        let _ = &r.x[last * r.row..][..r.width * BLOCK];
    }
    let _ = &r.weights[..r.rows * r.taps * BLOCK];
    let bias = match r.bias {
        // SAFETY: eight floats were asked for.
        Some(b) => unsafe { twice(b[..BLOCK].as_ptr()) },
        None => _mm512_setzero_ps(),
    };
    macro_rules! by_pairs {
        ($k:literal; $($q:literal)*) => {{
            // Tiles of equal width, rounded to pairs, of which the row holds at least one.
            let tiles = width.div_ceil(20);
            match width.div_ceil(tiles).div_ceil(2).min(width / 2) {
                $($q => row_of_tiles::<$q, $k>(r, bias, out),)*
                _ => {}
            }
        }};
    }
    // SAFETY: the caller's promise, and the checks above.
    unsafe {
        match (r.taps, r.stride, r.dilation) {
            (3, 1, 1) if width > 1 => by_pairs!(3; 1 2 3 4 5 6 7 8 9 10),
            (5, 1, 1) if width > 1 => by_pairs!(5; 1 2 3 4 5 6 7 8 9 10),
            (7, 1, 1) if width > 1 => by_pairs!(7; 1 2 3 4 5 6 7 8 9 10),
            _ => depth_row_of_eights(r, out),
        }
    }
}

/// Eight floats in both halves.
///
/// # Safety
/// There are eight.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn twice(from: *const f32) -> __m512 {
    // SAFETY: the caller's promise.
    _mm512_broadcast_f32x8(unsafe { _mm256_loadu_ps(from) })
}

/// Tiles of Q pairs of positions; the last one is moved left until it is whole, and computes some
/// positions once more, to the same bits.
///
/// # Safety
/// As for [`depth_row`]; `out` holds at least Q pairs of positions.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn row_of_tiles<const Q: usize, const K: usize>(
    r: &DepthRow<'_>,
    bias: __m512,
    out: &mut [f32],
) {
    let width = out.len() / BLOCK;
    let mut x = 0;
    while x < width {
        let at = x.min(width - 2 * Q);
        let inside = at >= r.pad && at - r.pad + 2 * Q - 1 + K <= r.width;
        // SAFETY: the tile lies in the row, and inside the image where that is claimed.
        unsafe {
            let to = out.as_mut_ptr().add(at * BLOCK);
            if inside {
                tile::<Q, K, false>(r, bias, at, to);
            } else {
                tile::<Q, K, true>(r, bias, at, to);
            }
        }
        x += 2 * Q;
    }
}

/// Q pairs of positions from `at` on. One row of weights stays in registers, and each pair of
/// neighbouring inputs is loaded once for all the outputs that see it.
///
/// # Safety
/// As for [`depth_row`]; without EDGE all the columns of taps lie in the image.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn tile<const Q: usize, const K: usize, const EDGE: bool>(
    r: &DepthRow<'_>,
    bias: __m512,
    at: usize,
    out: *mut f32,
) {
    let mut acc = [bias; Q];
    let first = at.wrapping_sub(r.pad);
    let mut row = r.x.as_ptr().wrapping_add(first.wrapping_mul(BLOCK));
    let mut w = r.weights.as_ptr();
    // The row below, which the next output row sees, and the output of the next tile.
    let below = row.wrapping_add(r.rows * r.row);
    for l in 0..(Q * LANES).div_ceil(LINE) {
        _mm_prefetch::<_MM_HINT_T0>(below.wrapping_add(l * LINE).cast());
        let next = out.wrapping_add(Q * LANES + l * LINE);
        _mm_prefetch::<_MM_HINT_ET0>(next.cast_const().cast());
    }
    for _ in 0..r.rows {
        let mut wv = [_mm512_setzero_ps(); K];
        for k in 0..K {
            // SAFETY: the weights hold `rows` times K vectors of eight.
            wv[k] = unsafe { twice(w.add(k * BLOCK)) };
        }
        macro_rules! columns {
            ($($x:literal)*) => { $(
                if $x < 2 * Q + K - 2 {
                    let from = row.wrapping_add($x * BLOCK);
                    // The halves that lie in the image; a tap beside it is left out.
                    let half = |x: usize, lanes| {
                        if EDGE && first.wrapping_add(x) >= r.width { 0 } else { lanes }
                    };
                    let mask: __mmask16 = half($x, 0x00ff) | half($x + 1, 0xff00);
                    let v = if EDGE {
                        // SAFETY: the columns of the mask lie in the image.
                        unsafe { _mm512_maskz_loadu_ps(mask, from) }
                    } else {
                        // SAFETY: both columns lie in the image.
                        unsafe { _mm512_loadu_ps(from) }
                    };
                    for k in 0..K {
                        let column: usize = $x;
                        if let Some(d) = column.checked_sub(k)
                            && d % 2 == 0
                            && d / 2 < Q
                        {
                            let q = d / 2;
                            acc[q] = if EDGE {
                                _mm512_mask3_fmadd_ps(v, wv[k], acc[q], mask)
                            } else {
                                _mm512_fmadd_ps(v, wv[k], acc[q])
                            };
                        }
                    }
                }
            )* };
        }
        columns!(0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24);
        row = row.wrapping_add(r.row);
        w = w.wrapping_add(K * BLOCK);
    }
    for q in 0..Q {
        // SAFETY: the output holds the tile, as does the residual where there is one.
        unsafe {
            if !r.finish.residual.is_null() {
                let residual = r.finish.residual.add(at * BLOCK + q * LANES);
                acc[q] = _mm512_add_ps(acc[q], _mm512_loadu_ps(residual));
            }
            _mm512_storeu_ps(out.add(q * LANES), act(r.finish.activation, acc[q]));
        }
    }
}
