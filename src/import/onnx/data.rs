//! The test data of the ONNX project: a model beside folders of serialised inputs and outputs.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use prost::Message;

use super::external::Weights;
use super::{domain_of, pb, tensor, wire};
use crate::error::{Result, bail, err};
use crate::import::{Limits, read_file};
use crate::tensor::{DType, Tensor, Value};

/// A test: a model with one or more sets of inputs and expected outputs.
///
/// ```no_run
/// use brigade::import::onnx::TestModel;
/// let test = TestModel::open("onnx/backend/test/data/node/test_add".as_ref())?;
/// let (inputs, outputs) = test.read_set(&test.sets()?[0], &Default::default())?;
/// assert_eq!((inputs.len(), outputs.len()), (2, 1));
/// # Ok::<(), brigade::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TestModel {
    folder: PathBuf,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    operators: BTreeSet<String>,
}

/// An input or output as the model declares it.
#[derive(Clone, Debug)]
struct Port {
    name: String,
    declared: Declared,
}

/// What the file of a value holds.
#[derive(Clone, Debug)]
enum Declared {
    Tensor(Option<DType>),
    Sequence(Box<Self>),
    Optional(Box<Self>),
    Other(&'static str),
}

impl Declared {
    fn of(proto: Option<&pb::TypeProto>) -> Self {
        use pb::type_proto::Value;
        let inner = |t: &Option<Box<pb::TypeProto>>| Box::new(Self::of(t.as_deref()));
        match proto.and_then(|t| t.value.as_ref()) {
            None => Self::Tensor(None),
            Some(Value::TensorType(t)) => Self::Tensor(t.elem_type.and_then(DType::from_onnx)),
            Some(Value::SequenceType(s)) => Self::Sequence(inner(&s.elem_type)),
            Some(Value::OptionalType(o)) => Self::Optional(inner(&o.elem_type)),
            Some(Value::MapType(_)) => Self::Other("a map"),
            Some(Value::SparseTensorType(_)) => Self::Other("a sparse tensor"),
            Some(_) => Self::Other("an opaque value"),
        }
    }
}

/// `SequenceProto` of onnx-data.proto, without maps and sparse tensors.
#[derive(Clone, PartialEq, prost::Message)]
struct SequenceProto {
    #[prost(message, repeated, tag = "3")]
    tensor_values: Vec<pb::TensorProto>,
    #[prost(message, repeated, tag = "5")]
    sequence_values: Vec<SequenceProto>,
    #[prost(message, repeated, tag = "7")]
    optional_values: Vec<OptionalProto>,
}

/// `OptionalProto` of onnx-data.proto, without maps and sparse tensors.
#[derive(Clone, PartialEq, prost::Message)]
struct OptionalProto {
    #[prost(string, optional, tag = "1")]
    name: Option<String>,
    #[prost(int32, optional, tag = "2")]
    elem_type: Option<i32>,
    #[prost(message, optional, tag = "3")]
    tensor_value: Option<pb::TensorProto>,
    #[prost(message, optional, tag = "5")]
    sequence_value: Option<SequenceProto>,
    #[prost(message, optional, boxed, tag = "7")]
    optional_value: Option<Box<OptionalProto>>,
}

impl OptionalProto {
    fn holds(&self) -> bool {
        self.tensor_value.is_some()
            || self.sequence_value.is_some()
            || self.optional_value.is_some()
    }
}

impl TestModel {
    /// The name of the model's file.
    pub const MODEL: &'static str = "model.onnx";

    /// Looks at the test in a folder.
    ///
    /// # Errors
    /// If its `model.onnx` cannot be read or is no model.
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(Self::MODEL);
        let within = |e: crate::Error| e.within(&format!("`{}`", path.display()));
        let limits = Limits::default();
        let bytes = read_file(&path, &limits).map_err(within)?;
        wire::check(&bytes, limits.max_bytes).map_err(within)?;
        let model = pb::ModelProto::decode(bytes)
            .map_err(|e| within(err!(Format, "is no ONNX model").with_source(e)))?;
        let graph = model.graph.unwrap_or_default();
        let ports = |all: &[pb::ValueInfoProto]| {
            let port = |v: &pb::ValueInfoProto| Port {
                name: v.name.clone().unwrap_or_default(),
                declared: Declared::of(v.r#type.as_ref()),
            };
            all.iter().map(port).collect()
        };
        let mut operators = BTreeSet::new();
        let mut waiting = vec![&graph];
        while let Some(graph) = waiting.pop() {
            for node in &graph.node {
                let domain = domain_of(node.domain.as_deref());
                let op = node.op_type.as_deref().unwrap_or_default();
                operators.insert(if domain.is_empty() {
                    op.to_owned()
                } else {
                    format!("{domain}.{op}")
                });
                waiting.extend(node.attribute.iter().filter_map(|a| a.g.as_ref()));
            }
        }
        Ok(Self {
            folder: folder.to_owned(),
            inputs: ports(&graph.input),
            outputs: ports(&graph.output),
            operators,
        })
    }

    /// The model's file.
    pub fn path(&self) -> PathBuf {
        self.folder.join(Self::MODEL)
    }

    /// The operators that the model uses, subgraphs included; those of other domains than ai.onnx
    /// with their domain.
    pub fn operators(&self) -> impl Iterator<Item = &str> {
        self.operators.iter().map(String::as_str)
    }

    /// Whether all operators are of ai.onnx, and all inputs and outputs are tensors of f32, f64,
    /// f16, i8, u8, i32, i64 or bool.
    pub fn is_standard(&self) -> bool {
        use DType::{Bool, F16, F32, F64, I8, I32, I64, U8};
        let usual = |p: &Port| match &p.declared {
            Declared::Tensor(Some(d)) => matches!(d, F32 | F64 | F16 | I8 | U8 | I32 | I64 | Bool),
            _ => false,
        };
        self.inputs.iter().chain(&self.outputs).all(usual)
            && !self.operators.iter().any(|o| o.contains('.'))
    }

    /// The folders of inputs and outputs, by name.
    ///
    /// # Errors
    /// If the folder cannot be read, or has none.
    pub fn sets(&self) -> Result<Vec<PathBuf>> {
        let mut sets = Vec::new();
        for entry in std::fs::read_dir(&self.folder)? {
            let path = entry?.path();
            let is_set =
                path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("test_data_set"));
            if is_set && path.is_dir() {
                sets.push(path);
            }
        }
        if sets.is_empty() {
            bail!(Missing, "`{}` has no folder `test_data_set_0`", self.folder.display());
        }
        sets.sort();
        Ok(sets)
    }

    /// The inputs and the expected outputs of a set, each with the name that the model gives it.
    ///
    /// # Errors
    /// If a file is damaged or holds what no value here can, or there are more files than the
    /// model has inputs or outputs.
    pub fn read_set(
        &self,
        set: &Path,
        limits: &Limits,
    ) -> Result<(Vec<(String, Value)>, Vec<(String, Value)>)> {
        let read = |kind: &str, ports: &[Port]| -> Result<Vec<(String, Value)>> {
            let mut all = Vec::new();
            for k in 0.. {
                let path = set.join(format!("{kind}_{k}.pb"));
                if path.symlink_metadata().is_err() {
                    break;
                }
                let Some(port) = ports.get(k) else {
                    bail!(Format, "`{}` is one more than the model has", path.display());
                };
                let value = read_value(&path, &port.declared, limits)
                    .map_err(|e| e.within(&format!("`{}`", path.display())))?;
                all.push((port.name.clone(), value));
            }
            Ok(all)
        };
        Ok((read("input", &self.inputs)?, read("output", &self.outputs)?))
    }
}

fn read_value(path: &Path, declared: &Declared, limits: &Limits) -> Result<Value> {
    let bytes = read_file(path, limits)?;
    fn decode<M: Message + Default>(bytes: &[u8]) -> Result<M> {
        M::decode(bytes).map_err(|e| err!(Format, "is not what was declared").with_source(e))
    }
    match declared {
        Declared::Tensor(dtype) => {
            Ok(one(decode::<pb::TensorProto>(&bytes)?, *dtype, limits)?.into())
        }
        Declared::Sequence(of) => sequence(decode(&bytes)?, of, limits),
        Declared::Optional(of) => match decode::<OptionalProto>(&bytes) {
            Ok(proto) if proto.holds() || proto.elem_type.unwrap_or(0) == 0 => {
                optional(proto, of, limits)
            }
            // Some files hold the value itself.
            _ => Ok(Value::Optional(Some(Box::new(read_value(path, of, limits)?)))),
        },
        Declared::Other(what) => bail!(Unsupported, "holds {what}"),
    }
}

fn one(proto: pb::TensorProto, declared: Option<DType>, limits: &Limits) -> Result<Tensor> {
    let tensor =
        tensor::read(proto, &mut Weights::new(None, &crate::import::WeightCache::new()), limits)?;
    // Files hold bf16 as the whole numbers that its bits are.
    if declared == Some(DType::BF16) && tensor.dtype() == DType::U16 {
        return Tensor::from_bytes(DType::BF16, tensor.shape().clone(), tensor.as_bytes());
    }
    Ok(tensor)
}

fn sequence(proto: SequenceProto, of: &Declared, limits: &Limits) -> Result<Value> {
    let mut all = Vec::new();
    let dtype = if let Declared::Tensor(d) = of { *d } else { None };
    for t in proto.tensor_values {
        all.push(one(t, dtype, limits)?.into());
    }
    let inner = if let Declared::Sequence(i) | Declared::Optional(i) = of { i } else { of };
    for s in proto.sequence_values {
        all.push(sequence(s, inner, limits)?);
    }
    for o in proto.optional_values {
        all.push(optional(o, inner, limits)?);
    }
    Ok(Value::Sequence(all))
}

fn optional(proto: OptionalProto, of: &Declared, limits: &Limits) -> Result<Value> {
    let inner = if let Declared::Sequence(i) | Declared::Optional(i) = of { i } else { of };
    let dtype = if let Declared::Tensor(d) = of { *d } else { None };
    let value = match (proto.tensor_value, proto.sequence_value, proto.optional_value) {
        (Some(t), None, None) => Some(one(t, dtype, limits)?.into()),
        (None, Some(s), None) => Some(sequence(s, inner, limits)?),
        (None, None, Some(o)) => Some(optional(*o, inner, limits)?),
        (None, None, None) => None,
        _ => bail!(Format, "an optional holds more than one value"),
    };
    Ok(Value::Optional(value.map(Box::new)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(v: i64) -> pb::TensorProto {
        pb::TensorProto {
            data_type: Some(DType::I64 as i32),
            int64_data: vec![v],
            ..Default::default()
        }
    }

    #[test]
    fn sequences_and_optionals_are_read() {
        let limits = Limits::default();
        let list =
            SequenceProto { tensor_values: vec![tensor(1), tensor(2)], ..Default::default() };
        let of = Declared::Tensor(Some(DType::I64));
        let Value::Sequence(read) = sequence(list.clone(), &of, &limits).unwrap() else {
            panic!("no sequence");
        };
        assert_eq!(read, [Tensor::scalar(1_i64).into(), Tensor::scalar(2_i64).into()]);
        let o = OptionalProto { sequence_value: Some(list), ..Default::default() };
        let of = Declared::Sequence(Box::new(of));
        let read = optional(o, &of, &limits).unwrap();
        assert_eq!(
            read,
            Value::Optional(Some(Box::new(Value::Sequence(vec![
                Tensor::scalar(1_i64).into(),
                Tensor::scalar(2_i64).into()
            ]))))
        );
        assert_eq!(
            optional(OptionalProto::default(), &of, &limits).unwrap(),
            Value::Optional(None)
        );
    }

    #[test]
    fn whole_numbers_are_bf16_where_it_is_declared() {
        let proto = pb::TensorProto {
            data_type: Some(DType::U16 as i32),
            int32_data: vec![0x3F80],
            ..Default::default()
        };
        let read = one(proto, Some(DType::BF16), &Limits::default()).unwrap();
        assert_eq!(read.to_f32s().unwrap(), [1.0]);
    }
}
