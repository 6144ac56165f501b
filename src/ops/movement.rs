//! Moving elements of any dtype: numbers as words of their size, strings by clone.

use super::{Io, Threads};
use crate::error::{Result, bail, err};
use crate::tensor::{DType, Few, Shape, Tensor, element_count};

/// What is moved: a word that stands for an element, or a string.
pub(super) trait Item: Clone + Default + Send + Sync + 'static {}
impl<T: Clone + Default + Send + Sync + 'static> Item for T {}

/// Something that fills an output by moving elements, whatever they are.
pub(super) trait Mover {
    /// Fills `out` from the sources.
    fn fill<T: Item>(&self, sources: &[&[T]], out: &mut [T], threads: &Threads) -> Result<()>;
}

/// A tensor of `shape` that `mover` fills from `sources`, which are of one dtype.
///
/// # Errors
/// If the dtypes differ, the shape is too large, or the mover fails.
pub(super) fn produce(
    io: &Io<'_>,
    sources: &[&Tensor],
    shape: impl Into<Shape>,
    mover: &impl Mover,
) -> Result<Tensor> {
    let shape = shape.into();
    let Some(first) = sources.first() else { bail!(Missing, "there is nothing to move") };
    let dtype = first.dtype();
    if let Some(other) = sources.iter().find(|t| t.dtype() != dtype) {
        bail!(DType, "inputs of dtypes {dtype} and {} are mixed", other.dtype());
    }
    if dtype == DType::String {
        let slices: Vec<&[String]> =
            sources.iter().map(|t| t.as_strings()).collect::<Result<_>>()?;
        let mut out = vec![String::new(); element_count(&shape, 1)?];
        mover.fill(&slices, &mut out, io.threads())?;
        return Tensor::from_strings(shape, out);
    }
    let mut out = io.allocate(dtype, shape)?;
    overwrite(&mut out, sources, io.threads(), mover)?;
    Ok(out)
}

/// What a walk over `x` visits, in `shape`; shares the memory where that is one run.
///
/// # Errors
/// If the walk does not have as many elements as the shape, or leaves `x`.
pub(super) fn walked(
    io: &Io<'_>,
    x: &Tensor,
    shape: impl Into<Shape>,
    walk: &Strided,
) -> Result<Tensor> {
    let shape = shape.into();
    let elements = element_count(&shape, x.dtype().size())?;
    match walk.run() {
        Some((start, count)) if elements > 0 => {
            x.reshape([x.len()])?.rows(start, count)?.reshape(shape)
        }
        _ => produce(io, &[x], shape, walk),
    }
}

/// `x` after `mover` wrote into it; in place where nobody else holds its memory.
///
/// # Errors
/// If the sources are of another dtype, or the mover fails.
pub(super) fn altered(
    io: &Io<'_>,
    mut x: Tensor,
    sources: &[&Tensor],
    mover: &impl Mover,
) -> Result<Tensor> {
    if x.dtype() == DType::String {
        let slices: Vec<&[String]> =
            sources.iter().map(|t| t.as_strings()).collect::<Result<_>>()?;
        let mut out = x.as_strings()?.to_vec();
        mover.fill(&slices, &mut out, io.threads())?;
        return Tensor::from_strings(x.shape().clone(), out);
    }
    writable(io, &mut x)?;
    overwrite(&mut x, sources, io.threads(), mover)?;
    Ok(x)
}

/// Makes `x` a copy in pooled memory, unless nobody else holds its memory.
///
/// # Errors
/// If it holds strings.
pub(super) fn writable(io: &Io<'_>, x: &mut Tensor) -> Result<()> {
    if !x.is_unique() {
        let mut copy = io.allocate(x.dtype(), x.shape().clone())?;
        copy.as_mut_bytes()?.copy_from_slice(x.as_bytes());
        *x = copy;
    }
    Ok(())
}

/// Lets `mover` write into an existing tensor of numbers, of the sources' dtype.
///
/// # Errors
/// If the dtype has no words of its own, or the mover fails.
fn overwrite(
    out: &mut Tensor,
    sources: &[&Tensor],
    threads: &Threads,
    mover: &impl Mover,
) -> Result<()> {
    match out.dtype().size() {
        1 => words::<u8>(out, sources, threads, mover),
        2 => words::<u16>(out, sources, threads, mover),
        4 => words::<u32>(out, sources, threads, mover),
        8 => words::<u64>(out, sources, threads, mover),
        _ => bail!(Unsupported, "elements of dtype {} are not moved", out.dtype()),
    }
}

fn words<W: Item + bytemuck::Pod>(
    out: &mut Tensor,
    sources: &[&Tensor],
    threads: &Threads,
    mover: &impl Mover,
) -> Result<()> {
    let mut slices: Few<&[W]> = Few::new();
    for t in sources {
        if t.dtype() != out.dtype() {
            bail!(DType, "inputs of dtypes {} and {} are mixed", out.dtype(), t.dtype());
        }
        slices.push(match t.as_bytes() {
            [] => &[],
            bytes => bytemuck::try_cast_slice(bytes)
                .map_err(|e| err!(Internal, "{}: {e}", t.describe()))?,
        });
    }
    let (dtype, shape) = (out.dtype(), out.shape().clone());
    let bytes = out.as_mut_bytes()?;
    let target: &mut [W] = if bytes.is_empty() {
        &mut []
    } else {
        bytemuck::try_cast_slice_mut(bytes).map_err(|e| err!(Internal, "{dtype}{shape}: {e}"))?
    };
    mover.fill(&slices, target, threads)
}

/// Below this many elements the threads are left alone.
const SPLIT_FROM: usize = 1 << 15;

/// Edge of the blocks that a transposition keeps in the nearest cache.
const TILE: usize = 64;
/// Edge of the blocks that a transposition keeps in registers.
const BLOCK: usize = 8;

/// A row-major walk over a source with any strides, also 0 (repeat) and negative (backwards).
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Strided {
    offset: usize,
    dims: Few<usize>,
    strides: Few<isize>,
}

impl Strided {
    /// A walk from `offset` on; axes that can be walked as one are folded.
    pub(super) fn new(offset: usize, dims: &[usize], strides: &[isize]) -> Self {
        let (mut d, mut s): (Few<usize>, Few<isize>) = (Few::new(), Few::new());
        for (&n, &step) in dims.iter().zip(strides) {
            if n == 1 {
                continue;
            }
            match (d.last_mut(), s.last_mut()) {
                (Some(outer), Some(stride)) if *stride == step.wrapping_mul(n as isize) => {
                    *outer *= n;
                    *stride = step;
                }
                _ => {
                    d.push(n);
                    s.push(step);
                }
            }
        }
        Self { offset, dims: d, strides: s }
    }

    /// The start and length of the run that it visits, if that is all.
    fn run(&self) -> Option<(usize, usize)> {
        match (&self.dims[..], &self.strides[..]) {
            ([], _) => Some((self.offset, 1)),
            ([n], [1]) => Some((self.offset, *n)),
            _ => None,
        }
    }

    fn check(&self, len: usize) -> Result<()> {
        let (mut low, mut high) = (self.offset as i128, self.offset as i128);
        for (&n, &s) in self.dims.iter().zip(&self.strides) {
            let reach = (n as i128 - 1) * s as i128;
            if reach < 0 {
                low += reach;
            } else {
                high += reach;
            }
        }
        if low < 0 || high >= len as i128 {
            bail!(Internal, "a strided walk reaches {low}..={high} in {len} elements");
        }
        Ok(())
    }
}

impl Mover for Strided {
    fn fill<T: Item>(&self, sources: &[&[T]], out: &mut [T], threads: &Threads) -> Result<()> {
        let [source, ..] = sources else { bail!(Internal, "a strided walk has no source") };
        if out.is_empty() {
            return Ok(());
        }
        self.check(source.len())?;
        if self.dims.iter().product::<usize>() != out.len() {
            bail!(Internal, "a strided walk over {:?} fills {}", self.dims, out.len());
        }
        let (Some(&inner), Some(&step)) = (self.dims.last(), self.strides.last()) else {
            out[0] = source[self.offset].clone();
            return Ok(());
        };
        let single = Threads::single();
        let threads = if out.len() < SPLIT_FROM { &single } else { threads };
        let outer = self.dims.len() - 1;
        // A transposition: some outer axis is the source's innermost one.
        let along = self.strides[..outer].iter().position(|s| *s == 1);
        if let Some(along) = along.filter(|_| step > 1) {
            self.transpose(source, out, along, threads);
            return Ok(());
        }
        threads.split_rows(out, inner, |first, chunk| {
            let mut at = Odometer::new(self, outer, first);
            for row in chunk.chunks_mut(inner) {
                let start = at.offset();
                match step {
                    1 => row.clone_from_slice(&source[start..start + inner]),
                    0 => row.fill(source[start].clone()),
                    _ => {
                        let mut from = start;
                        for o in row {
                            *o = source[from].clone();
                            from = from.wrapping_add_signed(step);
                        }
                    }
                }
                at.advance();
            }
        });
        Ok(())
    }
}

impl Strided {
    /// Axis `along` has stride 1 in the source, the last one in the output.
    fn transpose<T: Item>(&self, source: &[T], out: &mut [T], along: usize, threads: &Threads) {
        let outer = self.dims.len() - 1;
        let (inner, step) = (self.dims[outer], self.strides[outer].unsigned_abs());
        let row: usize = self.dims[along + 1..].iter().product();
        let middle = Self {
            offset: 0,
            dims: self.dims[along + 1..].into(),
            strides: self.strides[along + 1..].into(),
        };
        threads.split_rows(out, row, |first, chunk| {
            let mut done = 0;
            let rows = chunk.len() / row;
            while done < rows {
                let (prefix, start) =
                    ((first + done) / self.dims[along], (first + done) % self.dims[along]);
                let count = (self.dims[along] - start).min(rows - done);
                let base = Odometer::new(self, along, prefix).offset() + start;
                let mut at = Odometer::new(&middle, middle.dims.len() - 1, 0);
                for m in 0..row / inner {
                    let from = base.wrapping_add_signed(at.position);
                    let target = &mut chunk[done * row + m * inner..];
                    tiles(&source[from..], step, target, row, count, inner);
                    at.advance();
                }
                done += count;
            }
        });
    }
}

/// `target[r * row + c] = source[c * step + r]` for `r < rows`, `c < columns`.
fn tiles<T: Clone>(
    source: &[T],
    step: usize,
    target: &mut [T],
    row: usize,
    rows: usize,
    columns: usize,
) {
    for r0 in (0..rows).step_by(TILE) {
        let r1 = (r0 + TILE).min(rows);
        for c0 in (0..columns).step_by(TILE) {
            let c1 = (c0 + TILE).min(columns);
            let (whole_r, whole_c) = (r1 - (r1 - r0) % BLOCK, c1 - (c1 - c0) % BLOCK);
            for r in (r0..whole_r).step_by(BLOCK) {
                for c in (c0..whole_c).step_by(BLOCK) {
                    block(&source[c * step + r..], step, &mut target[r * row + c..], row);
                }
            }
            let mut plain = |rs: std::ops::Range<usize>, cs: std::ops::Range<usize>| {
                for r in rs {
                    for c in cs.clone() {
                        target[r * row + c] = source[c * step + r].clone();
                    }
                }
            };
            plain(r0..whole_r, whole_c..c1);
            plain(whole_r..r1, c0..c1);
        }
    }
}

fn block<T: Clone>(source: &[T], step: usize, target: &mut [T], row: usize) {
    let mut rows: [&[T]; BLOCK] = [&[]; BLOCK];
    for (c, r) in rows.iter_mut().enumerate() {
        *r = &source[c * step..c * step + BLOCK];
    }
    for r in 0..BLOCK {
        let out = &mut target[r * row..r * row + BLOCK];
        for c in 0..BLOCK {
            out[c] = rows[c][r].clone();
        }
    }
}

/// The source position of each index of the outer axes of a walk, in row-major order.
struct Odometer<'a> {
    dims: &'a [usize],
    strides: &'a [isize],
    index: Few<usize>,
    position: isize,
}

impl<'a> Odometer<'a> {
    /// Over the first `axes` axes, from the row with number `row` on.
    fn new(walk: &'a Strided, axes: usize, row: usize) -> Self {
        let (dims, strides) = (&walk.dims[..axes], &walk.strides[..axes]);
        let mut index = Few::filled(0, axes);
        let (mut rest, mut position) = (row, walk.offset as isize);
        for i in (0..axes).rev() {
            index[i] = rest % dims[i];
            rest /= dims[i];
            position += index[i] as isize * strides[i];
        }
        Self { dims, strides, index, position }
    }

    fn offset(&self) -> usize {
        self.position.unsigned_abs()
    }

    fn advance(&mut self) {
        for i in (0..self.index.len()).rev() {
            self.index[i] += 1;
            self.position += self.strides[i];
            if self.index[i] < self.dims[i] {
                return;
            }
            self.index[i] = 0;
            self.position -= self.strides[i] * self.dims[i] as isize;
        }
    }
}

/// Runs of `run` elements at given offsets, `outer` times over with `step` in between.
pub(super) struct Picked<'a> {
    /// Where each run starts.
    pub offsets: &'a [usize],
    /// Elements of a run.
    pub run: usize,
    /// How often the offsets are gone through.
    pub outer: usize,
    /// What is added to the offsets each time.
    pub step: usize,
}

impl Mover for Picked<'_> {
    fn fill<T: Item>(&self, sources: &[&[T]], out: &mut [T], threads: &Threads) -> Result<()> {
        let [source, ..] = sources else { bail!(Internal, "nothing to pick from") };
        let (n, run) = (self.offsets.len(), self.run);
        if out.is_empty() {
            return Ok(());
        }
        let reach = self.offsets.iter().max().map_or(0, |o| o + run);
        let reach = self.outer.saturating_sub(1) * self.step + reach;
        if reach > source.len() || out.len() != n * run * self.outer {
            bail!(Internal, "runs up to {reach} are picked from {} elements", source.len());
        }
        let single = Threads::single();
        let threads = if out.len() < SPLIT_FROM { &single } else { threads };
        threads.split_rows(out, run, |first, chunk| {
            let (mut base, mut at) = (first / n * self.step, first % n);
            for row in chunk.chunks_mut(run) {
                let from = base + self.offsets[at];
                match row {
                    [one] => *one = source[from].clone(),
                    row => row.clone_from_slice(&source[from..from + run]),
                }
                at += 1;
                if at == n {
                    (base, at) = (base + self.step, 0);
                }
            }
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(walk: &Strided, source: &[u32]) -> Vec<u32> {
        let count: usize = walk.dims.iter().product();
        (0..count)
            .map(|mut n| {
                let mut at = walk.offset as isize;
                for i in (0..walk.dims.len()).rev() {
                    at += (n % walk.dims[i]) as isize * walk.strides[i];
                    n /= walk.dims[i];
                }
                source[at as usize]
            })
            .collect()
    }

    #[test]
    fn every_way_of_walking_agrees_with_index_arithmetic() {
        let source: Vec<u32> = (0..200_000).collect();
        let walks = [
            Strided::new(0, &[200, 300], &[1, 200]),
            Strided::new(0, &[3, 70, 5, 67], &[335 * 70, 1, 70, 350]),
            Strided::new(7, &[9, 11, 13], &[0, 1, 12]),
            Strided::new(100, &[10, 11], &[-10, -1]),
            Strided::new(5, &[4, 8], &[100, 0]),
            Strided::new(5, &[2, 17, 3], &[1, 1000, 100]),
            Strided::new(0, &[150, 40, 8], &[8, 1200, 1]),
        ];
        for walk in &walks {
            let want = slow(walk, &source);
            for threads in [1, 2] {
                let mut got = vec![0; want.len()];
                walk.fill(&[&source], &mut got, &Threads::new(threads).unwrap()).unwrap();
                assert!(got == want, "{walk:?}");
            }
        }
    }

    #[test]
    fn axes_fold_and_reach_is_checked() {
        let walk = Strided::new(0, &[2, 1, 3, 4], &[12, 99, 4, 1]);
        assert_eq!(walk.run(), Some((0, 24)));
        let mut out = vec![0u8; 24];
        assert!(walk.fill(&[&[0u8; 23]], &mut out, &Threads::single()).is_err());
    }
}
