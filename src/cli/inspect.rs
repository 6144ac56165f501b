//! `brigade inspect`: what a model, or a file of weights, is made of.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde::Serialize;

use super::bind::{self, Extents, Named};
use super::console::Console;
use super::failure::{Failure, Outcome};
use super::model;
use super::table::{bytes, table};
use super::weights;
use crate::device::DeviceId;
use crate::error::{Result, err};
use crate::graph::{Graph, ValueId};
use crate::ops::{CompileOptions, MissingOp, infer_graph};
use crate::pipeline::compile_with;
use crate::registry::Registry;

/// Arguments of `inspect`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The model file, or a file of weights: .gguf, .safetensors
    model: PathBuf,
    /// List each node with the inferred dtype and shape of its outputs
    #[arg(long)]
    shapes: bool,
    /// Show the graph as it is after the passes
    #[arg(long)]
    after_passes: bool,
    /// Write the graph in Graphviz's DOT language
    #[arg(long, value_name = "FILE")]
    dot: Option<PathBuf>,
    /// Turn an input into a constant first: one element, or a `.npy` file
    #[arg(long, value_name = "NAME=VALUE|PATH.npy")]
    bind: Vec<Named<String>>,
    /// The shape that an input will have: its symbols become numbers everywhere
    #[arg(long, value_name = "NAME=1,3,…")]
    shape: Vec<Named<Extents>>,
    /// A folder besides the model's own that its weight files may lie below (repeatable)
    #[arg(long, value_name = "DIR")]
    weights_root: Vec<PathBuf>,
}

#[derive(Debug, Serialize)]
struct Port {
    name: String,
    fact: String,
}

#[derive(Debug, Serialize)]
struct NodeRow {
    name: String,
    op: String,
    outputs: Vec<Port>,
}

#[derive(Debug, Serialize)]
struct Missing {
    op: String,
    domain: String,
    version: i64,
    reason: String,
    nodes: Vec<String>,
}

/// What the JSON document holds.
#[derive(Debug, Serialize)]
struct Document {
    model: String,
    name: String,
    sha256: String,
    after_passes: bool,
    metadata: BTreeMap<String, String>,
    opsets: BTreeMap<String, i64>,
    inputs: Vec<Port>,
    outputs: Vec<Port>,
    nodes: usize,
    ops: BTreeMap<String, usize>,
    /// How many constants there are.
    parameters: usize,
    parameter_elements: u64,
    parameter_bytes: u64,
    /// Everything that cannot be run here.
    cannot_run: Vec<Missing>,
    /// Why shapes could not be inferred, if so.
    inference: Option<String>,
    /// Why it cannot be compiled, although every operator is known.
    refused: Option<String>,
    shapes: Option<Vec<NodeRow>>,
}

pub(super) fn run(args: &Args, console: &Console) -> Outcome {
    if let Some(format) = weights::sniff(&args.model) {
        let bound = !args.bind.is_empty() || !args.shape.is_empty();
        if args.shapes || args.after_passes || args.dot.is_some() || bound {
            let path = args.model.display();
            return Err(err!(Usage, "`{path}` holds weights and no graph")
                .with_help("leave out --shapes, --after-passes, --dot, --bind and --shape")
                .into());
        }
        return weights::run(&args.model, format, console);
    }
    let mut graph = model::load(&args.model, &args.weights_root, console)?;
    bind::bind(&mut graph, &args.bind)?;
    bind::fix_shapes(&mut graph, &args.shape)?;
    let whole = graph.clone();
    let registry = Registry::default();
    let cannot_run = registry.ops().missing(&graph);
    let mut inference = None;
    if args.after_passes {
        crate::passes::optimise(&mut graph, registry.ops(), &CompileOptions::default())?;
    } else {
        let mut inferred = graph.clone();
        match infer_graph(&mut inferred, registry.ops()) {
            Ok(_) => graph = inferred,
            Err(e) => inference = Some(e.to_string()),
        }
    }
    if let Some(path) = &args.dot {
        model::write(path, &graph.to_dot(&|_| None))?;
    }
    // What the operators' rows admit may still be refused by its attributes: compiling tells.
    let refused = if cannot_run.is_empty() && graph.unbound_params().next().is_none() {
        compile_with(whole, &DeviceId::cpu(0), &CompileOptions::default())
            .err()
            .map(|e| e.to_string())
    } else {
        None
    };
    let document = document(args, &graph, cannot_run, inference, refused)?;
    console.result(&document, &text(&document))?;
    let runs = document.cannot_run.is_empty() && document.refused.is_none();
    if runs { Ok(()) } else { Err(Failure::Told) }
}

fn document(
    args: &Args,
    graph: &Graph,
    cannot_run: Vec<MissingOp>,
    inference: Option<String>,
    refused: Option<String>,
) -> Result<Document> {
    let port = |v: &ValueId| {
        let info = graph.value(*v);
        Port { name: info.name.clone(), fact: info.fact.to_string() }
    };
    let (mut parameters, mut elements, mut size) = (0, 0, 0);
    constants(graph, &mut |n, b| {
        parameters += 1;
        elements += n;
        size += b;
    });
    let mut nodes = 0;
    let ops = graph.op_counts();
    nodes += ops.values().sum::<usize>();
    let rows = || {
        let row = |n: &crate::graph::Node| NodeRow {
            name: n.name.clone(),
            op: n.qualified_op(),
            outputs: n.makes().map(|v| port(&v)).collect(),
        };
        graph.nodes().iter().map(row).collect()
    };
    let missing = |m: MissingOp| Missing {
        domain: if m.domain.is_empty() { "ai.onnx".to_owned() } else { m.domain },
        op: m.op,
        version: m.version,
        reason: m.reason,
        nodes: m.nodes,
    };
    Ok(Document {
        model: args.model.display().to_string(),
        name: graph.name.clone(),
        sha256: model::sha256(&args.model)?,
        after_passes: args.after_passes,
        metadata: graph.metadata.clone(),
        opsets: graph.opsets.clone(),
        inputs: graph.inputs().iter().map(port).collect(),
        outputs: graph.outputs().iter().map(port).collect(),
        nodes,
        ops,
        parameters,
        parameter_elements: elements,
        parameter_bytes: size,
        cannot_run: cannot_run.into_iter().map(missing).collect(),
        inference,
        refused,
        shapes: args.shapes.then(rows),
    })
}

/// Elements and bytes of each constant, subgraphs included.
fn constants(graph: &Graph, see: &mut dyn FnMut(u64, u64)) {
    for tensor in graph.values().iter().filter_map(|v| v.constant.as_ref()) {
        see(tensor.len() as u64, tensor.bytes() as u64);
    }
    for node in graph.nodes() {
        for (_, sub) in node.subgraphs() {
            constants(sub, see);
        }
    }
}

fn text(d: &Document) -> String {
    let mut out = format!("{} (graph `{}`)\nsha256 {}\n", d.model, d.name, d.sha256);
    if d.after_passes {
        out += "after the passes\n";
    }
    for (domain, version) in &d.opsets {
        let domain = if domain.is_empty() { "ai.onnx" } else { domain };
        out += &format!("opset {domain} {version}\n");
    }
    for (key, value) in &d.metadata {
        out += &format!("metadata {key} = {}\n", shorten(value));
    }
    for (what, ports) in [("input", &d.inputs), ("output", &d.outputs)] {
        for p in ports {
            out += &format!("{what} {}: {}\n", p.name, p.fact);
        }
    }
    out += &format!(
        "parameters {} with {} elements, {}\n",
        d.parameters,
        d.parameter_elements,
        bytes(Some(d.parameter_bytes))
    );
    out += &format!("nodes {}\n", d.nodes);
    let mut ops: Vec<_> = d.ops.iter().collect();
    ops.sort_by_key(|(name, n)| (std::cmp::Reverse(**n), (*name).clone()));
    let rows: Vec<Vec<String>> =
        ops.iter().map(|(name, n)| vec![format!("  {name}"), n.to_string()]).collect();
    out += &table(&rows);
    if let Some(rows) = &d.shapes {
        for n in rows {
            let outputs: Vec<String> =
                n.outputs.iter().map(|p| format!("{}: {}", p.name, p.fact)).collect();
            out += &format!("{} ({}) → {}\n", n.name, n.op, outputs.join(", "));
        }
    }
    if let Some(why) = &d.inference {
        out += &format!("shapes could not be inferred: {why}\n");
    }
    if let Some(why) = &d.refused {
        out += &format!("cannot be run: {why}\n");
    } else if d.cannot_run.is_empty() {
        out += "every operator can be run\n";
    } else {
        out += "cannot be run:\n";
        for m in &d.cannot_run {
            out += &format!(
                "  {} (domain {}, version {}): {}; at {}\n",
                m.op,
                m.domain,
                m.version,
                m.reason,
                m.nodes.join(", ")
            );
        }
    }
    out
}

/// The first line of a text, cut where it is long.
fn shorten(text: &str) -> String {
    const MOST: usize = 100;
    let line = text.lines().next().unwrap_or_default();
    let short: String = line.chars().take(MOST).collect();
    if short.len() < text.len() { format!("{short}… ({} bytes)", text.len()) } else { short }
}
