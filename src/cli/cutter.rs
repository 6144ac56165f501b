//! Cutting items into micro-batches, and joining what came of them.

use super::placing::Placed;
use crate::error::{Result, bail};
use crate::pipeline::BatchAxes;
use crate::tensor::Value;

/// Cuts items into micro-batches.
pub(super) struct Cutter {
    /// The size, and along which axes or why not.
    micro_batch: Option<(usize, Result<BatchAxes>)>,
    inputs: Vec<String>,
}

impl Cutter {
    pub(super) fn new(placed: &Placed) -> Result<Self> {
        let inputs = placed.graph.input_names().map(str::to_owned).collect();
        let find = || BatchAxes::find(&placed.graph, placed.registry.ops(), &placed.axes);
        if placed.micro_batch.is_none() && !placed.axes.is_empty() {
            bail!(Usage, "--batch-axis is of no use without --micro-batch");
        }
        Ok(Self { micro_batch: placed.micro_batch.map(|n| (n, find())), inputs })
    }

    /// The parts of an item, in order; one, if it is not cut.
    pub(super) fn cut(&self, inputs: Vec<(String, Value)>) -> Result<Vec<Vec<(String, Value)>>> {
        let Some((size, axes)) = &self.micro_batch else { return Ok(vec![inputs]) };
        let place = |name: &str| inputs.iter().position(|(n, _)| n == name);
        let order: Option<Vec<usize>> = self.inputs.iter().map(|n| place(n)).collect();
        // The pipeline says what is wrong with the names.
        let Some(order) = order.filter(|o| o.len() == inputs.len()) else {
            return Ok(vec![inputs]);
        };
        let values: Vec<Value> = order.iter().map(|i| inputs[*i].1.clone()).collect();
        let axes = match axes {
            Ok(axes) => axes,
            Err(e) => {
                let rows = values.first().and_then(|v| v.shape()?.first().copied()).unwrap_or(1);
                return if rows <= *size { Ok(vec![inputs]) } else { Err(e.clone()) };
            }
        };
        let total = axes.count(&values)?;
        if total <= *size {
            return Ok(vec![inputs]);
        }
        (0..total)
            .step_by(*size)
            .map(|start| {
                let part = axes.cut(&values, start, (*size).min(total - start))?;
                Ok(self.inputs.iter().cloned().zip(part).collect())
            })
            .collect()
    }

    pub(super) fn join(&self, mut parts: Vec<Vec<Value>>) -> Result<Vec<Value>> {
        match (&self.micro_batch, parts.len()) {
            (Some((_, Ok(axes))), n) if n > 1 => axes.join(parts),
            _ => Ok(parts.pop().unwrap_or_default()),
        }
    }
}
