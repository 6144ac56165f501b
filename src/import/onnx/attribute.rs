//! `AttributeProto` messages.

use std::rc::Rc;

use super::graph::Captured;
use super::pb::attribute_proto::AttributeType;
use super::{Importer, Opsets, pb, sparse, tensor};
use crate::error::{Result, bail, err};
use crate::graph::{Attribute, Graph};
use crate::tensor::Tensor;

/// An attribute that was read.
pub(super) enum Read {
    Plain(Attribute),
    /// A subgraph and what it takes from around it.
    Subgraph(Graph, Captured),
    /// Nothing that a graph can hold; it was noted.
    Unsupported,
}

/// The kind of an attribute; early writers left it out.
pub(super) fn kind_of(a: &pb::AttributeProto) -> AttributeType {
    match a.r#type.map(AttributeType::try_from) {
        Some(Ok(kind)) if kind != AttributeType::Undefined => kind,
        _ if a.f.is_some() => AttributeType::Float,
        _ if a.i.is_some() => AttributeType::Int,
        _ if a.s.is_some() => AttributeType::String,
        _ if a.t.is_some() => AttributeType::Tensor,
        _ if a.g.is_some() => AttributeType::Graph,
        _ if a.tp.is_some() => AttributeType::TypeProto,
        _ if a.sparse_tensor.is_some() => AttributeType::SparseTensor,
        _ if !a.floats.is_empty() => AttributeType::Floats,
        _ if !a.ints.is_empty() => AttributeType::Ints,
        _ if !a.strings.is_empty() => AttributeType::Strings,
        _ if !a.tensors.is_empty() => AttributeType::Tensors,
        _ => AttributeType::Undefined,
    }
}

/// A type in words, such as `seq(tensor(float))`.
fn type_text(proto: Option<&pb::TypeProto>) -> String {
    use pb::type_proto::Value;
    match proto.and_then(|t| t.value.as_ref()) {
        Some(Value::TensorType(t)) => {
            format!("tensor({})", tensor::type_name(t.elem_type.unwrap_or(0)))
        }
        Some(Value::SequenceType(s)) => format!("seq({})", type_text(s.elem_type.as_deref())),
        Some(Value::OptionalType(o)) => format!("optional({})", type_text(o.elem_type.as_deref())),
        _ => "unknown".to_owned(),
    }
}

impl Importer<'_> {
    /// Reads the attribute `name`. Its faults are told of `name` by the caller.
    pub(super) fn attribute(
        &mut self,
        a: pb::AttributeProto,
        opsets: &Rc<Opsets>,
        node: &str,
    ) -> Result<Read> {
        if a.ref_attr_name.as_deref().is_some_and(|n| !n.is_empty()) {
            bail!(Format, "it refers to an attribute of a function, but is in none");
        }
        let kind = kind_of(&a);
        let name = a.name.unwrap_or_default();
        // A field that holds its default may be left out on the wire.
        let plain = match kind {
            AttributeType::Float => Attribute::Float(a.f.unwrap_or(0.0)),
            AttributeType::Int => Attribute::Int(a.i.unwrap_or(0)),
            AttributeType::Floats => Attribute::Floats(a.floats),
            AttributeType::Ints => Attribute::Ints(a.ints),
            AttributeType::String => match tensor::text(&a.s.unwrap_or_default()) {
                Ok(s) => Attribute::String(s),
                Err(e) => return self.unsupported_attribute(&name, node, e.message()),
            },
            AttributeType::Strings => {
                match a.strings.iter().map(|s| tensor::text(s)).collect::<Result<_>>() {
                    Ok(strings) => Attribute::Strings(strings),
                    Err(e) => return self.unsupported_attribute(&name, node, e.message()),
                }
            }
            AttributeType::Tensor => {
                let t = a.t.ok_or_else(|| err!(Format, "it has no tensor"))?;
                match self.tensor(t, &|| format!("attribute `{name}` of node `{node}`"))? {
                    Some(t) => Attribute::Tensor(t),
                    None => return Ok(Read::Unsupported),
                }
            }
            AttributeType::Tensors => {
                let mut all = Vec::with_capacity(a.tensors.len());
                for t in a.tensors {
                    let what = || format!("attribute `{name}` of node `{node}`");
                    match self.tensor(t, &what)? {
                        Some(t) => all.push(t),
                        None => return Ok(Read::Unsupported),
                    }
                }
                Attribute::Tensors(all)
            }
            AttributeType::Graph => {
                let g = a.g.ok_or_else(|| err!(Format, "it has no graph"))?;
                let (graph, captured) = self.build(g, opsets)?;
                return Ok(Read::Subgraph(graph, captured));
            }
            AttributeType::TypeProto => Attribute::String(type_text(a.tp.as_ref())),
            AttributeType::Undefined => bail!(Format, "it has no value"),
            AttributeType::SparseTensor => {
                let t = a.sparse_tensor.ok_or_else(|| err!(Format, "it has no tensor"))?;
                match self.sparse(t, &|| format!("attribute `{name}` of node `{node}`"))? {
                    Some(t) => Attribute::Tensor(t),
                    None => return Ok(Read::Unsupported),
                }
            }
            AttributeType::Graphs | AttributeType::SparseTensors | AttributeType::TypeProtos => {
                let what = format!("of kind {}", kind.as_str_name().to_lowercase());
                return self.unsupported_attribute(&name, node, &what);
            }
        };
        Ok(Read::Plain(plain))
    }

    fn unsupported_attribute(&mut self, name: &str, node: &str, why: &str) -> Result<Read> {
        self.unsupported.push(format!("attribute `{name}` of node `{node}`: {why}"));
        Ok(Read::Unsupported)
    }

    /// The tensor in a message; `None` if it is one that cannot be read, which is noted.
    pub(super) fn tensor(
        &mut self,
        proto: pb::TensorProto,
        what: &dyn Fn() -> String,
    ) -> Result<Option<Tensor>> {
        let read = tensor::read(proto, &mut self.weights, self.limits);
        self.counted(read, what)
    }

    /// The same of a sparse tensor.
    pub(super) fn sparse(
        &mut self,
        proto: pb::SparseTensorProto,
        what: &dyn Fn() -> String,
    ) -> Result<Option<Tensor>> {
        let read = sparse::read(proto, &mut self.weights, self.limits);
        self.counted(read, what)
    }

    fn counted(
        &mut self,
        read: Result<Tensor>,
        what: &dyn Fn() -> String,
    ) -> Result<Option<Tensor>> {
        match read {
            Ok(t) => {
                self.count_constant(&t)?;
                Ok(Some(t))
            }
            Err(e) if e.kind() == crate::ErrorKind::Unsupported => {
                self.unsupported.push(format!("{}: {}", what(), e.message()));
                Ok(None)
            }
            Err(e) => Err(e.within(&what())),
        }
    }

    /// What a `Constant` node makes; `None` if it cannot be read, which is noted.
    pub(super) fn constant(
        &mut self,
        attributes: Vec<pb::AttributeProto>,
        node: &str,
    ) -> Result<Option<Tensor>> {
        let mut found = None;
        for a in attributes {
            let name = a.name.clone().unwrap_or_default();
            let value = match self.attribute(a, &Rc::default(), node)? {
                Read::Plain(value) => value,
                Read::Unsupported => return Ok(None),
                Read::Subgraph(..) => bail!(Format, "attribute `{name}` is a graph"),
            };
            let tensor = match (name.as_str(), value) {
                ("value" | "sparse_value", Attribute::Tensor(t)) => t,
                ("value_int", Attribute::Int(v)) => Tensor::scalar(v),
                ("value_ints", Attribute::Ints(v)) => Tensor::of_i64(&v),
                ("value_float", Attribute::Float(v)) => Tensor::scalar(v),
                ("value_floats", Attribute::Floats(v)) => Tensor::from_slice([v.len()], &v)?,
                ("value_string", Attribute::String(v)) => Tensor::from_strings([0; 0], vec![v])?,
                ("value_strings", Attribute::Strings(v)) => Tensor::from_strings([v.len()], v)?,
                (_, other) => {
                    bail!(Format, "attribute `{name}` of kind {} is no constant", other.kind())
                }
            };
            if found.replace(tensor).is_some() {
                bail!(Format, "it has more than one value");
            }
        }
        match found {
            Some(t) => Ok(Some(t)),
            None => bail!(Format, "it has no value"),
        }
    }
}
