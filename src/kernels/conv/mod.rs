//! Two-dimensional convolution on NCHW tensors in single precision.
//!
//! Weights are packed once into a [`PackedConv`]. A convolution is the product of the weights
//! with a matrix whose columns are output positions; that matrix is never stored, its panels are
//! gathered as the blocked loops ask for them. Depthwise convolutions have a kernel of their own.
//! The order in which an output is summed is (input channel, row, column) of the window.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod depthwise;
mod direct;
mod im2col;
mod nd;
mod scalar;
mod transpose;

#[cfg(test)]
mod tests;

use super::error::{check_len, checked_product};
use super::gemm::block::{Block, Left, Right};
use super::gemm::kernel::Kernel;
use super::gemm::{MatRef, PackedA, Partition};
use super::parallel::{Parallel, SharedOut, for_each_part};
use super::strip::StripPlan;
use super::{Activation, Bias, Epilogue, Isa, KernelError, Residual, Window};
use depthwise::Depthwise;
use direct::Direct;
use im2col::Im2col;
pub(in crate::kernels) use nd::advance;
pub use nd::{ConvNd, conv_nd};
pub use transpose::{PackedConvTranspose, conv_transpose2d};

/// What happens to an output before it is stored: `act(sum + bias + residual)`, or
/// `act(sum + bias) + residual`.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConvEpilogue<'a> {
    /// One value per output channel.
    pub bias: Option<&'a [f32]>,
    /// A tensor of the output's shape.
    pub residual: Option<&'a [f32]>,
    /// Whether the residual is added to the activated value instead of to the sum.
    pub residual_after_activation: bool,
    /// Applied before the store.
    pub activation: Activation,
}

impl<'a> ConvEpilogue<'a> {
    pub(in crate::kernels) fn check(
        &self,
        channels: usize,
        elements: usize,
    ) -> Result<(), KernelError> {
        if let Some(b) = self.bias {
            check_len("bias", b.len(), channels)?;
        }
        if let Some(r) = self.residual {
            check_len("residual", r.len(), elements)?;
        }
        Ok(())
    }

    /// The epilogue of the rows that start at output `channel`, whose first element is `at`.
    fn rows(&self, channel: usize, at: usize, row_stride: usize) -> Epilogue<'a> {
        Epilogue {
            bias: self.bias.map_or(Bias::None, |b| Bias::PerRow(&b[channel..])),
            residual: self.residual.map(|r| Residual {
                data: &r[at..],
                row_stride,
                after_activation: self.residual_after_activation,
            }),
            activation: self.activation,
            ..Epilogue::default()
        }
    }
}

/// The weights of a two-dimensional convolution, packed once.
#[derive(Clone, Debug)]
pub struct PackedConv {
    isa: Isa,
    window: Window,
    groups: usize,
    in_channels: usize,
    out_channels: usize,
    weights: Weights,
}

#[derive(Clone, Debug)]
enum Weights {
    /// One matrix per group: output channels by (input channel, row, column).
    Groups(Vec<PackedA>),
    Depthwise(Depthwise),
}

impl PackedConv {
    /// Packs `weights`, laid out [out_channels, in_channels / groups, kernel height, kernel width].
    ///
    /// # Errors
    /// When `groups` does not divide both channel counts, the slice is too short, or the window
    /// has a zero.
    pub fn new(
        weights: &[f32],
        out_channels: usize,
        in_channels: usize,
        groups: usize,
        window: Window,
    ) -> Result<Self, KernelError> {
        Self::for_isa(Isa::best(), weights, out_channels, in_channels, groups, window)
    }

    /// [`PackedConv::new`] for a stated instruction set.
    ///
    /// # Errors
    /// As for [`PackedConv::new`].
    pub fn for_isa(
        isa: Isa,
        weights: &[f32],
        out_channels: usize,
        in_channels: usize,
        groups: usize,
        window: Window,
    ) -> Result<Self, KernelError> {
        window.check([0, 0], [0, 0])?;
        check_groups(groups, in_channels, out_channels)?;
        let (icg, ocg) = (in_channels / groups, out_channels / groups);
        let taps = window.kernel[0] * window.kernel[1];
        let depth = checked_product("weights", &[icg, taps])?;
        let need = checked_product("weights", &[out_channels, depth])?;
        check_len("weights", weights.len(), need)?;
        let weights = if icg == 1 && groups > 1 && StripPlan::suits(&window) {
            Weights::Depthwise(Depthwise::new(&weights[..need], window, ocg))
        } else {
            let group = |g: usize| {
                PackedA::for_isa(isa, MatRef::row_major(&weights[g * ocg * depth..], ocg, depth)?)
            };
            Weights::Groups((0..groups).map(group).collect::<Result<_, _>>()?)
        };
        Ok(Self { isa, window, groups, in_channels, out_channels, weights })
    }

    /// The window.
    pub fn window(&self) -> Window {
        self.window
    }

    /// Input channels of all groups.
    pub fn in_channels(&self) -> usize {
        self.in_channels
    }

    /// Output channels of all groups.
    pub fn out_channels(&self) -> usize {
        self.out_channels
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        match &self.weights {
            Weights::Groups(g) => g.iter().map(PackedA::bytes).sum(),
            Weights::Depthwise(d) => d.bytes(),
        }
    }
}

pub(in crate::kernels) fn check_groups(
    groups: usize,
    a: usize,
    b: usize,
) -> Result<(), KernelError> {
    if groups == 0 || !a.is_multiple_of(groups) || !b.is_multiple_of(groups) {
        return Err(KernelError::Invalid {
            operand: "groups",
            problem: "does not divide the numbers of input and output channels",
        });
    }
    Ok(())
}

/// The size of the output, and how many elements of `x` and of `out` a convolution reads and
/// writes, in whatever layout; refuses slices that are too short for `channels` in and out.
pub(in crate::kernels) fn checked(
    window: Window,
    batch: usize,
    size: [usize; 2],
    channels: [usize; 2],
    x: &[f32],
    epilogue: &ConvEpilogue<'_>,
    out: &[f32],
) -> Result<([usize; 2], usize, usize), KernelError> {
    let out_size = window.output(size)?;
    let (plane, out_plane) = (checked_product("x", &size)?, checked_product("out", &out_size)?);
    let read = checked_product("x", &[batch, channels[0], plane])?;
    check_len("x", x.len(), read)?;
    let written = checked_product("out", &[batch, channels[1], out_plane])?;
    check_len("out", out.len(), written)?;
    epilogue.check(channels[1], written)?;
    Ok((out_size, read, written))
}

/// Convolves `x`, [batch, in_channels, height, width], into `out`, [batch, out_channels, …] with
/// the size that [`Window::output`] states. Uses the threads of `par`; the result does not depend
/// on them.
///
/// # Errors
/// When a slice is too short for the shape or the image is smaller than the window. `out` is then
/// untouched.
///
/// ```
/// use brigade::kernels::{ConvEpilogue, PackedConv, Serial, Window, conv2d};
/// let w = PackedConv::new(&[1.0, 1.0, 1.0, 1.0], 1, 1, 1, Window::new([2, 2]))?;
/// let x = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0];
/// let mut out = [0.0; 4];
/// conv2d(&x, 1, [3, 3], &w, &ConvEpilogue::default(), &mut out, &Serial)?;
/// assert_eq!(out, [12.0, 16.0, 24.0, 28.0]);
/// # Ok::<(), brigade::kernels::KernelError>(())
/// ```
pub fn conv2d(
    x: &[f32],
    batch: usize,
    size: [usize; 2],
    weights: &PackedConv,
    epilogue: &ConvEpilogue<'_>,
    out: &mut [f32],
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    let window = weights.window;
    let (ic, oc, groups) = (weights.in_channels, weights.out_channels, weights.groups);
    let (out_size, _, elements) = checked(window, batch, size, [ic, oc], x, epilogue, out)?;
    if elements == 0 {
        return Ok(());
    }
    let (plane, out_plane) = (size[0] * size[1], out_size[0] * out_size[1]);
    let kernel = Kernel::of(weights.isa);
    let packed = match &weights.weights {
        Weights::Depthwise(d) => {
            d.run(weights.isa, x, batch, size, out_size, oc, epilogue, out, par);
            return Ok(());
        }
        Weights::Groups(g) => g,
    };
    let (icg, ocg) = (ic / groups, oc / groups);
    let pointwise = window == Window::new([1, 1]);
    if !pointwise
        && let Some(d) = Direct::new(weights.isa, kernel, window, size, out_size, icg, ocg)
    {
        d.run(kernel, packed, x, batch, plane, epilogue, out, par);
        return Ok(());
    }
    let c = SharedOut::new(out);
    // Few images and groups are cut further, so that all threads have something to do.
    let jobs = batch * groups;
    let cut = Partition::with_kernel(ocg, out_plane, par.threads().div_ceil(jobs), kernel);
    for_each_part(par, jobs * cut.parts(), &|i| {
        let (job, (rows, cols)) = (i / cut.parts(), cut.part(i % cut.parts()));
        let (b, g) = (job / groups, job % groups);
        let input = &x[(b * ic + g * icg) * plane..][..icg * plane];
        let at = (b * oc + g * ocg) * out_plane;
        let ep = epilogue.rows(g * ocg, at, out_plane);
        let image = Im2col::new(weights.isa, input, icg, size, out_size, window);
        let rows_of_b = MatRef::row_major(input, icg, plane).ok().filter(|_| pointwise);
        let right = match &rows_of_b {
            Some(m) => Right::plain(m),
            None => Right::Virtual { panels: &image, rows: None },
        };
        let block = Block {
            kernel,
            left: Left::Packed(&packed[g]),
            right,
            k: packed[g].depth(),
            c_row: out_plane,
            epilogue: &ep,
        };
        // SAFETY: `out` holds batch · oc planes, of which this job owns ocg from `at` on; the
        // operands were checked against these sizes; the cut is disjoint, at tiles and panels.
        unsafe { block.run(c.ptr().add(at), rows, cols) };
    });
    Ok(())
}
