//! The ways that tensors go from worker to worker.

use std::sync::Arc;

use super::hub::Hub;
use super::state::{Life, Phase, State};
use crate::cluster::message::Message;
use crate::error::{Result, bail, err};

impl Hub {
    /// An output of one stage goes to an input of another, from worker to worker.
    pub(super) fn connect(&self, from: u64, output: usize, to: u64, input: usize) -> Result<()> {
        let mut state = self.state();
        let (Some(producer), Some(reader)) = (state.stages.get(&from), state.stages.get(&to))
        else {
            bail!(Stopped, "the stage was ended")
        };
        let made = producer.outputs.get(output);
        let read = reader.inputs.get(input);
        let (Some((name, made)), Some((_, read))) = (made, read) else {
            bail!(Internal, "a stage has no output {output}, or the next no input {input}")
        };
        if !made.agrees_with(read) {
            let (a, b) = (state.device_of(producer), state.device_of(reader));
            return Err(err!(
                Shape,
                "the stages do not agree on `{name}`: `{}` on {a} makes {made}, `{}` on {b} reads {read}",
                producer.name,
                reader.name
            ));
        }
        let output = output as u32;
        let Some(producer) = state.stages.get_mut(&from) else { return Ok(()) };
        let readers = producer.routes.entry(output).or_default();
        if !readers.contains(&to) {
            readers.push(to);
        }
        drop(state);
        self.settle(from, output)
    }

    /// Tells the workers of the readers of an output to expect it, and that of its stage where they
    /// are.
    pub(super) fn settle(&self, from: u64, output: u32) -> Result<()> {
        let state = self.state();
        let Some(producer) = state.stages.get(&from) else { return Ok(()) };
        let fact = producer.outputs.get(output as usize).map(|o| o.1.clone()).unwrap_or_default();
        let epoch = producer.epoch;
        let at = producer.worker;
        // What this process's own worker makes or reads goes through the coordinator.
        let lost = |w: usize| matches!(state.workers[w].life, Life::Lost { .. });
        let reached = |w: &usize| *w != at && !state.workers[*w].here && !lost(*w);
        let readers = producer.routes.get(&output).into_iter().flatten();
        let mut places: Vec<usize> =
            readers.filter_map(|r| state.stages.get(r)).map(|s| s.worker).filter(reached).collect();
        places.sort_unstable();
        places.dedup();
        if state.workers[at].here || lost(at) {
            return Ok(());
        }
        let to: Vec<(String, String)> = places
            .iter()
            .map(|w| (state.workers[*w].name.clone(), state.workers[*w].address.clone()))
            .collect();
        drop(state);
        for worker in places {
            let fact = fact.clone();
            let expect =
                |ticket| Message::Expect { ticket, stage: from, epoch, output, fact: fact.clone() };
            self.ask(worker, &expect, None)?;
        }
        let route = |ticket| Message::Route { ticket, stage: from, output, to: to.clone() };
        self.ask(at, &route, None).map(drop)
    }

    /// The outputs whose makers or readers are among these stages.
    pub(super) fn routes_touching(&self, moved: &[u64]) -> Vec<(u64, u32)> {
        let state = self.state();
        let mut out = Vec::new();
        for (number, stage) in &state.stages {
            if matches!(stage.phase, Phase::Dead(_)) {
                continue;
            }
            for (output, readers) in &stage.routes {
                if moved.contains(number) || readers.iter().any(|r| moved.contains(r)) {
                    out.push((*number, *output));
                }
            }
        }
        out.sort_unstable();
        out
    }

    /// Whether a tensor from one stage's worker to another's goes through this process.
    pub(super) fn relayed(state: &State, producer: u64, reader_at: usize) -> bool {
        let Some(at) = state.stages.get(&producer).map(|s| s.worker) else { return false };
        at != reader_at && (state.workers[at].here || state.workers[reader_at].here)
    }

    /// The worker of this process, as a place for stages; it is started when it is first needed.
    pub(super) fn place_here(self: &Arc<Self>) -> Result<usize> {
        if let Some(at) = self.state().workers.iter().position(|w| w.here && w.is_up()) {
            return Ok(at);
        }
        self.serve_here()
    }
}
