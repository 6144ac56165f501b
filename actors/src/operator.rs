//! Operators: what an actor does with numbers, beside computing.

use std::fmt;
use std::time::Duration;

use crate::error::ItemError;
use crate::outbox::Outbox;
use crate::packet::Firing;
use crate::payload::Payload;
use crate::stage::{Factory, Stage, StageContext, stage_fn};
use crate::topology::{ActorId, TopologyBuilder};

/// How an actor treats the items that it takes, for
/// [`TopologyBuilder::operator`].
///
/// What it computes is its stage's affair; this says which items come of it:
///
/// | operator | inputs of a firing | the stage emits | items |
/// |---|---|---|---|
/// | [`map`](Self::map) | one payload per port | [`emit`](Outbox::emit) | the same |
/// | [`flat_map`](Self::flat_map) | one payload per port | [`emit_list`](Outbox::emit_list): one payload per child | children |
/// | [`collect`](Self::collect) | [`Firing::children`] | `emit` | their parent |
/// | [`batch`](Self::batch) | one payload per member | `emit` | a batch |
/// | [`unbatch`](Self::unbatch) | one payload per port | `emit_list`: one payload per member | the members |
/// | [`merge`](Self::merge) | – | – (computes nothing) | the same |
pub struct Operator<P>(pub(crate) Role<P>);

pub(crate) enum Role<P> {
    Plain,
    FlatMap,
    Collect,
    Batch(Batching<P>),
    Unbatch,
    Merge,
}

impl<P> Role<P> {
    /// The operator with its article.
    pub(crate) const fn words(&self) -> &'static str {
        match self {
            Self::Plain => "a map",
            Self::FlatMap => "a flat_map",
            Self::Collect => "a collect",
            Self::Batch(_) => "a batch",
            Self::Unbatch => "an unbatch",
            Self::Merge => "a merge",
        }
    }
}

impl<P> Operator<P> {
    /// One item gives one item: what [`TopologyBuilder::actor`] adds.
    #[must_use]
    pub const fn map() -> Self {
        Self(Role::Plain)
    }

    /// One item gives a list of children, perhaps empty. With several output ports each child has
    /// one payload on every port. [`Stage::slots`] counts as 1.
    #[must_use]
    pub const fn flat_map() -> Self {
        Self(Role::FlatMap)
    }

    /// The children of one item become that item again, once all have come.
    #[must_use]
    pub const fn collect() -> Self {
        Self(Role::Collect)
    }

    /// Several items become one batch.
    #[must_use]
    pub const fn batch(batching: Batching<P>) -> Self {
        Self(Role::Batch(batching))
    }

    /// A batch becomes its members again.
    #[must_use]
    pub const fn unbatch() -> Self {
        Self(Role::Unbatch)
    }

    /// Passes the payload of the lowest port on that holds one. Ports that were filtered are left
    /// out; an item that was filtered on every port is filtered; a port with an error makes the
    /// item an error.
    #[must_use]
    pub const fn merge() -> Self {
        Self(Role::Merge)
    }
}

impl<P> fmt::Debug for Operator<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Operator({})", self.0.words())
    }
}

/// How a batch is put together.
///
/// A batch leaves when it is full (by count or by bytes), when its oldest member has waited for
/// [`max_age`](Self::max_age), and at once when it holds everything that has been sent its way and
/// the actors behind it are short of work. So nobody waits for items that do not come: one caller
/// that waits for one result never waits for the age.
///
/// ```
/// use std::time::Duration;
///
/// use brigade_actors::Batching;
///
/// let batching: Batching<String> = Batching::up_to(8)
///     .max_bytes(1 << 20)
///     .max_age(Duration::from_millis(5))
///     .keyed(|text: &String| text.len() as u64);
/// ```
#[must_use]
pub struct Batching<P> {
    pub(crate) count: usize,
    pub(crate) bytes: Option<usize>,
    pub(crate) age: Option<Duration>,
    pub(crate) key: Option<Key<P>>,
    pub(crate) retry: bool,
}

type Key<P> = Box<dyn FnMut(&P) -> u64 + Send>;

impl<P> Batching<P> {
    /// Batches of at most `count` members; 0 counts as 1.
    pub const fn up_to(count: usize) -> Self {
        let count = if count == 0 { 1 } else { count };
        Self { count, bytes: None, age: None, key: None, retry: false }
    }

    /// A batch also leaves once its members have this many bytes ([`Payload::bytes`]).
    pub const fn max_bytes(mut self, bytes: usize) -> Self {
        self.bytes = Some(bytes);
        self
    }

    /// A batch also leaves once its oldest member has waited this long.
    pub const fn max_age(mut self, age: Duration) -> Self {
        self.age = Some(age);
        self
    }

    /// Only items with the same key come into one batch: its shape, packed or hashed, where the
    /// batch is one tensor. Runs on the actor's thread, without a lane.
    pub fn keyed(mut self, key: impl FnMut(&P) -> u64 + Send + 'static) -> Self {
        self.key = Some(Box::new(key));
        self
    }

    /// If a stage fails or panics on a batch, its members are tried again, each in a batch of its
    /// own, so that only those fail that fail alone. Until then their payloads are kept.
    pub const fn retry_singly(mut self) -> Self {
        self.retry = true;
        self
    }
}

impl<P> fmt::Debug for Batching<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batching")
            .field("count", &self.count)
            .field("bytes", &self.bytes)
            .field("age", &self.age)
            .field("keyed", &self.key.is_some())
            .field("retry_singly", &self.retry)
            .finish()
    }
}

/// Operators from plain functions. Every one is an actor: a name, a device, a thread.
///
/// ```
/// use brigade_actors::{Batching, ItemError, Options, Pipeline, Topology};
///
/// // The sum of the squares of a list, the squares computed in batches.
/// type Numbers = Vec<i64>;
/// let mut builder = Topology::<Numbers>::builder();
/// let x = builder.source("x");
/// let each = builder.flat_map("each", "cpu:0", |list: Numbers| {
///     Ok(list.into_iter().map(|n| vec![n]).collect())
/// });
/// let batch = builder.batch("batch", "cpu:0", Batching::up_to(4), |members: Vec<Numbers>| {
///     Ok(members.concat())
/// });
/// let square = builder.map("square", "cpu:1", |batch: Numbers| {
///     Ok(batch.into_iter().map(|n| n * n).collect())
/// });
/// let unbatch = builder.unbatch("unbatch", "cpu:0", |batch: Numbers, _members| {
///     Ok(batch.into_iter().map(|n| vec![n]).collect())
/// });
/// let sum = builder.collect_values("sum", "cpu:0", |squares: Vec<Numbers>| {
///     Ok(vec![squares.concat().into_iter().sum()])
/// });
/// let y = builder.sink("y");
/// builder
///     .connect(x, each.input(0))
///     .connect(each.output(0), batch.input(0))
///     .connect(batch.output(0), square.input(0))
///     .connect(square.output(0), unbatch.input(0))
///     .connect(unbatch.output(0), sum.input(0))
///     .connect(sum.output(0), y);
///
/// let pipeline = Pipeline::spawn(builder.build()?, Options::new())?;
/// assert_eq!(pipeline.push(vec![vec![1, 2, 3]])?.wait()?, [[14]]);
/// assert_eq!(pipeline.push(vec![vec![]])?.wait()?, [[0]]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
impl<P: Payload> TopologyBuilder<P> {
    /// Adds an actor that treats items as `operator` says: see [`Operator`] for what its stage gets
    /// and emits.
    pub fn operator(
        &mut self,
        name: impl Into<String>,
        device: impl Into<String>,
        operator: Operator<P>,
        inputs: usize,
        outputs: usize,
        factory: impl FnMut(StageContext) -> Result<Box<dyn Stage<P>>, ItemError> + Send + 'static,
    ) -> ActorId {
        let actor = self.actor(name, device, inputs, outputs, factory);
        self.give_role(actor, operator.0);
        actor
    }

    /// One payload in, one out.
    pub fn map<F>(
        &mut self,
        name: impl Into<String>,
        device: impl Into<String>,
        mut function: F,
    ) -> ActorId
    where
        F: FnMut(P) -> Result<P, ItemError> + Clone + Send + 'static,
    {
        let factory = stage_fn(move |inputs| Ok(vec![function(one(inputs)?)?]));
        self.actor(name, device, 1, 1, factory)
    }

    /// One payload in, a list of children out; perhaps none.
    pub fn flat_map<F>(
        &mut self,
        name: impl Into<String>,
        device: impl Into<String>,
        mut function: F,
    ) -> ActorId
    where
        F: FnMut(P) -> Result<Vec<P>, ItemError> + Clone + Send + 'static,
    {
        let factory = listing(move |firing: Firing<P>| function(one(firing.inputs)?));
        self.operator(name, device, Operator::flat_map(), 1, 1, factory)
    }

    /// Passes the items on that `keep` is true for. The others are filtered: they travel on as
    /// errors of kind [`ErrorKind::Filtered`](crate::ErrorKind::Filtered), which no stage computes.
    pub fn filter<F>(
        &mut self,
        name: impl Into<String>,
        device: impl Into<String>,
        mut keep: F,
    ) -> ActorId
    where
        F: FnMut(&P) -> bool + Clone + Send + 'static,
    {
        self.map(name, device, move |payload| {
            if keep(&payload) { Ok(payload) } else { Err(ItemError::filtered("not kept")) }
        })
    }

    /// Collects what became of each child of one item, in the order in which they were given: a
    /// payload, or the error of the child. A filtered child is an error of kind
    /// [`ErrorKind::Filtered`](crate::ErrorKind::Filtered).
    pub fn collect<F>(
        &mut self,
        name: impl Into<String>,
        device: impl Into<String>,
        function: F,
    ) -> ActorId
    where
        F: FnMut(Vec<Result<P, ItemError>>) -> Result<P, ItemError> + Clone + Send + 'static,
    {
        let factory = move |_| Ok(Box::new(Collected(function.clone())) as Box<dyn Stage<P>>);
        self.operator(name, device, Operator::collect(), 1, 1, factory)
    }

    /// Collects the payloads of the children of one item, in their order. Filtered children are left
    /// out; if a child failed, the item fails with its error, the errors of others beside it.
    pub fn collect_values<F>(
        &mut self,
        name: impl Into<String>,
        device: impl Into<String>,
        mut function: F,
    ) -> ActorId
    where
        F: FnMut(Vec<P>) -> Result<P, ItemError> + Clone + Send + 'static,
    {
        self.collect(name, device, move |children| function(values(children)?))
    }

    /// Puts several payloads together into one.
    pub fn batch<F>(
        &mut self,
        name: impl Into<String>,
        device: impl Into<String>,
        batching: Batching<P>,
        mut function: F,
    ) -> ActorId
    where
        F: FnMut(Vec<P>) -> Result<P, ItemError> + Clone + Send + 'static,
    {
        let factory = stage_fn(move |members| Ok(vec![function(members)?]));
        self.operator(name, device, Operator::batch(batching), 1, 1, factory)
    }

    /// Cuts the payload of a batch into those of its members: the function gets their number and
    /// gives one payload for each, in the order in which they were put together. Another number
    /// breaks the contract, and is the error of every member.
    pub fn unbatch<F>(
        &mut self,
        name: impl Into<String>,
        device: impl Into<String>,
        mut function: F,
    ) -> ActorId
    where
        F: FnMut(P, usize) -> Result<Vec<P>, ItemError> + Clone + Send + 'static,
    {
        let factory = listing(move |firing: Firing<P>| {
            let members = firing.members;
            function(one(firing.inputs)?, members)
        });
        self.operator(name, device, Operator::unbatch(), 1, 1, factory)
    }

    /// Joins `inputs` ports by a function of their payloads.
    pub fn zip<F>(
        &mut self,
        name: impl Into<String>,
        device: impl Into<String>,
        inputs: usize,
        mut function: F,
    ) -> ActorId
    where
        F: FnMut(Vec<P>) -> Result<P, ItemError> + Clone + Send + 'static,
    {
        let factory = stage_fn(move |payloads| Ok(vec![function(payloads)?]));
        self.actor(name, device, inputs, 1, factory)
    }

    /// Joins `inputs` ports by taking the payload of the lowest one that holds one; see
    /// [`Operator::merge`]. Computes nothing and takes no lane.
    ///
    /// ```
    /// use brigade_actors::{Options, Pipeline, Topology};
    ///
    /// // Even numbers are halved, odd ones are negated.
    /// let mut builder = Topology::<i64>::builder();
    /// let x = builder.source("x");
    /// let even = builder.filter("even", "cpu:0", |n| n % 2 == 0);
    /// let half = builder.map("half", "cpu:0", |n| Ok(n / 2));
    /// let odd = builder.filter("odd", "cpu:1", |n| n % 2 != 0);
    /// let negate = builder.map("negate", "cpu:1", |n: i64| Ok(-n));
    /// let merge = builder.merge("merge", "cpu:0", 2);
    /// let y = builder.sink("y");
    /// builder
    ///     .connect(x, even.input(0))
    ///     .connect(even.output(0), half.input(0))
    ///     .connect(half.output(0), merge.input(0))
    ///     .connect(x, odd.input(0))
    ///     .connect(odd.output(0), negate.input(0))
    ///     .connect(negate.output(0), merge.input(1))
    ///     .connect(merge.output(0), y);
    /// let pipeline = Pipeline::spawn(builder.build()?, Options::new())?;
    /// assert_eq!(pipeline.push(vec![8])?.wait()?, [4]);
    /// assert_eq!(pipeline.push(vec![5])?.wait()?, [-5]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn merge(
        &mut self,
        name: impl Into<String>,
        device: impl Into<String>,
        inputs: usize,
    ) -> ActorId {
        let factory = stage_fn(Ok);
        self.operator(name, device, Operator::merge(), inputs, 1, factory)
    }
}

fn one<P>(inputs: Vec<P>) -> Result<P, ItemError> {
    let missing = || ItemError::failed("the actor fired without an input");
    inputs.into_iter().next().ok_or_else(missing)
}

/// The payloads of collected children: filtered ones left out, the errors of failed ones as one.
fn values<P>(children: Vec<Result<P, ItemError>>) -> Result<Vec<P>, ItemError> {
    let mut values = Vec::with_capacity(children.len());
    let mut errors = Vec::new();
    for child in children {
        match child {
            Ok(value) => values.push(value),
            Err(error) if error.is_filtered() => {}
            Err(error) => errors.push(error),
        }
    }
    ItemError::join(errors).map_or(Ok(values), Err)
}

/// A synchronous stage from a function of all inputs to the list on output 0: for a
/// [`flat_map`](Operator::flat_map) of several inputs.
///
/// ```
/// use brigade_actors::{Operator, Options, Pipeline, Topology, list_fn};
///
/// // The first input says how often the second one is repeated.
/// let mut builder = Topology::<i64>::builder();
/// let (count, value) = (builder.source("count"), builder.source("value"));
/// let repeat = list_fn(|v: Vec<i64>| Ok(vec![v[1]; usize::try_from(v[0]).unwrap_or(0)]));
/// let repeat = builder.operator("repeat", "cpu:0", Operator::flat_map(), 2, 1, repeat);
/// let values = builder.sink("values");
/// builder
///     .connect(count, repeat.input(0))
///     .connect(value, repeat.input(1))
///     .connect(repeat.output(0), values);
/// let pipeline = Pipeline::spawn(builder.build()?, Options::new())?;
/// assert_eq!(pipeline.push(vec![3, 7])?.wait()?, [7, 7, 7]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn list_fn<P, F>(mut function: F) -> Factory<P>
where
    P: 'static,
    F: FnMut(Vec<P>) -> Result<Vec<P>, ItemError> + Clone + Send + 'static,
{
    listing(move |firing: Firing<P>| function(firing.inputs))
}

/// A stage that emits the list that a function gives on port 0.
fn listing<P, F>(function: F) -> Factory<P>
where
    P: 'static,
    F: FnMut(Firing<P>) -> Result<Vec<P>, ItemError> + Clone + Send + 'static,
{
    Box::new(move |_| Ok(Box::new(Listing(function.clone()))))
}

struct Listing<F>(F);

impl<P, F: FnMut(Firing<P>) -> Result<Vec<P>, ItemError>> Stage<P> for Listing<F> {
    fn submit(&mut self, firing: Firing<P>, out: &mut Outbox<P>) -> Result<(), ItemError> {
        out.emit_list(0, (self.0)(firing)?);
        Ok(())
    }
}

struct Collected<F>(F);

impl<P, F> Stage<P> for Collected<F>
where
    F: FnMut(Vec<Result<P, ItemError>>) -> Result<P, ItemError>,
{
    fn submit(&mut self, firing: Firing<P>, out: &mut Outbox<P>) -> Result<(), ItemError> {
        out.emit(0, (self.0)(firing.children)?);
        Ok(())
    }
}
