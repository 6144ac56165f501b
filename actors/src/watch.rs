//! The watchdog: says who makes no progress.
//!
//! A thread of its own looks now and then whether results come while items are in flight. Where none
//! came for too long, it tells what every actor is doing and which edges hold items. A pipeline that
//! asks for no watchdog has no such thread and keeps no account for it.

use std::collections::VecDeque;
use std::fmt;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::engine::Engine;
use crate::error::{ErrorKind, ItemError};
use crate::metrics::{Phase, PipelineState, nanos};
use crate::payload::Payload;
use crate::sync::{Arc, Condvar, Mutex, lock, thread, wait_until};

/// What becomes of a pipeline that makes no progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum OnStall {
    /// It is told, and nothing else happens.
    #[default]
    Report,
    /// Every item in flight gets an error of kind [`ErrorKind::Stalled`] as its result, and the
    /// stages that hold one are asked to cancel it. The pipeline goes on when it can.
    FailItems,
    /// The pipeline fails as a whole, with the stall as the cause.
    FailPipeline,
}

/// What an actor is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Doing {
    /// Its stage computes, or has work open on its device.
    Computing,
    /// It has input and waits for a lane of its device.
    WaitingForLane,
    /// It waits for input.
    WaitingForInput,
    /// It makes children, and as many are in flight as may be.
    WaitingForChildren,
    /// It builds its stage, backs off before it does, or hands over.
    Building,
}

/// A pipeline in which items were in flight and no result came; see
/// [`Options::watchdog`](crate::Options::watchdog). Its [`Display`](fmt::Display) says it in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Stall {
    /// When it was found, in nanoseconds since the spawn.
    pub at_ns: u64,
    /// How long no result had come by then.
    pub lasted_ns: u64,
    /// Items that held a credit.
    pub in_flight: usize,
    /// Items that waited in the queue.
    pub queued: usize,
    /// The lowest number of an item in flight.
    pub oldest: Option<u64>,
    /// The actors that hold something up: those that do anything but wait for input, and, where all
    /// of them wait, those with an item on some of their edges but not on all.
    pub actors: Vec<StalledActor>,
    /// The edges on which items lie.
    pub edges: Vec<StalledEdge>,
}

/// An actor of a [`Stall`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StalledActor {
    /// Its name.
    pub name: String,
    /// Its device.
    pub device: String,
    /// What it is doing.
    pub doing: Doing,
    /// For how long.
    pub for_ns: u64,
}

/// An edge of a [`Stall`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StalledEdge {
    /// The giving port, in words.
    pub from: String,
    /// The taking port, in words.
    pub to: String,
    /// Items that lie in it.
    pub level: u64,
}

impl fmt::Display for StalledActor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, device, for_ns, .. } = self;
        write!(f, "actor `{name}` has been ")?;
        match self.doing {
            Doing::Computing => write!(f, "computing on `{device}`")?,
            Doing::WaitingForLane => write!(f, "waiting for a lane of `{device}`")?,
            Doing::WaitingForChildren => f.write_str("waiting for its children to leave")?,
            Doing::WaitingForInput => f.write_str("waiting for the rest of its input")?,
            Doing::Building => f.write_str("building its stage")?,
        }
        write!(f, " for {:.1?}", Duration::from_nanos(*for_ns))
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lasted = Duration::from_nanos(self.lasted_ns);
        write!(f, "no result for {lasted:.1?} with {} items in flight", self.in_flight)?;
        let mut lead = ": ";
        for actor in &self.actors {
            write!(f, "{lead}{actor}")?;
            lead = "; ";
        }
        for edge in &self.edges {
            write!(f, "{lead}{} items lie between {} and {}", edge.level, edge.from, edge.to)?;
            lead = "; ";
        }
        Ok(())
    }
}

/// What is called when a pipeline stalls.
pub(crate) type Listener = Arc<dyn Fn(&Stall) + Send + Sync>;

/// What a watchdog was asked for.
#[derive(Clone)]
pub(crate) struct WatchOptions {
    pub(crate) after: Duration,
    pub(crate) action: OnStall,
    pub(crate) listener: Option<Listener>,
}

impl Default for WatchOptions {
    fn default() -> Self {
        Self { after: Duration::from_secs(10), action: OnStall::Report, listener: None }
    }
}

impl fmt::Debug for WatchOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchOptions")
            .field("after", &self.after)
            .field("action", &self.action)
            .field("listener", &self.listener.is_some())
            .finish()
    }
}

/// The watchdog of one pipeline.
pub(crate) struct Watch {
    options: WatchOptions,
    state: Mutex<Watching>,
    changed: Condvar,
}

#[derive(Default)]
struct Watching {
    /// The pipeline stopped.
    over: bool,
    /// The thread runs, and which it is.
    running: bool,
    thread: Option<thread::ThreadId>,
    stalls: VecDeque<Stall>,
    count: u64,
}

/// Stalls that are kept: the last ones.
const KEPT: usize = 16;
/// How often progress is looked for, within the time that a stall takes.
const LOOKS: u32 = 4;
const SHORTEST_LOOK: Duration = Duration::from_millis(1);
const LONGEST_LOOK: Duration = Duration::from_secs(1);

impl Watch {
    pub(crate) fn new(options: WatchOptions) -> Self {
        Self { options, state: Mutex::new(Watching::default()), changed: Condvar::new() }
    }

    /// Ends the thread at its next look; does not wait for it.
    pub(crate) fn end(&self) {
        lock(&self.state).over = true;
        self.changed.notify_all();
    }

    /// Waits until the thread has ended, at most until `deadline`; true if it has, or is the
    /// calling one.
    pub(crate) fn wait(&self, deadline: Option<Instant>) -> bool {
        let mut state = lock(&self.state);
        let me = Some(thread::current().id());
        while state.running && state.thread != me {
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return false;
            }
            state = wait_until(&self.changed, state, deadline);
        }
        true
    }

    /// The last stalls, and how many there were.
    pub(crate) fn snapshot(&self) -> (Vec<Stall>, u64) {
        let state = lock(&self.state);
        (state.stalls.iter().cloned().collect(), state.count)
    }
}

/// Marks the end of the thread, whatever ended it.
struct Ended<'a>(&'a Watch);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        lock(&self.0.state).running = false;
        self.0.changed.notify_all();
    }
}

/// Starts the watchdog of a pipeline, if it has one.
pub(crate) fn start<P: Payload>(engine: &Arc<Engine<P>>) -> std::io::Result<()> {
    let Some(watch) = &engine.watch else {
        return Ok(());
    };
    lock(&watch.state).running = true;
    let watched = Arc::clone(engine);
    let name = format!("{}-watchdog", engine.name);
    let spawned = thread::Builder::new().name(name).spawn(move || {
        if let Some(watch) = &watched.watch {
            let _ended = Ended(watch);
            lock(&watch.state).thread = Some(thread::current().id());
            watched.keep_watch(watch);
        }
    });
    if spawned.is_err() {
        lock(&watch.state).running = false;
    }
    spawned.map(drop)
}

impl<P: Payload> Engine<P> {
    fn keep_watch(self: &Arc<Self>, watch: &Watch) {
        let look = (watch.options.after / LOOKS).clamp(SHORTEST_LOOK, LONGEST_LOOK);
        let mut completed = 0;
        let mut since = Instant::now();
        let mut told = false;
        loop {
            {
                let until = Instant::now().checked_add(look);
                let mut state = lock(&watch.state);
                while !state.over && until.is_none_or(|until| Instant::now() < until) {
                    state = wait_until(&watch.changed, state, until);
                }
                if state.over {
                    return;
                }
            }
            // Items that are too old leave the queue though nothing else moves.
            self.sweep_queue();
            let now = Instant::now();
            let done = self.completed();
            if done != completed || self.credits.wait_idle(Some(now)) == 0 {
                (completed, since, told) = (done, now, false);
                continue;
            }
            let lasted = now.saturating_duration_since(since);
            if told || lasted < watch.options.after {
                continue;
            }
            told = true;
            let stall = self.stall(now, lasted);
            {
                let mut state = lock(&watch.state);
                state.count += 1;
                if state.stalls.len() == KEPT {
                    state.stalls.pop_front();
                }
                state.stalls.push_back(stall.clone());
            }
            self.act_on(watch, &stall);
        }
    }

    fn act_on(self: &Arc<Self>, watch: &Watch, stall: &Stall) {
        if let Some(listener) = &watch.options.listener {
            // A listener that panics has nobody to tell.
            let told = std::panic::AssertUnwindSafe(|| listener(stall));
            let _ = std::panic::catch_unwind(told);
        }
        let error = || ItemError::new(ErrorKind::Stalled, stall.to_string());
        match watch.options.action {
            OnStall::Report => {}
            OnStall::FailItems => self.fail_items(&error()),
            OnStall::FailPipeline => self.stop(PipelineState::Failed, &error()),
        }
    }

    fn stall(&self, now: Instant, lasted: Duration) -> Stall {
        let levels: Vec<u64> = (0..self.edges.len()).map(|edge| self.level(edge)).collect();
        let doing = self.actors.iter().enumerate().map(|(me, actor)| {
            let (phase, since) = actor.meter.doing();
            let doing = match phase {
                Phase::Busy => Doing::Computing,
                Phase::Blocked if self.is_out_of_children(me) => Doing::WaitingForChildren,
                Phase::Blocked => Doing::WaitingForLane,
                Phase::Starved => Doing::WaitingForInput,
                Phase::Other => Doing::Building,
            };
            StalledActor {
                name: actor.name.to_string(),
                device: actor.device.to_string(),
                doing,
                for_ns: nanos(now.saturating_duration_since(since)),
            }
        });
        let all: Vec<_> = doing.collect();
        let mut actors: Vec<_> =
            all.iter().filter(|actor| actor.doing != Doing::WaitingForInput).cloned().collect();
        if actors.is_empty() {
            let holds =
                |me: usize| (0..levels.len()).any(|e| levels[e] > 0 && self.leads_to(e, me));
            actors = (0..all.len()).filter(|&me| holds(me)).map(|me| all[me].clone()).collect();
        }
        let edges = self.edges.iter().zip(&levels).filter(|(_, level)| **level > 0);
        Stall {
            at_ns: self.time(now),
            lasted_ns: nanos(lasted),
            in_flight: self.credits.used(),
            queued: self.credits.queued(),
            oldest: self.flight.oldest().map(|seq| seq.number()),
            actors,
            edges: edges
                .map(|(edge, &level)| StalledEdge {
                    from: edge.from.clone(),
                    to: edge.to.clone(),
                    level,
                })
                .collect(),
        }
    }
}
