//! A graph compiled for a device: constants in its memory, launches for each set of extents.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex};

use super::instance::LaunchedInstance;
use super::{Target, lock};
use crate::device::{CompiledSegment, Instance, InstanceOptions};
use crate::error::{Result, bail, err};
use crate::gpu::{Lowered, Operand, device_scalar, extent_inputs, narrowed};
use crate::graph::{Dim, Fact, Graph, ValueId};
use crate::ops::{OpRegistry, Precision, infer_graph};
use crate::tensor::{DType, Shape, Tensor, Value};

/// What launches depend on, of one input.
#[derive(Clone, Debug, PartialEq)]
enum Part {
    /// The dtype and extents of elements that kernels read.
    Extents(DType, Shape),
    /// Whole numbers that extents follow from.
    Whole(Tensor),
}

/// Launches for inputs of certain extents, with everything that does not change from item to item.
pub(in crate::device) struct Ready<T: Target> {
    key: Vec<Part>,
    /// The inputs that are fed, as places among the segment's; the others only decide extents.
    pub(super) fed: Vec<usize>,
    /// The names of all inputs of the segment.
    pub(super) names: Vec<String>,
    /// The launches, and their buffers.
    pub(in crate::device) lowered: Lowered,
    /// What the device made of them.
    pub(in crate::device) prepared: T::Prepared,
    constants: HashMap<ValueId, T::Constant>,
}

/// Sets of extents that a segment keeps launches for.
const MOST_READY: usize = 8;

impl<T: Target> Ready<T> {
    /// Whether inputs have the extents that this is for.
    pub(super) fn is_for(&self, inputs: &[Value]) -> bool {
        self.key.len() == inputs.len()
            && self.key.iter().zip(inputs).all(|(part, value)| match part {
                Part::Extents(dtype, shape) => {
                    value.dtype() == Some(*dtype) && value.shape() == Some(shape)
                }
                Part::Whole(tensor) => on_host(value).is_ok_and(|t| t == tensor),
            })
    }

    /// A constant that launches read.
    ///
    /// # Errors
    /// If there is none.
    pub(in crate::device) fn constant(&self, v: ValueId) -> Result<&T::Constant> {
        self.constants.get(&v).ok_or_else(|| err!(Internal, "value {} was not uploaded", v.index()))
    }
}

/// A segment on a device.
pub(super) struct Segment<T: Target> {
    pub(super) target: Arc<T>,
    graph: Graph,
    ops: OpRegistry,
    precision: Precision,
    /// For each input whether its numbers decide extents.
    decides: Vec<bool>,
    /// Outputs whose numbers a neighbour on the device looks at on the host.
    watched: Mutex<HashSet<usize>>,
    constants: Mutex<HashMap<ValueId, T::Constant>>,
    ready: Mutex<Vec<Arc<Ready<T>>>>,
}

impl<T: Target> Segment<T> {
    pub(super) fn new(
        target: Arc<T>,
        graph: Graph,
        ops: OpRegistry,
        precision: Precision,
    ) -> Result<Self> {
        let decides = extent_inputs(&graph);
        let (constants, ready) = (Mutex::default(), Mutex::default());
        let watched = Mutex::default();
        let segment = Self { target, graph, ops, precision, decides, watched, constants, ready };
        let zeros = |(v, decides): (&ValueId, &bool)| -> Option<Value> {
            let fact = &segment.graph.value(*v).fact;
            let shape = fact.concrete_shape().filter(|_| !decides)?;
            Some(Tensor::zeros(fact.dtype?, shape).ok()?.into())
        };
        let inputs = segment.graph.inputs().iter().zip(&segment.decides);
        let inputs: Option<Vec<Value>> = inputs.map(zeros).collect();
        if let Some(inputs) = inputs {
            segment.ready_for(&inputs)?;
        }
        Ok(segment)
    }

    /// The launches for these inputs, made if they are not there.
    ///
    /// # Errors
    /// If an input is not what was declared, or a node cannot be run with these extents.
    pub(super) fn ready_for(&self, inputs: &[Value]) -> Result<Arc<Ready<T>>> {
        let mut all = lock(&self.ready);
        if let Some(at) = all.iter().position(|r| r.is_for(inputs)) {
            let found = all.remove(at);
            all.push(Arc::clone(&found));
            return Ok(found);
        }
        let made = Arc::new(self.make_ready(inputs)?);
        if all.len() >= MOST_READY {
            all.remove(0);
        }
        all.push(Arc::clone(&made));
        Ok(made)
    }

    fn make_ready(&self, inputs: &[Value]) -> Result<Ready<T>> {
        let mut graph = self.graph.clone();
        let names: Vec<String> = graph.input_names().map(str::to_owned).collect();
        if names.len() != inputs.len() {
            bail!(Missing, "{} inputs are needed, {} given", names.len(), inputs.len());
        }
        let (mut key, mut fed) = (Vec::new(), Vec::new());
        for (i, (name, value)) in names.iter().zip(inputs).enumerate() {
            let (Some(dtype), Some(shape)) = (value.dtype(), value.shape()) else {
                bail!(Unsupported, "input `{name}` is {}", value.describe())
            };
            if self.decides[i] {
                let tensor = on_host(value)?.clone();
                graph.bind_input(name, tensor.clone())?;
                key.push(Part::Whole(tensor));
            } else if device_scalar(dtype).is_some() {
                let Some(v) = graph.find(name) else { bail!(Internal, "no value `{name}`") };
                graph.value_mut(v).fact = Fact::new(dtype, shape.iter().map(|n| Dim::of(*n)));
                key.push(Part::Extents(dtype, shape.clone()));
                fed.push(i);
            } else {
                bail!(Unsupported, "input `{name}` is {}", value.describe())
            }
        }
        let known = infer_graph(&mut graph, &self.ops)?;
        let lowered = Lowered::new(&graph, &known, self.target.lowering())?;
        let limit = self.target.limit();
        let mut sizes = lowered.buffers.iter().zip(&lowered.names);
        if let Some((bytes, name)) = sizes.find(|(bytes, _)| **bytes > limit) {
            bail!(
                Limit,
                "`{name}` takes {bytes} bytes, and {} binds at most {limit}; take smaller items, or place \
                 its node on a CPU",
                self.target.name()
            );
        }
        let mut constants = HashMap::new();
        for launch in &lowered.launches {
            let (words, kernel) = (launch.words.len(), &launch.kernel);
            if words != kernel.words4 * 4 {
                bail!(Internal, "{words} words for kernel `{}`", kernel.name);
            }
            for read in &launch.reads {
                if let Operand::Constant(v) = read
                    && !constants.contains_key(v)
                {
                    constants.insert(*v, self.constant(&graph, &lowered, *v)?);
                }
            }
        }
        let prepared = self.target.prepare(&lowered, self.precision)?;
        Ok(Ready { key, fed, names, lowered, prepared, constants })
    }

    /// A constant on the device; the graph's own are uploaded once.
    fn constant(&self, graph: &Graph, lowered: &Lowered, v: ValueId) -> Result<T::Constant> {
        let name = graph.values().get(v.index()).map_or("a table", |info| info.name.as_str());
        let upload = |tensor: &Tensor| -> Result<T::Constant> {
            let bytes = narrowed(tensor, None, name)?;
            let limit = self.target.limit();
            if bytes.len() as u64 > limit {
                let (device, bytes) = (self.target.name(), bytes.len());
                bail!(
                    Limit,
                    "constant `{name}` takes {bytes} bytes, and {device} binds at most {limit}; place its \
                     node on a CPU"
                );
            }
            self.target.upload(name, &bytes)
        };
        if let Some(tensor) = lowered.constant(v) {
            return upload(tensor);
        }
        let mut uploaded = lock(&self.constants);
        if let Some(done) = uploaded.get(&v) {
            return Ok(done.clone());
        }
        let own = self.graph.values().get(v.index()).and_then(|info| info.constant.as_ref());
        let Some(tensor) = own else { bail!(Internal, "`{name}` is not a constant") };
        let constant = upload(tensor)?;
        uploaded.insert(v, constant.clone());
        Ok(constant)
    }

    /// How many outputs it has.
    pub(super) fn outputs(&self) -> usize {
        self.graph.outputs().len()
    }

    /// Whether a neighbour looks at an output on the host, besides taking it on the device.
    pub(super) fn is_watched(&self, output: usize) -> bool {
        lock(&self.watched).contains(&output)
    }

    /// Whether the numbers of an input are looked at on the host: extents follow from them, or they
    /// may be indices.
    fn looks_at(&self, input: usize) -> bool {
        let dtype = self.graph.inputs().get(input).map(|v| self.graph.value(*v).fact.dtype);
        let whole = matches!(dtype, Some(Some(DType::I32 | DType::I64) | None));
        whole || self.decides.get(input).copied().unwrap_or(true)
    }
}

/// The copy of a value that is on the host.
///
/// # Errors
/// If there is none.
pub(super) fn on_host(value: &Value) -> Result<&Tensor> {
    match value {
        Value::Resident(r) => r.host().ok_or_else(|| {
            err!(Unsupported, "{} is not on the host, where its numbers are checked", r.describe())
        }),
        other => other.tensor(),
    }
}

/// A shared handle on a segment: instances keep it.
pub(super) struct Shared<T: Target>(pub(super) Arc<Segment<T>>);

impl<T: Target> fmt::Debug for Shared<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({:?})", self.0.target)
    }
}

impl<T: Target> CompiledSegment for Shared<T> {
    fn inputs(&self) -> Vec<(String, Fact)> {
        let graph = &self.0.graph;
        let of = |v: &ValueId| (graph.value(*v).name.clone(), graph.value(*v).fact.clone());
        graph.inputs().iter().map(of).collect()
    }

    fn outputs(&self) -> Vec<String> {
        self.0.graph.output_names().map(str::to_owned).collect()
    }

    fn weight_bytes(&self) -> usize {
        let constants = self.0.graph.values().iter().filter_map(|v| v.constant.as_ref());
        // Four bytes for each element, whatever it has on the host.
        constants.map(|t| t.shape().elements() * 4).sum()
    }

    fn connect(&self, output: usize, to: &dyn CompiledSegment, input: usize) -> Result<()> {
        let to = to.as_any().and_then(|to| to.downcast_ref::<Self>());
        if to.is_none_or(|to| to.0.looks_at(input)) {
            lock(&self.0.watched).insert(output);
        }
        Ok(())
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn instance(&self, options: InstanceOptions) -> Result<Box<dyn Instance>> {
        Ok(Box::new(LaunchedInstance::new(Arc::clone(&self.0), options)?))
    }
}
