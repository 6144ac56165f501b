//! An asynchronous device with memory of its own: one queue, worked off by one thread in the order
//! of submission, late. What is read too early is not there, and fails its item.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded};

use brigade::device::{
    CompiledSegment, CpuDevice, Delivery, Device, DeviceInfo, Instance, InstanceOptions, Submitted,
    Support, Unavailable, run_submitted,
};
use brigade::graph::{Fact, Graph, Node};
use brigade::ops::OpRegistry;
use brigade::tensor::{Event, QueueId, Resident, Signal};
use brigade::{CompileOptions, DeviceId, Error, ErrorKind, Result, Tensor, Value};

/// A tensor in the device's memory, once it is there.
type Cell = Arc<OnceLock<Tensor>>;

enum Argument {
    Host(Tensor),
    Device(Cell),
}

/// What comes of a job: every output, on the host.
type Finished = Box<dyn FnOnce(Result<Vec<Tensor>>) + Send>;

struct Job {
    segment: Arc<dyn CompiledSegment>,
    inputs: Vec<Argument>,
    outputs: Vec<(Cell, Signal)>,
    finished: Finished,
}

/// When something was done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Span {
    pub(crate) begin: Instant,
    pub(crate) end: Instant,
}

impl Span {
    pub(crate) fn length(&self) -> Duration {
        self.end - self.begin
    }

    pub(crate) fn holds(&self, at: Instant) -> bool {
        self.begin <= at && at < self.end
    }
}

/// What a device did.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Calls of `submit`.
    pub(crate) submits: Mutex<Vec<Span>>,
    /// Jobs, from when they began on the device until they were complete.
    pub(crate) jobs: Mutex<Vec<Span>>,
    /// The most items under way in one instance.
    pub(crate) most_open: AtomicUsize,
    /// How many tensors left an instance in the device's memory.
    pub(crate) handed_over: AtomicUsize,
    /// How many tensors were copied to the host.
    pub(crate) read_back: AtomicUsize,
}

#[derive(Debug)]
pub(crate) struct Queued {
    cpu: CpuDevice,
    refuses: &'static [&'static str],
    queue: QueueId,
    jobs: Sender<Job>,
    slots: usize,
    pub(crate) log: Arc<Log>,
}

impl Queued {
    /// A device whose jobs take a time of `delay`, which is given the job's number.
    pub(crate) fn new(name: &str, delay: fn(u64) -> Duration) -> Self {
        let (jobs, todo) = bounded(1024);
        let log = Arc::new(Log::default());
        let book = Arc::clone(&log);
        std::thread::spawn(move || work(&todo, delay, &book));
        Self {
            cpu: CpuDevice::named(super::id(name), OpRegistry::default()),
            refuses: &[],
            queue: QueueId::unique(),
            jobs,
            slots: 2,
            log,
        }
    }

    pub(crate) fn refusing(mut self, ops: &'static [&'static str]) -> Self {
        self.refuses = ops;
        self
    }
}

/// The first element of an item's first input that makes its job fail.
pub(crate) const UNLUCKY: f32 = 13.0;

/// The first element of an item's first input that makes the device be lost to its instance.
pub(crate) const LOST: f32 = 66.0;

fn failed(why: &str) -> Error {
    Error::new(ErrorKind::Device, why)
}

/// The device's own thread.
fn work(todo: &Receiver<Job>, delay: fn(u64) -> Duration, log: &Log) {
    let mut instances: HashMap<*const (), Box<dyn Instance>> = HashMap::new();
    for (number, job) in todo.iter().enumerate() {
        let begin = Instant::now();
        let mut run = || -> Result<Vec<Tensor>> {
            let mut inputs: Vec<Value> = Vec::new();
            for input in &job.inputs {
                inputs.push(match input {
                    Argument::Host(t) => t.clone().into(),
                    Argument::Device(cell) => match cell.get() {
                        Some(t) => t.clone().into(),
                        None => return Err(failed("memory was read before it was written")),
                    },
                });
            }
            let first = inputs[0].tensor()?.as_slice::<f32>()?.first().copied();
            if first == Some(UNLUCKY) {
                return Err(failed("unlucky"));
            }
            let key = Arc::as_ptr(&job.segment).cast::<()>();
            let instance = match instances.entry(key) {
                std::collections::hash_map::Entry::Occupied(e) => e.into_mut(),
                std::collections::hash_map::Entry::Vacant(e) => {
                    e.insert(job.segment.instance(InstanceOptions::for_this_thread())?)
                }
            };
            instance.run(inputs)?.into_iter().map(Value::into_tensor).collect()
        };
        let result = run();
        // The tensors are written and complete only after the delay: whoever reads at once fails.
        std::thread::sleep(delay(number as u64));
        for (i, (cell, signal)) in job.outputs.into_iter().enumerate() {
            match &result {
                Ok(tensors) => {
                    let _ = cell.set(tensors[i].clone());
                    signal.complete(Ok(()));
                }
                Err(e) => signal.complete(Err(e.clone())),
            }
        }
        log.jobs.lock().unwrap().push(Span { begin, end: Instant::now() });
        (job.finished)(result);
    }
}

impl Device for Queued {
    fn id(&self) -> &DeviceId {
        self.cpu.id()
    }

    fn probe(&self) -> Result<DeviceInfo, Unavailable> {
        self.cpu.probe()
    }

    fn has_own_memory(&self) -> bool {
        true
    }

    fn supports(&self, node: &Node, facts: &[Option<Fact>]) -> Support {
        if self.refuses.contains(&node.op.as_str()) {
            return Support::No(format!("it has no kernel for {}", node.op));
        }
        self.cpu.supports(node, facts)
    }

    fn compile(&self, graph: Graph, options: &CompileOptions) -> Result<Arc<dyn CompiledSegment>> {
        let facts = graph.outputs().iter().map(|v| graph.value(*v).fact.clone()).collect();
        Ok(Arc::new(QueuedSegment {
            inner: self.cpu.compile(graph, options)?,
            facts,
            name: self.id().to_string().into(),
            queue: self.queue,
            jobs: self.jobs.clone(),
            slots: self.slots,
            log: Arc::clone(&self.log),
        }))
    }
}

#[derive(Debug)]
struct QueuedSegment {
    inner: Arc<dyn CompiledSegment>,
    facts: Vec<Fact>,
    name: Arc<str>,
    queue: QueueId,
    jobs: Sender<Job>,
    slots: usize,
    log: Arc<Log>,
}

impl CompiledSegment for QueuedSegment {
    fn inputs(&self) -> Vec<(String, Fact)> {
        self.inner.inputs()
    }

    fn outputs(&self) -> Vec<String> {
        self.inner.outputs()
    }

    fn weight_bytes(&self) -> usize {
        self.inner.weight_bytes()
    }

    fn instance(&self, options: InstanceOptions) -> Result<Box<dyn Instance>> {
        Ok(Box::new(QueuedInstance {
            segment: Arc::clone(&self.inner),
            facts: self.facts.clone(),
            name: Arc::clone(&self.name),
            queue: self.queue,
            jobs: self.jobs.clone(),
            slots: self.slots,
            log: Arc::clone(&self.log),
            options,
            done: Arc::default(),
            open: HashMap::new(),
            lost: false,
        }))
    }
}

struct QueuedInstance {
    segment: Arc<dyn CompiledSegment>,
    facts: Vec<Fact>,
    name: Arc<str>,
    queue: QueueId,
    jobs: Sender<Job>,
    slots: usize,
    log: Arc<Log>,
    options: InstanceOptions,
    /// What the device has completed.
    done: Arc<Mutex<Vec<(u64, Result<Vec<Tensor>>)>>>,
    /// The outputs of the items under way, in the device's memory.
    open: HashMap<u64, Vec<Resident>>,
    lost: bool,
}

impl Instance for QueuedInstance {
    fn slots(&self) -> usize {
        self.slots
    }

    fn run(&mut self, inputs: Vec<Value>) -> Result<Vec<Value>> {
        run_submitted(self, inputs)
    }

    fn submit(&mut self, item: u64, inputs: Vec<Value>) -> Result<Submitted> {
        let begin = Instant::now();
        if self.lost {
            return Err(failed("the device is lost"));
        }
        if let Value::Tensor(t) = &inputs[0]
            && t.as_slice::<f32>()?[0] == LOST
        {
            self.lost = true;
            self.options.waker.wake_by_ref();
        }
        let mut arguments = Vec::new();
        for input in inputs {
            arguments.push(match input {
                Value::Resident(r) => match r.queued::<Cell>(self.queue) {
                    Some(cell) => Argument::Device(Arc::clone(cell)),
                    None => return Err(failed("that is of another queue")),
                },
                host => Argument::Host(host.into_tensor()?),
            });
        }
        let (mut cells, mut residents) = (Vec::new(), Vec::new());
        for fact in &self.facts {
            let shape: Vec<usize> =
                fact.shape.iter().flatten().map(|d| d.as_extent().unwrap()).collect();
            let (signal, event) = Event::pair();
            let cell = Cell::default();
            let (name, memory) = (Arc::clone(&self.name), Arc::new(Arc::clone(&cell)));
            let dtype = fact.dtype.unwrap();
            residents.push(Resident::new(name, self.queue, dtype, shape, memory, event));
            cells.push((cell, signal));
        }
        let count = residents.len();
        let at_once = (0..count).all(|i| self.options.delivery(i) == Delivery::Device);
        let (done, waker) = (Arc::clone(&self.done), self.options.waker.clone());
        let finished: Finished = Box::new(move |result| {
            if !at_once {
                done.lock().unwrap().push((item, result));
                waker.wake();
            }
        });
        let segment = Arc::clone(&self.segment);
        let job = Job { segment, inputs: arguments, outputs: cells, finished };
        self.jobs.send(job).map_err(|_| failed("the device is gone"))?;
        self.log.submits.lock().unwrap().push(Span { begin, end: Instant::now() });
        if at_once {
            self.log.handed_over.fetch_add(count, Ordering::SeqCst);
            return Ok(Submitted::Done(residents.into_iter().map(Value::Resident).collect()));
        }
        self.open.insert(item, residents);
        self.log.most_open.fetch_max(self.open.len(), Ordering::SeqCst);
        Ok(Submitted::Pending)
    }

    fn poll(&mut self, finished: &mut dyn FnMut(u64, Result<Vec<Value>>)) -> Result<()> {
        if self.lost {
            self.open.clear();
            return Err(failed("the device is lost"));
        }
        for (item, result) in self.done.lock().unwrap().drain(..) {
            let Some(residents) = self.open.remove(&item) else { continue };
            let values = result.map(|tensors| {
                let outputs = residents.into_iter().zip(tensors).enumerate();
                let deliver = |(i, (resident, tensor)): (usize, (Resident, Tensor))| {
                    let needed = self.options.delivery(i);
                    self.log
                        .handed_over
                        .fetch_add(usize::from(needed.on_device()), Ordering::SeqCst);
                    self.log.read_back.fetch_add(usize::from(needed.on_host()), Ordering::SeqCst);
                    match needed {
                        Delivery::Host => Value::from(tensor),
                        Delivery::Device => Value::Resident(resident),
                        Delivery::Both => Value::Resident(resident.with_host(tensor)),
                    }
                };
                outputs.map(deliver).collect()
            });
            finished(item, values);
        }
        Ok(())
    }
}
