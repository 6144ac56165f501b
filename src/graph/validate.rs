//! Whether a graph is well formed.

use std::collections::{HashMap, HashSet};

use super::{Graph, NodeId};
use crate::error::{Result, bail};

impl Graph {
    /// Checks that ids are in range, names are unique, each value is made once and each node
    /// reads only what exists before it; in subgraphs too.
    ///
    /// # Errors
    /// The first fault, by the names of the node and the value.
    pub fn validate(&self) -> Result<()> {
        let mut names = HashMap::new();
        for (i, v) in self.values.iter().enumerate() {
            if names.insert(v.name.as_str(), i).is_some() {
                bail!(Duplicate, "graph `{}` has two values named `{}`", self.name, v.name);
            }
        }
        let mut node_names = HashSet::new();
        let mut ready: Vec<bool> =
            self.values.iter().map(|v| v.constant.is_some() || v.param).collect();
        for v in self.inputs.iter().chain(&self.outputs) {
            if v.index() >= self.values.len() {
                bail!(Graph, "graph `{}` names a value that it does not have", self.name);
            }
        }
        for v in &self.inputs {
            ready[v.index()] = true;
        }
        for node in &self.nodes {
            let at = |e: crate::Error| e.with_node(&node.name, &node.op);
            if !node_names.insert(node.name.as_str()) {
                bail!(Duplicate, "graph `{}` has two nodes named `{}`", self.name, node.name);
            }
            for v in node.reads().chain(node.makes()) {
                if v.index() >= self.values.len() {
                    bail!(Graph, "node `{}` names a value that does not exist", node.name);
                }
            }
            for v in node.reads() {
                if !ready[v.index()] {
                    let name = &self.values[v.index()].name;
                    let made = self.producers()[v.index()].is_some();
                    let why = if made {
                        "is made by a later node or by itself (a cycle, or \
                        nodes out of order)"
                    } else {
                        "is made by no node, and is neither an \
                        input nor a constant"
                    };
                    bail!(Graph, "node `{}` ({}) reads `{name}`, which {why}", node.name, node.op);
                }
            }
            for v in node.makes() {
                if std::mem::replace(&mut ready[v.index()], true) {
                    let name = &self.values[v.index()].name;
                    bail!(
                        Duplicate,
                        "`{name}` is made twice; the second time by node `{}`",
                        node.name
                    );
                }
            }
            if node.captures > node.inputs.len() {
                bail!(Graph, "node `{}` captures more than it reads", node.name);
            }
            for (key, sub) in node.subgraphs() {
                if sub.inputs.len() < node.captures {
                    bail!(Graph, "subgraph `{key}` of node `{}` lacks captured inputs", node.name);
                }
                sub.validate().map_err(at)?;
            }
        }
        for v in &self.outputs {
            if !ready[v.index()] {
                let name = &self.values[v.index()].name;
                bail!(Graph, "output `{name}` of graph `{}` is made by no node", self.name);
            }
        }
        Ok(())
    }

    /// Puts the nodes into a topological order, keeping theirs where it is one already.
    /// Returns whether anything moved.
    ///
    /// # Errors
    /// If the nodes form a cycle; it names one node on it.
    pub fn sort(&mut self) -> Result<bool> {
        let producers = self.producers();
        let mut missing: Vec<usize> = Vec::with_capacity(self.nodes.len());
        let mut waiting: HashMap<usize, Vec<usize>> = HashMap::new();
        for (i, node) in self.nodes.iter().enumerate() {
            let mut sources: Vec<usize> = node
                .reads()
                .filter_map(|v| producers.get(v.index()).copied().flatten())
                .map(NodeId::index)
                .collect();
            sources.sort_unstable();
            sources.dedup();
            missing.push(sources.len());
            for s in sources {
                waiting.entry(s).or_default().push(i);
            }
        }
        let mut ready: std::collections::BTreeSet<usize> =
            (0..missing.len()).filter(|i| missing[*i] == 0).collect();
        let mut order = Vec::with_capacity(missing.len());
        while let Some(i) = ready.pop_first() {
            order.push(i);
            for &w in waiting.get(&i).into_iter().flatten() {
                missing[w] -= 1;
                if missing[w] == 0 {
                    ready.insert(w);
                }
            }
        }
        if order.len() < self.nodes.len() {
            let stuck = (0..missing.len()).find(|i| missing[*i] > 0).unwrap_or(0);
            let node = &self.nodes[stuck];
            bail!(
                Graph,
                "the nodes of graph `{}` form a cycle through `{}` ({})",
                self.name,
                node.name,
                node.op
            );
        }
        let moved = order.iter().enumerate().any(|(i, o)| i != *o);
        if moved {
            let mut old: Vec<_> = std::mem::take(&mut self.nodes).into_iter().map(Some).collect();
            self.nodes = order.into_iter().filter_map(|i| old[i].take()).collect();
        }
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Fact;
    use super::*;
    use crate::ErrorKind;

    fn chain() -> Graph {
        let mut g = Graph::new("chain");
        let x = g.add_input("x", Fact::unknown()).unwrap();
        let a = g.add_value("a", Fact::unknown()).unwrap();
        let b = g.add_value("b", Fact::unknown()).unwrap();
        g.add_node("second", "Relu", [Some(a)], [Some(b)]);
        g.add_node("first", "Relu", [Some(x)], [Some(a)]);
        g.set_outputs([b]);
        g
    }

    #[test]
    fn out_of_order_is_named_and_sorted() {
        let mut g = chain();
        let error = g.validate().unwrap_err();
        assert!(error.message().contains("`second`") && error.message().contains("`a`"), "{error}");
        assert!(g.sort().unwrap());
        g.validate().unwrap();
        assert!(!g.sort().unwrap());
    }

    #[test]
    fn cycles_and_dangling_values_are_errors() {
        let mut g = chain();
        g.nodes[1].inputs[0] = g.find("b");
        assert_eq!(g.sort().unwrap_err().kind(), ErrorKind::Graph);
        let mut g = chain();
        g.nodes.pop();
        let error = g.validate().unwrap_err();
        assert!(error.message().contains("made by no node"), "{error}");
    }

    #[test]
    fn compacting_keeps_the_interface() {
        let mut g = chain();
        g.sort().unwrap();
        g.add_constant("unused", crate::Tensor::scalar(1.0_f32)).unwrap();
        let c = g.add_value("c", Fact::unknown()).unwrap();
        let b = g.find("b");
        g.add_node("third", "Relu", [b], [Some(c)]);
        g.compact();
        g.validate().unwrap();
        assert_eq!((g.nodes().len(), g.values().len()), (2, 3));
    }
}
