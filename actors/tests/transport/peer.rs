//! Both sides of links, as the tests want them.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use brigade_actors::transport::{
    Accept, Frame, Incoming, Link, LinkError, Listening, OnLink, Transport,
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};

/// What every wait of these tests is bounded by.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn soon() -> Instant {
    Instant::now() + PATIENCE
}

/// A transport for each side of the test's links.
pub(crate) struct Pair {
    pub(crate) server: Arc<dyn Transport>,
    pub(crate) client: Arc<dyn Transport>,
    /// Where to listen.
    pub(crate) address: &'static str,
}

impl Pair {
    /// Connects with somebody who takes everything.
    pub(crate) fn connect_to(&self, address: &str) -> Result<End, LinkError> {
        let (accept, events) = Taker::new();
        let link = self.client.connect(address, Box::new(accept), soon())?;
        Ok(End { link, events })
    }

    /// A listener and one link to it.
    pub(crate) fn link(&self) -> (End, End, Box<dyn Listening>) {
        let (on_link, ends) = taking();
        let listening = self.server.listen(self.address, on_link).unwrap();
        let near = self.connect_to(&listening.address()).unwrap();
        (near, ends.recv_timeout(PATIENCE).unwrap(), listening)
    }
}

#[derive(Debug)]
pub(crate) enum Event {
    Frame(Vec<u8>, Vec<u8>),
    Closed(LinkError),
}

/// One end of a link, and what has come there.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) link: Link,
    pub(crate) events: Receiver<Event>,
}

impl End {
    pub(crate) fn frame(&self) -> (Vec<u8>, Vec<u8>) {
        match self.events.recv_timeout(PATIENCE).unwrap() {
            Event::Frame(head, payload) => (head, payload),
            Event::Closed(why) => panic!("closed: {why}"),
        }
    }

    /// The end; frames before it are skipped. It comes once.
    pub(crate) fn closed(&self) -> LinkError {
        loop {
            if let Event::Closed(why) = self.events.recv_timeout(PATIENCE).unwrap() {
                // Whoever takes the frames is gone after that, so this does not wait.
                let after = self.events.recv_timeout(PATIENCE);
                assert_eq!(after.err(), Some(RecvTimeoutError::Disconnected), "after the end");
                return why;
            }
        }
    }

    /// As [`closed`](Self::closed), with nothing before it.
    pub(crate) fn closed_next(&self) -> LinkError {
        match self.events.recv_timeout(PATIENCE).unwrap() {
            Event::Closed(why) => why,
            Event::Frame(head, payload) => {
                panic!("a frame of {} and {} bytes before the end", head.len(), payload.len())
            }
        }
    }

    pub(crate) fn send(&self, head: &[u8], payload: Vec<u8>) {
        self.link.send(Frame::new(head.to_vec(), payload)).unwrap();
    }
}

/// Takes every frame.
pub(crate) struct Taker(Sender<Event>);

impl Taker {
    pub(crate) fn new() -> (Self, Receiver<Event>) {
        let (sender, events) = bounded(100_000);
        (Self(sender), events)
    }
}

impl Accept for Taker {
    fn accept(&mut self, head: &[u8], length: u64) -> Result<Box<dyn Incoming>, LinkError> {
        let payload = vec![0; usize::try_from(length).unwrap()];
        Ok(Box::new(Taken { head: head.to_vec(), payload, to: self.0.clone() }))
    }

    fn closed(&mut self, why: LinkError) {
        let _ = self.0.send(Event::Closed(why));
    }
}

struct Taken {
    head: Vec<u8>,
    payload: Vec<u8>,
    to: Sender<Event>,
}

impl Incoming for Taken {
    fn buffer(&mut self) -> &mut [u8] {
        &mut self.payload
    }

    fn complete(self: Box<Self>) {
        let _ = self.to.send(Event::Frame(self.head, self.payload));
    }
}

/// Takes every link, and gives its end away.
pub(crate) fn taking() -> (OnLink, Receiver<End>) {
    let (sender, ends) = bounded(1000);
    let on_link: OnLink = Arc::new(move |link| {
        let (accept, events) = Taker::new();
        sender.send(End { link, events }).map_err(|_| LinkError::Closed)?;
        Ok(Box::new(accept) as Box<dyn Accept>)
    });
    (on_link, ends)
}

/// Takes every link and keeps it.
pub(crate) fn quiet() -> OnLink {
    let kept = Mutex::new(Vec::new());
    Arc::new(move |link| {
        kept.lock().unwrap().push(link);
        Ok(Box::new(Taker::new().0) as Box<dyn Accept>)
    })
}

/// Takes every link, with what `make` gives for it; the link is kept.
pub(crate) fn with(make: impl Fn(&Link) -> Box<dyn Accept> + Send + Sync + 'static) -> OnLink {
    let kept = Mutex::new(Vec::new());
    Arc::new(move |link| {
        let accept = make(&link);
        kept.lock().unwrap().push(link);
        Ok(accept)
    })
}

/// Bytes that tell where they belong.
pub(crate) fn pattern(seed: usize, length: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(length + 8);
    let mut state = seed as u64 ^ 0x9e37_79b9_7f4a_7c15;
    while bytes.len() < length {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Waits until `ready`; panics at the deadline.
pub(crate) fn wait_for(what: &str, mut ready: impl FnMut() -> bool) {
    let deadline = soon();
    while !ready() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
