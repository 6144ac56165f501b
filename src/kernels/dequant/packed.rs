//! Weights packed once, because they are constant: eight rows side by side.

use super::activations::{Activations, Row};
use super::layout::{Block, Code, LANES};
use super::{BlockMatrix, pack, scalar};
#[cfg(target_arch = "x86_64")]
use super::{avx2::Pairs, avx512::Fours, products};
use crate::kernels::error::{check_len, checked_product};
use crate::kernels::gemm::block::{Block as Product, Left, Panels, Right};
use crate::kernels::gemm::kernel::Kernel;
use crate::kernels::isa::{Isa, Kind};
use crate::kernels::parallel::{Parallel, SharedOut, for_each_part, split_range};
use crate::kernels::{BlockFormat, Epilogue, KernelError, MatRef, Partition};
use std::cell::Cell;
use std::ops::Range;

/// Bytes of rounded numbers that stay in the second-level cache while the weights pass by.
const LEFT_BYTES: usize = 192 << 10;

/// Rows of numbers that meet eight rows of weights at a time.
const ROWS: usize = 4;

/// Rows of numbers up to which exact products decode the weights for each.
#[cfg(target_arch = "x86_64")]
const FEW: usize = 2;

thread_local! {
    static ROUNDED: Cell<Activations> = Cell::default();
}

/// A matrix of weights in blocks, laid out for the kernels that multiply without decoding it
/// first. It takes as many bytes as the blocks, up to 3 % more for Q4_K and Q5_K, with the rows
/// rounded up to a multiple of eight.
#[derive(Clone)]
pub struct PackedBlocks {
    format: &'static BlockFormat,
    code: Code,
    isa: Isa,
    rows: usize,
    cols: usize,
    data: Vec<u8>,
}

impl std::fmt::Debug for PackedBlocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PackedBlocks")
            .field("format", &self.format.name)
            .field("shape", &(self.rows, self.cols))
            .finish_non_exhaustive()
    }
}

impl PackedBlocks {
    /// Whether weights of this format can be packed: the others are decoded.
    pub fn supports(format: &BlockFormat) -> bool {
        Code::of(format).is_some()
    }

    /// Packs a matrix for [`Isa::best`].
    ///
    /// # Errors
    /// If the format has no kernel ([`Self::supports`]) or the size overflows.
    ///
    /// ```
    /// use brigade::kernels::{BlockFormat, BlockMatrix, PackedBlocks, Serial};
    /// let mut row = [0_u8; 34];
    /// row[..2].copy_from_slice(&[0x00, 0x38]); // the scale 0.5 as f16
    /// row[2] = 6;
    /// let w = BlockMatrix::new(BlockFormat::named("Q8_0").unwrap(), &row, 1, 34)?;
    /// let w = PackedBlocks::new(w)?;
    /// let (x, mut y) = ([127.0; 32], [0.0]);
    /// w.multiply(&x, 1, &mut y, &Serial)?;
    /// assert_eq!(y, [0.5 * 6.0 * 127.0]);
    /// # Ok::<(), brigade::kernels::KernelError>(())
    /// ```
    pub fn new(w: BlockMatrix<'_>) -> Result<Self, KernelError> {
        Self::for_isa(Isa::best(), w)
    }

    /// Packs for a stated instruction set.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn for_isa(isa: Isa, w: BlockMatrix<'_>) -> Result<Self, KernelError> {
        let format = w.format;
        let Some(code) = Code::of(format) else {
            return Err(KernelError::Invalid {
                operand: "weights",
                problem: "are in a format that no kernel multiplies in: decode them",
            });
        };
        let (rows, cols) = (w.rows(), w.cols());
        let group = checked_product("weights", &[cols / format.weights, code.bytes()])?;
        let mut data = vec![0; checked_product("weights", &[rows.div_ceil(LANES), group])?];
        for i in 0..rows {
            let to = &mut data[i / LANES * group..][..group];
            let from = &w.bytes[i * w.row_bytes..][..w.row_bytes];
            for (from, to) in from.chunks_exact(format.bytes).zip(to.chunks_exact_mut(code.bytes()))
            {
                pack::insert(code, from, i % LANES, to);
            }
        }
        Ok(Self { format, code, isa, rows, cols, data })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Weights in a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.data.len()
    }

    /// The format.
    pub fn format(&self) -> &'static BlockFormat {
        self.format
    }

    /// Bytes of eight rows.
    fn group_bytes(&self) -> usize {
        self.cols / self.format.weights * self.code.bytes()
    }

    /// Decodes row `i` into `out`, to the bits of [`BlockFormat::decode`].
    ///
    /// # Errors
    /// If there is no such row, or `out` is shorter than one.
    pub fn decode_row(&self, i: usize, out: &mut [f32]) -> Result<(), KernelError> {
        check_len("weights", self.rows, i.saturating_add(1))?;
        check_len("out", out.len(), self.cols)?;
        let group = &self.data[i / LANES * self.group_bytes()..][..self.group_bytes()];
        let weights = self.format.weights;
        for (block, out) in group.chunks_exact(self.code.bytes()).zip(out.chunks_exact_mut(weights))
        {
            let block = Block::new(self.code, block);
            for (k, o) in out.iter_mut().enumerate() {
                *o = block.float(i % LANES, k);
            }
        }
        Ok(())
    }

    /// Checks the operands of a product; returns the elements of its output.
    fn check(&self, x: &[f32], m: usize, out: &[f32]) -> Result<usize, KernelError> {
        check_len("x", x.len(), checked_product("x", &[m, self.cols])?)?;
        let size = checked_product("out", &[m, self.rows])?;
        check_len("out", out.len(), size)?;
        Ok(size)
    }

    /// `out = x · wᵀ`, where `x` is `m` rows of [`Self::cols`] numbers and `out` `m` rows of
    /// [`Self::rows`].
    ///
    /// Each block of `x` as long as the weights' blocks is rounded to 8 bits, `round(x · 127 / a)`
    /// where `a` is its largest magnitude; products with the weights are summed as integers. So an
    /// output differs from the one of decoded weights by no more than the sum over the blocks of
    /// `a / 254 · Σ |w|`, but for the rounding of floats. Where a block holds NaN or an infinity,
    /// its row of the output is NaN. A block all below 1.5e-36 counts as zero.
    ///
    /// # Errors
    /// If `x` or `out` is too short.
    pub fn multiply(
        &self,
        x: &[f32],
        m: usize,
        out: &mut [f32],
        par: &dyn Parallel,
    ) -> Result<(), KernelError> {
        let size = self.check(x, m, out)?;
        if size == 0 {
            return Ok(());
        }
        let mut rounded = ROUNDED.take();
        rounded.round(self.isa, self.code, &x[..m * self.cols], self.cols);
        let out = SharedOut::new(&mut out[..size]);
        let groups = self.rows.div_ceil(LANES);
        let parts = par.threads().min(groups).max(1);
        let step = (LEFT_BYTES / self.cols.max(1) / ROWS).clamp(4, 64) * ROWS;
        for_each_part(par, parts, &|part| {
            let range = split_range(groups, parts, part, 1);
            for first in (0..m).step_by(step) {
                let rows = first..m.min(first + step);
                // SAFETY: the output holds m rows, and parts are disjoint columns of it.
                unsafe { self.part(&rounded, rows, range.clone(), out.ptr()) };
            }
        });
        ROUNDED.set(rounded);
        Ok(())
    }

    /// The columns of `groups` of some rows of the output.
    ///
    /// # Safety
    /// `out` is valid for the output's rows `rows`, and nobody else touches the columns.
    unsafe fn part(
        &self,
        x: &Activations,
        rows: Range<usize>,
        groups: Range<usize>,
        out: *mut f32,
    ) {
        let n = self.rows;
        for group in groups {
            let weights = &self.data[group * self.group_bytes()..][..self.group_bytes()];
            let width = LANES.min(n - group * LANES);
            for i in rows.clone().step_by(ROWS) {
                let count = ROWS.min(rows.end - i);
                let all: [Row<'_>; ROWS] = std::array::from_fn(|r| x.row(i + r.min(count - 1)));
                let mut sums = [[0.0; LANES]; ROWS];
                match self.isa.kind() {
                    Kind::Scalar => scalar::group(self.code, weights, &all[..count], &mut sums),
                    // SAFETY: the CPU has VNNI, and with it all of AVX-512 that is asked for; the
                    // weights are whole blocks, and the rows were rounded for them.
                    #[cfg(target_arch = "x86_64")]
                    _ if self.isa.has_vnni() => unsafe {
                        products::group::<Fours>(self.code, weights, &all[..count], &mut sums);
                    },
                    // SAFETY: as above; every other instruction set includes AVX2, FMA and F16C.
                    #[cfg(target_arch = "x86_64")]
                    _ => unsafe {
                        products::group::<Pairs>(self.code, weights, &all[..count], &mut sums);
                    },
                }
                for (r, sums) in sums[..count].iter().enumerate() {
                    // SAFETY: row i + r holds n elements, of which these are the group's.
                    unsafe {
                        let to = out.add((i + r) * n + group * LANES);
                        std::ptr::copy_nonoverlapping(sums.as_ptr(), to, width);
                    }
                }
            }
        }
    }

    /// As [`Self::multiply`] in floats alone: the weights are decoded as they pass by, the sums are
    /// those of [`super::super::gemm`].
    ///
    /// # Errors
    /// If `x` or `out` is too short.
    pub fn multiply_exact(
        &self,
        x: &[f32],
        m: usize,
        out: &mut [f32],
        par: &dyn Parallel,
    ) -> Result<(), KernelError> {
        let size = self.check(x, m, out)?;
        if size == 0 {
            return Ok(());
        }
        #[cfg(target_arch = "x86_64")]
        if m <= FEW && self.cols > 0 && self.isa.kind() != Kind::Scalar {
            self.multiply_few(x, m, &mut out[..size], par);
            return Ok(());
        }
        let (k, n) = (self.cols, self.rows);
        let left = Left::Plain(MatRef::row_major(x, m, k)?);
        let right = Right::Virtual { panels: self, rows: None };
        let kernel = Kernel::of(self.isa);
        let c = SharedOut::new(&mut out[..size]);
        let partition = Partition::with_kernel(m, n, par.threads(), kernel);
        for_each_part(par, partition.parts(), &|i| {
            let (rows, cols) = partition.part(i);
            let product =
                Product { kernel, left, right, k, c_row: n, epilogue: &Epilogue::default() };
            // SAFETY: the output holds m rows of n elements, x m rows of k, the panels are k × n;
            // parts are disjoint and cut at tiles and panels.
            unsafe { product.run(c.ptr(), rows, cols) };
        });
        Ok(())
    }
}

#[cfg(target_arch = "x86_64")]
impl PackedBlocks {
    /// [`Self::multiply_exact`] for so few rows that the weights are better decoded for each than
    /// written down; to the same bits.
    fn multiply_few(&self, x: &[f32], m: usize, out: &mut [f32], par: &dyn Parallel) {
        use super::avx2_lines::{GROUPS, groups};
        let (n, group) = (self.rows, self.group_bytes());
        let count = n.div_ceil(LANES);
        let shared = SharedOut::new(out);
        let parts = par.threads().min(count.div_ceil(GROUPS)).max(1);
        for_each_part(par, parts, &|part| {
            let range = split_range(count, parts, part, GROUPS);
            for first in range.clone().step_by(GROUPS) {
                let some = GROUPS.min(range.end - first);
                let weights = &self.data[first * group..][..some * group];
                let width = (some * LANES).min(n - first * LANES);
                for (i, x) in x[..m * self.cols].chunks_exact(self.cols).enumerate() {
                    let mut sums = [[0.0_f32; LANES]; GROUPS];
                    // SAFETY: every instruction set but the portable one includes AVX2, FMA and
                    // F16C; the weights are whole groups of whole blocks, x as long as a row. The
                    // output holds m rows of n elements, of which these are the groups'.
                    unsafe {
                        groups(self.code, weights, group, x, &mut sums);
                        let to = shared.ptr().add(i * n + first * LANES);
                        std::ptr::copy_nonoverlapping(sums.as_flattened().as_ptr(), to, width);
                    }
                }
            }
        });
    }
}

impl Panels for PackedBlocks {
    fn pack(&self, ks: Range<usize>, cols: Range<usize>, width: usize, out: &mut [f32]) {
        let size = ks.len() * width;
        if size == 0 {
            return;
        }
        for (panel, out) in
            out[..size * cols.len().div_ceil(width)].chunks_exact_mut(size).enumerate()
        {
            for half in 0..width / LANES {
                let group = (cols.start + panel * width) / LANES + half;
                self.lines(group, ks.clone(), &mut out[half * LANES..], width);
                // The panel that comes next begins elsewhere.
                self.ask_for(group + width / LANES, &ks);
            }
        }
    }

    fn is_costly(&self) -> bool {
        true
    }
}

impl PackedBlocks {
    /// Weights `ks` of a group of eight rows as lines of eight floats, `stride` apart; zeros for a
    /// group that there is not. Both ends of `ks` are multiples of four.
    fn lines(&self, group: usize, ks: Range<usize>, out: &mut [f32], stride: usize) {
        let size = self.group_bytes();
        let Some(bytes) = self.data.get(group * size..(group + 1) * size) else {
            out.chunks_mut(stride).for_each(|line| line[..LANES].fill(0.0));
            return;
        };
        match self.isa.kind() {
            Kind::Scalar => scalar::lines(self.code, bytes, ks, out, stride),
            #[cfg(target_arch = "x86_64")]
            _ => {
                let out = &mut out[..(ks.len() - 1) * stride + LANES];
                // SAFETY: every other instruction set includes AVX2, FMA and F16C. Depths of a
                // product are cut at multiples of four, and lie within a row; the lines fit.
                unsafe {
                    super::avx2_lines::lines(self.code, bytes, ks, out.as_mut_ptr(), stride);
                }
            }
        }
    }

    /// Asks the memory for weights `ks` of a group.
    fn ask_for(&self, group: usize, ks: &Range<usize>) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let (weights, bytes) = (self.format.weights, self.code.bytes());
            let blocks = ks.start / weights * bytes..ks.end.div_ceil(weights) * bytes;
            let first = self.data.as_ptr().wrapping_add(group * self.group_bytes());
            for at in blocks.step_by(64) {
                // SAFETY: what is asked for is not read.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(first.wrapping_add(at).cast()) };
            }
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = (group, ks);
    }
}
