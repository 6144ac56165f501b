//! Running a graph that is cut into segments: one after the other ([`HeteroExecutable`], the
//! oracle), or as a pipeline of device actors.

mod executable;
pub mod placement;
mod prepared;

pub use executable::{CompiledGraph, HeteroExecutable, compile_in, compile_with};
