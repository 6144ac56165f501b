//! The portable tile.

use super::kernel::{Kernel, Tile};

const ROWS: usize = 6;
const COLS: usize = 16;

pub(super) static KERNEL: Kernel =
    Kernel { rows: ROWS, cols: COLS, group: 2, block: 512, bytes: false, tile };

/// # Safety
/// The pointers of the tile are valid for what it describes.
unsafe fn tile(t: &Tile) {
    let mut acc = [[0i32; COLS]; ROWS];
    let rows = t.rows.min(ROWS);
    // SAFETY: the caller's promise.
    unsafe {
        for i in 0..if t.accumulate { rows } else { 0 } {
            acc[i] = t.c.add(i * t.c_row).cast::<[i32; COLS]>().read_unaligned();
        }
        for p in 0..t.groups {
            let b = t.b.add(p * 2 * COLS).cast::<[[i8; 2]; COLS]>().read_unaligned();
            for i in 0..rows {
                let a = t.a.add(i * t.a_row + p * 4).cast::<i32>().read_unaligned();
                let (lo, hi) = (i32::from(a as i16), a >> 16);
                for j in 0..COLS {
                    let sum = lo * i32::from(b[j][0]) + hi * i32::from(b[j][1]);
                    acc[i][j] = acc[i][j].wrapping_add(sum);
                }
            }
        }
        if !t.zeros.rows.is_null() {
            let zero = t.zeros.cols.cast::<[i32; COLS]>().read_unaligned();
            for i in 0..rows {
                let sum = *t.zeros.rows.add(i);
                for j in 0..COLS {
                    acc[i][j] = acc[i][j].wrapping_sub(sum.wrapping_mul(zero[j]));
                }
            }
        }
        for i in 0..rows {
            t.c.add(i * t.c_row).cast::<[i32; COLS]>().write_unaligned(acc[i]);
        }
    }
}
