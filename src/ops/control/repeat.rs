//! `Loop`.

use super::super::case::{Case, ints};
use super::super::concat::concat;
use super::super::def::types::{BOOLS, I64S, STORED};
use super::super::infer::Known;
use super::super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, Program, cost};
use super::{built, captured, compiled, free_only};
use crate::error::{Result, bail, err};
use crate::graph::{Attribute, Dim, Fact, Graph, Node};
use crate::tensor::{Tensor, Value};

/// A subgraph again and again, with values that are carried from one iteration to the next.
pub(in crate::ops) static LOOP: OpDef = OpDef {
    name: "Loop",
    domain: "",
    since: 1,
    attributes: &[AttributeDef::required(BODY, AttributeKind::Graph)],
    inputs: &[
        Port::optional("M", I64S),
        Port::optional("cond", BOOLS),
        Port::variadic("v_initial", STORED, 0),
    ],
    outputs: &[Port::variadic("v_final_and_scan_outputs", STORED, 0)],
    infer: infer_loop,
    batch: free_only,
    cost: cost::copy,
    prepare: |p| {
        let carried = carried(p.node)?;
        let body = compiled(p, BODY, 1 + p.node.outputs.len().max(carried))?;
        let graph = p.node.graph(BODY)?;
        let scans = graph.map(|g| g.outputs().iter().skip(1 + carried));
        let scans = scans.into_iter().flatten();
        let scans = scans.filter_map(|v| graph.map(|g| g.value(*v).fact.clone())).collect();
        Ok(Box::new(Loop { body, carried, captures: p.node.captures, scans }))
    },
    cases: loop_cases,
};

pub(super) const BODY: &str = "body";

/// How many values a `Loop` carries.
fn carried(node: &Node) -> Result<usize> {
    let inputs = node.inputs.len();
    inputs.checked_sub(node.captures + 2).ok_or_else(|| {
        err!(
            Graph,
            "Loop has {inputs} inputs, {} of them captured; M and cond are missing",
            node.captures
        )
    })
}

#[derive(Debug)]
struct Loop {
    body: Program,
    carried: usize,
    captures: usize,
    /// What is known of one iteration's part of each scan output.
    scans: Vec<Fact>,
}

impl CpuKernel for Loop {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let limit = io.optional(0)?.map(|t| t.item::<i64>()).transpose()?;
        if let Some(m) = limit.filter(|m| *m < 0) {
            bail!(Kernel, "`M` is {m}; a number of iterations cannot be negative");
        }
        let mut condition = io.optional(1)?.map_or(Ok(true), |t| t.item::<bool>())?;
        let all = io.input_count();
        let mut values: Vec<Value> =
            (2..2 + self.carried).map(|k| io.take(k)).collect::<Result<_>>()?;
        let captured: Vec<Value> =
            (all - self.captures.min(all)..all).map(|k| io.take(k)).collect::<Result<_>>()?;
        let mut scans: Vec<Vec<Tensor>> = vec![Vec::new(); self.scans.len()];
        let context = io.context();
        let mut iteration = 0i64;
        while condition && limit.is_none_or(|m| iteration < m) {
            let mut inputs = Vec::with_capacity(2 + values.len() + captured.len());
            inputs.push(Value::from(Tensor::scalar(iteration)));
            inputs.push(Value::from(Tensor::scalar(true)));
            inputs.append(&mut values);
            inputs.extend(captured.iter().cloned());
            let mut made = self.body.run(inputs, context)?.into_iter();
            let next = made.next().ok_or_else(|| err!(Internal, "the body has no condition"))?;
            condition = next.tensor()?.item::<bool>()?;
            values.extend(made.by_ref().take(self.carried));
            for (parts, part) in scans.iter_mut().zip(made) {
                let part = part.into_tensor()?;
                let mut shape = vec![1];
                shape.extend_from_slice(part.shape());
                parts.push(part.reshape(shape)?);
            }
            iteration = iteration
                .checked_add(1)
                .ok_or_else(|| err!(Limit, "a loop ran {iteration} times"))?;
        }
        for value in values {
            io.emit(value);
        }
        for (k, parts) in scans.into_iter().enumerate() {
            let out = if parts.is_empty() {
                nothing(k, &self.scans[k])?
            } else {
                let parts: Vec<&Tensor> = parts.iter().collect();
                concat(io, &parts, 0)?
            };
            io.emit(out);
        }
        Ok(())
    }
}

/// A scan output of no iterations; extents that are not known are 0.
fn nothing(index: usize, part: &Fact) -> Result<Tensor> {
    let Some(dtype) = part.dtype else {
        bail!(DType, "the dtype of scan output {index} is not known, and no iteration ran");
    };
    let mut shape = vec![0];
    shape.extend(part.shape.iter().flatten().map(|d| d.as_extent().unwrap_or(0)));
    Tensor::zeros(dtype, shape)
}

/// What is known of a carried value in every iteration.
#[derive(Clone)]
struct Carried {
    fact: Fact,
    /// The axes whose extent changes; each has a symbol of its own in the fact.
    varying: Vec<bool>,
}

impl Carried {
    /// Takes in what comes out of an iteration; says whether that changed anything.
    fn widen(&mut self, made: &Fact, give_up: bool, i: &mut Infer<'_>) -> Result<bool> {
        let mut changed = false;
        match (self.fact.dtype, made.dtype) {
            (Some(a), Some(b)) if a != b => {
                bail!(DType, "a value that the loop carries changes from {a} to {b}")
            }
            (None, Some(b)) => {
                self.fact.dtype = Some(b);
                changed = true;
            }
            _ => {}
        }
        let Some(shape) = &mut self.fact.shape else { return Ok(changed) };
        match &made.shape {
            Some(made) if made.len() == shape.len() => {
                for ((d, made), varying) in shape.iter_mut().zip(made).zip(&mut self.varying) {
                    if !*varying && d != made {
                        *d = i.fresh();
                        *varying = true;
                        changed = true;
                    }
                }
            }
            _ => {
                self.fact.shape = None;
                changed = true;
            }
        }
        if changed && give_up {
            self.fact.shape = None;
        }
        Ok(changed)
    }
}

/// After so many rounds, values whose extents still change lose their shape.
const ROUNDS: usize = 4;

fn infer_loop(i: &mut Infer<'_>) -> Result<()> {
    let count = carried(i.node)?;
    let captured = captured(i);
    let Some(original) = i.node.graph(BODY)?.cloned() else {
        bail!(Graph, "Loop lacks its subgraph `{BODY}`");
    };
    let mut values: Vec<Carried> = (2..2 + count)
        .map(|k| {
            let fact = i.known(k).map(|known| known.fact.clone()).unwrap_or_default();
            Carried { varying: vec![false; fact.rank().unwrap_or(0)], fact }
        })
        .collect();
    let mut round = 0;
    let made = loop {
        set_body(i, &original, &values);
        let mut inputs = vec![
            Known::fact(Fact::new(crate::DType::I64, [])),
            // An iteration only runs while the condition holds.
            Known::constant(&Tensor::scalar(true)),
        ];
        inputs.extend(values.iter().map(|v| Known::fact(v.fact.clone())));
        inputs.extend(captured.iter().cloned());
        let made = i.subgraph(BODY, &inputs)?;
        if made.len() < 1 + count.max(i.output_count()) {
            bail!(
                Graph,
                "the body of Loop has {} outputs for {count} carried values and {} outputs",
                made.len(),
                i.output_count()
            );
        }
        let mut changed = false;
        for (value, made) in values.iter_mut().zip(&made[1..]) {
            changed |= value.widen(&made.fact, round >= ROUNDS, i)?;
        }
        if !changed {
            break made;
        }
        round += 1;
    };
    // Inside of the body the symbols stand for one iteration; outside new ones are needed.
    let varying: Vec<Dim> = values
        .iter()
        .flat_map(|v| v.fact.shape.iter().flatten().zip(&v.varying))
        .filter(|(_, varying)| **varying)
        .map(|(d, _)| d.clone())
        .collect();
    let outside = |shape: &[Dim], i: &mut Infer<'_>| -> Vec<Dim> {
        let bound = |d: &Dim| varying.iter().filter_map(Dim::as_symbol).any(|s| d.contains(s));
        shape.iter().map(|d| if bound(d) { i.fresh() } else { d.clone() }).collect()
    };
    for (k, value) in values.iter().enumerate() {
        let shape = value.fact.shape.as_ref().map(|s| outside(s, i));
        i.set(k, value.fact.dtype, shape);
    }
    let trips = match trip_count(i, &made[0]) {
        Some(n) => n,
        None => i.fresh(),
    };
    for (k, scan) in made.iter().enumerate().skip(1 + count) {
        let shape = scan.fact.shape.as_ref().map(|s| {
            let mut shape = vec![trips.clone()];
            shape.extend(outside(s, i));
            shape
        });
        i.set(k - 1, scan.fact.dtype, shape);
    }
    Ok(())
}

/// Puts the body back as it was given, without the shapes that its inputs claim to have where a
/// carried value has none.
fn set_body(i: &mut Infer<'_>, original: &Graph, values: &[Carried]) {
    let mut body = original.clone();
    let inputs: Vec<_> = body.inputs().iter().skip(2).copied().collect();
    for (input, value) in inputs.into_iter().zip(values) {
        if value.fact.shape.is_none() {
            body.value_mut(input).fact.shape = None;
        }
    }
    i.node.attributes.insert(BODY.to_owned(), Attribute::Graph(Box::new(body)));
}

/// How often the loop runs, if only `M` decides that.
fn trip_count(i: &Infer<'_>, condition: &Known) -> Option<Dim> {
    let holds = |t: &Tensor| t.item::<bool>().unwrap_or(false);
    let starts = !i.has(1) || i.constant(1).is_some_and(holds);
    let goes_on = condition.constant.as_ref().is_some_and(holds);
    let limit = i.elements(0).filter(|e| e.len() == 1)?.pop()?;
    (starts && goes_on).then_some(limit)
}

fn loop_cases() -> Vec<Case> {
    // Appends the captured value, scans the iteration's number, goes on while the table says so.
    let body = |table: Vec<bool>| {
        built(|g| {
            let n = g.add_input("n", Fact::unknown())?;
            g.add_input("go", Fact::unknown())?;
            let v = g.add_input("v", Fact::unknown())?;
            let c = g.add_input("c", Fact::unknown())?;
            let table = g.add_constant("table", Tensor::new([table.len()], table)?)?;
            let next = g.add_value("next", Fact::unknown())?;
            g.add_node("look", "Gather", [Some(table), Some(n)], [Some(next)]);
            let longer = g.add_value("longer", Fact::unknown())?;
            let node = g.add_node("append", "Concat", [Some(v), Some(c)], [Some(longer)]);
            node.attributes.insert("axis".to_owned(), 0.into());
            let scan = g.add_value("scan", Fact::unknown())?;
            g.add_node("copy", "Identity", [Some(n)], [Some(scan)]);
            g.set_outputs([next, longer, scan]);
            Ok(())
        })
    };
    let new = |name, table| Case::new("Loop", 16, name).attr(BODY, body(table));
    let with = |case: Case, longer: Vec<i64>, scan: Vec<i64>| {
        case.input(ints(&[1], vec![5]))
            .input(ints(&[1], vec![6]))
            .captures(1)
            .output(ints(&[longer.len()], longer))
            .output(ints(&[scan.len()], scan))
    };
    vec![
        with(
            new("as often as M says", vec![true; 8]).constant(Tensor::scalar(3_i64)).absent(),
            vec![5, 6, 6, 6],
            vec![0, 1, 2],
        ),
        with(
            new("while the condition holds", vec![true, false])
                .absent()
                .input(Tensor::scalar(true)),
            vec![5, 6, 6],
            vec![0, 1],
        ),
        with(
            new("both", vec![true, false, true])
                .input(ints(&[1], vec![3]))
                .input(Tensor::scalar(true)),
            vec![5, 6, 6],
            vec![0, 1],
        ),
        with(
            new("not at all", vec![true]).input(Tensor::scalar(3_i64)).input(Tensor::scalar(false)),
            vec![5],
            vec![],
        ),
    ]
}
