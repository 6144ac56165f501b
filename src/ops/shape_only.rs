//! Which values depend on nothing but the shapes of a graph's inputs: the arithmetic that models do
//! on shapes, and what is made of it. Once they are known for some shapes, nodes that make them need
//! not run again.

use std::collections::HashSet;

use super::OpRegistry;
use crate::graph::{Fact, Graph, Node, ValueId};

/// Which nodes make only such values, and which of these values others read.
///
/// It is careful: what an operator of one's own makes, or one with subgraphs, is never among them,
/// nor what depends on a shape that inference may have been wrong about.
#[derive(Debug, Default)]
pub(super) struct ShapeOnly {
    nodes: Vec<bool>,
    kept: Vec<ValueId>,
}

impl ShapeOnly {
    pub(super) fn new(graph: &Graph, registry: &OpRegistry) -> Self {
        let shapes = |v: &ValueId| graph.value(*v).fact.shape.as_deref().unwrap_or_default();
        // What the shapes of the inputs tell.
        let told: HashSet<&str> =
            graph.inputs().iter().flat_map(shapes).filter_map(|d| d.as_symbol()).collect();
        let is_told = |fact: &Fact| {
            let all = fact.shape.as_ref().map(|shape| {
                let mut all = true;
                shape.iter().for_each(|d| d.visit_symbols(&mut |s| all &= told.contains(s)));
                all
            });
            all.unwrap_or(false)
        };
        let mut shape = vec![false; graph.values().len()];
        let mut contents = vec![false; graph.values().len()];
        for (i, info) in graph.values().iter().enumerate() {
            contents[i] = info.constant.is_some();
            shape[i] = contents[i];
        }
        for v in graph.inputs() {
            shape[v.index()] = is_told(&graph.value(*v).fact);
        }
        let mut nodes = Vec::with_capacity(graph.nodes().len());
        for node in graph.nodes() {
            let known = node.captures == 0
                && node.subgraphs().next().is_none()
                && registry.require(node).is_ok_and(|def| !registry.is_added(def));
            // A shape may be made of small whole numbers, whatever inference says of it.
            let telling = |v: ValueId| {
                let fact = &graph.value(v).fact;
                contents[v.index()]
                    || fact.dtype.is_some_and(|d| !d.is_int())
                    || fact.rank().is_some_and(|rank| rank > 1)
            };
            let shaped = known && node.reads().all(|v| shape[v.index()] && telling(v));
            let of_shape = is_shape(node) && node.reads().all(|v| shape[v.index()]);
            let of_contents = node.reads().all(|v| contents[v.index()]);
            let small = node.makes().all(|v| is_small(&graph.value(v).fact));
            let only = known && small && !node.is_random() && (of_shape || of_contents);
            for v in node.makes() {
                contents[v.index()] = only;
                shape[v.index()] = only || (shaped && is_told(&graph.value(v).fact));
            }
            nodes.push(only && node.makes().next().is_some());
        }
        // What others read, or the graph puts out.
        let mut kept = Vec::new();
        let mut seen = HashSet::new();
        let others = graph.nodes().iter().zip(&nodes).filter(|(_, only)| !**only);
        let read = others.flat_map(|(node, _)| node.reads()).chain(graph.outputs().iter().copied());
        for v in read {
            let made = graph.value(v).constant.is_none() && contents[v.index()];
            if made && seen.insert(v) {
                kept.push(v);
            }
        }
        Self { nodes, kept }
    }

    /// Whether this node makes only such values.
    pub(super) fn node(&self, index: usize) -> bool {
        self.nodes[index]
    }

    /// Those that other nodes read, or that the graph puts out.
    pub(super) fn kept(&self) -> &[ValueId] {
        &self.kept
    }
}

/// More elements are not kept from run to run, nor for the length of a run.
const MOST_ELEMENTS: usize = 4096;

/// Whether a value is small whatever the shapes: numbers in a row, as in shape arithmetic, or few of them.
fn is_small(fact: &Fact) -> bool {
    let few = || {
        let extents = fact.concrete_shape()?;
        let count = extents.iter().try_fold(1_usize, |n, e| n.checked_mul(*e))?;
        Some(count <= MOST_ELEMENTS)
    };
    fact.rank().is_some_and(|rank| rank <= 1) && fact.dtype.is_some_and(|d| d.is_int())
        || few().unwrap_or(false)
}

fn is_shape(node: &Node) -> bool {
    node.domain.is_empty() && matches!(node.op.as_str(), "Shape" | "Size")
}
