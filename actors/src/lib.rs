//! A dataflow runtime of device actors.
#![forbid(unsafe_code)]

pub mod codec;
#[cfg(feature = "control")]
pub mod control;
mod credit;
mod edge;
mod engine;
mod error;
mod inbox;
mod item;
mod join;
mod lane;
mod metrics;
mod options;
mod outbox;
mod packet;
mod payload;
mod pipeline;
mod registry;
mod sink;
mod source;
mod spawn;
mod stage;
mod state;
mod stream;
mod supervise;
mod sync;
mod system;
mod ticket;
mod topology;
mod trace;
mod worker;

pub use error::{
    BuildError, DrainError, ErrorKind, ItemError, PushError, PushErrorKind, SpawnError,
};
pub use inbox::StageWaker;
pub use metrics::{ActorStats, DeviceStats, EdgeStats, PipelineState, Stats};
pub use options::Options;
pub use outbox::Outbox;
pub use packet::{Firing, Seq};
pub use payload::Payload;
pub use pipeline::{DrainFuture, Pipeline, PushFuture, StopReport};
pub use stage::{Factory, Stage, StageContext, stage_fn};
pub use state::Binding;
pub use stream::{Results, StreamHandle};
pub use system::System;
pub use ticket::Ticket;
pub use topology::{ActorId, InPort, OutPort, Topology, TopologyBuilder};
pub use trace::{Trace, TraceActor, TraceEvent};
