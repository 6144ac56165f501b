//! `Softmax`, `LogSoftmax` and `Hardmax`.

use super::batch::{BatchFlow, BatchQuery};
use super::case::{Case, as_dtype, counted, filled};
use super::def::types::FLOATS;
use super::elementwise::{Float, spread, writable};
use super::reduce::{Largest, Sum, fold_row};
use super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, cost};
use crate::error::{Result, bail};
use crate::graph::Node;
use crate::tensor::{DType, Shape, cast, normalise_axis};

macro_rules! table {
    ($($(#[$doc:meta])* $def:ident $name:literal $kind:ident $cases:ident;)*) => { $(
        $(#[$doc])*
        pub(super) static $def: OpDef = OpDef {
            name: $name,
            domain: "",
            since: 1,
            attributes: &[AttributeDef::optional("axis", AttributeKind::Int)],
            inputs: &[Port::required("input", FLOATS)],
            outputs: &[Port::required("output", FLOATS)],
            infer,
            batch,
            cost: cost::transcendental,
            prepare: |p| Ok(Box::new(Softmax { kind: Kind::$kind, axis: Axis::of(p.node)? })),
            cases: $cases,
        };
    )* };
}
table! {
    /// Exponentials divided by their sum: along an axis, and before version 13 over all axes from
    /// `axis` on.
    SOFTMAX "Softmax" Softmax softmax_cases;
    /// The logarithm of [`SOFTMAX`].
    LOG_SOFTMAX "LogSoftmax" Log log_softmax_cases;
    /// 1 at the first largest element, else 0.
    HARDMAX "Hardmax" Hard hardmax_cases;
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Softmax,
    Log,
    Hard,
}

/// The axis, and whether all later ones belong to it.
#[derive(Clone, Copy, Debug)]
struct Axis {
    axis: i64,
    flatten: bool,
}

impl Axis {
    fn of(node: &Node) -> Result<Self> {
        let flatten = node.version < 13;
        Ok(Self { axis: node.int_or("axis", if flatten { 1 } else { -1 })?, flatten })
    }

    /// The axis of a tensor of `rank`. Before version 13 the default of 1 may be one too many.
    fn index(self, rank: usize) -> Result<usize> {
        if self.flatten && usize::try_from(self.axis) == Ok(rank) {
            return Ok(rank);
        }
        normalise_axis(self.axis, rank)
    }

    /// The shape as `[outer, n, inner]`, normalised along `n`.
    fn fold(self, shape: &Shape) -> Result<[usize; 3]> {
        let axis = self.index(shape.rank())?;
        let outer = shape[..axis].iter().product();
        let rest: usize = shape[axis..].iter().product();
        if self.flatten {
            return Ok([outer, rest, 1]);
        }
        Ok([outer, shape[axis], shape[axis + 1..].iter().product()])
    }
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let axis = Axis::of(i.node)?;
    if let Some(rank) = i.rank(0) {
        axis.index(rank)?;
    }
    i.set(0, i.dtype(0), i.shape(0));
    Ok(())
}

fn batch(q: &BatchQuery<'_>) -> BatchFlow {
    let Some(carrier) = q.axes.first().copied().flatten() else { return q.everywhere(None) };
    let rank = q.rank(0).ok_or("the rank of its input is not known")?;
    let axis = Axis::of(q.node).map_err(|e| e.to_string())?;
    let first = axis.index(rank).map_err(|e| e.to_string())?;
    if first == carrier || (axis.flatten && carrier > first) {
        return Err("it normalises along the batch axis".to_owned());
    }
    q.everywhere(Some(carrier))
}

#[derive(Debug)]
struct Softmax {
    kind: Kind,
    axis: Axis,
}

impl CpuKernel for Softmax {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let dtype = io.tensor(0)?.dtype();
        let [_, n, inner] = self.axis.fold(io.tensor(0)?.shape())?;
        let mut x = writable(io)?;
        match x.dtype() {
            DType::F32 => self.images::<f32>(io, x.as_mut_slice()?, n, inner),
            DType::F64 => self.images::<f64>(io, x.as_mut_slice()?, n, inner),
            other => bail!(DType, "expected floats, got {other}"),
        }
        io.emit(cast(&x, dtype)?);
        Ok(())
    }
}

impl Softmax {
    fn images<T: Float>(&self, io: &Io<'_>, x: &mut [T], n: usize, inner: usize) {
        if x.is_empty() {
            return;
        }
        spread(io.threads(), x, n * inner, |_, xs| {
            let mut columns = Vec::new();
            for image in xs.chunks_exact_mut(n * inner) {
                if inner == 1 {
                    self.row(image);
                } else {
                    self.columns(image, inner, &mut columns);
                }
            }
        });
    }

    fn row<T: Float>(&self, row: &mut [T]) {
        let done = match self.kind {
            Kind::Softmax => T::softmax(row),
            Kind::Log => T::log_softmax(row),
            Kind::Hard => false,
        };
        if done {
            return;
        }
        let top = fold_row::<Largest, T>(row);
        match self.kind {
            Kind::Softmax => {
                row.iter_mut().for_each(|x| *x = x.minus(top));
                T::exp_all(row);
                let sum = fold_row::<Sum, T>(row);
                row.iter_mut().for_each(|x| *x = x.over(sum));
            }
            Kind::Log => {
                row.iter_mut().for_each(|x| *x = x.minus(top));
                let log = sum_of_exponentials(row).ln();
                row.iter_mut().for_each(|x| *x = x.minus(log));
            }
            Kind::Hard => {
                let first = row.iter().position(|x| *x == top || x.is_not_a_number());
                row.fill(T::ZERO);
                if let Some(x) = first.and_then(|i| row.get_mut(i)) {
                    *x = T::ONE;
                }
            }
        }
    }

    /// The columns of a matrix with rows of `inner`, through a transposed copy of a few of them.
    fn columns<T: Float>(&self, image: &mut [T], inner: usize, aside: &mut Vec<T>) {
        const TILE: usize = 16;
        let n = image.len() / inner;
        for start in (0..inner).step_by(TILE) {
            let width = TILE.min(inner - start);
            aside.resize(n * width, T::ZERO);
            for (r, row) in image.chunks_exact(inner).enumerate() {
                for (c, &x) in row[start..start + width].iter().enumerate() {
                    aside[c * n + r] = x;
                }
            }
            for column in aside.chunks_exact_mut(n) {
                self.row(column);
            }
            for (r, row) in image.chunks_exact_mut(inner).enumerate() {
                for (c, x) in row[start..start + width].iter_mut().enumerate() {
                    *x = aside[c * n + r];
                }
            }
        }
    }
}

fn sum_of_exponentials<T: Float>(row: &[T]) -> T {
    let mut aside = [T::ZERO; 256];
    let mut sum = T::ZERO;
    for chunk in row.chunks(aside.len()) {
        let powers = &mut aside[..chunk.len()];
        powers.copy_from_slice(chunk);
        T::exp_all(powers);
        sum = sum.plus(fold_row::<Sum, T>(powers));
    }
    sum
}

/// By numpy in double precision.
const OF_0123: [f32; 4] = [0.032_058_604, 0.087_144_32, 0.236_882_82, 0.643_914_3];

fn softmax_cases() -> Vec<Case> {
    let new = |name: &str| Case::new("Softmax", 13, name);
    let twice = [OF_0123, OF_0123].concat();
    let down: Vec<f32> = OF_0123.iter().flat_map(|v| [*v, *v]).collect();
    let pairs: Vec<f32> = OF_0123.iter().flat_map(|v| [*v; 20]).collect();
    let steps: Vec<f32> = (0..4).flat_map(|v| [v as f32; 20]).collect();
    vec![
        new("last axis by default")
            .input(filled(&[2, 4], &[0f32, 1., 2., 3., 10000., 10001., 10002., 10003.]))
            .output(filled(&[2, 4], &twice))
            .close(0.0, 5e-7),
        new("axis 0")
            .attr("axis", 0i64)
            .input(filled(&[4, 2], &[0f32, 5., 1., 6., 2., 7., 3., 8.]))
            .output(filled(&[4, 2], &down))
            .close(0.0, 5e-7),
        new("middle axis, wide")
            .attr("axis", -2i64)
            .input(filled(&[1, 4, 20], &steps))
            .output(filled(&[1, 4, 20], &pairs))
            .close(0.0, 5e-7),
        Case::new("Softmax", 11, "before version 13 over all later axes")
            .input(counted(&[1, 2, 2]))
            .output(filled(&[1, 2, 2], &OF_0123))
            .close(0.0, 5e-7),
        new("masked")
            .input(filled(
                &[2, 2],
                &[0f32, f32::NEG_INFINITY, f32::NEG_INFINITY, f32::NEG_INFINITY],
            ))
            .output(filled(&[2, 2], &[1f32, 0., f32::NAN, f32::NAN])),
        new("f16")
            .input(as_dtype(&counted(&[4]), DType::F16))
            .output(as_dtype(&filled(&[4], &OF_0123), DType::F16))
            .close(0.0, 1e-3),
        new("f64")
            .input(as_dtype(&filled(&[2], &[0f32, 0.]), DType::F64))
            .output(filled(&[2], &[0.5f64, 0.5])),
        new("empty").input(filled::<f32>(&[2, 0], &[])).output(filled::<f32>(&[2, 0], &[])),
    ]
}

fn log_softmax_cases() -> Vec<Case> {
    let new = |name: &str| Case::new("LogSoftmax", 13, name);
    let logs = [-3.440_189_7f32, -2.440_189_7, -1.440_189_7, -0.440_189_7];
    let down: Vec<f32> = logs.iter().flat_map(|v| [*v, *v]).collect();
    vec![
        // Rounded once at 2^20, the logarithm would be lost.
        new("large numbers")
            .input(filled(&[1, 2], &[1_048_576f32, 1_048_576.]))
            .output(filled(&[1, 2], &[-0.693_147_2f32, -0.693_147_2]))
            .close(1e-6, 1e-6),
        new("last axis by default")
            .input(filled(&[1, 4], &[1000f32, 1001., 1002., 1003.]))
            .output(filled(&[1, 4], &logs))
            .close(0.0, 5e-7),
        new("axis 0")
            .attr("axis", 0i64)
            .input(filled(&[4, 2], &[0f32, 5., 1., 6., 2., 7., 3., 8.]))
            .output(filled(&[4, 2], &down))
            .close(0.0, 5e-7),
        Case::new("LogSoftmax", 1, "before version 13 over all later axes")
            .attr("axis", 0i64)
            .input(counted(&[2, 2]))
            .output(filled(&[2, 2], &logs))
            .close(0.0, 5e-7),
    ]
}

fn hardmax_cases() -> Vec<Case> {
    let x = filled(&[2, 3], &[1f32, 3., 3., 4., 0., 2.]);
    vec![
        Case::new("Hardmax", 13, "the first of equals")
            .input(x.clone())
            .output(filled(&[2, 3], &[0f32, 1., 0., 1., 0., 0.])),
        Case::new("Hardmax", 13, "the first NaN")
            .input(filled(&[1, 3], &[1f32, f32::NAN, 3.]))
            .output(filled(&[1, 3], &[0f32, 1., 0.])),
        Case::new("Hardmax", 13, "axis 0")
            .attr("axis", 0i64)
            .input(x.clone())
            .output(filled(&[2, 3], &[0f32, 1., 1., 1., 0., 0.])),
        Case::new("Hardmax", 11, "before version 13 over all later axes")
            .attr("axis", 0i64)
            .input(x)
            .output(filled(&[2, 3], &[0f32, 0., 0., 1., 0., 0.])),
    ]
}
