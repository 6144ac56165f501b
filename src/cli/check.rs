//! `brigade check`: a model against cases with known outputs.

use std::collections::VecDeque;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde::Serialize;

use super::console::Console;
use super::failure::{Failure, Outcome};
use super::placing::{Keep, Placing};
use super::table::{row, table};
use crate::bench::{self, PipelineReport};
use crate::check::{
    Case, CaseReport, Kind, Status, Summary, compare_outputs, find_cases, first_divergence,
    run_steps, stack,
};
use crate::device::DeviceId;
use crate::error::{Error, ErrorKind, Result, bail, err};
use crate::ops::CompileOptions;
use crate::partition::DeviceMap;
use crate::pipeline::{HeteroExecutable, Pipeline, State, StateStream, Ticket};
use crate::tensor::Value;

/// Arguments of `check`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The model file
    #[arg(required_unless_present = "onnx_tests", conflicts_with = "onnx_tests")]
    model: Option<PathBuf>,
    /// A case folder, or a folder of them: each has a `case.json` and its tensors
    #[arg(
        long,
        value_name = "DIR",
        required_unless_present = "onnx_tests",
        conflicts_with = "onnx_tests"
    )]
    cases: Option<PathBuf>,
    /// A folder of ONNX test data, or a folder of them: each has a `model.onnx` and folders
    /// `test_data_set_…`, or is `NAME.onnx` beside `NAME_output_0.pb`
    #[arg(long, value_name = "DIR")]
    onnx_tests: Option<PathBuf>,
    /// With --onnx-tests: only the tests whose name contains this
    #[arg(
        long,
        value_name = "TEXT",
        requires = "onnx_tests",
        conflicts_with_all = ["model", "cases"]
    )]
    only: Option<String>,
    /// With --onnx-tests: cut every graph in two at a point that follows from N, and stream it over
    /// two devices
    #[arg(
        long,
        value_name = "N",
        requires = "onnx_tests",
        conflicts_with_all = ["model", "cases"]
    )]
    cut: Option<u64>,
    /// Feed each case N times; every repetition must be equal to the bit. With a plan, all cases
    /// and repetitions stream through one pipeline, interleaved
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,
    #[command(flatten)]
    placing: Placing,
}

/// What the JSON document holds.
#[derive(Debug, Serialize)]
struct Document {
    passed: usize,
    failed: usize,
    refused: usize,
    cases: Vec<CaseReport>,
    /// Whether the cases streamed through a pipeline.
    streamed: bool,
    origin: Option<String>,
    repeat: u32,
    /// What the pipeline did with the call cases.
    pipeline: Option<PipelineReport>,
    /// The time in which at least two actors were busy together, in milliseconds.
    overlap_ms: Option<f64>,
    /// Why the model cannot be run.
    error: Option<String>,
}

/// Events that are kept per actor, to tell whether actors were busy together.
const TRACE_EVENTS: usize = 1 << 16;

pub(super) fn run(args: &Args, console: &Console) -> Outcome {
    if let Some(folder) = &args.onnx_tests {
        return super::onnx_tests::run(folder, args.only.as_deref(), args.cut, console);
    }
    let (Some(model), Some(cases_folder)) = (&args.model, &args.cases) else {
        return Err(err!(Usage, "a model and its cases are needed, or --onnx-tests").into());
    };
    let mut unreadable = Vec::new();
    let mut cases = Vec::new();
    for folder in find_cases(cases_folder)? {
        match Case::read(&folder) {
            Ok(case) => cases.push(case),
            Err(e) => {
                let name = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy();
                unreadable.push(CaseReport::of_error(&name, Status::Failed, e.to_string()));
            }
        }
    }
    let mut placed = match args.placing.load(model, console) {
        Ok(placed) => placed,
        Err(e) if is_refusal(&e) => {
            console.error(&e);
            return finish(&refused(&cases, unreadable, &e, args.repeat), console);
        }
        Err(e) => return Err(e.into()),
    };
    // What is bound on the command line is no input any more.
    let unbound: Vec<Result<()>> =
        cases.iter_mut().map(|case| super::bind::take_bound(case, &placed.bound)).collect();
    if args.placing.micro_batch.is_some() {
        return Err(
            err!(Usage, "a case is one item: --micro-batch does not go with `check`").into()
        );
    }
    if placed.micro_batch.is_some() {
        console.notice("notice: a case is one item, so the plan's micro_batch is of no effect");
    }
    let streamed = args.placing.is_given();
    console.notice(&placed.origin);
    let spawned = if streamed {
        placed.pipeline(TRACE_EVENTS, Keep::Nothing).map(|p| (p.sequential(), Some(p)))
    } else {
        placed.sequential(Keep::Nothing).map(|s| (s, None))
    };
    let (sequential, pipeline) = match spawned {
        Ok(both) => both,
        Err(e) if is_refusal(&e) => {
            console.error(&e);
            return finish(&refused(&cases, unreadable, &e, args.repeat), console);
        }
        Err(e) => return Err(e.into()),
    };
    let repeat = args.repeat as usize;
    let bar = console.progress("cases", Some((cases.len() * repeat) as u64));
    // The oracle of each case: what the same plan gives sequentially.
    let mut oracle: Vec<Result<Vec<Value>>> = Vec::with_capacity(cases.len());
    for (case, unbound) in cases.iter().zip(unbound) {
        let first = unbound
            .and_then(|()| admit(case, &sequential))
            .and_then(|()| run_steps(&sequential, case));
        if pipeline.is_none() {
            bar.inc(1);
        }
        oracle.push(first);
    }
    let mut faults: Vec<Option<String>> = vec![None; cases.len()];
    let mut report = None;
    let mut overlap_ms = None;
    match &pipeline {
        None => {
            for (i, case) in cases.iter().enumerate() {
                for n in 1..repeat {
                    let again = run_steps(&sequential, case);
                    bar.inc(1);
                    judge(&mut faults[i], &oracle[i], &again, &|| format!("repetition {n}"));
                }
            }
        }
        Some(pipeline) => {
            let mut check = |i: usize, n: usize, got: &Result<Vec<Value>>| {
                bar.inc(1);
                judge(&mut faults[i], &oracle[i], got, &|| format!("streamed repetition {n}"));
            };
            let measured = stream_calls(pipeline, &cases, repeat, &mut check)?;
            report = measured.filter(|r| r.items > 0);
            stream_states(pipeline, &cases, repeat, &mut check);
            overlap_ms = Some(pipeline.trace().overlap().as_secs_f64() * 1e3);
        }
    }
    bar.finish_and_clear();
    let names = sequential.output_names();
    let mut reports: Vec<CaseReport> = cases
        .iter()
        .zip(&oracle)
        .zip(faults)
        .map(|((case, outputs), fault)| {
            let mut report = match outputs {
                Ok(outputs) => compare_outputs(case, &names, outputs),
                Err(e) => CaseReport::of_error(&case.name, Status::Failed, e.to_string()),
            };
            if let Some(fault) = fault {
                report.status = Status::Failed;
                report.message = Some(match report.message.take() {
                    Some(message) => format!("{message}; {fault}"),
                    None => fault,
                });
            }
            if report.status == Status::Failed && outputs.is_ok() && case.kind == Kind::Call {
                report.first_bad_node = divergence(args, &sequential, case).unwrap_or_else(|e| {
                    console.notice(&format!("notice: cannot look for the first bad node: {e}"));
                    None
                });
            }
            report
        })
        .collect();
    reports.extend(unreadable);
    let summary = Summary::of(reports);
    let document = Document {
        passed: summary.passed,
        failed: summary.failed,
        refused: summary.refused,
        cases: summary.cases,
        streamed,
        origin: Some(placed.origin.clone()),
        repeat: args.repeat,
        pipeline: report,
        overlap_ms,
        error: None,
    };
    drop(pipeline);
    finish(&document, console)
}

/// Whether an error says that the model cannot be run, rather than that the command is wrong.
fn is_refusal(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Unsupported | ErrorKind::Format | ErrorKind::Graph | ErrorKind::Limit
    )
}

fn refused(cases: &[Case], unreadable: Vec<CaseReport>, error: &Error, repeat: u32) -> Document {
    let report = |c: &Case| CaseReport::of_error(&c.name, Status::Refused, error.to_string());
    let summary = Summary::of(cases.iter().map(report).chain(unreadable).collect());
    Document {
        passed: summary.passed,
        failed: summary.failed,
        refused: summary.refused,
        cases: summary.cases,
        streamed: false,
        origin: None,
        repeat,
        pipeline: None,
        overlap_ms: None,
        error: Some(error.to_string()),
    }
}

/// Whether the case feeds inputs and expects outputs that the model has.
fn admit(case: &Case, executable: &HeteroExecutable) -> Result<()> {
    let names = executable.output_names();
    if let Some(o) = case.outputs.iter().find(|o| !names.contains(&o.name)) {
        bail!(
            UnknownName,
            "case `{}` expects output `{}`, which the model lacks",
            case.name,
            o.name
        );
    }
    Ok(())
}

/// Notes that a repetition is not equal to the oracle.
fn judge(
    fault: &mut Option<String>,
    oracle: &Result<Vec<Value>>,
    got: &Result<Vec<Value>>,
    which: &dyn Fn() -> String,
) {
    if fault.is_some() {
        return;
    }
    *fault = match (oracle, got) {
        (Ok(a), Ok(b)) if a == b => None,
        (Ok(_), Ok(_)) => Some(format!("{} is not equal to the sequential run", which())),
        (Ok(_), Err(e)) => Some(format!("{} failed: {e}", which())),
        (Err(_), _) => None,
    };
}

type Check<'a> = &'a mut dyn FnMut(usize, usize, &Result<Vec<Value>>);

/// Streams the call cases through the pipeline, interleaved.
fn stream_calls(
    pipeline: &Pipeline,
    cases: &[Case],
    repeat: usize,
    check: Check<'_>,
) -> Result<Option<PipelineReport>> {
    let calls: Vec<usize> = (0..cases.len()).filter(|i| cases[*i].kind == Kind::Call).collect();
    if calls.is_empty() {
        return Ok(None);
    }
    let items = (0..repeat).flat_map(|n| {
        calls.iter().map(move |i| {
            let feed = cases[*i].feed().into_iter().map(|(n, t)| (n, Value::from(t))).collect();
            ((*i, n), Ok(feed))
        })
    });
    let measured = bench::stream(pipeline, items, |(i, n), result| {
        check(i, n, &result);
        Ok(())
    })?;
    Ok(Some(measured.report()))
}

/// One repetition of a stream case on its way.
struct Running {
    case: usize,
    repetition: usize,
    steps: usize,
    stream: StateStream,
    rows: Result<Vec<Vec<Value>>>,
}

/// Runs the stream cases, all repetitions of all of them interleaved.
fn stream_states(pipeline: &Pipeline, cases: &[Case], repeat: usize, check: Check<'_>) {
    let mut running = Vec::new();
    for repetition in 0..repeat {
        for (i, case) in cases.iter().enumerate() {
            let Kind::Stream(steps) = case.kind else { continue };
            match pipeline.open_stream(State::from(case)) {
                Ok(stream) => running.push(Running {
                    case: i,
                    repetition,
                    steps,
                    stream,
                    rows: Ok(Vec::with_capacity(steps)),
                }),
                Err(e) => check(i, repetition, &Err(e)),
            }
        }
    }
    let most = running.iter().map(|r| r.steps).max().unwrap_or(0);
    let mut ahead: VecDeque<(usize, Result<Ticket>)> = VecDeque::new();
    let settle = |running: &mut Vec<Running>, (at, ticket): (usize, Result<Ticket>)| {
        let result = ticket.and_then(Ticket::wait);
        let rows = &mut running[at].rows;
        match (rows.as_mut(), result) {
            (Ok(all), Ok(row)) => all.push(row),
            (Ok(_), Err(e)) => *rows = Err(e),
            (Err(_), _) => {}
        }
    };
    for s in 0..most {
        for at in 0..running.len() {
            let r = &running[at];
            if s >= r.steps || r.rows.is_err() {
                continue;
            }
            let ticket = cases[r.case].step(s).and_then(|feed| r.stream.push(feed));
            ahead.push_back((at, ticket));
            while ahead.len() > 2 * running.len().max(pipeline.in_flight_limit()) {
                if let Some(next) = ahead.pop_front() {
                    settle(&mut running, next);
                }
            }
        }
    }
    for next in ahead {
        settle(&mut running, next);
    }
    for r in running {
        r.stream.close();
        check(r.case, r.repetition, &r.rows.and_then(stack));
    }
}

/// The first node of this plan that differs from the unsplit graph on `cpu`, all passes run.
fn divergence(args: &Args, candidate: &HeteroExecutable, case: &Case) -> Result<Option<String>> {
    let Some(model) = &args.model else { return Ok(None) };
    let weights = super::model::weights(&args.placing.weights_root)?;
    let mut graph =
        crate::import::import_with(model, &crate::import::Limits::default(), &weights)?.graph;
    super::bind::bind(&mut graph, &args.placing.bind)?;
    let map = DeviceMap::single(DeviceId::cpu(0));
    let reference = HeteroExecutable::compile(graph, &map, &CompileOptions::default())?;
    let feed: Vec<(String, Value)> =
        case.feed().into_iter().map(|(n, t)| (n, Value::from(t))).collect();
    let tolerance = |f: fn(&crate::check::CaseOutput) -> f64| {
        case.outputs.iter().map(f).fold(f64::INFINITY, f64::min)
    };
    first_divergence(&reference, candidate, &feed, tolerance(|o| o.atol), tolerance(|o| o.rtol))
}

fn finish(document: &Document, console: &Console) -> Outcome {
    let mut rows = vec![row(["case", "status", "output", "max_abs", "allowed", "first bad node"])];
    let number = |n: Option<f64>| n.map_or_else(String::new, |n| format!("{n:.3e}"));
    for c in &document.cases {
        let status = match c.status {
            Status::Passed => "passed",
            Status::Failed => "FAILED",
            Status::Refused => "refused",
        };
        rows.push(vec![
            c.case.clone(),
            status.to_owned(),
            c.output.clone().unwrap_or_default(),
            number(c.max_abs),
            number(c.allowed),
            c.first_bad_node.clone().unwrap_or_default(),
        ]);
    }
    let mut text = table(&rows);
    for c in document.cases.iter().filter(|c| c.status == Status::Failed) {
        if let Some(message) = &c.message {
            text += &format!("{}: {message}\n", c.case);
        }
    }
    if let Some(overlap) = document.overlap_ms {
        text += &format!("two or more actors were busy together for {overlap:.1} ms\n");
    }
    text += &format!(
        "{} passed, {} failed, {} refused\n",
        document.passed, document.failed, document.refused
    );
    console.result(document, &text)?;
    let success = document.passed > 0 && document.failed == 0 && document.refused == 0;
    if success { Ok(()) } else { Err(Failure::Told) }
}
