//! Pipelines by name.

#[cfg(feature = "control")]
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;

#[cfg(feature = "control")]
use crate::error::DrainError;
#[cfg(feature = "control")]
use crate::inbox::StageWaker;
use crate::metrics::Stats;
use crate::pipeline::StopReport;
use crate::sync::{Arc, Weak};

/// What control can do with one actor, or one replica of it.
#[cfg(feature = "control")]
pub(crate) struct ActorHandle {
    pub(crate) name: Arc<str>,
    /// The name of the actor in the topology.
    pub(crate) actor: Arc<str>,
    /// Asks it to rebuild its stage.
    pub(crate) restart: StageWaker,
}

/// What can be done with a pipeline without knowing what it carries.
pub(crate) trait Supervised: Send + Sync {
    fn name(&self) -> &str;

    fn stats(&self) -> Stats;

    /// True once it was stopped or failed.
    fn has_ended(&self) -> bool;

    /// One handle per actor, and per replica of it.
    #[cfg(feature = "control")]
    fn actors(&self) -> Vec<ActorHandle>;

    #[cfg(feature = "control")]
    fn begin_drain(&self);

    /// Ready once nothing is in flight.
    #[cfg(feature = "control")]
    fn poll_drained(&self, context: &Context<'_>) -> Poll<Result<(), DrainError>>;

    /// What a drain says that ends now.
    #[cfg(feature = "control")]
    fn end_drain(&self) -> Result<(), DrainError>;

    /// Asks every actor to end, and does not wait.
    fn begin_stop(&self);

    /// Ready once every actor thread has ended.
    #[cfg(feature = "control")]
    fn poll_stopped(&self, context: &Context<'_>) -> Poll<()>;

    /// Stops, and waits for the threads until `deadline`.
    fn stop(&self, deadline: Option<Instant>) -> StopReport;

    fn stop_timeout(&self) -> Duration;
}

/// The pipelines of a system. Never holds one alive.
#[derive(Default)]
pub(crate) struct Registry(DashMap<String, Weak<dyn Supervised>>);

impl Registry {
    /// True if a pipeline of this name is alive.
    pub(crate) fn contains(&self, name: &str) -> bool {
        self.get(name).is_some_and(|pipeline| !pipeline.has_ended())
    }

    pub(crate) fn get(&self, name: &str) -> Option<Arc<dyn Supervised>> {
        // The guard is dropped before the handle that it may have revived is.
        let weak = self.0.get(name).map(|entry| Weak::clone(&entry));
        weak.and_then(|weak| weak.upgrade())
    }

    /// Enters a pipeline; false if its name is taken by one that is alive and has not ended.
    pub(crate) fn enter(&self, pipeline: &Arc<dyn Supervised>) -> bool {
        // Kept until the entry is let go of: it may be the last handle.
        let before = self.get(pipeline.name());
        match self.0.entry(pipeline.name().to_owned()) {
            Entry::Occupied(mut taken) => {
                let same = before.as_ref().is_some_and(|before| {
                    std::ptr::addr_eq(Arc::as_ptr(before), taken.get().as_ptr())
                });
                let ended = same && before.as_ref().is_some_and(|before| before.has_ended());
                let free = ended || taken.get().strong_count() == 0;
                if free {
                    taken.insert(Arc::downgrade(pipeline));
                }
                free
            }
            Entry::Vacant(place) => {
                place.insert(Arc::downgrade(pipeline));
                true
            }
        }
    }

    /// The pipelines that run or drain, by name.
    pub(crate) fn live(&self) -> Vec<Arc<dyn Supervised>> {
        let mut live = self.all();
        live.retain(|pipeline| !pipeline.has_ended());
        live
    }

    /// The pipelines of which there is a handle, ended or not, by name.
    pub(crate) fn all(&self) -> Vec<Arc<dyn Supervised>> {
        self.0.retain(|_, weak| weak.strong_count() > 0);
        let weak: Vec<_> = self.0.iter().map(|entry| Weak::clone(&entry)).collect();
        let mut alive: Vec<_> = weak.iter().filter_map(Weak::upgrade).collect();
        alive.sort_by(|a, b| a.name().cmp(b.name()));
        alive
    }
}
