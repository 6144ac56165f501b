//! The threads that a kernel may use.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use crate::error::{Result, err};

/// The calling thread alone, or a pool of a stated size that belongs to one actor.
///
/// Splitting never changes a result: kernels split over outputs, not over reductions.
#[derive(Clone, Default)]
pub struct Threads(Option<Arc<rayon::ThreadPool>>);

impl Threads {
    /// The calling thread alone.
    pub const fn single() -> Self {
        Self(None)
    }

    /// A pool of `count` threads (1: the calling thread alone).
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub fn new(count: usize) -> Result<Self> {
        if count <= 1 {
            return Ok(Self(None));
        }
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(count)
            .thread_name(|i| format!("brigade-kernel-{i}"))
            .build()
            .map_err(|e| err!(Device, "cannot start {count} kernel threads").with_source(e))?;
        Ok(Self(Some(Arc::new(pool))))
    }

    /// How many threads there are.
    pub fn count(&self) -> usize {
        self.0.as_ref().map_or(1, |p| p.current_num_threads())
    }

    /// Runs `work` on consecutive ranges that cover `0..total`, each a multiple of `grain` long
    /// (but the last), one range a thread.
    pub fn split(&self, total: usize, grain: usize, work: impl Fn(Range<usize>) + Sync) {
        let grain = grain.max(1);
        let parts = self.count().min(total.div_ceil(grain)).max(1);
        match &self.0 {
            Some(pool) if parts > 1 => {
                let each = total.div_ceil(grain).div_ceil(parts) * grain;
                pool.scope(|s| {
                    for i in 0..parts {
                        let range = (i * each).min(total)..((i + 1) * each).min(total);
                        let work = &work;
                        if !range.is_empty() {
                            s.spawn(move |_| work(range));
                        }
                    }
                });
            }
            _ => work(0..total),
        }
    }

    /// Runs `work` on consecutive chunks of `out`, each a multiple of `row` long, one chunk a
    /// thread, with the index of the chunk's first row.
    pub fn split_rows<T: Send>(
        &self,
        out: &mut [T],
        row: usize,
        work: impl Fn(usize, &mut [T]) + Sync,
    ) {
        let rows = if row == 0 { 0 } else { out.len() / row };
        let parts = self.count().min(rows).max(1);
        match &self.0 {
            Some(pool) if parts > 1 => {
                let each = rows.div_ceil(parts);
                pool.scope(|s| {
                    for (i, chunk) in out.chunks_mut(each * row).enumerate() {
                        let work = &work;
                        s.spawn(move |_| work(i * each, chunk));
                    }
                });
            }
            _ => work(0, out),
        }
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Threads({})", self.count())
    }
}
