//! What an adapter does with launches: buffers and bindings made beforehand, one submission an item.

use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;
use std::task::Waker;

use super::context::{Context, LEAST, Pipeline};
use crate::device::gpu::{Completion, Fed, Feed, Layout, Ready, Target};
use crate::error::{Result, bail};
use crate::gpu::{Lowered, LoweringOptions, Operand, Tiling};
use crate::ops::Precision;
use crate::tensor::QueueId;

/// A buffer that may be handed over; whoever holds it keeps its slot from being used again.
#[derive(Debug)]
pub(super) struct Memory {
    buffer: wgpu::Buffer,
}

/// Kernels that are compiled, and the words of launches.
pub(super) struct Prepared {
    pipelines: Vec<Arc<Pipeline>>,
    /// The words of all launches, each on a boundary of [`UNIFORM_STEP`] bytes.
    uniforms: Option<wgpu::Buffer>,
}

/// Bytes from one launch's words to the next: the alignment that every adapter accepts.
const UNIFORM_STEP: usize = 256;

/// One set of buffers, with bindings made for them.
pub(super) struct Slot {
    buffers: Vec<Arc<Memory>>,
    bindings: Vec<wgpu::BindGroup>,
    /// Mapped while no item is in the slot.
    upload: Option<wgpu::Buffer>,
    /// Mapped when an item is done.
    readback: Option<wgpu::Buffer>,
}

/// What the loss of the device wakes.
pub(super) struct Lane {
    listener: u64,
}

fn size(bytes: usize) -> u64 {
    bytes as u64
}

impl Target for Context {
    type Constant = wgpu::Buffer;
    type Prepared = Prepared;
    type Lane = Lane;
    type Slot = Slot;

    fn name(&self) -> &str {
        &self.name
    }

    fn memory(&self) -> &Arc<str> {
        &self.name
    }

    fn order(&self) -> QueueId {
        self.order
    }

    fn lowering(&self) -> LoweringOptions {
        let tiling = if self.is_software() { Tiling::Registers } else { Tiling::Groups };
        LoweringOptions { tiling, fuse: true }
    }

    fn limit(&self) -> u64 {
        self.binding_limit
    }

    fn fault(&self) -> Result<()> {
        self.fault()
    }

    fn upload(&self, name: &str, bytes: &[u8]) -> Result<wgpu::Buffer> {
        self.filled(name, bytes, wgpu::BufferUsages::STORAGE | wgpu::BufferUsages::COPY_SRC)
    }

    fn prepare(&self, lowered: &Lowered, _: Precision) -> Result<Prepared> {
        let mut pipelines = Vec::with_capacity(lowered.launches.len());
        let mut words = vec![0_u8; lowered.launches.len() * UNIFORM_STEP];
        for (i, launch) in lowered.launches.iter().enumerate() {
            pipelines.push(self.pipeline(&launch.kernel)?);
            let bytes: &[u8] = bytemuck::cast_slice(&launch.words);
            if bytes.len() > UNIFORM_STEP {
                bail!(Internal, "{} words for kernel `{}`", bytes.len() / 4, launch.kernel.name);
            }
            words[i * UNIFORM_STEP..][..bytes.len()].copy_from_slice(bytes);
        }
        let uniforms = match words.is_empty() {
            true => None,
            false => Some(self.filled("extents", &words, wgpu::BufferUsages::UNIFORM)?),
        };
        Ok(Prepared { pipelines, uniforms })
    }

    fn lane(&self, waker: &Waker) -> Result<Lane> {
        Ok(Lane { listener: self.listen(waker) })
    }

    fn slot(&self, _: &mut Lane, ready: &Ready<Self>, layout: &Layout) -> Result<Slot> {
        let constants = ready.lowered.launches.iter().flat_map(|l| &l.reads);
        let mut bound: HashMap<_, &wgpu::Buffer> = HashMap::new();
        for read in constants {
            if let Operand::Constant(v) = read {
                bound.insert(*v, ready.constant(*v)?);
            }
        }
        self.scoped("making buffers", || self.new_slot(ready, layout, &bound))
    }

    fn hand_over(&self, slot: &Slot, buffer: usize) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&slot.buffers[buffer]) as _
    }

    fn is_held(&self, slot: &Slot, buffer: usize) -> bool {
        Arc::strong_count(&slot.buffers[buffer]) > 1
    }

    fn submit(
        &self,
        _: &mut Lane,
        ready: &Ready<Self>,
        layout: &Layout,
        slot: &mut Slot,
        feeds: &[Feed<'_>],
        completion: Completion,
    ) -> Result<()> {
        self.scoped("submitting", || self.record(ready, layout, slot, feeds, completion))?
    }

    fn read_back(&self, slot: &mut Slot, take: &mut dyn FnMut(&[u8]) -> Result<()>) -> Result<()> {
        let Some(readback) = &slot.readback else { return take(&[]) };
        self.scoped("reading back", || {
            let view = readback
                .get_mapped_range(..)
                .map_err(|e| self.error(&format!("reading back: {e}")))?;
            take(&view)?;
            drop(view);
            readback.unmap();
            Ok(())
        })?
    }

    fn retire(&self, lane: Lane, slots: Box<dyn Any + Send>) {
        self.forget(lane.listener);
        self.retire(slots);
    }
}

impl Context {
    fn new_slot(
        &self,
        ready: &Ready<Self>,
        layout: &Layout,
        constants: &HashMap<crate::graph::ValueId, &wgpu::Buffer>,
    ) -> Slot {
        use wgpu::BufferUsages as Use;
        let buffer = |label: &str, bytes: u64, usage: Use, mapped: bool| {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some(label),
                size: bytes.max(LEAST),
                usage,
                mapped_at_creation: mapped,
            })
        };
        let (lowered, prepared) = (&ready.lowered, &ready.prepared);
        let working = Use::STORAGE | Use::COPY_SRC | Use::COPY_DST;
        let buffers: Vec<Arc<Memory>> = lowered
            .buffers
            .iter()
            .map(|bytes| Arc::new(Memory { buffer: buffer("working", *bytes, working, false) }))
            .collect();
        let mut bindings = Vec::with_capacity(lowered.launches.len());
        for (i, (launch, pipeline)) in lowered.launches.iter().zip(&prepared.pipelines).enumerate()
        {
            let uniforms = prepared.uniforms.iter().map(|buffer| wgpu::BufferBinding {
                buffer,
                offset: size(i * UNIFORM_STEP),
                size: std::num::NonZero::new(size(launch.words.len() * 4)),
            });
            let reads = launch.reads.iter().filter_map(|read| match read {
                Operand::Buffer(b) => Some(buffers[*b].buffer.as_entire_buffer_binding()),
                Operand::Constant(v) => constants.get(v).map(|c| c.as_entire_buffer_binding()),
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
            bindings.push(self.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some(&launch.kernel.name),
                layout: &pipeline.layout,
                entries: &entries,
            }));
        }
        let upload = (layout.upload_bytes > 0)
            .then(|| buffer("upload", layout.upload_bytes, Use::MAP_WRITE | Use::COPY_SRC, true));
        let readback = (layout.read_bytes > 0)
            .then(|| buffer("read-back", layout.read_bytes, Use::MAP_READ | Use::COPY_DST, false));
        Slot { buffers, bindings, upload, readback }
    }

    /// Records and submits everything of an item: copies in, one pass of all launches, copies out.
    fn record(
        &self,
        ready: &Ready<Self>,
        layout: &Layout,
        slot: &mut Slot,
        feeds: &[Feed<'_>],
        completion: Completion,
    ) -> Result<()> {
        let lowered = &ready.lowered;
        let mut encoder =
            self.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let mut offset = 0;
        let mut view = match &slot.upload {
            Some(upload) => Some(
                upload
                    .get_mapped_range_mut(..)
                    .map_err(|e| self.error(&format!("uploading: {e}")))?,
            ),
            None => None,
        };
        for feed in feeds {
            let bytes = lowered.buffers[feed.buffer];
            let target = &slot.buffers[feed.buffer].buffer;
            match &feed.from {
                Fed::Resident(r) => {
                    let Some(memory) = r.queued::<Memory>(self.order) else {
                        return Err(self.error(&format!("{} is of another queue", r.describe())));
                    };
                    encoder.copy_buffer_to_buffer(&memory.buffer, 0, target, 0, bytes);
                }
                Fed::Host(data) => {
                    let (Some(view), Some(upload)) = (&mut view, &slot.upload) else {
                        bail!(Internal, "no room for an input");
                    };
                    let from = usize::try_from(offset).unwrap_or(usize::MAX);
                    view.slice(from..from + data.len()).copy_from_slice(data);
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
                lowered.launches.iter().zip(&ready.prepared.pipelines).zip(&slot.bindings)
            {
                let [x, y, z] = launch.groups;
                pass.set_pipeline(&pipeline.pipeline);
                pass.set_bind_group(0, binding, &[]);
                pass.dispatch_workgroups(x, y, z);
            }
        }
        for read in layout.reads.iter().filter(|read| read.bytes > 0) {
            let Some(readback) = &slot.readback else { bail!(Internal, "no room for an output") };
            let from = &slot.buffers[read.buffer].buffer;
            encoder.copy_buffer_to_buffer(from, 0, readback, read.offset, read.bytes);
        }
        let mapped = || {
            let failure = completion.failure();
            move |outcome: Result<(), wgpu::BufferAsyncError>| {
                if outcome.is_err() {
                    failure.set();
                }
            }
        };
        if let Some(upload) = &slot.upload {
            encoder.map_buffer_on_submit(upload, wgpu::MapMode::Write, .., mapped());
        }
        if let Some(readback) = &slot.readback {
            encoder.map_buffer_on_submit(readback, wgpu::MapMode::Read, .., mapped());
        }
        encoder.on_submitted_work_done(move || completion.complete());
        let index = self.queue.submit([encoder.finish()]);
        self.see_through(index);
        Ok(())
    }
}
