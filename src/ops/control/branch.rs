//! `If`.

use super::super::case::{Case, ints, iota};
use super::super::def::types::{BOOLS, STORED};
use super::super::infer::Known;
use super::super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, Program, cost};
use super::{built, captured, compiled, free_only};
use crate::error::{Result, bail, err};
use crate::graph::Fact;
use crate::tensor::Tensor;

/// One of two subgraphs.
pub(in crate::ops) static IF: OpDef = OpDef {
    name: "If",
    domain: "",
    since: 1,
    attributes: &[
        AttributeDef::required(THEN, AttributeKind::Graph),
        AttributeDef::required(ELSE, AttributeKind::Graph),
    ],
    inputs: &[Port::required("cond", BOOLS)],
    outputs: &[Port::variadic("outputs", STORED, 0)],
    infer: infer_if,
    batch: free_only,
    cost: cost::copy,
    prepare: |p| {
        let chosen = p.constant(0).map(|t| t.item::<bool>()).transpose()?;
        let branch = |name: &str, unless: bool| match chosen {
            Some(c) if c == unless => Ok(None),
            _ => compiled(p, name, p.node.outputs.len()).map(Some),
        };
        Ok(Box::new(If {
            then_branch: branch(THEN, false)?,
            else_branch: branch(ELSE, true)?,
            captures: p.node.captures,
        }))
    },
    cases: if_cases,
};

pub(super) const THEN: &str = "then_branch";
pub(super) const ELSE: &str = "else_branch";

#[derive(Debug)]
struct If {
    /// `None` where a constant condition never takes this branch.
    then_branch: Option<Program>,
    else_branch: Option<Program>,
    captures: usize,
}

impl CpuKernel for If {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let condition = io.tensor(0)?.item::<bool>()?;
        let branch = if condition { &self.then_branch } else { &self.else_branch };
        let branch =
            branch.as_ref().ok_or_else(|| err!(Internal, "branch {condition} was left out"))?;
        let all = io.input_count();
        let inputs =
            (all - self.captures.min(all)..all).map(|k| io.take(k)).collect::<Result<_>>()?;
        for value in branch.run(inputs, io.context())? {
            io.emit(value);
        }
        Ok(())
    }
}

fn infer_if(i: &mut Infer<'_>) -> Result<()> {
    let captured = captured(i);
    let chosen = match i.constant(0) {
        Some(t) => Some(t.item::<bool>()?),
        None => None,
    };
    let made = match chosen {
        Some(c) => i.subgraph(if c { THEN } else { ELSE }, &captured)?,
        None => {
            let ours = i.subgraph(THEN, &captured)?;
            let theirs = i.subgraph(ELSE, &captured)?;
            if ours.len() != theirs.len() {
                bail!(Graph, "the branches of If have {} and {} outputs", ours.len(), theirs.len());
            }
            ours.into_iter()
                .zip(theirs)
                .enumerate()
                .map(|(k, (a, b))| either(i, k, a, b))
                .collect::<Result<_>>()?
        }
    };
    if made.len() < i.output_count() {
        bail!(Graph, "If has {} outputs, its branches {}", i.output_count(), made.len());
    }
    for (k, known) in made.into_iter().enumerate() {
        i.set_known(k, known);
    }
    Ok(())
}

/// What is known of a value that is one of two.
fn either(i: &mut Infer<'_>, output: usize, a: Known, b: Known) -> Result<Known> {
    if a == b {
        return Ok(a);
    }
    let dtype = match (a.fact.dtype, b.fact.dtype) {
        (Some(x), Some(y)) if x != y => {
            bail!(DType, "output {output} of If is {x} in one branch and {y} in the other")
        }
        (x, y) => x.and(y).or(x).or(y),
    };
    let shape = match (a.fact.shape, b.fact.shape) {
        (Some(x), Some(y)) if x.len() == y.len() => {
            Some(x.into_iter().zip(y).map(|(x, y)| if x == y { x } else { i.fresh() }).collect())
        }
        _ => None,
    };
    let elements = a.elements.filter(|e| Some(e) == b.elements.as_ref());
    Ok(Known { fact: Fact { dtype, shape }, constant: None, elements })
}

fn if_cases() -> Vec<Case> {
    // The first of two captured values, or both joined.
    let first = || {
        built(|g| {
            let a = g.add_input("a", Fact::unknown())?;
            g.add_input("b", Fact::unknown())?;
            let y = g.add_value("y", Fact::unknown())?;
            g.add_node("copy", "Identity", [Some(a)], [Some(y)]);
            g.set_outputs([y]);
            Ok(())
        })
    };
    let both = || {
        built(|g| {
            let a = g.add_input("a", Fact::unknown())?;
            let b = g.add_input("b", Fact::unknown())?;
            let y = g.add_value("y", Fact::unknown())?;
            let node = g.add_node("join", "Concat", [Some(a), Some(b)], [Some(y)]);
            node.attributes.insert("axis".to_owned(), 0.into());
            g.set_outputs([y]);
            Ok(())
        })
    };
    let new = |name| Case::new("If", 16, name).attr(THEN, first()).attr(ELSE, both());
    let (a, b) = (|| ints(&[1], vec![7]), || ints(&[2], vec![8, 9]));
    vec![
        new("then").input(Tensor::scalar(true)).input(a()).input(b()).captures(2).output(a()),
        new("else, of another shape")
            .input(Tensor::scalar(false))
            .input(a())
            .input(b())
            .captures(2)
            .output(ints(&[3], vec![7, 8, 9])),
        // The other branch cannot be inferred: its inputs have different numbers of axes.
        new("a constant condition needs only its branch")
            .constant(Tensor::scalar(true))
            .input(iota(&[1, 1]))
            .input(b())
            .captures(2)
            .output(iota(&[1, 1])),
    ]
}
