//! `Concat`, `Split` and `Tile`: whole runs of elements put side by side.

use super::batch::{BatchFlow, BatchQuery};
use super::case::{Case, ints, iota, of};
use super::def::types::{ANY, I64S};
use super::movement::{Item, Mover, Strided, produce, walked};
use super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, Threads, cost};
use crate::error::{Result, bail, err};
use crate::graph::{Dim, Node};
use crate::tensor::{Few, Tensor, normalise_axis};

/// Tensors one after the other along an axis.
pub(super) static CONCAT: OpDef = OpDef {
    name: "Concat",
    domain: "",
    since: 1,
    attributes: &[AttributeDef::optional("axis", AttributeKind::Int)],
    inputs: &[Port::variadic("inputs", ANY, 1)],
    outputs: &[Port::required("concat_result", ANY)],
    infer: infer_concat,
    batch: batch_concat,
    cost: cost::copy,
    prepare: |p| Ok(Box::new(Concat { axis: concat_axis(p.node)? })),
    cases: concat_cases,
};

/// Parts of a tensor along an axis, of given lengths or of equal ones.
pub(super) static SPLIT: OpDef = OpDef {
    name: "Split",
    domain: "",
    since: 1,
    attributes: &[
        AttributeDef::optional("axis", AttributeKind::Int),
        AttributeDef::optional("split", AttributeKind::Ints),
        AttributeDef::optional("num_outputs", AttributeKind::Int),
    ],
    inputs: &[Port::required("input", ANY), Port::optional("split", I64S)],
    outputs: &[Port::variadic("outputs", ANY, 1)],
    infer: infer_split,
    batch: |q| {
        same_axis_unless(q, &[q.node.int_or("axis", 0).map_err(|e| e.to_string())?], "splits")
    },
    cost: cost::copy,
    prepare: |p| {
        Ok(Box::new(Split {
            axis: p.node.int_or("axis", 0)?,
            lengths: p.node.ints("split")?.map(<[i64]>::to_vec),
            uneven: p.node.version >= 18,
        }))
    },
    cases: split_cases,
};

/// A tensor repeated along each axis.
pub(super) static TILE: OpDef = OpDef {
    name: "Tile",
    domain: "",
    since: 6,
    attributes: &[],
    inputs: &[Port::required("input", ANY), Port::required("repeats", I64S)],
    outputs: &[Port::required("output", ANY)],
    infer: |i| {
        let dtype = i.dtype(0);
        let shape = match (i.shape(0), i.elements(1)) {
            (Some(s), Some(repeats)) => {
                if s.len() != repeats.len() {
                    bail!(Shape, "`repeats` {repeats:?} does not fit a tensor of shape {s:?}");
                }
                Some(s.into_iter().zip(repeats).map(|(d, r)| d * r).collect())
            }
            (Some(s), None) => Some(i.fresh_shape(s.len())),
            _ => None,
        };
        i.set(0, dtype, shape);
        Ok(())
    },
    batch: |q| {
        let Some(axis) = q.axes.first().copied().flatten() else {
            return if q.is_free() {
                q.everywhere(None)
            } else {
                Err("how often it repeats depends on the items of the batch".to_owned())
            };
        };
        match q.ints.get(1).and_then(Option::as_ref).and_then(|r| r.get(axis)) {
            Some(1) => q.everywhere(Some(axis)),
            Some(n) => Err(format!("it repeats the batch axis {n} times")),
            None => Err("how often it repeats the batch axis is not known".to_owned()),
        }
    },
    cost: cost::copy,
    prepare: |_| Ok(Box::new(Tile)),
    cases: tile_cases,
};

/// The batch keeps its axis, unless that is one of `axes` (which may be negative).
pub(super) fn same_axis_unless(q: &BatchQuery<'_>, axes: &[i64], what: &str) -> BatchFlow {
    if q.axes.iter().skip(1).any(Option::is_some) {
        return Err("an input other than the first carries the batch".to_owned());
    }
    let Some(axis) = q.axes.first().copied().flatten() else {
        return q.everywhere(None);
    };
    for &a in axes {
        let at = match q.rank(0) {
            Some(rank) => normalise_axis(a, rank).map_err(|e| e.to_string())?,
            None if a >= 0 => usize::try_from(a).unwrap_or(usize::MAX),
            None => return Err("its number of axes is not known".to_owned()),
        };
        if at == axis {
            return Err(format!("it {what} along the batch axis {axis}"));
        }
    }
    q.everywhere(Some(axis))
}

/// The axis, which may be left out before version 4.
fn concat_axis(node: &Node) -> Result<i64> {
    if node.version < 4 { node.int_or("axis", 1) } else { node.required_int("axis") }
}

#[derive(Debug)]
struct Concat {
    axis: i64,
}

impl CpuKernel for Concat {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        const FEW: usize = 8;
        let count = io.input_count();
        let joined = if (1..=FEW).contains(&count) {
            let mut parts = [io.tensor(0)?; FEW];
            for (i, part) in parts[..count].iter_mut().enumerate() {
                *part = io.tensor(i)?;
            }
            concat(io, &parts[..count], self.axis)?
        } else {
            let parts: Vec<&Tensor> = (0..count).map(|i| io.tensor(i)).collect::<Result<_>>()?;
            concat(io, &parts, self.axis)?
        };
        io.emit(joined);
        Ok(())
    }
}

/// Tensors one after the other along an axis.
pub(super) fn concat(io: &Io<'_>, parts: &[&Tensor], axis: i64) -> Result<Tensor> {
    let [first, others @ ..] = parts else { bail!(Missing, "there is nothing to concatenate") };
    let axis = normalise_axis(axis, first.rank())?;
    let mut shape = first.shape().clone();
    for p in others {
        let fits = p.rank() == shape.len()
            && (0..shape.len()).all(|i| i == axis || p.shape()[i] == shape[i]);
        if !fits {
            let (a, b) = (first.describe(), p.describe());
            bail!(Shape, "{a} and {b} cannot be concatenated along axis {axis}");
        }
        shape[axis] = shape[axis]
            .checked_add(p.shape()[axis])
            .ok_or_else(|| err!(Limit, "axis {axis} of the result is too long"))?;
    }
    if others.is_empty() {
        return Ok((*first).clone());
    }
    let inner: usize = shape[axis + 1..].iter().product();
    let runs = parts.iter().map(|p| p.shape()[axis] * inner).collect();
    produce(io, parts, shape, &Joined { runs })
}

/// Runs of each source in turn.
struct Joined {
    runs: Few<usize>,
}

impl Mover for Joined {
    fn fill<T: Item>(&self, sources: &[&[T]], out: &mut [T], threads: &Threads) -> Result<()> {
        let row: usize = self.runs.iter().sum();
        if row == 0 {
            return Ok(());
        }
        let single = Threads::single();
        let threads = if out.len() < 1 << 16 { &single } else { threads };
        threads.split_rows(out, row, |first, chunk| {
            for (i, row) in chunk.chunks_mut(row).enumerate() {
                let mut rest = row;
                for (source, &n) in sources.iter().zip(&self.runs) {
                    let (run, tail) = rest.split_at_mut(n);
                    let from = (first + i) * n;
                    run.clone_from_slice(&source[from..from + n]);
                    rest = tail;
                }
            }
        });
        Ok(())
    }
}

#[derive(Debug)]
struct Split {
    axis: i64,
    lengths: Option<Vec<i64>>,
    uneven: bool,
}

impl CpuKernel for Split {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let given = match (&self.lengths, io.optional(1)?) {
            (Some(lengths), _) => Some(lengths.clone()),
            (None, Some(t)) => Some(t.to_i64s()?),
            (None, None) => None,
        };
        let x = io.take_tensor(0)?;
        let axis = normalise_axis(self.axis, x.rank())?;
        let extent = x.shape()[axis];
        let lengths = match given {
            Some(given) => given_lengths(&given, extent, io.output_count())?,
            None => equal_lengths(extent, io.output_count(), self.uneven)?,
        };
        let outer: usize = x.shape()[..axis].iter().product();
        let inner: usize = x.shape()[axis + 1..].iter().product();
        let mut start = 0;
        for n in lengths {
            let mut shape = x.shape().to_vec();
            shape[axis] = n;
            let steps = [(extent * inner) as isize, 1];
            let walk = Strided::new(start * inner, &[outer, n * inner], &steps);
            io.emit(walked(io, &x, shape, &walk)?);
            start += n;
        }
        Ok(())
    }
}

fn given_lengths(given: &[i64], extent: usize, outputs: usize) -> Result<Vec<usize>> {
    let lengths: Option<Vec<usize>> = given.iter().map(|n| usize::try_from(*n).ok()).collect();
    let total = lengths.as_ref().and_then(|l| l.iter().try_fold(0usize, |a, n| a.checked_add(*n)));
    match lengths {
        Some(lengths) if total == Some(extent) && given.len() == outputs => Ok(lengths),
        _ => bail!(Shape, "`split` {given:?} does not cut {extent} into {outputs} outputs"),
    }
}

/// Equal lengths; before version 18 they must divide the extent, since then the last may be
/// shorter.
fn equal_lengths(extent: usize, outputs: usize, uneven: bool) -> Result<Vec<usize>> {
    if outputs == 0 || (!uneven && !extent.is_multiple_of(outputs)) {
        bail!(Shape, "an extent of {extent} cannot be cut into {outputs} equal outputs");
    }
    let each = extent.div_ceil(outputs);
    Ok((0..outputs).map(|i| extent.saturating_sub(i * each).min(each)).collect())
}

#[derive(Debug)]
struct Tile;

impl CpuKernel for Tile {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let repeats = io.tensor(1)?.to_i64s()?;
        let x = io.take_tensor(0)?;
        if repeats.len() != x.rank() {
            bail!(Shape, "`repeats` {repeats:?} does not fit {}", x.describe());
        }
        if repeats.iter().all(|r| *r == 1) {
            io.emit(x);
            return Ok(());
        }
        // Each axis is two: the repeats, which stand still in the source, and the extent.
        let (mut shape, mut dims, mut steps) = (Vec::new(), Vec::new(), Vec::new());
        for ((&r, &d), s) in
            repeats.iter().zip(x.shape().iter()).zip(crate::tensor::strides(x.shape()))
        {
            let r = usize::try_from(r)
                .map_err(|_| err!(Shape, "`repeats` {repeats:?} has a negative number"))?;
            shape.push(
                d.checked_mul(r)
                    .ok_or_else(|| err!(Limit, "`repeats` {repeats:?} are too large"))?,
            );
            dims.extend([r, d]);
            steps.extend([0, s as isize]);
        }
        io.emit(produce(io, &[&x], shape, &Strided::new(0, &dims, &steps))?);
        Ok(())
    }
}

fn infer_concat(i: &mut Infer<'_>) -> Result<()> {
    let axis = concat_axis(i.node)?;
    let count = i.input_count();
    let mut dtype = None;
    for k in 0..count {
        match (dtype, i.dtype(k)) {
            (Some(a), Some(b)) if a != b => {
                bail!(DType, "inputs of dtypes {a} and {b} cannot be concatenated")
            }
            (a, b) => dtype = a.or(b),
        }
    }
    let shapes: Vec<Option<Vec<Dim>>> = (0..count).map(|k| i.shape(k)).collect();
    let Some(rank) = shapes.iter().flatten().map(Vec::len).next() else {
        i.set(0, dtype, None);
        return Ok(());
    };
    let at = normalise_axis(axis, rank)?;
    let mut out: Option<Vec<Dim>> = None;
    let mut length = Some(Dim::fixed(0));
    for s in &shapes {
        let Some(s) = s else {
            length = None;
            continue;
        };
        if s.len() != rank {
            bail!(Shape, "tensors with {rank} and {} axes cannot be concatenated", s.len());
        }
        length = length.map(|n| n + s[at].clone());
        let out = out.get_or_insert_with(|| s.clone());
        for (k, (o, d)) in out.iter_mut().zip(s).enumerate() {
            match (o.as_fixed(), d.as_fixed()) {
                (Some(a), Some(b)) if a != b && k != at => {
                    bail!(Shape, "extents {a} and {b} of axis {k} differ in a concatenation")
                }
                (None, Some(_)) => *o = d.clone(),
                _ => {}
            }
        }
    }
    if let Some(out) = &mut out {
        out[at] = match length {
            Some(n) => n,
            None => i.fresh(),
        };
    }
    i.set(0, dtype, out);
    if rank == 1 {
        let all: Option<Vec<Vec<Dim>>> = (0..count).map(|k| i.elements(k)).collect();
        i.set_elements(0, all.map(|parts| parts.concat()));
    }
    Ok(())
}

fn batch_concat(q: &BatchQuery<'_>) -> BatchFlow {
    if q.is_free() {
        return q.everywhere(None);
    }
    let axes: Vec<usize> = q.axes.iter().copied().flatten().collect();
    let axis = axes[0];
    if axes.iter().any(|a| *a != axis) {
        return Err("its inputs carry the batch on different axes".to_owned());
    }
    // Every input has as many rows along the axis, so one without the batch has rows of its own.
    if axes.len() < q.axes.len() {
        return Err("only some of the inputs that it concatenates carry the batch".to_owned());
    }
    let at = concat_axis(q.node).map_err(|e| e.to_string())?;
    let rank = q.shapes.iter().flatten().map(Vec::len).next();
    let at = match rank {
        Some(rank) => normalise_axis(at, rank).map_err(|e| e.to_string())?,
        None => usize::try_from(at).map_err(|_| "its number of axes is not known".to_owned())?,
    };
    if at == axis {
        return Err(format!("it concatenates along the batch axis {axis}"));
    }
    q.everywhere(Some(axis))
}

fn infer_split(i: &mut Infer<'_>) -> Result<()> {
    let axis = i.node.int_or("axis", 0)?;
    let outputs = i.output_count();
    if let Some(n) = i.node.int("num_outputs")?
        && usize::try_from(n) != Ok(outputs)
    {
        bail!(Graph, "`num_outputs` is {n}, but there are {outputs} outputs");
    }
    let attribute = i.node.ints("split")?.map(|v| v.iter().map(|n| Dim::fixed(*n)).collect());
    let given: Option<Vec<Dim>> = attribute.or_else(|| i.elements(1));
    if let Some(given) = given.as_ref().filter(|g| g.len() != outputs) {
        bail!(Shape, "`split` {given:?} does not fit {outputs} outputs");
    }
    let shape = i.shape(0);
    let at = shape.as_ref().map(|s| normalise_axis(axis, s.len())).transpose()?;
    let extent = shape.as_ref().zip(at).map(|(s, at)| s[at].clone());
    let lengths: Vec<Option<Dim>> = match (given, extent) {
        (Some(given), _) => given.into_iter().map(Some).collect(),
        (None, Some(d)) if !i.has(1) => match d.as_extent() {
            Some(n) => equal_lengths(n, outputs, i.node.version >= 18)?
                .into_iter()
                .map(|n| Some(Dim::of(n)))
                .collect(),
            None => match d.exact_div(&Dim::of(outputs)) {
                Some(each) => vec![Some(each); outputs],
                None => vec![None; outputs],
            },
        },
        _ => vec![None; outputs],
    };
    let elements = i.elements(0).filter(|_| i.rank(0) == Some(1));
    let mut start = Some(0usize);
    for (k, length) in lengths.into_iter().enumerate() {
        let part = shape.clone().zip(at).map(|(mut s, at)| {
            s[at] = length.clone().unwrap_or_else(|| i.fresh());
            s
        });
        i.set(k, i.dtype(0), part);
        let end = start.zip(length.and_then(|d| d.as_extent())).and_then(|(a, n)| a.checked_add(n));
        let run = start.zip(end).zip(elements.as_ref());
        i.set_elements(k, run.and_then(|((a, b), e)| e.get(a..b).map(<[Dim]>::to_vec)));
        start = end;
    }
    Ok(())
}

fn concat_cases() -> Vec<Case> {
    let new = |name| Case::new("Concat", 13, name);
    vec![
        new("columns")
            .attr("axis", 1)
            .input(of(&[2, 2], vec![1.0_f32, 2.0, 3.0, 4.0]))
            .input(of(&[2, 1], vec![5.0_f32, 6.0]))
            .output(of(&[2, 3], vec![1.0_f32, 2.0, 5.0, 3.0, 4.0, 6.0])),
        new("negative axis, wide integers")
            .attr("axis", -1)
            .input(ints(&[1], vec![16_777_217]))
            .constant(ints(&[2], vec![-1, i64::MIN]))
            .output(ints(&[3], vec![16_777_217, -1, i64::MIN])),
        new("an empty part")
            .attr("axis", 0)
            .input(iota(&[0, 2]))
            .input(iota(&[2, 2]))
            .output(iota(&[2, 2])),
        Case::new("Concat", 1, "the second axis unless told")
            .input(iota(&[1, 2]))
            .input(iota(&[1, 1]))
            .output(ints(&[1, 3], vec![0, 1, 0])),
        new("one input").attr("axis", 0).input(iota(&[3])).output(iota(&[3])),
        new("bools")
            .attr("axis", 0)
            .input(of(&[1], vec![true]))
            .input(of(&[1], vec![false]))
            .output(of(&[2], vec![true, false])),
    ]
}

fn split_cases() -> Vec<Case> {
    vec![
        Case::new("Split", 13, "given lengths")
            .attr("axis", 1)
            .input(ints(&[2, 3], vec![0, 1, 2, 3, 4, 5]))
            .constant(Tensor::of_i64(&[1, 2]))
            .output(ints(&[2, 1], vec![0, 3]))
            .output(ints(&[2, 2], vec![1, 2, 4, 5])),
        Case::new("Split", 11, "lengths as attribute")
            .attr("split", vec![2, 0])
            .input(iota(&[2]))
            .output(iota(&[2]))
            .output(iota(&[0])),
        Case::new("Split", 13, "equal, negative axis")
            .attr("axis", -1)
            .input(iota(&[1, 4]))
            .output(ints(&[1, 2], vec![0, 1]))
            .output(ints(&[1, 2], vec![2, 3])),
        Case::new("Split", 18, "uneven")
            .attr("num_outputs", 3)
            .input(iota(&[7]))
            .output(ints(&[3], vec![0, 1, 2]))
            .output(ints(&[3], vec![3, 4, 5]))
            .output(ints(&[1], vec![6])),
    ]
}

fn tile_cases() -> Vec<Case> {
    let new = |name| Case::new("Tile", 13, name);
    vec![
        new("both axes")
            .input(ints(&[2, 2], vec![0, 1, 2, 3]))
            .constant(Tensor::of_i64(&[2, 2]))
            .output(ints(&[4, 4], vec![0, 1, 0, 1, 2, 3, 2, 3, 0, 1, 0, 1, 2, 3, 2, 3])),
        new("repeats at run time")
            .input(of(&[1, 2], vec![1.5_f32, 2.5]))
            .input(Tensor::of_i64(&[3, 1]))
            .output(of(&[3, 2], vec![1.5_f32, 2.5, 1.5, 2.5, 1.5, 2.5])),
        new("zero times").input(iota(&[2])).constant(Tensor::of_i64(&[0])).output(iota(&[0])),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_follow_the_version() {
        assert_eq!(equal_lengths(7, 3, true).unwrap(), [3, 3, 1]);
        assert_eq!(equal_lengths(2, 4, true).unwrap(), [1, 1, 0, 0]);
        assert!(equal_lengths(7, 3, false).is_err());
        assert!(given_lengths(&[3, -1], 2, 2).is_err());
        assert!(given_lengths(&[i64::MAX, i64::MAX], 2, 2).is_err());
        assert!(given_lengths(&[1, 1], 2, 3).is_err());
    }
}
