//! How a batch axis passes through an operator.
//!
//! A batch may be cut into micro-batches only where no node mixes its items. Each operator says,
//! for the axes that carry the batch in its inputs, which axis carries it in its outputs. An axis
//! is *item-major*: it may hold several rows of each item, all rows of one item together.

use crate::graph::{Dim, Node};

/// What an operator's `batch` sees.
#[derive(Debug)]
pub struct BatchQuery<'a> {
    /// The node.
    pub node: &'a Node,
    /// For each input, the axis that carries the batch (`None`: the same for every item).
    pub axes: &'a [Option<usize>],
    /// The symbol of the batch, if it has one: operators that make rows of their own (`Expand`,
    /// `ConstantOfShape`) find the batch in their output by it.
    pub symbol: Option<&'a str>,
    /// The inputs' symbolic shapes, where known.
    pub shapes: &'a [Option<Vec<Dim>>],
    /// The outputs' symbolic shapes, where known.
    pub output_shapes: &'a [Option<Vec<Dim>>],
    /// The inputs' whole-number constants (axes, shapes, permutations), where known.
    pub ints: &'a [Option<Vec<i64>>],
}

/// Where the batch is after an operator: the axis for each output, or why it is mixed.
pub type BatchFlow = Result<Vec<Option<usize>>, String>;

impl BatchQuery<'_> {
    /// Whether no input carries the batch.
    pub fn is_free(&self) -> bool {
        self.axes.iter().all(Option::is_none)
    }

    /// The same axis for every output.
    pub fn everywhere(&self, axis: Option<usize>) -> BatchFlow {
        Ok(vec![axis; self.node.outputs.len()])
    }

    /// The only axis of `shape` whose extent is a multiple of the batch's symbol; no other one may
    /// depend on it.
    ///
    /// # Errors
    /// Words, if several axes depend on the batch or one does otherwise than as a multiple.
    pub fn batch_axis_of(&self, shape: &[Dim]) -> Result<Option<usize>, String> {
        let Some(symbol) = self.symbol else { return Ok(None) };
        let mut found = None;
        for (axis, d) in shape.iter().enumerate().filter(|(_, d)| d.contains(symbol)) {
            let rows = d.exact_div(&Dim::symbol(symbol));
            if found.is_some() || rows.is_none_or(|r| r.contains(symbol)) {
                return Err(format!("more than one axis of {shape:?} depends on the batch"));
            }
            found = Some(axis);
        }
        Ok(found)
    }

    /// The number of axes of an input, if known.
    pub fn rank(&self, i: usize) -> Option<usize> {
        self.shapes.get(i)?.as_ref().map(Vec::len)
    }
}

/// Element by element with broadcasting: axes count from the right.
pub fn elementwise(q: &BatchQuery<'_>) -> BatchFlow {
    if q.is_free() {
        return q.everywhere(None);
    }
    let mut ranks = Vec::new();
    for i in 0..q.shapes.len() {
        if q.node.inputs.get(i).copied().flatten().is_none() {
            ranks.push(0);
            continue;
        }
        ranks.push(q.rank(i).ok_or("the rank of an input is not known")?);
    }
    let most = ranks.iter().copied().max().unwrap_or(0);
    let mut found: Option<usize> = None;
    for (axis, rank) in q.axes.iter().zip(&ranks) {
        if let Some(a) = axis {
            let aligned = a + most - rank;
            if found.is_some_and(|f| f != aligned) {
                return Err("its inputs carry the batch on different axes".to_owned());
            }
            found = Some(aligned);
        }
    }
    if let Some(f) = found {
        for (i, rank) in ranks.iter().enumerate() {
            // An input without the batch must not have rows of its own along that axis.
            if q.axes[i].is_none()
                && f + rank >= most
                && q.shapes[i]
                    .as_ref()
                    .and_then(|s| s.get(f + rank - most))
                    .is_some_and(|d| d.as_fixed() != Some(1))
                && *rank > 0
            {
                return Err(format!("input {i} has rows of its own along the batch axis"));
            }
        }
    }
    q.everywhere(found)
}

/// The batch is axis 0 of input 0 and of every output; no other input may carry it.
pub fn leading(q: &BatchQuery<'_>) -> BatchFlow {
    if q.axes.iter().skip(1).any(Option::is_some) {
        return Err("an input other than the first carries the batch".to_owned());
    }
    match q.axes.first().copied().flatten() {
        None => q.everywhere(None),
        Some(0) => q.everywhere(Some(0)),
        Some(a) => Err(format!("the batch is on axis {a}, not on the first")),
    }
}

/// Input 0 keeps its axis; no other input may carry the batch.
pub fn unary(q: &BatchQuery<'_>) -> BatchFlow {
    if q.axes.iter().skip(1).any(Option::is_some) {
        return Err("an input other than the first carries the batch".to_owned());
    }
    q.everywhere(q.axes.first().copied().flatten())
}

/// The operator mixes items whenever an input carries the batch.
pub fn mixes(q: &BatchQuery<'_>) -> BatchFlow {
    if q.is_free() { q.everywhere(None) } else { Err("it mixes the items of a batch".to_owned()) }
}
