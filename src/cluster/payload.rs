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

#[cfg(test)]
mod tests {
    use crate::cluster::message::{Form, buffer_for};
    use crate::tensor::{BufferPool, Tensor, Value};

    use super::*;

    #[test]
    fn a_tensor_is_sent_from_its_own_memory_and_is_what_its_bytes_came_into() {
        let tensor = Tensor::new([3, 5], (0..15).map(|n| n as f32).collect()).unwrap();
        let (form, bytes) = Form::of(&Value::from(tensor.clone())).unwrap();
        assert_eq!(Payload(bytes).bytes().as_ptr(), tensor.as_bytes().as_ptr());

        let mut place = buffer_for(&BufferPool::new(1 << 20), 60).unwrap();
        let given = place.unique_bytes().unwrap();
        given.copy_from_slice(tensor.as_bytes());
        let at = given.as_ptr();
        let value = form.value(place).unwrap();
        assert_eq!(value, Value::from(tensor));
        assert_eq!(value.tensor().unwrap().as_bytes().as_ptr(), at);
    }
}
