//! Attention: the operators of ai.onnx and those that exporters write for ONNX Runtime.

mod contrib;
mod core;
mod grouped;
mod rotary;
mod standard;

pub(super) use contrib::{MS_ATTENTION, MULTI_HEAD_ATTENTION};
pub(super) use grouped::GROUP_QUERY_ATTENTION;
pub(super) use rotary::{MS_ROTARY_EMBEDDING, ROTARY_EMBEDDING};
pub(super) use standard::ATTENTION;
