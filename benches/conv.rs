//! Convolution on one thread, plain and blocked side by side, beside the multiply-add peak
//! measured in the same rounds.
//!
//! `cargo bench --bench conv [-- WORD..]` prints, for the layers whose name contains a word, the
//! median over rounds of the milliseconds and of the share of the peak, for both layouts. Each
//! round measures the peak, the plain and the blocked convolution one after the other; taps that
//! fall on padding are counted. At the end come reordering and pooling, in GB/s of what they read
//! and write.

#![allow(clippy::print_stdout)]

mod measure;

use brigade::kernels::{
    Activation, BlockedConv, ConvEpilogue, ConvInput, Isa, PackedConv, Serial, Window,
    blocked_conv2d, blocked_max_pool2d, conv2d, fma_gflops, from_blocked, max_pool2d, to_blocked,
};
use measure::{fma_peak, numbers, time};
use std::hint::black_box;
use std::time::Instant;

/// Name, input and output channels, groups, image, kernel, strides, padding on all sides.
type Layer = (&'static str, [usize; 3], [usize; 2], [usize; 2], [usize; 2], [usize; 2]);

const LAYERS: [Layer; 29] = [
    ("1x1 128-128", [128, 128, 1], [100, 76], [1, 1], [1, 1], [0, 0]),
    ("1x1 256-256", [256, 256, 1], [50, 38], [1, 1], [1, 1], [0, 0]),
    ("1x1 256-64", [256, 64, 1], [100, 76], [1, 1], [1, 1], [0, 0]),
    ("1x1 48-96", [48, 96, 1], [120, 160], [1, 1], [1, 1], [0, 0]),
    ("1x1 384-768", [384, 768, 1], [15, 20], [1, 1], [1, 1], [0, 0]),
    ("1x1 2048-512 7", [2048, 512, 1], [7, 7], [1, 1], [1, 1], [0, 0]),
    ("1x1 16-32", [16, 32, 1], [400, 304], [1, 1], [1, 1], [0, 0]),
    ("1x1 64-24", [64, 24, 1], [56, 56], [1, 1], [1, 1], [0, 0]),
    ("1x1/2 256-512", [256, 512, 1], [56, 56], [1, 1], [2, 2], [0, 0]),
    ("1x1 256-64 gate", [256, 64, 1], [1, 1], [1, 1], [1, 1], [0, 0]),
    ("3x3 96-32", [96, 32, 1], [120, 160], [3, 3], [1, 1], [1, 1]),
    ("3x3/2 48-32", [48, 32, 1], [240, 320], [3, 3], [2, 2], [1, 1]),
    ("3x3/2 96-48", [96, 48, 1], [24, 161], [3, 3], [2, 2], [1, 1]),
    ("3x39 8-16", [8, 16, 1], [172, 264], [3, 39], [1, 1], [1, 19]),
    ("5x5 8-16", [8, 16, 1], [172, 264], [5, 5], [1, 1], [2, 2]),
    ("7x3 32-16", [32, 16, 1], [172, 88], [7, 3], [1, 1], [3, 1]),
    ("3x3 16-8", [16, 8, 1], [120, 160], [3, 3], [1, 1], [1, 1]),
    ("3x3 64-64 56", [64, 64, 1], [56, 56], [3, 3], [1, 1], [1, 1]),
    ("3x3 256-256 14", [256, 256, 1], [14, 14], [3, 3], [1, 1], [1, 1]),
    ("3x3 512-512 7", [512, 512, 1], [7, 7], [3, 3], [1, 1], [1, 1]),
    ("first 2x2 12-32", [12, 32, 1], [241, 321], [2, 2], [1, 1], [0, 0]),
    ("first 3x3/2 3-32", [3, 32, 1], [480, 640], [3, 3], [2, 2], [1, 1]),
    ("first 3x3/2 3-16", [3, 16, 1], [800, 608], [3, 3], [2, 2], [1, 1]),
    ("first 7x7/2 3-64", [3, 64, 1], [224, 224], [7, 7], [2, 2], [3, 3]),
    ("depthwise 5x5 128", [128, 128, 128], [100, 76], [5, 5], [1, 1], [2, 2]),
    ("depthwise 5x5 256", [256, 256, 256], [50, 38], [5, 5], [1, 1], [2, 2]),
    ("depthwise 7x7 96", [96, 96, 96], [120, 160], [7, 7], [1, 1], [3, 3]),
    ("depthwise 3x3 64", [64, 64, 64], [112, 112], [3, 3], [1, 1], [1, 1]),
    ("depthwise 3x3/2 32", [32, 32, 32], [400, 304], [3, 3], [2, 2], [1, 1]),
];

const ROUNDS: usize = 7;

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

/// Seconds of the fastest call in about ten milliseconds.
fn fastest(f: &mut dyn FnMut()) -> f64 {
    let (begin, mut best) = (Instant::now(), f64::INFINITY);
    while begin.elapsed().as_secs_f64() < 0.01 {
        let start = Instant::now();
        f();
        best = best.min(start.elapsed().as_secs_f64());
    }
    best
}

fn layer(&(name, [ic, oc, groups], size, kernel, strides, pad): &Layer) {
    let window = Window { strides, pads: [pad[0], pad[1], pad[0], pad[1]], ..Window::new(kernel) };
    let out_size = window.output(size).expect("the image is large enough");
    let x = numbers(ic * size[0] * size[1]);
    let weights = numbers(oc * ic / groups * kernel[0] * kernel[1]);
    let bias = numbers(oc);
    let plain = PackedConv::new(&weights, oc, ic, groups, window).expect("sizes match");
    // The same numbers serve in either layout: only time is measured.
    let input = if name.starts_with("first") { ConvInput::Plain } else { ConvInput::Blocked };
    let blocked = BlockedConv::new(&weights, oc, ic, groups, window, input).expect("sizes match");
    let mut out = vec![0.0; oc * out_size[0] * out_size[1]];
    let taps = ic / groups * kernel[0] * kernel[1];
    let flops = 2.0 * (out.len() * taps) as f64 / 1e9;
    for activation in [Activation::Relu, Activation::HardSwish] {
        let epilogue = ConvEpilogue { bias: Some(&bias), activation, ..Default::default() };
        let (mut ms, mut shares) = ([vec![], vec![]], [vec![], vec![]]);
        for _ in 0..ROUNDS {
            let peak = fma_gflops(Isa::best());
            for layout in [0, 1] {
                let seconds = fastest(&mut || {
                    let (e, o) = (&epilogue, &mut out[..]);
                    let done = match layout {
                        0 => conv2d(&x, 1, size, &plain, e, o, &Serial),
                        _ => blocked_conv2d(&x, 1, size, &blocked, e, o, &Serial),
                    };
                    done.expect("sizes match");
                    black_box(&mut out);
                });
                ms[layout].push(seconds * 1e3);
                shares[layout].push(100.0 * flops / seconds / peak);
            }
        }
        let ([a, b], [p, q]) = (ms.map(median), shares.map(median));
        let act = format!("{activation:?}");
        println!(
            "{name:20} {act:10} plain {a:8.3} ms {p:5.1} %   blocked {b:8.3} ms {q:5.1} %   {:5.2} x",
            a / b
        );
    }
}

fn moves() {
    let (planes, size) = (64, [112, 112]);
    let x = numbers(planes * size[0] * size[1]);
    let plane = size[0] * size[1];
    let mut out = vec![0.0; x.len()];
    let window = Window { strides: [2, 2], pads: [1; 4], ..Window::new([3, 3]) };
    let out_size = window.output(size).expect("the image is large enough");
    let bytes = |reads: usize, writes: usize| 4.0 * (reads + writes) as f64;
    let print = |what: &str, bytes: f64, seconds: f64| {
        println!("{what:20} {:8.3} ms {:5.1} GB/s", seconds * 1e3, bytes / seconds / 1e9);
    };
    let both = bytes(x.len(), x.len());
    let (best, _) = time(|| black_box(&mut out).copy_from_slice(&x));
    print("copy 64x112x112", both, best);
    let (best, _) = time(|| {
        to_blocked(&x, 1, planes, plane, black_box(&mut out), &Serial).expect("sizes match");
    });
    print("to blocked", both, best);
    let (best, _) = time(|| {
        from_blocked(&x, 1, planes, plane, black_box(&mut out), &Serial).expect("sizes match");
    });
    print("from blocked", both, best);
    let pooled = bytes(x.len(), planes * out_size[0] * out_size[1]);
    let (best, _) = time(|| {
        let o = black_box(&mut out);
        max_pool2d(&x, planes, size, &window, out_size, o, &Serial).expect("sizes match");
    });
    print("max 3x3/2 plain", pooled, best);
    let (best, _) = time(|| {
        let o = black_box(&mut out);
        blocked_max_pool2d(&x, planes, size, &window, out_size, o, &Serial).expect("sizes match");
    });
    print("max 3x3/2 blocked", pooled, best);
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let wanted = |name: &str| words.is_empty() || words.iter().any(|w| name.contains(w.as_str()));
    println!("{} peak {:.1} GFLOP/s", Isa::best().name(), fma_peak());
    LAYERS.iter().filter(|l| wanted(l.0)).for_each(layer);
    if wanted("moves") {
        moves();
    }
}
