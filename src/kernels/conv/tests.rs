use super::*;
use crate::kernels::testing::{Rng, assert_close, assert_same_bits};
use crate::kernels::{MatMut, Serial, gemm};

const ACTIVATIONS: [Activation; 4] = [
    Activation::None,
    Activation::Relu,
    Activation::Clip { lo: -0.25, hi: 0.5 },
    Activation::HardSwish,
];

struct Case {
    batch: usize,
    ic: usize,
    oc: usize,
    groups: usize,
    size: [usize; 2],
    window: Window,
    out: [usize; 2],
    x: Vec<f32>,
    w: Vec<f32>,
    bias: Option<Vec<f32>>,
    residual: Option<Vec<f32>>,
    after: bool,
    activation: Activation,
}

impl Case {
    fn random(rng: &mut Rng, depthwise: bool, transposed: bool) -> Self {
        loop {
            let mut pair = |lo, hi| [rng.int(lo, hi), rng.int(lo, hi)];
            let (kernel, strides, dilations) = (pair(1, 5), pair(1, 3), pair(1, 2));
            let (p, q) = (pair(0, 3), pair(0, 3));
            let size = pair(1, 30);
            let window = Window { kernel, strides, dilations, pads: [p[0], p[1], q[0], q[1]] };
            let groups = if depthwise { rng.int(2, 5) } else { [1, 1, 2, 3][rng.int(0, 3)] };
            let icg = if depthwise { 1 } else { rng.int(1, 9) };
            let ocg = if depthwise { rng.int(1, 2) } else { rng.int(1, 20) };
            let out = if transposed {
                let reached = |a: usize| {
                    ((size[a] - 1) * strides[a] + (kernel[a] - 1) * dilations[a] + 1)
                        .checked_sub(p[a] + q[a])
                };
                let (Some(h), Some(w)) = (reached(0), reached(1)) else { continue };
                Ok([h + rng.int(0, strides[0] - 1), w + rng.int(0, strides[1] - 1)])
            } else {
                window.output(size)
            };
            let Ok(out) = out else { continue };
            let (batch, ic, oc) = (rng.int(1, 2), icg * groups, ocg * groups);
            let elements = batch * oc * out[0] * out[1];
            return Self {
                batch,
                ic,
                oc,
                groups,
                size,
                window,
                out,
                x: rng.vec(batch * ic * size[0] * size[1]),
                w: rng.vec(oc * icg * kernel[0] * kernel[1]),
                bias: (rng.int(0, 1) == 0).then(|| rng.vec(oc)),
                residual: (rng.int(0, 2) == 0).then(|| rng.vec(elements)),
                after: rng.int(0, 1) == 0,
                activation: ACTIVATIONS[rng.int(0, 3)],
            };
        }
    }

    fn epilogue(&self) -> ConvEpilogue<'_> {
        ConvEpilogue {
            bias: self.bias.as_deref(),
            residual: self.residual.as_deref(),
            residual_after_activation: self.after,
            activation: self.activation,
        }
    }

    /// Adds every product to its output in double precision; `transposed` exchanges the roles of
    /// input and output positions.
    fn naive(&self, transposed: bool) -> Vec<f64> {
        let Window { kernel: [kh, kw], strides, dilations, pads } = self.window;
        let (icg, ocg) = (self.ic / self.groups, self.oc / self.groups);
        let mut sums = vec![0.0f64; self.batch * self.oc * self.out[0] * self.out[1]];
        let (near, far) = if transposed { (self.size, self.out) } else { (self.out, self.size) };
        for b in 0..self.batch {
            for oc in 0..self.oc {
                for ici in 0..icg {
                    let g = oc / ocg;
                    let ic = g * icg + ici;
                    for y in 0..near[0] {
                        for x in 0..near[1] {
                            for t in 0..kh * kw {
                                let (ky, kx) = (t / kw, t % kw);
                                let fy =
                                    (y * strides[0] + ky * dilations[0]) as i64 - pads[0] as i64;
                                let fx =
                                    (x * strides[1] + kx * dilations[1]) as i64 - pads[1] as i64;
                                let inside = |v: i64, n: usize| v >= 0 && v < n as i64;
                                if !inside(fy, far[0]) || !inside(fx, far[1]) {
                                    continue;
                                }
                                let (fy, fx) = (fy as usize, fx as usize);
                                let ((iy, ix), (oy, ox), w) = if transposed {
                                    let w = ((ic * ocg + oc % ocg) * kh + ky) * kw + kx;
                                    ((y, x), (fy, fx), w)
                                } else {
                                    ((fy, fx), (y, x), ((oc * icg + ici) * kh + ky) * kw + kx)
                                };
                                let i =
                                    ((b * self.ic + ic) * self.size[0] + iy) * self.size[1] + ix;
                                let o = ((b * self.oc + oc) * self.out[0] + oy) * self.out[1] + ox;
                                sums[o] += f64::from(self.x[i]) * f64::from(self.w[w]);
                            }
                        }
                    }
                }
            }
        }
        let plane = self.out[0] * self.out[1];
        for (i, s) in sums.iter_mut().enumerate() {
            *s += self.bias.as_ref().map_or(0.0, |b| f64::from(b[i / plane % self.oc]));
            let r = self.residual.as_ref().map_or(0.0, |r| f64::from(r[i]));
            let act = |v: f64| f64::from(self.activation.apply(v as f32));
            *s = if self.after { act(*s) + r } else { act(*s + r) };
        }
        sums
    }

    fn describe(&self, isa: Isa) -> String {
        format!(
            "{}x{}->{} g{} {:?} {:?} on {}",
            self.batch,
            self.ic,
            self.oc,
            self.groups,
            self.size,
            self.window,
            isa.name()
        )
    }

    fn run(&self, isa: Isa, par: &dyn Parallel) -> Vec<f32> {
        let p = PackedConv::for_isa(isa, &self.w, self.oc, self.ic, self.groups, self.window);
        let mut out = vec![f32::NAN; self.batch * self.oc * self.out[0] * self.out[1]];
        let packed = p.unwrap();
        conv2d(&self.x, self.batch, self.size, &packed, &self.epilogue(), &mut out, par).unwrap();
        out
    }

    fn run_transposed(&self, isa: Isa, par: &dyn Parallel) -> Vec<f32> {
        let p =
            PackedConvTranspose::for_isa(isa, &self.w, self.ic, self.oc, self.groups, self.window)
                .unwrap();
        let mut out = vec![f32::NAN; self.batch * self.oc * self.out[0] * self.out[1]];
        let ep = self.epilogue();
        conv_transpose2d(&self.x, self.batch, self.size, &p, &ep, self.out, &mut out, par).unwrap();
        out
    }
}

#[test]
fn convolutions_agree_with_double_precision_and_do_not_depend_on_threads() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    let mut rng = Rng::new(11);
    for i in 0..240 {
        let case = Case::random(&mut rng, i % 3 == 0, false);
        let want = case.naive(false);
        for &isa in Isa::available() {
            let what = case.describe(isa);
            let one = case.run(isa, &Serial);
            assert_close(&one, &want, 5e-6, &what);
            assert_same_bits(&case.run(isa, &pool), &one, &what);
        }
    }
}

#[test]
fn transposed_convolutions_agree_and_do_not_depend_on_threads() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    let mut rng = Rng::new(12);
    for i in 0..120 {
        let case = Case::random(&mut rng, i % 4 == 0, true);
        let want = case.naive(true);
        for &isa in Isa::available() {
            let what = case.describe(isa);
            let one = case.run_transposed(isa, &Serial);
            assert_close(&one, &want, 5e-6, &what);
            assert_same_bits(&case.run_transposed(isa, &pool), &one, &what);
        }
    }
}

#[test]
fn large_planes_cross_blocks_and_bands() {
    let mut rng = Rng::new(13);
    for (ic, oc, groups, size, kernel, stride) in [
        (40, 14, 1, [23, 61], [3, 3], 1),
        (40, 7, 1, [41, 67], [3, 3], 2),
        (300, 9, 1, [9, 70], [1, 1], 1),
        (2, 2, 2, [70, 500], [5, 5], 1),
        (2, 4, 2, [300, 301], [3, 3], 2),
        (1, 3, 1, [1, 900], [1, 7], 1),
    ] {
        let pads = [kernel[0] / 2, kernel[1] / 2, kernel[0] / 2, kernel[1] / 2];
        let window = Window { strides: [stride; 2], pads, ..Window::new(kernel) };
        let out = window.output(size).unwrap();
        let case = Case {
            batch: 1,
            ic,
            oc,
            groups,
            size,
            window,
            out,
            x: rng.vec(ic * size[0] * size[1]),
            w: rng.vec(oc * ic / groups * kernel[0] * kernel[1]),
            bias: Some(rng.vec(oc)),
            residual: None,
            after: false,
            activation: Activation::Relu,
        };
        let want = case.naive(false);
        for &isa in Isa::available() {
            assert_close(&case.run(isa, &Serial), &want, 1e-5, &case.describe(isa));
        }
    }
}

#[test]
fn pointwise_convolution_is_the_product() {
    let mut rng = Rng::new(14);
    let (ic, oc, plane) = (20, 30, 77);
    let (x, w) = (rng.vec(ic * plane), rng.vec(oc * ic));
    let packed = PackedConv::new(&w, oc, ic, 1, Window::new([1, 1])).unwrap();
    let (mut a, mut b) = (vec![0.0; oc * plane], vec![0.0; oc * plane]);
    conv2d(&x, 1, [7, 11], &packed, &ConvEpilogue::default(), &mut a, &Serial).unwrap();
    let (wm, xm) =
        (MatRef::row_major(&w, oc, ic).unwrap(), MatRef::row_major(&x, ic, plane).unwrap());
    let out = MatMut::row_major(&mut b, oc, plane).unwrap();
    gemm(wm, xm, out, &Epilogue::default(), &Serial).unwrap();
    assert_same_bits(&a, &b, "pointwise");
}

#[test]
fn three_axes_agree_with_two() {
    let mut rng = Rng::new(15);
    for _ in 0..40 {
        let case = Case::random(&mut rng, false, false);
        let Window { kernel, strides, dilations, pads } = case.window;
        let conv = ConvNd {
            groups: case.groups,
            kernel: &[1, kernel[0], kernel[1]],
            strides: &[1, strides[0], strides[1]],
            dilations: &[1, dilations[0], dilations[1]],
            pads: &[0, pads[0], pads[1], 0, pads[2], pads[3]],
        };
        let size = [1, case.size[0], case.size[1]];
        assert_eq!(conv.output(&size).unwrap(), [1, case.out[0], case.out[1]]);
        let mut out = vec![0.0; case.batch * case.oc * case.out[0] * case.out[1]];
        let ep = case.epilogue();
        conv_nd(
            &case.x, case.batch, case.ic, &size, &case.w, case.oc, &conv, &ep, &mut out, &Serial,
        )
        .unwrap();
        assert_close(&out, &case.naive(false), 5e-6, &case.describe(Isa::scalar()));
    }
}

#[test]
fn three_axes_sum_a_cube() {
    let conv = ConvNd {
        groups: 1,
        kernel: &[2, 2, 2],
        strides: &[1, 1, 1],
        dilations: &[1, 1, 1],
        pads: &[1, 0, 0, 0, 0, 0],
    };
    let x: Vec<f32> = (0..8).map(|v| v as f32).collect();
    let mut out = [0.0; 2];
    let ep = ConvEpilogue::default();
    conv_nd(&x, 1, 1, &[2, 2, 2], &[1.0; 8], 1, &conv, &ep, &mut out, &Serial).unwrap();
    assert_eq!(out, [6.0, 28.0]);
}

#[test]
fn wrong_arguments_are_refused() {
    let w = Window::new([3, 3]);
    let e = PackedConv::new(&[0.0; 8], 1, 1, 1, w).unwrap_err();
    assert_eq!(e, KernelError::Length { operand: "weights", need: 9, have: 8 });
    assert!(matches!(PackedConv::new(&[0.0; 36], 2, 3, 2, w), Err(KernelError::Invalid { .. })));
    let zero = Window { strides: [0, 1], ..w };
    assert!(matches!(PackedConv::new(&[0.0; 9], 1, 1, 1, zero), Err(KernelError::Invalid { .. })));
    let packed = PackedConv::new(&[0.0; 9], 1, 1, 1, w).unwrap();
    let mut out = [5.0; 4];
    let ep = ConvEpilogue::default();
    let e = conv2d(&[0.0; 15], 1, [4, 4], &packed, &ep, &mut out, &Serial).unwrap_err();
    assert_eq!(e, KernelError::Length { operand: "x", need: 16, have: 15 });
    let e = conv2d(&[0.0; 16], 1, [4, 4], &packed, &ep, &mut out[..3], &Serial).unwrap_err();
    assert_eq!(e, KernelError::Length { operand: "out", need: 4, have: 3 });
    let e = conv2d(&[0.0; 16], 1, [2, 8], &packed, &ep, &mut out, &Serial).unwrap_err();
    assert!(matches!(e, KernelError::Invalid { operand: "window", .. }));
    let ep = ConvEpilogue { bias: Some(&[]), ..ep };
    let e = conv2d(&[0.0; 16], 1, [4, 4], &packed, &ep, &mut out, &Serial).unwrap_err();
    assert_eq!(e, KernelError::Length { operand: "bias", need: 1, have: 0 });
    assert_eq!(out, [5.0; 4]);
    let huge = [usize::MAX / 2, 3];
    assert!(conv2d(&[0.0; 16], 1, huge, &packed, &ep, &mut out, &Serial).is_err());
}
