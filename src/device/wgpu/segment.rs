//! A graph compiled for an adapter: constants on the device, launches for each set of extents.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use super::context::{Context, Pipeline, lock};
use super::instance::WgpuInstance;
use super::lower::{Lowered, Operand};
use crate::device::{CompiledSegment, Instance, InstanceOptions};
use crate::error::{Result, bail};
use crate::graph::{Dim, Fact, Graph, ValueId};
use crate::ops::{OpRegistry, infer_graph};
use crate::tensor::{DType, Shape, Tensor, Value};

/// What launches depend on, of one input.
#[derive(Clone, Debug, PartialEq)]
enum Part {
    /// The extents of numbers that kernels read.
    Extents(Shape),
    /// Whole numbers that extents follow from.
    Whole(Tensor),
}

/// Launches for inputs of certain extents, with everything that does not change from item to item.
#[derive(Debug)]
pub(super) struct Ready {
    key: Vec<Part>,
    /// The inputs that are uploaded, as places among the segment's; the others only decide extents.
    pub(super) fed: Vec<usize>,
    pub(super) lowered: Lowered,
    pub(super) pipelines: Vec<Arc<Pipeline>>,
    /// The words of all launches, each on a boundary of [`UNIFORM_STEP`] bytes.
    pub(super) uniforms: Option<wgpu::Buffer>,
    pub(super) constants: HashMap<ValueId, wgpu::Buffer>,
}

impl std::fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Pipeline")
    }
}

/// Bytes from one launch's words to the next: the alignment that every adapter accepts.
pub(super) const UNIFORM_STEP: usize = 256;

/// Sets of extents that a segment keeps launches for.
const MOST_READY: usize = 8;

impl Ready {
    /// Whether inputs have the extents that this is for.
    pub(super) fn is_for(&self, inputs: &[Value]) -> bool {
        self.key.len() == inputs.len()
            && self.key.iter().zip(inputs).all(|(part, value)| match part {
                Part::Extents(shape) => {
                    value.dtype() == Some(DType::F32) && value.shape() == Some(shape)
                }
                Part::Whole(tensor) => value.tensor().is_ok_and(|t| t == tensor),
            })
    }
}

/// A segment on an adapter.
#[derive(Debug)]
pub(super) struct WgpuSegment {
    pub(super) context: Arc<Context>,
    graph: Graph,
    ops: OpRegistry,
    constants: Mutex<HashMap<ValueId, wgpu::Buffer>>,
    ready: Mutex<Vec<Arc<Ready>>>,
}

impl WgpuSegment {
    /// # Errors
    /// If a constant is too large or cannot be uploaded, or, where all extents are known, a node
    /// cannot be lowered.
    pub(super) fn new(context: Arc<Context>, graph: Graph, ops: OpRegistry) -> Result<Self> {
        let segment =
            Self { context, graph, ops, constants: Mutex::default(), ready: Mutex::default() };
        let zeros = |v: &ValueId| -> Option<Value> {
            let fact = &segment.graph.value(*v).fact;
            let known = fact.dtype == Some(DType::F32);
            let shape = fact.concrete_shape().filter(|_| known)?;
            Some(Tensor::zeros(DType::F32, shape).ok()?.into())
        };
        let inputs: Option<Vec<Value>> = segment.graph.inputs().iter().map(zeros).collect();
        if let Some(inputs) = inputs {
            segment.ready_for(&inputs)?;
        }
        Ok(segment)
    }

    /// The launches for these inputs, made if they are not there.
    ///
    /// # Errors
    /// If an input is not what was declared, or a node cannot be run with these extents.
    pub(super) fn ready_for(&self, inputs: &[Value]) -> Result<Arc<Ready>> {
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

    fn make_ready(&self, inputs: &[Value]) -> Result<Ready> {
        let mut graph = self.graph.clone();
        let names: Vec<String> = graph.input_names().map(str::to_owned).collect();
        if names.len() != inputs.len() {
            bail!(Missing, "{} inputs are needed, {} given", names.len(), inputs.len());
        }
        let (mut key, mut fed) = (Vec::new(), Vec::new());
        for (i, (name, value)) in names.iter().zip(inputs).enumerate() {
            match (value.dtype(), value.shape()) {
                (Some(DType::F32), Some(shape)) => {
                    let Some(v) = graph.find(name) else { bail!(Internal, "no value `{name}`") };
                    let dims = shape.iter().map(|n| Dim::of(*n));
                    graph.value_mut(v).fact = Fact::new(DType::F32, dims);
                    key.push(Part::Extents(shape.clone()));
                    fed.push(i);
                }
                (Some(DType::I64 | DType::I32), Some(_)) => {
                    let tensor = value.tensor()?.clone();
                    graph.bind_input(name, tensor.clone())?;
                    key.push(Part::Whole(tensor));
                }
                _ => bail!(Unsupported, "input `{name}` is {}", value.describe()),
            }
        }
        infer_graph(&mut graph, &self.ops)?;
        let lowered = Lowered::new(&graph)?;
        let limit = self.context.binding_limit;
        if let Some(bytes) = lowered.buffers.iter().find(|b| **b > limit) {
            let name = &self.context.name;
            bail!(Limit, "a working buffer of {bytes} bytes; {name} binds at most {limit}");
        }
        let mut pipelines = Vec::with_capacity(lowered.launches.len());
        let mut words = vec![0_u8; lowered.launches.len() * UNIFORM_STEP];
        let mut constants = HashMap::new();
        for (i, launch) in lowered.launches.iter().enumerate() {
            pipelines.push(self.context.pipeline(&launch.shader)?);
            let bytes: &[u8] = bytemuck::cast_slice(&launch.words);
            if bytes.len() != launch.shader.words4 * 16 || bytes.len() > UNIFORM_STEP {
                bail!(Internal, "{} words for kernel `{}`", bytes.len() / 4, launch.shader.label);
            }
            words[i * UNIFORM_STEP..][..bytes.len()].copy_from_slice(bytes);
            for read in &launch.reads {
                if let Operand::Constant(v) = read
                    && !constants.contains_key(v)
                {
                    constants.insert(*v, self.constant(&graph, *v)?);
                }
            }
        }
        let uniforms = match words.is_empty() {
            true => None,
            false => Some(self.context.filled("extents", &words, wgpu::BufferUsages::UNIFORM)?),
        };
        Ok(Ready { key, fed, lowered, pipelines, uniforms, constants })
    }

    /// A constant on the device, uploaded once.
    fn constant(&self, graph: &Graph, v: ValueId) -> Result<wgpu::Buffer> {
        let info = graph.value(v);
        let mut uploaded = lock(&self.constants);
        if let Some(done) = uploaded.get(&v) {
            return Ok(done.clone());
        }
        let Some(tensor) = info.constant.as_ref().filter(|t| t.dtype() == DType::F32) else {
            bail!(Unsupported, "constant `{}` is not f32", info.name);
        };
        let limit = self.context.binding_limit;
        if tensor.bytes() as u64 > limit {
            let (name, bytes) = (&self.context.name, tensor.bytes());
            bail!(Limit, "constant `{}` has {bytes} bytes; {name} binds {limit}", info.name);
        }
        let usage = wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC;
        let buffer = self.context.filled(&info.name, tensor.as_bytes(), usage)?;
        uploaded.insert(v, buffer.clone());
        Ok(buffer)
    }
}

/// A shared handle on a segment: instances keep it.
#[derive(Debug)]
pub(super) struct Shared(pub(super) Arc<WgpuSegment>);

impl CompiledSegment for Shared {
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
        constants.map(Tensor::bytes).sum()
    }

    fn instance(&self, options: InstanceOptions) -> Result<Box<dyn Instance>> {
        Ok(Box::new(WgpuInstance::new(Arc::clone(&self.0), options)?))
    }
}
