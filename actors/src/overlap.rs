//! The proof that stages overlapped: what came through, against what no schedule could beat.
//!
//! With *tₐ* the time that one item needs on actor *a* while all of them run, the *bound* is the
//! least, over the devices, of lanes / Σ *tₐ* of the actors on it, and over the actors, of 1 / *tₐ*.
//! *Achieved* is the steady throughput against the bound. One item after the other would take
//! *S* = Σ *tₐ* each, so the speed-up is throughput · *S*, and its *ceiling* bound · *S*: stages that
//! are uneven cannot be sped up by their number. To keep the bottleneck busy there must be
//! ⌈*L* / *T*⌉ items in flight, *L* being the time of the longest way and *T* = 1 / bound.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::advice;
use crate::histogram::Percentiles;
use crate::metrics::ActorStats;
use crate::trace::Trace;
use crate::window::Window;

/// What a pipeline did in an interval, against its bound. Shares are 0 to 1; an item is what one
/// number names.
///
/// ```
/// use std::time::Duration;
/// use brigade_actors::{Options, OverlapReport, Pipeline, Topology, stage_fn};
///
/// let sleepy = || stage_fn(|v: Vec<i64>| {
///     std::thread::sleep(Duration::from_millis(2));
///     Ok(v)
/// });
/// let mut builder = Topology::<i64>::builder();
/// let x = builder.source("x");
/// let a = builder.actor("a", "cpu:0", 1, 1, sleepy());
/// let b = builder.actor("b", "cpu:1", 1, 1, sleepy());
/// let y = builder.sink("y");
/// builder.connect(x, a.input(0)).connect(a.output(0), b.input(0)).connect(b.output(0), y);
/// let pipeline = Pipeline::spawn(builder.build()?, Options::new().in_flight(4))?;
/// let before = pipeline.stats();
/// for result in pipeline.stream((0..40).map(|x| vec![x])) {
///     result?;
/// }
/// let report = OverlapReport::new(&pipeline.stats().since(&before));
/// assert!(report.bound.unwrap() <= 500.0 && report.overlapped);
/// println!("{report}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct OverlapReport {
    /// The name of the pipeline.
    pub pipeline: String,
    /// Items that were completed.
    pub items: u64,
    /// Those of them that ended in an error.
    pub failed: u64,
    /// In how many seconds.
    pub seconds: f64,
    /// Items per second: the steady throughput where it was measured, else the overall one.
    pub items_per_s: f64,
    /// Whether `items_per_s` leaves out the filling and the draining of the pipeline.
    pub steady: bool,
    /// Items per second of the whole interval.
    pub overall_per_s: f64,
    /// Items per second if each were computed alone, one stage after the other, at the service times
    /// of this run (or at those measured alone, where they were given).
    pub sequential_per_s: Option<f64>,
    /// `items_per_s` / `sequential_per_s`.
    pub speed_up: Option<f64>,
    /// `bound` / `sequential_per_s`: the most that the speed-up could be with these stages.
    pub ceiling: Option<f64>,
    /// Items per second that no schedule can beat, from the service times measured while the stages
    /// ran together; `None` if some actor computed nothing.
    pub bound: Option<f64>,
    /// The bound from nominal service times, if they were given.
    pub nominal_bound: Option<f64>,
    /// `items_per_s` / `bound`.
    pub achieved: Option<f64>,
    /// `items_per_s` / `nominal_bound`.
    pub nominal_achieved: Option<f64>,
    /// The share of the interval in which the lanes of the bottleneck were idle.
    pub bubble: Option<f64>,
    /// How many actors computed at once, on average.
    pub concurrency: f64,
    /// The share of the busy time in which at least two actors computed: exact with a trace, without
    /// one what the busy times prove at least.
    pub overlap: f64,
    /// Whether stages overlapped: that is measured, whatever was configured.
    pub overlapped: bool,
    /// The device that sets the bound, and its costliest actor, in words.
    pub bottleneck: Option<String>,
    /// The costliest actor of the bottleneck.
    pub bottleneck_actor: Option<String>,
    /// The most items that may be in flight.
    pub in_flight: usize,
    /// The items in flight that keep the bottleneck busy.
    pub in_flight_needed: Option<usize>,
    /// Items in flight on average: throughput times mean latency.
    pub in_flight_mean: f64,
    /// The times from admission to result.
    pub latency: Percentiles,
    /// The actors, in the order of the topology.
    pub actors: Vec<ActorReport>,
    /// The devices.
    pub devices: Vec<DeviceReport>,
    /// What would help, the most promising first.
    pub advice: Vec<String>,
}

/// One actor of a report. The four shares add up to 1: it ran (`busy`), waited (`starved` and
/// `blocked`), or handed over (`other`).
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ActorReport {
    /// Its name.
    pub name: String,
    /// The name of its actor in the topology: another one where it is a replica.
    pub actor: String,
    /// Its device.
    pub device: String,
    /// Firings.
    pub items: u64,
    /// Those of them that ended in an error.
    pub errors: u64,
    /// How often its stage was built anew.
    pub restarts: u64,
    /// The mean time that a firing held its device, in microseconds.
    pub service_us: f64,
    /// The same while no other stage ran, if that was measured.
    pub solo_us: Option<f64>,
    /// `service_us` / `solo_us`: above 1, stages slow each other down.
    pub slowdown: Option<f64>,
    /// What one item of the pipeline needs of it, in microseconds: `service_us` times its firings per
    /// item of the pipeline. A replica that fires for half of the items needs half of that for each.
    pub item_us: f64,
    /// What it spends on matching and handing over, per firing, in microseconds.
    pub overhead_us: f64,
    /// The mean time that its inputs lay in its edges, in microseconds.
    pub wait_us: f64,
    /// The share of the time in which it computed.
    pub busy: f64,
    /// The share in which it waited for input.
    pub starved: f64,
    /// The share in which it had input and waited for its device: for a lane of it, or for what lies
    /// between, where its stage tells that from computing.
    pub blocked: f64,
    /// The share in which it matched, handed over, or built its stage.
    pub other: f64,
}

/// One device of a report.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceReport {
    /// Its name.
    pub device: String,
    /// How many actors may compute on it at once.
    pub lanes: usize,
    /// What one item needs of it, over all its actors, in microseconds.
    pub item_us: f64,
    /// Items per second that it could do if it never waited.
    pub items_per_s: f64,
    /// The share of its lanes' time that this pipeline used.
    pub busy: f64,
}

/// Less overlap than this share of the busy time is taken for noise.
const OVERLAP_NOISE: f64 = 0.02;

impl OverlapReport {
    /// The report of an interval. To compare with the bound, the interval should hold a run that keeps
    /// the pipeline full.
    #[must_use]
    pub fn new(window: &Window) -> Self {
        let seconds = window.wall_ns as f64 / 1e9;
        let steady = window.steady_per_s();
        let overall_per_s = window.overall_per_s();
        let items_per_s = steady.unwrap_or(overall_per_s);
        let actors: Vec<ActorReport> =
            (0..window.actors.len()).map(|me| actor_report(window, me)).collect();
        let measured = !actors.is_empty() && actors.iter().all(|actor| actor.items > 0);
        let times: Vec<f64> = actors.iter().map(|actor| actor.item_us).collect();
        let devices = device_reports(window, &times);
        let limit = bottleneck(&actors, &devices, &times).filter(|_| measured);
        let bound = limit.map(|limit| limit.items_per_s);
        let busy: f64 = actors.iter().map(|actor| actor.busy).sum();
        let mut report = Self {
            pipeline: window.name.clone(),
            items: window.items,
            failed: window.failed,
            seconds,
            items_per_s,
            steady: steady.is_some(),
            overall_per_s,
            bound,
            achieved: bound.map(|bound| items_per_s / bound),
            bubble: limit.map(|limit| (1.0 - limit.busy).clamp(0.0, 1.0)),
            concurrency: busy,
            overlap: proved_overlap(&actors),
            bottleneck: limit.map(|limit| limit.words(&actors, &devices)),
            bottleneck_actor: limit.map(|limit| actors[limit.actor].name.clone()),
            in_flight: window.in_flight_limit,
            in_flight_needed: bound.map(|bound| needed(window, &actors, bound)),
            in_flight_mean: items_per_s * window.latency.mean_ns() as f64 / 1e9,
            latency: window.latency.percentiles(),
            actors,
            devices,
            ..Self::default()
        };
        report.conclude();
        report
    }

    /// Adds service times measured while the stages ran alone: an interval in which one item at a time
    /// was in flight. The bound stays that of the stages running together.
    #[must_use]
    pub fn with_solo(mut self, solo: &Window) -> Self {
        for (me, actor) in self.actors.iter_mut().enumerate() {
            let alone = solo.actors.get(me).filter(|alone| alone.name == actor.name);
            let Some(alone) = alone.filter(|alone| alone.items > 0) else {
                continue;
            };
            let solo_us = occupancy_ns(alone) / 1e3;
            actor.solo_us = Some(solo_us);
            actor.slowdown = (solo_us > 0.0).then(|| actor.service_us / solo_us);
        }
        self.conclude();
        self
    }

    /// Adds the bound that these nominal times per firing allow, by the names of the actors. An actor
    /// without one counts with its measured time.
    #[must_use]
    pub fn with_nominal(mut self, times: &[(&str, Duration)]) -> Self {
        let per_item: Vec<f64> = self
            .actors
            .iter()
            .map(|actor| {
                let nominal =
                    times.iter().find(|(name, _)| *name == actor.name || *name == actor.actor);
                let per_firing =
                    if actor.service_us > 0.0 { actor.item_us / actor.service_us } else { 1.0 };
                nominal.map_or(actor.item_us, |(_, time)| time.as_secs_f64() * 1e6 * per_firing)
            })
            .collect();
        let devices: Vec<DeviceReport> =
            self.devices.iter().map(|device| loaded(device, &self.actors, &per_item)).collect();
        let bound = bottleneck(&self.actors, &devices, &per_item).map(|limit| limit.items_per_s);
        self.nominal_bound = bound;
        self.nominal_achieved = bound.map(|bound| self.items_per_s / bound);
        self
    }

    /// Takes the overlap from a trace of the interval, exactly.
    #[must_use]
    pub fn with_trace(mut self, trace: &Trace) -> Self {
        if !trace.events.is_empty() {
            self.overlap = trace.overlap_share();
        }
        self.conclude();
        self
    }

    /// What follows from the rest.
    fn conclude(&mut self) {
        self.overlapped = self.overlap > OVERLAP_NOISE;
        let alone = |actor: &ActorReport| {
            let per_firing = actor.solo_us.unwrap_or(actor.service_us);
            if actor.service_us > 0.0 { per_firing * actor.item_us / actor.service_us } else { 0.0 }
        };
        let item_us: f64 = self.actors.iter().map(alone).sum();
        let sequential = (item_us > 0.0 && self.bound.is_some()).then(|| 1e6 / item_us);
        self.sequential_per_s = sequential;
        self.speed_up = sequential.map(|sequential| self.items_per_s / sequential);
        self.ceiling = sequential.zip(self.bound).map(|(sequential, bound)| bound / sequential);
        self.advice = advice::of(self);
    }
}

/// What limits a pipeline.
#[derive(Clone, Copy)]
struct Limit {
    items_per_s: f64,
    /// The share of its time that it was used.
    busy: f64,
    actor: usize,
    device: Option<usize>,
}

impl Limit {
    fn words(self, actors: &[ActorReport], devices: &[DeviceReport]) -> String {
        let name = &actors[self.actor].name;
        let device = self.device.map_or(&actors[self.actor].device, |d| &devices[d].device);
        format!("device {device}, actor {name}")
    }
}

/// The device, or the actor, that allows the fewest items per second.
fn bottleneck(actors: &[ActorReport], devices: &[DeviceReport], item_us: &[f64]) -> Option<Limit> {
    let of_devices = devices.iter().enumerate().filter_map(|(place, device)| {
        let on_it = (0..actors.len()).filter(|me| actors[*me].device == device.device);
        let actor = on_it.max_by(|a, b| item_us[*a].total_cmp(&item_us[*b]))?;
        let items_per_s = device.items_per_s;
        Some(Limit { items_per_s, busy: device.busy, actor, device: Some(place) })
    });
    // On a device with several lanes one actor still has one thread.
    let of_actors = (0..actors.len()).filter(|me| item_us[*me] > 0.0).map(|actor| Limit {
        items_per_s: 1e6 / item_us[actor],
        busy: actors[actor].busy,
        actor,
        device: None,
    });
    let limits = of_devices.chain(of_actors).filter(|limit| limit.items_per_s > 0.0);
    limits.min_by(|a, b| a.items_per_s.total_cmp(&b.items_per_s))
}

/// The time that a firing holds its device: what its stage said, where it did. Firings of an
/// asynchronous actor overlap each other: there it is the time with work queued that counts, not the
/// time from submission to completion.
fn occupancy_ns(actor: &ActorStats) -> f64 {
    if actor.items == 0 {
        return 0.0;
    }
    if actor.told > 0 {
        return actor.computed_ns as f64 / actor.told as f64;
    }
    let overlapping = actor.service_sum_ns > actor.busy_ns.saturating_add(2 * actor.service_max_ns);
    let total = if overlapping { actor.busy_ns } else { actor.service_sum_ns };
    total as f64 / actor.items as f64
}

fn actor_report(window: &Window, me: usize) -> ActorReport {
    let actor = &window.actors[me];
    let share = |ns: u64| if window.wall_ns > 0 { ns as f64 / window.wall_ns as f64 } else { 0.0 };
    let service_us = occupancy_ns(actor) / 1e3;
    // What its device did not compute meanwhile, it waited for it.
    let busy_ns = if actor.told > 0 { actor.busy_ns.min(actor.computed_ns) } else { actor.busy_ns };
    let away_ns = actor.busy_ns - busy_ns;
    // At the ends of the interval items were inside the pipeline; that is no fan-out.
    let counted = actor.items + actor.skipped;
    let plain = counted.abs_diff(window.items) <= window.in_flight_limit as u64;
    let firings =
        if plain || window.items == 0 { 1.0 } else { actor.items as f64 / window.items as f64 };
    // Edges name the first replica of an actor.
    let first = window.actors.iter().position(|other| other.actor == actor.actor);
    let arrivals = window.edges.iter().filter(|edge| edge.taker.is_some() && edge.taker == first);
    let (waits, taken) = arrivals.fold((0, 0), |(waits, taken), edge| {
        (waits + edge.wait_sum_ns, taken + edge.sent.saturating_sub(edge.level))
    });
    ActorReport {
        name: actor.name.clone(),
        actor: actor.actor.clone(),
        device: actor.device.clone(),
        items: actor.items,
        errors: actor.errors,
        restarts: actor.restarts,
        service_us,
        item_us: service_us * firings,
        overhead_us: actor.other_ns.checked_div(counted).unwrap_or(0) as f64 / 1e3,
        wait_us: waits.checked_div(taken).unwrap_or(0) as f64 / 1e3,
        busy: share(busy_ns),
        starved: share(actor.starved_ns),
        blocked: share(actor.blocked_ns + away_ns),
        other: share(actor.other_ns),
        ..ActorReport::default()
    }
}

fn device_reports(window: &Window, item_us: &[f64]) -> Vec<DeviceReport> {
    let actors: Vec<ActorReport> =
        (0..window.actors.len()).map(|me| actor_report(window, me)).collect();
    let devices = window.devices.iter().map(|device| {
        let plain = DeviceReport {
            device: device.device.clone(),
            lanes: if device.computing > 0 { device.computing } else { device.lanes },
            ..DeviceReport::default()
        };
        loaded(&plain, &actors, item_us)
    });
    devices.filter(|device| device.item_us > 0.0).collect()
}

/// A device under these times per item of its actors.
fn loaded(device: &DeviceReport, actors: &[ActorReport], item_us: &[f64]) -> DeviceReport {
    let on_it = || actors.iter().zip(item_us).filter(|(actor, _)| actor.device == device.device);
    let item_us: f64 = on_it().map(|(_, item_us)| item_us).sum();
    let lanes = device.lanes.max(1) as f64;
    DeviceReport {
        item_us,
        items_per_s: if item_us > 0.0 { lanes * 1e6 / item_us } else { 0.0 },
        busy: on_it().map(|(actor, _)| actor.busy).sum::<f64>() / lanes,
        ..device.clone()
    }
}

/// The share of the busy time in which two actors computed at once, as far as the busy times alone
/// prove it: of more than one second of computing in a second, the rest must have been at once.
fn proved_overlap(actors: &[ActorReport]) -> f64 {
    let busy: f64 = actors.iter().map(|actor| actor.busy).sum();
    let others = actors.iter().filter(|actor| actor.busy > 0.0).count().saturating_sub(1).max(1);
    ((busy - 1.0) / others as f64).clamp(0.0, 1.0)
}

/// ⌈L / T⌉, L being the longest way through the actors.
fn needed(window: &Window, actors: &[ActorReport], bound: f64) -> usize {
    let mut longest: BTreeMap<usize, f64> = BTreeMap::new();
    // Edges go from actor to actor without a ring, so as many rounds as there are actors settle it.
    for _ in 0..actors.len() {
        for (me, actor) in actors.iter().enumerate() {
            let before = window.edges.iter().filter(|edge| edge.taker == Some(me));
            let before = before.filter_map(|edge| longest.get(&edge.giver?).copied());
            // An item goes through one of the replicas, each of which stands for its share of them.
            let replicas = actors.iter().filter(|other| other.actor == actor.actor);
            let own = replicas.map(|other| other.item_us).sum::<f64>() + actor.overhead_us;
            // The way to a device that is elsewhere, and back, is part of the way of an item.
            let stats = &window.actors[me];
            let own = if stats.told > 0 { own.max(stats.service_min_ns as f64 / 1e3) } else { own };
            longest.insert(me, own + before.fold(0.0, f64::max));
        }
    }
    let way_us = longest.into_values().fold(0.0, f64::max);
    // What is a whole number but for noise is that number.
    ((way_us * bound / 1e6) - 0.05).ceil().max(1.0) as usize
}

impl fmt::Display for OverlapReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = self.actors.iter().map(|actor| actor.name.chars().count()).max();
        let width = longest.unwrap_or(0).max(5);
        let solo = self.actors.iter().any(|actor| actor.solo_us.is_some());
        // One column where an item is a firing everywhere.
        let differs = |actor: &ActorReport| (actor.item_us - actor.service_us).abs() > 1e-9;
        let firings = self.actors.iter().any(differs);
        write!(f, "{:width$}  {:>10}", "actor", "per item")?;
        if firings {
            write!(f, "  {:>10}", "per firing")?;
        }
        if solo {
            write!(f, "  {:>10}", "alone")?;
        }
        writeln!(f, "  {:>6}  {:>7}  {:>7}  {:>7}", "busy", "starved", "blocked", "other")?;
        for actor in &self.actors {
            write!(f, "{:width$}  {:>7.3} ms", actor.name, actor.item_us / 1e3)?;
            if firings {
                write!(f, "  {:>7.3} ms", actor.service_us / 1e3)?;
            }
            match actor.solo_us {
                Some(solo_us) => write!(f, "  {:>7.3} ms", solo_us / 1e3)?,
                None if solo => write!(f, "  {:>10}", "")?,
                None => {}
            }
            writeln!(
                f,
                "  {:>4.0} %  {:>5.0} %  {:>5.0} %  {:>5.0} %",
                actor.busy * 100.0,
                actor.starved * 100.0,
                actor.blocked * 100.0,
                actor.other * 100.0,
            )?;
        }
        let rest =
            if self.steady { "" } else { " (too few items to leave out filling and draining)" };
        writeln!(f, "throughput  {:.2} items/s{rest}", self.items_per_s)?;
        if self.steady {
            writeln!(f, "overall     {:.2} items/s", self.overall_per_s)?;
        }
        if let (Some(bound), Some(achieved)) = (self.bound, self.achieved) {
            writeln!(f, "bound       {bound:.2} items/s")?;
            writeln!(f, "achieved    {achieved:.3}")?;
        }
        if let (Some(bound), Some(achieved)) = (self.nominal_bound, self.nominal_achieved) {
            writeln!(f, "nominal     {bound:.2} items/s, achieved {achieved:.3}")?;
        }
        if let (Some(sequential), Some(speed_up), Some(ceiling)) =
            (self.sequential_per_s, self.speed_up, self.ceiling)
        {
            writeln!(
                f,
                "speed-up    {speed_up:.2} over one item at a time ({sequential:.2} items/s); these \
                 stages allow {ceiling:.2}"
            )?;
        }
        let word = if self.overlapped { "yes" } else { "no" };
        writeln!(
            f,
            "overlapped  {word}: {:.2} actors at once, {:.0} % of the busy time",
            self.concurrency,
            self.overlap * 100.0
        )?;
        if let Some(bubble) = self.bubble {
            writeln!(f, "bubble      {:.0} % of the bottleneck's time", bubble * 100.0)?;
        }
        if let Some(bottleneck) = &self.bottleneck {
            writeln!(f, "bottleneck  {bottleneck}")?;
        }
        let us = |ns: u64| ns as f64 / 1e3;
        let p = &self.latency;
        if p.count > 0 {
            writeln!(
                f,
                "latency     p50 {:.0} p90 {:.0} p95 {:.0} p99 {:.0} p99.9 {:.0} max {:.0} µs",
                us(p.p50_ns),
                us(p.p90_ns),
                us(p.p95_ns),
                us(p.p99_ns),
                us(p.p99_9_ns),
                us(p.max_ns)
            )?;
        }
        for advice in &self.advice {
            writeln!(f, "advice      {advice}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::{DeviceStats, EdgeStats, Mark};

    /// `items` items in two seconds through actors of these devices and service times.
    fn window(items: u64, actors: &[(&str, u64)], lanes: &[(&str, usize)]) -> Window {
        let wall_ns = 2_000_000_000;
        let actor = |(n, (device, ms)): (usize, &(&str, u64))| {
            let busy_ns = ms * items * 1_000_000;
            ActorStats {
                name: format!("a{n}"),
                actor: format!("a{n}"),
                device: (*device).into(),
                items,
                busy_ns,
                starved_ns: wall_ns - busy_ns,
                service_sum_ns: busy_ns,
                service_max_ns: ms * 1_000_000,
                ..ActorStats::default()
            }
        };
        let edge = |taker: usize| EdgeStats {
            giver: taker.checked_sub(1),
            taker: (taker < actors.len()).then_some(taker),
            ..EdgeStats::default()
        };
        let device = |(device, lanes): &(&str, usize)| DeviceStats {
            device: (*device).into(),
            lanes: *lanes,
            ..DeviceStats::default()
        };
        Window {
            wall_ns,
            items,
            in_flight_limit: 4,
            actors: actors.iter().enumerate().map(actor).collect(),
            edges: (0..=actors.len()).map(edge).collect(),
            devices: lanes.iter().map(device).collect(),
            ..Window::default()
        }
    }

    fn close(got: impl Into<Option<f64>>, want: f64) {
        let got = got.into().unwrap();
        assert!((got - want).abs() < 1e-9 * want.abs().max(1.0), "{got} for {want}");
    }

    #[test]
    fn the_bound_is_that_of_the_busiest_device() {
        // cpu:0 has two actors: 4 ms + 6 ms an item. cpu:1 takes 8 ms.
        let actors = [("cpu:0", 4), ("cpu:1", 8), ("cpu:0", 6)];
        let lanes = [("cpu:0", 1), ("cpu:1", 1)];
        let report = OverlapReport::new(&window(180, &actors, &lanes));
        close(report.items_per_s, 90.0);
        close(report.bound, 100.0);
        close(report.achieved, 0.9);
        close(report.bubble, 0.1);
        assert_eq!(report.bottleneck.as_deref(), Some("device cpu:0, actor a2"));
        // 18 ms an item one after the other; at most 10 ms apart.
        close(report.sequential_per_s, 1e3 / 18.0);
        close(report.speed_up, 90.0 * 18e-3);
        close(report.ceiling, 1.8);
        assert_eq!(report.in_flight_needed, Some(2));
        close(report.concurrency, 0.36 + 0.72 + 0.54);
        close(report.overlap, 0.31);
        assert!(report.overlapped);
        assert!(report.advice[0].contains("offer items faster"), "{:?}", report.advice);
        let turns = "give device cpu:0 another lane, or move one of its actors `a0`, `a2`";
        assert!(report.advice.iter().any(|advice| advice.starts_with(turns)), "{report}");
        assert!(report.to_string().contains("0.900"), "{report}");
    }

    #[test]
    fn what_a_stage_says_of_computing_counts_and_not_the_way_there_and_back() {
        // Two actors on a device elsewhere that lets one of them compute at a time, for 3 and 5 ms; each
        // has work there all the time, with four items on the way.
        let lanes = [("far", 1024), ("cpu", 1)];
        let mut window = window(200, &[("far", 9), ("far", 9), ("cpu", 2)], &lanes);
        for (actor, ms) in window.actors.iter_mut().zip([3, 5]) {
            actor.service_sum_ns *= 4;
            actor.service_min_ns = 20_000_000;
            (actor.told, actor.computed_ns) = (200, ms * 200 * 1_000_000);
        }
        window.devices[0].computing = 1;
        let report = OverlapReport::new(&window);
        close(report.bound, 1e3 / 8.0);
        close(report.achieved, 0.8);
        assert_eq!(report.bottleneck.as_deref(), Some("device far, actor a1"));
        close(report.actors[0].service_us, 3e3);
        close(report.actors[0].busy, 0.3);
        close(report.actors[0].blocked, 0.6);
        // 20 ms to each of the two and back, and 2 ms, at 8 ms an item.
        assert_eq!(report.in_flight_needed, Some(6));
        // Its lanes alone would let both compute at once.
        window.devices[0].computing = 0;
        close(OverlapReport::new(&window).bound, 1e3 / 5.0);
    }

    #[test]
    fn lanes_multiply_but_not_one_actor() {
        let lanes = [("gpu", 2), ("cpu", 1)];
        let actors = [("gpu", 6), ("gpu", 6), ("cpu", 5)];
        let report = OverlapReport::new(&window(100, &actors, &lanes));
        // Two lanes for 12 ms an item; each actor alone allows as much.
        close(report.bound, 1e3 / 6.0);
        let report = OverlapReport::new(&window(100, &[("gpu", 10), ("cpu", 8)], &lanes));
        close(report.bound, 100.0);
        assert_eq!(report.bottleneck.as_deref(), Some("device gpu, actor a0"));
        close(report.ceiling, 1.8);
    }

    #[test]
    fn uneven_stages_are_told_to_be_rebalanced() {
        let lanes = [("a", 1), ("b", 1)];
        let mut window = window(200, &[("a", 9), ("b", 1)], &lanes);
        window.steady_from = Some(Mark { items: 0, at_ns: 0 });
        window.steady_to = Some(Mark { items: 200, at_ns: 1_800_000_000 });
        let report = OverlapReport::new(&window);
        assert!(report.steady);
        close(report.achieved, 1.0);
        close(report.ceiling, 10.0 / 9.0);
        let advice = report.advice.join("\n");
        assert!(advice.contains("rebalance: actor `a0` takes 9.000 of the 10.000 ms"), "{advice}");
    }

    #[test]
    fn asynchronous_firings_count_with_the_time_that_they_occupy_the_device() {
        // Four firings open at once: each takes 20 ms, but one is done every 5 ms.
        let mut window = window(200, &[("gpu", 5)], &[("gpu", 1)]);
        window.actors[0].service_sum_ns = 200 * 20_000_000;
        window.actors[0].service_max_ns = 25_000_000;
        let report = OverlapReport::new(&window);
        close(report.bound, 200.0);
        close(report.achieved, 0.5);
    }

    #[test]
    fn an_actor_that_fires_once_for_eight_items_costs_an_eighth() {
        let mut window = window(160, &[("a", 1), ("b", 1)], &[("a", 1), ("b", 1)]);
        let batch = &mut window.actors[1];
        batch.items = 20;
        batch.busy_ns = 20 * 40_000_000;
        batch.service_sum_ns = batch.busy_ns;
        let report = OverlapReport::new(&window);
        close(report.actors[1].service_us, 40_000.0);
        close(report.actors[1].item_us, 5_000.0);
        close(report.bound, 200.0);
    }

    #[test]
    fn replicas_are_advised_on_by_the_name_of_their_actor_and_shown_per_firing_too() {
        let mut window = window(200, &[("b", 8), ("b", 8)], &[("b", 2)]);
        for (replica, actor) in window.actors.iter_mut().enumerate() {
            actor.name = format!("b/{replica}");
            actor.actor = "b".into();
            actor.items = 100;
            actor.busy_ns = 100 * 8_000_000;
            actor.service_sum_ns = actor.busy_ns;
            actor.other_ns = 100 * 2_000_000;
        }
        let report = OverlapReport::new(&window);
        close(report.actors[0].item_us, 4_000.0);
        let advice = report.advice.join("\n");
        assert!(advice.contains("actor `b`") && !advice.contains("b/"), "{advice}");
        let text = report.to_string();
        let mut lines = text.lines();
        assert!(lines.next().unwrap().contains("per item  per firing"), "{text}");
        assert!(lines.next().unwrap().contains("4.000 ms    8.000 ms"), "{text}");
    }

    #[test]
    fn few_in_flight_overhead_and_nominal_times_are_told() {
        let lanes = [("a", 1), ("b", 1), ("c", 1)];
        let mut window = window(100, &[("a", 5), ("b", 5), ("c", 5)], &lanes);
        window.in_flight_limit = 2;
        window.actors[1].other_ns = 100 * 1_000_000;
        let report = OverlapReport::new(&window).with_nominal(&[("a1", Duration::from_millis(10))]);
        assert_eq!(report.in_flight_needed, Some(4));
        assert!(report.advice[0].starts_with("raise in_flight from 2 to at least 4"), "{report}");
        assert!(report.advice[1].contains("actor `a1` spends 1000.0 µs per firing"), "{report}");
        close(report.nominal_bound, 100.0);
        close(report.nominal_achieved, 0.5);
    }

    #[test]
    fn nothing_measured_is_no_bound_and_no_advice() {
        for window in [Window::default(), window(0, &[("a", 4)], &[("a", 1)])] {
            let report = OverlapReport::new(&window).with_trace(&Trace::default());
            assert_eq!((report.bound, report.achieved, report.items), (None, None, 0));
            assert!(report.items_per_s.abs() < 1e-9 && !report.overlapped);
            assert!(report.advice.is_empty() && !report.to_string().is_empty());
        }
    }
}
