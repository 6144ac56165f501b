//! The portable parts of convolution.

use super::depthwise::Taps;
use super::im2col::Gather;
use crate::kernels::epilogue::clip;
use crate::kernels::strip::Strip;

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
pub(super) fn depthwise_row(s: &Strip<'_>, taps: &Taps<'_>, first_row: usize, out: &mut [f32]) {
    for (x, o) in out.iter_mut().enumerate() {
        let mut sum = taps.bias;
        for (ky, weights) in taps.weights.chunks_exact(s.columns.len()).enumerate() {
            let row = &s.data[(first_row + ky * s.row_dilation) * s.row..];
            for (w, column) in weights.iter().zip(s.columns) {
                sum += w * row[column + x];
            }
        }
        *o = taps.bounds.map_or(sum, |(lo, hi)| clip(sum, lo, hi));
    }
}
