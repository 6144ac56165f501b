//! `LinearRegressor` and `LinearClassifier`.

use super::{
    CLASSES, DOMAIN, FEATURES, Labels, Transform, best, floats, infer_classes, infer_targets, rows,
};
use crate::error::{Result, bail};
use crate::graph::Node;
use crate::ops::case::{Case, filled};
use crate::ops::def::types::F32S;
use crate::ops::text::strings;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor, element_count};

/// Rows times coefficients, plus intercepts.
pub(in crate::ops) static LINEAR_REGRESSOR: OpDef = OpDef {
    name: "LinearRegressor",
    domain: DOMAIN,
    since: 1,
    attributes: &[
        AttributeDef::optional("coefficients", AttributeKind::Floats),
        AttributeDef::optional("intercepts", AttributeKind::Floats),
        AttributeDef::optional("post_transform", AttributeKind::String),
        AttributeDef::optional("targets", AttributeKind::Int),
    ],
    inputs: &[Port::required("X", FEATURES)],
    outputs: &[Port::required("Y", F32S)],
    infer: |i| {
        let targets = i.node.int_or("targets", 1)?.max(1);
        infer_targets(i, Some(DType::F32), targets);
        Ok(())
    },
    batch: batch::leading,
    cost: cost::elementwise,
    prepare: |p| {
        let targets = p.node.int_or("targets", 1)?;
        let Some(targets) = usize::try_from(targets).ok().filter(|t| (1..1 << 30).contains(t))
        else {
            bail!(Graph, "attribute `targets` is {targets}, expected at least 1");
        };
        Ok(Box::new(Regressor { linear: Linear::of(p.node, targets)? }))
    },
    cases: || {
        let new = |name: &str| {
            Case::new("LinearRegressor", 1, name)
                .domain(DOMAIN)
                .attr("coefficients", vec![1.0_f32, 2.0, 3.0, 4.0])
                .attr("targets", 2)
        };
        vec![
            new("two targets")
                .attr("intercepts", vec![0.5_f32, -0.5])
                .input(filled(&[2, 2], &[1.0_f32, 1.0, 0.0, 2.0]))
                .output(filled(&[2, 2], &[3.5_f32, 6.5, 4.5, 7.5])),
            new("without intercepts")
                .input(filled(&[1, 2], &[1_i64, 0]))
                .output(filled(&[1, 2], &[1.0_f32, 3.0])),
        ]
    },
};

#[derive(Debug)]
struct Linear {
    coefficients: Vec<f32>,
    intercepts: Vec<f32>,
    targets: usize,
    transform: Transform,
}

impl Linear {
    fn of(node: &Node, targets: usize) -> Result<Self> {
        let (coefficients, intercepts) =
            (floats(node, "coefficients")?, floats(node, "intercepts")?);
        if targets == 0 || coefficients.len() % targets != 0 {
            bail!(Graph, "{} coefficients are given for {targets} targets", coefficients.len());
        }
        if !intercepts.is_empty() && intercepts.len() != targets {
            bail!(Graph, "{} intercepts are given for {targets} targets", intercepts.len());
        }
        Ok(Self { coefficients, intercepts, targets, transform: Transform::of(node)? })
    }

    /// The scores of all rows, before they are transformed.
    fn scores(&self, x: &Tensor) -> Result<(Vec<f32>, usize)> {
        let (x, rows, columns) = rows(x)?;
        if columns * self.targets != self.coefficients.len() {
            let n = self.coefficients.len();
            bail!(Shape, "{n} coefficients for {columns} columns and {} targets", self.targets);
        }
        element_count(&[rows, self.targets], 4)?;
        let x = x.as_slice::<f32>()?;
        let mut out = Vec::with_capacity(rows * self.targets);
        for r in 0..rows {
            let row = &x[r * columns..(r + 1) * columns];
            for t in 0..self.targets {
                let weights = &self.coefficients[t * columns..(t + 1) * columns];
                let sum: f32 = row.iter().zip(weights).map(|(a, b)| a * b).sum();
                out.push(sum + self.intercepts.get(t).copied().unwrap_or(0.0));
            }
        }
        Ok((out, rows))
    }
}

#[derive(Debug)]
struct Regressor {
    linear: Linear,
}

impl CpuKernel for Regressor {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (mut scores, rows) = self.linear.scores(io.tensor(0)?)?;
        let targets = self.linear.targets;
        scores.chunks_mut(targets).for_each(|row| self.linear.transform.apply(row));
        io.emit(Tensor::new([rows, targets], scores)?);
        Ok(())
    }
}

/// The label of the class with the highest score, and the scores.
pub(in crate::ops) static LINEAR_CLASSIFIER: OpDef = OpDef {
    name: "LinearClassifier",
    domain: DOMAIN,
    since: 1,
    attributes: &[
        AttributeDef::optional("classlabels_ints", AttributeKind::Ints),
        AttributeDef::optional("classlabels_strings", AttributeKind::Strings),
        AttributeDef::required("coefficients", AttributeKind::Floats),
        AttributeDef::optional("intercepts", AttributeKind::Floats),
        AttributeDef::optional("multi_class", AttributeKind::Int),
        AttributeDef::optional("post_transform", AttributeKind::String),
    ],
    inputs: &[Port::required("X", FEATURES)],
    outputs: CLASSES,
    // Two labels may share one score.
    infer: |i| infer_classes(i, None),
    batch: batch::leading,
    cost: cost::elementwise,
    prepare: |p| {
        let labels = Labels::of_classes(p.node)?;
        let intercepts = p.node.floats("intercepts")?.map_or(0, <[f32]>::len);
        // Of two classes one score may decide.
        let targets = if intercepts == 1 { 1 } else { labels.len() };
        if targets == 1 && labels.len() > 2 {
            bail!(Graph, "one score cannot decide between {} classes", labels.len());
        }
        Ok(Box::new(Classifier { linear: Linear::of(p.node, targets)?, labels }))
    },
    cases: || {
        vec![
            Case::new("LinearClassifier", 1, "three classes")
                .domain(DOMAIN)
                .attr("classlabels_ints", vec![4_i64, 5, 6])
                .attr("coefficients", vec![1.0_f32, 0.0, 0.0, 1.0, -1.0, -1.0])
                .attr("intercepts", vec![0.0_f32, 0.0, 1.0])
                .attr("post_transform", "SOFTMAX")
                .input(filled(&[2, 2], &[1.0_f32, 0.0, -1.0, -1.0]))
                .output(filled(&[2], &[4_i64, 6]))
                .output(filled(
                    &[2, 3],
                    &[
                        0.576_116_9_f32,
                        0.211_941_55,
                        0.211_941_55,
                        0.017_668_42,
                        0.017_668_42,
                        0.964_663_15,
                    ],
                ))
                .close(1e-6, 1e-6),
            Case::new("LinearClassifier", 1, "strings")
                .domain(DOMAIN)
                .attr("classlabels_strings", ["no", "yes"].map(str::to_owned).to_vec())
                .attr("coefficients", vec![-1.0_f32, 1.0])
                .attr("intercepts", vec![0.0_f32, 0.0])
                .input(filled(&[2, 1], &[2.0_f32, -2.0]))
                .output(strings(&[2], &["yes", "no"]))
                .output(filled(&[2, 2], &[-2.0_f32, 2.0, 2.0, -2.0])),
        ]
    },
};

#[derive(Debug)]
struct Classifier {
    linear: Linear,
    labels: Labels,
}

impl CpuKernel for Classifier {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (scores, rows) = self.linear.scores(io.tensor(0)?)?;
        let (chosen, scores) = if self.linear.targets == 1 && self.labels.len() == 2 {
            one_score(scores, self.linear.transform)
        } else {
            let n = self.linear.targets;
            let mut scores = scores;
            // Softmax keeps the order, so the label is chosen before.
            let chosen = scores.chunks(n).map(best).collect();
            scores.chunks_mut(n).for_each(|row| self.linear.transform.apply(row));
            (chosen, scores)
        };
        io.emit(self.labels.pick(&chosen)?);
        io.emit(Tensor::new([rows, scores.len() / rows.max(1)], scores)?);
        Ok(())
    }
}

/// The classes and the two scores of rows with one score each.
fn one_score(scores: Vec<f32>, transform: Transform) -> (Vec<usize>, Vec<f32>) {
    let mut chosen = Vec::with_capacity(scores.len());
    let mut both = Vec::with_capacity(scores.len() * 2);
    for score in scores {
        chosen.push(usize::from(score > 0.0));
        match transform {
            Transform::Logistic => {
                let p = super::logistic(score);
                both.extend([1.0 - p, p]);
            }
            Transform::Probit => both.extend([-score, score].map(super::probit)),
            _ => both.extend([1.0 - score, score]),
        }
    }
    (chosen, both)
}
