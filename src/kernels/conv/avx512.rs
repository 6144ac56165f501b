//! Gathering panels of 32 columns for AVX-512.

use super::im2col::Gather;
use super::scalar;
use std::arch::x86_64::*;

/// Columns of the panels that the tile reads.
const WIDTH: usize = 32;
/// Runs that are gathered with masks.
const RUNS: usize = 4;

/// Fills the lines of one tap.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn gather(g: &Gather<'_>, out: &mut [f32]) {
    if g.width != WIDTH || g.lines == 0 || g.runs.len() > RUNS || g.stride > 2 {
        return scalar::gather(g, out);
    }
    let last = (g.lines - 1) * g.plane;
    let to = out[..(g.lines - 1) * g.line_step + WIDTH].as_mut_ptr();
    // For each run the lanes that it fills, and where lane 0 would be read.
    let mut masks = [0u32; RUNS];
    let mut from = [g.input.as_ptr(); RUNS];
    for ((run, mask), from) in g.runs.iter().zip(&mut masks).zip(&mut from) {
        if run.len == 0 {
            continue;
        }
        // Checks what the unmasked lanes read, down to the last line.
        let _ = &g.input[run.offset..][..last + (run.len - 1) * g.stride + 1];
        *mask = (u32::MAX >> (WIDTH - run.len.min(WIDTH))) << run.lane;
        *from = from.wrapping_add(run.offset).wrapping_sub(run.lane * g.stride);
    }
    let even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    for c in 0..g.lines {
        let mut sum = [_mm512_setzero_ps(); 2];
        for r in 0..g.runs.len() {
            let i = from[r].wrapping_add(c * g.plane);
            for h in 0..2 {
                let mask = (masks[r] >> (16 * h)) as u16;
                let v = if g.stride == 1 {
                    // SAFETY: the unmasked lanes were checked above; masked ones are not read.
                    unsafe { _mm512_maskz_loadu_ps(mask, i.wrapping_add(16 * h)) }
                } else {
                    // Every bit of the mask at the even place of two.
                    let wide = spread(mask);
                    let i = i.wrapping_add(32 * h);
                    // SAFETY: as above.
                    let (a, b) = unsafe {
                        (
                            _mm512_maskz_loadu_ps(wide as u16, i),
                            _mm512_maskz_loadu_ps((wide >> 16) as u16, i.wrapping_add(16)),
                        )
                    };
                    _mm512_permutex2var_ps(a, even, b)
                };
                sum[h] = _mm512_or_ps(sum[h], v);
            }
        }
        // SAFETY: the output was checked up to its last line.
        unsafe {
            _mm512_storeu_ps(to.add(c * g.line_step), sum[0]);
            _mm512_storeu_ps(to.add(c * g.line_step + 16), sum[1]);
        }
    }
}

/// Bit i of the mask at place 2 i.
fn spread(mask: u16) -> u32 {
    let mut x = u32::from(mask);
    x = (x | x << 8) & 0x00ff_00ff;
    x = (x | x << 4) & 0x0f0f_0f0f;
    x = (x | x << 2) & 0x3333_3333;
    (x | x << 1) & 0x5555_5555
}

#[test]
fn masks_are_spread() {
    for mask in [0, 1, 0x8000, 0xffff, 0x1234, 0xbeef] {
        let want = (0..16).filter(|i| mask >> i & 1 == 1).fold(0, |m, i| m | 1 << (2 * i));
        assert_eq!(spread(mask), want, "{mask:x}");
    }
}
