//! The one place where an actor waits.

use std::fmt;
use std::time::{Duration, Instant};

use crate::packet::Message;
use crate::sync::{
    Arc, AtomicBool, AtomicU32, Ordering, Receiver, RecvTimeoutError, Sender, bounded, spin_until,
};

/// What an actor is asked to look at before its next firing.
#[derive(Default)]
pub(crate) struct Flags(AtomicU32);

impl Flags {
    /// End.
    pub(crate) const STOP: u32 = 1;
    /// Drop the stage and build another one.
    pub(crate) const RESTART: u32 = 2;
    /// Finish what the stage holds back.
    pub(crate) const FLUSH: u32 = 4;
    /// Some item was given up.
    pub(crate) const CANCEL: u32 = 8;
    /// The stage asked to be polled.
    pub(crate) const POLL: u32 = 16;
    /// A batch of this actor is gone.
    pub(crate) const ROOM: u32 = 1 << 8;

    pub(crate) fn raise(&self, flag: u32) {
        self.0.fetch_or(flag, Ordering::AcqRel);
    }

    pub(crate) fn is_raised(&self, flag: u32) -> bool {
        self.0.load(Ordering::Acquire) & flag != 0
    }

    /// Takes a flag down; true if it was up.
    pub(crate) fn lower(&self, flag: u32) -> bool {
        self.is_raised(flag) && self.0.fetch_and(!flag, Ordering::AcqRel) & flag != 0
    }
}

/// The sending side of an inbox that raises flags and puts the wake token in.
pub(crate) struct Bell<P> {
    pub(crate) flags: Flags,
    /// A wake token lies in the inbox: one is enough, and there is room for one.
    pending: AtomicBool,
    sender: Sender<Message<P>>,
}

impl<P> Bell<P> {
    /// Raises a flag and sees to it that the actor looks at it.
    pub(crate) fn ring(&self, flag: u32) {
        self.flags.raise(flag);
        // The swap is after the raise, and the actor clears `pending` before it looks at the
        // flags: either it sees the flag, or this call puts a token in.
        if !self.pending.swap(true, Ordering::AcqRel) {
            let _ = self.sender.try_send(Message::Wake);
        }
    }
}

/// The receiving side.
pub(crate) struct Inbox<P> {
    receiver: Receiver<Message<P>>,
    bell: Arc<Bell<P>>,
    /// How long a wait looks for a message before it sleeps.
    spin: Duration,
    /// Places for items.
    capacity: usize,
}

/// What an actor finds in its inbox.
pub(crate) enum Next<P> {
    Message(Message<P>),
    /// Flags were raised.
    Wake,
    /// The deadline of the wait passed.
    Timeout,
    /// No sender is left.
    Closed,
}

impl<P> Inbox<P> {
    /// An inbox that holds `capacity` packets and the wake token.
    pub(crate) fn new(capacity: usize, spin: Duration) -> (Self, Sender<Message<P>>, Arc<Bell<P>>) {
        let (sender, receiver) = bounded(capacity + 1);
        let bell = Arc::new(Bell {
            flags: Flags::default(),
            pending: AtomicBool::new(false),
            sender: sender.clone(),
        });
        (Self { receiver, bell: Arc::clone(&bell), spin, capacity }, sender, bell)
    }

    pub(crate) fn flags(&self) -> &Flags {
        &self.bell.flags
    }

    /// What lies in the inbox, without waiting.
    pub(crate) fn try_next(&self) -> Option<Next<P>> {
        self.receiver.try_recv().ok().map(|message| self.sort(message))
    }

    /// Messages that lie in the inbox.
    pub(crate) fn level(&self) -> usize {
        // Without the wake token, which may be there.
        self.receiver.len().min(self.capacity)
    }

    /// Waits for the next message, at most until `deadline`; looks for it for a while before it
    /// sleeps.
    pub(crate) fn next(&self, deadline: Option<Instant>) -> Next<P> {
        let mut found = None;
        spin_until(self.spin, || {
            found = self.try_next();
            found.is_some()
        });
        if let Some(found) = found {
            return found;
        }
        let received = match deadline {
            None => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(deadline) => self.receiver.recv_deadline(deadline),
        };
        match received {
            Ok(message) => self.sort(message),
            Err(RecvTimeoutError::Timeout) => Next::Timeout,
            Err(RecvTimeoutError::Disconnected) => Next::Closed,
        }
    }

    fn sort(&self, message: Message<P>) -> Next<P> {
        match message {
            Message::Wake => {
                // A swap, not a store: it reads the ringer's swap, and so sees its flag.
                self.bell.pending.swap(false, Ordering::AcqRel);
                Next::Wake
            }
            other => Next::Message(other),
        }
    }
}

/// Wakes an actor, so that it polls its stage: the only thing that a completion callback does.
///
/// Waking often costs nothing more than waking once: the actor polls at least once after the last
/// call. Waking an actor that has ended does nothing.
#[derive(Clone)]
pub struct StageWaker {
    bell: Arc<dyn Ring>,
    flag: u32,
}

trait Ring: Send + Sync {
    fn ring(&self, flag: u32);
}

impl<P: Send> Ring for Bell<P> {
    fn ring(&self, flag: u32) {
        Self::ring(self, flag);
    }
}

impl StageWaker {
    pub(crate) fn new<P: Send + 'static>(bell: Arc<Bell<P>>) -> Self {
        Self::ringing(bell, Flags::POLL)
    }

    /// A waker that asks the actor for something else than a poll.
    pub(crate) fn ringing<P: Send + 'static>(bell: Arc<Bell<P>>, flag: u32) -> Self {
        Self { bell, flag }
    }

    /// Wakes the actor.
    pub fn wake(&self) {
        self.bell.ring(self.flag);
    }
}

impl fmt::Debug for StageWaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StageWaker")
    }
}
