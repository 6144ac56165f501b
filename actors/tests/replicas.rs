//! Actors with replicas: order, lanes, faults, stops.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use brigade_actors::{
    ActorStats, Binding, BuildError, ErrorKind, Factory, Firing, ItemError, Options, Outbox,
    Pipeline, PipelineState, Seq, SpawnError, Stage, StageWaker, Topology, TopologyBuilder,
    stage_fn,
};

mod kit;
use kit::{Inputs, MS, Rng, map, sleepy, within};

const LIMIT: Duration = Duration::from_secs(60);

/// x -> `b` with so many replicas on device `d` with so many lanes -> y.
fn one(factory: Factory<i64>, replicas: usize, lanes: usize) -> TopologyBuilder<i64> {
    let mut b = Topology::builder();
    let x = b.source("x");
    let actor = b.actor("b", "d", 1, 1, factory);
    let y = b.sink("y");
    b.connect(x, actor.input(0)).connect(actor.output(0), y);
    b.replicas(actor, replicas).lanes("d", lanes);
    b
}

fn spawn(builder: TopologyBuilder<i64>, in_flight: usize) -> Pipeline<i64> {
    let options = Options::new().in_flight(in_flight).trace(200);
    Pipeline::spawn(builder.build().unwrap(), options).unwrap()
}

fn in_order(pipeline: &Pipeline<i64>, items: i64) -> Duration {
    let begun = Instant::now();
    let results: Result<Vec<_>, _> = pipeline.stream((0..items).map(|n| vec![n])).collect();
    assert_eq!(results.unwrap(), (0..items).map(|n| vec![n]).collect::<Vec<_>>());
    begun.elapsed()
}

fn replica<'a>(actors: &'a [ActorStats], name: &str) -> &'a ActorStats {
    actors.iter().find(|actor| actor.name == name).unwrap()
}

/// Sleeps after one item in eight, for as long as the item and `salt` say.
fn dawdle(x: i64, salt: u64) {
    let mut rng = Rng(x as u64 ^ (salt << 32));
    match rng.below(8) {
        0 => std::thread::sleep(Duration::from_micros(rng.below(50))),
        1 | 2 => std::thread::yield_now(),
        _ => {}
    }
}

#[test]
fn scenario_21_ten_thousand_items_with_random_delays_through_replicas_at_every_depth() {
    let _alone = alone();
    // Ten thousand over all depths, and at each of them where the optimiser was at work.
    const ITEMS: i64 = if cfg!(debug_assertions) { 1_250 } else { 10_000 };
    let mix = |salt: i64, v: &[i64]| v.iter().fold(salt, |sum, x| sum.wrapping_mul(31) ^ x);
    let expected = move |x: i64| {
        let a = mix(1, &[x]);
        let b = mix(2, &[x]);
        let join = mix(3, &[a, b, x]);
        mix(4, &[join])
    };
    within(4 * LIMIT, move || {
        for depth in 1..=8 {
            let mut b = Topology::builder();
            let x = b.source("x");
            let fired = Arc::new(AtomicUsize::new(0));
            let stage = |salt: i64| {
                let fired = Arc::clone(&fired);
                stage_fn(move |v: Inputs| {
                    fired.fetch_add(1, Ordering::Relaxed);
                    dawdle(v[0], salt as u64);
                    Ok(vec![mix(salt, &v)])
                })
            };
            let first = b.actor("first", "p", 1, 1, stage(1));
            let second = b.actor("second", "q", 1, 1, stage(2));
            let join = b.actor("join", "r", 3, 1, stage(3));
            let last = b.actor("last", "s", 1, 1, stage(4));
            let y = b.sink("y");
            b.connect(x, first.input(0)).connect(x, second.input(0));
            b.connect(first.output(0), join.input(0)).connect(second.output(0), join.input(1));
            b.connect(x, join.input(2)).connect(join.output(0), last.input(0));
            b.connect(last.output(0), y);
            // With lanes for all, for some and for one at a time.
            b.replicas(first, 3).lanes("p", 3).replicas(second, 2).replicas(join, 3).lanes("r", 2);
            let pipeline = spawn(b, depth);
            let mut items = 0;
            for (n, result) in (0..ITEMS).zip(pipeline.stream((0..ITEMS).map(|n| vec![n]))) {
                assert_eq!(result.unwrap(), [expected(n)], "item {n} at depth {depth}");
                items += 1;
            }
            assert_eq!((items, fired.load(Ordering::Relaxed)), (ITEMS, 4 * ITEMS as usize));
            let stats = pipeline.stats();
            assert_eq!((stats.completed, stats.failed, stats.in_flight), (ITEMS as u64, 0, 0));
            assert!(stats.edges.iter().all(|edge| edge.sent == ITEMS as u64 && edge.level == 0));
            assert!(stats.edges.iter().all(|edge| edge.peak <= depth as u64), "{stats:?}");
            for actor in ["first", "second", "join", "last"] {
                let replicas = stats.actors.iter().filter(|stats| stats.actor == actor);
                assert_eq!(replicas.map(|stats| stats.items).sum::<u64>(), ITEMS as u64);
            }
        }
    });
}

#[test]
fn sleeping_stages_scale_with_their_replicas() {
    let _alone = alone();
    within(LIMIT, || {
        let wall = |replicas| in_order(&spawn(one(sleepy(10 * MS), replicas, replicas), 8), 40);
        let (one, two, four) = (wall(1), wall(2), wall(4));
        assert!(one >= 40 * 10 * MS);
        assert!(ratio(one, two) > 1.5, "{one:?} against {two:?}");
        assert!(ratio(one, four) > 2.4, "{one:?} against {four:?}");
    });
}

/// Keeps the tests that measure time and the one that needs all of the machine apart.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn ratio(a: Duration, b: Duration) -> f64 {
    a.as_secs_f64() / b.as_secs_f64()
}

#[test]
fn replicas_never_compute_on_more_lanes_than_their_device_has() {
    within(LIMIT, || {
        for (replicas, lanes) in [(4, 2), (3, 1), (2, 3)] {
            let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
            let (count, peak) = (Arc::clone(&now), Arc::clone(&most));
            let stage = stage_fn(move |v: Inputs| {
                peak.fetch_max(count.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                std::thread::sleep(2 * MS);
                count.fetch_sub(1, Ordering::SeqCst);
                Ok(v)
            });
            let pipeline = spawn(one(stage, replicas, lanes), 8);
            in_order(&pipeline, 30);
            let together = replicas.min(lanes);
            assert_eq!(most.load(Ordering::SeqCst), together, "{replicas} on {lanes}");
            let trace = pipeline.trace();
            assert_eq!(trace.busy_together(together + 1), Duration::ZERO);
            assert!(trace.busy_together(together) > 10 * MS);
            let lanes_of: Vec<_> = trace.actors.iter().map(|actor| actor.name.clone()).collect();
            let names: Vec<_> = (0..replicas).map(|n| format!("b/{n}")).collect();
            assert_eq!(lanes_of, names);
        }
    });
}

#[test]
fn a_replica_that_panics_restarts_alone_and_items_go_on_through_the_others() {
    let _alone = alone();
    within(LIMIT, || {
        let stage = map(|x| {
            assert!(x != 3, "boom at {x}");
            std::thread::sleep(MS / 5);
            x
        });
        let options = Options::new().in_flight(4).restarts(1).restart_backoff(3000 * MS);
        let pipeline = Pipeline::spawn(one(stage, 2, 2).build().unwrap(), options).unwrap();
        let begun = Instant::now();
        for (n, result) in (0..200).zip(pipeline.stream((0..200).map(|n| vec![n]))) {
            if n == 3 {
                let error = result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Panicked);
                // Which replica served the item is no part of its result.
                assert_eq!((error.actor(), error.seq()), (Some("b"), Some(Seq::new(3))));
            } else {
                assert_eq!(result.unwrap(), [n]);
            }
        }
        assert!(begun.elapsed() < 2500 * MS, "the others waited: {:?}", begun.elapsed());
        let deadline = Instant::now() + LIMIT / 2;
        while pipeline.stats().actors.iter().all(|actor| actor.restarts == 0) {
            assert!(Instant::now() < deadline);
            std::thread::sleep(MS);
        }
        let actors = pipeline.stats().actors;
        let mut restarts: Vec<_> = actors.iter().map(|actor| actor.restarts).collect();
        restarts.sort_unstable();
        assert_eq!(restarts, [0, 1]);
        assert!(actors.iter().all(|actor| actor.actor == "b" && actor.items > 0), "{actors:?}");
        // Its account is its own: the other one may go down once, too.
        assert_eq!(pipeline.state(), PipelineState::Running);
        in_order(&pipeline, 3);
        pipeline.push(vec![3]).unwrap().wait().unwrap_err();
        // Either it was the other one, or the first one is past its limit and says so.
        let failed = pipeline.state() == PipelineState::Failed;
        let total: u64 = pipeline.stats().actors.iter().map(|actor| actor.restarts).sum();
        assert!(failed || total <= 2);
    });
}

#[test]
fn a_stuck_replica_holds_nobody_up_and_is_named_when_it_is_left_behind() {
    within(LIMIT, || {
        let release = Arc::new(AtomicBool::new(false));
        let held = Arc::clone(&release);
        let stage = stage_fn(move |v: Inputs| {
            while v[0] == 7 && !held.load(Ordering::SeqCst) {
                std::thread::sleep(MS);
            }
            Ok(v)
        });
        let options = Options::new().in_flight(4).stop_timeout(50 * MS);
        let pipeline = Pipeline::spawn(one(stage, 3, 3).build().unwrap(), options).unwrap();
        let stuck = pipeline.push(vec![7]).unwrap();
        for n in 100..200 {
            assert_eq!(pipeline.push(vec![n]).unwrap().wait().unwrap(), [n]);
        }
        assert!(!stuck.is_done());
        let detached = pipeline.shutdown().detached;
        assert!(detached.len() == 1 && detached[0].starts_with("b/"), "{detached:?}");
        let stats = pipeline.stats();
        assert_eq!((stats.devices[0].poisoned, &stats.detached), (1, &detached));
        assert_eq!(stuck.wait().unwrap_err().kind(), ErrorKind::Shutdown);
        release.store(true, Ordering::SeqCst);
        let deadline = Instant::now() + LIMIT / 2;
        while !pipeline.stats().detached.is_empty() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(MS);
        }
        assert_eq!(pipeline.stats().devices[0].poisoned, 0);
    });
}

/// Completes each firing on a thread of its own after `time`; goes down in a poll when told to.
struct Device {
    jobs: crossbeam_channel::Sender<(Seq, i64)>,
    done: crossbeam_channel::Receiver<(Seq, i64)>,
    slots: usize,
}

impl Device {
    fn factory(slots: usize, time: Duration) -> Factory<i64> {
        Box::new(move |context| Ok(Box::new(Self::new(slots, time, context.waker))))
    }

    fn new(slots: usize, time: Duration, waker: StageWaker) -> Self {
        let (jobs, todo) = crossbeam_channel::bounded::<(Seq, i64)>(slots);
        let (finished, done) = crossbeam_channel::bounded(slots);
        std::thread::spawn(move || {
            for (seq, x) in todo {
                std::thread::sleep(time);
                if finished.send((seq, x)).is_err() {
                    return;
                }
                waker.wake();
            }
        });
        Self { jobs, done, slots }
    }
}

impl Stage<i64> for Device {
    fn slots(&self) -> usize {
        self.slots
    }

    fn submit(&mut self, firing: Firing<i64>, out: &mut Outbox<i64>) -> Result<(), ItemError> {
        self.jobs.send((firing.seq, firing.inputs[0])).map_err(ItemError::from_error)?;
        out.defer();
        Ok(())
    }

    fn poll(&mut self, out: &mut Outbox<i64>) -> Result<(), ItemError> {
        for (seq, x) in self.done.try_iter() {
            assert!(x != -13, "boom in a poll");
            out.emit_for(seq, 0, x);
        }
        Ok(())
    }
}

#[test]
fn asynchronous_replicas_take_no_more_than_they_can_start() {
    let _alone = alone();
    within(LIMIT, || {
        let pipeline = spawn(one(Device::factory(2, 4 * MS), 2, 2), 8);
        let wall = in_order(&pipeline, 60);
        let actors = pipeline.stats().actors;
        for actor in &actors {
            assert!(actor.items >= 20, "one replica hoards: {actors:?}");
        }
        assert!(wall < 60 * 4 * MS * 8 / 10, "{wall:?}");
        // On one lane they take turns and still lose nothing.
        let pipeline = spawn(one(Device::factory(2, MS), 2, 1), 8);
        in_order(&pipeline, 60);
        assert_eq!(pipeline.trace().overlap(), Duration::ZERO);
    });
}

#[test]
fn asynchronous_replicas_that_panic_lose_the_open_firings_and_nothing_else() {
    within(LIMIT, || {
        for lanes in [1, 2] {
            let options = Options::new().in_flight(8).restarts(100).restart_backoff(MS);
            let topology = one(Device::factory(2, MS / 5), 2, lanes).build().unwrap();
            let pipeline = Pipeline::spawn(topology, options).unwrap();
            let inputs = (0..200).map(|n| vec![if n % 40 == 20 { -13 } else { 1000 + n }]);
            let mut lost = 0;
            for (n, result) in (0..200).zip(pipeline.stream(inputs)) {
                match result {
                    Ok(value) => assert_eq!(value, [1000 + n]),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Panicked);
                        lost += 1;
                    }
                }
            }
            // The item itself, and at most the one that was open beside it.
            assert!((5..=10).contains(&lost), "{lost}");
            assert_eq!(pipeline.stats().completed, 200);
        }
    });
}

/// Source 1 gets what sink 1 gave for the item before.
struct Carry(i64);

impl Binding<i64> for Carry {
    fn bind(&mut self, inputs: &mut Vec<Option<i64>>) -> Result<(), ItemError> {
        inputs[1] = Some(self.0);
        Ok(())
    }

    fn carry(&mut self, outputs: &[i64]) -> Result<(), ItemError> {
        self.0 = outputs[1];
        Ok(())
    }
}

#[test]
fn any_replica_may_serve_any_item_of_a_stream_of_carried_state() {
    within(LIMIT, || {
        let served = Arc::new(Mutex::new(vec![BTreeSet::new(); 4]));
        let log = Arc::clone(&served);
        let factory: Factory<i64> = Box::new(move |context| {
            let (log, replica) = (Arc::clone(&log), context.replica);
            // The stream that an item belongs to is told by its input.
            let mut build = stage_fn(move |v: Inputs| {
                log.lock().unwrap()[(v[0] / 1000) as usize].insert(replica);
                std::thread::sleep(MS / 5);
                Ok(vec![v[0] + v[1], 2 * v[1] + v[0] % 7])
            });
            build(context)
        });
        let mut b = Topology::builder();
        let (x, state) = (b.source("x"), b.source("state"));
        let step = b.actor("step", "cpu", 2, 2, factory);
        let (y, next) = (b.sink("y"), b.sink("next"));
        b.connect(x, step.input(0)).connect(state, step.input(1));
        b.connect(step.output(0), y).connect(step.output(1), next);
        b.replicas(step, 3).lanes("cpu", 3);
        let pipeline = spawn(b, 8);
        let threads: Vec<_> = (0..4)
            .map(|stream| {
                let pipeline = pipeline.clone();
                std::thread::spawn(move || {
                    let handle = pipeline.open_stream(Carry(stream));
                    let xs = (0..50).map(|n| stream * 1000 + n);
                    let mut state = stream;
                    let results = handle.stream(xs.clone().map(|x| vec![Some(x), None]));
                    for (x, result) in xs.zip(results) {
                        let next = (2_i64.wrapping_mul(state)) + x % 7;
                        assert_eq!(result.unwrap(), [x + state, next]);
                        state = next;
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().unwrap();
        }
        let served = served.lock().unwrap();
        assert!(served.iter().any(|replicas| replicas.len() > 1), "{served:?}");
    });
}

#[test]
fn a_restart_by_name_reaches_one_replica_or_all() {
    within(LIMIT, || {
        let pipeline = spawn(one(map(|x| x), 3, 3), 4);
        let restarts = |expected: [u64; 3]| {
            let deadline = Instant::now() + LIMIT / 4;
            let found = || {
                let actors = pipeline.stats().actors;
                [0, 1, 2].map(|n| replica(&actors, &format!("b/{n}")).restarts)
            };
            while found() != expected {
                assert!(Instant::now() < deadline, "{:?} instead of {expected:?}", found());
                std::thread::sleep(MS);
            }
        };
        assert!(pipeline.restart("b/1"));
        restarts([0, 1, 0]);
        assert!(pipeline.restart("b"));
        restarts([1, 2, 1]);
        assert!(!pipeline.restart("b/3") && !pipeline.restart("c"));
        in_order(&pipeline, 100);
    });
}

#[test]
fn wrong_numbers_of_replicas_and_names_that_meet_are_refused() {
    let refused = |replicas| one(map(|x| x), replicas, 1).build().unwrap_err();
    let error = BuildError::Replicas { actor: "b".into(), replicas: 0, most: 1024 };
    assert_eq!(refused(0), error);
    assert!(refused(usize::MAX).to_string().contains("give it 1 to 1024"));
    let mut b = one(map(|x| x), 2, 1);
    let clash = b.actor("b/1", "d", 1, 0, map(|x| x));
    let x = b.source("more");
    b.connect(x, clash.input(0));
    let error = b.build().unwrap_err();
    assert_eq!(error, BuildError::DuplicateName { what: "actors", name: "b/1".into() });
    let mut other = one(map(|x| x), 1, 1);
    other.replicas(clash, 2);
    assert_eq!(other.build().unwrap_err(), BuildError::UnknownActor { actor: 1, actors: 1 });
}

#[test]
fn a_factory_serves_one_replica_at_a_time_and_its_failure_names_the_replica() {
    within(LIMIT, || {
        let building = AtomicBool::new(false);
        let factory: Factory<i64> = Box::new(move |context| {
            assert!(!building.swap(true, Ordering::SeqCst), "two at a time");
            std::thread::sleep(5 * MS);
            building.store(false, Ordering::SeqCst);
            if context.replica == 2 {
                return Err(ItemError::failed("no room for a third"));
            }
            map(|x| x)(context)
        });
        let error = Pipeline::spawn(one(factory, 3, 3).build().unwrap(), Options::new());
        match error.unwrap_err() {
            SpawnError::Stage { actor, error } => {
                assert_eq!((actor.as_str(), error.message()), ("b/2", "no room for a third"));
            }
            other => panic!("{other}"),
        }
    });
}

#[test]
fn a_spawn_with_a_stuck_factory_ends_and_the_waiting_replicas_with_it() {
    within(LIMIT, || {
        let release = Arc::new(AtomicBool::new(false));
        let held = Arc::clone(&release);
        let ended = Arc::new(());
        let alive = Arc::clone(&ended);
        let factory: Factory<i64> = Box::new(move |context| {
            let _alive = &alive;
            while !held.load(Ordering::SeqCst) {
                std::thread::sleep(MS);
            }
            map(|x| x)(context)
        });
        let begun = Instant::now();
        let options = Options::new().build_timeout(30 * MS);
        let error = Pipeline::spawn(one(factory, 3, 3).build().unwrap(), options).unwrap_err();
        assert!(begun.elapsed() < LIMIT / 10);
        match error {
            SpawnError::Timeout { actors } => assert_eq!(actors, ["b/0", "b/1", "b/2"]),
            other => panic!("{other}"),
        }
        release.store(true, Ordering::SeqCst);
        // The threads end, and the factory goes with them.
        let deadline = Instant::now() + LIMIT / 2;
        while Arc::strong_count(&ended) > 1 {
            assert!(Instant::now() < deadline, "a replica still waits for the factory");
            std::thread::sleep(MS);
        }
    });
}

#[test]
fn scenario_28_replicas_stop_from_random_states() {
    std::panic::set_hook(Box::new(|_| {}));
    within(2 * LIMIT, || {
        for round in 0..150 {
            let mut rng = Rng(round);
            let stage = match rng.below(4) {
                0 => sleepy(Duration::from_micros(rng.below(2000))),
                1 => kit::panicking(rng.below(20) as i64),
                2 => Device::factory(
                    1 + rng.below(3) as usize,
                    Duration::from_micros(rng.below(500)),
                ),
                _ => map(|x| x + 1),
            };
            let (replicas, lanes) = (1 + rng.below(4) as usize, 1 + rng.below(3) as usize);
            let options = Options::new()
                .in_flight(1 + rng.below(6) as usize)
                .restarts(rng.below(2) as u32)
                .restart_backoff(Duration::from_millis(rng.below(20)));
            let topology = one(stage, replicas, lanes).build().unwrap();
            let pipeline = Pipeline::spawn(topology, options).unwrap();
            let pusher = {
                let pipeline = pipeline.clone();
                let items = rng.below(60) as i64;
                std::thread::spawn(move || {
                    (0..items).map_while(|n| pipeline.push(vec![n]).ok()).collect::<Vec<_>>()
                })
            };
            std::thread::sleep(Duration::from_micros(rng.below(4000)));
            if rng.below(3) == 0 {
                let _ = pipeline.restart("b");
            }
            if rng.below(3) == 0 {
                let _ = pipeline.drain(Some(Instant::now() + rng.below(5) as u32 * MS));
            }
            let report = pipeline.shutdown();
            assert!(report.detached.is_empty(), "round {round}: {report:?}");
            for mut ticket in pusher.join().unwrap() {
                assert!(ticket.try_take().is_some(), "round {round}: no result");
            }
            let stats = pipeline.stats();
            assert_eq!(stats.admitted, stats.completed, "round {round}: {stats:?}");
            assert!(stats.devices[0].held == 0, "round {round}: {stats:?}");
        }
    });
}

#[test]
fn children_and_batches_go_through_replicas_and_are_collected_in_order() {
    within(LIMIT, || {
        type Numbers = Vec<i64>;
        let mut b = Topology::<Numbers>::builder();
        let x = b.source("x");
        let each = b
            .flat_map("each", "p", |list: Numbers| Ok(list.into_iter().map(|n| vec![n]).collect()));
        let batching = brigade_actors::Batching::up_to(3);
        let batch = b.batch("batch", "p", batching, |members: Vec<Numbers>| Ok(members.concat()));
        let square = b.map("square", "q", |batch: Numbers| {
            dawdle(batch[0], 5);
            Ok(batch.into_iter().map(|n| n * n).collect())
        });
        let unbatch = b.unbatch("unbatch", "p", |batch: Numbers, _| {
            Ok(batch.into_iter().map(|n| vec![n]).collect())
        });
        let all = b.collect_values("all", "r", |children: Vec<Numbers>| Ok(children.concat()));
        let y = b.sink("y");
        b.connect(x, each.input(0)).connect(each.output(0), batch.input(0));
        b.connect(batch.output(0), square.input(0)).connect(square.output(0), unbatch.input(0));
        b.connect(unbatch.output(0), all.input(0)).connect(all.output(0), y);
        b.replicas(square, 3).lanes("q", 3).replicas(all, 2).lanes("r", 2);
        let options = Options::new().in_flight(6);
        let pipeline = Pipeline::spawn(b.build().unwrap(), options).unwrap();
        let lists = (0..300_i64).map(|n| (0..n % 7).map(|k| 10 * n + k).collect::<Numbers>());
        for (list, result) in lists.clone().zip(pipeline.stream(lists.map(|list| vec![list]))) {
            let squares: Numbers = list.iter().map(|n| n * n).collect();
            assert_eq!(result.unwrap(), [squares]);
        }
        let mut b = Topology::<Numbers>::builder();
        let batching = brigade_actors::Batching::up_to(3);
        let batch = b.batch("batch", "p", batching, |members: Vec<Numbers>| Ok(members.concat()));
        b.replicas(batch, 2);
        let error = b.build().unwrap_err();
        assert_eq!(error, BuildError::NoReplicas { actor: "batch".into(), operator: "a batch" });
    });
}
