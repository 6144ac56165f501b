//! Operands as pairs of depths.

use super::{Bytes, COLS, QMatRef, ROWS, check_zero_points};
use crate::kernels::error::checked_product;
use crate::kernels::{Isa, KernelError};
use std::ops::Range;

/// A constant right operand, packed into panels of 16 columns of pairs.
#[derive(Clone, Debug)]
pub struct PackedQ {
    isa: Isa,
    k: usize,
    n: usize,
    data: Vec<i8>,
    /// Zero point of each column of `data`, which holds unsigned elements less 128.
    zero: Vec<i32>,
}

impl PackedQ {
    /// Packs a k × n matrix for [`Isa::best`]; `zero` holds one zero point or one per column.
    ///
    /// # Errors
    /// When `zero` has another length or a value outside the range of the elements, or sizes
    /// overflow.
    pub fn new(b: QMatRef<'_>, zero: &[i32]) -> Result<Self, KernelError> {
        Self::for_isa(Isa::best(), b, zero)
    }

    /// Packs for a stated instruction set.
    ///
    /// # Errors
    /// As for [`PackedQ::new`].
    pub fn for_isa(isa: Isa, b: QMatRef<'_>, zero: &[i32]) -> Result<Self, KernelError> {
        let (k, n) = (b.rows, b.cols);
        check_zero_points("rhs_zero", zero, n, &b.data)?;
        let pairs = k.div_ceil(2);
        let mut data = vec![0i8; checked_product("rhs", &[n.div_ceil(COLS), pairs, 2 * COLS])?];
        let shift = if matches!(b.data, Bytes::Unsigned(_)) { 128 } else { 0 };
        for p in 0..k {
            let mut to = p / 2 * 2 * COLS + p % 2;
            for j in 0..n {
                data[to + j % COLS * 2] = (b.at(p, j) - shift) as i8;
                if j % COLS == COLS - 1 {
                    to += pairs * 2 * COLS;
                }
            }
        }
        let zero = (0..n).map(|j| zero[if zero.len() == 1 { 0 } else { j }] - shift).collect();
        Ok(Self { isa, k, n, data, zero })
    }

    /// Depth k.
    pub fn depth(&self) -> usize {
        self.k
    }

    /// Columns n.
    pub fn cols(&self) -> usize {
        self.n
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.data.len() + self.zero.len() * 4
    }

    /// The instruction set it was packed for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    pub(super) fn data(&self) -> &[i8] {
        &self.data
    }

    pub(super) fn zero_points(&self) -> &[i32] {
        &self.zero
    }
}

/// Two 16-bit integers in one 32-bit one, the first below.
fn pair(lo: i32, hi: i32) -> i32 {
    lo & 0xffff | hi << 16
}

/// Packs `rows` of `a`, less their zero points, tile after tile of [`ROWS`] rows: for each pair
/// of depths, the rows side by side. Also sums the rows.
pub(super) fn pack_rows(
    a: &QMatRef<'_>,
    zero: &[i32],
    rows: Range<usize>,
    out: &mut Vec<i32>,
    sums: &mut Vec<i32>,
) {
    let (k, pairs) = (a.cols, a.cols.div_ceil(2));
    out.clear();
    out.resize(rows.len() * pairs, 0);
    sums.clear();
    for i in rows.clone() {
        let z = zero[if zero.len() == 1 { 0 } else { i }];
        let tile = (i - rows.start) / ROWS * ROWS;
        let height = ROWS.min(rows.len() - tile);
        let lane = i - rows.start - tile;
        let to = out[tile * pairs..][..height * pairs][lane..].iter_mut().step_by(height);
        let start = i * a.row_stride;
        let sum = match a.data {
            Bytes::Signed(s) if a.col_stride == 1 => pack_row(&s[start..][..k], z, to),
            Bytes::Unsigned(u) if a.col_stride == 1 => pack_row(&u[start..][..k], z, to),
            _ => {
                let mut sum = 0i32;
                for (p, o) in to.enumerate() {
                    let lo = a.at(i, 2 * p) - z;
                    let hi = if 2 * p + 1 < k { a.at(i, 2 * p + 1) - z } else { 0 };
                    *o = pair(lo, hi);
                    sum = sum.wrapping_add(lo + hi);
                }
                sum
            }
        };
        sums.push(sum);
    }
}

fn pack_row<'a, T: Copy + Into<i32>>(
    row: &[T],
    zero: i32,
    mut to: impl Iterator<Item = &'a mut i32>,
) -> i32 {
    let mut sum = 0i32;
    let (pairs, last) = row.as_chunks::<2>();
    for (&[lo, hi], o) in pairs.iter().zip(&mut to) {
        let (lo, hi) = (lo.into() - zero, hi.into() - zero);
        *o = pair(lo, hi);
        sum = sum.wrapping_add(lo + hi);
    }
    if let (Some(&lo), Some(o)) = (last.first(), to.next()) {
        *o = pair(lo.into() - zero, 0);
        sum = sum.wrapping_add(lo.into() - zero);
    }
    sum
}
