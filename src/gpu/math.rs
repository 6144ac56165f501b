//! Functions of floats that drivers do not bring, or not accurately enough. Errors are about 2e-7,
//! absolute where the result is below 1 and relative above, as far as the driver's own `exp` and
//! `log` allow.

use std::f32::consts::{FRAC_PI_2, FRAC_PI_4, LN_2};

use super::ir::{Builder, Expr, Function, Operand, Scalar, Var, fma, select};

/// `c[0] + c[1] x + c[2] x^2 + …`
fn polynomial(x: Var, c: &[f32]) -> Expr {
    let mut terms = c.iter().rev();
    let mut sum = Expr::from(terms.next().copied().unwrap_or(0.0));
    for c in terms {
        sum = fma(sum, x, *c);
    }
    sum
}

/// Whether it is NaN, by its bits: drivers may take it that nothing is.
pub(super) fn is_nan(x: impl Into<Expr>) -> Expr {
    (x.bits(Scalar::U32) & 0x7fff_ffff_u32).gt(0x7f80_0000_u32)
}

/// `x`, not below `lo` and not above `hi`; NaN stays.
pub(super) fn clip(
    b: &mut Builder,
    x: impl Into<Expr>,
    lo: impl Into<Expr>,
    hi: impl Into<Expr>,
) -> Expr {
    let (lo, hi) = (b.bind(lo), b.bind(hi));
    let x = b.bind(x);
    let x = b.bind(select(x.lt(lo), lo, x));
    select(x.gt(hi), hi, x)
}

/// The natural logarithm, also of numbers so small that drivers take them for 0.
pub(super) fn ln(b: &mut Builder, x: Var) -> Expr {
    let bits = b.bind(x.bits(Scalar::U32));
    let tiny = bits.gt(0_u32).and(bits.lt(0x0080_0000_u32));
    // Such a number is its bits times 2^-149.
    let scaled = bits.to(Scalar::F32).ln() - 149.0 * LN_2;
    select(tiny, scaled, x.ln())
}

/// The number in another type: a float becomes a whole number towards zero, the nearest there is
/// beyond the type's range, and 0 for NaN.
pub(super) fn cast(b: &mut Builder, x: Var, ty: Scalar) -> Expr {
    // The first float beyond the range, and the largest within.
    let (lowest, beyond, largest, top): (f32, f32, f32, Expr) = match (x.ty, ty) {
        (Scalar::F32, Scalar::I32) => {
            (-2_147_483_648.0, 2_147_483_648.0, 2_147_483_520.0, i32::MAX.into())
        }
        (Scalar::F32, Scalar::U32) => (0.0, 4_294_967_296.0, 4_294_967_040.0, u32::MAX.into()),
        _ => return x.to(ty),
    };
    let number = b.bind(select(is_nan(x), 0.0, x));
    let within = clip(b, number, lowest, largest);
    let within = b.bind(within);
    select(number.ge(beyond), top, within.to(ty))
}

/// `1 / (1 + e^-x)`.
pub(super) fn sigmoid(x: impl Into<Expr>) -> Expr {
    Expr::from(1.0) / ((-x.into()).exp() + 1.0)
}

/// The error function (Abramowitz and Stegun, 7.1.26).
pub(super) fn erf(b: &mut Builder, x: Var) -> Expr {
    let a = b.bind(x.abs());
    let t = b.bind(Expr::from(1.0) / fma(0.327_591_1, a, 1.0));
    let c = [0.254_829_6, -0.284_496_74, 1.421_413_8, -1.453_152_1, 1.061_405_4];
    let y = b.bind(Expr::from(1.0) - t * polynomial(t, &c) * (-a * a).exp());
    select(x.lt(0.0), -y, y)
}

/// The hyperbolic tangent.
pub(super) fn tanh(b: &mut Builder, x: Var) -> Expr {
    let limited = clip(b, x, -15.0, 15.0);
    let e = b.bind((limited * 2.0).exp());
    let far = Expr::from(1.0) - Expr::from(2.0) / (e + 1.0);
    let square = b.bind(x * x);
    let near = x * polynomial(square, &[1.0, -1.0 / 3.0, 2.0 / 15.0, -17.0 / 315.0, 62.0 / 2835.0]);
    select(x.abs().lt(0.35), near, far)
}

/// `x / 2 (1 + erf(x / √2))`.
pub(super) fn gelu(b: &mut Builder, x: Var) -> Expr {
    let inner = b.bind(x * std::f32::consts::FRAC_1_SQRT_2);
    let e = erf(b, inner);
    x * 0.5 * (e + 1.0)
}

/// `x / 2 (1 + tanh(√(2/π) (x + 0.044715 x^3)))`.
pub(super) fn gelu_by_tanh(b: &mut Builder, x: Var) -> Expr {
    let inner = b.bind((x + x * x * x * 0.044_715) * 0.797_884_6);
    let t = tanh(b, inner);
    x * 0.5 * (t + 1.0)
}

/// `e^x - 1`.
pub(super) fn exp_m1(b: &mut Builder, x: Var) -> Expr {
    let near = x * polynomial(x, &[1.0, 0.5, 1.0 / 6.0, 1.0 / 24.0, 1.0 / 120.0]);
    let far = b.bind(x.exp() - 1.0);
    select(x.abs().lt(0.125), near, far)
}

/// `ln(1 + e^x)` without overflow.
pub(super) fn softplus(b: &mut Builder, x: Var) -> Expr {
    let e = b.bind((-x.abs()).exp());
    let low = b.bind((e + 1.0).ln());
    select(x.gt(0.0), x + low, low)
}

/// The bits of 2/π behind its point, after a word of zeros.
const TWO_OVER_PI: [u32; 8] =
    [0, 0xa2f9_836e, 0x4e44_1529, 0xfc27_57d1, 0xf534_ddc0, 0xdb62_9599, 0x3c43_9041, 0xfe51_63ab];

/// From here on, `n π/2` is no longer taken away in floats.
const FAR: f32 = 128.0;

/// `x - n π/2` with `n` the nearest whole number, and `n` modulo 4.
fn quadrant(b: &mut Builder, x: Var) -> (Var, Var) {
    let near = b.bind(select(x.abs().lt(FAR), x, 0.0));
    let whole = b.bind((near * std::f32::consts::FRAC_2_PI).call(Function::Round));
    // π/2 in three parts, the first two of which have few bits.
    let r = b.bind(fma(whole, -1.570_312_5, near));
    let r = b.bind(fma(whole, -4.838_268e-4, r));
    let r = b.variable(fma(whole, -2.563_344e-12, r));
    let n = b.variable(whole.to(Scalar::I32) & 3_i32);
    let bits = b.bind(x.bits(Scalar::U32));
    let size = b.bind(bits & 0x7fff_ffff_u32);
    b.when(size.ge(FAR.to_bits()), |b| {
        let (far, turns) = far_quadrant(b, size);
        let negative = b.bind((bits >> 31_u32).differs(0_u32));
        let endless = size.ge(0x7f80_0000_u32);
        b.set(r, select(endless, f32::NAN, select(negative, -far, far)));
        b.set(n, select(negative, -turns, turns) & 3_i32);
    });
    (b.bind(r), b.bind(n))
}

/// The same for a float of [`FAR`] or more, by its bits (Payne and Hanek): the product of its whole
/// number of 24 bits and those bits of 2/π that give the quadrant and the fraction of it. Bits before
/// them give whole turns, those behind do not matter.
fn far_quadrant(b: &mut Builder, bits: Var) -> (Var, Var) {
    let m = b.bind((bits & 0x007f_ffff_u32) | 0x0080_0000_u32);
    // Where those bits begin in the table.
    let first = b.bind((bits >> 23_u32) - 120_u32);
    let (at, shift) = (b.bind(first >> 5_u32), b.bind(first & 31_u32));
    let words: Vec<Var> = (0..4)
        .map(|j| {
            let places = (1..5_u32).zip(&TWO_OVER_PI[j + 1..]);
            let word = places.fold(Expr::from(TWO_OVER_PI[j]), |e, (place, word)| {
                select(at.equals(place), *word, e)
            });
            b.bind(word)
        })
        .collect();
    let w: Vec<Var> = words
        .windows(2)
        .map(|w| b.bind((w[0] << shift) | ((w[1] >> 1_u32) >> (Expr::from(31_u32) - shift))))
        .collect();
    let carried = high(b, m, w[2]);
    let low = b.bind(m * w[1] + carried);
    let carry = low.lt(carried).to(Scalar::U32);
    let top = m * w[0] + high(b, m, w[1]) + carry;
    let top = b.bind(top);
    // Two bits of the quadrant, and a fraction that is negative if its first bit is set.
    let fraction = b.bind((top << 2_u32) | (low >> 30_u32));
    let rest = b.bind(low << 2_u32);
    let above = b.bind(fraction >> 31_u32);
    let n = b.bind(((top >> 30_u32) + above).to(Scalar::I32));
    let negative = b.bind(above.differs(0_u32));
    let size = |v: Var| select(negative, !Expr::from(v), v).to(Scalar::F32);
    const WORD: f32 = 1.0 / 4_294_967_296.0;
    let r = b.bind((size(fraction) + size(rest) * WORD) * WORD * FRAC_PI_2);
    (b.bind(select(negative, -r, r)), n)
}

/// The upper word of the product of a number of 24 bits and one of 32.
fn high(b: &mut Builder, m: Var, w: Var) -> Var {
    const LOWER: u32 = 0xffff;
    let (m1, m0) = (b.bind(m >> 16_u32), b.bind(m & LOWER));
    let (w1, w0) = (b.bind(w >> 16_u32), b.bind(w & LOWER));
    let cross = b.bind(m0 * w1);
    let middle = ((m0 * w0) >> 16_u32) + (cross & LOWER) + m1 * w0;
    b.bind(m1 * w1 + (cross >> 16_u32) + (middle >> 16_u32))
}

fn sine_and_cosine(b: &mut Builder, r: Var) -> (Var, Var) {
    let s = b.bind(r * r);
    let sine = r * polynomial(s, &[1.0, -1.0 / 6.0, 1.0 / 120.0, -1.0 / 5040.0, 1.0 / 362_880.0]);
    let cosine = polynomial(s, &[1.0, -0.5, 1.0 / 24.0, -1.0 / 720.0, 1.0 / 40_320.0]);
    (b.bind(sine), b.bind(cosine))
}

/// The sine, or the cosine.
pub(super) fn wave(b: &mut Builder, x: Var, cosine: bool) -> Expr {
    let (r, n) = quadrant(b, x);
    let (s, c) = sine_and_cosine(b, r);
    let n = if cosine { b.bind((n + 1_i32) & 3_i32) } else { n };
    let size = b.bind(select((n & 1_i32).equals(0_i32), s, c));
    select(n.ge(2_i32), -size, size)
}

/// The tangent.
pub(super) fn tan(b: &mut Builder, x: Var) -> Expr {
    let (r, n) = quadrant(b, x);
    let (s, c) = sine_and_cosine(b, r);
    select((n & 1_i32).equals(0_i32), s / c, -(c / s))
}

/// The arc tangent.
pub(super) fn atan(b: &mut Builder, x: Var) -> Expr {
    let a = b.bind(x.abs());
    let large = b.bind(a.gt(2.414_213_6));
    let middle = b.bind(a.gt(0.414_213_57));
    let turned = select(middle, (a - 1.0) / (a + 1.0), a);
    let r = b.bind(select(large, Expr::from(-1.0) / a, turned));
    let base = select(large, FRAC_PI_2, select(middle, FRAC_PI_4, 0.0));
    let s = b.bind(r * r);
    let c =
        [1.0, -1.0 / 3.0, 0.2, -1.0 / 7.0, 1.0 / 9.0, -1.0 / 11.0, 1.0 / 13.0, -1.0 / 15.0, 0.05];
    let y = b.bind(base + r * polynomial(s, &c));
    select(x.lt(0.0), -y, y)
}

/// The arc sine.
pub(super) fn asin(b: &mut Builder, x: Var) -> Expr {
    let inner = (Expr::from(1.0) - x) * (x + 1.0);
    let ratio = b.bind(x / inner.sqrt());
    atan(b, ratio)
}

/// The hyperbolic sine.
pub(super) fn sinh(b: &mut Builder, x: Var) -> Expr {
    let e = b.bind(x.exp());
    let far = (e - Expr::from(1.0) / e) * 0.5;
    let s = b.bind(x * x);
    let near = x * polynomial(s, &[1.0, 1.0 / 6.0, 1.0 / 120.0, 1.0 / 5040.0]);
    select(x.abs().lt(0.6), near, far)
}

/// The hyperbolic cosine.
pub(super) fn cosh(b: &mut Builder, x: Var) -> Expr {
    let e = b.bind(x.exp());
    (e + Expr::from(1.0) / e) * 0.5
}

/// The inverse hyperbolic sine.
pub(super) fn asinh(b: &mut Builder, x: Var) -> Expr {
    let a = b.bind(x.abs());
    // Beyond this the 1 under the root is nothing, and the square may be too large.
    let far = a.ln() + LN_2;
    let near = (a + fma(a, a, 1.0).sqrt()).ln();
    let y = b.bind(select(a.gt(1e8), far, near));
    select(x.lt(0.0), -y, y)
}

/// The inverse hyperbolic cosine.
pub(super) fn acosh(x: Var) -> Expr {
    let far = x.ln() + LN_2;
    let near = (x + ((x - 1.0) * (x + 1.0)).sqrt()).ln();
    select(x.gt(1e8), far, near)
}

/// The inverse hyperbolic tangent.
pub(super) fn atanh(x: Var) -> Expr {
    ((x + 1.0) / (Expr::from(1.0) - x)).ln() * 0.5
}

/// `x` to the power `y`.
pub(super) fn power(b: &mut Builder, x: Var, y: Var) -> Expr {
    let size = b.bind((x.abs().ln() * y).exp());
    let whole = b.bind(y.call(Function::Floor).equals(y));
    let half = b.bind(y * 0.5);
    let odd = b.bind(whole.and(half.call(Function::Floor).differs(half)));
    let signed = select(odd, -size, size);
    // Of the negative infinity all powers are those of the positive one, but for the sign.
    let lowest = x.bits(Scalar::U32).equals(0xff80_0000_u32);
    let negative = select(whole, signed, select(lowest, size, f32::NAN));
    let made = select(x.lt(0.0), negative, size);
    // Both infinities are even, and of -1 all their powers are 1.
    let ones = x.equals(-1.0).and(y.abs().bits(Scalar::U32).equals(0x7f80_0000_u32));
    select(y.equals(0.0).or(x.equals(1.0)).or(ones), 1.0, made)
}
