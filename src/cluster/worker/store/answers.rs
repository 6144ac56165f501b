//! What the store answers.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::Held;
use crate::cluster::message::{FiringKey, Form, OutputKey, WireError};
use crate::cluster::worker::quota::Charge;
use crate::tensor::DType;

/// What is to be done with a payload that is about to come.
#[derive(Debug)]
pub(crate) enum Admission {
    /// It is taken; its bytes are charged already.
    Take(Charge),
    /// Nobody wants it.
    Discard,
    /// It is older than what is expected.
    Stale,
    /// It is not what was agreed, which these firings do not survive.
    Fail(Vec<FiringKey>, WireError),
}

/// What becomes of an order to compute.
#[derive(Debug)]
pub(crate) enum Fired {
    /// It waits for inputs, or is under way.
    Pending,
    /// All is there: it goes to its stage.
    Ready,
    /// It is of a stage that was replaced.
    Stale,
    /// It was computed before.
    Done(Delivery),
    Failed(WireError),
}

/// What a stage computes.
#[derive(Debug)]
pub(crate) struct Job {
    pub(crate) epoch: u32,
    pub(crate) inputs: Vec<Held>,
}

/// What the coordinator gets to know of a firing that is done.
#[derive(Debug)]
pub(crate) struct Delivery {
    pub(crate) start_ns: u64,
    pub(crate) end_ns: u64,
    pub(crate) give: Vec<(u32, Held)>,
    pub(crate) kept: Vec<(u32, DType, Vec<u64>)>,
}

/// An output on its way to other workers.
#[derive(Debug)]
pub(crate) struct Push {
    pub(crate) what: OutputKey,
    pub(crate) epoch: u32,
    pub(crate) held: Held,
    pub(crate) to: Arc<[String]>,
}

/// What follows from a firing that is done.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) delivery: Delivery,
    pub(crate) pushes: Vec<Push>,
    pub(crate) ready: Vec<FiringKey>,
}

/// What a firing made.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) epoch: u32,
    pub(super) start_ns: u64,
    pub(super) end_ns: u64,
    pub(super) outputs: Vec<Held>,
}

impl Outcome {
    /// What the coordinator gets, if it asks for these outputs: those, the ones that are no tensors,
    /// which go nowhere else, and the forms of all tensors, since all are kept.
    pub(super) fn deliver(&self, give: &BTreeSet<u32>) -> Delivery {
        let (mut given, mut kept) = (Vec::new(), Vec::new());
        for (held, output) in self.outputs.iter().zip(0..) {
            if let Form::Plain { dtype, shape } = &held.form {
                kept.push((output, *dtype, shape.clone()));
            }
            if give.contains(&output) || !held.is_plain() {
                given.push((output, held.clone()));
            }
        }
        Delivery { start_ns: self.start_ns, end_ns: self.end_ns, give: given, kept }
    }
}
