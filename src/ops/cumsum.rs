//! `CumSum`.

use half::{bf16, f16};

use super::case::{Case, ints, of};
use super::concat::same_axis_unless;
use super::def::types::{INDICES, NUMBERS};
use super::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, cost};
use crate::error::{Result, bail};
use crate::tensor::{DType, Tensor, for_dtypes, normalise_axis};

/// Sums along an axis up to each element, with or without it, from either end.
pub(super) static CUM_SUM: OpDef = OpDef {
    name: "CumSum",
    domain: "",
    since: 11,
    attributes: &[
        AttributeDef::optional("exclusive", AttributeKind::Int),
        AttributeDef::optional("reverse", AttributeKind::Int),
    ],
    inputs: &[Port::required("x", NUMBERS), Port::required("axis", INDICES)],
    outputs: &[Port::required("y", NUMBERS)],
    infer: |i| {
        if let (Some(rank), Some([axis])) = (i.rank(0), i.ints(1).as_deref()) {
            normalise_axis(*axis, rank)?;
        }
        i.set(0, i.dtype(0), i.shape(0));
        Ok(())
    },
    batch: |q| {
        if q.is_free() {
            return q.everywhere(None);
        }
        let axis = q.ints.get(1).and_then(Option::as_ref);
        same_axis_unless(q, axis.ok_or("the axis that it sums along is not known")?, "sums")
    },
    cost: cost::elementwise,
    prepare: |p| {
        Ok(Box::new(CumSum {
            exclusive: p.node.int_or("exclusive", 0)? != 0,
            reverse: p.node.int_or("reverse", 0)? != 0,
        }))
    },
    cases,
};

#[derive(Debug)]
struct CumSum {
    exclusive: bool,
    reverse: bool,
}

/// Numbers that can be summed up; whole numbers wrap, short floats are summed as f32.
trait Sum: crate::tensor::Element {
    type Total: Copy + Default;
    fn add(total: Self::Total, x: Self) -> Self::Total;
    fn of(total: Self::Total) -> Self;
}

macro_rules! sums {
    ($($t:ty as $total:ty: $add:expr, $of:expr;)*) => { $(
        impl Sum for $t {
            type Total = $total;
            fn add(total: $total, x: Self) -> $total { $add(total, x) }
            fn of(total: $total) -> Self { $of(total) }
        }
    )* };
}
sums! {
    f32 as f32: |a, b| a + b, |a| a;
    f64 as f64: |a, b| a + b, |a| a;
    f16 as f32: |a, b: Self| a + b.to_f32(), Self::from_f32;
    bf16 as f32: |a, b: Self| a + b.to_f32(), Self::from_f32;
    i8 as i8: Self::wrapping_add, |a| a;
    i16 as i16: Self::wrapping_add, |a| a;
    i32 as i32: Self::wrapping_add, |a| a;
    i64 as i64: Self::wrapping_add, |a| a;
    u8 as u8: Self::wrapping_add, |a| a;
    u16 as u16: Self::wrapping_add, |a| a;
    u32 as u32: Self::wrapping_add, |a| a;
    u64 as u64: Self::wrapping_add, |a| a;
}

impl CpuKernel for CumSum {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let [axis] = io.tensor(1)?.to_i64s()?[..] else {
            bail!(Shape, "`axis` is one number, got {}", io.tensor(1)?.describe());
        };
        let x = io.take_tensor(0)?;
        let axis = normalise_axis(axis, x.rank())?;
        let dtype = x.dtype();
        let out = for_dtypes!(dtype, T, self.sum::<T>(io, &x, axis)?,
            bail!(Unsupported, "CumSum of dtype {dtype} is not implemented"),
            F32 f32, F64 f64, F16 f16, BF16 bf16, I8 i8, I16 i16, I32 i32, I64 i64,
            U8 u8, U16 u16, U32 u32, U64 u64);
        io.emit(out);
        Ok(())
    }
}

impl CumSum {
    fn sum<T: Sum>(&self, io: &Io<'_>, x: &Tensor, axis: usize) -> Result<Tensor> {
        let mut out = io.allocate(T::DTYPE, x.shape().clone())?;
        let (extent, inner) = (x.shape()[axis], x.shape()[axis + 1..].iter().product::<usize>());
        if out.is_empty() {
            return Ok(out);
        }
        let source = x.as_slice::<T>()?;
        let target = out.as_mut_slice::<T>()?;
        let mut totals = vec![T::Total::default(); inner];
        for (from, to) in source.chunks(extent * inner).zip(target.chunks_mut(extent * inner)) {
            totals.fill(T::Total::default());
            for n in 0..extent {
                let at = if self.reverse { extent - 1 - n } else { n } * inner;
                let (from, to) = (&from[at..at + inner], &mut to[at..at + inner]);
                for ((total, x), o) in totals.iter_mut().zip(from).zip(to) {
                    let sum = T::add(*total, *x);
                    *o = T::of(if self.exclusive { *total } else { sum });
                    *total = sum;
                }
            }
        }
        Ok(out)
    }
}

fn cases() -> Vec<Case> {
    let new = |name| Case::new("CumSum", 14, name);
    let axis = Tensor::scalar::<i32>;
    vec![
        new("last axis, wide integers")
            .input(ints(&[2, 3], vec![1, 2, 16_777_216, 4, 5, 6]))
            .constant(axis(-1))
            .output(ints(&[2, 3], vec![1, 3, 16_777_219, 4, 9, 15])),
        new("first axis, exclusive and reverse")
            .attr("exclusive", 1)
            .attr("reverse", 1)
            .input(of(&[3, 2], vec![1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0]))
            .input(axis(0))
            .output(of(&[3, 2], vec![8.0_f32, 10.0, 5.0, 6.0, 0.0, 0.0])),
        new("reverse")
            .attr("reverse", 1)
            .input(ints(&[3], vec![1, 2, 3]))
            .constant(axis(0))
            .output(ints(&[3], vec![6, 5, 3])),
        new("f16 through f32, nothing lost")
            .input(of(&[3], vec![f16::from_f32(2048.0), f16::from_f32(1.0), f16::from_f32(1.0)]))
            .constant(axis(0))
            .output(of(
                &[3],
                vec![f16::from_f32(2048.0), f16::from_f32(2048.0), f16::from_f32(2050.0)],
            )),
        new("nothing")
            .input(Tensor::zeros(DType::F32, [2, 0]).unwrap_or_else(|_| axis(0)))
            .constant(axis(0))
            .output(of::<f32>(&[2, 0], vec![])),
    ]
}
