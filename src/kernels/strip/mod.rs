//! Bands of an image copied so that a sliding window meets no border and one access pattern.
//!
//! A strip holds the rows that a band of output rows sees, with the padding written out. Within a
//! row, the columns that one tap reads for neighbouring outputs are neighbours, whatever the
//! stride. A strip is small enough to stay in the cache.

#[cfg(target_arch = "x86_64")]
pub(in crate::kernels) mod avx2;

use super::Window;
use super::aligned::AlignedF32;
use super::isa::{Isa, Kind};
use std::ops::Range;

/// Floats of a strip that are aimed at: half of a second-level cache of 256 KiB.
const FLOATS: usize = 32 * 1024;

/// Lanes that may be read beyond the last column of a strip.
pub(in crate::kernels) const SLACK: usize = 16;

/// How images of one size are cut into strips.
#[derive(Clone, Debug)]
pub(in crate::kernels) struct StripPlan {
    isa: Isa,
    window: Window,
    size: [usize; 2],
    out: [usize; 2],
    /// The distinct columns of taps, modulo the stride: each has a run of its own in a row.
    remainders: Vec<usize>,
    /// Floats of such a run.
    run: usize,
    /// Where the outputs of column 0 find each tap of a row.
    columns: Vec<usize>,
    /// Output rows of a band.
    band: usize,
}

/// One band of one image.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels) struct Strip<'a> {
    pub data: &'a [f32],
    /// Floats from one row of the strip to the next.
    pub row: usize,
    /// Where the outputs of column 0 find each tap of a row.
    pub columns: &'a [usize],
    /// Rows of taps.
    pub taps: usize,
    pub row_stride: usize,
    pub row_dilation: usize,
}

impl StripPlan {
    /// Whether the strips of this window are of a reasonable size.
    pub(in crate::kernels) fn suits(window: &Window) -> bool {
        let Window { kernel: [kh, kw], strides: [sh, _], dilations: [dh, dw], .. } = *window;
        (kh - 1) * dh <= 4096 && (kw - 1) * dw <= 4096 && sh <= 4096
    }

    /// A plan for images of `size`; window and sizes have been checked, `out` has no zero.
    pub(in crate::kernels) fn new(
        isa: Isa,
        window: Window,
        size: [usize; 2],
        out: [usize; 2],
    ) -> Self {
        let Window { kernel: [kh, kw], strides: [sh, sw], dilations: [dh, dw], .. } = window;
        let mut remainders: Vec<usize> = (0..kw).map(|kx| kx * dw % sw).collect();
        remainders.sort_unstable();
        remainders.dedup();
        let run = out[1] + (kw - 1) * dw / sw + 1 + SLACK;
        let column = |kx: usize| {
            let r = remainders.iter().position(|&r| r == kx * dw % sw).unwrap_or(0);
            r * run + kx * dw / sw
        };
        let columns = (0..kw).map(column).collect();
        let reach = (kh - 1) * dh + 1;
        let rows = FLOATS / (run * remainders.len());
        let band = (rows.saturating_sub(reach) / sh).clamp(8, 256).min(out[0]);
        Self { isa, window, size, out, remainders, run, columns, band }
    }

    /// Bands of an image.
    pub(in crate::kernels) fn bands(&self) -> usize {
        self.out[0].div_ceil(self.band)
    }

    /// Output rows of band `i`.
    pub(in crate::kernels) fn rows(&self, i: usize) -> Range<usize> {
        i * self.band..self.out[0].min((i + 1) * self.band)
    }

    /// Copies what band `i` sees of `image` into `buffer`, with `padding` around it.
    pub(in crate::kernels) fn fill<'a>(
        &'a self,
        image: &[f32],
        i: usize,
        padding: f32,
        buffer: &'a mut AlignedF32,
    ) -> Strip<'a> {
        let Window { kernel: [kh, _], strides: [sh, stride], dilations: [dh, _], pads } =
            self.window;
        let [top, left, ..] = pads;
        let [height, width] = self.size;
        let out_rows = self.rows(i);
        let row = self.run * self.remainders.len();
        let rows = (out_rows.len() - 1) * sh + (kh - 1) * dh + 1;
        buffer.reserve(rows * row + SLACK);
        for (y, row_out) in buffer.chunks_exact_mut(row).take(rows).enumerate() {
            let y = (out_rows.start * sh + y).checked_sub(top).filter(|&y| y < height);
            let Some(y) = y else {
                row_out.fill(padding);
                continue;
            };
            let source = &image[y * width..][..width];
            for (&r, part) in self.remainders.iter().zip(row_out.chunks_exact_mut(self.run)) {
                // Element q of this part is column q · stride + r - left of the image.
                let skip = left.saturating_sub(r).div_ceil(stride).min(self.run);
                let from = (skip * stride + r).saturating_sub(left).min(width);
                let have = (width - from).div_ceil(stride).min(self.run - skip);
                let from = &source[from..];
                match self.isa.kind() {
                    Kind::Scalar => line(from, stride, skip, have, padding, part),
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: an Isa of this kind exists only where the CPU has AVX2 and FMA.
                    Kind::Avx2 => unsafe { avx2::line(from, stride, skip, have, padding, part) },
                }
            }
        }
        Strip {
            data: buffer,
            row,
            columns: &self.columns,
            taps: kh,
            row_stride: sh,
            row_dilation: dh,
        }
    }
}

/// Writes `padding`, then `have` elements of `from` taken `stride` apart, then `padding` again.
fn line(from: &[f32], stride: usize, skip: usize, have: usize, padding: f32, to: &mut [f32]) {
    let (before, to) = to.split_at_mut(skip);
    let (body, after) = to.split_at_mut(have);
    before.fill(padding);
    body.iter_mut().zip(from.iter().step_by(stride)).for_each(|(o, &v)| *o = v);
    after.fill(padding);
}
