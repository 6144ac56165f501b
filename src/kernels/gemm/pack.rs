//! Operands rearranged into the order in which the tiles read them.

use super::MatRef;
use super::kernel::Kernel;
use crate::kernels::aligned::AlignedF32;
use crate::kernels::error::checked_product;
use crate::kernels::{Isa, KernelError};
use std::ops::Range;

/// m rows cut into tiles of nearly equal height, so that none is a single leftover row.
#[derive(Clone, Copy, Debug)]
pub(in crate::kernels) struct RowTiles {
    count: usize,
    height: usize,
    /// So many tiles, the first ones, have one row more.
    taller: usize,
}

impl RowTiles {
    pub(in crate::kernels) fn new(m: usize, kernel_rows: usize) -> Self {
        let count = m.div_ceil(kernel_rows);
        Self { count, height: m / count.max(1), taller: m % count.max(1) }
    }

    pub(in crate::kernels) fn count(&self) -> usize {
        self.count
    }

    /// The first row of tile `t`; m for the one after the last.
    pub(in crate::kernels) fn start(&self, t: usize) -> usize {
        self.height * t + self.taller.min(t)
    }

    /// The tile that starts at `row`, which must be the start of one or m.
    pub(in crate::kernels) fn tile_at(&self, row: usize) -> usize {
        if row <= self.taller * (self.height + 1) {
            row / (self.height + 1)
        } else {
            self.taller + (row - self.taller * (self.height + 1)) / self.height.max(1)
        }
    }
}

/// Writes rows `rows` and depths `ks` of `a` as one tile: for each depth, the rows side by side.
pub(in crate::kernels) fn pack_rows(
    a: &MatRef<'_>,
    rows: Range<usize>,
    ks: Range<usize>,
    out: &mut [f32],
) {
    let height = rows.len();
    let (rs, cs) = (a.row_stride(), a.col_stride());
    let data = a.data();
    if rs == 1 {
        for (p, chunk) in ks.zip(out.chunks_exact_mut(height)) {
            chunk.copy_from_slice(&data[p * cs + rows.start..][..height]);
        }
        return;
    }
    for (i, row) in rows.enumerate() {
        let column = out[i..].iter_mut().step_by(height);
        if cs == 1 {
            let source = &data[row * rs..][ks.clone()];
            column.zip(source).for_each(|(o, &v)| *o = v);
        } else {
            column.zip(ks.clone()).for_each(|(o, p)| *o = data[row * rs + p * cs]);
        }
    }
}

/// Panels that are written side by side, so that each row of B is read in long runs.
const SIDE_BY_SIDE: usize = 8;

/// Writes depths `ks` and columns `cols` of `b` as panels of `width` columns, the missing ones
/// zero: panel after panel, for each depth the columns side by side.
pub(in crate::kernels) fn pack_panels(
    b: &MatRef<'_>,
    ks: Range<usize>,
    cols: Range<usize>,
    width: usize,
    out: &mut [f32],
) {
    let size = ks.len() * width;
    if size == 0 {
        return;
    }
    let mut panels = out[..size * cols.len().div_ceil(width)].chunks_exact_mut(size);
    let whole = cols.len() / width;
    let mut done = 0;
    if b.col_stride() == 1 {
        while done < whole {
            let count = SIDE_BY_SIDE.min(whole - done);
            let group = panels.by_ref().take(count);
            let first = cols.start + done * width;
            match width {
                8 => copy_rows::<8>(b, ks.clone(), first, group),
                16 => copy_rows::<16>(b, ks.clone(), first, group),
                _ => copy_rows::<32>(b, ks.clone(), first, group),
            }
            done += count;
        }
    }
    for (i, panel) in panels.enumerate() {
        let from = cols.start + (done + i) * width;
        pack_panel(b, ks.clone(), from..cols.end.min(from + width), width, panel);
    }
}

/// Whole panels of W columns from column `first` on, where the columns of B are neighbours.
fn copy_rows<'p, const W: usize>(
    b: &MatRef<'_>,
    ks: Range<usize>,
    first: usize,
    panels: impl Iterator<Item = &'p mut [f32]>,
) {
    let mut lines: [std::slice::IterMut<'_, [f32; W]>; SIDE_BY_SIDE] = Default::default();
    let mut count = 0;
    for (to, panel) in lines.iter_mut().zip(panels) {
        *to = panel.as_chunks_mut::<W>().0.iter_mut();
        count += 1;
    }
    for p in ks {
        let row = &b.data()[p * b.row_stride() + first..][..count * W];
        for (to, from) in lines.iter_mut().zip(row.as_chunks::<W>().0) {
            if let Some(line) = to.next() {
                *line = *from;
            }
        }
    }
}

/// One panel of any layout and width.
fn pack_panel(b: &MatRef<'_>, ks: Range<usize>, cols: Range<usize>, width: usize, out: &mut [f32]) {
    let have = cols.len();
    let (rs, cs) = (b.row_stride(), b.col_stride());
    let data = b.data();
    if cs == 1 {
        for (p, line) in ks.zip(out.chunks_exact_mut(width)) {
            line[..have].copy_from_slice(&data[p * rs + cols.start..][..have]);
            line[have..].fill(0.0);
        }
        return;
    }
    let depth = ks.len();
    if rs == 1 {
        // Reads runs of each column and scatters them, a few lines of the panel at a time.
        let mut done = 0;
        while done < depth {
            let run = (depth - done).min(16);
            let lines = &mut out[done * width..(done + run) * width];
            if have < width {
                lines.fill(0.0);
            }
            for (j, col) in cols.clone().enumerate() {
                let source = &data[col * cs + ks.start + done..][..run];
                lines[j..].iter_mut().step_by(width).zip(source).for_each(|(o, &v)| *o = v);
            }
            done += run;
        }
        return;
    }
    for (p, line) in ks.zip(out.chunks_exact_mut(width)) {
        for (o, col) in line.iter_mut().zip(cols.clone()) {
            *o = data[p * rs + col * cs];
        }
        line[have..].fill(0.0);
    }
}

/// A constant left operand (the weights of a convolution), packed into tiles of rows.
#[derive(Clone, Debug)]
pub struct PackedA {
    isa: Isa,
    m: usize,
    k: usize,
    tiles: RowTiles,
    data: AlignedF32,
}

impl PackedA {
    /// Packs an m × k matrix for [`Isa::best`].
    ///
    /// # Errors
    /// When the packed size overflows.
    pub fn new(a: MatRef<'_>) -> Result<Self, KernelError> {
        Self::for_isa(Isa::best(), a)
    }

    /// Packs for a stated instruction set.
    ///
    /// # Errors
    /// When the packed size overflows.
    pub fn for_isa(isa: Isa, a: MatRef<'_>) -> Result<Self, KernelError> {
        let (m, k) = (a.rows(), a.cols());
        let tiles = RowTiles::new(m, Kernel::of(isa).rows);
        let mut data = AlignedF32::zeroed(checked_product("lhs", &[m, k])?);
        if k > 0 {
            for t in 0..tiles.count() {
                let rows = tiles.start(t)..tiles.start(t + 1);
                let span = rows.start * k..rows.end * k;
                pack_rows(&a, rows, 0..k, &mut data[span]);
            }
        }
        Ok(Self { isa, m, k, tiles, data })
    }

    /// Rows m.
    pub fn rows(&self) -> usize {
        self.m
    }

    /// Depth k.
    pub fn depth(&self) -> usize {
        self.k
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.data.len() * 4
    }

    /// The instruction set it was packed for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    pub(in crate::kernels) fn tiles(&self) -> RowTiles {
        self.tiles
    }

    /// Tile after tile, each `k` × its height.
    pub(in crate::kernels) fn data(&self) -> &[f32] {
        &self.data
    }
}

/// A constant right operand (the weights of a linear layer), packed into panels of columns.
#[derive(Clone, Debug)]
pub struct PackedB {
    isa: Isa,
    k: usize,
    n: usize,
    data: AlignedF32,
}

impl PackedB {
    /// Packs a k × n matrix for [`Isa::best`]; give [`MatRef::transposed`] for weights that are
    /// stored n × k.
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
        let width = Kernel::of(isa).cols;
        let size = checked_product("rhs", &[n.div_ceil(width), k, width])?;
        let mut data = AlignedF32::zeroed(size);
        pack_panels(&b, 0..k, 0..n, width, &mut data);
        Ok(Self { isa, k, n, data })
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
        self.data.len() * 4
    }

    /// The instruction set it was packed for.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Panel after panel, each `k` × the kernel's columns.
    pub(in crate::kernels) fn data(&self) -> &[f32] {
        &self.data
    }
}
