//! Replicas of segments, and several model pipelines in one system.

#![allow(clippy::unwrap_used, clippy::panic)]

mod devices;

use std::sync::Arc;

use brigade::graph::Graph;
use brigade::ops::builder::GraphBuilder;
use brigade::partition::Plan;
use brigade::{DType, ErrorKind, Pipeline, Registry, System, Tensor};
use devices::{Custom, id};

const WIDTH: usize = 24;

/// Two layers with weights: `y = tanh(relu(x · w) · w)`.
fn layers(name: &str) -> Graph {
    let mut g = GraphBuilder::new(name);
    let x = g.input("x", DType::F32, ["N".into(), WIDTH.into()]).unwrap();
    let weights = (0..WIDTH * WIDTH).map(|i| ((i * 31 % 101) as f32 - 50.0) / 200.0).collect();
    let w = g.constant(Tensor::new([WIDTH, WIDTH], weights).unwrap()).unwrap();
    let h = g.matmul(x, w).unwrap();
    let h = g.relu(h).unwrap();
    let h = g.matmul(h, w).unwrap();
    let y = g.tanh(h).unwrap();
    g.finish([("y", y)]).unwrap()
}

fn item(n: usize) -> Tensor {
    let rows = 1 + n % 3;
    let data = (0..rows * WIDTH).map(|i| ((i * 7 + n * 13) % 29) as f32 / 29.0 - 0.4).collect();
    Tensor::new([rows, WIDTH], data).unwrap()
}

/// Streams items; each result equals that of the sequential executor to the bit, and comes in order.
fn compare(pipeline: &Pipeline, items: usize) {
    let sequential = pipeline.sequential();
    let streamed = pipeline.stream((0..items).map(|n| [("x", item(n))]));
    let mut seen = 0;
    for (n, outputs) in streamed.enumerate() {
        let named = vec![("x".to_owned(), item(n).into())];
        assert_eq!(outputs.unwrap(), sequential.run_values(named).unwrap(), "item {n}");
        seen += 1;
    }
    assert_eq!(seen, items);
}

#[test]
fn scenario_21_replicas_of_segments_change_no_bit_and_no_order() {
    for (first, second) in [(1, 3), (2, 2), (4, 1)] {
        let pipeline = Pipeline::builder(layers("m"))
            .stages(2, &["cpu:0", "cpu:1"])
            .unwrap()
            .replicas(0, first)
            .replicas(1, second)
            .in_flight(6)
            .spawn()
            .unwrap();
        compare(&pipeline, 60);
        let stats = pipeline.stats();
        assert_eq!(stats.actors.len(), first + second);
        let lanes: Vec<_> = stats.devices.iter().map(|device| device.lanes).collect();
        assert_eq!(lanes, [first, second], "a CPU device has a lane for each replica");
        assert!(pipeline.notices().is_empty(), "{:?}", pipeline.notices());
        let served: u64 = stats.actors.iter().map(|actor| actor.items).sum();
        assert_eq!(served, 2 * 60);
    }
}

#[test]
fn replicas_share_one_compiled_segment_and_take_turns_where_lanes_are_few() {
    let device = Arc::new(Custom::new("npu:0"));
    let registry = Registry::default().with_device(Arc::<Custom>::clone(&device));
    let plan = r#"{"schema":1,"default_device":"npu:0","replicas":{"0":3}}"#;
    let pipeline = Pipeline::builder(layers("m"))
        .registry(registry)
        .plan(Plan::parse(plan).unwrap())
        .spawn()
        .unwrap();
    // The weights lie in the compiled segment: one of it, and three instances.
    assert_eq!((device.compiled(), device.instances()), (1, 3));
    let notice = &pipeline.notices()[0];
    assert!(notice.contains("3 replicas") && notice.contains("`npu:0`"), "{notice}");
    compare(&pipeline, 30);
    assert_eq!(pipeline.stats().devices[0].lanes, 1);
    assert_eq!(device.compiled(), 1);
}

#[test]
fn replicas_of_what_is_not_there_are_refused_by_number() {
    let builder = || Pipeline::builder(layers("m"));
    let error = builder().replicas(4, 2).spawn().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::UnknownName);
    assert!(error.to_string().contains("segment 4"), "{error}");
    let error = builder().replicas(0, 0).spawn().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    let error = builder().lanes(id("cpu:0"), 0).spawn().unwrap_err();
    assert!(error.to_string().contains("0 lanes"), "{error}");
    let error = builder().replicas(0, usize::MAX).spawn().unwrap_err();
    let said = error.to_string();
    assert!(said.contains("segment 0") && said.contains("at most 256"), "{said}");
}

#[test]
fn scenario_19_model_pipelines_in_one_system_share_its_cpu_threads() {
    let system = System::new().cpu_budget(2);
    let spawn = |name: &str, threads| {
        Pipeline::builder(layers(name))
            .stages(2, &["cpu:0", "cpu:1"])
            .unwrap()
            .threads(id("cpu:0"), threads)
            .system(&system)
            .spawn()
            .unwrap()
    };
    let pipelines = [spawn("a", 1), spawn("b", 1), spawn("c", 4)];
    assert_eq!(system.pipelines(), ["a", "b", "c"]);
    // Devices of one name take turns, so two threads serve all three; the four that `c` asked for
    // are not there, and it says so.
    let cpu = system.cpu();
    assert_eq!((cpu.budget, cpu.used, cpu.exceeded()), (Some(2), 2, 0));
    assert!(pipelines[0].notices().is_empty());
    let notice = &pipelines[2].notices()[0];
    assert!(notice.contains("asked for 4") && notice.contains("given 1"), "{notice}");
    assert_eq!(pipelines[2].stats().actors[0].threads, 1);
    std::thread::scope(|scope| {
        for pipeline in &pipelines {
            scope.spawn(move || compare(pipeline, 30));
        }
    });
    assert!(system.stop("b").unwrap().detached.is_empty());
    compare(&pipelines[0], 10);
    compare(&pipelines[2], 10);
    let error = Pipeline::builder(layers("d")).system(&system).cpu_budget(1).spawn().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage);
    let own = Pipeline::builder(layers("e")).cpu_budget(1).threads(id("cpu:0"), 3).spawn().unwrap();
    assert!(own.notices()[0].contains("asked for 3"), "{:?}", own.notices());
    compare(&own, 10);
}
