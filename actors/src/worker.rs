//! The thread of an actor.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::cpu::Share;
use crate::edge::Target;
use crate::engine::{ActorCell, Engine};
use crate::error::{ErrorKind, ItemError};
use crate::inbox::{Flags, Inbox, Next, StageWaker};
use crate::item::Item;
use crate::join::Join;
use crate::lane::Grant;
use crate::metrics::{Phase, PipelineState};
use crate::outbox::{Closed, Outbox};
use crate::packet::{Firing, Message, Work};
use crate::payload::Payload;
use crate::replica::SharedFactory;
use crate::stage::{Stage, StageContext};
use crate::supervise::{RestartPolicy, Restarts, guarded};
#[cfg(feature = "affinity")]
use crate::sync::lock;
use crate::sync::{Arc, Ordering, Sender, thread};

/// What an actor thread is started with.
pub(crate) struct Seed<P> {
    pub(crate) engine: Arc<Engine<P>>,
    pub(crate) me: usize,
    pub(crate) inbox: Inbox<P>,
    /// How many input ports there are, and where the cells lie if there are several.
    pub(crate) inputs: usize,
    pub(crate) join: Option<Join>,
    /// For each output port, who takes from it.
    pub(crate) routes: Vec<Vec<Target<P>>>,
    /// The sink port that this actor reports to, if nobody takes anything from it.
    pub(crate) done: Option<usize>,
    pub(crate) factory: Arc<SharedFactory<P>>,
    pub(crate) policy: RestartPolicy,
    /// Its part of the CPU budget, held as long as the thread lives.
    pub(crate) share: Option<Share>,
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

struct Actor<P> {
    seed: Seed<P>,
    stage: Option<Box<dyn Stage<P>>>,
    outbox: Outbox<P>,
    slots: usize,
    /// Taken out of the inbox while no slot was free.
    backlog: VecDeque<Work<P>>,
    restarts: Restarts,
    attempt: usize,
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
        engine.actors[*me].lane.release();
        engine.exits().ended(*me);
    }
}

/// The body of an actor thread: builds the stage, reports, and runs until told to stop.
pub(crate) fn run<P: Payload>(seed: Seed<P>, ready: &Sender<(usize, Result<(), ItemError>)>) {
    let me = seed.me;
    let _exit = Exit(Arc::clone(&seed.engine), me);
    seed.engine.exits().started(me);
    #[cfg(feature = "affinity")]
    if let Some(&core) = seed.share.as_ref().and_then(|share| share.cores.first()) {
        *lock(&seed.engine.actors[me].pinned) = Some(crate::affinity::pin(core).map(|()| core));
    }
    let outputs = seed.routes.len();
    let mut actor = Actor {
        seed,
        stage: None,
        outbox: Outbox::new(outputs),
        slots: 1,
        backlog: VecDeque::new(),
        restarts: Restarts::default(),
        attempt: 0,
    };
    let built = actor.build();
    let failed = built.is_err();
    let _ = ready.send((me, built));
    if !failed {
        actor.run();
    }
    actor.drop_stage();
}

impl<P: Payload> Actor<P> {
    fn cell(&self) -> &ActorCell<P> {
        &self.seed.engine.actors[self.seed.me]
    }

    fn stopped(&self) -> bool {
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
            self.build()?;
        }
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
        let given_up: Vec<_> = self
            .outbox
            .firings()
            .iter_mut()
            .filter(|firing| !firing.cancelled && firing.item.skip().is_some())
            .map(|firing| {
                firing.cancelled = true;
                firing.item.seq
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
                let deadline = pending.filter_map(|firing| firing.item.deadline).min();
                let next = self.seed.inbox.next(wanted, deadline);
                if self.outbox.count() == 0 {
                    self.cell().meter.enter(Phase::Other);
                }
                next
            }
        };
        if let Next::Message(message) = next {
            self.take_in(message);
        }
    }

    /// Gathers the inputs of an item that arrived.
    fn take_in(&mut self, message: Message<P>) {
        self.cell().meter.taken.fetch_add(1, Ordering::Relaxed);
        let mut inputs = self.outbox.inputs();
        let (item, error) = match message {
            Message::Packet(item, Ok(payload)) => {
                inputs.push(payload);
                (item, None)
            }
            Message::Packet(item, Err(error)) => (item, Some(error)),
            Message::Ready(item) => {
                let mut errors = Vec::new();
                if let Some(join) = self.seed.join {
                    for port in 0..join.ports {
                        match item.cells.take(join, port) {
                            Some(Ok(payload)) => inputs.push(payload),
                            Some(Err(error)) => errors.push(error),
                            None => {}
                        }
                    }
                }
                (item, ItemError::join(errors))
            }
            Message::Gathered(work) => {
                self.outbox.recycle(inputs);
                self.backlog.push_back(work);
                return;
            }
            Message::Wake => return,
        };
        let inputs = match error {
            None => Ok(inputs),
            Some(error) => {
                self.outbox.recycle(inputs);
                Err(error)
            }
        };
        self.backlog.push_back(Work { item, inputs });
    }

    fn fire(&mut self, work: Work<P>) -> Fired<P> {
        let skip = work.inputs.as_ref().err().cloned().or_else(|| work.item.skip());
        if let Some(error) = skip {
            self.pass(&work.item, error);
            return Fired::Yes;
        }
        let seq = work.item.seq;
        let lane = &self.cell().lane;
        if self.outbox.count() > 0 {
            if lane.lanes.gives_way(&lane.seat, seq) {
                return Fired::NotNow(work);
            }
        } else if !lane.try_acquire() {
            self.cell().meter.enter(Phase::Blocked);
            match lane.acquire(seq, || self.stopped()) {
                Grant::Held => {}
                Grant::Stopped => return Fired::NotNow(work),
                Grant::Poisoned => {
                    let device = &lane.lanes.device;
                    let message =
                        format!("no lane of device `{device}` is left: stuck threads hold them");
                    self.pass(&work.item, ItemError::new(ErrorKind::StageDown, message));
                    return Fired::Yes;
                }
            }
            if let Some(error) = work.item.skip() {
                lane.release();
                self.pass(&work.item, error);
                return Fired::Yes;
            }
        }
        let started = self.cell().meter.enter(Phase::Busy);
        let (item, inputs) = (work.item, work.inputs.unwrap_or_default());
        let firing = Firing {
            seq,
            inputs,
            stream: item.stream.as_ref().map(|stream| stream.id),
            deadline: item.deadline,
        };
        self.outbox.begin(item, started);
        let (Some(stage), outbox) = (self.stage.as_mut(), &mut self.outbox) else {
            return Fired::Down(ItemError::new(ErrorKind::StageDown, "the stage is gone"));
        };
        match guarded("the stage", || Ok(stage.submit(firing, outbox))) {
            Ok(verdict) => {
                if let Some(closed) = self.outbox.end(verdict) {
                    self.close(closed);
                }
                Fired::Yes
            }
            Err(panic) => Fired::Down(panic),
        }
    }

    /// Passes an item on as an error without computing it.
    fn pass(&self, item: &Arc<Item<P>>, error: ItemError) {
        self.cell().meter.skipped();
        self.forward_error(item, error);
    }

    /// Books a complete firing and sends its outputs on.
    fn close(&mut self, closed: Closed<P>) {
        let Closed { item, started, outcome } = closed;
        let cell = self.cell();
        let ended = if self.outbox.count() == 0 {
            let ended = cell.meter.enter(Phase::Other);
            cell.lane.release();
            ended
        } else {
            Instant::now()
        };
        cell.meter.fired(ended.saturating_duration_since(started), outcome.is_err());
        let engine = &self.seed.engine;
        cell.ring.record(item.seq.number(), engine.time(started), engine.time(ended));
        match outcome {
            Ok(mut outputs) => {
                for (targets, payload) in self.seed.routes.iter().zip(outputs.drain(..)) {
                    if let Some(payload) = payload {
                        engine.send(targets, &item, payload);
                    }
                }
                if let Some(port) = self.seed.done {
                    engine.done(port, &item, None);
                }
                self.outbox.recycle_outputs(outputs);
            }
            Err(error) => self.forward_error(&item, error),
        }
    }

    fn forward_error(&self, item: &Arc<Item<P>>, error: ItemError) {
        let error = error.at(Some(&self.cell().actor), item.seq);
        let engine = &self.seed.engine;
        for targets in &self.seed.routes {
            engine.send_error(targets, item, &error);
        }
        if let Some(port) = self.seed.done {
            engine.done(port, item, Some(error));
        }
    }

    /// Ends what a stage held that went down, and builds another one. False if the pipeline failed.
    fn recover(&mut self, cause: &ItemError) -> bool {
        self.outbox.fail_all(cause);
        while let Some(closed) = self.outbox.next_complete() {
            self.close(closed);
        }
        self.drop_stage();
        self.give_back();
        let mut cause = cause.clone();
        loop {
            let Some(pause) = self.restarts.next(self.seed.policy) else {
                self.give_up(cause);
                return false;
            };
            if !self.pause(pause) {
                return false;
            }
            self.cell().meter.restarted();
            match self.build() {
                Ok(()) => return true,
                Err(error) => cause = error,
            }
        }
    }

    /// Leaves what was taken and not started to the other replicas, if there are any.
    fn give_back(&mut self) {
        while let Some(work) = self.backlog.pop_front() {
            self.cell().meter.taken.fetch_sub(1, Ordering::Relaxed);
            if let Err(work) = self.seed.inbox.give_back(work) {
                self.cell().meter.taken.fetch_add(1, Ordering::Relaxed);
                self.backlog.push_front(work);
                return;
            }
        }
    }

    fn give_up(&self, cause: ItemError) {
        let name = &self.cell().name;
        let message = format!(
            "the pipeline failed: actor `{name}` went down more than {} times, last because {}",
            self.seed.policy.limit,
            cause.message(),
        );
        let failure = ItemError::new(ErrorKind::StageDown, message).with_source(Arc::new(cause));
        self.seed.engine.stop(PipelineState::Failed, &failure);
    }

    /// Backs off, taking in what arrives meanwhile, unless other replicas can. False if the actor is to stop.
    fn pause(&mut self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        while !self.stopped() {
            let wanted = !self.seed.inbox.is_shared();
            match self.seed.inbox.next(wanted, Some(until)) {
                Next::Message(message) => self.take_in(message),
                Next::Wake => {}
                Next::Timeout => return true,
                Next::Closed => return false,
            }
        }
        false
    }
}
