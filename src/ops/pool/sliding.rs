//! `MaxPool`, `AveragePool` and `LpPool`.

use super::batch;
use super::plain::{Ordered, Planes};
use crate::error::{Result, bail};
use crate::graph::{Attribute, Dim};
use crate::kernels::{AveragePool, Window, average_pool2d, max_pool2d};
use crate::ops::case::{Case, as_dtype, counted, filled};
use crate::ops::cost::{Cost, CostQuery};
use crate::ops::def::types::{FLOATS, I64S, NUMBERS};
use crate::ops::window::{
    AUTO_PAD, Axis, CEIL_MODE, DILATIONS, KERNEL_SHAPE, PADS, STRIDES, WindowAttributes,
    padded_axes,
};
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, Prepare};
use crate::tensor::{DType, Shape, Tensor, cast, element_count, for_number};

/// The largest element under each window, and perhaps where it is.
pub(in crate::ops) static MAX_POOL: OpDef = OpDef {
    name: "MaxPool",
    domain: "",
    since: 1,
    attributes: &[
        KERNEL_SHAPE,
        STRIDES,
        DILATIONS,
        PADS,
        AUTO_PAD,
        CEIL_MODE,
        AttributeDef::optional("storage_order", AttributeKind::Int),
    ],
    inputs: &[Port::required("X", NUMBERS)],
    outputs: &[Port::required("Y", NUMBERS), Port::optional("Indices", I64S)],
    infer,
    batch: |q| {
        // Indices count from the start of the whole batch.
        if q.node.outputs.get(1).copied().flatten().is_some() && !q.is_free() {
            return Err("the indices of the maxima count over the whole batch".to_owned());
        }
        batch(q)
    },
    cost,
    prepare: |p| Ok(Box::new(Pool::new(p, Kind::Max)?)),
    cases: max_cases,
};

/// The mean under each window.
pub(in crate::ops) static AVERAGE_POOL: OpDef = OpDef {
    name: "AveragePool",
    domain: "",
    since: 1,
    attributes: &[
        KERNEL_SHAPE,
        STRIDES,
        DILATIONS,
        PADS,
        AUTO_PAD,
        CEIL_MODE,
        AttributeDef::optional("count_include_pad", AttributeKind::Int),
    ],
    inputs: &[Port::required("X", FLOATS)],
    outputs: &[Port::required("Y", FLOATS)],
    infer,
    batch,
    cost,
    prepare: |p| {
        let padding = p.node.int_or("count_include_pad", 0)? != 0;
        Ok(Box::new(Pool::new(p, Kind::Average { padding })?))
    },
    cases: average_cases,
};

/// The p-norm under each window.
pub(in crate::ops) static LP_POOL: OpDef = OpDef {
    name: "LpPool",
    domain: "",
    since: 1,
    attributes: &[
        KERNEL_SHAPE,
        STRIDES,
        DILATIONS,
        PADS,
        AUTO_PAD,
        CEIL_MODE,
        AttributeDef::optional("p", AttributeKind::Int),
        AttributeDef::optional("p", AttributeKind::Float).until(1),
    ],
    inputs: &[Port::required("X", FLOATS)],
    outputs: &[Port::required("Y", FLOATS)],
    infer,
    batch,
    cost,
    prepare: |p| Ok(Box::new(Pool::new(p, Kind::Norm(norm(p)?))?)),
    cases: norm_cases,
};

/// The attribute `p`, at least 1.
pub(super) fn norm(p: &Prepare<'_>) -> Result<i32> {
    let value = match p.node.attributes.get("p") {
        Some(Attribute::Float(p)) if p.fract() == 0.0 => *p as i64,
        Some(Attribute::Float(p)) => bail!(Unsupported, "attribute `p` is {p}, no whole number"),
        _ => p.node.int_or("p", 2)?,
    };
    match i32::try_from(value) {
        Ok(n) if n > 0 => Ok(n),
        _ => bail!(Graph, "attribute `p` is {value}, expected at least 1"),
    }
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let window = WindowAttributes::read(i.node)?;
    let dtype = i.dtype(0);
    let kernel: Vec<Option<usize>> = window.kernel_of(None)?.iter().copied().map(Some).collect();
    let shape = match i.shape(0) {
        Some(x) if x.len() < 3 => {
            bail!(
                Shape,
                "input `X` has {} axes, expected batch, channels and spatial axes",
                x.len()
            )
        }
        Some(x) => {
            let mut shape: Vec<Dim> = x[..2].to_vec();
            shape.extend(window.dims(i, &x[2..], &kernel)?);
            Some(shape)
        }
        None => None,
    };
    i.set(0, dtype, shape.clone());
    i.set(1, Some(DType::I64), shape);
    Ok(())
}

/// One operation for each tap of each output.
pub(in crate::ops) fn cost(q: &CostQuery<'_>) -> Cost {
    let taps: i64 = match q.node.ints("kernel_shape") {
        Ok(Some(k)) => k.iter().product(),
        _ => 1,
    };
    let outputs = q.outputs.first().and_then(Option::as_ref).map_or(0, |(_, s)| s.elements());
    Cost { flops: outputs as f64 * taps as f64, bytes: q.bytes() }
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    Max,
    Average { padding: bool },
    Norm(i32),
}

#[derive(Debug)]
struct Pool {
    window: WindowAttributes,
    kind: Kind,
    reversed: bool,
    indices: bool,
}

impl Pool {
    fn new(p: &Prepare<'_>, kind: Kind) -> Result<Self> {
        Ok(Self {
            window: WindowAttributes::read(p.node)?,
            kind,
            reversed: p.node.int_or("storage_order", 0)? != 0,
            indices: p.node.outputs.get(1).copied().flatten().is_some(),
        })
    }

    fn run_f32(&self, io: &Io<'_>, x: &Tensor, planes: usize, axes: &[Axis]) -> Result<Tensor> {
        let mut out = io.allocate(DType::F32, shape_of(x, axes))?;
        let (x, y) = (x.as_slice::<f32>()?, out.as_mut_slice::<f32>()?);
        let all = Planes::new(axes)?;
        match self.kind {
            Kind::Norm(p) => {
                // A power and a root in f64 lose nothing.
                all.fold(x, y, 0.0, io.threads(), |a, x| a + x.abs().powi(p));
                let root = 1.0 / f64::from(p);
                y.iter_mut().for_each(|y| *y = f64::from(*y).powf(root) as f32);
            }
            Kind::Max if axes.len() > 2 => all.fold(x, y, f32::LEAST, io.threads(), larger),
            Kind::Average { padding } if axes.len() > 2 => {
                all.fold(x, y, 0.0, io.threads(), |a, x| a + x);
                divide(&all, padding, y, |y, n| y / n as f32);
            }
            Kind::Max | Kind::Average { .. } => {
                let [h, v] = padded_axes::<2>(axes)?;
                let window = Window {
                    kernel: [h.kernel, v.kernel],
                    strides: [h.stride, v.stride],
                    dilations: [h.dilation, v.dilation],
                    pads: [h.pads[0], v.pads[0], h.pads[1], v.pads[1]],
                };
                let (size, out_size) = ([h.size, v.size], [h.out, v.out]);
                match self.kind {
                    Kind::Average { padding } => {
                        let count =
                            if padding { AveragePool::IncludePad } else { AveragePool::ExcludePad };
                        average_pool2d(x, planes, size, &window, count, out_size, y, io.threads())?;
                    }
                    _ => max_pool2d(x, planes, size, &window, out_size, y, io.threads())?,
                }
            }
        }
        Ok(out)
    }

    fn run_f64(&self, io: &Io<'_>, x: &Tensor, axes: &[Axis]) -> Result<Tensor> {
        let mut out = io.allocate(DType::F64, shape_of(x, axes))?;
        let (x, y) = (x.as_slice::<f64>()?, out.as_mut_slice::<f64>()?);
        let all = Planes::new(axes)?;
        match self.kind {
            Kind::Max => all.fold(x, y, f64::LEAST, io.threads(), larger),
            Kind::Average { padding } => {
                all.fold(x, y, 0.0, io.threads(), |a, x| a + x);
                divide(&all, padding, y, |y, n| y / n as f64);
            }
            Kind::Norm(p) => {
                all.fold(x, y, 0.0, io.threads(), |a, x| a + x.abs().powi(p));
                y.iter_mut().for_each(|y| *y = y.powf(1.0 / f64::from(p)));
            }
        }
        Ok(out)
    }
}

/// The larger of two; the first where they do not compare.
fn larger<T: PartialOrd>(a: T, b: T) -> T {
    if b > a { b } else { a }
}

/// Divides every sum by the number of elements under its window.
fn divide<T: Copy>(planes: &Planes, padding: bool, sums: &mut [T], by: impl Fn(T, usize) -> T) {
    let counts = planes.counts(padding);
    for plane in sums.chunks_mut(planes.output().max(1)) {
        for (y, n) in plane.iter_mut().zip(&counts) {
            *y = by(*y, *n);
        }
    }
}

fn shape_of(x: &Tensor, axes: &[Axis]) -> Shape {
    x.shape()[..2].iter().copied().chain(axes.iter().map(|a| a.out)).collect()
}

impl CpuKernel for Pool {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let &[n, c, ref size @ ..] = &x.shape()[..] else {
            bail!(
                Shape,
                "input `X` is {}, expected batch, channels and spatial axes",
                x.describe()
            );
        };
        let axes = self.window.resolve(size, self.window.kernel_of(None)?)?;
        let shape = shape_of(x, &axes);
        element_count(&shape, 8)?;
        let planes = n * c;
        let dtype = x.dtype();
        let narrow = matches!(dtype, DType::F16 | DType::BF16);
        let wide = if narrow { cast(x, DType::F32)? } else { x.clone() };
        let y = match dtype {
            DType::F32 | DType::F16 | DType::BF16 => {
                cast(&self.run_f32(io, &wide, planes, &axes)?, dtype)?
            }
            DType::F64 => self.run_f64(io, x, &axes)?,
            _ => {
                let mut out = io.allocate(dtype, shape.clone())?;
                let all = Planes::new(&axes)?;
                for_number!(dtype, T => {
                    let y = out.as_mut_slice::<T>()?;
                    all.fold(x.as_slice::<T>()?, y, T::LEAST, io.threads(), larger);
                }, _ => bail!(DType, "no pooling of {dtype} is implemented"));
                out
            }
        };
        let indices = if self.indices {
            let mut indices = io.allocate(DType::I64, shape)?;
            let all = Planes::new(&axes)?;
            let at = indices.as_mut_slice::<i64>()?;
            for_number!(wide.dtype(), T => all.arg_max(wide.as_slice::<T>()?, at, io.threads()),
                _ => bail!(DType, "no pooling of {dtype} is implemented"));
            all.globalise(at, self.reversed);
            Some(indices)
        } else if io.output_count() > 1 {
            Some(Tensor::zeros(DType::I64, [0])?)
        } else {
            None
        };
        io.emit(y);
        if let Some(indices) = indices {
            io.emit(indices);
        }
        Ok(())
    }
}

fn max_cases() -> Vec<Case> {
    let mut v = Vec::new();
    for dtype in [DType::F32, DType::F64, DType::F16, DType::U8, DType::I8, DType::I64] {
        let case = |name: &str, x: &[usize], kernel: &[i64]| {
            Case::new("MaxPool", 12, format!("{name}, {dtype}"))
                .attr("kernel_shape", kernel)
                .input(as_dtype(&counted(x), dtype))
        };
        let is = |shape: &[usize], y: &[f32]| as_dtype(&filled(shape, y), dtype);
        let square = [1, 1, 4, 4];
        v.push(
            case("strides", &square, &[2, 2])
                .attr("strides", vec![2_i64, 2])
                .output(is(&[1, 1, 2, 2], &[5.0, 7.0, 13.0, 15.0])),
        );
        v.push(
            case("ceil_mode", &square, &[3, 3])
                .attr("strides", vec![2_i64, 2])
                .attr("ceil_mode", 1)
                .output(is(&[1, 1, 2, 2], &[10.0, 11.0, 14.0, 15.0])),
        );
        v.push(
            case("dilations", &square, &[2, 2])
                .attr("dilations", vec![2_i64, 2])
                .output(is(&[1, 1, 2, 2], &[10.0, 11.0, 14.0, 15.0])),
        );
        v.push(case("SAME_LOWER", &square, &[3, 2]).attr("auto_pad", "SAME_LOWER").output(is(
            &square,
            &[
                4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 12.0, 13.0, 14.0,
                15.0,
            ],
        )));
        v.push(
            case("one axis", &[1, 2, 5], &[2])
                .attr("strides", vec![2_i64])
                .attr("pads", vec![1_i64, 0])
                .output(is(&[1, 2, 3], &[0.0, 2.0, 4.0, 5.0, 7.0, 9.0])),
        );
        v.push(
            case("three axes", &[1, 1, 2, 2, 2], &[2, 2, 1])
                .output(is(&[1, 1, 1, 1, 2], &[6.0, 7.0])),
        );
        v.push(
            case("Indices, column-major", &[1, 2, 3, 2], &[2, 1])
                .attr("storage_order", 1)
                .output(is(&[1, 2, 2, 2], &[2.0, 3.0, 4.0, 5.0, 8.0, 9.0, 10.0, 11.0]))
                .output(filled(&[1, 2, 2, 2], &[1_i64, 4, 2, 5, 7, 10, 8, 11])),
        );
        v.push(case("no items", &[0, 1, 2, 2], &[2, 2]).output(is(&[0, 1, 1, 1], &[])));
    }
    let x = [
        6.0_f32, 7.0, 8.0, 3.0, 4.0, 5.0, 0.0, 1.0, 2.0, 15.0, 16.0, 17.0, 12.0, 13.0, 14.0, 9.0,
        10.0, 11.0,
    ];
    v.push(
        Case::new("MaxPool", 12, "Indices with padding")
            .attr("kernel_shape", vec![2_i64, 2])
            .attr("strides", vec![2_i64, 2])
            .attr("pads", vec![0_i64, 0, 1, 1])
            .input(filled(&[1, 2, 3, 3], &x))
            .output(filled(&[1, 2, 2, 2], &[7.0_f32, 8.0, 1.0, 2.0, 16.0, 17.0, 10.0, 11.0]))
            .output(filled(&[1, 2, 2, 2], &[1_i64, 2, 7, 8, 10, 11, 16, 17])),
    );
    v.push(
        Case::new("MaxPool", 12, "negative elements beside padding")
            .attr("kernel_shape", vec![2_i64])
            .attr("pads", vec![1_i64, 1])
            .input(filled(&[1, 1, 2], &[-3.0_f32, -5.0]))
            .output(filled(&[1, 1, 3], &[-3.0_f32, -3.0, -5.0])),
    );
    v
}

fn average_cases() -> Vec<Case> {
    let mut v = Vec::new();
    for dtype in [DType::F32, DType::F64, DType::F16] {
        let case = |name: &str, x: &[usize], kernel: &[i64]| {
            let close = if dtype == DType::F16 { 1e-3 } else { 1e-6 };
            Case::new("AveragePool", 19, format!("{name}, {dtype}"))
                .attr("kernel_shape", kernel)
                .input(as_dtype(&counted(x), dtype))
                .close(0.0, close)
        };
        let is = |shape: &[usize], y: &[f32]| as_dtype(&filled(shape, y), dtype);
        let (square, half) = ([1, 1, 4, 4], [1, 1, 2, 2]);
        let twos = || vec![2_i64, 2];
        v.push(
            case("strides", &square, &[2, 2])
                .attr("strides", twos())
                .output(is(&half, &[2.5, 4.5, 10.5, 12.5])),
        );
        v.push(
            case("ceil_mode", &square, &[3, 3])
                .attr("strides", twos())
                .attr("ceil_mode", 1)
                .output(is(&half, &[5.0, 6.5, 11.0, 12.5])),
        );
        v.push(
            case("padding not counted", &square, &[3, 3])
                .attr("strides", twos())
                .attr("pads", vec![1_i64; 4])
                .output(is(&half, &[2.5, 4.0, 8.5, 10.0])),
        );
        v.push(
            case("padding counted", &square, &[3, 3])
                .attr("strides", twos())
                .attr("pads", vec![1_i64; 4])
                .attr("count_include_pad", 1)
                .output(is(&half, &[10.0 / 9.0, 8.0 / 3.0, 17.0 / 3.0, 10.0])),
        );
        v.push(
            case("padding counted but not what is beyond", &square, &[3, 3])
                .attr("strides", twos())
                .attr("pads", vec![1_i64, 0, 0, 0])
                .attr("count_include_pad", 1)
                .attr("ceil_mode", 1)
                .output(is(&half, &[2.0, 3.0, 9.0, 10.5])),
        );
        v.push(case("SAME_UPPER", &square, &[2, 2]).attr("auto_pad", "SAME_UPPER").output(is(
            &square,
            &[
                2.5, 3.5, 4.5, 5.0, 6.5, 7.5, 8.5, 9.0, 10.5, 11.5, 12.5, 13.0, 12.5, 13.5, 14.5,
                15.0,
            ],
        )));
        v.push(
            case("dilations", &square, &[2, 2])
                .attr("dilations", vec![2_i64, 1])
                .output(is(&[1, 1, 2, 3], &[4.5, 5.5, 6.5, 8.5, 9.5, 10.5])),
        );
        v.push(
            case("three axes", &[1, 1, 2, 3, 2], &[2, 2, 1])
                .output(is(&[1, 1, 1, 2, 2], &[4.0, 5.0, 6.0, 7.0])),
        );
        v.push(case("no channels", &[1, 0, 2, 2], &[2, 2]).output(is(&[1, 0, 1, 1], &[])));
    }
    v
}

fn norm_cases() -> Vec<Case> {
    let case = |name: &str, x: &[f32]| {
        Case::new("LpPool", 18, name)
            .attr("kernel_shape", vec![2_i64])
            .input(filled(&[1, 1, x.len()], x))
    };
    vec![
        case("p = 2", &[3.0, -4.0, 3.0])
            .output(filled(&[1, 1, 2], &[5.0_f32, 5.0]))
            .close(0.0, 1e-6),
        case("p = 1 with padding", &[3.0, -4.0])
            .attr("p", 1)
            .attr("pads", vec![1_i64, 0])
            .output(filled(&[1, 1, 2], &[3.0_f32, 7.0])),
        case("p = 3", &[1.0, 2.0])
            .attr("p", 3)
            .output(filled(&[1, 1, 1], &[2.080_083_8_f32]))
            .close(0.0, 1e-6),
    ]
}
