//! Normalisation by mean and variance.

mod batch_norm;
mod group;
mod layer;
mod local;

pub(super) use batch_norm::BATCH_NORMALIZATION;
pub(super) use group::{GROUP_NORMALIZATION, INSTANCE_NORMALIZATION};
pub(super) use layer::LAYER_NORMALIZATION;
pub(super) use local::{LP_NORMALIZATION, LRN, MEAN_VARIANCE_NORMALIZATION};

use super::elementwise::Float;
use super::reduce::{Sum, SumOfSquares, fold_row};

/// The mean, and one over the root of variance plus epsilon, in two passes.
fn moments<T: Float>(row: &[T], epsilon: f64) -> (T, T) {
    let n = T::narrow(row.len() as f64);
    let mean = fold_row::<Sum, T>(row).over(n);
    let mut aside = [T::ZERO; 256];
    let mut sum = T::ZERO;
    for chunk in row.chunks(aside.len()) {
        let centred = &mut aside[..chunk.len()];
        for (c, &x) in centred.iter_mut().zip(chunk) {
            *c = x.minus(mean);
        }
        sum = sum.plus(fold_row::<SumOfSquares, T>(centred));
    }
    let variance = sum.wide() / n.wide();
    (mean, T::narrow(1.0 / (variance + epsilon).sqrt()))
}
