//! The side that listens.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener as StdListener, ToSocketAddrs as _};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body::{Body, Frame as HttpFrame};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, sleep, timeout_at};
use tokio_rustls::TlsAcceptor;
use tonic::codegen::Service as _;
use tonic::server::NamedService;
use tonic_health::pb::health_server::HealthServer;
use tonic_health::server::{HealthReporter, HealthService};

use super::super::OnLink;
use super::super::certificate;
use super::super::error::LinkError;
use super::super::frame;
use super::super::intake::{Intake, guarded};
use super::super::link::{Core, Link, Links, Peer};
use super::io::{Connection, Fault};
use super::runtime::Runtime;
use super::stream::{Outgoing, Piece, Places, Received};
use super::{Shared, http as settings, tls};
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, Receiver, Sender, bounded, lock};

/// How long the last bytes of a connection that was refused are waited for.
const LINGER: Duration = Duration::from_millis(500);

/// A listener.
pub(super) struct Listener {
    pub(super) address: SocketAddr,
    shared: Arc<Shared>,
    runtime: Arc<Runtime>,
    on_link: OnLink,
    links: Links,
    health: HealthReporter,
    /// Becomes true when the listener closes: nobody is let in, and connections end when what they
    /// have to say is said.
    closing: watch::Sender<bool>,
    /// Each task has a clone of the sender; closed when all tasks have ended.
    tasks: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

/// The name of the service for whoever asks the health service about it.
struct LinkService;

impl NamedService for LinkService {
    const NAME: &'static str = "brigade.v1.Link";
}

pub(super) fn listen(
    shared: &Arc<Shared>,
    runtime: &Arc<Runtime>,
    address: &str,
    on_link: OnLink,
) -> Result<Arc<Listener>, LinkError> {
    let refuse = |error: std::io::Error| LinkError::Address {
        address: address.to_owned(),
        why: error.to_string(),
    };
    let addresses: Vec<SocketAddr> = address.to_socket_addrs().map_err(refuse)?.collect();
    for address in &addresses {
        shared.allows(*address)?;
    }
    let socket = StdListener::bind(&addresses[..]).map_err(refuse)?;
    socket.set_nonblocking(true).map_err(refuse)?;
    let socket = runtime.enter(|| TcpListener::from_std(socket)).map_err(refuse)?;
    let (alive, ended) = bounded(0);
    let listener = Arc::new(Listener {
        address: socket.local_addr().map_err(refuse)?,
        shared: Arc::clone(shared),
        runtime: Arc::clone(runtime),
        on_link,
        links: Links::default(),
        health: HealthReporter::new(),
        closing: watch::Sender::new(false),
        tasks: Mutex::new(Some((alive.clone(), ended))),
    });
    listener.set_serving(true);
    runtime.spawn(take_peers(Arc::clone(&listener), socket, alive));
    Ok(listener)
}

impl Listener {
    pub(super) fn set_serving(&self, serving: bool) {
        let health = self.health.clone();
        self.runtime.spawn(async move {
            use tonic_health::ServingStatus::{NotServing, Serving};
            let status = if serving { Serving } else { NotServing };
            for service in ["", LinkService::NAME] {
                health.set_service_status(service, status).await;
            }
        });
    }

    /// Closes the socket, the links, and after that the connections.
    pub(super) fn close(&self) {
        let Some((alive, ended)) = lock(&self.tasks).take() else { return };
        drop(alive);
        let timeout = self.shared.options.close_timeout;
        self.closing.send_replace(true);
        self.links.close(timeout);
        if !self.runtime.is_here() {
            // Says "disconnected" when the last task has ended; they have deadlines of their own.
            let _ = ended.recv_timeout(timeout + LINGER);
        }
    }
}

/// A peer that is connected.
struct Conn {
    listener: Arc<Listener>,
    address: String,
    identity: Option<String>,
    fault: Fault,
    /// Held until the peer has greeted.
    permit: Mutex<Option<OwnedSemaphorePermit>>,
    /// Whether the connection has its link.
    taken: AtomicBool,
    /// The link is over, or was refused.
    over: Notify,
}

async fn take_peers(listener: Arc<Listener>, socket: TcpListener, alive: Sender<()>) {
    let mut closing = listener.closing.subscribe();
    let waiting = Arc::new(Semaphore::new(listener.shared.options.waiting.max(1)));
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            _ = closing.wait_for(|closing| *closing) => return,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(_) => {
                // The peer is gone already, or there are no more descriptors: others end in time.
                sleep(Duration::from_millis(20)).await;
                continue;
            }
        };
        match Arc::clone(&waiting).try_acquire_owned() {
            Ok(permit) => {
                let (listener, alive) = (Arc::clone(&listener), alive.clone());
                tokio::spawn(async move {
                    take_peer(listener, stream, address.to_string(), permit).await;
                    drop(alive);
                });
            }
            Err(_) => {
                drop(stream);
                let why = LinkError::Refused {
                    why: "too many peers are connected that have not greeted".to_owned(),
                };
                listener.shared.refused(&address.to_string(), &why);
            }
        }
    }
}

/// One peer, from its connection to its end.
async fn take_peer(
    listener: Arc<Listener>,
    stream: TcpStream,
    address: String,
    permit: OwnedSemaphorePermit,
) {
    let shared = Arc::clone(&listener.shared);
    let deadline = Instant::now() + shared.options.greeting_timeout;
    let (connection, identity) = match secure(&shared, stream, &address, deadline).await {
        Ok(secured) => secured,
        Err(why) => return shared.refused(&address, &why),
    };
    let conn = Arc::new(Conn {
        listener,
        address,
        identity,
        fault: connection.fault(),
        permit: Mutex::new(Some(permit)),
        taken: AtomicBool::new(false),
        over: Notify::new(),
    });
    serve(&conn, connection, deadline).await;
}

/// The connection after the handshake of TLS, if there is one, and who the peer is.
async fn secure(
    shared: &Shared,
    stream: TcpStream,
    address: &str,
    deadline: Instant,
) -> Result<(Connection, Option<String>), LinkError> {
    let lost = |error: std::io::Error| LinkError::Lost { why: error.to_string() };
    stream.set_nodelay(true).map_err(lost)?;
    let Some(tls) = &shared.tls else { return Ok((Connection::plain(stream), None)) };
    let (configs, stale) = tls.current_or_last();
    if let Some(why) = stale {
        shared.refused(address, &why);
    }
    let handshake = TlsAcceptor::from(configs.server).accept(stream).into_fallible();
    match timeout_at(deadline, handshake).await {
        Ok(Ok(stream)) => {
            let identity = certificate::identity(stream.get_ref().1.peer_certificates());
            Ok((Connection::tls(stream.into()), identity))
        }
        Ok(Err((error, stream))) => {
            linger(stream).await;
            Err(tls::explain(&error).unwrap_or_else(|| LinkError::Security {
                why: format!("the handshake of TLS failed: {error}"),
            }))
        }
        Err(_) => Err(LinkError::Timeout {
            what: "the peer's handshake of TLS".to_owned(),
            after: shared.options.greeting_timeout,
        }),
    }
}

/// Lets the peer read why it was refused: a socket that is closed with bytes unread takes back what
/// was written last.
async fn linger(mut stream: TcpStream) {
    let until = Instant::now() + LINGER;
    drop(stream.shutdown().await);
    let mut left = 64 * 1024_usize;
    let mut buffer = [0; 1024];
    while let Ok(Ok(read @ 1..)) = timeout_at(until, stream.read(&mut buffer)).await {
        left = left.saturating_sub(read);
        if left == 0 {
            return;
        }
    }
}

async fn serve(conn: &Arc<Conn>, connection: Connection, deadline: Instant) {
    let options = &conn.listener.shared.options;
    let health =
        HealthServer::new(HealthService::from_health_reporter(conn.listener.health.clone()));
    let service = {
        let conn = Arc::clone(conn);
        service_fn(move |request| {
            let (conn, health) = (Arc::clone(&conn), health.clone());
            async move { Ok::<_, Infallible>(answer(conn, health, request).await) }
        })
    };
    let http = settings::server(options).serve_connection(TokioIo::new(connection), service);
    let mut http = pin!(http);
    let mut closing = conn.listener.closing.subscribe();
    let mut alarm = pin!(tokio::time::sleep_until(deadline));
    let mut ending = false;
    loop {
        let greeted = conn.taken.load(Ordering::SeqCst);
        tokio::select! {
            ended = &mut http => {
                if let Err(error) = ended {
                    let why = settings::lost(&error, &conn.fault, options);
                    if !conn.taken.load(Ordering::SeqCst) {
                        conn.listener.shared.refused(&conn.address, &why);
                    }
                    // Before the connection is dropped, which its streams notice.
                    conn.fault.lost(why);
                }
                return;
            }
            () = &mut alarm, if ending || !greeted => {
                if !ending && !conn.taken.load(Ordering::SeqCst) {
                    let why = LinkError::Timeout {
                        what: "the peer to greet".to_owned(),
                        after: options.greeting_timeout,
                    };
                    conn.listener.shared.refused(&conn.address, &why);
                } else if !ending {
                    // It has greeted at the last moment.
                    continue;
                }
                // Before the connection is dropped, which its streams notice.
                conn.fault.lost(LinkError::Closed);
                return;
            }
            () = conn.over.notified(), if !ending => {
                alarm.as_mut().reset(Instant::now() + options.close_timeout);
            }
            _ = closing.wait_for(|closing| *closing), if !ending => {
                // The link has its own time to close, and ends with its own reason.
                alarm.as_mut().reset(Instant::now() + options.close_timeout + LINGER);
            }
        }
        ending = true;
        http.as_mut().graceful_shutdown();
    }
}

/// The answer to one call.
async fn answer(
    conn: Arc<Conn>,
    mut health: HealthServer<HealthService>,
    request: Request<Incoming>,
) -> Response<Answer> {
    let path = request.uri().path();
    if path.starts_with("/grpc.health.v1.Health/") {
        let Ok(response) = health.call(request).await;
        return response.map(|body| Answer::Health(Box::pin(body)));
    }
    if path != settings::PATH || request.method() != Method::POST {
        let mut response = Response::new(Answer::Nothing);
        *response.headers_mut() = settings::unimplemented();
        return response;
    }
    if !settings::is_grpc(request.headers()) {
        let mut response = Response::new(Answer::Nothing);
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return response;
    }
    let mut headers = HeaderMap::new();
    headers.insert(http::header::CONTENT_TYPE, settings::GRPC);
    let mut response = Response::new(Answer::Link(link(&conn, request.into_body()).await));
    *response.headers_mut() = headers;
    response
}

/// Lets a peer in, or says why not.
async fn link(conn: &Arc<Conn>, body: Incoming) -> Outgoing {
    let shared = Arc::clone(&conn.listener.shared);
    let options = &shared.options;
    let peer = Peer { address: conn.address.clone(), identity: conn.identity.clone() };
    let core = Core::new(peer, options);
    let places = Arc::new(Places::default());
    core.woken_by(Arc::clone(&places) as _);
    let greeting = frame::write_greeting(options.version, crate::RELEASE);
    let mut received = Received::new(body, conn.fault.clone());
    let refuse = |why: LinkError, greeting: Option<Vec<u8>>| {
        shared.refused(&conn.address, &why);
        core.end(why);
        // What was said goes out, then the connection is over.
        conn.over.notify_one();
        Outgoing::new(&core, &places, greeting, true)
    };
    let theirs = match received.greeting(options).await {
        Ok(theirs) => theirs,
        Err(why) => return refuse(why, None),
    };
    if let Err(why) = theirs.check(options.version) {
        return refuse(why, Some(greeting));
    }
    if *conn.listener.closing.borrow() {
        return refuse(LinkError::Refused { why: "the listener closes".to_owned() }, None);
    }
    if conn.taken.swap(true, Ordering::SeqCst) {
        return refuse(LinkError::Refused { why: "a connection has one link".to_owned() }, None);
    }
    drop(lock(&conn.permit).take());
    // Before anybody hears of the link: whoever closes the listener then closes it.
    conn.listener.links.add(&core);
    let link = Link::new(Arc::clone(&core));
    let on_link = &conn.listener.on_link;
    let accept = match guarded(|| on_link(link)).and_then(|taken| taken) {
        Ok(accept) => accept,
        Err(why) => return refuse(why, None),
    };
    let outgoing = Outgoing::new(&core, &places, Some(greeting), true);
    let (conn, shared) = (Arc::clone(conn), Arc::clone(&shared));
    let mut intake = Intake::new(accept, Arc::clone(&core));
    tokio::spawn(async move {
        let why = received.run(&core, &places, &mut intake, &shared.options).await;
        intake.closed(why);
        conn.over.notify_one();
    });
    outgoing
}

/// The body of an answer.
enum Answer {
    Link(Outgoing),
    Health(Pin<Box<tonic::body::Body>>),
    Nothing,
}

impl Body for Answer {
    type Data = Piece;
    type Error = tonic::Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<HttpFrame<Piece>, Self::Error>>> {
        match self.get_mut() {
            Self::Link(link) => {
                Pin::new(link).poll_frame(cx).map(|frame| frame.map(|f| f.map_err(|e| match e {})))
            }
            Self::Health(body) => body
                .as_mut()
                .poll_frame(cx)
                .map(|frame| frame.map(|f| f.map(|f| f.map_data(Piece::bare)))),
            Self::Nothing => Poll::Ready(None),
        }
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Nothing)
    }
}
