//! Bands of an image copied so that a sliding window meets no border and one access pattern.
//!
//! A strip holds the rows that a band of output rows sees, with the padding written out. Within a
//! row, the columns that one tap reads for neighbouring outputs are neighbours, whatever the
//! stride. A strip is small enough to stay in the cache.

#[cfg(target_arch = "x86_64")]
pub(in crate::kernels) mod avx2;

use super::Window;
use super::isa::{Isa, Kind};
use std::ops::Range;

/// Floats of a strip that are aimed at: half of a second-level cache of 256 KiB.
const FLOATS: usize = 32 * 1024;

/// Lanes that may be read beyond the last column of a strip, at least.
pub(in crate::kernels) const SLACK: usize = 16;

/// The lanes of the widest tile of an instruction set, which may be read beyond the last column.
fn slack(isa: Isa) -> usize {
    match isa.kind() {
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => 2 * SLACK,
        _ => SLACK,
    }
}

/// How images of one size are cut into strips.
#[derive(Clone, Debug)]
pub(in crate::kernels) struct StripPlan {
    isa: Isa,
    window: Window,
    size: [usize; 2],
    out: [usize; 2],
    /// The runs of a row: one for each distinct column of taps, modulo the stride.
    runs: Vec<Run>,
    /// Floats of such a run.
    run: usize,
    /// Where the outputs of column 0 find each tap of a row.
    columns: Vec<usize>,
    /// Output rows of a band.
    band: usize,
}

/// How one run of a row is filled: padding, then `have` columns of the image from `from` on, a
/// stride apart, then padding again.
#[derive(Clone, Copy, Debug)]
struct Run {
    skip: usize,
    from: usize,
    have: usize,
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
        let mut plan = Self::with_band(isa, window, size, out, 1);
        plan.band = plan.band_within(FLOATS).max(8).min(out[0]);
        plan
    }

    /// A plan whose strips hold at most `floats`, if there is one.
    pub(in crate::kernels) fn within(
        isa: Isa,
        window: Window,
        size: [usize; 2],
        out: [usize; 2],
        floats: usize,
    ) -> Option<Self> {
        let mut plan = Self::with_band(isa, window, size, out, 1);
        if plan.floats() > floats {
            return None;
        }
        plan.band = plan.band_within(floats);
        Some(plan)
    }

    /// Output rows whose strip holds about `floats`.
    fn band_within(&self, floats: usize) -> usize {
        let Window { kernel: [kh, _], strides: [sh, _], dilations: [dh, _], .. } = self.window;
        let rows = floats / self.row();
        let more = rows.saturating_sub((kh - 1) * dh + 1) / sh;
        // Evenly, so that the last band is no stump.
        let bands = self.out[0].div_ceil((1 + more).min(256));
        self.out[0].div_ceil(bands.max(1))
    }

    fn with_band(isa: Isa, window: Window, size: [usize; 2], out: [usize; 2], band: usize) -> Self {
        let Window { kernel: [_, kw], strides: [_, sw], dilations: [_, dw], .. } = window;
        let mut remainders: Vec<usize> = (0..kw).map(|kx| kx * dw % sw).collect();
        remainders.sort_unstable();
        remainders.dedup();
        let run = out[1] + (kw - 1) * dw / sw + 1 + slack(isa);
        let column = |kx: usize| {
            let r = remainders.iter().position(|&r| r == kx * dw % sw).unwrap_or(0);
            r * run + kx * dw / sw
        };
        let columns = (0..kw).map(column).collect();
        // Element q of a run is column q · stride + remainder - left of the image.
        let (left, width) = (window.pads[1], size[1]);
        let runs = remainders.iter().map(|r| {
            let skip = left.saturating_sub(*r).div_ceil(sw).min(run);
            let from = (skip * sw + r).saturating_sub(left).min(width);
            Run { skip, from, have: (width - from).div_ceil(sw).min(run - skip) }
        });
        let runs = runs.collect();
        Self { isa, window, size, out, runs, run, columns, band }
    }

    /// Bands of an image.
    pub(in crate::kernels) fn bands(&self) -> usize {
        self.out[0].div_ceil(self.band)
    }

    /// Output rows of band `i`.
    pub(in crate::kernels) fn rows(&self, i: usize) -> Range<usize> {
        i * self.band..self.out[0].min((i + 1) * self.band)
    }

    /// Floats from one row of a strip to the next.
    pub(in crate::kernels) fn row(&self) -> usize {
        self.run * self.runs.len()
    }

    /// Where the outputs of column 0 find each tap of a row.
    pub(in crate::kernels) fn columns(&self) -> &[usize] {
        &self.columns
    }

    /// Floats of the strip of any band: an odd number of cache lines, so that strips that follow
    /// one another do not fall on the same sets of the cache.
    pub(in crate::kernels) fn floats(&self) -> usize {
        let Window { kernel: [kh, _], strides: [sh, _], dilations: [dh, _], .. } = self.window;
        let rows = (self.band - 1) * sh + (kh - 1) * dh + 1;
        let lines = (rows * self.row() + slack(self.isa)).div_ceil(16);
        (lines | 1) * 16
    }

    /// Copies what band `i` sees of `image` into `strip`, [`StripPlan::floats`] long, with
    /// `padding` around it.
    pub(in crate::kernels) fn fill<'a>(
        &'a self,
        image: &[f32],
        i: usize,
        padding: f32,
        strip: &'a mut [f32],
    ) -> Strip<'a> {
        let Window { kernel: [kh, _], strides: [sh, stride], dilations: [dh, _], pads } =
            self.window;
        let [height, width] = self.size;
        let out_rows = self.rows(i);
        let row = self.row();
        let rows = (out_rows.len() - 1) * sh + (kh - 1) * dh + 1;
        let first = out_rows.start * sh;
        let lines = strip.chunks_exact_mut(row).take(rows).enumerate().map(|(y, to)| {
            let y = (first + y).checked_sub(pads[0]).filter(|&y| y < height);
            (y.map(|y| &image[y * width..][..width]), to)
        });
        match self.isa.kind() {
            Kind::Scalar => {
                for (from, to) in lines {
                    let Some(from) = from else {
                        to.fill(padding);
                        continue;
                    };
                    for (run, to) in self.runs.iter().zip(to.chunks_exact_mut(self.run)) {
                        line(&from[run.from..], stride, run, padding, to);
                    }
                }
            }
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an Isa of this kind exists only where the CPU has AVX2 and FMA.
            Kind::Avx2 | Kind::Avx512 => unsafe {
                avx2::fill(&self.runs, self.run, stride, padding, lines)
            },
        }
        Strip {
            data: strip,
            row,
            columns: &self.columns,
            taps: kh,
            row_stride: sh,
            row_dilation: dh,
        }
    }
}

/// Fills one run.
fn line(from: &[f32], stride: usize, run: &Run, padding: f32, to: &mut [f32]) {
    let (before, to) = to.split_at_mut(run.skip);
    let (body, after) = to.split_at_mut(run.have);
    before.fill(padding);
    body.iter_mut().zip(from.iter().step_by(stride)).for_each(|(o, &v)| *o = v);
    after.fill(padding);
}
