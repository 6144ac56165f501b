//! How inputs of several shapes meet element by element.
//!
//! Adjacent axes along which every input either moves on or stands still are folded into one, so
//! that same shapes, scalars, rows and channels all come down to a few long runs.

use crate::error::Result;
use crate::ops::Threads;
use crate::tensor::{Few, Shape, broadcast_shapes};

/// Fewer elements than this are not worth waking another thread for.
const SPLIT_FROM: usize = 1 << 15;

/// Runs `work` on chunks of `out`, whole rows each, on the threads if there is enough to do.
pub(in crate::ops) fn spread<T: Send>(
    threads: &Threads,
    out: &mut [T],
    row: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    let elements = out.len();
    spread_erased(threads, out, row, elements, &work);
}

/// As [`spread`], where another number of elements tells how much there is to do.
pub(in crate::ops) fn spread_work<T: Send>(
    threads: &Threads,
    out: &mut [T],
    row: usize,
    elements: usize,
    work: impl Fn(usize, &mut [T]) + Sync,
) {
    spread_erased(threads, out, row, elements, &work);
}

/// Compiled once for each element type, not for each function.
fn spread_erased<T: Send>(
    threads: &Threads,
    out: &mut [T],
    row: usize,
    elements: usize,
    work: &(dyn Fn(usize, &mut [T]) + Sync),
) {
    if elements < SPLIT_FROM {
        work(0, out);
    } else {
        threads.split_rows(out, row, work);
    }
}

#[derive(Clone, Copy, Debug)]
struct Axis<const N: usize> {
    extent: usize,
    /// How far each input moves along it; 0 where the input is broadcast.
    strides: [usize; N],
}

impl<const N: usize> Default for Axis<N> {
    fn default() -> Self {
        Self { extent: 0, strides: [0; N] }
    }
}

/// The plan for `N` inputs: outer axes that count runs of `inner` elements.
#[derive(Debug)]
pub(in crate::ops) struct Broadcast<const N: usize> {
    /// The common shape.
    pub(in crate::ops) shape: Shape,
    outer: Few<Axis<N>>,
    /// The length of a run.
    inner: usize,
    /// Whether each input moves on within a run (1) or stands still (0).
    step: [usize; N],
}

impl<const N: usize> Broadcast<N> {
    /// # Errors
    /// If the shapes cannot be broadcast together.
    pub(in crate::ops) fn new(shapes: [&[usize]; N]) -> Result<Self> {
        let shape = broadcast_shapes(&shapes)?;
        let mut axes: Few<Axis<N>> = Few::new();
        let mut size = [1usize; N];
        // From the innermost axis outwards.
        for back in 1..=shape.rank() {
            let extent = shape[shape.rank() - back];
            if extent == 1 {
                continue;
            }
            let mut strides = [0; N];
            for k in 0..N {
                let s = shapes[k];
                if s.len() >= back && s[s.len() - back] != 1 {
                    strides[k] = size[k];
                    size[k] *= extent;
                }
            }
            match axes.last_mut() {
                Some(last) if (0..N).all(|k| strides[k] == last.strides[k] * last.extent) => {
                    last.extent *= extent;
                }
                _ => axes.push(Axis { extent, strides }),
            }
        }
        axes.reverse();
        let (inner, step) = match axes.pop() {
            Some(a) => (a.extent, a.strides),
            None => (1, [0; N]),
        };
        Ok(Self { shape, outer: axes, inner, step })
    }

    /// Calls `run` for each run of `out`, which starts at element `first` of the whole, with the
    /// inputs' offsets. `out` starts and ends between runs unless there is only one.
    fn for_runs<O>(&self, first: usize, out: &mut [O], mut run: impl FnMut([usize; N], &mut [O])) {
        if out.is_empty() {
            return;
        }
        if self.outer.is_empty() {
            run(self.step.map(|s| s * first), out);
            return;
        }
        let mut index = Few::filled(0_usize, self.outer.len());
        let mut at = [0usize; N];
        let mut rest = first / self.inner.max(1);
        for (i, axis) in index.iter_mut().zip(&self.outer).rev() {
            *i = rest % axis.extent.max(1);
            rest /= axis.extent.max(1);
            for k in 0..N {
                at[k] += *i * axis.strides[k];
            }
        }
        for chunk in out.chunks_mut(self.inner.max(1)) {
            run(at, chunk);
            for (i, axis) in index.iter_mut().zip(&self.outer).rev() {
                *i += 1;
                for k in 0..N {
                    at[k] += axis.strides[k];
                }
                if *i < axis.extent {
                    break;
                }
                for k in 0..N {
                    at[k] -= axis.extent * axis.strides[k];
                }
                *i = 0;
            }
        }
    }

    fn row(&self) -> usize {
        if self.outer.is_empty() { 1 } else { self.inner }
    }
}

/// Rows of fewer elements than this are worked on together, where one operand repeats its row:
/// the channels of a pixel.
const SHORT_ROW: usize = 32;

impl Broadcast<2> {
    /// The plan with the innermost outer axis made part of the runs, where along it rows that are
    /// short move on in one input and repeat in the other; and which one that is.
    fn tiled(&self) -> Option<(Self, usize)> {
        let last = self.outer.last()?;
        if self.step != [1, 1] || self.inner >= SHORT_ROW || last.extent < 2 {
            return None;
        }
        let repeated = match last.strides {
            [s, 0] if s == self.inner => 1,
            [0, s] if s == self.inner => 0,
            _ => return None,
        };
        let outer = &self.outer[..self.outer.len() - 1];
        let outer = outer.into();
        let mut step = [1, 1];
        step[repeated] = 0;
        let inner = self.inner * last.extent;
        Some((Self { shape: self.shape.clone(), outer, inner, step }, repeated))
    }

    /// `out[i] = f(a[i], b[i])`.
    pub(in crate::ops) fn zip<A: Copy + Sync, B: Copy + Sync, O: Copy + Send>(
        &self,
        threads: &Threads,
        a: &[A],
        b: &[B],
        out: &mut [O],
        f: impl Fn(A, B) -> O + Sync,
    ) {
        if let Some((plan, repeated)) = self.tiled() {
            let row = if plan.outer.is_empty() { self.inner } else { plan.inner };
            spread(threads, out, row, |r, chunk| {
                plan.for_runs(r * row, chunk, |[i, j], out| match repeated {
                    1 => rows(out, &a[i..], &b[j..][..self.inner], &f),
                    _ => rows(out, &b[j..], &a[i..][..self.inner], |y, x| f(x, y)),
                });
            });
            return;
        }
        let row = self.row();
        spread(threads, out, row, |r, chunk| {
            self.for_runs(r * row, chunk, |[i, j], out| match self.step {
                [1, 1] => {
                    for ((o, &x), &y) in out.iter_mut().zip(&a[i..]).zip(&b[j..]) {
                        *o = f(x, y);
                    }
                }
                [1, _] => {
                    let y = b[j];
                    for (o, &x) in out.iter_mut().zip(&a[i..]) {
                        *o = f(x, y);
                    }
                }
                [_, 1] => {
                    let x = a[i];
                    for (o, &y) in out.iter_mut().zip(&b[j..]) {
                        *o = f(x, y);
                    }
                }
                _ => out.fill(f(a[i], b[j])),
            });
        });
    }

    /// `x[i] = f(x[i], y[i])`, where `x` has the common shape and `y` is input `other`.
    pub(in crate::ops) fn zip_in_place<T: Copy + Send + Sync>(
        &self,
        threads: &Threads,
        x: &mut [T],
        y: &[T],
        other: usize,
        f: impl Fn(T, T) -> T + Sync,
    ) {
        if let Some((plan, repeated)) = self.tiled()
            && repeated == other
        {
            let row = if plan.outer.is_empty() { self.inner } else { plan.inner };
            spread(threads, x, row, |r, chunk| {
                plan.for_runs(r * row, chunk, |at, x| {
                    rows_in_place(x, &y[at[other]..][..self.inner], &f);
                });
            });
            return;
        }
        let row = self.row();
        spread(threads, x, row, |r, chunk| {
            self.for_runs(r * row, chunk, |at, x| {
                let y = &y[at[other]..];
                if self.step[other] == 1 {
                    for (x, &y) in x.iter_mut().zip(y) {
                        *x = f(*x, y);
                    }
                } else {
                    let y = y[0];
                    for x in x {
                        *x = f(*x, y);
                    }
                }
            });
        });
    }
}

/// `out[i] = f(x[i], row[i % row.len()])`.
fn rows<X: Copy, R: Copy, O>(out: &mut [O], x: &[X], row: &[R], f: impl Fn(X, R) -> O) {
    // Rows of a known length stay in a register.
    if let Ok(row) = <[R; 8]>::try_from(row) {
        for (o, x) in out.chunks_exact_mut(8).zip(x.chunks_exact(8)) {
            for k in 0..8 {
                o[k] = f(x[k], row[k]);
            }
        }
        return;
    }
    let pairs = out.chunks_exact_mut(row.len().max(1)).zip(x.chunks_exact(row.len().max(1)));
    for (o, x) in pairs {
        for ((o, &x), &r) in o.iter_mut().zip(x).zip(row) {
            *o = f(x, r);
        }
    }
}

/// `x[i] = f(x[i], row[i % row.len()])`.
fn rows_in_place<T: Copy>(x: &mut [T], row: &[T], f: impl Fn(T, T) -> T) {
    if let Ok(row) = <[T; 8]>::try_from(row) {
        for x in x.chunks_exact_mut(8) {
            for k in 0..8 {
                x[k] = f(x[k], row[k]);
            }
        }
        return;
    }
    for x in x.chunks_exact_mut(row.len().max(1)) {
        for (x, &r) in x.iter_mut().zip(row) {
            *x = f(*x, r);
        }
    }
}

impl Broadcast<3> {
    /// `out[i] = f(a[i], b[i], c[i])`.
    pub(in crate::ops) fn zip<A, B, C, O>(
        &self,
        threads: &Threads,
        a: &[A],
        b: &[B],
        c: &[C],
        out: &mut [O],
        f: impl Fn(A, B, C) -> O + Sync,
    ) where
        A: Copy + Sync,
        B: Copy + Sync,
        C: Copy + Sync,
        O: Copy + Send,
    {
        let row = self.row();
        spread(threads, out, row, |r, chunk| {
            self.for_runs(r * row, chunk, |[i, j, k], out| match self.step {
                [1, 1, 1] => {
                    let others = a[i..].iter().zip(&b[j..]).zip(&c[k..]);
                    for (o, ((&x, &y), &z)) in out.iter_mut().zip(others) {
                        *o = f(x, y, z);
                    }
                }
                [1, 1, _] => {
                    let z = c[k];
                    for (o, (&x, &y)) in out.iter_mut().zip(a[i..].iter().zip(&b[j..])) {
                        *o = f(x, y, z);
                    }
                }
                [1, _, 1] => {
                    let y = b[j];
                    for (o, (&x, &z)) in out.iter_mut().zip(a[i..].iter().zip(&c[k..])) {
                        *o = f(x, y, z);
                    }
                }
                [s, t, u] => {
                    for (n, o) in out.iter_mut().enumerate() {
                        *o = f(a[i + n * s], b[j + n * t], c[k + n * u]);
                    }
                }
            });
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::strides;

    /// The same by index arithmetic on every element.
    fn naive(a: &[usize], b: &[usize]) -> Vec<(usize, usize)> {
        let out = broadcast_shapes(&[a, b]).unwrap();
        let at = |s: &[usize], index: &[usize]| -> usize {
            let own = &index[index.len() - s.len()..];
            own.iter().zip(s).zip(strides(s)).map(|((i, d), t)| (i % d) * t).sum()
        };
        (0..out.elements())
            .map(|n| {
                let index: Vec<usize> =
                    strides(&out).iter().zip(out.iter()).map(|(t, d)| n / t % d).collect();
                (at(a, &index), at(b, &index))
            })
            .collect()
    }

    #[test]
    fn runs_agree_with_index_arithmetic() {
        let shapes: &[(&[usize], &[usize])] = &[
            (&[], &[]),
            (&[3], &[]),
            (&[2, 3], &[3]),
            (&[2, 3], &[2, 1]),
            (&[2, 1, 4], &[3, 1]),
            (&[2, 3, 4, 5], &[3, 1, 1]),
            (&[7, 8], &[8]),
            (&[8], &[7, 8]),
            (&[2, 3, 5, 8], &[2, 3, 1, 8]),
            (&[3, 1, 5], &[2, 3, 4, 5]),
            (&[3, 1, 5], &[2, 1, 4, 5]),
            (&[1, 3, 1], &[2, 1, 4]),
            (&[2, 3, 2, 2], &[2, 1, 2, 1]),
            (&[0, 3], &[3]),
            (&[4, 0], &[1, 1]),
        ];
        for (a, b) in shapes {
            for threads in [Threads::single(), Threads::new(3).unwrap()] {
                let plan = Broadcast::new([a, b]).unwrap();
                let x: Vec<usize> = (0..a.iter().product()).collect();
                let y: Vec<usize> = (0..b.iter().product()).collect();
                let mut out = vec![(0, 0); plan.shape.elements()];
                plan.zip(&threads, &x, &y, &mut out, |x, y| (x, y));
                assert_eq!(out, naive(a, b), "{a:?} {b:?}");
            }
        }
    }

    #[test]
    fn threads_share_large_work_without_a_trace() {
        let threads = Threads::new(3).unwrap();
        let (rows, columns) = (40, 1001);
        let x: Vec<u32> = (0..rows * columns).collect();
        let y: Vec<u32> = (0..rows).map(|v| v * 7).collect();
        let plan = Broadcast::new([&[40, 1001], &[40, 1]]).unwrap();
        let mut out = vec![0; x.len()];
        plan.zip(&threads, &x, &y, &mut out, |x, y| x + y);
        let want: Vec<u32> = (0..rows * columns).map(|i| i + i / columns * 7).collect();
        assert_eq!(out, want);
        let mut x = x;
        plan.zip_in_place(&threads, &mut x, &y, 1, |x, y| x + y);
        assert_eq!(x, want);
        let flat = Broadcast::new([&[40_040], &[]]).unwrap();
        flat.zip(&threads, &want, &[5], &mut out, u32::wrapping_sub);
        assert!(out.iter().zip(&want).all(|(o, w)| *o == w.wrapping_sub(5)));
    }

    #[test]
    fn short_rows_are_repeated_in_place_too() {
        for (threads, width) in [(Threads::single(), 8), (Threads::new(3).unwrap(), 5)] {
            let (images, rows) = (4, 3001);
            let mut x: Vec<u32> = (0..images * rows * width).collect();
            let y: Vec<u32> = (0..images * width).map(|v| v * 7).collect();
            let want: Vec<u32> = (0..images * rows * width)
                .map(|i| i + (i / (rows * width) * width + i % width) * 7)
                .collect();
            let (images, rows, width) = (images as usize, rows as usize, width as usize);
            let plan = Broadcast::new([&[images, rows, width], &[images, 1, width]]).unwrap();
            let mut out = vec![0; x.len()];
            plan.zip(&threads, &x, &y, &mut out, |x, y| x + y);
            assert!(out == want);
            plan.zip_in_place(&threads, &mut x, &y, 1, |x, y| x + y);
            assert!(x == want);
            let one = Broadcast::new([&[width], &[rows, width]]).unwrap();
            let mut all = out[..rows * width].to_vec();
            one.zip_in_place(&threads, &mut all, &y[..width], 0, |x, y| x - y);
            assert!(all == (0..(rows * width) as u32).collect::<Vec<_>>());
        }
    }

    #[test]
    fn adjacent_axes_fold() {
        let plan = Broadcast::new([&[2, 3, 4, 5], &[3, 1, 1]]).unwrap();
        assert_eq!((plan.outer.len(), plan.inner, plan.step), (2, 20, [1, 0]));
        let plan = Broadcast::new([&[2, 3, 4], &[2, 3, 4]]).unwrap();
        assert_eq!((plan.outer.len(), plan.inner, plan.step), (0, 24, [1, 1]));
    }
}
