//! Chains of synthetic stages: what the runtime makes of a bound that is known beforehand.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::{Duration, Instant};

use brigade_actors::synthetic::Synthetic;
use brigade_actors::{Options, Pipeline, Stats, Topology};
use serde::Serialize;

use super::PipelineReport;
use super::interval::{Interval, median};
use super::report::{ActorShare, above_bound, achieved_in_words};
use super::side::side_by_side;
use crate::error::{Error, Result, bail, err};

/// The longest time of a stage.
const LONGEST: Duration = Duration::from_secs(60);
/// The most stages of a chain: each is a thread.
const MOST_STAGES: usize = 256;
/// About how long each round measures the stages one after the other, and side by side.
pub(super) const SEQUENTIAL: Duration = Duration::from_millis(300);
/// How often the short run is measured in a round: its hiccups weigh as much as those of the long.
const SHORT_RUNS: usize = 3;

/// A chain of synthetic stages, each on a device: written `DEVICE:TIME[~SPREAD]` with commas
/// between, such as `a:1ms,b:2ms,c:4ms` or `a:800us~100us`.
///
/// A device that is named twice is one device visited twice, by actors that take turns on its lane;
/// they are called `g.0` and `g.1`. A random time is drawn evenly from TIME ± SPREAD.
///
/// ```
/// use brigade::bench::SyntheticChain;
///
/// let chain: SyntheticChain = "g:5ms,c:3ms,g:5ms".parse()?;
/// assert_eq!(chain.bound_per_s(), 100.0);
/// assert_eq!(chain.bottleneck(), "g");
/// assert_eq!(chain.lanes("g", 2)?.bound_per_s(), 200.0);
/// let error = "a:1ms,b:2".parse::<SyntheticChain>().unwrap_err();
/// assert!(error.to_string().contains("`2`"));
/// # Ok::<(), brigade::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct SyntheticChain {
    text: String,
    pub(super) visits: Vec<Visit>,
    lanes: BTreeMap<String, usize>,
    replicas: BTreeMap<String, usize>,
}

#[derive(Clone, Debug)]
pub(super) struct Visit {
    actor: String,
    pub(super) device: String,
    time: Duration,
    spread: Duration,
}

/// How a chain is run.
#[derive(Clone, Copy, Debug)]
pub struct SyntheticRun {
    /// Items of the longer run.
    pub items: usize,
    /// The most items in flight; without it, twice the number of stages.
    pub in_flight: Option<usize>,
    /// Rounds, of which the medians are reported.
    pub rounds: usize,
    /// The seed of random times.
    pub seed: u64,
}

/// What a chain of synthetic stages reached.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SyntheticReport {
    /// The chain, as it was written.
    pub synthetic: String,
    /// Items of the longer run.
    pub items: usize,
    /// The most items in flight.
    pub in_flight: usize,
    /// Rounds that were run.
    pub rounds: usize,
    /// Items per second in the steady state: the items that the longer run has more than a short
    /// one, over the time that it takes more.
    pub throughput_per_s: f64,
    /// Whether `throughput_per_s` leaves out filling and draining; it needs two items.
    pub steady: bool,
    /// Seconds of the longer run, from the first push to the last result.
    pub wall_s: f64,
    /// Items per second with one stage after the other, measured on one thread.
    pub sequential_per_s: f64,
    /// `throughput_per_s` / `sequential_per_s`.
    pub speed_up: f64,
    /// Items per second that no schedule can beat, from the times as they were written.
    pub bound_per_s: f64,
    /// `throughput_per_s` / `bound_per_s`. `throughput_per_s` is the difference of two runs, so that
    /// it can lie above 1 by noise.
    pub achieved: f64,
    /// Where the mean of the rounds' lies with 95 % confidence.
    pub achieved_interval: Option<Interval>,
    /// Says so where `achieved` is above 1.
    pub achieved_note: Option<String>,
    /// The bound by the times that the stages took on this machine with nothing between them, each
    /// lane of each device on a thread of its own: lanes and replicas count as in `bound_per_s`. What
    /// is missing to that is the machine's.
    pub machine_per_s: f64,
    /// The device that sets the bound.
    pub bottleneck: String,
    /// Where the time of the actors went during the longer run.
    pub actors: Vec<ActorShare>,
}

impl FromStr for SyntheticChain {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut visits: Vec<Visit> = Vec::new();
        for piece in text.split(',') {
            visits.push(visit(piece.trim())?);
        }
        if visits.len() > MOST_STAGES {
            bail!(
                Usage,
                "{} synthetic stages are too many; {MOST_STAGES} is the most",
                visits.len()
            );
        }
        let mut visited: BTreeMap<String, usize> = BTreeMap::new();
        for visit in &visits {
            *visited.entry(visit.device.clone()).or_default() += 1;
        }
        let mut next: BTreeMap<String, usize> = BTreeMap::new();
        for visit in &mut visits {
            if visited[&visit.device] > 1 {
                let number = next.entry(visit.device.clone()).or_default();
                visit.actor = format!("{}.{number}", visit.device);
                *number += 1;
            }
        }
        Ok(Self {
            text: text.to_owned(),
            visits,
            lanes: BTreeMap::new(),
            replicas: BTreeMap::new(),
        })
    }
}

fn visit(piece: &str) -> Result<Visit> {
    let help = "write DEVICE:TIME for each stage with commas between, as in a:1ms,b:2ms~0.5ms";
    let Some((device, times)) = piece.rsplit_once(':') else {
        return Err(err!(Usage, "the synthetic stage `{piece}` has no time").with_help(help));
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
    if device.is_empty() || !device.chars().all(plain) {
        return Err(err!(Usage, "`{device}` in `{piece}` is no name of a device").with_help(help));
    }
    let (time, spread) = match times.split_once('~') {
        Some((time, spread)) => (duration(time)?, duration(spread)?),
        None => (duration(times)?, Duration::ZERO),
    };
    if time.is_zero() {
        let most = LONGEST.as_secs();
        bail!(Usage, "the synthetic stage `{piece}` must take longer than 0 and up to {most} s");
    }
    if spread > time {
        bail!(Usage, "the synthetic stage `{piece}` could take less than no time");
    }
    Ok(Visit { actor: device.to_owned(), device: device.to_owned(), time, spread })
}

/// A time such as `1ms`, `250us` or `0.5s`.
fn duration(text: &str) -> Result<Duration> {
    let text = text.trim();
    let units = [("us", 1e-6), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0)];
    let unit = units.iter().find_map(|(unit, scale)| Some((text.strip_suffix(unit)?, scale)));
    let seconds = unit.and_then(|(number, scale)| Some(number.trim().parse::<f64>().ok()? * scale));
    match seconds.map(Duration::try_from_secs_f64) {
        Some(Ok(time)) if time <= LONGEST => Ok(time),
        Some(_) => bail!(Usage, "`{text}` must be a time of up to {} s", LONGEST.as_secs()),
        None => {
            let help = "write a number and us, ms or s, as in 250us or 1.5ms";
            Err(err!(Usage, "`{text}` is no time").with_help(help))
        }
    }
}

impl SyntheticChain {
    /// Says how many lanes a device of the chain has; 1 where nothing is said.
    ///
    /// # Errors
    /// If no stage is on this device, or there are no lanes.
    pub fn lanes(mut self, device: &str, lanes: usize) -> Result<Self> {
        self.knows(device)?;
        if lanes == 0 {
            bail!(Usage, "device `{device}` cannot have 0 lanes");
        }
        self.lanes.insert(device.to_owned(), lanes);
        Ok(self)
    }

    /// Says how many replicas a stage of the chain has; 1 where nothing is said. Unless
    /// [`lanes`](Self::lanes) are stated, its device gets as many lanes.
    ///
    /// # Errors
    /// If there is no such stage, or no replica of it.
    pub fn replicas(mut self, stage: &str, replicas: usize) -> Result<Self> {
        if !self.visits.iter().any(|v| v.actor == stage) {
            let names: Vec<_> = self.visits.iter().map(|v| v.actor.as_str()).collect();
            return Err(err!(UnknownName, "there is no synthetic stage `{stage}`")
                .with_help(format!("the stages are {}", names.join(", "))));
        }
        if replicas == 0 {
            bail!(Usage, "stage `{stage}` cannot have 0 replicas");
        }
        self.replicas.insert(stage.to_owned(), replicas);
        Ok(self)
    }

    pub(super) fn replicas_of(&self, visit: &Visit) -> usize {
        self.replicas.get(&visit.actor).copied().unwrap_or(1)
    }

    pub(super) fn lanes_of(&self, device: &str) -> usize {
        let here = self.visits.iter().filter(|v| v.device == device);
        let replicas = || here.map(|v| self.replicas_of(v)).max().unwrap_or(1);
        self.lanes.get(device).copied().unwrap_or_else(replicas)
    }

    fn knows(&self, device: &str) -> Result<()> {
        if self.visits.iter().any(|v| v.device == device) {
            return Ok(());
        }
        Err(err!(UnknownName, "no synthetic stage is on a device `{device}`")
            .with_help(format!("the stages are {}", self.text)))
    }

    /// The times of the stages as they were written, in seconds.
    fn times(&self) -> Vec<f64> {
        self.visits.iter().map(|v| v.time.as_secs_f64()).collect()
    }

    /// For each device, the items per second that it could do if the stages took these times, in
    /// seconds: lanes / time that an item needs there, and no more than its slowest stage allows,
    /// each replica of which works on one item at a time.
    fn rates(&self, times: &[f64]) -> BTreeMap<&str, f64> {
        let mut busy: BTreeMap<&str, (f64, f64)> = BTreeMap::new();
        for (visit, time) in self.visits.iter().zip(times) {
            let (sum, slowest) = busy.entry(&visit.device).or_default();
            *sum += time;
            *slowest = slowest.max(time / self.replicas_of(visit) as f64);
        }
        let rate = |(device, (sum, slowest)): (&'_ str, (f64, f64))| {
            let lanes = self.lanes_of(device) as f64;
            (lanes / sum).min(1.0 / slowest)
        };
        busy.into_iter().map(|(device, times)| (device, rate((device, times)))).collect()
    }

    /// Items per second that no schedule of this chain can beat.
    pub fn bound_per_s(&self) -> f64 {
        self.bound_of(&self.times())
    }

    /// The bound if the stages took these times, in seconds.
    pub(super) fn bound_of(&self, times: &[f64]) -> f64 {
        self.rates(times).into_values().fold(f64::INFINITY, f64::min)
    }

    /// About how long [`run`](Self::run) takes.
    ///
    /// ```
    /// use brigade::bench::{SyntheticChain, SyntheticRun};
    ///
    /// let chain: SyntheticChain = "a:60s".parse()?;
    /// let run = SyntheticRun { items: 1, in_flight: None, rounds: 1, seed: 0 };
    /// // Warming up, one after the other, side by side, and the run.
    /// assert!(chain.expected(&run).as_secs() >= 240);
    /// # Ok::<(), brigade::Error>(())
    /// ```
    pub fn expected(&self, run: &SyntheticRun) -> Duration {
        let bound = self.bound_per_s();
        let through = 1.0 / self.sequential_per_s();
        let actors: usize = self.visits.iter().map(|v| self.replicas_of(v)).sum();
        let in_flight = run.in_flight.unwrap_or(2 * actors);
        let short = (2 * in_flight).min(run.items / 2);
        let streaming = |items: usize| match items {
            0 => 0.0,
            n => through + (n - 1) as f64 / bound,
        };
        let alone = SEQUENTIAL.as_secs_f64().max(through);
        let round = alone.min(run.items as f64 * through)
            + alone
            + streaming(run.items)
            + SHORT_RUNS as f64 * streaming(short);
        let seconds = streaming(in_flight) + run.rounds as f64 * round;
        Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
    }

    /// The device that sets the bound; the first of several.
    pub fn bottleneck(&self) -> &str {
        let rates = self.rates(&self.times());
        let slowest = self.visits.iter().map(|v| v.device.as_str());
        slowest.min_by(|a, b| rates[a].total_cmp(&rates[b])).unwrap_or_default()
    }

    /// Items per second of the stages one after the other, from the times as they were written.
    pub fn sequential_per_s(&self) -> f64 {
        1.0 / self.visits.iter().map(|v| v.time.as_secs_f64()).sum::<f64>()
    }

    pub(super) fn stages(&self, seed: u64) -> Vec<Synthetic> {
        let seeds = seed..;
        let stage = |(v, n): (&Visit, u64)| {
            Synthetic::new(v.time).spread(v.spread).seed(n.wrapping_mul(0x9E37_79B9_7F4A_7C15))
        };
        self.visits.iter().zip(seeds).map(stage).collect()
    }

    fn spawn(&self, run: &SyntheticRun) -> Result<Pipeline<u64>> {
        let mut builder = Topology::builder();
        let mut last = builder.source("items");
        for (visit, stage) in self.visits.iter().zip(self.stages(run.seed)) {
            let actor = builder.actor(&visit.actor, &visit.device, 1, 1, stage.factory());
            builder.connect(last, actor.input(0));
            builder.replicas(actor, self.replicas_of(visit));
            builder.lanes(&visit.device, self.lanes_of(&visit.device));
            last = actor.output(0);
        }
        let sink = builder.sink("results");
        builder.connect(last, sink);
        let topology =
            builder.build().map_err(|e| err!(Usage, "the synthetic chain cannot be built: {e}"))?;
        let mut options = Options::new().name("synthetic");
        if let Some(n) = run.in_flight {
            options = options.in_flight(n);
        }
        Pipeline::spawn(topology, options)
            .map_err(|e| err!(Internal, "the synthetic chain did not start: {e}"))
    }

    /// Streams items through the chain, and runs them one stage after the other for comparison.
    ///
    /// # Errors
    /// If the actors cannot be started, or there is nothing to run.
    pub fn run(&self, run: &SyntheticRun) -> Result<SyntheticReport> {
        if run.items == 0 || run.rounds == 0 {
            bail!(Usage, "nothing is measured with {} items in {} rounds", run.items, run.rounds);
        }
        let pipeline = self.spawn(run)?;
        let in_flight = pipeline.in_flight_limit();
        // Long enough to fill the pipeline, and short enough to leave most items to the difference.
        let short = (2 * in_flight).min(run.items / 2);
        // Threads, inboxes and the clock are warm after this.
        stream(&pipeline, in_flight)?;
        let (mut steady, mut walls) = (Vec::new(), Vec::new());
        let (mut sequential, mut machine) = (Vec::new(), Vec::new());
        let mut seen: Option<(Stats, Stats)> = None;
        for _ in 0..run.rounds {
            sequential.push(self.one_after_the_other(run));
            machine.push(side_by_side(self, run.seed)?);
            let before = pipeline.stats();
            let wall = stream(&pipeline, run.items)?;
            seen = Some((before, pipeline.stats()));
            walls.push(wall);
            if short > 0 {
                let mut shorts = Vec::with_capacity(SHORT_RUNS);
                for _ in 0..SHORT_RUNS {
                    shorts.push(stream(&pipeline, short)?);
                }
                let more = wall - median(&shorts);
                // A short run that was held up for longer than the long one took says nothing.
                if more > 0.0 {
                    steady.push((run.items - short) as f64 / more);
                }
            }
        }
        let wall_s = median(&walls);
        let is_steady = !steady.is_empty();
        if !is_steady {
            steady.push(run.items as f64 / wall_s);
        }
        let (throughput, sequential) = (median(&steady), median(&sequential));
        let bound = self.bound_per_s();
        let achieved = throughput / bound;
        let shares: Vec<f64> = steady.iter().map(|rate| rate / bound).collect();
        let actors = seen
            .map(|(before, after)| PipelineReport::new(&after.since(&before)).actors)
            .unwrap_or_default();
        Ok(SyntheticReport {
            synthetic: self.text.clone(),
            items: run.items,
            in_flight,
            rounds: run.rounds,
            throughput_per_s: throughput,
            steady: is_steady,
            wall_s,
            sequential_per_s: sequential,
            speed_up: throughput / sequential,
            bound_per_s: bound,
            achieved,
            achieved_interval: Interval::of(&shares),
            achieved_note: above_bound(Some(achieved)),
            machine_per_s: median(&machine),
            bottleneck: self.bottleneck().to_owned(),
            actors: actors.iter().map(ActorShare::from).collect(),
        })
    }

    /// Items per second when one thread does the work of all stages, item by item.
    fn one_after_the_other(&self, run: &SyntheticRun) -> f64 {
        let stages = self.stages(run.seed);
        let began = Instant::now();
        let mut done = 0_u64;
        while done < run.items as u64 && (done == 0 || began.elapsed() < SEQUENTIAL) {
            for stage in &stages {
                // These stages do not fail.
                let _ = stage.work(done);
            }
            done += 1;
        }
        done as f64 / began.elapsed().as_secs_f64()
    }
}

/// Streams so many items; gives the seconds from the first push to the last result.
fn stream(pipeline: &Pipeline<u64>, items: usize) -> Result<f64> {
    let began = Instant::now();
    for result in pipeline.stream((0..items as u64).map(|n| vec![n])) {
        result.map_err(|e| err!(Internal, "a synthetic item failed: {e}"))?;
    }
    Ok(began.elapsed().as_secs_f64())
}

impl fmt::Display for SyntheticReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, {} items, {} in flight", self.synthetic, self.items, self.in_flight)?;
        ActorShare::write_table(&self.actors, f)?;
        let rest = if self.steady { "" } else { " (too few items to leave out filling)" };
        writeln!(f, "sequential  {:.2} items/s", self.sequential_per_s)?;
        writeln!(
            f,
            "throughput  {:.2} items/s{rest}, {:.2} times as fast",
            self.throughput_per_s, self.speed_up
        )?;
        writeln!(f, "bound       {:.2} items/s", self.bound_per_s)?;
        writeln!(
            f,
            "machine     {:.2} items/s with nothing between the devices",
            self.machine_per_s
        )?;
        let note = self.achieved_note.as_deref();
        let words = achieved_in_words(self.achieved, self.achieved_interval, note);
        writeln!(f, "achieved    {words}")?;
        writeln!(f, "bottleneck  device {}", self.bottleneck)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, micros) in [("1ms", 1_000), ("250us", 250), ("0.5 s", 500_000), ("1.5µs", 1)] {
            assert_eq!(duration(text).unwrap().as_micros(), micros, "{text}");
        }
        for text in ["", "1", "ms", "1m", "-1ms", "nanms", "infs", "61s", "1e99s", "1ms2"] {
            let error = duration(text).unwrap_err().to_string();
            assert!(error.contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn errors_name_the_bad_piece() {
        for (text, part) in [
            ("", "``"),
            ("a:1ms,,b:1ms", "``"),
            ("a:1ms,b", "`b`"),
            ("a:1ms,:2ms", "`:2ms`"),
            ("a:1ms,b c:2ms", "`b c`"),
            ("a:0ms", "`a:0ms`"),
            ("a:1ms~2ms", "`a:1ms~2ms`"),
            ("a:1ms~x", "`x`"),
        ] {
            let error = text.parse::<SyntheticChain>().unwrap_err();
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
        let chain: SyntheticChain = "a:1ms".parse().unwrap();
        assert!(chain.clone().lanes("b", 2).unwrap_err().to_string().contains("`b`"));
        assert!(chain.lanes("a", 0).is_err());
    }

    #[test]
    fn bounds_are_those_of_devices_and_lanes() {
        for (text, bound, bottleneck) in [
            ("a:1ms,b:2ms,c:4ms", 250.0, "c"),
            ("g:5ms,c:3ms,g:5ms", 100.0, "g"),
            ("cpu:0:1ms,cpu:1:0.5ms~100us", 1000.0, "cpu:0"),
        ] {
            let chain: SyntheticChain = text.parse().unwrap();
            assert!((chain.bound_per_s() - bound).abs() < 1e-6, "{text}");
            assert_eq!(chain.bottleneck(), bottleneck, "{text}");
        }
        let chain: SyntheticChain = "g:5ms,c:3ms,g:2ms".parse().unwrap();
        let actors: Vec<&str> = chain.visits.iter().map(|v| v.actor.as_str()).collect();
        assert_eq!(actors, ["g.0", "c", "g.1"]);
        // Both lanes help the two stages together, not the slower one beyond its own time.
        assert!((chain.lanes("g", 2).unwrap().bound_per_s() - 200.0).abs() < 1e-6);
    }

    #[test]
    fn a_chain_runs_and_its_report_adds_up() {
        let chain: SyntheticChain = "g:2ms,c:1ms,g:1ms~0.5ms".parse().unwrap();
        let run = SyntheticRun { items: 60, in_flight: Some(6), rounds: 1, seed: 1 };
        let report = chain.run(&run).unwrap();
        assert_eq!((report.items, report.in_flight, report.steady), (60, 6, true));
        // The device is never early, so that only the random part of its time can be short.
        assert!(report.wall_s > 60.0 * 0.0025 && report.achieved < 1.2, "{report:?}");
        assert!(report.sequential_per_s <= 1.0 / 0.0035, "{report:?}");
        assert_eq!(report.actors.len(), 3);
        for actor in &report.actors {
            let sum = actor.busy + actor.starved + actor.blocked + actor.other;
            assert!((sum - 1.0).abs() < 0.01, "{actor:?}");
        }
        assert!(report.to_string().contains("g.1"));
        let tiny = SyntheticRun { items: 1, in_flight: None, rounds: 1, seed: 1 };
        let report = chain.run(&tiny).unwrap();
        assert!(!report.steady && report.throughput_per_s > 0.0);
    }
}
