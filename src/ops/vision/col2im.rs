//! `Col2Im`.

use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::ops::case::{Case, filled};
use crate::ops::def::types::{FLOATS, I64S};
use crate::ops::window::sizes;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, cast, element_count};

/// Windows laid out as columns, added up to the image that they are of.
pub(in crate::ops) static COL2IM: OpDef = OpDef {
    name: "Col2Im",
    domain: "",
    since: 18,
    attributes: &[
        AttributeDef::optional("dilations", AttributeKind::Ints),
        AttributeDef::optional("pads", AttributeKind::Ints),
        AttributeDef::optional("strides", AttributeKind::Ints),
    ],
    inputs: &[
        Port::required("input", FLOATS),
        Port::required("image_shape", I64S),
        Port::required("block_shape", I64S),
    ],
    outputs: &[Port::required("output", FLOATS)],
    infer,
    batch: batch::leading,
    cost: cost::reduction,
    prepare: |p| Ok(Box::new(Col2Im::of(p.node)?)),
    cases,
};

#[derive(Debug)]
struct Col2Im {
    dilations: Option<Vec<usize>>,
    pads: Option<Vec<usize>>,
    strides: Option<Vec<usize>>,
}

impl Col2Im {
    fn of(node: &Node) -> Result<Self> {
        Ok(Self {
            dilations: sizes(node, "dilations", 1)?,
            pads: sizes(node, "pads", 0)?,
            strides: sizes(node, "strides", 1)?,
        })
    }
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let shape = match (i.shape(0), i.elements(1), i.elements(2)) {
        (Some(x), Some(image), Some(block)) if x.len() == 3 => {
            let block = Dim::product(&block);
            let channels = x[1].exact_div(&block).unwrap_or_else(|| i.fresh());
            let mut shape = vec![x[0].clone(), channels];
            shape.extend(image);
            Some(shape)
        }
        _ => None,
    };
    i.set(0, i.dtype(0), shape);
    Ok(())
}

impl CpuKernel for Col2Im {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let extents = |k: usize| -> Result<Vec<usize>> {
            let given = io.tensor(k)?.to_i64s()?;
            let all: Option<Vec<usize>> = given
                .iter()
                .map(|n| usize::try_from(*n).ok().filter(|n| (1..1 << 30).contains(n)))
                .collect();
            match all {
                Some(all) => Ok(all),
                None => bail!(Shape, "input {k} is {given:?}; extents must be positive"),
            }
        };
        let (image, block) = (extents(1)?, extents(2)?);
        let axes = image.len();
        let of = |v: &Option<Vec<usize>>, name: &str, count: usize, default: usize| match v {
            None => Ok(vec![default; count]),
            Some(v) if v.len() == count => Ok(v.clone()),
            Some(v) => bail!(Graph, "attribute `{name}` is {v:?}, expected {count} values"),
        };
        let dilations = of(&self.dilations, "dilations", axes, 1)?;
        let strides = of(&self.strides, "strides", axes, 1)?;
        let pads = of(&self.pads, "pads", 2 * axes, 0)?;
        let taps = element_count(&block, 8)?;
        let &[n, rows, columns] = &x.shape()[..] else {
            bail!(Shape, "the input is {}, expected [batch,channels,windows]", x.describe());
        };
        if block.len() != axes || taps == 0 || rows % taps != 0 {
            bail!(Shape, "{} does not fit blocks {block:?} of an image {image:?}", x.describe());
        }
        let channels = rows / taps;
        // Windows along each axis.
        let mut counts = Vec::with_capacity(axes);
        for k in 0..axes {
            let reach = (block[k] - 1).checked_mul(dilations[k]).map_or(usize::MAX, |r| r + 1);
            let room = (image[k] + pads[k] + pads[k + axes]).checked_sub(reach);
            counts.push(room.map_or(0, |r| r / strides[k] + 1));
        }
        if counts.iter().product::<usize>() != columns {
            bail!(Shape, "there are {columns} windows, {counts:?} are expected");
        }
        let mut shape = vec![n, channels];
        shape.extend_from_slice(&image);
        let pixels = element_count(&shape, 8)? / (n * channels).max(1);
        let wide = cast(x, DType::F64)?;
        let from = wide.as_slice::<f64>()?;
        let mut out = Tensor::zeros(DType::F64, shape)?;
        let to = out.as_mut_slice::<f64>()?;
        for plane in 0..n * channels {
            let target = &mut to[plane * pixels..][..pixels];
            for tap in 0..taps {
                let line = &from[(plane * taps + tap) * columns..][..columns];
                for (window, v) in line.iter().enumerate() {
                    let (mut t, mut w, mut at, mut step) = (tap, window, 0, 1);
                    let mut inside = true;
                    for k in (0..axes).rev() {
                        let p = w % counts[k] * strides[k] + t % block[k] * dilations[k];
                        match p.checked_sub(pads[k]).filter(|p| *p < image[k]) {
                            Some(p) => at += p * step,
                            None => inside = false,
                        }
                        step *= image[k];
                        t /= block[k];
                        w /= counts[k];
                    }
                    if inside {
                        target[at] += v;
                    }
                }
            }
        }
        io.emit(cast(&out, x.dtype())?);
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    vec![
        Case::new("Col2Im", 18, "windows that overlap")
            .input(filled(&[1, 2, 2], &[1.0_f32, 2.0, 3.0, 4.0]))
            .constant(filled(&[2], &[1_i64, 3]))
            .constant(filled(&[2], &[1_i64, 2]))
            .output(filled(&[1, 1, 1, 3], &[1.0_f32, 5.0, 4.0])),
        Case::new("Col2Im", 18, "strides, dilations and pads")
            .attr("strides", vec![2_i64])
            .attr("dilations", vec![2_i64])
            .attr("pads", vec![1_i64, 1])
            .input(filled(&[1, 2, 2], &[1.0_f32, 2.0, 3.0, 4.0]))
            .input(filled(&[1], &[3_i64]))
            .input(filled(&[1], &[2_i64]))
            .output(filled(&[1, 1, 3], &[0.0_f32, 5.0, 0.0])),
    ]
}
