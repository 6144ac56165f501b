//! Pooling in plain loops, for every dtype and window that has no kernel of its own.

use crate::error::Result;
use crate::ops::Threads;
use crate::ops::matmul::plain::Ring;
use crate::ops::window::{Axis, padded_axes};

/// Numbers that have a least one.
pub(super) trait Ordered: Ring {
    const LEAST: Self;
}

macro_rules! ordered {
    ($($t:ty => $least:expr),*) => { $(impl Ordered for $t { const LEAST: Self = $least; })* };
}
ordered!(f32 => f32::NEG_INFINITY, f64 => f64::NEG_INFINITY, i8 => i8::MIN, i16 => i16::MIN,
    i32 => i32::MIN, i64 => i64::MIN, u8 => 0, u16 => 0, u32 => 0, u64 => 0);

/// The window over three axes, and the sizes of the planes that it moves over.
pub(super) struct Planes {
    axes: [Axis; 3],
    input: usize,
    output: usize,
}

impl Planes {
    pub(super) fn new(axes: &[Axis]) -> Result<Self> {
        let axes = padded_axes::<3>(axes)?;
        let product = |f: fn(&Axis) -> usize| axes.iter().map(f).product();
        Ok(Self { input: product(|a| a.size), output: product(|a| a.out), axes })
    }

    /// Calls `visit` with the output and the input row of each run of elements that one tap
    /// brings together: the output's start, the input's start, the input's step, the length.
    fn runs(&self, mut visit: impl FnMut(usize, usize, usize, usize)) {
        let [d, h, v] = &self.axes;
        for td in 0..d.kernel {
            for th in 0..h.kernel {
                for tv in 0..v.kernel {
                    let (columns, source) = v.inside(tv);
                    if columns.is_empty() {
                        continue;
                    }
                    for od in 0..d.out {
                        let Some(id) = d.source(od, td) else { continue };
                        for oh in 0..h.out {
                            let Some(ih) = h.source(oh, th) else { continue };
                            let to = (od * h.out + oh) * v.out + columns.start;
                            let from = (id * h.size + ih) * v.size + source;
                            visit(to, from, v.stride, columns.len());
                        }
                    }
                }
            }
        }
    }

    /// Folds every plane of `x`: each output starts as `start` and takes in each element under
    /// its window, in the order of the taps.
    pub(super) fn fold<T: Ring>(
        &self,
        x: &[T],
        out: &mut [T],
        start: T,
        threads: &Threads,
        step: impl Fn(T, T) -> T + Sync,
    ) {
        threads.split_rows(out, self.output, |first, chunk| {
            for (p, to) in chunk.chunks_exact_mut(self.output.max(1)).enumerate() {
                let image = &x[(first + p) * self.input..][..self.input];
                to.fill(start);
                self.runs(|at, from, stride, count| {
                    let from = image[from..].iter().step_by(stride);
                    for (o, x) in to[at..at + count].iter_mut().zip(from) {
                        *o = step(*o, *x);
                    }
                });
            }
        });
    }

    /// Where the (first) maximum under each window lies in its plane; -1 where there is nothing
    /// but padding.
    pub(super) fn arg_max<T: Ordered>(&self, x: &[T], out: &mut [i64], threads: &Threads) {
        threads.split_rows(out, self.output, |first, chunk| {
            for (p, to) in chunk.chunks_exact_mut(self.output.max(1)).enumerate() {
                let image = &x[(first + p) * self.input..][..self.input];
                to.fill(-1);
                self.runs(|at, from, stride, count| {
                    for (i, o) in to[at..at + count].iter_mut().enumerate() {
                        let here = from + i * stride;
                        let best = usize::try_from(*o).ok().and_then(|o| image.get(o));
                        if best.is_none_or(|best| image[here] > *best) {
                            *o = i64::try_from(here).unwrap_or(i64::MAX);
                        }
                    }
                });
            }
        });
    }

    /// Turns indices within a plane into indices of the whole input, with the spatial axes in
    /// this order or, `reversed`, the other way round.
    pub(super) fn globalise(&self, indices: &mut [i64], reversed: bool) {
        let [d, h, v] = &self.axes;
        let plane = i64::try_from(self.input).unwrap_or(i64::MAX);
        let number = |n: usize| i64::try_from(n).unwrap_or(i64::MAX);
        for (p, run) in (0_i64..).zip(indices.chunks_mut(self.output.max(1))) {
            for i in run {
                let Ok(at) = usize::try_from(*i) else { continue };
                if reversed {
                    let (z, y, x) = (at / (h.size * v.size), at / v.size % h.size, at % v.size);
                    *i = number(z + d.size * (y + h.size * x));
                }
                *i += p * plane;
            }
        }
    }

    /// How many elements are under each window of a plane, padding perhaps counted too (but
    /// nothing beyond it).
    pub(super) fn counts(&self, padding: bool) -> Vec<usize> {
        let along = |a: &Axis| -> Vec<usize> {
            let end = a.size + if padding { a.pads[0] + a.pads[1] } else { 0 };
            let begin = if padding { 0 } else { a.pads[0] };
            let count = |at: usize| {
                let inside =
                    |t: &usize| (begin..begin + end).contains(&(at * a.stride + t * a.dilation));
                (0..a.kernel).filter(inside).count()
            };
            (0..a.out).map(count).collect()
        };
        let [d, h, v] = [&self.axes[0], &self.axes[1], &self.axes[2]].map(along);
        let mut out = Vec::with_capacity(self.output);
        for d in d {
            for h in &h {
                out.extend(v.iter().map(|v| d * h * v));
            }
        }
        out
    }

    /// Elements of a plane of the output.
    pub(super) fn output(&self) -> usize {
        self.output
    }
}
