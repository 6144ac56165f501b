//! Several pipelines that share devices.

use std::collections::HashMap;
use std::fmt;

use crate::error::SpawnError;
use crate::lane::Lanes;
use crate::options::Options;
use crate::payload::Payload;
use crate::pipeline::Pipeline;
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
    /// As [`Pipeline::spawn`].
    pub fn spawn<P: Payload>(
        &self,
        topology: Topology<P>,
        options: Options,
    ) -> Result<Pipeline<P>, SpawnError> {
        Pipeline::spawn_in(self, topology, options)
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
