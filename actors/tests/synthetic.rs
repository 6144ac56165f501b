//! Synthetic stages inside pipelines: never early, as seldom wrong as asked for, overlapping.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod kit;

use std::time::{Duration, Instant};

use brigade_actors::synthetic::{Fate, Synthetic, sleep_until};
use brigade_actors::{ErrorKind, Options, Pipeline, Topology};
use kit::{MS, chain, spawn, within};

const LONG: Duration = Duration::from_secs(30);

#[test]
fn sleeping_ends_at_the_deadline_and_never_before() {
    for micros in [0, 1, 50, 99, 101, 300, 1_500] {
        for _ in 0..10 {
            let deadline = Instant::now() + Duration::from_micros(micros);
            let returned = sleep_until(deadline);
            assert!(returned >= deadline);
            assert!(Instant::now() >= returned);
        }
    }
    let past = Instant::now();
    assert!(sleep_until(past) >= past);
}

#[test]
fn no_firing_is_early_and_the_runtime_measures_the_same_times() {
    within(LONG, || {
        for slots in [1, 3] {
            let spec = Synthetic::new(MS).transfer_in(MS).transfer_out(MS).slots(slots);
            let pipeline = spawn(chain(vec![spec.factory()]), 4);
            for (n, result) in (0..30).zip(pipeline.stream((0..30).map(|n| vec![n]))) {
                assert_eq!(result.unwrap(), [n]);
            }
            let times = spec.measured();
            assert_eq!((times.firings, times.failures, times.panics), (30, 0, 0));
            assert_eq!(times.nominal, 90 * MS);
            assert!(times.min >= 3 * MS && times.min <= times.mean() && times.mean() <= times.max);
            let stats = pipeline.stats();
            assert!(stats.actors[0].service_min_ns >= 3_000_000);
            assert!(u128::from(stats.actors[0].service_sum_ns) >= times.total.as_nanos());
        }
    });
}

#[test]
fn transfers_of_an_asynchronous_stage_overlap_with_computing() {
    within(LONG, || {
        const ITEMS: u32 = 40;
        let wall = |slots: usize| {
            let spec = Synthetic::new(2 * MS).transfer_in(2 * MS).transfer_out(2 * MS).slots(slots);
            let pipeline = spawn(chain(vec![spec.factory()]), 8);
            let began = Instant::now();
            let results = pipeline.stream((0..i64::from(ITEMS)).map(|n| vec![n]));
            assert!(results.map(Result::unwrap).map(|v| v[0]).eq(0..i64::from(ITEMS)));
            began.elapsed()
        };
        let (one, four) = (wall(1), wall(4));
        // One item fills all three queues, the next 39 follow at the pace of one.
        assert!(one >= 6 * MS * ITEMS);
        assert!(four >= 2 * MS * (ITEMS + 2));
        assert!(four < one * 2 / 3, "{four:?} with slots, {one:?} without");
    });
}

#[test]
fn items_fail_exactly_as_drawn() {
    within(LONG, || {
        for slots in [1, 4] {
            let spec = Synthetic::new(Duration::from_micros(20)).failure_rate(0.3).slots(slots);
            let spec = spec.seed(11);
            let pipeline = spawn(chain(vec![spec.factory()]), 4);
            let mut failed = 0;
            for (n, result) in (0..500_u32).zip(pipeline.stream((0..500).map(|n| vec![n]))) {
                let wanted = spec.draw(u64::from(n)).fate == Fate::Failure;
                assert_eq!(result.is_err(), wanted, "item {n}");
                if let Err(error) = result {
                    assert!(error.message().contains("synthetic failure"), "{error}");
                    failed += 1;
                }
            }
            assert!((100..200).contains(&failed), "{failed}");
            assert_eq!(spec.measured().failures, failed);
        }
    });
}

#[test]
fn panics_are_caught_and_the_stage_is_built_anew() {
    within(LONG, || {
        for slots in [1, 4] {
            let spec = Synthetic::new(Duration::from_micros(20)).panic_rate(0.05).slots(slots);
            let spec = spec.seed(5);
            let options =
                Options::new().in_flight(4).restarts(200).restart_backoff(Duration::from_micros(1));
            let pipeline = Pipeline::spawn(chain(vec![spec.factory()]), options).unwrap();
            let mut panicked = 0;
            for (n, result) in (0..300_u32).zip(pipeline.stream((0..300).map(|n| vec![n]))) {
                let drawn = spec.draw(u64::from(n)).fate == Fate::Panic;
                match result {
                    // Firings that were open beside the one that panicked go down with it.
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Panicked);
                        assert!(drawn || slots > 1, "item {n}: {error}");
                        panicked += u64::from(drawn);
                    }
                    Ok(_) => assert!(!drawn, "item {n} was to panic"),
                }
            }
            assert!(panicked > 3, "{panicked}");
            let restarts = pipeline.stats().actors[0].restarts;
            assert!(restarts > 3 && restarts <= panicked, "{restarts} restarts");
        }
    });
}

#[test]
fn ports_are_passed_on_in_order_and_counted_round() {
    within(LONG, || {
        for slots in [1, 2] {
            let spec = Synthetic::new(Duration::ZERO).slots(slots);
            let mut builder = Topology::<i64>::builder();
            let (x, y) = (builder.source("x"), builder.source("y"));
            let stage = builder.actor("s", "d", 2, 3, spec.factory());
            builder.connect(x, stage.input(0)).connect(y, stage.input(1));
            for port in 0..3 {
                let sink = builder.sink(format!("o{port}"));
                builder.connect(stage.output(port), sink);
            }
            let end = builder.actor("end", "d", 1, 0, spec.factory());
            builder.connect(x, end.input(0));
            let pipeline = spawn(builder.build().unwrap(), 2);
            assert_eq!(pipeline.push(vec![7, 9]).unwrap().wait().unwrap(), [7, 9, 7]);
        }
    });
}

#[test]
fn a_pipeline_with_open_firings_stops_in_time() {
    within(LONG, || {
        let spec = Synthetic::new(20 * MS).slots(4);
        let pipeline = spawn(chain(vec![spec.factory(), spec.factory()]), 4);
        let tickets: Vec<_> = (0..4).map(|n| pipeline.push(vec![n]).unwrap()).collect();
        let began = Instant::now();
        assert!(pipeline.shutdown().detached.is_empty());
        assert!(began.elapsed() < 5 * Duration::from_secs(1));
        for ticket in tickets {
            let _ = ticket.wait();
        }
    });
}
