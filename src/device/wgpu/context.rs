//! One opened adapter: its device and queue, its pipelines, its faults, and the thread that waits
//! for it.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::future::Future;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use crate::device::gpu::{Duties, Ended, Faults, lock};
use crate::error::{Error, Result, err};
use crate::gpu::Kernel;
use crate::tensor::QueueId;

/// A compiled kernel.
pub(super) struct Pipeline {
    pub(super) pipeline: wgpu::ComputePipeline,
    pub(super) layout: wgpu::BindGroupLayout,
}

/// What the waiting thread has to do.
enum Duty {
    /// To see a submission through.
    Wait(wgpu::SubmissionIndex),
    /// To drop something, once what was submitted before is done.
    Drop(Box<dyn Any + Send>),
}

/// One opened adapter.
pub(super) struct Context {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    pub(super) info: wgpu::AdapterInfo,
    /// The order of everything that is submitted to it.
    pub(super) order: QueueId,
    /// The name of the device, such as `wgpu:0`.
    pub(super) name: Arc<str>,
    /// The largest buffer that a kernel can bind, in bytes.
    pub(super) binding_limit: u64,
    faults: Arc<Faults>,
    duties: Arc<Duties<Duty>>,
    /// By the kernels' text.
    pipelines: Mutex<HashMap<String, Arc<Pipeline>>>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.info.name)
    }
}

/// The output of a future that waits for nothing: on native back ends these are ready at once.
fn now<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..1000 {
        match future.as_mut().poll(&mut TaskContext::from_waker(Waker::noop())) {
            Poll::Ready(output) => return Some(output),
            Poll::Pending => std::thread::yield_now(),
        }
    }
    None
}

/// How long one wait for the device lasts before the thread looks around.
const LOOK_AROUND: Duration = Duration::from_secs(1);

/// Sees submissions through: the callbacks of each run at the latest when its wait is over.
fn wait_for(device: &wgpu::Device, duties: &Duties<Duty>, faults: &Faults) {
    loop {
        let index = match duties.next() {
            Duty::Wait(index) => index,
            Duty::Drop(retired) => {
                drop(retired);
                continue;
            }
        };
        loop {
            let wait = wgpu::PollType::Wait {
                submission_index: Some(index.clone()),
                timeout: Some(LOOK_AROUND),
            };
            match device.poll(wait) {
                Ok(_) => break,
                Err(wgpu::PollError::Timeout) => {
                    if faults.lost().is_some() {
                        return;
                    }
                }
                Err(e) => {
                    faults.lose(e.to_string());
                    return;
                }
            }
        }
    }
}

/// The adapters of this machine that compute, hardware first.
fn adapters() -> Vec<wgpu::Adapter> {
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle_from_env();
    descriptor.backends &= wgpu::Backends::PRIMARY;
    let instance = wgpu::Instance::new(descriptor);
    let mut found = now(instance.enumerate_adapters(wgpu::Backends::PRIMARY)).unwrap_or_default();
    found.retain(|a| {
        let flags = a.get_downlevel_capabilities().flags;
        flags.contains(wgpu::DownlevelFlags::COMPUTE_SHADERS)
    });
    found.sort_by_key(|a| match a.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    });
    found
}

/// The adapters that were opened by this process, the last of each number being the one in use: a
/// device is opened once, so that all segments of all pipelines share its queue. Lost ones are
/// kept, as what they made may be dropped at any time.
static OPENED: Mutex<BTreeMap<u32, Vec<Arc<Context>>>> = Mutex::new(BTreeMap::new());

impl Context {
    /// The adapter with this number; opened if it is not yet, or was lost.
    ///
    /// # Errors
    /// Why it cannot be used, in words.
    pub(super) fn open(number: u32) -> Result<Arc<Self>, String> {
        let mut opened = lock(&OPENED);
        if let Some(context) =
            opened.get(&number).and_then(|all| all.last()).filter(|c| c.fault().is_ok())
        {
            return Ok(Arc::clone(context));
        }
        let found = adapters();
        let count = found.len();
        let Some(adapter) = found.into_iter().nth(number as usize) else {
            return Err(match count {
                0 => "no graphics driver was found (Vulkan, Metal or Direct3D 12)".to_owned(),
                n => format!("there are {n} adapters, numbered from 0"),
            });
        };
        let context = Arc::new(Self::with(&adapter, number)?);
        opened.entry(number).or_default().push(Arc::clone(&context));
        Ok(context)
    }

    fn with(adapter: &wgpu::Adapter, number: u32) -> Result<Self, String> {
        let limits = adapter.limits();
        let binding_limit = limits.max_storage_buffer_binding_size.min(limits.max_buffer_size);
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("brigade"),
            required_features: wgpu::Features::empty(),
            required_limits: limits,
            experimental_features: wgpu::ExperimentalFeatures::disabled(),
            memory_hints: wgpu::MemoryHints::Performance,
            trace: wgpu::Trace::Off,
        };
        let (device, queue) = now(adapter.request_device(&descriptor))
            .ok_or("the driver does not answer")?
            .map_err(|e| e.to_string())?;
        let faults = Arc::new(Faults::default());
        let heard = Arc::clone(&faults);
        // Without a handler of ours an error is a panic.
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| heard.lose(e.to_string())));
        let heard = Arc::clone(&faults);
        device.set_device_lost_callback(move |reason, message| {
            heard.lose(format!("{reason:?}: {message}"));
        });
        let duties = Arc::new(Duties::<Duty>::default());
        let (polled, to_do, heard) = (device.clone(), Arc::clone(&duties), Arc::clone(&faults));
        std::thread::Builder::new()
            .name(format!("wgpu-{number}-poll"))
            .spawn(move || {
                let _end = Ended::new(Arc::clone(&heard));
                wait_for(&polled, &to_do, &heard);
            })
            .map_err(|e| format!("its waiting thread could not be started: {e}"))?;
        Ok(Self {
            device,
            queue,
            info: adapter.get_info(),
            order: QueueId::unique(),
            name: format!("wgpu:{number}").into(),
            binding_limit,
            faults,
            duties,
            pipelines: Mutex::default(),
        })
    }

    /// Whether the adapter is a program on the CPU.
    pub(super) fn is_software(&self) -> bool {
        self.info.device_type == wgpu::DeviceType::Cpu
    }

    /// Whether the device is still there.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn fault(&self) -> Result<()> {
        match self.faults.lost() {
            None => Ok(()),
            Some(why) => Err(self.error(&format!("the device is lost: {why}"))),
        }
    }

    /// Wakes `waker` if the device is lost, until the number that is returned is forgotten.
    pub(super) fn listen(&self, waker: &Waker) -> u64 {
        self.faults.listen(waker)
    }

    /// Wakes that one no more.
    pub(super) fn forget(&self, listener: u64) {
        self.faults.forget(listener);
    }

    pub(super) fn error(&self, message: &str) -> Error {
        err!(Device, "{message}").with_device(self.name.to_string())
    }

    /// Calls into the driver; what it objects to is an error of this call.
    ///
    /// # Errors
    /// What the driver objects to, or that the device is lost.
    pub(super) fn scoped<T>(&self, doing: &str, call: impl FnOnce() -> T) -> Result<T> {
        use wgpu::ErrorFilter::{Internal, OutOfMemory, Validation};
        self.fault()?;
        let scopes = [OutOfMemory, Internal, Validation].map(|f| self.device.push_error_scope(f));
        let out = call();
        let mut first = None;
        for scope in scopes.into_iter().rev() {
            if let Some(Some(error)) = now(scope.pop()) {
                first.get_or_insert(error);
            }
        }
        match first {
            None => Ok(out),
            Some(e @ wgpu::Error::OutOfMemory { .. }) => {
                Err(err!(Limit, "{doing}: {e}").with_device(self.name.to_string()))
            }
            Some(e) => Err(self.error(&format!("{doing}: {e}"))),
        }
    }

    /// Has the waiting thread see a submission through.
    pub(super) fn see_through(&self, index: wgpu::SubmissionIndex) {
        self.duties.add(Duty::Wait(index));
    }

    /// Has the waiting thread drop what holds objects of the driver.
    pub(super) fn retire(&self, what: Box<dyn Any + Send>) {
        self.duties.add(Duty::Drop(what));
    }

    /// The kernel, compiled once.
    ///
    /// # Errors
    /// If the driver refuses it.
    pub(super) fn pipeline(&self, kernel: &Kernel) -> Result<Arc<Pipeline>> {
        let text = kernel.wgsl();
        let mut pipelines = lock(&self.pipelines);
        if let Some(done) = pipelines.get(&text) {
            return Ok(Arc::clone(done));
        }
        let label = Some(kernel.name.as_str());
        let what = format!("compiling kernel `{}`", kernel.name);
        let made = self.scoped(&what, || {
            let entry = |binding: usize, ty| wgpu::BindGroupLayoutEntry {
                binding: u32::try_from(binding).unwrap_or(u32::MAX),
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty,
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            };
            let mut entries = vec![entry(0, wgpu::BufferBindingType::Uniform)];
            let reads = kernel.inputs.len();
            for i in 0..=reads {
                let read_only = i < reads;
                entries.push(entry(i + 1, wgpu::BufferBindingType::Storage { read_only }));
            }
            let descriptor = wgpu::BindGroupLayoutDescriptor { label, entries: &entries };
            let layout = self.device.create_bind_group_layout(&descriptor);
            let descriptor = wgpu::PipelineLayoutDescriptor {
                label,
                bind_group_layouts: &[Some(&layout)],
                immediate_size: 0,
            };
            let whole = self.device.create_pipeline_layout(&descriptor);
            let source = wgpu::ShaderSource::Wgsl(text.as_str().into());
            let module =
                self.device.create_shader_module(wgpu::ShaderModuleDescriptor { label, source });
            let pipeline = self.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
                label,
                layout: Some(&whole),
                module: &module,
                entry_point: Some("main"),
                compilation_options: wgpu::PipelineCompilationOptions::default(),
                cache: None,
            });
            Pipeline { pipeline, layout }
        })?;
        let made = Arc::new(made);
        pipelines.insert(text, Arc::clone(&made));
        Ok(made)
    }

    /// A buffer with these contents, uploaded with its creation.
    ///
    /// # Errors
    /// If the memory cannot be had.
    pub(super) fn filled(
        &self,
        label: &str,
        bytes: &[u8],
        usage: wgpu::BufferUsages,
    ) -> Result<wgpu::Buffer> {
        let size = (bytes.len() as u64).next_multiple_of(4).max(LEAST);
        let buffer = self.scoped("uploading", || {
            self.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some(label),
                size,
                usage,
                mapped_at_creation: true,
            })
        })?;
        let mapped = self.scoped("uploading", || buffer.get_mapped_range_mut(..))?;
        let mut view = mapped.map_err(|e| self.error(&format!("uploading: {e}")))?;
        view.slice(..bytes.len()).copy_from_slice(bytes);
        drop(view);
        buffer.unmap();
        Ok(buffer)
    }
}

/// Bytes of the smallest buffer: bindings are not empty.
pub(super) const LEAST: u64 = 16;
