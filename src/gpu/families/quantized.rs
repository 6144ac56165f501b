//! Quantisation to a byte over the range of the numbers, which always includes 0.

use super::FLAT;
use crate::gpu::ir::{Builder, Expr, Function, Kernel, Operand, Scalar, Var, select};
use crate::gpu::math;

/// The largest number of a byte.
const TOP: f32 = 255.0;

/// Reads the least and the largest number; gives 0 or less, and how far the range reaches.
fn range(b: &mut Builder) -> (Var, Var) {
    let (least, largest) = (b.input(Scalar::F32), b.input(Scalar::F32));
    let (lo, hi) = (b.bind(b.load(least, 0_u32)), b.bind(b.load(largest, 0_u32)));
    let (lo, hi) = (b.bind(select(lo.lt(0.0), lo, 0.0)), b.bind(select(hi.gt(0.0), hi, 0.0)));
    (lo, b.bind((hi - lo) / TOP))
}

/// The scale, or 1 where there are nothing but zeros: any scale does, but dividing by 0 not.
fn divisor(b: &mut Builder, scale: Var) -> Var {
    b.bind(select(scale.equals(0.0), 1.0, scale))
}

fn byte(b: &mut Builder, x: Expr) -> Expr {
    let within = math::clip(b, x, 0.0, TOP);
    let within = b.bind(within);
    math::cast(b, within, Scalar::U32)
}

/// The scale of a range. Words: count, threads in a row, 0, 0.
pub(in crate::gpu) fn scale() -> Kernel {
    let mut b = Builder::new("range_scale", 1, [FLAT, 1, 1], Scalar::F32);
    let (_, scale) = range(&mut b);
    let i = b.flat();
    b.store(i, scale);
    b.finish()
}

/// The zero point of a range. Words: count, threads in a row, 0, 0.
pub(in crate::gpu) fn zero_point() -> Kernel {
    let mut b = Builder::new("range_zero_point", 1, [FLAT, 1, 1], Scalar::U32);
    let (lo, scale) = range(&mut b);
    let i = b.flat();
    let by = divisor(&mut b, scale);
    let zero = (-lo / by).call(Function::Round);
    let zero = byte(&mut b, zero);
    b.store(i, zero);
    b.finish()
}

/// The numbers on a grid whose scale and zero point are read. Words: count, threads in a row, 0, 0.
pub(in crate::gpu) fn quantize() -> Kernel {
    let mut b = Builder::new("range_quantize", 1, [FLAT, 1, 1], Scalar::U32);
    let (x, scale) = (b.input(Scalar::F32), b.input(Scalar::F32));
    let zero = b.input(Scalar::U32);
    let i = b.flat();
    let scale = b.bind(b.load(scale, 0_u32));
    let by = divisor(&mut b, scale);
    let rounded = b.bind((b.load(x, i) / by).call(Function::Round));
    let moved = rounded + b.load(zero, 0_u32).to(Scalar::F32);
    let made = byte(&mut b, moved);
    b.store(i, made);
    b.finish()
}
