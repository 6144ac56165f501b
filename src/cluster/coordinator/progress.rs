//! Telling whoever wants to know how far a stage is that a worker makes ready.

use std::time::{Duration, Instant};

use super::state::{Phase, State};
use super::{ClusterOptions, OnProgress, StageProgress};

/// How often it is told, and how long a stage takes at least that is told of.
const EVERY: Duration = Duration::from_secs(1);

/// A stage that was shipped, as long as it is waited for.
pub(super) struct Watched {
    see: Option<OnProgress>,
    stage: u64,
    shipped: Instant,
    told: Instant,
    /// Weights and their bytes, as they were told last.
    read: (u64, u64),
    begun: bool,
}

impl Watched {
    pub(super) fn new(options: &ClusterOptions, stage: u64, shipped: Instant) -> Self {
        let see = options.on_progress.clone();
        Self { see, stage, shipped, told: shipped, read: (0, 0), begun: false }
    }

    /// What is to be told now.
    pub(super) fn due(&mut self, state: &State) -> Option<StageProgress> {
        self.see.as_ref()?;
        let s = state.stages.get(&self.stage)?;
        let ready = match &s.phase {
            Phase::Shipping { tensors, bytes, .. } => {
                self.read = (*tensors, *bytes);
                false
            }
            Phase::Compiled => {
                self.read.1 = s.took.read_bytes;
                true
            }
            _ => return None,
        };
        if !(ready && self.begun) && self.told.elapsed() < EVERY {
            return None;
        }
        (self.told, self.begun) = (Instant::now(), !ready);
        let (tensors, bytes) = self.read;
        Some(StageProgress {
            stage: self.stage,
            name: s.name.clone(),
            device: state.device_of(s),
            tensors,
            bytes,
            elapsed: self.shipped.elapsed(),
            ready,
        })
    }

    pub(super) fn tell(&self, progress: &StageProgress) {
        if let Some(see) = &self.see {
            see.tell(progress);
        }
    }
}
