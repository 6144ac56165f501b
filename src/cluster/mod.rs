//! Stages on other machines.
//!
//! A [`Cluster`] is a set of workers; each device of a worker is a [`Device`](crate::device::Device)
//! of the coordinator, named `worker/device`. A segment that is placed there becomes a [`StageSpec`],
//! is shipped, and is compiled by the worker, which reads its weights itself. The pipeline stays the
//! same [`Pipeline`](crate::Pipeline): numbers, credits, joins and errors are the coordinator's, while
//! tensors go from worker to worker.

#![forbid(unsafe_code)]

mod coordinator;
mod group;
mod measure;
mod message;
mod payload;
mod question;
mod spec;
mod worker;

pub use coordinator::{
    Cluster, ClusterOptions, ClusterStats, LinkReport, Loss, OnLoss, StageProgress, StageReport,
    StageTimes, WorkerReport, link_error,
};
pub use group::{
    Activation, ProcessGroup, Shipped, WINDOW, end_activations, recv_activation, recv_stage,
    send_activation, serve_stage, serve_stage_loop, serve_stage_uri, ship_stage,
};
pub use message::fuzz_messages;
pub use spec::{MAX_SPEC_BYTES, StageSpec};
pub use worker::{Datapath, Serving, Worker, WorkerStage, WorkerStats};
