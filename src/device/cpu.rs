//! The CPU device.

use std::sync::Arc;

use super::{
    CompiledSegment, Device, DeviceId, DeviceInfo, Instance, InstanceOptions, Support, Unavailable,
};
use crate::error::Result;
use crate::graph::{Fact, Graph, Node};
use crate::ops::{
    CompileOptions, OpRegistry, Precision, Profiler, Program, RunContext, SegmentProfile, Threads,
};
use crate::passes;
use crate::tensor::Value;

/// One CPU device: threads of its own on this machine's CPU.
#[derive(Debug)]
pub struct CpuDevice {
    id: DeviceId,
    ops: OpRegistry,
}

impl CpuDevice {
    /// The CPU device with this number.
    pub fn new(number: u32, ops: OpRegistry) -> Self {
        Self { id: DeviceId::cpu(number), ops }
    }

    /// A CPU device under another name: a stand-in for a device that is not here.
    pub fn named(id: DeviceId, ops: OpRegistry) -> Self {
        Self { id, ops }
    }
}

impl Device for CpuDevice {
    fn id(&self) -> &DeviceId {
        &self.id
    }

    fn probe(&self) -> Result<DeviceInfo, Unavailable> {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Ok(DeviceInfo {
            name: cpu_name().unwrap_or_else(|| std::env::consts::ARCH.to_owned()),
            features: features(),
            cores: Some(cores),
            memory_bytes: memory_bytes(),
            lanes: self.lanes(),
            software: false,
        })
    }

    fn precisions(&self) -> &[Precision] {
        &[Precision::F32, Precision::Bf16]
    }

    fn supports(&self, node: &Node, facts: &[Option<Fact>]) -> Support {
        supports(&self.ops, node, facts)
    }

    fn compile(
        &self,
        mut graph: Graph,
        options: &CompileOptions,
    ) -> Result<Arc<dyn CompiledSegment>> {
        super::check_threads(options.threads)?;
        super::check_precision(self, options.precision)?;
        passes::optimise_cpu_segment(&mut graph, &self.ops, options)
            .map_err(|e| e.with_device(self.id.to_string()))?;
        let program = Program::compile(&graph, &self.ops, options)
            .map_err(|e| e.with_device(self.id.to_string()))?;
        let profiler = options.profile.then(Profiler::default);
        Ok(Arc::new(CpuSegment { program: Arc::new(program), threads: options.threads, profiler }))
    }
}

/// Whether a CPU device over these operators can run a node.
fn supports(ops: &OpRegistry, node: &Node, facts: &[Option<Fact>]) -> Support {
    let dtypes: Vec<_> = facts.iter().map(|f| f.as_ref().and_then(|f| f.dtype)).collect();
    match ops.get(&node.domain, &node.op) {
        None => Support::No("no such operator".to_owned()),
        Some(def) => match def.check(node, &dtypes) {
            Ok(()) => Support::Yes,
            Err(why) => Support::No(why),
        },
    }
}

#[derive(Debug)]
struct CpuSegment {
    program: Arc<Program>,
    threads: usize,
    profiler: Option<Profiler>,
}

impl CompiledSegment for CpuSegment {
    fn inputs(&self) -> Vec<(String, Fact)> {
        self.program.inputs().map(|(n, f)| (n.to_owned(), f.clone())).collect()
    }

    fn outputs(&self) -> Vec<String> {
        self.program.output_names().map(str::to_owned).collect()
    }

    fn weight_bytes(&self) -> usize {
        self.program.constant_bytes()
    }

    fn instance(&self, options: InstanceOptions) -> Result<Box<dyn Instance>> {
        let most = options.threads.unwrap_or(self.threads).max(1);
        let threads = Threads::new(self.threads.min(most))?;
        let profile = self.profiler.as_ref().map(Profiler::recorder);
        let context = RunContext { threads, profile, ..RunContext::default() };
        Ok(Box::new(CpuInstance { program: Arc::clone(&self.program), context }))
    }

    fn profile(&self) -> Option<SegmentProfile> {
        self.profiler.as_ref().map(Profiler::profile)
    }
}

struct CpuInstance {
    program: Arc<Program>,
    context: RunContext,
}

impl Instance for CpuInstance {
    fn run(&mut self, inputs: Vec<Value>) -> Result<Vec<Value>> {
        self.program.run(inputs, &self.context)
    }

    fn run_observed(
        &mut self,
        inputs: Vec<Value>,
        observe: &mut dyn FnMut(&str, &str, &[Value]),
    ) -> Result<Vec<Value>> {
        self.program.run_observed(inputs, &self.context, observe)
    }
}

fn cpu_name() -> Option<String> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn memory_bytes() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|l| l.starts_with("MemTotal"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(target_arch = "x86_64")]
fn features() -> Vec<String> {
    let mut found = Vec::new();
    macro_rules! look {
        ($($name:tt),*) => { $(
            if std::arch::is_x86_feature_detected!($name) { found.push($name.to_owned()); }
        )* };
    }
    look!("avx2", "fma", "avx512f", "avx512vnni", "avx512bf16");
    found
}

#[cfg(not(target_arch = "x86_64"))]
fn features() -> Vec<String> {
    Vec::new()
}
