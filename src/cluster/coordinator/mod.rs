//! The coordinator: the pipeline's side of a cluster.

mod asking;
mod device;
mod hub;
mod links;
mod open;
mod progress;
mod recovery;
mod routes;
mod shipping;
mod state;
mod traffic;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use brigade_actors::transport::Transport;
use serde::Serialize;

use crate::device::{DeviceId, LinkFigures};
use crate::error::{Result, err};
use crate::registry::Registry;
use hub::Hub;
pub use links::LinkReport;
pub(crate) use links::Noise;
use open::Open;

/// What becomes of the stages of a worker that is lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLoss {
    /// They are placed again: on a worker without stages, else on another one that has such a device,
    /// else in this process; items under way are computed again.
    #[default]
    Replace,
    /// The items that need them fail, each with an error that names the worker.
    Fail,
}

/// How a coordinator deals with its workers.
#[derive(Clone, Debug)]
pub struct ClusterOptions {
    pub(crate) name: String,
    pub(crate) lease: Duration,
    pub(crate) progress: Duration,
    pub(crate) ship: Duration,
    pub(crate) connect: Duration,
    pub(crate) on_loss: OnLoss,
    pub(crate) in_this_process: bool,
    pub(crate) roots: Vec<PathBuf>,
    pub(crate) links: Vec<(String, String, LinkFigures)>,
    pub(crate) on_progress: Option<OnProgress>,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            name: "coordinator".to_owned(),
            lease: Duration::from_secs(5),
            progress: Duration::from_secs(60),
            ship: Duration::from_secs(600),
            connect: Duration::from_secs(30),
            on_loss: OnLoss::Replace,
            in_this_process: true,
            roots: vec![PathBuf::from(".")],
            links: Vec::new(),
            on_progress: None,
        }
    }
}

impl ClusterOptions {
    /// A lease of 5 s, 60 s without progress, replacement of what is lost.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What workers see as this coordinator's name.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// How long a worker may be silent before it is lost, and how long it keeps the session of a
    /// coordinator that is silent.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.max(Duration::from_millis(50));
        self
    }

    /// How long a stage that has work may go without completing any before its worker is lost: it
    /// answers, but does nothing.
    #[must_use]
    pub fn progress(mut self, limit: Duration) -> Self {
        self.progress = limit;
        self
    }

    /// How long loading and compiling a stage may take.
    #[must_use]
    pub fn ship_within(mut self, limit: Duration) -> Self {
        self.ship = limit;
        self
    }

    /// How long to wait for workers that are not there yet.
    #[must_use]
    pub fn connect_within(mut self, limit: Duration) -> Self {
        self.connect = limit;
        self
    }

    /// What becomes of the stages of a lost worker.
    #[must_use]
    pub fn on_loss(mut self, what: OnLoss) -> Self {
        self.on_loss = what;
        self
    }

    /// Whether stages that no worker is left for may run in this process (they may, unless told).
    #[must_use]
    pub fn in_this_process(mut self, may: bool) -> Self {
        self.in_this_process = may;
        self
    }

    /// The folders that models and weights lie below here; on a worker the same files lie, by the
    /// same relative paths, below its weight roots.
    #[must_use]
    pub fn roots(mut self, roots: impl IntoIterator<Item = impl Into<PathBuf>>) -> Self {
        self.roots = roots.into_iter().map(Into::into).collect();
        self
    }

    /// Calls this about once a second for a stage that its worker loads and compiles, and once more
    /// when it is ready if it was called before; on the thread that waits for the stage.
    ///
    /// ```
    /// use brigade::cluster::ClusterOptions;
    /// let options = ClusterOptions::new().on_progress(|stage| {
    ///     eprintln!("`{}` on {}: {} bytes of weights read", stage.name, stage.device, stage.bytes);
    /// });
    /// assert!(format!("{options:?}").contains("on_progress"));
    /// ```
    #[must_use]
    pub fn on_progress(mut self, see: impl Fn(&StageProgress) + Send + Sync + 'static) -> Self {
        self.on_progress = Some(OnProgress(Arc::new(see)));
        self
    }

    /// What the link between these two takes, so that it is not measured: workers by their names, the
    /// coordinator by its [`name`](Self::name). The last word counts.
    #[must_use]
    pub fn link(
        mut self,
        one: impl Into<String>,
        other: impl Into<String>,
        figures: LinkFigures,
    ) -> Self {
        self.links.push((one.into(), other.into(), figures));
        self
    }
}

/// How far a worker is with making a stage ready.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StageProgress {
    /// The number of the stage.
    pub stage: u64,
    /// The name of its graph.
    pub name: String,
    /// The device.
    pub device: String,
    /// Weights that were read so far, as the worker said last.
    pub tensors: u64,
    /// Their bytes, as they are stored.
    pub bytes: u64,
    /// The time since it was shipped.
    pub elapsed: Duration,
    /// Whether it is ready.
    pub ready: bool,
}

/// Who wants to know of it.
#[derive(Clone)]
pub(crate) struct OnProgress(Arc<dyn Fn(&StageProgress) + Send + Sync>);

impl OnProgress {
    pub(crate) fn tell(&self, progress: &StageProgress) {
        (self.0)(progress);
    }
}

impl std::fmt::Debug for OnProgress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("OnProgress")
    }
}

/// A set of workers that pipelines may place segments on.
///
/// [`registry`](Self::registry) has the workers' devices beside the local ones, named `worker/device`;
/// whatever takes a device's name takes theirs: placements, plans, `--stages`. So a [`Pipeline`] over a
/// cluster is built and used as any other.
///
/// ```
/// use std::sync::Arc;
/// use brigade::actors::transport::{TransportOptions, transport};
/// use brigade::cluster::{Cluster, ClusterOptions, Worker};
/// use brigade::ops::builder::GraphBuilder;
/// use brigade::{DType, Pipeline, Registry, Tensor};
///
/// let local = transport("local").ok_or_else(|| brigade::Error::new(brigade::ErrorKind::Internal, "no transport"))?;
/// let transport = (local.open)(&TransportOptions::new()).map_err(brigade::cluster::link_error)?;
/// let worker = Worker::new("w1").serve(Arc::clone(&transport), "worker-1")?;
///
/// let workers = [("w1".to_owned(), worker.address().to_owned())];
/// let cluster = Cluster::connect(transport, &workers, &Registry::default(), ClusterOptions::new())?;
/// let mut g = GraphBuilder::new("g");
/// let x = g.input("x", DType::F32, ["N".into()])?;
/// let h = g.relu(x)?;
/// let y = g.tanh(h)?;
/// let pipeline = Pipeline::builder(g.finish([("y", y)])?)
///     .registry(cluster.registry().clone())
///     .stages(2, &["w1/cpu", "cpu"])?
///     .spawn()?;
/// let out = pipeline.run([("x", Tensor::new([2], vec![-1.0_f32, 0.0])?)])?;
/// assert_eq!(out[0].tensor()?.as_slice::<f32>()?, [0.0, 0.0]);
/// # Ok::<(), brigade::Error>(())
/// ```
///
/// [`Pipeline`]: crate::Pipeline
#[derive(Clone, Debug)]
pub struct Cluster {
    hub: Arc<Open>,
    registry: Registry,
}

impl Cluster {
    /// Connects to workers, each a name and an address, waiting for those that are not there yet.
    ///
    /// # Errors
    /// If a name is not well formed or comes twice, or a worker cannot be reached in time or refuses;
    /// each of them is named with its reason.
    pub fn connect(
        transport: Arc<dyn Transport>,
        workers: &[(String, String)],
        registry: &Registry,
        options: ClusterOptions,
    ) -> Result<Self> {
        Self::connect_closing(transport, workers, registry, options, |_| {})
    }

    /// As [`connect`](Self::connect); before anybody is connected `closer` gets what closes it, from
    /// whatever thread, for as long as it is there.
    ///
    /// # Errors
    /// As [`connect`](Self::connect).
    pub(crate) fn connect_closing(
        transport: Arc<dyn Transport>,
        workers: &[(String, String)],
        registry: &Registry,
        options: ClusterOptions,
        closer: impl FnOnce(Box<dyn FnOnce() + Send>),
    ) -> Result<Self> {
        let hub = Open::new(Arc::new(Hub::new(transport, registry.clone(), options)?));
        let closed = Arc::downgrade(&hub);
        closer(Box::new(move || {
            if let Some(hub) = closed.upgrade() {
                hub.close();
            }
        }));
        for (name, address) in workers {
            hub.add_worker(name, address)?;
        }
        recovery::watch(hub.hub())?;
        hub.await_workers()?;
        let mut registry = registry.clone().with_device_source(device::source(&hub));
        for device in device::offered(&hub) {
            registry = registry.with_device(device);
        }
        Ok(Self { hub, registry })
    }

    /// The devices and operators of this process, and the workers' devices.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// The workers' devices, in order.
    pub fn devices(&self) -> Vec<DeviceId> {
        self.registry.devices().into_iter().filter(|d| d.worker().is_some()).collect()
    }

    /// The first device that each worker offers, in the order the workers were given.
    pub fn first_devices(&self) -> Vec<DeviceId> {
        self.hub.first_devices()
    }

    /// The link between two devices' workers, or between one of them and this process: measured when it
    /// is first asked for, which takes about a tenth of a second, unless
    /// [`ClusterOptions::link`] states it. `None` within one memory, or if it cannot be measured;
    /// [`ClusterStats::links`] has the reason.
    ///
    /// Nine small messages there and back give the latency, up to 4 MiB the bandwidth, from the first
    /// device to the second where both are workers', else from this process. Placements that balance
    /// stages ([`DeviceMap::balanced_over`](crate::DeviceMap::balanced_over)) ask for the links
    /// between neighbours.
    pub fn link(&self, one: &DeviceId, other: &DeviceId) -> Option<LinkFigures> {
        self.hub.link(one, other)
    }

    /// What is known of a link, without measuring it.
    pub(crate) fn known_link(&self, one: &DeviceId, other: &DeviceId) -> Option<LinkFigures> {
        self.hub.known_link(one, other)
    }

    /// What the workers and their stages have done, and what was lost and placed again.
    pub fn stats(&self) -> ClusterStats {
        self.hub.stats()
    }

    /// What stages computed when, on this process's clock: the last of each stage.
    pub fn computed(&self) -> Vec<StageTimes> {
        self.hub.computed()
    }

    /// Adds to the trace of a pipeline that began then what its workers computed meanwhile: one more
    /// actor for each stage, on this process's clock. Between two clocks there is an error of at most
    /// half of the [`round_trip_us`](WorkerReport::round_trip_us).
    pub fn add_to(&self, trace: &mut brigade_actors::Trace, begun: std::time::Instant) {
        let stats = self.stats();
        let first = trace.actors.len();
        for stage in &stats.stages {
            trace.actors.push(brigade_actors::TraceActor {
                name: format!("`{}` computing", stage.name),
                device: stage.device.clone(),
            });
        }
        let start = self.hub.start;
        let ahead = start.saturating_duration_since(begun).as_nanos() as i128
            - begun.saturating_duration_since(start).as_nanos() as i128;
        let here = |ns: u64| u64::try_from(i128::from(ns) + ahead).ok();
        for times in self.computed() {
            let Some(at) = stats.stages.iter().position(|s| s.stage == times.stage) else {
                continue;
            };
            if let (Some(start_ns), Some(end_ns)) = (here(times.start_ns), here(times.end_ns)) {
                let (actor, seq) = (first + at, times.item);
                trace.events.push(brigade_actors::TraceEvent { actor, seq, start_ns, end_ns });
            }
        }
        trace.events.sort_by_key(|e| e.start_ns);
    }

    /// Ends the session on all workers. Pipelines that have segments there fail from then on.
    pub fn close(&self) {
        self.hub.close();
    }
}

/// A worker of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct WorkerReport {
    /// Its name.
    pub name: String,
    /// Its address.
    pub address: String,
    /// `up`, `broken` (silent, within its lease) or `lost`, with the reason.
    pub state: String,
    /// The shortest way there and back that was measured, in microseconds.
    pub round_trip_us: Option<f64>,
    /// Its devices.
    pub devices: Vec<String>,
}

/// A stage of a cluster.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StageReport {
    /// Its number.
    pub stage: u64,
    /// The name of its graph.
    pub name: String,
    /// Where it is now.
    pub device: String,
    /// How often it was placed again.
    pub moves: u32,
    /// Firings that it completed.
    pub firings: u64,
    /// Seconds that its worker computed for them.
    pub busy_s: f64,
    /// Seconds that loading its weights took, at the last placement.
    pub load_s: f64,
    /// Seconds that compiling it took, at the last placement.
    pub compile_s: f64,
    /// Bytes of weights that its worker read for it.
    pub read_bytes: u64,
}

/// A worker that was lost.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Loss {
    /// Its name.
    pub worker: String,
    /// Why it counts as lost.
    pub why: String,
    /// Seconds from the last sign of life to the decision.
    pub silent_s: f64,
    /// Seconds from the decision until its stages were placed again; `None` if they were not.
    pub replaced_s: Option<f64>,
    /// Of these, the longest that a worker took to load and compile one.
    pub load_and_compile_s: f64,
    /// Firings that were sent again.
    pub replayed: u64,
}

/// What a cluster has done.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ClusterStats {
    /// The workers, in the order they were given.
    pub workers: Vec<WorkerReport>,
    /// The stages, by number.
    pub stages: Vec<StageReport>,
    /// What was lost, oldest first.
    pub losses: Vec<Loss>,
    /// Results that came twice, of which the second was dropped.
    pub duplicates: u64,
    /// Links that broke and were taken up again within the lease.
    pub resumed: u64,
    /// Firings that are under way or whose outputs are held.
    pub held: usize,
    /// The links that somebody wanted to know of, by their ends.
    pub links: Vec<LinkReport>,
}

/// When a stage computed a firing.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StageTimes {
    /// The number of the stage.
    pub stage: u64,
    /// The number of the item within the segment.
    pub item: u64,
    /// Nanoseconds from the connection of the cluster to the start, as well as the clocks agree.
    pub start_ns: u64,
    /// To the end.
    pub end_ns: u64,
}

/// The error of a link as one of this crate.
#[allow(clippy::needless_pass_by_value)] // so that `map_err` takes it
pub fn link_error(error: brigade_actors::transport::LinkError) -> crate::Error {
    use brigade_actors::transport::LinkError;
    match &error {
        LinkError::Address { .. } => err!(Usage, "{error}"),
        LinkError::Security { .. } | LinkError::Unreachable { .. } => err!(Device, "{error}"),
        _ => err!(Device, "the link failed: {error}"),
    }
}
