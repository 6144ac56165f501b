//! Measuring the link to another worker: one of its own, for as long as that takes.

use std::collections::HashMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use brigade_actors::transport::{Accept, Incoming, LinkError};

use super::inbound::Nothing;
use super::lock;
use super::session::Session;
use crate::cluster::coordinator::{Noise, link_error};
use crate::cluster::measure::{ANSWER, measure};
use crate::cluster::message::{Measurement, Message};
use crate::error::{Result, err};

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);

#[derive(Debug, Default)]
struct Heard {
    /// When each token was answered.
    answers: HashMap<u64, Instant>,
    lost: Option<LinkError>,
}

/// What comes over the link, and whom it wakes.
#[derive(Debug, Default)]
struct Ear {
    heard: Mutex<Heard>,
    changed: Condvar,
}

struct Listener(Arc<Ear>);

impl Accept for Listener {
    fn accept(&mut self, head: &[u8], length: u64) -> Result<Box<dyn Incoming>, LinkError> {
        match Message::decode(head)? {
            Message::Pong { token, .. } if length == 0 => {
                lock(&self.0.heard).answers.insert(token, Instant::now());
                self.0.changed.notify_all();
                Ok(Box::new(Nothing))
            }
            _ => Err(LinkError::Malformed { why: "not an answer of a worker".to_owned() }),
        }
    }

    fn closed(&mut self, why: LinkError) {
        lock(&self.0.heard).lost.get_or_insert(why);
        self.0.changed.notify_all();
    }
}

/// Measures the link from this worker to another one.
pub(super) fn gauge(session: &Session, name: &str, address: &str) -> Result<Measurement> {
    let ear = Arc::new(Ear::default());
    let what = || format!("the worker `{name}` at {address}");
    let listener = Box::new(Listener(Arc::clone(&ear)));
    let transport = &session.worker.transport;
    let link = transport
        .connect(address, listener, Instant::now() + CONNECT)
        .map_err(|e| link_error(e).within(&what()))?;
    let head = session.gauge_greeting()?;
    let noise = Noise::longest();
    let mut token = 0;
    let mut round = |bytes: u64| -> Result<Duration> {
        token += 1;
        let frame = Noise::frame(&noise, bytes, token)?;
        let sent = Instant::now();
        link.send(frame).map_err(link_error)?;
        let mut heard = lock(&ear.heard);
        loop {
            if let Some(answered) = heard.answers.remove(&token) {
                return Ok(answered.duration_since(sent));
            }
            if let Some(why) = &heard.lost {
                return Err(link_error(why.clone()));
            }
            let left = ANSWER.saturating_sub(sent.elapsed());
            if session.is_ended() {
                return Err(err!(Stopped, "the session has ended"));
            }
            if left.is_zero() {
                return Err(err!(Deadline, "no answer within {ANSWER:?}"));
            }
            let wait = ear.changed.wait_timeout(heard, left.min(Duration::from_millis(100)));
            heard = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    };
    let greeted = link.send(brigade_actors::transport::Frame::head(head)).map_err(link_error);
    let measured = greeted.and_then(|()| measure(&mut round));
    link.close();
    measured.map_err(|e| e.within(&what()))
}
