//! Links over gRPC: one HTTP/2 stream for each link, TLS 1.3 on both sides.
//!
//! A link is a call of `/brigade.v1.Link/Stream`, with messages each way as [`frame`](super::frame)
//! lays them out, on a TCP connection of its own. The standard health service answers on the same
//! port. Messages do not pass through protobuf, so that payloads are not copied for it.
//!
//! # Copies of a payload
//!
//! Of the sender's bytes, in this process: HTTP/2 gets them as they lie ([`Piece`](stream::Piece)), so
//! without TLS the first copy is the system's, into the socket; with TLS rustls encrypts them into its
//! records (copy 1), which the system copies (2). Of the receiver's: the system copies out of the
//! socket (1); with TLS rustls decrypts where they lie and copies them out (2); HTTP/2 puts frames
//! together (3; without TLS it reads into there, so this is copy 1); and from there they are copied
//! once into [`Incoming::buffer`](super::Incoming::buffer) (4; without TLS 2). `actors/benches/link.rs`
//! measures what that costs.
//!
//! # Threads
//!
//! A transport has a runtime of its own, on its own threads, so that it does not matter from what
//! runtime it is called. All methods of [`Transport`] are for ordinary threads: they wait.

mod client;
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
use crate::sync::{Arc, Mutex, Weak, bounded, lock};
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
        answered.recv_deadline(deadline + Duration::from_millis(200)).unwrap_or_else(|_| {
            Err(LinkError::Timeout {
                what: format!("a thread of the transport to connect to {address}"),
                after: begun.elapsed(),
            })
        })
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
