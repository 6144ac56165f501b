//! What is refused before anything is made: numbers without bound, and options that contradict.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use brigade_actors::{Flow, Options, Pipeline, PushErrorKind, SpawnError, WhenFull};

mod kit;
use kit::{MS, chain, map, sleepy, within};

const LIMIT: Duration = Duration::from_secs(30);

fn refused(options: Options) -> SpawnError {
    Pipeline::spawn(chain(vec![map(|x| x)]), options).unwrap_err()
}

#[test]
fn numbers_past_a_stated_limit_are_refused_by_name() {
    let huge = [1_000_000_000, usize::MAX];
    for given in huge {
        let options = [
            ("in_flight", Options::new().in_flight(given), Options::MOST_ITEMS),
            ("max_in_flight", Options::new().max_in_flight(given), Options::MOST_ITEMS),
            ("in_flight_auto", Options::new().in_flight_auto(given), Options::MOST_ITEMS),
            ("queue", Options::new().queue(given), Options::MOST_ITEMS),
            ("children", Options::new().children(given), Options::MOST_ITEMS),
            ("trace", Options::new().trace(given), Options::MOST_EVENTS),
        ];
        for (name, options, limit) in options {
            match refused(options) {
                SpawnError::TooMany { option, given: named, most } => {
                    assert_eq!((option, named, most), (name, given, limit));
                }
                other => panic!("{name}: {other}"),
            }
        }
    }
    let text = refused(Options::new().in_flight(70_000)).to_string();
    assert_eq!(text, "in_flight(70000): at most 65536");
}

#[test]
fn the_most_items_and_events_that_are_stated_can_be_had() {
    within(LIMIT, || {
        let options = Options::new().in_flight(Options::MOST_ITEMS).trace(Options::MOST_EVENTS);
        let pipeline = Pipeline::spawn(chain(vec![map(|x| x + 1)]), options).unwrap();
        assert_eq!(pipeline.stream((0..3000).map(|x| vec![x])).filter(Result::is_ok).count(), 3000);
        let trace = pipeline.trace();
        assert_eq!((trace.events.len(), trace.dropped), (3000, 0));
    });
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    for (options, words) in [
        (Options::new().in_flight(8).max_in_flight(2), "max_in_flight(2) contradicts in_flight(8)"),
        (Options::new().in_flight(8).in_flight_auto(2), "in_flight_auto(2) contradicts"),
        (Options::new().max_in_flight(0), "max_in_flight(0)"),
        (Options::new().item_bytes(10), "byte_budget"),
    ] {
        let error = refused(options);
        assert!(
            matches!(&error, SpawnError::Options(message) if message.contains(words)),
            "{error}"
        );
    }
}

#[test]
fn the_words_of_a_refused_push_fit_every_policy() {
    within(LIMIT, || {
        let options = Options::new().in_flight(1).when_full(WhenFull::Refuse);
        let pipeline = Pipeline::spawn(chain(vec![sleepy(20 * MS)]), options).unwrap();
        let _first = pipeline.push(vec![1]).unwrap();
        let full = pipeline.push(vec![2]).unwrap_err().to_string();
        assert!(full.contains("push again once results have come"), "{full}");
        assert!(full.contains("WhenFull::Wait"), "{full}");
        let late = Instant::now().checked_sub(MS).unwrap();
        let idle = Pipeline::spawn(chain(vec![map(|x| x)]), Options::new()).unwrap();
        let late = idle.push_deadline(vec![3], late).unwrap_err();
        assert!(matches!(late.kind(), PushErrorKind::Expired));
        assert_eq!(late.to_string(), "the deadline passed before the item was let in");
        assert_eq!(idle.stats().admitted, 0);
    });
}

#[test]
fn a_restart_of_a_pipeline_that_has_ended_is_refused() {
    within(LIMIT, || {
        let pipeline = Pipeline::spawn(chain(vec![map(|x| x)]), Options::new()).unwrap();
        assert!(pipeline.restart("a0"));
        pipeline.shutdown();
        assert!(!pipeline.restart("a0"));
    });
}

#[test]
fn a_drain_behind_a_stop_tells_whether_anything_was_given_up() {
    within(LIMIT, || {
        let idle = Pipeline::spawn(chain(vec![map(|x| x)]), Options::new()).unwrap();
        assert_eq!(idle.push(vec![1]).unwrap().wait().unwrap(), [1]);
        idle.shutdown();
        idle.drain(None).unwrap();
        let busy = Pipeline::spawn(chain(vec![sleepy(50 * MS)]), Options::new()).unwrap();
        let _ticket = busy.push(vec![1]).unwrap();
        busy.shutdown();
        let error = busy.drain(None).unwrap_err();
        assert_eq!(error.left, 1);
        let text = error.to_string();
        assert!(text.ends_with("; 1 item was still in flight"), "{text}");
    });
}

/// Building is linear in the number of actors: ten times as many take about ten times as long. A
/// quadratic build would take a hundred times.
#[test]
fn a_build_of_many_actors_takes_time_in_proportion() {
    let build = |actors: usize| {
        let mut flow = Flow::<i64>::source("x");
        for actor in 0..actors {
            flow = flow.map(format!("m{actor}"), "cpu", Ok);
        }
        let begun = Instant::now();
        assert!(flow.build("y").is_ok());
        begun.elapsed()
    };
    let small = (0..5).map(|_| build(3_000)).min().unwrap();
    let large = (0..3).map(|_| build(30_000)).min().unwrap();
    assert!(large < 40 * small.max(MS), "{small:?} for 3000, {large:?} for 30000");
}
