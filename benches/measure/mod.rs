//! Peak, inputs and clock of the kernel benches.

use brigade::kernels::{Isa, fma_burst};
use std::time::Instant;

/// Rounds of a burst of multiply-adds: about a tenth of a millisecond, so that it sees the same
/// clock frequency and the same neighbours as the call beside it.
const BURST: usize = 20_000;

/// Seconds and operations of a loop of independent multiply-adds in registers.
fn burst() -> (f64, f64) {
    let start = Instant::now();
    let flops = fma_burst(Isa::best(), BURST);
    (start.elapsed().as_secs_f64(), flops)
}

/// GFLOP/s of a loop of independent multiply-adds in registers.
pub(crate) fn fma_peak() -> f64 {
    let rates = (0..200).map(|_| burst()).map(|(seconds, flops)| flops / seconds);
    rates.fold(f64::NAN, f64::max) / 1e9
}

/// Pseudo-random numbers in -1..1.
pub(crate) fn numbers(len: usize) -> Vec<f32> {
    let mut x = 0x9E37_79B9_7F4A_7C15_u64;
    (0..len)
        .map(|_| {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            (x >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect()
}

/// What [`time`] measured of one call.
// Each bench reads some of them.
#[allow(dead_code)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    /// Seconds of the fastest round.
    pub best: f64,
    /// Seconds of the median round.
    pub median: f64,
    /// The median share of the multiply-add peak that was measured right before each round.
    pub share: f64,
}

/// Times a call of `flops` operations in rounds, with a burst of multiply-adds before each.
pub(crate) fn time(flops: f64, mut f: impl FnMut()) -> Timing {
    f();
    let start = Instant::now();
    f();
    // A round is long against the clock and short against what disturbs it.
    let calls = (2e-4 / start.elapsed().as_secs_f64().max(1e-9)).clamp(1.0, 1e4) as usize;
    let (mut seconds, mut shares) = (Vec::new(), Vec::new());
    let begin = Instant::now();
    while seconds.len() < 15 || (begin.elapsed().as_secs_f64() < 0.4 && seconds.len() < 2000) {
        let (took, computed) = burst();
        let peak = computed / took;
        let start = Instant::now();
        for _ in 0..calls {
            f();
        }
        let each = start.elapsed().as_secs_f64() / calls as f64;
        seconds.push(each);
        shares.push(flops / each / peak);
    }
    seconds.sort_by(f64::total_cmp);
    shares.sort_by(f64::total_cmp);
    Timing { best: seconds[0], median: seconds[seconds.len() / 2], share: shares[shares.len() / 2] }
}
