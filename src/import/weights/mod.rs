//! Weights by URI: what a graph's parameters are bound to.
//!
//! A scheme is one row of [`SCHEMES`]; a program adds rows by [`WeightSchemes::with`].

#![forbid(unsafe_code)]

mod cache;
mod parts;
mod roots;
mod scheme;
mod stored;
mod uri;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use cache::{WeightCache, WeightProgress, WeightStats};
#[cfg(feature = "cluster")]
pub(crate) use scheme::sha256;
pub use scheme::{SCHEMES, WeightRequest, WeightScheme, WeightSchemes};
pub(super) use stored::decoded;
pub use stored::{StoredWeight, WeightType};
pub use uri::WeightUri;

/// Where the weight of a parameter lies.
///
/// ```
/// use brigade::WeightRef;
/// let weight = WeightRef::new("w", "gguf://model.gguf#blk.0.ffn_up.weight");
/// assert!(!weight.packed && weight.clone().packed().packed);
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct WeightRef {
    /// The parameter's name in the graph.
    pub name: String,
    /// The weight's URI ([`WeightUri`]).
    pub uri: String,
    /// Whether it stays in its blocks: u8 with rows of whole blocks, for operators that decode them.
    pub packed: bool,
}

impl WeightRef {
    /// The weight at `uri`, decoded as it is bound.
    pub fn new(name: impl Into<String>, uri: impl Into<String>) -> Self {
        Self { name: name.into(), uri: uri.into(), packed: false }
    }

    /// This weight, left in its blocks.
    #[must_use]
    pub fn packed(mut self) -> Self {
        self.packed = true;
        self
    }
}
