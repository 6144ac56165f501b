//! `SequenceMap`.

use super::super::def::types::STORED;
use super::super::infer::Known;
use super::super::sequence::{sequence, without};
use super::super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, Program, cost};
use super::repeat::BODY;
use super::{built, captured, compiled, free_only};
use crate::error::{Result, bail};
use crate::graph::{Attribute, Fact};
use crate::tensor::{Tensor, Value};

/// A subgraph over the values of a sequence, and of further sequences side by side; a tensor among
/// the further inputs is the same for every value.
pub(in crate::ops) static SEQUENCE_MAP: OpDef = OpDef {
    name: "SequenceMap",
    domain: "",
    since: 17,
    attributes: &[AttributeDef::required(BODY, AttributeKind::Graph)],
    inputs: &[
        Port::required("input_sequence", STORED),
        Port::variadic("additional_inputs", STORED, 0),
    ],
    outputs: &[Port::variadic("out_sequence", STORED, 1)],
    infer,
    batch: free_only,
    cost: cost::copy,
    prepare: |p| {
        Ok(Box::new(Map {
            body: compiled(p, BODY, p.node.outputs.len())?,
            captures: p.node.captures,
            outputs: p.node.outputs.len(),
        }))
    },
    cases: || {
        vec![without(
            "SequenceMap",
            |g, a, b| {
                let body = built(|g| {
                    let x = g.add_input("x", Fact::unknown())?;
                    let y = g.add_input("y", Fact::unknown())?;
                    let out = g.add_value("out", Fact::unknown())?;
                    g.add_node("mul", "Mul", [Some(x), Some(y)], [Some(out)]);
                    g.set_outputs([out]);
                    Ok(())
                });
                let s = g.op("SequenceConstruct", &[a, b], &[])?;
                let s = g.op("SequenceMap", &[s, b], &[(BODY, Attribute::from(body))])?;
                let first = g.constant(Tensor::scalar(0_i64))?;
                g.op("SequenceAt", &[s, first], &[])
            },
            56,
        )]
    },
};

#[derive(Debug)]
struct Map {
    body: Program,
    captures: usize,
    outputs: usize,
}

impl CpuKernel for Map {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let all = io.input_count();
        let own = all - self.captures.min(all);
        let count = sequence(io, 0)?.len();
        let mut made: Vec<Vec<Value>> = vec![Vec::with_capacity(count); self.outputs];
        let context = io.context();
        for at in 0..count {
            let mut inputs = Vec::with_capacity(all);
            for k in 0..all {
                let value = io.value(k)?;
                inputs.push(match value {
                    Value::Sequence(list) if k < own => match list.get(at) {
                        Some(value) => value.clone(),
                        None => bail!(Shape, "input {k} has {} values, not {count}", list.len()),
                    },
                    _ if k == 0 => sequence(io, 0)?[at].clone(),
                    other => other.clone(),
                });
            }
            for (list, value) in made.iter_mut().zip(self.body.run(inputs, context)?) {
                list.push(value);
            }
        }
        for list in made {
            io.emit(Value::Sequence(list));
        }
        Ok(())
    }
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let captured = captured(i);
    let own = i.input_count() - captured.len();
    // Of an input that is a sequence nothing is known; one that is a tensor is fed as it is.
    let mut inputs: Vec<Known> =
        (0..own).map(|k| i.known(k).cloned().unwrap_or_default()).collect();
    inputs.extend(captured);
    i.subgraph(BODY, &inputs)?;
    Ok(())
}
