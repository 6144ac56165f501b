//! `Einsum`.

use std::collections::BTreeMap;

use super::case::{Case, filled};
use super::def::types::NUMBERS;
use super::matmul::products;
use super::movement::{Strided, walked};
use super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, cost};
use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::tensor::{Tensor, cast, element_count, strides};

/// Products of tensors summed over the letters that the output lacks.
pub(super) static EINSUM: OpDef = OpDef {
    name: "Einsum",
    domain: "",
    since: 12,
    attributes: &[AttributeDef::required("equation", AttributeKind::String)],
    inputs: &[Port::variadic("Inputs", NUMBERS, 1)],
    outputs: &[Port::required("Output", NUMBERS)],
    infer,
    batch: |q| {
        if q.is_free() {
            return q.everywhere(None);
        }
        let ranks: Option<Vec<usize>> = (0..q.shapes.len()).map(|i| q.rank(i)).collect();
        let ranks = ranks.ok_or("the rank of an input is not known")?;
        let terms =
            Equation::of(q.node).and_then(|e| e.resolve(&ranks)).map_err(|e| e.to_string())?;
        let carried: Vec<_> = terms
            .inputs
            .iter()
            .zip(q.axes)
            .filter_map(|(t, a)| Some((*t.get((*a)?)?, t)))
            .collect();
        let Some(&(label, _)) = carried.first() else { return q.everywhere(None) };
        let once = |t: &[Label]| t.iter().filter(|l| **l == label).count() == 1;
        // Every input that has the letter must carry the batch on it, and the output have it.
        let fits = carried.iter().all(|(l, t)| *l == label && once(t))
            && terms.inputs.iter().zip(q.axes).all(|(t, a)| a.is_some() || !t.contains(&label));
        match terms.output.iter().position(|l| *l == label) {
            Some(at) if fits => q.everywhere(Some(at)),
            _ => Err("its equation mixes the items of a batch".to_owned()),
        }
    },
    cost: |q| {
        let most = (0..q.inputs.len()).map(|i| q.input_elements(i)).fold(1.0, f64::max);
        cost::Cost { flops: 2.0 * most.max(q.output_elements()), bytes: q.bytes() }
    },
    prepare: |p| Ok(Box::new(Einsum { equation: Equation::of(p.node)? })),
    cases,
};

/// A letter of the equation, or an axis of the ellipsis, counted from its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Label {
    Ellipsis(usize),
    Letter(char),
}

/// One side of the equation for one tensor: letters before and after an ellipsis.
#[derive(Clone, Debug)]
struct Term {
    before: Vec<char>,
    after: Option<Vec<char>>,
}

impl Term {
    fn parse(text: &str) -> Result<Self> {
        let letters = |text: &str| -> Result<Vec<char>> {
            match text.chars().find(|c| !c.is_ascii_alphabetic()) {
                Some(c) => bail!(Graph, "attribute `equation` has a `{c}` where letters belong"),
                None => Ok(text.chars().collect()),
            }
        };
        Ok(match text.split_once("...") {
            Some((a, b)) => Self { before: letters(a)?, after: Some(letters(b)?) },
            None => Self { before: letters(text)?, after: None },
        })
    }

    fn labels(&self, ellipsis: usize) -> Vec<Label> {
        let mut out: Vec<Label> = self.before.iter().map(|c| Label::Letter(*c)).collect();
        if let Some(after) = &self.after {
            out.extend((0..ellipsis).rev().map(Label::Ellipsis));
            out.extend(after.iter().map(|c| Label::Letter(*c)));
        }
        out
    }
}

#[derive(Clone, Debug)]
struct Equation {
    inputs: Vec<Term>,
    output: Option<Term>,
}

/// The labels of every axis.
struct Terms {
    inputs: Vec<Vec<Label>>,
    output: Vec<Label>,
}

impl Equation {
    fn of(node: &Node) -> Result<Self> {
        let Some(text) = node.string("equation")? else {
            bail!(Graph, "attribute `equation` is missing");
        };
        let text: String = text.chars().filter(|c| !c.is_whitespace()).collect();
        let (left, right) = match text.split_once("->") {
            Some((left, right)) => (left, Some(right)),
            None => (text.as_str(), None),
        };
        let inputs = left.split(',').map(Term::parse).collect::<Result<Vec<_>>>()?;
        let given = node.inputs.len();
        if inputs.len() != given {
            bail!(Graph, "equation `{text}` is of {} inputs, {given} are given", inputs.len());
        }
        Ok(Self { inputs, output: right.map(Term::parse).transpose()? })
    }

    /// The labels of tensors with so many axes each.
    fn resolve(&self, ranks: &[usize]) -> Result<Terms> {
        let mut inputs = Vec::with_capacity(ranks.len());
        let mut widest = 0;
        for (k, (term, rank)) in self.inputs.iter().zip(ranks).enumerate() {
            let letters = term.before.len() + term.after.as_ref().map_or(0, Vec::len);
            let rest = rank.checked_sub(letters);
            let Some(rest) = rest.filter(|r| *r == 0 || term.after.is_some()) else {
                bail!(Shape, "input {k} has {rank} axes, its term in the equation {letters}");
            };
            widest = widest.max(rest);
            inputs.push(term.labels(rest));
        }
        let output = match &self.output {
            Some(term) => term.labels(widest),
            None => {
                // All axes of the ellipsis, then the letters that stand once, in order.
                let mut count: BTreeMap<Label, usize> = BTreeMap::new();
                for l in inputs.iter().flatten() {
                    *count.entry(*l).or_default() += 1;
                }
                let mut out: Vec<Label> = (0..widest).rev().map(Label::Ellipsis).collect();
                let once = count.iter().filter(|(_, n)| **n == 1).map(|(l, _)| *l);
                out.extend(once.filter(|l| matches!(l, Label::Letter(_))));
                out
            }
        };
        for (k, l) in output.iter().enumerate() {
            if output[..k].contains(l) {
                bail!(Graph, "the output of the equation has {l:?} twice");
            }
            if !inputs.iter().any(|t| t.contains(l)) {
                bail!(Graph, "the output of the equation has {l:?}, which no input has");
            }
        }
        Ok(Terms { inputs, output })
    }
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let equation = Equation::of(i.node)?;
    let shapes: Option<Vec<Vec<Dim>>> = (0..i.input_count()).map(|k| i.shape(k)).collect();
    let shape = match shapes {
        None => None,
        Some(shapes) => {
            let ranks: Vec<usize> = shapes.iter().map(Vec::len).collect();
            let terms = equation.resolve(&ranks)?;
            let mut extents: BTreeMap<Label, Dim> = BTreeMap::new();
            for (labels, shape) in terms.inputs.iter().zip(&shapes) {
                for (l, d) in labels.iter().zip(shape) {
                    let known = extents.entry(*l).or_insert_with(|| d.clone());
                    // A number says more than a symbol, and 1 is stretched.
                    if known.as_fixed() == Some(1)
                        || known.as_fixed().is_none() && d.as_fixed().is_some_and(|n| n != 1)
                    {
                        *known = d.clone();
                    }
                }
            }
            Some(terms.output.iter().filter_map(|l| extents.get(l).cloned()).collect())
        }
    };
    i.set(0, i.dtype(0), shape);
    Ok(())
}

#[derive(Debug)]
struct Einsum {
    equation: Equation,
}

/// A tensor whose axes are labelled, each label once.
struct Labelled {
    tensor: Tensor,
    labels: Vec<Label>,
}

impl Labelled {
    fn extent(&self, label: Label) -> usize {
        self.labels.iter().position(|l| *l == label).map_or(1, |k| self.tensor.shape()[k])
    }

    /// Its elements with the axes in this order, grouped to three; an axis that it lacks or has
    /// with extent 1 is repeated.
    fn arranged(
        &self,
        io: &Io<'_>,
        groups: [&[Label]; 3],
        extents: &BTreeMap<Label, usize>,
    ) -> Result<Tensor> {
        let own = strides(self.tensor.shape());
        let (mut dims, mut steps) = (Vec::new(), Vec::new());
        let mut shape = [1_usize; 3];
        for (group, size) in groups.iter().zip(&mut shape) {
            for label in *group {
                let extent = extents.get(label).copied().unwrap_or(1);
                let at = self.labels.iter().position(|l| l == label);
                let step = match at {
                    Some(k) if self.tensor.shape()[k] == extent => own[k] as isize,
                    _ => 0,
                };
                dims.push(extent);
                steps.push(step);
                *size *= extent;
            }
        }
        element_count(&dims, self.tensor.dtype().size())?;
        walked(io, &self.tensor, shape, &Strided::new(0, &dims, &steps))
    }
}

/// An input with the axes that have one letter walked along together.
fn diagonal(io: &Io<'_>, x: &Tensor, labels: &[Label]) -> Result<Labelled> {
    let own = strides(x.shape());
    let (mut once, mut dims, mut steps): (Vec<Label>, Vec<usize>, Vec<isize>) = Default::default();
    for (k, l) in labels.iter().enumerate() {
        match once.iter().position(|o| o == l) {
            Some(at) if dims[at] == x.shape()[k] => steps[at] += own[k] as isize,
            Some(at) => {
                bail!(Shape, "{l:?} stands for {} and {} elements", dims[at], x.shape()[k])
            }
            None => {
                once.push(*l);
                dims.push(x.shape()[k]);
                steps.push(own[k] as isize);
            }
        }
    }
    if once.len() == labels.len() {
        return Ok(Labelled { tensor: x.clone(), labels: once });
    }
    let walk = Strided::new(0, &dims, &steps);
    Ok(Labelled { tensor: walked(io, x, dims, &walk)?, labels: once })
}

impl CpuKernel for Einsum {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let count = io.input_count();
        let tensors: Vec<&Tensor> = (0..count).map(|k| io.tensor(k)).collect::<Result<_>>()?;
        if let Some(other) = tensors.iter().find(|t| t.dtype() != tensors[0].dtype()) {
            bail!(DType, "inputs are {} and {}", tensors[0].dtype(), other.dtype());
        }
        let ranks: Vec<usize> = tensors.iter().map(|t| t.rank()).collect();
        let terms = self.equation.resolve(&ranks)?;
        let mut parts = Vec::with_capacity(count);
        for (t, labels) in tensors.iter().zip(&terms.inputs) {
            parts.push(diagonal(io, t, labels)?);
        }
        let mut extents: BTreeMap<Label, usize> = BTreeMap::new();
        for part in &parts {
            for &l in &part.labels {
                let n = part.extent(l);
                let known = extents.entry(l).or_insert(n);
                match (*known, n) {
                    (a, b) if a == b => {}
                    (1, b) => *known = b,
                    (_, 1) => {}
                    (a, b) => bail!(Shape, "{l:?} stands for {a} and {b} elements"),
                }
            }
        }
        let mut parts = parts.into_iter().enumerate();
        let Some((_, mut product)) = parts.next() else { bail!(Missing, "there is no input") };
        for (k, next) in parts {
            let later = |l: &Label| {
                terms.output.contains(l) || terms.inputs[k + 1..].iter().any(|t| t.contains(l))
            };
            product = contract(io, &product, &next, &later, &extents)?;
        }
        // What only this tensor has, and the output lacks, is summed up.
        let summed: Vec<Label> =
            product.labels.iter().copied().filter(|l| !terms.output.contains(l)).collect();
        let out = if summed.is_empty() {
            product.arranged(io, [&terms.output, &[], &[]], &extents)?
        } else {
            let rows = product.arranged(io, [&[], &terms.output, &summed], &extents)?;
            let count = rows.shape()[2];
            let ones = cast(&Tensor::new([1, count, 1], vec![1.0_f32; count])?, rows.dtype())?;
            products(io, &rows, &ones)?
        };
        let shape: Vec<usize> =
            terms.output.iter().map(|l| extents.get(l).copied().unwrap_or(1)).collect();
        io.emit(out.reshape(shape)?);
        Ok(())
    }
}

/// The product of two, summed over what is not needed later.
fn contract(
    io: &Io<'_>,
    a: &Labelled,
    b: &Labelled,
    later: &dyn Fn(&Label) -> bool,
    extents: &BTreeMap<Label, usize>,
) -> Result<Labelled> {
    let (mut both, mut left, mut right, mut inner) = (vec![], vec![], vec![], vec![]);
    let mut all = a.labels.clone();
    all.extend(b.labels.iter().copied().filter(|l| !a.labels.contains(l)));
    for l in all {
        match (later(&l), a.labels.contains(&l), b.labels.contains(&l)) {
            (false, ..) => inner.push(l),
            (true, true, true) => both.push(l),
            (true, true, false) => left.push(l),
            _ => right.push(l),
        }
    }
    let x = a.arranged(io, [&both, &left, &inner], extents)?;
    let y = b.arranged(io, [&both, &inner, &right], extents)?;
    let product = products(io, &x, &y)?;
    let labels: Vec<Label> = both.into_iter().chain(left).chain(right).collect();
    let shape: Vec<usize> = labels.iter().map(|l| extents.get(l).copied().unwrap_or(1)).collect();
    Ok(Labelled { tensor: product.reshape(shape)?, labels })
}

fn cases() -> Vec<Case> {
    let a = || filled(&[2, 2], &[1.0_f32, 2.0, 3.0, 4.0]);
    let b = || filled(&[2, 2], &[5.0_f32, 6.0, 7.0, 8.0]);
    let new = |equation: &str| Case::new("Einsum", 12, equation).attr("equation", equation);
    vec![
        new("ij,jk->ik")
            .input(a())
            .input(b())
            .output(filled(&[2, 2], &[19.0_f32, 22.0, 43.0, 50.0])),
        new("ij->ji").input(a()).output(filled(&[2, 2], &[1.0_f32, 3.0, 2.0, 4.0])),
        new("ij->i").input(a()).output(filled(&[2], &[3.0_f32, 7.0])),
        new("ii").input(a()).output(filled(&[], &[5.0_f32])),
        new("...ii ->...i")
            .input(filled(&[1, 2, 2], &[1_i64, 2, 3, 4]))
            .output(filled(&[1, 2], &[1_i64, 4])),
        new("i,i")
            .input(filled(&[2], &[1.0_f64, 2.0]))
            .input(filled(&[2], &[3.0_f64, 4.0]))
            .output(filled(&[], &[11.0_f64])),
        new("ij, jk").input(a()).input(b()).output(filled(&[2, 2], &[19.0_f32, 22.0, 43.0, 50.0])),
        new("...ij,...jk->...ik")
            .input(a())
            .input(filled(&[2, 2, 1], &[1.0_f32, 0.0, 0.0, 1.0]))
            .output(filled(&[2, 2, 1], &[1.0_f32, 3.0, 2.0, 4.0])),
        new("ij,kl,jl->ik")
            .input(a())
            .input(b())
            .input(filled(&[2, 2], &[1.0_f32, 0.0, 0.0, 1.0]))
            .output(filled(&[2, 2], &[17.0_f32, 23.0, 39.0, 53.0])),
        new("bij,bjk->bk")
            .input(filled(&[1, 2, 2], &[1.0_f32, 2.0, 3.0, 4.0]))
            .input(filled(&[1, 2, 1], &[5.0_f32, 6.0]))
            .output(filled(&[1, 1], &[56.0_f32])),
    ]
}
