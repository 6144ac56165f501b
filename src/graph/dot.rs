//! The graph as a picture.

use std::fmt::Write as _;

use super::Graph;

impl Graph {
    /// The graph in Graphviz's DOT language; `colour` gives each node a group (its device, say),
    /// by index.
    pub fn to_dot(&self, group: &dyn Fn(usize) -> Option<String>) -> String {
        let quote = |s: &str| format!("\"{}\"", s.replace('\\', "\\\\").replace('"', "\\\""));
        let mut out = String::new();
        let _ = writeln!(out, "digraph {} {{\n  node [shape=box];", quote(&self.name));
        for id in &self.inputs {
            let v = self.value(*id);
            let label = quote(&format!("{}\n{}", v.name, v.fact)).replace('\n', "\\n");
            let _ = writeln!(out, "  v{} [shape=ellipse,label={label}];", id.0);
        }
        for (i, n) in self.nodes.iter().enumerate() {
            let mut label = format!("{}\n{}", n.op, n.name);
            if let Some(g) = group(i) {
                label = format!("{label}\n{g}");
            }
            let _ = writeln!(out, "  n{i} [label={}];", quote(&label).replace('\n', "\\n"));
        }
        let producers = self.producers();
        for (i, n) in self.nodes.iter().enumerate() {
            for v in n.reads() {
                let info = self.value(v);
                let label = quote(&info.fact.to_string());
                match producers[v.index()] {
                    Some(p) => {
                        let _ = writeln!(out, "  n{} -> n{i} [label={label}];", p.0);
                    }
                    None if info.constant.is_none() => {
                        let _ = writeln!(out, "  v{} -> n{i};", v.0);
                    }
                    None => {}
                }
            }
        }
        for id in &self.outputs {
            if let Some(p) = producers[id.index()] {
                let name = quote(&self.value(*id).name);
                let _ = writeln!(out, "  o{} [shape=ellipse,label={name}];", id.0);
                let _ = writeln!(out, "  n{} -> o{};", p.0, id.0);
            }
        }
        out.push_str("}\n");
        out
    }
}
