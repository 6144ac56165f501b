//! `brigade completions`: a completion script for a shell.

use clap::Args as ClapArgs;
use clap_complete::Shell;
use serde_json::json;

use super::console::Console;
use super::failure::Outcome;

/// Arguments of `completions`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// The shell
    shell: Shell,
}

pub(super) fn run(args: &Args, console: &Console) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut super::grammar(), "brigade", &mut script);
    let script = String::from_utf8_lossy(&script);
    console.result(&json!({ "shell": args.shell.to_string(), "script": script }), &script)
}
