//! State that a stream carries from each item to the next.

use std::collections::HashMap;
use std::sync::Arc;

use brigade_actors::{Binding, ItemError};

use super::prepared::{Prepared, listing};
use crate::error::{Result, bail, err};
use crate::tensor::Value;

/// What a stream binds: outputs carried back to inputs, and inputs that stay the same.
///
/// ```
/// use brigade::pipeline::State;
/// use brigade::{DType, Tensor};
/// let zeros = Tensor::zeros(DType::F32, [2, 1, 128])?;
/// let state = State::new()
///     .carry("state", "stateN", zeros)
///     .constant("sr", Tensor::scalar(16_000_i64));
/// # let _ = state;
/// # Ok::<(), brigade::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct State {
    carried: Vec<(String, String, Value)>,
    constants: Vec<(String, Value)>,
}

impl State {
    /// Nothing is bound.
    pub fn new() -> Self {
        Self::default()
    }

    /// The input takes `initial` for the first item, and this output of the item before from then
    /// on.
    #[must_use]
    pub fn carry(
        mut self,
        input: impl Into<String>,
        output: impl Into<String>,
        initial: impl Into<Value>,
    ) -> Self {
        self.carried.push((input.into(), output.into(), initial.into()));
        self
    }

    /// The input takes this for every item.
    #[must_use]
    pub fn constant(mut self, input: impl Into<String>, value: impl Into<Value>) -> Self {
        self.constants.push((input.into(), value.into()));
        self
    }
}

#[derive(Debug)]
pub(super) struct StateBinding {
    prepared: Arc<Prepared>,
    /// Per carried input: its place, the place of its output, what it is now.
    carried: Vec<(usize, usize, Value)>,
    constants: HashMap<usize, Value>,
}

impl StateBinding {
    pub(super) fn new(state: State, prepared: Arc<Prepared>, outputs: &[String]) -> Result<Self> {
        let mut bound = vec![false; prepared.inputs().len()];
        let mut place = |name: &str, value: &Value| -> Result<usize> {
            let found = prepared.inputs().iter().position(|(n, _)| n == name);
            let Some(i) = found else {
                let names: Vec<&str> = prepared.inputs().iter().map(|(n, _)| n.as_str()).collect();
                return Err(err!(UnknownName, "the graph has no input `{name}`")
                    .with_help(listing("its inputs are", &names)));
            };
            if std::mem::replace(&mut bound[i], true) {
                bail!(Duplicate, "input `{name}` is bound twice");
            }
            let fact = &prepared.inputs()[i].1;
            fact.admits(value).map_err(|why| err!(Shape, "input `{name}`: {why}"))?;
            Ok(i)
        };
        let mut carried = Vec::new();
        for (input, output, initial) in state.carried {
            let at = place(&input, &initial)?;
            let Some(from) = outputs.iter().position(|o| *o == output) else {
                let names: Vec<&str> = outputs.iter().map(String::as_str).collect();
                return Err(err!(UnknownName, "the graph has no output `{output}`")
                    .with_help(listing("its outputs are", &names)));
            };
            carried.push((at, from, initial));
        }
        let mut constants = HashMap::new();
        for (input, value) in state.constants {
            constants.insert(place(&input, &value)?, value);
        }
        Ok(Self { prepared, carried, constants })
    }

    /// Whether each input is bound.
    pub(super) fn bound(&self) -> Vec<bool> {
        let mut out = vec![false; self.prepared.inputs().len()];
        for at in self.carried.iter().map(|c| c.0).chain(self.constants.keys().copied()) {
            out[at] = true;
        }
        out
    }

    /// The same with outputs counted as sinks.
    pub(super) fn over_sinks(mut self, sinks: &[Option<usize>]) -> Result<Self> {
        for (_, output, _) in &mut self.carried {
            match sinks.get(*output).copied().flatten() {
                Some(s) => *output = s,
                None => bail!(Graph, "a carried output is constant"),
            }
        }
        Ok(self)
    }
}

impl Binding<Value> for StateBinding {
    fn bind(&mut self, inputs: &mut Vec<Option<Value>>) -> Result<(), ItemError> {
        for (at, _, value) in &self.carried {
            inputs[*at] = Some(value.clone());
        }
        for (at, value) in &self.constants {
            inputs[*at] = Some(value.clone());
        }
        // Behind the inputs there may be what starts a graph without any.
        let declared = self.prepared.inputs().len();
        let all: Option<Vec<Value>> = inputs.iter().take(declared).cloned().collect();
        match all {
            Some(values) => self.prepared.admit(&values).map_err(ItemError::from_error),
            None => Err(ItemError::failed("an input is missing")),
        }
    }

    fn carry(&mut self, outputs: &[Value]) -> Result<(), ItemError> {
        for (_, from, value) in &mut self.carried {
            *value = outputs[*from].clone();
        }
        Ok(())
    }
}
