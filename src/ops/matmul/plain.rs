//! Products of matrices in plain loops, for every dtype that has no kernel of its own.

use crate::ops::Threads;
use crate::tensor::Element;

/// Numbers that are added and multiplied; whole numbers wrap around.
pub(in crate::ops) trait Ring: Element {
    fn plus(self, other: Self) -> Self;
    fn times(self, other: Self) -> Self;
}

macro_rules! rings {
    ($($t:ty),*; $($i:ty),*) => {
        $(impl Ring for $t {
            fn plus(self, other: Self) -> Self { self + other }
            fn times(self, other: Self) -> Self { self * other }
        })*
        $(impl Ring for $i {
            fn plus(self, other: Self) -> Self { self.wrapping_add(other) }
            fn times(self, other: Self) -> Self { self.wrapping_mul(other) }
        })*
    };
}
rings!(f32, f64; i8, i16, i32, i64, u8, u16, u32, u64);

/// A matrix read through strides: element `(i, j)` is `data[i * row + j * col]`.
#[derive(Clone, Copy, Debug)]
pub(in crate::ops) struct View<'a, T> {
    pub(in crate::ops) data: &'a [T],
    pub(in crate::ops) row: usize,
    pub(in crate::ops) col: usize,
}

impl<'a, T> View<'a, T> {
    /// `rows` × `cols` elements as they lie, or, transposed, the `cols` × `rows` that lie there.
    pub(in crate::ops) fn new(data: &'a [T], rows: usize, cols: usize, transposed: bool) -> Self {
        if transposed { Self { data, row: 1, col: rows } } else { Self { data, row: cols, col: 1 } }
    }
}

/// `out = a · b`, where `out` is row-major with `n` columns, `a` has `k` columns.
pub(in crate::ops) fn multiply<T: Ring>(
    a: View<'_, T>,
    b: View<'_, T>,
    out: &mut [T],
    k: usize,
    n: usize,
    threads: &Threads,
) {
    if n == 0 {
        return;
    }
    threads.split_rows(out, n, |first, chunk| {
        for (i, line) in chunk.chunks_exact_mut(n).enumerate() {
            line.fill(T::default());
            for p in 0..k {
                let x = a.data[(first + i) * a.row + p * a.col];
                if b.col == 1 {
                    let y = &b.data[p * b.row..p * b.row + n];
                    for (o, y) in line.iter_mut().zip(y) {
                        *o = o.plus(x.times(*y));
                    }
                } else {
                    for (j, o) in line.iter_mut().enumerate() {
                        *o = o.plus(x.times(b.data[p * b.row + j * b.col]));
                    }
                }
            }
        }
    });
}
