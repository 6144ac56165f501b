//! Replaces shape arithmetic whose result is known by constants.

use super::become_constant;
use crate::error::Result;
use crate::graph::Graph;
use crate::ops::OpRegistry;
use crate::ops::infer::Known;

pub(super) fn run(graph: &mut Graph, known: &[Known], _: &OpRegistry) -> Result<usize> {
    let mut changes = 0;
    for i in 0..graph.nodes.len() {
        for port in 0..graph.nodes[i].outputs.len() {
            let Some(v) = graph.nodes[i].outputs[port] else { continue };
            if let Some(tensor) = known[v.index()].value()? {
                become_constant(graph, i, port, tensor);
                changes += 1;
            }
        }
    }
    Ok(changes)
}
