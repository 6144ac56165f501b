//! The `brigade` program: a subcommand is its file and one variant here.

mod bench;
mod bind;
mod check;
#[cfg(feature = "cluster")]
mod cluster;
mod completions;
mod connected;
mod console;
mod cutter;
mod demo;
mod devices;
mod failure;
mod inspect;
mod items;
#[cfg(feature = "_cuda")]
mod kernels;
mod memory;
mod model;
mod onnx_tests;
mod ops;
mod placing;
mod plan;
mod results;
mod run;
#[cfg(feature = "cluster")]
mod signals;
#[cfg(feature = "cluster")]
mod stage;
mod table;
mod weights;
#[cfg(feature = "cluster")]
mod worker;
#[cfg(feature = "cluster")]
mod workers;

use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue};
use clap::{Args, Parser, Subcommand};

use console::Console;

/// Runs machine-learning models as pipelines of device actors.
#[derive(Debug, Parser)]
#[command(
    name = "brigade",
    version,
    propagate_version = true,
    after_help = "Exit codes: 0 success, 1 failure, 2 wrong usage, 3 an assertion given on the \
                  command line is not met."
)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, Debug, Args)]
struct Global {
    /// Print one JSON document on standard output
    #[arg(long, global = true)]
    json: bool,
    /// Print no progress and no notices
    #[arg(short, long, global = true, conflicts_with = "verbose")]
    quiet: bool,
    /// Print more of what is done
    #[arg(short, long, global = true)]
    verbose: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Stream a built-in model through device actors and show that it pays
    Demo(demo::Args),
    /// Run a model over items
    Run(run::Args),
    /// Check a model against cases with known outputs
    Check(check::Args),
    /// Measure how close a pipeline comes to its bound
    Bench(bench::Args),
    /// Cut a model into segments, show them, write the plan file
    Plan(plan::Args),
    /// Show what a model is made of and whether it can be run, or what a file of weights holds
    Inspect(inspect::Args),
    /// List the devices
    Devices(devices::Args),
    /// List the operators
    Ops(ops::Args),
    /// Compile what a model runs on a GPU that is not here
    #[cfg(feature = "_cuda")]
    Kernels(kernels::Args),
    /// Serve stages of other machines' pipelines
    #[cfg(feature = "cluster")]
    Worker(worker::Args),
    /// Make the certificates of a cluster
    #[cfg(feature = "cluster")]
    Cluster(cluster::Args),
    /// Show a stage spec
    #[cfg(feature = "cluster")]
    Stage(stage::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
}

/// Runs the program over the arguments of the process.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(e) => {
            let e = shortened(e);
            // What cannot be printed (a closed pipe) is not worth an error of its own.
            let _ = e.print();
            return ExitCode::from(u8::try_from(e.exit_code()).unwrap_or(2));
        }
    };
    let console = Console::new(cli.global.json, cli.global.quiet, cli.global.verbose);
    let result = match &cli.command {
        Command::Demo(args) => demo::run(args, &console),
        Command::Run(args) => run::run(args, &console),
        Command::Check(args) => check::run(args, &console),
        Command::Bench(args) => bench::run(args, &console),
        Command::Plan(args) => plan::run(args, &console),
        Command::Inspect(args) => inspect::run(args, &console),
        Command::Devices(args) => devices::run(args, &console),
        Command::Ops(args) => ops::run(args, &console),
        #[cfg(feature = "_cuda")]
        Command::Kernels(args) => kernels::run(args, &console),
        #[cfg(feature = "cluster")]
        Command::Worker(args) => worker::run(args, &console),
        #[cfg(feature = "cluster")]
        Command::Cluster(args) => cluster::run(args, &console),
        #[cfg(feature = "cluster")]
        Command::Stage(args) => stage::run(args, &console),
        Command::Completions(args) => completions::run(args, &console),
    };
    #[cfg(feature = "cluster")]
    signals::leave_to_signal();
    #[cfg(feature = "_cuda")]
    crate::device::CudaDevice::settle(std::time::Duration::from_secs(2));
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            console.failure(&failure);
            ExitCode::from(failure.exit_code())
        }
    }
}

/// An error of the grammar that repeats no more of a wrong value than shows which it is.
fn shortened(mut error: clap::Error) -> clap::Error {
    const SHOWN: usize = 80;
    if let Some(ContextValue::String(value)) = error.get(ContextKind::InvalidValue)
        && value.chars().count() > SHOWN
    {
        let short: String = value.chars().take(SHOWN).chain("…".chars()).collect();
        error.insert(ContextKind::InvalidValue, ContextValue::String(short));
    }
    error
}

/// The grammar, for completions.
fn grammar() -> clap::Command {
    <Cli as clap::CommandFactory>::command()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_grammar_is_sound() {
        grammar().debug_assert();
    }

    #[test]
    fn a_long_wrong_value_is_not_repeated_whole() {
        let chain = vec!["a:1ms"; 1_000].join(",") + ",b";
        let words = ["brigade", "bench", "--synthetic", &chain];
        let text = shortened(Cli::try_parse_from(words).unwrap_err()).to_string();
        assert!(text.len() < 500 && text.contains("a:1ms,a:1ms") && text.contains("`b`"), "{text}");
    }

    #[test]
    fn flags_that_exclude_each_other_are_usage_errors() {
        for arguments in [
            "plan m.onnx --plan p.json --stages 2",
            "run m.onnx --input x.npy --generate 3",
            "run m.onnx --generate 3 --sequential --compare",
            "run m.onnx --generate 0",
            "run m.onnx --generate 3 --stages 0",
            "run m.onnx --generate 3 --micro-batch 0",
            "run m.onnx --generate 3 --in-flight 0",
            "run m.onnx --generate 3 --device CPU",
            "run m.onnx --generate 3 --threads cpu:0=0",
            "run m.onnx --generate 3 --precision half",
            "run m.onnx --generate 3 --precision CPU=bf16",
            "run m.onnx --generate 3 --shape x=1,a",
            "run m.onnx --generate 3 --batch-axis x=q",
            "run m.onnx --generate 3 --bind x",
            "run m.onnx --generate 3 --fallback cpu",
            "run m.onnx --generate 3 --device cpu --fallback cpu:1 --stages 2",
            "check m.onnx",
            "check m.onnx --onnx-tests dir",
            "check m.onnx --cases dir --cut 1",
            "check",
            "bench",
            "bench m.onnx --synthetic a:1ms",
            "bench --synthetic a:1",
            "bench --synthetic a:1ms --items 0",
            "bench --synthetic a:1ms --stages 2",
            "bench --synthetic a:1ms --generate 3",
            "bench --synthetic a:1ms --lanes a",
            "bench --synthetic a:1ms --lanes a=0",
            "demo -q -v",
            "no-such-command",
            "",
        ] {
            let words = ["brigade"].into_iter().chain(arguments.split_whitespace());
            let error = Cli::try_parse_from(words).expect_err(arguments);
            assert_eq!(error.exit_code(), 2, "{arguments}: {error}");
        }
    }

    #[test]
    fn flags_are_understood() {
        let parse = |text: &str| Cli::try_parse_from(text.split_whitespace()).expect(text).command;
        let Command::Run(args) = parse(
            "brigade run m.onnx --input x=a=b.npy --stages 3 --device cpu:0,cpu --device cpu:2 \
             --in-flight auto --threads 2 --threads cpu:1=4 --precision cpu:1=bf16,f32 --bind sr=16000 --shape x=1,3",
        ) else {
            panic!("another subcommand");
        };
        let placing = args.placing;
        assert_eq!(placing.stages, Some(3));
        let devices: Vec<String> = placing.device.iter().map(ToString::to_string).collect();
        assert_eq!(devices, ["cpu:0", "cpu:0", "cpu:2"]);
        assert_eq!(placing.threads.len(), 2);
        let stated = placing.precision.iter().map(|p| p.precision.name()).collect::<Vec<_>>();
        assert_eq!((stated, placing.precision[1].device.is_none()), (vec!["bf16", "f32"], true));
        assert_eq!(placing.bind[0].name, "sr");
    }
}
