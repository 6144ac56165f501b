//! Quantised element-wise operators, pools and joins: each computes in f32 between a
//! dequantisation and a quantisation.

use super::quantized::{BYTES, dequantised, quantised};
use super::{BASE, MICROSOFT, Sketch, infer, prepare};
use crate::error::{Result, bail};
use crate::graph::ValueId;
use crate::ops::case::{Case, filled};
use crate::ops::def::types::F32S;
use crate::ops::window::{AUTO_PAD, CEIL_MODE, DILATIONS, KERNEL_SHAPE, PADS, STRIDES};
use crate::ops::{AttributeDef, AttributeKind, OpDef, Port};
use crate::tensor::DType;

const ONE: &[Port] = &[
    Port::required("X", BYTES),
    Port::required("x_scale", F32S),
    Port::optional("x_zero_point", BYTES),
    Port::required("y_scale", F32S),
    Port::optional("y_zero_point", BYTES),
];
const TWO: &[Port] = &[
    Port::required("A", BYTES),
    Port::required("A_scale", F32S),
    Port::optional("A_zero_point", BYTES),
    Port::required("B", BYTES),
    Port::required("B_scale", F32S),
    Port::optional("B_zero_point", BYTES),
    Port::required("C_scale", F32S),
    Port::optional("C_zero_point", BYTES),
];

macro_rules! rows {
    ($($(#[$doc:meta])* $def:ident $name:literal $attributes:expr, $inputs:expr, $build:expr,
        $cases:expr;)*) => { $(
        $(#[$doc])*
        pub(in crate::ops) static $def: OpDef = OpDef {
            name: $name,
            attributes: $attributes,
            inputs: $inputs,
            outputs: &[Port::required("Y", BYTES)],
            infer: |i| infer(i, $build),
            prepare: |p| prepare(p, $build),
            cases: $cases,
            ..BASE
        };
    )* };
}
rows! {
    /// The sum of two.
    QLINEAR_ADD "QLinearAdd" &[], TWO, |s| pair(s, "Add"), || pair_cases("QLinearAdd", [14, 7]);
    /// The product of two.
    QLINEAR_MUL "QLinearMul" &[], TWO, |s| pair(s, "Mul"), || pair_cases("QLinearMul", [22, 5]);
    /// `1 / (1 + e^-x)`.
    QLINEAR_SIGMOID "QLinearSigmoid" &[], ONE, |s| unary(s, "Sigmoid", &[]),
        || vec![one("QLinearSigmoid").output(filled(&[2], &[50_u8, 88]))];
    /// `x`, or `alpha · x` below 0.
    QLINEAR_LEAKY_RELU "QLinearLeakyRelu"
        &[AttributeDef::optional("alpha", AttributeKind::Float)], ONE,
        |s| unary(s, "LeakyRelu", &["alpha"]),
        || vec![
            one("QLinearLeakyRelu").attr("alpha", 0.1_f32).output(filled(&[2], &[0_u8, 200])),
        ];
    /// The mean of each channel.
    QLINEAR_GLOBAL_AVERAGE_POOL "QLinearGlobalAveragePool"
        &[AttributeDef::optional("channels_last", AttributeKind::Int)], ONE,
        |s| pooled(s, "GlobalAveragePool", &[]),
        || vec![
            Case::new("QLinearGlobalAveragePool", 1, "the channel at the end").domain(MICROSOFT)
                .attr("channels_last", 1)
                .input(filled(&[1, 1, 2, 2], &[10_u8, 20, 30, 40]))
                .input(filled(&[], &[1.0_f32])).input(filled(&[], &[0_u8]))
                .input(filled(&[], &[2.0_f32])).input(filled(&[], &[1_u8]))
                .output(filled(&[1, 1, 1, 2], &[11_u8, 16])),
        ];
    /// The mean under each window.
    QLINEAR_AVERAGE_POOL "QLinearAveragePool"
        &[
            AUTO_PAD, CEIL_MODE, DILATIONS, KERNEL_SHAPE, PADS, STRIDES,
            AttributeDef::optional("channels_last", AttributeKind::Int),
            AttributeDef::optional("count_include_pad", AttributeKind::Int),
        ],
        ONE,
        |s| pooled(s, "AveragePool", &[
            "auto_pad", "ceil_mode", "count_include_pad", "dilations", "kernel_shape", "pads",
            "strides",
        ]),
        || vec![
            Case::new("QLinearAveragePool", 1, "two by one").domain(MICROSOFT)
                .attr("kernel_shape", vec![2_i64])
                .input(filled(&[1, 1, 3], &[10_u8, 20, 30]))
                .input(filled(&[], &[1.0_f32])).input(filled(&[], &[0_u8]))
                .input(filled(&[], &[1.0_f32])).input(filled(&[], &[1_u8]))
                .output(filled(&[1, 1, 2], &[16_u8, 26])),
        ];
    /// The softmax along an axis; before version 13 over all axes from it on.
    QLINEAR_SOFTMAX "QLinearSoftmax"
        &[
            AttributeDef::optional("axis", AttributeKind::Int),
            AttributeDef::optional("opset", AttributeKind::Int),
        ],
        ONE, softmax,
        || vec![
            Case::new("QLinearSoftmax", 1, "two classes").domain(MICROSOFT).attr("opset", 13)
                .input(filled(&[1, 2], &[10_u8, 10]))
                .input(filled(&[], &[1.0_f32])).input(filled(&[], &[0_u8]))
                .input(filled(&[], &[0.25_f32])).input(filled(&[], &[3_u8]))
                .output(filled(&[1, 2], &[5_u8, 5])),
        ];
    /// Inputs joined along an axis; the output's scale and zero point come first.
    QLINEAR_CONCAT "QLinearConcat"
        &[AttributeDef::required("axis", AttributeKind::Int)],
        &[
            Port::required("Y_scale", F32S),
            Port::required("Y_zero_point", BYTES),
            Port::variadic("inputs", &[DType::U8, DType::I8, DType::F32], 3),
        ],
        concat,
        || vec![
            Case::new("QLinearConcat", 1, "two scales").domain(MICROSOFT).attr("axis", 0)
                .input(filled(&[], &[1.0_f32])).input(filled(&[], &[0_u8]))
                .input(filled(&[1], &[10_u8])).input(filled(&[], &[2.0_f32])).input(filled(&[], &[4_u8]))
                .input(filled(&[2], &[7_u8, 8])).input(filled(&[], &[1.0_f32])).input(filled(&[], &[0_u8]))
                .output(filled(&[3], &[12_u8, 7, 8])),
        ];
}

/// 0 and 2; the output in hundredths.
fn one(op: &'static str) -> Case {
    Case::new(op, 1, "in hundredths")
        .domain(MICROSOFT)
        .input(filled(&[2], &[128_u8, 255]))
        .input(filled(&[], &[2.0_f32 / 127.0]))
        .input(filled(&[], &[128_u8]))
        .input(filled(&[], &[0.01_f32]))
        .input(filled(&[], &[0_u8]))
}

/// 3 and 1 with 4 and 2.
fn pair_cases(op: &'static str, want: [u8; 2]) -> Vec<Case> {
    vec![
        Case::new(op, 1, "two pairs")
            .domain(MICROSOFT)
            .input(filled(&[2], &[13_u8, 11]))
            .input(filled(&[], &[1.0_f32]))
            .input(filled(&[], &[10_u8]))
            .input(filled(&[2], &[8_u8, 4]))
            .input(filled(&[], &[0.5_f32]))
            .absent()
            .input(filled(&[], &[0.6_f32]))
            .input(filled(&[], &[2_u8]))
            .output(filled(&[2], &want)),
    ]
}

fn pair(s: &mut Sketch<'_>, op: &str) -> Result<Vec<ValueId>> {
    let (a, b) = (dequantised(s, 0)?, dequantised(s, 3)?);
    let y = s.op(op, &[a, b], &[])?;
    Ok(vec![quantised(s, y, 6, 7)?])
}

fn unary(s: &mut Sketch<'_>, op: &str, attributes: &[&'static str]) -> Result<Vec<ValueId>> {
    let x = dequantised(s, 0)?;
    let attributes = s.passed(attributes);
    let y = s.op(op, &[x], &attributes)?;
    Ok(vec![quantised(s, y, 3, 4)?])
}

fn pooled(s: &mut Sketch<'_>, op: &str, attributes: &[&'static str]) -> Result<Vec<ValueId>> {
    let mut x = dequantised(s, 0)?;
    let rank = s.dims(0)?.len() as i64;
    let last = s.node.int_or("channels_last", 0)? != 0;
    if last && rank < 2 {
        bail!(Shape, "an image with {rank} axes");
    }
    if last {
        let order: Vec<i64> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
        x = s.op("Transpose", &[x], &[("perm", order.into())])?;
    }
    let attributes = s.passed(attributes);
    let mut y = s.op(op, &[x], &attributes)?;
    if last {
        let order: Vec<i64> = [0].into_iter().chain(2..rank).chain([1]).collect();
        y = s.op("Transpose", &[y], &[("perm", order.into())])?;
    }
    Ok(vec![quantised(s, y, 3, 4)?])
}

fn softmax(s: &mut Sketch<'_>) -> Result<Vec<ValueId>> {
    let x = dequantised(s, 0)?;
    let old = s.node.int_or("opset", 13)? < 13;
    let axis = s.node.int_or("axis", if old { 1 } else { -1 })?;
    let y = if old {
        let flat = s.op("Flatten", &[x], &[("axis", axis.into())])?;
        let flat = s.op("Softmax", &[flat], &[("axis", 1.into())])?;
        let shape = s.op("Shape", &[x], &[])?;
        s.op("Reshape", &[flat, shape], &[])?
    } else {
        s.op("Softmax", &[x], &[("axis", axis.into())])?
    };
    Ok(vec![quantised(s, y, 3, 4)?])
}

fn concat(s: &mut Sketch<'_>) -> Result<Vec<ValueId>> {
    let count = s.node.inputs.len();
    if count < 5 || count % 3 != 2 {
        bail!(Graph, "it has {count} inputs; a scale and a zero point, then threes are expected");
    }
    let mut parts = Vec::new();
    for k in (2..count).step_by(3) {
        parts.push(dequantised(s, k)?);
    }
    let attributes = s.passed(&["axis"]);
    let y = s.op("Concat", &parts, &attributes)?;
    Ok(vec![quantised(s, y, 0, 1)?])
}
