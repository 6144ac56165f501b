//! Comparisons and logic: `Equal`, `Less`, `LessOrEqual`, `Greater`, `GreaterOrEqual`, `And`,
//! `Or`, `Xor`.

use std::fmt;

use super::{Broadcast, follow, limited, same_dtype, same_dtypes, wide};
use crate::error::{Result, bail};
use crate::graph::Dim;
use crate::ops::case::{Case, as_dtype, filled};
use crate::ops::def::types::{ANY, BOOLS, NUMBERS};
use crate::ops::{CpuKernel, Infer, Io, OpDef, Port, cost};
use crate::tensor::{DType, Tensor, cast, for_dtypes};

trait Comparison: fmt::Debug + Send + Sync + 'static {
    fn holds<T: PartialOrd>(a: T, b: T) -> bool;
}

macro_rules! comparisons {
    ($($name:ident |$a:ident, $b:ident| $body:expr;)*) => { $(
        #[derive(Debug)]
        struct $name;
        impl Comparison for $name {
            #[inline(always)]
            fn holds<T: PartialOrd>($a: T, $b: T) -> bool {
                $body
            }
        }
    )* };
}
comparisons! {
    Equal |a, b| a == b;
    Less |a, b| a < b;
    LessOrEqual |a, b| a <= b;
    Greater |a, b| a > b;
    GreaterOrEqual |a, b| a >= b;
}

#[derive(Debug)]
struct Compare<C>(C);

impl<C: Comparison> CpuKernel for Compare<C> {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (a, b) = (io.tensor(0)?, io.tensor(1)?);
        same_dtype(a, b)?;
        let plan = Broadcast::new([a.shape(), b.shape()])?;
        let out = compare::<C>(io, a, b, &plan)?;
        io.emit(out);
        Ok(())
    }
}

fn compare<C: Comparison>(
    io: &Io<'_>,
    a: &Tensor,
    b: &Tensor,
    plan: &Broadcast<2>,
) -> Result<Tensor> {
    let dtype = a.dtype();
    if wide(dtype) != dtype {
        let (a, b) = (cast(a, wide(dtype))?, cast(b, wide(dtype))?);
        return compare::<C>(io, &a, &b, plan);
    }
    let mut out = io.allocate(DType::Bool, plan.shape.clone())?;
    let to = out.as_mut_slice::<bool>()?;
    if dtype == DType::String {
        let a: Vec<&str> = a.as_strings()?.iter().map(String::as_str).collect();
        let b: Vec<&str> = b.as_strings()?.iter().map(String::as_str).collect();
        plan.zip(io.threads(), &a, &b, to, C::holds::<&str>);
        return Ok(out);
    }
    for_dtypes!(dtype, T, {
        plan.zip(io.threads(), a.as_slice::<T>()?, b.as_slice::<T>()?, to, C::holds::<T>);
    }, bail!(Unsupported, "{dtype} is not compared"),
        F32 f32, F64 f64, Bool bool, I32 i32, I64 i64, U64 u64);
    Ok(out)
}

/// A function of two bools.
#[derive(Clone, Copy)]
struct Logic<F>(F);

impl<F> fmt::Debug for Logic<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Logic")
    }
}

impl<F: Fn(bool, bool) -> bool + Send + Sync> CpuKernel for Logic<F> {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (a, b) = (io.tensor(0)?, io.tensor(1)?);
        let plan = Broadcast::new([a.shape(), b.shape()])?;
        let mut out = io.allocate(DType::Bool, plan.shape.clone())?;
        let (a, b) = (a.as_slice::<bool>()?, b.as_slice::<bool>()?);
        plan.zip(io.threads(), a, b, out.as_mut_slice::<bool>()?, &self.0);
        io.emit(out);
        Ok(())
    }
}

/// 1 or 0 where the comparison is decided whatever the extents are. `holds` sees a known
/// difference; `apart` is the answer where the two can only be unequal.
fn infer_comparison(
    i: &mut Infer<'_>,
    holds: fn(std::cmp::Ordering) -> bool,
    apart: Option<bool>,
) -> Result<()> {
    let dtype = same_dtypes(i, 0..2)?;
    let shape = limited::broadcast(i)?;
    let elements = follow(i, dtype, |a, b| {
        let difference = a.clone() - b.clone();
        let decided = match difference.as_fixed() {
            Some(d) => holds(d.cmp(&0)),
            None => {
                // An extent is never a negative number.
                let negative = |d: &Dim| d.as_fixed().is_some_and(|v| v < 0);
                let unequal =
                    (a.is_non_negative() && negative(b)) || (b.is_non_negative() && negative(a));
                apart.filter(|_| unequal)?
            }
        };
        Some(Dim::fixed(i64::from(decided)))
    });
    i.set(0, Some(DType::Bool), shape);
    i.set_elements(0, elements);
    Ok(())
}

fn infer_logic(i: &mut Infer<'_>) -> Result<()> {
    let shape = limited::broadcast(i)?;
    i.set(0, Some(DType::Bool), shape);
    Ok(())
}

macro_rules! table {
    ($($(#[$doc:meta])* $def:ident $name:literal since $since:literal $types:ident, $infer:expr,
        $kernel:expr, $cases:ident;)*) => { $(
        $(#[$doc])*
        pub(in crate::ops) static $def: OpDef = OpDef {
            name: $name,
            domain: "",
            since: $since,
            attributes: if $since < 7 { limited::ATTRIBUTES } else { &[] },
            inputs: &[Port::required("A", $types), Port::required("B", $types)],
            outputs: &[Port::required("C", BOOLS)],
            infer: $infer,
            batch: limited::batch,
            cost: cost::elementwise,
            prepare: |p| limited::prepare(p, $kernel),
            cases: $cases,
        };
    )* };
}
table! {
    /// Whether elements are equal.
    EQUAL "Equal" since 1 ANY, |i| infer_comparison(i, |o| o.is_eq(), Some(false)),
        Compare(Equal), equal_cases;
    /// `A < B`.
    LESS "Less" since 1 NUMBERS, |i| infer_comparison(i, |o| o.is_lt(), None),
        Compare(Less), less_cases;
    /// `A <= B`.
    LESS_OR_EQUAL "LessOrEqual" since 12 NUMBERS, |i| infer_comparison(i, |o| o.is_le(), None),
        Compare(LessOrEqual), less_or_equal_cases;
    /// `A > B`.
    GREATER "Greater" since 1 NUMBERS, |i| infer_comparison(i, |o| o.is_gt(), None),
        Compare(Greater), greater_cases;
    /// `A >= B`.
    GREATER_OR_EQUAL "GreaterOrEqual" since 12 NUMBERS,
        |i| infer_comparison(i, |o| o.is_ge(), None), Compare(GreaterOrEqual),
        greater_or_equal_cases;
    /// Whether both hold.
    AND "And" since 1 BOOLS, infer_logic, Logic(|a, b| a & b), and_cases;
    /// Whether one or both hold.
    OR "Or" since 1 BOOLS, infer_logic, Logic(|a, b| a | b), or_cases;
    /// Whether exactly one holds.
    XOR "Xor" since 1 BOOLS, infer_logic, Logic(|a, b| a ^ b), xor_cases;
}

/// Floats with NaN, i64 where f64 would not tell them apart, and a broadcast f16 scalar.
fn comparison_cases(
    def: &OpDef,
    version: i64,
    floats: [bool; 4],
    wide: [bool; 3],
    halves: [bool; 3],
) -> Vec<Case> {
    let big = 9_007_199_254_740_992i64;
    let f16 = |v: &[f32]| as_dtype(&filled(&[v.len()], v), DType::F16);
    vec![
        Case::new(def.name, version, "floats")
            .input(filled(&[4], &[1f32, 2., 3., f32::NAN]))
            .input(filled(&[4], &[2f32, 2., 2., f32::NAN]))
            .output(filled(&[4], &floats)),
        Case::new(def.name, version, "i64 is exact")
            .input(filled(&[3, 1], &[big, big + 1, big + 2]))
            .input(filled(&[1], &[big + 1]))
            .output(filled(&[3, 1], &wide)),
        Case::new(def.name, version, "f16 scalar")
            .input(f16(&[-1., 0.5, 7.]))
            .constant(f16(&[0.5]))
            .output(filled(&[3], &halves)),
        Case::new(def.name, version, "empty")
            .input(filled::<i32>(&[0, 2], &[]))
            .input(filled(&[2], &[1i32, 2]))
            .output(filled::<bool>(&[0, 2], &[])),
    ]
}

fn equal_cases() -> Vec<Case> {
    let strings = |s: &[&str]| {
        let owned = s.iter().map(|s| (*s).to_owned()).collect();
        Tensor::from_strings([s.len()], owned).ok()
    };
    let mut cases = comparison_cases(
        &EQUAL,
        13,
        [false, true, false, false],
        [false, true, false],
        [false, true, false],
    );
    cases.push(
        Case::new("Equal", 13, "bools")
            .input(filled(&[4], &[true, true, false, false]))
            .input(filled(&[4], &[true, false, true, false]))
            .output(filled(&[4], &[true, false, false, true])),
    );
    if let (Some(a), Some(b)) = (strings(&["a", "b"]), strings(&["b"])) {
        cases.push(
            Case::new("Equal", 19, "strings")
                .input(a)
                .input(b)
                .output(filled(&[2], &[false, true])),
        );
    }
    cases
}

fn less_cases() -> Vec<Case> {
    let floats = [true, false, false, false];
    comparison_cases(&LESS, 13, floats, [true, false, false], [true, false, false])
}

fn less_or_equal_cases() -> Vec<Case> {
    let floats = [true, true, false, false];
    comparison_cases(&LESS_OR_EQUAL, 16, floats, [true, true, false], [true, true, false])
}

fn greater_cases() -> Vec<Case> {
    let floats = [false, false, true, false];
    comparison_cases(&GREATER, 13, floats, [false, false, true], [false, false, true])
}

fn greater_or_equal_cases() -> Vec<Case> {
    let floats = [false, true, true, false];
    comparison_cases(&GREATER_OR_EQUAL, 16, floats, [false, true, true], [false, true, true])
}

fn logic_cases(def: &OpDef, out: [bool; 4], with_true: [bool; 2]) -> Vec<Case> {
    vec![
        Case::new(def.name, 7, "all four")
            .input(filled(&[2, 2], &[true, true, false, false]))
            .input(filled(&[2, 2], &[true, false, true, false]))
            .output(filled(&[2, 2], &out)),
        Case::new(def.name, 7, "broadcast")
            .input(Tensor::scalar(true))
            .input(filled(&[2], &[true, false]))
            .output(filled(&[2], &with_true)),
    ]
}

fn and_cases() -> Vec<Case> {
    logic_cases(&AND, [true, false, false, false], [true, false])
}

fn or_cases() -> Vec<Case> {
    logic_cases(&OR, [true, true, true, false], [true, true])
}

fn xor_cases() -> Vec<Case> {
    logic_cases(&XOR, [false, true, true, false], [false, true])
}
