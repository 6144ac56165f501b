//! Weight files, each mapped and parsed once, for whoever asks from whatever thread.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::parts::{GgufParts, ShardIndex};
use super::roots::Roots;
use super::scheme::{WeightRequest, WeightSchemes};
use super::stored::{StoredWeight, WeightType};
use super::{WeightRef, WeightUri};
use crate::error::{Error, ErrorKind, Result, err};
use crate::graph::Fact;
use crate::import::gguf::GgufFile;
use crate::import::safetensors::SafetensorsFile;
use crate::import::{Limits, map_file};
use crate::tensor::{Buffer, DType, Tensor, Value, WeakBuffer};

/// One file of the cache: whoever comes first parses it, the others wait for that.
type Slot<T> = Arc<Mutex<Option<T>>>;

#[derive(Debug)]
struct Slots<T>(Mutex<HashMap<PathBuf, Slot<T>>>);

impl<T> Default for Slots<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<T: Clone> Slots<T> {
    /// What `make` made of this file, now or before. What failed is tried again.
    fn get(&self, path: &Path, make: impl FnOnce() -> Result<T>) -> Result<T> {
        let slot = Arc::clone(locked(&self.0).entry(path.to_owned()).or_default());
        let mut slot = locked(&slot);
        if let Some(made) = &*slot {
            return Ok(made.clone());
        }
        let made = make()?;
        *slot = Some(made.clone());
        Ok(made)
    }

    fn clear(&self) {
        locked(&self.0).clear();
    }
}

/// What was decoded, as long as somebody holds it: two parameters over one tensor share it.
#[derive(Debug)]
struct Decoded {
    source: WeakBuffer,
    values: WeakBuffer,
}

#[derive(Debug, Default)]
struct Shared {
    mapped: Slots<Buffer>,
    safetensors: Slots<Arc<SafetensorsFile>>,
    indices: Slots<Arc<ShardIndex>>,
    gguf: Slots<Arc<GgufFile>>,
    models: Slots<Arc<GgufParts>>,
    /// By address and length of the stored bytes.
    decoded: Mutex<HashMap<(usize, usize), Decoded>>,
    counters: [AtomicU64; 5],
}

/// What a cache has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct WeightStats {
    /// Files that were mapped.
    pub files: u64,
    /// Files and indices that were parsed.
    pub parses: u64,
    /// Weights that were given.
    pub loads: u64,
    /// Their bytes, as they are stored.
    pub bytes: u64,
    /// Bytes of those that were decoded or widened.
    pub decoded_bytes: u64,
}

const FILES: usize = 0;
const PARSES: usize = 1;
const LOADS: usize = 2;
const BYTES: usize = 3;
const DECODED: usize = 4;

/// A weight that was loaded, for whoever shows progress.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct WeightProgress<'a> {
    /// Its URI.
    pub uri: &'a WeightUri,
    /// Its bytes, as they are stored.
    pub bytes: usize,
    /// What the cache has done, this weight included.
    pub so_far: WeightStats,
}

type Progress = dyn Fn(&WeightProgress<'_>) + Send + Sync;

/// Weights by URI. Each file is mapped and parsed once, and only the tensors that are asked for are
/// read, so that files may be larger than memory. Clones share what was read; any thread may ask.
///
/// Files must not be changed or truncated while a cache or a weight of them is held: replace them by
/// renaming new ones over them.
///
/// ```
/// use brigade::{Tensor, WeightCache, import};
/// let folder = std::env::temp_dir().join(format!("brigade-doc-weights-{}", std::process::id()));
/// std::fs::create_dir_all(&folder).unwrap();
/// import::write_npy(folder.join("w.npy"), &Tensor::new([2], vec![1_i64, 2])?)?;
///
/// let cache = WeightCache::new().with_root(&folder)?;
/// let w = cache.typed("npy://w.npy")?;
/// assert_eq!(w.as_slice::<i64>()?, [1, 2]);
/// assert!(cache.typed("file:///etc/passwd").is_err()); // not below the root
/// # std::fs::remove_dir_all(&folder).unwrap();
/// # Ok::<(), brigade::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct WeightCache {
    shared: Arc<Shared>,
    roots: Roots,
    schemes: WeightSchemes,
    limits: Limits,
    progress: Option<Arc<Progress>>,
}

impl fmt::Debug for WeightCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WeightCache")
            .field("roots", &self.roots)
            .field("schemes", &self.schemes)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl WeightCache {
    /// A cache that reads anywhere, with relative paths from the working folder.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads relative paths from this folder.
    #[must_use]
    pub fn with_base(mut self, folder: impl AsRef<Path>) -> Self {
        self.roots.set_base(folder.as_ref());
        self
    }

    /// Reads below this folder and others that are given so, and nowhere else. Links and `..` are
    /// resolved before the check. Without a base folder, relative paths start from the first root
    /// that has them.
    ///
    /// # Errors
    /// If the folder is not there.
    pub fn with_root(mut self, folder: impl AsRef<Path>) -> Result<Self> {
        self.roots.allow(folder.as_ref())?;
        Ok(self)
    }

    /// This cache, reading from this folder too, and nowhere but below it and the roots.
    #[cfg_attr(not(feature = "onnx"), allow(dead_code))]
    pub(crate) fn below(&self, folder: &Path) -> Result<Self> {
        self.clone().with_base(folder).with_root(folder)
    }

    /// Reads through these schemes.
    #[must_use]
    pub fn with_schemes(mut self, schemes: WeightSchemes) -> Self {
        self.schemes = schemes;
        self
    }

    /// Reads within these limits.
    #[must_use]
    pub fn with_limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Calls `see` after each weight that is loaded, on the thread that asked for it.
    #[must_use]
    pub fn on_load(mut self, see: impl Fn(&WeightProgress<'_>) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(see));
        self
    }

    /// The weight as f32: f16, bf16 and blocks are widened or decoded, which loses nothing.
    ///
    /// # Errors
    /// If the URI is not well formed, the file cannot be read or is damaged, has no such tensor, or
    /// the tensor is of a dtype that f32 cannot hold.
    pub fn f32(&self, uri: &str) -> Result<Tensor> {
        self.with(uri, None, |cache, weight| cache.widened(weight))
    }

    /// The weight with its own dtype, over the mapped file where that is aligned; blocks decoded to
    /// f32.
    ///
    /// # Errors
    /// As [`Self::f32`], except for the dtype.
    pub fn typed(&self, uri: &str) -> Result<Tensor> {
        self.with(uri, None, |cache, weight| match weight.kind() {
            WeightType::Plain(_) => weight.tensor(),
            WeightType::Blocks(_) => cache.widened(weight),
        })
    }

    /// The bytes of the weight as they are stored, a range of the mapped file.
    ///
    /// # Errors
    /// As [`Self::typed`].
    pub fn bytes(&self, uri: &str) -> Result<Buffer> {
        self.with(uri, None, |_, weight| Ok(weight.bytes().clone()))
    }

    /// The weight as it is stored: bytes, type and shape.
    ///
    /// # Errors
    /// As [`Self::typed`].
    pub fn stored(&self, uri: &str) -> Result<StoredWeight> {
        self.with(uri, None, |_, weight| Ok(weight.clone()))
    }

    /// The tensor for a parameter of this fact. f16, bf16 and blocks become f32 where f32 is
    /// declared; anything else must be of the declared dtype. A packed weight stays in its blocks,
    /// as u8.
    ///
    /// # Errors
    /// As [`Self::typed`]; if dtype or shape are not what is declared. The message names the
    /// parameter, the URI and both sides.
    pub fn load(&self, weight: &WeightRef, declared: &Fact) -> Result<Tensor> {
        self.with(&weight.uri, Some(declared), |cache, stored| {
            let tensor = if weight.packed {
                stored.packed()?
            } else {
                match (declared.dtype, stored.kind()) {
                    (Some(want), WeightType::Plain(have)) if want == have => stored.tensor()?,
                    (Some(DType::F32), WeightType::Blocks(_))
                    | (Some(DType::F32), WeightType::Plain(DType::F16 | DType::BF16)) => {
                        cache.widened(stored)?
                    }
                    (Some(_), _) => {
                        return Err(err!(
                            DType,
                            "declared {declared}, stored as {}",
                            stored.describe()
                        )
                        .with_help(
                            "declare the parameter as it is stored, and cast in the graph",
                        ));
                    }
                    (None, WeightType::Plain(_)) => stored.tensor()?,
                    (None, WeightType::Blocks(_)) => cache.widened(stored)?,
                }
            };
            declared.admits(&Value::from(tensor.clone())).map_err(|_| {
                let same = declared.dtype.is_none_or(|d| d == tensor.dtype());
                let kind = if same { ErrorKind::Shape } else { ErrorKind::DType };
                let packed = if weight.packed { ", packed" } else { "" };
                let stored = stored.describe();
                Error::new(kind, format!("declared {declared}, stored as {stored}{packed}"))
            })?;
            Ok(tensor)
        })
        .map_err(|e| e.within(&format!("parameter `{}`", weight.name)))
    }

    /// What this cache and its clones have done so far.
    pub fn stats(&self) -> WeightStats {
        let n = |i: usize| self.shared.counters[i].load(Ordering::Relaxed);
        WeightStats {
            files: n(FILES),
            parses: n(PARSES),
            loads: n(LOADS),
            bytes: n(BYTES),
            decoded_bytes: n(DECODED),
        }
    }

    /// Forgets the files that were read; weights that are held stay.
    pub fn clear(&self) {
        self.shared.mapped.clear();
        self.shared.safetensors.clear();
        self.shared.indices.clear();
        self.shared.gguf.clear();
        self.shared.models.clear();
        locked(&self.shared.decoded).clear();
    }

    fn count(&self, counter: usize, n: usize) {
        self.shared.counters[counter].fetch_add(n as u64, Ordering::Relaxed);
    }

    fn with<T>(
        &self,
        text: &str,
        declared: Option<&Fact>,
        use_it: impl FnOnce(&Self, &StoredWeight) -> Result<T>,
    ) -> Result<T> {
        let uri: WeightUri = text.parse()?;
        let request = WeightRequest { uri: &uri, declared, cache: self };
        let run = || {
            let weight = self.schemes.resolve(&request)?;
            let out = use_it(self, &weight)?;
            self.count(LOADS, 1);
            self.count(BYTES, weight.bytes().len());
            if let Some(see) = &self.progress {
                let (bytes, so_far) = (weight.bytes().len(), self.stats());
                see(&WeightProgress { uri: &uri, bytes, so_far });
            }
            Ok(out)
        };
        run().map_err(|e: Error| e.within(&format!("weight `{uri}`")))
    }

    /// The weight as f32, decoded once for all who hold it.
    fn widened(&self, weight: &StoredWeight) -> Result<Tensor> {
        if matches!(weight.kind(), WeightType::Plain(DType::F32)) {
            return weight.tensor();
        }
        let bytes = weight.bytes();
        let key = (bytes.as_bytes().as_ptr() as usize, bytes.len());
        if !bytes.is_empty() {
            let decoded = locked(&self.shared.decoded);
            let found = decoded.get(&key).and_then(|d| {
                // The same address may have become another weight since.
                let same = d.source.upgrade()?.same_memory(bytes);
                d.values.upgrade().filter(|_| same)
            });
            if let Some(values) = found
                && values.len() == weight.shape().elements() * 4
            {
                return Tensor::from_buffer(DType::F32, weight.shape().clone(), values);
            }
        }
        let values = weight.f32()?;
        self.count(DECODED, bytes.len());
        let mut decoded = locked(&self.shared.decoded);
        decoded.retain(|_, d| d.values.upgrade().is_some());
        let (source, held) = (bytes.downgrade(), values.buffer().downgrade());
        decoded.insert(key, Decoded { source, values: held });
        Ok(values)
    }

    pub(super) fn limits(&self) -> &Limits {
        &self.limits
    }

    /// The bytes of a file that may be read.
    pub(crate) fn open(&self, path: &Path) -> Result<Buffer> {
        let real = self.roots.resolve(path)?;
        self.map(&real)
    }

    fn map(&self, real: &Path) -> Result<Buffer> {
        self.shared.mapped.get(real, || {
            let mapped = map_file(real).map_err(|e| e.within(&format!("`{}`", real.display())))?;
            self.count(FILES, 1);
            Ok(mapped)
        })
    }

    /// The file that holds a tensor, by itself or by its index.
    pub(super) fn safetensors(&self, path: &Path, tensor: &str) -> Result<Arc<SafetensorsFile>> {
        let real = self.roots.resolve(path)?;
        if real.extension().is_some_and(|e| e.eq_ignore_ascii_case("json")) {
            let index = self.index(&real)?;
            let shard = index.file(tensor)?;
            // The index is no better than its file: the shard must be allowed for itself.
            return self.one_safetensors(&self.roots.resolve(shard)?);
        }
        self.one_safetensors(&real)
    }

    fn index(&self, real: &Path) -> Result<Arc<ShardIndex>> {
        self.shared.indices.get(real, || {
            self.count(PARSES, 1);
            let folder = real.parent().unwrap_or(Path::new("."));
            let parsed = self.map(real).and_then(|b| ShardIndex::parse(b.as_bytes(), folder));
            parsed.map(Arc::new).map_err(|e| e.within(&format!("`{}`", real.display())))
        })
    }

    fn one_safetensors(&self, real: &Path) -> Result<Arc<SafetensorsFile>> {
        self.shared.safetensors.get(real, || {
            self.count(PARSES, 1);
            let parsed = self.map(real).and_then(|b| SafetensorsFile::parse(b, &self.limits));
            parsed.map(Arc::new).map_err(|e| e.within(&format!("`{}`", real.display())))
        })
    }

    /// A GGUF model with all its parts.
    pub(super) fn gguf(&self, path: &Path) -> Result<Arc<GgufParts>> {
        let real = self.roots.resolve(path)?;
        self.shared.models.get(&real, || {
            let first = self.one_gguf(&real)?;
            let open = |part: &Path| self.one_gguf(&self.roots.resolve(part)?);
            GgufParts::new(first, &real, &open).map(Arc::new)
        })
    }

    fn one_gguf(&self, real: &Path) -> Result<Arc<GgufFile>> {
        self.shared.gguf.get(real, || {
            self.count(PARSES, 1);
            let parsed = self.map(real).and_then(|b| GgufFile::parse(b, &self.limits));
            parsed.map(Arc::new).map_err(|e| e.within(&format!("`{}`", real.display())))
        })
    }
}
