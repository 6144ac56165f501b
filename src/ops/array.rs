//! Small operators on arrays: `Compress`, `EyeLike`, `CenterCropPad`, `Det`.

use super::case::{Case, filled, iota};
use super::def::types::{ANY, BOOLS, FLOATS, INDICES};
use super::movement::{Picked, produce};
use super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, batch, cost};
use crate::error::{Result, bail};
use crate::graph::Node;
use crate::tensor::{DType, Tensor, cast, element_count, normalise_axis, strides};

/// The slices along an axis, or of all elements in a row, where the condition holds.
pub(super) static COMPRESS: OpDef = OpDef {
    name: "Compress",
    domain: "",
    since: 9,
    attributes: &[AttributeDef::optional("axis", AttributeKind::Int)],
    inputs: &[Port::required("input", ANY), Port::required("condition", BOOLS)],
    outputs: &[Port::required("output", ANY)],
    infer: |i| {
        let kept = i.fresh();
        let shape = match (i.node.int("axis")?, i.shape(0)) {
            (None, _) => Some(vec![kept]),
            (Some(axis), Some(mut shape)) => {
                let axis = normalise_axis(axis, shape.len())?;
                shape[axis] = kept;
                Some(shape)
            }
            (Some(_), None) => None,
        };
        i.set(0, i.dtype(0), shape);
        Ok(())
    },
    batch: batch::mixes,
    cost: cost::copy,
    prepare: |p| Ok(Box::new(Compress { axis: p.node.int("axis")? })),
    cases: || {
        let x = || iota(&[3, 2]);
        let new = |name: &str| Case::new("Compress", 11, name).input(x());
        vec![
            new("rows")
                .attr("axis", 0)
                .input(filled(&[3], &[false, true, true]))
                .output(filled(&[2, 2], &[2_i64, 3, 4, 5])),
            new("columns, from the end")
                .attr("axis", -1)
                .input(filled(&[2], &[false, true]))
                .output(filled(&[3, 1], &[1_i64, 3, 5])),
            new("elements")
                .input(filled(&[5], &[false, true, false, false, true]))
                .output(filled(&[2], &[1_i64, 4])),
            new("a short condition")
                .attr("axis", 0)
                .input(filled(&[1], &[true]))
                .output(filled(&[1, 2], &[0_i64, 1])),
        ]
    },
};

#[derive(Debug)]
struct Compress {
    axis: Option<i64>,
}

impl CpuKernel for Compress {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (x, condition) = (io.tensor(0)?, io.tensor(1)?.as_slice::<bool>()?);
        let flat;
        let (x, axis) = match self.axis {
            Some(axis) => (x, normalise_axis(axis, x.rank())?),
            None => {
                flat = x.reshape([x.len()])?;
                (&flat, 0)
            }
        };
        let extent = x.shape()[axis];
        let run: usize = x.shape()[axis + 1..].iter().product();
        if let Some(beyond) = condition.iter().skip(extent).position(|c| *c) {
            bail!(Shape, "the condition holds at {}, the axis has {extent}", extent + beyond);
        }
        let offsets: Vec<usize> =
            condition.iter().enumerate().filter(|(_, c)| **c).map(|(k, _)| k * run).collect();
        let mut shape = x.shape().to_vec();
        shape[axis] = offsets.len();
        let outer = shape[..axis].iter().product();
        let picked = Picked { offsets: &offsets, run, outer, step: extent * run };
        let out = produce(io, &[x], shape, &picked)?;
        io.emit(out);
        Ok(())
    }
}

/// Ones on a diagonal of a matrix of the input's shape.
pub(super) static EYE_LIKE: OpDef = OpDef {
    name: "EyeLike",
    domain: "",
    since: 9,
    attributes: &[
        AttributeDef::optional("dtype", AttributeKind::Int),
        AttributeDef::optional("k", AttributeKind::Int),
    ],
    inputs: &[Port::required("input", super::def::types::ALL)],
    outputs: &[Port::required("output", super::def::types::ALL)],
    infer: |i| {
        let dtype = eye_dtype(i.node)?.or(i.dtype(0));
        i.set(0, dtype, i.shape(0));
        Ok(())
    },
    batch: batch::mixes,
    cost: cost::copy,
    prepare: |p| Ok(Box::new(Eye { dtype: eye_dtype(p.node)?, k: p.node.int_or("k", 0)? })),
    cases: || {
        vec![
            Case::new("EyeLike", 9, "as it is")
                .input(filled(&[2, 3], &[7_i32; 6]))
                .output(filled(&[2, 3], &[1_i32, 0, 0, 0, 1, 0])),
            Case::new("EyeLike", 9, "another diagonal and dtype")
                .attr("k", -1)
                .attr("dtype", 1)
                .input(filled(&[3, 2], &[0_i64; 6]))
                .output(filled(&[3, 2], &[0.0_f32, 0.0, 1.0, 0.0, 0.0, 1.0])),
        ]
    },
};

fn eye_dtype(node: &Node) -> Result<Option<DType>> {
    let Some(number) = node.int("dtype")? else { return Ok(None) };
    match i32::try_from(number).ok().and_then(DType::from_onnx) {
        Some(d) if DType::WORKING.contains(&d) => Ok(Some(d)),
        _ => bail!(Graph, "attribute `dtype` is {number}, which is no number's dtype"),
    }
}

#[derive(Debug)]
struct Eye {
    dtype: Option<DType>,
    k: i64,
}

impl CpuKernel for Eye {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let &[rows, columns] = &x.shape()[..] else {
            bail!(Shape, "the input is {}, expected a matrix", x.describe());
        };
        let mut ones = Tensor::zeros(DType::U8, [rows, columns])?;
        let to = ones.as_mut_slice::<u8>()?;
        for row in 0..rows {
            let at = i64::try_from(row).unwrap_or(i64::MAX).saturating_add(self.k);
            if let Some(at) = usize::try_from(at).ok().filter(|c| *c < columns) {
                to[row * columns + at] = 1;
            }
        }
        io.emit(cast(&ones, self.dtype.unwrap_or(x.dtype()))?);
        Ok(())
    }
}

/// The middle of the input in another shape: cut off or filled up with zeros on both sides.
pub(super) static CENTER_CROP_PAD: OpDef = OpDef {
    name: "CenterCropPad",
    domain: "",
    since: 18,
    attributes: &[AttributeDef::optional("axes", AttributeKind::Ints)],
    inputs: &[Port::required("input_data", ANY), Port::required("shape", INDICES)],
    outputs: &[Port::required("output_data", ANY)],
    infer: infer_crop,
    batch: batch::mixes,
    cost: cost::copy,
    prepare: |p| Ok(Box::new(CropPad { axes: p.node.ints("axes")?.map(<[i64]>::to_vec) })),
    cases: || {
        vec![
            Case::new("CenterCropPad", 18, "one of each")
                .input(iota(&[3, 2]))
                .constant(filled(&[2], &[1_i64, 5]))
                .output(filled(&[1, 5], &[0_i64, 2, 3, 0, 0])),
            Case::new("CenterCropPad", 18, "along given axes")
                .attr("axes", vec![-1_i64])
                .input(iota(&[2, 4]))
                .input(filled(&[1], &[3_i64]))
                .output(filled(&[2, 3], &[0_i64, 1, 2, 4, 5, 6])),
        ]
    },
};

fn infer_crop(i: &mut Infer<'_>) -> Result<()> {
    let axes = i.node.ints("axes")?.map(<[i64]>::to_vec);
    let shape = match (i.shape(0), i.elements(1)) {
        (Some(mut shape), Some(target)) => {
            let axes = axes.unwrap_or_else(|| (0..shape.len() as i64).collect());
            if axes.len() != target.len() {
                bail!(Shape, "a shape with {} extents for axes {axes:?}", target.len());
            }
            for (axis, n) in axes.iter().zip(target) {
                let axis = normalise_axis(*axis, shape.len())?;
                shape[axis] = n;
            }
            Some(shape)
        }
        (Some(shape), None) => Some(i.fresh_shape(shape.len())),
        _ => None,
    };
    i.set(0, i.dtype(0), shape);
    Ok(())
}

#[derive(Debug)]
struct CropPad {
    axes: Option<Vec<i64>>,
}

/// A box of a source put into a box of the output, which is otherwise the default.
struct Inset {
    from: Vec<usize>,
    to: Vec<usize>,
    size: Vec<usize>,
    source: Vec<usize>,
    target: Vec<usize>,
}

impl super::movement::Mover for Inset {
    fn fill<T: super::movement::Item>(
        &self,
        sources: &[&[T]],
        out: &mut [T],
        _: &super::Threads,
    ) -> Result<()> {
        out.fill(T::default());
        let (Some((&run, outer)), [source, ..]) = (self.size.split_last(), sources) else {
            if let ([o], [s, ..]) = (out, sources) {
                o.clone_from(&s[0]);
            }
            return Ok(());
        };
        if run == 0 {
            return Ok(());
        }
        let (own, all) = (strides(&self.source), strides(&self.target));
        for row in 0..outer.iter().product::<usize>() {
            let (mut rest, last) = (row, outer.len());
            let (mut from, mut to) = (self.from[last], self.to[last]);
            for k in (0..last).rev() {
                let at = rest % outer[k];
                rest /= outer[k];
                from += (self.from[k] + at) * own[k];
                to += (self.to[k] + at) * all[k];
            }
            out[to..to + run].clone_from_slice(&source[from..from + run]);
        }
        Ok(())
    }
}

impl CpuKernel for CropPad {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let target = io.tensor(1)?.to_i64s()?;
        let axes = self.axes.clone().unwrap_or_else(|| (0..x.rank() as i64).collect());
        if axes.len() != target.len() {
            bail!(Shape, "a shape {target:?} for axes {axes:?}");
        }
        let source = x.shape().to_vec();
        let mut shape = source.clone();
        for (axis, n) in axes.iter().zip(&target) {
            let Ok(n) = usize::try_from(*n) else {
                bail!(Shape, "the shape is {target:?}; extents cannot be negative");
            };
            shape[normalise_axis(*axis, source.len())?] = n;
        }
        element_count(&shape, x.dtype().size())?;
        let pairs = || source.iter().zip(&shape);
        let inset = Inset {
            from: pairs().map(|(s, t)| s.saturating_sub(*t) / 2).collect(),
            to: pairs().map(|(s, t)| t.saturating_sub(*s) / 2).collect(),
            size: pairs().map(|(s, t)| *s.min(t)).collect(),
            source: source.clone(),
            target: shape.clone(),
        };
        let out = produce(io, &[x], shape, &inset)?;
        io.emit(out);
        Ok(())
    }
}

/// The determinants of square matrices.
pub(super) static DET: OpDef = OpDef {
    name: "Det",
    domain: "",
    since: 11,
    attributes: &[],
    inputs: &[Port::required("X", FLOATS)],
    outputs: &[Port::required("Y", FLOATS)],
    infer: |i| {
        let shape = match i.shape(0) {
            Some(s) if s.len() < 2 => bail!(Shape, "the input has {} axes, 2 are needed", s.len()),
            Some(s) => Some(s[..s.len() - 2].to_vec()),
            None => None,
        };
        i.set(0, i.dtype(0), shape);
        Ok(())
    },
    batch: |q| match (q.axes.first().copied().flatten(), q.rank(0)) {
        (None, _) => q.everywhere(None),
        (Some(axis), Some(rank)) if axis + 2 < rank => q.everywhere(Some(axis)),
        _ => Err("the batch is on an axis of its matrices".to_owned()),
    },
    cost: cost::reduction,
    prepare: |_| Ok(Box::new(Det)),
    cases: || {
        vec![
            Case::new("Det", 11, "one")
                .input(filled(&[2, 2], &[0.0_f32, 1.0, 2.0, 3.0]))
                .output(filled(&[], &[-2.0_f32])),
            Case::new("Det", 11, "several, one of them singular")
                .input(filled(&[2, 1, 2, 2], &[1.0_f64, 2.0, 3.0, 4.0, 1.0, 2.0, 2.0, 4.0]))
                .output(filled(&[2, 1], &[-2.0_f64, 0.0]))
                .close(1e-12, 0.0),
        ]
    },
};

#[derive(Debug)]
struct Det;

impl CpuKernel for Det {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let &[ref lead @ .., n, same] = &x.shape()[..] else {
            bail!(Shape, "the input is {}, expected matrices", x.describe());
        };
        if n != same {
            bail!(Shape, "the matrices of {} are not square", x.describe());
        }
        let lead = lead.to_vec();
        let count: usize = lead.iter().product();
        let mut wide = cast(x, DType::F64)?;
        let all = wide.as_mut_slice::<f64>()?;
        let determinants: Vec<f64> =
            (0..count).map(|k| determinant(&mut all[k * n * n..(k + 1) * n * n], n)).collect();
        io.emit(cast(&Tensor::new(lead, determinants)?, x.dtype())?);
        Ok(())
    }
}

/// By elimination with pivots.
fn determinant(m: &mut [f64], n: usize) -> f64 {
    let mut det = 1.0;
    for k in 0..n {
        let largest = |a: &usize, b: &usize| m[a * n + k].abs().total_cmp(&m[b * n + k].abs());
        let Some(pivot) = (k..n).max_by(largest) else { return det };
        if m[pivot * n + k] == 0.0 {
            return 0.0;
        }
        if pivot != k {
            for j in 0..n {
                m.swap(pivot * n + j, k * n + j);
            }
            det = -det;
        }
        det *= m[k * n + k];
        for row in k + 1..n {
            let factor = m[row * n + k] / m[k * n + k];
            for j in k..n {
                m[row * n + j] -= factor * m[k * n + j];
            }
        }
    }
    det
}
