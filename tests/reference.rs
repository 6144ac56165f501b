//! What a heterogeneous split has to do, by its own API: the split of a graph over devices gives
//! what the plain compilation for one device gives, in as few segments as the dependencies allow,
//! with weights bound once.

#![allow(clippy::unwrap_used)]

mod devices;

use std::sync::Arc;

use brigade::graph::Graph;
use brigade::ops::builder::GraphBuilder;
use brigade::pipeline::placement::fallback;
use brigade::{
    CompileOptions, DType, DeviceMap, HeteroExecutable, Pipeline, Registry, Tensor, Value,
    compile_with,
};
use devices::{Custom, alias, id};

const ROWS: usize = 3;
const WIDTH: usize = 5;
const LAYERS: usize = 4;

/// Numbers in about -1..1 that differ by `seed`.
fn numbers(seed: usize, len: usize) -> Vec<f32> {
    (0..len).map(|i| (((i * 37 + seed * 101 + 11) % 199) as f32 - 99.0) / 99.0).collect()
}

/// `LAYERS` times (x · W + b, Relu), with the weights as parameters.
fn mlp() -> Graph {
    let mut g = GraphBuilder::new("mlp");
    let mut h = g.input("x", DType::F32, [ROWS.into(), WIDTH.into()]).unwrap();
    for layer in 0..LAYERS {
        let w = g.param(&format!("w{layer}"), DType::F32, &[WIDTH, WIDTH]).unwrap();
        let b = g.param(&format!("b{layer}"), DType::F32, &[ROWS, WIDTH]).unwrap();
        h = g.matmul(h, w).unwrap();
        h = g.add(h, b).unwrap();
        h = g.relu(h).unwrap();
    }
    g.finish([("y", h)]).unwrap()
}

fn bind(executable: &HeteroExecutable) {
    for layer in 0..LAYERS {
        let w = numbers(2 * layer, WIDTH * WIDTH);
        executable.set_param(&format!("w{layer}"), &w).unwrap();
        executable.set_param(&format!("b{layer}"), &numbers(2 * layer + 1, ROWS * WIDTH)).unwrap();
    }
}

/// What `mlp` gives, in f64 and loops.
fn by_hand(x: &[f32]) -> Vec<f64> {
    let mut h: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
    for layer in 0..LAYERS {
        let (w, b) = (numbers(2 * layer, WIDTH * WIDTH), numbers(2 * layer + 1, ROWS * WIDTH));
        let mut next = vec![0.0; ROWS * WIDTH];
        for r in 0..ROWS {
            for c in 0..WIDTH {
                let sum: f64 =
                    (0..WIDTH).map(|k| h[r * WIDTH + k] * f64::from(w[k * WIDTH + c])).sum();
                next[r * WIDTH + c] = (sum + f64::from(b[r * WIDTH + c])).max(0.0);
            }
        }
        h = next;
    }
    h
}

fn assert_close(got: &[f32], expected: &[f64], tolerance: f64) {
    assert_eq!(got.len(), expected.len());
    for (i, (g, e)) in got.iter().zip(expected).enumerate() {
        let off = (f64::from(*g) - e).abs();
        assert!(off <= tolerance * e.abs().max(1.0), "element {i}: {g}, expected {e}");
    }
}

fn layer_of(name: &str, graph: &Graph) -> usize {
    let at = graph.nodes().iter().position(|n| n.name == name).unwrap();
    at / 3
}

/// The first half of the layers on one device, the second half on the other.
fn halves(graph: &Graph, first: &str, second: &str) -> DeviceMap {
    DeviceMap::from_fn(graph, |node| {
        id(if layer_of(&node.name, graph) < LAYERS / 2 { first } else { second })
    })
}

#[test]
fn one_segment_equals_the_plain_compile_exactly() {
    let options = CompileOptions::default();
    let plain = compile_with(mlp(), &id("cpu"), &options).unwrap();
    let map = DeviceMap::from_fn(&mlp(), |_| id("cpu"));
    let split = HeteroExecutable::compile(mlp(), &map, &options).unwrap();
    bind(&plain);
    bind(&split);
    let x = numbers(77, ROWS * WIDTH);
    let expected = plain.run(&[("x", &x)]).unwrap();
    assert_close(&expected[0], &by_hand(&x), 1e-5);
    assert_eq!(split.num_segments(), 1);
    assert_eq!(split.run(&[("x", &x)]).unwrap(), expected);
}

#[test]
fn two_segments_on_two_devices_equal_the_plain_compile() {
    let options = CompileOptions::default();
    let plain = compile_with(mlp(), &id("cpu"), &options).unwrap();
    let map = halves(&mlp(), "cpu:0", "cpu:1");
    let split = HeteroExecutable::compile(mlp(), &map, &options).unwrap();
    bind(&plain);
    bind(&split);
    assert_eq!(split.num_segments(), 2);
    assert_eq!(split.segment_devices(), [id("cpu:0"), id("cpu:1")]);
    let x = numbers(78, ROWS * WIDTH);
    let expected: Vec<f64> =
        plain.run(&[("x", &x)]).unwrap()[0].iter().map(|v| f64::from(*v)).collect();
    let got = split.run(&[("x", &x)]).unwrap();
    assert_close(&got[0], &expected, 1e-5);
    assert_close(&got[0], &by_hand(&x), 1e-5);
}

/// The CPU and a second kind of device, which a registered one stands in for.
#[test]
fn the_cpu_and_a_registered_device_share_a_graph() {
    let registry = Registry::default().with_device(alias("gpu:0"));
    assert!(registry.is_available(&id("gpu")));
    assert!(registry.devices().contains(&id("gpu:0")));
    let options = CompileOptions::default();
    let map = halves(&mlp(), "gpu:0", "cpu:0");
    let split = HeteroExecutable::compile_in(mlp(), &map, &options, &registry).unwrap();
    bind(&split);
    assert_eq!(split.segment_devices(), [id("gpu:0"), id("cpu:0")]);
    let x = numbers(79, ROWS * WIDTH);
    assert_close(&split.run(&[("x", &x)]).unwrap()[0], &by_hand(&x), 1e-4);
}

#[test]
fn nodes_that_a_device_refuses_fall_back_and_say_so() {
    let build = || {
        let mut g = GraphBuilder::new("attention");
        let x = g.input("x", DType::F32, [2.into(), 4.into()]).unwrap();
        let a = g.exp(x).unwrap();
        let b = g.softmax(a, -1).unwrap();
        let c = g.add(b, x).unwrap();
        g.finish([("y", c)]).unwrap()
    };
    let npu = Arc::new(Custom::new("npu:0").refusing(&["Softmax"]));
    let registry = Registry::default().with_device(Arc::clone(&npu) as _);
    let options = CompileOptions::default();
    let (npu_id, cpu) = (id("npu"), id("cpu"));
    let split =
        HeteroExecutable::with_fallback(build(), &npu_id, &cpu, &options, &registry).unwrap();
    assert_eq!(split.segment_devices(), [id("npu:0"), id("cpu:0"), id("npu:0")]);
    assert_eq!(npu.compiled(), 2);
    let notices = split.notices();
    assert_eq!(notices.len(), 1, "{notices:?}");
    for part in ["Softmax", "`npu:0`", "`cpu:0`", "it has no kernel for Softmax"] {
        assert!(notices[0].contains(part), "{part} is not in {}", notices[0]);
    }
    let x = numbers(5, 8);
    let plain = compile_with(build(), &id("cpu"), &options).unwrap();
    assert_eq!(split.run(&[("x", &x)]).unwrap(), plain.run(&[("x", &x)]).unwrap());
    // The same as a pipeline.
    let pipeline =
        Pipeline::builder(build()).registry(registry).fallback(npu_id, cpu).spawn().unwrap();
    assert_eq!(pipeline.notices(), notices);
    let outputs = pipeline.run([("x", Tensor::from_slice([2, 4], &x).unwrap())]).unwrap();
    let expected = plain.run(&[("x", &x)]).unwrap();
    assert_eq!(outputs[0].tensor().unwrap().as_slice::<f32>().unwrap(), expected[0]);
}

/// A node that computes from parameters alone follows its readers, but not to a device that
/// refuses it.
#[test]
fn what_fell_back_stays_where_it_runs() {
    let mut g = GraphBuilder::new("weights");
    let x = g.input("x", DType::F32, [2.into(), 2.into()]).unwrap();
    let p = g.param("p", DType::F32, &[2, 2]).unwrap();
    let w = g.softmax(p, -1).unwrap();
    let y = g.matmul(x, w).unwrap();
    let graph = g.finish([("y", y)]).unwrap();
    let registry =
        Registry::default().with_device(Arc::new(Custom::new("npu:0").refusing(&["Softmax"])));
    let map = fallback(&graph, &id("npu"), &id("cpu"), &registry).unwrap();
    let options = CompileOptions::default();
    let split = HeteroExecutable::compile_in(graph, &map, &options, &registry).unwrap();
    assert_eq!(split.segment_devices(), [id("cpu:0"), id("npu:0")]);
    split.set_param("p", &[1.0; 4]).unwrap();
    let x = [2.0, 4.0, -6.0, 0.0];
    assert_eq!(split.run(&[("x", &x)]).unwrap(), [[3.0, 3.0, -3.0, -3.0]]);
}

#[test]
fn a_device_that_refuses_everything_leaves_the_plan_of_the_other_alone() {
    let registry = Registry::default()
        .with_device(Arc::new(Custom::new("npu:0").refusing(&["MatMul", "Add", "Relu"])));
    let options = CompileOptions::default();
    let split = HeteroExecutable::with_fallback(mlp(), &id("npu"), &id("cpu"), &options, &registry)
        .unwrap();
    assert_eq!(split.segment_devices(), [id("cpu:0")]);
    assert_eq!(split.notices().len(), 3 * LAYERS);
}

#[test]
fn fallback_from_the_cpu_to_the_cpu_is_one_segment() {
    let options = CompileOptions::default();
    let cpu = id("cpu");
    let registry = Registry::default();
    let split = HeteroExecutable::with_fallback(mlp(), &cpu, &cpu, &options, &registry).unwrap();
    assert_eq!(split.num_segments(), 1);
    assert_eq!(split.segment_devices(), [cpu]);
    assert!(split.notices().is_empty());
    bind(&split);
    let x = numbers(80, ROWS * WIDTH);
    assert_close(&split.run(&[("x", &x)]).unwrap()[0], &by_hand(&x), 1e-5);
}

/// The device changes at each of 32 nodes, but neither chain depends on the other.
#[test]
fn two_interleaved_chains_make_two_segments() {
    let mut g = GraphBuilder::new("chains");
    let mut even = g.input("a", DType::F32, [4.into()]).unwrap();
    let mut odd = g.input("b", DType::F32, [4.into()]).unwrap();
    for _ in 0..16 {
        even = g.add(even, even).unwrap();
        odd = g.tanh(odd).unwrap();
    }
    let graph = g.finish([("even", even), ("odd", odd)]).unwrap();
    let map = DeviceMap::from_fn(&graph, |n| id(if n.op == "Add" { "cpu:0" } else { "cpu:1" }));
    let split = HeteroExecutable::compile(graph, &map, &CompileOptions::default()).unwrap();
    assert_eq!(split.num_segments(), 2);
    assert_eq!(split.segment_devices(), [id("cpu:0"), id("cpu:1")]);
    let a = [1.0_f32, -2.0, 0.5, 0.0];
    let outputs = split.run(&[("b", &a), ("a", &a)]).unwrap();
    assert_eq!(outputs[0], a.map(|v| v * 65536.0));
    let mut tanh: Vec<f64> = a.iter().map(|v| f64::from(*v)).collect();
    (0..16).for_each(|_| tanh.iter_mut().for_each(|v| *v = v.tanh()));
    assert_close(&outputs[1], &tanh, 1e-5);
}

#[test]
fn fifty_boundaries_give_what_none_gives() {
    let build = || {
        let mut g = GraphBuilder::new("boundaries");
        let mut h = g.input("x", DType::F32, [2.into(), 3.into()]).unwrap();
        for i in 0..51_u8 {
            let c = g.constant(Tensor::scalar(f32::from(i % 7) - 3.0)).unwrap();
            h = if i % 3 == 0 { g.mul(h, c).unwrap() } else { g.add(h, c).unwrap() };
        }
        g.finish([("y", h)]).unwrap()
    };
    let mut count = 0;
    let map = DeviceMap::from_fn(&build(), |_| {
        count += 1;
        id(if count % 2 == 0 { "cpu:1" } else { "cpu:0" })
    });
    assert_eq!(count, 51);
    let options = CompileOptions::default();
    let split = HeteroExecutable::compile(build(), &map, &options).unwrap();
    assert_eq!(split.num_segments(), 51);
    assert_eq!(split.split().edges().len(), 50);
    let plain = compile_with(build(), &id("cpu"), &options).unwrap();
    let x = numbers(3, 6);
    assert_eq!(split.run(&[("x", &x)]).unwrap(), plain.run(&[("x", &x)]).unwrap());
    let pipeline = Pipeline::builder(build()).placement(map).spawn().unwrap();
    let outputs = pipeline.run([("x", Tensor::from_slice([2, 3], &x).unwrap())]).unwrap();
    let streamed = outputs[0].tensor().unwrap().as_slice::<f32>().unwrap();
    assert_eq!(streamed, plain.run(&[("x", &x)]).unwrap()[0]);
}

/// A segment is compiled once, when its parameters are there; no run compiles, binds or feeds
/// weights. Setting a parameter later compiles the segments that hold it, and no other.
#[test]
fn weights_are_bound_once() {
    let first = Arc::new(Custom::new("npu:0"));
    let second = Arc::new(Custom::new("npu:1"));
    let registry = Registry::default()
        .with_device(Arc::clone(&first) as _)
        .with_device(Arc::clone(&second) as _);
    let map = halves(&mlp(), "npu:0", "npu:1");
    let options = CompileOptions::default();
    let split = HeteroExecutable::compile_in(mlp(), &map, &options, &registry).unwrap();
    assert_eq!((first.compiled(), second.compiled()), (0, 0));
    bind(&split);
    let x = numbers(81, ROWS * WIDTH);
    for _ in 0..5 {
        assert_close(&split.run(&[("x", &x)]).unwrap()[0], &by_hand(&x), 1e-5);
    }
    assert_eq!((first.compiled(), second.compiled()), (1, 1));
    assert_eq!((first.instances(), second.instances()), (1, 1));
    for segment in split.split().segments() {
        assert_eq!(segment.inputs.len(), 1, "weights are no inputs of a segment");
    }

    // Zeros in the last layer: its bias is what comes out.
    split.set_param("w3", &[0.0; WIDTH * WIDTH]).unwrap();
    let bias: Vec<f32> = numbers(7, ROWS * WIDTH).iter().map(|v| v.max(0.0)).collect();
    assert_eq!(split.run(&[("x", &x)]).unwrap(), [bias]);
    assert_eq!((first.compiled(), second.compiled()), (1, 2));
    assert_eq!((first.instances(), second.instances()), (1, 2));
    // And back again.
    split.set_param("w3", &numbers(6, WIDTH * WIDTH)).unwrap();
    assert_close(&split.run(&[("x", &x)]).unwrap()[0], &by_hand(&x), 1e-5);
}

#[test]
fn whole_numbers_are_exact() {
    let mut g = GraphBuilder::new("numbers");
    let x = g.input("x", DType::I64, [2.into()]).unwrap();
    let p = g.param("p", DType::I64, &[2]).unwrap();
    let y = g.add(x, p).unwrap();
    let z = g.mul(y, y).unwrap();
    let graph = g.finish([("same", x), ("sum", y), ("square", z)]).unwrap();
    let map = DeviceMap::from_fn(&graph, |n| id(if n.op == "Mul" { "cpu:1" } else { "cpu:0" }));
    let split = HeteroExecutable::compile(graph, &map, &CompileOptions::default()).unwrap();
    let zeros: Vec<u8> = [0_i64, 0].iter().flat_map(|v| v.to_le_bytes()).collect();
    split.set_param_typed("p", DType::I64, &zeros).unwrap();
    // No f32 is 2²⁴ + 1.
    let values = [16_777_217_i64, -16_777_217];
    let outputs = split.run_typed(&[("x", Tensor::of_i64(&values))]).unwrap();
    let names: Vec<&str> = outputs.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(names, ["same", "sum", "square"]);
    let read = |v: &Value| v.tensor().unwrap().as_slice::<i64>().unwrap().to_vec();
    assert_eq!(read(&outputs[0].1), values);
    assert_eq!(read(&outputs[1].1), values);
    assert_eq!(read(&outputs[2].1), values.map(|v| v * v));
}

/// Outputs that no node makes: an input that nothing reads, an input that is read too, a constant
/// and a parameter; and one value under two names.
#[test]
fn outputs_may_be_passed_through() {
    let build = || {
        let mut g = GraphBuilder::new("through");
        let x = g.input("x", DType::F32, [2.into()]).unwrap();
        let unread = g.input("unread", DType::F32, [3.into()]).unwrap();
        let c = g.constant(Tensor::new([1], vec![7.0_f32]).unwrap()).unwrap();
        let p = g.param("p", DType::F32, &[1]).unwrap();
        let y = g.add(x, x).unwrap();
        let outputs =
            [("y", y), ("unread", unread), ("x", x), ("seven", c), ("p", p), ("again", y)];
        g.finish(outputs).unwrap()
    };
    let names = ["y", "unread", "x", "seven", "p", "again"];
    let expected: [&[f32]; 6] =
        [&[2.0, -4.0], &[4.0, 5.0, 6.0], &[1.0, -2.0], &[7.0], &[9.0], &[2.0, -4.0]];
    let options = CompileOptions::default();
    let map = DeviceMap::from_fn(&build(), |_| id("cpu:1"));
    let split = HeteroExecutable::compile(build(), &map, &options).unwrap();
    split.set_param("p", &[9.0]).unwrap();
    assert_eq!(split.output_names(), names);
    let inputs: [(&str, &[f32]); 2] = [("unread", &[4.0, 5.0, 6.0]), ("x", &[1.0, -2.0])];
    assert_eq!(split.run(&inputs).unwrap(), expected);

    let nine = Tensor::new([1], vec![9.0_f32]).unwrap();
    let pipeline = Pipeline::builder(build()).params([("p", nine)]).spawn().unwrap();
    let item = inputs.map(|(n, v)| (n, Tensor::from_slice([v.len()], v).unwrap()));
    let outputs = pipeline.run(item).unwrap();
    assert_eq!(pipeline.output_names(), names);
    let outputs: Vec<&[f32]> =
        outputs.iter().map(|v| v.tensor().unwrap().as_slice().unwrap()).collect();
    assert_eq!(outputs, expected);
}

/// A graph built by hand is of operator set 21; what came later is built as it came to be.
#[test]
fn an_operator_of_a_later_set_is_built_and_runs() {
    let mut g = GraphBuilder::new("later");
    let x = g.input("x", DType::F32, [1.into(), 2.into()]).unwrap();
    let scale = g.constant(Tensor::new([2], vec![1.0_f32, 2.0]).unwrap()).unwrap();
    let y = g.op("RMSNormalization", &[x, scale], &[]).unwrap();
    let graph = g.finish([("y", y)]).unwrap();
    let plain = compile_with(graph, &id("cpu:0"), &CompileOptions::default()).unwrap();
    let out = plain.run(&[("x", &[3.0, 4.0])]).unwrap();
    assert_close(&out[0], &[0.848_528_1, 2.262_741_7], 1e-5);
}

#[test]
fn several_threads_run_one_executable() {
    let map = halves(&mlp(), "cpu:0", "cpu:1");
    let split = HeteroExecutable::compile(mlp(), &map, &CompileOptions::default()).unwrap();
    bind(&split);
    let inputs: Vec<Vec<f32>> = (0..8).map(|i| numbers(90 + i, ROWS * WIDTH)).collect();
    let expected: Vec<_> = inputs.iter().map(|x| split.run(&[("x", x)]).unwrap()).collect();
    std::thread::scope(|scope| {
        for t in 0..4 {
            let (split, inputs, expected) = (&split, &inputs, &expected);
            scope.spawn(move || {
                for round in 0..25 {
                    let i = (round * 3 + t) % inputs.len();
                    assert_eq!(split.run(&[("x", &inputs[i])]).unwrap(), expected[i]);
                }
            });
        }
    });
}
