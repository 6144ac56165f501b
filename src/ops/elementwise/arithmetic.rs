//! Functions of two numbers: `Add`, `Sub`, `Mul`, `Div`, `Mod` and `PRelu`.

use std::fmt;

use super::number::Number;
use super::{Broadcast, follow, for_wide, limited, same_dtype, same_dtypes, wide};
use crate::error::{Result, bail};
use crate::graph::Dim;
use crate::ops::case::{Case, as_dtype, counted, filled};
use crate::ops::def::types::NUMBERS;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, cast};

/// A function of two numbers of one type.
pub(super) trait Function: fmt::Debug + Send + Sync + 'static {
    /// Whether a whole-number divisor of zero must be refused.
    const DIVIDES: bool = false;
    fn apply<T: Number>(a: T, b: T) -> T;
}

macro_rules! functions {
    ($($name:ident, $divides:literal, |$a:ident, $b:ident| $body:expr;)*) => { $(
        #[derive(Debug)]
        pub(super) struct $name;
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

pub(super) fn apply<F: Function>(
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
    let shape = limited::broadcast(i)?;
    let elements = follow(i, dtype, f);
    i.set(0, dtype, shape);
    i.set_elements(0, elements);
    Ok(())
}

pub(super) const fn pair(a: &'static str, b: &'static str, types: &'static [DType]) -> [Port; 2] {
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
            since: 1,
            attributes: limited::ATTRIBUTES,
            inputs: TWO,
            outputs: OUT,
            infer: |i| infer_binary(i, $elements),
            batch: limited::batch,
            cost: cost::elementwise,
            prepare: |p| limited::prepare(p, Binary($kernel)),
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

/// `X` where it is not negative, else `X * slope`.
pub(in crate::ops) static PRELU: OpDef = OpDef {
    name: "PRelu",
    domain: "",
    since: 1,
    attributes: &[limited::CONSUMED_INPUTS],
    inputs: &pair("X", "slope", NUMBERS),
    outputs: &[Port::required("Y", NUMBERS)],
    infer: |i| infer_binary(i, |_, _| None),
    batch: limited::batch,
    cost: cost::elementwise,
    prepare: |p| limited::prepare(p, Binary(ScaledBelowZero)),
    cases: prelu_cases,
};

pub(super) fn case(
    def: &OpDef,
    version: i64,
    name: &str,
    inputs: &[Tensor],
    output: Tensor,
) -> Case {
    inputs.iter().fold(Case::new(def.name, version, name), |c, x| c.input(x.clone())).output(output)
}

/// Beyond 2^24 and 2^53, where floats are no longer exact.
pub(super) const WIDE: [i64; 3] = [16_777_217, 9_007_199_254_740_993, -5];

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
        Case::new("Add", 6, "the second operand from an axis on")
            .attr("broadcast", 1)
            .attr("axis", 0)
            .input(counted(&[2, 3]))
            .input(filled(&[2], &[10f32, 20.]))
            .output(filled(&[2, 3], &[10f32, 11., 12., 23., 24., 25.])),
        Case::new("Add", 1, "a suffix")
            .attr("broadcast", 1)
            .attr("consumed_inputs", vec![0, 0])
            .input(counted(&[2, 3]))
            .constant(filled(&[3], &[10f32, 20., 30.]))
            .output(filled(&[2, 3], &[10f32, 21., 32., 13., 24., 35.])),
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
            6,
            "a slope of the channels before version 7",
            &[filled(&[1, 2, 2], &[-1f32, 1., -2., 2.]), filled(&[2], &[0.5f32, 0.25])],
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
