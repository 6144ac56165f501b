//! Traces of real runs, read as Perfetto reads them.
#![allow(clippy::unwrap_used, clippy::panic)]

mod kit;

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use brigade_actors::{Options, Pipeline, Topology, Trace, codec, stage_fn};
use kit::{MS, chain, failing, map, sleepy, within};
use serde_json::Value;

const LIMIT: Duration = Duration::from_secs(60);

/// What was read: firings per item as (start, lane), and the points of each counter.
struct Read {
    firings: BTreeMap<u64, Vec<(f64, u64)>>,
    counters: HashMap<String, Vec<(f64, i64)>>,
}

/// Reads the file and checks what holds for any trace: every firing of an item with several has its
/// point of the item's arrow, at its begin and in its lane; each arrow begins once and ends once; no
/// counter is ever negative; points of a counter are in the order of time.
fn read(trace: &Trace) -> Read {
    let json: Value = serde_json::from_str(&trace.to_chrome_json()).unwrap();
    assert_eq!(json["otherData"]["dropped"], trace.dropped);
    let mut firings: BTreeMap<u64, Vec<(f64, u64)>> = BTreeMap::new();
    let mut arrows: BTreeMap<u64, Vec<(String, f64, u64)>> = BTreeMap::new();
    let mut counters: HashMap<String, Vec<(f64, i64)>> = HashMap::new();
    let mut lanes = 0;
    for event in json["traceEvents"].as_array().unwrap() {
        let at = || (event["ts"].as_f64().unwrap(), event["tid"].as_u64().unwrap());
        match event["ph"].as_str().unwrap() {
            "M" => lanes += usize::from(event["name"] == "thread_name"),
            "X" => {
                assert!(event["dur"].as_f64().unwrap() >= 0.0);
                firings.entry(event["args"]["seq"].as_u64().unwrap()).or_default().push(at());
            }
            phase @ ("s" | "t" | "f") => {
                let (ts, lane) = at();
                let item = event["id"].as_u64().unwrap();
                arrows.entry(item).or_default().push((phase.to_owned(), ts, lane));
            }
            "C" => {
                let level = event["args"]["items"].as_i64().unwrap();
                let name = event["name"].as_str().unwrap().to_owned();
                counters.entry(name).or_default().push((event["ts"].as_f64().unwrap(), level));
            }
            other => panic!("phase {other}"),
        }
    }
    assert_eq!(lanes, trace.actors.len());
    for (item, firings) in &firings {
        let Some(arrow) = arrows.remove(item) else {
            assert_eq!(firings.len(), 1, "item {item} has no arrow");
            continue;
        };
        let points: Vec<(f64, u64)> = arrow.iter().map(|(_, ts, lane)| (*ts, *lane)).collect();
        assert_eq!(points, *firings, "item {item}");
        let phases: String = arrow.iter().map(|(phase, _, _)| phase.as_str()).collect();
        assert_eq!(phases, format!("s{}f", "t".repeat(firings.len() - 2)), "item {item}");
    }
    assert!(arrows.is_empty(), "arrows of no item: {arrows:?}");
    for (name, points) in &counters {
        assert!(points.iter().all(|(_, level)| *level >= 0), "{name}: {points:?}");
        assert!(points.windows(2).all(|two| two[0].0 < two[1].0), "{name}: {points:?}");
    }
    Read { firings, counters }
}

fn diamond() -> Topology<i64> {
    let mut builder = Topology::<i64>::builder();
    let x = builder.source("x");
    let left = builder.actor("left", "cpu:0", 1, 1, sleepy(MS));
    let right = builder.actor("right", "cpu:1", 1, 1, failing(5, "right"));
    let sum = builder.actor("sum", "cpu:2", 2, 1, stage_fn(|v: Vec<i64>| Ok(vec![v[0] + v[1]])));
    let (y, z) = (builder.sink("y"), builder.sink("z"));
    builder
        .connect(x, left.input(0))
        .connect(x, right.input(0))
        .connect(left.output(0), sum.input(0))
        .connect(right.output(0), sum.input(1))
        .connect(sum.output(0), y)
        .connect(left.output(0), z);
    builder.build().unwrap()
}

#[test]
fn a_whole_run_is_in_its_trace_and_every_counter_returns_to_zero() {
    within(LIMIT, || {
        let options = Options::new().in_flight(4).trace(1000);
        let pipeline = Pipeline::spawn(diamond(), options).unwrap();
        let failed = pipeline.stream((0..30).map(|x| vec![x])).filter(Result::is_err).count();
        assert_eq!(failed, 6);
        let trace = pipeline.trace();
        assert_eq!((trace.dropped, trace.items.len(), trace.edges.len()), (0, 30, 6));
        let read = read(&trace);
        // Items that failed on the right never fire at the sum.
        for (item, firings) in &read.firings {
            assert_eq!(firings.len(), if item % 5 == 0 { 2 } else { 3 }, "item {item}");
        }
        assert_eq!((read.firings.len(), read.counters.len()), (30, 7));
        for (name, points) in &read.counters {
            assert_eq!(points.last().unwrap().1, 0, "{name}");
            assert!(points.iter().any(|(_, level)| *level > 0), "{name}");
            assert!(points.iter().all(|(_, level)| *level <= 4), "{name}");
        }
        let flight = &read.counters["in flight"];
        assert_eq!(flight.iter().map(|(_, level)| *level).max(), Some(4));
        let wire = codec::encode(&trace, 1 << 20).unwrap();
        assert_eq!(codec::decode::<Trace>(&wire, 1 << 20).unwrap(), trace);
        let json = serde_json::to_string(&trace).unwrap();
        assert_eq!(serde_json::from_str::<Trace>(&json).unwrap(), trace);
    });
}

#[test]
fn items_in_flight_are_in_the_counters_of_a_running_pipeline() {
    within(LIMIT, || {
        let (release, gate) = std::sync::mpsc::channel::<()>();
        let gate = std::sync::Arc::new(std::sync::Mutex::new(gate));
        let stuck = stage_fn(move |v: Vec<i64>| {
            let _ = gate.lock().unwrap().recv();
            Ok(v)
        });
        let options = Options::new().in_flight(3).trace(100);
        let pipeline = Pipeline::spawn(chain(vec![map(|x| x), stuck]), options).unwrap();
        let tickets: Vec<_> = (0..3).map(|n| pipeline.push(vec![n]).unwrap()).collect();
        while pipeline.stats().actors[0].items < 3 {
            std::thread::sleep(MS);
        }
        let trace = pipeline.trace();
        assert!(trace.items.iter().all(|item| item.completed_ns.is_none()), "{trace:?}");
        let counters = read(&trace).counters;
        assert_eq!(counters["in flight"].last().unwrap().1, 3);
        // The firing of the stuck stage is not complete, so its item still counts as lying there.
        let before = "level: output 0 of actor `a0` to input 0 of actor `a1`";
        assert_eq!(counters[before].last().unwrap().1, 3);
        drop(release);
        tickets.into_iter().for_each(|ticket| assert!(ticket.wait().is_ok()));
        let counters = read(&pipeline.trace()).counters;
        assert!(counters.values().all(|points| points.last().unwrap().1 == 0), "{counters:?}");
    });
}

#[test]
fn dropped_events_are_counted_and_leave_the_rest_consistent() {
    within(LIMIT, || {
        let options = Options::new().in_flight(4).trace(10);
        let pipeline = Pipeline::spawn(diamond(), options).unwrap();
        pipeline.stream((0..40).map(|x| vec![x])).for_each(drop);
        let trace = pipeline.trace();
        // left and right fire for all 40 items, sum for 32, and 40 items left.
        assert_eq!(trace.dropped, 30 + 30 + 22 + 30);
        assert_eq!((trace.events.len(), trace.items.len()), (30, 10));
        let counters = read(&trace).counters;
        assert!(counters.values().all(|points| points.last().unwrap().1 == 0), "{counters:?}");
        let untraced = Pipeline::spawn(diamond(), Options::new()).unwrap();
        untraced.stream((0..5).map(|x| vec![x])).for_each(drop);
        let trace = untraced.trace();
        assert!(trace.events.is_empty() && trace.items.is_empty() && trace.dropped == 0);
        assert!(read(&trace).counters.is_empty());
    });
}
