//! Operators.
//!
//! [`TABLE`] is the one list: an operator is its family's file and one row here. Import checks,
//! shape inference, batch cutting, cost, the CPU device, the support table and the conformance
//! run all read the rows.

pub mod batch;
pub mod case;
pub mod cost;
mod def;
pub mod infer;
mod kernel;
mod program;
mod registry;
mod threads;

mod concat;
mod constant;
mod control;
mod expand;
mod gather;
mod identity;
mod movement;
mod pad;
mod range;
mod reshape;
mod scatter;
mod slice;
mod transpose;

pub use def::{AttributeDef, AttributeKind, OpDef, Port, PortKind, types};
pub use infer::{Infer, infer_graph};
pub use kernel::{CpuKernel, Io, Prepare};
pub use program::{CompileOptions, Program, RunContext};
pub use registry::{MissingOp, OpRegistry};
pub use threads::Threads;

/// Every operator, by family file.
pub static TABLE: &[&OpDef] = &[
    // identity.rs
    &identity::IDENTITY,
    // reshape.rs
    &reshape::RESHAPE,
    &reshape::FLATTEN,
    &reshape::SQUEEZE,
    &reshape::UNSQUEEZE,
    // transpose.rs
    &transpose::TRANSPOSE,
    // concat.rs
    &concat::CONCAT,
    &concat::SPLIT,
    &concat::TILE,
    // slice.rs
    &slice::SLICE,
    // pad.rs
    &pad::PAD,
    // gather.rs
    &gather::GATHER,
    &gather::GATHER_ELEMENTS,
    &gather::GATHER_ND,
    // scatter.rs
    &scatter::SCATTER,
    &scatter::SCATTER_ELEMENTS,
    &scatter::SCATTER_ND,
    // expand.rs
    &expand::EXPAND,
    &expand::SHAPE,
    &expand::SIZE,
    &expand::CONSTANT_OF_SHAPE,
    // range.rs
    &range::RANGE,
    // constant.rs
    &constant::CONSTANT,
    // control.rs
    &control::IF,
    &control::LOOP,
];
