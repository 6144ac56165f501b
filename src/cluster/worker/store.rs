//! What a session holds, and what waits for what: inputs that have come, outputs that are kept,
//! tensors of other workers, and the firings that they complete.
//!
//! Plain data without locks, threads or links. Every message may come twice, too early or too late:
//! what is here already is not taken again, what nobody will want is not taken at all.

mod answers;
mod held;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

pub(super) use answers::{Admission, Delivery, Finished, Fired, Job, Push};
pub(super) use held::Held;

use answers::Outcome;

use super::quota::{Charge, Ledger};
use crate::cluster::message::{Feed, FiringKey, Form, OutputKey, WireError};
use crate::error::{Result, err};
use crate::graph::Fact;

/// The most firings of a session that are known at once, and the most tensors of other workers.
const MAX_FIRINGS: usize = 1 << 16;

/// The most outputs of other workers that are expected, and the most outputs that have a route.
const MAX_ROUTES: usize = 1 << 14;

/// So many firings are remembered after they were released.
const REMEMBERED: usize = 1 << 14;

/// So many tensors are kept that came after their firing was released: a worker that has been away
/// may still send them, and they may still be asked for where a stage has moved here.
const MAX_LATE: usize = 64;

/// A stage that is ready.
#[derive(Debug)]
pub(super) struct Declared {
    pub(super) epoch: u32,
    pub(super) inputs: Vec<Fact>,
    pub(super) outputs: usize,
    pub(super) ledger: Arc<Ledger>,
}

#[derive(Debug)]
struct Expected {
    epoch: u32,
    fact: Fact,
}

#[derive(Debug, Default)]
struct Firing {
    inputs: BTreeMap<u32, Held>,
    order: Option<Order>,
    phase: Phase,
}

#[derive(Debug)]
struct Order {
    epoch: u32,
    feeds: Vec<Feed>,
    give: BTreeSet<u32>,
    /// How many of the feeds are not here yet.
    missing: usize,
}

#[derive(Debug, Default)]
enum Phase {
    /// Inputs or the order to compute are missing.
    #[default]
    Open,
    Queued,
    Running,
    Done(Outcome),
    Failed(WireError),
}

/// What was taken out of the store, to be freed without its lock.
#[derive(Debug, Default)]
#[must_use]
pub(super) struct Freed {
    _firings: Vec<Firing>,
    _tensors: Vec<BTreeMap<u32, Result<Held, WireError>>>,
}

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Store {
    stages: HashMap<u64, Declared>,
    firings: HashMap<FiringKey, Firing>,
    expected: HashMap<(u64, u32), Expected>,
    routes: HashMap<(u64, u32), Arc<[String]>>,
    /// What came from other workers, or why it was not taken.
    tensors: HashMap<FiringKey, BTreeMap<u32, Result<Held, WireError>>>,
    waiting: HashMap<OutputKey, Vec<FiringKey>>,
    released: HashSet<FiringKey>,
    released_in_order: VecDeque<FiringKey>,
    late: VecDeque<OutputKey>,
}

impl Store {
    /// A stage is ready.
    pub(super) fn declare(&mut self, stage: u64, declared: Declared) {
        self.stages.insert(stage, declared);
    }

    /// A stage is replaced: its firings are forgotten, since its coordinator orders again those that
    /// it needs, under the new epoch. Its routes stay.
    pub(super) fn replace(&mut self, stage: u64) -> Freed {
        self.stages.remove(&stage);
        let keys: Vec<FiringKey> =
            self.firings.keys().filter(|of| of.stage == stage).copied().collect();
        let mut freed = Freed::default();
        for of in keys {
            freed._firings.extend(self.remove(of));
        }
        freed
    }

    /// A stage has ended, here or on another worker: everything of it is forgotten, what it was to
    /// hand over here and did too.
    pub(super) fn drop_stage(&mut self, stage: u64) -> Freed {
        self.routes.retain(|(s, _), _| *s != stage);
        self.expected.retain(|(s, _), _| *s != stage);
        self.late.retain(|late| late.of.stage != stage);
        let mut freed = self.replace(stage);
        let came = self.tensors.extract_if(|of, _| of.stage == stage);
        freed._tensors.extend(came.map(|(_, tensors)| tensors));
        freed
    }

    fn remove(&mut self, of: FiringKey) -> Option<Firing> {
        let firing = self.firings.remove(&of)?;
        self.unregister(of, firing.order.as_ref());
        Some(firing)
    }

    /// Nobody waits for the feeds of this order any more.
    fn unregister(&mut self, of: FiringKey, order: Option<&Order>) {
        for feed in order.iter().flat_map(|o| &o.feeds) {
            let Feed::Held(key) = feed else { continue };
            if let Some(waiting) = self.waiting.get_mut(key) {
                waiting.retain(|w| *w != of);
                if waiting.is_empty() {
                    self.waiting.remove(key);
                }
            }
        }
    }

    /// Whether any output of another worker is to come here.
    pub(super) fn expects_any(&self) -> bool {
        !self.expected.is_empty()
    }

    /// An output of a stage elsewhere will come here.
    ///
    /// # Errors
    /// If too much is expected.
    pub(super) fn expect(&mut self, stage: u64, output: u32, epoch: u32, fact: Fact) -> Result<()> {
        if self.expected.len() >= MAX_ROUTES && !self.expected.contains_key(&(stage, output)) {
            return Err(err!(Limit, "more than {MAX_ROUTES} outputs are expected"));
        }
        self.expected.insert((stage, output), Expected { epoch, fact });
        Ok(())
    }

    /// An output goes to these workers from now on.
    ///
    /// # Errors
    /// If too many outputs have a route.
    pub(super) fn route(&mut self, stage: u64, output: u32, to: Vec<String>) -> Result<()> {
        if to.is_empty() {
            self.routes.remove(&(stage, output));
            return Ok(());
        }
        if self.routes.len() >= MAX_ROUTES && !self.routes.contains_key(&(stage, output)) {
            return Err(err!(Limit, "more than {MAX_ROUTES} outputs have a route"));
        }
        self.routes.insert((stage, output), to.into());
        Ok(())
    }

    /// Whether an output goes to this worker.
    pub(super) fn is_routed_to(&self, peer: &str) -> bool {
        self.routes.values().any(|to| to.iter().any(|n| n == peer))
    }

    /// What is kept and goes to this worker.
    pub(super) fn routed_to(&self, peer: &str) -> Vec<(OutputKey, u32, Held)> {
        let mut all = Vec::new();
        for (of, firing) in &self.firings {
            let Phase::Done(outcome) = &firing.phase else { continue };
            for (held, output) in outcome.outputs.iter().zip(0..) {
                let route = self.routes.get(&(of.stage, output));
                if held.is_plain() && route.is_some_and(|to| to.iter().any(|n| n == peer)) {
                    all.push((OutputKey { of: *of, output }, outcome.epoch, held.clone()));
                }
            }
        }
        all.sort_by_key(|(what, ..)| (what.of.firing, what.of.stage, what.output));
        all
    }

    /// An output that is kept here, and its epoch.
    pub(super) fn kept(&self, what: OutputKey) -> Option<(u32, Held)> {
        let Phase::Done(outcome) = &self.firings.get(&what.of)?.phase else { return None };
        let held = outcome.outputs.get(what.output as usize)?;
        Some((outcome.epoch, held.clone()))
    }

    /// The value with this name, whether it was made here or came from elsewhere.
    fn find(&self, what: OutputKey) -> Option<Result<Held, WireError>> {
        if let Some((_, held)) = self.kept(what) {
            return Some(Ok(held));
        }
        self.tensors.get(&what.of)?.get(&what.output).cloned()
    }

    /// An input of a firing is about to come.
    pub(super) fn admit_input(
        &mut self,
        of: FiringKey,
        port: u32,
        form: &Form,
        length: u64,
    ) -> Admission {
        let Some(stage) = self.stages.get(&of.stage) else { return Admission::Discard };
        let firing = self.firings.get(&of);
        let wanted =
            firing.is_none_or(|f| matches!(f.phase, Phase::Open) && !f.inputs.contains_key(&port));
        if !wanted {
            return Admission::Discard;
        }
        let checked = match stage.inputs.get(port as usize) {
            None => Err(err!(UnknownName, "the stage has no input {port}")),
            Some(_) if firing.is_none() && self.firings.len() >= MAX_FIRINGS => {
                Err(err!(Limit, "more than {MAX_FIRINGS} firings are open"))
            }
            Some(fact) => form.check(length, fact),
        };
        let ledger = Arc::clone(&stage.ledger);
        match checked.and_then(|()| self.charge(&ledger, length)) {
            Ok(charge) => Admission::Take(charge),
            Err(e) => {
                let error = WireError::from(&e.within(&format!("input {port}")));
                self.fail(of, error.clone());
                Admission::Fail(vec![of], error)
            }
        }
    }

    /// Charges bytes; what came late makes room.
    fn charge(&mut self, ledger: &Arc<Ledger>, bytes: u64) -> Result<Charge> {
        let charged = ledger.charge(bytes);
        if charged.is_ok() || self.late.is_empty() {
            return charged;
        }
        while self.forget_late() {}
        ledger.charge(bytes)
    }

    fn forget_late(&mut self) -> bool {
        let Some(what) = self.late.pop_front() else { return false };
        if let Some(of) = self.tensors.get_mut(&what.of) {
            of.remove(&what.output);
            if of.is_empty() {
                self.tensors.remove(&what.of);
            }
        }
        true
    }

    /// An input has come; gives the firing if it is complete now.
    pub(super) fn put_input(&mut self, of: FiringKey, port: u32, held: Held) -> Option<FiringKey> {
        // The stage may have gone while the bytes came.
        self.stages.get(&of.stage)?;
        let firing = self.firings.entry(of).or_default();
        if !matches!(firing.phase, Phase::Open) || firing.inputs.contains_key(&port) {
            return None;
        }
        firing.inputs.insert(port, held);
        let order = firing.order.as_mut()?;
        if !matches!(order.feeds.get(port as usize), Some(Feed::Sent)) {
            return None;
        }
        order.missing -= 1;
        (order.missing == 0).then(|| {
            firing.phase = Phase::Queued;
            of
        })
    }

    /// A tensor of another worker is about to come.
    pub(super) fn admit_tensor(
        &mut self,
        what: OutputKey,
        epoch: u32,
        form: &Form,
        length: u64,
        ledger: &Arc<Ledger>,
    ) -> Admission {
        let Some(expected) = self.expected.get(&(what.of.stage, what.output)) else {
            return Admission::Discard;
        };
        if epoch < expected.epoch {
            return Admission::Stale;
        }
        let of = self.tensors.get(&what.of);
        if of.is_some_and(|of| of.get(&what.output).is_some_and(Result::is_ok)) {
            return Admission::Discard;
        }
        let checked = match form {
            Form::Encoded => Err(err!(DType, "declared {}, got no tensor", expected.fact)),
            Form::Plain { .. } if of.is_none() && self.tensors.len() >= MAX_FIRINGS => {
                Err(err!(Limit, "tensors of more than {MAX_FIRINGS} firings are kept"))
            }
            Form::Plain { .. } => form.check(length, &expected.fact),
        };
        match checked.and_then(|()| self.charge(ledger, length)) {
            Ok(charge) => Admission::Take(charge),
            Err(e) => {
                let OutputKey { of, output } = what;
                let error = e.within(&format!("output {output} of stage {}", of.stage));
                let error = WireError::from(&error);
                Admission::Fail(self.spoil(what, &error), error)
            }
        }
    }

    /// A tensor of another worker cannot be taken: gives the firings that fail by it.
    pub(super) fn spoil(&mut self, what: OutputKey, error: &WireError) -> Vec<FiringKey> {
        let waiting = self.waiting.get(&what).cloned().unwrap_or_default();
        let waiting: BTreeSet<FiringKey> = waiting.into_iter().collect();
        if self.tensors.len() < MAX_FIRINGS {
            let of = self.tensors.entry(what.of).or_default();
            of.insert(what.output, Err(error.clone()));
        }
        for of in &waiting {
            self.fail(*of, error.clone());
        }
        waiting.into_iter().collect()
    }

    /// A tensor of another worker has come; gives the firings that are complete now.
    pub(super) fn put_tensor(&mut self, what: OutputKey, held: Held) -> Vec<FiringKey> {
        let of = self.tensors.entry(what.of).or_default();
        if of.get(&what.output).is_some_and(Result::is_ok) {
            return Vec::new();
        }
        of.insert(what.output, Ok(held));
        if self.released.contains(&what.of) && !self.waiting.contains_key(&what) {
            self.late.push_back(what);
            if self.late.len() > MAX_LATE {
                self.forget_late();
            }
        }
        self.arrived(what)
    }

    fn arrived(&mut self, what: OutputKey) -> Vec<FiringKey> {
        let mut ready = Vec::new();
        for of in self.waiting.remove(&what).unwrap_or_default() {
            let Some(firing) = self.firings.get_mut(&of) else { continue };
            let Some(order) = firing.order.as_mut() else { continue };
            order.missing -= 1;
            if order.missing == 0 {
                firing.phase = Phase::Queued;
                ready.push(of);
            }
        }
        ready
    }

    /// The order to compute.
    pub(super) fn fire(
        &mut self,
        of: FiringKey,
        epoch: u32,
        feeds: Vec<Feed>,
        give: Vec<u32>,
    ) -> Fired {
        let mut give: BTreeSet<u32> = give.into_iter().collect();
        if let Some(firing) = self.firings.get_mut(&of) {
            match (&firing.phase, &mut firing.order) {
                (Phase::Done(outcome), _) => return Fired::Done(outcome.deliver(&give)),
                (Phase::Failed(error), _) => return Fired::Failed(error.clone()),
                (Phase::Queued | Phase::Running, Some(order)) => {
                    order.give.append(&mut give);
                    return Fired::Pending;
                }
                _ => {}
            }
        }
        let checked = self.check_order(of, epoch, &feeds, &give);
        match checked {
            Ok(true) => {}
            Ok(false) => return Fired::Stale,
            // Not remembered: the stage may still come.
            Err(e) => return Fired::Failed(WireError::from(&e)),
        }
        let old = self.firings.entry(of).or_default().order.take();
        self.unregister(of, old.as_ref());
        give.extend(old.into_iter().flat_map(|o| o.give));
        let mut missing = 0;
        for (feed, port) in feeds.iter().zip(0..) {
            match feed {
                Feed::Sent => {
                    let here = self.firings.get(&of).is_some_and(|f| f.inputs.contains_key(&port));
                    missing += usize::from(!here);
                }
                Feed::Held(key) => {
                    self.late.retain(|late| late != key);
                    match self.find(*key) {
                        Some(Ok(_)) => {}
                        Some(Err(error)) => {
                            self.fail(of, error.clone());
                            return Fired::Failed(error);
                        }
                        None => {
                            missing += 1;
                            self.waiting.entry(*key).or_default().push(of);
                        }
                    }
                }
            }
        }
        let Some(firing) = self.firings.get_mut(&of) else { return Fired::Pending };
        firing.order = Some(Order { epoch, feeds, give, missing });
        if missing > 0 {
            return Fired::Pending;
        }
        firing.phase = Phase::Queued;
        Fired::Ready
    }

    /// Whether an order is one for the stage that is here; `false` if it is for one before that.
    fn check_order(
        &self,
        of: FiringKey,
        epoch: u32,
        feeds: &[Feed],
        give: &BTreeSet<u32>,
    ) -> Result<bool> {
        let Some(stage) = self.stages.get(&of.stage) else {
            return Err(err!(Stopped, "stage {} is not ready here", of.stage));
        };
        if epoch < stage.epoch {
            return Ok(false);
        }
        if epoch > stage.epoch {
            let here = stage.epoch;
            return Err(err!(
                Stopped,
                "stage {} is here in epoch {here}, the firing is of epoch {epoch}",
                of.stage
            ));
        }
        if feeds.len() != stage.inputs.len() {
            let (have, want) = (feeds.len(), stage.inputs.len());
            return Err(err!(Internal, "{have} feeds for a stage of {want} inputs"));
        }
        if let Some(output) = give.iter().find(|o| **o as usize >= stage.outputs) {
            return Err(err!(Internal, "the stage has no output {output}"));
        }
        if !self.firings.contains_key(&of) && self.firings.len() >= MAX_FIRINGS {
            return Err(err!(Limit, "more than {MAX_FIRINGS} firings are open"));
        }
        Ok(true)
    }

    /// What a firing that is complete computes on; `None` if nobody wants it any more.
    pub(super) fn start(&mut self, of: FiringKey) -> Option<Result<Job, WireError>> {
        let firing = self.firings.get_mut(&of)?;
        if !matches!(firing.phase, Phase::Queued) {
            return None;
        }
        let order = firing.order.as_ref()?;
        let (epoch, feeds) = (order.epoch, order.feeds.clone());
        firing.phase = Phase::Running;
        let mut sent = std::mem::take(&mut firing.inputs);
        let mut inputs = Vec::with_capacity(feeds.len());
        for (feed, port) in feeds.iter().zip(0_u32..) {
            let found = match feed {
                Feed::Sent => sent.remove(&port),
                Feed::Held(key) => self.find(*key).and_then(Result::ok),
            };
            let Some(held) = found else {
                let error = err!(Internal, "input {port} was released before the firing began");
                let error = WireError::from(&error);
                self.fail(of, error.clone());
                return Some(Err(error));
            };
            inputs.push(held);
        }
        Some(Ok(Job { epoch, inputs }))
    }

    /// A firing has been computed; `None` if nobody wants it any more.
    pub(super) fn finish(
        &mut self,
        of: FiringKey,
        epoch: u32,
        start_ns: u64,
        end_ns: u64,
        outputs: Vec<Held>,
    ) -> Option<Finished> {
        let firing = self.running(of, epoch)?;
        let give = firing.order.take().map(|o| o.give).unwrap_or_default();
        let outcome = Outcome { epoch, start_ns, end_ns, outputs };
        let delivery = outcome.deliver(&give);
        let held = outcome.outputs.clone();
        firing.phase = Phase::Done(outcome);
        let (mut pushes, mut ready) = (Vec::new(), Vec::new());
        for (held, output) in held.into_iter().zip(0..) {
            let what = OutputKey { of, output };
            if let Some(to) = self.routes.get(&(of.stage, output)).filter(|_| held.is_plain()) {
                pushes.push(Push { what, epoch, held, to: Arc::clone(to) });
            }
            ready.extend(self.arrived(what));
        }
        Some(Finished { delivery, pushes, ready })
    }

    /// A firing that a stage was at has failed; whether anybody wants to know.
    pub(super) fn finish_failed(&mut self, of: FiringKey, epoch: u32, error: WireError) -> bool {
        if self.running(of, epoch).is_none() {
            return false;
        }
        self.fail(of, error);
        true
    }

    fn running(&mut self, of: FiringKey, epoch: u32) -> Option<&mut Firing> {
        let firing = self.firings.get_mut(&of)?;
        let is_this = firing.order.as_ref().is_some_and(|o| o.epoch == epoch);
        (is_this && matches!(firing.phase, Phase::Running)).then_some(firing)
    }

    /// A firing fails, unless it is done.
    pub(super) fn fail(&mut self, of: FiringKey, error: WireError) {
        if !self.firings.contains_key(&of) && self.firings.len() >= MAX_FIRINGS {
            return;
        }
        let firing = self.firings.entry(of).or_default();
        if matches!(firing.phase, Phase::Done(_)) {
            return;
        }
        firing.phase = Phase::Failed(error);
        firing.inputs.clear();
        let order = firing.order.take();
        self.unregister(of, order.as_ref());
    }

    /// Nobody needs what these firings made, or read.
    pub(super) fn release(&mut self, firings: &[FiringKey]) -> Freed {
        let mut freed = Freed::default();
        for of in firings {
            freed._firings.extend(self.remove(*of));
            freed._tensors.extend(self.tensors.remove(of));
            self.late.retain(|late| late.of != *of);
            if self.released.insert(*of) {
                self.released_in_order.push_back(*of);
                if self.released_in_order.len() > REMEMBERED
                    && let Some(oldest) = self.released_in_order.pop_front()
                {
                    self.released.remove(&oldest);
                }
            }
        }
        freed
    }
}
