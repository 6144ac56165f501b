//! The test data of the ONNX project: a model beside folders of serialised inputs and outputs, or
//! beside its outputs alone.

use std::collections::{BTreeSet, HashSet};
use std::path::{Path, PathBuf};

use prost::Message;

use super::external::Weights;
use super::{domain_of, pb, tensor, wire};
use crate::error::{Result, bail, err};
use crate::import::{Limits, read_file};
use crate::tensor::{DType, Tensor, Value, element_count};

/// A test: a model with one or more sets of inputs and expected outputs. It is a folder with a
/// `model.onnx` and folders `test_data_set_…`, or a file `NAME.onnx` beside `NAME_output_0.pb` (the
/// project's *light* models), whose inputs rise evenly from 0 to 1.
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
    /// The folder, or the model's file.
    place: PathBuf,
    path: PathBuf,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    operators: BTreeSet<String>,
}

/// An input or output as the model declares it.
#[derive(Clone, Debug)]
struct Port {
    name: String,
    declared: Declared,
    /// An input that has a value already: before IR version 4 all initialisers are inputs, too.
    has_default: bool,
    /// Its extents; those that are open are 1.
    shape: Vec<usize>,
}

impl Port {
    fn of(info: &pb::ValueInfoProto, initialisers: &HashSet<&str>) -> Self {
        use pb::tensor_shape_proto::dimension::Value;
        let name = info.name.clone().unwrap_or_default();
        let shape = match info.r#type.as_ref().and_then(|t| t.value.as_ref()) {
            Some(pb::type_proto::Value::TensorType(t)) => t.shape.as_ref(),
            _ => None,
        };
        let extent = |d: &pb::tensor_shape_proto::Dimension| match d.value {
            Some(Value::DimValue(n)) => usize::try_from(n).unwrap_or(1),
            _ => 1,
        };
        Self {
            has_default: initialisers.contains(name.as_str()),
            declared: Declared::of(info.r#type.as_ref()),
            shape: shape.map(|s| s.dim.iter().map(extent).collect()).unwrap_or_default(),
            name,
        }
    }

    /// A value that rises evenly from 0 to 1, as the project makes up for its light models.
    fn rising(&self) -> Result<Value> {
        if !matches!(self.declared, Declared::Tensor(Some(DType::F32))) {
            bail!(Unsupported, "input `{}` is no f32 tensor, and no data are there", self.name);
        }
        let n = element_count(&self.shape, 4)?;
        let rising = (0..n).map(|k| (k as f64 / n as f64) as f32).collect::<Vec<f32>>();
        Ok(Tensor::new(self.shape.clone(), rising)?.into())
    }
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

    /// Whether a file is a model beside its outputs.
    pub(crate) fn is_alone(path: &Path) -> bool {
        path.extension().is_some_and(|e| e == "onnx") && output_beside(path, 0).is_file()
    }

    /// Looks at the test in a folder, or at a model beside its outputs.
    ///
    /// # Errors
    /// If the model cannot be read or is none.
    pub fn open(place: &Path) -> Result<Self> {
        let path = if Self::is_alone(place) { place.to_owned() } else { place.join(Self::MODEL) };
        let within = |e: crate::Error| e.within(&format!("`{}`", path.display()));
        let limits = Limits::default();
        let bytes = read_file(&path, &limits).map_err(within)?;
        wire::check(&bytes, limits.max_bytes).map_err(within)?;
        let model = pb::ModelProto::decode(bytes)
            .map_err(|e| within(err!(Format, "is no ONNX model").with_source(e)))?;
        let graph = model.graph.unwrap_or_default();
        let dense = graph.initializer.iter().filter_map(|t| t.name.as_deref());
        let values = graph.sparse_initializer.iter().filter_map(|s| s.values.as_ref());
        let sparse = values.filter_map(|t| t.name.as_deref());
        let initialisers: HashSet<&str> = dense.chain(sparse).collect();
        let ports = |all: &[pb::ValueInfoProto]| -> Vec<Port> {
            all.iter().map(|v| Port::of(v, &initialisers)).collect()
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
        let (inputs, outputs) = (ports(&graph.input), ports(&graph.output));
        Ok(Self { place: place.to_owned(), path, inputs, outputs, operators })
    }

    /// The model's file.
    pub fn path(&self) -> &Path {
        &self.path
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

    /// The folders of inputs and outputs, by name; of a model beside its outputs, its file.
    ///
    /// # Errors
    /// If the folder cannot be read, or has none.
    pub fn sets(&self) -> Result<Vec<PathBuf>> {
        if self.place == self.path {
            return Ok(vec![self.path.clone()]);
        }
        let mut sets = Vec::new();
        for entry in std::fs::read_dir(&self.place)? {
            let path = entry?.path();
            let is_set =
                path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("test_data_set"));
            if is_set && path.is_dir() {
                sets.push(path);
            }
        }
        if sets.is_empty() {
            bail!(Missing, "`{}` has no folder `test_data_set_0`", self.place.display());
        }
        sets.sort();
        Ok(sets)
    }

    /// The inputs and the expected outputs of a set, each with the name that the model gives it.
    /// Inputs that have a default may be left out: where the set has fewer files, they are those of
    /// the other inputs.
    ///
    /// # Errors
    /// If a file is damaged or holds what no value here can, or there are more files than the
    /// model has inputs or outputs.
    pub fn read_set(
        &self,
        set: &Path,
        limits: &Limits,
    ) -> Result<(Vec<(String, Value)>, Vec<(String, Value)>)> {
        let needed: Vec<&Port> = self.inputs.iter().filter(|p| !p.has_default).collect();
        let outputs: Vec<&Port> = self.outputs.iter().collect();
        if set == self.path {
            let rising = |p: &&Port| Ok((p.name.clone(), p.rising()?));
            let inputs = needed.iter().map(rising).collect::<Result<_>>()?;
            return Ok((inputs, read_files(|k| output_beside(set, k), &outputs, limits)?));
        }
        let input = |k: usize| set.join(format!("input_{k}.pb"));
        let given = (0..self.inputs.len()).take_while(|k| exists(&input(*k))).count();
        let inputs = if given > needed.len() { self.inputs.iter().collect() } else { needed };
        let output = |k: usize| set.join(format!("output_{k}.pb"));
        Ok((read_files(input, &inputs, limits)?, read_files(output, &outputs, limits)?))
    }
}

fn exists(path: &Path) -> bool {
    path.symlink_metadata().is_ok()
}

/// `DIR/NAME_output_0.pb` for `DIR/NAME.onnx`.
fn output_beside(model: &Path, k: usize) -> PathBuf {
    let stem = model.file_stem().unwrap_or_default().to_string_lossy();
    model.with_file_name(format!("{stem}_output_{k}.pb"))
}

/// The values of the files 0, 1, …, as far as there are any, with the names of the ports.
fn read_files(
    path: impl Fn(usize) -> PathBuf,
    ports: &[&Port],
    limits: &Limits,
) -> Result<Vec<(String, Value)>> {
    let mut all = Vec::new();
    for (k, path) in (0..).map(|k| (k, path(k))).take_while(|(_, path)| exists(path)) {
        let Some(port) = ports.get(k) else {
            bail!(Format, "`{}` is one more than the model has", path.display());
        };
        let value = read_value(&path, &port.declared, limits)
            .map_err(|e| e.within(&format!("`{}`", path.display())))?;
        all.push((port.name.clone(), value));
    }
    Ok(all)
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

    /// `y = x + w` with the default 1 for `w`, which is an input, too.
    fn old_model() -> Vec<u8> {
        let info = |name: &str| pb::ValueInfoProto {
            name: Some(name.to_owned()),
            r#type: Some(pb::TypeProto {
                value: Some(pb::type_proto::Value::TensorType(pb::type_proto::Tensor {
                    elem_type: Some(DType::F32 as i32),
                    shape: Some(pb::TensorShapeProto {
                        dim: vec![pb::tensor_shape_proto::Dimension {
                            value: Some(pb::tensor_shape_proto::dimension::Value::DimValue(4)),
                            ..Default::default()
                        }],
                    }),
                })),
                ..Default::default()
            }),
            ..Default::default()
        };
        let node = pb::NodeProto {
            input: vec!["w".to_owned(), "x".to_owned()],
            output: vec!["y".to_owned()],
            op_type: Some("Add".to_owned()),
            ..Default::default()
        };
        let graph = pb::GraphProto {
            node: vec![node],
            initializer: vec![pb::TensorProto { name: Some("w".to_owned()), ..floats(&[1.0; 4]) }],
            input: vec![info("w"), info("x")],
            output: vec![info("y")],
            ..Default::default()
        };
        let opset = pb::OperatorSetIdProto { version: Some(7), ..Default::default() };
        pb::ModelProto {
            ir_version: Some(3),
            graph: Some(graph),
            opset_import: vec![opset],
            ..Default::default()
        }
        .encode_to_vec()
    }

    fn floats(data: &[f32]) -> pb::TensorProto {
        pb::TensorProto {
            dims: vec![data.len() as i64],
            data_type: Some(DType::F32 as i32),
            float_data: data.to_vec(),
            ..Default::default()
        }
    }

    #[test]
    fn files_are_those_of_inputs_without_a_default() {
        use crate::check::{OnnxMode, Status, find_onnx_tests, run_onnx_test};
        let folder = tempfile::tempdir().unwrap();
        let write = |path: &str, bytes: &[u8]| {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        };
        let file = |data: [f32; 4]| floats(&data).encode_to_vec();
        for test in ["few", "all"] {
            write(&format!("{test}/model.onnx"), &old_model());
        }
        write("few/test_data_set_0/input_0.pb", &file([1.0, 2.0, 3.0, 4.0]));
        write("few/test_data_set_0/output_0.pb", &file([2.0, 3.0, 4.0, 5.0]));
        // What is fed over the default takes its place.
        write("all/test_data_set_0/input_0.pb", &file([10.0; 4]));
        write("all/test_data_set_0/input_1.pb", &file([1.0, 2.0, 3.0, 4.0]));
        write("all/test_data_set_0/output_0.pb", &file([11.0, 12.0, 13.0, 14.0]));
        // A model beside its output: what it is fed is 0, 1/4, 2/4, 3/4.
        write("light.onnx", &old_model());
        write("light_output_0.pb", &file([1.0, 1.25, 1.5, 1.75]));
        write("wrong.onnx", &old_model());
        write("wrong_output_0.pb", &file([1.0, 1.25, 1.5, 2.0]));
        write("alone.onnx", &old_model());

        let tests = find_onnx_tests(folder.path()).unwrap();
        let reports: Vec<_> = tests
            .iter()
            .flat_map(|t| [OnnxMode::Whole, OnnxMode::Cut(1)].map(|mode| run_onnx_test(t, mode)))
            .map(|r| (r.case.clone(), r.status))
            .collect();
        let of = |case: &str, status| [(case.to_owned(), status), (case.to_owned(), status)];
        let want = [
            of("all", Status::Passed),
            of("few", Status::Passed),
            of("light", Status::Passed),
            of("wrong", Status::Failed),
        ];
        assert_eq!(reports, want.concat());
        let one = find_onnx_tests(&folder.path().join("light.onnx")).unwrap();
        assert_eq!(one, [folder.path().join("light.onnx")]);
        let test = TestModel::open(&folder.path().join("few")).unwrap();
        write("few/test_data_set_0/input_1.pb", &file([0.0; 4]));
        write("few/test_data_set_0/input_2.pb", &file([0.0; 4]));
        let error = test.read_set(&test.sets().unwrap()[0], &Limits::default()).unwrap_err();
        assert!(error.to_string().contains("one more than the model has"), "{error}");
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
