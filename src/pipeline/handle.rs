//! The pipeline: a graph as device actors through which items stream.

use std::collections::{BTreeMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use brigade_actors as actors;

use super::batch::BatchAxes;
use super::executable::HeteroExecutable;
use super::prepared::Prepared;
use super::profile::GraphProfile;
use super::stage::{item_error, on_host};
use super::state::{State, StateBinding};
use crate::error::{Error, ErrorKind, Result, bail, err};
use crate::partition::OutputSource;
use crate::tensor::{Tensor, Value};

/// A running pipeline of device actors. Cheap to clone; all methods take `&self`.
///
/// ```
/// use brigade::ops::builder::GraphBuilder;
/// use brigade::{DType, Pipeline, Tensor};
///
/// let mut g = GraphBuilder::new("two");
/// let x = g.input("x", DType::F32, ["N".into(), 2.into()])?;
/// let h = g.relu(x)?;
/// let y = g.add(h, h)?;
/// let graph = g.finish([("y", y)])?;
///
/// let pipeline = Pipeline::builder(graph).stages(2, &["cpu:0", "cpu:1"])?.micro_batch(1).spawn()?;
/// let batch = Tensor::new([3, 2], vec![1.0_f32, -1.0, 2.0, -2.0, 3.0, -3.0])?;
/// let outputs = pipeline.run([("x", batch)])?;
/// assert_eq!(outputs[0].tensor()?.as_slice::<f32>()?, [2.0, 0.0, 4.0, 0.0, 6.0, 0.0]);
/// # Ok::<(), brigade::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Pipeline {
    inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    pub(super) prepared: Arc<Prepared>,
    pub(super) actors: actors::Pipeline<Value>,
    /// What outputs that no segment makes are, by place.
    pub(super) fixed: Vec<(usize, Tensor)>,
    pub(super) micro_batch: Option<usize>,
    pub(super) stated_axes: BTreeMap<String, Option<usize>>,
    pub(super) axes: std::sync::OnceLock<Result<BatchAxes>>,
    pub(super) ops: crate::ops::OpRegistry,
    pub(super) notices: Vec<String>,
}

impl Inner {
    /// What the sources are given for these inputs: where the graph has none, what starts its
    /// first segment.
    fn fed(&self, mut inputs: Vec<Value>) -> Vec<Value> {
        if self.prepared.needs_start() {
            inputs.push(Value::Optional(None));
        }
        inputs
    }

    /// The graph's outputs from what arrived at the sinks.
    fn assemble(&self, sinks: Vec<Value>) -> Vec<Value> {
        let mut out: Vec<Value> = sinks.into_iter().map(on_host).collect();
        for (at, tensor) in &self.fixed {
            out.insert(*at, tensor.clone().into());
        }
        out
    }

    fn finish(&self, result: Result<Vec<Value>, actors::ItemError>) -> Result<Vec<Value>> {
        match result {
            Ok(sinks) => Ok(self.assemble(sinks)),
            Err(e) => Err(item_error(&e)),
        }
    }
}

/// Named inputs of one item.
fn named<N: Into<String>, V: Into<Value>>(
    inputs: impl IntoIterator<Item = (N, V)>,
) -> Vec<(String, Value)> {
    inputs.into_iter().map(|(n, v)| (n.into(), v.into())).collect()
}

#[allow(clippy::needless_pass_by_value)] // for `map_err`
fn push_error<I>(error: actors::PushError<I>) -> Error {
    match error.kind() {
        actors::PushErrorKind::Full => {
            err!(Full, "the pipeline is full").with_help("wait with `push`, or take results first")
        }
        actors::PushErrorKind::Expired => err!(Deadline, "no place came free before the deadline"),
        actors::PushErrorKind::Closed(cause) => {
            let cause = item_error(cause);
            Error::new(ErrorKind::Stopped, format!("the pipeline takes nothing more: {cause}"))
        }
        other => err!(Internal, "push: {other:?}"),
    }
}

impl Pipeline {
    pub(super) fn new(inner: Inner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// Runs a batch: cuts it into micro-batches, streams them, joins the results. Without a
    /// micro-batch size, or where the batch is no larger, it is one item.
    ///
    /// # Errors
    /// If an input is not what was declared; if the batch may not be cut (names the node); the
    /// first error of a micro-batch.
    pub fn run<N: Into<String>, V: Into<Value>>(
        &self,
        inputs: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Vec<Value>> {
        let inputs = self.inner.prepared.arrange(named(inputs))?;
        let Some(size) = self.inner.micro_batch else {
            return self.push_ordered(inputs)?.wait();
        };
        let axes = match self.batch_axes() {
            Ok(axes) => axes,
            // What is fixed at one item, or small enough, is one item.
            Err(e) => {
                let items = inputs.first().and_then(|v| v.shape()?.first().copied()).unwrap_or(1);
                return if items <= size { self.push_ordered(inputs)?.wait() } else { Err(e) };
            }
        };
        let total = axes.count(&inputs)?;
        if total <= size {
            return self.push_ordered(inputs)?.wait();
        }
        let starts: Vec<usize> = (0..total).step_by(size).collect();
        let parts = starts.iter().map(|s| axes.cut(&inputs, *s, size.min(total - s)));
        let mut results = Vec::with_capacity(starts.len());
        for result in Stream::new(self.clone(), parts) {
            results.push(result?);
        }
        axes.join(results)
    }

    /// What each node did until now, in all actors and in the sequential executor of this pipeline;
    /// `None` unless it was built with [`CompileOptions::profile`](crate::CompileOptions::profile).
    pub fn node_profile(&self) -> Option<GraphProfile> {
        self.inner.prepared.profile()
    }

    /// Along which axes a batch is cut and joined.
    ///
    /// # Errors
    /// If the batch may not be cut; names the node.
    pub fn batch_axes(&self) -> Result<BatchAxes> {
        self.inner
            .axes
            .get_or_init(|| {
                BatchAxes::find(
                    self.inner.prepared.graph(),
                    &self.inner.ops,
                    &self.inner.stated_axes,
                )
            })
            .clone()
    }

    /// Streams items; results come in order, one for each item, value or error. Never reads
    /// further ahead than the number in flight.
    pub fn stream<I, T, N, V>(
        &self,
        items: I,
    ) -> Stream<impl Iterator<Item = Result<Vec<Value>>> + use<I, T, N, V>>
    where
        I: IntoIterator<Item = T>,
        T: IntoIterator<Item = (N, V)>,
        N: Into<String>,
        V: Into<Value>,
    {
        let prepared = Arc::clone(&self.inner.prepared);
        let items = items.into_iter().map(move |item| prepared.arrange(named(item)));
        Stream::new(self.clone(), items)
    }

    /// Puts an item in flight; waits while the pipeline is full.
    ///
    /// # Errors
    /// If an input is not what was declared, or the pipeline has stopped.
    pub fn push<N: Into<String>, V: Into<Value>>(
        &self,
        inputs: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Ticket> {
        self.push_ordered(self.inner.prepared.arrange(named(inputs))?)
    }

    /// Puts an item in flight, if the pipeline is not full.
    ///
    /// # Errors
    /// [`ErrorKind::Full`] if it is; else as [`Self::push`].
    pub fn try_push<N: Into<String>, V: Into<Value>>(
        &self,
        inputs: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Ticket> {
        let inputs = self.inner.prepared.arrange(named(inputs))?;
        let ticket = self.inner.actors.try_push(self.inner.fed(inputs)).map_err(push_error)?;
        Ok(self.ticket(ticket))
    }

    /// As [`Self::push`], but gives up at a deadline.
    ///
    /// # Errors
    /// [`ErrorKind::Deadline`] if it passed; else as [`Self::push`].
    pub fn push_deadline<N: Into<String>, V: Into<Value>>(
        &self,
        inputs: impl IntoIterator<Item = (N, V)>,
        deadline: Instant,
    ) -> Result<Ticket> {
        let inputs = self.inner.prepared.arrange(named(inputs))?;
        let ticket = self
            .inner
            .actors
            .push_deadline(self.inner.fed(inputs), deadline)
            .map_err(push_error)?;
        Ok(self.ticket(ticket))
    }

    /// Runs one item, on any executor: waits for a place and for the result without blocking.
    ///
    /// # Errors
    /// As [`Self::push`], or the item's own error.
    pub async fn infer<N: Into<String>, V: Into<Value>>(
        &self,
        inputs: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Vec<Value>> {
        let inputs = self.inner.prepared.arrange(named(inputs))?;
        let ticket =
            self.inner.actors.push_async(self.inner.fed(inputs)).await.map_err(push_error)?;
        self.ticket(ticket).await
    }

    pub(super) fn push_ordered(&self, inputs: Vec<Value>) -> Result<Ticket> {
        let ticket = self.inner.actors.push(self.inner.fed(inputs)).map_err(push_error)?;
        Ok(self.ticket(ticket))
    }

    fn ticket(&self, ticket: actors::Ticket<Value>) -> Ticket {
        Ticket { inner: Arc::clone(&self.inner), ticket }
    }

    /// Opens a stream with state carried from each item to the next. Items of one stream run in
    /// order, one at a time; several streams interleave.
    ///
    /// # Errors
    /// If the state names an input or output that is not there, or an initial value is not what
    /// the input declares.
    pub fn open_stream(&self, state: State) -> Result<StateStream> {
        let graph = self.inner.prepared.graph();
        let outputs: Vec<String> = graph.output_names().map(str::to_owned).collect();
        let binding = StateBinding::new(state, Arc::clone(&self.inner.prepared), &outputs)?;
        let bound = binding.bound();
        let sinks = self.sink_places();
        let handle = self.inner.actors.open_stream(binding.over_sinks(&sinks)?);
        Ok(StateStream { pipeline: self.clone(), handle, bound })
    }

    /// The place among the sinks of each graph output that has one.
    fn sink_places(&self) -> Vec<Option<usize>> {
        let mut next = 0;
        let place = |source: &OutputSource| match source {
            OutputSource::Constant(_) | OutputSource::Param(_) => None,
            _ => {
                next += 1;
                Some(next - 1)
            }
        };
        self.inner.prepared.split().outputs().iter().map(place).collect()
    }

    /// The same plan run sequentially: the oracle of this pipeline.
    pub fn sequential(&self) -> HeteroExecutable {
        HeteroExecutable::over(Arc::clone(&self.inner.prepared), &self.inner.notices)
    }

    /// What the actors did so far.
    pub fn stats(&self) -> actors::Stats {
        self.inner.actors.stats()
    }

    /// What was recorded, if the pipeline was spawned with a trace.
    pub fn trace(&self) -> actors::Trace {
        self.inner.actors.trace()
    }

    /// When the pipeline was spawned: the beginning of the times in its trace.
    pub fn begun(&self) -> Instant {
        self.inner.actors.begun()
    }

    /// Where the time since the spawn went: per actor its device and how much it ran, waited and handed
    /// over; throughput, bound and bottleneck; the trace, if the pipeline was spawned with one.
    pub fn profile(&self) -> actors::Profile {
        self.inner.actors.profile()
    }

    /// How many items may be in flight.
    pub fn in_flight_limit(&self) -> usize {
        self.inner.actors.in_flight_limit()
    }

    /// The micro-batch size, if one was set.
    pub fn micro_batch(&self) -> Option<usize> {
        self.inner.micro_batch
    }

    /// What its user should hear of: nodes that fell back, rules that place nothing.
    pub fn notices(&self) -> &[String] {
        &self.inner.notices
    }

    /// The names of the outputs, in order.
    pub fn output_names(&self) -> Vec<String> {
        self.inner.prepared.graph().output_names().map(str::to_owned).collect()
    }

    /// Takes nothing more and waits for what is in flight, until a deadline if there is one.
    ///
    /// # Errors
    /// [`ErrorKind::Deadline`] if items are left.
    pub fn drain(&self, deadline: Option<Duration>) -> Result<()> {
        let until = deadline.map(|d| Instant::now() + d);
        self.inner.actors.drain(until).map_err(|e| Error::new(ErrorKind::Deadline, e.to_string()))
    }

    /// Stops now: what is in flight becomes errors. Returns the actors that were stuck in foreign
    /// code and left behind.
    pub fn shutdown(&self) -> Vec<String> {
        self.inner.actors.shutdown().detached
    }
}

/// The result of an item, sooner or later. A future, too; dropping it is fine.
#[derive(Debug)]
pub struct Ticket {
    inner: Arc<Inner>,
    ticket: actors::Ticket<Value>,
}

impl Ticket {
    /// The item's sequence number.
    pub fn number(&self) -> u64 {
        self.ticket.seq().number()
    }

    /// Waits for the outputs, in the order of declaration.
    ///
    /// # Errors
    /// The item's own error.
    pub fn wait(self) -> Result<Vec<Value>> {
        let result = self.ticket.wait();
        self.inner.finish(result)
    }

    /// Waits for the outputs no longer than `timeout`; `None` if they are not there by then.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<Vec<Value>>> {
        self.ticket.wait_timeout(timeout).map(|r| self.inner.finish(r))
    }

    /// The outputs, if they are there.
    pub fn try_take(&mut self) -> Option<Result<Vec<Value>>> {
        self.ticket.try_take().map(|r| self.inner.finish(r))
    }
}

impl Future for Ticket {
    type Output = Result<Vec<Value>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        Pin::new(&mut this.ticket).poll(context).map(|r| this.inner.finish(r))
    }
}

/// The results of a stream of items, in order.
#[derive(Debug)]
pub struct Stream<I> {
    pipeline: Pipeline,
    items: Option<I>,
    ahead: VecDeque<Result<Ticket>>,
    /// An item that found the pipeline full.
    held: Option<Vec<Value>>,
}

impl<I: Iterator<Item = Result<Vec<Value>>>> Stream<I> {
    fn new(pipeline: Pipeline, items: I) -> Self {
        Self { pipeline, items: Some(items), ahead: VecDeque::new(), held: None }
    }

    /// Puts items in flight as long as there is room.
    fn fill(&mut self) {
        let limit = self.pipeline.in_flight_limit();
        while self.ahead.len() < limit {
            let inputs = match self.held.take() {
                Some(inputs) => inputs,
                None => match self.items.as_mut().and_then(Iterator::next) {
                    Some(Ok(inputs)) => self.pipeline.inner.fed(inputs),
                    Some(Err(e)) => {
                        self.ahead.push_back(Err(e));
                        continue;
                    }
                    None => {
                        self.items = None;
                        return;
                    }
                },
            };
            let actors = &self.pipeline.inner.actors;
            let pushed =
                if self.ahead.is_empty() { actors.push(inputs) } else { actors.try_push(inputs) };
            match pushed {
                Ok(ticket) => self.ahead.push_back(Ok(self.pipeline.ticket(ticket))),
                Err(e) if e.is_full() => {
                    self.held = Some(e.into_inputs());
                    return;
                }
                Err(e) => self.ahead.push_back(Err(push_error(e))),
            }
        }
    }
}

impl<I: Iterator<Item = Result<Vec<Value>>>> Iterator for Stream<I> {
    type Item = Result<Vec<Value>>;

    fn next(&mut self) -> Option<Self::Item> {
        self.fill();
        let next = self.ahead.pop_front()?;
        Some(next.and_then(Ticket::wait))
    }
}

/// A stream of items with carried state. Dropping it closes it.
#[derive(Debug)]
pub struct StateStream {
    pipeline: Pipeline,
    handle: actors::StreamHandle<Value>,
    /// Whether each input is bound by the state.
    bound: Vec<bool>,
}

impl StateStream {
    /// Puts the stream's next item in flight: the inputs that the state does not bind, by name.
    ///
    /// # Errors
    /// If an input is unknown, bound by the state, missing, or not what was declared.
    pub fn push<N: Into<String>, V: Into<Value>>(
        &self,
        inputs: impl IntoIterator<Item = (N, V)>,
    ) -> Result<Ticket> {
        let declared = self.pipeline.inner.prepared.inputs();
        let mut values: Vec<Option<Value>> = vec![None; declared.len()];
        for (name, value) in named(inputs) {
            let Some(i) = declared.iter().position(|(n, _)| *n == name) else {
                bail!(UnknownName, "the graph has no input `{name}`");
            };
            if self.bound[i] {
                bail!(Duplicate, "input `{name}` is bound by the stream's state");
            }
            if values[i].is_some() {
                bail!(Duplicate, "input `{name}` was given twice");
            }
            declared[i].1.admits(&value).map_err(|why| err!(Shape, "input `{name}`: {why}"))?;
            values[i] = Some(value);
        }
        let missing: Vec<&str> = (0..declared.len())
            .filter(|i| values[*i].is_none() && !self.bound[*i])
            .map(|i| declared[i].0.as_str())
            .collect();
        if !missing.is_empty() {
            bail!(Missing, "{}", super::prepared::listing("inputs were not given:", &missing));
        }
        if self.pipeline.inner.prepared.needs_start() {
            values.push(Some(Value::Optional(None)));
        }
        let ticket = self.handle.push(values).map_err(push_error)?;
        Ok(self.pipeline.ticket(ticket))
    }

    /// Why the state is lost, if an item of the stream failed.
    pub fn lost(&self) -> Option<Error> {
        self.handle.lost().map(|e| item_error(&e))
    }

    /// Closes the stream; items that were pushed still finish.
    pub fn close(self) {
        self.handle.close();
    }
}
