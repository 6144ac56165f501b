//! The convolution with a blocked output.

use super::{BLOCK, DOMAIN, blocked_dims, plain_dims, plain_shape};
use crate::error::{Result, bail, err};
use crate::graph::{Dim, Node};
use crate::kernels::{self, Activation, ConvEpilogue, ConvInput, blocked_conv2d};
use crate::ops::conv::{
    Extents, GROUP, cost, extents_of_any, fused_batch, group, kernel_size, kernel_window,
    output_dims,
};
use crate::ops::def::types::F32S;
use crate::ops::epilogue::{self, ACTIVATION, ACTIVATION_PARAMS, RESIDUAL_AFTER};
use crate::ops::window::{
    AUTO_PAD, DILATIONS, KERNEL_SHAPE, PADS, STRIDES, WindowAttributes, padded_axes,
};
use crate::ops::{CpuKernel, Io, OpDef, Port, Prepare};
use crate::tensor::{DType, Tensor};

/// `brigade.FusedConv` with blocked `Y` and `Z`; `X` is plain or, with five axes, blocked.
pub(super) static CONV: OpDef = OpDef {
    name: "BlockedConv",
    domain: DOMAIN,
    since: 1,
    attributes: &[
        KERNEL_SHAPE,
        STRIDES,
        DILATIONS,
        PADS,
        AUTO_PAD,
        GROUP,
        ACTIVATION,
        ACTIVATION_PARAMS,
        RESIDUAL_AFTER,
    ],
    inputs: &[
        Port::required("X", F32S),
        Port::required("W", F32S),
        Port::optional("B", F32S),
        Port::optional("Z", F32S),
    ],
    outputs: &[Port::required("Y", F32S)],
    infer: |i| {
        let shape = match i.shape(0) {
            Some(x) => {
                let x = if x.len() == 5 { plain_dims(&x)? } else { x };
                let y = output_dims(i, &x)?;
                let blocked = blocked_dims(&y);
                Some(blocked.ok_or_else(|| err!(Shape, "{y:?} has no blocked form"))?)
            }
            None => None,
        };
        i.set(0, Some(DType::F32), shape);
        Ok(())
    },
    batch: fused_batch,
    cost,
    prepare: |p| Ok(Box::new(Conv::new(p)?)),
    cases: Vec::new,
};

/// For which layouts of its input a convolution has a kernel with a blocked output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Suits {
    /// A plain input.
    pub(crate) plain: bool,
    /// A blocked input.
    pub(crate) blocked: bool,
}

/// For which layouts of its input, whose plain extents are `x`, a convolution by weights of shape
/// `w` has a kernel with a blocked output.
///
/// # Errors
/// If its attributes contradict each other.
pub(crate) fn suits(node: &Node, x: &[Dim], w: &[usize]) -> Result<Suits> {
    let no = Suits { plain: false, blocked: false };
    let attributes = WindowAttributes::read(node)?;
    if attributes.is_same() || w.len() != 4 || x.len() != 4 {
        return Ok(no);
    }
    let e = extents_of_any(&attributes, w, group(node)?, Some(x))?;
    let window = kernel_window(&e)?;
    let fits = |input| {
        kernels::BlockedConv::suits(e.out_channels, e.in_channels, e.groups, &window, input)
    };
    Ok(Suits { plain: fits(ConvInput::Plain), blocked: fits(ConvInput::Blocked) })
}

#[derive(Debug)]
struct Conv {
    attributes: WindowAttributes,
    groups: usize,
    activation: Activation,
    residual_after: bool,
    /// The shape of the weights.
    shape: Vec<usize>,
    packed: kernels::BlockedConv,
}

impl Conv {
    fn new(p: &Prepare<'_>) -> Result<Self> {
        let attributes = WindowAttributes::read(p.node)?;
        let groups = group(p.node)?;
        let Some(w) = p.constant(1) else {
            bail!(Unsupported, "the weights of a blocked convolution must be constant");
        };
        let x = p.facts.first().and_then(Option::as_ref).and_then(|f| f.shape.clone());
        let Some(x) = x else { bail!(Unsupported, "the rank of input `X` is not known") };
        if attributes.is_same() {
            bail!(Unsupported, "`auto_pad` of a blocked convolution must be resolved");
        }
        let (input, x) = match x.len() {
            5 => (ConvInput::Blocked, plain_dims(&x)?),
            _ => (ConvInput::Plain, x),
        };
        let shape = w.shape().to_vec();
        let e = extents_of_any(&attributes, &shape, groups, Some(&x))?;
        let window = kernel_window(&e)?;
        let packed = kernels::BlockedConv::new(
            w.as_slice()?,
            e.out_channels,
            e.in_channels,
            groups,
            window,
            input,
        )?;
        Ok(Self {
            attributes,
            groups,
            activation: epilogue::activation(p.node)?,
            residual_after: epilogue::residual_after(p.node)?,
            shape,
            packed,
        })
    }
}

impl CpuKernel for Conv {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let plain = match self.packed.input() {
            ConvInput::Blocked => Some(plain_shape(x.shape())?),
            ConvInput::Plain => None,
        };
        let plain = plain.as_ref().map_or(&x.shape()[..], |plain| plain);
        let e = Extents::new(plain, &self.shape, self.groups, &self.attributes)?;
        let [h, v] = padded_axes::<2>(&e.axes)?;
        let out_shape = [e.batch, e.out_channels / BLOCK, h.out, v.out, BLOCK];
        let bias = io.optional(2)?;
        if let Some(b) = bias {
            e.check_bias(b.shape())?;
        }
        let residual = io.optional(3)?;
        if let Some(z) = residual
            && z.shape()[..] != out_shape
        {
            bail!(Shape, "the residual is {}, the output {out_shape:?}", z.describe());
        }
        let mut out = io.allocate(DType::F32, out_shape)?;
        if !out.is_empty() {
            let epilogue = ConvEpilogue {
                bias: bias.map(Tensor::as_slice::<f32>).transpose()?,
                residual: residual.map(Tensor::as_slice::<f32>).transpose()?,
                residual_after_activation: self.residual_after,
                activation: self.activation,
            };
            let size = kernel_size(&e, self.packed.window())?;
            let work = out.len().saturating_mul(self.shape[1..].iter().product());
            let threads = io.threads().for_work(work);
            let (x, y) = (x.as_slice()?, out.as_mut_slice()?);
            blocked_conv2d(x, e.batch, size, &self.packed, &epilogue, y, threads)?;
        }
        io.emit(out);
        Ok(())
    }

    fn reads_constant(&self, input: usize) -> bool {
        input != 1
    }
}
