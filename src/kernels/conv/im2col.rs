//! Gathers panels of the matrix (input channel, row, column of the window) × output positions.

use super::scalar;
use crate::kernels::gemm::block::Panels;
use crate::kernels::isa::{Isa, Kind};
use crate::kernels::{Window, gemm::kernel::MAX_COLS};
use std::ops::Range;

/// One image of one group, seen as a matrix.
#[derive(Clone, Copy)]
pub(super) struct Im2col<'a> {
    isa: Isa,
    input: &'a [f32],
    channels: usize,
    size: [usize; 2],
    out: [usize; 2],
    window: Window,
}

/// Lanes `lane..lane + len` of a panel read the input from `offset` on, `stride` apart.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Run {
    pub lane: usize,
    pub len: usize,
    pub offset: usize,
}

/// One tap of the window for a whole panel: its lines are the input channels in turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gather<'a> {
    pub input: &'a [f32],
    /// Every lane outside the runs is zero.
    pub runs: &'a [Run],
    /// Distance of neighbouring lanes in the input.
    pub stride: usize,
    /// Distance of neighbouring channels in the input.
    pub plane: usize,
    /// Channels, one line each.
    pub lines: usize,
    /// Distance of their lines in the panel.
    pub line_step: usize,
    /// Columns of the panel.
    pub width: usize,
}

impl<'a> Im2col<'a> {
    /// The slice holds `channels` planes; window and sizes have been checked.
    pub(super) fn new(
        isa: Isa,
        input: &'a [f32],
        channels: usize,
        size: [usize; 2],
        out: [usize; 2],
        window: Window,
    ) -> Self {
        Self { isa, input, channels, size, out, window }
    }

    /// What tap (ky, kx) reads for the output positions of one row from (oy, ox) on.
    fn clip(&self, ky: usize, kx: usize, row: &Row) -> Option<Run> {
        let w = &self.window;
        let y = row.oy * w.strides[0] + ky * w.dilations[0];
        let y = y.checked_sub(w.pads[0]).filter(|&y| y < self.size[0])?;
        // Position of lane i relative to the padded row: x + i · stride; inside: pad..pad + width.
        let x = row.ox * w.strides[1] + kx * w.dilations[1];
        let (pad, stride) = (w.pads[1], w.strides[1]);
        let first = pad.saturating_sub(x).div_ceil(stride);
        let end = (pad + self.size[1]).saturating_sub(x).div_ceil(stride).min(row.len);
        if first >= end {
            return None;
        }
        let offset = y * self.size[1] + (x + first * stride - pad);
        Some(Run { lane: row.lane + first, len: end - first, offset })
    }
}

/// Output positions of one row within a panel.
#[derive(Clone, Copy, Default)]
struct Row {
    oy: usize,
    ox: usize,
    lane: usize,
    len: usize,
}

impl Panels for Im2col<'_> {
    fn pack(&self, ks: Range<usize>, cols: Range<usize>, width: usize, out: &mut [f32]) {
        if ks.is_empty() {
            return;
        }
        let panels = out.chunks_exact_mut(ks.len() * width);
        for (j, panel) in cols.clone().step_by(width).zip(panels) {
            self.pack_panel(ks.clone(), j..cols.end.min(j + width), width, panel);
        }
    }
}

impl Im2col<'_> {
    fn pack_panel(&self, ks: Range<usize>, cols: Range<usize>, width: usize, out: &mut [f32]) {
        let mut rows = [Row::default(); MAX_COLS];
        let mut count = 0;
        let mut at = cols.start;
        while at < cols.end {
            let (oy, ox) = (at / self.out[1], at % self.out[1]);
            let len = (self.out[1] - ox).min(cols.end - at);
            rows[count] = Row { oy, ox, lane: at - cols.start, len };
            count += 1;
            at += len;
        }
        let [kh, kw] = self.window.kernel;
        let taps = kh * kw;
        let plane = self.size[0] * self.size[1];
        for tap in 0..taps {
            // Depths of this tap within ks: channel · taps + tap.
            let first = (ks.start + taps - 1 - tap) / taps;
            let end = (ks.end + taps - 1 - tap) / taps;
            let end = end.min(self.channels);
            if first >= end {
                continue;
            }
            let mut runs = [Run::default(); MAX_COLS];
            let mut n = 0;
            for row in &rows[..count] {
                if let Some(run) = self.clip(tap / kw, tap % kw, row) {
                    runs[n] = Run { offset: run.offset + first * plane, ..run };
                    n += 1;
                }
            }
            let gather = Gather {
                input: self.input,
                runs: &runs[..n],
                stride: self.window.strides[1],
                plane,
                lines: end - first,
                line_step: taps * width,
                width,
            };
            let lines = &mut out[(first * taps + tap - ks.start) * width..];
            match self.isa.kind() {
                Kind::Scalar => scalar::gather(&gather, lines),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an Isa of this kind exists only where the CPU has AVX2 and FMA.
                Kind::Avx2 => unsafe { super::avx2::gather(&gather, lines) },
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an Isa of this kind exists only where the CPU has AVX-512.
                Kind::Avx512 => unsafe { super::avx512::gather(&gather, lines) },
            }
        }
    }
}
