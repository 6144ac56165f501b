//! `Max`, `Min`, `Sum` and `Mean` of any number of inputs.

use super::arithmetic::{Add, Div, Function, Larger, Smaller, WIDE, apply, case};
use super::{Broadcast, follow, limited, same_dtype, same_dtypes, wide};
use crate::error::Result;
use crate::graph::Dim;
use crate::ops::case::{Case, as_dtype, counted, filled};
use crate::ops::def::types::{FLOATS, NUMBERS};
use crate::ops::{CpuKernel, Infer, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, cast};

macro_rules! variadic {
    ($($(#[$doc:meta])* $def:ident $name:literal $kernel:ident $then:ident $types:ident
        $output:literal $elements:expr, $cases:ident;)*) => { $(
        $(#[$doc])*
        pub(in crate::ops) static $def: OpDef = OpDef {
            name: $name,
            domain: "",
            since: 1,
            attributes: &[limited::CONSUMED_INPUTS],
            inputs: &[Port::variadic("data_0", $types, 1)],
            outputs: &[Port::required($output, $types)],
            infer: |i| infer_variadic(i, $elements),
            batch: batch::elementwise,
            cost: cost::elementwise,
            prepare: |_| Ok(Box::new(Variadic($kernel, Then::$then))),
            cases: $cases,
        };
    )* };
}
variadic! {
    /// The largest of all inputs.
    MAX "Max" Larger Nothing NUMBERS "max" Some(|a, b| Some(a.larger(b))), max_cases;
    /// The smallest of all inputs.
    MIN "Min" Smaller Nothing NUMBERS "min" Some(|a, b| Some(a.smaller(b))), min_cases;
    /// The sum of all inputs.
    SUM "Sum" Add Nothing FLOATS "sum" None, sum_cases;
    /// The mean of all inputs.
    MEAN "Mean" Add DivideByCount FLOATS "mean" None, mean_cases;
}

/// Any number of inputs, from left to right; perhaps divided by their number.
#[derive(Debug)]
struct Variadic<F>(F, Then);

#[derive(Debug, PartialEq)]
enum Then {
    Nothing,
    DivideByCount,
}

impl<F: Function> CpuKernel for Variadic<F> {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let count = io.input_count();
        let dtype = io.tensor(0)?.dtype();
        for i in 1..count {
            same_dtype(io.tensor(0)?, io.tensor(i)?)?;
        }
        let mut out = io.take_tensor(0)?;
        out = cast(&out, wide(dtype))?;
        for i in 1..count {
            let plan = Broadcast::new([out.shape(), io.tensor(i)?.shape()])?;
            let next = cast(&io.take_tensor(i)?, out.dtype())?;
            out = apply::<F>(io, out, next, &plan)?;
        }
        if self.1 == Then::DivideByCount {
            let n = cast(&Tensor::scalar(count as f64), out.dtype())?;
            let plan = Broadcast::new([out.shape(), &[]])?;
            out = apply::<Div>(io, out, n, &plan)?;
        }
        io.emit(cast(&out, dtype)?);
        Ok(())
    }
}

fn infer_variadic(i: &mut Infer<'_>, f: Option<fn(&Dim, &Dim) -> Option<Dim>>) -> Result<()> {
    let count = i.input_count();
    let dtype = same_dtypes(i, 0..count)?;
    let shape = i.broadcast(&(0..count).collect::<Vec<_>>())?;
    let elements = match (count, f) {
        (1, Some(_)) => i.elements(0),
        (2, Some(f)) => follow(i, dtype, f),
        _ => None,
    };
    i.set(0, dtype, shape);
    i.set_elements(0, elements);
    Ok(())
}

fn max_cases() -> Vec<Case> {
    let nan = f32::NAN;
    vec![
        case(
            &MAX,
            13,
            "three inputs",
            &[
                filled(&[3], &[3f32, 2., 1.]),
                filled(&[3], &[1f32, 4., 4.]),
                filled(&[3], &[2f32, 5., 3.]),
            ],
            filled(&[3], &[3f32, 5., 4.]),
        ),
        case(&MAX, 13, "one input", &[counted(&[2, 2])], counted(&[2, 2])),
        case(
            &MAX,
            13,
            "NaN wins",
            &[filled(&[3], &[nan, 1., 2.]), filled(&[3], &[1f32, nan, 1.])],
            filled(&[3], &[nan, nan, 2.]),
        ),
        case(
            &MAX,
            13,
            "i64 broadcast",
            &[filled(&[3], &WIDE), Tensor::scalar(16_777_218i64)],
            filled(&[3], &[16_777_218i64, 9_007_199_254_740_993, 16_777_218]),
        ),
    ]
}

fn min_cases() -> Vec<Case> {
    vec![
        case(
            &MIN,
            13,
            "three inputs",
            &[filled(&[3], &[3f32, 2., 1.]), filled(&[3], &[1f32, 4., 4.]), filled(&[1], &[2f32])],
            filled(&[3], &[1f32, 2., 1.]),
        ),
        case(
            &MIN,
            13,
            "NaN wins",
            &[filled(&[2], &[f32::NAN, 1.]), filled(&[2], &[1f32, f32::NAN])],
            filled(&[2], &[f32::NAN, f32::NAN]),
        ),
        case(
            &MIN,
            13,
            "u64 is exact",
            &[filled(&[2], &[u64::MAX, 1]), filled(&[2], &[u64::MAX - 1, 2])],
            filled(&[2], &[u64::MAX - 1, 1]),
        ),
    ]
}

fn sum_cases() -> Vec<Case> {
    vec![
        case(
            &SUM,
            13,
            "three inputs",
            &[filled(&[3], &[3f32, 0., 2.]), filled(&[3], &[1f32, 3., 4.]), Tensor::scalar(2f32)],
            filled(&[3], &[6f32, 5., 8.]),
        ),
        case(&SUM, 13, "one input", &[counted(&[2])], counted(&[2])),
    ]
}

fn mean_cases() -> Vec<Case> {
    vec![
        case(
            &MEAN,
            13,
            "three inputs",
            &[
                filled(&[3], &[3f32, 0., 2.]),
                filled(&[3], &[1f32, 3., 4.]),
                filled(&[3], &[2f32, 6., 6.]),
            ],
            filled(&[3], &[2f32, 3., 4.]),
        ),
        case(
            &MEAN,
            13,
            "f16 divides before it rounds",
            &[
                as_dtype(&filled(&[1], &[60_000f32]), DType::F16),
                as_dtype(&filled(&[1], &[50_016f32]), DType::F16),
            ],
            as_dtype(&filled(&[1], &[55_008f32]), DType::F16),
        ),
    ]
}
