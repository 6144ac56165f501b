//! Wiring a topology up and starting its threads.

use std::collections::BTreeSet;
use std::time::Instant;

use crate::cpu::Ask;
use crate::edge::{Taker, Target};
use crate::engine::{ActorCell, EdgeCell, Engine, LaneHold, Wiring};
use crate::error::{ErrorKind, ItemError, SpawnError};
use crate::inbox::Inbox;
use crate::join::Join;
use crate::lane::Seat;
use crate::metrics::{EdgeMeter, Meter, PipelineState};
use crate::options::Options;
use crate::packet::Message;
use crate::payload::Payload;
use crate::replica::SharedFactory;
use crate::sync::{Arc, Mutex, RecvTimeoutError, Sender, bounded, thread};
use crate::system::System;
use crate::topology::{ActorSpec, Edge, InPort, OutPort, Topology, Words};
use crate::trace::Ring;
use crate::worker::{Seed, run};

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
    if items < 2 { 2 } else { items }
}

pub(crate) fn spawn<P: Payload>(
    system: &System,
    topology: Topology<P>,
    options: Options,
) -> Result<(Arc<Engine<P>>, Threads), SpawnError> {
    let stop_timeout = options.stop_timeout;
    let until = options.build_timeout.and_then(|timeout| Instant::now().checked_add(timeout));
    let in_flight = options.in_flight.unwrap_or_else(|| automatic_in_flight(topology.depth));
    if in_flight == 0 {
        let message = "in_flight is 0: nothing could ever enter; say at least 1";
        return Err(SpawnError::Options(message.into()));
    }
    let capacity = in_flight.max(options.max_in_flight.unwrap_or(0));
    let (engine, seeds) = wire(system, topology, options, in_flight, capacity)?;
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
    joins: Vec<Option<Join>>,
    /// The first thread of each actor: it has one for every replica.
    firsts: Vec<usize>,
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
                match self.joins[number] {
                    None => Taker::Only { actor, inbox },
                    Some(join) => Taker::Join { actor, join, port, inbox },
                }
            }
        }
    }

    /// A taking port, its actor named by its first thread.
    fn by_thread(&self, port: InPort) -> InPort {
        match port {
            InPort::Actor { actor, port } => InPort::Actor { actor: self.firsts[actor], port },
            sink @ InPort::Sink(_) => sink,
        }
    }
}

fn wire<P: Payload>(
    system: &System,
    topology: Topology<P>,
    options: Options,
    in_flight: usize,
    capacity: usize,
) -> Result<(Arc<Engine<P>>, Vec<Seed<P>>), SpawnError> {
    let Topology { sources, sinks, actors, edges, lanes, .. } = topology;
    let terminal = |actor: usize| {
        !edges.iter().any(|edge| matches!(edge.from, OutPort::Actor { actor: a, .. } if a == actor))
    };
    let mut joins = Vec::new();
    let mut cells = 0;
    let mut join = |ports: usize| {
        let join = Join { index: joins.len(), first: cells, ports };
        cells += ports;
        joins.push(join);
        join
    };
    let actor_joins: Vec<Option<Join>> =
        actors.iter().map(|spec| (spec.inputs > 1).then(|| join(spec.inputs))).collect();
    let mut sink_ports = sinks.len();
    let done: Vec<Option<usize>> = (0..actors.len())
        .map(|actor| {
            terminal(actor).then(|| {
                sink_ports += 1;
                sink_ports - 1
            })
        })
        .collect();
    let sink = join(sink_ports);

    let (pipeline, name) = system.next(options.name);
    let words = Words { sources: &sources, sinks: &sinks, actors: &actors };
    let firsts = actors.iter().scan(0, |next, spec: &ActorSpec<P>| {
        let first = *next;
        *next += spec.replicas;
        Some(first)
    });
    let mut ends = Ends { inboxes: Vec::new(), joins: actor_joins, firsts: firsts.collect() };
    let edge_cells = edges.iter().map(|edge| EdgeCell {
        meter: EdgeMeter::default(),
        from: words.out_port(edge.from),
        to: words.in_port(edge.to),
        taker: ends.by_thread(edge.to),
        capacity,
    });
    let edge_cells: Vec<_> = edge_cells.collect();
    let origin = Instant::now();
    let mut devices = Vec::new();
    let mut inboxes = Vec::new();
    let mut asks = Vec::new();
    let mut actor_cells = Vec::new();
    for spec in &actors {
        let (doors, sender) = match spec.replicas {
            1 => {
                let (inbox, sender, _) = Inbox::new(capacity);
                (vec![inbox], sender)
            }
            replicas => Inbox::shared(capacity, replicas),
        };
        ends.inboxes.push(sender);
        let stated = lanes.iter().rev().find(|(device, _)| *device == spec.device);
        let device_lanes = system.lanes_of(&spec.device, stated.map(|(_, lanes)| *lanes));
        if !devices.iter().any(|known| Arc::ptr_eq(known, &device_lanes)) {
            devices.push(Arc::clone(&device_lanes));
        }
        let device: Arc<str> = Arc::from(spec.device.as_str());
        let taken = Arc::default();
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
                bell: Arc::clone(inbox.bell()),
                meter: Meter::new(origin, Arc::clone(&taken)),
                ring: Ring::new(options.trace),
                lane: LaneHold::new(lanes, Seat::new(pipeline, spec.height)),
                threads: 0,
                pinned: Mutex::new(None),
            });
        }
        inboxes.push(doors);
    }
    let budget = system.budget();
    let (shares, notices) = budget.claim(&name, &asks)?;
    for (cell, share) in actor_cells.iter_mut().zip(&shares) {
        cell.threads = share.as_ref().map_or(0, |share| share.granted);
    }
    let source_targets =
        (0..sources.len()).map(|port| ends.targets(&edges, OutPort::Source(port))).collect();
    let engine = Arc::new(Engine::new(Wiring {
        name,
        in_flight,
        sources: source_targets,
        joins,
        sink,
        sinks: sinks.len(),
        actors: actor_cells,
        edges: edge_cells,
        devices,
        budget: Arc::clone(budget),
        notices,
        origin,
    }));
    let mut seeds = Vec::new();
    let mut shares = shares.into_iter();
    for (number, (spec, inboxes)) in actors.into_iter().zip(inboxes).enumerate() {
        let factory = SharedFactory::new(spec.factory);
        for (me, inbox) in (ends.firsts[number]..).zip(inboxes) {
            let out_ports = (0..spec.outputs).map(|port| OutPort::Actor { actor: number, port });
            seeds.push(Seed {
                engine: Arc::clone(&engine),
                me,
                inbox,
                inputs: spec.inputs,
                join: ends.joins[number],
                routes: out_ports.map(|port| ends.targets(&edges, port)).collect(),
                done: done[number],
                factory: Arc::clone(&factory),
                policy: options.policy,
                share: shares.next().flatten(),
            });
        }
    }
    Ok((engine, seeds))
}
