//! What a user can get wrong: each is a typed error that names the user's own tensor, device or
//! node and says what to do. Nothing is ignored, replaced or guessed, and nothing panics.

#![allow(clippy::unwrap_used, clippy::panic)]

mod devices;

use std::path::Path;
use std::sync::Arc;

use brigade::extend::{AttributeDef, AttributeKind, OpDef, Port, batch, cost, kernel_fn, types};
use brigade::graph::Graph;
use brigade::import::{Limits, from_bytes, import};
use brigade::ops::builder::GraphBuilder;
use brigade::partition::Plan;
use brigade::{
    CompileOptions, DType, DeviceMap, Error, ErrorKind, HeteroExecutable, Pipeline, Precision,
    Registry, Result, Tensor, Value, compile_with,
};
use devices::{Custom, Fault, alias, id};
use serde_json::json;

/// Checks an error's kind, that its text holds each of `named`, and that it says what to do.
#[track_caller]
fn refused<T>(result: Result<T>, kind: ErrorKind, named: &[&str], help: &str) -> Error {
    let Err(error) = result else { panic!("it was taken: {kind:?} {named:?} expected") };
    assert_eq!(error.kind(), kind, "{error}");
    for part in named {
        assert!(error.to_string().contains(part), "`{part}` is not named in: {error}");
    }
    let given = error.help().unwrap_or("");
    assert!(!help.is_empty() && given.contains(help), "`{help}` is not in the help of: {error}");
    error
}

fn floats(shape: &[usize], value: f32) -> Tensor {
    Tensor::new(shape, vec![value; shape.iter().product()]).unwrap()
}

/// `y = relu(image · w + bias)` over a batch of any size.
fn layer() -> Graph {
    let mut g = GraphBuilder::new("layer");
    let x = g.input("image", DType::F32, ["N".into(), 2.into()]).unwrap();
    let w = g.param("w", DType::F32, &[2, 2]).unwrap();
    let b = g.param("bias", DType::F32, &[2]).unwrap();
    let h = g.matmul(x, w).unwrap();
    let h = g.add(h, b).unwrap();
    let y = g.relu(h).unwrap();
    g.finish([("y", y)]).unwrap()
}

fn bound_layer() -> HeteroExecutable {
    let map = DeviceMap::single(id("cpu"));
    let layer = HeteroExecutable::compile(layer(), &map, &CompileOptions::default()).unwrap();
    layer.set_param("w", &[1.0, 0.0, 0.0, 1.0]).unwrap();
    layer.set_param("bias", &[0.5, -0.5]).unwrap();
    layer
}

fn layer_params() -> [(&'static str, Tensor); 2] {
    [("w", floats(&[2, 2], 1.0)), ("bias", floats(&[2], 0.5))]
}

/// `sum = left + right`, whose batches must agree, and `index`, which is i64.
fn joined() -> Graph {
    let mut g = GraphBuilder::new("joined");
    let a = g.input("left", DType::F32, ["N".into(), 2.into()]).unwrap();
    let b = g.input("right", DType::F32, ["N".into(), 2.into()]).unwrap();
    let i = g.input("ids", DType::I64, [2.into()]).unwrap();
    let sum = g.add(a, b).unwrap();
    let twice = g.add(i, i).unwrap();
    g.finish([("sum", sum), ("index", twice)]).unwrap()
}

fn cpu(graph: Graph) -> HeteroExecutable {
    let map = DeviceMap::single(id("cpu"));
    HeteroExecutable::compile(graph, &map, &CompileOptions::default()).unwrap()
}

// Placement.

#[test]
fn a_map_of_another_graph() {
    let map = DeviceMap::from_fn(&joined(), |_| id("cpu"));
    let options = CompileOptions::default();
    let result = HeteroExecutable::compile(layer(), &map, &options);
    refused(result, ErrorKind::Plan, &["`layer`", "another graph"], "make the map from the graph");
    let result = Pipeline::builder(layer()).placement(map).params(layer_params()).spawn();
    refused(result, ErrorKind::Plan, &["`layer`", "another graph"], "make the map from the graph");
}

#[test]
fn an_absent_primary_device() {
    let options = CompileOptions::default();
    let (npu, cpu) = (id("npu:3"), id("cpu"));
    let absent = Arc::new(Custom::new("npu:3").with(Fault::Absent("the driver is not installed")));
    let registries = [
        (Registry::default(), "there is no device", "there are cpu:0"),
        (
            Registry::default().with_device(absent),
            "the driver is not installed",
            "`brigade devices` lists",
        ),
    ];
    for (registry, why, help) in registries {
        let result = HeteroExecutable::with_fallback(layer(), &npu, &cpu, &options, &registry);
        refused(result, ErrorKind::Device, &["`npu:3`", why], help);
        let builder = || Pipeline::builder(layer()).registry(registry.clone());
        let result = builder().fallback(npu.clone(), cpu.clone()).params(layer_params()).spawn();
        refused(result, ErrorKind::Device, &["`npu:3`", why], help);

        // Where falling back is asked for, it is done and seen.
        let split =
            HeteroExecutable::with_fallback_if_present(layer(), &npu, &cpu, &options, &registry)
                .unwrap();
        assert_eq!(split.segment_devices(), std::slice::from_ref(&cpu));
        let pipeline = builder()
            .fallback_if_present(npu.clone(), cpu.clone())
            .params(layer_params())
            .spawn()
            .unwrap();
        for notices in [split.notices(), pipeline.notices()] {
            assert_eq!(notices.len(), 1, "{notices:?}");
            for part in ["`npu:3`", "`cpu:0`", why] {
                assert!(notices[0].contains(part), "{}", notices[0]);
            }
        }
        // The device to fall back to has to be there in any case.
        let result =
            HeteroExecutable::with_fallback_if_present(layer(), &cpu, &npu, &options, &registry);
        refused(result, ErrorKind::Device, &["`npu:3`", why], help);
        let other = id("dsp:0");
        let result =
            HeteroExecutable::with_fallback_if_present(layer(), &npu, &other, &options, &registry);
        refused(result, ErrorKind::Device, &["`dsp:0`"], "there are");
    }
}

#[test]
fn a_misspelt_device() {
    let options = CompileOptions::default();
    let result = compile_with(layer(), &id("cudda"), &options);
    refused(result, ErrorKind::Device, &["`cudda:0`"], "there are cpu:0");
    let map = DeviceMap::from_fn(&layer(), |n| id(if n.op == "Relu" { "cudda" } else { "cpu" }));
    let result = HeteroExecutable::compile(layer(), &map, &options);
    refused(result, ErrorKind::Device, &["`cudda:0`"], "there are cpu:0");
    let builder = Pipeline::builder(layer()).params(layer_params());
    let result = builder.stages(2, &["cpu", "cudda:1"]).unwrap().spawn();
    refused(result, ErrorKind::Device, &["`cudda:1`"], "there are cpu:0");
    let result = Pipeline::builder(layer()).stages(2, &["cpu", "Cuda 1"]);
    refused(result, ErrorKind::Usage, &["`Cuda 1`"], "such as `cpu`");
}

#[test]
fn a_node_that_no_device_runs() {
    let registry =
        Registry::default().with_device(Arc::new(Custom::new("npu:0").refusing(&["Relu"])));
    let options = CompileOptions::default();
    let map = DeviceMap::single(id("npu"));
    let result = HeteroExecutable::compile_in(layer(), &map, &options, &registry);
    let relu = layer().nodes()[2].name.clone();
    let named = ["`npu:0`", relu.as_str(), "it has no kernel for Relu"];
    refused(result, ErrorKind::Unsupported, &named, "place these nodes on another device");

    let registry =
        registry.with_device(Arc::new(Custom::new("npu:1").refusing(&["Relu", "MatMul"])));
    let (first, second) = (id("npu:0"), id("npu:1"));
    let result = HeteroExecutable::with_fallback(layer(), &first, &second, &options, &registry);
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    for part in [relu.as_str(), "`npu:0`", "`npu:1`"] {
        assert!(error.to_string().contains(part), "{error}");
    }
    assert!(!error.to_string().contains("MatMul"), "npu:0 runs it: {error}");
}

#[test]
fn a_precision_that_a_device_does_not_compute_in() {
    let offers = &[Precision::F32, Precision::Tf32, Precision::F16];
    let npu = Arc::new(Custom::new("npu:0").offering(offers));
    let registry = Registry::default().with_device(Arc::clone(&npu) as _);
    let builder = || {
        Pipeline::builder(layer())
            .params(layer_params())
            .registry(registry.clone())
            .stages(2, &["npu:0", "cpu:0"])
            .unwrap()
    };
    let result = builder().precision(id("npu"), Precision::Bf16).spawn();
    let named = ["`npu:0` does not compute in bf16"];
    refused(result, ErrorKind::Unsupported, &named, "it offers f32, tf32 or f16");
    // The whole compilation says it of all devices that nothing else is said of.
    let options = CompileOptions { precision: Precision::F16, ..CompileOptions::default() };
    let result = builder().options(options.clone()).spawn();
    refused(result, ErrorKind::Unsupported, &["`cpu:0` does not compute in f16"], "it offers f32");
    assert_eq!(npu.compiled(), 0);
    let pipeline = builder().options(options).precision(id("cpu"), Precision::F32).spawn().unwrap();
    assert_eq!(npu.asked(), [Precision::F16]);
    let report = pipeline.sequential().report(&|_| None);
    let precisions: Vec<Precision> = report.segments.iter().map(|s| s.precision).collect();
    assert_eq!(precisions, [Precision::F16, Precision::F32]);
    builder().precision(id("npu"), Precision::Tf32).spawn().unwrap();
    assert_eq!(npu.asked(), [Precision::F16, Precision::Tf32]);
    let spared = builder().precision(id("npu:9"), Precision::Tf32).spawn().unwrap();
    assert!(spared.notices().iter().any(|n| n.contains("a precision is given to `npu:9`")));
    // Plans say it, too, and a device that is asked directly refuses by itself.
    let plan = |json: &str| {
        Pipeline::builder(layer()).params(layer_params()).plan(Plan::parse(json).unwrap())
    };
    let json = r#"{"schema":1,"default_device":"cpu:0","precision":{"cpu:0":"tf32"}}"#;
    let named = ["`cpu:0` does not compute in tf32"];
    refused(plan(json).spawn(), ErrorKind::Unsupported, &named, "it offers f32");
    let options = CompileOptions { precision: Precision::Tf32, ..CompileOptions::default() };
    let direct = alias("cpu:0").compile(layer(), &options);
    refused(direct, ErrorKind::Unsupported, &named, "it offers f32");
}

#[test]
fn stages_that_cannot_be() {
    let builder = || Pipeline::builder(layer()).params(layer_params());
    let result = builder().stages(9, &["cpu"]).unwrap().spawn();
    refused(result, ErrorKind::Plan, &["9 stages", "`layer`"], "at most 3");
    let result = builder().stages(0, &["cpu"]).unwrap().spawn();
    refused(result, ErrorKind::Plan, &["no stages"], "one stage or more");
    let result = builder().stages(2, &[]).unwrap().spawn();
    refused(result, ErrorKind::Plan, &["no device"], "name one device");
}

// Parameters.

#[test]
fn an_unknown_parameter() {
    let layer = bound_layer();
    let help = "its parameters are `w`, `bias`";
    refused(layer.set_param("weight", &[0.0; 4]), ErrorKind::UnknownName, &["`weight`"], help);
    let result = layer.set_param_typed("image", DType::I64, &[0; 16]);
    refused(result, ErrorKind::UnknownName, &["`image`"], help);
    let result = Pipeline::builder(self::layer()).params([("W", floats(&[2, 2], 0.0))]).spawn();
    refused(result, ErrorKind::UnknownName, &["`W`"], help);
}

#[test]
fn a_parameter_of_another_length_or_dtype() {
    let layer = bound_layer();
    let declared = ["parameter `w`", "f32[2,2]", "3"];
    refused(layer.set_param("w", &[0.0; 3]), ErrorKind::Shape, &declared, "elements");
    let result = layer.set_param_typed("w", DType::F32, &[0; 15]);
    refused(result, ErrorKind::Shape, &["parameter `w`", "f32[2,2]"], "elements");
    let result = layer.set_param_typed("w", DType::F64, &[0; 32]);
    refused(result, ErrorKind::DType, &["parameter `w`", "f32[2,2]", "f64"], "f32");
    let result = layer.bind("w", floats(&[4, 1], 0.0));
    refused(result, ErrorKind::Shape, &["parameter `w`", "f32[2,2]", "f32[4,1]"], "f32[2,2]");
    let result = layer.bind("w", Tensor::of_i64(&[1]));
    refused(result, ErrorKind::DType, &["parameter `w`", "f32[2,2]", "i64[1]"], "f32[2,2]");
    // What was bound before still is.
    assert_eq!(layer.run(&[("image", &[1.0, 2.0])]).unwrap(), [[1.5, 1.5]]);
}

#[test]
fn parameters_that_are_not_bound_are_all_listed() {
    let map = DeviceMap::single(id("cpu"));
    let layer = HeteroExecutable::compile(layer(), &map, &CompileOptions::default()).unwrap();
    let result = layer.run(&[("image", &[1.0, 2.0])]);
    refused(result, ErrorKind::Missing, &["`w`", "`bias`"], "set_param");
    layer.set_param("w", &[0.0; 4]).unwrap();
    let error = layer.run(&[("image", &[1.0, 2.0])]).unwrap_err();
    assert!(error.message().contains("`bias`") && !error.message().contains("`w`"), "{error}");
    let result = Pipeline::builder(self::layer()).spawn();
    refused(result, ErrorKind::Missing, &["`w`", "`bias`"], "set_param");
}

#[test]
fn a_parameter_given_twice() {
    let twice = layer_params().into_iter().chain([("w", floats(&[2, 2], 3.0))]);
    let result = Pipeline::builder(layer()).params(twice).spawn();
    refused(result, ErrorKind::Duplicate, &["parameter `w`"], "once");
}

/// The oracle of a pipeline is what the pipeline runs; it cannot be made another.
#[test]
fn a_parameter_set_behind_a_pipeline() {
    let pipeline = Pipeline::builder(layer()).params(layer_params()).spawn().unwrap();
    let result = pipeline.sequential().set_param("w", &[0.0; 4]);
    refused(result, ErrorKind::Usage, &["parameter `w`", "spawned"], "another pipeline");
}

// Inputs and outputs.

#[test]
fn an_unknown_input() {
    let layer = bound_layer();
    let result = layer.run(&[("imgae", &[1.0, 2.0])]);
    refused(result, ErrorKind::UnknownName, &["`imgae`"], "its inputs are `image`");
    // Also beside those that are right.
    let result = layer.run(&[("image", &[1.0, 2.0]), ("mask", &[1.0])]);
    refused(result, ErrorKind::UnknownName, &["`mask`"], "its inputs are `image`");
    let pipeline = Pipeline::builder(self::layer()).params(layer_params()).spawn().unwrap();
    let result = pipeline.push([("imgae", floats(&[1, 2], 0.0))]).map(drop);
    refused(result, ErrorKind::UnknownName, &["`imgae`"], "its inputs are `image`");
}

#[test]
fn an_input_given_twice() {
    let layer = bound_layer();
    let result = layer.run(&[("image", &[1.0, 2.0]), ("image", &[3.0, 4.0])]);
    refused(result, ErrorKind::Duplicate, &["`image`"], "once");
    let pipeline = Pipeline::builder(self::layer()).params(layer_params()).spawn().unwrap();
    let item = || ("image", floats(&[1, 2], 0.0));
    refused(pipeline.run([item(), item()]), ErrorKind::Duplicate, &["`image`"], "once");
}

#[test]
fn missing_inputs_are_all_listed() {
    let joined = cpu(joined());
    let result = joined.run_typed(&[("right", floats(&[1, 2], 0.0))]);
    let error = refused(result, ErrorKind::Missing, &["`left`", "`ids`"], "`right`");
    assert!(!error.message().contains("`right`"), "{error}");
}

#[test]
fn inputs_of_another_dtype_or_shape() {
    let layer = bound_layer();
    let result = layer.run_typed(&[("image", Tensor::of_i64(&[1, 2]))]);
    refused(result, ErrorKind::DType, &["`image`", "f32[N,2]", "i64[2]"], "f32");
    for shape in [&[2_usize][..], &[1, 3], &[1, 1, 2]] {
        let tensor = floats(shape, 0.0);
        let described = tensor.describe();
        let result = layer.run_typed(&[("image", tensor.clone())]);
        refused(result, ErrorKind::Shape, &["`image`", "f32[N,2]", &described], "f32[N,2]");
        let pipeline = Pipeline::builder(self::layer()).params(layer_params()).spawn().unwrap();
        let mut results = pipeline.stream([[("image", tensor)], [("image", floats(&[1, 2], 0.0))]]);
        let first = results.next().unwrap();
        refused(first, ErrorKind::Shape, &["`image`", "f32[N,2]", &described], "f32[N,2]");
        // The item after it is not harmed.
        results.next().unwrap().unwrap();
        assert!(results.next().is_none());
    }
    // By length alone.
    let result = layer.run(&[("image", &[1.0, 2.0, 3.0])]);
    refused(result, ErrorKind::Shape, &["`image`", "f32[N,2]", "3"], "elements");
}

#[test]
fn f32_where_the_graph_has_i64() {
    let joined = cpu(joined());
    let (two, ids) = (floats(&[1, 2], 1.0), Tensor::of_i64(&[16_777_217, 1]));
    let result = joined.run(&[("left", &[1.0, 2.0]), ("right", &[1.0, 2.0]), ("ids", &[1.0, 2.0])]);
    refused(result, ErrorKind::DType, &["`ids`", "i64[2]", "f32"], "run_typed");
    let typed = [("left", two.clone()), ("right", two), ("ids", ids)];
    let outputs = joined.run_typed(&typed).unwrap();
    assert_eq!(outputs[1].1.tensor().unwrap().as_slice::<i64>().unwrap(), [33_554_434, 2]);

    // An output of i64 from inputs of f32.
    let mut g = GraphBuilder::new("shape");
    let x = g.input("x", DType::F32, ["N".into(), 2.into()]).unwrap();
    let s = g.op("Shape", &[x], &[]).unwrap();
    let graph = g.finish([("size", s)]).unwrap();
    let result = cpu(graph).run(&[("x", &[1.0, 2.0])]);
    refused(result, ErrorKind::DType, &["output `size`", "i64"], "run_typed");
}

#[test]
fn a_symbol_with_two_values() {
    let (three, two) = (floats(&[3, 2], 0.0), floats(&[2, 2], 0.0));
    let inputs = [("left", three), ("right", two), ("ids", Tensor::of_i64(&[1, 2]))];
    let named = ["`N`", "3", "`left`", "2", "`right`"];
    refused(cpu(joined()).run_typed(&inputs), ErrorKind::Shape, &named, "one extent");
    let pipeline = Pipeline::builder(joined()).micro_batch(1).spawn().unwrap();
    refused(pipeline.run(inputs), ErrorKind::Shape, &named, "one extent");
}

#[test]
fn options_that_name_what_is_not_there() {
    let builder = || Pipeline::builder(layer()).params(layer_params());
    let result = builder().expected_shape("imgae", &[4, 2]).spawn();
    refused(result, ErrorKind::UnknownName, &["`imgae`"], "its inputs are `image`");
    let result = builder().batch_axis("imgae", Some(0)).spawn();
    refused(result, ErrorKind::UnknownName, &["`imgae`"], "its inputs are `image`");
    let pipeline = builder().threads(id("cpu:7"), 2).spawn().unwrap();
    assert!(pipeline.notices().iter().any(|n| n.contains("`cpu:7`")), "{:?}", pipeline.notices());
    let options = CompileOptions { disabled_passes: vec!["fold".into()], ..Default::default() };
    let error = builder().options(options).spawn().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    assert!(error.to_string().contains("`fold`"), "{error}");
}

// Batches.

#[test]
fn sizes_of_zero() {
    let builder = || Pipeline::builder(layer()).params(layer_params());
    let result = builder().micro_batch(0).spawn();
    refused(result, ErrorKind::Usage, &["micro-batch", "0"], "at least 1");
    let result = builder().in_flight(0).spawn();
    refused(result, ErrorKind::Usage, &["0 items in flight"], "at least 1");
    let result = builder().threads(id("cpu"), 0).spawn();
    refused(result, ErrorKind::Usage, &["0 kernel threads"], "at least 1");
    let options = CompileOptions { threads: 0, ..CompileOptions::default() };
    let result = compile_with(layer(), &id("cpu"), &options);
    refused(result, ErrorKind::Usage, &["0 kernel threads"], "at least 1");
}

#[test]
fn sizes_beyond_reason() {
    // Each would take the machine's memory or threads before anything else could refuse it.
    let builder = || Pipeline::builder(layer()).params(layer_params());
    let result = builder().in_flight(1_000_000_000).spawn();
    refused(result, ErrorKind::Usage, &["1000000000 items in flight"], "at most 65536");
    let result = builder().threads(id("cpu"), 1_000_000).spawn();
    refused(result, ErrorKind::Usage, &["1000000 kernel threads"], "at most 256");
    let result = builder().threads(id("cpu:7"), 257).spawn();
    refused(result, ErrorKind::Usage, &["257 kernel threads"], "at most 256");
    let result = builder().replicas(0, 257).spawn();
    refused(result, ErrorKind::Usage, &["segment 0", "257 replicas"], "at most 256");
    let options = CompileOptions { threads: 1_000_000, ..CompileOptions::default() };
    let result = compile_with(layer(), &id("cpu"), &options);
    refused(result, ErrorKind::Usage, &["1000000 kernel threads"], "at most 256");
    let device = Registry::default().device(&id("cpu")).unwrap();
    let result = device.compile(joined(), &options).map(drop);
    refused(result, ErrorKind::Usage, &["1000000 kernel threads"], "at most 256");
    let everywhere = || Plan { default_device: Some(id("cpu")), ..Plan::default() };
    let plan = Plan { threads: [(id("cpu"), 100_000)].into(), ..everywhere() };
    let result = builder().plan(plan).spawn();
    refused(result, ErrorKind::Plan, &["`cpu:0`", "100000 kernel threads"], "at most 256");
    let plan = Plan { replicas: [(0, 257)].into(), ..everywhere() };
    let result = builder().plan(plan).spawn();
    refused(result, ErrorKind::Plan, &["segment 0", "257 replicas"], "at most 256");
}

#[test]
fn an_empty_batch_gives_no_rows() {
    let empty = floats(&[0, 2], 0.0);
    let outputs = bound_layer().run_typed(&[("image", empty.clone())]).unwrap();
    assert_eq!(outputs[0].1.tensor().unwrap().describe(), "f32[0,2]");
    assert_eq!(bound_layer().run(&[("image", &[])]).unwrap(), [[0.0_f32; 0]]);
    for micro in [None, Some(1), Some(3)] {
        let mut builder = Pipeline::builder(layer())
            .params(layer_params())
            .stages(2, &["cpu:0", "cpu:1"])
            .unwrap();
        if let Some(m) = micro {
            builder = builder.micro_batch(m);
        }
        let outputs = builder.spawn().unwrap().run([("image", empty.clone())]).unwrap();
        assert_eq!(outputs[0].tensor().unwrap().describe(), "f32[0,2]");
    }
}

/// `y = image - mean(image over the batch)`.
fn centred() -> Graph {
    let mut g = GraphBuilder::new("centred");
    let x = g.input("image", DType::F32, ["N".into(), 2.into()]).unwrap();
    let axes = g.constant(Tensor::of_i64(&[0])).unwrap();
    let mean = g.op("ReduceMean", &[x, axes], &[]).unwrap();
    let y = g.sub(x, mean).unwrap();
    g.finish([("y", y)]).unwrap()
}

#[test]
fn a_batch_that_may_not_be_cut() {
    let node = centred().nodes().iter().find(|n| n.op == "ReduceMean").unwrap().name.clone();
    let pipeline = Pipeline::builder(centred()).micro_batch(1).spawn().unwrap();
    let batch = Tensor::new([2, 2], vec![1.0_f32, 2.0, 3.0, 6.0]).unwrap();
    let named = [format!("`{node}`"), "ReduceMean".to_owned()];
    let named: Vec<&str> = named.iter().map(String::as_str).collect();
    let result = pipeline.run([("image", batch.clone())]);
    refused(result, ErrorKind::Batch, &named, "run it whole");
    refused(pipeline.batch_axes(), ErrorKind::Batch, &named, "run it whole");
    // Whole, it runs.
    let whole = Pipeline::builder(centred()).spawn().unwrap();
    let outputs = whole.run([("image", batch)]).unwrap();
    let y = outputs[0].tensor().unwrap();
    assert_eq!(y.as_slice::<f32>().unwrap(), [-1.0, -2.0, 1.0, 2.0]);
}

#[test]
fn a_fixed_batch() {
    let mut g = GraphBuilder::new("fixed");
    let x = g.input("image", DType::F32, [2.into(), 2.into()]).unwrap();
    let y = g.relu(x).unwrap();
    let graph = g.finish([("y", y)]).unwrap();
    let pipeline = Pipeline::builder(graph).micro_batch(1).spawn().unwrap();
    let result = pipeline.run([("image", floats(&[2, 2], 1.0))]);
    refused(result, ErrorKind::Batch, &["`image`", "fixed", "2"], "batches of that size");
    let result = pipeline.run([("image", floats(&[4, 2], 1.0))]);
    refused(result, ErrorKind::Shape, &["`image`", "f32[2,2]", "f32[4,2]"], "f32[2,2]");
}

// Graphs.

/// `layer` as JSON text, after a change.
fn changed(change: impl FnOnce(&mut serde_json::Value)) -> Graph {
    let mut json = serde_json::to_value(layer()).unwrap();
    change(&mut json);
    serde_json::from_value(json).unwrap()
}

/// Every way into the crate refuses the graph by the same error.
#[track_caller]
fn refused_graph(graph: &Graph, kind: ErrorKind, named: &[&str]) {
    let options = CompileOptions::default();
    let (cpu, registry) = (id("cpu"), Registry::default());
    let map = DeviceMap::from_fn(graph, |_| id("cpu"));
    let errors = [
        graph.validate().unwrap_err(),
        compile_with(graph.clone(), &cpu, &options).unwrap_err(),
        HeteroExecutable::compile(graph.clone(), &map, &options).unwrap_err(),
        HeteroExecutable::with_fallback(graph.clone(), &cpu, &cpu, &options, &registry)
            .unwrap_err(),
        Pipeline::builder(graph.clone()).spawn().unwrap_err(),
        Pipeline::builder(graph.clone()).stages(2, &["cpu"]).unwrap().spawn().unwrap_err(),
        DeviceMap::balanced(graph, &[id("cpu")], 2, &|_| 1.0, &|_| 1.0).unwrap_err(),
        DeviceMap::contiguous(graph, &[id("cpu")], &[1]).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), kind, "{error}");
        for part in named {
            assert!(error.message().contains(part), "`{part}` is not in: {error}");
        }
    }
}

#[test]
fn graphs_that_are_not_well_formed() {
    let graph = layer();
    let (first, second) = (graph.nodes()[0].name.clone(), graph.nodes()[1].name.clone());
    let made = graph.value(graph.nodes()[1].outputs[0].unwrap()).name.clone();
    let cyclic = changed(|g| g["nodes"][0]["inputs"][0] = g["nodes"][1]["outputs"][0].clone());
    refused_graph(&cyclic, ErrorKind::Graph, &[&first, &made, "cycle"]);
    let itself = changed(|g| g["nodes"][1]["inputs"][0] = g["nodes"][1]["outputs"][0].clone());
    refused_graph(&itself, ErrorKind::Graph, &[&second, &made, "cycle"]);
    let dangling = changed(|g| {
        let values = g["values"].as_array_mut().unwrap();
        values.push(json!({
            "name": "ghost", "fact": {"dtype": null, "shape": null}, "constant": null,
            "param": false,
        }));
        let at = values.len() - 1;
        g["nodes"][0]["inputs"][0] = at.into();
    });
    refused_graph(&dangling, ErrorKind::Graph, &[&first, "`ghost`", "made by no node"]);
    for list in ["inputs", "outputs"] {
        let beyond = changed(|g| g["nodes"][0][list][0] = 999.into());
        refused_graph(&beyond, ErrorKind::Graph, &[&first, "does not exist"]);
        let beyond = changed(|g| g[list][0] = u32::MAX.into());
        refused_graph(&beyond, ErrorKind::Graph, &["`layer`", "does not have"]);
    }
    let same = changed(|g| g["nodes"][1]["name"] = g["nodes"][0]["name"].clone());
    refused_graph(&same, ErrorKind::Duplicate, &[&first, "two nodes"]);
    let same = changed(|g| g["values"][1]["name"] = g["values"][0]["name"].clone());
    refused_graph(&same, ErrorKind::Duplicate, &["`image`", "two values"]);
    let twice = changed(|g| g["nodes"][1]["outputs"][0] = g["nodes"][0]["outputs"][0].clone());
    refused_graph(&twice, ErrorKind::Duplicate, &[&second, "made twice"]);
}

#[test]
fn operators_that_are_not_there_are_all_listed() {
    let graph = changed(|g| {
        g["nodes"][0]["op"] = "Frobnicate".into();
        g["nodes"][2]["op"] = "Defenestrate".into();
        g["nodes"][2]["domain"] = "org.example".into();
    });
    let whole = layer();
    let (first, third) = (&whole.nodes()[0].name, &whole.nodes()[2].name);
    let error = compile_with(graph, &id("cpu"), &CompileOptions::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    for part in ["Frobnicate", "Defenestrate", "org.example", first, third] {
        assert!(error.to_string().contains(part), "`{part}` is not in: {error}");
    }
}

// Model files.

#[test]
fn models_that_are_not_there_or_damaged() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    };
    let whole =
        std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/digits/digits.onnx"));
    let whole = whole.unwrap();
    let limits = Limits::default();
    import(file("whole.onnx", &whole), &limits).unwrap();

    let absent = import(folder.path().join("absent.onnx"), &limits).unwrap_err();
    assert_eq!(absent.kind(), ErrorKind::Io);
    assert!(absent.to_string().contains("absent.onnx"), "{absent}");

    let magics: [(&str, &[u8], &str); 4] = [
        ("empty.onnx", b"", "empty"),
        ("page.onnx", b"<!DOCTYPE html><html>", "HTML"),
        ("pointer.onnx", b"version https://git-lfs.github.com/spec/v1", "git lfs pull"),
        ("weights.onnx", b"GGUF\x03\0\0\0", "GGUF"),
    ];
    for (name, bytes, why) in magics {
        let error = import(file(name, bytes), &limits).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Format, "{error}");
        assert!(error.to_string().contains(name) && error.to_string().contains(why), "{error}");
        assert!(error.help().is_some(), "{error}");
    }

    // Cut short anywhere, it is refused, not read as a smaller model.
    for cut in (1..whole.len()).step_by(whole.len() / 61 + 1) {
        let error = import(file("cut.onnx", &whole[..cut]), &limits).unwrap_err();
        assert!(error.to_string().contains("cut.onnx"), "{error}");
        assert_ne!(error.kind(), ErrorKind::Internal, "{error}");
    }
    // Damaged, it is read or refused; what is read compiles or is refused.
    for round in 0..64_usize {
        let mut bytes = whole.clone();
        for k in 0..=round % 4 {
            let at = (round * 7919 + k * 104_729) % bytes.len().min(4096);
            bytes[at] ^= 1 << ((round + k) % 8);
        }
        let outcome = from_bytes(&bytes, None, &limits)
            .and_then(|m| compile_with(m.graph, &id("cpu"), &CompileOptions::default()));
        if let Err(error) = outcome {
            assert_ne!(error.kind(), ErrorKind::Internal, "round {round}: {error}");
        }
    }
}

/// Fields of protobuf messages, as ONNX files hold them.
mod wire {
    fn varint(mut v: u64, out: &mut Vec<u8>) {
        while v >= 0x80 {
            out.push((v & 0x7f) as u8 | 0x80);
            v >>= 7;
        }
        out.push(v as u8);
    }

    pub(crate) fn number(field: u64, v: u64) -> Vec<u8> {
        let mut out = Vec::new();
        varint(field << 3, &mut out);
        varint(v, &mut out);
        out
    }

    pub(crate) fn bytes(field: u64, v: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        varint(field << 3 | 2, &mut out);
        varint(v.len() as u64, &mut out);
        out.extend(v);
        out
    }
}

/// A model `y = x + w` over f32[2] whose `w` is in `w.bin`.
fn external_model() -> Vec<u8> {
    use wire::{bytes, number};
    let value = |name: &str| {
        let shape = bytes(1, &number(1, 2));
        let tensor = [number(1, 1), bytes(2, &shape)].concat();
        [bytes(1, name.as_bytes()), bytes(2, &bytes(1, &tensor))].concat()
    };
    let location = [bytes(1, b"location"), bytes(2, b"w.bin")].concat();
    let weight =
        [number(1, 2), number(2, 1), bytes(8, b"w"), bytes(13, &location), number(14, 1)].concat();
    let node =
        [bytes(1, b"x"), bytes(1, b"w"), bytes(2, b"y"), bytes(3, b"plus"), bytes(4, b"Add")]
            .concat();
    let graph = [
        bytes(1, &node),
        bytes(2, b"g"),
        bytes(5, &weight),
        bytes(11, &value("x")),
        bytes(12, &value("y")),
    ]
    .concat();
    [number(1, 8), bytes(8, &number(2, 17)), bytes(7, &graph)].concat()
}

#[test]
fn missing_external_data() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model.onnx");
    std::fs::write(&model, external_model()).unwrap();
    let limits = Limits::default();
    let named = ["model.onnx", "w.bin"];
    let result = import(&model, &limits);
    let error = refused(result, ErrorKind::Io, &named, "in the folder of the model");
    assert!(error.to_string().contains("`w`"), "the tensor is not named: {error}");
    let result = from_bytes(&external_model(), None, &limits);
    refused(result, ErrorKind::Missing, &["`w`", "w.bin"], "give the model's folder");
    // Too short.
    std::fs::write(folder.path().join("w.bin"), [0; 7]).unwrap();
    let error = import(&model, &limits).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Format, "{error}");
    for part in ["model.onnx", "`w`"] {
        assert!(error.to_string().contains(part), "`{part}` is not in: {error}");
    }
    // And what it takes.
    let ones: Vec<u8> = [1.0_f32, 2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    std::fs::write(folder.path().join("w.bin"), ones).unwrap();
    let graph = import(&model, &limits).unwrap().graph;
    assert_eq!(cpu(graph).run(&[("x", &[1.0, 1.0])]).unwrap(), [[2.0, 3.0]]);
}

// Devices that misbehave.

/// Two segments, the first one on `npu:0`.
fn on_npu(fault: Fault) -> (Graph, DeviceMap, Registry) {
    let mut g = GraphBuilder::new("two");
    let x = g.input("x", DType::F32, [2.into()]).unwrap();
    let h = g.add(x, x).unwrap();
    let y = g.relu(h).unwrap();
    let graph = g.finish([("y", y)]).unwrap();
    let map = DeviceMap::from_fn(&graph, |n| id(if n.op == "Add" { "npu" } else { "cpu" }));
    let registry = Registry::default().with_device(Arc::new(Custom::new("npu:0").with(fault)));
    (graph, map, registry)
}

fn row(value: f32) -> [(&'static str, Tensor); 1] {
    [("x", floats(&[2], value))]
}

fn first(outputs: &[Value]) -> f32 {
    outputs[0].tensor().unwrap().as_slice::<f32>().unwrap()[0]
}

#[test]
fn a_device_that_panics_fails_its_item_alone() {
    let (graph, map, registry) = on_npu(Fault::PanicsOn(13.0, "it is a Friday"));
    let options = CompileOptions::default();
    let split = HeteroExecutable::compile_in(graph.clone(), &map, &options, &registry).unwrap();
    let named = ["it is a Friday", "npu:0"];
    let check = |error: &Error| {
        assert_eq!(error.kind(), ErrorKind::Panic, "{error}");
        for part in named {
            assert!(error.to_string().contains(part), "`{part}` is not in: {error}");
        }
    };
    for value in [1.0, 13.0, 2.0, 13.0, 3.0] {
        match split.run_typed(&row(value)) {
            Ok(outputs) => assert_eq!(first(&[outputs[0].1.clone()]), 2.0 * value),
            Err(error) => {
                assert_eq!(value, 13.0, "{error}");
                check(&error);
            }
        }
    }

    let pipeline =
        Pipeline::builder(graph).placement(map).registry(registry).in_flight(3).spawn().unwrap();
    let values = [1.0, 2.0, 13.0, 3.0, 13.0, 4.0, 5.0, 6.0];
    let results: Vec<_> = pipeline.stream(values.map(row)).collect();
    assert_eq!(results.len(), values.len());
    for (i, (result, value)) in results.iter().zip(values).enumerate() {
        match result {
            Ok(outputs) => assert_eq!(first(outputs), 2.0 * value),
            Err(error) => {
                assert_eq!(value, 13.0, "item {i}: {error}");
                assert_eq!(error.item(), Some(i as u64), "{error}");
                check(error);
            }
        }
    }
    assert_eq!(results.iter().filter(|r| r.is_err()).count(), 2);
}

#[test]
fn a_device_that_cannot_start() {
    let faults = [
        (Fault::NoInstance("out of memory"), ErrorKind::Device),
        (Fault::InstancePanics("out of patience"), ErrorKind::Panic),
        (Fault::CompilePanics("out of order"), ErrorKind::Panic),
    ];
    for (fault, kind) in faults {
        let (graph, map, registry) = on_npu(fault);
        let options = CompileOptions::default();
        let sequential = HeteroExecutable::compile_in(graph.clone(), &map, &options, &registry)
            .and_then(|split| split.run_typed(&row(1.0)));
        let spawned = Pipeline::builder(graph).placement(map).registry(registry).spawn().map(drop);
        for error in [sequential.unwrap_err(), spawned.unwrap_err()] {
            assert_eq!(error.kind(), kind, "{error}");
            assert_eq!(error.device(), Some("npu:0"), "{error}");
            assert!(error.message().contains("out of"), "{error}");
        }
    }
}

#[test]
fn a_device_that_forgets_an_output() {
    let (graph, map, registry) = on_npu(Fault::ForgetsAnOutput);
    let options = CompileOptions::default();
    let split = HeteroExecutable::compile_in(graph.clone(), &map, &options, &registry).unwrap();
    let pipeline = Pipeline::builder(graph).placement(map).registry(registry).spawn().unwrap();
    let errors = [split.run_typed(&row(1.0)).unwrap_err(), pipeline.run(row(1.0)).unwrap_err()];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Kernel, "{error}");
        assert_eq!(error.device(), Some("npu:0"), "{error}");
        assert!(error.message().contains("0 outputs of 1"), "{error}");
    }
}

// Operators of one's own.

/// `com.example.Odd`, inferred as f32[N,4] of its f32[N,4] input; what the kernel emits depends on
/// the attribute `fault`.
static ODD: OpDef = OpDef {
    name: "Odd",
    domain: "com.example",
    since: 1,
    attributes: &[AttributeDef::optional("fault", AttributeKind::Int)],
    inputs: &[Port::required("X", types::F32S)],
    outputs: &[Port::required("Y", types::F32S)],
    infer: |i| {
        i.set(0, i.dtype(0), i.shape(0));
        Ok(())
    },
    batch: batch::unary,
    cost: cost::elementwise,
    prepare: |p| {
        let fault = p.node.int("fault")?.unwrap_or(0);
        Ok(kernel_fn(move |io| {
            let x = io.take_tensor(0)?;
            match fault {
                0 => io.emit(x),
                1 => io.emit(x.reshape([2, 2])?),
                2 => io.emit(x.reshape([4])?),
                3 => io.emit(Tensor::of_i64(&[1, 2, 3, 4]).reshape([1, 4])?),
                4 => {
                    io.emit(x.clone());
                    io.emit(x);
                }
                _ => {}
            }
            Ok(())
        }))
    },
    cases: Vec::new,
};

#[test]
fn a_kernel_that_emits_what_was_not_inferred() {
    let registry = Registry::default().with_op(&ODD);
    for (fault, named) in [
        (0, None),
        (1, Some("declared f32[N,4], got f32[2,2]")),
        (2, Some("declared f32[N,4], got f32[4]")),
        (3, Some("declared f32[N,4], got i64[1,4]")),
        (4, Some("2 outputs of 1")),
        (5, Some("0 outputs of 1")),
    ] {
        let mut g = GraphBuilder::with_registry("odd", registry.ops().clone());
        let x = g.input("x", DType::F32, ["N".into(), 4.into()]).unwrap();
        let h = g.op("com.example.Odd", &[x], &[("fault", fault.into())]).unwrap();
        let y = g.relu(h).unwrap();
        let graph = g.finish([("y", y)]).unwrap();
        // In one segment, and where the next one would have been blamed.
        for stages in [1, 2] {
            let pipeline = Pipeline::builder(graph.clone())
                .registry(registry.clone())
                .stages(stages, &["cpu:0", "cpu:1"])
                .unwrap()
                .spawn()
                .unwrap();
            let x = || [("x", floats(&[1, 4], 1.0))];
            let values = || x().map(|(n, t)| (n.to_owned(), t.into())).to_vec();
            for result in [pipeline.run(x()), pipeline.sequential().run_values(values())] {
                let Some(named) = named else {
                    assert_eq!(first(&result.unwrap()), 1.0);
                    continue;
                };
                let error = result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Kernel, "{error}");
                assert_eq!(error.op(), Some("Odd"), "{error}");
                assert!(error.node().is_some() && error.message().contains(named), "{error}");
            }
        }
    }
}
