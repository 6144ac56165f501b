//! What a weight's URI may begin with: the table, and the rows that a program adds.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use super::cache::WeightCache;
use super::stored::{StoredWeight, WeightType};
use super::uri::{WeightUri, is_scheme};
use crate::error::{Error, Result, bail, err};
use crate::graph::Fact;
use crate::import::gguf::GgufType;
use crate::tensor::{Buffer, DType, Shape, element_count};

/// What a resolver is asked for.
#[derive(Debug)]
pub struct WeightRequest<'a> {
    pub(super) uri: &'a WeightUri,
    pub(super) declared: Option<&'a Fact>,
    pub(super) cache: &'a WeightCache,
}

impl WeightRequest<'_> {
    /// The URI.
    pub fn uri(&self) -> &WeightUri {
        self.uri
    }

    /// What the parameter is declared as, if a parameter is asked for. What is given is compared
    /// with it in any case; a source that does not know its own dtype and shape takes them from here.
    pub fn declared(&self) -> Option<&Fact> {
        self.declared
    }

    /// The bytes of a file, mapped once and shared, if it lies where weights may be read.
    ///
    /// # Errors
    /// If it does not, or cannot be read; the message names it.
    pub fn open(&self, path: &Path) -> Result<Buffer> {
        self.cache.open(path)
    }
}

type Resolve = dyn Fn(&WeightRequest<'_>) -> Result<StoredWeight> + Send + Sync;

/// A scheme that is built in.
#[derive(Debug)]
pub struct WeightScheme {
    /// What stands before `://`.
    pub name: &'static str,
    /// How its URIs are written.
    pub grammar: &'static str,
    resolve: fn(&WeightRequest<'_>) -> Result<StoredWeight>,
}

/// The schemes that are built in.
pub static SCHEMES: &[WeightScheme] = &[
    WeightScheme {
        name: "safetensors",
        grammar: "safetensors://PATH#TENSOR, where PATH may be a *.index.json",
        resolve: safetensors,
    },
    WeightScheme {
        name: "gguf",
        grammar: "gguf://PATH#TENSOR, where PATH may be any part of a split model",
        resolve: gguf,
    },
    WeightScheme {
        name: "file",
        grammar: "file://PATH?dtype=f32&shape=2,3&offset=0&sha256=HEX",
        resolve: raw,
    },
    WeightScheme { name: "npy", grammar: "npy://PATH", resolve: npy },
];

/// The schemes that a program works with: the built-in ones and those that it adds.
///
/// ```
/// use brigade::import::{StoredWeight, WeightCache, WeightSchemes};
/// use brigade::Tensor;
/// let schemes = WeightSchemes::default().with("ones", |request| {
///     let n = request.uri().path().to_string_lossy().parse();
///     let n: usize = n.map_err(|_| brigade::Error::new(
///         brigade::ErrorKind::Usage, format!("`{}` is no number", request.uri())))?;
///     Ok(StoredWeight::of(&Tensor::new([n], vec![1.0_f32; n])?))
/// })?;
/// let cache = WeightCache::new().with_schemes(schemes);
/// assert_eq!(cache.f32("ones://3")?.as_slice::<f32>()?, [1.0; 3]);
/// assert!(cache.f32("ones://many").is_err());
/// # Ok::<(), brigade::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct WeightSchemes {
    added: BTreeMap<String, Arc<Resolve>>,
}

impl WeightSchemes {
    /// With one more scheme, which stands in for one of the same name.
    ///
    /// # Errors
    /// If the name is not well formed: lower-case letters, digits, `+`, `-`, `.`.
    pub fn with(
        mut self,
        name: &str,
        resolve: impl Fn(&WeightRequest<'_>) -> Result<StoredWeight> + Send + Sync + 'static,
    ) -> Result<Self> {
        if !is_scheme(name) {
            return Err(err!(Usage, "`{name}` is no name of a scheme")
                .with_help("use lower-case letters, digits, `+`, `-` and `.`, a letter first"));
        }
        self.added.insert(name.to_owned(), Arc::new(resolve));
        Ok(self)
    }

    /// The names of all schemes.
    pub fn names(&self) -> Vec<&str> {
        let built_in = SCHEMES.iter().map(|s| s.name);
        let mut names: Vec<&str> = built_in.chain(self.added.keys().map(String::as_str)).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    pub(super) fn resolve(&self, request: &WeightRequest<'_>) -> Result<StoredWeight> {
        let name = request.uri.scheme();
        if let Some(resolve) = self.added.get(name) {
            return resolve(request);
        }
        match SCHEMES.iter().find(|s| s.name == name) {
            Some(scheme) => (scheme.resolve)(request),
            None => Err(err!(UnknownName, "there is no scheme `{name}`")
                .with_help(format!("there are {}", self.names().join(", ")))),
        }
    }
}

impl fmt::Debug for WeightSchemes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

fn safetensors(request: &WeightRequest<'_>) -> Result<StoredWeight> {
    request.uri.allow(&[])?;
    let name = request.uri.required_tensor()?;
    let file = request.cache.safetensors(request.uri.path(), name)?;
    let tensor = file.tensor(name)?;
    let Some(dtype) = tensor.dtype else {
        return file.array(tensor).map(|t| StoredWeight::of(&t));
    };
    let bytes = file.bytes(tensor)?;
    StoredWeight::new(WeightType::Plain(dtype), tensor.shape.as_slice(), bytes)
}

fn gguf(request: &WeightRequest<'_>) -> Result<StoredWeight> {
    request.uri.allow(&[])?;
    let name = request.uri.required_tensor()?;
    let parts = request.cache.gguf(request.uri.path())?;
    let file = parts.part(name)?;
    let tensor = file.tensor(name)?;
    let kind = match tensor.stored {
        GgufType::Plain(dtype) => WeightType::Plain(dtype),
        GgufType::Blocks(format) => WeightType::Blocks(format),
        // This refuses it, by name.
        GgufType::Unsupported(_) => return file.array(tensor).map(|t| StoredWeight::of(&t)),
    };
    StoredWeight::new(kind, tensor.shape.as_slice(), file.bytes(tensor)?)
}

fn no_tensor(uri: &WeightUri) -> Result<()> {
    match uri.tensor() {
        None => Ok(()),
        Some(tensor) => {
            Err(err!(Usage, "`{uri}` names the tensor `{tensor}` of a file that has no names")
                .with_help("write `%23` for a `#` in the path"))
        }
    }
}

fn npy(request: &WeightRequest<'_>) -> Result<StoredWeight> {
    request.uri.allow(&[])?;
    no_tensor(request.uri)?;
    let bytes = request.open(request.uri.path())?;
    let array = crate::import::npy::in_place(&bytes, request.cache.limits())?;
    Ok(StoredWeight::of(&array))
}

fn number(uri: &WeightUri, key: &str, text: &str) -> Result<usize> {
    text.parse()
        .map_err(|_| err!(Usage, "`{key}` of `{uri}` holds `{text}`, which is no whole number"))
}

fn raw(request: &WeightRequest<'_>) -> Result<StoredWeight> {
    let uri = request.uri;
    uri.allow(&["dtype", "shape", "offset", "sha256"])?;
    no_tensor(uri)?;
    let dtype = match uri.value("dtype") {
        Some(name) => name.parse::<DType>()?,
        None => request.declared.and_then(|f| f.dtype).unwrap_or(DType::F32),
    };
    if dtype == DType::String {
        bail!(DType, "strings have no bytes of their own");
    }
    let stated = uri.value("shape").map(|list| {
        let extents = list.split(',').filter(|_| !list.is_empty());
        extents.map(|n| number(uri, "shape", n)).collect::<Result<Vec<usize>>>()
    });
    let shape = match stated {
        Some(shape) => Some(shape?),
        None => request.declared.and_then(Fact::concrete_shape),
    };
    let offset = uri.value("offset").map(|n| number(uri, "offset", n)).transpose()?;
    let bytes = request.open(uri.path())?;
    let from = offset.unwrap_or(0);
    let Some(there) = bytes.len().checked_sub(from) else {
        bail!(Format, "starts at byte {from} of a file of {}", bytes.len());
    };
    let size = dtype.size().max(1);
    let shape = match shape {
        Some(shape) => shape,
        None if there.is_multiple_of(size) => vec![there / size],
        None => bail!(Format, "has {there} bytes, which are no whole elements of {dtype}"),
    };
    let need = element_count(&shape, size)? * size;
    // Without an offset the whole file is meant.
    let range = if offset.is_some() { there >= need } else { there == need };
    let data = bytes.range(from, need).filter(|_| range).ok_or_else(|| -> Error {
        let shape = Shape::from(shape.clone());
        err!(Shape, "{dtype}{shape} takes {need} bytes, the file has {there}")
            .with_help("state dtype and shape: file://PATH?dtype=f32&shape=2,3")
    })?;
    if let Some(wanted) = uri.value("sha256") {
        let found = sha256(data.as_bytes());
        if !wanted.eq_ignore_ascii_case(&found) {
            return Err(err!(Format, "its bytes have the SHA-256 {found}, not {wanted}")
                .with_help("the file is another one than was meant: bring the same file here"));
        }
    }
    StoredWeight::new(WeightType::Plain(dtype), shape, data)
}

/// The SHA-256 of bytes, in hexadecimal.
pub(crate) fn sha256(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut out = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        let _ = write!(out, "{byte:02x}");
    }
    out
}
