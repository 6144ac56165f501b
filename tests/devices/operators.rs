//! The cases of the operators on a device that takes kernels of `brigade::gpu`.

use std::collections::BTreeMap;

use brigade::device::Support;
use brigade::graph::{Fact, Node};
use brigade::ops::{TABLE, infer_graph};
use brigade::pipeline::compile_in;
use brigade::{CompileOptions, DType, DeviceId, ErrorKind, Registry, Result, Tensor, Value};

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

/// Runs every case of every operator that the device says it has; how many there were, in words.
pub(crate) fn pass_their_cases(id: &DeviceId) -> String {
    let registry = Registry::default();
    let device = registry.device(id).unwrap();
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
                compile_in(graph.clone(), id, &options, &registry)?.run_values(feeds.clone())
            };
            let verdict = match run() {
                // Extents that only the item gives may ask for what there is no kernel for.
                Err(e) if e.kind() == ErrorKind::Unsupported => {
                    late.push(format!("{} / {}: {e}", def.name, case.name));
                    continue;
                }
                Err(e) => Some(e.to_string()),
                Ok(outputs) => outputs.iter().zip(&case.expected).find_map(|(got, want)| {
                    let atol = (case.atol as f32).max(2e-6);
                    differs(got.tensor().unwrap(), want, atol, (case.rtol as f32).max(2e-5))
                }),
            };
            *ran.entry((def.domain, def.name)).or_default() += 1;
            if let Some(why) = verdict {
                failures.push(format!("{} / {}: {why}", def.name, case.name));
            }
        }
    }
    let cases: usize = ran.values().sum();
    assert!(failures.is_empty(), "{} of {cases} failed:\n{}", failures.len(), failures.join("\n"));
    for row in brigade::gpu::TABLE {
        assert!(ran.contains_key(&(row.domain, row.op)), "no case of {row:?} ran");
    }
    let reasons = ["fit 32 bits", "does not fit", "rows without elements"];
    for refused in &late {
        assert!(reasons.iter().any(|r| refused.contains(r)), "{refused}");
    }
    format!("{cases} cases of {} operators, {} refused late", ran.len(), late.len())
}
