//! Measuring pipelines: what came through, what the bound is, where the time went.

mod feed;
mod report;

pub use feed::{Measured, stream};
pub use report::{ActorReport, DeviceReport, PipelineReport};
