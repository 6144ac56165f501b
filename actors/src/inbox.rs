//! The one place where an actor waits.

use std::fmt;
use std::time::{Duration, Instant};

use crate::packet::{Message, Work};
use crate::sync::{
    Arc, AtomicBool, AtomicU32, Ordering, Receiver, RecvTimeoutError, Sender, bounded, recv_either,
    spin_until,
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
    /// The factory that the replicas of an actor share is free.
    pub(crate) const FACTORY: u32 = 32;
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
    /// Where the bell's token arrives, and the items of an actor without replicas with it.
    receiver: Receiver<Message<P>>,
    /// Where the items of an actor with replicas arrive. A token in here could reach the wrong
    /// replica, so each has a channel of its own besides.
    items: Option<Shared<P>>,
    bell: Arc<Bell<P>>,
    /// How long a wait looks for a message before it sleeps.
    spin: Duration,
    /// Places for items.
    capacity: usize,
}

/// The inbox that the replicas of an actor share.
struct Shared<P> {
    receiver: Receiver<Message<P>>,
    sender: Sender<Message<P>>,
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
        (Self { receiver, items: None, bell: Arc::clone(&bell), spin, capacity }, sender, bell)
    }

    /// The inboxes of `replicas` replicas: what is sent goes to one of them, and each has a bell of
    /// its own.
    pub(crate) fn shared(
        capacity: usize,
        spin: Duration,
        replicas: usize,
    ) -> (Vec<Self>, Sender<Message<P>>) {
        let (sender, receiver) = bounded(capacity);
        let inbox = |_| {
            let (mut inbox, _, _) = Self::new(0, spin);
            inbox.capacity = capacity;
            inbox.items = Some(Shared { receiver: receiver.clone(), sender: sender.clone() });
            inbox
        };
        ((0..replicas).map(inbox).collect(), sender)
    }

    pub(crate) const fn bell(&self) -> &Arc<Bell<P>> {
        &self.bell
    }

    /// True if other replicas take from the same inbox: what this one cannot compute now is better
    /// left there.
    pub(crate) const fn is_shared(&self) -> bool {
        self.items.is_some()
    }

    /// Puts an item back for the other replicas; gives it back where there are none.
    pub(crate) fn give_back(&self, work: Work<P>) -> Result<(), Work<P>> {
        match &self.items {
            None => Err(work),
            Some(shared) => {
                // Never blocks: the item came out of this inbox, so its place in it is free. The
                // channel is open as long as this side of it is.
                let _ = shared.sender.send(Message::Gathered(Box::new(work)));
                Ok(())
            }
        }
    }

    pub(crate) fn flags(&self) -> &Flags {
        &self.bell.flags
    }

    /// What lies in the inbox, without waiting; from a shared one only if `items` are wanted.
    pub(crate) fn try_next(&self, items: bool) -> Option<Next<P>> {
        let shared = self.items.as_ref().filter(|_| items);
        let received = self.receiver.try_recv().ok();
        let received =
            received.or_else(|| shared.and_then(|shared| shared.receiver.try_recv().ok()));
        received.map(|message| self.sort(message))
    }

    /// Messages that lie in the inbox.
    pub(crate) fn level(&self) -> usize {
        match &self.items {
            // Without the wake token, which may be there.
            None => self.receiver.len().min(self.capacity),
            Some(shared) => shared.receiver.len(),
        }
    }

    /// Waits for the next message, at most until `deadline`; from a shared inbox only if `items`
    /// are wanted. Looks for it for a while before it sleeps.
    pub(crate) fn next(&self, items: bool, deadline: Option<Instant>) -> Next<P> {
        let mut found = None;
        spin_until(self.spin, || {
            found = self.try_next(items);
            found.is_some()
        });
        if let Some(found) = found {
            return found;
        }
        let received = match (self.items.as_ref().filter(|_| items), deadline) {
            (None, None) => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            (None, Some(deadline)) => self.receiver.recv_deadline(deadline),
            (Some(shared), deadline) => recv_either(&self.receiver, &shared.receiver, deadline),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ItemError;
    use crate::item::{Admission, Item, Shape};
    use crate::packet::Seq;

    fn work(seq: u64) -> Work<i64> {
        let admission = Admission {
            deadline: None,
            stream: None,
            admitted_ns: 0,
            queued: false,
            start_by: None,
        };
        let item = Item::new(Seq::new(seq), admission, &Shape::default());
        let inputs = Err(ItemError::failed("late"));
        let item = Arc::new(item);
        Work { seq: item.seq(), item, since_ns: 0, inputs, children: Vec::new(), tries: 0 }
    }

    #[test]
    fn a_token_reaches_the_replica_that_it_is_for_and_items_any_of_them() {
        let (inboxes, sender) = Inbox::<i64>::shared(2, Duration::ZERO, 3);
        inboxes[1].bell().ring(Flags::POLL);
        assert!(inboxes[0].try_next(true).is_none());
        assert!(inboxes[2].try_next(true).is_none());
        assert!(matches!(inboxes[1].try_next(false), Some(Next::Wake)));
        assert!(inboxes[1].flags().lower(Flags::POLL) && !inboxes[0].flags().lower(Flags::POLL));
        let _ = sender.send(Message::Gathered(Box::new(work(7))));
        assert!(inboxes[2].try_next(false).is_none(), "took an item that it did not want");
        assert!(matches!(inboxes[2].next(true, None), Next::Message(Message::Gathered(_))));
    }

    #[test]
    fn what_a_replica_gives_back_the_others_find() {
        let (inboxes, sender) = Inbox::<i64>::shared(1, Duration::ZERO, 2);
        let _ = sender.send(Message::Gathered(Box::new(work(7))));
        let Some(Next::Message(Message::Gathered(taken))) = inboxes[0].try_next(true) else {
            panic!("nothing arrived");
        };
        assert!(inboxes[0].give_back(*taken).is_ok());
        let Some(Next::Message(Message::Gathered(found))) = inboxes[1].try_next(true) else {
            panic!("nothing was given back");
        };
        assert_eq!(found.seq, Seq::new(7));
        let (single, _sender, _) = Inbox::<i64>::new(1, Duration::ZERO);
        assert!(single.give_back(work(8)).is_err());
    }
}
