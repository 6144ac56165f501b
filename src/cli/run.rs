//! `brigade run`: a model over items.

use std::collections::HashMap;
use std::path::PathBuf;
use std::time::Instant;

use clap::Args as ClapArgs;
use indicatif::ProgressBar;
use serde::Serialize;
use sha2::{Digest, Sha256};

use super::console::Console;
use super::cutter::Cutter;
use super::failure::{Failure, Outcome};
use super::items::{Item, Items, Source};
use super::placing::{Keep, Placing};
use super::results::{Results, describe};
use super::{memory::Memory, model};
use crate::bench::{self, PipelineReport, ProfileReport};
use crate::error::{Error, Result};
use crate::partition::PlanReport;
use crate::pipeline::{GraphProfile, HeteroExecutable, Pipeline, Ticket};
use crate::tensor::Value;

/// Arguments of `run`.
#[derive(Debug, ClapArgs)]
#[command(group = clap::ArgGroup::new("items").required(true).args(["input", "generate"]))]
pub(super) struct Args {
    /// The model file
    model: PathBuf,
    #[command(flatten)]
    source: Source,
    /// Write each output to DIR/<item>.<output>.npy. In both names every byte other than ASCII letters,
    /// digits, `_`, `-` and inner dots becomes %XX, as in `image%20one.a%2Fb.npy`
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Write one DIR/<item>.npz for all outputs of an item
    #[arg(long, requires = "output")]
    npz: bool,
    /// Run one segment after the other, without actors
    #[arg(long, conflicts_with = "compare")]
    sequential: bool,
    /// Also run sequentially, and end with exit code 3 unless every output is equal to the bit
    #[arg(long)]
    compare: bool,
    /// Write who computed what when, as a Chrome trace (open it in Perfetto)
    #[arg(long, value_name = "FILE", conflicts_with = "sequential")]
    trace: Option<PathBuf>,
    /// Measure each node: time by operator and by node, GFLOP/s and GB/s beside what the cores can
    /// do at most. The first item runs once before, unmeasured
    #[arg(long)]
    profile: bool,
    #[command(flatten)]
    pub(super) placing: Placing,
}

/// Events that a trace keeps per actor.
const TRACE_EVENTS: usize = 1 << 20;

/// An item that failed.
#[derive(Debug, Serialize)]
struct FailedItem {
    item: String,
    error: String,
}

/// What the JSON document holds.
#[derive(Debug, Serialize)]
struct Document<'a> {
    model: String,
    placement: &'a PlanReport,
    origin: &'a str,
    notices: Vec<String>,
    micro_batch: Option<usize>,
    in_flight: Option<usize>,
    memory: &'a Memory,
    items: usize,
    /// Those that came out; the rates are of these.
    done: usize,
    failed: &'a [FailedItem],
    seconds: f64,
    items_per_s: f64,
    sequential_items_per_s: Option<f64>,
    bit_equal: Option<bool>,
    pipeline: Option<&'a PipelineReport>,
    profile: Option<&'a ProfileReport>,
    files: &'a [PathBuf],
}

/// Part of an item on its way: a micro-batch of it, or all of it.
struct Part {
    stem: String,
    last: bool,
}

/// What a run over all items gave.
struct Ran {
    failed: Vec<FailedItem>,
    files: Vec<PathBuf>,
    seconds: f64,
    report: Option<PipelineReport>,
    profile: Option<GraphProfile>,
}

pub(super) fn run(args: &Args, console: &Console) -> Outcome {
    let mut placed = args.placing.load(&args.model, console)?;
    placed.are_devices_here()?;
    let (items, notices) = args.source.open(&placed)?;
    for notice in &notices {
        console.notice(&format!("notice: {notice}"));
    }
    let results = args.output.as_ref().map(|dir| Results::new(dir, args.npz)).transpose()?;
    let cutter = Cutter::new(&placed)?;
    // What the first item looks like says what memory is needed; if it is bad, that is told later.
    let mut first = None;
    if let Some(Item { inputs: Ok(inputs), .. }) = items.iter().next()
        && let Ok(parts) = cutter.cut(inputs)
    {
        placed.expect(parts.first().map_or(&[], Vec::as_slice));
        first = parts.into_iter().next().filter(|_| args.profile);
    }
    if args.profile {
        placed.measure_nodes();
    }
    let placed_workers = placed.connected.clone();
    let split = placed.split()?;
    let plan = placed.report(&split);
    let memory = placed.memory(&split, args.sequential);
    let actors = if args.sequential { 1 } else { placed.actors(&split) };
    drop(split);
    console.notice(&placed.origin);
    console.detail(&plan.to_string());
    console.notice(&memory.to_string());

    let mut sequential_seconds = None;
    let mut digests = HashMap::new();
    let mut differing = Vec::new();
    let ran = if args.sequential {
        let executable = placed.sequential(Keep::Nothing)?;
        // If it fails, it fails again below.
        let _ = first.map(|inputs| executable.run_values(inputs));
        let before = executable.node_profile();
        let mut sink = Sink::new(&executable.output_names(), results.as_ref(), console);
        run_sequential(&executable, &cutter, &items, console, &mut |stem, outputs| {
            sink.take(stem, outputs);
        })?;
        // As long as the stages are there.
        placed_workers.tell(console);
        sink.finish(executable.node_profile(), before)
    } else {
        let events = if args.trace.is_some() { TRACE_EVENTS } else { 0 };
        let pipeline = placed.pipeline(events, Keep::Nothing)?;
        if args.compare {
            let seconds = run_sequential(
                &pipeline.sequential(),
                &cutter,
                &items,
                console,
                &mut |stem, outputs| {
                    digests.insert(stem.to_owned(), digest(&outputs));
                },
            )?;
            sequential_seconds = Some(seconds);
        }
        let _ = first.map(|inputs| pipeline.push(inputs).and_then(Ticket::wait));
        let before = pipeline.node_profile();
        let mut sink = Sink::new(&pipeline.output_names(), results.as_ref(), console);
        let report = run_streamed(&pipeline, &cutter, &items, console, &mut |stem, outputs| {
            if digests.remove(stem).is_some_and(|d| d != digest(&outputs)) {
                differing.push(stem.to_owned());
            }
            sink.take(stem, outputs);
        })?;
        sink.report = Some(report);
        let ran = sink.finish(pipeline.node_profile(), before);
        if let Some(path) = &args.trace {
            let mut trace = pipeline.trace();
            placed_workers.add_to(&mut trace, pipeline.begun());
            if trace.dropped > 0 {
                console
                    .notice(&format!("notice: the trace lacks its first {} events", trace.dropped));
            }
            model::write(path, &trace.to_chrome_json())?;
        }
        placed_workers.tell(console);
        ran
    };
    let profile = ran.profile.as_ref().map(|p| ProfileReport::new(p, ran.seconds, actors));
    let profile = profile.transpose()?;

    let done = items.len().saturating_sub(ran.failed.len());
    let per_second = |seconds: f64| if seconds > 0.0 { done as f64 / seconds } else { 0.0 };
    let document = Document {
        model: args.model.display().to_string(),
        placement: &plan,
        origin: &placed.origin,
        notices: placed.notices().into_iter().chain(notices).collect(),
        micro_batch: placed.micro_batch,
        in_flight: ran.report.as_ref().map(|r| r.in_flight),
        memory: &memory,
        items: items.len(),
        done,
        failed: &ran.failed,
        seconds: ran.seconds,
        items_per_s: per_second(ran.seconds),
        sequential_items_per_s: sequential_seconds.map(per_second),
        // Nothing was compared unless an item came out.
        bit_equal: (args.compare && done > 0).then_some(differing.is_empty()),
        pipeline: ran.report.as_ref(),
        profile: profile.as_ref(),
        files: &ran.files,
    };
    console.result(&document, &text(&document))?;
    if !differing.is_empty() {
        return Err(Failure::Assertion(format!(
            "streamed and sequential outputs differ for {} of {} items: {}",
            differing.len(),
            items.len(),
            differing.iter().take(5).map(|s| format!("`{s}`")).collect::<Vec<_>>().join(", ")
        )));
    }
    if ran.failed.is_empty() { Ok(()) } else { Err(Failure::Told) }
}

fn text(d: &Document<'_>) -> String {
    let mut out = match (d.done, d.items) {
        (0, all) => format!("none of {all} items came out\n"),
        (done, all) => {
            let of = if done < all { format!(" of {all}") } else { String::new() };
            format!("{done}{of} items in {:.3} s: {:.2} items/s\n", d.seconds, d.items_per_s)
        }
    };
    if let Some(report) = d.pipeline.filter(|_| d.done > 0) {
        if d.micro_batch.is_some() {
            out += "an item below is a micro-batch\n";
        }
        out += &report.to_string();
    }
    if let (Some(sequential), Some(equal)) = (d.sequential_items_per_s, d.bit_equal) {
        out += &format!(
            "sequential  {sequential:.2} items/s; streaming is {:.2} times as fast\n",
            d.items_per_s / sequential
        );
        out += if equal { "streamed and sequential outputs are equal to the bit\n" } else { "" };
    }
    if let Some(profile) = d.profile {
        out += &profile.to_string();
    }
    if !d.files.is_empty() {
        out += &format!("{} files written\n", d.files.len());
    }
    if !d.failed.is_empty() {
        out += &format!("{} items failed\n", d.failed.len());
    }
    out
}

type Take<'a> = &'a mut dyn FnMut(&str, Result<Vec<Value>>);

/// Runs all items one after the other; gives the seconds that it took.
fn run_sequential(
    executable: &HeteroExecutable,
    cutter: &Cutter,
    items: &Items,
    console: &Console,
    take: Take<'_>,
) -> Result<f64> {
    let bar = console.progress("sequential", Some(items.len() as u64));
    let began = Instant::now();
    for Item { stem, inputs } in items.iter() {
        let outputs = inputs.and_then(|i| cutter.cut(i)).and_then(|parts| {
            let results: Result<Vec<_>> =
                parts.into_iter().map(|p| executable.run_values(p)).collect();
            cutter.join(results?)
        });
        take(&stem, outputs);
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(began.elapsed().as_secs_f64())
}

/// Streams all items through a pipeline.
fn run_streamed(
    pipeline: &Pipeline,
    cutter: &Cutter,
    items: &Items,
    console: &Console,
    take: Take<'_>,
) -> Result<PipelineReport> {
    let bar: ProgressBar = console.progress("streaming", Some(items.len() as u64));
    let parts = items.iter().flat_map(|Item { stem, inputs }| {
        let parts = match inputs.and_then(|i| cutter.cut(i)) {
            Ok(parts) => parts.into_iter().map(Ok).collect(),
            Err(e) => vec![Err(e)],
        };
        let count = parts.len();
        parts
            .into_iter()
            .enumerate()
            .map(move |(i, part)| (Part { stem: stem.clone(), last: i + 1 == count }, part))
            .collect::<Vec<_>>()
    });
    let mut done: Result<Vec<Vec<Value>>> = Ok(Vec::new());
    let measured = bench::stream(pipeline, parts, |part, result| {
        match (&mut done, result) {
            (Ok(all), Ok(outputs)) => all.push(outputs),
            (Ok(_), Err(e)) => done = Err(e),
            (Err(_), _) => {}
        }
        if part.last {
            let all = std::mem::replace(&mut done, Ok(Vec::new()));
            take(&part.stem, all.and_then(|parts| cutter.join(parts)));
            bar.inc(1);
        }
        Ok(())
    })?;
    bar.finish_and_clear();
    Ok(measured.report())
}

/// The hash of an item's outputs, or the words of its error.
fn digest(outputs: &Result<Vec<Value>>) -> Vec<u8> {
    let mut hasher = Sha256::new();
    match outputs {
        Ok(values) => {
            for value in values {
                hasher.update(value.describe());
                match value {
                    Value::Tensor(t) if t.as_strings().is_err() => hasher.update(t.as_bytes()),
                    other => hasher.update(format!("{other:?}")),
                }
            }
        }
        // Where an item failed is told differently; that it failed is compared.
        Err(e) => hasher.update(e.kind().as_str()),
    }
    hasher.finalize().to_vec()
}

/// Takes results: writes them, and remembers what failed.
struct Sink<'a> {
    names: Vec<String>,
    results: Option<&'a Results>,
    console: &'a Console,
    began: Instant,
    shown: bool,
    failed: Vec<FailedItem>,
    files: Vec<PathBuf>,
    report: Option<PipelineReport>,
}

impl<'a> Sink<'a> {
    fn new(names: &[String], results: Option<&'a Results>, console: &'a Console) -> Self {
        Self {
            names: names.to_vec(),
            results,
            console,
            began: Instant::now(),
            shown: false,
            failed: Vec::new(),
            files: Vec::new(),
            report: None,
        }
    }

    fn take(&mut self, stem: &str, outputs: Result<Vec<Value>>) {
        let result = outputs.and_then(|outputs| match self.results {
            Some(results) => {
                self.files.extend(results.write(stem, &self.names, &outputs)?);
                Ok(())
            }
            None => {
                if !std::mem::replace(&mut self.shown, true) {
                    let lines = self.names.iter().zip(&outputs).map(|(n, v)| describe(n, v));
                    let lines: Vec<String> = lines.collect();
                    self.console.notice(&format!("item `{stem}`: {}", lines.join("; ")));
                }
                Ok(())
            }
        });
        if let Err(e) = result {
            self.console.error(&named(stem, e.clone()));
            self.failed.push(FailedItem { item: stem.to_owned(), error: e.to_string() });
        }
    }

    /// What was run, with the profile of its end since that of its begin.
    fn finish(self, now: Option<GraphProfile>, before: Option<GraphProfile>) -> Ran {
        let seconds = self.began.elapsed().as_secs_f64();
        let profile = now.zip(before).map(|(now, before)| now.since(&before));
        Ran { failed: self.failed, files: self.files, seconds, report: self.report, profile }
    }
}

fn named(stem: &str, error: Error) -> Error {
    error.of_item(&stem)
}
