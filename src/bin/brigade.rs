//! The `brigade` program.

use std::process::ExitCode;

fn main() -> ExitCode {
    brigade::cli::main()
}
