//! `ArgMax` and `ArgMin`.

use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::ops::batch::{BatchFlow, BatchQuery};
use crate::ops::case::{Case, filled};
use crate::ops::def::types::{I64S, NUMBERS};
use crate::ops::elementwise::{Number, for_wide, spread_work, wide};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, cost};
use crate::tensor::{DType, cast, normalise_axis};

const ATTRIBUTES: &[AttributeDef] = &[
    AttributeDef::optional("axis", AttributeKind::Int),
    AttributeDef::optional("keepdims", AttributeKind::Int),
    AttributeDef::optional("select_last_index", AttributeKind::Int),
];

macro_rules! arg {
    ($($(#[$doc:meta])* $def:ident $name:literal $largest:literal $cases:ident;)*) => { $(
        $(#[$doc])*
        pub(in crate::ops) static $def: OpDef = OpDef {
            name: $name,
            domain: "",
            since: 1,
            attributes: ATTRIBUTES,
            inputs: &[Port::required("data", NUMBERS)],
            outputs: &[Port::required("reduced", I64S)],
            infer,
            batch,
            cost: cost::reduction,
            prepare: |p| Ok(Box::new(Arg::of(p.node, $largest)?)),
            cases: $cases,
        };
    )* };
}
arg! {
    /// The index of the largest element along an axis.
    ARG_MAX "ArgMax" true arg_max_cases;
    /// The index of the smallest element along an axis.
    ARG_MIN "ArgMin" false arg_min_cases;
}

#[derive(Debug)]
struct Arg {
    axis: i64,
    keep: bool,
    last: bool,
    largest: bool,
}

impl Arg {
    fn of(node: &Node, largest: bool) -> Result<Self> {
        Ok(Self {
            axis: node.int_or("axis", 0)?,
            keep: node.int_or("keepdims", 1)? != 0,
            last: node.int_or("select_last_index", 0)? != 0,
            largest,
        })
    }

    fn shape<D>(&self, mut dims: Vec<D>, axis: usize, one: D) -> Vec<D> {
        if self.keep {
            dims[axis] = one;
        } else {
            dims.remove(axis);
        }
        dims
    }

    /// The indices for columns of an `[n, stride]` matrix.
    fn columns<T: Number>(&self, x: &[T], n: usize, stride: usize, out: &mut [i64]) {
        const TILE: usize = 64;
        for (t, out) in out.chunks_mut(TILE).enumerate() {
            let mut best = [T::ZERO; TILE];
            best[..out.len()].copy_from_slice(&x[t * TILE..][..out.len()]);
            out.fill(0);
            for r in 1..n {
                let row = &x[r * stride + t * TILE..];
                for ((b, o), &x) in best.iter_mut().zip(out.iter_mut()).zip(row) {
                    let beyond = if self.largest { x > *b } else { x < *b };
                    // The first NaN beats every number.
                    let better = (beyond && !b.is_not_a_number())
                        || (x.is_not_a_number() && !b.is_not_a_number())
                        || (self.last && x == *b)
                        || (self.last && x.is_not_a_number());
                    if better {
                        (*b, *o) = (x, i64::try_from(r).unwrap_or(i64::MAX));
                    }
                }
            }
        }
    }
}

impl CpuKernel for Arg {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let axis = normalise_axis(self.axis, x.rank())?;
        let n = x.shape()[axis];
        let inner: usize = x.shape()[axis + 1..].iter().product();
        let mut out = io.allocate(DType::I64, self.shape(x.shape().to_vec(), axis, 1))?;
        if n == 0 && !out.is_empty() {
            bail!(Shape, "axis {axis} of {} has no elements to choose from", x.describe());
        }
        let x = cast(x, wide(x.dtype()))?;
        let to = out.as_mut_slice::<i64>()?;
        for_wide!(x.dtype(), T => {
            let x = x.as_slice::<T>()?;
            spread_work(io.threads(), to, inner, x.len(), |first, out| {
                if inner == 0 {
                    return;
                }
                let images = x[first * n * inner..].chunks_exact((n * inner).max(1));
                for (o, image) in out.chunks_exact_mut(inner).zip(images) {
                    self.columns(image, n, inner, o);
                }
            });
        }, _ => bail!(DType, "{} is not ordered", x.dtype()));
        io.emit(out);
        Ok(())
    }
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let arg = Arg::of(i.node, true)?;
    let shape = match i.shape(0) {
        Some(dims) => {
            let axis = normalise_axis(arg.axis, dims.len())?;
            Some(arg.shape(dims, axis, Dim::fixed(1)))
        }
        None => None,
    };
    i.set(0, Some(DType::I64), shape);
    Ok(())
}

fn batch(q: &BatchQuery<'_>) -> BatchFlow {
    let Some(carrier) = q.axes.first().copied().flatten() else { return q.everywhere(None) };
    let rank = q.rank(0).ok_or("the rank of its input is not known")?;
    let arg = Arg::of(q.node, true).map_err(|e| e.to_string())?;
    let axis = normalise_axis(arg.axis, rank).map_err(|e| e.to_string())?;
    match axis.cmp(&carrier) {
        std::cmp::Ordering::Equal => Err("it chooses along the batch axis".to_owned()),
        std::cmp::Ordering::Less if !arg.keep => q.everywhere(Some(carrier - 1)),
        _ => q.everywhere(Some(carrier)),
    }
}

fn arg_max_cases() -> Vec<Case> {
    let new = |name: &str| Case::new("ArgMax", 13, name);
    let x = filled(&[2, 3], &[1f32, 5., 5., 7., 2., 7.]);
    vec![
        new("axis 0 by default").input(x.clone()).output(filled(&[1, 3], &[1i64, 0, 1])),
        new("last axis, not kept")
            .attr("axis", -1i64)
            .attr("keepdims", 0i64)
            .input(x.clone())
            .output(filled(&[2], &[1i64, 0])),
        new("last index")
            .attr("axis", 1i64)
            .attr("select_last_index", 1i64)
            .input(x)
            .output(filled(&[2, 1], &[2i64, 2])),
        new("i64 is exact")
            .attr("axis", 0i64)
            .input(filled(&[3], &[9_007_199_254_740_992i64, 9_007_199_254_740_993, 0]))
            .output(filled(&[1], &[1i64])),
        new("the first NaN wins")
            .attr("axis", 0i64)
            .input(filled(&[4], &[1f32, f32::NAN, 9., f32::NAN]))
            .output(filled(&[1], &[1i64])),
        new("the last NaN wins")
            .attr("axis", 0i64)
            .attr("select_last_index", 1i64)
            .input(filled(&[5], &[1f32, f32::NAN, 9., f32::NAN, 9.]))
            .output(filled(&[1], &[3i64])),
        new("empty")
            .attr("axis", 0i64)
            .input(filled::<f32>(&[2, 0], &[]))
            .output(filled::<i64>(&[1, 0], &[])),
    ]
}

fn arg_min_cases() -> Vec<Case> {
    let new = |name: &str| Case::new("ArgMin", 13, name);
    vec![
        new("middle axis")
            .attr("axis", 1i64)
            .attr("keepdims", 0i64)
            .input(filled(&[1, 3, 2], &[4f32, 0., 3., 1., 3., -1.]))
            .output(filled(&[1, 2], &[1i64, 2])),
        new("last index")
            .attr("axis", 0i64)
            .attr("select_last_index", 1i64)
            .input(filled(&[4], &[3i32, 1, 2, 1]))
            .output(filled(&[1], &[3i64])),
        new("u8").input(filled(&[3], &[200u8, 3, 255])).output(filled(&[1], &[1i64])),
    ]
}
