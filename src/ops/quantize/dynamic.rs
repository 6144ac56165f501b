//! `DynamicQuantizeLinear`.

use super::{Quantized, Runs};
use crate::error::Result;
use crate::graph::Dim;
use crate::kernels::round_even;
use crate::ops::case::{Case, filled};
use crate::ops::def::types::F32S;
use crate::ops::elementwise::Number;
use crate::ops::reduce::{Largest, Smallest, fold_row};
use crate::ops::{CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor};

const BYTES: &[DType] = &[DType::U8];

/// Quantisation to u8 over the range of the values, which always includes 0.
pub(in crate::ops) static DYNAMIC_QUANTIZE_LINEAR: OpDef = OpDef {
    name: "DynamicQuantizeLinear",
    domain: "",
    since: 11,
    attributes: &[],
    inputs: &[Port::required("x", F32S)],
    outputs: &[
        Port::required("y", BYTES),
        Port::required("y_scale", F32S),
        Port::required("y_zero_point", BYTES),
    ],
    infer: |i| {
        let scalar = Some(Vec::<Dim>::new());
        i.set(0, Some(DType::U8), i.shape(0));
        i.set(1, Some(DType::F32), scalar.clone());
        i.set(2, Some(DType::U8), scalar);
        Ok(())
    },
    batch: batch::mixes,
    cost: |q| cost::Cost { flops: 6.0 * q.input_elements(0), bytes: q.bytes() },
    prepare: |_| Ok(Box::new(DynamicQuantize)),
    cases,
};

/// What the values' range comes to.
struct Range {
    scale: f32,
    /// The scale, or 1 where there are nothing but zeros: any scale does, but dividing by 0 not.
    divisor: f32,
    zero: f32,
}

impl Range {
    fn of(xs: &[f32]) -> Self {
        let low = fold_row::<Smallest, f32>(xs).smaller(0.0);
        let high = fold_row::<Largest, f32>(xs).larger(0.0);
        let scale = (high - low) / 255.0;
        let divisor = if scale == 0.0 { 1.0 } else { scale };
        Self { scale, divisor, zero: round_even(-low / divisor).clamp(0.0, 255.0) }
    }
}

/// The numbers that are left of `xs` when they are quantised over their range and back.
pub(in crate::ops) fn rounded(xs: &mut [f32]) {
    let Range { divisor, zero, .. } = Range::of(xs);
    for x in xs {
        *x = (f32::from(u8::quantize(*x, divisor, zero)) - zero) * divisor;
    }
}

#[derive(Debug)]
struct DynamicQuantize;

impl CpuKernel for DynamicQuantize {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let xs = x.as_slice::<f32>()?;
        let Range { scale, divisor, zero } = Range::of(xs);
        let mut y = io.allocate(DType::U8, x.shape().clone())?;
        let (divisors, zeros) = ([divisor], [zero]);
        let out = y.as_mut_slice::<u8>()?;
        Runs::Whole.convert(io.threads(), xs, &divisors, &zeros, out, u8::quantize_all)?;
        io.emit(y);
        io.emit(Tensor::scalar(scale));
        io.emit(Tensor::scalar(zero as u8));
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    let new = |name: &str| Case::new("DynamicQuantizeLinear", 11, name);
    vec![
        new("both signs")
            .input(filled(&[6], &[0f32, 2., -3., -2.5, 1.34, 0.5]))
            .output(filled(&[6], &[153u8, 255, 0, 26, 221, 179]))
            .output(Tensor::scalar(0.019_607_844f32))
            .output(Tensor::scalar(153u8)),
        new("all negative")
            .input(filled(&[6], &[-1f32, -2.1, -1.3, -2.5, -3.34, -4.]))
            .output(filled(&[6], &[191u8, 121, 172, 96, 42, 0]))
            .output(Tensor::scalar(0.015_686_275f32))
            .output(Tensor::scalar(255u8)),
        new("all zero")
            .input(filled(&[2, 1], &[0f32, 0.]))
            .output(filled(&[2, 1], &[0u8, 0]))
            .output(Tensor::scalar(0f32))
            .output(Tensor::scalar(0u8)),
    ]
}
