use super::*;
use crate::kernels::testing::{Rng, assert_close, assert_same_bits};
use crate::kernels::{Activation, Serial};

/// Everything one product needs, with its operands laid out in a random way.
struct Case {
    m: usize,
    k: usize,
    n: usize,
    a: Vec<f32>,
    a_strides: (usize, usize),
    b: Vec<f32>,
    b_strides: (usize, usize),
    c: Vec<f32>,
    c_row: usize,
    alpha: f32,
    beta: f32,
    bias: Vec<f32>,
    bias_kind: usize,
    residual: Option<(Vec<f32>, usize, bool)>,
    activation: Activation,
}

const ACTIVATIONS: [Activation; 9] = [
    Activation::None,
    Activation::Relu,
    Activation::Clip { lo: -0.5, hi: 0.7 },
    Activation::HardSwish,
    Activation::HardSigmoid { alpha: 0.2, beta: 0.5 },
    Activation::Sigmoid,
    Activation::Silu,
    Activation::Gelu,
    Activation::Tanh,
];

fn layout(rng: &mut Rng, rows: usize, cols: usize) -> ((usize, usize), usize) {
    let gap = rng.int(0, 1) * rng.int(0, 3);
    let strides = match rng.int(0, 8) {
        0..=2 => (cols + gap, 1),
        3..=5 => (1, rows + gap),
        6 => (0, 1),
        7 => (1, 0),
        _ => (2 * cols + gap, 2),
    };
    (strides, rows.max(1) * strides.0 + cols.max(1) * strides.1)
}

impl Case {
    fn random(rng: &mut Rng, (m, k, n): (usize, usize, usize)) -> Self {
        let (a_strides, a_len) = layout(rng, m, k);
        let (b_strides, b_len) = layout(rng, k, n);
        let c_row = n + rng.int(0, 1) * rng.int(0, 5);
        let residual = (rng.int(0, 2) == 0).then(|| {
            let stride = n + rng.int(0, 3);
            (rng.vec(m * stride), stride, rng.int(0, 1) == 0)
        });
        Self {
            m,
            k,
            n,
            a: rng.vec(a_len),
            a_strides,
            b: rng.vec(b_len),
            b_strides,
            c: rng.vec(m * c_row),
            c_row,
            alpha: if rng.int(0, 2) == 0 { 0.5 } else { 1.0 },
            beta: if rng.int(0, 3) == 0 { 0.75 } else { 0.0 },
            bias: rng.vec(m.max(n)),
            bias_kind: rng.int(0, 2),
            residual,
            activation: ACTIVATIONS[rng.int(0, 8)],
        }
    }

    fn a(&self) -> MatRef<'_> {
        MatRef::new(&self.a, self.m, self.k, self.a_strides.0, self.a_strides.1).unwrap()
    }

    fn b(&self) -> MatRef<'_> {
        MatRef::new(&self.b, self.k, self.n, self.b_strides.0, self.b_strides.1).unwrap()
    }

    fn epilogue(&self) -> Epilogue<'_> {
        Epilogue {
            alpha: self.alpha,
            beta: self.beta,
            bias: match self.bias_kind {
                0 => Bias::None,
                1 => Bias::PerRow(&self.bias),
                _ => Bias::PerColumn(&self.bias),
            },
            residual: self.residual.as_ref().map(|(data, row_stride, after)| Residual {
                data,
                row_stride: *row_stride,
                after_activation: *after,
            }),
            activation: self.activation,
        }
    }

    fn run(&self, isa: Isa, lhs: Lhs<'_>, rhs: Rhs<'_>, par: &dyn Parallel) -> Vec<f32> {
        let mut c = self.c.clone();
        let out = MatMut::new(&mut c, self.m, self.n, self.c_row).unwrap();
        gemm_on(isa, lhs, rhs, out, &self.epilogue(), par).unwrap();
        c
    }

    /// Double precision, element by element, gaps between rows kept.
    fn naive(&self) -> Vec<f64> {
        let mut c: Vec<f64> = self.c.iter().map(|&v| f64::from(v)).collect();
        let (a, b) = (self.a(), self.b());
        for i in 0..self.m {
            for j in 0..self.n {
                let sum: f64 =
                    (0..self.k).map(|p| f64::from(a.at(i, p)) * f64::from(b.at(p, j))).sum();
                let old = &mut c[i * self.c_row + j];
                let mut v = f64::from(self.alpha) * sum + f64::from(self.beta) * *old;
                v += match self.bias_kind {
                    0 => 0.0,
                    1 => f64::from(self.bias[i]),
                    _ => f64::from(self.bias[j]),
                };
                let (before, after) = match &self.residual {
                    Some((r, s, true)) => (0.0, f64::from(r[i * s + j])),
                    Some((r, s, false)) => (f64::from(r[i * s + j]), 0.0),
                    None => (0.0, 0.0),
                };
                *old = activation64(self.activation, v + before) + after;
            }
        }
        c
    }

    fn describe(&self) -> String {
        format!(
            "{}x{}x{} a{:?} b{:?} {:?}",
            self.m, self.k, self.n, self.a_strides, self.b_strides, self.activation
        )
    }
}

fn activation64(a: Activation, x: f64) -> f64 {
    let sigmoid = 1.0 / (1.0 + (-x).exp());
    match a {
        Activation::None => x,
        Activation::Relu => x.max(0.0),
        Activation::Clip { lo, hi } => x.clamp(f64::from(lo), f64::from(hi)),
        Activation::HardSwish => x * (x / 6.0 + 0.5).clamp(0.0, 1.0),
        Activation::HardSigmoid { alpha, beta } => {
            (f64::from(alpha) * x + f64::from(beta)).clamp(0.0, 1.0)
        }
        Activation::Sigmoid => sigmoid,
        Activation::Silu => x * sigmoid,
        Activation::Gelu => {
            // Simpson's rule for the normal distribution function.
            let steps = 2000;
            let h = x / f64::from(steps);
            let density = |t: f64| (-t * t / 2.0).exp();
            let mut area = density(0.0) + density(x);
            for i in 1..steps {
                area += density(f64::from(i) * h) * if i % 2 == 1 { 4.0 } else { 2.0 };
            }
            x * (0.5 + area * h / 3.0 / (2.0 * std::f64::consts::PI).sqrt())
        }
        Activation::Tanh => x.tanh(),
    }
}

fn shapes(rng: &mut Rng) -> Vec<(usize, usize, usize)> {
    let mut shapes = vec![
        (0, 3, 4),
        (3, 0, 5),
        (3, 4, 0),
        (1, 0, 9),
        (9, 0, 1),
        (1, 1, 1),
        (6, 256, 16),
        (7, 257, 17),
        (12, 600, 33),
        (13, 513, 100),
        (1, 300, 1100),
        (1100, 33, 1),
        (200, 40, 530),
        (400, 10, 5),
    ];
    for _ in 0..120 {
        shapes.push((rng.int(1, 26), rng.int(1, 40), rng.int(1, 70)));
    }
    for _ in 0..20 {
        shapes.push((1, rng.int(1, 90), rng.int(1, 150)));
        shapes.push((rng.int(1, 150), rng.int(1, 90), 1));
    }
    shapes
}

#[test]
fn every_kernel_and_layout_agrees_with_double_precision() {
    let mut rng = Rng::new(1);
    for shape in shapes(&mut rng) {
        let case = Case::random(&mut rng, shape);
        let want = case.naive();
        for &isa in Isa::available() {
            let (pa, pb) = (
                PackedA::for_isa(isa, case.a()).unwrap(),
                PackedB::for_isa(isa, case.b()).unwrap(),
            );
            for lhs in [Lhs::Plain(case.a()), Lhs::Packed(&pa)] {
                for rhs in [Rhs::Plain(case.b()), Rhs::Packed(&pb)] {
                    let what = format!("{} on {}", case.describe(), isa.name());
                    assert_close(&case.run(isa, lhs, rhs, &Serial), &want, 1e-5, &what);
                }
            }
        }
    }
}

#[test]
fn packing_and_threads_do_not_change_a_bit() {
    let pools: Vec<rayon::ThreadPool> =
        [2, 3, 7].map(|n| rayon::ThreadPoolBuilder::new().num_threads(n).build().unwrap()).into();
    let mut rng = Rng::new(2);
    for shape in shapes(&mut rng) {
        let mut case = Case::random(&mut rng, shape);
        case.beta = 0.0;
        for &isa in Isa::available() {
            let (pa, pb) = (
                PackedA::for_isa(isa, case.a()).unwrap(),
                PackedB::for_isa(isa, case.b()).unwrap(),
            );
            for lhs in [Lhs::Plain(case.a()), Lhs::Packed(&pa)] {
                for rhs in [Rhs::Plain(case.b()), Rhs::Packed(&pb)] {
                    let one = case.run(isa, lhs, rhs, &Serial);
                    for pool in &pools {
                        let many = case.run(isa, lhs, rhs, pool);
                        assert_same_bits(&many, &one, &case.describe());
                    }
                }
            }
            // Vectors may be summed in lanes; everything else is one chain over k.
            if case.m > 1 && case.n > 1 {
                let packed = case.run(isa, Lhs::Packed(&pa), Rhs::Packed(&pb), &Serial);
                let plain = case.run(isa, case.a().into(), case.b().into(), &Serial);
                assert_same_bits(&packed, &plain, &case.describe());
            }
        }
    }
}

#[test]
fn a_row_of_a_batch_equals_the_row_alone() {
    let mut rng = Rng::new(3);
    let (m, k, n) = (9, 300, 45);
    let (a, b) = (rng.vec(m * k), rng.vec(k * n));
    let b = PackedB::new(MatRef::row_major(&b, k, n).unwrap()).unwrap();
    let mut whole = vec![0.0; m * n];
    let ep = Epilogue { activation: Activation::Gelu, ..Epilogue::default() };
    let am = MatRef::row_major(&a, m, k).unwrap();
    gemm(am, &b, MatMut::row_major(&mut whole, m, n).unwrap(), &ep, &Serial).unwrap();
    for i in 0..m {
        let mut row = vec![0.0; n];
        let ai = MatRef::row_major(&a[i * k..], 1, k).unwrap();
        gemm(ai, &b, MatMut::row_major(&mut row, 1, n).unwrap(), &ep, &Serial).unwrap();
        assert_same_bits(&row, &whole[i * n..][..n], "row");
    }
}

#[test]
fn parts_tile_the_output() {
    let mut rng = Rng::new(4);
    for _ in 0..300 {
        let (m, n) = (rng.int(0, 60), rng.int(0, 90));
        let p = Partition::new(m, n, rng.int(0, 5));
        let mut seen = vec![0; m * n];
        for i in 0..p.parts() {
            let (rows, cols) = p.part(i);
            for r in rows {
                cols.clone().for_each(|c| seen[r * n + c] += 1);
            }
        }
        assert!(seen.iter().all(|&s| s == 1), "{m}x{n} {p:?}");
    }
}

#[test]
fn wrong_sizes_are_refused() {
    let short = MatRef::row_major(&[0.0; 5], 2, 3).unwrap_err();
    assert_eq!(short, KernelError::Length { operand: "matrix", need: 6, have: 5 });
    let huge = MatRef::new(&[0.0; 5], usize::MAX, 3, usize::MAX, 1).unwrap_err();
    assert_eq!(huge, KernelError::Overflow { operand: "matrix" });
    let mut c = [0.0; 6];
    assert!(matches!(MatMut::new(&mut c, 2, 3, 2), Err(KernelError::Invalid { .. })));

    let a = MatRef::row_major(&[1.0; 6], 2, 3).unwrap();
    let b = MatRef::row_major(&[1.0; 8], 4, 2).unwrap();
    let out = |ep: &Epilogue<'_>, b: MatRef<'_>| {
        let mut c = [7.0; 4];
        let r = gemm(a, b, MatMut::row_major(&mut c, 2, 2).unwrap(), ep, &Serial);
        assert!(r.is_ok() || c == [7.0; 4]);
        r
    };
    let e = out(&Epilogue::default(), b).unwrap_err();
    assert_eq!(e, KernelError::Mismatch { operand: "rhs", dim: "rows", need: 3, have: 4 });
    let b = MatRef::row_major(&[1.0; 6], 3, 2).unwrap();
    let bias = Epilogue { bias: Bias::PerRow(&[0.0]), ..Epilogue::default() };
    assert_eq!(
        out(&bias, b).unwrap_err(),
        KernelError::Length { operand: "bias", need: 2, have: 1 }
    );
    let residual = Residual { data: &[0.0; 3], row_stride: 2, after_activation: false };
    let residual = Epilogue { residual: Some(residual), ..Epilogue::default() };
    assert_eq!(
        out(&residual, b).unwrap_err(),
        KernelError::Length { operand: "residual", need: 4, have: 3 }
    );
}

#[test]
fn nan_and_infinity_pass_through_relu_and_none() {
    for &isa in Isa::available() {
        let a = MatRef::row_major(&[f32::NAN, f32::INFINITY, f32::NEG_INFINITY], 3, 1).unwrap();
        let ones = [1.0f32; 20];
        let b = MatRef::row_major(&ones, 1, 20).unwrap();
        for activation in [Activation::None, Activation::Relu] {
            let mut c = [0.0; 60];
            let ep = Epilogue { activation, ..Epilogue::default() };
            let out = MatMut::row_major(&mut c, 3, 20).unwrap();
            gemm_on(isa, a.into(), b.into(), out, &ep, &Serial).unwrap();
            assert!(c[..20].iter().all(|v| v.is_nan()));
            assert!(c[20..40].iter().all(|v| *v == f32::INFINITY));
            let low = if activation == Activation::Relu { 0.0 } else { f32::NEG_INFINITY };
            assert!(c[40..].iter().all(|v| *v == low));
        }
    }
}
