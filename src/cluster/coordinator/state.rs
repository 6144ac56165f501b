//! What the coordinator knows: workers, stages, firings.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use brigade_actors::transport::Link;

use super::{Loss, StageTimes};
use crate::cluster::message::{FiringKey, Measurement, Offer, Readiness};
use crate::cluster::question::Answers;
use crate::cluster::spec::AUTO;
use crate::device::{Delivery, DeviceId, LinkFigures};
use crate::error::{Error, Result, err};
use crate::graph::Fact;
use crate::tensor::Value;

/// How a worker is doing.
#[derive(Clone, Debug)]
pub(super) enum Life {
    /// Its link stands.
    Up,
    /// It has not been connected yet, or its link broke then.
    Broken { since: Instant, why: String },
    /// Its lease is over, or another process took its place.
    Lost { since: Instant, why: String },
}

/// Answers to pings, for the clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Clock {
    pub(super) round_trip: Duration,
    /// The worker's clock less the coordinator's, in nanoseconds.
    pub(super) offset_ns: i128,
}

#[derive(Debug)]
pub(super) struct WorkerState {
    pub(super) name: String,
    pub(super) address: String,
    pub(super) life: Life,
    pub(super) link: Option<Link>,
    /// How many processes answered at its address: stages are those of one.
    pub(super) incarnation: u64,
    /// How many links there were: what an old one says does not count.
    pub(super) generation: u64,
    pub(super) dialling: bool,
    /// When it was last tried to reach it.
    pub(super) dialled: Option<Instant>,
    pub(super) offers: Vec<Offer>,
    pub(super) heard: Instant,
    pub(super) draining: bool,
    pub(super) clock: Option<Clock>,
    pub(super) pinged: Option<(u64, Instant)>,
    /// What it was not told of while its link was broken.
    pub(super) unreleased: Vec<FiringKey>,
    /// Whether it runs in this process, where no other worker reaches it.
    pub(super) here: bool,
}

impl WorkerState {
    /// A worker that was not reached yet.
    pub(super) fn new(name: &str, address: &str) -> Self {
        let now = Instant::now();
        Self {
            name: name.to_owned(),
            address: address.to_owned(),
            life: Life::Broken { since: now, why: "it was not reached yet".to_owned() },
            link: None,
            incarnation: 0,
            generation: 0,
            dialling: false,
            dialled: None,
            offers: Vec::new(),
            heard: now,
            draining: false,
            clock: None,
            pinged: None,
            unreleased: Vec::new(),
            here: false,
        }
    }

    pub(super) fn is_up(&self) -> bool {
        matches!(self.life, Life::Up)
    }

    /// What it offers as this device. Every number of a CPU is one more device with threads of its
    /// own.
    pub(super) fn offer(&self, device: &DeviceId) -> Option<&Offer> {
        let there = |o: &&Offer| {
            let kind = o.device.split(':').next();
            let cpu = device.kind() == "cpu" && kind == Some("cpu");
            cpu || device.on_its_worker().is_named(&o.device)
        };
        if device.kind() == AUTO {
            return self.offers.first();
        }
        self.offers.iter().find(there)
    }
}

impl WorkerState {
    /// That it is not reached, and why.
    pub(super) fn unreached(&self) -> Error {
        let name = &self.name;
        match &self.life {
            Life::Up => err!(Device, "worker `{name}` is not reached"),
            Life::Broken { why, .. } => err!(Device, "worker `{name}` is not reached: {why}"),
            Life::Lost { why, .. } => err!(Device, "worker `{name}` was lost: {why}"),
        }
    }
}

#[derive(Debug)]
pub(super) enum Phase {
    /// Its worker loads and compiles it.
    Shipping { heard: Instant, tensors: u64, bytes: u64 },
    /// Its worker refused it.
    Refused(Error),
    /// It is compiled.
    Compiled,
    /// It is compiled, and its neighbours know where it is.
    Ready,
    /// It is nowhere, and comes back nowhere.
    Dead(Error),
}

#[derive(Debug)]
pub(super) struct StageState {
    pub(super) name: String,
    pub(super) spec: Arc<Vec<u8>>,
    /// The device that was asked for.
    pub(super) device: DeviceId,
    pub(super) worker: usize,
    /// Which process of that worker it was shipped to.
    pub(super) incarnation: u64,
    pub(super) epoch: u32,
    pub(super) phase: Phase,
    /// Its worker is lost, and it is not placed again yet.
    pub(super) adrift: bool,
    /// How often it was lost while it had work, since it last completed any.
    pub(super) fruitless: u32,
    pub(super) inputs: Vec<(String, Fact)>,
    pub(super) outputs: Vec<(String, Fact)>,
    /// By output: the stages that read it where it lies.
    pub(super) routes: BTreeMap<u32, Vec<u64>>,
    pub(super) took: Readiness,
    pub(super) firings: u64,
    pub(super) busy_ns: u64,
    /// When it last completed something, or was given something while it had nothing.
    pub(super) moved: Instant,
    pub(super) open: usize,
    pub(super) times: VecDeque<StageTimes>,
}

/// What a firing came to, by its number, and how long its worker computed.
pub(super) type Finished = (u64, Result<Vec<Value>>, Option<Duration>);

/// Where an instance finds what its firings came to.
#[derive(Debug)]
pub(super) struct Desk {
    finished: Mutex<Vec<Finished>>,
    waker: Waker,
}

impl Desk {
    pub(super) fn new(waker: Waker) -> Self {
        Self { finished: Mutex::default(), waker }
    }

    pub(super) fn put(&self, number: u64, result: Result<Vec<Value>>, computed: Option<Duration>) {
        let mut finished = self.finished.lock().unwrap_or_else(PoisonError::into_inner);
        finished.push((number, result, computed));
        drop(finished);
        self.waker.wake_by_ref();
    }

    pub(super) fn take(&self) -> Vec<Finished> {
        std::mem::take(&mut *self.finished.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// An input of a firing.
#[derive(Debug)]
pub(super) enum Input {
    Host(Value),
    Held(Arc<super::device::HeldOutput>),
}

/// A firing that is under way, or whose outputs somebody holds.
#[derive(Debug)]
pub(super) struct Firing {
    pub(super) stage: u64,
    pub(super) number: u64,
    /// Kept as long as the outputs are, so that they can be computed again.
    pub(super) inputs: Vec<Input>,
    pub(super) deliveries: Vec<Delivery>,
    /// Outputs that came here.
    pub(super) given: Vec<Option<Value>>,
    pub(super) done: bool,
    /// How long the worker computed for it.
    pub(super) computed: Option<Duration>,
    /// Whether the worker was told, in this epoch of its stage.
    pub(super) sent: bool,
    pub(super) desk: Arc<Desk>,
}

/// What a worker answers.
#[derive(Debug)]
pub(super) enum Reply {
    /// It is done.
    Settled,
    Supported(Answers),
    Measured(Measurement),
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) workers: Vec<WorkerState>,
    pub(super) stages: HashMap<u64, StageState>,
    pub(super) firings: BTreeMap<u64, Firing>,
    /// Answers to what was asked of workers.
    pub(super) tickets: HashMap<u64, Option<Result<Reply>>>,
    /// When what was sent to measure a link was answered.
    pub(super) probes: HashMap<u64, Option<Instant>>,
    /// What is known of links, by the names of both ends in order, or why it is not.
    pub(super) links: BTreeMap<(String, String), Result<LinkFigures, String>>,
    pub(super) next: u64,
    pub(super) closed: bool,
    pub(super) losses: Vec<Loss>,
    pub(super) duplicates: u64,
    pub(super) resumed: u64,
    /// Somebody places stages again now.
    pub(super) replacing: bool,
    pub(super) lost_at: Option<Instant>,
}

impl State {
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Keeps an answer, if somebody waits for it.
    pub(super) fn answer(&mut self, ticket: u64, result: Result<Reply>) {
        if let Some(place) = self.tickets.get_mut(&ticket) {
            *place = Some(result);
        }
    }

    /// The worker of a stage, and its link if it stands.
    pub(super) fn link_of(&self, stage: u64) -> Option<&Link> {
        let worker = self.workers.get(self.stages.get(&stage)?.worker)?;
        worker.link.as_ref().filter(|_| worker.is_up())
    }

    pub(super) fn device_of(&self, stage: &StageState) -> String {
        let name = self.workers.get(stage.worker).map_or("?", |w| w.name.as_str());
        format!("{name}/{}", stage.device.on_its_worker())
    }
}
