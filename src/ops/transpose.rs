//! `Transpose`.

use super::case::{Case, ints, iota, of};
use super::def::types::STORED;
use super::movement::{Strided, walked};
use super::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, cost};
use crate::error::{Result, bail, err};
use crate::tensor::{Few, Shape, signed_strides};

/// The axes in another order; reversed by default.
pub(super) static TRANSPOSE: OpDef = OpDef {
    name: "Transpose",
    domain: "",
    since: 1,
    attributes: &[AttributeDef::optional("perm", AttributeKind::Ints)],
    inputs: &[Port::required("data", STORED)],
    outputs: &[Port::required("transposed", STORED)],
    infer: |i| {
        let perm = i.node.ints("perm")?.map(<[i64]>::to_vec);
        let shape = match (i.shape(0), perm) {
            (Some(s), perm) => {
                let order = order(perm.as_deref(), s.len())?;
                Some(order.iter().map(|a| s[*a].clone()).collect())
            }
            (None, Some(perm)) => Some(i.fresh_shape(perm.len())),
            (None, None) => None,
        };
        i.set(0, i.dtype(0), shape);
        if i.rank(0).is_some_and(|r| r <= 1) {
            i.set_elements(0, i.elements(0));
        }
        Ok(())
    },
    batch: |q| {
        let Some(axis) = q.axes.first().copied().flatten() else {
            return q.everywhere(None);
        };
        let perm = q.node.ints("perm").map_err(|e| e.to_string())?;
        let rank = match (perm, q.rank(0)) {
            (Some(perm), _) => perm.len(),
            (None, Some(rank)) => rank,
            (None, None) => return Err("its number of axes is not known".to_owned()),
        };
        let order = order(perm, rank).map_err(|e| e.to_string())?;
        match order.iter().position(|a| *a == axis) {
            Some(to) => q.everywhere(Some(to)),
            None => Err(format!("the batch axis {axis} is not there")),
        }
    },
    cost: cost::copy,
    prepare: |p| {
        let perm = p.node.ints("perm")?;
        if let Some(perm) = perm {
            order(Some(perm), perm.len())?;
        }
        Ok(Box::new(Transpose { perm: perm.map(<[i64]>::to_vec) }))
    },
    cases,
};

#[derive(Debug)]
struct Transpose {
    perm: Option<Vec<i64>>,
}

impl CpuKernel for Transpose {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.take_tensor(0)?;
        let order = order(self.perm.as_deref(), x.rank())?;
        let steps = signed_strides(x.shape());
        let shape: Shape = order.iter().map(|a| x.shape()[*a]).collect();
        let steps: Few<isize> = order.iter().map(|a| steps[*a]).collect();
        let walk = Strided::new(0, &shape, &steps);
        io.emit(walked(io, &x, shape, &walk)?);
        Ok(())
    }
}

/// The input's axis for each axis of the output.
fn order(perm: Option<&[i64]>, rank: usize) -> Result<Few<usize>> {
    let Some(perm) = perm else { return Ok((0..rank).rev().collect()) };
    if perm.len() != rank {
        bail!(Shape, "`perm` {perm:?} does not fit a tensor with {rank} axes");
    }
    let mut seen = Few::filled(false, rank);
    perm.iter()
        .map(|&p| {
            let axis = usize::try_from(p).ok().filter(|a| *a < rank && !seen[*a]);
            let axis = axis.ok_or_else(|| {
                err!(Graph, "`perm` {perm:?} does not list each axis below {rank} once")
            })?;
            seen[axis] = true;
            Ok(axis)
        })
        .collect()
}

fn cases() -> Vec<Case> {
    let new = |name| Case::new("Transpose", 13, name);
    let (rows, columns) = (70i64, 37i64);
    let turned: Vec<f32> =
        (0..columns).flat_map(|c| (0..rows).map(move |r| (r * columns + c) as f32)).collect();
    let large: Vec<f32> = (0..rows * columns).map(|x| x as f32).collect();
    vec![
        new("reversed by default")
            .input(iota(&[2, 3]))
            .output(ints(&[3, 2], vec![0, 3, 1, 4, 2, 5])),
        new("three axes")
            .attr("perm", vec![1, 0, 2])
            .input(iota(&[2, 3, 2]))
            .output(ints(&[3, 2, 2], vec![0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11])),
        new("nothing moves")
            .attr("perm", vec![1, 0, 2])
            .input(iota(&[1, 3, 2]))
            .output(iota(&[3, 1, 2])),
        new("empty").attr("perm", vec![1, 0]).input(iota(&[0, 3])).output(iota(&[3, 0])),
        new("several tiles").input(of(&[70, 37], large)).output(of(&[37, 70], turned)),
        new("scalar").input(iota(&[])).output(iota(&[])),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_permutations_are_taken() {
        assert!(order(Some(&[0, 0]), 2).is_err());
        assert!(order(Some(&[0, 2]), 2).is_err());
        assert!(order(Some(&[0, -1]), 2).is_err());
        assert!(order(Some(&[0]), 2).is_err());
        assert_eq!(*order(Some(&[1, 0]), 2).unwrap(), [1, 0]);
    }
}
