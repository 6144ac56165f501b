//! Products of quantised numbers that are written as products of floats.
//!
//! A `MatMul` of a `DequantizeLinear` of bytes and of one of a constant matrix of bytes becomes
//! `brigade.QMatMul`, which multiplies the bytes. What follows it goes in: a bias, a
//! `QuantizeLinear`, its `DequantizeLinear`, an activation.

use super::readers::{
    Readers, absorb, activation, constant, fused, has, is, other, output, set_activation, set_input,
};
use crate::error::Result;
use crate::graph::{Attribute, Graph, Node, ValueId};
use crate::ops::OpRegistry;
use crate::ops::infer::Known;
use crate::tensor::{DType, Tensor};

/// Inputs of `brigade.QMatMul`.
const BIAS: usize = 6;
const BETWEEN: usize = 7;
const ADDEND: usize = 9;
const LAST: usize = 10;

pub(super) fn run(graph: &mut Graph, known: &[Known], _: &OpRegistry) -> Result<usize> {
    let producers = Producers::new(graph);
    let mut changes = 0;
    for i in 0..graph.nodes.len() {
        if let Some(node) = product(graph, known, &producers, i) {
            graph.nodes[i] = node;
            graph.opsets.entry("brigade".to_owned()).or_insert(1);
            changes += 1;
        }
    }
    if changes > 0 {
        // Now nothing reads the floats of a `DequantizeLinear` that went into products.
        return Ok(changes);
    }
    let readers = Readers::new(graph);
    for i in 0..graph.nodes.len() {
        let mut slot = i;
        while let Some(next) = follow(graph, known, &readers, slot)? {
            slot = next;
            changes += 1;
        }
    }
    Ok(changes)
}

/// Which node makes each value.
struct Producers(Vec<Option<usize>>);

impl Producers {
    fn new(graph: &Graph) -> Self {
        let mut producers = vec![None; graph.values.len()];
        for (i, node) in graph.nodes.iter().enumerate() {
            for v in node.makes() {
                producers[v.index()] = Some(i);
            }
        }
        Self(producers)
    }

    /// The `DequantizeLinear` of floats that makes the value.
    fn dequantize<'a>(&self, graph: &'a Graph, v: Option<ValueId>) -> Option<&'a Node> {
        let node = &graph.nodes[self.0.get(v?.index()).copied().flatten()?];
        let plain = is(node, "DequantizeLinear")
            && node.int_or("block_size", 0).ok()? == 0
            && node.int_or("output_dtype", 0).ok()? == 0;
        plain.then_some(node)
    }
}

/// Who makes and who reads each value, to tell which weights integer products take.
pub(super) struct Takers {
    producers: Producers,
    readers: Vec<Vec<usize>>,
}

impl Takers {
    pub(super) fn new(graph: &Graph) -> Self {
        let mut readers = vec![Vec::new(); graph.values.len()];
        for (i, node) in graph.nodes.iter().enumerate() {
            for v in node.reads() {
                readers[v.index()].push(i);
            }
        }
        Self { producers: Producers::new(graph), readers }
    }

    /// Whether an integer product takes the constant bytes of this `DequantizeLinear`, which then
    /// must not be folded into floats, four times as large.
    pub(super) fn keep(&self, graph: &Graph, node: &Node) -> bool {
        let Some(out) = output(node) else { return false };
        if !is(node, "DequantizeLinear") || weights(graph, node).is_none() {
            return false;
        }
        let readers = &self.readers[out.index()];
        let takes = |n: &Node| {
            let input = |i: usize| n.inputs.get(i).copied().flatten();
            is(n, "MatMul")
                && input(1) == Some(out)
                && input(0) != Some(out)
                && (self.producers.dequantize(graph, input(0)))
                    .is_some_and(|a| one_grid(graph, a).is_some())
        };
        !readers.is_empty()
            && !graph.outputs.contains(&out)
            && readers.iter().all(|i| takes(&graph.nodes[*i]))
    }
}

/// The only scale of the node, and its zero point where it has one.
fn one_grid(graph: &Graph, node: &Node) -> Option<(f32, i64)> {
    let scale = constant(graph, node.inputs.get(1).copied().flatten())?;
    let &[scale] = scale.as_slice::<f32>().ok()? else { return None };
    let zero = match node.inputs.get(2).copied().flatten() {
        Some(v) => match graph.value(v).constant.as_ref()?.to_i64s().ok()?[..] {
            [zero] => zero,
            _ => return None,
        },
        None => 0,
    };
    Some((scale, zero))
}

/// The constant matrix of bytes that the node dequantises, as a whole or by columns.
fn weights<'a>(graph: &'a Graph, node: &Node) -> Option<&'a Tensor> {
    let input = |i: usize| Some(graph.value(node.inputs.get(i).copied().flatten()?));
    let w = input(0)?.constant.as_ref()?;
    let scale = constant(graph, node.inputs.get(1).copied().flatten())?;
    if !matches!(w.dtype(), DType::U8 | DType::I8) || w.rank() != 2 || w.is_empty() {
        return None;
    }
    if has(node, 2) && input(2)?.constant.as_ref()?.len() != scale.len() {
        return None;
    }
    let axis = node.int_or("axis", 1).ok()?;
    let by_column = scale.rank() == 1 && scale.len() == w.shape()[1] && matches!(axis, 1 | -1);
    (by_column || scale.len() == 1).then_some(w)
}

/// The integer product that the node at `i` is.
fn product(graph: &Graph, known: &[Known], producers: &Producers, i: usize) -> Option<Node> {
    let node = &graph.nodes[i];
    if !is(node, "MatMul") {
        return None;
    }
    let a = producers.dequantize(graph, node.inputs.first().copied().flatten())?;
    let b = producers.dequantize(graph, node.inputs.get(1).copied().flatten())?;
    one_grid(graph, a)?;
    weights(graph, b)?;
    let fact = |v: ValueId| known.get(v.index()).map(|k| &k.fact);
    let x = fact(a.inputs.first().copied().flatten()?)?;
    if !matches!(x.dtype, Some(DType::U8 | DType::I8)) || x.rank()? < 2 {
        return None;
    }
    let mut made = fused(node, "QMatMul");
    made.inputs = [(a, 0), (b, 0), (a, 1), (b, 1), (a, 2), (b, 2)]
        .map(|(n, k)| n.inputs.get(k).copied().flatten())
        .to_vec();
    Some(made)
}

/// Absorbs the one reader of the product at `slot`; returns where the product is then.
fn follow(
    graph: &mut Graph,
    known: &[Known],
    readers: &Readers,
    slot: usize,
) -> Result<Option<usize>> {
    let node = &graph.nodes[slot];
    if node.op != "QMatMul" || node.domain != "brigade" || has(node, LAST) {
        return Ok(None);
    }
    let Some(out) = output(node) else { return Ok(None) };
    let Some(last) = readers.sole(out) else { return Ok(None) };
    let reader = &graph.nodes[last];
    let (between, back) = (has(node, BETWEEN), node.int_or("dequantize", 0)? != 0);
    let active = node.attributes.contains_key("activation");
    let mut changed = node.clone();
    if between && !back {
        let same = is(reader, "DequantizeLinear")
            && reader.int_or("output_dtype", 0)? == 0
            && reader.int_or("block_size", 0)? == 0
            && one_grid(graph, reader).is_some()
            && one_grid(graph, reader) == grid_at(graph, node, BETWEEN);
        if !same {
            return Ok(None);
        }
        changed.attributes.insert("dequantize".to_owned(), Attribute::Int(1));
    } else if is(reader, "QuantizeLinear") {
        if reader.inputs.first() != Some(&Some(out)) || one_grid(graph, reader).is_none() {
            return Ok(None);
        }
        let dtype = output(reader).and_then(|v| known.get(v.index())).and_then(|k| k.fact.dtype);
        let zero = reader.inputs.get(2).copied().flatten();
        let bytes = match dtype {
            Some(DType::U8) => true,
            // What has no zero point is taken as u8.
            Some(DType::I8) => zero.is_some(),
            _ => false,
        };
        let plain = reader.int_or("block_size", 0)? == 0 && reader.int_or("precision", 0)? <= 1;
        let (Some(scale), true) = (reader.inputs[1], bytes && plain) else { return Ok(None) };
        let at = if between || active { LAST } else { BETWEEN };
        set_input(&mut changed, at, scale);
        if let Some(zero) = zero {
            set_input(&mut changed, at + 1, zero);
        }
    } else if !active && let Some(act) = activation(graph, reader) {
        set_activation(&mut changed, act);
    } else if !active
        && is(reader, "Add")
        && let Some(addend) = other(reader, out)
    {
        let columns = node.inputs[1].and_then(|b| graph.value(b).constant.as_ref());
        let columns = columns.and_then(|b| b.shape().get(1).copied());
        let fits = constant(graph, Some(addend))
            .is_some_and(|t| t.rank() == 1 && Some(t.len()) == columns);
        let at = if between { ADDEND } else { BIAS };
        if !fits || has(node, at) {
            return Ok(None);
        }
        set_input(&mut changed, at, addend);
    } else {
        return Ok(None);
    }
    absorb(graph, slot, last, changed);
    Ok(Some(last))
}

/// The grid of two inputs of a product.
fn grid_at(graph: &Graph, node: &Node, at: usize) -> Option<(f32, i64)> {
    let only = |i: usize| node.inputs.get(i).copied().flatten();
    one_grid(graph, &Node { inputs: vec![None, only(at), only(at + 1)], ..node.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Dim, Fact};
    use crate::ops::case::compare;
    use crate::ops::{CompileOptions, Program, RunContext};
    use crate::passes::{optimise, optimise_segment};
    use crate::tensor::Value;

    fn node(g: &mut Graph, op: &str, inputs: &[ValueId]) -> ValueId {
        let n = g.values().len();
        let out = g.add_value(format!("v{n}"), Fact::unknown()).unwrap();
        g.add_node(format!("n{n}"), op, inputs.iter().map(|v| Some(*v)), [Some(out)]);
        g.nodes.last_mut().unwrap().version = 13;
        out
    }

    fn add<T: crate::tensor::Element>(g: &mut Graph, shape: &[usize], v: Vec<T>) -> ValueId {
        let n = g.values().len();
        g.add_constant(format!("c{n}"), Tensor::new(shape.to_vec(), v).unwrap()).unwrap()
    }

    /// x, quantised and back with `scale`.
    fn there_and_back(g: &mut Graph, x: ValueId, scale: f32, zero: u8) -> ValueId {
        let (s, z) = (add(g, &[], vec![scale]), add(g, &[], vec![zero]));
        let q = node(g, "QuantizeLinear", &[x, s, z]);
        node(g, "DequantizeLinear", &[q, s, z])
    }

    /// As exporters write it: a product with its input, weights by columns, and its output
    /// quantised.
    fn layer(g: &mut Graph, x: ValueId, zero: i8) -> ValueId {
        let x = there_and_back(g, x, 0.01, 100);
        let w = (0..20).map(|i| (i * 37 % 256) as u8 as i8).collect();
        let w = add(g, &[4, 5], w);
        let scales = add(g, &[5], vec![0.01f32, 0.02, 0.03, 0.04, 0.05]);
        let zeros = add(g, &[5], vec![zero; 5]);
        let w = node(g, "DequantizeLinear", &[w, scales, zeros]);
        node(g, "MatMul", &[x, w])
    }

    fn start() -> (Graph, ValueId) {
        let mut g = Graph::new("g");
        g.opsets.insert(String::new(), 17);
        let dims = [Dim::symbol("N"), Dim::fixed(3), Dim::fixed(4)];
        let x = g.add_input("x", Fact::new(DType::F32, dims)).unwrap();
        (g, x)
    }

    fn run_graph(graph: &Graph) -> Vec<Value> {
        let values = (0..24).map(|i| (i * 5 % 13) as f32 / 8.0 - 0.7).collect();
        let x = Tensor::new([2, 3, 4], values).unwrap();
        let registry = OpRegistry::default();
        let program = Program::compile(graph, &registry, &CompileOptions::default()).unwrap();
        program.run(vec![x.into()], &RunContext::default()).unwrap()
    }

    /// The operators left after all passes; results stay, to a step of the grid at most.
    fn fuse(mut g: Graph, step: f64, disabled: &[&str]) -> Vec<String> {
        let registry = OpRegistry::default();
        let before = run_graph(&g);
        let disabled_passes = disabled.iter().map(|d| (*d).to_owned()).collect();
        let options = CompileOptions { disabled_passes, ..CompileOptions::default() };
        optimise(&mut g, &registry, &options).unwrap();
        optimise_segment(&mut g, &registry, &options).unwrap();
        for (a, b) in run_graph(&g).iter().zip(&before) {
            compare(a.tensor().unwrap(), b.tensor().unwrap(), 1e-5, 1e-5 + step).unwrap();
        }
        g.nodes().iter().map(Node::qualified_op).collect()
    }

    #[test]
    fn a_layer_becomes_one_integer_product() {
        for zero in [0, -7] {
            let (mut g, x) = start();
            let y = layer(&mut g, x, zero);
            let y = there_and_back(&mut g, y, 0.02, 128);
            let b = add(&mut g, &[5], vec![0.5f32, -0.5, 0.0, 1.0, 2.0]);
            let y = node(&mut g, "Add", &[y, b]);
            let y = node(&mut g, "Relu", &[y]);
            let y = there_and_back(&mut g, y, 0.03, 3);
            g.set_outputs([y]);
            let want = ["QuantizeLinear", "brigade.QMatMul", "DequantizeLinear"];
            assert_eq!(fuse(g.clone(), 0.05, &[]), want);
            let off = fuse(g, 1e-6, &["qdq"]);
            assert!(!off.iter().any(|op| op == "brigade.QMatMul"), "{off:?}");
            // The weights are folded then.
            assert_eq!(off.iter().filter(|op| *op == "DequantizeLinear").count(), 3, "{off:?}");
        }
    }

    #[test]
    fn a_chain_multiplies_bytes_from_end_to_end() {
        let (mut g, x) = start();
        let y = layer(&mut g, x, 0);
        let b = add(&mut g, &[5], vec![0.5f32; 5]);
        let y = node(&mut g, "Add", &[b, y]);
        let y = there_and_back(&mut g, y, 0.02, 128);
        let w = add(&mut g, &[5, 2], vec![1u8, 2, 3, 4, 5, 250, 251, 252, 253, 254]);
        let (s, z) = (add(&mut g, &[1], vec![0.02f32]), add(&mut g, &[1], vec![128u8]));
        let w = node(&mut g, "DequantizeLinear", &[w, s, z]);
        let y = node(&mut g, "MatMul", &[y, w]);
        g.set_outputs([y]);
        let want = ["QuantizeLinear", "brigade.QMatMul", "brigade.QMatMul"];
        assert_eq!(fuse(g, 0.1, &[]), want);
    }

    #[test]
    fn products_with_other_weights_stay() {
        let (mut g, x) = start();
        let x = there_and_back(&mut g, x, 0.01, 100);
        let w = add(&mut g, &[4, 5], vec![3i8; 20]);
        let scales = add(&mut g, &[4], vec![0.01f32; 4]);
        let wide = node(&mut g, "DequantizeLinear", &[w, scales]);
        g.nodes.last_mut().unwrap().attributes.insert("axis".to_owned(), 0i64.into());
        let y = node(&mut g, "MatMul", &[x, wide]);
        g.set_outputs([y]);
        assert_eq!(fuse(g, 0.0, &[]), ["QuantizeLinear", "DequantizeLinear", "MatMul"]);
    }
}
