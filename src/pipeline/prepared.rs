//! A graph made ready for a placement: passes run, cut into segments, parameters, compiled code.
//!
//! The sequential executor and the actor pipeline run the same [`Prepared`] graph: the same
//! segments, micro-batches and threads. That is why they agree to the bit.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::compiling::{Job, compile_all};
use super::placement;
use super::profile::{GraphProfile, ProfiledSegment};
use super::stage::deliveries;
use crate::device::{CompiledSegment, Delivery, Device, DeviceId, check_precision, check_threads};
use crate::error::{Error, ErrorKind, Result, bail, err};
use crate::graph::{Fact, Graph};
use crate::import::WeightRef;
use crate::ops::infer::bind_symbols;
use crate::ops::{CompileOptions, Precision};
use crate::partition::{DeviceMap, OutputSource, Segmentation};
use crate::passes;
use crate::registry::Registry;
use crate::tensor::{DType, Tensor, Value};

/// The kind of the devices that compute on threads of this process.
pub(super) const CPU: &str = "cpu";

/// What is said of devices one by one; what is not, the options of the compilation say of all.
#[derive(Clone, Debug, Default)]
pub(crate) struct PerDevice {
    /// Kernel threads of each actor.
    pub(crate) threads: BTreeMap<DeviceId, usize>,
    /// What products are computed in.
    pub(crate) precision: BTreeMap<DeviceId, Precision>,
}

/// A graph, a placement, and what was compiled for it.
#[derive(Debug)]
pub(crate) struct Prepared {
    graph: Graph,
    split: Segmentation,
    devices: Vec<Arc<dyn Device>>,
    /// The memory that each segment's device keeps tensors in, where it has its own.
    memories: Vec<Option<Arc<str>>>,
    deliveries: Vec<Vec<Delivery>>,
    per_device: PerDevice,
    options: CompileOptions,
    inputs: Vec<(String, Fact)>,
    sealing: Mutex<Sealing>,
    id: u64,
}

#[derive(Debug)]
struct Sealing {
    params: HashMap<String, Tensor>,
    /// Parameters that the devices of some segments read themselves.
    references: HashMap<String, WeightRef>,
    compiled: Vec<Option<Arc<dyn CompiledSegment>>>,
    generations: Vec<u64>,
}

/// Compiled segments, in order, with every parameter bound.
#[derive(Clone, Debug)]
pub(crate) struct Sealed {
    pub(crate) segments: Vec<Arc<dyn CompiledSegment>>,
    /// What each output that no segment makes is: by its place among the graph's outputs.
    pub(crate) fixed: HashMap<usize, Tensor>,
    /// Per segment, how often a parameter of it was bound: another number is other code.
    pub(crate) generations: Vec<u64>,
}

/// Checks a graph and runs the passes on it, for a placement to be made on the result.
///
/// # Errors
/// If something in it cannot be run; everything that cannot is listed.
pub(crate) fn optimised(
    mut graph: Graph,
    registry: &Registry,
    options: &CompileOptions,
) -> Result<Graph> {
    passes::optimise(&mut graph, registry.ops(), options)?;
    Ok(graph)
}

impl Prepared {
    /// Cuts an optimised graph by a placement and compiles what has no unbound parameter.
    pub(crate) fn new(
        graph: Graph,
        map: &DeviceMap,
        registry: &Registry,
        options: CompileOptions,
        per_device: PerDevice,
    ) -> Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let mut given =
            std::iter::once(options.threads).chain(per_device.threads.values().copied());
        given.try_for_each(check_threads)?;
        let split = Segmentation::new(&graph, map)?;
        let devices: Vec<Arc<dyn Device>> =
            split.devices().map(|id| registry.device(id)).collect::<Result<_>>()?;
        let precision_of = |id| per_device.precision.get(id).copied().unwrap_or(options.precision);
        for (segment, device) in split.segments().iter().zip(&devices) {
            check_precision(device.as_ref(), precision_of(&segment.device))?;
            supported(&segment.graph, device.as_ref())?;
        }
        let inputs = graph
            .inputs()
            .iter()
            .map(|v| (graph.value(*v).name.clone(), graph.value(*v).fact.clone()))
            .collect();
        let count = split.segments().len();
        let memories: Vec<Option<Arc<str>>> =
            devices.iter().map(|d| d.memory().map(Arc::from)).collect();
        let deliveries = deliveries(&split, &memories);
        let mut prepared = Self {
            graph,
            split,
            devices,
            memories,
            deliveries,
            per_device,
            options,
            inputs,
            sealing: Mutex::new(Sealing {
                params: HashMap::new(),
                references: HashMap::new(),
                compiled: vec![None; count],
                generations: vec![0; count],
            }),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
        };
        if prepared.graph.unbound_params().next().is_none() {
            prepared.seal()?;
        }
        // Where a parameter can be bound anew, the segment is compiled again from its graph.
        if !prepared.graph.values().iter().any(|v| v.param) {
            prepared.graph.release_constants();
            prepared.split.release_constants();
        }
        Ok(prepared)
    }

    /// The optimised graph; without the contents of large constants if it has no parameters.
    pub(crate) fn graph(&self) -> &Graph {
        &self.graph
    }

    /// The segments and how they are joined.
    pub(crate) fn split(&self) -> &Segmentation {
        &self.split
    }

    /// The device of each segment, in order.
    pub(crate) fn devices(&self) -> &[Arc<dyn Device>] {
        &self.devices
    }

    /// The memory that this segment's device keeps tensors in, if it has its own.
    pub(crate) fn memory(&self, segment: usize) -> Option<&Arc<str>> {
        self.memories.get(segment)?.as_ref()
    }

    /// Where each output of this segment is needed.
    pub(crate) fn deliveries(&self, segment: usize) -> &[Delivery] {
        self.deliveries.get(segment).map_or(&[], Vec::as_slice)
    }

    /// What the segments did, node by node; `None` unless that is measured.
    pub(crate) fn profile(&self) -> Option<GraphProfile> {
        if !self.options.profile {
            return None;
        }
        let sealing = self.sealing();
        let segments = self.split.segments().iter().zip(&sealing.compiled);
        let segments = segments.map(|(segment, compiled)| ProfiledSegment {
            segment: segment.index,
            device: segment.device.clone(),
            threads: self.threads(&segment.device),
            profile: compiled.as_ref().and_then(|c| c.profile()),
        });
        Some(GraphProfile { segments: segments.collect() })
    }

    /// The kernel threads of each actor on a device.
    pub(crate) fn threads(&self, device: &DeviceId) -> usize {
        self.per_device.threads.get(device).copied().unwrap_or(self.options.threads)
    }

    /// What products on a device are computed in.
    pub(crate) fn precision(&self, device: &DeviceId) -> Precision {
        self.per_device.precision.get(device).copied().unwrap_or(self.options.precision)
    }

    /// What an actor on a device asks the CPU budget of its system for; `None` if it computes
    /// elsewhere.
    pub(crate) fn cpu_threads(&self, device: &DeviceId) -> Option<usize> {
        (device.kind() == CPU && device.worker().is_none()).then(|| self.threads(device))
    }

    /// A number that no other prepared graph of this process has.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The inputs, in order.
    pub(crate) fn inputs(&self) -> &[(String, Fact)] {
        &self.inputs
    }

    /// Whether nothing that an item brings says when the first segment fires: the graph has no
    /// inputs, so that its items are given something that stands for them.
    pub(crate) fn needs_start(&self) -> bool {
        self.inputs.is_empty() && !self.split.segments().is_empty()
    }

    fn sealing(&self) -> MutexGuard<'_, Sealing> {
        self.sealing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Binds a parameter. The segments that hold it are compiled anew before the next run.
    pub(crate) fn set_param(&self, name: &str, tensor: Tensor) -> Result<()> {
        let info = self.graph.values().iter().find(|v| v.param && v.name == name);
        let Some(info) = info else {
            let params: Vec<&str> =
                self.graph.values().iter().filter(|v| v.param).map(|v| v.name.as_str()).collect();
            return Err(err!(UnknownName, "the graph has no parameter `{name}`")
                .with_help(listing("its parameters are", &params)));
        };
        info.fact.admits(&Value::from(tensor.clone())).map_err(|why| {
            let kind = if info.fact.dtype == Some(tensor.dtype()) {
                ErrorKind::Shape
            } else {
                ErrorKind::DType
            };
            Error::new(kind, format!("parameter `{name}`: {why}"))
                .with_help(format!("bind a tensor of {}", info.fact))
        })?;
        let mut sealing = self.sealing();
        sealing.references.remove(name);
        sealing.params.insert(name.to_owned(), tensor);
        self.unseal(&mut sealing, name);
        Ok(())
    }

    fn unseal(&self, sealing: &mut Sealing, param: &str) {
        for s in self.split.param_segments(param) {
            sealing.compiled[*s] = None;
            sealing.generations[*s] += 1;
        }
    }

    /// Whether the tensor of a parameter is needed in this process: some segment or output of it
    /// is not on a device that reads weights itself.
    pub(crate) fn loads_param(&self, name: &str) -> bool {
        let segments = self.split.param_segments(name);
        let output = |o: &OutputSource| matches!(o, OutputSource::Param(p) if p == name);
        segments.is_empty()
            || segments.iter().any(|s| !self.devices[*s].reads_weights())
            || self.split.outputs().iter().any(output)
    }

    /// Binds a parameter to a weight that the devices of its segments read where they are.
    pub(crate) fn set_reference(&self, weight: WeightRef) {
        let mut sealing = self.sealing();
        self.unseal(&mut sealing, &weight.name);
        sealing.references.insert(weight.name.clone(), weight);
    }

    /// The declared fact of a parameter.
    pub(crate) fn param_fact(&self, name: &str) -> Option<&Fact> {
        self.graph.values().iter().find(|v| v.param && v.name == name).map(|v| &v.fact)
    }

    /// The compiled segments; compiles those that a parameter was bound for since.
    ///
    /// # Errors
    /// If parameters are not bound; all of them are listed.
    pub(crate) fn seal(&self) -> Result<Sealed> {
        let mut sealing = self.sealing();
        let unbound: Vec<&str> = self
            .graph
            .unbound_params()
            .map(|v| v.name.as_str())
            .filter(|n| !sealing.params.contains_key(*n) && !sealing.references.contains_key(*n))
            .collect();
        if !unbound.is_empty() {
            return Err(err!(Missing, "{}", listing("parameters are not bound:", &unbound))
                .with_help("bind each with `set_param` before the first run"));
        }
        let mut jobs = Vec::new();
        for (i, segment) in self.split.segments().iter().enumerate() {
            if sealing.compiled[i].is_some() {
                continue;
            }
            let mut graph = segment.graph.clone();
            let mut weights = Vec::new();
            for v in graph.values.iter_mut().filter(|v| v.param && v.constant.is_none()) {
                match sealing.references.get(&v.name) {
                    Some(weight) if self.devices[i].reads_weights() => weights.push(weight.clone()),
                    _ => v.constant = sealing.params.get(&v.name).cloned(),
                }
            }
            let mut options = self.options.clone();
            options.threads = self.threads(&segment.device);
            options.precision = self.precision(&segment.device);
            options.stage_id.clone_from(&segment.stage_id);
            let device = self.devices[i].as_ref();
            jobs.push(Job { segment: i, device, graph, weights, options });
        }
        let made = !jobs.is_empty();
        let compiled = compile_all(jobs);
        for (i, done) in compiled.done {
            sealing.compiled[i] = Some(done);
        }
        if let Some(error) = compiled.failed {
            return Err(error);
        }
        let segments: Vec<Arc<dyn CompiledSegment>> =
            sealing.compiled.iter().flatten().map(Arc::clone).collect();
        if made {
            self.connect(&segments)?;
        }
        let mut fixed = HashMap::new();
        for (i, source) in self.split.outputs().iter().enumerate() {
            match source {
                OutputSource::Constant(t) => {
                    fixed.insert(i, t.clone());
                }
                OutputSource::Param(name) => {
                    if let Some(t) = sealing.params.get(name) {
                        fixed.insert(i, t.clone());
                    }
                }
                _ => {}
            }
        }
        Ok(Sealed { segments, fixed, generations: sealing.generations.clone() })
    }

    /// Makes the ways between neighbours that share memory.
    fn connect(&self, segments: &[Arc<dyn CompiledSegment>]) -> Result<()> {
        for edge in self.split.edges() {
            let memory = &self.memories[edge.from];
            if memory.is_none() || *memory != self.memories[edge.to] {
                continue;
            }
            segments[edge.from]
                .connect(edge.output, segments[edge.to].as_ref(), edge.input)
                .map_err(|e| e.within(&format!("boundary tensor `{}`", edge.value)))?;
        }
        Ok(())
    }

    /// Inputs by name, put into the graph's order.
    ///
    /// # Errors
    /// If one is unknown, given twice, missing, or not what was declared; names it.
    pub(crate) fn arrange(&self, named: Vec<(String, Value)>) -> Result<Vec<Value>> {
        let mut by_name: HashMap<String, Value> = HashMap::with_capacity(named.len());
        for (name, value) in named {
            if !self.inputs.iter().any(|(n, _)| *n == name) {
                let names: Vec<&str> = self.inputs.iter().map(|(n, _)| n.as_str()).collect();
                return Err(err!(UnknownName, "the graph has no input `{name}`")
                    .with_help(listing("its inputs are", &names)));
            }
            if by_name.contains_key(&name) {
                return Err(err!(Duplicate, "input `{name}` was given twice")
                    .with_help("give each input once"));
            }
            by_name.insert(name, value);
        }
        let missing: Vec<&str> = self
            .inputs
            .iter()
            .map(|(n, _)| n.as_str())
            .filter(|n| !by_name.contains_key(*n))
            .collect();
        if !missing.is_empty() {
            let names: Vec<&str> = self.inputs.iter().map(|(n, _)| n.as_str()).collect();
            return Err(err!(Missing, "{}", listing("inputs were not given:", &missing))
                .with_help(listing("each run takes", &names)));
        }
        let values: Vec<Value> =
            self.inputs.iter().filter_map(|(n, _)| by_name.remove(n)).collect();
        self.admit(&values)?;
        Ok(values)
    }

    /// Checks values, in the graph's order, against what the inputs declare.
    ///
    /// # Errors
    /// If one is not what was declared, or a symbol would have two values; names the input.
    pub(crate) fn admit(&self, values: &[Value]) -> Result<()> {
        if values.len() != self.inputs.len() {
            bail!(Missing, "{} inputs are needed, {} given", self.inputs.len(), values.len());
        }
        let mut shapes: Vec<(&str, &[usize])> = Vec::with_capacity(values.len());
        for ((name, fact), value) in self.inputs.iter().zip(values) {
            fact.admits(value).map_err(|why| {
                let same = fact.dtype.is_none() || fact.dtype == value.dtype();
                let kind = if same { ErrorKind::Shape } else { ErrorKind::DType };
                Error::new(kind, format!("input `{name}`: {why}"))
                    .with_help(format!("give a tensor of {fact}; a symbol takes any extent"))
            })?;
            if let Value::Tensor(t) = value {
                shapes.push((name, t.shape()));
            }
        }
        bind_symbols(&self.graph, &shapes)
            .map(drop)
            .map_err(|e| e.with_help("a symbol has one extent in all inputs of an item"))
    }
}

/// Checks that a device can run every node of a segment.
fn supported(graph: &Graph, device: &dyn Device) -> Result<()> {
    let mut refused = Vec::new();
    let mut seen = HashSet::new();
    for (node, support) in graph.nodes().iter().zip(placement::supports_all(device, graph)?) {
        if let crate::device::Support::No(why) = support
            && seen.insert((node.op.clone(), why.clone()))
        {
            refused.push(format!(
                "`{}` ({}, version {}): {why}",
                node.name,
                node.qualified_op(),
                node.version
            ));
        }
    }
    if refused.is_empty() {
        return Ok(());
    }
    Err(err!(Unsupported, "device `{}` cannot run\n  {}", device.id(), refused.join("\n  "))
        .with_help("place these nodes on another device, or let them fall back"))
}

/// `lead` followed by quoted names.
pub(crate) fn listing(lead: &str, names: &[&str]) -> String {
    if names.is_empty() {
        return format!("{lead} none");
    }
    let quoted: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
    format!("{lead} {}", quoted.join(", "))
}

/// The tensor of raw little-endian bytes for a declared fact; one unknown extent is found by the
/// number of bytes.
pub(crate) fn tensor_for(what: &str, fact: &Fact, dtype: DType, bytes: &[u8]) -> Result<Tensor> {
    if let Some(declared) = fact.dtype.filter(|d| *d != dtype) {
        return Err(err!(DType, "{what} is declared {fact}, got {dtype}").with_help(format!(
            "give {declared}, by `run_typed` or `set_param_typed` if it is not f32"
        )));
    }
    let unfilled = |given: String| {
        err!(Shape, "{what} is declared {fact}, {given}").with_help(format!(
            "give as many elements of {dtype} as it has, or a tensor with its shape"
        ))
    };
    let size = dtype.size().max(1);
    let count = bytes.len() / size;
    let Some(declared) = &fact.shape else {
        return Tensor::from_bytes(dtype, [count], bytes);
    };
    let unknown: Vec<usize> =
        (0..declared.len()).filter(|i| declared[*i].as_extent().is_none()).collect();
    let known: usize = declared.iter().filter_map(crate::graph::Dim::as_extent).product();
    let mut shape: Vec<usize> = declared.iter().map(|d| d.as_extent().unwrap_or(0)).collect();
    match unknown.as_slice() {
        [] => {}
        [one] if known > 0 && count.is_multiple_of(known) => shape[*one] = count / known,
        [_] => return Err(unfilled(format!("which {count} elements do not fill"))),
        _ => {
            return Err(unfilled(format!("whose shape {count} elements do not tell")));
        }
    }
    let elements: usize = shape.iter().product();
    if elements.checked_mul(size) != Some(bytes.len()) {
        let bytes = bytes.len();
        return Err(unfilled(format!("which has {elements} elements; got {bytes} bytes, {count}")));
    }
    Tensor::from_bytes(dtype, shape, bytes)
}
