//! Graph passes.
//!
//! [`PASSES`] is the one list: a pass is its file and one row. [`optimise`] runs them in order,
//! again and again until nothing changes; a pass is left out by its name
//! ([`CompileOptions::disabled_passes`]).

mod blocked_layout;
mod captures;
mod fold_constants;
mod fold_shapes;
mod fuse_activations;
mod fuse_conv;
mod fuse_matmul;
mod gather_weights;
mod inline_if;
mod qdq;
mod readers;
mod remove_identity;

use crate::error::{Result, bail};
use crate::graph::{Graph, Node};
use crate::ops::infer::Known;
use crate::ops::{CompileOptions, OpRegistry, infer_graph};

/// A pass.
#[derive(Debug)]
pub struct Pass {
    /// The name, by which it can be left out.
    pub name: &'static str,
    /// What it does, in a line.
    pub summary: &'static str,
    /// Changes a graph, whose values are known so (by index); returns how many changes it made.
    run: fn(&mut Graph, &[Known], &OpRegistry) -> Result<usize>,
    /// Whether it also runs on subgraphs (where nothing but facts and constants is known).
    in_subgraphs: bool,
    /// On what it runs.
    scope: Scope,
}

/// What a pass runs on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    /// Whole graphs, before they are placed, and segments.
    Everywhere,
    /// Segments only: it merges nodes, which a placement may have put on different devices.
    Segments,
    /// Segments of a CPU, once, after all other passes: it writes them in the kernels' terms.
    Cpu,
}

/// Every pass, in the order in which they run.
pub static PASSES: &[Pass] = &[
    Pass {
        name: "captures",
        summary: "gives subgraphs the constants that they capture, and drops unused captures",
        run: captures::run,
        in_subgraphs: true,
        scope: Scope::Everywhere,
    },
    Pass {
        name: "gather-weights",
        summary: "looks rows of narrow weights up before they are decoded, not after",
        run: gather_weights::run,
        in_subgraphs: true,
        scope: Scope::Everywhere,
    },
    Pass {
        name: "fold-constants",
        summary: "computes nodes whose inputs are all constant",
        run: fold_constants::run,
        in_subgraphs: true,
        scope: Scope::Everywhere,
    },
    Pass {
        name: "fold-shapes",
        summary: "replaces shape arithmetic whose result is known by constants",
        run: fold_shapes::run,
        in_subgraphs: false,
        scope: Scope::Everywhere,
    },
    Pass {
        name: "inline-if",
        summary: "replaces an If with a constant condition by the branch that is taken",
        run: inline_if::run,
        in_subgraphs: true,
        scope: Scope::Everywhere,
    },
    Pass {
        name: "remove-identity",
        summary: "removes nodes that only pass their input on",
        run: remove_identity::run,
        in_subgraphs: true,
        scope: Scope::Everywhere,
    },
    Pass {
        name: "fuse-activations",
        summary: "recognises HardSwish, Silu and Gelu that are spelt out in smaller operators",
        run: fuse_activations::run,
        in_subgraphs: true,
        scope: Scope::Segments,
    },
    Pass {
        name: "qdq",
        summary: "multiplies quantised numbers as integers, not as the floats they stand for",
        run: qdq::run,
        in_subgraphs: true,
        scope: Scope::Segments,
    },
    Pass {
        name: "fold-weights",
        summary: "computes the floats of constant weights that no integer product took",
        run: fold_constants::run_all,
        in_subgraphs: true,
        scope: Scope::Segments,
    },
    Pass {
        name: "fuse-conv",
        summary: "folds scales, offsets, residuals and activations into the convolution before",
        run: fuse_conv::run,
        in_subgraphs: true,
        scope: Scope::Segments,
    },
    Pass {
        name: "fuse-matmul",
        summary: "folds scales, biases, residuals and activations into the product before",
        run: fuse_matmul::run,
        in_subgraphs: true,
        scope: Scope::Segments,
    },
    Pass {
        name: "blocked-layout",
        summary: "keeps values between convolutions in blocks of 8 channels",
        run: blocked_layout::run,
        in_subgraphs: true,
        scope: Scope::Cpu,
    },
];

/// What `fold-constants` is where weights stay what they are in their file.
static FOLD_SMALL: Pass = Pass {
    name: "fold-constants",
    summary: "computes nodes whose inputs are all constant, but for large ones over weights",
    run: fold_constants::run_small,
    in_subgraphs: true,
    scope: Scope::Everywhere,
};

/// How many changes each pass made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PassReport {
    /// Name of the pass and number of changes, in the order of the list.
    pub changes: Vec<(&'static str, usize)>,
}

/// Rounds after which the passes stop even if something still changes.
const ROUNDS: usize = 12;

/// Checks that every operator can be run, infers facts and runs the passes to a fixpoint.
///
/// # Errors
/// If something cannot be run (everything that cannot is listed), the graph contradicts itself,
/// or an unknown pass is named in `options`.
pub fn optimise(
    graph: &mut Graph,
    registry: &OpRegistry,
    options: &CompileOptions,
) -> Result<PassReport> {
    run(graph, registry, options, Scope::Everywhere)
}

/// As [`optimise`], for a segment that stays whole: also runs the passes that merge nodes.
///
/// # Errors
/// As [`optimise`].
pub fn optimise_segment(
    graph: &mut Graph,
    registry: &OpRegistry,
    options: &CompileOptions,
) -> Result<PassReport> {
    run(graph, registry, options, Scope::Segments)
}

/// As [`optimise_segment`], for a segment that the CPU's kernels run: also chooses the layout of
/// its values.
///
/// # Errors
/// As [`optimise`].
pub fn optimise_cpu_segment(
    graph: &mut Graph,
    registry: &OpRegistry,
    options: &CompileOptions,
) -> Result<PassReport> {
    run(graph, registry, options, Scope::Cpu)
}

fn run(
    graph: &mut Graph,
    registry: &OpRegistry,
    options: &CompileOptions,
    scope: Scope,
) -> Result<PassReport> {
    for name in &options.disabled_passes {
        if !PASSES.iter().any(|p| p.name == name) {
            let names: Vec<_> = PASSES.iter().map(|p| p.name).collect();
            bail!(Usage, "no pass is called `{name}`; the passes are {}", names.join(", "));
        }
    }
    graph.validate()?;
    registry.check(graph)?;
    let passes: Vec<&Pass> = PASSES
        .iter()
        .filter(|p| p.scope <= scope)
        .filter(|p| !options.disabled_passes.iter().any(|d| d == p.name))
        .map(|p| {
            let keep = options.keep_weights && scope == Scope::Everywhere;
            if keep && p.name == FOLD_SMALL.name { &FOLD_SMALL } else { p }
        })
        .collect();
    let mut report = PassReport { changes: passes.iter().map(|p| (p.name, 0)).collect() };
    let mut known = infer_graph(graph, registry)?;
    if graph.compact() {
        known = infer_graph(graph, registry)?;
    }
    let mut round = |graph: &mut Graph, last: bool| -> Result<usize> {
        let mut changed = 0;
        for (pass, (_, count)) in passes.iter().zip(&mut report.changes) {
            if last != (pass.scope == Scope::Cpu) {
                continue;
            }
            let n = apply(pass, graph, &known, registry)?;
            *count += n;
            changed += n;
            if n > 0 {
                graph.compact();
                known = infer_graph(graph, registry)?;
            }
        }
        Ok(changed)
    };
    for _ in 0..ROUNDS {
        if round(graph, false)? == 0 {
            break;
        }
    }
    // Dtypes are known only now.
    registry.check(graph)?;
    round(graph, true)?;
    graph.validate()?;
    Ok(report)
}

fn apply(pass: &Pass, graph: &mut Graph, known: &[Known], registry: &OpRegistry) -> Result<usize> {
    let mut changes = (pass.run)(graph, known, registry)?;
    if pass.in_subgraphs {
        for node in &mut graph.nodes {
            changes += apply_in_subgraphs(pass, node, registry)?;
        }
    }
    Ok(changes)
}

fn apply_in_subgraphs(pass: &Pass, node: &mut Node, registry: &OpRegistry) -> Result<usize> {
    let mut changes = 0;
    for sub in node.subgraphs_mut() {
        let known: Vec<Known> = sub
            .values()
            .iter()
            .map(|v| {
                v.constant.as_ref().map_or_else(|| Known::fact(v.fact.clone()), Known::constant)
            })
            .collect();
        let n = apply(pass, sub, &known, registry)?;
        if n > 0 {
            sub.compact();
        }
        changes += n;
    }
    Ok(changes)
}

/// Makes an output of a node a constant: the node no longer makes it.
fn become_constant(graph: &mut Graph, node: usize, output: usize, tensor: crate::tensor::Tensor) {
    if let Some(v) = graph.nodes[node].outputs[output].take() {
        let info = graph.value_mut(v);
        info.fact = crate::graph::Fact::of(&tensor);
        info.constant = Some(tensor);
    }
}
