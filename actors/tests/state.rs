//! Streams of carried state.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use brigade_actors::{
    Binding, ErrorKind, ItemError, Options, Pipeline, Topology, TopologyBuilder, stage_fn,
};

mod kit;
use kit::{MS, within};

const LIMIT: Duration = Duration::from_secs(20);

/// Source 1 gets what sink 1 gave for the item before.
struct Carry(i64);

impl Binding<i64> for Carry {
    fn bind(&mut self, inputs: &mut Vec<Option<i64>>) -> Result<(), ItemError> {
        inputs[1].get_or_insert(self.0);
        Ok(())
    }

    fn carry(&mut self, outputs: &[i64]) -> Result<(), ItemError> {
        self.0 = outputs[1];
        Ok(())
    }
}

/// y = x + state, next state = 2 * state + x; fails for x = 13. Two actors, the second sleeps.
fn recurrence(sleep: Duration) -> TopologyBuilder<i64> {
    let mut b = Topology::builder();
    let (x, state) = (b.source("x"), b.source("state"));
    let step = stage_fn(|v: Vec<i64>| {
        if v[0] == 13 {
            return Err(ItemError::failed("thirteen"));
        }
        Ok(vec![v[0] + v[1], 2 * v[1] + v[0]])
    });
    let step = b.actor("step", "cpu:0", 2, 2, step);
    let rest = b.actor(
        "rest",
        "cpu:1",
        1,
        1,
        stage_fn(move |v: Vec<i64>| {
            std::thread::sleep(sleep);
            Ok(v)
        }),
    );
    let (y, next) = (b.sink("y"), b.sink("next"));
    b.connect(x, step.input(0)).connect(state, step.input(1));
    b.connect(step.output(0), y).connect(step.output(1), rest.input(0));
    b.connect(rest.output(0), next);
    b
}

fn expected(start: i64, xs: &[i64]) -> Vec<Vec<i64>> {
    let mut state = start;
    xs.iter()
        .map(|x| {
            let y = x + state;
            state = 2 * state + x;
            vec![y, state]
        })
        .collect()
}

fn spawn(in_flight: usize) -> Pipeline<i64> {
    let topology = recurrence(MS / 10).build().unwrap();
    Pipeline::spawn(topology, Options::new().in_flight(in_flight)).unwrap()
}

#[test]
fn interleaved_streams_each_compute_their_own_recurrence() {
    within(LIMIT, || {
        for in_flight in [1, 2, 5] {
            let pipeline = spawn(in_flight);
            std::thread::scope(|scope| {
                for stream in 0..4_i64 {
                    let pipeline = &pipeline;
                    scope.spawn(move || {
                        let xs: Vec<i64> = (0..20).map(|n| n % 7 + stream).collect();
                        let handle = pipeline.open_stream(Carry(stream));
                        let results = handle.stream(xs.iter().map(|&x| vec![Some(x), None]));
                        let results: Result<Vec<_>, _> = results.collect();
                        assert_eq!(results.unwrap(), expected(stream, &xs));
                    });
                }
            });
            assert_eq!(pipeline.stats().completed, 80);
        }
    });
}

#[test]
fn items_of_one_stream_are_queued_with_their_credit_and_run_in_order() {
    within(LIMIT, || {
        let topology = recurrence(5 * MS).build().unwrap();
        let pipeline = Pipeline::spawn(topology, Options::new().in_flight(4).trace(100)).unwrap();
        let stream = pipeline.open_stream(Carry(0));
        let tickets: Vec<_> = (1..=4).map(|x| stream.push(vec![Some(x), None]).unwrap()).collect();
        assert!(stream.try_push(vec![Some(9), None]).unwrap_err().is_full());
        let results: Vec<_> = tickets.into_iter().map(|ticket| ticket.wait().unwrap()).collect();
        assert_eq!(results, expected(0, &[1, 2, 3, 4]));
        // Never two of them at once: each starts after the one before has left the last actor.
        assert_eq!(pipeline.trace().overlap(), Duration::ZERO);
    });
}

#[test]
fn a_failed_item_loses_the_state_until_a_reset() {
    within(LIMIT, || {
        let pipeline = spawn(8);
        let stream = pipeline.open_stream(Carry(1));
        let push = |x| stream.push(vec![Some(x), None]).unwrap();
        let (good, bad, lost, lost_too) = (push(2), push(13), push(3), push(4));
        stream.reset(Carry(5));
        let fresh = push(6);
        assert_eq!(good.wait().unwrap(), [3, 4]);
        assert_eq!(bad.wait().unwrap_err().message(), "thirteen");
        for ticket in [lost, lost_too] {
            let seq = ticket.seq();
            let error = ticket.wait().unwrap_err();
            assert_eq!((error.kind(), error.seq()), (ErrorKind::StateLost, Some(seq)));
            assert!(error.to_string().contains("thirteen"), "{error}");
        }
        assert_eq!(fresh.wait().unwrap(), [11, 16]);
        assert!(stream.lost().is_none());
        // Another stream never noticed.
        let other = pipeline.open_stream(Carry(0));
        assert_eq!(other.push(vec![Some(1), None]).unwrap().wait().unwrap(), [1, 1]);
        assert_eq!(pipeline.in_flight(), 0);
    });
}

#[test]
fn a_pushed_value_stands_in_for_a_bound_one_and_a_missing_one_is_an_error() {
    within(LIMIT, || {
        let pipeline = spawn(2);
        let stream = pipeline.open_stream(Carry(1));
        let results = |inputs| stream.push(inputs).unwrap().wait();
        assert_eq!(results(vec![Some(1), Some(100)]).unwrap(), [101, 201]);
        assert_eq!(results(vec![Some(1), None]).unwrap(), [202, 403]);
        let error = results(vec![None, None]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains("source port 0"), "{error}");
        assert!(stream.lost().is_some());
        assert!(stream.push(vec![Some(1)]).is_err());
    });
}

#[test]
fn a_panicking_binding_is_an_error_and_the_pipeline_lives() {
    struct Bad;
    impl Binding<i64> for Bad {
        fn bind(&mut self, _: &mut Vec<Option<i64>>) -> Result<(), ItemError> {
            panic!("in bind")
        }
        fn carry(&mut self, _: &[i64]) -> Result<(), ItemError> {
            Ok(())
        }
    }
    within(LIMIT, || {
        let pipeline = spawn(2);
        let stream = pipeline.open_stream(Bad);
        let error = stream.push(vec![Some(1), None]).unwrap().wait().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Panicked);
        assert!(error.message().contains("in bind"), "{error}");
        let stream = pipeline.open_stream(Carry(0));
        assert_eq!(stream.push(vec![Some(1), None]).unwrap().wait().unwrap(), [1, 1]);
    });
}

#[test]
fn closing_and_stopping_leave_no_item_of_a_stream_without_a_result() {
    within(LIMIT, || {
        for round in 0..100_u32 {
            let topology = recurrence(MS / 5).build().unwrap();
            let pipeline = Pipeline::spawn(topology, Options::new().in_flight(6)).unwrap();
            let streams: Vec<_> = (0..2).map(|_| pipeline.open_stream(Carry(0))).collect();
            let tickets: Vec<_> =
                (0..6).filter_map(|n| streams[n % 2].try_push(vec![Some(1), None]).ok()).collect();
            if round % 2 == 0 {
                for stream in streams {
                    stream.close();
                }
                pipeline.drain(Some(Instant::now() + LIMIT)).unwrap();
                for ticket in tickets {
                    ticket.wait().unwrap();
                }
            } else {
                std::thread::sleep(round * MS / 50);
                pipeline.shutdown();
                for mut ticket in tickets {
                    assert!(ticket.try_take().is_some());
                }
            }
        }
    });
}
