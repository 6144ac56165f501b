//! Admission: the queue in front of the credits, full-queue policies, age, bytes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use brigade_actors::{
    Binding, ErrorKind, Factory, ItemError, Options, Payload, Pipeline, PushErrorKind, SpawnError,
    Ticket, Topology, WhenFull, stage_fn,
};

mod kit;
use kit::{MS, block_on, chain, map, sleepy, within};

const LIMIT: Duration = Duration::from_secs(20);

/// A gate that firings wait at, and what went through it.
#[derive(Clone, Default)]
struct Gate {
    open: Arc<AtomicBool>,
    passed: Arc<AtomicUsize>,
}

impl Gate {
    fn stage(&self) -> Factory<i64> {
        let gate = self.clone();
        map(move |x| {
            while !gate.open.load(Ordering::SeqCst) {
                std::thread::sleep(MS / 4);
            }
            gate.passed.fetch_add(1, Ordering::SeqCst);
            x
        })
    }

    fn open(&self) {
        self.open.store(true, Ordering::SeqCst);
    }
}

fn gated(options: Options) -> (Gate, Pipeline<i64>) {
    let gate = Gate::default();
    let pipeline = Pipeline::spawn(chain(vec![gate.stage()]), options).unwrap();
    (gate, pipeline)
}

fn kinds(tickets: Vec<Ticket<i64>>) -> Vec<Result<i64, ErrorKind>> {
    let results = tickets.into_iter().map(|ticket| ticket.wait());
    results.map(|result| result.map(|v| v[0]).map_err(|error| error.kind())).collect()
}

#[test]
fn drop_oldest_keeps_the_newest_and_every_item_has_one_result() {
    within(LIMIT, || {
        let options = Options::new().in_flight(2).when_full(WhenFull::DropOldest).queue(3);
        let (gate, pipeline) = gated(options);
        let tickets: Vec<_> = (0..9).map(|n| pipeline.push(vec![n]).unwrap()).collect();
        assert!(tickets.windows(2).all(|pair| pair[0].seq() < pair[1].seq()));
        let stats = pipeline.stats();
        assert_eq!((stats.in_flight, stats.admission.queued), (2, 3));
        assert_eq!((stats.admission.queue_capacity, stats.admission.dropped), (3, 4));
        // The results of the dropped ones are there before anything was computed.
        assert_eq!(gate.passed.load(Ordering::SeqCst), 0);
        assert!(tickets[2..6].iter().all(Ticket::is_done));
        gate.open();
        let dropped = Err(ErrorKind::Dropped);
        let expected = [Ok(0), Ok(1), dropped, dropped, dropped, dropped, Ok(6), Ok(7), Ok(8)];
        assert_eq!(kinds(tickets), expected);
        let stats = pipeline.stats();
        assert_eq!((stats.admitted, stats.completed, stats.failed), (9, 9, 4));
        assert_eq!((stats.in_flight, stats.admission.queued), (0, 0));
        assert_eq!(gate.passed.load(Ordering::SeqCst), 5);
    });
}

#[test]
fn drop_newest_settles_the_pushed_item_with_and_without_a_queue() {
    within(LIMIT, || {
        for places in [0, 2] {
            let options = Options::new().in_flight(1).when_full(WhenFull::DropNewest).queue(places);
            let (gate, pipeline) = gated(options);
            let tickets: Vec<_> = (0..5)
                .map(|n| match n % 3 {
                    0 => pipeline.push(vec![n]).unwrap(),
                    1 => pipeline.try_push(vec![n]).unwrap(),
                    _ => block_on(pipeline.push_async(vec![n])).unwrap(),
                })
                .collect();
            gate.open();
            let dropped = |n: i64| if n <= places as i64 { Ok(n) } else { Err(ErrorKind::Dropped) };
            assert_eq!(kinds(tickets), (0..5).map(dropped).collect::<Vec<_>>());
            let stats = pipeline.stats();
            assert_eq!(stats.admission.dropped, 4 - places as u64);
            assert_eq!(stats.admitted, stats.completed);
        }
    });
}

#[test]
fn refuse_gives_every_push_its_inputs_back_at_once() {
    within(LIMIT, || {
        for places in [0, 2] {
            let options = Options::new().in_flight(1).when_full(WhenFull::Refuse).queue(places);
            let (gate, pipeline) = gated(options);
            let begun = Instant::now();
            let tickets: Vec<_> =
                (0..=places as i64).map(|n| pipeline.push(vec![n]).unwrap()).collect();
            let late = Instant::now() + LIMIT;
            let refused = [
                pipeline.push(vec![70]).unwrap_err(),
                pipeline.push_deadline(vec![70], late).unwrap_err(),
                pipeline.try_push(vec![70]).unwrap_err(),
                block_on(pipeline.push_async(vec![70])).unwrap_err(),
            ];
            for error in refused {
                assert!(error.is_full(), "{error}");
                assert_eq!(error.into_inputs(), [70]);
            }
            assert!(begun.elapsed() < LIMIT / 2);
            gate.open();
            assert!(kinds(tickets).iter().all(Result::is_ok));
            // A stream waits instead: it reads no faster than it is let in.
            let results: Result<Vec<_>, _> = pipeline.stream((0..50).map(|n| vec![n])).collect();
            assert_eq!(results.unwrap(), (0..50).map(|n| vec![n]).collect::<Vec<_>>());
        }
    });
}

#[test]
fn scenario_24_the_queue_is_a_hard_bound_and_loses_nothing_unless_told_to() {
    within(LIMIT, || {
        let (gate, pipeline) = gated(Options::new().in_flight(2).queue(3));
        let mut tickets: Vec<_> = (0..5).map(|n| pipeline.push(vec![n]).unwrap()).collect();
        let full = pipeline.try_push(vec![9]).unwrap_err();
        assert!(full.is_full());
        let late = pipeline.push_deadline(vec![9], Instant::now() + 5 * MS).unwrap_err();
        assert!(matches!(late.kind(), PushErrorKind::Expired));
        let waiting = std::thread::spawn({
            let pipeline = pipeline.clone();
            move || pipeline.push(vec![5]).unwrap()
        });
        let awaiting = std::thread::spawn({
            let pipeline = pipeline.clone();
            move || block_on(pipeline.push_async(vec![6])).unwrap()
        });
        std::thread::sleep(20 * MS);
        let stats = pipeline.stats();
        assert_eq!((stats.in_flight, stats.admission.queued, stats.admitted), (2, 3, 5));
        gate.open();
        tickets.push(waiting.join().unwrap());
        tickets.push(awaiting.join().unwrap());
        assert_eq!(kinds(tickets), (0..7).map(Ok).collect::<Vec<_>>());
        assert!(pipeline.stats().edges.iter().all(|edge| edge.peak <= 2));
        assert_eq!(pipeline.stats().admission.dropped, 0);
    });
}

#[test]
fn an_item_that_is_too_old_expires_before_it_costs_anything() {
    within(LIMIT, || {
        let options = Options::new().in_flight(1).queue(4).max_age(30 * MS);
        let (gate, pipeline) = gated(options);
        let first = pipeline.push(vec![0]).unwrap();
        let mut old = pipeline.push(vec![1]).unwrap();
        let async_old = pipeline.push(vec![2]).unwrap();
        // A wait that is longer than the age ends with it, though nothing moves.
        let error = old.wait_timeout(LIMIT).expect("the age ends the wait").unwrap_err();
        assert_eq!((error.kind(), error.seq()), (ErrorKind::Expired, Some(old.seq())));
        std::thread::sleep(40 * MS);
        let young = pipeline.push(vec![3]).unwrap();
        gate.open();
        assert_eq!(block_on(async_old).unwrap_err().kind(), ErrorKind::Expired);
        assert_eq!(kinds(vec![first, young]), [Ok(0), Ok(3)]);
        assert_eq!(gate.passed.load(Ordering::SeqCst), 2, "an old item was computed");
        let stats = pipeline.stats();
        assert_eq!((stats.admission.expired, stats.admission.queued), (2, 0));
        assert_eq!((stats.admitted, stats.completed, stats.failed), (4, 4, 2));
    });
}

#[test]
fn deadlines_and_cancellations_count_in_the_queue() {
    within(LIMIT, || {
        let (gate, pipeline) = gated(Options::new().in_flight(1).queue(2));
        let first = pipeline.push(vec![0]).unwrap();
        let late = pipeline.push_deadline(vec![1], Instant::now() + 10 * MS).unwrap();
        assert_eq!(late.wait().unwrap_err().kind(), ErrorKind::Expired);
        let cancelled = pipeline.push(vec![2]).unwrap();
        cancelled.cancel();
        // Items that nobody wants hold no place against those that somebody does.
        let wanted: Vec<_> = (3..5).map(|n| pipeline.try_push(vec![n]).unwrap()).collect();
        assert_eq!(cancelled.wait().unwrap_err().kind(), ErrorKind::Cancelled);
        gate.open();
        assert_eq!(first.wait().unwrap(), [0]);
        assert_eq!(kinds(wanted), [Ok(3), Ok(4)]);
        assert_eq!(gate.passed.load(Ordering::SeqCst), 3);
    });
}

#[test]
fn a_drain_finishes_the_queue_and_a_stop_settles_it() {
    within(LIMIT, || {
        let (gate, pipeline) = gated(Options::new().in_flight(1).queue(5));
        let tickets: Vec<_> = (0..6).map(|n| pipeline.push(vec![n]).unwrap()).collect();
        let left = pipeline.drain(Some(Instant::now() + 5 * MS)).unwrap_err();
        assert_eq!(left.left, 6);
        assert!(matches!(pipeline.push(vec![9]).unwrap_err().kind(), PushErrorKind::Closed(_)));
        gate.open();
        pipeline.drain(Some(Instant::now() + LIMIT)).unwrap();
        assert!(tickets.iter().all(Ticket::is_done));
        assert_eq!(kinds(tickets), (0..6).map(Ok).collect::<Vec<_>>());

        let (gate, pipeline) = gated(Options::new().in_flight(1).queue(5));
        let tickets: Vec<_> = (0..6).map(|n| pipeline.push(vec![n]).unwrap()).collect();
        let opener = std::thread::spawn(move || {
            std::thread::sleep(5 * MS);
            gate.open();
        });
        pipeline.shutdown();
        assert!(kinds(tickets).iter().all(|kind| *kind == Err(ErrorKind::Shutdown)));
        let stats = pipeline.stats();
        assert_eq!((stats.in_flight, stats.admission.queued), (0, 0));
        assert_eq!(stats.admitted, stats.completed);
        opener.join().unwrap();
    });
}

#[test]
fn streams_and_pushes_share_a_queue_and_a_budget() {
    struct Sum(i64);
    impl Binding<i64> for Sum {
        fn bind(&mut self, _: &mut Vec<Option<i64>>) -> Result<(), ItemError> {
            Ok(())
        }
        fn carry(&mut self, outputs: &[i64]) -> Result<(), ItemError> {
            self.0 += outputs[0];
            Ok(())
        }
    }
    for policy in [WhenFull::Wait, WhenFull::Refuse, WhenFull::DropOldest, WhenFull::DropNewest] {
        for (places, bytes) in [(0, 16), (1, 24), (3, 8)] {
            if places == 0 && policy == WhenFull::DropOldest {
                continue;
            }
            within(LIMIT, move || {
                let stages = vec![map(|x| x + 1), sleepy(MS / 20), map(|x| x - 1)];
                let options = Options::new().in_flight(4).when_full(policy).queue(places);
                let options = options.byte_budget(bytes).item_bytes(0);
                let pipeline = Pipeline::spawn(chain(stages), options).unwrap();
                let flood = std::thread::spawn({
                    let pipeline = pipeline.clone();
                    move || {
                        let pushes = (0..200).map(|n| pipeline.push(vec![n]).ok());
                        pushes.collect::<Vec<_>>().into_iter().flatten().map(Ticket::wait).count()
                    }
                });
                let carried = pipeline.open_stream(Sum(0));
                let results = carried.stream((0..100).map(|n| vec![Some(n)]));
                let results: Result<Vec<_>, _> = results.collect();
                assert_eq!(results.unwrap().len(), 100, "state is never dropped");
                let mut results = 0;
                for (n, result) in (0..100).zip(pipeline.stream((0..100).map(|n| vec![n]))) {
                    match result {
                        Ok(value) => assert_eq!(value, [n]),
                        Err(error) => assert_eq!(error.kind(), ErrorKind::Dropped),
                    }
                    results += 1;
                }
                assert_eq!(results, 100);
                flood.join().unwrap();
                // Alone, a stream loses nothing whatever the policy.
                let results: Result<Vec<_>, _> =
                    pipeline.stream((0..60).map(|n| vec![n])).collect();
                assert_eq!(results.unwrap().len(), 60);
                let stats = pipeline.stats();
                assert_eq!(stats.admitted, stats.completed);
                assert!(stats.admission.bytes_peak <= bytes as u64, "{:?}", stats.admission);
                assert_eq!(stats.admission.bytes, 0);
            });
        }
    }
}

/// A buffer that counts the bytes of all buffers that are alive.
struct Buffer(Arc<Vec<u8>>, Arc<Live>);

#[derive(Default)]
struct Live {
    now: AtomicUsize,
    peak: AtomicUsize,
}

impl Buffer {
    fn new(bytes: usize, live: &Arc<Live>) -> Self {
        let now = live.now.fetch_add(bytes, Ordering::SeqCst) + bytes;
        live.peak.fetch_max(now, Ordering::SeqCst);
        Self(Arc::new(vec![0; bytes]), Arc::clone(live))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if Arc::strong_count(&self.0) == 1 {
            self.1.now.fetch_sub(self.0.len(), Ordering::SeqCst);
        }
    }
}

impl Payload for Buffer {
    fn bytes(&self) -> usize {
        self.0.len()
    }

    fn share(&self) -> Self {
        Self(Arc::clone(&self.0), Arc::clone(&self.1))
    }
}

#[test]
fn scenario_25_a_decoder_that_inflates_its_data_is_held_up_at_the_source() {
    const PACKED: usize = 1 << 10;
    const UNPACKED: usize = 1 << 16;
    let live = Arc::new(Live::default());
    let mut b = Topology::builder();
    let x = b.source("packed");
    let inner = Arc::clone(&live);
    let decode = stage_fn(move |v: Vec<Buffer>| {
        drop(v);
        Ok(vec![Buffer::new(UNPACKED, &inner)])
    });
    let inner = Arc::clone(&live);
    let slow = stage_fn(move |v: Vec<Buffer>| {
        std::thread::sleep(MS);
        drop(v);
        Ok(vec![Buffer::new(8, &inner)])
    });
    let decode = b.actor("decode", "cpu:0", 1, 1, decode);
    let slow = b.actor("slow", "cpu:1", 1, 1, slow);
    let y = b.sink("y");
    b.connect(x, decode.input(0)).connect(decode.output(0), slow.input(0));
    b.connect(slow.output(0), y);
    let topology = b.build().unwrap();
    within(LIMIT, move || {
        // Room for 32 items by number, for 4 decoded ones by bytes.
        let budget = 4 * UNPACKED;
        let options = Options::new().in_flight(32).byte_budget(budget);
        let pipeline = Pipeline::spawn(topology, options).unwrap();
        let source = Arc::clone(&live);
        let inputs = (0..100).map(move |_| vec![Buffer::new(PACKED, &source)]);
        let mut most = 0;
        for result in pipeline.stream(inputs) {
            result.unwrap();
            most = most.max(pipeline.in_flight());
        }
        let stats = pipeline.stats();
        assert!(stats.admission.bytes_peak <= budget as u64, "{:?}", stats.admission);
        // Beside the payloads in flight lives one that is being made, one input read ahead, and
        // results that were not taken yet.
        let alive = live.peak.load(Ordering::SeqCst);
        assert!(alive <= budget + UNPACKED + PACKED + 40 * 8, "{alive} of {budget}");
        assert!(most > 1 && most <= 4, "{most} in flight");
        assert_eq!((stats.admission.bytes, stats.completed), (0, 100));
        let waiting: Vec<_> = (0..4)
            .map(|_| pipeline.try_push(vec![Buffer::new(PACKED, &live)]).expect("4 fit"))
            .collect();
        let full = pipeline.try_push(vec![Buffer::new(PACKED, &live)]).unwrap_err();
        assert!(full.is_full());
        for ticket in waiting {
            ticket.wait().unwrap();
        }
        // One that is larger than the budget goes, alone.
        let large = pipeline.push(vec![Buffer::new(2 * budget, &live)]).unwrap();
        assert!(pipeline.try_push(vec![Buffer::new(1, &live)]).unwrap_err().is_full());
        large.wait().unwrap();
        drop(full);
        drop(pipeline);
        assert_eq!(live.now.load(Ordering::SeqCst), 0);
    });
}

#[test]
fn scenario_23_items_of_any_size_in_streams_of_any_length_under_every_admission() {
    within(LIMIT, || {
        let reverse = |v: Vec<Vec<u8>>| {
            Ok(v.into_iter().map(|item| item.into_iter().rev().collect()).collect())
        };
        let double =
            |v: Vec<Vec<u8>>| Ok(v.iter().map(|item| [&item[..], item].concat()).collect());
        let admissions = [
            Options::new().in_flight(1),
            Options::new().in_flight(3).byte_budget(1),
            Options::new().in_flight(8).byte_budget(300),
            Options::new().in_flight(2).queue(2),
            Options::new().in_flight_auto(8).queue(1).when_full(WhenFull::DropOldest),
            Options::new().in_flight_auto(5).byte_budget(500).max_age(LIMIT),
        ];
        for options in admissions {
            let mut b = Topology::<Vec<u8>>::builder();
            let x = b.source("x");
            let first = b.actor("reverse", "cpu:0", 1, 1, stage_fn(reverse));
            let second = b.actor("double", "cpu:1", 1, 1, stage_fn(double));
            let third = b.actor("again", "cpu:2", 1, 1, stage_fn(reverse));
            let y = b.sink("y");
            b.connect(x, first.input(0)).connect(first.output(0), second.input(0));
            b.connect(second.output(0), third.input(0)).connect(third.output(0), y);
            let pipeline = Pipeline::spawn(b.build().unwrap(), options).unwrap();
            // None, one, fewer than stages, as many, and a ragged rest; sizes from nothing to 96.
            for items in [0, 1, 2, 3, 4, 61] {
                let item = |n: usize| vec![n as u8; (n * 37) % 97];
                let results: Vec<_> = pipeline.stream((0..items).map(|n| vec![item(n)])).collect();
                assert_eq!(results.len(), items);
                for (n, result) in results.into_iter().enumerate() {
                    assert_eq!(result.unwrap(), [[item(n), item(n)].concat()]);
                }
            }
            assert_eq!(pipeline.stats().admission.bytes, 0);
        }
    });
}

#[test]
fn fan_out_and_joins_are_weighed_and_come_back_to_nothing() {
    within(LIMIT, || {
        let mut b = Topology::builder();
        let x = b.source("x");
        let left = b.actor("left", "l", 1, 1, map(|x| x + 1));
        let right = b.actor("right", "r", 1, 1, kit::failing(5, "five"));
        let sum = stage_fn(|v: Vec<i64>| Ok(vec![v.iter().sum()]));
        let join = b.actor("join", "j", 3, 1, sum);
        let y = b.sink("y");
        b.connect(x, left.input(0)).connect(x, right.input(0)).connect(x, join.input(2));
        b.connect(left.output(0), join.input(0)).connect(right.output(0), join.input(1));
        b.connect(join.output(0), y);
        let options = Options::new().in_flight(8).byte_budget(100);
        let pipeline = Pipeline::spawn(b.build().unwrap(), options).unwrap();
        for (n, result) in (1..300).zip(pipeline.stream((1..300).map(|n| vec![n]))) {
            assert_eq!(result.ok(), (n % 5 != 0).then(|| vec![3 * n + 1]));
        }
        let stats = pipeline.stats();
        // Three handles on an input of 8 bytes at the most.
        assert!((24..=100).contains(&stats.admission.bytes_peak), "{:?}", stats.admission);
        assert_eq!(stats.admission.bytes, 0);
    });
}

#[test]
fn a_budget_that_cannot_work_is_refused_at_the_spawn() {
    let spawn = |options| Pipeline::spawn(chain(vec![map(|x| x)]), options).unwrap_err();
    let options = [
        Options::new().byte_budget(0),
        Options::new().when_full(WhenFull::DropOldest).queue(0),
        Options::new().max_age(MS).queue(0),
    ];
    for options in options {
        assert!(matches!(spawn(options), SpawnError::Options(_)));
    }
    // What the policy needs is there without asking for it.
    for options in
        [Options::new().when_full(WhenFull::DropOldest), Options::new().max_age(Duration::MAX)]
    {
        let options = options.in_flight(3);
        let pipeline = Pipeline::spawn(chain(vec![map(|x| x)]), options).unwrap();
        assert_eq!(pipeline.stats().admission.queue_capacity, 3);
        assert_eq!(pipeline.push(vec![1]).unwrap().wait().unwrap(), [1]);
    }
}

#[test]
fn a_queue_in_front_of_a_pipeline_without_actors_does_not_recurse() {
    within(LIMIT, || {
        let mut b = Topology::<i64>::builder();
        let (x, y) = (b.source("x"), b.sink("y"));
        let slow = b.actor("slow", "s", 1, 0, stage_fn(|_| Ok(vec![])));
        b.connect(x, y).connect(x, slow.input(0));
        let options = Options::new().in_flight(1).queue(5000);
        let pipeline = Pipeline::spawn(b.build().unwrap(), options).unwrap();
        let tickets: Vec<_> = (0..5000).map(|n| pipeline.push(vec![n]).unwrap()).collect();
        assert_eq!(kinds(tickets), (0..5000).map(Ok).collect::<Vec<_>>());
    });
}

#[test]
fn a_budget_counts_children_batches_and_collected_lists_and_comes_back_to_nothing() {
    use brigade_actors::{Batching, Flow};
    within(LIMIT, || {
        let failed = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&failed);
        let topology = Flow::source("x")
            .flat_map("split", "cpu:0", |v: Vec<u8>| {
                Ok(v.into_iter().map(|b| vec![b; 8]).collect())
            })
            .filter("odd", "cpu:1", |v: &Vec<u8>| v[0] % 2 == 1)
            .batch("batch", "cpu:1", Batching::up_to(5), |v: Vec<Vec<u8>>| Ok(v.concat()))
            .map("model", "cpu:2", move |v: Vec<u8>| {
                // Fails now and then, and is tried again.
                if count.fetch_add(1, Ordering::SeqCst) % 7 == 3 {
                    return Err(ItemError::failed("now and then"));
                }
                Ok(v)
            })
            .unbatch("unbatch", "cpu:1", |v: Vec<u8>, _| {
                Ok(v.chunks(8).map(<[u8]>::to_vec).collect())
            })
            .collect_values("collect", "cpu:0", |v: Vec<Vec<u8>>| Ok(v.concat()))
            .sink("y")
            .build()
            .unwrap();
        let options = Options::new().in_flight_auto(16).byte_budget(4000).retry_failures(3);
        let options = options.queue(3).watchdog(LIMIT);
        let pipeline = Pipeline::spawn(topology, options).unwrap();
        let item = |n: usize| (0..n % 12).map(|b| b as u8).collect::<Vec<u8>>();
        let results: Vec<_> = pipeline.stream((0..300).map(|n| vec![item(n)])).collect();
        for (n, result) in results.into_iter().enumerate() {
            let odd = item(n).into_iter().filter(|b| b % 2 == 1);
            assert_eq!(result.unwrap(), [odd.flat_map(|b| [b; 8]).collect::<Vec<_>>()], "{n}");
        }
        let stats = pipeline.stats();
        assert!(stats.actors.iter().any(|actor| actor.retries > 0));
        assert!((100..=4000).contains(&stats.admission.bytes_peak), "{:?}", stats.admission);
        assert_eq!((stats.admission.bytes, stats.admission.queued), (0, 0));
    });
}
