//! `DequantizeLinear`.

use super::{Layout, zeros};
use crate::error::{Result, bail};
use crate::graph::Node;
use crate::kernels::{KernelError, Spread};
use crate::ops::case::{Case, as_dtype, filled};
use crate::ops::composite::MICROSOFT;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, cost};
use crate::tensor::{DType, Element, Tensor, cast, for_dtypes, is_narrow};

const INPUT: &[DType] = &[
    DType::U8,
    DType::I8,
    DType::U16,
    DType::I16,
    DType::I32,
    DType::U4,
    DType::I4,
    DType::F8E4M3FN,
    DType::F8E4M3FNUZ,
    DType::F8E5M2,
    DType::F8E5M2FNUZ,
    DType::F4E2M1,
];
const SCALE: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// `(x - zero_point) * scale`, of the scale's dtype.
pub(in crate::ops) static DEQUANTIZE_LINEAR: OpDef = OpDef {
    name: "DequantizeLinear",
    domain: "",
    since: 10,
    attributes: &[
        AttributeDef::optional("axis", AttributeKind::Int),
        AttributeDef::optional("block_size", AttributeKind::Int),
        AttributeDef::optional("output_dtype", AttributeKind::Int),
    ],
    inputs: &[
        Port::required("x", INPUT),
        Port::required("x_scale", SCALE),
        Port::optional("x_zero_point", INPUT),
    ],
    outputs: &[Port::required("y", SCALE)],
    infer: |i| {
        let dtype = asked(i.node)?.or(i.dtype(1));
        i.set(0, dtype, i.shape(0));
        Ok(())
    },
    batch: |q| Layout::of(q.node).map_err(|e| e.to_string())?.batch(q),
    cost: |q| cost::Cost { flops: 2.0 * q.output_elements(), bytes: q.bytes() },
    prepare: |p| Ok(Box::new(Dequantize { layout: Layout::of(p.node)?, asked: asked(p.node)? })),
    cases,
};

/// The same in ONNX Runtime's domain, where 16 bits came before the standard had them.
pub(in crate::ops) static MS_DEQUANTIZE_LINEAR: OpDef = OpDef {
    domain: MICROSOFT,
    since: 1,
    cases: || {
        // What is expected is ONNX Runtime's result.
        vec![
            Case::new("DequantizeLinear", 1, "each row")
                .domain(MICROSOFT)
                .attr("axis", 0i64)
                .input(filled(&[2, 3], &[1u8, 2, 3, 250, 5, 6]))
                .constant(filled(&[2], &[0.5f32, 2.]))
                .constant(filled(&[2], &[3u8, 128]))
                .output(filled(&[2, 3], &[-1f32, -0.5, 0., 244., -246., -244.])),
            Case::new("DequantizeLinear", 1, "i16")
                .domain(MICROSOFT)
                .input(filled(&[2], &[-32768i16, 7]))
                .constant(Tensor::scalar(0.5f32))
                .constant(Tensor::scalar(-8i16))
                .output(filled(&[2], &[-16380f32, 7.5])),
        ]
    },
    ..DEQUANTIZE_LINEAR
};

/// The dtype that the attribute asks for.
fn asked(node: &Node) -> Result<Option<DType>> {
    let number = node.int_or("output_dtype", 0)?;
    match i32::try_from(number).ok().and_then(DType::from_onnx) {
        _ if number == 0 => Ok(None),
        Some(d) if SCALE.contains(&d) => Ok(Some(d)),
        _ => bail!(Graph, "attribute `output_dtype` is {number}, which is no dtype of a scale"),
    }
}

#[derive(Debug)]
struct Dequantize {
    layout: Layout,
    asked: Option<DType>,
}

impl CpuKernel for Dequantize {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (x, scale, zero) = (io.tensor(0)?, io.tensor(1)?, io.optional(2)?);
        if let Some(zero) = zero
            && zero.dtype() != x.dtype()
        {
            bail!(DType, "x is {}, its zero point {}", x.dtype(), zero.dtype());
        }
        let runs = self.layout.runs(x.shape(), scale.shape(), zero.map(Tensor::shape))?;
        let scales = scale.to_f32s()?;
        let dtype = self.asked.unwrap_or(scale.dtype());
        if is_narrow(x.dtype()) {
            let values = x.to_f32s()?;
            let zeros = zero.map_or_else(|| Ok(vec![0.0; scales.len()]), Tensor::to_f32s)?;
            let mut y = io.allocate(DType::F32, x.shape().clone())?;
            let to = y.as_mut_slice::<f32>()?;
            runs.each(values.len(), |at, n, k| {
                for (o, v) in to[at..at + n].iter_mut().zip(&values[at..at + n]) {
                    *o = (v - zeros[k]) * scales[k];
                }
            });
            io.emit(cast(&y, dtype)?);
            return Ok(());
        }
        let mut y = io.allocate(DType::F32, x.shape().clone())?;
        let to = y.as_mut_slice::<f32>()?;
        if x.dtype() == DType::I32 {
            // The difference is taken before it is rounded to f32.
            let zeros = match zero {
                Some(zero) => zero.to_i64s()?,
                None => vec![0; scales.len()],
            };
            let xs = x.as_slice::<i32>()?;
            runs.each(xs.len(), |at, n, k| {
                for (o, &x) in to[at..at + n].iter_mut().zip(&xs[at..at + n]) {
                    *o = (i64::from(x) - zeros[k]) as f32 * scales[k];
                }
            });
            io.emit(cast(&y, dtype)?);
            return Ok(());
        }
        let zeros = zeros(zero, scales.len())?;
        for_dtypes!(x.dtype(), Q, {
            runs.convert(io.threads(), x.as_slice::<Q>()?, &scales, &zeros, to, Q::back)?;
        }, bail!(DType, "{} is not a quantised dtype", x.dtype()),
            U8 u8, I8 i8, U16 u16, I16 i16);
        io.emit(cast(&y, dtype)?);
        Ok(())
    }
}

/// Numbers that come back by a kernel or one by one.
trait Back: Element + Into<i64> {
    fn back(x: &[Self], scale: Spread<'_>, zero: Spread<'_>, out: &mut [f32]) -> Result<()>;
}

macro_rules! back {
    ($($t:ty, $convert:expr;)*) => { $(
        impl Back for $t {
            fn back(
                x: &[Self],
                scale: Spread<'_>,
                zero: Spread<'_>,
                out: &mut [f32],
            ) -> Result<()> {
                Ok($convert(x, scale, zero, out)?)
            }
        }
    )* };
}
back! {
    u8, crate::kernels::dequantize;
    i8, crate::kernels::dequantize;
    u16, one_by_one;
    i16, one_by_one;
}

/// [`Back::back`] without a kernel. 16 bits are exact in f32.
fn one_by_one<Q: Back>(
    x: &[Q],
    scale: Spread<'_>,
    zero: Spread<'_>,
    out: &mut [f32],
) -> std::result::Result<(), KernelError> {
    for (i, (o, &x)) in out.iter_mut().zip(x).enumerate() {
        *o = (x.into() as f32 - zero.at(i)) * scale.at(i);
    }
    Ok(())
}

fn cases() -> Vec<Case> {
    let new = |version: i64, name: &str| Case::new("DequantizeLinear", version, name);
    vec![
        new(10, "u8")
            .input(filled(&[4], &[0u8, 3, 128, 255]))
            .constant(Tensor::scalar(2f32))
            .constant(Tensor::scalar(128u8))
            .output(filled(&[4], &[-256f32, -250., 0., 254.])),
        new(13, "each channel")
            .input(filled(&[1, 2, 2], &[3i8, -4, 3, -4]))
            .constant(filled(&[2], &[2f32, 0.5]))
            .constant(filled(&[2], &[1i8, -2]))
            .output(filled(&[1, 2, 2], &[4f32, -10., 2.5, -1.])),
        new(13, "i32 of a bias, first axis")
            .attr("axis", 0i64)
            .input(filled(&[2], &[i32::MAX, -7]))
            .constant(filled(&[2], &[0.5f32, 3.]))
            .output(filled(&[2], &[1_073_741_824f32, -21.])),
        new(21, "u16")
            .input(filled(&[2], &[65535u16, 0]))
            .constant(filled(&[1], &[0.25f32]))
            .constant(filled(&[1], &[32767u16]))
            .output(filled(&[2], &[8192f32, -8191.75])),
        new(21, "blocks along the first axis")
            .attr("axis", 0i64)
            .attr("block_size", 2i64)
            .input(filled(&[3, 2], &[1i8, 2, 3, 4, 5, 6]))
            .constant(filled(&[2, 2], &[1f32, 10., 100., 1000.]))
            .constant(filled(&[2, 2], &[0i8, 1, 2, 3]))
            .output(filled(&[3, 2], &[1f32, 10., 3., 30., 300., 3000.])),
        new(19, "f16 scale")
            .input(filled(&[2], &[1u8, 5]))
            .constant(as_dtype(&Tensor::scalar(0.5f32), DType::F16))
            .constant(Tensor::scalar(3u8))
            .output(as_dtype(&filled(&[2], &[-1f32, 1.]), DType::F16)),
        new(13, "empty")
            .input(filled::<u8>(&[0, 2], &[]))
            .constant(filled(&[2], &[1f32, 2.]))
            .output(filled::<f32>(&[0, 2], &[])),
    ]
}
