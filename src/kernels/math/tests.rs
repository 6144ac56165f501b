use super::*;
use crate::kernels::testing::Rng;

type Reference = fn(f64) -> f64;

/// erf in double precision: Taylor series below 3, continued fraction for erfc above.
fn erf64(x: f64) -> f64 {
    let t = x.abs();
    let y = if t < 3.0 {
        let (mut term, mut sum) = (t, t);
        for n in 1..200 {
            let n = f64::from(n);
            term *= -t * t / n;
            sum += term / (2.0 * n + 1.0);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else if t.is_nan() {
        t
    } else {
        let mut fraction = t;
        for n in (1..200).rev() {
            fraction = t + f64::from(n) / 2.0 / fraction;
        }
        1.0 - (-t * t).exp() / (fraction * std::f64::consts::PI.sqrt())
    };
    y.copysign(x)
}

fn sigmoid64(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Distance in units of the last place of the single-precision result.
fn ulps(have: f32, want: f64) -> f64 {
    let w = want as f32;
    if have == w || have.is_nan() && w.is_nan() {
        return 0.0;
    }
    let magnitude = w.abs().max(f32::MIN_POSITIVE);
    let exponent = (magnitude.to_bits() >> 23) as i32 - 127;
    (f64::from(have) - want).abs() / 2f64.powi(exponent - 23)
}

fn arguments(lo: f32, hi: f32) -> Vec<f32> {
    let mut rng = Rng::new(7);
    let mut v: Vec<f32> = (0..200_001).map(|i| lo + (hi - lo) * (i as f32 / 200_000.0)).collect();
    for _ in 0..50_000 {
        v.push(rng.unit() * 10f32.powi(rng.int(0, 12) as i32 - 10));
    }
    v.extend((0..40_000).map(|_| f32::from_bits(rng.next() as u32)));
    v.extend([0.0, -0.0, 1.0, -1.0, 1e-45, -1e-45, 1e-40, f32::MIN_POSITIVE]);
    v.extend([f32::MAX, f32::MIN, f32::INFINITY, f32::NEG_INFINITY, f32::NAN]);
    v.extend([88.72, 88.73, -87.3, -87.4, -103.9, -104.1, 0.625, 4.1, 4.0, 0.98]);
    v
}

fn check(name: &str, f: fn(Isa, &mut [f32]), reference: Reference, range: (f32, f32), bound: f64) {
    for &isa in Isa::available() {
        let x = arguments(range.0, range.1);
        let mut y = x.clone();
        f(isa, &mut y);
        let (mut worst, mut at) = (0.0, 0.0);
        for (&x, &y) in x.iter().zip(&y) {
            let want = reference(f64::from(x));
            assert_eq!(y.is_nan(), want.is_nan(), "{name}({x}) = {y} on {}", isa.name());
            if y.is_nan() {
                continue;
            }
            if (want as f32).is_infinite() || y.is_infinite() {
                assert_eq!(y, want as f32, "{name}({x}) on {}", isa.name());
                continue;
            }
            let e = ulps(y, want);
            if e > worst {
                (worst, at) = (e, x);
            }
        }
        println!("{name} on {}: {worst:.2} ulp at {at}", isa.name());
        assert!(worst <= bound, "{name} on {}: {worst} ulp at {at}", isa.name());
    }
}

#[test]
fn exp_is_within_two_ulp() {
    check("exp", on::exp, f64::exp, (-110.0, 90.0), 2.0);
}

#[test]
fn log_is_within_two_ulp() {
    check("log", on::log, f64::ln, (1e-3, 30.0), 2.0);
}

#[test]
fn tanh_is_within_three_ulp() {
    check("tanh", on::tanh, f64::tanh, (-12.0, 12.0), 3.0);
}

#[test]
fn sigmoid_is_within_three_ulp() {
    check("sigmoid", on::sigmoid, sigmoid64, (-110.0, 30.0), 3.0);
}

#[test]
fn erf_is_within_three_ulp() {
    check("erf", on::erf, erf64, (-5.0, 5.0), 3.0);
}

#[test]
fn an_element_does_not_depend_on_its_place() {
    let x = Rng::new(3).vec(40);
    for &isa in Isa::available() {
        let mut whole = x.clone();
        on::exp(isa, &mut whole);
        for start in 0..9 {
            let mut part = x[start..].to_vec();
            on::exp(isa, &mut part);
            assert_eq!(part, whole[start..]);
        }
    }
}

#[test]
fn out_of_place_refuses_a_short_output() {
    let x = [0.5; 9];
    let mut out = [0.0; 8];
    let e = exp_into(&x, &mut out).unwrap_err();
    assert_eq!(e, KernelError::Length { operand: "out", need: 9, have: 8 });
    let mut out = [7.0; 10];
    exp_into(&x, &mut out).unwrap();
    assert!((out[8] - 0.5f32.exp()).abs() < 1e-6 && out[9] == 7.0);
}
