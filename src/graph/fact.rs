//! What is known of a value before it is computed.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::Dim;
use crate::tensor::{DType, Tensor, Value};

/// A dtype and a symbolic shape, each perhaps unknown.
///
/// ```
/// use brigade::graph::{Dim, Fact};
/// use brigade::DType;
/// let fact = Fact::new(DType::F32, [Dim::symbol("N"), Dim::fixed(3)]);
/// assert_eq!(fact.to_string(), "f32[N,3]");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact {
    /// The dtype, if known.
    pub dtype: Option<DType>,
    /// The shape, if its rank is known; an unknown extent is a symbol of its own.
    pub shape: Option<Vec<Dim>>,
}

impl Fact {
    /// A known dtype and shape.
    pub fn new(dtype: DType, shape: impl IntoIterator<Item = Dim>) -> Self {
        Self { dtype: Some(dtype), shape: Some(shape.into_iter().collect()) }
    }

    /// A known dtype and concrete shape.
    pub fn concrete(dtype: DType, shape: &[usize]) -> Self {
        Self::new(dtype, shape.iter().map(|d| Dim::of(*d)))
    }

    /// Nothing is known.
    pub fn unknown() -> Self {
        Self::default()
    }

    /// The fact of a tensor.
    pub fn of(tensor: &Tensor) -> Self {
        Self::concrete(tensor.dtype(), tensor.shape())
    }

    /// How many axes there are, if known.
    pub fn rank(&self) -> Option<usize> {
        self.shape.as_ref().map(Vec::len)
    }

    /// The concrete shape, if every extent is known.
    pub fn concrete_shape(&self) -> Option<Vec<usize>> {
        self.shape.as_ref()?.iter().map(Dim::as_extent).collect()
    }

    /// Whether a value can have both facts: dtypes, ranks and fixed extents that both know are the same.
    #[cfg_attr(not(feature = "cluster"), allow(dead_code, reason = "what neighbours compare"))]
    pub(crate) fn agrees_with(&self, other: &Self) -> bool {
        let one = |a: &Dim, b: &Dim| !matches!((a.as_fixed(), b.as_fixed()), (Some(a), Some(b)) if a != b);
        let dtypes = self.dtype.is_none() || other.dtype.is_none() || self.dtype == other.dtype;
        dtypes
            && match (&self.shape, &other.shape) {
                (Some(a), Some(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| one(a, b)),
                _ => true,
            }
    }

    /// Why `value` does not have this fact; symbols match any extent.
    ///
    /// # Errors
    /// Words that name both sides.
    pub fn admits(&self, value: &Value) -> Result<(), String> {
        let t = match value {
            Value::Tensor(t) => t,
            Value::Resident(r) => return Err(format!("declared {self}, got {}", r.describe())),
            _ => return Ok(()),
        };
        if self.dtype.is_some_and(|d| d != t.dtype()) {
            return Err(format!("declared {self}, got {}", t.describe()));
        }
        let Some(shape) = &self.shape else { return Ok(()) };
        let fits = shape.len() == t.rank()
            && shape.iter().zip(t.shape().iter()).all(|(d, n)| {
                d.as_fixed().is_none_or(|v| usize::try_from(v).is_ok_and(|v| v == *n))
            });
        if fits { Ok(()) } else { Err(format!("declared {self}, got {}", t.describe())) }
    }
}

impl fmt::Display for Fact {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.dtype {
            Some(d) => write!(f, "{d}")?,
            None => f.write_str("?")?,
        }
        match &self.shape {
            Some(shape) => {
                let dims: Vec<_> = shape.iter().map(Dim::to_string).collect();
                write!(f, "[{}]", dims.join(","))
            }
            None => f.write_str("[…]"),
        }
    }
}
