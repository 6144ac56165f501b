//! Products with constant right operands in bfloat16: half the memory of f32, and where the CPU
//! multiplies pairs of bfloat16 at once (AVX512-BF16), twice the speed.
//!
//! Both operands are rounded to the nearest bfloat16, to even where two are as near; their products
//! are exact in f32, in which they are summed. Without the instruction, weights are widened as they
//! pass by and the kernels are those of f32, so a sum is one chain of multiply-adds over k there, too.
//! With it, the two products of a pair of depths are added in the order of the instruction, which
//! takes subnormal numbers for zeros.
//!
//! A packed operand is made of words of 32 bits: an even depth in the lower half, the next one in the
//! upper half. Panels of columns lie one after the other, for each pair of depths the columns side by
//! side.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod scalar;

#[cfg(test)]
mod tests;

use super::block::{Block, Left, Panels, Right};
use super::kernel::Kernel;
use super::{Bias, Epilogue, MatMut, MatRef, Partition, Residual, pack, vector};
use crate::kernels::aligned::AlignedF32;
use crate::kernels::error::checked_product;
use crate::kernels::isa::Kind;
use crate::kernels::parallel::{Parallel, SharedOut, for_each_part};
use crate::kernels::{Isa, KernelError};
use std::cell::Cell;
use std::ops::Range;

/// A float as the nearest bfloat16, to even where two are as near; NaN stays NaN.
#[inline(always)]
pub(super) fn nearest(x: f32) -> u32 {
    let bits = x.to_bits();
    // Of a NaN the upper half might be that of an infinity.
    if x.is_nan() { (bits >> 16) | 0x40 } else { (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 }
}

/// A constant right operand (the weights of a linear layer) in bfloat16, packed into panels of columns.
#[derive(Clone, Debug)]
pub struct PackedBf16 {
    isa: Isa,
    k: usize,
    n: usize,
    words: AlignedF32,
}

impl PackedBf16 {
    /// Rounds and packs a k × n matrix for [`Isa::best`]; give [`MatRef::transposed`] for weights
    /// that are stored n × k.
    ///
    /// # Errors
    /// When the packed size overflows.
    pub fn new(b: MatRef<'_>) -> Result<Self, KernelError> {
        Self::for_isa(Isa::best(), b)
    }

    /// Packs for a stated instruction set.
    ///
    /// # Errors
    /// When the packed size overflows.
    pub fn for_isa(isa: Isa, b: MatRef<'_>) -> Result<Self, KernelError> {
        let (k, n) = (b.rows(), b.cols());
        let (width, pairs) = (Kernel::of(isa).cols, k.div_ceil(2));
        let size = checked_product("rhs", &[n.div_ceil(width), pairs, width])?;
        let mut words = AlignedF32::zeroed(size);
        if size > 0 {
            // The depth that makes an odd number even is zero.
            let mut panel = vec![0.0; 2 * pairs * width];
            let all: &mut [u32] = bytemuck::cast_slice_mut(&mut words);
            for (p, to) in all[..size].chunks_exact_mut(pairs * width).enumerate() {
                let cols = p * width..n.min((p + 1) * width);
                pack::pack_panels(&b, 0..k, cols, width, &mut panel);
                for (words, lines) in to.chunks_exact_mut(width).zip(panel.chunks_exact(2 * width))
                {
                    let (even, odd) = lines.split_at(width);
                    for ((word, e), o) in words.iter_mut().zip(even).zip(odd) {
                        *word = nearest(*e) | nearest(*o) << 16;
                    }
                }
            }
        }
        Ok(Self { isa, k, n, words })
    }

    /// Depth k.
    pub fn depth(&self) -> usize {
        self.k
    }

    /// Columns n.
    pub fn cols(&self) -> usize {
        self.n
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.words.len() * 4
    }

    /// The instruction set it was packed for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Pairs of depths.
    pub(super) fn pairs(&self) -> usize {
        self.k.div_ceil(2)
    }

    /// Panel after panel, each a word for every pair of depths and column.
    pub(super) fn words(&self) -> &[u32] {
        bytemuck::cast_slice(&self.words)
    }

    /// `y = Σp x[p] · panels` for whole panels from column `first` on; `x` is what [`Rounded`] made.
    ///
    /// # Safety
    /// `first` is a multiple of the kernel's columns, as is the length of `y`; the panels from there
    /// on are as many as `y` takes.
    pub(super) unsafe fn sums(&self, first: usize, x: &[f32], y: &mut [f32]) {
        let pairs = self.pairs();
        let panels = self.words().as_ptr().wrapping_add(first * pairs);
        // SAFETY: the caller's promise; the instruction set is one that the CPU has, and `x` has two
        // elements for each pair, or a word for each where the instruction takes words.
        unsafe {
            match self.isa.kind() {
                Kind::Scalar => scalar::panels(panels, pairs, x, y),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx2 => avx2::panels::<2>(panels, pairs, x, y),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 if self.isa.has_bf16() => avx512::panels(panels, pairs, x, y),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512 => avx2::panels::<4>(panels, pairs, x, y),
            }
        }
    }
}

impl Panels for PackedBf16 {
    fn pack(&self, ks: Range<usize>, cols: Range<usize>, width: usize, out: &mut [f32]) {
        let size = ks.len() * width;
        if size == 0 {
            return;
        }
        // Depths are cut at multiples of four.
        let (first, pairs) = (ks.start / 2, ks.len().div_ceil(2));
        for (p, out) in out[..size * cols.len().div_ceil(width)].chunks_exact_mut(size).enumerate()
        {
            let at = (cols.start + p * width) * self.pairs() + first * width;
            let words = &self.words()[at..][..pairs * width];
            match self.isa.kind() {
                Kind::Scalar => scalar::widen(words, width, out),
                // SAFETY: every other instruction set includes AVX2. The panel that comes next is
                // asked for.
                #[cfg(target_arch = "x86_64")]
                _ => unsafe { avx2::widen(words, width, self.pairs() * width, out) },
            }
        }
    }

    fn is_costly(&self) -> bool {
        true
    }
}

/// Bytes of the left operand that are rounded at a time.
const LEFT_BYTES: usize = 1 << 20;
/// The most rows that are rounded at a time: one block of the loops, so that panels are widened once.
const LEFT_ROWS: usize = 168;

thread_local! {
    static ROUNDED: Cell<AlignedF32> = Cell::default();
}

/// Rows of a left operand, rounded: floats that are bfloat16, two for each pair of depths, or where
/// the instruction takes them, words.
struct Rounded {
    data: AlignedF32,
    /// Elements of a row.
    width: usize,
    words: bool,
}

impl Rounded {
    fn new(b: &PackedBf16, words: bool) -> Self {
        let width = if words { b.pairs() } else { 2 * b.pairs() };
        Self { data: ROUNDED.take(), width, words }
    }

    /// Rounds some rows of `a`.
    fn set(&mut self, isa: Isa, a: &MatRef<'_>, rows: Range<usize>) {
        let (k, width) = (a.cols(), self.width);
        self.data.reserve(rows.len() * width);
        if width == 0 {
            return;
        }
        let mut line = Vec::new();
        for (to, row) in self.data.chunks_exact_mut(width).zip(rows) {
            let from = &a.data()[row * a.row_stride()..];
            let from = if a.col_stride() == 1 {
                &from[..k]
            } else {
                line.clear();
                line.extend((0..k).map(|p| from[p * a.col_stride()]));
                &line
            };
            if self.words {
                words(from, bytemuck::cast_slice_mut(to));
            } else {
                if let Some(last) = to.last_mut() {
                    *last = 0.0;
                }
                match isa.kind() {
                    Kind::Scalar => scalar::round(from, to),
                    // SAFETY: every other instruction set includes AVX2.
                    #[cfg(target_arch = "x86_64")]
                    _ => unsafe { avx2::round(from, to) },
                }
            }
        }
    }

    fn rows(&self, count: usize) -> &[f32] {
        &self.data[..count * self.width]
    }
}

impl Drop for Rounded {
    fn drop(&mut self) {
        ROUNDED.set(std::mem::take(&mut self.data));
    }
}

/// Pairs of neighbours as words.
fn words(from: &[f32], to: &mut [u32]) {
    let (pairs, last) = from.as_chunks::<2>();
    for (to, [even, odd]) in to.iter_mut().zip(pairs) {
        *to = nearest(*even) | nearest(*odd) << 16;
    }
    if let (Some(to), [even]) = (to.last_mut(), last) {
        *to = nearest(*even);
    }
}

/// `out = act(alpha · a · b + beta · out + bias + residual)`, all of whose shapes have been checked and
/// none of which is empty.
pub(super) fn multiply(
    a: MatRef<'_>,
    b: &PackedBf16,
    mut out: MatMut<'_>,
    epilogue: &Epilogue<'_>,
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    let (m, k, n) = (a.rows(), b.k, b.n);
    // The tile of words leaves its sums where the output was, of which nothing may be needed then.
    let takes_words = b.isa.has_bf16() && epilogue.beta == 0.0;
    let mut rounded = Rounded::new(b, takes_words);
    if m == 1 && k > 0 && epilogue.beta == 0.0 {
        rounded.set(b.isa, &a, 0..1);
        let job = vector::Job::bf16(b, rounded.rows(1));
        job.run(&mut out, epilogue, Kernel::of(b.isa), par);
        return Ok(());
    }
    let kernel = kernel(b.isa, takes_words);
    let c_row = out.row_stride();
    let c = SharedOut::new(out.data_mut());
    let most = LEFT_BYTES / 4 / rounded.width.max(1) / kernel.rows * kernel.rows;
    let step = most.clamp(kernel.rows, LEFT_ROWS);
    for first in (0..m).step_by(step) {
        let rows = step.min(m - first);
        rounded.set(b.isa, &a, first..first + rows);
        let epilogue = below(epilogue, first);
        let (data, width) = (rounded.rows(rows), rounded.width);
        // The words of both sides are multiplied as if they were floats, of half the depth.
        let (depth, right) = match rounded.words {
            true => (b.pairs(), Right::Packed(&b.words)),
            false => (k, Right::Virtual { panels: b, rows: None }),
        };
        let left = MatRef::new(data, rows, depth, width, 1)?;
        let partition = Partition::with_kernel(rows, n, par.threads(), kernel);
        for_each_part(par, partition.parts(), &|i| {
            let (rows, cols) = partition.part(i);
            let left = Left::Plain(left);
            let block = Block { kernel, left, right, k: depth, c_row, epilogue: &epilogue };
            // SAFETY: the output holds m rows of n elements, of which these begin at `first`; the
            // operands have as many rows and columns, and the epilogue was checked against them;
            // parts are disjoint and cut at tiles and panels.
            unsafe { block.run(c.ptr().add(first * c_row), rows, cols) };
        });
    }
    Ok(())
}

/// The tile that a packed operand is read by.
fn kernel(isa: Isa, takes_words: bool) -> &'static Kernel {
    #[cfg(target_arch = "x86_64")]
    if takes_words {
        return &avx512::KERNEL;
    }
    let _ = takes_words;
    Kernel::of(isa)
}

/// The epilogue of what lies below the first rows of an output.
fn below<'a>(epilogue: &Epilogue<'a>, first: usize) -> Epilogue<'a> {
    Epilogue {
        bias: match epilogue.bias {
            Bias::PerRow(b) => Bias::PerRow(b.get(first..).unwrap_or(&[])),
            other => other,
        },
        residual: epilogue
            .residual
            .map(|r| Residual { data: r.data.get(first * r.row_stride..).unwrap_or(&[]), ..r }),
        ..*epilogue
    }
}
