//! One node on its way to launches: its inputs, extents and attributes, and what all operators
//! share.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::Arc;

use super::{LoweringOptions, ProductCall};
use crate::error::{Result, bail, err};
use crate::gpu::families::{AXES, FLAT};
use crate::gpu::ir::{Kernel, Scalar};
use crate::graph::{Graph, Node, ValueId};
use crate::tensor::{DType, Shape, Tensor, strides};

/// Most workgroups along one axis of a launch.
pub(super) const MOST_GROUPS: u32 = 65_535;

/// A launch before its buffers are chosen.
pub(super) struct Step {
    pub(super) kernel: Arc<Kernel>,
    pub(super) reads: Vec<ValueId>,
    pub(super) writes: ValueId,
    pub(super) words: Vec<u32>,
    pub(super) groups: [u32; 3],
    pub(super) product: Option<ProductCall>,
}

/// Values that the graph does not have: tables that kernels read, and what lies between the launches
/// of one node. They are numbered after the graph's own.
#[derive(Debug, Default)]
pub(super) struct Extras {
    pub(super) constants: Vec<(ValueId, Tensor)>,
    /// Elements of each value in between.
    pub(super) between: HashMap<ValueId, usize>,
}

impl Extras {
    fn next(&self, graph: &Graph) -> ValueId {
        ValueId::at(graph.values().len() + self.constants.len() + self.between.len())
    }
}

/// A node, in a graph whose extents are known.
pub(super) struct Site<'a> {
    pub(super) graph: &'a Graph,
    pub(super) node: &'a Node,
    constants: &'a HashMap<ValueId, Tensor>,
    pub(super) options: LoweringOptions,
    extras: &'a RefCell<Extras>,
    /// An input of indices, and the least and the largest that there may be: one range for all, or
    /// one for each along the last axis.
    pub(super) indices: Cell<Option<(ValueId, Vec<(i64, i64)>)>>,
}

/// What elements of a dtype are on a device; `None`: it has no such.
pub fn device_scalar(dtype: DType) -> Option<Scalar> {
    Some(match dtype {
        DType::F32 => Scalar::F32,
        DType::I8 | DType::I16 | DType::I32 | DType::I64 => Scalar::I32,
        DType::U8 | DType::U16 | DType::U32 => Scalar::U32,
        DType::Bool => Scalar::Bool,
        _ => return None,
    })
}

pub(super) fn shape_of(graph: &Graph, v: ValueId) -> Result<Shape> {
    let info = graph.value(v);
    let shape = info.fact.concrete_shape().ok_or_else(|| {
        err!(Unsupported, "the shape of `{}` depends on data: {}", info.name, info.fact)
    })?;
    if shape.iter().product::<usize>() > i32::MAX as usize {
        bail!(Limit, "`{}` has more elements than a kernel can count", info.name);
    }
    Ok(shape.into())
}

pub(super) fn word(n: usize) -> u32 {
    // Extents were checked with the shapes.
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// Workgroups for a flat range, and how many threads a row of them has.
pub(super) fn flat_groups(count: usize, per_group: u32) -> ([u32; 3], u32) {
    let groups = word(count.div_ceil(per_group as usize));
    let across = groups.min(MOST_GROUPS);
    let down = if across == 0 { 0 } else { groups.div_ceil(across) };
    ([across, down, 1], across * per_group)
}

/// Joins axes that lie as one for every operand and drops those of extent 1. Strides are given per
/// operand and may run backwards.
pub(super) fn joined(extents: &[usize], strides: &[Vec<isize>]) -> (Vec<usize>, Vec<Vec<isize>>) {
    let mut out: Vec<usize> = Vec::new();
    let mut steps: Vec<Vec<isize>> = vec![Vec::new(); strides.len()];
    for (d, extent) in extents.iter().enumerate().filter(|(_, e)| **e != 1) {
        let along = |s: &Vec<isize>| s[d].wrapping_mul(*extent as isize);
        let as_one = !out.is_empty()
            && strides.iter().zip(&steps).all(|(s, done)| done.last() == Some(&along(s)));
        if as_one {
            if let Some(last) = out.last_mut() {
                *last *= extent;
            }
            for (s, done) in strides.iter().zip(&mut steps) {
                if let Some(last) = done.last_mut() {
                    *last = s[d];
                }
            }
        } else {
            out.push(*extent);
            for (s, done) in strides.iter().zip(&mut steps) {
                done.push(s[d]);
            }
        }
    }
    (out, steps)
}

/// So many words, with as many numbers at their beginning as there are.
pub(super) fn words<const N: usize>(numbers: &[usize]) -> Result<[u32; N]> {
    let signed: Vec<isize> = numbers.iter().map(|n| *n as isize).collect();
    wrapped(&signed)
}

/// As [`words`]; negative numbers wrap.
pub(super) fn wrapped<const N: usize>(numbers: &[isize]) -> Result<[u32; N]> {
    let mut out = [0; N];
    if numbers.len() > N {
        bail!(Unsupported, "tensors with more than {N} axes that do not lie as one");
    }
    for (o, n) in out.iter_mut().zip(numbers) {
        *o = *n as u32;
    }
    Ok(out)
}

pub(super) fn signed(numbers: &[usize]) -> Vec<isize> {
    numbers.iter().map(|n| *n as isize).collect()
}

/// The strides of `shape` as broadcast to `out`: 0 along repeated axes.
pub(super) fn broadcast_strides(shape: &[usize], out: &[usize]) -> Vec<usize> {
    let own = strides(shape);
    let lead = out.len().saturating_sub(shape.len());
    (0..out.len())
        .map(|d| match d.checked_sub(lead) {
            Some(i) if shape[i] != 1 => own[i],
            _ => 0,
        })
        .collect()
}

pub(super) fn within(groups: [u32; 3]) -> Result<()> {
    if groups.iter().any(|g| *g > MOST_GROUPS) {
        bail!(Unsupported, "{groups:?} workgroups, at most {MOST_GROUPS} along an axis");
    }
    Ok(())
}

impl<'a> Site<'a> {
    pub(super) fn new(
        graph: &'a Graph,
        node: &'a Node,
        constants: &'a HashMap<ValueId, Tensor>,
        options: LoweringOptions,
        extras: &'a RefCell<Extras>,
    ) -> Self {
        Self { graph, node, constants, options, extras, indices: Cell::new(None) }
    }

    pub(super) fn input(&self, i: usize) -> Result<ValueId> {
        self.optional(i).ok_or_else(|| err!(Missing, "input {i} is missing"))
    }

    pub(super) fn optional(&self, i: usize) -> Option<ValueId> {
        self.node.inputs.get(i).copied().flatten()
    }

    pub(super) fn shape(&self, i: usize) -> Result<Shape> {
        shape_of(self.graph, self.input(i)?)
    }

    pub(super) fn output(&self) -> Result<ValueId> {
        self.node.makes().next().ok_or_else(|| err!(Missing, "it has no output"))
    }

    pub(super) fn out_shape(&self) -> Result<Shape> {
        shape_of(self.graph, self.output()?)
    }

    /// What the elements of a value are on the device.
    pub(super) fn scalar_of(&self, v: ValueId) -> Result<Scalar> {
        let info = self.graph.value(v);
        let scalar = info.fact.dtype.and_then(device_scalar);
        scalar.ok_or_else(|| err!(Unsupported, "`{}` is {}, not of 32 bits", info.name, info.fact))
    }

    pub(super) fn scalar(&self, i: usize) -> Result<Scalar> {
        self.scalar_of(self.input(i)?)
    }

    /// The tensor of an input that is known beforehand.
    pub(super) fn constant(&self, i: usize) -> Option<&'a Tensor> {
        self.constants.get(&self.optional(i)?)
    }

    /// The whole numbers of an input that must be known beforehand; `None` if it is left out.
    pub(super) fn ints(&self, i: usize) -> Result<Option<Vec<i64>>> {
        match (self.optional(i), self.constant(i)) {
            (None, _) => Ok(None),
            (Some(_), Some(t)) => t.to_i64s().map(Some),
            (Some(v), None) => {
                let name = &self.graph.value(v).name;
                bail!(Unsupported, "`{name}` decides extents and is not known beforehand")
            }
        }
    }

    /// A table that kernels read.
    pub(super) fn table(&self, tensor: Tensor) -> ValueId {
        let mut extras = self.extras.borrow_mut();
        let v = extras.next(self.graph);
        extras.constants.push((v, tensor));
        v
    }

    /// Room for elements between two launches.
    pub(super) fn between(&self, elements: usize) -> ValueId {
        let mut extras = self.extras.borrow_mut();
        let v = extras.next(self.graph);
        extras.between.insert(v, elements);
        v
    }

    pub(super) fn step(
        &self,
        kernel: Kernel,
        reads: Vec<ValueId>,
        words: Vec<u32>,
        groups: [u32; 3],
    ) -> Result<Step> {
        within(groups)?;
        if words.len() != kernel.words4 * 4 || reads.len() != kernel.inputs.len() {
            bail!(
                Internal,
                "kernel `{}` with {} words and {} inputs",
                kernel.name,
                words.len(),
                reads.len()
            );
        }
        let (kernel, writes) = (Arc::new(kernel), self.output()?);
        Ok(Step { kernel, reads, writes, words, groups, product: None })
    }

    /// As [`step`](Self::step), over a flat range of `count` elements: the first two words are made
    /// here.
    pub(super) fn flat_step(
        &self,
        kernel: Kernel,
        reads: Vec<ValueId>,
        count: usize,
        more: &[u32],
    ) -> Result<Step> {
        let (groups, across) = flat_groups(count, FLAT);
        let mut words = vec![word(count), across];
        words.extend(more);
        self.step(kernel, reads, words, groups)
    }
}

/// Axes as the eight words that kernels have for them.
pub(super) fn eight(numbers: &[usize]) -> Result<[u32; AXES]> {
    words::<AXES>(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_that_lie_as_one_are_joined() {
        let (extents, steps) = joined(&[2, 3, 1, 4], &[vec![12, 4, 4, 1], vec![0, 0, 0, 1]]);
        assert_eq!(extents, [6, 4]);
        assert_eq!(steps, [vec![4, 1], vec![0, 1]]);
        assert_eq!(joined(&[1, 1], &[vec![1, 1]]).0, [0_usize; 0]);
        // Backwards over both axes is backwards over one.
        let (extents, steps) = joined(&[2, 3], &[vec![-3, -1]]);
        assert_eq!((extents, steps), (vec![6], vec![vec![-1]]));
    }
}
