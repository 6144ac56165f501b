//! `Resize` and `Upsample`.

mod cases;
mod coordinates;
mod sample;

use coordinates::{Coordinates, Filter, Nearest, Stretch};
use sample::Weighted;

use super::batch::{BatchFlow, BatchQuery};
use super::cost::{Cost, CostQuery};
use super::def::types::{ALL, FLOATS, I64S};
use super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, Threads};
use crate::error::{Result, bail, err};
use crate::graph::{Dim, Node};
use crate::tensor::{DType, Tensor, cast, element_count, for_dtypes, normalise_axis};

/// Samples a tensor at another resolution: nearest, linear or cubic.
pub(super) static RESIZE: OpDef = OpDef {
    name: "Resize",
    domain: "",
    since: 10,
    attributes: &[
        AttributeDef::optional("mode", AttributeKind::String),
        AttributeDef::optional("coordinate_transformation_mode", AttributeKind::String),
        AttributeDef::optional("nearest_mode", AttributeKind::String),
        AttributeDef::optional("cubic_coeff_a", AttributeKind::Float),
        AttributeDef::optional("exclude_outside", AttributeKind::Int),
        AttributeDef::optional("extrapolation_value", AttributeKind::Float),
        AttributeDef::optional("antialias", AttributeKind::Int),
        AttributeDef::optional("axes", AttributeKind::Ints),
        AttributeDef::optional("keep_aspect_ratio_policy", AttributeKind::String),
    ],
    // Version 10 has the scales in second place.
    inputs: &[
        Port::required("X", ALL),
        Port::optional("roi", FLOATS),
        Port::optional("scales", &[DType::F32]),
        Port::optional("sizes", I64S),
    ],
    outputs: &[Port::required("Y", ALL)],
    infer,
    batch,
    cost,
    prepare: |p| Ok(Box::new(Resize::new(p.node)?)),
    cases: cases::resize,
};

/// The form of `Resize` before version 10.
pub(super) static UPSAMPLE: OpDef = OpDef {
    name: "Upsample",
    domain: "",
    since: 1,
    attributes: &[
        AttributeDef::optional("mode", AttributeKind::String),
        AttributeDef::optional("scales", AttributeKind::Floats),
        AttributeDef::optional("height_scale", AttributeKind::Float).until(6),
        AttributeDef::optional("width_scale", AttributeKind::Float).until(6),
    ],
    inputs: &[Port::required("X", ALL), Port::optional("scales", &[DType::F32])],
    outputs: &[Port::required("Y", ALL)],
    infer,
    batch,
    cost,
    prepare: |p| Ok(Box::new(Resize::new(p.node)?)),
    cases: cases::upsample,
};

/// Where the inputs are; each is the number of an input.
struct Ports {
    roi: Option<usize>,
    scales: usize,
    sizes: Option<usize>,
}

fn ports(node: &Node) -> Ports {
    if node.op == "Upsample" || node.version < 11 {
        Ports { roi: None, scales: 1, sizes: None }
    } else {
        Ports { roi: Some(1), scales: 2, sizes: Some(3) }
    }
}

/// The scales as attributes: of every axis, or before version 7 of height and width.
fn scales_attribute(node: &Node) -> Result<Option<Vec<f32>>> {
    if node.op == "Upsample" && node.version < 7 {
        let scale = |name: &str| {
            node.float(name)?.ok_or_else(|| err!(Missing, "attribute `{name}` is missing"))
        };
        return Ok(Some(vec![1.0, 1.0, scale("height_scale")?, scale("width_scale")?]));
    }
    Ok(node.floats("scales")?.map(<[f32]>::to_vec))
}

/// How sizes are understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Policy {
    Stretch,
    NotLarger,
    NotSmaller,
}

impl Policy {
    fn read(node: &Node) -> Result<Self> {
        Ok(match node.string("keep_aspect_ratio_policy")?.unwrap_or("stretch") {
            "stretch" => Self::Stretch,
            "not_larger" => Self::NotLarger,
            "not_smaller" => Self::NotSmaller,
            other => bail!(Graph, "attribute `keep_aspect_ratio_policy` is `{other}`, not known"),
        })
    }
}

/// The axes that roi, scales and sizes are about.
fn axes_of(node: &Node, rank: usize) -> Result<Vec<usize>> {
    let Some(axes) = node.ints("axes")? else { return Ok((0..rank).collect()) };
    let axes: Vec<usize> = axes.iter().map(|a| normalise_axis(*a, rank)).collect::<Result<_>>()?;
    for (i, a) in axes.iter().enumerate() {
        if axes[..i].contains(a) {
            bail!(Graph, "attribute `axes` has axis {a} twice");
        }
    }
    Ok(axes)
}

/// The extent after scaling, as single precision has it.
fn scaled(size: usize, scale: f32) -> Result<usize> {
    let out = (size as f32 * scale).floor();
    if !(scale > 0.0 && out < (1_u64 << 40) as f32) {
        bail!(Shape, "an extent of {size} cannot be scaled by {scale}");
    }
    Ok(out as usize)
}

/// The axes that change, from the scales or the sizes.
fn stretches(
    size: &[usize],
    axes: &[usize],
    scales: Option<&[f32]>,
    sizes: Option<&[i64]>,
    roi: Option<&[f32]>,
    policy: Policy,
) -> Result<Vec<Stretch>> {
    let count = |name: &str, have: usize, need: usize| {
        if have == need {
            Ok(())
        } else {
            Err(err!(Shape, "input `{name}` has {have} values, expected {need}"))
        }
    };
    let mut out = Vec::with_capacity(axes.len());
    let wanted: Option<Vec<usize>> = match sizes {
        Some(s) => {
            count("sizes", s.len(), axes.len())?;
            let limit = 1_i64 << 40;
            let to_size = |v: &i64| match usize::try_from(*v) {
                Ok(u) if *v < limit => Ok(u),
                _ => Err(err!(Shape, "input `sizes` is {s:?}, which are no extents")),
            };
            Some(s.iter().map(to_size).collect::<Result<_>>()?)
        }
        None => None,
    };
    // One scale for all axes, where the aspect ratio is kept.
    let common = match (&wanted, policy) {
        (None, _) | (_, Policy::Stretch) => None,
        (Some(w), policy) => {
            let ratios = w.iter().zip(axes).map(|(w, a)| *w as f64 / size[*a].max(1) as f64);
            Some(if policy == Policy::NotLarger {
                ratios.fold(f64::INFINITY, f64::min)
            } else {
                ratios.fold(0.0, f64::max)
            })
        }
    };
    if let Some(roi) = roi {
        count("roi", roi.len(), 2 * axes.len())?;
    }
    for (i, &axis) in axes.iter().enumerate() {
        let size = size[axis];
        let (to, scale, length) = match (&wanted, scales, common) {
            (Some(_), _, Some(scale)) => {
                let length = scale * size as f64;
                ((length + 0.5).floor() as usize, scale as f32, length as f32)
            }
            (Some(w), _, None) => (w[i], w[i] as f32 / size.max(1) as f32, w[i] as f32),
            (None, Some(s), _) => {
                count("scales", s.len(), axes.len())?;
                (scaled(size, s[i])?, s[i], s[i] * size as f32)
            }
            (None, None, _) => bail!(Missing, "neither `scales` nor `sizes` is given"),
        };
        if size == 0 && to != 0 {
            bail!(Shape, "axis {axis} has no elements, it cannot become {to} long");
        }
        let roi = roi.map_or([0.0, 1.0], |r| [r[i], r[i + axes.len()]]);
        if to != size || scale != 1.0 || roi != [0.0, 1.0] {
            out.push(Stretch { axis, size, out: to, scale, length, roi });
        }
    }
    Ok(out)
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let dtype = i.dtype(0);
    let Some(x) = i.shape(0) else {
        i.set(0, dtype, None);
        return Ok(());
    };
    let ports = ports(i.node);
    let axes = axes_of(i.node, x.len())?;
    let policy = Policy::read(i.node)?;
    let scales = match scales_attribute(i.node)? {
        Some(s) => Some(s),
        None => match i.constant(ports.scales) {
            Some(t) if t.dtype() == DType::F32 => Some(t.as_slice::<f32>()?.to_vec()),
            _ => None,
        },
    };
    let scales = scales.filter(|s| !s.is_empty());
    let sizes = ports.sizes.and_then(|p| i.elements(p)).filter(|s| !s.is_empty());
    let fixed: Option<Vec<usize>> = x.iter().map(Dim::as_extent).collect();
    let fixed_sizes: Option<Vec<i64>> =
        sizes.as_ref().and_then(|s| s.iter().map(Dim::as_fixed).collect());
    let mut shape = x.clone();
    if let (Some(size), true) = (&fixed, scales.is_some() || fixed_sizes.is_some()) {
        let (scales, sizes) = (scales.as_deref(), fixed_sizes.as_deref());
        for s in stretches(size, &axes, scales, sizes, None, policy)? {
            shape[s.axis] = Dim::of(s.out);
        }
    } else if let (Some(sizes), Policy::Stretch) = (&sizes, policy) {
        if sizes.len() != axes.len() {
            bail!(Shape, "input `sizes` has {} values, expected {}", sizes.len(), axes.len());
        }
        for (axis, size) in axes.iter().zip(sizes) {
            shape[*axis] = size.clone();
        }
    } else if let Some(scales) = &scales {
        if scales.len() != axes.len() {
            bail!(Shape, "input `scales` has {} values, expected {}", scales.len(), axes.len());
        }
        for (axis, scale) in axes.iter().zip(scales) {
            shape[*axis] = match (x[*axis].as_extent(), *scale) {
                (Some(size), scale) => Dim::of(scaled(size, scale)?),
                (None, s) if s.fract() == 0.0 && (1.0..65_536.0).contains(&s) => {
                    x[*axis].clone() * Dim::fixed(s as i64)
                }
                // Halves, quarters, …, which are exact.
                (None, s) if s > 1e-4 && (1.0 / s).log2().fract() == 0.0 => {
                    x[*axis].clone() / Dim::fixed((1.0 / s) as i64)
                }
                (None, _) => i.fresh(),
            };
        }
    } else {
        for axis in axes {
            shape[axis] = i.fresh();
        }
    }
    i.set(0, dtype, Some(shape));
    Ok(())
}

fn batch(q: &BatchQuery<'_>) -> BatchFlow {
    if q.axes.iter().skip(1).any(Option::is_some) {
        return Err("an input other than the first carries the batch".to_owned());
    }
    let Some(axis) = q.axes.first().copied().flatten() else { return q.everywhere(None) };
    if q.node
        .string("coordinate_transformation_mode")
        .is_ok_and(|m| m == Some("tf_crop_and_resize"))
    {
        return Err("it may crop the batch axis".to_owned());
    }
    if axes_of(q.node, q.rank(0).unwrap_or(0)).is_ok_and(|axes| !axes.contains(&axis)) {
        return q.everywhere(Some(axis));
    }
    let extent = |shapes: &[Option<Vec<Dim>>]| -> Option<Dim> {
        shapes.first()?.as_ref()?.get(axis).cloned()
    };
    match (extent(q.shapes), extent(q.output_shapes)) {
        (Some(a), Some(b)) if a == b => q.everywhere(Some(axis)),
        _ => Err(format!("it may resize axis {axis}, which carries the batch")),
    }
}

/// As many operations as taps for each output element.
fn cost(q: &CostQuery<'_>) -> Cost {
    let taps = match q.node.string("mode") {
        Ok(Some("linear")) => 8.0,
        Ok(Some("cubic")) => 32.0,
        _ => 0.0,
    };
    Cost { flops: taps * q.output_elements(), bytes: q.bytes() }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Mode {
    Nearest(Nearest),
    Filter(Filter),
}

#[derive(Debug)]
struct Resize {
    mode: Mode,
    coordinates: Coordinates,
    policy: Policy,
    axes: Option<Vec<i64>>,
    scales: Option<Vec<f32>>,
    exclude_outside: bool,
    antialias: bool,
    extrapolation: f32,
    roi_port: Option<usize>,
    scales_port: usize,
    sizes_port: Option<usize>,
}

impl Resize {
    fn new(node: &Node) -> Result<Self> {
        let old = node.op == "Upsample" || node.version < 11;
        let nearest = if old { Nearest::Outwards } else { Nearest::read(node)? };
        let mode = match node.string("mode")?.unwrap_or("nearest") {
            "nearest" => Mode::Nearest(nearest),
            "linear" | "bilinear" => Mode::Filter(Filter::Linear),
            "cubic" => Mode::Filter(Filter::Cubic(node.float_or("cubic_coeff_a", -0.75)?)),
            other => {
                bail!(Graph, "attribute `mode` is `{other}`, expected nearest, linear or cubic")
            }
        };
        let coordinates = if old { Coordinates::Asymmetric } else { Coordinates::read(node)? };
        let Ports { roi, scales, sizes } = ports(node);
        Ok(Self {
            mode,
            coordinates,
            policy: Policy::read(node)?,
            axes: node.ints("axes")?.map(<[i64]>::to_vec),
            scales: scales_attribute(node)?,
            exclude_outside: node.int_or("exclude_outside", 0)? != 0,
            antialias: node.int_or("antialias", 0)? != 0,
            extrapolation: node.float_or("extrapolation_value", 0.0)?,
            roi_port: roi.filter(|_| coordinates == Coordinates::CropAndResize),
            scales_port: scales,
            sizes_port: sizes,
        })
    }

    /// The axes that change, for this run.
    fn stretches(&self, io: &Io<'_>, x: &Tensor) -> Result<Vec<Stretch>> {
        self.changes(x.shape(), |port| io.optional(port))
    }

    /// The axes of an input of this shape that change, where `given` has the other inputs.
    fn changes<'a>(
        &self,
        shape: &[usize],
        given: impl Fn(usize) -> Result<Option<&'a Tensor>>,
    ) -> Result<Vec<Stretch>> {
        let axes: Vec<usize> = match &self.axes {
            Some(axes) => {
                axes.iter().map(|a| normalise_axis(*a, shape.len())).collect::<Result<_>>()?
            }
            None => (0..shape.len()).collect(),
        };
        let given = |port: Option<usize>| -> Result<Option<&Tensor>> {
            Ok(match port {
                Some(p) => given(p)?.filter(|t| !t.is_empty()),
                None => None,
            })
        };
        let roi = given(self.roi_port)?.map(Tensor::to_f32s).transpose()?;
        let scales = match &self.scales {
            Some(s) => Some(s.clone()),
            None => given(Some(self.scales_port))?.map(Tensor::to_f32s).transpose()?,
        };
        let sizes = given(self.sizes_port)?.map(Tensor::to_i64s).transpose()?;
        if scales.is_some() && sizes.is_some() {
            bail!(Shape, "both `scales` and `sizes` are given");
        }
        stretches(shape, &axes, scales.as_deref(), sizes.as_deref(), roi.as_deref(), self.policy)
    }

    fn nearest(&self, io: &Io<'_>, x: &Tensor, changes: &[Stretch], to: Nearest) -> Result<Tensor> {
        let (mut shape, mut lists) = (x.shape().to_vec(), vec![None; x.rank()]);
        for s in changes {
            shape[s.axis] = s.out;
            lists[s.axis] = Some(s.nearest(self.coordinates, to));
        }
        let dtype = x.dtype();
        let mut out = io.allocate(dtype, &shape[..])?;
        if out.is_empty() {
            return Ok(out);
        }
        let threads = io.threads();
        for_dtypes!(dtype, T, {
            let (x, size) = (x.as_slice::<T>()?, x.shape());
            sample::gather(x, size, &lists, out.as_mut_slice::<T>()?, &shape, threads);
        }, bail!(DType, "{dtype} cannot be resized"),
            F32 f32, F64 f64, F16 half::f16, BF16 half::bf16, Bool bool, I8 i8, I16 i16, I32 i32,
            I64 i64, U8 u8, U16 u16, U32 u32, U64 u64);
        Ok(out)
    }

    fn filtered<T: Weighted>(
        &self,
        io: &Io<'_>,
        x: &Tensor,
        changes: &[Stretch],
        filter: Filter,
        threads: &Threads,
    ) -> Result<Tensor> {
        let mut now = x.clone();
        // Shrinking first leaves less to do.
        let mut order: Vec<&Stretch> = changes.iter().collect();
        order.sort_by(|a, b| a.scale.total_cmp(&b.scale));
        for s in order {
            let taps = s.taps(self.coordinates, filter, self.antialias, self.exclude_outside);
            let mut shape = now.shape().to_vec();
            shape[s.axis] = s.out;
            let inner = shape[s.axis + 1..].iter().product();
            let mut next = io.allocate(T::DTYPE, shape)?;
            if !next.is_empty() {
                let to = next.as_mut_slice::<T>()?;
                sample::stretch(now.as_slice::<T>()?, s.size, inner, &taps, to, threads);
            }
            now = next;
        }
        Ok(now)
    }
}

/// An axis that is resized, as other devices do it: the neighbours of each output and their weights.
pub(crate) struct Resampling {
    pub(crate) axis: usize,
    /// The axis' extent afterwards.
    pub(crate) out: usize,
    /// Neighbours of each output.
    pub(crate) width: usize,
    pub(crate) indices: Vec<usize>,
    pub(crate) weights: Vec<f32>,
}

/// The axes of an input of this shape that a node resizes, one after the other; `given` has the
/// inputs that decide it.
///
/// # Errors
/// If attributes or extents do not go together, or elements come from outside of the input.
pub(crate) fn resamplings<'a>(
    node: &Node,
    shape: &[usize],
    given: impl Fn(usize) -> Result<Option<&'a Tensor>>,
) -> Result<Vec<Resampling>> {
    let resize = Resize::new(node)?;
    if resize.coordinates == Coordinates::CropAndResize {
        bail!(Unsupported, "elements from outside of the input");
    }
    let mut changes = resize.changes(shape, given)?;
    // Shrinking first leaves less to do.
    changes.sort_by(|a, b| a.scale.total_cmp(&b.scale));
    let resampling = |s: &Stretch| {
        let (width, indices, weights) = match resize.mode {
            Mode::Nearest(to) => {
                let indices = s.nearest(resize.coordinates, to);
                let weights = vec![1.0; indices.len()];
                (1, indices, weights)
            }
            Mode::Filter(filter) => {
                let taps =
                    s.taps(resize.coordinates, filter, resize.antialias, resize.exclude_outside);
                let weights = taps.weights.iter().map(|w| *w as f32).collect();
                (taps.width, taps.indices, weights)
            }
        };
        Resampling { axis: s.axis, out: s.out, width, indices, weights }
    };
    Ok(changes.iter().map(resampling).collect())
}

impl CpuKernel for Resize {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?.clone();
        let changes = self.stretches(io, &x)?;
        let mut shape = x.shape().to_vec();
        for s in &changes {
            shape[s.axis] = s.out;
        }
        element_count(&shape, 8)?;
        if changes.is_empty() {
            io.emit(x);
            return Ok(());
        }
        let mut out = match self.mode {
            Mode::Nearest(to) => self.nearest(io, &x, &changes, to)?,
            Mode::Filter(filter) => match x.dtype() {
                DType::F32 | DType::F16 | DType::BF16 => {
                    let wide = cast(&x, DType::F32)?;
                    self.filtered::<f32>(io, &wide, &changes, filter, io.threads())?
                }
                _ => {
                    let wide = cast(&x, DType::F64)?;
                    self.filtered::<f64>(io, &wide, &changes, filter, io.threads())?
                }
            },
        };
        if self.coordinates == Coordinates::CropAndResize {
            let mut outside = vec![None; x.rank()];
            for s in &changes {
                outside[s.axis] = Some(s.outside(self.coordinates));
            }
            let value = cast(&Tensor::scalar(self.extrapolation), out.dtype())?;
            let dtype = out.dtype();
            for_dtypes!(dtype, T, {
                let value = value.item::<T>()?;
                sample::fill_outside(out.as_mut_slice::<T>()?, &shape, &outside, value);
            }, bail!(DType, "{dtype} cannot be resized"),
                F32 f32, F64 f64, F16 half::f16, BF16 half::bf16, Bool bool, I8 i8, I16 i16,
                I32 i32, I64 i64, U8 u8, U16 u16, U32 u32, U64 u64);
        }
        if x.dtype().is_int() && out.dtype() == DType::F64 {
            // The cast saturates, but truncates.
            out.as_mut_slice::<f64>()?.iter_mut().for_each(|v| *v = v.round_ties_even());
        }
        io.emit(cast(&out, x.dtype())?);
        Ok(())
    }
}
