//! The portable kernels.

use super::nearest;
use crate::kernels::gemm::scalar::multiply_add;

const COLS: usize = 8;

/// The two floats in a word.
#[inline(always)]
pub(super) fn pair(word: u32) -> [f32; 2] {
    [f32::from_bits(word << 16), f32::from_bits(word & 0xFFFF_0000)]
}

/// Rounds floats to bfloat16, each of which stays a float.
#[inline(always)]
pub(super) fn round(from: &[f32], to: &mut [f32]) {
    for (to, x) in to.iter_mut().zip(from) {
        *to = f32::from_bits(nearest(*x) << 16);
    }
}

/// Words as lines of `width` floats, as many as `out` has: the two of a word below each other.
#[inline(always)]
pub(super) fn widen(words: &[u32], width: usize, out: &mut [f32]) {
    for (words, lines) in words.chunks_exact(width).zip(out.chunks_mut(2 * width)) {
        let (even, odd) = lines.split_at_mut(width);
        even.iter_mut().zip(words).for_each(|(o, w)| *o = pair(*w)[0]);
        odd.iter_mut().zip(words).for_each(|(o, w)| *o = pair(*w)[1]);
    }
}

/// # Safety
/// Whole panels from `panels` on, as many as `y` takes, hold `pairs` lines of COLS words; `x` holds
/// two elements for each.
pub(super) unsafe fn panels(panels: *const u32, pairs: usize, x: &[f32], y: &mut [f32]) {
    for (i, y) in y.chunks_exact_mut(COLS).enumerate() {
        // SAFETY: the caller's promise.
        let panel =
            unsafe { std::slice::from_raw_parts(panels.add(i * pairs * COLS), pairs * COLS) };
        y.fill(0.0);
        for (words, x) in panel.chunks_exact(COLS).zip(x.as_chunks::<2>().0) {
            for (y, word) in y.iter_mut().zip(words) {
                let [even, odd] = pair(*word);
                *y = multiply_add(x[1], odd, multiply_add(x[0], even, *y));
            }
        }
    }
}
