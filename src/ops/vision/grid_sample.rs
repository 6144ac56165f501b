//! `GridSample`.

use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::ops::batch::{BatchFlow, BatchQuery};
use crate::ops::case::{Case, filled};
use crate::ops::def::types::FLOATS;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, cost};
use crate::tensor::{DType, cast, element_count};

/// An image sampled at the points of a grid, whose coordinates go from -1 to 1.
pub(in crate::ops) static GRID_SAMPLE: OpDef = OpDef {
    name: "GridSample",
    domain: "",
    since: 16,
    attributes: &[
        AttributeDef::optional("align_corners", AttributeKind::Int),
        AttributeDef::optional("mode", AttributeKind::String),
        AttributeDef::optional("padding_mode", AttributeKind::String),
    ],
    inputs: &[Port::required("X", FLOATS), Port::required("grid", FLOATS)],
    outputs: &[Port::required("Y", FLOATS)],
    infer,
    batch,
    cost: |q| cost::Cost { flops: 20.0 * q.output_elements(), bytes: q.bytes() },
    prepare: |p| Ok(Box::new(GridSample::of(p.node)?)),
    cases,
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Linear,
    Nearest,
    Cubic,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Padding {
    Zeros,
    Border,
    Reflection,
}

#[derive(Debug)]
struct GridSample {
    corners: bool,
    mode: Mode,
    padding: Padding,
}

impl GridSample {
    fn of(node: &Node) -> Result<Self> {
        let mode = match node.string("mode")?.unwrap_or("linear") {
            "linear" | "bilinear" => Mode::Linear,
            "nearest" => Mode::Nearest,
            "cubic" | "bicubic" => Mode::Cubic,
            other => bail!(Graph, "attribute `mode` is `{other}`, expected linear, nearest, cubic"),
        };
        let padding = match node.string("padding_mode")?.unwrap_or("zeros") {
            "zeros" => Padding::Zeros,
            "border" => Padding::Border,
            "reflection" => Padding::Reflection,
            other => bail!(
                Graph,
                "attribute `padding_mode` is `{other}`, expected zeros, border or reflection"
            ),
        };
        Ok(Self { corners: node.int_or("align_corners", 0)? != 0, mode, padding })
    }

    /// The pixel that a coordinate of -1 to 1 stands for.
    fn pixel(&self, at: f64, extent: usize) -> f64 {
        let n = extent as f64;
        if self.corners { (at + 1.0) / 2.0 * (n - 1.0) } else { ((at + 1.0) * n - 1.0) / 2.0 }
    }

    /// The index that a whole coordinate reads; `None` where that is 0.
    fn index(&self, at: f64, extent: usize) -> Option<usize> {
        let last = extent as f64 - 1.0;
        let at = match self.padding {
            Padding::Zeros => return (at >= 0.0 && at <= last).then_some(at as usize),
            Padding::Border => at,
            Padding::Reflection => {
                let (low, high) = if self.corners { (0.0, last) } else { (-0.5, last + 0.5) };
                reflect(at, low, high)
            }
        };
        Some(at.clamp(0.0, last) as usize)
    }
}

/// `at` mirrored at both ends until it is between them.
fn reflect(at: f64, low: f64, high: f64) -> f64 {
    let range = high - low;
    if range <= 0.0 || !at.is_finite() {
        return low.max(0.0);
    }
    let from = if at < low {
        low - at
    } else if at > high {
        at - high
    } else {
        return at;
    };
    let (turns, rest) = ((from / range).floor(), from % range);
    // An even number of turns ends at the side that was left.
    match (at < low, turns % 2.0 == 0.0) {
        (true, true) | (false, false) => low + rest,
        _ => high - rest,
    }
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    GridSample::of(i.node)?;
    let shape = match (i.shape(0), i.shape(1)) {
        (Some(x), Some(grid)) if x.len() >= 3 && grid.len() == x.len() => {
            let mut shape: Vec<Dim> = x[..2].to_vec();
            shape.extend_from_slice(&grid[1..grid.len() - 1]);
            Some(shape)
        }
        (Some(x), Some(grid)) => {
            bail!(Shape, "an input with {} axes is sampled by a grid with {}", x.len(), grid.len())
        }
        _ => None,
    };
    i.set(0, i.dtype(0), shape);
    Ok(())
}

fn batch(q: &BatchQuery<'_>) -> BatchFlow {
    match (q.axes.first().copied().flatten(), q.axes.get(1).copied().flatten()) {
        (None, None) => q.everywhere(None),
        (Some(0), Some(0)) => q.everywhere(Some(0)),
        (None, Some(axis)) if axis > 0 && q.rank(1).is_some_and(|r| axis + 1 < r) => {
            q.everywhere(Some(axis + 1))
        }
        (Some(1), None) => q.everywhere(Some(1)),
        _ => Err("its image and its grid do not carry the batch alike".to_owned()),
    }
}

/// The four weights of a cubic convolution with `a` = -0.75.
fn cubic(t: f64) -> [f64; 4] {
    const A: f64 = -0.75;
    let near = |t: f64| ((A + 2.0) * t - (A + 3.0)) * t * t + 1.0;
    let far = |t: f64| ((A * t - 5.0 * A) * t + 8.0 * A) * t - 4.0 * A;
    [far(t + 1.0), near(t), near(1.0 - t), far(2.0 - t)]
}

impl CpuKernel for GridSample {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (x, grid) = (io.tensor(0)?, io.tensor(1)?);
        let dtype = x.dtype();
        let &[n, c, ref size @ ..] = &x.shape()[..] else {
            bail!(Shape, "the image is {}, expected batch, channels and axes", x.describe());
        };
        let axes = size.len();
        let fits = grid.rank() == axes + 2
            && axes > 0
            && grid.shape()[0] == n
            && grid.shape()[axes + 1] == axes;
        if !fits {
            bail!(Shape, "a grid {} does not fit an image {}", grid.describe(), x.describe());
        }
        if axes > 3 {
            bail!(Unsupported, "images with {axes} axes are not sampled; at most 3 are");
        }
        let out_size = grid.shape()[1..=axes].to_vec();
        let points: usize = out_size.iter().product();
        let pixels: usize = size.iter().product();
        if pixels == 0 && points > 0 {
            bail!(Shape, "an image without pixels, {}, cannot be sampled", x.describe());
        }
        let mut shape = vec![n, c];
        shape.extend(out_size);
        element_count(&shape, 8)?;
        let (x, grid) = (cast(x, DType::F64)?, cast(grid, DType::F64)?);
        let (x, grid) = (x.as_slice::<f64>()?, grid.as_slice::<f64>()?);
        let mut out = io.allocate(DType::F64, shape)?;
        let y = out.as_mut_slice::<f64>()?;
        // The offsets and weights of a point are the same for every channel.
        let mut taps: Vec<(usize, f64)> = Vec::new();
        for item in 0..n {
            for point in 0..points {
                let at = &grid[(item * points + point) * axes..][..axes];
                taps.clear();
                taps.push((0, 1.0));
                for (axis, &extent) in size.iter().enumerate() {
                    // The grid names the innermost axis first.
                    self.along(self.pixel(at[axes - 1 - axis], extent), extent, &mut taps);
                }
                for channel in 0..c {
                    let plane = &x[(item * c + channel) * pixels..][..pixels];
                    y[(item * c + channel) * points + point] =
                        taps.iter().map(|(k, w)| plane[*k] * w).sum();
                }
            }
        }
        io.emit(cast(&out, dtype)?);
        Ok(())
    }
}

impl GridSample {
    /// Spreads every tap over the pixels around `at` on one more axis.
    fn along(&self, at: f64, extent: usize, taps: &mut Vec<(usize, f64)>) {
        let last = extent as f64 - 1.0;
        // Beyond all bounds nothing is near.
        let at = if at.is_finite() { at.clamp(-1e9, 1e9) } else { -1e9 };
        let at = match (self.mode, self.padding) {
            // A border or a mirror moves the point, but for cubic each of its pixels.
            (Mode::Cubic, _) | (_, Padding::Zeros) => at,
            (_, Padding::Border) => at.clamp(0.0, last),
            (_, Padding::Reflection) => {
                let (low, high) = if self.corners { (0.0, last) } else { (-0.5, last + 0.5) };
                reflect(at, low, high).clamp(0.0, last)
            }
        };
        let (first, weights): (f64, [f64; 4]) = match self.mode {
            Mode::Nearest => (at.round_ties_even(), [1.0, 0.0, 0.0, 0.0]),
            Mode::Linear => {
                let t = at - at.floor();
                (at.floor(), [1.0 - t, t, 0.0, 0.0])
            }
            Mode::Cubic => (at.floor() - 1.0, cubic(at - at.floor())),
        };
        let old = std::mem::take(taps);
        for (k, w) in weights.into_iter().enumerate().filter(|(_, w)| *w != 0.0) {
            let Some(index) = self.index(first + k as f64, extent) else { continue };
            taps.extend(old.iter().map(|(at, weight)| (at * extent + index, weight * w)));
        }
    }
}

fn cases() -> Vec<Case> {
    let x = || filled(&[1, 1, 3, 2], &[0.0_f32, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let grid = || {
        filled(
            &[1, 2, 4, 2],
            &[
                -1.0_f32, -1.0, -0.5, -0.5, -0.2, -0.2, 0.0, 0.0, 0.0, 0.0, -0.2, -0.2, 0.5, 0.5,
                1.0, 1.0,
            ],
        )
    };
    let new = |mode: &str, padding: &str, corners: i64, want: [f32; 8]| {
        Case::new("GridSample", 20, format!("{mode}, {padding}, {corners}"))
            .attr("mode", mode)
            .attr("padding_mode", padding)
            .attr("align_corners", corners)
            .input(x())
            .input(grid())
            .output(filled(&[1, 1, 2, 4], &want))
            .close(1e-5, 1e-5)
    };
    // As the specification's own examples have them.
    vec![
        new("linear", "zeros", 0, [0.0, 0.5, 1.7, 2.5, 2.5, 1.7, 4.5, 1.25]),
        new("linear", "zeros", 1, [0.0, 1.25, 2.0, 2.5, 2.5, 2.0, 3.75, 5.0]),
        new("nearest", "zeros", 0, [0.0, 0.0, 2.0, 2.0, 2.0, 2.0, 5.0, 0.0]),
        new("cubic", "zeros", 0, [-0.1406, 0.3828, 1.7556, 2.9688, 2.9688, 1.7556, 5.1445, 1.3906])
            .close(1e-3, 1e-3),
        Case::new("GridSample", 16, "by its old name")
            .attr("mode", "bilinear")
            .input(x())
            .input(filled(&[1, 1, 1, 2], &[0.0_f32, 0.0]))
            .output(filled(&[1, 1, 1, 1], &[2.5_f32])),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrors() {
        assert_eq!(reflect(-1.0, 0.0, 3.0), 1.0);
        assert_eq!(reflect(4.0, 0.0, 3.0), 2.0);
        assert_eq!(reflect(-4.0, 0.0, 3.0), 2.0);
        assert_eq!(reflect(7.5, 0.0, 3.0), 1.5);
        assert_eq!(reflect(2.0, 0.0, 3.0), 2.0);
    }
}
