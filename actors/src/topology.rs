//! The wiring of a pipeline: sources, actors, sinks, and the edges between them.

use std::collections::HashSet;
use std::fmt;

use crate::cpu::usual_threads;
use crate::error::{BuildError, ItemError};
use crate::operator::Role;
use crate::region::{self, Regions};
use crate::replica::{MOST_REPLICAS, replica_name};
use crate::stage::{Factory, Stage, StageContext};
use crate::sync::Arc;

/// The end of an edge that gives: a source or an output port of an actor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutPort {
    /// The source with this number.
    Source(usize),
    /// An output port of an actor.
    Actor {
        /// The number of the actor.
        actor: usize,
        /// The number of its output port.
        port: usize,
    },
}

impl OutPort {
    /// The actor that gives, to say more of it: its replicas, its threads. `None` for a source.
    ///
    /// ```
    /// use brigade_actors::Topology;
    ///
    /// let mut builder = Topology::<i64>::builder();
    /// let x = builder.source("x");
    /// let double = builder.map("double", "cpu", |n| Ok(2 * n));
    /// assert_eq!((x.actor(), double.output(0).actor()), (None, Some(double)));
    /// ```
    #[must_use]
    pub const fn actor(self) -> Option<ActorId> {
        match self {
            Self::Source(_) => None,
            Self::Actor { actor, .. } => Some(ActorId(actor)),
        }
    }
}

/// The end of an edge that takes: an input port of an actor or a sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InPort {
    /// An input port of an actor.
    Actor {
        /// The number of the actor.
        actor: usize,
        /// The number of its input port.
        port: usize,
    },
    /// The sink with this number.
    Sink(usize),
}

/// An actor of a topology that is being built; names its ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ActorId(usize);

impl ActorId {
    /// The number of the actor: actors are numbered as they are added, from 0.
    #[must_use]
    pub const fn index(self) -> usize {
        self.0
    }

    /// Its input port `port`.
    #[must_use]
    pub const fn input(self, port: usize) -> InPort {
        InPort::Actor { actor: self.0, port }
    }

    /// Its output port `port`.
    #[must_use]
    pub const fn output(self, port: usize) -> OutPort {
        OutPort::Actor { actor: self.0, port }
    }
}

/// A checked wiring, ready to be spawned.
///
/// ```
/// use brigade_actors::{Topology, stage_fn};
///
/// let mut builder = Topology::<i64>::builder();
/// let x = builder.source("x");
/// let double = builder.actor("double", "cpu:0", 1, 1, stage_fn(|v: Vec<i64>| Ok(vec![v[0] * 2])));
/// let add = builder.actor("add", "cpu:1", 2, 1, stage_fn(|v: Vec<i64>| Ok(vec![v[0] + v[1]])));
/// let y = builder.sink("y");
/// builder.connect(x, double.input(0));
/// builder.connect(double.output(0), add.input(0));
/// builder.connect(x, add.input(1));
/// builder.connect(add.output(0), y);
/// let topology = builder.build()?;
/// assert_eq!(topology.sources(), ["x"]);
/// assert_eq!(topology.actors().collect::<Vec<_>>(), ["double", "add"]);
/// # Ok::<(), brigade_actors::BuildError>(())
/// ```
pub struct Topology<P> {
    pub(crate) sources: Vec<String>,
    pub(crate) sinks: Vec<String>,
    pub(crate) actors: Vec<ActorSpec<P>>,
    pub(crate) edges: Vec<Edge>,
    pub(crate) lanes: Vec<(String, usize)>,
    pub(crate) computing: Vec<(String, usize)>,
    /// Actors on the longest way from a source to a sink, each as often as it has replicas.
    pub(crate) depth: usize,
    pub(crate) regions: Regions,
}

pub(crate) struct ActorSpec<P> {
    pub(crate) name: Arc<str>,
    pub(crate) device: String,
    /// The memory in which its payloads stay while it still works on them.
    pub(crate) memory: String,
    pub(crate) inputs: usize,
    pub(crate) outputs: usize,
    pub(crate) factory: Factory<P>,
    /// How many threads run this actor.
    pub(crate) replicas: usize,
    /// How many threads each of them computes on.
    pub(crate) threads: usize,
    /// What it does with numbers, beside computing.
    pub(crate) role: Role<P>,
    /// The most actors that can follow on the way to the sink.
    pub(crate) height: usize,
}

impl<P> ActorSpec<P> {
    /// The names of the threads that run it.
    pub(crate) fn thread_names(&self) -> impl Iterator<Item = Arc<str>> {
        (0..self.replicas).map(|replica| replica_name(&self.name, replica, self.replicas))
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Edge {
    pub(crate) from: OutPort,
    pub(crate) to: InPort,
}

impl<P> Topology<P> {
    /// A builder without any part yet.
    #[must_use]
    pub const fn builder() -> TopologyBuilder<P> {
        TopologyBuilder {
            sources: Vec::new(),
            sinks: Vec::new(),
            actors: Vec::new(),
            edges: Vec::new(),
            lanes: Vec::new(),
            computing: Vec::new(),
            replicas: Vec::new(),
            threads: Vec::new(),
            memories: Vec::new(),
        }
    }

    /// The names of the source ports, in the order of the inputs of a push.
    #[must_use]
    pub fn sources(&self) -> &[String] {
        &self.sources
    }

    /// The names of the sink ports, in the order of the payloads of a result.
    #[must_use]
    pub fn sinks(&self) -> &[String] {
        &self.sinks
    }

    /// The names of the actors, in the order in which they were added.
    pub fn actors(&self) -> impl Iterator<Item = &str> {
        self.actors.iter().map(|actor| &*actor.name)
    }
}

impl<P> fmt::Debug for Topology<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Topology")
            .field("sources", &self.sources)
            .field("actors", &self.actors().collect::<Vec<_>>())
            .field("sinks", &self.sinks)
            .field("edges", &self.edges)
            .finish_non_exhaustive()
    }
}

/// Collects the parts of a [`Topology`] and checks them at [`build`](TopologyBuilder::build).
pub struct TopologyBuilder<P> {
    sources: Vec<String>,
    sinks: Vec<String>,
    actors: Vec<ActorSpec<P>>,
    edges: Vec<Edge>,
    lanes: Vec<(String, usize)>,
    computing: Vec<(String, usize)>,
    replicas: Vec<(usize, usize)>,
    threads: Vec<(usize, usize)>,
    memories: Vec<(usize, String)>,
}

impl<P> fmt::Debug for TopologyBuilder<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TopologyBuilder")
            .field("sources", &self.sources)
            .field("sinks", &self.sinks)
            .field("edges", &self.edges)
            .finish_non_exhaustive()
    }
}

impl<P> TopologyBuilder<P> {
    /// Adds a source port: one more input of every push. A source that nothing is connected to is
    /// allowed; what is pushed into it is dropped.
    pub fn source(&mut self, name: impl Into<String>) -> OutPort {
        self.sources.push(name.into());
        OutPort::Source(self.sources.len() - 1)
    }

    /// Adds a sink port: one more payload of every result.
    pub fn sink(&mut self, name: impl Into<String>) -> InPort {
        self.sinks.push(name.into());
        InPort::Sink(self.sinks.len() - 1)
    }

    /// Adds an actor with `inputs` input and `outputs` output ports on `device`. Actors with the
    /// same device string share the lanes of that device. What arrives at an output port that
    /// nothing is connected to is dropped.
    pub fn actor(
        &mut self,
        name: impl Into<String>,
        device: impl Into<String>,
        inputs: usize,
        outputs: usize,
        factory: impl FnMut(StageContext) -> Result<Box<dyn Stage<P>>, ItemError> + Send + 'static,
    ) -> ActorId {
        let device = device.into();
        self.actors.push(ActorSpec {
            name: Arc::from(name.into()),
            threads: usual_threads(&device),
            memory: device.clone(),
            device,
            inputs,
            outputs,
            factory: Box::new(factory),
            replicas: 1,
            role: Role::Plain,
            height: 0,
        });
        ActorId(self.actors.len() - 1)
    }

    pub(crate) fn give_role(&mut self, actor: ActorId, role: Role<P>) {
        if let Some(spec) = self.actors.get_mut(actor.0) {
            spec.role = role;
        }
    }

    /// Says how many lanes `device` has; 1 where nothing is said.
    pub fn lanes(&mut self, device: impl Into<String>, lanes: usize) -> &mut Self {
        self.lanes.push((device.into(), lanes));
        self
    }

    /// Says how many actors compute at once on `device` where that sees to its lanes itself, such as
    /// one of another machine with a queue of its own: its [`lanes`](Self::lanes) are then how many
    /// may hand work to it. Reports reckon with it; nothing is held back by it. At least 1.
    pub fn computing(&mut self, device: impl Into<String>, actors: usize) -> &mut Self {
        self.computing.push((device.into(), actors.max(1)));
        self
    }

    /// Has `actor` run by so many threads; 1 where nothing is said. They share its inbox, and each
    /// has a stage of its own from the factory, a restart account of its own, and takes a lane of
    /// the device of its own: give the device as many [`lanes`](Self::lanes), or they take turns.
    ///
    /// A map and a collect can have replicas; the other operators keep something from item to item.
    ///
    /// Items overtake each other behind replicas. Joins match them by number, and a stream gives
    /// its results in order; who else needs order restores it with a
    /// [`Reorder`](crate::Reorder).
    ///
    /// ```
    /// use brigade_actors::{Options, Pipeline, Topology, stage_fn};
    ///
    /// let mut builder = Topology::<i64>::builder();
    /// let x = builder.source("x");
    /// let slow = builder.actor("slow", "cpu", 1, 1, stage_fn(|v: Vec<i64>| Ok(vec![v[0] * 2])));
    /// let y = builder.sink("y");
    /// builder.connect(x, slow.input(0)).connect(slow.output(0), y);
    /// builder.replicas(slow, 3).lanes("cpu", 3);
    /// let pipeline = Pipeline::spawn(builder.build()?, Options::new())?;
    /// for (n, result) in (0..100).zip(pipeline.stream((0..100).map(|n| vec![n]))) {
    ///     assert_eq!(result?, [2 * n]);
    /// }
    /// let names: Vec<_> = pipeline.stats().actors.into_iter().map(|actor| actor.name).collect();
    /// assert_eq!(names, ["slow/0", "slow/1", "slow/2"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn replicas(&mut self, actor: ActorId, replicas: usize) -> &mut Self {
        self.replicas.push((actor.0, replicas));
        self
    }

    /// Says how many CPU threads `actor`, or each replica of it, computes on at once: what it asks
    /// the [budget of its system](crate::System::cpu_budget) for. Where nothing is said, 1 on the
    /// devices `cpu` and `cpu:N`, and none on any other, whose actors wait rather than compute. The
    /// stage keeps to what it was granted, [`StageContext::threads`].
    pub fn threads(&mut self, actor: ActorId, threads: usize) -> &mut Self {
        self.threads.push((actor.0, threads));
        self
    }

    /// Names the memory that payloads of `actor` lie in, where it is not its device's alone. What an actor
    /// still works on leaves it for actors of the same memory only, which order their work behind.
    pub fn memory(&mut self, actor: ActorId, memory: impl Into<String>) -> &mut Self {
        self.memories.push((actor.0, memory.into()));
        self
    }

    /// Adds an edge. A giving port may have any number of edges; a taking port has exactly one.
    pub fn connect(&mut self, from: OutPort, to: InPort) -> &mut Self {
        self.edges.push(Edge { from, to });
        self
    }

    /// Checks the parts and puts them together.
    ///
    /// # Errors
    ///
    /// [`BuildError`] for names given twice, ports that do not exist, that nothing or more than one
    /// edge arrives at, actors without an input or a replica, rings, and devices without a lane.
    pub fn build(self) -> Result<Topology<P>, BuildError> {
        let Self { sources, sinks, mut actors, edges, lanes, computing, .. } = self;
        let Self { replicas, threads, memories, .. } = self;
        unique("sources", sources.iter().map(String::as_str))?;
        unique("sinks", sinks.iter().map(String::as_str))?;
        let count = actors.len();
        for (actor, replicas) in replicas {
            let spec = actors.get_mut(actor);
            let spec = spec.ok_or(BuildError::UnknownActor { actor, actors: count })?;
            if !(1..=MOST_REPLICAS).contains(&replicas) {
                let (actor, most) = (spec.name.to_string(), MOST_REPLICAS);
                return Err(BuildError::Replicas { actor, replicas, most });
            }
            if replicas > 1 && !matches!(spec.role, Role::Plain | Role::Collect) {
                let (actor, operator) = (spec.name.to_string(), spec.role.words());
                return Err(BuildError::NoReplicas { actor, operator });
            }
            spec.replicas = replicas;
        }
        for (actor, threads) in threads {
            let spec = actors.get_mut(actor);
            spec.ok_or(BuildError::UnknownActor { actor, actors: count })?.threads = threads;
        }
        for (actor, memory) in memories {
            let spec = actors.get_mut(actor);
            spec.ok_or(BuildError::UnknownActor { actor, actors: count })?.memory = memory;
        }
        unique("actors", actors.iter().map(|actor| &*actor.name))?;
        let names: Vec<_> = actors.iter().flat_map(ActorSpec::thread_names).collect();
        unique("actors", names.iter().map(|name| &**name))?;
        if let Some(actor) = actors.iter().find(|actor| actor.inputs == 0) {
            return Err(BuildError::NoInputs { actor: actor.name.to_string() });
        }
        if let Some((device, _)) = lanes.iter().find(|(_, lanes)| *lanes == 0) {
            return Err(BuildError::NoLanes { device: device.clone() });
        }
        let words = Words { sources: &sources, sinks: &sinks, actors: &actors };
        let mut fed: HashSet<InPort> = HashSet::new();
        for edge in &edges {
            let known = match edge.from {
                OutPort::Source(source) => source < sources.len(),
                OutPort::Actor { actor, port } => {
                    actors.get(actor).is_some_and(|actor| port < actor.outputs)
                }
            };
            if !known {
                return Err(BuildError::UnknownPort { port: words.out_port(edge.from) });
            }
            let known = match edge.to {
                InPort::Sink(sink) => sink < sinks.len(),
                InPort::Actor { actor, port } => {
                    actors.get(actor).is_some_and(|actor| port < actor.inputs)
                }
            };
            if !known {
                return Err(BuildError::UnknownPort { port: words.in_port(edge.to) });
            }
            if !fed.insert(edge.to) {
                return Err(BuildError::ConnectedTwice { port: words.in_port(edge.to) });
            }
        }
        let inputs = actors.iter().enumerate().flat_map(|(actor, spec)| {
            (0..spec.inputs).map(move |port| InPort::Actor { actor, port })
        });
        let taking = inputs.chain((0..sinks.len()).map(InPort::Sink));
        if let Some(port) = taking.into_iter().find(|port| !fed.contains(port)) {
            return Err(BuildError::Unconnected { port: words.in_port(port) });
        }
        let threads_after = heights(&actors, &edges, |actor| actor.replicas)?;
        let threads_from = actors
            .iter()
            .zip(threads_after)
            .map(|(spec, after)| after.saturating_add(spec.replicas));
        let depth = threads_from.max().unwrap_or(0);
        for (actor, height) in heights(&actors, &edges, |_| 1)?.into_iter().enumerate() {
            actors[actor].height = height;
        }
        let words = Words { sources: &sources, sinks: &sinks, actors: &actors };
        let regions = region::infer(&actors, &edges, &words)?;
        Ok(Topology { sources, sinks, actors, edges, lanes, computing, depth, regions })
    }
}

/// Ports in words, for errors and reports.
pub(crate) struct Words<'a, P> {
    pub(crate) sources: &'a [String],
    pub(crate) sinks: &'a [String],
    pub(crate) actors: &'a [ActorSpec<P>],
}

impl<P> Words<'_, P> {
    pub(crate) fn out_port(&self, port: OutPort) -> String {
        match port {
            OutPort::Source(source) => match self.sources.get(source) {
                Some(name) => format!("source `{name}`"),
                None => format!("source {source}"),
            },
            OutPort::Actor { actor, port } => format!("output {port} of {}", self.actor(actor)),
        }
    }

    pub(crate) fn in_port(&self, port: InPort) -> String {
        match port {
            InPort::Sink(sink) => match self.sinks.get(sink) {
                Some(name) => format!("sink `{name}`"),
                None => format!("sink {sink}"),
            },
            InPort::Actor { actor, port } => format!("input {port} of {}", self.actor(actor)),
        }
    }

    fn actor(&self, actor: usize) -> String {
        match self.actors.get(actor) {
            Some(spec) => format!("actor `{}`", spec.name),
            None => format!("actor {actor}"),
        }
    }
}

fn unique<'a>(what: &'static str, names: impl Iterator<Item = &'a str>) -> Result<(), BuildError> {
    let mut seen = HashSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(BuildError::DuplicateName { what, name: name.to_owned() });
        }
    }
    Ok(())
}

/// For each actor, the most weight that can follow it; an error if there is a ring.
fn heights<P>(
    actors: &[ActorSpec<P>],
    edges: &[Edge],
    weight: impl Fn(&ActorSpec<P>) -> usize,
) -> Result<Vec<usize>, BuildError> {
    let mut next = vec![Vec::new(); actors.len()];
    let mut before = vec![Vec::new(); actors.len()];
    for edge in edges {
        if let (OutPort::Actor { actor: from, .. }, InPort::Actor { actor: to, .. }) =
            (edge.from, edge.to)
        {
            next[from].push(to);
            before[to].push(from);
        }
    }
    let mut heights = vec![0_usize; actors.len()];
    let mut open: Vec<usize> = next.iter().map(Vec::len).collect();
    let mut ready: Vec<usize> = (0..actors.len()).filter(|&actor| open[actor] == 0).collect();
    let mut done = 0;
    while let Some(actor) = ready.pop() {
        done += 1;
        for &from in &before[actor] {
            heights[from] =
                heights[from].max(heights[actor].saturating_add(weight(&actors[actor])));
            open[from] -= 1;
            if open[from] == 0 {
                ready.push(from);
            }
        }
    }
    if done == actors.len() {
        return Ok(heights);
    }
    Err(BuildError::Cycle { actors: ring(actors, &next, &open) })
}

/// One ring among the actors that are still open: each of those has a follower that is open too.
fn ring<P>(actors: &[ActorSpec<P>], next: &[Vec<usize>], open: &[usize]) -> Vec<String> {
    let mut path: Vec<usize> = Vec::new();
    let mut at = open.iter().position(|&left| left > 0);
    while let Some(actor) = at {
        if let Some(start) = path.iter().position(|&other| other == actor) {
            path.drain(..start);
            path.push(actor);
            break;
        }
        path.push(actor);
        at = next[actor].iter().copied().find(|&to| open[to] > 0);
    }
    path.into_iter().map(|actor| actors[actor].name.to_string()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stage::stage_fn;

    fn builder(actors: usize) -> (TopologyBuilder<i64>, Vec<ActorId>) {
        let mut builder = Topology::builder();
        let ids = (0..actors)
            .map(|n| builder.actor(format!("a{n}"), "cpu", 1, 1, stage_fn(Ok)))
            .collect();
        (builder, ids)
    }

    #[test]
    fn heights_count_what_follows() {
        let (mut b, a) = builder(3);
        let x = b.source("x");
        let y = b.sink("y");
        b.connect(x, a[2].input(0));
        b.connect(a[2].output(0), a[0].input(0));
        b.connect(a[0].output(0), a[1].input(0));
        b.connect(a[1].output(0), y);
        let topology = b.build().unwrap();
        let heights: Vec<_> = topology.actors.iter().map(|actor| actor.height).collect();
        assert_eq!(heights, [1, 0, 2]);
        assert_eq!(topology.depth, 3);
    }

    #[test]
    fn wrong_wirings_are_refused_by_name() {
        let (mut b, a) = builder(2);
        b.connect(a[0].output(0), a[1].input(0)).connect(a[1].output(0), a[0].input(0));
        let error = b.build().unwrap_err();
        assert_eq!(error.to_string(), "the actors `a0` -> `a1` -> `a0` feed each other in a ring");

        let (mut b, a) = builder(1);
        let x = b.source("x");
        b.connect(x, a[0].input(0)).connect(a[0].output(3), InPort::Sink(0));
        let error = b.build().unwrap_err();
        assert_eq!(error, BuildError::UnknownPort { port: "output 3 of actor `a0`".into() });

        let (b, _) = builder(1);
        let error = b.build().unwrap_err();
        assert_eq!(error, BuildError::Unconnected { port: "input 0 of actor `a0`".into() });

        let (mut b, a) = builder(1);
        let x = b.source("x");
        b.connect(x, a[0].input(0)).connect(x, a[0].input(0));
        assert!(matches!(b.build(), Err(BuildError::ConnectedTwice { .. })));

        let (mut b, _) = builder(1);
        b.actor("a0", "cpu", 1, 1, stage_fn(Ok));
        assert!(matches!(b.build(), Err(BuildError::DuplicateName { .. })));

        let (mut b, _) = builder(0);
        b.actor("free", "cpu", 0, 1, stage_fn(Ok));
        assert_eq!(b.build().unwrap_err(), BuildError::NoInputs { actor: "free".into() });

        let (mut b, _) = builder(0);
        b.sink("y");
        assert_eq!(b.build().unwrap_err(), BuildError::Unconnected { port: "sink `y`".into() });

        let (mut b, _) = builder(0);
        b.lanes("gpu", 0);
        assert_eq!(b.build().unwrap_err(), BuildError::NoLanes { device: "gpu".into() });
    }
}
