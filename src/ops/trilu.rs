//! `Trilu`.

use super::case::{Case, ints, iota};
use super::def::types::{ALL, I64S};
use super::movement::{Item, Mover, altered};
use super::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, Threads, cost};
use crate::error::{Result, bail};
use crate::tensor::Tensor;

/// The upper or lower triangle of matrices; the rest is 0.
pub(super) static TRILU: OpDef = OpDef {
    name: "Trilu",
    domain: "",
    since: 14,
    attributes: &[AttributeDef::optional("upper", AttributeKind::Int)],
    inputs: &[Port::required("input", ALL), Port::optional("k", I64S)],
    outputs: &[Port::required("output", ALL)],
    infer: |i| {
        i.set(0, i.dtype(0), i.shape(0));
        Ok(())
    },
    batch: |q| match (q.axes.first().copied().flatten(), q.rank(0)) {
        _ if q.axes.iter().skip(1).any(Option::is_some) => {
            Err("its diagonal depends on the items of the batch".to_owned())
        }
        (None, _) => q.everywhere(None),
        (Some(axis), Some(rank)) if axis + 2 < rank => q.everywhere(Some(axis)),
        _ => Err("the batch is on an axis of its matrices".to_owned()),
    },
    cost: cost::copy,
    prepare: |p| Ok(Box::new(Trilu { upper: p.node.int_or("upper", 1)? != 0 })),
    cases,
};

#[derive(Debug)]
struct Trilu {
    upper: bool,
}

impl CpuKernel for Trilu {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let diagonal = io.optional(1)?.map_or(Ok(0), |t| t.item::<i64>())?;
        let x = io.take_tensor(0)?;
        let [.., rows, columns] = **x.shape() else {
            bail!(Shape, "Trilu needs two axes or more, got {}", x.describe());
        };
        let triangle = Triangle { upper: self.upper, diagonal, rows, columns };
        io.emit(altered(io, x, &[], &triangle)?);
        Ok(())
    }
}

struct Triangle {
    upper: bool,
    diagonal: i64,
    rows: usize,
    columns: usize,
}

impl Mover for Triangle {
    fn fill<T: Item>(&self, _: &[&[T]], out: &mut [T], _: &Threads) -> Result<()> {
        if out.is_empty() {
            return Ok(());
        }
        for (n, row) in out.chunks_mut(self.columns).enumerate() {
            // The column of the diagonal in this row.
            let at = ((n % self.rows) as i64).saturating_add(self.diagonal);
            let border = if self.upper { at } else { at.saturating_add(1) };
            let border = border.clamp(0, self.columns as i64) as usize;
            let outside = if self.upper { &mut row[..border] } else { &mut row[border..] };
            outside.fill(T::default());
        }
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    let new = |name| Case::new("Trilu", 14, name);
    let x = || ints(&[2, 3], vec![1, 2, 3, 4, 5, 6]);
    vec![
        new("upper").input(x()).output(ints(&[2, 3], vec![1, 2, 3, 0, 5, 6])),
        new("lower with k")
            .attr("upper", 0)
            .input(x())
            .input(Tensor::scalar(1_i64))
            .output(ints(&[2, 3], vec![1, 2, 0, 4, 5, 6])),
        new("far off, two matrices")
            .input(ints(&[2, 1, 2], vec![1, 2, 3, 4]))
            .constant(Tensor::scalar(i64::MAX))
            .output(ints(&[2, 1, 2], vec![0; 4])),
        new("nothing").input(iota(&[3, 0])).output(iota(&[3, 0])),
    ]
}
