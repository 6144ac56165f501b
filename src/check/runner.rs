//! Running cases and comparing what comes out.

use serde::Serialize;

use super::{Case, CaseOutput, Kind, Role};
use crate::error::{Result, err};
use crate::pipeline::{HeteroExecutable, State};
use crate::tensor::{DType, Tensor, Value, cast};

/// How a case ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// Every output is what it should be.
    Passed,
    /// An output differs, or it failed while running.
    Failed,
    /// The model cannot be run here.
    Refused,
}

/// How one output of one case came out.
#[derive(Clone, Debug, Serialize)]
pub struct CaseReport {
    /// The case.
    pub case: String,
    /// How it ended.
    pub status: Status,
    /// The output that is furthest from what it should be.
    pub output: Option<String>,
    /// Its largest absolute error.
    pub max_abs: Option<f64>,
    /// What would have been allowed at that element.
    pub allowed: Option<f64>,
    /// The first node that differs from the unsplit graph on `cpu`, where two plans disagree.
    pub first_bad_node: Option<String>,
    /// What went wrong, in words.
    pub message: Option<String>,
}

/// How all cases ended.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// How many passed.
    pub passed: usize,
    /// How many failed.
    pub failed: usize,
    /// How many could not be run.
    pub refused: usize,
    /// Each case.
    pub cases: Vec<CaseReport>,
}

impl Summary {
    /// Counts the reports.
    pub fn of(cases: Vec<CaseReport>) -> Self {
        let count = |s| cases.iter().filter(|c| c.status == s).count();
        Self {
            passed: count(Status::Passed),
            failed: count(Status::Failed),
            refused: count(Status::Refused),
            cases,
        }
    }

    /// Whether at least one case ran and all passed.
    pub fn is_success(&self) -> bool {
        self.passed > 0 && self.failed == 0 && self.refused == 0
    }
}

impl CaseReport {
    /// The report of a case that ended with an error.
    pub fn of_error(case: &str, status: Status, message: String) -> Self {
        Self {
            case: case.to_owned(),
            status,
            output: None,
            max_abs: None,
            allowed: None,
            first_bad_node: None,
            message: Some(message),
        }
    }
}

/// Runs a call case sequentially; the outputs in the graph's order.
///
/// # Errors
/// What the run says.
pub fn run_call(executable: &HeteroExecutable, case: &Case) -> Result<Vec<Value>> {
    let feed = case.feed().into_iter().map(|(n, t)| (n, Value::from(t))).collect();
    executable.run_values(feed)
}

/// Runs a stream case sequentially, step by step; the outputs of the graph, stacked.
///
/// # Errors
/// What a step says.
pub fn run_steps(executable: &HeteroExecutable, case: &Case) -> Result<Vec<Value>> {
    let Kind::Stream(steps) = case.kind else { return run_call(executable, case) };
    let names = executable.output_names();
    let mut carried: Vec<(String, Value)> = case
        .inputs
        .iter()
        .filter(|i| i.role == Role::InitialState)
        .map(|i| (i.name.clone(), i.tensor.clone().into()))
        .collect();
    let mut rows: Vec<Vec<Value>> = Vec::with_capacity(steps);
    for s in 0..steps {
        let mut feed: Vec<(String, Value)> =
            case.step(s)?.into_iter().map(|(n, t)| (n, t.into())).collect();
        let constants = case.inputs.iter().filter(|i| i.role == Role::Constant);
        feed.extend(constants.map(|i| (i.name.clone(), i.tensor.clone().into())));
        feed.extend(carried.iter().cloned());
        let outputs = executable.run_values(feed)?;
        for (input, value) in &mut carried {
            let from = case.state.get(input);
            let at = names.iter().position(|n| Some(n) == from).ok_or_else(|| {
                err!(Format, "case `{}`: state input `{input}` takes no output", case.name)
            })?;
            *value = outputs[at].clone();
        }
        rows.push(outputs);
    }
    stack(rows)
}

/// Outputs of several steps, stacked along a new first axis.
pub(crate) fn stack(rows: Vec<Vec<Value>>) -> Result<Vec<Value>> {
    let mut columns: Vec<Vec<Tensor>> = Vec::new();
    for row in rows {
        columns.resize(row.len(), Vec::new());
        for (column, value) in columns.iter_mut().zip(row) {
            let tensor = value.into_tensor()?;
            let mut shape = vec![1];
            shape.extend_from_slice(tensor.shape());
            column.push(tensor.reshape(shape)?);
        }
    }
    columns.iter().map(|c| Tensor::concat(c, 0).map(Value::from)).collect()
}

/// The state of a stream case, for [`crate::Pipeline::open_stream`].
impl From<&Case> for State {
    fn from(case: &Case) -> Self {
        let mut state = Self::new();
        for i in &case.inputs {
            state = match (i.role, case.state.get(&i.name)) {
                (Role::InitialState, Some(output)) => {
                    state.carry(i.name.clone(), output.clone(), i.tensor.clone())
                }
                (Role::Constant, _) => state.constant(i.name.clone(), i.tensor.clone()),
                _ => state,
            };
        }
        state
    }
}

/// Compares the graph's outputs, in order under these names, with what a case expects.
pub fn compare_outputs(case: &Case, names: &[String], outputs: &[Value]) -> CaseReport {
    let mut report = CaseReport::of_error(&case.name, Status::Passed, String::new());
    report.message = None;
    let mut furthest = f64::NEG_INFINITY;
    for want in &case.outputs {
        let got = names.iter().position(|n| *n == want.name).and_then(|i| outputs.get(i));
        match measure(got, want) {
            Err(message) => {
                let mut failed = CaseReport::of_error(&case.name, Status::Failed, message);
                failed.output = Some(want.name.clone());
                return failed;
            }
            Ok((error, allowed)) => {
                let over = if allowed > 0.0 { error / allowed } else { error * f64::INFINITY };
                let over = if over.is_nan() { 0.0 } else { over };
                if over > furthest {
                    furthest = over;
                    report.output = Some(want.name.clone());
                    report.max_abs = Some(error);
                    report.allowed = Some(allowed);
                }
                if error > allowed {
                    report.status = Status::Failed;
                    report.message = Some(format!(
                        "output `{}` is off by {error:.3e}, {allowed:.3e} allowed",
                        want.name
                    ));
                }
            }
        }
    }
    report
}

/// The error that is furthest over what is allowed, and what is allowed there.
fn measure(got: Option<&Value>, want: &CaseOutput) -> Result<(f64, f64), String> {
    let name = &want.name;
    let got = match got {
        Some(v) => v.tensor().map_err(|e| e.to_string())?,
        None => return Err(format!("the graph has no output `{name}`")),
    };
    if got.dtype() != want.tensor.dtype() || got.shape() != want.tensor.shape() {
        let (g, w) = (got.describe(), want.tensor.describe());
        return Err(format!("output `{name}` is {g}, expected {w}"));
    }
    if *got == want.tensor {
        return Ok((0.0, want.atol));
    }
    let wide = |t: &Tensor| cast(t, DType::F64).map_err(|e| e.to_string());
    let (g, w) = (wide(got)?, wide(&want.tensor)?);
    let (g, w) = (g.as_slice::<f64>(), w.as_slice::<f64>());
    let (Ok(g), Ok(w)) = (g, w) else { return Err("not numbers".to_owned()) };
    let (mut worst, mut at) = (f64::NEG_INFINITY, (0.0, want.atol));
    for (g, w) in g.iter().zip(w) {
        let error = if g == w || (g.is_nan() && w.is_nan()) { 0.0 } else { (g - w).abs() };
        let error = if error.is_nan() { f64::INFINITY } else { error };
        let allowed = want.atol + want.rtol * w.abs();
        if error - allowed > worst {
            worst = error - allowed;
            at = (error, allowed);
        }
    }
    Ok(at)
}
