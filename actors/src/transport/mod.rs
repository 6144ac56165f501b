//! Links between processes: frames in order, each way, over one of several transports.
//!
//! A [`Transport`] joins two processes, or two parts of one, by [`Link`]s. A link carries [`Frame`]s:
//! a short head and, behind it, a payload of opaque bytes. What heads and payloads mean is nobody's
//! business here. [`TRANSPORTS`] lists what there is; a transport is its file and its row.
//!
//! - **Sending never waits.** [`Link::send`] puts a frame into the link's queue, which is bounded by
//!   number and by bytes; one task for each link writes. Whoever computes does not touch the network.
//! - **Receiving places first.** [`Accept::accept`] sees the head and the length of a payload before
//!   memory is taken for it, and says where the bytes go; they are copied there as they come.
//! - **A link ends once**, with one reason, which both sides get to know: [`Accept::closed`], and every
//!   later [`Link::send`].
//!
//! ```
//! use std::sync::Arc;
//! use std::time::{Duration, Instant};
//!
//! use brigade_actors::transport::{
//!     Accept, Frame, Incoming, LinkError, TransportOptions, transport,
//! };
//!
//! /// Collects the payloads of a link.
//! struct Collect(crossbeam_channel::Sender<Vec<u8>>);
//! struct Payload(Vec<u8>, crossbeam_channel::Sender<Vec<u8>>);
//!
//! impl Accept for Collect {
//!     fn accept(&mut self, head: &[u8], length: u64) -> Result<Box<dyn Incoming>, LinkError> {
//!         if head != b"numbers" || length > 1024 {
//!             return Err(LinkError::Refused { why: "at most 1024 bytes of numbers".to_owned() });
//!         }
//!         Ok(Box::new(Payload(vec![0; length as usize], self.0.clone())))
//!     }
//!     fn closed(&mut self, _: LinkError) {}
//! }
//!
//! impl Incoming for Payload {
//!     fn buffer(&mut self) -> &mut [u8] {
//!         &mut self.0
//!     }
//!     fn complete(self: Box<Self>) {
//!         let _ = self.1.send(self.0);
//!     }
//! }
//!
//! let (sender, received) = crossbeam_channel::bounded(4);
//! let local = (transport("local").ok_or("not built")?.open)(&TransportOptions::new())?;
//! let link_of = sender.clone();
//! // The listener's side keeps its end of the link: dropping the last handle closes it.
//! let ends = Arc::new(std::sync::Mutex::new(Vec::new()));
//! let listening = local.listen("worker-0", Arc::new(move |link| {
//!     ends.lock().map_err(|_| LinkError::Lost { why: "poisoned".to_owned() })?.push(link);
//!     Ok(Box::new(Collect(link_of.clone())) as Box<dyn Accept>)
//! }))?;
//! let deadline = Instant::now() + Duration::from_secs(5);
//! let link = local.connect("worker-0", Box::new(Collect(sender)), deadline)?;
//! link.send(Frame::new(b"numbers".to_vec(), vec![1, 2, 3]))?;
//! assert_eq!(received.recv_deadline(deadline)?, [1, 2, 3]);
//! link.close();
//! listening.close();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#[cfg(feature = "grpc")]
pub mod authority;
#[cfg(feature = "grpc")]
mod certificate;
mod error;
// Its reader is a fuzz target in every build.
#[cfg_attr(not(feature = "grpc"), allow(dead_code))]
mod frame;
#[cfg(feature = "grpc")]
mod grpc;
mod intake;
mod link;
mod local;
mod options;
mod security;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

pub use error::LinkError;
pub use frame::LINK_VERSION;
#[doc(hidden)]
pub use frame::fuzz_frames;
pub use link::{Link, LinkCounters, Peer};
pub use options::{OnRefused, TransportOptions};
pub use security::Security;

/// The most bytes that the head of a frame may have: 64 KiB.
pub const HEAD_LIMIT: usize = 64 * 1024;

/// Bytes that a link can send as they lie, from whatever owns them.
///
/// ```
/// use brigade_actors::transport::Bytes;
///
/// assert_eq!(vec![1_u8, 2].bytes(), [1, 2]);
/// assert_eq!(std::sync::Arc::<[u8]>::from([3]).bytes(), [3]);
/// ```
pub trait Bytes: Send + Sync + 'static {
    /// The bytes. They are the same at each call.
    fn bytes(&self) -> &[u8];
}

impl Bytes for Vec<u8> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Bytes for Box<[u8]> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Bytes for &'static [u8] {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Bytes for Arc<[u8]> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

impl Bytes for Arc<Vec<u8>> {
    fn bytes(&self) -> &[u8] {
        self
    }
}

/// What a link carries: a head of at most [`HEAD_LIMIT`] bytes and, if there is one, a payload.
///
/// No payload and a payload of no bytes look the same to the peer.
pub struct Frame {
    /// What the payload is; opaque here.
    pub head: Vec<u8>,
    /// The payload; it is sent as it lies, and dropped when its bytes have left.
    pub payload: Option<Box<dyn Bytes>>,
}

impl Frame {
    /// A frame with a payload.
    #[must_use]
    pub fn new(head: Vec<u8>, payload: impl Bytes) -> Self {
        Self { head, payload: Some(Box::new(payload)) }
    }

    /// A frame that is a head alone.
    #[must_use]
    pub const fn head(head: Vec<u8>) -> Self {
        Self { head, payload: None }
    }

    /// The bytes of head and payload.
    pub(crate) fn size(&self) -> u64 {
        (self.head.len() + self.payload_bytes().len()) as u64
    }

    pub(crate) fn payload_bytes(&self) -> &[u8] {
        self.payload.as_ref().map_or(&[], |payload| payload.bytes())
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Frame")
            .field("head", &self.head.len())
            .field("payload", &self.payload_bytes().len())
            .finish()
    }
}

/// What takes the frames of one link, in order, on one thread at a time.
///
/// It runs on a thread of the transport, which serves other links too: it must not wait. A panic
/// in it ends the link.
pub trait Accept: Send + 'static {
    /// A head has come, with a payload of `length` bytes behind it. Decides where they go before any
    /// memory is taken for them.
    ///
    /// # Errors
    ///
    /// An error closes the link with that reason, and the peer gets to read it.
    fn accept(&mut self, head: &[u8], length: u64) -> Result<Box<dyn Incoming>, LinkError>;

    /// The link has ended. Called exactly once, last.
    fn closed(&mut self, why: LinkError);
}

/// Where the payload of one frame goes.
pub trait Incoming: Send {
    /// Whether the bytes are wanted. If not, they are let pass as they come, without memory for
    /// them: [`buffer`](Self::buffer) is not asked for.
    fn is_wanted(&self) -> bool {
        true
    }

    /// The buffer of exactly the length that was accepted. It is asked for once for each piece that
    /// comes, and must be the same one each time; not asked for at all where the length is 0.
    fn buffer(&mut self) -> &mut [u8];

    /// The buffer is full. If the link ends before that, the value is dropped instead.
    fn complete(self: Box<Self>);
}

/// Called for each peer that connects, after it has proved who it is and greeted: gives what takes
/// the frames of the link, or refuses with an error whose words the peer gets to read.
///
/// Runs on a thread of the transport, as [`Accept`] does. Whoever wants the link to last keeps the
/// [`Link`] or a clone of it.
pub type OnLink = Arc<dyn Fn(Link) -> Result<Box<dyn Accept>, LinkError> + Send + Sync>;

/// A way for processes to reach one another.
///
/// Dropping the last handle on a transport closes its links and listeners and ends its threads.
pub trait Transport: Send + Sync + fmt::Debug {
    /// Listens at an address until the value that is returned is closed or dropped.
    ///
    /// # Errors
    ///
    /// [`LinkError::Address`] if the address is none or taken; [`LinkError::Security`] if this
    /// security does not allow it, or its certificates cannot be used.
    fn listen(&self, address: &str, on_link: OnLink) -> Result<Box<dyn Listening>, LinkError>;

    /// Connects to a listener, once; waits for its answer until `deadline` at the latest. On an
    /// error `accept` is dropped without being called.
    ///
    /// # Errors
    ///
    /// [`LinkError`] says which of them: nobody there, no answer in time, another version, a
    /// certificate that is not trusted on either side, words of the peer's.
    fn connect(
        &self,
        address: &str,
        accept: Box<dyn Accept>,
        deadline: Instant,
    ) -> Result<Link, LinkError>;
}

/// A listener; closed when dropped.
pub trait Listening: Send {
    /// The address that peers connect to; with the port that was given where 0 was asked for.
    fn address(&self) -> String;

    /// What the health service answers: serving (as at first) or not. Links are accepted in any case.
    fn set_serving(&self, serving: bool);

    /// Takes no more peers and closes the links that came in through it, in bounded time.
    fn close(self: Box<Self>);
}

/// A row of [`TRANSPORTS`].
#[derive(Clone, Copy)]
pub struct TransportKind {
    /// The name, as the scheme of an address.
    pub name: &'static str,
    /// What it is, in a line.
    pub summary: &'static str,
    /// Makes one, with threads of its own.
    pub open: fn(&TransportOptions) -> Result<Arc<dyn Transport>, LinkError>,
}

impl fmt::Debug for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TransportKind").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The transports that are built in.
pub static TRANSPORTS: &[TransportKind] = &[
    TransportKind {
        name: "local",
        summary: "threads of one process; addresses are names",
        open: local::open,
    },
    #[cfg(feature = "grpc")]
    TransportKind {
        name: "grpc",
        summary: "gRPC over TCP, TLS 1.3 on both sides; addresses are host:port or name@host:port",
        open: grpc::open,
    },
];

/// The transport of this name, if it is built in.
///
/// ```
/// use brigade_actors::transport::transport;
///
/// assert_eq!(transport("local").map(|kind| kind.name), Some("local"));
/// assert!(transport("telegraph").is_none());
/// ```
#[must_use]
pub fn transport(name: &str) -> Option<&'static TransportKind> {
    TRANSPORTS.iter().find(|kind| kind.name == name)
}
