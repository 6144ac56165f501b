//! The functions on one value, in portable Rust.

use super::poly;

fn horner(z: f32, coefficients: &[f32]) -> f32 {
    coefficients.iter().fold(0.0, |acc, &c| acc * z + c)
}

pub(in crate::kernels) fn exp(x: f32) -> f32 {
    x.exp()
}

pub(in crate::kernels) fn log(x: f32) -> f32 {
    x.ln()
}

pub(in crate::kernels) fn tanh(x: f32) -> f32 {
    x.tanh()
}

pub(in crate::kernels) fn sigmoid(x: f32) -> f32 {
    // e^-|x| never overflows, and keeps the small results for negative x exact.
    let e = (-x.abs()).exp();
    (if x < 0.0 { e } else { 1.0 }) / (1.0 + e)
}

pub(in crate::kernels) fn erf(x: f32) -> f32 {
    let t = x.abs();
    if t <= 1.0 {
        return x + x * horner(x * x, &poly::ERF);
    }
    // Beyond 4.1 the result is 1 in single precision; the fit does not reach further.
    let tail = if t > 4.1 { 0.0 } else { horner(t, &poly::LOG_ERFC).exp() };
    if x.is_nan() { x } else { (1.0 - tail).copysign(x) }
}
