//! Bytes with a dtype and a shape.
//!
//! A [`Tensor`] is an immutable, reference-counted, contiguous row-major array; cloning it copies
//! a handle. It is written in place only while its buffer is unique
//! ([`Tensor::as_mut_slice`]). A [`Resident`] is a tensor in the memory of a device. This module
//! knows no graph.

mod array;
mod buffer;
mod cast;
mod dtype;
mod few;
mod layout;
mod narrow;
mod pool;
mod resident;
mod shape;
mod value;

pub use array::{Tensor, TensorDisplay};
pub use buffer::Buffer;
pub(crate) use buffer::WeakBuffer;
pub(crate) use cast::cast_to;
pub use cast::{Element, cast};
#[allow(unused_imports)]
pub(crate) use cast::{for_dtypes, for_number};
pub use dtype::DType;
pub(crate) use few::Few;
pub(crate) use layout::Layout;
pub(crate) use narrow::is_narrow;
pub use pool::BufferPool;
pub(crate) use pool::Run;
pub use resident::{Event, QueueId, Resident, Signal};
pub(crate) use shape::signed_strides;
pub use shape::{Shape, broadcast_shapes, element_count, normalise_axis, strides};
pub use value::Value;
