//! Functions of one float, and of one number.

use std::fmt;

use super::cases::unary as cases;
use super::float::Float;
use super::limited::CONSUMED_INPUTS;
use super::number::Number;
use super::{fits, for_wide, spread, writable};
use crate::error::{Result, bail};
use crate::graph::Dim;
use crate::ops::def::types::{FLOATS, NUMBERS};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, cast};

/// A function of every element of a slice, in place.
trait FloatMap: fmt::Debug + Send + Sync {
    fn map<T: Float>(&self, xs: &mut [T]);
}

/// As [`FloatMap`], for whole numbers too.
trait NumberMap: fmt::Debug + Send + Sync {
    fn map<T: Number>(&self, xs: &mut [T]);
}

#[derive(Debug)]
struct OfFloats<M>(M);

#[derive(Debug)]
struct OfNumbers<M>(M);

impl<M: FloatMap> CpuKernel for OfFloats<M> {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let dtype = io.tensor(0)?.dtype();
        let mut x = writable(io)?;
        match x.dtype() {
            DType::F32 => {
                spread(io.threads(), x.as_mut_slice::<f32>()?, 1, |_, xs| self.0.map(xs));
            }
            DType::F64 => {
                spread(io.threads(), x.as_mut_slice::<f64>()?, 1, |_, xs| self.0.map(xs));
            }
            other => bail!(DType, "expected floats, got {other}"),
        }
        io.emit(cast(&x, dtype)?);
        Ok(())
    }
}

impl<M: NumberMap> CpuKernel for OfNumbers<M> {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let dtype = io.tensor(0)?.dtype();
        let mut x = writable(io)?;
        for_wide!(x.dtype(), T => {
            spread(io.threads(), x.as_mut_slice::<T>()?, 1, |_, xs| self.0.map(xs));
        }, _ => bail!(DType, "{dtype} is not a number"));
        io.emit(cast(&x, dtype)?);
        Ok(())
    }
}

pub(super) fn infer_same(i: &mut Infer<'_>) -> Result<()> {
    i.set(0, i.dtype(0), i.shape(0));
    Ok(())
}

/// As [`infer_same`], and the elements followed.
fn infer_followed(i: &mut Infer<'_>, f: impl Fn(&Dim) -> Option<Dim>) -> Result<()> {
    infer_same(i)?;
    let elements = i.dtype(0).zip(i.elements(0)).and_then(|(dtype, elements)| {
        elements.iter().map(|d| f(d).filter(|d| fits(dtype, d))).collect()
    });
    i.set_elements(0, elements);
    Ok(())
}

#[inline(always)]
fn each<T: Copy>(xs: &mut [T], f: impl Fn(T) -> T) {
    for x in xs {
        *x = f(*x);
    }
}

macro_rules! maps {
    ($trait:ident $kernel:ident $bound:ident $types:ident:
        $($(#[$doc:meta])* $def:ident $map:ident $name:literal since $since:literal $cost:ident
        ($($attr:ident = $default:expr),*) |$xs:ident| $body:expr, $infer:expr;)*) => { $(
        #[derive(Debug)]
        struct $map {
            $($attr: f32),*
        }

        impl $trait for $map {
            #[inline]
            fn map<T: $bound>(&self, $xs: &mut [T]) {
                $(let $attr = constant::<T>(self.$attr);)*
                $body
            }
        }

        $(#[$doc])*
        pub(in crate::ops) static $def: OpDef = OpDef {
            name: $name,
            domain: "",
            since: $since,
            attributes: &[
                CONSUMED_INPUTS,
                $(AttributeDef::optional(stringify!($attr), AttributeKind::Float)),*
            ],
            inputs: &[Port::required("X", $types)],
            outputs: &[Port::required("Y", $types)],
            infer: $infer,
            batch: batch::unary,
            cost: cost::$cost,
            prepare: |_p| Ok(Box::new($kernel($map {
                $($attr: _p.node.float_or(stringify!($attr), $default)?),*
            }))),
            cases: || cases($name),
        };
    )* };
}

fn constant<T: Number>(attribute: f32) -> T {
    T::narrow(attribute.into())
}

maps! { FloatMap OfFloats Float FLOATS:
    /// e to the power.
    EXP Exp "Exp" since 1 transcendental () |xs| T::exp_all(xs), infer_same;
    /// The natural logarithm.
    LOG Log "Log" since 1 transcendental () |xs| T::log_all(xs), infer_same;
    /// The hyperbolic tangent.
    TANH Tanh "Tanh" since 1 transcendental () |xs| T::tanh_all(xs), infer_same;
    /// `1 / (1 + e^-x)`.
    SIGMOID Sigmoid "Sigmoid" since 1 transcendental () |xs| T::sigmoid_all(xs), infer_same;
    /// The error function.
    ERF Erf "Erf" since 9 transcendental () |xs| T::erf_all(xs), infer_same;
    /// The square root.
    SQRT Sqrt "Sqrt" since 1 elementwise () |xs| each(xs, T::sqrt), infer_same;
    /// `1 / x`.
    RECIPROCAL Reciprocal "Reciprocal" since 1 elementwise ()
        |xs| each(xs, |x| T::ONE.over(x)), infer_same;
    /// The next whole number below.
    FLOOR Floor "Floor" since 1 elementwise () |xs| each(xs, T::floor), infer_same;
    /// The next whole number above.
    CEIL Ceil "Ceil" since 1 elementwise () |xs| each(xs, T::ceil), infer_same;
    /// The nearest whole number, the even one of two.
    ROUND Round "Round" since 11 elementwise () |xs| each(xs, T::round_even), infer_same;
    /// `x`, below zero `alpha x`.
    LEAKY_RELU LeakyRelu "LeakyRelu" since 1 elementwise (alpha = 0.01)
        |xs| each(xs, |x| if x < T::ZERO { x.times(alpha) } else { x }), infer_same;
    /// `x` where it is above alpha, else 0.
    THRESHOLDED_RELU ThresholdedRelu "ThresholdedRelu" since 10 elementwise (alpha = 1.0)
        |xs| each(xs, |x| if x > alpha { x } else { T::ZERO }), infer_same;
    /// `alpha x + beta` between 0 and 1.
    HARD_SIGMOID HardSigmoid "HardSigmoid" since 1 elementwise (alpha = 0.2, beta = 0.5)
        |xs| each(xs, |x| between(x.times(alpha).plus(beta), T::ONE)), infer_same;
    /// `x` times the hard sigmoid `x / 6 + 1 / 2`.
    HARD_SWISH HardSwish "HardSwish" since 14 elementwise ()
        |xs| {
            let (three, six) = (T::lit(3.0), T::lit(6.0));
            each(xs, |x| x.times(between(x.plus(three), six)).over(six));
        }, infer_same;
    /// `x`, below zero `alpha (e^x - 1)`.
    ELU Elu "Elu" since 1 transcendental (alpha = 1.0)
        |xs| each(xs, |x| if x < T::ZERO { alpha.times(x.exp_m1()) } else { x }), infer_same;
    /// `gamma x`, below zero `gamma alpha (e^x - 1)`.
    SELU Selu "Selu" since 1 transcendental (alpha = 1.673_263_2, gamma = 1.050_701)
        |xs| each(xs, |x| {
            gamma.times(if x < T::ZERO { alpha.times(x.exp_m1()) } else { x })
        }), infer_same;
    /// `x`, below zero `alpha (e^(x/alpha) - 1)`.
    CELU Celu "Celu" since 12 transcendental (alpha = 1.0)
        |xs| each(xs, |x| {
            if x < T::ZERO { alpha.times(x.over(alpha).exp_m1()) } else { x }
        }), infer_same;
    /// `ln(1 + e^x)`.
    SOFTPLUS Softplus "Softplus" since 1 transcendental () |xs| each(xs, softplus), infer_same;
    /// `x / (1 + |x|)`.
    SOFTSIGN Softsign "Softsign" since 1 elementwise ()
        |xs| each(xs, |x| x.over(T::ONE.plus(x.magnitude()))), infer_same;
    /// `x tanh(softplus(x))`.
    MISH Mish "Mish" since 18 transcendental ()
        |xs| each(xs, |x| x.times(softplus(x).tanh())), infer_same;
    /// `x + bias` below `-lambd`, `x - bias` above `lambd`, else 0.
    SHRINK Shrink "Shrink" since 9 elementwise (bias = 0.0, lambd = 0.5)
        |xs| each(xs, |x| {
            if x < lambd.negative() {
                x.plus(bias)
            } else if x > lambd {
                x.minus(bias)
            } else {
                T::ZERO
            }
        }), infer_same;
    /// The sine.
    SIN Sin "Sin" since 7 transcendental () |xs| each(xs, T::sin), infer_same;
    /// The cosine.
    COS Cos "Cos" since 7 transcendental () |xs| each(xs, T::cos), infer_same;
    /// The tangent.
    TAN Tan "Tan" since 7 transcendental () |xs| each(xs, T::tan), infer_same;
    /// The arc sine.
    ASIN Asin "Asin" since 7 transcendental () |xs| each(xs, T::asin), infer_same;
    /// The arc cosine.
    ACOS Acos "Acos" since 7 transcendental () |xs| each(xs, T::acos), infer_same;
    /// The arc tangent.
    ATAN Atan "Atan" since 7 transcendental () |xs| each(xs, T::atan), infer_same;
    /// The hyperbolic sine.
    SINH Sinh "Sinh" since 9 transcendental () |xs| each(xs, T::sinh), infer_same;
    /// The hyperbolic cosine.
    COSH Cosh "Cosh" since 9 transcendental () |xs| each(xs, T::cosh), infer_same;
    /// The inverse hyperbolic sine.
    ASINH Asinh "Asinh" since 9 transcendental () |xs| each(xs, T::asinh), infer_same;
    /// The inverse hyperbolic cosine.
    ACOSH Acosh "Acosh" since 9 transcendental () |xs| each(xs, T::acosh), infer_same;
    /// The inverse hyperbolic tangent.
    ATANH Atanh "Atanh" since 9 transcendental () |xs| each(xs, T::atanh), infer_same;
}

maps! { NumberMap OfNumbers Number NUMBERS:
    /// `-x`.
    NEG Neg "Neg" since 1 elementwise () |xs| each(xs, T::negative),
        |i| infer_followed(i, |d| match d.as_fixed() {
            Some(v) => v.checked_neg().map(Dim::fixed),
            None => Some(Dim::fixed(0) - d.clone()),
        });
    /// `|x|`.
    ABS Abs "Abs" since 1 elementwise () |xs| each(xs, T::magnitude),
        |i| infer_followed(i, |d| match d.as_fixed() {
            Some(v) => v.checked_abs().map(Dim::fixed),
            None => d.is_non_negative().then(|| d.clone()),
        });
    /// -1, 0 or 1.
    SIGN Sign "Sign" since 9 elementwise () |xs| each(xs, T::sign),
        |i| infer_followed(i, |d| d.as_fixed().map(|v| Dim::fixed(v.signum())));
    /// `x`, below zero 0.
    RELU Relu "Relu" since 1 elementwise ()
        |xs| each(xs, |x| if x < T::ZERO { T::ZERO } else { x }),
        |i| infer_followed(i, |d| Some(d.larger(&Dim::fixed(0))));
}

/// `x`, not below 0 and not above `top`; NaN stays.
#[inline(always)]
fn between<T: Float>(x: T, top: T) -> T {
    let x = if x < T::ZERO { T::ZERO } else { x };
    if x > top { top } else { x }
}

/// `ln(1 + e^x)` without overflow.
fn softplus<T: Float>(x: T) -> T {
    let low = x.magnitude().negative().exp().ln_1p();
    if x > T::ZERO { x.plus(low) } else { low }
}

/// `x` times the normal distribution function; `approximate` is `none` or `tanh`.
pub(in crate::ops) static GELU: OpDef = OpDef {
    name: "Gelu",
    domain: "",
    since: 20,
    attributes: &[AttributeDef::optional("approximate", AttributeKind::String)],
    inputs: &[Port::required("X", FLOATS)],
    outputs: &[Port::required("Y", FLOATS)],
    infer: infer_same,
    batch: batch::unary,
    cost: cost::transcendental,
    prepare: |p| match p.node.string("approximate")?.unwrap_or("none") {
        "none" => Ok(Box::new(OfFloats(Gelu))),
        "tanh" => Ok(Box::new(OfFloats(GeluByTanh))),
        other => bail!(Graph, "attribute `approximate` is `{other}`, not `none` or `tanh`"),
    },
    cases: || cases("Gelu"),
};

/// Elements that are copied aside at once, so that they stay in the first-level cache.
const ASIDE: usize = 256;

/// `x = f(x, g(s·x))` with `g` on slices.
fn with_inner<T: Float>(
    xs: &mut [T],
    argument: impl Fn(T) -> T,
    g: impl Fn(&mut [T]),
    f: impl Fn(T, T) -> T,
) {
    let mut aside = [T::ZERO; ASIDE];
    for xs in xs.chunks_mut(ASIDE) {
        let inner = &mut aside[..xs.len()];
        for (i, &x) in inner.iter_mut().zip(xs.iter()) {
            *i = argument(x);
        }
        g(inner);
        for (x, &i) in xs.iter_mut().zip(inner.iter()) {
            *x = f(*x, i);
        }
    }
}

#[derive(Debug)]
struct Gelu;

impl FloatMap for Gelu {
    fn map<T: Float>(&self, xs: &mut [T]) {
        let (half, scale) = (T::lit(0.5), T::lit(std::f64::consts::FRAC_1_SQRT_2));
        let f = |x: T, e: T| half.times(x).times(T::ONE.plus(e));
        with_inner(xs, |x| x.times(scale), T::erf_all, f);
    }
}

#[derive(Debug)]
struct GeluByTanh;

impl FloatMap for GeluByTanh {
    fn map<T: Float>(&self, xs: &mut [T]) {
        let scale = T::lit((2.0 / std::f64::consts::PI).sqrt());
        let (half, cubic) = (T::lit(0.5), T::lit(0.044_715));
        let argument = |x: T| scale.times(x.plus(cubic.times(x).times(x).times(x)));
        let f = |x: T, t: T| half.times(x).times(T::ONE.plus(t));
        with_inner(xs, argument, T::tanh_all, f);
    }
}
