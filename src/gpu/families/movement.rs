//! Elements from one layout to another; what they are does not matter.

use super::{AXES, FLAT};
use crate::gpu::ir::{Builder, Kernel, Operand, Scalar, fma, select};

const U: Scalar = Scalar::U32;

/// Words: count, threads in a row, axes, 0; extents (8); strides of the input (8); strides of the
/// output (8); offsets of input and output. Strides may run backwards, as numbers that wrap.
pub(in crate::gpu) fn rearrange() -> Kernel {
    let mut b = Builder::new("rearrange", 8, [FLAT, 1, 1], U);
    let x = b.input(U);
    let i = b.flat();
    let axes = b.word(2);
    let at = b.positions(i, axes, 4, &[12, 20]);
    let e = b.load(x, at[0] + b.word(28));
    b.store(at[1] + b.word(29), e);
    b.finish()
}

/// One element everywhere. Words: count, threads in a row, the bits, the first place.
pub(in crate::gpu) fn fill() -> Kernel {
    let mut b = Builder::new("fill", 1, [FLAT, 1, 1], U);
    let i = b.flat();
    let e = b.word(2);
    b.store(i + b.word(3), e);
    b.finish()
}

/// How elements beyond the edges are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::gpu) enum Beyond {
    Edge,
    Reflect,
    Wrap,
}

/// An input with more elements around it. Words: count, threads in a row, axes, 0; extents of the
/// output (8); of the input (8); strides of the input (8); elements before the input (8, negative
/// ones cut off).
pub(in crate::gpu) fn pad(beyond: Beyond) -> Kernel {
    let name = match beyond {
        Beyond::Edge => "pad_edge",
        Beyond::Reflect => "pad_reflect",
        Beyond::Wrap => "pad_wrap",
    };
    let mut b = Builder::new(name, 9, [FLAT, 1, 1], U);
    let x = b.input(U);
    let i = b.flat();
    let rest = b.variable(i);
    let from = b.variable(0_u32);
    let axes = b.bind(b.word(2));
    b.each(0_u32, axes, 1_u32, |b, a| {
        let d = b.bind(axes - 1_u32 - a);
        let extent = b.word_at(d + 4_u32);
        let extent = b.bind(extent);
        let n = b.word_at(d + 12_u32);
        let n = b.bind(n.to(Scalar::I32));
        let before = b.word_at(d + 28_u32);
        let at = b.bind((rest % extent).to(Scalar::I32) - before.bits(Scalar::I32));
        b.set(rest, rest / extent);
        let last = b.bind(n - 1_i32);
        let inside = match beyond {
            Beyond::Edge => at.max(0_i32).min(last),
            Beyond::Wrap => {
                let r = b.bind(at % n);
                select(r.lt(0_i32), r + n, r)
            }
            Beyond::Reflect => {
                // There and back is one period; where there is nothing to go to, one stays.
                let period = b.bind((last * 2_i32).max(1_i32));
                let r = b.bind(at % period);
                let r = b.bind(select(r.lt(0_i32), r + period, r));
                select(r.gt(last), period - r, r)
            }
        };
        let stride = b.word_at(d + 20_u32);
        b.set(from, from + inside.to(U) * stride);
    });
    let e = b.load(x, from);
    b.store(i, e);
    b.finish()
}

/// Slices of an input by indices along an axis. Words: count, threads in a row, elements of a
/// slice, indices; the axis' extent, offset of the output, 0, 0.
pub(in crate::gpu) fn gather() -> Kernel {
    let mut b = Builder::new("gather", 2, [FLAT, 1, 1], U);
    let x = b.input(U);
    let indices = b.input(Scalar::I32);
    let i = b.flat();
    let slice = b.bind(b.word(2));
    let inner = b.bind(i % slice);
    let outer = b.bind(i / slice);
    let count = b.bind(b.word(3));
    let extent = b.bind(b.word(4));
    let k = b.bind(b.load(indices, outer % count));
    let k = b.bind(select(k.lt(0_i32), k + extent.to(Scalar::I32), k).to(U));
    let e = b.load(x, (outer / count * extent + k) * slice + inner);
    b.store(i, e);
    b.finish()
}

/// Elements of an input by indices along an axis, one index for each. Words: count, threads in a
/// row, axes, stride of the axis in the input; extents of the output (8); strides of the input (8,
/// 0 along the axis); the axis' extent.
pub(in crate::gpu) fn gather_elements() -> Kernel {
    let mut b = Builder::new("gather_elements", 6, [FLAT, 1, 1], U);
    let x = b.input(U);
    let indices = b.input(Scalar::I32);
    let i = b.flat();
    let axes = b.word(2);
    let at = b.positions(i, axes, 4, &[12]);
    let k = b.bind(b.load(indices, i));
    let extent = b.word(20);
    let k = b.bind(select(k.lt(0_i32), k + extent.to(Scalar::I32), k).to(U));
    let e = b.load(x, at[0] + k * b.word(3));
    b.store(i, e);
    b.finish()
}

/// Slices of an input by tuples of indices. Words: count, threads in a row, elements of a slice,
/// numbers of a tuple; tuples of an item of the batch, elements of an item of the input, 0, 0; the
/// indexed axes' extents (8), their strides (8).
pub(in crate::gpu) fn gather_nd() -> Kernel {
    let mut b = Builder::new("gather_nd", 6, [FLAT, 1, 1], U);
    let x = b.input(U);
    let indices = b.input(Scalar::I32);
    let i = b.flat();
    let slice = b.bind(b.word(2));
    let (inner, tuple) = (b.bind(i % slice), b.bind(i / slice));
    let count = b.bind(b.word(3));
    let from = b.variable(tuple / b.word(4) * b.word(5) + inner);
    b.each(0_u32, count, 1_u32, |b, d| {
        let k = b.bind(b.load(indices, tuple * count + d));
        let extent = b.word_at(d + 8_u32);
        let k = b.bind(select(k.lt(0_i32), k + extent.to(Scalar::I32), k).to(U));
        let stride = b.word_at(d + 16_u32);
        b.set(from, from + k * stride);
    });
    let e = b.load(x, from);
    b.store(i, e);
    b.finish()
}

/// An axis at another resolution: the sum of weighted neighbours, whose indices and weights come in
/// tables. Words: count, threads in a row, elements behind the axis, the axis' extent in the output;
/// its extent in the input, neighbours, 0, 0.
pub(in crate::gpu) fn resample() -> Kernel {
    const F: Scalar = Scalar::F32;
    let mut b = Builder::new("resample", 2, [FLAT, 1, 1], F);
    let x = b.input(F);
    let (indices, weights) = (b.input(Scalar::I32), b.input(F));
    let i = b.flat();
    let (inner, out) = (b.bind(b.word(2)), b.bind(b.word(3)));
    let (behind, rest) = (b.bind(i % inner), b.bind(i / inner));
    let (at, outer) = (b.bind(rest % out), b.bind(rest / out));
    let width = b.bind(b.word(5));
    let sum = b.variable(0.0);
    b.each(0_u32, width, 1_u32, |b, t| {
        let tap = b.bind(at * width + t);
        let from = b.bind(outer * b.word(4) + b.load(indices, tap).to(U));
        let next = fma(b.load(weights, tap), b.load(x, from * inner + behind), sum);
        b.set(sum, next);
    });
    b.store(i, sum);
    b.finish()
}

const _: () = assert!(AXES == 8, "the words of these kernels are counted for eight axes");
