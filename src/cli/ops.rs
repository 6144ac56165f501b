//! `brigade ops`.

use clap::Args as ClapArgs;

use super::console::Console;
use super::failure::Outcome;

/// Arguments of `ops`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {}

pub(super) fn run(_: &Args, _: &Console) -> Outcome {
    Ok(())
}
