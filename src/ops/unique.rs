//! `Unique`.

use std::cmp::Ordering;

use super::case::{Case, ints, of};
use super::def::types::{ANY, I64S};
use super::movement::{Picked, produce};
use super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, batch, cost};
use crate::error::{Result, bail};
use crate::tensor::{DType, Tensor, for_dtypes, normalise_axis};

/// The different elements, or the different slices along an axis, sorted or as they come.
pub(super) static UNIQUE: OpDef = OpDef {
    name: "Unique",
    domain: "",
    since: 11,
    attributes: &[
        AttributeDef::optional("axis", AttributeKind::Int),
        AttributeDef::optional("sorted", AttributeKind::Int),
    ],
    inputs: &[Port::required("X", ANY)],
    outputs: &[
        Port::required("Y", ANY),
        Port::optional("indices", I64S),
        Port::optional("inverse_indices", I64S),
        Port::optional("counts", I64S),
    ],
    infer,
    batch: batch::mixes,
    cost: cost::reduction,
    prepare: |p| {
        Ok(Box::new(Unique { axis: p.node.int("axis")?, sorted: p.node.int_or("sorted", 1)? != 0 }))
    },
    cases,
};

#[derive(Debug)]
struct Unique {
    axis: Option<i64>,
    sorted: bool,
}

/// What is the same and what comes first among `count` slices.
struct Groups {
    /// The first slice of each group.
    first: Vec<usize>,
    /// The group of each slice.
    of: Vec<usize>,
    /// How many slices each group has.
    counts: Vec<i64>,
}

impl CpuKernel for Unique {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.take_tensor(0)?;
        // Without an axis every element is a slice of a tensor with one axis.
        let (x, axis) = match self.axis {
            Some(axis) => (x.clone(), normalise_axis(axis, x.rank())?),
            None => (x.reshape([x.len()])?, 0),
        };
        let count = x.shape()[axis];
        let outer: usize = x.shape()[..axis].iter().product();
        let run: usize = x.shape()[axis + 1..].iter().product();
        let dtype = x.dtype();
        let groups = match dtype {
            DType::String => {
                let all = x.as_strings()?;
                grouped(all, count, outer, run, self.sorted, &|a, b| a.cmp(b))
            }
            _ => for_dtypes!(dtype, T, {
                let all = x.as_slice::<T>()?;
                // NaN is the last, and the same as itself.
                let order = |a: &T, b: &T| {
                    let is_nan = |x: &T| x.partial_cmp(x).is_none();
                    a.partial_cmp(b).unwrap_or_else(|| is_nan(a).cmp(&is_nan(b)))
                };
                grouped(all, count, outer, run, self.sorted, &order)
            }, bail!(Unsupported, "Unique of dtype {dtype} is not implemented"),
                F32 f32, F64 f64, F16 half::f16, BF16 half::bf16, I8 i8, I16 i16, I32 i32,
                I64 i64, U8 u8, U16 u16, U32 u32, U64 u64, Bool bool),
        };
        let mut shape = x.shape().to_vec();
        shape[axis] = groups.first.len();
        let offsets: Vec<usize> = groups.first.iter().map(|i| i * run).collect();
        let picked = Picked { offsets: &offsets, run, outer, step: count * run };
        io.emit(produce(io, &[&x], shape, &picked)?);
        let numbers = |v: &[usize]| v.iter().map(|i| *i as i64).collect::<Vec<_>>();
        io.emit(Tensor::of_i64(&numbers(&groups.first)));
        io.emit(Tensor::of_i64(&numbers(&groups.of)));
        io.emit(Tensor::of_i64(&groups.counts));
        Ok(())
    }
}

fn grouped<T>(
    all: &[T],
    count: usize,
    outer: usize,
    run: usize,
    sorted: bool,
    order: &dyn Fn(&T, &T) -> Ordering,
) -> Groups {
    let compare = |a: usize, b: usize| {
        for o in 0..outer {
            let slice = |i: usize| &all[(o * count + i) * run..(o * count + i + 1) * run];
            for (x, y) in slice(a).iter().zip(slice(b)) {
                match order(x, y) {
                    Ordering::Equal => {}
                    other => return other,
                }
            }
        }
        Ordering::Equal
    };
    let mut by_value: Vec<usize> = (0..count).collect();
    by_value.sort_by(|a, b| compare(*a, *b));
    // The sort is stable, so that a group starts with its first slice.
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for i in by_value {
        match groups.last_mut() {
            Some(group) if compare(group[0], i) == Ordering::Equal => group.push(i),
            _ => groups.push(vec![i]),
        }
    }
    if !sorted {
        groups.sort_by_key(|g| g[0]);
    }
    let mut of = vec![0; count];
    for (n, group) in groups.iter().enumerate() {
        for &i in group {
            of[i] = n;
        }
    }
    Groups {
        first: groups.iter().map(|g| g[0]).collect(),
        of,
        counts: groups.iter().map(|g| g.len() as i64).collect(),
    }
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let found = i.fresh();
    let axis = i.node.int("axis")?;
    let (values, slices) = match (axis, i.shape(0)) {
        (None, shape) => {
            let all = match shape {
                Some(s) => crate::graph::Dim::product(&s),
                None => i.fresh(),
            };
            (Some(vec![found.clone()]), all)
        }
        (Some(axis), Some(mut s)) => {
            let at = normalise_axis(axis, s.len())?;
            let slices = std::mem::replace(&mut s[at], found.clone());
            (Some(s), slices)
        }
        (Some(_), None) => (None, i.fresh()),
    };
    i.set(0, i.dtype(0), values);
    i.set(1, Some(DType::I64), Some(vec![found.clone()]));
    i.set(2, Some(DType::I64), Some(vec![slices]));
    i.set(3, Some(DType::I64), Some(vec![found]));
    Ok(())
}

fn cases() -> Vec<Case> {
    let new = |name| Case::new("Unique", 11, name);
    vec![
        new("sorted")
            .input(of(&[6], vec![2.0_f32, 1.0, 1.0, 3.0, 4.0, 3.0]))
            .output(of(&[4], vec![1.0_f32, 2.0, 3.0, 4.0]))
            .output(ints(&[4], vec![1, 0, 3, 4]))
            .output(ints(&[6], vec![1, 0, 0, 2, 3, 2]))
            .output(ints(&[4], vec![2, 1, 2, 1])),
        new("as they come, wide integers")
            .attr("sorted", 0)
            .input(ints(&[2, 2], vec![16_777_217, 5, 16_777_216, 5]))
            .output(ints(&[3], vec![16_777_217, 5, 16_777_216]))
            .output(ints(&[3], vec![0, 1, 2]))
            .output(ints(&[4], vec![0, 1, 2, 1]))
            .output(ints(&[3], vec![1, 2, 1])),
        new("columns")
            .attr("axis", -1)
            .input(ints(&[2, 3], vec![7, 1, 7, 0, 2, 0]))
            .output(ints(&[2, 2], vec![1, 7, 2, 0]))
            .output(ints(&[2], vec![1, 0]))
            .output(ints(&[3], vec![1, 0, 1]))
            .output(ints(&[2], vec![1, 2])),
        new("nothing").input(ints(&[0], vec![])).output(ints(&[0], vec![])),
    ]
}
