//! `Reshape`, `Flatten`, `Squeeze` and `Unsqueeze`: other shapes over the same memory.

use super::batch::{BatchFlow, BatchQuery};
use super::case::{Case, iota};
use super::def::types::{I64S, STORED};
use super::elementwise::CONSUMED_INPUTS;
use super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, Prepare, cost};
use crate::error::{Result, bail, err};
use crate::graph::{Dim, Node};
use crate::tensor::{Few, Shape, Tensor, normalise_axis};

/// The same elements in a shape that is given as a tensor, with 0 (copy) and -1 (infer).
pub(super) static RESHAPE: OpDef = OpDef {
    name: "Reshape",
    domain: "",
    since: 1,
    attributes: &[
        AttributeDef::optional("allowzero", AttributeKind::Int),
        AttributeDef::optional("shape", AttributeKind::Ints).until(4),
        CONSUMED_INPUTS,
    ],
    inputs: &[Port::required("data", STORED), Port::optional("shape", I64S)],
    outputs: &[Port::required("reshaped", STORED)],
    infer: infer_reshape,
    batch: reshaped,
    cost: cost::free,
    prepare: |p| {
        let attribute = p.node.ints("shape")?.map(<[i64]>::to_vec);
        if attribute.is_none() && !p.has(1) {
            bail!(Graph, "Reshape needs its `shape`");
        }
        Ok(Box::new(Reshape { attribute, allow_zero: p.node.int_or("allowzero", 0)? != 0 }))
    },
    cases: reshape_cases,
};

/// Two axes: the product of the extents before `axis`, and of the others.
pub(super) static FLATTEN: OpDef = OpDef {
    name: "Flatten",
    domain: "",
    since: 1,
    attributes: &[AttributeDef::optional("axis", AttributeKind::Int)],
    inputs: &[Port::required("input", STORED)],
    outputs: &[Port::required("output", STORED)],
    infer: |i| {
        let axis = i.node.int_or("axis", 1)?;
        let shape = match i.shape(0) {
            Some(s) => {
                let at = flatten_axis(axis, s.len())?;
                vec![Dim::product(&s[..at]), Dim::product(&s[at..])]
            }
            None => i.fresh_shape(2),
        };
        i.set(0, i.dtype(0), Some(shape));
        Ok(())
    },
    batch: reshaped,
    cost: cost::free,
    prepare: |p| Ok(Box::new(Flatten { axis: p.node.int_or("axis", 1)? })),
    cases: flatten_cases,
};

/// Removes axes of extent 1: the given ones, or all.
pub(super) static SQUEEZE: OpDef = OpDef {
    name: "Squeeze",
    domain: "",
    since: 1,
    attributes: &[AttributeDef::optional("axes", AttributeKind::Ints)],
    inputs: &[Port::required("data", STORED), Port::optional("axes", I64S)],
    outputs: &[Port::required("squeezed", STORED)],
    infer: infer_squeeze,
    batch: reshaped,
    cost: cost::free,
    prepare: |p| Ok(Box::new(Squeeze { axes: axes_attribute(p)? })),
    cases: squeeze_cases,
};

/// Inserts axes of extent 1.
pub(super) static UNSQUEEZE: OpDef = OpDef {
    name: "Unsqueeze",
    domain: "",
    since: 1,
    attributes: &[AttributeDef::optional("axes", AttributeKind::Ints)],
    inputs: &[Port::required("data", STORED), Port::optional("axes", I64S)],
    outputs: &[Port::required("expanded", STORED)],
    infer: infer_unsqueeze,
    batch: reshaped,
    cost: cost::free,
    prepare: |p| {
        let axes = axes_attribute(p)?;
        if axes.is_none() && !p.has(1) {
            bail!(Graph, "Unsqueeze needs its `axes`");
        }
        Ok(Box::new(Unsqueeze { axes }))
    },
    cases: unsqueeze_cases,
};

#[derive(Debug)]
struct Reshape {
    /// The shape before version 5.
    attribute: Option<Vec<i64>>,
    allow_zero: bool,
}

impl CpuKernel for Reshape {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let target = match &self.attribute {
            Some(shape) => shape.as_slice().into(),
            None => io.tensor(1)?.few_i64s()?,
        };
        let x = io.take_tensor(0)?;
        let shape = resolve(&target, x.shape(), self.allow_zero)?;
        io.emit(x.reshape(shape)?);
        Ok(())
    }
}

/// The extents that `target` stands for, of a tensor with extents `from`.
fn resolve(target: &[i64], from: &[usize], allow_zero: bool) -> Result<Shape> {
    let mut out = Shape::scalar();
    let mut open = None;
    for (i, &t) in target.iter().enumerate() {
        out.push(match t {
            0 if !allow_zero => *from.get(i).ok_or_else(|| {
                err!(Shape, "`shape` {target:?} copies axis {i} of a tensor with {from:?}")
            })?,
            -1 if open.is_some() => bail!(Shape, "`shape` {target:?} has more than one -1"),
            -1 => {
                open = Some(i);
                1
            }
            _ => usize::try_from(t)
                .map_err(|_| err!(Shape, "`shape` {target:?} has a negative extent"))?,
        });
    }
    if let Some(at) = open {
        let total: usize = from.iter().product();
        let rest = out
            .iter()
            .try_fold(1usize, |a, d| a.checked_mul(*d))
            .ok_or_else(|| err!(Shape, "`shape` {target:?} is too large"))?;
        if rest == 0 || !total.is_multiple_of(rest) {
            bail!(Shape, "a tensor of shape {from:?} cannot be reshaped to {target:?}");
        }
        out[at] = total / rest;
    }
    Ok(out)
}

#[derive(Debug)]
struct Flatten {
    axis: i64,
}

impl CpuKernel for Flatten {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.take_tensor(0)?;
        let at = flatten_axis(self.axis, x.rank())?;
        let shape = [x.shape()[..at].iter().product(), x.shape()[at..].iter().product()];
        io.emit(x.reshape(shape)?);
        Ok(())
    }
}

/// The axis of `Flatten` may also be the rank.
fn flatten_axis(axis: i64, rank: usize) -> Result<usize> {
    if usize::try_from(axis) == Ok(rank) { Ok(rank) } else { normalise_axis(axis, rank) }
}

#[derive(Debug)]
struct Squeeze {
    axes: Option<Vec<i64>>,
}

impl CpuKernel for Squeeze {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let axes = match (&self.axes, io.optional(1)?) {
            (Some(axes), _) => Some(axes.as_slice().into()),
            (None, Some(t)) => Some(t.few_i64s()?),
            (None, None) => None,
        };
        let x = io.take_tensor(0)?;
        let drop = match axes {
            Some(axes) => unique_axes(&axes, x.rank())?,
            None => x.shape().iter().map(|d| *d == 1).collect(),
        };
        let mut shape = Shape::scalar();
        for (i, (&d, drop)) in x.shape().iter().zip(&drop).enumerate() {
            match (*drop, d) {
                (false, _) => shape.push(d),
                (true, 1) => {}
                _ => bail!(Shape, "axis {i} of {} cannot be squeezed", x.describe()),
            }
        }
        io.emit(x.reshape(shape)?);
        Ok(())
    }
}

#[derive(Debug)]
struct Unsqueeze {
    axes: Option<Vec<i64>>,
}

impl CpuKernel for Unsqueeze {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let axes = match &self.axes {
            Some(axes) => axes.as_slice().into(),
            None => io.tensor(1)?.few_i64s()?,
        };
        let x = io.take_tensor(0)?;
        let added = unique_axes(&axes, x.rank() + axes.len())?;
        let mut old = x.shape().iter();
        let shape: Shape = added
            .iter()
            .map(|add| if *add { 1 } else { old.next().copied().unwrap_or(1) })
            .collect();
        io.emit(x.reshape(shape)?);
        Ok(())
    }
}

/// The attribute `axes` of the versions before 13.
fn axes_attribute(p: &Prepare<'_>) -> Result<Option<Vec<i64>>> {
    Ok(p.node.ints("axes")?.map(<[i64]>::to_vec))
}

/// Which of `rank` axes are listed.
fn unique_axes(axes: &[i64], rank: usize) -> Result<Few<bool>> {
    let mut out = Few::filled(false, rank);
    for &a in axes {
        if std::mem::replace(&mut out[normalise_axis(a, rank)?], true) {
            bail!(Shape, "`axes` {axes:?} lists an axis twice");
        }
    }
    Ok(out)
}

/// The axes as attribute or as input 1: `Ok(None)` if there are none, `Err(())` if not known yet.
fn known_axes(node: &Node, i: &Infer<'_>) -> Result<Result<Option<Vec<i64>>, ()>> {
    Ok(match node.ints("axes")? {
        Some(axes) => Ok(Some(axes.to_vec())),
        None if i.has(1) => i.ints(1).map(Some).ok_or(()),
        None => Ok(None),
    })
}

fn infer_reshape(i: &mut Infer<'_>) -> Result<()> {
    let dtype = i.dtype(0);
    let copies = i.node.int_or("allowzero", 0)? == 0;
    let from = i.shape(0);
    let attribute = i.node.ints("shape")?.map(|s| s.iter().map(|n| Dim::fixed(*n)).collect());
    let Some(target) = attribute.or_else(|| i.elements(1)) else {
        let rank = i.shape(1).and_then(|s| s.first()?.as_extent());
        let shape = rank.map(|r| i.fresh_shape(r));
        i.set(0, dtype, shape);
        return Ok(());
    };
    let numbers: Option<Vec<i64>> = target.iter().map(Dim::as_fixed).collect();
    let concrete: Option<Vec<usize>> =
        from.as_ref().and_then(|s| s.iter().map(Dim::as_extent).collect());
    let shape = match (numbers, concrete) {
        (Some(numbers), Some(from)) => {
            let shape = resolve(&numbers, &from, !copies)?;
            if shape.iter().try_fold(1usize, |a, d| a.checked_mul(*d))
                != Some(from.iter().product())
            {
                bail!(Shape, "a tensor of shape {from:?} cannot be reshaped to {numbers:?}");
            }
            shape.iter().copied().map(Dim::of).collect()
        }
        _ => symbolic_reshape(i, &target, from.as_deref(), copies)?,
    };
    if shape.len() <= 1 {
        i.set_elements(0, i.elements(0));
    }
    i.set(0, dtype, Some(shape));
    Ok(())
}

fn symbolic_reshape(
    i: &mut Infer<'_>,
    target: &[Dim],
    from: Option<&[Dim]>,
    copies: bool,
) -> Result<Vec<Dim>> {
    let mut out: Vec<Dim> = Vec::with_capacity(target.len());
    let mut open = None;
    for (axis, t) in target.iter().enumerate() {
        match t.as_fixed() {
            Some(0) if copies => match from {
                Some(from) => out.push(from.get(axis).cloned().ok_or_else(|| {
                    err!(Shape, "`shape` {target:?} copies axis {axis} of a tensor with {from:?}")
                })?),
                None => out.push(i.fresh()),
            },
            Some(-1) => {
                if open.replace(axis).is_some() {
                    bail!(Shape, "`shape` {target:?} has more than one -1");
                }
                out.push(Dim::fixed(1));
            }
            Some(n) if n < 0 => bail!(Shape, "`shape` {target:?} has a negative extent"),
            _ => out.push(t.clone()),
        }
    }
    if let Some(open) = open {
        out[open] = match from {
            Some(from) => quotient(from, &out),
            None => i.fresh(),
        };
    }
    Ok(out)
}

/// The product of `of` divided by that of `by`; common extents are cancelled first.
fn quotient(of: &[Dim], by: &[Dim]) -> Dim {
    let mut of = of.to_vec();
    let mut rest = Vec::new();
    for d in by {
        match of.iter().position(|x| x == d) {
            Some(at) => drop(of.swap_remove(at)),
            None => rest.push(d.clone()),
        }
    }
    Dim::product(&of).floor_div(&Dim::product(&rest))
}

fn infer_squeeze(i: &mut Infer<'_>) -> Result<()> {
    let dtype = i.dtype(0);
    let axes = known_axes(i.node, i)?;
    let shape = match (i.shape(0), axes) {
        (None, _) => None,
        (Some(s), Err(())) => {
            // How many axes go is often known even where they are not.
            let count = i.shape(1).and_then(|s| s.first()?.as_extent());
            count.and_then(|n| s.len().checked_sub(n)).map(|rank| i.fresh_shape(rank))
        }
        (Some(s), Ok(None)) => {
            // An extent that is not known may be 1.
            let all_known = s.iter().all(|d| d.as_fixed().is_some());
            all_known.then(|| s.into_iter().filter(|d| d.as_fixed() != Some(1)).collect())
        }
        (Some(s), Ok(Some(axes))) => {
            let drop = unique_axes(&axes, s.len())?;
            let mut out = Vec::new();
            for (axis, (d, drop)) in s.into_iter().zip(&drop).enumerate() {
                if !*drop {
                    out.push(d);
                } else if d.as_fixed().is_some_and(|v| v != 1) {
                    bail!(Shape, "axis {axis} has extent {d} and cannot be squeezed");
                }
            }
            Some(out)
        }
    };
    i.set_elements(0, i.elements(0));
    i.set(0, dtype, shape);
    Ok(())
}

fn infer_unsqueeze(i: &mut Infer<'_>) -> Result<()> {
    let dtype = i.dtype(0);
    let axes = known_axes(i.node, i)?;
    let count = match &axes {
        Ok(Some(axes)) => Some(axes.len()),
        Ok(None) => bail!(Graph, "Unsqueeze needs its `axes`"),
        Err(()) => i.shape(1).and_then(|s| s.first()?.as_extent()),
    };
    let rank = i.rank(0).zip(count).map(|(r, n)| r + n);
    let shape = match (i.shape(0), axes, rank) {
        (Some(s), Ok(Some(axes)), Some(rank)) => {
            let mut old = s.into_iter();
            let added = unique_axes(&axes, rank)?;
            let dims = added
                .iter()
                .map(|add| if *add { Dim::fixed(1) } else { old.next().unwrap_or_default() });
            Some(dims.collect())
        }
        (_, _, Some(rank)) => Some(i.fresh_shape(rank)),
        _ => None,
    };
    if rank.is_some_and(|r| r <= 1) {
        i.set_elements(0, i.elements(0));
    }
    i.set(0, dtype, shape);
    Ok(())
}

/// The batch stays where as many elements come before it as before, in whole items.
fn reshaped(q: &BatchQuery<'_>) -> BatchFlow {
    if q.axes.iter().skip(1).any(Option::is_some) {
        return Err("its shape depends on the items of the batch".to_owned());
    }
    let Some(axis) = q.axes.first().copied().flatten() else {
        return q.everywhere(None);
    };
    let (Some(Some(from)), Some(Some(to))) = (q.shapes.first(), q.output_shapes.first()) else {
        return Err("its shapes are not known".to_owned());
    };
    let Some(rows) = from.get(axis) else {
        return Err(format!("the batch axis {axis} is not there"));
    };
    let before = Dim::product(&from[..axis]);
    // The batch symbol; where it is not known, every symbol that divides the batch axis may be it.
    let mut symbols: Vec<Dim> = q.symbol.map(Dim::symbol).into_iter().collect();
    if symbols.is_empty() {
        rows.visit_symbols(&mut |s| symbols.push(Dim::symbol(s)));
        symbols.retain(|s| rows.exact_div(s).is_some());
    }
    let mut lead = Dim::fixed(1);
    for (j, d) in to.iter().enumerate() {
        let whole = !symbols.is_empty() && symbols.iter().all(|s| d.exact_div(s).is_some());
        if lead == before && (d == rows || whole) && d.as_fixed().is_none() {
            return q.everywhere(Some(j));
        }
        lead = lead * d.clone();
    }
    Err(format!(
        "it reshapes {from:?} to {to:?}, which does not keep the items of axis {axis} whole"
    ))
}

fn reshape_cases() -> Vec<Case> {
    let new = |name| Case::new("Reshape", 14, name);
    vec![
        new("copy and infer")
            .input(iota(&[2, 3, 4]))
            .constant(Tensor::of_i64(&[0, -1]))
            .output(iota(&[2, 12])),
        Case::new("Reshape", 1, "shape as an attribute")
            .attr("shape", vec![-1, 2])
            .input(iota(&[2, 3]))
            .output(iota(&[3, 2])),
        new("shape at run time")
            .input(iota(&[2, 3]))
            .input(Tensor::of_i64(&[3, 1, 2]))
            .output(iota(&[3, 1, 2])),
        new("to a scalar").input(iota(&[1, 1])).constant(Tensor::of_i64(&[])).output(iota(&[])),
        new("empty with allowzero")
            .attr("allowzero", 1)
            .input(iota(&[0, 3]))
            .constant(Tensor::of_i64(&[3, 0]))
            .output(iota(&[3, 0])),
        new("0 copies an empty axis")
            .input(iota(&[0, 3, 2]))
            .constant(Tensor::of_i64(&[0, 6]))
            .output(iota(&[0, 6])),
    ]
}

fn flatten_cases() -> Vec<Case> {
    let new = |name| Case::new("Flatten", 13, name);
    vec![
        new("default axis").input(iota(&[2, 3, 4])).output(iota(&[2, 12])),
        new("axis 0").attr("axis", 0).input(iota(&[2, 3])).output(iota(&[1, 6])),
        new("axis = rank").attr("axis", 2).input(iota(&[2, 3])).output(iota(&[6, 1])),
        new("negative").attr("axis", -1).input(iota(&[2, 0, 4])).output(iota(&[0, 4])),
    ]
}

fn squeeze_cases() -> Vec<Case> {
    vec![
        Case::new("Squeeze", 13, "negative axes")
            .input(iota(&[1, 3, 1, 2]))
            .constant(Tensor::of_i64(&[-2]))
            .output(iota(&[1, 3, 2])),
        Case::new("Squeeze", 13, "all ones").input(iota(&[1, 3, 1, 2])).output(iota(&[3, 2])),
        Case::new("Squeeze", 11, "axes as attribute")
            .attr("axes", vec![0, 2])
            .input(iota(&[1, 3, 1, 2]))
            .output(iota(&[3, 2])),
        Case::new("Squeeze", 13, "axes at run time")
            .input(Tensor::of_i64(&[16_777_217]))
            .input(Tensor::of_i64(&[0]))
            .output(Tensor::scalar(16_777_217_i64)),
    ]
}

fn unsqueeze_cases() -> Vec<Case> {
    vec![
        Case::new("Unsqueeze", 13, "unsorted axes")
            .input(iota(&[3, 2]))
            .constant(Tensor::of_i64(&[3, 0]))
            .output(iota(&[1, 3, 2, 1])),
        Case::new("Unsqueeze", 13, "negative axis")
            .input(iota(&[3, 2]))
            .constant(Tensor::of_i64(&[-2]))
            .output(iota(&[3, 1, 2])),
        Case::new("Unsqueeze", 11, "axes as attribute")
            .attr("axes", vec![0])
            .input(Tensor::scalar(5_i64))
            .output(Tensor::of_i64(&[5])),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hostile_targets_are_errors() {
        assert!(resolve(&[i64::MAX, i64::MAX, -1], &[2, 3], false).is_err());
        assert!(resolve(&[-1, -1], &[2, 3], false).is_err());
        assert!(resolve(&[-2], &[2], false).is_err());
        assert!(resolve(&[4, -1], &[2, 3], false).is_err());
        assert!(resolve(&[0, 0, 0], &[2, 3], false).is_err());
        assert!(resolve(&[0, -1], &[2, 3], true).is_err());
        assert_eq!(resolve(&[0, -1], &[2, 3], false).unwrap(), [2, 3]);
    }

    fn flow(symbol: Option<&str>, from: &[Dim], axis: usize, to: &[Dim]) -> BatchFlow {
        let mut graph = crate::graph::Graph::new("g");
        let y = graph.add_value("y", crate::graph::Fact::unknown()).unwrap();
        let node = graph.add_node("n", "Reshape", [Some(y)], [Some(y)]);
        reshaped(&BatchQuery {
            node,
            axes: &[Some(axis), None],
            symbol,
            shapes: &[Some(from.to_vec()), None],
            output_shapes: &[Some(to.to_vec())],
            ints: &[None, None],
        })
    }

    #[test]
    fn the_batch_is_followed_through_shapes() {
        let (n, l) = (Dim::symbol("N"), Dim::symbol("L"));
        let k = Dim::fixed;
        let moved = |a: &[Dim], at, b: &[Dim]| flow(None, a, at, b).unwrap()[0];
        assert_eq!(moved(&[n.clone(), k(4), k(5)], 0, &[n.clone(), k(20)]), Some(0));
        assert_eq!(moved(&[n.clone(), k(4)], 0, &[k(1), n.clone() * k(2), k(2)]), Some(1));
        assert_eq!(moved(&[k(6), n.clone()], 1, &[k(2), k(3), n.clone(), k(1)]), Some(2));
        assert_eq!(moved(&[n.clone(), l.clone()], 0, &[n.clone() * l.clone()]), Some(0));
        assert!(flow(None, &[n.clone(), k(4)], 0, &[k(4), n.clone()]).is_err());
        let (rows, cut) = ([n.clone() * l.clone(), k(4)], [n.clone(), l.clone(), k(4)]);
        assert_eq!(flow(Some("N"), &rows, 0, &cut).unwrap()[0], Some(0));
        // Either symbol might be the batch.
        assert!(flow(None, &[n.clone() * l.clone(), k(4)], 0, &[l, n, k(4)]).is_err());
    }
}
