//! Arithmetic that all number types share, so that a kernel is written once.

use crate::tensor::Element;

/// A number type that is computed in: whole numbers wrap, floats follow IEEE 754.
pub(in crate::ops) trait Number: Element {
    const ZERO: Self;
    const ONE: Self;
    /// Nothing is smaller: -∞ for floats.
    const LOWEST: Self;
    /// Nothing is larger: ∞ for floats.
    const HIGHEST: Self;

    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
    /// Whole numbers: towards zero, and 0 where the divisor is 0 (callers refuse it before).
    fn over(self, other: Self) -> Self;
    /// The remainder with the divisor's sign; whole numbers: 0 where the divisor is 0.
    fn modulo(self, divisor: Self) -> Self;
    /// The remainder with the dividend's sign; whole numbers: 0 where the divisor is 0.
    fn remainder(self, divisor: Self) -> Self;
    /// The larger one; NaN wins.
    fn larger(self, other: Self) -> Self;
    /// The smaller one; NaN wins.
    fn smaller(self, other: Self) -> Self;
    fn magnitude(self) -> Self;
    fn negative(self) -> Self;
    /// -1, 0 or 1; NaN stays.
    fn sign(self) -> Self;
    fn is_not_a_number(self) -> bool;
    /// The nearest f64.
    fn wide(self) -> f64;
    /// Rounded for floats, cut off and saturated for whole numbers.
    fn narrow(wide: f64) -> Self;
}

macro_rules! whole {
    ($($t:ty),*) => { $(
        #[allow(unused_comparisons, clippy::cast_lossless)]
        impl Number for $t {
            const ZERO: Self = 0;
            const ONE: Self = 1;
            const LOWEST: Self = <$t>::MIN;
            const HIGHEST: Self = <$t>::MAX;

            #[inline(always)]
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
            #[inline(always)]
            fn minus(self, other: Self) -> Self { self.wrapping_sub(other) }
            #[inline(always)]
            fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
            #[inline(always)]
            fn over(self, other: Self) -> Self {
                if other == 0 { 0 } else { self.wrapping_div(other) }
            }
            #[inline(always)]
            fn modulo(self, divisor: Self) -> Self {
                let r = self.remainder(divisor);
                if r != 0 && (r < 0) != (divisor < 0) { r.wrapping_add(divisor) } else { r }
            }
            #[inline(always)]
            fn remainder(self, divisor: Self) -> Self {
                if divisor == 0 { 0 } else { self.wrapping_rem(divisor) }
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self { self.max(other) }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self { self.min(other) }
            #[inline(always)]
            fn magnitude(self) -> Self { if self < 0 { self.wrapping_neg() } else { self } }
            #[inline(always)]
            fn negative(self) -> Self { self.wrapping_neg() }
            #[inline(always)]
            fn sign(self) -> Self {
                if self < 0 { Self::ZERO.wrapping_sub(1) } else { (self > 0) as Self }
            }
            #[inline(always)]
            fn is_not_a_number(self) -> bool { false }
            #[inline(always)]
            fn wide(self) -> f64 { self as f64 }
            #[inline(always)]
            fn narrow(wide: f64) -> Self { wide as Self }
        }
    )* };
}
whole!(i32, i64, u64);

macro_rules! float {
    ($($t:ty),*) => { $(
        #[allow(clippy::cast_lossless, clippy::unnecessary_cast)]
        impl Number for $t {
            const ZERO: Self = 0.0;
            const ONE: Self = 1.0;
            const LOWEST: Self = <$t>::NEG_INFINITY;
            const HIGHEST: Self = <$t>::INFINITY;

            #[inline(always)]
            fn plus(self, other: Self) -> Self { self + other }
            #[inline(always)]
            fn minus(self, other: Self) -> Self { self - other }
            #[inline(always)]
            fn times(self, other: Self) -> Self { self * other }
            #[inline(always)]
            fn over(self, other: Self) -> Self { self / other }
            #[inline(always)]
            fn modulo(self, divisor: Self) -> Self {
                let r = self % divisor;
                if r != 0.0 && (r < 0.0) != (divisor < 0.0) { r + divisor } else { r }
            }
            #[inline(always)]
            fn remainder(self, divisor: Self) -> Self { self % divisor }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                if self > other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                if self < other || self.is_nan() { self } else { other }
            }
            #[inline(always)]
            fn magnitude(self) -> Self { self.abs() }
            #[inline(always)]
            fn negative(self) -> Self { -self }
            #[inline(always)]
            fn sign(self) -> Self {
                if self > 0.0 { 1.0 } else if self < 0.0 { -1.0 } else if self.is_nan() { self } else { 0.0 }
            }
            #[inline(always)]
            fn is_not_a_number(self) -> bool { self.is_nan() }
            #[inline(always)]
            fn wide(self) -> f64 { self as f64 }
            #[inline(always)]
            fn narrow(wide: f64) -> Self { wide as Self }
        }
    )* };
}
float!(f32, f64);
