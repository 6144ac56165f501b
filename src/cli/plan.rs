//! `brigade plan`: cut a model, show the segments, write the plan file.

use std::path::PathBuf;

use clap::Args as ClapArgs;
use serde_json::json;

use super::console::Console;
use super::failure::Outcome;
use super::model;
use super::placing::Placing;
use crate::error::err;

/// Arguments of `plan`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The model file
    model: PathBuf,
    /// Write the plan file
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Also list the nodes of each segment
    #[arg(long)]
    explain: bool,
    /// Write the graph with its devices in Graphviz's DOT language
    #[arg(long, value_name = "FILE")]
    dot: Option<PathBuf>,
    /// Write a stage spec for each segment into this folder, for workers
    #[cfg(feature = "cluster")]
    #[arg(long, value_name = "DIR")]
    specs: Option<PathBuf>,
    #[command(flatten)]
    placing: Placing,
}

pub(super) fn run(args: &Args, console: &Console) -> Outcome {
    let placed = args.placing.load(&args.model, console)?;
    let split = placed.split()?;
    for notice in placed.measure_links(&split) {
        console.notice(&format!("notice: {notice}"));
    }
    let mut report = placed.report(&split);
    let memory = placed.memory(&split, false);
    let plan = placed.plan(&args.model)?;
    if let Some(path) = &args.output {
        model::write(path, &(plan.to_json()? + "\n"))?;
    }
    #[cfg(feature = "cluster")]
    if let Some(folder) = &args.specs {
        let roots = args.placing.roots(&args.model);
        for (path, device) in super::stage::write(&placed, &roots, folder)? {
            console.notice(&format!("wrote {} for {device}", path.display()));
        }
    }
    if let Some(path) = &args.dot {
        let mut groups = vec![None; placed.graph.nodes().len()];
        for segment in split.segments() {
            for id in &segment.nodes {
                groups[id.index()] =
                    Some(format!("{} (segment {})", segment.device, segment.index));
            }
        }
        model::write(path, &placed.graph.to_dot(&|i| groups.get(i).cloned().flatten()))?;
    }
    let nodes: Vec<Vec<String>> = split
        .segments()
        .iter()
        .map(|s| {
            let nodes = s.nodes.iter().map(|id| placed.graph.node(*id));
            nodes.map(|n| format!("{} ({})", n.name, n.qualified_op())).collect()
        })
        .collect();
    let plan = serde_json::to_value(&plan).map_err(|e| err!(Internal, "plan: {e}"))?;
    let document = json!({
        "model": args.model.display().to_string(),
        "origin": placed.origin,
        "report": report,
        "nodes": nodes,
        "memory": memory,
        "plan": plan,
    });
    // Told when the model was loaded.
    report.notices.clear();
    let mut text = format!("{}\n{report}{memory}\n", placed.origin);
    if args.explain {
        for (i, nodes) in nodes.iter().enumerate() {
            text += &format!("\nsegment {i}\n");
            for node in nodes {
                text += &format!("  {node}\n");
            }
        }
    }
    console.result(&document, &text)
}
