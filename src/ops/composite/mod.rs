//! Operators that stand for a few others: each builds the graph that it means, which is inferred,
//! compiled and run in its place.

mod activation;
mod embed;
mod norm;
mod quantized;
mod quantized_attention;
mod quantized_unary;

pub(super) use activation::{
    BIAS_GELU, FAST_GELU, FUSED_CONV, FUSED_GEMM, FUSED_MATMUL, MS_GELU, QUICK_GELU, SWISH,
};
pub(super) use embed::EMBED_LAYER_NORMALIZATION;
pub(super) use norm::{
    RMS_NORMALIZATION, SIMPLIFIED_LAYER_NORMALIZATION, SKIP_LAYER_NORMALIZATION,
    SKIP_SIMPLIFIED_LAYER_NORMALIZATION,
};
pub(super) use quantized::{
    DYNAMIC_QUANTIZE_MATMUL, MATMUL_INTEGER_TO_FLOAT, QGEMM, QLINEAR_CONV, QLINEAR_MATMUL,
};
pub(super) use quantized_attention::QATTENTION;
pub(super) use quantized_unary::{
    QLINEAR_ADD, QLINEAR_AVERAGE_POOL, QLINEAR_CONCAT, QLINEAR_GLOBAL_AVERAGE_POOL,
    QLINEAR_LEAKY_RELU, QLINEAR_MUL, QLINEAR_SIGMOID, QLINEAR_SOFTMAX,
};

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::infer::{Known, infer_graph};
use super::{
    CompileOptions, CpuKernel, Infer, Io, OpDef, OpRegistry, Prepare, Program, batch, cost,
};
use crate::error::{Result, err};
use crate::graph::{Attribute, Dim, Fact, Graph, Node, ValueId};
use crate::tensor::{DType, Tensor, Value};

/// The domain of ONNX Runtime's own operators.
pub(super) const MICROSOFT: &str = "com.microsoft";

/// What the rows of this family have in common.
const BASE: OpDef = OpDef {
    name: "",
    domain: MICROSOFT,
    since: 1,
    attributes: &[],
    inputs: &[],
    outputs: &[],
    infer: |_| Ok(()),
    batch: batch::mixes,
    cost: cost::transcendental,
    prepare: |_| Err(err!(Internal, "a row without a kernel")),
    cases: Vec::new,
};

/// The function that adds a node's meaning to a sketch and returns its outputs, in order.
type Build = fn(&mut Sketch<'_>) -> Result<Vec<ValueId>>;

/// A graph in the making that stands for one node.
struct Sketch<'a> {
    node: &'a Node,
    inputs: Vec<Option<ValueId>>,
    facts: Vec<Option<Fact>>,
    graph: Graph,
}

/// The version of ai.onnx that the graphs are written in.
const VERSION: i64 = 21;

impl<'a> Sketch<'a> {
    fn new(node: &'a Node, facts: &[Option<Fact>], constants: &[Option<Tensor>]) -> Result<Self> {
        let mut graph = Graph::new(node.name.clone());
        graph.opsets.insert(String::new(), VERSION);
        let mut inputs = Vec::with_capacity(facts.len());
        for (k, fact) in facts.iter().enumerate() {
            inputs.push(match (fact, constants.get(k).and_then(Option::as_ref)) {
                (None, _) => None,
                (Some(_), Some(t)) => Some(graph.add_constant(format!("x{k}"), t.clone())?),
                (Some(fact), None) => Some(graph.add_input(format!("x{k}"), fact.clone())?),
            });
        }
        Ok(Self { node, inputs, facts: facts.to_vec(), graph })
    }

    /// The graph, which makes these values.
    fn finish(mut self, outputs: Vec<ValueId>) -> Result<Graph> {
        self.graph.set_outputs(outputs);
        Ok(self.graph)
    }

    /// An input that must be there.
    fn input(&self, k: usize) -> Result<ValueId> {
        self.optional(k).ok_or_else(|| err!(Missing, "input {k} is missing"))
    }

    fn optional(&self, k: usize) -> Option<ValueId> {
        self.inputs.get(k).copied().flatten()
    }

    fn dtype(&self, k: usize) -> Result<DType> {
        let fact = self.facts.get(k).and_then(Option::as_ref);
        fact.and_then(|f| f.dtype).ok_or_else(|| unknown(k))
    }

    fn dims(&self, k: usize) -> Result<&[Dim]> {
        let fact = self.facts.get(k).and_then(Option::as_ref);
        fact.and_then(|f| f.shape.as_deref()).ok_or_else(|| unknown(k))
    }

    fn constant(&mut self, tensor: Tensor) -> Result<ValueId> {
        let name = format!("c{}", self.graph.values().len());
        self.graph.add_constant(name, tensor)
    }

    fn ints(&mut self, values: &[i64]) -> Result<ValueId> {
        self.constant(Tensor::of_i64(values))
    }

    /// A number of the dtype that an input has.
    fn number(&mut self, value: f64, like: usize) -> Result<ValueId> {
        let dtype = self.dtype(like)?;
        self.constant(crate::tensor::cast(&Tensor::scalar(value), dtype)?)
    }

    fn op(
        &mut self,
        op: &str,
        inputs: &[ValueId],
        attributes: &[(&str, Attribute)],
    ) -> Result<ValueId> {
        let inputs: Vec<Option<ValueId>> = inputs.iter().copied().map(Some).collect();
        let made = self.apply(op, &inputs, attributes, 1)?;
        Ok(made[0])
    }

    fn apply(
        &mut self,
        op: &str,
        inputs: &[Option<ValueId>],
        attributes: &[(&str, Attribute)],
        outputs: usize,
    ) -> Result<Vec<ValueId>> {
        let mut made = Vec::with_capacity(outputs);
        for _ in 0..outputs {
            let name = format!("v{}", self.graph.values().len());
            made.push(self.graph.add_value(name, Fact::unknown())?);
        }
        let name = format!("{op}{}", self.graph.nodes().len());
        let outs: Vec<Option<ValueId>> = made.iter().copied().map(Some).collect();
        let node = self.graph.add_node(name, op, inputs.iter().copied(), outs);
        node.version = VERSION;
        node.attributes = attributes
            .iter()
            .map(|(k, a)| ((*k).to_owned(), a.clone()))
            .collect::<BTreeMap<_, _>>();
        Ok(made)
    }

    /// An input's contents, if constant.
    fn known(&self, k: usize) -> Option<&Tensor> {
        self.graph.value(self.optional(k)?).constant.as_ref()
    }

    fn cast(&mut self, x: ValueId, to: DType) -> Result<ValueId> {
        self.op("Cast", &[x], &[("to", i64::from(to as i32).into())])
    }

    /// The node's attributes of these names, for a node of the graph.
    fn passed(&self, names: &[&'static str]) -> Vec<(&'static str, Attribute)> {
        let given = names.iter().filter_map(|n| Some((*n, self.node.attributes.get(*n)?.clone())));
        given.collect()
    }
}

fn unknown(k: usize) -> crate::Error {
    err!(Missing, "the dtype or the number of axes of input {k} is not known")
}

fn built(
    build: Build,
    node: &Node,
    facts: &[Option<Fact>],
    constants: &[Option<Tensor>],
) -> Result<Graph> {
    let mut sketch = Sketch::new(node, facts, constants)?;
    let outputs = build(&mut sketch)?;
    sketch.finish(outputs)
}

/// Infers the graph that the node stands for.
fn infer(i: &mut Infer<'_>, build: Build) -> Result<()> {
    let count = i.input_count();
    let facts: Vec<Option<Fact>> =
        (0..count).map(|k| i.known(k).map(|known| known.fact.clone())).collect();
    let constants: Vec<Option<Tensor>> = (0..count).map(|k| i.constant(k).cloned()).collect();
    let graph = match built(build, i.node, &facts, &constants) {
        Ok(graph) => graph,
        // Something is not known yet; at run time it will be.
        Err(e) if e.kind() == crate::ErrorKind::Missing => return Ok(()),
        Err(e) => return Err(e),
    };
    let inputs: Vec<Known> = (0..count)
        .filter(|k| facts[*k].is_some() && constants[*k].is_none())
        .map(|k| i.known(k).cloned().unwrap_or_default())
        .collect();
    let made = i.inner(graph, &inputs)?;
    for (k, known) in made.into_iter().enumerate() {
        i.set(k, known.fact.dtype, known.fact.shape);
    }
    Ok(())
}

/// The kernel of a node that stands for others.
fn prepare(p: &Prepare<'_>, build: Build) -> Result<Box<dyn CpuKernel>> {
    let mut kernel = Composite {
        build,
        node: p.node.clone(),
        constants: p.constants.to_vec(),
        options: p.options.clone(),
        registry: p.registry.clone(),
        ready: None,
        later: Mutex::default(),
    };
    match kernel.compile(p.facts) {
        Ok(program) => kernel.ready = Some(program),
        Err(e) if e.kind() == crate::ErrorKind::Missing => {}
        Err(e) => return Err(e),
    }
    Ok(Box::new(kernel))
}

struct Composite {
    build: Build,
    node: Node,
    constants: Vec<Option<Tensor>>,
    options: CompileOptions,
    registry: OpRegistry,
    /// What it means, if enough was known.
    ready: Option<Arc<Program>>,
    /// What it means for inputs that only a run showed: the last ones.
    later: Mutex<Option<(Vec<Option<Fact>>, Arc<Program>)>>,
}

impl std::fmt::Debug for Composite {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Composite").field("op", &self.node.op).finish_non_exhaustive()
    }
}

impl Composite {
    fn compile(&self, facts: &[Option<Fact>]) -> Result<Arc<Program>> {
        let mut graph = built(self.build, &self.node, facts, &self.constants)?;
        infer_graph(&mut graph, &self.registry)?;
        Ok(Arc::new(Program::compile(&graph, &self.registry, &self.options)?))
    }

    fn program(&self, io: &Io<'_>) -> Result<Arc<Program>> {
        if let Some(ready) = &self.ready {
            return Ok(Arc::clone(ready));
        }
        let mut facts = Vec::with_capacity(io.input_count());
        for k in 0..io.input_count() {
            facts.push(match (io.optional(k)?, &self.constants.get(k)) {
                (Some(t), _) => Some(Fact::of(t)),
                (None, Some(Some(t))) => Some(Fact::of(t)),
                _ => None,
            });
        }
        let mut later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, program)) = &*later
            && *known == facts
        {
            return Ok(Arc::clone(program));
        }
        let program = self.compile(&facts)?;
        *later = Some((facts, Arc::clone(&program)));
        Ok(program)
    }
}

impl CpuKernel for Composite {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let program = self.program(io)?;
        let mut inputs: Vec<Value> = Vec::new();
        for k in 0..io.input_count() {
            if self.constants.get(k).is_some_and(Option::is_some) || !io.has(k) {
                continue;
            }
            inputs.push(io.take(k)?);
        }
        for value in program.run(inputs, io.context())? {
            io.emit(value);
        }
        Ok(())
    }

    fn reads_constant(&self, _: usize) -> bool {
        // They are constants of the program.
        false
    }
}
