//! Operands as pairs of depths.

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::{Bytes, COLS, QMatRef, Scratch, check_zero_points};
use crate::kernels::error::checked_product;
use crate::kernels::isa::Kind;
use crate::kernels::{Isa, KernelError};
use std::ops::Range;

/// A constant right operand, packed into panels of 16 columns of pairs.
#[derive(Clone, Debug)]
pub struct PackedQ {
    isa: Isa,
    k: usize,
    n: usize,
    data: Vec<i8>,
    /// Zero point of each column of `data`, which holds unsigned elements less 128; padded to
    /// whole panels. Empty where all are 0.
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
        let of = |j: usize| zero[if zero.len() == 1 { 0 } else { j }] - shift;
        let mut padded = Vec::new();
        if (0..n).any(|j| of(j) != 0) {
            padded.extend((0..n).map(of));
            padded.resize(n.next_multiple_of(COLS), 0);
        }
        let zero = padded;
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

    /// Whether a column has a zero point other than 0.
    pub(super) fn has_zero_points(&self) -> bool {
        !self.zero.is_empty()
    }

    pub(super) fn zero_points(&self) -> &[i32] {
        &self.zero
    }
}

/// Widens `rows` of `a` less their zero points, one after the other, each padded to whole pairs.
/// Also sums them where columns of `b` have zero points.
pub(super) fn pack_rows(
    b: &PackedQ,
    a: &QMatRef<'_>,
    zero: &[i32],
    rows: Range<usize>,
    scratch: &mut Scratch,
) {
    let (k, pairs) = (a.cols, a.cols.div_ceil(2));
    scratch.sums.clear();
    let need = rows.len() * pairs;
    if scratch.pairs.len() < need {
        scratch.pairs.resize(need, 0);
    }
    let wide: &mut [i16] = bytemuck::cast_slice_mut(&mut scratch.pairs[..need]);
    for (i, out) in rows.zip(wide.chunks_exact_mut(2 * pairs)) {
        // Within the range of the elements, or more where unsigned: no difference overflows.
        let z = zero[if zero.len() == 1 { 0 } else { i }] as i16;
        let start = i * a.row_stride;
        out[k..].fill(0);
        match (a.data, b.isa().kind()) {
            #[cfg(target_arch = "x86_64")]
            (Bytes::Signed(s), Kind::Avx2) if a.col_stride == 1 => {
                // SAFETY: an Isa of this kind exists only where the CPU has AVX2.
                unsafe { avx2::widen(&s[start..][..k], z, &mut out[..k]) }
            }
            #[cfg(target_arch = "x86_64")]
            (Bytes::Unsigned(u), Kind::Avx2) if a.col_stride == 1 => {
                // SAFETY: as above.
                unsafe { avx2::widen(&u[start..][..k], z, &mut out[..k]) }
            }
            (Bytes::Signed(s), _) if a.col_stride == 1 => {
                widen(&s[start..][..k], z, &mut out[..k]);
            }
            (Bytes::Unsigned(u), _) if a.col_stride == 1 => {
                widen(&u[start..][..k], z, &mut out[..k]);
            }
            _ => {
                for (p, o) in out[..k].iter_mut().enumerate() {
                    *o = a.at(i, p) as i16 - z;
                }
            }
        }
        if b.has_zero_points() {
            scratch.sums.push(match b.isa().kind() {
                Kind::Scalar => sum(out),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                Kind::Avx2 => unsafe { avx2::sum(out) },
            });
        }
    }
}

#[inline(always)]
pub(super) fn widen<T: Copy + Into<i16>>(row: &[T], zero: i16, out: &mut [i16]) {
    for (o, &x) in out.iter_mut().zip(row) {
        *o = x.into() - zero;
    }
}

#[inline(always)]
pub(super) fn sum(row: &[i16]) -> i32 {
    row.iter().fold(0i32, |s, x| s.wrapping_add(i32::from(*x)))
}
