//! Pipelines over worker processes, each in a network namespace of its own, with mutual TLS; and what
//! happens when processes are killed or stopped and cables are cut in mid-stream.
//!
//! Needs root and `ip` (iproute2); without them it says so and passes, unless BRIGADE_REQUIRE_NETNS=1.
//! The outer test makes the namespaces and runs itself again inside that of the coordinator.
//! BRIGADE_ROUNDS=N strikes N times as often. In release builds, with BRIGADE_MODELS, real models run, too
//! (BRIGADE_MODEL_ITEMS of each, 2,000 unless told).
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::panic, clippy::print_stdout)]

mod faults;
mod models;
mod namespaces;
mod rig;

use std::process::Command;

use namespaces::Namespaces;

/// Set in the process that runs inside.
const INSIDE: &str = "BRIGADE_MACHINES_INSIDE";

#[test]
fn pipelines_over_machines_lose_nothing() {
    if std::env::var_os(INSIDE).is_some() {
        return;
    }
    let spaces = match Namespaces::new(&["c", "w1", "w2", "w3", "w4"]) {
        Ok(spaces) => spaces,
        Err(why) => {
            assert_ne!(
                std::env::var("BRIGADE_REQUIRE_NETNS").as_deref(),
                Ok("1"),
                "no network namespaces: {why}"
            );
            eprintln!("left out: no network namespaces can be made here: {why}");
            return;
        }
    };
    let this = std::env::current_exe().unwrap();
    let status = Command::new("ip")
        .args(["netns", "exec", &spaces.name("c")])
        .arg(this)
        .args(["inside_the_coordinators_namespace", "--exact", "--nocapture"])
        .env(INSIDE, spaces.prefix())
        .status()
        .unwrap();
    assert!(status.success(), "{status}");
}

#[test]
fn inside_the_coordinators_namespace() {
    let Ok(prefix) = std::env::var(INSIDE) else { return };
    let spaces = Namespaces::of(&prefix);
    faults::all(&spaces);
    models::all(&spaces);
}
