//! Functions of floats, on whole slices where there is a vector kernel for f32.

use super::number::Number;
use crate::kernels::math;

/// f32 or f64.
pub(in crate::ops) trait Float: Number {
    /// A literal.
    fn lit(v: f64) -> Self;

    fn exp_all(x: &mut [Self]);
    fn log_all(x: &mut [Self]);
    fn tanh_all(x: &mut [Self]);
    fn sigmoid_all(x: &mut [Self]);
    fn erf_all(x: &mut [Self]);

    /// The softmax of a row in place, if there is a vector kernel.
    fn softmax(_row: &mut [Self]) -> bool {
        false
    }
    /// The logarithm of the softmax of a row in place, if there is a vector kernel.
    fn log_softmax(_row: &mut [Self]) -> bool {
        false
    }
    /// Rows normalised to mean 0 and deviation 1, scaled and shifted, if there is a vector kernel.
    fn layer_norm(_x: &mut [Self], _scale: &[Self], _bias: Option<&[Self]>, _epsilon: f64) -> bool {
        false
    }

    fn exp(self) -> Self;
    fn exp_m1(self) -> Self;
    fn ln(self) -> Self;
    fn ln_1p(self) -> Self;
    fn sqrt(self) -> Self;
    fn tanh(self) -> Self;
    fn floor(self) -> Self;
    fn ceil(self) -> Self;
    fn round_even(self) -> Self;
    fn sin(self) -> Self;
    fn cos(self) -> Self;
    fn tan(self) -> Self;
    fn asin(self) -> Self;
    fn acos(self) -> Self;
    fn atan(self) -> Self;
    fn sinh(self) -> Self;
    fn cosh(self) -> Self;
    fn asinh(self) -> Self;
    fn acosh(self) -> Self;
    fn atanh(self) -> Self;
}

macro_rules! forward {
    ($t:ty) => {
        fn exp(self) -> Self {
            self.exp()
        }
        fn exp_m1(self) -> Self {
            self.exp_m1()
        }
        fn ln(self) -> Self {
            self.ln()
        }
        fn ln_1p(self) -> Self {
            self.ln_1p()
        }
        #[inline(always)]
        fn sqrt(self) -> Self {
            self.sqrt()
        }
        fn tanh(self) -> Self {
            self.tanh()
        }
        #[inline(always)]
        fn floor(self) -> Self {
            self.floor()
        }
        #[inline(always)]
        fn ceil(self) -> Self {
            self.ceil()
        }
        #[inline(always)]
        fn round_even(self) -> Self {
            self.round_ties_even()
        }
        fn sin(self) -> Self {
            self.sin()
        }
        fn cos(self) -> Self {
            self.cos()
        }
        fn tan(self) -> Self {
            self.tan()
        }
        fn asin(self) -> Self {
            self.asin()
        }
        fn acos(self) -> Self {
            self.acos()
        }
        fn atan(self) -> Self {
            self.atan()
        }
        fn sinh(self) -> Self {
            self.sinh()
        }
        fn cosh(self) -> Self {
            self.cosh()
        }
        fn asinh(self) -> Self {
            self.asinh()
        }
        fn acosh(self) -> Self {
            self.acosh()
        }
        fn atanh(self) -> Self {
            self.atanh()
        }
    };
}

impl Float for f32 {
    fn lit(v: f64) -> Self {
        v as Self
    }
    fn exp_all(x: &mut [Self]) {
        math::exp(x);
    }
    fn log_all(x: &mut [Self]) {
        math::log(x);
    }
    fn tanh_all(x: &mut [Self]) {
        math::tanh(x);
    }
    fn sigmoid_all(x: &mut [Self]) {
        math::sigmoid(x);
    }
    fn erf_all(x: &mut [Self]) {
        math::erf(x);
    }
    fn softmax(row: &mut [Self]) -> bool {
        math::softmax(row, row.len()).is_ok()
    }
    fn log_softmax(row: &mut [Self]) -> bool {
        math::log_softmax(row, row.len()).is_ok()
    }
    fn layer_norm(x: &mut [Self], scale: &[Self], bias: Option<&[Self]>, epsilon: f64) -> bool {
        math::layer_norm(x, scale.len(), Some(scale), bias, epsilon as Self).is_ok()
    }
    forward!(f32);
}

impl Float for f64 {
    fn lit(v: f64) -> Self {
        v
    }
    fn exp_all(x: &mut [Self]) {
        x.iter_mut().for_each(|x| *x = x.exp());
    }
    fn log_all(x: &mut [Self]) {
        x.iter_mut().for_each(|x| *x = x.ln());
    }
    fn tanh_all(x: &mut [Self]) {
        x.iter_mut().for_each(|x| *x = x.tanh());
    }
    fn sigmoid_all(x: &mut [Self]) {
        x.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp()));
    }
    fn erf_all(x: &mut [Self]) {
        x.iter_mut().for_each(|x| *x = erf(*x));
    }
    forward!(f64);
}

/// The error function in double precision: its power series with positive terms for small
/// arguments, the continued fraction of the complement for large ones.
fn erf(x: f64) -> f64 {
    use std::f64::consts::PI;
    let t = x.abs();
    if x.is_nan() || t > 6.0 {
        return if x.is_nan() { x } else { 1f64.copysign(x) };
    }
    if t < 3.0 {
        // erf t = 2/√π e^-t² Σ 2ⁿ t²ⁿ⁺¹ / (2n+1)!!
        let (mut term, mut sum, mut n) = (t, t, 0.0);
        while term > sum * 1e-17 {
            n += 1.0;
            term *= 2.0 * t * t / (2.0 * n + 1.0);
            sum += term;
        }
        return (2.0 / PI.sqrt() * (-t * t).exp() * sum).copysign(x);
    }
    // erfc t = e^-t²/√π · 1/(t + ½/(t + 1/(t + 3/2/(t + …))))
    let fraction = (1..=60).rev().fold(t, |f, k| t + f64::from(k) / 2.0 / f);
    (1.0 - (-t * t).exp() / (PI.sqrt() * fraction)).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn erf_has_the_tabulated_values() {
        // From the C library.
        for (x, y) in [
            (0.0, 0.0),
            (1e-10, 1.128_379_167_095_512_6e-10),
            (0.1, 0.112_462_916_018_284_9),
            (0.5, 0.520_499_877_813_046_5),
            (1.0, 0.842_700_792_949_714_9),
            (2.0, 0.995_322_265_018_952_7),
            (2.999, 0.999_977_769_831_400_2),
            (3.0, 0.999_977_909_503_001_4),
            (4.0, 0.999_999_984_582_742_1),
            (5.5, 0.999_999_999_999_992_6),
        ] {
            assert!((erf(x) - y).abs() <= 4e-16 * y.max(1e-300) + 1e-300, "{x}: {} {y}", erf(x));
            assert_eq!(erf(-x), -erf(x));
        }
        assert_eq!((erf(f64::INFINITY), erf(f64::NEG_INFINITY)), (1.0, -1.0));
        assert!(erf(f64::NAN).is_nan());
    }
}
