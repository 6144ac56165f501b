//! `QuantizeLinear`.

use super::{Layout, QUANTIZED, Quantized, Runs, zeros};
use crate::error::{Result, bail};
use crate::graph::Node;
use crate::kernels::round_even;
use crate::ops::case::{Case, as_dtype, filled};
use crate::ops::composite::MICROSOFT;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, cost};
use crate::tensor::{DType, Tensor, cast_to, for_dtypes, is_narrow};

const INPUT: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::I32];
const SCALE: &[DType] = &[DType::F32, DType::F16, DType::BF16, DType::I32];

/// `saturate(round(x / scale) + zero_point)`: to the nearest number, the even one of two.
pub(in crate::ops) static QUANTIZE_LINEAR: OpDef = OpDef {
    name: "QuantizeLinear",
    domain: "",
    since: 10,
    attributes: &[
        AttributeDef::optional("axis", AttributeKind::Int),
        AttributeDef::optional("block_size", AttributeKind::Int),
        AttributeDef::optional("output_dtype", AttributeKind::Int),
        AttributeDef::optional("precision", AttributeKind::Int),
        AttributeDef::optional("saturate", AttributeKind::Int),
    ],
    inputs: &[
        Port::required("x", INPUT),
        Port::required("y_scale", SCALE),
        Port::optional("y_zero_point", QUANTIZED),
    ],
    outputs: &[Port::required("y", QUANTIZED)],
    infer: |i| {
        let asked = asked(i.node)?;
        let dtype = if i.has(2) { i.dtype(2) } else { Some(asked.unwrap_or(DType::U8)) };
        i.set(0, dtype, i.shape(0));
        Ok(())
    },
    batch: |q| Layout::of(q.node).map_err(|e| e.to_string())?.batch(q),
    cost: |q| cost::Cost { flops: 4.0 * q.output_elements(), bytes: q.bytes() },
    prepare: |p| {
        let saturate = p.node.int_or("saturate", 1)? != 0;
        Ok(Box::new(Quantize { layout: Layout::of(p.node)?, asked: asked(p.node)?, saturate }))
    },
    cases,
};

/// The same in ONNX Runtime's domain, where 16 bits came before the standard had them.
pub(in crate::ops) static MS_QUANTIZE_LINEAR: OpDef = OpDef {
    domain: MICROSOFT,
    since: 1,
    cases: || {
        vec![
            // What is expected is ONNX Runtime's result.
            Case::new("QuantizeLinear", 1, "each column")
                .domain(MICROSOFT)
                .attr("axis", 1i64)
                .input(filled(&[2, 3], &[-0.575f32, 0.05, 0.675, -0.325, 0.3, -0.7]))
                .constant(filled(&[3], &[0.01f32, 0.02, 0.05]))
                .constant(filled(&[3], &[3u8, 128, 0]))
                .output(filled(&[2, 3], &[0u8, 130, 14, 0, 143, 0])),
        ]
    },
    ..QUANTIZE_LINEAR
};

/// The dtype that the attribute asks for.
fn asked(node: &Node) -> Result<Option<DType>> {
    let number = node.int_or("output_dtype", 0)?;
    if number == 0 {
        return Ok(None);
    }
    match i32::try_from(number).ok().and_then(DType::from_onnx) {
        Some(d) if QUANTIZED.contains(&d) => Ok(Some(d)),
        Some(d) => bail!(Unsupported, "quantisation to {d} is not implemented"),
        None => bail!(Graph, "attribute `output_dtype` is {number}, which is no dtype"),
    }
}

#[derive(Debug)]
struct Quantize {
    layout: Layout,
    asked: Option<DType>,
    saturate: bool,
}

impl CpuKernel for Quantize {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (x, scale, zero) = (io.tensor(0)?, io.tensor(1)?, io.optional(2)?);
        let dtype = match (zero.map(Tensor::dtype), self.asked) {
            (Some(d), Some(a)) if d != a => {
                bail!(DType, "attribute `output_dtype` is {a}, the zero point is {d}")
            }
            (Some(d), _) => d,
            (None, asked) => asked.unwrap_or(DType::U8),
        };
        let runs = self.layout.runs(x.shape(), scale.shape(), zero.map(Tensor::shape))?;
        let scales = scale.to_f32s()?;
        let zeros = zeros(zero, scales.len())?;
        let wide;
        let xs = if x.dtype() == DType::F32 {
            x.as_slice::<f32>()?
        } else {
            wide = x.to_f32s()?;
            &wide
        };
        if is_narrow(dtype) {
            let whole = matches!(dtype, DType::U4 | DType::I4);
            let mut values = vec![0.0; xs.len()];
            runs.each(xs.len(), |at, n, k| {
                for (v, x) in values[at..at + n].iter_mut().zip(&xs[at..at + n]) {
                    let scaled = x / scales[k];
                    *v = if whole { round_even(scaled) } else { scaled } + zeros[k];
                }
            });
            let values = Tensor::new(x.shape().clone(), values)?;
            io.emit(cast_to(&values, dtype, self.saturate)?);
            return Ok(());
        }
        let mut y = io.allocate(dtype, x.shape().clone())?;
        for_dtypes!(dtype, Q, {
            apply::<Q>(io, runs, xs, &scales, &zeros, y.as_mut_slice::<Q>()?)?;
        }, bail!(DType, "cannot quantise to {dtype}"), U8 u8, I8 i8, U16 u16, I16 i16);
        io.emit(y);
        Ok(())
    }
}

fn apply<Q: Quantized>(
    io: &Io<'_>,
    runs: Runs,
    xs: &[f32],
    scales: &[f32],
    zeros: &[f32],
    out: &mut [Q],
) -> Result<()> {
    runs.convert(io.threads(), xs, scales, zeros, out, Q::quantize_all)
}

fn cases() -> Vec<Case> {
    let new = |version: i64, name: &str| Case::new("QuantizeLinear", version, name);
    let x = filled(&[6], &[0f32, 2., 3., 1000., -254., -1000.]);
    vec![
        new(10, "u8 saturates")
            .input(x.clone())
            .constant(Tensor::scalar(2f32))
            .constant(Tensor::scalar(128u8))
            .output(filled(&[6], &[128u8, 129, 130, 255, 1, 0])),
        new(13, "half to even")
            .input(filled(&[6], &[-2.5f32, -1.5, -0.5, 0.5, 1.5, 2.5]))
            .input(Tensor::scalar(1f32))
            .input(Tensor::scalar(0i8))
            .output(filled(&[6], &[-2i8, -2, 0, 0, 2, 2])),
        new(13, "u8 without a zero point")
            .input(filled(&[2], &[-1f32, 1.4]))
            .input(filled(&[1], &[0.5f32]))
            .output(filled(&[2], &[0u8, 3])),
        new(13, "each channel")
            .input(filled(&[1, 2, 2], &[0f32, 10., 0., 10.]))
            .constant(filled(&[2], &[1f32, 5.]))
            .constant(filled(&[2], &[1u8, 100]))
            .output(filled(&[1, 2, 2], &[1u8, 11, 100, 102])),
        new(13, "last axis")
            .attr("axis", -1i64)
            .input(filled(&[2, 2], &[4f32, 4., 8., 8.]))
            .constant(filled(&[2], &[1f32, 2.]))
            .constant(filled(&[2], &[0i8, -1]))
            .output(filled(&[2, 2], &[4i8, 1, 8, 3])),
        new(21, "i16")
            .input(filled(&[3], &[1e9f32, -1e9, 514.]))
            .constant(Tensor::scalar(2f32))
            .constant(Tensor::scalar(256i16))
            .output(filled(&[3], &[32767i16, -32768, 513])),
        new(21, "blocks, dtype by attribute")
            .attr("axis", 1i64)
            .attr("block_size", 2i64)
            .attr("output_dtype", 3i64)
            .input(filled(&[2, 3], &[2f32, 4., 9., 2., 4., 9.]))
            .constant(filled(&[2, 2], &[1f32, 3., 2., 9.]))
            .output(filled(&[2, 3], &[2i8, 4, 3, 1, 2, 1])),
        new(19, "f16")
            .input(as_dtype(&filled(&[2], &[1f32, -3.]), DType::F16))
            .constant(as_dtype(&Tensor::scalar(0.5f32), DType::F16))
            .constant(Tensor::scalar(10u8))
            .output(filled(&[2], &[12u8, 4])),
    ]
}
