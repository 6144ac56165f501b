//! Every case of every operator on the CPU, and what inference said of it beforehand.
#![allow(clippy::unwrap_used, clippy::panic)]

use brigade::ops::case::Case;
use brigade::ops::{CompileOptions, OpRegistry, Program, RunContext, TABLE, Threads, infer_graph};

fn run(case: &Case, threads: usize) -> Result<(), String> {
    let registry = OpRegistry::default();
    let (mut graph, feeds) = case.graph().map_err(|e| e.to_string())?;
    infer_graph(&mut graph, &registry).map_err(|e| e.to_string())?;
    graph.validate().map_err(|e| e.to_string())?;
    let facts: Vec<_> = graph.outputs().iter().map(|v| graph.value(*v).fact.clone()).collect();
    let program = Program::compile(&graph, &registry, &CompileOptions::default())
        .map_err(|e| e.to_string())?;
    let context = RunContext {
        threads: Threads::new(threads).map_err(|e| e.to_string())?,
        ..RunContext::default()
    };
    let inputs = feeds.into_iter().map(|(_, v)| v).collect();
    let outputs = program.run(inputs, &context).map_err(|e| e.to_string())?;
    for (fact, value) in facts.iter().zip(&outputs) {
        fact.admits(value).map_err(|why| format!("inference was wrong: {why}"))?;
    }
    case.compare(&outputs)
}

#[test]
fn every_operator_passes_its_cases_on_the_cpu() {
    let (mut ran, mut failures) = (0, Vec::new());
    for def in TABLE {
        let cases = (def.cases)();
        if cases.is_empty() {
            failures.push(format!("{} has no cases", def.name));
        }
        for case in cases {
            for threads in [1, 2] {
                ran += 1;
                if let Err(why) = run(&case, threads) {
                    failures
                        .push(format!("{} / {} ({threads} threads): {why}", def.name, case.name));
                }
            }
        }
    }
    assert!(ran > 0, "no case ran");
    assert!(failures.is_empty(), "{} of {ran} failed:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn rows_are_unique() {
    let mut seen = std::collections::HashSet::new();
    for def in TABLE {
        assert!(seen.insert((def.domain, def.name)), "{} stands twice in the table", def.name);
    }
}
