//! Measuring pipelines: what came through, what the bound is, where the time went.

mod closed;
mod cores;
mod feed;
mod interval;
mod peaks;
mod profile;
mod report;
mod resident;
mod side;
mod synthetic;

pub use brigade_actors::{ActorReport, DeviceReport, OverlapReport as PipelineReport};
pub use closed::{ClosedLoop, ClosedReport, Inputs, ReplicasOfWhole, Round};
pub use feed::{Measured, stream};
pub use interval::{Difference, Interval, Percentiles};
pub use peaks::Peaks;
pub use profile::{KindRow, NodeRow, ProfileReport};
pub use report::ActorShare;
pub use resident::{peak_resident_bytes, resident_bytes};
pub use synthetic::{SyntheticChain, SyntheticReport, SyntheticRun};
