//! What the handle, the source, the actors and the sink of one pipeline share.

use std::collections::{BTreeSet, VecDeque};
use std::task::Waker;
#[cfg(feature = "control")]
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::budget::Budget;
use crate::cpu::{CpuBudget, CpuStats};
use crate::credit::{Bounds, Credits, Wakeups};
use crate::depth::{Tuner, Ways};
use crate::edge::Target;
use crate::error::{ErrorKind, ItemError};
use crate::histogram::Recorder;
use crate::inbox::{Bell, Flags};
use crate::item::{Admission, Item, Outcome, Shape};
use crate::join::Join;
use crate::lane::{Grant, Lanes, Seat};
use crate::metrics::nanos;
use crate::metrics::{
    ActorStats, AdmissionStats, DeviceStats, EdgeMeter, EdgeStats, FanOutStats, Mark, Meter,
    PipelineState, Stats,
};
use crate::packet::{Message, Seq};
use crate::payload::Payload;
use crate::queue::Queue;
use crate::region::{ROOT, RegionId};
use crate::spans;
use crate::sync::{
    Apart, Arc, AtomicU32, AtomicU64, AtomicUsize, Condvar, Mutex, Ordering, Sender, lock, thread,
    wait_until,
};
use crate::topology::{InPort, OutPort};
use crate::trace::{Ring, Trace, TraceActor, TraceEdge};
use crate::watch::Watch;
use crate::weight::Total;

pub(crate) struct Engine<P> {
    pub(crate) name: String,
    pub(crate) origin: Instant,
    pub(crate) credits: Apart<Credits>,
    /// The most items that may ever be in flight: what inboxes have room for.
    pub(crate) capacity: usize,
    pub(crate) queue: Queue<P>,
    /// The bytes in flight, if they are budgeted.
    pub(crate) bytes: Total,
    byte_budget: Option<usize>,
    pub(crate) ways: Ways,
    /// Adapts the number in flight, if that was asked for.
    tuner: Option<Tuner>,
    pub(crate) watch: Option<Watch>,
    pub(crate) flight: Apart<Flight<P>>,
    /// How long a caller looks for a result before it sleeps.
    pub(crate) spin: Duration,
    /// For each source port, who takes from it.
    pub(crate) sources: Vec<Vec<Target<P>>>,
    /// The root first.
    pub(crate) regions: Vec<Region<P>>,
    pub(crate) sink: Join,
    /// For each port of the sink, where the lists of children lie that reach it, if they do.
    pub(crate) listed: Vec<Option<usize>>,
    /// The bytes that the collected children of one item may keep.
    pub(crate) child_bytes: usize,
    /// Ports of the sink whose payloads are the result; the rest are actors that nobody takes from.
    pub(crate) sinks: usize,
    sink_edges: Vec<SinkEdge>,
    pub(crate) actors: Vec<ActorCell<P>>,
    pub(crate) edges: Vec<EdgeCell>,
    pub(crate) devices: Vec<Arc<Lanes>>,
    budget: Arc<CpuBudget>,
    /// What there was to notice when the pipeline was spawned.
    notices: Vec<String>,
    /// The last items that left.
    items: Ring,
    pub(crate) next_stream: AtomicU64,
    /// Why the pipeline ends or ended.
    ending: Mutex<Option<(PipelineState, ItemError)>>,
    exits: Exits,
    admitted: Apart<AtomicU64>,
    counts: Apart<Counts>,
}

/// One region of the topology, while it runs.
pub(crate) struct Region<P> {
    /// What its items are made with.
    pub(crate) shape: Shape,
    /// Items that entered so far: announced before they are sent.
    pub(crate) entered: Apart<AtomicU64>,
    /// The fan-out whose children flow here, and its budget.
    pub(crate) budget: Option<(usize, Arc<Budget>)>,
    /// Where its items leave it.
    pub(crate) ends: Vec<End<P>>,
    /// For each port of the sink that lies behind this region, the list in the parent.
    pub(crate) exits: Vec<Option<usize>>,
}

/// Where the items of a region leave it.
pub(crate) enum End<P> {
    /// At a collect, which has this list in the parent.
    Collect { slot: usize, inbox: Sender<Message<P>> },
    /// At an unbatch.
    Unbatch { inbox: Sender<Message<P>> },
    /// At a port of the sink.
    Sink { port: usize },
}

/// What is known of an actor, or of one replica of it, outside its thread.
pub(crate) struct ActorCell<P> {
    /// Its name in reports: that of the actor, and the number of the replica if there are several.
    pub(crate) name: Arc<str>,
    /// The name of the actor.
    pub(crate) actor: Arc<str>,
    pub(crate) replica: usize,
    /// How many replicas the actor has.
    pub(crate) replicas: usize,
    pub(crate) device: Arc<str>,
    pub(crate) bell: Arc<Bell<P>>,
    pub(crate) meter: Meter,
    pub(crate) ring: Ring,
    /// For each edge that ends here, the sum of the times that items lay in it.
    pub(crate) waited_ns: Box<[AtomicU64]>,
    pub(crate) lane: LaneHold,
    /// The CPU threads that it was granted.
    pub(crate) threads: usize,
    /// The core that its thread runs on, or why it could not be pinned; `None` if it was not to be.
    pub(crate) pinned: Mutex<Option<Result<usize, String>>>,
    /// Firings that its stage takes at a time.
    pub(crate) slots: AtomicUsize,
}

/// The account of an edge into the sink.
pub(crate) struct SinkEdge {
    edge: usize,
    left: AtomicU64,
    waited_ns: AtomicU64,
}

impl SinkEdge {
    // Not const: loom's atomics are not.
    #[allow(clippy::missing_const_for_fn)]
    pub(crate) fn new(edge: usize) -> Self {
        Self { edge, left: AtomicU64::new(0), waited_ns: AtomicU64::new(0) }
    }
}

/// An actor's hold on a lane of its device.
pub(crate) struct LaneHold {
    pub(crate) lanes: Arc<Lanes>,
    pub(crate) seat: Arc<Seat>,
    /// `FREE`, `HELD`, or held by a thread that was left behind.
    state: AtomicU32,
}

const FREE: u32 = 0;
const HELD: u32 = 1;
const POISONED: u32 = 2;

pub(crate) struct EdgeCell {
    pub(crate) meter: Apart<EdgeMeter>,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) giver: OutPort,
    /// The actor by the number of its first replica, as everywhere in the engine.
    pub(crate) taker: InPort,
    pub(crate) capacity: usize,
    /// It leads to a collect: nothing lies in it, the parents gather what went through.
    pub(crate) gathers: bool,
}

struct Counts {
    completed: AtomicU64,
    failed: AtomicU64,
    filtered: AtomicU64,
    latency: Recorder,
    /// Results of items that were never let in: they are no throughput.
    turned_away: AtomicU64,
    /// When the first item was admitted.
    first_ns: AtomicU64,
    /// When the pipeline was last empty and an item was admitted, and the items completed by then.
    began_ns: AtomicU64,
    began_items: AtomicU64,
    /// When, since then, as many items had been completed as may be in flight, and all of them.
    filled_ns: AtomicU64,
    fill: AtomicU64,
    /// The last completion before the last admission.
    fed_ns: AtomicU64,
    fed_items: AtomicU64,
    last_ns: AtomicU64,
}

impl Counts {
    fn new() -> Self {
        Self {
            completed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            filtered: AtomicU64::new(0),
            latency: Recorder::new(),
            turned_away: AtomicU64::new(0),
            first_ns: AtomicU64::new(0),
            began_ns: AtomicU64::new(0),
            began_items: AtomicU64::new(0),
            filled_ns: AtomicU64::new(0),
            fill: AtomicU64::new(0),
            fed_ns: AtomicU64::new(0),
            fed_items: AtomicU64::new(0),
            last_ns: AtomicU64::new(0),
        }
    }
}

/// The parts of an engine that the spawn wires up.
pub(crate) struct Wiring<P> {
    pub(crate) name: String,
    pub(crate) bounds: Bounds,
    pub(crate) capacity: usize,
    pub(crate) spin: Duration,
    pub(crate) queue: Queue<P>,
    pub(crate) ways: Ways,
    pub(crate) tuner: Option<Tuner>,
    pub(crate) watch: Option<Watch>,
    pub(crate) sources: Vec<Vec<Target<P>>>,
    pub(crate) regions: Vec<Region<P>>,
    pub(crate) sink: Join,
    pub(crate) listed: Vec<Option<usize>>,
    pub(crate) child_bytes: usize,
    pub(crate) sinks: usize,
    pub(crate) sink_edges: Vec<SinkEdge>,
    pub(crate) actors: Vec<ActorCell<P>>,
    pub(crate) edges: Vec<EdgeCell>,
    pub(crate) devices: Vec<Arc<Lanes>>,
    pub(crate) budget: Arc<CpuBudget>,
    pub(crate) notices: Vec<String>,
    pub(crate) origin: Instant,
    /// Events to keep per actor.
    pub(crate) trace: usize,
}

fn load(count: &AtomicU64) -> u64 {
    count.load(Ordering::Relaxed)
}

impl Counts {
    /// Items that came through.
    fn through(&self) -> u64 {
        self.completed.load(Ordering::Acquire).saturating_sub(load(&self.turned_away))
    }

    /// An item enters behind `admitted_before` others. If all of them are done the pipeline was empty,
    /// and as many completions as `limit` will have filled it. What was completed so far was completed
    /// while the pipeline was fed.
    fn feed(&self, admitted_before: u64, at_ns: u64, limit: impl FnOnce() -> usize) {
        let completed = self.completed.load(Ordering::Acquire);
        let items = completed.saturating_sub(load(&self.turned_away));
        if admitted_before == completed {
            self.filled_ns.store(0, Ordering::Relaxed);
            self.fill.store(items + limit() as u64, Ordering::Relaxed);
            self.began_items.store(items, Ordering::Relaxed);
            self.began_ns.store(at_ns.max(1), Ordering::Relaxed);
            if load(&self.first_ns) == 0 {
                self.first_ns.store(at_ns.max(1), Ordering::Relaxed);
            }
        }
        self.fed_items.store(items, Ordering::Relaxed);
        self.fed_ns.store(load(&self.last_ns), Ordering::Relaxed);
    }

    fn mark(at_ns: &AtomicU64, items: u64) -> Option<Mark> {
        let at_ns = load(at_ns);
        (at_ns > 0).then_some(Mark { items, at_ns })
    }
}

impl EdgeCell {
    const fn giver(&self) -> Option<usize> {
        match self.giver {
            OutPort::Source(_) => None,
            OutPort::Actor { actor, .. } => Some(actor),
        }
    }
}

impl<P: 'static> Engine<P> {
    pub(crate) fn new(wiring: Wiring<P>) -> Self {
        Self {
            name: wiring.name,
            origin: wiring.origin,
            flight: Apart(Flight::new(wiring.capacity.saturating_add(wiring.queue.capacity))),
            spin: wiring.spin,
            credits: Apart(Credits::new(wiring.bounds)),
            capacity: wiring.capacity,
            queue: wiring.queue,
            bytes: Total::default(),
            byte_budget: wiring.bounds.bytes,
            ways: wiring.ways,
            tuner: wiring.tuner,
            watch: wiring.watch,
            sources: wiring.sources,
            regions: wiring.regions,
            sink: wiring.sink,
            listed: wiring.listed,
            child_bytes: wiring.child_bytes,
            sinks: wiring.sinks,
            sink_edges: wiring.sink_edges,
            exits: Exits::new(wiring.actors.len()),
            actors: wiring.actors,
            edges: wiring.edges,
            devices: wiring.devices,
            budget: wiring.budget,
            notices: wiring.notices,
            items: Ring::new(wiring.trace),
            next_stream: AtomicU64::new(0),
            ending: Mutex::new(None),
            admitted: Apart::default(),
            counts: Apart(Counts::new()),
        }
    }

    pub(crate) const fn exits(&self) -> &Exits {
        &self.exits
    }

    /// Why the pipeline ends or ended; `None` while it runs.
    pub(crate) fn ending(&self) -> Option<(PipelineState, ItemError)> {
        lock(&self.ending).clone()
    }

    /// True once the items in flight were given up.
    pub(crate) fn has_stopped(&self) -> bool {
        let ending = lock(&self.ending);
        matches!(*ending, Some((PipelineState::Stopped | PipelineState::Failed, _)))
    }

    /// Takes no more items; those in flight go on.
    pub(crate) fn begin_drain(&self) {
        let cause = ItemError::new(ErrorKind::Shutdown, "the pipeline is draining");
        {
            let mut ending = lock(&self.ending);
            if ending.is_none() {
                *ending = Some((PipelineState::Draining, cause.clone()));
            }
        }
        self.credits.close(cause);
        self.ring_all(Flags::FLUSH);
    }

    pub(crate) fn ring_all(&self, flag: u32) {
        for actor in &self.actors {
            actor.bell.ring(flag);
        }
    }

    /// Counts an admission and gives it its place in flight.
    pub(crate) fn enter(&self, admission: Admission<P>) -> Result<Arc<Item<P>>, ItemError> {
        let item = self.flight.insert(admission, &self.regions[ROOT].shape)?;
        let before = self.admitted.fetch_add(1, Ordering::Relaxed);
        self.counts.feed(before, self.time(item.admitted), || self.credits.limit());
        Ok(item)
    }

    /// Gives an item its result and its credit back; nobody sees the one without the other. Gives
    /// the wakers of who waited for either.
    fn settle(&self, item: &Item<P>, outcome: Outcome<P>) -> Option<Wakeups> {
        let complete = outcome.is_ok();
        let filtered = matches!(&outcome, Err(error) if error.is_filtered());
        let failed = !complete && !filtered;
        let wakeups = item.result.conclude(outcome, |first| {
            self.count_result(item, failed || !first);
            if filtered && first {
                self.counts.filtered.fetch_add(1, Ordering::Relaxed);
            }
            let charge = if self.credits.weighs() {
                item.weight.retire(complete && first, &self.bytes, &self.credits)
            } else {
                0
            };
            self.credits.release(charge)
        });
        if item.stream.is_some() {
            self.flight.forget(item);
        }
        wakeups
    }

    /// Gives an item that holds no credit its result.
    pub(crate) fn settle_queued(&self, item: &Item<P>, error: ItemError) {
        item.leave_queue();
        item.result.conclude(Err(error), |_| {
            self.counts.turned_away.fetch_add(1, Ordering::Relaxed);
            self.count_result(item, true);
        });
    }

    fn count_result(&self, item: &Item<P>, failed: bool) {
        let at = Instant::now();
        let now = self.time(at).max(1);
        let counts = &self.counts;
        counts.latency.record(nanos(at.saturating_duration_since(item.admitted)));
        counts.last_ns.fetch_max(now, Ordering::Relaxed);
        let completed = counts.completed.fetch_add(1, Ordering::Release) + 1;
        if completed.saturating_sub(load(&counts.turned_away)) == load(&counts.fill) {
            counts.filled_ns.store(now, Ordering::Relaxed);
        }
        if failed {
            counts.failed.fetch_add(1, Ordering::Relaxed);
        }
        self.items.record(item.seq.number(), self.time(item.admitted), now);
        for sink in &self.sink_edges {
            let since = item.cells.stamped(sink.edge);
            if since > 0 {
                sink.left.fetch_add(1, Ordering::Relaxed);
                sink.waited_ns.fetch_add(now.saturating_sub(since), Ordering::Relaxed);
            }
        }
    }

    /// Ends the pipeline: every item in flight gets `cause` as its result, every push is refused
    /// with it, every actor is told. Does not wait. The first cause stays.
    pub(crate) fn stop(&self, state: PipelineState, cause: &ItemError) {
        {
            let mut ending = lock(&self.ending);
            match &*ending {
                Some((PipelineState::Stopped | PipelineState::Failed, _)) => return,
                _ => *ending = Some((state, cause.clone())),
            }
        }
        spans::stopped(&self.name, state, cause);
        self.credits.close(cause.clone());
        let left = self.flight.close(cause);
        self.credits.abandon();
        self.queue.clear();
        for item in left {
            self.count_result(&item, true);
            item.abort(cause.clone());
            if let Some(stream) = &item.stream {
                stream.abandon();
            }
        }
        self.ring_all(Flags::STOP);
        for lanes in &self.devices {
            lanes.interrupt();
        }
        for (_, budget) in self.regions.iter().filter_map(|region| region.budget.as_ref()) {
            budget.interrupt();
        }
        if let Some(watch) = &self.watch {
            watch.end();
        }
    }

    /// Gives every item in flight `error` as its result, and asks the stages that hold one to
    /// cancel it. The credits come back as the items come through.
    pub(crate) fn fail_items(&self, error: &ItemError) {
        for item in self.flight.all() {
            item.abort(error.clone());
        }
        self.ring_all(Flags::CANCEL);
    }

    /// Items with a result.
    pub(crate) fn completed(&self) -> u64 {
        self.counts.completed.load(Ordering::Relaxed)
    }

    /// Items that lie in an edge, in front of its actor.
    pub(crate) fn level(&self, edge: usize) -> u64 {
        let sent = self.edges[edge].meter.snapshot().0;
        self.taken_from(edge).1.map_or(0, |left| sent.saturating_sub(left))
    }

    /// An actor, by its first replica, and the others.
    fn replicas(&self, first: usize) -> &[ActorCell<P>] {
        self.actors.get(first..).map_or(&[], |rest| &rest[..rest.len().min(rest[0].replicas)])
    }

    /// Items that an actor took, whichever replica did.
    pub(crate) fn taken(&self, first: usize) -> u64 {
        let replicas = self.replicas(first).iter();
        replicas.map(|cell| cell.meter.taken.load(Ordering::Relaxed)).sum()
    }

    /// Whether an edge arrives at this actor.
    pub(crate) fn leads_to(&self, edge: usize, me: usize) -> bool {
        let first = me - self.actors[me].replica;
        matches!(self.edges[edge].taker, InPort::Actor { actor, .. } if actor == first)
    }

    /// Whether an actor makes children and has as many alive as may be.
    pub(crate) fn is_out_of_children(&self, me: usize) -> bool {
        let budgets = self.regions.iter().filter_map(|region| region.budget.as_ref());
        let mut own = budgets.filter(|(maker, _)| *maker == me);
        own.any(|(_, budget)| budget.level().0 >= budget.limit())
    }

    /// `bytes` came into being that belong to an item.
    pub(crate) fn hold_bytes(&self, item: &Item<P>, bytes: usize) {
        item.for_roots(bytes, &mut |root, bytes| {
            root.weight.add(bytes, &self.bytes, &self.credits);
        });
    }

    /// `bytes` that belonged to an item are gone.
    pub(crate) fn drop_bytes(&self, item: &Item<P>, bytes: usize) {
        item.for_roots(bytes, &mut |root, bytes| root.weight.sub(bytes, &self.bytes));
    }

    /// An instant as nanoseconds since the spawn.
    pub(crate) fn time(&self, at: Instant) -> u64 {
        nanos(at.saturating_duration_since(self.origin))
    }

    pub(crate) fn stats(&self) -> Stats {
        let now = Instant::now();
        let actors: Vec<ActorStats> = self
            .actors
            .iter()
            .map(|cell| {
                let meter = cell.meter.snapshot(&cell.name, &cell.actor, &cell.device, now);
                let core =
                    lock(&cell.pinned).as_ref().and_then(|pinned| pinned.as_ref().ok().copied());
                ActorStats { threads: cell.threads, core, ..meter }
            })
            .collect();
        let edges = self.edges.iter().enumerate().map(|(number, edge)| {
            let (taker, _, wait_sum_ns) = self.taken_from(number);
            let (sent, mut peak) = edge.meter.snapshot();
            if let (Some(taker), false) = (taker, edge.gathers) {
                let peaks = self.replicas(taker).iter().map(|cell| cell.meter.peak());
                peak = peaks.fold(peak, u64::max);
            }
            EdgeStats {
                from: edge.from.clone(),
                to: edge.to.clone(),
                giver: edge.giver(),
                taker,
                sent,
                level: self.level(number),
                peak,
                capacity: edge.capacity,
                wait_sum_ns,
            }
        });
        let devices = self.devices.iter().map(|lanes| {
            let (total, held, poisoned, busy) = lanes.snapshot(now);
            DeviceStats {
                device: lanes.device.to_string(),
                lanes: total,
                held,
                poisoned,
                busy_ns: nanos(busy),
            }
        });
        let fan_outs = self.regions.iter().filter_map(|region| {
            let (maker, budget) = region.budget.as_ref()?;
            let (children, peak) = budget.level();
            let actor = self.actors[*maker].name.to_string();
            Some(FanOutStats { actor, children, peak, limit: budget.limit() })
        });
        let detached = self.exits.left_behind();
        let (budget, used) = self.budget.level();
        let (stalls, stall_count) = self.watch.as_ref().map(Watch::snapshot).unwrap_or_default();
        Stats {
            name: self.name.clone(),
            state: self.ending().map_or(PipelineState::Running, |(state, _)| state),
            uptime_ns: self.time(now),
            in_flight: self.credits.used(),
            in_flight_limit: self.credits.limit(),
            admission: self.admission(),
            admitted: self.admitted.load(Ordering::Relaxed),
            completed: self.counts.completed.load(Ordering::Relaxed),
            failed: self.counts.failed.load(Ordering::Relaxed),
            filtered: load(&self.counts.filtered),
            latency: self.counts.latency.snapshot(),
            first: Counts::mark(&self.counts.first_ns, 0),
            began: Counts::mark(&self.counts.began_ns, load(&self.counts.began_items)),
            filled: Counts::mark(&self.counts.filled_ns, load(&self.counts.fill)),
            fed: Counts::mark(&self.counts.fed_ns, load(&self.counts.fed_items)),
            last: Counts::mark(&self.counts.last_ns, self.counts.through()),
            actors,
            edges: edges.collect(),
            devices: devices.collect(),
            fan_outs: fan_outs.collect(),
            cpu: CpuStats { budget, used },
            notices: self.notices(),
            stalls,
            stall_count,
            detached: detached.iter().map(|&me| self.actors[me].name.to_string()).collect(),
        }
    }

    fn notices(&self) -> Vec<String> {
        let mut notices = self.notices.clone();
        for cell in &self.actors {
            if let Some(Err(why)) = &*lock(&cell.pinned) {
                notices.push(format!("the thread of actor `{}` is not pinned: {why}", cell.name));
            }
        }
        notices
    }

    /// Of an edge: the actor that takes from it, the items that left it if they lie there at all, and
    /// the sum of their waits.
    fn taken_from(&self, edge: usize) -> (Option<usize>, Option<u64>, u64) {
        match self.edges[edge].taker {
            InPort::Actor { actor, .. } => {
                // The edges of an actor in the order of the topology; ports may be in another.
                let ends_there = |other: &&EdgeCell| matches!(other.taker, InPort::Actor { actor: a, .. } if a == actor);
                let place = self.edges[..edge].iter().filter(ends_there).count();
                let replicas = self.replicas(actor).iter();
                let waits = replicas.filter_map(|cell| cell.waited_ns.get(place));
                let waited = waits.map(load).sum();
                let left = (!self.edges[edge].gathers).then(|| self.taken(actor));
                (Some(actor), left, waited)
            }
            InPort::Sink(_) => {
                let sink = self.sink_edges.iter().find(|sink| sink.edge == edge);
                sink.map_or((None, None, 0), |sink| {
                    (None, Some(load(&sink.left)), load(&sink.waited_ns))
                })
            }
        }
    }

    fn admission(&self) -> AdmissionStats {
        let (held, peak) = self.bytes.snapshot();
        AdmissionStats {
            queued: self.credits.queued(),
            queue_capacity: self.queue.capacity,
            dropped: self.queue.dropped.load(Ordering::Relaxed),
            expired: self.queue.expired.load(Ordering::Relaxed),
            // What a stop left behind is not counted down any more.
            bytes: if self.has_stopped() { 0 } else { held as u64 },
            bytes_peak: peak as u64,
            byte_budget: self.byte_budget.map(|bytes| bytes as u64),
            in_flight_max: self.capacity,
        }
    }

    pub(crate) fn trace(&self) -> Trace {
        let mut trace = Trace { pipeline: self.name.clone(), ..Trace::default() };
        for (number, edge) in self.edges.iter().enumerate() {
            let name = format!("{} to {}", edge.from, edge.to);
            let to = self.taken_from(number).0;
            trace.edges.push(TraceEdge { name, from: edge.giver(), to });
        }
        // An item is in one list or the other, or in both; never in none.
        let in_flight = self.flight.open();
        let in_flight = in_flight.into_iter().map(|(seq, at)| (seq.number(), self.time(at)));
        self.items.export_items(in_flight.collect(), &mut trace);
        for (me, actor) in self.actors.iter().enumerate() {
            trace.actors.push(TraceActor {
                name: actor.name.to_string(),
                device: actor.device.to_string(),
            });
            actor.ring.export(me, &mut trace);
        }
        trace.events.sort_by_key(|event| (event.start_ns, event.actor));
        trace
    }
}

impl<P: Payload> Engine<P> {
    /// Gives an item its result and its credit back, and lets the next one in from the queue.
    pub(crate) fn retire(self: &Arc<Self>, item: &Item<P>, outcome: Outcome<P>) {
        let Some(wakeups) = self.settle(item, outcome) else {
            return;
        };
        let (queued, full) = (wakeups.queued, wakeups.full);
        wakeups.wake();
        if queued {
            self.pump();
        }
        if let Some(tuner) = &self.tuner {
            self.tune(tuner, full);
        }
    }

    /// Puts an admitted item's inputs onto its edges. Never blocks.
    pub(crate) fn inject(self: &Arc<Self>, item: &Arc<Item<P>>, mut inputs: Vec<P>, at_ns: u64) {
        self.enters(ROOT, 1);
        if self.sink.ports == 0 {
            self.finish(item);
        }
        let last = inputs.pop();
        for (targets, payload) in self.sources.iter().zip(inputs.drain(..)) {
            self.send(targets, Arc::clone(item), payload, at_ns);
        }
        // The item cannot be finished before its last payload is sent: its result finds the vector.
        item.result.lend(inputs);
        if let (Some(targets), Some(payload)) = (self.sources.last(), last) {
            self.send(targets, Arc::clone(item), payload, at_ns);
        }
    }
}

impl<P> Engine<P> {
    /// Announces items that are about to be sent into a region.
    pub(crate) fn enters(&self, region: RegionId, items: usize) {
        self.regions[region].entered.fetch_add(items as u64, Ordering::AcqRel);
    }
}

impl LaneHold {
    pub(crate) fn new(lanes: Arc<Lanes>, seat: Arc<Seat>) -> Self {
        Self { lanes, seat, state: AtomicU32::new(FREE) }
    }

    /// Takes a lane at `now`, if one is free.
    pub(crate) fn try_acquire(&self, now: Instant) -> bool {
        let held = self.lanes.try_acquire(&self.seat, now);
        if held {
            self.state.store(HELD, Ordering::Release);
        }
        held
    }

    pub(crate) fn acquire(&self, seq: Seq, stop: impl Fn() -> bool) -> Grant {
        let grant = self.lanes.acquire(&self.seat, seq, stop);
        if grant == Grant::Held {
            self.state.store(HELD, Ordering::Release);
        }
        grant
    }

    /// Gives the lane back at `now`, if one is held.
    pub(crate) fn release(&self, now: Instant) {
        let before = self.state.swap(FREE, Ordering::AcqRel);
        if before == POISONED {
            self.lanes.cure();
        }
        if before != FREE {
            self.lanes.release(now);
        }
    }

    fn poison(&self) {
        let marked =
            self.state.compare_exchange(HELD, POISONED, Ordering::AcqRel, Ordering::Acquire);
        if marked.is_ok() {
            self.lanes.poison();
        }
    }
}

/// The items in flight: what a stop has to settle. The sink does not come here: it marks an item as
/// retired, and an admission takes one that is marked and that nobody holds for the next item.
pub(crate) struct Flight<P>(Mutex<Table<P>>);

struct Table<P> {
    /// In flight or retired, about in the order of their admission.
    items: VecDeque<Arc<Item<P>>>,
    /// How many are kept where many retired ones are still held, by tickets.
    most: usize,
    next_seq: u64,
    closed: Option<ItemError>,
}

/// How many items an admission looks at before it makes a new one.
const LOOKS: usize = 4;

impl<P> Flight<P> {
    /// A table for at most `capacity` items in flight.
    fn new(capacity: usize) -> Self {
        // Callers may have as many results to take as items in flight.
        let most = capacity.saturating_mul(2).saturating_add(LOOKS);
        let items = VecDeque::new();
        Self(Mutex::new(Table { items, most, next_seq: 0, closed: None }))
    }

    fn insert(&self, admission: Admission<P>, shape: &Shape) -> Result<Arc<Item<P>>, ItemError> {
        let mut table = lock(&self.0);
        if let Some(cause) = &table.closed {
            return Err(cause.clone());
        }
        let seq = Seq::new(table.next_seq);
        table.next_seq += 1;
        let item = table.renewed(seq, admission, shape);
        table.items.push_back(Arc::clone(&item));
        Ok(item)
    }

    /// Takes an item out that must not be kept: one of a stream would keep what the stream carries.
    fn forget(&self, item: &Item<P>) {
        let mut table = lock(&self.0);
        let place = table.items.iter().position(|other| other.seq == item.seq);
        let forgotten = place.and_then(|place| table.items.remove(place));
        drop(table);
        drop(forgotten);
    }

    /// The numbers of the items in flight, and when they were admitted.
    fn open(&self) -> Vec<(Seq, Instant)> {
        let table = lock(&self.0);
        let open = table.items.iter().filter(|item| !item.result.is_retired());
        open.map(|item| (item.seq, item.admitted)).collect()
    }

    fn all(&self) -> Vec<Arc<Item<P>>> {
        let table = lock(&self.0);
        table.items.iter().filter(|item| !item.result.is_retired()).cloned().collect()
    }

    /// The lowest number in flight.
    pub(crate) fn oldest(&self) -> Option<Seq> {
        let table = lock(&self.0);
        let left = table.items.iter().filter(|item| !item.result.is_retired());
        left.map(|item| item.seq).min()
    }

    /// Takes no more items, and retires those that are left.
    fn close(&self, cause: &ItemError) -> Vec<Arc<Item<P>>> {
        let mut table = lock(&self.0);
        table.closed.get_or_insert_with(|| cause.clone());
        std::mem::take(&mut table.items).into_iter().filter(|item| item.result.retire()).collect()
    }
}

impl<P> Table<P> {
    /// An item of which nobody has a handle, used before or new.
    fn renewed(&mut self, seq: Seq, admission: Admission<P>, shape: &Shape) -> Arc<Item<P>> {
        for _ in 0..LOOKS.min(self.items.len()) {
            let Some(mut item) = self.items.pop_front() else {
                break;
            };
            if let Some(unheld) = Arc::get_mut(&mut item)
                && unheld.result.is_retired()
            {
                unheld.renew(seq, admission, shape);
                return item;
            }
            if self.items.len() < self.most || !item.result.is_retired() {
                self.items.push_back(item);
            }
        }
        Arc::new(Item::new(seq, admission, shape))
    }
}

/// Which actor threads have ended.
pub(crate) struct Exits {
    state: Mutex<Threads>,
    changed: Condvar,
}

struct Threads {
    running: BTreeSet<usize>,
    ids: Vec<Option<thread::ThreadId>>,
    left_behind: BTreeSet<usize>,
    wakers: Vec<Waker>,
}

impl Exits {
    fn new(actors: usize) -> Self {
        let threads = Threads {
            running: BTreeSet::new(),
            ids: vec![None; actors],
            left_behind: BTreeSet::new(),
            wakers: Vec::new(),
        };
        Self { state: Mutex::new(threads), changed: Condvar::new() }
    }

    /// Counts a thread as running; called before it is spawned.
    pub(crate) fn starting(&self, me: usize) {
        lock(&self.state).running.insert(me);
    }

    pub(crate) fn started(&self, me: usize) {
        lock(&self.state).ids[me] = Some(thread::current().id());
    }

    pub(crate) fn ended(&self, me: usize) {
        let mut state = lock(&self.state);
        state.running.remove(&me);
        state.left_behind.remove(&me);
        self.changed.notify_all();
        if state.running.is_empty() {
            let wakers = std::mem::take(&mut state.wakers);
            drop(state);
            wakers.into_iter().for_each(Waker::wake);
        }
    }

    /// Ready once every actor thread has ended.
    #[cfg(feature = "control")]
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<()> {
        let mut state = lock(&self.state);
        if state.running.is_empty() {
            return Poll::Ready(());
        }
        if !state.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            state.wakers.push(context.waker().clone());
        }
        Poll::Pending
    }

    fn left_behind(&self) -> Vec<usize> {
        lock(&self.state).left_behind.iter().copied().collect()
    }

    /// Waits until every actor thread but the calling one has ended, and gives those that have not
    /// when `deadline` passes.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> Vec<usize> {
        let me = thread::current().id();
        let mut state = lock(&self.state);
        loop {
            let others = |state: &Threads| -> Vec<usize> {
                let running = state.running.iter().copied();
                running.filter(|&actor| state.ids[actor] != Some(me)).collect()
            };
            let left = others(&state);
            if left.is_empty() || deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                state.left_behind.extend(&left);
                return left;
            }
            state = wait_until(&self.changed, state, deadline);
        }
    }
}

impl<P> Engine<P> {
    /// Leaves the threads of these actors behind: their lanes count as lost until they come back.
    pub(crate) fn leave_behind(&self, actors: &[usize]) {
        for &me in actors {
            spans::left_behind(&self.actors[me].name);
            self.actors[me].lane.poison();
        }
    }
}
