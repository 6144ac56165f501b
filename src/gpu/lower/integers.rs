//! Whole numbers on a device of 32 bits: what is narrowed, and what is proven to fit.
//!
//! Numbers of 8 and 16 bits take 32 there, and only operators that cannot leave their range are computed in
//! them. Numbers of 64 bits come to a device as constants and as inputs, which are checked when they are
//! uploaded, and pass through operators that give none that they did not get. Indices must lie
//! within the axis that they are for: their way is followed back to where they came from.

use std::borrow::Cow;

use super::{Lowering, row_of};
use crate::error::{Result, bail};
use crate::graph::{Graph, Node, ValueId};
use crate::tensor::{DType, Tensor};

/// Operators that only give elements of the inputs from the given one up to the other.
const PASSES_ON: &[(&str, usize, usize)] = &[
    ("Concat", 0, usize::MAX),
    ("Expand", 0, 1),
    ("Flatten", 0, 1),
    ("Gather", 0, 1),
    ("Identity", 0, 1),
    ("Reshape", 0, 1),
    ("Slice", 0, 1),
    ("Split", 0, 1),
    ("Squeeze", 0, 1),
    ("Tile", 0, 1),
    ("Transpose", 0, 1),
    ("Unsqueeze", 0, 1),
    ("Where", 1, 3),
];

/// The range of an axis whose extent is not known yet.
pub(super) const WIDEST: (i64, i64) = (i64::MIN, i64::MAX);

impl Lowering<'_> {
    /// As [`limit`](Self::limit), with a range for each place along the last axis.
    ///
    /// # Errors
    /// As [`limit`](Self::limit).
    pub(super) fn limit_each(&mut self, v: ValueId, ranges: &[(i64, i64)]) -> Result<()> {
        let Some(first) = ranges.first() else { return Ok(()) };
        // What fits the narrowest range fits all.
        let narrow = |a: (i64, i64), b: &(i64, i64)| (a.0.max(b.0), a.1.min(b.1));
        if ranges.iter().all(|r| r == first) {
            return self.limit(v, *first);
        }
        if let Some(t) = self.constants.get(&v) {
            for (i, n) in t.to_i64s()?.iter().enumerate() {
                let (lo, hi) = ranges[i % ranges.len()];
                if *n < lo || *n > hi {
                    bail!(Shape, "index {n} is not in {lo}..={hi}");
                }
            }
            return Ok(());
        }
        let shape = |v: ValueId| self.graph.value(v).fact.concrete_shape();
        let maker = self.graph.nodes().iter().find(|n| n.makes().any(|made| made == v));
        if let Some(node) = maker.filter(|n| n.op == "Concat") {
            let inputs: Vec<ValueId> = node.reads().collect();
            let single = |v: &ValueId| shape(*v).is_some_and(|s| s.last() == Some(&1));
            if inputs.len() == ranges.len() && inputs.iter().all(single) {
                return inputs.iter().zip(ranges).try_for_each(|(v, r)| self.limit(*v, *r));
            }
        }
        self.limit(v, ranges.iter().fold(*first, narrow))
    }

    /// Sees to it that a value's numbers lie within a range: constants do, or the error says so;
    /// inputs of the graph are checked when they are fed.
    ///
    /// # Errors
    /// If a constant does not, or it cannot be proven.
    pub(super) fn limit(&mut self, v: ValueId, range: (i64, i64)) -> Result<()> {
        let info = self.graph.value(v);
        if let Some(t) = self.constants.get(&v) {
            let numbers = t.to_i64s()?;
            if let Some(n) = numbers.iter().find(|n| **n < range.0 || **n > range.1) {
                bail!(Shape, "index {n} of `{}` is not in {}..={}", info.name, range.0, range.1);
            }
            return Ok(());
        }
        if self.graph.inputs().contains(&v) || self.elsewhere.contains(&v) {
            let all = self.ranges.entry(v).or_insert(range);
            *all = (all.0.max(range.0), all.1.min(range.1));
            return Ok(());
        }
        let maker = self.graph.nodes().iter().find(|n| n.makes().any(|made| made == v));
        let Some(node) = maker else { bail!(Internal, "`{}` is made by nothing", info.name) };
        if node.op == "ArgMax" || node.op == "ArgMin" {
            let input = node.reads().next();
            let extent = input.and_then(|i| {
                let shape = self.graph.value(i).fact.concrete_shape()?;
                let axis = node.int_or("axis", 0).ok()?;
                let axis = if axis < 0 { axis + shape.len() as i64 } else { axis };
                shape.get(usize::try_from(axis).ok()?).copied()
            });
            if range == WIDEST || range.0 <= 0 && extent.is_some_and(|e| e as i64 - 1 <= range.1) {
                return Ok(());
            }
        }
        if node.op == "Range"
            && let [Some(start), Some(end), Some(step)] = node.inputs[..]
            && let [Some(a), Some(b), Some(by)] =
                [start, end, step].map(|v| self.constants.get(&v).and_then(|t| t.to_i64s().ok()))
            && let ([a], [b], [by]) = (&a[..], &b[..], &by[..])
            && let (lo, hi) =
                if *by > 0 { (*a, b.saturating_sub(1)) } else { (b.saturating_add(1), *a) }
            && lo >= range.0
            && hi <= range.1
        {
            return Ok(());
        }
        let integers =
            |v: ValueId| matches!(self.graph.value(v).fact.dtype, Some(DType::I32 | DType::I64));
        let from: Vec<ValueId> = match PASSES_ON.iter().find(|(op, ..)| *op == node.op) {
            Some((_, first, end)) => {
                let given = node.inputs.iter().take(*end).skip(*first);
                given.copied().flatten().collect()
            }
            None if node.op == "Cast" => node.reads().filter(|v| integers(*v)).collect(),
            None => Vec::new(),
        };
        if from.is_empty() {
            bail!(
                Unsupported,
                "`{}` is made by {}, and that its indices lie in {}..={} is not proven; \
                 place this node on a CPU",
                info.name,
                node.op,
                range.0,
                range.1
            );
        }
        from.into_iter().try_for_each(|v| self.limit(v, range))
    }
}

/// For each input of a graph whether extents follow from its numbers, so that launches are made for
/// those numbers.
pub fn extent_inputs(graph: &Graph) -> Vec<bool> {
    let producers = graph.producers();
    let mut decides = vec![false; graph.values().len()];
    let mut open: Vec<ValueId> = Vec::new();
    for node in graph.nodes() {
        match row_of(node) {
            Some(row) if !only_extents(node) => {
                open.extend(node.inputs.iter().skip(row.reads).copied().flatten());
            }
            _ => {}
        }
    }
    while let Some(v) = open.pop() {
        if std::mem::replace(&mut decides[v.index()], true) {
            continue;
        }
        let node = producers[v.index()].map(|n| graph.node(n));
        if let Some(node) = node.filter(|n| !only_extents(n)) {
            open.extend(node.reads());
        }
    }
    graph.inputs().iter().map(|v| decides[v.index()]).collect()
}

/// Whether an operator looks at the extents of its input alone.
pub(super) fn only_extents(node: &Node) -> bool {
    matches!(node.op.as_str(), "Shape" | "Size")
}

/// The bytes of a tensor as a device has them: four for each element.
///
/// # Errors
/// If a whole number does not fit 32 bits or lies outside of `range`, or the dtype has no such form.
pub fn narrowed<'a>(
    tensor: &'a Tensor,
    range: Option<(i64, i64)>,
    what: &str,
) -> Result<Cow<'a, [u8]>> {
    let (lo, hi) = range.unwrap_or((i64::from(i32::MIN), i64::from(i32::MAX)));
    let check = |n: i64| -> Result<i32> {
        match i32::try_from(n) {
            Ok(v) if (lo..=hi).contains(&n) => Ok(v),
            _ => bail!(
                Unsupported,
                "{n} in `{what}` does not fit the {lo}..={hi} that the device takes there"
            ),
        }
    };
    Ok(match tensor.dtype() {
        DType::F32 | DType::U32 => Cow::Borrowed(tensor.as_bytes()),
        DType::I32 => {
            if range.is_some() {
                for n in tensor.as_slice::<i32>()? {
                    check(i64::from(*n))?;
                }
            }
            Cow::Borrowed(tensor.as_bytes())
        }
        DType::I64 => {
            let narrow: Result<Vec<i32>> =
                tensor.as_slice::<i64>()?.iter().map(|n| check(*n)).collect();
            Cow::Owned(bytemuck::cast_slice(&narrow?).to_vec())
        }
        DType::I8 => widen(tensor.as_slice::<i8>()?, |n| i32::from(n).to_ne_bytes()),
        DType::I16 => widen(tensor.as_slice::<i16>()?, |n| i32::from(n).to_ne_bytes()),
        DType::U8 => widen(tensor.as_slice::<u8>()?, |n| u32::from(n).to_ne_bytes()),
        DType::U16 => widen(tensor.as_slice::<u16>()?, |n| u32::from(n).to_ne_bytes()),
        DType::Bool => {
            let wide: Vec<u32> = tensor.as_bytes().iter().map(|b| u32::from(*b != 0)).collect();
            Cow::Owned(bytemuck::cast_slice(&wide).to_vec())
        }
        other => bail!(Unsupported, "`{what}` is {other}, which the device does not have"),
    })
}

fn widen<T: Copy>(numbers: &[T], wide: impl Fn(T) -> [u8; 4]) -> Cow<'static, [u8]> {
    Cow::Owned(numbers.iter().flat_map(|n| wide(*n)).collect())
}

/// Writes what a device made into the bytes of a tensor of a dtype.
///
/// # Errors
/// If the lengths do not agree, or the dtype has no such form.
pub fn widened(made: &[u8], dtype: DType, out: &mut [u8]) -> Result<()> {
    let count = made.len() / 4;
    let lengths = |size: usize| -> Result<()> {
        if out.len() != count * size {
            bail!(Internal, "{} bytes for {count} elements of {dtype}", out.len());
        }
        Ok(())
    };
    match dtype {
        DType::F32 | DType::I32 | DType::U32 => {
            lengths(4)?;
            out.copy_from_slice(made);
        }
        DType::I64 => {
            lengths(8)?;
            for (o, m) in out.chunks_exact_mut(8).zip(made.chunks_exact(4)) {
                let n = i32::from_ne_bytes([m[0], m[1], m[2], m[3]]);
                o.copy_from_slice(&i64::from(n).to_ne_bytes());
            }
        }
        DType::I8 | DType::U8 | DType::I16 | DType::U16 => {
            let size = dtype.size();
            lengths(size)?;
            for (o, m) in out.chunks_exact_mut(size).zip(made.chunks_exact(4)) {
                // The lowest bits of a number that fits.
                let n = u32::from_ne_bytes([m[0], m[1], m[2], m[3]]);
                let [low, high, ..] = n.to_le_bytes();
                match o {
                    [o] => *o = low,
                    o => o.copy_from_slice(&u16::from_le_bytes([low, high]).to_ne_bytes()),
                }
            }
        }
        DType::Bool => {
            lengths(1)?;
            for (o, m) in out.iter_mut().zip(made.chunks_exact(4)) {
                *o = u8::from(m.iter().any(|b| *b != 0));
            }
        }
        other => bail!(Internal, "a device made {other}"),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_come_back_as_they_went_or_do_not_go() {
        let t = Tensor::new([3], vec![-5_i64, 0, 7]).unwrap();
        let bytes = narrowed(&t, None, "x").unwrap().into_owned();
        assert_eq!(bytes.len(), 12);
        let mut back = vec![0; 24];
        widened(&bytes, DType::I64, &mut back).unwrap();
        assert_eq!(back, t.as_bytes());
        let bytes8 = Tensor::new([3], vec![-128_i8, 0, 127]).unwrap();
        let wide16 = Tensor::new([3], vec![0_u16, 255, 65_535]).unwrap();
        for t in [bytes8, wide16, Tensor::new([2], vec![-32_768_i16, 256]).unwrap()] {
            let wide = narrowed(&t, None, "x").unwrap().into_owned();
            assert_eq!(wide.len(), t.len() * 4);
            let mut back = vec![0; t.bytes()];
            widened(&wide, t.dtype(), &mut back).unwrap();
            assert_eq!(back, t.as_bytes());
        }
        assert!(narrowed(&t, Some((0, 9)), "x").unwrap_err().to_string().contains("-5 in `x`"));
        let large = Tensor::new([1], vec![1_i64 << 40]).unwrap();
        assert!(narrowed(&large, None, "x").is_err());
        assert!(widened(&bytes, DType::I64, &mut back[..8]).is_err());
    }
}
