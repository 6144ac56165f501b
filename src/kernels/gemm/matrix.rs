//! Views of matrices in slices, checked once when they are made.

use crate::kernels::KernelError;

/// A matrix read through two strides, so that a transposed one needs no copy.
#[derive(Clone, Copy)]
pub struct MatRef<'a> {
    data: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

/// Elements that the shape and the strides reach.
fn extent(
    operand: &'static str,
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
) -> Result<usize, KernelError> {
    if rows == 0 || cols == 0 {
        return Ok(0);
    }
    let along = |n: usize, stride: usize| (n - 1).checked_mul(stride);
    along(rows, row_stride)
        .zip(along(cols, col_stride))
        .and_then(|(r, c)| r.checked_add(c)?.checked_add(1))
        .ok_or(KernelError::Overflow { operand })
}

impl<'a> MatRef<'a> {
    /// Element (i, j) is `data[i * row_stride + j * col_stride]`.
    ///
    /// # Errors
    /// When `data` is too short.
    pub fn new(
        data: &'a [f32],
        rows: usize,
        cols: usize,
        row_stride: usize,
        col_stride: usize,
    ) -> Result<Self, KernelError> {
        let need = extent("matrix", rows, cols, row_stride, col_stride)?;
        if data.len() < need {
            return Err(KernelError::Length { operand: "matrix", need, have: data.len() });
        }
        Ok(Self { data, rows, cols, row_stride, col_stride })
    }

    /// Rows of `cols` consecutive elements.
    ///
    /// # Errors
    /// When `data` is too short.
    pub fn row_major(data: &'a [f32], rows: usize, cols: usize) -> Result<Self, KernelError> {
        Self::new(data, rows, cols, cols, 1)
    }

    /// The same data with rows and columns exchanged.
    pub fn transposed(self) -> Self {
        Self {
            data: self.data,
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
        }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    pub(in crate::kernels) fn row_stride(&self) -> usize {
        self.row_stride
    }

    pub(in crate::kernels) fn col_stride(&self) -> usize {
        self.col_stride
    }

    pub(in crate::kernels) fn data(&self) -> &'a [f32] {
        self.data
    }

    /// Element (i, j), which must lie within the shape.
    #[cfg(test)]
    pub(in crate::kernels) fn at(&self, i: usize, j: usize) -> f32 {
        self.data[i * self.row_stride + j * self.col_stride]
    }
}

impl std::fmt::Debug for MatRef<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MatRef")
            .field("shape", &(self.rows, self.cols))
            .field("strides", &(self.row_stride, self.col_stride))
            .finish()
    }
}

/// A matrix to be written: rows of consecutive elements, `row_stride` apart.
pub struct MatMut<'a> {
    data: &'a mut [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
}

impl<'a> MatMut<'a> {
    /// Element (i, j) is `data[i * row_stride + j]`.
    ///
    /// # Errors
    /// When `data` is too short or rows overlap.
    pub fn new(
        data: &'a mut [f32],
        rows: usize,
        cols: usize,
        row_stride: usize,
    ) -> Result<Self, KernelError> {
        let need = extent("out", rows, cols, row_stride, 1)?;
        if data.len() < need {
            return Err(KernelError::Length { operand: "out", need, have: data.len() });
        }
        if rows > 1 && row_stride < cols {
            return Err(KernelError::Invalid {
                operand: "out",
                problem: "has overlapping rows: its row stride is less than its width",
            });
        }
        Ok(Self { data, rows, cols, row_stride })
    }

    /// Rows without gaps.
    ///
    /// # Errors
    /// When `data` is too short.
    pub fn row_major(data: &'a mut [f32], rows: usize, cols: usize) -> Result<Self, KernelError> {
        Self::new(data, rows, cols, cols)
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    pub(in crate::kernels) fn row_stride(&self) -> usize {
        self.row_stride
    }

    pub(in crate::kernels) fn data_mut(&mut self) -> &mut [f32] {
        self.data
    }
}

impl std::fmt::Debug for MatMut<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MatMut")
            .field("shape", &(self.rows, self.cols))
            .field("row_stride", &self.row_stride)
            .finish()
    }
}
