//! The thread of a stage: loads and compiles what was shipped, then computes firing by firing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crossbeam_channel::Receiver;

use super::lanes::Lanes;
use super::lock;
use super::quota::{Charge, Ledger};
use super::serving::Shared;
use super::session::Session;
use super::store::{Declared, Held};
use super::{Datapath, datapath};
use crate::cluster::StageSpec;
use crate::cluster::message::{FiringKey, Message, Readiness};
use crate::device::{
    CompiledSegment, Delivery, DeviceId, Instance, InstanceOptions, check_precision,
};
use crate::error::{ErrorKind, Result, bail, err};
use crate::graph::Fact;
use crate::import::WeightCache;
use crate::pipeline::{caught, checked};
use crate::tensor::Value;

/// How often the coordinator is told how far loading is.
const PROGRESS: Duration = Duration::from_millis(100);

/// A stage that is to be made ready.
#[derive(Debug)]
pub(super) struct Placing {
    pub(super) stage: u64,
    pub(super) epoch: u32,
    pub(super) bytes: Vec<u8>,
    /// What the bytes are charged as.
    pub(super) charge: Charge,
    pub(super) jobs: Receiver<FiringKey>,
    pub(super) stop: Arc<AtomicBool>,
}

/// A stage that is ready.
struct Stage {
    segment: Arc<dyn CompiledSegment>,
    device: DeviceId,
    memory: Option<String>,
    lanes: Arc<Lanes>,
    /// None after a panic, until the next firing.
    instance: Option<Box<dyn Instance>>,
    outputs: Vec<Delivery>,
    ledger: Arc<Ledger>,
    /// Of the weights.
    _charge: Charge,
}

/// Makes a stage ready and runs it until it is told to stop.
pub(super) fn run(session: &Arc<Session>, placing: Placing) {
    struct Counted(Arc<Shared>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.counters.stages.fetch_sub(1, Ordering::Relaxed);
        }
    }
    session.worker.counters.stages.fetch_add(1, Ordering::Relaxed);
    let _counted = Counted(Arc::clone(&session.worker));
    let Placing { stage, epoch, bytes, charge, jobs, stop } = placing;
    let loading = || load(session, stage, epoch, &bytes);
    let loaded = catch_unwind(AssertUnwindSafe(loading))
        .unwrap_or_else(|_| Err(err!(Panic, "loading the stage panicked")));
    drop((bytes, charge));
    let (mut ready, declared, took) = match loaded {
        Ok(loaded) => loaded,
        Err(e) => return session.not_ready(stage, epoch, &stop, &e),
    };
    let facts = declared.inputs.clone();
    if !session.ready(stage, &stop, declared, took) {
        return;
    }
    while let Ok(of) = jobs.recv() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let Some(job) = session.start(of) else { continue };
        let (values, charges) = values(job.inputs, &facts);
        let Some(lane) = ready.lanes.hold(&session.served, of, &stop) else { return };
        let start = session.worker.clock_ns();
        let outputs = values.and_then(|inputs| ready.compute(inputs));
        let end = session.worker.clock_ns();
        drop(lane);
        drop(charges);
        session.finish(of, job.epoch, (start, end), outputs, &ready.ledger);
    }
}

/// The values that are held, which must be what is declared, and what keeps them charged.
fn values(held: Vec<Held>, facts: &[Fact]) -> (Result<Vec<Value>>, Vec<Arc<Charge>>) {
    let (values, charges): (Vec<_>, Vec<_>) = held.into_iter().map(Held::into_value).unzip();
    let check = |(port, (value, fact)): (usize, (Result<Value>, &Fact))| {
        let checked = value.and_then(|value| match fact.admits(&value) {
            Ok(()) => Ok(value),
            Err(why) => Err(err!(Shape, "{why}")),
        });
        checked.map_err(|e| e.within(&format!("input {port}")))
    };
    (values.into_iter().zip(facts).enumerate().map(check).collect(), charges)
}

/// Bytes that the weights of a stage take as they are declared.
fn declared_bytes(spec: &StageSpec) -> u64 {
    let bytes = |name: &str| -> Option<u64> {
        let graph = spec.graph();
        let fact = &graph.value(graph.find(name)?).fact;
        let mut bytes = fact.dtype?.size() as u64;
        for extent in fact.concrete_shape()? {
            bytes = bytes.saturating_mul(extent as u64);
        }
        Some(bytes)
    };
    let names = spec.weights().iter().chain(spec.constants()).map(|w| w.name.as_str());
    names.filter_map(bytes).fold(0, u64::saturating_add)
}

fn nanoseconds(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn load(
    session: &Arc<Session>,
    stage: u64,
    epoch: u32,
    bytes: &[u8],
) -> Result<(Stage, Declared, Readiness)> {
    let began = Instant::now();
    let spec = StageSpec::decode(bytes)?;
    let what = format!("the stage `{}`", spec.name());
    let most = spec.memory_limit().unwrap_or(u64::MAX);
    let ledger = Ledger::new(what, most, Some(&session.ledger));
    let (ready, took) = match &session.worker.offered.datapath {
        Some(path) => (fixed(session, &spec, path, &ledger)?, Readiness::default()),
        None => compiled(session, (stage, epoch), &spec, &ledger, began)?,
    };
    let declared = Declared {
        epoch,
        inputs: spec.inputs().into_iter().map(|(_, fact)| fact.clone()).collect(),
        outputs: ready.outputs.len(),
        ledger,
    };
    Ok((ready, declared, took))
}

/// The stage of a worker with a fixed datapath.
fn fixed(
    session: &Session,
    spec: &StageSpec,
    path: &Datapath,
    ledger: &Arc<Ledger>,
) -> Result<Stage> {
    path.check(spec)?;
    let device: DeviceId = datapath::DEVICE.parse()?;
    let wanted = spec.wanted_device();
    if wanted != "auto" && wanted.parse::<DeviceId>()? != device {
        return Err(err!(Device, "there is no device `{wanted}`")
            .with_help(format!("this worker owns a fixed datapath: place it on `{device}`")));
    }
    let segment: Arc<dyn CompiledSegment> = Arc::new(path.clone());
    let lanes = session.worker.lanes_of(&device, 1);
    let charge = ledger.charge(0)?;
    Stage::new(segment, (device, None, lanes), spec, ledger, charge)
}

/// A stage that is compiled for one of the worker's devices.
fn compiled(
    session: &Arc<Session>,
    number: (u64, u32),
    spec: &StageSpec,
    ledger: &Arc<Ledger>,
    began: Instant,
) -> Result<(Stage, Readiness)> {
    let worker = &session.worker;
    if let Some(id) = spec.wanted_stage() {
        bail!(Unsupported, "the stage is for the fixed datapath `{id}`, which is not here");
    }
    let device = worker.offered.resolve(spec.wanted_device(), &worker.registry)?;
    let id = device.id().clone();
    let mut charge = ledger.charge(declared_bytes(spec))?;
    let read = Arc::new(AtomicU64::new(0));
    let weights = told(&worker.weights, session, number, &read);
    let graph = spec.resolve(&weights)?;
    let load_ns = nanoseconds(began);
    let compiling = Instant::now();
    let options = spec.compile_options();
    check_precision(device.as_ref(), options.precision)?;
    let segment = caught(&id, "compiling", || device.compile(graph, &options))
        .map_err(|e| e.with_device(id.to_string()))?;
    let weight_bytes = segment.weight_bytes() as u64;
    charge.resize(weight_bytes)?;
    let lanes = worker.lanes_of(&id, device.lanes());
    let stage = Stage::new(segment, (id, device.memory(), lanes), spec, ledger, charge)?;
    let took = Readiness {
        load_ns,
        compile_ns: nanoseconds(compiling),
        weight_bytes,
        read_bytes: read.load(Ordering::Relaxed),
    };
    Ok((stage, took))
}

/// The worker's weights, read in the name of a stage: its coordinator is told how far it is.
fn told(
    weights: &WeightCache,
    session: &Arc<Session>,
    (stage, epoch): (u64, u32),
    read: &Arc<AtomicU64>,
) -> WeightCache {
    let (session, read) = (Arc::clone(session), Arc::clone(read));
    let told = Mutex::new((Instant::now(), 0_u64));
    weights.clone().on_load(move |weight| {
        let more = weight.bytes as u64;
        session.worker.counters.read.fetch_add(more, Ordering::Relaxed);
        let bytes = read.fetch_add(more, Ordering::Relaxed) + more;
        let mut told = lock(&told);
        told.1 += 1;
        if told.0.elapsed() >= PROGRESS {
            told.0 = Instant::now();
            session.send(&Message::Progress { stage, epoch, tensors: told.1, bytes });
        }
    })
}

impl Stage {
    fn new(
        segment: Arc<dyn CompiledSegment>,
        (device, memory, lanes): (DeviceId, Option<String>, Arc<Lanes>),
        spec: &StageSpec,
        ledger: &Arc<Ledger>,
        charge: Charge,
    ) -> Result<Self> {
        let outputs = vec![Delivery::Host; spec.graph().outputs().len()];
        if segment.outputs().len() != outputs.len() {
            let (have, want) = (segment.outputs().len(), outputs.len());
            bail!(Internal, "the compiled stage has {have} outputs of {want}");
        }
        let mut stage = Self {
            segment,
            device,
            memory,
            lanes,
            instance: None,
            outputs,
            ledger: Arc::clone(ledger),
            _charge: charge,
        };
        stage.start()?;
        Ok(stage)
    }

    /// Makes an instance, on this thread, unless there is one.
    fn start(&mut self) -> Result<()> {
        if self.instance.is_none() {
            let options = InstanceOptions::for_this_thread().outputs(self.outputs.clone());
            let start = || self.segment.instance(options);
            let started = caught(&self.device, "starting an instance", start);
            self.instance = Some(started.map_err(|e| e.with_device(self.device.to_string()))?);
        }
        Ok(())
    }

    fn compute(&mut self, inputs: Vec<Value>) -> Result<Vec<Value>> {
        self.start()?;
        let Some(instance) = &mut self.instance else {
            bail!(Internal, "there is no instance");
        };
        let outputs = caught(&self.device, "the stage", || instance.run(inputs));
        if outputs.as_ref().is_err_and(|e| e.kind() == ErrorKind::Panic) {
            // Whatever state it is in now, nobody looks at it any more.
            let broken = self.instance.take();
            let _ = catch_unwind(AssertUnwindSafe(|| drop(broken)));
        }
        outputs
            .and_then(|o| checked(&self.device, self.memory.as_deref(), o, &self.outputs))
            .map_err(|e| e.with_device(self.device.to_string()))
    }
}
