//! A closed loop: as many items in flight as may be, taken from a small pool over and over.

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
#[cfg(feature = "cli")]
use std::time::Duration;
use std::time::Instant;

use serde::Serialize;

use super::feed::feed;
use super::interval::{Difference, Interval, Percentiles, median};
use super::report::{above_bound, achieved_in_words};
use super::{ActorShare, DeviceReport, Measured, PipelineReport};
use crate::error::{Result, bail, err};
use crate::pipeline::{HeteroExecutable, Pipeline};
use crate::tensor::Value;

/// The named inputs of one item.
pub type Inputs = Vec<(String, Value)>;

/// How a closed loop is run.
#[derive(Clone, Copy, Debug)]
pub struct ClosedLoop<'a> {
    /// The items, which are fed in turn.
    pub pool: &'a [Inputs],
    /// Items of the longer run of each round; without it, as many as take about half a second.
    pub items: Option<usize>,
    /// Items that are streamed before anything is measured, at the least.
    pub warmup: usize,
    /// Rounds: in each the ways to run take turns.
    pub rounds: usize,
    /// The whole model, and how many threads run it each for itself, to compare with.
    pub whole: Option<(&'a HeteroExecutable, usize)>,
}

/// What a closed loop reached. Rates are medians over the rounds.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ClosedReport {
    /// Items of the longer run of each round.
    pub items: usize,
    /// The most items in flight.
    pub in_flight: usize,
    /// Rounds that were run.
    pub rounds: usize,
    /// Items per second in the steady state: the items that the longer run has more than a short
    /// one, over the time that it takes more.
    pub throughput_per_s: f64,
    /// Where its mean lies with 95 % confidence.
    pub throughput_interval: Option<Interval>,
    /// Whether `throughput_per_s` leaves out filling and draining; it needs two items.
    pub steady: bool,
    /// Seconds of the longer run, from the first push to the last result.
    pub wall_s: f64,
    /// Items per second with the segments of the same plan one after the other.
    pub sequential_per_s: f64,
    /// Where its mean lies with 95 % confidence.
    pub sequential_interval: Option<Interval>,
    /// `throughput_per_s` / `sequential_per_s`.
    pub speed_up: f64,
    /// How streaming compares with running one segment after the other.
    pub streaming_is: Difference,
    /// Items per second that no schedule of this plan can beat, by the service times that were
    /// measured while all actors ran.
    pub bound_per_s: Option<f64>,
    /// `throughput_per_s` / `bound_per_s`. The two are measured apart, and `throughput_per_s` is the
    /// difference of two runs, so that it can lie above 1 by noise.
    pub achieved: Option<f64>,
    /// Where the mean of the rounds' lies with 95 % confidence.
    pub achieved_interval: Option<Interval>,
    /// Says so where `achieved` is above 1.
    pub achieved_note: Option<String>,
    /// The device that sets the bound.
    pub bottleneck: Option<String>,
    /// Its costliest actor.
    pub bottleneck_actor: Option<String>,
    /// From the push of an item to its result, over all rounds.
    pub latency_us: Percentiles,
    /// Where the time of the actors went during the longer runs; the median round.
    pub actors: Vec<ActorShare>,
    /// The devices, likewise.
    pub devices: Vec<DeviceReport>,
    /// Threads that run the whole model each for itself.
    pub replicas_of_whole: Option<ReplicasOfWhole>,
    /// Whether each item of the pool came out of every longer run as it came out sequentially.
    pub bit_equal: bool,
    /// Each round.
    pub each_round: Vec<Round>,
}

/// What several threads reached that run the whole model each for itself.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ReplicasOfWhole {
    /// How many threads.
    pub replicas: usize,
    /// Items per second of all of them.
    pub throughput_per_s: f64,
    /// Where the mean lies with 95 % confidence.
    pub throughput_interval: Option<Interval>,
    /// How streaming compares with it.
    pub streaming_is: Difference,
}

/// The figures of one round, in items per second.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Round {
    /// Streamed, in the steady state.
    pub throughput_per_s: f64,
    /// One segment after the other.
    pub sequential_per_s: f64,
    /// The bound.
    pub bound_per_s: Option<f64>,
    /// The whole model on several threads.
    pub replicas_of_whole_per_s: Option<f64>,
}

/// About how long each way to run is measured in a round, in seconds, unless the number of items is
/// stated.
const SECONDS: f64 = 0.5;

impl ClosedLoop<'_> {
    /// Runs the loop; `check` sees the outputs of each item of the pool as they came out of the
    /// first measured run.
    ///
    /// ```
    /// use brigade::bench::ClosedLoop;
    /// use brigade::ops::builder::GraphBuilder;
    /// use brigade::{DType, Pipeline, Tensor};
    ///
    /// let mut g = GraphBuilder::new("g");
    /// let x = g.input("x", DType::F32, [64.into()])?;
    /// let h = g.relu(x)?;
    /// let y = g.add(h, h)?;
    /// let pipeline = Pipeline::builder(g.finish([("y", y)])?).stages(2, &["cpu:0", "cpu:1"])?.spawn()?;
    /// let pool = [vec![("x".to_owned(), Tensor::new([64], vec![1.0_f32; 64])?.into())]];
    /// let whole = None;
    /// let run = ClosedLoop { pool: &pool, items: Some(50), warmup: 10, rounds: 2, whole };
    /// let report = run.run(&pipeline, |_, outputs| {
    ///     assert_eq!(outputs[0].tensor()?.as_slice::<f32>()?[0], 2.0);
    ///     Ok(())
    /// })?;
    /// assert!(report.bit_equal && report.throughput_per_s > 0.0);
    /// assert_eq!(report.actors.len(), 2);
    /// # Ok::<(), brigade::Error>(())
    /// ```
    ///
    /// # Errors
    /// If there is nothing to run, an item fails, or `check` says so.
    pub fn run(
        &self,
        pipeline: &Pipeline,
        mut check: impl FnMut(usize, &[Value]) -> Result<()>,
    ) -> Result<ClosedReport> {
        if self.pool.is_empty() || self.rounds == 0 || self.items == Some(0) {
            bail!(Usage, "nothing is measured with no items or no rounds");
        }
        let in_flight = pipeline.in_flight_limit();
        let sequential = pipeline.sequential();
        let oracle = self
            .pool
            .iter()
            .map(|item| sequential.run_values(item.clone()))
            .collect::<Result<Vec<_>>>()?;
        let warm = self.warmup.max(2 * in_flight).max(self.pool.len());
        let mut none = Vec::new();
        let warmed = self.stream(pipeline, warm, &mut none, &mut Vec::new())?;
        let pace = warm as f64 / warmed.elapsed.as_secs_f64().max(1e-9);
        let items = self.items_at(pace, in_flight);
        let short = (2 * in_flight).min(items / 2);

        let mut rounds = Vec::with_capacity(self.rounds);
        let mut reports: Vec<PipelineReport> = Vec::with_capacity(self.rounds);
        let (mut walls, mut latencies) = (Vec::new(), Vec::new());
        let (mut steady, mut bit_equal) = (true, true);
        for round in 0..self.rounds {
            // Who comes first changes, so that neither always finds the caches of the other.
            let streamed_first = round % 2 == 1;
            let mut sequential_per_s = 0.0;
            if !streamed_first {
                sequential_per_s = self.one_after_the_other(&sequential, items)?;
            }
            let mut last = vec![Vec::new(); self.pool.len()];
            let long = self.stream(pipeline, items, &mut latencies, &mut last)?;
            let wall = long.elapsed.as_secs_f64();
            let mut throughput_per_s = items as f64 / wall;
            let mut is_steady = false;
            if short > 0 {
                let less = self.stream(pipeline, short, &mut none, &mut Vec::new())?;
                let more = wall - less.elapsed.as_secs_f64();
                // A short run that was held up for longer than the long one took says nothing.
                if more > 0.0 {
                    throughput_per_s = (items - short) as f64 / more;
                    is_steady = true;
                }
            }
            steady &= is_steady;
            walls.push(wall);
            if streamed_first {
                sequential_per_s = self.one_after_the_other(&sequential, items)?;
            }
            let replicas_of_whole_per_s = match self.whole {
                Some((whole, threads)) => Some(self.replicas(whole, threads, items)?),
                None => None,
            };
            for (at, (got, want)) in last.iter().zip(&oracle).enumerate() {
                // An item of the pool beyond the number of items did not run.
                if got.is_empty() && !want.is_empty() {
                    continue;
                }
                bit_equal &= got == want;
                if round == 0 {
                    check(at, got)?;
                }
            }
            let report = long.report();
            let bound_per_s = report.bound;
            reports.push(report);
            rounds.push(Round {
                throughput_per_s,
                sequential_per_s,
                bound_per_s,
                replicas_of_whole_per_s,
            });
        }
        let mut out = self.report(&rounds, reports);
        out.items = items;
        out.in_flight = in_flight;
        out.steady = steady;
        out.wall_s = median(&walls);
        out.latency_us = Percentiles::of(&mut latencies);
        out.bit_equal = bit_equal;
        Ok(out)
    }

    /// How many items the longer run of a round has, if so many come through in a second.
    fn items_at(&self, pace: f64, in_flight: usize) -> usize {
        let enough = || ((pace * SECONDS) as usize).clamp(4 * in_flight, 1_000_000);
        self.items.unwrap_or_else(enough)
    }

    /// About how long [`run`](Self::run) takes if so many items come through in a second, and how many
    /// items the longer run of a round then has.
    #[cfg(feature = "cli")]
    pub(crate) fn expected(&self, pace: f64, in_flight: usize) -> (Duration, usize) {
        let items = self.items_at(pace, in_flight);
        let streamed = items as f64 / pace;
        // One after the other it takes longer, but stops early unless the number of items is stated.
        let others = 1.0 + f64::from(u8::from(self.whole.is_some()));
        let round = streamed * (1.0 + others) + (2 * in_flight).min(items / 2) as f64 / pace;
        let warm = self.warmup.max(2 * in_flight).max(self.pool.len()) as f64 / pace;
        let seconds = warm + self.rounds as f64 * round;
        (Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX), items)
    }

    fn report(&self, rounds: &[Round], mut reports: Vec<PipelineReport>) -> ClosedReport {
        let column = |f: fn(&Round) -> f64| rounds.iter().map(f).collect::<Vec<f64>>();
        let (streamed, sequential) =
            (column(|r| r.throughput_per_s), column(|r| r.sequential_per_s));
        let bounds: Vec<f64> = rounds.iter().filter_map(|r| r.bound_per_s).collect();
        let bound_per_s = (!bounds.is_empty()).then(|| median(&bounds));
        let throughput_per_s = median(&streamed);
        let achieved = bound_per_s.map(|b| throughput_per_s / b);
        let shares: Vec<f64> =
            rounds.iter().filter_map(|r| Some(r.throughput_per_s / r.bound_per_s?)).collect();
        let throughput_interval = Interval::of(&streamed);
        let sequential_interval = Interval::of(&sequential);
        let replicas_of_whole = self.whole.map(|(_, replicas)| {
            let rates: Vec<f64> = rounds.iter().filter_map(|r| r.replicas_of_whole_per_s).collect();
            let interval = Interval::of(&rates);
            ReplicasOfWhole {
                replicas,
                throughput_per_s: median(&rates),
                throughput_interval: interval,
                streaming_is: Interval::compare(throughput_interval, interval),
            }
        });
        reports.sort_by(|a, b| a.items_per_s.total_cmp(&b.items_per_s));
        let middle = (reports.len() - 1) / 2;
        let report = reports.swap_remove(middle);
        let slowest = report.devices.iter().min_by(|a, b| a.items_per_s.total_cmp(&b.items_per_s));
        let bottleneck = slowest.filter(|_| report.bound.is_some()).map(|d| d.device.clone());
        let costliest = report
            .actors
            .iter()
            .filter(|a| Some(&a.device) == bottleneck.as_ref())
            .max_by(|a, b| a.service_us.total_cmp(&b.service_us));
        ClosedReport {
            items: 0,
            in_flight: 0,
            rounds: rounds.len(),
            throughput_per_s,
            throughput_interval,
            steady: false,
            wall_s: 0.0,
            sequential_per_s: median(&sequential),
            sequential_interval,
            speed_up: throughput_per_s / median(&sequential),
            streaming_is: Interval::compare(throughput_interval, sequential_interval),
            bound_per_s,
            achieved,
            achieved_interval: Interval::of(&shares),
            achieved_note: above_bound(achieved),
            bottleneck_actor: costliest.map(|a| a.name.clone()),
            bottleneck,
            latency_us: Percentiles::default(),
            actors: report.actors.iter().map(ActorShare::from).collect(),
            devices: report.devices,
            replicas_of_whole,
            bit_equal: false,
            each_round: rounds.to_vec(),
        }
    }

    /// Streams so many items; adds their latencies, and keeps the last outputs of each item of the
    /// pool for which there is a place.
    fn stream(
        &self,
        pipeline: &Pipeline,
        items: usize,
        latencies: &mut Vec<u64>,
        last: &mut [Vec<Value>],
    ) -> Result<Measured> {
        latencies.reserve(items);
        let pool = self.pool.len();
        let feeding = (0..items).map(|n| (n % pool, Ok(self.pool[n % pool].clone())));
        feed(pipeline, feeding, |at, outputs, latency| {
            let outputs = outputs.map_err(|e| e.of_item(&at))?;
            latencies.push(u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX));
            if let Some(place) = last.get_mut(at) {
                *place = outputs;
            }
            Ok(())
        })
    }

    /// Items per second of one segment after the other, over about the time of the streamed run.
    fn one_after_the_other(&self, executable: &HeteroExecutable, items: usize) -> Result<f64> {
        let began = Instant::now();
        let mut done = 0;
        while done < items
            && (self.items.is_some() || done == 0 || began.elapsed().as_secs_f64() < SECONDS)
        {
            executable.run_values(self.pool[done % self.pool.len()].clone())?;
            done += 1;
        }
        Ok(done as f64 / began.elapsed().as_secs_f64())
    }

    /// Items per second of threads that run the whole model each for itself.
    fn replicas(&self, whole: &HeteroExecutable, threads: usize, items: usize) -> Result<f64> {
        let next = AtomicUsize::new(0);
        let (ready, all_ready) = crossbeam_channel::bounded::<()>(threads);
        // Nothing is ever sent: that its sender is dropped is the signal.
        let (gate, gated) = crossbeam_channel::bounded::<()>(0);
        let work = || -> Result<()> {
            // Makes this thread's instance.
            let first = whole.run_values(self.pool[0].clone());
            let _ = ready.send(());
            let _ = gated.recv();
            first?;
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= items {
                    return Ok(());
                }
                whole.run_values(self.pool[n % self.pool.len()].clone())?;
            }
        };
        std::thread::scope(|scope| {
            let gate = gate;
            let mut running = Vec::with_capacity(threads);
            for _ in 0..threads {
                let thread = std::thread::Builder::new().name("replica".to_owned());
                running.push(thread.spawn_scoped(scope, work)?);
            }
            for _ in &running {
                let _ = all_ready.recv();
            }
            let began = Instant::now();
            drop(gate);
            for thread in running {
                thread.join().map_err(|_| err!(Panic, "a replica of the model panicked"))??;
            }
            Ok(items as f64 / began.elapsed().as_secs_f64())
        })
    }
}

impl fmt::Display for ClosedReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let interval = |i: &Option<Interval>| i.map_or_else(String::new, |i| format!("  {i}"));
        writeln!(
            f,
            "{} rounds of {} items, {} in flight",
            self.rounds, self.items, self.in_flight
        )?;
        ActorShare::write_table(&self.actors, f)?;
        let rest = if self.steady { "" } else { " (too few items to leave out filling)" };
        writeln!(
            f,
            "throughput  {:.2} items/s{}{rest}",
            self.throughput_per_s,
            interval(&self.throughput_interval)
        )?;
        writeln!(
            f,
            "sequential  {:.2} items/s{}",
            self.sequential_per_s,
            interval(&self.sequential_interval)
        )?;
        match self.streaming_is {
            Difference::None => writeln!(f, "streaming   no difference: the intervals overlap")?,
            Difference::Unknown => writeln!(
                f,
                "streaming   {:.2} times as fast in one round, which has no interval",
                self.speed_up
            )?,
            _ => writeln!(f, "streaming   {:.2} times as fast", self.speed_up)?,
        }
        if let Some(whole) = &self.replicas_of_whole {
            writeln!(
                f,
                "whole       {:.2} items/s{} by {} threads, each with the whole model",
                whole.throughput_per_s,
                interval(&whole.throughput_interval),
                whole.replicas
            )?;
        }
        if let (Some(bound), Some(achieved)) = (self.bound_per_s, self.achieved) {
            writeln!(f, "bound       {bound:.2} items/s")?;
            let note = self.achieved_note.as_deref();
            let words = achieved_in_words(achieved, self.achieved_interval, note);
            writeln!(f, "achieved    {words}")?;
        }
        if let (Some(device), Some(actor)) = (&self.bottleneck, &self.bottleneck_actor) {
            writeln!(f, "bottleneck  device {device}, actor {actor}")?;
        }
        let l = &self.latency_us;
        writeln!(
            f,
            "latency     p50 {:.1}, p90 {:.1}, p95 {:.1}, p99 {:.1}, p99.9 {:.1}, max {:.1} us",
            l.p50, l.p90, l.p95, l.p99, l.p99_9, l.max
        )
    }
}
