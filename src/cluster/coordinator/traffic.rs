//! What goes over the links: firings to workers, results back.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use brigade_actors::transport::{Accept, Frame, Incoming, LinkError};

use super::StageTimes;
use super::hub::{Hub, TIMES_KEPT, tell};
use super::state::{Clock, Firing, Input, Phase, Reply, State};
use crate::cluster::message::{Feed, FiringKey, Form, Message, OutputKey, buffer_for};
use crate::cluster::payload::Payload;
use crate::cluster::question::{self, MAX_QUESTION_BYTES};
use crate::device::Delivery;
use crate::error::{Error, Result, err};
use crate::graph::Fact;
use crate::tensor::{Buffer, Value};

/// What outputs that nobody waits for may have at most; they are dropped as they come.
const STRAY_BYTES: u64 = 1 << 30;

/// The ear of the coordinator on one link of a worker.
pub(super) struct Ear {
    pub(super) hub: Weak<Hub>,
    pub(super) worker: usize,
    pub(super) generation: u64,
}

impl Accept for Ear {
    fn accept(&mut self, head: &[u8], length: u64) -> Result<Box<dyn Incoming>, LinkError> {
        let message = Message::decode(head)?;
        let malformed = |why: String| LinkError::Malformed { why };
        let Some(hub) = self.hub.upgrade() else { return Err(LinkError::Closed) };
        let mut buffer = Buffer::copy_of(&[]);
        match &message {
            Message::Output { of, output, form } => {
                match hub.expected(*of, *output) {
                    Some(fact) => {
                        form.check(length, &fact)
                            .map_err(|e| malformed(format!("output {output} of a stage: {e}")))?;
                    }
                    None if length > STRAY_BYTES => {
                        return Err(malformed(format!("{length} bytes that nobody waits for")));
                    }
                    None => {}
                }
                buffer = buffer_for(&hub.pool, length).map_err(|e| malformed(e.to_string()))?;
            }
            Message::Supported { .. } if length <= MAX_QUESTION_BYTES => {
                buffer = buffer_for(&hub.pool, length).map_err(|e| malformed(e.to_string()))?;
            }
            _ if length > 0 => {
                return Err(malformed("a payload behind a message that has none".to_owned()));
            }
            _ => {}
        }
        let (worker, generation) = (self.worker, self.generation);
        Ok(Box::new(Heard { hub, worker, generation, message, buffer }))
    }

    fn closed(&mut self, why: LinkError) {
        if let Some(hub) = self.hub.upgrade() {
            hub.broken(self.worker, self.generation, &why);
        }
    }
}

/// A message on its way in.
struct Heard {
    hub: Arc<Hub>,
    worker: usize,
    generation: u64,
    message: Message,
    buffer: Buffer,
}

impl Incoming for Heard {
    fn buffer(&mut self) -> &mut [u8] {
        // The buffer came from the pool for this message alone.
        self.buffer.unique_bytes().unwrap_or(&mut [])
    }

    fn complete(self: Box<Self>) {
        let Self { hub, worker, generation, message, buffer } = *self;
        hub.heard(worker, generation, message, buffer);
        hub.sweep();
    }
}

impl Hub {
    /// The fact of an output, if somebody waits for the firing.
    fn expected(&self, of: FiringKey, output: u32) -> Option<Fact> {
        let state = self.state();
        state.firings.get(&of.firing).filter(|f| f.stage == of.stage)?;
        let (_, fact) = state.stages.get(&of.stage)?.outputs.get(output as usize)?;
        Some(fact.clone())
    }

    fn heard(self: &Arc<Self>, worker: usize, generation: u64, message: Message, payload: Buffer) {
        let mut state = self.state();
        let now = Instant::now();
        let Some(w) = state.workers.get_mut(worker) else { return };
        if w.generation != generation {
            return;
        }
        w.heard = now;
        if let Message::Pong { token, .. } = message
            && let Some(place) = state.probes.get_mut(&token)
        {
            place.get_or_insert(now);
            drop(state);
            return self.tell_all();
        }
        let Some(w) = state.workers.get_mut(worker) else { return };
        // Results and pings come by the thousand, and nobody waits for them here.
        let awaited = !matches!(
            message,
            Message::Output { .. }
                | Message::Done { .. }
                | Message::Failed { .. }
                | Message::Pong { .. }
        );
        let mut garbage: Vec<Firing> = Vec::new();
        match message {
            Message::Opened { resumed, offers, clock_ns, .. } => {
                self.opened(&mut state, worker, resumed, offers, clock_ns);
            }
            Message::Pong { token, clock_ns } => {
                if let Some((_, sent)) = w.pinged.take().filter(|p| p.0 == token) {
                    let round_trip = now.duration_since(sent);
                    let middle = (sent + round_trip / 2).duration_since(self.start).as_nanos();
                    let offset_ns = i128::from(clock_ns) - middle as i128;
                    // The shortest way tells the time best; clocks drift, so it does not count for ever.
                    let better = w.clock.is_none_or(|c| round_trip <= c.round_trip.mul_f64(1.1));
                    if better {
                        w.clock = Some(Clock { round_trip, offset_ns });
                    }
                }
            }
            Message::Progress { stage, epoch, tensors, bytes } => {
                if let Some(s) = state.stages.get_mut(&stage).filter(|s| s.epoch == epoch)
                    && let Phase::Shipping { .. } = &s.phase
                {
                    s.phase = Phase::Shipping { heard: now, tensors, bytes };
                }
            }
            Message::Ready { stage, epoch, took } => {
                if let Some(s) = state.stages.get_mut(&stage).filter(|s| s.epoch == epoch)
                    && matches!(s.phase, Phase::Shipping { .. })
                {
                    s.phase = Phase::Compiled;
                    s.took = took;
                }
            }
            Message::Refused { stage, epoch, error } => {
                let State { stages, workers, .. } = &mut *state;
                if let Some(s) = stages.get_mut(&stage).filter(|s| s.epoch == epoch)
                    && matches!(s.phase, Phase::Shipping { .. })
                {
                    let error = error.into_error(&workers[worker].name);
                    s.phase = Phase::Refused(error);
                }
            }
            Message::Settled { ticket, error } => {
                let result = error.map_or(Ok(Reply::Settled), |e| Err(e.into_error(&w.name)));
                state.answer(ticket, result);
            }
            Message::Supported { ticket, error } => {
                let result = match error {
                    Some(e) => Err(e.into_error(&w.name)),
                    None => question::decode(payload.as_bytes()).map(Reply::Supported),
                };
                state.answer(ticket, result);
            }
            Message::Measured { ticket, link } => {
                let result = link.map(Reply::Measured).map_err(|e| e.into_error(&w.name));
                state.answer(ticket, result);
            }
            Message::Output { of, output, form } => {
                self.given(&mut state, of, output, &form, payload);
            }
            Message::Done { of, start_ns, end_ns, kept } => {
                self.done(&mut state, worker, of, (start_ns, end_ns), &kept, &mut garbage);
            }
            Message::Failed { of, error } => {
                let open = state.firings.get(&of.firing).is_some_and(|f| !f.done);
                if open {
                    let name = &state.workers[worker].name;
                    let device = state.stages.get(&of.stage).map(|s| state.device_of(s));
                    let device = device.unwrap_or_else(|| name.clone());
                    let error = error.into_error(name).with_device(device);
                    self.end(&mut state, of, Err(error), &mut garbage);
                } else {
                    state.duplicates += 1;
                }
            }
            Message::Draining => {
                w.draining = true;
                // So that it need not wait for this coordinator to come back.
                if let Some(link) = &w.link {
                    tell(link, &Message::Close);
                }
                self.lose(&mut state, worker, "it is being shut down");
            }
            Message::Unreachable { worker: other, error } => {
                let name = w.name.clone();
                let other = state.workers.iter().position(|w| w.name == other);
                if let Some(other) = other {
                    let why = error.into_error(&name).to_string();
                    self.lose(&mut state, other, &format!("`{name}` does not reach it: {why}"));
                }
            }
            // The rest is for workers.
            _ => {}
        }
        drop(state);
        if awaited {
            self.tell_all();
        }
        drop(garbage);
    }

    /// An output came here.
    fn given(&self, state: &mut State, of: FiringKey, output: u32, form: &Form, payload: Buffer) {
        let Some(firing) = state.firings.get_mut(&of.firing) else { return };
        let Some(place) = firing.given.get_mut(output as usize) else { return };
        match form.value(payload) {
            Ok(value) => *place = Some(value),
            // Then the firing ends without it, which is told there.
            Err(_) => return,
        }
        if firing.done {
            // It was asked for, for a stage that only this process reaches.
            let unsent: Vec<u64> =
                state.firings.iter().filter(|(_, f)| !f.sent && !f.done).map(|(k, _)| *k).collect();
            for firing in unsent {
                self.send_firing(state, firing);
            }
        }
    }

    fn done(
        self: &Arc<Self>,
        state: &mut State,
        worker: usize,
        of: FiringKey,
        (start_ns, end_ns): (u64, u64),
        kept: &[(u32, crate::DType, Vec<u64>)],
        garbage: &mut Vec<Firing>,
    ) {
        let offset = state.workers[worker].clock.map_or(0, |c| c.offset_ns);
        let State { stages, firings, .. } = &mut *state;
        let Some(firing) = firings.get_mut(&of.firing).filter(|f| f.stage == of.stage) else {
            state.duplicates += 1;
            return;
        };
        if firing.done {
            state.duplicates += 1;
            return;
        }
        firing.computed = Some(Duration::from_nanos(end_ns.saturating_sub(start_ns)));
        if let Some(s) = stages.get_mut(&of.stage) {
            s.firings += 1;
            s.fruitless = 0;
            s.busy_ns += end_ns.saturating_sub(start_ns);
            s.moved = Instant::now();
            let here = |ns: u64| u64::try_from(i128::from(ns) - offset).unwrap_or(0);
            if s.times.len() == TIMES_KEPT {
                s.times.pop_front();
            }
            s.times.push_back(StageTimes {
                stage: of.stage,
                item: firing.number,
                start_ns: here(start_ns),
                end_ns: here(end_ns),
            });
        }
        match self.outputs(of, firing, kept) {
            Ok((outputs, true)) => {
                firing.done = true;
                firing.desk.put(firing.number, Ok(outputs), firing.computed);
                if let Some(s) = stages.get_mut(&of.stage) {
                    s.open = s.open.saturating_sub(1);
                }
            }
            Ok((outputs, false)) => self.end(state, of, Ok(outputs), garbage),
            Err(error) => self.end(state, of, Err(error), garbage),
        }
    }

    /// Ends a firing whose outputs nobody holds on a worker.
    fn end(
        &self,
        state: &mut State,
        of: FiringKey,
        result: Result<Vec<Value>, Error>,
        garbage: &mut Vec<Firing>,
    ) {
        let Some(mut firing) = state.firings.remove(&of.firing) else { return };
        firing.done = true;
        if let Some(s) = state.stages.get_mut(&of.stage) {
            s.open = s.open.saturating_sub(1);
            s.fruitless = 0;
            s.moved = Instant::now();
        }
        firing.desk.put(firing.number, result, firing.computed);
        garbage.push(firing);
        self.release(state, of);
    }

    /// Sends a firing to the worker of its stage, if that is ready and everything is at hand.
    pub(super) fn send_firing(&self, state: &mut State, number: u64) {
        let Some(firing) = state.firings.get(&number) else { return };
        let Some(stage) = state.stages.get(&firing.stage) else { return };
        if stage.adrift || !matches!(stage.phase, Phase::Ready) {
            return;
        }
        let Some(link) = state.link_of(firing.stage) else { return };
        let of = FiringKey { stage: firing.stage, firing: number };
        let mut feeds = Vec::with_capacity(firing.inputs.len());
        let mut values: Vec<Option<&Value>> = Vec::with_capacity(firing.inputs.len());
        let mut asked = false;
        for input in &firing.inputs {
            match input {
                Input::Host(value) => {
                    feeds.push(Feed::Sent);
                    values.push(Some(value));
                }
                Input::Held(output) => {
                    let what = OutputKey { of: output.held.key, output: output.output };
                    if !Self::relayed(state, what.of.stage, stage.worker) {
                        feeds.push(Feed::Held(what));
                        values.push(None);
                        continue;
                    }
                    // Nobody but this process reaches the stage: the tensor goes through here.
                    let given = state.firings.get(&what.of.firing);
                    let given = given.and_then(|f| f.given.get(what.output as usize));
                    match given {
                        Some(Some(value)) => {
                            feeds.push(Feed::Sent);
                            values.push(Some(value));
                        }
                        _ => {
                            asked = true;
                            if let Some(link) = state.link_of(what.of.stage) {
                                tell(link, &Message::Send { what, to: Default::default() });
                            }
                        }
                    }
                }
            }
        }
        if asked {
            return;
        }
        let run = || -> Result<()> {
            for (port, value) in values.iter().enumerate() {
                let Some(value) = value else { continue };
                let (form, bytes) = Form::of(value)?;
                let head = Message::Input { of, port: port as u32, form }.encode()?;
                let frame = Frame::new(head, Payload(bytes));
                link.send(frame).map_err(super::link_error)?;
            }
            let wanted = |d: &Delivery| !d.on_device() || d.on_host();
            let deliveries = firing.deliveries.iter().enumerate();
            let give = deliveries.filter(|(_, d)| wanted(d)).map(|(o, _)| o as u32).collect();
            let head = Message::Fire { of, epoch: stage.epoch, feeds, give }.encode()?;
            link.send(Frame::head(head)).map_err(super::link_error)
        };
        let sent = run();
        match sent {
            Ok(()) => {
                if let Some(firing) = state.firings.get_mut(&number) {
                    firing.sent = true;
                }
            }
            // The link is full or has ended: it is sent again when there is room, or another link.
            Err(error) if error.kind() == crate::ErrorKind::Device => {}
            Err(error) => {
                if let Some(mut firing) = state.firings.remove(&number) {
                    firing.done = true;
                    firing.desk.put(firing.number, Err(error), None);
                }
            }
        }
    }
}

/// The error of items that need a stage which is nowhere.
pub(super) fn nowhere(stage: &str, why: &str) -> Error {
    err!(Device, "the stage `{stage}` has no place left: {why}")
        .with_help("start a worker and run again, or let stages run in this process")
}
