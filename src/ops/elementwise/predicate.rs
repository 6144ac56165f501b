//! `IsNaN`, `IsInf` and `Not`.

use super::float::Float;
use super::{spread, wide};
use crate::error::{Result, bail};
use crate::ops::case::{Case, as_dtype, filled};
use crate::ops::def::types::BOOLS;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, cast, is_narrow};

const FLOATS: &[DType] = &[
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::F64,
    DType::F8E4M3FN,
    DType::F8E4M3FNUZ,
    DType::F8E5M2,
    DType::F8E5M2FNUZ,
];

fn infer_bool(i: &mut Infer<'_>) -> Result<()> {
    i.set(0, Some(DType::Bool), i.shape(0));
    Ok(())
}

/// Whether an element is NaN.
pub(in crate::ops) static IS_NAN: OpDef = OpDef {
    name: "IsNaN",
    domain: "",
    since: 9,
    attributes: &[],
    inputs: &[Port::required("X", FLOATS)],
    outputs: &[Port::required("Y", BOOLS)],
    infer: infer_bool,
    batch: batch::unary,
    cost: cost::elementwise,
    prepare: |_| Ok(Box::new(Predicate { nan: true, positive: false, negative: false })),
    cases: is_nan_cases,
};

/// Whether an element is ∞ or -∞, or with `detect_positive` or `detect_negative` 0 only one.
pub(in crate::ops) static IS_INF: OpDef = OpDef {
    name: "IsInf",
    domain: "",
    since: 10,
    attributes: &[
        AttributeDef::optional("detect_negative", AttributeKind::Int),
        AttributeDef::optional("detect_positive", AttributeKind::Int),
    ],
    inputs: &[Port::required("X", FLOATS)],
    outputs: &[Port::required("Y", BOOLS)],
    infer: infer_bool,
    batch: batch::unary,
    cost: cost::elementwise,
    prepare: |p| {
        Ok(Box::new(Predicate {
            nan: false,
            positive: p.node.int_or("detect_positive", 1)? != 0,
            negative: p.node.int_or("detect_negative", 1)? != 0,
        }))
    },
    cases: is_inf_cases,
};

/// Which values are told.
#[derive(Debug)]
struct Predicate {
    nan: bool,
    positive: bool,
    negative: bool,
}

impl Predicate {
    fn mark<T: Float>(&self, io: &Io<'_>, x: &Tensor, out: &mut [bool]) -> Result<()> {
        let x = x.as_slice::<T>()?;
        spread(io.threads(), out, 1, |first, out| {
            let x = &x[first..];
            if self.nan {
                out.iter_mut().zip(x).for_each(|(o, x)| *o = x.is_not_a_number());
            } else {
                out.iter_mut().zip(x).for_each(|(o, &x)| {
                    *o = (self.positive & (x == T::HIGHEST)) | (self.negative & (x == T::LOWEST));
                });
            }
        });
        Ok(())
    }
}

impl CpuKernel for Predicate {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let computed = if is_narrow(x.dtype()) { DType::F32 } else { wide(x.dtype()) };
        let x = cast(x, computed)?;
        let mut out = io.allocate(DType::Bool, x.shape().clone())?;
        match x.dtype() {
            DType::F32 => self.mark::<f32>(io, &x, out.as_mut_slice()?)?,
            DType::F64 => self.mark::<f64>(io, &x, out.as_mut_slice()?)?,
            other => bail!(DType, "expected floats, got {other}"),
        }
        io.emit(out);
        Ok(())
    }
}

/// Whether the element does not hold.
pub(in crate::ops) static NOT: OpDef = OpDef {
    name: "Not",
    domain: "",
    since: 1,
    attributes: &[],
    inputs: &[Port::required("X", BOOLS)],
    outputs: &[Port::required("Y", BOOLS)],
    infer: |i| {
        infer_bool(i)?;
        let ints = i.ints(0).filter(|_| i.rank(0).is_some_and(|r| r <= 1));
        let turned =
            ints.map(|v| v.iter().map(|v| crate::graph::Dim::fixed(i64::from(*v == 0))).collect());
        i.set_elements(0, turned);
        Ok(())
    },
    batch: batch::unary,
    cost: cost::elementwise,
    prepare: |_| Ok(Box::new(Not)),
    cases: not_cases,
};

#[derive(Debug)]
struct Not;

impl CpuKernel for Not {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let mut out = io.allocate(DType::Bool, x.shape().clone())?;
        let x = x.as_slice::<bool>()?;
        spread(io.threads(), out.as_mut_slice::<bool>()?, 1, |first, out| {
            out.iter_mut().zip(&x[first..]).for_each(|(o, x)| *o = !x);
        });
        io.emit(out);
        Ok(())
    }
}

const SPECIAL: [f32; 5] = [1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0];

fn is_nan_cases() -> Vec<Case> {
    let new = |name: &str| Case::new("IsNaN", 13, name);
    let wide = filled(&[5], &[false, true, false, false, false]);
    let x = filled(&[5], &SPECIAL);
    vec![
        new("f32").input(x.clone()).output(wide.clone()),
        new("f16").input(as_dtype(&x, DType::F16)).output(wide.clone()),
        new("f64").input(as_dtype(&x, DType::F64)).output(wide),
        new("empty").input(filled::<f32>(&[2, 0], &[])).output(filled::<bool>(&[2, 0], &[])),
    ]
}

fn is_inf_cases() -> Vec<Case> {
    let new = |name: &str| Case::new("IsInf", 20, name);
    let x = filled(&[5], &SPECIAL);
    vec![
        new("both").input(x.clone()).output(filled(&[5], &[false, false, true, true, false])),
        new("positive")
            .attr("detect_negative", 0i64)
            .input(x.clone())
            .output(filled(&[5], &[false, false, true, false, false])),
        new("negative, bf16")
            .attr("detect_positive", 0i64)
            .input(as_dtype(&x, DType::BF16))
            .output(filled(&[5], &[false, false, false, true, false])),
    ]
}

fn not_cases() -> Vec<Case> {
    let new = |name: &str| Case::new("Not", 1, name);
    vec![
        new("both values")
            .input(filled(&[2, 1], &[true, false]))
            .output(filled(&[2, 1], &[false, true])),
        new("scalar").input(Tensor::scalar(false)).output(Tensor::scalar(true)),
    ]
}
