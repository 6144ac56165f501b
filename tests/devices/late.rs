//! `wgpu:0` without some operators, whose items come to their ends later than the driver says.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use brigade::device::{
    CompiledSegment, Device, DeviceInfo, Instance, InstanceOptions, Submitted, Support,
    Unavailable, WgpuDevice, run_submitted,
};
use brigade::graph::{Fact, Graph, Node};
use brigade::ops::OpRegistry;
use brigade::{CompileOptions, DeviceId, Result, Value};

/// What passed between the device and its actors.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Items that left the device without a copy on the host.
    pub(crate) left: AtomicUsize,
    /// Of these, those that were not complete when they left.
    pub(crate) unready: AtomicUsize,
    /// Tensors that were given out with a copy on the host, or as one, before the device was done.
    pub(crate) early: AtomicUsize,
    /// Items that were held back.
    pub(crate) held: AtomicUsize,
}

/// The device.
#[derive(Debug)]
pub(crate) struct Late {
    device: WgpuDevice,
    refuses: &'static [&'static str],
    delay: fn(usize) -> Duration,
    pub(crate) seen: Arc<Seen>,
}

impl Late {
    /// Without these operators; item by item, so much is waited after the device is done.
    pub(crate) fn new(refuses: &'static [&'static str], delay: fn(usize) -> Duration) -> Self {
        let device = WgpuDevice::new(0, OpRegistry::default()).unwrap();
        Self { device, refuses, delay, seen: Arc::default() }
    }
}

impl Device for Late {
    fn id(&self) -> &DeviceId {
        self.device.id()
    }

    fn probe(&self) -> Result<DeviceInfo, Unavailable> {
        self.device.probe()
    }

    fn has_own_memory(&self) -> bool {
        true
    }

    fn supports(&self, node: &Node, facts: &[Option<Fact>]) -> Support {
        if self.refuses.contains(&node.op.as_str()) {
            return Support::No(format!("{} is left out by the test", node.op));
        }
        self.device.supports(node, facts)
    }

    fn compile(&self, graph: Graph, options: &CompileOptions) -> Result<Arc<dyn CompiledSegment>> {
        let inner = self.device.compile(graph, options)?;
        Ok(Arc::new(LateSegment { inner, delay: self.delay, seen: Arc::clone(&self.seen) }))
    }
}

#[derive(Debug)]
struct LateSegment {
    inner: Arc<dyn CompiledSegment>,
    delay: fn(usize) -> Duration,
    seen: Arc<Seen>,
}

impl CompiledSegment for LateSegment {
    fn inputs(&self) -> Vec<(String, Fact)> {
        self.inner.inputs()
    }

    fn outputs(&self) -> Vec<String> {
        self.inner.outputs()
    }

    fn weight_bytes(&self) -> usize {
        self.inner.weight_bytes()
    }

    fn connect(&self, output: usize, to: &dyn CompiledSegment, input: usize) -> Result<()> {
        self.inner.connect(output, to, input)
    }

    fn as_any(&self) -> Option<&dyn std::any::Any> {
        self.inner.as_any()
    }

    fn instance(&self, options: InstanceOptions) -> Result<Box<dyn Instance>> {
        Ok(Box::new(LateInstance {
            inner: self.inner.instance(options.clone())?,
            options,
            delay: self.delay,
            seen: Arc::clone(&self.seen),
            held: Vec::new(),
            count: 0,
        }))
    }
}

struct LateInstance {
    inner: Box<dyn Instance>,
    options: InstanceOptions,
    delay: fn(usize) -> Duration,
    seen: Arc<Seen>,
    /// When each item may leave.
    held: Vec<(Instant, u64, Result<Vec<Value>>)>,
    count: usize,
}

impl Instance for LateInstance {
    fn slots(&self) -> usize {
        self.inner.slots()
    }

    fn run(&mut self, inputs: Vec<Value>) -> Result<Vec<Value>> {
        run_submitted(self, inputs)
    }

    fn submit(&mut self, item: u64, inputs: Vec<Value>) -> Result<Submitted> {
        let submitted = self.inner.submit(item, inputs)?;
        if let Submitted::Done(values) = &submitted {
            self.seen.left.fetch_add(1, Ordering::SeqCst);
            let ready = |v: &Value| !matches!(v, Value::Resident(r) if !r.ready().is_done());
            if !values.iter().all(ready) {
                self.seen.unready.fetch_add(1, Ordering::SeqCst);
            }
        }
        Ok(submitted)
    }

    fn poll(&mut self, finished: &mut dyn FnMut(u64, Result<Vec<Value>>)) -> Result<()> {
        let new = Mutex::new(Vec::new());
        self.inner.poll(&mut |item, result| new.lock().unwrap().push((item, result)))?;
        for (item, result) in new.into_inner().unwrap() {
            for value in result.iter().flatten() {
                if matches!(value, Value::Resident(r) if r.host().is_some() && !r.ready().is_done())
                {
                    self.seen.early.fetch_add(1, Ordering::SeqCst);
                }
            }
            self.count += 1;
            let delay = (self.delay)(self.count);
            self.seen.held.fetch_add(1, Ordering::SeqCst);
            self.held.push((Instant::now() + delay, item, result));
            let waker = self.options.waker.clone();
            std::thread::spawn(move || {
                std::thread::sleep(delay + Duration::from_micros(50));
                waker.wake();
            });
        }
        let now = Instant::now();
        let (over, held) = self.held.drain(..).partition(|(at, ..)| *at <= now);
        self.held = held;
        let over: Vec<(Instant, u64, Result<Vec<Value>>)> = over;
        for (_, item, result) in over {
            finished(item, result);
        }
        Ok(())
    }
}
