//! Operators that take rows as a whole.

use super::Made;
use super::site::{MOST_GROUPS, Site, Step, flat_groups, joined, word, words};
use crate::error::{Result, bail};
use crate::gpu::families::FLAT;
use crate::gpu::families::rows::{self, Normalisation, Reduction, Team, Walk};
use crate::gpu::ir::Kernel;
use crate::graph::ValueId;
use crate::tensor::{normalise_axis, strides};

/// Elements of a row from which on a group takes it.
const LONG: usize = 64;

/// Rows of a tensor: the axes between them, and those within.
struct Rows {
    walk: Walk,
    /// The groups of a launch and the 20 words that all kernels over rows have.
    groups: [u32; 3],
    words: Vec<u32>,
    /// Elements of a row.
    length: usize,
}

impl Rows {
    /// The rows of a tensor of this shape along the axes that `within` says.
    fn new(shape: &[usize], within: &[bool], team: Option<Team>) -> Result<Self> {
        let own = strides(shape);
        let part = |inside: bool| -> Result<(Vec<usize>, Vec<u32>, Vec<u32>)> {
            let axes = || (0..shape.len()).filter(|d| within[*d] == inside);
            let extents: Vec<usize> = axes().map(|d| shape[d]).collect();
            let steps = vec![axes().map(|d| own[d] as isize).collect::<Vec<_>>()];
            let (joined, steps) = joined(&extents, &steps);
            let steps: Vec<usize> = steps[0].iter().map(|s| s.unsigned_abs()).collect();
            Ok((extents, words::<4>(&joined)?.to_vec(), words::<4>(&steps)?.to_vec()))
        };
        let (between, outer, outer_steps) = part(false)?;
        let (inside, inner, inner_steps) = part(true)?;
        let (count, length) = (between.iter().product::<usize>(), inside.iter().product());
        let team = team.unwrap_or(if length < LONG { Team::Thread } else { Team::Group });
        let (groups, across) = match team {
            Team::Thread => flat_groups(count, FLAT),
            Team::Group => flat_groups(count, 1),
        };
        let axes = |extents: &[u32]| word(extents.iter().filter(|e| **e != 0).count());
        let both = axes(&outer) | axes(&inner) << 8;
        let mut all = vec![word(count), across, word(length), both];
        all.extend(outer.iter().chain(&outer_steps).chain(&inner).chain(&inner_steps));
        let walk = Walk { team, plain: axes(&inner) <= 1 };
        Ok(Self { walk, groups, words: all, length })
    }

    /// # Errors
    /// If rows have no first element to begin with.
    fn not_empty(&self) -> Result<()> {
        if self.length == 0 && self.groups[0] > 0 {
            bail!(Unsupported, "the largest or smallest of rows without elements");
        }
        Ok(())
    }

    fn step(
        mut self,
        site: &Site<'_>,
        kernel: Kernel,
        reads: Vec<ValueId>,
        more: &[u32],
    ) -> Result<Made> {
        self.words.extend(more);
        if site.out_shape()?.elements() == 0 {
            self.groups = [0; 3];
        }
        let step: Step = site.step(kernel, reads, self.words, self.groups)?;
        debug_assert!(self.groups[0] <= MOST_GROUPS);
        Ok(Made::Steps(vec![step]))
    }
}

pub(super) fn reduce(site: &Site<'_>) -> Result<Made> {
    let reduction = match site.node.op.as_str() {
        "ReduceSum" => Reduction::Sum,
        "ReduceMean" => Reduction::Mean,
        "ReduceMax" => Reduction::Max,
        "ReduceMin" => Reduction::Min,
        "ReduceProd" => Reduction::Prod,
        "ReduceL1" => Reduction::L1,
        "ReduceL2" => Reduction::L2,
        "ReduceSumSquare" => Reduction::SumSquare,
        "ReduceLogSum" => Reduction::LogSum,
        "ReduceLogSumExp" => Reduction::LogSumExp,
        other => bail!(Unsupported, "no kernel for {other}"),
    };
    let x = site.shape(0)?;
    let axes = match site.node.ints("axes")? {
        Some(axes) => axes.to_vec(),
        None => site.ints(1)?.unwrap_or_default(),
    };
    let noop = site.node.int_or("noop_with_empty_axes", 0)? != 0;
    if axes.is_empty() && noop {
        return Ok(Made::Same);
    }
    let mut within = vec![axes.is_empty(); x.rank()];
    for a in axes {
        within[normalise_axis(a, x.rank())?] = true;
    }
    let rows = Rows::new(&x, &within, None)?;
    if matches!(reduction, Reduction::Max | Reduction::Min | Reduction::LogSumExp) {
        rows.not_empty()?;
    }
    let kernel = rows::reduce(reduction, site.scalar(0)?, rows.walk);
    rows.step(site, kernel, vec![site.input(0)?], &[])
}

/// One number of all elements of the first input.
pub(super) fn whole(site: &Site<'_>, reduction: Reduction) -> Result<Step> {
    let x = site.shape(0)?;
    let rows = Rows::new(&x, &vec![true; x.rank()], None)?;
    rows.not_empty()?;
    let kernel = rows::reduce(reduction, site.scalar(0)?, rows.walk);
    site.step(kernel, vec![site.input(0)?], rows.words, rows.groups)
}

/// `GlobalAveragePool` and `GlobalMaxPool`: rows are planes.
pub(super) fn planes(site: &Site<'_>) -> Result<Made> {
    let x = site.shape(0)?;
    let within: Vec<bool> = (0..x.rank()).map(|d| d >= 2).collect();
    let rows = Rows::new(&x, &within, None)?;
    rows.not_empty()?;
    let of = if site.node.op == "GlobalMaxPool" { Reduction::Max } else { Reduction::Mean };
    let kernel = rows::reduce(of, site.scalar(0)?, rows.walk);
    rows.step(site, kernel, vec![site.input(0)?], &[])
}

pub(super) fn arg(site: &Site<'_>) -> Result<Made> {
    let x = site.shape(0)?;
    let axis = normalise_axis(site.node.int_or("axis", 0)?, x.rank())?;
    let within: Vec<bool> = (0..x.rank()).map(|d| d == axis).collect();
    let rows = Rows::new(&x, &within, Some(Team::Thread))?;
    rows.not_empty()?;
    let last = site.node.int_or("select_last_index", 0)? != 0;
    let kernel = rows::arg(site.node.op == "ArgMax", last, site.scalar(0)?, rows.walk.plain);
    rows.step(site, kernel, vec![site.input(0)?], &[])
}

/// `Softmax`, `LogSoftmax` and `Hardmax`: along one axis, before version 13 along all from it on.
pub(super) fn softmax(site: &Site<'_>) -> Result<Made> {
    let x = site.shape(0)?;
    let old = site.node.version < 13;
    let axis = site.node.int_or("axis", if old { 1 } else { -1 })?;
    // The axis may be the one after the last.
    let within: Vec<bool> = if old && axis == x.rank() as i64 {
        vec![false; x.rank()]
    } else {
        let axis = normalise_axis(axis, x.rank())?;
        (0..x.rank()).map(|d| if old { d >= axis } else { d == axis }).collect()
    };
    let hard = site.node.op == "Hardmax";
    let rows = Rows::new(&x, &within, hard.then_some(Team::Thread))?;
    let kernel = match site.node.op.as_str() {
        "Hardmax" => rows::hardmax(rows.walk.plain),
        op => rows::softmax(op == "LogSoftmax", rows.walk),
    };
    rows.step(site, kernel, vec![site.input(0)?], &[])
}

pub(super) fn lp_normalise(site: &Site<'_>) -> Result<Made> {
    let x = site.shape(0)?;
    let axis = normalise_axis(site.node.int_or("axis", -1)?, x.rank())?;
    let within: Vec<bool> = (0..x.rank()).map(|d| d == axis).collect();
    let rows = Rows::new(&x, &within, None)?;
    let kernel = rows::lp_normalise(site.node.int_or("p", 2)? == 2, rows.walk);
    rows.step(site, kernel, vec![site.input(0)?], &[])
}

impl Site<'_> {
    /// Rows normalised, with scale and bias by the four words of [`rows::normalise`].
    fn normalised(
        &self,
        within: &[bool],
        normalisation: Normalisation,
        parameters: [usize; 4],
    ) -> Result<Made> {
        let rows = Rows::new(&self.shape(0)?, within, None)?;
        let kernel = rows::normalise(normalisation, rows.walk);
        let mut reads = vec![self.input(0)?];
        if normalisation.scale {
            reads.push(self.input(1)?);
        }
        if normalisation.bias {
            reads.push(self.input(2)?);
        }
        rows.step(self, kernel, reads, &words::<4>(&parameters)?)
    }
}

/// `LayerNormalization`, `RMSNormalization` and `SimplifiedLayerNormalization`.
pub(super) fn layer(site: &Site<'_>) -> Result<Made> {
    let x = site.shape(0)?;
    let axis = normalise_axis(site.node.int_or("axis", -1)?, x.rank())?;
    let within: Vec<bool> = (0..x.rank()).map(|d| d >= axis).collect();
    let length: usize = x[axis..].iter().product();
    let centred = site.node.op == "LayerNormalization";
    let bias = centred && site.optional(2).is_some();
    for i in 1..if bias { 3 } else { 2 } {
        if site.shape(i)?.elements() != length {
            bail!(Unsupported, "a scale or bias that is not one number for each of {length}");
        }
    }
    let epsilon = site.node.float_or("epsilon", 1e-5)?;
    let normalisation = Normalisation { centred, epsilon, floor: 0.0, scale: true, bias };
    site.normalised(&within, normalisation, [1, 0, 1, length])
}

/// `InstanceNormalization` and `GroupNormalization`: rows are channels, or groups of them.
pub(super) fn group(site: &Site<'_>) -> Result<Made> {
    let x = site.shape(0)?;
    let &[items, channels, ..] = &x[..] else {
        bail!(Shape, "it needs a batch and a channel axis, got {x}");
    };
    let plane: usize = x[2..].iter().product();
    let groups = match site.node.op.as_str() {
        "GroupNormalization" => usize::try_from(site.node.required_int("num_groups")?).unwrap_or(0),
        _ => channels,
    };
    if groups == 0 || channels % groups != 0 {
        bail!(Shape, "{channels} channels do not fall into {groups} groups");
    }
    let each = channels / groups;
    let parameters = site.shape(1)?.elements();
    let place = match parameters {
        n if n == channels => [groups, each, plane.max(1), each],
        n if n == groups => [groups, 1, 1, 1],
        n => bail!(Shape, "{n} scales for {channels} channels"),
    };
    if site.shape(2)?.elements() != parameters {
        bail!(Shape, "there are not as many biases as scales");
    }
    let epsilon = site.node.float_or("epsilon", 1e-5)?;
    let normalisation =
        Normalisation { centred: true, epsilon, floor: 0.0, scale: true, bias: true };
    // Items, groups, and what lies in a group.
    let rows = Rows::new(&[items, groups, each * plane], &[false, false, true], None)?;
    let kernel = rows::normalise(normalisation, rows.walk);
    debug_assert_eq!(rows.length, each * plane);
    let reads = vec![site.input(0)?, site.input(1)?, site.input(2)?];
    rows.step(site, kernel, reads, &words::<4>(&place)?)
}

/// `MeanVarianceNormalization`.
pub(super) fn mean_variance(site: &Site<'_>) -> Result<Made> {
    let x = site.shape(0)?;
    let mut within = vec![false; x.rank()];
    for a in site.node.ints("axes")?.unwrap_or(&[0, 2, 3]) {
        within[normalise_axis(*a, x.rank())?] = true;
    }
    let normalisation =
        Normalisation { centred: true, epsilon: 0.0, floor: 1e-9, scale: false, bias: false };
    site.normalised(&within, normalisation, [1, 0, 1, 1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_lie_where_their_axes_say() {
        let rows = Rows::new(&[2, 3, 4, 5], &[false, true, false, true], None).unwrap();
        assert_eq!((rows.length, rows.walk.team, rows.walk.plain), (15, Team::Thread, false));
        assert_eq!(rows.words[..4], [8, 64, 15, 2 | 2 << 8]);
        assert_eq!(rows.words[4..], [2, 4, 0, 0, 60, 5, 0, 0, 3, 5, 0, 0, 20, 1, 0, 0]);
    }
}
