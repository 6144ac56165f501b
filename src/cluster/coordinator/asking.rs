//! What the coordinator asks of workers and waits for: questions with a ticket, and their answers.

use std::sync::Arc;
use std::time::Instant;

use brigade_actors::transport::{Frame, Link};

use super::hub::Hub;
use super::state::{Life, Reply};
use crate::cluster::message::Message;
use crate::cluster::question;
use crate::device::{DeviceId, Support};
use crate::error::{Result, bail, err};
use crate::graph::{Fact, Node};

impl Hub {
    /// Asks a worker something and waits for its answer.
    pub(super) fn ask(
        &self,
        worker: usize,
        message: &dyn Fn(u64) -> Message,
        payload: Option<&Arc<Vec<u8>>>,
    ) -> Result<Reply> {
        let tell = |link: &Link, ticket: u64| {
            // A link that has ended says so by itself, and the question is asked once more.
            if let Ok(head) = message(ticket).encode() {
                let _ = link.send(match payload {
                    Some(bytes) => Frame::new(head, Arc::clone(bytes)),
                    None => Frame::head(head),
                });
            }
        };
        let mut state = self.state();
        let ticket = state.number();
        state.tickets.insert(ticket, None);
        let mut generation = 0;
        let until = Instant::now() + self.options.lease * 2 + self.options.connect;
        loop {
            let w = &state.workers[worker];
            // Asked once on each link: an answer may have been lost with the one before.
            if w.is_up() && w.generation != generation {
                generation = w.generation;
                if let Some(link) = &w.link {
                    tell(link, ticket);
                }
            }
            if let Some(Some(_)) = state.tickets.get(&ticket) {
                return state.tickets.remove(&ticket).flatten().unwrap_or(Ok(Reply::Settled));
            }
            let name = &state.workers[worker].name;
            let failed = match &state.workers[worker].life {
                Life::Lost { why, .. } => Some(err!(Device, "worker `{name}` was lost: {why}")),
                _ if state.closed => Some(err!(Stopped, "the cluster was closed")),
                _ if Instant::now() >= until => {
                    Some(err!(Deadline, "worker `{name}` did not answer in time"))
                }
                _ => None,
            };
            if let Some(error) = failed {
                state.tickets.remove(&ticket);
                return Err(error);
            }
            state = self.wait(state);
        }
    }

    /// Whether a device of a worker runs each of these nodes: what the worker says.
    pub(super) fn supports(
        &self,
        device: &DeviceId,
        wanted: &str,
        nodes: &[(&Node, Vec<Option<Fact>>)],
    ) -> Result<Vec<Support>> {
        let state = self.state();
        let worker = state.workers.iter().position(|w| Some(w.name.as_str()) == device.worker());
        drop(state);
        let Some(worker) = worker else { bail!(Device, "there is no worker for `{device}`") };
        let mut out = Vec::with_capacity(nodes.len());
        for (count, bytes) in question::questions(nodes)? {
            let ask = |ticket| Message::Supports { ticket, device: wanted.to_owned() };
            match self.ask(worker, &ask, Some(&Arc::new(bytes)))? {
                Reply::Supported(answers) if answers.len() == count => {
                    out.extend(answers.into_iter().map(Support::from));
                }
                _ => bail!(Internal, "the worker of `{device}` did not answer what was asked"),
            }
        }
        Ok(out)
    }
}
