//! What is known of the links between workers and to them: measured when somebody wants to know, or
//! stated.

use std::sync::Arc;
use std::time::{Duration, Instant};

use brigade_actors::transport::{Bytes, Frame};
use serde::Serialize;

use super::hub::Hub;
use super::state::Reply;
use crate::cluster::measure::{ANSWER, measure};
use crate::cluster::message::{MAX_PROBE_BYTES, Measurement, Message};
use crate::device::{DeviceId, LinkFigures};
use crate::error::{Result, bail, err};

/// A link of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LinkReport {
    /// One end: a worker, or the coordinator by its own name.
    pub from: String,
    /// The other end.
    pub to: String,
    /// What a small message takes, one way, in microseconds: half of the median there and back.
    pub latency_us: f64,
    /// Bytes that go over in a second.
    pub bytes_per_s: u64,
    /// Why it could not be measured, if that is so; then the figures mean nothing.
    pub failed: Option<String>,
}

/// Bytes that mean nothing, shared by all probes of a measurement.
pub(crate) struct Noise {
    all: Arc<Vec<u8>>,
    length: usize,
}

impl Noise {
    /// The bytes of the longest probe, of which each sends what it needs.
    pub(crate) fn longest() -> Arc<Vec<u8>> {
        Arc::new(vec![0x5A; MAX_PROBE_BYTES as usize])
    }

    /// What is sent to see how long so many bytes take: a ping for none.
    pub(crate) fn frame(all: &Arc<Vec<u8>>, bytes: u64, token: u64) -> Result<Frame> {
        if bytes == 0 {
            return Ok(Frame::head(Message::Ping { token }.encode()?));
        }
        let length = usize::try_from(bytes).unwrap_or(all.len()).min(all.len());
        let head = Message::Probe { token }.encode()?;
        Ok(Frame::new(head, Self { all: Arc::clone(all), length }))
    }
}

impl Bytes for Noise {
    fn bytes(&self) -> &[u8] {
        self.all.get(..self.length).unwrap_or(&self.all)
    }
}

impl Measurement {
    fn figures(self) -> LinkFigures {
        LinkFigures::new(Duration::from_nanos(self.latency_ns), self.bytes_per_s)
    }
}

impl Hub {
    /// The ends of the way between two devices, and its name; `None` where it is within one memory.
    fn ends<'a>(
        &'a self,
        a: &'a DeviceId,
        b: &'a DeviceId,
    ) -> Option<(&'a str, &'a str, (String, String))> {
        let own = self.options.name.as_str();
        let (a, b) = (a.worker().unwrap_or(own), b.worker().unwrap_or(own));
        let key = if a < b { (a.to_owned(), b.to_owned()) } else { (b.to_owned(), a.to_owned()) };
        (a != b).then_some((a, b, key))
    }

    /// What is known of the way between two devices by now.
    pub(super) fn known_link(&self, a: &DeviceId, b: &DeviceId) -> Option<LinkFigures> {
        let (_, _, key) = self.ends(a, b)?;
        self.state().links.get(&key)?.as_ref().ok().copied()
    }

    /// What the way between two devices takes; `None` if it is none, or cannot be measured.
    pub(super) fn link(&self, a: &DeviceId, b: &DeviceId) -> Option<LinkFigures> {
        let (a, b, key) = self.ends(a, b)?;
        let stated = self.options.links.iter().rev();
        let mut stated = stated.filter(|(x, y, _)| (x == a && y == b) || (x == b && y == a));
        if let Some(known) = self.state().links.get(&key) {
            return known.as_ref().ok().copied();
        }
        let found = match stated.next() {
            Some((_, _, figures)) => Ok(*figures),
            None => self.measured(a, b),
        };
        let found = found.map_err(|e| e.headline());
        self.state().links.insert(key, found.clone());
        found.ok()
    }

    /// The links that somebody wanted to know of.
    pub(super) fn links(&self) -> Vec<LinkReport> {
        let report = |((from, to), found): (&(String, String), &Result<LinkFigures, String>)| {
            let known = found.as_ref().ok();
            LinkReport {
                from: from.clone(),
                to: to.clone(),
                latency_us: known.map_or(0.0, |l| l.latency().as_secs_f64() * 1e6),
                bytes_per_s: known.map_or(0, LinkFigures::bytes_per_s),
                failed: found.as_ref().err().cloned(),
            }
        };
        self.state().links.iter().map(report).collect()
    }

    fn measured(&self, a: &str, b: &str) -> Result<LinkFigures> {
        let place = |name: &str| {
            let state = self.state();
            let at = state.workers.iter().position(|w| w.name == name && !w.here);
            let address = at.map(|at| state.workers[at].address.clone());
            at.zip(address)
        };
        match (place(a), place(b)) {
            (Some((from, _)), Some((_, address))) => {
                let to = (b.to_owned(), address);
                let ask = |ticket| Message::Measure { ticket, to: to.clone() };
                match self.ask(from, &ask, None)? {
                    Reply::Measured(found) => Ok(found.figures()),
                    _ => bail!(Internal, "worker `{a}` did not answer what was asked"),
                }
            }
            (Some((worker, _)), None) | (None, Some((worker, _))) => self.measure_own(worker),
            (None, None) => bail!(Device, "there is no link between `{a}` and `{b}`"),
        }
    }

    /// Measures the link to a worker.
    fn measure_own(&self, worker: usize) -> Result<LinkFigures> {
        let noise = Noise::longest();
        let round = |bytes: u64| -> Result<Duration> {
            let mut state = self.state();
            let token = state.number();
            let w = &state.workers[worker];
            let Some(link) = w.link.clone().filter(|_| w.is_up()) else {
                return Err(w.unreached());
            };
            state.probes.insert(token, None);
            drop(state);
            let frame = Noise::frame(&noise, bytes, token)?;
            let sent = Instant::now();
            let told = link.send(frame).map_err(super::link_error);
            let mut state = self.state();
            loop {
                if let Some(Some(answered)) = state.probes.get(&token) {
                    let took = answered.duration_since(sent);
                    state.probes.remove(&token);
                    return Ok(took);
                }
                let w = &state.workers[worker];
                let failed = if state.closed {
                    Some(err!(Stopped, "the cluster was closed"))
                } else if !w.is_up() {
                    Some(w.unreached())
                } else if let Err(e) = &told {
                    Some(e.clone())
                } else if sent.elapsed() > ANSWER {
                    Some(err!(Deadline, "worker `{}` did not answer within {ANSWER:?}", w.name))
                } else {
                    None
                };
                if let Some(error) = failed {
                    state.probes.remove(&token);
                    return Err(error);
                }
                state = self.wait(state);
            }
        };
        measure(round).map(Measurement::figures)
    }
}
