//! Operators that work element by element, with broadcasting where they have several inputs.

mod arithmetic;
mod bitwise;
mod broadcast;
mod cases;
mod compare;
mod float;
mod limited;
mod number;
mod power;
mod predicate;
mod select;
mod unary;
mod variadic;

pub(super) use arithmetic::{ADD, DIV, MOD, MUL, PRELU, SUB};
pub(super) use bitwise::{BIT_SHIFT, BITWISE_AND, BITWISE_NOT, BITWISE_OR, BITWISE_XOR};
pub(super) use broadcast::{Broadcast, spread, spread_work};
pub(super) use compare::{AND, EQUAL, GREATER, GREATER_OR_EQUAL, LESS, LESS_OR_EQUAL, OR, XOR};
pub(super) use float::Float;
pub(super) use limited::CONSUMED_INPUTS;
pub(super) use number::Number;
pub(super) use power::POW;
pub(super) use predicate::{IS_INF, IS_NAN, NOT};
pub(super) use select::{CLIP, WHERE};
pub(super) use unary::{
    ABS, ACOS, ACOSH, ASIN, ASINH, ATAN, ATANH, CEIL, CELU, COS, COSH, ELU, ERF, EXP, FLOOR, GELU,
    HARD_SIGMOID, HARD_SWISH, LEAKY_RELU, LOG, MISH, NEG, RECIPROCAL, RELU, ROUND, SELU, SHRINK,
    SIGMOID, SIGN, SIN, SINH, SOFTPLUS, SOFTSIGN, SQRT, TAN, TANH, THRESHOLDED_RELU,
};
pub(super) use variadic::{MAX, MEAN, MIN, SUM};

use super::{Infer, Io};
use crate::error::{Result, bail};
use crate::graph::Dim;
use crate::tensor::{DType, Tensor, cast};

/// The dtype that another one is computed in, so that kernels exist for few of them: f16 and bf16
/// in f32, narrow whole numbers in wider ones, from which they wrap back to the same result.
pub(super) fn wide(dtype: DType) -> DType {
    match dtype {
        DType::F16 | DType::BF16 => DType::F32,
        DType::I8 | DType::I16 | DType::U8 | DType::U16 => DType::I32,
        DType::U32 => DType::I64,
        other => other,
    }
}

/// Runs `$body` with `$t` standing for the Rust type of a dtype that [`wide`] gives, or `$other`.
macro_rules! for_wide {
    ($dtype:expr, $t:ident => $body:expr, _ => $other:expr) => {
        $crate::tensor::for_dtypes!($dtype, $t, $body, $other,
            F32 f32, F64 f64, I32 i32, I64 i64, U64 u64)
    };
}
pub(super) use for_wide;

/// Input 0 in memory that may be written, of its [`wide`] dtype.
///
/// # Errors
/// If it is missing or of no number type.
pub(super) fn writable(io: &mut Io<'_>) -> Result<Tensor> {
    let mut x = io.take_tensor(0)?;
    let computed = wide(x.dtype());
    if computed != x.dtype() {
        return cast(&x, computed);
    }
    if x.is_unique() {
        return Ok(x);
    }
    let mut copy = io.allocate(x.dtype(), x.shape().clone())?;
    for_wide!(x.dtype(), T => {
        copy.as_mut_slice::<T>()?.copy_from_slice(x.as_slice::<T>()?);
    }, _ => bail!(DType, "{} is not a number", x.dtype()));
    Ok(copy)
}

/// # Errors
/// If the inputs' dtypes, as far as known, differ.
fn same_dtypes(i: &Infer<'_>, inputs: std::ops::Range<usize>) -> Result<Option<DType>> {
    let mut found = None;
    for k in inputs {
        match (found, i.dtype(k)) {
            (Some(a), Some(b)) if a != b => {
                bail!(DType, "its inputs are of different dtypes, {a} and {b}")
            }
            (None, d) => found = d,
            _ => {}
        }
    }
    Ok(found)
}

/// # Errors
/// If the dtypes differ.
fn same_dtype(a: &Tensor, b: &Tensor) -> Result<()> {
    if a.dtype() != b.dtype() {
        bail!(DType, "its inputs are of different dtypes, {} and {}", a.dtype(), b.dtype());
    }
    Ok(())
}

/// The elements of `f` on the elements of two inputs, where they are followed and every result is
/// a number of the dtype.
fn follow(
    i: &Infer<'_>,
    dtype: Option<DType>,
    f: impl Fn(&Dim, &Dim) -> Option<Dim>,
) -> Option<Vec<Dim>> {
    if i.rank(0)? > 1 || i.rank(1)? > 1 {
        return None;
    }
    let (a, b) = (i.elements(0)?, i.elements(1)?);
    let count = match (a.len(), b.len()) {
        (n, m) if n == m => n,
        (1, n) | (n, 1) => n,
        _ => return None,
    };
    let dtype = dtype?;
    let one = |v: &[Dim], k: usize| v.get(if v.len() == 1 { 0 } else { k }).cloned();
    (0..count).map(|k| f(&one(&a, k)?, &one(&b, k)?).filter(|d| fits(dtype, d))).collect()
}

/// Whether arithmetic in the dtype gives this number without wrapping. Expressions are of extents
/// and taken to stay within i32.
pub(super) fn fits(dtype: DType, d: &Dim) -> bool {
    match (dtype, d.as_fixed()) {
        (DType::I64, _) | (DType::I32, None) => true,
        (_, None) => false,
        (DType::I32, Some(v)) => i32::try_from(v).is_ok(),
        (DType::I16, Some(v)) => i16::try_from(v).is_ok(),
        (DType::I8, Some(v)) => i8::try_from(v).is_ok(),
        (DType::U64, Some(v)) => v >= 0,
        (DType::U32, Some(v)) => u32::try_from(v).is_ok(),
        (DType::U16, Some(v)) => u16::try_from(v).is_ok(),
        (DType::U8, Some(v)) => u8::try_from(v).is_ok(),
        _ => false,
    }
}
