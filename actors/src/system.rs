//! Several pipelines that share devices.

use std::collections::HashMap;
use std::fmt;
use std::time::Instant;

use crate::cpu::{CpuBudget, CpuPolicy, CpuReport};
use crate::error::SpawnError;
use crate::lane::Lanes;
use crate::metrics::Stats;
use crate::options::Options;
use crate::payload::Payload;
use crate::pipeline::{Pipeline, StopReport};
use crate::registry::{Registry, Supervised};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use crate::topology::Topology;

/// A group of pipelines that share the lanes of their devices and a CPU budget: actors with the same device string
/// compute on the same lanes, whichever of the pipelines they belong to.
///
/// ```
/// use brigade_actors::{Options, System, Topology, stage_fn};
///
/// let system = System::new();
/// let topology = |name: &str| {
///     let mut builder = Topology::<i64>::builder();
///     let x = builder.source("x");
///     let actor = builder.actor(name, "gpu:0", 1, 1, stage_fn(|v: Vec<i64>| Ok(v)));
///     let y = builder.sink("y");
///     builder.connect(x, actor.input(0)).connect(actor.output(0), y);
///     builder.build()
/// };
/// let detect = system.spawn(topology("detect")?, Options::new())?;
/// let recognise = system.spawn(topology("recognise")?, Options::new())?;
/// assert_eq!(detect.push(vec![1])?.wait()?, recognise.push(vec![1])?.wait()?);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Default)]
pub struct System {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    next: AtomicU64,
    devices: Mutex<HashMap<String, Arc<Lanes>>>,
    budget: Arc<CpuBudget>,
    pipelines: Registry,
}

impl System {
    /// A system without pipelines yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives the pipelines of this system so many CPU threads to compute on at once; without it,
    /// any number.
    ///
    /// Every actor on a CPU device asks for threads when it is spawned: as many as
    /// [`TopologyBuilder::threads`](crate::TopologyBuilder::threads) says. Shares are disjoint, and
    /// one belongs to each lane of a device that is in use: actors that take turns use the same
    /// threads. When the budget is used up, the [policy](Self::cpu_policy) decides. A share comes
    /// back when the thread of its last actor ends.
    ///
    /// ```
    /// use brigade_actors::{CpuPolicy, Options, SpawnError, System, Topology, stage_fn};
    ///
    /// let topology = |device: &str, threads| {
    ///     let mut builder = Topology::<i64>::builder();
    ///     let x = builder.source("x");
    ///     let actor = builder.actor("a", device, 1, 1, stage_fn(|v: Vec<i64>| Ok(v)));
    ///     let y = builder.sink("y");
    ///     builder.connect(x, actor.input(0)).connect(actor.output(0), y).threads(actor, threads);
    ///     builder.build()
    /// };
    /// let system = System::new().cpu_budget(3);
    /// let first = system.spawn(topology("cpu:0", 2)?, Options::new())?;
    /// let second = system.spawn(topology("cpu:1", 2)?, Options::new())?;
    /// assert_eq!(second.stats().actors[0].threads, 1);
    /// assert_eq!(second.stats().notices.len(), 1);
    /// // It takes turns with the first, so it needs no threads of its own.
    /// let third = system.spawn(topology("cpu:0", 2)?, Options::new())?;
    /// assert_eq!((third.stats().cpu.used, third.stats().notices.len()), (3, 0));
    ///
    /// let strict = System::new().cpu_budget(1).cpu_policy(CpuPolicy::Refuse);
    /// let refused = strict.spawn(topology("cpu:0", 2)?, Options::new());
    /// assert!(matches!(refused, Err(SpawnError::CpuBudget { asked: 2, budget: 1, .. })));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn cpu_budget(self, threads: usize) -> Self {
        self.shared.budget.limit(threads);
        self
    }

    /// What happens when a pipeline asks for more than is left of the budget.
    #[must_use]
    pub fn cpu_policy(self, policy: CpuPolicy) -> Self {
        self.shared.budget.policy(policy);
        self
    }

    /// Pins the threads of actors that are spawned from now on, and were granted one thread, to the
    /// core of their share; the others are told [theirs](crate::StageContext::cores). Cores are the
    /// first `cores` ones that this process may run on. Shares that find no core left, and threads that
    /// the operating system does not let be pinned, run anywhere; the figures of the pipeline say
    /// so. With more lanes than one on a device, and more actors than lanes, two that compute at
    /// once may be meant for one core: give such actors devices of their own.
    #[cfg(feature = "affinity")]
    #[must_use]
    pub fn pin(self, cores: usize) -> Self {
        self.shared.budget.pin(cores.min(crate::affinity::cores()));
        self
    }

    /// Who was given what of the CPU budget.
    #[must_use]
    pub fn cpu(&self) -> CpuReport {
        self.shared.budget.report()
    }

    /// Spawns a pipeline in this system; see [`Pipeline::spawn`]. The first pipeline that names a
    /// device says how many lanes it has.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::spawn`]; [`SpawnError::Options`] if a pipeline of the same name is alive: one
    /// that was stopped, failed, or lost its last handle leaves its name to the next;
    /// [`SpawnError::CpuBudget`] if the policy is to refuse.
    pub fn spawn<P: Payload>(
        &self,
        topology: Topology<P>,
        options: Options,
    ) -> Result<Pipeline<P>, SpawnError> {
        Pipeline::spawn_in(self, topology, options)
    }

    /// The names of the pipelines that run or drain, in order. One that was stopped or failed is not
    /// among them, whoever holds a handle on it.
    #[must_use]
    pub fn pipelines(&self) -> Vec<String> {
        self.shared.pipelines.live().iter().map(|pipeline| pipeline.name().to_owned()).collect()
    }

    /// The figures of every pipeline that has a handle, by name: also of those that were stopped or
    /// failed, until another one takes the name.
    #[must_use]
    pub fn stats(&self) -> Vec<Stats> {
        self.shared.pipelines.all().iter().map(|pipeline| pipeline.stats()).collect()
    }

    /// Shuts one pipeline down; see [`Pipeline::shutdown`]. `None` if there is none of this name.
    /// One that has ended already gives its report again.
    #[must_use]
    pub fn stop(&self, name: &str) -> Option<StopReport> {
        let pipeline = self.shared.pipelines.get(name)?;
        Some(pipeline.stop(Instant::now().checked_add(pipeline.stop_timeout())))
    }

    /// Shuts every pipeline down: first all are told, then all are waited for. Gives the name of
    /// each with its report.
    pub fn shutdown(&self) -> Vec<(String, StopReport)> {
        let pipelines = self.shared.pipelines.all();
        let begun = Instant::now();
        for pipeline in &pipelines {
            pipeline.begin_stop();
        }
        let stop = |pipeline: &Arc<dyn Supervised>| {
            let report = pipeline.stop(begun.checked_add(pipeline.stop_timeout()));
            (pipeline.name().to_owned(), report)
        };
        pipelines.iter().map(stop).collect()
    }

    pub(crate) fn budget(&self) -> &Arc<CpuBudget> {
        &self.shared.budget
    }

    pub(crate) fn registry(&self) -> &Registry {
        &self.shared.pipelines
    }

    /// The number of the next pipeline, and its name.
    pub(crate) fn next(&self, name: Option<String>) -> (u64, String) {
        let number = self.shared.next.fetch_add(1, Ordering::Relaxed);
        (number, name.unwrap_or_else(|| format!("pipeline-{number}")))
    }

    pub(crate) fn lanes_of(&self, device: &str, stated: Option<usize>) -> Arc<Lanes> {
        let mut devices = lock(&self.shared.devices);
        let lanes = devices
            .entry(device.to_owned())
            .or_insert_with(|| Lanes::new(device, stated.unwrap_or(1)));
        Arc::clone(lanes)
    }
}

impl fmt::Debug for System {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let devices = lock(&self.shared.devices);
        f.debug_struct("System")
            .field("devices", &devices.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}
