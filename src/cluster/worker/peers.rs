//! Links to other workers, over which outputs are handed on: one for each worker and session.
//!
//! A thread of its own dials, waits, and dials again when the link breaks, until the lease of the
//! session is over.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use brigade_actors::transport::{Accept, Incoming, LinkError};

use super::inbound::Nothing;
use super::lock;
use super::outlet::{Cargo, Outlet, Parcel, Sent};
use super::serving::count;
use super::session::Session;
use super::store::Held;
use crate::cluster::coordinator::link_error;
use crate::cluster::message::{Message, OutputKey};
use crate::error::{Error, Result, err};

/// How long one attempt may take: the session may end meanwhile.
const ATTEMPT: Duration = Duration::from_secs(2);

/// The pauses between attempts: at first, and at most.
const PAUSE: Duration = Duration::from_millis(5);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// So many orders may wait for one link.
const MAX_TICKETS: usize = 1 << 14;

/// How often what waits for room in the queue is tried again, and how often there is a look at the
/// rest.
const RETRY: Duration = Duration::from_millis(2);
const LOOK: Duration = Duration::from_secs(1);

/// An answer that several links have to stand for.
#[derive(Debug)]
pub(super) struct Ticket {
    number: u64,
    left: Mutex<(usize, Option<Error>)>,
}

impl Ticket {
    pub(super) fn new(number: u64, links: usize) -> Arc<Self> {
        Arc::new(Self { number, left: Mutex::new((links, None)) })
    }

    /// One of the links stands, or never will; the last one sends the answer.
    pub(super) fn settle(&self, session: &Session, outcome: Result<()>) {
        {
            let mut left = lock(&self.left);
            left.0 = left.0.saturating_sub(1);
            if let Err(e) = outcome {
                left.1.get_or_insert(e);
            }
            if left.0 > 0 {
                return;
            }
        }
        self.send(session);
    }

    pub(super) fn send(&self, session: &Session) {
        let error = lock(&self.left).1.as_ref().map(Into::into);
        session.send(&Message::Settled { ticket: self.number, error });
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Dialling,
    Standing,
    /// The worker could not be reached, or is not needed any more.
    Over,
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Counts the links that were tried.
    attempt: u64,
    /// Whether the other side has taken the link with this number.
    taken: bool,
    lost: Option<LinkError>,
    /// Whether frames wait for room.
    full: bool,
    /// What is to be handed over once the link stands, with its epoch.
    waiting: BTreeMap<OutputKey, (u32, Held)>,
    tickets: Vec<Arc<Ticket>>,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Peer {
    name: String,
    address: String,
    out: Outlet,
    state: Mutex<State>,
    changed: Condvar,
}

impl Peer {
    pub(super) fn new(name: &str, address: &str) -> Arc<Self> {
        Arc::new(Self {
            name: name.to_owned(),
            address: address.to_owned(),
            out: Outlet::default(),
            state: Mutex::new(State {
                phase: Phase::Dialling,
                attempt: 0,
                taken: false,
                lost: None,
                full: false,
                waiting: BTreeMap::new(),
                tickets: Vec::new(),
            }),
            changed: Condvar::new(),
        })
    }

    /// Starts its thread.
    pub(super) fn start(self: &Arc<Self>, session: &Arc<Session>) -> Result<()> {
        let (peer, own) = (Arc::clone(self), Arc::clone(session));
        session.worker.spawn(format!("peer-{}", self.name), move || peer.run(&own))
    }

    /// Whether this is, or may become, a link to that address.
    pub(super) fn is_alive_at(&self, address: &str) -> bool {
        self.address == address && lock(&self.state).phase != Phase::Over
    }

    /// Whether something is to be handed over that was asked for once.
    pub(super) fn is_busy(&self) -> bool {
        let state = lock(&self.state);
        state.phase != Phase::Over && (!state.waiting.is_empty() || state.full)
    }

    /// The link is not needed any more.
    pub(super) fn end(&self) {
        let dropped = {
            let mut state = lock(&self.state);
            state.phase = Phase::Over;
            std::mem::take(&mut state.waiting)
        };
        drop(dropped);
        self.changed.notify_all();
        self.out.detach();
    }

    /// Hands an output over: now, or when the link stands.
    pub(super) fn push(&self, session: &Session, what: OutputKey, epoch: u32, held: Held) {
        {
            let mut state = lock(&self.state);
            match state.phase {
                Phase::Over => return,
                Phase::Dialling => {
                    state.waiting.insert(what, (epoch, held));
                    return;
                }
                Phase::Standing => {}
            }
        }
        self.hand_over(session, what, epoch, held);
    }

    fn hand_over(&self, session: &Session, what: OutputKey, epoch: u32, held: Held) {
        // Names of tensors are short: their heads always fit.
        let Ok(head) = (Message::Tensor { what, epoch, form: held.form.clone() }).encode() else {
            return;
        };
        match self.out.send(Parcel { head, payload: Some(Cargo::Held(held.clone())) }) {
            Sent::Left => count(&session.worker.counters.to_peers),
            Sent::Waits => {
                count(&session.worker.counters.to_peers);
                lock(&self.state).full = true;
                self.changed.notify_all();
            }
            Sent::Gone => {
                let mut state = lock(&self.state);
                if state.phase != Phase::Over {
                    state.waiting.insert(what, (epoch, held));
                    state.lost.get_or_insert(LinkError::Closed);
                    self.changed.notify_all();
                }
            }
        }
    }

    /// Settles a ticket when the link stands.
    pub(super) fn tell_standing(&self, session: &Session, ticket: &Arc<Ticket>) {
        let outcome = {
            let mut state = lock(&self.state);
            match state.phase {
                Phase::Dialling if state.tickets.len() >= MAX_TICKETS => {
                    Err(err!(Limit, "{MAX_TICKETS} orders wait for the worker `{}`", self.name))
                }
                Phase::Dialling => {
                    state.tickets.push(Arc::clone(ticket));
                    return;
                }
                Phase::Standing => Ok(()),
                Phase::Over => Err(err!(Io, "the worker `{}` cannot be reached", self.name)),
            }
        };
        ticket.settle(session, outcome);
    }

    fn run(self: &Arc<Self>, session: &Arc<Session>) {
        let mut first = true;
        loop {
            let deadline = Instant::now() + session.lease();
            if let Err(error) = self.dial(session, deadline) {
                self.give_up(session, first, error);
                return;
            }
            self.stand(session, first);
            first = false;
            if !self.wait_lost() {
                return;
            }
        }
    }

    /// The worker cannot be reached, or need not be any more.
    fn give_up(&self, session: &Session, first: bool, error: Option<Error>) {
        let (tickets, dropped) = {
            let mut state = lock(&self.state);
            state.phase = Phase::Over;
            (std::mem::take(&mut state.tickets), std::mem::take(&mut state.waiting))
        };
        drop(dropped);
        self.out.detach();
        let told = first && !tickets.is_empty();
        let words = error.clone().unwrap_or_else(|| {
            err!(Stopped, "the link to the worker `{}` is not needed any more", self.name)
        });
        for ticket in tickets {
            ticket.settle(session, Err(words.clone()));
        }
        if let Some(error) = error.filter(|_| !told) {
            session.unreachable(&self.name, &error);
        }
    }

    /// Dials until the other worker takes the link. The error is `None` if the link is not needed
    /// any more.
    fn dial(
        self: &Arc<Self>,
        session: &Arc<Session>,
        deadline: Instant,
    ) -> Result<(), Option<Error>> {
        let mut pause = PAUSE;
        loop {
            let attempt = {
                let mut state = lock(&self.state);
                if state.phase == Phase::Over {
                    return Err(None);
                }
                state.attempt += 1;
                (state.taken, state.lost) = (false, None);
                state.attempt
            };
            let until = deadline.min(Instant::now() + ATTEMPT);
            let why = match self.try_once(session, attempt, until) {
                Ok(()) => return Ok(()),
                Err(why) => why,
            };
            self.out.detach();
            let for_good = matches!(
                why,
                LinkError::Version { .. } | LinkError::Security { .. } | LinkError::Address { .. }
            );
            if for_good || Instant::now() + pause >= deadline {
                let what = format!("the worker `{}` at {}", self.name, self.address);
                return Err(Some(link_error(why).within(&what)));
            }
            let state = lock(&self.state);
            if state.phase != Phase::Over {
                drop(self.changed.wait_timeout(state, pause));
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    fn try_once(
        self: &Arc<Self>,
        session: &Arc<Session>,
        attempt: u64,
        until: Instant,
    ) -> Result<(), LinkError> {
        let head = |message: Result<Vec<u8>>| {
            message.map_err(|e| LinkError::Malformed { why: e.to_string() })
        };
        let join = head(session.join())?;
        let ping = head(Message::Ping { token: attempt }.encode())?;
        let accept = Box::new(Dialled { peer: Arc::clone(self), attempt });
        let link = session.worker.transport.connect(&self.address, accept, until)?;
        self.out.attach(link, Parcel { head: join, payload: None });
        let mut full = self.out.send(Parcel { head: ping, payload: None }) == Sent::Waits;
        let mut state = lock(&self.state);
        loop {
            if state.phase == Phase::Over {
                return Err(LinkError::Closed);
            }
            if let Some(why) = &state.lost {
                return Err(why.clone());
            }
            if state.taken {
                return Ok(());
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                let what = format!("{} to take the link", self.address);
                return Err(LinkError::Timeout { what, after: ATTEMPT });
            }
            let left = if full { left.min(RETRY) } else { left };
            let wait = self.changed.wait_timeout(state, left);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
            if full {
                drop(state);
                full = self.out.flush();
                state = lock(&self.state);
            }
        }
    }

    /// The link stands: hands over what waited, and after a break all that is kept for this worker.
    fn stand(&self, session: &Session, first: bool) {
        let (mut all, tickets) = {
            let mut state = lock(&self.state);
            if state.phase == Phase::Over {
                return;
            }
            state.phase = Phase::Standing;
            (std::mem::take(&mut state.waiting), std::mem::take(&mut state.tickets))
        };
        if !first {
            for (what, epoch, held) in session.routed_to(&self.name) {
                all.insert(what, (epoch, held));
            }
        }
        for (what, (epoch, held)) in all {
            self.hand_over(session, what, epoch, held);
        }
        for ticket in tickets {
            ticket.settle(session, Ok(()));
        }
    }

    /// Waits until the link is lost; `false` if it is not needed any more.
    fn wait_lost(&self) -> bool {
        let mut state = lock(&self.state);
        loop {
            if state.phase == Phase::Over {
                return false;
            }
            if state.lost.is_some() {
                state.phase = Phase::Dialling;
                drop(state);
                self.out.detach();
                return true;
            }
            let mut look = LOOK;
            if std::mem::take(&mut state.full) {
                drop(state);
                let full = self.out.flush();
                state = lock(&self.state);
                state.full |= full;
                look = if full { RETRY } else { LOOK };
                if state.lost.is_some() || state.phase == Phase::Over {
                    continue;
                }
            }
            let wait = self.changed.wait_timeout(state, look);
            state = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// What takes the frames of a link that was dialled.
struct Dialled {
    peer: Arc<Peer>,
    attempt: u64,
}

impl Accept for Dialled {
    fn accept(&mut self, head: &[u8], length: u64) -> Result<Box<dyn Incoming>, LinkError> {
        match Message::decode(head)? {
            Message::Pong { token, .. } if length == 0 => {
                let mut state = lock(&self.peer.state);
                if state.attempt == token {
                    state.taken = true;
                    self.peer.changed.notify_all();
                }
                Ok(Box::new(Nothing))
            }
            _ => Err(LinkError::Malformed { why: "not an answer of a worker".to_owned() }),
        }
    }

    fn closed(&mut self, why: LinkError) {
        let mut state = lock(&self.peer.state);
        if state.attempt == self.attempt {
            state.lost.get_or_insert(why);
            self.peer.changed.notify_all();
        }
    }
}
