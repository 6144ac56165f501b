//! Pooling: `MaxPool`, `AveragePool`, `LpPool` and the global forms.

mod global;
mod plain;
mod sliding;
mod unpool;

pub(super) use global::{GLOBAL_AVERAGE_POOL, GLOBAL_LP_POOL, GLOBAL_MAX_POOL};
pub(super) use sliding::{AVERAGE_POOL, LP_POOL, MAX_POOL, cost};
pub(super) use unpool::MAX_UNPOOL;

use super::batch::{BatchFlow, BatchQuery};

/// Each plane is pooled by itself: the batch may be along items or channels.
fn batch(q: &BatchQuery<'_>) -> BatchFlow {
    match q.axes.first().copied().flatten() {
        axis @ (None | Some(0 | 1)) => q.everywhere(axis),
        Some(a) => Err(format!("it pools over axis {a}, which carries the batch")),
    }
}
