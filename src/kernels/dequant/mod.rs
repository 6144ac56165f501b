//! Products with matrices of weights that stay in their blocks ([`super::BLOCK_FORMATS`]).

mod activations;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_lines;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod layout;
mod pack;
mod packed;
mod plain;
#[cfg(target_arch = "x86_64")]
mod products;
mod scalar;

#[cfg(test)]
mod tests;

use super::error::check_len;
use super::{BlockFormat, KernelError, Parallel};
pub use packed::PackedBlocks;

/// A matrix of weights in blocks, as it lies in memory: rows of whole blocks.
#[derive(Clone, Copy, Debug)]
pub struct BlockMatrix<'a> {
    format: &'static BlockFormat,
    rows: usize,
    row_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> BlockMatrix<'a> {
    /// `rows` rows of `row_bytes` bytes each.
    ///
    /// # Errors
    /// If a row is not whole blocks, or there are fewer bytes.
    ///
    /// ```
    /// use brigade::kernels::{BlockFormat, BlockMatrix};
    /// let q8 = BlockFormat::named("Q8_0").unwrap();
    /// let bytes = [0_u8; 2 * 68];
    /// let w = BlockMatrix::new(q8, &bytes, 2, 68)?;
    /// assert_eq!((w.rows(), w.cols()), (2, 64));
    /// assert!(BlockMatrix::new(q8, &bytes, 4, 32).is_err());
    /// # Ok::<(), brigade::kernels::KernelError>(())
    /// ```
    pub fn new(
        format: &'static BlockFormat,
        bytes: &'a [u8],
        rows: usize,
        row_bytes: usize,
    ) -> Result<Self, KernelError> {
        if !row_bytes.is_multiple_of(format.bytes) {
            return Err(KernelError::Invalid {
                operand: "weights",
                problem: "do not have rows of whole blocks",
            });
        }
        let need =
            rows.checked_mul(row_bytes).ok_or(KernelError::Overflow { operand: "weights" })?;
        check_len("weights", bytes.len(), need)?;
        Ok(Self { format, rows, row_bytes, bytes: &bytes[..need] })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Weights in a row.
    pub fn cols(&self) -> usize {
        self.row_bytes / self.format.bytes * self.format.weights
    }

    /// The format.
    pub fn format(&self) -> &'static BlockFormat {
        self.format
    }

    /// Decodes row `i` into `out`.
    ///
    /// # Errors
    /// If there is no such row, or `out` is not as long as one.
    pub fn decode_row(&self, i: usize, out: &mut [f32]) -> Result<(), KernelError> {
        if i >= self.rows {
            return Err(KernelError::Mismatch {
                operand: "weights",
                dim: "rows",
                need: i.saturating_add(1),
                have: self.rows,
            });
        }
        self.format.decode(&self.bytes[i * self.row_bytes..][..self.row_bytes], out)
    }
}

/// `out = x · wᵀ`, where `x` is `m` rows of [`BlockMatrix::cols`] numbers and `out` `m` rows of
/// [`BlockMatrix::rows`]. The weights are decoded as they pass by, the sums are those of
/// [`super::gemm`].
///
/// # Errors
/// If `x` or `out` is too short.
///
/// ```
/// use brigade::kernels::{BlockFormat, BlockMatrix, Serial, dequant_matmul};
/// let mut row = [0_u8; 34];
/// row[..2].copy_from_slice(&[0x00, 0x38]); // the scale 0.5 as f16
/// row[2] = 6;
/// let w = BlockMatrix::new(BlockFormat::named("Q8_0").unwrap(), &row, 1, 34)?;
/// let (x, mut y) = ([2.0; 32], [0.0]);
/// dequant_matmul(&x, 1, w, &mut y, &Serial)?;
/// assert_eq!(y, [6.0]);
/// # Ok::<(), brigade::kernels::KernelError>(())
/// ```
pub fn dequant_matmul(
    x: &[f32],
    m: usize,
    w: BlockMatrix<'_>,
    out: &mut [f32],
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    plain::matmul(x, m, w, out, par)
}
