//! The graph: nodes, values, facts and symbolic extents. Data only; what an operator means is in
//! [`ops`](crate::ops).

mod depth;
mod dim;
mod dot;
mod fact;
mod float_text;
mod model;
mod node;
mod validate;

#[cfg_attr(not(feature = "cluster"), allow(unused_imports))]
pub(crate) use depth::nested;
pub use dim::Dim;
pub use fact::Fact;
pub use model::{Graph, NodeId, ValueId, ValueInfo};
pub use node::{Attribute, Node};
