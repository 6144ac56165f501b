//! Eight rows of blocks side by side, so that the lanes of a vector are rows.
//!
//! The weights of eight rows are kept in registers of 32 bytes: byte 4 r + j of register g is
//! weight 4 g + j of row r, of 32 weights in a row. Two such registers share their nibbles where
//! weights have 4 bits; fifth and sixth bits lie in registers of their own.

use crate::kernels::BlockFormat;
use crate::kernels::blocks::{E2M1, IQ4, half_power};
use half::f16;

/// Rows that lie side by side.
pub(super) const LANES: usize = 8;

/// Formats that have a layout of their own here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Code {
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Iq4Nl,
    Mxfp4,
    Bits4,
    Bits8,
    Q4K,
    Q5K,
    Q6K,
}

impl Code {
    pub(super) fn of(format: &BlockFormat) -> Option<Self> {
        Some(match format.name {
            "Q4_0" => Self::Q4_0,
            "Q4_1" => Self::Q4_1,
            "Q5_0" => Self::Q5_0,
            "Q5_1" => Self::Q5_1,
            "Q8_0" => Self::Q8_0,
            "IQ4_NL" => Self::Iq4Nl,
            "MXFP4" => Self::Mxfp4,
            "4 bits" => Self::Bits4,
            "8 bits" => Self::Bits8,
            "Q4_K" => Self::Q4K,
            "Q5_K" => Self::Q5K,
            "Q6_K" => Self::Q6K,
            _ => return None,
        })
    }

    /// Whether blocks have 256 weights.
    pub(super) const fn is_k(self) -> bool {
        matches!(self, Self::Q4K | Self::Q5K | Self::Q6K)
    }

    /// Weights in a block of one row.
    pub(super) const fn weights(self) -> usize {
        if self.is_k() { 256 } else { 32 }
    }

    /// Whether the weights have a fifth bit in a register of its own.
    pub(super) const fn has_fifth(self) -> bool {
        matches!(self, Self::Q5_0 | Self::Q5_1 | Self::Q5K)
    }

    /// Whether an offset is added to each weight.
    pub(super) const fn has_minimum(self) -> bool {
        matches!(self, Self::Q4_1 | Self::Q5_1 | Self::Q4K | Self::Q5K)
    }

    /// What is taken from the unsigned numbers.
    pub(super) const fn offset(self) -> i32 {
        match self {
            Self::Q4_0 | Self::Bits4 => 8,
            Self::Q5_0 => 16,
            Self::Q6K => 32,
            Self::Mxfp4 => 12,
            _ => 0,
        }
    }

    /// Whether the weights, but for scale and minimum, are kept as signed bytes.
    pub(super) const fn is_signed(self) -> bool {
        matches!(self, Self::Q8_0 | Self::Bits8 | Self::Iq4Nl)
    }

    /// What is taken from the numbers that multiply, where signed ones are raised to unsigned, or not.
    pub(super) const fn raised(self, signed: bool) -> i32 {
        if signed && self.is_signed() { 128 } else { self.offset() }
    }

    /// Where the numbers of the 32 weights number `s` of eight rows begin in their block.
    pub(super) const fn codes_at(self, s: usize) -> usize {
        match self {
            Self::Q4_0 | Self::Q5_0 | Self::Q8_0 | Self::Iq4Nl => 2 * LANES,
            Self::Q4_1 | Self::Q5_1 | Self::Bits4 | Self::Bits8 => 4 * LANES,
            Self::Mxfp4 => LANES,
            Self::Q4K => 160 + 128 * s,
            Self::Q5K => 160 + 160 * s,
            Self::Q6K => 144 + 192 * s,
        }
    }

    /// Where the nibbles lie among the numbers of 32 weights.
    pub(super) const fn nibbles_at(self) -> usize {
        self.code_bytes().saturating_sub(128)
    }

    /// Bytes of 32 weights of eight rows, without their scales.
    const fn code_bytes(self) -> usize {
        match self {
            Self::Q8_0 | Self::Bits8 => 256,
            Self::Q6K => 192,
            _ if self.has_fifth() => 160,
            _ => 128,
        }
    }

    /// Bytes of a block of eight rows.
    pub(super) const fn bytes(self) -> usize {
        self.codes_at(0) + self.weights() / 32 * self.code_bytes()
    }
}

/// A block of eight rows.
#[derive(Clone, Copy)]
pub(super) struct Block<'a> {
    code: Code,
    bytes: &'a [u8],
}

fn half(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

impl<'a> Block<'a> {
    /// The block in `bytes`, which hold one.
    pub(super) fn new(code: Code, bytes: &'a [u8]) -> Self {
        Self { code, bytes }
    }

    /// Weight `i` of row `r`, but for its scale and minimum.
    pub(super) fn value(&self, r: usize, i: usize) -> i32 {
        let (s, i) = (i / 32, i % 32);
        let codes = &self.bytes[self.code.codes_at(s)..];
        let (g, at) = (i / 4, r * 4 + i % 4);
        if matches!(self.code, Code::Q8_0 | Code::Bits8) {
            return i32::from(codes[g * 32 + at].cast_signed());
        }
        let nibble = (codes[self.code.nibbles_at() + g % 4 * 32 + at] >> (g / 4 * 4)) & 15;
        match self.code {
            Code::Iq4Nl => i32::from(IQ4[usize::from(nibble)]),
            Code::Mxfp4 => i32::from(E2M1[usize::from(nibble)]),
            Code::Q6K => {
                let high = (codes[g / 4 * 32 + at] >> (g % 4 * 2)) & 3;
                i32::from(nibble | (high << 4)) - 32
            }
            _ if self.code.has_fifth() => {
                i32::from(nibble | (((codes[at] >> g) & 1) << 4)) - self.code.offset()
            }
            _ => i32::from(nibble) - self.code.offset(),
        }
    }

    /// The scale of row `r`.
    pub(super) fn scale(&self, r: usize) -> f32 {
        match self.code {
            Code::Mxfp4 => half_power(self.bytes[r]),
            Code::Bits4 | Code::Bits8 => {
                let b = &self.bytes[4 * r..];
                f32::from_le_bytes([b[0], b[1], b[2], b[3]])
            }
            _ => half(self.bytes, 2 * r),
        }
    }

    /// The minimum of row `r`, or the scale of its minima, where the format has such.
    pub(super) fn minimum(&self, r: usize) -> f32 {
        half(self.bytes, 2 * (LANES + r))
    }

    /// The whole-number scale of 16 weights of row `r` of a block of 256.
    pub(super) fn group_scale(&self, r: usize, group: usize) -> i32 {
        match self.code {
            Code::Q6K => {
                i32::from(self.bytes[16 + group / 2 * 16 + 2 * r + group % 2].cast_signed())
            }
            _ => i32::from(self.bytes[32 + group / 2 * 8 + r]),
        }
    }

    /// The whole-number minimum of 16 weights of row `r` of Q4_K and Q5_K.
    pub(super) fn group_minimum(&self, r: usize, group: usize) -> i32 {
        i32::from(self.bytes[96 + group / 4 * 16 + 2 * r + group / 2 % 2])
    }

    /// Weight `i` of row `r` as a float, with the roundings of [`BlockFormat::decode`].
    pub(super) fn float(&self, r: usize, i: usize) -> f32 {
        let v = self.value(r, i) as f32;
        match self.code {
            Code::Q4_1 | Code::Q5_1 => v * self.scale(r) + self.minimum(r),
            Code::Q4K | Code::Q5K => {
                let scale = self.scale(r) * self.group_scale(r, i / 16) as f32;
                scale * v - self.minimum(r) * self.group_minimum(r, i / 16) as f32
            }
            Code::Q6K => self.scale(r) * self.group_scale(r, i / 16) as f32 * v,
            _ => self.scale(r) * v,
        }
    }
}
