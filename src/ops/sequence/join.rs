//! Tensors cut into sequences, and sequences joined to tensors.

use super::edit::{nested, without};
use super::sequence;
use crate::error::{Result, bail};
use crate::graph::Node;
use crate::ops::concat::concat;
use crate::ops::def::types::{ANY, INDICES};
use crate::ops::movement::{Strided, walked};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{Tensor, Value, normalise_axis, strides};

/// A tensor cut along an axis into a sequence: pieces of one extent, of given extents, or single
/// ones.
pub(in crate::ops) static SPLIT_TO_SEQUENCE: OpDef = OpDef {
    name: "SplitToSequence",
    domain: "",
    since: 11,
    attributes: &[
        AttributeDef::optional("axis", AttributeKind::Int),
        AttributeDef::optional("keepdims", AttributeKind::Int),
    ],
    inputs: &[Port::required("input", ANY), Port::optional("split", INDICES)],
    outputs: &[Port::required("output_sequence", ANY)],
    infer: |_| Ok(()),
    batch: batch::mixes,
    cost: cost::copy,
    prepare: |p| {
        Ok(Box::new(Split {
            axis: p.node.int_or("axis", 0)?,
            keep: p.node.int_or("keepdims", 1)? != 0,
        }))
    },
    cases: || {
        vec![without(
            "SplitToSequence",
            |g, _, _| {
                let x = g.constant(Tensor::of_i64(&[1, 2, 3, 4, 5]))?;
                let two = g.constant(Tensor::scalar(2_i64))?;
                let s = g.op("SplitToSequence", &[x, two], &[])?;
                let last = g.op("SequenceAt", &[s, two], &[])?;
                let keep = ("keepdims", 0.into());
                g.op("ReduceSum", &[last], &[keep])
            },
            5,
        )]
    },
};

#[derive(Debug)]
struct Split {
    axis: i64,
    keep: bool,
}

impl CpuKernel for Split {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let axis = normalise_axis(self.axis, x.rank())?;
        let extent = x.shape()[axis];
        let (sizes, squeeze) = match io.optional(1)? {
            None => (vec![1; extent], !self.keep),
            Some(split) => {
                let given = split.to_i64s()?;
                let sizes: Option<Vec<usize>> =
                    given.iter().map(|n| usize::try_from(*n).ok()).collect();
                match (split.rank(), sizes.as_deref()) {
                    (0, Some([n])) if *n > 0 => {
                        let mut sizes = vec![*n; extent / n];
                        sizes.extend(Some(extent % n).filter(|r| *r > 0));
                        (sizes, false)
                    }
                    (1, Some(sizes)) if sizes.iter().sum::<usize>() == extent => {
                        (sizes.to_vec(), false)
                    }
                    _ => bail!(Shape, "`split` is {given:?}, axis {axis} has {extent} elements"),
                }
            }
        };
        let steps: Vec<isize> = strides(x.shape()).into_iter().map(|s| s as isize).collect();
        let mut parts = Vec::with_capacity(sizes.len());
        let mut start = 0;
        for n in sizes {
            let mut dims = x.shape().to_vec();
            dims[axis] = n;
            let walk = Strided::new(start * steps[axis].unsigned_abs(), &dims, &steps);
            if squeeze {
                dims.remove(axis);
            }
            parts.push(Value::from(walked(io, x, dims, &walk)?));
            start += n;
        }
        io.emit(Value::Sequence(parts));
        Ok(())
    }
}

/// The tensors of a sequence joined along an axis, or stacked along a new one.
pub(in crate::ops) static CONCAT_FROM_SEQUENCE: OpDef = OpDef {
    name: "ConcatFromSequence",
    domain: "",
    since: 11,
    attributes: &[
        AttributeDef::required("axis", AttributeKind::Int),
        AttributeDef::optional("new_axis", AttributeKind::Int),
    ],
    inputs: &[Port::required("input_sequence", ANY)],
    outputs: &[Port::required("concat_result", ANY)],
    infer: |_| Ok(()),
    batch: batch::mixes,
    cost: cost::copy,
    prepare: |p| Ok(Box::new(Join::of(p.node)?)),
    cases: || {
        vec![nested(
            "ConcatFromSequence",
            |g, s| {
                let stacked = g.op(
                    "ConcatFromSequence",
                    &[s],
                    &[("axis", 0.into()), ("new_axis", 1.into())],
                )?;
                g.op("ReduceProd", &[stacked], &[("keepdims", 0.into())])
            },
            56,
        )]
    },
};

#[derive(Debug)]
struct Join {
    axis: i64,
    new: bool,
}

impl Join {
    fn of(node: &Node) -> Result<Self> {
        let new = node.int_or("new_axis", 0)?;
        if !(0..=1).contains(&new) {
            bail!(Graph, "attribute `new_axis` is {new}, expected 0 or 1");
        }
        Ok(Self { axis: node.required_int("axis")?, new: new == 1 })
    }
}

impl CpuKernel for Join {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let mut parts: Vec<Tensor> = Vec::new();
        for value in sequence(io, 0)? {
            parts.push(value.tensor()?.clone());
        }
        let Some(first) = parts.first() else {
            bail!(Shape, "a sequence of nothing cannot be joined");
        };
        let axis = normalise_axis(self.axis, first.rank() + usize::from(self.new))?;
        if self.new {
            for part in &mut parts {
                let mut dims = part.shape().to_vec();
                if axis > dims.len() {
                    bail!(Shape, "axis {axis} is outside of {}", part.describe());
                }
                dims.insert(axis, 1);
                *part = part.reshape(dims)?;
            }
        }
        let parts: Vec<&Tensor> = parts.iter().collect();
        let out = concat(io, &parts, self.axis)?;
        io.emit(out);
        Ok(())
    }
}
