//! `Pow`.

use super::arithmetic::{case, pair};
use super::number::Number;
use super::{Broadcast, follow, for_wide, limited, wide};
use crate::error::{Result, bail};
use crate::graph::Dim;
use crate::ops::case::{Case, filled};
use crate::ops::def::types::NUMBERS;
use crate::ops::{CpuKernel, Io, OpDef, Port, cost};
use crate::tensor::{DType, Tensor, cast};

/// `X` to the power `Y`.
pub(in crate::ops) static POW: OpDef = OpDef {
    name: "Pow",
    domain: "",
    since: 1,
    attributes: limited::ATTRIBUTES,
    inputs: &pair("X", "Y", NUMBERS),
    outputs: &[Port::required("Z", NUMBERS)],
    infer: |i| {
        let shape = limited::broadcast(i)?;
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
    batch: limited::batch,
    cost: cost::transcendental,
    prepare: |p| limited::prepare(p, Pow),
    cases: pow_cases,
};

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
    if dtype == DType::F32 && y.dtype() == DType::F32 {
        let (a, b) = (x.as_slice::<f32>()?, y.as_slice::<f32>()?);
        plan.zip(threads, a, b, out.as_mut_slice::<f32>()?, f32::powf);
        return Ok(out);
    }
    if y.dtype().is_int() && !dtype.is_float() {
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

fn pow_cases() -> Vec<Case> {
    let case = |name: &str, a, b, c| case(&POW, 15, name, &[a, b], c);
    let inf = f32::INFINITY;
    vec![
        case(
            "whole exponents",
            filled(&[3], &[2f32, 3., -2.]),
            filled(&[3], &[3i32, -1, 5]),
            filled(&[3], &[8f32, 1. / 3., -32.]),
        )
        .close(1e-6, 1e-6),
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
