//! `TensorProto` messages.

use prost::bytes::Bytes;

use super::external::Weights;
use super::pb;
use crate::error::{Result, bail, err};
use crate::import::Limits;
use crate::tensor::{Buffer, DType, Shape, Tensor, element_count};

/// The tensor in a message.
///
/// # Errors
/// `Unsupported` for dtypes and segments that cannot be read; otherwise what is wrong with it.
pub(super) fn read(
    mut proto: pb::TensorProto,
    weights: &mut Weights<'_>,
    limits: &Limits,
) -> Result<Tensor> {
    let number = proto.data_type.unwrap_or(0);
    let Some(dtype) = DType::from_onnx(number) else {
        if number == 0 {
            bail!(Format, "it has no dtype");
        }
        bail!(Unsupported, "elements of type {}", type_name(number));
    };
    if proto.segment.is_some() {
        bail!(Unsupported, "a segment of a tensor");
    }
    limits.check_rank(proto.dims.len())?;
    let dims = proto
        .dims
        .iter()
        .map(|d| {
            usize::try_from(*d).map_err(|_| err!(Format, "its dims {:?} are negative", proto.dims))
        })
        .collect::<Result<Vec<usize>>>()?;
    let shape = Shape::from(dims);
    let count = element_count(&shape, dtype.size())?;
    limits.check_tensor(count * dtype.size(), &|| format!("{dtype}{shape}"))?;

    let external = proto.data_location == Some(pb::tensor_proto::DataLocation::External as i32);
    let raw = proto.raw_data.take().filter(|b| !b.is_empty());
    if dtype == DType::String {
        if external || raw.is_some() {
            bail!(Format, "strings cannot be raw bytes");
        }
        return strings(shape, count, &proto.string_data);
    }
    let four_bits = matches!(dtype, DType::U4 | DType::I4 | DType::F4E2M1);
    let packed = if four_bits { count.div_ceil(2) } else { count * dtype.size() };
    let stored = if external {
        weights.bytes(&proto.external_data, packed)?
    } else if let Some(raw) = raw {
        if raw.len() != packed {
            bail!(Format, "{dtype}{shape} takes {packed} bytes, it has {}", raw.len());
        }
        // A copy is aligned, and lets go of the file.
        Buffer::copy_of(&raw)
    } else {
        typed(&proto, dtype, if four_bits { packed } else { count })?
    };
    let buffer = if four_bits { unpack(stored.as_bytes(), count, dtype) } else { stored };
    Tensor::from_buffer(dtype, shape, buffer)
}

fn strings(shape: Shape, count: usize, data: &[Bytes]) -> Result<Tensor> {
    if data.len() != count {
        bail!(Format, "string{shape} has {count} elements, {} are given", data.len());
    }
    let strings = data.iter().map(|b| text(b)).collect::<Result<_>>()?;
    Tensor::from_strings(shape, strings)
}

/// The text in bytes that ONNX says are UTF-8.
pub(super) fn text(bytes: &[u8]) -> Result<String> {
    match std::str::from_utf8(bytes) {
        Ok(s) => Ok(s.to_owned()),
        Err(_) => bail!(Unsupported, "a string that is not UTF-8"),
    }
}

/// Little-endian bytes of the elements in the field that belongs to `dtype`.
fn typed(p: &pb::TensorProto, dtype: DType, count: usize) -> Result<Buffer> {
    let check = |field: &str, have: usize, need: usize| {
        if have == need {
            return Ok(());
        }
        bail!(Format, "its dims take {need} elements of `{field}`, it has {have}")
    };
    match dtype {
        DType::F32 | DType::C64 => {
            let need = if dtype == DType::C64 { count * 2 } else { count };
            check("float_data", p.float_data.len(), need)?;
            Ok(Buffer::copy_of(bytemuck::cast_slice(&p.float_data)))
        }
        DType::F64 | DType::C128 => {
            let need = if dtype == DType::C128 { count * 2 } else { count };
            check("double_data", p.double_data.len(), need)?;
            Ok(Buffer::copy_of(bytemuck::cast_slice(&p.double_data)))
        }
        DType::I64 => {
            check("int64_data", p.int64_data.len(), count)?;
            Ok(Buffer::copy_of(bytemuck::cast_slice(&p.int64_data)))
        }
        DType::U64 => {
            check("uint64_data", p.uint64_data.len(), count)?;
            Ok(Buffer::copy_of(bytemuck::cast_slice(&p.uint64_data)))
        }
        DType::U32 => {
            check("uint64_data", p.uint64_data.len(), count)?;
            let narrow = p.uint64_data.iter().map(|v| u32::try_from(*v));
            match narrow.collect::<Result<Vec<u32>, _>>() {
                Ok(v) => Ok(Buffer::copy_of(bytemuck::cast_slice(&v))),
                Err(_) => bail!(Format, "its `uint64_data` are no u32"),
            }
        }
        DType::I32 => {
            check("int32_data", p.int32_data.len(), count)?;
            Ok(Buffer::copy_of(bytemuck::cast_slice(&p.int32_data)))
        }
        _ => {
            check("int32_data", p.int32_data.len(), count)?;
            // Signed numbers, unsigned numbers and bit patterns all come in this field.
            let (low, high) = if dtype.size() == 1 { (-0x80, 0xFF) } else { (-0x8000, 0xFFFF) };
            if let Some(v) = p.int32_data.iter().find(|v| !(low..=high).contains(*v)) {
                bail!(Format, "its `int32_data` hold {v}, which is no {dtype}");
            }
            let size = dtype.size();
            let mut out = Buffer::zeroed(count * size);
            if let Some(bytes) = out.unique_bytes() {
                for (to, v) in bytes.chunks_exact_mut(size).zip(&p.int32_data) {
                    to.copy_from_slice(&v.to_le_bytes()[..size]);
                }
            }
            Ok(out)
        }
    }
}

/// Two elements of each byte, low half first, put one to a byte.
fn unpack(packed: &[u8], count: usize, dtype: DType) -> Buffer {
    let mut out = Buffer::zeroed(count);
    if let Some(bytes) = out.unique_bytes() {
        for (i, to) in bytes.iter_mut().enumerate() {
            let half = if i % 2 == 0 { packed[i / 2] & 15 } else { packed[i / 2] >> 4 };
            *to = if dtype == DType::I4 { (half ^ 8).wrapping_sub(8) } else { half };
        }
    }
    out
}

/// ONNX's name of a dtype number.
fn type_name(number: i32) -> String {
    match pb::tensor_proto::DataType::try_from(number) {
        Ok(known) => known.as_str_name().to_lowercase(),
        Err(_) => number.to_string(),
    }
}
