//! What a CPU kernel is and what it is given.

use std::fmt;

use super::dequant::ReadyWeights;
use super::{CompileOptions, OpRegistry, Program, RunContext, Threads};
use crate::error::{Result, bail, err};
use crate::graph::{Fact, Graph, Node};
use crate::tensor::{BufferPool, DType, Shape, Tensor, Value};

/// One node made ready for the CPU: attributes read, constant weights packed.
pub trait CpuKernel: Send + Sync + fmt::Debug {
    /// Computes the outputs, in order, through [`Io::emit`].
    ///
    /// # Errors
    /// If the inputs are not what the operator needs.
    fn run(&self, io: &mut Io<'_>) -> Result<()>;

    /// Whether the kernel still reads this constant input at run time. A kernel that packed it
    /// says no, so that the original can be dropped.
    fn reads_constant(&self, _input: usize) -> bool {
        true
    }
}

/// A kernel from a function: for operators that need nothing prepared, and for those whose
/// attributes the closure captures.
///
/// ```
/// use brigade::extend::*;
/// // y = x · factor, elementwise.
/// fn prepare(p: &Prepare<'_>) -> brigade::Result<Box<dyn CpuKernel>> {
///     let factor = p.node.float("factor")?.unwrap_or(1.0);
///     Ok(kernel_fn(move |io| {
///         let mut y = io.take_tensor(0)?;
///         y.as_mut_slice::<f32>()?.iter_mut().for_each(|v| *v *= factor);
///         io.emit(y);
///         Ok(())
///     }))
/// }
/// # let _ = prepare;
/// ```
pub fn kernel_fn(
    run: impl Fn(&mut Io<'_>) -> Result<()> + Send + Sync + 'static,
) -> Box<dyn CpuKernel> {
    Box::new(Function(run))
}

struct Function<F>(F);

impl<F> fmt::Debug for Function<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").finish_non_exhaustive()
    }
}

impl<F: Fn(&mut Io<'_>) -> Result<()> + Send + Sync> CpuKernel for Function<F> {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        (self.0)(io)
    }
}

/// What `prepare` sees of a node.
#[derive(Debug)]
pub struct Prepare<'a> {
    /// The node.
    pub node: &'a Node,
    /// What is known of the inputs; `None` where left out.
    pub facts: &'a [Option<Fact>],
    /// The inputs that are constant.
    pub constants: &'a [Option<Tensor>],
    /// The options of the compilation.
    pub options: &'a CompileOptions,
    /// The operators, for subgraphs.
    pub registry: &'a OpRegistry,
    /// The graph that the node is in.
    pub graph: &'a Graph,
    /// Weights in blocks that nodes of this program share.
    pub(in crate::ops) ready: &'a ReadyWeights,
}

impl Prepare<'_> {
    /// The input's contents, if constant.
    pub fn constant(&self, i: usize) -> Option<&Tensor> {
        self.constants.get(i).and_then(Option::as_ref)
    }

    /// Whether the input is given.
    pub fn has(&self, i: usize) -> bool {
        self.node.inputs.get(i).copied().flatten().is_some()
    }

    /// The input's dtype, if known.
    pub fn dtype(&self, i: usize) -> Option<DType> {
        self.facts.get(i).and_then(Option::as_ref).and_then(|f| f.dtype)
    }

    /// The subgraph of an attribute, compiled.
    ///
    /// # Errors
    /// If there is none, or it cannot be compiled.
    pub fn subgraph(&self, attribute: &str) -> Result<Program> {
        let graph: &Graph = self.node.graph(attribute)?.ok_or_else(|| {
            err!(Graph, "node `{}` lacks its subgraph `{attribute}`", self.node.name)
        })?;
        Program::compile(graph, self.registry, self.options)
    }
}

/// The inputs and outputs of one run of a kernel.
#[derive(Debug)]
pub struct Io<'a> {
    inputs: &'a mut [Option<Value>],
    outputs: Vec<Value>,
    wanted: usize,
    context: &'a RunContext,
}

impl<'a> Io<'a> {
    pub(super) fn new(
        inputs: &'a mut [Option<Value>],
        outputs: Vec<Value>,
        wanted: usize,
        context: &'a RunContext,
    ) -> Self {
        Self { inputs, outputs, wanted, context }
    }

    pub(super) fn finish(self) -> Vec<Value> {
        self.outputs
    }

    /// How many inputs the node has, given or not.
    pub fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// How many outputs the node has; a kernel emits at least so many, and never more than its
    /// operator has.
    pub fn output_count(&self) -> usize {
        self.wanted
    }

    /// Whether the input is given.
    pub fn has(&self, i: usize) -> bool {
        self.inputs.get(i).is_some_and(Option::is_some)
    }

    /// An input.
    ///
    /// # Errors
    /// If it is left out.
    pub fn value(&self, i: usize) -> Result<&Value> {
        match self.inputs.get(i) {
            Some(Some(v)) => Ok(v),
            _ => bail!(Missing, "input {i} is missing"),
        }
    }

    /// An input that is a tensor.
    ///
    /// # Errors
    /// If it is left out, or no tensor.
    pub fn tensor(&self, i: usize) -> Result<&Tensor> {
        self.value(i)?.tensor()
    }

    /// An input that may be left out.
    ///
    /// # Errors
    /// If it is no tensor.
    pub fn optional(&self, i: usize) -> Result<Option<&Tensor>> {
        if self.has(i) { self.tensor(i).map(Some) } else { Ok(None) }
    }

    /// An input by value. Where nobody else needs it its memory is unique, so that a kernel may
    /// write its result in place ([`Tensor::is_unique`]).
    ///
    /// # Errors
    /// If it is left out, or was taken before.
    pub fn take(&mut self, i: usize) -> Result<Value> {
        match self.inputs.get_mut(i).and_then(Option::take) {
            Some(v) => Ok(v),
            None => bail!(Missing, "input {i} is missing"),
        }
    }

    /// Puts another value in an input's place.
    pub(in crate::ops) fn put(&mut self, i: usize, value: Value) {
        if let Some(slot) = self.inputs.get_mut(i) {
            *slot = Some(value);
        }
    }

    /// An input that is a tensor, by value.
    ///
    /// # Errors
    /// As [`Self::take`], or if it is no tensor.
    pub fn take_tensor(&mut self, i: usize) -> Result<Tensor> {
        self.take(i)?.into_tensor()
    }

    /// Memory for an output; its contents are arbitrary (bools are `false`).
    ///
    /// # Errors
    /// If the shape is too large.
    pub fn allocate(&self, dtype: DType, shape: impl Into<Shape>) -> Result<Tensor> {
        Tensor::from_pool(self.pool(), dtype, shape)
    }

    /// The pool, for scratch buffers and subgraphs.
    pub fn pool(&self) -> &'a BufferPool {
        &self.context.pool
    }

    /// The threads.
    pub fn threads(&self) -> &'a Threads {
        &self.context.threads
    }

    /// What a program that runs within this kernel works with.
    pub(in crate::ops) fn context(&self) -> &'a RunContext {
        self.context
    }

    /// Gives the next output. What an operator of one's own emits is compared with what its inference
    /// promised: the number of outputs, dtypes, ranks and known extents.
    pub fn emit(&mut self, value: impl Into<Value>) {
        self.outputs.push(value.into());
    }
}
