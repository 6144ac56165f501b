//! `Conv` and `brigade.FusedConv`.

use std::sync::{Arc, Mutex, PoisonError};

use super::{
    Extents, GROUP, TYPES, cost, extents_of_any, group, infer, kernel_size, kernel_window, plain,
};
use crate::error::{Result, bail};
use crate::graph::Dim;
use crate::kernels::{Activation, ConvEpilogue, PackedConv, conv2d};
use crate::ops::batch::{self, BatchFlow, BatchQuery};
use crate::ops::case::{Case, as_dtype, counted, filled};
use crate::ops::def::types::F32S;
use crate::ops::epilogue::{self, ACTIVATION, ACTIVATION_PARAMS, RESIDUAL_AFTER};
use crate::ops::window::{AUTO_PAD, DILATIONS, KERNEL_SHAPE, PADS, STRIDES, WindowAttributes};
use crate::ops::{CpuKernel, Io, OpDef, Port, Prepare};
use crate::tensor::{DType, Shape, Tensor, cast};

/// The convolution over 1, 2 or 3 spatial axes.
pub(in crate::ops) static CONV: OpDef = OpDef {
    name: "Conv",
    domain: "",
    since: 1,
    attributes: &[KERNEL_SHAPE, STRIDES, DILATIONS, PADS, AUTO_PAD, GROUP],
    inputs: &[Port::required("X", TYPES), Port::required("W", TYPES), Port::optional("B", TYPES)],
    outputs: &[Port::required("Y", TYPES)],
    infer: |i| infer(i, i.dtype(0).or(i.dtype(1))),
    batch: batch::leading,
    cost,
    prepare: |p| Ok(Box::new(Conv::new(p)?)),
    cases,
};

/// `act(conv(X, W) + B + Z)`, or with `residual_after_activation` `act(conv(X, W) + B) + Z`,
/// where `Z` is of the output's shape.
pub(in crate::ops) static FUSED_CONV: OpDef = OpDef {
    name: "FusedConv",
    domain: "brigade",
    since: 1,
    attributes: &[
        KERNEL_SHAPE,
        STRIDES,
        DILATIONS,
        PADS,
        AUTO_PAD,
        GROUP,
        ACTIVATION,
        ACTIVATION_PARAMS,
        RESIDUAL_AFTER,
    ],
    inputs: &[
        Port::required("X", F32S),
        Port::required("W", F32S),
        Port::optional("B", F32S),
        Port::optional("Z", F32S),
    ],
    outputs: &[Port::required("Y", F32S)],
    infer: |i| infer(i, Some(DType::F32)),
    batch: fused_batch,
    cost,
    prepare: |p| {
        let activation = epilogue::activation(p.node)?;
        let residual_after = epilogue::residual_after(p.node)?;
        Ok(Box::new(Conv { activation, residual_after, ..Conv::new(p)? }))
    },
    cases: fused_cases,
};

pub(in crate::ops) fn fused_batch(q: &BatchQuery<'_>) -> BatchFlow {
    let axis = |i: usize| q.axes.get(i).copied().flatten();
    if axis(1).is_some() || axis(2).is_some() {
        return Err("the weights carry the batch".to_owned());
    }
    let residual = q.node.inputs.get(3).copied().flatten().is_some();
    match (axis(0), axis(3)) {
        (None, None) => q.everywhere(None),
        (Some(0), None) if !residual => q.everywhere(Some(0)),
        (Some(0), Some(0)) => q.everywhere(Some(0)),
        (Some(0), _) => Err("the residual does not carry the batch on its first axis".to_owned()),
        _ => Err("the batch is not on the first axis of its input".to_owned()),
    }
}

/// Packed forms of one set of weights: padding that depends on the input's extents
/// (`auto_pad`) needs one for each that was met.
const PACKED_FORMS: usize = 8;

#[derive(Debug)]
struct Conv {
    window: WindowAttributes,
    groups: usize,
    activation: Activation,
    residual_after: bool,
    /// The weights as f32, where they are constant and not f64.
    weights: Option<Weights>,
}

#[derive(Debug)]
struct Weights {
    shape: Shape,
    /// The weights packed for good, where the window does not depend on the input.
    fixed: Option<Arc<PackedConv>>,
    /// The weights themselves, else.
    plain: Option<Tensor>,
    /// The packed forms for the windows that were met, else.
    met: Mutex<Vec<Arc<PackedConv>>>,
}

impl Conv {
    fn new(p: &Prepare<'_>) -> Result<Self> {
        let (window, groups) = (WindowAttributes::read(p.node)?, group(p.node)?);
        let weights = match p.constant(1) {
            Some(w) if w.dtype() != DType::F64 && w.rank() > 2 => {
                let w = cast(w, DType::F32)?;
                let shape = w.shape().clone();
                let x = p.facts.first().and_then(Option::as_ref);
                let x = x.and_then(|f| f.shape.as_deref());
                let fixed = Weights::pack_fixed(&w, groups, &window, x)?.map(Arc::new);
                let plain = fixed.is_none().then_some(w);
                Some(Weights { shape, fixed, plain, met: Mutex::default() })
            }
            _ => None,
        };
        Ok(Self { window, groups, activation: Activation::None, residual_after: false, weights })
    }

    fn run_f32(
        &self,
        io: &Io<'_>,
        x: &Tensor,
        w: Option<&Tensor>,
        bias: Option<&Tensor>,
    ) -> Result<Tensor> {
        let shape = match (&self.weights, w) {
            (Some(w), _) => &w.shape,
            (None, Some(w)) => w.shape(),
            (None, None) => bail!(Missing, "input `W` is missing"),
        };
        let e = Extents::new(x.shape(), shape, self.groups, &self.window)?;
        if let Some(b) = bias {
            e.check_bias(b.shape())?;
        }
        let residual = io.optional(3)?;
        if let Some(z) = residual
            && *z.shape() != e.shape()
        {
            bail!(Shape, "the residual is {}, the output {}", z.describe(), e.shape());
        }
        let mut out = io.allocate(DType::F32, e.shape())?;
        if out.is_empty() {
            return Ok(out);
        }
        let bias = bias.map(|b| b.as_slice::<f32>()).transpose()?;
        let residual = residual.map(|z| z.as_slice::<f32>()).transpose()?;
        let (x, y) = (x.as_slice::<f32>()?, out.as_mut_slice::<f32>()?);
        if e.axes.len() > 2 {
            let w = self.weights.as_ref().and_then(|w| w.plain.as_ref()).or(w);
            let Some(w) = w else { bail!(Missing, "input `W` is missing") };
            plain::convolve(&e, x, w.as_slice()?, bias, y, io.threads())?;
            let (act, after) = (self.activation, self.residual_after);
            for (i, y) in y.iter_mut().enumerate() {
                let z = residual.map_or(0.0, |z| z[i]);
                *y = if after { act.apply(*y) + z } else { act.apply(*y + z) };
            }
            return Ok(out);
        }
        let packed = match &self.weights {
            Some(w) => w.for_extents(&e)?,
            None => match w {
                Some(w) => Arc::new(pack(w.as_slice()?, &e)?),
                None => bail!(Missing, "input `W` is missing"),
            },
        };
        let epilogue = ConvEpilogue {
            bias,
            residual,
            residual_after_activation: self.residual_after,
            activation: self.activation,
        };
        let size = kernel_size(&e, packed.window())?;
        let work = y.len().saturating_mul(shape[1..].iter().product());
        let threads = io.threads().for_work(work);
        conv2d(x, e.batch, size, &packed, &epilogue, y, threads)?;
        Ok(out)
    }
}

fn pack(weights: &[f32], e: &Extents) -> Result<PackedConv> {
    Ok(PackedConv::new(weights, e.out_channels, e.in_channels, e.groups, kernel_window(e)?)?)
}

impl Weights {
    /// Packs them, if the window does not depend on the input.
    fn pack_fixed(
        w: &Tensor,
        groups: usize,
        window: &WindowAttributes,
        x: Option<&[Dim]>,
    ) -> Result<Option<PackedConv>> {
        if w.rank() > 4 || window.is_same() || w.shape()[1].checked_mul(groups).is_none() {
            return Ok(None);
        }
        let e = extents_of_any(window, w.shape(), groups, x)?;
        Ok(Some(pack(w.as_slice()?, &e)?))
    }

    fn for_extents(&self, e: &Extents) -> Result<Arc<PackedConv>> {
        if let Some(fixed) = &self.fixed {
            return Ok(Arc::clone(fixed));
        }
        let window = kernel_window(e)?;
        let mut met = self.met.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(form) = met.iter().find(|f| f.window() == window) {
            return Ok(Arc::clone(form));
        }
        let Some(plain) = &self.plain else { bail!(Internal, "the weights are gone") };
        let form = Arc::new(pack(plain.as_slice()?, e)?);
        if met.len() == PACKED_FORMS {
            met.remove(0);
        }
        met.push(Arc::clone(&form));
        Ok(form)
    }
}

impl CpuKernel for Conv {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let (w, b) = (io.optional(1)?, io.optional(2)?);
        let y = match x.dtype() {
            DType::F32 => self.run_f32(io, x, w, b)?,
            DType::F64 => {
                let w = io.tensor(1)?;
                let e = Extents::new(x.shape(), w.shape(), self.groups, &self.window)?;
                if let Some(b) = b {
                    e.check_bias(b.shape())?;
                }
                let b = b.map(|b| b.as_slice::<f64>()).transpose()?;
                let mut out = io.allocate(DType::F64, e.shape())?;
                let y = out.as_mut_slice::<f64>()?;
                plain::convolve(&e, x.as_slice()?, w.as_slice()?, b, y, io.threads())?;
                out
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
        input != 1 || self.weights.is_none()
    }
}

fn cases() -> Vec<Case> {
    let mut v = Vec::new();
    for (constant, dtype) in [
        (false, DType::F32),
        (true, DType::F32),
        (false, DType::F64),
        (false, DType::F16),
        (true, DType::BF16),
    ] {
        // bf16 has eight bits; the larger sums are rounded.
        let rtol = if dtype == DType::BF16 { 1.0 / 256.0 } else { 1.0 / 2048.0 };
        let rtol = if dtype.size() == 2 { rtol } else { 0.0 };
        let case = |name: &str, x: &[usize], w: &[usize]| {
            let kind = if constant { "constant" } else { "run-time" };
            let w = as_dtype(&counted(w), dtype);
            let c = Case::new("Conv", 11, format!("{name}, {dtype}, {kind} weights"))
                .input(as_dtype(&counted(x), dtype))
                .close(0.0, rtol);
            if constant { c.constant(w) } else { c.input(w) }
        };
        let is = |shape: &[usize], y: &[f32]| as_dtype(&filled(shape, y), dtype);
        let bias = |b: &[f32]| as_dtype(&filled(&[b.len()], b), dtype);
        v.push(case("padded", &[1, 1, 5, 5], &[1, 1, 3, 3]).attr("pads", vec![1_i64; 4]).output(
            is(
                &[1, 1, 5, 5],
                &[
                    88.0, 142.0, 175.0, 208.0, 136.0, 210.0, 312.0, 348.0, 384.0, 240.0, 345.0,
                    492.0, 528.0, 564.0, 345.0, 480.0, 672.0, 708.0, 744.0, 450.0, 232.0, 304.0,
                    319.0, 334.0, 184.0,
                ],
            ),
        ));
        v.push(
            case("strides and unequal padding", &[1, 1, 5, 5], &[1, 1, 3, 3])
                .attr("kernel_shape", vec![3_i64, 3])
                .attr("strides", vec![2_i64, 2])
                .attr("pads", vec![0_i64, 1, 2, 0])
                .output(is(&[1, 1, 3, 2], &[210.0, 348.0, 480.0, 708.0, 62.0, 68.0])),
        );
        v.push(
            case("dilations", &[1, 1, 5, 5], &[1, 1, 3, 3])
                .attr("dilations", vec![2_i64, 2])
                .output(is(&[1, 1, 1, 1], &[624.0])),
        );
        let same = [43.0, 67.0, 82.0, 49.0, 139.0, 187.0, 202.0, 113.0];
        // An even kernel with stride 2 over 4 rows needs no padding there; 3 columns need 1 + 1.
        for mode in ["SAME_UPPER", "SAME_LOWER"] {
            v.push(
                case(mode, &[1, 1, 4, 4], &[1, 1, 2, 3])
                    .attr("strides", vec![2_i64, 1])
                    .attr("auto_pad", mode)
                    .output(is(&[1, 1, 2, 4], &same)),
            );
        }
        // [0,1,2] with kernel [0,1]: the odd element is at the end or at the beginning.
        for (mode, want) in [("SAME_UPPER", [1.0, 2.0, 0.0]), ("SAME_LOWER", [0.0, 1.0, 2.0])] {
            v.push(
                case(&format!("{mode}, odd"), &[1, 1, 3], &[1, 1, 2])
                    .attr("auto_pad", mode)
                    .output(is(&[1, 1, 3], &want)),
            );
        }
        v.push(
            case("groups and bias", &[2, 4, 2, 2], &[4, 2, 1, 2])
                .attr("group", 2)
                .input(bias(&[1.0, 2.0, 3.0, 4.0]))
                .output(is(
                    &[2, 4, 2, 1],
                    &[
                        25.0, 37.0, 66.0, 110.0, 411.0, 487.0, 580.0, 688.0, 121.0, 133.0, 418.0,
                        462.0, 1019.0, 1095.0, 1444.0, 1552.0,
                    ],
                )),
        );
        v.push(
            case("depthwise", &[1, 2, 4, 4], &[2, 1, 3, 3])
                .attr("group", 2)
                .attr("pads", vec![1_i64; 4])
                .attr("strides", vec![2_i64, 2])
                .output(is(
                    &[1, 2, 2, 2],
                    &[73.0, 154.0, 279.0, 438.0, 1123.0, 1762.0, 2034.0, 3120.0],
                )),
        );
        v.push(
            case("one axis", &[1, 2, 5], &[2, 2, 3])
                .attr("pads", vec![1_i64, 0])
                .attr("strides", vec![2_i64])
                .input(bias(&[0.5, -1.0]))
                .output(is(&[1, 2, 2], &[52.5, 94.5, 123.0, 255.0])),
        );
        v.push(
            case("three axes", &[1, 1, 3, 3, 3], &[1, 1, 2, 2, 2])
                .attr("pads", vec![0_i64, 0, 1, 0, 0, 0])
                .attr("strides", vec![1_i64, 2, 1])
                .output(is(&[1, 1, 2, 1, 3], &[138.0, 268.0, 296.0, 282.0, 520.0, 548.0])),
        );
        v.push(case("no items", &[0, 1, 3, 3], &[1, 1, 2, 2]).output(is(&[0, 1, 2, 2], &[])));
    }
    v
}

fn fused_cases() -> Vec<Case> {
    let case = |name: &str, activation: &str| {
        Case::new("FusedConv", 1, name)
            .domain("brigade")
            .attr("activation", activation)
            .input(counted(&[2, 1, 2, 2]))
            .constant(filled(&[2, 1, 1, 1], &[1.0_f32, -2.0]))
    };
    let z = filled(&[2, 2, 2, 2], &[-1.0_f32; 16]);
    let y = |values: &[f32]| filled(&[2, 2, 2, 2], values);
    let zeros = [0.0_f32; 16];
    vec![
        case("bias and Relu", "Relu").constant(filled(&[2], &[-1.0_f32, 3.0])).output(y(&[
            0.0, 0.0, 1.0, 2.0, 3.0, 1.0, 0.0, 0.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0, 0.0, 0.0,
        ])),
        case("residual before Relu", "Relu").absent().input(z.clone()).output(y(&[
            0.0, 0.0, 1.0, 2.0, 0.0, 0.0, 0.0, 0.0, 3.0, 4.0, 5.0, 6.0, 0.0, 0.0, 0.0, 0.0,
        ])),
        case("residual after Clip", "Clip")
            .attr("activation_params", vec![-1.0_f32, 2.0])
            .attr("residual_after_activation", 1)
            .absent()
            .input(z)
            .output(y(&[
                -1.0, 0.0, 1.0, 1.0, -1.0, -2.0, -2.0, -2.0, 1.0, 1.0, 1.0, 1.0, -2.0, -2.0, -2.0,
                -2.0,
            ])),
        Case::new("FusedConv", 1, "three axes")
            .domain("brigade")
            .attr("activation", "Relu")
            .input(filled(&[1, 1, 1, 1, 3], &[-1.0_f32, 0.0, 2.0]))
            .input(filled(&[1, 1, 1, 1, 1], &[2.0_f32]))
            .absent()
            .input(filled(&[1, 1, 1, 1, 3], &[3.0_f32, -1.0, 1.0]))
            .output(filled(&[1, 1, 1, 1, 3], &[1.0_f32, 0.0, 5.0])),
        case("HardSwish", "HardSwish").constant(filled(&[2], &[-100.0_f32, 114.0])).output(y(&[
            zeros[..4].to_vec(),
            vec![114.0, 112.0, 110.0, 108.0],
            zeros[..4].to_vec(),
            vec![106.0, 104.0, 102.0, 100.0],
        ]
        .concat())),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Fact, Graph};
    use crate::ops::{CompileOptions, OpRegistry, Program, RunContext, infer_graph};

    fn convolve(x: &Tensor, fact: Fact, w: &Tensor, pads: [i64; 4]) -> Tensor {
        let mut g = Graph::new("g");
        let input = g.add_input("x", fact).unwrap();
        let w = g.add_constant("w", w.clone()).unwrap();
        let y = g.add_value("y", Fact::unknown()).unwrap();
        let node = g.add_node("conv", "Conv", [Some(input), Some(w)], [Some(y)]);
        node.attributes.insert("pads".to_owned(), pads.to_vec().into());
        g.set_outputs([y]);
        let registry = OpRegistry::default();
        infer_graph(&mut g, &registry).unwrap();
        let program = Program::compile(&g, &registry, &CompileOptions::default()).unwrap();
        let out = program.run(vec![x.clone().into()], &RunContext::default()).unwrap();
        out[0].tensor().unwrap().clone()
    }

    #[test]
    fn a_column_is_worked_on_as_the_row_that_it_is() {
        let numbers = |shape: &[usize]| {
            let n: usize = shape.iter().product();
            Tensor::new(shape, (0..n).map(|i| (i * 37 % 101) as f32 / 7.0 - 6.0).collect()).unwrap()
        };
        let (x, w) = (numbers(&[2, 12, 301, 1]), numbers(&[20, 12, 5, 1]));
        let row = (x.reshape([2, 12, 1, 301]).unwrap(), w.reshape([20, 12, 1, 5]).unwrap());
        let want = convolve(&row.0, Fact::of(&row.0), &row.1, [0, 2, 0, 1]);
        let got = convolve(&x, Fact::of(&x), &w, [2, 0, 1, 0]);
        assert_eq!(got.shape()[..], [2, 20, 300, 1]);
        assert_eq!(got.as_bytes(), want.as_bytes());
        // Where the width is known only when it is fed, the result is the same but for rounding.
        let dims = [Dim::of(2), Dim::of(12), Dim::symbol("H"), Dim::symbol("W")];
        let later = convolve(&x, Fact::new(DType::F32, dims), &w, [2, 0, 1, 0]);
        crate::ops::case::compare(&later, &got, 1e-4, 1e-5).unwrap();
        // The kernel is given a row.
        let window =
            WindowAttributes::read(&Graph::default().add_node("n", "Conv", [], []).clone());
        let e = Extents::new(x.shape(), w.shape(), 1, &window.unwrap()).unwrap();
        assert_eq!(kernel_window(&e).unwrap().kernel, [1, 5]);
        assert_eq!(kernel_size(&e, kernel_window(&e).unwrap()).unwrap(), [1, 301]);
    }
}
