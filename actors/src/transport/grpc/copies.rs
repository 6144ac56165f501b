//! Counts, of a payload on its way through a link, the bytes that are somewhere else than before.
//!
//! Seen are both ends of HTTP/2: what is handed to the connection on one side, and where the connection
//! has put what comes out of HTTP/2 on the other. Not seen is what is beyond the connection: the copies
//! of the system into and out of its sockets and, with TLS, those into and out of records (one on each
//! side of rustls), which bare rustls makes, too. What [`Intake`](super::super::intake::Intake) copies
//! into the place that it is given is the one copy that comes after.

use std::convert::Infallible;
use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::net::Ipv4Addr;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http::{Method, Request, Response, Version};
use http_body::Body;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use super::super::Frame;
use super::super::authority::Authority;
use super::super::frame::{Decoder, Found};
use super::super::link::{Core, Link, Peer};
use super::super::options::TransportOptions;
use super::http as settings;
use super::io::Connection;
use super::stream::{Outgoing, Places};
use super::tls::Tls;
use crate::sync::{Arc, Mutex, lock};

/// What went through a connection.
#[derive(Debug, Default)]
struct Seen {
    /// Where the bytes lay that were written.
    written: Vec<Range<usize>>,
    /// What was read, and where the pieces of it were put.
    read: Vec<u8>,
    places: Vec<Range<usize>>,
}

/// A connection that is watched.
struct Watched(Connection, Arc<Mutex<Seen>>);

fn place(bytes: &[u8]) -> Range<usize> {
    let start = bytes.as_ptr() as usize;
    start..start + bytes.len()
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.0).poll_read(cx, buffer);
        let new = &buffer.filled()[before..];
        if !new.is_empty() {
            let mut seen = lock(&self.1);
            seen.read.extend_from_slice(new);
            seen.places.push(place(new));
        }
        result
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.0).poll_write_vectored(cx, pieces);
        if let &Poll::Ready(Ok(mut left)) = &result {
            let mut seen = lock(&self.1);
            for piece in pieces {
                let taken = left.min(piece.len());
                seen.written.push(place(&piece[..taken]));
                left -= taken;
            }
        }
        result
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Where in what a connection has read the bytes of its frames of data are.
fn data_of(read: &[u8]) -> Vec<Range<usize>> {
    const PREFACE: usize = 24;
    const DATA: u8 = 0;
    let mut found = Vec::new();
    let mut at = PREFACE;
    while let Some([l0, l1, l2, kind, ..]) = read.get(at..at + 9) {
        let length = u32::from_be_bytes([0, *l0, *l1, *l2]) as usize;
        if *kind == DATA && length > 0 {
            found.push(at + 9..at + 9 + length);
        }
        at += 9 + length;
    }
    found
}

/// How many bytes of a piece lie where the connection had put them.
fn in_place(piece: &[u8], at: Range<usize>, places: &[Range<usize>]) -> usize {
    assert_eq!(piece.len(), at.len());
    let (mut same, mut offset) = (0, 0);
    for put in places {
        let read = offset..offset + put.len();
        offset = read.end;
        let (from, to) = (read.start.max(at.start), read.end.min(at.end));
        if from < to && put.start + (from - read.start) == place(piece).start + (from - at.start) {
            same += to - from;
        }
    }
    same
}

/// Both ends of a connection.
async fn connected(secured: bool) -> (Connection, Connection) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (far, _) = listener.accept().await.unwrap();
    if !secured {
        return (Connection::plain(near), Connection::plain(far));
    }
    let hour = Duration::from_secs(3600);
    let authority = Authority::new("test", hour).unwrap();
    let side = |name: &str| {
        let issued = authority.issue(name, &["localhost"], hour).unwrap();
        Tls::new(&issued.security(&authority)).unwrap().unwrap().current().unwrap()
    };
    let (ours, theirs) = (side("near"), side("far"));
    let name = "localhost".try_into().unwrap();
    let (near, far) = tokio::join!(
        TlsConnector::from(ours.client).connect(name, near),
        TlsAcceptor::from(theirs.server).accept(far)
    );
    (Connection::tls(near.unwrap().into()), Connection::tls(far.unwrap().into()))
}

/// Of a payload that went through a link: the bytes that the sender wrote from where their owner has
/// them, and those that the receiver got where the connection had put them.
async fn moved(payload: &Arc<Vec<u8>>, secured: bool) -> (usize, usize) {
    let options = TransportOptions::new();
    let (near, far) = connected(secured).await;
    let seen = [Arc::default(), Arc::default()];
    let [near, far] =
        [(near, 0), (far, 1)].map(|(c, n)| TokioIo::new(Watched(c, Arc::clone(&seen[n]))));

    let (told, pieces) = tokio::sync::mpsc::unbounded_channel();
    let service = service_fn(move |request: Request<hyper::body::Incoming>| {
        let told = told.clone();
        async move {
            let mut body = request.into_body();
            while let Some(part) = poll_fn(|cx| Pin::new(&mut body).poll_frame(cx)).await {
                match part.unwrap().into_data() {
                    Ok(piece) if !piece.is_empty() => told.send(piece).unwrap(),
                    _ => {}
                }
            }
            Ok::<_, Infallible>(Response::new(String::new()))
        }
    });
    let server = tokio::spawn(settings::server(&options).serve_connection(far, service));

    let (mut requests, connection) = settings::client(&options).handshake(near).await.unwrap();
    let client = tokio::spawn(connection);
    let core = Core::new(Peer { address: "far".to_owned(), identity: None }, &options);
    let ways = Arc::new(Places::default());
    core.woken_by(Arc::clone(&ways) as _);
    let link = Link::new(Arc::clone(&core));
    link.send(Frame::new(b"head".to_vec(), Arc::clone(payload))).unwrap();
    link.close();
    let request = Request::builder()
        .method(Method::POST)
        .version(Version::HTTP_2)
        .uri("http://localhost/")
        .body(Outgoing::new(&core, &ways, None, false))
        .unwrap();
    drop(requests.send_request(request).await.unwrap());
    drop(requests);
    client.await.unwrap().unwrap();
    server.await.unwrap().unwrap();
    (from_the_owner(payload, &lock(&seen[0])), where_it_was_put(payload, pieces, &lock(&seen[1])))
}

fn from_the_owner(payload: &[u8], seen: &Seen) -> usize {
    let own = place(payload);
    let inside = seen.written.iter().filter(|w| own.start <= w.start && w.end <= own.end);
    inside.map(ExactSizeIterator::len).sum()
}

fn where_it_was_put(
    payload: &[u8],
    mut pieces: tokio::sync::mpsc::UnboundedReceiver<bytes::Bytes>,
    seen: &Seen,
) -> usize {
    let (mut decoder, mut whole, mut same) = (Decoder::default(), Vec::new(), 0);
    let data = data_of(&seen.read);
    let mut taken = 0;
    while let Ok(piece) = pieces.try_recv() {
        let at = data[taken].clone();
        taken += 1;
        assert_eq!(piece, seen.read[at.clone()]);
        let mut input = &piece[..];
        while let Some(found) = decoder.next(&mut input).unwrap() {
            // What the link hands to the place that it is given.
            if let Found::Payload(part) = found {
                let start = at.start + (place(part).start - place(&piece).start);
                same += in_place(part, start..start + part.len(), &seen.places);
                whole.extend_from_slice(part);
            }
        }
    }
    assert_eq!(taken, data.len());
    assert!(whole == payload, "other bytes than were sent");
    same
}

#[test]
fn a_payload_is_copied_about_once_between_its_owner_and_the_place_that_is_given() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    for secured in [false, true] {
        for size in [4_i32 << 10, 1 << 20, 16 << 20] {
            let payload: Vec<u8> = (0..size).map(|n| (n % 251) as u8 ^ (n >> 12) as u8).collect();
            let payload = Arc::new(payload);
            let (sent, received) = runtime.block_on(moved(&payload, secured));
            let share = |of: usize| of as f64 / f64::from(size);
            println!(
                "{size} bytes, TLS {secured}: copied {:.3} x by the sender, {:.3} x by the receiver",
                1.0 - share(sent),
                2.0 - share(received)
            );
            // HTTP/2 puts the first 250 bytes or so of each of its frames beside what it writes itself.
            assert!(share(sent) >= if size > 4096 { 0.99 } else { 0.9 }, "{sent} of {size}");
            // It moves what it has of a frame when it finds out how long that is; how much that is
            // depends on what the socket has when it is asked.
            assert!(share(received) >= 0.5, "{received} of {size}");
        }
    }
}
