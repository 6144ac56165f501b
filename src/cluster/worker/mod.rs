//! A worker: takes stages of coordinators, compiles and runs them, and hands tensors on to others.
//!
//! A [`Worker`] that serves has **sessions**, one for each coordinator that is connected or may come
//! back. A session has stages, each on a thread of its own that loads, compiles and computes; one
//! store that says what is here and what waits for what; and a link to each worker that it hands
//! tensors to. What belongs to a session goes with it: its coordinator may close it, or stay away for
//! longer than its lease.
//!
//! - **Nothing waits for the network.** Threads of the transport put what comes into the store and
//!   what is complete into a stage's channel; stages put what they made into the queues of links. No
//!   lock of the store is held while anything is sent or computed.
//! - **Everything may come twice.** Links break and coordinators try again; a message that is
//!   repeated does nothing but repeat its answer.
//! - **Memory is charged before it is taken**, to the stage, its session and the worker.

mod aside;
mod datapath;
mod gauge;
mod inbound;
mod lanes;
mod outlet;
mod peers;
mod quota;
mod rank;
mod serving;
mod session;
mod stage;
mod store;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use brigade_actors::transport::Transport;

pub use datapath::Datapath;
pub use rank::WorkerStage;
pub use serving::{Serving, WorkerStats};

use super::message::Offer;
use super::question::{self, Answer, Answers, Question};
use crate::device::{Device, DeviceId, DeviceInfo};
use crate::error::{Error, Result, bail, err};
use crate::graph::{Fact, Node};
use crate::import::WeightCache;
use crate::pipeline::caught;
use crate::registry::Registry;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What a session may hold where nobody says and the memory of the machine is not known.
const QUOTA: u64 = 8 << 30;

/// What is to be served: devices, weights, limits, and who may use them.
///
/// ```
/// use brigade::cluster::Worker;
/// use brigade::actors::transport::{TransportOptions, transport};
/// use std::time::Duration;
///
/// let local = (transport("local").ok_or("not built")?.open)(&TransportOptions::new())?;
/// let serving = Worker::new("rack2").device("cpu".parse()?).quota(1 << 30).serve(local, "rack2")?;
/// assert_eq!(serving.address(), "rack2");
/// assert_eq!(serving.stats().sessions, 0);
/// assert!(serving.drain(Duration::from_secs(1))); // nobody is there
/// serving.close();
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct Worker {
    name: String,
    registry: Registry,
    weights: WeightCache,
    devices: Vec<DeviceId>,
    quota: Option<u64>,
    allowed: Vec<String>,
    datapath: Option<Datapath>,
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("name", &self.name)
            .field("weights", &self.weights)
            .field("devices", &self.devices)
            .field("quota", &self.quota)
            .field("allowed", &self.allowed)
            .field("datapath", &self.datapath)
            .finish_non_exhaustive()
    }
}

impl Worker {
    /// A worker that offers what this machine has, to everybody whom its transport lets in, and
    /// reads weights anywhere.
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            registry: Registry::default(),
            weights: WeightCache::new(),
            devices: Vec::new(),
            quota: None,
            allowed: Vec::new(),
            datapath: None,
        }
    }

    /// With these operators and devices.
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = registry;
        self
    }

    /// Weights are read through this cache: below its roots, by its schemes. What it calls after
    /// each weight is not called; the coordinator gets to know instead.
    pub fn weights(mut self, weights: WeightCache) -> Self {
        self.weights = weights;
        self
    }

    /// Offers this device, and no others than those that are given so. Without any: those of the
    /// registry that can be used here.
    pub fn device(mut self, device: DeviceId) -> Self {
        self.devices.push(device);
        self
    }

    /// The most bytes that one session may hold: weights, and tensors that wait or are kept. At first
    /// all the memory of the machine. None at all is refused by [`serve`](Self::serve).
    pub fn quota(mut self, bytes: u64) -> Self {
        self.quota = Some(bytes);
        self
    }

    /// Coordinators whose certificates have one of these names may ship stages, and no others.
    /// Without any: everybody whose certificate the transport accepts.
    pub fn allow<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Self {
        self.allowed.extend(names.into_iter().map(Into::into));
        self
    }

    /// Owns this datapath, and takes no other stage.
    pub fn datapath(mut self, datapath: Datapath) -> Self {
        self.datapath = Some(datapath);
        self
    }

    /// Serves at an address of the transport, until what is returned is closed or dropped. Workers
    /// are dialled through the same transport.
    ///
    /// # Errors
    /// If a device that was named cannot be used here, the quota is 0, or the address cannot be
    /// listened at.
    #[allow(clippy::needless_pass_by_value)] // callers have a handle for it alone
    pub fn serve(self, transport: Arc<dyn Transport>, address: &str) -> Result<Serving> {
        if self.quota == Some(0) {
            return Err(err!(Usage, "a session that may hold 0 bytes takes no stage").with_help(
                "give what the weights and tensors of one coordinator may take, such as 8G, or no quota \
                 for all the memory of the machine",
            ));
        }
        let offered = Offered::new(&self)?;
        Serving::start(self, offered, &transport, address)
    }
}

/// The devices that a worker has for its stages.
#[derive(Debug)]
struct Offered {
    devices: Vec<(Arc<dyn Device>, DeviceInfo)>,
    /// Whether they were named one by one.
    stated: bool,
    datapath: Option<Datapath>,
}

impl Offered {
    fn new(worker: &Worker) -> Result<Self> {
        let probed = |id: &DeviceId| -> Result<(Arc<dyn Device>, DeviceInfo)> {
            let device = worker.registry.device(id)?;
            let info = device.probe().map_err(|e| e.into_error(id))?;
            Ok((device, info))
        };
        let stated = !worker.devices.is_empty();
        let devices = if worker.datapath.is_some() {
            Vec::new()
        } else if stated {
            worker.devices.iter().map(probed).collect::<Result<_>>()?
        } else {
            worker.registry.devices().iter().filter_map(|id| probed(id).ok()).collect()
        };
        if devices.is_empty() && worker.datapath.is_none() {
            bail!(Device, "the worker `{}` has no device to offer", worker.name);
        }
        Ok(Self { devices, stated, datapath: worker.datapath.clone() })
    }

    fn names(&self) -> Vec<String> {
        match self.datapath {
            Some(_) => vec![datapath::DEVICE.to_owned()],
            None => self.devices.iter().map(|(d, _)| d.id().to_string()).collect(),
        }
    }

    fn offers(&self) -> Vec<Offer> {
        if let Some(path) = &self.datapath {
            return vec![Offer {
                device: datapath::DEVICE.to_owned(),
                product: format!("fixed datapath `{}`", path.stage_id()),
                lanes: 1,
                software: false,
            }];
        }
        let offer = |(device, info): &(Arc<dyn Device>, DeviceInfo)| Offer {
            device: device.id().to_string(),
            product: info.name.clone(),
            lanes: u32::try_from(device.lanes()).unwrap_or(u32::MAX),
            software: info.software,
        };
        self.devices.iter().map(offer).collect()
    }

    /// Whether the device of a directive runs each node of a question.
    fn answers(&self, directive: &str, question: &[u8], registry: &Registry) -> Result<Answers> {
        let asked: Question = question::decode(question)?;
        if self.datapath.is_some() {
            // It computes none of the nodes: whether it stands for them is seen at the whole stage.
            return Ok(vec![Answer::Yes; asked.len()]);
        }
        let device = self.resolve(directive, registry)?;
        let nodes: Vec<(&Node, Vec<Option<Fact>>)> =
            asked.iter().map(|(node, facts)| (node, facts.clone())).collect();
        let ask = || device.supports_all(&nodes);
        let answers = caught(device.id(), "asking what the device supports", ask)?;
        Ok(answers.into_iter().map(Answer::from).collect())
    }

    /// The device for a directive: a name, or `auto` for the one that is best worth using.
    ///
    /// # Errors
    /// If the one that is named is not here; with the reason and those that are.
    fn resolve(&self, directive: &str, registry: &Registry) -> Result<Arc<dyn Device>> {
        let here = || format!("this worker offers {}", self.names().join(", "));
        if directive == "auto" {
            let best = self.devices.iter().min_by_key(|(d, info)| info.rank(d.id().kind()));
            let best = best.ok_or_else(|| err!(Device, "the worker has no device"))?;
            return Ok(Arc::clone(&best.0));
        }
        let id: DeviceId = directive.parse().map_err(|e: Error| e.with_help(here()))?;
        if let Some((device, _)) = self.devices.iter().find(|(d, _)| *d.id() == id) {
            return Ok(Arc::clone(device));
        }
        // A device that no listing shows, such as one more CPU device.
        match registry.device(&id) {
            Ok(device) if !self.stated => Ok(device),
            Ok(_) => Err(err!(Device, "device `{id}` is not offered here").with_help(here())),
            Err(e) => Err(e.with_help(here())),
        }
    }
}
