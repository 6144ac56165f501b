//! Products with 4096 × 4096 weights in blocks.
//!
//! `cargo bench --bench dequant [-- WORD..]` prints, for the rows whose name contains a word, the best
//! and the median time. One row of numbers: the weights' GB/s, and their share of what plain reads of
//! memory reach on as many threads, measured right before each round; *in cache* means one matrix,
//! which the last-level cache may hold, *beyond it* a different matrix of 384 MiB of them each time.
//! 32 rows: GFLOP/s, beside the product of floats.

#![allow(clippy::print_stdout)]

use brigade::kernels::{
    BlockFormat, BlockMatrix, Epilogue, MatMut, MatRef, PackedB, PackedBlocks, Parallel, Serial,
    gemm,
};
use std::hint::black_box;
use std::time::Instant;

const N: usize = 4096;
/// Bytes of weights, or of plain memory, that no cache of present CPUs holds.
const COLD: usize = 384 << 20;
/// Bytes that a round reads to see how fast memory is just now.
const PROBE: usize = 48 << 20;

fn numbers(len: usize) -> Vec<f32> {
    let mut x = 0x9E37_79B9_7F4A_7C15_u64;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

/// Random blocks whose scales are small and finite.
fn blocks(format: &BlockFormat) -> Vec<u8> {
    let mut bytes: Vec<u8> = numbers(N * N / format.weights * format.bytes)
        .iter()
        .map(|v| (v * 127.0) as i8 as u8)
        .collect();
    for block in bytes.chunks_exact_mut(format.bytes) {
        for (at, size) in format.fields {
            block[at + size - 1] = 0x2C;
        }
        if format.name == "MXFP4" {
            // A power of two: an exponent of its own.
            block[0] = 120 + block[0] % 8;
        }
    }
    bytes
}

/// Seconds to read so many bytes of `data` from `at` on, in `par`'s threads.
fn read(data: &[u64], at: usize, par: &dyn Parallel) -> f64 {
    let threads = par.threads();
    let each = PROBE / 8 / threads;
    let next = std::sync::atomic::AtomicUsize::new(0);
    let start = Instant::now();
    par.run(threads, &|| {
        let i = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let words = data.get(at + i * each..at + (i + 1) * each).unwrap_or(&[]);
        let sums = words.chunks_exact(32).fold([0_u64; 32], |mut sums, c| {
            sums.iter_mut().zip(c).for_each(|(s, v)| *s = s.wrapping_add(*v));
            sums
        });
        black_box(sums);
    });
    start.elapsed().as_secs_f64()
}

struct Row {
    best: f64,
    median: f64,
    /// GB/s of plain reads: the best and the median.
    memory: (f64, f64),
}

/// Times `f` in rounds, with a burst of plain reads before each where `probe` is given.
fn time(probe: Option<&[u64]>, par: &dyn Parallel, mut f: impl FnMut()) -> Row {
    f();
    let (mut seconds, mut rates) = (Vec::new(), Vec::new());
    let (begin, mut at) = (Instant::now(), 0);
    while seconds.len() < 15 || (begin.elapsed().as_secs_f64() < 1.5 && seconds.len() < 2000) {
        if let Some(data) = probe {
            rates.push(PROBE as f64 / read(data, at, par) / 1e9);
            at = if at + 2 * PROBE / 8 > data.len() { 0 } else { at + PROBE / 8 };
        }
        let start = Instant::now();
        f();
        seconds.push(start.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    rates.sort_by(f64::total_cmp);
    let middle = |v: &[f64]| v.get(v.len() / 2).copied().unwrap_or(f64::NAN);
    let memory = (rates.last().copied().unwrap_or(f64::NAN), middle(&rates));
    Row { best: seconds[0], median: middle(&seconds), memory }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let wanted = |name: &str| words.is_empty() || words.iter().any(|w| name.contains(w.as_str()));
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().expect("threads");
    let pars: [(usize, &dyn Parallel); 2] = [(1, &Serial), (2, &pool)];
    let memory = vec![1_u64; COLD / 8];
    let (x, mut y) = (numbers(32 * N), vec![0.0; 32 * N]);
    for name in ["Q4_0", "Q8_0", "Q4_K", "Q5_0", "Q5_K", "Q6_K", "MXFP4"] {
        if !wanted(name) {
            continue;
        }
        let format = BlockFormat::named(name).expect("it is in the table");
        let bytes = blocks(format);
        let row_bytes = N / format.weights * format.bytes;
        let w = BlockMatrix::new(format, &bytes, N, row_bytes).expect("sizes match");
        let packed = PackedBlocks::new(w).expect("it has a kernel");
        let copies = COLD.div_ceil(packed.bytes());
        let cold = vec![packed; copies];
        for (threads, par) in pars {
            for (place, count) in [("in cache", 1), ("beyond it", copies)] {
                let mut turn = 0;
                let probe = (count > 1).then_some(&memory[..]);
                let t = time(probe, par, || {
                    turn += 1;
                    cold[turn % count].multiply(&x[..N], 1, &mut y[..N], par).expect("sizes");
                    black_box(&mut y);
                });
                let rate = |s: f64| bytes.len() as f64 / s / 1e9;
                print!(
                    "{name:6} 1 row, {threads} threads, {place:10} {:8.0} us best {:8.0} us median \
                     {:6.1} GB/s best {:6.1} median",
                    t.best * 1e6,
                    t.median * 1e6,
                    rate(t.best),
                    rate(t.median)
                );
                if count > 1 {
                    let (best, median) = t.memory;
                    print!(
                        "; plain reads {best:5.1} best {median:5.1} median: {:4.0} % and {:4.0} %",
                        100.0 * rate(t.best) / best,
                        100.0 * rate(t.median) / median
                    );
                }
                println!();
            }
            let t = time(None, par, || {
                cold[0].multiply_exact(&x[..N], 1, &mut y[..N], par).expect("sizes match");
                black_box(&mut y);
            });
            println!(
                "{name:6} 1 row, exact, {threads} threads, in cache {:8.0} us best {:8.0} us median",
                t.best * 1e6,
                t.median * 1e6
            );
            for exact in [false, true] {
                let t = time(None, par, || {
                    let w = &cold[0];
                    let done = match exact {
                        true => w.multiply_exact(&x, 32, &mut y, par),
                        false => w.multiply(&x, 32, &mut y, par),
                    };
                    done.expect("sizes match");
                    black_box(&mut y);
                });
                let kind = if exact { "32 rows, exact" } else { "32 rows" };
                print_rate(&format!("{name:6} {kind}, {threads} threads"), &t);
            }
        }
    }
    if wanted("f32") {
        let w = numbers(N * N);
        let w = PackedB::new(MatRef::row_major(&w, N, N).expect("sizes match")).expect("fits");
        for (threads, par) in pars {
            let t = time(None, par, || {
                let to = MatMut::row_major(&mut y, 32, N).expect("sizes match");
                let x = MatRef::row_major(&x, 32, N).expect("sizes match");
                gemm(x, &w, to, &Epilogue::default(), par).expect("sizes match");
                black_box(&mut y);
            });
            print_rate(&format!("f32    32 rows, {threads} threads"), &t);
        }
    }
}

fn print_rate(name: &str, t: &Row) {
    let rate = |s: f64| 2.0 * (32 * N * N) as f64 / s / 1e9;
    println!(
        "{name:40} {:8.0} us best {:8.0} us median {:6.1} GFLOP/s best {:6.1} median",
        t.best * 1e6,
        t.median * 1e6,
        rate(t.best),
        rate(t.median)
    );
}
