//! One row times a matrix, or a matrix times one column: bound by memory, so nothing is packed.

use super::bf16::PackedBf16;
use super::kernel::{Finish, Kernel, MAX_COLS, Tile};
use super::pack::PackedB;
use super::{Bias, Epilogue, Lhs, MatMut, MatRef, Rhs};
use crate::kernels::Isa;
use crate::kernels::parallel::{Parallel, SharedOut, for_each_part, split_range};
use std::cell::Cell;
use std::ops::Range;

/// Outputs computed at a time: their sums stay in the first-level cache.
const CHUNK: usize = 1024;

thread_local! {
    static VECTOR: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// How the matrix is read.
#[derive(Clone, Copy)]
enum Matrix<'a> {
    Panels(&'a PackedB),
    Bf16(&'a PackedBf16),
    /// Output i is the dot product of row i.
    Dot(MatRef<'a>),
    /// The outputs are the sum of scaled rows.
    Add(MatRef<'a>),
}

/// A product whose output is a single row or a single column.
#[derive(Clone, Copy)]
pub(super) struct Job<'a> {
    matrix: Matrix<'a>,
    /// The vector: element p is `x[p * x_stride]`.
    x: &'a [f32],
    x_stride: usize,
    k: usize,
    len: usize,
    column: bool,
}

impl<'a> Job<'a> {
    /// The job for these operands, unless k is 0 or the matrix is laid out for the tiles only. One of the
    /// operands must have a single row or a single column; shapes have been checked.
    pub(super) fn new(isa: Isa, lhs: Lhs<'a>, rhs: Rhs<'a>) -> Option<Self> {
        let ((m, k), (_, n)) = (lhs.shape(), rhs.shape());
        if k == 0 {
            return None;
        }
        let (matrix, x, x_stride) = if m == 1 {
            let (x, stride) = match lhs {
                Lhs::Plain(a) => (a.data(), a.col_stride()),
                Lhs::Packed(a) => (a.data(), 1),
            };
            let matrix = match rhs {
                Rhs::Packed(b) => Matrix::Panels(b),
                Rhs::Plain(b) if b.col_stride() == 1 => Matrix::Add(b),
                Rhs::Plain(b) if b.row_stride() == 1 => Matrix::Dot(b.transposed()),
                Rhs::Plain(_) | Rhs::Bf16(_) => return None,
            };
            (matrix, x, stride)
        } else {
            let (x, stride) = match rhs {
                Rhs::Plain(b) => (b.data(), b.row_stride()),
                Rhs::Packed(b) => (b.data(), Kernel::of(isa).cols),
                Rhs::Bf16(_) => return None,
            };
            let matrix = match lhs {
                Lhs::Plain(a) if a.col_stride() == 1 => Matrix::Dot(a),
                Lhs::Plain(a) if a.row_stride() == 1 => Matrix::Add(a.transposed()),
                _ => return None,
            };
            (matrix, x, stride)
        };
        let (len, column) = if m == 1 { (n, false) } else { (m, true) };
        Some(Self { matrix, x, x_stride, k, len, column })
    }

    /// The job for a row in the form that goes with this operand.
    pub(super) fn bf16(b: &'a PackedBf16, x: &'a [f32]) -> Self {
        let (matrix, k) = (Matrix::Bf16(b), x.len());
        Self { matrix, x, x_stride: 1, k, len: b.cols(), column: false }
    }

    /// Computes the product into `out`, whose shape has been checked, as have the operands of
    /// the epilogue.
    pub(super) fn run(
        &self,
        out: &mut MatMut<'_>,
        epilogue: &Epilogue<'_>,
        kernel: &'static Kernel,
        par: &dyn Parallel,
    ) {
        let mut gathered = VECTOR.take();
        let x = if self.x_stride == 1 {
            &self.x[..self.k]
        } else {
            gathered.clear();
            gathered.extend((0..self.k).map(|p| self.x[p * self.x_stride]));
            &gathered[..]
        };
        let step = if self.column { out.row_stride() } else { 1 };
        let c = SharedOut::new(out.data_mut());
        let parts = par.threads().min(self.len.div_ceil(kernel.cols)).max(1);
        for_each_part(par, parts, &|i| {
            let range = split_range(self.len, parts, i, kernel.cols);
            // SAFETY: `out` holds `len` elements `step` apart, parts are disjoint and start at
            // panels.
            unsafe { self.part(x, c.ptr(), step, range, epilogue, kernel) };
        });
        VECTOR.set(gathered);
    }

    /// # Safety
    /// `c` is valid for `range`, elements `step` apart; `range` starts at a multiple of the
    /// kernel's columns and lies within `len`; the CPU has the kernel's instructions.
    unsafe fn part(
        &self,
        x: &[f32],
        c: *mut f32,
        step: usize,
        range: Range<usize>,
        epilogue: &Epilogue<'_>,
        kernel: &Kernel,
    ) {
        const { assert!(CHUNK.is_multiple_of(MAX_COLS)) };
        let mut sums = [0.0f32; CHUNK];
        let mut at = range.start;
        while at < range.end {
            let n = CHUNK.min(range.end - at);
            // SAFETY: columns or rows at..at+n lie within the matrix, which holds k by len.
            unsafe {
                let v = &kernel.vector;
                match self.matrix {
                    Matrix::Panels(b) => {
                        let first = b.data().as_ptr().wrapping_add(at * self.k);
                        let n = n.next_multiple_of(kernel.cols);
                        (v.panels)(first, self.k * kernel.cols, x, &mut sums[..n]);
                    }
                    Matrix::Bf16(b) => b.sums(at, x, &mut sums[..n.next_multiple_of(kernel.cols)]),
                    Matrix::Dot(m) => {
                        let first = m.data().as_ptr().wrapping_add(at * m.row_stride());
                        (v.dot_rows)(first, m.row_stride(), x, &mut sums[..n]);
                    }
                    Matrix::Add(m) => {
                        let first = m.data().as_ptr().wrapping_add(at);
                        (v.add_rows)(first, m.row_stride(), x, &mut sums[..n]);
                    }
                }
                self.finish(&mut sums, at, n, step, epilogue, kernel);
                for (i, &s) in sums[..n].iter().enumerate() {
                    *c.add((at + i) * step) = s;
                }
            }
            at += n;
        }
    }

    /// Applies the epilogue to the sums of outputs `at..at + n`.
    ///
    /// # Safety
    /// The CPU has the kernel's instructions.
    unsafe fn finish(
        &self,
        sums: &mut [f32; CHUNK],
        at: usize,
        n: usize,
        step: usize,
        epilogue: &Epilogue<'_>,
        kernel: &Kernel,
    ) {
        let along = match (epilogue.bias, self.column) {
            (Bias::PerColumn(b), false) | (Bias::PerRow(b), true) => Some(b),
            _ => None,
        };
        let one = match (epilogue.bias, self.column) {
            (Bias::PerRow(b), false) | (Bias::PerColumn(b), true) => b.as_ptr(),
            _ => std::ptr::null(),
        };
        for i in (0..n).step_by(kernel.cols) {
            let width = kernel.cols.min(n - i);
            let (mut bias, mut residual) = ([0.0f32; MAX_COLS], [0.0f32; MAX_COLS]);
            let mut f = Finish { row_bias: one, ..Finish::new(epilogue) };
            if let Some(b) = along {
                bias[..width].copy_from_slice(&b[at + i..][..width]);
                f.col_bias = bias.as_ptr();
            }
            if let Some(r) = epilogue.residual {
                let r_step = if self.column { r.row_stride } else { 1 };
                for (l, o) in residual[..width].iter_mut().enumerate() {
                    *o = r.data[(at + i + l) * r_step];
                }
                f.residual = residual.as_ptr();
            }
            let tile = Tile {
                rows: 1,
                k: 0,
                a: sums.as_ptr(),
                a_row: 1,
                a_k: 1,
                a_next: sums.as_ptr(),
                b: sums.as_ptr(),
                b_k: 0,
                b_next: sums.as_ptr(),
                b_at: None,
                c: sums[i..].as_mut_ptr(),
                c_row: step,
                narrow: false,
                accumulate: true,
                finish: Some(f),
            };
            // SAFETY: the sums hold a whole tile from i on, the buffers one row of it.
            unsafe { (kernel.tile)(&tile) };
        }
    }
}
