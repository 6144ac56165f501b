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
        weights.copy_of(&raw)
    } else {
        typed(&proto, dtype, if four_bits { packed } else { count })?
    };
    let buffer = if four_bits { unpack(stored.as_bytes(), count, dtype)? } else { stored };
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
            Ok(Buffer::copy_of_weights(bytemuck::cast_slice(&p.float_data)))
        }
        DType::F64 | DType::C128 => {
            let need = if dtype == DType::C128 { count * 2 } else { count };
            check("double_data", p.double_data.len(), need)?;
            Ok(Buffer::copy_of_weights(bytemuck::cast_slice(&p.double_data)))
        }
        DType::I64 => {
            check("int64_data", p.int64_data.len(), count)?;
            Ok(Buffer::copy_of_weights(bytemuck::cast_slice(&p.int64_data)))
        }
        DType::U64 => {
            check("uint64_data", p.uint64_data.len(), count)?;
            Ok(Buffer::copy_of_weights(bytemuck::cast_slice(&p.uint64_data)))
        }
        DType::U32 => {
            check("uint64_data", p.uint64_data.len(), count)?;
            let narrow = p.uint64_data.iter().map(|v| u32::try_from(*v));
            match narrow.collect::<Result<Vec<u32>, _>>() {
                Ok(v) => Ok(Buffer::copy_of_weights(bytemuck::cast_slice(&v))),
                Err(_) => bail!(Format, "its `uint64_data` are no u32"),
            }
        }
        DType::I32 => {
            check("int32_data", p.int32_data.len(), count)?;
            Ok(Buffer::copy_of_weights(bytemuck::cast_slice(&p.int32_data)))
        }
        _ => {
            check("int32_data", p.int32_data.len(), count)?;
            // Signed numbers, unsigned numbers and bit patterns all come in this field.
            let (low, high) = if dtype.size() == 1 { (-0x80, 0xFF) } else { (-0x8000, 0xFFFF) };
            if let Some(v) = p.int32_data.iter().find(|v| !(low..=high).contains(*v)) {
                bail!(Format, "its `int32_data` hold {v}, which is no {dtype}");
            }
            let size = dtype.size();
            let mut out = Buffer::zeroed(count * size)?;
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
fn unpack(packed: &[u8], count: usize, dtype: DType) -> Result<Buffer> {
    let mut out = Buffer::zeroed(count)?;
    if let Some(bytes) = out.unique_bytes() {
        for (i, to) in bytes.iter_mut().enumerate() {
            let half = if i % 2 == 0 { packed[i / 2] & 15 } else { packed[i / 2] >> 4 };
            *to = if dtype == DType::I4 { (half ^ 8).wrapping_sub(8) } else { half };
        }
    }
    Ok(out)
}

/// ONNX's name of a dtype number.
pub(super) fn type_name(number: i32) -> String {
    match pb::tensor_proto::DataType::try_from(number) {
        Ok(known) => known.as_str_name().to_lowercase(),
        Err(_) => number.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::import::WeightCache;

    fn parse(proto: pb::TensorProto) -> Result<Tensor> {
        read(proto, &mut Weights::new(None, &WeightCache::new()), &Limits::default())
    }

    fn proto(dtype: DType, dims: &[i64]) -> pb::TensorProto {
        let (dims, data_type) = (dims.to_vec(), Some(dtype as i32));
        pb::TensorProto { dims, data_type, ..Default::default() }
    }

    fn ints(dtype: DType, data: &[i32]) -> Result<Tensor> {
        let p = proto(dtype, &[data.len() as i64]);
        parse(pb::TensorProto { int32_data: data.to_vec(), ..p })
    }

    #[test]
    fn narrow_types_come_in_the_field_of_whole_numbers() {
        let half = i32::from(f16::from_f32(1.5).to_bits());
        assert_eq!(ints(DType::F16, &[half]).unwrap().item::<f16>().unwrap().to_f32(), 1.5);
        let half = i32::from(bf16::from_f32(-2.0).to_bits());
        assert_eq!(ints(DType::BF16, &[half]).unwrap().item::<bf16>().unwrap().to_f32(), -2.0);
        assert_eq!(ints(DType::I8, &[-128, 127]).unwrap().as_slice::<i8>().unwrap(), [-128, 127]);
        assert_eq!(ints(DType::U8, &[0, 255]).unwrap().as_slice::<u8>().unwrap(), [0, 255]);
        assert_eq!(ints(DType::I16, &[-300]).unwrap().as_slice::<i16>().unwrap(), [-300]);
        assert_eq!(ints(DType::U16, &[65535]).unwrap().as_slice::<u16>().unwrap(), [65535]);
        assert_eq!(ints(DType::I32, &[-7]).unwrap().as_slice::<i32>().unwrap(), [-7]);
        assert_eq!(ints(DType::Bool, &[1, 0]).unwrap().as_slice::<bool>().unwrap(), [true, false]);
        assert!(ints(DType::Bool, &[2]).is_err());
        assert!(ints(DType::U8, &[256]).is_err());
        assert!(ints(DType::F16, &[1 << 16]).is_err());
    }

    #[test]
    fn wide_types_have_fields_of_their_own() {
        let p = pb::TensorProto { int64_data: vec![i64::MIN], ..proto(DType::I64, &[1]) };
        assert_eq!(parse(p).unwrap().item::<i64>().unwrap(), i64::MIN);
        let p = pb::TensorProto { uint64_data: vec![u64::MAX], ..proto(DType::U64, &[]) };
        assert_eq!(parse(p.clone()).unwrap().item::<u64>().unwrap(), u64::MAX);
        assert!(parse(pb::TensorProto { data_type: Some(DType::U32 as i32), ..p }).is_err());
        let p = pb::TensorProto { uint64_data: vec![9], ..proto(DType::U32, &[1, 1]) };
        assert_eq!(parse(p).unwrap().item::<u32>().unwrap(), 9);
        let p = pb::TensorProto { double_data: vec![0.1], ..proto(DType::F64, &[1]) };
        assert_eq!(parse(p).unwrap().item::<f64>().unwrap(), 0.1);
        let p = pb::TensorProto { float_data: vec![1.0, 2.0], ..proto(DType::C64, &[1]) };
        assert_eq!(parse(p).unwrap().bytes(), 8);
        let string_data = vec![Bytes::from("a"), Bytes::from("ß")];
        let p = pb::TensorProto { string_data, ..proto(DType::String, &[2]) };
        assert_eq!(parse(p.clone()).unwrap().as_strings().unwrap()[1], "ß");
        let bad = pb::TensorProto { string_data: vec![Bytes::from(&b"\xff"[..]); 2], ..p };
        assert_eq!(parse(bad).unwrap_err().kind(), crate::ErrorKind::Unsupported);
    }

    #[test]
    fn four_bit_elements_are_put_one_to_a_byte() {
        // 1, -8, 7, -1 and 3 as they are packed: the first in the low half.
        let raw_data = Some(Bytes::from(vec![0x81, 0xF7, 0x03]));
        let p = pb::TensorProto { raw_data, ..proto(DType::I4, &[5]) };
        assert_eq!(parse(p).unwrap().as_bytes(), [1, 0xF8, 7, 0xFF, 3]);
        let p = pb::TensorProto { int32_data: vec![0x81, 0xF7], ..proto(DType::U4, &[2, 2]) };
        assert_eq!(parse(p).unwrap().as_bytes(), [1, 8, 7, 15]);
    }

    #[test]
    fn sizes_must_agree() {
        let raw = |n: usize| Some(Bytes::from(vec![0; n]));
        for (dims, bytes, fits) in
            [(&[2, 3][..], 24, true), (&[2, 3], 23, false), (&[], 4, true), (&[0], 0, true)]
        {
            let p = pb::TensorProto { raw_data: raw(bytes), ..proto(DType::F32, dims) };
            assert_eq!(parse(p).is_ok(), fits, "{dims:?} {bytes}");
        }
        for dims in [&[-1][..], &[i64::MAX, i64::MAX], &[1 << 40], &[3], &[1; 100]] {
            let p = pb::TensorProto { float_data: vec![0.0; 2], ..proto(DType::F32, dims) };
            assert!(parse(p).is_err(), "{dims:?}");
        }
        let segment = Some(pb::tensor_proto::Segment { begin: Some(0), end: Some(1) });
        let p = pb::TensorProto { segment, ..proto(DType::F32, &[0]) };
        assert_eq!(parse(p).unwrap_err().kind(), crate::ErrorKind::Unsupported);
        assert!(parse(pb::TensorProto::default()).is_err());
    }
}
