//! From a graph whose extents are known to launches of kernels over buffers.

mod elementwise;
mod integers;
mod movement;
mod product;
mod quantized;
mod refusal;
mod rows;
mod site;
mod table;
mod windows;

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::families::elementwise::MOST_LEAVES;
use super::families::product::Tiling;
use super::ir::Kernel;
use crate::error::{Result, bail};
use crate::graph::{Graph, ValueId};
use crate::ops::infer::Known;
use crate::tensor::{DType, Shape, Tensor};
use elementwise::Fused;
use site::{Extras, Site, Step};

pub use integers::{extent_inputs, narrowed, widened};
pub use product::ProductCall;
pub use refusal::refusals;
pub use site::device_scalar;
pub use table::{Row, TABLE, row_of, supports};

/// What a launch reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operand {
    /// A constant: [`Lowered::constant`] has it.
    Constant(ValueId),
    /// A working buffer.
    Buffer(usize),
}

/// One run of a kernel.
#[derive(Clone, Debug)]
pub struct Launch {
    /// The kernel.
    pub kernel: Arc<Kernel>,
    /// What it reads, in the order of the kernel's inputs.
    pub reads: Vec<Operand>,
    /// The working buffer that it writes.
    pub writes: usize,
    /// Its table of words.
    pub words: Vec<u32>,
    /// Groups along each axis, none of them 0.
    pub groups: [u32; 3],
    /// The products that it computes, if a library may compute them instead.
    pub product: Option<ProductCall>,
}

/// Where an output lies when all launches are done.
#[derive(Clone, Debug)]
pub enum OutputPlace {
    /// In a working buffer.
    Buffer {
        /// The buffer.
        buffer: usize,
        /// The dtype that it is read back as.
        dtype: DType,
        /// The shape.
        shape: Shape,
    },
    /// The same for each item.
    Constant(Tensor),
}

/// Where an input goes.
#[derive(Clone, Debug)]
pub struct InputPlace {
    /// The working buffer.
    pub buffer: usize,
    /// The dtype that it is fed as.
    pub dtype: DType,
    /// The least and the largest whole number that the launches can take; an item with another one
    /// is an error.
    pub range: Option<(i64, i64)>,
}

/// How graphs are lowered for a device.
#[derive(Clone, Copy, Debug)]
pub struct LoweringOptions {
    /// How groups read the operands of products.
    pub tiling: Tiling,
    /// Whether chains of element-wise operators become one kernel.
    pub fuse: bool,
}

impl Default for LoweringOptions {
    fn default() -> Self {
        Self { tiling: Tiling::Groups, fuse: true }
    }
}

/// A graph as launches, for inputs of certain extents. Every element takes four bytes there: whole
/// numbers of 64 bits are narrowed, truth values are 0 or 1.
///
/// ```
/// use brigade::gpu::{Lowered, LoweringOptions};
/// use brigade::ops::{OpRegistry, builder::GraphBuilder, infer_graph};
/// use brigade::DType;
/// let mut g = GraphBuilder::new("g");
/// let x = g.input("x", DType::F32, [2.into(), 3.into()])?;
/// let y = g.relu(x)?;
/// let y = g.softmax(y, -1)?;
/// let mut graph = g.finish([("y", y)])?;
/// let known = infer_graph(&mut graph, &OpRegistry::default())?;
/// let lowered = Lowered::new(&graph, &known, LoweringOptions::default())?;
/// assert_eq!(lowered.launches.len(), 2);
/// assert!(lowered.launches[1].kernel.cuda("softmax").contains("__global__ void"));
/// # Ok::<(), brigade::Error>(())
/// ```
#[derive(Debug)]
pub struct Lowered {
    /// Bytes of each working buffer.
    pub buffers: Vec<u64>,
    /// For each working buffer the name of the value that it was made for.
    pub names: Vec<String>,
    /// The place of each input of the graph, in order.
    pub inputs: Vec<InputPlace>,
    /// The place of each output of the graph, in order.
    pub outputs: Vec<OutputPlace>,
    /// What runs, in order.
    pub launches: Vec<Launch>,
    constants: HashMap<ValueId, Tensor>,
}

impl Lowered {
    /// Lowers a graph in which every value has known extents; `known` is what inference says of
    /// it.
    ///
    /// # Errors
    /// If a node cannot be run so with these extents; names it.
    pub fn new(graph: &Graph, known: &[Known], options: LoweringOptions) -> Result<Self> {
        let mut lowering = Lowering::begin(graph, known, options)?;
        lowering.find_deferrable();
        lowering.run()?;
        lowering.assign()
    }

    /// A constant that launches read, if it is not one of the graph's own.
    pub fn constant(&self, v: ValueId) -> Option<&Tensor> {
        self.constants.get(&v)
    }
}

/// What a node becomes.
enum Made {
    /// The first input's elements in another shape.
    Same,
    Steps(Vec<Step>),
    Chain(Fused),
}

/// A graph on its way.
struct Lowering<'a> {
    graph: &'a Graph,
    options: LoweringOptions,
    /// What is known beforehand.
    constants: HashMap<ValueId, Tensor>,
    /// Values that are another one in another shape.
    same: HashMap<ValueId, ValueId>,
    /// Values that their only reader will compute.
    pending: HashMap<ValueId, Fused>,
    steps: Vec<Step>,
    /// The whole numbers that inputs of the graph may be.
    ranges: HashMap<ValueId, (i64, i64)>,
    /// Values that come from another device, and are inputs where they are fed.
    elsewhere: HashSet<ValueId>,
    deferrable: HashSet<ValueId>,
    extras: RefCell<Extras>,
}

impl<'a> Lowering<'a> {
    /// Before the first node; `known` is what inference says of the graph.
    fn begin(graph: &'a Graph, known: &[Known], options: LoweringOptions) -> Result<Self> {
        let mut constants = HashMap::new();
        for (i, k) in known.iter().enumerate() {
            if let Some(tensor) = k.value()? {
                constants.insert(ValueId::at(i), tensor);
            }
        }
        Ok(Self {
            graph,
            options,
            constants,
            same: HashMap::new(),
            pending: HashMap::new(),
            steps: Vec::new(),
            ranges: HashMap::new(),
            elsewhere: HashSet::new(),
            deferrable: HashSet::new(),
            extras: RefCell::default(),
        })
    }

    fn root(&self, v: ValueId) -> ValueId {
        self.same.get(&v).copied().unwrap_or(v)
    }

    /// Values whose only reader is an element-wise operator that gives the same shape: it may
    /// compute them itself.
    fn find_deferrable(&mut self) {
        if !self.options.fuse {
            return;
        }
        let mut readers: HashMap<ValueId, (usize, usize)> = HashMap::new();
        for (at, node) in self.graph.nodes().iter().enumerate() {
            for v in node.reads() {
                readers.entry(v).or_insert((at, 0)).1 += 1;
            }
        }
        for v in self.graph.outputs() {
            readers.remove(v);
        }
        let shape = |v: ValueId| self.graph.value(v).fact.concrete_shape();
        for (v, (at, count)) in readers {
            let reader = &self.graph.nodes()[at];
            let fits = count == 1
                && row_of(reader).is_some_and(|r| r.elementwise)
                && reader.makes().next().is_some_and(|made| shape(made) == shape(v));
            if fits {
                self.deferrable.insert(v);
            }
        }
    }

    fn run(&mut self) -> Result<()> {
        let graph = self.graph;
        for node in graph.nodes() {
            // What is known needs no kernel.
            if node.makes().all(|v| self.constants.contains_key(&v)) {
                continue;
            }
            let context = |e: crate::error::Error| e.with_node(&node.name, &node.op);
            let Some(row) = row_of(node) else {
                bail!(Unsupported, "no GPU kernel for {} (node `{}`)", node.op, node.name);
            };
            let site = Site::new(graph, node, &self.constants, self.options, &self.extras);
            let made = (row.lower)(&site).map_err(context)?;
            if let Some((input, ranges)) = site.indices.take() {
                self.limit_each(input, &ranges).map_err(context)?;
            }
            match made {
                Made::Same => {
                    let (Some(from), Some(to)) = (node.reads().next(), node.makes().next()) else {
                        continue;
                    };
                    let root = self.root(from);
                    self.same.insert(to, root);
                }
                Made::Steps(steps) => self.steps.extend(steps),
                Made::Chain(fused) => {
                    let fused = self.spliced(fused).map_err(context)?;
                    match self.deferrable.contains(&fused.output) {
                        true => {
                            self.pending.insert(fused.output, fused);
                        }
                        false => self.steps.push(fused.step()?),
                    }
                }
            }
        }
        Ok(())
    }

    /// A chain with the chains of what it reads put in, as far as they fit; the others come before
    /// it.
    fn spliced(&mut self, mut fused: Fused) -> Result<Fused> {
        let mut at = 0;
        while at < fused.leaves.len() {
            let v = fused.leaves[at].value;
            let Some(inner) = self.pending.remove(&v) else {
                at += 1;
                continue;
            };
            let room = fused.leaves.len() - 1 + inner.leaves.len() <= MOST_LEAVES
                && fused.chain.links.len() + inner.chain.links.len() <= elementwise::MOST_LINKS;
            if room {
                fused.splice(at, &inner);
            } else {
                self.steps.push(inner.step()?);
                at += 1;
            }
        }
        Ok(fused)
    }

    /// Chooses buffers: a value's buffer serves again once its last reader is done.
    fn assign(mut self) -> Result<Lowered> {
        let tables = std::mem::take(&mut self.extras.borrow_mut().constants);
        self.constants.extend(tables);
        let mut last: HashMap<ValueId, usize> = HashMap::new();
        let mut written: HashMap<ValueId, usize> = HashMap::new();
        for (at, step) in self.steps.iter().enumerate() {
            for v in &step.reads {
                last.insert(self.root(*v), at);
            }
            written.insert(step.writes, at);
        }
        // Several launches may write one value; it is not done before the last of them.
        for (v, at) in &written {
            let end = last.entry(*v).or_insert(*at);
            *end = (*end).max(*at);
        }
        let kept: HashSet<ValueId> =
            self.graph.outputs().iter().chain(self.graph.inputs()).map(|v| self.root(*v)).collect();
        let mut buffers: Vec<u64> = Vec::new();
        let mut names: Vec<String> = Vec::new();
        let named = |v: ValueId| match self.graph.values().get(v.index()) {
            Some(info) => info.name.clone(),
            None => "a sum on its way".to_owned(),
        };
        let mut place: HashMap<ValueId, usize> = HashMap::new();
        let mut inputs = Vec::new();
        for v in self.graph.inputs() {
            let fact = &self.graph.value(*v).fact;
            let Some(dtype) = fact.dtype else {
                bail!(Unsupported, "the dtype of `{}` is not known", self.graph.value(*v).name)
            };
            let range = self.ranges.get(v).copied();
            inputs.push(InputPlace { buffer: buffers.len(), dtype, range });
            place.insert(*v, buffers.len());
            names.push(named(*v));
            buffers.push(self.bytes(*v)?);
        }
        let mut free: Vec<usize> = Vec::new();
        let mut launches = Vec::new();
        let mut read: HashSet<ValueId> = HashSet::new();
        for (at, step) in self.steps.iter().enumerate() {
            let output = step.writes;
            let writes = match place.get(&output) {
                Some(buffer) => *buffer,
                None => {
                    let need = self.bytes(output)?;
                    // An output of the graph has a buffer of its own: it may be handed over.
                    let fits = |b: &usize| buffers[*b] >= need && !kept.contains(&output);
                    let best = free.iter().copied().filter(fits).min_by_key(|b| buffers[*b]);
                    let chosen = best.unwrap_or_else(|| {
                        names.push(named(output));
                        buffers.push(need);
                        buffers.len() - 1
                    });
                    free.retain(|b| *b != chosen);
                    place.insert(output, chosen);
                    chosen
                }
            };
            let mut reads = Vec::with_capacity(step.reads.len());
            let mut done: Vec<ValueId> = vec![output];
            for v in &step.reads {
                let root = self.root(*v);
                reads.push(match place.get(&root) {
                    Some(buffer) => Operand::Buffer(*buffer),
                    None if self.constants.contains_key(&root) => {
                        read.insert(root);
                        Operand::Constant(root)
                    }
                    None => {
                        bail!(Internal, "value {} is made by nothing", root.index())
                    }
                });
                if !done.contains(&root) {
                    done.push(root);
                }
            }
            let (kernel, words, groups) =
                (Arc::clone(&step.kernel), step.words.clone(), step.groups);
            let product = step.product;
            launches.push(Launch { kernel, reads, writes, words, groups, product });
            for v in done {
                let over = last.get(&v) == Some(&at) && !kept.contains(&v);
                if let (Some(b), true) = (place.get(&v), over) {
                    free.push(*b);
                }
            }
        }
        launches.retain(|l| l.groups.iter().all(|g| *g > 0));
        let mut outputs = Vec::new();
        for v in self.graph.outputs() {
            let root = self.root(*v);
            let shape = site::shape_of(self.graph, *v)?;
            outputs.push(match (place.get(&root), self.constants.get(&root)) {
                (Some(buffer), _) => {
                    let dtype = self.graph.value(*v).fact.dtype.unwrap_or(DType::F32);
                    OutputPlace::Buffer { buffer: *buffer, dtype, shape }
                }
                (None, Some(t)) => OutputPlace::Constant(t.reshape(shape)?),
                (None, None) => {
                    bail!(Internal, "output `{}` is made by nothing", self.graph.value(*v).name)
                }
            });
        }
        let own = |v: &ValueId| {
            self.graph.values().get(v.index()).is_some_and(|info| info.constant.is_some())
        };
        let mut constants = self.constants.clone();
        constants.retain(|v, _| read.contains(v) && !own(v));
        Ok(Lowered { buffers, names, inputs, outputs, launches, constants })
    }

    fn bytes(&self, v: ValueId) -> Result<u64> {
        if let Some(elements) = self.extras.borrow().between.get(&v) {
            return Ok(*elements as u64 * 4);
        }
        Ok(site::shape_of(self.graph, v)?.elements() as u64 * 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::builder::GraphBuilder;
    use crate::ops::{OpRegistry, infer_graph};

    fn lowered(mut graph: Graph) -> Lowered {
        let known = infer_graph(&mut graph, &OpRegistry::default()).unwrap();
        Lowered::new(&graph, &known, LoweringOptions::default()).unwrap()
    }

    #[test]
    fn buffers_serve_again_and_no_kernel_writes_what_it_reads() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [4.into(), 6.into()]).unwrap();
        let mut h = x;
        for _ in 0..6 {
            h = g.relu(h).unwrap();
            h = g.reshape(h, &[6, 4]).unwrap();
            h = g.transpose(h, &[1, 0]).unwrap();
        }
        let y = g.add(h, x).unwrap();
        let lowered = lowered(g.finish([("y", y)]).unwrap());
        assert_eq!(lowered.launches.len(), 13);
        // The input, two that serve by turns, the output.
        assert_eq!(lowered.buffers.len(), 4);
        for launch in &lowered.launches {
            assert!(!launch.reads.contains(&Operand::Buffer(launch.writes)), "{launch:?}");
            assert_eq!(launch.words.len(), launch.kernel.words4 * 4, "{}", launch.kernel.name);
        }
        let OutputPlace::Buffer { buffer, .. } = &lowered.outputs[0] else { panic!("a constant") };
        assert_eq!(lowered.launches.iter().filter(|l| l.writes == *buffer).count(), 1);
    }

    #[test]
    fn chains_of_elements_are_one_launch_and_end_where_others_read() {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [4.into(), 6.into()]).unwrap();
        let b = g.input("b", DType::F32, [6.into()]).unwrap();
        let h = g.add(x, b).unwrap();
        let h = g.tanh(h).unwrap();
        let h = g.mul(h, x).unwrap();
        // Read twice: it is stored.
        let y = g.relu(h).unwrap();
        let z = g.sub(y, h).unwrap();
        let lowered = lowered(g.finish([("z", z)]).unwrap());
        let names: Vec<&str> = lowered.launches.iter().map(|l| l.kernel.name.as_str()).collect();
        assert_eq!(names, ["add_tanh_mul", "relu_sub"]);
    }
}
