//! Rows decoded to floats a few at a time, for every format.

use super::BlockMatrix;
use crate::kernels::error::{check_len, checked_product};
use crate::kernels::parallel::{SharedOut, for_each_part, split_range};
use crate::kernels::{Epilogue, KernelError, MatMut, MatRef, Parallel, Serial, gemm};
use std::sync::Mutex;

/// Rows that are decoded at a time, a multiple of every kernel's columns.
const ROWS: usize = 64;

pub(super) fn matmul(
    x: &[f32],
    m: usize,
    w: BlockMatrix<'_>,
    out: &mut [f32],
    par: &dyn Parallel,
) -> Result<(), KernelError> {
    let (k, n) = (w.cols(), w.rows());
    check_len("x", x.len(), checked_product("x", &[m, k])?)?;
    let size = checked_product("out", &[m, n])?;
    check_len("out", out.len(), size)?;
    if size == 0 {
        return Ok(());
    }
    let x = MatRef::row_major(x, m, k)?;
    let parts = par.threads().min(n.div_ceil(ROWS)).max(1);
    let shared = SharedOut::new(&mut out[..size]);
    let failed = Mutex::new(None);
    for_each_part(par, parts, &|part| {
        let range = split_range(n, parts, part, ROWS);
        let mut decoded = vec![0.0; ROWS.min(range.len()) * k];
        let mut sums = vec![0.0; ROWS.min(range.len()) * m];
        let mut chunk = |first: usize, rows: usize| -> Result<(), KernelError> {
            let decoded = &mut decoded[..rows * k];
            for (i, row) in decoded.chunks_exact_mut(k.max(1)).enumerate() {
                w.decode_row(first + i, row)?;
            }
            let right = MatRef::row_major(decoded, rows, k)?.transposed();
            let sums = &mut sums[..m * rows];
            let to = MatMut::row_major(sums, m, rows)?;
            gemm(x, right, to, &Epilogue::default(), &Serial)?;
            for (i, sums) in sums.chunks_exact(rows).enumerate() {
                // SAFETY: row i < m of the output holds n elements, and parts are disjoint columns.
                let to = unsafe {
                    std::slice::from_raw_parts_mut(shared.ptr().add(i * n + first), rows)
                };
                to.copy_from_slice(sums);
            }
            Ok(())
        };
        for first in range.clone().step_by(ROWS) {
            if let Err(e) = chunk(first, ROWS.min(range.end - first)) {
                *failed.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = Some(e);
            }
        }
    });
    match failed.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner) {
        Some(e) => Err(e),
        None => Ok(()),
    }
}
