//! Blocks of 4-bit numbers that stand for unevenly spaced values: IQ4_NL, IQ4_XS, MXFP4.

use super::half_at;

/// The values of the IQ4 formats.
pub(in crate::kernels) const IQ4: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// Twice the values of a 4-bit float with two exponent bits and one of mantissa (OCP Microscaling
/// Formats 1.0, section 5.3.3).
pub(in crate::kernels) const E2M1: [i8; 16] =
    [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

/// 16 bytes of numbers, the low halves first, times a scale.
fn halves(bytes: &[u8], values: &[i8; 16], d: f32, out: &mut [f32]) {
    for (j, &byte) in bytes.iter().enumerate() {
        out[j] = d * f32::from(values[usize::from(byte & 15)]);
        out[j + 16] = d * f32::from(values[usize::from(byte >> 4)]);
    }
}

/// f16 scale, 16 bytes.
pub(super) fn iq4_nl(block: &[u8], out: &mut [f32]) {
    halves(&block[2..18], &IQ4, half_at(block, 0), out);
}

/// f16 scale, 16 bits of high scale bits, 4 bytes of low ones, 128 bytes. Groups of 32 weights,
/// whose scale is d · (s − 32).
pub(super) fn iq4_xs(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    let high = u16::from_le_bytes([block[2], block[3]]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let low = (block[4 + group / 2] >> (4 * (group % 2))) & 15;
        let up = ((high >> (2 * group)) & 3) as u8;
        let s = d * (i32::from(low | (up << 4)) - 32) as f32;
        halves(&block[8 + group * 16..8 + (group + 1) * 16], &IQ4, s, out);
    }
}

/// A power of two as its exponent (E8M0), 16 bytes.
pub(super) fn mxfp4(block: &[u8], out: &mut [f32]) {
    halves(&block[1..17], &E2M1, half_power(block[0]), out);
}

/// Half of the scale 2^(e − 127), because [`E2M1`] holds twice the values.
pub(in crate::kernels) fn half_power(e: u8) -> f32 {
    let e = u32::from(e);
    f32::from_bits(if e < 2 { 0x0020_0000 << e } else { (e - 1) << 23 })
}
