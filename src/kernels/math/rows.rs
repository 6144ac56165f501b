//! Softmax and normalisation over the last axis, row by row.

#[cfg(target_arch = "x86_64")]
use super::avx2_rows;
use super::{Isa, Kind, scalar_rows};
use crate::kernels::KernelError;
use crate::kernels::error::check_len;

fn check_rows(x: &[f32], cols: usize) -> Result<(), KernelError> {
    if cols == 0 && x.is_empty() || cols > 0 && x.len().is_multiple_of(cols) {
        return Ok(());
    }
    Err(KernelError::Invalid { operand: "x", problem: "does not consist of whole rows" })
}

/// Softmax of every row of `cols` elements, in place. A row that is -∞ throughout gives NaN.
///
/// # Errors
/// When `x` does not consist of whole rows.
///
/// ```
/// let mut x = [0.0, 0.0, 0.0, 1000.0];
/// brigade::kernels::math::softmax(&mut x, 2)?;
/// assert_eq!(x, [0.5, 0.5, 0.0, 1.0]);
/// # Ok::<(), brigade::kernels::KernelError>(())
/// ```
pub fn softmax(x: &mut [f32], cols: usize) -> Result<(), KernelError> {
    softmax_on(Isa::best(), false, x, cols)
}

/// Logarithm of the softmax of every row of `cols` elements, in place.
///
/// # Errors
/// When `x` does not consist of whole rows.
pub fn log_softmax(x: &mut [f32], cols: usize) -> Result<(), KernelError> {
    softmax_on(Isa::best(), true, x, cols)
}

pub(super) fn softmax_on(
    isa: Isa,
    log: bool,
    x: &mut [f32],
    cols: usize,
) -> Result<(), KernelError> {
    check_rows(x, cols)?;
    for row in x.chunks_exact_mut(cols.max(1)) {
        match isa.kind() {
            Kind::Scalar => scalar_rows::softmax(row, log),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an Isa of this kind exists only where the CPU has AVX2 and FMA.
            Kind::Avx2 | Kind::Avx512 => unsafe { avx2_rows::softmax(row, log) },
        }
    }
    Ok(())
}

/// Normalises every row of `cols` elements, in place: `(x - mean) / √(variance + epsilon) · gamma
/// + beta`, where an absent `gamma` is 1 and an absent `beta` 0.
///
/// # Errors
/// When `x` does not consist of whole rows, or `gamma` or `beta` is shorter than a row.
pub fn layer_norm(
    x: &mut [f32],
    cols: usize,
    gamma: Option<&[f32]>,
    beta: Option<&[f32]>,
    epsilon: f32,
) -> Result<(), KernelError> {
    layer_norm_on(Isa::best(), x, cols, gamma, beta, epsilon)
}

/// [`layer_norm`] into `out`, which must not be shorter than `x`.
///
/// # Errors
/// As for [`layer_norm`], or when `out` is too short.
pub fn layer_norm_into(
    x: &[f32],
    cols: usize,
    gamma: Option<&[f32]>,
    beta: Option<&[f32]>,
    epsilon: f32,
    out: &mut [f32],
) -> Result<(), KernelError> {
    check_len("out", out.len(), x.len())?;
    check_rows(x, cols)?;
    let cols = cols.max(1);
    for (from, to) in x.chunks_exact(cols).zip(out.chunks_exact_mut(cols)) {
        to.copy_from_slice(from);
        layer_norm(to, cols, gamma, beta, epsilon)?;
    }
    Ok(())
}

pub(super) fn layer_norm_on(
    isa: Isa,
    x: &mut [f32],
    cols: usize,
    gamma: Option<&[f32]>,
    beta: Option<&[f32]>,
    epsilon: f32,
) -> Result<(), KernelError> {
    check_rows(x, cols)?;
    for (operand, v) in [("gamma", gamma), ("beta", beta)] {
        check_len(operand, v.map_or(cols, <[f32]>::len), cols)?;
    }
    let (gamma, beta) = (gamma.map(|v| &v[..cols]), beta.map(|v| &v[..cols]));
    for row in x.chunks_exact_mut(cols.max(1)) {
        match isa.kind() {
            Kind::Scalar => scalar_rows::layer_norm(row, gamma, beta, epsilon),
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an Isa of this kind exists only where the CPU has AVX2 and FMA.
            Kind::Avx2 | Kind::Avx512 => unsafe {
                avx2_rows::layer_norm(row, gamma, beta, epsilon)
            },
        }
    }
    Ok(())
}
