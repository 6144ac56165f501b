//! The portable tile.

use super::{COLS, ROWS, Tile};

/// # Safety
/// The pointers of the tile are valid for what it describes.
pub(super) unsafe fn tile(t: &Tile) {
    let mut acc = [[0i32; COLS]; ROWS];
    let rows = t.rows.min(ROWS);
    // SAFETY: the caller's promise.
    unsafe {
        for i in 0..if t.accumulate { rows } else { 0 } {
            acc[i] = t.c.add(i * t.c_row).cast::<[i32; COLS]>().read_unaligned();
        }
        for p in 0..t.pairs {
            let b = t.b.add(p * 2 * COLS).cast::<[[i8; 2]; COLS]>().read_unaligned();
            for i in 0..rows {
                let a = *t.a.add(i * t.a_row + p);
                let (lo, hi) = (i32::from(a as i16), a >> 16);
                for j in 0..COLS {
                    let sum = lo * i32::from(b[j][0]) + hi * i32::from(b[j][1]);
                    acc[i][j] = acc[i][j].wrapping_add(sum);
                }
            }
        }
        if !t.zero.is_null() {
            let zero = t.zero.cast::<[i32; COLS]>().read_unaligned();
            for i in 0..rows {
                let sum = *t.sums.add(i);
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
