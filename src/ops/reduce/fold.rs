//! The loops of reductions, over slices.
//!
//! The order in which one result is summed depends on the shape alone. Sums are taken in blocks
//! and the blocks then joined, so that the rounding error stays small in long sums.

use crate::error::Result;
use crate::kernels::math::{self, Reduce as Kernel};
use crate::ops::elementwise::{Number, spread_work};
use crate::ops::{Io, Threads};
use crate::tensor::{DType, Few, Tensor};

/// A reduction: how an element joins a partial result, and how two of them join.
pub(in crate::ops) trait Reduction: std::fmt::Debug + Send + Sync + 'static {
    /// The vector kernel for f32.
    const KERNEL: Option<Kernel>;
    /// The result of nothing, which changes no other result.
    fn start<T: Number>() -> T;
    fn join<T: Number>(partial: T, x: T) -> T;
    fn merge<T: Number>(a: T, b: T) -> T;
}

/// Joins partial results only: what follows the first pass.
#[derive(Debug)]
struct Merging<R>(R);

impl<R: Reduction> Reduction for Merging<R> {
    const KERNEL: Option<Kernel> = None;
    fn start<T: Number>() -> T {
        R::start()
    }
    #[inline(always)]
    fn join<T: Number>(partial: T, x: T) -> T {
        R::merge(partial, x)
    }
    #[inline(always)]
    fn merge<T: Number>(a: T, b: T) -> T {
        R::merge(a, b)
    }
}

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident $start:ident $kernel:expr,
        |$p:ident, $x:ident| $join:expr, |$a:ident, $b:ident| $merge:expr;)*) => { $(
        $(#[$doc])*
        #[derive(Debug)]
        pub(in crate::ops) struct $name;
        impl Reduction for $name {
            const KERNEL: Option<Kernel> = $kernel;
            fn start<T: Number>() -> T {
                T::$start
            }
            #[inline(always)]
            fn join<T: Number>($p: T, $x: T) -> T {
                $join
            }
            #[inline(always)]
            fn merge<T: Number>($a: T, $b: T) -> T {
                $merge
            }
        }
    )* };
}
reductions! {
    Sum ZERO Some(Kernel::Sum), |p, x| p.plus(x), |a, b| a.plus(b);
    Product ONE Some(Kernel::Prod), |p, x| p.times(x), |a, b| a.times(b);
    Largest LOWEST Some(Kernel::Max), |p, x| p.larger(x), |a, b| a.larger(b);
    Smallest HIGHEST Some(Kernel::Min), |p, x| p.smaller(x), |a, b| a.smaller(b);
    /// The sum of magnitudes.
    SumOfMagnitudes ZERO None, |p, x| p.plus(x.magnitude()), |a, b| a.plus(b);
    /// The sum of squares.
    SumOfSquares ZERO Some(Kernel::SumSquare), |p, x| p.plus(x.times(x)), |a, b| a.plus(b);
}

/// Extents with adjacent axes of the same kind folded; axes of extent 1 are left out.
fn folded(dims: &[usize], reduced: &[bool]) -> Few<(usize, bool)> {
    let mut out: Few<(usize, bool)> = Few::new();
    for (&d, &r) in dims.iter().zip(reduced) {
        match out.last_mut() {
            _ if d == 1 => {}
            Some(last) if last.1 == r => last.0 *= d,
            _ => out.push((d, r)),
        }
    }
    out
}

/// Reduces `x` of shape `dims` over the marked axes into `out`, innermost axes first.
///
/// # Errors
/// If memory in between cannot be had.
pub(super) fn reduce<R: Reduction, T: Number>(
    io: &Io<'_>,
    x: &[T],
    dims: &[usize],
    reduced: &[bool],
    out: &mut [T],
) -> Result<()> {
    if x.is_empty() {
        out.fill(R::start());
        return Ok(());
    }
    let mut groups = folded(dims, reduced);
    let mut between: Option<Tensor> = None;
    loop {
        let Some(at) = groups.iter().rposition(|g| g.1) else {
            // Nothing is reduced but axes of extent 1.
            for (o, &x) in out.iter_mut().zip(x) {
                *o = R::join(R::start(), x);
            }
            return Ok(());
        };
        let Some((n, _)) = groups.remove(at) else { return Ok(()) };
        let inner: usize = groups[at..].iter().map(|g| g.0).product();
        let last = !groups.iter().any(|g| g.1);
        let source = between.take();
        let mut next = None;
        let to = if last {
            &mut *out
        } else {
            let left: usize = groups.iter().map(|g| g.0).product();
            next.insert(io.allocate(T::DTYPE, [left])?).as_mut_slice::<T>()?
        };
        match &source {
            None => pass::<R, T>(io.threads(), x, n, inner, to),
            Some(t) => pass::<Merging<R>, T>(io.threads(), t.as_slice::<T>()?, n, inner, to),
        }
        if last {
            return Ok(());
        }
        between = next;
    }
}

/// Reduces the middle axis of `[outer, n, inner]`.
fn pass<R: Reduction, T: Number>(
    threads: &Threads,
    x: &[T],
    n: usize,
    inner: usize,
    out: &mut [T],
) {
    if inner == 1 {
        spread_work(threads, out, 1, x.len(), |first, out| {
            for (o, row) in out.iter_mut().zip(x[first * n..].chunks_exact(n)) {
                *o = fold_row::<R, T>(row);
            }
        });
    } else if out.len() == inner {
        spread_work(threads, out, 1, x.len(), |first, out| {
            fold_columns::<R, T>(&x[first..], n, inner, out);
        });
    } else {
        spread_work(threads, out, inner, x.len(), |first, out| {
            let images = x[first * n * inner..].chunks_exact(n * inner);
            for (o, image) in out.chunks_exact_mut(inner).zip(images) {
                fold_columns::<R, T>(image, n, inner, o);
            }
        });
    }
}

const LANES: usize = 16;
const BLOCK: usize = 2048;

/// One row to one number: in blocks, each over several lanes that do not wait for each other.
pub(in crate::ops) fn fold_row<R: Reduction, T: Number>(row: &[T]) -> T {
    if row.len() > BLOCK {
        let (a, b) = row.split_at((row.len() / 2).next_multiple_of(BLOCK));
        return R::merge(fold_row::<R, T>(a), fold_row::<R, T>(b));
    }
    if T::DTYPE == DType::F32
        && let Some(result) = R::KERNEL.and_then(|kernel| by_kernel(kernel, row))
    {
        return T::narrow(result.into());
    }
    let mut lanes = [R::start::<T>(); LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (l, &x) in lanes.iter_mut().zip(chunk) {
            *l = R::join(*l, x);
        }
    }
    for (l, &x) in lanes.iter_mut().zip(rest) {
        *l = R::join(*l, x);
    }
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = R::merge(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

/// A row of f32.
fn by_kernel<T: Number>(kernel: Kernel, row: &[T]) -> Option<f32> {
    let row: &[f32] = bytemuck::try_cast_slice(row).ok()?;
    let mut out = [0.0];
    math::reduce(kernel, row, 1, row.len(), 1, &mut out).ok()?;
    Some(out[0])
}

const TILE: usize = 128;
const ROWS: usize = 64;

/// `n` rows, `stride` apart, to one, column by column.
fn fold_columns<R: Reduction, T: Number>(x: &[T], n: usize, stride: usize, out: &mut [T]) {
    for (t, out) in out.chunks_mut(TILE).enumerate() {
        let mut total = [R::start::<T>(); TILE];
        for block in (0..n).step_by(ROWS) {
            let mut partial = [R::start::<T>(); TILE];
            for r in block..(block + ROWS).min(n) {
                let row = &x[r * stride + t * TILE..][..out.len()];
                for (p, &x) in partial.iter_mut().zip(row) {
                    *p = R::join(*p, x);
                }
            }
            for (t, &p) in total.iter_mut().zip(&partial) {
                *t = R::merge(*t, p);
            }
        }
        out.copy_from_slice(&total[..out.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_sums_stay_close() {
        let row: Vec<f32> = (0..100_003).map(|i| 1.0 + ((i * 7919) % 1013) as f32 * 1e-3).collect();
        let exact: f64 = row.iter().map(|x| f64::from(*x)).sum();
        let got = f64::from(fold_row::<Sum, f32>(&row));
        assert!((got - exact).abs() / exact < 3e-7, "{got} {exact}");
        let mut column = [0f32];
        fold_columns::<Sum, f32>(&row, row.len(), 1, &mut column);
        assert!((f64::from(column[0]) - exact).abs() / exact < 3e-6, "{} {exact}", column[0]);
    }

    #[test]
    fn adjacent_axes_fold_and_ones_vanish() {
        assert_eq!(*folded(&[2, 3, 1, 4], &[false, true, false, true]), [(2, false), (12, true)]);
        assert_eq!(*folded(&[1, 1], &[true, false]), []);
    }
}
