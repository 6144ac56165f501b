//! Kernels for GPUs that are not here: compiled into a folder, for hosts without a compiler.

use std::any::Any;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::task::Waker;

use super::compiler::{self, Capability, ENTRY, at_once};
use crate::device::gpu::{self, Completion, Feed, Layout, Ready, Target, lock};
use crate::device::{CompiledSegment, Device, DeviceId, DeviceInfo, Support, Unavailable};
use crate::error::{Result, bail, err};
use crate::gpu::{Lowered, LoweringOptions, Tiling};
use crate::graph::{Fact, Graph, Node};
use crate::ops::{CompileOptions, OpRegistry, Precision};
use crate::tensor::QueueId;

/// Stands in for `cuda:N` where there is no GPU: compiles the kernels of what it is given, by NVRTC, and
/// keeps them in a folder. Its outputs are zeros of the right shapes, so that a model whose later
/// extents do not depend on numbers is seen to its end.
///
/// A host whose `BRIGADE_CUDA_CACHE` names a copy of the folder needs the driver alone for the same
/// segments.
#[derive(Debug)]
pub struct CudaKernels {
    id: DeviceId,
    ops: OpRegistry,
    target: Arc<Ahead>,
}

impl CudaKernels {
    /// For GPUs of this compute capability, such as 9 and 0, in the place of `cuda:N` with this number.
    ///
    /// # Errors
    /// If NVRTC is not there, or the folder cannot be made.
    pub fn new(
        number: u32,
        capability: (u32, u32),
        folder: impl Into<PathBuf>,
        ops: OpRegistry,
    ) -> Result<Self> {
        let Some(compiler) = compiler::version() else {
            return Err(err!(Device, "NVRTC, which compiles kernels, was not found").with_help(
                "install CUDA's libnvrtc (PyPI: nvidia-cuda-nvrtc-cu12) and name its folder in \
                 LD_LIBRARY_PATH",
            ));
        };
        let folder = folder.into();
        std::fs::create_dir_all(&folder)
            .map_err(|e| err!(Io, "the folder `{}` cannot be made: {e}", folder.display()))?;
        let id = DeviceId::new("cuda", number)?;
        let target = Ahead {
            name: id.to_string(),
            memory: "cuda".into(),
            order: QueueId::unique(),
            capability,
            folder,
            compiler,
            texts: Mutex::default(),
        };
        Ok(Self { id, ops, target: Arc::new(target) })
    }

    /// How many kernels were met so far.
    pub fn count(&self) -> usize {
        lock(&self.target.texts).len()
    }
}

/// What takes the launches.
struct Ahead {
    name: String,
    memory: Arc<str>,
    order: QueueId,
    capability: Capability,
    folder: PathBuf,
    compiler: (i32, i32),
    texts: Mutex<std::collections::HashSet<String>>,
}

impl fmt::Debug for Ahead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (ahead)", self.name)
    }
}

impl Target for Ahead {
    type Constant = ();
    type Prepared = ();
    type Lane = ();
    /// What is read back: zeros.
    type Slot = Vec<u8>;

    fn name(&self) -> &str {
        &self.name
    }

    fn memory(&self) -> &Arc<str> {
        &self.memory
    }

    fn order(&self) -> QueueId {
        self.order
    }

    fn lowering(&self) -> LoweringOptions {
        LoweringOptions { tiling: Tiling::Groups, fuse: true }
    }

    fn limit(&self) -> u64 {
        u64::from(u32::MAX)
    }

    fn fault(&self) -> Result<()> {
        Ok(())
    }

    fn upload(&self, _: &str, _: &[u8]) -> Result<()> {
        Ok(())
    }

    fn prepare(&self, lowered: &Lowered, _: Precision) -> Result<()> {
        let mut missing: Vec<(&str, String)> = Vec::new();
        {
            let texts = lock(&self.texts);
            for launch in &lowered.launches {
                let text = launch.kernel.cuda(ENTRY);
                if !texts.contains(&text) && !missing.iter().any(|(_, other)| *other == text) {
                    missing.push((&launch.kernel.name, text));
                }
            }
        }
        let (folder, compiler) = (Some(self.folder.as_path()), Some(self.compiler));
        let made = at_once(&missing, |(name, text)| {
            let image = compiler::image(text, self.capability, folder, compiler);
            image.map_err(|why| err!(Device, "compiling kernel `{name}`: {why}"))?;
            match compiler::is_kept(text, self.capability, &self.folder) {
                true => Ok(()),
                false => {
                    Err(err!(Io, "kernel `{name}` cannot be kept in `{}`", self.folder.display()))
                }
            }
        });
        made.into_iter().collect::<Result<()>>()?;
        lock(&self.texts).extend(missing.into_iter().map(|(_, text)| text));
        Ok(())
    }

    fn lane(&self, _: &Waker) -> Result<()> {
        Ok(())
    }

    fn slot(&self, (): &mut (), _: &Ready<Self>, layout: &Layout) -> Result<Vec<u8>> {
        Ok(vec![0; usize::try_from(layout.read_bytes).unwrap_or(usize::MAX)])
    }

    fn hand_over(&self, _: &Vec<u8>, _: usize) -> Arc<dyn Any + Send + Sync> {
        Arc::new(())
    }

    fn is_held(&self, _: &Vec<u8>, _: usize) -> bool {
        false
    }

    fn submit(
        &self,
        (): &mut (),
        _: &Ready<Self>,
        _: &Layout,
        _: &mut Vec<u8>,
        _: &[Feed<'_>],
        completion: Completion,
    ) -> Result<()> {
        completion.complete();
        Ok(())
    }

    fn read_back(
        &self,
        slot: &mut Vec<u8>,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()> {
        take(slot)
    }

    fn retire(&self, (): (), _: Box<dyn Any + Send>) {}
}

impl Device for CudaKernels {
    fn id(&self) -> &DeviceId {
        &self.id
    }

    fn probe(&self) -> Result<DeviceInfo, Unavailable> {
        let (major, minor) = self.target.capability;
        Ok(DeviceInfo {
            name: "kernels only".to_owned(),
            features: vec![format!("sm_{major}{minor}")],
            cores: None,
            memory_bytes: None,
            lanes: self.lanes(),
            software: true,
        })
    }

    fn has_own_memory(&self) -> bool {
        true
    }

    /// All of them: kernels are the same, libraries compute what is rounded.
    fn precisions(&self) -> &[Precision] {
        &Precision::ALL
    }

    fn memory(&self) -> Option<String> {
        Some(self.target.memory.to_string())
    }

    fn supports(&self, node: &Node, facts: &[Option<Fact>]) -> Support {
        gpu::supports(node, facts, self.target.limit())
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
        gpu::compile(self, Arc::clone(&self.target), graph, &self.ops, options)
    }
}

/// A compute capability in words, such as `9.0` or `sm_90`.
///
/// # Errors
/// If it is neither.
pub fn capability(text: &str) -> Result<(u32, u32)> {
    let digits = |s: &str| s.parse::<u32>().ok().filter(|_| s.bytes().all(|b| b.is_ascii_digit()));
    let parts = match text.strip_prefix("sm_") {
        Some(joined) => joined.split_at_checked(joined.len().saturating_sub(1)),
        None => text.split_once('.'),
    };
    if let Some((Some(major), Some(minor))) = parts.map(|(a, b)| (digits(a), digits(b)))
        && (3..100).contains(&major)
        && minor < 10
    {
        return Ok((major, minor));
    }
    bail!(Usage, "`{text}` is no compute capability; write `9.0` or `sm_90`")
}

#[cfg(test)]
mod tests {
    use super::capability;

    #[test]
    fn capabilities_are_read_in_both_forms() {
        assert_eq!(capability("9.0").unwrap(), (9, 0));
        assert_eq!(capability("sm_86").unwrap(), (8, 6));
        assert_eq!(capability("sm_120").unwrap(), (12, 0));
        for bad in ["", "9", "sm_", "sm_9", "9.", ".0", "9.0a", "sm_9x", "+9.0", "1.0", "9.10"] {
            let error = capability(bad).unwrap_err().to_string();
            assert!(error.contains("sm_90"), "{bad}: {error}");
        }
    }
}
