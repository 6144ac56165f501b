//! What the recurrent operators need of a float: f32 by the kernels, f64 by plain loops.

use crate::error::Result;
use crate::kernels::{Bias, Epilogue, MatMut, MatRef, PackedB, Residual, gemm, math};
use crate::ops::Threads;
use crate::ops::matmul::plain::{self, Ring, View};
use crate::tensor::Element;

/// The rows that are added to a product: the first one's start and the distance between them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Addend<'a, T> {
    pub(super) data: &'a [T],
    pub(super) row_stride: usize,
}

/// A float.
pub(super) trait Real: Element + Ring + std::ops::Neg<Output = Self> {
    /// A right operand that is used again and again.
    type Packed: Send + Sync + std::fmt::Debug;

    fn number(x: f64) -> Self;
    fn minus(self, other: Self) -> Self;
    fn wide(self) -> f64;

    /// `weights`, [columns, depth], as the right operand of products.
    fn pack(weights: &[Self], columns: usize, depth: usize) -> Result<Self::Packed>;

    /// `out = x · weightsᵀ + bias + addend` with `rows` rows.
    fn product(
        x: &[Self],
        rows: usize,
        weights: &Self::Packed,
        bias: Option<&[Self]>,
        addend: Option<Addend<'_, Self>>,
        out: &mut [Self],
        threads: &Threads,
    ) -> Result<()>;

    fn sigmoid(x: &mut [Self]);
    fn tanh(x: &mut [Self]);
}

impl Real for f32 {
    type Packed = PackedB;

    fn number(x: f64) -> Self {
        x as Self
    }
    fn minus(self, other: Self) -> Self {
        self - other
    }
    fn wide(self) -> f64 {
        f64::from(self)
    }

    fn pack(weights: &[Self], columns: usize, depth: usize) -> Result<PackedB> {
        Ok(PackedB::new(MatRef::row_major(weights, columns, depth)?.transposed())?)
    }

    fn product(
        x: &[Self],
        rows: usize,
        weights: &PackedB,
        bias: Option<&[Self]>,
        addend: Option<Addend<'_, Self>>,
        out: &mut [Self],
        threads: &Threads,
    ) -> Result<()> {
        let (k, n) = (weights.depth(), weights.cols());
        let epilogue = Epilogue {
            bias: bias.map_or(Bias::None, Bias::PerColumn),
            residual: addend.map(|a| Residual {
                data: a.data,
                row_stride: a.row_stride,
                after_activation: false,
            }),
            ..Epilogue::default()
        };
        let parallel = threads.for_work(rows.saturating_mul(k).saturating_mul(n));
        let (x, out) = (MatRef::row_major(x, rows, k)?, MatMut::row_major(out, rows, n)?);
        Ok(gemm(x, weights, out, &epilogue, parallel)?)
    }

    fn sigmoid(x: &mut [Self]) {
        math::sigmoid(x);
    }
    fn tanh(x: &mut [Self]) {
        math::tanh(x);
    }
}

/// Weights as they lie.
#[derive(Debug)]
pub(super) struct Plain {
    weights: Vec<f64>,
    columns: usize,
    depth: usize,
}

impl Real for f64 {
    type Packed = Plain;

    fn number(x: f64) -> Self {
        x
    }
    fn minus(self, other: Self) -> Self {
        self - other
    }
    fn wide(self) -> f64 {
        self
    }

    fn pack(weights: &[Self], columns: usize, depth: usize) -> Result<Plain> {
        Ok(Plain { weights: weights.to_vec(), columns, depth })
    }

    fn product(
        x: &[Self],
        rows: usize,
        weights: &Plain,
        bias: Option<&[Self]>,
        addend: Option<Addend<'_, Self>>,
        out: &mut [Self],
        threads: &Threads,
    ) -> Result<()> {
        let (k, n) = (weights.depth, weights.columns);
        let right = View::new(&weights.weights, k, n, true);
        plain::multiply(View::new(x, rows, k, false), right, out, k, n, threads);
        for (i, row) in out.chunks_exact_mut(n.max(1)).enumerate() {
            if let Some(bias) = bias {
                row.iter_mut().zip(bias).for_each(|(o, b)| *o += b);
            }
            if let Some(a) = addend {
                let add = &a.data[i * a.row_stride..];
                row.iter_mut().zip(add).for_each(|(o, a)| *o += a);
            }
        }
        Ok(())
    }

    fn sigmoid(x: &mut [Self]) {
        x.iter_mut().for_each(|x| *x = 1.0 / (1.0 + (-*x).exp()));
    }
    fn tanh(x: &mut [Self]) {
        x.iter_mut().for_each(|x| *x = x.tanh());
    }
}
