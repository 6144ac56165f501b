//! What the device orders: items over several streams, actors and devices, each late by something else.

use std::collections::BTreeMap;
use std::time::Duration;

use brigade::graph::Graph;
use brigade::ops::builder::GraphBuilder;
use brigade::partition::EdgePath;
use brigade::{
    CompileOptions, DType, DeviceId, DeviceMap, HeteroExecutable, Pipeline, Tensor, Value,
};

use super::operators::differs;
use super::process::{is_inside, on_standin, ran};
use super::{models, standin};

pub(crate) fn cuda(number: u32) -> DeviceId {
    DeviceId::new("cuda", number).unwrap()
}

pub(crate) fn numbers(shape: &[usize], seed: usize) -> Tensor {
    let n: usize = shape.iter().product();
    let data = (0..n).map(|i| ((i * 37 + seed * 101 + 11) % 199) as f32 / 100.0 - 0.99);
    Tensor::new(shape, data.collect()).unwrap()
}

/// Products, with and without what goes into the library's epilogue, and kernels between them.
pub(crate) fn chain() -> Graph {
    let mut g = GraphBuilder::new("chain");
    let x = g.input("x", DType::F32, ["N".into(), 16.into()]).unwrap();
    let w = |g: &mut GraphBuilder, shape: &[usize], seed| g.constant(numbers(shape, seed)).unwrap();
    let (w0, b0) = (w(&mut g, &[16, 32], 1), w(&mut g, &[32], 2));
    let h = g.matmul(x, w0).unwrap();
    let h = g.add(h, b0).unwrap();
    let h = g.relu(h).unwrap();
    let s = g.softmax(h, -1).unwrap();
    let h = g.mul(h, s).unwrap();
    let w1 = w(&mut g, &[32, 24], 3);
    let h = g.matmul(h, w1).unwrap();
    let h = g.tanh(h).unwrap();
    let w2 = w(&mut g, &[24, 7], 4);
    let h = g.matmul(h, w2).unwrap();
    let h = g.softmax(h, -1).unwrap();
    let y = g.sigmoid(h).unwrap();
    g.finish([("y", y)]).unwrap()
}

pub(crate) fn on_cpu(graph: Graph) -> HeteroExecutable {
    let map = DeviceMap::single(DeviceId::cpu(0));
    HeteroExecutable::compile(graph, &map, &CompileOptions::default()).unwrap()
}

/// How many streamed items are wrong, or errors.
fn wrong(pipeline: &Pipeline, oracle: &HeteroExecutable, items: &[Tensor], atol: f32) -> usize {
    let results: Vec<_> = pipeline.stream(items.iter().map(|t| [("x", t.clone())])).collect();
    assert_eq!(results.len(), items.len());
    let is_wrong = |(result, input): (brigade::Result<Vec<Value>>, &Tensor)| {
        let expected = oracle.run_values(vec![("x".to_owned(), input.clone().into())]).unwrap();
        let got = match result {
            Ok(got) => got,
            Err(e) => {
                eprintln!("{e}");
                return true;
            }
        };
        let same = |(g, e): (&Value, &Value)| {
            differs(g.tensor().unwrap(), e.tensor().unwrap(), atol, 1e-4).is_none()
        };
        !got.iter().zip(&expected).all(same)
    };
    results.into_iter().zip(items).map(is_wrong).filter(|w| *w).count()
}

/// Late by up to a millisecond and a half, each operation of a stream.
const LATE: (&str, &str) = ("STANDIN_DELAY_US", "1500");

/// Stages in turn over devices, and how many of streamed items are wrong.
fn wrong_in_stages(count: usize, devices: &[&str]) -> (usize, Vec<EdgePath>) {
    let graph = chain();
    let pipeline = Pipeline::builder(graph.clone()).stages(count, devices).unwrap();
    let pipeline = pipeline.in_flight(5).spawn().unwrap();
    let report = pipeline.sequential().report(&|_| None);
    let paths = report.boundaries.iter().map(|b| b.path).collect();
    let items: Vec<Tensor> = (0..30).map(|n| numbers(&[1 + n % 2, 16], n)).collect();
    (wrong(&pipeline, &on_cpu(graph), &items, 1e-4), paths)
}

#[test]
fn items_are_right_however_late_each_copy_and_kernel_is() {
    let name = "order::items_are_right_however_late_each_copy_and_kernel_is";
    on_standin(name, &[LATE, ("STANDIN_DEVICES", "2")], || {
        let (alone, _) = wrong_in_stages(1, &["cuda:0"]);
        let (neighbours, paths) = wrong_in_stages(3, &["cuda:0"]);
        assert_eq!(paths, [EdgePath::Device; 2]);
        let (by_turns, _) = wrong_in_stages(4, &["cuda:0", "cpu:0"]);
        let (two, paths) = wrong_in_stages(4, &["cuda:0", "cuda:1"]);
        assert_eq!(paths, vec![EdgePath::Device; paths.len()]);
        assert_eq!((alone, neighbours, by_turns, two), (0, 0, 0, 0));
    });
}

#[test]
fn a_real_model_is_the_same_split_over_gpu_and_cpu() {
    on_standin("order::a_real_model_is_the_same_split_over_gpu_and_cpu", &[], || {
        let Some(model) = models::one("ppocr-cls") else { return };
        let pipeline = Pipeline::builder(model.graph()).stages(3, &["cuda:0", "cpu:0"]).unwrap();
        let pipeline = pipeline.in_flight(4).spawn().unwrap();
        let items: Vec<Tensor> = (0..4).map(|n| numbers(&[1, 3, 48, 192], n)).collect();
        assert_eq!(wrong(&pipeline, &on_cpu(model.graph()), &items, 1e-3), 0);
        eprintln!("on cuda:0 and cpu:0 ppocr-cls by turns");
    });
}

/// The body of the tests below: says how many items are wrong.
#[test]
fn counted() {
    if is_inside() {
        // Neighbours on the GPU, and the CPU between them.
        let (wrong, _) = wrong_in_stages(5, &["cuda:0", "cuda:0", "cpu:0"]);
        println!("wrong: {wrong}");
    }
}

/// The test above would see a wait that the device leaves out: here the driver leaves it out.
#[test]
fn a_wait_that_is_left_out_gives_wrong_items() {
    if is_inside() {
        return;
    }
    let Some(folder) = standin::libraries() else { return };
    let count = |variables: &[(&str, &str)]| {
        let ran = ran(&folder, "order::counted", variables, Duration::from_secs(120));
        assert!(ran.passed, "{}", ran.said);
        let count = ran.said.split("wrong: ").nth(1).and_then(|rest| rest.lines().next());
        count.unwrap().trim().parse::<usize>().unwrap()
    };
    assert_eq!(count(&[LATE]), 0);
    for wait in ["cuStreamWaitEvent", "cuEventSynchronize", "cuStreamSynchronize"] {
        let wrong = count(&[LATE, ("STANDIN_IGNORE", wait)]);
        assert!(wrong > 5, "without {wait} {wrong} items are wrong");
    }
}

/// Streams items of one shape over two devices.
#[test]
fn streamed() {
    if is_inside() {
        let graph = chain();
        let pipeline = Pipeline::builder(graph.clone()).stages(4, &["cuda:0", "cpu:0"]).unwrap();
        let pipeline = pipeline.in_flight(5).spawn().unwrap();
        let items: Vec<Tensor> = (0..30).map(|n| numbers(&[2, 16], n)).collect();
        assert_eq!(wrong(&pipeline, &on_cpu(graph), &items, 1e-4), 0);
    }
}

#[test]
fn nobody_who_submits_waits_or_allocates_between_submissions() {
    if is_inside() {
        return;
    }
    let Some(folder) = standin::libraries() else { return };
    let file = tempfile::NamedTempFile::new().unwrap();
    let variables = [("STANDIN_TRACE", file.path().to_str().unwrap())];
    let ran = ran(&folder, "order::streamed", &variables, Duration::from_secs(120));
    assert!(ran.passed, "{}", ran.said);
    let text = std::fs::read_to_string(file.path()).unwrap();
    // By thread.
    let mut calls: BTreeMap<&str, Vec<(&str, &str)>> = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        calls.entry(words[1]).or_default().push((words[2], words[3]));
    }
    let is_launch = |call: &(&str, &str)| {
        ["cuLaunchKernel", "cuGraphLaunch", "cublasLtMatmul"].contains(&call.1)
    };
    let mut submitters = 0;
    for calls in calls.values() {
        let launches = calls.iter().filter(|c| is_launch(c)).count();
        if launches < 60 {
            continue;
        }
        submitters += 1;
        let from = calls.iter().position(is_launch).unwrap();
        let to = calls.iter().rposition(is_launch).unwrap();
        let kinds: Vec<&str> = calls[from..=to].iter().map(|(kind, _)| *kind).collect();
        let waits = calls[from..=to].iter().filter(|(kind, _)| *kind == "block");
        assert_eq!(waits.collect::<Vec<_>>(), Vec::<&(&str, &str)>::new());
        // Of the three slots, those after the first are made when they are needed first.
        let made = kinds.windows(2).filter(|w| w[0] != "allocate" && w[1] == "allocate").count();
        assert!(made <= 2, "memory was allocated {made} times between submissions: {calls:?}");
    }
    assert!(submitters >= 1, "{text}");
}
