//! Broadcasting before operator set 7: only where the attribute `broadcast` allows it, and only of
//! the second operand, whose axes stand for those of the first from `axis` on.

use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::ops::batch::{self, BatchFlow, BatchQuery};
use crate::ops::infer::broadcast_dims;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, Prepare};
use crate::tensor::Value;

/// A hint about memory in the first operator sets, which says nothing about results.
pub(in crate::ops) const CONSUMED_INPUTS: AttributeDef =
    AttributeDef::optional("consumed_inputs", AttributeKind::Ints).until(5);

/// What operators of two operands have before operator set 7.
pub(super) const ATTRIBUTES: &[AttributeDef] = &[
    AttributeDef::optional("axis", AttributeKind::Int).until(6),
    AttributeDef::optional("broadcast", AttributeKind::Int).until(6),
    CONSUMED_INPUTS,
];

/// How the second operand meets the first.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Alignment {
    /// Axes count from the right, each operand may be broadcast: from operator set 7 on.
    Mutual,
    /// Both operands are of one shape.
    Same,
    /// The second one's axes are those from this one on; the last ones, if none is given.
    From(Option<i64>),
    /// The second one is a scalar or has an element for each channel.
    Channels,
}

impl Alignment {
    fn of(node: &Node) -> Result<Self> {
        Ok(match node.version {
            7.. => Self::Mutual,
            _ if node.op == "PRelu" => Self::Channels,
            _ if node.int_or("broadcast", 0)? == 0 => Self::Same,
            _ => Self::From(node.int("axis")?),
        })
    }

    /// The shape of the second operand with an axis for each of the first that it does not end
    /// before.
    fn apply<D: Clone + PartialEq>(self, a: &[D], b: &[D], one: &D) -> Result<Vec<D>> {
        let (rank, own) = (a.len(), b.len());
        let start = match self {
            Self::Mutual => return Ok(b.to_vec()),
            Self::Same if rank != own => {
                bail!(Shape, "operands of {rank} and {own} axes need the attribute `broadcast`")
            }
            Self::Same | Self::From(None) => rank.checked_sub(own),
            // A single element meets everything, wherever it is said to stand.
            Self::From(_) | Self::Channels if b.iter().all(|d| d == one) => rank.checked_sub(own),
            Self::From(Some(axis)) => {
                let axis = if axis < 0 { axis.saturating_add(rank as i64) } else { axis };
                usize::try_from(axis).ok().filter(|axis| axis.saturating_add(own) <= rank)
            }
            Self::Channels if own == 1 => Some(1).filter(|start| start + own <= rank),
            Self::Channels => rank.checked_sub(own),
        };
        let Some(start) = start else {
            bail!(Shape, "an operand of {own} axes does not fit one of {rank} so ({self:?})");
        };
        let mut shape = b.to_vec();
        shape.extend(vec![one.clone(); rank - start - own]);
        Ok(shape)
    }
}

/// The symbolic shape of the result; `None` if a rank is not known.
///
/// # Errors
/// If the operands do not fit.
pub(super) fn broadcast(i: &Infer<'_>) -> Result<Option<Vec<Dim>>> {
    let (Some(a), Some(b)) = (i.shape(0), i.shape(1)) else { return Ok(None) };
    let b = Alignment::of(i.node)?.apply(&a, &b, &Dim::fixed(1))?;
    broadcast_dims(&[&a, &b]).map(Some)
}

/// The kernel of a node with two operands; before operator set 7 the second one is turned to the
/// shape that today's broadcasting needs.
///
/// # Errors
/// If an attribute is of another kind.
pub(super) fn prepare(
    p: &Prepare<'_>,
    kernel: impl CpuKernel + 'static,
) -> Result<Box<dyn CpuKernel>> {
    Ok(match Alignment::of(p.node)? {
        Alignment::Mutual => Box::new(kernel),
        alignment => Box::new(Aligned { alignment, kernel }),
    })
}

#[derive(Debug)]
struct Aligned<K> {
    alignment: Alignment,
    kernel: K,
}

impl<K: CpuKernel> CpuKernel for Aligned<K> {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let b = io.take_tensor(1)?;
        let a = io.tensor(0)?.shape();
        let shape = self.alignment.apply(a, b.shape(), &1)?;
        if self.alignment == Alignment::Same && shape[..] != a[..] {
            bail!(Shape, "operands of shapes {a} and {} need `broadcast`", b.shape());
        }
        io.put(1, Value::from(b.reshape(shape)?));
        self.kernel.run(io)
    }

    fn reads_constant(&self, input: usize) -> bool {
        self.kernel.reads_constant(input)
    }
}

/// As [`batch::elementwise`]; before operator set 7 the batch comes in the first operand, along an
/// axis that the second one does not have, or both operands are of one shape.
pub(super) fn batch(q: &BatchQuery<'_>) -> BatchFlow {
    let alignment = Alignment::of(q.node).map_err(|e| e.to_string())?;
    if q.is_free() || matches!(alignment, Alignment::Mutual | Alignment::Same) {
        return batch::elementwise(q);
    }
    if q.axes.get(1).copied().flatten().is_some() {
        return Err("the second operand carries the batch".to_owned());
    }
    let axis = q.axes.first().copied().flatten();
    let shape = |i: usize| q.shapes.get(i).and_then(Option::as_ref);
    let (Some(a), Some(b)) = (shape(0), shape(1)) else {
        return Err("the rank of an operand is not known".to_owned());
    };
    let one = Dim::fixed(1);
    let aligned = alignment.apply(a, b, &one).map_err(|e| e.to_string())?;
    let own = axis.and_then(|axis| aligned.get((axis + aligned.len()).checked_sub(a.len())?));
    if own.is_some_and(|d| *d != one) {
        return Err("the second operand has rows of its own along the batch axis".to_owned());
    }
    q.everywhere(axis)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_operand_takes_its_place() {
        let from = |axis| Alignment::From(axis);
        let apply = |alignment: Alignment, b: &[usize]| alignment.apply(&[2, 3, 4, 5], b, &1).ok();
        assert_eq!(apply(from(None), &[4, 5]), Some(vec![4, 5]));
        assert_eq!(apply(from(Some(1)), &[3, 4]), Some(vec![3, 4, 1]));
        assert_eq!(apply(from(Some(-3)), &[3]), Some(vec![3, 1, 1]));
        assert_eq!(apply(from(Some(0)), &[2]), Some(vec![2, 1, 1, 1]));
        assert_eq!(apply(from(Some(0)), &[1]), Some(vec![1]));
        assert_eq!(apply(from(Some(3)), &[4, 5]), None);
        assert_eq!(apply(from(Some(-5)), &[2]), None);
        assert_eq!(apply(from(Some(i64::MAX)), &[2]), None);
        assert_eq!(apply(from(None), &[1, 2, 3, 4, 5]), None);
        assert_eq!(apply(Alignment::Channels, &[3]), Some(vec![3, 1, 1]));
        assert_eq!(apply(Alignment::Channels, &[1]), Some(vec![1]));
        assert_eq!(apply(Alignment::Same, &[5]), None);
        assert_eq!(Alignment::Channels.apply(&[3], &[3], &1).ok(), None);
    }
}
