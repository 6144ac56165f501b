//! Dense tiles for AVX-512: two neighbouring blocks of output channels share a vector.

use super::BLOCK;
use super::avx2::{LINE, Tile};
use crate::kernels::Activation;
use crate::kernels::math::avx512::{clamp, hard_swish, splat};
use std::arch::x86_64::*;

/// Floats of a vector.
const LANES: usize = 2 * BLOCK;

/// Two blocks that lie `block` floats apart.
///
/// # Safety
/// There are 8 floats at each place.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn load(from: *const f32, block: usize) -> __m512 {
    // SAFETY: the caller's promise.
    let (lo, hi) = unsafe { (_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(block))) };
    _mm512_insertf32x8::<1>(_mm512_castps256_ps512(lo), hi)
}

/// # Safety
/// There is room for 8 floats at each place.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn store(to: *mut f32, block: usize, v: __m512) {
    // SAFETY: the caller's promise.
    unsafe {
        _mm256_storeu_ps(to, _mm512_castps512_ps256(v));
        _mm256_storeu_ps(to.add(block), _mm512_extractf32x8_ps::<1>(v));
    }
}

/// The bounds of an activation that is a clamp.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn bounds(activation: Activation) -> (__m512, __m512) {
    let (lo, hi) = activation.bounds().unwrap_or((f32::NEG_INFINITY, f32::INFINITY));
    (splat(lo), splat(hi))
}

/// An activation that is fused into the tiles.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) fn act(activation: Activation, x: __m512) -> __m512 {
    match activation {
        Activation::HardSwish => hard_swish(x),
        Activation::None => x,
        other => {
            let (lo, hi) = bounds(other);
            clamp(x, lo, hi)
        }
    }
}

/// Computes tiles of `width` positions by `span` blocks, an even number, whose weights lie in pairs;
/// `unroll` is the length of a run of taps.
///
/// # Safety
/// The CPU has AVX-512, and the pointers are valid for everything that the tiles describe.
pub(super) unsafe fn run_tiles(t: &Tile, width: usize, span: usize, unroll: usize) {
    macro_rules! by_width {
        ($v:literal, $u:literal, $s:literal; $($p:literal)*) => {
            match width {
                $($p => tiles::<$p, $v, $u, $s>(t),)*
                _ => debug_assert!(false, "no tile of {width} positions"),
            }
        };
    }
    macro_rules! blocked {
        ($s:literal) => {
            match span {
                2 => by_width!(1, 8, $s; 1 2 3 4 5 6 7 8 9 10 11 12 13 14),
                4 => by_width!(2, 8, $s; 1 2 3 4 5 6 7 8 9 10 11 12),
                _ => by_width!(4, 8, $s; 1 2 3),
            }
        };
    }
    macro_rules! plain {
        ($u:literal, $s:literal) => {
            by_width!(1, $u, $s; 1 2 3 4 5 6 7 8 9 10 11 12 13 14)
        };
    }
    // SAFETY: the caller's promise.
    unsafe {
        match (unroll, t.step) {
            (8, 8) => blocked!(8),
            (8, 16) => blocked!(16),
            (8, _) => blocked!(0),
            (7, 1) => plain!(7, 1),
            (7, _) => plain!(7, 2),
            (5, 1) => plain!(5, 1),
            (5, _) => plain!(5, 2),
            (3, 1) => plain!(3, 1),
            (3, _) => plain!(3, 2),
            (2, 1) => plain!(2, 1),
            (2, _) => plain!(2, 2),
            (_, _) => plain!(1, 0),
        }
    }
}

/// The same value, computed before any later load: loads of later taps that are moved ahead would
/// take the registers of the sums.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
fn settled(mut v: __m512) -> __m512 {
    // SAFETY: no instruction is emitted.
    unsafe {
        std::arch::asm!("/* {0} */", inout(zmm_reg) v, options(nostack, preserves_flags));
    }
    v
}

/// P positions by V pairs of blocks of output channels; U taps are unrolled; positions lie S floats
/// apart, or what the tile says for S = 0.
///
/// # Safety
/// As for [`run_tiles`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn tiles<const P: usize, const V: usize, const U: usize, const S: usize>(t: &Tile) {
    let Tile { loops: [outer, middle, inner], w_out, out_block, .. } = *t;
    let step = if S == 0 { t.step } else { S };
    let (mut x, mut out, mut residual) = (t.x, t.out, t.finish.residual);
    for _ in 0..t.count {
        // SAFETY: the caller's promise.
        unsafe {
            let mut acc = [[_mm512_setzero_ps(); V]; P];
            if t.accumulate {
                for v in 0..V {
                    for p in 0..P {
                        acc[p][v] = load(out.add(2 * v * out_block + p * BLOCK), out_block);
                    }
                }
            } else if !t.bias.is_null() {
                for v in 0..V {
                    let bias = _mm512_loadu_ps(t.bias.add(v * LANES));
                    for p in 0..P {
                        acc[p][v] = bias;
                    }
                }
            }
            for b in 0..2 * V {
                for l in 0..(P * BLOCK).div_ceil(LINE) {
                    let next = out.wrapping_add(b * out_block + P * BLOCK + l * LINE);
                    _mm_prefetch::<_MM_HINT_ET0>(next.cast_const().cast());
                }
            }
            let (mut w, mut outer_x) = (t.w, x);
            for _ in 0..outer.count {
                let mut middle_x = outer_x;
                for _ in 0..middle.count {
                    let mut tap = middle_x;
                    for _ in 0..inner.count {
                        if U == BLOCK && S > 0 {
                            // The input of the next tile is asked for while this one is summed.
                            for l in 0..(P * S).div_ceil(LINE) {
                                let next = tap.wrapping_add(P * S + l * LINE);
                                _mm_prefetch::<_MM_HINT_T0>(next.cast());
                            }
                        }
                        macro_rules! unrolled {
                            ($($u:literal)*) => { $(
                                if $u < U {
                                    let mut wv = [_mm512_setzero_ps(); V];
                                    for v in 0..V {
                                        wv[v] = _mm512_loadu_ps(w.add(v * w_out + $u * LANES));
                                    }
                                    for p in 0..P {
                                        let one = splat(*tap.add(p * step + $u));
                                        for v in 0..V {
                                            acc[p][v] = _mm512_fmadd_ps(one, wv[v], acc[p][v]);
                                        }
                                        for v in 0..V {
                                            acc[p][v] = settled(acc[p][v]);
                                        }
                                    }
                                }
                            )* };
                        }
                        unrolled!(0 1 2 3 4 5 6 7);
                        tap = tap.wrapping_add(inner.x);
                        w = w.wrapping_add(U * LANES);
                    }
                    middle_x = middle_x.wrapping_add(middle.x);
                    w = w.wrapping_add(middle.w);
                }
                outer_x = outer_x.wrapping_add(outer.x);
                w = w.wrapping_add(outer.w);
            }
            // Not a function: one that is not inlined would have the sums in memory. Each loop is
            // short enough to be unrolled whole, for the same end.
            if !residual.is_null() {
                for v in 0..V {
                    for p in 0..P {
                        let r = load(residual.add(2 * v * out_block + p * BLOCK), out_block);
                        acc[p][v] = _mm512_add_ps(acc[p][v], r);
                    }
                }
            }
            match t.finish.activation {
                Activation::HardSwish => {
                    for v in 0..V {
                        for p in 0..P {
                            acc[p][v] = hard_swish(acc[p][v]);
                        }
                    }
                }
                Activation::None => {}
                other => {
                    let (lo, hi) = bounds(other);
                    for v in 0..V {
                        for p in 0..P {
                            acc[p][v] = clamp(acc[p][v], lo, hi);
                        }
                    }
                }
            }
            for v in 0..V {
                for p in 0..P {
                    store(out.add(2 * v * out_block + p * BLOCK), out_block, acc[p][v]);
                }
            }
        }
        x = x.wrapping_add(P * step);
        out = out.wrapping_add(P * BLOCK);
        if !residual.is_null() {
            residual = residual.wrapping_add(P * BLOCK);
        }
    }
}
