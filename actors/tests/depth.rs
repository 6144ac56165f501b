//! The number in flight: its default, and the one that adapts itself.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use crossbeam_channel::bounded;

use brigade_actors::{
    Factory, Firing, ItemError, Options, Outbox, Pipeline, Seq, SpawnError, Stage, Stats,
};

mod kit;
use kit::{MS, chain, chain_on, map, sleepy, within};

const LIMIT: Duration = Duration::from_secs(60);

/// Streams `items`; gives the throughput per second and the mean latency of what came after the
/// first `warm`.
fn measure(pipeline: &Pipeline<i64>, warm: i64, items: i64) -> (f64, Duration) {
    let mut results = pipeline.stream((0..warm + items).map(|n| vec![n]));
    for n in 0..warm {
        assert_eq!(results.next().unwrap().unwrap(), [n]);
    }
    let (before, begun) = (pipeline.stats(), Instant::now());
    for n in warm..warm + items {
        assert_eq!(results.next().unwrap().unwrap(), [n]);
    }
    let rate = items as f64 / begun.elapsed().as_secs_f64();
    (rate, latency(&before, &pipeline.stats()))
}

fn latency(before: &Stats, after: &Stats) -> Duration {
    let items = after.completed - before.completed;
    Duration::from_nanos((after.latency.sum_ns() - before.latency.sum_ns()) / items.max(1))
}

/// Runs `attempt` until it holds, a few times at most: a machine that is busy with other things
/// spoils one measurement, hardly four.
fn eventually(attempt: impl Fn() -> Result<(), String>) {
    let failures: Vec<_> = (0..4).map_while(|_| attempt().err()).collect();
    assert!(failures.len() < 4, "{failures:#?}");
}

fn holds(what: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if what { Ok(()) } else { Err(otherwise()) }
}

fn stages(millis: &[u32]) -> Vec<Factory<i64>> {
    millis.iter().map(|&ms| sleepy(ms * MS)).collect()
}

#[test]
fn scenario_13_the_default_number_in_flight_fills_the_pipeline() {
    within(LIMIT, || {
        for millis in [&[2, 2, 2][..], &[1, 2, 4]] {
            eventually(|| {
                let default = Pipeline::spawn(chain(stages(millis)), Options::new()).unwrap();
                let path: u32 = millis.iter().sum();
                let fill = path.div_ceil(*millis.iter().max().unwrap()) as usize;
                assert!(default.in_flight_limit() >= fill);
                let options = Options::new().in_flight(64);
                let deep = Pipeline::spawn(chain(stages(millis)), options).unwrap();
                let (rate, _) = measure(&default, 10, 80);
                let (best, _) = measure(&deep, 70, 80);
                holds(rate > 0.9 * best, || format!("{rate} against {best} with 64 in flight"))
            });
        }
    });
}

/// A device that works on all its slots side by side, each for `time`.
struct Wide {
    done: crossbeam_channel::Receiver<(Seq, i64)>,
    jobs: crossbeam_channel::Sender<(Seq, i64)>,
    slots: usize,
}

fn wide(slots: usize, time: Duration) -> Factory<i64> {
    Box::new(move |context| {
        let (jobs, todo) = bounded::<(Seq, i64)>(slots);
        let (finished, done) = bounded(slots);
        for _ in 0..slots {
            let (todo, finished, waker) = (todo.clone(), finished.clone(), context.waker.clone());
            std::thread::spawn(move || {
                for job in todo {
                    std::thread::sleep(time);
                    if finished.send(job).is_err() {
                        return;
                    }
                    waker.wake();
                }
            });
        }
        Ok(Box::new(Wide { done, jobs, slots }))
    })
}

impl Stage<i64> for Wide {
    fn slots(&self) -> usize {
        self.slots
    }

    fn submit(&mut self, firing: Firing<i64>, out: &mut Outbox<i64>) -> Result<(), ItemError> {
        self.jobs.send((firing.seq, firing.inputs[0])).map_err(ItemError::from_error)?;
        out.defer();
        Ok(())
    }

    fn poll(&mut self, out: &mut Outbox<i64>) -> Result<(), ItemError> {
        for (seq, x) in self.done.try_iter() {
            out.emit_for(seq, 0, x);
        }
        Ok(())
    }
}

#[test]
fn the_default_fills_the_slots_of_an_asynchronous_stage_and_so_does_the_adaptive_one() {
    within(LIMIT, || {
        for options in [Options::new(), Options::new().in_flight_auto(40)] {
            eventually(|| {
                let topology = chain(vec![map(|x| x), wide(6, 12 * MS)]);
                let pipeline = Pipeline::spawn(topology, options.clone()).unwrap();
                assert!(pipeline.in_flight_limit() >= 8, "{}", pipeline.in_flight_limit());
                let (rate, _) = measure(&pipeline, 60, 120);
                let limit = pipeline.in_flight_limit();
                // Six at a time, 12 ms each: 500 a second.
                holds(rate > 400.0 && limit <= 20, || format!("{rate} a second, limit {limit}"))
            });
        }
    });
}

#[test]
fn the_adaptive_number_settles_near_the_ideal_at_the_throughput_of_the_best_fixed_one() {
    within(LIMIT, || {
        // L / T: 7 / 4, 6 / 2, and for one device visited twice 5 / 4.
        let cases: [(&[u32], bool, usize); 3] =
            [(&[1, 2, 4], false, 2), (&[2, 2, 2], false, 3), (&[2, 1, 2], true, 2)];
        for (millis, shared, ideal) in cases {
            let topology = || {
                chain_on(stages(millis), |n| {
                    if shared && n != 1 { "g".into() } else { format!("d{n}") }
                })
            };
            eventually(|| {
                let auto = Pipeline::spawn(topology(), Options::new().in_flight_auto(64)).unwrap();
                let fixed = Pipeline::spawn(topology(), Options::new().in_flight(64)).unwrap();
                let (rate, latency) = measure(&auto, 150, 150);
                let (best, long) = measure(&fixed, 70, 100);
                let stats = auto.stats();
                assert_eq!(stats.admission.in_flight_max, 64);
                assert!(stats.edges.iter().all(|edge| edge.capacity == 64));
                let limit = stats.in_flight_limit;
                holds((ideal..=ideal + 3).contains(&limit), || {
                    format!("{millis:?}: {limit} for {ideal}")
                })?;
                holds(rate > 0.9 * best, || format!("{millis:?}: {rate} against {best}"))?;
                // The latency stays that of a pipeline that is just full, whatever the maximum.
                holds(latency < long / 6, || format!("{millis:?}: {latency:?} against {long:?}"))
            });
        }
    });
}

#[test]
fn the_adaptive_number_follows_the_stages_and_never_passes_its_maximum() {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    within(LIMIT, || {
        eventually(|| {
            let time = Arc::new(AtomicU64::new(8_000));
            let nap = Arc::clone(&time);
            let changing = map(move |x| {
                std::thread::sleep(Duration::from_micros(nap.load(Ordering::Relaxed)));
                x
            });
            let mut factories = vec![changing];
            factories.extend(stages(&[2, 2, 2, 2]));
            let options = Options::new().in_flight_auto(5);
            let pipeline = Pipeline::spawn(chain(factories), options).unwrap();
            assert!(pipeline.in_flight_limit() <= 5);
            measure(&pipeline, 0, 100);
            // 8 ms in front of four times 2 ms: two fill it.
            let slow = pipeline.in_flight_limit();
            time.store(2_000, Ordering::Relaxed);
            measure(&pipeline, 0, 300);
            // Five equal ones need five, and one more would be allowed nowhere.
            let fast = pipeline.in_flight_limit();
            assert!(fast <= 5 && pipeline.stats().edges.iter().all(|edge| edge.peak <= 5));
            holds((2..=4).contains(&slow) && fast == 5, || format!("{slow}, then {fast}"))
        });
    });
}

#[test]
fn an_adaptive_number_works_with_a_queue_a_budget_and_pushes_of_every_kind() {
    within(LIMIT, || {
        let options = Options::new().in_flight(1).in_flight_auto(16).queue(4).byte_budget(64);
        let stages = vec![map(|x| x + 1), map(|x| x * 2), map(|x| x - 3)];
        let pipeline = Pipeline::spawn(chain(stages), options).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..3_i64 {
                let pipeline = &pipeline;
                scope.spawn(move || {
                    for n in 0..500 {
                        let x = 1000 * thread + n;
                        let ticket = match n % 3 {
                            0 => pipeline.push(vec![x]).unwrap(),
                            1 => kit::block_on(pipeline.push_async(vec![x])).unwrap(),
                            _ => pipeline.push_deadline(vec![x], Instant::now() + LIMIT).unwrap(),
                        };
                        assert_eq!(ticket.wait().unwrap(), [(x + 1) * 2 - 3]);
                    }
                });
            }
        });
        let stats = pipeline.stats();
        assert_eq!((stats.admitted, stats.completed, stats.failed), (1500, 1500, 0));
        assert!(stats.admission.bytes_peak <= 64 && stats.in_flight_limit <= 16, "{stats:?}");
        let error = Pipeline::spawn(chain(vec![map(|x| x)]), Options::new().in_flight_auto(0));
        assert!(matches!(error.unwrap_err(), SpawnError::Options(_)));
    });
}
