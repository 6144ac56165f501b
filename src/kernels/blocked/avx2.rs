//! Dense tiles, pooling and reordering for AVX2 and FMA.

use super::BLOCK;
use super::pool::PoolRow;
use crate::kernels::Activation;
use crate::kernels::math::avx2::{clamp, hard_swish, max_or_nan, splat};
use std::arch::x86_64::*;

/// Floats of a cache line.
pub(super) const LINE: usize = 16;

/// Asks for a slice to be brought into the second-level cache.
pub(super) fn fetch(x: Option<&[f32]>) {
    for line in x.unwrap_or(&[]).chunks(LINE) {
        // SAFETY: every x86-64 CPU has this hint, which touches nothing.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().cast()) };
    }
}

/// Transposes eight vectors of eight.
#[inline]
#[target_feature(enable = "avx2,fma")]
pub(super) fn transpose(r: [__m256; 8]) -> [__m256; 8] {
    let mut t = [_mm256_setzero_ps(); 8];
    for i in 0..4 {
        t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
    }
    let mut u = [_mm256_setzero_ps(); 8];
    for h in 0..2 {
        for i in 0..2 {
            let (a, b) = (t[4 * h + i], t[4 * h + 2 + i]);
            u[4 * h + 2 * i] = _mm256_shuffle_ps::<0b01_00_01_00>(a, b);
            u[4 * h + 2 * i + 1] = _mm256_shuffle_ps::<0b11_10_11_10>(a, b);
        }
    }
    let mut out = [_mm256_setzero_ps(); 8];
    for i in 0..4 {
        out[i] = _mm256_permute2f128_ps::<0x20>(u[i], u[4 + i]);
        out[4 + i] = _mm256_permute2f128_ps::<0x31>(u[i], u[4 + i]);
    }
    out
}

/// Eight planes of `plane` positions, side by side or blocked, into the other layout.
///
/// # Safety
/// `x` and `out` hold 8 · `plane` elements each.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn reorder<const BLOCKED: bool>(x: *const f32, plane: usize, out: *mut f32) {
    let mut p = 0;
    while p + 8 <= plane {
        let mut v = [_mm256_setzero_ps(); 8];
        for i in 0..8 {
            // SAFETY: positions p..p + 8 of all eight planes exist.
            v[i] = unsafe {
                _mm256_loadu_ps(x.add(if BLOCKED { i * plane + p } else { (p + i) * 8 }))
            };
        }
        let v = transpose(v);
        for i in 0..8 {
            // SAFETY: as above.
            unsafe {
                _mm256_storeu_ps(out.add(if BLOCKED { (p + i) * 8 } else { i * plane + p }), v[i]);
            }
        }
        p += 8;
    }
    while p < plane {
        for c in 0..8 {
            let (plain, blocked) = (c * plane + p, p * 8 + c);
            let (from, to) = if BLOCKED { (plain, blocked) } else { (blocked, plain) };
            // SAFETY: as above.
            unsafe { *out.add(to) = *x.add(from) };
        }
        p += 1;
    }
}

/// The mean of blocked positions: `scale` times their sum.
#[target_feature(enable = "avx2,fma")]
pub(super) fn mean(x: &[f32], scale: f32, out: &mut [f32]) {
    let mut sums = [_mm256_setzero_ps(); 4];
    let mut fours = x.chunks_exact(4 * BLOCK);
    for v in &mut fours {
        for i in 0..4 {
            // SAFETY: a chunk holds four vectors.
            let v = unsafe { _mm256_loadu_ps(v.as_ptr().add(i * BLOCK)) };
            sums[i] = _mm256_add_ps(sums[i], v);
        }
    }
    for (i, v) in fours.remainder().chunks_exact(BLOCK).enumerate() {
        // SAFETY: a chunk holds one vector.
        sums[i & 3] = _mm256_add_ps(sums[i & 3], unsafe { _mm256_loadu_ps(v.as_ptr()) });
    }
    let sum = _mm256_add_ps(_mm256_add_ps(sums[0], sums[1]), _mm256_add_ps(sums[2], sums[3]));
    let out = &mut out[..BLOCK];
    // SAFETY: the output holds one vector.
    unsafe { _mm256_storeu_ps(out.as_mut_ptr(), _mm256_mul_ps(sum, splat(scale))) };
}

/// Maxima or sums of one row.
#[target_feature(enable = "avx2,fma")]
pub(super) fn pool_row(job: &PoolRow<'_>, max: bool, out: &mut [f32]) {
    if max { pool_taps::<true>(job, out) } else { pool_taps::<false>(job, out) }
}

#[target_feature(enable = "avx2,fma")]
fn pool_taps<const MAX: bool>(job: &PoolRow<'_>, out: &mut [f32]) {
    let [stride, dilation, pad] = job.steps;
    let start = splat(if MAX { f32::NEG_INFINITY } else { 0.0 });
    for (x, (o, taps)) in out.chunks_exact_mut(BLOCK).zip(job.columns).enumerate() {
        let mut acc = start;
        if !taps.is_empty() {
            let first = (x * stride + taps.start * dilation - pad) * BLOCK;
            let span = (taps.len() - 1) * dilation * BLOCK + BLOCK;
            for row in job.rows {
                // Checks all taps of this row.
                let from = job.image[row + first..][..span].as_ptr();
                for t in 0..taps.len() {
                    // SAFETY: the taps were checked just above.
                    let v = unsafe { _mm256_loadu_ps(from.add(t * dilation * BLOCK)) };
                    acc = if MAX { max_or_nan(acc, v) } else { _mm256_add_ps(acc, v) };
                }
            }
        }
        // SAFETY: a chunk holds one vector.
        unsafe { _mm256_storeu_ps(o.as_mut_ptr(), acc) };
    }
}

/// What is done to the sums of a tile before they are stored.
#[derive(Clone, Copy)]
pub(super) struct Finish {
    /// Added to the sums, where not null; laid out as the output is.
    pub(super) residual: *const f32,
    /// One that [`Finish::fuses`].
    pub(super) activation: Activation,
}

impl Finish {
    /// Whether an activation is cheap enough to be applied in registers.
    pub(super) fn fuses(activation: Activation) -> bool {
        activation.bounds().is_some() || activation == Activation::HardSwish
    }

    /// Adds, activates and stores P positions of B blocks that lie `out_block` apart.
    ///
    /// # Safety
    /// The output, and the residual where there is one, hold them.
    #[inline]
    #[target_feature(enable = "avx2,fma")]
    pub(super) unsafe fn store<const P: usize, const B: usize>(
        &self,
        mut acc: [[__m256; B]; P],
        out: *mut f32,
        residual: *const f32,
        out_block: usize,
    ) {
        // Each loop is short enough to be unrolled whole, so that the sums stay in registers.
        if !residual.is_null() {
            for b in 0..B {
                for p in 0..P {
                    // SAFETY: the caller's promise.
                    let r = unsafe { _mm256_loadu_ps(residual.add(b * out_block + p * BLOCK)) };
                    acc[p][b] = _mm256_add_ps(acc[p][b], r);
                }
            }
        }
        match self.activation {
            Activation::HardSwish => {
                for b in 0..B {
                    for p in 0..P {
                        acc[p][b] = hard_swish(acc[p][b]);
                    }
                }
            }
            Activation::None => {}
            other => {
                let (lo, hi) = other.bounds().unwrap_or((f32::NEG_INFINITY, f32::INFINITY));
                let (lo, hi) = (splat(lo), splat(hi));
                for b in 0..B {
                    for p in 0..P {
                        acc[p][b] = clamp(acc[p][b], lo, hi);
                    }
                }
            }
        }
        for b in 0..B {
            for p in 0..P {
                // SAFETY: the caller's promise.
                unsafe { _mm256_storeu_ps(out.add(b * out_block + p * BLOCK), acc[p][b]) };
            }
        }
    }
}

/// One of the loops around the unrolled taps, which move the weights by themselves.
#[derive(Clone, Copy)]
pub(super) struct Loop {
    pub(super) count: usize,
    /// What a turn moves the input by, and the weights in addition to the loops inside.
    pub(super) x: usize,
    pub(super) w: usize,
}

impl Loop {
    /// The same order of taps with the loops of one turn outside, where they cost nothing. The
    /// innermost loop given moves the weights by nothing more than its taps.
    pub(super) fn nest(blocks: Self, rows: Self, taps: Self) -> [Self; 3] {
        let once = Self { count: 1, x: 0, w: 0 };
        match (rows.count, taps.count) {
            (1, 1) if blocks.w == 0 => [once, once, blocks],
            (_, 1) => [once, blocks, rows],
            _ => [blocks, rows, taps],
        }
    }
}

/// Some tiles side by side: all distances in floats.
#[derive(Clone, Copy)]
pub(super) struct Tile {
    /// The first tap of the first position.
    pub(super) x: *const f32,
    /// Over blocks of input channels, rows and columns of taps; see [`Loop::nest`].
    pub(super) loops: [Loop; 3],
    /// From one position to the next.
    pub(super) step: usize,
    /// The weights of the first tap and block.
    pub(super) w: *const f32,
    /// From one block of output channels to the next.
    pub(super) w_out: usize,
    pub(super) out: *mut f32,
    pub(super) out_block: usize,
    /// One vector for each block of output channels, or null for zeros.
    pub(super) bias: *const f32,
    /// Whether the output holds sums to go on with, instead of the bias.
    pub(super) accumulate: bool,
    pub(super) finish: Finish,
    /// Tiles.
    pub(super) count: usize,
}

/// Computes tiles of `width` positions by `spans` blocks; `unroll` is the length of a run of taps.
///
/// # Safety
/// The CPU has AVX2 and FMA, and the pointers are valid for everything that the tiles describe.
pub(super) unsafe fn run_tiles(t: &Tile, width: usize, span: usize, unroll: usize) {
    macro_rules! by_width {
        ($b:literal, $u:literal, $s:literal; $($p:literal)*) => {
            match width {
                $($p => tiles::<$p, $b, $u, $s>(t),)*
                _ => debug_assert!(false, "no tile of {width} positions"),
            }
        };
    }
    macro_rules! blocked {
        ($s:literal) => {
            match span {
                1 => by_width!(1, 8, $s; 1 2 3 4 5 6 7 8),
                2 => by_width!(2, 8, $s; 1 2 3 4 5 6),
                3 => by_width!(3, 8, $s; 1 2 3 4),
                _ => by_width!(4, 8, $s; 1 2),
            }
        };
    }
    macro_rules! plain {
        ($u:literal, $s:literal) => {
            match span {
                1 => by_width!(1, $u, $s; 1 2 3 4 5 6 7 8),
                _ => by_width!(2, $u, $s; 1 2 3 4 5 6),
            }
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

/// The same value, computed before any later load. The sums, the weights of one tap and one input
/// fill the registers: with loads of later taps moved ahead the sums would spill.
#[inline]
#[target_feature(enable = "avx2,fma")]
fn settled(mut v: __m256) -> __m256 {
    // SAFETY: no instruction is emitted.
    unsafe {
        std::arch::asm!("/* {0} */", inout(ymm_reg) v, options(nostack, preserves_flags));
    }
    v
}

/// P positions by B blocks of output channels; U taps are unrolled; positions lie S floats apart,
/// or what the tile says for S = 0.
///
/// # Safety
/// As for [`run_tiles`].
#[target_feature(enable = "avx2,fma")]
unsafe fn tiles<const P: usize, const B: usize, const U: usize, const S: usize>(t: &Tile) {
    let Tile { loops: [outer, middle, inner], w_out, out_block, .. } = *t;
    let step = if S == 0 { t.step } else { S };
    let (mut x, mut out, mut residual) = (t.x, t.out, t.finish.residual);
    for _ in 0..t.count {
        // SAFETY: the caller's promise.
        unsafe {
            let mut acc = [[_mm256_setzero_ps(); B]; P];
            if t.accumulate {
                for b in 0..B {
                    for p in 0..P {
                        acc[p][b] = _mm256_loadu_ps(out.add(b * out_block + p * BLOCK));
                    }
                }
            } else if !t.bias.is_null() {
                for b in 0..B {
                    let bias = _mm256_loadu_ps(t.bias.add(b * BLOCK));
                    for p in 0..P {
                        acc[p][b] = bias;
                    }
                }
            }
            for b in 0..B {
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
                                    let mut wv = [_mm256_setzero_ps(); B];
                                    for b in 0..B {
                                        wv[b] = _mm256_loadu_ps(w.add(b * w_out + $u * BLOCK));
                                    }
                                    for p in 0..P {
                                        let v = _mm256_broadcast_ss(&*tap.add(p * step + $u));
                                        for b in 0..B {
                                            acc[p][b] = _mm256_fmadd_ps(v, wv[b], acc[p][b]);
                                        }
                                        for b in 0..B {
                                            acc[p][b] = settled(acc[p][b]);
                                        }
                                    }
                                }
                            )* };
                        }
                        unrolled!(0 1 2 3 4 5 6 7);
                        tap = tap.wrapping_add(inner.x);
                        w = w.wrapping_add(U * BLOCK);
                    }
                    middle_x = middle_x.wrapping_add(middle.x);
                    w = w.wrapping_add(middle.w);
                }
                outer_x = outer_x.wrapping_add(outer.x);
                w = w.wrapping_add(outer.w);
            }
            t.finish.store(acc, out, residual, out_block);
        }
        x = x.wrapping_add(P * step);
        out = out.wrapping_add(P * BLOCK);
        if !residual.is_null() {
            residual = residual.wrapping_add(P * BLOCK);
        }
    }
}
