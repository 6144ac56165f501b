//! `brigade demo`: a built-in model streams through device actors.

use std::time::{Duration, Instant};

use brigade_actors::Window;
use clap::Args as ClapArgs;
use serde::Serialize;

use super::bind::{Extents, Named};
use super::console::Console;
use super::failure::Outcome;
use super::memory::Memory;
use super::placing::{Keep, Placing};
use super::table::table;
use crate::bench;
use crate::error::{Result, bail, err};
use crate::import::{self, Limits};
use crate::partition::PlanReport;
use crate::pipeline::{HeteroExecutable, Pipeline};
use crate::tensor::{DType, Tensor, Value, cast};

/// A network that reads handwritten digits, its held-out images, what they show, and what another
/// runtime answers.
static MODEL: &[u8] = include_bytes!("../../examples/digits/digits.onnx");
static IMAGES: &[u8] = include_bytes!("../../examples/digits/images.npy");
static LABELS: &[u8] = include_bytes!("../../examples/digits/labels.npy");
static PROBABILITIES: &[u8] = include_bytes!("../../examples/digits/probabilities.npy");

/// Largest difference from the other runtime's probabilities.
const TOLERANCE: f64 = 1e-4;
/// What is promised on free cores.
const SPEED_UP: f64 = 1.7;
const ACHIEVED: f64 = 0.9;

/// What is to be said of a share above 1.
const ABOVE_BOUND: &str = "above 1 by noise: the measurement is short; more --seconds narrow it";

/// Arguments of `demo`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Stages of the pipeline, one on each of as many CPU devices
    #[arg(long, value_name = "K", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    stages: u32,
    /// Images per micro-batch
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..))]
    micro_batch: u32,
    /// Use only the first N of the 900 images
    #[arg(long, value_name = "N", default_value_t = 900, value_parser = clap::value_parser!(u32).range(1..=900))]
    images: u32,
    /// About how long to measure; every image is streamed at least once
    #[arg(long, value_name = "S", default_value_t = 3.0)]
    seconds: f64,
}

/// One stage, alone and together with the others.
#[derive(Debug, Serialize)]
struct Stage {
    actor: String,
    device: String,
    /// Milliseconds per micro-batch while no other stage works.
    solo_ms: f64,
    /// Milliseconds per micro-batch while all stages work.
    streaming_ms: f64,
    busy: f64,
    starved: f64,
    blocked: f64,
    other: f64,
}

/// What the JSON document holds.
#[derive(Debug, Serialize)]
struct Document {
    images: usize,
    correct: usize,
    accuracy: f64,
    micro_batch: usize,
    in_flight: usize,
    segments: usize,
    placement: PlanReport,
    memory: Memory,
    sequential_images_per_s: f64,
    streaming_images_per_s: f64,
    speed_up: f64,
    /// Images per second that no schedule of this plan can beat.
    bound: Option<f64>,
    achieved: Option<f64>,
    /// Says so where `achieved` is above 1.
    achieved_note: Option<&'static str>,
    bottleneck: Option<String>,
    stages: Vec<Stage>,
    images_streamed: u64,
    bit_equal: bool,
    /// Largest difference from the other runtime's probabilities.
    max_abs: f64,
    cores: usize,
    /// Why the speed-up is below 1.7 or `achieved` below 0.9, if so.
    why: Vec<String>,
}

/// The images as micro-batches, and what they must give.
struct Data {
    batches: Vec<Tensor>,
    images: usize,
    labels: Vec<i64>,
    oracle: Tensor,
}

impl Data {
    fn new(total: usize, micro_batch: usize) -> Result<Self> {
        let images = cast(&import::parse_npy(IMAGES)?, DType::F32)?;
        let labels = import::parse_npy(LABELS)?.rows(0, total)?;
        let labels = cast(&labels, DType::I64)?.to_i64s()?;
        let oracle = import::parse_npy(PROBABILITIES)?.rows(0, total)?;
        let batches = (0..total)
            .step_by(micro_batch)
            .map(|at| images.narrow(0, at, micro_batch.min(total - at)))
            .collect::<Result<_>>()?;
        Ok(Self { batches, images: total, labels, oracle })
    }

    fn feed(&self, batch: usize) -> Vec<(String, Value)> {
        vec![("image".to_owned(), self.batches[batch].clone().into())]
    }
}

pub(super) fn run(args: &Args, console: &Console) -> Outcome {
    if !(0.0..=3600.0).contains(&args.seconds) {
        return Err(err!(Usage, "--seconds {} is not between 0 and 3600", args.seconds).into());
    }
    let micro_batch = args.micro_batch as usize;
    let data = Data::new(args.images as usize, micro_batch)?;
    let graph = import::from_bytes(MODEL, None, &Limits::default())?.graph;
    let extents = Extents(data.batches[0].shape().to_vec());
    let placing = Placing {
        stages: Some(args.stages as usize),
        shape: vec![Named { name: "image".to_owned(), value: extents }],
        ..Placing::default()
    };
    let mut placed = placing.place(graph, None, console)?;
    let split = placed.split()?;
    let (placement, memory) = (placed.report(&split), placed.memory(&split, false));
    for segment in split.segments() {
        let nodes = &segment.nodes;
        let name = |id: Option<&crate::graph::NodeId>| {
            id.map_or(String::new(), |id| placed.graph.node(*id).name.clone())
        };
        console.notice(&format!(
            "segment {} on {}: {} nodes, {} to {}",
            segment.index,
            segment.device,
            nodes.len(),
            name(nodes.first()),
            name(nodes.last())
        ));
    }
    console.notice(&memory.to_string());
    let pipeline = placed.pipeline(0, Keep::Nothing)?;
    let sequential = pipeline.sequential();
    let budget = |share: f64| Duration::from_secs_f64(args.seconds * share);

    // The first pass warms up, and gives what the streamed results must be equal to.
    let expected: Vec<Vec<Value>> = (0..data.batches.len())
        .map(|b| sequential.run_values(data.feed(b)))
        .collect::<Result<_>>()?;
    let (correct, max_abs) = judge(&data, &expected)?;
    let bar = console.progress("sequential", None);
    let before = time_sequential(&sequential, &data, budget(0.2), &bar)?;
    bar.finish_and_clear();
    let solo = time_solo(&pipeline, &data, budget(0.15))?;
    let bar = console.progress("streaming", None);
    let measured = stream(&pipeline, &data, &expected, budget(0.45), &bar)?;
    bar.finish_and_clear();
    let bar = console.progress("sequential", None);
    let after = time_sequential(&sequential, &data, budget(0.2), &bar)?;
    bar.finish_and_clear();

    let report = measured.report().with_solo(&solo);
    let per_item = data.images as f64 / data.batches.len() as f64;
    let sequential_rate = (before.0 + after.0) / (before.1 + after.1);
    let streaming_rate = report.items_per_s * per_item;
    let stages: Vec<Stage> = report
        .actors
        .iter()
        .map(|together| Stage {
            actor: together.name.clone(),
            device: together.device.clone(),
            solo_ms: together.solo_us.unwrap_or_default() / 1e3,
            streaming_ms: together.service_us / 1e3,
            busy: together.busy,
            starved: together.starved,
            blocked: together.blocked,
            other: together.other,
        })
        .collect();
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut document = Document {
        images: data.images,
        correct,
        accuracy: correct as f64 / data.images as f64,
        micro_batch,
        in_flight: report.in_flight,
        segments: split.segments().len(),
        placement,
        memory,
        sequential_images_per_s: sequential_rate,
        streaming_images_per_s: streaming_rate,
        speed_up: streaming_rate / sequential_rate,
        bound: report.bound.map(|b| b * per_item),
        achieved: report.achieved,
        achieved_note: report.achieved.filter(|a| *a > 1.0).map(|_| ABOVE_BOUND),
        bottleneck: report.bottleneck.clone(),
        stages,
        images_streamed: (measured.results as f64 * per_item).round() as u64,
        bit_equal: true,
        max_abs,
        cores,
        why: Vec::new(),
    };
    let (speed_up, achieved) = (document.speed_up, document.achieved.unwrap_or(0.0));
    document.why = why(&document.stages, speed_up, achieved, cores);
    console.result(&document, &text(&document))
}

/// How many images are read right, and how far the probabilities are from the other runtime's.
fn judge(data: &Data, outputs: &[Vec<Value>]) -> Result<(usize, f64)> {
    let parts: Vec<Tensor> =
        outputs.iter().map(|o| o[0].tensor().cloned()).collect::<Result<_>>()?;
    let all = Tensor::concat(&parts, 0)?;
    if all.shape() != data.oracle.shape() {
        bail!(Internal, "the demo gave {}, not {}", all.describe(), data.oracle.describe());
    }
    let (got, want) = (all.as_slice::<f32>()?, data.oracle.as_slice::<f32>()?);
    let max_abs = got
        .iter()
        .zip(want)
        .map(|(g, w)| f64::from((g - w).abs()))
        .fold(0.0, |most: f64, d| if d.is_nan() { f64::INFINITY } else { most.max(d) });
    if max_abs > TOLERANCE {
        bail!(Kernel, "the probabilities are off by {max_abs:.3e}, {TOLERANCE:.0e} allowed");
    }
    let classes = got.len() / data.labels.len().max(1);
    let answer = |row: &[f32]| {
        let best = row.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
        best.map_or(-1, |(i, _)| i as i64)
    };
    let right = got.chunks(classes.max(1)).zip(&data.labels).filter(|(r, l)| answer(r) == **l);
    Ok((right.count(), max_abs))
}

/// Images and seconds of whole passes, at least one.
fn time_sequential(
    executable: &HeteroExecutable,
    data: &Data,
    budget: Duration,
    bar: &indicatif::ProgressBar,
) -> Result<(f64, f64)> {
    let began = Instant::now();
    let mut images = 0;
    while images == 0 || began.elapsed() < budget {
        for b in 0..data.batches.len() {
            executable.run_values(data.feed(b))?;
            bar.inc(1);
        }
        images += data.images;
    }
    Ok((images as f64, began.elapsed().as_secs_f64()))
}

/// The pipeline with one micro-batch in it at a time: each stage works alone.
fn time_solo(pipeline: &Pipeline, data: &Data, budget: Duration) -> Result<Window> {
    const LEAST: usize = 8;
    let before = pipeline.stats();
    let began = Instant::now();
    let mut n = 0;
    while n < LEAST || began.elapsed() < budget {
        pipeline.push(data.feed(n % data.batches.len()))?.wait()?;
        n += 1;
    }
    Ok(pipeline.stats().since(&before))
}

/// Streams whole passes, at least one; every result must be equal to the sequential one.
fn stream(
    pipeline: &Pipeline,
    data: &Data,
    expected: &[Vec<Value>],
    budget: Duration,
    bar: &indicatif::ProgressBar,
) -> Result<bench::Measured> {
    let began = Instant::now();
    let count = data.batches.len();
    let items = (0..)
        .take_while(|pass| *pass == 0 || began.elapsed() < budget)
        .flat_map(|_| (0..count).map(|b| (b, Ok(data.feed(b)))));
    bench::stream(pipeline, items, |b, result| {
        if result? != expected[b] {
            bail!(Internal, "streamed micro-batch {b} is not equal to the sequential one");
        }
        bar.inc(1);
        Ok(())
    })
}

/// Why less came out than free cores give.
fn why(parts: &[Stage], speed_up: f64, achieved: f64, cores: usize) -> Vec<String> {
    if speed_up >= SPEED_UP && achieved >= ACHIEVED {
        return Vec::new();
    }
    let mut why = Vec::new();
    if cfg!(debug_assertions) {
        why.push("this build is not optimised: use `cargo run --release -- demo`".to_owned());
    }
    if parts.len() < 2 {
        why.push("there is one stage, and so nothing that could overlap".to_owned());
    } else if cores < parts.len() {
        let stages = parts.len();
        why.push(format!("{stages} stages share {cores} core(s)"));
    }
    let solo: f64 = parts.iter().map(|s| s.solo_ms).sum();
    let together: f64 = parts.iter().map(|s| s.streaming_ms).sum();
    let slowdown = together / solo;
    let crowded = slowdown > 1.1 && parts.len() > 1;
    if crowded {
        let load = load_average().map_or(String::new(), |l| format!(" (load average {l})"));
        why.push(format!(
            "a stage takes {slowdown:.2} times as long while the others work as alone: the cores \
             are busy with other work, or share what they compute with{load}"
        ));
    }
    let largest = parts.iter().map(|s| s.solo_ms).fold(0.0, f64::max);
    let ceiling = solo / largest;
    if parts.len() > 1 && ceiling < SPEED_UP {
        why.push(format!(
            "the stages are uneven: even alone the costliest takes {largest:.2} of {solo:.2} ms, \
             which allows {ceiling:.2} times at most"
        ));
    }
    // Where the cores were not free the time went there, and larger micro-batches would not help.
    let free = !crowded && cores >= parts.len();
    if free && parts.iter().any(|s| s.solo_ms < 1.0) {
        why.push(
            "a stage takes less than 1 ms, so that handing over counts: use a larger --micro-batch"
                .to_owned(),
        );
    }
    if why.is_empty() {
        why.push("the cores were not free all the time: run it again, or with --seconds 10".into());
    }
    why
}

fn load_average() -> Option<String> {
    let text = std::fs::read_to_string("/proc/loadavg").ok()?;
    Some(text.split_whitespace().next()?.to_owned())
}

fn text(d: &Document) -> String {
    let head = ["stage", "alone", "streaming", "busy", "starved", "blocked", "other"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for s in &d.stages {
        let percent = |x: f64| format!("{:.0} %", x * 100.0);
        rows.push(vec![
            s.actor.clone(),
            format!("{:.2} ms", s.solo_ms),
            format!("{:.2} ms", s.streaming_ms),
            percent(s.busy),
            percent(s.starved),
            percent(s.blocked),
            percent(s.other),
        ]);
    }
    let mut out = table(&rows);
    out += &format!(
        "streamed    {} images in micro-batches of {}, {} in flight: equal to sequential to the \
         bit, within {:.1e} of the reference\n",
        d.images_streamed, d.micro_batch, d.in_flight, d.max_abs
    );
    out += &format!("accuracy    {:.4} ({} of {})\n", d.accuracy, d.correct, d.images);
    out += &format!("sequential  {:.0} images/s\n", d.sequential_images_per_s);
    out += &format!(
        "streaming   {:.0} images/s, {:.2} times as fast\n",
        d.streaming_images_per_s, d.speed_up
    );
    if let (Some(bound), Some(achieved)) = (d.bound, d.achieved) {
        out += &format!("bound       {bound:.0} images/s\n");
        let note = d.achieved_note.map_or_else(String::new, |n| format!("  ({n})"));
        out += &format!("achieved    {achieved:.3}{note}\n");
    }
    if let Some(bottleneck) = &d.bottleneck {
        out += &format!("bottleneck  {bottleneck}\n");
    }
    for why in &d.why {
        out += &format!("because     {why}\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stage(solo_ms: f64, streaming_ms: f64) -> Stage {
        Stage {
            actor: "a".to_owned(),
            device: "cpu:0".to_owned(),
            solo_ms,
            streaming_ms,
            busy: 0.5,
            starved: 0.2,
            blocked: 0.1,
            other: 0.2,
        }
    }

    #[test]
    fn handing_over_is_blamed_only_where_the_cores_were_free() {
        let blamed = |parts: &[Stage], cores| {
            why(parts, 1.2, 0.7, cores).iter().any(|w| w.contains("handing over"))
        };
        let fast = [stage(0.5, 0.5), stage(0.5, 0.51)];
        assert!(blamed(&fast, 2));
        // The stages slow each other down, or have no core each: it was not the handing over.
        assert!(!blamed(&[stage(0.5, 0.9), stage(0.5, 0.8)], 2));
        assert!(!blamed(&fast, 1));
        assert!(!blamed(&[stage(5.0, 5.0), stage(5.0, 5.1)], 2));
        assert!(why(&fast, 1.8, 0.95, 2).is_empty());
    }
}
