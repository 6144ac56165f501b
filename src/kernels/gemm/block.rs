//! The cache-blocked loops around the register tile.

use super::kernel::{Finish, Kernel, MAX_COLS, MAX_TILE, Tile};
use super::pack::{self, PackedA, RowTiles};
use super::{Epilogue, MatRef};
use crate::kernels::aligned::AlignedF32;
use std::cell::Cell;
use std::ops::Range;

/// Depth of a block: a panel of 16 columns (16 KiB) and a tile of A share the first-level cache.
pub(in crate::kernels) const DEPTH: usize = 256;
/// Rows of a block: its part of A stays in the second-level cache while the panels pass by.
const ROWS: usize = 192;
/// Columns of a block that is packed on the fly.
const COLS: usize = 512;
/// Rows of A that lie a multiple of this apart fall on few sets of the caches.
const ALIASED: usize = 256;
/// Panels from which on a copy of such rows in tile order pays.
const PACK_A_PANELS: usize = 4;
/// Rows up to which B is read where it lies rather than packed.
const IN_PLACE_ROWS: usize = 12;

/// Depths of each block of a sum over `k`: as near to [`DEPTH`] as blocks of equal depth can be, so
/// that none is a leftover which reads and writes C for a few products.
fn block_depth(k: usize) -> usize {
    let blocks = ((k + DEPTH / 2) / DEPTH).max(1);
    k.div_ceil(blocks).next_multiple_of(4)
}

/// The left operand as the loops see it.
#[derive(Clone, Copy)]
pub(in crate::kernels) enum Left<'a> {
    Plain(MatRef<'a>),
    Packed(&'a PackedA),
}

/// Makes panels of a right operand that is not packed, perhaps not even stored.
pub(in crate::kernels) trait Panels: Sync {
    /// Writes depths `ks` and columns `cols` to `out` as panels of `width` columns, the missing
    /// ones zero: panel after panel, for each depth the columns side by side.
    fn pack(&self, ks: Range<usize>, cols: Range<usize>, width: usize, out: &mut [f32]);

    /// Whether panels are made of few bytes by much computing, so that one at a time in the
    /// first-level cache is better than a block of them beyond it.
    fn is_costly(&self) -> bool {
        false
    }
}

impl Panels for MatRef<'_> {
    fn pack(&self, ks: Range<usize>, cols: Range<usize>, width: usize, out: &mut [f32]) {
        pack::pack_panels(self, ks, cols, width, out);
    }
}

/// The right operand as the loops see it.
#[derive(Clone, Copy)]
pub(in crate::kernels) enum Right<'a> {
    /// Panel after panel, all depths of each.
    Packed(&'a [f32]),
    /// Packed block by block; `rows` is the matrix itself where its rows are contiguous, so that
    /// a few rows of A may read it in place.
    Virtual { panels: &'a dyn Panels, rows: Option<MatRef<'a>> },
}

impl<'a> Right<'a> {
    pub(in crate::kernels) fn plain(b: &'a MatRef<'a>) -> Self {
        Self::Virtual { panels: b, rows: (b.col_stride() == 1).then_some(*b) }
    }
}

/// One thread's buffers, kept from call to call.
#[derive(Default)]
struct Scratch {
    a: AlignedF32,
    b: AlignedF32,
}

thread_local! {
    static SCRATCH: Cell<Scratch> = Cell::default();
    /// Of the [`Edge`] that is in use.
    static EDGE_PANEL: Cell<AlignedF32> = Cell::default();
}

/// One product, of which [`Block::run`] computes a part.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct Block<'a> {
    pub kernel: &'static Kernel,
    pub left: Left<'a>,
    pub right: Right<'a>,
    pub k: usize,
    pub c_row: usize,
    pub epilogue: &'a Epilogue<'a>,
}

/// Where the panels of one block of B lie.
#[derive(Clone, Copy)]
struct PanelView<'a> {
    first: *const f32,
    panel_stride: usize,
    b_k: usize,
    /// Makes each panel just before it is read, all of them in the same place.
    maker: Option<&'a dyn Panels>,
}

impl Block<'_> {
    /// Computes `rows` × `cols` of the output that starts at `c`.
    ///
    /// # Safety
    /// - the output is m × n: `c` is valid for m rows of n elements, `c_row` apart, and nobody
    ///   else touches the given part of it;
    /// - operands have the shapes m × k and k × n, bias and residual fit m × n;
    /// - the kernel, packed operands and the CPU agree on the instruction set;
    /// - `cols` starts at a multiple of the kernel's columns and ends at one or at n; where the
    ///   left operand is packed, `rows` starts and ends at tiles.
    pub(in crate::kernels) unsafe fn run(
        &self,
        c: *mut f32,
        rows: Range<usize>,
        cols: Range<usize>,
    ) {
        if rows.is_empty() || cols.is_empty() {
            return;
        }
        let mut scratch = SCRATCH.take();
        // SAFETY: the caller's promises, passed on.
        unsafe { self.loops(c, rows, cols, &mut scratch) };
        SCRATCH.set(scratch);
    }

    /// # Safety
    /// As for [`Block::run`].
    unsafe fn loops(
        &self,
        c: *mut f32,
        rows: Range<usize>,
        cols: Range<usize>,
        scratch: &mut Scratch,
    ) {
        let nr = self.kernel.cols;
        // The previous contents of C enter at the end, so its place is not free for partial sums.
        let depth = if self.epilogue.beta == 0.0 { block_depth(self.k) } else { self.k.max(1) };
        let in_place = match self.right {
            Right::Virtual { rows: Some(b), .. } if rows.len() <= IN_PLACE_ROWS => Some(b),
            _ => None,
        };
        let whole = matches!(self.right, Right::Packed(_)) || in_place.is_some();
        let block_cols = if whole { cols.len() } else { COLS.next_multiple_of(nr) };
        let mut j0 = cols.start;
        while j0 < cols.end {
            let j1 = cols.end.min(j0 + block_cols);
            let mut k0 = 0;
            loop {
                let k1 = self.k.min(k0 + depth);
                let view = match (self.right, in_place) {
                    (_, Some(b)) => PanelView {
                        first: b.data().as_ptr().wrapping_add(k0 * b.row_stride() + j0),
                        panel_stride: nr,
                        b_k: b.row_stride(),
                        maker: None,
                    },
                    (Right::Packed(b), _) => PanelView {
                        first: b.as_ptr().wrapping_add(j0 * self.k + k0 * nr),
                        panel_stride: self.k * nr,
                        b_k: nr,
                        maker: None,
                    },
                    (Right::Virtual { panels, .. }, _) => {
                        let size = (k1 - k0) * nr;
                        // Several blocks of rows would each make the panels again.
                        let maker = (panels.is_costly() && rows.len() <= ROWS).then_some(panels);
                        let at_once = maker.map_or((j1 - j0).div_ceil(nr), |_| 1);
                        scratch.b.reserve(size * at_once);
                        if maker.is_none() {
                            panels.pack(k0..k1, j0..j1, nr, &mut scratch.b);
                        }
                        PanelView { first: scratch.b.as_ptr(), panel_stride: size, b_k: nr, maker }
                    }
                };
                let in_place = in_place.is_some();
                // SAFETY: the view holds the panels of j0..j1 at depths k0..k1; in place, it
                // holds whole panels except the last, which is told apart by `in_place`.
                unsafe { self.row_blocks(c, &rows, j0..j1, k0..k1, view, in_place, scratch) };
                k0 = k1;
                if k0 >= self.k {
                    break;
                }
            }
            j0 = j1;
        }
    }

    /// All rows of one block of columns and depths.
    ///
    /// # Safety
    /// As for [`Block::run`]; `view` holds the block of B or makes its panels.
    unsafe fn row_blocks(
        &self,
        c: *mut f32,
        rows: &Range<usize>,
        cols: Range<usize>,
        ks: Range<usize>,
        view: PanelView<'_>,
        in_place: bool,
        scratch: &mut Scratch,
    ) {
        let (nr, kc) = (self.kernel.cols, ks.len());
        let tiles = match self.left {
            Left::Packed(a) => a.tiles(),
            Left::Plain(_) => RowTiles::new(rows.len(), self.kernel.rows),
        };
        // Rows relative to which the tiles are counted.
        let base = if matches!(self.left, Left::Packed(_)) { 0 } else { rows.start };
        let (first, end) = (tiles.tile_at(rows.start - base), tiles.tile_at(rows.end - base));
        let per_block = (ROWS / self.kernel.rows).max(1);
        let pack_a = match self.left {
            Left::Plain(a) => {
                let aliased = a.row_stride().is_multiple_of(ALIASED);
                let often = cols.len().div_ceil(nr) >= PACK_A_PANELS && rows.len() > 8;
                a.col_stride() != 1 || aliased && often
            }
            Left::Packed(_) => false,
        };
        let mut edge = Edge::new();
        let mut t0 = first;
        while t0 < end {
            let t1 = end.min(t0 + per_block);
            let block_row = base + tiles.start(t0);
            if let (Left::Plain(a), true) = (self.left, pack_a) {
                scratch.a.reserve((tiles.start(t1) - tiles.start(t0)) * kc);
                for t in t0..t1 {
                    let (i0, i1) = (base + tiles.start(t), base + tiles.start(t + 1));
                    let span = (i0 - block_row) * kc..(i1 - block_row) * kc;
                    if kc > 0 {
                        pack::pack_rows(&a, i0..i1, ks.clone(), &mut scratch.a[span]);
                    }
                }
            }
            for (p, j) in cols.clone().step_by(nr).enumerate() {
                let width = nr.min(cols.end - j);
                let mut b = view.first.wrapping_add(p * view.panel_stride);
                let mut b_k = view.b_k;
                if let Some(panels) = view.maker {
                    panels.pack(ks.clone(), j..j + width, nr, &mut scratch.b);
                    b = scratch.b.as_ptr();
                }
                if in_place && width < nr {
                    // The row of B ends before the panel does.
                    // SAFETY: `b` is valid for kc rows of `width` elements.
                    b = unsafe { edge.copy_panel(b, b_k, kc, width, nr) };
                    b_k = nr;
                }
                // The first two tiles of a panel ask for a half each of the next one.
                let has_next = j + nr < cols.end && view.maker.is_none();
                let next = b.wrapping_add(if has_next { view.panel_stride } else { 0 });
                for t in t0..t1 {
                    let (i0, i1) = (base + tiles.start(t), base + tiles.start(t + 1));
                    let b_next = match t - t0 {
                        0 => next,
                        1 => next.wrapping_add(kc / 2 * nr),
                        _ => b,
                    };
                    let (a, a_row, a_k) = match self.left {
                        Left::Packed(a) => {
                            let at = i0 * self.k + ks.start * (i1 - i0);
                            (a.data().as_ptr().wrapping_add(at), 1, i1 - i0)
                        }
                        Left::Plain(_) if pack_a => {
                            (scratch.a.as_ptr().wrapping_add((i0 - block_row) * kc), 1, i1 - i0)
                        }
                        Left::Plain(a) => (
                            a.data().as_ptr().wrapping_add(i0 * a.row_stride() + ks.start),
                            a.row_stride(),
                            1,
                        ),
                    };
                    let tile = Tile {
                        rows: i1 - i0,
                        k: kc,
                        a,
                        a_row,
                        a_k,
                        a_next: a.wrapping_add((i1 - i0) * a_row),
                        b,
                        b_k,
                        b_next,
                        b_at: None,
                        c: c.wrapping_add(i0 * self.c_row + j),
                        c_row: self.c_row,
                        narrow: width <= nr / 2,
                        accumulate: ks.start > 0,
                        finish: (ks.end == self.k).then(|| Finish::at(self.epilogue, i0, j)),
                    };
                    // SAFETY: the caller's promises; the tile lies within the given part.
                    unsafe { run_tile(self.kernel, tile, width, &mut edge) };
                }
            }
            t0 = t1;
        }
    }
}

/// Runs one tile of which `width` columns lie inside the output.
///
/// # Safety
/// The pointers of the tile are valid for its rows, and for `width` columns where they are not
/// panels of B; the CPU has the kernel's instructions.
pub(in crate::kernels) unsafe fn run_tile(
    kernel: &Kernel,
    tile: Tile<'_>,
    width: usize,
    edge: &mut Edge,
) {
    if width == kernel.cols {
        // SAFETY: the caller's promise.
        unsafe { (kernel.tile)(&tile) };
        return;
    }
    let nr = kernel.cols;
    let mut t = tile;
    (t.c, t.c_row) = (edge.c.as_mut_ptr(), nr);
    let keep = tile.accumulate || tile.finish.is_some_and(|f| f.beta != 0.0);
    // SAFETY: rows × width elements are valid in C and in the residual, width in the bias; the
    // buffers hold a whole tile.
    unsafe {
        if keep {
            copy_rows(tile.c, tile.c_row, t.c, nr, tile.rows, width);
        }
        if let Some(f) = &mut t.finish {
            if !f.col_bias.is_null() {
                copy_rows(f.col_bias, 0, edge.bias.as_mut_ptr(), 0, 1, width);
                f.col_bias = edge.bias.as_ptr();
            }
            if !f.residual.is_null() {
                let to = edge.residual.as_mut_ptr();
                copy_rows(f.residual, f.residual_row, to, nr, tile.rows, width);
                (f.residual, f.residual_row) = (to, nr);
            }
        }
        (kernel.tile)(&t);
        copy_rows(t.c, nr, tile.c, tile.c_row, tile.rows, width);
    }
}

/// # Safety
/// Both sides are valid for `rows` rows of `width` elements and do not overlap.
unsafe fn copy_rows(
    from: *const f32,
    from_row: usize,
    to: *mut f32,
    to_row: usize,
    rows: usize,
    width: usize,
) {
    for i in 0..rows {
        // SAFETY: the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(from.add(i * from_row), to.add(i * to_row), width);
        }
    }
}

/// Stand-ins for the parts of a tile that lie beyond the right edge; the thread keeps their memory.
pub(in crate::kernels) struct Edge {
    c: [f32; MAX_TILE],
    residual: [f32; MAX_TILE],
    bias: [f32; MAX_COLS],
    panel: AlignedF32,
}

impl Drop for Edge {
    fn drop(&mut self) {
        EDGE_PANEL.set(std::mem::take(&mut self.panel));
    }
}

impl Edge {
    pub(in crate::kernels) fn new() -> Self {
        Self {
            c: [0.0; MAX_TILE],
            residual: [0.0; MAX_TILE],
            bias: [0.0; MAX_COLS],
            panel: EDGE_PANEL.take(),
        }
    }

    /// # Safety
    /// `b` is valid for `k` rows of `width` elements, `b_k` apart.
    unsafe fn copy_panel(
        &mut self,
        b: *const f32,
        b_k: usize,
        k: usize,
        width: usize,
        nr: usize,
    ) -> *const f32 {
        self.panel.reserve(k * nr);
        // SAFETY: the caller's promise; the panel holds k rows of nr elements.
        unsafe { copy_rows(b, b_k, self.panel.as_mut_ptr(), nr, k, width) };
        self.panel.as_ptr()
    }
}
