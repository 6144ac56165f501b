//! What a GPU does with launches: three streams an actor, so that copies in, kernels and copies out of
//! different items are under way at once, ordered by events.

use std::any::Any;
use std::sync::Arc;
use std::task::Waker;

use super::blas::{self, Plan, WORKSPACE};
use super::context::{Context, Duty};
use super::driver::{Answer, DeviceMemory, Event, Function, Graph, PinnedMemory, Stream};
use crate::device::gpu::{Completion, Duties, Fed, Feed, Layout, Ready, Target};
use crate::error::{Result, bail, err};
use crate::gpu::{Lowered, LoweringOptions, Operand, Tiling};
use crate::ops::Precision;
use crate::tensor::QueueId;

/// A launch, compiled.
enum Call {
    Kernel(Arc<Function>),
    /// A product that the library computes.
    Product(Box<Plan>),
}

/// Calls for launches, and the words of launches.
pub(super) struct Prepared {
    calls: Vec<Call>,
    /// The words of all launches, each on a boundary of [`WORDS_STEP`] bytes.
    words: Option<Arc<DeviceMemory>>,
    /// Whether a call needs memory beside its operands.
    needs_workspace: bool,
}

/// Bytes on whose multiples the words of launches begin: those that one read of a GPU takes.
const WORDS_STEP: usize = 16;

/// Streams of an actor, and the thread that waits for its items.
pub(super) struct Lane {
    uploads: Stream,
    kernels: Stream,
    downloads: Stream,
    workspace: Option<Arc<DeviceMemory>>,
    waiting: Arc<Duties<Duty>>,
    listener: u64,
}

impl Lane {
    /// Waits until nothing is under way any more; what the driver says of it changes nothing.
    fn settle(&self) {
        for stream in [&self.uploads, &self.kernels, &self.downloads] {
            let _ = stream.settle();
        }
    }
}

/// One set of buffers.
pub(super) struct Slot {
    buffers: Vec<Arc<DeviceMemory>>,
    upload: Option<PinnedMemory>,
    readback: Option<PinnedMemory>,
    uploaded: Event,
    computed: Arc<Event>,
    done: Arc<Event>,
    recorded: Recorded,
}

/// Launches of a slot that one call makes.
enum Recorded {
    /// Not yet: the first items load kernels.
    Not {
        items: usize,
    },
    All(Graph),
    /// The driver does not record them.
    Never,
}

/// Items of a slot before its launches are recorded.
const UNRECORDED: usize = 2;

/// Fewer launches than these are made one by one.
const LEAST_RECORDED: usize = 4;

/// A tensor for a neighbour: its memory, and when it is there.
pub(super) struct Handover {
    memory: Arc<DeviceMemory>,
    computed: Arc<Event>,
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl Target for Context {
    type Constant = Arc<DeviceMemory>;
    type Prepared = Prepared;
    type Lane = Lane;
    type Slot = Slot;

    fn name(&self) -> &str {
        &self.name
    }

    fn memory(&self) -> &Arc<str> {
        &self.memory
    }

    fn order(&self) -> QueueId {
        Self::order()
    }

    fn lowering(&self) -> LoweringOptions {
        LoweringOptions { tiling: Tiling::Groups, fuse: true }
    }

    fn limit(&self) -> u64 {
        // Elements are counted in 32 bits.
        u64::from(u32::MAX).min(self.memory_bytes as u64)
    }

    fn fault(&self) -> Result<()> {
        self.check()
    }

    fn upload(&self, _: &str, bytes: &[u8]) -> Result<Arc<DeviceMemory>> {
        self.filled(bytes)
    }

    fn prepare(&self, lowered: &Lowered, precision: Precision) -> Result<Prepared> {
        self.answered("compiling", self.gpu.bind())?;
        let mut words: Vec<u8> = Vec::new();
        let mut plans = Vec::with_capacity(lowered.launches.len());
        for launch in &lowered.launches {
            words.extend_from_slice(bytemuck::cast_slice(&launch.words));
            words.resize(words.len().next_multiple_of(WORDS_STEP), 0);
            let library = self.blas.as_ref().zip(launch.product);
            plans.push(library.and_then(|(blas, call)| blas.plan(call, precision)));
        }
        let planned = lowered.launches.iter().zip(&plans);
        let kernels: Vec<_> =
            planned.filter(|(_, plan)| plan.is_none()).map(|(l, _)| &*l.kernel).collect();
        let mut functions = self.functions(&kernels)?.into_iter();
        let needs_workspace = plans.iter().any(Option::is_some);
        let mut calls = Vec::with_capacity(plans.len());
        for plan in plans {
            calls.push(match plan {
                Some(plan) => Call::Product(Box::new(plan)),
                None => {
                    let next = functions.next();
                    Call::Kernel(next.ok_or_else(|| err!(Internal, "a kernel was not compiled"))?)
                }
            });
        }
        let words = if words.is_empty() { None } else { Some(self.filled(&words)?) };
        Ok(Prepared { calls, words, needs_workspace })
    }

    fn lane(&self, waker: &Waker) -> Result<Lane> {
        let streams = || -> Answer<_> {
            let stream = || Stream::new(&self.gpu);
            Ok((stream()?, stream()?, stream()?))
        };
        let (uploads, kernels, downloads) = self.answered("making streams", streams())?;
        let waiting = self.start_waiting()?;
        let listener = self.faults().listen(waker);
        Ok(Lane { uploads, kernels, downloads, workspace: None, waiting, listener })
    }

    fn slot(&self, lane: &mut Lane, ready: &Ready<Self>, layout: &Layout) -> Result<Slot> {
        let pinned = |bytes: u64| -> Answer<_> {
            (bytes > 0).then(|| PinnedMemory::new(&self.gpu, size(bytes))).transpose()
        };
        let make = || -> Answer<Slot> {
            let buffers = ready.lowered.buffers.iter();
            let buffers = buffers.map(|b| DeviceMemory::new(&self.gpu, size(*b)).map(Arc::new));
            Ok(Slot {
                buffers: buffers.collect::<Answer<_>>()?,
                upload: pinned(layout.upload_bytes)?,
                readback: pinned(layout.read_bytes)?,
                uploaded: Event::new(&self.gpu)?,
                computed: Arc::new(Event::new(&self.gpu)?),
                done: Arc::new(Event::new(&self.gpu)?),
                recorded: Recorded::Not { items: 0 },
            })
        };
        let slot = self.answered("making buffers", make())?;
        if ready.prepared.needs_workspace && lane.workspace.is_none() {
            let memory = DeviceMemory::new(&self.gpu, WORKSPACE);
            lane.workspace = Some(Arc::new(self.answered("making buffers", memory)?));
        }
        Ok(slot)
    }

    fn hand_over(&self, slot: &Slot, buffer: usize) -> Arc<dyn Any + Send + Sync> {
        let memory = Arc::clone(&slot.buffers[buffer]);
        Arc::new(Handover { memory, computed: Arc::clone(&slot.computed) })
    }

    fn is_held(&self, slot: &Slot, buffer: usize) -> bool {
        // Nobody can take it again once this slot alone has it; calls of the driver order the rest.
        Arc::strong_count(&slot.buffers[buffer]) > 1
    }

    fn submit(
        &self,
        lane: &mut Lane,
        ready: &Ready<Self>,
        layout: &Layout,
        slot: &mut Slot,
        feeds: &[Feed<'_>],
        completion: Completion,
    ) -> Result<()> {
        let ordered = self.order_item(lane, ready, layout, slot, feeds);
        if let Err(e) = ordered {
            // What was ordered already uses the slot.
            lane.settle();
            return Err(e);
        }
        lane.waiting.add(Duty::See(Arc::clone(&slot.done), completion));
        Ok(())
    }

    fn read_back(&self, slot: &mut Slot, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        match &slot.readback {
            // SAFETY: the item is done, and with it the copies into this memory.
            Some(readback) => take(unsafe { readback.bytes() }),
            None => take(&[]),
        }
    }

    fn retire(&self, lane: Lane, slots: Box<dyn Any + Send>) {
        self.faults().forget(lane.listener);
        let waiting = Arc::clone(&lane.waiting);
        // After all items: what they use is dropped once they are done.
        waiting.add(Duty::End(Box::new((slots, lane))));
    }
}

impl Context {
    fn order_item(
        &self,
        lane: &Lane,
        ready: &Ready<Self>,
        layout: &Layout,
        slot: &mut Slot,
        feeds: &[Feed<'_>],
    ) -> Result<()> {
        let said = |answer| self.answered("submitting", answer);
        said(self.gpu.bind())?;
        let Slot { buffers, upload, uploaded, .. } = slot;
        let mut addresses: Vec<u64> = buffers.iter().map(|b| b.address()).collect();
        let (mut offset, mut moved) = (0, false);
        for feed in feeds {
            let bytes = size(ready.lowered.buffers[feed.buffer]);
            let target = &buffers[feed.buffer];
            match &feed.from {
                Fed::Host(data) => {
                    let Some(upload) = upload else { bail!(Internal, "no room for an input") };
                    // SAFETY: no item is in the slot, and the copies ordered so far are of other parts.
                    let room = unsafe { upload.bytes_mut() };
                    let Some(part) = room.get_mut(offset..offset + data.len()) else {
                        bail!(Internal, "no room for {} bytes", data.len());
                    };
                    part.copy_from_slice(data);
                    // SAFETY: both live in the slot until the item is done.
                    said(unsafe { lane.uploads.copy_in((target, 0), upload, offset, data.len()) })?;
                    offset += bytes;
                }
                Fed::Resident(r) => {
                    let Some(from) = r.queued::<Handover>(Self::order()) else {
                        bail!(Internal, "{} is of another queue", r.describe());
                    };
                    said(lane.kernels.wait_for(&from.computed))?;
                    if Arc::ptr_eq(from.memory.gpu(), &self.gpu) && !layout.leaves(feed.buffer) {
                        // Read where it lies: whoever made it keeps it until this item is done.
                        addresses[feed.buffer] = from.memory.address();
                        moved = true;
                    } else {
                        // SAFETY: the tensor and the slot are kept until the item is done.
                        let copied =
                            unsafe { lane.kernels.copy_across(target, &from.memory, bytes) };
                        said(copied)?;
                    }
                }
            }
        }
        if offset > 0 {
            said(lane.uploads.record(uploaded))?;
            said(lane.kernels.wait_for(uploaded))?;
        }
        self.order_kernels(lane, ready, slot, &addresses, moved)?;
        said(lane.kernels.record(&slot.computed))?;
        let last = if layout.reads.iter().any(|read| read.bytes > 0) {
            said(lane.downloads.wait_for(&slot.computed))?;
            for read in layout.reads.iter().filter(|read| read.bytes > 0) {
                let (from, offset) = (&slot.buffers[read.buffer], size(read.offset));
                let Some(to) = &mut slot.readback else { bail!(Internal, "no room for an output") };
                // SAFETY: both live in the slot until the item is done, and are read only then.
                said(unsafe { lane.downloads.copy_out(to, offset, from, size(read.bytes)) })?;
            }
            &lane.downloads
        } else {
            &lane.kernels
        };
        said(last.record(&slot.done))
    }

    /// Orders all launches, by one call where they were recorded.
    fn order_kernels(
        &self,
        lane: &Lane,
        ready: &Ready<Self>,
        slot: &mut Slot,
        addresses: &[u64],
        moved: bool,
    ) -> Result<()> {
        let one_by_one = || self.order_each(lane, ready, addresses);
        // What is recorded reads and writes the slot's own buffers.
        if moved || ready.lowered.launches.len() < LEAST_RECORDED {
            return one_by_one();
        }
        if let Recorded::Not { items } = &mut slot.recorded {
            *items += 1;
            if *items <= UNRECORDED {
                return one_by_one();
            }
            let mut refused = None;
            let graph = lane.kernels.capture(|| {
                refused = one_by_one().err();
                Ok(())
            });
            slot.recorded = match (graph, refused) {
                (Ok(graph), None) => Recorded::All(graph),
                _ => Recorded::Never,
            };
        }
        match &slot.recorded {
            Recorded::All(graph) => {
                // SAFETY: as for each launch in it.
                let replayed = unsafe { lane.kernels.replay(graph) };
                self.answered("submitting", replayed)
            }
            _ => one_by_one(),
        }
    }

    fn order_each(&self, lane: &Lane, ready: &Ready<Self>, addresses: &[u64]) -> Result<()> {
        let words = ready.prepared.words.as_ref().map_or(0, |w| w.address());
        let mut offset = 0;
        let mut parameters: Vec<u64> = Vec::new();
        for (launch, call) in ready.lowered.launches.iter().zip(&ready.prepared.calls) {
            parameters.clear();
            parameters.push(words + offset as u64);
            offset += (launch.words.len() * 4).next_multiple_of(WORDS_STEP);
            for read in &launch.reads {
                parameters.push(match read {
                    Operand::Buffer(b) => addresses[*b],
                    Operand::Constant(v) => ready.constant(*v)?.address(),
                });
            }
            parameters.push(addresses[launch.writes]);
            match call {
                Call::Kernel(function) => {
                    let (groups, threads) = (launch.groups, launch.kernel.threads);
                    // SAFETY: the kernel was printed for these operands, whose extents its words tell;
                    // the slot, the segment and residents live until the item is done.
                    let launched =
                        unsafe { lane.kernels.launch(function, groups, threads, &mut parameters) };
                    let what = || format!("launching `{}`", launch.kernel.name);
                    launched.map_err(|e| self.refused(&what(), e))?;
                }
                Call::Product(plan) => self.order_product(lane, plan, &parameters)?,
            }
        }
        Ok(())
    }

    fn order_product(&self, lane: &Lane, plan: &Plan, parameters: &[u64]) -> Result<()> {
        let (Some(library), Some(workspace)) = (&self.blas, &lane.workspace) else {
            bail!(Internal, "no library for a product");
        };
        let Some(operands) = plan.operands(parameters) else {
            bail!(Internal, "{} operands for a product", parameters.len());
        };
        // SAFETY: the operands are those of the launch; they live until the item is done, and the
        // workspace is that of this actor, whose products follow each other on one stream.
        let ordered = unsafe { library.order(plan, &lane.kernels, operands, workspace) };
        ordered.map_err(|e| err!(Device, "{}", blas::words(e)).with_device(self.name.clone()))
    }
}
