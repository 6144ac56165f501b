//! What the cores can do at most, measured.

use std::fmt;

use serde::Serialize;

use crate::error::{Result, err};
use crate::kernels::{Isa, fma_gflops, read_gb_per_s};

/// The peaks of so many threads that compute at once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Peaks {
    /// How many threads.
    pub threads: usize,
    /// The instruction set that kernels use.
    pub isa: &'static str,
    /// f32 multiply-adds in registers, in GFLOP/s of all threads.
    pub gflops: f64,
    /// Reading memory that no cache holds, in GB/s of all threads.
    pub read_gb_per_s: f64,
}

impl Peaks {
    /// Measures them; takes about half a second, and 256 MiB a thread.
    ///
    /// # Errors
    /// If a thread cannot be had.
    pub fn measure(threads: usize) -> Result<Self> {
        let isa = Isa::best();
        Ok(Self {
            threads,
            isa: isa.name(),
            gflops: together(threads, || fma_gflops(isa))?,
            read_gb_per_s: together(threads, read_gb_per_s)?,
        })
    }

    /// The seconds in which nothing can do so much arithmetic and move so many bytes.
    pub(super) fn least_seconds(&self, flops: f64, bytes: f64) -> f64 {
        (flops / (self.gflops * 1e9)).max(bytes / (self.read_gb_per_s * 1e9))
    }
}

impl fmt::Display for Peaks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} GFLOP/s multiply-add ({}), {:.1} GB/s reading memory",
            self.gflops, self.isa, self.read_gb_per_s
        )
    }
}

/// The sum of what so many threads measure at once.
fn together(threads: usize, measure: impl Fn() -> f64 + Sync) -> Result<f64> {
    if threads <= 1 {
        return Ok(measure());
    }
    std::thread::scope(|scope| {
        let mut all = Vec::with_capacity(threads);
        for _ in 0..threads {
            all.push(std::thread::Builder::new().spawn_scoped(scope, &measure)?);
        }
        let mut sum = 0.0;
        for thread in all {
            sum += thread.join().map_err(|_| err!(Panic, "measuring a peak panicked"))?;
        }
        Ok(sum)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_limit_counts() {
        let peaks = Peaks { threads: 1, isa: "scalar", gflops: 10.0, read_gb_per_s: 2.0 };
        assert_eq!(peaks.least_seconds(1e9, 1e6), 0.1);
        assert_eq!(peaks.least_seconds(1e6, 1e9), 0.5);
    }
}
