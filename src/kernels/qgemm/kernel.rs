//! What one instruction set provides to the product: one row of a table.

use super::scalar;
use crate::kernels::isa::{Isa, Kind};

/// One register tile: `C[rows × cols] (+)= A · B` over some groups of depths.
#[derive(Clone, Copy, Debug)]
// The portable tile knows no halves, and takes no bytes as they are.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(super) struct Tile {
    /// 1 up to the rows of the kernel.
    pub(super) rows: usize,
    pub(super) groups: usize,
    /// Rows of groups: two 16-bit integers each, or four unsigned bytes.
    pub(super) a: *const u8,
    /// Bytes from one row of A to the next.
    pub(super) a_row: usize,
    /// For each group of depths, as many groups of 8-bit integers as the kernel has columns.
    pub(super) b: *const i8,
    pub(super) c: *mut i32,
    pub(super) c_row: usize,
    /// Only the first half of the columns matters; the others may be left alone.
    pub(super) narrow: bool,
    pub(super) accumulate: bool,
    /// What is taken off after the last group.
    pub(super) zeros: Product,
    /// The same, where A is bytes that still hold their zero points.
    pub(super) shifts: Product,
}

/// The products of one number for each row and one for each column; null pointers stand for none.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) rows: *const i32,
    pub(super) cols: *const i32,
}

impl Product {
    pub(super) const NONE: Self = Self { rows: std::ptr::null(), cols: std::ptr::null() };
}

/// The tile of one instruction set.
#[derive(Debug)]
pub(super) struct Kernel {
    /// Rows of a full tile.
    pub(super) rows: usize,
    /// Columns of a tile: the width of the panels of B.
    pub(super) cols: usize,
    /// Depths that lie side by side.
    pub(super) group: usize,
    /// Groups of a block: a panel of it stays in the first-level cache, or passes through it.
    pub(super) block: usize,
    /// Whether A is unsigned bytes with their zero points, instead of 16-bit differences.
    pub(super) bytes: bool,
    /// # Safety
    /// The pointers of the tile are valid for what it describes; the CPU has the instructions.
    pub(super) tile: unsafe fn(&Tile),
}

/// Elements of the largest tile.
pub(super) const MAX_TILE: usize = 14 * 32;

impl Kernel {
    /// The kernel of an instruction set.
    pub(super) fn of(isa: Isa) -> &'static Self {
        match isa.kind() {
            Kind::Scalar => &scalar::KERNEL,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => &super::avx2::KERNEL,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 if isa.has_vnni() => &super::avx512::DOT_KERNEL,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => &super::avx512::KERNEL,
        }
    }
}
