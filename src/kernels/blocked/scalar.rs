//! The portable kernels.

use super::{BLOCK, Call, taps_inside};

/// The eight channels of one output position.
type Lanes = [f32; BLOCK];

/// What one output row of one block is summed from.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub(super) image: usize,
    /// Block of output channels.
    pub(super) block: usize,
    pub(super) y: usize,
}

/// Computes one output row of one block, dense, grouped or depthwise.
pub(super) fn conv_row(call: &Call<'_>, row: Row, out: &mut [f32]) {
    let c = call.conv;
    let [h, w] = call.size;
    let (window, inner) = (c.window, c.inner());
    let [kh, kw] = window.kernel;
    let depthwise = c.is_depthwise();
    let icg = if depthwise { BLOCK } else { c.in_channels / c.groups };
    // Blocks, or plain channels, of the input that this block of outputs reads.
    let blocks = icg / inner;
    let first = match depthwise {
        true => row.block,
        false => row.block * BLOCK / (c.out_channels / c.groups) * blocks,
    };
    let image = &call.x[row.image * c.in_channels * h * w..][..c.in_channels * h * w];
    let lanes = if depthwise { 1 } else { inner };
    let (start, step) = c.place(row.block, blocks * kh * kw * lanes);
    let filter = &c.weights[start..];
    let ys = taps_inside(row.y, h, kh, window.strides[0], window.dilations[0], window.pads[0]);
    let bias = call.epilogue.bias.map(|b| &b[row.block * BLOCK..][..BLOCK]);
    let at = ((row.image * c.out_channels / BLOCK + row.block) * call.out_size[0] + row.y)
        * call.out_size[1]
        * BLOCK;
    for (x, o) in out.chunks_exact_mut(BLOCK).enumerate() {
        let mut acc: Lanes = [0.0; BLOCK];
        if let Some(b) = bias {
            acc.copy_from_slice(b);
        }
        let xs = taps_inside(x, w, kw, window.strides[1], window.dilations[1], window.pads[1]);
        for g in 0..blocks {
            for ky in ys.clone() {
                let iy = row.y * window.strides[0] + ky * window.dilations[0] - window.pads[0];
                for kx in xs.clone() {
                    let ix = x * window.strides[1] + kx * window.dilations[1] - window.pads[1];
                    let from = &image[(((first + g) * h + iy) * w + ix) * inner..][..inner];
                    let taps = &filter[((g * kh + ky) * kw + kx) * lanes * step..];
                    if depthwise {
                        for ((a, x), w) in acc.iter_mut().zip(from).zip(taps) {
                            *a += x * w;
                        }
                    } else {
                        for (x, taps) in from.iter().zip(taps.chunks(step)) {
                            acc.iter_mut().zip(taps).for_each(|(a, w)| *a += x * w);
                        }
                    }
                }
            }
        }
        let e = call.epilogue;
        let residual = e.residual.map(|r| &r[at + x * BLOCK..][..BLOCK]);
        if let (Some(r), false) = (residual, e.residual_after_activation) {
            acc.iter_mut().zip(r).for_each(|(a, r)| *a += r);
        }
        acc.iter_mut().for_each(|a| *a = e.activation.apply(*a));
        if let (Some(r), true) = (residual, e.residual_after_activation) {
            acc.iter_mut().zip(r).for_each(|(a, r)| *a += r);
        }
        o.copy_from_slice(&acc);
    }
}
