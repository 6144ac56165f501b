//! Depthwise convolution: every output channel sees one input channel.
//!
//! A band of rows is copied, with its zeros, into a strip in which the columns that one tap reads
//! for neighbouring outputs are neighbours, whatever the stride. The copy stays in the cache, and
//! the kernel meets no border and one access pattern only.

use super::{ConvEpilogue, scalar};
use crate::kernels::aligned::AlignedF32;
use crate::kernels::gemm::block::{Edge, run_tile};
use crate::kernels::gemm::kernel::{Finish, Kernel, Tile};
use crate::kernels::isa::{Isa, Kind};
use crate::kernels::parallel::{Parallel, SharedOut, for_each_part, split_range};
use crate::kernels::{Epilogue, Window};
use std::cell::Cell;

/// Floats of a strip that are aimed at: half of a second-level cache of 256 KiB.
const STRIP: usize = 32 * 1024;
/// Lanes that may be read beyond the last column of a strip.
pub(super) const SLACK: usize = 16;

thread_local! {
    static BUFFER: Cell<AlignedF32> = Cell::default();
}

/// Weights of a depthwise convolution: [output channel][row][column].
#[derive(Clone, Debug)]
pub(super) struct Depthwise {
    weights: Vec<f32>,
    window: Window,
    /// Output channels per input channel.
    multiplier: usize,
    /// The distinct columns of taps, modulo the stride.
    remainders: Vec<usize>,
}

/// A band of one input channel and what is summed over it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Strip<'a> {
    pub data: &'a [f32],
    /// Floats from one row of the strip to the next.
    pub row: usize,
    /// Where the outputs of column 0 find each tap of a row.
    pub columns: &'a [usize],
    pub row_stride: usize,
    pub row_dilation: usize,
    pub weights: &'a [f32],
    pub bias: f32,
}

impl Depthwise {
    /// Whether a strip of rows for this window is of reasonable size.
    pub(super) fn suits(window: &Window) -> bool {
        let Window { kernel: [kh, kw], strides: [sh, _], dilations: [dh, dw], .. } = *window;
        (kh - 1) * dh <= 4096 && (kw - 1) * dw <= 4096 && sh <= 4096
    }

    pub(super) fn new(weights: &[f32], window: Window, multiplier: usize) -> Self {
        let (stride, dilation) = (window.strides[1], window.dilations[1]);
        let mut remainders: Vec<usize> =
            (0..window.kernel[1]).map(|kx| kx * dilation % stride).collect();
        remainders.sort_unstable();
        remainders.dedup();
        Self { weights: weights.to_vec(), window, multiplier, remainders }
    }

    pub(super) fn bytes(&self) -> usize {
        self.weights.len() * 4
    }

    /// Convolves; sizes have been checked and no dimension of the output is zero.
    pub(super) fn run(
        &self,
        kernel: &'static Kernel,
        isa: Isa,
        x: &[f32],
        batch: usize,
        size: [usize; 2],
        out_size: [usize; 2],
        channels: usize,
        epilogue: &ConvEpilogue<'_>,
        out: &mut [f32],
        par: &dyn Parallel,
    ) {
        let Window { kernel: [kh, kw], strides: [sh, sw], dilations: [dh, dw], .. } = self.window;
        let (plane, out_plane) = (size[0] * size[1], out_size[0] * out_size[1]);
        // A row of the strip has one run of columns per remainder by the stride that a tap has.
        let phase = out_size[1] + (kw - 1) * dw / sw + 1 + SLACK;
        let row = phase * self.remainders.len();
        let column = |kx: usize| {
            let r = self.remainders.iter().position(|&r| r == kx * dw % sw).unwrap_or(0);
            r * phase + kx * dw / sw
        };
        let columns: Vec<usize> = (0..kw).map(column).collect();
        let bounds = epilogue.activation.bounds().filter(|_| epilogue.residual.is_none());
        let reach = (kh - 1) * dh + 1;
        let band = ((STRIP / row).saturating_sub(reach) / sh).clamp(8, 256).min(out_size[0]);
        let bands = out_size[0].div_ceil(band);
        let units = batch * channels * bands;
        let parts = par.threads().min(units);
        let c = SharedOut::new(out);
        for_each_part(par, parts, &|part| {
            let mut buffer = BUFFER.take();
            buffer.reserve(((band - 1) * sh + reach) * row + SLACK);
            for unit in split_range(units, parts, part, 1) {
                let (image, band_index) = (unit / bands, unit % bands);
                let channel = image % channels;
                let in_channels = channels / self.multiplier;
                let source = image / channels * in_channels + channel / self.multiplier;
                let input = &x[source * plane..][..plane];
                let y0 = band_index * band;
                let rows = band.min(out_size[0] - y0);
                self.fill(
                    isa,
                    input,
                    size,
                    y0 * sh,
                    (rows - 1) * sh + reach,
                    phase,
                    row,
                    &mut buffer,
                );
                let strip = Strip {
                    data: &buffer,
                    row,
                    columns: &columns,
                    row_stride: sh,
                    row_dilation: dh,
                    weights: &self.weights[channel * kh * kw..][..kh * kw],
                    bias: epilogue.bias.map_or(0.0, |b| b[channel]),
                };
                let at = image * out_plane + y0 * out_size[1];
                // SAFETY: `out` holds batch · channels planes; a unit owns `rows` rows from `at`.
                let rows_out =
                    unsafe { std::slice::from_raw_parts_mut(c.ptr().add(at), rows * out_size[1]) };
                sums(isa, &strip, out_size[1], bounds, rows_out);
                if bounds.is_none() {
                    finish(kernel, epilogue, at, rows_out);
                }
            }
            BUFFER.set(buffer);
        });
    }

    /// Copies `rows` padded rows from `first` on into the strip.
    fn fill(
        &self,
        isa: Isa,
        input: &[f32],
        size: [usize; 2],
        first: usize,
        rows: usize,
        phase: usize,
        row: usize,
        strip: &mut [f32],
    ) {
        let [top, left, ..] = self.window.pads;
        let stride = self.window.strides[1];
        for (i, line) in strip.chunks_exact_mut(row).take(rows).enumerate() {
            let Some(y) = (first + i).checked_sub(top).filter(|&y| y < size[0]) else {
                line.fill(0.0);
                continue;
            };
            let source = &input[y * size[1]..][..size[1]];
            for (&p, part) in self.remainders.iter().zip(line.chunks_exact_mut(phase)) {
                // Element q of this part is column q · stride + p - left of the image.
                let skip = left.saturating_sub(p).div_ceil(stride).min(phase);
                let from = (skip * stride + p).saturating_sub(left).min(size[1]);
                let have = (size[1] - from).div_ceil(stride).min(phase - skip);
                part[..skip].fill(0.0);
                part[skip + have..].fill(0.0);
                let to = &mut part[skip..skip + have];
                match isa.kind() {
                    _ if stride == 1 => to.copy_from_slice(&source[from..from + have]),
                    Kind::Scalar => scalar::deinterleave(&source[from..], stride, to),
                    #[cfg(target_arch = "x86_64")]
                    // SAFETY: an Isa of this kind exists only where the CPU has AVX2 and FMA.
                    Kind::Avx2 => unsafe {
                        super::avx2::deinterleave(&source[from..], stride, to);
                    },
                }
            }
        }
    }
}

/// All outputs of one band, with the bias and, where nothing comes between, the clamp.
fn sums(isa: Isa, strip: &Strip<'_>, width: usize, bounds: Option<(f32, f32)>, out: &mut [f32]) {
    match isa.kind() {
        Kind::Scalar => {
            for (y, line) in out.chunks_exact_mut(width).enumerate() {
                scalar::depthwise_row(strip, y * strip.row_stride, bounds, line);
            }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this kind exists only where the CPU has AVX2 and FMA.
        Kind::Avx2 => unsafe { super::avx2::depthwise(strip, width, bounds, out) },
    }
}

/// Residual and activation, on the outputs from element `at` on, which were just written.
pub(super) fn finish(kernel: &Kernel, epilogue: &ConvEpilogue<'_>, at: usize, out: &mut [f32]) {
    let base = Epilogue { activation: epilogue.activation, ..Epilogue::default() };
    let residual = epilogue.residual.map(|r| &r[at..][..out.len()]);
    let mut edge = Edge::new();
    let mut i = 0;
    while i < out.len() {
        // The band is one run of elements, taken as rows of a tile that follow one another.
        let rows = ((out.len() - i) / kernel.cols).clamp(1, kernel.rows);
        let width = kernel.cols.min(out.len() - i);
        let mut f = Finish::new(&base);
        if let Some(r) = residual {
            f.residual = r[i..].as_ptr();
            f.residual_row = kernel.cols;
            f.residual_last = epilogue.residual_after_activation;
        }
        let c = out[i..].as_mut_ptr();
        let tile = Tile {
            rows,
            k: 0,
            a: c,
            a_row: 1,
            a_k: 1,
            b: c,
            b_k: 0,
            c,
            c_row: kernel.cols,
            narrow: false,
            accumulate: true,
            finish: Some(f),
        };
        // SAFETY: rows · width elements are valid in the output and in the residual, which is as
        // long; with k = 0 neither A nor B is read.
        unsafe { run_tile(kernel, tile, width, &mut edge) };
        i += rows * width;
    }
}
