//! The language model over two worker processes, each of which reads the tensors of its own layers.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use brigade::actors::transport::{TransportOptions, transport};
use brigade::cluster::{Cluster, ClusterOptions};
use brigade::import::{GgufFile, Limits};
use brigade::partition::{DeviceMap, computing_nodes};
use brigade::{DeviceId, Pipeline, Registry, Tensor, WeightCache};

use super::gemma::decoder::Decoder;
use super::gemma::generate::{Generated, Generator, greedy, uri};
use super::gemma::{Prompt, STEPS, prompts};
use super::models;

/// The first layer of the second worker.
const CUT: &str = "blk.9.attn_norm.weight";
const EMBEDDING: &str = "token_embd.weight";

/// A process of the program that serves on a free port of loopback, without certificates.
struct Process {
    child: Child,
    out: BufReader<ChildStdout>,
    address: String,
}

impl Process {
    fn start(name: &str, root: &Path) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_brigade"))
            .args(["worker", "--json", "--listen", "127.0.0.1:0", "--drain", "5", "--name", name])
            .arg("--weights-root")
            .arg(root)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap().to_owned();
        Self { child, out, address }
    }

    /// Ends it in order; gives what it says that it did.
    fn end(mut self) -> serde_json::Value {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", "TERM", &id]).status().unwrap().success());
        let until = Instant::now() + Duration::from_secs(15);
        while self.child.try_wait().unwrap().is_none() {
            assert!(Instant::now() < until, "the worker does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut text = String::new();
        self.out.read_to_string(&mut text).unwrap();
        serde_json::from_str(&text).unwrap()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The decoder cut in front of [`CUT`], its halves on two devices.
fn generator(
    path: &Path,
    file: &GgufFile,
    prompts: &[Prompt],
    registry: &Registry,
    devices: &[&str],
) -> Generator {
    let longest = prompts.iter().map(|p| p.tokens.len()).max().unwrap();
    let decoder = Decoder::new(file, &uri(path).unwrap(), longest + STEPS, true).unwrap();
    let graph = &decoder.graph;
    let named = |v: brigade::graph::ValueId| graph.value(v).name == CUT;
    let cut =
        computing_nodes(graph).iter().position(|n| graph.node(*n).reads().any(named)).unwrap();
    let devices: Vec<DeviceId> = devices.iter().map(|d| d.parse().unwrap()).collect();
    let mut builder = Pipeline::builder(graph.clone())
        .registry(registry.clone())
        .placement(DeviceMap::contiguous(graph, &devices, &[cut]).unwrap())
        .weights(&WeightCache::new())
        .bind_all(decoder.weights.iter().cloned())
        .in_flight(prompts.len());
    for device in devices {
        builder = builder.threads(device, 1);
    }
    let pipeline = builder.spawn().unwrap();
    assert_eq!(pipeline.sequential().num_segments(), 2);
    Generator { decoder, pipeline }
}

/// What follows the prompts, streamed, with the logits of each step.
fn said(generator: &Generator, prompts: &[Prompt]) -> (Generated, Vec<Vec<Tensor>>) {
    let given: Vec<Vec<i64>> = prompts.iter().map(|p| p.tokens.clone()).collect();
    let mut kept = vec![Vec::new(); prompts.len()];
    let run = generator
        .streamed(&given, &mut |i, step, logits| {
            if step == STEPS {
                return Ok(None);
            }
            kept[i].push(logits.clone());
            greedy(logits).map(Some)
        })
        .unwrap();
    (run, kept)
}

#[test]
fn a_decoder_over_two_workers_says_the_same_and_each_reads_its_own_tensors() {
    let Some(folder) = models::gemma() else { return };
    let _turn = models::turn();
    let path = folder.join(models::GEMMA).canonicalize().unwrap();
    let file = GgufFile::open(&path, &Limits::default()).unwrap();
    let mut prompts = prompts(&folder);
    prompts.retain(|p| p.tokens.len() < 100);
    assert!(prompts.len() >= 2);

    let workers = ["w0", "w1"].map(|name| (name, Process::start(name, path.parent().unwrap())));
    let addresses = workers.each_ref().map(|(name, w)| ((*name).to_owned(), w.address.clone()));
    let grpc = (transport("grpc").unwrap().open)(&TransportOptions::new()).unwrap();
    let local = Registry::default();
    let cluster = Cluster::connect(grpc, &addresses, &local, ClusterOptions::new()).unwrap();
    // With the same devices at hand the passes are the same.
    let here = generator(&path, &file, &prompts, cluster.registry(), &["cpu:0", "cpu:1"]);
    let (one, expected) = said(&here, &prompts);
    drop(here);
    let there = generator(&path, &file, &prompts, cluster.registry(), &["w0/cpu:0", "w1/cpu:0"]);
    let (run, logits) = said(&there, &prompts);
    for (k, prompt) in prompts.iter().enumerate() {
        assert_eq!(run.tokens[k], prompt.greedy, "{}", prompt.name);
        assert_eq!(logits[k].len(), STEPS);
        let same = logits[k].iter().zip(&expected[k]).all(|(a, b)| a.as_bytes() == b.as_bytes());
        assert!(same, "{}: the logits of two processes differ from those of one", prompt.name);
    }

    // Of each stage the tensors that its segment reads, as they are stored, and nothing else.
    let whole: u64 = file.tensors().iter().map(|t| t.bytes as u64).sum();
    let embedding = file.tensor(EMBEDDING).unwrap().bytes as u64;
    let mut own = [0_u64; 2];
    for tensor in file.tensors() {
        let segments = there.pipeline.sequential().split().param_segments(&tensor.name).to_vec();
        assert!(!segments.is_empty(), "nobody reads `{}`", tensor.name);
        assert!(segments.len() == 1 || tensor.name == EMBEDDING, "`{}` is read twice", tensor.name);
        for segment in segments {
            own[segment] += tensor.bytes as u64;
        }
    }
    let stages: BTreeMap<String, u64> =
        cluster.stats().stages.into_iter().map(|s| (s.device, s.read_bytes)).collect();
    assert_eq!(stages["w0/cpu:0"], own[0]);
    assert_eq!(stages["w1/cpu:0"], own[1]);
    assert_eq!(cluster.stats().losses.len(), 0);
    drop((there, cluster));
    // The workers themselves say the same.
    let read = workers.map(|(_, w)| w.end()["weight_bytes_read"].as_u64().unwrap());
    assert_eq!(read, own);
    assert!(read.iter().all(|r| *r < whole), "{read:?} of {whole}");
    // The embedding is both the first matrix and the last.
    assert!(read.iter().sum::<u64>() <= whole + embedding, "{read:?} of {whole}");
    let rate = |run: &Generated| {
        run.tokens.iter().map(Vec::len).sum::<usize>() as f64 / run.rest.as_secs_f64()
    };
    eprintln!(
        "read {} and {} MiB of {}; {:.1} tokens a second, in one process {:.1}",
        read[0] >> 20,
        read[1] >> 20,
        whole >> 20,
        rate(&run),
        rate(&one)
    );
}
