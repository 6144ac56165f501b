//! Making sequences, and what is in them.

use super::{position, sequence};
use crate::error::{Result, bail};
use crate::graph::{Dim, ValueId};
use crate::ops::builder::GraphBuilder;
use crate::ops::case::{Case, filled};
use crate::ops::def::types::{I64S, INDICES, STORED};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, Value};

/// A kernel that is a function.
struct Simple(fn(&mut Io<'_>) -> Result<Value>);

impl std::fmt::Debug for Simple {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Sequence")
    }
}

impl CpuKernel for Simple {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let out = (self.0)(io)?;
        io.emit(out);
        Ok(())
    }
}

const LIST: Port = Port::required("input_sequence", STORED);
const OUTPUT: &[Port] = &[Port::required("output", STORED)];

/// What the operators have in common; each row adds what differs.
const BASE: OpDef = OpDef {
    name: "",
    domain: "",
    since: 11,
    attributes: &[],
    inputs: &[],
    outputs: OUTPUT,
    infer: |_| Ok(()),
    batch: batch::mixes,
    cost: cost::copy,
    prepare: |_| Ok(Box::new(Simple(|_| Ok(Value::Sequence(Vec::new()))))),
    cases: Vec::new,
};

/// A sequence of the inputs.
pub(in crate::ops) static SEQUENCE_CONSTRUCT: OpDef = OpDef {
    name: "SequenceConstruct",
    inputs: &[Port::variadic("inputs", STORED, 1)],
    prepare: |_| Ok(Box::new(Simple(construct))),
    cases: || vec![nested("SequenceConstruct", |g, s| g.op("SequenceLength", &[s], &[]), 2)],
    ..BASE
};

fn construct(io: &mut Io<'_>) -> Result<Value> {
    let count = io.input_count();
    Ok(Value::Sequence((0..count).map(|k| io.take(k)).collect::<Result<_>>()?))
}

/// A sequence of nothing.
pub(in crate::ops) static SEQUENCE_EMPTY: OpDef = OpDef {
    name: "SequenceEmpty",
    attributes: &[AttributeDef::optional("dtype", AttributeKind::Int)],
    cases: || {
        vec![without(
            "SequenceEmpty",
            |g, _, _| {
                let s = g.op("SequenceEmpty", &[], &[])?;
                g.op("SequenceLength", &[s], &[])
            },
            0,
        )]
    },
    ..BASE
};

/// The value at a position.
pub(in crate::ops) static SEQUENCE_AT: OpDef = OpDef {
    name: "SequenceAt",
    inputs: &[LIST, Port::required("position", INDICES)],
    prepare: |_| Ok(Box::new(Simple(at))),
    cases: || {
        vec![nested(
            "SequenceAt",
            |g, s| {
                let last = g.constant(Tensor::scalar(-1_i64))?;
                g.op("SequenceAt", &[s, last], &[])
            },
            8,
        )]
    },
    ..BASE
};

fn number(io: &Io<'_>, input: usize) -> Result<i64> {
    match io.tensor(input)?.to_i64s()?[..] {
        [n] => Ok(n),
        _ => bail!(Shape, "input {input} is {}, expected one number", io.tensor(input)?.describe()),
    }
}

fn at(io: &mut Io<'_>) -> Result<Value> {
    let list = sequence(io, 0)?;
    let i = position(number(io, 1)?, list.len(), list.len().saturating_sub(1))?;
    match list.get(i) {
        Some(value) => Ok(value.clone()),
        None => bail!(Shape, "a sequence of nothing has no value at {i}"),
    }
}

/// The sequence with one more value, before the one at a position or at the end.
pub(in crate::ops) static SEQUENCE_INSERT: OpDef = OpDef {
    name: "SequenceInsert",
    inputs: &[LIST, Port::required("tensor", STORED), Port::optional("position", INDICES)],
    prepare: |_| Ok(Box::new(Simple(insert))),
    cases: || {
        vec![nested(
            "SequenceInsert",
            |g, s| {
                let (more, first) =
                    (g.constant(Tensor::scalar(5_i64))?, g.constant(Tensor::scalar(0_i64))?);
                let s = g.op("SequenceInsert", &[s, more, first], &[])?;
                g.op("SequenceAt", &[s, first], &[])
            },
            5,
        )]
    },
    ..BASE
};

fn taken(io: &mut Io<'_>, input: usize) -> Result<Vec<Value>> {
    sequence(io, input)?;
    let mut value = io.take(input)?;
    loop {
        value = match value {
            Value::Sequence(list) => return Ok(list),
            Value::Optional(Some(inner)) => *inner,
            other => bail!(DType, "expected a sequence, got {}", other.describe()),
        };
    }
}

fn insert(io: &mut Io<'_>) -> Result<Value> {
    let at = if io.has(2) { Some(number(io, 2)?) } else { None };
    let mut list = taken(io, 0)?;
    let value = io.take(1)?;
    let i = match at {
        Some(at) => position(at, list.len(), list.len())?,
        None => list.len(),
    };
    list.insert(i, value);
    Ok(Value::Sequence(list))
}

/// The sequence without the value at a position, or without its last.
pub(in crate::ops) static SEQUENCE_ERASE: OpDef = OpDef {
    name: "SequenceErase",
    inputs: &[LIST, Port::optional("position", INDICES)],
    prepare: |_| Ok(Box::new(Simple(erase))),
    cases: || {
        vec![nested(
            "SequenceErase",
            |g, s| {
                let first = g.constant(Tensor::scalar(0_i64))?;
                let s = g.op("SequenceErase", &[s, first], &[])?;
                g.op("SequenceAt", &[s, first], &[])
            },
            8,
        )]
    },
    ..BASE
};

fn erase(io: &mut Io<'_>) -> Result<Value> {
    let at = if io.has(1) { number(io, 1)? } else { -1 };
    let mut list = taken(io, 0)?;
    let i = position(at, list.len(), list.len().saturating_sub(1))?;
    if i >= list.len() {
        bail!(Shape, "there is nothing to erase in a sequence of nothing");
    }
    list.remove(i);
    Ok(Value::Sequence(list))
}

/// How many values there are.
pub(in crate::ops) static SEQUENCE_LENGTH: OpDef = OpDef {
    name: "SequenceLength",
    inputs: &[LIST],
    outputs: &[Port::required("length", I64S)],
    infer: |i| {
        i.set(0, Some(DType::I64), Some(Vec::<Dim>::new()));
        Ok(())
    },
    prepare: |_| {
        Ok(Box::new(Simple(|io| {
            Ok(Tensor::scalar(i64::try_from(sequence(io, 0)?.len()).unwrap_or(i64::MAX)).into())
        })))
    },
    cases: || vec![nested("SequenceLength", |g, s| g.op("SequenceLength", &[s], &[]), 2)],
    ..BASE
};

/// A case runs one operator on tensors; what is done with a sequence of 7 and 8 stands in the
/// branches of an `If`.
pub(in crate::ops) fn nested(
    name: &str,
    build: fn(&mut GraphBuilder, ValueId) -> Result<ValueId>,
    want: i64,
) -> Case {
    let graph = || {
        let mut g = GraphBuilder::new("branch");
        let inputs = [g.input("a", DType::I64, []), g.input("b", DType::I64, [])];
        let [a, b] = inputs;
        let s = g.apply("SequenceConstruct", &[Some(a?), Some(b?)], &[], 1)?[0];
        let y = build(&mut g, s)?;
        g.finish([("y", y)])
    };
    branches(name, graph(), want)
}

/// As [`nested`], without the sequence.
pub(in crate::ops) fn without(
    name: &str,
    build: fn(&mut GraphBuilder, ValueId, ValueId) -> Result<ValueId>,
    want: i64,
) -> Case {
    let graph = || {
        let mut g = GraphBuilder::new("branch");
        let (a, b) = (g.input("a", DType::I64, [])?, g.input("b", DType::I64, [])?);
        let y = build(&mut g, a, b)?;
        g.finish([("y", y)])
    };
    branches(name, graph(), want)
}

fn branches(name: &str, graph: Result<crate::graph::Graph>, want: i64) -> Case {
    let graph = graph.unwrap_or_default();
    Case::new("If", 16, name)
        .attr("then_branch", graph.clone())
        .attr("else_branch", graph)
        .input(filled(&[], &[true]))
        .input(Tensor::scalar(7_i64))
        .input(Tensor::scalar(8_i64))
        .captures(2)
        .output(Tensor::scalar(want))
}
