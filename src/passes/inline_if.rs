//! Replaces an `If` with a constant condition by the branch that is taken.

use std::collections::{HashMap, HashSet};

use crate::error::{Result, bail};
use crate::graph::{Attribute, Graph, Node, ValueId, ValueInfo};
use crate::ops::OpRegistry;
use crate::ops::infer::Known;

pub(super) fn run(graph: &mut Graph, _: &[Known], _: &OpRegistry) -> Result<usize> {
    let mut changes = 0;
    let mut at = 0;
    while at < graph.nodes.len() {
        match taken(graph, &graph.nodes[at])? {
            Some(branch) => {
                inline(graph, at, branch)?;
                changes += 1;
            }
            None => at += 1,
        }
    }
    Ok(changes)
}

/// The name of the branch that a node always takes.
fn taken(graph: &Graph, node: &Node) -> Result<Option<&'static str>> {
    if node.op != "If" || !node.domain.is_empty() {
        return Ok(None);
    }
    let Some(condition) = node.inputs.first().copied().flatten() else { return Ok(None) };
    let Some(tensor) = &graph.value(condition).constant else { return Ok(None) };
    Ok(Some(if tensor.item::<bool>()? { "then_branch" } else { "else_branch" }))
}

fn inline(graph: &mut Graph, at: usize, branch: &str) -> Result<()> {
    let mut node = graph.nodes.remove(at);
    let Some(Attribute::Graph(sub)) = node.attributes.remove(branch) else {
        bail!(Graph, "node `{}` (If) lacks its subgraph `{branch}`", node.name);
    };
    let mut names: HashSet<String> = graph.values.iter().map(|v| v.name.clone()).collect();
    let mut node_names: HashSet<String> = graph.nodes.iter().map(|n| n.name.clone()).collect();
    let mut map: HashMap<ValueId, ValueId> = HashMap::new();
    let captured = node.inputs.len() - node.captures;
    for (inner, outer) in sub.inputs.iter().zip(&node.inputs[captured..]) {
        if let Some(outer) = outer {
            map.insert(*inner, *outer);
        }
    }
    // A value that the branch itself makes becomes the output, which keeps its outer name.
    let made: HashSet<ValueId> = sub.nodes.iter().flat_map(Node::makes).collect();
    let mut copies = Vec::new();
    for (inner, outer) in sub.outputs.iter().zip(&node.outputs) {
        let Some(outer) = outer else { continue };
        if made.contains(inner) && !map.contains_key(inner) {
            map.insert(*inner, *outer);
        } else {
            copies.push((*inner, *outer));
        }
    }
    for (i, info) in sub.values.iter().enumerate() {
        let inner = ValueId(u32::try_from(i).unwrap_or(u32::MAX));
        if let std::collections::hash_map::Entry::Vacant(slot) = map.entry(inner) {
            let name = unique(&mut names, &format!("{}/{}", node.name, info.name));
            slot.insert(graph.push_value(ValueInfo { name, ..info.clone() })?);
        }
    }
    let mut inlined = Vec::new();
    for mut inner in sub.nodes {
        inner.name = unique(&mut node_names, &format!("{}/{}", node.name, inner.name));
        for v in inner.inputs.iter_mut().chain(&mut inner.outputs).flatten() {
            if let Some(outer) = map.get(v) {
                *v = *outer;
            }
        }
        inlined.push(inner);
    }
    for (inner, outer) in copies {
        let from = map.get(&inner).copied();
        let name = unique(&mut node_names, &format!("{}/copy", node.name));
        inlined.push(Node {
            name,
            op: "Identity".to_owned(),
            domain: String::new(),
            version: node.version,
            inputs: vec![from],
            outputs: vec![Some(outer)],
            attributes: std::collections::BTreeMap::new(),
            captures: 0,
        });
    }
    graph.nodes.splice(at..at, inlined);
    Ok(())
}

fn unique(taken: &mut HashSet<String>, wanted: &str) -> String {
    let mut name = wanted.to_owned();
    let mut n = 1;
    while !taken.insert(name.clone()) {
        n += 1;
        name = format!("{wanted}_{n}");
    }
    name
}
