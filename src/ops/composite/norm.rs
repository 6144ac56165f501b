//! Normalisations: `RMSNormalization`, `SimplifiedLayerNormalization`, and those of a sum.

use super::{BASE, MICROSOFT, Sketch, infer, prepare};
use crate::error::{Result, bail};
use crate::graph::ValueId;
use crate::ops::batch::{BatchFlow, BatchQuery};
use crate::ops::case::{Case, filled};
use crate::ops::def::types::FLOATS;
use crate::ops::{AttributeDef, AttributeKind, OpDef, Port};
use crate::tensor::{DType, normalise_axis};

const EPSILON: AttributeDef = AttributeDef::optional("epsilon", AttributeKind::Float);

/// `X / √(mean(X²) + epsilon) · scale` over all axes from `axis` on.
pub(in crate::ops) static RMS_NORMALIZATION: OpDef = OpDef {
    name: "RMSNormalization",
    domain: "",
    since: 23,
    attributes: &[
        AttributeDef::optional("axis", AttributeKind::Int),
        EPSILON,
        AttributeDef::optional("stash_type", AttributeKind::Int),
    ],
    inputs: &[Port::required("X", FLOATS), Port::required("scale", FLOATS)],
    outputs: &[Port::required("Y", FLOATS)],
    infer: |i| infer(i, rms),
    batch: rows,
    prepare: |p| prepare(p, rms),
    cases: || {
        vec![
            Case::new("RMSNormalization", 23, "the last axis")
                .input(filled(&[2, 2], &[3.0_f32, 4.0, 0.0, 2.0]))
                .input(filled(&[2], &[1.0_f32, 2.0]))
                .output(filled(&[2, 2], &[0.848_528_f32, 2.262_741_6, 0.0, 2.828_423_5]))
                .close(1e-5, 1e-5),
        ]
    },
    ..BASE
};

/// [`RMS_NORMALIZATION`], as exporters wrote it before there was one.
pub(in crate::ops) static SIMPLIFIED_LAYER_NORMALIZATION: OpDef = OpDef {
    name: "SimplifiedLayerNormalization",
    domain: "",
    since: 1,
    attributes: &[
        AttributeDef::optional("axis", AttributeKind::Int),
        EPSILON,
        AttributeDef::optional("stash_type", AttributeKind::Int),
    ],
    inputs: &[Port::required("X", FLOATS), Port::required("scale", FLOATS)],
    outputs: &[Port::required("Y", FLOATS), Port::optional("inv_std_var", FLOATS)],
    infer: |i| infer(i, rms_with_deviation),
    batch: rows,
    prepare: |p| prepare(p, rms_with_deviation),
    cases: || {
        vec![
            Case::new("SimplifiedLayerNormalization", 1, "without the deviation")
                .input(filled(&[1, 2], &[3.0_f32, 4.0]))
                .input(filled(&[2], &[1.0_f32, 2.0]))
                .output(filled(&[1, 2], &[0.848_528_f32, 2.262_741_6]))
                .close(1e-5, 1e-5),
            Case::new("SimplifiedLayerNormalization", 1, "with the deviation")
                .input(filled(&[1, 2], &[3.0_f32, 4.0]))
                .input(filled(&[2], &[1.0_f32, 1.0]))
                .output(filled(&[1, 2], &[0.848_528_f32, 1.131_370_8]))
                .output(filled(&[1, 1], &[0.282_842_6_f32]))
                .close(1e-5, 1e-5),
        ]
    },
    ..BASE
};

/// `LayerNormalization` of the sum of the input, another one and perhaps a bias.
pub(in crate::ops) static SKIP_LAYER_NORMALIZATION: OpDef = OpDef {
    name: "SkipLayerNormalization",
    attributes: &[EPSILON],
    inputs: &[
        Port::required("input", FLOATS),
        Port::required("skip", FLOATS),
        Port::required("gamma", FLOATS),
        Port::optional("beta", FLOATS),
        Port::optional("bias", FLOATS),
    ],
    outputs: SKIPPED,
    infer: |i| infer(i, skip_layer),
    batch: rows,
    prepare: |p| prepare(p, skip_layer),
    cases: || {
        vec![
            Case::new("SkipLayerNormalization", 1, "a bias and the sum")
                .domain(MICROSOFT)
                .attr("epsilon", 0.0_f32)
                .input(filled(&[1, 1, 2], &[1.0_f32, 2.0]))
                .input(filled(&[1, 1, 2], &[0.5_f32, 2.5]))
                .input(filled(&[2], &[2.0_f32, 3.0]))
                .input(filled(&[2], &[0.0_f32, 1.0]))
                .input(filled(&[2], &[0.5_f32, 0.5]))
                .output(filled(&[1, 1, 2], &[-2.0_f32, 4.0]))
                .output(filled(&[1, 1, 1], &[3.5_f32]))
                .output(filled(&[1, 1, 1], &[0.666_666_7_f32]))
                .output(filled(&[1, 1, 2], &[2.0_f32, 5.0]))
                .close(1e-5, 1e-5),
        ]
    },
    ..BASE
};

const SKIPPED: &[Port] = &[
    Port::required("output", FLOATS),
    Port::optional("mean", FLOATS),
    Port::optional("inv_std_var", FLOATS),
    Port::optional("input_skip_bias_sum", FLOATS),
];

/// [`RMS_NORMALIZATION`] of the sum of the input, another one and perhaps a bias.
pub(in crate::ops) static SKIP_SIMPLIFIED_LAYER_NORMALIZATION: OpDef = OpDef {
    name: "SkipSimplifiedLayerNormalization",
    attributes: &[EPSILON],
    inputs: &[
        Port::required("input", FLOATS),
        Port::required("skip", FLOATS),
        Port::required("gamma", FLOATS),
        Port::optional("bias", FLOATS),
    ],
    outputs: SKIPPED,
    infer: |i| infer(i, skip_rms),
    batch: rows,
    prepare: |p| prepare(p, skip_rms),
    cases: || {
        vec![
            Case::new("SkipSimplifiedLayerNormalization", 1, "of a sum")
                .domain(MICROSOFT)
                .attr("epsilon", 0.0_f32)
                .input(filled(&[1, 2], &[1.0_f32, 2.0]))
                .input(filled(&[1, 2], &[2.0_f32, 2.0]))
                .input(filled(&[2], &[1.0_f32, 10.0]))
                .output(filled(&[1, 2], &[0.848_528_15_f32, 11.313_708]))
                .close(1e-5, 1e-5),
        ]
    },
    ..BASE
};

/// Rows of the last axis stay rows; the inputs that are summed carry the batch alike.
fn rows(q: &BatchQuery<'_>) -> BatchFlow {
    let Some(carrier) = q.axes.first().copied().flatten() else {
        return super::batch::mixes(q);
    };
    let rank = q.rank(0).ok_or("the rank of its input is not known")?;
    let axis = q.node.int_or("axis", -1).map_err(|e| e.to_string())?;
    let axis = normalise_axis(axis, rank).map_err(|e| e.to_string())?;
    let skip = q.node.op.starts_with("Skip");
    for (k, other) in q.axes.iter().enumerate().skip(1) {
        let alike = if skip && k == 1 { *other == Some(carrier) } else { other.is_none() };
        if !alike {
            return Err("its inputs do not carry the batch alike".to_owned());
        }
    }
    if carrier >= axis {
        return Err("it normalises over the batch axis".to_owned());
    }
    q.everywhere(Some(carrier))
}

/// `x` over its root mean square, and one over that.
fn divided(
    s: &mut Sketch<'_>,
    x: ValueId,
    scale: ValueId,
    default: f32,
    axis: i64,
    rank: usize,
) -> Result<[ValueId; 2]> {
    let dtype = s.dtype(0)?;
    let first = normalise_axis(axis, rank)? as i64;
    let axes: Vec<i64> = (first..rank as i64).collect();
    // Sums of squares of halves would overflow.
    let computed = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let wide = s.cast(x, computed)?;
    let squares = s.op("Mul", &[wide, wide], &[])?;
    let axes = s.ints(&axes)?;
    let mean = s.op("ReduceMean", &[squares, axes], &[])?;
    let epsilon = s.node.float_or("epsilon", default)?;
    let epsilon = s.constant(crate::tensor::cast(&crate::Tensor::scalar(epsilon), computed)?)?;
    let sum = s.op("Add", &[mean, epsilon], &[])?;
    let root = s.op("Sqrt", &[sum], &[])?;
    let one_over = s.op("Reciprocal", &[root], &[])?;
    let divided = s.op("Mul", &[wide, one_over], &[])?;
    let scale = s.cast(scale, computed)?;
    let scaled = s.op("Mul", &[divided, scale], &[])?;
    Ok([s.cast(scaled, dtype)?, one_over])
}

fn rms(s: &mut Sketch<'_>) -> Result<Vec<ValueId>> {
    Ok(rms_with_deviation(s)?[..1].to_vec())
}

fn rms_with_deviation(s: &mut Sketch<'_>) -> Result<Vec<ValueId>> {
    let (axis, rank) = (s.node.int_or("axis", -1)?, s.dims(0)?.len());
    let (x, scale) = (s.input(0)?, s.input(1)?);
    Ok(divided(s, x, scale, 1e-5, axis, rank)?.to_vec())
}

fn sum(s: &mut Sketch<'_>, bias: usize) -> Result<ValueId> {
    let (x, skip) = (s.input(0)?, s.input(1)?);
    let sum = s.op("Add", &[x, skip], &[])?;
    match s.optional(bias) {
        Some(bias) => s.op("Add", &[sum, bias], &[]),
        None => Ok(sum),
    }
}

fn skip_layer(s: &mut Sketch<'_>) -> Result<Vec<ValueId>> {
    let sum = sum(s, 4)?;
    let epsilon = s.node.float_or("epsilon", 1e-12)?;
    let gamma = s.input(2)?;
    let inputs = [Some(sum), Some(gamma), s.optional(3)];
    // The statistics cost time; most models do not ask for them.
    let outputs = if s.node.outputs[1..].iter().take(2).any(Option::is_some) { 3 } else { 1 };
    let made = s.apply("LayerNormalization", &inputs, &[("epsilon", epsilon.into())], outputs)?;
    let statistic = |k: usize| made.get(k).copied().unwrap_or(sum);
    Ok(vec![made[0], statistic(1), statistic(2), sum])
}

fn skip_rms(s: &mut Sketch<'_>) -> Result<Vec<ValueId>> {
    if s.node.outputs.get(1).copied().flatten().is_some() {
        bail!(Unsupported, "its output `mean` is not defined");
    }
    let sum = sum(s, 3)?;
    let rank = s.dims(0)?.len();
    let gamma = s.input(2)?;
    let [y, deviation] = divided(s, sum, gamma, 1e-12, -1, rank)?;
    Ok(vec![y, deviation, deviation, sum])
}
