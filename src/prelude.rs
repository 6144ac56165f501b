//! What a program that runs models needs: `use brigade::prelude::*;`.

pub use crate::graph::{Dim, Fact, Graph};
pub use crate::ops::builder::GraphBuilder;
pub use crate::ops::{CompileOptions, Precision};
pub use crate::partition::{DeviceMap, Plan};
pub use crate::pipeline::{
    CompiledGraph, HeteroExecutable, Pipeline, PipelineBuilder, State, compile_with,
};
pub use crate::{DType, DeviceId, Error, ErrorKind, Registry, Result, Shape, Tensor, Value};
