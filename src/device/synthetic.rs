//! A device that computes on the CPU's kernels and takes the time that it is told to take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use brigade_actors::synthetic::{Fate, Synthetic, sleep_until};

use super::{
    CompiledSegment, CpuDevice, Device, DeviceId, DeviceInfo, Instance, InstanceOptions, Support,
    Unavailable,
};
use crate::error::{Result, err};
use crate::graph::{Fact, Graph, Node};
use crate::ops::{CompileOptions, OpRegistry, Precision, SegmentProfile};
use crate::tensor::Value;

/// A stand-in for a device that is not here: what it computes is right, how long it takes, and how
/// often it fails or panics, is stated. It is registered, not built in, because its times have to
/// be stated.
///
/// Each run of a segment is one firing of the given [`Synthetic`], numbered from 0 by segment;
/// segment *n* that is compiled draws as its [`nth`](Synthetic::nth).
///
/// ```
/// use std::sync::Arc;
/// use std::time::{Duration, Instant};
/// use brigade::device::SyntheticDevice;
/// use brigade::ops::builder::GraphBuilder;
/// use brigade::{DType, Pipeline, Registry, Tensor};
/// use brigade_actors::synthetic::Synthetic;
///
/// let gpu = SyntheticDevice::new("gpu:0".parse()?, Synthetic::new(Duration::from_millis(20)));
/// let mut g = GraphBuilder::new("g");
/// let x = g.input("x", DType::F32, [2.into()])?;
/// let h = g.relu(x)?;
/// let y = g.add(h, h)?;
/// let pipeline = Pipeline::builder(g.finish([("y", y)])?)
///     .registry(Registry::default().with_device(Arc::new(gpu)))
///     .stages(2, &["gpu:0", "cpu:0"])?
///     .spawn()?;
/// let began = Instant::now();
/// let outputs = pipeline.run([("x", Tensor::new([2], vec![1.5_f32, -1.0])?)])?;
/// assert_eq!(outputs[0].tensor()?.as_slice::<f32>()?, [3.0, 0.0]);
/// assert!(began.elapsed() >= Duration::from_millis(20));
/// # Ok::<(), brigade::Error>(())
/// ```
#[derive(Debug)]
pub struct SyntheticDevice {
    cpu: CpuDevice,
    spec: Synthetic,
    extra: bool,
    lanes: usize,
    segments: AtomicU64,
}

impl SyntheticDevice {
    /// A device under this name on which each run of a segment takes as long as `spec` says, or as
    /// long as the kernels take where that is longer. It has the operators of the CPU, and is
    /// synchronous: a run takes the sum of its transfers and its computing, whatever the slots.
    pub fn new(id: DeviceId, spec: Synthetic) -> Self {
        let cpu = CpuDevice::named(id, OpRegistry::default());
        Self { cpu, spec, extra: false, lanes: 1, segments: AtomicU64::new(0) }
    }

    /// Takes the stated time on top of what the kernels take.
    #[must_use]
    pub fn extra(mut self) -> Self {
        self.extra = true;
        self
    }

    /// How many actors may compute on it at once; 0 counts as 1.
    #[must_use]
    pub fn with_lanes(mut self, lanes: usize) -> Self {
        self.lanes = lanes.max(1);
        self
    }
}

impl Device for SyntheticDevice {
    fn id(&self) -> &DeviceId {
        self.cpu.id()
    }

    fn probe(&self) -> Result<DeviceInfo, Unavailable> {
        let info = self.cpu.probe()?;
        let name = format!("synthetic, on {}", info.name);
        Ok(DeviceInfo { name, lanes: self.lanes, ..info })
    }

    fn lanes(&self) -> usize {
        self.lanes
    }

    fn precisions(&self) -> &[Precision] {
        self.cpu.precisions()
    }

    fn supports(&self, node: &Node, facts: &[Option<Fact>]) -> Support {
        self.cpu.supports(node, facts)
    }

    fn compile(&self, graph: Graph, options: &CompileOptions) -> Result<Arc<dyn CompiledSegment>> {
        let segment = self.cpu.compile(graph, options)?;
        let pace = Arc::new(Pace {
            spec: self.spec.nth(self.segments.fetch_add(1, Ordering::Relaxed)),
            extra: self.extra,
            id: self.id().clone(),
            runs: AtomicU64::new(0),
        });
        Ok(Arc::new(SyntheticSegment { segment, pace }))
    }
}

/// What the instances of one segment share.
#[derive(Debug)]
struct Pace {
    spec: Synthetic,
    extra: bool,
    id: DeviceId,
    runs: AtomicU64,
}

impl Pace {
    /// Computes, and returns when the time of this run is over.
    fn run(&self, compute: impl FnOnce() -> Result<Vec<Value>>) -> Result<Vec<Value>> {
        let run = self.runs.fetch_add(1, Ordering::Relaxed);
        let began = Instant::now();
        let draw = self.spec.draw(run);
        let outputs = if draw.fate == Fate::Value { compute()? } else { Vec::new() };
        let base = if self.extra { Instant::now() } else { began };
        let ended = sleep_until(base + draw.total());
        self.spec
            .settle(run, draw, ended.saturating_duration_since(began))
            .map_err(|e| err!(Kernel, "{}", e.message()).with_device(self.id.to_string()))?;
        Ok(outputs)
    }
}

#[derive(Debug)]
struct SyntheticSegment {
    segment: Arc<dyn CompiledSegment>,
    pace: Arc<Pace>,
}

impl CompiledSegment for SyntheticSegment {
    fn inputs(&self) -> Vec<(String, Fact)> {
        self.segment.inputs()
    }

    fn outputs(&self) -> Vec<String> {
        self.segment.outputs()
    }

    fn weight_bytes(&self) -> usize {
        self.segment.weight_bytes()
    }

    fn instance(&self, options: InstanceOptions) -> Result<Box<dyn Instance>> {
        let instance = self.segment.instance(options)?;
        Ok(Box::new(SyntheticInstance { instance, pace: Arc::clone(&self.pace) }))
    }

    fn profile(&self) -> Option<SegmentProfile> {
        self.segment.profile()
    }
}

struct SyntheticInstance {
    instance: Box<dyn Instance>,
    pace: Arc<Pace>,
}

impl Instance for SyntheticInstance {
    fn run(&mut self, inputs: Vec<Value>) -> Result<Vec<Value>> {
        self.pace.run(|| self.instance.run(inputs))
    }

    fn run_observed(
        &mut self,
        inputs: Vec<Value>,
        observe: &mut dyn FnMut(&str, &str, &[Value]),
    ) -> Result<Vec<Value>> {
        self.pace.run(|| self.instance.run_observed(inputs, observe))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::ErrorKind;
    use crate::ops::builder::GraphBuilder;
    use crate::tensor::{DType, Tensor};

    const MS: Duration = Duration::from_millis(1);

    fn instance(device: &SyntheticDevice) -> Box<dyn Instance> {
        let mut g = GraphBuilder::new("g");
        let x = g.input("x", DType::F32, [2.into()]).unwrap();
        let y = g.relu(x).unwrap();
        let graph = g.finish([("y", y)]).unwrap();
        let segment = device.compile(graph, &CompileOptions::default()).unwrap();
        segment.instance(InstanceOptions::for_this_thread()).unwrap()
    }

    fn inputs() -> Vec<Value> {
        vec![Tensor::new([2], vec![1.0_f32, -1.0]).unwrap().into()]
    }

    #[test]
    fn a_run_takes_its_time_and_computes() {
        for extra in [false, true] {
            let spec = Synthetic::new(5 * MS).transfer_in(MS).transfer_out(MS);
            let mut device = SyntheticDevice::new("synthetic:0".parse().unwrap(), spec.clone());
            if extra {
                device = device.extra();
            }
            let mut instance = instance(&device);
            for _ in 0..3 {
                let began = Instant::now();
                let outputs = instance.run(inputs()).unwrap();
                assert!(began.elapsed() >= 7 * MS);
                assert_eq!(outputs[0].tensor().unwrap().as_slice::<f32>().unwrap(), [1.0, 0.0]);
            }
            let times = spec.measured();
            assert_eq!((times.firings, times.nominal), (3, 21 * MS));
            assert!(times.min >= 7 * MS);
        }
    }

    #[test]
    fn runs_fail_as_drawn_and_name_the_device() {
        let spec = Synthetic::new(Duration::ZERO).failure_rate(0.4).seed(2);
        let device =
            SyntheticDevice::new("synthetic:3".parse().unwrap(), spec.clone()).with_lanes(2);
        assert_eq!((device.lanes(), device.probe().unwrap().lanes), (2, 2));
        let mut instance = instance(&device);
        for run in 0..40 {
            match instance.run(inputs()) {
                Ok(_) => assert_eq!(spec.draw(run).fate, Fate::Value),
                Err(e) => {
                    assert_eq!((spec.draw(run).fate, e.kind()), (Fate::Failure, ErrorKind::Kernel));
                    assert!(e.to_string().contains("synthetic:3"), "{e}");
                }
            }
        }
        assert!((5..30).contains(&spec.measured().failures));
    }
}
