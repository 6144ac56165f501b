//! Operators: fan-out, filters, batches, lists, choices; what they do with order, errors and stops.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod kit;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use brigade_actors::{
    Batching, Binding, BuildError, ErrorKind, Flow, ItemError, Operator, Options, Pipeline,
    Topology, TopologyBuilder, stage_fn,
};
use kit::{MS, within};

type V = Vec<i64>;

const LIMIT: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

fn each(list: V) -> Result<Vec<V>, ItemError> {
    Ok(list.into_iter().map(|n| vec![n]).collect())
}

fn concat(lists: Vec<V>) -> Result<V, ItemError> {
    Ok(lists.into_iter().flatten().collect())
}

fn split(batch: V, _: usize) -> Result<Vec<V>, ItemError> {
    each(batch)
}

fn fail_on(bad: i64) -> impl FnMut(V) -> Result<V, ItemError> + Clone + Send + 'static {
    move |v| {
        if v.contains(&bad) { Err(ItemError::failed(format!("{bad} is bad"))) } else { Ok(v) }
    }
}

fn run(builder: TopologyBuilder<V>, options: Options) -> Pipeline<V> {
    Pipeline::spawn(builder.build().unwrap(), options).unwrap()
}

fn ask(pipeline: &Pipeline<V>, input: V) -> Result<Vec<V>, ItemError> {
    pipeline.push(vec![input]).unwrap().wait()
}

/// What a collect can see of a child: its value, -1 for filtered, -2 for failed.
fn marks(children: Vec<Result<V, ItemError>>) -> Result<V, ItemError> {
    let mark = |child: Result<V, ItemError>| match child {
        Ok(value) => value[0],
        Err(error) if error.is_filtered() => -1,
        Err(_) => -2,
    };
    Ok(children.into_iter().map(mark).collect())
}

#[test]
fn children_keep_their_order_and_their_errors() {
    within(LIMIT, || {
        let flow = Flow::source("x")
            .flat_map("each", "a", each)
            .map("slow first", "b", |v: V| {
                std::thread::sleep(Duration::from_micros(300 * u64::from(v[0] % 3 == 0)));
                Ok(v)
            })
            .map("fail", "c", fail_on(3))
            .filter("small", "d", |v| v[0] < 5)
            .collect("marks", "e", marks)
            .sink("y");
        let pipeline = run(flow, Options::new());
        let inputs: Vec<V> = (0..40).map(|n| (0..n % 8).collect()).collect();
        let results = pipeline.stream(inputs.clone().into_iter().map(|v| vec![v]));
        for (input, result) in inputs.into_iter().zip(results) {
            let wanted: V = input
                .iter()
                .map(|&n| {
                    if n == 3 {
                        -2
                    } else if n < 5 {
                        n
                    } else {
                        -1
                    }
                })
                .collect();
            assert_eq!(result.unwrap(), [wanted]);
        }
        assert_eq!(pipeline.stats().failed, 0);
    });
}

#[test]
fn errors_name_the_child_by_its_place() {
    within(LIMIT, || {
        let flow = Flow::source("x")
            .flat_map("pages", "a", each)
            .flat_map("lines", "a", |v: V| Ok((0..v[0]).map(|n| vec![n]).collect()))
            .map("fail", "b", fail_on(2))
            .collect_values("lines of a page", "a", concat)
            .collect_values("pages of a text", "a", concat)
            .sink("y");
        let pipeline = run(flow, Options::new().trace(100));
        assert_eq!(ask(&pipeline, vec![2, 0, 1]).unwrap(), [[0, 1, 0]]);
        let error = ask(&pipeline, vec![1, 3]).unwrap_err();
        assert_eq!(error.to_string(), "item 1.1.2 at actor `fail`: 2 is bad");
        assert_eq!(error.seq().unwrap().path(), [1, 2]);
        assert_eq!(error.seq().unwrap().number(), 1);
    });
}

#[test]
fn children_that_reach_the_sink_are_its_list() {
    within(LIMIT, || {
        let flow = Flow::source("x")
            .flat_map("outer", "a", each)
            .flat_map("inner", "a", |v: V| Ok((0..v[0]).map(|n| vec![n]).collect()))
            .map("fail", "b", fail_on(3))
            .filter("odd", "b", |v| v[0] % 2 == 1 || v[0] == 0)
            .sink("y");
        let pipeline = run(flow, Options::new());
        assert_eq!(ask(&pipeline, vec![3, 0, 2]).unwrap(), [[0], [1], [0], [1]]);
        assert_eq!(ask(&pipeline, vec![]).unwrap(), Vec::<V>::new());
        let error = ask(&pipeline, vec![4, 2, 4]).unwrap_err();
        assert_eq!(error.others().len(), 1, "{error}");
        assert_eq!(error.seq().unwrap().path(), [0, 3]);
    });
}

#[test]
fn a_filtered_item_is_a_result_of_its_own_kind() {
    within(LIMIT, || {
        let flow = Flow::source("x").filter("even", "a", |v: &V| v[0] % 2 == 0).sink("y");
        let pipeline = run(flow, Options::new());
        for n in 0..10 {
            let result = ask(&pipeline, vec![n]);
            match n % 2 {
                0 => assert_eq!(result.unwrap(), [[n]]),
                _ => assert_eq!(result.unwrap_err().kind(), ErrorKind::Filtered),
            }
        }
        let stats = pipeline.stats();
        assert_eq!((stats.completed, stats.failed, stats.filtered), (10, 0, 5));
        assert_eq!(stats.actors[0].errors, 0);
    });
}

#[test]
fn a_failed_item_passes_a_fan_out_and_a_batch() {
    within(LIMIT, || {
        let flow = Flow::source("x")
            .map("fail", "a", fail_on(7))
            .batch("b", "a", Batching::up_to(2), concat)
            .unbatch("u", "a", split)
            .flat_map("each", "a", each)
            .collect("marks", "a", marks)
            .sink("y");
        let pipeline = run(flow, Options::new());
        for (n, result) in (0..50).zip(pipeline.stream((0..50).map(|n| vec![vec![n % 10]]))) {
            match n % 10 {
                7 => {
                    let error = result.unwrap_err();
                    assert_eq!(error.actor(), Some("fail"));
                    assert_eq!(error.seq().unwrap().number(), n);
                    assert!(error.others().is_empty());
                }
                m => assert_eq!(result.unwrap(), [[i64::try_from(m).unwrap()]]),
            }
        }
    });
}

#[test]
fn a_fan_out_waits_for_its_budget_without_a_lane() {
    within(LIMIT, || {
        let alive = Arc::new(AtomicUsize::new(0));
        let peak = Arc::new(AtomicUsize::new(0));
        let (enter, leave, most) = (Arc::clone(&alive), Arc::clone(&alive), Arc::clone(&peak));
        // One device with one lane for everything, and a budget of three.
        let flow = Flow::source("x")
            .flat_map("each", "a", each)
            .map("in", "a", move |v| {
                most.fetch_max(enter.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                Ok(v)
            })
            .map("out", "a", move |v| {
                leave.fetch_sub(1, Ordering::SeqCst);
                Ok(v)
            })
            .collect_values("collect", "a", concat)
            .sink("y");
        let pipeline = run(flow, Options::new().children(3).in_flight(4));
        let inputs = (0..20).map(|n| vec![(0..n * 5).collect::<V>()]);
        for (result, input) in pipeline.stream(inputs.clone()).zip(inputs) {
            assert_eq!(result.unwrap(), input);
        }
        assert!((1..=3).contains(&peak.load(Ordering::SeqCst)), "{peak:?}");
        for edge in pipeline.stats().edges {
            assert!(edge.peak <= edge.capacity as u64, "{edge:?}");
        }
    });
}

#[test]
fn nested_fan_outs_with_a_budget_of_one_come_through() {
    within(LIMIT, || {
        let flow = Flow::source("x")
            .flat_map("pages", "a", each)
            .flat_map("lines", "a", |v: V| Ok((0..v[0]).map(|n| vec![n]).collect()))
            .batch("b", "a", Batching::up_to(16).max_age(HOUR), concat)
            .map("work", "a", |v: V| Ok(v.into_iter().map(|n| n + 1).collect()))
            .unbatch("u", "a", split)
            .collect_values("lines end", "a", concat)
            .collect_values("pages end", "a", concat)
            .sink("y");
        let pipeline = run(flow, Options::new().children(1).in_flight(3));
        for result in pipeline.stream((0..30).map(|_| vec![vec![3, 0, 2]])) {
            assert_eq!(result.unwrap(), [[1, 2, 3, 1, 2]]);
        }
    });
}

/// A flow that batches at the root, with a count of the batches.
fn batched(batching: Batching<V>, work: Duration) -> (TopologyBuilder<V>, Arc<AtomicUsize>) {
    let batches = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&batches);
    let flow = Flow::source("x")
        .batch("b", "a", batching, concat)
        .map("work", "b", move |v: V| {
            count.fetch_add(1, Ordering::SeqCst);
            std::thread::sleep(work);
            Ok(v.into_iter().map(|n| n * 10).collect())
        })
        .unbatch("u", "a", split)
        .sink("y");
    (flow, batches)
}

#[test]
fn one_caller_that_waits_for_its_result_never_waits_for_the_age() {
    within(LIMIT, || {
        let (flow, batches) = batched(Batching::up_to(64).max_age(HOUR), MS);
        let pipeline = run(flow, Options::new().in_flight(64));
        let begun = Instant::now();
        for n in 0..20 {
            assert_eq!(ask(&pipeline, vec![n]).unwrap(), [[n * 10]]);
        }
        assert!(begun.elapsed() < LIMIT / 2);
        assert_eq!(batches.load(Ordering::SeqCst), 20);
    });
}

#[test]
fn batches_fill_while_the_actors_behind_are_busy() {
    within(LIMIT, || {
        let (flow, batches) = batched(Batching::up_to(8), 2 * MS);
        let pipeline = run(flow, Options::new().in_flight(32));
        let results = pipeline.stream((0..400).map(|n| vec![vec![n]]));
        for (n, result) in (0..400).zip(results) {
            assert_eq!(result.unwrap(), [[n * 10]]);
        }
        let batches = batches.load(Ordering::SeqCst);
        assert!((50..=130).contains(&batches), "{batches} batches of up to 8 for 400 items");
    });
}

#[test]
fn a_fan_out_that_is_blocked_on_its_budget_lets_the_batch_go() {
    within(LIMIT, || {
        let flow = Flow::source("x")
            .flat_map("each", "a", each)
            .batch("b", "a", Batching::up_to(1000).max_age(HOUR), concat)
            .unbatch("u", "a", split)
            .collect_values("c", "a", concat)
            .sink("y");
        let pipeline = run(flow, Options::new().children(4));
        assert_eq!(ask(&pipeline, (0..50).collect()).unwrap(), [(0..50).collect::<V>()]);
    });
}

#[test]
fn all_children_of_one_item_come_into_one_batch() {
    within(LIMIT, || {
        let batches = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&batches);
        let flow = Flow::source("x")
            .flat_map("each", "a", each)
            .batch("b", "b", Batching::up_to(100), concat)
            .map("count", "c", move |v| {
                count.fetch_add(1, Ordering::SeqCst);
                Ok(v)
            })
            .unbatch("u", "d", split)
            .collect_values("c", "e", concat)
            .sink("y");
        let pipeline = run(flow, Options::new());
        for _ in 0..30 {
            assert_eq!(ask(&pipeline, (0..20).collect()).unwrap(), [(0..20).collect::<V>()]);
        }
        assert_eq!(batches.load(Ordering::SeqCst), 30);
    });
}

#[test]
fn a_batch_leaves_when_its_oldest_member_is_old_enough() {
    within(LIMIT, || {
        let flow = Flow::source("x")
            .map("slow", "a", |v: V| {
                std::thread::sleep(Duration::from_millis(v[0].unsigned_abs()));
                Ok(v)
            })
            .batch("b", "b", Batching::up_to(2).max_age(20 * MS), concat)
            .unbatch("u", "b", split)
            .sink("y");
        let pipeline = run(flow, Options::new().in_flight(4));
        let begun = Instant::now();
        let quick = pipeline.push(vec![vec![0]]).unwrap();
        let slow = pipeline.push(vec![vec![3000]]).unwrap();
        assert_eq!(quick.wait().unwrap(), [[0]]);
        assert!(begun.elapsed() < Duration::from_millis(2000), "{:?}", begun.elapsed());
        assert_eq!(slow.wait().unwrap(), [[3000]]);
    });
}

#[test]
fn only_items_of_one_key_come_into_one_batch_and_bytes_bound_it() {
    within(LIMIT, || {
        let flow = |batching| {
            Flow::source("x")
                .flat_map("each", "a", each)
                .batch("b", "a", batching, concat)
                .map("check", "b", |v: V| {
                    assert!(v.len() <= 4, "{v:?}");
                    Ok(v)
                })
                .unbatch("u", "a", split)
                .collect_values("c", "a", concat)
                .sink("y")
        };
        let keyed = Batching::up_to(1000).max_bytes(32).keyed(|v: &V| v[0].unsigned_abs() % 3);
        let same = |builder: TopologyBuilder<V>| {
            let pipeline = run(builder, Options::new());
            for _ in 0..20 {
                assert_eq!(ask(&pipeline, (0..40).collect()).unwrap(), [(0..40).collect::<V>()]);
            }
        };
        same(flow(keyed));
        same(flow(Batching::up_to(1000).max_bytes(32)));
        let flow = Flow::source("x")
            .flat_map("each", "a", each)
            .batch("b", "a", Batching::up_to(5).keyed(|v: &V| v[0].unsigned_abs() % 3), concat)
            .map("check", "b", |v: V| {
                assert!(v.iter().all(|n| n % 3 == v[0] % 3), "{v:?}");
                Ok(v)
            })
            .unbatch("u", "a", split)
            .collect_values("c", "a", concat)
            .sink("y");
        same(flow);
    });
}

#[test]
fn the_failure_of_a_batch_is_that_of_each_member_unless_they_are_tried_singly() {
    within(LIMIT, || {
        for (retry, panics) in [(false, false), (true, false), (false, true), (true, true)] {
            let batching = Batching::up_to(10);
            let flow = Flow::source("x")
                .flat_map("each", "a", each)
                .batch("b", "a", if retry { batching.retry_singly() } else { batching }, concat)
                .map("work", "b", move |v: V| {
                    assert!(!panics || !v.contains(&3), "3 is worse");
                    fail_on(3)(v)
                })
                .unbatch("u", "a", split)
                .collect("marks", "a", marks)
                .sink("y");
            let pipeline = run(flow, Options::new().restarts(1000).restart_backoff(MS));
            for _ in 0..5 {
                let wanted = if retry { vec![0, 1, 2, -2, 4] } else { vec![-2; 5] };
                assert_eq!(ask(&pipeline, (0..5).collect()).unwrap(), [wanted]);
                assert_eq!(ask(&pipeline, vec![4, 5]).unwrap(), [[4, 5]]);
            }
        }
    });
}

#[test]
fn an_unbatch_that_gives_the_wrong_number_breaks_the_contract_of_every_member() {
    within(LIMIT, || {
        let flow = Flow::source("x")
            .batch("b", "a", Batching::up_to(3), concat)
            .unbatch("u", "a", |batch: V, members| {
                assert_eq!(batch.len(), members);
                each(batch.into_iter().skip(1).collect())
            })
            .sink("y");
        let pipeline = run(flow, Options::new());
        for n in 0..5 {
            let error = ask(&pipeline, vec![n]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Contract);
            assert_eq!(error.seq().unwrap().number(), n.unsigned_abs());
            assert!(error.to_string().contains("actor `u`"), "{error}");
        }
    });
}

#[test]
fn lists_and_payloads_are_not_mixed_up() {
    within(LIMIT, || {
        let mut builder = Topology::<V>::builder();
        let x = builder.source("x");
        let fan = builder.operator("fan", "a", Operator::flat_map(), 1, 1, stage_fn(Ok));
        let y = builder.sink("y");
        builder.connect(x, fan.input(0)).connect(fan.output(0), y);
        let error = ask(&run(builder, Options::new()), vec![1]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Contract);
        assert!(error.message().contains("takes a list"), "{error}");
    });
}

#[test]
fn a_merge_takes_the_lowest_port_that_holds_a_value() {
    within(LIMIT, || {
        let flow = Flow::source("x")
            .fork(
                |a| {
                    a.filter("even", "a", |v: &V| v[0] % 2 == 0)
                        .map("tag a", "a", |v: V| Ok(vec![v[0], 1]))
                },
                |b| b.filter("third", "b", |v: &V| v[0] % 3 == 0).map("fail", "b", fail_on(9)),
            )
            .and(|c| c.filter("fifth", "c", |v: &V| v[0] % 5 == 0))
            .merge("m", "a")
            .sink("y");
        let pipeline = run(flow, Options::new());
        assert_eq!(ask(&pipeline, vec![6]).unwrap(), [[6, 1]]);
        assert_eq!(ask(&pipeline, vec![3]).unwrap(), [[3]]);
        assert_eq!(ask(&pipeline, vec![5]).unwrap(), [[5]]);
        assert_eq!(ask(&pipeline, vec![7]).unwrap_err().kind(), ErrorKind::Filtered);
        assert_eq!(ask(&pipeline, vec![9]).unwrap_err().actor(), Some("fail"));
    });
}

#[test]
fn children_past_the_byte_limit_make_their_parent_an_error() {
    within(LIMIT, || {
        let flow = Flow::source("x").flat_map("each", "a", each).collect_values("c", "a", concat);
        let pipeline = run(flow.sink("y"), Options::new().child_bytes(100));
        assert_eq!(ask(&pipeline, (0..12).collect()).unwrap(), [(0..12).collect::<V>()]);
        let error = ask(&pipeline, (0..13).collect()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
        assert!(error.message().contains("100 bytes"), "{error}");
        assert_eq!(ask(&pipeline, vec![1]).unwrap(), [[1]]);
    });
}

#[test]
fn an_item_is_not_done_before_the_ends_of_its_branches_are() {
    within(LIMIT, || {
        let seen = Arc::new(AtomicUsize::new(0));
        let mut builder = Topology::<V>::builder();
        let x = builder.source("x");
        let fan = builder.flat_map("fan", "a", each);
        let batch = builder.batch("batch", "b", Batching::up_to(3), concat);
        let count = Arc::clone(&seen);
        let log = builder.operator(
            "log",
            "c",
            Operator::map(),
            1,
            0,
            stage_fn(move |v: Vec<V>| {
                std::thread::sleep(MS);
                count.fetch_add(v[0].len(), Ordering::SeqCst);
                Ok(vec![])
            }),
        );
        let count = Arc::clone(&seen);
        let child = builder.operator(
            "child",
            "d",
            Operator::map(),
            1,
            0,
            stage_fn(move |_| {
                std::thread::sleep(MS);
                count.fetch_add(100, Ordering::SeqCst);
                Ok(vec![])
            }),
        );
        let odd = builder.filter("odd", "f", |v: &V| v[0] % 2 == 1);
        let unbatch = builder.unbatch("unbatch", "b", split);
        let collect = builder.collect_values("collect", "e", concat);
        let y = builder.sink("y");
        builder
            .connect(x, fan.input(0))
            .connect(fan.output(0), batch.input(0))
            .connect(fan.output(0), odd.input(0))
            .connect(odd.output(0), child.input(0))
            .connect(batch.output(0), log.input(0))
            .connect(batch.output(0), unbatch.input(0))
            .connect(unbatch.output(0), collect.input(0))
            .connect(collect.output(0), y);
        let pipeline = run(builder, Options::new());
        for n in 1..10 {
            assert_eq!(ask(&pipeline, (0..5).collect()).unwrap(), [(0..5).collect::<V>()]);
            assert_eq!(seen.load(Ordering::SeqCst), n * (5 + 200));
        }
    });
}

#[test]
fn streams_of_carried_state_run_through_fan_outs_and_batches() {
    struct Sum(V);
    impl Binding<V> for Sum {
        fn bind(&mut self, inputs: &mut Vec<Option<V>>) -> Result<(), ItemError> {
            inputs[1] = Some(self.0.clone());
            Ok(())
        }
        fn carry(&mut self, outputs: &[V]) -> Result<(), ItemError> {
            self.0.clone_from(&outputs[0]);
            Ok(())
        }
    }
    within(LIMIT, || {
        let mut builder = Topology::<V>::builder();
        let (x, state) = (builder.source("x"), builder.source("state"));
        let keep = builder.filter("keep", "a", |v: &V| v[0] != 3);
        let both = builder.zip("both", "a", 2, concat);
        builder.connect(x, keep.input(0));
        builder.connect(keep.output(0), both.input(0)).connect(state, both.input(1));
        let flow = Flow::from_port(builder, both.output(0))
            .flat_map("each", "a", each)
            .batch("b", "b", Batching::up_to(7).max_age(HOUR), concat)
            .unbatch("u", "b", split)
            .collect_values("sum", "c", |v| Ok(vec![v.concat().iter().sum()]))
            .batch("b2", "b", Batching::up_to(4).max_age(HOUR), concat)
            .unbatch("u2", "b", split)
            .sink("y");
        let pipeline = run(flow, Options::new().in_flight(6));
        let streams: Vec<_> = (0..3).map(|_| pipeline.open_stream(Sum(vec![0]))).collect();
        let threads: Vec<_> = streams
            .into_iter()
            .map(|stream| {
                std::thread::spawn(move || {
                    let inputs = (0..50).map(|n| vec![Some(vec![n % 10]), None]);
                    let mut sum = 0;
                    for (n, result) in (0..50).zip(stream.stream(inputs)) {
                        if n % 10 == 3 {
                            // A filtered item leaves the state as it was.
                            assert!(result.unwrap_err().is_filtered());
                        } else {
                            sum += n % 10;
                            assert_eq!(result.unwrap(), [[sum]]);
                        }
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

#[test]
fn panics_in_every_operator_concern_their_items_alone() {
    within(LIMIT, || {
        // The value says which operator it makes panic.
        let at = |n: i64| move |v: &V| assert!(v[0] % 100 != n, "boom {n}");
        let flow = Flow::source("x")
            .filter("filter", "a", move |v| {
                at(1)(v);
                true
            })
            .flat_map("each", "b", move |v| {
                at(2)(&v);
                each(v)
            })
            .batch("b", "c", Batching::up_to(4), move |v| {
                at(3)(&v[0]);
                concat(v)
            })
            .unbatch("u", "d", move |v, members| {
                at(4)(&v);
                split(v, members)
            })
            .collect_values("c", "e", move |v| {
                at(5)(&v[0]);
                concat(v)
            })
            .sink("y");
        let options = Options::new().restarts(10_000).restart_backoff(Duration::from_micros(50));
        let pipeline = run(flow, options.in_flight(1));
        for n in 0..60 {
            let result = ask(&pipeline, vec![n % 6, 7]);
            if n % 6 == 0 {
                assert_eq!(result.unwrap(), [[0, 7]]);
            } else {
                let error = result.unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Panicked, "{error}");
                assert_eq!(error.seq().unwrap().number(), n.unsigned_abs());
            }
        }
    });
}

/// A flow whose children wait until the gate opens, so that a stop can find it anywhere.
fn gated(gate: &Arc<AtomicBool>) -> TopologyBuilder<V> {
    let gate = Arc::clone(gate);
    Flow::source("x")
        .flat_map("each", "a", each)
        .map("gate", "b", move |v| {
            let until = Instant::now() + LIMIT;
            while !gate.load(Ordering::SeqCst) && Instant::now() < until {
                std::thread::sleep(MS / 4);
            }
            Ok(v)
        })
        .batch("b", "c", Batching::up_to(3).max_age(HOUR), concat)
        .unbatch("u", "c", split)
        .collect_values("c", "d", concat)
        .sink("y")
}

#[test]
fn a_cancelled_or_late_item_leaves_in_the_midst_of_its_fan_out() {
    within(LIMIT, || {
        let gate = Arc::new(AtomicBool::new(false));
        let pipeline = run(gated(&gate), Options::new().children(4).in_flight(3));
        let cancelled = pipeline.push(vec![(0..100).collect()]).unwrap();
        let late =
            pipeline.push_deadline(vec![(0..50).collect()], Instant::now() + 30 * MS).unwrap();
        let fine = pipeline.push(vec![(0..10).collect()]).unwrap();
        std::thread::sleep(10 * MS);
        cancelled.cancel();
        assert_eq!(cancelled.wait().unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(late.wait().unwrap_err().kind(), ErrorKind::Expired);
        gate.store(true, Ordering::SeqCst);
        assert_eq!(fine.wait().unwrap(), [(0..10).collect::<V>()]);
        pipeline.drain(Some(Instant::now() + LIMIT / 2)).unwrap();
        assert_eq!(pipeline.in_flight(), 0);
    });
}

#[test]
fn a_drain_finishes_fan_outs_and_batches_that_are_under_way() {
    within(LIMIT, || {
        let gate = Arc::new(AtomicBool::new(false));
        let pipeline = run(gated(&gate), Options::new().children(4).in_flight(3));
        let tickets: Vec<_> =
            (0..3).map(|_| pipeline.push(vec![(0..20).collect()]).unwrap()).collect();
        let opener = {
            let gate = Arc::clone(&gate);
            std::thread::spawn(move || {
                std::thread::sleep(20 * MS);
                gate.store(true, Ordering::SeqCst);
            })
        };
        pipeline.drain(Some(Instant::now() + LIMIT / 2)).unwrap();
        for ticket in tickets {
            assert!(ticket.is_done());
            assert_eq!(ticket.wait().unwrap(), [(0..20).collect::<V>()]);
        }
        opener.join().unwrap();
    });
}

#[test]
fn a_stop_ends_a_fan_out_that_waits_for_its_budget() {
    within(LIMIT, || {
        for round in 0..30 {
            let gate = Arc::new(AtomicBool::new(round % 3 == 0));
            let pipeline = run(gated(&gate), Options::new().children(2).in_flight(3));
            let tickets: Vec<_> =
                (0..3).map(|_| pipeline.push(vec![(0..500).collect()]).unwrap()).collect();
            std::thread::sleep(Duration::from_micros(200 * round));
            // The gate opens after the stop began: a thread in a stage is waited for.
            let opener = std::thread::spawn({
                let gate = Arc::clone(&gate);
                move || {
                    std::thread::sleep(5 * MS);
                    gate.store(true, Ordering::SeqCst);
                }
            });
            let begun = Instant::now();
            assert!(pipeline.shutdown().detached.is_empty());
            assert!(begun.elapsed() < Duration::from_secs(4), "{:?}", begun.elapsed());
            for ticket in tickets {
                if let Err(error) = ticket.wait() {
                    assert_eq!(error.kind(), ErrorKind::Shutdown, "{error}");
                }
            }
            opener.join().unwrap();
        }
    });
}

#[test]
fn regions_that_do_not_fit_are_refused_by_name() {
    let refused = |builder: TopologyBuilder<V>| builder.build().unwrap_err();
    let source = || Flow::<V>::source("x");

    let error = refused(source().collect("c", "a", marks).sink("y"));
    assert_eq!(
        error.to_string(),
        "actor `c` is a collect, but its input carries items of the source: put a `flat_map` before \
         it, or leave it out"
    );
    let error = refused(source().flat_map("f", "a", each).unbatch("u", "a", split).sink("y"));
    assert!(matches!(error, BuildError::ClosesNothing { .. }), "{error}");
    assert!(error.to_string().contains("the children of actor `f`"), "{error}");

    let error = refused(source().batch("b", "a", Batching::up_to(2), concat).sink("y"));
    assert_eq!(
        error.to_string(),
        "sink `y` takes the batches of actor `b`: put an `unbatch` before it"
    );

    let mixed = source().fork(|a| a, |b| b.flat_map("f", "a", each)).zip("z", "a", concat);
    let error = refused(mixed.sink("y"));
    assert_eq!(
        error.to_string(),
        "the inputs of actor `z` do not belong together: input 0 carries items of the source, but \
         input 1 carries the children of actor `f`: close the inner one (`collect` after \
         `flat_map`, `unbatch` after `batch`) before they join"
    );

    let (mut builder, at) = source().into_parts();
    let both = builder.sink("whole");
    builder.connect(at, both);
    let error = refused(Flow::from_port(builder, at).flat_map("f", "a", each).sink("y"));
    assert!(matches!(error, BuildError::OpenChildren { .. }), "{error}");

    let deep = (0..4).fold(source(), |flow, n| flow.flat_map(format!("f{n}"), "a", each));
    assert!(matches!(refused(deep.sink("y")), BuildError::TooDeep { limit: 3, .. }));

    let (mut builder, at) =
        source().batch("b", "a", Batching::up_to(2).retry_singly(), concat).into_parts();
    let end = builder.actor("end", "a", 1, 0, stage_fn(|_| Ok(vec![])));
    builder.connect(at, end.input(0));
    let error = refused(Flow::from_port(builder, at).unbatch("u", "a", split).sink("y"));
    assert_eq!(error, BuildError::RetryEnds { batch: "b".into() });

    let none = Pipeline::spawn(
        source().flat_map("f", "a", each).sink("y").build().unwrap(),
        Options::new().children(0),
    );
    assert!(none.unwrap_err().to_string().contains("children is 0"));
}
