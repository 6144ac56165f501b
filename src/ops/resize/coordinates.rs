//! Where an output element lies in the input, along one axis.

use crate::error::{Result, bail};
use crate::graph::Node;

/// How a coordinate of the output becomes one of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coordinates {
    HalfPixel,
    HalfPixelSymmetric,
    PytorchHalfPixel,
    AlignCorners,
    Asymmetric,
    CropAndResize,
}

impl Coordinates {
    pub(super) fn read(node: &Node) -> Result<Self> {
        Ok(match node.string("coordinate_transformation_mode")?.unwrap_or("half_pixel") {
            "half_pixel" => Self::HalfPixel,
            "half_pixel_symmetric" => Self::HalfPixelSymmetric,
            "pytorch_half_pixel" => Self::PytorchHalfPixel,
            "align_corners" => Self::AlignCorners,
            "asymmetric" => Self::Asymmetric,
            "tf_crop_and_resize" => Self::CropAndResize,
            other => {
                bail!(Graph, "attribute `coordinate_transformation_mode` is `{other}`, not known")
            }
        })
    }
}

/// Which of two neighbours is the nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Nearest {
    RoundPreferFloor,
    RoundPreferCeil,
    Floor,
    Ceil,
    /// Before version 11: down when growing, up when shrinking.
    Outwards,
}

impl Nearest {
    pub(super) fn read(node: &Node) -> Result<Self> {
        Ok(match node.string("nearest_mode")?.unwrap_or("round_prefer_floor") {
            "round_prefer_floor" => Self::RoundPreferFloor,
            "round_prefer_ceil" => Self::RoundPreferCeil,
            "floor" => Self::Floor,
            "ceil" => Self::Ceil,
            other => bail!(Graph, "attribute `nearest_mode` is `{other}`, not known"),
        })
    }

    fn round(self, x: f32, scale: f32) -> f32 {
        match self {
            Self::RoundPreferFloor => (x - 0.5).ceil(),
            Self::RoundPreferCeil => (x + 0.5).floor(),
            Self::Floor => x.floor(),
            Self::Ceil => x.ceil(),
            Self::Outwards if scale < 1.0 => x.ceil(),
            Self::Outwards => x.floor(),
        }
    }
}

/// How neighbours are weighted.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Filter {
    /// Two neighbours by distance.
    Linear,
    /// Four neighbours by a cubic with this coefficient.
    Cubic(f32),
}

impl Filter {
    /// How far it reaches on each side.
    fn reach(self) -> f64 {
        match self {
            Self::Linear => 1.0,
            Self::Cubic(_) => 2.0,
        }
    }

    fn weight(self, distance: f64) -> f64 {
        let x = distance.abs();
        match self {
            Self::Linear => (1.0 - x).max(0.0),
            Self::Cubic(a) => {
                let a = f64::from(a);
                if x <= 1.0 {
                    ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0
                } else if x < 2.0 {
                    ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a
                } else {
                    0.0
                }
            }
        }
    }
}

/// One axis that is resized.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stretch {
    /// The axis.
    pub(super) axis: usize,
    /// The input's extent.
    pub(super) size: usize,
    /// The output's extent.
    pub(super) out: usize,
    /// Output over input, as it was given or follows from the sizes.
    pub(super) scale: f32,
    /// The output's extent before it was rounded.
    pub(super) length: f32,
    /// The part of the input that is seen, where that matters.
    pub(super) roi: [f32; 2],
}

impl Stretch {
    /// The input coordinate of output `at`.
    fn source(&self, at: usize, mode: Coordinates) -> f32 {
        let (x, size) = (at as f32, self.size as f32);
        let centre = |x: f32| (x + 0.5) / self.scale - 0.5;
        match mode {
            Coordinates::HalfPixel => centre(x),
            Coordinates::HalfPixelSymmetric => {
                let adjustment = self.out as f32 / self.length;
                size / 2.0 * (1.0 - adjustment) + centre(x)
            }
            Coordinates::PytorchHalfPixel => {
                if self.length > 1.0 {
                    centre(x)
                } else {
                    0.0
                }
            }
            Coordinates::AlignCorners => {
                if self.length == 1.0 {
                    0.0
                } else {
                    x * (size - 1.0) / (self.length - 1.0)
                }
            }
            Coordinates::Asymmetric => x / self.scale,
            Coordinates::CropAndResize => {
                let [start, end] = self.roi;
                if self.length > 1.0 {
                    start * (size - 1.0) + x * (end - start) * (size - 1.0) / (self.length - 1.0)
                } else {
                    0.5 * (start + end) * (size - 1.0)
                }
            }
        }
    }

    /// An input index, which is drawn back to the edge.
    fn clamp(&self, x: f64) -> usize {
        // The cast saturates, and the extent is at least 1 here.
        (x.max(0.0) as usize).min(self.size.saturating_sub(1))
    }

    /// The nearest input index of each output.
    pub(super) fn nearest(&self, mode: Coordinates, nearest: Nearest) -> Vec<usize> {
        (0..self.out)
            .map(|at| {
                let x = nearest.round(self.source(at, mode), self.scale);
                self.clamp(f64::from(x))
            })
            .collect()
    }

    /// Which outputs lie outside of the input.
    pub(super) fn outside(&self, mode: Coordinates) -> Vec<bool> {
        (0..self.out)
            .map(|at| {
                let x = self.source(at, mode);
                x < 0.0 || x > self.size as f32 - 1.0
            })
            .collect()
    }

    /// The neighbours of each output and their weights.
    pub(super) fn taps(
        &self,
        mode: Coordinates,
        filter: Filter,
        antialias: bool,
        exclude_outside: bool,
    ) -> Taps {
        // When it shrinks, the filter is stretched so that every input counts.
        let squeeze = if antialias { f64::from(self.scale).min(1.0) } else { 1.0 };
        let first = (-filter.reach() / squeeze).floor() + 1.0;
        let width = (2.0 - 2.0 * first) as usize;
        let mut taps = Taps { width, indices: Vec::new(), weights: Vec::new() };
        for at in 0..self.out {
            let x = f64::from(self.source(at, mode));
            // The neighbour on the left is preferred: the rest is in (0, 1].
            let base = x.ceil() - 1.0;
            let rest = x - base;
            let start = taps.weights.len();
            for t in 0..width {
                let offset = first + t as f64;
                let index = base + offset;
                let inside = index >= 0.0 && index < self.size as f64;
                let weight = filter.weight((offset - rest) * squeeze);
                taps.indices.push(self.clamp(index));
                taps.weights.push(if exclude_outside && !inside { 0.0 } else { weight });
            }
            let weights = &mut taps.weights[start..];
            let sum: f64 = weights.iter().sum();
            if (exclude_outside || antialias) && sum != 0.0 {
                weights.iter_mut().for_each(|w| *w /= sum);
            }
        }
        taps
    }
}

/// For each output along an axis, input indices and their weights.
#[derive(Clone, Debug)]
pub(super) struct Taps {
    /// How many there are for each output.
    pub(super) width: usize,
    pub(super) indices: Vec<usize>,
    pub(super) weights: Vec<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_round_as_the_mode_says() {
        let rounded = |n: Nearest| [-0.5, 0.5, 1.5, 2.4, 2.6].map(|x| n.round(x, 2.0));
        assert_eq!(rounded(Nearest::RoundPreferFloor), [-1.0, 0.0, 1.0, 2.0, 3.0]);
        assert_eq!(rounded(Nearest::RoundPreferCeil), [0.0, 1.0, 2.0, 2.0, 3.0]);
        assert_eq!(rounded(Nearest::Floor), [-1.0, 0.0, 1.0, 2.0, 2.0]);
        assert_eq!(rounded(Nearest::Ceil), [0.0, 1.0, 2.0, 3.0, 3.0]);
    }

    #[test]
    fn weights_sum_to_one() {
        for filter in [Filter::Linear, Filter::Cubic(-0.75)] {
            for (size, out, antialias, exclude) in
                [(5, 9, false, false), (9, 4, true, false), (9, 4, false, true), (3, 1, true, true)]
            {
                let scale = out as f32 / size as f32;
                let s = Stretch { axis: 0, size, out, scale, length: out as f32, roi: [0.0, 1.0] };
                let taps = s.taps(Coordinates::HalfPixel, filter, antialias, exclude);
                assert_eq!(taps.indices.len(), out * taps.width);
                assert!(taps.indices.iter().all(|i| *i < size));
                for w in taps.weights.chunks(taps.width) {
                    assert!((w.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{filter:?} {w:?}");
                }
            }
        }
    }
}
