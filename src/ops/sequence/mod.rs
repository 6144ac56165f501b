//! Sequences and optionals: values that are no tensors. Inference knows nothing of them.

mod edit;
mod join;
mod optional;

pub(super) use edit::without;
pub(super) use edit::{
    SEQUENCE_AT, SEQUENCE_CONSTRUCT, SEQUENCE_EMPTY, SEQUENCE_ERASE, SEQUENCE_INSERT,
    SEQUENCE_LENGTH,
};
pub(super) use join::{CONCAT_FROM_SEQUENCE, SPLIT_TO_SEQUENCE};
pub(super) use optional::{OPTIONAL, OPTIONAL_GET_ELEMENT, OPTIONAL_HAS_ELEMENT};

use super::Io;
use crate::error::{Result, bail};
use crate::tensor::Value;

/// The values of an input that is a sequence, perhaps within an optional.
pub(super) fn sequence<'a>(io: &'a Io<'_>, input: usize) -> Result<&'a [Value]> {
    let mut value = io.value(input)?;
    while let Value::Optional(Some(inner)) = value {
        value = inner;
    }
    match value {
        Value::Sequence(values) => Ok(values),
        other => bail!(DType, "input {input} is {}, expected a sequence", other.describe()),
    }
}

/// A position that may count from the end, in `0..=most`.
fn position(at: i64, count: usize, most: usize) -> Result<usize> {
    let n = i64::try_from(count).unwrap_or(i64::MAX);
    let i = if at < 0 { at + n } else { at };
    match usize::try_from(i) {
        Ok(i) if i <= most && count > 0 || i == 0 && most == 0 && count == 0 => Ok(i),
        _ => bail!(Shape, "position {at} is outside of a sequence of {count}"),
    }
}
