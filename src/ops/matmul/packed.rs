//! A constant right operand, packed once.

use crate::error::{Result, bail};
use crate::kernels::{MatRef, PackedB, PackedBf16, Rhs};
use crate::ops::Precision;

/// A constant right operand in the precision of its products.
#[derive(Debug)]
pub(in crate::ops) enum Packed {
    F32(PackedB),
    Bf16(PackedBf16),
}

impl Packed {
    /// Packs a matrix for products in this precision.
    pub(in crate::ops) fn new(b: MatRef<'_>, precision: Precision) -> Result<Self> {
        Ok(match precision {
            Precision::F32 => Self::F32(PackedB::new(b)?),
            Precision::Bf16 => Self::Bf16(PackedBf16::new(b)?),
            other => bail!(Unsupported, "no product in {other} is implemented"),
        })
    }

    /// Rows k.
    pub(in crate::ops) fn depth(&self) -> usize {
        match self {
            Self::F32(b) => b.depth(),
            Self::Bf16(b) => b.depth(),
        }
    }

    /// Columns n.
    pub(in crate::ops) fn cols(&self) -> usize {
        match self {
            Self::F32(b) => b.cols(),
            Self::Bf16(b) => b.cols(),
        }
    }
}

impl<'a> From<&'a Packed> for Rhs<'a> {
    fn from(packed: &'a Packed) -> Self {
        match packed {
            Packed::F32(b) => Rhs::Packed(b),
            Packed::Bf16(b) => Rhs::Bf16(b),
        }
    }
}
