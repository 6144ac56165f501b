//! What a pipeline did between two snapshots of its figures.

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;
use crate::metrics::{ActorStats, DeviceStats, EdgeStats, Mark, Stats};

/// The figures of an interval: counts and times are those of the interval alone.
///
/// Shortest and longest service times, peaks, levels and states cannot be taken apart: they are those
/// of the later snapshot.
///
/// ```
/// use brigade_actors::{Options, Pipeline, Topology, stage_fn};
///
/// let mut builder = Topology::<i64>::builder();
/// let x = builder.source("x");
/// let inc = builder.actor("inc", "cpu:0", 1, 1, stage_fn(|v: Vec<i64>| Ok(vec![v[0] + 1])));
/// let y = builder.sink("y");
/// builder.connect(x, inc.input(0)).connect(inc.output(0), y);
/// let pipeline = Pipeline::spawn(builder.build()?, Options::new())?;
/// pipeline.push(vec![1])?.wait()?;
/// let before = pipeline.stats();
/// for result in pipeline.stream((0..50).map(|x| vec![x])) {
///     result?;
/// }
/// let window = pipeline.stats().since(&before);
/// assert_eq!((window.items, window.actors[0].items), (50, 50));
/// assert!(window.overall_per_s() > 0.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Window {
    /// The name of the pipeline.
    pub name: String,
    /// How long the interval is.
    pub wall_ns: u64,
    /// Items that came through, with a value or an error. Those that a full queue turned away, or that
    /// were too old before they started, are not among them.
    pub items: u64,
    /// Those of them whose result is an error.
    pub failed: u64,
    /// The most items that may be in flight.
    pub in_flight_limit: usize,
    /// From where on the pipeline was steady: filled, and not idle since.
    pub steady_from: Option<Mark>,
    /// Until when: the last completion before the last admission.
    pub steady_to: Option<Mark>,
    /// The times from admission to result.
    pub latency: Histogram,
    /// The actors, in the order of the topology. Their phases add up to `wall_ns`.
    pub actors: Vec<ActorStats>,
    /// The edges, in the order of the topology.
    pub edges: Vec<EdgeStats>,
    /// The devices.
    pub devices: Vec<DeviceStats>,
}

impl Stats {
    /// What happened since `earlier`, a snapshot of the same pipeline.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Window {
        let actors = self.actors.iter().enumerate();
        let edges = self.edges.iter().enumerate();
        let devices = self.devices.iter().enumerate();
        Window {
            name: self.name.clone(),
            wall_ns: self.uptime_ns.saturating_sub(earlier.uptime_ns),
            items: self.came_through().saturating_sub(earlier.came_through()),
            failed: (self.failed.saturating_sub(self.turned_away()))
                .saturating_sub(earlier.failed.saturating_sub(earlier.turned_away())),
            in_flight_limit: self.in_flight_limit,
            steady_from: self.steady_since(earlier),
            steady_to: self.fed,
            latency: self.latency.since(&earlier.latency),
            actors: actors.map(|(n, now)| actor_since(now, earlier.actors.get(n))).collect(),
            edges: edges.map(|(n, now)| edge_since(now, earlier.edges.get(n))).collect(),
            devices: devices
                .map(|(n, now)| {
                    let before = earlier.devices.get(n).map_or(0, |before| before.busy_ns);
                    DeviceStats { busy_ns: now.busy_ns.saturating_sub(before), ..now.clone() }
                })
                .collect(),
        }
    }

    const fn turned_away(&self) -> u64 {
        self.admission.dropped.saturating_add(self.admission.expired)
    }

    const fn came_through(&self) -> u64 {
        self.completed.saturating_sub(self.turned_away())
    }

    /// What happened since the spawn.
    #[must_use]
    pub fn since_spawn(&self) -> Window {
        self.since(&Self::default())
    }

    /// The completion from which on this pipeline was steady, not before `earlier`.
    fn steady_since(&self, earlier: &Self) -> Option<Mark> {
        let filled = self.filled?;
        let was_filled = earlier.filled == Some(filled);
        if was_filled {
            earlier.last.filter(|last| last.at_ns >= filled.at_ns)
        } else {
            Some(filled)
        }
    }
}

impl Window {
    /// Items completed per second of the interval, filling, draining and idleness included.
    #[must_use]
    pub fn overall_per_s(&self) -> f64 {
        if self.wall_ns == 0 { 0.0 } else { self.items as f64 * 1e9 / self.wall_ns as f64 }
    }

    /// Items completed per second while the pipeline was filled and fed, measured from completion to
    /// completion. `None` if it was not filled, or nothing was completed since while it was fed.
    #[must_use]
    pub fn steady_per_s(&self) -> Option<f64> {
        self.steady_from?.rate_to(self.steady_to?)
    }
}

fn actor_since(now: &ActorStats, before: Option<&ActorStats>) -> ActorStats {
    let Some(before) = before else {
        return now.clone();
    };
    let mut since = now.clone();
    for (now, before) in [
        (&mut since.items, before.items),
        (&mut since.errors, before.errors),
        (&mut since.skipped, before.skipped),
        (&mut since.restarts, before.restarts),
        (&mut since.retries, before.retries),
        (&mut since.busy_ns, before.busy_ns),
        (&mut since.starved_ns, before.starved_ns),
        (&mut since.blocked_ns, before.blocked_ns),
        (&mut since.other_ns, before.other_ns),
        (&mut since.service_sum_ns, before.service_sum_ns),
        (&mut since.told, before.told),
        (&mut since.computed_ns, before.computed_ns),
    ] {
        *now = now.saturating_sub(before);
    }
    since
}

fn edge_since(now: &EdgeStats, before: Option<&EdgeStats>) -> EdgeStats {
    let Some(before) = before else {
        return now.clone();
    };
    EdgeStats {
        sent: now.sent.saturating_sub(before.sent),
        wait_sum_ns: now.wait_sum_ns.saturating_sub(before.wait_sum_ns),
        ..now.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(items: u64, at_ns: u64) -> Mark {
        Mark { items, at_ns }
    }

    #[test]
    fn steady_begins_at_the_fill_or_at_the_earlier_snapshot_and_never_before_idleness() {
        let at = |filled: Option<Mark>, last| Stats { filled, last, fed: last, ..Stats::default() };
        let later = at(Some(mark(4, 100)), Some(mark(24, 1100)));
        assert_eq!(later.steady_per_s(), Some(2e7));
        assert_eq!(later.since_spawn().steady_per_s(), Some(2e7));
        // The earlier snapshot lies in the same busy period.
        let same = at(Some(mark(4, 100)), Some(mark(14, 900)));
        assert_eq!(later.since(&same).steady_per_s(), Some(5e7));
        // It lies before the filling, or in a busy period of the past.
        for earlier in [at(None, Some(mark(2, 50))), at(Some(mark(1, 10)), Some(mark(2, 20)))] {
            assert_eq!(later.since(&earlier).steady_per_s(), Some(2e7));
        }
        // Nothing since, or not filled.
        assert_eq!(later.since(&later).steady_per_s(), None);
        assert_eq!(at(None, Some(mark(9, 9))).since_spawn().steady_per_s(), None);
    }

    #[test]
    fn counts_and_times_are_those_of_the_interval() {
        let actor = |items: u64| ActorStats {
            items,
            busy_ns: 10 * items,
            starved_ns: 5 * items,
            ..ActorStats::default()
        };
        let edge = |sent: u64| EdgeStats { sent, wait_sum_ns: 3 * sent, ..EdgeStats::default() };
        let at = |n: u64| Stats {
            uptime_ns: 15 * n,
            completed: n,
            actors: vec![actor(n)],
            edges: vec![edge(n)],
            ..Stats::default()
        };
        let window = at(30).since(&at(10));
        assert_eq!((window.wall_ns, window.items), (300, 20));
        assert_eq!(window.actors, [actor(20)]);
        assert_eq!(window.edges, [edge(20)]);
        assert!((window.overall_per_s() - 20e9 / 300.0).abs() < 1.0);
        // Snapshots in the wrong order, and of different pipelines, give no nonsense.
        assert_eq!(at(10).since(&at(30)).overall_per_s(), 0.0);
        assert_eq!(at(10).since_spawn().actors, [actor(10)]);
    }
}
