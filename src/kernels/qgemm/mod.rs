//! Matrix multiplication of 8-bit integers with exact 32-bit sums.
//!
//! `C[i, j] = Σ (A[i, p] - zero_a) · (B[p, j] - zero_b[j])`, both operands signed or unsigned. B
//! stays 8 bits wide and its zero point is corrected with the row sums of A. A is widened to 16 bits
//! with its zero point taken off, and products are added in pairs as 32-bit integers; or, where the
//! CPU has dot products of bytes, A stays bytes too and its zero points are corrected with the column
//! sums of B. Nothing saturates; sums wrap beyond 32 bits as ONNX's do (from k = 33,025 on at the
//! earliest).

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx2_finish;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod finish;
mod kernel;
mod pack;
mod scalar;

#[cfg(test)]
mod tests;

use super::error::{KernelError, check_len, checked_product};
use super::gemm::RowTiles;
use super::parallel::{Parallel, SharedOut, for_each_part, split_range};
pub use finish::{Grid, QEpilogue, QOut, qgemm_into};
use kernel::{Kernel, MAX_TILE, Product, Tile};
pub use pack::PackedQ;
use std::cell::Cell;
use std::ops::Range;

/// Rows that are packed at a time, at most.
const BLOCK_ROWS: usize = 96;

/// 8-bit integers of either signedness.
#[derive(Clone, Copy, Debug)]
pub enum Bytes<'a> {
    /// -128 to 127.
    Signed(&'a [i8]),
    /// 0 to 255.
    Unsigned(&'a [u8]),
}

impl Bytes<'_> {
    fn len(&self) -> usize {
        match self {
            Self::Signed(s) => s.len(),
            Self::Unsigned(u) => u.len(),
        }
    }

    fn at(&self, i: usize) -> i32 {
        match self {
            Self::Signed(s) => i32::from(s[i]),
            Self::Unsigned(u) => i32::from(u[i]),
        }
    }
}

/// A matrix of 8-bit integers, read through two strides.
#[derive(Clone, Copy, Debug)]
pub struct QMatRef<'a> {
    data: Bytes<'a>,
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> QMatRef<'a> {
    /// Element (i, j) is `data[i * row_stride + j * col_stride]`.
    ///
    /// # Errors
    /// When `data` is too short.
    pub fn new(
        data: Bytes<'a>,
        rows: usize,
        cols: usize,
        row_stride: usize,
        col_stride: usize,
    ) -> Result<Self, KernelError> {
        let overflow = KernelError::Overflow { operand: "matrix" };
        if rows > 0 && cols > 0 {
            let r = (rows - 1).checked_mul(row_stride).ok_or(overflow.clone())?;
            let c = (cols - 1).checked_mul(col_stride).ok_or(overflow.clone())?;
            let need = r.checked_add(c).and_then(|v| v.checked_add(1)).ok_or(overflow)?;
            check_len("matrix", data.len(), need)?;
        }
        Ok(Self { data, rows, cols, row_stride, col_stride })
    }

    /// Rows of `cols` consecutive elements.
    ///
    /// # Errors
    /// When `data` is too short.
    pub fn row_major(data: Bytes<'a>, rows: usize, cols: usize) -> Result<Self, KernelError> {
        Self::new(data, rows, cols, cols, 1)
    }

    /// The same data with rows and columns exchanged.
    pub fn transposed(self) -> Self {
        Self {
            data: self.data,
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
        }
    }

    /// Some of the rows, which there are.
    fn rows(self, rows: Range<usize>) -> Self {
        let at = if self.cols == 0 { 0 } else { rows.start * self.row_stride };
        let data = match self.data {
            Bytes::Signed(b) => Bytes::Signed(&b[at..]),
            Bytes::Unsigned(b) => Bytes::Unsigned(&b[at..]),
        };
        Self { data, rows: rows.len(), ..self }
    }

    fn at(&self, i: usize, j: usize) -> i32 {
        self.data.at(i * self.row_stride + j * self.col_stride)
    }
}

#[derive(Default)]
struct Scratch {
    /// Groups of depths, row after row.
    groups: Vec<i32>,
    /// For each row, the sum of its elements less their zero points.
    sums: Vec<i32>,
    /// For each row, the zero point of its bytes.
    shifts: Vec<i32>,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
}

/// `out[i, j] = Σ (lhs[i, p] - lhs_zero[i]) · (rhs[p, j] - its zero point)`, exactly.
///
/// `lhs` is m × k; `lhs_zero` holds one zero point or one per row; `out` gets m rows of n
/// elements, `out_row` apart. Uses the threads of `par`.
///
/// # Errors
/// When shapes disagree, a slice is too short, rows of `out` overlap, or a zero point lies
/// outside the range of the elements of `lhs`. `out` is then untouched.
///
/// ```
/// use brigade::kernels::{Bytes, PackedQ, QMatRef, Serial, qgemm};
/// let a = QMatRef::row_major(Bytes::Unsigned(&[130, 255, 128, 0]), 2, 2)?;
/// let b = QMatRef::row_major(Bytes::Signed(&[1, -2, 3, 4]), 2, 2)?;
/// let mut c = [0; 4];
/// qgemm(a, &[128], &PackedQ::new(b, &[0])?, &mut c, 2, &Serial)?;
/// assert_eq!(c, [2 + 3 * 127, -4 + 4 * 127, -3 * 128, -4 * 128]);
/// # Ok::<(), brigade::kernels::KernelError>(())
/// ```
pub fn qgemm(
    lhs: QMatRef<'_>,
    lhs_zero: &[i32],
    rhs: &PackedQ,
    out: &mut [i32],
    out_row: usize,
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    let (m, k, n) = (lhs.rows, lhs.cols, rhs.cols());
    check(&lhs, lhs_zero, rhs)?;
    if m == 0 || n == 0 {
        return Ok(());
    }
    if m > 1 && out_row < n {
        let problem = "has overlapping rows: its row stride is less than its width";
        return Err(KernelError::Invalid { operand: "out", problem });
    }
    let need = checked_product("out", &[m - 1, out_row])?
        .checked_add(n)
        .ok_or(KernelError::Overflow { operand: "out" })?;
    check_len("out", out.len(), need)?;
    if k == 0 {
        out.chunks_mut(out_row.max(n)).take(m).for_each(|row| row[..n].fill(0));
        return Ok(());
    }
    let threads = par.threads();
    let kernel = Kernel::of(rhs.isa());
    let (tiles, panels) = (m.div_ceil(kernel.rows), n.div_ceil(kernel.cols));
    let by_columns = panels >= tiles;
    let parts = threads.min(if by_columns { panels } else { tiles }).max(1);
    let c = SharedOut::new(out);
    for_each_part(par, parts, &|i| {
        let (rows, cols) = if by_columns {
            (0..m, split_range(n, parts, i, kernel.cols))
        } else {
            (split_range(m, parts, i, kernel.rows), 0..n)
        };
        let mut scratch = SCRATCH.take();
        // SAFETY: `out` holds m rows of n elements out_row apart; parts are disjoint and their
        // columns start at panels.
        unsafe { part(&lhs, lhs_zero, rhs, c.ptr(), out_row, rows, cols, &mut scratch) };
        SCRATCH.set(scratch);
    });
    Ok(())
}

/// That the operands go together.
fn check(lhs: &QMatRef<'_>, lhs_zero: &[i32], rhs: &PackedQ) -> Result<(), KernelError> {
    if rhs.depth() != lhs.cols {
        let (need, have) = (lhs.cols, rhs.depth());
        return Err(KernelError::Mismatch { operand: "rhs", dim: "rows", need, have });
    }
    check_zero_points("lhs_zero", lhs_zero, lhs.rows, &lhs.data)
}

/// One zero point or one per element of the axis, each within the range of the data.
fn check_zero_points(
    operand: &'static str,
    zero: &[i32],
    axis: usize,
    data: &Bytes<'_>,
) -> Result<(), KernelError> {
    if zero.len() != 1 {
        check_len(operand, zero.len(), axis)?;
    }
    let range = match data {
        Bytes::Signed(_) => -128..=127,
        Bytes::Unsigned(_) => 0..=255,
    };
    if zero.iter().any(|z| !range.contains(z)) {
        let problem = "lies outside the range of the elements";
        return Err(KernelError::Invalid { operand, problem });
    }
    Ok(())
}

/// # Safety
/// `c` is valid for the part; `cols` starts at a panel and ends at one or at the last column.
unsafe fn part(
    lhs: &QMatRef<'_>,
    lhs_zero: &[i32],
    rhs: &PackedQ,
    c: *mut i32,
    c_row: usize,
    rows: Range<usize>,
    cols: Range<usize>,
    scratch: &mut Scratch,
) {
    let kernel = Kernel::of(rhs.isa());
    let width = kernel.cols;
    let height = BLOCK_ROWS / kernel.rows * kernel.rows;
    let groups = lhs.cols.div_ceil(kernel.group);
    let mut edge = [0i32; MAX_TILE];
    for r0 in rows.clone().step_by(height) {
        let block = r0..rows.end.min(r0 + height);
        let (first, a_row) = pack::rows(rhs, lhs, lhs_zero, block.clone(), scratch);
        let tiles = RowTiles::new(block.len(), kernel.rows);
        let mut k0 = 0;
        loop {
            let k1 = groups.min(k0 + kernel.block);
            for j in cols.clone().step_by(width) {
                let have = width.min(cols.end - j);
                for t in 0..tiles.count() {
                    let (i, end) = (tiles.start(t), tiles.start(t + 1));
                    let to = c.wrapping_add((r0 + i) * c_row + j);
                    let mut tile = Tile {
                        rows: end - i,
                        groups: k1 - k0,
                        a: first.wrapping_add(i * a_row + k0 * 4),
                        a_row,
                        b: rhs.data()[(j * groups + k0 * width) * kernel.group..].as_ptr(),
                        c: to,
                        c_row,
                        narrow: have <= width / 2,
                        accumulate: k0 > 0,
                        zeros: Product::NONE,
                        shifts: Product::NONE,
                    };
                    if k1 == groups {
                        (tile.zeros, tile.shifts) = rhs.corrections(scratch, i, j);
                    }
                    // SAFETY: the tile lies in the part; a tile that is narrower than a panel
                    // works in `edge`. The instruction set is that of the packed operand, and
                    // the corrections are padded to whole panels.
                    unsafe {
                        if have == width {
                            (kernel.tile)(&tile);
                            continue;
                        }
                        (tile.c, tile.c_row) = (edge.as_mut_ptr(), width);
                        for r in 0..if k0 > 0 { tile.rows } else { 0 } {
                            let from = to.add(r * c_row);
                            std::ptr::copy_nonoverlapping(from, tile.c.add(r * width), have);
                        }
                        (kernel.tile)(&tile);
                        for r in 0..tile.rows {
                            let from = tile.c.add(r * width);
                            std::ptr::copy_nonoverlapping(from, to.add(r * c_row), have);
                        }
                    }
                }
            }
            k0 = k1;
            if k0 >= groups {
                break;
            }
        }
    }
}
