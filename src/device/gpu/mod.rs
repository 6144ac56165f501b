//! What devices have in common whose segments are launches of kernels over buffers.
//!
//! [`gpu`](crate::gpu) makes the launches and the text of their kernels; a [`Target`] compiles and runs
//! them. Between the two lie a segment's constants and its launches for each set of extents
//! (`segment.rs`), and an actor's slots, in each of which one item is under way (`instance.rs`). Faults and
//! what a thread waits for are in `waiting.rs`.

mod instance;
mod segment;
mod waiting;

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::task::Waker;

use super::{CompiledSegment, Device, Support, check_precision};
use crate::error::{Error, Result};
use crate::gpu::{Lowered, LoweringOptions};
use crate::graph::{Fact, Graph, Node};
use crate::ops::{CompileOptions, OpRegistry, Precision};
use crate::tensor::QueueId;

pub(super) use instance::{Completion, Fed, Feed, Layout};
pub(super) use segment::Ready;
pub(super) use waiting::{Duties, Ended, Faults, lock};

/// A device that takes launches: its memory, its order of work and its faults.
pub(super) trait Target: fmt::Debug + Send + Sync + Sized + 'static {
    /// A constant in its memory; clones share it.
    type Constant: Clone + Send + Sync;
    /// What it makes of launches beforehand: kernels that are compiled, tables of words.
    type Prepared: Send + Sync;
    /// What an actor has for all its items.
    type Lane: Send;
    /// One set of buffers, for one item at a time.
    type Slot: Send;

    /// The name of the device, such as `wgpu:0`.
    fn name(&self) -> &str;

    /// The name of the memory that its tensors lie in.
    fn memory(&self) -> &Arc<str>;

    /// The order of everything that is submitted to it.
    fn order(&self) -> QueueId;

    /// How graphs are lowered for it.
    fn lowering(&self) -> LoweringOptions;

    /// Bytes of the largest buffer that a kernel can bind.
    fn limit(&self) -> u64;

    /// Whether it is still there.
    ///
    /// # Errors
    /// Why not.
    fn fault(&self) -> Result<()>;

    /// A constant with these contents.
    ///
    /// # Errors
    /// If the memory cannot be had.
    fn upload(&self, name: &str, bytes: &[u8]) -> Result<Self::Constant>;

    /// Compiles the kernels of launches and readies what does not change from item to item; products are
    /// computed in `precision`, which the device offers.
    ///
    /// # Errors
    /// If the device refuses a kernel.
    fn prepare(&self, lowered: &Lowered, precision: Precision) -> Result<Self::Prepared>;

    /// What an actor needs. `waker` is woken when the device is lost.
    ///
    /// # Errors
    /// If it cannot be had.
    fn lane(&self, waker: &Waker) -> Result<Self::Lane>;

    /// A new set of buffers.
    ///
    /// # Errors
    /// If the memory cannot be had.
    fn slot(
        &self,
        lane: &mut Self::Lane,
        ready: &Ready<Self>,
        layout: &Layout,
    ) -> Result<Self::Slot>;

    /// A buffer of a slot, for whoever orders work behind it: the slot is not used again while
    /// somebody has it.
    fn hand_over(&self, slot: &Self::Slot, buffer: usize) -> Arc<dyn Any + Send + Sync>;

    /// Whether somebody has a buffer of a slot.
    fn is_held(&self, slot: &Self::Slot, buffer: usize) -> bool;

    /// Starts everything of an item: copies in, launches, copies out. Waits for nothing; says when the
    /// item is done by `completion`.
    ///
    /// # Errors
    /// If the device refuses something. The slot is not used again then.
    fn submit(
        &self,
        lane: &mut Self::Lane,
        ready: &Ready<Self>,
        layout: &Layout,
        slot: &mut Self::Slot,
        feeds: &[Feed<'_>],
        completion: Completion,
    ) -> Result<()>;

    /// Gives `take` what the item that is done has left for the host.
    ///
    /// # Errors
    /// If it cannot be had, or that of `take`.
    fn read_back(
        &self,
        slot: &mut Self::Slot,
        take: &mut dyn FnMut(&[u8]) -> Result<()>,
    ) -> Result<()>;

    /// Gives back what an actor had, once nothing of it is under way; `slots` holds its slots. Does not
    /// wait.
    fn retire(&self, lane: Self::Lane, slots: Box<dyn Any + Send>);
}

/// Whether a device that binds at most `limit` bytes can run a node.
pub(super) fn supports(node: &Node, facts: &[Option<Fact>], limit: u64) -> Support {
    match crate::gpu::supports(node, facts, limit) {
        Ok(None) => Support::Yes,
        Ok(Some(why)) => Support::Narrowed(why),
        Err(why) => Support::No(why),
    }
}

/// As [`supports`], for nodes of a graph, of each of which `answers` says so already.
pub(super) fn supports_graph(graph: &Graph, answers: &mut [Support], ops: &OpRegistry) {
    let here: Vec<bool> = answers.iter().map(Support::is_supported).collect();
    if !here.contains(&true) {
        return;
    }
    let refusals = crate::gpu::refusals(graph, &here, ops);
    for (answer, why) in answers.iter_mut().zip(refusals) {
        if let Some(why) = why {
            *answer = Support::No(why);
        }
    }
}

/// Runs the passes on a segment, but for that whose integer products there are no kernels of: what stands
/// for floats is multiplied as floats.
///
/// # Errors
/// Those of the passes.
fn optimise(graph: &mut Graph, ops: &OpRegistry, options: &CompileOptions) -> Result<()> {
    let mut options = options.clone();
    options.disabled_passes.push("qdq".to_owned());
    crate::passes::optimise_segment(graph, ops, &options)?;
    Ok(())
}

/// A segment of a graph whose parameters are bound, on the target of `device`.
///
/// # Errors
/// If the device does not compute in that precision, a constant is too large or cannot be uploaded, or,
/// where all extents are known, a node cannot be lowered.
pub(super) fn compile<T: Target>(
    device: &dyn Device,
    target: Arc<T>,
    mut graph: Graph,
    ops: &OpRegistry,
    options: &CompileOptions,
) -> Result<Arc<dyn CompiledSegment>> {
    check_precision(device, options.precision)?;
    let named = |e: Error| e.with_device(device.id().to_string());
    optimise(&mut graph, ops, options).map_err(named)?;
    let segment = segment::Segment::new(target, graph, ops.clone(), options.precision);
    Ok(Arc::new(segment::Shared(Arc::new(segment.map_err(named)?))))
}
