//! One end of a link: its queue, its state, its figures. The same for every transport.

use std::collections::VecDeque;
use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use super::error::LinkError;
use super::options::TransportOptions;
use super::{Frame, HEAD_LIMIT};
use crate::sync::{Arc, Condvar, Mutex, Ordering, Tally, lock, wait_until};

/// Who is at the other end of a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The address of the peer, as the transport writes addresses.
    pub address: String,
    /// The name in the peer's verified certificate; `None` where there is no such proof.
    pub identity: Option<String>,
}

/// What a link has carried so far. Bytes are those of heads and payloads, without what the
/// transport adds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkCounters {
    /// Frames that were taken by [`Link::send`].
    pub frames_sent: u64,
    /// Their bytes.
    pub bytes_sent: u64,
    /// Frames whose heads were accepted here.
    pub frames_received: u64,
    /// The bytes of them that have come.
    pub bytes_received: u64,
    /// Frames that were taken and have not left yet.
    pub frames_queued: u64,
    /// Their bytes.
    pub bytes_queued: u64,
}

/// One end of a link. Clones are handles on the same end; when the last of them is dropped, the
/// link is closed as by [`close`](Link::close).
#[derive(Clone)]
pub struct Link(Arc<Handle>);

/// What handles share; dropped with the last of them.
struct Handle(Arc<Core>);

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.close(LinkError::Closed);
    }
}

impl Link {
    pub(crate) fn new(core: Arc<Core>) -> Self {
        Self(Arc::new(Handle(core)))
    }

    /// Puts a frame into the queue of the link. Never waits.
    ///
    /// # Errors
    ///
    /// [`LinkError::Full`] if too much waits, and [`LinkError::TooLong`] if the head is longer than
    /// [`HEAD_LIMIT`] or the payload than the transport can carry (4 GiB less the head): the link
    /// goes on. Where the link has ended, the reason why.
    pub fn send(&self, frame: Frame) -> Result<(), LinkError> {
        self.0.0.push(frame)
    }

    /// Closes the link: no more frames are taken, those in the queue are still sent, then the peer
    /// is told. Returns at once; [`Accept::closed`](super::Accept::closed) tells the end.
    pub fn close(&self) {
        self.0.0.close(LinkError::Closed);
    }

    /// Waits until the link has ended, so that what was sent before a [`close`](Self::close) is with
    /// the peer, or lost for good; until `deadline` at most. Whether it has ended. Not for the
    /// threads of the transport, which the end needs.
    pub fn wait_closed(&self, deadline: Instant) -> bool {
        self.0.0.wait_end(deadline)
    }

    /// Who is at the other end.
    #[must_use]
    pub fn peer(&self) -> &Peer {
        &self.0.0.peer
    }

    /// Whether frames are taken.
    #[must_use]
    pub fn is_open(&self) -> bool {
        matches!(lock(&self.0.0.state).phase, Phase::Open)
    }

    /// What the link has carried so far.
    #[must_use]
    pub fn counters(&self) -> LinkCounters {
        self.0.0.counters()
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("peer", self.peer())
            .field("open", &self.is_open())
            .finish_non_exhaustive()
    }
}

/// The most bytes of one frame as sent: a length of 32 bits, less what frames add.
const FRAME_LIMIT: u64 = u32::MAX as u64 - 64;

#[derive(Debug)]
enum Phase {
    Open,
    /// No more frames are taken; those that wait are sent, then the peer is told this.
    Closing(LinkError),
    Ended(LinkError),
}

#[derive(Debug)]
struct State {
    phase: Phase,
    queue: VecDeque<Frame>,
    /// Taken and not written yet, in the queue or in the writer's hands.
    frames: u64,
    bytes: u64,
}

/// What the writer is to do next.
#[derive(Debug)]
pub(crate) enum Next {
    Frame(Frame),
    /// The queue is empty and the link is being closed: tell the peer this.
    Close(LinkError),
    Ended(LinkError),
    /// Nothing: it will be woken.
    Idle,
}

/// How far a link is from its end.
#[cfg(feature = "grpc")]
#[derive(Debug)]
pub(crate) enum Ending {
    No,
    Closing,
    Ended(LinkError),
}

/// Tasks that serve a link without a thread of their own.
pub(crate) trait Woken: Send + Sync {
    /// A frame waits.
    fn queued(&self);
    /// The link is being closed, or has ended.
    fn closing(&self);
}

/// One end of a link as its writer and its reader see it.
pub(crate) struct Core {
    peer: Peer,
    queue_frames: u64,
    queue_bytes: u64,
    state: Mutex<State>,
    changed: Condvar,
    /// Woken beside those who wait on `changed`.
    woken: OnceLock<Arc<dyn Woken>>,
    frames_sent: Tally,
    bytes_sent: Tally,
    frames_received: Tally,
    bytes_received: Tally,
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Core").field("peer", &self.peer).finish_non_exhaustive()
    }
}

impl Core {
    pub(crate) fn new(peer: Peer, options: &TransportOptions) -> Arc<Self> {
        Arc::new(Self {
            peer,
            queue_frames: options.queue_frames,
            queue_bytes: options.queue_bytes,
            state: Mutex::new(State {
                phase: Phase::Open,
                queue: VecDeque::new(),
                frames: 0,
                bytes: 0,
            }),
            changed: Condvar::new(),
            woken: OnceLock::new(),
            frames_sent: Tally::new(0),
            bytes_sent: Tally::new(0),
            frames_received: Tally::new(0),
            bytes_received: Tally::new(0),
        })
    }

    fn push(&self, frame: Frame) -> Result<(), LinkError> {
        let head = frame.head.len() as u64;
        if head > HEAD_LIMIT as u64 {
            return Err(LinkError::TooLong {
                what: "head",
                length: head,
                limit: HEAD_LIMIT as u64,
            });
        }
        let length = frame.payload_bytes().len() as u64;
        if length > FRAME_LIMIT - head {
            return Err(LinkError::TooLong { what: "payload", length, limit: FRAME_LIMIT - head });
        }
        let bytes = head + length;
        {
            let mut state = lock(&self.state);
            match &state.phase {
                Phase::Open => {}
                Phase::Closing(why) | Phase::Ended(why) => return Err(why.clone()),
            }
            let fits = state.frames < self.queue_frames
                && state.bytes.saturating_add(bytes) <= self.queue_bytes;
            if !fits && state.frames > 0 {
                return Err(LinkError::Full {
                    frames: state.frames,
                    bytes: state.bytes,
                    limit_frames: self.queue_frames,
                    limit_bytes: self.queue_bytes,
                });
            }
            state.frames += 1;
            state.bytes += bytes;
            state.queue.push_back(frame);
        }
        self.frames_sent.fetch_add(1, Ordering::Relaxed);
        self.bytes_sent.fetch_add(bytes, Ordering::Relaxed);
        self.changed.notify_all();
        if let Some(woken) = self.woken.get() {
            woken.queued();
        }
        Ok(())
    }

    fn notify(&self) {
        self.changed.notify_all();
        if let Some(woken) = self.woken.get() {
            woken.closing();
        }
    }

    /// Whom to wake; said once, before there is a [`Link`].
    #[cfg(feature = "grpc")]
    pub(crate) fn woken_by(&self, woken: Arc<dyn Woken>) {
        // A second one would not be told, and there is none.
        drop(self.woken.set(woken));
    }

    #[cfg(feature = "grpc")]
    pub(crate) fn ending(&self) -> Ending {
        match &lock(&self.state).phase {
            Phase::Open => Ending::No,
            Phase::Closing(_) => Ending::Closing,
            Phase::Ended(why) => Ending::Ended(why.clone()),
        }
    }

    /// The next thing for a writer that does not wait here.
    #[cfg(feature = "grpc")]
    pub(crate) fn next(&self) -> Next {
        Self::next_of(&mut lock(&self.state))
    }

    /// Begins to close the link; `why` is told to the peer after the frames that wait.
    pub(crate) fn close(&self, why: LinkError) {
        {
            let mut state = lock(&self.state);
            if !matches!(state.phase, Phase::Open) {
                return;
            }
            state.phase = Phase::Closing(why);
        }
        self.notify();
    }

    /// Ends the link: what waits is dropped. Only the first reason counts; gives that one.
    pub(crate) fn end(&self, why: LinkError) -> LinkError {
        let dropped;
        let why = {
            let mut state = lock(&self.state);
            if let Phase::Ended(first) = &state.phase {
                return first.clone();
            }
            state.phase = Phase::Ended(why.clone());
            dropped = std::mem::take(&mut state.queue);
            let (frames, bytes) = sum(&dropped);
            state.frames -= frames;
            state.bytes -= bytes;
            why
        };
        // Payloads are the user's: not under the lock.
        drop(dropped);
        self.notify();
        why
    }

    fn next_of(state: &mut State) -> Next {
        if let Phase::Ended(why) = &state.phase {
            return Next::Ended(why.clone());
        }
        if let Some(frame) = state.queue.pop_front() {
            return Next::Frame(frame);
        }
        match &state.phase {
            Phase::Closing(why) => Next::Close(why.clone()),
            Phase::Open | Phase::Ended(_) => Next::Idle,
        }
    }

    /// The next thing for a writer with a thread of its own: waits for it.
    pub(crate) fn wait_next(&self) -> Next {
        let mut state = lock(&self.state);
        loop {
            match Self::next_of(&mut state) {
                Next::Idle => {}
                next => return next,
            }
            state = wait_until(&self.changed, state, None);
        }
    }

    /// Waits until the link has ended, at most until `deadline`; whether it has.
    pub(crate) fn wait_end(&self, deadline: Instant) -> bool {
        let mut state = lock(&self.state);
        while !matches!(state.phase, Phase::Ended(_)) {
            if Instant::now() >= deadline {
                return false;
            }
            state = wait_until(&self.changed, state, Some(deadline));
        }
        true
    }

    /// A frame of this size has left.
    pub(crate) fn left(&self, bytes: u64) {
        let mut state = lock(&self.state);
        state.frames -= 1;
        state.bytes -= bytes;
    }

    pub(crate) fn received(&self, head: u64) {
        self.frames_received.fetch_add(1, Ordering::Relaxed);
        self.bytes_received.fetch_add(head, Ordering::Relaxed);
    }

    pub(crate) fn received_payload(&self, bytes: u64) {
        self.bytes_received.fetch_add(bytes, Ordering::Relaxed);
    }

    fn counters(&self) -> LinkCounters {
        let (frames_queued, bytes_queued) = {
            let state = lock(&self.state);
            (state.frames, state.bytes)
        };
        LinkCounters {
            frames_sent: self.frames_sent.load(Ordering::Relaxed),
            bytes_sent: self.bytes_sent.load(Ordering::Relaxed),
            frames_received: self.frames_received.load(Ordering::Relaxed),
            bytes_received: self.bytes_received.load(Ordering::Relaxed),
            frames_queued,
            bytes_queued,
        }
    }
}

fn sum(frames: &VecDeque<Frame>) -> (u64, u64) {
    (frames.len() as u64, frames.iter().map(Frame::size).sum())
}

/// The links of a listener or a transport, so that they can be closed together.
#[derive(Debug, Default)]
pub(crate) struct Links(Mutex<Gathered>);

#[derive(Debug, Default)]
struct Gathered {
    links: Vec<std::sync::Weak<Core>>,
    closed: bool,
}

impl Links {
    /// One more; closed at once where the others have been, since nobody else would close it.
    pub(crate) fn add(&self, core: &Arc<Core>) {
        let closed = {
            let mut gathered = lock(&self.0);
            gathered.links.retain(|link| link.strong_count() > 0);
            gathered.links.push(Arc::downgrade(core));
            gathered.closed
        };
        if closed {
            core.close(LinkError::Closed);
        }
    }

    /// Closes all of them in order; those that take longer than `timeout` are cut.
    pub(crate) fn close(&self, timeout: Duration) {
        let links: Vec<_> = {
            let mut gathered = lock(&self.0);
            gathered.closed = true;
            gathered.links.drain(..).filter_map(|link| link.upgrade()).collect()
        };
        for core in &links {
            core.close(LinkError::Closed);
        }
        let deadline = Instant::now() + timeout;
        for core in &links {
            if !core.wait_end(deadline) {
                core.end(LinkError::Closed);
            }
        }
    }
}
