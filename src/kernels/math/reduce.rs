//! Reductions over one axis, in an order that depends on the shape alone.

#[cfg(target_arch = "x86_64")]
use super::avx2_rows;
use super::{Isa, Kind, scalar_rows};
use crate::kernels::KernelError;
use crate::kernels::error::{check_len, checked_product};

/// What [`reduce`] computes. Maxima and minima keep NaN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// The sum; 0 over nothing.
    Sum,
    /// The sum divided by the number of elements; NaN over nothing.
    Mean,
    /// The sum of squares; 0 over nothing.
    SumSquare,
    /// The largest element; -∞ over nothing.
    Max,
    /// The smallest element; ∞ over nothing.
    Min,
    /// The product; 1 over nothing.
    Prod,
}

/// Reduces the middle axis of `x`, [outer, len, inner], into `out`, [outer, inner].
///
/// With `inner` = 1 the rows are contiguous and summed in lanes; else each output is one chain
/// over `len`.
///
/// # Errors
/// When a slice is too short. `out` is then untouched.
///
/// ```
/// use brigade::kernels::math::{Reduce, reduce};
/// let mut out = [0.0; 2];
/// reduce(Reduce::Max, &[1.0, 9.0, 3.0, 4.0], 1, 2, 2, &mut out)?;
/// assert_eq!(out, [3.0, 9.0]);
/// # Ok::<(), brigade::kernels::KernelError>(())
/// ```
pub fn reduce(
    op: Reduce,
    x: &[f32],
    outer: usize,
    len: usize,
    inner: usize,
    out: &mut [f32],
) -> Result<(), KernelError> {
    reduce_on(Isa::best(), op, x, outer, len, inner, out)
}

pub(super) fn reduce_on(
    isa: Isa,
    op: Reduce,
    x: &[f32],
    outer: usize,
    len: usize,
    inner: usize,
    out: &mut [f32],
) -> Result<(), KernelError> {
    check_len("x", x.len(), checked_product("x", &[outer, len, inner])?)?;
    let elements = checked_product("out", &[outer, inner])?;
    check_len("out", out.len(), elements)?;
    if elements == 0 {
        return Ok(());
    }
    let slab = len * inner;
    for (o, to) in out[..elements].chunks_exact_mut(inner).enumerate() {
        let from = &x[o * slab..][..slab];
        match (isa.kind(), inner) {
            (Kind::Scalar, 1) => to[0] = scalar_rows::reduce_row(op, from),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an Isa of this kind exists only where the CPU has AVX2 and FMA.
            (Kind::Avx2 | Kind::Avx512, 1) => to[0] = unsafe { avx2_rows::reduce_row(op, from) },
            #[cfg(target_arch = "x86_64")]
            // SAFETY: as above.
            (Kind::Avx2 | Kind::Avx512, 8..) => unsafe { avx2_rows::reduce_columns(op, from, to) },
            _ => scalar_rows::reduce_columns(op, from, to),
        }
        if op == Reduce::Mean {
            to.iter_mut().for_each(|v| *v /= len as f32);
        }
    }
    Ok(())
}
