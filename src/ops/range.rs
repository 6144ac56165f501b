//! `Range`.

use super::case::{Case, ints, of};
use super::{CpuKernel, Infer, Io, OpDef, Port, cost};
use crate::error::{Result, bail, err};
use crate::graph::Dim;
use crate::tensor::{DType, Tensor, element_count, for_dtypes};

const NUMBERS: &[DType] = &[DType::F32, DType::F64, DType::I16, DType::I32, DType::I64];

/// The numbers from `start` to before `limit`, in steps of `delta`.
pub(super) static RANGE: OpDef = OpDef {
    name: "Range",
    domain: "",
    since: 11,
    attributes: &[],
    inputs: &[
        Port::required("start", NUMBERS),
        Port::required("limit", NUMBERS),
        Port::required("delta", NUMBERS),
    ],
    outputs: &[Port::required("output", NUMBERS)],
    infer,
    batch: |q| {
        if q.is_free() {
            q.everywhere(None)
        } else {
            Err("its length depends on the items of the batch".to_owned())
        }
    },
    cost: cost::copy,
    prepare: |_| Ok(Box::new(Range)),
    cases,
};

/// A number that a range can be of.
trait Step: crate::tensor::Element {
    /// How many numbers there are, or `None` if there are too many.
    fn count(start: Self, limit: Self, delta: Self) -> Option<usize>;
    /// The number at an index.
    fn at(start: Self, delta: Self, index: usize) -> Self;
}

macro_rules! whole {
    ($($t:ty),*) => { $(
        impl Step for $t {
            fn count(start: Self, limit: Self, delta: Self) -> Option<usize> {
                let (a, b, d) = (i128::from(start), i128::from(limit), i128::from(delta));
                let (distance, step) = if d > 0 { (b - a, d) } else { (a - b, -d) };
                if distance <= 0 { Some(0) } else { usize::try_from((distance - 1) / step + 1).ok() }
            }
            fn at(start: Self, delta: Self, index: usize) -> Self {
                start.wrapping_add((index as Self).wrapping_mul(delta))
            }
        }
    )* };
}
whole!(i16, i32, i64);

macro_rules! float {
    ($($t:ty),*) => { $(
        impl Step for $t {
            fn count(start: Self, limit: Self, delta: Self) -> Option<usize> {
                let count = ((limit - start) / delta).ceil();
                if count.is_nan() || count >= 9.0e15 {
                    return None;
                }
                Some(count.max(0.0) as usize)
            }
            fn at(start: Self, delta: Self, index: usize) -> Self {
                start + index as Self * delta
            }
        }
    )* };
}
float!(f32, f64);

#[derive(Debug)]
struct Range;

impl CpuKernel for Range {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let dtype = io.tensor(0)?.dtype();
        let out = for_dtypes!(dtype, T, range::<T>(io)?,
            bail!(Unsupported, "a range of dtype {dtype} is not implemented"),
            F32 f32, F64 f64, I16 i16, I32 i32, I64 i64);
        io.emit(out);
        Ok(())
    }
}

fn range<T: Step>(io: &Io<'_>) -> Result<Tensor> {
    let read = |i: usize| io.tensor(i)?.item::<T>();
    let (start, limit, delta) = (read(0)?, read(1)?, read(2)?);
    let count = length(start, limit, delta)?;
    let mut out = io.allocate(T::DTYPE, [count])?;
    for (i, o) in out.as_mut_slice::<T>()?.iter_mut().enumerate() {
        *o = T::at(start, delta, i);
    }
    Ok(out)
}

fn length<T: Step>(start: T, limit: T, delta: T) -> Result<usize> {
    if delta == T::default() {
        bail!(Kernel, "`delta` of a range is 0");
    }
    let count = T::count(start, limit, delta).ok_or_else(|| {
        err!(Limit, "a range from {start:?} to {limit:?} by {delta:?} is too long")
    })?;
    element_count(&[count], T::DTYPE.size())
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let dtype = i.dtype(0).or(i.dtype(1)).or(i.dtype(2));
    let one = |k: usize| i.elements(k).and_then(|e| <[Dim; 1]>::try_from(e).ok()).map(|[d]| d);
    let (start, limit, delta) = (one(0), one(1), one(2));
    let mut elements = None;
    let count = match (start, limit, delta) {
        (Some(start), Some(limit), Some(delta)) => {
            let fixed = (start.as_fixed(), limit.as_fixed(), delta.as_fixed());
            match fixed {
                (Some(s), Some(l), Some(d)) => {
                    let count = length(s, l, d)?;
                    if count <= 64 {
                        elements = Some((0..count).map(|n| Dim::fixed(i64::at(s, d, n))).collect());
                    }
                    Some(Dim::of(count))
                }
                (_, _, Some(d)) if d > 0 => Some((limit - start).or_zero().ceil_div(d)),
                (_, _, Some(d)) if d > i64::MIN && d < 0 => {
                    Some((start - limit).or_zero().ceil_div(-d))
                }
                _ => None,
            }
        }
        _ => constant_length(i)?,
    };
    let count = match count {
        Some(n) => n,
        None => i.fresh(),
    };
    i.set(0, dtype, Some(vec![count]));
    i.set_elements(0, elements);
    Ok(())
}

/// The length of a range of constant floats.
fn constant_length(i: &Infer<'_>) -> Result<Option<Dim>> {
    let (Some(a), Some(b), Some(d)) = (i.constant(0), i.constant(1), i.constant(2)) else {
        return Ok(None);
    };
    let count = for_dtypes!(a.dtype(), T,
        length(a.item::<T>()?, b.item::<T>()?, d.item::<T>()?)?,
        return Ok(None),
        F32 f32, F64 f64, I16 i16, I32 i32, I64 i64);
    Ok(Some(Dim::of(count)))
}

fn cases() -> Vec<Case> {
    let new = |name| Case::new("Range", 11, name);
    let n = Tensor::scalar::<i64>;
    vec![
        new("forwards")
            .input(n(16_777_215))
            .input(n(16_777_220))
            .input(n(2))
            .output(ints(&[3], vec![16_777_215, 16_777_217, 16_777_219])),
        new("backwards")
            .constant(n(10))
            .constant(n(4))
            .constant(n(-2))
            .output(ints(&[3], vec![10, 8, 6])),
        new("nothing").constant(n(3)).constant(n(3)).constant(n(1)).output(ints(&[0], vec![])),
        new("floats")
            .constant(Tensor::scalar(1.0_f32))
            .constant(Tensor::scalar(2.1_f32))
            .constant(Tensor::scalar(0.5_f32))
            .output(of(&[3], vec![1.0_f32, 1.5, 2.0])),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_exact_and_bounded() {
        assert!(length(i64::MIN, i64::MAX, 1).is_err());
        assert_eq!(length(i64::MIN, i64::MAX, i64::MAX).unwrap(), 3);
        assert_eq!(length(0, i64::MIN, i64::MIN).unwrap(), 1);
        assert!(length(0_i64, 1, 0).is_err());
        assert!(length(0.0_f32, f32::NAN, 1.0).is_err());
        assert!(length(0.0_f32, f32::INFINITY, 1.0).is_err());
        assert_eq!(length(0.0_f32, 1.0, -1.0).unwrap(), 0);
    }
}
