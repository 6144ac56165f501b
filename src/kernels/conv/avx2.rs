//! Gathering and depthwise sums for AVX2 and FMA.

use super::depthwise::Taps;
use super::im2col::Gather;
use super::scalar;
use crate::kernels::math::avx2::{clamp, splat};
use crate::kernels::strip::avx2::even;
use crate::kernels::strip::{SLACK, Strip};
use std::arch::x86_64::*;

/// Columns of the panels that the AVX2 tile reads.
const WIDTH: usize = 16;

/// Fills the lines of one tap.
#[target_feature(enable = "avx2,fma")]
pub(super) fn gather(g: &Gather<'_>, out: &mut [f32]) {
    let full = match g.runs {
        [run] => run.lane == 0 && run.len == WIDTH,
        _ => false,
    };
    if g.width != WIDTH || g.lines == 0 || g.runs.len() > 4 {
        return scalar::gather(g, out);
    }
    let last = (g.lines - 1) * g.plane;
    let to = out[..(g.lines - 1) * g.line_step + WIDTH].as_mut_ptr();
    if full && g.stride == 1 {
        let from = g.input[g.runs[0].offset..][..last + WIDTH].as_ptr();
        for c in 0..g.lines {
            // SAFETY: both slices were checked up to their last line.
            unsafe {
                let (i, o) = (from.add(c * g.plane), to.add(c * g.line_step));
                let (a, b) = (_mm256_loadu_ps(i), _mm256_loadu_ps(i.add(8)));
                _mm256_storeu_ps(o, a);
                _mm256_storeu_ps(o.add(8), b);
            }
        }
    } else if full && g.stride == 2 && g.runs[0].offset + last + 2 * WIDTH <= g.input.len() {
        let from = g.input[g.runs[0].offset..].as_ptr();
        for c in 0..g.lines {
            // SAFETY: 32 elements were checked to exist from the last line on.
            unsafe {
                let (i, o) = (from.add(c * g.plane), to.add(c * g.line_step));
                _mm256_storeu_ps(o, even(_mm256_loadu_ps(i), _mm256_loadu_ps(i.add(8))));
                let (a, b) = (_mm256_loadu_ps(i.add(16)), _mm256_loadu_ps(i.add(24)));
                _mm256_storeu_ps(o.add(8), even(a, b));
            }
        }
    } else if g.stride == 1 {
        let mut masks = [[_mm256_setzero_si256(); 2]; 4];
        let mut from = [g.input.as_ptr(); 4];
        for ((run, mask), from) in g.runs.iter().zip(&mut masks).zip(&mut from) {
            // Checks what the unmasked lanes read, down to the last line.
            let _ = &g.input[run.offset..][..last + run.len];
            *mask = [lanes(run.lane, run.len, 0), lanes(run.lane, run.len, 8)];
            *from = g.input.as_ptr().wrapping_add(run.offset).wrapping_sub(run.lane);
        }
        for c in 0..g.lines {
            let mut sum = [_mm256_setzero_ps(); 2];
            for r in 0..g.runs.len() {
                let i = from[r].wrapping_add(c * g.plane);
                for h in 0..2 {
                    // SAFETY: the unmasked lanes were checked above; masked ones are not read.
                    let v = unsafe { _mm256_maskload_ps(i.wrapping_add(h * 8), masks[r][h]) };
                    sum[h] = _mm256_or_ps(sum[h], v);
                }
            }
            // SAFETY: the output was checked up to its last line.
            unsafe {
                _mm256_storeu_ps(to.add(c * g.line_step), sum[0]);
                _mm256_storeu_ps(to.add(c * g.line_step + 8), sum[1]);
            }
        }
    } else {
        scalar::gather(g, out);
    }
}

/// All bits set in those of the lanes `base..base + 8` that lie in `lane..lane + len`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn lanes(lane: usize, len: usize, base: i32) -> __m256i {
    let index =
        _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(base));
    let from = _mm256_set1_epi32(lane as i32);
    let end = _mm256_set1_epi32((lane + len) as i32);
    _mm256_andnot_si256(_mm256_cmpgt_epi32(from, index), _mm256_cmpgt_epi32(end, index))
}

/// All outputs of one band: rows of `width` sums, with the bias and an optional clamp.
#[target_feature(enable = "avx2,fma")]
pub(super) fn depthwise(s: &Strip<'_>, t: &Taps<'_>, width: usize, out: &mut [f32]) {
    let rows = out.len() / width.max(1);
    if rows == 0 || width == 0 {
        return;
    }
    // Checks the weights that any tile reads.
    let _ = &t.weights[..s.taps * s.columns.len()];
    let last_row = (rows - 1) * s.row_stride + (s.taps - 1) * s.row_dilation;
    let last_column = s.columns.iter().max().copied().unwrap_or(0);
    // Checks the last element that any tile reads.
    let _ = &s.data[last_row * s.row..][..last_column + width - 1 + SLACK];
    let mut y = 0;
    while y < rows {
        let count = rows - y;
        for x in (0..width).step_by(16) {
            // The last tile of a row is moved left until it is whole, where there is room for that:
            // it then computes some outputs once more, to the same bits.
            let full = if width - x <= 8 { 8 } else { 16 };
            let x = x.min(width.max(full) - full);
            let have = (width - x).min(full);
            let o = out[y * width + x..].as_mut_ptr();
            // SAFETY: the strip was checked for all rows and for 16 columns from any output on;
            // the output holds `count` rows with `have` elements from `o` on.
            unsafe {
                let src = s.data.as_ptr().add(y * s.row_stride * s.row + x);
                // With few rows of taps, telling them apart costs more than it saves.
                let plain = s.row_stride == 1 && s.row_dilation == 1 && s.taps > 3;
                match (count, have <= 8) {
                    (4.., false) if plain => four_rows::<2>(s, t, src, o, width, have),
                    (4.., true) if plain => four_rows::<1>(s, t, src, o, width, have),
                    (4.., false) => tile::<4, 2>(s, t, src, o, width, have),
                    (4.., true) => tile::<4, 1>(s, t, src, o, width, have),
                    (2..=3, false) => tile::<2, 2>(s, t, src, o, width, have),
                    (2..=3, true) => tile::<2, 1>(s, t, src, o, width, have),
                    (_, false) => tile::<1, 2>(s, t, src, o, width, have),
                    (_, true) => tile::<1, 1>(s, t, src, o, width, have),
                }
            }
        }
        y += match count {
            4.. => 4,
            2..=3 => 2,
            _ => 1,
        };
    }
}

/// O output rows by V vectors.
///
/// # Safety
/// The strip holds every row that the O outputs see, and V · 8 columns from each tap on; `out`
/// holds `have` elements in each of O rows, `width` apart.
#[target_feature(enable = "avx2,fma")]
unsafe fn tile<const O: usize, const V: usize>(
    s: &Strip<'_>,
    t: &Taps<'_>,
    src: *const f32,
    out: *mut f32,
    width: usize,
    have: usize,
) {
    let mut acc = [[splat(t.bias); V]; O];
    let step = s.row_stride * s.row;
    let mut weight = t.weights.as_ptr();
    let mut line = src;
    for _ in 0..s.taps {
        for &column in s.columns {
            // SAFETY: the caller's promise; there is one weight per row and column of taps.
            unsafe {
                let from = line.add(column);
                let w = _mm256_broadcast_ss(&*weight);
                for o in 0..O {
                    for v in 0..V {
                        let x = _mm256_loadu_ps(from.add(o * step + v * 8));
                        acc[o][v] = _mm256_fmadd_ps(w, x, acc[o][v]);
                    }
                }
                weight = weight.add(1);
            }
        }
        line = line.wrapping_add(s.row_dilation * s.row);
    }
    // SAFETY: the caller's promise about the output.
    unsafe { store(acc, t, out, width, have) };
}

/// Four output rows by V vectors, one input row at a time: each input vector is loaded once for
/// all the outputs that see it.
///
/// # Safety
/// As for [`tile`] with four rows; row stride and dilation are 1.
#[target_feature(enable = "avx2,fma")]
unsafe fn four_rows<const V: usize>(
    s: &Strip<'_>,
    t: &Taps<'_>,
    src: *const f32,
    out: *mut f32,
    width: usize,
    have: usize,
) {
    let kw = s.columns.len();
    let mut acc = [[splat(t.bias); V]; 4];
    for r in 0..s.taps + 3 {
        let line = src.wrapping_add(r * s.row);
        // Output row o applies row r - o of the weights.
        macro_rules! rows {
            ($($o:literal)*) => {
                for kx in 0..kw {
                    // SAFETY: the caller's promise; rows r - o of the weights exist.
                    unsafe {
                        let from = line.add(*s.columns.get_unchecked(kx));
                        let mut x = [_mm256_setzero_ps(); V];
                        for v in 0..V {
                            x[v] = _mm256_loadu_ps(from.add(v * 8));
                        }
                        $(
                            let w = t.weights.get_unchecked((r - $o) * kw + kx);
                            let w = _mm256_broadcast_ss(w);
                            for v in 0..V {
                                acc[$o][v] = _mm256_fmadd_ps(w, x[v], acc[$o][v]);
                            }
                        )*
                    }
                }
            };
        }
        match ((r + 1).saturating_sub(s.taps), r.min(3)) {
            (0, 0) => rows!(0),
            (0, 1) => rows!(0 1),
            (0, 2) => rows!(0 1 2),
            (0, 3) => rows!(0 1 2 3),
            (1, 1) => rows!(1),
            (1, 2) => rows!(1 2),
            (1, 3) => rows!(1 2 3),
            (2, 2) => rows!(2),
            (2, 3) => rows!(2 3),
            _ => rows!(3),
        }
    }
    // SAFETY: the caller's promise about the output.
    unsafe { store(acc, t, out, width, have) };
}

/// Clamps and stores `have` columns of O rows.
///
/// # Safety
/// `out` holds `have` elements in each of O rows, `width` apart.
#[inline]
#[target_feature(enable = "avx2,fma")]
unsafe fn store<const O: usize, const V: usize>(
    mut acc: [[__m256; V]; O],
    t: &Taps<'_>,
    out: *mut f32,
    width: usize,
    have: usize,
) {
    let (lo, hi) = t.bounds.unwrap_or((f32::NEG_INFINITY, f32::INFINITY));
    let (lo, hi) = (splat(lo), splat(hi));
    for o in 0..O {
        for v in 0..V {
            acc[o][v] = clamp(acc[o][v], lo, hi);
        }
    }
    for o in 0..O {
        // SAFETY: the caller's promise about the output.
        unsafe {
            let to = out.add(o * width);
            if have == V * 8 {
                for v in 0..V {
                    _mm256_storeu_ps(to.add(v * 8), acc[o][v]);
                }
            } else {
                let mut lanes = [0.0f32; 16];
                for v in 0..V {
                    _mm256_storeu_ps(lanes.as_mut_ptr().add(v * 8), acc[o][v]);
                }
                std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, have);
            }
        }
    }
}
