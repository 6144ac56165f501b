//! Weights that stay in their blocks: `DequantMatMul` and `DequantGather`.

mod gather;
mod matmul;
mod weights;

pub(super) use gather::DEQUANT_GATHER;
pub(super) use matmul::DEQUANT_MATMUL;
pub(super) use weights::ReadyWeights;

use super::{AttributeDef, AttributeKind, Infer};
use crate::error::{Result, bail, err};
use crate::graph::{Dim, Graph, Node};
use crate::kernels::{BLOCK_FORMATS, BlockFormat, BlockMatrix, PackedBlocks};
use crate::tensor::{DType, Tensor};

const FORMAT: AttributeDef = AttributeDef::required("format", AttributeKind::String);
const BYTES: &[DType] = &[DType::U8];

/// The format that a node's weights are in.
fn format(node: &Node) -> Result<&'static BlockFormat> {
    let Some(name) = node.string("format")? else {
        bail!(Graph, "node `{}` ({}) lacks its attribute `format`", node.name, node.op);
    };
    BlockFormat::named(name).ok_or_else(|| {
        let known: Vec<_> = BLOCK_FORMATS.iter().map(|f| f.name).collect();
        err!(Unsupported, "attribute `format` is `{name}`, which is no block format")
            .with_help(format!("the formats are {}", known.join(", ")))
    })
}

fn is_product(node: &Node) -> bool {
    node.domain == "brigade" && node.op == "DequantMatMul"
}

/// Words about each product of a graph whose weights do not stay in their blocks.
pub(crate) fn decoded_weights(graph: &Graph) -> Vec<String> {
    let told = |node: &Node| {
        let format =
            format(node).ok().filter(|f| is_product(node) && !PackedBlocks::supports(f))?;
        let BlockFormat { name, bytes, weights, .. } = format;
        let times = (4 * weights) as f64 / *bytes as f64;
        Some(format!(
            "node `{}`: weights in {name} are decoded once, to {times:.1} times their bytes: no \
             kernel multiplies in that format",
            node.name
        ))
    };
    graph.nodes().iter().filter_map(told).collect()
}

/// Rows of weights, and weights in a row, of the input `w`.
fn extents(i: &Infer<'_>, port: usize, format: &BlockFormat) -> Result<Option<(Dim, Dim)>> {
    let Some(shape) = i.shape(port) else { return Ok(None) };
    let [rows, bytes] = &shape[..] else {
        bail!(Shape, "input `w` has {} axes, expected rows of blocks", shape.len());
    };
    let weights = match bytes.as_extent() {
        Some(bytes) => Dim::of(row_weights(bytes, format)?),
        None => (bytes.clone().floor_div(&Dim::of(format.bytes))) * Dim::of(format.weights),
    };
    Ok(Some((rows.clone(), weights)))
}

/// How many weights a row of so many bytes holds.
fn row_weights(bytes: usize, format: &BlockFormat) -> Result<usize> {
    let BlockFormat { name, bytes: block, weights, .. } = format;
    if !bytes.is_multiple_of(*block) {
        return Err(err!(
            Shape,
            "input `w` has rows of {bytes} bytes, which are no whole blocks of {name}: {block} bytes \
             hold {weights} weights"
        )
        .with_help("set `format` to the type that the weight is stored in"));
    }
    Ok(bytes / block * weights)
}

/// The weights of a tensor.
fn matrix<'a>(w: &'a Tensor, format: &'static BlockFormat) -> Result<BlockMatrix<'a>> {
    let &[rows, bytes] = &w.shape()[..] else {
        bail!(Shape, "input `w` is {}, expected rows of blocks", w.describe());
    };
    row_weights(bytes, format)?;
    Ok(BlockMatrix::new(format, w.as_slice::<u8>()?, rows, bytes)?)
}

/// 32 weights of Q8_0: the scale 0.5 times `quants`, then zeros.
fn q8_block(quants: &[i8]) -> Vec<u8> {
    let mut block = vec![0x00, 0x38];
    block.extend(quants.iter().map(|q| q.cast_unsigned()));
    block.resize(34, 0);
    block
}
