//! Replaces shape arithmetic whose result is known by constants.

use super::become_constant;
use crate::error::Result;
use crate::graph::{Dim, Graph};
use crate::ops::OpRegistry;
use crate::ops::infer::Known;
use crate::tensor::{Tensor, cast};

pub(super) fn run(graph: &mut Graph, known: &[Known], _: &OpRegistry) -> Result<usize> {
    let mut changes = 0;
    for i in 0..graph.nodes.len() {
        for port in 0..graph.nodes[i].outputs.len() {
            let Some(v) = graph.nodes[i].outputs[port] else { continue };
            if let Some(tensor) = constant(&known[v.index()])? {
                become_constant(graph, i, port, tensor);
                changes += 1;
            }
        }
    }
    Ok(changes)
}

fn constant(known: &Known) -> Result<Option<Tensor>> {
    if let Some(t) = &known.constant {
        return Ok(Some(t.clone()));
    }
    let (Some(dtype), Some(elements)) = (known.fact.dtype, &known.elements) else {
        return Ok(None);
    };
    let Some(numbers) = elements.iter().map(Dim::as_fixed).collect::<Option<Vec<i64>>>() else {
        return Ok(None);
    };
    let shape = match known.fact.rank() {
        Some(0) if numbers.len() == 1 => Vec::new(),
        Some(1) => vec![numbers.len()],
        _ => return Ok(None),
    };
    Ok(Some(cast(&Tensor::new(shape, numbers)?, dtype)?))
}
