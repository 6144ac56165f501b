//! Real models, each in three stages on three machines, equal to the local pipeline to the bit.

use std::path::Path;
use std::time::Instant;

use brigade::cluster::ClusterOptions;
use brigade::graph::Graph;
use brigade::ops::builder::GraphBuilder;
use brigade::{DType, Pipeline, Tensor, Value, WeightRef};

use crate::namespaces::Namespaces;
use crate::rig::{Busy, Process, Rig};

/// The items of a model: so many different ones are made, and come again and again.
const DIFFERENT: usize = 8;

fn numbers(seed: usize, count: usize) -> impl Iterator<Item = f32> {
    (0..count).map(move |i| ((i * 7919 + seed * 104_729) % 1009) as f32 / 1009.0)
}

fn picture(seed: usize) -> Vec<(String, Value)> {
    let pixels = numbers(seed, 3 * 160 * 160).map(|v| v * 2.0 - 1.0).collect();
    vec![("x".to_owned(), Tensor::new([1, 3, 160, 160], pixels).unwrap().into())]
}

fn sentence(seed: usize) -> Vec<(String, Value)> {
    let length = 12 + seed % 5;
    let row = |value: &dyn Fn(f32) -> i64| {
        let data: Vec<i64> = numbers(seed, length).map(value).collect();
        Value::from(Tensor::new([1, length], data).unwrap())
    };
    vec![
        ("input_ids".to_owned(), row(&|v| 1000 + (v * 20_000.0) as i64)),
        ("attention_mask".to_owned(), row(&|_| 1)),
        ("token_type_ids".to_owned(), row(&|_| 0)),
    ]
}

pub(crate) fn all(spaces: &Namespaces) {
    let Some(models) = std::env::var_os("BRIGADE_MODELS").filter(|_| !cfg!(debug_assertions))
    else {
        println!("left out: real models, which take a release build and BRIGADE_MODELS");
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(spaces, folder.path());
    rig.roots.push(models.clone().into());
    let items = std::env::var("BRIGADE_MODEL_ITEMS").ok().and_then(|n| n.parse().ok());
    let items: usize = items.unwrap_or(2000);
    let load = |file: &str| brigade::import::load(Path::new(&models).join(file)).unwrap();
    run(&rig, &load("minilm-int8/minilm_int8.onnx"), &[], 3, items, &sentence);
    run(&rig, &load("ppocr-det/PP-OCRv6_det_small.onnx"), &[], 3, items, &picture);
    let (graph, weights) = perceptron(folder.path());
    run(&rig, &graph, &weights, 2, items, &batch);
}

/// 8 x (x·W + b, ReLU), W 1024 x 1024, a batch of 32.
fn perceptron(folder: &Path) -> (Graph, Vec<WeightRef>) {
    let mut g = GraphBuilder::new("perceptron");
    let mut x = g.input("x", DType::F32, [32.into(), 1024.into()]).unwrap();
    let mut weights = Vec::new();
    for layer in 0..8 {
        for (name, shape) in
            [(format!("w{layer}"), [1024, 1024]), (format!("b{layer}"), [32, 1024])]
        {
            let data = numbers(layer, shape[0] * shape[1]).map(|v| (v - 0.5) / 16.0).collect();
            let file = folder.join(format!("{name}.npy"));
            brigade::import::write_npy(&file, &Tensor::new(shape, data).unwrap()).unwrap();
            weights.push(WeightRef::new(name.clone(), format!("npy://{name}.npy")));
            let p = g.param(&name, DType::F32, &shape).unwrap();
            x = if name.starts_with('w') { g.matmul(x, p).unwrap() } else { g.add(x, p).unwrap() };
        }
        x = g.relu(x).unwrap();
    }
    (g.finish([("y", x)]).unwrap(), weights)
}

fn batch(seed: usize) -> Vec<(String, Value)> {
    let data = numbers(seed, 32 * 1024).collect();
    vec![("x".to_owned(), Tensor::new([32, 1024], data).unwrap().into())]
}

fn run(
    rig: &Rig<'_>,
    graph: &Graph,
    weights: &[WeightRef],
    stages: usize,
    items: usize,
    item: &dyn Fn(usize) -> Vec<(String, Value)>,
) {
    let cache = rig.roots.iter().fold(brigade::WeightCache::new(), |c, r| c.with_root(r).unwrap());
    let pipeline = |registry: brigade::Registry, devices: &[&str]| {
        let mut builder = Pipeline::builder(graph.clone()).registry(registry).weights(&cache);
        builder = builder.bind_all(weights.iter().cloned());
        for (name, value) in item(0) {
            builder = builder.expected_shape(name, value.shape().unwrap());
        }
        builder.stages(stages, &devices[..stages]).unwrap().in_flight(8).spawn().unwrap()
    };
    let timed = |p: &Pipeline, expected: Option<&[Vec<Value>]>| {
        let begin = Instant::now();
        let mut first = Vec::new();
        for (n, result) in p.stream((0..items).map(|n| item(n % DIFFERENT))).enumerate() {
            let outputs = result.unwrap();
            if let Some(expected) = expected {
                assert_eq!(outputs, expected[n % DIFFERENT], "item {n}");
            }
            if first.len() < DIFFERENT {
                first.push(outputs);
            }
        }
        (first, items as f64 / begin.elapsed().as_secs_f64())
    };
    let workers: Vec<Process> = ["w1", "w2", "w3"].iter().map(|n| rig.start(n)).collect();
    let cluster = rig.connect(&["w1", "w2", "w3"], ClusterOptions::new()).unwrap();
    // With the same devices at hand the passes, and so the cuts, are the same.
    let local = pipeline(cluster.registry().clone(), &["cpu:0", "cpu:1", "cpu:2"]);
    let (expected, local_rate) = timed(&local, None);
    drop(local);
    let remote = pipeline(cluster.registry().clone(), &["w1/cpu", "w2/cpu", "w3/cpu"]);
    let busy = || workers.iter().map(Process::busy).fold(Busy::here(), |a, b| a + b);
    let before = busy();
    let (_, rate) = timed(&remote, Some(&expected));
    let spent = busy() - before;
    let share = spent.network as f64 / spent.all.max(1) as f64;
    // Threads that are named otherwise would count as none.
    assert!(spent.network > 0 && share < 1.0, "{spent:?}");
    let read: Vec<u64> = cluster.stats().stages.iter().map(|s| s.read_bytes >> 10).collect();
    println!(
        "{} in {stages} stages: {items} items equal to the local pipeline to the bit; {rate:.1} items/s, local \
         {local_rate:.1} ({:.2} x); the network's share of the processors' time {:.1} %; KiB of weights read \
         by each: {read:?}",
        graph.name,
        rate / local_rate,
        share * 100.0
    );
    assert_eq!(cluster.stats().duplicates, 0);
    drop(workers);
}
