//! Depthwise convolution: every output channel sees one input channel, strip by strip.

use super::{ConvEpilogue, scalar};
use crate::kernels::aligned::AlignedF32;
use crate::kernels::isa::{Isa, Kind};
use crate::kernels::parallel::{Parallel, SharedOut, for_each_part, split_range};
use crate::kernels::strip::{Strip, StripPlan};
use crate::kernels::{Window, math};
use std::cell::Cell;

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
}

/// One channel of the weights.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taps<'a> {
    pub weights: &'a [f32],
    pub bias: f32,
    /// The activation, where it is a clamp and no residual comes before it.
    pub bounds: Option<(f32, f32)>,
}

impl Depthwise {
    pub(super) fn new(weights: &[f32], window: Window, multiplier: usize) -> Self {
        Self { weights: weights.to_vec(), window, multiplier }
    }

    pub(super) fn bytes(&self) -> usize {
        self.weights.len() * 4
    }

    /// Convolves; sizes have been checked and no dimension of the output is zero.
    pub(super) fn run(
        &self,
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
        let (plane, out_plane) = (size[0] * size[1], out_size[0] * out_size[1]);
        let in_channels = channels / self.multiplier;
        let taps = self.window.kernel[0] * self.window.kernel[1];
        let bounds = epilogue.activation.bounds().filter(|_| epilogue.residual.is_none());
        let plan = StripPlan::new(isa, self.window, size, out_size);
        let units = batch * channels * plan.bands();
        let parts = par.threads().min(units);
        let c = SharedOut::new(out);
        for_each_part(par, parts, &|part| {
            let mut buffer = BUFFER.take();
            buffer.reserve(plan.floats());
            for unit in split_range(units, parts, part, 1) {
                let (image, band) = (unit / plan.bands(), unit % plan.bands());
                let channel = image % channels;
                let source = image / channels * in_channels + channel / self.multiplier;
                let strip = plan.fill(&x[source * plane..][..plane], band, 0.0, &mut buffer);
                let taps = Taps {
                    weights: &self.weights[channel * taps..][..taps],
                    bias: epilogue.bias.map_or(0.0, |b| b[channel]),
                    bounds,
                };
                let rows = plan.rows(band);
                let at = image * out_plane + rows.start * out_size[1];
                // SAFETY: `out` holds batch · channels planes; a unit owns its band of one.
                let band_out = unsafe {
                    std::slice::from_raw_parts_mut(c.ptr().add(at), rows.len() * out_size[1])
                };
                sums(isa, &strip, &taps, out_size[1], band_out);
                if bounds.is_none() {
                    finish(isa, epilogue, at, band_out);
                }
            }
            BUFFER.set(buffer);
        });
    }
}

/// All outputs of one band, with the bias and, where nothing comes between, the clamp.
fn sums(isa: Isa, strip: &Strip<'_>, taps: &Taps<'_>, width: usize, out: &mut [f32]) {
    match isa.kind() {
        Kind::Scalar => {
            for (y, line) in out.chunks_exact_mut(width).enumerate() {
                scalar::depthwise_row(strip, taps, y * strip.row_stride, line);
            }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this kind exists only where the CPU has AVX2 and FMA.
        Kind::Avx2 | Kind::Avx512 => unsafe { super::avx2::depthwise(strip, taps, width, out) },
    }
}

/// Residual and activation, on the outputs from element `at` on, which were just written.
pub(super) fn finish(isa: Isa, epilogue: &ConvEpilogue<'_>, at: usize, out: &mut [f32]) {
    let residual = epilogue.residual.map(|r| &r[at..][..out.len()]);
    let after = epilogue.residual_after_activation;
    if let Some(r) = residual.filter(|_| !after) {
        math::add_on(isa, out, r);
    }
    math::activate_on(isa, epilogue.activation, out);
    if let Some(r) = residual.filter(|_| after) {
        math::add_on(isa, out, r);
    }
}
