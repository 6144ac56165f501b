//! What comes in: the frames of a link to a coordinator or to another worker.
//!
//! Runs on threads of the transport. Nothing here waits, loads or computes; a payload gets its
//! memory only after its form, its length and the quota were looked at.

use std::sync::Arc;
use std::time::Duration;

use brigade_actors::transport::{Accept, Frame, Incoming, Link, LinkError};

use super::quota::Charge;
use super::serving::{Shared, count};
use super::session::Session;
use super::store::{Admission, Held};
use crate::cluster::MAX_SPEC_BYTES;
use crate::cluster::message::{
    FiringKey, Form, MAX_PROBE_BYTES, Message, OutputKey, PROTOCOL, buffer_for,
};
use crate::cluster::question::MAX_QUESTION_BYTES;
use crate::error::{Error, err};
use crate::tensor::Buffer;

type Incomes = Result<Box<dyn Incoming>, LinkError>;

/// What is at the other end.
#[derive(Debug)]
enum Role {
    /// It has not said yet.
    Stranger,
    Coordinator {
        session: Arc<Session>,
        generation: u64,
    },
    /// Another worker.
    Peer {
        session: Arc<Session>,
        from: String,
    },
    /// Another worker that measures the link.
    Gauge {
        session: Arc<Session>,
    },
    /// A coordinator that has closed its session.
    Over,
}

/// What takes the frames of a link.
#[derive(Debug)]
pub(super) struct Inbound {
    worker: Arc<Shared>,
    link: Link,
    stranger: u64,
    role: Role,
}

fn malformed(why: &str) -> LinkError {
    LinkError::Malformed { why: why.to_owned() }
}

fn refused(why: impl Into<String>) -> LinkError {
    LinkError::Refused { why: why.into() }
}

impl Inbound {
    pub(super) fn new(worker: &Arc<Shared>, link: Link) -> Result<Self, LinkError> {
        let stranger = worker.stranger(&link)?;
        Ok(Self { worker: Arc::clone(worker), link, stranger, role: Role::Stranger })
    }

    fn check_protocol(&self, theirs: u32) -> Result<(), LinkError> {
        if theirs == PROTOCOL {
            return Ok(());
        }
        Err(refused(format!(
            "the worker `{}` speaks version {PROTOCOL} of the cluster's messages, the peer version \
             {theirs}: use one release of brigade on both sides",
            self.worker.name
        )))
    }

    /// The first message of a link.
    fn introduce(&mut self, message: Message) -> Result<(), LinkError> {
        self.worker.introduced(self.stranger);
        match message {
            Message::Open { protocol, session, name, lease_ms } => {
                self.check_protocol(protocol)?;
                let lease = Duration::from_millis(lease_ms);
                let (session, generation) = self.worker.open(session, &name, lease, &self.link)?;
                self.role = Role::Coordinator { session, generation };
            }
            Message::Join { protocol, session, from } => {
                self.check_protocol(protocol)?;
                let known = self.worker.session(session).ok_or_else(|| {
                    refused(format!("the worker `{}` has no such session", self.worker.name))
                })?;
                // What came before it is announced would be lost: whoever dials tries again.
                if !known.with_store(|s| s.expects_any()) {
                    let name = &self.worker.name;
                    return Err(refused(format!("the worker `{name}` expects no tensors yet")));
                }
                known.joined(&self.link).map_err(|e| refused(e.to_string()))?;
                self.role = Role::Peer { session: known, from };
            }
            Message::Gauge { protocol, session, .. } => {
                self.check_protocol(protocol)?;
                let known = self.worker.session(session).ok_or_else(|| {
                    refused(format!("the worker `{}` has no such session", self.worker.name))
                })?;
                known.joined(&self.link).map_err(|e| refused(e.to_string()))?;
                self.role = Role::Gauge { session: known };
            }
            _ => return Err(malformed("a link begins with `Open`, `Join` or `Gauge`")),
        }
        Ok(())
    }

    fn pong(&self, token: u64) -> Result<(), LinkError> {
        pong(&self.worker, &self.link, token)
    }

    /// Bytes that mean nothing, and are answered when all of them were there.
    fn probe(&self, token: u64, length: u64) -> Incomes {
        if length > MAX_PROBE_BYTES {
            return Err(malformed("a probe of too many bytes"));
        }
        if length == 0 {
            self.pong(token)?;
            return Ok(Box::new(Nothing));
        }
        let (worker, link) = (Arc::clone(&self.worker), self.link.clone());
        Ok(Box::new(Probe { worker, link, token }))
    }

    /// A message of a coordinator.
    fn of_coordinator(
        &self,
        session: &Arc<Session>,
        generation: u64,
        message: Message,
        length: u64,
    ) -> Incomes {
        match message {
            Message::Ship { stage, epoch } => {
                return Ok(self.ship(session, generation, stage, epoch, length));
            }
            Message::Input { of, port, form } => {
                return Ok(self.input(session, generation, of, port, form, length));
            }
            Message::Supports { ticket, device } => {
                if length > MAX_QUESTION_BYTES {
                    return Err(malformed("a question of too many bytes"));
                }
                let charge = match session.ledger.charge(length) {
                    Ok(charge) => charge,
                    Err(e) => {
                        let told = e.within("asking which nodes a device runs").with_help(
                            "start the worker with a larger --quota: the model itself needs more",
                        );
                        session.supported(ticket, Err(told));
                        return Ok(Box::new(Unwanted));
                    }
                };
                let bytes = vec![0; usize::try_from(length).unwrap_or_default()];
                let session = Arc::clone(session);
                return Ok(Box::new(Asked { session, ticket, device, bytes, charge }));
            }
            Message::Probe { token } => return self.probe(token, length),
            _ if length > 0 => return Err(malformed("a payload behind a message without one")),
            Message::Measure { ticket, to } => session.measure(ticket, to),
            Message::Expect { ticket, stage, epoch, output, fact } => {
                session.expect(ticket, stage, epoch, output, fact);
            }
            Message::Route { ticket, stage, output, to } => {
                session.route(ticket, stage, output, to);
            }
            Message::Fire { of, epoch, feeds, give } => session.fire(of, epoch, feeds, give),
            Message::Send { what, to } => session.hand_over(what, &to),
            Message::Release { firings } => session.release(&firings),
            Message::Drop { stage } => session.drop_stage(stage),
            Message::Ping { token } => self.pong(token)?,
            _ => return Err(malformed("not a message of a coordinator")),
        }
        Ok(Box::new(Nothing))
    }

    fn ship(
        &self,
        session: &Arc<Session>,
        generation: u64,
        stage: u64,
        epoch: u32,
        length: u64,
    ) -> Box<dyn Incoming> {
        let room = || -> Result<(Vec<u8>, Charge), Error> {
            if self.worker.is_draining() {
                let name = &self.worker.name;
                return Err(err!(
                    Stopped,
                    "the worker `{name}` is about to end and takes no stages"
                ));
            }
            if length > MAX_SPEC_BYTES {
                return Err(err!(
                    Limit,
                    "a stage spec of {length} bytes; {MAX_SPEC_BYTES} at most are taken"
                )
                .with_help("refer to its weights by URIs, or cut it into more stages"));
            }
            let charge = session.ledger.charge(length)?;
            let length = usize::try_from(length)
                .map_err(|_| err!(Limit, "{length} bytes are too many for this machine"))?;
            Ok((vec![0; length], charge))
        };
        match room() {
            Ok((bytes, charge)) => {
                let session = Arc::clone(session);
                Box::new(Spec { session, generation, stage, epoch, bytes, charge })
            }
            Err(e) => {
                session.refused(stage, epoch, &e);
                Box::new(Unwanted)
            }
        }
    }

    fn input(
        &self,
        session: &Arc<Session>,
        generation: u64,
        of: FiringKey,
        port: u32,
        form: Form,
        length: u64,
    ) -> Box<dyn Incoming> {
        let admitted = session.with_store(|s| s.admit_input(of, port, &form, length));
        let what = What::Input { of, port, generation };
        self.take(session, what, form, length, admitted)
    }

    fn tensor(
        &self,
        session: &Arc<Session>,
        what: OutputKey,
        epoch: u32,
        form: Form,
        length: u64,
    ) -> Box<dyn Incoming> {
        let ledger = &session.ledger;
        let admitted = session.with_store(|s| s.admit_tensor(what, epoch, &form, length, ledger));
        self.take(session, What::Tensor(what), form, length, admitted)
    }

    /// Takes a payload, or lets it pass.
    fn take(
        &self,
        session: &Arc<Session>,
        what: What,
        form: Form,
        length: u64,
        admitted: Admission,
    ) -> Box<dyn Incoming> {
        match admitted {
            Admission::Take(charge) => match buffer_for(&session.pool, length) {
                Ok(buffer) => {
                    let session = Arc::clone(session);
                    return Box::new(Payload { session, what, form, buffer, charge });
                }
                Err(e) => match what {
                    What::Input { of, .. } => session.fail(of, &e),
                    What::Tensor(what) => {
                        let failed = session.with_store(|s| s.spoil(what, &(&e).into()));
                        failed.into_iter().for_each(|of| session.failed(of, (&e).into()));
                    }
                },
            },
            Admission::Discard => count(&self.worker.counters.unwanted),
            Admission::Stale => count(&self.worker.counters.stale),
            Admission::Fail(firings, error) => {
                for of in firings {
                    session.failed(of, error.clone());
                }
            }
        }
        Box::new(Unwanted)
    }
}

impl Accept for Inbound {
    fn accept(&mut self, head: &[u8], length: u64) -> Incomes {
        let message = Message::decode(head)?;
        match &self.role {
            Role::Stranger if length == 0 => {
                self.introduce(message)?;
                Ok(Box::new(Nothing))
            }
            Role::Stranger => Err(malformed("a payload before `Open` or `Join`")),
            Role::Over => Err(refused("the session is closed")),
            Role::Coordinator { session, generation } => {
                if session.is_ended() {
                    return Err(refused("the session is over"));
                }
                if !session.is_current(*generation) {
                    return Err(refused("another link has taken up the session"));
                }
                if message == Message::Close && length == 0 {
                    let id = session.id;
                    self.role = Role::Over;
                    self.worker.close(id);
                    return Ok(Box::new(Nothing));
                }
                self.of_coordinator(session, *generation, message, length)
            }
            Role::Peer { session, from } => match message {
                _ if session.is_ended() => Err(refused("the session is over")),
                Message::Tensor { what, epoch, form } => {
                    Ok(self.tensor(session, what, epoch, form, length))
                }
                Message::Ping { token } if length == 0 => {
                    self.pong(token)?;
                    Ok(Box::new(Nothing))
                }
                _ => Err(malformed(&format!("not a message of a worker (`{from}`)"))),
            },
            Role::Gauge { session } => match message {
                _ if session.is_ended() => Err(refused("the session is over")),
                Message::Ping { token } if length == 0 => {
                    self.pong(token)?;
                    Ok(Box::new(Nothing))
                }
                Message::Probe { token } => self.probe(token, length),
                _ => Err(malformed("the link is there to be measured")),
            },
        }
    }

    fn closed(&mut self, _: LinkError) {
        match &self.role {
            Role::Stranger => self.worker.introduced(self.stranger),
            Role::Coordinator { session, generation } => session.detached(*generation),
            Role::Peer { .. } | Role::Gauge { .. } | Role::Over => {}
        }
    }
}

/// Answers a ping, or a probe.
fn pong(worker: &Shared, link: &Link, token: u64) -> Result<(), LinkError> {
    let pong = Message::Pong { token, clock_ns: worker.clock_ns() };
    let head = pong.encode().map_err(|e| malformed(&e.to_string()))?;
    match link.send(Frame::head(head)) {
        // Whoever does not read its answers gets no more of them.
        Err(LinkError::Full { .. }) | Ok(()) => Ok(()),
        Err(e) => Err(e),
    }
}

/// The bytes of a probe, which pass by.
#[derive(Debug)]
struct Probe {
    worker: Arc<Shared>,
    link: Link,
    token: u64,
}

impl Incoming for Probe {
    fn is_wanted(&self) -> bool {
        false
    }

    fn buffer(&mut self) -> &mut [u8] {
        &mut []
    }

    fn complete(self: Box<Self>) {
        // A link that has ended says so by itself.
        let _ = pong(&self.worker, &self.link, self.token);
    }
}

/// A question about nodes on its way.
#[derive(Debug)]
struct Asked {
    session: Arc<Session>,
    ticket: u64,
    device: String,
    bytes: Vec<u8>,
    charge: Charge,
}

impl Incoming for Asked {
    fn buffer(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn complete(self: Box<Self>) {
        let Self { session, ticket, device, bytes, charge } = *self;
        session.supports(ticket, device, bytes, charge);
    }
}

/// A message without a payload.
#[derive(Debug)]
pub(super) struct Nothing;

impl Incoming for Nothing {
    fn buffer(&mut self) -> &mut [u8] {
        &mut []
    }

    fn complete(self: Box<Self>) {}
}

/// A payload that passes by.
#[derive(Debug)]
struct Unwanted;

impl Incoming for Unwanted {
    fn is_wanted(&self) -> bool {
        false
    }

    fn buffer(&mut self) -> &mut [u8] {
        &mut []
    }

    fn complete(self: Box<Self>) {}
}

/// A spec on its way.
#[derive(Debug)]
struct Spec {
    session: Arc<Session>,
    generation: u64,
    stage: u64,
    epoch: u32,
    bytes: Vec<u8>,
    charge: Charge,
}

impl Incoming for Spec {
    fn buffer(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn complete(self: Box<Self>) {
        let Self { session, generation, stage, epoch, bytes, charge } = *self;
        if session.is_current(generation) {
            session.ship(stage, epoch, bytes, charge);
        }
    }
}

/// Whose payload it is.
#[derive(Clone, Copy, Debug)]
enum What {
    Input { of: FiringKey, port: u32, generation: u64 },
    Tensor(OutputKey),
}

/// A value on its way.
#[derive(Debug)]
struct Payload {
    session: Arc<Session>,
    what: What,
    form: Form,
    buffer: Buffer,
    charge: Charge,
}

impl Incoming for Payload {
    fn buffer(&mut self) -> &mut [u8] {
        // Nobody else holds it yet.
        self.buffer.unique_bytes().unwrap_or_default()
    }

    fn complete(self: Box<Self>) {
        let Self { session, what, form, buffer, charge } = *self;
        let held = Held::new(form, buffer, charge);
        match what {
            What::Input { of, port, generation } => {
                if session.is_current(generation) {
                    session.input(of, port, held);
                }
            }
            What::Tensor(what) => session.tensor(what, held),
        }
    }
}
