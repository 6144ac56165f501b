//! A graph made ready for the CPU: kernels in order, with liveness.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use super::dequant::ReadyWeights;
use super::profile::{Recorder, Subject};
use super::shape_only::ShapeOnly;
use super::workspace::{Frame, Workspace};
use super::{CpuKernel, Io, OpDef, OpRegistry, PortKind, Precision, Prepare, Threads, blocked};
use crate::error::{Result, bail, err};
use crate::graph::{Fact, Graph, Node, ValueId};
use crate::tensor::{BufferPool, Tensor, Value};

/// Options of a compilation.
#[derive(Clone, Debug)]
pub struct CompileOptions {
    /// Kernel threads of one instance.
    pub threads: usize,
    /// What products are computed in, where nothing else is said of a device.
    pub precision: Precision,
    /// Names of passes that are left out.
    pub disabled_passes: Vec<String>,
    /// Whether to measure each node: [`HeteroExecutable::node_profile`](crate::HeteroExecutable::node_profile)
    /// and [`Pipeline::node_profile`](crate::Pipeline::node_profile) then tell.
    pub profile: bool,
    /// Whether the passes over a whole graph leave weights as they lie in their file, so that
    /// devices that read weights themselves can; each segment folds its own.
    pub keep_weights: bool,
    /// The fixed datapath that the segment stands for, if its placement says so.
    pub stage_id: Option<std::sync::Arc<str>>,
}

impl Default for CompileOptions {
    fn default() -> Self {
        Self {
            threads: 1,
            precision: Precision::F32,
            disabled_passes: Vec::new(),
            profile: false,
            keep_weights: false,
            stage_id: None,
        }
    }
}

/// What a run works with: memory and threads of one instance.
#[derive(Clone, Debug, Default)]
pub struct RunContext {
    /// Where outputs come from.
    pub pool: BufferPool,
    /// The threads that kernels may use.
    pub threads: Threads,
    /// Where the times of a program that was compiled to be profiled go, if anybody wants them.
    pub profile: Option<Recorder>,
    /// What is kept from run to run.
    pub workspace: Workspace,
}

#[derive(Debug)]
struct Step {
    kernel: Box<dyn CpuKernel>,
    inputs: Vec<Source>,
    /// The slot of each output; `None` if nobody asked for it.
    outputs: Vec<Option<usize>>,
    name: String,
    op: String,
    /// What a user's kernel is held to.
    promised: Option<Promised>,
    /// Whether the outputs are blocked.
    blocked: bool,
    /// Whether the outputs depend on nothing but the shapes of the program's inputs.
    shape_only: bool,
    /// What a profile needs to know, if one is wanted.
    subject: Option<Box<Subject>>,
}

/// What an operator and its inference promise of the outputs of a node.
#[derive(Debug)]
struct Promised {
    facts: Vec<Option<Fact>>,
    /// The most outputs that the operator has.
    most: usize,
}

impl Promised {
    fn new(def: &OpDef, node: &Node, graph: &Graph) -> Self {
        let fact = |v: &Option<ValueId>| v.map(|v| graph.value(v).fact.clone());
        let endless =
            matches!(def.outputs.last(), Some(p) if matches!(p.kind, PortKind::Variadic(_)));
        let most = if endless { node.outputs.len() } else { def.outputs.len() };
        Self { facts: node.outputs.iter().map(fact).collect(), most }
    }

    /// Checks what a kernel emitted.
    fn check(&self, made: &[Value]) -> Result<()> {
        let (made_count, wanted) = (made.len(), self.facts.len());
        if made_count < wanted || made_count > self.most.max(wanted) {
            return Err(err!(Kernel, "the kernel made {made_count} outputs of {wanted}")
                .with_help("emit one value for each output of the operator, in order"));
        }
        for (port, (fact, value)) in self.facts.iter().zip(made).enumerate() {
            let Some(Err(why)) = fact.as_ref().map(|fact| fact.admits(value)) else { continue };
            return Err(err!(Kernel, "the kernel's output {port} is not what was inferred: {why}")
                .with_help("let the operator's inference and its kernel agree"));
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Absent,
    Slot { slot: usize, last: bool },
    Constant(usize),
}

/// A graph made ready for the CPU. Immutable: any number of threads may run it at once, each with
/// a [`RunContext`] of its own.
#[derive(Debug)]
pub struct Program {
    steps: Vec<Step>,
    constants: Vec<Option<Value>>,
    inputs: Vec<(usize, String, Fact)>,
    outputs: Vec<(Source, String)>,
    slots: usize,
    /// The slots of values that depend on shapes alone and are read where others are made.
    kept: Vec<usize>,
    /// Tells this program from all others of the process.
    number: u64,
    /// Tells this program from others that the same node may run, in a profile: a hash of its nodes,
    /// so that it is the same when the program is compiled anew for another shape.
    id: u64,
    /// Bytes of weights that kernels hold in blocks, or decoded from them.
    packed_bytes: usize,
}

impl Program {
    /// Prepares every node of a validated graph, whose facts are inferred.
    ///
    /// # Errors
    /// If a node cannot be run here; names the node.
    pub fn compile(graph: &Graph, registry: &OpRegistry, options: &CompileOptions) -> Result<Self> {
        if let Some(p) = graph.unbound_params().next() {
            bail!(Missing, "parameter `{}` is not bound", p.name);
        }
        let shape_only = ShapeOnly::new(graph, registry);
        let mut last_use = last_uses(graph);
        // What is kept is not taken by its last reader.
        for v in shape_only.kept() {
            last_use[v.index()] = None;
        }
        let (slot_of, slots) = slots(graph, &last_use, &shape_only);
        let mut constants: Vec<Option<Value>> = Vec::new();
        let mut constant_of = vec![None; graph.values().len()];
        for (i, info) in graph.values().iter().enumerate() {
            if let Some(t) = &info.constant {
                constant_of[i] = Some(constants.len());
                constants.push(Some(Value::from(t.clone())));
            }
        }
        let source = |v: ValueId, step: usize| match constant_of[v.index()] {
            Some(c) => Source::Constant(c),
            None => Source::Slot {
                slot: slot_of[v.index()].unwrap_or_default(),
                last: last_use[v.index()] == Some(step),
            },
        };
        let mut read_constants = vec![false; constants.len()];
        let mut is_blocked = vec![false; graph.values().len()];
        let mut steps = Vec::with_capacity(graph.nodes().len());
        let ready = ReadyWeights::default();
        for (i, node) in graph.nodes().iter().enumerate() {
            let at = |e: crate::Error| e.with_node(&node.name, &node.op);
            let facts: Vec<Option<Fact>> =
                node.inputs.iter().map(|v| v.map(|v| graph.value(v).fact.clone())).collect();
            let known: Vec<Option<Tensor>> = node
                .inputs
                .iter()
                .map(|v| v.and_then(|v| graph.value(v).constant.clone()))
                .collect();
            let def = registry.require(node)?;
            let dtypes: Vec<_> = facts.iter().map(|f| f.as_ref().and_then(|f| f.dtype)).collect();
            def.check(node, &dtypes).map_err(|why| at(err!(Unsupported, "{why}")))?;
            let kernel = (def.prepare)(&Prepare {
                node,
                facts: &facts,
                constants: &known,
                options,
                registry,
                graph,
                ready: &ready,
            })
            .map_err(at)?;
            let mut inputs: Vec<Source> = Vec::with_capacity(node.inputs.len());
            for (port, v) in node.inputs.iter().enumerate() {
                let s = v.map_or(Source::Absent, |v| source(v, i));
                let s = match s {
                    Source::Constant(_) if !kernel.reads_constant(port) => Source::Absent,
                    Source::Constant(c) => {
                        read_constants[c] = true;
                        s
                    }
                    s => s,
                };
                inputs.push(s);
            }
            // Of several reads by one node only the last may take the value.
            for a in 0..inputs.len() {
                if let Source::Slot { slot, .. } = inputs[a]
                    && inputs[a + 1..]
                        .iter()
                        .any(|s| matches!(s, Source::Slot { slot: b, .. } if *b == slot))
                {
                    inputs[a] = Source::Slot { slot, last: false };
                }
            }
            let blocked = blocked::makes_blocked(node, &|v| is_blocked[v.index()]);
            for v in node.makes() {
                is_blocked[v.index()] = blocked;
            }
            steps.push(Step {
                kernel,
                inputs,
                outputs: node.outputs.iter().map(|v| v.and_then(|v| slot_of[v.index()])).collect(),
                name: node.name.clone(),
                op: node.op.clone(),
                promised: registry.is_added(def).then(|| Promised::new(def, node, graph)),
                blocked,
                shape_only: shape_only.node(i),
                subject: options.profile.then(|| {
                    Box::new(Subject { node: node.clone(), cost: def.cost, constants: known })
                }),
            });
        }
        let mut hasher = DefaultHasher::new();
        for step in &steps {
            (&step.name, &step.op).hash(&mut hasher);
        }
        let id = hasher.finish();
        let outputs: Vec<(Source, String)> = graph
            .outputs()
            .iter()
            .map(|v| (source(*v, usize::MAX - 1), graph.value(*v).name.clone()))
            .collect();
        for (s, _) in &outputs {
            if let Source::Constant(c) = s {
                read_constants[*c] = true;
            }
        }
        for (c, read) in constants.iter_mut().zip(read_constants) {
            if !read {
                *c = None;
            }
        }
        let inputs = graph
            .inputs()
            .iter()
            .map(|v| {
                let info = graph.value(*v);
                (slot_of[v.index()].unwrap_or_default(), info.name.clone(), info.fact.clone())
            })
            .collect();
        let kept = shape_only.kept().iter().filter_map(|v| slot_of[v.index()]).collect();
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let packed_bytes = ready.bytes();
        Ok(Self { steps, constants, inputs, outputs, slots, kept, number, id, packed_bytes })
    }

    /// Runs it on the inputs, in the graph's order.
    ///
    /// # Errors
    /// If an input is not what was declared, or a kernel fails; names the node and its inputs.
    pub fn run(&self, inputs: Vec<Value>, context: &RunContext) -> Result<Vec<Value>> {
        self.run_steps(inputs, context, None)
    }

    /// As [`Self::run`]; `observe` sees the name, operator and outputs of each node, these always
    /// in the layout that the node's operator states: what is blocked inside is given plain.
    ///
    /// # Errors
    /// As [`Self::run`].
    pub fn run_observed(
        &self,
        inputs: Vec<Value>,
        context: &RunContext,
        observe: &mut dyn FnMut(&str, &str, &[Value]),
    ) -> Result<Vec<Value>> {
        self.run_steps(inputs, context, Some(observe))
    }

    fn run_steps(
        &self,
        mut inputs: Vec<Value>,
        context: &RunContext,
        mut observe: Option<&mut dyn FnMut(&str, &str, &[Value])>,
    ) -> Result<Vec<Value>> {
        if inputs.len() != self.inputs.len() {
            bail!(Missing, "{} inputs are needed, {} given", self.inputs.len(), inputs.len());
        }
        for ((_, name, fact), value) in self.inputs.iter().zip(&inputs) {
            fact.admits(value).map_err(|why| err!(Shape, "input `{name}`: {why}"))?;
        }
        let mut recording = context.profile.as_ref().map(|r| r.enter(self.id, self.steps.len()));
        let mut frame = context.workspace.frame();
        let mut start = Default::default();
        // An observer sees every node.
        if observe.is_none() {
            let keeps = !self.kept.is_empty();
            start = context.workspace.start(self.number, &inputs, keeps, &context.pool);
        }
        let Frame { slots, arguments, made: spare, found } = &mut *frame;
        slots.resize(self.slots, None);
        for ((slot, ..), value) in self.inputs.iter().zip(inputs.drain(..)) {
            slots[*slot] = Some(value);
        }
        if let Some(kept) = &start.kept {
            for (slot, value) in self.kept.iter().zip(kept.iter()) {
                slots[*slot] = Some(value.clone());
            }
        }
        for (place, step) in self.steps.iter().enumerate() {
            if step.shape_only && start.kept.is_some() {
                for s in &step.inputs {
                    if let Source::Slot { slot, last: true } = s {
                        slots[*slot] = None;
                    }
                }
                continue;
            }
            arguments.clear();
            for s in &step.inputs {
                arguments.push(self.fetch(*s, slots)?);
            }
            let mut recorded = recording.as_mut().zip(step.subject.as_deref());
            if let Some((recording, subject)) = &mut recorded {
                recording.begin(place, subject, arguments);
            }
            let room = std::mem::take(spare);
            let mut io = Io::new(arguments, room, step.outputs.len(), context);
            let done = step.kernel.run(&mut io);
            let mut made = io.finish();
            if let Some((recording, subject)) = recorded {
                recording.end(place, subject, &made);
            }
            let described = |arguments: &[Option<Value>]| {
                let words: Vec<String> = arguments
                    .iter()
                    .map(|v| v.as_ref().map_or_else(|| "-".to_owned(), Value::describe))
                    .collect();
                words.join(", ")
            };
            done.map_err(|e| e.with_node(&step.name, &step.op).with_shapes(described(arguments)))?;
            if let Some(promised) = &step.promised {
                promised.check(&made).map_err(|e| {
                    e.with_node(&step.name, &step.op).with_shapes(described(arguments))
                })?;
            }
            if made.len() < step.outputs.len() {
                return Err(err!(
                    Internal,
                    "the kernel made {} outputs of {}",
                    made.len(),
                    step.outputs.len()
                )
                .with_node(&step.name, &step.op));
            }
            if let Some(observe) = &mut observe {
                match step.blocked {
                    true => observe(&step.name, &step.op, &plain(&made)?),
                    false => observe(&step.name, &step.op, &made),
                }
            }
            for (slot, value) in step.outputs.iter().zip(made.drain(..)) {
                if let Some(slot) = slot {
                    slots[*slot] = Some(value);
                }
            }
            *spare = made;
        }
        arguments.clear();
        if start.find {
            found.extend(self.kept.iter().map(|slot| slots[*slot].clone()));
        }
        // The vector of the inputs becomes that of the outputs.
        for (s, name) in &self.outputs {
            let value = self.fetch(*s, slots)?;
            inputs.push(value.ok_or_else(|| err!(Internal, "output `{name}` was not computed"))?);
        }
        slots.clear();
        context.workspace.finish(start, found);
        Ok(inputs)
    }

    fn fetch(&self, source: Source, slots: &mut [Option<Value>]) -> Result<Option<Value>> {
        match source {
            Source::Absent => Ok(None),
            Source::Constant(c) => Ok(self.constants[c].clone()),
            Source::Slot { slot, last } => {
                let v = if last { slots[slot].take() } else { slots[slot].clone() };
                v.map(Some).ok_or_else(|| err!(Internal, "a value was read before it was made"))
            }
        }
    }

    /// The names and facts of the inputs, in order.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, &Fact)> {
        self.inputs.iter().map(|(_, n, f)| (n.as_str(), f))
    }

    /// The names of the outputs, in order.
    pub fn output_names(&self) -> impl Iterator<Item = &str> {
        self.outputs.iter().map(|(_, n)| n.as_str())
    }

    /// How many kernels there are.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

/// The last node that reads each value; none for what the graph puts out and what nobody reads.
fn last_uses(graph: &Graph) -> Vec<Option<usize>> {
    let mut last = vec![None; graph.values().len()];
    for (i, node) in graph.nodes().iter().enumerate() {
        for v in node.reads() {
            last[v.index()] = Some(i);
        }
    }
    for v in graph.outputs() {
        last[v.index()] = None;
    }
    last
}

/// A slot for each value that is fed, or made and read, and how many there are. Values that are not
/// there at the same time share one; those that depend on shapes alone may be there from the start.
fn slots(
    graph: &Graph,
    last_use: &[Option<usize>],
    shape_only: &ShapeOnly,
) -> (Vec<Option<usize>>, usize) {
    let mut slot_of: Vec<Option<usize>> = vec![None; graph.values().len()];
    let mut free: Vec<usize> = Vec::new();
    let mut count = 0;
    for v in graph.inputs().iter().chain(shape_only.kept()) {
        if slot_of[v.index()].is_none() {
            slot_of[v.index()] = Some(count);
            count += 1;
        }
    }
    let own = slot_of.clone();
    let put_out: std::collections::HashSet<ValueId> = graph.outputs().iter().copied().collect();
    for (i, node) in graph.nodes().iter().enumerate() {
        // Outputs are put into their slots after all inputs were taken out of theirs.
        for v in node.reads() {
            if last_use[v.index()] == Some(i)
                && own[v.index()].is_none()
                && let Some(slot) = slot_of[v.index()]
                && !free.contains(&slot)
            {
                free.push(slot);
            }
        }
        for v in node.makes() {
            let read = last_use[v.index()].is_some() || put_out.contains(&v);
            if read && slot_of[v.index()].is_none() {
                slot_of[v.index()] = free.pop().or_else(|| {
                    count += 1;
                    Some(count - 1)
                });
            }
        }
    }
    (slot_of, count)
}

/// Blocked values in plain form.
fn plain(values: &[Value]) -> Result<Vec<Value>> {
    values.iter().map(|v| Ok(blocked::unblock(v.tensor()?)?.into())).collect()
}

impl Program {
    /// Bytes of the constants that are kept, and of weights in blocks as the kernels hold them
    /// (other weights that a kernel packed are not among them).
    pub fn constant_bytes(&self) -> usize {
        let kept: usize = self.constants.iter().flatten().map(Value::bytes).sum();
        kept.saturating_add(self.packed_bytes)
    }
}
