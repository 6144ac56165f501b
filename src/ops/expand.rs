//! `Expand`, `Shape`, `Size` and `ConstantOfShape`: shapes as data and data of a given shape.

use super::batch::{BatchFlow, BatchQuery};
use super::case::{Case, ints, iota, of};
use super::def::types::{ALL, ANY, I64S, STORED};
use super::infer::broadcast_dims;
use super::movement::{Strided, produce};
use super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, cost};
use crate::error::{Result, bail, err};
use crate::graph::{Dim, Node};
use crate::tensor::{DType, Shape, Tensor, broadcast_shapes, strides};

/// A tensor broadcast to a shape.
pub(super) static EXPAND: OpDef = OpDef {
    name: "Expand",
    domain: "",
    since: 8,
    attributes: &[],
    inputs: &[Port::required("input", ANY), Port::required("shape", I64S)],
    outputs: &[Port::required("output", ANY)],
    infer: infer_expand,
    batch: batch_expand,
    cost: cost::copy,
    prepare: |_| Ok(Box::new(Expand)),
    cases: expand_cases,
};

/// The extents of a tensor, or of some of its axes.
pub(super) static SHAPE: OpDef = OpDef {
    name: "Shape",
    domain: "",
    since: 1,
    attributes: &[
        AttributeDef::optional("start", AttributeKind::Int),
        AttributeDef::optional("end", AttributeKind::Int),
    ],
    inputs: &[Port::required("data", STORED)],
    outputs: &[Port::required("shape", I64S)],
    infer: |i| {
        let (start, end) = (i.node.int_or("start", 0)?, i.node.int("end")?);
        match i.shape(0) {
            Some(s) => {
                let kept = s[axes(start, end, s.len())].to_vec();
                i.set(0, Some(DType::I64), Some(vec![Dim::of(kept.len())]));
                i.set_elements(0, Some(kept));
            }
            None => {
                let shape = i.fresh_shape(1);
                i.set(0, Some(DType::I64), Some(shape));
            }
        }
        Ok(())
    },
    batch: |q| q.everywhere(None),
    cost: cost::free,
    prepare: |p| {
        Ok(Box::new(ShapeOf { start: p.node.int_or("start", 0)?, end: p.node.int("end")? }))
    },
    cases: shape_cases,
};

/// The number of elements of a tensor.
pub(super) static SIZE: OpDef = OpDef {
    name: "Size",
    domain: "",
    since: 1,
    attributes: &[],
    inputs: &[Port::required("data", STORED)],
    outputs: &[Port::required("size", I64S)],
    infer: |i| {
        i.set(0, Some(DType::I64), Some(vec![]));
        i.set_elements(0, i.shape(0).map(|s| vec![Dim::product(&s)]));
        Ok(())
    },
    batch: |q| q.everywhere(None),
    cost: cost::free,
    prepare: |_| Ok(Box::new(Size)),
    cases: || {
        let new = |name| Case::new("Size", 13, name);
        vec![
            new("elements").input(iota(&[2, 3])).output(Tensor::scalar(6_i64)),
            new("of a scalar").input(iota(&[])).output(Tensor::scalar(1_i64)),
            new("of nothing").input(iota(&[2, 0])).output(Tensor::scalar(0_i64)),
        ]
    },
};

/// A tensor of a given shape whose elements are all the same.
pub(super) static CONSTANT_OF_SHAPE: OpDef = OpDef {
    name: "ConstantOfShape",
    domain: "",
    since: 9,
    attributes: &[AttributeDef::optional("value", AttributeKind::Tensor)],
    inputs: &[Port::required("input", I64S)],
    outputs: &[Port::required("output", ALL)],
    infer: |i| {
        let value = fill_value(i.node)?;
        let extents = i.elements(0);
        if let Some(e) = extents.as_ref().and_then(|e| e.iter().find_map(negative)) {
            bail!(Shape, "an extent of the input is {e}");
        }
        let rank = i.shape(0).and_then(|s| s.first()?.as_extent());
        let shape = match (&extents, rank) {
            (Some(e), _) => Some(e.clone()),
            (None, Some(rank)) => Some(i.fresh_shape(rank)),
            (None, None) => None,
        };
        i.set(0, Some(value.dtype()), shape);
        if value.dtype().is_int()
            && let Some(extents) = extents.filter(|e| e.len() <= 1)
            && let Some(n) = extents.first().map_or(Some(1), Dim::as_extent)
            && n <= 64
            && let Some(v) = value.to_i64s()?.first()
        {
            i.set_elements(0, Some(vec![Dim::fixed(*v); n]));
        }
        Ok(())
    },
    batch: batch_made,
    cost: cost::copy,
    prepare: |p| Ok(Box::new(ConstantOfShape { value: fill_value(p.node)? })),
    cases: constant_of_shape_cases,
};

#[derive(Debug)]
struct Expand;

impl CpuKernel for Expand {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let target = extents(io.tensor(1)?)?;
        let x = io.take_tensor(0)?;
        let shape = broadcast_shapes(&[x.shape(), &target])?;
        if shape == *x.shape() {
            io.emit(x);
            return Ok(());
        }
        let lead = shape.rank() - x.rank();
        let mut steps = vec![0; lead];
        for (&d, s) in x.shape().iter().zip(strides(x.shape())) {
            steps.push(if d == 1 { 0 } else { s as isize });
        }
        let walk = Strided::new(0, &shape, &steps);
        io.emit(produce(io, &[&x], shape, &walk)?);
        Ok(())
    }
}

/// The extents that a tensor of whole numbers holds.
fn extents(t: &Tensor) -> Result<Shape> {
    if t.rank() > 1 {
        bail!(Shape, "a shape has one axis, got {}", t.describe());
    }
    t.to_i64s()?
        .into_iter()
        .map(|d| usize::try_from(d).map_err(|_| err!(Shape, "an extent of the shape is {d}")))
        .collect::<Result<Vec<usize>>>()
        .map(Shape::from)
}

fn negative(d: &Dim) -> Option<i64> {
    d.as_fixed().filter(|v| *v < 0)
}

#[derive(Debug)]
struct ShapeOf {
    start: i64,
    end: Option<i64>,
}

impl CpuKernel for ShapeOf {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let shape = io.tensor(0)?.shape();
        let kept = &shape[axes(self.start, self.end, shape.rank())];
        let kept: Vec<i64> = kept.iter().map(|d| i64::try_from(*d).unwrap_or(i64::MAX)).collect();
        io.emit(Tensor::of_i64(&kept));
        Ok(())
    }
}

/// The axes from `start` to before `end`, both clamped.
fn axes(start: i64, end: Option<i64>, rank: usize) -> std::ops::Range<usize> {
    let r = i64::try_from(rank).unwrap_or(i64::MAX);
    let clamped = |v: i64| {
        let v = if v < 0 { v.saturating_add(r) } else { v };
        usize::try_from(v.clamp(0, r)).unwrap_or(rank)
    };
    let (start, end) = (clamped(start), end.map_or(rank, clamped));
    start.min(end)..end
}

#[derive(Debug)]
struct Size;

impl CpuKernel for Size {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let count = io.tensor(0)?.len();
        io.emit(Tensor::scalar(i64::try_from(count).unwrap_or(i64::MAX)));
        Ok(())
    }
}

#[derive(Debug)]
struct ConstantOfShape {
    value: Tensor,
}

impl CpuKernel for ConstantOfShape {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let shape = extents(io.tensor(0)?)?;
        let walk = Strided::new(0, &shape, &vec![0; shape.rank()]);
        io.emit(produce(io, &[&self.value], shape, &walk)?);
        Ok(())
    }
}

/// The attribute `value` of `ConstantOfShape`: one element.
fn fill_value(node: &Node) -> Result<Tensor> {
    match node.tensor("value")? {
        None => Ok(Tensor::scalar(0.0_f32)),
        Some(t) if t.len() == 1 => t.reshape([]),
        Some(t) => bail!(Graph, "`value` is one element, got {}", t.describe()),
    }
}

fn infer_expand(i: &mut Infer<'_>) -> Result<()> {
    let dtype = i.dtype(0);
    let count = i.shape(1).and_then(|s| s.first()?.as_extent());
    let shape = match (i.shape(0), i.elements(1), count) {
        (Some(s), Some(target), _) => {
            if let Some(e) = target.iter().find_map(negative) {
                bail!(Shape, "an extent of `shape` is {e}");
            }
            Some(broadcast_dims(&[&s, &target])?)
        }
        (Some(s), None, Some(n)) => {
            // An extent other than 1 cannot be stretched.
            let rank = n.max(s.len());
            let mut out = i.fresh_shape(rank);
            for (k, d) in s.iter().enumerate() {
                if d.as_fixed().is_some_and(|v| v != 1) {
                    out[rank - s.len() + k] = d.clone();
                }
            }
            Some(out)
        }
        _ => None,
    };
    if shape.as_ref().is_some_and(|s| s.len() <= 1)
        && let Some(n) = shape.as_ref().and_then(|s| s.first().map_or(Some(1), Dim::as_extent))
        && n <= 64
        && let Some(elements) = i.elements(0)
    {
        let repeated = match elements.as_slice() {
            [one] => Some(vec![one.clone(); n]),
            _ if elements.len() == n => Some(elements),
            _ => None,
        };
        i.set_elements(0, repeated);
    }
    i.set(0, dtype, shape);
    Ok(())
}

fn batch_expand(q: &BatchQuery<'_>) -> BatchFlow {
    if q.axes.get(1).copied().flatten().is_some() {
        return Err("the shape that it expands to depends on the items of the batch".to_owned());
    }
    let (from, to) = (q.shapes.first(), q.output_shapes.first());
    let (Some(Some(from)), Some(Some(to))) = (from, to) else {
        return if q.is_free() {
            q.everywhere(None)
        } else {
            Err("its shapes are not known".to_owned())
        };
    };
    let lead = to.len().saturating_sub(from.len());
    let made = q.batch_axis_of(to);
    match q.axes.first().copied().flatten() {
        Some(axis) => {
            if from.get(axis) != to.get(axis + lead) {
                return Err(format!("it may stretch the batch axis {axis}"));
            }
            match made? {
                Some(other) if other != axis + lead => {
                    Err(format!("it makes rows for each item on axis {other}"))
                }
                _ => q.everywhere(Some(axis + lead)),
            }
        }
        // Rows that are the same for each item are made on an axis that was not there, or 1.
        None => match made {
            Ok(Some(axis))
                if axis < lead || from.get(axis - lead).and_then(Dim::as_fixed) == Some(1) =>
            {
                q.everywhere(Some(axis))
            }
            _ => q.everywhere(None),
        },
    }
}

/// Every row that is made is the same, so that the batch is where its symbol is.
fn batch_made(q: &BatchQuery<'_>) -> BatchFlow {
    if !q.is_free() {
        return Err("its shape depends on the items of the batch".to_owned());
    }
    match q.output_shapes.first() {
        Some(Some(shape)) => q.everywhere(q.batch_axis_of(shape)?),
        _ => q.everywhere(None),
    }
}

fn expand_cases() -> Vec<Case> {
    let new = |name| Case::new("Expand", 13, name);
    vec![
        new("an axis and one before")
            .input(of(&[3, 1], vec![1.0_f32, 2.0, 3.0]))
            .constant(Tensor::of_i64(&[2, 1, 2]))
            .output(of(
                &[2, 3, 2],
                vec![1.0_f32, 1.0, 2.0, 2.0, 3.0, 3.0, 1.0, 1.0, 2.0, 2.0, 3.0, 3.0],
            )),
        new("the shape has fewer axes")
            .input(iota(&[2, 1, 2]))
            .input(Tensor::of_i64(&[1]))
            .output(iota(&[2, 1, 2])),
        new("a scalar, wide integers")
            .input(Tensor::scalar(16_777_217_i64))
            .constant(Tensor::of_i64(&[2]))
            .output(ints(&[2], vec![16_777_217, 16_777_217])),
        new("to nothing")
            .input(iota(&[1, 2]))
            .constant(Tensor::of_i64(&[0, 2]))
            .output(iota(&[0, 2])),
        new("bools")
            .input(of(&[1], vec![true]))
            .constant(Tensor::of_i64(&[2]))
            .output(of(&[2], vec![true, true])),
    ]
}

fn shape_cases() -> Vec<Case> {
    let new = |name| Case::new("Shape", 15, name);
    vec![
        new("all axes").input(iota(&[2, 0, 3])).output(Tensor::of_i64(&[2, 0, 3])),
        new("of a scalar").input(iota(&[])).output(Tensor::of_i64(&[])),
        new("negative start").attr("start", -1).input(iota(&[2, 3])).output(Tensor::of_i64(&[3])),
        new("clamped end")
            .attr("start", -10)
            .attr("end", -1)
            .input(iota(&[2, 3, 4]))
            .output(Tensor::of_i64(&[2, 3])),
        new("nothing").attr("start", 2).attr("end", 1).input(iota(&[2, 3])).output(iota(&[0])),
    ]
}

fn constant_of_shape_cases() -> Vec<Case> {
    let new = |name| Case::new("ConstantOfShape", 9, name);
    vec![
        new("zeros").constant(Tensor::of_i64(&[2, 1])).output(of(&[2, 1], vec![0.0_f32, 0.0])),
        new("of i64, at run time")
            .attr("value", ints(&[1], vec![16_777_217]))
            .input(Tensor::of_i64(&[3]))
            .output(ints(&[3], vec![16_777_217; 3])),
        new("a scalar")
            .attr("value", of(&[1], vec![true]))
            .constant(Tensor::of_i64(&[]))
            .output(Tensor::scalar(true)),
        new("nothing").constant(Tensor::of_i64(&[0, 3])).output(of::<f32>(&[0, 3], vec![])),
    ]
}
