//! Tensors as payloads.

use brigade_actors::transport::Bytes;

use crate::tensor::Buffer;

/// The bytes of a tensor, sent as they lie.
pub(super) struct Payload(pub(super) Buffer);

impl Bytes for Payload {
    fn bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}
