//! Stages that take a stated time and compute nothing: to measure the runtime itself, and to test
//! pipelines without the devices that they will have.
//!
//! A [`Synthetic`] says how long a firing takes: compute time, transfers in and out, fixed or
//! random, and how often it fails or panics. Everything random follows from the seed and the item's
//! number, so a run can be repeated, and told in advance with [`Synthetic::draw`].
//!
//! A firing ends at an absolute instant: the thread sleeps until shortly before it and spins the
//! rest. It is late by what the machine makes it late, and **never early**.
//!
//! ```
//! use std::time::Duration;
//! use brigade_actors::synthetic::Synthetic;
//! use brigade_actors::{Options, Pipeline, Topology};
//!
//! let copy = Synthetic::new(Duration::from_millis(1));
//! let compute = Synthetic::new(Duration::from_millis(2)).spread(Duration::from_micros(500)).seed(7);
//!
//! let mut builder = Topology::<i64>::builder();
//! let x = builder.source("x");
//! let a = builder.actor("copy", "dma:0", 1, 1, copy.factory());
//! let b = builder.actor("compute", "gpu:0", 1, 1, compute.factory());
//! let y = builder.sink("y");
//! builder.connect(x, a.input(0)).connect(a.output(0), b.input(0)).connect(b.output(0), y);
//! let pipeline = Pipeline::spawn(builder.build()?, Options::new())?;
//! for (n, result) in (0..20).zip(pipeline.stream((0..20).map(|n| vec![n]))) {
//!     assert_eq!(result?, [n]);
//! }
//! assert_eq!(compute.measured().firings, 20);
//! assert!(copy.measured().min >= Duration::from_millis(1));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::collections::VecDeque;
use std::panic::resume_unwind;
use std::time::{Duration, Instant};

use crate::error::ItemError;
use crate::outbox::Outbox;
use crate::packet::{Firing, Seq};
use crate::payload::Payload;
use crate::stage::{Factory, Stage, StageContext};
use crate::sync::{Arc, Condvar, Mutex, lock, thread, wait_until};

/// How long before the end of a firing the thread stops sleeping and spins.
const SPIN: Duration = Duration::from_micros(100);

/// Sleeps until `deadline`, spinning the last 100 µs or so, and gives the instant at which it
/// returned: never one before the deadline.
pub fn sleep_until(deadline: Instant) -> Instant {
    loop {
        let now = Instant::now();
        let left = deadline.saturating_duration_since(now);
        if left.is_zero() {
            return now;
        }
        if left > SPIN {
            thread::sleep(left - SPIN);
        } else {
            std::hint::spin_loop();
        }
    }
}

/// The longest that any part of a firing can be asked to take.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// What a synthetic stage does with one item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draw {
    /// Time for bringing the inputs to the device.
    pub transfer_in: Duration,
    /// Time for computing.
    pub compute: Duration,
    /// Time for bringing the outputs back.
    pub transfer_out: Duration,
    /// How it ends.
    pub fate: Fate,
}

impl Draw {
    /// The time of all three, one after the other.
    #[must_use]
    pub fn total(&self) -> Duration {
        self.transfer_in + self.compute + self.transfer_out
    }
}

/// How a firing of a synthetic stage ends, after its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It passes its inputs on.
    Value,
    /// It ends with an [`ItemError`].
    Failure,
    /// It panics.
    Panic,
}

/// What the firings of a synthetic stage took, as measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServiceTimes {
    /// Firings that ended, whatever their fate.
    pub firings: u64,
    /// Those of them that failed.
    pub failures: u64,
    /// Those of them that panicked.
    pub panics: u64,
    /// The sum of the times that were asked for.
    pub nominal: Duration,
    /// The sum of the times that they took, from the instant at which the device was free for them.
    pub total: Duration,
    /// The shortest of these times; zero before the first firing.
    pub min: Duration,
    /// The longest of these times.
    pub max: Duration,
}

impl ServiceTimes {
    /// The mean time of a firing; zero before the first.
    #[must_use]
    pub fn mean(&self) -> Duration {
        let nanos = self.total.as_nanos().checked_div(u128::from(self.firings)).unwrap_or(0);
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// What a synthetic stage is to do: see the [module](self).
///
/// Clones share their account: [`measured`](Self::measured) counts the firings of all stages that
/// were built from them.
#[derive(Clone, Debug)]
#[must_use]
pub struct Synthetic {
    compute: Duration,
    spread: Duration,
    transfer_in: Duration,
    transfer_out: Duration,
    failure_rate: f64,
    panic_rate: f64,
    slots: usize,
    seed: u64,
    account: Arc<Mutex<Account>>,
}

#[derive(Debug, Default)]
struct Account {
    times: ServiceTimes,
    /// Items whose last try failed here, with the number of tries: a try again is another draw.
    faulted: VecDeque<(u64, u32)>,
}

/// Faulted items that are remembered: those that are still about to be tried again.
const FAULTED: usize = 256;

impl Synthetic {
    /// A synchronous stage that computes for `compute`, never fails, and needs no transfers. This
    /// and every other time counts as a day where it is longer.
    pub fn new(compute: Duration) -> Self {
        Self {
            compute: compute.min(LONGEST),
            spread: Duration::ZERO,
            transfer_in: Duration::ZERO,
            transfer_out: Duration::ZERO,
            failure_rate: 0.0,
            panic_rate: 0.0,
            slots: 1,
            seed: 0,
            account: Arc::default(),
        }
    }

    /// Draws the compute time evenly from the stated time ± `spread`; a spread beyond that time
    /// counts as that time.
    pub fn spread(mut self, spread: Duration) -> Self {
        self.spread = spread;
        self
    }

    /// Time that the inputs take to the device.
    pub fn transfer_in(mut self, time: Duration) -> Self {
        self.transfer_in = time.min(LONGEST);
        self
    }

    /// Time that the outputs take back.
    pub fn transfer_out(mut self, time: Duration) -> Self {
        self.transfer_out = time.min(LONGEST);
        self
    }

    /// The share of firings that fail, 0 to 1.
    pub fn failure_rate(mut self, rate: f64) -> Self {
        self.failure_rate = rate;
        self
    }

    /// The share of firings that panic, 0 to 1. Panics come before failures.
    pub fn panic_rate(mut self, rate: f64) -> Self {
        self.panic_rate = rate;
        self
    }

    /// How many firings may be open at a time. More than one makes the stage **asynchronous**: a
    /// device with one queue for each of transfer in, compute and transfer out, so that the three
    /// overlap for different items; a thread of its own completes what is done.
    pub fn slots(mut self, slots: usize) -> Self {
        self.slots = slots.max(1);
        self
    }

    /// The seed of everything random.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// The same with other draws, and with the same account: stage `n` of several that are alike.
    /// Number 0 draws as this one does.
    pub fn nth(&self, n: u64) -> Self {
        let seed = if n == 0 { self.seed } else { mix(self.seed ^ mix(n)) };
        self.clone().seed(seed)
    }

    /// What the first try of item `item` will be.
    #[must_use]
    pub fn draw(&self, item: u64) -> Draw {
        self.draw_try(item, 0)
    }

    fn draw_try(&self, item: u64, tries: u32) -> Draw {
        let mut state = mix(self.seed ^ mix(item ^ mix(u64::from(tries))));
        let mut unit = || {
            state = mix(state);
            (state >> 11) as f64 / (1_u64 << 53) as f64
        };
        let (time, fate) = (unit(), unit());
        let spread = self.spread.min(self.compute);
        let compute = self.compute - spread + spread.mul_f64(2.0 * time);
        let fate = if fate < self.panic_rate {
            Fate::Panic
        } else if fate < self.panic_rate + self.failure_rate {
            Fate::Failure
        } else {
            Fate::Value
        };
        Draw { transfer_in: self.transfer_in, compute, transfer_out: self.transfer_out, fate }
    }

    /// The mean time for which one item keeps the device busy: what bounds the throughput. The
    /// transfers of an asynchronous stage overlap with the computing of other items.
    #[must_use]
    pub fn nominal(&self) -> Duration {
        if self.slots > 1 {
            self.compute.max(self.transfer_in).max(self.transfer_out)
        } else {
            self.compute + self.transfer_in + self.transfer_out
        }
    }

    /// Works for item `item` on this thread, as a synchronous stage does: returns when its time is
    /// over.
    ///
    /// # Errors
    ///
    /// If the item is to fail.
    ///
    /// # Panics
    ///
    /// If the item is to panic.
    pub fn work(&self, item: u64) -> Result<(), ItemError> {
        let began = Instant::now();
        let draw = self.start(item);
        let ended = sleep_until(began + draw.total());
        self.settle(item, draw, ended.saturating_duration_since(began))
    }

    /// What the coming try of an item will be.
    fn start(&self, item: u64) -> Draw {
        let account = lock(&self.account);
        let tries = account.faulted.iter().find(|(seq, _)| *seq == item).map_or(0, |(_, n)| *n);
        drop(account);
        self.draw_try(item, tries)
    }

    /// Books a firing that took `service`, and lets it have its fate: the end of a firing that was
    /// waited for by hand.
    ///
    /// # Errors
    ///
    /// If the item is to fail.
    ///
    /// # Panics
    ///
    /// If the item is to panic.
    pub fn settle(&self, item: u64, draw: Draw, service: Duration) -> Result<(), ItemError> {
        {
            let mut account = lock(&self.account);
            let times = &mut account.times;
            times.min = if times.firings == 0 { service } else { times.min.min(service) };
            times.max = times.max.max(service);
            times.total += service;
            times.nominal += draw.total();
            times.firings += 1;
            times.failures += u64::from(draw.fate == Fate::Failure);
            times.panics += u64::from(draw.fate == Fate::Panic);
            account.remember(item, draw.fate);
        }
        match draw.fate {
            Fate::Value => Ok(()),
            Fate::Failure => Err(ItemError::failed(format!("synthetic failure of item {item}"))),
            // Not by `panic!`: a panic that was asked for is not worth a report of the panic hook.
            Fate::Panic => resume_unwind(Box::new(format!("synthetic panic at item {item}"))),
        }
    }

    /// What the firings took so far.
    #[must_use]
    pub fn measured(&self) -> ServiceTimes {
        lock(&self.account).times
    }

    /// Builds stages that do this. A stage passes its inputs on: output port *k* gets what came in
    /// at port *k*, counted round where there are more outputs than inputs.
    pub fn factory<P: Payload>(&self) -> Factory<P> {
        let spec = self.clone();
        Box::new(move |context| {
            Ok(if spec.slots == 1 {
                Box::new(Direct { spec: spec.clone(), outputs: context.outputs })
            } else {
                Box::new(Queued::new(spec.clone(), &context)?)
            })
        })
    }
}

impl Account {
    fn remember(&mut self, item: u64, fate: Fate) {
        let known = self.faulted.iter().position(|(seq, _)| *seq == item);
        match (known, fate) {
            (None, Fate::Value) => {}
            (Some(place), Fate::Value) => {
                self.faulted.remove(place);
            }
            (Some(place), _) => self.faulted[place].1 += 1,
            (None, _) => {
                if self.faulted.len() == FAULTED {
                    self.faulted.pop_front();
                }
                self.faulted.push_back((item, 1));
            }
        }
    }
}

/// SplitMix64: spreads numbers that differ in one bit.
const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// The number of an item, for the draw; that of a child is its own.
fn key(seq: Seq) -> u64 {
    seq.path().iter().fold(seq.number(), |key, place| mix(key ^ mix(u64::from(*place))))
}

/// Emits inputs as outputs for the open firing `seq`.
fn pass_on<P: Payload>(mut inputs: Vec<P>, outputs: usize, seq: Seq, out: &mut Outbox<P>) {
    let count = inputs.len();
    for port in count..outputs {
        if let Some(payload) = inputs.get(port % count.max(1)).map(Payload::share) {
            out.emit_for(seq, port, payload);
        }
    }
    for (port, payload) in inputs.drain(..).enumerate().take(outputs) {
        out.emit_for(seq, port, payload);
    }
    if outputs == 0 {
        out.finish(seq);
    }
    out.recycle(inputs);
}

/// The synchronous stage.
struct Direct {
    spec: Synthetic,
    outputs: usize,
}

impl<P: Payload> Stage<P> for Direct {
    fn submit(&mut self, firing: Firing<P>, out: &mut Outbox<P>) -> Result<(), ItemError> {
        self.spec.work(key(firing.seq))?;
        pass_on(firing.inputs, self.outputs, firing.seq, out);
        Ok(())
    }
}

/// The asynchronous stage: three queues in a row, each in order.
struct Queued<P> {
    spec: Synthetic,
    outputs: usize,
    /// When each of the queues is free.
    free: [Instant; 3],
    open: VecDeque<Pending<P>>,
    timer: Timer,
}

struct Pending<P> {
    seq: Seq,
    inputs: Vec<P>,
    draw: Draw,
    began: Instant,
    due: Instant,
}

impl<P> Queued<P> {
    fn new(spec: Synthetic, context: &StageContext) -> Result<Self, ItemError> {
        let waker = context.waker.clone();
        let timer = Timer::start(&context.actor, move || waker.wake())?;
        let free = [Instant::now(); 3];
        Ok(Self { spec, outputs: context.outputs, free, open: VecDeque::new(), timer })
    }
}

impl<P: Payload> Stage<P> for Queued<P> {
    fn slots(&self) -> usize {
        self.spec.slots
    }

    fn submit(&mut self, firing: Firing<P>, out: &mut Outbox<P>) -> Result<(), ItemError> {
        let draw = self.spec.start(key(firing.seq));
        let began = Instant::now().max(self.free[0]);
        let mut due = began;
        let times = [draw.transfer_in, draw.compute, draw.transfer_out];
        for (free, time) in self.free.iter_mut().zip(times) {
            due = due.max(*free) + time;
            *free = due;
        }
        let Firing { seq, inputs, .. } = firing;
        self.open.push_back(Pending { seq, inputs, draw, began, due });
        self.timer.set(due);
        out.defer();
        Ok(())
    }

    fn poll(&mut self, out: &mut Outbox<P>) -> Result<(), ItemError> {
        while self.open.front().is_some_and(|pending| pending.due <= Instant::now())
            && let Some(Pending { seq, inputs, draw, began, .. }) = self.open.pop_front()
        {
            match self.spec.settle(key(seq), draw, began.elapsed()) {
                Ok(()) => pass_on(inputs, self.outputs, seq, out),
                Err(error) => out.fail(seq, error),
            }
        }
        Ok(())
    }
}

/// Calls at stated instants, from a thread of its own. The instants rise.
struct Timer {
    shared: Arc<TimerShared>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Default)]
struct TimerShared {
    state: Mutex<TimerState>,
    changed: Condvar,
}

#[derive(Default)]
struct TimerState {
    due: VecDeque<Instant>,
    ended: bool,
}

impl Timer {
    fn start(name: &str, call: impl Fn() + Send + 'static) -> Result<Self, ItemError> {
        let shared = Arc::<TimerShared>::default();
        let inside = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name(format!("{name} timer"))
            .spawn(move || {
                while let Some(due) = inside.next() {
                    sleep_until(due);
                    call();
                }
            })
            .map_err(ItemError::from_error)?;
        Ok(Self { shared, thread: Some(thread) })
    }

    fn set(&self, due: Instant) {
        lock(&self.shared.state).due.push_back(due);
        self.shared.changed.notify_one();
    }
}

impl TimerShared {
    /// Waits until shortly before the next instant, and gives it; `None` at the end.
    fn next(&self) -> Option<Instant> {
        let mut state = lock(&self.state);
        loop {
            if state.ended {
                return None;
            }
            let wake = state.due.front().map(|due| due.checked_sub(SPIN).unwrap_or(*due));
            if wake.is_some_and(|wake| wake <= Instant::now()) {
                return state.due.pop_front();
            }
            state = wait_until(&self.changed, state, wake);
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        lock(&self.shared.state).ended = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn draws_repeat_and_keep_their_rates_and_range() {
        let spec = Synthetic::new(10 * MS)
            .spread(2 * MS)
            .failure_rate(0.2)
            .panic_rate(0.1)
            .transfer_in(MS)
            .seed(3);
        let draws: Vec<_> = (0..10_000).map(|n| spec.draw(n)).collect();
        assert_eq!(draws, (0..10_000).map(|n| spec.draw(n)).collect::<Vec<_>>());
        let share = |fate| draws.iter().filter(|d| d.fate == fate).count() as f64 / 10_000.0;
        assert!((share(Fate::Failure) - 0.2).abs() < 0.02, "{}", share(Fate::Failure));
        assert!((share(Fate::Panic) - 0.1).abs() < 0.02, "{}", share(Fate::Panic));
        assert!(draws.iter().all(|d| (8 * MS..=12 * MS).contains(&d.compute)));
        let mean = draws.iter().map(|d| d.compute).sum::<Duration>() / 10_000;
        assert!(mean.abs_diff(10 * MS) < MS / 10, "{mean:?}");
        assert!(
            draws.iter().any(|d| d.compute < 9 * MS) && draws.iter().any(|d| d.compute > 11 * MS)
        );
        assert_eq!(draws[0].total(), draws[0].compute + MS);
        let other = spec.clone().seed(4);
        assert_ne!(draws, (0..10_000).map(|n| other.draw(n)).collect::<Vec<_>>());
    }

    #[test]
    fn a_try_again_is_another_draw() {
        let spec = Synthetic::new(Duration::ZERO).failure_rate(0.5).seed(1);
        let failing = (0..100).find(|n| spec.draw(*n).fate == Fate::Failure).unwrap();
        let tries = (1..50).find(|_| spec.work(failing).is_ok());
        assert!(tries.is_some_and(|n| n > 1), "{tries:?}");
        // It passed, so that its story begins anew.
        assert!(spec.work(failing).is_err());
        let account = lock(&spec.account);
        assert_eq!(account.faulted, [(failing, 1)]);
    }

    #[test]
    fn the_nominal_time_of_an_asynchronous_stage_is_its_longest_queue() {
        let spec = Synthetic::new(3 * MS).transfer_in(MS).transfer_out(4 * MS);
        assert_eq!(spec.nominal(), 8 * MS);
        assert_eq!(spec.slots(2).nominal(), 4 * MS);
    }

    #[test]
    fn times_too_large_for_a_clock_do_not_overflow_the_draw() {
        let spec = Synthetic::new(Duration::from_secs(1)).spread(Duration::MAX);
        assert!(spec.draw(0).compute <= Duration::from_secs(2));
    }
}
