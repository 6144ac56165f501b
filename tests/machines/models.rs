//! Real models, each in three stages on three machines, equal to the local pipeline to the bit.

use std::path::Path;
use std::time::Instant;

use brigade::cluster::ClusterOptions;
use brigade::{Pipeline, Tensor, Value};

use crate::namespaces::Namespaces;
use crate::rig::{Process, Rig};

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
    run(&rig, &Path::new(&models).join("minilm-int8/minilm_int8.onnx"), items, &sentence);
    run(&rig, &Path::new(&models).join("ppocr-det/PP-OCRv6_det_small.onnx"), items, &picture);
}

fn run(rig: &Rig<'_>, model: &Path, items: usize, item: &dyn Fn(usize) -> Vec<(String, Value)>) {
    let graph = brigade::import::load(model).unwrap();
    let pipeline = |registry: brigade::Registry, devices: &[&str]| {
        let mut builder = Pipeline::builder(graph.clone()).registry(registry);
        for (name, value) in item(0) {
            builder = builder.expected_shape(name, value.shape().unwrap());
        }
        builder.stages(3, devices).unwrap().in_flight(8).spawn().unwrap()
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
    let (_, rate) = timed(&remote, Some(&expected));
    let read: Vec<u64> = cluster.stats().stages.iter().map(|s| s.read_bytes >> 10).collect();
    println!(
        "{}: {items} items equal to the local pipeline to the bit; {rate:.1} items/s, local \
         {local_rate:.1}; KiB of weights read by each: {read:?}",
        model.display()
    );
    assert_eq!(cluster.stats().duplicates, 0);
    drop(workers);
}
