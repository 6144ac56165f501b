//! Streaming tagged items through a pipeline while measuring it.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use brigade_actors::Stats;

use super::PipelineReport;
use super::cores::{self, CoreTime};
use crate::error::{ErrorKind, Result};
use crate::pipeline::{Pipeline, Ticket};
use crate::tensor::Value;

/// What was measured while items streamed.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The figures of the pipeline at the begin of what is reported.
    pub before: Stats,
    /// The figures at its end.
    pub after: Stats,
    /// Whether what is reported leaves out the filling and the draining of the pipeline.
    pub steady: bool,
    /// Results in all, errors included.
    pub results: u64,
    /// From the first item to the last result.
    pub elapsed: Duration,
    /// Of the time in which threads of this process could run, the share in which they had no core;
    /// `None` where the system does not tell.
    pub waited_for_core: Option<f64>,
}

impl Measured {
    /// The report of what was measured. Where the cores were not free its advice says so, and blames
    /// no actor for the time that it waited for one.
    pub fn report(&self) -> PipelineReport {
        let mut report = PipelineReport::new(&self.after.since(&self.before));
        cores::heed(self.waited_for_core, &mut report.advice);
        report
    }
}

/// How many results a steady measurement has at least.
const STEADY_RESULTS: u64 = 8;

/// Streams items through a pipeline; `done` sees the result of each, in order. An item that is an
/// error already is passed on in its place. Never holds more than twice the number in flight.
///
/// ```
/// use brigade::ops::builder::GraphBuilder;
/// use brigade::{DType, Pipeline, Tensor, bench};
///
/// let mut g = GraphBuilder::new("g");
/// let x = g.input("x", DType::F32, ["N".into()])?;
/// let y = g.relu(x)?;
/// let pipeline = Pipeline::builder(g.finish([("y", y)])?).spawn()?;
/// let item = |n: usize| Ok(vec![("x".to_owned(), Tensor::new([1], vec![n as f32])?.into())]);
/// let mut got = Vec::new();
/// let measured = bench::stream(&pipeline, (0..20).map(|n| (n, item(n))), |n, outputs| {
///     got.push((n, outputs?[0].tensor()?.item::<f32>()?));
///     Ok(())
/// })?;
/// assert_eq!(got[7], (7, 7.0));
/// assert_eq!(measured.results, 20);
/// assert!(measured.report().items_per_s > 0.0);
/// # Ok::<(), brigade::Error>(())
/// ```
///
/// # Errors
/// What `done` says; nothing more is put in flight then.
pub fn stream<T>(
    pipeline: &Pipeline,
    items: impl IntoIterator<Item = (T, Result<Vec<(String, Value)>>)>,
    mut done: impl FnMut(T, Result<Vec<Value>>) -> Result<()>,
) -> Result<Measured> {
    feed(pipeline, items, |tag, result, _| done(tag, result))
}

/// As [`stream`]; `done` also hears how long it was from the push of the item to its result.
pub(super) fn feed<T>(
    pipeline: &Pipeline,
    items: impl IntoIterator<Item = (T, Result<Vec<(String, Value)>>)>,
    mut done: impl FnMut(T, Result<Vec<Value>>, Duration) -> Result<()>,
) -> Result<Measured> {
    let limit = pipeline.in_flight_limit();
    let mut items = items.into_iter();
    let mut ahead: VecDeque<(T, Result<Ticket>, Instant)> = VecDeque::new();
    let mut held: Option<(T, Vec<(String, Value)>)> = None;
    let mut exhausted = false;
    let mut results = 0_u64;
    let cores = CoreTime::now();
    let began = Instant::now();
    let start = pipeline.stats();
    let (mut filled, mut last) = (None, None);
    loop {
        while !exhausted && ahead.len() < 2 * limit {
            let (tag, inputs) = match held.take() {
                Some((tag, inputs)) => (tag, inputs),
                None => match items.next() {
                    Some((tag, Ok(inputs))) => (tag, inputs),
                    Some((tag, Err(e))) => {
                        ahead.push_back((tag, Err(e), Instant::now()));
                        continue;
                    }
                    None => {
                        exhausted = true;
                        last = Some((pipeline.stats(), results));
                        break;
                    }
                },
            };
            let at = Instant::now();
            // With results to take, waiting for a place would leave them lying.
            let pushed = if ahead.is_empty() {
                pipeline.push(inputs)
            } else {
                match pipeline.try_push(inputs.iter().cloned()) {
                    Err(e) if e.kind() == ErrorKind::Full => {
                        held = Some((tag, inputs));
                        break;
                    }
                    other => other,
                }
            };
            ahead.push_back((tag, pushed, at));
        }
        let Some((tag, ticket, at)) = ahead.pop_front() else { break };
        let result = ticket.and_then(Ticket::wait);
        let latency = at.elapsed();
        results += 1;
        if filled.is_none() && results >= limit as u64 {
            filled = Some((pipeline.stats(), results));
        }
        done(tag, result, latency)?;
    }
    let elapsed = began.elapsed();
    let waited_for_core = cores.and_then(|then| Some(CoreTime::now()?.waited_since(&then)));
    let (before, after, steady) = match (filled, last) {
        (Some((before, from)), Some((after, to))) if to >= from + STEADY_RESULTS => {
            (before, after, true)
        }
        _ => (start, pipeline.stats(), false),
    };
    Ok(Measured { before, after, steady, results, elapsed, waited_for_core })
}
