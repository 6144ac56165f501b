//! GGUF files: named tensors, many of them quantised in blocks, and metadata.
//!
//! Versions 1 to 3 in either byte order, from the specification (ggml-org/ggml, `docs/gguf.md`).
//! Everything that the file says of itself is checked against the file's size before memory is
//! taken for it.

#![forbid(unsafe_code)]

mod metadata;
mod read;
#[cfg(test)]
pub(crate) mod write;

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::path::Path;

use crate::error::{Result, bail, err};
use crate::import::Limits;
use crate::kernels::BlockFormat;
use crate::tensor::{Buffer, DType, Tensor};

pub use metadata::{GgufArray, GgufMetadata, GgufValue};

/// How the numbers of a GGUF tensor are stored.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum GgufType {
    /// One after the other.
    Plain(DType),
    /// In blocks.
    Blocks(&'static BlockFormat),
    /// In blocks of a format that is known by name only.
    Unsupported(&'static str),
}

impl GgufType {
    /// The name, as GGUF tools print it.
    pub fn name(self) -> String {
        match self {
            Self::Plain(dtype) => dtype.name().to_uppercase(),
            Self::Blocks(format) => format.name.to_owned(),
            Self::Unsupported(name) => name.to_owned(),
        }
    }
}

/// A tensor of a GGUF file.
#[derive(Clone, Debug)]
pub struct GgufTensor {
    /// Its name.
    pub name: String,
    /// Its extents, the outermost first (in the file they stand the other way round).
    pub shape: Vec<usize>,
    /// How it is stored.
    pub stored: GgufType,
    /// Where it starts in the file.
    pub offset: usize,
    /// Bytes that it takes there.
    pub bytes: usize,
}

impl GgufTensor {
    /// How many numbers it holds.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// A GGUF file, parsed: its tensors stay where they are until they are asked for.
#[derive(Clone, Debug)]
pub struct GgufFile {
    bytes: Buffer,
    version: u32,
    big_endian: bool,
    metadata: GgufMetadata,
    tensors: Vec<GgufTensor>,
    index: HashMap<String, usize>,
}

impl GgufFile {
    /// Maps and parses a file.
    ///
    /// # Errors
    /// If it cannot be read, or is no well-formed GGUF file; the message names the file and what is
    /// wrong in it.
    ///
    /// ```
    /// use brigade::import::{GgufFile, Limits};
    /// let error = GgufFile::open("no/such/file.gguf", &Limits::default()).unwrap_err();
    /// assert!(error.to_string().contains("no/such/file.gguf"));
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
    /// If they are no well-formed GGUF file.
    pub fn parse(bytes: Buffer, limits: &Limits) -> Result<Self> {
        read::file(bytes, limits)
    }

    /// The version of the format.
    pub fn version(&self) -> u32 {
        self.version
    }

    /// Whether its numbers are big-endian.
    pub fn is_big_endian(&self) -> bool {
        self.big_endian
    }

    /// What the file says of the model.
    pub fn metadata(&self) -> &GgufMetadata {
        &self.metadata
    }

    /// The tensors, in the order of the file.
    pub fn tensors(&self) -> &[GgufTensor] {
        &self.tensors
    }

    /// The tensor with this name, if it is there.
    pub fn find(&self, name: &str) -> Option<&GgufTensor> {
        self.index.get(name).map(|&at| &self.tensors[at])
    }

    /// The tensor with this name.
    ///
    /// # Errors
    /// If there is none; lists names that are close.
    pub fn tensor(&self, name: &str) -> Result<&GgufTensor> {
        self.find(name).ok_or_else(|| {
            let names = self.tensors.iter().map(|t| t.name.as_str());
            err!(UnknownName, "there is no tensor `{name}`").with_help(super::closest(name, names))
        })
    }

    /// A handle on the bytes of a tensor as they lie in the file, in little-endian order (a file in
    /// the other order is converted; nothing else is copied).
    ///
    /// # Errors
    /// If its format is not understood.
    pub fn bytes(&self, tensor: &GgufTensor) -> Result<Buffer> {
        let raw = self
            .bytes
            .range(tensor.offset, tensor.bytes)
            .ok_or_else(|| err!(Format, "tensor `{}` lies outside of the file", tensor.name))?;
        if !self.big_endian {
            return Ok(raw);
        }
        let mut swapped = Buffer::zeroed(raw.len())?;
        if let Some(out) = swapped.unique_bytes() {
            out.copy_from_slice(raw.as_bytes());
            match tensor.stored {
                GgufType::Plain(dtype) => swap(out, dtype.size(), &[(0, dtype.size())]),
                GgufType::Blocks(format) => swap(out, format.bytes, format.fields),
                GgufType::Unsupported(_) => return Err(unsupported(tensor)),
            }
        }
        Ok(swapped)
    }

    /// A tensor as an array: plain ones with their own dtype (without a copy where the file is
    /// aligned), those in blocks decoded to f32.
    ///
    /// # Errors
    /// If its format is not understood, or it is larger than the memory that can be had.
    pub fn array(&self, tensor: &GgufTensor) -> Result<Tensor> {
        let within = |e: crate::Error| e.within(&format!("tensor `{}`", tensor.name));
        let bytes = self.bytes(tensor).map_err(within)?;
        match tensor.stored {
            GgufType::Plain(dtype) => {
                Tensor::from_buffer(dtype, tensor.shape.as_slice(), bytes).map_err(within)
            }
            GgufType::Blocks(format) => {
                super::weights::decoded(format, &tensor.shape, &bytes).map_err(within)
            }
            GgufType::Unsupported(_) => Err(unsupported(tensor)),
        }
    }

    /// The number of this file and how many there are, where the model was split over several.
    ///
    /// # Errors
    /// If the metadata contradict themselves.
    pub fn split(&self) -> Result<Option<(usize, usize)>> {
        let number = |key| self.metadata.get(key).and_then(GgufValue::as_u64);
        match (number("split.no"), number("split.count")) {
            (_, None | Some(0 | 1)) => Ok(None),
            (Some(no), Some(count)) if no < count && count <= 10_000 => {
                Ok(Some((no as usize, count as usize)))
            }
            (no, count) => bail!(Format, "its metadata say part {no:?} of {count:?}"),
        }
    }
}

fn unsupported(tensor: &GgufTensor) -> crate::Error {
    err!(Unsupported, "tensor `{}` is quantised as {}", tensor.name, tensor.stored.name())
        .with_help("that format cannot be decoded here: get the model as Q4_K, Q6_K or Q8_0")
}

/// Reverses the bytes of each field (offset and size) of every unit of `unit` bytes.
fn swap(bytes: &mut [u8], unit: usize, fields: &[(usize, usize)]) {
    for unit in bytes.chunks_exact_mut(unit.max(1)) {
        for &(at, size) in fields {
            unit[at..at + size].reverse();
        }
    }
}

/// Parses `bytes`, decodes every tensor, and drops the outcome; for fuzzing.
#[doc(hidden)]
pub fn fuzz_gguf(bytes: &[u8]) {
    let limits = Limits { max_bytes: 1 << 20, max_tensor_bytes: 1 << 20, ..Limits::default() };
    if let Ok(file) = GgufFile::parse(Buffer::copy_of(bytes), &limits) {
        let _ = file.split();
        for tensor in file.tensors() {
            let _ = file.array(tensor);
        }
    }
}
