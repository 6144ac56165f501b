//! A session: what one coordinator has here.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use brigade_actors::transport::Link;
use crossbeam_channel::{Sender, TrySendError, bounded};

use super::lock;
use super::outlet::{Cargo, Outlet, Parcel, Sent};
use super::peers::{Peer, Ticket};
use super::quota::{Charge, Ledger};
use super::serving::{Shared, count};
use super::stage::{self, Placing};
use super::store::{Declared, Delivery, Fired, Held, Job, Push, Store};
use crate::cluster::message::{
    Feed, FiringKey, Message, OutputKey, PROTOCOL, Readiness, SessionId, WireError,
};
use crate::cluster::spec::digest;
use crate::error::{Error, Result, err};
use crate::graph::Fact;
use crate::tensor::{BufferPool, Value};

/// The most stages of a session.
const MAX_STAGES: usize = 256;

/// The most workers that a session hands tensors to, and the most that hand tensors to it.
const MAX_PEERS: usize = 1024;

/// The most firings of one stage that wait for their turn.
const MAX_QUEUED: usize = 4096;

/// The most free memory that a session keeps for the next inputs.
const POOL_BYTES: u64 = 256 << 20;

/// The longest lease.
const MAX_LEASE: Duration = Duration::from_secs(3600);

/// A stage that was shipped.
struct Placed {
    epoch: u32,
    digest: [u8; 32],
    /// When it is ready.
    took: Option<Readiness>,
    jobs: Sender<FiringKey>,
    stop: Arc<AtomicBool>,
}

struct Attached {
    /// Counts the links: what an earlier one still brings is dropped.
    generation: u64,
    lease: Duration,
    /// When the session is over, if its coordinator does not come back.
    expires: Option<Instant>,
}

/// See the module.
pub(super) struct Session {
    pub(super) id: SessionId,
    /// What the coordinator calls this worker.
    pub(super) name: String,
    /// The name in the certificate of the coordinator.
    pub(super) owner: Option<String>,
    pub(super) worker: Arc<Shared>,
    pub(super) ledger: Arc<Ledger>,
    pub(super) pool: BufferPool,
    /// The turn of its devices in which it was served last.
    pub(super) served: Arc<AtomicU64>,
    store: Mutex<Store>,
    stages: Mutex<HashMap<u64, Placed>>,
    peers: Mutex<HashMap<String, Arc<Peer>>>,
    joined: Mutex<Vec<Link>>,
    out: Outlet,
    attached: Mutex<Attached>,
    ended: AtomicBool,
    /// Threads that answer questions.
    pub(super) asides: AtomicU64,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Session {
    pub(super) fn new(
        worker: Arc<Shared>,
        id: SessionId,
        name: &str,
        owner: Option<String>,
    ) -> Arc<Self> {
        let whose = owner.as_deref().map(|o| format!(" of `{o}`")).unwrap_or_default();
        let what = format!("the session{whose} on the worker `{}`", worker.name);
        let ledger = Ledger::new(what, worker.quota, Some(&worker.ledger));
        let pool = usize::try_from(POOL_BYTES.min(worker.quota / 4)).unwrap_or(usize::MAX);
        Arc::new(Self {
            id,
            name: name.to_owned(),
            owner,
            ledger,
            pool: BufferPool::new(pool),
            worker,
            served: Arc::default(),
            store: Mutex::default(),
            stages: Mutex::default(),
            peers: Mutex::default(),
            joined: Mutex::default(),
            out: Outlet::default(),
            attached: Mutex::new(Attached { generation: 0, lease: Duration::ZERO, expires: None }),
            ended: AtomicBool::new(false),
            asides: AtomicU64::new(0),
        })
    }

    /// Takes up a link of its coordinator, which replaces the one before.
    pub(super) fn attach(&self, link: &Link, lease: Duration, resumed: bool) -> u64 {
        let mut attached = lock(&self.attached);
        attached.generation += 1;
        attached.lease = lease.min(MAX_LEASE);
        attached.expires = None;
        let opened = Message::Opened {
            resumed,
            name: self.worker.name.clone(),
            offers: self.worker.offered.offers(),
            quota_bytes: self.worker.quota,
            clock_ns: self.worker.clock_ns(),
        };
        if let Ok(head) = opened.encode() {
            self.out.attach(link.clone(), Parcel { head, payload: None });
        }
        if self.worker.is_draining() {
            self.send(&Message::Draining);
        }
        attached.generation
    }

    /// The link with this number has ended: the lease begins.
    pub(super) fn detached(&self, generation: u64) {
        {
            let mut attached = lock(&self.attached);
            if attached.generation != generation {
                return;
            }
            attached.expires = Some(Instant::now() + attached.lease);
            self.out.detach();
        }
        self.worker.wake();
    }

    /// Whether what this link brings still counts.
    pub(super) fn is_current(&self, generation: u64) -> bool {
        lock(&self.attached).generation == generation && !self.is_ended()
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    pub(super) fn expires(&self) -> Option<Instant> {
        lock(&self.attached).expires
    }

    pub(super) fn is_expired(&self, now: Instant) -> bool {
        self.expires().is_some_and(|until| now >= until)
    }

    pub(super) fn lease(&self) -> Duration {
        lock(&self.attached).lease
    }

    /// Frees everything; threads end by themselves, after the kernel that they are in.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        self.out.detach();
        let stages: Vec<Placed> = lock(&self.stages).drain().map(|(_, s)| s).collect();
        for placed in &stages {
            placed.stop.store(true, Ordering::Relaxed);
        }
        drop(stages);
        let peers: Vec<Arc<Peer>> = lock(&self.peers).drain().map(|(_, p)| p).collect();
        for peer in peers {
            peer.end();
        }
        for link in lock(&self.joined).drain(..) {
            link.close();
        }
        let freed = std::mem::take(&mut *lock(&self.store));
        drop(freed);
    }

    /// Sends what waited for room; whether some still does.
    pub(super) fn flush(&self) -> bool {
        self.out.flush()
    }

    /// Sends a message to the coordinator; dropped where there is no link, since a coordinator that
    /// comes back asks again.
    pub(super) fn send(&self, message: &Message) {
        // Only lists and texts make a head too long; those that can be are looked at where they are
        // made.
        if let Ok(head) = message.encode() {
            self.send_parcel(Parcel { head, payload: None });
        }
    }

    pub(super) fn send_parcel(&self, parcel: Parcel) {
        if self.out.send(parcel) == Sent::Waits {
            self.worker.wake();
        }
    }

    /// A spec has come.
    pub(super) fn ship(self: &Arc<Self>, stage: u64, epoch: u32, bytes: Vec<u8>, charge: Charge) {
        let digest = digest(&bytes);
        let refuse = |error: &Error| self.refused(stage, epoch, error);
        let (jobs, queue) = bounded(MAX_QUEUED);
        let stop = Arc::new(AtomicBool::new(false));
        let before = {
            let mut stages = lock(&self.stages);
            if self.is_ended() {
                return;
            }
            if let Some(placed) = stages.get(&stage) {
                if epoch < placed.epoch {
                    let here = placed.epoch;
                    count(&self.worker.counters.stale);
                    drop(stages);
                    return refuse(&err!(Plan, "stage {stage} is here in epoch {here}"));
                }
                if epoch == placed.epoch && digest == placed.digest {
                    let ready = placed.took.map(|took| Message::Ready { stage, epoch, took });
                    drop(stages);
                    // One that is being loaded answers when it is.
                    return ready.iter().for_each(|ready| self.send(ready));
                }
                if epoch == placed.epoch {
                    drop(stages);
                    return refuse(&err!(Plan, "stage {stage} of epoch {epoch} is another one"));
                }
            } else if stages.len() >= MAX_STAGES {
                drop(stages);
                return refuse(&err!(Limit, "the session has {MAX_STAGES} stages here"));
            }
            let stop = Arc::clone(&stop);
            stages.insert(stage, Placed { epoch, digest, took: None, jobs, stop })
        };
        if let Some(before) = before {
            before.stop.store(true, Ordering::Relaxed);
        }
        let freed = lock(&self.store).replace(stage);
        drop(freed);
        let session = Arc::clone(self);
        let placing = Placing { stage, epoch, bytes, charge, jobs: queue, stop };
        let name = format!("stage-{stage}.{epoch}");
        let own = Arc::clone(&placing.stop);
        if let Err(e) = self.worker.spawn(name, move || stage::run(&session, placing)) {
            self.not_ready(stage, epoch, &own, &e);
        }
    }

    /// A stage that was shipped, which this tells from others, cannot be made ready.
    pub(super) fn not_ready(&self, stage: u64, epoch: u32, own: &Arc<AtomicBool>, error: &Error) {
        match lock(&self.stages).entry(stage) {
            Entry::Occupied(placed) if Arc::ptr_eq(&placed.get().stop, own) => {
                placed.remove();
            }
            // It was replaced or dropped meanwhile: nobody waits for it.
            _ => return,
        }
        self.refused(stage, epoch, error);
    }

    /// A stage is not taken.
    pub(super) fn refused(&self, stage: u64, epoch: u32, error: &Error) {
        self.send(&Message::Refused { stage, epoch, error: error.into() });
    }

    /// A stage is ready, unless it was replaced or dropped meanwhile.
    pub(super) fn ready(
        &self,
        stage: u64,
        own: &Arc<AtomicBool>,
        declared: Declared,
        took: Readiness,
    ) -> bool {
        let epoch = declared.epoch;
        {
            let mut stages = lock(&self.stages);
            let Some(placed) = stages.get_mut(&stage).filter(|p| Arc::ptr_eq(&p.stop, own)) else {
                return false;
            };
            placed.took = Some(took);
            lock(&self.store).declare(stage, declared);
        }
        self.send(&Message::Ready { stage, epoch, took });
        true
    }

    /// Ends a stage and forgets all that it made.
    pub(super) fn drop_stage(&self, stage: u64) {
        let placed = lock(&self.stages).remove(&stage);
        if let Some(placed) = &placed {
            placed.stop.store(true, Ordering::Relaxed);
        }
        let freed = lock(&self.store).drop_stage(stage);
        drop((placed, freed));
    }

    /// The store, to ask it what is to be done with a payload.
    pub(super) fn with_store<T>(&self, ask: impl FnOnce(&mut Store) -> T) -> T {
        ask(&mut lock(&self.store))
    }

    pub(super) fn input(&self, of: FiringKey, port: u32, held: Held) {
        let ready = self.with_store(|s| s.put_input(of, port, held));
        self.dispatch(ready);
    }

    pub(super) fn tensor(&self, what: OutputKey, held: Held) {
        count(&self.worker.counters.from_peers);
        let ready = self.with_store(|s| s.put_tensor(what, held));
        self.dispatch(ready);
    }

    pub(super) fn fire(&self, of: FiringKey, epoch: u32, feeds: Vec<Feed>, give: Vec<u32>) {
        match self.with_store(|s| s.fire(of, epoch, feeds, give)) {
            Fired::Pending => {}
            Fired::Ready => self.dispatch([of]),
            Fired::Stale => count(&self.worker.counters.stale),
            Fired::Done(delivery) => self.deliver(of, delivery),
            Fired::Failed(error) => self.failed(of, error),
        }
    }

    /// Hands firings that are complete to their stages.
    fn dispatch(&self, ready: impl IntoIterator<Item = FiringKey>) {
        for of in ready {
            let sent = match lock(&self.stages).get(&of.stage) {
                Some(placed) => placed.jobs.try_send(of),
                None => continue,
            };
            if let Err(TrySendError::Full(_)) = sent {
                let error = err!(Limit, "{MAX_QUEUED} firings of stage {} wait", of.stage);
                self.fail(of, &error);
            }
        }
    }

    /// What a firing computes on; `None` if there is nothing to do.
    pub(super) fn start(&self, of: FiringKey) -> Option<Job> {
        match self.with_store(|s| s.start(of))? {
            Ok(job) => Some(job),
            Err(error) => {
                self.failed(of, error);
                None
            }
        }
    }

    /// A stage has computed a firing.
    pub(super) fn finish(
        &self,
        of: FiringKey,
        epoch: u32,
        (start_ns, end_ns): (u64, u64),
        outputs: Result<Vec<Value>>,
        ledger: &Arc<Ledger>,
    ) {
        let hold = |values: Vec<Value>| -> Result<Vec<Held>> {
            values.iter().map(|value| Held::of(value, ledger)).collect()
        };
        let outputs = match outputs.and_then(hold) {
            Ok(outputs) => outputs,
            Err(e) => {
                let error = WireError::from(&e);
                if self.with_store(|s| s.finish_failed(of, epoch, error.clone())) {
                    self.failed(of, error);
                }
                return;
            }
        };
        let finished = self.with_store(|s| s.finish(of, epoch, start_ns, end_ns, outputs));
        let Some(finished) = finished else { return };
        count(&self.worker.counters.firings);
        self.dispatch(finished.ready);
        for push in finished.pushes {
            self.push(&push);
        }
        self.deliver(of, finished.delivery);
    }

    fn push(&self, push: &Push) {
        for name in &*push.to {
            let peer = lock(&self.peers).get(name).map(Arc::clone);
            if let Some(peer) = peer {
                peer.push(self, push.what, push.epoch, push.held.clone());
            }
        }
    }

    /// Tells the coordinator of a firing that is done, after what it is given of it.
    fn deliver(&self, of: FiringKey, delivery: Delivery) {
        let Delivery { start_ns, end_ns, give, kept } = delivery;
        for (output, held) in give {
            self.give(of, output, held);
        }
        match (Message::Done { of, start_ns, end_ns, kept }).encode() {
            Ok(head) => self.send_parcel(Parcel { head, payload: None }),
            Err(e) => self.failed(of, (&e).into()),
        }
    }

    fn give(&self, of: FiringKey, output: u32, held: Held) {
        match (Message::Output { of, output, form: held.form.clone() }).encode() {
            Ok(head) => self.send_parcel(Parcel { head, payload: Some(Cargo::Held(held)) }),
            Err(e) => self.failed(of, (&e).into()),
        }
    }

    /// A firing fails here.
    pub(super) fn fail(&self, of: FiringKey, error: &Error) {
        let error = WireError::from(error);
        self.with_store(|s| s.fail(of, error.clone()));
        self.failed(of, error);
    }

    /// Tells the coordinator of a firing that has failed.
    pub(super) fn failed(&self, of: FiringKey, error: WireError) {
        count(&self.worker.counters.failed);
        self.send(&Message::Failed { of, error });
    }

    pub(super) fn release(&self, firings: &[FiringKey]) {
        let freed = self.with_store(|s| s.release(firings));
        drop(freed);
    }

    pub(super) fn expect(&self, ticket: u64, stage: u64, epoch: u32, output: u32, fact: Fact) {
        let error = self.with_store(|s| s.expect(stage, output, epoch, fact)).err();
        self.send(&Message::Settled { ticket, error: error.as_ref().map(WireError::from) });
    }

    /// An output goes to these workers from now on; settled when there are links to all of them.
    pub(super) fn route(
        self: &Arc<Self>,
        ticket: u64,
        stage: u64,
        output: u32,
        mut to: Vec<(String, String)>,
    ) {
        to.retain(|(name, _)| *name != self.name);
        to.sort();
        to.dedup_by(|a, b| a.0 == b.0);
        let names = to.iter().map(|(name, _)| name.clone()).collect();
        if let Err(e) = self.with_store(|s| s.route(stage, output, names)) {
            let error = Some((&e).into());
            return self.send(&Message::Settled { ticket, error });
        }
        self.forget_unused_peers(&to);
        let ticket = Ticket::new(ticket, to.len());
        if to.is_empty() {
            return ticket.send(self);
        }
        for (name, address) in &to {
            match self.peer(name, address) {
                Ok(peer) => peer.tell_standing(self, &ticket),
                Err(e) => ticket.settle(self, Err(e)),
            }
        }
    }

    /// Ends links to workers that nothing is routed to any more.
    fn forget_unused_peers(&self, used: &[(String, String)]) {
        let mut unused = Vec::new();
        lock(&self.peers).retain(|name, peer| {
            let stays = used.iter().any(|(n, _)| n == name)
                || peer.is_busy()
                || self.with_store(|s| s.is_routed_to(name));
            if !stays {
                unused.push(Arc::clone(peer));
            }
            stays
        });
        for peer in unused {
            peer.end();
        }
    }

    /// The link to a worker; made if there is none.
    fn peer(self: &Arc<Self>, name: &str, address: &str) -> Result<Arc<Peer>> {
        let mut peers = lock(&self.peers);
        if self.is_ended() {
            return Err(err!(Stopped, "the session is over"));
        }
        if let Some(peer) = peers.get(name)
            && peer.is_alive_at(address)
        {
            return Ok(Arc::clone(peer));
        }
        if peers.len() >= MAX_PEERS && !peers.contains_key(name) {
            return Err(err!(Limit, "more than {MAX_PEERS} workers to hand tensors to"));
        }
        let peer = Peer::new(name, address);
        peer.start(self)?;
        if let Some(before) = peers.insert(name.to_owned(), Arc::clone(&peer)) {
            before.end();
        }
        Ok(peer)
    }

    /// Hands a kept output over: to another worker, or to the coordinator where none is named.
    pub(super) fn hand_over(self: &Arc<Self>, what: OutputKey, to: &(String, String)) {
        let Some((epoch, held)) = self.with_store(|s| s.kept(what)) else { return };
        if to.0.is_empty() {
            return self.give(what.of, what.output, held);
        }
        if to.0 == self.name {
            return;
        }
        match self.peer(&to.0, &to.1) {
            Ok(peer) => peer.push(self, what, epoch, held),
            Err(e) => self.unreachable(&to.0, &e),
        }
    }

    pub(super) fn unreachable(&self, worker: &str, error: &Error) {
        let worker = worker.to_owned();
        self.send(&Message::Unreachable { worker, error: error.into() });
    }

    /// What is kept and goes to this worker.
    pub(super) fn routed_to(&self, peer: &str) -> Vec<(OutputKey, u32, Held)> {
        self.with_store(|s| s.routed_to(peer))
    }

    /// The head of the first frame to another worker.
    pub(super) fn join(&self) -> Result<Vec<u8>> {
        let from = self.name.clone();
        Message::Join { protocol: PROTOCOL, session: self.id, from }.encode()
    }

    /// Another worker hands tensors to this session.
    pub(super) fn joined(&self, link: &Link) -> Result<()> {
        let mut joined = lock(&self.joined);
        if self.is_ended() {
            return Err(err!(Stopped, "the session is over"));
        }
        joined.retain(Link::is_open);
        if joined.len() >= MAX_PEERS {
            return Err(err!(Limit, "{MAX_PEERS} workers hand tensors to the session"));
        }
        joined.push(link.clone());
        Ok(())
    }
}
