//! Real models import. They are fetched by `tests/models/fetch_models.py`; `BRIGADE_MODELS` names
//! their folder, and `BRIGADE_REQUIRE_MODELS=1` makes it a failure that they are not there.
#![cfg(feature = "onnx")]
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeSet;
use std::path::PathBuf;

use brigade::check::MODEL_OPERATORS;
use brigade::graph::{Attribute, Graph};
use brigade::import::{Limits, import};

fn models() -> Vec<PathBuf> {
    let required = std::env::var_os("BRIGADE_REQUIRE_MODELS").is_some_and(|v| v == "1");
    let Some(folder) = std::env::var_os("BRIGADE_MODELS").map(PathBuf::from) else {
        assert!(!required, "BRIGADE_REQUIRE_MODELS is set, but BRIGADE_MODELS is not");
        eprintln!("left out: BRIGADE_MODELS does not name a folder of models");
        return Vec::new();
    };
    let mut models = Vec::new();
    for entry in std::fs::read_dir(&folder).expect("BRIGADE_MODELS is a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            let files = std::fs::read_dir(path).expect("a folder").map(|f| f.unwrap().path());
            models.extend(files.filter(|f| f.extension().is_some_and(|e| e == "onnx")));
        }
    }
    models.sort();
    if required {
        let manifest: serde_json::Value =
            serde_json::from_str(include_str!("models/manifest.json")).expect("a manifest");
        let sources = manifest["sources"].as_array().expect("sources");
        let files = sources.iter().flat_map(|s| s["files"].as_array().expect("files"));
        let wanted: Vec<&str> =
            files.filter_map(|f| f["as"].as_str()).filter(|f| f.ends_with(".onnx")).collect();
        assert!(wanted.len() > 5, "the manifest lists {wanted:?}");
        for name in wanted {
            assert!(models.iter().any(|m| m.ends_with(name)), "`{name}` is missing");
        }
    }
    models
}

/// What a subgraph captures must be the same values, in order, on both sides.
fn check_captures(graph: &Graph) -> usize {
    let mut count = 0;
    for node in graph.nodes() {
        let outer = &node.inputs[node.inputs.len() - node.captures..];
        for attribute in node.attributes.values() {
            let Attribute::Graph(sub) = attribute else { continue };
            let inner = &sub.inputs()[sub.inputs().len() - node.captures..];
            for (o, i) in outer.iter().zip(inner) {
                let o = o.expect("a captured value is there");
                assert_eq!(graph.value(o).name, sub.value(*i).name, "node {}", node.name);
            }
            count += 1 + check_captures(sub);
        }
    }
    count
}

#[test]
fn every_model_imports_and_is_valid() {
    for path in models() {
        let imported = import(&path, &Limits::default()).unwrap_or_else(|e| panic!("{e}"));
        let graph = imported.graph;
        graph.validate().unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        assert!(!graph.nodes().is_empty() && !graph.outputs().is_empty(), "{}", path.display());
        for v in graph.inputs() {
            let fact = &graph.value(*v).fact;
            assert!(fact.dtype.is_some() && fact.shape.is_some(), "{}: {fact}", path.display());
        }
        let subgraphs = check_captures(&graph);
        let facts: Vec<String> = graph
            .inputs()
            .iter()
            .map(|v| format!("{} {}", graph.value(*v).name, graph.value(*v).fact))
            .collect();
        eprintln!(
            "{}: {} nodes, {subgraphs} subgraphs, inputs {}; {:?}",
            path.display(),
            graph.nodes().len(),
            facts.join(", "),
            imported.notices
        );
    }
}

/// The operators of a graph and of its subgraphs, those of ai.onnx.
fn operators(graph: &Graph, found: &mut BTreeSet<String>) {
    for node in graph.nodes() {
        found.insert(node.qualified_op());
        for attribute in node.attributes.values() {
            if let Attribute::Graph(sub) = attribute {
                operators(sub, found);
            }
        }
    }
}

#[test]
fn the_list_of_their_operators_is_theirs() {
    let mut found = BTreeSet::new();
    for path in models() {
        operators(&import(&path, &Limits::default()).unwrap().graph, &mut found);
    }
    if found.is_empty() {
        return;
    }
    // Constants are no nodes any more.
    found.insert("Constant".to_owned());
    let listed: BTreeSet<String> = MODEL_OPERATORS.iter().map(|o| (*o).to_owned()).collect();
    assert_eq!(found, listed);
}
