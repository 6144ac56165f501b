//! How a pipeline is run.

use std::time::Duration;

use crate::supervise::RestartPolicy;

/// How a pipeline is run.
///
/// ```
/// use brigade_actors::Options;
///
/// let options = Options::new().name("ocr").in_flight(8).restarts(1).trace(10_000);
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    pub(crate) name: Option<String>,
    pub(crate) in_flight: Option<usize>,
    pub(crate) max_in_flight: Option<usize>,
    pub(crate) policy: RestartPolicy,
    pub(crate) stop_timeout: Duration,
    pub(crate) build_timeout: Option<Duration>,
    pub(crate) trace: usize,
    pub(crate) children: usize,
    pub(crate) child_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// The defaults: a number in flight that fills the pipeline, three restarts of each actor, five
    /// seconds to stop, no trace.
    pub const fn new() -> Self {
        Self {
            name: None,
            in_flight: None,
            max_in_flight: None,
            policy: RestartPolicy { limit: 3, backoff: Duration::from_millis(10) },
            stop_timeout: Duration::from_secs(5),
            build_timeout: None,
            trace: 0,
            children: 64,
            child_bytes: 1 << 30,
        }
    }

    /// The name of the pipeline in reports. Without one it is `pipeline-N`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// The most items that may be in flight: at least 1. Without it, twice the number of actors on
    /// the longest way through the topology.
    pub const fn in_flight(mut self, items: usize) -> Self {
        self.in_flight = Some(items);
        self
    }

    /// The most items for which inboxes have room, where more than
    /// [`in_flight`](Self::in_flight) may be allowed later.
    pub const fn max_in_flight(mut self, items: usize) -> Self {
        self.max_in_flight = Some(items);
        self
    }

    /// How often the stage of one actor is built anew after a panic, in the life of the pipeline.
    /// Past that the pipeline fails as a whole.
    pub const fn restarts(mut self, limit: u32) -> Self {
        self.policy.limit = limit;
        self
    }

    /// The pause before the first restart of an actor; it doubles with every further one.
    pub const fn restart_backoff(mut self, pause: Duration) -> Self {
        self.policy.backoff = pause;
        self
    }

    /// How long a shutdown waits for the threads of the actors.
    pub const fn stop_timeout(mut self, timeout: Duration) -> Self {
        self.stop_timeout = timeout;
        self
    }

    /// How long a spawn waits for the stages to be built; without it, as long as they take.
    pub const fn build_timeout(mut self, timeout: Duration) -> Self {
        self.build_timeout = Some(timeout);
        self
    }

    /// How many children of each fan-out may be in flight at once: at least 1; 64 where nothing is
    /// said. A fan-out with more waits, without a lane, until some of them were collected.
    pub const fn children(mut self, children: usize) -> Self {
        self.children = children;
        self
    }

    /// How many bytes the children of one item may keep while they wait to be collected. An item
    /// with more becomes an error of kind [`ErrorKind::Limit`](crate::ErrorKind::Limit). Where nothing
    /// is said, 1 GiB.
    pub const fn child_bytes(mut self, bytes: usize) -> Self {
        self.child_bytes = bytes;
        self
    }

    /// How many events are recorded per actor; the last ones are kept. 0 records nothing.
    pub const fn trace(mut self, events: usize) -> Self {
        self.trace = events;
        self
    }
}
