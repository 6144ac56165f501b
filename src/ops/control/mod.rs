//! Control flow over subgraphs.

mod branch;
mod each;
mod repeat;
mod scan;
#[cfg(test)]
mod tests;

use super::batch::{BatchFlow, BatchQuery};
use super::infer::Known;
use super::{Infer, Prepare, Program};
use crate::error::{Result, bail};
use crate::graph::Graph;

pub(super) use branch::IF;
pub(super) use each::SEQUENCE_MAP;
pub(super) use repeat::LOOP;
pub(super) use scan::SCAN;

/// A subgraph, which must have at least as many outputs as are needed.
fn compiled(p: &Prepare<'_>, name: &str, outputs: usize) -> Result<Program> {
    let program = p.subgraph(name)?;
    let made = program.output_names().count();
    if made < outputs {
        bail!(Graph, "subgraph `{name}` has {made} outputs, {outputs} are needed");
    }
    Ok(program)
}

fn free_only(q: &BatchQuery<'_>) -> BatchFlow {
    if q.is_free() {
        q.everywhere(None)
    } else {
        Err("it runs a subgraph, through which the batch is not followed".to_owned())
    }
}

fn captured(i: &Infer<'_>) -> Vec<Known> {
    let all = i.input_count();
    let first = all - i.node.captures.min(all);
    (first..all).map(|k| i.known(k).cloned().unwrap_or_default()).collect()
}

/// A graph for a case; a graph without outputs, which no case passes with, if it fails.
fn built(build: impl FnOnce(&mut Graph) -> Result<()>) -> Graph {
    let mut graph = Graph::new("sub");
    match build(&mut graph) {
        Ok(()) => graph,
        Err(_) => Graph::default(),
    }
}
