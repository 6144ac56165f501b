//! From a graph whose extents are known to kernel launches over buffers.

use std::collections::HashMap;

use super::shader::{self, AXES, Epilogue, FLAT, Function, PIXELS, SIDE, Shader, TILE};
use super::support::function_of;
use crate::error::{Result, bail, err};
use crate::graph::{Graph, Node, ValueId};
use crate::ops::window::WindowAttributes;
use crate::tensor::{Shape, Tensor, broadcast_shapes, normalise_axis, strides};

/// What a launch reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Operand {
    /// A constant of the graph.
    Constant(ValueId),
    /// A working buffer.
    Buffer(usize),
}

/// One run of a kernel.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    pub(super) shader: Shader,
    pub(super) reads: Vec<Operand>,
    pub(super) writes: usize,
    /// The words of its uniform buffer.
    pub(super) words: Vec<u32>,
    pub(super) groups: [u32; 3],
}

/// Where an output lies when all launches are done.
#[derive(Clone, Debug)]
pub(super) enum OutputPlace {
    Buffer {
        buffer: usize,
        shape: Shape,
    },
    /// The same for each item.
    Constant(Tensor),
}

/// A graph as launches, for inputs of certain extents.
#[derive(Debug)]
pub(super) struct Lowered {
    /// Bytes of each working buffer.
    pub(super) buffers: Vec<u64>,
    /// The buffer of each input of the graph, in order.
    pub(super) inputs: Vec<usize>,
    pub(super) outputs: Vec<OutputPlace>,
    pub(super) launches: Vec<Launch>,
}

/// Most workgroups along one axis of a launch.
const MOST_GROUPS: u32 = 65_535;

/// A launch before its buffers are chosen.
struct Step {
    shader: Shader,
    reads: Vec<ValueId>,
    words: Vec<u32>,
    groups: [u32; 3],
}

impl Lowered {
    /// Lowers a graph in which every value has known extents. All its inputs are f32.
    ///
    /// # Errors
    /// If a node cannot be run here with these extents; names it.
    pub(super) fn new(graph: &Graph) -> Result<Self> {
        let mut steps: Vec<(Vec<Step>, ValueId)> = Vec::new();
        // Values that are another one in another shape.
        let mut same: HashMap<ValueId, ValueId> = HashMap::new();
        for node in graph.nodes() {
            let made = node.makes().next();
            let Some(output) = made else { continue };
            let lowering = Lowering { graph, node, output };
            let context = |e: crate::error::Error| e.with_node(&node.name, &node.op);
            if is_reshape(&node.op) {
                let mut root = lowering.input(0).map_err(context)?;
                root = same.get(&root).copied().unwrap_or(root);
                same.insert(output, root);
            } else {
                steps.push((lowering.steps().map_err(context)?, output));
            }
        }
        Assignment { graph, same }.assign(steps)
    }
}

/// Whether an operator gives the same elements in another shape.
pub(super) fn is_reshape(op: &str) -> bool {
    matches!(op, "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "Identity")
}

/// Chooses buffers: a value's buffer serves again once its last reader is done.
struct Assignment<'a> {
    graph: &'a Graph,
    same: HashMap<ValueId, ValueId>,
}

impl Assignment<'_> {
    fn root(&self, v: ValueId) -> ValueId {
        self.same.get(&v).copied().unwrap_or(v)
    }

    fn bytes(&self, v: ValueId) -> Result<u64> {
        let shape = shape_of(self.graph, v)?;
        Ok(shape.elements() as u64 * 4)
    }

    fn assign(&self, steps: Vec<(Vec<Step>, ValueId)>) -> Result<Lowered> {
        let mut last: HashMap<ValueId, usize> = HashMap::new();
        for (at, (node_steps, _)) in steps.iter().enumerate() {
            for v in node_steps.iter().flat_map(|s| &s.reads) {
                last.insert(self.root(*v), at);
            }
        }
        let mut buffers: Vec<u64> = Vec::new();
        let mut place: HashMap<ValueId, usize> = HashMap::new();
        let mut inputs = Vec::new();
        let kept: Vec<ValueId> = self.graph.outputs().iter().map(|v| self.root(*v)).collect();
        for v in self.graph.inputs() {
            place.insert(*v, buffers.len());
            inputs.push(buffers.len());
            buffers.push(self.bytes(*v)?);
        }
        let mut free: Vec<usize> = Vec::new();
        let mut launches = Vec::new();
        for (at, (node_steps, output)) in steps.into_iter().enumerate() {
            let need = self.bytes(output)?;
            // An output of the graph has a buffer of its own: it may be handed over.
            let fits = |b: &usize| buffers[*b] >= need && !kept.contains(&output);
            let best = free.iter().copied().filter(fits).min_by_key(|b| buffers[*b]);
            let writes = best.unwrap_or_else(|| {
                buffers.push(need);
                buffers.len() - 1
            });
            free.retain(|b| *b != writes);
            place.insert(output, writes);
            let mut done: Vec<ValueId> = Vec::new();
            for step in node_steps {
                let mut reads = Vec::with_capacity(step.reads.len());
                for v in step.reads {
                    let root = self.root(v);
                    reads.push(match place.get(&root) {
                        Some(buffer) => Operand::Buffer(*buffer),
                        None if self.graph.value(root).constant.is_some() => {
                            Operand::Constant(root)
                        }
                        None => {
                            bail!(Internal, "`{}` is made by nothing", self.graph.value(root).name)
                        }
                    });
                    if last.get(&root) == Some(&at) && !done.contains(&root) {
                        done.push(root);
                    }
                }
                let (shader, words, groups) = (step.shader, step.words, step.groups);
                launches.push(Launch { shader, reads, writes, words, groups });
            }
            if !last.contains_key(&output) && !kept.contains(&output) {
                done.push(output);
            }
            for v in done {
                let keep = kept.contains(&v) || self.graph.inputs().contains(&v);
                if let (Some(b), false) = (place.get(&v), keep) {
                    free.push(*b);
                }
            }
        }
        launches.retain(|l| l.groups.iter().all(|g| *g > 0));
        let mut outputs = Vec::new();
        for v in self.graph.outputs() {
            let root = self.root(*v);
            let shape = shape_of(self.graph, *v)?;
            outputs.push(match (place.get(&root), &self.graph.value(root).constant) {
                (Some(buffer), _) => OutputPlace::Buffer { buffer: *buffer, shape },
                (None, Some(t)) => OutputPlace::Constant(t.reshape(shape)?),
                (None, None) => {
                    bail!(Internal, "output `{}` is made by nothing", self.graph.value(*v).name)
                }
            });
        }
        Ok(Lowered { buffers, inputs, outputs, launches })
    }
}

fn shape_of(graph: &Graph, v: ValueId) -> Result<Shape> {
    let info = graph.value(v);
    let shape = info.fact.concrete_shape().ok_or_else(|| {
        err!(Unsupported, "the shape of `{}` depends on data: {}", info.name, info.fact)
    })?;
    if shape.iter().product::<usize>() > u32::MAX as usize {
        bail!(Limit, "`{}` has more elements than a kernel can count", info.name);
    }
    Ok(shape.into())
}

fn word(n: usize) -> u32 {
    // Extents were checked against u32 with the shapes.
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Workgroups for a flat range, and how many threads a row of them has.
fn flat_groups(count: usize, per_group: u32) -> ([u32; 3], u32) {
    let groups = word(count.div_ceil(per_group as usize));
    let across = groups.min(MOST_GROUPS);
    let down = if across == 0 { 0 } else { groups.div_ceil(across) };
    ([across, down, 1], across * per_group)
}

/// Joins axes that lie as one for every operand and drops those of extent 1. Strides are given
/// per operand.
fn joined(extents: &[usize], strides: &[Vec<usize>]) -> (Vec<usize>, Vec<Vec<usize>>) {
    let mut out: Vec<usize> = Vec::new();
    let mut steps: Vec<Vec<usize>> = vec![Vec::new(); strides.len()];
    for (d, extent) in extents.iter().enumerate().filter(|(_, e)| **e != 1) {
        let as_one = !out.is_empty()
            && strides.iter().zip(&steps).all(|(s, done)| done.last() == Some(&(s[d] * extent)));
        if as_one {
            if let Some(last) = out.last_mut() {
                *last *= extent;
            }
            for (s, done) in strides.iter().zip(&mut steps) {
                if let Some(last) = done.last_mut() {
                    *last = s[d];
                }
            }
        } else {
            out.push(*extent);
            for (s, done) in strides.iter().zip(&mut steps) {
                done.push(s[d]);
            }
        }
    }
    (out, steps)
}

/// Eight words of up to eight numbers.
fn eight(numbers: &[usize]) -> Result<[u32; AXES]> {
    let mut out = [0; AXES];
    if numbers.len() > AXES {
        bail!(Unsupported, "tensors with more than {AXES} axes that do not lie as one");
    }
    for (o, n) in out.iter_mut().zip(numbers) {
        *o = word(*n);
    }
    Ok(out)
}

/// The strides of `shape` as broadcast to `out`: 0 along repeated axes.
fn broadcast_strides(shape: &[usize], out: &[usize]) -> Vec<usize> {
    let own = strides(shape);
    let lead = out.len().saturating_sub(shape.len());
    (0..out.len())
        .map(|d| match d.checked_sub(lead) {
            Some(i) if shape[i] != 1 => own[i],
            _ => 0,
        })
        .collect()
}

/// One node on its way.
struct Lowering<'a> {
    graph: &'a Graph,
    node: &'a Node,
    output: ValueId,
}

impl Lowering<'_> {
    fn input(&self, i: usize) -> Result<ValueId> {
        let v = self.node.inputs.get(i).copied().flatten();
        v.ok_or_else(|| err!(Missing, "input {i} is missing"))
    }

    fn optional(&self, i: usize) -> Option<ValueId> {
        self.node.inputs.get(i).copied().flatten()
    }

    fn shape(&self, i: usize) -> Result<Shape> {
        shape_of(self.graph, self.input(i)?)
    }

    fn out_shape(&self) -> Result<Shape> {
        shape_of(self.graph, self.output)
    }

    /// The launches of the node.
    fn steps(&self) -> Result<Vec<Step>> {
        let step = match self.node.op.as_str() {
            "Add" => self.map(shader::binary('+'), 2, [0.0; 2]),
            "Sub" => self.map(shader::binary('-'), 2, [0.0; 2]),
            "Mul" => self.map(shader::binary('*'), 2, [0.0; 2]),
            "Div" => self.map(shader::binary('/'), 2, [0.0; 2]),
            "PRelu" => self.map(shader::prelu(), 2, [0.0; 2]),
            "Clip" if self.node.inputs.len() > 1 => self.clip(),
            "BatchNormalization" => self.batch_norm(),
            "MatMul" | "FusedMatMul" => self.matmul(),
            "Gemm" | "FusedGemm" => self.gemm(),
            "Conv" | "FusedConv" => self.conv(),
            "MaxPool" => self.pool(true),
            "AveragePool" => self.pool(false),
            "GlobalAveragePool" => self.plane_mean(),
            "Transpose" => self.transpose(),
            "Concat" => return self.concat(),
            _ => match function_of(self.node)? {
                Some(f) => self.map(shader::unary(f), 1, f.parameters()),
                None => bail!(Unsupported, "no kernel"),
            },
        };
        Ok(vec![step?])
    }

    /// Element by element, with broadcasting, over the first `count` inputs.
    fn map(&self, shader: Shader, count: usize, parameters: [f32; 2]) -> Result<Step> {
        let reads: Vec<ValueId> = (0..count).map(|i| self.input(i)).collect::<Result<_>>()?;
        let out = self.out_shape()?;
        let shapes: Vec<Shape> =
            reads.iter().map(|v| shape_of(self.graph, *v)).collect::<Result<_>>()?;
        let all: Vec<&[usize]> = shapes.iter().map(|s| &s[..]).collect();
        if broadcast_shapes(&all)? != out {
            bail!(Shape, "operands {all:?} do not give {out}");
        }
        let steps: Vec<Vec<usize>> = shapes.iter().map(|s| broadcast_strides(s, &out)).collect();
        self.mapped(shader, reads, &out, &steps, parameters)
    }

    fn mapped(
        &self,
        shader: Shader,
        reads: Vec<ValueId>,
        out: &[usize],
        steps: &[Vec<usize>],
        parameters: [f32; 2],
    ) -> Result<Step> {
        let (mut extents, mut steps) = joined(out, steps);
        if extents.len() == 1 && steps.iter().all(|s| s[0] == 1) {
            // No axes: every operand is read at the output's own index.
            extents.clear();
            steps.iter_mut().for_each(Vec::clear);
        } else if extents.is_empty() {
            // One element: the index is 0 for all.
            steps.iter_mut().for_each(Vec::clear);
        }
        let count: usize = out.iter().product();
        let (groups, across) = flat_groups(count, FLAT);
        let mut words = vec![word(count), across, word(extents.len()), 0];
        words.extend(eight(&extents)?);
        for s in &steps {
            words.extend(eight(s)?);
        }
        words.extend([parameters[0].to_bits(), parameters[1].to_bits(), 0, 0]);
        Ok(Step { shader, reads, words, groups })
    }

    fn clip(&self) -> Result<Step> {
        let (lower, upper) = (self.optional(1), self.optional(2));
        let x = self.input(0)?;
        let reads: Vec<ValueId> = [Some(x), lower, upper].into_iter().flatten().collect();
        let shader = shader::clip_by(lower.is_some(), upper.is_some());
        let out = self.out_shape()?;
        let mut steps = vec![strides(&out)];
        for v in &reads[1..] {
            if shape_of(self.graph, *v)?.elements() != 1 {
                bail!(Shape, "the bounds of a clip are single numbers");
            }
            steps.push(vec![0; out.len()]);
        }
        self.mapped(shader, reads, &out, &steps, [0.0; 2])
    }

    fn batch_norm(&self) -> Result<Step> {
        let reads: Vec<ValueId> = (0..5).map(|i| self.input(i)).collect::<Result<_>>()?;
        let out = self.out_shape()?;
        let mut by_channel = vec![0; out.len()];
        if let Some(channel) = by_channel.get_mut(1) {
            *channel = 1;
        }
        for v in &reads[1..] {
            if out.get(1) != Some(&shape_of(self.graph, *v)?.elements()) {
                bail!(Shape, "`{}` is not one number a channel", self.graph.value(*v).name);
            }
        }
        let mut steps = vec![strides(&out)];
        steps.resize(5, by_channel);
        let epsilon = self.node.float_or("epsilon", 1e-5)?;
        self.mapped(shader::batch_norm(), reads, &out, &steps, [epsilon, 0.0])
    }

    /// The activation that a fused node names.
    fn activation(&self) -> Result<Function> {
        use crate::ops::Activation as A;
        Ok(match crate::ops::epilogue::activation(self.node)? {
            A::None => Function::Identity,
            A::Relu => Function::Relu,
            A::Clip { lo, hi } => Function::Clip { lo, hi },
            A::HardSwish => Function::HardSwish,
            A::HardSigmoid { alpha, beta } => Function::HardSigmoid { alpha, beta },
            A::Sigmoid => Function::Sigmoid,
            A::Silu => Function::Silu,
            A::Gelu => Function::Gelu,
            A::Tanh => Function::Tanh,
        })
    }

    fn epilogue(&self, bias: bool, residual: Option<usize>) -> Result<Epilogue> {
        let after = crate::ops::epilogue::residual_after(self.node)?;
        let residual = residual.and_then(|i| self.optional(i));
        if let Some(v) = residual
            && shape_of(self.graph, v)? != self.out_shape()?
        {
            bail!(Shape, "the residual does not have the shape of the output");
        }
        Ok(Epilogue { bias, residual: residual.map(|_| after), activation: self.activation()? })
    }

    fn matmul(&self) -> Result<Step> {
        let (a, b) = (self.shape(0)?, self.shape(1)?);
        let (m, k) = match &a[..] {
            [k] => (1, *k),
            [.., m, k] => (*m, *k),
            [] => bail!(Shape, "a scalar has no product"),
        };
        let (kb, n) = match &b[..] {
            [k] => (*k, 1),
            [.., k, n] => (*k, *n),
            [] => bail!(Shape, "a scalar has no product"),
        };
        if k != kb {
            bail!(Shape, "the left operand is {a}, the right one {b}");
        }
        let lead = |s: &Shape| s[..s.rank().saturating_sub(2)].to_vec();
        let (a_lead, b_lead) = (lead(&a), lead(&b));
        let batch = broadcast_shapes(&[&a_lead, &b_lead])?;
        let scaled = |lead: &[usize], size: usize| -> Vec<usize> {
            broadcast_strides(lead, &batch).iter().map(|s| s * size).collect()
        };
        let fused = self.node.op == "FusedMatMul";
        let bias = if fused { self.optional(2) } else { None };
        if let Some(v) = bias
            && shape_of(self.graph, v)?.elements() != n
        {
            bail!(Shape, "the bias is not one number a column");
        }
        let residual = if fused { self.optional(3) } else { None };
        let epilogue = if fused {
            self.epilogue(bias.is_some(), Some(3))?
        } else {
            Epilogue { bias: false, residual: None, activation: Function::Identity }
        };
        let reads = [Some(self.input(0)?), Some(self.input(1)?), bias, residual];
        let alpha = if fused { self.node.float_or("alpha", 1.0)? } else { 1.0 };
        self.product(Product {
            extents: [m, n, k],
            a: [k, 1],
            b: [n, 1],
            bias: [0, 1],
            alpha,
            beta: 1.0,
            steps: vec![scaled(&a_lead, m * k), scaled(&b_lead, k * n)],
            batch: batch.to_vec(),
            epilogue,
            reads: reads.into_iter().flatten().collect(),
        })
    }

    fn gemm(&self) -> Result<Step> {
        let (a, b) = (self.shape(0)?, self.shape(1)?);
        let turned = |name: &str| self.node.int_or(name, 0).map(|v| v != 0);
        let (trans_a, trans_b) = (turned("transA")?, turned("transB")?);
        let (&[ra, ca], &[rb, cb]) = (&a[..], &b[..]) else {
            bail!(Shape, "operands {a} and {b} are not matrices");
        };
        let (m, k, a) = if trans_a { (ca, ra, [1, ca]) } else { (ra, ca, [ca, 1]) };
        let (kb, n, b) = if trans_b { (cb, rb, [1, cb]) } else { (rb, cb, [cb, 1]) };
        if k != kb {
            bail!(Shape, "A has {k} columns, B {kb} rows (after transposition)");
        }
        let beta = self.node.float_or("beta", 1.0)?;
        // C times 0 is nothing, whatever C holds.
        let c = self.optional(2).filter(|_| beta != 0.0);
        let bias = match c {
            Some(v) => {
                let s = broadcast_strides(&shape_of(self.graph, v)?, &[m, n]);
                [s[0], s[1]]
            }
            None => [0, 0],
        };
        let activation =
            if self.node.op == "FusedGemm" { self.activation()? } else { Function::Identity };
        let epilogue = Epilogue { bias: c.is_some(), residual: None, activation };
        let reads = [Some(self.input(0)?), Some(self.input(1)?), c].into_iter().flatten().collect();
        self.product(Product {
            extents: [m, n, k],
            a,
            b,
            bias,
            alpha: self.node.float_or("alpha", 1.0)?,
            beta,
            batch: Vec::new(),
            steps: vec![Vec::new(), Vec::new()],
            epilogue,
            reads,
        })
    }

    fn product(&self, p: Product) -> Result<Step> {
        let [m, n, k] = p.extents;
        let count: usize = p.batch.iter().product();
        let (batch, steps) = joined(&p.batch, &p.steps);
        if batch.len() > 4 {
            bail!(Unsupported, "a stack of matrices with {} axes", batch.len());
        }
        if count > MOST_GROUPS as usize {
            bail!(Unsupported, "{count} products at once, at most {MOST_GROUPS}");
        }
        let four = |numbers: &[usize]| {
            let mut out = [0; 4];
            for (o, n) in out.iter_mut().zip(numbers) {
                *o = word(*n);
            }
            out
        };
        let mut words = vec![word(m), word(n), word(k), word(batch.len())];
        words.extend(four(&[p.a[0], p.a[1], p.b[0], p.b[1]]));
        words.extend([word(p.bias[0]), word(p.bias[1]), p.alpha.to_bits(), p.beta.to_bits()]);
        words.extend(four(&batch));
        words.extend(four(&steps[0]));
        words.extend(four(&steps[1]));
        let [x, y] = p.epilogue.activation.parameters();
        words.extend([x.to_bits(), y.to_bits(), 0, 0]);
        let side = (SIDE * TILE) as usize;
        let groups = [word(n.div_ceil(side)), word(m.div_ceil(side)), word(count)];
        within(groups)?;
        Ok(Step { shader: shader::product(p.epilogue), reads: p.reads, words, groups })
    }

    /// The windows over the last two axes of an input; one axis becomes two.
    fn windows(&self, kernel: &[usize]) -> Result<Windows> {
        let x = self.shape(0)?;
        let out = self.out_shape()?;
        let attributes = WindowAttributes::read(self.node)?;
        let axes = attributes.resolve(&x[2..], kernel)?;
        let axes = crate::ops::window::padded_axes::<2>(&axes)?;
        let pair = |f: &dyn Fn(usize) -> usize| [word(f(0)), word(f(1))];
        let size = pair(&|i| axes[i].size);
        let made = match &out[2..] {
            [w] => [1, word(*w)],
            [h, w] => [word(*h), word(*w)],
            other => bail!(Unsupported, "{} spatial axes", other.len()),
        };
        let (kernel, stride) = (pair(&|i| axes[i].kernel), pair(&|i| axes[i].stride));
        let (dilation, pad) = (pair(&|i| axes[i].dilation), pair(&|i| axes[i].pads[0]));
        let four = |a: [u32; 2], b: [u32; 2]| [a[0], a[1], b[0], b[1]];
        let words = [four(size, made), four(kernel, stride), four(dilation, pad)].concat();
        Ok(Windows { words, made })
    }

    fn conv(&self) -> Result<Step> {
        let (x, w) = (self.shape(0)?, self.shape(1)?);
        let groups = usize::try_from(self.node.int_or("group", 1)?).unwrap_or(0);
        let (&[items, channels, ..], &[made, per_group, ..]) = (&x[..], &w[..]) else {
            bail!(Shape, "a convolution of {x} with {w}");
        };
        if groups == 0 || per_group * groups != channels || made % groups != 0 {
            bail!(Shape, "{groups} groups over {x} with weights {w}");
        }
        let windows = self.windows(&w[2..])?;
        let bias = self.optional(2);
        let fused = self.node.op == "FusedConv";
        let epilogue = if fused {
            self.epilogue(bias.is_some(), Some(3))?
        } else {
            let activation = Function::Identity;
            Epilogue { bias: bias.is_some(), residual: None, activation }
        };
        let residual = if fused { self.optional(3) } else { None };
        let each = made / groups;
        let at_once = if each >= 4 { 4 } else { 1 };
        let [oh, ow] = windows.made;
        let tiles = ow.div_ceil(PIXELS);
        let mut words = vec![word(per_group), word(each), word(groups), tiles.max(1)];
        words.extend(&windows.words);
        let [p, q] = epilogue.activation.parameters();
        words.extend([p.to_bits(), q.to_bits(), 0, 0]);
        let across = (oh as usize * tiles as usize).div_ceil(FLAT as usize);
        let down = groups * each.div_ceil(at_once as usize);
        let launch = [word(across), word(down), word(items)];
        within(launch)?;
        let reads = [Some(self.input(0)?), Some(self.input(1)?), bias, residual];
        let reads = reads.into_iter().flatten().collect();
        let shader = shader::convolution(at_once, epilogue);
        Ok(Step { shader, reads, words, groups: launch })
    }

    fn pool(&self, largest: bool) -> Result<Step> {
        let out = self.out_shape()?;
        let kernel = self.node.ints("kernel_shape")?.unwrap_or(&[]);
        let kernel: Vec<usize> = kernel.iter().map(|k| usize::try_from(*k).unwrap_or(0)).collect();
        let windows = self.windows(&kernel)?;
        let (groups, across) = flat_groups(out.elements(), FLAT);
        let padded = self.node.int_or("count_include_pad", 0)? != 0;
        let mut words = vec![word(out.elements()), across, u32::from(padded), 0];
        words.extend(&windows.words);
        let reads = vec![self.input(0)?];
        Ok(Step { shader: shader::pool(largest), reads, words, groups })
    }

    fn plane_mean(&self) -> Result<Step> {
        let x = self.shape(0)?;
        let planes: usize = x.iter().take(2).product();
        let each: usize = x.iter().skip(2).product();
        let (groups, across) = flat_groups(planes, 1);
        let words = vec![word(planes), across, word(each), 0];
        Ok(Step { shader: shader::plane_mean(), reads: vec![self.input(0)?], words, groups })
    }

    /// A copy of `extents` elements from one layout to another.
    fn rearranged(
        &self,
        x: ValueId,
        extents: &[usize],
        source: Vec<usize>,
        target: Vec<usize>,
        offset: usize,
    ) -> Result<Step> {
        let count: usize = extents.iter().product();
        let (mut extents, mut steps) = joined(extents, &[source, target]);
        if extents.is_empty() {
            extents.push(1);
            steps.iter_mut().for_each(|s| s.push(1));
        }
        let (groups, across) = flat_groups(count, FLAT);
        let mut words = vec![word(count), across, word(extents.len()), 0];
        words.extend(eight(&extents)?);
        words.extend(eight(&steps[0])?);
        words.extend(eight(&steps[1])?);
        words.extend([0, word(offset), 0, 0]);
        Ok(Step { shader: shader::rearrange(), reads: vec![x], words, groups })
    }

    fn transpose(&self) -> Result<Step> {
        let (x, out) = (self.shape(0)?, self.out_shape()?);
        let rank = x.rank();
        let order: Vec<usize> = match self.node.ints("perm")? {
            None => (0..rank).rev().collect(),
            Some(p) => p.iter().map(|a| normalise_axis(*a, rank)).collect::<Result<_>>()?,
        };
        if order.len() != rank {
            bail!(Shape, "the permutation {order:?} is of another rank than {x}");
        }
        let own = strides(&x);
        let source = order.iter().map(|a| own[*a]).collect();
        self.rearranged(self.input(0)?, &out, source, strides(&out), 0)
    }

    fn concat(&self) -> Result<Vec<Step>> {
        let out = self.out_shape()?;
        let axis = normalise_axis(self.node.required_int("axis")?, out.rank())?;
        let target = strides(&out);
        let mut steps = Vec::new();
        let mut at = 0;
        for i in 0..self.node.inputs.len() {
            let shape = self.shape(i)?;
            let offset = at * target[axis];
            at += shape[axis];
            let source = strides(&shape);
            steps.push(self.rearranged(self.input(i)?, &shape, source, target.clone(), offset)?);
        }
        Ok(steps)
    }
}

struct Windows {
    /// Twelve words: sizes, kernel and strides, dilations and padding.
    words: Vec<u32>,
    /// Output height and width.
    made: [u32; 2],
}

struct Product {
    extents: [usize; 3],
    /// Strides along rows and columns.
    a: [usize; 2],
    b: [usize; 2],
    bias: [usize; 2],
    alpha: f32,
    beta: f32,
    batch: Vec<usize>,
    /// Strides of both operands along the batch.
    steps: Vec<Vec<usize>>,
    epilogue: Epilogue,
    reads: Vec<ValueId>,
}

fn within(groups: [u32; 3]) -> Result<()> {
    if groups.iter().any(|g| *g > MOST_GROUPS) {
        bail!(Unsupported, "{groups:?} workgroups, at most {MOST_GROUPS} along an axis");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::builder::GraphBuilder;
    use crate::tensor::DType;

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
        let lowered = Lowered::new(&g.finish([("y", y)]).unwrap()).unwrap();
        assert_eq!(lowered.launches.len(), 13);
        // The input, two that serve by turns, the output.
        assert_eq!(lowered.buffers.len(), 4);
        for launch in &lowered.launches {
            assert!(!launch.reads.contains(&Operand::Buffer(launch.writes)), "{launch:?}");
            assert_eq!(launch.words.len(), launch.shader.words4 * 4, "{}", launch.shader.label);
        }
        let OutputPlace::Buffer { buffer, .. } = &lowered.outputs[0] else { panic!("a constant") };
        assert_eq!(lowered.launches.iter().filter(|l| l.writes == *buffer).count(), 1);
    }

    #[test]
    fn axes_that_lie_as_one_are_joined() {
        let (extents, steps) = joined(&[2, 3, 1, 4], &[vec![12, 4, 4, 1], vec![0, 0, 0, 1]]);
        assert_eq!(extents, [6, 4]);
        assert_eq!(steps, [vec![4, 1], vec![0, 1]]);
        assert_eq!(joined(&[1, 1], &[vec![1, 1]]).0, [0_usize; 0]);
    }
}
