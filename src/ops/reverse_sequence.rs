//! `ReverseSequence`.

use super::case::{Case, ints, of};
use super::def::types::{ANY, I64S};
use super::movement::{Picked, produce};
use super::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, cost};
use crate::error::{Result, bail};
use crate::graph::Node;
use crate::tensor::Tensor;

/// The first elements of each sequence in reverse order, as many as its length says.
pub(super) static REVERSE_SEQUENCE: OpDef = OpDef {
    name: "ReverseSequence",
    domain: "",
    since: 10,
    attributes: &[
        AttributeDef::optional("batch_axis", AttributeKind::Int),
        AttributeDef::optional("time_axis", AttributeKind::Int),
    ],
    inputs: &[Port::required("input", ANY), Port::required("sequence_lens", I64S)],
    outputs: &[Port::required("Y", ANY)],
    infer: |i| {
        time_is_first(i.node)?;
        i.set(0, i.dtype(0), i.shape(0));
        Ok(())
    },
    batch: |q| {
        let axes = (q.axes.first().copied().flatten(), q.axes.get(1).copied().flatten());
        let along = usize::from(time_is_first(q.node).map_err(|e| e.to_string())?);
        match axes {
            (None, None) => q.everywhere(None),
            (Some(axis), Some(0)) if axis == along => q.everywhere(Some(axis)),
            (Some(axis), None) if axis > 1 => q.everywhere(Some(axis)),
            _ => Err("its input and `sequence_lens` carry the batch differently".to_owned()),
        }
    },
    cost: cost::copy,
    prepare: |p| Ok(Box::new(ReverseSequence { time_first: time_is_first(p.node)? })),
    cases,
};

/// Whether the first axis is the time and the second one the batch, or the other way round.
fn time_is_first(node: &Node) -> Result<bool> {
    match (node.int_or("time_axis", 0)?, node.int_or("batch_axis", 1)?) {
        (0, 1) => Ok(true),
        (1, 0) => Ok(false),
        (time, batch) => {
            bail!(Graph, "`time_axis` {time} and `batch_axis` {batch} must be 0 and 1 or 1 and 0")
        }
    }
}

#[derive(Debug)]
struct ReverseSequence {
    time_first: bool,
}

impl CpuKernel for ReverseSequence {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let lengths = io.tensor(1)?.to_i64s()?;
        let x = io.take_tensor(0)?;
        let [first, second, rest @ ..] = &**x.shape() else {
            bail!(Shape, "ReverseSequence needs two axes or more, got {}", x.describe());
        };
        let run = rest.iter().product();
        let (time, batch) = if self.time_first { (*first, *second) } else { (*second, *first) };
        if lengths.len() != batch {
            bail!(Shape, "there are {} `sequence_lens` for {batch} sequences", lengths.len());
        }
        let lengths: Vec<usize> = lengths
            .into_iter()
            .map(|n| match usize::try_from(n) {
                Ok(n) if n <= time => Ok(n),
                _ => bail!(Kernel, "a sequence length is {n}, the sequences have {time} elements"),
            })
            .collect::<Result<_>>()?;
        let source = |t: usize, b: usize| if t < lengths[b] { lengths[b] - 1 - t } else { t };
        let offsets: Vec<usize> = if self.time_first {
            let all = (0..time).flat_map(|t| (0..batch).map(move |b| (t, b)));
            all.map(|(t, b)| (source(t, b) * batch + b) * run).collect()
        } else {
            let all = (0..batch).flat_map(|b| (0..time).map(move |t| (t, b)));
            all.map(|(t, b)| (b * time + source(t, b)) * run).collect()
        };
        let picked = Picked { offsets: &offsets, run, outer: 1, step: 0 };
        io.emit(produce(io, &[&x], x.shape().clone(), &picked)?);
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    let new = |name| Case::new("ReverseSequence", 10, name);
    vec![
        new("time first")
            .input(of(&[3, 2], vec![0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0]))
            .input(Tensor::of_i64(&[3, 2]))
            .output(of(&[3, 2], vec![4.0_f32, 3.0, 2.0, 1.0, 0.0, 5.0])),
        new("batch first")
            .attr("batch_axis", 0)
            .attr("time_axis", 1)
            .input(ints(&[2, 3, 1], vec![0, 1, 2, 3, 4, 5]))
            .constant(Tensor::of_i64(&[0, 2]))
            .output(ints(&[2, 3, 1], vec![0, 1, 2, 4, 3, 5])),
        new("nothing")
            .input(ints(&[0, 2], vec![]))
            .constant(Tensor::of_i64(&[0, 0]))
            .output(ints(&[0, 2], vec![])),
    ]
}
