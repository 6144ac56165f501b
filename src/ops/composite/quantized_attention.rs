//! `QAttention`: attention whose input and weights are quantised.

use super::quantized::BYTES;
use super::{BASE, MICROSOFT, Sketch, infer, prepare};
use crate::error::{Result, bail};
use crate::graph::ValueId;
use crate::ops::case::{Case, filled};
use crate::ops::def::types::F32S;
use crate::ops::{AttributeDef, AttributeKind, OpDef, Port};
use crate::tensor::{DType, Tensor, cast};

/// `Attention` of ONNX Runtime over a quantised input and quantised weights, which may have a scale
/// for each column.
pub(in crate::ops) static QATTENTION: OpDef = OpDef {
    name: "QAttention",
    attributes: &[
        AttributeDef::optional("do_rotary", AttributeKind::Int),
        AttributeDef::optional("mask_filter_value", AttributeKind::Float),
        AttributeDef::required("num_heads", AttributeKind::Int),
        AttributeDef::optional("past_present_share_buffer", AttributeKind::Int),
        AttributeDef::optional("scale", AttributeKind::Float),
        AttributeDef::optional("unidirectional", AttributeKind::Int),
    ],
    inputs: &[
        Port::required("input", BYTES),
        Port::required("weight", BYTES),
        Port::required("bias", F32S),
        Port::required("input_scale", F32S),
        Port::required("weight_scale", F32S),
        Port::optional("mask_index", &[DType::I32]),
        Port::optional("input_zero_point", BYTES),
        Port::optional("weight_zero_point", BYTES),
        Port::optional("past", F32S),
    ],
    outputs: &[Port::required("output", F32S), Port::optional("present", F32S)],
    infer: |i| infer(i, attention),
    prepare: |p| prepare(p, attention),
    cases,
    ..BASE
};

const ATTRIBUTES: &[&str] = &[
    "do_rotary",
    "mask_filter_value",
    "num_heads",
    "past_present_share_buffer",
    "scale",
    "unidirectional",
];

fn attention(s: &mut Sketch<'_>) -> Result<Vec<ValueId>> {
    let x = wide(s, 0, 3, 6)?;
    let weights = match constant(s, 1, 4, 7)? {
        Some(weights) => s.constant(weights)?,
        None => wide(s, 1, 4, 7)?,
    };
    let inputs = [Some(x), Some(weights), s.optional(2), s.optional(5), s.optional(8)];
    let (attributes, outputs) = (s.passed(ATTRIBUTES), s.node.outputs.len());
    let made = s.apply("Attention", &inputs, &attributes, outputs)?;
    if let Some(node) = s.graph.nodes.last_mut() {
        node.domain = MICROSOFT.to_owned();
        node.version = 1;
    }
    Ok(made)
}

/// An input as f32, less its zero point and times its scale, each for all of it or for each column.
fn wide(s: &mut Sketch<'_>, k: usize, scale: usize, zero: usize) -> Result<ValueId> {
    let (x, scale) = (s.input(k)?, s.input(scale)?);
    let mut x = s.cast(x, DType::F32)?;
    if let Some(zero) = s.optional(zero) {
        let zero = s.cast(zero, DType::F32)?;
        x = s.op("Sub", &[x, zero], &[])?;
    }
    s.op("Mul", &[x, scale], &[])
}

/// The same computed now, where everything is constant, so that it is packed once.
fn constant(s: &Sketch<'_>, k: usize, scale: usize, zero: usize) -> Result<Option<Tensor>> {
    let (Some(x), Some(scale)) = (s.known(k), s.known(scale)) else { return Ok(None) };
    let zero = match (s.optional(zero), s.known(zero)) {
        (Some(_), None) => return Ok(None),
        (_, zero) => zero.map_or_else(|| Ok(vec![0.0]), Tensor::to_f32s)?,
    };
    let scale = scale.to_f32s()?;
    let columns = x.shape().last().copied().unwrap_or(1).max(1);
    if [&scale, &zero].iter().any(|v| v.len() != 1 && v.len() != columns) {
        bail!(Shape, "there are {} scales and {} zero points", scale.len(), zero.len());
    }
    let of = |v: &[f32], column: usize| v[if v.len() == 1 { 0 } else { column }];
    let mut out = cast(x, DType::F32)?;
    for row in out.as_mut_slice::<f32>()?.chunks_mut(columns) {
        for (column, x) in row.iter_mut().enumerate() {
            *x = (*x - of(&zero, column)) * of(&scale, column);
        }
    }
    Ok(Some(out))
}

/// What is expected are ONNX Runtime's results. The weights stay within 7 bits, beyond which its
/// products saturate on processors without instructions for them.
fn cases() -> Vec<Case> {
    let new = |name: &str| Case::new("QAttention", 1, name).domain(MICROSOFT).attr("num_heads", 2);
    let bytes = |n: usize, step: usize, start: usize| (0..n).map(move |i| i * step + start);
    let x: Vec<u8> = bytes(24, 37, 11).map(|v| (v % 256) as u8).collect();
    let w: Vec<i8> = bytes(48, 29, 5).map(|v| ((v % 128) as i32 - 64) as i8).collect();
    let eighths = |n: usize, step: usize| -> Vec<f32> {
        (0..n).map(|i| ((i * step + 1) % 13) as f32 / 8.0 - 0.7).collect()
    };
    let x = filled(&[2, 3, 4], &x);
    let (w, b) = (filled(&[4, 12], &w), filled(&[12], &eighths(12, 5)));
    let scale = Tensor::scalar(0.02f32);
    let columns: Vec<f32> = (1..13).map(|i| i as f32 * 0.001).collect();
    let plain = [
        -0.271_261_2f32,
        0.946_154_83,
        1.433_534_6,
        0.013_407_078,
        0.119_018_175,
        1.015_282_3,
        0.585_142_85,
        0.047_562_756,
        -0.797_768_65,
        0.859_356_34,
        1.531_150_6,
        0.007_034_208,
        0.220_337_27,
        0.042_261_62,
        -1.238_289_2,
        -2.289_371_3,
        -1.169_94,
        -0.070_688_48,
        1.035_302_3,
        0.070_779,
        -1.208_579_1,
        -0.337_539_05,
        0.852_675_56,
        -0.377_082_5,
    ];
    let masked = [
        -0.957_847_65f32,
        0.703_439_53,
        1.291_032_6,
        0.124_627_84,
        -0.887_738_05,
        0.720_708_4,
        0.956_307_2,
        0.185_834_21,
        -0.964_810_4,
        0.701_839_3,
        1.337_230_8,
        0.115_722_455,
        -0.644_892_6,
        0.214_559_14,
        -0.355_157_94,
        -0.996_773_7,
        -0.717_522_86,
        0.201_884_45,
        0.462_218_55,
        0.052_393_49,
        -0.922_266_9,
        0.166_154_46,
        0.217_866_91,
        -0.261_251_12,
    ];
    vec![
        new("constant weights")
            .input(x.clone())
            .constant(w.clone())
            .constant(b.clone())
            .constant(scale.clone())
            .constant(Tensor::scalar(0.01f32))
            .absent()
            .constant(Tensor::scalar(128u8))
            .constant(Tensor::scalar(3i8))
            .output(filled(&[2, 3, 4], &plain))
            .close(5e-6, 1e-5),
        new("a scale for each column, and a mask")
            .input(x)
            .input(w)
            .input(b)
            .input(scale)
            .input(filled(&[12], &columns))
            .input(filled(&[2], &[3i32, 2]))
            .input(Tensor::scalar(120u8))
            .input(filled(&[12], &[0i8; 12]))
            .output(filled(&[2, 3, 4], &masked))
            .close(5e-6, 1e-5),
    ]
}
