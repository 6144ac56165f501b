//! Pooling of blocked tensors.

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::reorder::check_blocks;
use super::{BLOCK, taps_inside};
use crate::kernels::error::{check_len, checked_product};
use crate::kernels::isa::{Isa, Kind};
use crate::kernels::parallel::{Parallel, SharedOut, for_each_part, split_range};
use crate::kernels::pool::{counted, divide, scalar};
use crate::kernels::{AveragePool, KernelError, PoolKind, Window};
use std::ops::Range;

/// Maxima of blocked images of `size`, `planes` of them counted by single channels (batch times
/// channels, a multiple of [`BLOCK`]), into the blocked `out` of `out_size`. Padding is ignored, NaN
/// kept; a window without any element gives -∞.
///
/// # Errors
/// When `planes` is no multiple of [`BLOCK`], a slice is too short or the window has a zero. `out`
/// is then untouched.
///
/// ```
/// use brigade::kernels::{Serial, Window, blocked_max_pool2d};
/// let x: Vec<f32> = (0..16).map(|v| v as f32).collect();
/// let mut out = [0.0; 8];
/// blocked_max_pool2d(&x, 8, [1, 2], &Window::new([1, 2]), [1, 1], &mut out, &Serial)?;
/// assert_eq!(out, x[8..]);
/// # Ok::<(), brigade::kernels::KernelError>(())
/// ```
pub fn blocked_max_pool2d(
    x: &[f32],
    planes: usize,
    size: [usize; 2],
    window: &Window,
    out_size: [usize; 2],
    out: &mut [f32],
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    pool_on(Isa::best(), PoolKind::Max, x, planes, size, window, out_size, out, par)
}

/// Averages of blocked images of `size`, `planes` of them counted by single channels (batch times
/// channels, a multiple of [`BLOCK`]), into the blocked `out` of `out_size`; what they divide by is
/// `count`.
///
/// # Errors
/// As for [`blocked_max_pool2d`].
pub fn blocked_average_pool2d(
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
    pool_on(Isa::best(), kind, x, planes, size, window, out_size, out, par)
}

/// The mean of each of `planes` channels (batch times channels, a multiple of [`BLOCK`]) of a blocked
/// tensor with `plane` positions. With one position left, blocked and plain are the same layout.
///
/// # Errors
/// When `planes` is no multiple of [`BLOCK`] or a slice is too short. `out` is then untouched.
///
/// ```
/// use brigade::kernels::blocked_global_average_pool;
/// let x: Vec<f32> = (0..16).map(|v| v as f32).collect();
/// let mut out = [0.0; 8];
/// blocked_global_average_pool(&x, 8, 2, &mut out)?;
/// assert_eq!(out[..3], [4.0, 5.0, 6.0]);
/// # Ok::<(), brigade::kernels::KernelError>(())
/// ```
pub fn blocked_global_average_pool(
    x: &[f32],
    planes: usize,
    plane: usize,
    out: &mut [f32],
) -> Result<(), KernelError> {
    global_on(Isa::best(), x, planes, plane, out)
}

/// The average over the image for a stated instruction set.
pub(super) fn global_on(
    isa: Isa,
    x: &[f32],
    planes: usize,
    plane: usize,
    out: &mut [f32],
) -> Result<(), KernelError> {
    check_blocks(planes)?;
    let need = checked_product("x", &[planes, plane])?;
    check_len("x", x.len(), need)?;
    check_len("out", out.len(), planes)?;
    let scale = 1.0 / plane as f32;
    for (block, o) in out[..planes].chunks_exact_mut(BLOCK).enumerate() {
        let from = &x[block * plane * BLOCK..][..plane * BLOCK];
        match isa.kind() {
            Kind::Scalar => {
                // Four sums, so that large images lose no precision in one long chain.
                let mut sums = [[0.0f32; BLOCK]; 4];
                for (p, v) in from.chunks_exact(BLOCK).enumerate() {
                    sums[p % 4].iter_mut().zip(v).for_each(|(s, v)| *s += v);
                }
                for (c, o) in o.iter_mut().enumerate() {
                    *o = ((sums[0][c] + sums[1][c]) + (sums[2][c] + sums[3][c])) * scale;
                }
            }
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an Isa of this kind exists only where the CPU has AVX2 and FMA.
            Kind::Avx2 | Kind::Avx512 => unsafe { avx2::mean(from, scale, o) },
        }
    }
    Ok(())
}

/// One output row of one block: the input rows it sees are given by `first` and `step`.
pub(super) struct PoolRow<'a> {
    /// The block of the image.
    pub(super) image: &'a [f32],
    /// Offsets of the rows of taps that lie in the image.
    pub(super) rows: &'a [usize],
    /// For each output, the taps that lie in the image, and the offset of the tap 0 counted from
    /// column -pad.
    pub(super) columns: &'a [Range<usize>],
    /// Horizontal stride, dilation and left padding.
    pub(super) steps: [usize; 3],
}

/// Pooling for a stated instruction set.
pub(super) fn pool_on(
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
    check_blocks(planes)?;
    window.check(size, out_size)?;
    let (plane, out_plane) = (checked_product("x", &size)?, checked_product("out", &out_size)?);
    check_len("x", x.len(), checked_product("x", &[planes, plane])?)?;
    let elements = checked_product("out", &[planes, out_plane])?;
    check_len("out", out.len(), elements)?;
    if elements == 0 {
        return Ok(());
    }
    let Window { kernel, strides, dilations, pads } = *window;
    let taps = |axis: usize, o: usize| {
        taps_inside(o, size[axis], kernel[axis], strides[axis], dilations[axis], pads[axis])
    };
    let counts = |axis: usize| -> Vec<f32> {
        let both = [pads[axis], pads[axis + 2]];
        let (k, s, d) = (kernel[axis], strides[axis], dilations[axis]);
        (0..out_size[axis]).map(|o| counted(kind, size[axis], k, s, d, both, o) as f32).collect()
    };
    let max = kind == PoolKind::Max;
    let counts = if max { Default::default() } else { [counts(0), counts(1)] };
    let columns: Vec<Range<usize>> = (0..out_size[1]).map(|o| taps(1, o)).collect();
    let (units, line) = (planes / BLOCK * out_size[0], out_size[1] * BLOCK);
    let parts = par.threads().min(units).max(1);
    let shared = SharedOut::new(out);
    for_each_part(par, parts, &|part| {
        let mut rows = Vec::with_capacity(kernel[0].min(size[0]));
        for unit in split_range(units, parts, part, 1) {
            let (block, y) = (unit / out_size[0], unit % out_size[0]);
            // SAFETY: `out` holds `units` rows of `line` elements; each belongs to one part.
            let to = unsafe { std::slice::from_raw_parts_mut(shared.ptr().add(unit * line), line) };
            rows.clear();
            let row = |ky| (y * strides[0] + ky * dilations[0] - pads[0]) * size[1] * BLOCK;
            rows.extend(taps(0, y).map(row));
            let job = PoolRow {
                image: &x[block * plane * BLOCK..][..plane * BLOCK],
                rows: &rows,
                columns: &columns,
                steps: [strides[1], dilations[1], pads[1]],
            };
            match isa.kind() {
                Kind::Scalar => portable(&job, max, to),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: an Isa of this kind exists only where the CPU has AVX2 and FMA.
                Kind::Avx2 | Kind::Avx512 => unsafe { avx2::pool_row(&job, max, to) },
            }
            if let [down, across] = &counts
                && !max
            {
                for (o, &n) in to.chunks_exact_mut(BLOCK).zip(across) {
                    o.iter_mut().for_each(|v| *v = divide(*v, down[y] * n));
                }
            }
        }
    });
    Ok(())
}

/// Maxima or sums of one row.
fn portable(job: &PoolRow<'_>, max: bool, out: &mut [f32]) {
    let [stride, dilation, pad] = job.steps;
    for (x, (o, taps)) in out.chunks_exact_mut(BLOCK).zip(job.columns).enumerate() {
        let mut acc = [if max { f32::NEG_INFINITY } else { 0.0 }; BLOCK];
        for row in job.rows {
            for kx in taps.clone() {
                let ix = x * stride + kx * dilation - pad;
                let from = &job.image[row + ix * BLOCK..][..BLOCK];
                for (a, &v) in acc.iter_mut().zip(from) {
                    *a = if max { scalar::max(*a, v) } else { *a + v };
                }
            }
        }
        o.copy_from_slice(&acc);
    }
}
