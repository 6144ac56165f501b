//! A pool of host buffers, so that steady state allocates nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bytemuck::{Pod, Zeroable};

use super::buffer::{Buffer, Storage};
use crate::error::{Result, err};

/// A cache line; a vector of them is a byte buffer aligned to 64.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct Line([u8; 64]);

/// `count` lines of zeros.
///
/// # Errors
/// If the memory cannot be had.
pub(super) fn zeroed_lines(count: usize) -> Result<Vec<Line>> {
    bytemuck::allocation::try_zeroed_vec(count).map_err(|()| {
        let bytes = count.saturating_mul(LINE);
        err!(Limit, "{bytes} bytes of memory cannot be had")
            .with_help("use smaller inputs, a smaller batch, or fewer items in flight")
    })
}

/// Bytes of a [`Line`].
pub(crate) const LINE: usize = 64;

#[derive(Debug, Default)]
struct Shelves {
    free: HashMap<usize, Vec<Vec<Line>>>,
    held_bytes: usize,
    allocated: u64,
    reused: u64,
}

#[derive(Debug)]
pub(crate) struct PoolInner {
    shelves: Mutex<Shelves>,
    cap_bytes: usize,
}

impl PoolInner {
    pub(super) fn give_back(&self, lines: Vec<Line>) {
        let bytes = lines.len() * LINE;
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        if bytes > 0 && shelves.held_bytes + bytes <= self.cap_bytes {
            shelves.held_bytes += bytes;
            shelves.free.entry(lines.len()).or_default().push(lines);
        }
    }
}

/// A pool that buffers return to at their last drop, from whatever thread.
///
/// Buffers are kept by size class (at most a quarter larger than asked for), up to a cap in
/// bytes; a pool that is dropped before its buffers simply lets them go.
///
/// ```
/// use brigade::tensor::BufferPool;
/// let pool = BufferPool::new(1 << 20);
/// drop(pool.allocate(1000)?);
/// drop(pool.allocate(1000)?);
/// assert_eq!(pool.counts(), (1, 1)); // one allocation, one reuse
/// assert!(pool.allocate(1 << 60).is_err());
/// # Ok::<(), brigade::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct BufferPool(Arc<PoolInner>);

impl BufferPool {
    /// A pool that keeps at most `cap_bytes` of free buffers.
    pub fn new(cap_bytes: usize) -> Self {
        Self(Arc::new(PoolInner { shelves: Mutex::default(), cap_bytes }))
    }

    /// A buffer of `bytes` bytes, aligned to 64. Its contents are arbitrary (but initialised).
    ///
    /// # Errors
    /// If the memory cannot be had.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer> {
        let lines = size_class(bytes.div_ceil(LINE));
        let reused = {
            let mut shelves = self.0.shelves.lock().unwrap_or_else(PoisonError::into_inner);
            let found = shelves.free.get_mut(&lines).and_then(Vec::pop);
            if found.is_some() {
                shelves.held_bytes -= lines * LINE;
                shelves.reused += 1;
            } else {
                shelves.allocated += 1;
            }
            found
        };
        let lines = match reused {
            Some(lines) => lines,
            None => zeroed_lines(lines)?,
        };
        let weak: Weak<PoolInner> = Arc::downgrade(&self.0);
        Ok(Buffer::new(Storage::heap(lines, Some(weak)), bytes))
    }

    /// How many buffers were freshly allocated, and how many were reused.
    pub fn counts(&self) -> (u64, u64) {
        let shelves = self.0.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        (shelves.allocated, shelves.reused)
    }

    /// Bytes that lie free in the pool.
    pub fn held_bytes(&self) -> usize {
        self.0.shelves.lock().unwrap_or_else(PoisonError::into_inner).held_bytes
    }
}

impl Default for BufferPool {
    /// A pool that keeps up to 1 GiB.
    fn default() -> Self {
        Self::new(1 << 30)
    }
}

/// Rounds up to a number with at most three significant bits, so that near sizes share a shelf.
fn size_class(lines: usize) -> usize {
    if lines <= 8 {
        return lines;
    }
    let step = 1usize << (usize::BITS - 1 - lines.leading_zeros()).saturating_sub(2);
    lines.div_ceil(step) * step
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_waste_at_most_a_quarter() {
        for n in 1..5000 {
            let c = size_class(n);
            assert!(c >= n && (c - n) * 4 <= n, "{n} {c}");
            assert_eq!(size_class(c), c);
        }
    }

    #[test]
    fn the_cap_holds_and_the_pool_may_go_first() {
        let pool = BufferPool::new(128);
        drop(pool.allocate(64).unwrap());
        drop(pool.allocate(4096).unwrap());
        assert_eq!(pool.held_bytes(), 64);
        let buffer = pool.allocate(64).unwrap();
        drop(pool);
        drop(buffer);
    }
}
