//! A pool of host buffers, so that steady state allocates nothing.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytemuck::{Pod, Zeroable};

use super::buffer::{Buffer, Storage};
use super::layout::{Layout, Lifetime};
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

/// Where the memory of a pool belongs when nobody holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// On the shelf of its size.
    Shelf,
    /// There, too; it was asked for in a run that is recorded.
    Recorded { run: u64, index: usize },
    /// In the block with this number.
    Block(usize),
    /// Nobody holds it now, and if the pool drops it, it is not to come back.
    Free,
}

/// What a run's allocations are for the pool.
#[derive(Debug)]
enum Recording {
    /// Written down.
    Written { run: u64, lifetimes: Vec<Lifetime>, clock: usize },
    /// Taken from where they are laid out.
    LaidOut { run: u64, layout: Arc<Layout>, next: usize },
}

/// So many allocations in a run are not laid out: finding the blocks would take long.
const MOST_LAID_OUT: usize = 4096;

/// Memory that buffers of planned runs take turns in.
#[derive(Debug)]
struct Block {
    lines: usize,
    /// The memory, unless it is not allocated yet or somebody holds it.
    free: Option<Arc<Storage>>,
    held: bool,
}

#[derive(Debug, Default)]
struct Shelves {
    /// What is free, by its number of lines, in order.
    free: Shelved,
    blocks: Vec<Block>,
    recording: Option<Recording>,
    runs: u64,
    held_bytes: usize,
    /// Bytes of the blocks that are free.
    free_block_bytes: usize,
    owned_bytes: usize,
    allocated: u64,
    reused: u64,
}

impl Shelves {
    /// Takes memory off the shelf of this size.
    fn take(&mut self, lines: usize) -> Option<Arc<Storage>> {
        let at = self.free.binary_search_by_key(&lines, |(size, _)| *size).ok()?;
        let found = self.free[at].1.pop()?;
        self.held_bytes -= lines * LINE;
        Some(found)
    }

    /// Says where the next allocation belongs, and gives its memory if it is there already.
    fn next(&mut self, lines: usize) -> (Place, Option<Arc<Storage>>) {
        match &mut self.recording {
            None => (Place::Shelf, None),
            Some(Recording::Written { lifetimes, .. }) if lifetimes.len() == MOST_LAID_OUT => {
                (Place::Shelf, None)
            }
            Some(Recording::Written { run, lifetimes, clock }) => {
                let place = Place::Recorded { run: *run, index: lifetimes.len() };
                *clock += 1;
                lifetimes.push(Lifetime { lines, from: *clock, until: None });
                (place, None)
            }
            Some(Recording::LaidOut { layout, next, .. }) => {
                let at = layout.block(*next, lines);
                *next += 1;
                match at.and_then(|at| Some((at, self.blocks.get_mut(at)?))) {
                    Some((at, block)) if !block.held => {
                        block.held = true;
                        let free = block.free.take();
                        let lines = free.as_ref().map_or(0, |s| s.lines());
                        self.free_block_bytes -= lines * LINE;
                        (Place::Block(at), free)
                    }
                    _ => (Place::Shelf, None),
                }
            }
        }
    }
}

type Shelved = Vec<(usize, Vec<Arc<Storage>>)>;

impl Shelves {
    /// Takes everything off the shelves, to be freed.
    fn clear(&mut self) -> Shelved {
        self.owned_bytes -= self.held_bytes;
        self.held_bytes = 0;
        std::mem::take(&mut self.free)
    }
}

impl Recording {
    fn run(&self) -> u64 {
        match self {
            Self::Written { run, .. } | Self::LaidOut { run, .. } => *run,
        }
    }
}

impl std::fmt::Debug for Storage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Storage({} lines)", self.lines())
    }
}

#[derive(Debug)]
pub(crate) struct PoolInner {
    shelves: Mutex<Shelves>,
    cap_bytes: usize,
    /// Whether it only hands out what [`Buffer::for_weights`] makes.
    of_weights: bool,
}

impl PoolInner {
    fn shelves(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes back memory that nobody holds any more.
    pub(super) fn give_back(&self, mut storage: Arc<Storage>) {
        let Some(unique) = Arc::get_mut(&mut storage) else { return };
        let lines = unique.lines();
        let place = std::mem::replace(&mut unique.place, Place::Free);
        let mut guard = self.shelves();
        let shelves = &mut *guard;
        if let Place::Block(at) = place {
            if let Some(block) = shelves.blocks.get_mut(at) {
                block.held = false;
                let free = shelves.held_bytes + shelves.free_block_bytes + lines * LINE;
                if block.lines == lines && free <= self.cap_bytes {
                    block.free = Some(storage);
                    shelves.free_block_bytes += lines * LINE;
                    return;
                }
            }
        } else {
            if let (
                Place::Recorded { run, index },
                Some(Recording::Written { run: now, lifetimes, clock }),
            ) = (place, &mut shelves.recording)
                && run == *now
                && let Some(lifetime) = lifetimes.get_mut(index)
            {
                *clock += 1;
                lifetime.until = Some(*clock);
            }
            let free = shelves.held_bytes + shelves.free_block_bytes + lines * LINE;
            if free <= self.cap_bytes {
                shelves.held_bytes += lines * LINE;
                match shelves.free.binary_search_by_key(&lines, |(size, _)| *size) {
                    Ok(at) => shelves.free[at].1.push(storage),
                    Err(at) => shelves.free.insert(at, (lines, vec![storage])),
                }
                return;
            }
        }
        shelves.owned_bytes -= lines * LINE;
        drop(guard);
        // Freed without the lock.
        drop(storage);
    }
}

/// A pool that buffers return to at their last drop, from whatever thread.
///
/// Buffers are kept by size class (at most a quarter larger than asked for), up to a cap in
/// bytes; a pool that is dropped before its buffers simply lets them go. Where an instance runs the
/// same shapes again, its buffers are laid out: they take turns in as few blocks as their lifetimes
/// allow ([`BufferPool::planned_bytes`]).
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
    /// A pool that keeps at most `cap_bytes` of free memory.
    pub fn new(cap_bytes: usize) -> Self {
        Self(Arc::new(PoolInner { shelves: Mutex::default(), cap_bytes, of_weights: false }))
    }

    /// A pool for what is computed from weights when a graph is compiled: it keeps nothing, and what
    /// comes from it goes back to the system when it is dropped.
    pub(crate) fn of_weights() -> Self {
        let shelves = Mutex::default();
        Self(Arc::new(PoolInner { shelves, cap_bytes: 0, of_weights: true }))
    }

    /// A buffer of `bytes` bytes, aligned to 64. Its contents are arbitrary (but initialised).
    ///
    /// # Errors
    /// If the memory cannot be had.
    pub fn allocate(&self, bytes: usize) -> Result<Buffer> {
        if self.0.of_weights {
            return Buffer::for_weights(bytes);
        }
        let exact = bytes.div_ceil(LINE);
        let class = size_class(exact);
        let (place, lines, reused) = {
            let mut shelves = self.0.shelves();
            let (place, mut found) = shelves.next(exact);
            let lines = match place {
                Place::Block(at) => shelves.blocks[at].lines,
                _ => class,
            };
            if !matches!(place, Place::Block(_)) {
                found = shelves.take(class);
            }
            match found {
                Some(_) => shelves.reused += 1,
                None => {
                    shelves.allocated += 1;
                    shelves.owned_bytes += lines * LINE;
                }
            }
            (place, lines, found)
        };
        let storage = match reused {
            Some(mut storage) => {
                if let Some(unique) = Arc::get_mut(&mut storage) {
                    unique.place = place;
                }
                storage
            }
            None => match zeroed_lines(lines) {
                Ok(lines) => {
                    let mut storage = Storage::heap(lines, Some(Arc::downgrade(&self.0)));
                    storage.place = place;
                    Arc::new(storage)
                }
                Err(e) => {
                    let mut shelves = self.0.shelves();
                    shelves.owned_bytes -= lines * LINE;
                    if let Place::Block(at) = place {
                        shelves.blocks[at].held = false;
                    }
                    return Err(e);
                }
            },
        };
        Ok(Buffer::of(storage, bytes))
    }

    /// Writes down the allocations of a run from now on; `None` if one is under way.
    pub(crate) fn record(&self) -> Option<Run<'_>> {
        let mut shelves = self.0.shelves();
        if shelves.recording.is_some() {
            return None;
        }
        shelves.runs += 1;
        let run = shelves.runs;
        shelves.recording = Some(Recording::Written { run, lifetimes: Vec::new(), clock: 0 });
        Some(Run { pool: self, number: run })
    }

    /// Takes the allocations of a run from now on out of the blocks where they are laid out; `None`
    /// if a run is under way.
    pub(crate) fn lay_out(&self, layout: &Arc<Layout>) -> Option<Run<'_>> {
        let mut shelves = self.0.shelves();
        if shelves.recording.is_some() {
            return None;
        }
        let (mut outgrown, mut grown) = (Vec::new(), false);
        for (at, lines) in layout.blocks().iter().enumerate() {
            match shelves.blocks.get_mut(at) {
                None => {
                    shelves.blocks.push(Block { lines: *lines, free: None, held: false });
                    grown = true;
                }
                Some(block) if block.lines < *lines => {
                    block.lines = *lines;
                    outgrown.extend(block.free.take());
                    grown = true;
                }
                Some(_) => {}
            }
        }
        let lines: usize = outgrown.iter().map(|s| s.lines()).sum();
        shelves.owned_bytes -= lines * LINE;
        shelves.free_block_bytes -= lines * LINE;
        // Those who took what lies on the shelves take blocks from now on.
        let shelved = if grown { shelves.clear() } else { Vec::new() };
        shelves.runs += 1;
        let run = shelves.runs;
        shelves.recording = Some(Recording::LaidOut { run, layout: Arc::clone(layout), next: 0 });
        drop(shelves);
        drop((outgrown, shelved));
        Some(Run { pool: self, number: run })
    }

    /// Bytes of the blocks that the buffers of repeated runs take turns in.
    pub fn planned_bytes(&self) -> usize {
        self.0.shelves().blocks.iter().map(|b| b.lines * LINE).sum()
    }

    /// Bytes of all memory that came from here and was not freed, whoever holds it.
    pub fn owned_bytes(&self) -> usize {
        self.0.shelves().owned_bytes
    }

    /// How many buffers were freshly allocated, and how many were reused.
    pub fn counts(&self) -> (u64, u64) {
        let shelves = self.0.shelves();
        (shelves.allocated, shelves.reused)
    }

    /// Bytes that lie free in the pool.
    pub fn held_bytes(&self) -> usize {
        let shelves = self.0.shelves();
        shelves.held_bytes + shelves.free_block_bytes
    }
}

/// The allocations of a run, until it is dropped.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pool: &'a BufferPool,
    number: u64,
}

impl Run<'_> {
    /// Ends it. If it was written down, says how its buffers are to be laid out: not at all if they
    /// were too many.
    pub(crate) fn finish(self) -> Option<Layout> {
        match self.end()? {
            Recording::Written { lifetimes, .. } if lifetimes.len() < MOST_LAID_OUT => {
                Some(Layout::new(&lifetimes))
            }
            Recording::Written { .. } => Some(Layout::default()),
            Recording::LaidOut { .. } => None,
        }
    }

    /// What is written down of this run, and of no other.
    fn end(&self) -> Option<Recording> {
        self.pool.0.shelves().recording.take_if(|r| r.run() == self.number)
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        drop(self.end());
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

    /// A chain of buffers, each let go after the next was made, and one that outlives the run.
    fn run(pool: &BufferPool, sizes: &[usize]) -> Buffer {
        let mut last = pool.allocate(1).unwrap();
        for size in sizes {
            let mut next = pool.allocate(*size).unwrap();
            next.unique_bytes().unwrap().fill(1);
            last = next;
        }
        drop(last);
        pool.allocate(100).unwrap()
    }

    #[test]
    fn a_repeated_run_is_laid_out() {
        let pool = BufferPool::default();
        let sizes: Vec<usize> = (1..20).map(|i| 1000 * i).collect();
        let recording = pool.record().unwrap();
        assert!(pool.record().is_none(), "one at a time");
        let kept = run(&pool, &sizes);
        let layout = Arc::new(recording.finish().unwrap());
        drop(pool.lay_out(&layout).unwrap());
        assert_eq!(pool.owned_bytes(), 128, "the shelves make room for blocks");
        for _ in 0..3 {
            let laid_out = pool.lay_out(&layout).unwrap();
            drop(run(&pool, &sizes));
            assert!(laid_out.finish().is_none());
        }
        // The two largest, and for what is not in the run.
        let blocks = (19_000_usize.div_ceil(LINE) + 18_000_usize.div_ceil(LINE)) * LINE;
        assert_eq!(pool.planned_bytes(), blocks);
        assert_eq!(pool.owned_bytes(), blocks + 128 + 128);
        // A run that does something else gets memory all the same.
        let (allocated, _) = pool.counts();
        let laid_out = pool.lay_out(&layout).unwrap();
        let held: Vec<Buffer> = sizes.iter().map(|s| pool.allocate(*s).unwrap()).collect();
        drop(laid_out);
        assert!(pool.counts().0 > allocated);
        drop(held);
        assert_eq!(pool.held_bytes() + 128, pool.owned_bytes());
        drop(kept);
        assert_eq!(pool.held_bytes(), pool.owned_bytes());
    }

    #[test]
    fn shapes_share_blocks_which_grow() {
        let pool = BufferPool::default();
        let record = |sizes: &[usize]| {
            let recording = pool.record().unwrap();
            drop(run(&pool, sizes));
            Arc::new(recording.finish().unwrap())
        };
        let (small, large) = (record(&[4096, 8192]), record(&[1 << 20, 4096, 1 << 16]));
        for layout in [&small, &large, &small, &large] {
            let sizes: &[usize] =
                if Arc::ptr_eq(layout, &small) { &[4096, 8192] } else { &[1 << 20, 4096, 1 << 16] };
            let laid_out = pool.lay_out(layout).unwrap();
            drop(run(&pool, sizes));
            drop(laid_out);
        }
        let largest = (1 << 20) + (1 << 16);
        assert!(pool.planned_bytes() <= largest + 4096, "{}", pool.planned_bytes());
        assert_eq!(pool.held_bytes(), pool.owned_bytes());
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
