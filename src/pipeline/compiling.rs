//! Compiles segments: those of different workers at once, since this process only waits for them, all
//! others one after the other.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use super::stage::caught;
use crate::device::{CompiledSegment, Device};
use crate::error::Error;
use crate::graph::Graph;
use crate::import::WeightRef;
use crate::ops::CompileOptions;

/// A segment that is to be compiled.
pub(super) struct Job<'a> {
    pub(super) segment: usize,
    pub(super) device: &'a dyn Device,
    pub(super) graph: Graph,
    pub(super) weights: Vec<WeightRef>,
    pub(super) options: CompileOptions,
}

/// What became of them.
#[derive(Default)]
pub(super) struct Compiled {
    /// By the number of the segment.
    pub(super) done: Vec<(usize, Arc<dyn CompiledSegment>)>,
    /// What failed first. The others were given up then.
    pub(super) failed: Option<Error>,
}

/// Compiles them all, or as many as there are until one fails.
pub(super) fn compile_all(jobs: Vec<Job<'_>>) -> Compiled {
    let mut here = Vec::new();
    let mut elsewhere: BTreeMap<String, Vec<Job<'_>>> = BTreeMap::new();
    for job in jobs {
        match job.device.id().worker() {
            Some(worker) => elsewhere.entry(worker.to_owned()).or_default().push(job),
            None => here.push(job),
        }
    }
    let (abandoned, compiled) = (AtomicBool::new(false), Mutex::new(Compiled::default()));
    thread::scope(|scope| {
        for (worker, jobs) in elsewhere {
            // Where there is no thread to be had, it is done below.
            let jobs = Arc::new(Mutex::new(jobs));
            let own = Arc::clone(&jobs);
            let (abandoned, compiled) = (&abandoned, &compiled);
            let spawned = thread::Builder::new()
                .name(format!("ship-{worker}"))
                .spawn_scoped(scope, move || compile(take(&own), abandoned, compiled));
            if spawned.is_err() {
                here.append(&mut take(&jobs));
            }
        }
        compile(here, &abandoned, &compiled);
    });
    compiled.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn take<'a>(jobs: &Mutex<Vec<Job<'a>>>) -> Vec<Job<'a>> {
    std::mem::take(&mut *jobs.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Compiles some in turn, as long as nothing has failed.
fn compile(jobs: Vec<Job<'_>>, abandoned: &AtomicBool, compiled: &Mutex<Compiled>) {
    for Job { segment, device, graph, weights, options } in jobs {
        if abandoned.load(Ordering::Relaxed) {
            return;
        }
        let done = caught(device.id(), "compiling a segment", || {
            device.compile_unless(abandoned, graph, &weights, &options)
        });
        let mut compiled = compiled.lock().unwrap_or_else(PoisonError::into_inner);
        match done {
            Ok(done) => compiled.done.push((segment, done)),
            Err(error) => {
                compiled.failed.get_or_insert(error);
                abandoned.store(true, Ordering::Relaxed);
            }
        }
    }
}
