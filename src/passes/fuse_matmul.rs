//! Folds what follows a product of matrices into it: a constant scale, a bias, a residual and an
//! activation into `brigade.FusedMatMul`, an activation into `brigade.FusedGemm`.

use super::readers::{
    Readers, absorb, activation, constant, fused, has, is, other, output, same_f32, scalar,
    set_activation, set_input,
};
use crate::error::Result;
use crate::graph::{Attribute, Graph};
use crate::ops::OpRegistry;
use crate::ops::infer::Known;
use crate::tensor::DType;

pub(super) fn run(graph: &mut Graph, known: &[Known], _: &OpRegistry) -> Result<usize> {
    let readers = Readers::new(graph);
    let mut changes = 0;
    for i in 0..graph.nodes.len() {
        let mut slot = i;
        while let Some(next) = step(graph, known, &readers, slot)? {
            slot = next;
            changes += 1;
        }
    }
    Ok(changes)
}

/// Absorbs the one reader of the product at `slot`; returns where the product is then.
fn step(
    graph: &mut Graph,
    known: &[Known],
    readers: &Readers,
    slot: usize,
) -> Result<Option<usize>> {
    let node = &graph.nodes[slot];
    let ours = |op: &str| node.op == op && node.domain == "brigade";
    let gemm = is(node, "Gemm") || ours("FusedGemm");
    if !(gemm || is(node, "MatMul") || ours("FusedMatMul")) {
        return Ok(None);
    }
    let Some(out) = output(node) else { return Ok(None) };
    let Some(fact) = known.get(out.index()).map(|k| &k.fact) else { return Ok(None) };
    if fact.dtype != Some(DType::F32) {
        return Ok(None);
    }
    let Some(last) = readers.sole(out) else { return Ok(None) };
    let reader = &graph.nodes[last];
    let (active, residual) = (node.attributes.contains_key("activation"), has(node, 3));
    let after = node.attributes.contains_key("residual_after_activation");
    let mut changed = fused(node, if gemm { "FusedGemm" } else { "FusedMatMul" });
    if !active
        && !after
        && let Some(act) = activation(graph, reader)
    {
        set_activation(&mut changed, act);
    } else if gemm {
        return Ok(None);
    } else if let Some(factor) = factor(graph, reader, out, fact.rank())
        && !active
        && !residual
        && !has(node, 2)
    {
        let alpha = node.float_or("alpha", 1.0)? * factor;
        changed.attributes.insert("alpha".to_owned(), Attribute::Float(alpha));
    } else if is(reader, "Add")
        && let Some(addend) = other(reader, out)
    {
        let columns = fact.shape.as_ref().and_then(|s| s.last()).and_then(|d| d.as_extent());
        // A product of or with a vector has no columns of its own.
        let matrix = known_rank(graph, known, node.inputs.get(1).copied().flatten()) > 1;
        let is_bias = constant(graph, Some(addend))
            .is_some_and(|t| t.rank() == 1 && Some(t.len()) == columns);
        if is_bias && matrix && !active && !residual && !has(node, 2) {
            set_input(&mut changed, 2, addend);
        } else if !residual
            && graph.value(addend).constant.is_none()
            && same_f32(known, out, addend)
        {
            set_input(&mut changed, 3, addend);
            if active {
                changed
                    .attributes
                    .insert("residual_after_activation".to_owned(), Attribute::Int(1));
            }
        } else {
            return Ok(None);
        }
    } else {
        return Ok(None);
    }
    absorb(graph, slot, last, changed);
    Ok(Some(last))
}

/// The number of axes of a value, 0 where it is unknown.
fn known_rank(graph: &Graph, known: &[Known], v: Option<crate::graph::ValueId>) -> usize {
    let Some(v) = v else { return 0 };
    match known.get(v.index()) {
        Some(k) => k.fact.rank().unwrap_or(0),
        None => graph.value(v).fact.rank().unwrap_or(0),
    }
}

/// The constant that a node scales `v` by, if it adds no axes.
fn factor(
    graph: &Graph,
    node: &crate::graph::Node,
    v: crate::graph::ValueId,
    rank: Option<usize>,
) -> Option<f32> {
    let c = other(node, v)?;
    if graph.value(c).constant.as_ref()?.rank() > rank? {
        return None;
    }
    let value = scalar(graph, Some(c))?;
    if is(node, "Mul") {
        Some(value)
    } else if is(node, "Div") && node.inputs.first() == Some(&Some(v)) {
        // Only where multiplying gives the same bits.
        let inverse = 1.0 / value;
        (value.is_normal()
            && inverse.is_normal()
            && 1.0 / inverse == value
            && is_power_of_two(value))
        .then_some(inverse)
    } else {
        None
    }
}

fn is_power_of_two(x: f32) -> bool {
    x.to_bits() & 0x007f_ffff == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Dim, Fact, Node, ValueId};
    use crate::ops::case::compare;
    use crate::ops::{CompileOptions, Program, RunContext, infer_graph};
    use crate::tensor::{Tensor, Value};

    fn numbers(shape: &[usize], step: usize) -> Tensor {
        let n: usize = shape.iter().product();
        let values = (0..n).map(|i| ((i * step + 1) % 13) as f32 / 8.0 - 0.7).collect();
        Tensor::new(shape, values).unwrap()
    }

    fn node(g: &mut Graph, op: &str, inputs: &[ValueId]) -> ValueId {
        let n = g.values().len();
        let out = g.add_value(format!("v{n}"), Fact::unknown()).unwrap();
        g.add_node(format!("n{n}"), op, inputs.iter().map(|v| Some(*v)), [Some(out)]);
        out
    }

    fn start() -> (Graph, ValueId) {
        let mut g = Graph::new("g");
        let dims = [Dim::symbol("N"), Dim::fixed(3), Dim::fixed(4)];
        let x = g.add_input("x", Fact::new(DType::F32, dims)).unwrap();
        (g, x)
    }

    fn run_graph(graph: &Graph) -> Vec<Value> {
        let registry = OpRegistry::default();
        let program = Program::compile(graph, &registry, &CompileOptions::default()).unwrap();
        program.run(vec![numbers(&[2, 3, 4], 5).into()], &RunContext::default()).unwrap()
    }

    fn fuse(mut g: Graph) -> Vec<String> {
        let registry = OpRegistry::default();
        let known = infer_graph(&mut g, &registry).unwrap();
        let before = run_graph(&g);
        run(&mut g, &known, &registry).unwrap();
        g.compact();
        g.validate().unwrap();
        infer_graph(&mut g, &registry).unwrap();
        for (a, b) in run_graph(&g).iter().zip(&before) {
            compare(a.tensor().unwrap(), b.tensor().unwrap(), 1e-5, 1e-5).unwrap();
        }
        g.nodes().iter().map(Node::qualified_op).collect()
    }

    #[test]
    fn bias_activation_and_residual_go_in() {
        let (mut g, x) = start();
        let w = g.add_constant("w", numbers(&[4, 4], 3)).unwrap();
        let b = g.add_constant("b", numbers(&[4], 2)).unwrap();
        let p = node(&mut g, "MatMul", &[x, w]);
        let p = node(&mut g, "Add", &[b, p]);
        let p = node(&mut g, "Gelu", &[p]);
        let y = node(&mut g, "Add", &[p, x]);
        g.set_outputs([y]);
        assert_eq!(fuse(g), ["brigade.FusedMatMul"]);
    }

    #[test]
    fn a_scale_goes_in_where_the_bits_stay() {
        for (op, by, left) in [("Div", 8.0_f32, 1), ("Mul", 0.3, 1), ("Div", 3.0, 2)] {
            let (mut g, x) = start();
            let w = g.add_constant("w", numbers(&[4, 4], 3)).unwrap();
            let c = g.add_constant("c", Tensor::scalar(by)).unwrap();
            let p = node(&mut g, "MatMul", &[x, w]);
            let y = node(&mut g, op, &[p, c]);
            g.set_outputs([y]);
            assert_eq!(fuse(g).len(), left, "{op} {by}");
        }
    }

    #[test]
    fn a_bias_of_a_product_with_a_vector_stays() {
        let (mut g, x) = start();
        let w = g.add_constant("w", numbers(&[4], 3)).unwrap();
        let b = g.add_constant("b", numbers(&[3], 2)).unwrap();
        let p = node(&mut g, "MatMul", &[x, w]);
        let y = node(&mut g, "Add", &[p, b]);
        g.set_outputs([y]);
        assert_eq!(fuse(g), ["MatMul", "Add"]);
    }

    #[test]
    fn a_bias_that_is_broadcast_as_before_operator_set_7_stays() {
        let (mut g, x) = start();
        let w = g.add_constant("w", numbers(&[4, 3], 3)).unwrap();
        let b = g.add_constant("b", numbers(&[3], 2)).unwrap();
        let p = node(&mut g, "MatMul", &[x, w]);
        let y = node(&mut g, "Add", &[p, b]);
        let add = g.nodes.last_mut().unwrap();
        add.version = 6;
        add.attributes.insert("broadcast".to_owned(), 1_i64.into());
        add.attributes.insert("axis".to_owned(), 1_i64.into());
        g.set_outputs([y]);
        assert_eq!(fuse(g), ["MatMul", "Add"]);
    }
}
