//! Measuring pipelines: what came through, what the bound is, where the time went.

mod feed;

pub use brigade_actors::{ActorReport, DeviceReport, OverlapReport as PipelineReport};
pub use feed::{Measured, stream};
