//! Shape inference.
//!
//! Each operator sets the facts of its outputs from what is known of its inputs: dtypes, symbolic
//! shapes, constants, and the *elements* of small whole-number tensors (so that the arithmetic
//! that models do on shapes is followed symbolically).

use std::collections::HashMap;

use super::OpRegistry;
use crate::error::{Result, bail};
use crate::graph::{Attribute, Dim, Fact, Graph, Node};
use crate::tensor::{DType, Tensor};

/// What inference knows of one value.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Known {
    /// Dtype and shape.
    pub fact: Fact,
    /// The contents, if constant.
    pub constant: Option<Tensor>,
    /// The elements of a small whole-number tensor (at most one axis), if known symbolically.
    pub elements: Option<Vec<Dim>>,
}

/// Whole-number tensors with more elements than this are not followed symbolically.
const FOLLOWED: usize = 64;

impl Known {
    /// The contents, if they are known: a constant, or shape arithmetic whose elements are numbers.
    ///
    /// # Errors
    /// If the elements are not of the dtype.
    pub(crate) fn value(&self) -> Result<Option<Tensor>> {
        if let Some(t) = &self.constant {
            return Ok(Some(t.clone()));
        }
        let (Some(dtype), Some(elements)) = (self.fact.dtype, &self.elements) else {
            return Ok(None);
        };
        let Some(numbers) = elements.iter().map(Dim::as_fixed).collect::<Option<Vec<i64>>>() else {
            return Ok(None);
        };
        let shape = match self.fact.rank() {
            Some(0) if numbers.len() == 1 => Vec::new(),
            Some(1) => vec![numbers.len()],
            _ => return Ok(None),
        };
        Ok(Some(crate::tensor::cast(&Tensor::new(shape, numbers)?, dtype)?))
    }

    /// What is known of a constant.
    pub fn constant(tensor: &Tensor) -> Self {
        let followed = tensor.dtype().is_int() && tensor.rank() <= 1 && tensor.len() <= FOLLOWED;
        let elements = followed
            .then(|| tensor.to_i64s().ok())
            .flatten()
            .map(|v| v.into_iter().map(Dim::fixed).collect());
        Self { fact: Fact::of(tensor), constant: Some(tensor.clone()), elements }
    }

    /// Only a fact is known.
    pub fn fact(fact: Fact) -> Self {
        Self { fact, constant: None, elements: None }
    }
}

/// What an operator's `infer` sees and sets.
#[derive(Debug)]
pub struct Infer<'a> {
    /// The node; the facts inside of its subgraphs may be updated.
    pub node: &'a mut Node,
    inputs: Vec<Option<&'a Known>>,
    outputs: Vec<Known>,
    fresh: &'a mut dyn FreshSymbols,
    registry: &'a OpRegistry,
}

/// Where fresh symbols come from.
pub(crate) trait FreshSymbols: std::fmt::Debug {
    /// A symbol that is used nowhere else.
    fn fresh(&mut self) -> Dim;
}

#[derive(Debug)]
struct Counter {
    next: u64,
}

impl FreshSymbols for Counter {
    fn fresh(&mut self) -> Dim {
        self.next += 1;
        Dim::symbol(format!("?{}", self.next))
    }
}

impl Infer<'_> {
    /// How many inputs the node has, given or not.
    pub fn input_count(&self) -> usize {
        self.inputs.len()
    }

    /// How many outputs the node has, asked for or not.
    pub fn output_count(&self) -> usize {
        self.outputs.len()
    }

    /// What is known of an input; `None` if it is left out.
    pub fn known(&self, i: usize) -> Option<&Known> {
        self.inputs.get(i).copied().flatten()
    }

    /// Whether the input is given.
    pub fn has(&self, i: usize) -> bool {
        self.known(i).is_some()
    }

    /// The input's dtype, if known.
    pub fn dtype(&self, i: usize) -> Option<DType> {
        self.known(i)?.fact.dtype
    }

    /// The input's symbolic shape, if its rank is known.
    pub fn shape(&self, i: usize) -> Option<Vec<Dim>> {
        self.known(i)?.fact.shape.clone()
    }

    /// The input's number of axes, if known.
    pub fn rank(&self, i: usize) -> Option<usize> {
        self.known(i)?.fact.rank()
    }

    /// The input's contents, if constant.
    pub fn constant(&self, i: usize) -> Option<&Tensor> {
        self.known(i)?.constant.as_ref()
    }

    /// The elements of a whole-number input, symbolically, if followed.
    pub fn elements(&self, i: usize) -> Option<Vec<Dim>> {
        self.known(i)?.elements.clone()
    }

    /// The elements of a whole-number input, if they are all known numbers.
    pub fn ints(&self, i: usize) -> Option<Vec<i64>> {
        let known = self.known(i)?;
        match &known.constant {
            Some(t) => t.to_i64s().ok(),
            None => known.elements.as_ref()?.iter().map(Dim::as_fixed).collect(),
        }
    }

    /// A fresh symbol, for an extent that depends on the data.
    pub fn fresh(&mut self) -> Dim {
        self.fresh.fresh()
    }

    /// A shape of `rank` fresh symbols.
    pub fn fresh_shape(&mut self, rank: usize) -> Vec<Dim> {
        (0..rank).map(|_| self.fresh.fresh()).collect()
    }

    /// Sets an output's dtype and shape.
    pub fn set(&mut self, i: usize, dtype: Option<DType>, shape: Option<Vec<Dim>>) {
        if let Some(out) = self.outputs.get_mut(i) {
            out.fact = Fact { dtype, shape };
        }
    }

    /// Sets an output's elements, symbolically (for whole numbers with at most one axis).
    pub fn set_elements(&mut self, i: usize, elements: Option<Vec<Dim>>) {
        if let Some(out) = self.outputs.get_mut(i) {
            out.elements = elements.filter(|e| e.len() <= FOLLOWED);
        }
    }

    /// Sets all that is known of an output.
    pub fn set_known(&mut self, i: usize, known: Known) {
        if let Some(out) = self.outputs.get_mut(i) {
            *out = known;
        }
    }

    /// The common symbolic shape of several inputs by broadcasting; `None` if a rank is unknown.
    ///
    /// # Errors
    /// If two known extents cannot be broadcast together.
    pub fn broadcast(&self, inputs: &[usize]) -> Result<Option<Vec<Dim>>> {
        let mut shapes = Vec::new();
        for &i in inputs {
            match self.shape(i) {
                Some(s) => shapes.push(s),
                None => return Ok(None),
            }
        }
        let refs: Vec<&[Dim]> = shapes.iter().map(Vec::as_slice).collect();
        broadcast_dims(&refs).map(Some)
    }

    /// Infers a subgraph (an attribute of the node) whose inputs are known so; returns what is
    /// known of its outputs and stores the facts inside of it.
    ///
    /// # Errors
    /// If there is no such attribute, or its nodes contradict each other.
    pub fn subgraph(&mut self, attribute: &str, inputs: &[Known]) -> Result<Vec<Known>> {
        let Some(Attribute::Graph(graph)) = self.node.attributes.get_mut(attribute) else {
            let (name, op) = (&self.node.name, &self.node.op);
            bail!(Graph, "node `{name}` ({op}) lacks its subgraph `{attribute}`");
        };
        infer_into(graph, inputs, self.registry, self.fresh)
    }
}

impl Infer<'_> {
    /// Infers a graph that stands for the node, whose inputs are known so; returns what is known of
    /// its outputs.
    ///
    /// # Errors
    /// If its nodes contradict each other.
    pub(crate) fn inner(&mut self, mut graph: Graph, inputs: &[Known]) -> Result<Vec<Known>> {
        infer_into(&mut graph, inputs, self.registry, self.fresh)
    }
}

/// The common symbolic shape of several by broadcasting. Where two extents differ and neither is
/// known to be 1, a known one wins over a symbol, and the first symbol over the second.
///
/// # Errors
/// If two known extents cannot be broadcast together.
pub fn broadcast_dims(shapes: &[&[Dim]]) -> Result<Vec<Dim>> {
    let rank = shapes.iter().map(|s| s.len()).max().unwrap_or(0);
    let one = Dim::fixed(1);
    let mut out = vec![one.clone(); rank];
    for s in shapes {
        let lead = rank - s.len();
        for (i, d) in s.iter().enumerate() {
            let o = &mut out[lead + i];
            if *o == one || *o == *d {
                *o = d.clone();
            } else if *d != one {
                match (o.as_fixed(), d.as_fixed()) {
                    (Some(_), Some(_)) => {
                        bail!(Shape, "extents {o} and {d} cannot be broadcast together")
                    }
                    (None, Some(_)) => *o = d.clone(),
                    _ => {}
                }
            }
        }
    }
    Ok(out)
}

/// Infers the facts of every value of `graph`, subgraphs included, and stores them in it.
///
/// Returns what is known of every value, in the graph's order.
///
/// # Errors
/// If an operator is not in the registry, or its inputs contradict its specification; the error
/// names the node.
pub fn infer_graph(graph: &mut Graph, registry: &OpRegistry) -> Result<Vec<Known>> {
    let inputs: Vec<Known> =
        graph.inputs.iter().map(|v| Known::fact(graph.value(*v).fact.clone())).collect();
    let mut fresh = Counter { next: highest_fresh(graph) };
    infer_all(graph, &inputs, registry, &mut fresh)
}

/// Infers the outputs of the last node from the stored facts; for building step by step.
pub(crate) fn infer_last(graph: &mut Graph, registry: &OpRegistry) -> Result<()> {
    let Some(mut node) = graph.nodes.pop() else { return Ok(()) };
    let mut all: Vec<Known> = graph
        .values
        .iter()
        .map(|v| match &v.constant {
            Some(t) => Known::constant(t),
            None => Known::fact(v.fact.clone()),
        })
        .collect();
    let mut fresh = Counter { next: highest_fresh(graph) };
    let done = infer_node(&mut node, &mut all, registry, &mut fresh)
        .map_err(|e| e.with_node(&node.name, &node.op));
    for v in node.makes() {
        graph.values[v.index()].fact = all[v.index()].fact.clone();
    }
    graph.nodes.push(node);
    done
}

/// The highest number of a symbol that inference made.
fn highest_fresh(graph: &Graph) -> u64 {
    let mut highest = 0;
    for d in graph.values.iter().filter_map(|v| v.fact.shape.as_ref()).flatten() {
        d.visit_symbols(&mut |s| {
            if let Some(n) = s.strip_prefix('?').and_then(|n| n.parse::<u64>().ok()) {
                highest = highest.max(n);
            }
        });
    }
    highest
}

fn infer_into(
    graph: &mut Graph,
    inputs: &[Known],
    registry: &OpRegistry,
    fresh: &mut dyn FreshSymbols,
) -> Result<Vec<Known>> {
    let all = infer_all(graph, inputs, registry, fresh)?;
    Ok(graph.outputs.iter().map(|v| all[v.index()].clone()).collect())
}

fn infer_all(
    graph: &mut Graph,
    inputs: &[Known],
    registry: &OpRegistry,
    fresh: &mut dyn FreshSymbols,
) -> Result<Vec<Known>> {
    let mut all: Vec<Known> = graph
        .values
        .iter()
        .map(|v| match &v.constant {
            Some(t) => Known::constant(t),
            None => Known::fact(v.fact.clone()),
        })
        .collect();
    if graph.inputs.len() != inputs.len() {
        bail!(
            Graph,
            "graph `{}` has {} inputs, {} given",
            graph.name,
            graph.inputs.len(),
            inputs.len()
        );
    }
    for (v, known) in graph.inputs.iter().zip(inputs) {
        all[v.index()] = merge(known, &graph.value(*v).fact);
    }
    // Names of values differ in each graph; the map is only for this one.
    let mut nodes = std::mem::take(&mut graph.nodes);
    let mut failure = None;
    for node in &mut nodes {
        if let Err(e) = infer_node(node, &mut all, registry, fresh) {
            failure = Some(e.with_node(&node.name, &node.op));
            break;
        }
    }
    graph.nodes = nodes;
    if let Some(e) = failure {
        return Err(e);
    }
    for (info, known) in graph.values.iter_mut().zip(&all) {
        info.fact = known.fact.clone();
    }
    Ok(all)
}

/// A declared fact fills in what was not inferred.
fn merge(known: &Known, declared: &Fact) -> Known {
    let mut out = known.clone();
    out.fact.dtype = out.fact.dtype.or(declared.dtype);
    if out.fact.shape.is_none() {
        out.fact.shape.clone_from(&declared.shape);
    }
    out
}

fn infer_node(
    node: &mut Node,
    all: &mut [Known],
    registry: &OpRegistry,
    fresh: &mut dyn FreshSymbols,
) -> Result<()> {
    let def = registry.require(node)?;
    let inputs = node.inputs.iter().map(|v| v.map(|v| &all[v.index()])).collect();
    let outputs = vec![Known::default(); node.outputs.len()];
    let mut context = Infer { node, inputs, outputs, fresh, registry };
    (def.infer)(&mut context).map_err(|e| {
        let facts = context.inputs.iter();
        let words = facts.map(|k| k.map_or_else(|| "-".to_owned(), |k| k.fact.to_string()));
        e.with_shapes(words.collect::<Vec<_>>().join(", "))
    })?;
    let made = context.outputs;
    for (v, mut known) in node.outputs.iter().zip(made) {
        if let Some(v) = v {
            // What is declared (the dtype of an output, say) fills in what is not inferred.
            known.fact.dtype = known.fact.dtype.or(all[v.index()].fact.dtype);
            all[v.index()] = known;
        }
    }
    Ok(())
}

/// The value of each symbol, from concrete input shapes.
///
/// # Errors
/// If a symbol would have two values, or a fixed extent differs; names the input.
pub fn bind_symbols(graph: &Graph, shapes: &[(&str, &[usize])]) -> Result<HashMap<String, i64>> {
    let mut bound: HashMap<String, (i64, String)> = HashMap::new();
    for (name, shape) in shapes {
        let Some(id) = graph.inputs.iter().find(|v| graph.value(**v).name == *name) else {
            continue;
        };
        let fact = &graph.value(*id).fact;
        let Some(declared) = &fact.shape else { continue };
        if declared.len() != shape.len() {
            bail!(Shape, "input `{name}` is declared {fact}, got shape {shape:?}");
        }
        for (d, &n) in declared.iter().zip(*shape) {
            let n = i64::try_from(n).unwrap_or(i64::MAX);
            if d.as_fixed().is_some_and(|v| v != n) {
                bail!(Shape, "input `{name}` is declared {fact}, got shape {shape:?}");
            }
            let Some(symbol) = d.as_symbol() else { continue };
            match bound.get(symbol) {
                Some((v, other)) if *v != n => {
                    bail!(Shape, "`{symbol}` is {v} in input `{other}` and {n} in input `{name}`")
                }
                _ => {
                    bound.insert(symbol.to_owned(), (n, (*name).to_owned()));
                }
            }
        }
    }
    Ok(bound.into_iter().map(|(k, (v, _))| (k, v)).collect())
}
