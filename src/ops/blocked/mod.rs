//! Operators on blocked values, which the pass `blocked-layout` puts into segments.
//!
//! A value [N, C, H, W] with a multiple of 8 channels is blocked as [N, C/8, H, W, 8]. Operators
//! that work element by element read and make blocked values as any others. Those of this file's
//! domain know the layout. They are no part of the table of operators: a model file cannot name
//! them.

mod conv;
mod pool;
mod reorder;

#[cfg(test)]
mod tests;

pub(crate) use conv::{Suits, suits};
pub(crate) use reorder::{block_tensor, unblock};

use super::OpDef;
use crate::error::{Result, bail};
use crate::graph::{Dim, Node, ValueId};
use crate::kernels::BLOCK;

/// The domain of these operators.
pub(crate) const DOMAIN: &str = "brigade.blocked";

static INTERNAL: &[&OpDef] = &[
    &conv::CONV,
    &pool::MAX_POOL,
    &pool::AVERAGE_POOL,
    &pool::GLOBAL_AVERAGE_POOL,
    &reorder::TO_BLOCKED,
    &reorder::FROM_BLOCKED,
];

/// The operator of a node that a pass made.
pub(super) fn internal(node: &Node) -> Option<&'static OpDef> {
    let mut all = INTERNAL.iter().filter(|d| d.domain == node.domain && d.name == node.op);
    all.next().copied()
}

/// Whether a node's outputs are blocked; `of` tells it of its inputs.
pub(super) fn makes_blocked(node: &Node, of: &dyn Fn(ValueId) -> bool) -> bool {
    match (internal(node).is_some(), node.op.as_str()) {
        (true, "FromBlocked") => false,
        (true, "ToBlocked" | "BlockedConv") => true,
        // Everything else leaves values in the layout in which they come.
        _ => node.reads().any(of),
    }
}

/// Channels that lie side by side.
pub(crate) fn block() -> usize {
    BLOCK
}

/// The blocked form of plain extents; nothing where they have none.
pub(crate) fn blocked_dims(plain: &[Dim]) -> Option<Vec<Dim>> {
    let [n, c, h, w] = plain else { return None };
    let blocks = c.as_extent().filter(|c| c.is_multiple_of(BLOCK))? / BLOCK;
    Some(vec![n.clone(), Dim::of(blocks), h.clone(), w.clone(), Dim::of(BLOCK)])
}

/// The plain form of blocked extents.
fn plain_dims(blocked: &[Dim]) -> Result<Vec<Dim>> {
    let [n, blocks, h, w, block] = blocked else {
        bail!(Shape, "a blocked value has 5 axes, not {}", blocked.len());
    };
    Ok(vec![n.clone(), blocks.clone() * block.clone(), h.clone(), w.clone()])
}

/// The plain form of the shape of a blocked tensor.
fn plain_shape(blocked: &[usize]) -> Result<[usize; 4]> {
    match *blocked {
        [n, blocks, h, w, BLOCK] => Ok([n, blocks * BLOCK, h, w]),
        _ => bail!(Shape, "a blocked tensor of shape {blocked:?}, expected [N, C/8, H, W, 8]"),
    }
}
