//! The working state of one actor on a compiled segment, synchronous or asynchronous.

use std::fmt;
use std::sync::Arc;
use std::task::{Wake, Waker};
use std::thread::Thread;
use std::time::Duration;

use crate::error::{Result, err};
use crate::tensor::Value;

/// What an instance is made for.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct InstanceOptions {
    /// Makes whoever uses the instance call [`Instance::poll`]. A completion callback does nothing
    /// but wake it; waking once too often does no harm.
    pub waker: Waker,
    /// Where each output is needed, in the segment's order. An output beyond its end is needed on
    /// the host.
    pub outputs: Vec<Delivery>,
    /// The most CPU threads that it may compute on: what the CPU budget of a system granted. `None`:
    /// as many as it was compiled for. It changes no result.
    pub threads: Option<usize>,
}

impl InstanceOptions {
    /// For the thread that calls this, with every output on the host.
    #[must_use]
    pub fn for_this_thread() -> Self {
        Self { waker: thread_waker(), outputs: Vec::new(), threads: None }
    }

    /// With this waker.
    #[must_use]
    pub fn waker(mut self, waker: Waker) -> Self {
        self.waker = waker;
        self
    }

    /// With outputs that are needed there.
    #[must_use]
    pub fn outputs(mut self, outputs: Vec<Delivery>) -> Self {
        self.outputs = outputs;
        self
    }

    /// With at most so many CPU threads.
    #[must_use]
    pub const fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
        self
    }

    /// Where the output with this index is needed.
    pub fn delivery(&self, output: usize) -> Delivery {
        self.outputs.get(output).copied().unwrap_or_default()
    }
}

/// Where an output of a segment is needed. It is decided when a pipeline is built, from who reads
/// the output: a neighbour on the same device takes it where it lies, everybody else takes a copy
/// on the host, which the producer makes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Delivery {
    /// On the host: a [`Value::Tensor`].
    #[default]
    Host,
    /// In the device's own memory: a [`Value::Resident`], which may leave before it is complete.
    Device,
    /// In both: a [`Value::Resident`] with a copy on the host, when both are complete.
    Both,
}

impl Delivery {
    /// Whether it is needed on the host.
    pub const fn on_host(self) -> bool {
        matches!(self, Self::Host | Self::Both)
    }

    /// Whether it is needed in the device's memory.
    pub const fn on_device(self) -> bool {
        matches!(self, Self::Device | Self::Both)
    }
}

/// What became of an item that was submitted.
#[derive(Debug)]
pub enum Submitted {
    /// Its outputs, in the segment's order: the instance has nothing more to do with it.
    Done(Vec<Value>),
    /// It is under way: [`Instance::poll`] gives its outputs.
    Pending,
}

/// The working state of one actor on a compiled segment.
///
/// A synchronous device implements [`run`](Self::run) alone. An asynchronous one implements
/// [`slots`](Self::slots), [`submit`](Self::submit) and [`poll`](Self::poll), and its `run` is
/// [`run_submitted`].
///
/// Inputs of another device come as tensors on the host; those of a neighbour on the same device
/// may come as [`Value::Resident`].
pub trait Instance {
    /// How many items it can work on at once: sets of working buffers.
    fn slots(&self) -> usize {
        1
    }

    /// Computes one item, inputs in the segment's order. Not called while items are under way.
    ///
    /// # Errors
    /// If the inputs are not what was declared, or a kernel fails; names the node.
    fn run(&mut self, inputs: Vec<Value>) -> Result<Vec<Value>>;

    /// Starts to compute an item, which `item` names from now on; no other item that is under way
    /// has that number. Called while fewer items than [`slots`](Self::slots) are under way, and
    /// does not wait for the device.
    ///
    /// # Errors
    /// As [`Self::run`]; the item is not under way then.
    fn submit(&mut self, item: u64, inputs: Vec<Value>) -> Result<Submitted> {
        let _ = item;
        self.run(inputs).map(Submitted::Done)
    }

    /// Gives `finished` each item that has come to its end since, with its outputs or its own
    /// error. Called after the waker was woken, on the thread that submits; does not wait.
    ///
    /// # Errors
    /// What ends every item that is under way, such as a device that was lost.
    fn poll(&mut self, finished: &mut dyn FnMut(u64, Result<Vec<Value>>)) -> Result<()> {
        let _ = finished;
        Ok(())
    }

    /// How long the device computed for an item that the last call of [`poll`](Self::poll) gave, where
    /// that is known apart from what else passed: a queue in front of the device, a network. Asked
    /// right after that call; figures then count it as computing, and the rest as waiting.
    fn computed(&mut self, item: u64) -> Option<Duration> {
        let _ = item;
        None
    }

    /// Says that nobody wants the result of this item any more. It still comes to its end by
    /// [`poll`](Self::poll), with outputs or an error.
    fn cancel(&mut self, item: u64) {
        let _ = item;
    }

    /// As [`Self::run`]; `observe` sees the name, operator and outputs of each node. A device that
    /// cannot look inside runs without it.
    ///
    /// # Errors
    /// As [`Self::run`].
    fn run_observed(
        &mut self,
        inputs: Vec<Value>,
        observe: &mut dyn FnMut(&str, &str, &[Value]),
    ) -> Result<Vec<Value>> {
        let _ = observe;
        self.run(inputs)
    }
}

impl fmt::Debug for dyn Instance + '_ {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Instance")
    }
}

/// How long a wait for a completion goes without a look, in case the instance wakes somebody else.
const LOOK_AGAIN: Duration = Duration::from_millis(5);

/// Submits an item and waits for it on this thread: what [`Instance::run`] of an asynchronous
/// device is. It wakes fastest if the instance was made with [`thread_waker`] of this thread.
///
/// # Errors
/// The item's own error.
pub fn run_submitted(
    instance: &mut (impl Instance + ?Sized),
    inputs: Vec<Value>,
) -> Result<Vec<Value>> {
    const ITEM: u64 = u64::MAX;
    if let Submitted::Done(outputs) = instance.submit(ITEM, inputs)? {
        return Ok(outputs);
    }
    loop {
        let mut result = None;
        let mut stray = false;
        instance.poll(&mut |item, outcome| {
            if item == ITEM {
                result = Some(outcome);
            } else {
                stray = true;
            }
        })?;
        if stray {
            return Err(err!(Internal, "an item was run while others were under way"));
        }
        if let Some(result) = result {
            return result;
        }
        std::thread::park_timeout(LOOK_AGAIN);
    }
}

/// A waker that unparks the thread that calls this.
#[must_use]
pub fn thread_waker() -> Waker {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    Waker::from(Arc::new(Unpark(std::thread::current())))
}
