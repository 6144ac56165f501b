//! Convolution on one thread, plain and blocked one after the other, beside the multiply-add peak.
//!
//! `cargo bench --bench conv [-- WORD..]` prints, for the layers whose name contains a word, the
//! milliseconds of the best round and the median share of the peak that was measured right before
//! each round, for both layouts; taps that fall on padding are counted. `moves` prints reordering
//! and pooling, in GB/s of what they read and write.

#![allow(clippy::print_stdout)]

mod measure;

use brigade::kernels::{
    Activation, BlockedConv, ConvEpilogue, ConvInput, Isa, PackedConv, Serial, Window,
    blocked_conv2d, blocked_max_pool2d, conv2d, from_blocked, max_pool2d, to_blocked,
};
use measure::{fma_peak, numbers, time};
use std::hint::black_box;

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
    let flops = 2.0 * (out.len() * taps) as f64;
    for activation in [Activation::Relu, Activation::HardSwish] {
        let epilogue = ConvEpilogue { bias: Some(&bias), activation, ..Default::default() };
        let [a, b] = [false, true].map(|in_blocks| {
            time(flops, || {
                let (e, o) = (&epilogue, &mut out[..]);
                let done = match in_blocks {
                    false => conv2d(&x, 1, size, &plain, e, o, &Serial),
                    true => blocked_conv2d(&x, 1, size, &blocked, e, o, &Serial),
                };
                done.expect("sizes match");
                black_box(&mut out);
            })
        });
        let (p, q) = (100.0 * a.share, 100.0 * b.share);
        let (a, b) = (a.best * 1e3, b.best * 1e3);
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
    let t = time(0.0, || black_box(&mut out).copy_from_slice(&x));
    print("copy 64x112x112", both, t.best);
    let t = time(0.0, || {
        to_blocked(&x, 1, planes, plane, black_box(&mut out), &Serial).expect("sizes match");
    });
    print("to blocked", both, t.best);
    let t = time(0.0, || {
        from_blocked(&x, 1, planes, plane, black_box(&mut out), &Serial).expect("sizes match");
    });
    print("from blocked", both, t.best);
    let pooled = bytes(x.len(), planes * out_size[0] * out_size[1]);
    let t = time(0.0, || {
        let o = black_box(&mut out);
        max_pool2d(&x, planes, size, &window, out_size, o, &Serial).expect("sizes match");
    });
    print("max 3x3/2 plain", pooled, t.best);
    let t = time(0.0, || {
        let o = black_box(&mut out);
        blocked_max_pool2d(&x, planes, size, &window, out_size, o, &Serial).expect("sizes match");
    });
    print("max 3x3/2 blocked", pooled, t.best);
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
