//! Lanes, overlap, asynchronous stages, metrics, traces.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

use brigade_actors::{
    ErrorKind, Factory, Firing, ItemError, Options, Outbox, Payload, Pipeline, Seq, Stage,
    StageWaker, Stats, Topology, stage_fn,
};

mod kit;
use kit::{MS, block_on, chain, chain_on, map, sleepy, spawn, within};

const LIMIT: Duration = Duration::from_secs(20);

fn stream_all(pipeline: &Pipeline<i64>, items: i64) -> Duration {
    let begun = Instant::now();
    let results: Result<Vec<_>, _> = pipeline.stream((0..items).map(|n| vec![n])).collect();
    assert_eq!(results.unwrap(), (0..items).map(|n| vec![n]).collect::<Vec<_>>());
    begun.elapsed()
}

#[test]
fn two_stages_on_two_devices_overlap() {
    let options = Options::new().in_flight(4).trace(100);
    let topology = chain(vec![sleepy(5 * MS), sleepy(5 * MS)]);
    let pipeline = Pipeline::spawn(topology, options).unwrap();
    let wall = stream_all(&pipeline, 40);
    // Both stages at once: one item every 5 ms, after the 5 ms that fill the pipeline.
    let ideal = 41 * 5 * MS;
    assert!(wall < ideal.mul_f64(1.4), "{wall:?} against {ideal:?}");
    let trace = pipeline.trace();
    assert_eq!((trace.events.len(), trace.dropped), (80, 0));
    assert!(trace.overlap() > wall / 2, "{:?} of {wall:?}", trace.overlap());
}

#[test]
fn two_stages_on_one_device_take_turns() {
    let options = Options::new().in_flight(4).trace(100);
    let topology = chain_on(vec![sleepy(2 * MS), sleepy(2 * MS)], |_| "gpu:0".into());
    let pipeline = Pipeline::spawn(topology, options).unwrap();
    let wall = stream_all(&pipeline, 20);
    assert!(wall >= 20 * 4 * MS, "{wall:?}");
    assert_eq!(pipeline.trace().overlap(), Duration::ZERO);
    let stats = pipeline.stats();
    assert_eq!(stats.devices.len(), 1);
    let busy: u64 = stats.actors.iter().map(|actor| actor.busy_ns).sum();
    let device = stats.devices[0].busy_ns;
    assert!(device >= busy && device <= stats.uptime_ns, "{device} against {busy}");
}

#[test]
fn lanes_of_a_device_are_as_many_as_stated() {
    let mut b = Topology::builder();
    let x = b.source("x");
    for n in 0..3 {
        let actor = b.actor(format!("a{n}"), "gpu:0", 1, 1, sleepy(5 * MS));
        let y = b.sink(format!("y{n}"));
        b.connect(x, actor.input(0)).connect(actor.output(0), y);
    }
    b.lanes("gpu:0", 2);
    let pipeline =
        Pipeline::spawn(b.build().unwrap(), Options::new().in_flight(4).trace(100)).unwrap();
    for result in pipeline.stream((0..10).map(|n| vec![n])) {
        result.unwrap();
    }
    let trace = pipeline.trace();
    assert!(trace.busy_together(2) > 20 * MS);
    assert_eq!(trace.busy_together(3), Duration::ZERO);
    assert_eq!(pipeline.stats().devices[0].lanes, 2);
}

#[test]
fn items_leave_a_device_before_new_ones_enter() {
    // g0 -> c -> g1, both g on one device. When g1 could run and g0 could too, g1 does.
    let options = Options::new().in_flight(8).trace(200);
    let device = |n| if n == 1 { "c".into() } else { "g".into() };
    let topology = chain_on(vec![sleepy(3 * MS), sleepy(MS), sleepy(3 * MS)], device);
    let pipeline = Pipeline::spawn(topology, options).unwrap();
    stream_all(&pipeline, 20);
    let trace = pipeline.trace();
    let ends = |actor| {
        let of = trace.events.iter().filter(move |event| event.actor == actor);
        of.map(|event| event.end_ns).collect::<Vec<_>>()
    };
    let (second, third) = (ends(1), trace.events.iter().filter(|event| event.actor == 2));
    for event in third {
        // Ready since c ended it; at most the firing of g0 that ran then, and one that got the
        // lane before this actor was awake, came before it.
        let ready = second[event.seq as usize];
        let between = ends(0).iter().filter(|&&end| end > ready && end <= event.start_ns).count();
        assert!(between <= 2, "item {} waited for {between} later ones", event.seq);
    }
}

#[test]
fn times_add_up_to_wall_time() {
    let pipeline = spawn(chain(vec![sleepy(MS), sleepy(3 * MS), map(|x| x)]), 4);
    stream_all(&pipeline, 50);
    let stats = pipeline.stats();
    for actor in &stats.actors {
        let sum = actor.busy_ns + actor.starved_ns + actor.blocked_ns + actor.other_ns;
        let off = sum.abs_diff(stats.uptime_ns);
        assert!(off < stats.uptime_ns / 200, "{actor:?} against {}", stats.uptime_ns);
        assert_eq!(actor.items, 50);
    }
    let busiest = &stats.actors[1];
    assert!(busiest.busy_ns > stats.uptime_ns * 7 / 10, "{stats:?}");
    assert!(busiest.service_min_ns >= 3_000_000 && busiest.service_mean_ns() >= 3_000_000);
    assert!(busiest.service_max_ns >= busiest.service_min_ns);
    assert!(stats.actors[2].starved_ns > stats.uptime_ns / 2);
    let json = serde_json::to_string(&stats).unwrap();
    assert_eq!(serde_json::from_str::<Stats>(&json).unwrap(), stats);
}

/// A device with a thread of its own that finishes each job after `time`, in order.
struct Device {
    jobs: Sender<(Seq, i64)>,
    done: Receiver<(Seq, Result<i64, String>)>,
    open: VecDeque<Seq>,
    slots: usize,
}

impl Device {
    fn factory(slots: usize, time: Duration) -> Factory<i64> {
        Box::new(move |context| Ok(Box::new(Self::new(slots, time, context.waker))))
    }

    fn new(slots: usize, time: Duration, waker: StageWaker) -> Self {
        let (jobs, todo) = bounded::<(Seq, i64)>(slots);
        let (finished, done) = bounded(slots);
        std::thread::spawn(move || {
            for (seq, x) in todo {
                std::thread::sleep(time);
                let result = if x == 13 { Err("unlucky".to_owned()) } else { Ok(x + 1) };
                if finished.send((seq, result)).is_err() {
                    return;
                }
                waker.wake();
            }
        });
        Self { jobs, done, open: VecDeque::new(), slots }
    }
}

impl Stage<i64> for Device {
    fn slots(&self) -> usize {
        self.slots
    }

    fn submit(&mut self, firing: Firing<i64>, out: &mut Outbox<i64>) -> Result<(), ItemError> {
        assert!(self.open.len() < self.slots, "more firings than slots");
        self.open.push_back(firing.seq);
        self.jobs.send((firing.seq, firing.inputs[0])).map_err(ItemError::from_error)?;
        out.defer();
        Ok(())
    }

    fn poll(&mut self, out: &mut Outbox<i64>) -> Result<(), ItemError> {
        for (seq, result) in self.done.try_iter() {
            assert_eq!(self.open.pop_front(), Some(seq));
            match result {
                Ok(value) => out.emit_for(seq, 0, value),
                Err(message) => out.fail(seq, ItemError::failed(message)),
            }
        }
        Ok(())
    }
}

#[test]
fn an_asynchronous_stage_keeps_its_slots_full_and_never_more() {
    within(LIMIT, || {
        for slots in [1, 2, 4] {
            let pipeline = spawn(chain(vec![map(|x| x), Device::factory(slots, MS)]), 8);
            for (n, result) in (0..30).zip(pipeline.stream((0..30).map(|n| vec![n]))) {
                if n == 13 {
                    let error = result.unwrap_err();
                    assert_eq!((error.actor(), error.message()), (Some("a1"), "unlucky"));
                } else {
                    assert_eq!(result.unwrap(), [n + 1]);
                }
            }
            let stats = pipeline.stats();
            assert_eq!((stats.actors[1].items, stats.actors[1].errors), (30, 1));
            // With a second slot the next job is queued while one runs: the device never rests.
            if slots > 1 {
                let busy = stats.actors[1].busy_ns;
                assert!(busy >= 28_000_000, "{busy}");
            }
        }
    });
}

#[test]
fn two_asynchronous_actors_share_a_lane_and_both_progress() {
    within(LIMIT, || {
        let topology = chain_on(
            vec![Device::factory(2, MS), map(|x| x - 1), Device::factory(2, MS), map(|x| x - 1)],
            |n| if n % 2 == 0 { "gpu:0".into() } else { format!("cpu:{n}") },
        );
        let pipeline = Pipeline::spawn(topology, Options::new().in_flight(6).trace(100)).unwrap();
        for (n, result) in (100..140).zip(pipeline.stream((100..140).map(|n| vec![n]))) {
            assert_eq!(result.unwrap(), [n]);
        }
        let mut trace = pipeline.trace();
        trace.events.retain(|event| event.actor % 2 == 0);
        assert_eq!(trace.overlap(), Duration::ZERO, "one lane, two actors at once");
    });
}

#[test]
fn a_drain_flushes_a_stage_that_holds_back() {
    /// Emits nothing until it is flushed.
    struct Hoard(Vec<(Seq, i64)>);
    impl Stage<i64> for Hoard {
        fn slots(&self) -> usize {
            8
        }
        fn submit(&mut self, firing: Firing<i64>, out: &mut Outbox<i64>) -> Result<(), ItemError> {
            self.0.push((firing.seq, firing.inputs[0]));
            out.defer();
            Ok(())
        }
        fn flush(&mut self, out: &mut Outbox<i64>) -> Result<(), ItemError> {
            for (seq, x) in self.0.drain(..) {
                out.emit_for(seq, 0, x);
            }
            Ok(())
        }
        fn cancel(&mut self, seq: Seq, out: &mut Outbox<i64>) {
            self.0.retain(|(held, _)| *held != seq);
            out.fail(seq, ItemError::new(ErrorKind::Cancelled, "taken off the hoard"));
        }
    }
    within(LIMIT, || {
        let factory: Factory<i64> = Box::new(|_| Ok(Box::new(Hoard(Vec::new()))));
        let pipeline = spawn(chain(vec![factory]), 4);
        let mut tickets: Vec<_> = (0..3).map(|n| pipeline.push(vec![n]).unwrap()).collect();
        assert!(tickets[0].wait_timeout(20 * MS).is_none());
        // A cancelled item leaves the stage, and its credit comes back.
        tickets[1].cancel();
        while pipeline.in_flight() == 3 {
            std::thread::sleep(MS);
        }
        // So does one whose deadline passes while the stage holds it.
        let late = pipeline.push_deadline(vec![9], Instant::now() + 10 * MS).unwrap();
        while !late.is_done() {
            std::thread::sleep(MS);
        }
        assert_eq!(late.wait().unwrap_err().kind(), ErrorKind::Expired);
        pipeline.drain(Some(Instant::now() + LIMIT)).unwrap();
        assert_eq!(tickets.remove(0).wait().unwrap(), [0]);
        assert_eq!(tickets.remove(0).wait().unwrap_err().kind(), ErrorKind::Cancelled);
        assert_eq!(tickets.remove(0).wait().unwrap(), [2]);
    });
}

#[test]
fn tickets_and_pushes_are_futures_on_any_executor() {
    within(LIMIT, || {
        let pipeline = spawn(chain(vec![sleepy(2 * MS)]), 1);
        let sum = block_on(async {
            let mut sum = 0;
            for n in 0..5 {
                let first = pipeline.push_async(vec![n]).await.unwrap();
                // The second waits for the credit of the first, without a thread.
                let second = pipeline.push_async(vec![100 * n]).await.unwrap();
                sum += second.await.unwrap()[0] + first.await.unwrap()[0];
            }
            sum
        });
        assert_eq!(sum, 1010);
        let threads: Vec<_> = (0..4)
            .map(|n| {
                let pipeline = pipeline.clone();
                std::thread::spawn(move || {
                    block_on(async { pipeline.push_async(vec![n]).await.unwrap().await.unwrap() })
                })
            })
            .collect();
        for (n, thread) in (0..).zip(threads) {
            assert_eq!(thread.join().unwrap(), [n]);
        }
        let held = pipeline.push(vec![1]).unwrap();
        let waiting = pipeline.push_async(vec![2]);
        let waiter = std::thread::spawn(move || block_on(waiting).map(|_| ()).unwrap_err());
        std::thread::sleep(MS / 2);
        drop(held);
        block_on(pipeline.drain_async()).unwrap();
        let _ = waiter.join();
    });
}

#[test]
fn an_idle_pipeline_costs_no_processor_time() {
    let ticks = || -> u64 {
        // Fields 14 and 15 of the line: user and system time, in ticks of usually 10 ms.
        let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap_or_default();
        let tail = stat.rsplit(')').next().unwrap_or_default();
        tail.split_whitespace().skip(11).take(2).filter_map(|field| field.parse::<u64>().ok()).sum()
    };
    // The actor itself reads the processor time of its thread, before and after a pause.
    let factory = stage_fn(move |_: Vec<i64>| Ok(vec![ticks() as i64]));
    let pipeline = spawn(chain(vec![factory, map(|x| x)]), 4);
    let before = pipeline.push(vec![0]).unwrap().wait().unwrap()[0];
    std::thread::sleep(300 * MS);
    let after = pipeline.push(vec![0]).unwrap().wait().unwrap()[0];
    assert!(after - before <= 2, "{} ticks in an idle pause", after - before);
}

/// A payload that a device may still work on.
struct Work {
    number: i64,
    ready: bool,
}

impl Payload for Work {
    fn bytes(&self) -> usize {
        8
    }

    fn share(&self) -> Self {
        Self { ..*self }
    }

    fn ready(&self) -> bool {
        self.ready
    }
}

#[test]
fn scenario_22_what_is_not_ready_does_not_leave_its_memory() {
    let on_device = |finishes: fn(i64) -> bool| {
        stage_fn(move |v: Vec<Work>| {
            Ok(v.into_iter().map(|w| Work { ready: finishes(w.number), ..w }).collect())
        })
    };
    let on_host = stage_fn(|v: Vec<Work>| {
        assert!(v[0].ready, "item {} was read before it was ready", v[0].number);
        Ok(v)
    });
    let mut b = Topology::builder();
    let x = b.source("x");
    let first = b.actor("first", "gpu:0", 1, 1, on_device(|_| false));
    // Another device of the same memory orders its work behind, too.
    let second = b.actor("second", "gpu:1", 1, 1, on_device(|n| n != 3));
    b.memory(first, "gpus").memory(second, "gpus");
    let third = b.actor("third", "cpu:0", 1, 1, on_host);
    let y = b.sink("y");
    b.connect(x, first.input(0)).connect(first.output(0), second.input(0));
    b.connect(second.output(0), third.input(0)).connect(third.output(0), y);
    let pipeline = Pipeline::spawn(b.build().unwrap(), Options::new().in_flight(4)).unwrap();
    let items = (0..8).map(|number| vec![Work { number, ready: true }]);
    for (number, result) in pipeline.stream(items).enumerate() {
        match result {
            Ok(v) => assert!(v[0].number == number as i64 && number != 3),
            Err(e) => {
                assert_eq!((number, e.kind()), (3, ErrorKind::Contract));
                assert!(e.to_string().contains("left device `gpu:1` before it was ready"), "{e}");
            }
        }
    }
    assert_eq!(pipeline.stats().actors[0].restarts, 0);
}
