//! The node tests that come with the ONNX package, on the CPU. `BRIGADE_ONNX_NODE` names their
//! folder (`onnx/backend/test/data/node`); without it nothing is run.
//!
//! A test whose operators, attributes or dtypes are not implemented is left out and counted; one
//! that runs must give the expected outputs.
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]
#![cfg(feature = "onnx")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use brigade::import::{Limits, from_bytes, import};
use brigade::ops::case::compare;
use brigade::ops::{CompileOptions, OpRegistry, Program, RunContext, infer_graph};
use brigade::tensor::Value;
use brigade::{DType, Tensor};

/// Tolerances of the ONNX backend tests.
const RTOL: f64 = 1e-3;
const ATOL: f64 = 1e-7;

/// A length-delimited protobuf field.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![number << 3 | 2];
    let mut n = bytes.len();
    while n >= 128 {
        out.push((n & 127) as u8 | 128);
        n >>= 7;
    }
    out.push(n as u8);
    out.extend_from_slice(bytes);
    out
}

/// A `TensorProto` file, read as the only constant of a model around it.
fn tensor(path: &Path) -> Result<Tensor, String> {
    let mut proto = std::fs::read(path).map_err(|e| e.to_string())?;
    proto.extend(field(8, b"x"));
    let mut graph = field(2, b"g");
    graph.extend(field(5, &proto));
    graph.extend(field(12, &field(1, b"x")));
    let mut model = vec![1 << 3, 8];
    model.extend(field(7, &graph));
    model.extend(field(8, &[2 << 3, 17]));
    let graph = from_bytes(&model, None, &Limits::default()).map_err(|e| e.to_string())?.graph;
    let output = graph.outputs().first().ok_or("no output")?;
    graph.value(*output).constant.clone().ok_or_else(|| "no constant".to_owned())
}

fn tensors(folder: &Path, kind: &str) -> Result<Vec<Tensor>, String> {
    (0..)
        .map(|i| folder.join(format!("{kind}_{i}.pb")))
        .take_while(|p| p.exists())
        .map(|p| tensor(&p))
        .collect()
}

enum Outcome {
    Passed,
    LeftOut(String),
    Failed(String),
}

fn run(folder: &Path, registry: &OpRegistry) -> Outcome {
    let mut graph = match import(folder.join("model.onnx"), &Limits::default()) {
        Ok(imported) => imported.graph,
        Err(e) => return Outcome::LeftOut(format!("import: {}", e.message())),
    };
    if let Some(m) = registry.missing(&graph).first() {
        return Outcome::LeftOut(format!("{}: {}", m.op, m.reason));
    }
    let mut attempt = || -> Result<Result<(), String>, brigade::Error> {
        infer_graph(&mut graph, registry)?;
        let facts: Vec<_> = graph.outputs().iter().map(|v| graph.value(*v).fact.clone()).collect();
        let program = Program::compile(&graph, registry, &CompileOptions::default())?;
        let mut sets: Vec<PathBuf> = std::fs::read_dir(folder)?
            .filter_map(|e| Some(e.ok()?.path()))
            .filter(|p| p.is_dir())
            .collect();
        sets.sort();
        for set in sets {
            let (inputs, expected) = match (tensors(&set, "input"), tensors(&set, "output")) {
                (Ok(i), Ok(o)) => (i, o),
                (Err(e), _) | (_, Err(e)) => return Ok(Err(format!("left out: {e}"))),
            };
            let inputs: Vec<Value> = inputs.into_iter().map(Value::from).collect();
            let outputs = program.run(inputs, &RunContext::default())?;
            for (i, (got, want)) in outputs.iter().zip(&expected).enumerate() {
                if let Err(why) = facts[i].admits(got) {
                    return Ok(Err(format!("inference was wrong: {why}")));
                }
                // Quantised numbers may be one apart, where a half was rounded.
                let exact = !want.dtype().is_float();
                let got = got.tensor()?;
                let (atol, rtol) = match want.dtype() {
                    _ if exact => (0.0, 0.0),
                    DType::F16 => (1e-3, RTOL),
                    DType::BF16 => (1e-2, 1e-2),
                    _ => (ATOL, RTOL),
                };
                if let Err(why) = compare(got, want, atol, rtol) {
                    return Ok(Err(format!("output {i}: {why}")));
                }
            }
        }
        Ok(Ok(()))
    };
    match attempt() {
        Ok(Ok(())) => Outcome::Passed,
        Ok(Err(why)) => match why.strip_prefix("left out: ") {
            Some(why) => Outcome::LeftOut(why.to_owned()),
            None => Outcome::Failed(why),
        },
        Err(e) if e.kind() == brigade::ErrorKind::Unsupported => {
            Outcome::LeftOut(e.message().to_owned())
        }
        Err(e) => Outcome::Failed(e.to_string()),
    }
}

#[test]
fn node_tests_of_the_onnx_package_pass() {
    let Some(folder) = std::env::var_os("BRIGADE_ONNX_NODE").map(PathBuf::from) else {
        println!("left out: BRIGADE_ONNX_NODE does not name the folder of the node tests");
        return;
    };
    let only = std::env::var("BRIGADE_ONNX_NODE_ONLY").unwrap_or_default();
    let registry = OpRegistry::default();
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(&folder).expect("a folder").map(|e| e.unwrap().path()).collect();
    folders.sort();
    let (mut passed, mut failures) = (0, Vec::new());
    let mut left_out: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for folder in folders.iter().filter(|f| f.join("model.onnx").exists()) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.contains(&only) {
            continue;
        }
        match run(folder, &registry) {
            Outcome::Passed => passed += 1,
            Outcome::LeftOut(why) => left_out.entry(why).or_default().push(name),
            Outcome::Failed(why) => failures.push(format!("{name}: {why}")),
        }
    }
    for (why, names) in &left_out {
        println!("left out {} ({}, …): {why}", names.len(), names[0]);
    }
    let out: usize = left_out.values().map(Vec::len).sum();
    println!("{passed} passed, {} failed, {out} left out", failures.len());
    assert!(passed > 0, "no node test ran");
    assert!(failures.is_empty(), "{} failed:\n{}", failures.len(), failures.join("\n"));
}
