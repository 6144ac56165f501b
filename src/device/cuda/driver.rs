//! What of the CUDA driver is used, as owners that free what they hold. Order and lifetime are the
//! caller's: a copy or a launch is only under way when its function returns.

use std::ffi::{CString, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;

/// What the driver answers, or that it refuses.
pub(super) type Answer<T> = Result<T, DriverError>;

/// The refusal in words, with its name.
pub(super) fn words(refusal: DriverError) -> String {
    let text = |of: Answer<&std::ffi::CStr>| of.map(|s| s.to_string_lossy().into_owned());
    match (text(refusal.error_name()), text(refusal.error_string())) {
        (Ok(name), Ok(meaning)) => format!("{meaning} ({name})"),
        _ => format!("{:?}", refusal.0),
    }
}

/// Whether memory could not be had.
pub(super) fn is_out_of_memory(refusal: DriverError) -> bool {
    refusal.0 == sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

/// Whether the image of a kernel is not one that the driver takes.
pub(super) fn is_bad_image(refusal: DriverError) -> bool {
    use sys::CUresult as R;
    matches!(
        refusal.0,
        R::CUDA_ERROR_INVALID_IMAGE
            | R::CUDA_ERROR_INVALID_PTX
            | R::CUDA_ERROR_NO_BINARY_FOR_GPU
            | R::CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            | R::CUDA_ERROR_NOT_FOUND
    )
}

/// Whether a refusal means that nothing works any more in this process.
pub(super) fn is_final(refusal: DriverError) -> bool {
    use sys::CUresult as R;
    matches!(
        refusal.0,
        R::CUDA_ERROR_ILLEGAL_ADDRESS
            | R::CUDA_ERROR_LAUNCH_FAILED
            | R::CUDA_ERROR_LAUNCH_TIMEOUT
            | R::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | R::CUDA_ERROR_MISALIGNED_ADDRESS
            | R::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | R::CUDA_ERROR_INVALID_PC
            | R::CUDA_ERROR_HARDWARE_STACK_ERROR
            | R::CUDA_ERROR_ASSERT
            | R::CUDA_ERROR_ECC_UNCORRECTABLE
            | R::CUDA_ERROR_CONTEXT_IS_DESTROYED
    )
}

/// What is not within the memory that it names.
const BEYOND: DriverError = DriverError(sys::CUresult::CUDA_ERROR_INVALID_VALUE);

/// The version of the driver as the driver counts, such as 12040 for 12.4. The driver is there.
pub(super) fn version() -> Answer<i32> {
    result::init()?;
    let mut version = 0;
    // SAFETY: the pointer is that of a local variable.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result()?;
    Ok(version)
}

/// How many GPUs there are. The driver is there.
pub(super) fn count() -> Answer<u32> {
    result::init()?;
    Ok(u32::try_from(result::device::get_count()?).unwrap_or(0))
}

/// A GPU, with its primary context held.
pub(super) struct Gpu {
    device: sys::CUdevice,
    context: sys::CUcontext,
}

// SAFETY: contexts are used by any thread, one call at a time being the driver's business.
unsafe impl Send for Gpu {}
// SAFETY: as above.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// The GPU with this number. The driver is there.
    pub(super) fn open(number: u32) -> Answer<Self> {
        result::init()?;
        let device = result::device::get(c_int::try_from(number).unwrap_or(c_int::MAX))?;
        // SAFETY: the device is one that the driver gave.
        let context = unsafe { result::primary_ctx::retain(device) }?;
        Ok(Self { device, context })
    }

    /// Makes it the one that this thread's calls are for.
    pub(super) fn bind(&self) -> Answer<()> {
        // SAFETY: the context is held until `self` is dropped.
        unsafe { result::ctx::set_current(self.context) }
    }

    pub(super) fn name(&self) -> Answer<String> {
        result::device::get_name(self.device)
    }

    /// Bytes of its memory.
    pub(super) fn memory_bytes(&self) -> Answer<usize> {
        // SAFETY: the device is one that the driver gave.
        unsafe { result::device::total_mem(self.device) }
    }

    /// Its compute capability, such as 9 and 0.
    pub(super) fn capability(&self) -> Answer<(u32, u32)> {
        use sys::CUdevice_attribute as A;
        let of = |attribute| -> Answer<u32> {
            // SAFETY: the device is one that the driver gave.
            let n = unsafe { result::device::get_attribute(self.device, attribute) }?;
            Ok(u32::try_from(n).unwrap_or(0))
        };
        Ok((
            of(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            of(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        ))
    }

    /// How many multiprocessors it has.
    pub(super) fn multiprocessors(&self) -> Answer<usize> {
        let attribute = sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT;
        // SAFETY: the device is one that the driver gave.
        let n = unsafe { result::device::get_attribute(self.device, attribute) }?;
        Ok(usize::try_from(n).unwrap_or(0))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: it was retained once, by `open`. What the driver says at the end changes nothing.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

/// Memory of a GPU.
pub(super) struct DeviceMemory {
    gpu: Arc<Gpu>,
    address: sys::CUdeviceptr,
    bytes: usize,
}

impl DeviceMemory {
    pub(super) fn new(gpu: &Arc<Gpu>, bytes: usize) -> Answer<Self> {
        gpu.bind()?;
        // SAFETY: not of zero bytes, which the driver refuses.
        let address = unsafe { result::malloc_sync(bytes.max(16)) }?;
        Ok(Self { gpu: Arc::clone(gpu), address, bytes })
    }

    /// Where it lies, for kernels.
    pub(super) fn address(&self) -> u64 {
        self.address
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The GPU whose memory it is.
    pub(super) fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let _ = self.gpu.bind();
        // SAFETY: it was allocated by `new`, and whoever ordered work on it keeps it until that is done.
        let _ = unsafe { result::free_sync(self.address) };
    }
}

/// Memory of the host that a GPU copies from and to by itself; cached, so that it is read fast.
pub(super) struct PinnedMemory {
    gpu: Arc<Gpu>,
    at: NonNull<u8>,
    bytes: usize,
}

// SAFETY: it is plain memory with one owner.
unsafe impl Send for PinnedMemory {}

impl PinnedMemory {
    pub(super) fn new(gpu: &Arc<Gpu>, bytes: usize) -> Answer<Self> {
        gpu.bind()?;
        // SAFETY: not of zero bytes. Flags of 0 are cached memory.
        let at = unsafe { result::malloc_host(bytes.max(16), 0) }?;
        let refusal = DriverError(sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY);
        let at = NonNull::new(at.cast::<u8>()).ok_or(refusal)?;
        // SAFETY: so many bytes were allocated; they are zeroed so that reading them is defined.
        unsafe { at.write_bytes(0, bytes) };
        Ok(Self { gpu: Arc::clone(gpu), at, bytes })
    }

    /// Its bytes.
    ///
    /// # Safety
    /// No copy into it is under way.
    pub(super) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: so many bytes were allocated and written, and nobody writes them meanwhile.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.bytes) }
    }

    /// Its bytes, to write.
    ///
    /// # Safety
    /// No copy into it or out of it is under way.
    pub(super) unsafe fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: so many bytes were allocated and written, and nobody else uses them meanwhile.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.bytes) }
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        let _ = self.gpu.bind();
        // SAFETY: it was allocated by `new`, and whoever ordered copies keeps it until they are done.
        let _ = unsafe { result::free_host(self.at.as_ptr().cast::<c_void>()) };
    }
}

/// A point in a stream that others can wait for.
pub(super) struct Event {
    gpu: Arc<Gpu>,
    raw: sys::CUevent,
}

// SAFETY: events are used by any thread.
unsafe impl Send for Event {}
// SAFETY: as above.
unsafe impl Sync for Event {}

impl Event {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Answer<Self> {
        use sys::CUevent_flags as F;
        gpu.bind()?;
        let flags = F::CU_EVENT_DISABLE_TIMING as u32 | F::CU_EVENT_BLOCKING_SYNC as u32;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the pointer is that of a local variable.
        unsafe { sys::cuEventCreate(&raw mut raw, flags) }.result()?;
        Ok(Self { gpu: Arc::clone(gpu), raw })
    }

    /// Waits on this thread until everything has happened that was recorded.
    pub(super) fn wait(&self) -> Answer<()> {
        self.gpu.bind()?;
        // SAFETY: the event lives.
        unsafe { result::event::synchronize(self.raw) }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        let _ = self.gpu.bind();
        // SAFETY: it was created by `new`; the driver keeps what is still waited for.
        let _ = unsafe { result::event::destroy(self.raw) };
    }
}

/// A compiled kernel, with the module that it is in.
pub(super) struct Function {
    gpu: Arc<Gpu>,
    module: sys::CUmodule,
    raw: sys::CUfunction,
}

// SAFETY: modules and functions are used by any thread.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

impl Function {
    /// The function `entry` of an image: PTX or machine code, as the compiler made it.
    pub(super) fn load(gpu: &Arc<Gpu>, image: &[u8], entry: &str) -> Answer<Self> {
        gpu.bind()?;
        let bad = DriverError(sys::CUresult::CUDA_ERROR_INVALID_IMAGE);
        // PTX is text that ends with a zero.
        let mut ended = image.to_vec();
        ended.push(0);
        let entry = CString::new(entry).map_err(|_| bad)?;
        // SAFETY: the image is whole, with a zero after it; the driver checks the rest.
        let module = unsafe { result::module::load_data(ended.as_ptr().cast()) }?;
        // SAFETY: the module was just loaded.
        match unsafe { result::module::get_function(module, entry) } {
            Ok(raw) => Ok(Self { gpu: Arc::clone(gpu), module, raw }),
            Err(refusal) => {
                // SAFETY: it was just loaded, and nothing of it is used.
                let _ = unsafe { result::module::unload(module) };
                Err(refusal)
            }
        }
    }
}

impl Drop for Function {
    fn drop(&mut self) {
        let _ = self.gpu.bind();
        // SAFETY: it was loaded by `load`, and whoever launched it keeps it until that is done.
        let _ = unsafe { result::module::unload(self.module) };
    }
}

/// Launches that are recorded, to be made by one call.
pub(super) struct Graph {
    gpu: Arc<Gpu>,
    raw: sys::CUgraphExec,
}

// SAFETY: a graph has one owner, who launches it from one thread at a time.
unsafe impl Send for Graph {}

impl Drop for Graph {
    fn drop(&mut self) {
        let _ = self.gpu.bind();
        // SAFETY: it was instantiated once; the driver keeps it as long as it runs.
        let _ = unsafe { result::graph::exec_destroy(self.raw) };
    }
}

/// An order of work on a GPU.
pub(super) struct Stream {
    gpu: Arc<Gpu>,
    raw: sys::CUstream,
}

// SAFETY: streams are used by any thread.
unsafe impl Send for Stream {}

impl Stream {
    pub(super) fn new(gpu: &Arc<Gpu>) -> Answer<Self> {
        gpu.bind()?;
        let raw = result::stream::create(result::stream::StreamKind::NonBlocking)?;
        Ok(Self { gpu: Arc::clone(gpu), raw })
    }

    /// The driver's own handle.
    pub(super) fn raw(&self) -> sys::CUstream {
        self.raw
    }

    /// What is ordered from now on waits for what was recorded last.
    pub(super) fn wait_for(&self, event: &Event) -> Answer<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: both live; the driver keeps what the event stands for.
        unsafe { result::stream::wait_event(self.raw, event.raw, flags) }
    }

    /// The event stands for everything that was ordered so far.
    pub(super) fn record(&self, event: &Event) -> Answer<()> {
        // SAFETY: both live.
        unsafe { result::event::record(event.raw, self.raw) }
    }

    /// Waits on this thread for everything that was ordered so far.
    pub(super) fn settle(&self) -> Answer<()> {
        self.gpu.bind()?;
        // SAFETY: the stream lives.
        unsafe { result::stream::synchronize(self.raw) }
    }

    /// Copies from the host.
    ///
    /// # Safety
    /// Both live, and the part of `from` is not written, until the copy has happened; nobody else
    /// uses the part of `to` meanwhile.
    pub(super) unsafe fn copy_in(
        &self,
        (to, at): (&DeviceMemory, usize),
        from: &PinnedMemory,
        offset: usize,
        bytes: usize,
    ) -> Answer<()> {
        if offset + bytes > from.bytes || at + bytes > to.bytes {
            return Err(BEYOND);
        }
        // SAFETY: the part lies within the memory; the rest is the caller's.
        let part = unsafe { std::slice::from_raw_parts(from.at.as_ptr().add(offset), bytes) };
        // SAFETY: the caller's.
        unsafe { result::memcpy_htod_async(to.address + at as u64, part, self.raw) }
    }

    /// Copies to the host.
    ///
    /// # Safety
    /// Both live, and nobody uses the part of `to`, until the copy has happened.
    pub(super) unsafe fn copy_out(
        &self,
        to: &mut PinnedMemory,
        offset: usize,
        from: &DeviceMemory,
        bytes: usize,
    ) -> Answer<()> {
        if offset + bytes > to.bytes || bytes > from.bytes {
            return Err(BEYOND);
        }
        // SAFETY: the part lies within the memory; the rest is the caller's.
        let part = unsafe { std::slice::from_raw_parts_mut(to.at.as_ptr().add(offset), bytes) };
        // SAFETY: the caller's.
        unsafe { result::memcpy_dtoh_async(part, from.address, self.raw) }
    }

    /// Copies between memories of GPUs, the same or two.
    ///
    /// # Safety
    /// Both live until the copy has happened; nobody else uses `to` meanwhile.
    pub(super) unsafe fn copy_across(
        &self,
        to: &DeviceMemory,
        from: &DeviceMemory,
        bytes: usize,
    ) -> Answer<()> {
        if bytes > to.bytes || bytes > from.bytes {
            return Err(BEYOND);
        }
        if Arc::ptr_eq(&to.gpu, &from.gpu) {
            // SAFETY: the caller's.
            return unsafe { result::memcpy_dtod_async(to.address, from.address, bytes, self.raw) };
        }
        let (of, by) = (to.gpu.context, from.gpu.context);
        // SAFETY: the caller's.
        unsafe { result::memcpy_peer_async(of, to.address, by, from.address, bytes, self.raw) }
    }

    /// Launches a kernel whose parameters are pointers.
    ///
    /// # Safety
    /// The kernel takes these parameters and stays within what they point to, all of which lives,
    /// as the kernel does, until it has run.
    pub(super) unsafe fn launch(
        &self,
        function: &Function,
        groups: [u32; 3],
        threads: [u32; 3],
        parameters: &mut [u64],
    ) -> Answer<()> {
        let mut pointers: Vec<*mut c_void> =
            parameters.iter_mut().map(|p| (&raw mut *p).cast::<c_void>()).collect();
        // SAFETY: the driver copies the parameters before it returns; the rest is the caller's.
        unsafe {
            result::launch_kernel(
                function.raw,
                groups.into(),
                threads.into(),
                0,
                self.raw,
                &mut pointers,
            )
        }
    }

    /// Records what `order` orders on this stream instead of running it.
    pub(super) fn capture(&self, order: impl FnOnce() -> Answer<()>) -> Answer<Graph> {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives.
        unsafe { result::stream::begin_capture(self.raw, mode) }?;
        let ordered = order();
        // SAFETY: a capture was begun; it has to be ended, however it went.
        let graph = unsafe { result::stream::end_capture(self.raw) };
        ordered?;
        let graph = graph?;
        // SAFETY: the graph was just made.
        let raw = unsafe { result::graph::instantiate(graph, sys::CUgraphInstantiate_flags(0)) };
        // SAFETY: what was instantiated does not need it.
        let _ = unsafe { result::graph::destroy(graph) };
        Ok(Graph { gpu: Arc::clone(&self.gpu), raw: raw? })
    }

    /// Runs what was recorded.
    ///
    /// # Safety
    /// As for each launch in it, from now on.
    pub(super) unsafe fn replay(&self, graph: &Graph) -> Answer<()> {
        // SAFETY: both live; the rest is the caller's.
        unsafe { result::graph::launch(graph.raw, self.raw) }
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        let _ = self.gpu.bind();
        // SAFETY: it was created by `new`; what was ordered still happens.
        let _ = unsafe { result::stream::destroy(self.raw) };
    }
}
