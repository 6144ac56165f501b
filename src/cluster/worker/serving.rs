//! A worker that serves: its sessions, its threads, its figures.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use brigade_actors::transport::{Link, LinkError, Listening, Transport};
use crossbeam_channel::{Receiver, Sender, bounded};

use super::inbound::Inbound;
use super::lanes::Lanes;
use super::quota::Ledger;
use super::session::Session;
use super::{Offered, QUOTA, Worker, lock};
use crate::cluster::coordinator::link_error;
use crate::cluster::message::{Message, SessionId};
use crate::device::DeviceId;
use crate::error::{Result, err};
use crate::import::WeightCache;
use crate::registry::Registry;

/// The most sessions at once.
const MAX_SESSIONS: usize = 256;

/// The most links that have not said yet what they are, and how long they may take to.
const MAX_STRANGERS: usize = 64;
const INTRODUCTION: Duration = Duration::from_secs(5);

/// How often what waits for room in a queue is tried again, and how often there is a look at the rest.
const RETRY: Duration = Duration::from_millis(2);
const LOOK: Duration = Duration::from_millis(200);

/// The stack of a thread of a session: as that of a program's first thread, since graphs are nested.
const STACK: usize = 8 << 20;

/// How long the end of a worker waits for its threads: one that is in a kernel finishes that first.
const END: Duration = Duration::from_secs(5);

/// What a worker has done, and holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WorkerStats {
    /// Sessions that are open, or whose coordinators may come back.
    pub sessions: u64,
    /// Stages that are loaded, or being loaded.
    pub stages: u64,
    /// Firings that were computed.
    pub firings: u64,
    /// Firings that failed.
    pub failed: u64,
    /// Bytes that are held: weights of stages, inputs that wait, outputs that are kept.
    pub bytes_held: u64,
    /// Bytes of weights that were read, as they are stored.
    pub weight_bytes_read: u64,
    /// Tensors that came from other workers.
    pub tensors_from_peers: u64,
    /// Tensors that were handed to other workers.
    pub tensors_to_peers: u64,
    /// Orders and tensors that were older than what is here, and were dropped.
    pub stale: u64,
    /// Payloads that nobody wanted, and were dropped as they came.
    pub unwanted: u64,
    /// Threads of sessions that have not ended.
    pub threads: u64,
}

/// What is counted.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) stages: AtomicU64,
    pub(super) firings: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) read: AtomicU64,
    pub(super) from_peers: AtomicU64,
    pub(super) to_peers: AtomicU64,
    pub(super) stale: AtomicU64,
    pub(super) unwanted: AtomicU64,
}

pub(super) fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// What all sessions of a worker share.
pub(super) struct Shared {
    pub(super) name: String,
    pub(super) registry: Registry,
    pub(super) weights: WeightCache,
    pub(super) offered: Offered,
    pub(super) quota: u64,
    allowed: Vec<String>,
    pub(super) transport: Arc<dyn Transport>,
    pub(super) counters: Counters,
    pub(super) ledger: Arc<Ledger>,
    began: Instant,
    sessions: Mutex<HashMap<SessionId, Arc<Session>>>,
    /// A session has ended.
    gone: Condvar,
    strangers: Mutex<Vec<(u64, Instant, Link)>>,
    numbers: AtomicU64,
    lanes: Mutex<HashMap<DeviceId, Arc<Lanes>>>,
    draining: AtomicBool,
    threads: Mutex<u64>,
    thread_ended: Condvar,
    wake: Sender<()>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Shared {
    /// Nanoseconds since the worker began to serve: the clock of its messages.
    pub(super) fn clock_ns(&self) -> u64 {
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    pub(super) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }

    /// Has what waits looked at soon.
    pub(super) fn wake(&self) {
        // Full: it is awake already.
        let _ = self.wake.try_send(());
    }

    /// Starts a thread that is counted.
    ///
    /// # Errors
    /// If there cannot be one more.
    pub(super) fn spawn(
        self: &Arc<Self>,
        name: String,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        /// One thread less, also if it panics.
        struct Counted(Arc<Shared>);
        impl Drop for Counted {
            fn drop(&mut self) {
                *lock(&self.0.threads) -= 1;
                self.0.thread_ended.notify_all();
            }
        }
        *lock(&self.threads) += 1;
        let counted = Counted(Arc::clone(self));
        let builder = std::thread::Builder::new().name(name).stack_size(STACK);
        let thread = builder.spawn(move || {
            let _counted = counted;
            run();
        });
        thread.map(drop).map_err(|e| err!(Limit, "no thread could be started").with_source(e))
    }

    /// The lanes of a device, the same for all sessions.
    pub(super) fn lanes_of(&self, device: &DeviceId, lanes: usize) -> Arc<Lanes> {
        let mut all = lock(&self.lanes);
        Arc::clone(all.entry(device.clone()).or_insert_with(|| Lanes::new(lanes)))
    }

    /// Whether this peer may ship stages.
    pub(super) fn check_allowed(&self, identity: Option<&str>) -> Result<(), LinkError> {
        if self.allowed.is_empty() || identity.is_some_and(|i| self.allowed.iter().any(|a| a == i))
        {
            return Ok(());
        }
        let who = match identity {
            Some(name) => format!("`{name}` may not ship stages to the worker `{}`", self.name),
            None => format!(
                "who shows no certificate may not ship stages to the worker `{}`",
                self.name
            ),
        };
        Err(LinkError::Refused { why: who })
    }

    /// A link that has not said yet what it is; closed if it does not in time.
    pub(super) fn stranger(&self, link: &Link) -> Result<u64, LinkError> {
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let mut strangers = lock(&self.strangers);
        if strangers.len() >= MAX_STRANGERS {
            let why = format!("{MAX_STRANGERS} links have not said yet what they want");
            return Err(LinkError::Refused { why });
        }
        strangers.push((number, Instant::now() + INTRODUCTION, link.clone()));
        Ok(number)
    }

    pub(super) fn introduced(&self, stranger: u64) {
        lock(&self.strangers).retain(|(n, ..)| *n != stranger);
    }

    pub(super) fn session(&self, id: SessionId) -> Option<Arc<Session>> {
        lock(&self.sessions).get(&id).map(Arc::clone)
    }

    /// The session with this id for a link of its coordinator: the one that is here, or a new one.
    ///
    /// # Errors
    /// The words of a refusal.
    pub(super) fn open(
        self: &Arc<Self>,
        id: SessionId,
        name: &str,
        lease: Duration,
        link: &Link,
    ) -> Result<(Arc<Session>, u64), LinkError> {
        let identity = link.peer().identity.as_deref();
        self.check_allowed(identity)?;
        let mut sessions = lock(&self.sessions);
        if let Some(session) = sessions.get(&id) {
            if session.owner.as_deref() != identity {
                let why = "the session belongs to another coordinator".to_owned();
                return Err(LinkError::Refused { why });
            }
            let generation = session.attach(link, lease, true);
            return Ok((Arc::clone(session), generation));
        }
        if self.is_draining() {
            let why = format!("the worker `{}` is about to end and takes no sessions", self.name);
            return Err(LinkError::Refused { why });
        }
        if sessions.len() >= MAX_SESSIONS {
            let why = format!("the worker `{}` has {MAX_SESSIONS} sessions", self.name);
            return Err(LinkError::Refused { why });
        }
        let session = Session::new(Arc::clone(self), id, name, identity.map(str::to_owned));
        let generation = session.attach(link, lease, false);
        sessions.insert(id, Arc::clone(&session));
        Ok((session, generation))
    }

    /// Ends a session and frees what it holds.
    pub(super) fn close(&self, id: SessionId) {
        let gone = lock(&self.sessions).remove(&id);
        if let Some(session) = gone {
            session.end();
            self.forget_files();
            self.gone.notify_all();
        }
    }

    /// Weight files are mapped for all sessions; when the last of them has ended, a file that was
    /// replaced by another is to be read anew.
    fn forget_files(&self) {
        if lock(&self.sessions).is_empty() {
            self.weights.clear();
        }
    }

    fn all(&self) -> Vec<Arc<Session>> {
        lock(&self.sessions).values().map(Arc::clone).collect()
    }

    /// What has to happen by the clock. Gives when there is to be a look again.
    pub(super) fn tick(&self, now: Instant) -> Duration {
        let mut expired = Vec::new();
        lock(&self.sessions).retain(|_, session| {
            let over = session.is_expired(now);
            if over {
                expired.push(Arc::clone(session));
            }
            !over
        });
        for session in &expired {
            session.end();
        }
        if !expired.is_empty() {
            self.forget_files();
            self.gone.notify_all();
        }
        let mut late = Vec::new();
        lock(&self.strangers).retain(|(_, until, link)| {
            let over = now >= *until;
            if over {
                late.push(link.clone());
            }
            !over
        });
        for link in late {
            link.close();
        }
        let (mut wait, mut retry) = (LOOK, false);
        for session in self.all() {
            retry |= session.flush();
            if let Some(until) = session.expires() {
                wait = wait.min(until.saturating_duration_since(now));
            }
        }
        if retry { RETRY } else { wait.max(Duration::from_millis(1)) }
    }

    fn stats(&self) -> WorkerStats {
        let n = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let c = &self.counters;
        WorkerStats {
            sessions: lock(&self.sessions).len() as u64,
            stages: n(&c.stages),
            firings: n(&c.firings),
            failed: n(&c.failed),
            bytes_held: self.ledger.used(),
            weight_bytes_read: n(&c.read),
            tensors_from_peers: n(&c.from_peers),
            tensors_to_peers: n(&c.to_peers),
            stale: n(&c.stale),
            unwanted: n(&c.unwanted),
            threads: *lock(&self.threads),
        }
    }
}

/// The clock of a worker; ends when the worker is gone.
fn run_clock(shared: &Weak<Shared>, woken: &Receiver<()>) {
    let mut wait = LOOK;
    loop {
        let _ = woken.recv_timeout(wait);
        let Some(shared) = shared.upgrade() else { return };
        wait = shared.tick(Instant::now());
    }
}

/// A worker that serves, until this is closed or dropped.
pub struct Serving {
    pub(super) shared: Arc<Shared>,
    listening: Mutex<Option<Box<dyn Listening>>>,
    address: String,
}

impl fmt::Debug for Serving {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Serving")
            .field("name", &self.shared.name)
            .field("address", &self.address)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl Serving {
    pub(super) fn start(
        worker: Worker,
        offered: Offered,
        transport: &Arc<dyn Transport>,
        address: &str,
    ) -> Result<Self> {
        let memory = || {
            let cpu = worker.registry.device(&DeviceId::cpu(0)).ok()?;
            cpu.probe().ok()?.memory_bytes
        };
        let (wake, woken) = bounded(1);
        let shared = Arc::new(Shared {
            ledger: Ledger::new(format!("the worker `{}`", worker.name), u64::MAX, None),
            quota: worker.quota.or_else(memory).unwrap_or(QUOTA),
            name: worker.name,
            registry: worker.registry,
            weights: worker.weights,
            offered,
            allowed: worker.allowed,
            transport: Arc::clone(transport),
            counters: Counters::default(),
            began: Instant::now(),
            sessions: Mutex::default(),
            gone: Condvar::new(),
            strangers: Mutex::default(),
            numbers: AtomicU64::new(0),
            lanes: Mutex::default(),
            draining: AtomicBool::new(false),
            threads: Mutex::new(0),
            thread_ended: Condvar::new(),
            wake,
        });
        let clock = Arc::downgrade(&shared);
        std::thread::Builder::new()
            .name(format!("worker-{}", shared.name))
            .spawn(move || run_clock(&clock, &woken))
            .map_err(|e| err!(Limit, "no thread could be started").with_source(e))?;
        let served = Arc::clone(&shared);
        let on_link =
            Arc::new(move |link: Link| Ok(Box::new(Inbound::new(&served, link)?) as Box<_>));
        let listening = transport.listen(address, on_link).map_err(link_error)?;
        let address = listening.address();
        Ok(Self { shared, listening: Mutex::new(Some(listening)), address })
    }

    /// The address that peers connect to, with the port that was given where 0 was asked for.
    pub fn address(&self) -> String {
        self.address.clone()
    }

    /// What it has done, and holds now.
    pub fn stats(&self) -> WorkerStats {
        self.shared.stats()
    }

    /// Takes no more sessions and stages, tells its coordinators and whoever asks for its health,
    /// and waits until all sessions are closed, `within` this time at most. Whether they are. What
    /// runs goes on all the while; close or drop it afterwards.
    pub fn drain(&self, within: Duration) -> bool {
        self.shared.draining.store(true, Ordering::Relaxed);
        if let Some(listening) = &*lock(&self.listening) {
            listening.set_serving(false);
        }
        for session in self.shared.all() {
            session.send(&Message::Draining);
        }
        let deadline = Instant::now().checked_add(within);
        let mut sessions = lock(&self.shared.sessions);
        while !sessions.is_empty() {
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => LOOK,
            };
            if left.is_zero() {
                return false;
            }
            let wait = self.shared.gone.wait_timeout(sessions, left);
            sessions = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
        true
    }

    /// Ends all sessions and waits for their threads, for a few seconds at most: a thread that is in
    /// a kernel ends after it.
    pub fn close(self) {
        drop(self);
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.shared.draining.store(true, Ordering::Relaxed);
        if let Some(listening) = lock(&self.listening).take() {
            listening.set_serving(false);
            listening.close();
        }
        let sessions: Vec<_> = lock(&self.shared.sessions).drain().map(|(_, s)| s).collect();
        for session in &sessions {
            session.end();
        }
        drop(sessions);
        lock(&self.shared.strangers).clear();
        let deadline = Instant::now() + END;
        let mut threads = lock(&self.shared.threads);
        while *threads > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            let wait = self.shared.thread_ended.wait_timeout(threads, left);
            threads = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
