//! The session of a coordinator on its workers: what pipelines ask of it.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use brigade_actors::transport::{Frame, Link, LinkError, Transport};

use super::device::{Held, HeldOutput};
use super::state::{Desk, Firing, Input, Life, Phase, State, WorkerState};
use super::{ClusterOptions, ClusterStats, StageReport, StageTimes, WorkerReport};
use crate::cluster::message::{FiringKey, Message, SessionId};
use crate::cluster::spec::AUTO;
use crate::device::{Delivery, DeviceId, DeviceInfo};
use crate::error::{Error, Result, bail, err};
use crate::registry::Registry;
use crate::tensor::{BufferPool, Event, QueueId, Resident, Value};

/// Memory for what workers give, as long as nobody holds it.
const POOL_BYTES: usize = 256 << 20;

/// How long workers may take to hear that the session is closed.
const CLOSING: Duration = Duration::from_secs(1);

/// Times that are kept of each stage.
pub(super) const TIMES_KEPT: usize = 4096;

pub(crate) struct Hub {
    pub(super) session: SessionId,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) options: ClusterOptions,
    pub(super) registry: Registry,
    pub(super) pool: BufferPool,
    pub(super) start: Instant,
    memory: String,
    queue: QueueId,
    state: Mutex<State>,
    /// A worker or a stage changed, which somebody may wait for.
    changed: Condvar,
    /// The same, for who watches over the workers.
    pub(super) alarm: Condvar,
    /// Firings whose outputs nobody holds any more. Apart from the state, since the last handle may
    /// go while that is locked.
    released: Mutex<Vec<FiringKey>>,
    /// The worker of this process, once one is needed.
    pub(super) here: Mutex<Option<(crate::cluster::Serving, Arc<dyn Transport>)>>,
}

impl fmt::Debug for Hub {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub").field("memory", &self.memory).finish_non_exhaustive()
    }
}

/// 16 bytes that nobody guesses.
fn unguessable() -> [u8; 16] {
    use std::hash::{BuildHasher, Hasher, RandomState};
    let mut out = [0; 16];
    // Each `RandomState` has keys of its own, from the system's random numbers.
    for half in out.chunks_mut(8) {
        let mut hasher = RandomState::new().build_hasher();
        hasher.write_u128(std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |d| d.as_nanos()));
        half.copy_from_slice(&hasher.finish().to_le_bytes());
    }
    out
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.close();
    }
}

impl Hub {
    pub(super) fn new(
        transport: Arc<dyn Transport>,
        registry: Registry,
        options: ClusterOptions,
    ) -> Result<Self> {
        let session = SessionId(unguessable());
        let head = u32::from_le_bytes([session.0[0], session.0[1], session.0[2], session.0[3]]);
        Ok(Self {
            session,
            transport,
            options,
            registry,
            pool: BufferPool::new(POOL_BYTES),
            start: Instant::now(),
            memory: format!("cluster-{head:08x}"),
            queue: QueueId::unique(),
            state: Mutex::default(),
            changed: Condvar::new(),
            alarm: Condvar::new(),
            released: Mutex::default(),
            here: Mutex::default(),
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells those who wait that a worker or a stage changed.
    pub(super) fn tell_all(&self) {
        self.changed.notify_all();
        self.alarm.notify_all();
    }

    /// Waits for a change of the state, a moment at most.
    pub(super) fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let moment = Duration::from_millis(50);
        self.changed.wait_timeout(state, moment).unwrap_or_else(PoisonError::into_inner).0
    }

    pub(super) fn memory(&self) -> &str {
        &self.memory
    }

    pub(super) fn roots(&self) -> &[PathBuf] {
        &self.options.roots
    }

    pub(super) fn add_worker(&self, name: &str, address: &str) -> Result<()> {
        DeviceId::cpu(0).at(name)?;
        let mut state = self.state();
        if let Some(other) = state.workers.iter().find(|w| w.address == address) {
            let other = &other.name;
            return Err(err!(Duplicate, "`{other}` and `{name}` are one worker, at {address}")
                .with_help("name each worker once; two of its devices are two stages on it"));
        }
        if state.workers.iter().any(|w| w.name == name) {
            return Err(err!(Duplicate, "two workers are named `{name}`")
                .with_help("give each a name: --workers a=HOST:PORT,b=HOST:PORT"));
        }
        state.workers.push(WorkerState::new(name, address));
        Ok(())
    }

    /// Waits until every worker is up.
    pub(super) fn await_workers(&self) -> Result<()> {
        let until = Instant::now() + self.options.connect;
        let mut state = self.state();
        loop {
            let refused = state.workers.iter().any(|w| matches!(w.life, Life::Lost { .. }));
            if state.workers.iter().all(WorkerState::is_up) {
                return Ok(());
            }
            if refused || Instant::now() >= until {
                let missing: Vec<String> = state
                    .workers
                    .iter()
                    .filter_map(|w| match &w.life {
                        Life::Up => None,
                        Life::Broken { why, .. } | Life::Lost { why, .. } => {
                            Some(format!("`{}` at {}: {why}", w.name, w.address))
                        }
                    })
                    .collect();
                return Err(err!(Device, "workers cannot be used\n  {}", missing.join("\n  ")));
            }
            state = self.wait(state);
        }
    }

    pub(super) fn offered(&self) -> Vec<DeviceId> {
        let state = self.state();
        let mut out = Vec::new();
        for worker in &state.workers {
            let names = worker.offers.iter().map(|o| o.device.as_str()).chain([AUTO]);
            out.extend(names.filter_map(|n| n.parse::<DeviceId>().ok()?.at(&worker.name).ok()));
        }
        out
    }

    pub(super) fn has_worker(&self, name: &str) -> bool {
        self.state().workers.iter().any(|w| w.name == name && !w.here)
    }

    pub(super) fn first_devices(&self) -> Vec<DeviceId> {
        let state = self.state();
        let workers = state.workers.iter().filter(|w| !w.here);
        let first = |w: &WorkerState| {
            let device = w.offers.first()?.device.parse::<DeviceId>().ok()?;
            device.at(&w.name).ok()
        };
        workers.filter_map(first).collect()
    }

    pub(super) fn probe(&self, id: &DeviceId) -> Result<DeviceInfo, String> {
        let state = self.state();
        let worker = state.workers.iter().find(|w| Some(w.name.as_str()) == id.worker());
        let Some(worker) = worker else { return Err("there is no such worker".to_owned()) };
        match &worker.life {
            Life::Up => {}
            Life::Broken { why, .. } | Life::Lost { why, .. } => {
                return Err(format!("worker `{}` is not reached: {why}", worker.name));
            }
        }
        let Some(offer) = worker.offer(id) else {
            let there: Vec<&str> = worker.offers.iter().map(|o| o.device.as_str()).collect();
            return Err(format!("worker `{}` offers {}", worker.name, there.join(", ")));
        };
        Ok(DeviceInfo {
            name: offer.product.clone(),
            features: vec![format!("worker `{}`", worker.name)],
            cores: None,
            memory_bytes: None,
            lanes: offer.lanes as usize,
            software: offer.software,
        })
    }

    pub(super) fn drop_stage(&self, stage: u64) {
        let mut state = self.state();
        // Those that read it hold what it handed over.
        let up = state.workers.iter().filter(|w| w.is_up());
        let links: Vec<Link> = up.filter_map(|w| w.link.clone()).collect();
        state.stages.remove(&stage);
        let gone: Vec<u64> =
            state.firings.iter().filter(|(_, f)| f.stage == stage).map(|(k, _)| *k).collect();
        let garbage: Vec<Firing> = gone.iter().filter_map(|k| state.firings.remove(k)).collect();
        drop(state);
        for link in links {
            tell(&link, &Message::Drop { stage });
        }
        drop(garbage);
        self.sweep();
    }

    pub(super) fn weight_bytes(&self, stage: u64) -> usize {
        let bytes = self.state().stages.get(&stage).map_or(0, |s| s.took.weight_bytes);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// Starts a firing: its inputs and the order to compute go to the stage's worker, at once or when
    /// it is there again.
    pub(super) fn submit(
        &self,
        stage: u64,
        number: u64,
        inputs: Vec<Input>,
        deliveries: &[Delivery],
        desk: &Arc<Desk>,
    ) -> Result<()> {
        let mut state = self.state();
        if state.closed {
            bail!(Stopped, "the cluster was closed");
        }
        let Some(s) = state.stages.get_mut(&stage) else { bail!(Stopped, "the stage was ended") };
        if let Phase::Dead(error) = &s.phase {
            return Err(error.clone());
        }
        if s.open == 0 {
            s.moved = Instant::now();
        }
        s.open += 1;
        let outputs = s.outputs.len();
        let firing = state.number();
        state.firings.insert(
            firing,
            Firing {
                stage,
                number,
                inputs,
                deliveries: deliveries.to_vec(),
                given: vec![None; outputs],
                done: false,
                computed: None,
                sent: false,
                desk: Arc::clone(desk),
            },
        );
        self.send_firing(&mut state, firing);
        drop(state);
        self.sweep();
        Ok(())
    }

    /// The outputs of a firing that is complete, as the pipeline takes them.
    pub(super) fn outputs(
        self: &Arc<Self>,
        key: FiringKey,
        firing: &mut Firing,
        kept: &[(u32, crate::DType, Vec<u64>)],
    ) -> Result<(Vec<Value>, bool)> {
        let mut held: Option<Arc<Held>> = None;
        let mut out = Vec::with_capacity(firing.given.len());
        for (o, delivery) in firing.deliveries.iter().enumerate() {
            let given = firing.given[o].take();
            let place = kept.iter().find(|k| k.0 as usize == o);
            let (Some((output, dtype, shape)), true) = (place, delivery.on_device()) else {
                // What is no tensor comes here in any case.
                match given {
                    Some(value) => out.push(value),
                    None => bail!(Internal, "output {o} of the stage did not come"),
                }
                continue;
            };
            let held =
                held.get_or_insert_with(|| Arc::new(Held { key, hub: Arc::downgrade(self) }));
            let shape: Vec<usize> =
                shape.iter().map(|n| usize::try_from(*n).unwrap_or(usize::MAX)).collect();
            let memory = Arc::new(HeldOutput { held: Arc::clone(held), output: *output });
            let resident = Resident::new(
                self.memory.as_str(),
                self.queue,
                *dtype,
                shape,
                memory,
                Event::done(),
            );
            out.push(Value::Resident(match (given, delivery) {
                (Some(Value::Tensor(t)), Delivery::Both) => resident.with_host(t),
                (_, Delivery::Both) => bail!(Internal, "output {o} of the stage did not come"),
                _ => resident,
            }));
        }
        Ok((out, held.is_some()))
    }

    /// Nobody holds the outputs of this firing any more.
    pub(super) fn let_go(&self, key: FiringKey) {
        self.released.lock().unwrap_or_else(PoisonError::into_inner).push(key);
    }

    /// Tells workers what they need not keep any more. Not called while the state is locked.
    pub(super) fn sweep(&self) {
        loop {
            let released = {
                let mut all = self.released.lock().unwrap_or_else(PoisonError::into_inner);
                std::mem::take(&mut *all)
            };
            if released.is_empty() {
                return;
            }
            let mut garbage = Vec::with_capacity(released.len());
            let mut state = self.state();
            for key in released {
                garbage.extend(state.firings.remove(&key.firing));
                self.release(&mut state, key);
            }
            drop(state);
            drop(garbage);
        }
    }

    /// Tells the worker of a stage, and those of its readers, to forget a firing.
    pub(super) fn release(&self, state: &mut State, key: FiringKey) {
        let Some(stage) = state.stages.get(&key.stage) else { return };
        let readers = stage.routes.values().flatten();
        let mut workers: BTreeSet<usize> =
            readers.filter_map(|r| state.stages.get(r)).map(|s| s.worker).collect();
        workers.insert(stage.worker);
        for worker in workers {
            let worker = &mut state.workers[worker];
            worker.unreleased.push(key);
            if !worker.is_up() || worker.unreleased.len() < RELEASED_TOGETHER {
                continue;
            }
            worker.flush_released();
        }
    }

    pub(super) fn close(&self) {
        let mut state = self.state();
        if std::mem::replace(&mut state.closed, true) {
            return;
        }
        let links: Vec<Link> = state.workers.iter_mut().filter_map(|w| w.link.take()).collect();
        let error = err!(Stopped, "the cluster was closed");
        let garbage = fail(&mut state, &error, |_| true);
        drop(state);
        self.tell_all();
        for link in &links {
            tell(link, &Message::Close);
            link.close();
        }
        // A process that ends now would end them before the workers know.
        let until = Instant::now() + CLOSING;
        for link in &links {
            link.wait_closed(until);
        }
        drop(garbage);
        self.sweep();
        drop(self.here.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    pub(super) fn stats(&self) -> ClusterStats {
        let links = self.links();
        let state = self.state();
        let workers = state.workers.iter().map(|w| WorkerReport {
            name: w.name.clone(),
            address: w.address.clone(),
            state: match &w.life {
                Life::Up => "up".to_owned(),
                Life::Broken { why, .. } => format!("broken: {why}"),
                Life::Lost { why, .. } => format!("lost: {why}"),
            },
            round_trip_us: w.clock.map(|c| c.round_trip.as_secs_f64() * 1e6),
            devices: w.offers.iter().map(|o| o.device.clone()).collect(),
        });
        let mut stages: Vec<StageReport> = state
            .stages
            .iter()
            .map(|(number, s)| StageReport {
                stage: *number,
                name: s.name.clone(),
                device: state.device_of(s),
                moves: s.epoch.saturating_sub(1),
                firings: s.firings,
                busy_s: s.busy_ns as f64 / 1e9,
                load_s: s.took.load_ns as f64 / 1e9,
                compile_s: s.took.compile_ns as f64 / 1e9,
                read_bytes: s.took.read_bytes,
            })
            .collect();
        stages.sort_by_key(|s| s.stage);
        ClusterStats {
            workers: workers.collect(),
            stages,
            losses: state.losses.clone(),
            duplicates: state.duplicates,
            resumed: state.resumed,
            held: state.firings.len(),
            links,
        }
    }

    pub(super) fn computed(&self) -> Vec<StageTimes> {
        let state = self.state();
        let mut all: Vec<StageTimes> =
            state.stages.values().flat_map(|s| s.times.iter().copied()).collect();
        all.sort_by_key(|t| t.start_ns);
        all
    }
}

/// So many releases go in one message; the monitor sends fewer when nothing else happens.
const RELEASED_TOGETHER: usize = 8;

impl WorkerState {
    /// Sends what was released and not told yet, if the link takes it.
    pub(super) fn flush_released(&mut self) {
        let Some(link) = self.link.as_ref().filter(|_| matches!(self.life, Life::Up)) else {
            return;
        };
        for some in self.unreleased.chunks(1024) {
            if !tell(link, &Message::Release { firings: some.to_vec() }) {
                return;
            }
        }
        self.unreleased.clear();
    }
}

/// Sends a message without a payload; whether it was taken. A link that has ended says so by itself.
pub(super) fn tell(link: &Link, message: &Message) -> bool {
    match message.encode() {
        Ok(head) => link.send(Frame::head(head)).is_ok(),
        Err(_) => false,
    }
}

/// Ends firings that are under way by an error; what they held is to be dropped by the caller, after
/// the state is unlocked.
pub(super) fn fail(
    state: &mut State,
    error: &Error,
    which: impl Fn(&Firing) -> bool,
) -> Vec<Firing> {
    let keys: Vec<u64> =
        state.firings.iter().filter(|(_, f)| !f.done && which(f)).map(|(k, _)| *k).collect();
    let mut garbage = Vec::with_capacity(keys.len());
    for key in keys {
        let Some(mut firing) = state.firings.remove(&key) else { continue };
        firing.done = true;
        if let Some(s) = state.stages.get_mut(&firing.stage) {
            s.open = s.open.saturating_sub(1);
        }
        firing.desk.put(firing.number, Err(error.clone()), None);
        garbage.push(firing);
    }
    garbage
}

/// A link that could not be made: whether nobody listens there, so that there is no worker to wait for.
pub(super) fn nobody_there(error: &LinkError) -> bool {
    let said = |why: &str| why.contains("refused") || why.contains("nobody listens");
    matches!(error, LinkError::Unreachable { why, .. } if said(&why.to_lowercase()))
}
