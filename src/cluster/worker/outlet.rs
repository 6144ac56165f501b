//! The way out to one peer: a link that may break and come back, and what its queue had no room for.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use brigade_actors::transport::{Bytes, Frame, Link, LinkError};

use super::lock;
use super::store::Held;

/// So many frames may wait for room in the queue of a link; a peer that lets more wait is cut off.
const MAX_WAITING: usize = 1 << 14;

/// A frame that may be sent again.
#[derive(Clone, Debug)]
pub(super) struct Parcel {
    pub(super) head: Vec<u8>,
    pub(super) payload: Option<Cargo>,
}

/// What a parcel has beside its head.
#[derive(Clone, Debug)]
pub(super) enum Cargo {
    /// A value, as it lies.
    Held(Held),
    /// Bytes that were made for it.
    Bytes(Arc<Vec<u8>>),
}

/// What became of a parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// It is in the queue of the link.
    Left,
    /// It waits for room there: [`Outlet::flush`] tries again.
    Waits,
    /// There is no link; it is dropped.
    Gone,
}

/// The bytes of a value, sent as they lie.
struct Payload(Held);

impl Bytes for Payload {
    fn bytes(&self) -> &[u8] {
        self.0.buffer.as_bytes()
    }
}

impl Parcel {
    fn frame(&self) -> Frame {
        match &self.payload {
            Some(Cargo::Held(held)) => Frame::new(self.head.clone(), Payload(held.clone())),
            Some(Cargo::Bytes(bytes)) => Frame::new(self.head.clone(), Arc::clone(bytes)),
            None => Frame::head(self.head.clone()),
        }
    }
}

#[derive(Debug, Default)]
struct State {
    link: Option<Link>,
    waiting: VecDeque<Parcel>,
}

/// See the module. Its lock is held while frames are put into the queue of the link, which does not
/// wait, so that they leave in order.
#[derive(Debug, Default)]
pub(super) struct Outlet(Mutex<State>);

impl Outlet {
    /// Sends, or lets wait what the queue has no room for.
    pub(super) fn send(&self, parcel: Parcel) -> Sent {
        let mut state = lock(&self.0);
        state.waiting.push_back(parcel);
        Self::move_on(&mut state)
    }

    /// Sends what waits; whether there is still more.
    pub(super) fn flush(&self) -> bool {
        let mut state = lock(&self.0);
        Self::move_on(&mut state) == Sent::Waits
    }

    fn move_on(state: &mut State) -> Sent {
        let Some(link) = &state.link else {
            state.waiting.clear();
            return Sent::Gone;
        };
        while let Some(first) = state.waiting.front() {
            match link.send(first.frame()) {
                Ok(()) => {
                    state.waiting.pop_front();
                }
                Err(LinkError::Full { .. }) if state.waiting.len() <= MAX_WAITING => {
                    return Sent::Waits;
                }
                Err(LinkError::TooLong { .. }) => {
                    state.waiting.pop_front();
                }
                Err(_) => {
                    link.close();
                    state.link = None;
                    state.waiting.clear();
                    return Sent::Gone;
                }
            }
        }
        Sent::Left
    }

    /// Takes up another link, whose first frame this is; closes the one before. What waited is
    /// dropped: whoever comes back asks again.
    pub(super) fn attach(&self, link: Link, first: Parcel) {
        let before = {
            let mut state = lock(&self.0);
            state.waiting.clear();
            state.waiting.push_back(first);
            let before = state.link.replace(link);
            Self::move_on(&mut state);
            before
        };
        if let Some(before) = before {
            before.close();
        }
    }

    /// There is no link any more.
    pub(super) fn detach(&self) {
        let dropped = std::mem::take(&mut *lock(&self.0));
        if let Some(link) = dropped.link {
            link.close();
        }
    }
}
