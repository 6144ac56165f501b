//! Convolutions over two axes.
//!
//! Words: 0: input channels per group, output channels per group, groups, output tiles per row;
//! 4: input height, width, output height, width; 8: kernel height, width, stride down, across;
//! 12: dilation down, across, padding above, left.

use super::FLAT;
use super::product::{Epilogue, SHARED_SIDE, accumulate, tiles};
use crate::gpu::ir::{Builder, Expr, Kernel, Operand, Scalar, Var, fma, select};

const F: Scalar = Scalar::F32;
const I: Scalar = Scalar::I32;
const U: Scalar = Scalar::U32;

/// Output positions along a row that one thread computes.
pub(in crate::gpu) const PIXELS: u32 = 4;

/// One thread computes [`PIXELS`] positions of `channels` output channels of a group: for depthwise
/// convolutions, and wherever barriers cost.
pub(in crate::gpu) fn direct(channels: u32, epilogue: Epilogue) -> Kernel {
    let name = format!("convolution_x{channels}{}", epilogue.name());
    let mut b = Builder::new(&name, 4, [FLAT, 1, 1], F);
    let (x, w) = (b.input(F), b.input(F));
    let [bias, residual] = epilogue.inputs(&mut b);
    let (inner, outer, groups, tiles) =
        (b.bind(b.word(0)), b.bind(b.word(1)), b.bind(b.word(2)), b.bind(b.word(3)));
    let (h, width) = (b.bind(b.word(4).to(I)), b.bind(b.word(5).to(I)));
    let (oh, ow) = (b.bind(b.word(6)), b.bind(b.word(7)));
    let (kh, kw) = (b.bind(b.word(8)), b.bind(b.word(9)));
    let place = b.bind(b.global(0));
    let oy = b.bind(place / tiles);
    let ox = b.bind(place % tiles * PIXELS);
    b.leave_if(oy.ge(oh));
    let blocks = b.bind((outer + (channels - 1)) / channels);
    let down = b.bind(b.global(1));
    let group = b.bind(down / blocks);
    let o = b.bind(down % blocks * channels);
    let item = b.bind(b.global(2));
    let plane = b.bind((h * width).to(U));
    let taps = b.bind(kh * kw);
    let weights: Vec<Var> = (0..channels)
        .map(|j| {
            let channel = (o + j).min(outer - 1_u32);
            b.bind((group * outer + channel) * inner * taps)
        })
        .collect();
    let sums: Vec<Var> = (0..channels * PIXELS).map(|_| b.variable(0.0)).collect();
    let left: Vec<Var> =
        (0..PIXELS).map(|q| b.bind(((ox + q) * b.word(11)).to(I) - b.word(15).to(I))).collect();
    let first = b.bind((item * groups + group) * inner * plane);
    b.each(0_u32, kh, 1_u32, |b, ky| {
        let iy = b.bind((oy * b.word(10) + ky * b.word(12)).to(I) - b.word(14).to(I));
        b.when(iy.ge(0_i32).and(iy.lt(h)), |b| {
            let row = b.bind(iy * width);
            b.each(0_u32, kw, 1_u32, |b, kx| {
                let step = b.bind((kx * b.word(13)).to(I));
                let mut at = Vec::new();
                let mut inside = Vec::new();
                for l in &left {
                    let ix = b.bind(*l + step);
                    inside.push(b.bind(ix.ge(0_i32).and(ix.lt(width))));
                    let kept = ix.max(0_i32).min(width - 1_i32);
                    at.push(b.bind((kept + row).to(U)));
                }
                let tap = b.bind(ky * kw + kx);
                b.each(0_u32, inner, 1_u32, |b, i| {
                    let from = b.bind(first + i * plane);
                    let v: Vec<Var> = at
                        .iter()
                        .zip(&inside)
                        .map(|(at, inside)| b.bind(select(*inside, b.load(x, *at + from), 0.0)))
                        .collect();
                    let tap = b.bind(i * taps + tap);
                    let u: Vec<Var> =
                        weights.iter().map(|base| b.bind(b.load(w, *base + tap))).collect();
                    accumulate(b, &sums, &u, &v);
                });
            });
        });
    });
    for j in 0..channels {
        b.when((o + j).lt(outer), |b| {
            let channel = b.bind(group * outer + o + j);
            let row = b.bind(((item * groups * outer + channel) * oh + oy) * ow + ox);
            for q in 0..PIXELS {
                let sum = Expr::from(sums[(j * PIXELS + q) as usize]);
                b.when((ox + q).lt(ow), |b| {
                    let at = b.bind(row + q);
                    let extra = bias.map(|bias| b.load(bias, channel));
                    epilogue.store(b, residual, sum, extra, at);
                });
            }
        });
    }
    b.finish()
}

/// The convolution of a group of an item as a product: weights times the input's windows, which
/// exist nowhere but in the group's memory.
pub(in crate::gpu) fn implicit(epilogue: Epilogue) -> Kernel {
    let name = format!("convolution_tiled{}", epilogue.name());
    let mut b = Builder::new(&name, 4, [SHARED_SIDE, SHARED_SIDE, 1], F);
    let (x, w) = (b.input(F), b.input(F));
    let [bias, residual] = epilogue.inputs(&mut b);
    let (inner, outer, groups) = (b.bind(b.word(0)), b.bind(b.word(1)), b.bind(b.word(2)));
    let (h, width) = (b.bind(b.word(4)), b.bind(b.word(5)));
    let ow = b.bind(b.word(7));
    let (kh, kw) = (b.bind(b.word(8)), b.bind(b.word(9)));
    let pixels = b.bind(b.word(6) * ow);
    let taps = b.bind(kh * kw);
    let depth = b.bind(inner * taps);
    let z = b.bind(b.group(2));
    let group = b.bind(z % groups);
    let load_w =
        move |b: &mut Builder, row: Var, i: Var| b.load(w, (group * outer + row) * depth + i);
    let load_x = move |b: &mut Builder, i: Var, pixel: Var| {
        let channel = b.bind(i / taps);
        let tap = b.bind(i % taps);
        let (oy, ox) = (b.bind(pixel / ow), b.bind(pixel % ow));
        let y = oy * b.word(10) + tap / kw * b.word(12);
        let y = b.bind(y.to(I) - b.word(14).to(I));
        let across = ox * b.word(11) + tap % kw * b.word(13);
        let across = b.bind(across.to(I) - b.word(15).to(I));
        // A negative number is a large one without its sign.
        let inside = b.bind(y.to(U).lt(h).and(across.to(U).lt(width)));
        let plane = b.bind((z * inner + channel) * h);
        let at = select(inside, (plane + y.to(U)) * width + across.to(U), 0_u32);
        select(inside, b.load(x, at), 0.0)
    };
    let store = move |b: &mut Builder, row: Var, pixel: Var, sum: Expr| {
        let at = b.bind((z * outer + row) * pixels + pixel);
        let extra = bias.map(|bias| b.load(bias, group * outer + row));
        epilogue.store(b, residual, sum, extra, at);
    };
    tiles(&mut b, F, [outer, pixels, depth], load_w, load_x, store);
    b.finish()
}

/// A transposed convolution; a thread computes one element. Words: 0: count, threads in a row of
/// groups, input channels per group, output channels per group; 4 to 15 as those of a convolution;
/// 16: groups.
pub(in crate::gpu) fn transposed(bias: bool) -> Kernel {
    let name = if bias { "convolution_transposed_bias" } else { "convolution_transposed" };
    let mut b = Builder::new(name, 5, [FLAT, 1, 1], F);
    let (x, w) = (b.input(F), b.input(F));
    let bias = bias.then(|| b.input(F));
    let i = b.flat();
    let (inner, outer, groups) = (b.bind(b.word(2)), b.bind(b.word(3)), b.bind(b.word(16)));
    let (h, width) = (b.bind(b.word(4)), b.bind(b.word(5)));
    let (kh, kw) = (b.bind(b.word(8)), b.bind(b.word(9)));
    let ow = b.bind(b.word(7));
    let (ox, row) = (b.bind(i % ow), b.bind(i / ow));
    let (oy, plane) = (b.bind(row % b.word(6)), b.bind(row / b.word(6)));
    let channel = b.bind(plane % (groups * outer));
    let item = b.bind(plane / (groups * outer));
    let group = b.bind(channel / outer);
    let sum = b.variable(0.0);
    b.each(0_u32, kh, 1_u32, |b, ky| {
        // The input row, times the stride; beyond the first row it is a large number.
        let y = b.bind(oy + b.word(14) - ky * b.word(12));
        let iy = b.bind(y / b.word(10));
        let fits = y.le(0x7fff_ffff_u32).and((y % b.word(10)).equals(0_u32)).and(iy.lt(h));
        b.when(fits, |b| {
            b.each(0_u32, kw, 1_u32, |b, kx| {
                let across = b.bind(ox + b.word(15) - kx * b.word(13));
                let ix = b.bind(across / b.word(11));
                let fits = across.le(0x7fff_ffff_u32);
                let fits = fits.and((across % b.word(11)).equals(0_u32)).and(ix.lt(width));
                b.when(fits, |b| {
                    let tap = b.bind(ky * kw + kx);
                    b.each(0_u32, inner, 1_u32, |b, c| {
                        let from = b.bind(group * inner + c);
                        let at = ((item * groups * inner + from) * h + iy) * width + ix;
                        let weight = (from * outer + channel % outer) * kh * kw + tap;
                        let next = fma(b.load(x, at), b.load(w, weight), sum);
                        b.set(sum, next);
                    });
                });
            });
        });
    });
    match bias {
        Some(bias) => {
            let e = b.load(bias, channel);
            b.store(i, sum + e);
        }
        None => b.store(i, sum),
    }
    b.finish()
}
