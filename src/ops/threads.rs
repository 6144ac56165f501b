//! The threads that a kernel may use.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Result, err};
use crate::kernels::Parallel;

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
        let rows = out.len().checked_div(row).unwrap_or(0);
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

impl Threads {
    /// The threads for a kernel of so many multiply-adds: the calling one alone where waking
    /// others costs more than they save.
    pub fn for_work(&self, multiply_adds: usize) -> &dyn Parallel {
        const LEAST: usize = 1 << 21;
        if multiply_adds < LEAST { &crate::kernels::Serial } else { self }
    }

    /// As [`Self::split_rows`] for work that may fail; the error of the first failing chunk is
    /// returned after all of them have ended.
    ///
    /// # Errors
    /// Those of `work`.
    pub fn try_split_rows<T: Send>(
        &self,
        out: &mut [T],
        row: usize,
        work: impl Fn(usize, &mut [T]) -> Result<()> + Sync,
    ) -> Result<()> {
        let failed: Mutex<Option<(usize, Error)>> = Mutex::new(None);
        self.split_rows(out, row, |first, chunk| {
            if let Err(e) = work(first, chunk) {
                let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
                if failed.as_ref().is_none_or(|(at, _)| first < *at) {
                    *failed = Some((first, e));
                }
            }
        });
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some((_, e)) => Err(e),
            None => Ok(()),
        }
    }
}

impl Parallel for Threads {
    fn threads(&self) -> usize {
        self.count()
    }

    fn run(&self, tasks: usize, task: &(dyn Fn() + Sync)) {
        match &self.0 {
            Some(pool) => Parallel::run(&**pool, tasks, task),
            None => crate::kernels::Serial.run(tasks, task),
        }
    }
}

impl fmt::Debug for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Threads({})", self.count())
    }
}
