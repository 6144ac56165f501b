//! How many items to have in flight.
//!
//! By Little's law a pipeline is full once there are `L / T` items in it: `L` is what one item needs
//! on its way when nothing holds it up, `T` what the bottleneck needs for each. More of them wait in
//! front of the bottleneck: they add latency and hold memory. Both times are measured while the
//! pipeline runs; the latency that is measured from push to result would not do, because it grows
//! with the number in flight itself.

use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::payload::Payload;
use crate::sync::{Arc, Mutex, Ordering, lock};

/// What was measured over some items.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) completed: u64,
    pub(crate) elapsed: Duration,
    /// What an item needs on its longest way when nothing holds it up.
    pub(crate) path: Duration,
    /// What the bottleneck needs for an item.
    pub(crate) bottleneck: Duration,
    /// Items waited for credits during most of it.
    pub(crate) pressed: bool,
}

/// The number in flight, adapted window by window: a pure state machine.
#[derive(Debug)]
pub(crate) struct Depth {
    limit: usize,
    max: usize,
    /// Smoothed `L / T`.
    ratio: Option<f64>,
    /// What the time between actors needs beyond `L / T`, found by trying.
    boost: usize,
    trial: Option<Trial>,
    /// Windows until the next trial, and the pause after one that was in vain.
    rest: u32,
    pause: u32,
}

/// One more item in flight, to see whether more come through.
#[derive(Debug)]
struct Trial {
    before: f64,
    rates: Vec<f64>,
}

/// One more than fills the pipeline covers the jitter of the stages.
const SLACK: usize = 1;
/// A bottleneck that is busy for less than this could do more.
const SATURATED: f64 = 0.95;
/// A trial is kept if it brings at least this much.
const GAIN: f64 = 1.02;
/// Windows by which a trial is judged.
const TRIAL: usize = 3;
const LONGEST_PAUSE: u32 = 256;

impl Depth {
    pub(crate) fn new(start: usize, max: usize) -> Self {
        let max = max.max(1);
        Self {
            limit: start.clamp(1, max),
            max,
            ratio: None,
            boost: 0,
            trial: None,
            rest: 0,
            pause: 4,
        }
    }

    /// Looks at a window; gives the number that may be in flight from now on.
    pub(crate) fn next(&mut self, window: Window) -> usize {
        let (path, each) = (window.path.as_secs_f64(), window.bottleneck.as_secs_f64());
        let elapsed = window.elapsed.as_secs_f64();
        if window.completed == 0 || each <= 0.0 || elapsed <= 0.0 {
            return self.limit;
        }
        let now = path / each;
        let ratio = self.ratio.map_or(now, |ratio| ratio + (now - ratio) / 4.0);
        self.ratio = Some(ratio);
        let rate = window.completed as f64 / elapsed;
        self.explore(window.pressed, rate, each * rate);
        // Measured times are never exact: a tenth of an item is no item.
        let fill = (ratio - 0.1).ceil().max(1.0);
        let fill = if fill >= self.max as f64 { self.max } else { fill as usize };
        self.limit = fill.saturating_add(SLACK + self.boost).min(self.max);
        self.limit
    }

    /// Where the bottleneck idles although items wait for credits, tries one more.
    fn explore(&mut self, pressed: bool, rate: f64, busy: f64) {
        if let Some(trial) = &mut self.trial {
            trial.rates.push(rate);
            if trial.rates.len() < TRIAL {
                return;
            }
            let mean = trial.rates.iter().sum::<f64>() / trial.rates.len() as f64;
            let gained = mean >= trial.before * GAIN;
            self.trial = None;
            if gained {
                self.pause = 4;
            } else {
                self.boost = self.boost.saturating_sub(1);
                self.rest = self.pause;
                self.pause = (2 * self.pause).min(LONGEST_PAUSE);
            }
        } else if self.rest > 0 {
            self.rest -= 1;
        } else if pressed && busy < SATURATED && self.limit < self.max {
            self.boost += 1;
            self.trial = Some(Trial { before: rate, rates: Vec::with_capacity(TRIAL) });
        }
    }
}

/// Which actors follow which: for what depends on the longest way through them.
pub(crate) struct Ways {
    /// The actors, upstream first.
    pub(crate) order: Vec<usize>,
    /// For each actor, those that it takes from.
    pub(crate) before: Vec<Vec<usize>>,
}

impl Ways {
    /// The largest sum of `weight` over the actors of one way.
    pub(crate) fn longest(&self, weight: impl Fn(usize) -> u64) -> u64 {
        let mut sums = vec![0_u64; self.order.len()];
        for &actor in &self.order {
            let before = self.before[actor].iter().map(|&other| sums[other]).max();
            sums[actor] = before.unwrap_or(0).saturating_add(weight(actor));
        }
        sums.into_iter().max().unwrap_or(0)
    }
}

/// Adapts the number in flight of one pipeline.
pub(crate) struct Tuner(Mutex<Tuning>);

struct Tuning {
    depth: Depth,
    since: Instant,
    completed: u64,
    /// Completions at which every credit was out.
    full: u64,
    /// What the actors had done when the window began.
    before: Vec<Work>,
}

/// What an actor has done.
#[derive(Clone, Copy, Default)]
pub(crate) struct Work {
    pub(crate) items: u64,
    pub(crate) busy: Duration,
    pub(crate) service: Duration,
}

/// Completions that a window holds at the least, beside a few for each item in flight.
const WINDOW: u64 = 12;
/// The shortest window: below it the clock of the machine's scheduler shows.
const SHORTEST: Duration = Duration::from_millis(4);

impl Tuner {
    pub(crate) fn new(start: usize, max: usize, actors: usize, now: Instant) -> Self {
        Self(Mutex::new(Tuning {
            depth: Depth::new(start, max),
            since: now,
            completed: 0,
            full: 0,
            before: vec![Work::default(); actors],
        }))
    }
}

impl<P: Payload> Engine<P> {
    /// Counts a result, and at the end of a window adapts the number in flight. `full` says that
    /// every credit was out.
    pub(crate) fn tune(self: &Arc<Self>, tuner: &Tuner, full: bool) {
        let limit = {
            let mut tuning = lock(&tuner.0);
            tuning.completed += 1;
            tuning.full += u64::from(full);
            let now = Instant::now();
            let elapsed = now.saturating_duration_since(tuning.since);
            let items = WINDOW + 2 * self.credits.limit() as u64;
            if tuning.completed < items || elapsed < SHORTEST {
                return;
            }
            let after: Vec<_> = self.actors.iter().map(|actor| actor.meter.work(now)).collect();
            let window = self.window(&tuning, &after, elapsed);
            tuning.before = after;
            (tuning.since, tuning.completed, tuning.full) = (now, 0, 0);
            tuning.depth.next(window)
        };
        if limit != self.credits.limit() {
            self.credits.set_limit(limit).wake();
            self.pump();
        }
    }

    fn window(&self, tuning: &Tuning, after: &[Work], elapsed: Duration) -> Window {
        let completed = tuning.completed;
        let per_item = |time: Duration| time.div_f64(completed.max(1) as f64);
        let done = |actor: usize| {
            let (before, after) = (tuning.before[actor], after[actor]);
            Work {
                items: after.items.saturating_sub(before.items),
                busy: after.busy.saturating_sub(before.busy),
                service: after.service.saturating_sub(before.service),
            }
        };
        let service = |actor: usize| {
            let work = done(actor);
            if work.items == 0 { Duration::ZERO } else { work.service.div_f64(work.items as f64) }
        };
        // Children of one item go through an actor one after the other.
        let path = self.ways.longest(|actor| {
            let firings = (done(actor).items as f64 / completed.max(1) as f64).max(1.0);
            service(actor).mul_f64(firings).as_nanos() as u64
        });
        // An actor with several slots can be as fast as its firings would be side by side.
        let each = |actor: usize| {
            let slots = self.actors[actor].slots.load(Ordering::Relaxed).max(1);
            let work = done(actor);
            per_item(work.busy).min(per_item(work.service).div_f64(slots as f64))
        };
        let actors = (0..after.len()).map(each).max().unwrap_or_default();
        let devices = self.devices.iter().map(|lanes| {
            let on = (0..after.len()).filter(|&a| Arc::ptr_eq(&self.actors[a].lane.lanes, lanes));
            on.map(each).sum::<Duration>().div_f64(lanes.total().max(1) as f64)
        });
        Window {
            completed,
            elapsed,
            path: Duration::from_nanos(path),
            bottleneck: devices.max().unwrap_or_default().max(actors),
            pressed: 2 * tuning.full > completed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a controller on a model of a pipeline: stages of these times, and `hop` in front of each
    /// that nobody measures. Gives the numbers in flight that it chose.
    fn settle(stages: &[f64], hop: f64, max: usize, windows: usize) -> Vec<usize> {
        let path: f64 = stages.iter().sum();
        let bottleneck = stages.iter().fold(0.0_f64, |most, &time| most.max(time));
        let latency = path + hop * stages.len() as f64;
        let mut depth = Depth::new(2 * stages.len(), max);
        let mut limit = 2 * stages.len();
        let mut noise = 1_u64;
        let mut chosen = Vec::new();
        for _ in 0..windows {
            noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let jitter = 1.0 + ((noise >> 33) % 100) as f64 / 10_000.0;
            let rate = (limit as f64 / latency).min(1.0 / bottleneck) / jitter;
            limit = depth.next(Window {
                completed: 100,
                elapsed: Duration::from_secs_f64(100.0 / rate),
                path: Duration::from_secs_f64(path * jitter),
                bottleneck: Duration::from_secs_f64(bottleneck),
                pressed: true,
            });
            chosen.push(limit);
        }
        chosen
    }

    #[test]
    fn it_settles_one_above_latency_over_bottleneck() {
        for (stages, ideal) in [
            (&[0.001, 0.002, 0.004][..], 2),
            (&[0.004, 0.004, 0.004], 3),
            (&[0.005, 0.003, 0.005], 3),
            (&[0.001], 1),
            (&[0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.001, 0.010], 2),
        ] {
            let chosen = settle(stages, 0.0, 64, 200);
            assert!(chosen[100..].iter().all(|&d| d == ideal + SLACK), "{stages:?}: {chosen:?}");
        }
    }

    #[test]
    fn time_between_actors_is_found_by_trying_and_trials_in_vain_are_taken_back() {
        // A bottleneck of 10 us and 4 hops of 40 us: 20 items fill it, 5 by the stages alone.
        let chosen = settle(&[1e-5; 4], 4e-5, 64, 600);
        let settled = &chosen[500..];
        assert!(settled.iter().all(|&d| (18..=23).contains(&d)), "{chosen:?}");
        // Where more does not help, it stays away from more.
        let mut depth = Depth::new(4, 64);
        let mut limits = Vec::new();
        for _ in 0..400 {
            limits.push(depth.next(Window {
                completed: 50,
                elapsed: Duration::from_millis(100),
                path: Duration::from_millis(2),
                bottleneck: Duration::from_millis(1),
                pressed: true,
            }));
        }
        assert!(limits.iter().all(|&limit| limit <= 4), "{limits:?}");
        let trying = limits[200..].iter().filter(|&&limit| limit > 3).count();
        assert!(trying < 20, "{trying} windows of 200 with one item too many");
    }

    #[test]
    fn it_never_passes_its_bound_and_nothing_measured_changes_nothing() {
        for max in [1, 2, 3, 7] {
            assert!(settle(&[0.001; 16], 0.002, max, 100).iter().all(|&limit| limit <= max));
        }
        let mut depth = Depth::new(5, 9);
        let nothing = Window {
            completed: 0,
            elapsed: Duration::ZERO,
            path: Duration::ZERO,
            bottleneck: Duration::ZERO,
            pressed: false,
        };
        assert_eq!(depth.next(nothing), 5);
        let odd = Window {
            completed: 3,
            elapsed: Duration::MAX,
            path: Duration::MAX,
            bottleneck: Duration::from_nanos(1),
            pressed: true,
        };
        assert_eq!(depth.next(odd), 9);
    }

    #[test]
    fn an_idle_source_asks_for_nothing_beyond_the_fill() {
        let mut depth = Depth::new(6, 64);
        for _ in 0..50 {
            let limit = depth.next(Window {
                completed: 10,
                elapsed: Duration::from_secs(1),
                path: Duration::from_millis(7),
                bottleneck: Duration::from_millis(4),
                pressed: false,
            });
            assert_eq!(limit, 3);
        }
    }

    #[test]
    fn the_longest_way_is_that_of_the_largest_sum() {
        // 0 -> 1 -> 3, 0 -> 2 -> 3, and 4 alone.
        let before = vec![vec![], vec![0], vec![0], vec![1, 2], vec![]];
        let ways = Ways { order: vec![0, 1, 2, 3, 4], before };
        assert_eq!(ways.longest(|actor| [1, 5, 2, 1, 6][actor]), 7);
        assert_eq!(ways.longest(|actor| [1, 1, 1, 1, 6][actor]), 6);
    }
}
