//! The bytes of a connection, with or without TLS, and what became of them.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsStream;

use super::super::error::LinkError;
use super::tls;
use crate::sync::{Arc, Mutex, lock};

/// The first thing that went wrong with a connection. What HTTP/2 makes of it later does not tell.
#[derive(Clone, Debug, Default)]
pub(super) struct Fault(Arc<Mutex<Option<LinkError>>>);

impl Fault {
    pub(super) fn get(&self) -> Option<LinkError> {
        lock(&self.0).clone()
    }

    /// Notes why the connection as a whole has ended, if nothing else is known.
    pub(super) fn lost(&self, why: LinkError) {
        lock(&self.0).get_or_insert(why);
    }

    fn note(&self, error: &io::Error) {
        lock(&self.0).get_or_insert_with(|| {
            tls::explain(error).unwrap_or_else(|| LinkError::Lost { why: words(error) })
        });
    }

    fn note_end(&self) {
        lock(&self.0).get_or_insert_with(|| LinkError::Lost {
            why: "the peer's end of the connection is gone; did its process end?".to_owned(),
        });
    }

    fn seen<T>(&self, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &result {
            self.note(error);
        }
        result
    }
}

fn words(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => {
            format!("the peer's end of the connection is gone ({error}); did its process end?")
        }
        io::ErrorKind::UnexpectedEof => {
            "the peer's end of the connection is gone; did its process end?".to_owned()
        }
        _ => error.to_string(),
    }
}

/// How many bytes are read before the tasks that take them have their turn. Otherwise a connection
/// reads until its socket is empty or its runtime stops it, and its frames have left the cache by the
/// time that they are copied out.
const TURN: usize = 512 << 10;

/// The first byte of an alert of TLS, which no answer of HTTP/2 begins with: it would be a frame of more
/// than a megabyte.
const ALERT: u8 = 21;

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    bytes: Bytes,
    fault: Fault,
    /// What has been read since others had their turn.
    read: usize,
    /// It is plaintext, and nothing has been read yet.
    fresh: bool,
}

#[derive(Debug)]
enum Bytes {
    Plain(TcpStream),
    Tls(Box<TlsStream<TcpStream>>),
}

impl Connection {
    pub(super) fn plain(stream: TcpStream) -> Self {
        Self { bytes: Bytes::Plain(stream), fault: Fault::default(), read: 0, fresh: true }
    }

    pub(super) fn tls(stream: TlsStream<TcpStream>) -> Self {
        Self { bytes: Bytes::Tls(Box::new(stream)), fault: Fault::default(), read: 0, fresh: false }
    }

    pub(super) fn fault(&self) -> Fault {
        self.fault.clone()
    }
}

macro_rules! each {
    ($bytes:expr, $stream:ident => $call:expr) => {
        match $bytes {
            Bytes::Plain($stream) => {
                let $stream = Pin::new($stream);
                $call
            }
            Bytes::Tls($stream) => {
                let $stream = Pin::new(&mut **$stream);
                $call
            }
        }
    };
}

impl AsyncRead for Connection {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.read >= TURN {
            this.read = 0;
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let room = buffer.remaining();
        let result = each!(&mut this.bytes, stream => stream.poll_read(cx, buffer));
        match result {
            Poll::Ready(Ok(())) if room > 0 && buffer.filled().len() == before => {
                this.fault.note_end();
            }
            Poll::Ready(Ok(())) => {
                let first = buffer.filled().get(before);
                if std::mem::take(&mut this.fresh) && first == Some(&ALERT) {
                    this.fault.lost(LinkError::Security {
                        why: "the peer speaks TLS, and this side is plaintext".to_owned(),
                    });
                }
                this.read += buffer.filled().len() - before;
            }
            _ => this.read = 0,
        }
        this.fault.seen(result)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.fault.seen(each!(&mut this.bytes, stream => stream.poll_write(cx, bytes)))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        this.fault.seen(each!(&mut this.bytes, stream => stream.poll_write_vectored(cx, pieces)))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.fault.seen(each!(&mut this.bytes, stream => stream.poll_flush(cx)))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        each!(&mut this.bytes, stream => stream.poll_shutdown(cx))
    }
}
