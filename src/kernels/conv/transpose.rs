//! Transposed convolution: a product with the transposed weights, then a scatter of its rows.

use super::{ConvEpilogue, check_groups};
use crate::kernels::aligned::AlignedF32;
use crate::kernels::error::{check_len, checked_product};
use crate::kernels::gemm::block::{Block, Left, Right};
use crate::kernels::gemm::kernel::Kernel;
use crate::kernels::gemm::{MatRef, PackedA};
use crate::kernels::parallel::{Parallel, SharedOut, for_each_part, split_range};
use crate::kernels::{Epilogue, Isa, KernelError, Window};
use std::cell::Cell;

/// Input positions scattered at a time.
const POSITIONS: usize = 512;
/// Rows of the product (output channels times taps) that are aimed at.
const ROWS: usize = 96;

thread_local! {
    static PRODUCT: Cell<AlignedF32> = Cell::default();
}

/// The weights of a two-dimensional transposed convolution, packed once.
#[derive(Clone, Debug)]
pub struct PackedConvTranspose {
    isa: Isa,
    window: Window,
    groups: usize,
    in_channels: usize,
    out_channels: usize,
    /// Output channels per block.
    block: usize,
    /// Group after group, block after block: (output channel, tap) by input channel.
    blocks: Vec<PackedA>,
}

impl PackedConvTranspose {
    /// Packs `weights`, laid out [in_channels, out_channels / groups, kernel height, kernel
    /// width].
    ///
    /// # Errors
    /// When `groups` does not divide both channel counts, the slice is too short, or the window
    /// has a zero.
    pub fn new(
        weights: &[f32],
        in_channels: usize,
        out_channels: usize,
        groups: usize,
        window: Window,
    ) -> Result<Self, KernelError> {
        Self::for_isa(Isa::best(), weights, in_channels, out_channels, groups, window)
    }

    /// [`PackedConvTranspose::new`] for a stated instruction set.
    ///
    /// # Errors
    /// As for [`PackedConvTranspose::new`].
    pub fn for_isa(
        isa: Isa,
        weights: &[f32],
        in_channels: usize,
        out_channels: usize,
        groups: usize,
        window: Window,
    ) -> Result<Self, KernelError> {
        window.check([0, 0], [0, 0])?;
        check_groups(groups, in_channels, out_channels)?;
        let (icg, ocg) = (in_channels / groups, out_channels / groups);
        let taps = window.kernel[0] * window.kernel[1];
        let row = checked_product("weights", &[ocg, taps])?;
        let need = checked_product("weights", &[in_channels, row])?;
        check_len("weights", weights.len(), need)?;
        let block = ROWS.div_ceil(taps).min(ocg.max(1));
        let mut blocks = Vec::new();
        for g in 0..groups {
            for oc in (0..ocg).step_by(block) {
                let rows = block.min(ocg - oc) * taps;
                let first = (g * icg * row + oc * taps).min(need);
                blocks.push(PackedA::for_isa(
                    isa,
                    MatRef::new(&weights[first..need], rows, icg, 1, row)?,
                )?);
            }
        }
        Ok(Self { isa, window, groups, in_channels, out_channels, block, blocks })
    }

    /// The window.
    pub fn window(&self) -> Window {
        self.window
    }

    /// Output channels of all groups.
    pub fn out_channels(&self) -> usize {
        self.out_channels
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.blocks.iter().map(PackedA::bytes).sum()
    }
}

/// Scatters `x`, [batch, in_channels, height, width], into `out`, [batch, out_channels,
/// out_size…]: input position (y, x) reaches output (y · stride + tap · dilation - pad) along
/// each axis. The caller has resolved output padding into `out_size`; outputs that nothing
/// reaches hold bias alone, and what falls outside is dropped (the pads at the end are implied by
/// `out_size`). Uses the threads of `par`; the result does not depend on them.
///
/// # Errors
/// When a slice is too short for its shape. `out` is then untouched.
pub fn conv_transpose2d(
    x: &[f32],
    batch: usize,
    size: [usize; 2],
    weights: &PackedConvTranspose,
    epilogue: &ConvEpilogue<'_>,
    out_size: [usize; 2],
    out: &mut [f32],
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    let window = weights.window;
    // Reached positions are size · stride + taps · dilation at most.
    window.check(size, size)?;
    window.check(out_size, [0, 0])?;
    let (ic, oc, groups) = (weights.in_channels, weights.out_channels, weights.groups);
    let (icg, ocg) = (ic / groups, oc / groups);
    let plane = checked_product("x", &size)?;
    let out_plane = checked_product("out", &out_size)?;
    check_len("x", x.len(), checked_product("x", &[batch, ic, plane])?)?;
    let elements = checked_product("out", &[batch, oc, out_plane])?;
    check_len("out", out.len(), elements)?;
    epilogue.check(oc, elements)?;
    if elements == 0 {
        return Ok(());
    }
    let taps = window.kernel[0] * window.kernel[1];
    let kernel = Kernel::of(weights.isa);
    let per_group = ocg.div_ceil(weights.block);
    let units = batch * groups * per_group;
    let parts = par.threads().min(units).max(1);
    let c = SharedOut::new(out);
    for_each_part(par, parts, &|part| {
        let mut product = PRODUCT.take();
        for unit in split_range(units, parts, part, 1) {
            let (b, g, block) =
                (unit / (groups * per_group), unit / per_group % groups, unit % per_group);
            let packed = &weights.blocks[g * per_group + block];
            let first = g * ocg + block * weights.block;
            let channels = packed.rows() / taps;
            let at = (b * oc + first) * out_plane;
            // SAFETY: `out` holds batch · oc planes; a unit owns `channels` of them from `at` on.
            let planes =
                unsafe { std::slice::from_raw_parts_mut(c.ptr().add(at), channels * out_plane) };
            planes.fill(0.0);
            let input = &x[(b * ic + g * icg) * plane..][..icg * plane];
            product.reserve(packed.rows() * POSITIONS.min(plane));
            for p0 in (0..plane).step_by(POSITIONS) {
                let n = POSITIONS.min(plane - p0);
                // With no input channels there is nothing to point into.
                let Ok(columns) = MatRef::new(input.get(p0..).unwrap_or(&[]), icg, n, plane, 1)
                else {
                    continue;
                };
                let ep = Epilogue::default();
                let product_block = Block {
                    kernel,
                    left: Left::Packed(packed),
                    right: Right::plain(&columns),
                    k: icg,
                    c_row: n,
                    epilogue: &ep,
                };
                // SAFETY: the buffer holds rows · n elements; the operands are rows × icg, icg × n.
                unsafe { product_block.run(product.as_mut_ptr(), 0..packed.rows(), 0..n) };
                for channel in 0..channels {
                    let to = &mut planes[channel * out_plane..][..out_plane];
                    let rows = &product[channel * taps * n..][..taps * n];
                    scatter(rows, p0, n, size[1], &window, out_size, to);
                }
            }
            for channel in 0..channels {
                let bias = epilogue.bias.map_or(0.0, |b| b[first + channel]);
                let start = channel * out_plane;
                let to = &mut planes[start..][..out_plane];
                to.iter_mut().for_each(|v| *v += bias);
            }
            super::depthwise::finish(weights.isa, epilogue, at, planes);
        }
        PRODUCT.set(product);
    });
    Ok(())
}

/// Adds the taps of `n` input positions from `p0` on to one output plane.
fn scatter(
    rows: &[f32],
    p0: usize,
    n: usize,
    width: usize,
    window: &Window,
    out_size: [usize; 2],
    out: &mut [f32],
) {
    let Window { kernel: [_, kw], strides: [sh, sw], dilations: [dh, dw], pads } = *window;
    for (tap, row) in rows.chunks_exact(n).enumerate() {
        let (ky, kx) = (tap / kw, tap % kw);
        let mut p = p0;
        while p < p0 + n {
            let (y, x) = (p / width, p % width);
            let len = (width - x).min(p0 + n - p);
            let values = &row[p - p0..][..len];
            p += len;
            let Some(oy) = (y * sh + ky * dh).checked_sub(pads[0]).filter(|&v| v < out_size[0])
            else {
                continue;
            };
            // Lane i goes to column base + i · stride - pad, where that lies inside.
            let base = x * sw + kx * dw;
            let skip = pads[1].saturating_sub(base).div_ceil(sw);
            let end = (pads[1] + out_size[1]).saturating_sub(base).div_ceil(sw).min(len);
            if skip >= end {
                continue;
            }
            let line = &mut out[oy * out_size[1] + base + skip * sw - pads[1]..];
            if sw == 1 {
                line.iter_mut().zip(&values[skip..end]).for_each(|(o, v)| *o += v);
            } else {
                let places = line.iter_mut().step_by(sw);
                places.zip(&values[skip..end]).for_each(|(o, v)| *o += v);
            }
        }
    }
}
