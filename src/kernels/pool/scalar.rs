//! The portable pooling of one band.

use crate::kernels::strip::Strip;

/// The larger of two values; NaN where either is.
pub(in crate::kernels) fn max(a: f32, b: f32) -> f32 {
    if b > a || b.is_nan() { b } else { a }
}

/// Maxima or sums of all outputs of one band, in rows of `width`.
pub(super) fn pool(s: &Strip<'_>, maximum: bool, width: usize, out: &mut [f32]) {
    for (y, line) in out.chunks_exact_mut(width).enumerate() {
        for (x, o) in line.iter_mut().enumerate() {
            let mut acc = if maximum { f32::NEG_INFINITY } else { 0.0 };
            for ky in 0..s.taps {
                let row = &s.data[(y * s.row_stride + ky * s.row_dilation) * s.row..];
                for column in s.columns {
                    let v = row[column + x];
                    acc = if maximum { max(acc, v) } else { acc + v };
                }
            }
            *o = acc;
        }
    }
}
