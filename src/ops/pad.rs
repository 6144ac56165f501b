//! `Pad`.

use super::case::{Case, ints, of};
use super::def::types::{I64S, INDICES, STORED};
use super::movement::{Item, Mover, produce};
use super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, Threads, cost};
use crate::error::{Result, bail, err};
use crate::graph::Node;
use crate::tensor::{Tensor, cast, element_count, normalise_axis};

/// More elements around a tensor (or fewer, where a pad is negative).
pub(super) static PAD: OpDef = OpDef {
    name: "Pad",
    domain: "",
    since: 1,
    attributes: &[
        AttributeDef::optional("mode", AttributeKind::String),
        AttributeDef::optional("pads", AttributeKind::Ints),
        // The name before version 2.
        AttributeDef::optional("paddings", AttributeKind::Ints).until(1),
        AttributeDef::optional("value", AttributeKind::Float),
    ],
    inputs: &[
        Port::required("data", STORED),
        Port::optional("pads", I64S),
        Port::optional("constant_value", STORED),
        Port::optional("axes", INDICES),
    ],
    outputs: &[Port::required("output", STORED)],
    infer,
    batch: |q| {
        if q.axes.iter().skip(1).any(Option::is_some) {
            return Err("how it pads depends on the items of the batch".to_owned());
        }
        let Some(axis) = q.axes.first().copied().flatten() else {
            return q.everywhere(None);
        };
        let rank = q.rank(0).ok_or("its number of axes is not known")?;
        let listed = |k: usize| q.ints.get(k).and_then(Clone::clone);
        let pads = match attribute(q.node).map_err(|e| e.to_string())? {
            Some(pads) => pads.to_vec(),
            None => listed(1).ok_or("how it pads is not known")?,
        };
        let axes = listed(3);
        if axes.is_none() && q.node.inputs.get(3).copied().flatten().is_some() {
            return Err("which axes it pads is not known".to_owned());
        }
        let all = by_axis(&pads, axes.as_deref(), rank).map_err(|e| e.to_string())?;
        match all.get(axis) {
            Some((0, 0)) => q.everywhere(Some(axis)),
            _ => Err(format!("it pads the batch axis {axis}")),
        }
    },
    cost: cost::copy,
    prepare: |p| {
        let pads = attribute(p.node)?.map(<[i64]>::to_vec);
        if pads.is_none() && !p.has(1) {
            bail!(Graph, "Pad needs its `pads`");
        }
        Ok(Box::new(Pad { mode: mode(p.node)?, pads, value: p.node.float_or("value", 0.0)? }))
    },
    cases,
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Constant,
    Reflect,
    Edge,
    Wrap,
}

/// The pads as attribute, of the versions before 11.
fn attribute(node: &Node) -> Result<Option<&[i64]>> {
    node.ints(if node.version < 2 { "paddings" } else { "pads" })
}

fn mode(node: &Node) -> Result<Mode> {
    Ok(match node.string("mode")?.unwrap_or("constant") {
        "constant" => Mode::Constant,
        "reflect" => Mode::Reflect,
        "edge" => Mode::Edge,
        "wrap" => Mode::Wrap,
        other => bail!(Graph, "`mode` is `{other}`; use constant, reflect, edge or wrap"),
    })
}

/// The pads before and after each of `rank` axes.
fn by_axis<T: Clone + Default>(
    pads: &[T],
    axes: Option<&[i64]>,
    rank: usize,
) -> Result<Vec<(T, T)>> {
    let n = axes.map_or(rank, <[i64]>::len);
    if n.checked_mul(2) != Some(pads.len()) {
        bail!(Shape, "there are {} `pads` for {n} axes; two each are needed", pads.len());
    }
    let mut out = vec![(T::default(), T::default()); rank];
    let mut seen = vec![false; rank];
    for i in 0..n {
        let at = normalise_axis(axes.map_or(i as i64, |a| a[i]), rank)?;
        if std::mem::replace(&mut seen[at], true) {
            bail!(Shape, "axis {at} is padded twice");
        }
        out[at] = (pads[i].clone(), pads[n + i].clone());
    }
    Ok(out)
}

/// The elements before the input along each axis (negative: cut off) of a node that pads an input of
/// this shape, as long as pads and extents go together.
///
/// # Errors
/// As the kernel of the CPU.
pub(crate) fn padded(
    node: &Node,
    pads: &[i64],
    axes: Option<&[i64]>,
    shape: &[usize],
) -> Result<Vec<isize>> {
    let mode = mode(node)?;
    let pads = by_axis(pads, axes, shape.len())?;
    pads.iter()
        .zip(shape)
        .map(|(&(before, after), &extent)| {
            Axis::new(before, after, extent, mode)?;
            isize::try_from(before).map_err(|_| err!(Limit, "a pad of {before} is too large"))
        })
        .collect()
}

#[derive(Debug)]
struct Pad {
    mode: Mode,
    pads: Option<Vec<i64>>,
    value: f32,
}

impl CpuKernel for Pad {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.take_tensor(0)?;
        let (pads, axes) = match &self.pads {
            Some(pads) => (pads.clone(), None),
            None => {
                let axes = io.optional(3)?.map(Tensor::to_i64s).transpose()?;
                (io.tensor(1)?.to_i64s()?, axes)
            }
        };
        let pads = by_axis(&pads, axes.as_deref(), x.rank())?;
        let mut shape = Vec::with_capacity(x.rank());
        for (&(before, after), &d) in pads.iter().zip(x.shape().iter()) {
            let total = i128::from(before) + i128::from(after) + d as i128;
            shape.push(usize::try_from(total).map_err(|_| {
                err!(Shape, "pads of {before} and {after} do not fit an axis of {d}")
            })?);
        }
        if element_count(&shape, x.dtype().size())? == 0 {
            io.emit(Tensor::zeros(x.dtype(), shape)?);
            return Ok(());
        }
        let axes: Vec<Axis> = pads
            .iter()
            .zip(x.shape().iter())
            .map(|(&(before, after), &d)| Axis::new(before, after, d, self.mode))
            .collect::<Result<_>>()?;
        let Some(last) = pads.iter().rposition(|p| *p != (0, 0)) else {
            io.emit(x);
            return Ok(());
        };
        let value = match io.optional(2)? {
            Some(v) if v.len() == 1 => v.clone(),
            Some(v) => bail!(Shape, "`constant_value` is one element, got {}", v.describe()),
            None if self.value != 0.0 => cast(&Tensor::scalar(self.value), x.dtype())?,
            None => Tensor::zeros(x.dtype(), [])?,
        };
        let run = x.shape()[last + 1..].iter().product();
        let padding = Padding { axes: &axes[..=last], extents: &x.shape()[..=last], run };
        io.emit(produce(io, &[&x, &value], shape, &padding)?);
        Ok(())
    }
}

/// Stands for the constant in [`Axis::map`].
const OUTSIDE: usize = usize::MAX;

/// Where the elements along one axis come from.
struct Axis {
    /// The input's index for each index of the output.
    map: Vec<usize>,
    /// The first index of the output that is inside of the input, and how many are.
    inside: (usize, usize),
}

impl Axis {
    fn new(before: i64, after: i64, extent: usize, mode: Mode) -> Result<Self> {
        let sign = |v: i64| -> Result<(usize, usize)> {
            let n = usize::try_from(v.unsigned_abs())
                .map_err(|_| err!(Limit, "a pad of {v} is too large"))?;
            Ok(if v < 0 { (0, n) } else { (n, 0) })
        };
        let ((before, cut), (after, cut_after)) = (sign(before)?, sign(after)?);
        let Some(kept) = extent.checked_sub(cut).and_then(|n| n.checked_sub(cut_after)) else {
            bail!(Shape, "pads cut {cut} and {cut_after} elements off an axis of {extent}");
        };
        let total = before
            .checked_add(after)
            .and_then(|n| n.checked_add(kept))
            .filter(|n| isize::try_from(*n).is_ok_and(|n| n < isize::MAX / 8))
            .ok_or_else(|| err!(Limit, "pads of {before} and {after} are too large"))?;
        if kept == 0 && total > 0 && mode != Mode::Constant {
            bail!(Shape, "an axis of extent 0 has nothing to pad with");
        }
        let mut map = Vec::new();
        map.try_reserve_exact(total)
            .map_err(|_| err!(Limit, "pads of {before} and {after} are too large"))?;
        // Offsets make all numbers positive: a multiple of the period is added.
        map.extend((0..total).map(|i| {
            if (before..before + kept).contains(&i) {
                return cut + i - before;
            }
            let from = match mode {
                Mode::Constant => return OUTSIDE,
                Mode::Edge => i.saturating_sub(before).min(kept - 1),
                Mode::Wrap => (i + (kept - before % kept)) % kept,
                Mode::Reflect if kept == 1 => 0,
                Mode::Reflect => {
                    let period = 2 * (kept - 1);
                    let at = (i + (period - before % period)) % period;
                    at.min(period - at)
                }
            };
            cut + from
        }));
        Ok(Self { map, inside: (before, kept) })
    }
}

/// Fills runs of `run` elements, which are not padded, along `axes`.
struct Padding<'a> {
    axes: &'a [Axis],
    extents: &'a [usize],
    run: usize,
}

impl Mover for Padding<'_> {
    fn fill<T: Item>(&self, sources: &[&[T]], out: &mut [T], threads: &Threads) -> Result<()> {
        let ([source, value], [outer @ .., last], [.., extent]) =
            (sources, self.axes, self.extents)
        else {
            bail!(Internal, "Pad needs a source, a value and an axis");
        };
        let value = value.first().cloned().unwrap_or_default();
        let run = self.run;
        let row = last.map.len() * run;
        if out.is_empty() {
            return Ok(());
        }
        let single = Threads::single();
        let threads = if out.len() < 1 << 16 { &single } else { threads };
        threads.split_rows(out, row, |first, chunk| {
            for (n, row) in chunk.chunks_mut(row).enumerate() {
                let Some(base) = self.row(outer, first + n) else {
                    row.fill(value.clone());
                    continue;
                };
                let base = base * extent * run;
                let (start, count) = last.inside;
                let mut single = |range: std::ops::Range<usize>| {
                    for i in range {
                        let target = &mut row[i * run..(i + 1) * run];
                        match last.map[i] {
                            OUTSIDE => target.fill(value.clone()),
                            at => {
                                let from = base + at * run;
                                target.clone_from_slice(&source[from..from + run]);
                            }
                        }
                    }
                };
                single(0..start);
                single(start + count..last.map.len());
                if count > 0 {
                    let from = base + last.map[start] * run;
                    row[start * run..(start + count) * run]
                        .clone_from_slice(&source[from..from + count * run]);
                }
            }
        });
        Ok(())
    }
}

impl Padding<'_> {
    /// The input's row for a row of the output, counted over the outer axes.
    fn row(&self, outer: &[Axis], row: usize) -> Option<usize> {
        let (mut rest, mut at, mut scale) = (row, 0, 1);
        for (axis, extent) in outer.iter().zip(self.extents).rev() {
            let from = axis.map[rest % axis.map.len()];
            rest /= axis.map.len();
            if from == OUTSIDE {
                return None;
            }
            at += from * scale;
            scale *= extent;
        }
        Some(at)
    }
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let dtype = i.dtype(0);
    mode(i.node)?;
    let Some(shape) = i.shape(0) else {
        i.set(0, dtype, None);
        return Ok(());
    };
    let attribute = attribute(i.node)?
        .map(|v| v.iter().map(|n| crate::graph::Dim::fixed(*n)).collect::<Vec<_>>());
    let axes = if i.has(3) { i.ints(3).map(Some) } else { Some(None) };
    let pads = attribute.or_else(|| i.elements(1)).zip(axes);
    let shape = match pads {
        Some((pads, axes)) => by_axis(&pads, axes.as_deref(), shape.len())?
            .into_iter()
            .zip(shape)
            .map(|((before, after), d)| d + before + after)
            .collect(),
        None => i.fresh_shape(shape.len()),
    };
    i.set(0, dtype, Some(shape));
    Ok(())
}

fn cases() -> Vec<Case> {
    let v = Tensor::of_i64;
    let new = |name| Case::new("Pad", 19, name);
    vec![
        new("constant")
            .input(of(&[2, 2], vec![1.0_f32, 2.0, 3.0, 4.0]))
            .constant(v(&[0, 1, 1, 0]))
            .constant(Tensor::scalar(9.0_f32))
            .output(of(&[3, 3], vec![9.0_f32, 1.0, 2.0, 9.0, 3.0, 4.0, 9.0, 9.0, 9.0])),
        new("reflect, more than once")
            .attr("mode", "reflect")
            .input(ints(&[3], vec![1, 2, 3]))
            .constant(v(&[5, 3]))
            .output(ints(&[11], vec![2, 1, 2, 3, 2, 1, 2, 3, 2, 1, 2])),
        new("edge on one axis")
            .attr("mode", "edge")
            .input(ints(&[2, 2], vec![1, 2, 3, 4]))
            .input(v(&[1, 2]))
            .absent()
            .constant(v(&[-1]))
            .output(ints(&[2, 5], vec![1, 1, 2, 2, 2, 3, 3, 4, 4, 4])),
        new("wrap")
            .attr("mode", "wrap")
            .input(ints(&[3], vec![1, 2, 3]))
            .constant(v(&[4, 2]))
            .output(ints(&[9], vec![3, 1, 2, 3, 1, 2, 3, 1, 2])),
        new("negative pads cut")
            .input(ints(&[4], vec![1, 2, 3, 4]))
            .constant(v(&[-1, 1]))
            .output(ints(&[4], vec![2, 3, 4, 0])),
        new("an empty tensor")
            .input(of::<f32>(&[0, 2], vec![]))
            .constant(v(&[1, 0, 0, 0]))
            .constant(Tensor::scalar(7.0_f32))
            .output(of(&[1, 2], vec![7.0_f32, 7.0])),
        Case::new("Pad", 1, "in the first version")
            .attr("paddings", vec![0, 1, 0, 0])
            .input(of(&[1, 1], vec![1.0_f32]))
            .output(of(&[1, 2], vec![0.0_f32, 1.0])),
        Case::new("Pad", 2, "as attributes")
            .attr("pads", vec![0, 1, 0, 0])
            .attr("value", 0.5_f32)
            .input(of(&[1, 1], vec![1.0_f32]))
            .output(of(&[1, 2], vec![0.5_f32, 1.0])),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_pads_are_errors() {
        assert!(Axis::new(i64::MAX, i64::MAX, 3, Mode::Constant).is_err());
        assert!(Axis::new(1 << 58, 0, 3, Mode::Edge).is_err());
        assert!(Axis::new(i64::MIN, 0, 3, Mode::Constant).is_err());
        assert!(Axis::new(-2, -2, 3, Mode::Constant).is_err());
        assert!(Axis::new(1, 0, 0, Mode::Reflect).is_err());
        assert!(by_axis(&[1, 1], Some(&[0, 0]), 1).is_err());
        assert!(by_axis(&[1, 1, 1, 1], Some(&[0, 0]), 1).is_err());
    }
}
