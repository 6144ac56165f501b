use super::reduce::reduce_on;
use super::rows::{layer_norm_on, softmax_on};
use super::*;
use crate::kernels::testing::{Rng, assert_close};

const OPS: [Reduce; 6] =
    [Reduce::Sum, Reduce::Mean, Reduce::SumSquare, Reduce::Max, Reduce::Min, Reduce::Prod];

fn naive_reduce(op: Reduce, x: &[f64]) -> f64 {
    match op {
        Reduce::Sum => x.iter().sum(),
        Reduce::Mean => x.iter().sum::<f64>() / x.len() as f64,
        Reduce::SumSquare => x.iter().map(|v| v * v).sum(),
        Reduce::Max => x.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        Reduce::Min => x.iter().copied().fold(f64::INFINITY, f64::min),
        Reduce::Prod => x.iter().product(),
    }
}

#[test]
fn reductions_agree_with_double_precision() {
    let mut rng = Rng::new(31);
    for _ in 0..300 {
        let (outer, len) = (rng.int(1, 4), rng.int(1, 120));
        let inner = if rng.int(0, 1) == 0 { 1 } else { rng.int(1, 90) };
        let x = rng.vec(outer * len * inner);
        for op in OPS {
            let mut want = Vec::new();
            for o in 0..outer {
                for i in 0..inner {
                    let column: Vec<f64> =
                        (0..len).map(|l| f64::from(x[(o * len + l) * inner + i])).collect();
                    want.push(naive_reduce(op, &column));
                }
            }
            for &isa in Isa::available() {
                let mut out = vec![f32::NAN; outer * inner];
                reduce_on(isa, op, &x, outer, len, inner, &mut out).unwrap();
                let what = format!("{op:?} {outer}x{len}x{inner} on {}", isa.name());
                assert_close(&out, &want, 1e-5, &what);
            }
        }
    }
}

#[test]
fn extremes_keep_nan_and_empty_axes_have_values() {
    for &isa in Isa::available() {
        for inner in [1, 3, 40] {
            for place in 0..5 {
                let mut x = vec![1.0; 5 * inner];
                x[place * inner] = f32::NAN;
                for op in [Reduce::Max, Reduce::Min] {
                    let mut out = vec![0.0; inner];
                    reduce_on(isa, op, &x, 1, 5, inner, &mut out).unwrap();
                    assert!(out[0].is_nan() && out[1..].iter().all(|&v| v == 1.0));
                }
            }
            let mut out = vec![9.0; inner];
            reduce_on(isa, Reduce::Sum, &[], 1, 0, inner, &mut out).unwrap();
            assert!(out.iter().all(|&v| v == 0.0));
            reduce_on(isa, Reduce::Max, &[], 1, 0, inner, &mut out).unwrap();
            assert!(out.iter().all(|&v| v == f32::NEG_INFINITY));
        }
    }
    let e = reduce(Reduce::Sum, &[0.0; 5], 2, 3, 1, &mut [0.0; 2]).unwrap_err();
    assert_eq!(e, KernelError::Length { operand: "x", need: 6, have: 5 });
}

#[test]
fn softmax_agrees_with_double_precision() {
    let mut rng = Rng::new(32);
    for cols in (1..40).chain([100, 257]) {
        let x: Vec<f32> = (0..3 * cols).map(|_| rng.unit() * 30.0).collect();
        for log in [false, true] {
            let mut want = Vec::new();
            for row in x.chunks(cols) {
                let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let sum: f64 = row.iter().map(|v| f64::from(v - max).exp()).sum();
                want.extend(row.iter().map(|v| {
                    let shifted = f64::from(*v) - f64::from(max);
                    if log { shifted - sum.ln() } else { shifted.exp() / sum }
                }));
            }
            for &isa in Isa::available() {
                let mut y = x.clone();
                softmax_on(isa, log, &mut y, cols).unwrap();
                assert_close(&y, &want, 1e-6, &format!("softmax {cols} on {}", isa.name()));
            }
        }
    }
}

#[test]
fn softmax_of_masked_rows() {
    for &isa in Isa::available() {
        let mut x = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY, 0.0];
        softmax_on(isa, false, &mut x, 4).unwrap();
        assert_eq!(x, [0.0, 0.5, 0.0, 0.5]);
        let mut x = [f32::NEG_INFINITY; 3];
        softmax_on(isa, false, &mut x, 3).unwrap();
        assert!(x.iter().all(|v| v.is_nan()));
    }
    assert!(softmax(&mut [0.0; 7], 2).is_err());
    assert!(softmax(&mut [0.0; 7], 0).is_err());
    assert!(softmax(&mut [], 0).is_ok());
}

#[test]
fn layer_norm_agrees_with_double_precision() {
    let mut rng = Rng::new(33);
    for cols in (1..40).chain([384, 1001]) {
        let x: Vec<f32> = (0..2 * cols).map(|_| rng.unit() * 3.0 + 5.0).collect();
        let (gamma, beta) = (rng.vec(cols), rng.vec(cols));
        for (g, b) in [(None, None), (Some(&gamma), None), (Some(&gamma), Some(&beta))] {
            let mut want = Vec::new();
            for row in x.chunks(cols) {
                let n = cols as f64;
                let mean = row.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
                let var = row.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
                want.extend(row.iter().enumerate().map(|(i, &v)| {
                    (f64::from(v) - mean) / (var + 1e-5).sqrt() * g.map_or(1.0, |g| f64::from(g[i]))
                        + b.map_or(0.0, |b| f64::from(b[i]))
                }));
            }
            let (g, b) = (g.map(Vec::as_slice), b.map(Vec::as_slice));
            for &isa in Isa::available() {
                let mut y = x.clone();
                layer_norm_on(isa, &mut y, cols, g, b, 1e-5).unwrap();
                assert_close(&y, &want, 3e-5, &format!("layer norm {cols} on {}", isa.name()));
            }
            let (mut y, mut z) = (x.clone(), vec![0.0; x.len()]);
            layer_norm(&mut y, cols, g, b, 1e-5).unwrap();
            layer_norm_into(&x, cols, g, b, 1e-5, &mut z).unwrap();
            assert_eq!(y, z);
        }
    }
    assert!(layer_norm(&mut [0.0; 6], 3, Some(&[1.0; 2]), None, 1e-5).is_err());
    assert!(layer_norm_into(&[0.0; 6], 3, None, None, 1e-5, &mut [0.0; 5]).is_err());
}
