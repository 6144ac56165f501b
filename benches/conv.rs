//! Convolution on one thread, beside the multiply-add peak measured in the same run.
//!
//! `cargo bench --bench conv [-- WORD..]` prints, for the layers whose name contains a word,
//! milliseconds (best and median), GFLOP/s of the best, and the median share of the peak that was
//! measured right before each round; taps that fall
//! on padding are counted.

#![allow(clippy::print_stdout)]

mod measure;

use brigade::kernels::{Activation, ConvEpilogue, Isa, PackedConv, Serial, Window, conv2d};
use measure::{fma_peak, numbers, time};
use std::hint::black_box;

/// Name, input and output channels, groups, image, kernel, strides, padding on all sides.
type Layer = (&'static str, [usize; 3], [usize; 2], [usize; 2], [usize; 2], [usize; 2]);

const LAYERS: [Layer; 17] = [
    ("1x1 128-128", [128, 128, 1], [100, 76], [1, 1], [1, 1], [0, 0]),
    ("1x1 256-256", [256, 256, 1], [50, 38], [1, 1], [1, 1], [0, 0]),
    ("1x1 256-64", [256, 64, 1], [100, 76], [1, 1], [1, 1], [0, 0]),
    ("1x1 48-96", [48, 96, 1], [120, 160], [1, 1], [1, 1], [0, 0]),
    ("1x1 384-768", [384, 768, 1], [15, 20], [1, 1], [1, 1], [0, 0]),
    ("1x1 16-32", [16, 32, 1], [400, 304], [1, 1], [1, 1], [0, 0]),
    ("3x3 96-32", [96, 32, 1], [120, 160], [3, 3], [1, 1], [1, 1]),
    ("3x3/2 48-32", [48, 32, 1], [240, 320], [3, 3], [2, 2], [1, 1]),
    ("3x39 8-16", [8, 16, 1], [172, 264], [3, 39], [1, 1], [1, 19]),
    ("first 3x3/2 3-32", [3, 32, 1], [480, 640], [3, 3], [2, 2], [1, 1]),
    ("3x3 64-64 56", [64, 64, 1], [56, 56], [3, 3], [1, 1], [1, 1]),
    ("3x3 512-512 7", [512, 512, 1], [7, 7], [3, 3], [1, 1], [1, 1]),
    ("depthwise 5x5 128", [128, 128, 128], [100, 76], [5, 5], [1, 1], [2, 2]),
    ("depthwise 5x5 256", [256, 256, 256], [50, 38], [5, 5], [1, 1], [2, 2]),
    ("depthwise 7x7 96", [96, 96, 96], [120, 160], [7, 7], [1, 1], [3, 3]),
    ("depthwise 3x3 64", [64, 64, 64], [112, 112], [3, 3], [1, 1], [1, 1]),
    ("depthwise 3x3/2 32", [32, 32, 32], [400, 304], [3, 3], [2, 2], [1, 1]),
];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with('-')).collect();
    let peak = fma_peak();
    println!("{} peak {peak:.1} GFLOP/s", Isa::best().name());
    for (name, [ic, oc, groups], size, kernel, strides, pad) in LAYERS {
        if !words.is_empty() && !words.iter().any(|w| name.contains(w.as_str())) {
            continue;
        }
        let window =
            Window { strides, pads: [pad[0], pad[1], pad[0], pad[1]], ..Window::new(kernel) };
        let out_size = window.output(size).expect("the image is large enough");
        let x = numbers(ic * size[0] * size[1]);
        let weights = numbers(oc * ic / groups * kernel[0] * kernel[1]);
        let bias = numbers(oc);
        let packed = PackedConv::new(&weights, oc, ic, groups, window).expect("sizes match");
        let mut out = vec![0.0; oc * out_size[0] * out_size[1]];
        let taps = ic / groups * kernel[0] * kernel[1];
        let flops = 2.0 * (out.len() * taps) as f64;
        for activation in [Activation::Relu, Activation::HardSwish] {
            let epilogue = ConvEpilogue { bias: Some(&bias), activation, ..Default::default() };
            let t = time(flops, || {
                conv2d(&x, 1, size, &packed, &epilogue, &mut out, &Serial).expect("sizes match");
                black_box(&mut out);
            });
            let (rate, share) = (flops / t.best / 1e9, 100.0 * t.share);
            let (b, m) = (t.best * 1e3, t.median * 1e3);
            let act = format!("{activation:?}");
            println!(
                "{name:20} {act:10} {b:8.3} best {m:8.3} median ms {rate:7.1} GFLOP/s {share:5.1} %"
            );
        }
    }
}
