//! What the devices of a synthetic chain reach on this machine with nothing between them.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use brigade_actors::synthetic::Synthetic;

use super::synthetic::{SEQUENTIAL, SyntheticChain};
use crate::error::{Result, err};

/// One lane of a device: the stages there, with their places in the chain, from the one that it
/// begins with.
struct Lane {
    stages: Vec<(usize, Synthetic)>,
    /// How many stages it runs at least, so that the lanes of a device together run all.
    least: usize,
    /// How long it takes at most for each stage, to fire no more often than in the pipeline.
    pace: Duration,
}

/// Items per second by the bound of the chain, with the times that the stages really take while each
/// lane works on a thread of its own, all at once, no more often than the bound allows.
pub(super) fn side_by_side(chain: &SyntheticChain, seed: u64) -> Result<f64> {
    let mut devices: BTreeMap<&str, Vec<(usize, Synthetic)>> = BTreeMap::new();
    for (at, (visit, stage)) in chain.visits.iter().zip(chain.stages(seed)).enumerate() {
        devices.entry(&visit.device).or_default().push((at, stage));
    }
    let mut lanes = Vec::new();
    for (device, stages) in devices {
        let actors = stages.iter().map(|(at, _)| chain.replicas_of(&chain.visits[*at])).sum();
        let count = chain.lanes_of(device).min(actors);
        let least = stages.len().div_ceil(count);
        let firings = chain.bound_per_s() * stages.len() as f64 / count as f64;
        let pace = Duration::try_from_secs_f64(1.0 / firings).unwrap_or(Duration::MAX);
        for lane in 0..count {
            let mut stages = stages.clone();
            let first = (lane * least) % stages.len();
            stages.rotate_left(first);
            lanes.push((device.to_owned(), Lane { stages, least, pace }));
        }
    }
    let sums = Mutex::new(vec![(Duration::ZERO, 0_u32); chain.visits.len()]);
    let until = Instant::now() + SEQUENTIAL;
    std::thread::scope(|scope| {
        let mut threads = Vec::with_capacity(lanes.len());
        for (device, lane) in lanes {
            let thread = std::thread::Builder::new().name(device);
            let sums = &sums;
            threads.push(thread.spawn_scoped(scope, move || work(&lane, until, sums))?);
        }
        for thread in threads {
            thread.join().map_err(|_| err!(Panic, "a synthetic stage panicked"))?;
        }
        Ok::<(), crate::error::Error>(())
    })?;
    let sums = sums.into_inner().unwrap_or_else(PoisonError::into_inner);
    let means: Vec<f64> =
        sums.iter().map(|(sum, n)| sum.as_secs_f64() / f64::from((*n).max(1))).collect();
    Ok(chain.bound_of(&means))
}

/// Runs the stages of a lane in turn and adds up what each took.
fn work(lane: &Lane, until: Instant, sums: &Mutex<Vec<(Duration, u32)>>) {
    let mut own = vec![(Duration::ZERO, 0_u32); lane.stages.len()];
    let began = Instant::now();
    let mut due = began;
    for n in 0_u64.. {
        let now = Instant::now();
        if n >= lane.least as u64 && now >= until {
            break;
        }
        let at = (n % lane.stages.len() as u64) as usize;
        // These stages do not fail.
        let _ = lane.stages[at].1.work(n);
        own[at].0 += now.elapsed();
        own[at].1 += 1;
        due += lane.pace;
        let rest = due.min(until).saturating_duration_since(Instant::now());
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
    }
    let mut sums = sums.lock().unwrap_or_else(PoisonError::into_inner);
    for ((at, _), (sum, n)) in lane.stages.iter().zip(own) {
        sums[*at].0 += sum;
        sums[*at].1 += n;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(chain: &SyntheticChain) -> f64 {
        side_by_side(chain, 1).unwrap()
    }

    #[test]
    fn replicas_lanes_and_single_firings_count() {
        // Never above the bound, as a stage is never early; and on a machine that does other things,
        // the best of some tries comes near to it.
        let chain = |text: &str| text.parse::<SyntheticChain>().unwrap();
        for chain in [
            chain("a:4ms,b:8ms").replicas("b", 2).unwrap(),
            chain("g:4ms,g:8ms").lanes("g", 2).unwrap(),
            chain("g:8ms,g:8ms,g:4ms").lanes("g", 2).unwrap(),
            chain("g:4ms,g:8ms").replicas("g.1", 2).unwrap(),
            chain("a:2ms,b:8ms"),
        ] {
            let bound = chain.bound_per_s();
            let mut best = 0.0_f64;
            for _ in 0..8 {
                let reached = machine(&chain);
                assert!(reached <= bound * (1.0 + 1e-9), "{reached} of {bound}: {chain:?}");
                best = best.max(reached);
                if best > 0.8 * bound {
                    break;
                }
            }
            assert!(best > 0.8 * bound, "{best} of {bound}: {chain:?}");
        }
    }
}
