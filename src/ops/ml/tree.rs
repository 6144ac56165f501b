//! Ensembles of decision trees, and `TreeEnsemble` of version 5.

use super::{DOMAIN, Transform, infer_targets, rows};
use crate::error::{Result, bail};
use crate::graph::Node;
use crate::ops::case::{Case, filled};
use crate::ops::def::types::FLOATS;
use crate::ops::{AttributeDef, AttributeKind, CpuKernel, Io, OpDef, Port, Threads, batch, cost};
use crate::tensor::{DType, Tensor, cast, element_count};

/// How a node decides.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Test {
    LessOrEqual,
    Less,
    GreaterOrEqual,
    Greater,
    Equal,
    NotEqual,
    /// Whether the value is one of a set: a range of [`Forest::members`].
    Member(usize, usize),
}

impl Test {
    /// By its number in version 5, without the sets.
    fn numbered(number: u8) -> Option<Self> {
        Some(match number {
            0 => Self::LessOrEqual,
            1 => Self::Less,
            2 => Self::GreaterOrEqual,
            3 => Self::Greater,
            4 => Self::Equal,
            5 => Self::NotEqual,
            _ => return None,
        })
    }
}

/// Where a branch leads.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Way {
    Branch(usize),
    /// A range of [`Forest::votes`].
    Leaf(usize, usize),
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Branch {
    pub(super) feature: usize,
    pub(super) test: Test,
    pub(super) value: f32,
    pub(super) holds: Way,
    pub(super) fails: Way,
    /// Whether NaN goes where the test holds.
    pub(super) missing_holds: bool,
}

/// How the votes of the trees come together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Aggregate {
    Average,
    Sum,
    Min,
    Max,
}

impl Aggregate {
    pub(super) fn named(name: &str) -> Result<Self> {
        Ok(match name {
            "AVERAGE" => Self::Average,
            "SUM" => Self::Sum,
            "MIN" => Self::Min,
            "MAX" => Self::Max,
            other => bail!(Graph, "attribute `aggregate_function` is `{other}`"),
        })
    }

    fn numbered(number: i64) -> Result<Self> {
        Ok(match number {
            0 => Self::Average,
            1 => Self::Sum,
            2 => Self::Min,
            3 => Self::Max,
            _ => bail!(Graph, "attribute `aggregate_function` is {number}, expected 0 to 3"),
        })
    }
}

/// Trees made ready; every path was checked to end.
#[derive(Debug)]
pub(super) struct Forest {
    pub(super) branches: Vec<Branch>,
    pub(super) roots: Vec<Way>,
    /// The target and the weight of what leaves vote for.
    pub(super) votes: Vec<(usize, f32)>,
    pub(super) members: Vec<f32>,
    pub(super) targets: usize,
    pub(super) aggregate: Aggregate,
}

impl Forest {
    /// # Errors
    /// If a branch leads to itself, outside of the trees, or a vote is for no target.
    pub(super) fn check(&self) -> Result<()> {
        if self.votes.iter().any(|(t, _)| *t >= self.targets) {
            bail!(Graph, "a leaf votes for a target beyond the {} that there are", self.targets);
        }
        // A node that is reached a second time may be on a cycle; trees have no such.
        let mut seen = vec![false; self.branches.len()];
        let mut waiting: Vec<Way> = self.roots.clone();
        while let Some(way) = waiting.pop() {
            match way {
                Way::Leaf(start, end) if start <= end && end <= self.votes.len() => {}
                Way::Branch(k) if k < seen.len() && !std::mem::replace(&mut seen[k], true) => {
                    if let Test::Member(start, end) = self.branches[k].test
                        && (start > end || end > self.members.len())
                    {
                        bail!(Graph, "a set of members ends beyond all of them");
                    }
                    waiting.extend([self.branches[k].holds, self.branches[k].fails]);
                }
                _ => bail!(Graph, "the nodes of a tree do not make a tree, at {way:?}"),
            }
        }
        Ok(())
    }

    /// How many columns a row must have.
    fn features(&self) -> usize {
        self.branches.iter().map(|b| b.feature + 1).max().unwrap_or(0)
    }

    fn votes(&self, root: Way, row: &[f32]) -> &[(usize, f32)] {
        let mut at = root;
        loop {
            match at {
                Way::Leaf(start, end) => return &self.votes[start..end],
                Way::Branch(k) => {
                    let b = &self.branches[k];
                    let x = row[b.feature];
                    let holds = if x.is_nan() && b.missing_holds {
                        true
                    } else {
                        match b.test {
                            Test::LessOrEqual => x <= b.value,
                            Test::Less => x < b.value,
                            Test::GreaterOrEqual => x >= b.value,
                            Test::Greater => x > b.value,
                            Test::Equal => x == b.value,
                            Test::NotEqual => x != b.value,
                            Test::Member(start, end) => self.members[start..end].contains(&x),
                        }
                    };
                    at = if holds { b.holds } else { b.fails };
                }
            }
        }
    }

    /// The scores of all rows, with the base values; `voted` tells which targets had a vote.
    pub(super) fn scores(&self, x: &Tensor, base: &[f32], threads: &Threads) -> Result<Scores> {
        let (x, rows, columns) = rows(x)?;
        if columns < self.features() {
            bail!(Shape, "a tree looks at column {}, there are {columns}", self.features() - 1);
        }
        if !base.is_empty() && base.len() != self.targets {
            bail!(Graph, "{} base values are given for {} targets", base.len(), self.targets);
        }
        element_count(&[rows, self.targets], 8)?;
        let x = x.as_slice::<f32>()?;
        let mut all: Vec<Option<f32>> = vec![None; rows * self.targets];
        let count = self.roots.len() as f32;
        threads.split_rows(&mut all, self.targets.max(1), |first, chunk| {
            for (k, sums) in chunk.chunks_mut(self.targets.max(1)).enumerate() {
                let row = &x[(first + k) * columns..(first + k + 1) * columns];
                for root in &self.roots {
                    for (target, weight) in self.votes(*root, row) {
                        let sum = &mut sums[*target];
                        *sum = Some(match (*sum, self.aggregate) {
                            (None, _) => *weight,
                            (Some(s), Aggregate::Sum | Aggregate::Average) => s + weight,
                            (Some(s), Aggregate::Min) => s.min(*weight),
                            (Some(s), Aggregate::Max) => s.max(*weight),
                        });
                    }
                }
                for (target, sum) in sums.iter_mut().enumerate() {
                    if self.aggregate == Aggregate::Average {
                        *sum = sum.map(|s| s / count);
                    }
                    if let Some(base) = base.get(target) {
                        *sum = Some(sum.unwrap_or(0.0) + base);
                    }
                }
            }
        });
        Ok(Scores { all, rows })
    }
}

/// The score of each row and target, where there is one.
pub(super) struct Scores {
    pub(super) all: Vec<Option<f32>>,
    pub(super) rows: usize,
}

/// The sum (or mean, or extreme) of what the trees vote for.
pub(in crate::ops) static TREE_ENSEMBLE: OpDef = OpDef {
    name: "TreeEnsemble",
    domain: DOMAIN,
    since: 5,
    attributes: &[
        AttributeDef::optional("aggregate_function", AttributeKind::Int),
        AttributeDef::required("leaf_targetids", AttributeKind::Ints),
        AttributeDef::required("leaf_weights", AttributeKind::Tensor),
        AttributeDef::optional("membership_values", AttributeKind::Tensor),
        AttributeDef::optional("n_targets", AttributeKind::Int),
        AttributeDef::required("nodes_falseleafs", AttributeKind::Ints),
        AttributeDef::required("nodes_falsenodeids", AttributeKind::Ints),
        AttributeDef::required("nodes_featureids", AttributeKind::Ints),
        AttributeDef::optional("nodes_hitrates", AttributeKind::Tensor),
        AttributeDef::optional("nodes_missing_value_tracks_true", AttributeKind::Ints),
        AttributeDef::required("nodes_modes", AttributeKind::Tensor),
        AttributeDef::required("nodes_splits", AttributeKind::Tensor),
        AttributeDef::required("nodes_trueleafs", AttributeKind::Ints),
        AttributeDef::required("nodes_truenodeids", AttributeKind::Ints),
        AttributeDef::optional("post_transform", AttributeKind::Int),
        AttributeDef::required("tree_roots", AttributeKind::Ints),
    ],
    inputs: &[Port::required("X", FLOATS)],
    outputs: &[Port::required("Y", FLOATS)],
    infer: |i| {
        let targets = i.node.int_or("n_targets", 1)?;
        infer_targets(i, i.dtype(0), targets);
        Ok(())
    },
    batch: batch::leading,
    cost: cost::elementwise,
    prepare: |p| {
        let transform = Transform::numbered(p.node.int_or("post_transform", 0)?)?;
        Ok(Box::new(Ensemble { forest: forest(p.node)?, transform }))
    },
    cases,
};

pub(super) fn index(n: i64, what: &str) -> Result<usize> {
    match usize::try_from(n).ok().filter(|n| *n < 1 << 31) {
        Some(n) => Ok(n),
        None => bail!(Graph, "attribute `{what}` holds {n}, expected 0 to 2^31"),
    }
}

fn forest(node: &Node) -> Result<Forest> {
    let ints = |name: &str| Ok::<_, crate::Error>(node.ints(name)?.unwrap_or(&[]));
    let floats = |name: &str| -> Result<Vec<f32>> {
        node.tensor(name)?.map_or_else(|| Ok(Vec::new()), Tensor::to_f32s)
    };
    let features = ints("nodes_featureids")?;
    let n = features.len();
    let columns =
        ["nodes_truenodeids", "nodes_trueleafs", "nodes_falsenodeids", "nodes_falseleafs"]
            .map(ints);
    let [true_ids, true_leafs, false_ids, false_leafs] = columns;
    let (true_ids, true_leafs, false_ids, false_leafs) =
        (true_ids?, true_leafs?, false_ids?, false_leafs?);
    let splits = floats("nodes_splits")?;
    let modes = match node.tensor("nodes_modes")? {
        Some(t) if t.dtype() == DType::U8 => t.as_slice::<u8>()?.to_vec(),
        _ => bail!(Graph, "attribute `nodes_modes` is no tensor of u8"),
    };
    let missing = ints("nodes_missing_value_tracks_true")?;
    let lengths = [true_ids.len(), true_leafs.len(), false_ids.len(), false_leafs.len()];
    let fits = lengths.iter().chain([&splits.len(), &modes.len()]).all(|l| *l == n);
    if !fits || !missing.is_empty() && missing.len() != n {
        bail!(Graph, "the attributes of {n} nodes are of different lengths");
    }
    let (ids, weights) = (ints("leaf_targetids")?, floats("leaf_weights")?);
    if ids.len() != weights.len() {
        bail!(Graph, "{} leaves have {} weights", ids.len(), weights.len());
    }
    let mut votes = Vec::with_capacity(ids.len());
    for (id, weight) in ids.iter().zip(weights) {
        votes.push((index(*id, "leaf_targetids")?, weight));
    }
    // The sets of members stand one after the other, each with a NaN behind it.
    let members = floats("membership_values")?;
    let mut sets = members.split(|v| v.is_nan()).scan(0, |start, set| {
        let own = (*start, *start + set.len());
        *start += set.len() + 1;
        Some(own)
    });
    let mut branches = Vec::with_capacity(n);
    for k in 0..n {
        let way = |id: i64, leaf: i64, what: &str| -> Result<Way> {
            let id = index(id, what)?;
            Ok(if leaf != 0 { Way::Leaf(id, id + 1) } else { Way::Branch(id) })
        };
        let test = match (modes[k], Test::numbered(modes[k])) {
            (_, Some(test)) => test,
            (6, None) => match sets.next() {
                Some((start, end)) => Test::Member(start, end),
                None => bail!(Graph, "there are fewer sets of members than nodes that have one"),
            },
            (other, None) => bail!(Graph, "attribute `nodes_modes` holds {other}"),
        };
        branches.push(Branch {
            feature: index(features[k], "nodes_featureids")?,
            test,
            value: splits[k],
            holds: way(true_ids[k], true_leafs[k], "nodes_truenodeids")?,
            fails: way(false_ids[k], false_leafs[k], "nodes_falsenodeids")?,
            missing_holds: missing.get(k).is_some_and(|m| *m != 0),
        });
    }
    let mut roots = Vec::new();
    for root in ints("tree_roots")? {
        let root = index(*root, "tree_roots")?;
        // A tree that is a leaf alone is a node whose ways both lead to it.
        roots.push(match branches.get(root) {
            Some(b) if b.holds == b.fails && matches!(b.holds, Way::Leaf(..)) => b.holds,
            _ => Way::Branch(root),
        });
    }
    let forest = Forest {
        branches,
        roots,
        votes,
        members,
        targets: index(node.int_or("n_targets", 1)?, "n_targets")?,
        aggregate: Aggregate::numbered(node.int_or("aggregate_function", 1)?)?,
    };
    forest.check()?;
    Ok(forest)
}

#[derive(Debug)]
struct Ensemble {
    forest: Forest,
    transform: Transform,
}

impl CpuKernel for Ensemble {
    fn run(&self, io: &mut Io<'_>) -> Result<()> {
        let x = io.tensor(0)?;
        let Scores { all, rows } = self.forest.scores(x, &[], io.threads())?;
        let mut scores: Vec<f32> = all.into_iter().map(Option::unwrap_or_default).collect();
        let targets = self.forest.targets;
        scores.chunks_mut(targets.max(1)).for_each(|row| self.transform.apply(row));
        io.emit(cast(&Tensor::new([rows, targets], scores)?, x.dtype())?);
        Ok(())
    }
}

fn cases() -> Vec<Case> {
    // x0 <= 3: target 0 gets 5; else x1 is in {1, 4}: target 1 gets 7, else 0.5.
    let new = |name: &str| {
        Case::new("TreeEnsemble", 5, name)
            .domain(DOMAIN)
            .attr("n_targets", 2)
            .attr("tree_roots", vec![0_i64])
            .attr("nodes_featureids", vec![0_i64, 1])
            .attr("nodes_modes", filled(&[2], &[0_u8, 6]))
            .attr("nodes_splits", filled(&[2], &[3.0_f32, 0.0]))
            .attr("membership_values", filled(&[3], &[1.0_f32, 4.0, f32::NAN]))
            .attr("nodes_truenodeids", vec![0_i64, 1])
            .attr("nodes_trueleafs", vec![1_i64, 1])
            .attr("nodes_falsenodeids", vec![1_i64, 2])
            .attr("nodes_falseleafs", vec![0_i64, 1])
            .attr("leaf_targetids", vec![0_i64, 1, 1])
            .attr("leaf_weights", filled(&[3], &[5.0_f32, 7.0, 0.5]))
    };
    vec![
        new("a split and a set")
            .input(filled(&[3, 2], &[1.0_f32, 0.0, 9.0, 4.0, 9.0, 2.0]))
            .output(filled(&[3, 2], &[5.0_f32, 0.0, 0.0, 7.0, 0.0, 0.5])),
        new("NaN goes where it is sent")
            .attr("nodes_missing_value_tracks_true", vec![1_i64, 0])
            .input(filled(&[1, 2], &[f32::NAN, 0.0]))
            .output(filled(&[1, 2], &[5.0_f32, 0.0])),
    ]
}
