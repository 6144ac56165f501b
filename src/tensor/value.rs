//! What a graph's value holds at run time.

use super::{DType, Resident, Shape, Tensor};
use crate::error::{Result, bail};

/// A tensor, on the host or on a device, a sequence of values, or an optional value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A tensor.
    Tensor(Tensor),
    /// A tensor in the memory of a device. It goes from segment to segment of one device only;
    /// inputs and outputs of a graph are on the host.
    Resident(Resident),
    /// A sequence.
    Sequence(Vec<Self>),
    /// A value that may be absent.
    Optional(Option<Box<Self>>),
}

impl Value {
    /// The tensor in it.
    ///
    /// # Errors
    /// If it is a sequence or an optional, or not on the host.
    pub fn tensor(&self) -> Result<&Tensor> {
        match self {
            Self::Tensor(t) => Ok(t),
            Self::Resident(r) => {
                bail!(DType, "expected a tensor on the host, got {}", r.describe())
            }
            other => bail!(DType, "expected a tensor, got {}", other.describe()),
        }
    }

    /// The tensor in it, by value.
    ///
    /// # Errors
    /// If it is a sequence or an optional, or not on the host.
    pub fn into_tensor(self) -> Result<Tensor> {
        match self {
            Self::Tensor(t) => Ok(t),
            Self::Resident(r) => {
                bail!(DType, "expected a tensor on the host, got {}", r.describe())
            }
            other => bail!(DType, "expected a tensor, got {}", other.describe()),
        }
    }

    /// Its dtype and shape in words, such as `f32[2,3]`.
    pub fn describe(&self) -> String {
        match self {
            Self::Tensor(t) => t.describe(),
            Self::Resident(r) => r.describe(),
            Self::Sequence(v) => format!("sequence of {}", v.len()),
            Self::Optional(None) => "absent optional".to_owned(),
            Self::Optional(Some(v)) => format!("optional {}", v.describe()),
        }
    }

    /// Bytes of all tensors in it.
    pub fn bytes(&self) -> usize {
        match self {
            Self::Tensor(t) => t.bytes(),
            Self::Resident(r) => r.bytes(),
            Self::Sequence(v) => v.iter().map(Self::bytes).sum(),
            Self::Optional(v) => v.as_ref().map_or(0, |v| v.bytes()),
        }
    }

    /// The dtype, if it is a tensor.
    pub fn dtype(&self) -> Option<DType> {
        match self {
            Self::Tensor(t) => Some(t.dtype()),
            Self::Resident(r) => Some(r.dtype()),
            _ => None,
        }
    }

    /// The shape, if it is a tensor.
    pub fn shape(&self) -> Option<&Shape> {
        match self {
            Self::Tensor(t) => Some(t.shape()),
            Self::Resident(r) => Some(r.shape()),
            _ => None,
        }
    }
}

impl From<Tensor> for Value {
    fn from(t: Tensor) -> Self {
        Self::Tensor(t)
    }
}
