//! `OneHot`.

use super::case::{Case, ints, of};
use super::def::types::{ANY, NUMBERS};
use super::movement::{Item, Mover, produce};
use super::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, Threads, cost};
use crate::error::{Result, bail, err};
use crate::tensor::{DType, Tensor, cast, normalise_axis};

/// A new axis on which one element has the value "on" and the others the value "off".
pub(super) static ONE_HOT: OpDef = OpDef {
    name: "OneHot",
    domain: "",
    since: 9,
    attributes: &[AttributeDef::optional("axis", AttributeKind::Int)],
    inputs: &[
        Port::required("indices", NUMBERS),
        Port::required("depth", NUMBERS),
        Port::required("values", ANY),
    ],
    outputs: &[Port::required("output", ANY)],
    infer: |i| {
        let axis = i.node.int_or("axis", -1)?;
        let shape = match i.shape(0) {
            Some(mut s) => {
                let at = normalise_axis(axis, s.len() + 1)?;
                let depth = match (i.elements(1).as_deref(), i.constant(1)) {
                    (Some([d]), _) => Some(d.clone()),
                    (_, Some(t)) => Some(crate::graph::Dim::of(depth(t)?)),
                    _ => None,
                };
                let depth = match depth {
                    Some(d) => d,
                    None => i.fresh(),
                };
                s.insert(at, depth);
                Some(s)
            }
            None => None,
        };
        i.set(0, i.dtype(2), shape);
        Ok(())
    },
    batch: |q| {
        if q.axes.iter().skip(1).any(Option::is_some) {
            return Err("its depth or values depend on the items of the batch".to_owned());
        }
        let Some(axis) = q.axes.first().copied().flatten() else {
            return q.everywhere(None);
        };
        let rank = q.rank(0).ok_or("its number of axes is not known")?;
        let new = q.node.int_or("axis", -1).and_then(|a| normalise_axis(a, rank + 1));
        let new = new.map_err(|e| e.to_string())?;
        q.everywhere(Some(axis + usize::from(new <= axis)))
    },
    cost: cost::copy,
    prepare: |p| Ok(Box::new(OneHot { axis: p.node.int_or("axis", -1)? })),
    cases,
};

/// The extent that `depth` asks for.
fn depth(t: &Tensor) -> Result<usize> {
    match cast(t, DType::I64)?.as_slice::<i64>()? {
        [n] => usize::try_from(*n).map_err(|_| err!(Shape, "`depth` is {n}")),
        _ => bail!(Shape, "`depth` is one number, got {}", t.describe()),
    }
}

#[derive(Debug)]
struct OneHot {
    axis: i64,
}

impl CpuKernel for OneHot {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (indices, values) = (io.tensor(0)?, io.tensor(2)?);
        let depth = depth(io.tensor(1)?)?;
        if values.len() != 2 {
            bail!(Shape, "`values` are the off and the on value, got {}", values.describe());
        }
        let axis = normalise_axis(self.axis, indices.rank() + 1)?;
        let mut shape = indices.shape().to_vec();
        shape.insert(axis, depth);
        let inner: usize = shape[axis + 1..].iter().product();
        let extent = i64::try_from(depth).unwrap_or(i64::MAX);
        let numbers = cast(indices, DType::I64)?;
        let numbers = numbers.as_slice::<i64>()?.iter().enumerate();
        // An index outside of the depth leaves its whole line off.
        let on = numbers.filter_map(|(n, &v)| {
            let at = if v < 0 { v.saturating_add(extent) } else { v };
            let at = usize::try_from(at).ok().filter(|at| *at < depth)?;
            Some((n / inner * depth + at) * inner + n % inner)
        });
        let on = if inner == 0 { Vec::new() } else { on.collect() };
        io.emit(produce(io, &[values], shape, &Spots { on })?);
        Ok(())
    }
}

struct Spots {
    on: Vec<usize>,
}

impl Mover for Spots {
    fn fill<T: Item>(&self, sources: &[&[T]], out: &mut [T], _: &Threads) -> Result<()> {
        let [[off, on]] = sources else { bail!(Internal, "OneHot needs two values") };
        out.fill(off.clone());
        for &at in &self.on {
            out[at] = on.clone();
        }
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    let new = |name| Case::new("OneHot", 11, name);
    vec![
        new("last axis, negative and outside")
            .input(ints(&[4], vec![0, -1, 3, -4]))
            .constant(Tensor::scalar(3_i64))
            .constant(of(&[2], vec![0.5_f32, 1.0]))
            .output(of(
                &[4, 3],
                vec![1.0_f32, 0.5, 0.5, 0.5, 0.5, 1.0, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5],
            )),
        new("first axis, at run time")
            .attr("axis", 0)
            .input(ints(&[2], vec![1, 0]))
            .input(ints(&[1], vec![2]))
            .input(ints(&[2], vec![7, 16_777_217]))
            .output(ints(&[2, 2], vec![7, 16_777_217, 16_777_217, 7])),
        new("indices of floats")
            .input(of(&[1], vec![1.0_f32]))
            .constant(Tensor::scalar(2.0_f32))
            .constant(of(&[2], vec![false, true]))
            .output(of(&[1, 2], vec![false, true])),
        new("depth 0")
            .input(ints(&[2], vec![1, 0]))
            .constant(Tensor::scalar(0_i64))
            .constant(ints(&[2], vec![0, 1]))
            .output(ints(&[2, 0], vec![])),
    ]
}
