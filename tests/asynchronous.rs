//! Asynchronous devices with memory of their own: what a neighbour on the device takes where it
//! lies, what is read back, and that nobody reads a tensor before it is there.

#![allow(clippy::unwrap_used, clippy::panic)]

mod devices;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use brigade::graph::Graph;
use brigade::ops::builder::GraphBuilder;
use brigade::partition::EdgePath;
use brigade::{
    CompileOptions, DType, DeviceId, DeviceMap, ErrorKind, HeteroExecutable, Pipeline, Registry,
    Tensor, Value,
};
use devices::id;
use devices::queued::{LOST, Queued, UNLUCKY};

const WIDTH: usize = 6;

fn item(first: f32, seed: usize) -> Tensor {
    let mut data: Vec<f32> = (0..WIDTH).map(|i| ((i * 7 + seed * 13) % 23) as f32 / 23.0).collect();
    data[0] = first;
    Tensor::new([WIDTH], data).unwrap()
}

fn named(n: usize) -> Vec<(String, Value)> {
    vec![("x".to_owned(), item(0.5, n).into())]
}

/// Takes between nothing and about a millisecond, another time for each job.
fn jitter(number: u64) -> Duration {
    Duration::from_micros(number.wrapping_mul(2_654_435_761) % 1009)
}

/// `e = exp(x)`, `t = tanh(e)`, `s = e · e`, `y = (t + s) · e`.
fn diamond() -> Graph {
    let mut g = GraphBuilder::new("diamond");
    let x = g.input("x", DType::F32, [WIDTH.into()]).unwrap();
    let e = g.exp(x).unwrap();
    let t = g.tanh(e).unwrap();
    let s = g.mul(e, e).unwrap();
    let sum = g.add(t, s).unwrap();
    let y = g.mul(sum, e).unwrap();
    g.finish([("y", y)]).unwrap()
}

/// A device `npu:0` that leaves Tanh to others.
fn npu(delay: fn(u64) -> Duration) -> (Arc<Queued>, Registry) {
    let device = Arc::new(Queued::new("npu", delay).refusing(&["Tanh"]));
    (Arc::clone(&device), Registry::default().with_device(device))
}

/// Streams items and compares them, to the bit, with the sequential executor and the CPU.
fn compare(pipeline: &Pipeline, oracle: &HeteroExecutable, items: usize) {
    let sequential = pipeline.sequential();
    let feed = (0..items).map(|n| [("x", item(0.5, n))]);
    for (n, result) in pipeline.stream(feed).enumerate() {
        let streamed = result.unwrap();
        let expected = oracle.run_values(named(n)).unwrap();
        assert_eq!(streamed, expected, "item {n}");
        if n % 8 == 0 {
            assert_eq!(sequential.run_values(named(n)).unwrap(), expected, "{n}");
        }
    }
}

fn on_cpu(graph: Graph) -> HeteroExecutable {
    let map = DeviceMap::single(DeviceId::cpu(0));
    HeteroExecutable::compile(graph, &map, &CompileOptions::default()).unwrap()
}

#[test]
fn scenario_22_no_tensor_is_read_before_it_is_there() {
    let oracle = on_cpu(diamond());
    for in_flight in 1..=8 {
        let (device, registry) = npu(jitter);
        let pipeline = Pipeline::builder(diamond())
            .registry(registry)
            .fallback(id("npu"), DeviceId::cpu(0))
            .in_flight(in_flight)
            .spawn()
            .unwrap();
        assert_eq!(pipeline.sequential().num_segments(), 3);
        let report = pipeline.sequential().report(&|_| None);
        let mut paths: Vec<_> = report.boundaries.iter().map(|b| b.path).collect();
        paths.sort_by_key(ToString::to_string);
        use EdgePath::{Device, ReadBack, Upload};
        assert_eq!(paths, [Device, Device, ReadBack, Upload]);
        compare(&pipeline, &oracle, 130);
        assert!(device.log.handed_over.load(Ordering::SeqCst) >= 130, "e and s stay on the device");
        assert!(device.log.read_back.load(Ordering::SeqCst) >= 260, "e and y go to the host");
        if in_flight > 2 {
            assert_eq!(device.log.most_open.load(Ordering::SeqCst), 2, "two slots");
        }
    }
}

#[test]
fn scenario_22_neighbours_take_a_tensor_before_it_is_there() {
    let (device, registry) = npu(|_| Duration::from_millis(1));
    let mut g = GraphBuilder::new("chain");
    let x = g.input("x", DType::F32, [WIDTH.into()]).unwrap();
    let h = g.exp(x).unwrap();
    let h = g.mul(h, h).unwrap();
    let y = g.sigmoid(h).unwrap();
    let graph = g.finish([("y", y)]).unwrap();
    let pipeline = Pipeline::builder(graph.clone())
        .registry(registry)
        .stages(3, &["npu:0"])
        .unwrap()
        .in_flight(4)
        .spawn()
        .unwrap();
    assert_eq!(pipeline.sequential().num_segments(), 3);
    compare(&pipeline, &on_cpu(graph), 50);
    let log = &device.log;
    // The streamed items and every eighth of the sequential ones.
    let runs = 50 + 7;
    assert_eq!(log.handed_over.load(Ordering::SeqCst), 2 * runs, "two edges, no copy");
    assert_eq!(log.read_back.load(Ordering::SeqCst), runs, "only the output goes to the host");
}

#[test]
fn scenario_14_submit_never_waits_for_the_other_device() {
    const ITEMS: usize = 30;
    let slow = |_| Duration::from_millis(10);
    let (a, b) = (Arc::new(Queued::new("a", slow)), Arc::new(Queued::new("b", slow)));
    let registry = Registry::default()
        .with_device(Arc::clone(&a) as Arc<dyn brigade::device::Device>)
        .with_device(Arc::clone(&b) as Arc<dyn brigade::device::Device>);
    let mut g = GraphBuilder::new("chain");
    let x = g.input("x", DType::F32, [WIDTH.into()]).unwrap();
    let h = g.exp(x).unwrap();
    let y = g.tanh(h).unwrap();
    let graph = g.finish([("y", y)]).unwrap();
    let map = DeviceMap::from_fn(&graph, |n| id(if n.op == "Tanh" { "b" } else { "a" }));
    let pipeline = Pipeline::builder(graph)
        .registry(registry)
        .placement(map)
        .in_flight(8)
        .trace(ITEMS * 4)
        .spawn()
        .unwrap();
    let feed = (0..ITEMS).map(|n| [("x", item(0.5, n))]);
    assert_eq!(pipeline.stream(feed).filter(Result::is_ok).count(), ITEMS);
    for (this, other) in [(&a, &b), (&b, &a)] {
        let submits = this.log.submits.lock().unwrap().clone();
        let jobs = other.log.jobs.lock().unwrap().clone();
        let beside: Vec<_> =
            submits.iter().filter(|s| jobs.iter().any(|j| j.holds(s.begin))).collect();
        assert!(beside.len() * 4 > submits.len(), "{} of {}", beside.len(), submits.len());
        // A call that waited for the other device would take as long as what is left of its job.
        let mut lengths: Vec<_> = beside.iter().map(|s| s.length()).collect();
        lengths.sort();
        let most = lengths[lengths.len() * 9 / 10];
        assert!(most < Duration::from_millis(3), "nine of ten take up to {most:?}");
    }
    assert!(pipeline.trace().overlap() > Duration::from_millis(10 * ITEMS as u64 / 4));
}

#[test]
fn an_item_that_fails_on_the_device_is_one_error() {
    let (_device, registry) = npu(jitter);
    let pipeline = Pipeline::builder(diamond())
        .registry(registry)
        .fallback(id("npu"), DeviceId::cpu(0))
        .in_flight(4)
        .spawn()
        .unwrap();
    let first = |n: usize| if n == 5 { UNLUCKY } else { 0.5 };
    let feed = (0..20).map(|n| [("x", item(first(n), n))]);
    for (n, result) in pipeline.stream(feed).enumerate() {
        match result {
            Ok(_) => assert_ne!(n, 5),
            Err(e) => {
                assert_eq!((n, e.kind()), (5, ErrorKind::Device), "{e}");
                assert!(e.to_string().contains("unlucky"), "{e}");
            }
        }
    }
}

#[test]
fn a_device_that_is_lost_makes_errors_of_its_items_and_no_panic() {
    let (_device, registry) = npu(jitter);
    let pipeline = Pipeline::builder(diamond())
        .registry(registry)
        .fallback(id("npu"), DeviceId::cpu(0))
        .in_flight(4)
        .spawn()
        .unwrap();
    let first = |n: usize| if n == 5 { LOST } else { 0.5 };
    let feed = (0..20).map(|n| [("x", item(first(n), n))]);
    let results: Vec<_> = pipeline.stream(feed).collect();
    assert_eq!(results.len(), 20, "one result for each item");
    for (n, result) in results.iter().enumerate().skip(5) {
        let e = result.as_ref().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Device, "item {n}: {e}");
        assert!(e.to_string().contains("lost"), "item {n}: {e}");
    }
    assert!(pipeline.drain(Some(Duration::from_secs(20))).is_ok());
}
