//! Convolution with any number of spatial axes, in plain loops: for the rare three-dimensional
//! ones.

use super::{ConvEpilogue, check_groups};
use crate::kernels::KernelError;
use crate::kernels::error::{check_len, checked_product};
use crate::kernels::parallel::{Parallel, SharedOut, for_each_part, split_range};
use crate::kernels::window::output_size;

/// How a convolution with any number of spatial axes is done; slices have one entry per axis.
#[derive(Clone, Copy, Debug)]
pub struct ConvNd<'a> {
    /// Groups of channels.
    pub groups: usize,
    /// Taps.
    pub kernel: &'a [usize],
    /// Distance between neighbouring windows.
    pub strides: &'a [usize],
    /// Distance between neighbouring taps.
    pub dilations: &'a [usize],
    /// Padding: all beginnings, then all ends, as in ONNX.
    pub pads: &'a [usize],
}

impl ConvNd<'_> {
    /// The number of whole windows along each axis of an image of `size`.
    ///
    /// # Errors
    /// When the slices have different lengths, for zeros, or for an image that is too small.
    pub fn output(&self, size: &[usize]) -> Result<Vec<usize>, KernelError> {
        let rank = size.len();
        let lengths = [
            ("kernel", self.kernel.len(), rank),
            ("strides", self.strides.len(), rank),
            ("dilations", self.dilations.len(), rank),
            ("pads", self.pads.len(), 2 * rank),
        ];
        for (operand, have, need) in lengths {
            if have != need {
                return Err(KernelError::Mismatch { operand, dim: "length", need, have });
            }
        }
        (0..rank)
            .map(|a| {
                let pads = [self.pads[a], self.pads[a + rank]];
                output_size(size[a], self.kernel[a], self.strides[a], self.dilations[a], pads)
            })
            .collect()
    }
}

/// Steps `index` to the next position of `shape`, the last axis fastest; false after the last.
pub(in crate::kernels) fn advance(index: &mut [usize], shape: &[usize]) -> bool {
    for a in (0..shape.len()).rev() {
        index[a] += 1;
        if index[a] < shape[a] {
            return true;
        }
        index[a] = 0;
    }
    false
}

/// Convolves `x`, [batch, in_channels, size…], with `weights`, [out_channels, in_channels /
/// groups, kernel…], into `out`, [batch, out_channels, …] with the size that [`ConvNd::output`]
/// states.
///
/// # Errors
/// When a slice is too short, or groups do not divide the channels. `out` is then untouched.
pub fn conv_nd(
    x: &[f32],
    batch: usize,
    in_channels: usize,
    size: &[usize],
    weights: &[f32],
    out_channels: usize,
    conv: &ConvNd<'_>,
    epilogue: &ConvEpilogue<'_>,
    out: &mut [f32],
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    let out_size = conv.output(size)?;
    check_groups(conv.groups, in_channels, out_channels)?;
    let (icg, ocg) = (in_channels / conv.groups, out_channels / conv.groups);
    let plane = checked_product("x", size)?;
    let out_plane = checked_product("out", &out_size)?;
    let taps = checked_product("weights", conv.kernel)?;
    check_len("x", x.len(), checked_product("x", &[batch, in_channels, plane])?)?;
    check_len("weights", weights.len(), checked_product("weights", &[out_channels, icg, taps])?)?;
    let elements = checked_product("out", &[batch, out_channels, out_plane])?;
    check_len("out", out.len(), elements)?;
    epilogue.check(out_channels, elements)?;
    if elements == 0 {
        return Ok(());
    }
    let rank = size.len();
    let planes = batch * out_channels;
    let parts = par.threads().min(planes).max(1);
    let c = SharedOut::new(out);
    for_each_part(par, parts, &|part| {
        let (mut at, mut tap) = (vec![0; rank], vec![0; rank]);
        for p in split_range(planes, parts, part, 1) {
            let (b, oc) = (p / out_channels, p % out_channels);
            let first = b * in_channels + oc / ocg * icg;
            let bias = epilogue.bias.map_or(0.0, |b| b[oc]);
            // SAFETY: `out` holds `planes` planes and each belongs to one part.
            let plane_out =
                unsafe { std::slice::from_raw_parts_mut(c.ptr().add(p * out_plane), out_plane) };
            at.fill(0);
            for (i, o) in plane_out.iter_mut().enumerate() {
                let mut sum = bias;
                for ic in 0..icg {
                    let image = &x[(first + ic) * plane..][..plane];
                    let w = &weights[(oc * icg + ic) * taps..][..taps];
                    tap.fill(0);
                    for w in w {
                        let mut offset = Some(0);
                        for a in 0..rank {
                            let pos = at[a] * conv.strides[a] + tap[a] * conv.dilations[a];
                            let pos = pos.checked_sub(conv.pads[a]).filter(|&v| v < size[a]);
                            offset = offset.zip(pos).map(|(o, v)| o * size[a] + v);
                        }
                        if let Some(v) = offset.and_then(|o| image.get(o)) {
                            sum += w * v;
                        }
                        advance(&mut tap, conv.kernel);
                    }
                }
                let residual = epilogue.residual.map_or(0.0, |r| r[p * out_plane + i]);
                *o = if epilogue.residual_after_activation {
                    epilogue.activation.apply(sum) + residual
                } else {
                    epilogue.activation.apply(sum + residual)
                };
                advance(&mut at, &out_size);
            }
        }
    });
    Ok(())
}
