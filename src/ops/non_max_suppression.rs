//! `NonMaxSuppression`.

use super::case::{Case, filled};
use super::def::types::{F32S, I64S};
use super::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::error::{Result, bail};
use crate::graph::Dim;
use crate::tensor::{DType, Tensor};

/// The boxes of each class that are left when those that overlap a better one are dropped: rows
/// of batch, class and box.
pub(super) static NON_MAX_SUPPRESSION: OpDef = OpDef {
    name: "NonMaxSuppression",
    domain: "",
    since: 10,
    attributes: &[AttributeDef::optional("center_point_box", AttributeKind::Int)],
    inputs: &[
        Port::required("boxes", F32S),
        Port::required("scores", F32S),
        Port::optional("max_output_boxes_per_class", I64S),
        Port::optional("iou_threshold", F32S),
        Port::optional("score_threshold", F32S),
    ],
    outputs: &[Port::required("selected_indices", I64S)],
    infer: |i| {
        let rows = i.fresh();
        i.set(0, Some(DType::I64), Some(vec![rows, Dim::fixed(3)]));
        Ok(())
    },
    batch: batch::mixes,
    cost: cost::reduction,
    prepare: |p| match p.node.int_or("center_point_box", 0)? {
        form @ 0..=1 => Ok(Box::new(Suppression { centred: form == 1 })),
        other => bail!(Graph, "attribute `center_point_box` is {other}, expected 0 or 1"),
    },
    cases,
};

#[derive(Debug)]
struct Suppression {
    centred: bool,
}

/// Two corners, the smaller coordinates first.
#[derive(Clone, Copy)]
struct Area {
    low: [f32; 2],
    high: [f32; 2],
}

impl Area {
    fn of(b: &[f32], centred: bool) -> Self {
        let [a, b, c, d] = [b[0], b[1], b[2], b[3]];
        let (p, q) = if centred {
            // x and y of the centre, width, height.
            ([b - d / 2.0, a - c / 2.0], [b + d / 2.0, a + c / 2.0])
        } else {
            ([a, b], [c, d])
        };
        Self { low: [p[0].min(q[0]), p[1].min(q[1])], high: [p[0].max(q[0]), p[1].max(q[1])] }
    }

    fn size(&self) -> f32 {
        (self.high[0] - self.low[0]) * (self.high[1] - self.low[1])
    }

    /// The shared area over that of both together.
    fn overlap(&self, other: &Self) -> f32 {
        let side =
            |k: usize| (self.high[k].min(other.high[k]) - self.low[k].max(other.low[k])).max(0.0);
        let shared = side(0) * side(1);
        let both = self.size() + other.size() - shared;
        if both > 0.0 { shared / both } else { 0.0 }
    }
}

impl CpuKernel for Suppression {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (boxes, scores) = (io.tensor(0)?, io.tensor(1)?);
        let (&[items, count, 4], &[also, classes, same]) =
            (&boxes.shape()[..], &scores.shape()[..])
        else {
            let (b, s) = (boxes.describe(), scores.describe());
            bail!(
                Shape,
                "boxes are {b} and scores {s}; [batch,boxes,4] and [batch,classes,boxes] \
                          are expected"
            );
        };
        if (items, count) != (also, same) {
            bail!(Shape, "boxes are {}, scores {}", boxes.describe(), scores.describe());
        }
        let number = |k: usize, default: f32| -> Result<f32> {
            match io.optional(k)? {
                None => Ok(default),
                Some(t) => match t.as_slice::<f32>()? {
                    [v] => Ok(*v),
                    _ => bail!(Shape, "input {k} is {}, expected one number", t.describe()),
                },
            }
        };
        let most = match io.optional(2)?.map(Tensor::to_i64s).transpose()?.as_deref() {
            None => 0,
            Some([n]) => usize::try_from(*n).unwrap_or(0),
            Some(all) => bail!(Shape, "`max_output_boxes_per_class` is {all:?}"),
        };
        let (limit, least) = (number(3, 0.0)?, number(4, f32::NEG_INFINITY)?);
        let (boxes, scores) = (boxes.as_slice::<f32>()?, scores.as_slice::<f32>()?);
        let mut rows: Vec<i64> = Vec::new();
        for item in 0..items {
            let areas: Vec<Area> = boxes[item * count * 4..][..count * 4]
                .chunks_exact(4)
                .map(|b| Area::of(b, self.centred))
                .collect();
            for class in 0..classes {
                let scores = &scores[(item * classes + class) * count..][..count];
                let mut order: Vec<usize> = (0..count).filter(|k| scores[*k] > least).collect();
                // Of equal scores the first box wins.
                order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
                let mut kept: Vec<usize> = Vec::new();
                for k in order {
                    if kept.len() >= most {
                        break;
                    }
                    if kept.iter().all(|other| areas[k].overlap(&areas[*other]) <= limit) {
                        kept.push(k);
                        rows.extend([item as i64, class as i64, k as i64]);
                    }
                }
            }
        }
        io.emit(Tensor::new([rows.len() / 3, 3], rows)?);
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    let boxes = [
        0.0_f32, 0.0, 1.0, 1.0, 0.0, 0.1, 1.0, 1.1, 0.0, -0.1, 1.0, 0.9, 0.0, 10.0, 1.0, 11.0, 0.0,
        10.1, 1.0, 11.1, 0.0, 100.0, 1.0, 101.0,
    ];
    let scores = [0.9_f32, 0.75, 0.6, 0.95, 0.5, 0.3];
    let new = |name: &str| {
        Case::new("NonMaxSuppression", 11, name)
            .input(filled(&[1, 6, 4], &boxes))
            .input(filled(&[1, 1, 6], &scores))
    };
    vec![
        new("of those that overlap the best stays")
            .input(filled(&[1], &[3_i64]))
            .input(filled(&[1], &[0.5_f32]))
            .input(filled(&[1], &[0.0_f32]))
            .output(filled(&[3, 3], &[0_i64, 0, 3, 0, 0, 0, 0, 0, 5])),
        new("too low scores")
            .input(filled(&[], &[9_i64]))
            .input(filled(&[], &[0.5_f32]))
            .input(filled(&[], &[0.4_f32]))
            .output(filled(&[2, 3], &[0_i64, 0, 3, 0, 0, 0])),
        new("none without a number").output(filled::<i64>(&[0, 3], &[])),
        Case::new("NonMaxSuppression", 11, "centres and sizes")
            .attr("center_point_box", 1)
            .input(filled(&[1, 2, 4], &[0.5_f32, 0.5, 1.0, 1.0, 0.5, 0.6, 1.0, 1.0]))
            .input(filled(&[1, 1, 2], &[0.2_f32, 0.3]))
            .input(filled(&[1], &[5_i64]))
            .input(filled(&[1], &[0.5_f32]))
            .output(filled(&[1, 3], &[0_i64, 0, 1])),
    ]
}
