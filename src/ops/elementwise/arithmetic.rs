//! `Add`, `Sub`, `Mul`, `Div`, `Mod`, `Pow`, `PRelu`; `Max`, `Min`, `Sum` and `Mean` of any number
//! of inputs.

use std::fmt;

use super::number::Number;
use super::{Broadcast, follow, for_wide, same_dtype, same_dtypes, wide};
use crate::error::{Result, bail};
use crate::graph::Dim;
use crate::ops::case::{Case, as_dtype, counted, filled};
use crate::ops::def::types::{FLOATS, NUMBERS};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, cast};

/// A function of two numbers of one type.
trait Function: fmt::Debug + Send + Sync + 'static {
    /// Whether a whole-number divisor of zero must be refused.
    const DIVIDES: bool = false;
    fn apply<T: Number>(a: T, b: T) -> T;
}

macro_rules! functions {
    ($($name:ident, $divides:literal, |$a:ident, $b:ident| $body:expr;)*) => { $(
        #[derive(Debug)]
        struct $name;
        impl Function for $name {
            const DIVIDES: bool = $divides;
            #[inline(always)]
            fn apply<T: Number>($a: T, $b: T) -> T {
                $body
            }
        }
    )* };
}
functions! {
    Add, false, |a, b| a.plus(b);
    Sub, false, |a, b| a.minus(b);
    Mul, false, |a, b| a.times(b);
    Div, true, |a, b| a.over(b);
    Modulo, true, |a, b| a.modulo(b);
    Remainder, true, |a, b| a.remainder(b);
    Larger, false, |a, b| a.larger(b);
    Smaller, false, |a, b| a.smaller(b);
    ScaledBelowZero, false, |x, slope| if x < T::ZERO { x.times(slope) } else { x };
}

#[derive(Debug)]
struct Binary<F>(F);

impl<F: Function> CpuKernel for Binary<F> {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let plan = plan(io, 0, 1)?;
        let (a, b) = (io.take_tensor(0)?, io.take_tensor(1)?);
        let out = apply::<F>(io, a, b, &plan)?;
        io.emit(out);
        Ok(())
    }
}

/// # Errors
/// If dtypes or shapes of the two inputs do not go together.
fn plan(io: &Io<'_>, i: usize, j: usize) -> Result<Broadcast<2>> {
    let (a, b) = (io.tensor(i)?, io.tensor(j)?);
    same_dtype(a, b)?;
    Broadcast::new([a.shape(), b.shape()])
}

fn apply<F: Function>(
    io: &Io<'_>,
    mut a: Tensor,
    mut b: Tensor,
    plan: &Broadcast<2>,
) -> Result<Tensor> {
    let (dtype, threads) = (a.dtype(), io.threads());
    let computed = wide(dtype);
    if computed != dtype {
        let (a, b) = (cast(&a, computed)?, cast(&b, computed)?);
        return cast(&apply::<F>(io, a, b, plan)?, dtype);
    }
    if F::DIVIDES && dtype.is_int() && b.to_i64s()?.contains(&0) {
        bail!(Kernel, "a whole number is divided by zero");
    }
    if dtype == DType::F32 {
        if *a.shape() == plan.shape && a.is_unique() {
            let y = b.as_slice::<f32>()?;
            plan.zip_in_place(threads, a.as_mut_slice::<f32>()?, y, 1, F::apply::<f32>);
            return Ok(a);
        }
        if *b.shape() == plan.shape && b.is_unique() {
            let x = a.as_slice::<f32>()?;
            plan.zip_in_place(threads, b.as_mut_slice::<f32>()?, x, 0, |y, x| F::apply(x, y));
            return Ok(b);
        }
    }
    let mut out = io.allocate(dtype, plan.shape.clone())?;
    for_wide!(dtype, T => {
        let (a, b) = (a.as_slice::<T>()?, b.as_slice::<T>()?);
        plan.zip(threads, a, b, out.as_mut_slice::<T>()?, F::apply::<T>);
    }, _ => bail!(DType, "{dtype} is not a number"));
    Ok(out)
}

/// Any number of inputs, from left to right; perhaps divided by their number.
#[derive(Debug)]
struct Variadic<F>(F, Then);

#[derive(Debug, PartialEq)]
enum Then {
    Nothing,
    DivideByCount,
}

impl<F: Function> CpuKernel for Variadic<F> {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let count = io.input_count();
        let dtype = io.tensor(0)?.dtype();
        for i in 1..count {
            same_dtype(io.tensor(0)?, io.tensor(i)?)?;
        }
        let mut out = io.take_tensor(0)?;
        out = cast(&out, wide(dtype))?;
        for i in 1..count {
            let plan = Broadcast::new([out.shape(), io.tensor(i)?.shape()])?;
            let next = cast(&io.take_tensor(i)?, out.dtype())?;
            out = apply::<F>(io, out, next, &plan)?;
        }
        if self.1 == Then::DivideByCount {
            let n = cast(&Tensor::scalar(count as f64), out.dtype())?;
            let plan = Broadcast::new([out.shape(), &[]])?;
            out = apply::<Div>(io, out, n, &plan)?;
        }
        io.emit(cast(&out, dtype)?);
        Ok(())
    }
}

/// The base's dtype is the result's; the exponent may be of another one.
#[derive(Debug)]
struct Pow;

impl CpuKernel for Pow {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let plan = Broadcast::new([io.tensor(0)?.shape(), io.tensor(1)?.shape()])?;
        let (x, y) = (io.take_tensor(0)?, io.take_tensor(1)?);
        let out = power(io, x, &y, &plan)?;
        io.emit(out);
        Ok(())
    }
}

fn power(io: &Io<'_>, mut x: Tensor, y: &Tensor, plan: &Broadcast<2>) -> Result<Tensor> {
    let (dtype, threads) = (x.dtype(), io.threads());
    if wide(dtype) != dtype {
        return cast(&power(io, cast(&x, wide(dtype))?, y, plan)?, dtype);
    }
    if dtype == DType::F32 && y.len() == 1 && *x.shape() == plan.shape {
        let exponent = cast(y, DType::F64)?.as_slice::<f64>()?[0];
        if !x.is_unique() {
            let mut copy = io.allocate(dtype, x.shape().clone())?;
            copy.as_mut_slice::<f32>()?.copy_from_slice(x.as_slice::<f32>()?);
            x = copy;
        }
        let xs = x.as_mut_slice::<f32>()?;
        let whole = exponent.fract() == 0.0 && exponent.abs() <= f64::from(i32::MAX);
        super::spread(threads, xs, 1, |_, xs| match exponent {
            1.0 => {}
            2.0 => xs.iter_mut().for_each(|x| *x *= *x),
            3.0 => xs.iter_mut().for_each(|x| *x = *x * *x * *x),
            // √-∞ is NaN and √-0 is -0, but the powers are ∞ and 0.
            0.5 => xs.iter_mut().for_each(|x| {
                *x = if *x == f32::NEG_INFINITY { f32::INFINITY } else { (*x + 0.0).sqrt() };
            }),
            _ if whole || exponent == f64::from(exponent as f32) => {
                xs.iter_mut().for_each(|x| *x = x.powf(exponent as f32));
            }
            _ => xs.iter_mut().for_each(|x| *x = f64::from(*x).powf(exponent) as f32),
        });
        return Ok(x);
    }
    let mut out = io.allocate(dtype, plan.shape.clone())?;
    if dtype.is_float() {
        if dtype == DType::F32 && y.dtype() == DType::F32 {
            let (a, b) = (x.as_slice::<f32>()?, y.as_slice::<f32>()?);
            plan.zip(threads, a, b, out.as_mut_slice::<f32>()?, f32::powf);
            return Ok(out);
        }
        let y = cast(y, DType::F64)?;
        let b = y.as_slice::<f64>()?;
        for_wide!(dtype, T => {
            let a = x.as_slice::<T>()?;
            let f = |a: T, b: f64| T::narrow(a.wide().powf(b));
            plan.zip(threads, a, b, out.as_mut_slice::<T>()?, f);
        }, _ => bail!(DType, "{dtype} is not a number"));
        return Ok(out);
    }
    if y.dtype().is_int() {
        // Larger exponents than i64 holds only matter for 0 and ±1, which parity decides.
        let y = match y.dtype() {
            DType::U64 => {
                let big = |v: &u64| i64::try_from(*v).unwrap_or((i64::MAX - 1) | (*v & 1) as i64);
                Tensor::new(y.shape().clone(), y.as_slice::<u64>()?.iter().map(big).collect())?
            }
            _ => cast(y, DType::I64)?,
        };
        let b = y.as_slice::<i64>()?;
        for_wide!(dtype, T => {
            let a = x.as_slice::<T>()?;
            plan.zip(threads, a, b, out.as_mut_slice::<T>()?, whole_power::<T>);
        }, _ => bail!(DType, "{dtype} is not a number"));
    } else {
        let y = cast(y, DType::F64)?;
        let b = y.as_slice::<f64>()?;
        for_wide!(dtype, T => {
            let a = x.as_slice::<T>()?;
            let f = |a: T, b: f64| T::narrow(a.wide().powf(b));
            plan.zip(threads, a, b, out.as_mut_slice::<T>()?, f);
        }, _ => bail!(DType, "{dtype} is not a number"));
    }
    Ok(out)
}

/// By repeated squaring, wrapping; a negative exponent gives the reciprocal cut off towards zero,
/// and the highest number where the base is 0.
fn whole_power<T: Number>(base: T, exponent: i64) -> T {
    let minus_one = T::ZERO.minus(T::ONE);
    if exponent < 0 {
        return match base {
            b if b == T::ZERO => T::HIGHEST,
            b if b == T::ONE => b,
            b if b == minus_one && b < T::ZERO => {
                if exponent % 2 == 0 {
                    T::ONE
                } else {
                    b
                }
            }
            _ => T::ZERO,
        };
    }
    let (mut result, mut square, mut left) = (T::ONE, base, exponent);
    while left > 0 {
        if left & 1 == 1 {
            result = result.times(square);
        }
        square = square.times(square);
        left >>= 1;
    }
    result
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

/// Towards zero, as whole numbers are divided; symbolic only where it leaves no remainder or
/// neither side can be negative.
fn quotient(a: &Dim, b: &Dim) -> Option<Dim> {
    match (a.as_fixed(), b.as_fixed()) {
        (Some(a), Some(b)) => a.checked_div(b).map(Dim::fixed),
        (_, Some(0)) => None,
        _ => a.exact_div(b).or_else(|| {
            (a.is_non_negative() && b.as_fixed().is_some_and(|b| b > 0)).then(|| a.floor_div(b))
        }),
    }
}

fn infer_binary(i: &mut Infer<'_>, f: impl Fn(&Dim, &Dim) -> Option<Dim>) -> Result<()> {
    let dtype = same_dtypes(i, 0..2)?;
    let shape = i.broadcast(&[0, 1])?;
    let elements = follow(i, dtype, f);
    i.set(0, dtype, shape);
    i.set_elements(0, elements);
    Ok(())
}

fn infer_variadic(i: &mut Infer<'_>, f: Option<fn(&Dim, &Dim) -> Option<Dim>>) -> Result<()> {
    let count = i.input_count();
    let dtype = same_dtypes(i, 0..count)?;
    let shape = i.broadcast(&(0..count).collect::<Vec<_>>())?;
    let elements = match (count, f) {
        (1, Some(_)) => i.elements(0),
        (2, Some(f)) => follow(i, dtype, f),
        _ => None,
    };
    i.set(0, dtype, shape);
    i.set_elements(0, elements);
    Ok(())
}

const fn pair(a: &'static str, b: &'static str, types: &'static [DType]) -> [Port; 2] {
    [Port::required(a, types), Port::required(b, types)]
}

const TWO: &[Port] = &pair("A", "B", NUMBERS);
const OUT: &[Port] = &[Port::required("C", NUMBERS)];

macro_rules! binary {
    ($($(#[$doc:meta])* $def:ident $name:literal $kernel:ident $elements:expr, $cases:ident;)*) => { $(
        $(#[$doc])*
        pub(in crate::ops) static $def: OpDef = OpDef {
            name: $name,
            domain: "",
            since: 7,
            attributes: &[],
            inputs: TWO,
            outputs: OUT,
            infer: |i| infer_binary(i, $elements),
            batch: batch::elementwise,
            cost: cost::elementwise,
            prepare: |_| Ok(Box::new(Binary($kernel))),
            cases: $cases,
        };
    )* };
}
binary! {
    /// `A + B`.
    ADD "Add" Add |a, b| checked(a, b, i64::checked_add, |a, b| a + b), add_cases;
    /// `A - B`.
    SUB "Sub" Sub |a, b| checked(a, b, i64::checked_sub, |a, b| a - b), sub_cases;
    /// `A * B`.
    MUL "Mul" Mul |a, b| checked(a, b, i64::checked_mul, |a, b| a * b), mul_cases;
    /// `A / B`; whole numbers are cut off towards zero.
    DIV "Div" Div quotient, div_cases;
}

/// The remainder of a division: with the divisor's sign, or with `fmod` the dividend's.
pub(in crate::ops) static MOD: OpDef = OpDef {
    name: "Mod",
    domain: "",
    since: 10,
    attributes: &[AttributeDef::optional("fmod", AttributeKind::Int)],
    inputs: TWO,
    outputs: OUT,
    infer: |i| {
        let fmod = i.node.int_or("fmod", 0)? != 0;
        infer_binary(i, |a, b| match (a.as_fixed(), b.as_fixed()) {
            (Some(a), Some(b)) if fmod => a.checked_rem(b).map(Dim::fixed),
            (Some(a), Some(b)) if b > 0 => a.checked_rem_euclid(b).map(Dim::fixed),
            (None, Some(1)) => Some(Dim::fixed(0)),
            (None, Some(b)) if b > 0 && a.is_non_negative() => {
                let b = Dim::fixed(b);
                Some(a.clone() - a.floor_div(&b) * b)
            }
            _ => None,
        })
    },
    batch: batch::elementwise,
    cost: cost::elementwise,
    prepare: |p| {
        Ok(match p.node.int_or("fmod", 0)? {
            0 => Box::new(Binary(Modulo)),
            _ => Box::new(Binary(Remainder)),
        })
    },
    cases: mod_cases,
};

/// `X` to the power `Y`.
pub(in crate::ops) static POW: OpDef = OpDef {
    name: "Pow",
    domain: "",
    since: 7,
    attributes: &[],
    inputs: &pair("X", "Y", NUMBERS),
    outputs: &[Port::required("Z", NUMBERS)],
    infer: |i| {
        let shape = i.broadcast(&[0, 1])?;
        let dtype = i.dtype(0);
        let elements = follow(i, dtype, |a, b| {
            let exponent = b.as_fixed().and_then(|b| u32::try_from(b).ok())?;
            match a.as_fixed() {
                Some(a) => a.checked_pow(exponent).map(Dim::fixed),
                None if exponent <= 4 => {
                    Some((0..exponent).fold(Dim::fixed(1), |p, _| p * a.clone()))
                }
                None => None,
            }
        });
        i.set(0, dtype, shape);
        i.set_elements(0, elements);
        Ok(())
    },
    batch: batch::elementwise,
    cost: cost::transcendental,
    prepare: |_| Ok(Box::new(Pow)),
    cases: pow_cases,
};

/// `X` where it is not negative, else `X * slope`.
pub(in crate::ops) static PRELU: OpDef = OpDef {
    name: "PRelu",
    domain: "",
    since: 7,
    attributes: &[],
    inputs: &pair("X", "slope", NUMBERS),
    outputs: &[Port::required("Y", NUMBERS)],
    infer: |i| infer_binary(i, |_, _| None),
    batch: batch::elementwise,
    cost: cost::elementwise,
    prepare: |_| Ok(Box::new(Binary(ScaledBelowZero))),
    cases: prelu_cases,
};

macro_rules! variadic {
    ($($(#[$doc:meta])* $def:ident $name:literal $kernel:ident $then:ident $types:ident
        $output:literal $elements:expr, $cases:ident;)*) => { $(
        $(#[$doc])*
        pub(in crate::ops) static $def: OpDef = OpDef {
            name: $name,
            domain: "",
            since: 8,
            attributes: &[],
            inputs: &[Port::variadic("data_0", $types, 1)],
            outputs: &[Port::required($output, $types)],
            infer: |i| infer_variadic(i, $elements),
            batch: batch::elementwise,
            cost: cost::elementwise,
            prepare: |_| Ok(Box::new(Variadic($kernel, Then::$then))),
            cases: $cases,
        };
    )* };
}
variadic! {
    /// The largest of all inputs.
    MAX "Max" Larger Nothing NUMBERS "max" Some(|a, b| Some(a.larger(b))), max_cases;
    /// The smallest of all inputs.
    MIN "Min" Smaller Nothing NUMBERS "min" Some(|a, b| Some(a.smaller(b))), min_cases;
    /// The sum of all inputs.
    SUM "Sum" Add Nothing FLOATS "sum" None, sum_cases;
    /// The mean of all inputs.
    MEAN "Mean" Add DivideByCount FLOATS "mean" None, mean_cases;
}

fn case(def: &OpDef, version: i64, name: &str, inputs: &[Tensor], output: Tensor) -> Case {
    inputs.iter().fold(Case::new(def.name, version, name), |c, x| c.input(x.clone())).output(output)
}

/// Beyond 2^24 and 2^53, where floats are no longer exact.
const WIDE: [i64; 3] = [16_777_217, 9_007_199_254_740_993, -5];

fn add_cases() -> Vec<Case> {
    let case = |name: &str, a, b, c| case(&ADD, 14, name, &[a, b], c);
    let x = counted(&[2, 3]);
    let shifted = as_dtype(&filled(&[2, 3], &[0.5f32, 1.5, 2.5, 3.5, 4.5, 5.5]), DType::F16);
    vec![
        case("same shape", x.clone(), x.clone(), filled(&[2, 3], &[0f32, 2., 4., 6., 8., 10.])),
        case(
            "row",
            x.clone(),
            filled(&[3], &[10f32, 20., 30.]),
            filled(&[2, 3], &[10f32, 21., 32., 13., 24., 35.]),
        ),
        case(
            "both broadcast",
            filled(&[2, 1], &[1f32, 2.]),
            filled(&[3], &[10f32, 20., 30.]),
            filled(&[2, 3], &[11f32, 21., 31., 12., 22., 32.]),
        ),
        case(
            "empty",
            filled::<f32>(&[0, 3], &[]),
            filled(&[1], &[1f32]),
            filled::<f32>(&[0, 3], &[]),
        ),
        case(
            "i64 stays exact",
            filled(&[3], &WIDE),
            Tensor::scalar(2i64),
            filled(&[3], &[16_777_219i64, 9_007_199_254_740_995, -3]),
        ),
        case(
            "u8 wraps",
            filled(&[2], &[250u8, 1]),
            filled(&[2], &[10u8, 1]),
            filled(&[2], &[4u8, 2]),
        ),
        case("f16", as_dtype(&x, DType::F16), Tensor::scalar(half::f16::from_f32(0.5)), shifted),
        case(
            "constant of f64",
            filled(&[1], &[0.1f64]),
            filled(&[1], &[0.2f64]),
            filled(&[1], &[0.1f64 + 0.2]),
        ),
    ]
}

fn sub_cases() -> Vec<Case> {
    let case = |name: &str, a, b, c| case(&SUB, 14, name, &[a, b], c);
    vec![
        case(
            "scalar on the left",
            Tensor::scalar(1f32),
            filled(&[3], &[1f32, 2., 4.]),
            filled(&[3], &[0f32, -1., -3.]),
        ),
        case(
            "channels",
            counted(&[1, 2, 2, 2]),
            filled(&[2, 1, 1], &[1f32, 10.]),
            filled(&[1, 2, 2, 2], &[-1f32, 0., 1., 2., -6., -5., -4., -3.]),
        ),
        case(
            "i32 wraps",
            filled(&[1], &[i32::MIN]),
            filled(&[1], &[1i32]),
            filled(&[1], &[i32::MAX]),
        ),
    ]
}

fn mul_cases() -> Vec<Case> {
    let case = |name: &str, a, b, c| case(&MUL, 14, name, &[a, b], c);
    vec![
        case(
            "columns",
            counted(&[2, 3]),
            filled(&[2, 1], &[2f32, -1.]),
            filled(&[2, 3], &[0f32, 2., 4., -3., -4., -5.]),
        ),
        case(
            "rank grows on the left",
            filled(&[2], &[1f32, 2.]),
            counted(&[2, 1, 2]),
            filled(&[2, 1, 2], &[0f32, 2., 2., 6.]),
        ),
        case(
            "i64 stays exact",
            filled(&[3], &WIDE),
            filled(&[1], &[3i64]),
            filled(&[3], &[50_331_651i64, 27_021_597_764_222_979, -15]),
        ),
        case(
            "bf16 rounds once",
            as_dtype(&filled(&[1], &[1.0078125f32]), DType::BF16),
            as_dtype(&filled(&[1], &[1.0078125f32]), DType::BF16),
            as_dtype(&filled(&[1], &[1.015625f32]), DType::BF16),
        ),
    ]
}

fn div_cases() -> Vec<Case> {
    let case = |name: &str, a, b, c| case(&DIV, 14, name, &[a, b], c);
    vec![
        case(
            "floats divide by zero",
            filled(&[4], &[1f32, -1., 0., 3.]),
            filled(&[4], &[0f32, 0., 0., 2.]),
            filled(&[4], &[f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1.5]),
        ),
        case(
            "whole numbers towards zero",
            filled(&[4], &[7i64, -7, 7, 9_007_199_254_740_993]),
            filled(&[4], &[2i64, 2, -2, 1]),
            filled(&[4], &[3i64, -3, -3, 9_007_199_254_740_993]),
        ),
        case(
            "overflow wraps",
            filled(&[1], &[i32::MIN]),
            filled(&[1], &[-1i32]),
            filled(&[1], &[i32::MIN]),
        ),
        case("u8", filled(&[2], &[200u8, 7]), Tensor::scalar(3u8), filled(&[2], &[66u8, 2])),
    ]
}

fn mod_cases() -> Vec<Case> {
    let (a, b) = ([-4i64, 7, 5, 4, -7, 8], [2i64, -3, 8, -2, 3, 5]);
    let (a32, b32) = ([-4.3f32, 7.2, 5.0, 4.3], [2.1f32, -3.4, 8.0, -2.0]);
    let new = |name: &str, a, b, c| case(&MOD, 13, name, &[a, b], c);
    vec![
        new(
            "the divisor's sign",
            filled(&[6], &a),
            filled(&[6], &b),
            filled(&[6], &[0i64, -2, 5, 0, 2, 3]),
        ),
        new(
            "the dividend's sign",
            filled(&[6], &a),
            filled(&[6], &b),
            filled(&[6], &[0i64, 1, 5, 0, -1, 3]),
        )
        .attr("fmod", 1i64),
        new(
            "floats",
            filled(&[4], &a32),
            filled(&[4], &b32),
            filled(&[4], &[-0.1f32, 0.4, 5.0, 0.3]),
        )
        .attr("fmod", 1i64)
        .close(1e-6, 0.0),
        new(
            "broadcast",
            filled(&[2, 2], &[10i32, 11, 12, 13]),
            Tensor::scalar(7i32),
            filled(&[2, 2], &[3i32, 4, 5, 6]),
        ),
    ]
}

fn pow_cases() -> Vec<Case> {
    let case = |name: &str, a, b, c| case(&POW, 15, name, &[a, b], c);
    let inf = f32::INFINITY;
    vec![
        case(
            "element by element",
            filled(&[3], &[1f32, 2., 3.]),
            filled(&[3], &[4f32, 5., 6.]),
            filled(&[3], &[1f32, 32., 729.]),
        )
        .close(0.0, 1e-6),
        case(
            "square",
            filled(&[3], &[-3f32, 0.5, 2.]),
            Tensor::scalar(2f32),
            filled(&[3], &[9f32, 0.25, 4.]),
        ),
        case(
            "root",
            filled(&[4], &[4f32, -0.0, -inf, -1.]),
            Tensor::scalar(0.5f32),
            filled(&[4], &[2f32, 0., inf, f32::NAN]),
        ),
        case(
            "cube by i64",
            filled(&[2], &[-2f32, 3.]),
            Tensor::scalar(3i64),
            filled(&[2], &[-8f32, 27.]),
        ),
        case(
            "negative exponent",
            filled(&[2], &[2f32, 4.]),
            filled(&[1], &[-1f32]),
            filled(&[2], &[0.5f32, 0.25]),
        ),
        case(
            "whole numbers are exact",
            filled(&[4], &[3i64, -2, 1, 2]),
            filled(&[4], &[35i64, 63, -9, -1]),
            filled(&[4], &[50_031_545_098_999_707i64, i64::MIN, 1, 0]),
        ),
        case(
            "whole base, broken exponent",
            filled(&[2], &[4i32, 9]),
            filled(&[1], &[0.5f32]),
            filled(&[2], &[2i32, 3]),
        ),
        case(
            "base broadcast",
            Tensor::scalar(2f32),
            filled(&[2, 2], &[0f32, 1., 2., -1.]),
            filled(&[2, 2], &[1f32, 2., 4., 0.5]),
        ),
    ]
}

fn prelu_cases() -> Vec<Case> {
    vec![
        case(
            &PRELU,
            16,
            "slope for each channel",
            &[filled(&[1, 2, 2], &[-1f32, 1., -2., 2.]), filled(&[2, 1], &[0.5f32, 0.25])],
            filled(&[1, 2, 2], &[-0.5f32, 1., -0.5, 2.]),
        ),
        case(
            &PRELU,
            16,
            "i32",
            &[filled(&[2], &[-3i32, 3]), Tensor::scalar(2i32)],
            filled(&[2], &[-6i32, 3]),
        ),
    ]
}

fn max_cases() -> Vec<Case> {
    let nan = f32::NAN;
    vec![
        case(
            &MAX,
            13,
            "three inputs",
            &[
                filled(&[3], &[3f32, 2., 1.]),
                filled(&[3], &[1f32, 4., 4.]),
                filled(&[3], &[2f32, 5., 3.]),
            ],
            filled(&[3], &[3f32, 5., 4.]),
        ),
        case(&MAX, 13, "one input", &[counted(&[2, 2])], counted(&[2, 2])),
        case(
            &MAX,
            13,
            "NaN wins",
            &[filled(&[3], &[nan, 1., 2.]), filled(&[3], &[1f32, nan, 1.])],
            filled(&[3], &[nan, nan, 2.]),
        ),
        case(
            &MAX,
            13,
            "i64 broadcast",
            &[filled(&[3], &WIDE), Tensor::scalar(16_777_218i64)],
            filled(&[3], &[16_777_218i64, 9_007_199_254_740_993, 16_777_218]),
        ),
    ]
}

fn min_cases() -> Vec<Case> {
    vec![
        case(
            &MIN,
            13,
            "three inputs",
            &[filled(&[3], &[3f32, 2., 1.]), filled(&[3], &[1f32, 4., 4.]), filled(&[1], &[2f32])],
            filled(&[3], &[1f32, 2., 1.]),
        ),
        case(
            &MIN,
            13,
            "NaN wins",
            &[filled(&[2], &[f32::NAN, 1.]), filled(&[2], &[1f32, f32::NAN])],
            filled(&[2], &[f32::NAN, f32::NAN]),
        ),
        case(
            &MIN,
            13,
            "u64 is exact",
            &[filled(&[2], &[u64::MAX, 1]), filled(&[2], &[u64::MAX - 1, 2])],
            filled(&[2], &[u64::MAX - 1, 1]),
        ),
    ]
}

fn sum_cases() -> Vec<Case> {
    vec![
        case(
            &SUM,
            13,
            "three inputs",
            &[filled(&[3], &[3f32, 0., 2.]), filled(&[3], &[1f32, 3., 4.]), Tensor::scalar(2f32)],
            filled(&[3], &[6f32, 5., 8.]),
        ),
        case(&SUM, 13, "one input", &[counted(&[2])], counted(&[2])),
    ]
}

fn mean_cases() -> Vec<Case> {
    vec![
        case(
            &MEAN,
            13,
            "three inputs",
            &[
                filled(&[3], &[3f32, 0., 2.]),
                filled(&[3], &[1f32, 3., 4.]),
                filled(&[3], &[2f32, 6., 6.]),
            ],
            filled(&[3], &[2f32, 3., 4.]),
        ),
        case(
            &MEAN,
            13,
            "f16 divides before it rounds",
            &[
                as_dtype(&filled(&[1], &[60_000f32]), DType::F16),
                as_dtype(&filled(&[1], &[50_016f32]), DType::F16),
            ],
            as_dtype(&filled(&[1], &[55_008f32]), DType::F16),
        ),
    ]
}
