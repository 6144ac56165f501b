//! The CUDA device without a GPU: on libraries that stand in for the driver, NVRTC and cuBLASLt. Without
//! the feature `cuda-12` the libraries alone are checked.
//!
//! They need a C++ compiler (`$CXX`, or `c++`); without one this is left out, and
//! `BRIGADE_REQUIRE_CXX=1` makes that a failure.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic)]

#[cfg(feature = "cuda-12")]
mod ahead;
#[cfg(feature = "cuda-12")]
mod conformance;
#[cfg(feature = "cuda-12")]
mod failures;
#[cfg(feature = "cuda-12")]
#[allow(dead_code)]
#[path = "../acceptance/models.rs"]
mod models;
#[cfg(feature = "cuda-12")]
#[path = "../devices/operators.rs"]
mod operators;
#[cfg(feature = "cuda-12")]
mod order;
#[cfg(feature = "cuda-12")]
mod process;
#[cfg(feature = "cuda-12")]
mod products;
mod standin;

use std::process::Command;

/// What `check` says, with these variables set.
fn check(name: &str, variables: &[(&str, &str)]) -> Option<String> {
    let folder = standin::libraries()?;
    let mut command = Command::new(folder.join("check"));
    command.arg(name).env("LD_LIBRARY_PATH", &folder).envs(variables.iter().copied());
    let ran = command.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout) + String::from_utf8_lossy(&ran.stderr);
    assert!(ran.status.success(), "{name}: {}\n{said}", ran.status);
    Some(said.into_owned())
}

#[test]
fn the_stand_in_has_devices_memory_and_limits() {
    check("devices", &[]);
    check("limits", &[]);
    check("peers", &[("STANDIN_DEVICES", "2")]);
}

#[test]
fn the_stand_in_runs_kernels_on_streams_of_their_own() {
    check("kernels", &[]);
    check("events", &[]);
    check("host_functions", &[]);
}

/// Each operation is late by up to two milliseconds: whoever waits is right, whoever does not is wrong.
#[test]
fn the_stand_in_shows_a_wait_that_is_missing() {
    let delay = [("STANDIN_DELAY_US", "2000")];
    for name in ["order", "missing_waits", "legacy_stream", "pools", "graphs", "kernels"] {
        check(name, &delay);
    }
}

#[test]
fn the_stand_in_breaks_a_context_that_touches_what_it_may_not() {
    for name in ["faults", "slack", "barriers"] {
        check(name, &[]);
    }
}

#[test]
fn the_stand_in_fails_when_it_is_told_to() {
    let fail = "cuMemAlloc_v2:2,cuStreamCreate,cuEventRecord:*,kernel:2";
    check("failing", &[("STANDIN_FAIL", fail)]);
}

#[test]
fn the_stand_in_writes_down_who_waits_and_who_submits() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace");
    if check("tracing", &[("STANDIN_TRACE", file.to_str().unwrap())]).is_none() {
        return;
    }
    let text = std::fs::read_to_string(file).unwrap();
    let lines: Vec<String> = text
        .lines()
        .map(|l| l.split(' ').skip(2).collect::<Vec<_>>().join(" ").trim().to_owned())
        .collect();
    let want = [
        "allocate cuMemAlloc_v2 64",
        "submit cuLaunchKernel at",
        "submit cuLaunchKernel at",
        "block cuStreamSynchronize",
    ];
    assert_eq!(lines, want);
}

#[test]
fn the_stand_in_compiles_and_loads_images_and_multiplies_matrices() {
    if let Some(said) = check("images", &[]) {
        eprint!("{said}");
    }
    check("products", &[]);
    check("workspaces", &[("STANDIN_DELAY_US", "100")]);
}
