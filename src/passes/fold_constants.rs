//! Computes nodes whose inputs are all constant, but for those that draw random numbers.

use super::become_constant;
use super::qdq::Takers;
use crate::error::Result;
use crate::graph::{Fact, Graph};
use crate::ops::infer::Known;
use crate::ops::{CompileOptions, OpRegistry, Program, RunContext};
use crate::tensor::{BufferPool, Tensor, Value};

/// Outputs above this size are folded only while they are not much larger than the inputs.
const LARGE_BYTES: usize = 1 << 20;
const LARGEST_GROWTH: usize = 4;

/// All but the weights that integer products take ([`super::qdq`]).
pub(super) fn run(graph: &mut Graph, _: &[Known], registry: &OpRegistry) -> Result<usize> {
    fold(graph, registry, true)
}

/// Every such node.
pub(super) fn run_all(graph: &mut Graph, _: &[Known], registry: &OpRegistry) -> Result<usize> {
    fold(graph, registry, false)
}

fn fold(graph: &mut Graph, registry: &OpRegistry, keep_weights: bool) -> Result<usize> {
    let context = RunContext { pool: BufferPool::new(0), ..RunContext::default() };
    let takers = keep_weights.then(|| Takers::new(graph));
    let mut changes = 0;
    for i in 0..graph.nodes.len() {
        let node = &graph.nodes[i];
        let constant = |v: &crate::graph::ValueId| graph.value(*v).constant.is_some();
        let foldable = node.makes().next().is_some()
            && !node.is_random()
            && node.inputs.iter().flatten().all(constant)
            && (node.inputs.iter().flatten().next().is_some() || node.op == "Constant");
        if !foldable || takers.as_ref().is_some_and(|t| t.keep(graph, node)) {
            continue;
        }
        let mut single = Graph::new("constant");
        single.opsets.clone_from(&graph.opsets);
        let mut copy = node.clone();
        let mut input_bytes = 0;
        for v in copy.inputs.iter_mut().flatten() {
            if let Some(t) = graph.value(*v).constant.clone() {
                input_bytes += t.bytes();
                *v = match single.find(&graph.value(*v).name) {
                    Some(known) => known,
                    None => single.add_constant(graph.value(*v).name.clone(), t)?,
                };
            }
        }
        let mut outputs = Vec::new();
        for (port, v) in copy.outputs.iter_mut().enumerate() {
            if let Some(v) = v {
                let name = format!("{}#out", graph.value(*v).name);
                *v = single.add_value(name, Fact::unknown())?;
                outputs.push((port, *v));
            }
        }
        single.nodes.push(copy);
        single.set_outputs(outputs.iter().map(|(_, v)| *v));
        crate::ops::infer_graph(&mut single, registry)?;
        if too_large(&single, input_bytes) {
            continue;
        }
        let program = Program::compile(&single, registry, &CompileOptions::default())?;
        let values = program.run(Vec::new(), &context)?;
        let tensors: Option<Vec<Tensor>> = values
            .into_iter()
            .map(|v| match v {
                Value::Tensor(t) => Some(t),
                _ => None,
            })
            .collect();
        let Some(tensors) = tensors else { continue };
        for ((port, _), t) in outputs.into_iter().zip(tensors) {
            become_constant(graph, i, port, t);
            changes += 1;
        }
    }
    Ok(changes)
}

fn too_large(single: &Graph, input_bytes: usize) -> bool {
    let bytes: usize = single
        .outputs()
        .iter()
        .filter_map(|v| {
            let fact = &single.value(*v).fact;
            let count = fact.concrete_shape()?.iter().try_fold(1usize, |a, d| a.checked_mul(*d))?;
            Some(count.saturating_mul(fact.dtype?.size()))
        })
        .fold(0, usize::saturating_add);
    bytes > LARGE_BYTES && bytes > input_bytes.saturating_mul(LARGEST_GROWTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_of_constants_becomes_one() {
        let registry = OpRegistry::default();
        let mut g = Graph::new("g");
        let c = g.add_constant("c", Tensor::of_i64(&[3])).unwrap();
        let a = g.add_value("a", Fact::unknown()).unwrap();
        let b = g.add_value("b", Fact::unknown()).unwrap();
        g.add_node("i", "Identity", [Some(c)], [Some(a)]);
        g.add_node("j", "Identity", [Some(a)], [Some(b)]);
        g.set_outputs([b]);
        assert_eq!(run(&mut g, &[], &registry).unwrap(), 2);
        g.compact();
        assert!(g.nodes().is_empty());
        let out = g.outputs()[0];
        assert_eq!(g.value(out).constant, Some(Tensor::of_i64(&[3])));
    }
}
