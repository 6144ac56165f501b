//! What a steady flow allocates, and what one item in flight costs.
//!
//! Counted is every allocation of the process while items flow: the runtime's, the channels', and
//! those of the stages and callers here, which make none of their own: a caller gets the vector that
//! it pushed back with the result, and a stage gives the vector of its inputs back.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use brigade_actors::{
    Factory, Firing, ItemError, Options, Outbox, Payload, Pipeline, Stage, Ticket, Topology,
};

struct Counting;

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the pointer came from `alloc` above, and so from the system's allocator.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as for `dealloc`; the size is the caller's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// One test at a time: the count is that of the process.
fn alone() -> impl Drop {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

type Buffer = Arc<Vec<u8>>;

/// Emits its first input on every output, and gives the vector back.
struct Pass(usize);

impl<P: Payload> Stage<P> for Pass {
    fn submit(&mut self, mut firing: Firing<P>, out: &mut Outbox<P>) -> Result<(), ItemError> {
        for port in 1..self.0 {
            out.emit(port, firing.inputs[0].share());
        }
        out.emit(0, firing.inputs.swap_remove(0));
        out.recycle(firing.inputs);
        Ok(())
    }
}

fn pass<P: Payload>(outputs: usize) -> Factory<P> {
    Box::new(move |_| Ok(Box::new(Pass(outputs))))
}

fn chain(stages: usize) -> Topology<Buffer> {
    let mut builder = Topology::builder();
    let mut last = builder.source("x");
    for n in 0..stages {
        let actor = builder.actor(format!("a{n}"), format!("cpu:{n}"), 1, 1, pass(1));
        builder.connect(last, actor.input(0));
        last = actor.output(0);
    }
    let y = builder.sink("y");
    builder.connect(last, y);
    builder.build().unwrap()
}

/// Fans out, joins, skips, has two sinks, and an actor that nobody takes anything from.
fn joined() -> Topology<Buffer> {
    let mut builder = Topology::builder();
    let (x, w) = (builder.source("x"), builder.source("w"));
    let split = builder.actor("split", "a", 1, 2, pass(2));
    let join = builder.actor("join", "b", 3, 1, pass(1));
    let swallow: Factory<Buffer> = Box::new(|_| Ok(Box::new(Swallow)));
    let tap = builder.actor("tap", "c", 1, 0, swallow);
    let (y, z) = (builder.sink("y"), builder.sink("z"));
    builder
        .connect(x, split.input(0))
        .connect(split.output(0), join.input(0))
        .connect(split.output(1), join.input(1))
        .connect(w, join.input(2))
        .connect(w, tap.input(0))
        .connect(join.output(0), y)
        .connect(x, z);
    builder.build().unwrap()
}

struct Swallow;

impl Stage<Buffer> for Swallow {
    fn submit(
        &mut self,
        mut firing: Firing<Buffer>,
        out: &mut Outbox<Buffer>,
    ) -> Result<(), ItemError> {
        firing.inputs.clear();
        out.recycle(firing.inputs);
        Ok(())
    }
}

/// Runs `flow` until a round of it allocates nothing, and says how many rounds that took. Each run
/// is of thousands of items, so an allocation for an item, however rare, is found in each.
fn settles(mut flow: impl FnMut()) {
    let mut counts = Vec::new();
    for _ in 0..6 {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        flow();
        let count = ALLOCATIONS.load(Ordering::Relaxed) - before;
        // The first round warms up, whatever it counts.
        if !counts.is_empty() && count == 0 {
            return;
        }
        counts.push(count);
    }
    panic!("every round of thousands of items allocated: {counts:?}");
}

const ITEMS: usize = 3000;

/// Pushes with at most `ahead` results to take, using the vectors of earlier results.
fn flow(pipeline: &Pipeline<Buffer>, vectors: &mut Vec<Vec<Buffer>>, ahead: usize) -> impl FnMut() {
    let pipeline = pipeline.clone();
    let mut vectors = std::mem::take(vectors);
    let mut tickets: VecDeque<Ticket<Buffer>> = VecDeque::with_capacity(ahead);
    move || {
        for _ in 0..ITEMS {
            if tickets.len() == ahead {
                vectors.push(tickets.pop_front().unwrap().wait().unwrap());
            }
            tickets.push_back(pipeline.push(vectors.pop().unwrap()).unwrap());
        }
        while let Some(ticket) = tickets.pop_front() {
            vectors.push(ticket.wait().unwrap());
        }
    }
}

fn vectors(count: usize, width: usize) -> Vec<Vec<Buffer>> {
    let buffer = Arc::new(vec![1; 64]);
    (0..count).map(|_| vec![Arc::clone(&buffer); width]).collect()
}

#[test]
fn a_chain_in_steady_state_allocates_nothing() {
    let _alone = alone();
    for (in_flight, ahead) in [(1, 1), (4, 4), (4, 9)] {
        let options = Options::new().in_flight(in_flight).trace(100);
        let pipeline = Pipeline::spawn(chain(3), options).unwrap();
        settles(flow(&pipeline, &mut vectors(ahead, 1), ahead));
        assert!(pipeline.stats().completed >= 2 * ITEMS as u64);
    }
}

#[test]
fn joins_and_fan_out_in_steady_state_allocate_nothing() {
    let _alone = alone();
    for in_flight in [1, 5] {
        let pipeline = Pipeline::spawn(joined(), Options::new().in_flight(in_flight)).unwrap();
        settles(flow(&pipeline, &mut vectors(in_flight, 2), in_flight));
        assert!(pipeline.stats().completed >= 2 * ITEMS as u64);
    }
}

#[test]
fn a_stream_in_steady_state_allocates_nothing_but_its_window() {
    let _alone = alone();
    let pipeline = Pipeline::spawn(chain(2), Options::new().in_flight(4)).unwrap();
    let spare = RefCell::new(vectors(8, 1));
    let mut stream = pipeline.stream(std::iter::from_fn(|| spare.borrow_mut().pop()));
    settles(|| {
        for _ in 0..ITEMS {
            let result = stream.next().unwrap().unwrap();
            spare.borrow_mut().push(result);
        }
    });
}

/// A payload of which it is counted how many live.
struct Counted;

static ALIVE: AtomicIsize = AtomicIsize::new(0);
static MOST: AtomicIsize = AtomicIsize::new(0);

impl Counted {
    fn new() -> Self {
        let alive = ALIVE.fetch_add(1, Ordering::SeqCst) + 1;
        MOST.fetch_max(alive, Ordering::SeqCst);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        ALIVE.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Payload for Counted {
    fn bytes(&self) -> usize {
        0
    }

    fn share(&self) -> Self {
        Self::new()
    }
}

/// Computes for a millisecond into a new buffer.
fn compute(input: Counted) -> Counted {
    let begun = Instant::now();
    let output = Counted::new();
    while begun.elapsed() < Duration::from_millis(1) {
        std::hint::spin_loop();
    }
    drop(input);
    output
}

struct Compute;

impl Stage<Counted> for Compute {
    fn submit(
        &mut self,
        mut firing: Firing<Counted>,
        out: &mut Outbox<Counted>,
    ) -> Result<(), ItemError> {
        out.emit(0, compute(firing.inputs.swap_remove(0)));
        out.recycle(firing.inputs);
        Ok(())
    }
}

#[test]
fn scenario_15_one_item_in_flight_costs_no_more_than_running_the_stages_in_turn() {
    const STAGES: usize = 3;
    let _alone = alone();
    let mut builder = Topology::builder();
    let mut last = builder.source("x");
    for n in 0..STAGES {
        let factory: Factory<Counted> = Box::new(|_| Ok(Box::new(Compute)));
        let actor = builder.actor(format!("a{n}"), format!("cpu:{n}"), 1, 1, factory);
        builder.connect(last, actor.input(0));
        last = actor.output(0);
    }
    let y = builder.sink("y");
    builder.connect(last, y);
    let pipeline = Pipeline::spawn(builder.build().unwrap(), Options::new().in_flight(1)).unwrap();

    let in_turn = || drop((0..STAGES).fold(Counted::new(), |buffer, _| compute(buffer)));
    let through = || drop(pipeline.push(vec![Counted::new()]).unwrap().wait().unwrap());
    let most = |run: &dyn Fn()| {
        MOST.store(0, Ordering::SeqCst);
        (0..20).for_each(|_| run());
        MOST.load(Ordering::SeqCst)
    };
    let (sequential, piped) = (most(&in_turn), most(&through));
    assert_eq!((sequential, piped), (2, 2), "one item in flight holds no buffer more");

    let time = |run: &dyn Fn()| {
        let begun = Instant::now();
        run();
        begun.elapsed()
    };
    let median = |mut times: Vec<Duration>| {
        times.sort();
        times[times.len() / 2]
    };
    let hops = u32::try_from(STAGES + 1).unwrap();
    let mut seen = Vec::new();
    // Other work on the machine only ever adds: one quiet round says what it costs.
    for _ in 0..40 {
        let pairs: Vec<_> = (0..11).map(|_| (time(&in_turn), time(&through))).collect();
        let (sequential, piped): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
        let (sequential, piped) = (median(sequential), median(piped));
        let strict = (sequential / 50).max(hops * Duration::from_micros(25));
        // Without optimisation, and beside other tests, only what is plainly wrong is found.
        let allowed = if cfg!(debug_assertions) { 4 * strict } else { strict };
        if piped <= sequential + allowed {
            return;
        }
        seen.push((sequential, piped));
    }
    panic!("one item in flight costs more than max(2 %, 25 us a hop): {seen:?}");
}
