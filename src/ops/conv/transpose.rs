//! `ConvTranspose`.

use std::sync::{Arc, Mutex, PoisonError};

use super::{GROUP, TYPES, group};
use crate::error::{Result, bail};
use crate::graph::Dim;
use crate::kernels::{ConvEpilogue, PackedConvTranspose, Window, conv_transpose2d};
use crate::ops::case::{Case, as_dtype, counted, filled};
use crate::ops::cost::{Cost, CostQuery};
use crate::ops::matmul::plain::Ring;
use crate::ops::window::{
    AUTO_PAD, AutoPad, Axis, DILATIONS, KERNEL_SHAPE, PADS, STRIDES, WindowAttributes, padded_axes,
    sizes,
};
use crate::ops::{
    AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, Prepare, Threads, batch,
};
use crate::tensor::{DType, Few, Shape, Tensor, cast, element_count};

/// The transposed convolution over 1, 2 or 3 spatial axes.
pub(in crate::ops) static CONV_TRANSPOSE: OpDef = OpDef {
    name: "ConvTranspose",
    domain: "",
    since: 1,
    attributes: &[
        KERNEL_SHAPE,
        STRIDES,
        DILATIONS,
        PADS,
        AUTO_PAD,
        GROUP,
        AttributeDef::optional("output_padding", AttributeKind::Ints),
        AttributeDef::optional("output_shape", AttributeKind::Ints),
    ],
    inputs: &[Port::required("X", TYPES), Port::required("W", TYPES), Port::optional("B", TYPES)],
    outputs: &[Port::required("Y", TYPES)],
    infer,
    batch: batch::leading,
    cost,
    prepare: |p| Ok(Box::new(ConvTranspose::new(p)?)),
    cases,
};

/// Two operations for each input element and each weight that it meets.
fn cost(q: &CostQuery<'_>) -> Cost {
    let taps = match q.inputs.get(1) {
        Some(Some((_, w))) if w.rank() > 1 => w[1..].iter().product(),
        _ => 1,
    };
    Cost { flops: 2.0 * q.input_elements(0) * taps as f64, bytes: q.bytes() }
}

#[derive(Clone, Debug)]
struct Attributes {
    window: WindowAttributes,
    groups: usize,
    output_padding: Option<Vec<usize>>,
    output_shape: Option<Vec<usize>>,
}

impl Attributes {
    fn read(node: &crate::graph::Node) -> Result<Self> {
        Ok(Self {
            window: WindowAttributes::read(node)?,
            groups: group(node)?,
            output_padding: sizes(node, "output_padding", 0)?,
            output_shape: sizes(node, "output_shape", 0)?.filter(|s| !s.is_empty()),
        })
    }

    /// Output padding along each of `rank` axes.
    fn extra(&self, rank: usize) -> Result<Vec<usize>> {
        match &self.output_padding {
            None => Ok(vec![0; rank]),
            Some(p) if p.len() == rank => Ok(p.clone()),
            Some(p) => bail!(Graph, "attribute `output_padding` is {p:?}, expected {rank} values"),
        }
    }

    /// The given spatial extents of the output; some exporters put batch and channels in front.
    fn given_shape(&self, rank: usize) -> Result<Option<&[usize]>> {
        match &self.output_shape {
            None => Ok(None),
            Some(s) if s.len() == rank => Ok(Some(s)),
            Some(s) if s.len() == rank + 2 => Ok(Some(&s[2..])),
            Some(s) => bail!(Graph, "attribute `output_shape` is {s:?}, expected {rank} values"),
        }
    }

    /// The axes; `pads` says where the output begins in the full one.
    fn resolve(&self, size: &[usize], kernel: &[usize]) -> Result<Few<Axis>> {
        let rank = size.len();
        let (extra, given) = (self.extra(rank)?, self.given_shape(rank)?);
        let mut axes = Few::new();
        for (i, (stride, dilation, pads)) in
            self.window.transposed(rank)?.iter().copied().enumerate()
        {
            let (size, kernel) = (size[i], kernel[i]);
            let full = size
                .saturating_sub(1)
                .checked_mul(stride)
                .zip(kernel.saturating_sub(1).checked_mul(dilation))
                .and_then(|(a, b)| a.checked_add(b)?.checked_add(extra[i] + 1));
            let Some(full) = full.filter(|_| size > 0) else {
                bail!(Shape, "axis {i} of the input has {size} elements: there is no output");
            };
            let same = self.window.is_same();
            let (out, pads) = match given.map(|g| g[i]).or(same.then_some(size * stride)) {
                Some(out) => {
                    let total = full.saturating_sub(out);
                    let [a, b] = AutoPad::SameUpper.split(total);
                    let upper = self.window.auto_pad == AutoPad::SameUpper;
                    (out, if upper { [a, b] } else { [b, a] })
                }
                None => {
                    let Some(out) = full.checked_sub(pads[0] + pads[1]) else {
                        bail!(
                            Shape,
                            "padding {pads:?} is more than the {full} elements of axis {i}"
                        );
                    };
                    (out, pads)
                }
            };
            axes.push(Axis { size, kernel, stride, dilation, pads, out });
        }
        Ok(axes)
    }
}

/// The axes of a transposed convolution of a node over an input of these spatial extents.
///
/// # Errors
/// If attributes and extents do not go together.
pub(crate) fn transposed_axes(
    node: &crate::graph::Node,
    size: &[usize],
    kernel: &[usize],
) -> Result<Few<Axis>> {
    Attributes::read(node)?.resolve(size, kernel)
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let attributes = Attributes::read(i.node)?;
    let dtype = i.dtype(0).or(i.dtype(1));
    let Some(x) = i.shape(0) else {
        i.set(0, dtype, None);
        return Ok(());
    };
    if x.len() < 3 {
        bail!(Shape, "input `X` has {} axes, expected batch, channels and spatial axes", x.len());
    }
    let rank = x.len() - 2;
    let w = i.shape(1);
    if let Some(w) = &w
        && w.len() != x.len()
    {
        bail!(Shape, "input `X` has {} axes, the weights {}", x.len(), w.len());
    }
    let (extra, given) = (attributes.extra(rank)?, attributes.given_shape(rank)?);
    let mut shape = vec![x[0].clone()];
    shape.push(match &w {
        Some(w) => w[1].clone() * Dim::of(attributes.groups),
        None => i.fresh(),
    });
    let steps = attributes.window.transposed(rank)?;
    for (a, (stride, dilation, pads)) in steps.iter().copied().enumerate() {
        let kernel = match (&attributes.window.kernel, &w) {
            (Some(k), _) if k.len() == rank => Some(Dim::of(k[a])),
            (Some(k), _) => {
                bail!(Graph, "attribute `kernel_shape` is {k:?}, expected {rank} values")
            }
            (None, Some(w)) => Some(w[a + 2].clone()),
            (None, None) => None,
        };
        let size = x[a + 2].clone();
        shape.push(match (given, kernel) {
            (Some(g), _) => Dim::of(g[a]),
            (None, _) if attributes.window.is_same() => size * Dim::of(stride),
            (None, Some(kernel)) => {
                let one = || Dim::fixed(1);
                (size - one()) * Dim::of(stride)
                    + (kernel - one()) * Dim::of(dilation)
                    + Dim::of(extra[a] + 1)
                    - Dim::of(pads[0] + pads[1])
            }
            (None, None) => i.fresh(),
        });
    }
    i.set(0, dtype, Some(shape));
    Ok(())
}

struct Extents {
    batch: usize,
    in_channels: usize,
    out_channels: usize,
    groups: usize,
    axes: Few<Axis>,
}

impl Extents {
    fn new(x: &[usize], w: &[usize], attributes: &Attributes) -> Result<Self> {
        let groups = attributes.groups;
        let (&[batch, in_channels, ref size @ ..], &[rows, depth, ref kernel @ ..]) = (x, w) else {
            bail!(Shape, "input `X` of shape {x:?}, weights of shape {w:?}: too few axes");
        };
        if size.is_empty() || size.len() != kernel.len() {
            bail!(Shape, "input `X` has {} spatial axes, the weights {}", size.len(), kernel.len());
        }
        if rows != in_channels || !in_channels.is_multiple_of(groups) {
            bail!(
                Shape,
                "input `X` has {in_channels} channels, the weights are for {rows} in {groups} groups"
            );
        }
        let kernel = attributes.window.kernel_of(Some(kernel))?;
        let axes = attributes.resolve(size, kernel)?;
        let Some(out_channels) = depth.checked_mul(groups) else {
            bail!(Shape, "{depth} output channels in {groups} groups are too many");
        };
        let out = Self { batch, in_channels, out_channels, groups, axes };
        element_count(&out.shape(), 8)?;
        Ok(out)
    }

    fn shape(&self) -> Shape {
        [self.batch, self.out_channels].into_iter().chain(self.axes.iter().map(|a| a.out)).collect()
    }

    fn window(&self) -> Result<Window> {
        let [h, v] = padded_axes::<2>(&self.axes)?;
        Ok(Window {
            kernel: [h.kernel, v.kernel],
            strides: [h.stride, v.stride],
            dilations: [h.dilation, v.dilation],
            pads: [h.pads[0], v.pads[0], h.pads[1], v.pads[1]],
        })
    }
}

/// Packed forms of one set of weights, one for each padding that was met.
const PACKED_FORMS: usize = 8;

#[derive(Debug)]
struct ConvTranspose {
    attributes: Attributes,
    /// The weights as f32, where they are constant and not f64, and not packed for good.
    weights: Option<Tensor>,
    /// The weights' shape and packed form, where the window does not depend on the input.
    fixed: Option<(Shape, Arc<PackedConvTranspose>)>,
    /// The packed forms for the windows that were met, else.
    met: Mutex<Vec<Arc<PackedConvTranspose>>>,
}

impl ConvTranspose {
    fn new(p: &Prepare<'_>) -> Result<Self> {
        let mut weights = match p.constant(1) {
            Some(w) if w.dtype() != DType::F64 => Some(cast(w, DType::F32)?),
            _ => None,
        };
        let attributes = Attributes::read(p.node)?;
        let mut fixed = None;
        if let Some(w) = &weights
            && (3..=4).contains(&w.rank())
            && !attributes.window.is_same()
            && attributes.output_shape.is_none()
        {
            // Any input that is large enough has the same window.
            let shape = w.shape().clone();
            let x: Vec<usize> =
                [1, shape[0]].into_iter().chain(shape[2..].iter().map(|_| 1 << 12)).collect();
            let e = Extents::new(&x, &shape, &attributes)?;
            fixed = Some((shape, Self::pack(w, &e)?));
            weights = None;
        }
        Ok(Self { attributes, weights, fixed, met: Mutex::default() })
    }

    fn pack(w: &Tensor, e: &Extents) -> Result<Arc<PackedConvTranspose>> {
        Ok(Arc::new(PackedConvTranspose::new(
            w.as_slice()?,
            e.in_channels,
            e.out_channels,
            e.groups,
            e.window()?,
        )?))
    }

    fn packed(&self, w: Option<&Tensor>, e: &Extents) -> Result<Arc<PackedConvTranspose>> {
        if let Some((_, fixed)) = &self.fixed {
            return Ok(Arc::clone(fixed));
        }
        let Some(plain) = &self.weights else {
            let Some(w) = w else { bail!(Missing, "input `W` is missing") };
            return Self::pack(w, e);
        };
        let window = e.window()?;
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(form) = met.iter().find(|f| f.window() == window) {
            return Ok(Arc::clone(form));
        }
        let form = Self::pack(plain, e)?;
        if met.len() == PACKED_FORMS {
            met.remove(0);
        }
        met.push(Arc::clone(&form));
        Ok(form)
    }

    fn run_f32(
        &self,
        io: &Io<'_>,
        x: &Tensor,
        w: Option<&Tensor>,
        b: Option<&Tensor>,
    ) -> Result<Tensor> {
        let w = self.weights.as_ref().or(w);
        let shape = match (&self.fixed, w) {
            (Some((shape, _)), _) => shape,
            (None, Some(w)) => w.shape(),
            (None, None) => bail!(Missing, "input `W` is missing"),
        };
        let e = Extents::new(x.shape(), shape, &self.attributes)?;
        if let Some(w) = w.filter(|_| e.axes.len() > 2) {
            return run_plain::<f32>(io, &e, x, w, b);
        }
        check_bias(&e, b)?;
        let mut out = io.allocate(DType::F32, e.shape())?;
        if out.is_empty() {
            return Ok(out);
        }
        let packed = self.packed(w, &e)?;
        let work = x.len().saturating_mul(shape[1..].iter().product());
        let bias = b.map(|b| b.as_slice::<f32>()).transpose()?;
        let epilogue = ConvEpilogue { bias, ..ConvEpilogue::default() };
        let [h, v] = padded_axes::<2>(&e.axes)?;
        conv_transpose2d(
            x.as_slice()?,
            e.batch,
            [h.size, v.size],
            &packed,
            &epilogue,
            [h.out, v.out],
            out.as_mut_slice()?,
            io.threads().for_work(work),
        )?;
        Ok(out)
    }
}

fn check_bias(e: &Extents, bias: Option<&Tensor>) -> Result<()> {
    match bias {
        Some(b) if b.shape()[..] != [e.out_channels] => {
            bail!(Shape, "the bias is {}, expected {} values", b.describe(), e.out_channels)
        }
        _ => Ok(()),
    }
}

fn run_plain<T: Ring>(
    io: &Io<'_>,
    e: &Extents,
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    check_bias(e, bias)?;
    let mut out = io.allocate(T::DTYPE, e.shape())?;
    let bias = bias.map(|b| b.as_slice::<T>()).transpose()?;
    let (x, w) = (x.as_slice::<T>()?, w.as_slice::<T>()?);
    scatter(e, x, w, bias, out.as_mut_slice()?, io.threads())?;
    Ok(out)
}

/// The transposed convolution in plain loops.
fn scatter<T: Ring>(
    e: &Extents,
    x: &[T],
    w: &[T],
    bias: Option<&[T]>,
    out: &mut [T],
    threads: &Threads,
) -> Result<()> {
    let axes = padded_axes::<3>(&e.axes)?;
    let [d, h, v] = axes;
    let (icg, ocg) = (e.in_channels / e.groups, e.out_channels / e.groups);
    let taps = d.kernel * h.kernel * v.kernel;
    let (size, plane) = (d.size * h.size * v.size, d.out * h.out * v.out);
    let target = |a: &Axis, at: usize, tap: usize| {
        (at * a.stride + tap * a.dilation).checked_sub(a.pads[0]).filter(|i| *i < a.out)
    };
    threads.split_rows(out, plane, |first, chunk| {
        for (p, to) in chunk.chunks_exact_mut(plane.max(1)).enumerate() {
            let (b, oc) = ((first + p) / e.out_channels, (first + p) % e.out_channels);
            to.fill(bias.map_or(T::default(), |b| b[oc]));
            for ic in 0..icg {
                let channel = oc / ocg * icg + ic;
                let image = &x[(b * e.in_channels + channel) * size..][..size];
                let weights = &w[(channel * ocg + oc % ocg) * taps..][..taps];
                for (i, x) in image.iter().enumerate() {
                    let at = [i / (h.size * v.size), i / v.size % h.size, i % v.size];
                    for (tap, w) in weights.iter().enumerate() {
                        let tap = [
                            tap / (h.kernel * v.kernel),
                            tap / v.kernel % h.kernel,
                            tap % v.kernel,
                        ];
                        let place = target(&d, at[0], tap[0])
                            .zip(target(&h, at[1], tap[1]))
                            .zip(target(&v, at[2], tap[2]));
                        if let Some(((i, j), k)) = place {
                            let o = &mut to[(i * h.out + j) * v.out + k];
                            *o = o.plus(w.times(*x));
                        }
                    }
                }
            }
        }
    });
    Ok(())
}

impl CpuKernel for ConvTranspose {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let (w, b) = (io.optional(1)?, io.optional(2)?);
        let y = match x.dtype() {
            DType::F32 => self.run_f32(io, x, w, b)?,
            DType::F64 => {
                let w = io.tensor(1)?;
                let e = Extents::new(x.shape(), w.shape(), &self.attributes)?;
                run_plain::<f64>(io, &e, x, w, b)?
            }
            dtype => {
                let wide = |t: Option<&Tensor>| t.map(|t| cast(t, DType::F32)).transpose();
                let (x, w, b) = (cast(x, DType::F32)?, wide(w)?, wide(b)?);
                cast(&self.run_f32(io, &x, w.as_ref(), b.as_ref())?, dtype)?
            }
        };
        io.emit(y);
        Ok(())
    }

    fn reads_constant(&self, input: usize) -> bool {
        input != 1 || (self.weights.is_none() && self.fixed.is_none())
    }
}

fn cases() -> Vec<Case> {
    let mut v = Vec::new();
    for (constant, dtype) in
        [(false, DType::F32), (true, DType::F32), (false, DType::F64), (true, DType::F16)]
    {
        let case = |name: &str, x: &[usize], w: &[usize]| {
            let kind = if constant { "constant" } else { "run-time" };
            let w = as_dtype(&counted(w), dtype);
            let c = Case::new("ConvTranspose", 11, format!("{name}, {dtype}, {kind} weights"))
                .input(as_dtype(&counted(x), dtype));
            if constant { c.constant(w) } else { c.input(w) }
        };
        let is = |shape: &[usize], y: &[f32]| as_dtype(&filled(shape, y), dtype);
        v.push(
            case("strides and bias", &[1, 2, 2, 2], &[2, 1, 2, 2])
                .attr("strides", vec![2_i64, 2])
                .input(is(&[1], &[1.0]))
                .output(is(
                    &[1, 1, 4, 4],
                    &[
                        17.0, 21.0, 21.0, 27.0, 25.0, 29.0, 33.0, 39.0, 25.0, 33.0, 29.0, 39.0,
                        41.0, 49.0, 49.0, 59.0,
                    ],
                )),
        );
        v.push(
            case("output_padding", &[1, 1, 2, 3], &[1, 1, 3, 3])
                .attr("strides", vec![3_i64, 2])
                .attr("output_padding", vec![1_i64, 1])
                .attr("pads", vec![1_i64, 0, 0, 1])
                .output(is(
                    &[1, 1, 6, 7],
                    &[
                        0.0, 0.0, 3.0, 4.0, 11.0, 8.0, 10.0, 0.0, 0.0, 6.0, 7.0, 20.0, 14.0, 16.0,
                        0.0, 3.0, 6.0, 4.0, 8.0, 5.0, 10.0, 9.0, 12.0, 27.0, 16.0, 35.0, 20.0,
                        25.0, 18.0, 21.0, 48.0, 28.0, 62.0, 35.0, 40.0, 0.0, 0.0, 0.0, 0.0, 0.0,
                        0.0, 0.0,
                    ],
                )),
        );
        let upper = [
            0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 3.0, 4.0, 0.0, 0.0, 6.0, 7.0, 0.0, 2.0, 4.0, 3.0, 6.0,
            8.0, 19.0, 12.0,
        ];
        let lower = [
            0.0, 3.0, 4.0, 5.0, 0.0, 6.0, 7.0, 8.0, 2.0, 4.0, 3.0, 6.0, 8.0, 19.0, 12.0, 15.0,
            14.0, 34.0, 21.0, 24.0,
        ];
        for (mode, want) in [("SAME_UPPER", upper), ("NOTSET", lower)] {
            v.push(
                case(&format!("output_shape, {mode}"), &[1, 1, 2, 2], &[1, 1, 3, 3])
                    .attr("strides", vec![3_i64, 2])
                    .attr("output_shape", vec![5_i64, 4])
                    .attr("auto_pad", mode)
                    .output(is(&[1, 1, 5, 4], &want)),
            );
        }
        let upper =
            [0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 3.0, 4.0, 0.0, 2.0, 10.0, 10.0, 6.0, 8.0, 19.0, 12.0];
        let lower = [
            0.0, 3.0, 4.0, 5.0, 2.0, 10.0, 10.0, 14.0, 8.0, 19.0, 12.0, 15.0, 14.0, 34.0, 21.0,
            24.0,
        ];
        for (mode, want) in [("SAME_UPPER", upper), ("SAME_LOWER", lower)] {
            v.push(
                case(mode, &[1, 1, 2, 2], &[1, 1, 3, 3])
                    .attr("strides", vec![2_i64, 2])
                    .attr("auto_pad", mode)
                    .output(is(&[1, 1, 4, 4], &want)),
            );
        }
        v.push(
            case("groups and dilations", &[1, 2, 2, 2], &[2, 1, 2, 2])
                .attr("group", 2)
                .attr("dilations", vec![2_i64, 1])
                .output(is(
                    &[1, 2, 4, 3],
                    &[
                        0.0, 0.0, 1.0, 0.0, 2.0, 3.0, 0.0, 2.0, 3.0, 4.0, 12.0, 9.0, 16.0, 40.0,
                        25.0, 24.0, 58.0, 35.0, 24.0, 58.0, 35.0, 36.0, 84.0, 49.0,
                    ],
                )),
        );
        v.push(
            case("one axis", &[1, 1, 3], &[1, 2, 3])
                .attr("pads", vec![1_i64, 1])
                .output(is(&[1, 2, 3], &[0.0, 1.0, 4.0, 3.0, 10.0, 13.0])),
        );
        v.push(case("three axes", &[1, 1, 1, 2, 2], &[1, 1, 2, 2, 1]).output(is(
            &[1, 1, 2, 3, 2],
            &[0.0, 0.0, 0.0, 1.0, 2.0, 3.0, 0.0, 2.0, 4.0, 9.0, 6.0, 9.0],
        )));
        v.push(case("no items", &[0, 1, 2, 2], &[1, 1, 2, 2]).output(is(&[0, 1, 3, 3], &[])));
    }
    v
}
