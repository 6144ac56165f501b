//! `LinearRegressor` and `LinearClassifier`.

use super::{DOMAIN, FEATURES, Labels, Transform, best, rows};
use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::ops::case::{Case, filled};
use crate::ops::def::types::F32S;
use crate::ops::text::strings;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, batch, cost};
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
        let targets = Dim::fixed(i.node.int_or("targets", 1)?.max(1));
        let shape = row_count(i).map(|r| vec![r, targets]);
        i.set(0, Some(DType::F32), shape);
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

/// How many rows there are; one axis is one row.
pub(super) fn row_count(i: &Infer<'_>) -> Option<Dim> {
    i.shape(0).map(|s| match s.as_slice() {
        [first, _, ..] => first.clone(),
        _ => Dim::fixed(1),
    })
}

#[derive(Debug)]
struct Linear {
    coefficients: Vec<f32>,
    intercepts: Vec<f32>,
    targets: usize,
    transform: Transform,
}

impl Linear {
    fn of(node: &Node, targets: usize) -> Result<Self> {
        let coefficients = node.floats("coefficients")?.unwrap_or(&[]).to_vec();
        let intercepts = node.floats("intercepts")?.unwrap_or(&[]).to_vec();
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
    outputs: &[Port::required("Y", &[DType::I64, DType::String]), Port::optional("Z", F32S)],
    infer: |i| {
        let labels = Labels::of(i.node, "classlabels_ints", "classlabels_strings")?;
        let count = row_count(i);
        i.set(0, Some(labels.dtype()), count.clone().map(|r| vec![r]));
        // Two labels may share one score.
        i.set(1, Some(DType::F32), count.map(|r| vec![r, Dim::of(labels.len())]));
        Ok(())
    },
    batch: batch::leading,
    cost: cost::elementwise,
    prepare: |p| {
        let labels = Labels::of(p.node, "classlabels_ints", "classlabels_strings")?;
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
