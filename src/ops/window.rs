//! The attributes of a sliding window, shared by convolution and pooling, and the extents that
//! follow from them.

use super::{AttributeDef, AttributeKind, Infer};
use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::tensor::Few;

pub(crate) const KERNEL_SHAPE: AttributeDef =
    AttributeDef::optional("kernel_shape", AttributeKind::Ints);
pub(crate) const STRIDES: AttributeDef = AttributeDef::optional("strides", AttributeKind::Ints);
pub(crate) const DILATIONS: AttributeDef = AttributeDef::optional("dilations", AttributeKind::Ints);
pub(crate) const PADS: AttributeDef = AttributeDef::optional("pads", AttributeKind::Ints);
pub(crate) const AUTO_PAD: AttributeDef = AttributeDef::optional("auto_pad", AttributeKind::String);
pub(crate) const CEIL_MODE: AttributeDef = AttributeDef::optional("ceil_mode", AttributeKind::Int);

/// Attributes and extents stay below this, so that products of two of them cannot overflow.
const LIMIT: i64 = 1 << 30;

/// How padding is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AutoPad {
    /// As the attribute `pads` says.
    NotSet,
    /// So that the output is the input over the stride; the odd one goes to the end.
    SameUpper,
    /// So that the output is the input over the stride; the odd one goes to the beginning.
    SameLower,
    /// None.
    Valid,
}

impl AutoPad {
    pub(crate) fn read(node: &Node) -> Result<Self> {
        Ok(match node.string("auto_pad")?.unwrap_or("NOTSET") {
            "NOTSET" | "" => Self::NotSet,
            "SAME_UPPER" => Self::SameUpper,
            "SAME_LOWER" => Self::SameLower,
            "VALID" => Self::Valid,
            other => bail!(
                Graph,
                "attribute `auto_pad` is `{other}`, expected NOTSET, SAME_UPPER, SAME_LOWER or VALID"
            ),
        })
    }

    /// A total cut into beginning and end.
    pub(crate) fn split(self, total: usize) -> [usize; 2] {
        let half = total / 2;
        if self == Self::SameLower { [total - half, half] } else { [half, total - half] }
    }
}

/// The values of an attribute of whole numbers, each in `least..2^30`.
pub(crate) fn sizes(node: &Node, name: &str, least: i64) -> Result<Option<Vec<usize>>> {
    let Some(values) = node.ints(name)? else { return Ok(None) };
    let mut out = Vec::with_capacity(values.len());
    for v in values {
        match usize::try_from(*v) {
            Ok(u) if (least..LIMIT).contains(v) => out.push(u),
            _ => bail!(
                Graph,
                "attribute `{name}` is {values:?}, every value must be in {least}..{LIMIT}"
            ),
        }
    }
    Ok(Some(out))
}

/// The attributes, as they stand; which of them are left out is known only with the rank.
#[derive(Clone, Debug)]
pub(crate) struct WindowAttributes {
    pub(crate) kernel: Option<Vec<usize>>,
    strides: Option<Vec<usize>>,
    dilations: Option<Vec<usize>>,
    pads: Option<Vec<usize>>,
    pub(crate) auto_pad: AutoPad,
    ceil: bool,
}

/// One axis of a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Axis {
    /// The input's extent.
    pub(crate) size: usize,
    /// Taps.
    pub(crate) kernel: usize,
    /// Distance between neighbouring windows.
    pub(crate) stride: usize,
    /// Distance between neighbouring taps.
    pub(crate) dilation: usize,
    /// Padding at the beginning and at the end.
    pub(crate) pads: [usize; 2],
    /// The output's extent.
    pub(crate) out: usize,
}

impl Axis {
    /// An axis along which nothing happens.
    pub(crate) const ONE: Self =
        Self { size: 1, kernel: 1, stride: 1, dilation: 1, pads: [0, 0], out: 1 };

    /// The input index that tap `tap` of window `at` reads, if it is not padding.
    pub(crate) fn source(&self, at: usize, tap: usize) -> Option<usize> {
        (at * self.stride + tap * self.dilation)
            .checked_sub(self.pads[0])
            .filter(|i| *i < self.size)
    }

    /// The windows whose tap `tap` is not padding, and the input index of the first of them.
    pub(crate) fn inside(&self, tap: usize) -> (std::ops::Range<usize>, usize) {
        let offset = tap * self.dilation;
        let first = self.pads[0].saturating_sub(offset).div_ceil(self.stride);
        let last = (self.size + self.pads[0]).saturating_sub(offset).div_ceil(self.stride);
        let last = last.min(self.out).max(first);
        (first..last, (first * self.stride + offset).saturating_sub(self.pads[0]))
    }
}

impl WindowAttributes {
    /// Reads and checks them.
    pub(crate) fn read(node: &Node) -> Result<Self> {
        Ok(Self {
            kernel: sizes(node, "kernel_shape", 1)?,
            strides: sizes(node, "strides", 1)?,
            dilations: sizes(node, "dilations", 1)?,
            pads: sizes(node, "pads", 0)?,
            auto_pad: AutoPad::read(node)?,
            ceil: node.int_or("ceil_mode", 0)? != 0,
        })
    }

    /// Whether the padding depends on the input's extents.
    pub(crate) fn is_same(&self) -> bool {
        matches!(self.auto_pad, AutoPad::SameUpper | AutoPad::SameLower)
    }

    /// The values along axis `i` of `rank`: stride, dilation and given pads.
    fn along(&self, i: usize, rank: usize) -> Result<(usize, usize, [usize; 2])> {
        let pick = |name: &str, values: &Option<Vec<usize>>| match values {
            None => Ok(1),
            Some(v) if v.len() == rank => Ok(v[i]),
            Some(v) => bail!(Graph, "attribute `{name}` is {v:?}, expected {rank} values"),
        };
        let pads = match &self.pads {
            _ if self.auto_pad != AutoPad::NotSet => [0, 0],
            None => [0, 0],
            Some(p) if p.len() == 2 * rank => [p[i], p[i + rank]],
            Some(p) => bail!(Graph, "attribute `pads` is {p:?}, expected {} values", 2 * rank),
        };
        Ok((pick("strides", &self.strides)?, pick("dilations", &self.dilations)?, pads))
    }

    /// The kernel's extents: the attribute, which must agree with the weights where these are
    /// given.
    pub(crate) fn kernel_of<'a>(&'a self, weights: Option<&'a [usize]>) -> Result<&'a [usize]> {
        match (&self.kernel, weights) {
            (Some(k), Some(w)) if k != w => {
                bail!(Shape, "attribute `kernel_shape` is {k:?}, the weights have {w:?}")
            }
            (Some(k), _) => Ok(k),
            (None, Some(w)) => Ok(w),
            (None, None) => bail!(Graph, "attribute `kernel_shape` is missing"),
        }
    }

    /// Stride, dilation and given pads along each of `rank` axes, for a transposed window.
    pub(crate) fn transposed(&self, rank: usize) -> Result<Few<(usize, usize, [usize; 2])>> {
        (0..rank).map(|i| self.along(i, rank)).collect()
    }

    /// The window over an input of these extents.
    ///
    /// # Errors
    /// If numbers of axes differ, or the kernel is larger than the padded input.
    pub(crate) fn resolve(&self, size: &[usize], kernel: &[usize]) -> Result<Few<Axis>> {
        let rank = size.len();
        if kernel.len() != rank {
            bail!(Shape, "a kernel of shape {kernel:?} over an input with {rank} spatial axes");
        }
        let mut axes = Few::new();
        for i in 0..rank {
            let (size, kernel) = (size[i], kernel[i]);
            let (stride, dilation, pads) = self.along(i, rank)?;
            let limit = usize::try_from(LIMIT).unwrap_or(usize::MAX);
            let reach = kernel
                .checked_sub(1)
                .and_then(|k| k.checked_mul(dilation))
                .map(|k| k + 1)
                .filter(|k| *k < limit && size < limit);
            let Some(reach) = reach else {
                bail!(Shape, "a kernel of {kernel} with dilation {dilation} over {size} elements");
            };
            axes.push(match self.auto_pad {
                AutoPad::SameUpper | AutoPad::SameLower => {
                    let out = size.div_ceil(stride);
                    let total = (out.saturating_sub(1) * stride + reach).saturating_sub(size);
                    let pads = self.auto_pad.split(total);
                    Axis { size, kernel, stride, dilation, pads, out }
                }
                AutoPad::NotSet | AutoPad::Valid => {
                    let Some(room) = (size + pads[0] + pads[1]).checked_sub(reach) else {
                        bail!(
                            Shape,
                            "the kernel reaches over {reach} elements, axis {i} has only {} with \
                             padding",
                            size + pads[0] + pads[1]
                        );
                    };
                    let mut out = room / stride + 1;
                    if self.ceil {
                        out = room.div_ceil(stride) + 1;
                        // A window must begin before the padding at the end does.
                        if (out - 1) * stride >= size + pads[0] {
                            out -= 1;
                        }
                    }
                    Axis { size, kernel, stride, dilation, pads, out }
                }
            });
        }
        Ok(axes)
    }

    /// The symbolic extents of the output.
    ///
    /// # Errors
    /// As [`Self::resolve`].
    pub(crate) fn dims(
        &self,
        i: &mut Infer<'_>,
        size: &[Dim],
        kernel: &[Option<usize>],
    ) -> Result<Vec<Dim>> {
        let rank = size.len();
        if kernel.len() != rank {
            bail!(Shape, "a kernel with {} axes over {rank} spatial axes", kernel.len());
        }
        let mut out = Vec::with_capacity(rank);
        for (axis, (size, kernel)) in size.iter().zip(kernel).enumerate() {
            let (stride, dilation, pads) = self.along(axis, rank)?;
            let number = |n: usize| Dim::of(n);
            if self.is_same() {
                out.push(size.ceil_div(i64::try_from(stride).unwrap_or(1)));
                continue;
            }
            let Some(reach) = kernel.map(|k| k.saturating_sub(1).saturating_mul(dilation) + 1)
            else {
                out.push(i.fresh());
                continue;
            };
            let room = size.clone() + number(pads[0] + pads[1]) - number(reach);
            if let Some(r) = room.as_fixed()
                && r < 0
            {
                bail!(Shape, "the kernel reaches over {reach} elements, axis {axis} has {size}");
            }
            let one = Dim::fixed(1);
            let step = i64::try_from(stride).unwrap_or(1);
            if !self.ceil {
                out.push(room.floor_div(&Dim::fixed(step)) + one);
            } else if pads[1] < reach {
                let most = (size.clone() + number(pads[0])).ceil_div(step);
                out.push((room.ceil_div(step) + one).smaller(&most));
            } else {
                out.push(i.fresh());
            }
        }
        Ok(out)
    }
}

/// The last `N` axes, with axes in front along which nothing happens.
///
/// # Errors
/// If there are more than `N`.
pub(crate) fn padded_axes<const N: usize>(axes: &[Axis]) -> Result<[Axis; N]> {
    let mut out = [Axis::ONE; N];
    let Some(lead) = N.checked_sub(axes.len()) else {
        bail!(Unsupported, "{} spatial axes, at most {N} are implemented", axes.len());
    };
    out[lead..].copy_from_slice(axes);
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn taps_inside_agree_with_their_sources() {
        for size in [1_usize, 5, 8] {
            for (kernel, stride, dilation, pads) in
                [(3, 1, 1, [1, 1]), (3, 2, 2, [2, 3]), (2, 3, 1, [4, 0]), (5, 2, 1, [4, 4])]
            {
                let reach = (kernel - 1) * dilation + 1;
                let Some(room) = (size + pads[0] + pads[1]).checked_sub(reach) else { continue };
                let out = room / stride + 1;
                let axis = Axis { size, kernel, stride, dilation, pads, out };
                for tap in 0..kernel {
                    let (range, first) = axis.inside(tap);
                    let valid: Vec<_> =
                        (0..out).filter(|at| axis.source(*at, tap).is_some()).collect();
                    assert_eq!(range.clone().collect::<Vec<_>>(), valid, "{axis:?} {tap}");
                    if let Some(at) = valid.first() {
                        assert_eq!(axis.source(*at, tap), Some(first));
                    }
                }
            }
        }
    }
}
