//! Recognises activations that are spelt out in smaller operators: `HardSwish`, `Silu` and
//! `Gelu`.

use super::readers::{self, Readers, is, other, output, scalar};
use crate::error::Result;
use crate::graph::{Graph, Node, ValueId};
use crate::ops::OpRegistry;
use crate::ops::infer::Known;
use crate::tensor::DType;

pub(super) fn run(graph: &mut Graph, known: &[Known], _: &OpRegistry) -> Result<usize> {
    let readers = Readers::new(graph);
    let mut changes = 0;
    for i in 0..known.len().min(graph.values.len()) {
        let x = ValueId(i as u32);
        if known[i].fact.dtype != Some(DType::F32) || known[i].fact.shape.is_none() {
            continue;
        }
        // Constants of the formulas must not broadcast `x` to more axes.
        let Some((op, last)) = find(graph, &readers, x) else { continue };
        let (domain, version) = match op {
            "Silu" => ("brigade", 1),
            "HardSwish" => ("", 14),
            _ => ("", 20),
        };
        let node = &mut graph.nodes[last];
        node.op = op.to_owned();
        node.domain = domain.to_owned();
        node.version = version;
        node.inputs = vec![Some(x)];
        node.attributes.clear();
        if !domain.is_empty() {
            graph.opsets.entry(domain.to_owned()).or_insert(version);
        }
        changes += 1;
    }
    Ok(changes)
}

/// The operator that the readers of `x` spell out, and the last of their nodes.
fn find(graph: &Graph, readers: &Readers, x: ValueId) -> Option<(&'static str, usize)> {
    let node = |i: usize| graph.nodes.get(i);
    let next = |i: usize| -> Option<(usize, &Node)> {
        let j = readers.sole(output(node(i)?)?)?;
        Some((j, node(j)?))
    };
    // `x` is read by the first node of the formula and by its product.
    let &[a, b] = readers.of(x) else { return None };
    for (first, mul) in [(a, b), (b, a)] {
        let (Some(f), Some(m)) = (node(first), node(mul)) else { return None };
        if first == mul || !is(m, "Mul") {
            continue;
        }
        let y = output(f)?;
        let product_of = |v: ValueId| other(m, x) == Some(v);
        if is(f, "Sigmoid") && readers.sole(y) == Some(mul) && product_of(y) {
            return Some(("Silu", mul));
        }
        if is(f, "HardSigmoid")
            && close(f.float_or("alpha", 0.2).ok()?, 1.0 / 6.0)
            && close(f.float_or("beta", 0.5).ok()?, 0.5)
            && readers.sole(y) == Some(mul)
            && product_of(y)
        {
            return Some(("HardSwish", mul));
        }
        if is(f, "Add") && plain_scalar(graph, f, x).is_some_and(|c| close(c, 3.0)) {
            let Some((c, clip)) = next(first) else { continue };
            let six = readers::activation(graph, clip)
                .is_some_and(|(op, n)| op == "Clip" && n[0] == 0.0 && close(n[1], 6.0));
            if !six {
                continue;
            }
            let clipped = output(clip)?;
            let Some((d, after)) = next(c) else { continue };
            if d == mul && product_of(clipped) {
                // x · clip(x + 3) / 6
                let product = output(m)?;
                let Some((last, end)) = next(mul) else { continue };
                if scales(graph, end, product, 1.0 / 6.0) {
                    return Some(("HardSwish", last));
                }
            } else if scales(graph, after, clipped, 1.0 / 6.0) {
                // x · (clip(x + 3) / 6)
                let scaled = output(after)?;
                if readers.sole(scaled) == Some(mul) && product_of(scaled) {
                    return Some(("HardSwish", mul));
                }
            }
        }
        if scales(graph, f, x, std::f32::consts::FRAC_1_SQRT_2) {
            let Some((e, erf)) = next(first) else { continue };
            if !is(erf, "Erf") {
                continue;
            }
            let Some((p, plus)) = next(e) else { continue };
            let is_one = is(plus, "Add")
                && plain_scalar(graph, plus, output(erf)?).is_some_and(|c| c == 1.0);
            if !is_one {
                continue;
            }
            let sum = output(plus)?;
            if readers.sole(sum) == Some(mul) && product_of(sum) {
                // x · (1 + erf) / 2
                let product = output(m)?;
                let Some((last, end)) = next(mul) else { continue };
                if scales(graph, end, product, 0.5) {
                    return Some(("Gelu", last));
                }
            } else if scales(graph, m, x, 0.5) {
                // (x / 2) · (1 + erf)
                let half = output(m)?;
                let Some((last, end)) = next(mul) else { continue };
                if is(end, "Mul")
                    && other(end, half) == Some(sum)
                    && next(p).is_some_and(|n| n.0 == last)
                {
                    return Some(("Gelu", last));
                }
            } else if let Some((h, half)) = next(p) {
                // x · ((1 + erf) / 2)
                if scales(graph, half, sum, 0.5) {
                    let half = output(half)?;
                    if product_of(half) && readers.sole(half) == Some(mul) && h != mul {
                        return Some(("Gelu", mul));
                    }
                }
            }
        }
    }
    None
}

/// The constant that a node takes beside `v`, if it adds no axes.
fn plain_scalar(graph: &Graph, node: &Node, v: ValueId) -> Option<f32> {
    let c = other(node, v)?;
    let rank = graph.value(c).constant.as_ref()?.rank();
    let least = graph.value(v).fact.rank()?;
    (rank <= least).then(|| scalar(graph, Some(c))).flatten()
}

/// Whether a node multiplies `v` by a constant, or divides it by the reciprocal.
fn scales(graph: &Graph, node: &Node, v: ValueId, by: f32) -> bool {
    let Some(c) = plain_scalar(graph, node, v) else { return false };
    (is(node, "Mul") && close(c, by))
        || (is(node, "Div") && node.inputs.first() == Some(&Some(v)) && close(c, 1.0 / by))
}

fn close(a: f32, b: f32) -> bool {
    (a - b).abs() <= 1e-5 * b.abs()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Dim, Fact};
    use crate::ops::infer_graph;
    use crate::tensor::Tensor;

    /// A graph over `x`, f32[N,4], of nodes (op, inputs, output); numbers are constants.
    fn build(nodes: &[(&str, &[&str], &str)]) -> Graph {
        let mut g = Graph::new("g");
        let fact = Fact::new(DType::F32, [Dim::symbol("N"), Dim::fixed(4)]);
        g.add_input("x", fact).unwrap();
        for (i, (op, inputs, out)) in nodes.iter().enumerate() {
            let inputs: Vec<_> = inputs
                .iter()
                .map(|name| {
                    Some(match (g.find(name), name.parse::<f32>()) {
                        (Some(v), _) => v,
                        (None, Ok(c)) => g.add_constant(*name, Tensor::scalar(c)).unwrap(),
                        (None, Err(_)) => panic!("{name}"),
                    })
                })
                .collect();
            let out = g.add_value(*out, Fact::unknown()).unwrap();
            g.add_node(format!("n{i}"), *op, inputs, [Some(out)]);
        }
        let last = g.find("y").unwrap();
        g.set_outputs([last]);
        g
    }

    fn fuse(mut g: Graph) -> (usize, Vec<String>) {
        let registry = OpRegistry::default();
        let known = infer_graph(&mut g, &registry).unwrap();
        let n = run(&mut g, &known, &registry).unwrap();
        g.compact();
        g.validate().unwrap();
        infer_graph(&mut g, &registry).unwrap();
        (n, g.nodes().iter().map(|n| n.op.clone()).collect())
    }

    #[test]
    fn every_spelling_is_recognised() {
        let swish = ["HardSwish".to_owned()];
        let after = build(&[
            ("Add", &["x", "3"], "a"),
            ("Clip", &["a", "0", "6"], "b"),
            ("Mul", &["b", "x"], "c"),
            ("Div", &["c", "6"], "y"),
        ]);
        assert_eq!(fuse(after), (1, swish.to_vec()));
        let before = build(&[
            ("Add", &["3", "x"], "a"),
            ("Clip", &["a", "0", "6"], "b"),
            ("Div", &["b", "6"], "c"),
            ("Mul", &["x", "c"], "y"),
        ]);
        assert_eq!(fuse(before), (1, swish.to_vec()));
        let silu = build(&[("Sigmoid", &["x"], "a"), ("Mul", &["x", "a"], "y")]);
        assert_eq!(fuse(silu), (1, vec!["Silu".to_owned()]));
        let gelu = ["Gelu".to_owned()];
        let erf: &[(&str, &[&str], &str)] =
            &[("Div", &["x", "1.4142135"], "a"), ("Erf", &["a"], "b"), ("Add", &["b", "1"], "c")];
        let spellings: [&[(&str, &[&str], &str)]; 3] = [
            &[("Mul", &["x", "c"], "d"), ("Mul", &["d", "0.5"], "y")],
            &[("Mul", &["x", "0.5"], "d"), ("Mul", &["d", "c"], "y")],
            &[("Mul", &["c", "0.5"], "d"), ("Mul", &["x", "d"], "y")],
        ];
        for rest in spellings {
            assert_eq!(fuse(build(&[erf, rest].concat())), (1, gelu.to_vec()));
        }
    }

    #[test]
    fn near_misses_are_left() {
        let other_bound = build(&[
            ("Add", &["x", "3"], "a"),
            ("Clip", &["a", "0", "5"], "b"),
            ("Mul", &["b", "x"], "c"),
            ("Div", &["c", "6"], "y"),
        ]);
        assert_eq!(fuse(other_bound).0, 0);
        // The sigmoid is needed elsewhere.
        let shared = build(&[
            ("Sigmoid", &["x"], "a"),
            ("Mul", &["x", "a"], "b"),
            ("Add", &["a", "b"], "y"),
        ]);
        assert_eq!(fuse(shared).0, 0);
        let square = build(&[("Mul", &["x", "x"], "y")]);
        assert_eq!(fuse(square).0, 0);
    }
}
