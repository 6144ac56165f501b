use super::pool::{global_on, pool_on};
use super::reorder::reorder_on;
use super::*;
use crate::kernels::testing::{Rng, assert_close, assert_same_bits};
use crate::kernels::{AveragePool, PoolKind, Serial, average_pool2d, max_pool2d};

const KINDS: [PoolKind; 3] = [
    PoolKind::Max,
    PoolKind::Average(AveragePool::ExcludePad),
    PoolKind::Average(AveragePool::IncludePad),
];

/// The plain pooling is checked against double precision in its own tests.
#[test]
fn pooling_agrees_with_the_plain_one_and_does_not_depend_on_threads() {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
    let mut rng = Rng::new(121);
    let mut cases = 0;
    while cases < 150 {
        let mut pair = |lo, hi| [rng.int(lo, hi), rng.int(lo, hi)];
        let (kernel, strides, dilations) = (pair(1, 5), pair(1, 3), pair(1, 2));
        let (p, q, size) = (pair(0, 6), pair(0, 6), pair(1, 20));
        let window = Window { kernel, strides, dilations, pads: [p[0], p[1], q[0], q[1]] };
        let Ok(mut out_size) = window.output(size) else { continue };
        cases += 1;
        // Windows that overhang, as with ceil_mode.
        out_size[0] += rng.int(0, 1);
        out_size[1] += rng.int(0, 1);
        let planes = 8 * rng.int(1, 3);
        let (plane, out_plane) = (size[0] * size[1], out_size[0] * out_size[1]);
        let mut x = rng.vec(planes * plane);
        if cases % 5 == 0 {
            let at = rng.int(0, x.len() - 1);
            x[at] = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY][cases % 3];
        }
        let mut blocked = vec![f32::NAN; x.len()];
        to_blocked(&x, 1, planes, plane, &mut blocked, &Serial).unwrap();
        for kind in KINDS {
            let mut want = vec![f32::NAN; planes * out_plane];
            match kind {
                PoolKind::Max => {
                    max_pool2d(&x, planes, size, &window, out_size, &mut want, &Serial).unwrap();
                }
                PoolKind::Average(count) => {
                    let (w, o) = (&window, out_size);
                    average_pool2d(&x, planes, size, w, count, o, &mut want, &Serial).unwrap();
                }
            }
            for &isa in Isa::available() {
                let run = |par: &dyn Parallel| {
                    let mut out = vec![f32::NAN; want.len()];
                    let (w, o) = (&window, out_size);
                    pool_on(isa, kind, &blocked, planes, size, w, o, &mut out, par).unwrap();
                    let mut back = vec![f32::NAN; want.len()];
                    reorder_on(isa, false, &out, 1, planes, out_plane, &mut back, &Serial).unwrap();
                    back
                };
                let what = format!("{kind:?} {size:?} {window:?} on {}", isa.name());
                let got = run(&Serial);
                for (i, (g, w)) in got.iter().zip(&want).enumerate() {
                    let close = (g - w).abs() <= 1e-6 * (1.0 + w.abs());
                    assert!(close || g == w || (g.is_nan() && w.is_nan()), "{what}: [{i}] {g} {w}");
                }
                assert_same_bits(&run(&pool), &got, &what);
            }
        }
    }
}

#[test]
fn means_of_whole_images() {
    let mut rng = Rng::new(122);
    for plane in [1, 3, 4, 49, 1000] {
        let x = rng.vec(24 * plane);
        let want: Vec<f64> = (0..24)
            .map(|c| {
                let at = |p| f64::from(x[(c / BLOCK * plane + p) * BLOCK + c % BLOCK]);
                (0..plane).map(at).sum::<f64>() / plane as f64
            })
            .collect();
        for &isa in Isa::available() {
            let mut out = [f32::NAN; 24];
            global_on(isa, &x, 24, plane, &mut out).unwrap();
            assert_close(&out, &want, 1e-6, isa.name());
        }
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let w = Window::new([2, 2]);
    let mut out = [5.0; 8];
    assert!(blocked_max_pool2d(&[0.0; 32], 9, [2, 2], &w, [1, 1], &mut out, &Serial).is_err());
    assert!(blocked_max_pool2d(&[0.0; 31], 8, [2, 2], &w, [1, 1], &mut out, &Serial).is_err());
    let short = &mut out[..7];
    assert!(blocked_max_pool2d(&[0.0; 32], 8, [2, 2], &w, [1, 1], short, &Serial).is_err());
    assert!(blocked_global_average_pool(&[0.0; 31], 8, 4, &mut out).is_err());
    assert!(blocked_global_average_pool(&[0.0; 32], 4, 4, &mut out).is_err());
    assert_eq!(out, [5.0; 8]);
}
