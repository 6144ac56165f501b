//! Depthwise convolution: one row of outputs of one block of channels at a time.

use super::{Call, dense};
use crate::kernels::isa::Kind;
use crate::kernels::parallel::Parallel;

pub(super) fn run(call: &Call<'_>, out: &mut [f32], par: &dyn Parallel) {
    match call.conv.isa.kind() {
        Kind::Scalar => dense::portable(call, out, par),
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 | Kind::Avx512 => rows::run(call, out, par),
    }
}

#[cfg(target_arch = "x86_64")]
mod rows {
    use super::super::avx2::Finish;
    use super::super::avx2_depthwise::{DepthRow, depth_row};
    use super::super::avx512_depthwise;
    use super::super::{BLOCK, Call, taps_inside};
    use crate::kernels::isa::Kind;
    use crate::kernels::math::{activate_on, add_on};
    use crate::kernels::parallel::{Parallel, SharedOut, for_each_part, split_range};
    use crate::kernels::{Activation, Window};

    pub(super) fn run(call: &Call<'_>, out: &mut [f32], par: &dyn Parallel) {
        let [rows, width] = call.out_size;
        let all = call.batch * call.conv.out_channels / BLOCK * rows;
        let parts = par.threads().min(all).max(1);
        let shared = SharedOut::new(out);
        let floats = width * BLOCK;
        for_each_part(par, parts, &|part| {
            for i in split_range(all, parts, part, 1) {
                // SAFETY: `out` holds `all` rows of `floats`, and each row belongs to one part.
                let line =
                    unsafe { std::slice::from_raw_parts_mut(shared.ptr().add(i * floats), floats) };
                row(call, i, line);
            }
        });
    }

    /// The `i`-th row of all images and blocks.
    fn row(call: &Call<'_>, i: usize, out: &mut [f32]) {
        let c = call.conv;
        let Window { kernel: [kh, kw], strides, dilations, pads } = c.window;
        let ([h, w], rows) = (call.size, call.out_size[0]);
        let (plane, y) = (i / rows, i % rows);
        let block = plane % (c.out_channels / BLOCK);
        let image = &call.x[plane * h * w * BLOCK..][..h * w * BLOCK];
        let ys = taps_inside(y, h, kh, strides[0], dilations[0], pads[0]);
        // With no row of taps inside, nothing is read.
        let iy = (y * strides[0] + ys.start * dilations[0]).saturating_sub(pads[0]).min(h);
        let e = call.epilogue;
        let residual = e.residual.map(|r| &r[i * out.len()..][..out.len()]);
        let before = residual.filter(|_| !e.residual_after_activation);
        let fused = Finish::fuses(e.activation);
        let job = DepthRow {
            x: &image[iy * w * BLOCK..],
            width: w,
            row: dilations[0] * w * BLOCK,
            rows: ys.len(),
            weights: &c.weights[(block * kh + ys.start) * kw * BLOCK..][..ys.len() * kw * BLOCK],
            taps: kw,
            stride: strides[1],
            dilation: dilations[1],
            pad: pads[1],
            bias: e.bias.map(|b| &b[block * BLOCK..][..BLOCK]),
            finish: Finish {
                residual: before.map_or(std::ptr::null(), <[f32]>::as_ptr),
                activation: if fused { e.activation } else { Activation::None },
            },
        };
        // SAFETY: an Isa of this kind exists only where the CPU has what it takes; a residual has
        // the length of `out`.
        unsafe {
            match c.isa.kind() {
                Kind::Avx512 => avx512_depthwise::depth_row(&job, out),
                _ => depth_row(&job, out),
            }
        }
        if !fused {
            activate_on(c.isa, e.activation, out);
        }
        if let (Some(r), true) = (residual, e.residual_after_activation) {
            add_on(c.isa, out, r);
        }
    }
}
