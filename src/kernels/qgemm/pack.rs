//! Operands as groups of depths.

use super::kernel::{Kernel, Product};
use super::{Bytes, QMatRef, Scratch, check_zero_points};
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};
use crate::kernels::error::checked_product;
use crate::kernels::isa::Kind;
use crate::kernels::{Isa, KernelError};
use std::ops::Range;

/// A constant right operand, packed into panels of columns of groups of depths.
#[derive(Clone, Debug)]
pub struct PackedQ {
    isa: Isa,
    k: usize,
    n: usize,
    data: Vec<i8>,
    /// Zero point of each column of `data`, which holds unsigned elements less 128; padded to
    /// whole panels. Empty where all are 0.
    zero: Vec<i32>,
    /// The sum of each column of `data`, padded alike. Empty where the kernel does not take bytes
    /// with their zero points.
    sums: Vec<i32>,
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
        let Kernel { cols, group, bytes, .. } = *Kernel::of(isa);
        let groups = k.div_ceil(group);
        let size = checked_product("rhs", &[n.div_ceil(cols), groups, group * cols])?;
        let mut data = vec![0i8; size];
        let shift = if matches!(b.data, Bytes::Unsigned(_)) { 128 } else { 0 };
        let mut sums = vec![0i32; if bytes { n.next_multiple_of(cols) } else { 0 }];
        for p in 0..k {
            let mut to = p / group * group * cols + p % group;
            for j in 0..n {
                let x = b.at(p, j) - shift;
                data[to + j % cols * group] = x as i8;
                if bytes {
                    sums[j] = sums[j].wrapping_add(x);
                }
                if j % cols == cols - 1 {
                    to += groups * group * cols;
                }
            }
        }
        let of = |j: usize| zero[if zero.len() == 1 { 0 } else { j }] - shift;
        let mut padded = Vec::new();
        if (0..n).any(|j| of(j) != 0) {
            padded.extend((0..n).map(of));
            padded.resize(n.next_multiple_of(cols), 0);
        }
        let zero = padded;
        Ok(Self { isa, k, n, data, zero, sums })
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
        self.data.len() + (self.zero.len() + self.sums.len()) * 4
    }

    /// The instruction set it was packed for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    pub(super) fn data(&self) -> &[i8] {
        &self.data
    }

    /// Whether a column has a zero point other than 0.
    fn has_zero_points(&self) -> bool {
        !self.zero.is_empty()
    }

    /// What is to be taken off the sums of the rows from `i` of the packed ones on and of the
    /// columns of the panel that starts at `j`: for the zero points of B, and for those of A.
    pub(super) fn corrections(&self, rows: &Scratch, i: usize, j: usize) -> (Product, Product) {
        let product = |rows: &[i32], cols: &[i32]| match rows.is_empty() || cols.is_empty() {
            true => Product::NONE,
            false => Product { rows: rows[i..].as_ptr(), cols: cols[j..].as_ptr() },
        };
        (product(&rows.sums, &self.zero), product(&rows.shifts, &self.sums))
    }
}

/// Lays out `rows` of `a` as groups of depths, one row after the other, each padded to whole groups:
/// where the first one is, and the bytes from one to the next. Also makes what is needed to correct
/// the sums.
pub(super) fn rows(
    b: &PackedQ,
    a: &QMatRef<'_>,
    zero: &[i32],
    rows: Range<usize>,
    scratch: &mut Scratch,
) -> (*const u8, usize) {
    scratch.sums.clear();
    scratch.shifts.clear();
    let kernel = Kernel::of(b.isa);
    let groups = a.cols.div_ceil(kernel.group);
    let need = rows.len() * groups;
    let in_place = match a.data {
        // Nothing reads beyond the last depth.
        Bytes::Unsigned(u) if kernel.bytes && a.col_stride == 1 && a.cols.is_multiple_of(4) => {
            Some(u)
        }
        _ => None,
    };
    if in_place.is_none() && scratch.groups.len() < need {
        scratch.groups.resize(need, 0);
    }
    if !kernel.bytes {
        let wide = bytemuck::cast_slice_mut(&mut scratch.groups[..need]);
        widen_rows(b, a, zero, rows, wide, &mut scratch.sums);
        return (scratch.groups.as_ptr().cast(), groups * 4);
    }
    let raised = if matches!(a.data, Bytes::Signed(_)) { 128 } else { 0 };
    scratch.shifts.extend(rows.clone().map(|i| zero[if zero.len() == 1 { 0 } else { i }] + raised));
    if scratch.shifts.iter().all(|z| *z == 0) {
        scratch.shifts.clear();
    }
    let (all, stride): (&[u8], usize) = match in_place {
        Some(u) => (&u[rows.start * a.row_stride..], a.row_stride),
        None => {
            let bytes = bytemuck::cast_slice_mut(&mut scratch.groups[..need]);
            byte_rows(b.isa, a, rows.clone(), bytes);
            (bytes, groups * 4)
        }
    };
    if b.has_zero_points() {
        for i in 0..rows.len() {
            let row = &all[i * stride..][..a.cols];
            let shift = scratch.shifts.get(i).map_or(0, |z| z.wrapping_mul(a.cols as i32));
            scratch.sums.push(byte_sum(b.isa, row).wrapping_sub(shift));
        }
    }
    (all.as_ptr(), stride)
}

/// Rows of unsigned bytes, 128 more where they were signed.
fn byte_rows(isa: Isa, a: &QMatRef<'_>, rows: Range<usize>, out: &mut [u8]) {
    let k = a.cols;
    for (i, out) in rows.zip(out.chunks_exact_mut(k.next_multiple_of(4))) {
        let start = i * a.row_stride;
        out[k..].fill(0);
        match (a.data, isa.kind()) {
            (Bytes::Unsigned(u), _) if a.col_stride == 1 => {
                out[..k].copy_from_slice(&u[start..][..k]);
            }
            #[cfg(target_arch = "x86_64")]
            (Bytes::Signed(s), Kind::Avx512) if a.col_stride == 1 => {
                // SAFETY: an Isa of this kind exists only where the CPU has AVX-512.
                unsafe { avx512::raise(&s[start..][..k], &mut out[..k]) }
            }
            (data, _) => {
                let raised = if matches!(data, Bytes::Signed(_)) { 128 } else { 0 };
                for (p, o) in out[..k].iter_mut().enumerate() {
                    *o = (a.at(i, p) + raised) as u8;
                }
            }
        }
    }
}

fn byte_sum(isa: Isa, row: &[u8]) -> i32 {
    match isa.kind() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this kind exists only where the CPU has AVX-512.
        Kind::Avx512 => unsafe { avx512::sum(row) },
        _ => row.iter().fold(0i32, |s, x| s.wrapping_add(i32::from(*x))),
    }
}

/// Widens `rows` of `a` less their zero points. Also sums them where columns of `b` have zero points.
fn widen_rows(
    b: &PackedQ,
    a: &QMatRef<'_>,
    zero: &[i32],
    rows: Range<usize>,
    wide: &mut [i16],
    sums: &mut Vec<i32>,
) {
    let k = a.cols;
    for (i, out) in rows.zip(wide.chunks_exact_mut(k.next_multiple_of(2))) {
        // Within the range of the elements, or more where unsigned: no difference overflows.
        let z = zero[if zero.len() == 1 { 0 } else { i }] as i16;
        let start = i * a.row_stride;
        out[k..].fill(0);
        match (a.data, b.isa().kind()) {
            #[cfg(target_arch = "x86_64")]
            (Bytes::Signed(s), Kind::Avx2 | Kind::Avx512) if a.col_stride == 1 => {
                // SAFETY: an Isa of this kind exists only where the CPU has AVX2.
                unsafe { avx2::widen(&s[start..][..k], z, &mut out[..k]) }
            }
            #[cfg(target_arch = "x86_64")]
            (Bytes::Unsigned(u), Kind::Avx2 | Kind::Avx512) if a.col_stride == 1 => {
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
            sums.push(match b.isa().kind() {
                Kind::Scalar => sum(out),
                #[cfg(target_arch = "x86_64")]
                // SAFETY: as above.
                Kind::Avx2 | Kind::Avx512 => unsafe { avx2::sum(out) },
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
