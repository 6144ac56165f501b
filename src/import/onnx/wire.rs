//! How much memory a message will take, told from its bytes alone.
//!
//! An empty message takes two bytes in a file and up to a kilobyte decoded, so that a small file
//! could ask for a lot. This walk takes no memory.

use super::pb;
use crate::error::{Result, bail};

/// Message types, as far as their fields differ here.
#[derive(Clone, Copy)]
enum Kind {
    Model,
    Training,
    Graph,
    Node,
    Attribute,
    Function,
    Tensor,
    Sparse,
    ValueInfo,
    Type,
    TensorType,
    Shape,
    /// One more type inside.
    Wrapper,
    /// Holds nothing but entries with keys.
    Annotation,
    /// Holds no further messages.
    Leaf,
    /// Holds what is not walked; taken to be as costly as can be.
    Opaque,
}

/// What a field with a length holds.
enum Content {
    Message(Kind),
    /// A string or bytes, which may be a slice of the file.
    Text,
    /// Packed numbers, of at most this many bytes decoded for each one in the file.
    Packed(u64),
}

impl Kind {
    fn field(self, number: u64) -> Content {
        use Content::{Message, Packed, Text};
        match (self, number) {
            (Self::Model, 7) | (Self::Training, 1 | 2) | (Self::Attribute, 6 | 11) => {
                Message(Self::Graph)
            }
            (Self::Model, 20) => Message(Self::Training),
            (Self::Model, 25) => Message(Self::Function),
            (Self::Graph, 1) | (Self::Function, 7) => Message(Self::Node),
            (Self::Node, 5) | (Self::Function, 11) => Message(Self::Attribute),
            (Self::Graph, 5) | (Self::Attribute, 5 | 10) | (Self::Sparse, 1 | 2) => {
                Message(Self::Tensor)
            }
            (Self::Graph, 15) | (Self::Attribute, 22 | 23) => Message(Self::Sparse),
            (Self::Graph, 11..=13) | (Self::Function, 12) => Message(Self::ValueInfo),
            (Self::Graph, 14) => Message(Self::Annotation),
            (Self::Attribute, 14 | 15) | (Self::ValueInfo, 2) | (Self::Wrapper, 1 | 2) => {
                Message(Self::Type)
            }
            (Self::Type, 1 | 8) => Message(Self::TensorType),
            (Self::Type, 4 | 5 | 9) => Message(Self::Wrapper),
            (Self::TensorType, 2) => Message(Self::Shape),
            (Self::Model, 8 | 14)
            | (Self::Training, 3 | 4)
            | (Self::Graph, 16)
            | (Self::Node, 9)
            | (Self::Function, 9 | 14)
            | (Self::Tensor, 3 | 13 | 16)
            | (Self::ValueInfo, 4)
            | (Self::Annotation, 2)
            | (Self::Type, 7)
            | (Self::Shape, 1) => Message(Self::Leaf),
            (Self::Model, 26) | (Self::Node, 10) => Message(Self::Opaque),
            (Self::Tensor, 1 | 7 | 11) | (Self::Attribute, 8) | (Self::Sparse, 3) => Packed(8),
            (Self::Tensor, 5) => Packed(4),
            (Self::Tensor, 4 | 10) | (Self::Attribute, 7) => Packed(1),
            _ => Text,
        }
    }

    /// Bytes of the decoded message itself.
    fn size(self) -> usize {
        match self {
            Self::Model => size_of::<pb::ModelProto>(),
            Self::Training => size_of::<pb::TrainingInfoProto>(),
            Self::Graph => size_of::<pb::GraphProto>(),
            Self::Node => size_of::<pb::NodeProto>(),
            Self::Attribute => size_of::<pb::AttributeProto>(),
            Self::Function => size_of::<pb::FunctionProto>(),
            Self::Tensor => size_of::<pb::TensorProto>(),
            Self::Sparse => size_of::<pb::SparseTensorProto>(),
            Self::ValueInfo => size_of::<pb::ValueInfoProto>(),
            Self::Type | Self::Wrapper => size_of::<pb::TypeProto>(),
            Self::TensorType | Self::Shape => size_of::<pb::type_proto::Tensor>(),
            Self::Annotation | Self::Leaf | Self::Opaque => LEAF,
        }
    }
}

/// Bytes of the largest message without messages, or of a string.
const LEAF: usize = 64;

/// As deep as the decoder goes.
const MAX_DEPTH: usize = 100;

/// Refuses a `ModelProto` whose messages would take more than `max` bytes decoded. What is
/// malformed is left to the decoder.
pub(super) fn check(bytes: &[u8], max: u64) -> Result<()> {
    let mut left = max;
    if walk(bytes, Kind::Model, 0, &mut left).is_none() && left == 0 {
        bail!(Limit, "its messages take more memory than the limit of {max} bytes");
    }
    Ok(())
}

/// `None` ends the walk: `left` is spent, or the bytes are malformed.
fn walk(mut bytes: &[u8], kind: Kind, depth: usize, left: &mut u64) -> Option<()> {
    spend(left, kind.size() as u64)?;
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        match tag & 7 {
            0 => {
                varint(&mut bytes)?;
                spend(left, 8)?;
            }
            1 | 5 => {
                let size = if tag & 7 == 1 { 8 } else { 4 };
                bytes = bytes.get(size..)?;
                spend(left, size as u64)?;
            }
            2 => {
                let length = usize::try_from(varint(&mut bytes)?).ok()?;
                let (content, rest) = bytes.split_at_checked(length)?;
                bytes = rest;
                match kind.field(tag >> 3) {
                    _ if matches!(kind, Kind::Opaque) => {
                        spend(left, (length as u64 + 1).saturating_mul(LEAF as u64))?;
                    }
                    Content::Message(inner) if depth < MAX_DEPTH => {
                        walk(content, inner, depth + 1, left)?;
                    }
                    Content::Message(_) => return None,
                    Content::Text => spend(left, LEAF as u64 / 2)?,
                    Content::Packed(factor) => spend(left, length as u64 * factor)?,
                }
            }
            // Groups are in no ONNX message; the decoder skips or refuses them.
            _ => return None,
        }
    }
    Some(())
}

fn spend(left: &mut u64, bytes: u64) -> Option<()> {
    match left.checked_sub(bytes) {
        Some(rest) if rest > 0 => {
            *left = rest;
            Some(())
        }
        _ => {
            *left = 0;
            None
        }
    }
}

fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for i in 0..10 {
        let byte = *bytes.get(i)?;
        value |= u64::from(byte & 0x7F) << (7 * i);
        if byte < 0x80 {
            *bytes = &bytes[i + 1..];
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;

    #[test]
    fn empty_messages_are_counted_at_their_decoded_size() {
        let nodes = 10_000;
        let graph =
            pb::GraphProto { node: vec![pb::NodeProto::default(); nodes], ..Default::default() };
        let model = pb::ModelProto { graph: Some(graph), ..Default::default() };
        let bytes = model.encode_to_vec();
        let decoded = (nodes * size_of::<pb::NodeProto>()) as u64;
        assert!(bytes.len() < 30_000);
        assert!(check(&bytes, decoded).is_err());
        assert!(check(&bytes, decoded + 10_000).is_ok());
    }

    #[test]
    fn malformed_bytes_end_the_walk() {
        for bytes in [&[0x3A, 0xFF][..], &[0x3A, 5, 1], &[0xFF; 20], &[0x0B, 0x0C], &[]] {
            assert!(check(bytes, 1 << 20).is_ok(), "{bytes:?}");
        }
    }
}
