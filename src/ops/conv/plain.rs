//! Convolution in plain loops, for every dtype and window that has no kernel of its own.

use super::Extents;
use crate::error::Result;
use crate::ops::Threads;
use crate::ops::matmul::plain::Ring;
use crate::ops::window::{Axis, padded_axes};

/// Convolves `x` with `w` into `out`, of the shapes that `e` was made of, starting from the bias.
pub(super) fn convolve<T: Ring>(
    e: &Extents,
    x: &[T],
    w: &[T],
    bias: Option<&[T]>,
    out: &mut [T],
    threads: &Threads,
) -> Result<()> {
    let [d, h, v] = padded_axes::<3>(&e.axes)?;
    let (icg, ocg) = (e.in_channels / e.groups, e.out_channels / e.groups);
    let taps = d.kernel * h.kernel * v.kernel;
    let (size, plane) = (d.size * h.size * v.size, d.out * h.out * v.out);
    threads.split_rows(out, plane, |first, chunk| {
        for (p, to) in chunk.chunks_exact_mut(plane.max(1)).enumerate() {
            let (b, oc) = ((first + p) / e.out_channels, (first + p) % e.out_channels);
            to.fill(bias.map_or(T::default(), |b| b[oc]));
            for ic in 0..icg {
                let image = &x[(b * e.in_channels + oc / ocg * icg + ic) * size..][..size];
                let weights = &w[(oc * icg + ic) * taps..][..taps];
                for (tap, weight) in weights.iter().enumerate() {
                    let tap =
                        [tap / (h.kernel * v.kernel), tap / v.kernel % h.kernel, tap % v.kernel];
                    accumulate([&d, &h, &v], tap, *weight, image, to);
                }
            }
        }
    });
    Ok(())
}

/// Adds one tap of one image, times its weight, to a plane of the output.
fn accumulate<T: Ring>(axes: [&Axis; 3], tap: [usize; 3], weight: T, image: &[T], out: &mut [T]) {
    let [d, h, v] = axes;
    let (columns, source) = v.inside(tap[2]);
    if columns.is_empty() {
        return;
    }
    for od in 0..d.out {
        let Some(id) = d.source(od, tap[0]) else { continue };
        for oh in 0..h.out {
            let Some(ih) = h.source(oh, tap[1]) else { continue };
            let from = &image[(id * h.size + ih) * v.size..][source..v.size];
            let to = &mut out[(od * h.out + oh) * v.out..][columns.clone()];
            if v.stride == 1 {
                for (o, x) in to.iter_mut().zip(from) {
                    *o = o.plus(weight.times(*x));
                }
            } else {
                for (o, x) in to.iter_mut().zip(from.iter().step_by(v.stride)) {
                    *o = o.plus(weight.times(*x));
                }
            }
        }
    }
}
