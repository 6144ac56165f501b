//! Removes nodes that only pass their input on: `Identity`, `Cast` to the dtype that is there.

use crate::error::Result;
use crate::graph::{Graph, Node, ValueId};
use crate::ops::OpRegistry;
use crate::ops::infer::Known;

pub(super) fn run(graph: &mut Graph, known: &[Known], _: &OpRegistry) -> Result<usize> {
    let mut changes = 0;
    for i in 0..graph.nodes.len() {
        let Some((from, to)) = passes_on(&graph.nodes[i], known) else { continue };
        if !graph.outputs.contains(&to) {
            graph.replace_uses(to, from);
        } else if !take_over(graph, i, from, to) {
            continue;
        }
        graph.nodes[i].outputs[0] = None;
        changes += 1;
    }
    Ok(changes)
}

fn passes_on(node: &Node, known: &[Known]) -> Option<(ValueId, ValueId)> {
    let from = node.inputs.first().copied().flatten()?;
    let to = node.outputs.first().copied().flatten()?;
    let dtype = |v: ValueId| known.get(v.index()).and_then(|k| k.fact.dtype);
    let same = match node.op.as_str() {
        "Identity" => true,
        "Cast" => dtype(from).is_some() && dtype(from) == dtype(to),
        _ => false,
    };
    (same && node.domain.is_empty()).then_some((from, to))
}

/// Lets the maker of `from` make `to` instead, where `to` is an output and must keep its name.
fn take_over(graph: &mut Graph, identity: usize, from: ValueId, to: ValueId) -> bool {
    let free = !graph.outputs.contains(&from) && !graph.inputs.contains(&from);
    let maker = graph.nodes[..identity].iter().position(|n| n.makes().any(|v| v == from));
    let (true, Some(maker)) = (free, maker) else { return false };
    graph.replace_uses(from, to);
    // The identity itself was renamed too; it goes away.
    for v in graph.nodes[maker].outputs.iter_mut().flatten().filter(|v| **v == from) {
        *v = to;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::Fact;

    #[test]
    fn names_of_outputs_stay() {
        let mut g = Graph::new("g");
        let x = g.add_input("x", Fact::unknown()).unwrap();
        let [a, b, y] = ["a", "b", "y"].map(|n| g.add_value(n, Fact::unknown()).unwrap());
        g.add_node("relu", "Relu", [Some(x)], [Some(a)]);
        g.add_node("first", "Identity", [Some(a)], [Some(b)]);
        g.add_node("second", "Identity", [Some(b)], [Some(y)]);
        g.set_outputs([y]);
        assert_eq!(run(&mut g, &[], &OpRegistry::default()).unwrap(), 2);
        g.compact();
        g.validate().unwrap();
        assert_eq!(g.nodes().len(), 1);
        assert_eq!(g.output_names().collect::<Vec<_>>(), ["y"]);
    }

    #[test]
    fn an_input_that_is_an_output_keeps_its_copy() {
        let mut g = Graph::new("g");
        let x = g.add_input("x", Fact::unknown()).unwrap();
        let y = g.add_value("y", Fact::unknown()).unwrap();
        g.add_node("copy", "Identity", [Some(x)], [Some(y)]);
        g.set_outputs([y]);
        assert_eq!(run(&mut g, &[], &OpRegistry::default()).unwrap(), 0);
    }
}
