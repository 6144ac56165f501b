//! How the actors of a model's pipeline run: what the builder passes on to the runtime.

#![allow(clippy::unwrap_used)]

use std::time::Duration;

use brigade::graph::Graph;
use brigade::ops::builder::GraphBuilder;
use brigade::pipeline::{RuntimeOptions, WhenFull};
use brigade::{DType, ErrorKind, Pipeline, Tensor};

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
