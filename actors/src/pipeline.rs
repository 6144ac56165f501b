//! The handle on a running pipeline.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::error::{DrainError, ErrorKind, ItemError, PushError, SpawnError};
use crate::inbox::Flags;
#[cfg(feature = "control")]
use crate::inbox::StageWaker;
use crate::metrics::{PipelineState, Stats};
use crate::options::Options;
use crate::payload::Payload;
use crate::profile::Profile;
#[cfg(feature = "control")]
use crate::registry::ActorHandle;
use crate::registry::Supervised;
use crate::source::Patience;
use crate::spawn::{Threads, spawn};
use crate::state::{Binding, Carried};
use crate::stream::{Results, StreamHandle};
use crate::supervise::guarded;
use crate::sync::{Arc, Mutex, Ordering, lock};
use crate::system::System;
use crate::ticket::Ticket;
use crate::topology::Topology;
use crate::trace::Trace;

/// A handle on a running pipeline: cheap to clone, shared by any number of threads.
///
/// The last handle that is dropped shuts the pipeline down.
///
/// ```
/// use brigade_actors::{Options, Pipeline, Topology, stage_fn};
///
/// let mut builder = Topology::<i64>::builder();
/// let x = builder.source("x");
/// let inc = builder.actor("inc", "cpu:0", 1, 1, stage_fn(|v: Vec<i64>| Ok(vec![v[0] + 1])));
/// let twice = builder.actor("twice", "cpu:1", 1, 1, stage_fn(|v: Vec<i64>| Ok(vec![v[0] * 2])));
/// let y = builder.sink("y");
/// builder
///     .connect(x, inc.input(0))
///     .connect(inc.output(0), twice.input(0))
///     .connect(twice.output(0), y);
///
/// let pipeline = Pipeline::spawn(builder.build()?, Options::new().in_flight(4))?;
/// let results: Result<Vec<_>, _> = pipeline.stream((0..100).map(|n| vec![n])).collect();
/// let results: Vec<i64> = results?.into_iter().flatten().collect();
/// assert_eq!(results, (0..100).map(|n| (n + 1) * 2).collect::<Vec<_>>());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Pipeline<P: Payload> {
    handle: Arc<Handle<P>>,
}

/// Stops the pipeline when the last clone goes.
pub(crate) struct Handle<P: Payload> {
    pub(crate) engine: Arc<Engine<P>>,
    threads: Mutex<Threads>,
    stop_timeout: Duration,
}

/// What a shutdown left behind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StopReport {
    /// Actors whose thread did not end in time, because it is stuck in a stage. The thread was left
    /// to itself, and the lane that it holds counts as lost until it comes back.
    pub detached: Vec<String>,
}

impl<P: Payload> Clone for Pipeline<P> {
    fn clone(&self) -> Self {
        Self { handle: Arc::clone(&self.handle) }
    }
}

impl<P: Payload> fmt::Debug for Pipeline<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("name", &self.name())
            .field("state", &self.state())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

impl<P: Payload> Pipeline<P> {
    /// Starts a thread for every actor, builds the stages there, and waits until all are built.
    ///
    /// # Errors
    ///
    /// [`SpawnError`] names the actor whose stage could not be built; whatever had been started is
    /// stopped again.
    pub fn spawn(topology: Topology<P>, options: Options) -> Result<Self, SpawnError> {
        Self::spawn_in(&System::new(), topology, options)
    }

    pub(crate) fn spawn_in(
        system: &System,
        topology: Topology<P>,
        options: Options,
    ) -> Result<Self, SpawnError> {
        let stop_timeout = options.stop_timeout;
        let taken = |name: &str| {
            let message = format!(
                "a pipeline named `{name}` is alive in this system: shut it down, drop its last \
                 handle, or give another name"
            );
            SpawnError::Options(message)
        };
        if let Some(name) = options.name.as_deref().filter(|name| system.registry().contains(name))
        {
            return Err(taken(name));
        }
        let (engine, threads) = spawn(system, topology, options)?;
        let handle = Arc::new(Handle { engine, threads: Mutex::new(threads), stop_timeout });
        let supervised: Arc<dyn Supervised> = Arc::<Handle<P>>::clone(&handle);
        if !system.registry().enter(&supervised) {
            return Err(taken(&handle.engine.name));
        }
        Ok(Self { handle })
    }

    pub(crate) fn engine(&self) -> &Arc<Engine<P>> {
        &self.handle.engine
    }

    /// The name of the pipeline.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.engine().name
    }

    /// What the pipeline is doing.
    #[must_use]
    pub fn state(&self) -> PipelineState {
        self.engine().ending().map_or(PipelineState::Running, |(state, _)| state)
    }

    /// Items that hold a credit now.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.engine().credits.used()
    }

    /// The most items that may hold a credit.
    #[must_use]
    pub fn in_flight_limit(&self) -> usize {
        self.engine().credits.limit()
    }

    /// Pushes one item, one payload per source port. Waits while the pipeline is full, unless
    /// [`Options::when_full`] says otherwise.
    ///
    /// # Errors
    ///
    /// [`PushError`] gives the inputs back: there are too few or too many of them, or the pipeline
    /// takes no more items. A push that waits when the pipeline stops ends with the cause.
    pub fn push(&self, inputs: Vec<P>) -> Result<Ticket<P>, PushError<Vec<P>>> {
        self.push_with(inputs, Patience::Endless, false)
    }

    /// Like [`push`](Self::push), but does not wait.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push), and [`PushErrorKind::Full`](crate::PushErrorKind::Full). Under a
    /// policy that drops, a pipeline is never too full to take one more item.
    pub fn try_push(&self, inputs: Vec<P>) -> Result<Ticket<P>, PushError<Vec<P>>> {
        self.push_with(inputs, Patience::None, false)
    }

    /// Like [`push`](Self::push), for an item whose result is wanted by `deadline`: neither the push
    /// nor the wait for its result lasts longer, and actors skip the item once it is late.
    ///
    /// # Errors
    ///
    /// As [`push`](Self::push), and [`PushErrorKind::Expired`](crate::PushErrorKind::Expired).
    pub fn push_deadline(
        &self,
        inputs: Vec<P>,
        deadline: Instant,
    ) -> Result<Ticket<P>, PushError<Vec<P>>> {
        self.push_with(inputs, Patience::Until(deadline), false)
    }

    fn push_with(
        &self,
        inputs: Vec<P>,
        patience: Patience,
        insist: bool,
    ) -> Result<Ticket<P>, PushError<Vec<P>>> {
        let engine = self.engine();
        let item = engine.accept(inputs, patience, insist)?;
        Ok(Ticket::new(item, Arc::clone(engine)))
    }

    /// Like [`push`](Self::push), as a future for any executor: it waits for a credit without
    /// holding a thread.
    pub fn push_async(&self, inputs: Vec<P>) -> PushFuture<P> {
        PushFuture { engine: Arc::clone(self.engine()), inputs: Some(inputs), waiter: None }
    }

    /// Streams items: results come in the order of the inputs, one for each, value or error.
    ///
    /// The iterator is driven by the one that takes the results. It reads ahead of what was taken by
    /// at most [`in_flight_limit`](Self::in_flight_limit) items, and gives room back as results are
    /// taken; a consumer that stops taking holds up its own stream only. The stream keeps the
    /// pipeline alive.
    pub fn stream<I>(&self, inputs: I) -> Results<P, I::IntoIter>
    where
        I: IntoIterator<Item = Vec<P>>,
    {
        let pipeline = self.clone();
        let limit = self.clone();
        let window = move || limit.in_flight_limit();
        Results::new(window, inputs.into_iter(), move |inputs, patience| {
            pipeline.push_with(inputs, patience, true)
        })
    }

    /// Opens a stream of carried state: its items run one at a time and in order, and `binding`
    /// brings what one leaves behind into the next.
    pub fn open_stream(&self, binding: impl Binding<P>) -> StreamHandle<P> {
        let id = self.engine().next_stream.fetch_add(1, Ordering::Relaxed);
        StreamHandle::new(self.clone(), Carried::new(id, Box::new(binding)))
    }

    /// The figures of the pipeline.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.engine().stats()
    }

    /// The recorded events, as many as [`Options::trace`] keeps.
    #[must_use]
    pub fn trace(&self) -> Trace {
        self.engine().trace()
    }

    /// When the pipeline was spawned: the beginning of the times in its trace.
    #[must_use]
    pub fn begun(&self) -> Instant {
        self.engine().origin
    }

    /// Where the time since the spawn went: figures, report and trace in one call.
    #[must_use]
    pub fn profile(&self) -> Profile {
        Profile::new(self.stats(), self.trace())
    }

    /// Has the stage of `actor` dropped and built anew, as soon as it holds no open firing. No item
    /// is lost. `actor/N` names replica `N` of an actor with several, `actor` all of them. False if
    /// there is no such actor, or the pipeline was stopped or failed.
    pub fn restart(&self, actor: &str) -> bool {
        if self.engine().has_stopped() {
            return false;
        }
        let cells = self.engine().actors.iter();
        let named = cells.filter(|cell| &*cell.name == actor || &*cell.actor == actor);
        named.inspect(|cell| cell.bell.ring(Flags::RESTART)).count() > 0
    }

    /// Takes no more items and waits until those in flight have their results, at most until
    /// `deadline`. The pipeline stays closed; what is left when the deadline passes goes on. One that
    /// was shut down with nothing in flight is drained.
    ///
    /// # Errors
    ///
    /// [`DrainError`] says how many items are left, or were given up by a stop or a failure.
    pub fn drain(&self, deadline: Option<Instant>) -> Result<(), DrainError> {
        let engine = self.engine();
        engine.begin_drain();
        let left = engine.credits.wait_idle(deadline);
        engine.drained(left)
    }

    /// Like [`drain`](Self::drain), as a future without a deadline.
    pub fn drain_async(&self) -> DrainFuture<P> {
        self.engine().begin_drain();
        DrainFuture { engine: Arc::clone(self.engine()) }
    }

    /// Stops the pipeline now: items in flight get an error as their result, waiting pushes and
    /// tickets end, actors end after the firing that they are in. Waits for their threads, at most
    /// for the [`Options::stop_timeout`]; a thread that is stuck longer is left to itself and named.
    pub fn shutdown(&self) -> StopReport {
        self.handle.shutdown()
    }

    #[cfg(feature = "control")]
    pub(crate) fn supervised(&self) -> Arc<dyn Supervised> {
        Arc::<Handle<P>>::clone(&self.handle)
    }
}

impl<P: Payload> Engine<P> {
    fn drained(&self, left: usize) -> Result<(), DrainError> {
        let given_up = self.given_up.load(Ordering::Acquire);
        let failure = match self.ending() {
            Some((PipelineState::Failed, cause)) => Some(cause),
            // A stop that had nothing to give up leaves nothing to drain.
            Some((PipelineState::Stopped, cause)) if given_up > 0 => Some(cause),
            _ => None,
        };
        match (left.max(given_up), failure) {
            (0, None) => Ok(()),
            (left, None) => Err(DrainError { left, reason: "the deadline passed".into() }),
            (left, Some(cause)) => Err(DrainError { left, reason: cause.to_string() }),
        }
    }
}

impl<P: Payload> Handle<P> {
    fn shutdown(&self) -> StopReport {
        self.stop(Instant::now().checked_add(self.stop_timeout))
    }
}

impl<P: Payload> Supervised for Handle<P> {
    fn name(&self) -> &str {
        &self.engine.name
    }

    fn stats(&self) -> Stats {
        self.engine.stats()
    }

    fn has_ended(&self) -> bool {
        self.engine.has_stopped()
    }

    #[cfg(feature = "control")]
    fn actors(&self) -> Vec<ActorHandle> {
        let actors = self.engine.actors.iter();
        actors
            .map(|cell| ActorHandle {
                name: Arc::clone(&cell.name),
                actor: Arc::clone(&cell.actor),
                restart: StageWaker::ringing(Arc::clone(&cell.bell), Flags::RESTART),
            })
            .collect()
    }

    #[cfg(feature = "control")]
    fn begin_drain(&self) {
        self.engine.begin_drain();
    }

    #[cfg(feature = "control")]
    fn poll_drained(&self, context: &Context<'_>) -> Poll<Result<(), DrainError>> {
        self.engine.credits.poll_idle(context).map(|()| self.engine.drained(0))
    }

    #[cfg(feature = "control")]
    fn end_drain(&self) -> Result<(), DrainError> {
        self.engine.drained(self.engine.credits.used())
    }

    fn begin_stop(&self) {
        let cause = ItemError::new(ErrorKind::Shutdown, "the pipeline was shut down");
        self.engine.stop(PipelineState::Stopped, &cause);
    }

    #[cfg(feature = "control")]
    fn poll_stopped(&self, context: &Context<'_>) -> Poll<()> {
        self.engine.exits().poll(context)
    }

    fn stop(&self, deadline: Option<Instant>) -> StopReport {
        self.begin_stop();
        let left = self.engine.exits().wait(deadline);
        self.engine.leave_behind(&left);
        let threads = std::mem::take(&mut *lock(&self.threads));
        threads.join(&left);
        let watched = self.engine.watch.as_ref().is_none_or(|watch| watch.wait(deadline));
        let names = left.iter().map(|&me| self.engine.actors[me].name.to_string());
        let mut detached: Vec<String> = names.collect();
        if !watched {
            detached.push("watchdog".into());
        }
        StopReport { detached }
    }

    fn stop_timeout(&self) -> Duration {
        self.stop_timeout
    }
}

impl<P: Payload> Drop for Handle<P> {
    fn drop(&mut self) {
        let _ = guarded("the stop", || Ok(self.shutdown()));
    }
}

/// A push that waits for its credit; see [`Pipeline::push_async`].
#[must_use = "a future does nothing unless it is polled"]
pub struct PushFuture<P: Payload> {
    engine: Arc<Engine<P>>,
    inputs: Option<Vec<P>>,
    waiter: Option<u64>,
}

impl<P: Payload> Unpin for PushFuture<P> {}

impl<P: Payload> Future for PushFuture<P> {
    type Output = Result<Ticket<P>, PushError<Vec<P>>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let accepted = this.engine.poll_accept(&mut this.inputs, &mut this.waiter, context);
        accepted.map_ok(|item| Ticket::new(item, Arc::clone(&this.engine)))
    }
}

impl<P: Payload> Drop for PushFuture<P> {
    fn drop(&mut self) {
        if let Some(waiter) = self.waiter.take() {
            self.engine.credits.leave(waiter);
        }
    }
}

impl<P: Payload> fmt::Debug for PushFuture<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PushFuture").finish_non_exhaustive()
    }
}

/// A drain that waits without holding a thread; see [`Pipeline::drain_async`].
#[must_use = "a future does nothing unless it is polled"]
pub struct DrainFuture<P: Payload> {
    engine: Arc<Engine<P>>,
}

impl<P: Payload> Future for DrainFuture<P> {
    type Output = Result<(), DrainError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.engine.credits.poll_idle(context).map(|()| self.engine.drained(0))
    }
}

impl<P: Payload> fmt::Debug for DrainFuture<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DrainFuture").finish_non_exhaustive()
    }
}
