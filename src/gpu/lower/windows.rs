//! Convolutions and pools over one or two axes.

use super::Made;
use super::site::{Site, word};
use crate::error::{Result, bail};
use crate::gpu::families::FLAT;
use crate::gpu::families::convolution::{self, PIXELS};
use crate::gpu::families::elementwise::Unary;
use crate::gpu::families::movement;
use crate::gpu::families::pool::{self, Pool};
use crate::gpu::families::product::{Epilogue, SHARED_SIDE, TILE, Tiling};
use crate::graph::ValueId;
use crate::ops::window::{Axis, WindowAttributes, padded_axes};
use crate::tensor::Tensor;

struct Windows {
    /// Twelve words: sizes, kernel and strides, dilations and padding.
    words: Vec<u32>,
    /// Output height and width.
    made: [u32; 2],
}

impl Windows {
    /// Of one or two axes that become these extents; one axis becomes two.
    fn of(axes: &[Axis], out: &[usize]) -> Result<Self> {
        let axes = padded_axes::<2>(axes)?;
        let pair = |f: &dyn Fn(usize) -> usize| [word(f(0)), word(f(1))];
        let size = pair(&|i| axes[i].size);
        let made = match out {
            [w] => [1, word(*w)],
            [h, w] => [word(*h), word(*w)],
            other => bail!(Unsupported, "{} spatial axes", other.len()),
        };
        let (kernel, stride) = (pair(&|i| axes[i].kernel), pair(&|i| axes[i].stride));
        let (dilation, pad) = (pair(&|i| axes[i].dilation), pair(&|i| axes[i].pads[0]));
        let four = |a: [u32; 2], b: [u32; 2]| [a[0], a[1], b[0], b[1]];
        let words = [four(size, made), four(kernel, stride), four(dilation, pad)].concat();
        Ok(Self { words, made })
    }
}

impl Site<'_> {
    /// The third input: one number a channel.
    fn bias(&self, channels: usize) -> Result<Option<ValueId>> {
        let bias = self.optional(2);
        if bias.is_some() && self.shape(2)?[..] != [channels] {
            bail!(Shape, "the bias is {}, not one number for each of {channels}", self.shape(2)?);
        }
        Ok(bias)
    }

    /// The windows over the last axes of an input.
    fn windows(&self, kernel: &[usize]) -> Result<Windows> {
        let attributes = WindowAttributes::read(self.node)?;
        Windows::of(&attributes.resolve(&self.shape(0)?[2..], kernel)?, &self.out_shape()?[2..])
    }
}

pub(super) fn convolve(site: &Site<'_>) -> Result<Made> {
    let (x, w) = (site.shape(0)?, site.shape(1)?);
    let groups = usize::try_from(site.node.int_or("group", 1)?).unwrap_or(0);
    let (&[items, channels, ..], &[made, per_group, ..]) = (&x[..], &w[..]) else {
        bail!(Shape, "a convolution of {x} with {w}");
    };
    if groups == 0 || per_group * groups != channels || made % groups != 0 {
        bail!(Shape, "{groups} groups over {x} with weights {w}");
    }
    let windows = site.windows(&w[2..])?;
    let bias = site.bias(made)?;
    let fused = site.node.op == "FusedConv";
    let epilogue = if fused {
        site.epilogue(bias.is_some(), Some(3))?
    } else {
        Epilogue { bias: bias.is_some(), residual: None, activation: Unary::Identity }
    };
    let residual = if fused { site.optional(3) } else { None };
    let reads = [Some(site.input(0)?), Some(site.input(1)?), bias, residual];
    let reads = reads.into_iter().flatten().collect();
    let each = made / groups;
    let [oh, ow] = windows.made;
    // Tiles of groups pay where a group has rows enough to fill them.
    let tiled = site.options.tiling == Tiling::Groups && each >= 8;
    let (kernel, launch, tiles) = if tiled {
        let side = (SHARED_SIDE * TILE) as usize;
        let pixels = oh as usize * ow as usize;
        let launch = [word(pixels.div_ceil(side)), word(each.div_ceil(side)), word(items * groups)];
        (convolution::implicit(epilogue), launch, 1)
    } else {
        let at_once = if each >= 4 { 4 } else { 1 };
        let tiles = ow.div_ceil(PIXELS).max(1);
        let across = (oh as usize * tiles as usize).div_ceil(FLAT as usize);
        let down = groups * each.div_ceil(at_once as usize);
        (convolution::direct(at_once, epilogue), [word(across), word(down), word(items)], tiles)
    };
    let mut words = vec![word(per_group), word(each), word(groups), tiles];
    words.extend(&windows.words);
    Ok(Made::Steps(vec![site.step(kernel, reads, words, launch)?]))
}

pub(super) fn pool(site: &Site<'_>) -> Result<Made> {
    let of = match site.node.op.as_str() {
        "MaxPool" => Pool::Max,
        "AveragePool" => Pool::Mean,
        _ if site.node.int_or("p", 2)? == 1 => Pool::L1,
        _ if site.node.int_or("p", 2)? == 2 => Pool::L2,
        _ => bail!(Unsupported, "a norm that is neither the first nor the second"),
    };
    let out = site.out_shape()?;
    let kernel = site.node.ints("kernel_shape")?.unwrap_or(&[]);
    let kernel: Vec<usize> = kernel.iter().map(|k| usize::try_from(*k).unwrap_or(0)).collect();
    let windows = site.windows(&kernel)?;
    let padded = site.node.int_or("count_include_pad", 0)? != 0;
    let mut words = vec![u32::from(padded), 0];
    words.extend(&windows.words);
    let step = site.flat_step(pool::pool(of), vec![site.input(0)?], out.elements(), &words)?;
    Ok(Made::Steps(vec![step]))
}

pub(super) fn transposed(site: &Site<'_>) -> Result<Made> {
    let (x, w, out) = (site.shape(0)?, site.shape(1)?, site.out_shape()?);
    let groups = usize::try_from(site.node.int_or("group", 1)?).unwrap_or(0);
    let (&[_, channels, ..], &[given, outer, ..]) = (&x[..], &w[..]) else {
        bail!(Shape, "a transposed convolution of {x} with {w}");
    };
    if groups == 0 || channels != given || channels % groups != 0 {
        bail!(Shape, "{groups} groups over {x} with weights {w}");
    }
    let axes = crate::ops::transposed_axes(site.node, &x[2..], &w[2..])?;
    let windows = Windows::of(&axes, &out[2..])?;
    let mut words = vec![word(channels / groups), word(outer)];
    words.extend(&windows.words);
    words.extend([word(groups), 0, 0, 0]);
    let bias = site.bias(outer * groups)?;
    let reads = [Some(site.input(0)?), Some(site.input(1)?), bias];
    let kernel = convolution::transposed(bias.is_some());
    let reads = reads.into_iter().flatten().collect();
    Ok(Made::Steps(vec![site.flat_step(kernel, reads, out.elements(), &words)?]))
}

/// `Resize` and `Upsample`: one launch for each axis that changes.
pub(super) fn resize(site: &Site<'_>) -> Result<Made> {
    let x = site.shape(0)?;
    let given = |i: usize| -> Result<Option<&Tensor>> {
        match (site.optional(i), site.constant(i)) {
            (Some(_), None) => bail!(Unsupported, "what it resizes to is not known beforehand"),
            (_, t) => Ok(t),
        }
    };
    let axes = crate::ops::resamplings(site.node, &x, given)?;
    if axes.is_empty() {
        return Ok(Made::Same);
    }
    let mut shape = x.to_vec();
    let mut from = site.input(0)?;
    let mut steps = Vec::new();
    let count = axes.len();
    for (k, axis) in axes.into_iter().enumerate() {
        let before = shape[axis.axis];
        shape[axis.axis] = axis.out;
        let inner: usize = shape[axis.axis + 1..].iter().product();
        let elements: usize = shape.iter().product();
        let indices: Vec<i32> =
            axis.indices.iter().map(|i| i32::try_from(*i).unwrap_or(i32::MAX)).collect();
        let indices = site.table(Tensor::new([indices.len()], indices)?);
        let weights = site.table(Tensor::new([axis.weights.len()], axis.weights)?);
        let words = [word(inner), word(axis.out), word(before), word(axis.width), 0, 0];
        let reads = vec![from, indices, weights];
        let mut step = site.flat_step(movement::resample(), reads, elements, &words)?;
        if k + 1 < count {
            step.writes = site.between(elements);
        }
        from = step.writes;
        steps.push(step);
    }
    Ok(Made::Steps(steps))
}
