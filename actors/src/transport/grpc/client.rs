//! The side that connects.

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Instant;

use http::{Method, Request, StatusCode, Version};
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, lookup_host};
use tokio::task::JoinHandle;
use tokio::time::{timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;

use super::super::Accept;
use super::super::certificate;
use super::super::error::LinkError;
use super::super::frame;
use super::super::intake::Intake;
use super::super::link::{Core, Link, Peer};
use super::io::Connection;
use super::stream::{Outgoing, Places, Received};
use super::{Shared, http as settings, tls};
use crate::sync::{Arc, AtomicUsize, Ordering, Sender};

/// Whom to connect to: `host:port`, or `name@host:port` where the peer's certificate is for another
/// name than the host's.
#[derive(Clone, Debug)]
pub(super) struct Target {
    /// As it was given.
    address: String,
    /// What is dialled.
    dialled: String,
    name: ServerName<'static>,
}

impl Target {
    pub(super) fn parse(address: &str) -> Result<Self, LinkError> {
        let refuse = |why: &str| {
            Err(LinkError::Address { address: address.to_owned(), why: why.to_owned() })
        };
        let (name, dialled) = match address.split_once('@') {
            Some((name, dialled)) => (Some(name), dialled),
            None => (None, address),
        };
        let Some((host, port)) = dialled.rsplit_once(':') else {
            return refuse("write it as host:port");
        };
        if !port.parse::<u16>().is_ok_and(|port| port > 0) {
            return refuse("the port has to be a number from 1 to 65535");
        }
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let Ok(name) = ServerName::try_from(name.unwrap_or(host).to_owned()) else {
            return refuse("that is neither a name nor an IP address");
        };
        Ok(Self { address: address.to_owned(), dialled: dialled.to_owned(), name })
    }
}

/// What a connect is waiting for, in order.
const STEPS: [&str; 4] =
    ["the address to be resolved", "a connection", "the handshake of TLS", "the peer to greet"];

/// A link that stands.
struct Opened {
    core: Arc<Core>,
    places: Arc<Places>,
    received: Received,
    /// Keeps the connection.
    requests: SendRequest<Outgoing>,
    connection: JoinHandle<()>,
}

/// Connects, says how that went, and carries the link to its end.
pub(super) async fn run(
    shared: Arc<Shared>,
    target: Target,
    accept: Box<dyn Accept>,
    (begun, deadline): (Instant, Instant),
    answer: Sender<Result<Link, LinkError>>,
) {
    let step = AtomicUsize::new(0);
    let opened = match timeout_at(deadline.into(), open(&shared, &target, &step)).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(why)) => {
            drop(accept);
            let _ = answer.send(Err(why));
            return;
        }
        Err(_) => {
            drop(accept);
            let what = STEPS[step.load(Ordering::Relaxed)];
            let what = format!("{what}, at {}", target.address);
            let _ = answer.send(Err(LinkError::Timeout { what, after: begun.elapsed() }));
            return;
        }
    };
    let Opened { core, places, received, requests, connection } = opened;
    shared.links.add(&core);
    let mut intake = Intake::new(accept, Arc::clone(&core));
    // Where nobody waits any more, the handle is dropped, which closes the link.
    drop(answer.send(Ok(Link::new(Arc::clone(&core)))));
    drop(answer);
    let options = &shared.options;
    let why = received.run(&core, &places, &mut intake, options).await;
    intake.closed(why);
    // What the writer still has to say goes out; then the connection ends of itself.
    drop(requests);
    let abort = connection.abort_handle();
    if timeout(options.close_timeout, connection).await.is_err() {
        abort.abort();
    }
}

async fn open(shared: &Shared, target: &Target, step: &AtomicUsize) -> Result<Opened, LinkError> {
    let options = &shared.options;
    let unreachable = |error: &io::Error| LinkError::Unreachable {
        address: target.address.clone(),
        why: error.to_string(),
    };
    let addresses: Vec<SocketAddr> =
        lookup_host(&target.dialled).await.map_err(|error| unreachable(&error))?.collect();
    for address in &addresses {
        shared.allows(*address)?;
    }
    step.store(1, Ordering::Relaxed);
    let stream = first(&addresses).await.map_err(|error| unreachable(&error))?;
    stream.set_nodelay(true).map_err(|error| unreachable(&error))?;
    step.store(2, Ordering::Relaxed);
    let (connection, identity) = match &shared.tls {
        None => (Connection::plain(stream), None),
        Some(tls) => {
            let connector = TlsConnector::from(tls.current()?.client);
            let stream = connector.connect(target.name.clone(), stream).await.map_err(|error| {
                tls::explain(&error).unwrap_or_else(|| LinkError::Security {
                    why: format!("the handshake of TLS failed: {error}"),
                })
            })?;
            let identity = certificate::identity(stream.get_ref().1.peer_certificates());
            (Connection::tls(stream.into()), identity)
        }
    };
    step.store(3, Ordering::Relaxed);
    let fault = connection.fault();
    let lost = |error: &hyper::Error| match settings::lost(error, &fault, options) {
        LinkError::Lost { why } if shared.tls.is_none() => {
            LinkError::Lost { why: format!("{why}; or does the peer want TLS?") }
        }
        why => why,
    };
    let (mut requests, connection) = settings::client(options)
        .handshake(TokioIo::new(connection))
        .await
        .map_err(|error| lost(&error))?;
    let connection = {
        let (fault, options) = (fault.clone(), options.clone());
        Aborting(Some(tokio::spawn(async move {
            let mut connection = pin!(connection);
            if let Err(error) = connection.as_mut().await {
                // Before the connection is dropped, which its streams notice.
                fault.lost(settings::lost(&error, &fault, &options));
            }
        })))
    };
    let core = Core::new(Peer { address: target.address.clone(), identity }, options);
    let places = Arc::new(Places::default());
    core.woken_by(Arc::clone(&places) as _);
    let greeting = frame::write_greeting(options.version, crate::RELEASE);
    let scheme = if shared.tls.is_some() { "https" } else { "http" };
    let request = Request::builder()
        .method(Method::POST)
        .version(Version::HTTP_2)
        .uri(format!("{scheme}://{}{}", target.dialled, settings::PATH))
        .header(http::header::CONTENT_TYPE, settings::GRPC)
        .header(http::header::TE, "trailers")
        .body(Outgoing::new(&core, &places, Some(greeting), false))
        .map_err(|error| LinkError::Address {
            address: target.address.clone(),
            why: error.to_string(),
        })?;
    let response = requests.send_request(request).await.map_err(|error| lost(&error))?;
    if response.status() != StatusCode::OK || !settings::is_grpc(response.headers()) {
        return Err(LinkError::Malformed {
            why: format!("the peer answers {}: it is not a worker of this kind", response.status()),
        });
    }
    if let Some(status) = response.headers().get("grpc-status") {
        return Err(LinkError::Malformed {
            why: format!(
                "the peer answers with the status {} of gRPC: it is not a worker of this kind",
                status.to_str().unwrap_or("?")
            ),
        });
    }
    let mut received = Received::new(response.into_body(), fault.clone());
    let greeting = received.greeting(options).await?;
    greeting.check(options.version)?;
    Ok(Opened { core, places, received, requests, connection: connection.keep()? })
}

/// A task that ends when it is not kept.
struct Aborting(Option<JoinHandle<()>>);

impl Aborting {
    fn keep(mut self) -> Result<JoinHandle<()>, LinkError> {
        self.0.take().ok_or(LinkError::Closed)
    }
}

impl Drop for Aborting {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
        }
    }
}

/// A connection to the first of the addresses that takes one.
async fn first(addresses: &[SocketAddr]) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, "the name has no address");
    for address in addresses {
        match TcpStream::connect(address).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}
