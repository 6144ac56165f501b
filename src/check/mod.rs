//! Checking a model against cases with known outputs.
//!
//! A case folder holds a `case.json` and one `.npy` file per tensor. A *call* case feeds its
//! inputs once; a *stream* case calls a number of steps and carries outputs back to inputs.

mod case;
mod diverge;
#[cfg(feature = "onnx")]
mod onnx_tests;
mod runner;

pub use case::{Case, CaseInput, CaseOutput, Kind, Role, find_cases, read_cases};
pub use diverge::first_divergence;
#[cfg(feature = "onnx")]
pub use onnx_tests::{
    MODEL_OPERATORS, OnnxClass, OnnxCount, OnnxMode, OnnxReport, OnnxSummary, find_onnx_tests,
    run_onnx_test,
};
#[cfg(feature = "cli")]
pub(crate) use runner::stack;
pub use runner::{CaseReport, Status, Summary, compare_outputs, run_call, run_steps};
