//! The peaks of one thread, measured: arithmetic, and reading memory.

use std::hint::black_box;
use std::time::Instant;

use super::Isa;
use super::isa::Kind;

/// Accumulators that are in flight at once: more than latency times ports of present CPUs.
const CHAINS: usize = 12;

/// GFLOP/s of independent f32 multiply-adds in the registers of an instruction set, on one
/// thread: what no kernel can pass. Takes some ten milliseconds.
///
/// ```
/// use brigade::kernels::{Isa, fma_gflops};
/// assert!(fma_gflops(Isa::best()) > 0.0);
/// ```
pub fn fma_gflops(isa: Isa) -> f64 {
    const ROUNDS: usize = 400_000;
    let mut flops = 0.0;
    let seconds = shortest(7, || flops = fma_burst(isa, ROUNDS));
    flops / seconds / 1e9
}

/// GB/s of one thread that reads memory which no cache holds. Takes some hundred milliseconds and
/// 256 MiB.
///
/// ```
/// assert!(brigade::kernels::read_gb_per_s() > 0.0);
/// ```
pub fn read_gb_per_s() -> f64 {
    const WORDS: usize = 32 << 20;
    let data = vec![1_u64; WORDS];
    let seconds = shortest(5, || {
        let sums = black_box(&data).chunks_exact(8).fold([0_u64; 8], |mut sums, c| {
            for (s, v) in sums.iter_mut().zip(c) {
                *s = s.wrapping_add(*v);
            }
            sums
        });
        black_box(sums);
    });
    (WORDS * 8) as f64 / seconds / 1e9
}

/// The seconds of the shortest of so many runs; fewer, but one, if they take more than a second,
/// as they do in builds without optimisation.
fn shortest(runs: usize, mut work: impl FnMut()) -> f64 {
    let began = Instant::now();
    let mut best = f64::INFINITY;
    for _ in 0..runs {
        let start = Instant::now();
        work();
        best = best.min(start.elapsed().as_secs_f64());
        if began.elapsed().as_secs_f64() > 1.0 {
            break;
        }
    }
    best.max(1e-9)
}

/// Computes so many rounds of independent f32 multiply-adds in the registers of an instruction set,
/// on this thread, and gives how many operations that were. 20,000 rounds take about a tenth of a
/// millisecond: short enough to see the clock frequency and the neighbours of what is timed beside it.
///
/// ```
/// use brigade::kernels::{Isa, fma_burst};
/// assert_eq!(fma_burst(Isa::scalar(), 10), 2.0 * fma_burst(Isa::scalar(), 5));
/// ```
pub fn fma_burst(isa: Isa, rounds: usize) -> f64 {
    match isa.kind() {
        #[cfg(target_arch = "x86_64")]
        Kind::Avx2 => {
            // SAFETY: an Isa of this kind exists only where the CPU has AVX2 and FMA.
            black_box(unsafe { avx2(rounds) });
            (rounds * CHAINS * 8 * 2) as f64
        }
        #[cfg(target_arch = "x86_64")]
        Kind::Avx512 => {
            // SAFETY: an Isa of this kind exists only where the CPU has AVX-512 F.
            black_box(unsafe { avx512(rounds) });
            (rounds * CHAINS * 16 * 2) as f64
        }
        Kind::Scalar => {
            let (x, y) = (black_box(0.999_f32), black_box(1e-3_f32));
            let mut acc = [1.0_f32; CHAINS];
            for _ in 0..rounds {
                for a in &mut acc {
                    *a = *a * x + y;
                }
            }
            black_box(acc);
            (rounds * CHAINS * 2) as f64
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
fn avx2(rounds: usize) -> f32 {
    use std::arch::x86_64::*;
    let (x, y) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(1e-3)));
    let mut acc = [_mm256_set1_ps(1.0); CHAINS];
    for _ in 0..rounds {
        for a in &mut acc {
            *a = _mm256_fmadd_ps(*a, x, y);
        }
    }
    let mut sum = acc[0];
    for a in &acc[1..] {
        sum = _mm256_add_ps(sum, *a);
    }
    _mm256_cvtss_f32(sum)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn avx512(rounds: usize) -> f32 {
    use std::arch::x86_64::*;
    let (x, y) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(1e-3)));
    let mut acc = [_mm512_set1_ps(1.0); CHAINS];
    for _ in 0..rounds {
        for a in &mut acc {
            *a = _mm512_fmadd_ps(*a, x, y);
        }
    }
    let mut sum = acc[0];
    for a in &acc[1..] {
        sum = _mm512_add_ps(sum, *a);
    }
    _mm512_cvtss_f32(sum)
}
