//! `LRN`, `MeanVarianceNormalization`, `LpNormalization`.

use crate::error::{Result, bail};
use crate::graph::Node;
use crate::ops::case::{Case, filled};
use crate::ops::def::types::FLOATS;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, cast, normalise_axis, strides};

/// Each element over a power of the sum of squares of its neighbouring channels.
pub(in crate::ops) static LRN: OpDef = OpDef {
    name: "LRN",
    domain: "",
    since: 1,
    attributes: &[
        AttributeDef::optional("alpha", AttributeKind::Float),
        AttributeDef::optional("beta", AttributeKind::Float),
        AttributeDef::optional("bias", AttributeKind::Float),
        AttributeDef::required("size", AttributeKind::Int),
    ],
    inputs: &[Port::required("X", FLOATS)],
    outputs: &[Port::required("Y", FLOATS)],
    infer: |i| {
        i.set(0, i.dtype(0), i.shape(0));
        Ok(())
    },
    batch: batch::leading,
    cost: cost::transcendental,
    prepare: |p| {
        let size = p.node.required_int("size")?;
        let Some(size) = usize::try_from(size).ok().filter(|s| (1..1 << 20).contains(s)) else {
            bail!(Graph, "attribute `size` is {size}, expected at least 1");
        };
        Ok(Box::new(Lrn {
            alpha: p.node.float_or("alpha", 1e-4)?.into(),
            beta: p.node.float_or("beta", 0.75)?.into(),
            bias: p.node.float_or("bias", 1.0)?.into(),
            size,
        }))
    },
    cases: || {
        vec![
            Case::new("LRN", 13, "three channels of two")
                .attr("size", 3)
                .attr("alpha", 3.0_f32)
                .attr("beta", 1.0_f32)
                .input(filled(&[1, 3, 2], &[1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]))
                .output(filled(
                    &[1, 3, 2],
                    &[1.0_f32 / 11.0, 2.0 / 21.0, 3.0 / 36.0, 4.0 / 57.0, 5.0 / 35.0, 6.0 / 53.0],
                ))
                .close(1e-7, 1e-6),
            Case::new("LRN", 13, "an even size reaches further up")
                .attr("size", 2)
                .attr("alpha", 2.0_f32)
                .attr("beta", 1.0_f32)
                .input(filled(&[1, 2, 1], &[1.0_f32, 2.0]))
                .output(filled(&[1, 2, 1], &[1.0_f32 / 6.0, 0.4]))
                .close(1e-7, 1e-6),
        ]
    },
};

#[derive(Debug)]
struct Lrn {
    alpha: f64,
    beta: f64,
    bias: f64,
    size: usize,
}

impl CpuKernel for Lrn {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let &[_, channels, ref rest @ ..] = &x.shape()[..] else {
            bail!(Shape, "the input is {}, expected batch and channels", x.describe());
        };
        let inner: usize = rest.iter().product();
        let wide = cast(x, DType::F64)?;
        let from = wide.as_slice::<f64>()?;
        let mut out = io.allocate(DType::F64, x.shape().clone())?;
        let (before, after) = ((self.size - 1) / 2, self.size / 2);
        let row = channels * inner;
        io.threads().split_rows(out.as_mut_slice::<f64>()?, row.max(1), |first, chunk| {
            for (k, to) in chunk.chunks_mut(row.max(1)).enumerate() {
                let item = &from[(first + k) * row..][..row];
                for c in 0..channels {
                    let near = c.saturating_sub(before)..(c + after + 1).min(channels);
                    for p in 0..inner {
                        let sum: f64 = near.clone().map(|n| item[n * inner + p].powi(2)).sum();
                        let scale = self.bias + self.alpha / self.size as f64 * sum;
                        to[c * inner + p] = item[c * inner + p] / scale.powf(self.beta);
                    }
                }
            }
        });
        io.emit(cast(&out, x.dtype())?);
        Ok(())
    }
}

/// How rows along some axes are normalised.
#[derive(Debug)]
enum Over {
    /// To mean 0 and variance 1, over these axes.
    Moments(Vec<i64>),
    /// To length 1 of this norm, along this axis.
    Length { axis: i64, p: i64 },
}

/// Over the given axes to mean 0 and variance 1.
pub(in crate::ops) static MEAN_VARIANCE_NORMALIZATION: OpDef = OpDef {
    name: "MeanVarianceNormalization",
    domain: "",
    since: 9,
    attributes: &[AttributeDef::optional("axes", AttributeKind::Ints)],
    inputs: &[Port::required("X", FLOATS)],
    outputs: &[Port::required("Y", FLOATS)],
    infer: |i| {
        i.set(0, i.dtype(0), i.shape(0));
        Ok(())
    },
    batch: batch::mixes,
    cost: cost::transcendental,
    prepare: |p| Ok(Box::new(moments(p.node)?)),
    cases: || {
        vec![
            Case::new("MeanVarianceNormalization", 13, "items and places together")
                .input(filled(&[2, 1, 1, 2], &[1.0_f32, 3.0, 3.0, 5.0]))
                .output(filled(&[2, 1, 1, 2], &[-1.414_213_5_f32, 0.0, 0.0, 1.414_213_5]))
                .close(1e-6, 1e-6),
            Case::new("MeanVarianceNormalization", 13, "all the same")
                .input(filled(&[1, 1, 1, 3], &[2.0_f32, 2.0, 2.0]))
                .output(filled(&[1, 1, 1, 3], &[0.0_f32, 0.0, 0.0])),
            Case::new("MeanVarianceNormalization", 13, "along the last axis")
                .attr("axes", vec![-1_i64])
                .input(filled(&[2, 2], &[1.0_f64, 3.0, 7.0, 5.0]))
                .output(filled(&[2, 2], &[-1.0_f64, 1.0, 1.0, -1.0]))
                .close(1e-6, 1e-6),
        ]
    },
};

fn moments(node: &Node) -> Result<Over> {
    Ok(Over::Moments(node.ints("axes")?.unwrap_or(&[0, 2, 3]).to_vec()))
}

/// Along an axis to the norm 1.
pub(in crate::ops) static LP_NORMALIZATION: OpDef = OpDef {
    name: "LpNormalization",
    domain: "",
    since: 1,
    attributes: &[
        AttributeDef::optional("axis", AttributeKind::Int),
        AttributeDef::optional("p", AttributeKind::Int),
    ],
    inputs: &[Port::required("input", FLOATS)],
    outputs: &[Port::required("output", FLOATS)],
    infer: |i| {
        i.set(0, i.dtype(0), i.shape(0));
        Ok(())
    },
    batch: batch::mixes,
    cost: cost::transcendental,
    prepare: |p| {
        let norm = p.node.int_or("p", 2)?;
        if !(1..=2).contains(&norm) {
            bail!(Graph, "attribute `p` is {norm}, expected 1 or 2");
        }
        Ok(Box::new(Over::Length { axis: p.node.int_or("axis", -1)?, p: norm }))
    },
    cases: || {
        vec![
            Case::new("LpNormalization", 1, "the second norm")
                .input(filled(&[2, 2], &[3.0_f32, 4.0, 0.0, 0.0]))
                .output(filled(&[2, 2], &[0.6_f32, 0.8, 0.0, 0.0]))
                .close(1e-7, 1e-7),
            Case::new("LpNormalization", 1, "the first norm, another axis")
                .attr("axis", 0)
                .attr("p", 1)
                .input(filled(&[2, 1], &[-1.0_f32, 3.0]))
                .output(filled(&[2, 1], &[-0.25_f32, 0.75])),
        ]
    },
};

impl CpuKernel for Over {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let mut over = vec![false; x.rank()];
        match self {
            Self::Moments(axes) => {
                for axis in axes {
                    over[normalise_axis(*axis, x.rank())?] = true;
                }
            }
            Self::Length { axis, .. } => over[normalise_axis(*axis, x.rank())?] = true,
        }
        let mut out = cast(x, DType::F64)?;
        // The group of each element: its place along the other axes.
        let (own, mut groups) = (strides(x.shape()), 1);
        let mut steps = vec![0; x.rank()];
        for k in (0..x.rank()).rev().filter(|k| !over[*k]) {
            steps[k] = groups;
            groups *= x.shape()[k];
        }
        let group = |at: usize| -> usize {
            own.iter().zip(x.shape().iter()).zip(&steps).map(|((s, n), g)| at / s % n * g).sum()
        };
        let all = out.as_mut_slice::<f64>()?;
        let n = all.len() as f64 / groups as f64;
        let mut sums = vec![0.0; groups];
        let gather = |sums: &mut Vec<f64>, all: &[f64], f: &dyn Fn(f64) -> f64| {
            sums.fill(0.0);
            all.iter().enumerate().for_each(|(k, v)| sums[group(k)] += f(*v));
        };
        match self {
            Self::Moments(_) => {
                gather(&mut sums, all, &|v| v);
                for (k, v) in all.iter_mut().enumerate() {
                    *v -= sums[group(k)] / n;
                }
                gather(&mut sums, all, &|v| v * v);
                for (k, v) in all.iter_mut().enumerate() {
                    *v /= (sums[group(k)] / n).sqrt() + 1e-9;
                }
            }
            Self::Length { p, .. } => {
                gather(&mut sums, all, &|v| if *p == 1 { v.abs() } else { v * v });
                for (k, v) in all.iter_mut().enumerate() {
                    let sum = sums[group(k)];
                    let length = if *p == 1 { sum } else { sum.sqrt() };
                    *v = if length == 0.0 { 0.0 } else { *v / length };
                }
            }
        }
        io.emit(cast(&out, x.dtype())?);
        Ok(())
    }
}
