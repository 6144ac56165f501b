//! The operators of ai.onnx.ml: encoders, scalers, linear models, support vectors, trees.

mod encode;
mod label;
mod linear;
mod scale;
mod support_vector;
mod tree;
mod tree_old;

pub(super) use encode::{
    ARRAY_FEATURE_EXTRACTOR, BINARIZER, CATEGORY_MAPPER, FEATURE_VECTORIZER, ONE_HOT_ENCODER,
};
pub(super) use label::LABEL_ENCODER;
pub(super) use linear::{LINEAR_CLASSIFIER, LINEAR_REGRESSOR};
pub(super) use scale::{IMPUTER, NORMALIZER, SCALER};
pub(super) use support_vector::{SVM_CLASSIFIER, SVM_REGRESSOR};
pub(super) use tree::TREE_ENSEMBLE;
pub(super) use tree_old::{TREE_ENSEMBLE_CLASSIFIER, TREE_ENSEMBLE_REGRESSOR};

use super::def::types::F32S;
use super::{Infer, Port};
use crate::error::{Result, bail};
use crate::graph::{Dim, Node};
use crate::tensor::{DType, Tensor, cast};

/// The domain's name.
const DOMAIN: &str = "ai.onnx.ml";

/// The dtypes that features come in.
const FEATURES: &[DType] = &[DType::F32, DType::F64, DType::I32, DType::I64];

/// What a classifier gives: the label of each row, and the scores of the classes.
const CLASSES: &[Port] =
    &[Port::required("Y", &[DType::I64, DType::String]), Port::optional("Z", F32S)];

/// How many rows there are; one axis is one row.
fn row_count(i: &Infer<'_>) -> Option<Dim> {
    i.shape(0).map(|s| match s.as_slice() {
        [first, _, ..] => first.clone(),
        _ => Dim::fixed(1),
    })
}

/// Sets what a regressor gives: so many numbers for each row.
fn infer_targets(i: &mut Infer<'_>, dtype: Option<DType>, targets: i64) {
    let shape = row_count(i).map(|r| vec![r, Dim::fixed(targets)]);
    i.set(0, dtype, shape);
}

/// Sets what a classifier gives: [`CLASSES`], with as many scores as labels unless told otherwise.
fn infer_classes(i: &mut Infer<'_>, scores: Option<Dim>) -> Result<()> {
    let labels = Labels::of_classes(i.node)?;
    let scores = scores.unwrap_or_else(|| Dim::of(labels.len()));
    let count = row_count(i);
    i.set(0, Some(labels.dtype()), count.clone().map(|r| vec![r]));
    i.set(1, Some(DType::F32), count.map(|r| vec![r, scores]));
    Ok(())
}

/// The numbers that an attribute holds, or a tensor beside it; none if neither is given.
fn floats(node: &Node, name: &str) -> Result<Vec<f32>> {
    match node.floats(name)? {
        Some(v) => Ok(v.to_vec()),
        None => match node.tensor(&format!("{name}_as_tensor"))? {
            Some(t) => t.to_f32s(),
            None => Ok(Vec::new()),
        },
    }
}

/// Rows of features as f32, whatever they come in; one axis is one row.
fn rows(x: &Tensor) -> Result<(Tensor, usize, usize)> {
    let (rows, columns) = match &x.shape()[..] {
        [n] => (1, *n),
        [rows, rest @ ..] => (*rows, rest.iter().product()),
        [] => bail!(Shape, "the input is a scalar, expected rows of features"),
    };
    Ok((cast(x, DType::F32)?, rows, columns))
}

/// What is done to the scores of a row in the end.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Transform {
    None,
    Softmax,
    Logistic,
    SoftmaxZero,
    Probit,
}

impl Transform {
    fn of(node: &Node) -> Result<Self> {
        Ok(match node.string("post_transform")?.unwrap_or("NONE") {
            "NONE" => Self::None,
            "SOFTMAX" => Self::Softmax,
            "LOGISTIC" => Self::Logistic,
            "SOFTMAX_ZERO" => Self::SoftmaxZero,
            "PROBIT" => Self::Probit,
            other => bail!(Graph, "attribute `post_transform` is `{other}`, which is not known"),
        })
    }

    /// By its number in version 5 of the operator set.
    fn numbered(number: i64) -> Result<Self> {
        Ok(match number {
            0 => Self::None,
            1 => Self::Softmax,
            2 => Self::Logistic,
            3 => Self::SoftmaxZero,
            4 => Self::Probit,
            _ => bail!(Graph, "attribute `post_transform` is {number}, expected 0 to 4"),
        })
    }

    fn apply(self, row: &mut [f32]) {
        match self {
            Self::None => {}
            Self::Logistic => row.iter_mut().for_each(|v| *v = logistic(*v)),
            Self::Probit => row.iter_mut().for_each(|v| *v = probit(*v)),
            Self::Softmax | Self::SoftmaxZero => {
                let most = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let zero = |v: f32| self == Self::SoftmaxZero && v.abs() <= 1e-7;
                let mut sum = 0.0;
                for v in row.iter_mut() {
                    // A score of 0 stays 0 and counts for nothing.
                    *v = if zero(*v) { 0.0 } else { (*v - most).exp() };
                    sum += *v;
                }
                if sum != 0.0 {
                    row.iter_mut().for_each(|v| *v /= sum);
                }
            }
        }
    }
}

fn logistic(v: f32) -> f32 {
    // From the side where the exponential is small.
    let e = 1.0 / (1.0 + (-v.abs()).exp());
    if v < 0.0 { 1.0 - e } else { e }
}

/// The inverse of the standard normal distribution (Winitzki's approximation of erf⁻¹).
fn probit(v: f32) -> f32 {
    let x = 2.0 * v - 1.0;
    let log = ((1.0 - x) * (1.0 + x)).ln();
    let a = 2.0 / (std::f32::consts::PI * 0.147) + 0.5 * log;
    let inner = (a * a - log / 0.147).sqrt() - a;
    std::f32::consts::SQRT_2 * x.signum() * inner.sqrt()
}

/// The labels of a classifier.
#[derive(Clone, Debug)]
enum Labels {
    Numbers(Vec<i64>),
    Strings(Vec<String>),
}

impl Labels {
    /// The labels that one of two attributes holds.
    fn of(node: &Node, numbers: &str, strings: &str) -> Result<Self> {
        match (node.ints(numbers)?, node.strings(strings)?) {
            (_, Some(s)) if !s.is_empty() => Ok(Self::Strings(s.to_vec())),
            (Some(n), _) => Ok(Self::Numbers(n.to_vec())),
            _ => bail!(Graph, "neither `{numbers}` nor `{strings}` is given"),
        }
    }

    /// The labels of a classifier.
    fn of_classes(node: &Node) -> Result<Self> {
        let numbers = if node.op == "TreeEnsembleClassifier" {
            "classlabels_int64s"
        } else {
            "classlabels_ints"
        };
        Self::of(node, numbers, "classlabels_strings")
    }

    fn len(&self) -> usize {
        match self {
            Self::Numbers(n) => n.len(),
            Self::Strings(s) => s.len(),
        }
    }

    fn dtype(&self) -> DType {
        match self {
            Self::Numbers(_) => DType::I64,
            Self::Strings(_) => DType::String,
        }
    }

    /// The labels with these numbers.
    fn pick(&self, chosen: &[usize]) -> Result<Tensor> {
        let beyond = || bail!(Graph, "a class is chosen that has no label: {chosen:?}");
        let Some(last) = chosen.iter().max() else {
            return Tensor::zeros(self.dtype(), [0]);
        };
        if *last >= self.len() {
            return beyond();
        }
        match self {
            Self::Numbers(n) => Tensor::new([chosen.len()], chosen.iter().map(|c| n[*c]).collect()),
            Self::Strings(s) => {
                Tensor::from_strings([chosen.len()], chosen.iter().map(|c| s[*c].clone()).collect())
            }
        }
    }
}

/// The first of the largest scores.
fn best(row: &[f32]) -> usize {
    let mut found = 0;
    for (k, v) in row.iter().enumerate() {
        if *v > row[found] {
            found = k;
        }
    }
    found
}
