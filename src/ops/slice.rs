//! `Slice`.

use super::batch::{BatchFlow, BatchQuery};
use super::case::{Case, ints, iota};
use super::def::types::{ANY, INDICES};
use super::movement::{Strided, walked};
use super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, Prepare, cost};
use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::tensor::{Few, Tensor, normalise_axis, signed_strides};

/// A range of each axis, with a step that may be negative; ranges are clamped.
pub(super) static SLICE: OpDef = OpDef {
    name: "Slice",
    domain: "",
    since: 1,
    attributes: &[
        AttributeDef::optional("starts", AttributeKind::Ints),
        AttributeDef::optional("ends", AttributeKind::Ints),
        AttributeDef::optional("axes", AttributeKind::Ints),
    ],
    inputs: &[
        Port::required("data", ANY),
        Port::optional("starts", INDICES),
        Port::optional("ends", INDICES),
        Port::optional("axes", INDICES),
        Port::optional("steps", INDICES),
    ],
    outputs: &[Port::required("output", ANY)],
    infer,
    batch,
    cost: cost::copy,
    prepare: |p| {
        let ranges = match attribute_ranges(p.node)? {
            Some(ranges) => Some(ranges),
            None if p.has(1) && p.has(2) => constant_ranges(p)?,
            None => bail!(Graph, "Slice needs its `starts` and `ends`"),
        };
        Ok(Box::new(Slice { ranges }))
    },
    cases,
};

/// The slices as they are given.
#[derive(Clone, Debug)]
struct Ranges<T> {
    starts: Vec<T>,
    ends: Vec<T>,
    axes: Option<Vec<i64>>,
    steps: Option<Vec<i64>>,
}

impl<T> Ranges<T> {
    /// The axis, of `rank`, and the step of each start and end.
    fn by_axis(&self, rank: usize) -> Result<Few<(usize, i64)>> {
        let n = self.starts.len();
        let lengths = [
            ("ends", Some(self.ends.len())),
            ("axes", self.axes.as_ref().map(Vec::len)),
            ("steps", self.steps.as_ref().map(Vec::len)),
        ];
        for (name, length) in lengths {
            if let Some(length) = length.filter(|l| *l != n) {
                bail!(Shape, "there are {n} `starts`, but {length} `{name}`");
            }
        }
        let mut seen = Few::filled(false, rank);
        (0..n)
            .map(|i| {
                let axis = self.axes.as_ref().map_or(i as i64, |a| a[i]);
                let at = normalise_axis(axis, rank)?;
                if std::mem::replace(&mut seen[at], true) {
                    bail!(Shape, "axis {axis} is sliced twice");
                }
                let step = self.steps.as_ref().map_or(1, |s| s[i]);
                if step == 0 {
                    bail!(Shape, "axis {axis} is sliced with step 0");
                }
                Ok((at, step))
            })
            .collect()
    }
}

/// The attributes of the versions before 10.
fn attribute_ranges(node: &Node) -> Result<Option<Ranges<i64>>> {
    Ok(match (node.ints("starts")?, node.ints("ends")?) {
        (Some(starts), Some(ends)) => Some(Ranges {
            starts: starts.to_vec(),
            ends: ends.to_vec(),
            axes: node.ints("axes")?.map(<[i64]>::to_vec),
            steps: None,
        }),
        _ => None,
    })
}

/// The inputs of later versions, where they are all constant.
fn constant_ranges(p: &Prepare<'_>) -> Result<Option<Ranges<i64>>> {
    let (Some(starts), Some(ends)) = (p.constant(1), p.constant(2)) else { return Ok(None) };
    if (3..5).any(|i| p.has(i) && p.constant(i).is_none()) {
        return Ok(None);
    }
    let read = |i: usize| p.constant(i).map(Tensor::to_i64s).transpose();
    let (axes, steps) = (read(3)?, read(4)?);
    Ok(Some(Ranges { starts: starts.to_i64s()?, ends: ends.to_i64s()?, axes, steps }))
}

/// The first index and how many there are, of an axis with `extent` elements.
fn clamp(start: i64, end: i64, step: i64, extent: usize) -> (usize, usize) {
    let d = i64::try_from(extent).unwrap_or(i64::MAX);
    let from_end = |v: i64| if v < 0 { v.saturating_add(d) } else { v };
    let (start, end) = (from_end(start), from_end(end));
    let (start, count) = if step > 0 {
        let (start, end) = (start.clamp(0, d), end.clamp(0, d));
        (start, if end > start { (end - start - 1) / step + 1 } else { 0 })
    } else {
        let (start, end) = (start.clamp(-1, d - 1), end.clamp(-1, d - 1));
        // A step of i64::MIN has no positive counterpart, but so few elements that it takes one.
        let back = step.checked_neg().unwrap_or(i64::MAX);
        (start, if start > end { (start - end - 1) / back + 1 } else { 0 })
    };
    (usize::try_from(start).unwrap_or(0), usize::try_from(count).unwrap_or(0))
}

#[derive(Debug)]
struct Slice {
    ranges: Option<Ranges<i64>>,
}

impl CpuKernel for Slice {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let read = |i: usize| io.optional(i)?.map(Tensor::to_i64s).transpose();
        let fed;
        let given = match &self.ranges {
            Some(ranges) => ranges,
            None => {
                let (axes, steps) = (read(3)?, read(4)?);
                let (starts, ends) = (io.tensor(1)?.to_i64s()?, io.tensor(2)?.to_i64s()?);
                fed = Ranges { starts, ends, axes, steps };
                &fed
            }
        };
        let x = io.take_tensor(0)?;
        let mut shape = x.shape().clone();
        let mut steps = signed_strides(x.shape());
        let mut offset = 0;
        let axes = given.by_axis(x.rank())?;
        for ((&(axis, step), start), end) in axes.iter().zip(&given.starts).zip(&given.ends) {
            let (first, count) = clamp(*start, *end, step, shape[axis]);
            if count > 0 {
                offset += first * steps[axis].unsigned_abs();
            }
            // The step of a single element does not matter, and might be huge.
            steps[axis] = if count > 1 { steps[axis] * step as isize } else { 1 };
            shape[axis] = count;
        }
        let walk = Strided::new(offset, &shape, &steps);
        io.emit(walked(io, &x, shape, &walk)?);
        Ok(())
    }
}

/// Ends from here on stand for the end of the axis.
const FAR: i64 = i32::MAX as i64;

/// How many elements a slice takes, symbolically.
fn symbolic_count(start: &Dim, end: &Dim, step: i64, extent: &Dim) -> Option<Dim> {
    if let (Some(s), Some(e)) = (start.as_fixed(), end.as_fixed()) {
        if let Some(d) = extent.as_extent() {
            return Some(Dim::of(clamp(s, e, step, d).1));
        }
        if step < 0 && (s == -1 || s >= FAR) && e <= -FAR {
            return Some(extent.ceil_div(step.checked_neg()?));
        }
    }
    if step < 0 {
        return None;
    }
    let bound = |v: &Dim| -> Option<Dim> {
        if v.as_fixed().is_some_and(|v| v >= FAR) {
            return Some(extent.clone());
        }
        if v.is_non_negative() {
            let room = extent.clone() - v.clone();
            return Some(if room.is_non_negative() {
                v.clone()
            } else if (v.clone() - extent.clone()).is_non_negative() {
                extent.clone()
            } else {
                extent.smaller(v)
            });
        }
        // Counted from the end: certainly negative, or unknown.
        (Dim::fixed(-1) - v.clone())
            .is_non_negative()
            .then(|| (extent.clone() + v.clone()).or_zero())
    };
    let length = (bound(end)? - bound(start)?).or_zero();
    Some(if step == 1 { length } else { length.ceil_div(step) })
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let dtype = i.dtype(0);
    let Some(mut shape) = i.shape(0) else {
        i.set(0, dtype, None);
        return Ok(());
    };
    let known = |k: usize| match i.has(k) {
        true => i.ints(k).map(Some).ok_or(()),
        false => Ok(None),
    };
    let ranges: Option<Ranges<Dim>> = match attribute_ranges(i.node)? {
        Some(r) => Some(Ranges {
            starts: r.starts.into_iter().map(Dim::fixed).collect(),
            ends: r.ends.into_iter().map(Dim::fixed).collect(),
            axes: r.axes,
            steps: None,
        }),
        None => match (known(3), known(4)) {
            (Ok(axes), Ok(steps)) => {
                // Bounds that are not known at all are told apart by their axes.
                let count = axes.as_ref().map(Vec::len);
                let count = count.or_else(|| i.shape(1).and_then(|s| s.first()?.as_extent()));
                match (i.elements(1), i.elements(2), count) {
                    (Some(starts), Some(ends), _) => Some(Ranges { starts, ends, axes, steps }),
                    (_, _, Some(n)) => {
                        let some = Ranges { starts: vec![(); n], ends: vec![(); n], axes, steps };
                        for &(axis, _) in &some.by_axis(shape.len())? {
                            shape[axis] = i.fresh();
                        }
                        i.set(0, dtype, Some(shape));
                        return Ok(());
                    }
                    _ => None,
                }
            }
            _ => None,
        },
    };
    let Some(ranges) = ranges else {
        let shape = i.fresh_shape(shape.len());
        i.set(0, dtype, Some(shape));
        return Ok(());
    };
    let elements = i.elements(0).filter(|_| shape.len() == 1);
    let axes = ranges.by_axis(shape.len())?;
    for ((&(axis, step), start), end) in axes.iter().zip(&ranges.starts).zip(&ranges.ends) {
        if let (Some(elements), Some(s), Some(e)) = (&elements, start.as_fixed(), end.as_fixed()) {
            let (first, count) = clamp(s, e, step, elements.len());
            let at = |n: usize| first.wrapping_add_signed((step as isize).wrapping_mul(n as isize));
            let picked = (0..count).map(|n| elements.get(at(n)).cloned()).collect();
            i.set_elements(0, picked);
        }
        shape[axis] = match symbolic_count(start, end, step, &shape[axis]) {
            Some(n) => n,
            None => i.fresh(),
        };
    }
    i.set(0, dtype, Some(shape));
    Ok(())
}

fn batch(q: &BatchQuery<'_>) -> BatchFlow {
    if q.axes.iter().skip(1).any(Option::is_some) {
        return Err("the range that it slices depends on the items of the batch".to_owned());
    }
    let Some(axis) = q.axes.first().copied().flatten() else {
        return q.everywhere(None);
    };
    let (Some(Some(from)), Some(Some(to))) = (q.shapes.first(), q.output_shapes.first()) else {
        return Err("its shapes are not known".to_owned());
    };
    let listed = |k: usize| q.ints.get(k).and_then(Option::as_ref);
    let given = |k: usize| q.node.inputs.get(k).copied().flatten().is_some();
    let axes: Vec<i64> = match (q.node.ints("axes").map_err(|e| e.to_string())?, listed(3)) {
        (Some(axes), _) => axes.to_vec(),
        (None, Some(axes)) => axes.clone(),
        _ if given(3) => return Err("which axes it slices is not known".to_owned()),
        _ => (0..from.len() as i64).collect(),
    };
    for (k, a) in axes.iter().enumerate() {
        if normalise_axis(*a, from.len()).map_err(|e| e.to_string())? != axis {
            continue;
        }
        let step = if given(4) { listed(4).and_then(|s| s.get(k)).copied() } else { Some(1) };
        // As many rows as before and no step: all of them.
        if step != Some(1) || from.get(axis) != to.get(axis) {
            return Err(format!("it slices the batch axis {axis}"));
        }
    }
    q.everywhere(Some(axis))
}

fn cases() -> Vec<Case> {
    let v = Tensor::of_i64;
    let new = |name| Case::new("Slice", 13, name);
    vec![
        new("two axes")
            .input(iota(&[3, 4]))
            .constant(v(&[1, 1]))
            .constant(v(&[3, 3]))
            .output(ints(&[2, 2], vec![5, 6, 9, 10])),
        new("negative axis, step and bounds")
            .input(iota(&[2, 5]))
            .constant(v(&[-1]))
            .constant(v(&[-4]))
            .constant(v(&[-1]))
            .constant(v(&[-2]))
            .output(ints(&[2, 2], vec![4, 2, 9, 7])),
        new("reversed")
            .input(iota(&[4]))
            .constant(v(&[i64::MAX]))
            .constant(v(&[i64::MIN]))
            .constant(v(&[0]))
            .constant(v(&[-1]))
            .output(ints(&[4], vec![3, 2, 1, 0])),
        new("clamped")
            .input(iota(&[3]))
            .input(v(&[1]))
            .input(v(&[1000]))
            .output(ints(&[2], vec![1, 2])),
        new("nothing").input(iota(&[3])).constant(v(&[2])).constant(v(&[1])).output(iota(&[0])),
        new("a huge step")
            .input(iota(&[3]))
            .constant(v(&[-2]))
            .constant(v(&[i64::MIN]))
            .constant(v(&[0]))
            .constant(v(&[i64::MIN]))
            .output(ints(&[1], vec![1])),
        Case::new("Slice", 9, "as attributes")
            .attr("starts", vec![0, -2])
            .attr("ends", vec![1, 1000])
            .attr("axes", vec![0, 1])
            .input(iota(&[2, 3]))
            .output(ints(&[1, 2], vec![1, 2])),
        new("i32 bounds")
            .input(iota(&[3]))
            .input(super::case::of(&[1], vec![0_i32]))
            .input(super::case::of(&[1], vec![-1_i32]))
            .output(ints(&[2], vec![0, 1])),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbolic_counts_agree_with_concrete_ones() {
        let n = Dim::symbol("N");
        let extents = [n.clone(), n.clone() * Dim::fixed(2) + Dim::fixed(3), Dim::fixed(5)];
        let bounds = [0, 1, 2, 7, -1, -3, i64::MAX, i64::MIN];
        let mut known = 0;
        for extent in &extents {
            for (start, end) in bounds.iter().flat_map(|a| bounds.iter().map(move |b| (*a, *b))) {
                for step in [1, 2, -1, -3] {
                    let (s, e) = (Dim::fixed(start), Dim::fixed(end));
                    let Some(count) = symbolic_count(&s, &e, step, extent) else { continue };
                    known += 1;
                    for size in [0, 1, 2, 6, 9] {
                        let value = |d: &Dim| d.evaluate(&|_| Some(size)).unwrap();
                        let d = usize::try_from(value(extent)).unwrap();
                        let want = clamp(start, end, step, d).1 as i64;
                        assert_eq!(
                            value(&count),
                            want,
                            "{start}:{end}:{step} of {extent} at {size}"
                        );
                    }
                }
            }
        }
        assert!(known > 250, "{known}");
    }

    #[test]
    fn what_is_known_stays_simple() {
        let n = Dim::symbol("N");
        let k = Dim::fixed;
        let count = |s: &Dim, e: &Dim, d: &Dim| symbolic_count(s, e, 1, d).unwrap();
        assert_eq!(count(&k(0), &n, &n), n);
        assert_eq!(count(&k(1), &k(i64::MAX), &(n.clone() + k(1))), n);
        assert_eq!(count(&k(0), &k(-1), &(n.clone() + k(1))), n);
        assert_eq!(count(&n, &(n.clone() + k(2)), &(n.clone() + k(5))), k(2));
    }
}
