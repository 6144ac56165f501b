//! Wiring a topology up and starting its threads.

use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::time::Instant;

use crate::batch::{Held, Live};
use crate::budget::Budget;
use crate::cpu::Ask;
use crate::credit::Bounds;
use crate::depth::{Tuner, Ways};
use crate::edge::{Taker, Target};
use crate::engine::{ActorCell, EdgeCell, End, Engine, Region, SinkEdge, Wiring};
use crate::error::{ErrorKind, ItemError, SpawnError};
use crate::inbox::{Flags, Inbox, StageWaker};
use crate::item::Shape;
use crate::join::Join;
use crate::lane::{LaneHold, Seat};
use crate::metrics::{EdgeMeter, Meter, PipelineState};
use crate::operator::Role;
use crate::options::{Options, WhenFull};
use crate::packet::Message;
use crate::payload::Payload;
use crate::queue::Queue;
use crate::region::{self, Kind, ROOT, RegionId, Regions};
use crate::replica::SharedFactory;
use crate::sync::{
    Apart, Arc, AtomicU64, AtomicUsize, Mutex, Ordering, RecvTimeoutError, Sender, bounded, thread,
};
use crate::system::System;
use crate::topology::{ActorSpec, Edge, InPort, OutPort, Topology, Words};
use crate::trace::Ring;
use crate::watch::{self, Watch};
use crate::worker::{Batcher, Duty, Seed, run};

/// The threads of a pipeline.
#[derive(Default)]
pub(crate) struct Threads(Vec<(usize, thread::JoinHandle<()>)>);

impl Threads {
    /// Joins every thread but those of the actors in `left`, and the calling one.
    pub(crate) fn join(self, left: &[usize]) {
        let me = thread::current().id();
        for (actor, handle) in self.0 {
            if !left.contains(&actor) && handle.thread().id() != me {
                // What a thread panicked with was made the error of its items.
                let _ = handle.join();
            }
        }
    }
}

/// Items in flight where nothing is said: twice what the longest way holds keeps every actor of it
/// busy while as much again is on its way between them.
const fn automatic_in_flight(depth: usize) -> usize {
    let items = depth.saturating_mul(2);
    if items < 2 {
        2
    } else if items > Options::MOST_ITEMS {
        Options::MOST_ITEMS
    } else {
        items
    }
}

/// Room in the inboxes where nothing is said: the number in flight that fills the pipeline is known
/// only once the stages are built and say how many firings they take at a time.
const ROOM: usize = 64;

/// Which actors follow which; every replica for itself.
fn ways<P>(actors: &[ActorSpec<P>], edges: &[Edge], firsts: &[usize]) -> Ways {
    let threads = |actor: usize| firsts[actor]..firsts[actor] + actors[actor].replicas;
    let mut before = vec![Vec::new(); actors.iter().map(|spec| spec.replicas).sum()];
    for edge in edges {
        if let (OutPort::Actor { actor: from, .. }, InPort::Actor { actor: to, .. }) =
            (edge.from, edge.to)
        {
            for thread in threads(to) {
                before[thread].extend(threads(from));
            }
        }
    }
    let mut order: Vec<usize> = (0..actors.len()).collect();
    order.sort_by_key(|&actor| Reverse(actors[actor].height));
    Ways { order: order.into_iter().flat_map(threads).collect(), before }
}

/// Refuses numbers that no machine has room for, and options that contradict each other.
fn check(options: &Options) -> Result<(), SpawnError> {
    let max = if options.adapt { "in_flight_auto" } else { "max_in_flight" };
    let items = [
        ("in_flight", options.in_flight, Options::MOST_ITEMS),
        (max, options.max_in_flight, Options::MOST_ITEMS),
        ("queue", options.queue, Options::MOST_ITEMS),
        ("children", Some(options.children), Options::MOST_ITEMS),
        ("trace", Some(options.trace), Options::MOST_EVENTS),
    ];
    for (option, given, most) in items {
        if let Some(given) = given.filter(|given| *given > most) {
            return Err(SpawnError::TooMany { option, given, most });
        }
    }
    if let (Some(first), Some(most)) = (options.in_flight, options.max_in_flight)
        && most < first
        && most > 0
    {
        let message = format!(
            "{max}({most}) contradicts in_flight({first}): the most that may be allowed is no less \
             than what is allowed from the start"
        );
        return Err(SpawnError::Options(message));
    }
    if options.max_in_flight == Some(0) {
        let message = format!("{max}(0): nothing could ever enter; say at least 1");
        return Err(SpawnError::Options(message));
    }
    if options.item_bytes.is_some() && options.byte_budget.is_none() {
        let message = "item_bytes says what an item takes of a byte budget, and there is none: say \
                       byte_budget as well";
        return Err(SpawnError::Options(message.into()));
    }
    Ok(())
}

/// Places in the queue in front of the credits.
fn queue_capacity(options: &Options, in_flight: usize) -> Result<usize, SpawnError> {
    if options.byte_budget == Some(0) {
        let message = "byte_budget is 0: items would go one at a time; say in_flight(1) for that";
        return Err(SpawnError::Options(message.into()));
    }
    if options.watch.as_ref().is_some_and(|watch| watch.after.is_zero()) {
        let message = "watchdog(0): every pipeline stalls for no time; say how long is too long";
        return Err(SpawnError::Options(message.into()));
    }
    let needed = options.when_full.drops() || options.max_age.is_some();
    match options.queue {
        Some(0) if options.when_full == WhenFull::DropOldest => {
            let message = "the queue has no place, so there is no oldest item to drop; \
                           say queue(1) or DropNewest";
            Err(SpawnError::Options(message.into()))
        }
        Some(0) if options.max_age.is_some() => {
            let message = "max_age bounds the wait in the queue, and the queue has no place";
            Err(SpawnError::Options(message.into()))
        }
        Some(items) => Ok(items),
        None if needed => Ok(in_flight),
        None => Ok(0),
    }
}

pub(crate) fn spawn<P: Payload>(
    system: &System,
    topology: Topology<P>,
    options: Options,
) -> Result<(Arc<Engine<P>>, Threads), SpawnError> {
    let stop_timeout = options.stop_timeout;
    let until = options.build_timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    check(&options)?;
    let in_flight = options.in_flight.unwrap_or_else(|| automatic_in_flight(topology.depth));
    if in_flight == 0 {
        let message = "in_flight is 0: nothing could ever enter; say at least 1";
        return Err(SpawnError::Options(message.into()));
    }
    if options.children == 0 {
        let message = "children is 0: no fan-out could ever give one; say at least 1";
        return Err(SpawnError::Options(message.into()));
    }
    let said = options.in_flight;
    let capacity = match options.max_in_flight {
        Some(max) if options.adapt => max,
        Some(max) => max.max(in_flight),
        None if said.is_some() => in_flight,
        None => in_flight.max(ROOM),
    };
    let in_flight = in_flight.min(capacity);
    let queue = queue_capacity(&options, in_flight)?;
    let bounds = Bounds {
        items: in_flight,
        bytes: options.byte_budget,
        item_bytes: options.item_bytes,
        queue,
    };
    let (engine, seeds) = wire(system, topology, options, bounds, capacity)?;
    let mut threads = Threads::default();
    let (ready, report) = bounded(seeds.len().max(1));
    for seed in seeds {
        let me = seed.me;
        let name = engine.actors[me].name.to_string();
        engine.exits().starting(me);
        let ready = ready.clone();
        let spawned = thread::Builder::new().name(name.clone()).spawn(move || run(seed, &ready));
        match spawned {
            Ok(handle) => threads.0.push((me, handle)),
            Err(error) => {
                engine.exits().ended(me);
                tear_down(&engine, threads, stop_timeout);
                return Err(SpawnError::Thread { actor: name, error });
            }
        }
    }
    drop(ready);
    let mut building: BTreeSet<usize> = (0..engine.actors.len()).collect();
    let mut failures = Vec::new();
    while !building.is_empty() {
        let received = match until {
            None => report.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(until) => report.recv_deadline(until),
        };
        match received {
            Ok((me, built)) => {
                building.remove(&me);
                if let Err(error) = built {
                    failures.push((me, error));
                }
            }
            Err(RecvTimeoutError::Timeout) => {
                let name = |me: &usize| engine.actors[*me].name.to_string();
                let actors = building.iter().map(name).collect();
                tear_down(&engine, threads, std::time::Duration::ZERO);
                return Err(SpawnError::Timeout { actors });
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    failures.sort_by_key(|(me, _)| *me);
    let Some(first) = failures.first().map(|(me, _)| *me) else {
        if said.is_none() {
            // A stage that takes several firings at a time is full with as many, and one that waits.
            let fill = engine.ways.longest(|actor| {
                let cell = &engine.actors[actor];
                let slots = cell.slots.load(Ordering::Relaxed).saturating_add(1);
                slots.saturating_mul(cell.replicas) as u64
            });
            let fill = usize::try_from(fill).unwrap_or(usize::MAX).min(capacity);
            engine.credits.set_limit(fill.max(in_flight)).wake();
        }
        if let Err(error) = watch::start(&engine) {
            tear_down(&engine, threads, stop_timeout);
            return Err(SpawnError::Thread { actor: "watchdog".into(), error });
        }
        return Ok((engine, threads));
    };
    tear_down(&engine, threads, stop_timeout);
    let actor = engine.actors[first].name.to_string();
    let named = failures.into_iter().map(|(me, error)| error.of(&engine.actors[me].name));
    let error = ItemError::join(named)
        .unwrap_or_else(|| ItemError::new(ErrorKind::StageDown, "the actor ended"));
    Err(SpawnError::Stage { actor, error })
}

fn tear_down<P: Payload>(engine: &Arc<Engine<P>>, threads: Threads, timeout: std::time::Duration) {
    let cause = ItemError::new(ErrorKind::Shutdown, "the pipeline could not be built");
    engine.stop(PipelineState::Stopped, &cause);
    let left = engine.exits().wait(Instant::now().checked_add(timeout));
    engine.leave_behind(&left);
    threads.join(&left);
}

/// The parts of a wiring that the routes are made from.
struct Ends<P> {
    inboxes: Vec<Sender<Message<P>>>,
    layout: Layout,
    /// The first thread of each actor: it has one for every replica.
    firsts: Vec<usize>,
}

/// Where things lie in the items of each region.
struct Layout {
    shapes: Vec<Shape>,
    /// For each actor with several ports, its join.
    joins: Vec<Option<Join>>,
    /// For each collect, its list in the parent.
    lists: Vec<Option<usize>>,
    /// For each actor that nobody takes anything from, the port of the sink that it reports to.
    done: Vec<Option<usize>>,
    /// For each port of the sink, the region of what reaches it.
    reached: Vec<RegionId>,
    sink: Join,
    /// For each region and each port of the sink behind it, the list in the parent.
    exits: Vec<Vec<Option<usize>>>,
}

impl Layout {
    fn new<P>(topology: &Topology<P>) -> Self {
        let Topology { sinks, actors, edges, regions, .. } = topology;
        let shape = Shape { edges: edges.len(), ..Shape::default() };
        let mut shapes = vec![shape; regions.kinds.len()];
        let mut cells = vec![0; shapes.len()];
        let mut join = |region: RegionId, ports: usize| {
            let (joins, first) = (&mut shapes[region].joins, cells[region]);
            let join = Join { index: joins.len(), first, ports };
            cells[region] += ports;
            joins.push(join);
            join
        };
        let joins = actors.iter().zip(&regions.takes);
        let joins = joins.map(|(spec, &takes)| (spec.inputs > 1).then(|| join(takes, spec.inputs)));
        let joins = joins.collect();
        let mut reached = regions.sinks.clone();
        let leads_on = region::leading_on(actors.len(), edges);
        let done = (0..actors.len()).map(|actor| {
            (!leads_on[actor]).then(|| {
                // A fan-out or a collect that nobody takes from is done with what it takes: the
                // children that it could give, or the parent.
                let region = match actors[actor].role {
                    Role::FlatMap => regions.takes[actor],
                    _ => regions.gives[actor],
                };
                reached.push(region);
                reached.len() - 1
            })
        });
        let done = done.collect();
        debug_assert!(reached.len() >= sinks.len());
        let sink = join(ROOT, reached.len());
        let mut list = |region: RegionId| {
            let parent = regions.parent(region)?;
            shapes[parent].gathers += 1;
            Some(shapes[parent].gathers - 1)
        };
        let lists = (0..actors.len()).map(|actor| match actors[actor].role {
            Role::Collect => list(regions.takes[actor]),
            _ => None,
        });
        let lists = lists.collect();
        let mut exits = vec![vec![None; reached.len()]; regions.kinds.len()];
        for (port, &region) in reached.iter().enumerate() {
            for region in regions.outwards(region) {
                if matches!(regions.kinds[region], Kind::Children { .. }) {
                    exits[region][port] = list(region);
                }
            }
        }
        Self { shapes, joins, lists, done, reached, sink, exits }
    }

    /// The list of an item of the source for a port of the sink that children reach.
    fn listed(&self, port: usize, regions: &Regions) -> Option<usize> {
        let outermost = regions.outwards(self.reached[port]).last()?;
        self.exits[outermost][port]
    }
}

impl<P> Ends<P> {
    /// Who takes what leaves `port`.
    fn targets(&self, edges: &[Edge], port: OutPort) -> Vec<Target<P>> {
        let leaving = edges.iter().enumerate().filter(|(_, edge)| edge.from == port);
        leaving.map(|(number, edge)| Target { edge: number, to: self.taker(edge.to) }).collect()
    }

    fn taker(&self, to: InPort) -> Taker<P> {
        match to {
            InPort::Sink(port) => Taker::Sink { port },
            InPort::Actor { actor: number, port } => {
                let (inbox, actor) = (self.inboxes[number].clone(), self.firsts[number]);
                match (self.layout.joins[number], self.layout.lists[number]) {
                    (_, Some(slot)) => Taker::Collect { slot, inbox },
                    (None, None) => Taker::Only { actor, inbox },
                    (Some(join), None) => Taker::Join { actor, join, port, inbox },
                }
            }
        }
    }

    /// A giving port, its actor named by its first thread.
    fn giver_by_thread(&self, port: OutPort) -> OutPort {
        match port {
            OutPort::Actor { actor, port } => OutPort::Actor { actor: self.firsts[actor], port },
            source @ OutPort::Source(_) => source,
        }
    }

    /// A taking port, its actor named by its first thread.
    fn by_thread(&self, port: InPort) -> InPort {
        match port {
            InPort::Actor { actor, port } => InPort::Actor { actor: self.firsts[actor], port },
            sink @ InPort::Sink(_) => sink,
        }
    }

    /// The regions of the topology, with their budgets and where they end.
    fn regions(
        &self,
        regions: &Regions,
        actors: &[ActorSpec<P>],
        children: usize,
    ) -> Vec<Region<P>> {
        let one = |region: RegionId| {
            let inside = |&actor: &usize| regions.takes[actor] == region;
            let closers = (0..actors.len()).filter(inside).filter_map(|actor| {
                let inbox = self.inboxes[actor].clone();
                match (&actors[actor].role, self.layout.lists[actor]) {
                    (Role::Collect, Some(slot)) => Some(End::Collect { slot, inbox }),
                    (Role::Unbatch, _) => Some(End::Unbatch { inbox }),
                    _ => None,
                }
            });
            let behind = self.layout.reached.iter().enumerate().filter(|(_, reached)| {
                region != ROOT && regions.outwards(**reached).any(|here| here == region)
            });
            Region {
                shape: self.layout.shapes[region].clone(),
                batched: (0..actors.len())
                    .filter(inside)
                    .any(|actor| matches!(actors[actor].role, Role::Batch(_))),
                entered: Apart(AtomicU64::new(0)),
                budget: match regions.kinds[region] {
                    Kind::Children { actor, .. } => {
                        Some((self.firsts[actor], Arc::new(Budget::new(children))))
                    }
                    Kind::Root | Kind::Batches { .. } => None,
                },
                ends: closers.chain(behind.map(|(port, _)| End::Sink { port })).collect(),
                exits: self.layout.exits[region].clone(),
            }
        };
        (0..regions.kinds.len()).map(one).collect()
    }
}

/// The most items that can be alive in each region, and so lie in an inbox there.
fn capacities(regions: &Regions, root: usize, children: usize) -> Vec<usize> {
    let mut capacities: Vec<usize> = Vec::new();
    for kind in &regions.kinds {
        capacities.push(match *kind {
            Kind::Root => root,
            Kind::Children { .. } => children,
            // Every batch has a member that is in no other one.
            Kind::Batches { parent, .. } => capacities[parent],
        });
    }
    capacities
}

/// The edges that end at an actor.
fn arrivals(edges: &[Edge], me: usize) -> impl Iterator<Item = usize> {
    let numbered = edges.iter().enumerate();
    numbered
        .filter(move |(_, edge)| matches!(edge.to, InPort::Actor { actor, .. } if actor == me))
        .map(|(number, _)| number)
}

fn wire<P: Payload>(
    system: &System,
    topology: Topology<P>,
    options: Options,
    bounds: Bounds,
    capacity: usize,
) -> Result<(Arc<Engine<P>>, Vec<Seed<P>>), SpawnError> {
    let layout = Layout::new(&topology);
    let Topology { sources, sinks, actors, edges, lanes, computing, regions, .. } = topology;
    let capacities = capacities(&regions, capacity, options.children);
    // What an inbox can hold: the items of its region; of a collect, the parents; of an unbatch, the
    // batches and the items that pass them by, each of which is an item of the outer region.
    let room = |actor: usize| {
        let region = match actors[actor].role {
            Role::Collect | Role::Unbatch => regions.gives[actor],
            _ => regions.takes[actor],
        };
        capacities[region]
    };

    let (pipeline, name) = system.next(options.name);
    let words = Words { sources: &sources, sinks: &sinks, actors: &actors };
    let firsts = actors.iter().scan(0, |next, spec: &ActorSpec<P>| {
        let first = *next;
        *next += spec.replicas;
        Some(first)
    });
    let mut ends = Ends { inboxes: Vec::new(), layout, firsts: firsts.collect() };
    let edge_cells = edges.iter().map(|edge| EdgeCell {
        meter: Apart(EdgeMeter::default()),
        from: words.out_port(edge.from),
        to: words.in_port(edge.to),
        giver: ends.giver_by_thread(edge.from),
        taker: ends.by_thread(edge.to),
        capacity: match edge.to {
            InPort::Actor { actor, .. } => room(actor),
            InPort::Sink(_) => capacity,
        },
        gathers: matches!(edge.to, InPort::Actor { actor, .. } if matches!(actors[actor].role, Role::Collect)),
    });
    let edge_cells: Vec<_> = edge_cells.collect();
    let origin = Instant::now();
    let mut devices = Vec::new();
    let mut inboxes = Vec::new();
    let mut asks = Vec::new();
    let mut notices = Vec::new();
    let mut actor_cells = Vec::new();
    for (number, spec) in actors.iter().enumerate() {
        let (doors, sender) = match spec.replicas {
            1 => {
                let (inbox, sender, _) = Inbox::new(room(number), options.spin);
                (vec![inbox], sender)
            }
            replicas => Inbox::shared(room(number), options.spin, replicas),
        };
        ends.inboxes.push(sender);
        let stated = lanes.iter().rev().find(|(device, _)| *device == spec.device);
        let device_lanes = system.lanes_of(&spec.device, stated.map(|(_, lanes)| *lanes));
        if !devices.iter().any(|known| Arc::ptr_eq(known, &device_lanes)) {
            if let Some((device, wanted)) = stated
                && *wanted != device_lanes.total()
            {
                notices.push(format!(
                    "device `{device}` has {} lanes, as the first pipeline of the system that named \
                     it said, and not {wanted}",
                    device_lanes.total()
                ));
            }
            devices.push(Arc::clone(&device_lanes));
        }
        let device: Arc<str> = Arc::from(spec.device.as_str());
        let memory: Arc<str> = Arc::from(spec.memory.as_str());
        for (replica, (inbox, name)) in doors.iter().zip(spec.thread_names()).enumerate() {
            let lanes = Arc::clone(&device_lanes);
            asks.push(Ask {
                actor: Arc::clone(&name),
                device: Arc::clone(&device),
                lanes: lanes.total(),
                threads: spec.threads,
            });
            actor_cells.push(ActorCell {
                name,
                actor: Arc::clone(&spec.name),
                replica,
                device: Arc::clone(&device),
                memory: Arc::clone(&memory),
                bell: Arc::clone(inbox.bell()),
                meter: Meter::new(origin),
                ring: Ring::new(options.trace),
                waited_ns: arrivals(&edges, number).map(|_| AtomicU64::new(0)).collect(),
                lane: LaneHold::new(lanes, Seat::new(pipeline, spec.height)),
                threads: 0,
                pinned: Mutex::new(None),
                replicas: spec.replicas,
                slots: AtomicUsize::new(1),
            });
        }
        inboxes.push(doors);
    }
    let budget = system.budget();
    let (shares, more) = budget.claim(&name, &asks)?;
    notices.extend(more);
    for (cell, share) in actor_cells.iter_mut().zip(&shares) {
        cell.threads = share.as_ref().map_or(0, |share| share.granted);
    }
    let source_targets =
        (0..sources.len()).map(|port| ends.targets(&edges, OutPort::Source(port))).collect();
    let engine = Arc::new(Engine::new(Wiring {
        name,
        bounds,
        capacity,
        spin: options.spin,
        ways: ways(&actors, &edges, &ends.firsts),
        tuner: options.adapt.then(|| Tuner::new(bounds.items, capacity, asks.len(), origin)),
        watch: options.watch.map(Watch::new),
        queue: Queue::new(options.when_full, options.max_age, bounds.queue),
        sources: source_targets,
        regions: ends.regions(&regions, &actors, options.children),
        sink: ends.layout.sink,
        listed: (0..ends.layout.reached.len())
            .map(|port| ends.layout.listed(port, &regions))
            .collect(),
        child_bytes: options.child_bytes,
        sinks: sinks.len(),
        sink_edges: (0..edges.len())
            .filter(|edge| {
                // Children and batches do not lie at the sink themselves.
                let reached = &ends.layout.reached;
                matches!(edges[*edge].to, InPort::Sink(port) if reached[port] == ROOT)
            })
            .map(SinkEdge::new)
            .collect(),
        actors: actor_cells,
        edges: edge_cells,
        devices,
        computing,
        budget: Arc::clone(budget),
        notices,
        origin,
        trace: options.trace,
    }));
    let enough: Vec<usize> =
        (0..regions.kinds.len()).map(|region| regions.depth(region, &actors, &edges)).collect();
    let retries: Vec<bool> = actors
        .iter()
        .map(|spec| matches!(&spec.role, Role::Batch(batching) if batching.retry))
        .collect();
    let mut seeds = Vec::new();
    let mut shares = shares.into_iter();
    for (number, (spec, inboxes)) in actors.into_iter().zip(inboxes).enumerate() {
        let (takes, gives) = (regions.takes[number], regions.gives[number]);
        let first = ends.firsts[number];
        let slot = ends.layout.lists[number].unwrap_or(0);
        let mut duty = match spec.role {
            Role::Plain => Duty::Plain,
            Role::Merge => Duty::Merge,
            Role::FlatMap => Duty::FlatMap { region: gives },
            Role::Collect => Duty::Collect { slot },
            Role::Batch(batching) => {
                let bell = Arc::clone(&engine.actors[first].bell);
                Duty::Batch(Box::new(Batcher {
                    held: Held::new(batching),
                    live: Arc::new(Live::new(StageWaker::ringing(bell, Flags::ROOM))),
                    enough: enough[gives].max(1),
                    takes,
                    region: gives,
                    arrived: 0,
                }))
            }
            Role::Unbatch => {
                let maker = match regions.kinds[takes] {
                    Kind::Batches { actor, .. } if retries[actor] => Some(actor),
                    _ => None,
                };
                let retry = maker.map(|maker| ends.inboxes[maker].clone());
                Duty::Unbatch { region: takes, retry }
            }
        };
        let factory = SharedFactory::new(spec.factory);
        for (me, inbox) in (first..).zip(inboxes) {
            let out_ports = (0..spec.outputs).map(|port| OutPort::Actor { actor: number, port });
            // Those that have replicas keep nothing from item to item.
            let next = match &duty {
                Duty::Collect { .. } => Duty::Collect { slot },
                _ => Duty::Plain,
            };
            seeds.push(Seed {
                engine: Arc::clone(&engine),
                me,
                inbox,
                inputs: spec.inputs,
                join: ends.layout.joins[number],
                arrivals: arrivals(&edges, number).collect(),
                routes: out_ports.map(|port| ends.targets(&edges, port)).collect(),
                done: ends.layout.done[number],
                factory: Arc::clone(&factory),
                policy: options.policy,
                retry: options.retry,
                duty: std::mem::replace(&mut duty, next),
                share: shares.next().flatten(),
            });
        }
    }
    Ok((engine, seeds))
}
