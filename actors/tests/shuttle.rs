//! Whole small pipelines under random schedules of their threads.
//!
//! ```text
//! RUSTFLAGS="--cfg shuttle" cargo test -p brigade-actors --release --no-default-features \
//!     --test shuttle --target-dir target/shuttle
//! ```
//!
//! The seeds are fixed; a failure prints the schedule that led to it, for `shuttle::replay`.
//! `BRIGADE_SHUTTLE_ROUNDS` says how many schedules a test tries.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use brigade_actors::{
    Batching, ErrorKind, Factory, Flow, ItemError, Options, Pipeline, PipelineState, Topology,
    stage_fn,
};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

fn explore(seed: u64, body: impl Fn() + Send + Sync + 'static) {
    let rounds = std::env::var("BRIGADE_SHUTTLE_ROUNDS");
    let rounds = rounds.ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(300);
    let body = Arc::new(body);
    println!("seed {seed}, {rounds} schedules");
    let config = || {
        let mut config = Config::new();
        config.stack_size = 0x40000;
        config
    };
    let random = Arc::clone(&body);
    let scheduler = RandomScheduler::new_from_seed(seed, rounds);
    Runner::new(scheduler, config()).run(move || random());
    let scheduler = PctScheduler::new_from_seed(seed, 3, rounds);
    Runner::new(scheduler, config()).run(move || body());
}

fn map(function: impl Fn(i64) -> i64 + Clone + Send + 'static) -> Factory<i64> {
    stage_fn(move |v: Vec<i64>| Ok(vec![function(v[0])]))
}

fn chain(factories: Vec<Factory<i64>>, device: impl Fn(usize) -> String) -> Topology<i64> {
    let mut builder = Topology::builder();
    let mut last = builder.source("x");
    for (n, factory) in factories.into_iter().enumerate() {
        let actor = builder.actor(format!("a{n}"), device(n), 1, 1, factory);
        builder.connect(last, actor.input(0));
        last = actor.output(0);
    }
    let y = builder.sink("y");
    builder.connect(last, y);
    builder.build().unwrap()
}

fn diamond() -> Topology<i64> {
    let mut builder = Topology::builder();
    let x = builder.source("x");
    let left = builder.actor("left", "l", 1, 1, map(|x| x * 2));
    let right = builder.actor("right", "r", 1, 1, map(|x| x + 1));
    let sum = stage_fn(|v: Vec<i64>| Ok(vec![v[0] + v[1]]));
    let join = builder.actor("join", "j", 2, 1, sum);
    let y = builder.sink("y");
    builder
        .connect(x, left.input(0))
        .connect(x, right.input(0))
        .connect(left.output(0), join.input(0))
        .connect(right.output(0), join.input(1))
        .connect(join.output(0), y);
    builder.build().unwrap()
}

#[test]
fn a_stream_comes_in_order_and_whole() {
    explore(1, || {
        for device in [|n| format!("cpu:{n}"), |_| "one".to_owned()] {
            let stages = vec![map(|x| x + 1), map(|x| x * 10)];
            let pipeline =
                Pipeline::spawn(chain(stages, device), Options::new().in_flight(2)).unwrap();
            let results: Result<Vec<_>, _> = pipeline.stream((0..4).map(|n| vec![n])).collect();
            let results: Vec<i64> = results.unwrap().into_iter().flatten().collect();
            assert_eq!(results, [10, 20, 30, 40]);
            pipeline.drain(None).unwrap();
            assert!(pipeline.shutdown().detached.is_empty());
        }
    });
}

#[test]
fn a_join_matches_by_number_under_two_pushers() {
    explore(2, || {
        let pipeline = Pipeline::spawn(diamond(), Options::new().in_flight(2)).unwrap();
        let push = |from: i64, pipeline: Pipeline<i64>| {
            move || {
                for n in from..from + 2 {
                    let result = pipeline.push(vec![n]).unwrap().wait().unwrap();
                    assert_eq!(result, [3 * n + 1]);
                }
            }
        };
        let other = shuttle::thread::spawn(push(100, pipeline.clone()));
        push(0, pipeline.clone())();
        other.join().unwrap();
        let stats = pipeline.stats();
        assert_eq!((stats.completed, stats.failed, stats.in_flight), (4, 0, 0));
    });
}

#[test]
fn a_stop_at_any_moment_leaves_no_ticket_without_a_result() {
    explore(3, || {
        let stages = vec![map(|x| x + 1), map(|x| x * 10)];
        let topology = chain(stages, |n| format!("cpu:{n}"));
        let pipeline = Pipeline::spawn(topology, Options::new().in_flight(2)).unwrap();
        let pusher = {
            let pipeline = pipeline.clone();
            shuttle::thread::spawn(move || {
                for n in 0..3 {
                    match pipeline.push(vec![n]).map(|ticket| ticket.wait()) {
                        Ok(Ok(value)) => assert_eq!(value, [10 * (n + 1)]),
                        Ok(Err(error)) => assert_eq!(error.kind(), ErrorKind::Shutdown),
                        Err(_) => assert_eq!(pipeline.state(), PipelineState::Stopped),
                    }
                }
            })
        };
        pipeline.shutdown();
        pusher.join().unwrap();
        assert_eq!(pipeline.in_flight(), 0);
    });
}

#[test]
fn a_panic_is_the_items_result_and_the_actor_comes_back() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload().downcast_ref::<&str>() != Some(&"boom") {
            report(panic);
        }
    }));
    explore(4, || {
        let boom = map(|x| {
            assert!(x != 1, "boom");
            x
        });
        let topology = chain(vec![boom, map(|x| x)], |n| format!("cpu:{n}"));
        let pipeline = Pipeline::spawn(topology, Options::new().in_flight(2)).unwrap();
        for (n, result) in (0..3).zip(pipeline.stream((0..3).map(|n| vec![n]))) {
            match result {
                Ok(value) => assert_eq!(value, [n]),
                Err(error) => assert_eq!((n, error.kind()), (1, ErrorKind::Panicked)),
            }
        }
        assert_eq!(pipeline.stats().actors[0].restarts, 1);
    });
}

/// Two children of each item, in batches of up to two across items, collected into their sum.
fn fanned() -> Topology<Vec<i64>> {
    Flow::source("x")
        .flat_map("split", "a", |x: Vec<i64>| Ok(vec![x.clone(), vec![x[0] + 1]]))
        .batch("batch", "b", Batching::up_to(2), |members: Vec<Vec<i64>>| Ok(members.concat()))
        .map("twice", "b", |batch: Vec<i64>| Ok(batch.into_iter().map(|x| 2 * x).collect()))
        .unbatch("unbatch", "c", |batch: Vec<i64>, _| {
            Ok(batch.into_iter().map(|x| vec![x]).collect())
        })
        .collect_values("sum", "c", |children: Vec<Vec<i64>>| {
            Ok(vec![children.into_iter().flatten().sum()])
        })
        .build("y")
        .unwrap()
}

#[test]
fn children_and_batches_neither_wait_for_ever_nor_get_lost() {
    explore(6, || {
        for budget in [1, 3] {
            let options = Options::new().in_flight(2).children(budget);
            let pipeline = Pipeline::spawn(fanned(), options).unwrap();
            let results: Result<Vec<_>, _> =
                pipeline.stream((0..3).map(|n| vec![vec![n]])).collect();
            let results: Vec<i64> = results.unwrap().into_iter().flatten().flatten().collect();
            assert_eq!(results, [2, 6, 10]);
            pipeline.drain(None).unwrap();
        }
    });
}

#[test]
fn a_stop_reaches_a_fan_out_that_waits_for_its_children() {
    explore(7, || {
        let options = Options::new().in_flight(2).children(1);
        let pipeline = Pipeline::spawn(fanned(), options).unwrap();
        let ticket = pipeline.push(vec![vec![5]]).unwrap();
        pipeline.shutdown();
        match ticket.wait() {
            Ok(result) => assert_eq!(result, [[22]]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Shutdown),
        }
    });
}

#[test]
fn a_restart_on_request_loses_nothing() {
    explore(5, || {
        let built = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&built);
        let factory: Factory<i64> = Box::new(move |context| {
            count.fetch_add(1, Ordering::SeqCst);
            map(|x| x + 1)(context)
        });
        let topology = chain(vec![factory], |_| "cpu".to_owned());
        let pipeline = Pipeline::spawn(topology, Options::new().in_flight(2)).unwrap();
        let restarter = {
            let pipeline = pipeline.clone();
            shuttle::thread::spawn(move || assert!(pipeline.restart("a0")))
        };
        let results: Result<Vec<_>, ItemError> = pipeline.stream((0..3).map(|n| vec![n])).collect();
        assert_eq!(results.unwrap(), [[1], [2], [3]]);
        restarter.join().unwrap();
        pipeline.drain(None).unwrap();
        pipeline.shutdown();
        assert!(built.load(Ordering::SeqCst) <= 2);
    });
}
