//! Numbers to 8-bit integers and back, by a scale and a zero point.
//!
//! Every path gives the bits of the portable one: to the nearest number, the even one of two,
//! then saturated; NaN gives the lowest.

#[cfg(target_arch = "x86_64")]
pub(in crate::kernels) mod avx2;

#[cfg(test)]
mod tests;

use super::error::{KernelError, check_len};
use super::isa::{Isa, Kind};

/// An 8-bit integer.
pub trait Byte: Copy + Into<i32> + Send + Sync + sealed::Sealed + 'static {
    /// The least and the greatest.
    const RANGE: (f32, f32);

    /// The integer that a whole number in the range is.
    fn from_whole(v: f32) -> Self;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for u8 {}
    impl Sealed for i8 {}
}

impl Byte for u8 {
    const RANGE: (f32, f32) = (0.0, 255.0);

    #[inline(always)]
    fn from_whole(v: f32) -> Self {
        v as Self
    }
}

impl Byte for i8 {
    const RANGE: (f32, f32) = (-128.0, 127.0);

    #[inline(always)]
    fn from_whole(v: f32) -> Self {
        v as Self
    }
}

/// One value, or one for each element of a row.
#[derive(Clone, Copy, Debug)]
pub enum Spread<'a> {
    /// The same for every element.
    One(f32),
    /// That of each element.
    Each(&'a [f32]),
}

impl Spread<'_> {
    /// That of element `i`.
    ///
    /// # Panics
    /// Where there are fewer.
    pub(crate) fn at(&self, i: usize) -> f32 {
        match self {
            Self::One(v) => *v,
            Self::Each(v) => v[i],
        }
    }

    fn check(&self, operand: &'static str, len: usize) -> Result<(), KernelError> {
        match self {
            Self::One(_) => Ok(()),
            Self::Each(v) => check_len(operand, v.len(), len),
        }
    }
}

/// The nearest whole number, the even one of two; beyond 2^20 the nearest of these ends, and for
/// NaN the lower one.
#[inline(always)]
pub(crate) fn round_even(x: f32) -> f32 {
    const END: f32 = (1 << 20) as f32;
    // Adding 1.5 * 2^23 leaves no bits for the fraction.
    const SHIFT: f32 = 12_582_912.0;
    let x = if x > -END { x } else { -END };
    let x = if x < END { x } else { END };
    (x + SHIFT) - SHIFT
}

/// `x / scale` to the nearest whole number, plus `zero`, within `range`.
#[inline(always)]
pub(crate) fn quantize_one(x: f32, scale: f32, zero: f32, range: (f32, f32)) -> f32 {
    let v = round_even(x / scale) + zero;
    let v = if v > range.0 { v } else { range.0 };
    if v < range.1 { v } else { range.1 }
}

/// `saturate(round(x / scale) + zero)` of each element.
///
/// `zero` holds whole numbers in the range of the integers; other values are taken as the nearest
/// ones or are saturated.
///
/// # Errors
/// When `scale`, `zero` or `out` is shorter than `x`.
///
/// ```
/// use brigade::kernels::{Spread, quantize};
/// let mut out = [0u8; 3];
/// quantize(&[1.0, 0.25, 1e9], Spread::One(0.5), Spread::One(128.0), &mut out)?;
/// assert_eq!(out, [130, 128, 255]);
/// # Ok::<(), brigade::kernels::KernelError>(())
/// ```
pub fn quantize<Q: Byte>(
    x: &[f32],
    scale: Spread<'_>,
    zero: Spread<'_>,
    out: &mut [Q],
) -> Result<(), KernelError> {
    quantize_on(Isa::best(), x, scale, zero, out)
}

fn quantize_on<Q: Byte>(
    isa: Isa,
    x: &[f32],
    scale: Spread<'_>,
    zero: Spread<'_>,
    out: &mut [Q],
) -> Result<(), KernelError> {
    scale.check("scale", x.len())?;
    zero.check("zero", x.len())?;
    check_len("out", out.len(), x.len())?;
    let out = &mut out[..x.len()];
    let mut done = 0;
    match isa.kind() {
        Kind::Scalar => {}
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this kind exists only where the CPU has AVX2; lengths are checked.
        Kind::Avx2 | Kind::Avx512 => done = unsafe { avx2::quantize(x, scale, zero, out) },
    }
    for i in done..x.len() {
        out[i] = Q::from_whole(quantize_one(x[i], scale.at(i), zero.at(i), Q::RANGE));
    }
    Ok(())
}

/// `(x - zero) * scale` of each element; `zero` holds whole numbers below 2^23.
///
/// # Errors
/// When `scale`, `zero` or `out` is shorter than `x`.
///
/// ```
/// use brigade::kernels::{Spread, dequantize};
/// let mut out = [0.0; 2];
/// dequantize(&[-128i8, 3], Spread::One(0.5), Spread::One(2.0), &mut out)?;
/// assert_eq!(out, [-65.0, 0.5]);
/// # Ok::<(), brigade::kernels::KernelError>(())
/// ```
pub fn dequantize<Q: Byte>(
    x: &[Q],
    scale: Spread<'_>,
    zero: Spread<'_>,
    out: &mut [f32],
) -> Result<(), KernelError> {
    dequantize_on(Isa::best(), x, scale, zero, out)
}

fn dequantize_on<Q: Byte>(
    isa: Isa,
    x: &[Q],
    scale: Spread<'_>,
    zero: Spread<'_>,
    out: &mut [f32],
) -> Result<(), KernelError> {
    scale.check("scale", x.len())?;
    zero.check("zero", x.len())?;
    check_len("out", out.len(), x.len())?;
    let out = &mut out[..x.len()];
    let mut done = 0;
    match isa.kind() {
        Kind::Scalar => {}
        #[cfg(target_arch = "x86_64")]
        // SAFETY: an Isa of this kind exists only where the CPU has AVX2; lengths are checked.
        Kind::Avx2 | Kind::Avx512 => done = unsafe { avx2::dequantize(x, scale, zero, out) },
    }
    for i in done..x.len() {
        out[i] = (Into::<i32>::into(x[i]) as f32 - zero.at(i)) * scale.at(i);
    }
    Ok(())
}
