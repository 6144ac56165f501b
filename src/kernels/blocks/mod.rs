//! Quantised weights as they lie in GGUF files: rows of blocks, each block a few numbers that share
//! a scale.
//!
//! [`FORMATS`] is the one list. The layouts are those of the GGUF specification's tensor types
//! (ggml-org/ggml, `docs/gguf.md`); all multi-byte fields are little-endian.

mod k;
mod legacy;
mod lookup;
mod ternary;

#[cfg(test)]
mod tests;

use super::KernelError;
use half::f16;
pub(super) use k::scale_min;
pub(super) use lookup::{E2M1, IQ4, half_power};

/// A block format.
#[derive(Debug)]
pub struct BlockFormat {
    /// The name, as in GGUF files: `Q4_K`.
    pub name: &'static str,
    /// The number of the type in GGUF files.
    pub gguf: u32,
    /// Weights in a block.
    pub weights: usize,
    /// Bytes of a block.
    pub bytes: usize,
    /// Where in a block fields of more than one byte lie, and their size: what a file of the other
    /// byte order has reversed.
    pub fields: &'static [(usize, usize)],
    /// Decodes one block of [`Self::bytes`] into [`Self::weights`] numbers.
    decode: fn(&[u8], &mut [f32]),
}

/// Every block format that is understood.
pub static FORMATS: &[BlockFormat] = &[
    row("Q4_0", 2, 32, 18, &[(0, 2)], legacy::q4_0),
    row("Q4_1", 3, 32, 20, &[(0, 2), (2, 2)], legacy::q4_1),
    row("Q5_0", 6, 32, 22, &[(0, 2)], legacy::q5_0),
    row("Q5_1", 7, 32, 24, &[(0, 2), (2, 2)], legacy::q5_1),
    row("Q8_0", 8, 32, 34, &[(0, 2)], legacy::q8_0),
    row("Q8_1", 9, 32, 36, &[(0, 2), (2, 2)], legacy::q8_1),
    row("Q2_K", 10, 256, 84, &[(80, 2), (82, 2)], k::q2),
    row("Q3_K", 11, 256, 110, &[(108, 2)], k::q3),
    row("Q4_K", 12, 256, 144, &[(0, 2), (2, 2)], k::q4),
    row("Q5_K", 13, 256, 176, &[(0, 2), (2, 2)], k::q5),
    row("Q6_K", 14, 256, 210, &[(208, 2)], k::q6),
    row("Q8_K", 15, 256, 292, &Q8_K_FIELDS, k::q8),
    row("IQ4_NL", 20, 32, 18, &[(0, 2)], lookup::iq4_nl),
    row("IQ4_XS", 23, 256, 136, &[(0, 2), (2, 2)], lookup::iq4_xs),
    row("TQ1_0", 34, 256, 54, &[(52, 2)], ternary::tq1_0),
    row("TQ2_0", 35, 256, 66, &[(64, 2)], ternary::tq2_0),
    row("MXFP4", 39, 32, 17, &[], lookup::mxfp4),
];

/// 4-bit numbers less 8 times an f32 scale: as Q4_0, but for the scale. No file has it.
pub static BITS4: BlockFormat = row("4 bits", u32::MAX, 32, 20, &[(0, 4)], legacy::bits4);

/// 8-bit numbers times an f32 scale: as Q8_0, but for the scale. No file has it.
pub static BITS8: BlockFormat = row("8 bits", u32::MAX, 32, 36, &[(0, 4)], legacy::bits8);

const fn row(
    name: &'static str,
    gguf: u32,
    weights: usize,
    bytes: usize,
    fields: &'static [(usize, usize)],
    decode: fn(&[u8], &mut [f32]),
) -> BlockFormat {
    BlockFormat { name, gguf, weights, bytes, fields, decode }
}

/// The scale, and 16 sums.
const Q8_K_FIELDS: [(usize, usize); 17] = {
    let mut fields = [(0, 4); 17];
    let mut i = 1;
    while i < 17 {
        fields[i] = (260 + 2 * (i - 1), 2);
        i += 1;
    }
    fields
};

impl BlockFormat {
    /// The format with this name.
    ///
    /// ```
    /// use brigade::kernels::BlockFormat;
    /// let q4 = BlockFormat::named("Q4_0").unwrap();
    /// assert_eq!((q4.weights, q4.bytes), (32, 18));
    /// assert!(BlockFormat::named("Q4").is_none());
    /// ```
    pub fn named(name: &str) -> Option<&'static Self> {
        FORMATS.iter().find(|f| f.name == name)
    }

    /// The format with this number in GGUF files.
    pub fn from_gguf(number: u32) -> Option<&'static Self> {
        FORMATS.iter().find(|f| f.gguf == number)
    }

    /// Bytes of `weights` numbers, if they are whole blocks and the product does not overflow.
    pub fn bytes_of(&self, weights: usize) -> Option<usize> {
        let whole = weights.is_multiple_of(self.weights);
        if whole { (weights / self.weights).checked_mul(self.bytes) } else { None }
    }

    /// Decodes whole blocks.
    ///
    /// # Errors
    /// If `blocks` is not whole blocks, or `out` is not as long as what they hold.
    ///
    /// ```
    /// use brigade::kernels::BlockFormat;
    /// let q8 = BlockFormat::named("Q8_0").unwrap();
    /// let mut block = vec![0_u8; 34];
    /// block[..2].copy_from_slice(&[0x00, 0x38]); // the scale 0.5 as f16
    /// block[2] = 6;
    /// let mut out = [0.0; 32];
    /// q8.decode(&block, &mut out)?;
    /// assert_eq!(out[..2], [3.0, 0.0]);
    /// # Ok::<(), brigade::kernels::KernelError>(())
    /// ```
    pub fn decode(&self, blocks: &[u8], out: &mut [f32]) -> Result<(), KernelError> {
        let need = self.bytes_of(out.len()).ok_or(KernelError::Invalid {
            operand: "out",
            problem: "does not hold whole blocks",
        })?;
        if blocks.len() != need {
            return Err(KernelError::Length { operand: "blocks", need, have: blocks.len() });
        }
        for (block, out) in blocks.chunks_exact(self.bytes).zip(out.chunks_exact_mut(self.weights))
        {
            (self.decode)(block, out);
        }
        Ok(())
    }
}

/// The f16 at byte `at`.
fn half_at(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}
