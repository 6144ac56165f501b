//! Measuring pipelines: what came through, what the bound is, where the time went.

mod feed;
mod report;
mod synthetic;

pub use feed::{Measured, stream};
pub use report::{ActorReport, ActorShare, DeviceReport, PipelineReport};
pub use synthetic::{SyntheticChain, SyntheticReport, SyntheticRun};
