//! `Constant`, for graphs that are built by hand: files have their constants as values.

use super::case::{Case, of};
use super::def::types::STORED;
use super::infer::Known;
use super::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, cost};
use crate::error::{Result, bail};
use crate::graph::{Attribute, Node};
use crate::tensor::Tensor;

/// The tensor that one of its attributes holds.
pub(super) static CONSTANT: OpDef = OpDef {
    name: "Constant",
    domain: "",
    since: 1,
    attributes: &[
        AttributeDef::optional("value", AttributeKind::Tensor),
        AttributeDef::optional("value_float", AttributeKind::Float),
        AttributeDef::optional("value_floats", AttributeKind::Floats),
        AttributeDef::optional("value_int", AttributeKind::Int),
        AttributeDef::optional("value_ints", AttributeKind::Ints),
        AttributeDef::optional("value_string", AttributeKind::String),
        AttributeDef::optional("value_strings", AttributeKind::Strings),
    ],
    inputs: &[],
    outputs: &[Port::required("output", STORED)],
    infer: |i| {
        let value = value(i.node)?;
        i.set_known(0, Known::constant(&value));
        Ok(())
    },
    batch: |q| q.everywhere(None),
    cost: cost::free,
    prepare: |p| Ok(Box::new(Constant { value: value(p.node)? })),
    cases,
};

/// The tensor that the attributes hold.
fn value(node: &Node) -> Result<Tensor> {
    let mut given = node.attributes.iter();
    let (Some((_, attribute)), None) = (given.next(), given.next()) else {
        bail!(Graph, "Constant needs exactly one attribute, it has {}", node.attributes.len());
    };
    match attribute {
        Attribute::Tensor(t) => Ok(t.clone()),
        Attribute::Int(v) => Ok(Tensor::scalar(*v)),
        Attribute::Float(v) => Ok(Tensor::scalar(*v)),
        Attribute::Ints(v) => Ok(Tensor::of_i64(v)),
        Attribute::Floats(v) => Tensor::from_slice([v.len()], v),
        Attribute::String(v) => Tensor::from_strings([], vec![v.clone()]),
        Attribute::Strings(v) => Tensor::from_strings([v.len()], v.clone()),
        other => bail!(Graph, "a Constant cannot hold a value of kind {}", other.kind()),
    }
}

#[derive(Debug)]
struct Constant {
    value: Tensor,
}

impl CpuKernel for Constant {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        io.emit(self.value.clone());
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    let new = |name| Case::new("Constant", 13, name);
    let x = of(&[2, 1], vec![1.5_f32, -2.0]);
    vec![
        new("tensor").attr("value", x.clone()).output(x),
        new("int").attr("value_int", 16_777_217).output(Tensor::scalar(16_777_217_i64)),
        new("floats").attr("value_floats", vec![0.5_f32]).output(of(&[1], vec![0.5_f32])),
    ]
}
