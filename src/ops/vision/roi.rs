//! Regions of images in one size: `RoiAlign` and `MaxRoiPool`.

use super::bilinear;
use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::ops::case::{Case, counted, filled};
use crate::ops::def::types::{FLOATS, I64S};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, cast, element_count};

/// Bilinear samples of each cell of each region, averaged or their largest.
pub(in crate::ops) static ROI_ALIGN: OpDef = OpDef {
    name: "RoiAlign",
    domain: "",
    since: 10,
    attributes: &[
        AttributeDef::optional("coordinate_transformation_mode", AttributeKind::String),
        AttributeDef::optional("mode", AttributeKind::String),
        AttributeDef::optional("output_height", AttributeKind::Int),
        AttributeDef::optional("output_width", AttributeKind::Int),
        AttributeDef::optional("sampling_ratio", AttributeKind::Int),
        AttributeDef::optional("spatial_scale", AttributeKind::Float),
    ],
    inputs: &[
        Port::required("X", FLOATS),
        Port::required("rois", FLOATS),
        Port::required("batch_indices", I64S),
    ],
    outputs: &[Port::required("Y", FLOATS)],
    infer: |i| {
        let align = Align::of(i.node)?;
        infer(i, align.size)
    },
    batch: batch::mixes,
    cost: |q| cost::Cost { flops: 40.0 * q.output_elements(), bytes: q.bytes() },
    prepare: |p| Ok(Box::new(Align::of(p.node)?)),
    cases: align_cases,
};

fn infer(i: &mut Infer<'_>, size: [usize; 2]) -> Result<()> {
    let shape = match (i.shape(0), i.shape(1)) {
        (Some(x), Some(rois)) if x.len() == 4 && rois.len() == 2 => {
            Some(vec![rois[0].clone(), x[1].clone(), Dim::of(size[0]), Dim::of(size[1])])
        }
        _ => None,
    };
    i.set(0, i.dtype(0), shape);
    Ok(())
}

#[derive(Debug)]
struct Align {
    /// Half a pixel off, so that pixels are points.
    half_pixel: bool,
    largest: bool,
    size: [usize; 2],
    /// Samples along each side of a cell; 0: as many as pixels.
    samples: usize,
    scale: f64,
}

impl Align {
    fn of(node: &Node) -> Result<Self> {
        let half_pixel = match node.string("coordinate_transformation_mode")? {
            Some("half_pixel") => true,
            Some("output_half_pixel") => false,
            None => node.version >= 16,
            Some(other) => {
                bail!(Graph, "attribute `coordinate_transformation_mode` is `{other}`")
            }
        };
        let largest = match node.string("mode")?.unwrap_or("avg") {
            "avg" => false,
            "max" => true,
            other => bail!(Graph, "attribute `mode` is `{other}`, expected avg or max"),
        };
        let number = |name: &str, default: i64, least: i64| {
            let n = node.int_or(name, default)?;
            match usize::try_from(n) {
                Ok(u) if (least..1 << 16).contains(&n) => Ok(u),
                _ => bail!(Graph, "attribute `{name}` is {n}, expected {least}..65536"),
            }
        };
        Ok(Self {
            half_pixel,
            largest,
            size: [number("output_height", 1, 1)?, number("output_width", 1, 1)?],
            samples: number("sampling_ratio", 0, 0)?,
            scale: node.float_or("spatial_scale", 1.0)?.into(),
        })
    }

    /// One sample, weighted, as a sum or a maximum takes it.
    fn sample(&self, plane: &[f64], size: [usize; 2], y: f64, x: f64) -> f64 {
        let [height, width] = size;
        // A point more than a pixel outside is 0; one nearer is at the border.
        if y < -1.0 || y > height as f64 || x < -1.0 || x > width as f64 {
            return 0.0;
        }
        let (y, x) = (y.clamp(0.0, height as f64 - 1.0), x.clamp(0.0, width as f64 - 1.0));
        if !self.largest {
            return bilinear(plane, height, width, y, x);
        }
        let (top, left) = (y.floor(), x.floor());
        let (dy, dx) = (y - top, x - left);
        let (bottom, right) =
            ((top + 1.0).min(height as f64 - 1.0), (left + 1.0).min(width as f64 - 1.0));
        let pixel = |y: f64, x: f64| plane[y as usize * width + x as usize];
        (pixel(top, left) * (1.0 - dy) * (1.0 - dx))
            .max(pixel(top, right) * (1.0 - dy) * dx)
            .max(pixel(bottom, left) * dy * (1.0 - dx))
            .max(pixel(bottom, right) * dy * dx)
    }
}

/// More samples than this along a side of a cell are taken for a slip.
const MOST_SAMPLES: f64 = 4096.0;

impl CpuKernel for Align {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (x, rois, owners) = (io.tensor(0)?, io.tensor(1)?, io.tensor(2)?);
        let (&[n, c, height, width], &[count, 4]) = (&x.shape()[..], &rois.shape()[..]) else {
            bail!(Shape, "an image {} and regions {}", x.describe(), rois.describe());
        };
        let owners = owners.to_i64s()?;
        if owners.len() != count {
            bail!(Shape, "{count} regions have {} batch indices", owners.len());
        }
        if height == 0 || width == 0 {
            bail!(Shape, "an image without pixels, {}", x.describe());
        }
        let [oh, ow] = self.size;
        element_count(&[count, c, oh, ow], 8)?;
        let (wide, rois) = (cast(x, DType::F64)?, cast(rois, DType::F64)?);
        let (wide, rois) = (wide.as_slice::<f64>()?, rois.as_slice::<f64>()?);
        let mut out = io.allocate(DType::F64, [count, c, oh, ow])?;
        let to = out.as_mut_slice::<f64>()?;
        for (r, (roi, owner)) in rois.chunks_exact(4).zip(owners).enumerate() {
            let Some(owner) = usize::try_from(owner).ok().filter(|o| *o < n) else {
                bail!(Kernel, "region {r} is of image {owner}; there are {n}");
            };
            let shift = if self.half_pixel { 0.5 } else { 0.0 };
            let at = |k: usize| roi[k] * self.scale - shift;
            let (x0, y0) = (at(0), at(1));
            let (mut w, mut h) = (at(2) - x0, at(3) - y0);
            if !self.half_pixel {
                (w, h) = (w.max(1.0), h.max(1.0));
            }
            let (cell_h, cell_w) = (h / oh as f64, w / ow as f64);
            let samples = |cell: f64| match self.samples {
                0 => cell.ceil().clamp(0.0, MOST_SAMPLES) as usize,
                n => n,
            };
            let (sy, sx) = (samples(cell_h), samples(cell_w));
            let total = (sy * sx).max(1) as f64;
            for channel in 0..c {
                let plane = &wide[(owner * c + channel) * height * width..][..height * width];
                for (cell, o) in to[(r * c + channel) * oh * ow..][..oh * ow].iter_mut().enumerate()
                {
                    let (cy, cx) = ((cell / ow) as f64, (cell % ow) as f64);
                    let mut found: Option<f64> = None;
                    for iy in 0..sy {
                        let y = y0 + cell_h * (cy + (iy as f64 + 0.5) / sy as f64);
                        for ix in 0..sx {
                            let x = x0 + cell_w * (cx + (ix as f64 + 0.5) / sx as f64);
                            let v = self.sample(plane, [height, width], y, x);
                            found = Some(match found {
                                None => v,
                                Some(old) if self.largest => old.max(v),
                                Some(old) => old + v,
                            });
                        }
                    }
                    let v = found.unwrap_or(0.0);
                    *o = if self.largest { v } else { v / total };
                }
            }
        }
        io.emit(cast(&out, x.dtype())?);
        Ok(())
    }
}

/// The largest pixel of each cell of each region.
pub(in crate::ops) static MAX_ROI_POOL: OpDef = OpDef {
    name: "MaxRoiPool",
    domain: "",
    since: 1,
    attributes: &[
        AttributeDef::required("pooled_shape", AttributeKind::Ints),
        AttributeDef::optional("spatial_scale", AttributeKind::Float),
    ],
    inputs: &[Port::required("X", FLOATS), Port::required("rois", FLOATS)],
    outputs: &[Port::required("Y", FLOATS)],
    infer: |i| {
        let pool = MaxPool::of(i.node)?;
        infer(i, pool.size)
    },
    batch: batch::mixes,
    cost: cost::reduction,
    prepare: |p| Ok(Box::new(MaxPool::of(p.node)?)),
    cases: || {
        vec![
            Case::new("MaxRoiPool", 1, "two regions")
                .attr("pooled_shape", vec![1_i64, 2])
                .input(counted(&[1, 1, 3, 4]))
                .input(filled(&[2, 5], &[0.0_f32, 0.0, 0.0, 3.0, 2.0, 0.0, 1.0, 1.0, 2.0, 1.0]))
                .output(filled(&[2, 1, 1, 2], &[9.0_f32, 11.0, 5.0, 6.0])),
            Case::new("MaxRoiPool", 1, "a scale")
                .attr("pooled_shape", vec![1_i64, 1])
                .attr("spatial_scale", 0.5_f32)
                .input(counted(&[1, 1, 3, 4]))
                .input(filled(&[1, 5], &[0.0_f32, 0.0, 0.0, 4.0, 2.0]))
                .output(filled(&[1, 1, 1, 1], &[6.0_f32])),
        ]
    },
};

#[derive(Debug)]
struct MaxPool {
    size: [usize; 2],
    scale: f64,
}

impl MaxPool {
    fn of(node: &Node) -> Result<Self> {
        match crate::ops::window::sizes(node, "pooled_shape", 1)?.as_deref() {
            Some(&[h, w]) => {
                Ok(Self { size: [h, w], scale: node.float_or("spatial_scale", 1.0)?.into() })
            }
            other => bail!(Graph, "attribute `pooled_shape` is {other:?}, expected two values"),
        }
    }
}

impl CpuKernel for MaxPool {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (x, rois) = (io.tensor(0)?, io.tensor(1)?);
        let (&[n, c, height, width], &[count, 5]) = (&x.shape()[..], &rois.shape()[..]) else {
            bail!(Shape, "an image {} and regions {}", x.describe(), rois.describe());
        };
        let [oh, ow] = self.size;
        element_count(&[count, c, oh, ow], 8)?;
        let (wide, rois) = (cast(x, DType::F64)?, cast(rois, DType::F64)?);
        let (wide, rois) = (wide.as_slice::<f64>()?, rois.as_slice::<f64>()?);
        let mut out = io.allocate(DType::F64, [count, c, oh, ow])?;
        let to = out.as_mut_slice::<f64>()?;
        for (r, roi) in rois.chunks_exact(5).enumerate() {
            let owner = roi[0];
            if !(0.0..n as f64).contains(&owner) {
                bail!(Kernel, "region {r} is of image {owner}; there are {n}");
            }
            let at = |k: usize| (roi[k] * self.scale).round();
            let (x0, y0) = (at(1), at(2));
            let (w, h) = ((at(3) - x0 + 1.0).max(1.0), (at(4) - y0 + 1.0).max(1.0));
            // The pixels of a cell along one side.
            let range = |start: f64, side: f64, cell: usize, cells: usize, extent: usize| {
                let step = side / cells as f64;
                let from = (start + (cell as f64 * step).floor()).clamp(0.0, extent as f64);
                let until = (start + ((cell as f64 + 1.0) * step).ceil()).clamp(0.0, extent as f64);
                from as usize..until as usize
            };
            for channel in 0..c {
                let plane =
                    &wide[(owner as usize * c + channel) * height * width..][..height * width];
                for (cell, o) in to[(r * c + channel) * oh * ow..][..oh * ow].iter_mut().enumerate()
                {
                    let rows = range(y0, h, cell / ow, oh, height);
                    let columns = range(x0, w, cell % ow, ow, width);
                    *o = rows
                        .flat_map(|y| columns.clone().map(move |x| plane[y * width + x]))
                        .reduce(f64::max)
                        .unwrap_or(0.0);
                }
            }
        }
        io.emit(cast(&out, x.dtype())?);
        Ok(())
    }
}

fn align_cases() -> Vec<Case> {
    let new = |version: i64, name: &str| {
        Case::new("RoiAlign", version, name)
            .attr("output_height", 2)
            .attr("output_width", 2)
            .attr("sampling_ratio", 2)
            .input(counted(&[1, 1, 4, 4]))
            .input(filled(&[1, 4], &[0.0_f32, 0.0, 2.0, 2.0]))
            .input(filled(&[1], &[0_i64]))
            .close(1e-6, 1e-6)
    };
    vec![
        new(16, "half a pixel off").output(filled(&[1, 1, 2, 2], &[0.625_f32, 1.5, 4.125, 5.0])),
        new(10, "not").output(filled(&[1, 1, 2, 2], &[2.5_f32, 3.5, 6.5, 7.5])),
        new(16, "the largest")
            .attr("mode", "max")
            .attr("coordinate_transformation_mode", "output_half_pixel")
            .output(filled(&[1, 1, 2, 2], &[2.812_5_f32, 3.375, 5.0625, 5.625])),
    ]
}
