//! Every transport through one suite, and what each has of its own.
#![cfg(not(any(loom, shuttle)))]
#![allow(clippy::unwrap_used, clippy::panic)]

mod peer;
#[macro_use]
mod suite;

mod local;

#[cfg(feature = "grpc")]
mod grpc;
