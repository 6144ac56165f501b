//! Blocks of 32 weights with one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q8_1.
//!
//! In the 4- and 5-bit ones byte j holds weight j in its low half and weight j + 16 in its high
//! half; the fifth bits are the bits of a 32-bit word, in the order of the weights.

use super::half_at;

/// f16 scale, 16 bytes; w = d · (q − 8).
pub(super) fn q4_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (j, &byte) in block[2..18].iter().enumerate() {
        out[j] = d * (i32::from(byte & 15) - 8) as f32;
        out[j + 16] = d * (i32::from(byte >> 4) - 8) as f32;
    }
}

/// f16 scale, f16 minimum, 16 bytes; w = d · q + m.
pub(super) fn q4_1(block: &[u8], out: &mut [f32]) {
    let (d, m) = (half_at(block, 0), half_at(block, 2));
    for (j, &byte) in block[4..20].iter().enumerate() {
        out[j] = f32::from(byte & 15) * d + m;
        out[j + 16] = f32::from(byte >> 4) * d + m;
    }
}

/// The fifth bit of weight `i`, in place.
fn fifth(word: &[u8], i: usize) -> u8 {
    ((word[i / 8] >> (i % 8)) & 1) << 4
}

/// f16 scale, 32 fifth bits, 16 bytes; w = d · (q − 16).
pub(super) fn q5_0(block: &[u8], out: &mut [f32]) {
    let (d, high) = (half_at(block, 0), &block[2..6]);
    for (j, &byte) in block[6..22].iter().enumerate() {
        let (low, up) = ((byte & 15) | fifth(high, j), (byte >> 4) | fifth(high, j + 16));
        out[j] = d * (i32::from(low) - 16) as f32;
        out[j + 16] = d * (i32::from(up) - 16) as f32;
    }
}

/// f16 scale, f16 minimum, 32 fifth bits, 16 bytes; w = d · q + m.
pub(super) fn q5_1(block: &[u8], out: &mut [f32]) {
    let (d, m, high) = (half_at(block, 0), half_at(block, 2), &block[4..8]);
    for (j, &byte) in block[8..24].iter().enumerate() {
        out[j] = f32::from((byte & 15) | fifth(high, j)) * d + m;
        out[j + 16] = f32::from((byte >> 4) | fifth(high, j + 16)) * d + m;
    }
}

/// f16 scale, 32 signed bytes.
pub(super) fn q8_0(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (o, &q) in out.iter_mut().zip(&block[2..34]) {
        *o = f32::from(q.cast_signed()) * d;
    }
}

/// f16 scale, f16 sum (of no use here), 32 signed bytes.
pub(super) fn q8_1(block: &[u8], out: &mut [f32]) {
    let d = half_at(block, 0);
    for (o, &q) in out.iter_mut().zip(&block[4..36]) {
        *o = f32::from(q.cast_signed()) * d;
    }
}

/// The f32 at the start.
fn whole(block: &[u8]) -> f32 {
    f32::from_le_bytes([block[0], block[1], block[2], block[3]])
}

/// f32 scale, 16 bytes; w = d · (q − 8).
pub(super) fn bits4(block: &[u8], out: &mut [f32]) {
    let d = whole(block);
    for (j, &byte) in block[4..20].iter().enumerate() {
        out[j] = d * (i32::from(byte & 15) - 8) as f32;
        out[j + 16] = d * (i32::from(byte >> 4) - 8) as f32;
    }
}

/// f32 scale, 32 signed bytes.
pub(super) fn bits8(block: &[u8], out: &mut [f32]) {
    let d = whole(block);
    for (o, &q) in out.iter_mut().zip(&block[4..36]) {
        *o = f32::from(q.cast_signed()) * d;
    }
}
