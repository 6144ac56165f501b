use super::*;
use crate::kernels::testing::Rng;
use crate::kernels::{Isa, Serial};

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
