//! `brigade bench`: how close a pipeline comes to its bound.

use clap::Args as ClapArgs;

use super::bind::Named;
use super::console::Console;
use super::failure::Outcome;
use super::placing::Flight;
use crate::bench::{SyntheticChain, SyntheticRun};
use crate::error::{Error, err};

/// Arguments of `bench`.
#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// Stream through stages that only take time: DEVICE:TIME[~SPREAD] for each, such as
    /// `a:1ms,b:2ms,c:4ms`. A device named twice is one device visited twice
    #[arg(long, value_name = "STAGES", required = true)]
    synthetic: Option<SyntheticChain>,
    /// How many items the longer run has; without it, as many as take about two seconds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    items: Option<u32>,
    /// How many items are in flight at most; `auto` is twice the number of stages
    #[arg(long, value_name = "auto|N")]
    in_flight: Option<Flight>,
    /// Rounds, of which the medians are reported
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,
    /// Seed of random times
    #[arg(long, value_name = "S", default_value_t = 0)]
    seed: u64,
    /// Lanes of a synthetic device: how many of its stages may compute at once
    #[arg(long, value_name = "DEVICE=N", value_delimiter = ',', requires = "synthetic")]
    lanes: Vec<Named<Count>>,
    /// Replicas of a synthetic stage: threads that share its items. Its device gets as many lanes,
    /// unless --lanes says otherwise
    #[arg(long, value_name = "STAGE=N", value_delimiter = ',', requires = "synthetic")]
    replicas: Vec<Named<Count>>,
}

/// A number of lanes or replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Count(usize);

/// The most lanes or replicas: each replica is a thread.
const MOST: usize = 256;

impl std::str::FromStr for Named<Count> {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (name, count) = text
            .rsplit_once('=')
            .ok_or_else(|| err!(Usage, "`{text}` is not of the form NAME=N"))?;
        match count.parse() {
            Ok(n) if (1..=MOST).contains(&n) => Ok(Self { name: name.to_owned(), value: Count(n) }),
            _ => Err(err!(Usage, "`{count}` in `{text}` must be a number from 1 to {MOST}")),
        }
    }
}

/// About how long the longer run takes unless told, in seconds.
const SECONDS: f64 = 2.0;

pub(super) fn run(args: &Args, console: &Console) -> Outcome {
    match &args.synthetic {
        Some(chain) => synthetic(args, chain.clone(), console),
        None => Err(err!(Usage, "give --synthetic").into()),
    }
}

fn synthetic(args: &Args, mut chain: SyntheticChain, console: &Console) -> Outcome {
    for lanes in &args.lanes {
        chain = chain.lanes(&lanes.name, lanes.value.0)?;
    }
    for replicas in &args.replicas {
        chain = chain.replicas(&replicas.name, replicas.value.0)?;
    }
    let enough = (chain.bound_per_s() * SECONDS).clamp(16.0, 100_000.0) as usize;
    let run = SyntheticRun {
        items: args.items.map_or(enough, |n| n as usize),
        in_flight: args.in_flight.and_then(|f| f.0),
        rounds: args.rounds as usize,
        seed: args.seed,
    };
    let report = chain.run(&run)?;
    console.result(&report, &report.to_string())
}
