//! Element types in Rust and conversions between dtypes.

use half::{bf16, f16};

use super::narrow::{decode, encode, is_narrow};
use super::{DType, Tensor};
use crate::error::{Result, bail};

/// A Rust type that is a dtype's element.
pub trait Element:
    bytemuck::CheckedBitPattern
    + bytemuck::NoUninit
    + Copy
    + Default
    + PartialEq
    + PartialOrd
    + std::fmt::Debug
    + Send
    + Sync
    + 'static
{
    /// The dtype.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($t:ty => $d:ident),* $(,)?) => { $(impl Element for $t { const DTYPE: DType = DType::$d; })* };
}
elements! {
    f32 => F32, f64 => F64, f16 => F16, bf16 => BF16, bool => Bool,
    i8 => I8, i16 => I16, i32 => I32, i64 => I64,
    u8 => U8, u16 => U16, u32 => U32, u64 => U64,
}

/// Runs `$body` with `$t` standing for the Rust type of a primitive number dtype
/// (f32, f64 and the eight whole-number types), or `$other` for any other dtype.
macro_rules! for_number {
    ($dtype:expr, $t:ident => $body:expr, _ => $other:expr) => {
        $crate::tensor::for_dtypes!($dtype, $t, $body, $other,
            F32 f32, F64 f64, I8 i8, I16 i16, I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64)
    };
}

/// Runs `$body` with `$t` standing for the Rust type of the listed dtype, or `$other`.
macro_rules! for_dtypes {
    ($dtype:expr, $t:ident, $body:expr, $other:expr, $($d:ident $ty:ty),* $(,)?) => {
        match $dtype {
            $($crate::tensor::DType::$d => { type $t = $ty; $body })*
            #[allow(unreachable_patterns)]
            _ => $other,
        }
    };
}
pub(crate) use {for_dtypes, for_number};

/// `tensor` with every element converted to `dtype`, as ONNX `Cast` with `saturate`:
/// floats to whole numbers truncate towards zero (out of range: the nearest value, NaN: 0),
/// whole numbers to narrower ones wrap, anything to bool is `!= 0`.
///
/// Narrow floats (of 8 and 4 bits) round to the nearest value, and what lies beyond the largest one
/// becomes that one.
///
/// # Errors
/// If either dtype is string or complex.
pub fn cast(tensor: &Tensor, dtype: DType) -> Result<Tensor> {
    cast_to(tensor, dtype, true)
}

/// As [`cast`]; without `saturate`, what lies beyond the largest value of a narrow float becomes ∞,
/// or NaN where there is no ∞.
pub(crate) fn cast_to(tensor: &Tensor, dtype: DType, saturate: bool) -> Result<Tensor> {
    let from = tensor.dtype();
    if from == dtype {
        return Ok(tensor.clone());
    }
    let refuse = || bail!(Unsupported, "cannot convert {from} to {dtype}");
    let shape = tensor.shape().clone();
    if is_narrow(from) {
        let value = |b: &u8| decode(from, *b).unwrap_or_default();
        let wide: Vec<f32> = tensor.as_bytes().iter().map(value).collect();
        return cast_to(&Tensor::new(shape, wide)?, dtype, saturate);
    }
    if is_narrow(dtype) {
        let bits: Vec<u8> = match (from, dtype) {
            // Whole numbers keep their lowest bits.
            (d, DType::U4 | DType::I4) if d.is_int() => {
                let low = tensor.to_i64s()?.into_iter().map(|v| v as u8 & 15);
                let sign = |b: u8| if dtype == DType::I4 { (b ^ 8).wrapping_sub(8) } else { b };
                low.map(sign).collect()
            }
            (DType::String | DType::C64 | DType::C128, _) => return refuse(),
            _ => {
                let value = |v: f32| encode(dtype, v, saturate).unwrap_or_default();
                tensor.to_f32s()?.into_iter().map(value).collect()
            }
        };
        return Tensor::from_bytes(dtype, shape, &bits);
    }
    match from {
        DType::F16 => {
            let wide: Vec<f32> = tensor.as_slice::<f16>()?.iter().map(|x| x.to_f32()).collect();
            return cast(&Tensor::new(tensor.shape().clone(), wide)?, dtype);
        }
        DType::BF16 => {
            let wide: Vec<f32> = tensor.as_slice::<bf16>()?.iter().map(|x| x.to_f32()).collect();
            return cast(&Tensor::new(tensor.shape().clone(), wide)?, dtype);
        }
        DType::Bool => {
            let bytes: Vec<u8> = tensor.as_slice::<bool>()?.iter().map(|&b| u8::from(b)).collect();
            return cast(&Tensor::new(tensor.shape().clone(), bytes)?, dtype);
        }
        _ => {}
    }
    for_number!(from, S => {
        let source = tensor.as_slice::<S>()?;
        match dtype {
            DType::Bool => {
                Tensor::new(shape, source.iter().map(|&x| x != S::default()).collect::<Vec<bool>>())
            }
            #[allow(clippy::unnecessary_cast)]
            DType::F16 => {
                Tensor::new(shape, source.iter().map(|&x| f16::from_f64(x as f64)).collect::<Vec<_>>())
            }
            #[allow(clippy::unnecessary_cast)]
            DType::BF16 => {
                Tensor::new(shape, source.iter().map(|&x| bf16::from_f64(x as f64)).collect::<Vec<_>>())
            }
            _ => for_number!(dtype, D => {
                #[allow(clippy::unnecessary_cast, clippy::cast_lossless)]
                Tensor::new(shape, source.iter().map(|&x| x as D).collect::<Vec<D>>())
            }, _ => refuse()),
        }
    }, _ => refuse())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wide_integers_stay_exact() {
        let t = Tensor::new([1], vec![16_777_217_i64]).unwrap();
        assert_eq!(cast(&t, DType::U64).unwrap().as_slice::<u64>().unwrap(), [16_777_217]);
        assert_eq!(cast(&t, DType::F64).unwrap().as_slice::<f64>().unwrap(), [16_777_217.0]);
    }

    #[test]
    fn floats_truncate_and_saturate() {
        let t = Tensor::new([4], vec![-1.9_f32, 300.0, f32::NAN, 1e20]).unwrap();
        assert_eq!(
            cast(&t, DType::I32).unwrap().as_slice::<i32>().unwrap(),
            [-1, 300, 0, i32::MAX]
        );
        assert_eq!(cast(&t, DType::U8).unwrap().as_slice::<u8>().unwrap(), [0, 255, 0, 255]);
    }

    #[test]
    fn halves_and_bools_convert_both_ways() {
        let t = Tensor::new([3], vec![0.0_f32, 1.5, -2.0]).unwrap();
        for d in [DType::F16, DType::BF16, DType::F64] {
            let back = cast(&cast(&t, d).unwrap(), DType::F32).unwrap();
            assert_eq!(back, t, "{d}");
        }
        let b = cast(&t, DType::Bool).unwrap();
        assert_eq!(b.as_slice::<bool>().unwrap(), [false, true, true]);
        assert_eq!(cast(&b, DType::I64).unwrap().as_slice::<i64>().unwrap(), [0, 1, 1]);
    }
}
