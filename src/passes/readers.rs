//! What fusing passes ask of a graph.

use crate::error::Result;
use crate::graph::{Attribute, Graph, Node, ValueId};
use crate::ops::infer::Known;
use crate::tensor::{DType, Tensor};

/// Who reads each value. It stays right while nodes are fused: a fused node takes the place of
/// the last one that went into it.
#[derive(Debug)]
pub(super) struct Readers(Vec<Vec<usize>>);

impl Readers {
    pub(super) fn new(graph: &Graph) -> Self {
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); graph.values.len()];
        for (i, node) in graph.nodes.iter().enumerate() {
            for v in node.reads() {
                readers[v.index()].push(i);
            }
        }
        // What is an output is read from outside too.
        for v in &graph.outputs {
            readers[v.index()].push(usize::MAX);
        }
        Self(readers)
    }

    /// The nodes that read `v`, one entry for each input; `usize::MAX` stands for the outside.
    pub(super) fn of(&self, v: ValueId) -> &[usize] {
        self.0.get(v.index()).map_or(&[], Vec::as_slice)
    }

    /// The node that alone reads `v`, once.
    pub(super) fn sole(&self, v: ValueId) -> Option<usize> {
        match self.of(v) {
            [one] if *one != usize::MAX => Some(*one),
            _ => None,
        }
    }
}

/// The node's only output, if it has no other.
pub(super) fn output(node: &Node) -> Option<ValueId> {
    let mut made = node.makes();
    let first = made.next()?;
    (made.next().is_none() && node.outputs.first() == Some(&Some(first))).then_some(first)
}

/// Whether it is this operator of ai.onnx, with operands that are broadcast as since operator
/// set 7.
pub(super) fn is(node: &Node, op: &str) -> bool {
    node.op == op && node.domain.is_empty() && !node.attributes.contains_key("broadcast")
}

/// The input's constant contents as f32.
pub(super) fn constant(graph: &Graph, v: Option<ValueId>) -> Option<&Tensor> {
    graph.value(v?).constant.as_ref().filter(|t| t.dtype() == DType::F32)
}

/// The only element of a constant f32.
pub(super) fn scalar(graph: &Graph, v: Option<ValueId>) -> Option<f32> {
    match constant(graph, v)?.as_slice::<f32>().ok()? {
        [x] => Some(*x),
        _ => None,
    }
}

/// For a node with two inputs, the one that is not `v`.
pub(super) fn other(node: &Node, v: ValueId) -> Option<ValueId> {
    match node.inputs[..] {
        [Some(a), Some(b)] if a == v && b != v => Some(b),
        [Some(a), Some(b)] if b == v && a != v => Some(a),
        _ => None,
    }
}

/// Whether both values are f32 of one and the same known shape.
pub(super) fn same_f32(known: &[Known], a: ValueId, b: ValueId) -> bool {
    let fact = |v: ValueId| known.get(v.index()).map(|k| &k.fact);
    match (fact(a), fact(b)) {
        (Some(a), Some(b)) => {
            a.dtype == Some(DType::F32)
                && a.dtype == b.dtype
                && a.shape.is_some()
                && a.shape == b.shape
        }
        _ => false,
    }
}

/// The activation of a fused node that this node is, with its numbers.
pub(super) fn activation(graph: &Graph, node: &Node) -> Option<(&'static str, Vec<f32>)> {
    let float = |name: &str, default: f32| node.float_or(name, default).ok();
    if node.op == "Silu" && node.domain == "brigade" {
        return Some(("Silu", Vec::new()));
    }
    if !node.domain.is_empty() {
        return None;
    }
    Some(match node.op.as_str() {
        "Relu" => ("Relu", Vec::new()),
        "HardSwish" => ("HardSwish", Vec::new()),
        "Sigmoid" => ("Sigmoid", Vec::new()),
        "Tanh" => ("Tanh", Vec::new()),
        "HardSigmoid" => ("HardSigmoid", vec![float("alpha", 0.2)?, float("beta", 0.5)?]),
        "Gelu" if matches!(node.string("approximate"), Ok(None | Some("none"))) => {
            ("Gelu", Vec::new())
        }
        "Clip" if node.version < 11 => {
            ("Clip", vec![float("min", f32::MIN)?, float("max", f32::MAX)?])
        }
        "Clip" => {
            let bound = |i: usize, default: f32| match node.inputs.get(i).copied().flatten() {
                None => Some(default),
                v => scalar(graph, v),
            };
            ("Clip", vec![bound(1, f32::NEG_INFINITY)?, bound(2, f32::INFINITY)?])
        }
        _ => return None,
    })
}

/// Makes `slot`'s node the one at `last`, whose output it makes from now on.
pub(super) fn absorb(graph: &mut Graph, slot: usize, last: usize, fused: Node) {
    let mut outputs = std::mem::take(&mut graph.nodes[last].outputs);
    outputs.truncate(1);
    graph.nodes[slot].outputs = vec![None];
    graph.nodes[last] = Node { outputs, ..fused };
    graph.opsets.entry("brigade".to_owned()).or_insert(1);
}

/// Turns a copy of the node into one of the domain `brigade`.
pub(super) fn fused(node: &Node, op: &str) -> Node {
    Node { op: op.to_owned(), domain: "brigade".to_owned(), version: 1, ..node.clone() }
}

/// Gives a fused node its activation.
pub(super) fn set_activation(node: &mut Node, (name, numbers): (&'static str, Vec<f32>)) {
    node.attributes.insert("activation".to_owned(), Attribute::from(name));
    if !numbers.is_empty() {
        node.attributes.insert("activation_params".to_owned(), Attribute::Floats(numbers));
    }
}

/// Adds a constant whose name says what it is for.
pub(super) fn add_constant(graph: &mut Graph, name: &str, tensor: Tensor) -> Result<ValueId> {
    graph.add_constant(free_name(graph, name), tensor)
}

/// This name, or one like it that no value has.
pub(super) fn free_name(graph: &Graph, name: &str) -> String {
    let mut unique = name.to_owned();
    let mut n = 1;
    while graph.find(&unique).is_some() {
        n += 1;
        unique = format!("{name}#{n}");
    }
    unique
}

/// Puts an input in a place behind the last one too.
pub(super) fn set_input(node: &mut Node, i: usize, v: ValueId) {
    if node.inputs.len() <= i {
        node.inputs.resize(i + 1, None);
    }
    node.inputs[i] = Some(v);
}

/// Whether the input is given.
pub(super) fn has(node: &Node, i: usize) -> bool {
    node.inputs.get(i).copied().flatten().is_some()
}
