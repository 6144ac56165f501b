//! Where a stage puts what it made.

use std::fmt;
use std::time::{Duration, Instant};

use crate::error::{ErrorKind, ItemError};
use crate::item::Item;
use crate::packet::{Delivery, Seq};
use crate::spans::FiringSpan;
use crate::supervise::discard;
use crate::sync::Arc;

/// Takes the outputs of a stage and keeps account of its open firings.
///
/// Outputs leave the actor when the firing is complete, all at once: what a firing emitted before it
/// failed is dropped.
pub struct Outbox<P> {
    ports: usize,
    /// The actor gives lists: of children, or of the payloads of a batch's members.
    lists: bool,
    open: Vec<OpenFiring<P>>,
    /// True while `submit` runs: the last open firing is the current one.
    submitting: bool,
    spare_outputs: Vec<Vec<Option<P>>>,
    spare_inputs: Vec<Vec<P>>,
}

/// A firing that a stage has and that is not complete yet.
pub(crate) struct OpenFiring<P> {
    pub(crate) item: Arc<Item<P>>,
    pub(crate) seq: Seq,
    pub(crate) started: Instant,
    /// Closed with the firing.
    _span: FiringSpan,
    /// The stage was told that nobody wants it.
    pub(crate) cancelled: bool,
    /// The bytes of its inputs, where they count.
    pub(crate) bytes: usize,
    /// What another try needs, where one may be due.
    pub(crate) kept: Option<Kept<P>>,
    outputs: Vec<Option<P>>,
    /// One list per port instead, where the actor gives lists; else empty.
    lists: Vec<Option<Vec<P>>>,
    missing: usize,
    deferred: bool,
    finished: bool,
    /// What its device computed for it, if the stage knows.
    computed: Option<Duration>,
    fault: Option<ItemError>,
}

/// What a firing is tried again with: handles on what it was given.
pub(crate) struct Kept<P> {
    pub(crate) inputs: Vec<P>,
    pub(crate) children: Vec<Delivery<P>>,
    /// How often it was tried before.
    pub(crate) tries: u32,
}

impl<P> Kept<P> {
    /// Drops its payloads, whatever they do.
    pub(crate) fn discard(self) {
        discard(self.inputs);
        discard(self.children.into_iter().flatten());
    }
}

/// What became of a firing.
pub(crate) struct Closed<P> {
    pub(crate) item: Arc<Item<P>>,
    pub(crate) seq: Seq,
    pub(crate) started: Instant,
    pub(crate) computed: Option<Duration>,
    pub(crate) bytes: usize,
    pub(crate) kept: Option<Kept<P>>,
    pub(crate) outcome: Result<Vec<Option<P>>, ItemError>,
    /// One list per port, where the actor gives lists and the outcome is not an error.
    pub(crate) lists: Vec<Vec<P>>,
}

impl<P> Outbox<P> {
    pub(crate) const fn new(ports: usize, lists: bool) -> Self {
        Self {
            ports,
            lists,
            open: Vec::new(),
            submitting: false,
            spare_outputs: Vec::new(),
            spare_inputs: Vec::new(),
        }
    }

    /// Emits the payload of output port `port` for the firing that is being submitted.
    pub fn emit(&mut self, port: usize, payload: P) {
        if self.submitting
            && let Some(firing) = self.open.last_mut()
        {
            firing.emit(port, payload);
        }
    }

    /// Emits the payload of output port `port` for the open firing `seq`. A firing that is not open
    /// any more takes nothing.
    pub fn emit_for(&mut self, seq: Seq, port: usize, payload: P) {
        if let Some(firing) = self.find(seq) {
            firing.emit(port, payload);
        }
    }

    /// Emits the list of output port `port` for the firing that is being submitted: for a
    /// [`flat_map`](crate::Operator::flat_map) one payload per child, for an
    /// [`unbatch`](crate::Operator::unbatch) one per member. The lists of all ports are equally
    /// long.
    pub fn emit_list(&mut self, port: usize, list: Vec<P>) {
        if self.submitting
            && let Some(firing) = self.open.last_mut()
        {
            firing.emit_list(port, list);
        }
    }

    /// Like [`emit_list`](Self::emit_list), for the open firing `seq`.
    pub fn emit_list_for(&mut self, seq: Seq, port: usize, list: Vec<P>) {
        if let Some(firing) = self.find(seq) {
            firing.emit_list(port, list);
        }
    }

    /// Ends the open firing `seq` with an error; what it emitted is dropped.
    pub fn fail(&mut self, seq: Seq, error: ItemError) {
        if let Some(firing) = self.find(seq) {
            firing.fault.get_or_insert(error);
        }
    }

    /// Ends the open firing `seq` of a stage without outputs. Elsewhere a firing ends by itself with
    /// its last output, and this makes a missing one an error.
    pub fn finish(&mut self, seq: Seq) {
        if let Some(firing) = self.find(seq) {
            firing.finished = true;
        }
    }

    /// Says how long the device of the stage computed for the open firing `seq`, where the stage
    /// knows better than the clock: what else passes until the firing ends, such as a queue in front
    /// of the device or a network, is then told apart from computing in
    /// [`ActorStats::computed_ns`](crate::ActorStats::computed_ns) and in reports.
    pub fn computed_for(&mut self, seq: Seq, time: Duration) {
        if let Some(firing) = self.find(seq) {
            firing.computed = Some(time);
        }
    }

    /// Says that the firing that is being submitted is completed later, from
    /// [`Stage::poll`](crate::Stage::poll).
    pub fn defer(&mut self) {
        if self.submitting
            && let Some(firing) = self.open.last_mut()
        {
            firing.deferred = true;
        }
    }

    /// Gives the emptied vector of a firing's inputs back, so that the next firing needs no new
    /// one.
    pub fn recycle(&mut self, mut inputs: Vec<P>) {
        discard(inputs.drain(..));
        if self.spare_inputs.len() < SPARE {
            self.spare_inputs.push(inputs);
        }
    }

    /// The numbers of the open firings, oldest first.
    pub fn open(&self) -> impl Iterator<Item = Seq> {
        self.open.iter().map(|firing| firing.seq)
    }

    pub(crate) fn inputs(&mut self) -> Vec<P> {
        self.spare_inputs.pop().unwrap_or_default()
    }

    /// Takes the vector of a closed firing's outputs back, emptied by the sender.
    pub(crate) fn recycle_outputs(&mut self, mut outputs: Vec<Option<P>>) {
        discard(outputs.drain(..).flatten());
        if self.spare_outputs.len() < SPARE {
            self.spare_outputs.push(outputs);
        }
    }

    /// Opens a firing whose inputs weigh `bytes`. `kept` is what another try needs.
    pub(crate) fn begin(
        &mut self,
        item: Arc<Item<P>>,
        seq: Seq,
        started: Instant,
        bytes: usize,
        kept: Option<Kept<P>>,
        span: FiringSpan,
    ) {
        let mut outputs = self.spare_outputs.pop().unwrap_or_default();
        let mut lists = Vec::new();
        if self.lists {
            lists.resize_with(self.ports, || None);
        } else {
            outputs.resize_with(self.ports, || None);
        }
        self.open.push(OpenFiring {
            item,
            seq,
            started,
            _span: span,
            cancelled: false,
            bytes,
            kept,
            outputs,
            lists,
            missing: self.ports,
            deferred: false,
            finished: false,
            computed: None,
            fault: None,
        });
        self.submitting = true;
    }

    /// Ends a submission. Gives the firing back unless it was deferred and is still open.
    pub(crate) fn end(&mut self, verdict: Result<(), ItemError>) -> Option<Closed<P>> {
        self.submitting = false;
        let firing = self.open.last_mut()?;
        if let Err(error) = verdict {
            firing.fault = Some(error);
        } else if !firing.deferred {
            firing.finished = true;
        }
        if !firing.is_complete() {
            return None;
        }
        self.open.pop().map(OpenFiring::close)
    }

    /// The next firing that was completed by a poll.
    pub(crate) fn next_complete(&mut self) -> Option<Closed<P>> {
        let place = self.open.iter().position(OpenFiring::is_complete)?;
        Some(self.open.remove(place).close())
    }

    /// Ends every open firing with `error`, but for those that are complete already.
    pub(crate) fn fail_all(&mut self, error: &ItemError) {
        // A firing whose submission did not return is not complete, whatever it emitted.
        if std::mem::take(&mut self.submitting)
            && let Some(current) = self.open.last_mut()
        {
            current.fault = Some(error.clone());
        }
        for firing in self.open.iter_mut().filter(|firing| !firing.is_complete()) {
            firing.fault = Some(error.clone());
        }
    }

    /// Drops what open firings hold, whatever it does.
    pub(crate) fn clear(&mut self) {
        for firing in self.open.drain(..) {
            let OpenFiring { outputs, lists, kept, .. } = firing;
            discard(outputs.into_iter().flatten());
            discard(lists.into_iter().flatten().flatten());
            if let Some(kept) = kept {
                kept.discard();
            }
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.open.len()
    }

    pub(crate) fn firings(&mut self) -> &mut [OpenFiring<P>] {
        &mut self.open
    }

    fn find(&mut self, seq: Seq) -> Option<&mut OpenFiring<P>> {
        self.open.iter_mut().find(|firing| firing.seq == seq)
    }
}

/// Vectors kept for reuse; as many as a stage has slots is enough, and those are few.
const SPARE: usize = 16;

impl<P> OpenFiring<P> {
    fn emit_list(&mut self, port: usize, list: Vec<P>) {
        match self.lists.get_mut(port) {
            Some(place @ None) => {
                *place = Some(list);
                self.missing -= 1;
            }
            Some(Some(_)) => self.breach(format!("output {port} was emitted twice")),
            None if port < self.outputs.len() => {
                self.breach(format!(
                    "a list was emitted at output {port}, which takes one payload"
                ));
            }
            None => self.no_port(port),
        }
    }

    fn emit(&mut self, port: usize, payload: P) {
        match self.outputs.get_mut(port) {
            Some(place @ None) => {
                *place = Some(payload);
                self.missing -= 1;
            }
            Some(Some(_)) => self.breach(format!("output {port} was emitted twice")),
            None if port < self.lists.len() => {
                self.breach(format!(
                    "one payload was emitted at output {port}, which takes a list"
                ));
            }
            None => self.no_port(port),
        }
    }

    fn no_port(&mut self, port: usize) {
        let ports = self.ports();
        self.breach(format!("output {port} was emitted by an actor with {ports} outputs"));
    }

    fn ports(&self) -> usize {
        self.outputs.len().max(self.lists.len())
    }

    fn breach(&mut self, message: String) {
        self.fault.get_or_insert_with(|| ItemError::new(ErrorKind::Contract, message));
    }

    fn is_complete(&self) -> bool {
        self.fault.is_some() || self.finished || (self.missing == 0 && self.ports() > 0)
    }

    fn close(mut self) -> Closed<P> {
        // What the stage answers to a cancellation is not why the item has no value.
        let given_up = if self.cancelled { self.item.skip() } else { None };
        let outcome = match given_up.or(self.fault) {
            Some(fault) => Err(fault),
            None if self.missing > 0 => {
                let places = self.outputs.iter().map(Option::is_none);
                let places = places.chain(self.lists.iter().map(Option::is_none));
                let missing = places.enumerate().filter(|(_, missing)| *missing);
                let ports: Vec<_> = missing.map(|(port, _)| port.to_string()).collect();
                let message = format!("the stage ended without its output {}", ports.join(", "));
                Err(ItemError::new(ErrorKind::Contract, message))
            }
            None => Ok(std::mem::take(&mut self.outputs)),
        };
        let mut lists = self.lists.into_iter().flatten().collect();
        if outcome.is_err() {
            discard(self.outputs.into_iter().flatten());
            discard(std::mem::take::<Vec<Vec<P>>>(&mut lists).into_iter().flatten());
        }
        Closed {
            item: self.item,
            seq: self.seq,
            started: self.started,
            computed: self.computed,
            bytes: self.bytes,
            kept: self.kept,
            outcome,
            lists,
        }
    }
}

impl<P> fmt::Debug for Outbox<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox")
            .field("ports", &self.ports)
            .field("open", &self.open().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
