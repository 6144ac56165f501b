//! The flags that say how a model is placed, the same for every subcommand.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use clap::Args;

use super::bind::{self, Axis, Extents, Named};
use super::connected::Connected;
use super::console::Console;
use super::memory::Memory;
use super::model;
use crate::device::{DeviceId, check_in_flight, check_precision, check_replicas, check_threads};
use crate::error::{Error, Result, bail, err};
use crate::graph::{Graph, NodeId};
use crate::ops::infer::bind_symbols;
use crate::ops::{CompileOptions, Precision};
use crate::partition::{
    DeviceMap, InFlight, MeasuredLink, Notice, Plan, PlanReport, Segmentation, computing_nodes,
};
use crate::pipeline::{HeteroExecutable, PerDevice, Pipeline, placement};
use crate::registry::Registry;
use crate::tensor::{Tensor, Value};

/// Where the nodes run, and how the pipeline runs.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Placement")]
pub(super) struct Placing {
    /// A plan file, or `auto`: balanced stages by analytic cost, one on each of min(2, cores) CPU
    /// devices; with --workers by measured links, too, one on the first device of each worker. Without
    /// a plan: one segment on `cpu`; with --workers as `auto`
    #[arg(long, value_name = "FILE|auto", conflicts_with_all = ["stages", "device"])]
    pub(super) plan: Option<String>,
    /// Cut into K contiguous stages of about equal analytic cost (with --workers: and so that the links,
    /// as measured, carry what crosses), over the devices in turn
    /// (`cpu:0` to `cpu:K-1` unless --device says others)
    #[arg(long, value_name = "K", value_parser = positive)]
    pub(super) stages: Option<usize>,
    /// Devices, such as `cpu:0,cpu:1`. Without --stages: one stage on each
    #[arg(long, value_name = "DEVICE", value_delimiter = ',')]
    pub(super) device: Vec<DeviceId>,
    /// Where the nodes go that the one device of --device does not support; each is told with the
    /// reason
    #[arg(long, value_name = "DEVICE", requires = "device", conflicts_with_all = ["stages", "plan"])]
    pub(super) fallback: Option<DeviceId>,
    /// Cut batches into micro-batches of at most N items
    #[arg(long, value_name = "N", value_parser = rows)]
    pub(super) micro_batch: Option<NonZeroUsize>,
    /// How many items are in flight at most; `auto` is twice the longest chain of segments
    #[arg(long, value_name = "auto|N")]
    pub(super) in_flight: Option<Flight>,
    /// Kernel threads of each segment: for all devices, or for one as in `cpu:0=2`
    #[arg(long, value_name = "[DEVICE=]N")]
    pub(super) threads: Vec<Threads>,
    /// What products are computed in, f32 unless told: for all devices, as in `bf16`, or for named
    /// ones, as in `cpu:0=bf16,cuda:0=tf32`; one of f32, tf32, bf16 and f16. A device that does not
    /// compute in it refuses
    #[arg(long, value_name = "[DEVICE=]PRECISION", value_delimiter = ',')]
    pub(super) precision: Vec<Products>,
    /// Run segment SEGMENT by N actors that share its items and weights; its CPU device gets as
    /// many lanes. With --synthetic, SEGMENT is the name of a stage
    #[arg(long, value_name = "SEGMENT=N", value_delimiter = ',')]
    pub(super) replicas: Vec<Replicas>,
    /// Turn an input into a constant before the passes: one element, or a `.npy` file
    #[arg(long, value_name = "NAME=VALUE|PATH.npy")]
    pub(super) bind: Vec<Named<String>>,
    /// The shape that an input will have, for costs, memory and --generate
    #[arg(long, value_name = "NAME=1,3,…")]
    pub(super) shape: Vec<Named<Extents>>,
    /// The axis of an input along which a batch is cut; `none`: every micro-batch gets all of it
    #[arg(long, value_name = "NAME=AXIS|none")]
    pub(super) batch_axis: Vec<Named<Axis>>,
    /// Leave out a graph pass
    #[arg(long, value_name = "NAME")]
    pub(super) disable_pass: Vec<String>,
    /// A folder besides the model's own that its weight files may lie below, as where they are links
    /// (repeatable)
    #[arg(long, value_name = "DIR")]
    pub(super) weights_root: Vec<PathBuf>,
    /// The devices of this machine.
    #[arg(skip)]
    pub(super) registry: Registry,
    #[cfg(feature = "cluster")]
    #[command(flatten)]
    pub(super) workers: super::workers::Workers,
}

/// More stages are a slip of the finger.
const MOST_STAGES: usize = 4_096;

fn positive(text: &str) -> Result<usize> {
    match text.parse() {
        Ok(n) if (1..=MOST_STAGES).contains(&n) => Ok(n),
        _ => Err(err!(Usage, "it must be a number from 1 to {MOST_STAGES}")),
    }
}

fn rows(text: &str) -> Result<NonZeroUsize> {
    text.parse().map_err(|_| err!(Usage, "it must be a number of items, at least 1"))
}

/// `auto` or a number of items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Flight(pub(super) Option<usize>);

impl FromStr for Flight {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        match text {
            "auto" => Ok(Self(None)),
            digits => {
                let count = digits
                    .parse()
                    .map_err(|_| err!(Usage, "it must be `auto` or a number of items"))?;
                check_in_flight(count)?;
                Ok(Self(Some(count)))
            }
        }
    }
}

/// Kernel threads, of all devices or of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Threads {
    device: Option<DeviceId>,
    count: usize,
}

impl FromStr for Threads {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (device, count) = match text.split_once('=') {
            Some((device, count)) => (Some(device.parse()?), count),
            None => (None, text),
        };
        let count = count.parse().map_err(|_| err!(Usage, "`{count}` is no number of threads"))?;
        check_threads(count)?;
        Ok(Self { device, count })
    }
}

/// What products are computed in, of all devices or of one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Products {
    pub(super) device: Option<DeviceId>,
    pub(super) precision: Precision,
}

impl FromStr for Products {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (device, precision) = match text.split_once('=') {
            Some((device, precision)) => (Some(device.parse()?), precision),
            None => (None, text),
        };
        Ok(Self { device, precision: precision.parse()? })
    }
}

/// The replicas of one segment of a model, or of one synthetic stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Replicas {
    pub(super) name: String,
    pub(super) count: usize,
}

impl FromStr for Replicas {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let Some((name, count)) = text.rsplit_once('=') else {
            return Err(err!(Usage, "`{text}` is not of the form SEGMENT=N"));
        };
        let count = count.parse().map_err(|_| err!(Usage, "`{count}` is no number of replicas"))?;
        check_replicas(count)?;
        Ok(Self { name: name.to_owned(), count })
    }
}

impl Replicas {
    /// The number of the segment, of which the actors have so many.
    fn of_segment(&self) -> Result<(usize, usize)> {
        let segment = self.name.parse().map_err(|_| {
            err!(Usage, "`{}` is no number of a segment, as `plan` shows them", self.name)
        })?;
        Ok((segment, self.count))
    }
}

/// A model, optimised and placed: what a pipeline and the sequential executor are made of.
pub(super) struct Placed {
    pub(super) graph: Graph,
    pub(super) map: DeviceMap,
    pub(super) registry: Registry,
    options: CompileOptions,
    per_device: PerDevice,
    /// By the number of the segment.
    pub(super) replicas: BTreeMap<usize, usize>,
    pub(super) micro_batch: Option<usize>,
    pub(super) in_flight: Option<usize>,
    pub(super) axes: BTreeMap<String, Option<usize>>,
    /// Shapes that were given.
    pub(super) shapes: BTreeMap<String, Vec<usize>>,
    symbols: HashMap<String, i64>,
    /// The inputs that became constants.
    pub(super) bound: Vec<(String, Tensor)>,
    /// How the placement came about, in words.
    pub(super) origin: String,
    pub(super) connected: Connected,
    /// What the plan file says of links.
    links: Vec<MeasuredLink>,
}

/// Whether more is made of a placed graph later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Keep {
    Graph,
    Nothing,
}

impl Placing {
    /// Whether a placement was asked for.
    pub(super) fn is_given(&self) -> bool {
        self.plan.is_some() || self.stages.is_some() || !self.device.is_empty()
    }

    /// Reads a model and places it; tells what there is to notice.
    pub(super) fn load(&self, path: &Path, console: &Console) -> Result<Placed> {
        let graph = model::load(path, &self.weights_root, console)?;
        let placed = self.place(graph, Some(path), console)?;
        for notice in placed.notices() {
            console.notice(&format!("notice: {notice}"));
        }
        Ok(placed)
    }

    /// The devices there are, those of workers included.
    fn connect(&self, model: Option<&Path>, console: &Console) -> Result<(Registry, Connected)> {
        let registry = self.registry.clone();
        #[cfg(feature = "cluster")]
        if let Some(cluster) = self.workers.connect(
            &registry,
            model.map_or_else(Vec::new, |model| self.roots(model)),
            console,
        )? {
            return Ok((cluster.registry().clone(), Connected { cluster: Some(cluster) }));
        }
        #[cfg(not(feature = "cluster"))]
        let _ = (model, console);
        Ok((registry, Connected::default()))
    }

    /// The folders that the model and its weights lie below.
    #[cfg(feature = "cluster")]
    pub(super) fn roots(&self, model: &Path) -> Vec<PathBuf> {
        let folder = match model.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder.to_owned(),
            _ => PathBuf::from("."),
        };
        self.weights_root.iter().cloned().chain([folder]).collect()
    }

    fn options(&self) -> CompileOptions {
        let mut options = CompileOptions {
            disabled_passes: self.disable_pass.clone(),
            ..CompileOptions::default()
        };
        if let Some(all) = self.threads.iter().rfind(|t| t.device.is_none()) {
            options.threads = all.count;
        }
        if let Some(all) = self.precision.iter().rfind(|p| p.device.is_none()) {
            options.precision = all.precision;
        }
        options
    }

    /// Binds, optimises and places a graph; `path` is the file that it came from.
    pub(super) fn place(
        &self,
        mut graph: Graph,
        path: Option<&Path>,
        console: &Console,
    ) -> Result<Placed> {
        let bound = bind::bind(&mut graph, &self.bind)?;
        let shapes = by_name("--shape", &graph, &self.shape, |s| s.0.clone())?;
        let axes = by_name("--batch-axis", &graph, &self.batch_axis, |a| a.0)?;
        let (registry, connected) = self.connect(path, console)?;
        let mut options = self.options();
        options.keep_weights = registry.has_sources();
        crate::passes::optimise(&mut graph, registry.ops(), &options)?;
        let given: Vec<(&str, &[usize])> =
            shapes.iter().map(|(n, s)| (n.as_str(), s.as_slice())).collect();
        let symbols = bind_symbols(&graph, &given)?;
        let lookup = |s: &str| symbols.get(s).copied();
        let balanced = |devices: &[DeviceId], stages: usize| {
            placement::balanced(&graph, devices, stages, &registry, &lookup)
        };
        let mut plan = Plan::default();
        let devices = match (self.device.as_slice(), self.plan.is_some()) {
            ([], false) => connected.devices(),
            (given, _) => given.to_vec(),
        };
        let (workers, by) = (connected.devices(), connected.balance());
        let (map, origin) = match (self.plan.as_deref(), self.stages, devices.as_slice()) {
            (Some("auto"), ..) if !workers.is_empty() => {
                let stages = workers.len().min(computing_nodes(&graph).len()).max(1);
                let map = balanced(&workers, stages)?;
                (map, format!("plan auto: {stages} balanced stages by {by}, over the workers"))
            }
            (Some("auto"), ..) => {
                let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
                let stages = cores.min(2).min(computing_nodes(&graph).len()).max(1);
                let map = balanced(&cpus(stages), stages)?;
                (map, format!("plan auto: {stages} balanced stages by analytic cost"))
            }
            (Some(file), ..) => {
                plan = Plan::read(Path::new(file))?;
                let wanted = plan.model_sha256.is_some();
                let hash = path.filter(|_| wanted).map(model::sha256).transpose()?;
                (plan.resolve(&graph, hash.as_deref())?, format!("plan {file}"))
            }
            (None, Some(stages), devices) => {
                let own = cpus(stages);
                let devices = if devices.is_empty() { &own } else { devices };
                (balanced(devices, stages)?, format!("{stages} balanced stages by {by}"))
            }
            (None, None, []) => {
                (DeviceMap::single(DeviceId::cpu(0)), "no plan: one segment on cpu:0".to_owned())
            }
            (None, None, [one]) if self.fallback.is_some() => {
                let other = self.fallback.clone().unwrap_or_else(|| one.clone());
                let map = placement::fallback(&graph, one, &other, &registry)?;
                (map, format!("what `{one}` supports is there, the rest on `{other}`"))
            }
            (None, None, [_, ..]) if self.fallback.is_some() => {
                bail!(Usage, "--fallback goes with one --device, {} are given", self.device.len());
            }
            (None, None, [one]) => {
                (DeviceMap::single(one.clone()), format!("one segment on {one}"))
            }
            (None, None, devices) => {
                let n = devices.len();
                (balanced(devices, n)?, format!("{n} balanced stages by {by}"))
            }
        };
        let mut threads: BTreeMap<DeviceId, usize> =
            plan.threads.iter().map(|(d, n)| (d.clone(), *n as usize)).collect();
        if self.threads.iter().any(|t| t.device.is_none()) {
            threads.clear();
        }
        for t in &self.threads {
            let Some(device) = &t.device else { continue };
            if map.devices().all(|d| d != device) {
                bail!(Usage, "--threads names `{device}`, but nothing is placed on it");
            }
            threads.insert(device.clone(), t.count);
        }
        let precision = self.precisions(&plan, &map, &registry)?;
        let segments = Segmentation::new(&graph, &map)?.segments().len();
        let mut replicas: BTreeMap<usize, usize> =
            plan.replicas.iter().map(|(s, n)| (*s as usize, *n as usize)).collect();
        for stated in &self.replicas {
            let (segment, count) = stated.of_segment()?;
            replicas.insert(segment, count);
        }
        if let Some((&segment, _)) = replicas.iter().find(|(segment, _)| **segment >= segments) {
            return Err(err!(Usage, "replicas are given to segment {segment}, which is not there")
                .with_help(format!("the segments are 0 to {}", segments.saturating_sub(1))));
        }
        let planned = match plan.in_flight {
            Some(InFlight::Count(n)) => Some(n as usize),
            _ => None,
        };
        Ok(Placed {
            micro_batch: self
                .micro_batch
                .map(NonZeroUsize::get)
                .or(plan.micro_batch.map(|n| n as usize)),
            in_flight: self.in_flight.map_or(planned, |f| f.0),
            graph,
            map,
            registry,
            options,
            per_device: PerDevice { threads, precision },
            replicas,
            axes,
            shapes,
            symbols,
            bound,
            origin,
            connected,
            links: plan.links,
        })
    }
}

impl Placing {
    /// The precision of each device that one is stated for: by the plan, or by a flag, which goes
    /// before it.
    fn precisions(
        &self,
        plan: &Plan,
        map: &DeviceMap,
        registry: &Registry,
    ) -> Result<BTreeMap<DeviceId, Precision>> {
        let mut out = plan.precision.clone();
        if self.precision.iter().any(|p| p.device.is_none()) {
            out.clear();
        }
        for (i, stated) in self.precision.iter().enumerate() {
            if self.precision[..i].iter().any(|p| p.device == stated.device) {
                let of =
                    stated.device.as_ref().map_or("all devices".to_owned(), |d| format!("`{d}`"));
                bail!(Usage, "--precision is given twice for {of}");
            }
            let Some(device) = &stated.device else { continue };
            if map.devices().all(|d| d != device) {
                bail!(Usage, "--precision names `{device}`, but nothing is placed on it");
            }
            out.insert(device.clone(), stated.precision);
        }
        // A plan may be made for devices that are not here; those that are can say now.
        let all = self.options().precision;
        for id in map.devices() {
            let precision = out.get(id).copied().unwrap_or(all);
            if precision != Precision::F32
                && let Ok(device) = registry.device(id)
            {
                check_precision(device.as_ref(), precision)?;
            }
        }
        Ok(out)
    }
}

fn cpus(count: usize) -> Vec<DeviceId> {
    (0..count).map(|n| DeviceId::cpu(u32::try_from(n).unwrap_or(u32::MAX))).collect()
}

/// Arguments by the name of their input.
pub(super) fn by_name<T, U>(
    flag: &str,
    graph: &Graph,
    given: &[Named<T>],
    value: impl Fn(&T) -> U,
) -> Result<BTreeMap<String, U>> {
    let mut out = BTreeMap::new();
    for named in given {
        let name = &named.name;
        if !graph.input_names().any(|n| n == name) {
            let names: Vec<String> = graph.input_names().map(|n| format!("`{n}`")).collect();
            return Err(err!(UnknownName, "{flag}: the model has no input `{name}`")
                .with_help(format!("its inputs are {}", names.join(", "))));
        }
        if out.insert(name.clone(), value(&named.value)).is_some() {
            bail!(Usage, "{flag} is given twice for input `{name}`");
        }
    }
    Ok(out)
}

impl Placed {
    /// How what is on a device is compiled.
    #[cfg(feature = "cluster")]
    pub(super) fn options_of(&self, device: &DeviceId) -> CompileOptions {
        let mut options = self.options.clone();
        if let Some(threads) = self.per_device.threads.get(device) {
            options.threads = *threads;
        }
        options.precision = self.precision(device);
        options
    }

    /// What products on a device are computed in.
    fn precision(&self, device: &DeviceId) -> Precision {
        self.per_device.precision.get(device).copied().unwrap_or(self.options.precision)
    }

    pub(super) fn notices(&self) -> Vec<String> {
        self.map.notices().iter().map(Notice::to_string).collect()
    }

    /// Lets what is compiled from now on measure each node.
    pub(super) fn measure_nodes(&mut self) {
        self.options.profile = true;
    }

    /// How many actors a pipeline has.
    pub(super) fn actors(&self, split: &Segmentation) -> usize {
        let replicas = |s: usize| self.replicas.get(&s).copied().unwrap_or(1);
        (0..split.segments().len()).map(replicas).sum()
    }

    /// The extent of a symbol, if a shape tells it.
    pub(super) fn symbol(&self, name: &str) -> Option<i64> {
        self.symbols.get(name).copied()
    }

    /// Takes the shapes of these inputs for what is to come, where no shape was given.
    pub(super) fn expect(&mut self, inputs: &[(String, Value)]) {
        let mut shapes = self.shapes.clone();
        for (name, value) in inputs {
            if let Some(shape) = value.shape() {
                shapes.entry(name.clone()).or_insert_with(|| shape.to_vec());
            }
        }
        let given: Vec<(&str, &[usize])> =
            shapes.iter().map(|(n, s)| (n.as_str(), s.as_slice())).collect();
        if let Ok(symbols) = bind_symbols(&self.graph, &given) {
            self.symbols = symbols;
        }
    }

    /// The graph; it goes for good where this was the last that is made of it, so that the weights
    /// are not in memory twice.
    fn take_graph(&mut self, keep: Keep) -> Graph {
        match keep {
            Keep::Graph => self.graph.clone(),
            Keep::Nothing => std::mem::replace(&mut self.graph, Graph::new("taken")),
        }
    }

    /// Spawns the pipeline; records up to `trace` events per actor.
    pub(super) fn pipeline(&mut self, trace: usize, graph: Keep) -> Result<Pipeline> {
        let mut builder = Pipeline::builder(self.take_graph(graph))
            .registry(self.registry.clone())
            .options(self.options.clone())
            .placement(self.map.clone())
            .trace(trace);
        if let Some(n) = self.micro_batch {
            builder = builder.micro_batch(n);
        }
        if let Some(n) = self.in_flight {
            builder = builder.in_flight(n);
        }
        for (device, n) in &self.per_device.threads {
            builder = builder.threads(device.clone(), *n);
        }
        for (device, precision) in &self.per_device.precision {
            builder = builder.precision(device.clone(), *precision);
        }
        for (segment, n) in &self.replicas {
            builder = builder.replicas(*segment, *n);
        }
        for (input, axis) in &self.axes {
            builder = builder.batch_axis(input.clone(), *axis);
        }
        builder.spawn()
    }

    /// The sequential executor of the same plan, without actors.
    pub(super) fn sequential(&mut self, graph: Keep) -> Result<HeteroExecutable> {
        HeteroExecutable::prepare(
            self.take_graph(graph),
            &self.map,
            &self.registry,
            self.options.clone(),
            self.per_device.clone(),
        )
    }

    /// The whole model on one CPU device, to compare with.
    pub(super) fn whole(&mut self, graph: Keep) -> Result<HeteroExecutable> {
        let cpu = DeviceId::cpu(0);
        let map = DeviceMap::single(cpu.clone());
        let mut options = self.options.clone();
        // As the pipeline computes, where the CPU can.
        let wanted = self.precision(&cpu);
        let offered = self.registry.device(&cpu)?.precisions().contains(&wanted);
        options.precision = if offered { wanted } else { Precision::F32 };
        HeteroExecutable::prepare(
            self.take_graph(graph),
            &map,
            &self.registry,
            options,
            PerDevice::default(),
        )
    }

    /// Checks that the devices can be used here, before anything is said of what runs on them.
    pub(super) fn are_devices_here(&self) -> Result<()> {
        self.map.devices().try_for_each(|device| self.registry.device(device).map(drop))
    }

    /// The segments.
    pub(super) fn split(&self) -> Result<Segmentation> {
        Segmentation::new(&self.graph, &self.map)
    }

    /// What the plan does, with costs.
    pub(super) fn report(&self, split: &Segmentation) -> PlanReport {
        let symbols = |s: &str| self.symbol(s);
        let costs = placement::node_costs(&self.graph, &self.registry, &symbols);
        let seconds = |id: NodeId| placement::seconds(costs[id.index()]);
        let memory = |id: &DeviceId| self.registry.device(id).ok().and_then(|d| d.memory());
        let report = PlanReport::new(split, self.map.notices(), Some(&seconds), &symbols)
            .with_memories(&memory)
            .with_precision(&|device| self.precision(device));
        self.connected.with_links(report)
    }

    /// Measures the links between neighbours on workers, and from here to each worker that has a
    /// segment; gives what could not be measured, in words.
    pub(super) fn measure_links(&self, split: &Segmentation) -> Vec<String> {
        let here = DeviceId::cpu(0);
        let ends = split.edges().iter().map(|e| (e.from, e.to));
        let device = |s: usize| &split.segments()[s].device;
        let pairs = ends.map(|(from, to)| (device(from), device(to)));
        let own = split.segments().iter().map(|s| (&here, &s.device));
        for (one, other) in pairs.chain(own) {
            self.connected.measure(one, other);
        }
        self.connected.unmeasured()
    }

    /// What memory it takes; run sequentially, one item is in flight.
    pub(super) fn memory(&self, split: &Segmentation, sequential: bool) -> Memory {
        let replicas = |segment| match self.replicas.get(&segment) {
            Some(n) if !sequential => *n,
            _ => 1,
        };
        let streaming = || self.in_flight.unwrap_or_else(|| 2 * longest_chain(split, &replicas));
        let in_flight = if sequential { 1 } else { streaming() };
        Memory::estimate(&self.graph, split, in_flight, &replicas, &|s| self.symbol(s))
    }

    /// The plan file.
    pub(super) fn plan(&self, path: &Path) -> Result<Plan> {
        let mut plan = Plan::from_map(&self.graph, &self.map)?;
        plan.model_sha256 = Some(model::sha256(path)?);
        plan.micro_batch = self.micro_batch.map(narrow).transpose()?;
        plan.in_flight = Some(match self.in_flight {
            Some(n) => InFlight::Count(narrow(n)?),
            None => InFlight::Auto,
        });
        for (segment, n) in &self.replicas {
            plan.replicas.insert(narrow(*segment)?, narrow(*n)?);
        }
        plan.links = self.connected.links();
        if plan.links.is_empty() {
            // Nothing was measured anew.
            plan.links.clone_from(&self.links);
        }
        for device in self.map.devices() {
            let n = self.per_device.threads.get(device).copied();
            plan.threads.insert(device.clone(), narrow(n.unwrap_or(self.options.threads))?);
            plan.precision.insert(device.clone(), self.precision(device));
        }
        Ok(plan)
    }
}

fn narrow(n: usize) -> Result<u32> {
    u32::try_from(n).map_err(|_| err!(Usage, "{n} is more than a plan can say"))
}

/// How many actors the longest way through the segments has.
fn longest_chain(split: &Segmentation, replicas: &dyn Fn(usize) -> usize) -> usize {
    let mut length = vec![0_usize; split.segments().len()];
    for s in 0..length.len() {
        let before = split.edges().iter().filter(|e| e.to == s).map(|e| length[e.from]);
        length[s] = before.max().unwrap_or(0) + replicas(s);
    }
    length.into_iter().max().unwrap_or(1)
}
