//! `NonZero`.

use super::case::{Case, ints, of};
use super::def::types::{ALL, I64S};
use super::{CpuKernel, Io, OpDef, Port, batch, cost};
use crate::error::{Result, bail};
use crate::graph::Dim;
use crate::tensor::{DType, Tensor, for_dtypes};

/// The coordinates of the elements that are not zero, one column each, in row-major order.
pub(super) static NON_ZERO: OpDef = OpDef {
    name: "NonZero",
    domain: "",
    since: 9,
    attributes: &[],
    inputs: &[Port::required("X", ALL)],
    outputs: &[Port::required("Y", I64S)],
    infer: |i| {
        let rank = match i.rank(0) {
            Some(rank) => Dim::of(rank),
            None => i.fresh(),
        };
        let count = i.fresh();
        i.set(0, Some(DType::I64), Some(vec![rank, count]));
        Ok(())
    },
    batch: batch::mixes,
    cost: cost::copy,
    prepare: |_| Ok(Box::new(NonZero)),
    cases,
};

#[derive(Debug)]
struct NonZero;

impl CpuKernel for NonZero {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let dtype = x.dtype();
        let found: Vec<usize> = for_dtypes!(dtype, T, {
            let elements = x.as_slice::<T>()?.iter().enumerate();
            elements.filter(|(_, v)| **v != T::default()).map(|(i, _)| i).collect()
        }, bail!(Unsupported, "NonZero of dtype {dtype} is not implemented"),
            F32 f32, F64 f64, F16 half::f16, BF16 half::bf16, I8 i8, I16 i16, I32 i32, I64 i64,
            U8 u8, U16 u16, U32 u32, U64 u64, Bool bool);
        let mut out = io.allocate(DType::I64, [x.rank(), found.len()])?;
        if !found.is_empty() {
            let mut step = x.len();
            for (row, extent) in
                out.as_mut_slice::<i64>()?.chunks_mut(found.len()).zip(x.shape().iter())
            {
                step /= extent;
                for (o, at) in row.iter_mut().zip(&found) {
                    *o = (at / step % extent) as i64;
                }
            }
        }
        io.emit(out);
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    let new = |name| Case::new("NonZero", 13, name);
    vec![
        new("bools")
            .input(of(&[2, 2], vec![true, false, true, true]))
            .output(ints(&[2, 3], vec![0, 1, 1, 0, 0, 1])),
        new("floats, NaN is not zero")
            .input(of(&[4], vec![0.0_f32, -0.0, f32::NAN, 1.0]))
            .output(ints(&[1, 2], vec![2, 3])),
        new("three axes")
            .input(ints(&[2, 1, 2], vec![0, 5, 0, 6]))
            .output(ints(&[3, 2], vec![0, 1, 0, 0, 1, 1])),
        new("a scalar has no coordinates")
            .input(Tensor::scalar(3_i64))
            .output(ints(&[0, 1], vec![])),
        new("nothing").input(ints(&[0, 2], vec![])).output(ints(&[2, 0], vec![])),
    ]
}
