//! Building a pipeline.

use std::collections::{BTreeMap, HashSet};
use std::sync::{Arc, OnceLock};

use brigade_actors::{InPort, Options, Options as RuntimeOptions, OutPort, System, Topology};

use super::handle::{Inner, Pipeline};
use super::params::ParamValue;
use super::placement;
use super::prepared::{CPU, PerDevice, Prepared, listing, optimised};
use super::stage::{factory, item_error};
use crate::device::{DeviceId, check_in_flight, check_replicas};
use crate::error::{Result, err};
use crate::graph::Graph;
use crate::import::{WeightCache, WeightRef};
use crate::ops::{CompileOptions, Precision};
use crate::partition::{DeviceMap, InFlight, OutputSource, Plan, Source};
use crate::registry::Registry;
use crate::tensor::{DType, Tensor, Value};

/// Collects what a pipeline is made of; [`spawn`](Self::spawn) checks it all.
#[derive(Debug)]
pub struct PipelineBuilder {
    graph: Graph,
    registry: Registry,
    options: CompileOptions,
    placing: Placing,
    params: Vec<(String, ParamValue)>,
    weights: Option<WeightCache>,
    micro_batch: Option<usize>,
    in_flight: Option<usize>,
    per_device: PerDevice,
    replicas: BTreeMap<usize, usize>,
    lanes: BTreeMap<DeviceId, usize>,
    system: Option<System>,
    cpu_budget: Option<usize>,
    axes: BTreeMap<String, Option<usize>>,
    shapes: Vec<(String, Vec<usize>)>,
    trace: usize,
    name: Option<String>,
    runtime: Options,
}

#[derive(Debug)]
enum Placing {
    Map(DeviceMap),
    Plan(Plan),
    Stages { count: usize, devices: Vec<DeviceId> },
    Fallback { primary: DeviceId, fallback: DeviceId, if_present: bool },
}

impl Pipeline {
    /// Starts building a pipeline over a graph. Unless told otherwise it is one segment on `cpu`.
    pub fn builder(graph: Graph) -> PipelineBuilder {
        PipelineBuilder {
            graph,
            registry: Registry::default(),
            options: CompileOptions::default(),
            placing: Placing::Map(DeviceMap::single(DeviceId::cpu(0))),
            params: Vec::new(),
            weights: None,
            micro_batch: None,
            in_flight: None,
            per_device: PerDevice::default(),
            replicas: BTreeMap::new(),
            lanes: BTreeMap::new(),
            system: None,
            cpu_budget: None,
            axes: BTreeMap::new(),
            shapes: Vec::new(),
            trace: 0,
            name: None,
            runtime: Options::new(),
        }
    }
}

impl PipelineBuilder {
    /// The devices and operators to work with.
    #[must_use]
    pub fn registry(mut self, registry: Registry) -> Self {
        self.registry = registry;
        self
    }

    /// Options of the compilation.
    #[must_use]
    pub fn options(mut self, options: CompileOptions) -> Self {
        self.options = options;
        self
    }

    /// Which node runs where.
    #[must_use]
    pub fn placement(mut self, map: DeviceMap) -> Self {
        self.placing = Placing::Map(map);
        self
    }

    /// What a plan says: placement, micro-batch, items in flight, threads, precision and replicas. What was set
    /// before and the plan is silent of stays.
    ///
    /// ```
    /// use brigade::ops::builder::GraphBuilder;
    /// use brigade::partition::Plan;
    /// use brigade::{DType, Pipeline};
    ///
    /// let mut g = GraphBuilder::new("g");
    /// let x = g.input("x", DType::F32, ["N".into()])?;
    /// let h = g.relu(x)?;
    /// let y = g.tanh(h)?;
    /// let plan = Plan::parse(
    ///     r#"{"schema": 1, "default_device": "cpu:0", "in_flight": 3,
    ///         "rules": [{"match": "op:Tanh", "device": "cpu:1"}]}"#,
    /// )?;
    /// let pipeline = Pipeline::builder(g.finish([("y", y)])?).plan(plan).spawn()?;
    /// assert_eq!(pipeline.sequential().num_segments(), 2);
    /// assert_eq!(pipeline.in_flight_limit(), 3);
    /// # Ok::<(), brigade::Error>(())
    /// ```
    ///
    #[must_use]
    pub fn plan(mut self, plan: Plan) -> Self {
        if let Some(n) = plan.micro_batch {
            self.micro_batch = Some(n as usize);
        }
        match plan.in_flight {
            Some(InFlight::Count(n)) => self.in_flight = Some(n as usize),
            Some(InFlight::Auto) => self.in_flight = None,
            None => {}
        }
        let threads = plan.threads.iter().map(|(d, n)| (d.clone(), *n as usize));
        self.per_device.threads.extend(threads);
        self.per_device.precision.extend(plan.precision.clone());
        let replicas = plan.replicas.iter();
        self.replicas.extend(replicas.map(|(segment, n)| (*segment as usize, *n as usize)));
        self.placing = Placing::Plan(plan);
        self
    }

    /// `count` contiguous segments of about equal analytic cost, over the devices in turn.
    ///
    /// # Errors
    /// If a device's name is not well formed.
    pub fn stages(mut self, count: usize, devices: &[&str]) -> Result<Self> {
        let devices = devices.iter().map(|d| d.parse()).collect::<Result<Vec<DeviceId>>>()?;
        self.placing = Placing::Stages { count, devices };
        Ok(self)
    }

    /// Each node on `primary` where that supports it, else on `fallback`.
    /// [`Pipeline::notices`] lists those that fell back.
    #[must_use]
    pub fn fallback(mut self, primary: DeviceId, fallback: DeviceId) -> Self {
        self.placing = Placing::Fallback { primary, fallback, if_present: false };
        self
    }

    /// As [`Self::fallback`], but a primary device that is not usable here is no error: then
    /// everything is on `fallback`, and [`Pipeline::notices`] says so, with the reason.
    ///
    /// ```
    /// use brigade::ops::builder::GraphBuilder;
    /// use brigade::{DType, Pipeline};
    /// let mut g = GraphBuilder::new("g");
    /// let x = g.input("x", DType::F32, [2.into()])?;
    /// let y = g.relu(x)?;
    /// let graph = g.finish([("y", y)])?;
    /// let (npu, cpu) = ("npu:0".parse()?, "cpu:0".parse()?);
    /// let pipeline = Pipeline::builder(graph).fallback_if_present(npu, cpu).spawn()?;
    /// assert!(pipeline.notices()[0].contains("`npu:0`"));
    /// # Ok::<(), brigade::Error>(())
    /// ```
    #[must_use]
    pub fn fallback_if_present(mut self, primary: DeviceId, fallback: DeviceId) -> Self {
        self.placing = Placing::Fallback { primary, fallback, if_present: true };
        self
    }

    /// Binds parameters.
    #[must_use]
    pub fn params<N: Into<String>>(
        mut self,
        params: impl IntoIterator<Item = (N, Tensor)>,
    ) -> Self {
        self.params.extend(params.into_iter().map(|(n, t)| (n.into(), t.into())));
        self
    }

    /// Binds a parameter of f32.
    #[must_use]
    pub fn set_param(self, name: impl Into<String>, data: &[f32]) -> Self {
        self.set_param_typed(name, DType::F32, bytemuck::cast_slice(data))
    }

    /// Binds a parameter to little-endian elements, in the order of its declared shape.
    #[must_use]
    pub fn set_param_typed(self, name: impl Into<String>, dtype: DType, bytes: &[u8]) -> Self {
        self.bind(name, ParamValue::elements(dtype, bytes))
    }

    /// Binds a parameter to a [`Tensor`] or to a weight in a file, which is loaded as the pipeline is
    /// spawned.
    ///
    /// ```
    /// use brigade::ops::builder::GraphBuilder;
    /// use brigade::{DType, Pipeline, Tensor, WeightCache, WeightRef, import};
    ///
    /// let folder = std::env::temp_dir().join(format!("brigade-doc-bind-{}", std::process::id()));
    /// std::fs::create_dir_all(&folder).unwrap();
    /// import::write_npy(folder.join("w.npy"), &Tensor::new([2], vec![1.0_f32, -1.0])?)?;
    ///
    /// let mut g = GraphBuilder::new("g");
    /// let x = g.input("x", DType::F32, [2.into()])?;
    /// let w = g.param("w", DType::F32, &[2])?;
    /// let y = g.add(x, w)?;
    /// let pipeline = Pipeline::builder(g.finish([("y", y)])?)
    ///     .weights(&WeightCache::new().with_root(&folder)?)
    ///     .bind("w", WeightRef::new("w", "npy://w.npy"))
    ///     .spawn()?;
    /// let outputs = pipeline.run([("x", Tensor::new([2], vec![1.0_f32, 1.0])?)])?;
    /// assert_eq!(outputs[0].tensor()?.as_slice::<f32>()?, [2.0, 0.0]);
    /// # std::fs::remove_dir_all(&folder).unwrap();
    /// # Ok::<(), brigade::Error>(())
    /// ```
    #[must_use]
    pub fn bind(mut self, name: impl Into<String>, value: impl Into<ParamValue>) -> Self {
        self.params.push((name.into(), value.into()));
        self
    }

    /// Binds each of these weights to the parameter that it names.
    #[must_use]
    pub fn bind_all(mut self, weights: impl IntoIterator<Item = WeightRef>) -> Self {
        self.params.extend(weights.into_iter().map(|w| (w.name.clone(), w.into())));
        self
    }

    /// The cache that weights come from: its roots, schemes and files. Unless it is given, weights
    /// are read anywhere, through the schemes of the registry.
    #[must_use]
    pub fn weights(mut self, weights: &WeightCache) -> Self {
        self.weights = Some(weights.clone());
        self
    }

    /// Cuts batches into micro-batches of at most this many items.
    #[must_use]
    pub fn micro_batch(mut self, items: usize) -> Self {
        self.micro_batch = Some(items);
        self
    }

    /// How many items may be in flight, at most
    /// [`MAX_IN_FLIGHT`](crate::device::MAX_IN_FLIGHT); chosen from the number of segments unless set.
    #[must_use]
    pub fn in_flight(mut self, items: usize) -> Self {
        self.in_flight = Some(items);
        self
    }

    /// Kernel threads of each actor on a device (1 unless set, at most
    /// [`MAX_THREADS`](crate::device::MAX_THREADS)).
    #[must_use]
    pub fn threads(mut self, device: DeviceId, threads: usize) -> Self {
        self.per_device.threads.insert(device, threads);
        self
    }

    /// What products on a device are computed in; what nothing is said of computes in
    /// [`CompileOptions::precision`], which is f32 unless set.
    ///
    /// ```
    /// use brigade::ops::builder::GraphBuilder;
    /// use brigade::{DType, Pipeline, Precision};
    ///
    /// let mut g = GraphBuilder::new("g");
    /// let x = g.input("x", DType::F32, ["N".into(), 4.into()])?;
    /// let w = g.param("w", DType::F32, &[4, 4])?;
    /// let y = g.matmul(x, w)?;
    /// let refused = Pipeline::builder(g.finish([("y", y)])?)
    ///     .precision("cpu".parse()?, Precision::Tf32)
    ///     .spawn();
    /// assert!(refused.unwrap_err().to_string().contains("`cpu:0` does not compute in tf32"));
    /// # Ok::<(), brigade::Error>(())
    /// ```
    #[must_use]
    pub fn precision(mut self, device: DeviceId, precision: Precision) -> Self {
        self.per_device.precision.insert(device, precision);
        self
    }

    /// Runs the segment with this number by so many actors, at most
    /// [`MAX_REPLICAS`](crate::device::MAX_REPLICAS), which share its items and its weights.
    /// A CPU device gets as many lanes as the most replicated of its segments has replicas, unless
    /// [`lanes`](Self::lanes) says otherwise; on other devices replicas take turns at what there
    /// is. Results are the same to the bit, and in order.
    ///
    /// ```
    /// use brigade::ops::builder::GraphBuilder;
    /// use brigade::{DType, Pipeline, Tensor};
    ///
    /// let mut g = GraphBuilder::new("g");
    /// let x = g.input("x", DType::F32, [2.into()])?;
    /// let y = g.relu(x)?;
    /// let pipeline = Pipeline::builder(g.finish([("y", y)])?).replicas(0, 2).spawn()?;
    /// let items = (0..50).map(|i| [("x", Tensor::new([2], vec![i as f32; 2]).unwrap())]);
    /// for (i, outputs) in pipeline.stream(items).enumerate() {
    ///     assert_eq!(outputs?[0].tensor()?.as_slice::<f32>()?, [i as f32; 2]);
    /// }
    /// assert_eq!(pipeline.stats().actors.len(), 2);
    /// # Ok::<(), brigade::Error>(())
    /// ```
    #[must_use]
    pub fn replicas(mut self, segment: usize, replicas: usize) -> Self {
        self.replicas.insert(segment, replicas);
        self
    }

    /// How many actors of this pipeline may compute on a device at once.
    #[must_use]
    pub fn lanes(mut self, device: DeviceId, lanes: usize) -> Self {
        self.lanes.insert(device, lanes);
        self
    }

    /// Spawns the pipeline in a system: it shares the lanes of its devices, and a CPU budget if the
    /// system has one, with the other pipelines there. Each actor on a CPU device asks the budget
    /// for its kernel threads and computes on what it is granted, which changes no result;
    /// [`Pipeline::notices`] says where that is less than was asked for.
    ///
    /// ```
    /// use brigade::ops::builder::GraphBuilder;
    /// use brigade::{DType, Pipeline, System, Tensor};
    ///
    /// let system = System::new().cpu_budget(2);
    /// let model = |name: &str| {
    ///     let mut g = GraphBuilder::new(name);
    ///     let x = g.input("x", DType::F32, [2.into()])?;
    ///     let y = g.relu(x)?;
    ///     Pipeline::builder(g.finish([("y", y)])?).system(&system).spawn()
    /// };
    /// let (detect, recognise) = (model("detect")?, model("recognise")?);
    /// assert_eq!(system.pipelines(), ["detect", "recognise"]);
    /// // Both are on `cpu:0` and take turns, so one thread serves both.
    /// assert_eq!(system.cpu().used, 1);
    /// let x = Tensor::new([2], vec![-1.0_f32, 1.0])?;
    /// detect.run([("x", x.clone())])?;
    /// recognise.run([("x", x)])?;
    /// # Ok::<(), brigade::Error>(())
    /// ```
    #[must_use]
    pub fn system(mut self, system: &System) -> Self {
        self.system = Some(system.clone());
        self
    }

    /// Gives the pipeline a system of its own with this CPU budget: the threads that its actors may
    /// compute on at once.
    #[must_use]
    pub fn cpu_budget(mut self, threads: usize) -> Self {
        self.cpu_budget = Some(threads);
        self
    }

    /// The axis of an input that carries the batch (`None`: it carries none).
    #[must_use]
    pub fn batch_axis(mut self, input: impl Into<String>, axis: Option<usize>) -> Self {
        self.axes.insert(input.into(), axis);
        self
    }

    /// The shape that an input will have, for estimates of cost.
    #[must_use]
    pub fn expected_shape(mut self, input: impl Into<String>, shape: &[usize]) -> Self {
        self.shapes.push((input.into(), shape.to_vec()));
        self
    }

    /// Records up to this many events per actor.
    #[must_use]
    pub fn trace(mut self, events: usize) -> Self {
        self.trace = events;
        self
    }

    /// How the actors run: what happens when the pipeline is full, budgets, adaptive depth, retries,
    /// restarts, the watchdog. What the other methods of this builder say (number in flight, trace,
    /// name) goes before it.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use brigade::ops::builder::GraphBuilder;
    /// use brigade::pipeline::{RuntimeOptions, WhenFull};
    /// use brigade::{DType, Pipeline, Tensor};
    ///
    /// let mut g = GraphBuilder::new("g");
    /// let x = g.input("x", DType::F32, ["N".into()])?;
    /// let y = g.relu(x)?;
    /// let runtime = RuntimeOptions::new()
    ///     .in_flight_auto(16)
    ///     .when_full(WhenFull::DropOldest)
    ///     .queue(8)
    ///     .retry_panics(1)
    ///     .watchdog(Duration::from_secs(30));
    /// let pipeline = Pipeline::builder(g.finish([("y", y)])?).runtime(runtime).spawn()?;
    /// let ticket = pipeline.push([("x", Tensor::new([2], vec![-1.0_f32, 1.0])?)])?;
    /// assert_eq!(ticket.wait()?[0].tensor()?.as_slice::<f32>()?, [0.0, 1.0]);
    /// assert_eq!(pipeline.stats().admission.dropped, 0);
    /// # Ok::<(), brigade::Error>(())
    /// ```
    #[must_use]
    pub fn runtime(mut self, options: RuntimeOptions) -> Self {
        self.runtime = options;
        self
    }

    /// The pipeline's name in statistics and errors.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Runs the passes, cuts the graph, compiles the segments and starts the actors.
    ///
    /// # Errors
    /// If anything of it is not possible: operators that cannot be run (all listed), devices that
    /// are not there, parameters that are not bound, options out of range.
    pub fn spawn(self) -> Result<Pipeline> {
        if self.micro_batch == Some(0) {
            return Err(err!(Usage, "a micro-batch of 0 items is not possible")
                .with_help("use at least 1, or none to run batches whole"));
        }
        self.in_flight.map_or(Ok(()), check_in_flight)?;
        let system = match (self.system.as_ref(), self.cpu_budget) {
            (Some(_), Some(_)) => {
                return Err(err!(Usage, "a pipeline in a system has no CPU budget of its own")
                    .with_help("give the budget to the system"));
            }
            (Some(system), None) => system.clone(),
            (None, Some(threads)) => System::new().cpu_budget(threads),
            (None, None) => System::new(),
        };
        self.graph.validate()?;
        self.check_names()?;
        let before = self.graph.clone();
        let mut options = self.options.clone();
        options.keep_weights |= self.registry.has_sources();
        let graph = optimised(self.graph, &self.registry, &options)?;
        let shapes: Vec<(&str, &[usize])> =
            self.shapes.iter().map(|(n, s)| (n.as_str(), s.as_slice())).collect();
        let symbols = crate::ops::infer::bind_symbols(&graph, &shapes)?;
        let mut notices: Vec<String> = Vec::new();
        let map = match self.placing {
            Placing::Map(map) => match map.check(&graph) {
                Ok(()) => map,
                Err(_) => map.carry_over(&before, &graph)?,
            },
            Placing::Plan(plan) => plan.resolve(&graph, None)?,
            Placing::Stages { count, devices } => {
                let lookup = |s: &str| symbols.get(s).copied();
                placement::balanced(&graph, &devices, count, &self.registry, &lookup)?
            }
            Placing::Fallback { primary, fallback, if_present: false } => {
                placement::fallback(&graph, &primary, &fallback, &self.registry)?
            }
            Placing::Fallback { primary, fallback, if_present: true } => {
                let registry = &self.registry;
                let found = placement::fallback_if_present(&graph, &primary, &fallback, registry)?;
                notices.extend(found.1);
                found.0
            }
        };
        notices.extend(map.notices().iter().map(ToString::to_string));
        notices.extend(crate::ops::decoded_weights(&graph));
        let absent = |d: &&DeviceId| !map.devices().any(|m| m == *d);
        for device in self.per_device.threads.keys().filter(absent) {
            notices.push(format!("threads are given to `{device}`, but no node is placed on it"));
        }
        for device in self.per_device.precision.keys().filter(absent) {
            notices
                .push(format!("a precision is given to `{device}`, but no node is placed on it"));
        }
        let crew = Crew { replicas: self.replicas, lanes: self.lanes };
        let prepared = Prepared::new(graph, &map, &self.registry, self.options, self.per_device)?;
        crew.check(&prepared, &mut notices)?;
        let weights = self.weights.unwrap_or_else(|| {
            WeightCache::new().with_schemes(self.registry.weight_schemes().clone())
        });
        for (name, value) in self.params {
            value.bind(&name, &prepared, &weights)?;
        }
        let prepared = Arc::new(prepared);
        let sealed = prepared.seal()?;
        let mut fixed: Vec<(usize, Tensor)> = sealed.fixed.clone().into_iter().collect();
        fixed.sort_by_key(|(at, _)| *at);
        let topology = topology(&prepared, sealed.segments, &crew)?;
        let mut options = self.runtime;
        if self.trace > 0 {
            options = options.trace(self.trace);
        }
        if let Some(n) = self.in_flight {
            options = options.in_flight(n);
        }
        let name = self.name.unwrap_or_else(|| prepared.graph().name.clone());
        if !name.is_empty() {
            options = options.name(name);
        }
        let actors = system.spawn(topology, options).map_err(|e| match e {
            brigade_actors::SpawnError::Stage { error, .. } => item_error(&error),
            e @ (brigade_actors::SpawnError::CpuBudget { .. }
            | brigade_actors::SpawnError::Options(_)) => err!(Usage, "{e}"),
            other => err!(Device, "the pipeline could not be started").with_source(other),
        })?;
        notices.extend(actors.stats().notices);
        Ok(Pipeline::new(Inner {
            prepared,
            actors,
            fixed,
            micro_batch: self.micro_batch,
            stated_axes: self.axes,
            axes: OnceLock::new(),
            ops: self.registry.ops().clone(),
            notices,
        }))
    }
}

impl PipelineBuilder {
    /// Checks that what was said of inputs is of inputs that are there, and parameters were given
    /// once.
    fn check_names(&self) -> Result<()> {
        let inputs: Vec<&str> = self.graph.input_names().collect();
        let mut named = self.axes.keys().chain(self.shapes.iter().map(|(name, _)| name));
        if let Some(name) = named.find(|n| !inputs.contains(&n.as_str())) {
            return Err(err!(UnknownName, "the graph has no input `{name}`")
                .with_help(listing("its inputs are", &inputs)));
        }
        let mut seen = HashSet::new();
        if let Some((name, _)) = self.params.iter().find(|(name, _)| !seen.insert(name)) {
            return Err(err!(Duplicate, "parameter `{name}` was given twice")
                .with_help("give each parameter once"));
        }
        Ok(())
    }
}

/// How many actors run each segment, and how many of them may compute at once.
struct Crew {
    replicas: BTreeMap<usize, usize>,
    lanes: BTreeMap<DeviceId, usize>,
}

impl Crew {
    fn replicas(&self, segment: usize) -> usize {
        self.replicas.get(&segment).copied().unwrap_or(1)
    }

    /// The lanes of a device: those that were stated, or its own; of a CPU device, one for every
    /// replica of a segment.
    fn lanes(&self, device: &DeviceId, own: usize, prepared: &Prepared) -> usize {
        if let Some(stated) = self.lanes.get(device) {
            return *stated;
        }
        let here = prepared.split().segments().iter().filter(|s| s.device == *device);
        let most = here.map(|s| self.replicas(s.index)).max().unwrap_or(1);
        if device.kind() == CPU && device.worker().is_none() { own.max(most) } else { own }
    }

    /// Checks that what was said is of segments and devices that are there.
    fn check(&self, prepared: &Prepared, notices: &mut Vec<String>) -> Result<()> {
        let segments = prepared.split().segments();
        for (segment, replicas) in &self.replicas {
            let Some(found) = segments.get(*segment) else {
                let last = segments.len().saturating_sub(1);
                return Err(err!(
                    UnknownName,
                    "replicas are given to segment {segment}, which is not there"
                )
                .with_help(format!("the segments are 0 to {last}")));
            };
            check_replicas(*replicas).map_err(|e| e.within(&format!("segment {segment}")))?;
            let lanes = self.lanes(&found.device, prepared.devices()[*segment].lanes(), prepared);
            if *replicas > lanes {
                notices.push(format!(
                    "segment {segment} has {replicas} replicas, which take turns at the {lanes} of `{}`",
                    found.device
                ));
            }
        }
        for (device, lanes) in &self.lanes {
            if *lanes == 0 {
                return Err(err!(Usage, "`{device}` is given 0 lanes").with_help("use at least 1"));
            }
            if !segments.iter().any(|s| s.device == *device) {
                notices.push(format!("lanes are given to `{device}`, but no node is placed on it"));
            }
        }
        Ok(())
    }
}

/// The actors of a prepared graph: a source port for each input, an actor for each segment, a sink
/// port for each output that is not constant. A segment that reads nothing fires with the first
/// input all the same; a graph without inputs has a source that stands for its items.
fn topology(
    prepared: &Prepared,
    compiled: Vec<Arc<dyn crate::device::CompiledSegment>>,
    crew: &Crew,
) -> Result<Topology<Value>> {
    let split = prepared.split();
    let mut builder = Topology::<Value>::builder();
    let mut sources: Vec<OutPort> =
        prepared.inputs().iter().map(|(name, _)| builder.source(name.clone())).collect();
    if prepared.needs_start() {
        sources.push(builder.source("start"));
    }
    let mut ids = Vec::with_capacity(compiled.len());
    for ((segment, device), code) in split.segments().iter().zip(prepared.devices()).zip(compiled) {
        let device_name = segment.device.to_string();
        builder.lanes(device_name.clone(), crew.lanes(&segment.device, device.lanes(), prepared));
        if segment.device.worker().is_some()
            && let Ok(there) = device.probe()
        {
            // Its worker sees to the lanes; figures have to know how many there are.
            builder.computing(device_name.clone(), there.lanes);
        }
        let outputs = segment.graph.outputs().len();
        let name = format!("{}.{}", device_name, segment.index);
        let needed = prepared.deliveries(segment.index).to_vec();
        let reads = segment.inputs.len();
        let memory = prepared.memory(segment.index).cloned();
        let stage = factory(code, segment.device.clone(), memory.clone(), reads, needed);
        let id = builder.actor(name, device_name, reads.max(1), outputs, stage);
        if let Some(memory) = memory {
            builder.memory(id, &*memory);
        }
        builder.replicas(id, crew.replicas(segment.index));
        if let Some(threads) = prepared.cpu_threads(&segment.device) {
            builder.threads(id, threads);
        }
        ids.push(id);
    }
    let from = |source: &Source| match *source {
        Source::Input(i) => sources[i],
        Source::Segment { index, output } => ids[index].output(output),
    };
    for (segment, id) in split.segments().iter().zip(&ids) {
        if let (true, Some(start)) = (segment.inputs.is_empty(), sources.first()) {
            builder.connect(*start, id.input(0));
        }
        for (port, source) in segment.inputs.iter().enumerate() {
            builder.connect(from(source), id.input(port));
        }
    }
    for (i, (source, name)) in
        split.outputs().iter().zip(prepared.graph().output_names()).enumerate()
    {
        let port: OutPort = match source {
            OutputSource::Input(k) => sources[*k],
            OutputSource::Segment { index, output } => ids[*index].output(*output),
            OutputSource::Constant(_) | OutputSource::Param(_) => continue,
        };
        // One value may be several outputs, whose names must differ here.
        let sink: InPort = builder.sink(format!("{i}:{name}"));
        builder.connect(port, sink);
    }
    builder.build().map_err(|e| err!(Plan, "the graph makes no pipeline").with_source(e))
}
