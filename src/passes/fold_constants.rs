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

/// What is computed from more bytes than this is made of weights.
const WEIGHT_BYTES: usize = 4 << 10;

/// Which nodes are left alone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Keep {
    Nothing,
    /// The weights that integer products take.
    Quantised,
    /// These, and whatever is large and computed from weights.
    Large,
}

/// All but the weights that integer products take ([`super::qdq`]).
pub(super) fn run(graph: &mut Graph, _: &[Known], registry: &OpRegistry) -> Result<usize> {
    fold(graph, registry, Keep::Quantised)
}

/// Every such node.
pub(super) fn run_all(graph: &mut Graph, _: &[Known], registry: &OpRegistry) -> Result<usize> {
    fold(graph, registry, Keep::Nothing)
}

/// All but weights, and what is large and computed from them: each segment computes that itself.
pub(super) fn run_small(graph: &mut Graph, _: &[Known], registry: &OpRegistry) -> Result<usize> {
    fold(graph, registry, Keep::Large)
}

fn fold(graph: &mut Graph, registry: &OpRegistry, keep: Keep) -> Result<usize> {
    let context = RunContext { pool: BufferPool::of_weights(), ..RunContext::default() };
    let takers = (keep != Keep::Nothing).then(|| Takers::new(graph));
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
        let of_weights = keep == Keep::Large && input_bytes > WEIGHT_BYTES;
        if too_large(&single, input_bytes) || (of_weights && output_bytes(&single) > WEIGHT_BYTES) {
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

fn output_bytes(single: &Graph) -> usize {
    single
        .outputs()
        .iter()
        .filter_map(|v| {
            let fact = &single.value(*v).fact;
            let count = fact.concrete_shape()?.iter().try_fold(1usize, |a, d| a.checked_mul(*d))?;
            Some(count.saturating_mul(fact.dtype?.size()))
        })
        .fold(0, usize::saturating_add)
}

fn too_large(single: &Graph, input_bytes: usize) -> bool {
    let bytes = output_bytes(single);
    bytes > LARGE_BYTES && bytes > input_bytes.saturating_mul(LARGEST_GROWTH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_may_stay_what_they_are() {
        let registry = OpRegistry::default();
        let graph = |extent: usize| {
            let mut g = Graph::new("g");
            let c = g.add_constant("c", Tensor::of_i64(&vec![3; extent])).unwrap();
            let a = g.add_value("a", Fact::unknown()).unwrap();
            g.add_node("n", "Neg", [Some(c)], [Some(a)]);
            g.set_outputs([a]);
            g
        };
        for (extent, folded) in [(8, 1), (512, 1), (513, 0)] {
            assert_eq!(run_small(&mut graph(extent), &[], &registry).unwrap(), folded, "{extent}");
            assert_eq!(run(&mut graph(extent), &[], &registry).unwrap(), 1);
        }
    }

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
