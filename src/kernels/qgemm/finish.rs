//! What happens to the sums of a product of 8-bit integers: scale, bias, rounding to a grid and
//! back, activation, rounding to bytes.

#[cfg(target_arch = "x86_64")]
use super::avx2_finish;
use super::kernel::Kernel;
use super::{PackedQ, QMatRef, qgemm};
use crate::kernels::error::{check_len, checked_product};
use crate::kernels::isa::{Isa, Kind};
use crate::kernels::parallel::{Parallel, Serial, SharedOut, for_each_part, split_range};
use crate::kernels::quantize::{Byte, quantize_one};
use crate::kernels::{Activation, KernelError, Spread};
use std::cell::Cell;
use std::sync::OnceLock;

/// The numbers that a quantised tensor can hold: `scale · (q - zero)` for each byte `q`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grid {
    /// Distance of neighbours.
    pub scale: f32,
    /// The byte that stands for 0.
    pub zero: i32,
    /// Whether bytes are -128 to 127 instead of 0 to 255.
    pub signed: bool,
}

impl Grid {
    pub(super) fn range(&self) -> (f32, f32) {
        if self.signed { i8::RANGE } else { u8::RANGE }
    }

    /// The byte nearest to `x`.
    fn nearest(&self, x: f32) -> f32 {
        quantize_one(x, self.scale, self.zero as f32, self.range())
    }
}

/// What is done to each sum `s` of column `j`: `act(grid(scale[j] · s + bias[j]) + addend[j])`,
/// where `grid` rounds to the nearest number of a grid.
#[derive(Clone, Copy, Debug)]
pub struct QEpilogue<'a> {
    /// Product of the scales of both operands.
    pub scale: Spread<'a>,
    /// Added before rounding.
    pub bias: Option<&'a [f32]>,
    /// What is rounded to.
    pub grid: Option<Grid>,
    /// Added after rounding.
    pub addend: Option<&'a [f32]>,
    /// Applied last.
    pub activation: Activation,
}

/// Where a product of 8-bit integers goes, row after row.
#[derive(Debug)]
pub enum QOut<'a> {
    /// As it is.
    Floats(&'a mut [f32]),
    /// Rounded to the bytes of an unsigned grid.
    Unsigned(&'a mut [u8], Grid),
    /// Rounded to the bytes of a signed grid.
    Signed(&'a mut [i8], Grid),
}

/// Sums that are made before they are finished, at most: they stay in the second-level cache.
const BLOCK_SUMS: usize = 1 << 16;

thread_local! {
    static SUMS: Cell<Vec<i32>> = Cell::default();
}

/// The product of [`qgemm`], finished: m rows of n elements in `out`.
///
/// # Errors
/// As [`qgemm`], and when a slice of the epilogue is too short or a grid has the other
/// signedness than `out`. `out` is then untouched.
///
/// ```
/// use brigade::kernels::{
///     Activation, Bytes, Grid, PackedQ, QEpilogue, QMatRef, QOut, Serial, Spread, qgemm_into,
/// };
/// let a = QMatRef::row_major(Bytes::Unsigned(&[130, 126]), 1, 2)?;
/// let b = PackedQ::new(QMatRef::row_major(Bytes::Signed(&[5, -7, 1, 1]), 2, 2)?, &[0])?;
/// let epilogue = QEpilogue {
///     scale: Spread::One(0.5),
///     bias: Some(&[0.0, 1.0]),
///     grid: None,
///     addend: None,
///     activation: Activation::Relu,
/// };
/// let mut out = [0; 2];
/// let grid = Grid { scale: 2.0, zero: 10, signed: false };
/// qgemm_into(a, &[128], &b, &epilogue, QOut::Unsigned(&mut out, grid), &Serial)?;
/// assert_eq!(out, [12, 10]);
/// # Ok::<(), brigade::kernels::KernelError>(())
/// ```
pub fn qgemm_into(
    lhs: QMatRef<'_>,
    lhs_zero: &[i32],
    rhs: &PackedQ,
    epilogue: &QEpilogue<'_>,
    out: QOut<'_>,
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    let (m, n) = (lhs.rows, rhs.cols());
    if let Spread::Each(s) = epilogue.scale {
        check_len("scale", s.len(), n)?;
    }
    check_len("bias", epilogue.bias.map_or(n, <[f32]>::len), n)?;
    check_len("addend", epilogue.addend.map_or(n, <[f32]>::len), n)?;
    let need = checked_product("out", &[m, n])?;
    let problem = "has the other signedness than the output";
    let wrong = KernelError::Invalid { operand: "grid", problem };
    let isa = rhs.isa();
    let (bytes, grid): (&mut [u8], Grid) = match out {
        QOut::Floats(out) => {
            check_len("out", out.len(), need)?;
            let out = &mut out[..need];
            return blocks(lhs, lhs_zero, rhs, out, par, &|sums, out| {
                row_floats(isa, epilogue, sums, out);
            });
        }
        QOut::Unsigned(_, g) if g.signed => return Err(wrong),
        QOut::Signed(_, g) if !g.signed => return Err(wrong),
        QOut::Unsigned(out, g) => (out, g),
        QOut::Signed(out, g) => (bytemuck::cast_slice_mut(out), g),
    };
    check_len("out", bytes.len(), need)?;
    blocks(lhs, lhs_zero, rhs, &mut bytes[..need], par, &|sums, out| {
        row_bytes(isa, epilogue, grid, sums, out);
    })
}

/// Makes the sums of a few rows at a time and finishes them while they are near.
fn blocks<T: Send>(
    lhs: QMatRef<'_>,
    lhs_zero: &[i32],
    rhs: &PackedQ,
    out: &mut [T],
    par: &dyn Parallel,
    finish: &(dyn Fn(&[i32], &mut [T]) + Sync),
) -> Result<(), KernelError> {
    let (m, n) = (lhs.rows, rhs.cols());
    // Everything that can be wrong is found before anything is written.
    super::check(&lhs, lhs_zero, rhs)?;
    if m == 0 || n == 0 {
        return Ok(());
    }
    let failed = OnceLock::new();
    let height = Kernel::of(rhs.isa()).rows;
    let parts = par.threads().min(m.div_ceil(height)).max(1);
    let to = SharedOut::new(out);
    for_each_part(par, parts, &|i| {
        let rows = split_range(m, parts, i, height);
        let mut sums = SUMS.take();
        let step = (BLOCK_SUMS / n / height).clamp(1, 16) * height;
        for r0 in rows.clone().step_by(step) {
            let r1 = rows.end.min(r0 + step);
            sums.resize(sums.len().max((r1 - r0) * n), 0);
            let zero = if lhs_zero.len() == 1 { lhs_zero } else { &lhs_zero[r0..r1] };
            let sums = &mut sums[..(r1 - r0) * n];
            if let Err(e) = qgemm(lhs.rows(r0..r1), zero, rhs, sums, n, &Serial) {
                failed.get_or_init(|| e);
                break;
            }
            for (r, sums) in sums.chunks_exact(n).enumerate() {
                // SAFETY: `out` holds m rows of n elements; parts have rows of their own.
                let row = unsafe { std::slice::from_raw_parts_mut(to.ptr().add((r0 + r) * n), n) };
                finish(sums, row);
            }
        }
        SUMS.set(sums);
    });
    failed.into_inner().map_or(Ok(()), Err)
}

/// A sum before it is rounded to bytes.
fn finished(e: &QEpilogue<'_>, j: usize, sum: i32) -> f32 {
    let mut x = sum as f32 * e.scale.at(j);
    if let Some(bias) = e.bias {
        x += bias[j];
    }
    if let Some(grid) = e.grid {
        x = (grid.nearest(x) - grid.zero as f32) * grid.scale;
    }
    if let Some(addend) = e.addend {
        x += addend[j];
    }
    e.activation.apply(x)
}

fn row_floats(isa: Isa, e: &QEpilogue<'_>, sums: &[i32], out: &mut [f32]) {
    match isa.kind() {
        Kind::Scalar => {
            for (j, (o, s)) in out.iter_mut().zip(sums).enumerate() {
                *o = finished(e, j, *s);
            }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this kind exists only where the CPU has AVX2; lengths are checked.
        Kind::Avx2 | Kind::Avx512 => unsafe { avx2_finish::row_floats(e, sums, out) },
    }
}

fn row_bytes(isa: Isa, e: &QEpilogue<'_>, grid: Grid, sums: &[i32], out: &mut [u8]) {
    match isa.kind() {
        Kind::Scalar => {
            for (j, (o, s)) in out.iter_mut().zip(sums).enumerate() {
                // Signed bytes by their bits.
                *o = grid.nearest(finished(e, j, *s)) as i32 as u8;
            }
        }
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Kind::Avx2 | Kind::Avx512 => unsafe { avx2_finish::row_bytes(e, grid, sums, out) },
    }
}
