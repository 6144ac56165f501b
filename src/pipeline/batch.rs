//! Cutting a batch into micro-batches and joining the results.
//!
//! The batch axis is a symbol that shape inference tracks. An input is cut along the axis that
//! carries it, an output is joined along the axis that carries it, and a batch may be cut only
//! where no node mixes its items.

use std::collections::{BTreeMap, HashSet};

use crate::error::{Result, bail, err};
use crate::graph::{Dim, Graph};
use crate::ops::batch::BatchQuery;
use crate::ops::{OpRegistry, infer_graph};
use crate::tensor::{Tensor, Value};

/// Along which axis each input is cut and each output joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchAxes {
    /// Per input, in order: the axis to cut (`None`: every micro-batch gets all of it).
    pub inputs: Vec<Option<usize>>,
    /// Per output, in order: the axis to join (`None`: the same for every micro-batch).
    pub outputs: Vec<Option<usize>>,
    names: Vec<String>,
}

/// The symbol that stands for the batch while it is tracked. No model uses this name.
const BATCH: &str = "\u{1}batch";

impl BatchAxes {
    /// Finds the axes of a graph. `stated` gives the axis of an input by name (`None`: it carries
    /// no batch); an input that is not stated carries it on its first axis, if that is a symbol
    /// and the same one as that of the first input.
    ///
    /// # Errors
    /// If no input carries a batch, or a node mixes its items; names the node.
    pub fn find(
        graph: &Graph,
        registry: &OpRegistry,
        stated: &BTreeMap<String, Option<usize>>,
    ) -> Result<Self> {
        let mut graph = graph.clone();
        let inputs = input_axes(&graph, stated)?;
        let mut symbols = HashSet::new();
        for (v, axis) in graph.inputs().iter().zip(&inputs) {
            let dim = axis.and_then(|a| graph.value(*v).fact.shape.as_ref()?.get(a).cloned());
            if let Some(s) = dim.as_ref().and_then(Dim::as_symbol) {
                symbols.insert(s.to_owned());
            }
        }
        let batch = |s: &str| symbols.contains(s).then(|| Dim::symbol(BATCH));
        for v in graph.inputs().to_vec() {
            for d in graph.value_mut(v).fact.shape.iter_mut().flatten() {
                *d = d.substitute(&batch);
            }
        }
        let known = infer_graph(&mut graph, registry)?;
        let mut axes: Vec<Option<usize>> = vec![None; graph.values().len()];
        for (v, axis) in graph.inputs().iter().zip(&inputs) {
            axes[v.index()] = *axis;
        }
        for node in graph.nodes() {
            let def = registry.require(node)?;
            let input = |f: &dyn Fn(usize) -> Option<usize>| -> Vec<Option<usize>> {
                node.inputs.iter().map(|v| v.and_then(|v| f(v.index()))).collect()
            };
            let of = input(&|v| axes[v]);
            let shape = |v: &Option<crate::graph::ValueId>| {
                v.and_then(|v| known[v.index()].fact.shape.clone())
            };
            let shapes: Vec<_> = node.inputs.iter().map(shape).collect();
            let output_shapes: Vec<_> = node.outputs.iter().map(shape).collect();
            let ints: Vec<_> = node
                .inputs
                .iter()
                .map(|v| v.and_then(|v| known[v.index()].constant.as_ref()?.to_i64s().ok()))
                .collect();
            let query = BatchQuery {
                node,
                axes: &of,
                symbol: Some(BATCH),
                shapes: &shapes,
                output_shapes: &output_shapes,
                ints: &ints,
            };
            let mixed = |why: &str| {
                err!(Batch, "the batch cannot be cut: at node `{}` ({}) {why}", node.name, node.op)
                    .with_help("run it whole (without a micro-batch), or stream items one by one")
            };
            let flow = (def.batch)(&query).map_err(|why| mixed(&why))?;
            for (i, v) in node.outputs.iter().enumerate() {
                let Some(v) = v else { continue };
                let what = &known[v.index()];
                // Whole numbers that are followed are the same for every item: shapes.
                if what.constant.is_some() || what.elements.is_some() {
                    continue;
                }
                let carried = flow.get(i).copied().flatten();
                let scaled = scaled_axes(what.fact.shape.as_deref());
                if carried.is_none() && !scaled.is_empty() {
                    return Err(mixed("makes something that depends on the size of the batch"));
                }
                axes[v.index()] = carried;
            }
        }
        let outputs = graph.outputs().iter().map(|v| axes[v.index()]).collect();
        let names = graph.input_names().map(str::to_owned).collect();
        Ok(Self { inputs, outputs, names })
    }

    /// The number of items in a batch.
    ///
    /// # Errors
    /// If the inputs disagree; names both.
    pub fn count(&self, inputs: &[Value]) -> Result<usize> {
        let mut found: Option<(usize, &str)> = None;
        for ((axis, value), name) in self.inputs.iter().zip(inputs).zip(&self.names) {
            let (Some(axis), Value::Tensor(t)) = (axis, value) else { continue };
            let Some(&n) = t.shape().get(*axis) else {
                bail!(Batch, "input `{name}` is {}, without a batch axis {axis}", t.describe());
            };
            match found {
                Some((m, other)) if m != n => {
                    return Err(err!(
                        Batch,
                        "input `{other}` has a batch of {m} and input `{name}` one of {n}"
                    )
                    .with_help("give all inputs of a batch as many items"));
                }
                _ => found = Some((n, name)),
            }
        }
        found.map(|(n, _)| n).ok_or_else(|| err!(Batch, "no input carries a batch"))
    }

    /// Items `start..start + count` of a batch.
    ///
    /// # Errors
    /// If they are not all there.
    pub fn cut(&self, inputs: &[Value], start: usize, count: usize) -> Result<Vec<Value>> {
        let mut out = Vec::with_capacity(inputs.len());
        for (axis, value) in self.inputs.iter().zip(inputs) {
            out.push(match (axis, value) {
                (Some(axis), Value::Tensor(t)) => t.narrow(*axis, start, count)?.into(),
                _ => value.clone(),
            });
        }
        Ok(out)
    }

    /// The results of consecutive micro-batches as one.
    ///
    /// # Errors
    /// If an output without a batch axis differs between micro-batches.
    pub fn join(&self, parts: Vec<Vec<Value>>) -> Result<Vec<Value>> {
        let mut columns: Vec<Vec<Tensor>> = vec![Vec::new(); self.outputs.len()];
        for part in parts {
            for (column, value) in columns.iter_mut().zip(part) {
                column.push(value.into_tensor()?);
            }
        }
        let mut out = Vec::with_capacity(columns.len());
        for (i, (column, axis)) in columns.into_iter().zip(&self.outputs).enumerate() {
            match axis {
                Some(axis) => out.push(Tensor::concat(&column, *axis)?.into()),
                None => {
                    if column.windows(2).any(|w| w[0] != w[1]) {
                        bail!(Batch, "output {i} has no batch axis, but differs by micro-batch");
                    }
                    match column.into_iter().next() {
                        Some(t) => out.push(t.into()),
                        None => bail!(Batch, "there is no micro-batch to join"),
                    }
                }
            }
        }
        Ok(out)
    }
}

fn scaled_axes(shape: Option<&[Dim]>) -> Vec<usize> {
    let dims = shape.unwrap_or_default();
    (0..dims.len()).filter(|i| dims[*i].contains(BATCH)).collect()
}

fn input_axes(
    graph: &Graph,
    stated: &BTreeMap<String, Option<usize>>,
) -> Result<Vec<Option<usize>>> {
    for name in stated.keys() {
        if !graph.input_names().any(|n| n == name) {
            let names: Vec<&str> = graph.input_names().collect();
            return Err(err!(UnknownName, "the graph has no input `{name}`")
                .with_help(super::prepared::listing("its inputs are", &names)));
        }
    }
    let mut axes = Vec::new();
    let mut symbol: Option<Dim> = None;
    let mut fixed = None;
    for v in graph.inputs() {
        let info = graph.value(*v);
        let first = info.fact.shape.as_ref().and_then(|s| s.first()).cloned();
        let axis = match stated.get(&info.name) {
            Some(axis) => *axis,
            None => match first {
                Some(d) if d.as_symbol().is_some() => {
                    let same = symbol.as_ref().is_none_or(|s| *s == d);
                    symbol.get_or_insert(d);
                    same.then_some(0)
                }
                Some(d) => {
                    fixed.get_or_insert_with(|| {
                        format!("`{}` is {} (first extent {d})", info.name, info.fact)
                    });
                    None
                }
                None => None,
            },
        };
        if let Some(a) = axis {
            let dim = info.fact.shape.as_ref().and_then(|s| s.get(a));
            match dim {
                Some(d) if d.as_symbol().is_some() => {}
                Some(d) => bail!(Batch, "axis {a} of input `{}` is fixed at {d}", info.name),
                None => bail!(Batch, "input `{}` is {}, without an axis {a}", info.name, info.fact),
            }
        }
        axes.push(axis);
    }
    if axes.iter().all(Option::is_none) {
        return Err(match fixed {
            Some(f) => err!(Batch, "a batch cannot be cut: the batch is fixed: input {f}")
                .with_help("run batches of that size, or state another axis by `batch_axis`"),
            None => err!(Batch, "a batch cannot be cut: no input has a symbolic first axis")
                .with_help("state the batch axis of an input by `batch_axis`"),
        });
    }
    Ok(axes)
}
