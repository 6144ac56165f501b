//! From rows of blocks to blocks of eight rows.

use super::layout::{Code, LANES};
use crate::kernels::blocks::scale_min;

/// Writes block `from` of row `r` into the block `to` of eight rows.
pub(super) fn insert(code: Code, from: &[u8], r: usize, to: &mut [u8]) {
    let mut codes = [0_u8; 256];
    let codes = &mut codes[..code.weights()];
    match code {
        Code::Q4_0 | Code::Iq4Nl => {
            to[2 * r..2 * r + 2].copy_from_slice(&from[..2]);
            halves(&from[2..], codes);
        }
        Code::Q4_1 => {
            to[2 * r..2 * r + 2].copy_from_slice(&from[..2]);
            to[2 * (LANES + r)..2 * (LANES + r) + 2].copy_from_slice(&from[2..4]);
            halves(&from[4..], codes);
        }
        Code::Q5_0 => {
            to[2 * r..2 * r + 2].copy_from_slice(&from[..2]);
            halves(&from[6..], codes);
            fifth(&from[2..6], codes);
        }
        Code::Q5_1 => {
            to[2 * r..2 * r + 2].copy_from_slice(&from[..2]);
            to[2 * (LANES + r)..2 * (LANES + r) + 2].copy_from_slice(&from[2..4]);
            halves(&from[8..], codes);
            fifth(&from[4..8], codes);
        }
        Code::Q8_0 => {
            to[2 * r..2 * r + 2].copy_from_slice(&from[..2]);
            codes.copy_from_slice(&from[2..34]);
        }
        Code::Bits4 => {
            to[4 * r..4 * r + 4].copy_from_slice(&from[..4]);
            halves(&from[4..], codes);
        }
        Code::Bits8 => {
            to[4 * r..4 * r + 4].copy_from_slice(&from[..4]);
            codes.copy_from_slice(&from[4..36]);
        }
        Code::Mxfp4 => {
            to[r] = from[0];
            halves(&from[1..], codes);
        }
        Code::Q4K | Code::Q5K => {
            to[2 * r..2 * r + 2].copy_from_slice(&from[..2]);
            to[2 * (LANES + r)..2 * (LANES + r) + 2].copy_from_slice(&from[2..4]);
            for s in 0..8 {
                let (scale, minimum) = scale_min(&from[4..16], s);
                to[32 + s * 8 + r] = scale;
                to[96 + s / 2 * 16 + 2 * r + s % 2] = minimum;
            }
            let quants = if code == Code::Q5K { &from[48..176] } else { &from[16..144] };
            for (pair, (bytes, codes)) in
                quants.chunks_exact(32).zip(codes.chunks_exact_mut(64)).enumerate()
            {
                for (l, &byte) in bytes.iter().enumerate() {
                    (codes[l], codes[l + 32]) = (byte & 15, byte >> 4);
                    if code == Code::Q5K {
                        let bits = from[16 + l] >> (2 * pair);
                        codes[l] |= (bits & 1) << 4;
                        codes[l + 32] |= (bits & 2) << 3;
                    }
                }
            }
        }
        Code::Q6K => {
            to[2 * r..2 * r + 2].copy_from_slice(&from[208..210]);
            for group in 0..16 {
                to[16 + group / 2 * 16 + 2 * r + group % 2] = from[192 + group];
            }
            for (i, code) in codes.iter_mut().enumerate() {
                let (half, quarter, l) = (i / 128, i / 32 % 4, i % 32);
                let low = from[half * 64 + quarter % 2 * 32 + l] >> (quarter / 2 * 4);
                let high = from[128 + half * 32 + l] >> (2 * quarter);
                *code = (low & 15) | ((high & 3) << 4);
            }
        }
    }
    for (s, codes) in codes.chunks_exact(32).enumerate() {
        place(code, codes, r, &mut to[code.codes_at(s)..]);
    }
}

/// 4-bit numbers, the low halves of all bytes first.
fn halves(bytes: &[u8], codes: &mut [u8]) {
    for (j, &byte) in bytes[..16].iter().enumerate() {
        (codes[j], codes[j + 16]) = (byte & 15, byte >> 4);
    }
}

/// The fifth bits of 32 numbers.
fn fifth(word: &[u8], codes: &mut [u8]) {
    for (i, code) in codes.iter_mut().enumerate() {
        *code |= ((word[i / 8] >> (i % 8)) & 1) << 4;
    }
}

/// The numbers of 32 weights of row `r`, into registers.
fn place(code: Code, codes: &[u8], r: usize, to: &mut [u8]) {
    for (i, &c) in codes.iter().enumerate() {
        let (g, at) = (i / 4, r * 4 + i % 4);
        let nibbles = match code {
            Code::Q8_0 | Code::Bits8 => {
                to[g * 32 + at] = c;
                continue;
            }
            Code::Q6K => {
                to[g / 4 * 32 + at] |= (c >> 4) << (g % 4 * 2);
                64
            }
            _ if code.has_fifth() => {
                to[at] |= (c >> 4) << g;
                32
            }
            _ => 0,
        };
        to[nibbles + g % 4 * 32 + at] |= (c & 15) << (g / 4 * 4);
    }
}
