//! `brigade ops`: the operators that there are.

use clap::Args as ClapArgs;
use serde::Serialize;

use super::console::Console;
use super::failure::Outcome;
use super::table::table;
use crate::ops::{OpDef, OpRegistry};

/// Arguments of `ops`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Print docs/ops.md
    #[arg(long)]
    markdown: bool,
}

#[derive(Debug, Serialize)]
struct Row {
    domain: &'static str,
    name: &'static str,
    /// The first operator-set version that is implemented.
    since: i64,
    /// The dtypes of the first input.
    dtypes: Vec<String>,
    /// The dtypes that GPU devices have kernels for; empty: nodes fall back to another device.
    gpu: Vec<String>,
    /// How many test cases every device runs for it.
    cases: usize,
}

impl Row {
    fn of(def: &'static OpDef) -> Self {
        let types = def.inputs.first().or_else(|| def.outputs.first()).map_or(&[][..], |p| p.types);
        let kernels = crate::gpu::TABLE.iter().find(|r| r.op == def.name && r.domain == def.domain);
        Self {
            domain: if def.domain.is_empty() { "ai.onnx" } else { def.domain },
            name: def.name,
            since: def.since,
            dtypes: types.iter().map(ToString::to_string).collect(),
            gpu: kernels.map_or(&[][..], |r| r.types).iter().map(ToString::to_string).collect(),
            cases: (def.cases)().len(),
        }
    }

    fn cells(&self) -> Vec<String> {
        let (domain, name) = (self.domain.to_owned(), self.name.to_owned());
        let (dtypes, gpu) = (self.dtypes.join(" "), self.gpu.join(" "));
        vec![domain, name, self.since.to_string(), dtypes, gpu, self.cases.to_string()]
    }
}

const HEAD: [&str; 6] =
    ["domain", "operator", "since", "dtypes of the first input", "on GPUs", "cases"];

pub(super) fn run(args: &Args, console: &Console) -> Outcome {
    let rows: Vec<Row> = OpRegistry::default().iter().map(Row::of).collect();
    let text = if args.markdown {
        markdown(&rows)
    } else {
        let mut cells = vec![HEAD.map(str::to_owned).to_vec()];
        cells.extend(rows.iter().map(Row::cells));
        format!("{}{} operators\n", table(&cells), rows.len())
    };
    console.result(&rows, &text)
}

fn markdown(rows: &[Row]) -> String {
    let mut out = String::from(
        "# Operators\n\nWritten by `brigade ops --markdown`; a test compares it. *since* is the \
         first operator-set\nversion that is implemented; the CPU runs all of these dtypes. \
         *on GPUs*: the dtypes of kernels for\n`wgpu` and `cuda` devices; where there are none, \
         nodes fall back. i64 is kept in 32 bits, which is\nchecked or proven; whole numbers of 8 and \
         16 bits take 32. *cases*: the number of\ntest cases that every device runs.\n\n",
    );
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    out += &line(&HEAD.map(str::to_owned));
    out += "| --- | --- | --- | --- | --- | --- |\n";
    for row in rows {
        out += &line(&row.cells());
    }
    out
}
