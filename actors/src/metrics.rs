//! Where the time of an actor goes.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::cpu::CpuStats;
use crate::depth::Work;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
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

/// The account of one actor.
pub(crate) struct Meter {
    book: Mutex<Book>,
    /// Items that left the actor's inbox, whichever replica took them.
    pub(crate) taken: Arc<AtomicU64>,
}

#[derive(Clone)]
struct Book {
    phase: Phase,
    since: Instant,
    totals: [Duration; 4],
    items: u64,
    errors: u64,
    skipped: u64,
    restarts: u64,
    retries: u64,
    service: Duration,
    service_min: Option<Duration>,
    service_max: Duration,
}

impl Meter {
    pub(crate) fn new(now: Instant, taken: Arc<AtomicU64>) -> Self {
        Self {
            book: Mutex::new(Book {
                phase: Phase::Other,
                since: now,
                totals: [Duration::ZERO; 4],
                items: 0,
                errors: 0,
                skipped: 0,
                restarts: 0,
                retries: 0,
                service: Duration::ZERO,
                service_min: None,
                service_max: Duration::ZERO,
            }),
            taken,
        }
    }

    /// Enters a phase, and gives the instant.
    pub(crate) fn enter(&self, phase: Phase) -> Instant {
        let mut book = lock(&self.book);
        let now = Instant::now();
        let spent = now.saturating_duration_since(book.since);
        let place = book.phase as usize;
        book.totals[place] += spent;
        book.phase = phase;
        book.since = now;
        now
    }

    /// Counts a firing that took `service`.
    pub(crate) fn fired(&self, service: Duration, failed: bool) {
        let mut book = lock(&self.book);
        book.items += 1;
        book.errors += u64::from(failed);
        book.service += service;
        book.service_min = Some(book.service_min.map_or(service, |min| min.min(service)));
        book.service_max = book.service_max.max(service);
    }

    /// Counts an item that passed as an error.
    pub(crate) fn skipped(&self) {
        lock(&self.book).skipped += 1;
    }

    pub(crate) fn restarted(&self) {
        lock(&self.book).restarts += 1;
    }

    /// Counts an item that is given to its stage once more.
    pub(crate) fn retried(&self) {
        lock(&self.book).retries += 1;
    }

    /// What the actor is doing, and since when.
    pub(crate) fn doing(&self) -> (Phase, Instant) {
        let book = lock(&self.book);
        (book.phase, book.since)
    }

    /// What the actor has done until `now`.
    pub(crate) fn work(&self, now: Instant) -> Work {
        let book = lock(&self.book);
        let running = match book.phase {
            Phase::Busy => now.saturating_duration_since(book.since),
            _ => Duration::ZERO,
        };
        let busy = book.totals[Phase::Busy as usize] + running;
        Work { items: book.items, busy, service: book.service }
    }

    pub(crate) fn snapshot(
        &self,
        name: &str,
        actor: &str,
        device: &str,
        now: Instant,
    ) -> ActorStats {
        let mut book = lock(&self.book).clone();
        let place = book.phase as usize;
        book.totals[place] += now.saturating_duration_since(book.since);
        let time = |phase: Phase| nanos(book.totals[phase as usize]);
        ActorStats {
            name: name.to_owned(),
            actor: actor.to_owned(),
            device: device.to_owned(),
            threads: 0,
            core: None,
            items: book.items,
            errors: book.errors,
            skipped: book.skipped,
            restarts: book.restarts,
            retries: book.retries,
            busy_ns: time(Phase::Busy),
            starved_ns: time(Phase::Starved),
            blocked_ns: time(Phase::Blocked),
            other_ns: time(Phase::Other),
            service_sum_ns: nanos(book.service),
            service_min_ns: nanos(book.service_min.unwrap_or_default()),
            service_max_ns: nanos(book.service_max),
        }
    }
}

/// The account of one edge.
#[derive(Default)]
pub(crate) struct EdgeMeter {
    sent: AtomicU64,
    peak: AtomicU64,
}

impl EdgeMeter {
    /// Counts an item into the edge, in front of an actor that has taken `taken` items.
    pub(crate) fn send(&self, taken: Option<&AtomicU64>) {
        let sent = self.sent.fetch_add(1, Ordering::Relaxed) + 1;
        if let Some(taken) = taken {
            self.peak
                .fetch_max(sent.saturating_sub(taken.load(Ordering::Relaxed)), Ordering::Relaxed);
        }
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PipelineState {
    /// Takes and computes items.
    Running,
    /// Finishes what is in flight, takes nothing more.
    Draining,
    /// Was shut down.
    Stopped,
    /// Failed as a whole: an actor could not be kept alive.
    Failed,
}

/// The figures of a pipeline at one instant. Times are nanoseconds since the spawn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    /// The sum of the times from admission to result of the completed items.
    pub latency_sum_ns: u64,
    /// The longest of those times.
    pub latency_max_ns: u64,
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
}

impl ActorStats {
    /// The mean time of a firing; 0 before the first.
    #[must_use]
    pub fn service_mean_ns(&self) -> u64 {
        self.service_sum_ns.checked_div(self.items).unwrap_or(0)
    }
}

/// The figures of an edge.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct EdgeStats {
    /// The giving port, in words.
    pub from: String,
    /// The taking port, in words.
    pub to: String,
    /// Items that went through it.
    pub sent: u64,
    /// Items that lie in it now, in front of its actor.
    pub level: u64,
    /// The most that ever lay in it.
    pub peak: u64,
    /// The most that can lie in it.
    pub capacity: usize,
}

/// The figures of a device. Where pipelines share it, they are those of all of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
}
