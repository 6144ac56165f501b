//! Blocks of 256 weights in groups that have scales of their own: Q2_K to Q6_K, Q8_K.

use super::half_at;

/// 16 bytes of 4-bit scales and minima, 64 bytes of 2-bit numbers, f16 scale of the scales, f16
/// scale of the minima. Groups of 16 weights; w = d · s · q − dmin · m.
pub(super) fn q2(block: &[u8], out: &mut [f32]) {
    let (scales, quants) = (&block[..16], &block[16..80]);
    let (d, dmin) = (half_at(block, 80), half_at(block, 82));
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let (s, m) = (f32::from(scales[group] & 15), f32::from(scales[group] >> 4));
        let (dl, ml) = (d * s, dmin * m);
        let (bytes, shift) = two_bit_group(quants, group);
        for (o, &byte) in out.iter_mut().zip(bytes) {
            *o = dl * f32::from((byte >> shift) & 3) - ml;
        }
    }
}

/// The 16 bytes, and the place in them, of the 2-bit numbers of a group: each 32 bytes hold 128
/// weights, 32 at each of the four places.
fn two_bit_group(quants: &[u8], group: usize) -> (&[u8], usize) {
    let (half, within) = (group / 8, group % 8);
    let at = half * 32 + (within % 2) * 16;
    (&quants[at..at + 16], 2 * (within / 2))
}

/// 32 bytes of third bits, 64 bytes of 2-bit numbers, 12 bytes of 6-bit scales, f16 scale. Groups
/// of 16 weights; w = d · (s − 32) · (q − 4), where the third bit is worth 4.
pub(super) fn q3(block: &[u8], out: &mut [f32]) {
    let (third, quants, packed) = (&block[..32], &block[32..96], &block[96..108]);
    let d = half_at(block, 108);
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let low = if group < 8 { packed[group] & 15 } else { packed[group - 8] >> 4 };
        let high = (packed[8 + group % 4] >> (2 * (group / 4))) & 3;
        let dl = d * (i32::from(low | (high << 4)) - 32) as f32;
        let (bytes, shift) = two_bit_group(quants, group);
        let bit = group / 2;
        let from = (group % 2) * 16;
        for (l, (o, &byte)) in out.iter_mut().zip(bytes).enumerate() {
            let set = (third[from + l] >> bit) & 1;
            let q = i32::from((byte >> shift) & 3) - if set == 1 { 0 } else { 4 };
            *o = dl * q as f32;
        }
    }
}

/// Scale and minimum of group `j` of eight, 6 bits each, out of 12 bytes.
pub(in crate::kernels) fn scale_min(packed: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        let (low, s, m) = (packed[j + 4], packed[j - 4] >> 6, packed[j] >> 6);
        ((low & 15) | (s << 4), (low >> 4) | (m << 4))
    }
}

/// f16 scale of the scales, f16 scale of the minima, 12 bytes of 6-bit scales and minima, 128
/// bytes. Groups of 32 weights, two to each 32 bytes (low halves first); w = d · s · q − dmin · m.
pub(super) fn q4(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (packed, quants) = (&block[4..16], &block[16..144]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (s, m) = scale_min(packed, group);
        let (dl, ml) = (d * f32::from(s), dmin * f32::from(m));
        let at = (group / 2) * 32;
        let shift = 4 * (group % 2);
        for (o, &byte) in out.iter_mut().zip(&quants[at..at + 32]) {
            *o = dl * f32::from((byte >> shift) & 15) - ml;
        }
    }
}

/// As Q4_K with 32 bytes of fifth bits before the 128 bytes: bit g of byte l belongs to weight l
/// of group g.
pub(super) fn q5(block: &[u8], out: &mut [f32]) {
    let (d, dmin) = (half_at(block, 0), half_at(block, 2));
    let (packed, fifth, quants) = (&block[4..16], &block[16..48], &block[48..176]);
    for (group, out) in out.chunks_exact_mut(32).enumerate() {
        let (s, m) = scale_min(packed, group);
        let (dl, ml) = (d * f32::from(s), dmin * f32::from(m));
        let at = (group / 2) * 32;
        let shift = 4 * (group % 2);
        for (l, (o, &byte)) in out.iter_mut().zip(&quants[at..at + 32]).enumerate() {
            let q = ((byte >> shift) & 15) | (((fifth[l] >> group) & 1) << 4);
            *o = dl * f32::from(q) - ml;
        }
    }
}

/// 128 bytes of low halves, 64 bytes of fifth and sixth bits, 16 signed scales, f16 scale. Groups
/// of 16 weights; w = d · s · (q − 32).
pub(super) fn q6(block: &[u8], out: &mut [f32]) {
    let (low, high, scales) = (&block[..128], &block[128..192], &block[192..208]);
    let d = half_at(block, 208);
    for (group, out) in out.chunks_exact_mut(16).enumerate() {
        let s = d * f32::from(scales[group].cast_signed());
        // 128 weights take 64 low bytes and 32 high ones; 32 weights one quarter of them.
        let (half, quarter, from) = (group / 8, (group % 8) / 2, (group % 2) * 16);
        let low = &low[half * 64 + (quarter % 2) * 32 + from..];
        let high = &high[half * 32 + from..];
        for (l, o) in out.iter_mut().enumerate() {
            let bits = (low[l] >> (4 * (quarter / 2))) & 15;
            let q = bits | (((high[l] >> (2 * quarter)) & 3) << 4);
            *o = s * (i32::from(q) - 32) as f32;
        }
    }
}

/// f32 scale, 256 signed bytes, 16 sums (of no use here).
pub(super) fn q8(block: &[u8], out: &mut [f32]) {
    let d = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    for (o, &q) in out.iter_mut().zip(&block[4..260]) {
        *o = d * f32::from(q.cast_signed());
    }
}
