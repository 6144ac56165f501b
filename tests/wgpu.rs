//! The device `wgpu:0`, on whatever adapter there is: the cases of the operators that it has, and
//! graphs that it shares with the CPU. Without a driver what is left out is said;
//! `BRIGADE_REQUIRE_WGPU=1` makes that a failure. Needs the feature `wgpu`.
#![allow(clippy::unwrap_used, clippy::panic)]

#[allow(dead_code)]
#[path = "acceptance/models.rs"]
mod models;

#[path = "devices/late.rs"]
mod late;
#[path = "devices/operators.rs"]
mod operators;

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use brigade::device::{CompiledSegment, Device, DeviceInfo, Support, Unavailable, WgpuDevice};
use brigade::graph::{Fact, Graph, Node};
use brigade::ops::OpRegistry;
use brigade::ops::builder::GraphBuilder;
use brigade::partition::EdgePath;
use brigade::pipeline::compile_in;
use brigade::{
    CompileOptions, DType, DeviceId, DeviceMap, ErrorKind, HeteroExecutable, Pipeline, Registry,
    Result, Tensor, Value,
};

use operators::differs;

fn wgpu() -> DeviceId {
    "wgpu:0".parse().unwrap()
}

/// Held while a test runs, so that the one that loses the device runs alone.
static DEVICE: RwLock<()> = RwLock::new(());

/// The right to use the adapter; says what is left out if there is none.
fn adapter() -> Option<RwLockReadGuard<'static, ()>> {
    let guard = DEVICE.read().unwrap_or_else(PoisonError::into_inner);
    is_there().then_some(guard)
}

fn is_there() -> bool {
    match WgpuDevice::new(0, OpRegistry::default()).unwrap().probe() {
        Ok(_) => true,
        Err(why) => {
            let required = std::env::var_os("BRIGADE_REQUIRE_WGPU").is_some_and(|v| v == "1");
            assert!(!required, "BRIGADE_REQUIRE_WGPU=1, but wgpu:0 is unavailable: {why}");
            eprintln!("left out: wgpu:0 is unavailable: {why}");
            false
        }
    }
}

#[test]
fn every_operator_that_the_device_has_passes_its_cases() {
    let Some(_device) = adapter() else { return };
    eprintln!("on wgpu:0 {}", operators::pass_their_cases(&wgpu()));
}

#[test]
fn the_device_says_what_it_is_and_what_it_refuses() {
    let Some(_device) = adapter() else { return };
    let device = WgpuDevice::new(0, OpRegistry::default()).unwrap();
    let info = device.probe().unwrap();
    assert!(!info.name.is_empty() && info.lanes == 1);
    assert_eq!(info.rank("wgpu"), if info.software { 2 } else { 0 }, "{info:?}");
    let absent = WgpuDevice::new(4095, OpRegistry::default()).unwrap();
    let why = absent.probe().unwrap_err().reason;
    assert!(why.contains("adapter"), "{why}");
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, [2.into(), 2.into()]).unwrap();
    let y = g.op("Det", &[x], &[]).unwrap();
    let graph = g.finish([("y", y)]).unwrap();
    let error = compile_in(graph, &wgpu(), &CompileOptions::default(), &Registry::default());
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("no kernel for Det"), "{error}");
}

fn numbers(shape: &[usize], seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    let data = (0..n).map(|i| ((i * 37 + seed * 101 + 11) % 199) as f32 / 100.0 - 0.99);
    Tensor::new(shape, data.collect()).unwrap()
}

/// A small CNN with a Softmax in the middle, which [`without_softmax`] does not have: two convolutions, a
/// softmax over the channels, and a convolution of the product of both sides.
fn cnn() -> Graph {
    let mut g = GraphBuilder::new("cnn");
    let x = g.input("x", DType::F32, ["N".into(), 3.into(), 12.into(), 10.into()]).unwrap();
    let w = |g: &mut GraphBuilder, shape: &[usize], seed| g.constant(numbers(shape, seed)).unwrap();
    let pads: (&str, brigade::graph::Attribute) = ("pads", vec![1, 1, 1, 1].into());
    let (w0, b0) = (w(&mut g, &[8, 3, 3, 3], 1), w(&mut g, &[8], 2));
    let strides = ("strides", vec![2, 1].into());
    let h = g.op("Conv", &[x, w0, b0], &[pads.clone(), strides]).unwrap();
    let h = g.op("HardSwish", &[h], &[]).unwrap();
    let w1 = w(&mut g, &[8, 1, 3, 3], 3);
    let h = g.op("Conv", &[h, w1], &[pads, ("group", 8.into())]).unwrap();
    let h = g.relu(h).unwrap();
    let s = g.softmax(h, 1).unwrap();
    let h = g.mul(h, s).unwrap();
    let w2 = w(&mut g, &[5, 8, 1, 1], 4);
    let h = g.op("Conv", &[h, w2], &[]).unwrap();
    let h = g.op("GlobalAveragePool", &[h], &[]).unwrap();
    let y = g.reshape(h, &[-1, 5]).unwrap();
    g.finish([("y", y)]).unwrap()
}

/// The devices of this machine, `wgpu:0` without Softmax.
fn without_softmax() -> Registry {
    let device = WgpuDevice::new(0, OpRegistry::default()).unwrap();
    Registry::default().with_device(Arc::new(Without { device, refuses: &["Softmax"] }))
}

fn named(tensor: Tensor) -> Vec<(String, Value)> {
    vec![("x".to_owned(), tensor.into())]
}

fn on_cpu(graph: Graph) -> HeteroExecutable {
    let map = DeviceMap::single(DeviceId::cpu(0));
    HeteroExecutable::compile(graph, &map, &CompileOptions::default()).unwrap()
}

/// Streams items and compares them with the sequential executor and, more loosely, with the CPU.
fn compare(pipeline: &Pipeline, oracle: &HeteroExecutable, items: &[Tensor], atol: f32) {
    let sequential = pipeline.sequential();
    let feed = items.iter().map(|t| [("x", t.clone())]);
    let results: Vec<_> = pipeline.stream(feed).collect();
    assert_eq!(results.len(), items.len());
    for (n, (result, input)) in results.into_iter().zip(items).enumerate() {
        let streamed = result.unwrap();
        let alone = sequential.run_values(named(input.clone())).unwrap();
        let expected = oracle.run_values(named(input.clone())).unwrap();
        for ((s, a), e) in streamed.iter().zip(&alone).zip(&expected) {
            let (s, a, e) = (s.tensor().unwrap(), a.tensor().unwrap(), e.tensor().unwrap());
            assert_eq!(differs(s, a, 1e-6, 1e-6), None, "item {n} against the sequential run");
            assert_eq!(differs(s, e, atol, 1e-4), None, "item {n} against the CPU");
        }
    }
}

#[test]
fn a_cnn_goes_over_the_gpu_the_cpu_and_the_gpu() {
    let Some(_device) = adapter() else { return };
    let oracle = on_cpu(cnn());
    for in_flight in [1, 2, 5] {
        let pipeline = Pipeline::builder(cnn())
            .registry(without_softmax())
            .fallback(wgpu(), DeviceId::cpu(0))
            .in_flight(in_flight)
            .trace(1000)
            .spawn()
            .unwrap();
        let devices: Vec<String> =
            pipeline.sequential().segment_devices().iter().map(ToString::to_string).collect();
        assert_eq!(devices, ["wgpu:0", "cpu:0", "wgpu:0"]);
        assert!(
            pipeline.notices()[0].contains("Softmax is left out by the test"),
            "{:?}",
            pipeline.notices()
        );
        let report = pipeline.sequential().report(&|s| (s == "N").then_some(1));
        // Scenario 6: the round trip over the CPU is listed with its bytes.
        assert_eq!(report.round_trips.len(), 1);
        let bytes = 8 * 6 * 10 * 4;
        assert_eq!(report.round_trips[0].bytes_out, Some(bytes));
        assert_eq!(report.round_trips[0].bytes_back, Some(bytes));
        let mut paths: Vec<EdgePath> = report.boundaries.iter().map(|b| b.path).collect();
        paths.sort_by_key(ToString::to_string);
        assert_eq!(paths, [EdgePath::Device, EdgePath::ReadBack, EdgePath::Upload]);
        // Extents change from item to item.
        let items: Vec<Tensor> = (0..24).map(|n| numbers(&[1 + n % 3, 3, 12, 10], n)).collect();
        compare(&pipeline, &oracle, &items, 1e-4);
    }
}

#[test]
fn scenario_14_the_actors_of_both_devices_work_at_once() {
    let Some(_device) = adapter() else { return };
    // A software driver may hold a submission up while an earlier one runs, so what is looked at
    // is our side: the CPU's actor computes while the GPU's has items under way. The strict form,
    // with devices whose times are known, is in `tests/asynchronous.rs`.
    let pipeline = Pipeline::builder(cnn())
        .registry(without_softmax())
        .fallback(wgpu(), DeviceId::cpu(0))
        .in_flight(6)
        .trace(1000)
        .spawn()
        .unwrap();
    let items: Vec<_> = (0..60).map(|n| [("x", numbers(&[8, 3, 12, 10], n))]).collect();
    assert_eq!(pipeline.stream(items).filter(Result::is_ok).count(), 60);
    let trace = pipeline.trace();
    assert!(trace.overlap() > Duration::ZERO, "{:?}", pipeline.stats());
    // The CPU is given items while the GPU has others under way. (The other way round it is too short a
    // moment to be seen: the CPU is done in microseconds.)
    let on = |device: &str| -> Vec<_> {
        let events = trace.events.iter();
        events.filter(|e| trace.actors[e.actor].device == device).copied().collect()
    };
    let (gpu, cpu) = (on("wgpu:0"), on("cpu:0"));
    let beside = cpu.iter().filter(|e| {
        gpu.iter().any(|o| o.seq != e.seq && o.start_ns < e.start_ns && e.start_ns < o.end_ns)
    });
    let count = beside.count();
    assert!(count * 2 > cpu.len(), "{count} of {} firings", cpu.len());
}

/// Takes between nothing and about two milliseconds, another time for each item.
fn jitter(number: usize) -> Duration {
    Duration::from_micros((number as u64).wrapping_mul(2_654_435_761) % 2003)
}

#[test]
fn scenario_22_nobody_reads_what_the_gpu_has_not_made() {
    let Some(_device) = adapter() else { return };
    const ITEMS: usize = 40;
    for in_flight in 1..=8 {
        let device = Arc::new(late::Late::new(&["Softmax"], jitter));
        let seen = Arc::clone(&device.seen);
        let pipeline = Pipeline::builder(cnn())
            .registry(Registry::default().with_device(device))
            .fallback(wgpu(), DeviceId::cpu(0))
            .in_flight(in_flight)
            .trace(ITEMS * 4)
            .spawn()
            .unwrap();
        let items: Vec<Tensor> = (0..ITEMS).map(|n| numbers(&[1, 3, 12, 10], n)).collect();
        let feed: Vec<_> = items.iter().map(|t| [("x", t.clone())]).collect();
        let streamed: Vec<_> = pipeline.stream(feed).map(Result::unwrap).collect();
        let sequential = pipeline.sequential();
        for (n, (streamed, input)) in streamed.iter().zip(&items).enumerate().step_by(4) {
            let alone = sequential.run_values(named(input.clone())).unwrap();
            assert_eq!(streamed, &alone, "item {n} of {in_flight} in flight, to the bit");
        }
        // On the trace: the CPU begins what it reads back after the firing of the GPU's actor is
        // complete, and the GPU's actor what it uploads after that of the CPU's.
        let trace = pipeline.trace();
        let mut checked = 0;
        for edge in &trace.edges {
            let (Some(from), Some(to)) = (edge.from, edge.to) else { continue };
            if trace.actors[from].device == trace.actors[to].device {
                continue;
            }
            for giving in trace.events.iter().filter(|e| e.actor == from) {
                let taking = trace.events.iter().find(|e| e.actor == to && e.seq == giving.seq);
                let taking = taking.expect("a firing of each actor for each item");
                assert!(taking.start_ns >= giving.end_ns, "{}: {giving:?} {taking:?}", edge.name);
                checked += 1;
            }
        }
        assert!(checked >= 2 * ITEMS, "{checked} crossings");
        assert!(seen.held.load(Ordering::SeqCst) >= 2 * ITEMS, "{seen:?}");
        assert_eq!(seen.early.load(Ordering::SeqCst), 0, "{seen:?}");
    }
}

#[test]
fn scenario_22_neighbours_on_the_gpu_take_tensors_that_are_not_there_yet() {
    let Some(_device) = adapter() else { return };
    const ITEMS: usize = 40;
    let mut g = GraphBuilder::new("chain");
    let x = g.input("x", DType::F32, [1.into(), 64.into()]).unwrap();
    let w = g.constant(numbers(&[64, 64], 1)).unwrap();
    let h = g.matmul(x, w).unwrap();
    let h = g.tanh(h).unwrap();
    let y = g.matmul(h, w).unwrap();
    let graph = g.finish([("y", y)]).unwrap();
    let device = Arc::new(late::Late::new(&[], jitter));
    let seen = Arc::clone(&device.seen);
    let pipeline = Pipeline::builder(graph)
        .registry(Registry::default().with_device(device))
        .stages(3, &["wgpu:0"])
        .unwrap()
        .in_flight(6)
        .spawn()
        .unwrap();
    let items: Vec<Tensor> = (0..ITEMS).map(|n| numbers(&[1, 64], n)).collect();
    let feed: Vec<_> = items.iter().map(|t| [("x", t.clone())]).collect();
    let streamed: Vec<_> = pipeline.stream(feed).map(Result::unwrap).collect();
    assert_eq!(seen.left.load(Ordering::SeqCst), 2 * ITEMS, "both boundaries stay on the device");
    let sequential = pipeline.sequential();
    for (streamed, input) in streamed.iter().zip(&items) {
        assert_eq!(streamed, &sequential.run_values(named(input.clone())).unwrap());
    }
    // How many were not there yet when they left is the driver's affair: some run what is submitted
    // before they return.
    eprintln!("{} of {} left unready", seen.unready.load(Ordering::SeqCst), 2 * ITEMS);
}

#[test]
fn neighbours_on_the_gpu_hand_tensors_over() {
    let Some(_device) = adapter() else { return };
    let mut g = GraphBuilder::new("chain");
    let x = g.input("x", DType::F32, ["N".into(), 16.into()]).unwrap();
    let w = g.constant(numbers(&[16, 32], 1)).unwrap();
    let h = g.matmul(x, w).unwrap();
    let h = g.tanh(h).unwrap();
    let w = g.constant(numbers(&[32, 7], 2)).unwrap();
    let h = g.matmul(h, w).unwrap();
    let y = g.sigmoid(h).unwrap();
    let graph = g.finish([("y", y)]).unwrap();
    let pipeline = Pipeline::builder(graph.clone())
        .stages(3, &["wgpu:0"])
        .unwrap()
        .in_flight(6)
        .spawn()
        .unwrap();
    let report = pipeline.sequential().report(&|_| None);
    assert_eq!(report.boundaries.len(), 2);
    assert!(report.boundaries.iter().all(|b| b.path == EdgePath::Device), "{report}");
    let items: Vec<Tensor> = (0..80).map(|n| numbers(&[1 + n % 5, 16], n)).collect();
    compare(&pipeline, &on_cpu(graph), &items, 1e-4);
}

#[test]
fn indices_that_stay_on_the_gpu_are_checked() {
    let Some(_device) = adapter() else { return };
    let mut g = GraphBuilder::new("lookup");
    let x = g.input("x", DType::F32, [2.into()]).unwrap();
    let i = g.op("Cast", &[x], &[("to", 6.into())]).unwrap();
    let table = g.constant(numbers(&[3, 4], 1)).unwrap();
    let y = g.op("Gather", &[table, i], &[]).unwrap();
    let graph = g.finish([("y", y)]).unwrap();
    let pipeline = Pipeline::builder(graph.clone()).stages(2, &["wgpu:0"]).unwrap();
    let pipeline = pipeline.in_flight(3).spawn().unwrap();
    let report = pipeline.sequential().report(&|_| None);
    assert_eq!(report.boundaries.len(), 1);
    assert_eq!(report.boundaries[0].path, EdgePath::Device, "{report}");
    let item = |k: f32| Tensor::new([2], vec![0.0, k]).unwrap();
    compare(&pipeline, &on_cpu(graph), &[item(2.0), item(-3.0)], 0.0);
    let error = pipeline.push([("x", item(3.0))]).unwrap().wait().unwrap_err();
    assert!(error.to_string().contains("3 in"), "{error}");
}

#[test]
fn a_lookup_with_indices_that_are_computed_on_the_gpu_falls_back() {
    let Some(_device) = adapter() else { return };
    let mut g = GraphBuilder::new("lookup");
    let x = g.input("x", DType::F32, [2.into()]).unwrap();
    let i = g.op("Cast", &[x], &[("to", 6.into())]).unwrap();
    let far = g.op("Max", &[i, i], &[]).unwrap();
    let table = g.constant(numbers(&[3, 4], 1)).unwrap();
    let y = g.op("Gather", &[table, far], &[]).unwrap();
    let y = g.op("Relu", &[y], &[]).unwrap();
    let graph = g.finish([("y", y)]).unwrap();
    let pipeline = Pipeline::builder(graph.clone()).fallback(wgpu(), DeviceId::cpu(0));
    let pipeline = pipeline.spawn().unwrap();
    let report = pipeline.sequential().report(&|_| None);
    assert_eq!(report.segments.len(), 3, "{report}");
    assert!(report.to_string().contains("not proven"), "{report}");
    let item = |k: f32| Tensor::new([2], vec![0.0, k]).unwrap();
    compare(&pipeline, &on_cpu(graph.clone()), &[item(2.0), item(-3.0)], 0.0);
    // Alone it is refused before anything runs, and told why.
    let alone = Pipeline::builder(graph).placement(DeviceMap::single(wgpu())).spawn();
    let error = alone.unwrap_err();
    assert!(error.to_string().contains("not proven"), "{error}");
}

#[test]
fn what_the_driver_refuses_is_the_error_of_its_item() {
    let Some(_device) = adapter() else { return };
    let mut g = GraphBuilder::new("g");
    let x = g.input("x", DType::F32, ["N".into()]).unwrap();
    let y = g.relu(x).unwrap();
    let graph = g.finish([("y", y)]).unwrap();
    let registry = Registry::default();
    let run = compile_in(graph, &wgpu(), &CompileOptions::default(), &registry).unwrap();
    // Larger than what software drivers bind; a large GPU takes it.
    match run.run_values(named(Tensor::zeros(DType::F32, [36 << 20]).unwrap())) {
        Ok(_) => {}
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Limit, "{e}");
            assert!(e.to_string().contains("`x` takes 150994944 bytes"), "{e}");
            assert!(e.to_string().contains("place its node on a CPU"), "{e}");
        }
    }
    let small = Tensor::new([3], vec![-1.0_f32, 0.5, 2.0]).unwrap();
    let out = run.run_values(named(small)).unwrap();
    assert_eq!(out[0].tensor().unwrap().as_slice::<f32>().unwrap(), [0.0, 0.5, 2.0]);
    let empty = Tensor::zeros(DType::F32, [0]).unwrap();
    assert!(run.run_values(named(empty)).unwrap()[0].tensor().unwrap().is_empty());
}

/// `wgpu:0` without some operators.
#[derive(Debug)]
struct Without {
    device: WgpuDevice,
    refuses: &'static [&'static str],
}

impl Device for Without {
    fn id(&self) -> &DeviceId {
        self.device.id()
    }

    fn probe(&self) -> Result<DeviceInfo, Unavailable> {
        self.device.probe()
    }

    fn has_own_memory(&self) -> bool {
        true
    }

    fn supports(&self, node: &Node, facts: &[Option<Fact>]) -> Support {
        if self.refuses.contains(&node.op.as_str()) {
            return Support::No(format!("{} is left out by the test", node.op));
        }
        self.device.supports(node, facts)
    }

    fn compile(&self, graph: Graph, options: &CompileOptions) -> Result<Arc<dyn CompiledSegment>> {
        self.device.compile(graph, options)
    }
}

#[test]
fn a_real_model_is_the_same_split_over_gpu_and_cpu() {
    let Some(_device) = adapter() else { return };
    let Some(model) = models::one("ppocr-cls") else { return };
    let shape = [1, 3, 48, 192];
    let graph = model.graph();
    let input = graph.input_names().next().unwrap().to_owned();
    assert_eq!(input, "x");
    let oracle = on_cpu(model.graph());
    for refuses in [&["Softmax", "Reshape"][..], &["GlobalAveragePool"][..]] {
        let device = WgpuDevice::new(0, OpRegistry::default()).unwrap();
        let registry = Registry::default().with_device(Arc::new(Without { device, refuses }));
        let pipeline = Pipeline::builder(model.graph())
            .registry(registry)
            .fallback(wgpu(), DeviceId::cpu(0))
            .in_flight(4)
            .spawn()
            .unwrap();
        let report = pipeline.sequential().report(&|s| Some(if s == "?1" { 1 } else { 48 }));
        let devices: Vec<String> =
            pipeline.sequential().segment_devices().iter().map(ToString::to_string).collect();
        let count = devices.len();
        eprintln!("{count} segments, {} round trips", report.round_trips.len());
        assert!(devices.windows(3).any(|w| w == ["wgpu:0", "cpu:0", "wgpu:0"]), "{devices:?}");
        assert!(!report.round_trips.is_empty(), "{report}");
        let items: Vec<Tensor> = (0..4).map(|n| numbers(&shape, n)).collect();
        compare(&pipeline, &oracle, &items, 1e-3);
    }
}

/// A case of a real model with every node on the GPU.
fn passes_alone(id: &str, case: &str) {
    let Some(_device) = adapter() else { return };
    let Some(model) = models::one(id) else { return };
    let case = model.cases.iter().find(|c| c.name == case).unwrap();
    let options = CompileOptions::default();
    let run = compile_in(model.graph(), &wgpu(), &options, &Registry::default()).unwrap();
    let outputs = brigade::check::run_call(&run, case).unwrap();
    let report = brigade::check::compare_outputs(case, &run.output_names(), &outputs);
    assert_eq!(report.status, brigade::check::Status::Passed, "{report:?}");
}

#[test]
fn a_cnn_runs_on_the_gpu_alone() {
    passes_alone("ppocr-cls", "up-and-down");
}

#[test]
fn a_transformer_runs_on_the_gpu_alone() {
    passes_alone("minilm-int8", "one");
}

/// A case of a real model over GPU and CPU by turns, streamed and in sequence.
#[test]
fn a_transformer_falls_back_where_there_is_no_kernel() {
    let Some(_device) = adapter() else { return };
    let Some(model) = models::one("ppocr-rec") else { return };
    let case = model.cases.iter().find(|c| c.name == "line-w184").unwrap();
    let device = WgpuDevice::new(0, OpRegistry::default()).unwrap();
    let refuses = &["Softmax"];
    let registry = Registry::default().with_device(Arc::new(Without { device, refuses }));
    let pipeline = Pipeline::builder(model.graph())
        .registry(registry)
        .fallback(wgpu(), DeviceId::cpu(0))
        .in_flight(3)
        .spawn()
        .unwrap();
    let sequential = pipeline.sequential();
    assert!(sequential.num_segments() >= 3, "{} segments", sequential.num_segments());
    let report = sequential.report(&|_| None);
    assert!(!report.round_trips.is_empty(), "{report}");
    let alone = brigade::check::run_call(&sequential, case).unwrap();
    let verdict = brigade::check::compare_outputs(case, &sequential.output_names(), &alone);
    assert_eq!(verdict.status, brigade::check::Status::Passed, "{verdict:?}");
    let results: Vec<_> = pipeline.stream((0..3).map(|_| case.feed())).collect();
    assert_eq!(results.len(), 3);
    for result in results {
        for (s, a) in result.unwrap().iter().zip(&alone) {
            assert_eq!(differs(s.tensor().unwrap(), a.tensor().unwrap(), 1e-6, 1e-6), None);
        }
    }
}

#[test]
fn a_lost_device_makes_errors_of_items_and_is_opened_anew() {
    let _alone = DEVICE.write().unwrap_or_else(PoisonError::into_inner);
    if !is_there() {
        return;
    }
    let pipeline =
        Pipeline::builder(cnn()).fallback(wgpu(), DeviceId::cpu(0)).in_flight(4).spawn().unwrap();
    let feed = |n| [("x", numbers(&[2, 3, 12, 10], n))];
    assert!(pipeline.stream((0..4).map(feed)).all(|r| r.is_ok()));
    let tickets: Vec<_> = (0..4).map(|n| pipeline.push(feed(n)).unwrap()).collect();
    WgpuDevice::new(0, OpRegistry::default()).unwrap().destroy();
    for mut ticket in tickets {
        // It may have been done before.
        let result = ticket.wait_timeout(Duration::from_secs(30));
        if let Err(e) = result.expect("a result for each item") {
            assert_eq!(e.kind(), ErrorKind::Device, "{e}");
        }
    }
    let mut late = pipeline.push(feed(9)).unwrap();
    let result = late.wait_timeout(Duration::from_secs(30)).expect("a result");
    let error = result.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Device, "{error}");
    assert!(error.to_string().contains("lost"), "{error}");
    drop(pipeline);

    let again = Pipeline::builder(cnn()).fallback(wgpu(), DeviceId::cpu(0)).spawn().unwrap();
    compare(&again, &on_cpu(cnn()), &[numbers(&[2, 3, 12, 10], 1)], 1e-4);
}
