//! The thread of an actor.

mod intake;
mod recovery;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;

use crate::batch::{Held, Live};
use crate::cpu::Share;
use crate::duty::is_retried;
use crate::edge::Target;
use crate::engine::{ActorCell, Engine};
use crate::error::{ErrorKind, ItemError};
use crate::inbox::{Flags, Inbox, Next, StageWaker};
use crate::item::Item;
use crate::join::Join;
use crate::lane::Grant;
use crate::metrics::{Phase, PipelineState, add};
use crate::outbox::{Closed, Kept, Outbox};
use crate::packet::{Delivery, Firing, Message, Stamp, Work};
use crate::payload::Payload;
use crate::region::RegionId;
use crate::replica::SharedFactory;
use crate::spans::{self, FiringSpan};
use crate::stage::{Stage, StageContext};
use crate::supervise::{RestartPolicy, Restarts, RetryPolicy, discard, guarded};
use crate::sync::{Arc, Ordering, Sender, thread};

/// What an actor thread is started with.
pub(crate) struct Seed<P> {
    pub(crate) engine: Arc<Engine<P>>,
    pub(crate) me: usize,
    pub(crate) inbox: Inbox<P>,
    /// How many input ports there are, and where the cells lie if there are several.
    pub(crate) inputs: usize,
    pub(crate) join: Option<Join>,
    /// The edges that end here.
    pub(crate) arrivals: Vec<usize>,
    /// For each output port, who takes from it.
    pub(crate) routes: Vec<Vec<Target<P>>>,
    /// The sink port that this actor reports to, if nobody takes anything from it.
    pub(crate) done: Option<usize>,
    pub(crate) factory: Arc<SharedFactory<P>>,
    pub(crate) policy: RestartPolicy,
    /// Its part of the CPU budget, held as long as the thread lives.
    pub(crate) share: Option<Share>,
    pub(crate) retry: RetryPolicy,
    pub(crate) duty: Duty<P>,
}

/// What an actor does with items, beside computing.
pub(crate) enum Duty<P> {
    Plain,
    /// Gives children in `region`.
    FlatMap {
        region: RegionId,
    },
    /// Takes the list of a parent's children.
    Collect {
        slot: usize,
    },
    /// Gives batches in `region`.
    Batch(Box<Batcher<P>>),
    /// Takes batches of `region`; sends those that are to be tried again to their maker.
    Unbatch {
        region: RegionId,
        retry: Option<Sender<Message<P>>>,
    },
    /// Takes the lowest port that holds a payload.
    Merge,
}

/// The side of a batching actor that holds members back.
pub(crate) struct Batcher<P> {
    pub(crate) held: Held<P>,
    pub(crate) live: Arc<Live>,
    /// Alive batches below which the actors behind are short of work.
    pub(crate) enough: usize,
    /// The region of the members, and that of the batches.
    pub(crate) takes: RegionId,
    pub(crate) region: RegionId,
    /// Items that have come so far.
    pub(crate) arrived: u64,
}

/// What became of an attempt to fire.
enum Fired<P> {
    /// The firing was given to the stage, or passed on as an error.
    Yes,
    /// The lane went to somebody else, or the actor is to stop.
    NotNow(Work<P>),
    /// The stage panicked.
    Down(ItemError),
}

pub(crate) struct Actor<P> {
    pub(crate) seed: Seed<P>,
    stage: Option<Box<dyn Stage<P>>>,
    pub(crate) outbox: Outbox<P>,
    slots: usize,
    /// Taken out of the inbox while no slot was free.
    pub(crate) backlog: VecDeque<Work<P>>,
    restarts: Restarts,
    attempt: usize,
    /// The clock as it was read when the last wait ended, until something happens that takes time.
    now: Option<Instant>,
}

/// One more handle on what a child left.
fn share<P: Payload>(child: &Delivery<P>) -> Delivery<P> {
    match child {
        Ok(payload) => Ok(payload.share()),
        Err(error) => Err(error.clone()),
    }
}

/// Reports the end of the thread, whatever ended it.
struct Exit<P: Payload>(Arc<Engine<P>>, usize);

impl<P: Payload> Drop for Exit<P> {
    fn drop(&mut self) {
        let Self(engine, me) = self;
        if thread::panicking() {
            let name = &engine.actors[*me].name;
            let message = format!("the thread of actor `{name}` panicked outside its stage");
            engine.stop(PipelineState::Failed, &ItemError::new(ErrorKind::StageDown, message));
        }
        engine.actors[*me].lane.release(Instant::now());
        engine.exits().ended(*me);
    }
}

/// The body of an actor thread: builds the stage, reports, and runs until told to stop.
pub(crate) fn run<P: Payload>(seed: Seed<P>, ready: &Sender<(usize, Result<(), ItemError>)>) {
    let me = seed.me;
    let _exit = Exit(Arc::clone(&seed.engine), me);
    seed.engine.exits().started(me);
    #[cfg(feature = "affinity")]
    // Threads that a stage starts inherit the core of this one: where it was granted several, it
    // pins them itself.
    if let Some([core]) = seed.share.as_ref().map(|share| &*share.cores) {
        *crate::sync::lock(&seed.engine.actors[me].pinned) =
            Some(crate::affinity::pin(*core).map(|()| *core));
    }
    let outputs = seed.routes.len();
    let lists = matches!(seed.duty, Duty::FlatMap { .. } | Duty::Unbatch { .. });
    let mut actor = Actor {
        seed,
        stage: None,
        outbox: Outbox::new(outputs, lists),
        slots: 1,
        backlog: VecDeque::new(),
        restarts: Restarts::default(),
        attempt: 0,
        now: None,
    };
    let built = actor.build();
    let failed = built.is_err();
    let _ = ready.send((me, built));
    let ended = catch_unwind(AssertUnwindSafe(|| {
        if !failed {
            actor.run()
        }
    }));
    actor.end();
    if let Err(panic) = ended {
        resume_unwind(panic);
    }
}

impl<P: Payload> Actor<P> {
    pub(crate) fn cell(&self) -> &ActorCell<P> {
        &self.seed.engine.actors[self.seed.me]
    }

    pub(crate) fn stopped(&self) -> bool {
        self.cell().bell.flags.is_raised(Flags::STOP)
    }

    fn build(&mut self) -> Result<(), ItemError> {
        let attempt = self.attempt;
        self.attempt += 1;
        let stage = loop {
            let cell = self.cell();
            let context = || StageContext {
                actor: Arc::clone(&cell.actor),
                replica: cell.replica,
                device: Arc::clone(&cell.device),
                inputs: self.seed.inputs,
                outputs: self.seed.routes.len(),
                attempt,
                threads: self.seed.share.as_ref().map_or(0, |share| share.granted),
                cores: self.seed.share.as_ref().map_or_else(Vec::new, |share| share.cores.clone()),
                waker: StageWaker::new(Arc::clone(&cell.bell)),
            };
            if let Some(built) = self.seed.factory.try_build(&cell.bell, context) {
                break built?;
            }
            // Another replica builds; this one waits for nothing else, a stop excepted.
            while !self.seed.inbox.flags().lower(Flags::FACTORY) {
                if self.stopped() {
                    let message = "the pipeline stopped before the stage was built";
                    return Err(ItemError::new(ErrorKind::Shutdown, message));
                }
                self.seed.inbox.next(false, None);
            }
        };
        self.slots = guarded("`slots`", || Ok(stage.slots()))?.max(1);
        if matches!(self.seed.duty, Duty::FlatMap { .. }) {
            // It waits for its budget between two firings, and must hold no lane then.
            self.slots = 1;
        }
        self.cell().slots.store(self.slots, Ordering::Relaxed);
        self.stage = Some(stage);
        Ok(())
    }

    fn drop_stage(&mut self) {
        let stage = self.stage.take();
        let _ = guarded("dropping the stage", move || {
            drop(stage);
            Ok(())
        });
    }

    /// Drops what is left with it: the items have their results.
    fn end(mut self) {
        self.drop_stage();
        self.outbox.clear();
        self.backlog.drain(..).for_each(Work::discard);
        if let Duty::Batch(batcher) = &mut self.seed.duty {
            while let Some(members) = batcher.held.oldest() {
                discard(members);
            }
        }
        while let Some(next) = self.seed.inbox.try_next(true) {
            if let Next::Message(message) = next {
                message.discard();
            }
        }
        discard(Some(self));
    }

    fn run(&mut self) {
        while !self.stopped() {
            if let Err(cause) = self.step()
                && !self.recover(&cause)
            {
                return;
            }
        }
    }

    /// One round: look at the flags, fire what can fire, wait for one message.
    fn step(&mut self) -> Result<(), ItemError> {
        self.attend()?;
        let restart = self.seed.inbox.flags().is_raised(Flags::RESTART);
        if restart && self.outbox.count() == 0 {
            self.seed.inbox.flags().lower(Flags::RESTART);
            self.drop_stage();
            self.cell().meter.restarted();
            spans::restarted(&self.cell().name, self.attempt);
            self.build()?;
            self.now = None;
        }
        self.flush_batches();
        while !restart && self.outbox.count() < self.slots && !self.stopped() {
            let Some(work) = self.backlog.pop_front() else {
                break;
            };
            match self.fire(work) {
                Fired::Yes => {}
                Fired::NotNow(work) => {
                    self.backlog.push_front(work);
                    break;
                }
                Fired::Down(error) => return Err(error),
            }
        }
        let idle = self.outbox.count() == 0;
        if !self.stopped() && (!idle || self.backlog.is_empty()) {
            self.wait();
        }
        Ok(())
    }

    /// Does what the flags ask for.
    fn attend(&mut self) -> Result<(), ItemError> {
        let flags = self.seed.inbox.flags();
        let (poll, flush) = (flags.lower(Flags::POLL), flags.lower(Flags::FLUSH));
        flags.lower(Flags::CANCEL);
        if self.outbox.count() == 0 {
            return Ok(());
        }
        self.now = None;
        let given_up: Vec<_> = self
            .outbox
            .firings()
            .iter_mut()
            .filter(|firing| !firing.cancelled && firing.item.skip().is_some())
            .map(|firing| {
                firing.cancelled = true;
                firing.seq
            })
            .collect();
        let (Some(stage), outbox) = (self.stage.as_mut(), &mut self.outbox) else {
            return Ok(());
        };
        let verdict = guarded("the stage", || {
            let mut verdict = Ok(());
            for seq in given_up {
                stage.cancel(seq, outbox);
            }
            if poll {
                verdict = stage.poll(outbox);
            }
            if flush && verdict.is_ok() {
                verdict = stage.flush(outbox);
            }
            Ok(verdict)
        })?;
        if let Err(error) = verdict {
            self.outbox.fail_all(&error);
        }
        while let Some(closed) = self.outbox.next_complete() {
            self.close(closed);
        }
        Ok(())
    }

    /// Waits for one message and takes it in.
    fn wait(&mut self) {
        let level = self.seed.inbox.level();
        // A replica takes only what it can start: the others may be free.
        let wanted = !self.seed.inbox.is_shared()
            || (self.backlog.is_empty()
                && self.outbox.count() < self.slots
                && !self.seed.inbox.flags().is_raised(Flags::RESTART));
        let next = match self.seed.inbox.try_next(wanted) {
            Some(next) => next,
            None => {
                if self.outbox.count() == 0 {
                    self.cell().meter.enter(Phase::Starved);
                }
                let open = self.outbox.firings().iter();
                let pending = open.filter(|firing| !firing.cancelled);
                let due = match &self.seed.duty {
                    Duty::Batch(batcher) => batcher.held.deadline(),
                    _ => None,
                };
                let deadline = pending.filter_map(|firing| firing.item.deadline).chain(due).min();
                let next = self.seed.inbox.next(wanted, deadline);
                if self.outbox.count() == 0 {
                    self.now = Some(self.cell().meter.enter(Phase::Other));
                }
                next
            }
        };
        if let Next::Message(message) = next {
            self.take_in(message, level);
        }
    }

    fn fire(&mut self, work: Work<P>) -> Fired<P> {
        let skip = work.inputs.as_ref().err().cloned().or_else(|| work.item.skip());
        if let Some(error) = skip {
            self.pass_work(work, error);
            return Fired::Yes;
        }
        if matches!(self.seed.duty, Duty::Merge) {
            let now = self.now.unwrap_or_else(Instant::now);
            self.leave_edges(&work.item, work.since_ns, now);
            self.cell().meter.fired(now, now, false, None);
            let engine = &self.seed.engine;
            let bytes = engine.weigh(work.inputs.iter().flatten());
            if bytes > 0 {
                engine.drop_bytes(&work.item, bytes);
            }
            let stamp = Stamp { number: work.seq.number(), at_ns: engine.time(now) };
            for payload in work.inputs.into_iter().flatten() {
                self.send(&work.item, 0, payload, stamp);
            }
            self.report_done(&work.item, None);
            return Fired::Yes;
        }
        let seq = work.seq;
        let mut now = self.now.take().unwrap_or_else(Instant::now);
        let lane = &self.cell().lane;
        if self.outbox.count() > 0 {
            if lane.lanes.gives_way(&lane.seat, seq) {
                return Fired::NotNow(work);
            }
        } else if !lane.try_acquire(now) {
            self.cell().meter.enter_at(Phase::Blocked, now);
            match lane.acquire(seq, || self.stopped()) {
                Grant::Held => {}
                Grant::Stopped => return Fired::NotNow(work),
                Grant::Poisoned => {
                    let device = &lane.lanes.device;
                    let message =
                        format!("no lane of device `{device}` is left: stuck threads hold them");
                    let error = ItemError::new(ErrorKind::StageDown, message);
                    self.pass_work(work, error);
                    return Fired::Yes;
                }
            }
            now = Instant::now();
            if let Some(error) = work.item.skip() {
                lane.release(now);
                self.cell().meter.enter_at(Phase::Other, now);
                self.pass_work(work, error);
                return Fired::Yes;
            }
        }
        let started = now;
        self.cell().meter.enter_at(Phase::Busy, started);
        self.leave_edges(&work.item, work.since_ns, started);
        let (item, inputs) = (work.item, work.inputs.unwrap_or_default());
        let engine = &self.seed.engine;
        let collected = work.children.iter().filter_map(|child| child.as_ref().ok());
        let bytes = engine.weigh(inputs.iter().chain(collected));
        let keeps = self.seed.retry.asks();
        let kept = keeps.then(|| Kept {
            inputs: inputs.iter().map(Payload::share).collect(),
            children: work.children.iter().map(share).collect(),
            tries: work.tries,
        });
        if keeps && bytes > 0 {
            engine.hold_bytes(&item, bytes);
        }
        let firing = Firing {
            seq,
            inputs,
            children: work.children,
            members: item.members().len().max(1),
            stream: item.stream.as_ref().map(|stream| stream.id),
            deadline: item.deadline,
        };
        let span = FiringSpan::new(&self.cell().name, &self.cell().device, seq);
        self.outbox.begin(item, seq, started, bytes, kept, span.share());
        let (Some(stage), outbox) = (self.stage.as_mut(), &mut self.outbox) else {
            return Fired::Down(ItemError::new(ErrorKind::StageDown, "the stage is gone"));
        };
        match guarded("the stage", || Ok(span.within(|| stage.submit(firing, outbox)))) {
            Ok(verdict) => {
                if let Some(closed) = self.outbox.end(verdict) {
                    self.close(closed);
                }
                Fired::Yes
            }
            Err(panic) => Fired::Down(panic),
        }
    }

    fn pass_work(&mut self, work: Work<P>, error: ItemError) {
        self.pass(&work.item, work.since_ns, error);
        work.discard();
    }

    /// Passes an item on as an error without computing it; it lies in its one edge `since_ns`.
    pub(crate) fn pass(&mut self, item: &Arc<Item<P>>, since_ns: u64, error: ItemError) {
        let now = Instant::now();
        self.leave_edges(item, since_ns, now);
        spans::dropped(&self.cell().name, item.seq(), &error);
        self.cell().meter.skipped();
        self.forward_error(item, error, now);
    }

    /// Counts an item as gone from the edges that end here: a batch that was made here counts for its
    /// members, and what never lay in them, or left them before, does not count.
    fn leave_edges(&self, item: &Item<P>, since_ns: u64, at: Instant) {
        let now = self.seed.engine.time(at);
        match &self.seed.duty {
            Duty::Batch(batcher) if item.region == batcher.region => {
                item.members().iter().for_each(|member| self.leave(member, now));
            }
            Duty::Batch(_) => self.leave(item, now),
            _ if since_ns == 0 => {}
            _ if since_ns == Work::<P>::JOINED => {
                for (edge, waited) in self.seed.arrivals.iter().zip(&self.cell().waited_ns) {
                    add(waited, now.saturating_sub(item.cells.stamped(*edge)));
                }
                self.cell().meter.took();
            }
            _ => {
                if let [waited] = &*self.cell().waited_ns {
                    add(waited, now.saturating_sub(since_ns));
                }
                self.cell().meter.took();
            }
        }
    }

    /// Counts a member of a batch as gone, once.
    fn leave(&self, member: &Item<P>, now: u64) {
        let cell = self.cell();
        for (edge, waited) in self.seed.arrivals.iter().zip(&cell.waited_ns) {
            let since = member.cells.unstamp(*edge);
            if since > 0 {
                add(waited, now.saturating_sub(since));
                cell.meter.took();
            }
        }
    }

    /// Books a complete firing and sends its outputs on.
    fn close(&mut self, closed: Closed<P>) {
        let Closed { item, seq, started, computed, bytes, kept, outcome, lists } = closed;
        let outcome = outcome.and_then(|outputs| self.checked(outputs, &lists));
        let cell = self.cell();
        let ended = Instant::now();
        let over = self.outbox.count() == 0;
        let failed = matches!(&outcome, Err(error) if !error.is_filtered());
        cell.meter.fired(started, ended, failed, over.then_some(Phase::Other));
        if let Some(time) = computed {
            cell.meter.computed(time);
        }
        if over {
            cell.lane.release(ended);
        }
        let engine = &self.seed.engine;
        let again = outcome.as_ref().is_err_and(|error| {
            let tries = kept.as_ref().map_or(0, |kept| kept.tries);
            self.seed.retry.again(error.kind(), tries) && item.skip().is_none()
        });
        if bytes > 0 {
            let handles = 1 + usize::from(kept.is_some() && !again);
            engine.drop_bytes(&item, handles * bytes);
        }
        let at = engine.time(ended);
        cell.ring.record(seq.number(), engine.time(started), at);
        if !again {
            if let Some(kept) = kept {
                kept.discard();
            }
        } else if let Some(Kept { inputs, children, tries }) = kept {
            cell.meter.retried();
            // Among what waits, it keeps the place that its number gives it.
            let later = self.backlog.iter().position(|work| work.seq > seq);
            let place = later.unwrap_or(self.backlog.len());
            let (inputs, tries) = (Ok(inputs), tries + 1);
            let work = Work { item, seq, since_ns: 0, inputs, children, tries };
            self.backlog.insert(place, work);
            return;
        }
        let mut outputs = match outcome {
            Ok(outputs) => outputs,
            Err(error) => {
                discard(lists.into_iter().flatten());
                return self.forward_error(&item, error, ended);
            }
        };
        let stamp = Stamp { number: seq.number(), at_ns: at };
        match &self.seed.duty {
            Duty::FlatMap { region } => self.fan_out(*region, &item, lists, at),
            Duty::Unbatch { .. } => self.unbatch(&item, lists, at),
            duty => {
                if let Duty::Batch(batcher) = duty {
                    engine.enters(batcher.region, 1);
                }
                if let ([targets], None) = (self.seed.routes.as_slice(), self.seed.done) {
                    // The handle itself goes on, so that its count stays as it is.
                    if let Some(payload) = outputs.pop().flatten() {
                        engine.send(targets, item, payload, stamp);
                    }
                } else {
                    for (port, payload) in outputs.drain(..).enumerate() {
                        if let Some(payload) = payload {
                            self.send(&item, port, payload, stamp);
                        }
                    }
                    self.report_done(&item, None);
                }
            }
        }
        self.outbox.recycle_outputs(outputs);
    }

    /// Sends an item on as an error, in the way of the actor's duty.
    fn forward_error(&mut self, item: &Arc<Item<P>>, error: ItemError, at: Instant) {
        let error = item.blame(error, &self.cell().actor);
        let engine = &self.seed.engine;
        let at = engine.time(at);
        match &self.seed.duty {
            Duty::FlatMap { region } if self.seed.done.is_none() => {
                engine.end_children(*region, item, 0, Some(&error));
            }
            Duty::Batch(batcher) if item.region == batcher.region => {
                if batcher.held.retries() && is_retried(item, &error) {
                    return self.retry(item);
                }
                for member in item.members() {
                    let error = error.clone().at(None, member.seq());
                    engine.bypass(batcher.region, member, &error);
                }
            }
            Duty::Batch(batcher) => engine.bypass(batcher.region, item, &error),
            Duty::Unbatch { region, retry } if item.region == *region => {
                if let Some(maker) = retry
                    && is_retried(item, &error)
                {
                    // It makes room for its members in the inbox that they came through.
                    let _ = maker.send(Message::Retry(Arc::clone(item)));
                    return;
                }
                for member in item.members() {
                    self.send_error(member, &error.clone().at(None, member.seq()), at);
                }
            }
            _ => self.send_error(item, &error, at),
        }
    }

    /// Sees to it that what a device still works on does not leave that device.
    fn checked(
        &self,
        outputs: Vec<Option<P>>,
        lists: &[Vec<P>],
    ) -> Result<Vec<Option<P>>, ItemError> {
        let (device, memory) = (&self.cell().device, &self.cell().memory);
        let early = self.seed.routes.iter().zip(&outputs).position(|(targets, payload)| {
            let unready = payload.as_ref().is_some_and(|payload| !payload.ready());
            unready && !self.seed.engine.stays_in(targets, memory)
        });
        // Children go their own ways.
        let early = early.or_else(|| lists.iter().position(|l| !l.iter().all(Payload::ready)));
        match early {
            None => Ok(outputs),
            Some(port) => {
                discard(outputs.into_iter().flatten());
                let message = format!("output {port} left device `{device}` before it was ready");
                Err(ItemError::new(ErrorKind::Contract, message))
            }
        }
    }

    pub(crate) fn send(&self, item: &Arc<Item<P>>, port: usize, payload: P, stamp: Stamp) {
        if let Some(targets) = self.seed.routes.get(port) {
            self.seed.engine.send(targets, Arc::clone(item), payload, stamp);
        }
    }

    pub(crate) fn send_error(&self, item: &Arc<Item<P>>, error: &ItemError, at_ns: u64) {
        let stamp = Stamp { number: item.seq().number(), at_ns };
        for targets in &self.seed.routes {
            self.seed.engine.send_error(targets, item, error, stamp);
        }
        self.report_done(item, Some(error));
    }

    pub(crate) fn report_done(&self, item: &Arc<Item<P>>, error: Option<&ItemError>) {
        if let Some(port) = self.seed.done {
            self.seed.engine.done(port, item, error.cloned());
        }
    }
}
