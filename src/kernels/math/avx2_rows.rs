//! Rows for AVX2 and FMA. The tail of a row goes through the same lanes as the rest.

use super::avx2::{clamp, exp, gelu, hard_swish, max_or_nan, min_or_nan, sigmoid, splat, tanh};
use super::{Reduce, scalar, scalar_rows};
use crate::kernels::Activation;
use std::arch::x86_64::*;

const SUM: u8 = 0;
const SQUARE: u8 = 1;
const MAX: u8 = 2;
const MIN: u8 = 3;
const PROD: u8 = 4;

#[inline]
#[target_feature(enable = "avx2,fma")]
fn step<const OP: u8>(acc: __m256, x: __m256) -> __m256 {
    match OP {
        SQUARE => _mm256_fmadd_ps(x, x, acc),
        _ => merge::<OP>(acc, x),
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn merge<const OP: u8>(a: __m256, b: __m256) -> __m256 {
    match OP {
        SUM | SQUARE => _mm256_add_ps(a, b),
        MAX => max_or_nan(a, b),
        MIN => min_or_nan(a, b),
        _ => _mm256_mul_ps(a, b),
    }
}

macro_rules! by_op {
    ($op:expr, $f:ident, $($args:expr),*) => {
        match $op {
            Reduce::Sum | Reduce::Mean => $f::<SUM>($($args),*),
            Reduce::SumSquare => $f::<SQUARE>($($args),*),
            Reduce::Max => $f::<MAX>($($args),*),
            Reduce::Min => $f::<MIN>($($args),*),
            Reduce::Prod => $f::<PROD>($($args),*),
        }
    };
}

/// Eight lanes of which the first come from `x` and the others are `fill`.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn load_part(x: &[f32], fill: f32) -> __m256 {
    let mut lanes = [fill; 8];
    let n = x.len().min(8);
    lanes[..n].copy_from_slice(&x[..n]);
    // SAFETY: there are 8 lanes.
    unsafe { _mm256_loadu_ps(lanes.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn load(x: &[f32; 8]) -> __m256 {
    // SAFETY: there are 8 elements.
    unsafe { _mm256_loadu_ps(x.as_ptr()) }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn store(x: &mut [f32; 8], v: __m256) {
    // SAFETY: there are 8 elements.
    unsafe { _mm256_storeu_ps(x.as_mut_ptr(), v) }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn to_lanes(v: __m256) -> [f32; 8] {
    let mut lanes = [0.0; 8];
    store(&mut lanes, v);
    lanes
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn reduce_row(op: Reduce, x: &[f32]) -> f32 {
    let id = scalar_rows::identity(op);
    let lanes = to_lanes(by_op!(op, row, x, id));
    lanes[1..].iter().fold(lanes[0], |a, &b| scalar_rows::merge(op, a, b))
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn row<const OP: u8>(x: &[f32], id: f32) -> __m256 {
    let mut acc = [splat(id); 4];
    let (blocks, rest) = x.as_chunks::<32>();
    for block in blocks {
        let (parts, _) = block.as_chunks::<8>();
        for l in 0..4 {
            acc[l] = step::<OP>(acc[l], load(&parts[l]));
        }
    }
    let (parts, rest) = rest.as_chunks::<8>();
    for (l, part) in parts.iter().enumerate() {
        acc[l] = step::<OP>(acc[l], load(part));
    }
    if !rest.is_empty() {
        acc[3] = step::<OP>(acc[3], load_part(rest, id));
    }
    merge::<OP>(merge::<OP>(acc[0], acc[1]), merge::<OP>(acc[2], acc[3]))
}

/// `x` holds whole rows as long as `out`, which gets the reduction of each column.
#[target_feature(enable = "avx2,fma")]
pub(super) fn reduce_columns(op: Reduce, x: &[f32], out: &mut [f32]) {
    let width = out.len();
    let id = scalar_rows::identity(op);
    for (i, part) in out.chunks_mut(32).enumerate() {
        let from = x.get(i * 32..).unwrap_or(&[]);
        match part.len() {
            32 => by_op!(op, columns, from, width, part, id),
            _ => {
                for (j, few) in part.chunks_mut(8).enumerate() {
                    let from = from.get(j * 8..).unwrap_or(&[]);
                    by_op!(op, few_columns, from, width, few, id);
                }
            }
        }
    }
}

#[inline]
#[target_feature(enable = "avx2,fma")]
fn columns<const OP: u8>(x: &[f32], width: usize, out: &mut [f32], id: f32) {
    let mut acc = [splat(id); 4];
    for row in x.chunks(width) {
        // The last chunk ends with the row, but after these columns.
        let (parts, _) = row.as_chunks::<8>();
        if let [a, b, c, d, ..] = parts {
            for (l, part) in [a, b, c, d].into_iter().enumerate() {
                acc[l] = step::<OP>(acc[l], load(part));
            }
        }
    }
    let (parts, _) = out.as_chunks_mut::<8>();
    for (part, v) in parts.iter_mut().zip(acc) {
        store(part, v);
    }
}

/// Up to eight columns.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn few_columns<const OP: u8>(x: &[f32], width: usize, out: &mut [f32], id: f32) {
    let mut acc = splat(id);
    for row in x.chunks(width) {
        let n = out.len().min(row.len());
        acc = step::<OP>(acc, load_part(&row[..n], id));
    }
    out.copy_from_slice(&to_lanes(acc)[..out.len()]);
}

/// Replaces each element by `f` of it and folds `g` of the results.
macro_rules! map_rows {
    ($x:expr, $fill:expr, |$v:ident| $f:expr) => {{
        let (parts, rest) = $x.as_chunks_mut::<8>();
        for part in parts {
            let $v = load(part);
            store(part, $f);
        }
        if !rest.is_empty() {
            let $v = load_part(rest, $fill);
            let lanes = to_lanes($f);
            rest.copy_from_slice(&lanes[..rest.len()]);
        }
    }};
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn softmax(x: &mut [f32], log: bool) {
    let max = reduce_row(Reduce::Max, x);
    let m = splat(max);
    if log {
        let mut sum = splat(0.0);
        let (parts, rest) = x.as_chunks::<8>();
        for part in parts {
            sum = _mm256_add_ps(sum, exp(_mm256_sub_ps(load(part), m)));
        }
        if !rest.is_empty() {
            sum = _mm256_add_ps(sum, exp(_mm256_sub_ps(load_part(rest, f32::NEG_INFINITY), m)));
        }
        let shift = splat(scalar::log(to_lanes(sum).iter().sum()));
        map_rows!(x, 0.0, |v| _mm256_sub_ps(_mm256_sub_ps(v, m), shift));
        return;
    }
    map_rows!(x, 0.0, |v| exp(_mm256_sub_ps(v, m)));
    let scale = splat(1.0 / reduce_row(Reduce::Sum, x));
    map_rows!(x, 0.0, |v| _mm256_mul_ps(v, scale));
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn layer_norm(x: &mut [f32], gamma: Option<&[f32]>, beta: Option<&[f32]>, epsilon: f32) {
    let n = x.len() as f32;
    let mean = splat(reduce_row(Reduce::Sum, x) / n);
    map_rows!(x, 0.0, |v| _mm256_sub_ps(v, mean));
    let scale = splat(1.0 / (reduce_row(Reduce::SumSquare, x) / n + epsilon).sqrt());
    let affine = |v: __m256, g: Option<__m256>, b: Option<__m256>| {
        let v = _mm256_mul_ps(v, scale);
        let v = g.map_or(v, |g| _mm256_mul_ps(v, g));
        b.map_or(v, |b| _mm256_add_ps(v, b))
    };
    let whole = x.len() / 8 * 8;
    let (parts, rest) = x.as_chunks_mut::<8>();
    let gammas = gamma.map(|g| g.as_chunks::<8>().0);
    let betas = beta.map(|b| b.as_chunks::<8>().0);
    for (i, part) in parts.iter_mut().enumerate() {
        let v = affine(load(part), gammas.map(|g| load(&g[i])), betas.map(|b| load(&b[i])));
        store(part, v);
    }
    if !rest.is_empty() {
        let g = gamma.map(|g| load_part(&g[whole..], 0.0));
        let b = beta.map(|b| load_part(&b[whole..], 0.0));
        let v = affine(load_part(rest, 0.0), g, b);
        rest.copy_from_slice(&to_lanes(v)[..rest.len()]);
    }
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn activate(activation: Activation, x: &mut [f32]) {
    if let Some((lo, hi)) = activation.bounds() {
        let (lo, hi) = (splat(lo), splat(hi));
        map_rows!(x, 0.0, |v| clamp(v, lo, hi));
        return;
    }
    match activation {
        Activation::HardSigmoid { alpha, beta } => {
            let (a, b) = (splat(alpha), splat(beta));
            map_rows!(x, 0.0, |v| clamp(_mm256_fmadd_ps(v, a, b), splat(0.0), splat(1.0)));
        }
        Activation::HardSwish => map_rows!(x, 0.0, |v| hard_swish(v)),
        Activation::Sigmoid => map_rows!(x, 0.0, |v| sigmoid(v)),
        Activation::Silu => map_rows!(x, 0.0, |v| _mm256_mul_ps(v, sigmoid(v))),
        Activation::Gelu => map_rows!(x, 0.0, |v| gelu(v)),
        Activation::Tanh => map_rows!(x, 0.0, |v| tanh(v)),
        Activation::None | Activation::Relu | Activation::Clip { .. } => {}
    }
}

#[target_feature(enable = "avx2,fma")]
pub(super) fn add(x: &mut [f32], y: &[f32]) {
    let (xs, x_rest) = x.as_chunks_mut::<8>();
    let (ys, _) = y.as_chunks::<8>();
    let done = xs.len() * 8;
    for (x, y) in xs.iter_mut().zip(ys) {
        store(x, _mm256_add_ps(load(x), load(y)));
    }
    for (x, y) in x_rest.iter_mut().zip(y.iter().skip(done)) {
        *x += y;
    }
}
