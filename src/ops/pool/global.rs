//! `GlobalAveragePool`, `GlobalMaxPool` and `GlobalLpPool`.

use super::plain::Ordered;
use super::{batch, sliding};
use crate::error::{Result, bail};
use crate::graph::Dim;
use crate::ops::case::{Case, as_dtype, counted, filled};
use crate::ops::def::types::FLOATS;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, cost};
use crate::tensor::{DType, Shape, cast};

/// The mean of each plane.
pub(in crate::ops) static GLOBAL_AVERAGE_POOL: OpDef = OpDef {
    name: "GlobalAveragePool",
    domain: "",
    since: 1,
    attributes: &[],
    inputs: &[Port::required("X", FLOATS)],
    outputs: &[Port::required("Y", FLOATS)],
    infer,
    batch,
    cost: cost::reduction,
    prepare: |_| Ok(Box::new(Kind::Average)),
    cases: || {
        let mut v = Vec::new();
        for dtype in FLOATS {
            v.push(
                Case::new("GlobalAveragePool", 13, format!("two axes, {dtype}"))
                    .input(as_dtype(&counted(&[1, 2, 2, 2]), *dtype))
                    .output(as_dtype(&filled(&[1, 2, 1, 1], &[1.5_f32, 5.5]), *dtype)),
            );
        }
        v.push(
            Case::new("GlobalAveragePool", 13, "one axis")
                .input(counted(&[2, 1, 3]))
                .output(filled(&[2, 1, 1], &[1.0_f32, 4.0])),
        );
        // A long plane of one value must not lose digits.
        v.push(
            Case::new("GlobalAveragePool", 13, "a long plane")
                .input(filled(&[1, 1, 100_003], &vec![0.1_f32; 100_003]))
                .output(filled(&[1, 1, 1], &[0.1_f32]))
                .close(0.0, 1e-5),
        );
        v
    },
};

/// The largest element of each plane.
pub(in crate::ops) static GLOBAL_MAX_POOL: OpDef = OpDef {
    name: "GlobalMaxPool",
    domain: "",
    since: 1,
    attributes: &[],
    inputs: &[Port::required("X", FLOATS)],
    outputs: &[Port::required("Y", FLOATS)],
    infer,
    batch,
    cost: cost::reduction,
    prepare: |_| Ok(Box::new(Kind::Max)),
    cases: || {
        vec![
            Case::new("GlobalMaxPool", 13, "two axes")
                .input(counted(&[1, 2, 2, 2]))
                .output(filled(&[1, 2, 1, 1], &[3.0_f32, 7.0])),
            Case::new("GlobalMaxPool", 13, "negative elements, f64")
                .input(filled(&[1, 1, 3], &[-3.0_f64, -2.0, -5.0]))
                .output(filled(&[1, 1, 1], &[-2.0_f64])),
        ]
    },
};

/// The p-norm of each plane.
pub(in crate::ops) static GLOBAL_LP_POOL: OpDef = OpDef {
    name: "GlobalLpPool",
    domain: "",
    since: 1,
    attributes: &[
        AttributeDef::optional("p", AttributeKind::Int),
        AttributeDef::optional("p", AttributeKind::Float).until(1),
    ],
    inputs: &[Port::required("X", FLOATS)],
    outputs: &[Port::required("Y", FLOATS)],
    infer,
    batch,
    cost: cost::reduction,
    prepare: |p| Ok(Box::new(Kind::Norm(sliding::norm(p)?))),
    cases: || {
        vec![
            Case::new("GlobalLpPool", 13, "p = 2")
                .input(filled(&[1, 2, 2], &[3.0_f32, -4.0, 0.0, 2.0]))
                .output(filled(&[1, 2, 1], &[5.0_f32, 2.0])),
            Case::new("GlobalLpPool", 1, "p as a float")
                .attr("p", 1.0_f32)
                .input(filled(&[1, 1, 2], &[3.0_f32, -4.0]))
                .output(filled(&[1, 1, 1], &[7.0_f32])),
            Case::new("GlobalLpPool", 13, "p = 1, f64")
                .attr("p", 1)
                .input(filled(&[1, 1, 2], &[3.0_f64, -4.0]))
                .output(filled(&[1, 1, 1], &[7.0_f64])),
        ]
    },
};

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let shape = match i.shape(0) {
        Some(x) if x.len() < 2 => {
            bail!(Shape, "input `X` has {} axes, expected batch and channels", x.len())
        }
        Some(mut x) => {
            x[2..].fill(Dim::fixed(1));
            Some(x)
        }
        None => None,
    };
    i.set(0, i.dtype(0), shape);
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Average,
    Max,
    Norm(i32),
}

impl CpuKernel for Kind {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        if x.rank() < 2 {
            bail!(Shape, "input `X` is {}, expected batch and channels", x.describe());
        }
        let dtype = x.dtype();
        let (lead, size) = x.shape().split_at(2);
        let shape: Shape = lead.iter().copied().chain(size.iter().map(|_| 1)).collect();
        let plane: usize = size.iter().product();
        let work = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
        let x = cast(x, work)?;
        let mut out = io.allocate(work, shape)?;
        if plane == 0 && !out.is_empty() {
            bail!(Shape, "input `X` is {}: there is nothing to pool", x.describe());
        }
        if work == DType::F64 {
            let x = x.as_slice::<f64>()?;
            let y = out.as_mut_slice::<f64>()?;
            io.threads().split_rows(y, 1, |first, chunk| {
                for (p, y) in chunk.iter_mut().enumerate() {
                    let x = &x[(first + p) * plane..][..plane];
                    *y = match self {
                        Self::Average => x.iter().sum::<f64>() / plane as f64,
                        Self::Max => x.iter().fold(f64::LEAST, |a, x| if *x > a { *x } else { a }),
                        Self::Norm(p) => x
                            .iter()
                            .map(|x| x.abs().powi(*p))
                            .sum::<f64>()
                            .powf(1.0 / f64::from(*p)),
                    };
                }
            });
        } else {
            let x = x.as_slice::<f32>()?;
            let y = out.as_mut_slice::<f32>()?;
            io.threads().split_rows(y, 1, |first, chunk| {
                for (p, y) in chunk.iter_mut().enumerate() {
                    let x = &x[(first + p) * plane..][..plane];
                    *y = match self {
                        Self::Average => (sum(x, |x| x) / plane as f64) as f32,
                        Self::Max => x.iter().fold(f32::LEAST, |a, x| if *x > a { *x } else { a }),
                        Self::Norm(p) => {
                            sum(x, |x| x.abs().powi(*p)).powf(1.0 / f64::from(*p)) as f32
                        }
                    };
                }
            });
        }
        io.emit(cast(&out, dtype)?);
        Ok(())
    }
}

/// The sum of a function of the elements: short runs in lanes of f32, the runs in f64.
fn sum(x: &[f32], f: impl Fn(f32) -> f32) -> f64 {
    const LANES: usize = 16;
    const RUN: usize = 64 * LANES;
    let mut total = 0.0_f64;
    for run in x.chunks(RUN) {
        let mut lanes = [0.0_f32; LANES];
        let mut rows = run.chunks_exact(LANES);
        for row in &mut rows {
            for (lane, x) in lanes.iter_mut().zip(row) {
                *lane += f(*x);
            }
        }
        total += lanes.iter().map(|l| f64::from(*l)).sum::<f64>();
        total += rows.remainder().iter().map(|x| f64::from(f(*x))).sum::<f64>();
    }
    total
}
