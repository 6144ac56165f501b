//! What an operator is: the row of the table.

use super::batch::{BatchFlow, BatchQuery};
use super::case::Case;
use super::cost::{Cost, CostQuery};
use super::{CpuKernel, Infer, Prepare};
use crate::error::Result;
use crate::graph::{Attribute, Node};
use crate::tensor::DType;

/// An operator: everything that the rest of the crate knows of it.
#[derive(Debug)]
pub struct OpDef {
    /// The name, as in ONNX.
    pub name: &'static str,
    /// The domain; empty for ai.onnx.
    pub domain: &'static str,
    /// The first operator-set version whose meaning is implemented.
    pub since: i64,
    /// The attributes that are understood; any other one on a node is reported.
    pub attributes: &'static [AttributeDef],
    /// The inputs, in order.
    pub inputs: &'static [Port],
    /// The outputs, in order.
    pub outputs: &'static [Port],
    /// Shape inference: sets the outputs' facts from the inputs'.
    pub infer: fn(&mut Infer<'_>) -> Result<()>,
    /// How a batch axis passes through.
    pub batch: fn(&BatchQuery<'_>) -> BatchFlow,
    /// What one application costs.
    pub cost: fn(&CostQuery<'_>) -> Cost,
    /// Makes the CPU kernel of a node: reads attributes, packs constant weights.
    pub prepare: fn(&Prepare<'_>) -> Result<Box<dyn CpuKernel>>,
    /// Test cases that every device runs.
    pub cases: fn() -> Vec<Case>,
}

/// An attribute that an operator understands.
#[derive(Clone, Copy, Debug)]
pub struct AttributeDef {
    /// The name.
    pub name: &'static str,
    /// The kind.
    pub kind: AttributeKind,
    /// Whether it must be given.
    pub required: bool,
    /// The last operator-set version that knows it.
    pub until: i64,
}

impl AttributeDef {
    /// An attribute that may be left out.
    pub const fn optional(name: &'static str, kind: AttributeKind) -> Self {
        Self { name, kind, required: false, until: i64::MAX }
    }

    /// An attribute that must be given.
    pub const fn required(name: &'static str, kind: AttributeKind) -> Self {
        Self { name, kind, required: true, until: i64::MAX }
    }

    /// The same, known to operator-set versions up to `version` only.
    #[must_use]
    pub const fn until(self, version: i64) -> Self {
        Self { until: version, ..self }
    }
}

/// The kind of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum AttributeKind {
    Int,
    Float,
    String,
    Tensor,
    Graph,
    Ints,
    Floats,
    Strings,
}

impl AttributeKind {
    fn admits(self, attribute: &Attribute) -> bool {
        matches!(
            (self, attribute),
            (Self::Int, Attribute::Int(_))
                | (Self::Float, Attribute::Float(_))
                | (Self::String, Attribute::String(_))
                | (Self::Tensor, Attribute::Tensor(_))
                | (Self::Graph, Attribute::Graph(_))
                | (Self::Ints, Attribute::Ints(_))
                | (Self::Floats, Attribute::Floats(_))
                | (Self::Strings, Attribute::Strings(_))
        )
    }
}

/// An input or output of an operator.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    /// The name in the operator's specification.
    pub name: &'static str,
    /// The dtypes that are implemented.
    pub types: &'static [DType],
    /// Whether it must be there.
    pub kind: PortKind,
}

/// Whether an input or output must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortKind {
    /// It must be there.
    Required,
    /// It may be left out.
    Optional,
    /// It is the last one and may come any number of times (at least the given one).
    Variadic(usize),
}

impl Port {
    /// A port that must be there.
    pub const fn required(name: &'static str, types: &'static [DType]) -> Self {
        Self { name, types, kind: PortKind::Required }
    }

    /// A port that may be left out.
    pub const fn optional(name: &'static str, types: &'static [DType]) -> Self {
        Self { name, types, kind: PortKind::Optional }
    }

    /// The last port, at least `least` times.
    pub const fn variadic(name: &'static str, types: &'static [DType], least: usize) -> Self {
        Self { name, types, kind: PortKind::Variadic(least) }
    }
}

/// Groups of dtypes for [`Port::types`].
pub mod types {
    use crate::tensor::DType::{self, *};

    /// Every dtype that tensors can hold and kernels compute with.
    pub const ALL: &[DType] = DType::WORKING;
    /// Every dtype, strings too: for operators that only move elements.
    pub const ANY: &[DType] =
        &[F32, F16, BF16, F64, I8, I16, I32, I64, U8, U16, U32, U64, Bool, String];
    /// Every dtype but the complex ones, also the narrow ones that are only stored and converted.
    pub const STORED: &[DType] = &[
        F32, F16, BF16, F64, I8, I16, I32, I64, U8, U16, U32, U64, Bool, String, F8E4M3FN,
        F8E4M3FNUZ, F8E5M2, F8E5M2FNUZ, U4, I4, F4E2M1,
    ];
    /// Strings alone.
    pub const STRINGS: &[DType] = &[String];
    /// Numbers.
    pub const NUMBERS: &[DType] = &[F32, F16, BF16, F64, I8, I16, I32, I64, U8, U16, U32, U64];
    /// Floats.
    pub const FLOATS: &[DType] = &[F32, F16, BF16, F64];
    /// Whole numbers.
    pub const INTS: &[DType] = &[I8, I16, I32, I64, U8, U16, U32, U64];
    /// f32 alone.
    pub const F32S: &[DType] = &[F32];
    /// Indices: i32 and i64.
    pub const INDICES: &[DType] = &[I32, I64];
    /// i64 alone, as shapes, axes and pads are given.
    pub const I64S: &[DType] = &[I64];
    /// bool alone.
    pub const BOOLS: &[DType] = &[Bool];
}

impl OpDef {
    /// The port that input `i` goes to.
    pub fn input(&self, i: usize) -> Option<&Port> {
        port(self.inputs, i)
    }

    /// The port that output `i` comes from.
    pub fn output(&self, i: usize) -> Option<&Port> {
        port(self.outputs, i)
    }

    /// Why this operator cannot run `node` whose inputs have these dtypes (`None`: unknown).
    ///
    /// # Errors
    /// Words that name the version, attribute, input or dtype.
    pub fn check(&self, node: &Node, dtypes: &[Option<DType>]) -> Result<(), String> {
        let mut faults = Vec::new();
        if node.version == Node::UNDECLARED {
            faults.push(super::registry::undeclared(&node.domain));
        } else if node.version < self.since {
            return Err(format!(
                "operator set {} is older than {}, the first one implemented",
                node.version, self.since
            ));
        }
        for (name, value) in &node.attributes {
            let mut known = self.attributes.iter().filter(|a| a.name == name);
            let last = known.clone().map(|a| a.until).max();
            let current = |a: &&AttributeDef| node.version <= a.until;
            match known.clone().find(|a| current(a) && a.kind.admits(value)).or(known.find(current))
            {
                None => faults.push(match last {
                    None => format!("attribute `{name}` is not known"),
                    Some(last) => format!(
                        "attribute `{name}` is of operator sets up to {last}, not {}",
                        node.version
                    ),
                }),
                Some(def) if !def.kind.admits(value) => {
                    faults.push(format!(
                        "attribute `{name}` is of kind {}, expected {:?}",
                        value.kind(),
                        def.kind
                    ));
                }
                Some(_) => {}
            }
        }
        for def in self.attributes.iter().filter(|d| d.required) {
            if !node.attributes.contains_key(def.name) {
                faults.push(format!("attribute `{}` is missing", def.name));
            }
        }
        if !faults.is_empty() {
            return Err(faults.join("; "));
        }
        let given = node.inputs.len() - node.captures.min(node.inputs.len());
        for (i, input) in node.inputs[..given].iter().enumerate() {
            let Some(port) = self.input(i) else {
                return Err(format!("input {i} is one too many"));
            };
            if input.is_none() && port.kind == PortKind::Required {
                return Err(format!("input `{}` is missing", port.name));
            }
            if let Some(d) = dtypes.get(i).copied().flatten()
                && !port.types.contains(&d)
            {
                return Err(format!("input `{}` of dtype {d} is not implemented", port.name));
            }
        }
        for (i, port) in self.inputs.iter().enumerate().skip(given) {
            let least = match port.kind {
                PortKind::Required => 1,
                PortKind::Optional => 0,
                PortKind::Variadic(n) => n.saturating_sub(given - i.min(given)),
            };
            if least > 0 {
                return Err(format!("input `{}` is missing", port.name));
            }
        }
        if node.outputs.len() > self.outputs.len()
            && !matches!(self.outputs.last(), Some(Port { kind: PortKind::Variadic(_), .. }))
        {
            return Err(format!(
                "it has {} outputs, {} known",
                node.outputs.len(),
                self.outputs.len()
            ));
        }
        Ok(())
    }
}

fn port(ports: &'static [Port], i: usize) -> Option<&'static Port> {
    ports.get(i).or_else(|| ports.last().filter(|p| matches!(p.kind, PortKind::Variadic(_))))
}

#[cfg(test)]
mod tests {
    use crate::graph::{Attribute, Fact, Graph};
    use crate::ops::OpRegistry;

    /// What the check says of an `Add` of this version with the attribute.
    fn check(version: i64, attribute: (&str, Attribute)) -> Result<(), String> {
        let mut graph = Graph::new("g");
        let a = graph.add_input("a", Fact::unknown()).unwrap();
        let y = graph.add_value("y", Fact::unknown()).unwrap();
        let node = graph.add_node("add", "Add", [Some(a), Some(a)], [Some(y)]);
        node.version = version;
        node.attributes.insert(attribute.0.to_owned(), attribute.1);
        OpRegistry::default().get("", "Add").unwrap().check(&graph.nodes()[0], &[None, None])
    }

    #[test]
    fn an_attribute_ends_with_its_last_version() {
        assert_eq!(check(6, ("broadcast", 1i64.into())), Ok(()));
        let late = check(7, ("broadcast", 1i64.into())).unwrap_err();
        assert!(late.contains("operator sets up to 6, not 7"), "{late}");
        let kind = check(6, ("broadcast", 1f32.into())).unwrap_err();
        assert!(kind.contains("expected Int"), "{kind}");
        let unknown = check(6, ("sideways", 1i64.into())).unwrap_err();
        assert!(unknown.contains("`sideways` is not known"), "{unknown}");
    }
}
