//! What an actor does once its stage went down.

use std::time::{Duration, Instant};

use crate::error::{ErrorKind, ItemError};
use crate::inbox::Next;
use crate::metrics::PipelineState;
use crate::payload::Payload;
use crate::spans;
use crate::sync::Arc;
use crate::worker::Actor;

impl<P: Payload> Actor<P> {
    /// Ends what a stage held that went down, and builds another one. False if the pipeline failed.
    pub(super) fn recover(&mut self, cause: &ItemError) -> bool {
        spans::went_down(&self.cell().name, cause);
        self.outbox.fail_all(cause);
        while let Some(closed) = self.outbox.next_complete() {
            self.close(closed);
        }
        self.drop_stage();
        self.give_back();
        let mut cause = cause.clone();
        loop {
            let Some(pause) = self.restarts.next(self.seed.policy, Instant::now()) else {
                self.give_up(cause);
                return false;
            };
            if !self.pause(pause) {
                return false;
            }
            self.cell().meter.restarted();
            spans::restarted(&self.cell().name, self.attempt);
            match self.build() {
                Ok(()) => return true,
                Err(error) => cause = error,
            }
        }
    }

    /// Leaves what was taken and not started to the other replicas, if there are any.
    fn give_back(&mut self) {
        while let Some(work) = self.backlog.pop_front() {
            if let Err(work) = self.seed.inbox.give_back(work) {
                self.backlog.push_front(work);
                return;
            }
        }
    }

    fn give_up(&self, cause: ItemError) {
        let name = &self.cell().name;
        let within = self.seed.policy.window.map(|window| format!(" within {window:?}"));
        let message = format!(
            "the pipeline failed: actor `{name}` went down more than {} times{}, last because {}",
            self.seed.policy.limit,
            within.unwrap_or_default(),
            cause.message(),
        );
        let failure = ItemError::new(ErrorKind::StageDown, message).with_source(Arc::new(cause));
        self.seed.engine.stop(PipelineState::Failed, &failure);
    }

    /// Backs off, taking in what arrives meanwhile, unless other replicas can. False if the actor is to stop.
    fn pause(&mut self, pause: Duration) -> bool {
        let until = Instant::now() + pause;
        while !self.stopped() {
            let wanted = !self.seed.inbox.is_shared();
            match self.seed.inbox.next(wanted, Some(until)) {
                Next::Message(message) => self.take_in(message, self.seed.inbox.level() + 1),
                Next::Wake => {}
                Next::Timeout => return true,
                Next::Closed => return false,
            }
        }
        false
    }
}
