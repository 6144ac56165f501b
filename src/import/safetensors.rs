//! safetensors files: a JSON header with names, dtypes, shapes and places, then the bytes.
//!
//! From the format's specification (huggingface/safetensors, README, "Format"). Everything is
//! checked against the file's size; tensors must not overlap, leave gaps, or share a name.

#![forbid(unsafe_code)]

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

use super::Limits;
use crate::error::{Result, bail, err};
use crate::tensor::{Buffer, DType, Tensor};

/// Bytes of a header that are read.
pub(crate) const MAX_HEADER: u64 = 100_000_000;

/// The dtypes of the format: name, bits of an element, and what they are here, if anything.
const DTYPES: &[(&str, usize, Option<DType>)] = &[
    ("F64", 64, Some(DType::F64)),
    ("F32", 32, Some(DType::F32)),
    ("F16", 16, Some(DType::F16)),
    ("BF16", 16, Some(DType::BF16)),
    ("I64", 64, Some(DType::I64)),
    ("I32", 32, Some(DType::I32)),
    ("I16", 16, Some(DType::I16)),
    ("I8", 8, Some(DType::I8)),
    ("U64", 64, Some(DType::U64)),
    ("U32", 32, Some(DType::U32)),
    ("U16", 16, Some(DType::U16)),
    ("U8", 8, Some(DType::U8)),
    ("BOOL", 8, Some(DType::Bool)),
    ("F8_E4M3", 8, Some(DType::F8E4M3FN)),
    ("F8_E5M2", 8, Some(DType::F8E5M2)),
    ("F8_E4M3FNUZ", 8, Some(DType::F8E4M3FNUZ)),
    ("F8_E5M2FNUZ", 8, Some(DType::F8E5M2FNUZ)),
    ("C64", 64, Some(DType::C64)),
    ("F8_E8M0", 8, None),
    ("F6_E2M3", 6, None),
    ("F6_E3M2", 6, None),
    ("F4", 4, None),
];

/// A tensor of a safetensors file.
#[derive(Clone, Debug)]
pub struct SafetensorsTensor {
    /// Its name.
    pub name: String,
    /// Its dtype as the format calls it, such as `BF16`.
    pub stored: &'static str,
    /// Its dtype; `None` for one that the format has and tensors here have not.
    pub dtype: Option<DType>,
    /// Its extents.
    pub shape: Vec<usize>,
    /// Where it starts in the file.
    pub offset: usize,
    /// Bytes that it takes there.
    pub bytes: usize,
}

/// A safetensors file, parsed: its tensors stay where they are until they are asked for.
#[derive(Clone, Debug)]
pub struct SafetensorsFile {
    bytes: Buffer,
    metadata: BTreeMap<String, String>,
    tensors: Vec<SafetensorsTensor>,
    index: HashMap<String, usize>,
}

/// The pairs of an object in their order, also where a key comes twice.
pub(super) struct Pairs<V>(pub(super) Vec<(String, V)>);

impl<'de, V: Deserialize<'de>> Deserialize<'de> for Pairs<V> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Seen<V>(PhantomData<V>);
        impl<'de, V: Deserialize<'de>> Visitor<'de> for Seen<V> {
            type Value = Pairs<V>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<V>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(pair) = map.next_entry()? {
                    pairs.push(pair);
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Seen(PhantomData))
    }
}

/// The header: what it says of the file, and its tensors in their order.
#[derive(Default)]
struct Header {
    metadata: Option<Vec<(String, String)>>,
    tensors: Vec<(String, Entry)>,
}

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let mut header = Header::default();
                while let Some(name) = map.next_key::<String>()? {
                    let within = |e: A::Error| A::Error::custom(format!("tensor `{name}`: {e}"));
                    if name == "__metadata__" {
                        let pairs = map.next_value::<Pairs<String>>()?;
                        if header.metadata.replace(pairs.0).is_some() {
                            return Err(A::Error::custom("`__metadata__` comes twice"));
                        }
                    } else {
                        let entry = map.next_value().map_err(within)?;
                        header.tensors.push((name, entry));
                    }
                }
                Ok(header)
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// One tensor of the header.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

impl SafetensorsFile {
    /// Maps and parses a file.
    ///
    /// # Errors
    /// If it cannot be read, or is no well-formed safetensors file; the message names the file and
    /// the tensor.
    ///
    /// ```
    /// use brigade::import::{Limits, SafetensorsFile};
    /// let error = SafetensorsFile::open("no/such.safetensors", &Limits::default()).unwrap_err();
    /// assert!(error.to_string().contains("no/such.safetensors"));
    /// ```
    pub fn open(path: impl AsRef<Path>, limits: &Limits) -> Result<Self> {
        let path = path.as_ref();
        super::map_file(path)
            .and_then(|bytes| Self::parse(bytes, limits))
            .map_err(|e| e.within(&format!("`{}`", path.display())))
    }

    /// Parses the bytes of a file.
    ///
    /// # Errors
    /// If they are no well-formed safetensors file.
    pub fn parse(bytes: Buffer, limits: &Limits) -> Result<Self> {
        let all = bytes.as_bytes();
        let Some((size, rest)) = all.split_first_chunk::<8>() else {
            bail!(Format, "has {} bytes, too few for a safetensors file", all.len());
        };
        let size = u64::from_le_bytes(*size);
        let header = usize::try_from(size).ok().filter(|_| size <= MAX_HEADER);
        let Some(text) = header.and_then(|size| rest.get(..size)) else {
            let it = super::describe_magic(all);
            return Err(err!(
                Format,
                "claims a header of {size} bytes, for which its {} bytes are too few{it}",
                all.len()
            ));
        };
        if text.first() != Some(&b'{') {
            let it = super::describe_magic(all);
            return Err(err!(Format, "is not a safetensors file{it}"));
        }
        let header: Header = serde_json::from_slice(text)
            .map_err(|e| err!(Format, "has a header that is not well formed").with_source(e))?;
        let start = 8 + text.len();
        let mut metadata = BTreeMap::new();
        for (key, value) in header.metadata.into_iter().flatten() {
            if metadata.insert(key.clone(), value).is_some() {
                bail!(Duplicate, "has `{key}` twice in its `__metadata__`");
            }
        }
        let mut tensors = Vec::with_capacity(header.tensors.len());
        let mut index = HashMap::new();
        for (name, value) in header.tensors {
            let tensor = entry(&name, value, start, all.len(), limits)
                .map_err(|e| e.within(&format!("tensor `{name}`")))?;
            if index.insert(name.clone(), tensors.len()).is_some() {
                bail!(Duplicate, "has two tensors named `{name}`");
            }
            tensors.push(tensor);
        }
        covered(&tensors, start, all.len())?;
        Ok(Self { bytes, metadata, tensors, index })
    }

    /// What the file says of itself.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The tensors, in the order of the header.
    pub fn tensors(&self) -> &[SafetensorsTensor] {
        &self.tensors
    }

    /// The tensor with this name, if it is there.
    pub fn find(&self, name: &str) -> Option<&SafetensorsTensor> {
        self.index.get(name).map(|&at| &self.tensors[at])
    }

    /// The tensor with this name.
    ///
    /// # Errors
    /// If there is none; lists names that are close.
    pub fn tensor(&self, name: &str) -> Result<&SafetensorsTensor> {
        self.find(name).ok_or_else(|| {
            let names = self.tensors.iter().map(|t| t.name.as_str());
            err!(UnknownName, "there is no tensor `{name}`").with_help(super::closest(name, names))
        })
    }

    /// A handle on the bytes of a tensor as they lie in the file.
    ///
    /// # Errors
    /// If the tensor is of another file.
    pub fn bytes(&self, tensor: &SafetensorsTensor) -> Result<Buffer> {
        self.bytes
            .range(tensor.offset, tensor.bytes)
            .ok_or_else(|| err!(Format, "tensor `{}` lies outside of the file", tensor.name))
    }

    /// A tensor as an array, without a copy where the file is aligned.
    ///
    /// # Errors
    /// If arrays cannot have its dtype.
    pub fn array(&self, tensor: &SafetensorsTensor) -> Result<Tensor> {
        let within = |e: crate::Error| e.within(&format!("tensor `{}`", tensor.name));
        let Some(dtype) = tensor.dtype else {
            return Err(err!(
                Unsupported,
                "tensor `{}` is of dtype {}, which is not known here",
                tensor.name,
                tensor.stored
            )
            .with_help("save the tensor as BF16 or F32"));
        };
        let bytes = self.bytes(tensor)?;
        Tensor::from_buffer(dtype, tensor.shape.as_slice(), bytes).map_err(within)
    }
}

fn entry(
    name: &str,
    entry: Entry,
    start: usize,
    len: usize,
    limits: &Limits,
) -> Result<SafetensorsTensor> {
    let Some(&(stored, bits, dtype)) = DTYPES.iter().find(|row| row.0 == entry.dtype) else {
        bail!(Unsupported, "is of dtype {}, which is not known here", entry.dtype);
    };
    limits.check_rank(entry.shape.len())?;
    let mut shape = Vec::with_capacity(entry.shape.len());
    // Bits: twice as many as the largest size of a tensor cannot overflow 128 of them.
    let mut need = bits as u128;
    for extent in entry.shape {
        let known = usize::try_from(extent).ok();
        let product = need.checked_mul(u128::from(extent)).filter(|n| *n < 1 << 66);
        let (Some(extent), Some(product)) = (known, product) else {
            bail!(Format, "has a shape that is larger than memory");
        };
        shape.push(extent);
        need = product;
    }
    if !need.is_multiple_of(8) {
        bail!(Format, "takes {need} bits, which are no whole bytes");
    }
    let need = usize::try_from(need / 8).map_err(|_| err!(Format, "is larger than memory"))?;
    limits.check_tensor(need, &|| "it".to_owned())?;
    let [from, to] = entry.data_offsets;
    let place = usize::try_from(from).ok().zip(usize::try_from(to).ok());
    let place = place.filter(|(from, to)| from <= to);
    let end = place.and_then(|(_, to)| start.checked_add(to)).filter(|end| *end <= len);
    let (Some((from, to)), Some(_)) = (place, end) else {
        return Err(err!(
            Format,
            "lies at bytes {from}..{to} of data, of which there are {}",
            len.saturating_sub(start)
        )
        .with_help("the file is truncated: get it again"));
    };
    if to - from != need {
        bail!(Format, "takes {need} bytes by its dtype and shape, but {} are given", to - from);
    }
    let name = name.to_owned();
    Ok(SafetensorsTensor { name, stored, dtype, shape, offset: start + from, bytes: need })
}

/// Checks that the tensors lie side by side from the start of the data to the end of the file.
fn covered(tensors: &[SafetensorsTensor], start: usize, len: usize) -> Result<()> {
    let mut by_place: Vec<&SafetensorsTensor> = tensors.iter().collect();
    by_place.sort_by_key(|t| (t.offset, t.bytes));
    let mut at = start;
    let mut before = "the header";
    for tensor in by_place {
        if tensor.offset < at {
            bail!(Format, "tensor `{}` overlaps with `{before}`", tensor.name);
        }
        if tensor.offset > at {
            bail!(
                Format,
                "bytes {at}..{} before tensor `{}` belong to none",
                tensor.offset,
                tensor.name
            );
        }
        (at, before) = (tensor.offset + tensor.bytes, &tensor.name);
    }
    if at < len {
        bail!(Format, "its last {} bytes belong to no tensor", len - at);
    }
    Ok(())
}

/// Parses `bytes`, reads every tensor, and drops the outcome; for fuzzing.
#[doc(hidden)]
pub fn fuzz_safetensors(bytes: &[u8]) {
    let limits = Limits { max_bytes: 1 << 20, max_tensor_bytes: 1 << 20, ..Limits::default() };
    if let Ok(file) = SafetensorsFile::parse(Buffer::copy_of(bytes), &limits) {
        for tensor in file.tensors() {
            let _ = file.array(tensor);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    /// A file with this header and so many bytes of data.
    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut out = (header.len() as u64).to_le_bytes().to_vec();
        out.extend(header.as_bytes());
        out.extend((0..data).map(|i| i as u8));
        out
    }

    fn parse(bytes: &[u8]) -> Result<SafetensorsFile> {
        SafetensorsFile::parse(Buffer::copy_of(bytes), &Limits::default())
    }

    const TWO: &str = r#"{"__metadata__":{"format":"pt"},
        "a":{"dtype":"U8","shape":[2,3],"data_offsets":[0,6]},
        "none":{"dtype":"F32","shape":[0,4],"data_offsets":[6,6]},
        "b.w":{"dtype":"I16","shape":[2],"data_offsets":[6,10]}}"#;

    #[test]
    fn tensors_are_read_where_they_lie() {
        let file = parse(&file(TWO, 10)).unwrap();
        assert_eq!(file.metadata()["format"], "pt");
        assert_eq!(file.tensors().len(), 3);
        let a = file.array(file.tensor("a").unwrap()).unwrap();
        assert_eq!(
            (a.shape().to_vec(), a.as_slice::<u8>().unwrap()),
            (vec![2, 3], &[0, 1, 2, 3, 4, 5][..])
        );
        let b = file.array(file.tensor("b.w").unwrap()).unwrap();
        assert_eq!(b.as_slice::<i16>().unwrap(), [0x0706, 0x0908]);
        assert!(file.array(file.tensor("none").unwrap()).unwrap().is_empty());
        let error = file.tensor("c.w").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::UnknownName);
    }

    /// Scenario 37: offsets out of range, overlapping, duplicate names, shape and bytes that differ.
    #[test]
    fn scenario_37_files_that_contradict_themselves_are_refused_by_name() {
        let t = |dtype: &str, shape: &str, from: u64, to: u64| {
            format!(r#"{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{from},{to}]}}"#)
        };
        let one = |x: String| format!(r#"{{"bad":{x}}}"#);
        let two = |x: String, y: String| format!(r#"{{"good":{x},"bad":{y}}}"#);
        let huge = u64::MAX;
        let cases = [
            (one(t("U8", "[4]", 0, 5)), 4, "`bad`"),
            (one(t("U8", "[4]", 0, 4)), 3, "`bad`"),
            (one(t("F32", "[4]", 0, 4)), 4, "`bad`"),
            (one(t("F32", "[7]", 0, 7)), 7, "`bad`"),
            (one(t("U8", "[4]", 4, 0)), 4, "`bad`"),
            (one(t("U8", "[4]", 1, 5)), 5, "`bad`"),
            (one(t("U8", "[4]", huge - 4, huge)), 4, "`bad`"),
            (one(t("F32", &format!("[{huge},{huge}]"), 0, 4)), 4, "`bad`"),
            (one(t("F32", "[4294967296,4294967296]", 0, 0)), 0, "`bad`"),
            (one(t("U8", "[-1]", 0, 1)), 1, "`bad`"),
            (one(t("X9", "[1]", 0, 1)), 1, "X9"),
            (two(t("U8", "[4]", 0, 4), t("U8", "[4]", 2, 6)), 6, "`bad`"),
            (two(t("U8", "[2]", 0, 2), t("U8", "[2]", 3, 5)), 5, "`bad`"),
            (one(t("U8", "[2]", 0, 2)), 3, "1 bytes"),
            (
                format!(r#"{{"bad":{},"bad":{}}}"#, t("U8", "[1]", 0, 1), t("U8", "[1]", 1, 2)),
                2,
                "`bad`",
            ),
            ("[]".to_owned(), 0, "safetensors"),
            ("{\"a\":".to_owned(), 0, "not well formed"),
            ("{\"bad\":7}".to_owned(), 0, "`bad`"),
            (
                r#"{"bad":{"dtype":"U8","dtype":"F32","shape":[],"data_offsets":[0,1]}}"#
                    .to_owned(),
                1,
                "duplicate field `dtype`",
            ),
            (
                r#"{"bad":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":0}}"#.to_owned(),
                1,
                "`x`",
            ),
            (r#"{"__metadata__":{"k":"1","k":"2"}}"#.to_owned(), 0, "`k`"),
            (r#"{"__metadata__":{},"__metadata__":{}}"#.to_owned(), 0, "twice"),
            (one(t("F4", "[3]", 0, 2)), 2, "whole bytes"),
        ];
        for (header, data, named) in cases {
            let error = parse(&file(&header, data)).unwrap_err().to_string();
            assert!(error.contains(named), "{header}: {error}");
        }
    }

    /// Scenario 36: each number of the header in turn is one that the file cannot hold.
    #[test]
    fn scenario_36_absurd_numbers_are_refused_by_name_before_memory_is_taken() {
        let digits: Vec<(usize, char)> =
            TWO.char_indices().filter(|(_, c)| c.is_ascii_digit()).collect();
        for (at, _) in digits {
            for number in
                ["4294967296", "9223372036854775808", "18446744073709551615", "1e300", "-1"]
            {
                // The digits of dtypes are no numbers.
                if TWO[..at].ends_with(['U', 'F', 'I'])
                    || TWO[..at].ends_with(|c: char| c.is_ascii_digit())
                {
                    continue;
                }
                let rest = TWO[at..].trim_start_matches(|c: char| c.is_ascii_digit());
                let header = format!("{}{number}{rest}", &TWO[..at]);
                match parse(&file(&header, 10)) {
                    // The shape of an empty tensor may have any other extent.
                    Ok(f) => assert_eq!(f.tensor("none").unwrap().bytes, 0, "{header}"),
                    Err(e) => assert!(e.to_string().contains("tensor `"), "{header}: {e}"),
                }
            }
        }
        let small =
            r#"{"big":{"dtype":"F32","shape":[65536,65536],"data_offsets":[0,17179869184]}}"#;
        let bytes = file(small, 64);
        assert!(bytes.len() < 160);
        assert!(parse(&bytes).unwrap_err().to_string().contains("`big`"));
    }

    #[test]
    fn every_truncation_and_many_mutations_end_in_a_file_or_an_error() {
        let whole = file(TWO, 10);
        for end in 0..whole.len() {
            assert!(parse(&whole[..end]).is_err(), "cut at {end}");
        }
        let mut random = crate::import::mutate::Mutator::new(0x5AFE);
        for _ in 0..20_000 {
            fuzz_safetensors(&random.mutate(&whole));
        }
        // A header that claims 2^60 bytes.
        let mut claim = whole;
        claim[..8].copy_from_slice(&(1_u64 << 60).to_le_bytes());
        assert_eq!(parse(&claim).unwrap_err().kind(), ErrorKind::Format);
    }
}
