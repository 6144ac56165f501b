//! Gives subgraphs the constants that they capture, and drops captures that nothing uses.

use crate::error::Result;
use crate::graph::{Graph, Node};
use crate::ops::OpRegistry;
use crate::ops::infer::Known;
use crate::tensor::Tensor;

pub(super) fn run(graph: &mut Graph, _: &[Known], _: &OpRegistry) -> Result<usize> {
    let mut changes = 0;
    let constants: Vec<Option<Tensor>> = graph.values.iter().map(|v| v.constant.clone()).collect();
    for node in &mut graph.nodes {
        let first = node.inputs.len() - node.captures;
        for port in (first..node.inputs.len()).rev() {
            let constant =
                node.inputs[port].and_then(|v| constants.get(v.index()).cloned().flatten());
            let from_end = node.inputs.len() - port;
            if let Some(tensor) = &constant {
                for sub in node.subgraphs_mut() {
                    let v = sub.inputs[sub.inputs.len() - from_end];
                    let info = sub.value_mut(v);
                    info.fact = crate::graph::Fact::of(tensor);
                    info.constant = Some(tensor.clone());
                }
            }
            if constant.is_some() || !is_used(node, from_end) {
                for sub in node.subgraphs_mut() {
                    let at = sub.inputs.len() - from_end;
                    sub.inputs.remove(at);
                }
                node.inputs.remove(port);
                node.captures -= 1;
                changes += 1;
            }
        }
    }
    Ok(changes)
}

fn is_used(node: &Node, from_end: usize) -> bool {
    node.subgraphs().any(|(_, sub)| {
        let v = sub.inputs()[sub.inputs().len() - from_end];
        sub.outputs().contains(&v) || sub.nodes().iter().any(|n| n.reads().any(|r| r == v))
    })
}
