//! `Gather`, `GatherElements` and `GatherND`: elements picked by index tensors.

use super::batch::{BatchFlow, BatchQuery};
use super::case::{Case, ints, iota, of};
use super::def::types::{ANY, I64S, INDICES};
use super::movement::{Picked, Strided, produce, walked};
use super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, cost};
use crate::error::{Result, bail, err};
use crate::graph::Dim;
use crate::tensor::{Few, Shape, Tensor, normalise_axis, strides};

const AXIS: &[AttributeDef] = &[AttributeDef::optional("axis", AttributeKind::Int)];

/// Slices along one axis, by index.
pub(super) static GATHER: OpDef = OpDef {
    name: "Gather",
    domain: "",
    since: 1,
    attributes: AXIS,
    inputs: &[Port::required("data", ANY), Port::required("indices", INDICES)],
    outputs: &[Port::required("output", ANY)],
    infer: infer_gather,
    batch: batch_gather,
    cost: |q| cost::Cost { flops: 0.0, bytes: moved(q) },
    prepare: |p| Ok(Box::new(Gather { axis: p.node.int_or("axis", 0)? })),
    cases: gather_cases,
};

/// Single elements: all coordinates but one are those of the index.
pub(super) static GATHER_ELEMENTS: OpDef = OpDef {
    name: "GatherElements",
    domain: "",
    since: 11,
    attributes: AXIS,
    inputs: &[Port::required("data", ANY), Port::required("indices", INDICES)],
    outputs: &[Port::required("output", ANY)],
    infer: |i| {
        i.set(0, i.dtype(0), i.shape(1));
        Ok(())
    },
    batch: |q| {
        let axis = q.node.int_or("axis", 0).map_err(|e| e.to_string())?;
        batch_elementwise_along(q, axis)
    },
    cost: |q| cost::Cost { flops: 0.0, bytes: moved(q) },
    prepare: |p| Ok(Box::new(GatherElements { axis: p.node.int_or("axis", 0)? })),
    cases: gather_elements_cases,
};

/// Slices by tuples of coordinates.
pub(super) static GATHER_ND: OpDef = OpDef {
    name: "GatherND",
    domain: "",
    since: 11,
    attributes: &[AttributeDef::optional("batch_dims", AttributeKind::Int)],
    inputs: &[Port::required("data", ANY), Port::required("indices", I64S)],
    outputs: &[Port::required("output", ANY)],
    infer: infer_gather_nd,
    batch: batch_gather_nd,
    cost: |q| cost::Cost { flops: 0.0, bytes: moved(q) },
    prepare: |p| {
        let given = p.node.int_or("batch_dims", 0)?;
        let batch = usize::try_from(given)
            .map_err(|_| err!(Graph, "`batch_dims` is {given}; it cannot be negative"))?;
        Ok(Box::new(GatherNd { batch }))
    },
    cases: gather_nd_cases,
};

/// Only what is picked is read.
fn moved(q: &cost::CostQuery<'_>) -> f64 {
    let size = |x: &Option<(crate::DType, Shape)>| {
        x.as_ref().map_or(0.0, |(d, s)| (s.elements() * d.size()) as f64)
    };
    2.0 * q.outputs.first().map_or(0.0, size) + q.inputs.get(1).map_or(0.0, size)
}

/// An index that may count from the end.
pub(super) fn index(value: i64, extent: usize, axis: usize) -> Result<usize> {
    let d = i64::try_from(extent).unwrap_or(i64::MAX);
    let at = if value < 0 { value.saturating_add(d) } else { value };
    match usize::try_from(at) {
        Ok(at) if at < extent => Ok(at),
        _ => bail!(Kernel, "index {value} is outside of axis {axis} with {extent} elements"),
    }
}

#[derive(Debug)]
struct Gather {
    axis: i64,
}

impl CpuKernel for Gather {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.take_tensor(0)?;
        let indices = io.tensor(1)?;
        let axis = normalise_axis(self.axis, x.rank())?;
        let extent = x.shape()[axis];
        let outer: usize = x.shape()[..axis].iter().product();
        let run: usize = x.shape()[axis + 1..].iter().product();
        let outside = &x.shape()[axis + 1..];
        let shape: Shape = x.shape()[..axis]
            .iter()
            .chain(indices.shape().iter())
            .chain(outside)
            .copied()
            .collect();
        let offsets: Few<usize> = indices
            .few_i64s()?
            .iter()
            .map(|v| Ok(index(*v, extent, axis)? * run))
            .collect::<Result<_>>()?;
        let step = extent * run;
        let out = match &offsets[..] {
            [one] => {
                let walk = Strided::new(*one, &[outer, run], &[step as isize, 1]);
                walked(io, &x, shape, &walk)?
            }
            _ => produce(io, &[&x], shape, &Picked { offsets: &offsets, run, outer, step })?,
        };
        io.emit(out);
        Ok(())
    }
}

#[derive(Debug)]
struct GatherElements {
    axis: i64,
}

impl CpuKernel for GatherElements {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.take_tensor(0)?;
        let indices = io.tensor(1)?;
        let offsets = element_offsets(x.shape(), indices, self.axis)?;
        let picked = Picked { offsets: &offsets, run: 1, outer: 1, step: 0 };
        let out = produce(io, &[&x], indices.shape().clone(), &picked)?;
        io.emit(out);
        Ok(())
    }
}

/// The offset in a tensor of shape `data` for each element of `indices`, which is the coordinate
/// along `axis`; the other coordinates are the element's own.
pub(super) fn element_offsets(data: &[usize], indices: &Tensor, axis: i64) -> Result<Vec<usize>> {
    let axis = normalise_axis(axis, data.len())?;
    let shape = indices.shape();
    let fits =
        shape.rank() == data.len() && (0..data.len()).all(|i| i == axis || shape[i] <= data[i]);
    if !fits {
        bail!(Shape, "indices of shape {shape} do not fit data of shape {data:?} (axis {axis})");
    }
    let values = indices.to_i64s()?;
    let steps = strides(data);
    let last = shape.rank() - 1;
    let columns = shape[last];
    let mut out = Vec::with_capacity(values.len());
    if values.is_empty() {
        return Ok(out);
    }
    let mut at = vec![0usize; last];
    for row in values.chunks(columns) {
        let base: usize = (0..last).filter(|i| *i != axis).map(|i| at[i] * steps[i]).sum();
        for (j, &v) in row.iter().enumerate() {
            let own = if axis == last { 0 } else { j };
            out.push(base + own + index(v, data[axis], axis)? * steps[axis]);
        }
        for i in (0..last).rev() {
            at[i] += 1;
            if at[i] < shape[i] {
                break;
            }
            at[i] = 0;
        }
    }
    Ok(out)
}

#[derive(Debug)]
struct GatherNd {
    batch: usize,
}

impl CpuKernel for GatherNd {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.take_tensor(0)?;
        let indices = io.tensor(1)?;
        let b = self.batch;
        let (depth, count) = tuples(indices, x.rank(), b)?;
        let same = x.shape().iter().zip(indices.shape().iter()).take(b).all(|(a, b)| a == b);
        if !same || indices.rank() <= b {
            bail!(
                Shape,
                "the first {b} axes of {} and {} differ",
                x.describe(),
                indices.describe()
            );
        }
        let batches: usize = x.shape()[..b].iter().product();
        let item: usize = x.shape()[b..].iter().product();
        let run: usize = x.shape()[b + depth..].iter().product();
        let mut offsets = tuple_offsets(indices, &x.shape()[b..], depth, count)?;
        let each = count.checked_div(batches).unwrap_or(0);
        if each > 0 {
            for (n, chunk) in offsets.chunks_mut(each).enumerate() {
                chunk.iter_mut().for_each(|o| *o += n * item);
            }
        }
        let mut shape = indices.shape()[..indices.rank() - 1].to_vec();
        shape.extend_from_slice(&x.shape()[b + depth..]);
        let picked = Picked { offsets: &offsets, run, outer: 1, step: 0 };
        let out = produce(io, &[&x], shape, &picked)?;
        io.emit(out);
        Ok(())
    }
}

/// The length and the number of the coordinate tuples in `indices`, for data with `rank` axes.
pub(super) fn tuples(indices: &Tensor, rank: usize, batch: usize) -> Result<(usize, usize)> {
    match indices.shape().split_last() {
        Some((&depth, outer)) if depth.checked_add(batch).is_some_and(|n| n <= rank) => {
            Ok((depth, outer.iter().product()))
        }
        _ => bail!(
            Shape,
            "{} cannot index a tensor with {rank} axes ({batch} of them batch axes)",
            indices.describe()
        ),
    }
}

/// The offset that each tuple of `indices` points to in a tensor of shape `data`.
pub(super) fn tuple_offsets(
    indices: &Tensor,
    data: &[usize],
    depth: usize,
    count: usize,
) -> Result<Vec<usize>> {
    if depth == 0 {
        return Ok(vec![0; count]);
    }
    let steps = strides(data);
    indices
        .to_i64s()?
        .chunks(depth)
        .map(|tuple| {
            tuple
                .iter()
                .enumerate()
                .try_fold(0, |at, (i, v)| Ok(at + index(*v, data[i], i)? * steps[i]))
        })
        .collect()
}

fn infer_gather(i: &mut Infer<'_>) -> Result<()> {
    let dtype = i.dtype(0);
    let axis = i.node.int_or("axis", 0)?;
    let shape = match (i.shape(0), i.shape(1)) {
        (Some(data), Some(indices)) => {
            let axis = normalise_axis(axis, data.len())?;
            let mut out = data[..axis].to_vec();
            out.extend(indices);
            out.extend_from_slice(&data[axis + 1..]);
            Some(out)
        }
        _ => None,
    };
    if i.rank(0) == Some(1)
        && i.rank(1).is_some_and(|r| r <= 1)
        && let (Some(elements), Some(indices)) = (i.elements(0), i.ints(1))
    {
        let picked: Result<Vec<Dim>> = indices
            .into_iter()
            .map(|v| Ok(elements[index(v, elements.len(), 0)?].clone()))
            .collect();
        i.set_elements(0, Some(picked?));
    }
    i.set(0, dtype, shape);
    Ok(())
}

fn infer_gather_nd(i: &mut Infer<'_>) -> Result<()> {
    let dtype = i.dtype(0);
    let batch = usize::try_from(i.node.int_or("batch_dims", 0)?).unwrap_or(usize::MAX);
    let shape = match (i.shape(0), i.shape(1)) {
        (Some(data), Some(indices)) => match indices.split_last() {
            None => bail!(Shape, "the indices of GatherND are a scalar"),
            Some((depth, outer)) => match depth.as_extent() {
                Some(depth) => {
                    let Some(rest) = batch.checked_add(depth).and_then(|n| data.get(n..)) else {
                        bail!(Shape, "{depth} coordinates do not fit data of shape {data:?}");
                    };
                    Some(outer.iter().chain(rest).cloned().collect())
                }
                None => None,
            },
        },
        _ => None,
    };
    i.set(0, dtype, shape);
    Ok(())
}

fn batch_gather(q: &BatchQuery<'_>) -> BatchFlow {
    let axis = q.node.int_or("axis", 0).map_err(|e| e.to_string())?;
    let carried = (q.axes.first().copied().flatten(), q.axes.get(1).copied().flatten());
    if q.is_free() {
        return q.everywhere(None);
    }
    let axis = match q.rank(0) {
        Some(rank) => normalise_axis(axis, rank).map_err(|e| e.to_string())?,
        None => usize::try_from(axis).map_err(|_| "its number of axes is not known".to_owned())?,
    };
    match carried {
        (Some(data), None) if data == axis => {
            Err(format!("it gathers along the batch axis {axis}"))
        }
        (Some(data), None) if data < axis => q.everywhere(Some(data)),
        (Some(data), None) => {
            let rank = q.rank(1).ok_or("the rank of its indices is not known")?;
            q.everywhere(Some(data - 1 + rank))
        }
        (None, Some(indices)) => q.everywhere(Some(axis + indices)),
        _ => Err("its data and its indices both carry the batch".to_owned()),
    }
}

/// `GatherElements` and `ScatterElements`: all inputs carry the batch on the same axis, which is
/// not the one that is indexed.
pub(super) fn batch_elementwise_along(q: &BatchQuery<'_>, axis: i64) -> BatchFlow {
    if q.is_free() {
        return q.everywhere(None);
    }
    let rank = q.rank(0).or(q.rank(1)).ok_or("its number of axes is not known")?;
    let axis = normalise_axis(axis, rank).map_err(|e| e.to_string())?;
    match q.axes.first().copied().flatten() {
        Some(batch) if batch == axis => Err(format!("it indexes along the batch axis {axis}")),
        Some(batch) if q.axes.iter().all(|a| *a == Some(batch)) => q.everywhere(Some(batch)),
        _ => Err("its inputs do not all carry the batch on the same axis".to_owned()),
    }
}

fn batch_gather_nd(q: &BatchQuery<'_>) -> BatchFlow {
    if q.is_free() {
        return q.everywhere(None);
    }
    let batch = q.node.int_or("batch_dims", 0).map_err(|e| e.to_string())?;
    let batch = usize::try_from(batch).unwrap_or(usize::MAX);
    let shape = q.shapes.get(1).and_then(Option::as_ref).ok_or("its shapes are not known")?;
    let (data, indices) = (q.axes.first().copied().flatten(), q.axes.get(1).copied().flatten());
    let rank = shape.len();
    match (data, indices) {
        (Some(a), Some(b)) if a == b && a < batch => q.everywhere(Some(a)),
        (None, Some(b)) if b >= batch && b + 1 < rank => q.everywhere(Some(b)),
        (Some(a), None) => {
            let depth = shape.last().and_then(Dim::as_extent);
            let depth = depth.ok_or("how many coordinates it takes is not known")?;
            if a < batch.saturating_add(depth) {
                return Err(format!("it indexes along the batch axis {a}"));
            }
            q.everywhere(Some(a - batch - depth + rank - 1))
        }
        _ => Err("its indices mix the items of the batch".to_owned()),
    }
}

fn gather_cases() -> Vec<Case> {
    let new = |name| Case::new("Gather", 13, name);
    vec![
        new("rows, negative index")
            .input(of(&[3, 2], vec![1.0_f32, 1.2, 2.3, 3.4, 4.5, 5.7]))
            .constant(ints(&[2, 2], vec![0, 1, 1, -1]))
            .output(of(&[2, 2, 2], vec![1.0_f32, 1.2, 2.3, 3.4, 2.3, 3.4, 4.5, 5.7])),
        new("columns")
            .attr("axis", 1)
            .input(iota(&[3, 3]))
            .input(ints(&[1, 2], vec![0, 2]))
            .output(ints(&[3, 1, 2], vec![0, 2, 3, 5, 6, 8])),
        new("a scalar index")
            .attr("axis", -1)
            .input(iota(&[2, 3]))
            .constant(Tensor::scalar(1_i32))
            .output(ints(&[2], vec![1, 4])),
        new("of a shape")
            .constant(Tensor::of_i64(&[16_777_217, 5]))
            .constant(Tensor::scalar(0_i64))
            .output(Tensor::scalar(16_777_217_i64)),
        new("no indices").input(iota(&[2, 3])).constant(iota(&[0])).output(iota(&[0, 3])),
    ]
}

fn gather_elements_cases() -> Vec<Case> {
    let new = |name| Case::new("GatherElements", 13, name);
    vec![
        new("axis 1")
            .attr("axis", 1)
            .input(ints(&[2, 2], vec![1, 2, 3, 4]))
            .input(ints(&[2, 2], vec![0, 0, 1, 0]))
            .output(ints(&[2, 2], vec![1, 1, 4, 3])),
        new("axis 0, negative")
            .input(ints(&[3, 3], vec![1, 2, 3, 4, 5, 6, 7, 8, 9]))
            .input(ints(&[2, 3], vec![-1, -2, 0, -2, 0, 0]))
            .output(ints(&[2, 3], vec![7, 5, 3, 4, 2, 3])),
    ]
}

fn gather_nd_cases() -> Vec<Case> {
    let new = |name| Case::new("GatherND", 13, name);
    vec![
        new("elements")
            .input(ints(&[2, 2], vec![0, 1, 2, 3]))
            .input(ints(&[2, 2], vec![0, 0, 1, -1]))
            .output(ints(&[2], vec![0, 3])),
        new("slices")
            .input(of(&[2, 2, 2], vec![0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]))
            .input(ints(&[2, 1, 2], vec![0, 1, 1, 0]))
            .output(of(&[2, 1, 2], vec![2.0_f32, 3.0, 4.0, 5.0])),
        new("one batch axis")
            .attr("batch_dims", 1)
            .input(iota(&[2, 2, 2]))
            .input(ints(&[2, 1], vec![1, 0]))
            .output(ints(&[2, 2], vec![2, 3, 4, 5])),
        new("empty").input(iota(&[2, 2])).input(iota(&[0, 1])).output(iota(&[0, 2])),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_are_checked() {
        assert_eq!(index(-2, 2, 0).unwrap(), 0);
        assert!(index(2, 2, 0).is_err());
        assert!(index(i64::MIN, 2, 0).is_err());
        assert!(index(0, 0, 0).is_err());
        assert!(element_offsets(&[2, 2], &Tensor::of_i64(&[0]), 0).is_err());
        assert!(element_offsets(&[2, 2], &iota(&[1, 3]), 0).is_err());
        assert!(tuples(&iota(&[2, 3]), 2, 0).is_err());
        assert!(tuples(&Tensor::scalar(1_i64), 2, 0).is_err());
    }
}
