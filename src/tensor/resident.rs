//! Tensors that lie in the memory of a device, and the event that says when they are complete.
//!
//! Nobody can read such a tensor too early: its memory is given out to whoever orders work behind
//! its producer on the same queue ([`Resident::queued`]), and to everybody else only once its event
//! has come ([`Resident::completed`]).

use std::any::Any;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use super::{DType, Shape, Tensor};
use crate::error::{Result, err};

/// Something that happens once, on a device: the end of a computation or of a copy.
///
/// ```
/// use brigade::tensor::Event;
/// let (signal, event) = Event::pair();
/// assert!(!event.is_done());
/// signal.complete(Ok(()));
/// assert!(event.outcome().unwrap().is_ok());
/// ```
#[derive(Clone)]
pub struct Event(Arc<Shared>);

/// The side of an [`Event`] that makes it happen. Dropping it makes the event an error, so a wait
/// for an event always ends.
#[derive(Debug)]
pub struct Signal(Option<Event>);

struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

enum State {
    Pending(Vec<Waker>),
    Done(Result<()>),
}

impl Event {
    /// An event that has not happened, and what makes it happen.
    pub fn pair() -> (Signal, Self) {
        let state = Mutex::new(State::Pending(Vec::new()));
        let event = Self(Arc::new(Shared { state, changed: Condvar::new() }));
        (Signal(Some(event.clone())), event)
    }

    /// An event that has happened.
    pub fn done() -> Self {
        let (signal, event) = Self::pair();
        signal.complete(Ok(()));
        event
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it has happened, well or badly.
    pub fn is_done(&self) -> bool {
        matches!(*self.state(), State::Done(_))
    }

    /// How it went; `None` while it has not happened.
    pub fn outcome(&self) -> Option<Result<()>> {
        match &*self.state() {
            State::Pending(_) => None,
            State::Done(outcome) => Some(outcome.clone()),
        }
    }

    /// Waits until it has happened, no longer than `timeout`; `None` if it has not by then.
    pub fn wait(&self, timeout: Duration) -> Option<Result<()>> {
        let until = Instant::now().checked_add(timeout);
        let mut state = self.state();
        loop {
            if let State::Done(outcome) = &*state {
                return Some(outcome.clone());
            }
            let left = match until {
                None => Duration::from_secs(3600),
                Some(until) => until.checked_duration_since(Instant::now())?,
            };
            let changed = &self.0.changed;
            state = changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Wakes `waker` once it has happened: at once if it has.
    pub fn wake_when_done(&self, waker: &Waker) {
        match &mut *self.state() {
            State::Pending(wakers) => wakers.push(waker.clone()),
            State::Done(_) => waker.wake_by_ref(),
        }
    }
}

impl Signal {
    /// Makes the event happen.
    pub fn complete(mut self, outcome: Result<()>) {
        self.finish(outcome);
    }

    fn finish(&mut self, outcome: Result<()>) {
        let Some(event) = self.0.take() else { return };
        let before = std::mem::replace(&mut *event.state(), State::Done(outcome));
        event.0.changed.notify_all();
        if let State::Pending(wakers) = before {
            for waker in wakers {
                waker.wake();
            }
        }
    }
}

impl Drop for Signal {
    fn drop(&mut self) {
        self.finish(Err(err!(Device, "the device gave up work before it was complete")));
    }
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.outcome() {
            None => "pending",
            Some(Ok(())) => "done",
            Some(Err(_)) => "failed",
        };
        write!(f, "Event({state})")
    }
}

/// One queue of one device: what is submitted to it runs in the order of submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueId(u64);

impl QueueId {
    /// A queue that is no other one of this process.
    #[must_use]
    pub fn unique() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A tensor in the memory of a device: a handle, which clones share.
///
/// The memory is freed, or goes back to its producer, with the last handle. A handle may carry a
/// copy on the host for those who read it there.
///
/// ```
/// use std::sync::Arc;
/// use brigade::DType;
/// use brigade::tensor::{Event, QueueId, Resident};
///
/// let queue = QueueId::unique();
/// let (signal, ready) = Event::pair();
/// let memory = Arc::new(vec![0_u8; 8]); // whatever the device calls its memory
/// let x = Resident::new("npu:0", queue, DType::F32, [2], memory, ready);
/// assert!(x.queued::<Vec<u8>>(queue).is_some(), "in the order of its own queue");
/// assert!(x.completed::<Vec<u8>>().is_none(), "not before it is complete");
/// signal.complete(Ok(()));
/// assert_eq!(x.completed::<Vec<u8>>().unwrap()?.len(), 8);
/// # Ok::<(), brigade::Error>(())
/// ```
#[derive(Clone)]
pub struct Resident {
    dtype: DType,
    shape: Shape,
    device: Arc<str>,
    queue: QueueId,
    memory: Arc<dyn Any + Send + Sync>,
    ready: Event,
    host: Option<Tensor>,
}

impl Resident {
    /// A tensor in `memory` of `device` that the work submitted to `queue` so far makes; `ready`
    /// happens when it is complete.
    pub fn new(
        device: impl Into<Arc<str>>,
        queue: QueueId,
        dtype: DType,
        shape: impl Into<Shape>,
        memory: Arc<dyn Any + Send + Sync>,
        ready: Event,
    ) -> Self {
        let (device, shape) = (device.into(), shape.into());
        Self { dtype, shape, device, queue, memory, ready, host: None }
    }

    /// With a copy on the host, of the same dtype and shape.
    #[must_use]
    pub fn with_host(mut self, copy: Tensor) -> Self {
        debug_assert!(copy.dtype() == self.dtype && *copy.shape() == self.shape);
        self.host = Some(copy);
        self
    }

    /// The copy on the host, if there is one.
    pub fn host(&self) -> Option<&Tensor> {
        self.host.as_ref()
    }

    /// The name of the device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// Bytes of the elements.
    pub fn bytes(&self) -> usize {
        self.shape.elements() * self.dtype.size()
    }

    /// Happens when it is complete.
    pub fn ready(&self) -> &Event {
        &self.ready
    }

    /// The memory, for work that is submitted to `queue` from now on: `None` if the tensor is made
    /// on another queue, or its memory is not a `T`.
    pub fn queued<T: Any>(&self, queue: QueueId) -> Option<&T> {
        if self.queue == queue { self.memory.downcast_ref() } else { None }
    }

    /// The memory, for everybody: `None` before the tensor is complete, or if its memory is not a
    /// `T`; an error if the work that makes it failed.
    pub fn completed<T: Any>(&self) -> Option<Result<&T>> {
        match self.ready.outcome()? {
            Ok(()) => self.memory.downcast_ref().map(Ok),
            Err(e) => Some(Err(e)),
        }
    }

    /// As [`completed`](Self::completed), shared; `None` if the work that makes it failed, too.
    #[cfg_attr(not(feature = "cluster"), allow(dead_code))]
    pub(crate) fn shared<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.ready.outcome()?.ok()?;
        Arc::clone(&self.memory).downcast().ok()
    }

    /// Dtype, shape and device in words, such as `f32[2,3] on wgpu:0`.
    pub fn describe(&self) -> String {
        format!("{}{} on {}", self.dtype, self.shape, self.device)
    }
}

impl PartialEq for Resident {
    /// Whether two handles share memory.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.memory, &other.memory) && self.shape == other.shape
    }
}

impl fmt::Debug for Resident {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.describe(), self.ready)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Wake;

    struct Count(AtomicU64);

    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn an_event_wakes_those_who_asked_before_and_after() {
        let count = Arc::new(Count(AtomicU64::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let (signal, event) = Event::pair();
        event.wake_when_done(&waker);
        assert_eq!(count.0.load(Ordering::SeqCst), 0);
        assert!(event.wait(Duration::from_millis(1)).is_none());
        signal.complete(Ok(()));
        assert_eq!(count.0.load(Ordering::SeqCst), 1);
        event.wake_when_done(&waker);
        assert_eq!(count.0.load(Ordering::SeqCst), 2);
        assert!(event.wait(Duration::ZERO).unwrap().is_ok());
    }

    #[test]
    fn a_dropped_signal_ends_every_wait() {
        let (signal, event) = Event::pair();
        let waiter = {
            let event = event.clone();
            std::thread::spawn(move || event.wait(Duration::from_secs(20)))
        };
        drop(signal);
        assert!(waiter.join().unwrap().unwrap().is_err());
        let memory = Arc::new(7_u32);
        let x = Resident::new("npu:0", QueueId::unique(), DType::F32, [1], memory, event);
        assert!(x.completed::<u32>().unwrap().is_err(), "what failed is not read");
        assert!(x.queued::<u32>(QueueId::unique()).is_none(), "another queue has another order");
    }
}
