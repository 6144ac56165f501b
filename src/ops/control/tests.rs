//! What is known of the outputs of subgraphs, and what becomes of carried values.

use super::super::case::{Case, ints, iota};
use super::super::{CompileOptions, OpRegistry, Program, RunContext, infer_graph};
use super::branch::{ELSE, THEN};
use super::repeat::BODY;
use crate::error::Result;
use crate::graph::{Dim, Fact, Graph};
use crate::tensor::BufferPool;
use crate::{DType, ErrorKind, Tensor, Value};

type Build = fn(&mut Graph) -> Result<()>;

/// A body or branch with inputs of these names and one more node.
fn sub(inputs: &[&str], build: Build) -> Graph {
    let mut graph = Graph::new("sub");
    for name in inputs {
        graph.add_input(*name, Fact::unknown()).unwrap();
    }
    build(&mut graph).unwrap();
    graph
}

fn node(g: &mut Graph, op: &str, inputs: &[&str], output: &str, axis: Option<i64>) {
    let inputs: Vec<_> = inputs.iter().map(|n| g.find(n)).collect();
    let y = g.add_value(output, Fact::unknown()).unwrap();
    let node = g.add_node(output, op, inputs, [Some(y)]);
    if let Some(axis) = axis {
        node.attributes.insert("axis".to_owned(), axis.into());
    }
}

fn outputs(g: &mut Graph, names: &[&str]) {
    let ids: Vec<_> = names.iter().map(|n| g.find(n).unwrap()).collect();
    g.set_outputs(ids);
}

fn facts(case: &Case) -> Result<Vec<Fact>> {
    let (mut graph, _) = case.graph()?;
    infer_graph(&mut graph, &OpRegistry::default())?;
    Ok(graph.outputs().iter().map(|v| graph.value(*v).fact.clone()).collect())
}

fn run(case: &Case, context: &RunContext) -> Result<Vec<Value>> {
    let registry = OpRegistry::default();
    let (mut graph, feeds) = case.graph()?;
    infer_graph(&mut graph, &registry)?;
    let program = Program::compile(&graph, &registry, &CompileOptions::default())?;
    program.run(feeds.into_iter().map(|(_, v)| v).collect(), context)
}

#[test]
fn branches_are_merged() {
    let join = |g: &mut Graph| {
        node(g, "Concat", &["a", "a"], "y", Some(0));
        outputs(g, &["y"]);
        Ok(())
    };
    let same = |g: &mut Graph| {
        node(g, "Identity", &["a"], "y", None);
        outputs(g, &["y"]);
        Ok(())
    };
    let rank = |g: &mut Graph| {
        node(g, "Flatten", &["a"], "y", Some(0));
        outputs(g, &["y"]);
        Ok(())
    };
    let other = |g: &mut Graph| {
        node(g, "Shape", &["a"], "y", None);
        outputs(g, &["y"]);
        Ok(())
    };
    let case = |then: Build, other: Build, x: Tensor| {
        Case::new("If", 16, "merge")
            .attr(THEN, sub(&["a"], then))
            .attr(ELSE, sub(&["a"], other))
            .input(Tensor::scalar(true))
            .input(x)
            .captures(1)
            .output(iota(&[0]))
    };
    let x = || Tensor::new([2, 3, 1], vec![0.0_f32; 6]).unwrap();
    let merged = facts(&case(join, same, x())).unwrap().remove(0);
    let shape = merged.shape.unwrap();
    assert_eq!((merged.dtype, shape.len()), (Some(DType::F32), 3));
    assert!(shape[0].as_symbol().is_some(), "{shape:?}");
    assert_eq!(shape[1..], [Dim::fixed(3), Dim::fixed(1)]);
    assert_eq!(facts(&case(same, rank, x())).unwrap()[0].shape, None);
    let error = facts(&case(same, other, x())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::DType);
    assert!(error.message().contains("f32") && error.message().contains("i64"), "{error}");
}

fn looped(build: Build, count: i64, carried: Tensor) -> Case {
    Case::new("Loop", 16, "loop")
        .attr(BODY, sub(&["n", "go", "v"], build))
        .constant(Tensor::scalar(count))
        .absent()
        .input(carried)
}

#[test]
fn extents_that_change_get_symbols_and_ranks_that_change_are_unknown() {
    let grow = |g: &mut Graph| {
        node(g, "Concat", &["v", "v"], "w", Some(0));
        node(g, "Shape", &["v"], "s", None);
        outputs(g, &["go", "w", "v", "s"]);
        Ok(())
    };
    let case = looped(grow, 3, iota(&[2, 5])).output(iota(&[0])).output(iota(&[0]));
    let found = facts(&case.clone().output(iota(&[0]))).unwrap();
    let [carried, scanned, shapes] = found.as_slice() else { panic!("{found:?}") };
    let carried = carried.shape.clone().unwrap();
    assert!(carried[0].as_symbol().is_some() && carried[1] == Dim::fixed(5), "{carried:?}");
    let scanned = scanned.shape.clone().unwrap();
    assert_eq!((&scanned[0], &scanned[2]), (&Dim::fixed(3), &Dim::fixed(5)));
    assert_ne!(scanned[1], carried[0]);
    assert_eq!(shapes.shape, Some(vec![Dim::fixed(3), Dim::fixed(2)]));
    // The parts of `scanned` differ, which only shows when it runs.
    let error = run(&case.output(iota(&[0])), &RunContext::default()).unwrap_err();
    assert!(error.message().contains("concatenated"), "{error}");

    let deepen = |g: &mut Graph| {
        let axes = g.add_constant("axes", Tensor::of_i64(&[0])).unwrap();
        let v = g.find("v");
        let y = g.add_value("w", Fact::unknown()).unwrap();
        g.add_node("w", "Unsqueeze", [v, Some(axes)], [Some(y)]);
        outputs(g, &["go", "w"]);
        Ok(())
    };
    let case = looped(deepen, 3, iota(&[2])).output(iota(&[1, 1, 1, 2]));
    assert_eq!(facts(&case).unwrap()[0].shape, None);
    let made = run(&case, &RunContext::default()).unwrap();
    case.compare(&made).unwrap();
}

#[test]
fn carried_values_are_moved() {
    let write = |g: &mut Graph| {
        g.add_constant("at", ints(&[1], vec![1])).unwrap();
        g.add_constant("x", ints(&[1], vec![9])).unwrap();
        node(g, "ScatterElements", &["v", "at", "x"], "w", Some(0));
        outputs(g, &["go", "w"]);
        Ok(())
    };
    let used = |count| {
        let context = RunContext { pool: BufferPool::default(), ..RunContext::default() };
        let case = looped(write, count, iota(&[3])).output(ints(&[3], vec![0, 9, 2]));
        case.compare(&run(&case, &context).unwrap()).unwrap();
        let (allocated, reused) = context.pool.counts();
        allocated + reused
    };
    assert_eq!(used(1), 1);
    assert_eq!(used(40), 1);
}

#[test]
fn negative_counts_and_changing_dtypes_are_errors() {
    let copy = |g: &mut Graph| {
        node(g, "Identity", &["v"], "w", None);
        outputs(g, &["go", "w"]);
        Ok(())
    };
    let case = looped(copy, -1, iota(&[2])).output(iota(&[2]));
    let error = run(&case, &RunContext::default()).unwrap_err();
    assert!(error.message().contains("`M` is -1"), "{error}");
    let retype = |g: &mut Graph| {
        node(g, "Shape", &["v"], "w", None);
        outputs(g, &["go", "w"]);
        Ok(())
    };
    let case = looped(retype, 2, Tensor::scalar(1.0_f32)).output(iota(&[2]));
    assert_eq!(facts(&case).unwrap_err().kind(), ErrorKind::DType);
}
