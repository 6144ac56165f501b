//! Quantised numbers and the floats that they stand for.

use super::Made;
use super::elementwise::{Leaf, narrow_range};
use super::rows;
use super::site::{Site, shape_of};
use crate::error::{Result, bail, err};
use crate::gpu::families::elementwise::{Argument, Binary, Chain, Link, Unary};
use crate::gpu::families::quantized;
use crate::gpu::families::rows::Reduction;
use crate::gpu::ir::Scalar;
use crate::tensor::{normalise_axis, strides};

impl Site<'_> {
    /// The input, its scale and its zero point, which are one number or one for each index along the axis.
    fn on_grid(&self) -> Result<Vec<Leaf>> {
        let x = self.shape(0)?;
        let mut leaves =
            vec![Leaf { value: self.input(0)?, scalar: self.scalar(0)?, strides: strides(&x) }];
        for i in 1..3 {
            let Some(value) = self.optional(i) else { continue };
            let shape = shape_of(self.graph, value)?;
            let mut own = vec![0; x.rank()];
            if shape.elements() != 1 {
                let axis = normalise_axis(self.node.int_or("axis", 1)?, x.rank())?;
                if shape.rank() != 1 || shape.elements() != x[axis] {
                    let name = &self.graph.value(value).name;
                    bail!(
                        Shape,
                        "`{name}` is {shape}, not one number for each index of axis {axis} of {x}"
                    );
                }
                own[axis] = 1;
            }
            leaves.push(Leaf { value, scalar: self.scalar(i)?, strides: own });
        }
        Ok(leaves)
    }
}

/// `(x - zero point) * scale`.
pub(super) fn dequantize(site: &Site<'_>) -> Result<Made> {
    let leaves = site.on_grid()?;
    let cast = |to: Scalar| Link::Unary(Unary::Cast(to));
    let mut links = Vec::new();
    let mut then = |link: Link, arguments: Vec<Argument>| {
        links.push((link, arguments));
        Argument::Link(links.len() - 1)
    };
    // Differences of 16 bits are exact in f32.
    let mut x = then(cast(Scalar::F32), vec![Argument::Leaf(0)]);
    if leaves.len() > 2 {
        let zero = then(cast(Scalar::F32), vec![Argument::Leaf(2)]);
        x = then(Link::Binary(Binary::Sub), vec![x, zero]);
    }
    then(Link::Binary(Binary::Mul), vec![x, Argument::Leaf(1)]);
    site.chain(Chain { links }, leaves)
}

/// `x / scale`, rounded, and the zero point, within the range of the dtype.
pub(super) fn quantize(site: &Site<'_>) -> Result<Made> {
    let leaves = site.on_grid()?;
    let output = site.output()?;
    let range = site.graph.value(output).fact.dtype.and_then(narrow_range);
    let (_, lo, hi) = range.ok_or_else(|| err!(Unsupported, "it quantises to 8 or 16 bits"))?;
    let mut links = Vec::new();
    let mut then = |link: Link, arguments: Vec<Argument>| {
        links.push((link, arguments));
        Argument::Link(links.len() - 1)
    };
    let mut x = then(Link::Binary(Binary::Div), vec![Argument::Leaf(0), Argument::Leaf(1)]);
    x = then(Link::Unary(Unary::Round), vec![x]);
    if leaves.len() > 2 {
        let zero = then(Link::Unary(Unary::Cast(Scalar::F32)), vec![Argument::Leaf(2)]);
        x = then(Link::Binary(Binary::Add), vec![x, zero]);
    }
    x = then(Link::Unary(Unary::Clip(lo, hi)), vec![x]);
    then(Link::Unary(Unary::Cast(site.scalar_of(output)?)), vec![x]);
    site.chain(Chain { links }, leaves)
}

/// `DynamicQuantizeLinear`: the least and the largest of all, the scale and the zero point that follow, and
/// the numbers.
pub(super) fn dynamic(site: &Site<'_>) -> Result<Made> {
    let x = site.input(0)?;
    let made = |i: usize| site.node.outputs.get(i).copied().flatten();
    let (least, largest) = (site.between(1), site.between(1));
    let scale = made(1).unwrap_or_else(|| site.between(1));
    let zero = made(2).unwrap_or_else(|| site.between(1));
    let mut steps = Vec::new();
    for (reduction, to) in [(Reduction::Min, least), (Reduction::Max, largest)] {
        let mut step = rows::whole(site, reduction)?;
        step.writes = to;
        steps.push(step);
    }
    for (kernel, to) in [(quantized::scale(), scale), (quantized::zero_point(), zero)] {
        let mut step = site.flat_step(kernel, vec![least, largest], 1, &[0, 0])?;
        step.writes = to;
        steps.push(step);
    }
    if let Some(y) = made(0) {
        let count = site.shape(0)?.elements();
        let kernel = quantized::quantize();
        let mut step = site.flat_step(kernel, vec![x, scale, zero], count, &[0, 0])?;
        step.writes = y;
        steps.push(step);
    }
    Ok(Made::Steps(steps))
}
