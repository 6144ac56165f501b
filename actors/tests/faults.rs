//! Panics, restarts, stops from any state, stuck threads.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use brigade_actors::{
    ErrorKind, Factory, ItemError, Options, Pipeline, PipelineState, PushErrorKind, SpawnError,
    stage_fn,
};

mod kit;
use kit::{MS, Rng, chain, map, panicking, sleepy, spawn, within};

const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_panic_is_its_items_result_and_the_stage_is_built_anew() {
    for position in 0..3 {
        let factories = (0..3).map(|n| if n == position { panicking(5) } else { map(|x| x + 1) });
        let topology = chain(factories.collect());
        let pipeline =
            Pipeline::spawn(topology, Options::new().in_flight(4).restart_backoff(MS)).unwrap();
        let at = 5 - position as i64;
        for (n, result) in (0..20).zip(pipeline.stream((0..20).map(|n| vec![n]))) {
            if n == at {
                let error = result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Panicked);
                assert_eq!(error.actor(), Some(format!("a{position}").as_str()));
                assert!(error.message().contains("boom at 5"), "{error}");
            } else {
                assert_eq!(result.unwrap(), [n + 2]);
            }
        }
        assert_eq!(pipeline.stats().actors[position].restarts, 1);
        assert_eq!(pipeline.state(), PipelineState::Running);
    }
}

#[test]
fn past_the_restart_limit_the_pipeline_fails_with_the_cause() {
    within(LIMIT, || {
        let topology = chain(vec![map(|x| x), map(|x| panic!("always {x}"))]);
        let options = Options::new().in_flight(3).restarts(2).restart_backoff(MS);
        let pipeline = Pipeline::spawn(topology, options).unwrap();
        let results: Vec<_> = pipeline.stream((0..).map(|n| vec![n])).collect();
        assert!(results.len() >= 3, "{}", results.len());
        let errors: Vec<_> = results.into_iter().map(Result::unwrap_err).collect();
        assert!(errors[..2].iter().all(|error| error.kind() == ErrorKind::Panicked));
        let last = errors.last().unwrap();
        assert_eq!(last.kind(), ErrorKind::StageDown);
        assert!(last.message().contains("actor `a1` went down more than 2 times"), "{last}");
        assert_eq!(pipeline.state(), PipelineState::Failed);
        let refused = pipeline.push(vec![1]).unwrap_err();
        let PushErrorKind::Closed(cause) = refused.kind() else { panic!("{refused}") };
        assert!(cause.message().contains("always"), "{cause}");
        assert_eq!(pipeline.in_flight(), 0);
        assert_eq!(pipeline.shutdown().detached, Vec::<String>::new());
        let stats = pipeline.stats();
        assert_eq!(stats.admitted, stats.completed, "each item has its result");
    });
}

#[test]
fn a_failing_factory_fails_the_spawn_by_name_and_everything_is_torn_down() {
    struct Count(Arc<AtomicUsize>);
    impl Drop for Count {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }
    let alive = Arc::new(AtomicUsize::new(0));
    let counted = |alive: &Arc<AtomicUsize>| -> Factory<i64> {
        alive.fetch_add(1, Ordering::SeqCst);
        let count = Count(Arc::clone(alive));
        let mut inner = map(|x| x);
        Box::new(move |context| {
            let _ = &count;
            inner(context)
        })
    };
    let failing: Factory<i64> = Box::new(|_| Err(ItemError::failed("no such device")));
    let panicking: Factory<i64> = Box::new(|_| panic!("driver fell over"));
    let topology = chain(vec![counted(&alive), failing, counted(&alive), panicking]);
    let error = Pipeline::spawn(topology, Options::new()).unwrap_err();
    let SpawnError::Stage { actor, error } = &error else { panic!("{error}") };
    assert_eq!((actor.as_str(), error.message()), ("a1", "no such device"));
    assert_eq!(error.others()[0].actor(), Some("a3"));
    assert!(error.others()[0].message().contains("driver fell over"));
    assert_eq!(alive.load(Ordering::SeqCst), 0, "the threads have ended");

    let slow: Factory<i64> = Box::new(|_| {
        std::thread::sleep(1000 * MS);
        Err(ItemError::failed("too late"))
    });
    let options = Options::new().build_timeout(300 * MS);
    let error = Pipeline::spawn(chain(vec![map(|x| x), slow]), options).unwrap_err();
    assert!(matches!(&error, SpawnError::Timeout { actors } if actors == &["a1"]), "{error}");
    let error = Pipeline::spawn(chain(vec![map(|x| x)]), Options::new().in_flight(0)).unwrap_err();
    assert!(matches!(error, SpawnError::Options(_)));
}

#[test]
fn a_failing_rebuild_counts_as_a_restart() {
    within(LIMIT, || {
        let factory: Factory<i64> = Box::new(|context| match context.attempt {
            0 => panicking(0)(context),
            1 => Err(ItemError::failed("device busy")),
            _ => map(|x| x * 2)(context),
        });
        let options = Options::new().restarts(2).restart_backoff(MS);
        let pipeline = Pipeline::spawn(chain(vec![factory]), options).unwrap();
        let error = pipeline.push(vec![0]).unwrap().wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Panicked);
        assert_eq!(pipeline.push(vec![4]).unwrap().wait().unwrap(), [8]);
        assert_eq!(pipeline.stats().actors[0].restarts, 2);
    });
}

#[test]
fn a_restart_on_request_loses_nothing() {
    within(LIMIT, || {
        let built = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&built);
        let mut inner = map(|x| x + 1);
        let factory: Factory<i64> = Box::new(move |context| {
            count.fetch_add(1, Ordering::SeqCst);
            inner(context)
        });
        let pipeline = spawn(chain(vec![factory, map(|x| x)]), 4);
        for (n, result) in (0..200).zip(pipeline.stream((0..200).map(|n| vec![n]))) {
            if n % 50 == 0 {
                assert!(pipeline.restart("a0"));
            }
            assert_eq!(result.unwrap(), [n + 1]);
        }
        assert!(!pipeline.restart("nobody"));
        assert!(built.load(Ordering::SeqCst) > 2);
        assert_eq!(pipeline.state(), PipelineState::Running);
    });
}

#[test]
fn a_shutdown_wakes_pushes_and_tickets() {
    within(LIMIT, || {
        let pipeline = spawn(chain(vec![sleepy(100 * MS)]), 1);
        let ticket = pipeline.push(vec![1]).unwrap();
        let pushing = std::thread::spawn({
            let pipeline = pipeline.clone();
            move || pipeline.push(vec![2]).map(|_| ()).unwrap_err()
        });
        let waiting = std::thread::spawn(move || ticket.wait().unwrap_err());
        std::thread::sleep(10 * MS);
        let begun = Instant::now();
        assert_eq!(pipeline.shutdown().detached, Vec::<String>::new());
        assert!(begun.elapsed() < 500 * MS);
        assert!(matches!(pushing.join().unwrap().kind(), PushErrorKind::Closed(_)));
        assert_eq!(waiting.join().unwrap().kind(), ErrorKind::Shutdown);
        assert_eq!(pipeline.state(), PipelineState::Stopped);
        assert_eq!(pipeline.stats().in_flight, 0);
        assert!(pipeline.shutdown().detached.is_empty(), "a second shutdown is no harm");
    });
}

#[test]
fn a_drain_finishes_what_is_in_flight_and_takes_nothing_more() {
    within(LIMIT, || {
        let pipeline = spawn(chain(vec![sleepy(5 * MS), sleepy(5 * MS)]), 4);
        let tickets: Vec<_> = (0..4).map(|n| pipeline.push(vec![n]).unwrap()).collect();
        pipeline.drain(Some(Instant::now() + LIMIT)).unwrap();
        assert_eq!(pipeline.state(), PipelineState::Draining);
        for (n, mut ticket) in (0..).zip(tickets) {
            assert_eq!(ticket.try_take().expect("drained").unwrap(), [n]);
        }
        let refused = pipeline.push(vec![9]).unwrap_err();
        assert!(matches!(refused.kind(), PushErrorKind::Closed(_)));
        let results: Vec<_> = pipeline.stream((0..).map(|n| vec![n])).collect();
        assert_eq!(results.len(), 1, "the stream ends with the refusal");
        assert_eq!(results[0].as_ref().unwrap_err().kind(), ErrorKind::Shutdown);
    });
}

#[test]
fn a_drain_that_is_late_says_what_is_left() {
    within(LIMIT, || {
        let pipeline = spawn(chain(vec![sleepy(100 * MS)]), 3);
        let tickets: Vec<_> = (0..3).map(|n| pipeline.push(vec![n]).unwrap()).collect();
        let error = pipeline.drain(Some(Instant::now() + 10 * MS)).unwrap_err();
        assert_eq!(error.left, 3);
        for ticket in tickets {
            ticket.wait().unwrap();
        }
        pipeline.drain(None).unwrap();
    });
}

#[test]
fn a_stuck_thread_is_left_behind_named_and_its_lane_counts_as_lost() {
    within(LIMIT, || {
        let release = Arc::new(AtomicBool::new(false));
        let held = Arc::clone(&release);
        let stuck = stage_fn(move |v: Vec<i64>| {
            while !held.load(Ordering::SeqCst) {
                std::thread::sleep(MS);
            }
            Ok(v)
        });
        let system = brigade_actors::System::new();
        let one = |factory| kit::chain_on(vec![factory], |_| "gpu:0".into());
        let options = Options::new().stop_timeout(50 * MS);
        let bad = system.spawn(one(stuck), options).unwrap();
        let good = system.spawn(one(map(|x| x + 1)), Options::new()).unwrap();
        let ticket = bad.push(vec![1]).unwrap();
        while bad.stats().devices[0].held == 0 {
            std::thread::sleep(MS);
        }
        let waiting = good.push(vec![1]).unwrap();
        let begun = Instant::now();
        assert_eq!(bad.shutdown().detached, ["a0"]);
        assert!(begun.elapsed() < 500 * MS);
        assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::Shutdown);
        assert_eq!(bad.stats().detached, ["a0"]);
        // The other pipeline cannot ever get the lane: its item says so, and by whom it is held.
        let error = waiting.wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::StageDown);
        assert!(error.message().contains("`gpu:0`"), "{error}");
        // The thread comes back, and the lane with it.
        release.store(true, Ordering::SeqCst);
        while !bad.stats().detached.is_empty() {
            std::thread::sleep(MS);
        }
        assert_eq!(good.push(vec![1]).unwrap().wait().unwrap(), [2]);
        assert_eq!(good.stats().devices[0].poisoned, 0);
    });
}

#[test]
fn a_stage_may_drop_the_last_handle_of_its_own_pipeline() {
    within(LIMIT, || {
        let slot: Arc<std::sync::Mutex<Option<Pipeline<i64>>>> = Arc::default();
        let inner = Arc::clone(&slot);
        let drops = stage_fn(move |v: Vec<i64>| {
            drop(inner.lock().unwrap().take());
            Ok(v)
        });
        let pipeline = spawn(chain(vec![drops, map(|x| x)]), 2);
        *slot.lock().unwrap() = Some(pipeline.clone());
        let again = pipeline.clone();
        drop(pipeline);
        let ticket = again.push(vec![1]).unwrap();
        drop(again);
        let _ = ticket.wait();
    });
}

#[test]
fn a_stage_that_panics_when_dropped_does_no_harm() {
    struct Bomb;
    impl brigade_actors::Stage<i64> for Bomb {
        fn submit(
            &mut self,
            firing: brigade_actors::Firing<i64>,
            out: &mut brigade_actors::Outbox<i64>,
        ) -> Result<(), ItemError> {
            out.emit(0, firing.inputs[0]);
            Ok(())
        }
    }
    impl Drop for Bomb {
        fn drop(&mut self) {
            panic!("in drop");
        }
    }
    within(LIMIT, || {
        let factory: Factory<i64> = Box::new(|_| Ok(Box::new(Bomb)));
        let pipeline = spawn(chain(vec![factory]), 1);
        assert_eq!(pipeline.push(vec![1]).unwrap().wait().unwrap(), [1]);
        assert!(pipeline.shutdown().detached.is_empty());
        assert_eq!(pipeline.state(), PipelineState::Stopped);
    });
}

#[test]
fn drops_at_random_moments_end() {
    within(Duration::from_secs(120), || {
        for round in 0..200 {
            let mut rng = Rng(1000 + round);
            let pipeline = spawn(
                chain(vec![map(|x| x), sleepy(Duration::from_micros(rng.below(300))), map(|x| x)]),
                1 + rng.below(5) as usize,
            );
            let mut tickets = Vec::new();
            for n in 0..rng.below(12) as i64 {
                tickets.extend(pipeline.try_push(vec![n]).ok());
            }
            let mut stream = pipeline.stream((0..).map(|n| vec![n]));
            for _ in 0..rng.below(6) {
                stream.next().unwrap().unwrap();
            }
            if rng.below(2) == 0 {
                drop(stream);
                drop(pipeline);
            } else {
                drop(pipeline);
                drop(stream);
            }
            for ticket in tickets {
                let _ = ticket.wait();
            }
        }
    });
}
