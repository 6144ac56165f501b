//! Element types.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, err};

/// An element type; the discriminants are ONNX's `TensorProto.DataType` numbers.
///
/// All of ONNX's types are reserved; a kernel may refuse the ones it does not know.
///
/// ```
/// use brigade::DType;
/// assert_eq!("f32".parse::<DType>().unwrap(), DType::F32);
/// assert_eq!(DType::F16.size(), 2);
/// assert_eq!(DType::I64.to_string(), "i64");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(i32)]
#[non_exhaustive]
#[allow(missing_docs)]
pub enum DType {
    F32 = 1,
    U8 = 2,
    I8 = 3,
    U16 = 4,
    I16 = 5,
    I32 = 6,
    I64 = 7,
    String = 8,
    Bool = 9,
    F16 = 10,
    F64 = 11,
    U32 = 12,
    U64 = 13,
    C64 = 14,
    C128 = 15,
    BF16 = 16,
    F8E4M3FN = 17,
    F8E4M3FNUZ = 18,
    F8E5M2 = 19,
    F8E5M2FNUZ = 20,
    U4 = 21,
    I4 = 22,
    F4E2M1 = 23,
}

use DType::*;

/// Every dtype with its name here and its name in numpy (empty where numpy has none).
const NAMES: &[(DType, &str, &str)] = &[
    (F32, "f32", "float32"),
    (U8, "u8", "uint8"),
    (I8, "i8", "int8"),
    (U16, "u16", "uint16"),
    (I16, "i16", "int16"),
    (I32, "i32", "int32"),
    (I64, "i64", "int64"),
    (String, "string", "str"),
    (Bool, "bool", "bool"),
    (F16, "f16", "float16"),
    (F64, "f64", "float64"),
    (U32, "u32", "uint32"),
    (U64, "u64", "uint64"),
    (C64, "c64", "complex64"),
    (C128, "c128", "complex128"),
    (BF16, "bf16", "bfloat16"),
    (F8E4M3FN, "f8e4m3fn", ""),
    (F8E4M3FNUZ, "f8e4m3fnuz", ""),
    (F8E5M2, "f8e5m2", ""),
    (F8E5M2FNUZ, "f8e5m2fnuz", ""),
    (U4, "u4", ""),
    (I4, "i4", ""),
    (F4E2M1, "f4e2m1", ""),
];

impl DType {
    /// The dtypes that tensors can hold and kernels compute with.
    pub const WORKING: &'static [Self] =
        &[F32, F16, BF16, F64, I8, I16, I32, I64, U8, U16, U32, U64, Bool];

    /// Bytes of one stored element; 4-bit types are stored one to a byte, strings have no size (0).
    pub const fn size(self) -> usize {
        match self {
            C128 => 16,
            F64 | I64 | U64 | C64 => 8,
            F32 | I32 | U32 => 4,
            F16 | BF16 | I16 | U16 => 2,
            String => 0,
            _ => 1,
        }
    }

    /// The dtype with this ONNX number, if it is one.
    pub fn from_onnx(number: i32) -> Option<Self> {
        NAMES.iter().map(|row| row.0).find(|d| *d as i32 == number)
    }

    /// Whether it is f16, bf16, f32 or f64.
    pub const fn is_float(self) -> bool {
        matches!(self, F16 | BF16 | F32 | F64)
    }

    /// Whether it is a whole-number type of 8 to 64 bits.
    pub const fn is_int(self) -> bool {
        matches!(self, I8 | I16 | I32 | I64 | U8 | U16 | U32 | U64)
    }

    /// The short name, such as `f32`.
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|row| row.0 == self).map_or("?", |row| row.1)
    }

    /// The name that numpy uses, such as `float32`; empty where numpy has none.
    pub fn numpy_name(self) -> &'static str {
        NAMES.iter().find(|row| row.0 == self).map_or("", |row| row.2)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for DType {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self, Error> {
        NAMES
            .iter()
            .find(|row| row.1 == s || (!row.2.is_empty() && row.2 == s))
            .map(|row| row.0)
            .ok_or_else(|| {
                let known: Vec<_> = NAMES.iter().map(|row| row.1).collect();
                err!(DType, "no dtype is called `{s}`")
                    .with_help(format!("use one of {}", known.join(", ")))
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_numbers_round_trip() {
        for &(dtype, name, numpy) in NAMES {
            assert_eq!(name.parse::<DType>().unwrap(), dtype);
            assert_eq!(DType::from_onnx(dtype as i32), Some(dtype));
            if !numpy.is_empty() {
                assert_eq!(numpy.parse::<DType>().unwrap(), dtype);
            }
        }
        assert_eq!(DType::from_onnx(0), None);
        assert!("f33".parse::<DType>().is_err());
    }
}
