//! Reductions over axes: `ReduceSum` and its kin, `ArgMax` and `ArgMin`.

mod arg;
mod axes;
mod cases;
mod fold;

pub(super) use arg::{ARG_MAX, ARG_MIN};
pub(super) use fold::{Largest, Smallest, Sum, SumOfSquares, fold_row};

use axes::Axes;
use fold::{Product, Reduction, SumOfMagnitudes, reduce};

use super::def::types::{ALL, I64S, NUMBERS};
use super::elementwise::{Broadcast, Float, Number, fits, for_wide, spread, wide};
use super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, cost};
use crate::error::{Result, bail};
use crate::graph::Dim;
use crate::tensor::{DType, Few, Shape, Tensor, cast};

/// What is done to a result at the end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Then {
    Nothing,
    DivideByCount,
    Root,
    Log,
}

/// A reduction by a function of two numbers.
#[derive(Debug)]
struct Reduce<R> {
    function: std::marker::PhantomData<R>,
    then: Then,
    axes: Axes,
}

impl<R: Reduction> CpuKernel for Reduce<R> {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let reduced = reduced(&self.axes, io)?;
        if is_identity(io, &reduced)? {
            let x = io.take(0)?;
            io.emit(x);
            return Ok(());
        }
        let x = io.tensor(0)?;
        let dtype = x.dtype();
        let computed = match wide(dtype) {
            DType::Bool => DType::I32,
            // The sum of a mean does not wrap.
            DType::I32 if self.then == Then::DivideByCount => DType::I64,
            other => other,
        };
        let out = if x.is_empty() && self.then == Then::Nothing {
            let shape = self.axes.shape(x.shape(), &reduced, &1);
            of_nothing(dtype, shape, R::start())?
        } else {
            self.reduce(io, &cast(x, computed)?, &reduced)?
        };
        io.emit(cast(&out, dtype)?);
        Ok(())
    }
}

/// The result of nothing everywhere; infinities become the last number of the dtype.
fn of_nothing(dtype: DType, shape: Shape, start: f64) -> Result<Tensor> {
    let one = match dtype {
        DType::Bool => Tensor::scalar(start > 0.0),
        _ => cast(&Tensor::scalar(start), dtype)?,
    };
    let mut out = Tensor::zeros(dtype, shape)?;
    for o in out.as_mut_bytes()?.chunks_exact_mut(dtype.size().max(1)) {
        o.copy_from_slice(one.as_bytes());
    }
    Ok(out)
}

/// The marked axes at run time.
fn reduced(axes: &Axes, io: &Io<'_>) -> Result<Few<bool>> {
    let input = io.optional(1)?.map(Tensor::few_i64s).transpose()?;
    axes.reduced(io.tensor(0)?.rank(), input.as_deref())
}

/// Whether no axis is reduced because none was asked for. A scalar has none either, but is
/// reduced: its logarithm of the sum is its logarithm.
fn is_identity(io: &Io<'_>, reduced: &[bool]) -> Result<bool> {
    Ok(!reduced.contains(&true) && io.tensor(0)?.rank() > 0)
}

impl<R: Reduction> Reduce<R> {
    fn reduce(&self, io: &Io<'_>, x: &Tensor, reduced: &[bool]) -> Result<Tensor> {
        let dtype = x.dtype();
        let mut out = io.allocate(dtype, self.axes.shape::<_, Shape>(x.shape(), reduced, &1))?;
        let count: usize =
            x.shape().iter().zip(reduced).filter(|(_, r)| **r).map(|(d, _)| *d).product();
        if self.then == Then::DivideByCount && count == 0 && dtype.is_int() && !out.is_empty() {
            bail!(Kernel, "the mean of no whole numbers is not defined");
        }
        for_wide!(dtype, T => {
            let to = out.as_mut_slice::<T>()?;
            reduce::<R, T>(io, x.as_slice::<T>()?, x.shape(), reduced, to)?;
            match self.then {
                Then::Nothing => {}
                Then::DivideByCount => {
                    let count = T::narrow(count as f64);
                    to.iter_mut().for_each(|o| *o = o.over(count));
                }
                Then::Root => to.iter_mut().for_each(|o| *o = T::narrow(o.wide().sqrt())),
                Then::Log => to.iter_mut().for_each(|o| *o = T::narrow(o.wide().ln())),
            }
        }, _ => bail!(DType, "{dtype} is not reduced"));
        Ok(out)
    }
}

/// The logarithm of the sum of exponentials, without overflow.
#[derive(Debug)]
struct LogSumExp {
    axes: Axes,
}

impl CpuKernel for LogSumExp {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let reduced = reduced(&self.axes, io)?;
        if is_identity(io, &reduced)? {
            let x = io.take(0)?;
            io.emit(x);
            return Ok(());
        }
        let x = io.tensor(0)?;
        let dtype = x.dtype();
        let out = match dtype {
            DType::F32 => self.reduce::<f32>(io, x, &reduced)?,
            DType::F16 | DType::BF16 => self.reduce::<f32>(io, &cast(x, DType::F32)?, &reduced)?,
            _ => self.reduce::<f64>(io, &cast(x, DType::F64)?, &reduced)?,
        };
        io.emit(cast(&out, dtype)?);
        Ok(())
    }
}

impl LogSumExp {
    fn reduce<T: Float>(&self, io: &Io<'_>, x: &Tensor, reduced: &[bool]) -> Result<Tensor> {
        let ones: Shape =
            x.shape().iter().zip(reduced).map(|(d, r)| if *r { 1 } else { *d }).collect();
        let xs = x.as_slice::<T>()?;
        let mut top = io.allocate(T::DTYPE, ones.clone())?;
        reduce::<Largest, T>(io, xs, x.shape(), reduced, top.as_mut_slice::<T>()?)?;
        // An infinite maximum is its own result; it is not subtracted.
        for m in top.as_mut_slice::<T>()? {
            if *m == T::LOWEST || *m == T::HIGHEST {
                *m = T::ZERO;
            }
        }
        let plan = Broadcast::new([x.shape(), &ones])?;
        let mut powers = io.allocate(T::DTYPE, x.shape().clone())?;
        let to = powers.as_mut_slice::<T>()?;
        plan.zip(io.threads(), xs, top.as_slice::<T>()?, to, |x: T, m: T| x.minus(m));
        spread(io.threads(), to, 1, |_, xs| T::exp_all(xs));
        let mut out = io.allocate(T::DTYPE, self.axes.shape::<_, Shape>(x.shape(), reduced, &1))?;
        let sums = out.as_mut_slice::<T>()?;
        reduce::<Sum, T>(io, powers.as_slice::<T>()?, x.shape(), reduced, sums)?;
        for (s, &m) in sums.iter_mut().zip(top.as_slice::<T>()?) {
            *s = s.ln().plus(m);
        }
        Ok(out)
    }
}

fn infer(
    i: &mut Infer<'_>,
    input_since: i64,
    merge: Option<fn(&Dim, &Dim) -> Option<Dim>>,
) -> Result<()> {
    let axes = Axes::of(i.node, input_since)?;
    let (shape, reduced) = axes.infer(i)?;
    let dtype = i.dtype(0);
    let elements = merge.zip(reduced).zip(dtype).and_then(|((merge, reduced), dtype)| {
        let elements = i.elements(0)?;
        if *reduced != [true] {
            return if reduced.contains(&true) { None } else { Some(elements) };
        }
        let (first, rest) = elements.split_first()?;
        let total = rest.iter().try_fold(first.clone(), |a, b| merge(&a, b))?;
        fits(dtype, &total).then(|| vec![total])
    });
    i.set(0, dtype, shape);
    i.set_elements(0, elements);
    Ok(())
}

fn checked(
    a: &Dim,
    b: &Dim,
    f: fn(i64, i64) -> Option<i64>,
    g: fn(Dim, Dim) -> Dim,
) -> Option<Dim> {
    match (a.as_fixed(), b.as_fixed()) {
        (Some(a), Some(b)) => f(a, b).map(Dim::fixed),
        _ => Some(g(a.clone(), b.clone())),
    }
}

macro_rules! reduction {
    ($($(#[$doc:meta])* $def:ident $name:literal $types:ident axes $since:literal
        $elements:expr, |$axes:ident| $kernel:expr, $cases:ident;)*) => { $(
        $(#[$doc])*
        pub(super) static $def: OpDef = OpDef {
            name: $name,
            domain: "",
            since: 1,
            attributes: &[
                AttributeDef::optional("axes", AttributeKind::Ints),
                AttributeDef::optional("keepdims", AttributeKind::Int),
                AttributeDef::optional("noop_with_empty_axes", AttributeKind::Int),
            ],
            inputs: &[Port::required("data", $types), Port::optional("axes", I64S)],
            outputs: &[Port::required("reduced", $types)],
            infer: |i| infer(i, $since, $elements),
            batch: |q| match Axes::of(q.node, $since) {
                Ok(axes) => axes.batch(q),
                Err(e) => Err(e.to_string()),
            },
            cost: cost::reduction,
            prepare: |p| {
                let $axes = Axes::of(p.node, $since)?;
                Ok(Box::new($kernel))
            },
            cases: || cases::$cases(),
        };
    )* };
}

fn by<R: Reduction>(axes: Axes, then: Then) -> Reduce<R> {
    Reduce { function: std::marker::PhantomData, then, axes }
}

reduction! {
    /// The sum.
    REDUCE_SUM "ReduceSum" NUMBERS axes 13
        Some(|a, b| checked(a, b, i64::checked_add, |a, b| a + b)),
        |axes| by::<Sum>(axes, Then::Nothing), sum;
    /// The mean.
    REDUCE_MEAN "ReduceMean" NUMBERS axes 18 None,
        |axes| by::<Sum>(axes, Then::DivideByCount), mean;
    /// The largest element; of none, the lowest number.
    REDUCE_MAX "ReduceMax" ALL axes 18 Some(|a, b| Some(a.larger(b))),
        |axes| by::<Largest>(axes, Then::Nothing), max;
    /// The smallest element; of none, the highest number.
    REDUCE_MIN "ReduceMin" ALL axes 18 Some(|a, b| Some(a.smaller(b))),
        |axes| by::<Smallest>(axes, Then::Nothing), min;
    /// The product.
    REDUCE_PROD "ReduceProd" NUMBERS axes 18
        Some(|a, b| checked(a, b, i64::checked_mul, |a, b| a * b)),
        |axes| by::<Product>(axes, Then::Nothing), prod;
    /// The sum of magnitudes.
    REDUCE_L1 "ReduceL1" NUMBERS axes 18 None,
        |axes| by::<SumOfMagnitudes>(axes, Then::Nothing), l1;
    /// The root of the sum of squares.
    REDUCE_L2 "ReduceL2" NUMBERS axes 18 None,
        |axes| by::<SumOfSquares>(axes, Then::Root), l2;
    /// The sum of squares.
    REDUCE_SUM_SQUARE "ReduceSumSquare" NUMBERS axes 18 None,
        |axes| by::<SumOfSquares>(axes, Then::Nothing), sum_square;
    /// The logarithm of the sum.
    REDUCE_LOG_SUM "ReduceLogSum" NUMBERS axes 18 None,
        |axes| by::<Sum>(axes, Then::Log), log_sum;
    /// The logarithm of the sum of exponentials.
    REDUCE_LOG_SUM_EXP "ReduceLogSumExp" NUMBERS axes 18 None,
        |axes| LogSumExp { axes }, log_sum_exp;
}
