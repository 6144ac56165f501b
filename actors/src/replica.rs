//! Replicas: several actor threads that serve one inbox with stages from one factory.

use crate::error::ItemError;
use crate::inbox::{Bell, Flags};
use crate::stage::{Factory, Stage, StageContext};
use crate::supervise::build;
use crate::sync::{Arc, Mutex, lock};

/// The most replicas that an actor may have: more than any machine has use for, and few enough that
/// a slip of the pen does not ask for all of its memory.
pub(crate) const MOST_REPLICAS: usize = 1024;

/// The name of one replica of an actor; an actor without replicas has its own.
pub(crate) fn replica_name(actor: &Arc<str>, replica: usize, replicas: usize) -> Arc<str> {
    if replicas == 1 { Arc::clone(actor) } else { format!("{actor}/{replica}").into() }
}

/// The factory of an actor, at which its replicas take turns. It is user code, so it runs under no
/// lock: whoever builds takes it out, and the others wait at their own inbox, where a stop reaches
/// them.
pub(crate) struct SharedFactory<P>(Mutex<State<P>>);

struct State<P> {
    /// Elsewhere while a stage is being built.
    factory: Option<Factory<P>>,
    waiting: Vec<Arc<Bell<P>>>,
}

impl<P> SharedFactory<P> {
    pub(crate) fn new(factory: Factory<P>) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State { factory: Some(factory), waiting: Vec::new() })))
    }

    /// Builds a stage. `None` if another replica is building: `bell` is rung once it has ended.
    pub(crate) fn try_build(
        &self,
        bell: &Arc<Bell<P>>,
        context: impl FnOnce() -> StageContext,
    ) -> Option<Result<Box<dyn Stage<P>>, ItemError>> {
        let taken = {
            let mut state = lock(&self.0);
            let taken = state.factory.take();
            if taken.is_none() {
                state.waiting.push(Arc::clone(bell));
            }
            taken
        };
        let mut factory = taken?;
        let built = build(&mut factory, context());
        let waiting = {
            let mut state = lock(&self.0);
            state.factory = Some(factory);
            std::mem::take(&mut state.waiting)
        };
        for bell in waiting {
            bell.ring(Flags::FACTORY);
        }
        Some(built)
    }
}
