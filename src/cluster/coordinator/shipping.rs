//! Stages on their way to workers.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use brigade_actors::transport::Frame;

use super::hub::Hub;
use super::progress::Watched;
use super::state::{Life, Phase, StageState};
use crate::cluster::StageSpec;
use crate::cluster::message::Message;
use crate::device::DeviceId;
use crate::error::{Result, bail, err};

impl Hub {
    /// Ships a stage and waits until its worker has compiled it, or until it is abandoned.
    pub(super) fn ship(
        &self,
        device: &DeviceId,
        spec: &StageSpec,
        abandoned: &AtomicBool,
    ) -> Result<u64> {
        let owned = |all: Vec<(&str, &crate::graph::Fact)>| {
            all.into_iter().map(|(n, f)| (n.to_owned(), f.clone())).collect::<Vec<_>>()
        };
        spec.validate()?;
        let (bytes, now) = (Arc::new(spec.encode()?), Instant::now());
        let mut state = self.state();
        let worker = state.workers.iter().position(|w| Some(w.name.as_str()) == device.worker());
        let Some(worker) = worker else { bail!(Device, "there is no worker for `{device}`") };
        let stage = state.number();
        state.stages.insert(
            stage,
            StageState {
                name: spec.name().to_owned(),
                spec: bytes,
                device: device.clone(),
                worker,
                incarnation: 0,
                epoch: 0,
                phase: Phase::Compiled,
                adrift: false,
                fruitless: 0,
                inputs: owned(spec.inputs()),
                outputs: owned(spec.outputs()),
                routes: BTreeMap::new(),
                took: Default::default(),
                firings: 0,
                busy_ns: 0,
                moved: now,
                open: 0,
                times: VecDeque::new(),
            },
        );
        drop(state);
        let shipped = self.place(stage, worker, abandoned);
        let mut state = self.state();
        match shipped {
            Ok(()) => {
                if let Some(s) = state.stages.get_mut(&stage) {
                    s.phase = Phase::Ready;
                }
                Ok(stage)
            }
            Err(e) => {
                drop(state);
                // The worker may be loading it.
                self.drop_stage(stage);
                Err(e)
            }
        }
    }

    /// Sends a stage to a worker under a new epoch and waits until it is compiled there.
    pub(super) fn place(&self, stage: u64, worker: usize, abandoned: &AtomicBool) -> Result<()> {
        let mut state = self.state();
        let incarnation = state.workers[worker].incarnation;
        let Some(s) = state.stages.get_mut(&stage) else { bail!(Stopped, "the stage was ended") };
        s.epoch += 1;
        s.worker = worker;
        s.incarnation = incarnation;
        let shipped = Instant::now();
        s.phase = Phase::Shipping { heard: shipped, tensors: 0, bytes: 0 };
        let (epoch, spec) = (s.epoch, Arc::clone(&s.spec));
        let Some(link) = state.link_of(stage).cloned() else {
            bail!(Device, "worker `{}` is not reached", state.workers[worker].name);
        };
        drop(state);
        let head = Message::Ship { stage, epoch }.encode()?;
        link.send(Frame::new(head, spec)).map_err(super::link_error)?;
        let mut watched = Watched::new(&self.options, stage, shipped);
        let mut state = self.state();
        loop {
            if let Some(progress) = watched.due(&state) {
                drop(state);
                watched.tell(&progress);
                state = self.state();
            }
            let Some(s) = state.stages.get_mut(&stage) else {
                bail!(Stopped, "the stage was ended")
            };
            match &s.phase {
                Phase::Refused(error) => return Err(error.clone()),
                Phase::Compiled => return Ok(()),
                Phase::Shipping { heard, .. } if heard.elapsed() > self.options.ship => {
                    let limit = self.options.ship;
                    return Err(err!(Deadline, "the stage was not compiled within {limit:?}")
                        .with_help("raise the time that shipping may take"));
                }
                _ => {}
            }
            match &state.workers[worker].life {
                Life::Lost { why, .. } => {
                    let name = &state.workers[worker].name;
                    bail!(Device, "worker `{name}` was lost while it compiled: {why}");
                }
                // A stage that is being compiled when the link breaks is asked for once more.
                _ if state.closed => bail!(Stopped, "the cluster was closed"),
                _ if abandoned.load(Ordering::Relaxed) => {
                    bail!(Stopped, "another stage of the pipeline could not be placed");
                }
                _ => {}
            }
            state = self.wait(state);
        }
    }
}
