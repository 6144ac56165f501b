//! `SVMRegressor` and `SVMClassifier`.

use super::{
    CLASSES, DOMAIN, FEATURES, Labels, Transform, best, floats, infer_classes, infer_targets,
    logistic, rows,
};
use crate::error::{Result, bail};
use crate::graph::Node;
use crate::ops::case::{Case, filled};
use crate::ops::def::types::F32S;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor};

/// How two rows are compared.
#[derive(Clone, Copy, Debug)]
enum Kernel {
    Linear,
    Polynomial,
    Radial,
    Sigmoid,
}

/// Rows compared with support vectors.
#[derive(Debug)]
struct Vectors {
    kernel: Kernel,
    gamma: f32,
    offset: f32,
    degree: f32,
    vectors: Vec<f32>,
    count: usize,
    width: usize,
}

impl Vectors {
    fn of(node: &Node, count: usize) -> Result<Self> {
        let kernel = match node.string("kernel_type")?.unwrap_or("LINEAR") {
            "LINEAR" => Kernel::Linear,
            "POLY" => Kernel::Polynomial,
            "RBF" => Kernel::Radial,
            "SIGMOID" => Kernel::Sigmoid,
            other => bail!(Graph, "attribute `kernel_type` is `{other}`, which is not known"),
        };
        let (gamma, offset, degree) = match node.floats("kernel_params")? {
            Some(&[g, o, d]) => (g, o, d),
            None | Some([]) => (0.0, 0.0, 3.0),
            Some(other) => bail!(Graph, "attribute `kernel_params` is {other:?}, expected three"),
        };
        let vectors = floats(node, "support_vectors")?;
        if count > 0 && vectors.len() % count != 0 {
            bail!(Graph, "{} values are given for {count} support vectors", vectors.len());
        }
        let width = vectors.len().checked_div(count).unwrap_or(0);
        Ok(Self { kernel, gamma, offset, degree, vectors, count, width })
    }

    fn compare(&self, a: &[f32], b: &[f32]) -> f32 {
        let dot = || -> f32 { a.iter().zip(b).map(|(x, y)| x * y).sum() };
        match self.kernel {
            Kernel::Linear => dot(),
            Kernel::Polynomial => (self.gamma * dot() + self.offset).powf(self.degree),
            Kernel::Sigmoid => (self.gamma * dot() + self.offset).tanh(),
            Kernel::Radial => {
                let distance: f32 = a.iter().zip(b).map(|(x, y)| (x - y) * (x - y)).sum();
                (-self.gamma * distance).exp()
            }
        }
    }

    /// How a row compares with every vector.
    fn all(&self, row: &[f32]) -> Vec<f32> {
        (0..self.count)
            .map(|k| self.compare(row, &self.vectors[k * self.width..(k + 1) * self.width]))
            .collect()
    }
}

fn size(node: &Node, name: &str) -> Result<usize> {
    let n = node.int_or(name, 0)?;
    match usize::try_from(n).ok().filter(|n| *n < 1 << 30) {
        Some(n) => Ok(n),
        None => bail!(Graph, "attribute `{name}` is {n}; it cannot be negative"),
    }
}

/// A weighted sum over the support vectors.
pub(in crate::ops) static SVM_REGRESSOR: OpDef = OpDef {
    name: "SVMRegressor",
    domain: DOMAIN,
    since: 1,
    attributes: &[
        AttributeDef::optional("coefficients", AttributeKind::Floats),
        AttributeDef::optional("kernel_params", AttributeKind::Floats),
        AttributeDef::optional("kernel_type", AttributeKind::String),
        AttributeDef::optional("n_supports", AttributeKind::Int),
        AttributeDef::optional("one_class", AttributeKind::Int),
        AttributeDef::optional("post_transform", AttributeKind::String),
        AttributeDef::optional("rho", AttributeKind::Floats),
        AttributeDef::optional("support_vectors", AttributeKind::Floats),
    ],
    inputs: &[Port::required("X", FEATURES)],
    outputs: &[Port::required("Y", F32S)],
    infer: |i| {
        infer_targets(i, Some(DType::F32), 1);
        Ok(())
    },
    batch: batch::leading,
    cost: cost::elementwise,
    prepare: |p| {
        let vectors = Vectors::of(p.node, size(p.node, "n_supports")?)?;
        let coefficients = floats(p.node, "coefficients")?;
        if vectors.count > 0 && coefficients.len() != vectors.count {
            let n = coefficients.len();
            bail!(Graph, "{n} coefficients are given for {} support vectors", vectors.count);
        }
        Ok(Box::new(Regressor {
            vectors,
            coefficients,
            rho: p.node.floats("rho")?.and_then(|r| r.first().copied()).unwrap_or(0.0),
            one_class: p.node.int_or("one_class", 0)? != 0,
            transform: Transform::of(p.node)?,
        }))
    },
    cases: || {
        let new = |name: &str| {
            Case::new("SVMRegressor", 1, name)
                .domain(DOMAIN)
                .attr("coefficients", vec![2.0_f32, -1.0])
                .attr("n_supports", 2)
                .attr("support_vectors", vec![1.0_f32, 0.0, 0.0, 1.0])
                .attr("rho", vec![0.5_f32])
                .input(filled(&[2, 2], &[1.0_f32, 1.0, 0.0, 1.0]))
                .close(1e-6, 1e-6)
        };
        vec![
            new("linear").output(filled(&[2, 1], &[1.5_f32, -0.5])),
            new("radial")
                .attr("kernel_type", "RBF")
                .attr("kernel_params", vec![0.5_f32, 0.0, 3.0])
                .output(filled(&[2, 1], &[1.106_530_7_f32, 0.235_758_9])),
            new("one class").attr("one_class", 1).output(filled(&[2, 1], &[1.0_f32, -1.0])),
        ]
    },
};

#[derive(Debug)]
struct Regressor {
    vectors: Vectors,
    coefficients: Vec<f32>,
    rho: f32,
    one_class: bool,
    transform: Transform,
}

impl CpuKernel for Regressor {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (x, count, columns) = rows(io.tensor(0)?)?;
        let width =
            if self.vectors.count > 0 { self.vectors.width } else { self.coefficients.len() };
        if columns != width {
            bail!(Shape, "rows have {columns} features, the support vectors {width}");
        }
        let x = x.as_slice::<f32>()?;
        let mut out = Vec::with_capacity(count);
        for r in 0..count {
            let row = &x[r * columns..(r + 1) * columns];
            let sum: f32 = if self.vectors.count > 0 {
                self.vectors.all(row).iter().zip(&self.coefficients).map(|(k, c)| k * c).sum()
            } else {
                // Without vectors the coefficients are a linear model.
                self.vectors.compare(row, &self.coefficients)
            };
            let mut score = [sum + self.rho];
            if self.one_class {
                score[0] = if score[0] > 0.0 { 1.0 } else { -1.0 };
            }
            self.transform.apply(&mut score);
            out.push(score[0]);
        }
        io.emit(Tensor::new([count, 1], out)?);
        Ok(())
    }
}

/// The label that wins most duels of two classes each, and the scores or probabilities.
pub(in crate::ops) static SVM_CLASSIFIER: OpDef = OpDef {
    name: "SVMClassifier",
    domain: DOMAIN,
    since: 1,
    attributes: &[
        AttributeDef::optional("classlabels_ints", AttributeKind::Ints),
        AttributeDef::optional("classlabels_strings", AttributeKind::Strings),
        AttributeDef::optional("coefficients", AttributeKind::Floats),
        AttributeDef::optional("kernel_params", AttributeKind::Floats),
        AttributeDef::optional("kernel_type", AttributeKind::String),
        AttributeDef::optional("post_transform", AttributeKind::String),
        AttributeDef::optional("prob_a", AttributeKind::Floats),
        AttributeDef::optional("prob_b", AttributeKind::Floats),
        AttributeDef::optional("rho", AttributeKind::Floats),
        AttributeDef::optional("support_vectors", AttributeKind::Floats),
        AttributeDef::optional("vectors_per_class", AttributeKind::Ints),
    ],
    inputs: &[Port::required("X", FEATURES)],
    outputs: CLASSES,
    infer: |i| {
        let scores = i.fresh();
        infer_classes(i, Some(scores))
    },
    batch: batch::leading,
    cost: cost::elementwise,
    prepare: |p| Ok(Box::new(Classifier::of(p.node)?)),
    cases: || {
        let new = |name: &str| {
            Case::new("SVMClassifier", 1, name)
                .domain(DOMAIN)
                .attr("support_vectors", vec![1.0_f32, 0.0, 0.0, 1.0])
                .attr("coefficients", vec![1.0_f32, -1.0])
                .attr("rho", vec![0.25_f32])
                .attr("vectors_per_class", vec![1_i64, 1])
                .attr("classlabels_ints", vec![3_i64, 4])
                .input(filled(&[2, 2], &[2.0_f32, 1.0, 0.0, 1.0]))
                .close(1e-5, 1e-5)
        };
        let three = |name: &str| {
            Case::new("SVMClassifier", 1, name)
                .domain(DOMAIN)
                .attr("support_vectors", vec![1.0_f32, 0.0, 0.0, 1.0, 1.0, 1.0])
                .attr("coefficients", vec![1.0_f32, -1.0, 0.5, 2.0, -3.0, 1.5])
                .attr("rho", vec![0.25_f32, -0.5, 0.1])
                .attr("vectors_per_class", vec![1_i64, 1, 1])
                .attr("classlabels_ints", vec![3_i64, 4, 5])
                .input(filled(&[3, 2], &[2.0_f32, 1.0, 0.0, 1.0, -1.0, -3.0]))
                .close(1e-4, 1e-4)
        };
        vec![
            new("two classes")
                .output(filled(&[2], &[3_i64, 4]))
                .output(filled(&[2, 2], &[-1.25_f32, 1.25, 0.75, -0.75])),
            new("two probabilities")
                .attr("prob_a", vec![-1.0_f32])
                .attr("prob_b", vec![0.1_f32])
                .output(filled(&[2], &[3_i64, 4]))
                .output(filled(&[2, 2], &[0.759_510_8_f32, 0.240_489_2, 0.299_432_6, 0.700_567_4])),
            three("the duels of three classes")
                .output(filled(&[3], &[3_i64, 5, 3]))
                .output(filled(&[3, 3], &[1.25_f32, 5.0, 1.6, -0.75, 0.0, -1.4, 2.25, -4.5, 3.1])),
        ]
    },
};

#[derive(Debug)]
struct Classifier {
    vectors: Vectors,
    coefficients: Vec<f32>,
    /// The first vector of each class, and the end of the last.
    starts: Vec<usize>,
    rho: Vec<f32>,
    probabilities: Option<(Vec<f32>, Vec<f32>)>,
    labels: Labels,
    transform: Transform,
}

impl Classifier {
    fn of(node: &Node) -> Result<Self> {
        let labels = Labels::of_classes(node)?;
        let per_class = node.ints("vectors_per_class")?.unwrap_or(&[]);
        let mut starts = vec![0];
        for n in per_class {
            let Some(n) = usize::try_from(*n).ok().filter(|n| *n < 1 << 30) else {
                bail!(Graph, "attribute `vectors_per_class` is {per_class:?}");
            };
            starts.push(starts[starts.len() - 1] + n);
        }
        let count = starts[starts.len() - 1];
        let coefficients = floats(node, "coefficients")?;
        let rho = floats(node, "rho")?;
        let n = labels.len();
        let pairs = n * n.saturating_sub(1) / 2;
        let (vectors, rho) = if count == 0 {
            // A linear model: one row of coefficients a class.
            if n == 0 || coefficients.len() % n != 0 {
                bail!(Graph, "{} coefficients are given for {n} classes", coefficients.len());
            }
            let rho =
                if rho.len() == n { rho } else { vec![rho.first().copied().unwrap_or(0.0); n] };
            (Vectors::of(node, 0)?, rho)
        } else {
            if starts.len() != n + 1
                || rho.len() < pairs
                || coefficients.len() != count * n.saturating_sub(1)
            {
                bail!(
                    Graph,
                    "{n} classes with {count} vectors have {} coefficients and {} of `rho`",
                    coefficients.len(),
                    rho.len()
                );
            }
            (Vectors::of(node, count)?, rho)
        };
        let probabilities = match (node.floats("prob_a")?, node.floats("prob_b")?) {
            (Some(a), Some(b)) if !a.is_empty() => {
                if a.len() < pairs || b.len() < pairs || count == 0 {
                    bail!(Graph, "{pairs} pairs have {} and {} of `prob_…`", a.len(), b.len());
                }
                Some((a.to_vec(), b.to_vec()))
            }
            _ => None,
        };
        let transform = Transform::of(node)?;
        Ok(Self { vectors, coefficients, starts, rho, probabilities, labels, transform })
    }

    /// The result of each duel: positive where the first class wins.
    fn duels(&self, row: &[f32]) -> Vec<f32> {
        let (n, count) = (self.labels.len(), self.vectors.count);
        let kernels = self.vectors.all(row);
        let mut out = Vec::with_capacity(self.rho.len());
        for i in 0..n {
            for j in i + 1..n {
                // Each class has a row of coefficients against every other one.
                let part = |class: usize, against: usize| -> f32 {
                    let of = self.starts[class]..self.starts[class + 1];
                    let line = &self.coefficients[against * count..][..count];
                    kernels[of.clone()].iter().zip(&line[of]).map(|(k, c)| k * c).sum()
                };
                out.push(part(i, j - 1) + part(j, i) + self.rho[out.len()]);
            }
        }
        out
    }
}

impl CpuKernel for Classifier {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let (x, count, columns) = rows(io.tensor(0)?)?;
        let n = self.labels.len();
        let linear = self.vectors.count == 0;
        let width = if linear { self.coefficients.len() / n.max(1) } else { self.vectors.width };
        if columns != width {
            bail!(Shape, "rows have {columns} features, the support vectors {width}");
        }
        let x = x.as_slice::<f32>()?;
        let (mut chosen, mut scores) = (Vec::new(), Vec::new());
        for r in 0..count {
            let row = &x[r * columns..(r + 1) * columns];
            if linear {
                let mut own: Vec<f32> = (0..n)
                    .map(|c| {
                        self.vectors.compare(row, &self.coefficients[c * width..(c + 1) * width])
                            + self.rho[c]
                    })
                    .collect();
                chosen.push(best(&own));
                self.transform.apply(&mut own);
                scores.extend(own);
                continue;
            }
            let duels = self.duels(row);
            let mut wins = vec![0.0_f32; n];
            let mut k = 0;
            for i in 0..n {
                for j in i + 1..n {
                    wins[if duels[k] > 0.0 { i } else { j }] += 1.0;
                    k += 1;
                }
            }
            match &self.probabilities {
                Some((a, b)) => {
                    let mut own = coupled(n, &duels, a, b);
                    chosen.push(best(&own));
                    self.transform.apply(&mut own);
                    scores.extend(own);
                }
                None if n == 2 => {
                    // The first class is the one whose duel is positive.
                    chosen.push(usize::from(duels[0] <= 0.0));
                    let mut both = [-duels[0], duels[0]];
                    self.transform.apply(&mut both);
                    scores.extend(both);
                }
                None => {
                    chosen.push(best(&wins));
                    let mut own = duels;
                    self.transform.apply(&mut own);
                    scores.extend(own);
                }
            }
        }
        io.emit(self.labels.pick(&chosen)?);
        io.emit(Tensor::new([count, scores.len() / count.max(1)], scores)?);
        Ok(())
    }
}

/// The probability of each class from those of the duels (Wu, Lin and Weng).
fn coupled(n: usize, duels: &[f32], a: &[f32], b: &[f32]) -> Vec<f32> {
    let mut r = vec![0.0_f64; n * n];
    let mut k = 0;
    for i in 0..n {
        for j in i + 1..n {
            let p = f64::from(1.0 - logistic(duels[k] * a[k] + b[k])).clamp(1e-7, 1.0 - 1e-7);
            (r[i * n + j], r[j * n + i]) = (p, 1.0 - p);
            k += 1;
        }
    }
    let mut q = vec![0.0; n * n];
    for i in 0..n {
        for j in (0..n).filter(|j| *j != i) {
            q[i * n + i] += r[j * n + i] * r[j * n + i];
            q[i * n + j] = -r[j * n + i] * r[i * n + j];
        }
    }
    let mut p = vec![1.0 / n as f64; n];
    for _ in 0..100_usize.max(n) {
        let qp: Vec<f64> = (0..n).map(|i| (0..n).map(|j| q[i * n + j] * p[j]).sum()).collect();
        let mut pqp: f64 = p.iter().zip(&qp).map(|(p, q)| p * q).sum();
        if qp.iter().all(|v| (v - pqp).abs() < 0.005 / n as f64) {
            break;
        }
        let mut qp = qp;
        for t in 0..n {
            let step = (pqp - qp[t]) / q[t * n + t];
            p[t] += step;
            let scale = 1.0 + step;
            pqp = (pqp + step * (step * q[t * n + t] + 2.0 * qp[t])) / (scale * scale);
            for j in 0..n {
                qp[j] = (qp[j] + step * q[t * n + j]) / scale;
                p[j] /= scale;
            }
        }
    }
    p.into_iter().map(|v| v as f32).collect()
}
