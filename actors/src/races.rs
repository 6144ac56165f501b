//! The races of [the protocol](crate::protocol), each under every interleaving that a few threads
//! have (up to two preemptions, where so many are that the search would not end).
//!
//! ```text
//! RUSTFLAGS="--cfg loom" LOOM_MAX_PREEMPTIONS=2 cargo test -p brigade-actors --release \
//!     --no-default-features --lib --target-dir target/loom races
//! ```

use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use loom::thread::spawn;

use crate::budget::Budget;
use crate::cpu::CpuBudget;
use crate::credit::{Ask, Bounds, Credits, Place};
use crate::depth::Ways;
use crate::edge::{Taker, Target};
use crate::engine::{EdgeCell, Engine, Region, SinkEdge, Wiring};
use crate::error::{ErrorKind, ItemError, PushError, PushErrorKind};
use crate::inbox::{Flags, Inbox, Next};
use crate::item::{Admission, Item, Outcome, Shape};
use crate::join::{Cells, Join};
use crate::lane::{Grant, Lanes, Seat};
use crate::metrics::{EdgeMeter, Meter, Phase, PipelineState};
use crate::options::WhenFull;
use crate::packet::Seq;
use crate::queue::Queue;
use crate::result::{ResultCell, Settlement};
use crate::source::Patience;
use crate::state::{Binding, Carried};
use crate::sync::{Apart, Arc, AtomicBool, AtomicUsize, Ordering};
use crate::ticket::Ticket;
use crate::topology::{InPort, OutPort};

fn model(body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound.get_or_insert(2);
    builder.check(body);
}

fn over() -> ItemError {
    ItemError::new(ErrorKind::Shutdown, "over")
}

/// Counts its calls.
struct Bells(AtomicUsize);

impl Wake for Bells {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

const fn bounds(items: usize, queue: usize) -> Bounds {
    Bounds { items, bytes: None, item_bytes: None, queue }
}

fn conclude<P, R>(
    cell: &ResultCell<P>,
    outcome: Outcome<P>,
    release: impl FnOnce(bool) -> R,
) -> Option<R> {
    let (released, aftermath) = cell.conclude(Settlement::Whole(outcome), release);
    cell.attend(aftermath);
    released
}

/// A pipeline without actors: its source is connected to its sink.
fn through(in_flight: usize, queue: usize) -> Arc<Engine<u64>> {
    let target = Target { edge: 0, to: Taker::Sink { port: 0 } };
    let sink = Join { index: 0, first: 0, ports: 1 };
    let edge = EdgeCell {
        meter: Apart(EdgeMeter::default()),
        from: String::new(),
        to: String::new(),
        giver: OutPort::Source(0),
        taker: InPort::Sink(0),
        gathers: false,
        capacity: in_flight,
    };
    Arc::new(Engine::new(Wiring {
        name: String::new(),
        bounds: bounds(in_flight, queue),
        capacity: in_flight,
        spin: Duration::ZERO,
        queue: Queue::new(WhenFull::Wait, None, queue),
        ways: Ways { order: Vec::new(), before: Vec::new() },
        tuner: None,
        watch: None,
        sources: vec![vec![target]],
        regions: vec![Region {
            shape: Shape { joins: vec![sink], gathers: 0, edges: 1 },
            batched: false,
            entered: Apart::default(),
            budget: None,
            ends: Vec::new(),
            exits: Vec::new(),
        }],
        listed: vec![None],
        child_bytes: 0,
        sink,
        sinks: 1,
        sink_edges: vec![SinkEdge::new(0)],
        actors: Vec::new(),
        edges: vec![edge],
        devices: Vec::new(),
        computing: Vec::new(),
        budget: Arc::new(CpuBudget::default()),
        notices: Vec::new(),
        origin: Instant::now(),
        trace: 0,
    }))
}

fn push(engine: &Arc<Engine<u64>>, input: u64) -> Result<Ticket<u64>, PushError<Vec<u64>>> {
    let item = engine.accept(vec![input], Patience::Endless, false)?;
    Ok(Ticket::new(item, Arc::clone(engine)))
}

#[test]
fn the_last_two_senders_of_a_join() {
    model(|| {
        let join = Join { index: 0, first: 0, ports: 2 };
        let cells = Arc::new(Cells::<u64>::new(&[join], 1));
        let fill = |port: usize| {
            let cells = Arc::clone(&cells);
            move || {
                let complete = cells.fill(join, port, Some(Ok(port as u64)));
                if complete {
                    for port in 0..2 {
                        let found = cells.take(join, port).and_then(Result::ok);
                        assert_eq!(found, Some(port as u64));
                    }
                }
                complete
            }
        };
        let (first, second) = (fill(0), fill(1));
        let other = spawn(first);
        let mine = second();
        assert!(mine ^ other.join().unwrap(), "exactly one completes the match");
    });
}

#[test]
fn credits_are_never_more_than_the_limit_and_every_waiter_gets_one() {
    model(|| {
        let credits = Arc::new(Credits::<()>::new(bounds(1, 0), Instant::now()));
        let inside = Arc::new(AtomicUsize::new(0));
        let go = || {
            let (credits, inside) = (Arc::clone(&credits), Arc::clone(&inside));
            move || {
                credits.acquire(Ask::default(), None).unwrap();
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                inside.fetch_sub(1, Ordering::SeqCst);
                credits.open().release(0).wake();
            }
        };
        let threads = [spawn(go()), spawn(go())];
        go()();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert_eq!(credits.used(), 0);
    });
}

#[test]
fn a_close_ends_every_wait_for_a_credit() {
    model(|| {
        let credits = Arc::new(Credits::<()>::new(bounds(1, 0), Instant::now()));
        credits.try_acquire(Ask::default()).unwrap();
        let waiter = {
            let credits = Arc::clone(&credits);
            spawn(move || credits.acquire(Ask::default(), None))
        };
        let closer = {
            let credits = Arc::clone(&credits);
            spawn(move || credits.close(over()))
        };
        credits.open().release(0).wake();
        // It got the credit before the close, or is told.
        let got = waiter.join().unwrap().is_ok();
        closer.join().unwrap();
        assert_eq!(credits.used(), usize::from(got));
        assert!(matches!(credits.try_acquire(Ask::default()), Err(PushErrorKind::Closed(_))));
    });
}

#[test]
fn a_drain_sees_the_last_credit_come_back() {
    model(|| {
        let credits = Arc::new(Credits::<()>::new(bounds(2, 0), Instant::now()));
        credits.try_acquire(Ask::default()).unwrap();
        credits.try_acquire(Ask::default()).unwrap();
        let give = || {
            let credits = Arc::clone(&credits);
            spawn(move || credits.open().release(0).wake())
        };
        let threads = [give(), give()];
        let bells = Arc::new(Bells(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&bells));
        let polled = credits.poll_idle(&Context::from_waker(&waker));
        assert_eq!(credits.wait_idle(None), 0);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        assert!(polled.is_ready() || bells.0.load(Ordering::SeqCst) == 1);
    });
}

#[test]
fn a_future_that_waits_for_a_credit_is_woken_or_served() {
    model(|| {
        let credits = Arc::new(Credits::<()>::new(bounds(1, 0), Instant::now()));
        credits.try_acquire(Ask::default()).unwrap();
        let giver = {
            let credits = Arc::clone(&credits);
            spawn(move || credits.open().release(0).wake())
        };
        let bells = Arc::new(Bells(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&bells));
        let mut place = None;
        let first = credits.poll_acquire(Ask::default(), &mut place, &Context::from_waker(&waker));
        giver.join().unwrap();
        if first.is_pending() {
            assert_eq!(bells.0.load(Ordering::SeqCst), 1);
            let again =
                credits.poll_acquire(Ask::default(), &mut place, &Context::from_waker(&waker));
            assert!(matches!(again, Poll::Ready(Ok(Place::Flight(0)))));
        }
        assert_eq!(credits.used(), 1);
    });
}

#[test]
fn a_result_wakes_the_thread_that_waits_for_it() {
    model(|| {
        let cell = Arc::new(ResultCell::new(0));
        let sink = {
            let cell = Arc::clone(&cell);
            spawn(move || conclude(&cell, Ok(vec![5]), |first| assert!(first)))
        };
        assert_eq!(cell.take_until(None, Duration::ZERO).unwrap().unwrap(), [5]);
        sink.join().unwrap();
    });
}

#[test]
fn a_result_wakes_the_future_that_waits_for_it() {
    model(|| {
        let cell = Arc::new(ResultCell::new(0));
        let sink = {
            let cell = Arc::clone(&cell);
            spawn(move || assert!(cell.settle(Ok(vec![5]))))
        };
        let bells = Arc::new(Bells(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&bells));
        let polled = cell.poll_take(&Context::from_waker(&waker));
        sink.join().unwrap();
        if polled.is_pending() {
            assert_eq!(bells.0.load(Ordering::SeqCst), 1);
            assert!(cell.try_take().is_some());
        }
    });
}

#[test]
fn a_result_against_its_credit() {
    model(|| {
        let (cell, credits) = (
            Arc::new(ResultCell::new(0)),
            Arc::new(Credits::<()>::new(bounds(1, 0), Instant::now())),
        );
        credits.try_acquire(Ask::default()).unwrap();
        let sink = {
            let (cell, credits) = (Arc::clone(&cell), Arc::clone(&credits));
            spawn(move || {
                let mut ledger = credits.open();
                let settlement = Settlement::Whole(Ok(vec![5]));
                let (wakeups, aftermath) = cell.conclude(settlement, |_| ledger.release(0));
                drop(ledger);
                cell.attend(aftermath);
                wakeups.unwrap().wake();
            })
        };
        let seen = {
            let (cell, credits) = (Arc::clone(&cell), Arc::clone(&credits));
            // Whoever sees the result finds the credit free.
            spawn(move || {
                if cell.is_settled() {
                    assert_eq!(credits.used(), 0);
                }
            })
        };
        // Whoever sees no credit out finds every result there.
        assert_eq!(credits.wait_idle(None), 0);
        assert_eq!(cell.try_take().unwrap().unwrap(), [5]);
        sink.join().unwrap();
        seen.join().unwrap();
    });
}

#[test]
fn a_ticket_that_goes_leaves_no_result_behind() {
    model(|| {
        let payload = Arc::new(5);
        let cell = Arc::new(ResultCell::new(0));
        let sink = {
            let (cell, payload) = (Arc::clone(&cell), Arc::clone(&payload));
            spawn(move || cell.settle(Ok(vec![payload])))
        };
        cell.forsake();
        sink.join().unwrap();
        assert_eq!(Arc::strong_count(&payload), 1);
    });
}

#[test]
fn a_stop_against_the_sink_gives_the_credit_back_once() {
    model(|| {
        let cell = Arc::new(ResultCell::<u64>::new(0));
        let back = Arc::new(AtomicUsize::new(0));
        let sink = {
            let (cell, back) = (Arc::clone(&cell), Arc::clone(&back));
            spawn(move || {
                conclude(&cell, Ok(vec![5]), |_| back.fetch_add(1, Ordering::SeqCst));
            })
        };
        if cell.retire() {
            back.fetch_add(1, Ordering::SeqCst);
        }
        cell.settle(Err(over()));
        sink.join().unwrap();
        assert_eq!(back.load(Ordering::SeqCst), 1);
        assert!(cell.try_take().is_some());
    });
}

#[test]
fn giving_an_item_up_against_an_actor_that_skips_it() {
    model(|| {
        let admission = Admission {
            deadline: None,
            stream: None,
            admitted_ns: 0,
            queued: false,
            start_by: None,
        };
        let item = Arc::new(Item::<u64>::new(Seq::new(0), admission, &Shape::default()));
        let actor = {
            let item = Arc::clone(&item);
            spawn(move || {
                if let Some(error) = item.skip() {
                    conclude(&item.result, Err(error), |_| ());
                }
            })
        };
        item.abort(over());
        actor.join().unwrap();
        let result = item.result.try_take().unwrap();
        assert_eq!(result.unwrap_err().kind(), ErrorKind::Shutdown);
    });
}

#[test]
fn a_push_against_a_stop() {
    model(|| {
        let engine = through(1, 0);
        let pusher = {
            let engine = Arc::clone(&engine);
            spawn(move || push(&engine, 7).map(Ticket::wait))
        };
        engine.stop(PipelineState::Stopped, &over());
        match pusher.join().unwrap() {
            Ok(Ok(value)) => assert_eq!(value, [7]),
            Ok(Err(error)) => assert_eq!(error.kind(), ErrorKind::Shutdown),
            Err(refused) => assert!(matches!(refused.kind(), PushErrorKind::Closed(_))),
        }
        assert_eq!(engine.credits.used(), 0);
    });
}

#[test]
fn a_stop_settles_an_item_that_is_not_on_its_edges_yet() {
    model(|| {
        let engine = through(1, 0);
        let pusher = {
            let engine = Arc::clone(&engine);
            spawn(move || {
                let stream = Carried::new(0, Box::new(Count(0)));
                // Admitted, and never sent: nothing but the stop can settle it.
                let item = engine.admit(0, Patience::Endless, true, stream).ok()?;
                Some(Ticket::new(item, engine).wait())
            })
        };
        engine.stop(PipelineState::Stopped, &over());
        if let Some(result) = pusher.join().unwrap() {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::Shutdown);
        }
        assert_eq!(engine.credits.used(), 0);
    });
}

#[test]
fn a_push_into_the_queue_against_a_returning_credit() {
    model(|| {
        let engine = through(1, 1);
        let go = |input: u64| {
            let engine = Arc::clone(&engine);
            move || assert_eq!(push(&engine, input).unwrap().wait().unwrap(), [input])
        };
        let other = spawn(go(1));
        go(2)();
        other.join().unwrap();
        assert_eq!((engine.credits.used(), engine.credits.queued()), (0, 0));
    });
}

#[test]
fn an_item_that_is_used_again_has_a_result_of_its_own() {
    model(|| {
        let engine = through(1, 0);
        let go = |input: u64| {
            let engine = Arc::clone(&engine);
            move || assert_eq!(push(&engine, input).unwrap().wait().unwrap(), [input])
        };
        let other = spawn(go(1));
        go(2)();
        other.join().unwrap();
        assert_eq!(engine.credits.used(), 0);
        assert_eq!(engine.stats().completed, 2);
    });
}

#[test]
fn a_wake_up_against_a_look_at_the_flags() {
    model(|| {
        let (inbox, _, bell) = Inbox::<u64>::new(1, Duration::ZERO);
        let ring = |flag: u32| {
            let bell = Arc::clone(&bell);
            spawn(move || bell.ring(flag))
        };
        let ringers = [ring(Flags::RESTART), ring(Flags::STOP)];
        let mut missing = Flags::RESTART | Flags::STOP;
        while missing != 0 {
            for flag in [Flags::RESTART, Flags::STOP] {
                if inbox.flags().lower(flag) {
                    missing &= !flag;
                }
            }
            if missing != 0 {
                // A flag that nobody wakes the actor for would leave it here.
                assert!(matches!(inbox.next(true, None), Next::Wake));
            }
        }
        ringers.into_iter().for_each(|ringer| ringer.join().unwrap());
    });
}

#[test]
fn a_lane_that_is_given_back_goes_to_one_who_waits() {
    model(|| {
        let lanes = Lanes::new("g", 1);
        let inside = Arc::new(AtomicUsize::new(0));
        let go = |seq: u64| {
            let (lanes, inside) = (Arc::clone(&lanes), Arc::clone(&inside));
            move || {
                let seat = Seat::new(0, 0);
                assert_eq!(lanes.acquire(&seat, Seq::new(seq), || false), Grant::Held);
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                inside.fetch_sub(1, Ordering::SeqCst);
                lanes.release(Instant::now());
            }
        };
        let other = spawn(go(1));
        go(2)();
        other.join().unwrap();
        assert_eq!(lanes.snapshot(Instant::now()).1, 0);
    });
}

#[test]
fn a_fan_out_that_waits_for_its_budget_is_woken_by_a_child_and_by_a_stop() {
    model(|| {
        let budget = Arc::new(Budget::new(1));
        assert_eq!(budget.try_acquire(2), 1);
        let child = {
            let budget = Arc::clone(&budget);
            spawn(move || budget.release())
        };
        assert_eq!(budget.acquire(1, || false), 1);
        child.join().unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopper = {
            let (budget, stop) = (Arc::clone(&budget), Arc::clone(&stop));
            spawn(move || {
                stop.store(true, Ordering::Release);
                budget.interrupt();
            })
        };
        assert_eq!(budget.acquire(1, || stop.load(Ordering::Acquire)), 0);
        stopper.join().unwrap();
    });
}

#[test]
fn a_stop_reaches_an_actor_that_waits_for_a_lane() {
    model(|| {
        let lanes = Lanes::new("g", 1);
        assert!(lanes.try_acquire(&Seat::new(0, 0), Instant::now()));
        let stop = Arc::new(AtomicBool::new(false));
        let stopper = {
            let (lanes, stop) = (Arc::clone(&lanes), Arc::clone(&stop));
            spawn(move || {
                stop.store(true, Ordering::Release);
                lanes.interrupt();
            })
        };
        let grant = lanes.acquire(&Seat::new(0, 1), Seq::new(0), || stop.load(Ordering::Acquire));
        assert_eq!(grant, Grant::Stopped);
        stopper.join().unwrap();
    });
}

#[test]
fn the_account_of_an_actor_is_read_as_of_one_moment() {
    model(|| {
        let origin = Instant::now();
        let meter = Arc::new(Meter::new(origin));
        let writer = {
            let meter = Arc::clone(&meter);
            spawn(move || {
                meter.enter_at(Phase::Busy, origin + Duration::from_nanos(10));
                meter.enter_at(Phase::Starved, origin + Duration::from_nanos(30));
            })
        };
        let stats = meter.snapshot("", "", "", origin + Duration::from_nanos(30));
        let all = stats.busy_ns + stats.starved_ns + stats.blocked_ns + stats.other_ns;
        assert_eq!(all, 30, "{stats:?}");
        writer.join().unwrap();
    });
}

struct Count(u64);

impl Binding<u64> for Count {
    fn bind(&mut self, inputs: &mut Vec<Option<u64>>) -> Result<(), ItemError> {
        inputs[0] = Some(self.0);
        Ok(())
    }

    fn carry(&mut self, outputs: &[u64]) -> Result<(), ItemError> {
        self.0 = outputs[0] + 1;
        Ok(())
    }
}

#[test]
fn the_next_item_of_a_stream() {
    model(|| {
        let engine = through(2, 0);
        let stream = Carried::new(0, Box::new(Count(0)));
        let go = || {
            let (engine, stream) = (Arc::clone(&engine), Arc::clone(&stream));
            move || {
                let own = Arc::clone(&stream);
                let item = engine.admit(0, Patience::Endless, true, own).unwrap();
                stream.enqueue(&engine, Arc::clone(&item), vec![None]);
                Ticket::new(item, engine).wait().unwrap()[0]
            }
        };
        let other = spawn(go());
        let mine = go()();
        // Each ran once, and the second found what the first left behind.
        assert_eq!(mine + other.join().unwrap(), 1);
        assert_eq!(engine.credits.used(), 0);
    });
}
