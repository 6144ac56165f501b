//! Integers through whole pipelines: wirings, credits, errors, tickets, streams.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use brigade_actors::{
    ActorId, ErrorKind, ItemError, OutPort, PushErrorKind, Topology, TopologyBuilder, stage_fn,
};

mod kit;
use kit::{Inputs, chain, failing, map, sleepy, spawn};

fn add(builder: &mut TopologyBuilder<i64>, name: &str, from: &[OutPort]) -> ActorId {
    let sum = stage_fn(|v: Inputs| Ok(vec![v.iter().sum()]));
    let actor = builder.actor(name, name, from.len(), 1, sum);
    for (port, &from) in from.iter().enumerate() {
        builder.connect(from, actor.input(port));
    }
    actor
}

#[test]
fn a_chain_computes_and_numbers_rise() {
    let pipeline = spawn(chain(vec![map(|x| x + 1), map(|x| x * 10), map(|x| x - 3)]), 4);
    let first = pipeline.push(vec![1]).unwrap();
    let second = pipeline.push(vec![2]).unwrap();
    assert!(first.seq() < second.seq());
    assert_eq!(second.wait().unwrap(), [27]);
    assert_eq!(first.wait().unwrap(), [17]);
}

#[test]
fn diamonds_skips_and_fan_out_match_by_number() {
    // x -> left (slow for even items) -> join <- right <- x, and x skips to the join too; the
    // join's output goes to two sinks and to one more actor.
    let mut b = Topology::builder();
    let x = b.source("x");
    let left = stage_fn(|v: Inputs| {
        if v[0] % 2 == 0 {
            std::thread::sleep(Duration::from_micros(300));
        }
        Ok(vec![v[0] * 100])
    });
    let left = b.actor("left", "l", 1, 1, left);
    let right = b.actor("right", "r", 1, 2, stage_fn(|v: Inputs| Ok(vec![v[0] * 10, -v[0]])));
    b.connect(x, left.input(0)).connect(x, right.input(0));
    let join = add(&mut b, "join", &[left.output(0), right.output(0), x]);
    let more = add(&mut b, "more", &[join.output(0), right.output(1), right.output(1)]);
    for (name, port) in [("y", join.output(0)), ("z", more.output(0)), ("x again", x)] {
        let sink = b.sink(name);
        b.connect(port, sink);
    }
    let pipeline = spawn(b.build().unwrap(), 6);
    let results: Result<Vec<_>, _> = pipeline.stream((0..500).map(|n| vec![n])).collect();
    for (n, result) in (0_i64..).zip(results.unwrap()) {
        assert_eq!(result, [111 * n, 109 * n, n]);
    }
    let stats = pipeline.stats();
    assert_eq!((stats.admitted, stats.completed, stats.failed), (500, 500, 0));
    assert!(stats.edges.iter().all(|edge| edge.sent == 500 && edge.level == 0), "{stats:?}");
    assert!(stats.edges.iter().all(|edge| edge.peak <= 6), "{stats:?}");
}

#[test]
fn several_sources_and_direct_edges_work() {
    let mut b = Topology::builder();
    let (x, w, _unused) = (b.source("x"), b.source("w"), b.source("unused"));
    let sum = add(&mut b, "sum", &[x, w]);
    let (y, same) = (b.sink("y"), b.sink("same"));
    b.connect(sum.output(0), y).connect(w, same);
    let pipeline = spawn(b.build().unwrap(), 2);
    assert_eq!(pipeline.push(vec![3, 4, 9]).unwrap().wait().unwrap(), [7, 4]);
    let refused = pipeline.push(vec![1]).unwrap_err();
    assert!(matches!(refused.kind(), PushErrorKind::Arity { expected: 3, given: 1 }));
    assert_eq!(refused.into_inputs(), [1]);
}

#[test]
fn an_actor_that_nobody_takes_from_is_waited_for_and_its_error_is_the_items() {
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    let mut b = Topology::builder();
    let x = b.source("x");
    let tap = b.actor(
        "tap",
        "t",
        1,
        0,
        stage_fn(move |v: Inputs| {
            std::thread::sleep(Duration::from_millis(5));
            count.fetch_add(1, Ordering::SeqCst);
            if v[0] == 13 { Err(ItemError::failed("thirteen")) } else { Ok(vec![]) }
        }),
    );
    let y = b.sink("y");
    b.connect(x, tap.input(0)).connect(x, y);
    let pipeline = spawn(b.build().unwrap(), 2);
    assert_eq!(pipeline.push(vec![1]).unwrap().wait().unwrap(), [1]);
    assert_eq!(seen.load(Ordering::SeqCst), 1);
    let error = pipeline.push(vec![13]).unwrap().wait().unwrap_err();
    assert_eq!((error.actor(), error.message()), (Some("tap"), "thirteen"));
}

#[test]
fn an_error_at_each_position_is_the_items_result_and_the_stream_goes_on() {
    for position in 0..3 {
        let factories =
            (0..3).map(|n| if n == position { failing(7, "bad") } else { map(|x| x) }).collect();
        let pipeline = spawn(chain(factories), 3);
        let mut failed = 0;
        for (n, result) in (0..50).zip(pipeline.stream((0..50).map(|n| vec![n]))) {
            if n % 7 == 0 {
                let error = result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Failed);
                assert_eq!(error.actor(), Some(format!("a{position}").as_str()));
                assert_eq!(error.message(), format!("bad {n}"));
                assert_eq!(error.seq().unwrap().number(), n as u64);
                failed += 1;
            } else {
                assert_eq!(result.unwrap(), [n]);
            }
        }
        let stats = pipeline.stats();
        assert_eq!((stats.completed, stats.failed), (50, failed));
        assert_eq!(stats.actors[position].errors, failed);
        assert_eq!(stats.actors[2].skipped, if position == 2 { 0 } else { failed });
    }
}

#[test]
fn a_join_keeps_the_lowest_ports_error_and_chains_the_others() {
    let mut b = Topology::builder();
    let x = b.source("x");
    let ports: Vec<_> = [("p0", 2), ("p1", 3), ("p2", 5)]
        .into_iter()
        .map(|(name, n)| {
            let actor = b.actor(name, name, 1, 1, failing(n, name));
            b.connect(x, actor.input(0));
            actor.output(0)
        })
        .collect();
    let join = add(&mut b, "join", &ports);
    let y = b.sink("y");
    b.connect(join.output(0), y);
    let pipeline = spawn(b.build().unwrap(), 8);
    let errors_of = |n: i64| {
        let error = pipeline.push(vec![n]).unwrap().wait().unwrap_err();
        let first = error.actor().unwrap().to_owned();
        let rest: Vec<_> =
            error.others().iter().map(|other| other.actor().unwrap().to_owned()).collect();
        (first, rest)
    };
    assert_eq!(errors_of(30), ("p0".into(), vec!["p1".into(), "p2".into()]));
    assert_eq!(errors_of(15), ("p1".into(), vec!["p2".into()]));
    assert_eq!(errors_of(5), ("p2".into(), vec![]));
    assert_eq!(pipeline.push(vec![7]).unwrap().wait().unwrap(), [21]);
}

#[test]
fn one_error_that_reaches_a_join_on_two_ways_counts_once() {
    let mut b = Topology::builder();
    let x = b.source("x");
    let bad = b.actor("bad", "d", 1, 1, failing(1, "no"));
    b.connect(x, bad.input(0));
    let join = add(&mut b, "join", &[bad.output(0), bad.output(0)]);
    let y = b.sink("y");
    b.connect(join.output(0), y);
    let error = spawn(b.build().unwrap(), 1).push(vec![1]).unwrap().wait().unwrap_err();
    assert_eq!(error.others().len(), 0, "{error}");
}

#[test]
fn a_callers_typed_error_arrives() {
    #[derive(Debug, PartialEq)]
    struct Mine(u8);
    impl std::fmt::Display for Mine {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            write!(f, "mine {}", self.0)
        }
    }
    impl std::error::Error for Mine {}
    let topology = chain(vec![stage_fn(|_: Inputs| Err(ItemError::from_error(Mine(4))))]);
    let error = spawn(topology, 1).push(vec![0]).unwrap().wait().unwrap_err();
    assert_eq!(error.downcast_ref::<Mine>(), Some(&Mine(4)));
    assert_eq!(error.to_string(), "item 0 at actor `a0`: mine 4");
}

#[test]
fn a_missing_or_surplus_output_is_an_error_that_names_the_actor() {
    for (outputs, words) in [(vec![], "without its output 0"), (vec![1, 2], "output 1 was emitted")]
    {
        let topology = chain(vec![stage_fn(move |_: Inputs| Ok(outputs.clone()))]);
        let error = spawn(topology, 1).push(vec![0]).unwrap().wait().unwrap_err();
        assert_eq!((error.kind(), error.actor()), (ErrorKind::Contract, Some("a0")));
        assert!(error.to_string().contains(words), "{error}");
    }
}

#[test]
fn scenario_27_push_waits_and_try_push_says_full_and_gives_the_inputs_back() {
    let pipeline = spawn(chain(vec![sleepy(Duration::from_millis(150))]), 2);
    let tickets: Vec<_> = (0..2).map(|n| pipeline.try_push(vec![n]).unwrap()).collect();
    let full = pipeline.try_push(vec![77]).unwrap_err();
    assert!(full.is_full());
    assert_eq!(full.into_inputs(), [77]);
    assert_eq!(pipeline.in_flight(), 2);
    let late = Instant::now() + Duration::from_millis(2);
    let expired = pipeline.push_deadline(vec![5], late).unwrap_err();
    assert!(matches!(expired.kind(), PushErrorKind::Expired));
    let begun = Instant::now();
    let third = pipeline.push(vec![3]).unwrap();
    assert!(begun.elapsed() > Duration::from_millis(20), "the push did not wait");
    assert_eq!(third.wait().unwrap(), [3]);
    for (n, ticket) in (0..).zip(tickets) {
        assert_eq!(ticket.wait().unwrap(), [n]);
    }
    assert_eq!(pipeline.in_flight(), 0);
}

#[test]
fn a_credit_is_back_before_its_result_is_seen() {
    let pipeline = spawn(chain(vec![map(|x| x)]), 1);
    for n in 0..2000 {
        let ticket = pipeline.try_push(vec![n]).expect("the credit of the item before is back");
        assert_eq!(ticket.wait().unwrap(), [n]);
    }
}

#[test]
fn tickets_time_out_poll_and_may_be_dropped() {
    let pipeline = spawn(chain(vec![sleepy(Duration::from_millis(20))]), 4);
    drop(pipeline.push(vec![1]).unwrap());
    let mut ticket = pipeline.push(vec![2]).unwrap();
    assert!(ticket.try_take().is_none());
    assert!(ticket.wait_timeout(Duration::from_millis(1)).is_none());
    assert!(!ticket.is_done());
    assert_eq!(ticket.wait_timeout(Duration::from_secs(5)).unwrap().unwrap(), [2]);
    assert!(ticket.try_take().is_none());
    assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::Invalid);
}

#[test]
fn a_late_item_is_an_error_at_its_deadline_not_later() {
    let pipeline = spawn(chain(vec![sleepy(Duration::from_millis(300)), map(|x| x)]), 4);
    let begun = Instant::now();
    let ticket = pipeline.push_deadline(vec![1], begun + Duration::from_millis(10)).unwrap();
    assert_eq!(ticket.wait().unwrap_err().kind(), ErrorKind::Expired);
    assert!(begun.elapsed() < Duration::from_millis(250));
    // The credit comes back when the item has left the pipeline.
    assert_eq!(pipeline.in_flight(), 1);
    assert_eq!(pipeline.push(vec![2]).unwrap().wait().unwrap(), [2]);
    let stats = pipeline.stats();
    assert_eq!((stats.completed, stats.failed, stats.in_flight), (2, 1, 0));
    assert_eq!(stats.actors[1].skipped, 1);
}

#[test]
fn a_cancelled_item_is_skipped() {
    let pipeline = spawn(chain(vec![sleepy(Duration::from_millis(30)), map(|x| x)]), 4);
    let first = pipeline.push(vec![1]).unwrap();
    let second = pipeline.push(vec![2]).unwrap();
    second.cancel();
    assert_eq!(second.wait().unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(first.wait().unwrap(), [1]);
    pipeline.drain(Some(Instant::now() + Duration::from_secs(5))).unwrap();
    assert_eq!(pipeline.stats().actors[0].items, 1);
}

#[test]
fn scenario_23_streams_of_any_length_come_in_order() {
    for depth in [1, 2, 3, 8] {
        let pipeline = spawn(chain(vec![map(|x| x + 1), map(|x| x + 1), map(|x| x + 1)]), depth);
        for items in [0, 1, 2, depth as i64, 40] {
            let results: Result<Vec<_>, _> = pipeline.stream((0..items).map(|n| vec![n])).collect();
            let expected: Vec<_> = (0..items).map(|n| vec![n + 3]).collect();
            assert_eq!(results.unwrap(), expected, "depth {depth}, {items} items");
        }
    }
}

#[test]
fn an_endless_stream_reads_no_further_ahead_than_its_window() {
    let pipeline = spawn(chain(vec![map(|x| x * 2)]), 3);
    let read = AtomicUsize::new(0);
    let endless = (0..).inspect(|_| {
        read.fetch_add(1, Ordering::SeqCst);
    });
    let mut results = pipeline.stream(endless.map(|n| vec![n]));
    assert_eq!(read.load(Ordering::SeqCst), 0);
    for taken in 0..200 {
        assert_eq!(results.next().unwrap().unwrap(), [2 * taken]);
        let ahead = read.load(Ordering::SeqCst) - (taken as usize + 1);
        assert!(ahead <= 3, "{ahead} items were read ahead");
    }
}

#[test]
fn a_stalled_stream_holds_nobody_else_up() {
    let pipeline = spawn(chain(vec![map(|x| x)]), 2);
    let mut stalled = pipeline.stream((0..).map(|n| vec![n]));
    assert_eq!(stalled.next().unwrap().unwrap(), [0]);
    let other: Result<Vec<_>, _> = pipeline.stream((0..100).map(|n| vec![n])).collect();
    assert_eq!(other.unwrap().len(), 100);
    assert_eq!(stalled.next().unwrap().unwrap(), [1]);
}

#[test]
fn two_streams_driven_by_one_thread_do_not_wait_for_each_other() {
    let pipeline = spawn(chain(vec![map(|x| x), map(|x| -x)]), 2);
    let a = pipeline.stream((0..100).map(|n| vec![n]));
    let b = pipeline.stream((100..200).map(|n| vec![n]));
    for (n, (a, b)) in (0..).zip(a.zip(b)) {
        assert_eq!((a.unwrap(), b.unwrap()), (vec![-n], vec![-n - 100]));
    }
}

#[test]
fn many_threads_push_and_each_gets_its_own_results() {
    let pipeline = spawn(chain(vec![map(|x| x + 1), map(|x| x * 2)]), 4);
    std::thread::scope(|scope| {
        for thread in 0..4_i64 {
            let pipeline = pipeline.clone();
            scope.spawn(move || {
                for n in 0..300 {
                    let x = thread * 1000 + n;
                    assert_eq!(pipeline.push(vec![x]).unwrap().wait().unwrap(), [(x + 1) * 2]);
                }
            });
        }
    });
    assert_eq!(pipeline.stats().completed, 1200);
}

/// Waits for a pseudo-random time of up to a tenth of a millisecond that depends on `x` alone.
fn dawdle(x: i64, salt: u64) {
    let pause = kit::Rng(x as u64 ^ (salt << 32)).below(100);
    if pause > 60 {
        std::thread::sleep(Duration::from_micros(pause));
    }
}

#[test]
fn scenario_21_random_delays_change_nothing_at_any_depth() {
    let run = |depth: usize| -> Vec<Vec<i64>> {
        let mut b = Topology::builder();
        let x = b.source("x");
        let stage = |salt: u64| {
            stage_fn(move |v: Inputs| {
                dawdle(v[0], salt);
                Ok(vec![v.iter().fold(salt as i64, |sum, x| sum.wrapping_mul(31) ^ x)])
            })
        };
        let mut ports = vec![x];
        for n in 0..6_usize {
            // Each actor joins its predecessor with one that lies further back.
            let from = [ports[ports.len() - 1], ports[n / 2]];
            let actor = b.actor(format!("a{n}"), format!("d{}", n % 3), 2, 1, stage(n as u64));
            b.connect(from[0], actor.input(0)).connect(from[1], actor.input(1));
            ports.push(actor.output(0));
        }
        let y = b.sink("y");
        b.connect(ports[6], y);
        let pipeline = spawn(b.build().unwrap(), depth);
        let results: Result<_, _> = pipeline.stream((0..150).map(|n| vec![n])).collect();
        results.unwrap()
    };
    let sequential = run(1);
    for depth in 2..=8 {
        assert_eq!(run(depth), sequential, "depth {depth}");
    }
}

#[test]
fn joins_match_items_that_come_out_of_order() {
    use brigade_actors::{Factory, Firing, Outbox, Seq, Stage, StageWaker};

    /// Holds firings back until it has four, then gives them one by one, last first.
    struct Reverse {
        held: Vec<(Seq, i64)>,
        giving: bool,
        waker: StageWaker,
    }
    impl Stage<i64> for Reverse {
        fn slots(&self) -> usize {
            4
        }
        fn submit(&mut self, firing: Firing<i64>, out: &mut Outbox<i64>) -> Result<(), ItemError> {
            self.held.push((firing.seq, firing.inputs[0]));
            out.defer();
            self.giving = self.held.len() == 4;
            self.waker.wake();
            Ok(())
        }
        fn poll(&mut self, out: &mut Outbox<i64>) -> Result<(), ItemError> {
            if self.giving
                && let Some((seq, x)) = self.held.pop()
            {
                out.emit_for(seq, 0, -x);
                self.giving = !self.held.is_empty();
                self.waker.wake();
            }
            Ok(())
        }
    }
    let factory: Factory<i64> = Box::new(|context| {
        Ok(Box::new(Reverse { held: Vec::new(), giving: false, waker: context.waker }))
    });
    let mut b = Topology::builder();
    let x = b.source("x");
    let reverse = b.actor("reverse", "r", 1, 1, factory);
    let seen = Arc::new(std::sync::Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let join = b.actor(
        "join",
        "j",
        2,
        1,
        stage_fn(move |v: Inputs| {
            assert_eq!(v[0], -v[1], "two items were mixed");
            log.lock().unwrap().push(v[1]);
            Ok(vec![v[1]])
        }),
    );
    let y = b.sink("y");
    b.connect(x, reverse.input(0)).connect(reverse.output(0), join.input(0));
    b.connect(x, join.input(1)).connect(join.output(0), y);
    let pipeline = spawn(b.build().unwrap(), 4);
    let results: Result<Vec<_>, _> = pipeline.stream((0..40).map(|n| vec![n])).collect();
    assert_eq!(results.unwrap(), (0..40).map(|n| vec![n]).collect::<Vec<_>>());
    let seen = seen.lock().unwrap();
    assert_eq!(seen[..4], [3, 2, 1, 0], "the stage did not turn the order round");
}

#[test]
fn handles_may_be_shared_between_threads() {
    const fn shared<T: Send + Sync + 'static>() {}
    const fn sent<T: Send + 'static>() {}
    shared::<brigade_actors::Pipeline<i64>>();
    shared::<brigade_actors::Ticket<i64>>();
    shared::<brigade_actors::StreamHandle<i64>>();
    shared::<brigade_actors::System>();
    shared::<brigade_actors::StageWaker>();
    shared::<ItemError>();
    sent::<Topology<i64>>();
    sent::<brigade_actors::PushFuture<i64>>();
    sent::<brigade_actors::Results<i64, std::vec::IntoIter<Vec<i64>>>>();
}
