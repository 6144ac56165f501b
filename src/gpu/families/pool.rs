//! Pools over windows of two axes.

use super::FLAT;
use crate::gpu::ir::{Builder, Expr, Kernel, Operand, Scalar, select};
use crate::gpu::math;

/// What is made of a window's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gpu) enum Pool {
    Max,
    /// The mean; padding counts where word 2 is 1.
    Mean,
    /// The root of the sum of squares.
    L2,
    /// The sum of sizes.
    L1,
}

/// A pool. Words: 0: count, threads in a row of groups, 1 to count padding in the mean, 0; 4 to 15
/// as those of a convolution.
pub(in crate::gpu) fn pool(of: Pool) -> Kernel {
    const I: Scalar = Scalar::I32;
    let name = format!("pool_{}", format!("{of:?}").to_ascii_lowercase());
    let mut b = Builder::new(&name, 4, [FLAT, 1, 1], Scalar::F32);
    let x = b.input(Scalar::F32);
    let i = b.flat();
    let (h, width) = (b.bind(b.word(4).to(I)), b.bind(b.word(5).to(I)));
    let (oh, ow) = (b.bind(b.word(6)), b.bind(b.word(7)));
    let (kh, kw) = (b.bind(b.word(8)), b.bind(b.word(9)));
    let ox = b.bind(i % ow);
    let oy = b.bind(i / ow % oh);
    let plane = b.bind(i / ow / oh * b.word(4) * b.word(5));
    let start = if of == Pool::Max { f32::NEG_INFINITY } else { 0.0 };
    let made = b.variable(start);
    let count = b.variable(0.0);
    b.each(0_u32, kh, 1_u32, |b, ky| {
        let iy = b.bind((oy * b.word(10) + ky * b.word(12)).to(I) - b.word(14).to(I));
        b.each(0_u32, kw, 1_u32, |b, kx| {
            let ix = b.bind((ox * b.word(11) + kx * b.word(13)).to(I) - b.word(15).to(I));
            let inside = iy.ge(0_i32).and(iy.lt(h)).and(ix.ge(0_i32)).and(ix.lt(width));
            b.when(inside, |b| {
                let e = b.bind(b.load(x, plane + (iy * width + ix).to(Scalar::U32)));
                let next = match of {
                    Pool::Max => select(made.lt(e).or(math::is_nan(e)), e, made),
                    Pool::Mean => made + e,
                    Pool::L2 => made + e * e,
                    Pool::L1 => made + e.abs(),
                };
                b.set(made, next);
                b.set(count, count + 1.0);
            });
        });
    });
    let result = match of {
        Pool::Max | Pool::L1 => made.into(),
        Pool::L2 => made.sqrt(),
        Pool::Mean => {
            let all = (kh * kw).to(Scalar::F32);
            made / select(b.word(2).equals(1_u32), all, Expr::from(count))
        }
    };
    b.store(i, result);
    b.finish()
}
