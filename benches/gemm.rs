//! Matrix multiplication on one thread, beside the multiply-add peak measured in the same run.
//!
//! `cargo bench --bench gemm [-- WORD..]` prints, for the shapes whose name contains a word, the
//! best and the median GFLOP/s and the best's share of the peak.

#![allow(clippy::print_stdout)]

use brigade::kernels::{
    Activation, Bias, Epilogue, Isa, MatMut, MatRef, PackedA, PackedB, Serial, gemm,
};
use std::hint::black_box;
use std::time::Instant;

/// GFLOP/s of a loop of independent multiply-adds in registers.
fn fma_peak() -> f64 {
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
            let rounds = 2_000_000;
            let best = (0..7)
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
fn numbers(len: usize) -> Vec<f32> {
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
fn time(mut f: impl FnMut()) -> (f64, f64) {
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

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let peak = fma_peak();
    println!("{} peak {peak:.1} GFLOP/s", Isa::best().name());
    let shapes = [
        (32, 1024, 1024),
        (128, 384, 1536),
        (3136, 576, 64),
        (196, 1152, 256),
        (1024, 1024, 1024),
        (128, 64, 128),
        (8, 512, 512),
        (1, 4096, 4096),
    ];
    for (m, k, n) in shapes {
        let (a, b, bias) = (numbers(m * k), numbers(k * n), numbers(n));
        let mut c = vec![0.0; m * n];
        let am = MatRef::row_major(&a, m, k).expect("sizes match");
        let bm = MatRef::row_major(&b, k, n).expect("sizes match");
        let pa = PackedA::new(am).expect("fits");
        let pb = PackedB::new(bm).expect("fits");
        let plain = Epilogue::default();
        let relu = Epilogue {
            bias: Bias::PerColumn(&bias),
            activation: Activation::Relu,
            ..Epilogue::default()
        };
        let gelu = Epilogue { activation: Activation::Gelu, ..relu };
        for variant in
            ["packed B", "packed B, bias, Relu", "packed B, bias, Gelu", "packed A", "plain"]
        {
            let name = format!("{m}x{k}x{n} {variant}");
            if !words.is_empty() && !words.iter().any(|w| name.contains(w.as_str())) {
                continue;
            }
            let (best, median) = time(|| {
                let out = MatMut::row_major(&mut c, m, n).expect("sizes match");
                match variant {
                    "packed B" => gemm(am, &pb, out, &plain, &Serial),
                    "packed B, bias, Relu" => gemm(am, &pb, out, &relu, &Serial),
                    "packed B, bias, Gelu" => gemm(am, &pb, out, &gelu, &Serial),
                    "packed A" => gemm(&pa, bm, out, &plain, &Serial),
                    _ => gemm(am, bm, out, &plain, &Serial),
                }
                .expect("shapes match");
                black_box(&mut c);
            });
            let flops = 2.0 * (m * k * n) as f64 / 1e9;
            let (b, md) = (flops / best, flops / median);
            println!("{name:40} {b:7.1} best {md:7.1} median {:5.1} % of peak", 100.0 * b / peak);
        }
    }
}
