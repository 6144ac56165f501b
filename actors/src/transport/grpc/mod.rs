//! Links over gRPC: one HTTP/2 stream for each link, TLS 1.3 on both sides.
//!
//! A link is a call of `/brigade.v1.Link/Stream`, with messages each way as [`frame`](super::frame)
//! lays them out, on a TCP connection of its own. The standard health service answers on the same
//! port. Messages do not pass through protobuf, so that payloads are not copied for it.
//!
//! # Copies of a payload
//!
//! Counted in this process, beside the one that the system makes into and out of the socket:
//!
//! | | sender | receiver |
//! |---|---|---|
//! | bare rustls | 1: into records, encrypted there | 2: out of the records, into the buffer |
//! | a link with TLS | 1: the same | 3: out of the records, into a frame of HTTP/2, into [`Incoming::buffer`](super::Incoming::buffer) |
//! | a link without | 0 | 1: out of a frame of HTTP/2, which the system has filled |
//!
//! A test (`copies`) counts those of HTTP/2 as a share of the payload's bytes, by their addresses: the
//! sender's half a hundredth is the first 250 bytes or so of each frame, which HTTP/2 puts beside its
//! own; on the receiver's side up to a seventh is copied once more, where a frame had come in part.
//! What the system and rustls copy is not seen there.
//!
//! HTTP/2 gets the sender's bytes as they lie ([`Piece`](stream::Piece)), and they are dropped when it
//! has written them. The frames of HTTP/2 are small and taken soon (`http::FRAME`, `io::TURN`), so that
//! what is copied out of them is in the cache yet. `actors/benches/link.rs` measures what is left.
//!
//! # Threads
//!
//! A transport has a runtime of its own, on its own threads, so that it does not matter from what
//! runtime it is called. All methods of [`Transport`] are for ordinary threads: they wait.

mod client;
#[cfg(test)]
mod copies;
mod http;
mod io;
mod runtime;
mod server;
mod stream;
mod tls;

use std::fmt;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use super::error::LinkError;
use super::link::{Link, Links};
use super::options::TransportOptions;
use super::security::Security;
use super::{Accept, Listening, OnLink, Transport};
use crate::sync::{Arc, Mutex, RecvTimeoutError, Weak, bounded, lock};
use runtime::Runtime;
use tls::Tls;

/// The row's constructor.
pub(super) fn open(options: &TransportOptions) -> Result<Arc<dyn Transport>, LinkError> {
    let tls = Tls::new(&options.security)?;
    let runtime = Runtime::start(options.threads)?;
    Ok(Arc::new(Grpc {
        shared: Arc::new(Shared {
            options: options.clone(),
            tls,
            links: Links::default(),
            listeners: Mutex::new(Vec::new()),
        }),
        runtime: Arc::new(runtime),
    }))
}

struct Grpc {
    shared: Arc<Shared>,
    runtime: Arc<Runtime>,
}

/// What the tasks of a transport share.
struct Shared {
    options: TransportOptions,
    tls: Option<Tls>,
    /// The links that this side connected.
    links: Links,
    listeners: Mutex<Vec<Weak<server::Listener>>>,
}

impl Shared {
    /// Whether this security lets the address be used.
    fn allows(&self, address: SocketAddr) -> Result<(), LinkError> {
        if matches!(self.options.security, Security::Plaintext) && !address.ip().is_loopback() {
            return Err(LinkError::Security {
                why: format!(
                    "{address} is not a loopback address, and the transport is not encrypted: give it \
                     certificates (mutual TLS), or say that it is to be insecure"
                ),
            });
        }
        Ok(())
    }

    fn refused(&self, address: &str, why: &LinkError) {
        if let Some(on_refused) = &self.options.on_refused {
            // A panic of the user's is reported by the hook, and there is no link that it could end.
            let _ = super::intake::guarded(|| on_refused(address, why));
        }
    }
}

impl fmt::Debug for Grpc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grpc").field("options", &self.shared.options).finish_non_exhaustive()
    }
}

impl Drop for Grpc {
    fn drop(&mut self) {
        let listeners = std::mem::take(&mut *lock(&self.shared.listeners));
        for listener in listeners.iter().filter_map(Weak::upgrade) {
            listener.close();
        }
        self.shared.links.close(self.shared.options.close_timeout);
        self.runtime.stop();
    }
}

impl Transport for Grpc {
    fn listen(&self, address: &str, on_link: OnLink) -> Result<Box<dyn Listening>, LinkError> {
        let listener = server::listen(&self.shared, &self.runtime, address, on_link)?;
        let mut listeners = lock(&self.shared.listeners);
        listeners.retain(|listener| listener.strong_count() > 0);
        listeners.push(Arc::downgrade(&listener));
        Ok(Box::new(GrpcListening(listener)))
    }

    fn connect(
        &self,
        address: &str,
        accept: Box<dyn Accept>,
        deadline: Instant,
    ) -> Result<Link, LinkError> {
        if self.runtime.is_here() {
            return Err(LinkError::Unreachable {
                address: address.to_owned(),
                why:
                    "a thread of the transport cannot wait for a link: connect from another thread"
                        .to_owned(),
            });
        }
        let target = client::Target::parse(address)?;
        let begun = Instant::now();
        let (answer, answered) = bounded(1);
        let task = client::run(Arc::clone(&self.shared), target, accept, (begun, deadline), answer);
        self.runtime.spawn(task);
        // The task itself knows best what it was waiting for; this is for a thread that is stuck.
        match answered.recv_deadline(deadline + Duration::from_millis(200)) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => Err(LinkError::Timeout {
                what: format!("a thread of the transport to connect to {address}"),
                after: begun.elapsed(),
            }),
            Err(RecvTimeoutError::Disconnected) => Err(LinkError::Lost {
                why: "the task that connects has ended, or the transport with it".to_owned(),
            }),
        }
    }
}

struct GrpcListening(Arc<server::Listener>);

impl Drop for GrpcListening {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Listening for GrpcListening {
    fn address(&self) -> String {
        self.0.address.to_string()
    }

    fn set_serving(&self, serving: bool) {
        self.0.set_serving(serving);
    }

    fn close(self: Box<Self>) {}
}
