//! A link on an HTTP/2 stream: one body that is sent, one that is received.

use std::convert::Infallible;
use std::future::{Future as _, poll_fn};
use std::io::IoSlice;
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};

use bytes::{Buf, Bytes};
use http_body::{Body, Frame as HttpFrame};
use hyper::body::Incoming;
use tokio::time::{Instant, Sleep, sleep_until};

use super::super::error::LinkError;
use super::super::frame::{self, Decoder, Found, Greeting, Kind};
use super::super::intake::Intake;
use super::super::link::{Core, Ending, Next, Woken};
use super::super::options::TransportOptions;
use super::super::{Bytes as Payload, Frame};
use super::http;
use super::io::Fault;
use crate::sync::{Arc, Mutex, lock};

/// Where a task waits to be woken.
#[derive(Debug, Default)]
struct Place(Mutex<Option<Waker>>);

impl Place {
    fn wait(&self, cx: &Context<'_>) {
        let mut waker = lock(&self.0);
        match &mut *waker {
            Some(waker) => waker.clone_from(cx.waker()),
            None => *waker = Some(cx.waker().clone()),
        }
    }

    fn wake(&self) {
        let waker = lock(&self.0).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Where the two tasks of a link wait.
#[derive(Debug, Default)]
pub(super) struct Places {
    writer: Place,
    reader: Place,
}

impl Woken for Places {
    fn queued(&self) {
        self.writer.wake();
    }

    fn closing(&self) {
        self.writer.wake();
        self.reader.wake();
    }
}

/// A message, as HTTP/2 gets it: what was written for it, and a payload as its owner has it.
#[derive(Debug)]
pub(super) struct Piece {
    head: Bytes,
    payload: Bytes,
}

impl Piece {
    pub(super) fn bare(head: impl Into<Bytes>) -> Self {
        Self { head: head.into(), payload: Bytes::new() }
    }

    fn of(frame: Frame, core: &Arc<Core>) -> Self {
        let size = frame.size();
        let length = frame.payload_bytes().len() as u64;
        let head = frame::write(Kind::Frame, &frame.head, length).into();
        // Counts as waiting until HTTP/2 lets go of it.
        let owner = Owner { payload: frame.payload, core: Arc::clone(core), size };
        if length == 0 {
            return Self { head, payload: Bytes::new() };
        }
        Self { head, payload: Bytes::from_owner(owner) }
    }
}

impl Buf for Piece {
    fn remaining(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    fn chunk(&self) -> &[u8] {
        if self.head.is_empty() { &self.payload } else { &self.head }
    }

    fn chunks_vectored<'a>(&'a self, into: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (place, bytes) in
            into.iter_mut().zip([&self.head, &self.payload].into_iter().filter(|b| !b.is_empty()))
        {
            *place = IoSlice::new(bytes);
            count += 1;
        }
        count
    }

    fn advance(&mut self, count: usize) {
        let of_head = count.min(self.head.len());
        self.head.advance(of_head);
        self.payload.advance(count - of_head);
    }
}

/// Owns a payload until its bytes have left.
struct Owner {
    payload: Option<Box<dyn Payload>>,
    core: Arc<Core>,
    size: u64,
}

impl AsRef<[u8]> for Owner {
    fn as_ref(&self) -> &[u8] {
        self.payload.as_ref().map_or(&[], |payload| payload.bytes())
    }
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.payload = None;
        self.core.left(self.size);
    }
}

/// What is sent: a greeting, frames out of the link's queue, an end.
#[derive(Debug)]
pub(super) struct Outgoing {
    core: Arc<Core>,
    places: Arc<Places>,
    first: Option<Bytes>,
    /// What the link has ended with, once that is sent.
    told: Option<LinkError>,
    /// Whether the stream ends with the status of a call, as on the side that was called.
    status: bool,
    over: bool,
}

impl Outgoing {
    pub(super) fn new(
        core: &Arc<Core>,
        places: &Arc<Places>,
        greeting: Option<Vec<u8>>,
        status: bool,
    ) -> Self {
        Self {
            core: Arc::clone(core),
            places: Arc::clone(places),
            first: greeting.map(Bytes::from),
            told: None,
            status,
            over: false,
        }
    }
}

impl Body for Outgoing {
    type Data = Piece;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<HttpFrame<Piece>, Infallible>>> {
        let data = |piece| Poll::Ready(Some(Ok(HttpFrame::data(piece))));
        if let Some(first) = self.first.take() {
            return data(Piece::bare(first));
        }
        if let Some(why) = &self.told {
            if self.over || !self.status {
                return Poll::Ready(None);
            }
            let trailers = http::status(why);
            self.over = true;
            return Poll::Ready(Some(Ok(HttpFrame::trailers(trailers))));
        }
        // Before looking, so that what comes after the look wakes.
        self.places.writer.wait(cx);
        match self.core.next() {
            Next::Frame(frame) => data(Piece::of(frame, &self.core)),
            Next::Idle => Poll::Pending,
            Next::Close(why) | Next::Ended(why) => {
                let end = frame::write_end(&why);
                self.told = Some(why);
                data(Piece::bare(end))
            }
        }
    }
}

/// What is received.
pub(super) struct Received {
    body: Incoming,
    fault: Fault,
    decoder: Decoder,
    /// Came in one piece with the greeting.
    rest: Option<Bytes>,
    /// Until when a close waits for the peer's end.
    close_by: Option<Instant>,
}

impl Received {
    pub(super) fn new(body: Incoming, fault: Fault) -> Self {
        Self { body, fault, decoder: Decoder::default(), rest: None, close_by: None }
    }

    /// The greeting; an error where the peer refuses instead.
    pub(super) async fn greeting(
        &mut self,
        options: &TransportOptions,
    ) -> Result<Greeting, LinkError> {
        loop {
            let chunk = poll_fn(|cx| self.poll_chunk(cx, options)).await?;
            let mut input = &chunk[..];
            if let Some(found) = self.decoder.next(&mut input)? {
                let rest = chunk.slice(chunk.len() - input.len()..);
                self.rest = Some(rest).filter(|rest| !rest.is_empty());
                return match found {
                    Found::Head(Kind::Greeting, _) => frame::read_greeting(self.decoder.head()),
                    Found::Head(Kind::End, _) => Err(frame::read_end(self.decoder.head())?),
                    _ => Err(LinkError::Malformed {
                        why: "the peer does not begin with a greeting".to_owned(),
                    }),
                };
            }
        }
    }

    /// The next bytes; an error when there are no more.
    fn poll_chunk(
        &mut self,
        cx: &mut Context<'_>,
        options: &TransportOptions,
    ) -> Poll<Result<Bytes, LinkError>> {
        if let Some(rest) = self.rest.take() {
            return Poll::Ready(Ok(rest));
        }
        loop {
            let result = match std::task::ready!(Pin::new(&mut self.body).poll_frame(cx)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(data) => Ok(data),
                    // The status of the call, which says no more than the end before it.
                    Err(_) => continue,
                },
                Some(Err(error)) => Err(http::lost(&error, &self.fault, options)),
                None => Err(self.fault.get().unwrap_or_else(|| LinkError::Lost {
                    why: "the peer ended the stream without a word".to_owned(),
                })),
            };
            return Poll::Ready(result);
        }
    }

    /// Hands frames on until the link ends; the reason is the one that the link has.
    pub(super) async fn run(
        mut self,
        core: &Arc<Core>,
        places: &Arc<Places>,
        intake: &mut Intake,
        options: &TransportOptions,
    ) -> LinkError {
        loop {
            let chunk = match self.chunk(core, places, options).await {
                Ok(chunk) => chunk,
                Err(why) => return core.end(why),
            };
            match self.hand_on(&chunk, intake) {
                Ok(None) => {}
                Ok(Some(why)) | Err(why) => return core.end(why),
            }
        }
    }

    /// What a chunk holds; the reason of the end if it holds one.
    fn hand_on(
        &mut self,
        chunk: &[u8],
        intake: &mut Intake,
    ) -> Result<Option<LinkError>, LinkError> {
        let mut input = chunk;
        while let Some(found) = self.decoder.next(&mut input)? {
            match found {
                Found::Head(Kind::Frame, length) => intake.head(self.decoder.head(), length)?,
                Found::Payload(piece) => intake.payload(piece)?,
                Found::Head(Kind::End, _) => {
                    return frame::read_end(self.decoder.head()).map(Some);
                }
                Found::Head(Kind::Greeting, _) => {
                    return Err(LinkError::Malformed { why: "a second greeting".to_owned() });
                }
            }
        }
        Ok(None)
    }

    /// The next bytes. Ends when the link does, when a frame that has begun does not go on, and when a
    /// close takes too long.
    async fn chunk(
        &mut self,
        core: &Core,
        places: &Places,
        options: &TransportOptions,
    ) -> Result<Bytes, LinkError> {
        let mut alarm = pin!(None::<Sleep>);
        let mut stalled = false;
        poll_fn(|cx| {
            // Before looking, so that what comes after the look wakes.
            places.reader.wait(cx);
            match core.ending() {
                Ending::No => {}
                Ending::Closing => {
                    let by = *self.close_by.get_or_insert(Instant::now() + options.close_timeout);
                    if Instant::now() >= by {
                        return Poll::Ready(Err(LinkError::Closed));
                    }
                    if stalled || alarm.is_none() {
                        stalled = false;
                        alarm.set(Some(sleep_until(by)));
                    }
                }
                Ending::Ended(why) => return Poll::Ready(Err(why)),
            }
            if let Poll::Ready(result) = self.poll_chunk(cx, options) {
                return Poll::Ready(result);
            }
            if alarm.is_none() && self.decoder.is_amid() {
                stalled = true;
                alarm.set(Some(sleep_until(Instant::now() + options.progress_timeout)));
            }
            let Some(sleep) = alarm.as_mut().as_pin_mut() else { return Poll::Pending };
            std::task::ready!(sleep.poll(cx));
            Poll::Ready(Err(if stalled {
                LinkError::Lost {
                    why: format!(
                        "the peer has begun a frame and sent nothing of it for {:?}",
                        options.progress_timeout
                    ),
                }
            } else {
                LinkError::Closed
            }))
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_piece_is_its_head_and_its_payload() {
        for cut in 0..=9 {
            let mut piece =
                Piece { head: Bytes::from_static(b"head"), payload: Bytes::from_static(b"bytes") };
            piece.advance(cut);
            assert_eq!(piece.remaining(), 9 - cut);
            let mut into = [IoSlice::new(&[]); 4];
            let count = piece.chunks_vectored(&mut into);
            let joined: Vec<u8> = into[..count].iter().flat_map(|s| s.to_vec()).collect();
            assert_eq!(joined, b"headbytes"[cut..]);
            assert_eq!(piece.copy_to_bytes(9 - cut), b"headbytes"[cut..]);
        }
    }
}
