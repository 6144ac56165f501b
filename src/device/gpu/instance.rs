//! Items under way on a device: slots of buffers, one submission an item.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Waker;

use super::Target;
use super::segment::{Ready, Segment, on_host};
use crate::device::{Delivery, Instance, InstanceOptions, Submitted, run_submitted};
use crate::error::{Result, bail, err};
use crate::gpu::{OutputPlace, narrowed, widened};
use crate::tensor::{BufferPool, Event, Resident, Shape, Signal, Tensor, Value};

/// Items that an instance has under way: one computes, one is uploaded, one is read back.
const SLOTS: usize = 3;

/// Sets of extents that an instance keeps slots for.
const MOST_SHAPES: usize = 4;

/// What goes into a buffer of a slot. Nothing with no elements is fed.
pub(in crate::device) struct Feed<'a> {
    /// The buffer.
    pub(in crate::device) buffer: usize,
    /// Where it comes from.
    pub(in crate::device) from: Fed<'a>,
}

/// Where an input comes from.
pub(in crate::device) enum Fed<'a> {
    /// The host, in the form that kernels read.
    Host(Cow<'a, [u8]>),
    /// The memory of a device.
    Resident(&'a Resident),
}

/// How slots for a set of extents are laid out.
#[derive(Debug, Default)]
pub(in crate::device) struct Layout {
    /// The buffers that may leave with items.
    leaving: Vec<usize>,
    /// The copies for the host: the buffer, its bytes, and where it lies in what is read back.
    pub(in crate::device) reads: Vec<Read>,
    /// For each output its place among the reads.
    read_of: Vec<Option<usize>>,
    /// The most bytes that an item uploads.
    pub(in crate::device) upload_bytes: u64,
    /// The bytes that are read back.
    pub(in crate::device) read_bytes: u64,
}

/// A copy for the host.
#[derive(Clone, Copy, Debug)]
pub(in crate::device) struct Read {
    pub(in crate::device) buffer: usize,
    pub(in crate::device) bytes: u64,
    pub(in crate::device) offset: u64,
}

impl Layout {
    fn new<T: Target>(ready: &Ready<T>, options: &InstanceOptions) -> Self {
        let mut layout = Self::default();
        let lowered = &ready.lowered;
        for place in &lowered.inputs {
            layout.upload_bytes += lowered.buffers[place.buffer];
        }
        for (i, output) in lowered.outputs.iter().enumerate() {
            let OutputPlace::Buffer { buffer, shape, .. } = output else {
                layout.read_of.push(None);
                continue;
            };
            let needed = options.delivery(i);
            if needed.on_device() && !layout.leaving.contains(buffer) {
                layout.leaving.push(*buffer);
            }
            layout.read_of.push(needed.on_host().then_some(layout.reads.len()));
            if needed.on_host() {
                let (buffer, bytes, offset) = (*buffer, bytes_of(shape), layout.read_bytes);
                layout.reads.push(Read { buffer, bytes, offset });
                layout.read_bytes += bytes;
            }
        }
        layout
    }

    /// Whether a buffer holds an output, for the host or for a neighbour.
    #[cfg_attr(not(feature = "_cuda"), allow(dead_code))]
    pub(in crate::device) fn leaves(&self, buffer: usize) -> bool {
        self.leaving.contains(&buffer) || self.reads.iter().any(|read| read.buffer == buffer)
    }
}

/// Bytes of a tensor on the device: four for each element.
fn bytes_of(shape: &Shape) -> u64 {
    shape.elements() as u64 * 4
}

/// What became of an item, for the actor.
#[derive(Debug, Default)]
struct Flags {
    done: AtomicBool,
    failed: AtomicBool,
}

/// Says that an item is done. Dropped before, it says that the item failed.
#[derive(Debug)]
pub(in crate::device) struct Completion {
    flags: Arc<Flags>,
    signals: Vec<Signal>,
    waker: Waker,
    over: bool,
}

/// Says that an item will have failed when it is done.
#[cfg_attr(not(feature = "wgpu"), allow(dead_code))]
#[derive(Clone, Debug)]
pub(in crate::device) struct Failure(Arc<Flags>);

#[cfg_attr(not(feature = "wgpu"), allow(dead_code))]
impl Failure {
    /// It will.
    pub(in crate::device) fn set(&self) {
        self.0.failed.store(true, Ordering::Release);
    }
}

impl Completion {
    /// The item is done, and everything that was ordered for it has happened.
    pub(in crate::device) fn complete(mut self) {
        self.over = true;
        self.flags.done.store(true, Ordering::Release);
        for signal in self.signals.drain(..) {
            signal.complete(Ok(()));
        }
        self.waker.wake_by_ref();
    }

    /// For what may fail beforehand.
    #[cfg_attr(not(feature = "wgpu"), allow(dead_code))]
    pub(in crate::device) fn failure(&self) -> Failure {
        Failure(Arc::clone(&self.flags))
    }
}

impl Drop for Completion {
    fn drop(&mut self) {
        if !self.over {
            self.flags.failed.store(true, Ordering::Release);
            self.flags.done.store(true, Ordering::Release);
            // Before the waker, as in `complete`: who is woken finds its event.
            self.signals.clear();
            self.waker.wake_by_ref();
        }
    }
}

/// An item in a slot.
struct Job {
    /// Its number, unless its outputs have left already.
    item: Option<u64>,
    /// The outputs that stay on the device.
    residents: Vec<Option<Resident>>,
    /// What it reads of other slots, which are not used again before it is done.
    _reads: Vec<Resident>,
}

/// A slot, and what is in it.
struct Place<T: Target> {
    slot: T::Slot,
    flags: Arc<Flags>,
    job: Option<Job>,
}

/// The slots for one set of extents.
struct Bench<T: Target> {
    ready: Arc<Ready<T>>,
    layout: Layout,
    places: Vec<Place<T>>,
    used: u64,
}

/// The working state of an actor.
struct State<T: Target> {
    segment: Arc<Segment<T>>,
    options: InstanceOptions,
    lane: T::Lane,
    benches: Vec<Bench<T>>,
    pool: BufferPool,
    clock: u64,
}

/// The state, until it is dropped: then the device takes it. The thread that drops an instance may
/// be at its own end, when a driver's thread-local state is gone already.
pub(super) struct LaunchedInstance<T: Target>(Option<State<T>>);

impl<T: Target> LaunchedInstance<T> {
    pub(super) fn new(segment: Arc<Segment<T>>, options: InstanceOptions) -> Result<Self> {
        segment.target.fault()?;
        let lane = segment.target.lane(&options.waker)?;
        let deliveries = (0..segment.outputs()).map(|i| match options.delivery(i) {
            Delivery::Device if segment.is_watched(i) => Delivery::Both,
            other => other,
        });
        let deliveries = deliveries.collect();
        let options = options.outputs(deliveries);
        let (benches, pool) = (Vec::new(), BufferPool::default());
        Ok(Self(Some(State { segment, options, lane, benches, pool, clock: 0 })))
    }

    fn state(&mut self) -> Result<&mut State<T>> {
        self.0.as_mut().ok_or_else(|| err!(Internal, "the instance was dropped"))
    }
}

impl<T: Target> Drop for LaunchedInstance<T> {
    fn drop(&mut self) {
        if let Some(State { segment, lane, benches, .. }) = self.0.take() {
            let target = Arc::clone(&segment.target);
            target.retire(lane, Box::new((benches, segment)));
        }
    }
}

impl<T: Target> State<T> {
    /// The slots for these inputs.
    fn bench(&mut self, inputs: &[Value]) -> Result<usize> {
        self.clock += 1;
        if let Some(at) = self.benches.iter().position(|b| b.ready.is_for(inputs)) {
            self.benches[at].used = self.clock;
            return Ok(at);
        }
        let ready = self.segment.ready_for(inputs)?;
        if self.benches.len() >= MOST_SHAPES {
            let idle = self
                .benches
                .iter()
                .enumerate()
                .filter(|(_, b)| b.places.iter().all(|p| p.job.is_none()));
            if let Some((oldest, _)) = idle.min_by_key(|(_, b)| b.used) {
                self.benches.swap_remove(oldest);
            }
        }
        let layout = Layout::new(&ready, &self.options);
        self.benches.push(Bench { ready, layout, places: Vec::new(), used: self.clock });
        Ok(self.benches.len() - 1)
    }

    /// A slot in which no item is, and whose buffers nobody holds; a new one if there is none.
    /// There are never more than items in flight.
    fn free_place(&mut self, bench: usize) -> Result<usize> {
        let target = &self.segment.target;
        let bench = &mut self.benches[bench];
        for place in &mut bench.places {
            let over = place.flags.done.load(Ordering::Acquire);
            if over && place.job.as_ref().is_some_and(|job| job.item.is_none()) {
                place.job = None;
            }
        }
        // A slot in which an item failed is of no more use.
        bench.places.retain(|p| p.job.is_some() || !p.flags.failed.load(Ordering::Acquire));
        let free = |place: &Place<T>| {
            place.job.is_none()
                && !bench.layout.leaving.iter().any(|b| target.is_held(&place.slot, *b))
        };
        if let Some(at) = bench.places.iter().position(free) {
            return Ok(at);
        }
        let slot = target.slot(&mut self.lane, &bench.ready, &bench.layout)?;
        bench.places.push(Place { slot, flags: Arc::default(), job: None });
        Ok(bench.places.len() - 1)
    }

    fn submit(&mut self, item: u64, inputs: &[Value]) -> Result<Submitted> {
        self.segment.target.fault()?;
        let at = self.bench(inputs)?;
        let ready = Arc::clone(&self.benches[at].ready);
        let feeds = feeds(&ready, inputs)?;
        let place = self.free_place(at)?;
        let Self { segment, options, lane, benches, .. } = self;
        let (target, bench) = (&segment.target, &mut benches[at]);
        let outputs = &ready.lowered.outputs;
        let mut signals = Vec::new();
        let mut residents = Vec::with_capacity(outputs.len());
        for (i, output) in outputs.iter().enumerate() {
            let OutputPlace::Buffer { buffer, dtype, shape } = output else {
                residents.push(None);
                continue;
            };
            residents.push(options.delivery(i).on_device().then(|| {
                let (signal, event) = Event::pair();
                signals.push(signal);
                let memory = target.hand_over(&bench.places[place].slot, *buffer);
                let name = Arc::clone(target.memory());
                Resident::new(name, target.order(), *dtype, shape.clone(), memory, event)
            }));
        }
        let flags = Arc::<Flags>::default();
        bench.places[place].flags = Arc::clone(&flags);
        let completion = Completion { flags, signals, waker: options.waker.clone(), over: false };
        let slot = &mut bench.places[place].slot;
        if let Err(e) = target.submit(lane, &ready, &bench.layout, slot, &feeds, completion) {
            // Its buffers may be in any state.
            bench.places.swap_remove(place);
            return Err(e);
        }
        let reads = feeds.iter().filter_map(|feed| match feed.from {
            Fed::Resident(r) => Some(r.clone()),
            Fed::Host(_) => None,
        });
        let reads = reads.collect();
        let leaves = (0..outputs.len()).all(|i| match outputs[i] {
            OutputPlace::Buffer { .. } => options.delivery(i) == Delivery::Device,
            OutputPlace::Constant(_) => true,
        });
        if leaves {
            let job = Job { item: None, residents: Vec::new(), _reads: reads };
            bench.places[place].job = Some(job);
            let leaving = residents.into_iter().zip(outputs);
            let values = leaving.filter_map(|(resident, output)| match (resident, output) {
                (Some(resident), _) => Some(Value::Resident(resident)),
                (None, OutputPlace::Constant(tensor)) => Some(tensor.clone().into()),
                (None, OutputPlace::Buffer { .. }) => None,
            });
            return Ok(Submitted::Done(values.collect()));
        }
        bench.places[place].job = Some(Job { item: Some(item), residents, _reads: reads });
        Ok(Submitted::Pending)
    }

    fn poll(&mut self, finished: &mut dyn FnMut(u64, Result<Vec<Value>>)) -> Result<()> {
        let target = &self.segment.target;
        target.fault()?;
        for bench in &mut self.benches {
            for place in &mut bench.places {
                if !place.flags.done.load(Ordering::Acquire) {
                    continue;
                }
                let Some(job) = place.job.take() else { continue };
                if let Some(item) = job.item {
                    let (ready, layout) = (&bench.ready, &bench.layout);
                    let outputs =
                        outputs(&**target, ready, layout, place, &self.pool, job.residents);
                    finished(item, outputs);
                }
            }
        }
        Ok(())
    }
}

/// What an item feeds, checked.
fn feeds<'a, T: Target>(ready: &Ready<T>, inputs: &'a [Value]) -> Result<Vec<Feed<'a>>> {
    let mut feeds = Vec::with_capacity(ready.fed.len());
    for (place, input) in ready.lowered.inputs.iter().zip(&ready.fed) {
        if ready.lowered.buffers[place.buffer] == 0 {
            continue;
        }
        let (value, name) = (&inputs[*input], &ready.names[*input]);
        let from = match value {
            Value::Resident(r) => {
                if place.range.is_some() {
                    narrowed(on_host(value)?, place.range, name)?;
                }
                Fed::Resident(r)
            }
            host => Fed::Host(narrowed(host.tensor()?, place.range, name)?),
        };
        feeds.push(Feed { buffer: place.buffer, from });
    }
    Ok(feeds)
}

/// The outputs of the item that came to its end in a slot.
fn outputs<T: Target>(
    target: &T,
    ready: &Ready<T>,
    layout: &Layout,
    place: &mut Place<T>,
    pool: &BufferPool,
    mut residents: Vec<Option<Resident>>,
) -> Result<Vec<Value>> {
    if place.flags.failed.load(Ordering::Acquire) {
        target.fault()?;
        return Err(err!(Device, "the result could not be read back").with_device(target.name()));
    }
    let outputs = &ready.lowered.outputs;
    let mut hosts: Vec<Option<Tensor>> = vec![None; outputs.len()];
    if !layout.reads.is_empty() {
        target.read_back(&mut place.slot, &mut |bytes| {
            for (i, output) in outputs.iter().enumerate() {
                let read = layout.read_of[i].map(|at| layout.reads[at]);
                let (OutputPlace::Buffer { shape, dtype, .. }, Some(read)) = (output, read) else {
                    continue;
                };
                let mut tensor = Tensor::from_pool(pool, *dtype, shape.clone())?;
                if read.bytes > 0 {
                    let range = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
                    let Some(of) = bytes.get(range(read.offset)..range(read.offset + read.bytes))
                    else {
                        bail!(Internal, "{} bytes were read back", bytes.len());
                    };
                    widened(of, *dtype, tensor.as_mut_bytes()?)?;
                }
                hosts[i] = Some(tensor);
            }
            Ok(())
        })?;
    }
    let mut values = Vec::with_capacity(outputs.len());
    for ((output, resident), host) in outputs.iter().zip(&mut residents).zip(hosts) {
        let host = match output {
            OutputPlace::Constant(tensor) => Some(tensor.clone()),
            OutputPlace::Buffer { .. } => host,
        };
        values.push(match (resident.take(), host) {
            (Some(resident), Some(host)) => Value::Resident(resident.with_host(host)),
            (Some(resident), None) => Value::Resident(resident),
            (None, Some(host)) => host.into(),
            (None, None) => bail!(Internal, "an output went nowhere"),
        });
    }
    Ok(values)
}

impl<T: Target> Instance for LaunchedInstance<T> {
    fn slots(&self) -> usize {
        SLOTS
    }

    fn run(&mut self, inputs: Vec<Value>) -> Result<Vec<Value>> {
        run_submitted(self, inputs)
    }

    fn submit(&mut self, item: u64, inputs: Vec<Value>) -> Result<Submitted> {
        self.state()?.submit(item, &inputs)
    }

    fn poll(&mut self, finished: &mut dyn FnMut(u64, Result<Vec<Value>>)) -> Result<()> {
        self.state()?.poll(finished)
    }
}
