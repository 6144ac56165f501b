//! `TreeEnsembleRegressor` and `TreeEnsembleClassifier`.

use std::collections::HashMap;

use super::tree::{Aggregate, Branch, Forest, Scores, Test, Way, index};
use super::{
    CLASSES, DOMAIN, FEATURES, Labels, Transform, best, floats, infer_classes, infer_targets,
};
use crate::error::{Result, bail};
use crate::graph::Node;
use crate::ops::case::{Case, filled};
use crate::ops::def::types::F32S;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, batch, cost};
use crate::tensor::{DType, Tensor};

macro_rules! attributes {
    ($($own:expr),* $(,)?) => { &[
        AttributeDef::optional("base_values", AttributeKind::Floats),
        AttributeDef::optional("base_values_as_tensor", AttributeKind::Tensor),
        AttributeDef::required("nodes_falsenodeids", AttributeKind::Ints),
        AttributeDef::required("nodes_featureids", AttributeKind::Ints),
        AttributeDef::optional("nodes_hitrates", AttributeKind::Floats),
        AttributeDef::optional("nodes_hitrates_as_tensor", AttributeKind::Tensor),
        AttributeDef::optional("nodes_missing_value_tracks_true", AttributeKind::Ints),
        AttributeDef::required("nodes_modes", AttributeKind::Strings),
        AttributeDef::required("nodes_nodeids", AttributeKind::Ints),
        AttributeDef::required("nodes_treeids", AttributeKind::Ints),
        AttributeDef::required("nodes_truenodeids", AttributeKind::Ints),
        AttributeDef::optional("nodes_values", AttributeKind::Floats),
        AttributeDef::optional("nodes_values_as_tensor", AttributeKind::Tensor),
        AttributeDef::optional("post_transform", AttributeKind::String),
        $($own),*
    ] };
}

/// What the trees vote for, summed up for each target.
pub(in crate::ops) static TREE_ENSEMBLE_REGRESSOR: OpDef = OpDef {
    name: "TreeEnsembleRegressor",
    domain: DOMAIN,
    since: 1,
    attributes: attributes![
        AttributeDef::optional("aggregate_function", AttributeKind::String),
        AttributeDef::required("n_targets", AttributeKind::Int),
        AttributeDef::required("target_ids", AttributeKind::Ints),
        AttributeDef::required("target_nodeids", AttributeKind::Ints),
        AttributeDef::required("target_treeids", AttributeKind::Ints),
        AttributeDef::optional("target_weights", AttributeKind::Floats),
        AttributeDef::optional("target_weights_as_tensor", AttributeKind::Tensor),
    ],
    inputs: &[Port::required("X", FEATURES)],
    outputs: &[Port::required("Y", F32S)],
    infer: |i| {
        let targets = i.node.required_int("n_targets")?;
        infer_targets(i, Some(DType::F32), targets);
        Ok(())
    },
    batch: batch::leading,
    cost: cost::elementwise,
    prepare: |p| {
        let targets = index(p.node.required_int("n_targets")?, "n_targets")?;
        let how = p.node.string("aggregate_function")?.unwrap_or("SUM");
        let forest = forest(p.node, "target", targets, Aggregate::named(how)?)?;
        let transform = Transform::of(p.node)?;
        Ok(Box::new(Regressor { forest, base: floats(p.node, "base_values")?, transform }))
    },
    cases: || {
        vec![
            tree("TreeEnsembleRegressor", "target", "two trees")
                .attr("n_targets", 1)
                .attr("base_values", vec![0.5_f32])
                .input(filled(&[3, 1], &[0.0_f32, 1.0, 2.0]))
                .output(filled(&[3, 1], &[11.5_f32, 11.5, 23.5])),
            tree("TreeEnsembleRegressor", "target", "their mean")
                .attr("n_targets", 1)
                .attr("aggregate_function", "AVERAGE")
                .input(filled(&[1, 1], &[2.0_f32]))
                .output(filled(&[1, 1], &[11.5_f32])),
        ]
    },
};

/// `x0 <= 1`: 1, else 3; and a tree that is a leaf alone: 10 or 20.
fn tree(op: &'static str, what: &str, name: &str) -> Case {
    let words = |w: &[&str]| w.iter().map(|s| (*s).to_owned()).collect::<Vec<String>>();
    Case::new(op, 1, name)
        .domain(DOMAIN)
        .attr("nodes_treeids", vec![0_i64, 0, 0, 1, 1, 1])
        .attr("nodes_nodeids", vec![0_i64, 1, 2, 0, 1, 2])
        .attr("nodes_featureids", vec![0_i64; 6])
        .attr("nodes_modes", words(&["BRANCH_LEQ", "LEAF", "LEAF", "BRANCH_GT", "LEAF", "LEAF"]))
        .attr("nodes_values", vec![1.0_f32, 0.0, 0.0, 1.5, 0.0, 0.0])
        .attr("nodes_truenodeids", vec![1_i64, 0, 0, 1, 0, 0])
        .attr("nodes_falsenodeids", vec![2_i64, 0, 0, 2, 0, 0])
        .attr(&format!("{what}_treeids"), vec![0_i64, 0, 1, 1])
        .attr(&format!("{what}_nodeids"), vec![1_i64, 2, 1, 2])
        .attr(&format!("{what}_ids"), vec![0_i64, 0, 0, 0])
        .attr(&format!("{what}_weights"), vec![1.0_f32, 3.0, 20.0, 10.0])
}

fn forest(node: &Node, what: &str, targets: usize, aggregate: Aggregate) -> Result<Forest> {
    let ints = |name: &str| Ok::<_, crate::Error>(node.ints(name)?.unwrap_or(&[]));
    let (trees, ids) = (ints("nodes_treeids")?, ints("nodes_nodeids")?);
    let (features, modes) =
        (ints("nodes_featureids")?, node.strings("nodes_modes")?.unwrap_or(&[]));
    let (truths, lies) = (ints("nodes_truenodeids")?, ints("nodes_falsenodeids")?);
    let missing = ints("nodes_missing_value_tracks_true")?;
    let values = floats(node, "nodes_values")?;
    let n = trees.len();
    let lengths = [ids.len(), features.len(), modes.len(), truths.len(), lies.len(), values.len()];
    if lengths.iter().any(|l| *l != n) || !missing.is_empty() && missing.len() != n {
        bail!(Graph, "the attributes of {n} nodes are of different lengths");
    }
    let mut place: HashMap<(i64, i64), usize> = HashMap::with_capacity(n);
    for k in 0..n {
        if place.insert((trees[k], ids[k]), k).is_some() {
            bail!(Graph, "tree {} has two nodes {}", trees[k], ids[k]);
        }
    }
    // The votes of each leaf, together.
    let votes_of = |suffix: &str| format!("{what}_{suffix}");
    let (vote_trees, vote_nodes, vote_ids) =
        (ints(&votes_of("treeids"))?, ints(&votes_of("nodeids"))?, ints(&votes_of("ids"))?);
    let weights = floats(node, &votes_of("weights"))?;
    let count = weights.len();
    if [vote_trees.len(), vote_nodes.len(), vote_ids.len()].iter().any(|l| *l != count) {
        bail!(Graph, "the attributes of {count} votes are of different lengths");
    }
    let mut by_leaf: Vec<Vec<(usize, f32)>> = vec![Vec::new(); n];
    for v in 0..count {
        let Some(leaf) = place.get(&(vote_trees[v], vote_nodes[v])) else {
            bail!(Graph, "a vote is of node {} of tree {}", vote_nodes[v], vote_trees[v]);
        };
        by_leaf[*leaf].push((index(vote_ids[v], &votes_of("ids"))?, weights[v]));
    }
    let mut votes = Vec::with_capacity(count);
    let ways: Vec<Way> = (0..n)
        .map(|k| {
            if modes[k] == "LEAF" {
                let start = votes.len();
                votes.append(&mut by_leaf[k]);
                Way::Leaf(start, votes.len())
            } else {
                Way::Branch(k)
            }
        })
        .collect();
    let mut branches = Vec::with_capacity(n);
    let mut led_to = vec![false; n];
    for k in 0..n {
        let test = match modes[k].as_str() {
            "BRANCH_LEQ" => Test::LessOrEqual,
            "BRANCH_LT" => Test::Less,
            "BRANCH_GTE" => Test::GreaterOrEqual,
            "BRANCH_GT" => Test::Greater,
            "BRANCH_EQ" => Test::Equal,
            "BRANCH_NEQ" => Test::NotEqual,
            "LEAF" => {
                // It keeps its place, but nothing leads there.
                branches.push(Branch {
                    feature: 0,
                    test: Test::LessOrEqual,
                    value: 0.0,
                    holds: Way::Leaf(0, 0),
                    fails: Way::Leaf(0, 0),
                    missing_holds: false,
                });
                continue;
            }
            other => bail!(Graph, "attribute `nodes_modes` holds `{other}`, which is not known"),
        };
        let mut way = |id: i64| match place.get(&(trees[k], id)) {
            Some(to) => {
                led_to[*to] = true;
                Ok(ways[*to])
            }
            None => bail!(Graph, "node {} of tree {} leads to {id}", ids[k], trees[k]),
        };
        branches.push(Branch {
            feature: index(features[k], "nodes_featureids")?,
            test,
            value: values[k],
            holds: way(truths[k])?,
            fails: way(lies[k])?,
            missing_holds: missing.get(k).is_some_and(|m| *m != 0),
        });
    }
    let roots = (0..n).filter(|k| !led_to[*k]).map(|k| ways[k]).collect();
    let forest = Forest { branches, roots, votes, members: Vec::new(), targets, aggregate };
    forest.check()?;
    Ok(forest)
}

#[derive(Debug)]
struct Regressor {
    forest: Forest,
    base: Vec<f32>,
    transform: Transform,
}

impl CpuKernel for Regressor {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let Scores { all, rows } = self.forest.scores(io.tensor(0)?, &self.base, io.threads())?;
        let mut scores: Vec<f32> = all.into_iter().map(Option::unwrap_or_default).collect();
        let targets = self.forest.targets;
        scores.chunks_mut(targets.max(1)).for_each(|row| self.transform.apply(row));
        io.emit(Tensor::new([rows, targets], scores)?);
        Ok(())
    }
}

/// The label that the trees vote for most, and the scores of all.
pub(in crate::ops) static TREE_ENSEMBLE_CLASSIFIER: OpDef = OpDef {
    name: "TreeEnsembleClassifier",
    domain: DOMAIN,
    since: 1,
    attributes: attributes![
        AttributeDef::required("class_ids", AttributeKind::Ints),
        AttributeDef::required("class_nodeids", AttributeKind::Ints),
        AttributeDef::required("class_treeids", AttributeKind::Ints),
        AttributeDef::optional("class_weights", AttributeKind::Floats),
        AttributeDef::optional("class_weights_as_tensor", AttributeKind::Tensor),
        AttributeDef::optional("classlabels_int64s", AttributeKind::Ints),
        AttributeDef::optional("classlabels_strings", AttributeKind::Strings),
    ],
    inputs: &[Port::required("X", FEATURES)],
    outputs: CLASSES,
    infer: |i| infer_classes(i, None),
    batch: batch::leading,
    cost: cost::elementwise,
    prepare: |p| {
        let labels = Labels::of_classes(p.node)?;
        let forest = forest(p.node, "class", labels.len(), Aggregate::Sum)?;
        // Trees for two classes often vote for one of them alone.
        let voted = forest.votes.first().map_or(0, |v| v.0);
        let one = (labels.len() == 2 && forest.votes.iter().all(|v| v.0 == voted)).then(|| {
            let positive = forest.votes.iter().all(|v| v.1 >= 0.0);
            Alone { voted, positive }
        });
        let base = floats(p.node, "base_values")?;
        let transform = Transform::of(p.node)?;
        Ok(Box::new(Classifier { forest, base, transform, labels, one }))
    },
    cases: || {
        vec![
            tree("TreeEnsembleClassifier", "class", "three classes")
                .attr("class_ids", vec![0_i64, 1, 2, 0])
                .attr("classlabels_int64s", vec![7_i64, 8, 9])
                .input(filled(&[2, 1], &[0.0_f32, 2.0]))
                .output(filled(&[2], &[7_i64, 9]))
                .output(filled(&[2, 3], &[11.0_f32, 0.0, 0.0, 0.0, 3.0, 20.0])),
            tree("TreeEnsembleClassifier", "class", "two classes, votes for one")
                .attr("class_ids", vec![0_i64; 4])
                .attr("class_weights", vec![0.1_f32, 0.3, 0.4, 0.2])
                .attr("classlabels_int64s", vec![0_i64, 1])
                .input(filled(&[2, 1], &[0.0_f32, 2.0]))
                .output(filled(&[2], &[0_i64, 1]))
                .output(filled(&[2, 2], &[0.7_f32, 0.3, 0.3, 0.7]))
                .close(1e-6, 1e-6),
            tree("TreeEnsembleClassifier", "class", "distances from the border")
                .attr("class_ids", vec![0_i64; 4])
                .attr("class_weights", vec![-0.1_f32, 0.3, 0.4, -0.2])
                .attr("classlabels_int64s", vec![0_i64, 1])
                .attr("post_transform", "LOGISTIC")
                .input(filled(&[2, 1], &[0.0_f32, 2.0]))
                .output(filled(&[2], &[0_i64, 1]))
                .output(filled(&[2, 2], &[0.574_442_5_f32, 0.425_557_5, 0.331_812_2, 0.668_187_8]))
                .close(1e-6, 1e-6),
        ]
    },
};

#[derive(Debug)]
struct Classifier {
    forest: Forest,
    base: Vec<f32>,
    transform: Transform,
    labels: Labels,
    one: Option<Alone>,
}

/// Of two classes only one has votes.
#[derive(Clone, Copy, Debug)]
struct Alone {
    voted: usize,
    /// Whether all votes are positive: a probability, not a distance from the border.
    positive: bool,
}

impl CpuKernel for Classifier {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let classes = self.labels.len();
        // With one base value for two classes, it is of the class that has the votes.
        let base = if self.one.is_some() && self.base.len() == 1 { &[] } else { &self.base[..] };
        let Scores { all, rows } = self.forest.scores(io.tensor(0)?, base, io.threads())?;
        let mut scores: Vec<f32> = all.into_iter().map(Option::unwrap_or_default).collect();
        let mut chosen = Vec::with_capacity(rows);
        for row in scores.chunks_mut(classes.max(1)) {
            let Some(Alone { voted, positive }) = self.one else {
                chosen.push(best(row));
                self.transform.apply(row);
                continue;
            };
            let extra =
                if base.is_empty() { self.base.first().copied().unwrap_or(0.0) } else { 0.0 };
            let score = row[voted] + extra;
            chosen.push(usize::from(if positive { score > 0.5 } else { score > 0.0 }));
            // Votes for the first class alone are the score of the second.
            let other = match (voted, self.transform, positive) {
                (1, ..) => 0.0,
                (_, Transform::None | Transform::Softmax | Transform::SoftmaxZero, true) => {
                    1.0 - score
                }
                _ => -score,
            };
            row.copy_from_slice(&[other, score]);
            let sums = matches!(self.transform, Transform::Softmax | Transform::SoftmaxZero);
            if voted == 1 || !sums {
                self.transform.apply(row);
            }
        }
        io.emit(self.labels.pick(&chosen)?);
        io.emit(Tensor::new([rows, classes], scores)?);
        Ok(())
    }
}
