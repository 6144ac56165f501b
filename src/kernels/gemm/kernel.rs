//! What one architecture provides to the blocked loops: one row of a table.

use super::scalar;
use crate::kernels::isa::{Isa, Kind};
use crate::kernels::{Activation, Bias, Epilogue};

/// One register tile: `C[rows × cols] (+)= A[rows × k] · B[k × cols]`, then the epilogue.
///
/// All `cols` columns of the kernel are read and written; the loops outside redirect tiles at
/// the right edge to a buffer.
#[derive(Clone, Copy, Debug)]
// The portable tile has no use for hints.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(in crate::kernels) struct Tile<'a> {
    /// 1 up to the rows of the kernel.
    pub rows: usize,
    pub k: usize,
    /// Element (i, p) of A is `a[i * a_row + p * a_k]`; either `a_k` is 1, or A is packed: then
    /// `a_row` is 1 and `a_k` is `rows`.
    pub a: *const f32,
    pub a_row: usize,
    pub a_k: usize,
    /// The A of the tile that comes next, laid out alike; only ever prefetched.
    pub a_next: *const f32,
    /// Row p of B starts at `b[p * b_k]`.
    pub b: *const f32,
    pub b_k: usize,
    /// Rows of B that are wanted after this tile, half as many as it reads; only ever prefetched.
    pub b_next: *const f32,
    /// Row p of B starts at `b[b_at[p]]` instead; A is packed then.
    pub b_at: Option<&'a [usize]>,
    pub c: *mut f32,
    pub c_row: usize,
    /// Only the first half of the columns matters; the others may be left alone.
    pub narrow: bool,
    /// The sums start from C instead of from zero.
    pub accumulate: bool,
    /// Present when k ends here.
    pub finish: Option<Finish>,
}

/// The epilogue of one tile; null pointers stand for absent operands.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels) struct Finish {
    pub alpha: f32,
    pub beta: f32,
    /// One value per row of the tile.
    pub row_bias: *const f32,
    /// One value per column of the tile.
    pub col_bias: *const f32,
    pub residual: *const f32,
    pub residual_row: usize,
    pub residual_last: bool,
    pub activation: Activation,
}

impl Finish {
    /// The epilogue without its operands.
    pub(in crate::kernels) fn new(epilogue: &Epilogue<'_>) -> Self {
        Self {
            alpha: epilogue.alpha,
            beta: epilogue.beta,
            row_bias: std::ptr::null(),
            col_bias: std::ptr::null(),
            residual: std::ptr::null(),
            residual_row: 0,
            residual_last: epilogue.residual.is_some_and(|r| r.after_activation),
            activation: epilogue.activation,
        }
    }

    /// The epilogue of the tile that starts at (i, j).
    pub(in crate::kernels) fn at(epilogue: &Epilogue<'_>, i: usize, j: usize) -> Self {
        let mut f = Self::new(epilogue);
        match epilogue.bias {
            Bias::None => {}
            Bias::PerRow(b) => f.row_bias = b.as_ptr().wrapping_add(i),
            Bias::PerColumn(b) => f.col_bias = b.as_ptr().wrapping_add(j),
        }
        if let Some(r) = epilogue.residual {
            f.residual = r.data.as_ptr().wrapping_add(i * r.row_stride + j);
            f.residual_row = r.row_stride;
        }
        f
    }
}

/// Sums of products of one architecture, for a single row or column.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels) struct VectorKernels {
    /// `y[i] = Σp matrix[i * row + p] · x[p]` for `i < y.len()`; rows hold `x.len()` elements.
    pub dot_rows: unsafe fn(matrix: *const f32, row: usize, x: &[f32], y: &mut [f32]),
    /// `y[j] = Σp x[p] · matrix[p * row + j]`; rows hold `y.len()` elements.
    pub add_rows: unsafe fn(matrix: *const f32, row: usize, x: &[f32], y: &mut [f32]),
    /// `y = Σp x[p] · panels`, for whole panels `panel` elements apart.
    pub panels: unsafe fn(panels: *const f32, panel: usize, x: &[f32], y: &mut [f32]),
}

/// The tile of one architecture.
#[derive(Debug)]
pub(in crate::kernels) struct Kernel {
    /// Rows of a full tile.
    pub rows: usize,
    /// Columns of a tile: the width of the panels of B.
    pub cols: usize,
    /// # Safety
    /// The pointers of the tile are valid for what it describes; the CPU has the instructions.
    pub tile: unsafe fn(&Tile<'_>),
    pub vector: VectorKernels,
}

/// Elements of the largest tile.
pub(in crate::kernels) const MAX_TILE: usize = 14 * 32;

/// Columns of the widest panel.
pub(in crate::kernels) const MAX_COLS: usize = 32;

impl Kernel {
    /// The kernel of an instruction set.
    pub(in crate::kernels) fn of(isa: Isa) -> &'static Self {
        match isa.kind() {
            Kind::Scalar => &scalar::KERNEL,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => &super::avx2::KERNEL,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => &super::avx512::KERNEL,
        }
    }
}
