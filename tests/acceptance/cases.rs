//! Every case of every model: within tolerance on one device, and bit for bit the same when it is
//! streamed through the segments of a plan.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use brigade::check::{Case, Kind, Status, compare_outputs, run_call, run_steps};
use brigade::graph::Graph;
use brigade::partition::computing_nodes;
use brigade::pipeline::{Pipeline, State, Ticket};
use brigade::{CompileOptions, HeteroExecutable, Registry, Tensor, Value, compile_with, passes};

use super::models;

/// How often each case is fed through the pipeline.
const TIMES: usize = 16;
const IN_FLIGHT: usize = 4;
/// How many streams with state interleave.
const STREAMS: usize = 4;
/// How long a model is fed again to see two of its actors busy together.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn every_case_passes_on_one_device() {
    let mut failures = Vec::new();
    let mut ran = 0;
    for model in models::all() {
        let device = "cpu".parse().unwrap();
        let executable = match compile_with(model.graph(), &device, &CompileOptions::default()) {
            Ok(e) => e,
            Err(e) => {
                failures.push(format!("{}: {e}", model.id));
                continue;
            }
        };
        for case in &model.cases {
            ran += 1;
            let outputs = match case.kind {
                Kind::Call => run_call(&executable, case),
                Kind::Stream(_) => run_steps(&executable, case),
            };
            let report = outputs.map(|o| compare_outputs(case, &executable.output_names(), &o));
            match report {
                Ok(r) if r.status == Status::Passed => {}
                Ok(r) => failures.push(format!(
                    "{}/{}: {}",
                    model.id,
                    case.name,
                    r.message.unwrap_or_default()
                )),
                Err(e) => failures.push(format!("{}/{}: {e}", model.id, case.name)),
            }
        }
    }
    eprintln!("{ran} cases ran on one device");
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_case_streams_bit_for_bit() {
    let mut failures = Vec::new();
    for model in models::all() {
        if let Err(why) = streams(&model.graph(), &model.cases, 3) {
            failures.push(format!("{}: {why}", model.id));
        }
    }
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}

/// The silero models with the sample rate bound, so that their `If` is inlined and three segments
/// are possible.
#[test]
fn silero_streams_in_three_segments_once_its_rate_is_bound() {
    for id in ["silero-vad", "silero-vad-ifless"] {
        let Some(model) = models::one(id) else { return };
        for case in &model.cases {
            let rate = case.inputs.iter().find(|i| i.name == "sr").unwrap();
            let mut graph = model.graph();
            graph.bind_input("sr", rate.tensor.clone()).unwrap();
            let mut bound = case.clone();
            bound.inputs.retain(|i| i.name != "sr");
            streams(&graph, &[bound], 3).unwrap_or_else(|e| panic!("{id}/{}: {e}", case.name));
        }
    }
}

/// Streams `cases` through `stages` segments (or as many as there are nodes) on two CPU devices.
fn streams(graph: &Graph, cases: &[Case], stages: usize) -> Result<(), String> {
    let text = |e: brigade::Error| e.to_string();
    let mut optimised = graph.clone();
    passes::optimise(&mut optimised, Registry::default().ops(), &CompileOptions::default())
        .map_err(text)?;
    let segments = computing_nodes(&optimised).len().min(stages);
    let mut builder = Pipeline::builder(graph.clone())
        .stages(segments, &["cpu:0", "cpu:1"])
        .map_err(text)?
        .in_flight(IN_FLIGHT)
        .trace(1 << 14);
    for input in &cases[0].inputs {
        if cases[0].kind == Kind::Call {
            builder = builder.expected_shape(&input.name, input.tensor.shape());
        }
    }
    let pipeline = builder.spawn().map_err(text)?;
    let oracle = pipeline.sequential();
    if oracle.num_segments() != segments {
        return Err(format!("{} segments, not {segments}", oracle.num_segments()));
    }
    let calls: Vec<&Case> = cases.iter().filter(|c| c.kind == Kind::Call).collect();
    for (i, case) in calls.iter().enumerate() {
        let others = calls.iter().enumerate().filter(|(k, _)| *k != i);
        let other = others.map(|(_, c)| c.feed()).next().unwrap_or_else(|| varied(case));
        call(&pipeline, &oracle, case, &other).map_err(|e| format!("{}: {e}", case.name))?;
    }
    for case in cases.iter().filter(|c| c.kind != Kind::Call) {
        steps(&pipeline, &oracle, case).map_err(|e| format!("{}: {e}", case.name))?;
    }
    // Stages of a few microseconds may miss each other on a busy machine; they get more chances.
    let until = Instant::now() + PATIENCE;
    while segments > 1 && pipeline.trace().overlap().is_zero() {
        if Instant::now() > until {
            return Err("no two actors were ever busy together".to_owned());
        }
        for case in cases {
            match case.kind {
                Kind::Call => call(&pipeline, &oracle, case, &case.feed())?,
                Kind::Stream(_) => steps(&pipeline, &oracle, case)?,
            }
        }
    }
    pipeline.shutdown();
    Ok(())
}

/// The same shapes with other values: floats halved, whole numbers as they are.
fn varied(case: &Case) -> Vec<(String, Tensor)> {
    let mut feed = case.feed();
    for (_, t) in &mut feed {
        if let Ok(values) = t.as_mut_slice::<f32>() {
            values.iter_mut().for_each(|v| *v *= 0.5);
        }
    }
    feed
}

fn call(
    pipeline: &Pipeline,
    oracle: &HeteroExecutable,
    case: &Case,
    other: &[(String, Tensor)],
) -> Result<(), String> {
    let text = |e: brigade::Error| e.to_string();
    let expected = run_call(oracle, case).map_err(text)?;
    let report = compare_outputs(case, &oracle.output_names(), &expected);
    if report.status != Status::Passed {
        return Err(report.message.unwrap_or_default());
    }
    let values = other.iter().map(|(n, t)| (n.clone(), Value::from(t.clone()))).collect();
    let other_expected = oracle.run_values(values).map_err(text)?;
    let items = (0..2 * TIMES).map(|k| if k % 2 == 0 { case.feed() } else { other.to_vec() });
    let mut count = 0;
    for (k, result) in pipeline.stream(items).enumerate() {
        let want = if k % 2 == 0 { &expected } else { &other_expected };
        if result.map_err(text)? != *want {
            return Err(format!("item {k} differs from the sequential run"));
        }
        count += 1;
    }
    if count == 2 * TIMES { Ok(()) } else { Err(format!("{count} results")) }
}

fn steps(pipeline: &Pipeline, oracle: &HeteroExecutable, case: &Case) -> Result<(), String> {
    let text = |e: brigade::Error| e.to_string();
    let Kind::Stream(count) = case.kind else { return Ok(()) };
    let expected = run_steps(oracle, case).map_err(text)?;
    let report = compare_outputs(case, &oracle.output_names(), &expected);
    if report.status != Status::Passed {
        return Err(report.message.unwrap_or_default());
    }
    let streams: Vec<_> = (0..STREAMS)
        .map(|_| pipeline.open_stream(State::from(case)))
        .collect::<Result<_, _>>()
        .map_err(text)?;
    // Stream k starts k steps late, so that the streams stand at different steps.
    let mut tickets: Vec<VecDeque<(usize, Ticket)>> =
        (0..STREAMS).map(|_| VecDeque::new()).collect();
    let check = |k: usize, queue: &mut VecDeque<(usize, Ticket)>| -> Result<(), String> {
        let Some((s, ticket)) = queue.pop_front() else { return Ok(()) };
        let outputs = ticket.wait().map_err(text)?;
        for (got, want) in outputs.iter().zip(&expected) {
            let row = want.tensor().and_then(|t| t.rows(s, 1)).map_err(text)?;
            let got = got.tensor().map_err(text)?;
            if got.as_bytes() != row.as_bytes() {
                return Err(format!("stream {k} differs at step {s}"));
            }
        }
        Ok(())
    };
    for round in 0..count + STREAMS {
        for (k, stream) in streams.iter().enumerate() {
            let Some(s) = round.checked_sub(k).filter(|s| *s < count) else { continue };
            if tickets[k].len() >= 2 {
                check(k, &mut tickets[k])?;
            }
            let ticket = stream.push(case.step(s).map_err(text)?).map_err(text)?;
            tickets[k].push_back((s, ticket));
        }
    }
    for (k, queue) in tickets.iter_mut().enumerate() {
        while !queue.is_empty() {
            check(k, queue)?;
        }
    }
    Ok(())
}
