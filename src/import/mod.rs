//! Reading models and arrays from files.
//!
//! What is read here may be hostile: every size is checked before memory is taken for it, every
//! count has a cap ([`Limits`]), and every error names the file. Whether the operators of a model
//! can be run is not asked here.
//!
//! A format is one module and one row of the table in this file.

#![deny(unsafe_code)]

use std::fs::File;
use std::io::Read;
use std::path::Path;

use crate::error::{Result, bail, err};
use crate::graph::Graph;

mod gguf;
#[allow(unsafe_code)]
mod mmap;
#[cfg(test)]
pub(crate) mod mutate;
mod npy;
mod npz;
#[cfg(feature = "onnx")]
pub mod onnx;
mod safetensors;
mod weights;

pub use gguf::{GgufArray, GgufFile, GgufMetadata, GgufTensor, GgufType, GgufValue, fuzz_gguf};
pub use npy::{parse_npy, read_npy, write_npy};
pub use npz::{read_npz, write_npz};
#[cfg(feature = "cli")]
pub(crate) use safetensors::MAX_HEADER as MAX_SAFETENSORS_HEADER;
pub use safetensors::{SafetensorsFile, SafetensorsTensor, fuzz_safetensors};
#[cfg(feature = "cluster")]
pub(crate) use weights::sha256;
pub use weights::{
    SCHEMES as WEIGHT_SCHEMES, StoredWeight, WeightCache, WeightProgress, WeightRef, WeightRequest,
    WeightScheme, WeightSchemes, WeightStats, WeightType, WeightUri,
};

/// How much a file may ask for.
///
/// ```
/// use brigade::import::Limits;
/// let limits = Limits { max_nodes: 1000, ..Limits::default() };
/// assert!(limits.max_bytes > 1 << 30);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the model file, of what it decodes to besides tensor contents, and of all arrays
    /// of an archive together.
    pub max_bytes: u64,
    /// Bytes of one tensor.
    pub max_tensor_bytes: u64,
    /// Bytes of all constants of a model together.
    pub max_constant_bytes: u64,
    /// Nodes, subgraphs included, after functions are written out.
    pub max_nodes: usize,
    /// Values, subgraphs included.
    pub max_values: usize,
    /// Axes of one tensor.
    pub max_dims: usize,
    /// Subgraphs within subgraphs, and functions within functions.
    pub max_depth: usize,
    /// Bytes of a `.npy` header.
    pub max_header_bytes: usize,
    /// Arrays in an archive.
    pub max_entries: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_bytes: 4 << 30,
            max_tensor_bytes: 16 << 30,
            max_constant_bytes: 256 << 30,
            max_nodes: 1 << 20,
            max_values: 1 << 22,
            max_dims: 32,
            max_depth: 24,
            max_header_bytes: 1 << 16,
            max_entries: 1 << 16,
        }
    }
}

impl Limits {
    fn check_tensor(&self, bytes: usize, what: &dyn Fn() -> String) -> Result<()> {
        if bytes as u64 > self.max_tensor_bytes {
            let max = self.max_tensor_bytes;
            bail!(Limit, "{} takes {bytes} bytes, more than the limit of {max}", what());
        }
        Ok(())
    }

    fn check_rank(&self, rank: usize) -> Result<()> {
        if rank > self.max_dims {
            bail!(Limit, "a tensor has {rank} axes or more; the limit is {}", self.max_dims);
        }
        Ok(())
    }
}

/// A graph and what there is to say about how it was read.
#[derive(Clone, Debug)]
pub struct Imported {
    /// The graph; it is valid ([`Graph::validate`]).
    pub graph: Graph,
    /// What was put right or left out while reading, in words.
    pub notices: Vec<String>,
}

/// The contents of a model file, as its format's reader gets them.
#[cfg_attr(not(feature = "onnx"), allow(dead_code))]
pub(crate) struct Source<'a> {
    /// The whole file.
    pub(crate) bytes: FileBytes,
    /// The file, if it is one.
    pub(crate) path: Option<&'a Path>,
    /// The folder that names of further files are relative to.
    pub(crate) folder: Option<&'a Path>,
    pub(crate) limits: &'a Limits,
    /// What files beside the model are read through.
    pub(crate) weights: &'a WeightCache,
}

#[cfg(feature = "onnx")]
pub(crate) type FileBytes = prost::bytes::Bytes;
#[cfg(not(feature = "onnx"))]
pub(crate) type FileBytes = Vec<u8>;

/// One format of model files.
struct Format {
    name: &'static str,
    /// File-name endings, in lower case.
    endings: &'static [&'static str],
    /// Whether the bytes may be of this format.
    sniff: fn(&[u8]) -> bool,
    read: fn(&Source<'_>) -> Result<Imported>,
}

/// The formats that graphs are read from.
const FORMATS: &[Format] = &[
    #[cfg(feature = "onnx")]
    Format { name: "ONNX", endings: &[".onnx", ".onnx.pb"], sniff: onnx::sniff, read: onnx::read },
];

/// Reads the graph in a model file, within the default [`Limits`].
///
/// The format is told by the contents, and by the name's ending where they do not say. Notices are
/// dropped; [`import`] returns them.
///
/// # Errors
/// If the file cannot be read, is of no known format, is damaged or over a limit, or uses what no
/// graph here can hold. The message names the file.
///
/// ```
/// let error = brigade::import::load("no/such/model.onnx").unwrap_err();
/// assert!(error.to_string().contains("no/such/model.onnx"));
/// ```
pub fn load(path: impl AsRef<Path>) -> Result<Graph> {
    Ok(import(path, &Limits::default())?.graph)
}

/// Reads the graph in a model file.
///
/// # Errors
/// As [`load`].
pub fn import(path: impl AsRef<Path>, limits: &Limits) -> Result<Imported> {
    import_with(path, limits, &WeightCache::new())
}

/// As [`import`], with weight files beside the model read through a cache: models that share files
/// share their memory, and a file's name may be a link to below one of the cache's roots.
///
/// # Errors
/// As [`load`].
pub fn import_with(
    path: impl AsRef<Path>,
    limits: &Limits,
    weights: &WeightCache,
) -> Result<Imported> {
    let path = path.as_ref();
    let run = || {
        let bytes = read_file(path, limits)?;
        let name = path.file_name().map(|n| n.to_string_lossy().to_lowercase()).unwrap_or_default();
        let folder = match path.parent() {
            Some(p) if !p.as_os_str().is_empty() => p,
            _ => Path::new("."),
        };
        let path = Some(path);
        dispatch(&Source { bytes, path, folder: Some(folder), limits, weights }, &name)
    };
    run().map_err(|e: crate::Error| e.within(&format!("`{}`", path.display())))
}

/// Reads the graph in the bytes of a model file. `folder` is where the model's external weight
/// files lie, if it has any.
///
/// # Errors
/// As [`load`]; also if the model has external weights and no folder is given.
///
/// ```
/// use brigade::import::{Limits, from_bytes};
/// let error = from_bytes(b"<!DOCTYPE html>", None, &Limits::default()).unwrap_err();
/// assert!(error.message().contains("HTML"), "{error}");
/// ```
pub fn from_bytes(bytes: &[u8], folder: Option<&Path>, limits: &Limits) -> Result<Imported> {
    if bytes.len() as u64 > limits.max_bytes {
        bail!(Limit, "{} bytes are more than the limit of {}", bytes.len(), limits.max_bytes);
    }
    #[allow(clippy::useless_conversion)]
    let bytes = FileBytes::from(bytes.to_vec());
    dispatch(&Source { bytes, path: None, folder, limits, weights: &WeightCache::new() }, "")
}

/// Files that are larger are mapped while they are decoded, so that they are not held twice.
#[cfg(feature = "onnx")]
const MAPPED_FROM: u64 = 256 << 20;

/// Opens a regular file. A pipe is refused before it is opened, which would wait for a writer.
pub(crate) fn open_file(path: &Path) -> Result<File> {
    let refuse = |m: &std::fs::Metadata| {
        if m.is_dir() {
            return Err(err!(Io, "is a folder").with_help("name the file in it"));
        }
        if !m.is_file() {
            return Err(err!(Io, "is not a regular file")
                .with_help("write what comes from a pipe or a device to a file first"));
        }
        Ok(())
    };
    refuse(&std::fs::metadata(path)?)?;
    let file = File::open(path)?;
    // Another may have taken its place meanwhile.
    refuse(&file.metadata()?)?;
    Ok(file)
}

fn read_file(path: &Path, limits: &Limits) -> Result<FileBytes> {
    let file = open_file(path)?;
    let metadata = file.metadata()?;
    let max = limits.max_bytes;
    if metadata.len() > max {
        bail!(Limit, "takes {} bytes, more than the limit of {max}", metadata.len());
    }
    #[cfg(feature = "onnx")]
    if metadata.len() >= MAPPED_FROM {
        struct Mapped(crate::tensor::Buffer);
        impl AsRef<[u8]> for Mapped {
            fn as_ref(&self) -> &[u8] {
                self.0.as_bytes()
            }
        }
        return Ok(FileBytes::from_owner(Mapped(mmap::map(&file)?)));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(metadata.len()).unwrap_or(0));
    file.take(max.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max {
        bail!(Limit, "takes more bytes than the limit of {max}");
    }
    #[allow(clippy::useless_conversion)]
    Ok(FileBytes::from(bytes))
}

/// The bytes of a file, mapped.
fn map_file(path: &Path) -> Result<crate::tensor::Buffer> {
    Ok(mmap::map(&open_file(path)?)?.of_file(&path.into(), 0))
}

/// In words, the names that are like `name`, or how many others there are.
fn closest<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> String {
    const SHOWN: usize = 5;
    let tail = name.rsplit('.').take(2).last().unwrap_or(name);
    let all: Vec<&str> = names.collect();
    let like: Vec<&str> = all
        .iter()
        .copied()
        .filter(|other| {
            other.eq_ignore_ascii_case(name) || other.contains(tail) || name.contains(other)
        })
        .take(SHOWN)
        .collect();
    match (like.is_empty(), all.first()) {
        (false, _) => format!("names like it: {}", like.join(", ")),
        (true, Some(first)) => format!("there are {} others, such as `{first}`", all.len()),
        (true, None) => "the file has none".to_owned(),
    }
}

fn dispatch(source: &Source<'_>, file_name: &str) -> Result<Imported> {
    let bytes = &source.bytes[..];
    if bytes.is_empty() {
        return Err(err!(Format, "is empty").with_help("download or export the model again"));
    }
    let other = describe_magic(bytes);
    let format = FORMATS.iter().find(|f| (f.sniff)(bytes) && other.is_empty()).or_else(|| {
        let named = |f: &&Format| f.endings.iter().any(|e| file_name.ends_with(e));
        FORMATS.iter().find(named).filter(|_| other.is_empty())
    });
    let Some(format) = format else {
        let known: Vec<_> = FORMATS.iter().map(|f| f.name).collect();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        return Err(err!(Format, "is not a model file that can be read{other}")
            .with_help(format!("formats built in: {known}")));
    };
    (format.read)(source)
}

/// Ways that well-known files begin which are mistaken for what is read here.
const MAGICS: &[(usize, &[u8], &str)] = &[
    (0, b"<!DOCTYPE", "an HTML page: the download went wrong"),
    (0, b"<!doctype", "an HTML page: the download went wrong"),
    (0, b"<html", "an HTML page: the download went wrong"),
    (0, b"<HTML", "an HTML page: the download went wrong"),
    (0, b"<?xml", "an XML page: the download went wrong"),
    (0, b"version https://git-lfs", "a Git LFS pointer: run `git lfs pull` to get the file itself"),
    (0, b"PK\x03\x04", "a zip archive: .npz, or a PyTorch or Keras file to be exported to ONNX"),
    (0, b"\x1f\x8b", "compressed with gzip: unpack it first"),
    (0, b"\x28\xb5\x2f\xfd", "compressed with zstd: unpack it first"),
    (0, b"\x93NUMPY", "a numpy array"),
    (0, b"GGUF", "a GGUF file: weights without a graph"),
    (0, b"\x89HDF", "an HDF5 file (Keras): export it to ONNX"),
    (0, b"\x80\x02", "a Python pickle (PyTorch): export it to ONNX"),
    (0, b"\x7fELF", "a program"),
    (0, b"{", "JSON text"),
    (4, b"TFL3", "a TensorFlow Lite model: convert it to ONNX"),
    (4, b"ORTM", "an ONNX Runtime flat buffer: use the .onnx file that it was made from"),
    (8, b"{\"", "a safetensors file: weights without a graph"),
];

/// `: it is …` for bytes that are known to be something else, or nothing.
fn describe_magic(bytes: &[u8]) -> String {
    // Text may begin with blank lines; none of the others begins with what looks like one.
    let bytes =
        if bytes.trim_ascii_start().starts_with(b"<") { bytes.trim_ascii_start() } else { bytes };
    MAGICS
        .iter()
        .find(|(at, magic, _)| bytes.get(*at..).is_some_and(|b| b.starts_with(magic)))
        .map(|row| format!(": it is {}", row.2))
        .unwrap_or_default()
}

/// Reads `bytes` as each array format and drops the outcome; for fuzzing.
#[doc(hidden)]
pub fn fuzz_arrays(bytes: &[u8]) {
    let limits = Limits { max_bytes: 1 << 20, max_tensor_bytes: 1 << 20, ..Limits::default() };
    let _ = npy::read_array(bytes, Some(bytes.len() as u64), &limits);
    let _ = npy::read_array(bytes, None, &limits);
    let _ = npz::read_archive(std::io::Cursor::new(bytes), &limits);
}
