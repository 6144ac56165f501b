//! The portable tile: plain loops that the compiler turns into whatever vectors it has.

use super::kernel::{Finish, Kernel, Tile, VectorKernels};

const ROWS: usize = 4;
const COLS: usize = 8;

pub(super) static KERNEL: Kernel =
    Kernel { rows: ROWS, cols: COLS, tile, vector: VectorKernels { dot_rows, add_rows, panels } };

/// A fused multiply-add only where the hardware has one; a library call would be far slower.
#[inline(always)]
pub(super) fn multiply_add(a: f32, b: f32, c: f32) -> f32 {
    if cfg!(any(target_feature = "fma", target_arch = "aarch64")) {
        a.mul_add(b, c)
    } else {
        a * b + c
    }
}

/// # Safety
/// As for [`Kernel::tile`].
unsafe fn tile(t: &Tile<'_>) {
    // SAFETY: the tile has 1 to ROWS rows, and its pointers are valid for what it describes.
    unsafe {
        match t.rows {
            1 => rows::<1>(t),
            2 => rows::<2>(t),
            3 => rows::<3>(t),
            _ => rows::<ROWS>(t),
        }
    }
}

/// # Safety
/// As for [`Kernel::tile`], for R rows.
unsafe fn rows<const R: usize>(t: &Tile<'_>) {
    let mut acc = [[0.0f32; COLS]; R];
    // SAFETY: the pointers are valid for R rows, k depths and COLS columns.
    unsafe {
        if t.accumulate {
            for i in 0..R {
                acc[i] = t.c.add(i * t.c_row).cast::<[f32; COLS]>().read_unaligned();
            }
        }
        for p in 0..t.k {
            let b =
                t.b.add(t.b_at.map_or(p * t.b_k, |at| at[p]))
                    .cast::<[f32; COLS]>()
                    .read_unaligned();
            for i in 0..R {
                let a = *t.a.add(i * t.a_row + p * t.a_k);
                for j in 0..COLS {
                    acc[i][j] = multiply_add(a, b[j], acc[i][j]);
                }
            }
        }
        for i in 0..R {
            if let Some(f) = &t.finish {
                finish(f, i, &mut acc[i], t.c.add(i * t.c_row));
            }
            t.c.add(i * t.c_row).cast::<[f32; COLS]>().write_unaligned(acc[i]);
        }
    }
}

/// # Safety
/// The operands of the epilogue are valid for row `i` and COLS columns, `c` for COLS elements
/// where beta is not 0.
unsafe fn finish(f: &Finish, i: usize, acc: &mut [f32; COLS], c: *const f32) {
    for j in 0..COLS {
        let mut v = acc[j] * f.alpha;
        // SAFETY: the caller's promise.
        let residual = unsafe {
            if f.beta != 0.0 {
                v += f.beta * *c.add(j);
            }
            if !f.row_bias.is_null() {
                v += *f.row_bias.add(i);
            }
            if !f.col_bias.is_null() {
                v += *f.col_bias.add(j);
            }
            if f.residual.is_null() { None } else { Some(*f.residual.add(i * f.residual_row + j)) }
        };
        acc[j] = match residual {
            Some(r) if f.residual_last => f.activation.apply(v) + r,
            Some(r) => f.activation.apply(v + r),
            None => f.activation.apply(v),
        };
    }
}

/// # Safety
/// As for [`VectorKernels::dot_rows`].
unsafe fn dot_rows(matrix: *const f32, row: usize, x: &[f32], y: &mut [f32]) {
    for (i, y) in y.iter_mut().enumerate() {
        // SAFETY: row i of the matrix holds x.len() elements.
        let r = unsafe { std::slice::from_raw_parts(matrix.add(i * row), x.len()) };
        let mut lanes = [0.0f32; 8];
        let (mut rs, mut xs) = (r.chunks_exact(8), x.chunks_exact(8));
        for (r, x) in (&mut rs).zip(&mut xs) {
            for l in 0..8 {
                lanes[l] = multiply_add(r[l], x[l], lanes[l]);
            }
        }
        for (l, (r, x)) in rs.remainder().iter().zip(xs.remainder()).enumerate() {
            lanes[l] = multiply_add(*r, *x, lanes[l]);
        }
        *y = lanes.iter().sum();
    }
}

/// # Safety
/// As for [`VectorKernels::add_rows`].
unsafe fn add_rows(matrix: *const f32, row: usize, x: &[f32], y: &mut [f32]) {
    y.fill(0.0);
    for (p, &x) in x.iter().enumerate() {
        // SAFETY: row p of the matrix holds y.len() elements.
        let r = unsafe { std::slice::from_raw_parts(matrix.add(p * row), y.len()) };
        for (y, &r) in y.iter_mut().zip(r) {
            *y = multiply_add(x, r, *y);
        }
    }
}

/// # Safety
/// As for [`VectorKernels::panels`].
unsafe fn panels(panels: *const f32, panel: usize, x: &[f32], y: &mut [f32]) {
    for (i, y) in y.chunks_exact_mut(COLS).enumerate() {
        // SAFETY: panel i holds x.len() rows of COLS elements, COLS apart.
        unsafe { add_rows(panels.add(i * panel), COLS, x, y) };
    }
}
