//! Operators that move elements.

use super::Made;
use super::site::{Site, Step, eight, joined, shape_of, signed, word, wrapped};
use crate::error::{Result, bail, err};
use crate::gpu::families::AXES;
use crate::gpu::families::movement::{self, Beyond};
use crate::gpu::ir::Scalar;
use crate::graph::ValueId;
use crate::tensor::{DType, Tensor, cast, normalise_axis, strides};

impl Site<'_> {
    /// A copy of `extents` elements from one layout to another.
    fn rearranged(
        &self,
        x: ValueId,
        extents: &[usize],
        from: (usize, Vec<isize>),
        to: (usize, Vec<isize>),
    ) -> Result<Step> {
        let (mut lengths, mut steps) = joined(extents, &[from.1, to.1]);
        if lengths.is_empty() {
            lengths.push(1);
            steps.iter_mut().for_each(|s| s.push(1));
        }
        let mut words = vec![word(lengths.len()), 0];
        words.extend(eight(&lengths)?);
        words.extend(wrapped::<AXES>(&steps[0])?);
        words.extend(wrapped::<AXES>(&steps[1])?);
        words.extend([word(from.0), word(to.0), 0, 0]);
        self.flat_step(movement::rearrange(), vec![x], extents.iter().product(), &words)
    }

    fn axis(&self, default: i64, rank: usize) -> Result<usize> {
        normalise_axis(self.node.int_or("axis", default)?, rank)
    }
}

pub(super) fn transpose(site: &Site<'_>) -> Result<Made> {
    let (x, out) = (site.shape(0)?, site.out_shape()?);
    let rank = x.rank();
    let order: Vec<usize> = match site.node.ints("perm")? {
        None => (0..rank).rev().collect(),
        Some(p) => p.iter().map(|a| normalise_axis(*a, rank)).collect::<Result<_>>()?,
    };
    if order.len() != rank {
        bail!(Shape, "the permutation {order:?} is of another rank than {x}");
    }
    let own = signed(&strides(&x));
    let source = order.iter().map(|a| own[*a]).collect();
    let target = signed(&strides(&out));
    Ok(Made::Steps(vec![site.rearranged(site.input(0)?, &out, (0, source), (0, target))?]))
}

pub(super) fn concat(site: &Site<'_>) -> Result<Made> {
    let out = site.out_shape()?;
    // Before version 4 the axis may be left out.
    let axis = site.axis(1, out.rank())?;
    let target = strides(&out);
    let mut steps = Vec::new();
    let mut at = 0;
    for i in 0..site.node.inputs.len() {
        let shape = site.shape(i)?;
        let offset = at * target[axis];
        at += shape[axis];
        let (source, to) = (signed(&strides(&shape)), signed(&target));
        steps.push(site.rearranged(site.input(i)?, &shape, (0, source), (offset, to))?);
    }
    Ok(Made::Steps(steps))
}

pub(super) fn split(site: &Site<'_>) -> Result<Made> {
    let x = site.shape(0)?;
    let axis = site.axis(0, x.rank())?;
    let source = strides(&x);
    let mut steps = Vec::new();
    let mut at = 0;
    for output in &site.node.outputs {
        let Some(output) = *output else {
            bail!(Unsupported, "an output that is left out");
        };
        let shape = shape_of(site.graph, output)?;
        let from = (at * source[axis], signed(&source));
        at += shape[axis];
        let to = (0, signed(&strides(&shape)));
        let step = site.rearranged(site.input(0)?, &shape, from, to)?;
        steps.push(Step { writes: output, ..step });
    }
    if at != x[axis] {
        bail!(Shape, "the parts have {at} elements along axis {axis}, the input {}", x[axis]);
    }
    Ok(Made::Steps(steps))
}

pub(super) fn slice(site: &Site<'_>) -> Result<Made> {
    let (x, out) = (site.shape(0)?, site.out_shape()?);
    let (starts, axes, steps) = match site.node.ints("starts")? {
        Some(starts) => (starts.to_vec(), site.node.ints("axes")?.map(<[i64]>::to_vec), None),
        None => (site.ints(1)?.unwrap_or_default(), site.ints(3)?, site.ints(4)?),
    };
    let mut source = signed(&strides(&x));
    let mut offset = 0;
    for (i, start) in starts.iter().enumerate() {
        let axis = match &axes {
            Some(a) => a.get(i).copied(),
            None => i64::try_from(i).ok(),
        };
        let Some(axis) = axis else { bail!(Shape, "there are fewer axes than starts") };
        let axis = normalise_axis(axis, x.rank())?;
        let step = steps.as_ref().and_then(|s| s.get(i)).copied().unwrap_or(1);
        let extent = x[axis] as i64;
        let start = if *start < 0 { start.saturating_add(extent) } else { *start };
        let start = if step > 0 { start.clamp(0, extent) } else { start.clamp(-1, extent - 1) };
        if out[axis] > 0 {
            offset += usize::try_from(start).unwrap_or(0) * source[axis].unsigned_abs();
        }
        // The step of a single element does not matter, and might be huge.
        source[axis] = if out[axis] > 1 { source[axis] * step as isize } else { 1 };
    }
    let target = signed(&strides(&out));
    Ok(Made::Steps(vec![site.rearranged(site.input(0)?, &out, (offset, source), (0, target))?]))
}

pub(super) fn expand(site: &Site<'_>) -> Result<Made> {
    let (x, out) = (site.shape(0)?, site.out_shape()?);
    let source = signed(&super::site::broadcast_strides(&x, &out));
    let target = signed(&strides(&out));
    Ok(Made::Steps(vec![site.rearranged(site.input(0)?, &out, (0, source), (0, target))?]))
}

pub(super) fn tile(site: &Site<'_>) -> Result<Made> {
    let (x, out) = (site.shape(0)?, site.out_shape()?);
    let (source, target) = (strides(&x), strides(&out));
    // Each axis is two: which repetition, and where within it.
    let (mut extents, mut from, mut to) = (Vec::new(), Vec::new(), Vec::new());
    for d in 0..x.rank() {
        let times = out[d].checked_div(x[d]).unwrap_or(0);
        extents.extend([times, x[d]]);
        from.extend([0, source[d] as isize]);
        to.extend([(target[d] * x[d]) as isize, target[d] as isize]);
    }
    Ok(Made::Steps(vec![site.rearranged(site.input(0)?, &extents, (0, from), (0, to))?]))
}

/// The bits of one element of a device.
fn bits(t: &Tensor) -> Result<u32> {
    if t.len() != 1 {
        bail!(Shape, "expected one element, got {}", t.describe());
    }
    let bytes = super::narrowed(t, None, "a constant")?;
    match bytes[..] {
        [a, b, c, d] => Ok(u32::from_ne_bytes([a, b, c, d])),
        _ => bail!(Internal, "an element of {} bytes", bytes.len()),
    }
}

pub(super) fn pad(site: &Site<'_>) -> Result<Made> {
    let (x, out) = (site.shape(0)?, site.out_shape()?);
    let rank = x.rank();
    let name = if site.node.version < 2 { "paddings" } else { "pads" };
    let (pads, axes) = match site.node.ints(name)? {
        Some(pads) => (pads.to_vec(), None),
        None => (site.ints(1)?.unwrap_or_default(), site.ints(3)?),
    };
    let before = crate::ops::padded(site.node, &pads, axes.as_deref(), &x)?;
    let beyond = match site.node.string("mode")?.unwrap_or("constant") {
        "constant" => None,
        "edge" => Some(Beyond::Edge),
        "reflect" => Some(Beyond::Reflect),
        "wrap" => Some(Beyond::Wrap),
        other => bail!(Graph, "`mode` is `{other}`; use constant, reflect, edge or wrap"),
    };
    let (source, target) = (signed(&strides(&x)), signed(&strides(&out)));
    let Some(beyond) = beyond else {
        let value = match (site.optional(2), site.constant(2)) {
            (Some(_), Some(t)) => bits(t)?,
            (Some(_), None) => bail!(Unsupported, "what it pads with is not known beforehand"),
            (None, _) => {
                let value = Tensor::scalar(site.node.float_or("value", 0.0)?);
                let dtype = site.graph.value(site.input(0)?).fact.dtype.unwrap_or(DType::F32);
                bits(&cast(&value, dtype)?)?
            }
        };
        let fill = site.flat_step(movement::fill(), Vec::new(), out.elements(), &[value, 0])?;
        let (mut kept, mut offset, mut place) = (Vec::new(), 0, 0);
        for d in 0..rank {
            let first = before[d].max(0) as usize;
            let cut = (-before[d]).max(0) as usize;
            kept.push(x[d].saturating_sub(cut).min(out[d].saturating_sub(first)));
            offset += cut * source[d].unsigned_abs();
            place += first * target[d].unsigned_abs();
        }
        let inside = site.rearranged(site.input(0)?, &kept, (offset, source), (place, target))?;
        return Ok(Made::Steps(vec![fill, inside]));
    };
    // Cut elements are not there: reflections are at the edges of what is kept.
    if before.iter().any(|b| *b < 0) || pads.iter().any(|p| *p < 0) {
        bail!(Unsupported, "it does not cut and pad at once in mode {beyond:?}");
    }
    let mut words = vec![word(rank), 0];
    words.extend(eight(&out)?);
    words.extend(eight(&x)?);
    words.extend(wrapped::<AXES>(&source)?);
    words.extend(wrapped::<AXES>(&before)?);
    let step =
        site.flat_step(movement::pad(beyond), vec![site.input(0)?], out.elements(), &words)?;
    Ok(Made::Steps(vec![step]))
}

pub(super) fn gather(site: &Site<'_>) -> Result<Made> {
    let (x, indices, out) = (site.shape(0)?, site.shape(1)?, site.out_shape()?);
    let axis = site.axis(0, x.rank())?;
    let extent = x[axis];
    site.limit_indices(1, extent)?;
    let slice: usize = x[axis + 1..].iter().product();
    let words = [word(slice), word(indices.elements()), word(extent), 0, 0, 0];
    let reads = vec![site.input(0)?, site.input(1)?];
    Ok(Made::Steps(vec![site.flat_step(movement::gather(), reads, out.elements(), &words)?]))
}

pub(super) fn gather_elements(site: &Site<'_>) -> Result<Made> {
    let (x, out) = (site.shape(0)?, site.out_shape()?);
    let axis = site.axis(0, x.rank())?;
    site.limit_indices(1, x[axis])?;
    let mut own = strides(&x);
    let along = std::mem::take(&mut own[axis]);
    let mut words = vec![word(x.rank()), word(along)];
    words.extend(eight(&out)?);
    words.extend(eight(&own)?);
    words.extend([word(x[axis]), 0, 0, 0]);
    let reads = vec![site.input(0)?, site.input(1)?];
    let kernel = movement::gather_elements();
    Ok(Made::Steps(vec![site.flat_step(kernel, reads, out.elements(), &words)?]))
}

pub(super) fn gather_nd(site: &Site<'_>) -> Result<Made> {
    let (x, indices, out) = (site.shape(0)?, site.shape(1)?, site.out_shape()?);
    let batch = usize::try_from(site.node.int_or("batch_dims", 0)?).unwrap_or(usize::MAX);
    let Some((count, tuples)) = indices.split_last() else {
        bail!(Shape, "indices without an axis");
    };
    if batch > tuples.len() || batch + count > x.rank() {
        bail!(Shape, "{batch} batch axes and tuples of {count} over {x}");
    }
    let axes = batch..batch + count;
    let ranges = x[axes.clone()].iter().map(|n| (-(*n as i64), *n as i64 - 1)).collect();
    site.indices.set(Some((site.input(1)?, ranges)));
    let own = strides(&x);
    let slice: usize = x[axes.end..].iter().product();
    let each: usize = tuples[batch..].iter().product();
    let item: usize = x[batch..].iter().product();
    let mut words = vec![word(slice), word(*count), word(each), word(item), 0, 0];
    words.extend(eight(&x[axes.clone()])?);
    words.extend(eight(&own[axes])?);
    let reads = vec![site.input(0)?, site.input(1)?];
    let kernel = movement::gather_nd();
    Ok(Made::Steps(vec![site.flat_step(kernel, reads, out.elements(), &words)?]))
}

/// `Range`, whose numbers are known where its inputs are.
pub(super) fn range(site: &Site<'_>) -> Result<Made> {
    let count = site.out_shape()?.elements();
    let output = site.output()?;
    let known = |i: usize| {
        site.constant(i).ok_or_else(|| err!(Unsupported, "a range that depends on data"))
    };
    let (start, step) = (known(0)?, known(2)?);
    let table = if site.scalar_of(output)? == Scalar::F32 {
        let (start, step) = (start.item::<f32>()?, step.item::<f32>()?);
        Tensor::new([count], (0..count).map(|i| start + i as f32 * step).collect::<Vec<_>>())?
    } else {
        let first = |t: &Tensor| -> Result<i64> { Ok(t.to_i64s()?.first().copied().unwrap_or(0)) };
        let (start, step) = (first(start)?, first(step)?);
        let number = |i: usize| start.saturating_add(step.saturating_mul(i as i64));
        Tensor::new([count], (0..count).map(number).collect::<Vec<_>>())?
    };
    let one = vec![1_isize];
    let table = site.table(table);
    Ok(Made::Steps(vec![site.rearranged(table, &[count], (0, one.clone()), (0, one))?]))
}

impl Site<'_> {
    /// Has the indices of an input checked for an axis of an extent.
    fn limit_indices(&self, i: usize, extent: usize) -> Result<()> {
        let extent = extent as i64;
        self.indices.set(Some((self.input(i)?, vec![(-extent, extent - 1)])));
        Ok(())
    }
}

/// `DepthToSpace` and `SpaceToDepth`: a transposition of six axes.
pub(super) fn blocks(site: &Site<'_>) -> Result<Made> {
    let (x, out) = (site.shape(0)?, site.out_shape()?);
    let (&[n, c, h, w], &[_, oc, oh, ow]) = (&x[..], &out[..]) else {
        bail!(Shape, "four axes are needed, got {x}");
    };
    let b = usize::try_from(site.node.required_int("blocksize")?).unwrap_or(0).max(1);
    let own = signed(&strides(&x));
    let to_space = site.node.op == "DepthToSpace";
    let columns_first = site.node.string("mode")?.is_some_and(|m| m == "CRD");
    let block = b as isize;
    // Axes of the output: item, channel, row, row in block, column, column in block; or, the other
    // way, item, row in block, column in block, channel, row, column.
    let (extents, source) = if to_space {
        let each = oc as isize;
        let (channel, down, across) =
            if columns_first { (block * block, block, 1) } else { (1, block * each, each) };
        let plane = own[1];
        (
            [n, oc, h, b, w, b],
            vec![own[0], channel * plane, own[2], down * plane, own[3], across * plane],
        )
    } else {
        ([n, b, b, c, oh, ow], vec![own[0], own[2], own[3], own[1], own[2] * block, own[3] * block])
    };
    let target = signed(&strides(&extents));
    let x = site.input(0)?;
    Ok(Made::Steps(vec![site.rearranged(x, &extents, (0, source), (0, target))?]))
}

/// `ConstantOfShape`, where it is too large to be known as a constant.
pub(super) fn constant_of_shape(site: &Site<'_>) -> Result<Made> {
    let value = match site.node.attributes.get("value") {
        Some(crate::graph::Attribute::Tensor(t)) => bits(t)?,
        _ => 0,
    };
    let count = site.out_shape()?.elements();
    Ok(Made::Steps(vec![site.flat_step(movement::fill(), Vec::new(), count, &[value, 0])?]))
}
