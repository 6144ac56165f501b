//! Operators on blocked values, which the pass `blocked-layout` puts into segments.
//!
//! A value [N, C, H, W] with a multiple of 8 channels is blocked as [N, C/8, H, W, 8]; one with
//! a single spatial axis, [N, C, W], as [N, C/8, 1, W, 8]. Operators that work element by element
//! read and make blocked values as any others. Those of this file's domain know the layout. They
//! are no part of the table of operators: a model file cannot name them.

mod conv;
mod pool;
mod reorder;

#[cfg(test)]
mod tests;

pub(crate) use conv::{Suits, suits};
pub(crate) use reorder::{block_tensor, unblock};

use super::{AttributeDef, AttributeKind, OpDef};
use crate::error::{Result, bail};
use crate::graph::{Dim, Fact, Node, ValueId};
use crate::kernels::BLOCK;

/// The domain of these operators.
pub(crate) const DOMAIN: &str = "brigade.blocked";

/// How many spatial axes the plain form of a value has.
pub(crate) const SPATIAL_AXES: AttributeDef =
    AttributeDef::required("spatial_axes", AttributeKind::Int);

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

/// How many spatial axes the plain form of a node's outputs has, if these are blocked; `of` tells
/// it of its inputs.
pub(super) fn spatial_axes_of(
    node: &Node,
    facts: &[Option<Fact>],
    of: &dyn Fn(ValueId) -> Option<usize>,
) -> Option<usize> {
    match (internal(node).is_some(), node.op.as_str()) {
        (true, "FromBlocked") => None,
        (true, "ToBlocked") => facts.first()?.as_ref()?.rank()?.checked_sub(2),
        (true, "BlockedConv") => spatial_axes(node).ok(),
        // Everything else leaves values in the layout in which they come.
        _ => node.reads().find_map(of),
    }
}

/// Channels that lie side by side.
pub(crate) fn block() -> usize {
    BLOCK
}

/// The blocked form of plain extents; nothing where they have none.
pub(crate) fn blocked_dims(plain: &[Dim]) -> Option<Vec<Dim>> {
    let (n, c, h, w) = match plain {
        [n, c, w] => (n, c, Dim::fixed(1), w),
        [n, c, h, w] => (n, c, h.clone(), w),
        _ => return None,
    };
    let blocks = c.as_extent().filter(|c| c.is_multiple_of(BLOCK))? / BLOCK;
    Some(vec![n.clone(), Dim::of(blocks), h, w.clone(), Dim::of(BLOCK)])
}

/// The plain form, with so many spatial axes, of blocked extents.
fn plain_dims(blocked: &[Dim], spatial_axes: usize) -> Result<Vec<Dim>> {
    let [n, blocks, h, w, block] = blocked else {
        bail!(Shape, "a blocked value has 5 axes, not {}", blocked.len());
    };
    let c = blocks.clone() * block.clone();
    Ok(match spatial_axes {
        1 => vec![n.clone(), c, w.clone()],
        2 => vec![n.clone(), c, h.clone(), w.clone()],
        n => bail!(Graph, "attribute `spatial_axes` is {n}, expected 1 or 2"),
    })
}

/// The plain form, with so many spatial axes, of the shape of a blocked tensor.
fn plain_shape(blocked: &[usize], spatial_axes: usize) -> Result<Vec<usize>> {
    let &[n, blocks, h, w, BLOCK] = blocked else {
        bail!(Shape, "a blocked tensor of shape {blocked:?}, expected [N, C/8, H, W, 8]");
    };
    Ok(match spatial_axes {
        1 if h == 1 => vec![n, blocks * BLOCK, w],
        2 => vec![n, blocks * BLOCK, h, w],
        axes => bail!(Shape, "{blocked:?} is no blocked tensor of {axes} spatial axes"),
    })
}

fn spatial_axes(node: &Node) -> Result<usize> {
    let axes = node.required_int(SPATIAL_AXES.name)?;
    match usize::try_from(axes) {
        Ok(n @ 1..=2) => Ok(n),
        _ => bail!(Graph, "attribute `spatial_axes` is {axes}, expected 1 or 2"),
    }
}
