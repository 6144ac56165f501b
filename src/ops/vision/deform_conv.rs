//! `DeformConv`.

use super::bilinear;
use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::ops::case::{Case, counted, filled};
use crate::ops::def::types::FLOATS;
use crate::ops::window::{DILATIONS, KERNEL_SHAPE, PADS, STRIDES, WindowAttributes};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, cost};
use crate::tensor::{DType, Tensor, cast, element_count};

/// A convolution of images whose taps are moved by offsets, and perhaps weighted by a mask.
pub(in crate::ops) static DEFORM_CONV: OpDef = OpDef {
    name: "DeformConv",
    domain: "",
    since: 19,
    attributes: &[
        KERNEL_SHAPE,
        STRIDES,
        DILATIONS,
        PADS,
        AttributeDef::optional("group", AttributeKind::Int),
        AttributeDef::optional("offset_group", AttributeKind::Int),
    ],
    inputs: &[
        Port::required("X", FLOATS),
        Port::required("W", FLOATS),
        Port::required("offset", FLOATS),
        Port::optional("B", FLOATS),
        Port::optional("mask", FLOATS),
    ],
    outputs: &[Port::required("Y", FLOATS)],
    infer,
    batch: |q| {
        let axis = |k: usize| q.axes.get(k).copied().flatten();
        match (axis(0), axis(2), axis(4)) {
            _ if axis(1).is_some() || axis(3).is_some() => {
                Err("its weights carry the batch".to_owned())
            }
            (None, None, None) => q.everywhere(None),
            (Some(0), Some(0), Some(0)) => q.everywhere(Some(0)),
            (Some(0), Some(0), None) if q.node.inputs.get(4).copied().flatten().is_none() => {
                q.everywhere(Some(0))
            }
            _ => Err("its image, offsets and mask do not carry the batch alike".to_owned()),
        }
    },
    cost: |q| cost::Cost { flops: 20.0 * q.output_elements(), bytes: q.bytes() },
    prepare: |p| Ok(Box::new(DeformConv::of(p.node)?)),
    cases,
};

#[derive(Debug)]
struct DeformConv {
    window: WindowAttributes,
    groups: usize,
    offset_groups: usize,
}

impl DeformConv {
    fn of(node: &Node) -> Result<Self> {
        let number = |name: &str| {
            let n = node.int_or(name, 1)?;
            match usize::try_from(n).ok().filter(|n| *n > 0) {
                Some(n) => Ok(n),
                None => bail!(Graph, "attribute `{name}` is {n}, expected at least 1"),
            }
        };
        Ok(Self {
            window: WindowAttributes::read(node)?,
            groups: number("group")?,
            offset_groups: number("offset_group")?,
        })
    }
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let this = DeformConv::of(i.node)?;
    let shape = match (i.shape(0), i.shape(1)) {
        (Some(x), Some(w)) if x.len() == 4 && w.len() == 4 => {
            let kernel: Vec<Option<usize>> = w[2..].iter().map(Dim::as_extent).collect();
            let mut shape = vec![x[0].clone(), w[0].clone()];
            shape.extend(this.window.dims(i, &x[2..], &kernel)?);
            Some(shape)
        }
        (Some(x), Some(w)) => {
            bail!(Unsupported, "an image with {} axes and weights with {}", x.len(), w.len())
        }
        _ => None,
    };
    i.set(0, i.dtype(0), shape);
    Ok(())
}

impl CpuKernel for DeformConv {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (x, w, offset) = (io.tensor(0)?, io.tensor(1)?, io.tensor(2)?);
        let dtype = x.dtype();
        let (&[n, c, height, width], &[out_c, depth, kh, kw]) = (&x.shape()[..], &w.shape()[..])
        else {
            bail!(Unsupported, "an image {} and weights {}", x.describe(), w.describe());
        };
        let (groups, og) = (self.groups, self.offset_groups);
        if depth.checked_mul(groups) != Some(c) || out_c % groups != 0 || c % og != 0 {
            bail!(
                Shape,
                "{c} channels and weights {} in {groups} groups, {og} groups of offsets",
                w.describe()
            );
        }
        let axes =
            self.window.resolve(&[height, width], self.window.kernel_of(Some(&[kh, kw]))?)?;
        let (v, h) = (axes[0], axes[1]);
        let (oh, ow, taps) = (v.out, h.out, kh * kw);
        element_count(&[n, out_c, oh, ow], 8)?;
        let shapes = [n, og * taps * 2, oh, ow];
        if *offset.shape() != shapes {
            bail!(Shape, "the offsets are {}, expected {shapes:?}", offset.describe());
        }
        let wide = |k: usize| io.optional(k)?.map(|t| cast(t, DType::F64)).transpose();
        let (bias, mask) = (wide(3)?, wide(4)?);
        if let Some(b) = bias.as_ref().filter(|b| *b.shape() != [out_c]) {
            bail!(Shape, "the bias is {}, expected [{out_c}]", b.describe());
        }
        if let Some(m) = mask.as_ref().filter(|m| *m.shape() != [n, og * taps, oh, ow]) {
            bail!(Shape, "the mask is {}, expected {:?}", m.describe(), [n, og * taps, oh, ow]);
        }
        let (x, w, offset) =
            (cast(x, DType::F64)?, cast(w, DType::F64)?, cast(offset, DType::F64)?);
        let (x, w, offset) =
            (x.as_slice::<f64>()?, w.as_slice::<f64>()?, offset.as_slice::<f64>()?);
        let bias = bias.as_ref().map(Tensor::as_slice::<f64>).transpose()?;
        let mask = mask.as_ref().map(Tensor::as_slice::<f64>).transpose()?;
        let mut out = io.allocate(DType::F64, [n, out_c, oh, ow])?;
        let (points, pixels) = (oh * ow, height * width);
        io.threads().split_rows(
            out.as_mut_slice::<f64>()?,
            (out_c * points).max(1),
            |first, to| {
                // The samples of one point: every tap of every channel.
                let mut samples = vec![0.0; c * taps];
                for (k, to) in to.chunks_mut((out_c * points).max(1)).enumerate() {
                    let item = first + k;
                    for point in 0..points {
                        let (py, px) = (point / ow, point % ow);
                        for channel in 0..c {
                            let plane = &x[(item * c + channel) * pixels..][..pixels];
                            let group = channel / (c / og);
                            for tap in 0..taps {
                                let at = (item * og + group) * taps + tap;
                                let dy = offset[at * 2 * points + point];
                                let dx = offset[(at * 2 + 1) * points + point];
                                let place = |p: usize, a: &crate::ops::window::Axis, t: usize| {
                                    (p * a.stride + t * a.dilation) as f64 - a.pads[0] as f64
                                };
                                let (y, x) =
                                    (place(py, &v, tap / kw) + dy, place(px, &h, tap % kw) + dx);
                                let weight = mask.map_or(1.0, |m| m[at * points + point]);
                                samples[channel * taps + tap] =
                                    weight * bilinear(plane, height, width, y, x);
                            }
                        }
                        for oc in 0..out_c {
                            let group = oc / (out_c / groups);
                            let own = &samples[group * depth * taps..][..depth * taps];
                            let weights = &w[oc * depth * taps..][..depth * taps];
                            let sum: f64 = own.iter().zip(weights).map(|(a, b)| a * b).sum();
                            to[oc * points + point] = sum + bias.map_or(0.0, |b| b[oc]);
                        }
                    }
                }
            },
        );
        io.emit(cast(&out, dtype)?);
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    let new = |name: &str| {
        Case::new("DeformConv", 19, name)
            .attr("kernel_shape", vec![2_i64, 2])
            .attr("pads", vec![0_i64, 0, 0, 0])
            .input(counted(&[1, 1, 3, 3]))
            .input(filled(&[1, 1, 2, 2], &[1.0_f32; 4]))
    };
    // The first tap of the first window is half a pixel further right, the second one of the
    // last a tenth further down.
    let mut offset = [0.0_f32; 32];
    offset[4] = 0.5;
    offset[11] = 0.1;
    vec![
        new("moved taps")
            .input(filled(&[1, 8, 2, 2], &offset))
            .output(filled(&[1, 1, 2, 2], &[8.5_f32, 12.0, 20.0, 24.3]))
            .close(1e-5, 1e-5),
        new("a bias and a mask")
            .input(filled(&[1, 8, 2, 2], &[0.0_f32; 32]))
            .input(filled(&[1], &[1.0_f32]))
            .input(filled(&[1, 4, 2, 2], &[0.5_f32; 16]))
            .output(filled(&[1, 1, 2, 2], &[5.0_f32, 7.0, 11.0, 13.0])),
    ]
}
