//! Rows in portable Rust.

use super::{Reduce, scalar};

/// The value that leaves every other one as it is.
pub(super) fn identity(op: Reduce) -> f32 {
    match op {
        Reduce::Sum | Reduce::Mean | Reduce::SumSquare => 0.0,
        Reduce::Max => f32::NEG_INFINITY,
        Reduce::Min => f32::INFINITY,
        Reduce::Prod => 1.0,
    }
}

/// Takes one more element into an accumulator.
#[inline]
fn step(op: Reduce, acc: f32, x: f32) -> f32 {
    match op {
        Reduce::SumSquare => acc + x * x,
        _ => merge(op, acc, x),
    }
}

/// Joins two accumulators.
#[inline]
pub(super) fn merge(op: Reduce, a: f32, b: f32) -> f32 {
    match op {
        Reduce::Sum | Reduce::Mean | Reduce::SumSquare => a + b,
        Reduce::Max if b > a || b.is_nan() => b,
        Reduce::Min if b < a || b.is_nan() => b,
        Reduce::Max | Reduce::Min => a,
        Reduce::Prod => a * b,
    }
}

pub(super) fn reduce_row(op: Reduce, x: &[f32]) -> f32 {
    let mut lanes = [identity(op); 8];
    for part in x.chunks(8) {
        for (l, &v) in lanes.iter_mut().zip(part) {
            *l = step(op, *l, v);
        }
    }
    lanes.into_iter().fold(identity(op), |a, b| merge(op, a, b))
}

/// `x` holds whole rows as long as `out`, which gets the reduction of each column.
pub(super) fn reduce_columns(op: Reduce, x: &[f32], out: &mut [f32]) {
    out.fill(identity(op));
    for row in x.chunks_exact(out.len()) {
        for (o, &v) in out.iter_mut().zip(row) {
            *o = step(op, *o, v);
        }
    }
}

pub(super) fn softmax(x: &mut [f32], log: bool) {
    let max = reduce_row(Reduce::Max, x);
    if log {
        let sum: f32 = x.iter().map(|v| scalar::exp(v - max)).sum();
        let shift = scalar::log(sum);
        x.iter_mut().for_each(|v| *v = *v - max - shift);
        return;
    }
    x.iter_mut().for_each(|v| *v = scalar::exp(*v - max));
    let scale = 1.0 / reduce_row(Reduce::Sum, x);
    x.iter_mut().for_each(|v| *v *= scale);
}

pub(super) fn layer_norm(x: &mut [f32], gamma: Option<&[f32]>, beta: Option<&[f32]>, epsilon: f32) {
    let n = x.len() as f32;
    let mean = reduce_row(Reduce::Sum, x) / n;
    x.iter_mut().for_each(|v| *v -= mean);
    let scale = 1.0 / (reduce_row(Reduce::SumSquare, x) / n + epsilon).sqrt();
    for (i, v) in x.iter_mut().enumerate() {
        *v = *v * scale * gamma.map_or(1.0, |g| g[i]) + beta.map_or(0.0, |b| b[i]);
    }
}
