//! Running a graph that is cut into segments: one after the other ([`HeteroExecutable`], the
//! oracle), or as a [`Pipeline`] of device actors.

#[cfg(feature = "actix")]
mod actix;
mod batch;
mod builder;
mod compiling;
mod executable;
mod handle;
mod params;
pub mod placement;
mod prepared;
mod profile;
mod splice;
mod stage;
mod state;

#[cfg(feature = "actix")]
pub use actix::{FrontDoor, Infer};
pub use batch::BatchAxes;
pub use brigade_actors::{OnStall, Options as RuntimeOptions, Stall, Stats, WhenFull};
pub use builder::PipelineBuilder;
pub use executable::{CompiledGraph, HeteroExecutable, compile_in, compile_with};
pub use handle::{Pipeline, StateStream, Stream, Ticket};
pub use params::ParamValue;
#[cfg(feature = "cli")]
pub(crate) use prepared::PerDevice;
pub use profile::{GraphProfile, ProfiledSegment};
#[cfg(feature = "cluster")]
pub(crate) use stage::{caught, checked};
pub use state::State;
