//! How a pipeline is run.

use std::time::Duration;

use crate::supervise::{RestartPolicy, RetryPolicy};
use crate::sync::Arc;
use crate::watch::{OnStall, Stall, WatchOptions};

/// What becomes of a push into a full pipeline.
///
/// A pipeline is full when every credit is out (or the [byte budget](Options::byte_budget) is spent)
/// and its [queue](Options::queue), if it has one, is full as well. An item that is dropped has a
/// number, a ticket and a result like every other: an error of kind
/// [`ErrorKind::Dropped`](crate::ErrorKind::Dropped).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WhenFull {
    /// The push waits for room; [`try_push`](crate::Pipeline::try_push) says that there is none.
    #[default]
    Wait,
    /// Every push says at once that there is no room, and gives its inputs back.
    Refuse,
    /// The item that has waited longest in the queue is dropped, and the new one takes its place.
    DropOldest,
    /// The item that is being pushed is dropped.
    DropNewest,
}

impl WhenFull {
    pub(crate) const fn drops(self) -> bool {
        matches!(self, Self::DropOldest | Self::DropNewest)
    }
}

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
    pub(crate) adapt: bool,
    pub(crate) when_full: WhenFull,
    pub(crate) queue: Option<usize>,
    pub(crate) max_age: Option<Duration>,
    pub(crate) byte_budget: Option<usize>,
    pub(crate) item_bytes: Option<usize>,
    pub(crate) policy: RestartPolicy,
    pub(crate) retry: RetryPolicy,
    pub(crate) watch: Option<WatchOptions>,
    pub(crate) stop_timeout: Duration,
    pub(crate) build_timeout: Option<Duration>,
    pub(crate) trace: usize,
    pub(crate) spin: Duration,
    pub(crate) children: usize,
    pub(crate) child_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self::new()
    }
}

impl Options {
    /// The most that [`in_flight`](Self::in_flight), [`max_in_flight`](Self::max_in_flight),
    /// [`in_flight_auto`](Self::in_flight_auto), [`queue`](Self::queue) and
    /// [`children`](Self::children) may be: inboxes have room for every item from the start.
    pub const MOST_ITEMS: usize = 65_536;

    /// The most events per actor that [`trace`](Self::trace) may ask for: 24 bytes each, so some
    /// 400 MB for each actor.
    pub const MOST_EVENTS: usize = 1 << 24;

    /// The defaults: a number in flight that fills the pipeline, three restarts of each actor, five
    /// seconds to stop, no trace.
    pub const fn new() -> Self {
        Self {
            name: None,
            in_flight: None,
            max_in_flight: None,
            adapt: false,
            when_full: WhenFull::Wait,
            queue: None,
            max_age: None,
            byte_budget: None,
            item_bytes: None,
            policy: RestartPolicy { limit: 3, window: None, backoff: Duration::from_millis(10) },
            retry: RetryPolicy { panics: 0, failures: 0 },
            watch: None,
            stop_timeout: Duration::from_secs(5),
            build_timeout: None,
            trace: 0,
            spin: Duration::ZERO,
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
    /// the longest way through the topology. At most [`MOST_ITEMS`](Self::MOST_ITEMS).
    pub const fn in_flight(mut self, items: usize) -> Self {
        self.in_flight = Some(items);
        self
    }

    /// The most items for which inboxes have room, where more than
    /// [`in_flight`](Self::in_flight) may be allowed later: no less than that.
    pub const fn max_in_flight(mut self, items: usize) -> Self {
        self.max_in_flight = Some(items);
        self
    }

    /// Adapts the number of items in flight while the pipeline runs: as many as keep its bottleneck
    /// busy and one more, by Little's law, and never more than `max`, which is no less than
    /// [`in_flight`](Self::in_flight) where that is given.
    ///
    /// What an item needs on its way without waiting, divided by what the bottleneck needs for each,
    /// is the number that fills the pipeline; both are measured. Where the bottleneck idles
    /// nevertheless, one more is tried and kept if it helps. The number starts with
    /// [`in_flight`](Self::in_flight) or its default, and is
    /// [`Stats::in_flight_limit`](crate::Stats::in_flight_limit) at any time. A latency that would
    /// grow with a fixed, large number stays near the smallest that gives the same throughput.
    ///
    /// ```
    /// use brigade_actors::{Options, Pipeline, Topology, stage_fn};
    ///
    /// let mut builder = Topology::<i64>::builder();
    /// let x = builder.source("x");
    /// let inc = builder.actor("inc", "cpu", 1, 1, stage_fn(|v: Vec<i64>| Ok(vec![v[0] + 1])));
    /// let y = builder.sink("y");
    /// builder.connect(x, inc.input(0)).connect(inc.output(0), y);
    /// let pipeline = Pipeline::spawn(builder.build()?, Options::new().in_flight_auto(32))?;
    /// assert_eq!(pipeline.stream((0..500).map(|n| vec![n])).filter(Result::is_ok).count(), 500);
    /// let stats = pipeline.stats();
    /// assert!(stats.in_flight_limit <= 32 && stats.admission.in_flight_max == 32);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn in_flight_auto(mut self, max: usize) -> Self {
        self.adapt = true;
        self.max_in_flight = Some(max);
        self
    }

    /// What becomes of a push into a full pipeline; without it, the push waits.
    ///
    /// Streams lose nothing by this: [`Pipeline::stream`](crate::Pipeline::stream) reads its input
    /// only as fast as it is let in, and an item of carried state is never queued nor dropped, since
    /// the state would go with it (it waits, or is refused). Items of a stream that wait in the
    /// queue can be dropped by the pushes of others.
    ///
    /// ```
    /// use brigade_actors::{ErrorKind, Options, Pipeline, Topology, WhenFull, stage_fn};
    /// use std::time::Duration;
    ///
    /// let mut builder = Topology::<u64>::builder();
    /// let frames = builder.source("frames");
    /// let detect = builder.actor("detect", "cpu", 1, 1, stage_fn(|frame: Vec<u64>| {
    ///     std::thread::sleep(Duration::from_millis(20));
    ///     Ok(frame)
    /// }));
    /// let found = builder.sink("found");
    /// builder.connect(frames, detect.input(0)).connect(detect.output(0), found);
    ///
    /// // A live source: only the latest frame is worth waiting for.
    /// let options = Options::new().in_flight(1).when_full(WhenFull::DropOldest).queue(1);
    /// let pipeline = Pipeline::spawn(builder.build()?, options)?;
    /// let tickets: Result<Vec<_>, _> = (0..4).map(|n| pipeline.push(vec![n])).collect();
    /// let results: Vec<_> = tickets?.into_iter().map(|ticket| ticket.wait()).collect();
    /// assert_eq!(results[0].as_ref().unwrap(), &[0]);
    /// assert_eq!(results[1].as_ref().unwrap_err().kind(), ErrorKind::Dropped);
    /// assert_eq!(results[3].as_ref().unwrap(), &[3]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub const fn when_full(mut self, policy: WhenFull) -> Self {
        self.when_full = policy;
        self
    }

    /// How many items may wait in a queue in front of the pipeline once it is full, each with its
    /// ticket. Without it there is none, but for [`WhenFull::DropOldest`], [`WhenFull::DropNewest`]
    /// and [`max_age`](Self::max_age), where it is as many as may be in flight at the start.
    pub const fn queue(mut self, items: usize) -> Self {
        self.queue = Some(items);
        self
    }

    /// How long an item may wait in the queue. One that waited longer has an error of kind
    /// [`ErrorKind::Expired`](crate::ErrorKind::Expired) as its result and is never computed.
    ///
    /// A ticket that is waited for gets that result when the time is over; an awaited one when the
    /// next item enters or leaves the pipeline.
    pub const fn max_age(mut self, age: Duration) -> Self {
        self.max_age = Some(age);
        self
    }

    /// The most bytes that the payloads of the items in flight may keep alive, as
    /// [`Payload::bytes`](crate::Payload::bytes) counts them: inputs, and what lies between actors.
    /// What a stage allocates for itself is its own.
    ///
    /// An item is admitted when the most that it will hold fits into what is left: its inputs and
    /// the most that an item before it held beyond its inputs. The first item shows how much that
    /// is, so it goes alone, unless [`item_bytes`](Self::item_bytes) says it. An item that is larger
    /// than the budget goes alone too. Where items differ in how much they grow, the budget can be
    /// passed by the growth of those that are in flight when a larger one than any before appears.
    pub const fn byte_budget(mut self, bytes: usize) -> Self {
        self.byte_budget = Some(bytes);
        self
    }

    /// What one item is expected to hold at its peak, for the [byte budget](Self::byte_budget). 0
    /// expects no more than its inputs.
    pub const fn item_bytes(mut self, bytes: usize) -> Self {
        self.item_bytes = Some(bytes);
        self
    }

    /// How often an item is given to the same actor once more after its firing panicked (or was open
    /// in a stage that did); without it, never. The item keeps its place; only the last failure is
    /// its result. Handles on the inputs are [kept](crate::Payload::share) until the firing is done.
    ///
    /// Each panic costs a [restart](Self::restarts) of the actor, so an item that always panics uses
    /// up `n + 1` of them.
    pub const fn retry_panics(mut self, n: u32) -> Self {
        self.retry.panics = n;
        self
    }

    /// How often an item is given to the same actor once more after its stage returned an error of
    /// kind [`ErrorKind::Failed`](crate::ErrorKind::Failed); without it, never.
    pub const fn retry_failures(mut self, n: u32) -> Self {
        self.retry.failures = n;
        self
    }

    /// Watches that results come: items in flight and no result for `after` is a
    /// [`Stall`](crate::Stall), which names the actors and the edges that make no progress. Stalls
    /// are in [`Stats::stalls`](crate::Stats::stalls), and [`on_stall`](Self::on_stall) decides what
    /// else happens. Costs a thread that sleeps; without this there is none.
    ///
    /// ```
    /// use brigade_actors::{Options, Pipeline, Topology, stage_fn};
    /// use std::time::Duration;
    ///
    /// let mut builder = Topology::<i64>::builder();
    /// let x = builder.source("x");
    /// let slow = builder.actor("slow", "gpu:0", 1, 1, stage_fn(|v: Vec<i64>| {
    ///     std::thread::sleep(Duration::from_millis(80));
    ///     Ok(v)
    /// }));
    /// let y = builder.sink("y");
    /// builder.connect(x, slow.input(0)).connect(slow.output(0), y);
    /// let options = Options::new().watchdog(Duration::from_millis(20));
    /// let pipeline = Pipeline::spawn(builder.build()?, options)?;
    /// pipeline.push(vec![1])?.wait()?;
    /// let stall = &pipeline.stats().stalls[0];
    /// assert_eq!(stall.actors[0].name, "slow");
    /// assert!(stall.to_string().contains("actor `slow` has been computing on `gpu:0`"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watchdog(mut self, after: Duration) -> Self {
        let before = self.watch.take();
        self.watch = Some(WatchOptions { after, ..before.unwrap_or_default() });
        self
    }

    /// What happens to a pipeline that stalls, beside the report. Without a
    /// [`watchdog`](Self::watchdog) it is looked for after ten seconds.
    pub fn on_stall(mut self, action: OnStall) -> Self {
        let before = self.watch.take();
        self.watch = Some(WatchOptions { action, ..before.unwrap_or_default() });
        self
    }

    /// Calls `listener` with every stall, on the thread of the watchdog, under no lock. Without a
    /// [`watchdog`](Self::watchdog) stalls are looked for after ten seconds.
    pub fn stall_listener(mut self, listener: impl Fn(&Stall) + Send + Sync + 'static) -> Self {
        let before = self.watch.take();
        self.watch =
            Some(WatchOptions { listener: Some(Arc::new(listener)), ..before.unwrap_or_default() });
        self
    }

    /// How often the stage of one actor is built anew after a panic, within the
    /// [`restart_window`](Self::restart_window). Past that the pipeline fails as a whole.
    pub const fn restarts(mut self, limit: u32) -> Self {
        self.policy.limit = limit;
        self
    }

    /// The pause before the first restart of an actor; it doubles with every further one.
    pub const fn restart_backoff(mut self, pause: Duration) -> Self {
        self.policy.backoff = pause;
        self
    }

    /// How long a restart counts against the [limit](Self::restarts) and the pause. Without it, for
    /// the life of the pipeline.
    pub const fn restart_window(mut self, window: Duration) -> Self {
        self.policy.window = Some(window);
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

    /// How many events are recorded per actor; the last ones are kept. 0 records nothing. The memory,
    /// 24 bytes for each event, is taken as the events come, and what the system does not give is not
    /// recorded. At most [`MOST_EVENTS`](Self::MOST_EVENTS).
    pub const fn trace(mut self, events: usize) -> Self {
        self.trace = events;
        self
    }

    /// How long an actor polls its inbox, and a caller its ticket, before the thread sleeps: a thread
    /// that sleeps takes some 20 µs to wake, one that polls less than one. It burns a core for that
    /// long after each item and no longer. Zero, the default, sleeps at once.
    pub const fn spin(mut self, time: Duration) -> Self {
        self.spin = time;
        self
    }
}
