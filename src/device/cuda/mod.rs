//! GPUs of NVIDIA through the CUDA driver.
//!
//! Nothing of CUDA is linked: the driver, the compiler NVRTC and cuBLASLt are looked for when the program
//! runs, each by itself (`context.rs`, `compiler.rs`, `blas.rs`), and what is absent is told in words. An
//! actor has three streams and a slot for each item under way (`instance.rs`); one thread an actor waits
//! for its items and does nothing but wake it. What of the driver is used is in `driver.rs`; `ahead.rs`
//! compiles for GPUs that are not here.

mod ahead;
mod blas;
mod compiler;
mod context;
mod driver;
mod instance;

use std::sync::{Arc, OnceLock};
use std::time::Duration;

pub use ahead::{CudaKernels, capability};
use context::Context;

use super::gpu;
use super::{CompiledSegment, Device, DeviceId, DeviceInfo, Support, Unavailable};
use crate::error::Result;
use crate::graph::{Fact, Graph, Node};
use crate::ops::{CompileOptions, OpRegistry, Precision};

#[cfg(all(feature = "cuda-12", feature = "cuda-13"))]
compile_error!(
    "the features `cuda-12` and `cuda-13` exclude each other: name the one whose libraries the \
     program is to look for"
);
#[cfg(not(any(feature = "cuda-12", feature = "cuda-13")))]
compile_error!("name the feature `cuda-12` or `cuda-13`, not `_cuda`");

/// A GPU of NVIDIA: `cuda:0` is the first that the driver shows.
#[derive(Debug)]
pub struct CudaDevice {
    id: DeviceId,
    number: u32,
    ops: OpRegistry,
    opened: OnceLock<Result<Arc<Context>, String>>,
}

impl CudaDevice {
    /// The GPU with this number. It is opened when it is first asked for something.
    ///
    /// # Errors
    /// If the number is above [`MAX_DEVICE_NUMBER`](super::MAX_DEVICE_NUMBER); whether the GPU is there
    /// is what [`Device::probe`] says.
    pub fn new(number: u32, ops: OpRegistry) -> Result<Self> {
        Ok(Self { id: DeviceId::new("cuda", number)?, number, ops, opened: OnceLock::new() })
    }

    /// Waits until what was dropped of all GPUs has been given back to the driver, no longer than `most`:
    /// a program that ends before may crash within the driver.
    pub fn settle(most: Duration) {
        context::settle(most);
    }

    /// The numbers of the GPUs that the driver shows; 0 if it shows none.
    pub(super) fn numbers() -> Vec<u32> {
        let count = std::panic::catch_unwind(context::count);
        let count = count.unwrap_or_else(|_| Err(PANICKED.to_owned())).unwrap_or(0);
        (0..count.max(1)).collect()
    }

    fn context(&self) -> Result<&Arc<Context>, Unavailable> {
        let opened = self.opened.get_or_init(|| {
            // A driver that lacks something is one that is not there.
            let open = std::panic::AssertUnwindSafe(|| Context::open(self.number));
            std::panic::catch_unwind(open).unwrap_or_else(|_| Err(PANICKED.to_owned()))
        });
        opened.as_ref().map_err(|reason| Unavailable { reason: reason.clone() })
    }
}

const PANICKED: &str = "a library of CUDA lacks a function that is needed";

impl Device for CudaDevice {
    fn id(&self) -> &DeviceId {
        &self.id
    }

    fn probe(&self) -> Result<DeviceInfo, Unavailable> {
        let context = self.context()?;
        let (major, minor) = context.capability;
        let mut features = vec![
            format!("sm_{major}{minor}"),
            format!("driver for CUDA {}.{}", context.driver / 1000, context.driver % 1000 / 10),
        ];
        features.push(match context.compiler {
            Some((major, minor)) => format!("NVRTC {major}.{minor}"),
            None => "no NVRTC: kernels of the cache only".to_owned(),
        });
        features.push(if context.blas.is_some() { "cuBLASLt" } else { "no cuBLASLt" }.to_owned());
        Ok(DeviceInfo {
            name: context.product.clone(),
            features,
            cores: Some(context.multiprocessors),
            memory_bytes: Some(context.memory_bytes as u64),
            lanes: self.lanes(),
            software: false,
        })
    }

    fn has_own_memory(&self) -> bool {
        true
    }

    fn precisions(&self) -> &[Precision] {
        self.context().map_or(&[Precision::F32], |context| context.precisions())
    }

    fn memory(&self) -> Option<String> {
        Some("cuda".to_owned())
    }

    fn supports(&self, node: &Node, facts: &[Option<Fact>]) -> Support {
        match self.context() {
            Ok(context) => gpu::supports(node, facts, gpu::Target::limit(&**context)),
            Err(why) => Support::No(why.reason),
        }
    }

    fn supports_graph(
        &self,
        graph: &Graph,
        nodes: &[(&Node, Vec<Option<Fact>>)],
    ) -> Result<Vec<Support>> {
        let mut answers = self.supports_all(nodes)?;
        gpu::supports_graph(graph, &mut answers, &self.ops);
        Ok(answers)
    }

    fn compile(&self, graph: Graph, options: &CompileOptions) -> Result<Arc<dyn CompiledSegment>> {
        let context = self.context().map_err(|why| why.into_error(&self.id))?;
        gpu::compile(self, Arc::clone(context), graph, &self.ops, options)
    }
}
