//! What happens when links break and workers go.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use brigade_actors::transport::{LinkError, TransportOptions, transport};

use super::hub::{Hub, fail, nobody_there, tell};
use super::state::{Clock, Life, Phase, State, WorkerState};
use super::traffic::{Ear, nowhere};
use super::{Loss, OnLoss};
use crate::cluster::Worker;
use crate::cluster::message::{Message, Offer, OutputKey, PROTOCOL};
use crate::error::{Result, err};
use crate::import::WeightCache;

/// How long nobody may listen at a worker's address before its process counts as gone.
const NOBODY: Duration = Duration::from_millis(400);

/// How long after an attempt to reach a worker the next one comes, while its lease lasts.
const DIAL_AGAIN: Duration = Duration::from_millis(20);

/// How often a lost worker is looked for again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Watches over the workers, as long as the hub is there.
pub(super) fn watch(hub: &Arc<Hub>) -> Result<()> {
    let weak = Arc::downgrade(hub);
    let tick = (hub.options.lease / 40).clamp(Duration::from_millis(5), Duration::from_millis(50));
    thread::Builder::new()
        .name("brigade-cluster".to_owned())
        .spawn(move || {
            while let Some(hub) = weak.upgrade() {
                if !hub.tick() {
                    return;
                }
                let state = hub.state();
                drop(hub.alarm.wait_timeout(state, tick).unwrap_or_else(PoisonError::into_inner));
            }
        })
        .map(drop)
        .map_err(|e| err!(Device, "the cluster's thread could not be started").with_source(e))
}

impl Hub {
    /// Looks at every worker; `false` once the cluster is closed.
    fn tick(self: &Arc<Self>) -> bool {
        let lease = self.options.lease;
        let every = (lease / 8).clamp(Duration::from_millis(10), Duration::from_secs(1));
        let mut state = self.state();
        if state.closed {
            return false;
        }
        let mut dial = Vec::new();
        for at in 0..state.workers.len() {
            let w = &mut state.workers[at];
            let silent = w.heard.elapsed();
            match &w.life {
                Life::Up if silent > lease => {
                    self.lose(&mut state, at, &format!("it was silent for {silent:.1?}"));
                }
                Life::Up => {
                    w.flush_released();
                    let due = w.pinged.is_none_or(|(_, sent)| sent.elapsed() >= every);
                    if let (true, Some(link)) = (due, w.link.clone()) {
                        let token = state.number();
                        state.workers[at].pinged = Some((token, Instant::now()));
                        tell(&link, &Message::Ping { token });
                    }
                }
                Life::Broken { why, .. } if !w.offers.is_empty() && silent > lease => {
                    let why =
                        format!("its link broke ({why}) and did not come back for {silent:.1?}");
                    self.lose(&mut state, at, &why);
                }
                Life::Broken { .. }
                    if !w.dialling && w.dialled.is_none_or(|t| t.elapsed() >= DIAL_AGAIN) =>
                {
                    dial.push(at);
                }
                Life::Lost { since, .. }
                    if !w.dialling
                        && !w.here
                        && w.generation > 0
                        && since.elapsed() > LOOK_AGAIN =>
                {
                    dial.push(at);
                }
                _ => {}
            }
        }
        let limit = self.options.progress;
        let stuck = state.stages.values().find_map(|s| {
            let stuck = matches!(s.phase, Phase::Ready) && s.open > 0 && s.moved.elapsed() > limit;
            (stuck && state.workers[s.worker].is_up()).then_some(s.worker)
        });
        if let Some(worker) = stuck {
            let why = format!("a stage of it has work and completed nothing for {limit:?}");
            self.lose(&mut state, worker, &why);
        }
        let unsent: Vec<u64> =
            state.firings.iter().filter(|(_, f)| !f.sent).map(|f| *f.0).collect();
        for firing in unsent {
            self.send_firing(&mut state, firing);
        }
        for at in &dial {
            state.workers[*at].dialling = true;
            state.workers[*at].dialled = Some(Instant::now());
        }
        let replace = !state.replacing && state.stages.values().any(|s| s.adrift);
        state.replacing |= replace;
        drop(state);
        for at in dial {
            self.in_background("brigade-dial", move |hub| hub.dial(at));
        }
        if replace {
            self.in_background("brigade-replace", |hub| {
                hub.replace();
                hub.state().replacing = false;
            });
        }
        self.sweep();
        true
    }

    /// Runs something that may wait on a thread of its own, or here if there is none to be had.
    fn in_background(self: &Arc<Self>, name: &str, run: impl FnOnce(&Arc<Self>) + Send + 'static) {
        let weak: Weak<Self> = Arc::downgrade(self);
        let spawned = thread::Builder::new().name(name.to_owned()).spawn(move || {
            if let Some(hub) = weak.upgrade() {
                run(&hub);
            }
        });
        if spawned.is_err() {
            let mut state = self.state();
            state.workers.iter_mut().for_each(|w| w.dialling = false);
            state.replacing = false;
        }
    }

    /// Connects to a worker and opens the session there, or takes it up again.
    fn dial(self: &Arc<Self>, at: usize) {
        let mut state = self.state();
        let lease = self.options.lease;
        let w = &mut state.workers[at];
        w.generation += 1;
        let generation = w.generation;
        let (address, name) = (w.address.clone(), w.name.clone());
        let first = matches!(w.life, Life::Broken { .. }) && w.offers.is_empty();
        drop(state);
        let ear = Ear { hub: Arc::downgrade(self), worker: at, generation };
        let deadline = Instant::now() + lease.max(Duration::from_millis(500));
        let connected = self.transport.connect(&address, Box::new(ear), deadline);
        let mut state = self.state();
        let closed = state.closed;
        let w = &mut state.workers[at];
        w.dialling = false;
        match connected {
            Ok(link) if closed || w.generation != generation => link.close(),
            Ok(link) => {
                tell(&link, &self.greeting(name));
                w.link = Some(link);
                // Until it answers, or the link breaks.
                w.dialling = true;
            }
            Err(error) => self.undialled(&mut state, at, first, &error),
        }
        drop(state);
        self.tell_all();
    }

    /// The first message to a worker, which is called so here.
    fn greeting(&self, name: String) -> Message {
        Message::Open {
            protocol: PROTOCOL,
            session: self.session,
            name,
            lease_ms: u64::try_from(self.options.lease.as_millis()).unwrap_or(u64::MAX),
        }
    }

    fn undialled(&self, state: &mut State, at: usize, first: bool, error: &LinkError) {
        let w = &mut state.workers[at];
        let now = Instant::now();
        let final_word = is_final(error);
        match &w.life {
            Life::Broken { since, .. } => {
                let (since, why) = (*since, error.to_string());
                let gone = nobody_there(error) && now.duration_since(since) > NOBODY;
                if first && final_word {
                    w.life = Life::Lost { since: now, why };
                } else if !first && (final_word || gone) {
                    self.lose(state, at, &format!("its process has ended: {why}"));
                } else {
                    w.life = Life::Broken { since, why };
                }
            }
            Life::Lost { why, .. } => w.life = Life::Lost { since: now, why: why.clone() },
            Life::Up => {}
        }
    }

    /// A worker answered that the session is open.
    pub(super) fn opened(
        &self,
        state: &mut State,
        at: usize,
        resumed: bool,
        offers: Vec<Offer>,
        clock_ns: u64,
    ) {
        let now = Instant::now();
        let w = &mut state.workers[at];
        w.dialling = false;
        let before = std::mem::replace(&mut w.life, Life::Up);
        let had_stages = state.stages.values().any(|s| s.worker == at && !s.adrift);
        let w = &mut state.workers[at];
        if w.clock.is_none() {
            let here = now.duration_since(self.start).as_nanos() as i128;
            w.clock = Some(Clock {
                round_trip: Duration::from_secs(1),
                offset_ns: i128::from(clock_ns) - here,
            });
        }
        w.offers = offers;
        w.draining = false;
        w.pinged = None;
        if !resumed {
            // The process is another one, with a clock of its own.
            w.incarnation += 1;
            w.clock = None;
            w.unreleased.clear();
        }
        if !resumed && had_stages {
            let why = "another process took its place".to_owned();
            self.adrift(state, at, &why);
        }
        if resumed && !matches!(before, Life::Lost { .. }) {
            state.resumed += 1;
        }
        let State { stages, firings, workers, .. } = &mut *state;
        if let (Life::Lost { .. }, true, Some(link)) = (&before, resumed, &workers[at].link) {
            // What it still has was placed elsewhere meanwhile.
            for (stage, _) in stages.iter().filter(|(_, s)| s.worker != at) {
                tell(link, &Message::Drop { stage: *stage });
            }
        }
        let mut again = Vec::new();
        let shipping = |p: &Phase| matches!(p, Phase::Shipping { .. });
        let here =
            |s: &super::state::StageState| s.worker == at && (!s.adrift || shipping(&s.phase));
        for (number, s) in stages.iter_mut().filter(|(_, s)| here(s)) {
            again.push(*number);
            if shipping(&s.phase) {
                // Whichever process it is now gets the stage.
                s.incarnation = workers[at].incarnation;
            }
            if let (Phase::Shipping { .. }, Some(link)) = (&s.phase, &workers[at].link)
                && let Ok(head) = (Message::Ship { stage: *number, epoch: s.epoch }).encode()
            {
                let frame = brigade_actors::transport::Frame::new(head, Arc::clone(&s.spec));
                let _ = link.send(frame);
            }
        }
        let mut unsent = Vec::new();
        for (number, f) in firings.iter_mut().filter(|(_, f)| !f.done && again.contains(&f.stage)) {
            f.sent = false;
            unsent.push(*number);
        }
        for firing in unsent {
            self.send_firing(state, firing);
        }
    }

    /// A link has ended.
    pub(super) fn broken(&self, at: usize, generation: u64, error: &LinkError) {
        let mut state = self.state();
        if state.closed {
            return;
        }
        let Some(w) = state.workers.get_mut(at).filter(|w| w.generation == generation) else {
            return;
        };
        w.link = None;
        w.dialling = false;
        let (now, why) = (Instant::now(), error.to_string());
        if w.is_up() {
            w.life = Life::Broken { since: now, why };
        } else if w.offers.is_empty() && is_final(error) {
            // The session itself was refused, which comes after the link stood.
            w.life = Life::Lost { since: now, why };
        } else if let Life::Broken { why: before, .. } = &mut w.life {
            *before = why;
        }
        drop(state);
        self.tell_all();
    }

    /// A worker is lost: its link is closed, its stages are adrift.
    pub(super) fn lose(&self, state: &mut State, at: usize, why: &str) {
        let w = &mut state.workers[at];
        if matches!(w.life, Life::Lost { .. }) {
            return;
        }
        w.life = Life::Lost { since: Instant::now(), why: why.to_owned() };
        w.generation += 1;
        w.dialling = false;
        w.pinged = None;
        if let Some(link) = w.link.take() {
            link.close();
        }
        self.adrift(state, at, why);
    }

    /// The stages of a worker are nowhere now.
    fn adrift(&self, state: &mut State, at: usize, why: &str) {
        let w = &state.workers[at];
        let (name, silent) = (w.name.clone(), w.heard.elapsed());
        let mut stages = Vec::new();
        for (number, s) in &mut state.stages {
            let dead = matches!(s.phase, Phase::Dead(_) | Phase::Shipping { .. });
            if s.worker == at && !s.adrift && !dead {
                s.adrift = true;
                s.fruitless += u32::from(s.open > 0);
                stages.push(*number);
            }
        }
        if stages.is_empty() {
            return;
        }
        state.losses.push(Loss {
            worker: name.clone(),
            why: why.to_owned(),
            silent_s: silent.as_secs_f64(),
            replaced_s: None,
            load_and_compile_s: 0.0,
            replayed: 0,
        });
        state.lost_at = Some(Instant::now());
        if self.options.on_loss == OnLoss::Fail {
            let error = err!(Device, "worker `{name}` was lost: {why}");
            for number in &stages {
                self.bury(state, *number, error.clone());
            }
        }
    }

    /// A stage comes back nowhere: what needs it fails.
    fn bury(&self, state: &mut State, number: u64, error: crate::Error) {
        drop(fail(state, &error, |f| f.stage == number));
        if let Some(s) = state.stages.get_mut(&number) {
            s.adrift = false;
            s.phase = Phase::Dead(error);
        }
    }

    /// Places the stages that are adrift and sends again what they have to compute.
    fn replace(self: &Arc<Self>) {
        loop {
            let adrift: Vec<u64> = {
                let state = self.state();
                let mut all: Vec<u64> =
                    state.stages.iter().filter(|(_, s)| s.adrift).map(|(n, _)| *n).collect();
                all.sort_unstable();
                all
            };
            if adrift.is_empty() || self.state().closed {
                return;
            }
            let mut placed = Vec::new();
            for number in adrift {
                match self.in_vain(number).map_or_else(|| self.place_somewhere(number), Err) {
                    Ok(()) => placed.push(number),
                    Err(why) => {
                        let mut state = self.state();
                        let name = state.stages.get(&number).map(|s| s.name.clone());
                        let error = nowhere(&name.unwrap_or_default(), &why);
                        self.bury(&mut state, number, error);
                    }
                }
            }
            // A worker that is lost meanwhile makes its stages drift again: the next round.
            for (stage, output) in self.routes_touching(&placed) {
                let _ = self.settle(stage, output);
            }
            self.resume(&placed);
        }
    }

    /// Why a stage is not placed once more: wherever it was, it ended its worker before it completed
    /// anything, so that an item of it may be what does that.
    fn in_vain(&self, number: u64) -> Option<String> {
        let state = self.state();
        let most = state.workers.len() + 2;
        let tries = state.stages.get(&number)?.fruitless as usize;
        (tries > most)
            .then(|| format!("it was lost {tries} times in a row without completing any item"))
    }

    /// Ships a stage to the best place that is left.
    fn place_somewhere(self: &Arc<Self>, number: u64) -> Result<(), String> {
        let mut places: Vec<usize> = {
            let state = self.state();
            let Some(stage) = state.stages.get(&number) else { return Ok(()) };
            let stages =
                |w: usize| state.stages.values().filter(|s| s.worker == w && !s.adrift).count();
            let fits = |w: &WorkerState| {
                w.is_up() && !w.draining && !w.here && w.offer(&stage.device).is_some()
            };
            let mut all: Vec<usize> =
                (0..state.workers.len()).filter(|w| fits(&state.workers[*w])).collect();
            all.sort_by_key(|w| stages(*w));
            all
        };
        let mut reasons = Vec::new();
        let mut here = self.options.in_this_process;
        loop {
            let place = if places.is_empty() {
                if !std::mem::take(&mut here) {
                    break;
                }
                match self.place_here() {
                    Ok(place) => place,
                    Err(e) => {
                        reasons.push(format!("this process: {e}"));
                        break;
                    }
                }
            } else {
                places.remove(0)
            };
            match self.place(number, place, &AtomicBool::new(false)) {
                Ok(()) => return Ok(()),
                Err(e) => reasons.push(e.to_string()),
            }
        }
        if reasons.is_empty() {
            reasons.push("no other worker is there".to_owned());
        }
        Err(reasons.join("; "))
    }

    /// Lets stages that were placed again go on: everything of theirs that somebody waits for, or
    /// holds, is computed once more.
    fn resume(&self, placed: &[u64]) {
        let mut state = self.state();
        let mut took = 0.0_f64;
        for number in placed {
            let State { stages, workers, .. } = &mut *state;
            if let Some(s) = stages.get_mut(number)
                && matches!(s.phase, Phase::Compiled)
                && workers[s.worker].incarnation == s.incarnation
                && !matches!(workers[s.worker].life, Life::Lost { .. })
            {
                s.phase = Phase::Ready;
                s.adrift = false;
                s.moved = Instant::now();
                took = took.max((s.took.load_ns + s.took.compile_ns) as f64 / 1e9);
            }
        }
        let again: Vec<u64> = state
            .firings
            .iter()
            .filter(|(_, f)| placed.contains(&f.stage))
            .map(|(n, _)| *n)
            .collect();
        for number in &again {
            self.hand_over_inputs(&state, *number, placed);
            if let Some(f) = state.firings.get_mut(number) {
                f.sent = false;
            }
        }
        for number in &again {
            self.send_firing(&mut state, *number);
        }
        // Those that wait for what goes through this process.
        let since = state.lost_at.map(|t| t.elapsed().as_secs_f64());
        let replayed = again.len() as u64;
        for loss in state.losses.iter_mut().rev().take_while(|l| l.replaced_s.is_none()) {
            loss.replaced_s = since;
            loss.load_and_compile_s = took;
            loss.replayed = replayed;
        }
        drop(state);
        self.tell_all();
    }

    /// Has the inputs of a firing that lie on other workers handed over to its stage's new one.
    fn hand_over_inputs(&self, state: &State, number: u64, placed: &[u64]) {
        let Some(firing) = state.firings.get(&number) else { return };
        let Some(stage) = state.stages.get(&firing.stage) else { return };
        let to = &state.workers[stage.worker];
        for input in &firing.inputs {
            let super::state::Input::Held(held) = input else { continue };
            let what = OutputKey { of: held.held.key, output: held.output };
            // One that is placed again computes it once more, and hands it over by its route.
            if placed.contains(&what.of.stage) || Self::relayed(state, what.of.stage, stage.worker)
            {
                continue;
            }
            if let Some(link) = state.link_of(what.of.stage) {
                let to = (to.name.clone(), to.address.clone());
                tell(link, &Message::Send { what, to });
            }
        }
    }

    /// Starts a worker in this process and opens the session there.
    pub(super) fn serve_here(self: &Arc<Self>) -> Result<usize> {
        let kind = transport("local").ok_or_else(|| err!(Internal, "no transport `local`"))?;
        let local = (kind.open)(&TransportOptions::new()).map_err(super::link_error)?;
        let name = format!("here-{}", self.memory());
        let mut weights = WeightCache::new().with_schemes(self.registry.weight_schemes().clone());
        for root in self.roots() {
            weights = weights.with_root(root)?;
        }
        let serving = Worker::new("here")
            .registry(self.registry.clone())
            .weights(weights)
            .serve(Arc::clone(&local), &name)?;
        let address = serving.address().to_owned();
        let at = {
            let mut state = self.state();
            let new = WorkerState::new("here", &address);
            state.workers.push(WorkerState { generation: 1, dialling: true, here: true, ..new });
            state.workers.len() - 1
        };
        let ear = Ear { hub: Arc::downgrade(self), worker: at, generation: 1 };
        let deadline = Instant::now() + self.options.lease;
        let link = local.connect(&address, Box::new(ear), deadline).map_err(super::link_error)?;
        tell(&link, &self.greeting("here".to_owned()));
        let mut state = self.state();
        state.workers[at].link = Some(link);
        while !state.workers[at].is_up() {
            if Instant::now() >= deadline || state.closed {
                return Err(err!(Deadline, "the worker of this process did not answer"));
            }
            state = self.wait(state);
        }
        drop(state);
        *self.here.lock().unwrap_or_else(PoisonError::into_inner) = Some((serving, local));
        Ok(at)
    }
}

/// Whether asking again would give the same answer.
const fn is_final(error: &LinkError) -> bool {
    matches!(
        error,
        LinkError::Refused { .. }
            | LinkError::Version { .. }
            | LinkError::Security { .. }
            | LinkError::Address { .. }
    )
}
