//! What a pipeline did between two snapshots of its figures, against what it could have done.

use std::collections::BTreeMap;
use std::fmt;

use brigade_actors::{ActorStats, Stats};
use serde::Serialize;

/// One device actor.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActorReport {
    /// Its name.
    pub name: String,
    /// Its device.
    pub device: String,
    /// Items that it computed.
    pub items: u64,
    /// Those of them that ended in an error.
    pub errors: u64,
    /// The mean time that it computed on an item, in microseconds.
    pub service_us: f64,
    /// The share of the time in which it computed, 0 to 1.
    pub busy: f64,
    /// The share in which it waited for input.
    pub starved: f64,
    /// The share in which it had input and waited for its device.
    pub blocked: f64,
}

/// Where the time of one device actor went, as fractions of wall time. What is left to 1 went into
/// matching and handing over.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ActorShare {
    /// Its name.
    pub name: String,
    /// Its device.
    pub device: String,
    /// The share in which it computed.
    pub busy: f64,
    /// The share in which it waited for input.
    pub starved: f64,
    /// The share in which it had input and waited for its device.
    pub blocked: f64,
    /// Items that it computed.
    pub items: u64,
    /// The mean time that it computed on an item, in microseconds.
    pub service_us: f64,
}

impl From<&ActorReport> for ActorShare {
    fn from(actor: &ActorReport) -> Self {
        Self {
            name: actor.name.clone(),
            device: actor.device.clone(),
            busy: actor.busy,
            starved: actor.starved,
            blocked: actor.blocked,
            items: actor.items,
            service_us: actor.service_us,
        }
    }
}

impl ActorShare {
    /// Writes a line for each actor, below a head.
    pub(super) fn write_table(actors: &[Self], f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = actors.iter().map(|a| a.name.chars().count()).max().unwrap_or(0).max(5);
        writeln!(
            f,
            "{:width$}  {:>10}  {:>6}  {:>7}  {:>7}",
            "actor", "per item", "busy", "starved", "blocked"
        )?;
        for a in actors {
            writeln!(
                f,
                "{:width$}  {:>7.3} ms  {:>4.0} %  {:>5.0} %  {:>5.0} %",
                a.name,
                a.service_us / 1e3,
                a.busy * 100.0,
                a.starved * 100.0,
                a.blocked * 100.0,
            )?;
        }
        Ok(())
    }
}

/// One device.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DeviceReport {
    /// Its name.
    pub device: String,
    /// How many actors may compute on it at once.
    pub lanes: usize,
    /// What one item takes of it, over all its segments, in microseconds.
    pub item_us: f64,
    /// Items per second that it could do if it never waited.
    pub items_per_s: f64,
}

/// What a pipeline did in a while. An item is what one sequence number names: a micro-batch, where
/// batches are cut.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PipelineReport {
    /// Items that were completed.
    pub items: u64,
    /// Those of them that ended in an error.
    pub failed: u64,
    /// In how many seconds.
    pub seconds: f64,
    /// Items per second.
    pub items_per_s: f64,
    /// Whether the filling and the draining of the pipeline are left out.
    pub steady: bool,
    /// Items per second that no schedule of this plan can beat: over the devices, the least of
    /// lanes / time that an item needs there, as measured while all of them ran.
    pub bound: Option<f64>,
    /// `items_per_s` / `bound`.
    pub achieved: Option<f64>,
    /// The device that sets the bound, and its costliest actor.
    pub bottleneck: Option<String>,
    /// The most items in flight.
    pub in_flight: usize,
    /// The device actors.
    pub actors: Vec<ActorReport>,
    /// The devices.
    pub devices: Vec<DeviceReport>,
}

impl PipelineReport {
    /// The report of what happened between two snapshots of one pipeline. `steady` says whether
    /// they leave out its filling and draining.
    pub fn between(before: &Stats, after: &Stats, steady: bool) -> Self {
        let seconds = after.uptime_ns.saturating_sub(before.uptime_ns) as f64 / 1e9;
        let items = after.completed.saturating_sub(before.completed);
        let items_per_s = if seconds > 0.0 { items as f64 / seconds } else { 0.0 };
        let actors: Vec<ActorReport> = after
            .actors
            .iter()
            .enumerate()
            .map(|(i, a)| actor(before.actors.get(i), a, seconds))
            .collect();
        let mut costs: BTreeMap<&str, f64> = BTreeMap::new();
        let mut measured = !actors.is_empty();
        // Replicas share the items of their actor, and so what one item takes.
        let mut served: BTreeMap<&str, u64> = BTreeMap::new();
        for (a, stats) in actors.iter().zip(&after.actors) {
            *served.entry(&stats.actor).or_default() += a.items;
        }
        for (a, stats) in actors.iter().zip(&after.actors) {
            let all = served.get(stats.actor.as_str()).copied().unwrap_or(0);
            measured &= all > 0;
            if a.items > 0 {
                let share = a.items as f64 / all as f64;
                *costs.entry(&a.device).or_default() += a.service_us * share;
            }
        }
        let devices: Vec<DeviceReport> = after
            .devices
            .iter()
            .map(|d| {
                let item_us = costs.get(d.device.as_str()).copied().unwrap_or(0.0);
                let items_per_s = d.lanes as f64 * 1e6 / item_us;
                DeviceReport { device: d.device.clone(), lanes: d.lanes, item_us, items_per_s }
            })
            .filter(|d| d.item_us > 0.0)
            .collect();
        let slowest = devices.iter().min_by(|a, b| a.items_per_s.total_cmp(&b.items_per_s));
        let slowest = slowest.filter(|_| measured);
        let bottleneck = slowest.map(|d| {
            let on_it = actors.iter().filter(|a| a.device == d.device);
            let costliest = on_it.max_by(|a, b| a.service_us.total_cmp(&b.service_us));
            match costliest {
                Some(a) => format!("device {}, actor {}", d.device, a.name),
                None => format!("device {}", d.device),
            }
        });
        let bound = slowest.map(|d| d.items_per_s);
        Self {
            items,
            failed: after.failed.saturating_sub(before.failed),
            seconds,
            items_per_s,
            steady,
            bound,
            achieved: bound.map(|b| items_per_s / b),
            bottleneck,
            in_flight: after.in_flight_limit,
            actors,
            devices,
        }
    }
}

fn actor(before: Option<&ActorStats>, after: &ActorStats, seconds: f64) -> ActorReport {
    let since = |f: fn(&ActorStats) -> u64| f(after).saturating_sub(before.map_or(0, f));
    let share = |ns: u64| if seconds > 0.0 { ns as f64 / 1e9 / seconds } else { 0.0 };
    let items = since(|a| a.items);
    let service_ns = since(|a| a.service_sum_ns) as f64;
    ActorReport {
        name: after.name.clone(),
        device: after.device.clone(),
        items,
        errors: since(|a| a.errors),
        service_us: if items > 0 { service_ns / items as f64 / 1e3 } else { 0.0 },
        busy: share(since(|a| a.busy_ns)),
        starved: share(since(|a| a.starved_ns)),
        blocked: share(since(|a| a.blocked_ns)),
    }
}

impl fmt::Display for PipelineReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shares: Vec<ActorShare> = self.actors.iter().map(ActorShare::from).collect();
        ActorShare::write_table(&shares, f)?;
        let rest =
            if self.steady { "" } else { " (too few items to leave out filling and draining)" };
        writeln!(f, "throughput  {:.2} items/s{rest}", self.items_per_s)?;
        if let (Some(bound), Some(achieved)) = (self.bound, self.achieved) {
            writeln!(f, "bound       {bound:.2} items/s")?;
            writeln!(f, "achieved    {achieved:.3}")?;
        }
        if let Some(bottleneck) = &self.bottleneck {
            writeln!(f, "bottleneck  {bottleneck}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use brigade_actors::{Options, Pipeline, Topology, stage_fn};
    use serde_json::{Value, json};

    /// `given` with its fields replaced by those of `by`.
    fn with(mut given: Value, by: Value) -> Value {
        if let (Some(fields), Value::Object(by)) = (given.as_object_mut(), by) {
            for (name, value) in by {
                assert!(fields.insert(name.clone(), value).is_some(), "there is no `{name}`");
            }
        }
        given
    }

    /// Figures after `items` items in `uptime_ms`, with actors of these devices and service times;
    /// everything else is that of a pipeline that has done nothing.
    fn stats(uptime_ms: u64, items: u64, actors: &[(&str, u64)], lanes: &[(&str, usize)]) -> Stats {
        let mut builder = Topology::<i64>::builder();
        let x = builder.source("x");
        let idle = builder.actor("idle", "cpu", 1, 1, stage_fn(|v: Vec<i64>| Ok(v)));
        let y = builder.sink("y");
        builder.connect(x, idle.input(0)).connect(idle.output(0), y);
        let pipeline = Pipeline::spawn(builder.build().unwrap(), Options::new()).unwrap();
        let nothing = serde_json::to_value(pipeline.stats()).unwrap();
        let actor = |(i, (device, service_ms)): (usize, &(&str, u64))| {
            let service = service_ms * items * 1_000_000;
            let starved = (uptime_ms * 1_000_000).saturating_sub(service);
            let figures = json!({
                "name": format!("{device}.{i}"), "actor": format!("{device}.{i}"),
                "device": device, "items": items,
                "busy_ns": service, "starved_ns": starved, "other_ns": 0, "service_sum_ns": service,
            });
            with(nothing["actors"][0].clone(), figures)
        };
        let device = |(device, lanes): &(&str, usize)| {
            with(nothing["devices"][0].clone(), json!({"device": device, "lanes": lanes}))
        };
        let figures = json!({
            "uptime_ns": uptime_ms * 1_000_000, "in_flight_limit": 4, "admitted": items,
            "completed": items, "edges": [],
            "actors": actors.iter().enumerate().map(actor).collect::<Vec<_>>(),
            "devices": lanes.iter().map(device).collect::<Vec<_>>(),
        });
        serde_json::from_value(with(nothing.clone(), figures)).unwrap()
    }

    #[test]
    fn the_bound_is_that_of_the_busiest_device() {
        // cpu:0 has two segments: 4 ms + 6 ms an item. cpu:1 takes 8 ms.
        let actors = [("cpu:0", 4), ("cpu:1", 8), ("cpu:0", 6)];
        let lanes = [("cpu:0", 1), ("cpu:1", 1)];
        let report = PipelineReport::between(
            &stats(1_000, 50, &actors, &lanes),
            &stats(3_000, 230, &actors, &lanes),
            true,
        );
        assert_eq!(report.items, 180);
        assert!((report.items_per_s - 90.0).abs() < 1e-9);
        assert!((report.bound.unwrap() - 100.0).abs() < 1e-9);
        assert!((report.achieved.unwrap() - 0.9).abs() < 1e-9);
        assert_eq!(report.bottleneck.as_deref(), Some("device cpu:0, actor cpu:0.2"));
        assert!((report.actors[1].busy - 0.72).abs() < 1e-9);
        assert!(report.to_string().contains("0.900"));
    }

    #[test]
    fn lanes_multiply() {
        let actors = [("gpu:0", 10), ("cpu:0", 8)];
        let lanes = [("gpu:0", 2), ("cpu:0", 1)];
        let report = PipelineReport::between(
            &stats(0, 0, &actors, &lanes),
            &stats(1_000, 100, &actors, &lanes),
            true,
        );
        assert!((report.bound.unwrap() - 125.0).abs() < 1e-9);
        assert_eq!(report.bottleneck.as_deref(), Some("device cpu:0, actor cpu:0.1"));
    }

    #[test]
    fn nothing_measured_is_no_bound() {
        let actors = [("cpu:0", 4)];
        let now = stats(10, 0, &actors, &[("cpu:0", 1)]);
        let report = PipelineReport::between(&now, &now, false);
        assert_eq!((report.bound, report.achieved, report.items), (None, None, 0));
        assert!(report.items_per_s.is_finite());
        serde_json::to_string(&report).unwrap();
    }
}
