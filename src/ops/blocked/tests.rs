use super::*;
use crate::graph::{Fact, Graph};
use crate::ops::{CompileOptions, OpRegistry, Program, RunContext, infer_graph};
use crate::tensor::{DType, Tensor, Value};

fn counted(shape: &[usize]) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::new(shape, (0..n).map(|i| i as f32).collect()).unwrap()
}

#[test]
fn blocked_and_plain_forms_are_inverse() {
    for shape in [[2, 16, 3, 5], [3, 24, 1, 1], [2, 8, 1, 9]] {
        let x = counted(&shape);
        let blocked = block_tensor(&x).unwrap();
        assert_eq!(blocked.rank(), 5);
        assert_eq!(blocked.shape()[4], 8);
        assert_eq!(unblock(&blocked).unwrap(), x);
        let dims: Vec<Dim> = shape.iter().map(|d| Dim::of(*d)).collect();
        let there = blocked_dims(&dims).unwrap();
        let sizes: Vec<usize> = there.iter().filter_map(Dim::as_extent).collect();
        assert_eq!(sizes[..], blocked.shape()[..]);
        assert_eq!(plain_dims(&there).unwrap(), dims);
    }
    // Channel 9 of the second image, at row 1 and column 2.
    let x = counted(&[2, 16, 3, 5]);
    let blocked = block_tensor(&x).unwrap();
    let at = (((2 * 3 + 3 + 1) * 5 + 2) * 8) + 1;
    assert_eq!(blocked.as_slice::<f32>().unwrap()[at], ((16 + 9) * 15 + 7) as f32);
}

#[test]
fn what_has_no_whole_blocks_has_no_blocked_form() {
    assert!(block_tensor(&counted(&[1, 12, 2, 2])).is_err());
    assert!(block_tensor(&counted(&[8, 2])).is_err());
    assert!(block_tensor(&counted(&[1, 8, 7])).is_err());
    assert!(unblock(&counted(&[1, 2, 3, 4, 5])).is_err());
    assert_eq!(blocked_dims(&[Dim::of(1), Dim::symbol("C"), Dim::of(2), Dim::of(2)]), None);
}

/// A graph of one node, as a pass or a model file might make it.
fn single(op: &str, domain: &str, shape: &[usize]) -> Graph {
    let mut g = Graph::new("g");
    let x = g.add_input("x", Fact::concrete(DType::F32, shape)).unwrap();
    let y = g.add_value("y", Fact::unknown()).unwrap();
    let node = g.add_node("n", op, [Some(x)], [Some(y)]);
    node.domain = domain.to_owned();
    node.version = 1;
    g.opsets.insert(domain.to_owned(), 1);
    g.set_outputs([y]);
    g
}

#[test]
fn a_model_cannot_name_them() {
    let registry = OpRegistry::default();
    for def in INTERNAL {
        let g = single(def.name, DOMAIN, &[1, 8, 2, 2]);
        let error = registry.check(&g).unwrap_err().to_string();
        assert!(error.contains("no such operator"), "{error}");
        assert!(error.contains(DOMAIN), "{error}");
        assert!(registry.get(DOMAIN, def.name).is_none());
        assert!(!registry.iter().any(|d| d.domain == DOMAIN));
    }
}

fn run(graph: &mut Graph, x: Tensor) -> Vec<Value> {
    let registry = OpRegistry::default();
    infer_graph(graph, &registry).unwrap();
    let program = Program::compile(graph, &registry, &CompileOptions::default()).unwrap();
    let out = program.run(vec![x.into()], &RunContext::default()).unwrap();
    let made = graph.value(graph.outputs()[0]).fact.clone();
    made.admits(&out[0]).unwrap();
    out
}

#[test]
fn one_position_is_reordered_without_a_copy() {
    let x = counted(&[2, 16, 1, 1]);
    let memory = x.buffer().clone();
    let out = run(&mut single("ToBlocked", DOMAIN, &[2, 16, 1, 1]), x);
    let out = out[0].tensor().unwrap();
    assert_eq!(out.shape()[..], [2, 2, 1, 1, 8]);
    assert!(out.buffer().same_memory(&memory));
}

#[test]
fn the_global_mean_of_blocked_values_is_that_of_plain_ones() {
    let x = counted(&[2, 16, 3, 7]);
    let want = run(&mut single("GlobalAveragePool", "", &[2, 16, 3, 7]), x.clone());
    let blocked = block_tensor(&x).unwrap();
    let shape = blocked.shape().to_vec();
    let got = run(&mut single("BlockedGlobalAveragePool", DOMAIN, &shape), blocked);
    let got = unblock(got[0].tensor().unwrap()).unwrap();
    crate::ops::case::compare(&got, want[0].tensor().unwrap(), 1e-5, 1e-6).unwrap();
}
