//! How the actors of a model's pipeline run: what the builder passes on to the runtime.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use brigade::graph::Graph;
use brigade::ops::builder::GraphBuilder;
use brigade::partition::DeviceMap;
use brigade::pipeline::State;
use brigade::pipeline::{RuntimeOptions, WhenFull};
use brigade::{DType, ErrorKind, Pipeline, Tensor, Value};

/// A product that takes long enough for a push to overtake it.
fn slow() -> Graph {
    let mut g = GraphBuilder::new("slow");
    let x = g.input("x", DType::F32, [256.into(), 256.into()]).unwrap();
    let mut y = x;
    for _ in 0..6 {
        y = g.matmul(y, x).unwrap();
    }
    g.finish([("y", y)]).unwrap()
}

fn item() -> [(&'static str, Tensor); 1] {
    [("x", Tensor::new([256, 256], vec![0.01_f32; 256 * 256]).unwrap())]
}

#[test]
fn a_full_pipeline_drops_the_oldest_waiting_item_where_it_is_told_to() {
    let runtime = RuntimeOptions::new().when_full(WhenFull::DropOldest).queue(1);
    let pipeline = Pipeline::builder(slow()).in_flight(1).runtime(runtime).spawn().unwrap();
    let tickets: Vec<_> = (0..4).map(|_| pipeline.push(item()).unwrap()).collect();
    let results: Vec<_> = tickets.into_iter().map(|t| t.wait()).collect();
    // The first one runs, the last one waits, those between gave way.
    assert!(results[0].is_ok() && results[3].is_ok());
    for dropped in &results[1..3] {
        assert_eq!(dropped.as_ref().unwrap_err().kind(), ErrorKind::Full);
    }
    assert_eq!(pipeline.stats().admission.dropped, 2);
}

#[test]
fn the_number_in_flight_adapts_within_its_bound() {
    let runtime = RuntimeOptions::new().in_flight_auto(6).watchdog(Duration::from_secs(60));
    let pipeline = Pipeline::builder(slow())
        .stages(2, &["cpu:0", "cpu:1"])
        .unwrap()
        .runtime(runtime)
        .spawn()
        .unwrap();
    let named = item().map(|(name, tensor)| (name.to_owned(), tensor.into())).to_vec();
    let expected = pipeline.sequential().run_values(named).unwrap();
    for result in pipeline.stream((0..12).map(|_| item())) {
        assert_eq!(result.unwrap(), expected);
    }
    let stats = pipeline.stats();
    assert!((1..=6).contains(&stats.in_flight_limit), "{}", stats.in_flight_limit);
    assert!(stats.stalls.is_empty());
}

/// Numbers out of nothing, twice as large, one more; with a `seed` the same each time. With `input`,
/// that is added in the end.
fn draw(seed: Option<f32>, input: bool) -> Graph {
    let mut g = GraphBuilder::new("draw");
    let mut attributes = vec![("shape", vec![4_i64].into())];
    attributes.extend(seed.map(|s| ("seed", s.into())));
    let drawn = g.op("RandomUniform", &[], &attributes).unwrap();
    let twice = g.add(drawn, drawn).unwrap();
    let one = g.constant(Tensor::new([1], vec![1.0_f32]).unwrap()).unwrap();
    let mut y = g.add(twice, one).unwrap();
    if input {
        let x = g.input("x", DType::F32, [4.into()]).unwrap();
        y = g.add(y, x).unwrap();
    }
    g.finish([("y", y)]).unwrap()
}

#[test]
fn a_graph_without_inputs_streams_in_two_segments() {
    let none = || <[(&str, Tensor); 0]>::default();
    let graph = draw(Some(7.0), false);
    let devices = ["cpu:0".parse().unwrap(), "cpu:1".parse().unwrap()];
    let map = DeviceMap::contiguous(&graph, &devices, &[1]).unwrap();
    let pipeline = Pipeline::builder(graph).placement(map).micro_batch(2).spawn().unwrap();
    assert_eq!(pipeline.sequential().num_segments(), 2);
    let expected = pipeline.sequential().run_values(Vec::new()).unwrap();
    let drawn = expected[0].tensor().unwrap().as_slice::<f32>().unwrap();
    assert!(drawn.iter().all(|v| (1.0..3.0).contains(v)), "{drawn:?}");

    assert_eq!(pipeline.run(none()).unwrap(), expected);
    assert_eq!(pipeline.push(none()).unwrap().wait().unwrap(), expected);
    assert_eq!(pipeline.try_push(none()).unwrap().wait().unwrap(), expected);
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    assert_eq!(pipeline.push_deadline(none(), deadline).unwrap().wait().unwrap(), expected);
    // More items than are in flight, so that some find the pipeline full and wait.
    let results: Vec<_> = pipeline.stream((0..50).map(|_| none())).collect();
    assert_eq!(results.len(), 50);
    assert!(results.into_iter().all(|r| r.unwrap() == expected));
    let stream = pipeline.open_stream(State::new()).unwrap();
    assert_eq!(stream.push(none()).unwrap().wait().unwrap(), expected);
    let wrong = pipeline.push([("x", Tensor::scalar(1_i64))]).unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::UnknownName);
}

#[test]
fn a_segment_that_reads_nothing_fires_with_each_item() {
    let graph = draw(None, true);
    let devices = ["cpu:0".parse().unwrap(), "cpu:1".parse().unwrap()];
    let map = DeviceMap::contiguous(&graph, &devices, &[2]).unwrap();
    let pipeline = Pipeline::builder(graph).placement(map).spawn().unwrap();
    assert_eq!(pipeline.sequential().num_segments(), 2);
    let item = |k: u8| [("x", Tensor::new([4], vec![f32::from(k) * 10.0; 4]).unwrap())];
    let outputs: Vec<Vec<Value>> =
        pipeline.stream((0..20).map(item)).collect::<Result<_, _>>().unwrap();
    for (k, output) in outputs.iter().enumerate() {
        let y = output[0].tensor().unwrap().as_slice::<f32>().unwrap();
        let low = k as f32 * 10.0 + 1.0;
        assert!(y.iter().all(|v| (low..low + 2.0).contains(v)), "item {k}: {y:?}");
    }
}

#[test]
fn numbers_drawn_from_a_constant_differ_from_run_to_run() {
    let mut g = GraphBuilder::new("draw");
    let like = g.constant(Tensor::new([8], vec![0.0_f32; 8]).unwrap()).unwrap();
    let y = g.op("RandomUniformLike", &[like], &[]).unwrap();
    let pipeline = Pipeline::builder(g.finish([("y", y)]).unwrap()).spawn().unwrap();
    let run = || pipeline.run(<[(&str, Tensor); 0]>::default()).unwrap();
    assert_ne!(run(), run(), "a draw without a seed was computed once for all");
}
