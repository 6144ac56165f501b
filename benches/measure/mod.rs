//! Peak, inputs and clock of the kernel benches.

use brigade::kernels::Isa;
use std::hint::black_box;
use std::time::Instant;

/// GFLOP/s of a loop of independent multiply-adds in registers.
pub(crate) fn fma_peak() -> f64 {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        #[target_feature(enable = "avx2,fma")]
        fn burn(rounds: usize) -> f32 {
            let (x, y) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(1e-3)));
            let mut acc = [_mm256_set1_ps(1.0); 12];
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
        if Isa::best().name() == "avx2" {
            // Short bursts, so that the best one is not interrupted.
            let rounds = 100_000;
            let best = (0..100)
                .map(|_| {
                    let start = Instant::now();
                    // SAFETY: the CPU has AVX2 and FMA, or the Isa would have another name.
                    black_box(unsafe { burn(rounds) });
                    start.elapsed().as_secs_f64()
                })
                .fold(f64::INFINITY, f64::min);
            return rounds as f64 * 12.0 * 16.0 / best / 1e9;
        }
    }
    f64::NAN
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

/// Seconds of one call: the best and the median of repeated ones.
pub(crate) fn time(mut f: impl FnMut()) -> (f64, f64) {
    f();
    let mut seconds = Vec::new();
    let begin = Instant::now();
    while seconds.len() < 7 || (begin.elapsed().as_secs_f64() < 0.4 && seconds.len() < 5000) {
        let start = Instant::now();
        f();
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    (seconds[0], seconds[seconds.len() / 2])
}
