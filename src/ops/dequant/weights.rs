//! Constant weights made ready once, for all nodes of a program that read them.

use super::{format, matrix};
use crate::error::Result;
use crate::graph::{Node, ValueId};
use crate::kernels::{BlockFormat, MatRef, PackedB, PackedBlocks};
use crate::ops::Prepare;
use std::cell::RefCell;
use std::sync::Arc;

/// Constant weights as the kernels read them.
#[derive(Debug)]
pub(super) enum Weights {
    /// Still in their blocks.
    Packed(PackedBlocks),
    /// Decoded, because no kernel multiplies in their format.
    Decoded(PackedB),
}

impl Weights {
    fn bytes(&self) -> usize {
        match self {
            Self::Packed(w) => w.bytes(),
            Self::Decoded(w) => w.bytes(),
        }
    }
}

/// What the nodes of a program have made ready so far.
#[derive(Debug, Default)]
pub(in crate::ops) struct ReadyWeights(RefCell<Vec<(ValueId, &'static str, Arc<Weights>)>>);

impl ReadyWeights {
    /// Bytes held.
    pub(in crate::ops) fn bytes(&self) -> usize {
        self.0.borrow().iter().map(|(_, _, w)| w.bytes()).sum()
    }

    /// The weights of a constant input; `None` if it is not constant.
    pub(super) fn get(&self, p: &Prepare<'_>, input: usize) -> Result<Option<Arc<Weights>>> {
        let format = format(p.node)?;
        let value = p.node.inputs.get(input).copied().flatten();
        let (Some(tensor), Some(value)) = (p.constant(input), value) else { return Ok(None) };
        let mut ready = self.0.borrow_mut();
        if let Some((.., found)) = ready.iter().find(|(v, f, _)| *v == value && *f == format.name) {
            return Ok(Some(Arc::clone(found)));
        }
        let blocks = matrix(tensor, format)?;
        let weights = if PackedBlocks::supports(format) {
            Weights::Packed(PackedBlocks::new(blocks)?)
        } else {
            let (n, k) = (blocks.rows(), blocks.cols());
            let mut decoded = vec![0.0; crate::tensor::element_count(&[n, k], 4)?];
            for (i, row) in decoded.chunks_exact_mut(k.max(1)).enumerate() {
                blocks.decode_row(i, row)?;
            }
            Weights::Decoded(PackedB::new(MatRef::row_major(&decoded, n, k)?.transposed())?)
        };
        let weights = Arc::new(weights);
        ready.push((value, format.name, Arc::clone(&weights)));
        Ok(Some(weights))
    }
}

/// Whether a product of the same graph packs the weights that the node reads at `input`.
pub(super) fn product_packs(p: &Prepare<'_>, input: usize, format: &BlockFormat) -> bool {
    let value = p.node.inputs.get(input).copied().flatten();
    let same = |node: &Node| {
        super::is_product(node)
            && node.inputs.get(1).copied().flatten() == value
            && node.string("format").ok().flatten() == Some(format.name)
    };
    PackedBlocks::supports(format) && p.graph.nodes().iter().any(same)
}
