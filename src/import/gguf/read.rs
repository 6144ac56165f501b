//! The bytes of a GGUF file.

use std::collections::HashMap;

use super::{GgufArray, GgufFile, GgufMetadata, GgufTensor, GgufType, GgufValue};
use crate::error::{Result, bail, err};
use crate::import::Limits;
use crate::kernels::BlockFormat;
use crate::tensor::{Buffer, DType};

/// Where tensors start unless the file says otherwise.
const ALIGNMENT: u64 = 32;

/// The largest alignment that is believed.
const MAX_ALIGNMENT: u64 = 1 << 20;

/// Lists within lists of metadata.
const MAX_NESTING: usize = 4;

/// Types whose numbers lie one after the other, by their number in the file.
const PLAIN: &[(u32, DType)] = &[
    (0, DType::F32),
    (1, DType::F16),
    (24, DType::I8),
    (25, DType::I16),
    (26, DType::I32),
    (27, DType::I64),
    (28, DType::F64),
    (30, DType::BF16),
];

/// Types that are known by name and size only: number, name, weights and bytes of a block.
const NAMED: &[(u32, &str, usize, usize)] = &[
    (16, "IQ2_XXS", 256, 66),
    (17, "IQ2_XS", 256, 74),
    (18, "IQ3_XXS", 256, 98),
    (19, "IQ1_S", 256, 50),
    (21, "IQ3_S", 256, 110),
    (22, "IQ2_S", 256, 82),
    (29, "IQ1_M", 256, 56),
    (40, "NVFP4", 64, 36),
    (41, "Q1_0", 128, 18),
];

/// Types that the format once had; how they were laid out depends on the machine that wrote them.
const REMOVED: &[(u32, &str)] = &[
    (4, "Q4_2"),
    (5, "Q4_3"),
    (31, "Q4_0_4_4"),
    (32, "Q4_0_4_8"),
    (33, "Q4_0_8_8"),
    (36, "IQ4_NL_4_4"),
    (37, "IQ4_NL_4_8"),
    (38, "IQ4_NL_8_8"),
];

/// The reading end of a file.
struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    big_endian: bool,
    /// Version 1 counts with 32 bits.
    short: bool,
}

macro_rules! numbers {
    ($($name:ident $ty:ty;)*) => { $(
        fn $name(&mut self) -> Result<$ty> {
            let mut raw = [0; size_of::<$ty>()];
            raw.copy_from_slice(self.take(size_of::<$ty>())?);
            Ok(if self.big_endian { <$ty>::from_be_bytes(raw) } else { <$ty>::from_le_bytes(raw) })
        }
    )* };
}

impl<'a> Cursor<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(len).filter(|end| *end <= self.bytes.len());
        let Some(end) = end else {
            bail!(Format, "ends at byte {} within its header", self.bytes.len());
        };
        let out = &self.bytes[self.at..end];
        self.at = end;
        Ok(out)
    }

    numbers! {
        u8 u8; i8 i8; u16 u16; i16 i16; u32 u32; i32 i32; f32 f32; u64 u64; i64 i64; f64 f64;
    }

    /// A count of things of which each takes at least `least` bytes.
    fn count(&mut self, what: &str, least: usize) -> Result<usize> {
        let n = if self.short { u64::from(self.u32()?) } else { self.u64()? };
        let left = self.bytes.len() - self.at;
        match usize::try_from(n) {
            Ok(n) if n <= left / least => Ok(n),
            _ => bail!(Format, "claims {n} {what}, for which its {left} further bytes are too few"),
        }
    }

    /// The bytes of a text.
    fn raw_text(&mut self, what: &str) -> Result<&'a [u8]> {
        let len = self.count(what, 1)?;
        self.take(len)
    }

    /// A text that names something, and so must be UTF-8.
    fn name(&mut self, what: &str) -> Result<String> {
        let bytes = self.raw_text(what)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => {
                let start = String::from_utf8_lossy(&bytes[..bytes.len().min(80)]);
                bail!(Format, "has a name that is not UTF-8: {}", start.escape_debug())
            }
        }
    }

    fn truth(&mut self) -> Result<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            other => bail!(Format, "a truth value is {other}"),
        }
    }

    fn value(&mut self, kind: u32) -> Result<GgufValue> {
        use GgufValue::*;
        Ok(match kind {
            0 => U8(self.u8()?),
            1 => I8(self.i8()?),
            2 => U16(self.u16()?),
            3 => I16(self.i16()?),
            4 => U32(self.u32()?),
            5 => I32(self.i32()?),
            6 => F32(self.f32()?),
            7 => Bool(self.truth()?),
            8 => {
                let bytes = self.raw_text("bytes of a text")?;
                match std::str::from_utf8(bytes) {
                    Ok(text) => String(text.to_owned()),
                    Err(_) => Bytes(bytes.to_vec()),
                }
            }
            9 => Array(self.list(0)?),
            10 => U64(self.u64()?),
            11 => I64(self.i64()?),
            12 => F64(self.f64()?),
            other => bail!(Format, "a value is of type {other}, which the format does not have"),
        })
    }

    fn list(&mut self, depth: usize) -> Result<GgufArray> {
        use GgufArray::*;
        let kind = self.u32()?;
        // A list holds no more than the file: each element takes at least so many bytes there.
        let least = match kind {
            0 | 1 | 7 => 1,
            2 | 3 => 2,
            8 if self.short => 4,
            9 if self.short => 8,
            8 | 10..=12 => 8,
            9 => 12,
            _ => 4,
        };
        let n = self.count("elements of a list", least)?;
        macro_rules! read {
            ($variant:ident $read:ident) => {{
                let mut list = Vec::with_capacity(n);
                for _ in 0..n {
                    list.push(self.$read()?);
                }
                $variant(list)
            }};
        }
        Ok(match kind {
            0 => read!(U8 u8),
            1 => read!(I8 i8),
            2 => read!(U16 u16),
            3 => read!(I16 i16),
            4 => read!(U32 u32),
            5 => read!(I32 i32),
            6 => read!(F32 f32),
            7 => read!(Bool truth),
            8 => {
                // Elements are three times as large in memory: room is made as they are read.
                let mut texts = Vec::new();
                for _ in 0..n {
                    texts.push(self.raw_text("bytes of a text")?);
                }
                if texts.iter().all(|t| std::str::from_utf8(t).is_ok()) {
                    String(
                        texts
                            .iter()
                            .map(|t| std::string::String::from_utf8_lossy(t).into())
                            .collect(),
                    )
                } else {
                    Bytes(texts.iter().map(|t| t.to_vec()).collect())
                }
            }
            9 => {
                if depth + 1 == MAX_NESTING {
                    bail!(Limit, "has lists within lists more than {MAX_NESTING} deep");
                }
                let mut lists = Vec::new();
                for _ in 0..n {
                    lists.push(self.list(depth + 1)?);
                }
                Array(lists)
            }
            10 => read!(U64 u64),
            11 => read!(I64 i64),
            12 => read!(F64 f64),
            other => bail!(Format, "a list is of type {other}, which the format does not have"),
        })
    }
}

pub(super) fn file(bytes: Buffer, limits: &Limits) -> Result<GgufFile> {
    let all = bytes.as_bytes();
    let mut c = Cursor { bytes: all, at: 0, big_endian: false, short: false };
    if c.take(4).ok() != Some(b"GGUF".as_slice()) {
        let it = super::super::describe_magic(all);
        return Err(err!(Format, "is not a GGUF file{it}"));
    }
    let mut version = c.u32()?;
    // The version is small, so that its place shows the byte order.
    if version & 0xFFFF == 0 && version != 0 {
        c.big_endian = true;
        version = version.swap_bytes();
    }
    c.short = version == 1;
    if !(1..=3).contains(&version) {
        return Err(err!(Unsupported, "is of GGUF version {version}; 1 to 3 can be read"));
    }
    // A tensor takes a name's length, a count of axes, a type and an offset; a value a key's
    // length, a type and a byte.
    let tensors = c.count("tensors", if c.short { 20 } else { 24 })?;
    let values = c.count("values of metadata", if c.short { 9 } else { 13 })?;
    let metadata = metadata(&mut c, values)?;
    let alignment = alignment(&metadata)?;
    let mut found = Vec::new();
    for number in 0..tensors {
        let read = info(&mut c, limits);
        found.push(read.map_err(|e| e.within(&format!("tensor {number} of {tensors}")))?);
    }
    // Where there are no tensors nothing needs to lie at the end of the header.
    let start = (c.at as u64).next_multiple_of(alignment);
    let (big_endian, tensors) = (c.big_endian, place(found, start, alignment, all.len())?);
    let mut index = HashMap::new();
    for (at, tensor) in tensors.iter().enumerate() {
        if index.insert(tensor.name.clone(), at).is_some() {
            bail!(Duplicate, "has two tensors named `{}`", tensor.name);
        }
    }
    Ok(GgufFile { bytes, version, big_endian, metadata, tensors, index })
}

fn metadata(c: &mut Cursor<'_>, values: usize) -> Result<GgufMetadata> {
    let mut metadata = GgufMetadata::default();
    for _ in 0..values {
        let key = c.name("bytes of a key")?;
        let value = c
            .u32()
            .and_then(|kind| c.value(kind))
            .map_err(|e| e.within(&format!("metadata `{key}`")))?;
        if metadata.insert(key.clone(), value).is_some() {
            bail!(Duplicate, "has `{key}` twice in its metadata");
        }
    }
    Ok(metadata)
}

fn alignment(metadata: &GgufMetadata) -> Result<u64> {
    let Some(value) = metadata.get("general.alignment") else {
        return Ok(ALIGNMENT);
    };
    match value.as_u64() {
        Some(n) if n.is_power_of_two() && n <= MAX_ALIGNMENT => Ok(n),
        _ => bail!(
            Format,
            "has general.alignment {value:?}; a power of two up to {MAX_ALIGNMENT} is expected"
        ),
    }
}

/// What the header says of one tensor, whose offset still counts from the start of the data.
fn info(c: &mut Cursor<'_>, limits: &Limits) -> Result<(GgufTensor, u64)> {
    let name = c.name("bytes of a name")?;
    let within = |e: crate::Error| e.within(&format!("`{name}`"));
    let rank = c.u32()? as usize;
    limits.check_rank(rank).map_err(within)?;
    let mut shape = Vec::with_capacity(rank);
    let mut elements = 1_usize;
    for _ in 0..rank {
        let extent = if c.short { u64::from(c.u32()?) } else { c.u64()? };
        let extent = usize::try_from(extent)
            .map_err(|_| err!(Format, "`{name}` has an extent of {extent}"))?;
        shape.push(extent);
        elements = elements
            .checked_mul(extent)
            .ok_or_else(|| err!(Format, "`{name}` has more elements than can be counted"))?;
    }
    let kind = c.u32()?;
    let offset = c.u64()?;
    let (stored, unit, unit_bytes) = stored(kind).map_err(within)?;
    let inner = shape.first().copied().unwrap_or(1);
    if !inner.is_multiple_of(unit) {
        bail!(
            Format,
            "`{name}` has rows of {inner} elements, which are no whole blocks of {unit} ({})",
            stored.name()
        );
    }
    let bytes = (elements / unit)
        .checked_mul(unit_bytes)
        .ok_or_else(|| err!(Format, "`{name}` has more bytes than can be counted"))?;
    limits.check_tensor(bytes, &|| format!("`{name}`"))?;
    shape.reverse();
    Ok((GgufTensor { name, shape, stored, offset: 0, bytes }, offset))
}

/// A type by its number, with the elements and the bytes of its unit.
fn stored(kind: u32) -> Result<(GgufType, usize, usize)> {
    if let Some(&(_, dtype)) = PLAIN.iter().find(|row| row.0 == kind) {
        return Ok((GgufType::Plain(dtype), 1, dtype.size()));
    }
    if let Some(format) = BlockFormat::from_gguf(kind) {
        return Ok((GgufType::Blocks(format), format.weights, format.bytes));
    }
    if let Some(&(_, name, weights, bytes)) = NAMED.iter().find(|row| row.0 == kind) {
        return Ok((GgufType::Unsupported(name), weights, bytes));
    }
    if let Some((_, name)) = REMOVED.iter().find(|row| row.0 == kind) {
        return Err(err!(Unsupported, "is stored as {name}, which the format has no more")
            .with_help("get the model as Q4_0: programs repack it as they load it"));
    }
    bail!(Unsupported, "is stored as type {kind}, which is not known here")
}

/// Gives each tensor its place in the file, and checks that none lies outside or over another.
fn place(
    found: Vec<(GgufTensor, u64)>,
    start: u64,
    alignment: u64,
    len: usize,
) -> Result<Vec<GgufTensor>> {
    let mut tensors = Vec::with_capacity(found.len());
    for (mut tensor, offset) in found {
        let name = &tensor.name;
        if !offset.is_multiple_of(alignment) {
            bail!(Format, "tensor `{name}` starts at {offset}, no multiple of {alignment}");
        }
        let at = start.checked_add(offset).and_then(|at| usize::try_from(at).ok());
        let end = at.and_then(|at| at.checked_add(tensor.bytes));
        match (at, end) {
            (Some(at), Some(end)) if end <= len => tensor.offset = at,
            _ => {
                return Err(err!(
                    Format,
                    "tensor `{name}` takes {} bytes from {offset} on, past the end of the file of {len}",
                    tensor.bytes
                )
                .with_help("the file is truncated: get it again"));
            }
        }
        tensors.push(tensor);
    }
    let mut by_place: Vec<&GgufTensor> = tensors.iter().filter(|t| t.bytes > 0).collect();
    by_place.sort_by_key(|t| t.offset);
    for pair in by_place.windows(2) {
        if pair[0].offset + pair[0].bytes > pair[1].offset {
            bail!(Format, "tensors `{}` and `{}` overlap", pair[0].name, pair[1].name);
        }
    }
    Ok(tensors)
}
