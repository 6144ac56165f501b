//! The sequential executor: one segment after the other on the caller's thread. It is the oracle
//! that streaming is compared with.

use std::cell::RefCell;
use std::sync::{Arc, Weak};

use super::params::ParamValue;
use super::prepared::{PerDevice, Prepared, Sealed, optimised, tensor_for};
use super::profile::GraphProfile;
use super::stage::{caught, checked, local, on_host};
use crate::device::{DeviceId, Instance, InstanceOptions};
use crate::error::{ErrorKind, Result, bail, err};
use crate::graph::Graph;
use crate::import::WeightCache;
use crate::ops::CompileOptions;
use crate::partition::{DeviceMap, OutputSource, PlanReport, Segmentation, Source};
use crate::registry::Registry;
use crate::tensor::{DType, Tensor, Value};

/// A graph over several devices, run one segment after the other.
///
/// Cheap to clone; all methods take `&self`, and several threads may run it at once (each gets
/// working buffers of its own, the weights are shared).
///
/// ```
/// use brigade::ops::builder::GraphBuilder;
/// use brigade::{CompileOptions, DType, DeviceMap, HeteroExecutable, Registry};
///
/// let mut g = GraphBuilder::new("mlp");
/// let x = g.input("x", DType::F32, [2.into(), 2.into()])?;
/// let w = g.param("w", DType::F32, &[2, 2])?;
/// let h = g.matmul(x, w)?;
/// let y = g.relu(h)?;
/// let graph = g.finish([("y", y)])?;
///
/// let map = DeviceMap::from_fn(&graph, |node| match node.op.as_str() {
///     "Relu" => "cpu:1".parse().unwrap(),
///     _ => "cpu:0".parse().unwrap(),
/// });
/// let executable = HeteroExecutable::compile(graph, &map, &CompileOptions::default())?;
/// executable.set_param("w", &[1.0, 0.0, 0.0, -1.0])?;
/// let outputs = executable.run(&[("x", &[1.0, 2.0, 3.0, 4.0])])?;
/// assert_eq!(outputs, [[1.0, 0.0, 3.0, 0.0]]);
/// assert_eq!(executable.num_segments(), 2);
/// # Ok::<(), brigade::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct HeteroExecutable {
    prepared: Arc<Prepared>,
    notices: Arc<[String]>,
    /// Whether a pipeline runs the same code.
    piped: bool,
    weights: WeightCache,
}

/// A graph on one device: what a split is compared with.
#[derive(Clone, Debug)]
pub struct CompiledGraph(HeteroExecutable);

/// Compiles a graph for one device.
///
/// # Errors
/// If the device is not there, or cannot run a node; everything that cannot run is listed.
pub fn compile_with(
    graph: Graph,
    device: &DeviceId,
    options: &CompileOptions,
) -> Result<CompiledGraph> {
    compile_in(graph, device, options, &Registry::default())
}

/// As [`compile_with`], over the devices and operators of a registry.
///
/// # Errors
/// As [`compile_with`].
pub fn compile_in(
    graph: Graph,
    device: &DeviceId,
    options: &CompileOptions,
    registry: &Registry,
) -> Result<CompiledGraph> {
    let map = DeviceMap::single(device.clone());
    Ok(CompiledGraph(HeteroExecutable::compile_in(graph, &map, options, registry)?))
}

thread_local! {
    /// The working state of executables on this thread: instances need not be `Send`.
    static INSTANCES: RefCell<Vec<Bench>> = const { RefCell::new(Vec::new()) };
}

struct Bench {
    owner: Weak<Prepared>,
    id: u64,
    generations: Vec<u64>,
    instances: Vec<Box<dyn Instance>>,
}

impl HeteroExecutable {
    /// Compiles a graph for a placement on the built-in devices.
    ///
    /// # Errors
    /// If the map is of another graph, a device is not there, or a node cannot run where it is
    /// placed.
    pub fn compile(graph: Graph, map: &DeviceMap, options: &CompileOptions) -> Result<Self> {
        Self::compile_in(graph, map, options, &Registry::default())
    }

    /// As [`Self::compile`], over the devices and operators of a registry.
    ///
    /// # Errors
    /// As [`Self::compile`].
    pub fn compile_in(
        graph: Graph,
        map: &DeviceMap,
        options: &CompileOptions,
        registry: &Registry,
    ) -> Result<Self> {
        map.check(&graph)?;
        let placed = map.clone();
        let before = graph.clone();
        let graph = optimised(graph, registry, options)?;
        let map = placed.carry_over(&before, &graph)?;
        Self::prepare(graph, &map, registry, options.clone(), PerDevice::default())
    }

    /// Compiles a graph with each node on `primary` where that supports it, else on `fallback`.
    ///
    /// # Errors
    /// If a device is not there, or a node can run on neither.
    pub fn with_fallback(
        graph: Graph,
        primary: &DeviceId,
        fallback: &DeviceId,
        options: &CompileOptions,
        registry: &Registry,
    ) -> Result<Self> {
        let graph = optimised(graph, registry, options)?;
        let map = super::placement::fallback(&graph, primary, fallback, registry)?;
        Self::prepare(graph, &map, registry, options.clone(), PerDevice::default())
    }

    /// As [`Self::with_fallback`], but a primary device that is not usable here is no error: then
    /// everything is on `fallback`, and [`Self::notices`] says so, with the reason.
    ///
    /// # Errors
    /// If `fallback` is not there, or a node can run on neither.
    pub fn with_fallback_if_present(
        graph: Graph,
        primary: &DeviceId,
        fallback: &DeviceId,
        options: &CompileOptions,
        registry: &Registry,
    ) -> Result<Self> {
        let graph = optimised(graph, registry, options)?;
        let (map, absent) =
            super::placement::fallback_if_present(&graph, primary, fallback, registry)?;
        let mut out = Self::prepare(graph, &map, registry, options.clone(), PerDevice::default())?;
        out.notices = absent.into_iter().chain(out.notices.iter().cloned()).collect();
        Ok(out)
    }

    /// From a graph that the passes ran on.
    pub(crate) fn prepare(
        graph: Graph,
        map: &DeviceMap,
        registry: &Registry,
        options: CompileOptions,
        per_device: PerDevice,
    ) -> Result<Self> {
        let fallen = map.notices().iter().map(ToString::to_string);
        let notices = fallen.chain(crate::ops::decoded_weights(&graph)).collect();
        let prepared = Arc::new(Prepared::new(graph, map, registry, options, per_device)?);
        let weights = WeightCache::new().with_schemes(registry.weight_schemes().clone());
        Ok(Self { prepared, notices, piped: false, weights })
    }

    /// Over what a pipeline with these notices runs too.
    pub(crate) fn over(prepared: Arc<Prepared>, notices: &[String]) -> Self {
        let weights = WeightCache::new();
        Self { prepared, notices: notices.into(), piped: true, weights }
    }

    /// Binds a parameter of f32. Binding it again compiles the segments that hold it anew, before
    /// the next run.
    ///
    /// # Errors
    /// If there is no such parameter, or its dtype or number of elements differs; if this is the
    /// oracle of a pipeline, whose parameters were bound when it was spawned.
    pub fn set_param(&self, name: &str, data: &[f32]) -> Result<()> {
        self.set_param_typed(name, DType::F32, bytemuck::cast_slice(data))
    }

    /// Binds a parameter by little-endian bytes.
    ///
    /// # Errors
    /// As [`Self::set_param`].
    pub fn set_param_typed(&self, name: &str, dtype: DType, bytes: &[u8]) -> Result<()> {
        self.bind(name, ParamValue::elements(dtype, bytes))
    }

    /// Binds a parameter to a [`Tensor`] or to a weight in a file ([`WeightRef`](crate::WeightRef)).
    ///
    /// # Errors
    /// As [`Self::set_param`]; for a weight, as [`WeightCache::load`].
    pub fn bind(&self, name: &str, value: impl Into<ParamValue>) -> Result<()> {
        if self.piped {
            return Err(err!(Usage, "parameter `{name}` was bound when the pipeline was spawned")
                .with_help("spawn another pipeline to run it with other parameters"));
        }
        value.into().bind(name, &self.prepared, &self.weights)
    }

    /// This executable, with the cache that weights come from: its roots, schemes and files. It is
    /// one that reads anywhere unless this was called.
    #[must_use]
    pub fn with_weights(mut self, weights: &WeightCache) -> Self {
        self.weights = weights.clone();
        self
    }

    /// Runs f32 inputs, by name, and gives the f32 outputs in the order of declaration.
    ///
    /// # Errors
    /// If an input is unknown, given twice, missing, of another size or dtype, or an output is not
    /// f32; if a parameter is not bound; if a kernel fails.
    pub fn run(&self, inputs: &[(&str, &[f32])]) -> Result<Vec<Vec<f32>>> {
        let mut named = Vec::with_capacity(inputs.len());
        for (name, data) in inputs {
            let fact = self.prepared.inputs().iter().find(|(n, _)| n == name).map(|(_, f)| f);
            let value = match fact {
                Some(fact) => {
                    let what = format!("input `{name}`");
                    tensor_for(&what, fact, DType::F32, bytemuck::cast_slice(data))?
                }
                None => Tensor::from_slice([data.len()], data)?,
            };
            named.push(((*name).to_owned(), Value::from(value)));
        }
        let outputs = self.run_values(named)?;
        let mut out = Vec::with_capacity(outputs.len());
        for (value, name) in outputs.into_iter().zip(self.output_names()) {
            let tensor = value.into_tensor()?;
            if tensor.dtype() != DType::F32 {
                return Err(err!(DType, "output `{name}` is {}, not f32", tensor.describe())
                    .with_help("use `run_typed`"));
            }
            out.push(tensor.as_slice::<f32>()?.to_vec());
        }
        Ok(out)
    }

    /// Runs inputs of any dtype, by name, and gives the outputs with their names, in the order of
    /// declaration.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_typed(&self, inputs: &[(&str, Tensor)]) -> Result<Vec<(String, Value)>> {
        let named = inputs.iter().map(|(n, t)| ((*n).to_owned(), Value::from(t.clone()))).collect();
        let outputs = self.run_values(named)?;
        Ok(self.output_names().into_iter().zip(outputs).collect())
    }

    /// Runs named values and gives the outputs in the order of declaration.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_values(&self, named: Vec<(String, Value)>) -> Result<Vec<Value>> {
        let inputs = self.prepared.arrange(named)?;
        self.run_ordered(&inputs, None)
    }

    /// As [`Self::run_values`]; `observe` sees the name, operator and outputs of each node.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_observed(
        &self,
        named: Vec<(String, Value)>,
        observe: &mut dyn FnMut(&str, &str, &[Value]),
    ) -> Result<Vec<Value>> {
        let inputs = self.prepared.arrange(named)?;
        self.run_ordered(&inputs, Some(observe))
    }

    /// Runs values that are in order and admitted.
    pub(crate) fn run_ordered(
        &self,
        inputs: &[Value],
        observe: Option<Observe<'_>>,
    ) -> Result<Vec<Value>> {
        let sealed = self.prepared.seal()?;
        let mut instances = self.take_instances(&sealed)?;
        let result = run_segments(&self.prepared, &mut instances, &sealed.fixed, inputs, observe);
        // An instance that panicked may be in any state.
        if !result.as_ref().is_err_and(|e| e.kind() == ErrorKind::Panic) {
            INSTANCES.with_borrow_mut(|all| {
                all.push(Bench {
                    owner: Arc::downgrade(&self.prepared),
                    id: self.prepared.id(),
                    generations: sealed.generations,
                    instances,
                });
            });
        }
        result
    }

    /// This thread's instances; those whose segment was compiled anew are made anew.
    fn take_instances(&self, sealed: &Sealed) -> Result<Vec<Box<dyn Instance>>> {
        let found = INSTANCES.with_borrow_mut(|all| {
            all.retain(|b| b.owner.strong_count() > 0);
            let at = all.iter().position(|b| b.id == self.prepared.id())?;
            Some(all.swap_remove(at))
        });
        let (old, generations) = found.map_or_else(Default::default, |b| {
            (b.instances.into_iter().map(Some).collect::<Vec<_>>(), b.generations)
        });
        let mut old = old.into_iter();
        let mut out = Vec::with_capacity(sealed.segments.len());
        for (i, segment) in sealed.segments.iter().enumerate() {
            let kept = old.next().flatten();
            let kept = kept.filter(|_| generations.get(i) == sealed.generations.get(i));
            out.push(match kept {
                Some(instance) => instance,
                None => {
                    let device = &self.split().segments()[i].device;
                    let options = InstanceOptions::for_this_thread()
                        .outputs(self.prepared.deliveries(i).to_vec());
                    caught(device, "starting an instance", || segment.instance(options))
                        .map_err(|e| e.with_device(device.to_string()))?
                }
            });
        }
        Ok(out)
    }

    pub(crate) fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// What each node did until now, on all threads; `None` unless it was compiled with
    /// [`CompileOptions::profile`].
    pub fn node_profile(&self) -> Option<GraphProfile> {
        self.prepared.profile()
    }

    /// How many segments there are.
    pub fn num_segments(&self) -> usize {
        self.split().segments().len()
    }

    /// The device of each segment, in order.
    pub fn segment_devices(&self) -> Vec<DeviceId> {
        self.split().devices().cloned().collect()
    }

    /// What its user should hear of: nodes that fell back or are narrowed, with the reasons.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// The segments and how they are joined.
    pub fn split(&self) -> &Segmentation {
        self.prepared.split()
    }

    /// What the placement does: segments, what crosses between them and by which path, round trips.
    /// `symbols` gives symbolic extents, for the bytes.
    pub fn report(&self, symbols: &dyn Fn(&str) -> Option<i64>) -> PlanReport {
        let memory = |id: &DeviceId| {
            self.prepared.devices().iter().find(|d| d.id() == id).and_then(|d| d.memory())
        };
        let mut report = PlanReport::new(self.split(), &[], None, symbols)
            .with_memories(&memory)
            .with_precision(&|id| self.prepared.precision(id));
        report.notices = self.notices.to_vec();
        report
    }

    /// The graph that the placement is of, after the passes. Constants of 16 KiB and more have no
    /// contents in it any more, unless the graph has parameters: the compiled segments hold them.
    pub fn graph(&self) -> &Graph {
        self.prepared.graph()
    }

    /// The names of the outputs, in order.
    pub fn output_names(&self) -> Vec<String> {
        self.graph().output_names().map(str::to_owned).collect()
    }
}

/// Sees the name, operator and outputs of each node. What is to be seen may cost more than what is
/// not, so that nobody is no observer that does nothing.
type Observe<'a> = &'a mut dyn FnMut(&str, &str, &[Value]);

fn run_segments(
    prepared: &Prepared,
    instances: &mut [Box<dyn Instance>],
    fixed: &std::collections::HashMap<usize, Tensor>,
    inputs: &[Value],
    mut observe: Option<Observe<'_>>,
) -> Result<Vec<Value>> {
    let split = prepared.split();
    let mut made: Vec<Vec<Value>> = Vec::with_capacity(instances.len());
    for (segment, instance) in split.segments().iter().zip(instances) {
        let mut arguments = Vec::with_capacity(segment.inputs.len());
        for source in &segment.inputs {
            arguments.push(match *source {
                Source::Input(i) => inputs[i].clone(),
                Source::Segment { index, output } => made[index][output].clone(),
            });
        }
        let device = &segment.device;
        let memory = prepared.memory(segment.index).map(|m| &**m);
        let arguments = local(device, memory, arguments)?;
        let outputs = caught(device, "running a segment", || match &mut observe {
            Some(observe) => instance.run_observed(arguments, observe),
            None => instance.run(arguments),
        })?;
        made.push(checked(device, memory, outputs, prepared.deliveries(segment.index))?);
    }
    let mut outputs = Vec::with_capacity(split.outputs().len());
    for (i, source) in split.outputs().iter().enumerate() {
        outputs.push(match source {
            OutputSource::Input(k) => inputs[*k].clone(),
            OutputSource::Segment { index, output } => on_host(made[*index][*output].clone()),
            OutputSource::Constant(_) | OutputSource::Param(_) => match fixed.get(&i) {
                Some(t) => Value::from(t.clone()),
                None => bail!(Internal, "output {i} is made by nothing"),
            },
        });
    }
    Ok(outputs)
}

impl std::ops::Deref for CompiledGraph {
    type Target = HeteroExecutable;
    fn deref(&self) -> &HeteroExecutable {
        &self.0
    }
}
