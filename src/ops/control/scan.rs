//! `Scan`.

use super::super::case::{Case, filled};
use super::super::concat::concat;
use super::super::def::types::STORED;
use super::super::infer::Known;
use super::super::movement::{Strided, walked};
use super::super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, Program, cost};
use super::repeat::BODY;
use super::{built, captured, compiled, free_only};
use crate::error::{Result, bail, err};
use crate::graph::{Dim, Fact, Node};
use crate::tensor::{Tensor, Value, normalise_axis, strides};

/// A subgraph over the slices of its scan inputs, with state that is carried along.
pub(in crate::ops) static SCAN: OpDef = OpDef {
    name: "Scan",
    domain: "",
    since: 8,
    attributes: &[
        AttributeDef::required(BODY, AttributeKind::Graph),
        AttributeDef::required("num_scan_inputs", AttributeKind::Int),
        AttributeDef::optional("directions", AttributeKind::Ints),
        AttributeDef::optional("scan_input_axes", AttributeKind::Ints),
        AttributeDef::optional("scan_input_directions", AttributeKind::Ints),
        AttributeDef::optional("scan_output_axes", AttributeKind::Ints),
        AttributeDef::optional("scan_output_directions", AttributeKind::Ints),
    ],
    // In version 8 the first one is the lengths of the sequences.
    inputs: &[Port::variadic("initial_state_and_scan_inputs", STORED, 1)],
    outputs: &[Port::variadic("final_state_and_scan_outputs", STORED, 1)],
    infer,
    batch: free_only,
    cost: cost::copy,
    prepare: |p| {
        let plan = Plan::of(p.node)?;
        let body = compiled(p, BODY, p.node.outputs.len())?;
        let graph = p.node.graph(BODY)?;
        let outputs = graph.map(|g| g.outputs().iter().map(|v| g.value(*v).fact.clone()).collect());
        Ok(Box::new(Scan { plan, body, outputs: outputs.unwrap_or_default() }))
    },
    cases,
};

/// What the attributes say.
#[derive(Debug)]
struct Plan {
    states: usize,
    scans: usize,
    captures: usize,
    /// Inputs in front of the states: version 8 has the lengths of the sequences there.
    lead: usize,
    input_axes: Vec<i64>,
    input_backwards: Vec<bool>,
    output_axes: Vec<i64>,
    output_backwards: Vec<bool>,
}

impl Plan {
    fn of(node: &Node) -> Result<Self> {
        let lead = usize::from(node.version < 9);
        let given = node.inputs.len().saturating_sub(node.captures);
        let scans = node.required_int("num_scan_inputs")?;
        let Some((scans, states)) = usize::try_from(scans)
            .ok()
            .filter(|n| *n > 0)
            .and_then(|n| Some((n, given.checked_sub(lead)?.checked_sub(n)?)))
        else {
            bail!(Graph, "attribute `num_scan_inputs` is {scans}, the node has {given} inputs");
        };
        let Some(outputs) = node.outputs.len().checked_sub(states) else {
            bail!(Graph, "it has {states} states, but {} outputs", node.outputs.len());
        };
        let numbers = |name: &str, count: usize| -> Result<Vec<i64>> {
            match node.ints(name)? {
                None => Ok(vec![0; count]),
                Some(v) if v.len() == count => Ok(v.to_vec()),
                Some(v) => bail!(Graph, "attribute `{name}` is {v:?}, expected {count} values"),
            }
        };
        let flags = |name: &str, count: usize| -> Result<Vec<bool>> {
            Ok(numbers(name, count)?.into_iter().map(|v| v == 1).collect())
        };
        let directions = if lead == 1 { "directions" } else { "scan_input_directions" };
        Ok(Self {
            states,
            scans,
            captures: node.captures,
            lead,
            input_axes: numbers("scan_input_axes", scans)?,
            input_backwards: flags(directions, scans)?,
            output_axes: numbers("scan_output_axes", outputs)?,
            output_backwards: flags("scan_output_directions", outputs)?,
        })
    }
}

#[derive(Debug)]
struct Scan {
    plan: Plan,
    body: Program,
    /// What is known of one iteration's outputs.
    outputs: Vec<Fact>,
}

/// Slice `at` along an axis, without it.
fn slice(io: &Io<'_>, x: &Tensor, axis: usize, at: usize) -> Result<Tensor> {
    let mut dims = x.shape().to_vec();
    let all = strides(&dims);
    let start = at * all[axis];
    dims.remove(axis);
    let mut steps: Vec<isize> = all.into_iter().map(|s| s as isize).collect();
    steps.remove(axis);
    let walk = Strided::new(start, &dims, &steps);
    walked(io, x, dims, &walk)
}

/// Tensors stacked along a new axis.
fn stack(io: &Io<'_>, parts: &[Tensor], axis: i64) -> Result<Tensor> {
    let rank = parts.first().map_or(0, Tensor::rank);
    let axis = normalise_axis(axis, rank + 1)?;
    let mut with_axis = Vec::with_capacity(parts.len());
    for part in parts {
        let mut dims = part.shape().to_vec();
        if dims.len() != rank {
            bail!(Shape, "the slices of a scan output have {rank} and {} axes", dims.len());
        }
        dims.insert(axis, 1);
        with_axis.push(part.reshape(dims)?);
    }
    concat(io, &with_axis.iter().collect::<Vec<_>>(), axis as i64)
}

impl Scan {
    /// One sequence: the final states and the scan outputs.
    fn sequence(
        &self,
        io: &Io<'_>,
        states: Vec<Value>,
        scans: &[Tensor],
        captured: &[Value],
        length: Option<usize>,
    ) -> Result<Vec<Value>> {
        let plan = &self.plan;
        let axes = scans
            .iter()
            .zip(&plan.input_axes)
            .map(|(t, a)| normalise_axis(*a, t.rank()))
            .collect::<Result<Vec<_>>>()?;
        let mut steps = length;
        for (k, (t, axis)) in scans.iter().zip(&axes).enumerate() {
            let n = t.shape()[*axis];
            match (steps, length) {
                (Some(s), Some(_)) if s > n => {
                    bail!(Shape, "a sequence has length {s}, scan input {k} only {n}")
                }
                (Some(s), None) if s != n => {
                    bail!(Shape, "scan inputs have {s} and {n} slices")
                }
                (None, _) => steps = Some(n),
                _ => {}
            }
        }
        let steps = steps.unwrap_or(0);
        let mut states = states;
        let mut made: Vec<Vec<Tensor>> = vec![Vec::with_capacity(steps); plan.output_axes.len()];
        let context = io.context();
        for step in 0..steps {
            let mut inputs = std::mem::take(&mut states);
            for (k, (t, axis)) in scans.iter().zip(&axes).enumerate() {
                let at = if plan.input_backwards[k] { steps - 1 - step } else { step };
                inputs.push(slice(io, t, *axis, at)?.into());
            }
            inputs.extend(captured.iter().cloned());
            let mut out = self.body.run(inputs, context)?.into_iter();
            states.extend(out.by_ref().take(plan.states));
            for (parts, part) in made.iter_mut().zip(out) {
                parts.push(part.into_tensor()?);
            }
        }
        for (k, mut parts) in made.into_iter().enumerate() {
            if plan.output_backwards[k] {
                parts.reverse();
            }
            states.push(if parts.is_empty() {
                nothing(self.outputs.get(plan.states + k), plan.output_axes[k], k)?.into()
            } else {
                stack(io, &parts, plan.output_axes[k])?.into()
            });
        }
        Ok(states)
    }
}

/// A scan output of no slices.
fn nothing(fact: Option<&Fact>, axis: i64, index: usize) -> Result<Tensor> {
    let known = fact.and_then(|f| Some((f.dtype?, f.shape.as_ref()?)));
    let Some((dtype, shape)) = known else {
        bail!(DType, "nothing is known of scan output {index}, and there is no slice to scan");
    };
    let mut dims: Vec<usize> = shape.iter().map(|d| d.as_extent().unwrap_or(0)).collect();
    dims.insert(normalise_axis(axis, dims.len() + 1)?, 0);
    Tensor::zeros(dtype, dims)
}

impl CpuKernel for Scan {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let plan = &self.plan;
        let all = io.input_count();
        let captured: Vec<Value> = (all - plan.captures.min(all)..all)
            .map(|k| io.value(k).cloned())
            .collect::<Result<_>>()?;
        let first = plan.lead + plan.states;
        let scans: Vec<Tensor> =
            (first..first + plan.scans).map(|k| io.tensor(k).cloned()).collect::<Result<_>>()?;
        if plan.lead == 0 {
            let states =
                (0..plan.states).map(|k| io.value(k).cloned()).collect::<Result<Vec<_>>>()?;
            for value in self.sequence(io, states, &scans, &captured, None)? {
                io.emit(value);
            }
            return Ok(());
        }
        // Version 8: everything has a batch in front; sequences are scanned one by one.
        let states: Vec<Tensor> =
            (1..first).map(|k| io.tensor(k).cloned()).collect::<Result<_>>()?;
        let batch = scans.iter().chain(&states).map(|t| t.shape().first().copied());
        let batch = batch.max().flatten().ok_or_else(|| err!(Shape, "the inputs have no batch"))?;
        let lengths = io.optional(0)?.map(Tensor::to_i64s).transpose()?;
        let mut rows: Vec<Vec<Tensor>> = vec![Vec::new(); self.outputs.len()];
        let item = |t: &Tensor, b: usize| {
            if t.rank() == 0 || b >= t.shape()[0] {
                bail!(Shape, "{} has no item {b}", t.describe());
            }
            slice(io, t, 0, b)
        };
        for b in 0..batch {
            let length = match &lengths {
                None => None,
                Some(l) => match l.get(b).copied().map(usize::try_from) {
                    Some(Ok(n)) => Some(n),
                    _ => bail!(Shape, "`sequence_lens` is {l:?}, for {batch} sequences"),
                },
            };
            let own = |all: &[Tensor]| all.iter().map(|t| item(t, b)).collect::<Result<Vec<_>>>();
            let states = own(&states)?.into_iter().map(Value::from).collect();
            let made = self.sequence(io, states, &own(&scans)?, &captured, length)?;
            for (row, value) in rows.iter_mut().zip(made) {
                row.push(value.into_tensor()?);
            }
        }
        for row in rows {
            let out = stack(io, &row, 0)?;
            io.emit(out);
        }
        Ok(())
    }
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let plan = Plan::of(i.node)?;
    if plan.lead > 0 {
        return Ok(());
    }
    let captured = captured(i);
    let mut steps: Option<Dim> = None;
    let mut scans = Vec::new();
    for (k, axis) in plan.input_axes.iter().enumerate() {
        let at = plan.states + k;
        let mut fact = i.known(at).map(|known| known.fact.clone()).unwrap_or_default();
        if let Some(shape) = &mut fact.shape {
            let n = shape.remove(normalise_axis(*axis, shape.len())?);
            if steps.as_ref().is_none_or(|s| s.as_fixed().is_none()) {
                steps = Some(n);
            }
        }
        scans.push(Known::fact(fact));
    }
    let mut states: Vec<Fact> = (0..plan.states)
        .map(|k| i.known(k).map(|known| known.fact.clone()).unwrap_or_default())
        .collect();
    let run = |i: &mut Infer<'_>, states: &[Fact]| {
        let mut inputs: Vec<Known> = states.iter().cloned().map(Known::fact).collect();
        inputs.extend(scans.iter().cloned());
        inputs.extend(captured.iter().cloned());
        i.subgraph(BODY, &inputs)
    };
    let original = i.node.attributes.get(BODY).cloned();
    let mut made = run(i, &states)?;
    let mut changed = false;
    for (state, made) in states.iter_mut().zip(&made) {
        if state.shape != made.fact.shape {
            state.shape = None;
            changed = true;
        }
    }
    if changed {
        if let Some(body) = original {
            i.node.attributes.insert(BODY.to_owned(), body);
        }
        made = run(i, &states)?;
    }
    if made.len() < i.output_count() {
        bail!(Graph, "Scan has {} outputs, its body {}", i.output_count(), made.len());
    }
    for (k, known) in made.into_iter().enumerate() {
        let mut fact = known.fact;
        if let Some(j) = k.checked_sub(plan.states) {
            let steps = steps.clone().unwrap_or_else(|| i.fresh());
            if let (Some(shape), Some(axis)) = (&mut fact.shape, plan.output_axes.get(j)) {
                shape.insert(normalise_axis(*axis, shape.len() + 1)?, steps);
            }
        }
        i.set(k, fact.dtype, fact.shape);
    }
    Ok(())
}

fn cases() -> Vec<Case> {
    // Running sums of rows.
    let body = || {
        built(|g| {
            let sum = g.add_input("sum", Fact::unknown())?;
            let next = g.add_input("next", Fact::unknown())?;
            let out = g.add_value("out", Fact::unknown())?;
            g.add_node("add", "Add", [Some(sum), Some(next)], [Some(out)]);
            let scan = g.add_value("scan", Fact::unknown())?;
            g.add_node("copy", "Identity", [Some(out)], [Some(scan)]);
            g.set_outputs([out, scan]);
            Ok(())
        })
    };
    let rows = [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0];
    let new = |version, name| {
        Case::new("Scan", version, name).attr(BODY, body()).attr("num_scan_inputs", 1)
    };
    vec![
        new(9, "running sums")
            .input(filled(&[2], &[0.0_f32, 0.0]))
            .input(filled(&[3, 2], &rows))
            .output(filled(&[2], &[9.0_f32, 12.0]))
            .output(filled(&[3, 2], &[1.0_f32, 2.0, 4.0, 6.0, 9.0, 12.0])),
        new(11, "backwards, along another axis")
            .attr("scan_input_axes", vec![1_i64])
            .attr("scan_input_directions", vec![1_i64])
            .attr("scan_output_axes", vec![-1_i64])
            .attr("scan_output_directions", vec![1_i64])
            .input(filled(&[2], &[0.0_f32, 0.0]))
            .input(filled(&[2, 3], &rows))
            .output(filled(&[2], &[6.0_f32, 15.0]))
            .output(filled(&[2, 3], &[6.0_f32, 5.0, 3.0, 15.0, 11.0, 6.0])),
        new(8, "a batch of sequences")
            .absent()
            .input(filled(&[1, 2], &[0.0_f32, 0.0]))
            .input(filled(&[1, 3, 2], &rows))
            .output(filled(&[1, 2], &[9.0_f32, 12.0]))
            .output(filled(&[1, 3, 2], &[1.0_f32, 2.0, 4.0, 6.0, 9.0, 12.0])),
    ]
}
