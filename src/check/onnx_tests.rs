//! The ONNX project's own test data: which of it passes, which fails, which is refused.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Status;
use crate::device::DeviceId;
use crate::error::{Error, ErrorKind, Result, err};
use crate::graph::{Fact, Graph};
use crate::import::onnx::TestModel;
use crate::import::{Limits, import};
use crate::ops::case::compare;
use crate::ops::{CompileOptions, OpRegistry, Program, RunContext, infer_graph};
use crate::partition::{DeviceMap, computing_nodes};
use crate::pipeline::Pipeline;
use crate::tensor::{DType, Value};

/// Tolerances of the ONNX backend tests; whole numbers, bools and strings must be equal.
const RTOL: f64 = 1e-3;
const ATOL: f64 = 1e-7;

/// A kind of tests that is counted apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnnxClass {
    /// The test of an operator itself, not of the function that it expands to (`…_expanded…`).
    Plain,
    /// Plain, all operators of ai.onnx, all inputs and outputs tensors of f32, f64, f16, i8, u8,
    /// i32, i64 or bool: 874 of the node tests of onnx 1.16.
    Standard,
    /// Plain, and it uses an operator of [`MODEL_OPERATORS`].
    InModels,
}

impl OnnxClass {
    /// All of them, the widest first.
    pub const ALL: &[Self] = &[Self::Plain, Self::Standard, Self::InModels];

    /// What is counted, in words.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Standard => "plain, in standard dtypes",
            Self::InModels => "plain, operators of real models",
        }
    }
}

/// The operators of the real models of `tests/models`, subgraphs included.
pub const MODEL_OPERATORS: &[&str] = &[
    "Add",
    "And",
    "AveragePool",
    "BatchNormalization",
    "Cast",
    "Clip",
    "Concat",
    "Constant",
    "ConstantOfShape",
    "Conv",
    "ConvTranspose",
    "DequantizeLinear",
    "Div",
    "Equal",
    "Erf",
    "Exp",
    "Expand",
    "Gather",
    "GatherND",
    "Gemm",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "GreaterOrEqual",
    "HardSigmoid",
    "Identity",
    "If",
    "IsNaN",
    "LSTM",
    "LayerNormalization",
    "Less",
    "Log",
    "Loop",
    "MatMul",
    "Max",
    "MaxPool",
    "Mul",
    "Neg",
    "Not",
    "Pad",
    "Pow",
    "QuantizeLinear",
    "Range",
    "Reciprocal",
    "ReduceMax",
    "ReduceMean",
    "ReduceMin",
    "ReduceProd",
    "ReduceSum",
    "Relu",
    "Reshape",
    "Resize",
    "ReverseSequence",
    "Shape",
    "Sigmoid",
    "Size",
    "Slice",
    "Softmax",
    "Split",
    "Sqrt",
    "Squeeze",
    "Sub",
    "Tanh",
    "Transpose",
    "Unsqueeze",
    "Where",
];

/// How a test ended.
#[derive(Clone, Debug, Serialize)]
pub struct OnnxReport {
    /// The test: the name of its folder or model.
    pub case: String,
    /// The operators that the model uses.
    pub operators: Vec<String>,
    /// The classes that it belongs to.
    pub classes: Vec<OnnxClass>,
    /// How it ended.
    pub status: Status,
    /// Why it did not pass, in full.
    pub reason: Option<String>,
}

impl OnnxReport {
    /// Why it did not pass, in one line: the first one, with the next if it only leads to that.
    pub fn headline(&self) -> String {
        let mut lines = self.reason.as_deref().unwrap_or_default().lines().map(str::trim);
        let first = lines.next().unwrap_or_default();
        match lines.next() {
            Some(next) if first.ends_with(':') => format!("{first} {next}"),
            _ => first.to_owned(),
        }
    }
}

/// How the tests of one class ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OnnxCount {
    /// The class.
    pub class: OnnxClass,
    /// How many passed.
    pub passed: usize,
    /// How many there are.
    pub all: usize,
}

/// How all tests ended.
#[derive(Clone, Debug, Serialize)]
pub struct OnnxSummary {
    /// How many passed.
    pub passed: usize,
    /// How many failed.
    pub failed: usize,
    /// How many were refused.
    pub refused: usize,
    /// The same by class.
    pub classes: Vec<OnnxCount>,
    /// Each test.
    pub cases: Vec<OnnxReport>,
}

impl OnnxSummary {
    /// Counts the reports.
    pub fn of(cases: Vec<OnnxReport>) -> Self {
        let count = |s| cases.iter().filter(|c| c.status == s).count();
        Self {
            passed: count(Status::Passed),
            failed: count(Status::Failed),
            refused: count(Status::Refused),
            classes: OnnxClass::ALL.iter().map(|class| Self::count(*class, &cases)).collect(),
            cases,
        }
    }

    fn count(class: OnnxClass, cases: &[OnnxReport]) -> OnnxCount {
        let of_class = || cases.iter().filter(|c| c.classes.contains(&class));
        let passed = of_class().filter(|c| c.status == Status::Passed).count();
        OnnxCount { class, passed, all: of_class().count() }
    }

    /// For each operator, how many tests that use it passed, failed and were refused.
    pub fn by_operator(&self) -> BTreeMap<&str, [usize; 3]> {
        let mut rows: BTreeMap<&str, [usize; 3]> = BTreeMap::new();
        for case in &self.cases {
            let column = match case.status {
                Status::Passed => 0,
                Status::Failed => 1,
                Status::Refused => 2,
            };
            for op in &case.operators {
                rows.entry(op).or_default()[column] += 1;
            }
        }
        rows
    }
}

/// How tests are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnnxMode {
    /// On one CPU device; what inference says is checked, too.
    Whole,
    /// Streamed over two CPU devices, the graph cut at a point that follows from this number and
    /// the test's name. Inputs and outputs get an `Identity`, so that every graph has a cut.
    Cut(u64),
}

/// The tests in `folder`: itself, if it holds a model, else those within it, by name: folders that
/// hold a model, and models beside their outputs (see [`TestModel`]). One such model is a test, too.
///
/// # Errors
/// If there is none, or the folder cannot be read.
pub fn find_onnx_tests(folder: &Path) -> Result<Vec<PathBuf>> {
    // Whatever the model's file is: one that cannot be read is a test that fails.
    let holds_model = |p: &Path| p.join(TestModel::MODEL).symlink_metadata().is_ok();
    if holds_model(folder) || TestModel::is_alone(folder) {
        return Ok(vec![folder.to_owned()]);
    }
    let entries = std::fs::read_dir(folder)
        .map_err(|e| err!(Io, "cannot read folder `{}`", folder.display()).with_source(e))?;
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        if holds_model(&path) || TestModel::is_alone(&path) {
            found.push(path);
        }
    }
    if found.is_empty() {
        return Err(err!(Missing, "`{}` holds no ONNX test", folder.display()).with_help(
            "a test is a folder with a `model.onnx` and folders `test_data_set_…` of values, or a \
             file `NAME.onnx` beside `NAME_output_0.pb`",
        ));
    }
    found.sort();
    Ok(found)
}

/// Runs a test that [`find_onnx_tests`] found, all its sets.
pub fn run_onnx_test(test: &Path, mode: OnnxMode) -> OnnxReport {
    let name = if TestModel::is_alone(test) { test.file_stem() } else { test.file_name() };
    let case = name.unwrap_or(test.as_os_str()).to_string_lossy().into_owned();
    let (mut operators, mut classes) = (Vec::new(), Vec::new());
    let done = TestModel::open(test).and_then(|test| {
        operators = test.operators().map(str::to_owned).collect();
        classes = classes_of(&case, &test);
        run(&test, &case, mode)
    });
    let (status, reason) = match done {
        Ok(Ok(())) => (Status::Passed, None),
        Ok(Err(why)) => (Status::Failed, Some(why)),
        Err(e) if e.kind() == ErrorKind::Unsupported => (Status::Refused, Some(short(&e))),
        Err(e) => (Status::Failed, Some(e.to_string())),
    };
    OnnxReport { case, operators, classes, status, reason }
}

fn classes_of(case: &str, test: &TestModel) -> Vec<OnnxClass> {
    let plain = !case.contains("_expanded");
    let of = |class: &OnnxClass| match class {
        OnnxClass::Plain => plain,
        OnnxClass::Standard => plain && test.is_standard(),
        OnnxClass::InModels => plain && test.operators().any(|o| MODEL_OPERATORS.contains(&o)),
    };
    OnnxClass::ALL.iter().copied().filter(of).collect()
}

/// The error without the path of the model, which the test's name says.
fn short(error: &Error) -> String {
    let message = error.headline();
    match message.split_once("`: ") {
        Some((path, rest)) if path.starts_with('`') && path.ends_with(".onnx") => rest.to_owned(),
        _ => message,
    }
}

fn run(test: &TestModel, case: &str, mode: OnnxMode) -> Result<Result<(), String>> {
    let limits = Limits::default();
    let mut graph = import(test.path(), &limits)?.graph;
    let registry = OpRegistry::default();
    registry.check(&graph)?;
    for set in test.sets()? {
        let (mut feed, expected) = test.read_set(&set, &limits)?;
        // What the set feeds over a default takes its place.
        feed.retain(|(name, value)| match graph.find(name).map(|id| graph.value_mut(id)) {
            Some(info) if info.constant.is_some() => {
                if let Value::Tensor(t) = value {
                    info.fact = Fact::of(t);
                    info.constant = Some(t.clone());
                }
                false
            }
            _ => true,
        });
        let outputs = match mode {
            OnnxMode::Whole => match whole(graph.clone(), &registry, feed)? {
                Ok(outputs) => outputs,
                Err(why) => return Ok(Err(why)),
            },
            OnnxMode::Cut(seed) => cut(graph.clone(), case, seed, feed)?,
        };
        let names: Vec<&str> = graph.output_names().collect();
        for (name, want) in &expected {
            let Some(got) = names.iter().position(|n| n == name).and_then(|k| outputs.get(k))
            else {
                return Ok(Err(format!("the graph has no output `{name}`")));
            };
            if let Err(why) = same(got, want) {
                return Ok(Err(format!("output `{name}`: {why}")));
            }
        }
    }
    Ok(Ok(()))
}

fn whole(
    mut graph: Graph,
    registry: &OpRegistry,
    mut feed: Vec<(String, Value)>,
) -> Result<Result<Vec<Value>, String>> {
    infer_graph(&mut graph, registry)?;
    let facts: Vec<Fact> = graph.outputs().iter().map(|v| graph.value(*v).fact.clone()).collect();
    let program = Program::compile(&graph, registry, &CompileOptions::default())?;
    let mut inputs = Vec::new();
    for name in graph.input_names() {
        let Some(at) = feed.iter().position(|(n, _)| n == name) else {
            return Err(err!(Missing, "the test data has no input `{name}`"));
        };
        inputs.push(feed.swap_remove(at).1);
    }
    let outputs = program.run(inputs, &RunContext::default())?;
    for (fact, value) in facts.iter().zip(&outputs) {
        if let Err(why) = fact.admits(value) {
            return Ok(Err(format!("inference was wrong: {why}")));
        }
    }
    Ok(Ok(outputs))
}

/// The same over two devices.
fn cut(mut graph: Graph, case: &str, seed: u64, feed: Vec<(String, Value)>) -> Result<Vec<Value>> {
    graph.wrap_ports("Identity")?;
    let nodes = computing_nodes(&graph).len();
    let devices = [DeviceId::cpu(0), DeviceId::cpu(1)];
    // FNV-1a, so that a case is cut at the same point everywhere.
    let hash = case
        .bytes()
        .chain(seed.to_le_bytes())
        .fold(0xCBF2_9CE4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01B3));
    let map = if nodes > 1 {
        let at = 1 + usize::try_from(hash % (nodes as u64 - 1)).unwrap_or(0);
        DeviceMap::contiguous(&graph, &devices, &[at])?
    } else {
        DeviceMap::single(DeviceId::cpu(0))
    };
    let options = CompileOptions {
        disabled_passes: vec!["remove-identity".to_owned()],
        ..CompileOptions::default()
    };
    let pipeline = Pipeline::builder(graph).placement(map).options(options).spawn()?;
    // Twice, so that the second one finds the first one's buffers.
    let mut streamed = pipeline.stream([feed.clone(), feed]);
    let (first, second) = (streamed.next(), streamed.next());
    match (first, second) {
        (Some(Ok(first)), Some(Ok(second))) if first == second => Ok(first),
        (Some(Ok(_)), Some(Ok(_))) => {
            Err(err!(Internal, "the second item of the stream came out otherwise than the first"))
        }
        (Some(Err(e)), _) | (_, Some(Err(e))) => Err(e),
        _ => Err(err!(Internal, "the stream ended early")),
    }
}

/// Why a value is not the expected one.
fn same(got: &Value, want: &Value) -> Result<(), String> {
    match (got, want) {
        (Value::Tensor(got), Value::Tensor(want)) => {
            let (atol, rtol) = match want.dtype() {
                d if !d.is_float() => (0.0, 0.0),
                DType::F16 => (1e-3, RTOL),
                DType::BF16 => (1e-2, 1e-2),
                _ => (ATOL, RTOL),
            };
            compare(got, want, atol, rtol)
        }
        (Value::Sequence(got), Value::Sequence(want)) if got.len() == want.len() => got
            .iter()
            .zip(want)
            .enumerate()
            .try_for_each(|(k, (g, w))| same(g, w).map_err(|why| format!("value {k}: {why}"))),
        (Value::Optional(None), Value::Optional(None)) => Ok(()),
        (Value::Optional(Some(got)), Value::Optional(Some(want))) => same(got, want),
        // An optional that is there is as good as what is in it.
        (got, Value::Optional(Some(want))) if !matches!(got, Value::Optional(_)) => same(got, want),
        (Value::Optional(Some(got)), want) => same(got, want),
        _ => Err(format!("{}, expected {}", got.describe(), want.describe())),
    }
}
