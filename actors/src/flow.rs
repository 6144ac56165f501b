//! A topology as a sentence: one operator after the other.

use std::fmt;

use crate::error::{BuildError, ItemError};
use crate::operator::{Batching, Operator};
use crate::payload::Payload;
use crate::stage::{Stage, StageContext};
use crate::topology::{ActorId, OutPort, Topology, TopologyBuilder};

/// Builds a [`Topology`] operator by operator: each takes what the one before it gives.
///
/// Every operator is an actor with a name, a device and a thread; see [`TopologyBuilder`] for what
/// each does. Where the flow branches, [`fork`](Self::fork).
///
/// ```
/// use brigade_actors::{Batching, Flow, ItemError, Options, Pipeline};
///
/// // Text → the lengths of its words of more than one letter.
/// let topology = Flow::source("text")
///     .flat_map("words", "cpu:0", |text: String| {
///         Ok(text.split_whitespace().map(String::from).collect())
///     })
///     .filter("long", "cpu:0", |word| word.len() > 1)
///     .batch("batch", "cpu:0", Batching::up_to(16), |words: Vec<String>| Ok(words.join(" ")))
///     .map("measure", "cpu:1", |words: String| {
///         let lengths = words.split(' ').map(|word| word.len().to_string());
///         Ok(lengths.collect::<Vec<_>>().join(" "))
///     })
///     .unbatch("unbatch", "cpu:0", |lengths: String, _| {
///         Ok(lengths.split(' ').map(String::from).collect())
///     })
///     .collect_values("collect", "cpu:0", |lengths| Ok(lengths.join("+")))
///     .sink("lengths")
///     .build()?;
/// let pipeline = Pipeline::spawn(topology, Options::new())?;
/// let inputs = ["a bucket brigade", "", "I"].map(|text| vec![String::from(text)]);
/// let results: Result<Vec<_>, ItemError> = pipeline.stream(inputs).collect();
/// assert_eq!(results?, [["6+7"], [""], [""]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a flow that ends in no sink gives nothing"]
pub struct Flow<P> {
    builder: TopologyBuilder<P>,
    at: OutPort,
}

impl<P: Payload> Flow<P> {
    /// A flow of the items of one source.
    pub fn source(name: impl Into<String>) -> Self {
        let mut builder = Topology::builder();
        let at = builder.source(name);
        Self { builder, at }
    }

    /// The flow from `at` on, in a topology that was begun with the builder: for topologies with
    /// several sources, or actors with several outputs.
    pub const fn from_port(builder: TopologyBuilder<P>, at: OutPort) -> Self {
        Self { builder, at }
    }

    /// The builder, and where the flow has come to.
    pub fn into_parts(self) -> (TopologyBuilder<P>, OutPort) {
        (self.builder, self.at)
    }

    fn then(mut self, add: impl FnOnce(&mut TopologyBuilder<P>) -> ActorId) -> Self {
        let actor = add(&mut self.builder);
        self.builder.connect(self.at, actor.input(0));
        self.at = actor.output(0);
        self
    }

    /// An actor with one input and one output that runs the stages of `factory`.
    pub fn actor(
        self,
        name: impl Into<String>,
        device: impl Into<String>,
        factory: impl FnMut(StageContext) -> Result<Box<dyn Stage<P>>, ItemError> + Send + 'static,
    ) -> Self {
        self.then(|builder| builder.actor(name, device, 1, 1, factory))
    }

    /// Like [`actor`](Self::actor), for an actor that treats items as `operator` says.
    pub fn operator(
        self,
        name: impl Into<String>,
        device: impl Into<String>,
        operator: Operator<P>,
        factory: impl FnMut(StageContext) -> Result<Box<dyn Stage<P>>, ItemError> + Send + 'static,
    ) -> Self {
        self.then(|builder| builder.operator(name, device, operator, 1, 1, factory))
    }

    /// See [`TopologyBuilder::map`].
    pub fn map<F>(self, name: impl Into<String>, device: impl Into<String>, function: F) -> Self
    where
        F: FnMut(P) -> Result<P, ItemError> + Clone + Send + 'static,
    {
        self.then(|builder| builder.map(name, device, function))
    }

    /// See [`TopologyBuilder::flat_map`].
    pub fn flat_map<F>(
        self,
        name: impl Into<String>,
        device: impl Into<String>,
        function: F,
    ) -> Self
    where
        F: FnMut(P) -> Result<Vec<P>, ItemError> + Clone + Send + 'static,
    {
        self.then(|builder| builder.flat_map(name, device, function))
    }

    /// See [`TopologyBuilder::filter`].
    pub fn filter<F>(self, name: impl Into<String>, device: impl Into<String>, keep: F) -> Self
    where
        F: FnMut(&P) -> bool + Clone + Send + 'static,
    {
        self.then(|builder| builder.filter(name, device, keep))
    }

    /// See [`TopologyBuilder::collect`].
    pub fn collect<F>(self, name: impl Into<String>, device: impl Into<String>, function: F) -> Self
    where
        F: FnMut(Vec<Result<P, ItemError>>) -> Result<P, ItemError> + Clone + Send + 'static,
    {
        self.then(|builder| builder.collect(name, device, function))
    }

    /// See [`TopologyBuilder::collect_values`].
    pub fn collect_values<F>(
        self,
        name: impl Into<String>,
        device: impl Into<String>,
        function: F,
    ) -> Self
    where
        F: FnMut(Vec<P>) -> Result<P, ItemError> + Clone + Send + 'static,
    {
        self.then(|builder| builder.collect_values(name, device, function))
    }

    /// See [`TopologyBuilder::batch`].
    pub fn batch<F>(
        self,
        name: impl Into<String>,
        device: impl Into<String>,
        batching: Batching<P>,
        function: F,
    ) -> Self
    where
        F: FnMut(Vec<P>) -> Result<P, ItemError> + Clone + Send + 'static,
    {
        self.then(|builder| builder.batch(name, device, batching, function))
    }

    /// See [`TopologyBuilder::unbatch`].
    pub fn unbatch<F>(self, name: impl Into<String>, device: impl Into<String>, function: F) -> Self
    where
        F: FnMut(P, usize) -> Result<Vec<P>, ItemError> + Clone + Send + 'static,
    {
        self.then(|builder| builder.unbatch(name, device, function))
    }

    /// Branches: both ways begin here, and are joined by [`Fork::zip`] or [`Fork::merge`].
    ///
    /// ```
    /// use brigade_actors::{Flow, Options, Pipeline};
    ///
    /// let topology = Flow::source("n")
    ///     .fork(
    ///         |even| even.filter("even", "cpu:0", |n| n % 2 == 0).map("half", "cpu:0", |n| Ok(n / 2)),
    ///         |odd| odd.map("negate", "cpu:1", |n: i64| Ok(-n)),
    ///     )
    ///     .merge("first", "cpu:0")
    ///     .sink("y")
    ///     .build()?;
    /// let pipeline = Pipeline::spawn(topology, Options::new())?;
    /// assert_eq!(pipeline.push(vec![8])?.wait()?, [4]);
    /// assert_eq!(pipeline.push(vec![5])?.wait()?, [-5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn fork(
        self,
        first: impl FnOnce(Self) -> Self,
        second: impl FnOnce(Self) -> Self,
    ) -> Fork<P> {
        let Self { builder, at } = self;
        Fork { builder, from: at, ends: Vec::new() }.and(first).and(second)
    }

    /// Ends the flow in the sink of a topology.
    pub fn sink(mut self, name: impl Into<String>) -> TopologyBuilder<P> {
        let sink = self.builder.sink(name);
        self.builder.connect(self.at, sink);
        self.builder
    }

    /// Ends the flow in a sink, and checks the topology.
    ///
    /// # Errors
    ///
    /// As [`TopologyBuilder::build`].
    pub fn build(self, sink: impl Into<String>) -> Result<Topology<P>, BuildError> {
        self.sink(sink).build()
    }
}

/// A flow that has branched; see [`Flow::fork`].
#[must_use = "branches have to be joined"]
pub struct Fork<P> {
    builder: TopologyBuilder<P>,
    from: OutPort,
    ends: Vec<OutPort>,
}

impl<P: Payload> Fork<P> {
    /// One more way, from where the flow branched.
    pub fn and(mut self, way: impl FnOnce(Flow<P>) -> Flow<P>) -> Self {
        let end = way(Flow { builder: self.builder, at: self.from });
        self.builder = end.builder;
        self.ends.push(end.at);
        self
    }

    /// Joins the ways by a function of what each gives, in their order.
    pub fn zip<F>(self, name: impl Into<String>, device: impl Into<String>, function: F) -> Flow<P>
    where
        F: FnMut(Vec<P>) -> Result<P, ItemError> + Clone + Send + 'static,
    {
        self.join(|builder, ways| builder.zip(name, device, ways, function))
    }

    /// Joins the ways by taking what the first one gives that gives something: with a
    /// [`filter`](Flow::filter) on each, a choice.
    pub fn merge(self, name: impl Into<String>, device: impl Into<String>) -> Flow<P> {
        self.join(|builder, ways| builder.merge(name, device, ways))
    }

    fn join(mut self, add: impl FnOnce(&mut TopologyBuilder<P>, usize) -> ActorId) -> Flow<P> {
        let actor = add(&mut self.builder, self.ends.len());
        for (port, end) in self.ends.into_iter().enumerate() {
            self.builder.connect(end, actor.input(port));
        }
        Flow { builder: self.builder, at: actor.output(0) }
    }
}

impl<P> fmt::Debug for Flow<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow").field("at", &self.at).finish_non_exhaustive()
    }
}

impl<P> fmt::Debug for Fork<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fork")
            .field("from", &self.from)
            .field("ends", &self.ends)
            .finish_non_exhaustive()
    }
}
