//! Matrix multiplication in single precision, `C = act(alpha · A · B + …)`.
//!
//! C is computed in register tiles of a few rows by a panel of columns. Each element is one
//! chain of multiply-adds over k, in order, whatever the blocking, the packing or the number of
//! threads; so packed and plain operands give the same bits. (The one exception: the product of
//! a matrix with a single column, or of a single row with a transposed matrix, is summed in
//! lanes; there too the order depends on k alone.)

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod bf16;
pub(in crate::kernels) mod block;
pub(in crate::kernels) mod kernel;
mod matrix;
mod pack;
mod scalar;
mod vector;

#[cfg(test)]
mod tests;

use super::error::{KernelError, check_len};
use super::isa::Isa;
use super::parallel::{Parallel, SharedOut, for_each_part};
use super::{Bias, Epilogue, Residual};
pub use bf16::PackedBf16;
use block::{Block, Left, Right};
use kernel::Kernel;
pub use matrix::{MatMut, MatRef};
pub(in crate::kernels) use pack::RowTiles;
pub use pack::{PackedA, PackedB};
use std::ops::Range;

/// The left operand of [`gemm`].
#[derive(Clone, Copy, Debug)]
pub enum Lhs<'a> {
    /// As it lies in memory.
    Plain(MatRef<'a>),
    /// Packed once, because it is constant.
    Packed(&'a PackedA),
}

/// The right operand of [`gemm`].
#[derive(Clone, Copy, Debug)]
pub enum Rhs<'a> {
    /// As it lies in memory; it is packed block by block where that pays.
    Plain(MatRef<'a>),
    /// Packed once, because it is constant.
    Packed(&'a PackedB),
    /// Packed once in bfloat16: the left operand, which is not packed, is rounded to it, too.
    Bf16(&'a PackedBf16),
}

impl<'a> From<MatRef<'a>> for Lhs<'a> {
    fn from(m: MatRef<'a>) -> Self {
        Self::Plain(m)
    }
}

impl<'a> From<&'a PackedA> for Lhs<'a> {
    fn from(m: &'a PackedA) -> Self {
        Self::Packed(m)
    }
}

impl<'a> From<MatRef<'a>> for Rhs<'a> {
    fn from(m: MatRef<'a>) -> Self {
        Self::Plain(m)
    }
}

impl<'a> From<&'a PackedB> for Rhs<'a> {
    fn from(m: &'a PackedB) -> Self {
        Self::Packed(m)
    }
}

impl<'a> From<&'a PackedBf16> for Rhs<'a> {
    fn from(m: &'a PackedBf16) -> Self {
        Self::Bf16(m)
    }
}

impl Lhs<'_> {
    fn shape(&self) -> (usize, usize) {
        match self {
            Self::Plain(m) => (m.rows(), m.cols()),
            Self::Packed(p) => (p.rows(), p.depth()),
        }
    }
}

impl Rhs<'_> {
    fn shape(&self) -> (usize, usize) {
        match self {
            Self::Plain(m) => (m.rows(), m.cols()),
            Self::Packed(p) => (p.depth(), p.cols()),
            Self::Bf16(p) => (p.depth(), p.cols()),
        }
    }
}

/// How an m × n output is cut into parts for several threads: into panels of columns or tiles of
/// rows, whichever there are more of. Any cut gives the same bits.
///
/// ```
/// use brigade::kernels::Partition;
/// let p = Partition::new(1000, 64, 2);
/// assert_eq!(p.parts(), 2);
/// let ((upper, _), (lower, columns)) = (p.part(0), p.part(1));
/// assert_eq!((upper.start, upper.end, lower.end), (0, lower.start, 1000));
/// assert_eq!(columns, 0..64);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    m: usize,
    n: usize,
    row_parts: usize,
    col_parts: usize,
    kernel_rows: usize,
    kernel_cols: usize,
}

impl Partition {
    /// Cuts an `m` × `n` output for at most `threads` threads, with the tile of [`Isa::best`].
    pub fn new(m: usize, n: usize, threads: usize) -> Self {
        Self::with_kernel(m, n, threads, Kernel::of(Isa::best()))
    }

    pub(in crate::kernels) fn with_kernel(
        m: usize,
        n: usize,
        threads: usize,
        kernel: &Kernel,
    ) -> Self {
        let threads = threads.max(1);
        let (tiles, panels) = (m.div_ceil(kernel.rows).max(1), n.div_ceil(kernel.cols).max(1));
        let (row_parts, col_parts) =
            if panels >= tiles { (1, threads.min(panels)) } else { (threads.min(tiles), 1) };
        let (kernel_rows, kernel_cols) = (kernel.rows, kernel.cols);
        Self { m, n, row_parts, col_parts, kernel_rows, kernel_cols }
    }

    /// The number of parts, at least 1.
    pub fn parts(&self) -> usize {
        self.row_parts * self.col_parts
    }

    /// The rows and the columns of part `i`; empty beyond the last part.
    pub fn part(&self, i: usize) -> (Range<usize>, Range<usize>) {
        let cols = super::split_range(self.n, self.col_parts, i % self.col_parts, self.kernel_cols);
        // Tiles of packed rows are of nearly equal height, so the cut is made in tiles.
        let tiles = RowTiles::new(self.m, self.kernel_rows);
        let t = super::split_range(tiles.count(), self.row_parts, i / self.col_parts, 1);
        (tiles.start(t.start)..tiles.start(t.end), cols)
    }
}

/// `out = act(alpha · lhs · rhs + beta · out + bias + residual)`; see [`Epilogue`].
///
/// `lhs` is m × k, `rhs` is k × n, `out` is m × n. Any of them may be empty; with k = 0 the sums
/// are zero and the epilogue still applies. Uses the threads of `par`; the result does not
/// depend on them.
///
/// # Errors
/// When shapes disagree, or a bias or a residual is too short. `out` is then untouched.
///
/// ```
/// use brigade::kernels::{Epilogue, MatMut, MatRef, PackedB, Serial, gemm};
/// let a = MatRef::row_major(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2, 3)?;
/// let b = PackedB::new(MatRef::row_major(&[1.0, 0.0, 0.0, 1.0, 1.0, 1.0], 3, 2)?)?;
/// let mut c = [0.0; 4];
/// gemm(a, &b, MatMut::row_major(&mut c, 2, 2)?, &Epilogue::default(), &Serial)?;
/// assert_eq!(c, [4.0, 5.0, 10.0, 11.0]);
/// # Ok::<(), brigade::kernels::KernelError>(())
/// ```
pub fn gemm<'a>(
    lhs: impl Into<Lhs<'a>>,
    rhs: impl Into<Rhs<'a>>,
    out: MatMut<'_>,
    epilogue: &Epilogue<'_>,
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    gemm_on(Isa::best(), lhs.into(), rhs.into(), out, epilogue, par)
}

/// [`gemm`] for a stated instruction set; packed operands keep theirs.
pub(in crate::kernels) fn gemm_on(
    isa: Isa,
    lhs: Lhs<'_>,
    rhs: Rhs<'_>,
    mut out: MatMut<'_>,
    epilogue: &Epilogue<'_>,
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    let ((m, k), (k2, n)) = (lhs.shape(), rhs.shape());
    let mismatch = |operand, dim, need, have| {
        if need == have { Ok(()) } else { Err(KernelError::Mismatch { operand, dim, need, have }) }
    };
    mismatch("rhs", "rows", k, k2)?;
    mismatch("out", "rows", m, out.rows())?;
    mismatch("out", "cols", n, out.cols())?;
    check_epilogue(epilogue, m, n)?;
    match (&lhs, &rhs) {
        (Lhs::Packed(_), Rhs::Bf16(_)) => {
            return Err(KernelError::Invalid {
                operand: "lhs",
                problem: "is packed in f32 beside a right operand in bfloat16: leave it as it lies",
            });
        }
        (Lhs::Plain(a), Rhs::Bf16(b)) => {
            if m > 0 && n > 0 {
                bf16::multiply(*a, b, out, epilogue, par)?;
            }
            return Ok(());
        }
        _ => {}
    }
    let isa = match (&lhs, &rhs) {
        (Lhs::Packed(a), Rhs::Packed(b)) if a.isa() != b.isa() => {
            return Err(KernelError::Invalid {
                operand: "rhs",
                problem: "is packed for another instruction set than lhs: pack both for one",
            });
        }
        (Lhs::Packed(a), _) => a.isa(),
        (_, Rhs::Packed(b)) => b.isa(),
        (_, Rhs::Bf16(b)) => b.isa(),
        _ => isa,
    };
    if m == 0 || n == 0 {
        return Ok(());
    }
    let kernel = Kernel::of(isa);
    if (m == 1 || n == 1)
        && epilogue.beta == 0.0
        && let Some(job) = vector::Job::new(isa, lhs, rhs)
    {
        job.run(&mut out, epilogue, kernel, par);
        return Ok(());
    }
    let c_row = out.row_stride();
    let c = SharedOut::new(out.data_mut());
    let left = match lhs {
        Lhs::Plain(a) => Left::Plain(a),
        Lhs::Packed(a) => Left::Packed(a),
    };
    let right = match &rhs {
        Rhs::Plain(b) => Right::plain(b),
        Rhs::Packed(b) => Right::Packed(b.data()),
        Rhs::Bf16(b) => Right::Virtual { panels: *b, rows: None },
    };
    let partition = Partition::with_kernel(m, n, par.threads(), kernel);
    for_each_part(par, partition.parts(), &|i| {
        let (rows, cols) = partition.part(i);
        let block = Block { kernel, left, right, k, c_row, epilogue };
        // SAFETY: MatMut holds m rows of n elements c_row ≥ n apart, the operands and the
        // epilogue were checked against m, n, k, parts are disjoint and cut at tiles and panels.
        unsafe { block.run(c.ptr(), rows, cols) };
    });
    Ok(())
}

/// Checks bias and residual against an m × n output.
pub(in crate::kernels) fn check_epilogue(
    epilogue: &Epilogue<'_>,
    m: usize,
    n: usize,
) -> Result<(), KernelError> {
    match epilogue.bias {
        Bias::None => {}
        Bias::PerRow(b) => check_len("bias", b.len(), m)?,
        Bias::PerColumn(b) => check_len("bias", b.len(), n)?,
    }
    if let Some(Residual { data, row_stride, .. }) = epilogue.residual {
        MatRef::new(data, m, n, row_stride, 1).map_err(|e| match e {
            KernelError::Length { need, have, .. } => {
                KernelError::Length { operand: "residual", need, have }
            }
            _ => KernelError::Overflow { operand: "residual" },
        })?;
    }
    Ok(())
}
