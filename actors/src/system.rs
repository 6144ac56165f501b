//! Several pipelines that share devices.

use std::collections::HashMap;
use std::fmt;
use std::time::Instant;

use crate::error::SpawnError;
use crate::lane::Lanes;
use crate::metrics::Stats;
use crate::options::Options;
use crate::payload::Payload;
use crate::pipeline::{Pipeline, StopReport};
use crate::registry::{Registry, Supervised};
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};
use crate::topology::Topology;

/// A group of pipelines that share the lanes of their devices: actors with the same device string
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
    pipelines: Registry,
}

impl System {
    /// A system without pipelines yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Spawns a pipeline in this system; see [`Pipeline::spawn`]. The first pipeline that names a
    /// device says how many lanes it has.
    ///
    /// # Errors
    ///
    /// As [`Pipeline::spawn`]; [`SpawnError::Options`] if a pipeline of the same name is alive.
    pub fn spawn<P: Payload>(
        &self,
        topology: Topology<P>,
        options: Options,
    ) -> Result<Pipeline<P>, SpawnError> {
        Pipeline::spawn_in(self, topology, options)
    }

    /// The names of the pipelines that are alive, in order.
    #[must_use]
    pub fn pipelines(&self) -> Vec<String> {
        self.shared.pipelines.all().iter().map(|pipeline| pipeline.name().to_owned()).collect()
    }

    /// The figures of every pipeline that is alive, by name.
    #[must_use]
    pub fn stats(&self) -> Vec<Stats> {
        self.shared.pipelines.all().iter().map(|pipeline| pipeline.stats()).collect()
    }

    /// Shuts one pipeline down; see [`Pipeline::shutdown`]. `None` if there is none of this name.
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
