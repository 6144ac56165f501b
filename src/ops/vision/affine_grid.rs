//! `AffineGrid`.

use crate::error::{Result, bail};
use crate::graph::Dim;
use crate::ops::case::{Case, filled};
use crate::ops::def::types::{FLOATS, I64S};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, cast, element_count};

/// The points of an image of a size after an affine transformation, for [`super::GRID_SAMPLE`].
pub(in crate::ops) static AFFINE_GRID: OpDef = OpDef {
    name: "AffineGrid",
    domain: "",
    since: 20,
    attributes: &[AttributeDef::optional("align_corners", AttributeKind::Int)],
    inputs: &[Port::required("theta", FLOATS), Port::required("size", I64S)],
    outputs: &[Port::required("grid", FLOATS)],
    infer: |i| {
        let shape = match i.elements(1) {
            Some(size) if size.len() >= 3 => {
                let mut shape: Vec<Dim> = vec![size[0].clone()];
                shape.extend_from_slice(&size[2..]);
                shape.push(Dim::of(size.len() - 2));
                Some(shape)
            }
            _ => None,
        };
        i.set(0, i.dtype(0), shape);
        Ok(())
    },
    batch: batch::mixes,
    cost: cost::elementwise,
    prepare: |p| Ok(Box::new(AffineGrid { corners: p.node.int_or("align_corners", 0)? != 0 })),
    cases,
};

#[derive(Debug)]
struct AffineGrid {
    corners: bool,
}

impl AffineGrid {
    /// The coordinate of a pixel, from -1 to 1.
    fn coordinate(&self, at: usize, extent: usize) -> f64 {
        let n = extent as f64;
        match (self.corners, extent) {
            (true, 1) => -1.0,
            (true, _) => 2.0 * at as f64 / (n - 1.0) - 1.0,
            (false, _) => (2.0 * at as f64 + 1.0) / n - 1.0,
        }
    }
}

impl CpuKernel for AffineGrid {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (theta, size) = (io.tensor(0)?, io.tensor(1)?.to_i64s()?);
        let size: Option<Vec<usize>> = size.iter().map(|n| usize::try_from(*n).ok()).collect();
        let Some(&[n, _, ref dims @ ..]) = size.as_deref() else {
            bail!(Shape, "`size` is {:?}, expected batch, channels and axes", io.tensor(1)?);
        };
        let axes = dims.len();
        if !(2..=3).contains(&axes) || *theta.shape() != [n, axes, axes + 1] {
            bail!(
                Shape,
                "`theta` is {}, for {axes} axes and {n} images; [{n},{axes},{}] with 2 or 3 axes \
                 is expected",
                theta.describe(),
                axes + 1
            );
        }
        let mut shape = vec![n];
        shape.extend_from_slice(dims);
        shape.push(axes);
        element_count(&shape, 8)?;
        let wide = cast(theta, DType::F64)?;
        let mut out = Tensor::zeros(DType::F64, shape)?;
        let points: usize = dims.iter().product();
        let to = out.as_mut_slice::<f64>()?;
        for (item, matrix) in wide.as_slice::<f64>()?.chunks_exact(axes * (axes + 1)).enumerate() {
            for point in 0..points {
                let mut coordinates = [0.0; 3];
                let mut rest = point;
                // The innermost axis is named first.
                for (k, extent) in dims.iter().rev().enumerate() {
                    coordinates[k] = self.coordinate(rest % extent, *extent);
                    rest /= extent;
                }
                for (row, o) in
                    matrix.chunks_exact(axes + 1).zip(&mut to[(item * points + point) * axes..])
                {
                    *o = row[axes]
                        + row[..axes].iter().zip(coordinates).map(|(m, c)| m * c).sum::<f64>();
                }
            }
        }
        io.emit(cast(&out, theta.dtype())?);
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    let new = |corners: i64, want: [f32; 8]| {
        Case::new("AffineGrid", 20, format!("a shift and a stretch, {corners}"))
            .attr("align_corners", corners)
            .input(filled(&[1, 2, 3], &[1.0_f32, 0.0, 0.5, 0.0, 2.0, 0.0]))
            .constant(filled(&[4], &[1_i64, 1, 2, 2]))
            .output(filled(&[1, 2, 2, 2], &want))
    };
    vec![
        new(0, [0.0, -1.0, 1.0, -1.0, 0.0, 1.0, 1.0, 1.0]),
        new(1, [-0.5, -2.0, 1.5, -2.0, -0.5, 2.0, 1.5, 2.0]),
    ]
}
