//! What the integration tests share: stages over integers, chains, a watchdog, an executor.
#![allow(dead_code, reason = "each test binary uses its part")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use brigade_actors::{Factory, ItemError, Options, Pipeline, Topology, stage_fn};

pub(crate) type Inputs = Vec<i64>;

pub(crate) const MS: Duration = Duration::from_millis(1);

/// An actor of one input and one output.
pub(crate) fn map(function: impl Fn(i64) -> i64 + Clone + Send + 'static) -> Factory<i64> {
    stage_fn(move |v: Inputs| Ok(vec![function(v[0])]))
}

/// Passes its input on after `time`.
pub(crate) fn sleepy(time: Duration) -> Factory<i64> {
    stage_fn(move |v: Inputs| {
        std::thread::sleep(time);
        Ok(v)
    })
}

/// Fails for multiples of `n`, and says which.
pub(crate) fn failing(n: i64, what: &'static str) -> Factory<i64> {
    stage_fn(
        move |v: Inputs| {
            if v[0] % n == 0 { Err(ItemError::failed(format!("{what} {}", v[0]))) } else { Ok(v) }
        },
    )
}

/// Panics at this input.
pub(crate) fn panicking(at: i64) -> Factory<i64> {
    map(move |x| {
        assert!(x != at, "boom at {x}");
        x
    })
}

/// A chain between source `x` and sink `y`: actor `aN` on device `device(N)`.
pub(crate) fn chain_on(
    factories: Vec<Factory<i64>>,
    device: impl Fn(usize) -> String,
) -> Topology<i64> {
    let mut builder = Topology::builder();
    let mut last = builder.source("x");
    for (n, factory) in factories.into_iter().enumerate() {
        let actor = builder.actor(format!("a{n}"), device(n), 1, 1, factory);
        builder.connect(last, actor.input(0));
        last = actor.output(0);
    }
    let y = builder.sink("y");
    builder.connect(last, y);
    builder.build().unwrap()
}

/// A chain whose actors have a device each.
pub(crate) fn chain(factories: Vec<Factory<i64>>) -> Topology<i64> {
    chain_on(factories, |n| format!("cpu:{n}"))
}

pub(crate) fn spawn(topology: Topology<i64>, in_flight: usize) -> Pipeline<i64> {
    Pipeline::spawn(topology, Options::new().in_flight(in_flight)).unwrap()
}

/// Runs `body` on a thread; fails if it has not ended after `limit`.
pub(crate) fn within<T: Send + 'static>(
    limit: Duration,
    body: impl FnOnce() -> T + Send + 'static,
) -> T {
    let (sender, receiver) = channel();
    let thread = std::thread::spawn(move || {
        let _ = sender.send(body());
    });
    match receiver.recv_timeout(limit) {
        Ok(value) => {
            thread.join().unwrap();
            value
        }
        Err(RecvTimeoutError::Disconnected) => {
            std::panic::resume_unwind(thread.join().unwrap_err())
        }
        Err(RecvTimeoutError::Timeout) => panic!("not done after {limit:?}"),
    }
}

/// The smallest executor: parks the thread until it is woken.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(output) => return output,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// A small generator of repeatable pseudo-random numbers.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    /// A number below `limit`.
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Prints no panics of the threads of actors `a0`, `a1` and so on: they are what is being tested.
pub(crate) fn quiet_actors() {
    std::panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        let digits = thread.name().and_then(|name| name.strip_prefix('a')).unwrap_or("-");
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            eprintln!("{info}");
        }
    }));
}
