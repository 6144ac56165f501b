//! Features scaled: `Scaler`, `Imputer`, `Normalizer`.

use super::{DOMAIN, FEATURES, rows};
use crate::error::{Result, bail};
use crate::graph::Node;
use crate::ops::case::{Case, filled};
use crate::ops::def::types::F32S;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, cast};

/// `(x - offset) * scale`, each of one value or of one for each column.
pub(in crate::ops) static SCALER: OpDef = OpDef {
    name: "Scaler",
    domain: DOMAIN,
    since: 1,
    attributes: &[
        AttributeDef::optional("offset", AttributeKind::Floats),
        AttributeDef::optional("scale", AttributeKind::Floats),
    ],
    inputs: &[Port::required("X", FEATURES)],
    outputs: &[Port::required("Y", F32S)],
    infer: |i| {
        i.set(0, Some(DType::F32), i.shape(0));
        Ok(())
    },
    batch: batch::leading,
    cost: cost::elementwise,
    prepare: |p| {
        Ok(Box::new(Scaler {
            offset: p.node.floats("offset")?.unwrap_or(&[0.0]).to_vec(),
            scale: p.node.floats("scale")?.unwrap_or(&[1.0]).to_vec(),
        }))
    },
    cases: || {
        vec![
            Case::new("Scaler", 1, "each column")
                .domain(DOMAIN)
                .attr("offset", vec![1.0_f32, 2.0])
                .attr("scale", vec![2.0_f32, 0.5])
                .input(filled(&[2, 2], &[1.0_f32, 2.0, 3.0, 4.0]))
                .output(filled(&[2, 2], &[0.0_f32, 0.0, 4.0, 1.0])),
            Case::new("Scaler", 1, "one for all, whole numbers")
                .domain(DOMAIN)
                .attr("offset", vec![1.0_f32])
                .attr("scale", vec![2.0_f32])
                .input(filled(&[1, 2], &[1_i64, 5]))
                .output(filled(&[1, 2], &[0.0_f32, 8.0])),
        ]
    },
};

#[derive(Debug)]
struct Scaler {
    offset: Vec<f32>,
    scale: Vec<f32>,
}

impl CpuKernel for Scaler {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let (mut out, _, columns) = rows(x)?;
        for (name, v) in [("offset", &self.offset), ("scale", &self.scale)] {
            if v.len() != 1 && v.len() != columns {
                bail!(Shape, "attribute `{name}` has {} values, for {columns} columns", v.len());
            }
        }
        let (o, s) = (self.offset.len(), self.scale.len());
        for (k, v) in out.as_mut_slice::<f32>()?.iter_mut().enumerate() {
            *v = (*v - self.offset[k % o]) * self.scale[k % s];
        }
        io.emit(out.reshape(x.shape().clone())?);
        Ok(())
    }
}

/// Elements of a value, such as NaN, replaced by others.
pub(in crate::ops) static IMPUTER: OpDef = OpDef {
    name: "Imputer",
    domain: DOMAIN,
    since: 1,
    attributes: &[
        AttributeDef::optional("imputed_value_floats", AttributeKind::Floats),
        AttributeDef::optional("imputed_value_int64s", AttributeKind::Ints),
        AttributeDef::optional("replaced_value_float", AttributeKind::Float),
        AttributeDef::optional("replaced_value_int64", AttributeKind::Int),
    ],
    inputs: &[Port::required("X", FEATURES)],
    outputs: &[Port::required("Y", FEATURES)],
    infer: |i| {
        i.set(0, i.dtype(0), i.shape(0));
        Ok(())
    },
    batch: batch::leading,
    cost: cost::elementwise,
    prepare: |p| Ok(Box::new(Imputer::of(p.node)?)),
    cases: || {
        vec![
            Case::new("Imputer", 1, "NaN")
                .domain(DOMAIN)
                .attr("imputed_value_floats", vec![7.0_f32, 8.0])
                .attr("replaced_value_float", f32::NAN)
                .input(filled(&[2, 2], &[1.0_f32, f32::NAN, f32::NAN, 2.0]))
                .output(filled(&[2, 2], &[1.0_f32, 8.0, 7.0, 2.0])),
            Case::new("Imputer", 1, "whole numbers")
                .domain(DOMAIN)
                .attr("imputed_value_int64s", vec![9_i64])
                .attr("replaced_value_int64", -1)
                .input(filled(&[1, 3], &[-1_i64, 0, -1]))
                .output(filled(&[1, 3], &[9_i64, 0, 9])),
        ]
    },
};

#[derive(Debug)]
struct Imputer {
    floats: Vec<f32>,
    ints: Vec<i64>,
    float: f32,
    int: i64,
}

impl Imputer {
    fn of(node: &Node) -> Result<Self> {
        Ok(Self {
            floats: node.floats("imputed_value_floats")?.unwrap_or(&[]).to_vec(),
            ints: node.ints("imputed_value_int64s")?.unwrap_or(&[]).to_vec(),
            float: node.float_or("replaced_value_float", 0.0)?,
            int: node.int_or("replaced_value_int64", 0)?,
        })
    }
}

impl CpuKernel for Imputer {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let (_, _, columns) = rows(x)?;
        let given = if x.dtype().is_float() { self.floats.len() } else { self.ints.len() };
        if given == 0 || given != 1 && given != columns {
            bail!(Shape, "{given} values are given for {columns} columns of {}", x.dtype());
        }
        if x.dtype().is_float() {
            let mut out = cast(x, DType::F64)?;
            let (float, n) = (f64::from(self.float), self.floats.len());
            for (k, v) in out.as_mut_slice::<f64>()?.iter_mut().enumerate() {
                if *v == float || v.is_nan() && float.is_nan() {
                    *v = self.floats[k % n].into();
                }
            }
            io.emit(cast(&out, x.dtype())?);
        } else {
            let mut out = cast(x, DType::I64)?;
            let n = self.ints.len();
            for (k, v) in out.as_mut_slice::<i64>()?.iter_mut().enumerate() {
                if *v == self.int {
                    *v = self.ints[k % n];
                }
            }
            io.emit(cast(&out, x.dtype())?);
        }
        Ok(())
    }
}

/// Each row over its largest element, the sum of its absolute values, or its length.
pub(in crate::ops) static NORMALIZER: OpDef = OpDef {
    name: "Normalizer",
    domain: DOMAIN,
    since: 1,
    attributes: &[AttributeDef::optional("norm", AttributeKind::String)],
    inputs: &[Port::required("X", FEATURES)],
    outputs: &[Port::required("Y", F32S)],
    infer: |i| {
        i.set(0, Some(DType::F32), i.shape(0));
        Ok(())
    },
    batch: |q| {
        if q.rank(0) == Some(1) && !q.is_free() {
            return Err("it normalises over the batch axis".to_owned());
        }
        batch::leading(q)
    },
    cost: cost::elementwise,
    prepare: |p| {
        Ok(Box::new(match p.node.string("norm")?.unwrap_or("MAX") {
            "MAX" => Norm::Largest,
            "L1" => Norm::Sum,
            "L2" => Norm::Length,
            other => bail!(Graph, "attribute `norm` is `{other}`, expected MAX, L1 or L2"),
        }))
    },
    cases: || {
        let new = |norm: &str, want: [f32; 4]| {
            Case::new("Normalizer", 1, norm)
                .domain(DOMAIN)
                .attr("norm", norm)
                .input(filled(&[2, 2], &[3.0_f32, -4.0, 0.0, 2.0]))
                .output(filled(&[2, 2], &want))
                .close(1e-7, 1e-6)
        };
        vec![
            new("MAX", [1.0, -1.333_333_4, 0.0, 1.0]),
            new("L1", [0.428_571_43, -0.571_428_6, 0.0, 1.0]),
            new("L2", [0.6, -0.8, 0.0, 1.0]),
        ]
    },
};

#[derive(Debug)]
enum Norm {
    Largest,
    Sum,
    Length,
}

impl CpuKernel for Norm {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let (mut out, _, columns): (Tensor, usize, usize) = rows(x)?;
        for row in out.as_mut_slice::<f32>()?.chunks_mut(columns.max(1)) {
            let norm = match self {
                Self::Largest => row.iter().copied().fold(f32::NEG_INFINITY, f32::max),
                Self::Sum => row.iter().map(|v| v.abs()).sum(),
                Self::Length => row.iter().map(|v| v * v).sum::<f32>().sqrt(),
            };
            if norm != 0.0 {
                row.iter_mut().for_each(|v| *v /= norm);
            }
        }
        io.emit(out.reshape(x.shape().clone())?);
        Ok(())
    }
}
