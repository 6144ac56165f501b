//! `Conv` and `brigade.FusedConv`.

use std::sync::{Arc, Mutex, PoisonError};

use super::{Extents, GROUP, TYPES, cost, group, infer, plain};
use crate::error::{Result, bail};
use crate::kernels::{Activation, ConvEpilogue, PackedConv, Window, conv2d};
use crate::ops::batch::{self, BatchFlow, BatchQuery};
use crate::ops::case::{Case, as_dtype, counted, filled};
use crate::ops::def::types::F32S;
use crate::ops::epilogue::{self, ACTIVATION, ACTIVATION_PARAMS, RESIDUAL_AFTER};
use crate::ops::window::{
    AUTO_PAD, DILATIONS, KERNEL_SHAPE, PADS, STRIDES, WindowAttributes, padded_axes,
};
use crate::ops::{CpuKernel, Io, OpDef, Port, Prepare};
use crate::tensor::{DType, Shape, Tensor, cast};

/// The convolution over 1, 2 or 3 spatial axes.
pub(in crate::ops) static CONV: OpDef = OpDef {
    name: "Conv",
    domain: "",
    since: 1,
    attributes: &[KERNEL_SHAPE, STRIDES, DILATIONS, PADS, AUTO_PAD, GROUP],
    inputs: &[Port::required("X", TYPES), Port::required("W", TYPES), Port::optional("B", TYPES)],
    outputs: &[Port::required("Y", TYPES)],
    infer: |i| infer(i, i.dtype(0).or(i.dtype(1))),
    batch: batch::leading,
    cost,
    prepare: |p| Ok(Box::new(Conv::new(p)?)),
    cases,
};

/// `act(conv(X, W) + B + Z)`, or with `residual_after_activation` `act(conv(X, W) + B) + Z`,
/// where `Z` is of the output's shape.
pub(in crate::ops) static FUSED_CONV: OpDef = OpDef {
    name: "FusedConv",
    domain: "brigade",
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
    infer: |i| infer(i, Some(DType::F32)),
    batch: fused_batch,
    cost,
    prepare: |p| {
        let activation = epilogue::activation(p.node)?;
        let residual_after = epilogue::residual_after(p.node)?;
        Ok(Box::new(Conv { activation, residual_after, ..Conv::new(p)? }))
    },
    cases: fused_cases,
};

fn fused_batch(q: &BatchQuery<'_>) -> BatchFlow {
    let axis = |i: usize| q.axes.get(i).copied().flatten();
    if axis(1).is_some() || axis(2).is_some() {
        return Err("the weights carry the batch".to_owned());
    }
    let residual = q.node.inputs.get(3).copied().flatten().is_some();
    match (axis(0), axis(3)) {
        (None, None) => q.everywhere(None),
        (Some(0), None) if !residual => q.everywhere(Some(0)),
        (Some(0), Some(0)) => q.everywhere(Some(0)),
        (Some(0), _) => Err("the residual does not carry the batch on its first axis".to_owned()),
        _ => Err("the batch is not on the first axis of its input".to_owned()),
    }
}

/// Packed forms of one set of weights: padding that depends on the input's extents
/// (`auto_pad`) needs one for each that was met.
const PACKED_FORMS: usize = 8;

#[derive(Debug)]
struct Conv {
    window: WindowAttributes,
    groups: usize,
    activation: Activation,
    residual_after: bool,
    /// The weights as f32, where they are constant and not f64.
    weights: Option<Weights>,
}

#[derive(Debug)]
struct Weights {
    shape: Shape,
    /// The weights themselves; dropped where they are packed for good.
    plain: Option<Tensor>,
    packed: Mutex<Vec<Arc<PackedConv>>>,
}

impl Conv {
    fn new(p: &Prepare<'_>) -> Result<Self> {
        let (window, groups) = (WindowAttributes::read(p.node)?, group(p.node)?);
        let weights = match p.constant(1) {
            Some(w) if w.dtype() != DType::F64 && w.rank() > 2 => {
                let w = cast(w, DType::F32)?;
                let shape = w.shape().clone();
                let mut weights =
                    Weights { shape, plain: None, packed: Mutex::new(Vec::new()) };
                let fixed = weights.pack_fixed(&w, groups, &window)?;
                if !fixed {
                    weights.plain = Some(w);
                }
                Some(weights)
            }
            _ => None,
        };
        Ok(Self { window, groups, activation: Activation::None, residual_after: false, weights })
    }

    fn run_f32(
        &self,
        io: &Io<'_>,
        x: &Tensor,
        w: Option<&Tensor>,
        bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        let shape = match (&self.weights, w) {
            (Some(w), _) => &w.shape,
            (None, Some(w)) => w.shape(),
            (None, None) => bail!(Missing, "input `W` is missing"),
        };
        let e = Extents::new(x.shape(), shape, self.groups, &self.window)?;
        if let Some(b) = bias {
            e.check_bias(b.shape())?;
        }
        let residual = io.optional(3)?;
        if let Some(z) = residual
            && *z.shape() != e.shape()
        {
            bail!(Shape, "the residual is {}, the output {}", z.describe(), e.shape());
        }
        let mut out = io.allocate(DType::F32, e.shape())?;
        if out.is_empty() {
            return Ok(out);
        }
        let bias = bias.map(|b| b.as_slice::<f32>()).transpose()?;
        let residual = residual.map(|z| z.as_slice::<f32>()).transpose()?;
        let (x, y) = (x.as_slice::<f32>()?, out.as_mut_slice::<f32>()?);
        if e.axes.len() > 2 {
            let w = self.weights.as_ref().and_then(|w| w.plain.as_ref()).or(w);
            let Some(w) = w else { bail!(Missing, "input `W` is missing") };
            plain::convolve(&e, x, w.as_slice()?, bias, y, io.threads())?;
            let (act, after) = (self.activation, self.residual_after);
            for (i, y) in y.iter_mut().enumerate() {
                let z = residual.map_or(0.0, |z| z[i]);
                *y = if after { act.apply(*y) + z } else { act.apply(*y + z) };
            }
            return Ok(out);
        }
        let packed = match &self.weights {
            Some(w) => w.for_extents(&e)?,
            None => match w {
                Some(w) => Arc::new(pack(w.as_slice()?, &e)?),
                None => bail!(Missing, "input `W` is missing"),
            },
        };
        let epilogue = ConvEpilogue {
            bias,
            residual,
            residual_after_activation: self.residual_after,
            activation: self.activation,
        };
        let [h, v] = padded_axes::<2>(&e.axes)?;
        conv2d(x, e.batch, [h.size, v.size], &packed, &epilogue, y, io.threads())?;
        Ok(out)
    }
}

/// The window of one or two spatial axes.
fn window_of(e: &Extents) -> Result<Window> {
    let [h, v] = padded_axes::<2>(&e.axes)?;
    Ok(Window {
        kernel: [h.kernel, v.kernel],
        strides: [h.stride, v.stride],
        dilations: [h.dilation, v.dilation],
        pads: [h.pads[0], v.pads[0], h.pads[1], v.pads[1]],
    })
}

fn pack(weights: &[f32], e: &Extents) -> Result<PackedConv> {
    Ok(PackedConv::new(weights, e.out_channels, e.in_channels, e.groups, window_of(e)?)?)
}

impl Weights {
    /// Packs them now if the padding does not depend on the input; says whether it did.
    fn pack_fixed(
        &mut self,
        w: &Tensor,
        groups: usize,
        window: &WindowAttributes,
    ) -> Result<bool> {
        if w.rank() > 4 || window.is_same() {
            return Ok(false);
        }
        let Some(in_channels) = w.shape()[1].checked_mul(groups) else { return Ok(false) };
        // Any input that is large enough resolves to the same window.
        let size = vec![1 << 29; w.rank() - 2];
        let axes = window.resolve(&size, &window.kernel_of(Some(&w.shape()[2..]))?)?;
        let out_channels = w.shape()[0];
        let e = Extents { batch: 1, in_channels, out_channels, groups, axes };
        let packed = pack(w.as_slice()?, &e)?;
        self.packed.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::new(packed));
        Ok(true)
    }

    fn for_extents(&self, e: &Extents) -> Result<Arc<PackedConv>> {
        let window = window_of(e)?;
        let mut forms = self.packed.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(form) = forms.iter().find(|f| f.window() == window) {
            return Ok(Arc::clone(form));
        }
        let Some(plain) = &self.plain else {
            bail!(Internal, "the weights are packed for another window than {window:?}");
        };
        let form = Arc::new(pack(plain.as_slice()?, e)?);
        if forms.len() == PACKED_FORMS {
            forms.remove(0);
        }
        forms.push(Arc::clone(&form));
        Ok(form)
    }
}

impl CpuKernel for Conv {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let (w, b) = (io.optional(1)?, io.optional(2)?);
        let y = match x.dtype() {
            DType::F32 => self.run_f32(io, x, w, b)?,
            DType::F64 => {
                let w = io.tensor(1)?;
                let e = Extents::new(x.shape(), w.shape(), self.groups, &self.window)?;
                if let Some(b) = b {
                    e.check_bias(b.shape())?;
                }
                let b = b.map(|b| b.as_slice::<f64>()).transpose()?;
                let mut out = io.allocate(DType::F64, e.shape())?;
                let y = out.as_mut_slice::<f64>()?;
                plain::convolve(&e, x.as_slice()?, w.as_slice()?, b, y, io.threads())?;
                out
            }
            dtype => {
                let wide = |t: Option<&Tensor>| t.map(|t| cast(t, DType::F32)).transpose();
                let (x, w, b) = (cast(x, DType::F32)?, wide(w)?, wide(b)?);
                cast(&self.run_f32(io, &x, w.as_ref(), b.as_ref())?, dtype)?
            }
        };
        io.emit(y);
        Ok(())
    }

    fn reads_constant(&self, input: usize) -> bool {
        input != 1 || self.weights.is_none()
    }
}
