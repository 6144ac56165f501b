use super::*;
use crate::kernels::testing::Rng;

/// Numbers at which rounding, saturation and conversion change, and their neighbours.
fn edges() -> Vec<f32> {
    let mut v = vec![0.0, -0.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY];
    v.extend([f32::MAX, f32::MIN, f32::MIN_POSITIVE, 1e-45, 2_147_483_648.0, -2_147_483_648.0]);
    for half in -1100..1100 {
        let x = half as f32 * 0.5;
        v.extend([x, x.next_up(), x.next_down()]);
    }
    for x in [1_048_576.0f32, 12_582_912.0, 8_388_608.0, 32_768.0, 65_536.0] {
        v.extend([x, x.next_up(), x.next_down(), -x, (-x).next_up(), (-x).next_down()]);
    }
    v
}

/// What ONNX says, in doubles and long integers where nothing of the kernels is used.
fn reference(x: f32, scale: f32, zero: f32, range: (f32, f32)) -> f32 {
    let v = x / scale;
    if v.is_nan() {
        return range.0;
    }
    (f64::from(v).round_ties_even() + f64::from(zero)).clamp(f64::from(range.0), f64::from(range.1))
        as f32
}

fn check<Q: Byte + PartialEq + std::fmt::Debug + Default>(zeros: &[f32]) {
    let mut x = edges();
    // Every offset from the start of a group of lanes.
    x.rotate_left(3);
    for scale in [1.0f32, 0.5, 0.1, 3.7, 1e-30, 1e30, 0.0, f32::NAN, -1.0, f32::INFINITY] {
        for &zero in zeros {
            let mut want = vec![Q::default(); x.len()];
            for (o, &v) in want.iter_mut().zip(&x) {
                *o = Q::from_whole(reference(v, scale, zero, Q::RANGE));
            }
            for &isa in Isa::available() {
                for cut in [0, 1, 7, 31] {
                    let mut out = vec![Q::default(); x.len() - cut];
                    let (s, z) = (Spread::One(scale), Spread::One(zero));
                    quantize_on(isa, &x[cut..], s, z, &mut out).unwrap();
                    assert!(out == want[cut..], "{} scale {scale} zero {zero}", isa.name());
                    let (s, z) = (vec![scale; x.len()], vec![zero; x.len()]);
                    let (s, z) = (Spread::Each(&s), Spread::Each(&z));
                    quantize_on(isa, &x[cut..], s, z, &mut out).unwrap();
                    assert!(out == want[cut..], "{} scales {scale} zero {zero}", isa.name());
                }
            }
        }
    }
}

#[test]
fn quantised_edges_agree_with_the_definition() {
    check::<u8>(&[0.0, 1.0, 128.0, 255.0]);
    check::<i8>(&[-128.0, -1.0, 0.0, 127.0]);
}

#[test]
fn every_byte_comes_back_and_each_element_has_its_own_scale() {
    let mut rng = Rng::new(3);
    let unsigned: Vec<u8> = (0..=255).collect();
    let signed: Vec<i8> = unsigned.iter().map(|&v| v as i8).collect();
    let scales: Vec<f32> = (0..256).map(|_| rng.int(1, 1000) as f32 * 0.013).collect();
    let zeros: Vec<f32> = (0..256).map(|_| rng.int(0, 127) as f32).collect();
    for &isa in Isa::available() {
        for n in [0, 1, 8, 13, 100, 256] {
            let (s, z) = (Spread::Each(&scales), Spread::Each(&zeros));
            let mut out = vec![0.0; n];
            dequantize_on(isa, &unsigned[..n], s, z, &mut out).unwrap();
            for i in 0..n {
                assert_eq!(out[i], (i32::from(unsigned[i]) - zeros[i] as i32) as f32 * scales[i]);
            }
            let mut back = vec![0u8; n];
            quantize_on(isa, &out, s, z, &mut back).unwrap();
            assert_eq!(back, unsigned[..n]);
            dequantize_on(isa, &signed[..n], s, z, &mut out).unwrap();
            for i in 0..n {
                assert_eq!(out[i], (i32::from(signed[i]) - zeros[i] as i32) as f32 * scales[i]);
            }
        }
    }
}

#[test]
fn short_slices_are_refused() {
    let (one, x) = (Spread::One(1.0), [1.0, 2.0]);
    assert!(quantize(&x, one, one, &mut [0u8]).is_err());
    assert!(quantize(&x, Spread::Each(&[1.0]), one, &mut [0u8; 2]).is_err());
    assert!(dequantize(&[1u8, 2], one, Spread::Each(&[]), &mut x.clone()).is_err());
}
