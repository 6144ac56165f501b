//! Every single cut of a model into two segments gives what the unsplit model gives.

use brigade::check::{Status, compare_outputs, run_call};
use brigade::partition::{DeviceMap, computing_nodes};
use brigade::{CompileOptions, HeteroExecutable, Registry, passes};

use super::models;

/// A boundary that gets a wrong shape, or a value that is lost, shows at the cut where it happens.
fn scenario_03_every_single_cut(id: &str, case: &str) {
    let Some(model) = models::one(id) else { return };
    let mut graph = model.graph();
    let options = CompileOptions::default();
    passes::optimise(&mut graph, Registry::default().ops(), &options).unwrap();
    let case = model.cases.iter().find(|c| c.name == case).unwrap();
    let devices = ["cpu:0".parse().unwrap(), "cpu:1".parse().unwrap()];
    let cuts = computing_nodes(&graph).len();
    assert!(cuts > 10, "{id} has only {cuts} nodes");
    for cut in 1..cuts {
        let map = DeviceMap::contiguous(&graph, &devices, &[cut]).unwrap();
        let split = HeteroExecutable::compile(graph.clone(), &map, &options).unwrap();
        assert_eq!(split.num_segments(), 2, "{id} cut at {cut}");
        let outputs = run_call(&split, case).unwrap();
        let report = compare_outputs(case, &split.output_names(), &outputs);
        assert_eq!(report.status, Status::Passed, "{id} cut at {cut}: {:?}", report.message);
    }
    eprintln!("{id}: {} cuts", cuts - 1);
}

#[test]
fn scenario_03_every_single_cut_of_a_cnn() {
    scenario_03_every_single_cut("ppocr-cls", "up-and-down");
}

#[test]
fn scenario_03_every_single_cut_of_a_transformer() {
    scenario_03_every_single_cut("minilm-int8", "one");
}
