//! What parameters are bound to.

use super::prepared::{Prepared, tensor_for};
use crate::error::Result;
use crate::import::{WeightCache, WeightRef};
use crate::tensor::{Buffer, DType, Tensor};

/// What a parameter is bound to: a tensor, bytes of a dtype, or a weight in a file.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum ParamValue {
    /// A tensor, whose shape must be the declared one.
    Tensor(Tensor),
    /// Little-endian elements in the order of the declared shape.
    Elements {
        /// Their dtype, which must be the declared one.
        dtype: DType,
        /// The elements.
        bytes: Buffer,
    },
    /// A weight, which is loaded when it is bound; what it is bound as counts, not its own name.
    Weight(WeightRef),
}

impl From<Tensor> for ParamValue {
    fn from(tensor: Tensor) -> Self {
        Self::Tensor(tensor)
    }
}

impl From<WeightRef> for ParamValue {
    fn from(weight: WeightRef) -> Self {
        Self::Weight(weight)
    }
}

impl ParamValue {
    /// Elements of a dtype.
    pub(super) fn elements(dtype: DType, bytes: &[u8]) -> Self {
        Self::Elements { dtype, bytes: Buffer::copy_of(bytes) }
    }

    /// Binds it.
    pub(super) fn bind(self, name: &str, prepared: &Prepared, weights: &WeightCache) -> Result<()> {
        // Where the name is wrong, binding anything says so.
        let fact = prepared.param_fact(name);
        let tensor = match (self, fact) {
            (Self::Tensor(tensor), _) => tensor,
            (Self::Elements { dtype, bytes }, Some(fact)) => {
                tensor_for(&format!("parameter `{name}`"), fact, dtype, bytes.as_bytes())?
            }
            (Self::Weight(weight), Some(fact)) => {
                let weight = WeightRef { name: name.to_owned(), ..weight };
                if !prepared.loads_param(name) {
                    prepared.set_reference(weight);
                    return Ok(());
                }
                let tensor = weights.load(&weight, fact)?;
                prepared.set_param(name, tensor)?;
                prepared.set_reference(weight);
                return Ok(());
            }
            (_, None) => Tensor::of_i64(&[]),
        };
        prepared.set_param(name, tensor)
    }
}
