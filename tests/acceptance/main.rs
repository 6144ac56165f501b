//! The real models of `tests/models`: every case, sequentially and streamed.
//!
//! The models lie in the folder that `BRIGADE_MODELS` names (`scripts/fetch-models` brings them).
//! Without them these tests say so and pass, unless `BRIGADE_REQUIRE_MODELS=1`.
#![allow(clippy::unwrap_used, clippy::panic)]

mod bf16;
mod cases;
mod cuts;
mod gemma;
mod gguf;
#[cfg(target_os = "linux")]
#[path = "../weights/mapped.rs"]
mod mapped;
mod models;
mod ocr;
mod synthetic;
#[cfg(all(unix, feature = "cluster", feature = "cli"))]
mod workers;
