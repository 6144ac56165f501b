//! The figures of a pipeline against what happened in it.
#![allow(clippy::unwrap_used, clippy::panic)]

mod kit;

use std::time::{Duration, Instant};

use brigade_actors::{Options, Pipeline, Stats, Topology, codec, stage_fn};
use kit::{MS, Rng, chain, failing, map, sleepy, spawn, within};

const LIMIT: Duration = Duration::from_secs(60);

/// Each actor's phases against the time since the spawn, within 2 %.
fn assert_adds_up(stats: &Stats) {
    for actor in &stats.actors {
        let sum = actor.busy_ns + actor.starved_ns + actor.blocked_ns + actor.other_ns;
        let off = (sum as f64 / stats.uptime_ns as f64 - 1.0).abs();
        assert!(off <= 0.02, "{}: {sum} of {} ns", actor.name, stats.uptime_ns);
    }
}

#[test]
fn phases_add_up_to_wall_time_busy_and_idle() {
    within(LIMIT, || {
        let busy = spawn(chain(vec![sleepy(MS), sleepy(3 * MS), sleepy(2 * MS)]), 6);
        let idle = spawn(chain(vec![map(|x| x), map(|x| x)]), 2);
        let mut feed = busy.stream((0..150).map(|x| vec![x]));
        for n in 0..150 {
            assert_eq!(feed.next().unwrap().unwrap(), [n]);
            if n % 30 == 10 {
                assert_adds_up(&busy.stats());
                assert_adds_up(&idle.stats());
            }
        }
        let stats = busy.stats();
        assert_adds_up(&stats);
        let share = |ns: u64| ns as f64 / stats.uptime_ns as f64;
        assert!(share(stats.actors[1].busy_ns) > 0.4, "{stats:?}");
        assert!(share(stats.actors[2].starved_ns) > 0.01, "{stats:?}");
        let stats = idle.stats();
        assert_adds_up(&stats);
        assert!(stats.actors[0].starved_ns as f64 > 0.5 * stats.uptime_ns as f64, "{stats:?}");
        let window = idle.stats().since(&stats);
        for actor in &window.actors {
            assert!(actor.starved_ns.abs_diff(window.wall_ns) <= window.wall_ns / 50, "{window:?}");
        }
    });
}

#[test]
fn what_waits_in_front_of_the_slow_actor_shows_in_its_edge() {
    within(LIMIT, || {
        // The second actor takes 4 ms; with 6 in flight about 4 items lie before it, 16 ms each.
        let pipeline = spawn(chain(vec![map(|x| x), sleepy(4 * MS), map(|x| x)]), 6);
        let mut results = pipeline.stream((0..60).map(|x| vec![x]));
        (0..30).for_each(|_| assert!(results.next().unwrap().is_ok()));
        let during = pipeline.stats();
        results.for_each(|result| assert!(result.is_ok()));
        let after = pipeline.stats();
        let [_, slow, next, sink] = &after.edges[..] else { panic!("{after:?}") };
        assert!((1..=6).contains(&during.edges[1].level), "{during:?}");
        assert!((3..=6).contains(&slow.peak), "{after:?}");
        assert!(slow.wait_mean_ns() > 8_000_000, "{after:?}");
        assert!(next.wait_mean_ns() < slow.wait_mean_ns(), "{after:?}");
        assert!(sink.wait_mean_ns() < slow.wait_mean_ns(), "{after:?}");
        assert!(after.edges.iter().all(|edge| edge.sent == 60 && edge.level == 0), "{after:?}");
        assert_eq!((slow.giver, slow.taker, sink.taker), (Some(0), Some(1), None));
        // Where an item was, and how long, adds up to its latency.
        let inside: u64 = after.edges.iter().map(|edge| edge.wait_sum_ns).sum();
        let computed: u64 = after.actors.iter().map(|actor| actor.service_sum_ns).sum();
        let latency = after.latency.sum_ns();
        assert!((inside + computed).abs_diff(latency) <= latency / 20, "{after:?}");
    });
}

#[test]
fn an_item_waits_at_a_join_for_its_slowest_branch() {
    within(LIMIT, || {
        let mut builder = Topology::<i64>::builder();
        let x = builder.source("x");
        let slow = builder.actor("slow", "cpu:0", 1, 1, sleepy(20 * MS));
        let sum =
            builder.actor("sum", "cpu:1", 2, 1, stage_fn(|v: Vec<i64>| Ok(vec![v[0] + v[1]])));
        let (y, z) = (builder.sink("y"), builder.sink("z"));
        builder
            .connect(x, slow.input(0))
            // The edges of the join in another order than its ports.
            .connect(x, sum.input(1))
            .connect(slow.output(0), sum.input(0))
            .connect(sum.output(0), y)
            .connect(x, z);
        let pipeline = spawn(builder.build().unwrap(), 1);
        for n in 0..5 {
            assert_eq!(pipeline.push(vec![n]).unwrap().wait().unwrap(), [2 * n, n]);
        }
        let stats = pipeline.stats();
        let waits: Vec<u64> =
            stats.edges.iter().map(|edge| edge.wait_mean_ns() / 1_000_000).collect();
        // x to slow, x to the join, slow to the join, the sum to the sink, x to the sink.
        assert!(waits[1] >= 20 && waits[4] >= 20, "{stats:?}");
        assert!(waits[0] < waits[1] && waits[2] < waits[1] && waits[3] < waits[4], "{stats:?}");
        assert!(stats.edges.iter().all(|edge| edge.level == 0 && edge.sent == 5), "{stats:?}");
    });
}

#[test]
fn bytes_in_flight_rise_with_the_items_and_return_to_nothing() {
    within(LIMIT, || {
        let mut builder = Topology::<Vec<u8>>::builder();
        let x = builder.source("x");
        let (open, gate) = std::sync::mpsc::channel::<()>();
        let gate = std::sync::Arc::new(std::sync::Mutex::new(gate));
        let grow = builder.actor(
            "grow",
            "cpu:0",
            1,
            1,
            stage_fn(move |v: Vec<Vec<u8>>| {
                let _ = gate.lock().unwrap().recv();
                if v[0].is_empty() {
                    return Err(brigade_actors::ItemError::failed("empty"));
                }
                Ok(vec![vec![0; 3 * v[0].len()]])
            }),
        );
        let y = builder.sink("y");
        builder.connect(x, grow.input(0)).connect(grow.output(0), y);
        // Bytes are counted under a budget, however large.
        let options = Options::new().in_flight(3).byte_budget(1 << 40).item_bytes(10_000);
        let pipeline = Pipeline::spawn(builder.build().unwrap(), options).unwrap();
        let mut tickets: Vec<_> =
            (0..3).map(|_| pipeline.push(vec![vec![1; 1000]]).unwrap()).collect();
        assert_eq!(pipeline.stats().admission.bytes, 3000);
        open.send(()).unwrap();
        assert_eq!(tickets.remove(0).wait().unwrap()[0].len(), 3000);
        let admission = pipeline.stats().admission;
        assert_eq!((admission.bytes, admission.bytes_peak), (2000, 5000));
        tickets.push(pipeline.push(vec![Vec::new()]).unwrap());
        drop(open);
        let failed = tickets.into_iter().map(|t| t.wait()).filter(Result::is_err);
        assert_eq!(failed.count(), 1);
        assert_eq!(pipeline.stats().admission.bytes, 0);
    });
}

#[test]
fn the_latency_histogram_is_that_of_the_callers() {
    within(LIMIT, || {
        let mut rng = Rng(5);
        let pipeline = spawn(
            chain(vec![stage_fn(|v: Vec<i64>| {
                std::thread::sleep(Duration::from_micros(v[0] as u64));
                Ok(v)
            })]),
            1,
        );
        let mut slept = Vec::new();
        let mut exact: Vec<u64> = (0..200)
            .map(|_| {
                let began = Instant::now();
                let micros = 200 + rng.below(3000) as i64;
                slept.push(micros as u64 * 1000);
                pipeline.push(vec![micros]).unwrap().wait().unwrap();
                began.elapsed().as_nanos() as u64
            })
            .collect();
        exact.sort_unstable();
        slept.sort_unstable();
        let p = pipeline.stats().latency.percentiles();
        assert_eq!(p.count, 200);
        // What a caller sees holds the wake-up of its own thread too; an item is never slower inside.
        for (quantile, got) in [(0.5, p.p50_ns), (0.9, p.p90_ns), (0.99, p.p99_ns)] {
            let rank = (quantile * 200.0) as usize - 1;
            let (seen, least) = (exact[rank], slept[rank]);
            assert!(got <= seen + seen / 50 && got >= least, "{quantile}: {least} {got} {seen}");
        }
        assert!(p.p50_ns <= p.p90_ns && p.p90_ns <= p.p95_ns && p.p95_ns <= p.p99_ns);
        assert!(p.p99_ns <= p.p99_9_ns && p.p99_9_ns <= p.max_ns);
    });
}

#[test]
fn throughput_is_told_with_and_without_the_filling() {
    within(LIMIT, || {
        let pipeline = spawn(chain((0..4).map(|_| sleepy(5 * MS)).collect()), 8);
        assert_eq!(
            (pipeline.stats().overall_per_s(), pipeline.stats().steady_per_s()),
            (None, None)
        );
        pipeline.stream((0..40).map(|x| vec![x])).for_each(|result| assert!(result.is_ok()));
        let stats = pipeline.stats();
        let (overall, steady) = (stats.overall_per_s().unwrap(), stats.steady_per_s().unwrap());
        // Filling costs 15 of about 215 ms. No schedule beats 200 items per second.
        assert!(overall < 1.5 * steady && steady <= 200.5, "{overall} {steady}");
        assert!(steady > 20.0, "{overall} {steady}");
        // Idleness is in neither, and a new run is measured from its own begin.
        std::thread::sleep(100 * MS);
        let idle = pipeline.stats();
        assert_eq!(idle.steady_per_s(), Some(steady));
        pipeline.stream((0..40).map(|x| vec![x])).for_each(|result| assert!(result.is_ok()));
        let again = pipeline.stats().since(&idle).steady_per_s().unwrap();
        assert!(again > 20.0 && again <= 200.5, "{again}");
    });
}

#[test]
fn stats_of_a_run_are_equal_in_json_and_on_the_wire_and_make_a_page() {
    within(LIMIT, || {
        let options = Options::new().in_flight(3).name("a \"run\"");
        let topology = chain(vec![failing(7, "odd"), map(|x| x)]);
        let pipeline = Pipeline::spawn(topology, options).unwrap();
        assert_eq!(pipeline.stream((0..50).map(|x| vec![x])).filter(Result::is_err).count(), 8);
        let stats = pipeline.stats();
        let wire = codec::encode(&stats, 1 << 20).unwrap();
        let json = serde_json::to_string(&stats).unwrap();
        assert_eq!(codec::decode::<Stats>(&wire, 1 << 20).unwrap(), stats);
        assert_eq!(serde_json::from_str::<Stats>(&json).unwrap(), stats);
        let page = stats.to_prometheus();
        assert!(
            page.contains("brigade_items_failed_total{pipeline=\"a \\\"run\\\"\"} 8\n"),
            "{page}"
        );
        assert!(page.contains("brigade_latency_seconds_count{pipeline=\"a \\\"run\\\"\"} 50\n"));
        assert!(page.contains("actor=\"a1\",device=\"cpu:1\"} 8\n"), "skipped: {page}");
    });
}
