//! The portable parts of convolution.

use super::depthwise::Strip;
use super::im2col::Gather;
use crate::kernels::epilogue::clip;

/// Fills the lines of one tap.
pub(super) fn gather(g: &Gather<'_>, out: &mut [f32]) {
    for c in 0..g.lines {
        let line = &mut out[c * g.line_step..][..g.width];
        line.fill(0.0);
        for run in g.runs {
            let to = line[run.lane..][..run.len].iter_mut();
            let from = g.input[run.offset + c * g.plane..].iter().step_by(g.stride);
            to.zip(from).for_each(|(o, &v)| *o = v);
        }
    }
}

/// Sums of one output row of a depthwise convolution, `out.len()` of them from column 0 on.
pub(super) fn depthwise_row(
    s: &Strip<'_>,
    first_row: usize,
    bounds: Option<(f32, f32)>,
    out: &mut [f32],
) {
    for (x, o) in out.iter_mut().enumerate() {
        let mut sum = s.bias;
        for (ky, taps) in s.weights.chunks_exact(s.columns.len()).enumerate() {
            let row = &s.data[(first_row + ky * s.row_dilation) * s.row..];
            for (w, column) in taps.iter().zip(s.columns) {
                sum += w * row[column + x];
            }
        }
        *o = bounds.map_or(sum, |(lo, hi)| clip(sum, lo, hi));
    }
}

/// Copies every `stride`-th element of `from`, beginning with the first, to `to`.
pub(super) fn deinterleave(from: &[f32], stride: usize, to: &mut [f32]) {
    to.iter_mut().zip(from.iter().step_by(stride)).for_each(|(o, &v)| *o = v);
}
