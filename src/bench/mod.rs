//! Measuring pipelines: what came through, what the bound is, where the time went.

mod feed;
mod report;
mod synthetic;

pub use brigade_actors::{ActorReport, DeviceReport, OverlapReport as PipelineReport};
pub use feed::{Measured, stream};
pub use report::ActorShare;
pub use synthetic::{SyntheticChain, SyntheticReport, SyntheticRun};
