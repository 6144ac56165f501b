//! Values that may be absent.

use super::edit::without;
use crate::error::{Result, bail};
use crate::graph::Dim;
use crate::ops::def::types::{BOOLS, STORED};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, Value};

/// The input as an optional; without one, an optional that is absent.
pub(in crate::ops) static OPTIONAL: OpDef = OpDef {
    name: "Optional",
    domain: "",
    since: 15,
    attributes: &[AttributeDef::optional("type", AttributeKind::String)],
    inputs: &[Port::optional("input", STORED)],
    outputs: &[Port::required("output", STORED)],
    infer: |_| Ok(()),
    batch: batch::mixes,
    cost: cost::free,
    prepare: |_| Ok(Box::new(Wrap)),
    cases: || {
        vec![
            without(
                "absent",
                |g, _, _| {
                    let o = g.apply("Optional", &[], &[], 1)?[0];
                    let has = g.op("OptionalHasElement", &[o], &[])?;
                    g.op("Cast", &[has], &[("to", 7.into())])
                },
                0,
            ),
            without(
                "present",
                |g, a, _| {
                    let o = g.op("Optional", &[a], &[])?;
                    let has = g.op("OptionalHasElement", &[o], &[])?;
                    g.op("Cast", &[has], &[("to", 7.into())])
                },
                1,
            ),
        ]
    },
};

#[derive(Debug)]
struct Wrap;

impl CpuKernel for Wrap {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let inner = if io.has(0) { Some(Box::new(io.take(0)?)) } else { None };
        io.emit(Value::Optional(inner));
        Ok(())
    }
}

/// What is in an optional; what is no optional stays as it is.
pub(in crate::ops) static OPTIONAL_GET_ELEMENT: OpDef = OpDef {
    name: "OptionalGetElement",
    domain: "",
    since: 15,
    attributes: &[],
    inputs: &[Port::required("input", STORED)],
    outputs: &[Port::required("output", STORED)],
    infer: |i| {
        i.set(0, i.dtype(0), i.shape(0));
        Ok(())
    },
    batch: batch::mixes,
    cost: cost::free,
    prepare: |_| Ok(Box::new(Unwrap)),
    cases: || {
        vec![without(
            "OptionalGetElement",
            |g, a, _| {
                let o = g.op("Optional", &[a], &[])?;
                g.op("OptionalGetElement", &[o], &[])
            },
            7,
        )]
    },
};

#[derive(Debug)]
struct Unwrap;

impl CpuKernel for Unwrap {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        match io.take(0)? {
            Value::Optional(Some(inner)) => io.emit(*inner),
            Value::Optional(None) => bail!(Kernel, "the optional is absent"),
            other => io.emit(other),
        }
        Ok(())
    }
}

/// Whether an optional is present; what is no optional is.
pub(in crate::ops) static OPTIONAL_HAS_ELEMENT: OpDef = OpDef {
    name: "OptionalHasElement",
    domain: "",
    since: 15,
    attributes: &[],
    inputs: &[Port::optional("input", STORED)],
    outputs: &[Port::required("output", BOOLS)],
    infer: |i| {
        i.set(0, Some(DType::Bool), Some(Vec::<Dim>::new()));
        Ok(())
    },
    batch: |q| q.everywhere(None),
    cost: cost::free,
    prepare: |_| Ok(Box::new(Has)),
    cases: || {
        vec![without(
            "no optional at all",
            |g, a, _| {
                let has = g.op("OptionalHasElement", &[a], &[])?;
                g.op("Cast", &[has], &[("to", 7.into())])
            },
            1,
        )]
    },
};

#[derive(Debug)]
struct Has;

impl CpuKernel for Has {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let has = io.has(0) && !matches!(io.value(0)?, Value::Optional(None));
        io.emit(Tensor::scalar(has));
        Ok(())
    }
}
