//! What the handle, the source, the actors and the sink of one pipeline share.

use std::time::{Duration, Instant};

use crate::budget::Budget;
use crate::counts::Verdict;
use crate::cpu::CpuBudget;
use crate::credit::{Bounds, Credits, Ledger, Wakeups};
use crate::depth::{Tuner, Ways};
use crate::edge::Target;
use crate::error::{ErrorKind, ItemError};
use crate::exits::Exits;
use crate::flight::Flight;
use crate::histogram::Recorder;
use crate::inbox::{Bell, Flags};
use crate::item::{Admission, Item, Shape};
use crate::join::Join;
use crate::lane::{LaneHold, Lanes};
use crate::metrics::{EdgeMeter, Meter, PipelineState, nanos};
use crate::packet::{Message, Stamp};
use crate::payload::Payload;
use crate::queue::Queue;
use crate::region::{ROOT, RegionId};
use crate::result::Settlement;
use crate::spans;
use crate::sync::{Apart, Arc, AtomicU64, AtomicUsize, Mutex, Ordering, Sender, lock};
use crate::topology::{InPort, OutPort};
use crate::trace::Ring;
use crate::watch::Watch;
use crate::weight::Total;

pub(crate) struct Engine<P> {
    pub(crate) name: String,
    pub(crate) origin: Instant,
    /// Beside the credits the account of the items.
    pub(crate) credits: Apart<Credits<Arc<Item<P>>>>,
    /// The most items that may ever be in flight: what inboxes have room for.
    pub(crate) capacity: usize,
    pub(crate) queue: Queue<P>,
    /// The bytes in flight, if they are budgeted.
    pub(crate) bytes: Total,
    pub(crate) byte_budget: Option<usize>,
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
    pub(crate) sink_edges: Vec<SinkEdge>,
    pub(crate) actors: Vec<ActorCell<P>>,
    pub(crate) edges: Vec<EdgeCell>,
    pub(crate) devices: Vec<Arc<Lanes>>,
    /// How many actors compute at once on a device that sees to that itself.
    pub(crate) computing: Vec<(String, usize)>,
    pub(crate) budget: Arc<CpuBudget>,
    /// What there was to notice when the pipeline was spawned.
    pub(crate) notices: Vec<String>,
    /// The last items that left.
    pub(crate) items: Ring,
    pub(crate) next_stream: AtomicU64,
    /// Why the pipeline ends or ended.
    ending: Mutex<Option<(PipelineState, ItemError)>>,
    pub(crate) exits: Exits,
    /// Items that a stop gave up.
    pub(crate) given_up: AtomicUsize,
    /// The times from admission to result.
    pub(crate) latency: Apart<Recorder>,
}

/// One region of the topology, while it runs.
pub(crate) struct Region<P> {
    /// What its items are made with.
    pub(crate) shape: Shape,
    /// Whether a batch takes from it, and so has to know what entered.
    pub(crate) batched: bool,
    /// Items that entered so far, where that is asked for: announced before they are sent.
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
    /// The memory that its payloads lie in.
    pub(crate) memory: Arc<str>,
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
    pub(crate) edge: usize,
    pub(crate) left: AtomicU64,
    pub(crate) waited_ns: AtomicU64,
}

impl SinkEdge {
    // Not const: loom's atomics are not.
    pub(crate) fn new(edge: usize) -> Self {
        Self { edge, left: AtomicU64::new(0), waited_ns: AtomicU64::new(0) }
    }
}

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
    pub(crate) computing: Vec<(String, usize)>,
    pub(crate) budget: Arc<CpuBudget>,
    pub(crate) notices: Vec<String>,
    pub(crate) origin: Instant,
    /// Events to keep per actor.
    pub(crate) trace: usize,
}

impl EdgeCell {
    pub(crate) const fn giver(&self) -> Option<usize> {
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
            credits: Apart(Credits::new(wiring.bounds, wiring.origin)),
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
            given_up: AtomicUsize::new(0),
            actors: wiring.actors,
            edges: wiring.edges,
            devices: wiring.devices,
            computing: wiring.computing,
            budget: wiring.budget,
            notices: wiring.notices,
            items: Ring::new(wiring.trace),
            next_stream: AtomicU64::new(0),
            ending: Mutex::new(None),
            latency: Apart(Recorder::new()),
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

    /// Gives an item that was counted its place in flight.
    pub(crate) fn enter(&self, admission: Admission<P>) -> Result<Arc<Item<P>>, ItemError> {
        self.flight.insert(admission, &self.regions[ROOT].shape)
    }

    /// Gives an item its result and its credit back; nobody sees the one without the other. Gives the
    /// wakers of who waited for either.
    fn settle(
        &self,
        item: Arc<Item<P>>,
        settlement: Settlement<P>,
        now_ns: u64,
    ) -> Option<Wakeups> {
        let verdict = settlement.verdict();
        // Locked before the result, so that the wait for its cache line does not fall between the
        // first and the last look at that of the result.
        let mut ledger = self.credits.open();
        let (wakeups, aftermath) = item.result.conclude(settlement, |first| {
            let counted = if first { verdict } else { Verdict::Failed };
            self.count_result(&mut ledger, &item, counted, now_ns);
            let mut charge = 0;
            if self.credits.weighs() {
                let complete = verdict == Verdict::Value && first;
                charge = item.weight.retire(complete, &self.bytes, |extra| ledger.learn(extra));
            }
            ledger.release(charge)
        });
        if aftermath.wakes() || item.stream.is_some() || wakeups.is_none() {
            drop(ledger);
            item.result.attend(aftermath);
            if item.stream.is_some() {
                self.flight.forget(&item);
            }
        } else {
            let handle = ledger.keep(item);
            drop(ledger);
            drop(handle);
            aftermath.discard();
        }
        wakeups
    }

    /// Gives an item that holds no credit its result.
    pub(crate) fn settle_queued(&self, item: &Item<P>, error: ItemError) {
        item.leave_queue();
        let now = self.time(Instant::now());
        let mut ledger = self.credits.open();
        let (_, aftermath) = item.result.conclude(Settlement::Whole(Err(error)), |_| {
            self.count_result(&mut ledger, item, Verdict::TurnedAway, now);
        });
        drop(ledger);
        item.result.attend(aftermath);
    }

    fn count_result(
        &self,
        ledger: &mut Ledger<'_, Arc<Item<P>>>,
        item: &Item<P>,
        verdict: Verdict,
        now_ns: u64,
    ) {
        let now = now_ns.max(1);
        let admitted = item.result.admitted_ns;
        ledger.counts().result(now, verdict);
        self.latency.record(now.saturating_sub(admitted));
        if self.items.is_on() {
            self.items.record(item.seq().number(), admitted, now);
        }
        if self.sink.ports == 1 {
            // Nothing lies in the edge into a sink of one port.
            return;
        }
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
        self.given_up.store(left.len(), Ordering::Release);
        self.credits.abandon();
        self.queue.clear();
        for item in left {
            let now = self.time(Instant::now());
            self.count_result(&mut self.credits.open(), &item, Verdict::Failed, now);
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
        self.credits.counts().completed
    }

    /// Items that lie in an edge, in front of its actor.
    pub(crate) fn level(&self, edge: usize) -> u64 {
        let sent = self.edges[edge].meter.snapshot().0;
        self.taken_from(edge).1.map_or(0, |left| sent.saturating_sub(left))
    }

    /// An actor, by its first replica, and the others.
    pub(crate) fn replicas(&self, first: usize) -> &[ActorCell<P>] {
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
}

impl<P: Payload> Engine<P> {
    /// Gives an item its result and its credit back, and lets the next one in from the queue.
    pub(crate) fn retire(
        self: &Arc<Self>,
        item: Arc<Item<P>>,
        settlement: Settlement<P>,
        now_ns: u64,
    ) {
        let Some(wakeups) = self.settle(item, settlement, now_ns) else {
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
        let stamp = Stamp { number: item.seq().number(), at_ns: at_ns.max(1) };
        let last = inputs.pop();
        for (targets, payload) in self.sources.iter().zip(inputs.drain(..)) {
            self.send(targets, Arc::clone(item), payload, stamp);
        }
        // The item cannot be finished before its last payload is sent: its result finds the vector.
        item.result.lend(inputs);
        if let (Some(targets), Some(payload)) = (self.sources.last(), last) {
            self.send(targets, Arc::clone(item), payload, stamp);
        }
    }
}

impl<P> Engine<P> {
    /// Announces items that are about to be sent into a region.
    pub(crate) fn enters(&self, region: RegionId, items: usize) {
        let region = &self.regions[region];
        if region.batched {
            region.entered.fetch_add(items as u64, Ordering::AcqRel);
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
