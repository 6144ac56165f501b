//! Matrix multiplication on one thread, beside the multiply-add peak measured in the same run.
//!
//! `cargo bench --bench gemm [-- WORD..]` prints, for the shapes whose name contains a word, the
//! best and the median GFLOP/s, and the median share of the peak that was measured right before each
//! round.

#![allow(clippy::print_stdout)]

mod measure;

use brigade::kernels::{
    Activation, Bias, Bytes, Epilogue, Isa, MatMut, MatRef, PackedA, PackedB, PackedBf16, PackedQ,
    QMatRef, Serial, gemm, qgemm,
};
use measure::{fma_peak, numbers, time};
use std::hint::black_box;

/// Bytes of packed weights that no cache of present CPUs holds.
const COLD_BYTES: usize = 160 << 20;

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
        (2048, 257, 64),
        (8, 512, 512),
        (16, 384, 1536),
        (16, 384, 384),
        (1, 4096, 4096),
    ];
    for (m, k, n) in shapes {
        let (a, b, bias) = (numbers(m * k), numbers(k * n), numbers(n));
        let mut c = vec![0.0; m * n];
        let am = MatRef::row_major(&a, m, k).expect("sizes match");
        let bm = MatRef::row_major(&b, k, n).expect("sizes match");
        let pa = PackedA::new(am).expect("fits");
        let pb = PackedB::new(bm).expect("fits");
        // So many copies that none is left in a cache when its turn comes.
        let cold = vec![pb.clone(); (COLD_BYTES / pb.bytes().max(1) + 1).min(256)];
        let half = PackedBf16::new(bm).expect("fits");
        let cold_half = vec![half.clone(); (COLD_BYTES / half.bytes().max(1) + 1).min(256)];
        let mut turn = 0;
        let plain = Epilogue::default();
        let relu = Epilogue {
            bias: Bias::PerColumn(&bias),
            activation: Activation::Relu,
            ..Epilogue::default()
        };
        let gelu = Epilogue { activation: Activation::Gelu, ..relu };
        for variant in [
            "packed B",
            "packed B, cold",
            "bf16",
            "bf16, cold",
            "packed B, bias, Relu",
            "packed B, bias, Gelu",
            "packed A",
            "plain",
        ] {
            let name = format!("{m}x{k}x{n} {variant}");
            if !words.is_empty() && !words.iter().any(|w| name.contains(w.as_str())) {
                continue;
            }
            let flops = 2.0 * (m * k * n) as f64;
            let t = time(flops, || {
                let out = MatMut::row_major(&mut c, m, n).expect("sizes match");
                match variant {
                    "packed B" => gemm(am, &pb, out, &plain, &Serial),
                    "packed B, cold" => {
                        turn += 1;
                        gemm(am, &cold[turn % cold.len()], out, &plain, &Serial)
                    }
                    "bf16" => gemm(am, &half, out, &plain, &Serial),
                    "bf16, cold" => {
                        turn += 1;
                        gemm(am, &cold_half[turn % cold_half.len()], out, &plain, &Serial)
                    }
                    "packed B, bias, Relu" => gemm(am, &pb, out, &relu, &Serial),
                    "packed B, bias, Gelu" => gemm(am, &pb, out, &gelu, &Serial),
                    "packed A" => gemm(&pa, bm, out, &plain, &Serial),
                    _ => gemm(am, bm, out, &plain, &Serial),
                }
                .expect("shapes match");
                black_box(&mut c);
            });
            let (b, md) = (flops / t.best / 1e9, flops / t.median / 1e9);
            println!("{name:40} {b:7.1} best {md:7.1} median {:5.1} % of peak", 100.0 * t.share);
        }
    }
    for (m, k, n) in [(128, 384, 1536), (196, 1152, 256), (1, 4096, 4096)] {
        let name = format!("{m}x{k}x{n} u8 x i8");
        if !words.is_empty() && !words.iter().any(|w| name.contains(w.as_str())) {
            continue;
        }
        let a: Vec<u8> = numbers(m * k).iter().map(|v| (v * 127.0 + 128.0) as u8).collect();
        let b: Vec<i8> = numbers(k * n).iter().map(|v| (v * 127.0) as i8).collect();
        let mut c = vec![0; m * n];
        let am = QMatRef::row_major(Bytes::Unsigned(&a), m, k).expect("sizes match");
        let bm = QMatRef::row_major(Bytes::Signed(&b), k, n).expect("sizes match");
        let pb = PackedQ::new(bm, &[0]).expect("fits");
        let ops = 2.0 * (m * k * n) as f64;
        let t = time(ops, || {
            qgemm(am, &[128], &pb, &mut c, n, &Serial).expect("shapes match");
            black_box(&mut c);
        });
        let (b, md) = (ops / t.best / 1e9, ops / t.median / 1e9);
        println!("{name:40} {b:7.1} best {md:7.1} median GOP/s");
    }
}
