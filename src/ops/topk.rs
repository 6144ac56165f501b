//! `TopK`.

use std::cmp::Ordering;

use super::case::{Case, ints, of};
use super::concat::same_axis_unless;
use super::def::types::{I64S, NUMBERS};
use super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, cost};
use crate::error::{Result, bail, err};
use crate::graph::Dim;
use crate::tensor::{DType, Element, Tensor, for_dtypes, normalise_axis};

/// The `k` largest or smallest elements along an axis, and their indices.
pub(super) static TOP_K: OpDef = OpDef {
    name: "TopK",
    domain: "",
    since: 1,
    attributes: &[
        AttributeDef::optional("axis", AttributeKind::Int),
        AttributeDef::optional("k", AttributeKind::Int),
        AttributeDef::optional("largest", AttributeKind::Int),
        AttributeDef::optional("sorted", AttributeKind::Int),
    ],
    inputs: &[Port::required("X", NUMBERS), Port::optional("K", I64S)],
    outputs: &[Port::required("Values", NUMBERS), Port::required("Indices", I64S)],
    infer,
    batch: |q| {
        same_axis_unless(q, &[q.node.int_or("axis", -1).map_err(|e| e.to_string())?], "sorts")
    },
    cost: cost::reduction,
    prepare: |p| {
        let k = p.node.int("k")?;
        if k.is_none() && !p.has(1) {
            bail!(Graph, "TopK needs its `K`");
        }
        Ok(Box::new(TopK {
            axis: p.node.int_or("axis", -1)?,
            k,
            largest: p.node.int_or("largest", 1)? != 0,
        }))
    },
    cases,
};

/// Always sorts, which `sorted` = 0 permits.
#[derive(Debug)]
struct TopK {
    axis: i64,
    k: Option<i64>,
    largest: bool,
}

impl CpuKernel for TopK {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let k = match (self.k, io.optional(1)?) {
            (Some(k), _) => k,
            (None, Some(t)) => t.item::<i64>()?,
            (None, None) => bail!(Missing, "TopK needs its `K`"),
        };
        let axis = normalise_axis(self.axis, x.rank())?;
        let extent = x.shape()[axis];
        let k = usize::try_from(k)
            .ok()
            .filter(|k| *k <= extent)
            .ok_or_else(|| err!(Kernel, "`K` is {k}; axis {axis} has {extent} elements"))?;
        let dtype = x.dtype();
        let (values, indices) = for_dtypes!(dtype, T, self.pick::<T>(io, x, axis, k)?,
            bail!(Unsupported, "TopK of dtype {dtype} is not implemented"),
            F32 f32, F64 f64, F16 half::f16, BF16 half::bf16, I8 i8, I16 i16, I32 i32, I64 i64,
            U8 u8, U16 u16, U32 u32, U64 u64);
        io.emit(values);
        io.emit(indices);
        Ok(())
    }
}

/// NaN counts as larger than every number.
fn compare<T: PartialOrd>(a: &T, b: &T) -> Ordering {
    #[allow(clippy::eq_op)]
    let is_nan = |x: &T| x.partial_cmp(x).is_none();
    a.partial_cmp(b).unwrap_or_else(|| is_nan(a).cmp(&is_nan(b)))
}

impl TopK {
    fn pick<T: Element>(
        &self,
        io: &Io<'_>,
        x: &Tensor,
        axis: usize,
        k: usize,
    ) -> Result<(Tensor, Tensor)> {
        let mut shape = x.shape().to_vec();
        let extent = shape[axis];
        shape[axis] = k;
        let inner: usize = shape[axis + 1..].iter().product();
        let mut values = io.allocate(T::DTYPE, shape.clone())?;
        let mut indices = io.allocate(DType::I64, shape)?;
        if values.is_empty() {
            return Ok((values, indices));
        }
        let source = x.as_slice::<T>()?;
        let (to, at) = (values.as_mut_slice::<T>()?, indices.as_mut_slice::<i64>()?);
        let mut lane: Vec<(T, usize)> = Vec::with_capacity(extent);
        // Of equal elements the one with the lower index comes first.
        let order = |a: &(T, usize), b: &(T, usize)| {
            let by_value = compare(&a.0, &b.0);
            let by_value = if self.largest { by_value.reverse() } else { by_value };
            by_value.then(a.1.cmp(&b.1))
        };
        for (outer, block) in source.chunks(extent * inner).enumerate() {
            for i in 0..inner {
                lane.clear();
                lane.extend(block[i..].iter().step_by(inner).copied().zip(0..extent));
                if k < extent {
                    lane.select_nth_unstable_by(k - 1, order);
                }
                lane[..k].sort_unstable_by(order);
                for (n, (value, index)) in lane[..k].iter().enumerate() {
                    let o = (outer * k + n) * inner + i;
                    to[o] = *value;
                    at[o] = *index as i64;
                }
            }
        }
        Ok((values, indices))
    }
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let axis = i.node.int_or("axis", -1)?;
    let k = match i.node.int("k")? {
        Some(k) => Some(Dim::fixed(k)),
        None => i.elements(1).and_then(|e| e.first().cloned()),
    };
    let shape = match i.shape(0) {
        Some(mut s) => {
            let at = normalise_axis(axis, s.len())?;
            s[at] = match k {
                Some(k) => k,
                None => i.fresh(),
            };
            Some(s)
        }
        None => None,
    };
    i.set(0, i.dtype(0), shape.clone());
    i.set(1, Some(DType::I64), shape);
    Ok(())
}

fn cases() -> Vec<Case> {
    let new = |name| Case::new("TopK", 11, name);
    vec![
        new("largest, ties")
            .input(of(&[2, 4], vec![1.0_f32, 3.0, 3.0, 2.0, 0.0, -1.0, -2.0, 0.0]))
            .constant(Tensor::of_i64(&[3]))
            .output(of(&[2, 3], vec![3.0_f32, 3.0, 2.0, 0.0, 0.0, -1.0]))
            .output(ints(&[2, 3], vec![1, 2, 3, 0, 3, 1])),
        new("smallest along the first axis, wide integers")
            .attr("axis", 0)
            .attr("largest", 0)
            .input(ints(&[3, 2], vec![16_777_217, 5, 16_777_216, 4, 9, 6]))
            .input(Tensor::of_i64(&[2]))
            .output(ints(&[2, 2], vec![9, 4, 16_777_216, 5]))
            .output(ints(&[2, 2], vec![2, 1, 1, 0])),
        new("none")
            .input(ints(&[2], vec![1, 2]))
            .constant(Tensor::of_i64(&[0]))
            .output(ints(&[0], vec![]))
            .output(ints(&[0], vec![])),
        Case::new("TopK", 1, "k as attribute")
            .attr("k", 1)
            .input(of(&[3], vec![1.0_f32, 4.0, 2.0]))
            .output(of(&[1], vec![4.0_f32]))
            .output(ints(&[1], vec![1])),
    ]
}
