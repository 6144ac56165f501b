//! Pipelines over workers: within this process and over loopback.

#![allow(clippy::unwrap_used)]

mod boundaries;
mod loss;
mod misuse;
mod pipelines;
mod placement;
mod program;
mod verbs;

use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade::actors::transport::{Transport, TransportOptions, transport};
use brigade::cluster::{Cluster, ClusterOptions, Serving, Worker};
use brigade::graph::Graph;
use brigade::ops::builder::GraphBuilder;
use brigade::{DType, Registry, Tensor, Value};

/// A transport of this kind.
fn open(kind: &str) -> Arc<dyn Transport> {
    (transport(kind).unwrap().open)(&TransportOptions::new()).unwrap()
}

/// Where a worker listens.
fn address(kind: &str, name: &str) -> String {
    if kind == "local" { name.to_owned() } else { "127.0.0.1:0".to_owned() }
}

/// Workers of this process, over a transport, and a coordinator that is connected to them.
struct Site {
    kind: &'static str,
    transport: Arc<dyn Transport>,
    workers: Vec<(String, Option<Serving>)>,
    addresses: Vec<(String, String)>,
}

impl Site {
    fn new(kind: &'static str, names: &[&str]) -> Self {
        let mut site =
            Self { kind, transport: open(kind), workers: Vec::new(), addresses: Vec::new() };
        for name in names {
            site.start(name, Worker::new(*name));
        }
        site
    }

    fn start(&mut self, name: &str, worker: Worker) {
        // Each process of its own would have a transport of its own.
        let transport =
            if self.kind == "local" { Arc::clone(&self.transport) } else { open(self.kind) };
        let serving = worker.serve(transport, &address(self.kind, name)).unwrap();
        self.addresses.push((name.to_owned(), serving.address().to_owned()));
        self.workers.push((name.to_owned(), Some(serving)));
    }

    fn connect(&self, options: ClusterOptions) -> Cluster {
        let transport = Arc::clone(&self.transport);
        Cluster::connect(transport, &self.addresses, &Registry::default(), options).unwrap()
    }

    fn worker(&self, name: &str) -> &Serving {
        self.workers.iter().find(|w| w.0 == name).unwrap().1.as_ref().unwrap()
    }

    /// Ends a worker as if its process were gone.
    fn end(&mut self, name: &str) {
        let worker = self.workers.iter_mut().find(|w| w.0 == name).unwrap();
        worker.1.take().unwrap().close();
    }
}

/// `layers` times x·W + b, ReLU, with a skip over each second one.
fn mlp(layers: usize, width: usize) -> Graph {
    let mut g = GraphBuilder::new("mlp");
    let mut x = g.input("x", DType::F32, ["N".into(), width.into()]).unwrap();
    let mut skip = x;
    for layer in 0..layers {
        let data = |seed: usize, n: usize| {
            let at = |i: usize| ((i * 7919 + seed * 104_729) % 199) as f32 / 199.0 - 0.5;
            (0..n).map(|i| at(i) / (width as f32).sqrt()).collect::<Vec<f32>>()
        };
        let w = Tensor::new([width, width], data(layer, width * width)).unwrap();
        let b = Tensor::new([width], data(layer + 100, width)).unwrap();
        let (w, b) = (g.constant(w).unwrap(), g.constant(b).unwrap());
        x = g.matmul(x, w).unwrap();
        x = g.add(x, b).unwrap();
        x = g.relu(x).unwrap();
        if layer % 2 == 1 {
            x = g.add(x, skip).unwrap();
            skip = x;
        }
    }
    g.finish([("y", x)]).unwrap()
}

fn item(number: usize, width: usize) -> Tensor {
    let rows = 1 + number % 3;
    let at = |i: usize| ((i * 31 + number * 17) % 23) as f32 / 23.0 - 0.4;
    Tensor::new([rows, width], (0..rows * width).map(at).collect()).unwrap()
}

/// Waits until something holds.
fn eventually(what: &str, within: Duration, mut holds: impl FnMut() -> bool) {
    let until = Instant::now() + within;
    while !holds() {
        assert!(Instant::now() < until, "not within {within:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What a local pipeline of the same plan gives.
fn expected(graph: &Graph, stages: usize, items: &[Tensor]) -> Vec<Vec<Value>> {
    let devices: Vec<String> = (0..stages).map(|n| format!("cpu:{n}")).collect();
    let devices: Vec<&str> = devices.iter().map(String::as_str).collect();
    let pipeline = brigade::Pipeline::builder(graph.clone())
        .stages(stages, &devices)
        .unwrap()
        .spawn()
        .unwrap();
    assert_eq!(pipeline.sequential().num_segments(), stages);
    items.iter().map(|x| pipeline.run([("x", x.clone())]).unwrap()).collect()
}
