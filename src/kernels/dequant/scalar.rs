//! The portable kernel.

use super::activations::Row;
use super::layout::{Block, Code, LANES};
use std::ops::Range;

/// The products of eight rows of weights with some rows of numbers.
pub(super) fn group(code: Code, weights: &[u8], x: &[Row<'_>], out: &mut [[f32; LANES]]) {
    for (x, out) in x.iter().zip(out) {
        *out = [0.0; LANES];
        for (b, block) in weights.chunks_exact(code.bytes()).enumerate() {
            let block = Block::new(code, block);
            let bytes = &x.bytes[b * code.weights()..][..code.weights()];
            let scale = x.scales[b];
            for (r, sum) in out.iter_mut().enumerate() {
                if code.is_k() {
                    let (mut all, mut minima) = (0, 0);
                    for (g, bytes) in bytes.chunks_exact(16).enumerate() {
                        all += block.group_scale(r, g) * dot(&block, r, g * 16, bytes);
                        if code.has_minimum() {
                            let total: i32 = bytes.iter().map(|b| i32::from(*b)).sum();
                            minima += block.group_minimum(r, g) * total;
                        }
                    }
                    *sum = (all as f32).mul_add(block.scale(r) * scale, *sum);
                    if code.has_minimum() {
                        *sum = (-(minima as f32)).mul_add(block.minimum(r) * scale, *sum);
                    }
                } else {
                    let all = dot(&block, r, 0, bytes);
                    *sum = (all as f32).mul_add(block.scale(r) * scale, *sum);
                    if code.has_minimum() {
                        *sum = block.minimum(r).mul_add(x.moments[b], *sum);
                    }
                }
            }
        }
    }
}

fn dot(block: &Block<'_>, r: usize, first: usize, bytes: &[i8]) -> i32 {
    bytes.iter().enumerate().map(|(i, b)| i32::from(*b) * block.value(r, first + i)).sum()
}

/// Weights `ks` of a group of eight rows as lines of eight floats, `stride` apart.
pub(super) fn lines(code: Code, group: &[u8], ks: Range<usize>, out: &mut [f32], stride: usize) {
    for (k, line) in ks.zip(out.chunks_mut(stride)) {
        let block = Block::new(code, &group[k / code.weights() * code.bytes()..][..code.bytes()]);
        for (r, o) in line[..LANES].iter_mut().enumerate() {
            *o = block.float(r, k % code.weights());
        }
    }
}
