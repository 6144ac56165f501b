//! Products of quantised numbers: `QLinearMatMul`, `QLinearConv`, `QGemm`, `MatMulIntegerToFloat`,
//! `DynamicQuantizeMatMul`. Sums are exact, in i32.

use super::{BASE, MICROSOFT, Sketch, infer, prepare};
use crate::error::{Result, bail};
use crate::graph::ValueId;
use crate::ops::case::{Case, filled};
use crate::ops::def::types::F32S;
use crate::ops::window::{AUTO_PAD, DILATIONS, KERNEL_SHAPE, PADS, STRIDES};
use crate::ops::{AttributeDef, AttributeKind, OpDef, Port, batch};
use crate::tensor::DType;

pub(super) const BYTES: &[DType] = &[DType::U8, DType::I8];
pub(super) const SCALES: &[DType] = &[DType::F32, DType::F16, DType::BF16];

/// The product of two quantised matrices, quantised.
pub(in crate::ops) static QLINEAR_MATMUL: OpDef = OpDef {
    name: "QLinearMatMul",
    domain: "",
    since: 10,
    inputs: &[
        Port::required("a", BYTES),
        Port::required("a_scale", SCALES),
        Port::required("a_zero_point", BYTES),
        Port::required("b", BYTES),
        Port::required("b_scale", SCALES),
        Port::required("b_zero_point", BYTES),
        Port::required("y_scale", SCALES),
        Port::required("y_zero_point", BYTES),
    ],
    outputs: &[Port::required("y", BYTES)],
    infer: |i| infer(i, qlinear_matmul),
    batch: |q| match (q.axes.first().copied().flatten(), q.rank(0)) {
        (Some(0), Some(rank)) if rank > 1 && q.axes[1..].iter().all(Option::is_none) => {
            let whole = |k: usize| {
                q.shapes[k].as_ref().is_some_and(|s| s.iter().all(|d| d.as_fixed() == Some(1)))
            };
            if whole(1) && whole(2) && q.rank(3) == Some(2) {
                return q.everywhere(Some(0));
            }
            Err("its scales or its second operand are of single rows".to_owned())
        }
        _ => batch::mixes(q),
    },
    prepare: |p| prepare(p, qlinear_matmul),
    cases: || {
        vec![
            Case::new("QLinearMatMul", 10, "unsigned")
                .input(filled(&[2, 2], &[128_u8, 130, 126, 255]))
                .input(filled(&[], &[0.5_f32]))
                .input(filled(&[], &[128_u8]))
                .constant(filled(&[2, 1], &[100_u8, 104]))
                .constant(filled(&[1], &[0.25_f32]))
                .constant(filled(&[1], &[102_u8]))
                .input(filled(&[], &[0.5_f32]))
                .input(filled(&[], &[10_u8]))
                .output(filled(&[2, 1], &[11_u8, 74])),
            Case::new("QLinearMatMul", 21, "signed, a scale for each column")
                .input(filled(&[1, 2], &[1_i8, -2]))
                .input(filled(&[], &[1.0_f32]))
                .input(filled(&[], &[0_i8]))
                .input(filled(&[2, 2], &[3_i8, 4, 5, 6]))
                .input(filled(&[2], &[1.0_f32, 10.0]))
                .input(filled(&[2], &[0_i8, 1]))
                .input(filled(&[], &[2.0_f32]))
                .input(filled(&[], &[1_i8]))
                .output(filled(&[1, 2], &[-3_i8, -34])),
        ]
    },
    ..BASE
};

/// A scale as f32, that of rows (or channels) as a column.
fn scale(s: &mut Sketch<'_>, k: usize, shape: Option<&[i64]>) -> Result<ValueId> {
    let x = s.input(k)?;
    let x = s.cast(x, DType::F32)?;
    match shape {
        Some(shape) if !s.dims(k)?.iter().all(|d| d.as_fixed() == Some(1)) => {
            let shape = s.ints(shape)?;
            s.op("Reshape", &[x, shape], &[])
        }
        // One number, or one for each column, goes with everything.
        _ => Ok(x),
    }
}

/// Whole-number sums as f32, times two scales.
fn scaled(s: &mut Sketch<'_>, sums: ValueId, a: ValueId, b: ValueId) -> Result<ValueId> {
    let sums = s.cast(sums, DType::F32)?;
    let both = s.op("Mul", &[a, b], &[])?;
    s.op("Mul", &[sums, both], &[])
}

/// `x` quantised with the scale and zero point of two inputs.
pub(super) fn quantised(
    s: &mut Sketch<'_>,
    x: ValueId,
    scale: usize,
    zero: usize,
) -> Result<ValueId> {
    let own = s.input(scale)?;
    let own = s.cast(own, DType::F32)?;
    let zero = s.optional(zero);
    Ok(s.apply("QuantizeLinear", &[Some(x), Some(own), zero], &[], 1)?[0])
}

/// An input as f32, by the scale and zero point that follow it.
pub(super) fn dequantised(s: &mut Sketch<'_>, k: usize) -> Result<ValueId> {
    let (x, scale) = (s.input(k)?, s.input(k + 1)?);
    Ok(s.apply("DequantizeLinear", &[Some(x), Some(scale), s.optional(k + 2)], &[], 1)?[0])
}

fn qlinear_matmul(s: &mut Sketch<'_>) -> Result<Vec<ValueId>> {
    let inputs = [s.input(0)?, s.input(3)?, s.input(2)?, s.input(5)?];
    let sums = s.op("MatMulInteger", &inputs, &[])?;
    let (a, b) = (scale(s, 1, Some(&[-1, 1]))?, scale(s, 4, None)?);
    let product = scaled(s, sums, a, b)?;
    Ok(vec![quantised(s, product, 6, 7)?])
}

/// The convolution of quantised numbers, quantised.
pub(in crate::ops) static QLINEAR_CONV: OpDef = OpDef {
    name: "QLinearConv",
    domain: "",
    since: 10,
    attributes: &[
        KERNEL_SHAPE,
        STRIDES,
        DILATIONS,
        PADS,
        AUTO_PAD,
        AttributeDef::optional("group", AttributeKind::Int),
    ],
    inputs: &[
        Port::required("x", BYTES),
        Port::required("x_scale", F32S),
        Port::required("x_zero_point", BYTES),
        Port::required("w", BYTES),
        Port::required("w_scale", F32S),
        Port::required("w_zero_point", BYTES),
        Port::required("y_scale", F32S),
        Port::required("y_zero_point", BYTES),
        Port::optional("B", &[DType::I32]),
    ],
    outputs: &[Port::required("y", BYTES)],
    infer: |i| infer(i, qlinear_conv),
    batch: batch::leading,
    prepare: |p| prepare(p, qlinear_conv),
    cases: || {
        vec![
            Case::new("QLinearConv", 10, "a bias, a scale for each channel")
                .input(filled(&[1, 1, 1, 3], &[10_u8, 12, 16]))
                .input(filled(&[], &[0.5_f32]))
                .input(filled(&[], &[10_u8]))
                .constant(filled(&[2, 1, 1, 2], &[1_i8, 2, -1, 3]))
                .constant(filled(&[2], &[1.0_f32, 2.0]))
                .constant(filled(&[2], &[0_i8, 0]))
                .input(filled(&[], &[1.0_f32]))
                .input(filled(&[], &[3_u8]))
                .constant(filled(&[2], &[2_i32, -4]))
                .output(filled(&[1, 2, 1, 2], &[6_u8, 11, 5, 15])),
        ]
    },
    ..BASE
};

fn qlinear_conv(s: &mut Sketch<'_>) -> Result<Vec<ValueId>> {
    let inputs = [s.input(0)?, s.input(3)?, s.input(2)?, s.input(5)?];
    let attributes =
        s.passed(&["auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"]);
    let inputs: Vec<Option<ValueId>> = inputs.into_iter().map(Some).collect();
    let mut sums = s.apply("ConvInteger", &inputs, &attributes, 1)?[0];
    // One value a channel: axis 1 of the output.
    let mut channels = vec![1_i64; s.dims(0)?.len()];
    match channels.get_mut(1) {
        Some(c) => *c = -1,
        None => bail!(Shape, "input `x` has too few axes"),
    }
    if let Some(bias) = s.optional(8) {
        let shape = s.ints(&channels)?;
        let bias = s.op("Reshape", &[bias, shape], &[])?;
        sums = s.op("Add", &[sums, bias], &[])?;
    }
    let (x, w) = (scale(s, 1, None)?, scale(s, 4, Some(&channels))?);
    let y = scaled(s, sums, x, w)?;
    Ok(vec![quantised(s, y, 6, 7)?])
}

/// `alpha · A · B + C` of quantised numbers, quantised or as f32.
pub(in crate::ops) static QGEMM: OpDef = OpDef {
    name: "QGemm",
    attributes: &[
        AttributeDef::optional("alpha", AttributeKind::Float),
        AttributeDef::optional("transA", AttributeKind::Int),
        AttributeDef::optional("transB", AttributeKind::Int),
    ],
    inputs: &[
        Port::required("A", BYTES),
        Port::required("a_scale", F32S),
        Port::required("a_zero_point", BYTES),
        Port::required("B", BYTES),
        Port::required("b_scale", F32S),
        Port::required("b_zero_point", BYTES),
        Port::optional("C", &[DType::I32]),
        Port::optional("y_scale", F32S),
        Port::optional("y_zero_point", BYTES),
    ],
    outputs: &[Port::required("Y", &[DType::F32, DType::U8, DType::I8])],
    infer: |i| infer(i, qgemm),
    prepare: |p| prepare(p, qgemm),
    cases: || {
        let new = |name: &str| {
            Case::new("QGemm", 1, name)
                .domain(MICROSOFT)
                .attr("transB", 1)
                .input(filled(&[1, 2], &[3_u8, 5]))
                .input(filled(&[], &[0.5_f32]))
                .input(filled(&[], &[1_u8]))
                .constant(filled(&[2, 2], &[1_i8, 2, -1, 3]))
                .constant(filled(&[], &[2.0_f32]))
                .constant(filled(&[], &[0_i8]))
                .constant(filled(&[2], &[1_i32, -1]))
        };
        vec![
            new("as f32").output(filled(&[1, 2], &[11.0_f32, 9.0])),
            new("quantised")
                .input(filled(&[], &[2.0_f32]))
                .input(filled(&[], &[1_u8]))
                .output(filled(&[1, 2], &[7_u8, 5])),
        ]
    },
    ..BASE
};

fn qgemm(s: &mut Sketch<'_>) -> Result<Vec<ValueId>> {
    let mut operands = [s.input(0)?, s.input(3)?];
    for (x, flip) in operands.iter_mut().zip(["transA", "transB"]) {
        if s.node.int_or(flip, 0)? != 0 {
            *x = s.op("Transpose", &[*x], &[("perm", vec![1_i64, 0].into())])?;
        }
    }
    let [a, b] = operands;
    let (za, zb) = (s.input(2)?, s.input(5)?);
    let mut sums = s.op("MatMulInteger", &[a, b, za, zb], &[])?;
    if let Some(c) = s.optional(6) {
        sums = s.op("Add", &[sums, c], &[])?;
    }
    let (a, b) = (scale(s, 1, None)?, scale(s, 4, None)?);
    let mut y = scaled(s, sums, a, b)?;
    let alpha = s.node.float_or("alpha", 1.0)?;
    if alpha != 1.0 {
        let alpha = s.constant(crate::Tensor::scalar(alpha))?;
        y = s.op("Mul", &[y, alpha], &[])?;
    }
    if s.optional(7).is_some() {
        y = quantised(s, y, 7, 8)?;
    }
    Ok(vec![y])
}

/// The product of two quantised matrices as f32, perhaps with a bias.
pub(in crate::ops) static MATMUL_INTEGER_TO_FLOAT: OpDef = OpDef {
    name: "MatMulIntegerToFloat",
    inputs: &[
        Port::required("A", BYTES),
        Port::required("B", BYTES),
        Port::required("a_scale", F32S),
        Port::required("b_scale", F32S),
        Port::optional("a_zero_point", BYTES),
        Port::optional("b_zero_point", BYTES),
        Port::optional("bias", F32S),
    ],
    outputs: &[Port::required("Y", F32S)],
    infer: |i| infer(i, to_float),
    prepare: |p| prepare(p, to_float),
    cases: || {
        vec![
            Case::new("MatMulIntegerToFloat", 1, "a bias")
                .domain(MICROSOFT)
                .input(filled(&[1, 2], &[3_u8, 5]))
                .constant(filled(&[2, 2], &[1_i8, -1, 2, 3]))
                .input(filled(&[], &[0.5_f32]))
                .constant(filled(&[2], &[2.0_f32, 4.0]))
                .input(filled(&[], &[1_u8]))
                .absent()
                .input(filled(&[2], &[0.5_f32, -0.5]))
                .output(filled(&[1, 2], &[10.5_f32, 19.5])),
        ]
    },
    ..BASE
};

fn to_float(s: &mut Sketch<'_>) -> Result<Vec<ValueId>> {
    let inputs = [Some(s.input(0)?), Some(s.input(1)?), s.optional(4), s.optional(5)];
    let sums = s.apply("MatMulInteger", &inputs, &[], 1)?[0];
    let (a, b) = (scale(s, 2, None)?, scale(s, 3, None)?);
    let y = scaled(s, sums, a, b)?;
    Ok(vec![match s.optional(6) {
        Some(bias) => s.op("Add", &[y, bias], &[])?,
        None => y,
    }])
}

/// The product of a matrix that is quantised as it comes and a quantised one, as f32.
pub(in crate::ops) static DYNAMIC_QUANTIZE_MATMUL: OpDef = OpDef {
    name: "DynamicQuantizeMatMul",
    inputs: &[
        Port::required("A", F32S),
        Port::required("B", BYTES),
        Port::required("b_scale", F32S),
        Port::optional("b_zero_point", BYTES),
        Port::optional("bias", F32S),
    ],
    outputs: &[Port::required("Y", F32S)],
    infer: |i| infer(i, dynamic),
    prepare: |p| prepare(p, dynamic),
    cases: || {
        vec![
            Case::new("DynamicQuantizeMatMul", 1, "whole numbers are exact")
                .domain(MICROSOFT)
                .input(filled(&[1, 2], &[0.0_f32, 255.0]))
                .constant(filled(&[2, 1], &[7_i8, 2]))
                .constant(filled(&[1], &[0.5_f32]))
                .constant(filled(&[1], &[0_i8]))
                .input(filled(&[1], &[1.0_f32]))
                .output(filled(&[1, 1], &[256.0_f32])),
        ]
    },
    ..BASE
};

fn dynamic(s: &mut Sketch<'_>) -> Result<Vec<ValueId>> {
    let (x, b) = (s.input(0)?, s.input(1)?);
    let made = s.apply("DynamicQuantizeLinear", &[Some(x)], &[], 3)?;
    let inputs = [Some(made[0]), Some(b), Some(made[2]), s.optional(3)];
    let sums = s.apply("MatMulInteger", &inputs, &[], 1)?[0];
    let b = scale(s, 2, None)?;
    let y = scaled(s, sums, made[1], b)?;
    Ok(vec![match s.optional(4) {
        Some(bias) => s.op("Add", &[y, bias], &[])?,
        None => y,
    }])
}
