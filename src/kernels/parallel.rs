//! How a kernel borrows the threads of its caller.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Threads that a caller lends to a kernel for the time of one call.
///
/// A kernel cuts its work into tasks and hands over one closure that is to be called once per
/// task, from any thread. Which call does which task is decided inside, so an implementation
/// cannot break anything: tasks it forgets are done by the caller's thread afterwards.
pub trait Parallel: Sync {
    /// How many tasks may run at once; 1 means that everything stays on the calling thread.
    fn threads(&self) -> usize;

    /// Calls `task` `tasks` times, possibly at once, and returns when all calls have returned.
    fn run(&self, tasks: usize, task: &(dyn Fn() + Sync));
}

/// The calling thread alone.
#[derive(Clone, Copy, Debug, Default)]
pub struct Serial;

impl Parallel for Serial {
    fn threads(&self) -> usize {
        1
    }

    fn run(&self, tasks: usize, task: &(dyn Fn() + Sync)) {
        for _ in 0..tasks {
            task();
        }
    }
}

impl Parallel for rayon::ThreadPool {
    fn threads(&self) -> usize {
        self.current_num_threads()
    }

    fn run(&self, tasks: usize, task: &(dyn Fn() + Sync)) {
        self.scope(|scope| {
            for _ in 1..tasks {
                scope.spawn(|_| task());
            }
            if tasks > 0 {
                task();
            }
        });
    }
}

/// The `part`-th of `parts` nearly equal pieces of `0..len`, cut at multiples of `step`.
///
/// ```
/// use brigade::kernels::split_range;
/// assert_eq!(split_range(100, 2, 0, 16), 0..64);
/// assert_eq!(split_range(100, 2, 1, 16), 64..100);
/// assert!(split_range(10, 4, 3, 16).is_empty());
/// ```
pub fn split_range(len: usize, parts: usize, part: usize, step: usize) -> Range<usize> {
    let (parts, step) = (parts.max(1), step.max(1));
    let steps = len.div_ceil(step);
    let at = |i: usize| {
        let i = i.min(parts);
        let whole = steps / parts * i + (steps % parts).min(i);
        whole.saturating_mul(step).min(len)
    };
    at(part)..at(part.saturating_add(1))
}

/// Runs `body(i)` for each `i` in `0..parts` exactly once.
pub(in crate::kernels) fn for_each_part(
    par: &dyn Parallel,
    parts: usize,
    body: &(dyn Fn(usize) + Sync),
) {
    if parts <= 1 || par.threads() <= 1 {
        (0..parts).for_each(body);
        return;
    }
    // Each call claims the next part, so no part can run twice whatever `par` does.
    let next = AtomicUsize::new(0);
    let claim = || {
        let i = next.fetch_add(1, Ordering::Relaxed);
        if i < parts {
            body(i);
        }
        i < parts
    };
    par.run(parts, &|| {
        claim();
    });
    while claim() {}
}

/// A mutable buffer that several parts of one kernel write, each to its own elements.
#[derive(Clone, Copy)]
pub(in crate::kernels) struct SharedOut<T>(*mut T);

// SAFETY: the pointer is only dereferenced by kernels that give each part disjoint elements of
// one exclusively borrowed slice, for no longer than that borrow.
unsafe impl<T: Send> Send for SharedOut<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedOut<T> {}

impl<T> SharedOut<T> {
    pub(in crate::kernels) fn new(slice: &mut [T]) -> Self {
        Self(slice.as_mut_ptr())
    }

    pub(in crate::kernels) fn ptr(&self) -> *mut T {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn pieces_cover_the_range_once() {
        for len in [0, 1, 5, 16, 17, 100] {
            for parts in 1..8 {
                let mut end = 0;
                for p in 0..parts {
                    let r = split_range(len, parts, p, 6);
                    assert_eq!(r.start, end);
                    assert!(r.start.is_multiple_of(6) || r.start == len);
                    end = r.end;
                }
                assert_eq!(end, len);
            }
        }
    }

    /// Calls too often, too rarely, or not at all.
    struct Sloppy(usize);
    impl Parallel for Sloppy {
        fn threads(&self) -> usize {
            2
        }
        fn run(&self, _: usize, task: &(dyn Fn() + Sync)) {
            for _ in 0..self.0 {
                task();
            }
        }
    }

    #[test]
    fn every_part_runs_once_whatever_the_executor_does() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        let pars: [&dyn Parallel; 5] = [&Serial, &Sloppy(0), &Sloppy(3), &Sloppy(40), &pool];
        for par in pars {
            let seen = Mutex::new(vec![0; 9]);
            for_each_part(par, 9, &|i| seen.lock().unwrap()[i] += 1);
            assert_eq!(*seen.lock().unwrap(), vec![1; 9]);
        }
    }
}
