//! `DepthToSpace` and `SpaceToDepth`.

use super::batch::{BatchFlow, BatchQuery};
use super::case::{Case, ints, iota};
use super::def::types::ANY;
use super::movement::{Strided, walked};
use super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, cost};
use crate::error::{Result, bail, err};
use crate::graph::{Dim, Node};
use crate::tensor::{Tensor, strides};

/// Channels become blocks of pixels.
pub(super) static DEPTH_TO_SPACE: OpDef = OpDef {
    name: "DepthToSpace",
    domain: "",
    since: 1,
    attributes: &[
        AttributeDef::required("blocksize", AttributeKind::Int),
        AttributeDef::optional("mode", AttributeKind::String),
    ],
    inputs: &[Port::required("input", ANY)],
    outputs: &[Port::required("output", ANY)],
    infer: |i| {
        let b = block(i.node)?;
        columns_first(i.node)?;
        let divisor = Dim::of(b) * Dim::of(b);
        infer(i, |[n, c, h, w]| [n, c.floor_div(&divisor), h * Dim::of(b), w * Dim::of(b)])
    },
    batch: keeps_first,
    cost: cost::copy,
    prepare: |p| {
        let (block, columns_first) = (block(p.node)?, columns_first(p.node)?);
        Ok(Box::new(DepthToSpace { block, columns_first }))
    },
    cases: depth_to_space_cases,
};

/// Blocks of pixels become channels.
pub(super) static SPACE_TO_DEPTH: OpDef = OpDef {
    name: "SpaceToDepth",
    domain: "",
    since: 1,
    attributes: &[AttributeDef::required("blocksize", AttributeKind::Int)],
    inputs: &[Port::required("input", ANY)],
    outputs: &[Port::required("output", ANY)],
    infer: |i| {
        let b = Dim::of(block(i.node)?);
        infer(i, |[n, c, h, w]| [n, c * b.clone() * b.clone(), h.floor_div(&b), w.floor_div(&b)])
    },
    batch: keeps_first,
    cost: cost::copy,
    prepare: |p| Ok(Box::new(SpaceToDepth { block: block(p.node)? })),
    cases: space_to_depth_cases,
};

fn block(node: &Node) -> Result<usize> {
    let b = node.required_int("blocksize")?;
    // The square of the block size must be a number, too.
    match u16::try_from(b) {
        Ok(b) if b > 0 => Ok(usize::from(b)),
        _ => bail!(Graph, "`blocksize` is {b}; it must be from 1 to {}", u16::MAX),
    }
}

/// Whether the channel is the innermost part of the depth (`CRD`) or the outermost one (`DCR`).
fn columns_first(node: &Node) -> Result<bool> {
    match node.string("mode")?.unwrap_or("DCR") {
        "DCR" => Ok(false),
        "CRD" => Ok(true),
        other => bail!(Graph, "`mode` is `{other}`; use DCR or CRD"),
    }
}

fn infer(i: &mut Infer<'_>, shape: impl FnOnce([Dim; 4]) -> [Dim; 4]) -> Result<()> {
    let known = match i.shape(0) {
        Some(s) => Some(
            <[Dim; 4]>::try_from(s)
                .map_err(|s| err!(Shape, "four axes are needed, the input has shape {s:?}"))?,
        ),
        None => None,
    };
    let out = match known {
        Some(s) => shape(s).to_vec(),
        None => i.fresh_shape(4),
    };
    i.set(0, i.dtype(0), Some(out));
    Ok(())
}

fn keeps_first(q: &BatchQuery<'_>) -> BatchFlow {
    match q.axes.first().copied().flatten() {
        axis @ (None | Some(0)) => q.everywhere(axis),
        Some(axis) => Err(format!("the batch is on axis {axis}, which it rearranges")),
    }
}

fn four_axes(x: &Tensor) -> Result<[usize; 4]> {
    <[usize; 4]>::try_from(&**x.shape())
        .map_err(|_| err!(Shape, "four axes are needed, got {}", x.describe()))
}

/// The axes of `x`, seen with other extents, in another order, and then as `shape`.
fn rearranged(
    io: &Io<'_>,
    x: &Tensor,
    extents: &[usize],
    order: &[usize],
    shape: [usize; 4],
) -> Result<Tensor> {
    let steps = strides(extents);
    let dims: Vec<usize> = order.iter().map(|a| extents[*a]).collect();
    let steps: Vec<isize> = order.iter().map(|a| steps[*a] as isize).collect();
    walked(io, x, shape, &Strided::new(0, &dims, &steps))
}

#[derive(Debug)]
struct DepthToSpace {
    block: usize,
    columns_first: bool,
}

impl CpuKernel for DepthToSpace {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.take_tensor(0)?;
        let ([n, c, h, w], b) = (four_axes(&x)?, self.block);
        if c % (b * b) != 0 {
            bail!(Shape, "{c} channels are not a multiple of {b} x {b}");
        }
        let d = c / (b * b);
        // Too large an extent is found where the output is made.
        let shape = [n, d, h.saturating_mul(b), w.saturating_mul(b)];
        let out = if self.columns_first {
            rearranged(io, &x, &[n, d, b, b, h, w], &[0, 1, 4, 2, 5, 3], shape)?
        } else {
            rearranged(io, &x, &[n, b, b, d, h, w], &[0, 3, 4, 1, 5, 2], shape)?
        };
        io.emit(out);
        Ok(())
    }
}

#[derive(Debug)]
struct SpaceToDepth {
    block: usize,
}

impl CpuKernel for SpaceToDepth {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.take_tensor(0)?;
        let ([n, c, h, w], b) = (four_axes(&x)?, self.block);
        if h % b != 0 || w % b != 0 {
            bail!(Shape, "{h} x {w} pixels are not a multiple of {b} x {b}");
        }
        let shape = [n, c.saturating_mul(b * b), h / b, w / b];
        let extents = [n, c, h / b, b, w / b, b];
        io.emit(rearranged(io, &x, &extents, &[0, 3, 5, 1, 2, 4], shape)?);
        Ok(())
    }
}

fn depth_to_space_cases() -> Vec<Case> {
    let new = |name| Case::new("DepthToSpace", 13, name).attr("blocksize", 2);
    vec![
        new("depth first").input(iota(&[1, 8, 1, 2])).output(ints(
            &[1, 2, 2, 4],
            vec![0, 4, 1, 5, 8, 12, 9, 13, 2, 6, 3, 7, 10, 14, 11, 15],
        )),
        new("columns first").attr("mode", "CRD").input(iota(&[1, 8, 1, 2])).output(ints(
            &[1, 2, 2, 4],
            vec![0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15],
        )),
        new("nothing").input(iota(&[0, 4, 1, 1])).output(iota(&[0, 1, 2, 2])),
    ]
}

fn space_to_depth_cases() -> Vec<Case> {
    let new = |name| Case::new("SpaceToDepth", 13, name).attr("blocksize", 2);
    vec![
        new("two channels").input(iota(&[1, 2, 2, 4])).output(ints(
            &[1, 8, 1, 2],
            vec![0, 2, 8, 10, 1, 3, 9, 11, 4, 6, 12, 14, 5, 7, 13, 15],
        )),
        new("nothing").input(iota(&[1, 0, 2, 2])).output(iota(&[1, 0, 1, 1])),
    ]
}
