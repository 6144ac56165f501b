//! `brigade bench`: how close a pipeline comes to its bound.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args as ClapArgs};
use serde::Serialize;

use super::bind::{Named, take_bound};
use super::console::Console;
use super::cutter::Cutter;
use super::failure::{Failure, Outcome};
use super::items::{Item, Source};
use super::memory::Memory;
use super::placing::{Keep, Placed, Placing};
use super::table::bytes;
use crate::bench::{
    self, ClosedLoop, ClosedReport, Inputs, SyntheticChain, SyntheticRun, peak_resident_bytes,
    resident_bytes,
};
use crate::check::{Case, CaseReport, Kind, Status, compare_outputs, read_cases};
use crate::error::{Error, Result, bail, err};
use crate::partition::PlanReport;
use crate::tensor::Value;

/// Arguments of `bench`.
#[derive(Debug, ClapArgs)]
#[command(group = ArgGroup::new("subject").required(true).args(["model", "synthetic"]))]
pub(super) struct Args {
    /// The model file
    model: Option<PathBuf>,
    /// Instead of a model, stream through stages that only take time: DEVICE:TIME[~SPREAD] for
    /// each, such as `a:1ms,b:2ms,c:4ms`. A device named twice is one device visited twice. Of the
    /// flags below only --items, --rounds, --lanes, --seed, --in-flight and --replicas go with it
    #[arg(long, value_name = "STAGES", conflicts_with_all = [
        "input", "generate", "case", "warmup", "replicas_of_whole", "plan", "stages", "device",
        "micro_batch", "threads", "precision", "bind", "shape", "batch_axis", "disable_pass",
        "weights_root",
    ])]
    synthetic: Option<SyntheticChain>,
    /// Feed a model the items of a case folder, or of a folder of them, and end with exit code 3
    /// unless the outputs of the measured run are what they expect
    #[arg(long, value_name = "DIR", conflicts_with_all = ["input", "generate", "seed", "micro_batch"])]
    case: Option<PathBuf>,
    /// How many items the longer run of a round has; without it, as many as take about half a
    /// second (synthetic stages: two seconds)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    items: Option<u32>,
    /// Items that are streamed before anything is measured, at the least; of a model only
    #[arg(long, value_name = "N", default_value_t = 0)]
    warmup: u32,
    /// Rounds, of which the medians are reported: 5 for a model, 1 for synthetic stages. In each,
    /// the ways to run take turns
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: Option<u32>,
    /// Also run the whole model on N threads, each for itself; 0 leaves this out; of a model only
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(0..=256))]
    replicas_of_whole: u32,
    /// Lanes of a synthetic device: how many of its stages may compute at once; with --synthetic only
    #[arg(long, value_name = "DEVICE=N", value_delimiter = ',', conflicts_with = "model")]
    lanes: Vec<Named<Count>>,
    #[command(flatten)]
    source: Source,
    #[command(flatten)]
    placing: Placing,
}

/// A number of lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count(usize);

/// The most lanes.
const MOST: usize = 256;

impl std::str::FromStr for Named<Count> {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (name, count) = text
            .rsplit_once('=')
            .ok_or_else(|| err!(Usage, "`{text}` is not of the form NAME=N"))?;
        match count.parse() {
            Ok(n) if (1..=MOST).contains(&n) => Ok(Self { name: name.to_owned(), value: Count(n) }),
            _ => Err(err!(Usage, "`{count}` in `{text}` must be a number from 1 to {MOST}")),
        }
    }
}

pub(super) fn run(args: &Args, console: &Console) -> Outcome {
    match (&args.synthetic, &args.model) {
        (Some(chain), _) => synthetic(args, chain.clone(), console),
        (None, Some(path)) => model(args, path, console),
        (None, None) => Err(err!(Usage, "give a model or --synthetic").into()),
    }
}

/// About how long the longer run of synthetic stages takes unless told, in seconds.
const SYNTHETIC_SECONDS: f64 = 2.0;

fn synthetic(args: &Args, mut chain: SyntheticChain, console: &Console) -> Outcome {
    for lanes in &args.lanes {
        chain = chain.lanes(&lanes.name, lanes.value.0)?;
    }
    for replicas in &args.placing.replicas {
        chain = chain.replicas(&replicas.name, replicas.count)?;
    }
    let enough = (chain.bound_per_s() * SYNTHETIC_SECONDS).clamp(16.0, 100_000.0) as usize;
    let run = SyntheticRun {
        items: args.items.map_or(enough, |n| n as usize),
        in_flight: args.placing.in_flight.and_then(|f| f.0),
        rounds: args.rounds.unwrap_or(1) as usize,
        seed: args.source.seed.unwrap_or(0),
    };
    foretell(chain.expected(&run), run.items, run.rounds, console);
    let report = chain.run(&run)?;
    console.result(&report, &report.to_string())
}

/// What takes longer is told up front.
const LONG: Duration = Duration::from_secs(5);

/// Says how long it is going to take, if that is long.
fn foretell(expected: Duration, items: usize, rounds: usize, console: &Console) {
    if expected > LONG {
        let seconds = expected.as_secs();
        console.notice(&format!(
            "this takes about {seconds} s: {rounds} round(s) of {items} item(s), and what they are \
             compared with"
        ));
    }
}

/// How long it took until the model could be fed, in seconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Load {
    /// Reading, optimising and placing the model.
    read_s: f64,
    /// Compiling the segments and starting the actors.
    spawn_s: f64,
    /// The first item.
    first_item_s: f64,
    /// All three.
    total_s: f64,
}

/// What memory the process takes, in bytes; `null` where the system does not tell.
#[derive(Clone, Copy, Debug, Serialize)]
struct MemoryUse {
    /// Before the model was read.
    idle_bytes: Option<u64>,
    /// Once the pipeline was warm.
    running_bytes: Option<u64>,
    /// By how much it grew.
    growth_bytes: Option<u64>,
    /// What of this the items are that were read ahead.
    items_bytes: u64,
    /// The most at any time of the run, comparisons included.
    peak_bytes: Option<u64>,
}

/// What the JSON document holds.
#[derive(Debug, Serialize)]
struct Document<'a> {
    model: String,
    origin: &'a str,
    placement: &'a PlanReport,
    notices: Vec<String>,
    micro_batch: Option<usize>,
    /// Different items, fed over and over.
    pool: usize,
    warmup: u32,
    #[serde(flatten)]
    measured: &'a ClosedReport,
    load: Load,
    memory: MemoryUse,
    estimate: &'a Memory,
    cases: &'a [CaseReport],
    cores: usize,
}

/// What is fed, over and over.
struct Pool {
    items: Vec<Inputs>,
    bytes: u64,
    cases: Vec<Case>,
    notices: Vec<String>,
}

/// Items are read ahead up to this many bytes.
const MOST_BYTES: u64 = 256 << 20;
/// Different items that are made up unless told.
const MADE_UP: u32 = 4;
/// Rounds unless told: enough for an interval.
const ROUNDS: u32 = 5;

impl Pool {
    fn new(args: &Args, placed: &Placed) -> Result<Self> {
        let mut pool = Self { items: Vec::new(), bytes: 0, cases: Vec::new(), notices: Vec::new() };
        if let Some(folder) = &args.case {
            pool.read_cases(folder, placed)?;
            return Ok(pool);
        }
        let mut source = args.source.clone();
        if source.input.is_empty() && source.generate.is_none() {
            source.generate = Some(MADE_UP);
        }
        let (items, notices) = source.open(placed)?;
        pool.notices = notices;
        let cutter = Cutter::new(placed)?;
        for Item { stem, inputs } in items.iter() {
            let parts = inputs.and_then(|i| cutter.cut(i));
            let parts = parts.map_err(|e| e.of_item(&stem))?;
            let size: u64 = parts.iter().flatten().map(|(_, v)| v.bytes() as u64).sum();
            if pool.bytes + size > MOST_BYTES && !pool.items.is_empty() {
                let n = pool.items.len();
                pool.notices.push(format!(
                    "only the first {n} items are fed, over and over: more would not stay in memory"
                ));
                break;
            }
            pool.bytes += size;
            pool.items.extend(parts);
        }
        Ok(pool)
    }

    fn read_cases(&mut self, folder: &Path, placed: &Placed) -> Result<()> {
        for mut case in read_cases(folder)? {
            if case.kind != Kind::Call {
                let name = &case.name;
                self.notices
                    .push(format!("case `{name}` carries state from step to step: left out"));
                continue;
            }
            // What is bound on the command line is no input any more.
            take_bound(&mut case, &placed.bound)
                .map_err(|e| e.within(&format!("case `{}`", case.name)))?;
            let feed: Inputs = case.feed().into_iter().map(|(n, t)| (n, Value::from(t))).collect();
            self.bytes += feed.iter().map(|(_, v)| v.bytes() as u64).sum::<u64>();
            self.items.push(feed);
            self.cases.push(case);
        }
        if self.cases.is_empty() {
            bail!(Missing, "`{}` holds no case that is fed once", folder.display());
        }
        Ok(())
    }
}

fn model(args: &Args, path: &Path, console: &Console) -> Outcome {
    let idle = resident_bytes();
    let began = Instant::now();
    let mut placed = args.placing.load(path, console)?;
    let read_s = began.elapsed().as_secs_f64();
    placed.are_devices_here()?;
    let pool = Pool::new(args, &placed)?;
    for notice in &pool.notices {
        console.notice(&format!("notice: {notice}"));
    }
    placed.expect(pool.items.first().map_or(&[], Vec::as_slice));
    let split = placed.split()?;
    let plan = placed.report(&split);
    let estimate = placed.memory(&split, false);
    console.notice(&placed.origin);
    console.detail(&plan.to_string());
    drop(split);

    let began = Instant::now();
    let keep = if args.replicas_of_whole == 0 { Keep::Nothing } else { Keep::Graph };
    let pipeline = placed.pipeline(0, keep)?;
    let spawn_s = began.elapsed().as_secs_f64();
    let names = pipeline.output_names();
    for case in &pool.cases {
        if let Some(o) = case.outputs.iter().find(|o| !names.contains(&o.name)) {
            let (case, output) = (&case.name, &o.name);
            return Err(err!(
                UnknownName,
                "case `{case}` expects output `{output}`, which the model lacks"
            )
            .into());
        }
    }
    let began = Instant::now();
    if let Some(item) = pool.items.first() {
        pipeline.push(item.clone())?.wait()?;
    }
    let first_item_s = began.elapsed().as_secs_f64();
    let filling = pool.items.iter().cycle().take(2 * pipeline.in_flight_limit());
    let filled =
        bench::stream(&pipeline, filling.map(|item| ((), Ok(item.clone()))), |(), result| {
            result.map(|_| ())
        })?;
    let running = resident_bytes();

    // Only now, so that what it takes is not counted above.
    let whole = match args.replicas_of_whole {
        0 => None,
        n => Some((placed.whole(Keep::Nothing)?, n as usize)),
    };
    let closed = ClosedLoop {
        pool: &pool.items,
        items: args.items.map(|n| n as usize),
        warmup: args.warmup as usize,
        rounds: args.rounds.unwrap_or(ROUNDS) as usize,
        whole: whole.as_ref().map(|(whole, n)| (whole, *n)),
    };
    let pace = filled.results as f64 / filled.elapsed.as_secs_f64().max(1e-9);
    let (expected, items) = closed.expected(pace, pipeline.in_flight_limit());
    foretell(expected, items, closed.rounds, console);
    let mut cases = Vec::new();
    let measured = closed.run(&pipeline, |at, outputs| {
        if let Some(case) = pool.cases.get(at) {
            cases.push(compare_outputs(case, &names, outputs));
        }
        Ok(())
    })?;
    let document = Document {
        model: path.display().to_string(),
        origin: &placed.origin,
        placement: &plan,
        notices: placed.notices().into_iter().chain(pool.notices).collect(),
        micro_batch: placed.micro_batch,
        pool: pool.items.len(),
        warmup: args.warmup,
        measured: &measured,
        load: Load { read_s, spawn_s, first_item_s, total_s: read_s + spawn_s + first_item_s },
        memory: MemoryUse {
            idle_bytes: idle,
            running_bytes: running,
            growth_bytes: running.zip(idle).map(|(now, then)| now.saturating_sub(then)),
            items_bytes: pool.bytes,
            peak_bytes: peak_resident_bytes(),
        },
        estimate: &estimate,
        cases: &cases,
        cores: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
    };
    console.result(&document, &text(&document))?;
    judge(&document)
}

/// Whether what came out is what should have.
fn judge(document: &Document<'_>) -> Outcome {
    if !document.measured.bit_equal {
        let text = "streamed and sequential outputs differ".to_owned();
        return Err(Failure::Assertion(text));
    }
    let failed = document.cases.iter().find(|c| c.status != Status::Passed);
    match failed {
        None => Ok(()),
        Some(case) => {
            let message = case.message.as_deref().unwrap_or("its outputs differ");
            Err(Failure::Assertion(format!("case `{}`: {message}", case.case)))
        }
    }
}

fn text(d: &Document<'_>) -> String {
    let mut out = d.measured.to_string();
    if d.micro_batch.is_some() {
        out += "an item is a micro-batch\n";
    }
    let (load, memory) = (&d.load, &d.memory);
    out += &format!(
        "load        {:.3} s: read {:.3}, spawned {:.3}, first item {:.3}\n",
        load.total_s, load.read_s, load.spawn_s, load.first_item_s
    );
    out += &format!(
        "memory      {} more than idle, {} of it items\n",
        bytes(memory.growth_bytes),
        bytes(Some(memory.items_bytes))
    );
    for case in &d.cases.iter().filter(|c| c.status == Status::Passed).collect::<Vec<_>>() {
        out += &format!("case        {} passed\n", case.case);
    }
    out
}
