//! What memory a placed model takes at most while it streams.

use std::collections::HashSet;

use serde::Serialize;

use super::table::bytes;
use crate::graph::Graph;
use crate::partition::{Segmentation, bytes_of};

/// An estimate from the declared facts. What depends on an extent that nobody gave is not known.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Memory {
    /// Constants, as they are stored; kernels may hold repacked copies.
    pub(super) weight_bytes: u64,
    /// The sum over the segments, and their replicas, of the most that is alive in one at a time.
    pub(super) working_bytes: Option<u64>,
    /// Inputs, outputs and boundary tensors of one item.
    pub(super) item_bytes: Option<u64>,
    /// How many items are in flight at most.
    pub(super) in_flight: usize,
    /// All of it: weights + working + in flight × item.
    pub(super) total_bytes: Option<u64>,
}

impl Memory {
    pub(super) fn estimate(
        graph: &Graph,
        split: &Segmentation,
        in_flight: usize,
        replicas: &dyn Fn(usize) -> usize,
        symbols: &dyn Fn(&str) -> Option<i64>,
    ) -> Self {
        let mut shared = HashSet::new();
        let mut weight_bytes = 0_u64;
        for segment in split.segments() {
            let constants = segment.graph.values().iter().filter_map(|v| v.constant.as_ref());
            for tensor in constants {
                if shared.insert(tensor.as_bytes().as_ptr()) {
                    weight_bytes = weight_bytes.saturating_add(tensor.bytes() as u64);
                }
            }
        }
        let working_bytes = split.segments().iter().try_fold(0_u64, |sum, s| {
            sum.checked_add(peak(&s.graph, symbols)?.checked_mul(replicas(s.index) as u64)?)
        });
        let mut seen = HashSet::new();
        let boundary = split
            .edges()
            .iter()
            .filter(|e| seen.insert(e.value.as_str()))
            .try_fold(0_u64, |sum, e| sum.checked_add(bytes_of(&e.fact, symbols)?));
        let ends = graph.inputs().iter().chain(graph.outputs());
        let item_bytes = ends
            .fold(boundary, |sum, v| sum?.checked_add(bytes_of(&graph.value(*v).fact, symbols)?));
        let in_flight_bytes = item_bytes.and_then(|b| b.checked_mul(in_flight as u64));
        let total_bytes = working_bytes
            .zip(in_flight_bytes)
            .and_then(|(w, f)| w.checked_add(f)?.checked_add(weight_bytes));
        Self { weight_bytes, working_bytes, item_bytes, in_flight, total_bytes }
    }
}

/// The most bytes of values that are alive at once while a graph runs, its inputs included.
fn peak(graph: &Graph, symbols: &dyn Fn(&str) -> Option<i64>) -> Option<u64> {
    let size = |v: crate::graph::ValueId| bytes_of(&graph.value(v).fact, symbols);
    let mut last = vec![None; graph.values().len()];
    for (at, node) in graph.nodes().iter().enumerate() {
        for v in node.reads() {
            last[v.index()] = Some(at);
        }
    }
    for v in graph.outputs() {
        last[v.index()] = Some(usize::MAX);
    }
    let mut alive = 0_u64;
    for v in graph.inputs() {
        alive = alive.checked_add(size(*v)?)?;
    }
    let mut most = alive;
    for (at, node) in graph.nodes().iter().enumerate() {
        for v in node.makes() {
            alive = alive.checked_add(size(v)?)?;
        }
        most = most.max(alive);
        let mut gone = HashSet::new();
        let read = node.reads().filter(|v| last[v.index()] == Some(at));
        for v in read.chain(node.makes().filter(|v| last[v.index()].is_none())) {
            if graph.value(v).constant.is_none() && !graph.value(v).param && gone.insert(v) {
                alive = alive.saturating_sub(size(v)?);
            }
        }
    }
    Some(most)
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "memory: about {} = weights {} + working buffers {} + {} in flight × {}",
            bytes(self.total_bytes),
            bytes(Some(self.weight_bytes)),
            bytes(self.working_bytes),
            self.in_flight,
            bytes(self.item_bytes),
        )?;
        if self.total_bytes.is_none() {
            write!(f, " (give --shape NAME=… to know the rest)")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;
    use crate::graph::{Dim, Fact};
    use crate::partition::DeviceMap;

    #[test]
    fn buffers_count_while_they_are_read() {
        let mut g = Graph::new("g");
        let fact = Fact::new(DType::F32, [Dim::symbol("N"), Dim::fixed(64)]);
        let mut last = g.add_input("x", fact.clone()).unwrap();
        for i in 0..4 {
            let next = g.add_value(format!("v{i}"), fact.clone()).unwrap();
            g.add_node(format!("n{i}"), "Relu", [Some(last)], [Some(next)]);
            last = next;
        }
        g.set_outputs([last]);
        let split = Segmentation::new(&g, &DeviceMap::single("cpu".parse().unwrap())).unwrap();
        let memory = Memory::estimate(&g, &split, 3, &|_| 1, &|_| Some(2));
        // One value is 512 bytes; two are alive at a time; an item is its input and its output.
        assert_eq!(memory.working_bytes, Some(1024));
        assert_eq!(memory.item_bytes, Some(1024));
        assert_eq!(memory.total_bytes, Some(4096));
        // Replicas have working buffers of their own, and the weights together.
        let twice = Memory::estimate(&g, &split, 3, &|_| 2, &|_| Some(2));
        assert_eq!(twice.working_bytes, memory.working_bytes.map(|bytes| 2 * bytes));
        assert_eq!(twice.weight_bytes, memory.weight_bytes);
        let unknown = Memory::estimate(&g, &split, 3, &|_| 1, &|_| None);
        assert_eq!(unknown.total_bytes, None);
        assert!(unknown.to_string().contains("--shape"));
    }
}
