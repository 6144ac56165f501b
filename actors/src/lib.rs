//! A dataflow runtime of device actors.
//!
//! A [`Topology`] joins *actors* by *edges*; each actor owns one [`Stage`] and one thread, and nothing
//! else is shared between them. Numbered *items* enter through the source ports, flow along the edges,
//! and leave through the sink ports as results, while many of them are in flight at once, so that
//! every device is busy. The runtime knows nothing of what flows: anything that is a [`Payload`].
//!
//! - An actor **fires** for an item when every one of its ports holds it, so any acyclic wiring works:
//!   chains, skips, fan-out, joins.
//! - At most [`Options::in_flight`] items hold a **credit**. A full pipeline makes [`Pipeline::push`]
//!   wait and [`Pipeline::try_push`] say so; inside the pipeline nothing ever blocks.
//! - **A full pipeline** waits, refuses or drops, as [`Options::when_full`] says; a
//!   [queue](Options::queue) in front of it bounds what waits by number and [age](Options::max_age),
//!   a [budget](Options::byte_budget) what is in flight by bytes, and
//!   [`Options::in_flight_auto`] finds the number that keeps the bottleneck busy.
//! - **Every item has exactly one result**, a value or an [`ItemError`], whatever fails. An error keeps
//!   its item's number and travels on to the sink; the items around it are not touched.
//! - A stage that **panics** is built anew by its [`Factory`], within a limit; its item can be
//!   [tried again](Options::retry_panics). A [watchdog](Options::watchdog) names who makes no
//!   progress.
//! - Actors on one device share its **lanes** and take turns; an actor may have
//!   [replicas](TopologyBuilder::replicas), and the pipelines of a [`System`] one CPU budget.
//! - A [`Ticket`] is waited for, asked, or awaited; [`Pipeline::stream`] gives results in order;
//!   [`Pipeline::open_stream`] carries state from item to item.
//! - Every wait ends: at a deadline, at a result, or when the pipeline stops.
//!
//! ```
//! use brigade_actors::{Options, Pipeline, Topology, stage_fn};
//!
//! // x ──► half ──► sum ──► y
//! //  └──────────────▲
//! let mut builder = Topology::<i64>::builder();
//! let x = builder.source("x");
//! let half = builder.actor("half", "cpu:0", 1, 1, stage_fn(|v: Vec<i64>| Ok(vec![v[0] / 2])));
//! let sum = builder.actor("sum", "cpu:1", 2, 1, stage_fn(|v: Vec<i64>| Ok(vec![v[0] + v[1]])));
//! let y = builder.sink("y");
//! builder
//!     .connect(x, half.input(0))
//!     .connect(half.output(0), sum.input(0))
//!     .connect(x, sum.input(1))
//!     .connect(sum.output(0), y);
//!
//! let pipeline = Pipeline::spawn(builder.build()?, Options::new().name("example").in_flight(4))?;
//! let one = pipeline.push(vec![10])?;
//! assert_eq!(one.wait()?, [15]);
//! for (x, result) in (0..20).zip(pipeline.stream((0..20).map(|x| vec![x]))) {
//!     assert_eq!(result?, [x + x / 2]);
//! }
//! assert_eq!(pipeline.stats().completed, 21);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! How it works inside, and why it can neither deadlock nor lose an item, is told in [`protocol`].
//!
//! # Features
//!
//! - `control` (on by default): the control plane on actix, in `control`. Nothing else depends on it.
//! - `grpc`: links between processes over gRPC with mutual TLS, in [`transport`].
//! - `affinity`: pinning threads to processor cores, in `affinity`.
//! - `tracing`: a span per firing and events for restarts, items that are not computed, and stops, for
//!   a subscriber of the `tracing` crate. [`Trace`] needs no feature.
#![forbid(unsafe_code)]

mod advice;
#[cfg(feature = "affinity")]
pub mod affinity;
mod batch;
mod budget;
pub mod codec;
#[cfg(feature = "control")]
pub mod control;
mod counts;
mod cpu;
mod credit;
mod depth;
mod duty;
mod edge;
mod engine;
mod error;
mod exits;
mod figures;
mod flight;
mod flow;
mod gather;
mod histogram;
mod inbox;
mod item;
mod join;
mod lane;
mod metrics;
mod operator;
mod options;
mod outbox;
mod overlap;
mod packet;
mod payload;
mod pipeline;
mod profile;
mod prometheus;
mod queue;
#[cfg(all(test, loom))]
mod races;
mod region;
mod registry;
mod reorder;
mod replica;
mod result;
mod sink;
mod source;
mod spans;
mod spawn;
mod stage;
mod state;
mod stream;
mod supervise;
mod sync;
pub mod synthetic;
mod system;
mod ticket;
mod timeline;
mod topology;
mod trace;
#[cfg(not(any(loom, shuttle)))]
pub mod transport;
mod watch;
mod weight;
mod window;
mod worker;

/// The release that this crate is part of.
#[cfg(feature = "grpc")]
pub(crate) const RELEASE: &str = env!("CARGO_PKG_VERSION");

#[doc = include_str!("PROTOCOL.md")]
pub mod protocol {}

pub use cpu::{CpuPolicy, CpuReport, CpuShare, CpuStats};
pub use error::{
    BuildError, DrainError, ErrorKind, ItemError, PushError, PushErrorKind, SpawnError,
};
pub use flow::{Flow, Fork};
pub use histogram::{Histogram, Percentiles};
pub use inbox::StageWaker;
pub use metrics::{
    ActorStats, AdmissionStats, DeviceStats, EdgeStats, FanOutStats, Mark, PipelineState, Stats,
};
pub use operator::{Batching, Operator, list_fn};
pub use options::{Options, WhenFull};
pub use outbox::Outbox;
pub use overlap::{ActorReport, DeviceReport, OverlapReport};
pub use packet::{Firing, Seq};
pub use payload::Payload;
pub use pipeline::{DrainFuture, Pipeline, PushFuture, StopReport};
pub use profile::Profile;
pub use reorder::{Reorder, ReorderError};
pub use stage::{Factory, Stage, StageContext, stage_fn};
pub use state::Binding;
pub use stream::{Results, StreamHandle};
pub use system::System;
pub use ticket::Ticket;
pub use timeline::Wait;
pub use topology::{ActorId, InPort, OutPort, Topology, TopologyBuilder};
pub use trace::{Trace, TraceActor, TraceEdge, TraceEvent, TraceItem};
pub use watch::{Doing, OnStall, Stall, StalledActor, StalledEdge};
pub use window::Window;
