//! `NegativeLogLikelihoodLoss` and `SoftmaxCrossEntropyLoss`.

use super::case::{Case, filled};
use super::def::types::{FLOATS, INDICES};
use super::{AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, Port, batch, cost};
use crate::error::{Result, bail};
use crate::graph::Node;
use crate::tensor::{DType, Tensor, cast};

/// Minus the given log-probabilities at the classes of the targets, weighted and reduced.
pub(super) static NEGATIVE_LOG_LIKELIHOOD_LOSS: OpDef = OpDef {
    name: "NegativeLogLikelihoodLoss",
    domain: "",
    since: 12,
    attributes: &[
        AttributeDef::optional("ignore_index", AttributeKind::Int),
        AttributeDef::optional("reduction", AttributeKind::String),
    ],
    inputs: &[
        Port::required("input", FLOATS),
        Port::required("target", INDICES),
        Port::optional("weight", FLOATS),
    ],
    outputs: &[Port::required("loss", FLOATS)],
    infer,
    batch: batch::mixes,
    cost: cost::reduction,
    prepare: |p| Ok(Box::new(Loss::of(p.node, false)?)),
    cases: likelihood_cases,
};

/// [`NEGATIVE_LOG_LIKELIHOOD_LOSS`] of the logarithm of the softmax over the classes.
pub(super) static SOFTMAX_CROSS_ENTROPY_LOSS: OpDef = OpDef {
    name: "SoftmaxCrossEntropyLoss",
    domain: "",
    since: 12,
    attributes: &[
        AttributeDef::optional("ignore_index", AttributeKind::Int),
        AttributeDef::optional("reduction", AttributeKind::String),
    ],
    inputs: &[
        Port::required("scores", FLOATS),
        Port::required("labels", INDICES),
        Port::optional("weights", FLOATS),
    ],
    outputs: &[Port::required("output", FLOATS), Port::optional("log_prob", FLOATS)],
    infer: |i| {
        infer(i)?;
        i.set(1, i.dtype(0), i.shape(0));
        Ok(())
    },
    batch: batch::mixes,
    cost: cost::transcendental,
    prepare: |p| Ok(Box::new(Loss::of(p.node, true)?)),
    cases: entropy_cases,
};

#[derive(Clone, Copy, Debug, PartialEq)]
enum Reduction {
    None,
    Sum,
    Mean,
}

#[derive(Debug)]
struct Loss {
    softmax: bool,
    reduction: Reduction,
    ignored: Option<i64>,
}

impl Loss {
    fn of(node: &Node, softmax: bool) -> Result<Self> {
        let reduction = match node.string("reduction")?.unwrap_or("mean") {
            "none" => Reduction::None,
            "sum" => Reduction::Sum,
            "mean" => Reduction::Mean,
            other => {
                bail!(Graph, "attribute `reduction` is `{other}`, expected none, sum or mean")
            }
        };
        Ok(Self { softmax, reduction, ignored: node.int("ignore_index")? })
    }
}

fn infer(i: &mut Infer<'_>) -> Result<()> {
    let loss = Loss::of(i.node, false)?;
    let shape = if loss.reduction == Reduction::None { i.shape(1) } else { Some(Vec::new()) };
    i.set(0, i.dtype(0), shape);
    Ok(())
}

impl CpuKernel for Loss {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (x, target) = (io.tensor(0)?, io.tensor(1)?);
        let dtype = x.dtype();
        let &[n, classes, ref rest @ ..] = &x.shape()[..] else {
            bail!(Shape, "the first input is {}, expected items and classes", x.describe());
        };
        let mut wanted = vec![n];
        wanted.extend_from_slice(rest);
        if *target.shape() != wanted[..] {
            bail!(Shape, "the targets are {}, expected {wanted:?}", target.describe());
        }
        let inner: usize = rest.iter().product();
        let mut scores = cast(x, DType::F64)?;
        if self.softmax {
            log_softmax(scores.as_mut_slice::<f64>()?, classes, inner);
        }
        let scores_of = scores.as_slice::<f64>()?;
        let weights = io.optional(2)?.map(|w| cast(w, DType::F64)).transpose()?;
        let weights = match &weights {
            Some(w) if w.len() == classes => Some(w.as_slice::<f64>()?),
            Some(w) => bail!(Shape, "{} weights are given for {classes} classes", w.len()),
            None => None,
        };
        let mut losses = vec![0.0; n * inner];
        let (mut sum, mut total) = (0.0, 0.0);
        for (at, (loss, class)) in losses.iter_mut().zip(target.to_i64s()?).enumerate() {
            if self.ignored == Some(class) {
                continue;
            }
            let Some(class) = usize::try_from(class).ok().filter(|c| *c < classes) else {
                bail!(Kernel, "a target is {class}; there are {classes} classes");
            };
            let weight = weights.map_or(1.0, |w| w[class]);
            let (item, place) = (at / inner.max(1), at % inner.max(1));
            *loss = -weight * scores_of[(item * classes + class) * inner + place];
            sum += *loss;
            total += weight;
        }
        let out = match self.reduction {
            Reduction::None => Tensor::new(wanted, losses)?,
            Reduction::Sum => Tensor::scalar(sum),
            Reduction::Mean => Tensor::scalar(sum / total),
        };
        io.emit(cast(&out, dtype)?);
        if self.softmax && io.output_count() > 1 {
            io.emit(cast(&scores, dtype)?);
        }
        Ok(())
    }
}

/// The logarithm of the softmax over the second of three axes.
fn log_softmax(x: &mut [f64], classes: usize, inner: usize) {
    for item in x.chunks_mut((classes * inner).max(1)) {
        for place in 0..inner {
            let column = || (0..classes).map(|c| c * inner + place);
            let most = column().map(|k| item[k]).fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = column().map(|k| (item[k] - most).exp()).sum();
            let log = most + total.ln();
            column().for_each(|k| item[k] -= log);
        }
    }
}

fn likelihood_cases() -> Vec<Case> {
    let new = |reduction: &str, name: &str| {
        Case::new("NegativeLogLikelihoodLoss", 13, name)
            .attr("reduction", reduction)
            .input(filled(&[1, 3, 2], &[1.0_f32, 2.0, 2.0, 2.0, 3.0, 2.0]))
            .input(filled(&[1, 2], &[2_i64, 1]))
    };
    vec![
        new("none", "each").output(filled(&[1, 2], &[-3.0_f32, -2.0])),
        new("mean", "a weighted mean")
            .input(filled(&[3], &[0.2_f32, 0.3, 0.1]))
            .output(filled(&[], &[-2.25_f32]))
            .close(1e-6, 1e-6),
        new("sum", "a weighted sum")
            .input(filled(&[3], &[0.2_f32, 0.3, 0.1]))
            .output(filled(&[], &[-0.9_f32]))
            .close(1e-6, 1e-6),
        new("mean", "a class that is ignored")
            .attr("ignore_index", 2)
            .output(filled(&[], &[-2.0_f32])),
    ]
}

fn entropy_cases() -> Vec<Case> {
    let logs = [-0.693_147_2_f32, -0.693_147_2, -1.313_261_6, -0.313_261_7];
    let new = |reduction: &str, name: &str| {
        Case::new("SoftmaxCrossEntropyLoss", 13, name)
            .attr("reduction", reduction)
            .input(filled(&[2, 2], &[3.0_f32, 3.0, 0.0, 1.0]))
            .input(filled(&[2], &[0_i32, 0]))
            .close(1e-6, 1e-6)
    };
    vec![
        new("none", "each, with the logarithms")
            .output(filled(&[2], &[0.693_147_2_f32, 1.313_261_6]))
            .output(filled(&[2, 2], &logs)),
        new("mean", "the mean").output(filled(&[], &[1.003_204_4_f32])),
    ]
}
