use super::*;
use crate::kernels::testing::Rng;
use crate::kernels::{Activation, Isa, Serial, Spread};

/// Bytes of either signedness, extremes included.
struct Matrix {
    signed: Vec<i8>,
    unsigned: Vec<u8>,
    is_signed: bool,
    shape: (usize, usize),
    strides: (usize, usize),
}

impl Matrix {
    fn random(rng: &mut Rng, rows: usize, cols: usize) -> Self {
        let strides = match rng.int(0, 4) {
            0 | 1 => (cols, 1),
            2 | 3 => (1, rows),
            _ => (2 * cols + 1, 2),
        };
        let len = rows * strides.0 + cols * strides.1;
        let extreme = rng.int(0, 3) == 0;
        let byte = |rng: &mut Rng| {
            if extreme { [0, 127, 128, 255][rng.int(0, 3)] } else { rng.int(0, 255) as u8 }
        };
        let unsigned: Vec<u8> = (0..len).map(|_| byte(rng)).collect();
        let signed = unsigned.iter().map(|&v| v as i8).collect();
        Self { signed, unsigned, is_signed: rng.int(0, 1) == 0, shape: (rows, cols), strides }
    }

    fn view(&self) -> QMatRef<'_> {
        let data = if self.is_signed {
            Bytes::Signed(&self.signed)
        } else {
            Bytes::Unsigned(&self.unsigned)
        };
        QMatRef::new(data, self.shape.0, self.shape.1, self.strides.0, self.strides.1).unwrap()
    }

    fn at(&self, i: usize, j: usize) -> i64 {
        let at = i * self.strides.0 + j * self.strides.1;
        if self.is_signed { i64::from(self.signed[at]) } else { i64::from(self.unsigned[at]) }
    }

    fn zero_points(&self, rng: &mut Rng, axis: usize) -> Vec<i32> {
        let n = if rng.int(0, 1) == 0 { 1 } else { axis };
        let shift = if self.is_signed { 128 } else { 0 };
        (0..n).map(|_| rng.int(0, 255) as i32 - shift).collect()
    }
}

fn pick(zero: &[i32], i: usize) -> i64 {
    i64::from(zero[if zero.len() == 1 { 0 } else { i }])
}

#[test]
fn sums_are_exact_for_any_split() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    let mut rng = Rng::new(41);
    let mut shapes = vec![(0, 2, 3), (2, 0, 3), (2, 3, 0), (7, 1100, 17), (100, 33, 5), (1, 9, 99)];
    shapes.extend((0..150).map(|_| (rng.int(1, 20), rng.int(1, 50), rng.int(1, 60))));
    for (m, k, n) in shapes {
        let (a, b) = (Matrix::random(&mut rng, m, k), Matrix::random(&mut rng, k, n));
        let (za, zb) = (a.zero_points(&mut rng, m), b.zero_points(&mut rng, n));
        let row = n + rng.int(0, 3);
        for &isa in Isa::available() {
            let packed = PackedQ::for_isa(isa, b.view(), &zb).unwrap();
            let pars: [&dyn Parallel; 2] = [&Serial, &pool];
            for par in pars {
                let mut c = vec![7; m * row];
                qgemm(a.view(), &za, &packed, &mut c, row, par).unwrap();
                for i in 0..m {
                    for j in 0..row {
                        let want: i64 = if j < n {
                            let term =
                                |p| (a.at(i, p) - pick(&za, i)) * (b.at(p, j) - pick(&zb, j));
                            (0..k).map(term).sum()
                        } else {
                            7
                        };
                        let have = c[i * row + j];
                        assert_eq!(i64::from(have), want, "{m}x{k}x{n} {i},{j} {}", isa.name());
                    }
                }
            }
        }
    }
}

#[test]
fn extremes_do_not_saturate() {
    let k = 2000;
    let (a, b) = (vec![255u8; k], vec![-128i8; k]);
    for &isa in Isa::available() {
        let bm = QMatRef::row_major(Bytes::Signed(&b), k, 1).unwrap();
        let packed = PackedQ::for_isa(isa, bm, &[127]).unwrap();
        let am = QMatRef::row_major(Bytes::Unsigned(&a), 1, k).unwrap();
        let mut c = [0];
        qgemm(am, &[0], &packed, &mut c, 1, &Serial).unwrap();
        assert_eq!(c[0], -255 * 255 * 2000);
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let data = [0u8; 6];
    assert!(QMatRef::row_major(Bytes::Unsigned(&data), 2, 4).is_err());
    let a = QMatRef::row_major(Bytes::Unsigned(&data), 2, 3).unwrap();
    let b = PackedQ::new(a.transposed(), &[0]).unwrap();
    let mut c = [0; 4];
    assert!(qgemm(a, &[0, 0], &b, &mut c, 2, &Serial).is_ok());
    let short = qgemm(a, &[0], &b, &mut c[..3], 2, &Serial).unwrap_err();
    assert_eq!(short, KernelError::Length { operand: "out", need: 4, have: 3 });
    assert!(matches!(
        qgemm(a, &[256], &b, &mut c, 2, &Serial),
        Err(KernelError::Invalid { operand: "lhs_zero", .. })
    ));
    assert!(qgemm(a, &[], &b, &mut c, 2, &Serial).is_err());
    assert!(qgemm(a, &[0], &b, &mut c, 1, &Serial).is_err());
    assert!(qgemm(a.transposed(), &[0], &b, &mut [0; 9], 3, &Serial).is_err());
    assert!(PackedQ::new(a, &[-1]).is_err());
    // Nothing to sum, and one row whose stride is not used.
    let (a, b) = (QMatRef::row_major(Bytes::Signed(&[]), 1, 0), Bytes::Signed(&[]));
    let b = PackedQ::new(QMatRef::row_major(b, 0, 2).unwrap(), &[0]).unwrap();
    qgemm(a.unwrap(), &[0], &b, &mut c, 0, &Serial).unwrap();
    assert_eq!(c[..2], [0, 0]);
}

#[test]
fn finished_sums_are_those_of_single_steps() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    let mut rng = Rng::new(43);
    for round in 0..120 {
        let (m, k, n) = (rng.int(1, 30), rng.int(1, 40), rng.int(1, 100));
        let (a, b) = (Matrix::random(&mut rng, m, k), Matrix::random(&mut rng, k, n));
        let (za, zb) = (a.zero_points(&mut rng, m), b.zero_points(&mut rng, n));
        let scales: Vec<f32> = rng.vec(n).iter().map(|v| v.abs() * 0.01 + 1e-4).collect();
        let (bias, addend) = (rng.vec(n), rng.vec(n));
        let grid = |rng: &mut Rng, signed: bool| {
            let zero = rng.int(0, 255) as i32 - if signed { 128 } else { 0 };
            Grid { scale: 0.02 + rng.int(0, 9) as f32 * 0.1, zero, signed }
        };
        let between = grid(&mut rng, round % 4 < 2);
        let last = grid(&mut rng, round % 3 == 0);
        let e = QEpilogue {
            scale: if round % 5 == 0 { Spread::One(scales[0]) } else { Spread::Each(&scales) },
            bias: (round % 2 == 0).then_some(&bias),
            grid: (round % 3 > 0).then_some(between),
            addend: (round % 7 > 2).then_some(&addend),
            activation: [Activation::None, Activation::Relu][round % 2],
        };
        let quantised = |x: f32, g: Grid| {
            let q = (x / g.scale).round_ties_even().clamp(-2000.0, 2000.0) as i32 + g.zero;
            if g.signed { q.clamp(-128, 127) } else { q.clamp(0, 255) }
        };
        for &isa in Isa::available() {
            let packed = PackedQ::for_isa(isa, b.view(), &zb).unwrap();
            let mut sums = vec![0; m * n];
            qgemm(a.view(), &za, &packed, &mut sums, n, &Serial).unwrap();
            let want: Vec<f32> = (0..m * n)
                .map(|i| {
                    let j = i % n;
                    let mut x = sums[i] as f32 * e.scale.at(j);
                    x += e.bias.map_or(0.0, |b| b[j]);
                    if let Some(g) = e.grid {
                        x = (quantised(x, g) - g.zero) as f32 * g.scale;
                    }
                    x += e.addend.map_or(0.0, |b| b[j]);
                    if round % 2 == 1 { x.max(0.0) } else { x }
                })
                .collect();
            let pars: [&dyn Parallel; 2] = [&Serial, &pool];
            for par in pars {
                let mut floats = vec![f32::NAN; m * n];
                qgemm_into(a.view(), &za, &packed, &e, QOut::Floats(&mut floats), par).unwrap();
                assert_eq!(floats, want, "{m}x{k}x{n} {} {e:?}", isa.name());
                let bytes: Vec<i32> = want.iter().map(|x| quantised(*x, last)).collect();
                let (mut u, mut s) = (vec![9u8; m * n], vec![9i8; m * n]);
                let have: Vec<i32> = if last.signed {
                    let out = QOut::Signed(&mut s, last);
                    qgemm_into(a.view(), &za, &packed, &e, out, par).unwrap();
                    s.iter().map(|v| i32::from(*v)).collect()
                } else {
                    let out = QOut::Unsigned(&mut u, last);
                    qgemm_into(a.view(), &za, &packed, &e, out, par).unwrap();
                    u.iter().map(|v| i32::from(*v)).collect()
                };
                assert_eq!(have, bytes, "{m}x{k}x{n} {} {e:?} {last:?}", isa.name());
            }
        }
    }
    let (a, b) = ([0u8; 2], [0i8; 2]);
    let a = QMatRef::row_major(Bytes::Unsigned(&a), 2, 1).unwrap();
    let b = PackedQ::new(QMatRef::row_major(Bytes::Signed(&b), 1, 2).unwrap(), &[0]).unwrap();
    let plain = QEpilogue {
        scale: Spread::One(1.0),
        bias: None,
        grid: None,
        addend: None,
        activation: Activation::None,
    };
    let grid = Grid { scale: 1.0, zero: 0, signed: true };
    let mut out = [0u8; 4];
    assert!(qgemm_into(a, &[0], &b, &plain, QOut::Unsigned(&mut out, grid), &Serial).is_err());
    let short = QEpilogue { bias: Some(&[1.0]), ..plain };
    let mut out = [0.0; 4];
    assert!(qgemm_into(a, &[0], &b, &short, QOut::Floats(&mut out), &Serial).is_err());
    assert!(qgemm_into(a, &[0], &b, &plain, QOut::Floats(&mut out[..3]), &Serial).is_err());
}
