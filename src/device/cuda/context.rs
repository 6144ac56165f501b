//! One opened GPU: its kernels, its constants, its faults.

use std::any::Any;
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

use cudarc::driver::result::DriverError;

use super::blas::Blas;
use super::compiler::{self, Capability, ENTRY, at_once};
use super::driver::{
    self, Answer, DeviceMemory, Event, Function, Gpu, PinnedMemory, Stream, is_bad_image, is_final,
    is_out_of_memory, words,
};
use crate::device::gpu::{Completion, Duties, Ended, Faults, lock};
use crate::error::{Error, Result, err};
use crate::gpu::Kernel;
use crate::ops::Precision;
use crate::tensor::QueueId;

/// The oldest driver that is used, as it counts: that of CUDA 12 or 13, whose bindings these are.
const OLDEST: i32 = if cfg!(feature = "cuda-13") { 13_000 } else { 12_000 };

/// Bytes that are copied at once where constants are uploaded.
const STAGING: usize = 8 << 20;

/// One opened GPU.
pub(super) struct Context {
    pub(super) gpu: Arc<Gpu>,
    /// The name of the device, such as `cuda:0`.
    pub(super) name: String,
    /// The name of the memory of all GPUs, between which tensors go without the host.
    pub(super) memory: Arc<str>,
    pub(super) product: String,
    pub(super) capability: Capability,
    pub(super) memory_bytes: usize,
    pub(super) multiprocessors: usize,
    /// The driver's version, as it counts.
    pub(super) driver: i32,
    pub(super) compiler: Option<(i32, i32)>,
    /// Products by cuBLASLt, where it is.
    pub(super) blas: Option<Blas>,
    faults: Arc<Faults>,
    folder: Option<PathBuf>,
    /// By the kernels' text.
    kernels: Mutex<HashMap<String, Arc<Function>>>,
    uploads: Mutex<Option<(Stream, PinnedMemory)>>,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.product)
    }
}

/// The GPUs that were opened by this process: each once, so that all segments of all pipelines share
/// its kernels. A driver does not recover from a fault, so a lost one stays.
static OPENED: Mutex<BTreeMap<u32, Arc<Context>>> = Mutex::new(BTreeMap::new());

/// How many GPUs there are.
///
/// # Errors
/// Why none can be used, in words.
pub(super) fn count() -> Result<u32, String> {
    // SAFETY: it loads and unloads the library of the driver, which does nothing before it is
    // initialised.
    if !unsafe { cudarc::driver::sys::is_culib_present() } {
        return Err("NVIDIA's driver (libcuda) was not found".to_owned());
    }
    let said = |e| format!("NVIDIA's driver: {}", words(e));
    let version = driver::version().map_err(said)?;
    if version < OLDEST {
        let shown = |v: i32| format!("{}.{}", v / 1000, v % 1000 / 10);
        return Err(format!(
            "NVIDIA's driver is for CUDA {}; at least {} is needed",
            shown(version),
            shown(OLDEST)
        ));
    }
    driver::count().map_err(said)
}

/// What an actor's thread waits for.
pub(super) enum Duty {
    /// An item, which is done when the event has happened.
    See(Arc<Event>, Completion),
    /// The end, with what has to live until then.
    End(Box<dyn Any + Send>),
}

impl Context {
    /// The GPU with this number; opened if it is not yet.
    ///
    /// # Errors
    /// Why it cannot be used, in words.
    pub(super) fn open(number: u32) -> Result<Arc<Self>, String> {
        let mut opened = lock(&OPENED);
        if let Some(context) = opened.get(&number) {
            return Ok(Arc::clone(context));
        }
        match count()? {
            0 => return Err("NVIDIA's driver finds no GPU".to_owned()),
            n if number >= n => return Err(format!("there are {n} GPUs, numbered from 0")),
            _ => {}
        }
        let context = Self::with(number).map_err(|e| format!("NVIDIA's driver: {}", words(e)))?;
        let context = Arc::new(context);
        opened.insert(number, Arc::clone(&context));
        Ok(context)
    }

    fn with(number: u32) -> Answer<Self> {
        let gpu = Arc::new(Gpu::open(number)?);
        gpu.bind()?;
        Ok(Self {
            name: format!("cuda:{number}"),
            memory: "cuda".into(),
            product: gpu.name()?,
            capability: gpu.capability()?,
            memory_bytes: gpu.memory_bytes()?,
            multiprocessors: gpu.multiprocessors()?,
            driver: driver::version()?,
            compiler: compiler::version(),
            blas: Blas::open(),
            faults: Arc::default(),
            folder: compiler::folder(),
            kernels: Mutex::default(),
            uploads: Mutex::default(),
            gpu,
        })
    }

    /// The order of everything on any GPU: whoever takes a tensor waits for its event.
    pub(super) fn order() -> QueueId {
        static ORDER: OnceLock<QueueId> = OnceLock::new();
        *ORDER.get_or_init(QueueId::unique)
    }

    /// What products are computed in: other than in f32 by cuBLASLt alone, on GPUs that have units for it.
    pub(super) fn precisions(&self) -> &'static [Precision] {
        match (&self.blas, self.capability) {
            (None, _) => &[Precision::F32],
            (_, (8.., _)) => &[Precision::F32, Precision::Tf32, Precision::Bf16, Precision::F16],
            (_, (7, _)) => &[Precision::F32, Precision::F16],
            _ => &[Precision::F32],
        }
    }

    pub(super) fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    /// Whether the device is still there.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check(&self) -> Result<()> {
        match self.faults.lost() {
            None => Ok(()),
            Some(why) => Err(err!(Device, "the device is lost: {why}")
                .with_device(self.name.clone())
                .with_help("CUDA does not recover within a process; start it again")),
        }
    }

    /// What the driver answered, or its refusal as an error.
    ///
    /// # Errors
    /// The refusal.
    pub(super) fn answered<T>(&self, doing: &str, answer: Answer<T>) -> Result<T> {
        answer.map_err(|refusal| self.refused(doing, refusal))
    }

    /// A refusal as an error.
    pub(super) fn refused(&self, doing: &str, refusal: DriverError) -> Error {
        let why = words(refusal);
        if is_final(refusal) {
            self.faults.lose(why.clone());
        }
        let error = match is_out_of_memory(refusal) {
            true => err!(Limit, "{doing}: {why}"),
            false => err!(Device, "{doing}: {why}"),
        };
        error.with_device(self.name.clone())
    }

    /// The kernels, each compiled once; those that are not yet are compiled at the same time.
    ///
    /// # Errors
    /// If one does not compile, or the driver refuses it.
    pub(super) fn functions(&self, kernels: &[&Kernel]) -> Result<Vec<Arc<Function>>> {
        let texts: Vec<String> = kernels.iter().map(|k| k.cuda(ENTRY)).collect();
        let mut missing: Vec<(&str, &str)> = Vec::new();
        {
            let known = lock(&self.kernels);
            for (kernel, text) in kernels.iter().zip(&texts) {
                if !known.contains_key(text) && !missing.iter().any(|(_, t)| *t == text.as_str()) {
                    missing.push((&kernel.name, text));
                }
            }
        }
        let made = at_once(&missing, |(name, text)| Ok((*text, self.load(name, text)?)));
        let mut known = lock(&self.kernels);
        for one in made {
            let (text, function) = one?;
            known.entry(text.to_owned()).or_insert(function);
        }
        let found = |text: &String| {
            known.get(text).cloned().ok_or_else(|| err!(Internal, "a kernel was not compiled"))
        };
        texts.iter().map(found).collect()
    }

    fn load(&self, name: &str, text: &str) -> Result<Arc<Function>> {
        let what = || format!("compiling kernel `{name}`");
        for again in [true, false] {
            let image =
                compiler::image(text, self.capability, self.folder.as_deref(), self.compiler);
            let image = image
                .map_err(|why| err!(Device, "{}: {why}", what()).with_device(self.name.clone()))?;
            match Function::load(&self.gpu, &image, ENTRY) {
                Ok(function) => return Ok(Arc::new(function)),
                // What was compiled for another driver may be refused by this one.
                Err(refusal) if again && self.compiler.is_some() && is_bad_image(refusal) => {
                    compiler::forget(text, self.capability, self.folder.as_deref());
                }
                Err(refusal) => return Err(self.refused(&what(), refusal)),
            }
        }
        Err(err!(Internal, "{}: it was tried twice", what()))
    }

    /// Memory with these contents.
    ///
    /// # Errors
    /// If it cannot be had.
    pub(super) fn filled(&self, bytes: &[u8]) -> Result<Arc<DeviceMemory>> {
        let filled = || -> Answer<DeviceMemory> {
            let memory = DeviceMemory::new(&self.gpu, bytes.len())?;
            let mut uploads = lock(&self.uploads);
            let (stream, staging) = match &mut *uploads {
                Some(both) => both,
                none => {
                    none.insert((Stream::new(&self.gpu)?, PinnedMemory::new(&self.gpu, STAGING)?))
                }
            };
            for (i, part) in bytes.chunks(STAGING).enumerate() {
                // SAFETY: the copy of the part before is waited for below.
                let room = unsafe { staging.bytes_mut() };
                room[..part.len()].copy_from_slice(part);
                let to = (&memory, i * STAGING);
                // SAFETY: all of it lives until the copy has happened, which is waited for.
                let copied = unsafe { stream.copy_in(to, staging, 0, part.len()) };
                copied.and(stream.settle())?;
            }
            Ok(memory)
        };
        self.answered("uploading", filled()).map(Arc::new)
    }

    /// Starts the thread that waits for an actor's items.
    ///
    /// # Errors
    /// If it cannot be started.
    pub(super) fn start_waiting(&self) -> Result<Arc<Duties<Duty>>> {
        let duties = Arc::new(Duties::default());
        let (to_do, faults) = (Arc::clone(&duties), Arc::clone(&self.faults));
        let waiter = Waiter::new();
        let started = std::thread::Builder::new()
            .name(format!("{}-wait", self.name.replace(':', "-")))
            .spawn(move || {
                let _waiter = waiter;
                wait(&to_do, &faults);
            });
        match started {
            Ok(_) => Ok(duties),
            Err(e) => Err(err!(Device, "its waiting thread could not be started: {e}")
                .with_device(self.name.clone())),
        }
    }
}

/// The threads that wait for items: a process that ends while one of them is in the driver may crash.
static WAITERS: (Mutex<usize>, Condvar) = (Mutex::new(0), Condvar::new());

struct Waiter;

impl Waiter {
    fn new() -> Self {
        *lock(&WAITERS.0) += 1;
        Self
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        *lock(&WAITERS.0) -= 1;
        WAITERS.1.notify_all();
    }
}

/// Waits until what was dropped has been given back to the driver, no longer than this.
pub(super) fn settle(most: Duration) {
    let waiters = lock(&WAITERS.0);
    let _ = WAITERS.1.wait_timeout_while(waiters, most, |left| *left > 0);
}

/// Sees items through until the end.
fn wait(duties: &Duties<Duty>, faults: &Arc<Faults>) {
    let unexpected = Ended::new(Arc::clone(faults));
    loop {
        match duties.next() {
            Duty::See(event, completion) => match event.wait() {
                Ok(()) => completion.complete(),
                // The completion says that the item failed when it is dropped.
                Err(refusal) => faults.lose(words(refusal)),
            },
            Duty::End(kept) => {
                drop(kept);
                unexpected.expected();
                return;
            }
        }
    }
}
