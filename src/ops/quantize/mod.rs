//! Quantisation: `QuantizeLinear`, `DequantizeLinear`, `DynamicQuantizeLinear`.

mod dequantize;
mod dynamic;
mod linear;

pub(super) use dequantize::{DEQUANTIZE_LINEAR, MS_DEQUANTIZE_LINEAR};
pub(super) use dynamic::{DYNAMIC_QUANTIZE_LINEAR, rounded};
pub(super) use linear::{MS_QUANTIZE_LINEAR, QUANTIZE_LINEAR};

use std::sync::OnceLock;

use super::batch::{BatchFlow, BatchQuery};
use crate::error::{Result, bail};
use crate::graph::Node;
use crate::kernels::{KernelError, Spread, quantize_one};
use crate::ops::Threads;
use crate::ops::elementwise::spread;
use crate::tensor::{DType, Element, Shape, Tensor, normalise_axis};

/// The dtypes of quantised numbers.
const QUANTIZED: &[DType] = &[
    DType::U8,
    DType::I8,
    DType::U16,
    DType::I16,
    DType::U4,
    DType::I4,
    DType::F8E4M3FN,
    DType::F8E4M3FNUZ,
    DType::F8E5M2,
    DType::F8E5M2FNUZ,
    DType::F4E2M1,
];

/// How scales are laid over a tensor.
#[derive(Clone, Copy, Debug)]
struct Layout {
    axis: i64,
    /// Elements of one scale along the axis; 0 where the scale is of the whole tensor or axis.
    block: usize,
}

/// Runs of elements that share a scale: `outer` times `scales` times `run`.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Runs {
    /// One scale for everything.
    Whole,
    /// Scale `i / run % count` for element `i`.
    Axis { run: usize, count: usize },
    /// Blocks along an axis of `extent` with `inner` elements behind each index.
    Blocks { extent: usize, inner: usize, block: usize, count: usize },
}

impl Layout {
    fn of(node: &Node) -> Result<Self> {
        let block = node.int_or("block_size", 0)?;
        let Ok(block) = usize::try_from(block) else {
            bail!(Graph, "attribute `block_size` is {block}; it cannot be negative");
        };
        Ok(Self { axis: node.int_or("axis", 1)?, block })
    }

    /// # Errors
    /// If scale and zero point do not fit the tensor.
    fn runs(self, x: &Shape, scale: &Shape, zero: Option<&Shape>) -> Result<Runs> {
        if let Some(zero) = zero
            && zero.elements() != scale.elements()
        {
            bail!(Shape, "the zero point has shape {zero}, the scale {scale}");
        }
        if self.block > 0 {
            let axis = normalise_axis(self.axis, x.rank())?;
            let (extent, count) = (x[axis], scale.get(axis).copied().unwrap_or(0));
            let fits = scale.rank() == x.rank()
                && (0..x.rank()).all(|i| i == axis || scale[i] == x[i])
                && count == extent.div_ceil(self.block);
            if !fits {
                bail!(
                    Shape,
                    "a scale of shape {scale} does not fit blocks of {} along axis {axis} of {x}",
                    self.block
                );
            }
            let inner = x[axis + 1..].iter().product();
            return Ok(Runs::Blocks { extent, inner, block: self.block, count });
        }
        if scale.elements() == 1 && scale.rank() <= 1 {
            return Ok(Runs::Whole);
        }
        let axis = normalise_axis(self.axis, x.rank())?;
        if scale.rank() != 1 || scale[0] != x[axis] {
            bail!(Shape, "a scale of shape {scale} does not fit axis {axis} of {x}");
        }
        Ok(Runs::Axis { run: x[axis + 1..].iter().product(), count: scale[0] })
    }

    fn batch(self, q: &BatchQuery<'_>) -> BatchFlow {
        if q.axes.iter().skip(1).any(Option::is_some) {
            return Err("its scale or zero point carries the batch".to_owned());
        }
        let Some(carrier) = q.axes.first().copied().flatten() else { return q.everywhere(None) };
        let scale = q.shapes.get(1).and_then(Option::as_ref);
        let scale = scale.ok_or("the shape of its scale is not known")?;
        if self.block == 0 && scale.iter().all(|d| d.as_fixed() == Some(1)) {
            return q.everywhere(Some(carrier));
        }
        if self.block > 0 {
            return Err("its scale has a value for each block, items included".to_owned());
        }
        let rank = q.rank(0).ok_or("the rank of its input is not known")?;
        let axis = normalise_axis(self.axis, rank).map_err(|e| e.to_string())?;
        if axis == carrier {
            return Err("each item of the batch has a scale of its own".to_owned());
        }
        q.everywhere(Some(carrier))
    }
}

/// Turns a run of elements into another, with a scale and a zero point.
type Convert<A, B> = fn(&[A], Spread<'_>, Spread<'_>, &mut [B]) -> Result<()>;

impl Runs {
    /// Converts `x` into `out`, which is as long, run after run, on the threads.
    ///
    /// # Errors
    /// Those of `convert`.
    fn convert<A: Sync, B: Send>(
        self,
        threads: &Threads,
        x: &[A],
        scales: &[f32],
        zeros: &[f32],
        out: &mut [B],
        convert: Convert<A, B>,
    ) -> Result<()> {
        let failed = OnceLock::new();
        let run = |at: usize, out: &mut [B], scale: Spread<'_>, zero: Spread<'_>| {
            if let Err(e) = convert(&x[at..at + out.len()], scale, zero, out) {
                failed.get_or_init(|| e);
            }
        };
        let one = |k: usize| (Spread::One(scales[k]), Spread::One(zeros[k]));
        match self {
            Self::Whole => spread(threads, out, 1, |first, out| {
                let (scale, zero) = one(0);
                run(first, out, scale, zero);
            }),
            Self::Axis { run: 1, count } if count > 0 => {
                spread(threads, out, count, |first, out| {
                    for (r, out) in out.chunks_exact_mut(count).enumerate() {
                        let at = (first + r) * count;
                        run(at, out, Spread::Each(scales), Spread::Each(zeros));
                    }
                });
            }
            Self::Axis { run: length, count } if length > 0 && count > 0 => {
                spread(threads, out, length, |first, out| {
                    for (r, out) in out.chunks_exact_mut(length).enumerate() {
                        let (scale, zero) = one((first + r) % count);
                        run((first + r) * length, out, scale, zero);
                    }
                });
            }
            _ => self.each(x.len(), |at, n, k| {
                let (scale, zero) = one(k);
                run(at, &mut out[at..at + n], scale, zero);
            }),
        }
        failed.into_inner().map_or(Ok(()), Err)
    }

    /// Calls `f` for each run that shares a scale: its first element, its length, its scale.
    fn each(self, elements: usize, mut f: impl FnMut(usize, usize, usize)) {
        match self {
            Self::Whole => f(0, elements, 0),
            Self::Axis { run, count } => {
                if run > 0 && count > 0 {
                    for (i, start) in (0..elements).step_by(run).enumerate() {
                        f(start, run, i % count);
                    }
                }
            }
            Self::Blocks { extent, inner, block, count } => {
                if inner == 0 || extent == 0 {
                    return;
                }
                if inner == 1 {
                    // Blocks lie one after the other.
                    for (o, start) in (0..elements).step_by(extent).enumerate() {
                        for b in 0..count {
                            let at = b * block;
                            f(start + at, block.min(extent - at), o * count + b);
                        }
                    }
                } else {
                    for o in 0..elements / (extent * inner) {
                        for a in 0..extent {
                            for i in 0..inner {
                                let scale = (o * count + a / block) * inner + i;
                                f((o * extent + a) * inner + i, 1, scale);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// A quantised number type.
trait Quantized: Element {
    const RANGE: (f32, f32);
    fn from_whole(v: f32) -> Self;

    /// `x` quantised.
    #[inline(always)]
    fn quantize(x: f32, scale: f32, zero: f32) -> Self {
        Self::from_whole(quantize_one(x, scale, zero, Self::RANGE))
    }

    /// Each element of `x` quantised; `out` is as long.
    ///
    /// # Errors
    /// If the lengths differ.
    fn quantize_all(x: &[f32], scale: Spread<'_>, zero: Spread<'_>, out: &mut [Self])
    -> Result<()>;
}

macro_rules! quantized {
    ($($t:ty, $all:expr;)*) => { $(
        impl Quantized for $t {
            const RANGE: (f32, f32) = (<$t>::MIN as f32, <$t>::MAX as f32);
            #[inline(always)]
            fn from_whole(v: f32) -> Self {
                v as Self
            }

            fn quantize_all(
                x: &[f32],
                scale: Spread<'_>,
                zero: Spread<'_>,
                out: &mut [Self],
            ) -> Result<()> {
                Ok($all(x, scale, zero, out)?)
            }
        }
    )* };
}
quantized! {
    u8, crate::kernels::quantize;
    i8, crate::kernels::quantize;
    u16, one_by_one;
    i16, one_by_one;
}

/// [`Quantized::quantize_all`] without a kernel.
fn one_by_one<Q: Quantized>(
    x: &[f32],
    scale: Spread<'_>,
    zero: Spread<'_>,
    out: &mut [Q],
) -> std::result::Result<(), KernelError> {
    for (i, (o, &x)) in out.iter_mut().zip(x).enumerate() {
        *o = Q::quantize(x, scale.at(i), zero.at(i));
    }
    Ok(())
}

/// Zero points as f32, zeros where there are none.
fn zeros(zero: Option<&Tensor>, count: usize) -> Result<Vec<f32>> {
    zero.map_or_else(|| Ok(vec![0.0; count]), Tensor::to_f32s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::round_even;

    #[test]
    fn rounding_is_to_even_and_saturates() {
        for x in [-2.5f32, -1.5, -0.5, -0.49, 0.0, 0.5, 0.501, 1.5, 2.5, 1000.5, -70_000.25] {
            assert_eq!(round_even(x), x.round_ties_even(), "{x}");
        }
        assert_eq!(i8::quantize(f32::INFINITY, 1.0, 0.0), 127);
        assert_eq!(i8::quantize(-1e30, 1.0, 3.0), -128);
        assert_eq!(u16::quantize(1e9, 1.0, 65_535.0), 65_535);
        assert_eq!(u8::quantize(-0.5, 1.0, 128.0), 128);
    }

    #[test]
    fn blocks_are_laid_along_the_axis() {
        let layout = Layout { axis: 0, block: 2 };
        let (x, scale) = (Shape::from([3, 2]), Shape::from([2, 2]));
        let mut owner = vec![9; 6];
        layout.runs(&x, &scale, None).unwrap().each(6, |at, n, s| owner[at..at + n].fill(s));
        assert_eq!(owner, [0, 1, 0, 1, 2, 3]);
        let layout = Layout { axis: -1, block: 2 };
        let (x, scale) = (Shape::from([2, 3]), Shape::from([2, 2]));
        layout.runs(&x, &scale, None).unwrap().each(6, |at, n, s| owner[at..at + n].fill(s));
        assert_eq!(owner, [0, 0, 1, 2, 2, 3]);
        assert!(layout.runs(&x, &Shape::from([2, 3]), None).is_err());
    }
}
