//! Pooling of NCHW tensors in single precision.
//!
//! Windows may overhang the padded image (ONNX's `ceil_mode`): the caller states the output size.
//! Maxima ignore padding and keep NaN; a window without any element gives -∞. Averages divide by
//! the elements counted, see [`AveragePool`]; a window that counts none gives 0.

#[cfg(target_arch = "x86_64")]
mod avx2;
pub(in crate::kernels) mod scalar;

#[cfg(test)]
mod tests;

use super::aligned::AlignedF32;
use super::error::{check_len, checked_product};
use super::isa::{Isa, Kind};
use super::math::{Reduce, reduce};
use super::parallel::{Parallel, SharedOut, for_each_part, split_range};
use super::strip::StripPlan;
use super::window::check_axis;
use super::{KernelError, Window};
use std::cell::Cell;

thread_local! {
    static BUFFER: Cell<AlignedF32> = Cell::default();
}

/// What an average divides by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AveragePool {
    /// The elements of the image under the window.
    ExcludePad,
    /// Those and the padding, but nothing beyond the padding.
    IncludePad,
}

/// What a pooling computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolKind {
    /// The largest element.
    Max,
    /// The mean.
    Average(AveragePool),
}

/// Maxima of `planes` images of `size` into `out`, [planes, out_size…].
///
/// # Errors
/// When a slice is too short or the window has a zero. `out` is then untouched.
///
/// ```
/// use brigade::kernels::{Serial, Window, max_pool2d};
/// let w = Window { strides: [2, 2], ..Window::new([2, 2]) };
/// let x = [1.0, 5.0, 2.0, 0.0, 3.0, 4.0, 9.0, 8.0];
/// let mut out = [0.0; 2];
/// max_pool2d(&x, 1, [2, 4], &w, [1, 2], &mut out, &Serial)?;
/// assert_eq!(out, [5.0, 9.0]);
/// # Ok::<(), brigade::kernels::KernelError>(())
/// ```
pub fn max_pool2d(
    x: &[f32],
    planes: usize,
    size: [usize; 2],
    window: &Window,
    out_size: [usize; 2],
    out: &mut [f32],
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    pool2d_on(Isa::best(), PoolKind::Max, x, planes, size, window, out_size, out, par)
}

/// Averages of `planes` images of `size` into `out`, [planes, out_size…].
///
/// # Errors
/// When a slice is too short or the window has a zero. `out` is then untouched.
pub fn average_pool2d(
    x: &[f32],
    planes: usize,
    size: [usize; 2],
    window: &Window,
    count: AveragePool,
    out_size: [usize; 2],
    out: &mut [f32],
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    let kind = PoolKind::Average(count);
    pool2d_on(Isa::best(), kind, x, planes, size, window, out_size, out, par)
}

/// The mean of each of `planes` runs of `plane` elements.
///
/// # Errors
/// When a slice is too short. `out` is then untouched.
pub fn global_average_pool(
    x: &[f32],
    planes: usize,
    plane: usize,
    out: &mut [f32],
) -> Result<(), KernelError> {
    reduce(Reduce::Mean, x, planes, plane, 1, out)
}

/// The maximum of each of `planes` runs of `plane` elements.
///
/// # Errors
/// When a slice is too short. `out` is then untouched.
pub fn global_max_pool(
    x: &[f32],
    planes: usize,
    plane: usize,
    out: &mut [f32],
) -> Result<(), KernelError> {
    reduce(Reduce::Max, x, planes, plane, 1, out)
}

fn pool2d_on(
    isa: Isa,
    kind: PoolKind,
    x: &[f32],
    planes: usize,
    size: [usize; 2],
    window: &Window,
    out_size: [usize; 2],
    out: &mut [f32],
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    window.check(size, out_size)?;
    if !StripPlan::suits(window) {
        let w = window;
        return pool_nd(
            kind,
            x,
            planes,
            &size,
            &w.kernel,
            &w.strides,
            &w.dilations,
            &w.pads,
            &out_size,
            out,
            par,
        );
    }
    let (plane, out_plane) = (checked_product("x", &size)?, checked_product("out", &out_size)?);
    check_len("x", x.len(), checked_product("x", &[planes, plane])?)?;
    let elements = checked_product("out", &[planes, out_plane])?;
    check_len("out", out.len(), elements)?;
    if elements == 0 {
        return Ok(());
    }
    let plan = StripPlan::new(isa, *window, size, out_size);
    let max = kind == PoolKind::Max;
    let padding = if max { f32::NEG_INFINITY } else { 0.0 };
    let counts = |axis: usize| -> Vec<f32> {
        let pads = [window.pads[axis], window.pads[axis + 2]];
        let (k, s, d) = (window.kernel[axis], window.strides[axis], window.dilations[axis]);
        let count = |i| counted(kind, size[axis], k, s, d, pads, i) as f32;
        (0..out_size[axis]).map(count).collect()
    };
    let counts = if max { Default::default() } else { [counts(0), counts(1)] };
    let units = planes * plan.bands();
    let parts = par.threads().min(units).max(1);
    let c = SharedOut::new(out);
    for_each_part(par, parts, &|part| {
        let mut buffer = BUFFER.take();
        buffer.reserve(plan.floats());
        for unit in split_range(units, parts, part, 1) {
            let (image, band) = (unit / plan.bands(), unit % plan.bands());
            let strip = plan.fill(&x[image * plane..][..plane], band, padding, &mut buffer);
            let rows = plan.rows(band);
            let at = image * out_plane + rows.start * out_size[1];
            // SAFETY: `out` holds `planes` planes; a unit owns its band of one of them.
            let band_out = unsafe {
                std::slice::from_raw_parts_mut(c.ptr().add(at), rows.len() * out_size[1])
            };
            match isa.kind() {
                Kind::Scalar => scalar::pool(&strip, max, out_size[1], band_out),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an Isa of this kind exists only where the CPU has AVX2 and FMA.
                Kind::Avx2 | Kind::Avx512 => unsafe {
                    avx2::pool(&strip, max, out_size[1], band_out)
                },
            }
            if let [down, across] = &counts
                && !max
            {
                for (line, &ny) in band_out.chunks_exact_mut(out_size[1]).zip(&down[rows]) {
                    let pairs = line.iter_mut().zip(across);
                    pairs.for_each(|(v, &nx)| *v = divide(*v, ny * nx));
                }
            }
        }
        BUFFER.set(buffer);
    });
    Ok(())
}

/// A mean, 0 where nothing was counted.
pub(in crate::kernels) fn divide(sum: f32, count: f32) -> f32 {
    sum / if count == 0.0 { 1.0 } else { count }
}

/// Positions along one axis that an average counts for output `i`.
pub(in crate::kernels) fn counted(
    kind: PoolKind,
    size: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
    pads: [usize; 2],
    i: usize,
) -> usize {
    let (from, end) = match kind {
        PoolKind::Average(AveragePool::IncludePad) => (0, pads[0] + size + pads[1]),
        _ => (pads[0], pads[0] + size),
    };
    let inside = |t: &usize| (from..end).contains(&(i * stride + t * dilation));
    (0..kernel).filter(inside).count()
}

/// Pooling over any number of axes, in plain loops: for the rare three-dimensional ones.
///
/// # Errors
/// When a slice is too short, lengths disagree, or a window has a zero. `out` is then untouched.
pub fn pool_nd(
    kind: PoolKind,
    x: &[f32],
    planes: usize,
    size: &[usize],
    kernel: &[usize],
    strides: &[usize],
    dilations: &[usize],
    pads: &[usize],
    out_size: &[usize],
    out: &mut [f32],
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    let rank = size.len();
    let lengths = [
        ("kernel", kernel.len(), rank),
        ("strides", strides.len(), rank),
        ("dilations", dilations.len(), rank),
        ("pads", pads.len(), 2 * rank),
        ("out_size", out_size.len(), rank),
    ];
    for (operand, have, need) in lengths {
        if have != need {
            return Err(KernelError::Mismatch { operand, dim: "length", need, have });
        }
    }
    for a in 0..rank {
        let pads = [pads[a], pads[a + rank]];
        check_axis(size[a], kernel[a], strides[a], dilations[a], pads, out_size[a])?;
    }
    let (plane, out_plane) = (checked_product("x", size)?, checked_product("out", out_size)?);
    check_len("x", x.len(), checked_product("x", &[planes, plane])?)?;
    let elements = checked_product("out", &[planes, out_plane])?;
    check_len("out", out.len(), elements)?;
    if elements == 0 {
        return Ok(());
    }
    let parts = par.threads().min(planes).max(1);
    let c = SharedOut::new(out);
    for_each_part(par, parts, &|part| {
        let (mut at, mut tap) = (vec![0; rank], vec![0; rank]);
        for p in split_range(planes, parts, part, 1) {
            let image = &x[p * plane..][..plane];
            // SAFETY: `out` holds `planes` planes and each belongs to one part.
            let plane_out =
                unsafe { std::slice::from_raw_parts_mut(c.ptr().add(p * out_plane), out_plane) };
            at.fill(0);
            for o in plane_out {
                let (mut max, mut sum) = (f32::NEG_INFINITY, 0.0);
                tap.fill(0);
                loop {
                    let mut offset = Some(0);
                    for a in 0..rank {
                        let pos = at[a] * strides[a] + tap[a] * dilations[a];
                        let pos = pos.checked_sub(pads[a]).filter(|&v| v < size[a]);
                        offset = offset.zip(pos).map(|(o, v)| o * size[a] + v);
                    }
                    if let Some(&v) = offset.and_then(|o| image.get(o)) {
                        max = scalar::max(max, v);
                        sum += v;
                    }
                    if !super::conv::advance(&mut tap, kernel) {
                        break;
                    }
                }
                *o = if kind == PoolKind::Max {
                    max
                } else {
                    let count = |a: usize| {
                        let pads = [pads[a], pads[a + rank]];
                        counted(kind, size[a], kernel[a], strides[a], dilations[a], pads, at[a])
                    };
                    divide(sum, (0..rank).map(|a| count(a) as f32).product())
                };
                super::conv::advance(&mut at, out_size);
            }
        }
    });
    Ok(())
}
