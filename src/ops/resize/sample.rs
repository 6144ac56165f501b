//! The samplings: nearest by copying, linear and cubic one axis after the other.

use super::coordinates::Taps;
use crate::ops::Threads;
use crate::tensor::Element;

/// Copies to each element of `out` the one that the axes' index lists name. An axis without a
/// list is kept.
pub(super) fn gather<T: Element>(
    x: &[T],
    size: &[usize],
    lists: &[Option<Vec<usize>>],
    out: &mut [T],
    out_size: &[usize],
    threads: &Threads,
) {
    // What lies behind the last resized axis is copied in one piece.
    let Some(last) = lists.iter().rposition(Option::is_some) else {
        out.copy_from_slice(x);
        return;
    };
    let piece: usize = size[last + 1..].iter().product();
    let (in_row, out_row) = (size[last] * piece, out_size[last] * piece);
    let columns = lists[last].as_deref().unwrap_or(&[]);
    threads.split_rows(out, out_row, |first, chunk| {
        let mut before: Option<(usize, usize)> = None;
        for i in 0..chunk.len() / out_row.max(1) {
            let (mut rest, mut from, mut stride) = (first + i, 0, 1);
            for axis in (0..last).rev() {
                let at = rest % out_size[axis];
                rest /= out_size[axis];
                from += lists[axis].as_ref().map_or(at, |l| l[at]) * stride;
                stride *= size[axis];
            }
            let start = i * out_row;
            // Growing repeats whole rows.
            if let Some((same, place)) = before
                && same == from
            {
                chunk.copy_within(place..place + out_row, start);
                continue;
            }
            before = Some((from, start));
            let source = &x[from * in_row..][..in_row];
            let to = &mut chunk[start..start + out_row];
            if piece == 1 {
                for (o, c) in to.iter_mut().zip(columns) {
                    *o = source[*c];
                }
            } else {
                for (o, c) in to.chunks_exact_mut(piece.max(1)).zip(columns) {
                    o.copy_from_slice(&source[c * piece..][..piece]);
                }
            }
        }
    });
}

/// Floats that are weighted and summed.
pub(super) trait Weighted: Element {
    fn from_weight(w: f64) -> Self;
    fn add(self, weight: Self, x: Self) -> Self;
}

impl Weighted for f32 {
    fn from_weight(w: f64) -> Self {
        w as Self
    }
    fn add(self, weight: Self, x: Self) -> Self {
        self + weight * x
    }
}

impl Weighted for f64 {
    fn from_weight(w: f64) -> Self {
        w
    }
    fn add(self, weight: Self, x: Self) -> Self {
        self + weight * x
    }
}

/// Resizes the middle axis of `x`, [outer, size, inner], into `out`, [outer, out size, inner].
pub(super) fn stretch<T: Weighted>(
    x: &[T],
    size: usize,
    inner: usize,
    taps: &Taps,
    out: &mut [T],
    threads: &Threads,
) {
    let weights: Vec<T> = taps.weights.iter().map(|w| T::from_weight(*w)).collect();
    let outs = taps.indices.len() / taps.width.max(1);
    threads.split_rows(out, inner, |first, chunk| {
        for (i, to) in chunk.chunks_exact_mut(inner.max(1)).enumerate() {
            let (outer, at) = ((first + i) / outs, (first + i) % outs);
            let image = &x[outer * size * inner..][..size * inner];
            let span = at * taps.width..(at + 1) * taps.width;
            let (indices, weights) = (&taps.indices[span.clone()], &weights[span]);
            if inner == 1 {
                let mut sum = T::default();
                for (i, w) in indices.iter().zip(weights) {
                    sum = sum.add(*w, image[*i]);
                }
                to[0] = sum;
                continue;
            }
            to.fill(T::default());
            for (i, w) in indices.iter().zip(weights) {
                let from = &image[i * inner..][..inner];
                for (o, x) in to.iter_mut().zip(from) {
                    *o = o.add(*w, *x);
                }
            }
        }
    });
}

/// Writes `value` wherever an axis says that the output lies outside.
pub(super) fn fill_outside<T: Element>(
    out: &mut [T],
    out_size: &[usize],
    outside: &[Option<Vec<bool>>],
    value: T,
) {
    for (i, o) in out.iter_mut().enumerate() {
        let mut rest = i;
        for axis in (0..out_size.len()).rev() {
            let at = rest % out_size[axis];
            rest /= out_size[axis];
            if outside[axis].as_ref().is_some_and(|l| l[at]) {
                *o = value;
                break;
            }
        }
    }
}
