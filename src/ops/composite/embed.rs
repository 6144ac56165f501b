//! `EmbedLayerNormalization`: what a BERT starts with.

use super::{BASE, MICROSOFT, Sketch, infer, prepare};
use crate::error::Result;
use crate::graph::ValueId;
use crate::ops::batch::{BatchFlow, BatchQuery};
use crate::ops::case::{Case, filled};
use crate::ops::def::types::{FLOATS, INDICES};
use crate::ops::{AttributeDef, AttributeKind, OpDef, Port};
use crate::tensor::{DType, Tensor};

const I32S: &[DType] = &[DType::I32];

/// `LayerNormalization` of the sum of the embeddings of words, positions and segments; how many
/// words the mask leaves, and the sum, as further outputs.
pub(in crate::ops) static EMBED_LAYER_NORMALIZATION: OpDef = OpDef {
    name: "EmbedLayerNormalization",
    attributes: &[
        AttributeDef::optional("epsilon", AttributeKind::Float),
        AttributeDef::optional("mask_index_type", AttributeKind::Int),
    ],
    inputs: &[
        Port::required("input_ids", INDICES),
        Port::optional("segment_ids", INDICES),
        Port::required("word_embedding", FLOATS),
        Port::required("position_embedding", FLOATS),
        Port::optional("segment_embedding", FLOATS),
        Port::required("gamma", FLOATS),
        Port::required("beta", FLOATS),
        Port::optional("mask", I32S),
        Port::optional("position_ids", INDICES),
    ],
    outputs: &[
        Port::required("output", FLOATS),
        Port::optional("mask_index", I32S),
        Port::optional("embedding_sum", FLOATS),
    ],
    infer: |i| infer(i, embed),
    batch: items,
    prepare: |p| prepare(p, embed),
    cases,
    ..BASE
};

/// Every input of ids carries the batch first, no embedding carries it.
fn items(q: &BatchQuery<'_>) -> BatchFlow {
    if q.is_free() {
        return q.everywhere(None);
    }
    let given = |k: usize| q.node.inputs.get(k).copied().flatten().is_some();
    let axis = |k: usize| q.axes.get(k).copied().flatten();
    let of_items = |k: usize| !given(k) || axis(k) == Some(0);
    let shared = (2..7).all(|k| axis(k).is_none());
    let positions = of_items(8) || (axis(8).is_none() && q.rank(8) == Some(1));
    if axis(0) == Some(0) && of_items(1) && of_items(7) && positions && shared {
        return q.everywhere(Some(0));
    }
    Err("not all of its ids carry the batch on their first axis".to_owned())
}

fn embed(s: &mut Sketch<'_>) -> Result<Vec<ValueId>> {
    let (ids, words, positions) = (s.input(0)?, s.input(2)?, s.input(3)?);
    let words = s.op("Gather", &[words, ids], &[])?;
    let positions = match s.optional(8) {
        Some(ids) => s.op("Gather", &[positions, ids], &[])?,
        None => {
            let length = s.op("Shape", &[ids], &[("start", 1i64.into()), ("end", 2i64.into())])?;
            let zero = s.ints(&[0])?;
            s.op("Slice", &[positions, zero, length, zero], &[])?
        }
    };
    let mut sum = s.op("Add", &[words, positions], &[])?;
    if let (Some(ids), Some(segments)) = (s.optional(1), s.optional(4)) {
        let segments = s.op("Gather", &[segments, ids], &[])?;
        sum = s.op("Add", &[sum, segments], &[])?;
    }
    let epsilon = s.node.float_or("epsilon", 1e-12)?;
    let (gamma, beta) = (s.input(5)?, s.input(6)?);
    let y = s.op("LayerNormalization", &[sum, gamma, beta], &[("epsilon", epsilon.into())])?;
    let left = match s.optional(7) {
        Some(mask) => {
            let one = s.constant(Tensor::scalar(1i32))?;
            let left = s.op("Equal", &[mask, one], &[])?;
            let left = s.cast(left, DType::I32)?;
            let axis = s.ints(&[1])?;
            s.op("ReduceSum", &[left, axis], &[("keepdims", 0i64.into())])?
        }
        None => {
            let items = s.op("Shape", &[ids], &[("start", 0i64.into()), ("end", 1i64.into())])?;
            let none = filled(&[1], &[0i32]);
            s.op("ConstantOfShape", &[items], &[("value", none.into())])?
        }
    };
    let mut made = vec![y, left, sum];
    made.truncate(s.node.outputs.len());
    Ok(made)
}

/// What is expected are ONNX Runtime's results.
fn cases() -> Vec<Case> {
    let new = |name: &str| {
        Case::new("EmbedLayerNormalization", 1, name).domain(MICROSOFT).close(2e-6, 2e-6)
    };
    let ids = filled(&[1, 3], &[1i32, 0, 2]);
    let words = [-0.575f32, 0.05, 0.675, -0.325, 0.3, -0.7, -0.075, 0.55, -0.45, 0.175, 0.8, -0.2];
    let positions = [
        -0.575f32, 0.3, -0.45, 0.425, -0.325, 0.55, -0.2, 0.675, -0.075, 0.8, 0.05, -0.7, 0.175,
        -0.575, 0.3, -0.45,
    ];
    let segments = [-0.575f32, -0.2, 0.175, 0.55, -0.7, -0.325, 0.05, 0.425];
    let scales = |case: Case| {
        case.constant(filled(&[4], &[1f32, 0.5, 2., 1.]))
            .constant(filled(&[4], &[0f32, 0.25, 0., -1.]))
    };
    let segmented = new("segments, a mask and the sum")
        .attr("epsilon", 1e-5f32)
        .input(ids.clone())
        .input(filled(&[1, 3], &[0i32, 1, 1]))
        .constant(filled(&[3, 4], &words))
        .constant(filled(&[4, 4], &positions))
        .constant(filled(&[2, 4], &segments));
    let plain = new("given positions")
        .input(ids)
        .absent()
        .constant(filled(&[3, 4], &words))
        .constant(filled(&[4, 4], &positions))
        .absent();
    vec![
        scales(segmented)
            .input(filled(&[1, 3], &[1i32, 1, 0]))
            .output(filled(
                &[1, 3, 4],
                &[
                    -0.833_791_9f32,
                    -0.033_489_257,
                    -0.600_330_2,
                    0.700_935_5,
                    -1.700_935_5,
                    0.400_082_53,
                    1.133_957,
                    -0.166_208_09,
                    -1.382_037_3,
                    0.650_063_4,
                    2.182_164_2,
                    -1.509_171_7,
                ],
            ))
            .output(filled(&[1], &[2i32]))
            .output(filled(
                &[1, 3, 4],
                &[
                    -0.85f32, -0.6, -0.35, 1.525, -1.6, 0.275, 0.525, 0.775, -1.225, 0.65, 0.9,
                    -0.475,
                ],
            )),
        scales(plain)
            .absent()
            .input(filled(&[1, 3], &[2i32, 0, 1]))
            .output(filled(
                &[1, 3, 4],
                &[
                    1.341_640_7f32,
                    0.473_606_82,
                    -0.894_427_4,
                    -2.341_640_7,
                    -1.713_274_6,
                    0.639_380_6,
                    1.142_183_1,
                    -0.636_578_1,
                    -1.713_274_6,
                    0.639_380_6,
                    1.142_183_1,
                    -0.636_578_1,
                ],
            ))
            .output(filled(&[1], &[0i32])),
    ]
}
