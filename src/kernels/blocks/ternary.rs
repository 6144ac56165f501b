//! Blocks of 256 weights that are −1, 0 or 1 times a scale: TQ1_0, TQ2_0.

use super::half_at;

/// 48 bytes of five digits each, 4 bytes of four digits each, f16 scale. A byte is a fraction in
/// base 3: its leading digit is the whole part of three times it.
pub(super) fn tq1_0(block: &[u8], out: &mut [f32]) {
    const POWERS: [u8; 5] = [1, 3, 9, 27, 81];
    let d = half_at(block, 52);
    let digit = |byte: u8, n: usize| {
        let shifted = byte.wrapping_mul(POWERS[n]);
        (u16::from(shifted) * 3) >> 8
    };
    let mut out = out.iter_mut();
    for (bytes, digits) in [(&block[..32], 5), (&block[32..48], 5), (&block[48..52], 4)] {
        for n in 0..digits {
            for (&byte, o) in bytes.iter().zip(&mut out) {
                *o = (f32::from(digit(byte, n)) - 1.0) * d;
            }
        }
    }
}

/// 64 bytes of 2-bit numbers (each 32 bytes hold 128 weights, 32 at each place), f16 scale.
pub(super) fn tq2_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 64);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (half, place) = (group / 4, group % 4);
        for (o, &byte) in out.iter_mut().zip(&block[half * 32..half * 32 + 32]) {
            *o = (f32::from((byte >> (2 * place)) & 3) - 1.0) * d;
        }
    }
}
