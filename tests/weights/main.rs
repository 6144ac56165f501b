//! Weight files: real ones, damaged ones, and how they reach a graph.
#![allow(clippy::unwrap_used, clippy::panic)]

mod formats;
mod malformed;
#[cfg(target_os = "linux")]
mod mapped;
mod packed;
mod resident;
