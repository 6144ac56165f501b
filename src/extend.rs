//! What a program that adds operators or devices needs: `use brigade::extend::*;`.

pub use crate::device::{
    CompiledSegment, CpuDevice, Delivery, Device, DeviceInfo, Instance, InstanceOptions, Submitted,
    Support, Unavailable, run_submitted, thread_waker,
};
pub use crate::graph::{Attribute, Dim, Fact, Graph, Node, NodeId, ValueId};
pub use crate::ops::batch::{BatchFlow, BatchQuery};
pub use crate::ops::case::Case;
pub use crate::ops::cost::{Cost, CostQuery};
pub use crate::ops::{
    AttributeDef, AttributeKind, CpuKernel, Infer, Io, OpDef, OpRegistry, Port, PortKind, Prepare,
    batch, cost, kernel_fn, types,
};
pub use crate::prelude::*;
pub use crate::tensor::{Event, QueueId, Resident, Signal};
