//! The watchdog, and items that are tried again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use brigade_actors::{
    Doing, ErrorKind, Factory, Firing, ItemError, OnStall, Options, Outbox, Payload, Pipeline,
    PipelineState, Seq, Stage, StageWaker, Stall, Topology, stage_fn,
};

mod kit;
use kit::{MS, chain, chain_on, map, sleepy, within};

const LIMIT: Duration = Duration::from_secs(20);

/// A stage that waits until it is let go.
fn held(release: &Arc<AtomicBool>) -> Factory<i64> {
    let release = Arc::clone(release);
    map(move |x| {
        while !release.load(Ordering::SeqCst) {
            std::thread::sleep(MS / 2);
        }
        x
    })
}

fn stalled(pipeline: &Pipeline<i64>) -> Stall {
    loop {
        if let Some(stall) = pipeline.stats().stalls.last() {
            return stall.clone();
        }
        std::thread::sleep(MS);
    }
}

fn threads_named(part: &str) -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names =
        tasks.flatten().filter_map(|task| std::fs::read_to_string(task.path().join("comm")).ok());
    names.filter(|name| name.contains(part)).count()
}

#[test]
fn the_watchdog_names_the_actor_that_computes_and_the_edge_in_front_of_it() {
    within(LIMIT, || {
        let release = Arc::new(AtomicBool::new(false));
        let heard = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&heard);
        let options = Options::new().name("hangs").in_flight(3).watchdog(100 * MS);
        let options = options.stall_listener(move |stall| log.lock().unwrap().push(stall.clone()));
        let topology = chain(vec![map(|x| x), held(&release), map(|x| x)]);
        let pipeline = Pipeline::spawn(topology, options).unwrap();
        // A thread names itself once it runs.
        while threads_named("hangs-watch") == 0 {
            std::thread::sleep(MS);
        }
        assert_eq!(threads_named("hangs-watch"), 1);
        // An idle pipeline does not stall.
        std::thread::sleep(200 * MS);
        assert_eq!(pipeline.stats().stall_count, 0);
        let tickets: Vec<_> = (0..3).map(|n| pipeline.push(vec![n]).unwrap()).collect();
        let stall = stalled(&pipeline);
        assert_eq!((stall.in_flight, stall.queued, stall.oldest), (3, 0, Some(0)));
        assert!(stall.lasted_ns >= 100_000_000);
        assert_eq!(stall.actors.len(), 1, "{stall}");
        let actor = &stall.actors[0];
        assert_eq!((actor.name.as_str(), actor.doing), ("a1", Doing::Computing));
        assert!(actor.for_ns > 0 && actor.for_ns <= stall.lasted_ns, "{stall}");
        assert_eq!(stall.edges.len(), 1, "{stall}");
        assert_eq!((stall.edges[0].level, stall.edges[0].to.contains("a1")), (2, true), "{stall}");
        let words = stall.to_string();
        assert!(words.contains("actor `a1` has been computing on `cpu:1` for"), "{words}");
        // One stall is told once.
        std::thread::sleep(200 * MS);
        assert_eq!(pipeline.stats().stall_count, 1);
        release.store(true, Ordering::SeqCst);
        for ticket in tickets {
            ticket.wait().unwrap();
        }
        assert_eq!(heard.lock().unwrap().as_slice(), [stall]);
        drop(pipeline);
        while threads_named("hangs-watch") > 0 {
            std::thread::sleep(MS);
        }
    });
}

#[test]
fn a_watchdog_needs_a_time() {
    let options = Options::new().watchdog(Duration::ZERO);
    let refused = Pipeline::spawn(chain(vec![map(|x| x)]), options).unwrap_err();
    assert!(refused.to_string().contains("watchdog(0)"), "{refused}");
}

#[test]
fn without_a_watchdog_there_is_no_thread_for_it() {
    let pipeline =
        Pipeline::spawn(chain(vec![map(|x| x)]), Options::new().name("plainly")).unwrap();
    assert_eq!(threads_named("plainly"), 0);
    assert!(pipeline.stats().stalls.is_empty());
}

#[test]
fn the_watchdog_says_who_waits_for_a_lane() {
    within(LIMIT, || {
        let release = Arc::new(AtomicBool::new(false));
        let topology = chain_on(vec![map(|x| x), held(&release)], |_| "gpu:0".into());
        let options = Options::new().in_flight(4).watchdog(150 * MS);
        let pipeline = Pipeline::spawn(topology, options).unwrap();
        let first = pipeline.push(vec![0]).unwrap();
        while pipeline.stats().actors[1].busy_ns == 0 {
            std::thread::sleep(MS);
        }
        let second = pipeline.push(vec![1]).unwrap();
        let stall = stalled(&pipeline);
        let doing: Vec<_> =
            stall.actors.iter().map(|actor| (actor.name.as_str(), actor.doing)).collect();
        assert_eq!(doing, [("a0", Doing::WaitingForLane), ("a1", Doing::Computing)], "{stall}");
        release.store(true, Ordering::SeqCst);
        first.wait().unwrap();
        second.wait().unwrap();
    });
}

/// An asynchronous stage that completes nothing before it is let go.
struct Lost {
    open: Vec<(Seq, i64)>,
    gone: Arc<AtomicBool>,
}

impl Stage<i64> for Lost {
    fn slots(&self) -> usize {
        2
    }

    fn submit(&mut self, firing: Firing<i64>, out: &mut Outbox<i64>) -> Result<(), ItemError> {
        if self.gone.load(Ordering::SeqCst) {
            self.open.push((firing.seq, firing.inputs[0]));
            out.defer();
        } else {
            out.emit(0, firing.inputs[0]);
        }
        Ok(())
    }

    fn cancel(&mut self, seq: Seq, out: &mut Outbox<i64>) {
        self.open.retain(|(held, _)| *held != seq);
        out.fail(seq, ItemError::failed("given up"));
    }
}

#[test]
fn a_stall_can_fail_the_items_and_the_pipeline_goes_on() {
    within(LIMIT, || {
        let gone = Arc::new(AtomicBool::new(true));
        let state = Arc::clone(&gone);
        let factory: Factory<i64> =
            Box::new(move |_| Ok(Box::new(Lost { open: Vec::new(), gone: Arc::clone(&state) })));
        let options = Options::new().in_flight(4).watchdog(15 * MS).on_stall(OnStall::FailItems);
        let pipeline = Pipeline::spawn(chain(vec![factory, map(|x| x)]), options).unwrap();
        let tickets: Vec<_> = (0..4).map(|n| pipeline.push(vec![n]).unwrap()).collect();
        for ticket in tickets {
            let error = ticket.wait().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Stalled);
            assert!(error.message().contains("actor `a0`"), "{error}");
        }
        gone.store(false, Ordering::SeqCst);
        assert_eq!(pipeline.push(vec![7]).unwrap().wait().unwrap(), [7]);
        assert_eq!(pipeline.state(), PipelineState::Running);
        let stats = pipeline.stats();
        assert_eq!((stats.completed, stats.failed, stats.in_flight), (5, 4, 0));
    });
}

#[test]
fn a_stall_can_fail_the_pipeline_and_a_listener_may_stop_it() {
    within(LIMIT, || {
        let release = Arc::new(AtomicBool::new(false));
        let options = Options::new().in_flight(2).stop_timeout(5 * MS);
        let failing = options.clone().watchdog(15 * MS).on_stall(OnStall::FailPipeline);
        let pipeline = Pipeline::spawn(chain(vec![held(&release)]), failing).unwrap();
        let error = pipeline.push(vec![0]).unwrap().wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Stalled);
        assert_eq!(pipeline.state(), PipelineState::Failed);
        assert_eq!(pipeline.shutdown().detached, ["a0"]);

        let slot: Arc<Mutex<Option<Pipeline<i64>>>> = Arc::default();
        let inner = Arc::clone(&slot);
        let stopping = options.watchdog(15 * MS).stall_listener(move |_| {
            let taken = inner.lock().unwrap().take();
            if let Some(pipeline) = taken {
                assert_eq!(pipeline.shutdown().detached, ["a0"]);
            }
            panic!("a listener's panic is its own");
        });
        let pipeline = Pipeline::spawn(chain(vec![held(&release)]), stopping).unwrap();
        *slot.lock().unwrap() = Some(pipeline.clone());
        let ticket = pipeline.push(vec![0]).unwrap();
        assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::Shutdown);
        release.store(true, Ordering::SeqCst);
    });
}

#[test]
fn the_watchdog_expires_what_waits_in_the_queue_of_a_pipeline_that_hangs() {
    within(LIMIT, || {
        let release = Arc::new(AtomicBool::new(false));
        let options = Options::new().in_flight(1).queue(2).max_age(10 * MS).watchdog(20 * MS);
        let pipeline = Pipeline::spawn(chain(vec![held(&release)]), options).unwrap();
        let first = pipeline.push(vec![0]).unwrap();
        let second = pipeline.push(vec![1]).unwrap();
        assert_eq!(kit::block_on(second).unwrap_err().kind(), ErrorKind::Expired);
        release.store(true, Ordering::SeqCst);
        first.wait().unwrap();
    });
}

#[test]
fn scenario_26_forks_and_joins_cannot_deadlock_and_the_watchdog_names_the_waiting_edge() {
    // x forks into a long and a short way, which join. Whatever the number in flight, the short way
    // holds all items that the long one is behind with.
    let topology = |long: usize, gate: &Arc<AtomicBool>| {
        let mut b = Topology::builder();
        let x = b.source("x");
        let mut last = x;
        for n in 0..long {
            let stage = if n == 1 { held(gate) } else { map(|x| x + 1) };
            let actor = b.actor(format!("long{n}"), format!("d{}", n % 3), 1, 1, stage);
            b.connect(last, actor.input(0));
            last = actor.output(0);
        }
        let sum = stage_fn(|v: Vec<i64>| Ok(vec![v.iter().sum()]));
        let join = b.actor("join", "j", 2, 1, sum);
        b.connect(last, join.input(0)).connect(x, join.input(1));
        let y = b.sink("y");
        b.connect(join.output(0), y);
        b.build().unwrap()
    };
    within(LIMIT, move || {
        let open = Arc::new(AtomicBool::new(true));
        for depth in [1, 2, 3, 8] {
            let options = Options::new().in_flight(depth);
            let pipeline = Pipeline::spawn(topology(6, &open), options).unwrap();
            for (n, result) in (0..200).zip(pipeline.stream((0..200).map(|n| vec![n]))) {
                assert_eq!(result.unwrap(), [2 * n + 5]);
            }
            // The bound that the proof rests on: no edge ever held more than may be in flight.
            let stats = pipeline.stats();
            assert!(stats.edges.iter().all(|edge| edge.peak <= depth as u64), "{stats:?}");
        }
        let shut = Arc::new(AtomicBool::new(false));
        let options = Options::new().in_flight(3).watchdog(150 * MS);
        let pipeline = Pipeline::spawn(topology(6, &shut), options).unwrap();
        let tickets: Vec<_> = (0..3).map(|n| pipeline.push(vec![n]).unwrap()).collect();
        let stall = stalled(&pipeline);
        // The join's second port holds all three, its first none: the long way is what it waits for.
        let waiting = stall.edges.iter().find(|edge| edge.to.contains("join")).unwrap();
        assert_eq!((waiting.level, waiting.from.contains('x')), (3, true), "{stall}");
        assert!(stall.edges.iter().any(|edge| edge.to.contains("long1")), "{stall}");
        assert_eq!(stall.actors[0].name, "long1", "{stall}");
        shut.store(true, Ordering::SeqCst);
        for (n, ticket) in (0..).zip(tickets) {
            assert_eq!(ticket.wait().unwrap(), [2 * n + 5]);
        }
    });
}

/// Goes wrong at `at` for its first `times` firings, counting all of them.
fn faulty(at: i64, times: i64, panics: bool, fired: &Arc<AtomicI64>) -> Factory<i64> {
    let fired = Arc::clone(fired);
    stage_fn(move |v: Vec<i64>| {
        if v[0] == at && fired.fetch_add(1, Ordering::SeqCst) < times {
            assert!(!panics, "boom at {at}");
            return Err(ItemError::failed("no luck"));
        }
        Ok(v)
    })
}

#[test]
fn an_item_whose_firing_went_wrong_is_tried_again_as_often_as_allowed() {
    kit::quiet_actors();
    within(LIMIT, || {
        for panics in [true, false] {
            for (times, retries) in [(2, 2), (3, 2), (1, 0), (1, 5)] {
                let fired = Arc::new(AtomicI64::new(0));
                let options = Options::new().in_flight(4).restarts(9).restart_backoff(MS / 10);
                let options = if panics {
                    options.retry_panics(retries)
                } else {
                    options.retry_failures(retries)
                };
                let stages = vec![map(|x| x), faulty(5, times, panics, &fired), map(|x| x)];
                let pipeline = Pipeline::spawn(chain(stages), options).unwrap();
                let recovers = times <= i64::from(retries);
                for (n, result) in (0..20).zip(pipeline.stream((0..20).map(|n| vec![n]))) {
                    match result {
                        Ok(value) => assert_eq!((value, n != 5 || recovers), (vec![n], true)),
                        Err(error) => {
                            let kind = if panics { ErrorKind::Panicked } else { ErrorKind::Failed };
                            assert_eq!((error.kind(), n, recovers), (kind, 5, false), "{error}");
                        }
                    }
                }
                let tries = times.min(i64::from(retries)) as u64;
                let actor = &pipeline.stats().actors[1];
                assert_eq!((actor.retries, actor.items), (tries, 20 + tries), "{actor:?}");
            }
        }
    });
}

#[test]
fn a_panic_is_not_retried_where_failures_are_nor_an_item_that_nobody_wants() {
    kit::quiet_actors();
    within(LIMIT, || {
        let fired = Arc::new(AtomicI64::new(0));
        let stages = vec![faulty(5, 1, true, &fired)];
        let pipeline = Pipeline::spawn(chain(stages), Options::new().retry_failures(3)).unwrap();
        let error = pipeline.push(vec![5]).unwrap().wait().unwrap_err();
        assert_eq!((error.kind(), fired.load(Ordering::SeqCst)), (ErrorKind::Panicked, 1));

        let tried = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&tried);
        let slow = stage_fn(move |_: Vec<i64>| {
            count.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(20 * MS);
            Err(ItemError::failed("never"))
        });
        let options = Options::new().in_flight(1).retry_failures(u32::MAX);
        let pipeline = Pipeline::spawn(chain(vec![slow]), options).unwrap();
        let ticket = pipeline.push_deadline(vec![1], Instant::now() + 50 * MS).unwrap();
        assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::Expired);
        pipeline.drain(Some(Instant::now() + LIMIT)).unwrap();
        assert!(tried.load(Ordering::SeqCst) <= 4);
    });
}

/// Counts how often it is shared.
struct Counted(i64, Arc<AtomicUsize>);

impl Payload for Counted {
    fn bytes(&self) -> usize {
        8
    }

    fn share(&self) -> Self {
        self.1.fetch_add(1, Ordering::SeqCst);
        Self(self.0, Arc::clone(&self.1))
    }
}

#[test]
fn inputs_are_kept_only_where_something_is_retried_and_count_in_the_budget() {
    within(LIMIT, || {
        for (retries, shares, peak) in [(0, 0, 8), (2, 11, 16)] {
            let shared = Arc::new(AtomicUsize::new(0));
            let mut b = Topology::builder();
            let x = b.source("x");
            let failed = AtomicBool::new(false);
            let failed = Arc::new(failed);
            let stage = stage_fn(move |v: Vec<Counted>| {
                if v[0].0 == 3 && !failed.swap(true, Ordering::SeqCst) {
                    return Err(ItemError::failed("once"));
                }
                Ok(v)
            });
            let actor = b.actor("a", "cpu", 1, 1, stage);
            let y = b.sink("y");
            b.connect(x, actor.input(0)).connect(actor.output(0), y);
            let options = Options::new().in_flight(1).byte_budget(1000).retry_failures(retries);
            let pipeline = Pipeline::spawn(b.build().unwrap(), options).unwrap();
            let count = Arc::clone(&shared);
            let inputs = (0..10).map(move |n| vec![Counted(n, Arc::clone(&count))]);
            let failed = pipeline.stream(inputs).filter(Result::is_err).count();
            assert_eq!(failed, usize::from(retries == 0));
            assert_eq!(shared.load(Ordering::SeqCst), shares);
            let admission = pipeline.stats().admission;
            assert_eq!((admission.bytes_peak, admission.bytes), (peak, 0));
        }
    });
}

#[test]
fn open_firings_of_a_stage_that_panics_are_tried_again_in_order() {
    /// Finishes its firings one by one; panics in its poll while the first stage is alive and three
    /// are open.
    struct Shaky {
        open: Vec<(Seq, i64)>,
        attempt: usize,
        waker: StageWaker,
    }
    impl Stage<i64> for Shaky {
        fn slots(&self) -> usize {
            3
        }
        fn submit(&mut self, firing: Firing<i64>, out: &mut Outbox<i64>) -> Result<(), ItemError> {
            self.open.push((firing.seq, firing.inputs[0]));
            out.defer();
            if self.attempt > 0 || self.open.len() == 3 {
                self.waker.wake();
            }
            Ok(())
        }
        fn poll(&mut self, out: &mut Outbox<i64>) -> Result<(), ItemError> {
            assert!(self.attempt > 0 || self.open.len() < 3, "shaken");
            for (seq, x) in self.open.drain(..) {
                out.emit_for(seq, 0, x);
            }
            Ok(())
        }
    }
    kit::quiet_actors();
    within(LIMIT, || {
        let factory: Factory<i64> = Box::new(|context| {
            let (attempt, waker) = (context.attempt, context.waker);
            Ok(Box::new(Shaky { open: Vec::new(), attempt, waker }))
        });
        let seen = Arc::new(Mutex::new(Vec::new()));
        let log = Arc::clone(&seen);
        let note = map(move |x| {
            log.lock().unwrap().push(x);
            x
        });
        let options = Options::new().in_flight(5).retry_panics(1).restart_backoff(MS);
        let pipeline = Pipeline::spawn(chain(vec![factory, note]), options).unwrap();
        let results: Result<Vec<_>, _> = pipeline.stream((0..30).map(|n| vec![n])).collect();
        assert_eq!(results.unwrap(), (0..30).map(|n| vec![n]).collect::<Vec<_>>());
        assert_eq!(*seen.lock().unwrap(), (0..30).collect::<Vec<_>>());
        assert_eq!(pipeline.stats().actors[0].retries, 3);
    });
}

#[test]
fn restarts_are_counted_within_their_window() {
    kit::quiet_actors();
    within(LIMIT, || {
        let panics = map(|x| if x < 0 { panic!("negative") } else { x });
        let options = Options::new().restarts(1).restart_window(30 * MS);
        let options = options.restart_backoff(Duration::ZERO).in_flight(1);
        let pipeline = Pipeline::spawn(chain(vec![panics, sleepy(MS)]), options).unwrap();
        for n in 0..4 {
            let error = pipeline.push(vec![-1]).unwrap().wait().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Panicked);
            std::thread::sleep(50 * MS);
            assert_eq!(pipeline.push(vec![n]).unwrap().wait().unwrap(), [n]);
        }
        assert_eq!(pipeline.stats().actors[0].restarts, 4);
        while pipeline.state() == PipelineState::Running {
            let _ = pipeline.push(vec![-1]).map(|ticket| ticket.wait());
        }
        let refused = pipeline.push(vec![1]).unwrap_err();
        assert!(refused.to_string().contains("more than 1 times within 30ms"), "{refused}");
    });
}
