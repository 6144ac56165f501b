//! Items under way on an adapter: slots of buffers, one submission an item.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::context::{Context, LEAST};
use super::segment::{Ready, UNIFORM_STEP, WgpuSegment, on_host};
use crate::device::{Delivery, Instance, InstanceOptions, Submitted, run_submitted};
use crate::error::{Result, bail, err};
use crate::gpu::{Operand, OutputPlace, narrowed, widened};
use crate::tensor::{BufferPool, Event, Resident, Shape, Signal, Tensor, Value};

/// Items that an instance has under way: one computes, one is uploaded, one is read back.
const SLOTS: usize = 3;

/// Sets of extents that an instance keeps slots for.
const MOST_SHAPES: usize = 4;

/// A buffer that may be handed over; whoever holds it keeps its slot from being used again.
#[derive(Debug)]
pub(super) struct Memory {
    buffer: wgpu::Buffer,
}

/// What completion callbacks leave for the actor.
#[derive(Debug, Default)]
struct Flags {
    done: AtomicBool,
    failed: AtomicBool,
}

/// An item in a slot.
struct Job {
    /// Its number, unless its outputs have left already.
    item: Option<u64>,
    /// The outputs that stay on the device.
    residents: Vec<Option<Resident>>,
}

/// One set of buffers, with bindings made for them.
struct Slot {
    buffers: Vec<Arc<Memory>>,
    bindings: Vec<wgpu::BindGroup>,
    /// Mapped while no item is in the slot.
    upload: Option<wgpu::Buffer>,
    /// Mapped when an item is done.
    readback: Option<wgpu::Buffer>,
    flags: Arc<Flags>,
    job: Option<Job>,
}

/// The slots for one set of extents.
struct Bench {
    ready: Arc<Ready>,
    /// The buffers that leave with items.
    leaving: Vec<usize>,
    /// Where the host's outputs lie in the read-back buffer.
    read_offsets: Vec<Option<u64>>,
    upload_bytes: u64,
    read_bytes: u64,
    slots: Vec<Slot>,
    used: u64,
}

/// The working state of an actor.
struct State {
    segment: Arc<WgpuSegment>,
    options: InstanceOptions,
    /// What the loss of the device wakes.
    listener: u64,
    benches: Vec<Bench>,
    pool: BufferPool,
    clock: u64,
}

/// The state, until it is dropped: then the waiting thread takes it. The thread that drops an
/// instance may be at its own end, when the driver's thread-local state is gone already.
pub(super) struct WgpuInstance(Option<State>);

impl WgpuInstance {
    pub(super) fn new(segment: Arc<WgpuSegment>, options: InstanceOptions) -> Result<Self> {
        segment.context.fault()?;
        let listener = segment.context.listen(&options.waker);
        let deliveries = (0..segment.outputs()).map(|i| match options.delivery(i) {
            Delivery::Device if segment.is_watched(i) => Delivery::Both,
            other => other,
        });
        let deliveries = deliveries.collect();
        let options = options.outputs(deliveries);
        let (benches, pool) = (Vec::new(), BufferPool::default());
        Ok(Self(Some(State { segment, options, listener, benches, pool, clock: 0 })))
    }

    fn state(&mut self) -> Result<&mut State> {
        self.0.as_mut().ok_or_else(|| err!(Internal, "the instance was dropped"))
    }
}

impl Drop for WgpuInstance {
    fn drop(&mut self) {
        if let Some(state) = self.0.take() {
            let context = Arc::clone(&state.segment.context);
            context.forget(state.listener);
            context.retire(Box::new(state));
        }
    }
}

/// Bytes of a tensor on the device: four for each element.
fn bytes_of(shape: &Shape) -> u64 {
    shape.elements() as u64 * 4
}

fn size(bytes: usize) -> u64 {
    bytes as u64
}

impl State {
    fn context(&self) -> &Arc<Context> {
        &self.segment.context
    }

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
                .filter(|(_, b)| b.slots.iter().all(|s| s.job.is_none()));
            if let Some((oldest, _)) = idle.min_by_key(|(_, b)| b.used) {
                self.benches.swap_remove(oldest);
            }
        }
        let mut bench = Bench {
            leaving: Vec::new(),
            read_offsets: Vec::new(),
            upload_bytes: 0,
            read_bytes: 0,
            slots: Vec::new(),
            used: self.clock,
            ready,
        };
        let lowered = &bench.ready.lowered;
        for place in &lowered.inputs {
            bench.upload_bytes += lowered.buffers[place.buffer];
        }
        for (i, output) in lowered.outputs.iter().enumerate() {
            let OutputPlace::Buffer { buffer, shape, .. } = output else {
                bench.read_offsets.push(None);
                continue;
            };
            let needed = self.options.delivery(i);
            if needed.on_device() && !bench.leaving.contains(buffer) {
                bench.leaving.push(*buffer);
            }
            bench.read_offsets.push(needed.on_host().then_some(bench.read_bytes));
            if needed.on_host() {
                bench.read_bytes += bytes_of(shape);
            }
        }
        self.benches.push(bench);
        Ok(self.benches.len() - 1)
    }

    /// A slot in which no item is, and whose buffers nobody holds; a new one if there is none.
    /// There are never more than items in flight.
    fn free_slot(&mut self, bench: usize) -> Result<usize> {
        let context = Arc::clone(self.context());
        let bench = &mut self.benches[bench];
        for slot in &mut bench.slots {
            let over = slot.flags.done.load(Ordering::Acquire);
            if over && slot.job.as_ref().is_some_and(|job| job.item.is_none()) {
                slot.job = None;
            }
        }
        let free = |slot: &Slot| {
            slot.job.is_none()
                && bench.leaving.iter().all(|b| Arc::strong_count(&slot.buffers[*b]) == 1)
        };
        // A slot whose mapping failed is of no more use.
        bench.slots.retain(|s| s.job.is_some() || !s.flags.failed.load(Ordering::Acquire));
        if let Some(at) = bench.slots.iter().position(free) {
            return Ok(at);
        }
        let slot = context.scoped("making buffers", || new_slot(&context, bench))?;
        bench.slots.push(slot);
        Ok(bench.slots.len() - 1)
    }
}

fn new_slot(context: &Context, bench: &Bench) -> Slot {
    use wgpu::BufferUsages as Use;
    let buffer = |label: &str, bytes: u64, usage: Use, mapped: bool| {
        context.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(label),
            size: bytes.max(LEAST),
            usage,
            mapped_at_creation: mapped,
        })
    };
    let ready = &bench.ready;
    let working = Use::STORAGE | Use::COPY_SRC | Use::COPY_DST;
    let buffers: Vec<Arc<Memory>> = ready
        .lowered
        .buffers
        .iter()
        .map(|bytes| Arc::new(Memory { buffer: buffer("working", *bytes, working, false) }))
        .collect();
    let mut bindings = Vec::with_capacity(ready.lowered.launches.len());
    for (i, (launch, pipeline)) in ready.lowered.launches.iter().zip(&ready.pipelines).enumerate() {
        let uniforms = ready.uniforms.iter().map(|buffer| wgpu::BufferBinding {
            buffer,
            offset: size(i * UNIFORM_STEP),
            size: std::num::NonZero::new(size(launch.words.len() * 4)),
        });
        let reads = launch.reads.iter().filter_map(|read| match read {
            Operand::Buffer(b) => Some(buffers[*b].buffer.as_entire_buffer_binding()),
            Operand::Constant(v) => ready.constants.get(v).map(|c| c.as_entire_buffer_binding()),
        });
        let writes = buffers[launch.writes].buffer.as_entire_buffer_binding();
        let entries: Vec<wgpu::BindGroupEntry<'_>> = uniforms
            .chain(reads)
            .chain([writes])
            .zip(0..)
            .map(|(bound, binding)| wgpu::BindGroupEntry {
                binding,
                resource: wgpu::BindingResource::Buffer(bound),
            })
            .collect();
        bindings.push(context.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some(&launch.kernel.name),
            layout: &pipeline.layout,
            entries: &entries,
        }));
    }
    let upload = (bench.upload_bytes > 0)
        .then(|| buffer("upload", bench.upload_bytes, Use::MAP_WRITE | Use::COPY_SRC, true));
    let readback = (bench.read_bytes > 0)
        .then(|| buffer("read-back", bench.read_bytes, Use::MAP_READ | Use::COPY_DST, false));
    Slot { buffers, bindings, upload, readback, flags: Arc::default(), job: None }
}

impl Bench {
    /// Records and submits everything of an item: copies in, one pass of all launches, copies out.
    /// Gives the outputs that stay on the device.
    fn submit(
        &mut self,
        at: usize,
        context: &Context,
        options: &InstanceOptions,
        inputs: &[Value],
    ) -> Result<Vec<Option<Resident>>> {
        let Self { ready, slots, read_offsets, .. } = self;
        let lowered = &ready.lowered;
        let slot = &mut slots[at];
        let mut encoder =
            context.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut offset = 0;
        let mut view = match &slot.upload {
            Some(upload) => Some(
                upload
                    .get_mapped_range_mut(..)
                    .map_err(|e| context.error(&format!("uploading: {e}")))?,
            ),
            None => None,
        };
        for (place, input) in lowered.inputs.iter().zip(&ready.fed) {
            let bytes = lowered.buffers[place.buffer];
            let target = &slot.buffers[place.buffer].buffer;
            match &inputs[*input] {
                _ if bytes == 0 => {}
                Value::Resident(r) => {
                    if place.range.is_some() {
                        narrowed(on_host(&inputs[*input])?, place.range, &ready.names[*input])?;
                    }
                    let Some(memory) = r.queued::<Memory>(context.order) else {
                        return Err(context.error(&format!("{} is of another queue", r.describe())));
                    };
                    encoder.copy_buffer_to_buffer(&memory.buffer, 0, target, 0, bytes);
                }
                host => {
                    let data = narrowed(host.tensor()?, place.range, &ready.names[*input])?;
                    let (Some(view), Some(upload)) = (&mut view, &slot.upload) else {
                        bail!(Internal, "no room for an input");
                    };
                    let from = usize::try_from(offset).unwrap_or(usize::MAX);
                    view.slice(from..from + data.len()).copy_from_slice(&data);
                    encoder.copy_buffer_to_buffer(upload, offset, target, 0, bytes);
                    offset += bytes;
                }
            }
        }
        drop(view);
        if let Some(upload) = &slot.upload {
            upload.unmap();
        }
        if !lowered.launches.is_empty() {
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor::default());
            for ((launch, pipeline), binding) in
                lowered.launches.iter().zip(&ready.pipelines).zip(&slot.bindings)
            {
                let [x, y, z] = launch.groups;
                pass.set_pipeline(&pipeline.pipeline);
                pass.set_bind_group(0, binding, &[]);
                pass.dispatch_workgroups(x, y, z);
            }
        }
        let mut residents = Vec::with_capacity(lowered.outputs.len());
        let mut signals: Vec<Signal> = Vec::new();
        for (i, (output, read)) in lowered.outputs.iter().zip(read_offsets).enumerate() {
            let OutputPlace::Buffer { buffer, dtype, shape } = output else {
                residents.push(None);
                continue;
            };
            let memory = &slot.buffers[*buffer];
            if let (Some(offset), Some(readback)) = (read, &slot.readback)
                && bytes_of(shape) > 0
            {
                encoder.copy_buffer_to_buffer(
                    &memory.buffer,
                    0,
                    readback,
                    *offset,
                    bytes_of(shape),
                );
            }
            residents.push(options.delivery(i).on_device().then(|| {
                let (signal, event) = Event::pair();
                signals.push(signal);
                let (name, memory) = (Arc::clone(&context.name), Arc::clone(memory));
                Resident::new(name, context.order, *dtype, shape.clone(), memory, event)
            }));
        }
        let flags = Arc::new(Flags::default());
        let mapped = |flags: &Arc<Flags>| {
            let flags = Arc::clone(flags);
            move |outcome: Result<(), wgpu::BufferAsyncError>| {
                if outcome.is_err() {
                    flags.failed.store(true, Ordering::Release);
                }
            }
        };
        if let Some(upload) = &slot.upload {
            encoder.map_buffer_on_submit(upload, wgpu::MapMode::Write, .., mapped(&flags));
        }
        if let Some(readback) = &slot.readback {
            encoder.map_buffer_on_submit(readback, wgpu::MapMode::Read, .., mapped(&flags));
        }
        let (done, waker) = (Arc::clone(&flags), options.waker.clone());
        encoder.on_submitted_work_done(move || {
            done.done.store(true, Ordering::Release);
            for signal in signals {
                signal.complete(Ok(()));
            }
            waker.wake();
        });
        slot.flags = flags;
        let index = context.queue.submit([encoder.finish()]);
        context.see_through(index);
        Ok(residents)
    }

    /// The outputs of the item that came to its end in a slot.
    fn outputs(
        &self,
        at: usize,
        context: &Context,
        pool: &BufferPool,
        mut residents: Vec<Option<Resident>>,
    ) -> Result<Vec<Value>> {
        let slot = &self.slots[at];
        if slot.flags.failed.load(Ordering::Acquire) {
            context.fault()?;
            return Err(context.error("the result could not be read back"));
        }
        let view = match &slot.readback {
            Some(readback) => Some(
                readback
                    .get_mapped_range(..)
                    .map_err(|e| context.error(&format!("reading back: {e}")))?,
            ),
            None => None,
        };
        let mut values = Vec::with_capacity(residents.len());
        let places = self.ready.lowered.outputs.iter().zip(&self.read_offsets);
        for ((output, read), resident) in places.zip(&mut residents) {
            let host = match (output, read) {
                (OutputPlace::Constant(tensor), _) => Some(tensor.clone()),
                (OutputPlace::Buffer { shape, dtype, .. }, Some(offset)) => {
                    let mut tensor = Tensor::from_pool(pool, *dtype, shape.clone())?;
                    if let Some(view) = &view {
                        let from = usize::try_from(*offset).unwrap_or(usize::MAX);
                        let bytes = usize::try_from(bytes_of(shape)).unwrap_or(usize::MAX);
                        widened(&view[from..from + bytes], *dtype, tensor.as_mut_bytes()?)?;
                    }
                    Some(tensor)
                }
                _ => None,
            };
            values.push(match (resident.take(), host) {
                (Some(resident), Some(host)) => Value::Resident(resident.with_host(host)),
                (Some(resident), None) => Value::Resident(resident),
                (None, Some(host)) => host.into(),
                (None, None) => bail!(Internal, "an output went nowhere"),
            });
        }
        drop(view);
        if let Some(readback) = &slot.readback {
            readback.unmap();
        }
        Ok(values)
    }
}

impl Instance for WgpuInstance {
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

impl State {
    fn submit(&mut self, item: u64, inputs: &[Value]) -> Result<Submitted> {
        let context = Arc::clone(self.context());
        context.fault()?;
        let at = self.bench(inputs)?;
        let slot = self.free_slot(at)?;
        let (bench, options) = (&mut self.benches[at], &self.options);
        let submitted =
            context.scoped("submitting", || bench.submit(slot, &context, options, inputs));
        let residents = match submitted {
            Ok(Ok(residents)) => residents,
            Ok(Err(e)) | Err(e) => {
                // Its buffers may be in any state.
                bench.slots.swap_remove(slot);
                return Err(e);
            }
        };
        let outputs = &bench.ready.lowered.outputs;
        let leaves = (0..outputs.len()).all(|i| match outputs[i] {
            OutputPlace::Buffer { .. } => options.delivery(i) == Delivery::Device,
            OutputPlace::Constant(_) => true,
        });
        if leaves {
            bench.slots[slot].job = Some(Job { item: None, residents: Vec::new() });
            let leaving = residents.into_iter().zip(outputs);
            let values = leaving.filter_map(|(resident, output)| match (resident, output) {
                (Some(resident), _) => Some(Value::Resident(resident)),
                (None, OutputPlace::Constant(tensor)) => Some(tensor.clone().into()),
                (None, OutputPlace::Buffer { .. }) => None,
            });
            return Ok(Submitted::Done(values.collect()));
        }
        bench.slots[slot].job = Some(Job { item: Some(item), residents });
        Ok(Submitted::Pending)
    }

    fn poll(&mut self, finished: &mut dyn FnMut(u64, Result<Vec<Value>>)) -> Result<()> {
        let context = Arc::clone(&self.segment.context);
        context.fault()?;
        for bench in &mut self.benches {
            for at in 0..bench.slots.len() {
                if !bench.slots[at].flags.done.load(Ordering::Acquire) {
                    continue;
                }
                let Some(job) = bench.slots[at].job.take() else { continue };
                if let Some(item) = job.item {
                    let outputs = context.scoped("reading back", || {
                        bench.outputs(at, &context, &self.pool, job.residents)
                    });
                    finished(item, outputs.and_then(|o| o));
                }
            }
        }
        Ok(())
    }
}
