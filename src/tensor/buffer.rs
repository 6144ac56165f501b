//! Reference-counted bytes on the host.

use std::fmt;
use std::sync::{Arc, Weak};

use bytemuck::Zeroable;

use super::pool::{LINE, Line, PoolInner, zeroed_lines};
use crate::error::Result;

pub(crate) struct Storage {
    bytes: Bytes,
    pool: Option<Weak<PoolInner>>,
}

enum Bytes {
    Heap(Vec<Line>),
    /// Memory that somebody else keeps: a mapped file, say.
    Foreign(Box<dyn AsRef<[u8]> + Send + Sync>),
    Strings(Vec<String>),
}

impl Storage {
    pub(super) fn heap(lines: Vec<Line>, pool: Option<Weak<PoolInner>>) -> Self {
        Self { bytes: Bytes::Heap(lines), pool }
    }

    fn as_bytes(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Heap(lines) => bytemuck::cast_slice(lines),
            Bytes::Foreign(bytes) => (**bytes).as_ref(),
            Bytes::Strings(_) => &[],
        }
    }
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let (Bytes::Heap(lines), Some(pool)) =
            (&mut self.bytes, self.pool.as_ref().and_then(Weak::upgrade))
        {
            pool.give_back(std::mem::take(lines));
        }
    }
}

/// An immutable, reference-counted range of bytes; cloning copies a handle.
///
/// Bytes that were allocated here are aligned to 64. Only a unique buffer can be written.
#[derive(Clone)]
pub struct Buffer {
    storage: Arc<Storage>,
    offset: usize,
    len: usize,
}

impl Buffer {
    pub(super) fn new(storage: Storage, len: usize) -> Self {
        Self { storage: Arc::new(storage), offset: 0, len }
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

    /// A handle on memory that `owner` keeps, such as a mapped file. Not aligned by itself.
    pub fn foreign(owner: impl AsRef<[u8]> + Send + Sync + 'static) -> Self {
        let len = owner.as_ref().len();
        Self::new(Storage { bytes: Bytes::Foreign(Box::new(owner)), pool: None }, len)
    }

    pub(super) fn strings(strings: Vec<String>) -> Self {
        Self::new(Storage { bytes: Bytes::Strings(strings), pool: None }, 0)
    }

    pub(super) fn as_strings(&self) -> Option<&[String]> {
        match &self.storage.bytes {
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
        &self.storage.as_bytes()[self.offset..self.offset + self.len]
    }

    /// The bytes for writing, if nobody else holds this memory.
    pub fn unique_bytes(&mut self) -> Option<&mut [u8]> {
        let (offset, len) = (self.offset, self.len);
        match &mut Arc::get_mut(&mut self.storage)?.bytes {
            Bytes::Heap(lines) => Some(&mut bytemuck::cast_slice_mut(lines)[offset..offset + len]),
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
            storage: Arc::clone(&self.storage),
            offset: self.offset + offset,
            len,
        })
    }

    /// A handle that does not keep the memory.
    pub(crate) fn downgrade(&self) -> WeakBuffer {
        WeakBuffer { storage: Arc::downgrade(&self.storage), offset: self.offset, len: self.len }
    }

    /// Whether two handles share memory.
    pub fn same_memory(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.storage, &other.storage)
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
        Some(Buffer { storage, offset: self.offset, len: self.len })
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes)", self.len)
    }
}
