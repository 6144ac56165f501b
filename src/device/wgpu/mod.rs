//! GPUs through wgpu: Vulkan, Metal, Direct3D 12.
//!
//! What there are kernels for is the table of [`gpu`](crate::gpu); everything else is refused with its
//! reason and falls back. Buffers of a slot have bindings made beforehand, and an item is one submission
//! (`instance.rs`). One thread an adapter waits for completions and does nothing but wake
//! actors (`context.rs`). NaN and infinities are kept as far as the driver keeps them.

mod context;
mod instance;

use std::sync::{Arc, OnceLock};

use context::Context;

use super::gpu;
use super::{CompiledSegment, Device, DeviceId, DeviceInfo, Support, Unavailable};
use crate::error::Result;
use crate::graph::{Fact, Graph, Node};
use crate::ops::{CompileOptions, OpRegistry};

/// An adapter that wgpu knows: `wgpu:0` is the first, hardware before software.
#[derive(Debug)]
pub struct WgpuDevice {
    id: DeviceId,
    number: u32,
    ops: OpRegistry,
    opened: OnceLock<Result<Arc<Context>, String>>,
}

impl WgpuDevice {
    /// The adapter with this number. It is opened when it is first asked for something.
    ///
    /// # Errors
    /// Never; whether the adapter is there is what [`Device::probe`] says.
    pub fn new(number: u32, ops: OpRegistry) -> Result<Self> {
        Ok(Self { id: DeviceId::new("wgpu", number)?, number, ops, opened: OnceLock::new() })
    }

    /// Gives the device up, as if it were lost: for tests of what happens then. Everything under way
    /// on it in this process becomes errors; whoever opens it next gets it anew.
    #[doc(hidden)]
    pub fn destroy(&self) {
        if let Ok(context) = self.context() {
            context.device.destroy();
        }
    }

    fn context(&self) -> Result<&Arc<Context>, Unavailable> {
        let opened = self.opened.get_or_init(|| {
            // A driver that panics is one that is not there.
            let open = std::panic::AssertUnwindSafe(|| Context::open(self.number));
            std::panic::catch_unwind(open).unwrap_or_else(|_| Err("its driver panicked".to_owned()))
        });
        opened.as_ref().map_err(|reason| Unavailable { reason: reason.clone() })
    }
}

impl Device for WgpuDevice {
    fn id(&self) -> &DeviceId {
        &self.id
    }

    fn probe(&self) -> Result<DeviceInfo, Unavailable> {
        let context = self.context()?;
        let info = &context.info;
        let mut features = vec![info.backend.to_str().to_owned()];
        features.extend([&info.driver, &info.driver_info].into_iter().cloned());
        features.retain(|f| !f.is_empty());
        Ok(DeviceInfo {
            name: info.name.clone(),
            features,
            cores: None,
            memory_bytes: None,
            lanes: self.lanes(),
            software: context.is_software(),
        })
    }

    fn has_own_memory(&self) -> bool {
        true
    }

    fn supports(&self, node: &Node, facts: &[Option<Fact>]) -> Support {
        match self.context() {
            Ok(context) => gpu::supports(node, facts, context.binding_limit),
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
