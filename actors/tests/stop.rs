//! Stops from every state: idle, full, blocked in a push, queue full, failed, restarting, with work on
//! a device, stuck in foreign code. Each ends in bounded time and leaves no ticket without a result.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use brigade_actors::{
    ErrorKind, Factory, Firing, ItemError, Options, Outbox, Pipeline, PipelineState, Seq, Stage,
    Ticket, WhenFull,
};

mod kit;
use kit::{MS, Rng, block_on, chain, map, panicking, sleepy, within};

/// One start and stop takes no longer than this; a machine under load is slow, a hang is for ever.
const LIMIT: Duration = Duration::from_secs(30);

/// A device that never completes anything by itself: a read-back that is under way when the stop
/// comes.
struct Reading(VecDeque<Seq>);

impl Reading {
    fn factory() -> Factory<i64> {
        Box::new(|_| Ok(Box::new(Self(VecDeque::new()))))
    }
}

impl Stage<i64> for Reading {
    fn slots(&self) -> usize {
        3
    }

    fn submit(&mut self, firing: Firing<i64>, out: &mut Outbox<i64>) -> Result<(), ItemError> {
        self.0.push_back(firing.seq);
        out.defer();
        Ok(())
    }

    fn cancel(&mut self, seq: Seq, out: &mut Outbox<i64>) {
        self.0.retain(|held| *held != seq);
        out.fail(seq, ItemError::new(ErrorKind::Cancelled, "the read-back was given up"));
    }
}

/// Computes until it is released: what a driver does that has hung.
fn stuck(release: &Arc<AtomicBool>) -> Factory<i64> {
    let release = Arc::clone(release);
    map(move |x| {
        while !release.load(Ordering::SeqCst) {
            std::thread::sleep(MS / 2);
        }
        x
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Idle,
    Running,
    Full,
    BlockedInPush,
    QueueFull,
    Failed,
    Restarting,
    ReadingBack,
    Stuck,
    Draining,
}

const STATES: [State; 10] = [
    State::Idle,
    State::Running,
    State::Full,
    State::BlockedInPush,
    State::QueueFull,
    State::Failed,
    State::Restarting,
    State::ReadingBack,
    State::Stuck,
    State::Draining,
];

#[derive(Clone, Copy, Debug)]
enum End {
    Drain,
    Shutdown,
    Drop,
}

/// A pipeline in this state, the tickets that are out, and what lets a stuck stage go.
struct Scene {
    pipeline: Pipeline<i64>,
    tickets: Vec<Ticket<i64>>,
    pushers: Vec<std::thread::JoinHandle<Vec<Ticket<i64>>>>,
    release: Arc<AtomicBool>,
}

fn enter(state: State, rng: &mut Rng) -> Scene {
    let release = Arc::new(AtomicBool::new(false));
    let nap = Duration::from_micros(rng.below(400));
    let stages = match state {
        State::Idle | State::Running | State::Draining => {
            vec![map(|x| x + 1), sleepy(nap), map(|x| x)]
        }
        State::Full | State::BlockedInPush | State::QueueFull => {
            vec![map(|x| x), sleepy(MS + nap)]
        }
        State::Failed => vec![map(|x| x), map(|x| panic!("always, {x} too"))],
        State::Restarting => vec![panicking(0), map(|x| x)],
        State::ReadingBack => vec![map(|x| x), Reading::factory(), map(|x| x)],
        State::Stuck => vec![map(|x| x), stuck(&release)],
    };
    let backoff = if state == State::Restarting { LIMIT } else { Duration::ZERO };
    let in_flight = 1 + rng.below(5) as usize;
    let mut options = Options::new().in_flight(in_flight).restart_backoff(backoff);
    options = match state {
        State::Failed => options.restarts(rng.below(2) as u32),
        State::QueueFull => options.queue(2).when_full(match rng.below(4) {
            0 => WhenFull::Wait,
            1 => WhenFull::Refuse,
            2 => WhenFull::DropOldest,
            _ => WhenFull::DropNewest,
        }),
        State::Stuck => options.stop_timeout(2 * MS),
        _ => options,
    };
    match rng.below(4) {
        0 => options = options.byte_budget(8 * (1 + rng.below(4) as usize)),
        1 => options = options.watchdog(2 * MS),
        2 => options = options.in_flight_auto(8),
        _ => {}
    }
    let pipeline = Pipeline::spawn(chain(stages), options).unwrap();
    let mut tickets = Vec::new();
    let mut pushers = Vec::new();
    let push = |items: i64| {
        let pipeline = pipeline.clone();
        let awaits = items % 2 == 0;
        std::thread::spawn(move || {
            let mut tickets = Vec::new();
            for n in 0..items {
                let pushed = if awaits {
                    block_on(pipeline.push_async(vec![n]))
                } else {
                    pipeline.push(vec![n])
                };
                match pushed {
                    Ok(ticket) => tickets.push(ticket),
                    Err(error) if error.is_full() => {}
                    Err(_) => break,
                }
            }
            tickets
        })
    };
    let fill = |tickets: &mut Vec<_>| {
        while let Ok(ticket) = pipeline.try_push(vec![0]) {
            tickets.push(ticket);
            if tickets.len() >= 12 {
                break;
            }
        }
    };
    match state {
        State::Idle => {}
        State::Running | State::Draining => pushers.push(push(1 + rng.below(60) as i64)),
        State::Full | State::QueueFull | State::ReadingBack | State::Stuck => fill(&mut tickets),
        State::BlockedInPush => {
            fill(&mut tickets);
            pushers.extend([push(50), push(51)]);
        }
        State::Failed | State::Restarting => {
            tickets.extend(pipeline.push(vec![0]).ok());
            pushers.push(push(20));
        }
    }
    std::thread::sleep(Duration::from_micros(rng.below(1500)));
    if state == State::Draining {
        let _ = pipeline.drain(Some(Instant::now()));
    }
    Scene { pipeline, tickets, pushers, release }
}

#[test]
fn scenario_28_a_thousand_stops_from_random_states_end_and_leave_no_ticket_without_a_result() {
    kit::quiet_actors();
    let mut rng = Rng(28);
    let mut slowest = (Duration::ZERO, State::Idle);
    for round in 0..1000_u64 {
        let state = STATES[(round % 10) as usize];
        let end = [End::Drain, End::Shutdown, End::Drop][rng.below(3) as usize];
        let seed = rng.below(1 << 30);
        // The watchdog: a round that hangs is a failure that names it.
        let took = std::panic::catch_unwind(move || {
            within(LIMIT, move || {
                let scene = enter(state, &mut Rng(seed));
                let begun = Instant::now();
                leave(scene, state, end);
                begun.elapsed()
            })
        });
        let took = took.unwrap_or_else(|panic| {
            let said = panic.downcast_ref::<String>().map_or("?", String::as_str);
            panic!("round {round}, {state:?}, {end:?}: {said}")
        });
        slowest = slowest.max_by_time(took, state);
    }
    assert!(slowest.0 < LIMIT / 3, "{slowest:?}");
}

trait Slowest {
    fn max_by_time(self, took: Duration, state: State) -> Self;
}

impl Slowest for (Duration, State) {
    fn max_by_time(self, took: Duration, state: State) -> Self {
        if took > self.0 { (took, state) } else { self }
    }
}

fn leave(scene: Scene, state: State, end: End) {
    let Scene { pipeline, mut tickets, mut pushers, release } = scene;
    if matches!(end, End::Drain) {
        // Bounded whether or not it can finish.
        let begun = Instant::now();
        let drained = pipeline.drain(Some(begun + 3 * MS));
        assert!(begun.elapsed() < LIMIT / 3);
        if matches!(state, State::Stuck) {
            assert!(tickets.is_empty() || drained.is_err());
        }
    }
    let spare = pipeline.clone();
    if matches!(end, End::Drop) {
        // Pushers that wait hold handles of their own: the stop has to come first.
        let last = pushers.is_empty();
        drop(pipeline);
        if last {
            drop(spare);
        } else {
            spare.shutdown();
            assert_eq!(spare.in_flight(), 0);
        }
    } else {
        let report = pipeline.shutdown();
        assert!(report.detached.is_empty() || state == State::Stuck, "{report:?}");
        // One that has taken a credit and sees the stop gives it back a moment later.
        tickets.extend(pushers.drain(..).flat_map(|pusher| pusher.join().unwrap()));
        let stats = spare.stats();
        assert_eq!(stats.admitted, stats.completed, "{stats:?}");
        assert_eq!((stats.in_flight, stats.admission.queued), (0, 0));
        assert!(matches!(stats.state, PipelineState::Stopped | PipelineState::Failed));
        assert!(spare.try_push(vec![1]).is_err());
    }
    for pusher in pushers {
        tickets.extend(pusher.join().unwrap());
    }
    for mut ticket in tickets {
        assert!(ticket.try_take().is_some(), "a ticket has no result");
    }
    release.store(true, Ordering::SeqCst);
}

#[test]
fn every_state_can_be_stopped_in_every_way() {
    kit::quiet_actors();
    let mut seed = 0;
    for state in STATES {
        for end in [End::Drain, End::Shutdown, End::Drop] {
            seed += 1;
            within(LIMIT, move || leave(enter(state, &mut Rng(seed)), state, end));
        }
    }
}

#[test]
fn a_thousand_panics_at_random_items_and_stages_lose_nothing() {
    const ITEMS: i64 = 12;
    kit::quiet_actors();
    within(4 * LIMIT, || {
        for round in 0..1000 {
            let mut rng = Rng(77 + round);
            let (stage, item) = (rng.below(3) as usize, rng.below(ITEMS as u64) as i64);
            let factories = (0..3).map(|n| if n == stage { panicking(item) } else { map(|x| x) });
            let options = Options::new().in_flight(1 + rng.below(8) as usize);
            let topology = chain(factories.collect());
            let pipeline =
                Pipeline::spawn(topology, options.restart_backoff(Duration::ZERO)).unwrap();
            let results: Vec<_> = pipeline.stream((0..ITEMS).map(|n| vec![n])).collect();
            assert_eq!(results.len(), ITEMS as usize);
            for (n, result) in (0..).zip(results) {
                match result {
                    Ok(value) => assert_eq!((value, n != item), (vec![n], true)),
                    Err(error) => assert_eq!((error.kind(), n), (ErrorKind::Panicked, item)),
                }
            }
            // The result of the last item is there before its actor is.
            while pipeline.stats().actors[stage].restarts == 0 {
                std::thread::sleep(MS / 4);
            }
            assert_eq!(pipeline.stats().actors[stage].restarts, 1, "round {round}");
        }
    });
}
