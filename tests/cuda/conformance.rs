//! What the device computes: the cases of its operators, and a real model.

use std::collections::BTreeMap;

use brigade::device::Support;
use brigade::graph::{Fact, Node};
use brigade::ops::{TABLE, infer_graph};
use brigade::pipeline::compile_in;
use brigade::{CompileOptions, DType, ErrorKind, Registry, Result, Tensor, Value};

use super::models;
use super::order::cuda;
use super::process::on_standin;

/// The first difference that is more than `atol + rtol · |expected|`, in words. An expected element that
/// is not finite has to be that very one.
pub(crate) fn differs(got: &Tensor, want: &Tensor, atol: f32, rtol: f32) -> Option<String> {
    if got.dtype() != want.dtype() || got.shape() != want.shape() {
        return Some(format!("{}, expected {}", got.describe(), want.describe()));
    }
    if want.dtype() != DType::F32 {
        return brigade::ops::case::compare(got, want, 0.0, 0.0).err();
    }
    let (g, w) = (got.as_slice::<f32>().unwrap(), want.as_slice::<f32>().unwrap());
    let bad = |(i, (g, w)): (usize, (&f32, &f32))| {
        let off = (g - w).abs();
        let fails = match w.is_finite() {
            true => off.is_nan() || off > atol + rtol * w.abs(),
            false => g != w && !(g.is_nan() && w.is_nan()),
        };
        fails.then(|| format!("element {i} of {}: {g}, expected {w}", want.describe()))
    };
    g.iter().zip(w).enumerate().find_map(bad)
}

#[test]
fn every_operator_that_the_device_has_passes_its_cases() {
    let name = "conformance::every_operator_that_the_device_has_passes_its_cases";
    on_standin(name, &[], || {
        let registry = Registry::default();
        let device = registry.device(&cuda(0)).unwrap();
        let (mut ran, mut failures) = (BTreeMap::<(&str, &str), usize>::new(), Vec::new());
        let mut late = Vec::new();
        for def in TABLE {
            for case in (def.cases)() {
                let (mut graph, feeds) = case.graph().unwrap();
                if infer_graph(&mut graph, registry.ops()).is_err() {
                    continue;
                }
                let facts = |node: &Node| -> Vec<Option<Fact>> {
                    node.inputs.iter().map(|v| v.map(|v| graph.value(v).fact.clone())).collect()
                };
                let nodes: Vec<(&Node, Vec<Option<Fact>>)> =
                    graph.nodes().iter().map(|node| (node, facts(node))).collect();
                let answers = device.supports_graph(&graph, &nodes).unwrap();
                if !answers.iter().all(Support::is_supported) {
                    continue;
                }
                let run = || -> Result<Vec<Value>> {
                    let options = CompileOptions::default();
                    let compiled = compile_in(graph.clone(), &cuda(0), &options, &registry)?;
                    compiled.run_values(feeds.clone())
                };
                let verdict = match run() {
                    // Extents that only the item gives may ask for what there is no kernel for.
                    Err(e) if e.kind() == ErrorKind::Unsupported => {
                        late.push(format!("{} / {}: {e}", def.name, case.name));
                        continue;
                    }
                    Err(e) => Some(e.to_string()),
                    Ok(outputs) => outputs.iter().zip(&case.expected).find_map(|(got, want)| {
                        let (atol, rtol) = (case.atol.max(2e-6), case.rtol.max(2e-5));
                        differs(got.tensor().unwrap(), want, atol as f32, rtol as f32)
                    }),
                };
                *ran.entry((def.domain, def.name)).or_default() += 1;
                if let Some(why) = verdict {
                    failures.push(format!("{} / {}: {why}", def.name, case.name));
                }
            }
        }
        let cases: usize = ran.values().sum();
        let failed = failures.len();
        assert!(failures.is_empty(), "{failed} of {cases} failed:\n{}", failures.join("\n"));
        for row in brigade::gpu::TABLE {
            assert!(ran.contains_key(&(row.domain, row.op)), "no case of {row:?} ran");
        }
        eprintln!("on cuda:0 {cases} cases of {} operators", ran.len());
        let reasons = ["fit 32 bits", "does not fit", "rows without elements"];
        for refused in &late {
            assert!(reasons.iter().any(|r| refused.contains(r)), "{refused}");
        }
    });
}

#[test]
fn a_cnn_runs_on_the_gpu_alone() {
    on_standin("conformance::a_cnn_runs_on_the_gpu_alone", &[], || {
        let Some(model) = models::one("ppocr-cls") else { return };
        let case = model.cases.iter().find(|c| c.name == "up-and-down").unwrap();
        let options = CompileOptions::default();
        let run = compile_in(model.graph(), &cuda(0), &options, &Registry::default()).unwrap();
        let outputs = brigade::check::run_call(&run, case).unwrap();
        let report = brigade::check::compare_outputs(case, &run.output_names(), &outputs);
        assert_eq!(report.status, brigade::check::Status::Passed, "{report:?}");
        eprintln!("on cuda:0 ppocr-cls");
    });
}
