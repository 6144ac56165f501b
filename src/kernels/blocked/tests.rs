use super::*;
use crate::kernels::testing::{Rng, assert_close, assert_same_bits};
use crate::kernels::{Activation, PackedConv, Serial, conv2d};

const ACTIVATIONS: [Activation; 9] = [
    Activation::None,
    Activation::Relu,
    Activation::Clip { lo: -0.25, hi: 0.5 },
    Activation::HardSwish,
    Activation::HardSigmoid { alpha: 0.3, beta: 0.4 },
    Activation::Sigmoid,
    Activation::Silu,
    Activation::Gelu,
    Activation::Tanh,
];

#[derive(Clone, Copy, Debug)]
enum Form {
    Dense,
    Plain,
    Depthwise,
    Grouped,
}

struct Case {
    batch: usize,
    ic: usize,
    oc: usize,
    groups: usize,
    input: ConvInput,
    size: [usize; 2],
    window: Window,
    out: [usize; 2],
    /// Plain, as are the residual and the weights.
    x: Vec<f32>,
    w: Vec<f32>,
    bias: Option<Vec<f32>>,
    residual: Option<Vec<f32>>,
    after: bool,
    activation: Activation,
}

fn blocked(x: &[f32], batch: usize, channels: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len()];
    let plane = x.len() / (batch * channels);
    reorder::reorder_on(Isa::scalar(), true, x, batch, channels, plane, &mut out, &Serial).unwrap();
    out
}

fn plain(x: &[f32], batch: usize, channels: usize) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len()];
    let plane = x.len() / (batch * channels);
    reorder::reorder_on(Isa::scalar(), false, x, batch, channels, plane, &mut out, &Serial)
        .unwrap();
    out
}

impl Case {
    fn new(
        rng: &mut Rng,
        form: Form,
        [ic, oc, groups]: [usize; 3],
        batch: usize,
        size: [usize; 2],
        window: Window,
    ) -> Option<Self> {
        let out = window.output(size).ok()?;
        let elements = batch * oc * out[0] * out[1];
        let taps = ic / groups * window.kernel[0] * window.kernel[1];
        let scale = 1.0 / (taps as f32).sqrt();
        Some(Self {
            batch,
            ic,
            oc,
            groups,
            input: if matches!(form, Form::Plain) { ConvInput::Plain } else { ConvInput::Blocked },
            size,
            window,
            out,
            x: rng.vec(batch * ic * size[0] * size[1]),
            w: rng.vec(oc * taps).iter().map(|v| v * scale).collect(),
            bias: (rng.int(0, 2) > 0).then(|| rng.vec(oc)),
            residual: (rng.int(0, 1) == 0).then(|| rng.vec(elements)),
            after: rng.int(0, 1) == 0,
            activation: ACTIVATIONS[rng.int(0, 8)],
        })
    }

    fn random(rng: &mut Rng, form: Form) -> Self {
        loop {
            let mut pair = |lo, hi| [rng.int(lo, hi), rng.int(lo, hi)];
            let (kernel, strides, dilations) = (pair(1, 7), pair(1, 3), pair(1, 3));
            let (p, q) = (pair(0, 4), pair(0, 4));
            let size = pair(1, 40);
            let window = Window { kernel, strides, dilations, pads: [p[0], p[1], q[0], q[1]] };
            // Mostly without dilation, and often with equal strides.
            let window = match rng.int(0, 3) {
                0 => window,
                1 => Window { dilations: [1, 1], ..window },
                _ => Window { dilations: [1, 1], strides: [strides[0]; 2], ..window },
            };
            let [a, b, g] = [rng.int(1, 4), rng.int(1, 7), rng.int(2, 3)];
            let channels = match form {
                Form::Dense => [8 * a, 8 * b, 1],
                Form::Plain => [rng.int(1, 13), 8 * b, 1],
                Form::Depthwise => [8 * a, 8 * a, 8 * a],
                Form::Grouped => [8 * a * g, 8 * b * g, g],
            };
            let batch = rng.int(1, 2);
            if let Some(case) = Self::new(rng, form, channels, batch, size, window) {
                return case;
            }
        }
    }

    fn packed(&self, isa: Isa) -> BlockedConv {
        let (w, g) = (self.window, self.groups);
        BlockedConv::for_isa(isa, &self.w, self.oc, self.ic, g, w, self.input).unwrap()
    }

    /// The output in the plain layout.
    fn run(&self, isa: Isa, par: &dyn Parallel) -> Vec<f32> {
        let packed = self.packed(isa);
        let x = match self.input {
            ConvInput::Plain => self.x.clone(),
            ConvInput::Blocked => blocked(&self.x, self.batch, self.ic),
        };
        let residual = self.residual.as_ref().map(|r| blocked(r, self.batch, self.oc));
        let epilogue = ConvEpilogue {
            bias: self.bias.as_deref(),
            residual: residual.as_deref(),
            residual_after_activation: self.after,
            activation: self.activation,
        };
        let mut out = vec![f32::NAN; self.batch * self.oc * self.out[0] * self.out[1]];
        blocked_conv2d(&x, self.batch, self.size, &packed, &epilogue, &mut out, par).unwrap();
        plain(&out, self.batch, self.oc)
    }

    fn run_plain(&self) -> Vec<f32> {
        let (w, g) = (self.window, self.groups);
        let packed = PackedConv::new(&self.w, self.oc, self.ic, g, w).unwrap();
        let epilogue = ConvEpilogue {
            bias: self.bias.as_deref(),
            residual: self.residual.as_deref(),
            residual_after_activation: self.after,
            activation: self.activation,
        };
        let mut out = vec![f32::NAN; self.batch * self.oc * self.out[0] * self.out[1]];
        conv2d(&self.x, self.batch, self.size, &packed, &epilogue, &mut out, &Serial).unwrap();
        out
    }

    /// One output in double precision.
    fn element(&self, b: usize, oc: usize, oy: usize, ox: usize) -> f64 {
        let Window { kernel: [kh, kw], strides, dilations, pads } = self.window;
        let (icg, ocg) = (self.ic / self.groups, self.oc / self.groups);
        let [h, w] = self.size;
        let mut sum = self.bias.as_ref().map_or(0.0, |b| f64::from(b[oc]));
        for i in 0..icg {
            let plane = (b * self.ic + oc / ocg * icg + i) * h;
            for ky in 0..kh {
                let y = (oy * strides[0] + ky * dilations[0]).wrapping_sub(pads[0]);
                for kx in 0..kw {
                    let x = (ox * strides[1] + kx * dilations[1]).wrapping_sub(pads[1]);
                    if y < h && x < w {
                        let weight = self.w[((oc * icg + i) * kh + ky) * kw + kx];
                        sum += f64::from(weight) * f64::from(self.x[(plane + y) * w + x]);
                    }
                }
            }
        }
        let at = ((b * self.oc + oc) * self.out[0] + oy) * self.out[1] + ox;
        let r = self.residual.as_ref().map_or(0.0, |r| f64::from(r[at]));
        let act = |v: f64| f64::from(self.activation.apply(v as f32));
        if self.after { act(sum) + r } else { act(sum + r) }
    }

    fn naive(&self) -> Vec<f64> {
        let mut all = Vec::new();
        for b in 0..self.batch {
            for oc in 0..self.oc {
                for oy in 0..self.out[0] {
                    all.extend((0..self.out[1]).map(|ox| self.element(b, oc, oy, ox)));
                }
            }
        }
        all
    }

    fn describe(&self, isa: Isa) -> String {
        format!(
            "{}x{}->{} g{} {:?} {:?} {:?} {:?} after={} residual={} on {}",
            self.batch,
            self.ic,
            self.oc,
            self.groups,
            self.input,
            self.size,
            self.window,
            self.activation,
            self.after,
            self.residual.is_some(),
            isa.name()
        )
    }

    /// Every instruction set against double precision, and three threads against one.
    fn check(&self, tolerance: f64, pool: &rayon::ThreadPool) {
        let want = self.naive();
        for &isa in Isa::available() {
            let what = self.describe(isa);
            let one = self.run(isa, &Serial);
            assert_close(&one, &want, tolerance, &what);
            assert_same_bits(&self.run(isa, pool), &one, &what);
        }
        // The plain convolution materialises padded rows, so it is left out beyond usual sizes.
        if self.window.dilations[1] < 100 {
            assert_close(&self.run_plain(), &want, tolerance, "plain convolution");
        }
    }
}

fn three_threads() -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap()
}

/// So many cases, a third of them where kernels are not optimised and each takes half a second.
fn random(form: Form, seed: u64, cases: usize) {
    let (mut rng, pool) = (Rng::new(seed), three_threads());
    for _ in 0..if cfg!(debug_assertions) { cases / 3 } else { cases } {
        Case::random(&mut rng, form).check(5e-6, &pool);
    }
}

#[test]
fn dense_agrees_with_double_precision_and_does_not_depend_on_threads() {
    random(Form::Dense, 101, 120);
}

#[test]
fn plain_input_agrees_with_double_precision_and_does_not_depend_on_threads() {
    random(Form::Plain, 102, 120);
}

#[test]
fn depthwise_agrees_with_double_precision_and_does_not_depend_on_threads() {
    random(Form::Depthwise, 103, 160);
}

#[test]
fn grouped_agrees_with_double_precision_and_does_not_depend_on_threads() {
    random(Form::Grouped, 104, 60);
}

#[test]
fn usual_windows_at_every_width() {
    let (mut rng, pool) = (Rng::new(105), three_threads());
    for width in (1..30).chain([47, 64]) {
        for (kernel, stride) in [(1, 1), (1, 2), (2, 1), (3, 1), (3, 2), (5, 1), (5, 2), (7, 1)] {
            let pads = [kernel / 2; 4];
            let window = Window { strides: [stride; 2], pads, ..Window::new([kernel; 2]) };
            for (form, channels) in [
                (Form::Depthwise, [16, 16, 16]),
                (Form::Dense, [8, 40, 1]),
                (Form::Plain, [3, 24, 1]),
            ] {
                let size = [rng.int(1, 6), width];
                if let Some(case) = Case::new(&mut rng, form, channels, 1, size, window) {
                    case.check(5e-6, &pool);
                }
            }
        }
    }
}

/// Padding wider than the image, so that some windows see nothing at all.
#[test]
fn padding_beyond_the_image() {
    let (mut rng, pool) = (Rng::new(106), three_threads());
    for (size, pads) in
        [([1, 1], [4, 4, 4, 4]), ([2, 3], [0, 6, 5, 0]), ([3, 1], [6, 0, 0, 7]), ([1, 9], [3; 4])]
    {
        for (kernel, strides, dilations) in
            [([3, 3], [1, 1], [1, 1]), ([3, 3], [2, 2], [1, 1]), ([2, 3], [1, 1], [2, 2])]
        {
            let window = Window { kernel, strides, dilations, pads };
            for (form, channels) in [
                (Form::Depthwise, [8, 8, 8]),
                (Form::Dense, [16, 24, 1]),
                (Form::Plain, [2, 16, 1]),
                (Form::Grouped, [16, 32, 2]),
            ] {
                if let Some(case) = Case::new(&mut rng, form, channels, 2, size, window) {
                    case.check(5e-6, &pool);
                }
            }
        }
    }
}

/// Sums long enough to be cut, and images of several chunks; compared at drawn elements.
#[test]
fn large_layers_cross_chunks() {
    let mut rng = Rng::new(107);
    let pool = three_threads();
    for (form, channels, size, kernel, stride) in [
        (Form::Dense, [304, 24, 1], [21, 67], [1, 1], 1),
        (Form::Dense, [96, 40, 1], [23, 90], [3, 3], 1),
        (Form::Dense, [512, 16, 1], [7, 7], [3, 3], 1),
        (Form::Dense, [48, 32, 1], [61, 130], [3, 3], 2),
        (Form::Dense, [640, 48, 1], [1, 1], [1, 1], 1),
        (Form::Plain, [3, 16, 1], [90, 301], [3, 3], 2),
        (Form::Plain, [12, 8, 1], [40, 130], [2, 2], 1),
        (Form::Plain, [1, 64, 1], [9, 400], [3, 39], 1),
        (Form::Depthwise, [24, 24, 24], [70, 300], [5, 5], 1),
        (Form::Grouped, [128, 128, 4], [30, 31], [3, 3], 1),
    ] {
        let pads = [kernel[0] / 2, kernel[1] / 2, kernel[0] / 2, kernel[1] / 2];
        let window = Window { strides: [stride; 2], pads, ..Window::new(kernel) };
        let case = Case::new(&mut rng, form, channels, 1, size, window).unwrap();
        let (rows, width) = (case.out[0], case.out[1]);
        for &isa in Isa::available() {
            let got = case.run(isa, &Serial);
            assert_same_bits(&case.run(isa, &pool), &got, &case.describe(isa));
            assert!(got.iter().all(|v| v.is_finite()), "{}", case.describe(isa));
            for _ in 0..1000 {
                let (oc, y) = (rng.int(0, case.oc - 1), rng.int(0, rows - 1));
                let x = [0, width - 1, rng.int(0, width - 1)][rng.int(0, 2)];
                let have = [got[(oc * rows + y) * width + x]];
                assert_close(&have, &[case.element(0, oc, y, x)], 1e-5, &case.describe(isa));
            }
        }
    }
}

/// A value that is no number, or infinite, reaches the outputs that see it and no others.
#[test]
fn nan_and_infinity_spread_to_their_windows_only() {
    let mut rng = Rng::new(108);
    for (form, channels) in [
        (Form::Dense, [16, 24, 1]),
        (Form::Plain, [3, 16, 1]),
        (Form::Depthwise, [16, 16, 16]),
        (Form::Grouped, [16, 16, 2]),
    ] {
        for bad in [f32::NAN, f32::INFINITY] {
            for activation in [Activation::None, Activation::Relu] {
                let window = Window { pads: [1; 4], ..Window::new([3, 3]) };
                let mut case = Case::new(&mut rng, form, channels, 1, [9, 14], window).unwrap();
                // Positive weights: an infinity must not be cancelled by the Relu.
                case.w.iter_mut().for_each(|w| *w = w.abs() + 0.1);
                (case.activation, case.residual) = (activation, None);
                case.x[2 * 14 + 5] = bad;
                for &isa in Isa::available() {
                    let got = case.run(isa, &Serial);
                    let mut seen = 0;
                    for (i, v) in got.iter().enumerate() {
                        let (oc, y, x) = (i / 126, i / 14 % 9, i % 14);
                        let reached = match form {
                            Form::Depthwise => oc == 0,
                            Form::Grouped => oc < 8,
                            _ => true,
                        };
                        let window = (1..=3).contains(&y) && (4..=6).contains(&x);
                        if reached && window {
                            let same = if bad.is_nan() { v.is_nan() } else { *v == bad };
                            assert!(same, "[{i}] is {v}: {}", case.describe(isa));
                            seen += 1;
                        } else {
                            assert!(v.is_finite(), "[{i}] is {v}: {}", case.describe(isa));
                        }
                    }
                    assert!(seen >= 9);
                }
            }
        }
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let w = Window::new([3, 3]);
    let new = |oc, ic, groups, input| BlockedConv::new(&[0.0; 4608], oc, ic, groups, w, input);
    for (oc, ic, groups, input) in [
        (12, 8, 1, ConvInput::Blocked),
        (8, 12, 1, ConvInput::Blocked),
        (12, 3, 1, ConvInput::Plain),
        (16, 16, 16, ConvInput::Plain),
        (16, 16, 4, ConvInput::Blocked),
        (16, 8, 8, ConvInput::Blocked),
        (16, 8, 3, ConvInput::Blocked),
        (8, 8, 0, ConvInput::Blocked),
        (0, 8, 1, ConvInput::Blocked),
    ] {
        assert!(!BlockedConv::suits(oc, ic, groups, &w, input), "{oc} {ic} {groups} {input:?}");
        let e = new(oc, ic, groups, input).unwrap_err();
        assert!(matches!(e, KernelError::Invalid { .. }), "{oc} {ic} {groups} {input:?}");
    }
    let e = BlockedConv::new(&[0.0; 71], 8, 1, 1, w, ConvInput::Plain).unwrap_err();
    assert_eq!(e, KernelError::Length { operand: "weights", need: 72, have: 71 });
    let zero = Window { dilations: [1, 0], ..w };
    assert!(!BlockedConv::suits(8, 8, 1, &zero, ConvInput::Blocked));
    let packed = new(8, 8, 1, ConvInput::Blocked).unwrap();
    assert_eq!(packed.bytes(), 8 * 8 * 9 * 4);
    let mut out = [5.0; 32];
    let ep = ConvEpilogue::default();
    let e = blocked_conv2d(&[0.0; 127], 1, [4, 4], &packed, &ep, &mut out, &Serial).unwrap_err();
    assert_eq!(e, KernelError::Length { operand: "x", need: 128, have: 127 });
    let e =
        blocked_conv2d(&[0.0; 128], 1, [4, 4], &packed, &ep, &mut out[..31], &Serial).unwrap_err();
    assert_eq!(e, KernelError::Length { operand: "out", need: 32, have: 31 });
    let short = ConvEpilogue { bias: Some(&[0.0; 7]), ..ep };
    let e = blocked_conv2d(&[0.0; 128], 1, [4, 4], &packed, &short, &mut out, &Serial).unwrap_err();
    assert_eq!(e, KernelError::Length { operand: "bias", need: 8, have: 7 });
    let short = ConvEpilogue { residual: Some(&[0.0; 31]), ..ep };
    let e = blocked_conv2d(&[0.0; 128], 1, [4, 4], &packed, &short, &mut out, &Serial).unwrap_err();
    assert_eq!(e, KernelError::Length { operand: "residual", need: 32, have: 31 });
    assert!(blocked_conv2d(&[0.0; 128], 1, [2, 8], &packed, &ep, &mut out, &Serial).is_err());
    let huge = [usize::MAX / 2, 3];
    assert!(blocked_conv2d(&[0.0; 128], 1, huge, &packed, &ep, &mut out, &Serial).is_err());
    assert_eq!(out, [5.0; 32]);
    assert!(to_blocked(&[0.0; 128], 1, 12, 4, &mut out, &Serial).is_err());
    assert!(to_blocked(&[0.0; 32], 1, 8, 5, &mut out, &Serial).is_err());
    assert!(from_blocked(&[0.0; 128], 1, 8, 5, &mut out, &Serial).is_err());
    assert_eq!(out, [5.0; 32]);
}

/// Taps so far apart that no copy of the columns between them could be held.
#[test]
fn vast_dilations_are_computed() {
    let mut rng = Rng::new(110);
    let far = 1 << 27;
    let window = Window { dilations: [1, far], pads: [0, far, 0, far], ..Window::new([1, 3]) };
    for (form, channels) in [
        (Form::Dense, [16, 8, 1]),
        (Form::Plain, [3, 8, 1]),
        (Form::Depthwise, [8, 8, 8]),
        (Form::Grouped, [16, 16, 2]),
    ] {
        let case = Case::new(&mut rng, form, channels, 1, [2, 9], window).unwrap();
        case.check(5e-6, &three_threads());
    }
}

#[test]
fn an_empty_batch_is_nothing() {
    let w = Window::new([1, 1]);
    let packed = BlockedConv::new(&[0.0; 64], 8, 8, 1, w, ConvInput::Blocked).unwrap();
    let ep = ConvEpilogue::default();
    blocked_conv2d(&[], 0, [4, 4], &packed, &ep, &mut [], &Serial).unwrap();
    to_blocked(&[], 0, 8, 9, &mut [], &Serial).unwrap();
}

#[test]
fn reordering_is_its_own_inverse() {
    let (mut rng, pool) = (Rng::new(109), three_threads());
    for plane in [1, 7, 8, 9, 63, 64, 200] {
        for (batch, channels) in [(1, 8), (2, 24), (3, 40)] {
            let x = rng.vec(batch * channels * plane);
            let want: Vec<f32> = (0..x.len())
                .map(|i| {
                    let (c, p) = (i % BLOCK, i / BLOCK % plane);
                    x[(i / BLOCK / plane * BLOCK + c) * plane + p]
                })
                .collect();
            for &isa in Isa::available() {
                for par in [&Serial as &dyn Parallel, &pool] {
                    let (mut there, mut back) = (vec![f32::NAN; x.len()], vec![f32::NAN; x.len()]);
                    let on = reorder::reorder_on;
                    on(isa, true, &x, batch, channels, plane, &mut there, par).unwrap();
                    assert_same_bits(&there, &want, "there");
                    on(isa, false, &there, batch, channels, plane, &mut back, par).unwrap();
                    assert_same_bits(&back, &x, "back");
                }
            }
        }
    }
}
