use super::*;
use crate::kernels::Serial;
use crate::kernels::testing::{Rng, assert_close, assert_same_bits};

const KINDS: [PoolKind; 3] = [
    PoolKind::Max,
    PoolKind::Average(AveragePool::ExcludePad),
    PoolKind::Average(AveragePool::IncludePad),
];

struct Case {
    planes: usize,
    size: [usize; 2],
    window: Window,
    out: [usize; 2],
    x: Vec<f32>,
}

impl Case {
    fn random(rng: &mut Rng) -> Self {
        loop {
            let mut pair = |lo, hi| [rng.int(lo, hi), rng.int(lo, hi)];
            let (kernel, strides, dilations) = (pair(1, 5), pair(1, 3), pair(1, 2));
            let (p, q, size) = (pair(0, 2), pair(0, 2), pair(1, 40));
            let window = Window { kernel, strides, dilations, pads: [p[0], p[1], q[0], q[1]] };
            let Ok(mut out) = window.output(size) else { continue };
            // Windows that overhang, as with ceil_mode.
            out[0] += rng.int(0, 1);
            out[1] += rng.int(0, 1);
            let planes = rng.int(1, 4);
            return Self { planes, size, window, out, x: rng.vec(planes * size[0] * size[1]) };
        }
    }

    fn naive(&self, kind: PoolKind) -> Vec<f64> {
        let Window { kernel, strides, dilations, pads } = self.window;
        let [h, w] = self.size.map(|v| v as i64);
        let mut all = Vec::new();
        for p in 0..self.planes {
            for oy in 0..self.out[0] {
                for ox in 0..self.out[1] {
                    let (mut max, mut sum, mut seen, mut padded) = (f64::NEG_INFINITY, 0.0, 0, 0);
                    for ky in 0..kernel[0] {
                        for kx in 0..kernel[1] {
                            let y = (oy * strides[0] + ky * dilations[0]) as i64 - pads[0] as i64;
                            let x = (ox * strides[1] + kx * dilations[1]) as i64 - pads[1] as i64;
                            if y < h + pads[2] as i64 && x < w + pads[3] as i64 {
                                padded += 1;
                            }
                            if (0..h).contains(&y) && (0..w).contains(&x) {
                                let at = (p as i64 * h + y) * w + x;
                                let v = f64::from(self.x[at as usize]);
                                max = f64::max(max, v);
                                sum += v;
                                seen += 1;
                            }
                        }
                    }
                    all.push(match kind {
                        PoolKind::Max => max,
                        PoolKind::Average(AveragePool::ExcludePad) => sum / f64::from(seen.max(1)),
                        _ => sum / f64::from(padded.max(1)),
                    });
                }
            }
        }
        all
    }
}

#[test]
fn pooling_agrees_with_double_precision_and_does_not_depend_on_threads() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    let mut rng = Rng::new(21);
    for _ in 0..150 {
        let case = Case::random(&mut rng);
        for kind in KINDS {
            let want = case.naive(kind);
            let run = |isa: Isa, par: &dyn Parallel| {
                let mut out = vec![f32::NAN; want.len()];
                let (w, o) = (&case.window, case.out);
                pool2d_on(isa, kind, &case.x, case.planes, case.size, w, o, &mut out, par).unwrap();
                out
            };
            for &isa in Isa::available() {
                let what = format!("{kind:?} {:?} {:?} on {}", case.size, case.window, isa.name());
                let one = run(isa, &Serial);
                for (h, w) in one.iter().zip(&want) {
                    assert!(f64::from(*h) == *w || (f64::from(*h) - w).abs() < 1e-6, "{what}");
                }
                assert_same_bits(&run(isa, &pool), &one, &what);
            }
        }
    }
}

#[test]
fn the_plain_loops_agree() {
    let mut rng = Rng::new(22);
    for _ in 0..40 {
        let case = Case::random(&mut rng);
        let Window { kernel: k, strides: s, dilations: d, pads: p } = case.window;
        for kind in KINDS {
            let want = case.naive(kind);
            let finite: Vec<f64> = want.iter().map(|v| v.max(-1e30)).collect();
            let mut out = vec![f32::NAN; want.len()];
            pool_nd(
                kind,
                &case.x,
                case.planes,
                &[1, case.size[0], case.size[1]],
                &[1, k[0], k[1]],
                &[1, s[0], s[1]],
                &[1, d[0], d[1]],
                &[0, p[0], p[1], 0, p[2], p[3]],
                &[1, case.out[0], case.out[1]],
                &mut out,
                &Serial,
            )
            .unwrap();
            out.iter_mut().for_each(|v| *v = v.max(-1e30));
            assert_close(&out, &finite, 1e-6, "plain loops");
        }
    }
}

#[test]
fn nan_is_kept_wherever_it_lies() {
    for &isa in Isa::available() {
        for place in 0..9 {
            let mut x = [1.0; 9];
            x[place] = f32::NAN;
            let mut out = [0.0; 1];
            let w = Window::new([3, 3]);
            pool2d_on(isa, PoolKind::Max, &x, 1, [3, 3], &w, [1, 1], &mut out, &Serial).unwrap();
            assert!(out[0].is_nan(), "place {place} on {}", isa.name());
        }
    }
}

#[test]
fn global_pools_and_wrong_arguments() {
    let x: Vec<f32> = (0..24).map(|v| v as f32).collect();
    let mut out = [0.0; 2];
    global_average_pool(&x, 2, 12, &mut out).unwrap();
    assert_eq!(out, [5.5, 17.5]);
    global_max_pool(&x, 2, 12, &mut out).unwrap();
    assert_eq!(out, [11.0, 23.0]);
    assert!(global_max_pool(&x, 3, 12, &mut out).is_err());
    let w = Window::new([2, 2]);
    let e = max_pool2d(&x, 2, [3, 5], &w, [2, 4], &mut [0.0; 16], &Serial).unwrap_err();
    assert_eq!(e, KernelError::Length { operand: "x", need: 30, have: 24 });
    let w = Window { strides: [0, 1], ..w };
    assert!(max_pool2d(&x, 1, [3, 5], &w, [2, 4], &mut [0.0; 8], &Serial).is_err());
}
