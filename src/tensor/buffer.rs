//! Reference-counted bytes on the host.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Weak};

use bytemuck::Zeroable;

use super::pool::{LINE, Line, Place, PoolInner, zeroed_lines};
use crate::error::{Result, err};

/// Where in a file bytes come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileRange {
    pub(crate) path: Arc<Path>,
    /// In bytes from the beginning of the file.
    pub(crate) offset: u64,
}

pub(crate) struct Storage {
    bytes: Bytes,
    /// The file that they were read from, until they are written to.
    origin: Option<FileRange>,
    pool: Option<Weak<PoolInner>>,
    /// Where in its pool it belongs.
    pub(super) place: Place,
}

/// From this size on weights have pages of their own.
const PAGES: usize = 128 << 10;

enum Bytes {
    Heap(Vec<Line>),
    /// Pages of its own.
    Pages(memmap2::MmapMut),
    /// Memory that somebody else keeps: a mapped file, say.
    Foreign(Box<dyn AsRef<[u8]> + Send + Sync>),
    Strings(Vec<String>),
}

impl Storage {
    pub(super) fn heap(lines: Vec<Line>, pool: Option<Weak<PoolInner>>) -> Self {
        Self { bytes: Bytes::Heap(lines), origin: None, pool, place: Place::Shelf }
    }

    /// Its size, in lines of memory of its own.
    pub(super) fn lines(&self) -> usize {
        match &self.bytes {
            Bytes::Heap(lines) => lines.len(),
            _ => 0,
        }
    }

    fn as_bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Heap(lines) => bytemuck::cast_slice(lines),
            Bytes::Pages(pages) => pages,
            Bytes::Foreign(bytes) => (**bytes).as_ref(),
            Bytes::Strings(_) => &[],
        }
    }
}

impl Drop for Storage {
    /// Two threads that let go of the last two handles at once both found another holder: the
    /// memory then goes back to its pool from here.
    fn drop(&mut self) {
        if self.place == Place::Free {
            return;
        }
        if let (Bytes::Heap(lines), Some(pool)) =
            (&mut self.bytes, self.pool.as_ref().and_then(Weak::upgrade))
        {
            let mut again = Self::heap(std::mem::take(lines), self.pool.take());
            again.place = self.place;
            pool.give_back(Arc::new(again));
        }
    }
}

/// An immutable, reference-counted range of bytes; cloning copies a handle.
///
/// Bytes that were allocated here are aligned to 64. Only a unique buffer can be written.
#[derive(Clone)]
pub struct Buffer {
    /// Always there, until it is dropped.
    storage: Option<Arc<Storage>>,
    offset: usize,
    len: usize,
}

impl Drop for Buffer {
    /// The last handle gives the memory back to its pool together with its counts, so that handing
    /// it out again allocates nothing.
    fn drop(&mut self) {
        let Some(mut storage) = self.storage.take() else { return };
        if Arc::strong_count(&storage) > 1 {
            return;
        }
        let Some(unique) = Arc::get_mut(&mut storage) else { return };
        if let Some(pool) = unique.pool.as_ref().and_then(Weak::upgrade) {
            pool.give_back(storage);
        }
    }
}

impl Buffer {
    pub(super) fn new(storage: Storage, len: usize) -> Self {
        Self::of(Arc::new(storage), len)
    }

    pub(super) const fn of(storage: Arc<Storage>, len: usize) -> Self {
        Self { storage: Some(storage), offset: 0, len }
    }

    /// A buffer of `len` zero bytes.
    ///
    /// # Errors
    /// If the memory cannot be had.
    pub fn zeroed(len: usize) -> Result<Self> {
        Ok(Self::new(Storage::heap(zeroed_lines(len.div_ceil(LINE))?, None), len))
    }

    /// A copy of `bytes`.
    pub fn copy_of(bytes: &[u8]) -> Self {
        let mut lines = vec![Line::zeroed(); bytes.len().div_ceil(LINE)];
        bytemuck::cast_slice_mut(&mut lines)[..bytes.len()].copy_from_slice(bytes);
        Self::new(Storage::heap(lines, None), bytes.len())
    }

    /// A buffer of `len` zero bytes for weights, most of which are dropped again once they are packed.
    /// Large ones have pages of their own, which go back to the system then: among blocks of a heap
    /// that stay, what they leave would be held for good.
    ///
    /// # Errors
    /// If the memory cannot be had.
    pub(crate) fn for_weights(len: usize) -> Result<Self> {
        if len < PAGES {
            return Self::zeroed(len);
        }
        let pages = memmap2::MmapMut::map_anon(len).map_err(|error| {
            err!(Limit, "{len} bytes of memory cannot be had: {error}")
                .with_help("use a smaller model, or weights that stay packed")
        })?;
        let bytes = Bytes::Pages(pages);
        Ok(Self::new(Storage { bytes, origin: None, pool: None, place: Place::Shelf }, len))
    }

    /// A copy of weights; see [`for_weights`](Self::for_weights).
    #[cfg(feature = "onnx")]
    pub(crate) fn copy_of_weights(bytes: &[u8]) -> Self {
        match Self::for_weights(bytes.len()) {
            Ok(mut copy) => {
                if let Some(to) = copy.unique_bytes() {
                    to.copy_from_slice(bytes);
                }
                copy
            }
            Err(_) => Self::copy_of(bytes),
        }
    }

    /// A handle on memory that `owner` keeps, such as a mapped file. Not aligned by itself.
    pub fn foreign(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let len = owner.as_ref().len();
        let bytes = Bytes::Foreign(Box::new(owner));
        Self::new(Storage { bytes, origin: None, pool: None, place: Place::Shelf }, len)
    }

    /// These bytes, as those of a file from `offset` on; as they are where somebody shares them.
    #[must_use]
    pub(crate) fn of_file(mut self, path: &Arc<Path>, offset: u64) -> Self {
        if let Some(storage) = self.storage.as_mut().and_then(Arc::get_mut) {
            storage.origin = Some(FileRange { path: Arc::clone(path), offset });
        }
        self
    }

    /// Where in a file these bytes lie, if that is where they come from.
    #[cfg_attr(not(feature = "cluster"), allow(dead_code))]
    pub(crate) fn file_range(&self) -> Option<FileRange> {
        let origin = self.storage.as_ref()?.origin.as_ref()?;
        let offset = origin.offset.checked_add(self.offset as u64)?;
        Some(FileRange { path: Arc::clone(&origin.path), offset })
    }

    pub(super) fn strings(strings: Vec<String>) -> Self {
        let bytes = Bytes::Strings(strings);
        Self::new(Storage { bytes, origin: None, pool: None, place: Place::Shelf }, 0)
    }

    pub(super) fn as_strings(&self) -> Option<&[String]> {
        match &self.storage.as_ref()?.bytes {
            Bytes::Strings(strings) => Some(strings),
            _ => None,
        }
    }

    /// Bytes in it.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        let all = self.storage.as_ref().map_or_else(Default::default, |s| s.as_bytes());
        &all[self.offset..self.offset + self.len]
    }

    /// The bytes for writing, if nobody else holds this memory.
    pub fn unique_bytes(&mut self) -> Option<&mut [u8]> {
        let (offset, len) = (self.offset, self.len);
        let storage = Arc::get_mut(self.storage.as_mut()?)?;
        storage.origin = None;
        match &mut storage.bytes {
            Bytes::Heap(lines) => Some(&mut bytemuck::cast_slice_mut(lines)[offset..offset + len]),
            Bytes::Pages(pages) => Some(&mut pages[offset..offset + len]),
            _ => None,
        }
    }

    /// Whether writing needs no copy.
    pub fn is_unique(&mut self) -> bool {
        self.unique_bytes().is_some()
    }

    /// A handle on `len` of the bytes from `offset` on; `None` if they are not all inside.
    pub fn range(&self, offset: usize, len: usize) -> Option<Self> {
        let end = offset.checked_add(len)?;
        (end <= self.len).then(|| Self {
            storage: self.storage.clone(),
            offset: self.offset + offset,
            len,
        })
    }

    /// A handle that does not keep the memory.
    pub(crate) fn downgrade(&self) -> WeakBuffer {
        let storage = self.storage.as_ref().map_or_else(Weak::new, Arc::downgrade);
        WeakBuffer { storage, offset: self.offset, len: self.len }
    }

    /// Whether two handles share memory.
    pub fn same_memory(&self, other: &Self) -> bool {
        match (&self.storage, &other.storage) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

/// A handle on a [`Buffer`] that does not keep its memory.
#[derive(Clone)]
pub(crate) struct WeakBuffer {
    storage: Weak<Storage>,
    offset: usize,
    len: usize,
}

impl fmt::Debug for WeakBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "WeakBuffer({} bytes)", self.len)
    }
}

impl WeakBuffer {
    /// The buffer, if somebody still holds it.
    pub(crate) fn upgrade(&self) -> Option<Buffer> {
        let storage = self.storage.upgrade()?;
        Some(Buffer { storage: Some(storage), offset: self.offset, len: self.len })
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_bytes_like_others() {
        for len in [0, 100, PAGES - 1, PAGES, 3 * PAGES + 7] {
            let mut buffer = Buffer::for_weights(len).unwrap();
            assert_eq!(buffer.as_bytes(), vec![0; len]);
            let bytes = buffer.unique_bytes().unwrap();
            assert_eq!(bytes.as_ptr() as usize % LINE, 0);
            bytes.fill(7);
            let (other, copy) = (buffer.clone(), Buffer::copy_of_weights(buffer.as_bytes()));
            assert!(buffer.unique_bytes().is_none());
            assert_eq!(
                other.range(len / 2, len - len / 2).unwrap().as_bytes(),
                vec![7; len - len / 2]
            );
            assert_eq!(copy.as_bytes(), other.as_bytes());
            assert!(!copy.same_memory(&other));
        }
        assert!(Buffer::for_weights(1 << 60).is_err());
    }
}
