use super::*;
use crate::kernels::gemm::{Lhs, PackedA, gemm_on};
use crate::kernels::testing::{Rng, assert_close, assert_same_bits};
use crate::kernels::{Activation, Serial};

/// A float as bfloat16 has it, by the definition: the neighbour that is nearer, or the even one.
fn rounded(x: f32) -> f32 {
    let down = f32::from_bits(x.to_bits() & 0xFFFF_0000);
    let up = f32::from_bits((x.to_bits() & 0xFFFF_0000).wrapping_add(0x1_0000));
    let (to_down, to_up) =
        ((f64::from(x) - f64::from(down)).abs(), (f64::from(up) - f64::from(x)).abs());
    if to_down < to_up || (to_down == to_up && down.to_bits() & 0x1_0000 == 0) { down } else { up }
}

struct Case {
    m: usize,
    k: usize,
    n: usize,
    a: Vec<f32>,
    transposed: [bool; 2],
    b: Vec<f32>,
    bias: Vec<f32>,
    residual: Vec<f32>,
    c: Vec<f32>,
    beta: f32,
}

impl Case {
    fn random(rng: &mut Rng, (m, k, n): (usize, usize, usize)) -> Self {
        Self {
            m,
            k,
            n,
            a: rng.vec(m * k),
            transposed: [rng.int(0, 1) == 1, rng.int(0, 1) == 1],
            b: rng.vec(k * n),
            bias: rng.vec(m.max(n)),
            residual: rng.vec(m * (n + 3)),
            c: rng.vec(m * n),
            beta: if rng.int(0, 3) == 0 { 0.75 } else { 0.0 },
        }
    }

    fn view(data: &[f32], rows: usize, cols: usize, transposed: bool) -> MatRef<'_> {
        if transposed {
            MatRef::row_major(data, cols, rows).unwrap().transposed()
        } else {
            MatRef::row_major(data, rows, cols).unwrap()
        }
    }

    fn a(&self) -> MatRef<'_> {
        Self::view(&self.a, self.m, self.k, self.transposed[0])
    }

    fn b(&self) -> MatRef<'_> {
        Self::view(&self.b, self.k, self.n, self.transposed[1])
    }

    fn epilogue(&self) -> Epilogue<'_> {
        Epilogue {
            alpha: 0.5,
            beta: self.beta,
            bias: if self.k.is_multiple_of(2) {
                Bias::PerRow(&self.bias)
            } else {
                Bias::PerColumn(&self.bias)
            },
            residual: Some(Residual {
                data: &self.residual,
                row_stride: self.n + 3,
                after_activation: true,
            }),
            activation: Activation::Relu,
        }
    }

    fn run(&self, b: &PackedBf16, par: &dyn Parallel) -> Vec<f32> {
        let mut c = self.c.clone();
        let out = MatMut::row_major(&mut c, self.m, self.n).unwrap();
        gemm_on(b.isa(), self.a().into(), b.into(), out, &self.epilogue(), par).unwrap();
        c
    }

    /// Double precision over rounded operands.
    fn naive(&self) -> Vec<f64> {
        let mut c = Vec::new();
        for i in 0..self.m {
            for j in 0..self.n {
                let product = |p: usize| {
                    f64::from(rounded(self.a().at(i, p))) * f64::from(rounded(self.b().at(p, j)))
                };
                let sum: f64 = (0..self.k).map(product).sum();
                let bias = self.bias[if self.k.is_multiple_of(2) { i } else { j }];
                let old = f64::from(self.beta) * f64::from(self.c[i * self.n + j]);
                let value = 0.5 * sum + old + f64::from(bias);
                c.push(value.max(0.0) + f64::from(self.residual[i * (self.n + 3) + j]));
            }
        }
        c
    }
}

fn shapes(rng: &mut Rng) -> Vec<(usize, usize, usize)> {
    let mut shapes = vec![
        (0, 3, 4),
        (3, 0, 5),
        (3, 4, 0),
        (1, 0, 9),
        (1, 1, 1),
        (1, 7, 33),
        (1, 300, 1100),
        (2, 257, 65),
        (13, 513, 100),
        (200, 41, 70),
        (400, 10, 5),
        (5, 1030, 17),
    ];
    for _ in 0..80 {
        shapes.push((rng.int(1, 26), rng.int(1, 60), rng.int(1, 90)));
        shapes.push((1, rng.int(1, 90), rng.int(1, 150)));
    }
    shapes
}

#[test]
fn floats_are_rounded_to_the_nearest_and_to_even() {
    let mut rng = Rng::new(7);
    let mut all: Vec<f32> = rng.vec(4000);
    let (low, high) = (1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0);
    all.extend([0.0, -0.0, 1.0, low, high, -low, 1e-40, 3.4e38]);
    for x in &all {
        let want = if *x == 3.4e38 { f32::INFINITY } else { rounded(*x) };
        assert_eq!(nearest(*x) << 16, want.to_bits(), "{x}");
    }
    // Ties: to 1.0 and to 1.015625.
    assert_eq!(nearest(low), 0x3F80);
    assert_eq!(nearest(high), 0x3F82);
    assert_eq!(nearest(f32::NEG_INFINITY), 0xFF80);
    for bits in [0x7F80_0001, 0xFFFF_FFFF, 0x7FC0_0000] {
        assert!(f32::from_bits(nearest(f32::from_bits(bits)) << 16).is_nan(), "{bits:x}");
    }
}

#[test]
fn every_kernel_agrees_with_double_precision_and_with_the_portable_one() {
    let mut rng = Rng::new(5);
    for shape in shapes(&mut rng) {
        let case = Case::random(&mut rng, shape);
        let want = case.naive();
        let scalar = case.run(&PackedBf16::for_isa(Isa::scalar(), case.b()).unwrap(), &Serial);
        let scalar: Vec<f64> = scalar.into_iter().map(f64::from).collect();
        for &isa in Isa::available() {
            let b = PackedBf16::for_isa(isa, case.b()).unwrap();
            let what = format!("{shape:?} on {}", isa.name());
            let got = case.run(&b, &Serial);
            assert_close(&got, &want, 1e-5, &what);
            assert_close(&got, &scalar, 1e-5, &what);
        }
    }
}

#[test]
fn threads_and_other_rows_do_not_change_a_bit() {
    let pools: Vec<rayon::ThreadPool> =
        [2, 3].map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap()).into();
    let mut rng = Rng::new(6);
    for shape in shapes(&mut rng) {
        let mut case = Case::random(&mut rng, shape);
        case.beta = 0.0;
        case.transposed[0] = false;
        for &isa in Isa::available() {
            let b = PackedBf16::for_isa(isa, case.b()).unwrap();
            let one = case.run(&b, &Serial);
            for pool in &pools {
                assert_same_bits(&case.run(&b, pool), &one, &format!("{shape:?}"));
            }
            let (m, k, n) = shape;
            for i in (0..m).step_by(5) {
                let alone = Case {
                    m: 1,
                    a: case.a[i * k..(i + 1) * k].to_vec(),
                    b: case.b.clone(),
                    bias: if k.is_multiple_of(2) {
                        vec![case.bias[i]; n.max(1)]
                    } else {
                        case.bias.clone()
                    },
                    residual: case.residual[i * (n + 3)..].to_vec(),
                    c: vec![0.0; n],
                    ..case
                };
                assert_same_bits(
                    &alone.run(&b, &Serial),
                    &one[i * n..][..n],
                    &format!("{shape:?}"),
                );
            }
        }
    }
}

#[test]
fn half_the_bytes_are_held_and_a_packed_left_operand_is_refused() {
    let data = Rng::new(8).vec(64 * 64);
    let m = MatRef::row_major(&data, 64, 64).unwrap();
    let (half, whole) = (PackedBf16::new(m).unwrap(), crate::kernels::PackedB::new(m).unwrap());
    assert_eq!((half.depth(), half.cols(), half.bytes() * 2), (64, 64, whole.bytes()));
    let left = PackedA::new(m).unwrap();
    let mut c = vec![7.0; 64 * 64];
    let out = MatMut::row_major(&mut c, 64, 64).unwrap();
    let refused = gemm_on(
        Isa::best(),
        Lhs::Packed(&left),
        (&half).into(),
        out,
        &Epilogue::default(),
        &Serial,
    );
    assert!(matches!(refused, Err(KernelError::Invalid { operand: "lhs", .. })), "{refused:?}");
    assert!(c.iter().all(|v| *v == 7.0));
}

#[test]
fn nan_and_infinity_pass_through() {
    let ones = [1.0f32; 40];
    for &isa in Isa::available() {
        let b = PackedBf16::for_isa(isa, MatRef::row_major(&ones, 2, 20).unwrap()).unwrap();
        for m in [1, 3] {
            let a = [f32::NAN, 1.0, f32::INFINITY, 1.0, f32::NEG_INFINITY, 1.0];
            let mut c = [0.0; 60];
            for (i, want) in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].iter().enumerate() {
                let from = if m == 1 { &a[2 * i..2 * i + 2] } else { &a[..] };
                let out = MatMut::row_major(&mut c[..m * 20], m, 20).unwrap();
                let left = MatRef::row_major(from, m, 2).unwrap();
                gemm_on(isa, left.into(), (&b).into(), out, &Epilogue::default(), &Serial).unwrap();
                let got = c[if m == 1 { 0 } else { 20 * i }];
                assert!(got == *want || (got.is_nan() && want.is_nan()), "{got} {want}");
            }
        }
    }
}

/// Panels as wide as those of AVX-512 are read by AVX2, where the CPU has no AVX512-BF16.
#[cfg(target_arch = "x86_64")]
#[test]
fn wide_panels_are_summed_and_widened_by_avx2() {
    if Isa::best() == Isa::scalar() {
        return;
    }
    let mut rng = Rng::new(9);
    for (count, depth) in [(1, 2), (2, 7), (3, 40), (5, 1)] {
        let (pairs, columns) = (depth, count * 32);
        let words: Vec<u32> = (0..count * pairs * 32)
            .map(|_| nearest(rng.unit()) | nearest(rng.unit()) << 16)
            .collect();
        let x: Vec<f32> = (0..2 * pairs).map(|_| rounded(rng.unit())).collect();
        let want: Vec<f64> = (0..columns)
            .map(|j| {
                let word = |p: usize| words[(j / 32 * pairs + p) * 32 + j % 32];
                let pair = |p: usize| scalar::pair(word(p)).map(f64::from);
                let x = |i: usize| f64::from(x[i]);
                (0..pairs).map(|p| x(2 * p) * pair(p)[0] + x(2 * p + 1) * pair(p)[1]).sum()
            })
            .collect();
        let mut y = vec![9.0; columns];
        // SAFETY: the CPU has AVX2, as every instruction set but the portable one includes it; the
        // panels are as many as the sums.
        unsafe { avx2::panels::<4>(words.as_ptr(), pairs, &x, &mut y) };
        assert_close(&y, &want, 1e-5, "sums");
        for lines in [2 * pairs, 2 * pairs - 1] {
            let (mut wide, mut plain) = (vec![9.0; lines * 32], vec![7.0; lines * 32]);
            scalar::widen(&words[..pairs * 32], 32, &mut plain);
            // SAFETY: the CPU has AVX2.
            unsafe { avx2::widen(&words[..pairs * 32], 32, 0, &mut wide) };
            assert_same_bits(&wide, &plain, "lines");
            assert_eq!(plain[0].to_bits(), words[0] << 16);
        }
    }
}
