//! Where the time of an actor goes.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::cpu::CpuStats;
use crate::depth::Work;
use crate::histogram::Histogram;
use crate::sync::{AtomicU64, AtomicUsize, Ordering, fence, thread};
use crate::watch::Stall;

/// What an actor is doing. At each instant it is exactly one of these, so they add up to wall time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Building its stage, matching, handing over, backing off.
    Other = 0,
    /// Nothing to do: waiting for input.
    Starved = 1,
    /// Input is there, a lane of the device is not.
    Blocked = 2,
    /// Computing, or having work queued on its device.
    Busy = 3,
}

/// The account of one actor. Its thread alone writes it, so that writing needs neither a lock nor an
/// atomic exchange; `version` is odd meanwhile, and a reader that met a write reads again.
#[repr(align(128))]
pub(crate) struct Meter {
    origin: Instant,
    version: AtomicU64,
    phase: AtomicUsize,
    /// When the phase began. Times are nanoseconds since `origin`.
    since: AtomicU64,
    totals: [AtomicU64; 4],
    items: AtomicU64,
    errors: AtomicU64,
    skipped: AtomicU64,
    restarts: AtomicU64,
    retries: AtomicU64,
    service: AtomicU64,
    service_min: AtomicU64,
    service_max: AtomicU64,
    /// Firings whose stage said how long its device computed, and the sum of that.
    told: AtomicU64,
    computed: AtomicU64,
    /// Items that left the edges into the actor: it fired for them, or passed them on.
    pub(crate) taken: AtomicU64,
    /// The most that lay in the inbox.
    peak: AtomicU64,
}

impl Meter {
    pub(crate) fn new(origin: Instant) -> Self {
        Self {
            origin,
            version: AtomicU64::new(0),
            phase: AtomicUsize::new(Phase::Other as usize),
            since: AtomicU64::new(0),
            totals: std::array::from_fn(|_| AtomicU64::new(0)),
            items: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            skipped: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            service: AtomicU64::new(0),
            service_min: AtomicU64::new(u64::MAX),
            service_max: AtomicU64::new(0),
            told: AtomicU64::new(0),
            computed: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            peak: AtomicU64::new(0),
        }
    }

    /// Enters a phase, and gives the instant.
    pub(crate) fn enter(&self, phase: Phase) -> Instant {
        let now = Instant::now();
        self.enter_at(phase, now);
        now
    }

    /// Enters a phase at `now`.
    pub(crate) fn enter_at(&self, phase: Phase, now: Instant) {
        self.write(|| self.turn(phase, now));
    }

    /// Enters `phase` at `ended`, the end of a firing that began at `started`.
    pub(crate) fn fired(
        &self,
        started: Instant,
        ended: Instant,
        failed: bool,
        phase: Option<Phase>,
    ) {
        let service = nanos(ended.saturating_duration_since(started));
        self.write(|| {
            if let Some(phase) = phase {
                self.turn(phase, ended);
            }
            add(&self.items, 1);
            add(&self.errors, u64::from(failed));
            add(&self.service, service);
            let min = self.service_min.load(Ordering::Relaxed).min(service);
            self.service_min.store(min, Ordering::Relaxed);
            let max = self.service_max.load(Ordering::Relaxed).max(service);
            self.service_max.store(max, Ordering::Relaxed);
        });
    }

    /// Notes that the device computed so long for a firing that has ended.
    pub(crate) fn computed(&self, time: Duration) {
        self.write(|| {
            add(&self.told, 1);
            add(&self.computed, nanos(time));
        });
    }

    /// Counts an item as gone from the edges into the actor.
    pub(crate) fn took(&self) {
        add(&self.taken, 1);
    }

    /// Notes that the inbox held `level`.
    pub(crate) fn held(&self, level: usize) {
        let level = level as u64;
        if level > self.peak.load(Ordering::Relaxed) {
            self.peak.store(level, Ordering::Relaxed);
        }
    }

    /// The most items that ever lay in the inbox.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Counts an item that passed as an error.
    pub(crate) fn skipped(&self) {
        add(&self.skipped, 1);
    }

    pub(crate) fn restarted(&self) {
        add(&self.restarts, 1);
    }

    fn turn(&self, phase: Phase, now: Instant) {
        let now = nanos(now.saturating_duration_since(self.origin));
        let spent = now.saturating_sub(self.since.load(Ordering::Relaxed));
        add(&self.totals[self.phase.load(Ordering::Relaxed)], spent);
        self.phase.store(phase as usize, Ordering::Relaxed);
        self.since.store(now, Ordering::Relaxed);
    }

    fn write(&self, change: impl FnOnce()) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version + 1, Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        self.version.store(version + 2, Ordering::Release);
    }

    /// The phase, its begin, and the totals, all of one moment.
    fn phases(&self) -> (usize, u64, [u64; 4]) {
        loop {
            let before = self.version.load(Ordering::Acquire);
            let phase = self.phase.load(Ordering::Relaxed);
            let since = self.since.load(Ordering::Relaxed);
            let totals = std::array::from_fn(|place| self.totals[place].load(Ordering::Relaxed));
            fence(Ordering::Acquire);
            if before.is_multiple_of(2) && before == self.version.load(Ordering::Relaxed) {
                return (phase, since, totals);
            }
            thread::yield_now();
        }
    }

    /// Counts an item that is given to its stage once more.
    pub(crate) fn retried(&self) {
        add(&self.retries, 1);
    }

    /// What the actor is doing, and since when.
    pub(crate) fn doing(&self) -> (Phase, Instant) {
        let (phase, since, _) = self.phases();
        let phases = [Phase::Other, Phase::Starved, Phase::Blocked, Phase::Busy];
        (phases[phase], self.origin + Duration::from_nanos(since))
    }

    /// What the actor has done until `now`.
    pub(crate) fn work(&self, now: Instant) -> Work {
        let (phase, since, totals) = self.phases();
        let mut busy = totals[Phase::Busy as usize];
        if phase == Phase::Busy as usize {
            busy += nanos(now.saturating_duration_since(self.origin)).saturating_sub(since);
        }
        Work {
            items: self.items.load(Ordering::Relaxed),
            busy: Duration::from_nanos(busy),
            service: Duration::from_nanos(self.service.load(Ordering::Relaxed)),
        }
    }

    pub(crate) fn snapshot(
        &self,
        name: &str,
        actor: &str,
        device: &str,
        now: Instant,
    ) -> ActorStats {
        let (phase, since, mut totals) = self.phases();
        let now = nanos(now.saturating_duration_since(self.origin));
        totals[phase] += now.saturating_sub(since);
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let min = read(&self.service_min);
        ActorStats {
            name: name.to_owned(),
            actor: actor.to_owned(),
            device: device.to_owned(),
            threads: 0,
            core: None,
            items: read(&self.items),
            errors: read(&self.errors),
            skipped: read(&self.skipped),
            restarts: read(&self.restarts),
            retries: read(&self.retries),
            busy_ns: totals[Phase::Busy as usize],
            starved_ns: totals[Phase::Starved as usize],
            blocked_ns: totals[Phase::Blocked as usize],
            other_ns: totals[Phase::Other as usize],
            service_sum_ns: read(&self.service),
            service_min_ns: if min == u64::MAX { 0 } else { min },
            service_max_ns: read(&self.service_max),
            told: read(&self.told),
            computed_ns: read(&self.computed),
        }
    }
}

/// Adds to a count that the calling thread alone writes.
pub(crate) fn add(count: &AtomicU64, more: u64) {
    count.store(count.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

/// The account of one edge.
#[derive(Default)]
pub(crate) struct EdgeMeter {
    sent: AtomicU64,
    peak: AtomicU64,
}

impl EdgeMeter {
    /// Counts an item into the edge, in front of a join that has taken `taken` items. What lies in
    /// the inbox of an actor with one port is counted by the actor.
    pub(crate) fn send(&self, taken: Option<u64>) {
        let sent = self.sent.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(taken) = taken {
            let level = sent.saturating_sub(taken);
            if level > self.peak.load(Ordering::Relaxed) {
                self.peak.fetch_max(level, Ordering::Relaxed);
            }
        }
    }

    /// The most that ever lay in it.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Items that went in, and the most that ever lay in it.
    pub(crate) fn snapshot(&self) -> (u64, u64) {
        (self.sent.load(Ordering::Relaxed), self.peak.load(Ordering::Relaxed))
    }
}

pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The state that a pipeline is in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PipelineState {
    /// Takes and computes items.
    #[default]
    Running,
    /// Finishes what is in flight, takes nothing more.
    Draining,
    /// Was shut down.
    Stopped,
    /// Failed as a whole: an actor could not be kept alive.
    Failed,
}

/// The figures of a pipeline at one instant. Times are nanoseconds since the spawn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stats {
    /// The name of the pipeline.
    pub name: String,
    /// What it is doing.
    pub state: PipelineState,
    /// Time since it was spawned.
    pub uptime_ns: u64,
    /// Items that hold a credit now.
    pub in_flight: usize,
    /// The most that may.
    pub in_flight_limit: usize,
    /// What waits in front of the pipeline, and what its bytes are.
    pub admission: AdmissionStats,
    /// Items admitted so far.
    pub admitted: u64,
    /// Items with a result, value or error.
    pub completed: u64,
    /// Those of them whose result is an error, but for the filtered ones.
    pub failed: u64,
    /// Those of them that a filter took out.
    pub filtered: u64,
    /// The times from admission to result of the completed items.
    pub latency: Histogram,
    /// When the first item was admitted.
    pub first: Option<Mark>,
    /// When the pipeline was last empty and an item was admitted.
    pub began: Option<Mark>,
    /// When, since then, as many items had been completed as may be in flight. From there on the
    /// pipeline is steady.
    pub filled: Option<Mark>,
    /// The last completion before the last admission: after it, the pipeline only drains.
    pub fed: Option<Mark>,
    /// The last completion.
    pub last: Option<Mark>,
    /// The actors, in the order of the topology; every replica for itself.
    pub actors: Vec<ActorStats>,
    /// The edges, in the order of the topology.
    pub edges: Vec<EdgeStats>,
    /// The devices, in the order in which the actors name them.
    pub devices: Vec<DeviceStats>,
    /// The fan-outs, in the order of the topology.
    pub fan_outs: Vec<FanOutStats>,
    /// The CPU budget of the system that the pipeline belongs to.
    pub cpu: CpuStats,
    /// What the user would want to know of how it was spawned: where it was given fewer threads or
    /// lanes than it asked for, where the CPU budget is exceeded, which threads are not pinned.
    pub notices: Vec<String>,
    /// The last stalls that the [watchdog](crate::Options::watchdog) found, oldest first.
    pub stalls: Vec<Stall>,
    /// How many it found.
    pub stall_count: u64,
    /// Actors whose thread was left behind at a stop, because it was stuck.
    pub detached: Vec<String>,
}

/// An instant, and how many items had been completed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Items completed by then.
    pub items: u64,
    /// The instant, in nanoseconds since the spawn.
    pub at_ns: u64,
}

impl Mark {
    /// Items completed per second from here to `later`; `None` if there was none.
    #[must_use]
    pub fn rate_to(self, later: Self) -> Option<f64> {
        let items = later.items.checked_sub(self.items).filter(|items| *items > 0)?;
        let ns = later.at_ns.checked_sub(self.at_ns).filter(|ns| *ns > 0)?;
        Some(items as f64 * 1e9 / ns as f64)
    }
}

impl Stats {
    /// Items completed per second from the first admission to the last completion: filling, draining
    /// and idleness in between included.
    #[must_use]
    pub fn overall_per_s(&self) -> Option<f64> {
        self.first?.rate_to(self.last?)
    }

    /// Items completed per second since the pipeline was filled and as long as it was fed, measured
    /// between two completions: neither filling nor draining nor idleness is in it. `None` if nothing
    /// was completed in between.
    #[must_use]
    pub fn steady_per_s(&self) -> Option<f64> {
        self.filled?.rate_to(self.fed?)
    }
}

/// What waits in front of a pipeline, what was turned away there, and what its items weigh.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct AdmissionStats {
    /// Items that wait in the queue in front of the credits now.
    pub queued: usize,
    /// The most that may.
    pub queue_capacity: usize,
    /// Items whose result is that they were dropped by the full-queue policy.
    pub dropped: u64,
    /// Items whose result is that they were late or too old before they left the queue.
    pub expired: u64,
    /// Bytes that the payloads of the items in flight keep alive; counted under a byte budget only.
    pub bytes: u64,
    /// The most that ever were.
    pub bytes_peak: u64,
    /// The budget for them, if there is one.
    pub byte_budget: Option<u64>,
    /// The most items that may ever be in flight: what the inboxes have room for.
    pub in_flight_max: usize,
}

/// The budget of a fan-out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct FanOutStats {
    /// The name of its actor.
    pub actor: String,
    /// Children that are in flight now.
    pub children: usize,
    /// The most that ever were.
    pub peak: usize,
    /// The most that may be: [`Options::children`](crate::Options::children).
    pub limit: usize,
}

/// The figures of an actor, or of one replica of it. The four times add up to the time since the spawn.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct ActorStats {
    /// Its name: that of its actor, or `actor/N` for replica `N` of it.
    pub name: String,
    /// The name of its actor in the topology.
    pub actor: String,
    /// Its device.
    pub device: String,
    /// The CPU threads that it was granted; 0 if it asked for none.
    pub threads: usize,
    /// The processor core that its thread is pinned to.
    pub core: Option<usize>,
    /// Firings that its stage was given.
    pub items: u64,
    /// Those of them that ended in an error.
    pub errors: u64,
    /// Items that passed without being computed, because they were errors already.
    pub skipped: u64,
    /// How often its stage was built anew.
    pub restarts: u64,
    /// Items that its stage was given once more, because their firing had gone wrong.
    pub retries: u64,
    /// Computing, or having work queued on its device.
    pub busy_ns: u64,
    /// Waiting for input.
    pub starved_ns: u64,
    /// Having input and waiting for a lane of its device.
    pub blocked_ns: u64,
    /// Matching, handing over, building its stage.
    pub other_ns: u64,
    /// The sum of the times from the start to the end of each firing.
    pub service_sum_ns: u64,
    /// The shortest of those times; 0 before the first firing.
    pub service_min_ns: u64,
    /// The longest of those times.
    pub service_max_ns: u64,
    /// Firings whose stage said how long its device computed for them
    /// ([`Outbox::computed_for`](crate::Outbox::computed_for)): where a queue or a network lies
    /// between.
    pub told: u64,
    /// The sum of what it said.
    pub computed_ns: u64,
}

impl ActorStats {
    /// The mean time of a firing; 0 before the first.
    #[must_use]
    pub fn service_mean_ns(&self) -> u64 {
        self.service_sum_ns.checked_div(self.items).unwrap_or(0)
    }
}

/// The figures of an edge.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EdgeStats {
    /// The giving port, in words.
    pub from: String,
    /// The taking port, in words.
    pub to: String,
    /// The number of the giving actor in [`Stats::actors`]; `None` for a source.
    pub giver: Option<usize>,
    /// The number of the taking actor in [`Stats::actors`]; `None` for a sink.
    pub taker: Option<usize>,
    /// Items that went through it.
    pub sent: u64,
    /// Items that lie in it now: given, and not yet fired for or passed on by the taking actor. At
    /// the sink, items whose other ports are still empty.
    pub level: u64,
    /// The most that ever lay in it.
    pub peak: u64,
    /// The most that can lie in it.
    pub capacity: usize,
    /// The sum of the times that the items which left it had lain in it, from the end of the firing
    /// that gave them to the begin of the one that took them: waiting for the taking actor, for its
    /// other ports, and for a lane.
    pub wait_sum_ns: u64,
}

impl EdgeStats {
    /// The mean time that an item lay in it; 0 before the first left it.
    #[must_use]
    pub fn wait_mean_ns(&self) -> u64 {
        self.wait_sum_ns.checked_div(self.sent.saturating_sub(self.level)).unwrap_or(0)
    }
}

/// The figures of a device. Where pipelines share it, they are those of all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct DeviceStats {
    /// Its device string.
    pub device: String,
    /// Its lanes.
    pub lanes: usize,
    /// Lanes that are held now.
    pub held: usize,
    /// Lanes lost to threads that were left behind.
    pub poisoned: usize,
    /// The time in which at least one of its actors computed.
    pub busy_ns: u64,
    /// How many of its actors compute at once, where it sees to that itself and its lanes let more of
    /// them hand work to it; else its lanes.
    pub computing: usize,
}
