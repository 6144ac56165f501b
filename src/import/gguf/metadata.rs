//! What a GGUF file says of its model.

use std::collections::BTreeMap;

use crate::error::{Result, err};

/// A value of the metadata.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum GgufValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    U64(u64),
    I64(i64),
    F64(f64),
    Bool(bool),
    String(String),
    /// A text that is not UTF-8, as it is.
    Bytes(Vec<u8>),
    Array(GgufArray),
}

/// A list of the metadata, all of one type.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)]
#[non_exhaustive]
pub enum GgufArray {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
    Bool(Vec<bool>),
    String(Vec<String>),
    /// Texts of which at least one is not UTF-8, as they are.
    Bytes(Vec<Vec<u8>>),
    Array(Vec<GgufArray>),
}

macro_rules! each {
    ($list:expr, $v:ident => $out:expr) => {
        match $list {
            GgufArray::U8($v) => $out,
            GgufArray::I8($v) => $out,
            GgufArray::U16($v) => $out,
            GgufArray::I16($v) => $out,
            GgufArray::U32($v) => $out,
            GgufArray::I32($v) => $out,
            GgufArray::F32($v) => $out,
            GgufArray::U64($v) => $out,
            GgufArray::I64($v) => $out,
            GgufArray::F64($v) => $out,
            GgufArray::Bool($v) => $out,
            GgufArray::String($v) => $out,
            GgufArray::Bytes($v) => $out,
            GgufArray::Array($v) => $out,
        }
    };
}

impl GgufArray {
    /// How many elements there are.
    pub fn len(&self) -> usize {
        each!(self, v => v.len())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The element at `index`.
    pub fn get(&self, index: usize) -> Option<GgufValue> {
        Some(match self {
            Self::U8(v) => GgufValue::U8(*v.get(index)?),
            Self::I8(v) => GgufValue::I8(*v.get(index)?),
            Self::U16(v) => GgufValue::U16(*v.get(index)?),
            Self::I16(v) => GgufValue::I16(*v.get(index)?),
            Self::U32(v) => GgufValue::U32(*v.get(index)?),
            Self::I32(v) => GgufValue::I32(*v.get(index)?),
            Self::F32(v) => GgufValue::F32(*v.get(index)?),
            Self::U64(v) => GgufValue::U64(*v.get(index)?),
            Self::I64(v) => GgufValue::I64(*v.get(index)?),
            Self::F64(v) => GgufValue::F64(*v.get(index)?),
            Self::Bool(v) => GgufValue::Bool(*v.get(index)?),
            Self::String(v) => GgufValue::String(v.get(index)?.clone()),
            Self::Bytes(v) => GgufValue::Bytes(v.get(index)?.clone()),
            Self::Array(v) => GgufValue::Array(v.get(index)?.clone()),
        })
    }

    /// The elements, one after the other.
    pub fn iter(&self) -> impl Iterator<Item = GgufValue> + '_ {
        (0..self.len()).map_while(|i| self.get(i))
    }

    /// The texts of a list of texts.
    pub fn as_strings(&self) -> Option<&[String]> {
        match self {
            Self::String(v) => Some(v),
            _ => None,
        }
    }

    /// The numbers of a list of f32.
    pub fn as_f32(&self) -> Option<&[f32]> {
        match self {
            Self::F32(v) => Some(v),
            _ => None,
        }
    }

    /// The numbers of a list of i32.
    pub fn as_i32(&self) -> Option<&[i32]> {
        match self {
            Self::I32(v) => Some(v),
            _ => None,
        }
    }
}

impl GgufValue {
    /// A whole number that is not negative.
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::U64(v) => Some(v),
            Self::I8(v) => v.try_into().ok(),
            Self::I16(v) => v.try_into().ok(),
            Self::I32(v) => v.try_into().ok(),
            Self::I64(v) => v.try_into().ok(),
            _ => None,
        }
    }

    /// A number.
    pub fn as_f64(&self) -> Option<f64> {
        match *self {
            Self::F32(v) => Some(v.into()),
            Self::F64(v) => Some(v),
            Self::I8(v) => Some(v.into()),
            Self::I16(v) => Some(v.into()),
            Self::I32(v) => Some(v.into()),
            Self::I64(v) => Some(v as f64),
            _ => self.as_u64().map(|v| v as f64),
        }
    }

    /// A text.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Self::String(v) => Some(v),
            _ => None,
        }
    }

    /// A truth value.
    pub fn as_bool(&self) -> Option<bool> {
        match *self {
            Self::Bool(v) => Some(v),
            _ => None,
        }
    }

    /// A list.
    pub fn as_array(&self) -> Option<&GgufArray> {
        match self {
            Self::Array(v) => Some(v),
            _ => None,
        }
    }
}

/// The metadata by key, such as `general.architecture`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GgufMetadata(BTreeMap<String, GgufValue>);

impl GgufMetadata {
    pub(super) fn insert(&mut self, key: String, value: GgufValue) -> Option<GgufValue> {
        self.0.insert(key, value)
    }

    /// How many keys there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The value of a key.
    pub fn get(&self, key: &str) -> Option<&GgufValue> {
        self.0.get(key)
    }

    /// All keys and values, by key.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &GgufValue)> {
        self.0.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// The whole number of a key.
    ///
    /// # Errors
    /// If it is not there, or no whole number.
    pub fn number(&self, key: &str) -> Result<u64> {
        self.required(key, "a whole number", GgufValue::as_u64)
    }

    /// The number of a key.
    ///
    /// # Errors
    /// If it is not there, or no number.
    pub fn float(&self, key: &str) -> Result<f64> {
        self.required(key, "a number", GgufValue::as_f64)
    }

    /// The text of a key.
    ///
    /// # Errors
    /// If it is not there, or no text.
    pub fn text(&self, key: &str) -> Result<&str> {
        self.required(key, "a text", GgufValue::as_str)
    }

    /// The list of a key.
    ///
    /// # Errors
    /// If it is not there, or no list.
    pub fn list(&self, key: &str) -> Result<&GgufArray> {
        self.required(key, "a list", GgufValue::as_array)
    }

    fn required<'a, T>(
        &'a self,
        key: &str,
        what: &str,
        of: impl Fn(&'a GgufValue) -> Option<T>,
    ) -> Result<T> {
        let value = self.get(key).ok_or_else(|| err!(Missing, "the metadata have no `{key}`"))?;
        of(value).ok_or_else(|| err!(Format, "`{key}` in the metadata is not {what}"))
    }
}
