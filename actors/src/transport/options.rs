//! What a transport can be told.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::error::LinkError;
use super::frame::LINK_VERSION;
use super::security::Security;

/// Told of each peer that was turned away before there was a link: its address and the reason.
pub type OnRefused = Arc<dyn Fn(&str, &LinkError) + Send + Sync>;

/// What a transport can be told. A transport that has no use for an option ignores it.
///
/// ```
/// use std::time::Duration;
///
/// use brigade_actors::transport::{Security, TransportOptions};
///
/// let options = TransportOptions::new()
///     .security(Security::Plaintext)
///     .queue(64, 64 << 20)
///     .keep_alive(Duration::from_secs(1), Duration::from_secs(2));
/// assert!(format!("{options:?}").contains("Plaintext"));
/// ```
#[derive(Clone)]
#[must_use]
pub struct TransportOptions {
    pub(crate) security: Security,
    pub(crate) queue_frames: u64,
    pub(crate) queue_bytes: u64,
    pub(crate) keep_alive_interval: Duration,
    pub(crate) keep_alive_timeout: Duration,
    pub(crate) greeting_timeout: Duration,
    pub(crate) progress_timeout: Duration,
    pub(crate) close_timeout: Duration,
    pub(crate) waiting: usize,
    pub(crate) threads: usize,
    pub(crate) on_refused: Option<OnRefused>,
    pub(crate) version: u32,
}

impl Default for TransportOptions {
    fn default() -> Self {
        Self::new()
    }
}

impl TransportOptions {
    /// The defaults, each stated at its method.
    pub const fn new() -> Self {
        Self {
            security: Security::Plaintext,
            queue_frames: 1024,
            queue_bytes: 1 << 30,
            keep_alive_interval: Duration::from_secs(1),
            keep_alive_timeout: Duration::from_secs(2),
            greeting_timeout: Duration::from_secs(3),
            progress_timeout: Duration::from_secs(10),
            close_timeout: Duration::from_secs(1),
            waiting: 64,
            threads: 1,
            on_refused: None,
            version: LINK_VERSION,
        }
    }

    /// How peers prove who they are. At first [`Security::Plaintext`], which only loopback addresses
    /// take.
    pub fn security(mut self, security: Security) -> Self {
        self.security = security;
        self
    }

    /// The most frames and bytes that may wait in the queue of one link: [`LinkError::Full`] beyond.
    /// A frame into an empty queue is always taken. At first 1024 frames and 1 GiB.
    pub const fn queue(mut self, frames: u64, bytes: u64) -> Self {
        self.queue_frames = frames;
        self.queue_bytes = bytes;
        self
    }

    /// How long a silent peer is left alone, and how long it may then take to answer, before the link
    /// counts as lost. At first 1 s and 2 s.
    pub const fn keep_alive(mut self, interval: Duration, timeout: Duration) -> Self {
        self.keep_alive_interval = interval;
        self.keep_alive_timeout = timeout;
        self
    }

    /// How long a peer that connects may take to prove who it is and greet. At first 3 s.
    pub const fn greeting_timeout(mut self, timeout: Duration) -> Self {
        self.greeting_timeout = timeout;
        self
    }

    /// How long a peer that has begun a frame may send nothing of it. At first 10 s.
    pub const fn progress_timeout(mut self, timeout: Duration) -> Self {
        self.progress_timeout = timeout;
        self
    }

    /// How long a link that is being closed may take for the frames that still wait in its queue, and
    /// a listener for its links. At first 1 s.
    pub const fn close_timeout(mut self, timeout: Duration) -> Self {
        self.close_timeout = timeout;
        self
    }

    /// The most peers of a listener that may be connected without having greeted; further ones are
    /// turned away at once. At first 64.
    pub const fn waiting(mut self, peers: usize) -> Self {
        self.waiting = peers;
        self
    }

    /// The threads of a transport that moves the bytes of many links on few threads. At first 1.
    pub const fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Told of each peer that a listener turns away before there is a link, by its address and the
    /// reason. Runs on a thread of the transport and must not wait.
    pub fn on_refused(mut self, on_refused: OnRefused) -> Self {
        self.on_refused = Some(on_refused);
        self
    }

    /// Greets with another version of the protocol, for tests of what happens then.
    #[doc(hidden)]
    pub const fn speaking(mut self, version: u32) -> Self {
        self.version = version;
        self
    }
}

impl fmt::Debug for TransportOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransportOptions")
            .field("security", &self.security)
            .field("queue", &(self.queue_frames, self.queue_bytes))
            .field("keep_alive", &(self.keep_alive_interval, self.keep_alive_timeout))
            .field("greeting_timeout", &self.greeting_timeout)
            .field("progress_timeout", &self.progress_timeout)
            .field("close_timeout", &self.close_timeout)
            .field("waiting", &self.waiting)
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}
