//! Tests that run in processes of their own, where the libraries of CUDA are those that stand in.

use std::io::Read as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::standin;

/// Set in a process that runs on the stand-ins.
const INSIDE: &str = "BRIGADE_ON_STANDIN";

/// Whether this process runs on the stand-ins.
pub(crate) fn is_inside() -> bool {
    std::env::var_os(INSIDE).is_some()
}

/// What became of a process.
pub(crate) struct Ran {
    /// Whether its test passed.
    pub(crate) passed: bool,
    /// What it said.
    pub(crate) said: String,
}

/// Runs the test of this program with this name on the libraries in a folder; a process that takes
/// longer than `limit` is stopped, and fails.
pub(crate) fn ran(folder: &Path, test: &str, variables: &[(&str, &str)], limit: Duration) -> Ran {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture", "--test-threads", "1"]);
    command.env("LD_LIBRARY_PATH", folder).env(INSIDE, "1").env("RUST_BACKTRACE", "0");
    // Kernels are compiled once for all tests.
    command.env("BRIGADE_CUDA_CACHE", folder.join("kernels"));
    command.envs(variables.iter().copied());
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null());
    let mut child = command.spawn().unwrap();
    let (mut out, mut errors) = (child.stdout.take().unwrap(), child.stderr.take().unwrap());
    let out = std::thread::spawn(move || {
        let mut said = Vec::new();
        out.read_to_end(&mut said).map(|_| said)
    });
    let errors = std::thread::spawn(move || {
        let mut said = Vec::new();
        errors.read_to_end(&mut said).map(|_| said)
    });
    let end = Instant::now() + limit;
    let passed = loop {
        match child.try_wait().unwrap() {
            Some(status) => break status.success(),
            None if Instant::now() > end => {
                child.kill().unwrap();
                child.wait().unwrap();
                break false;
            }
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let (out, errors) = (out.join().unwrap().unwrap(), errors.join().unwrap().unwrap());
    let mut said = String::from_utf8_lossy(&out).into_owned();
    said += &String::from_utf8_lossy(&errors);
    if !passed && Instant::now() > end {
        said += "\nstopped: it took too long\n";
    }
    // A filter that finds no test passes, too.
    assert!(!passed || said.contains("1 passed"), "{test}: {said}");
    Ran { passed, said }
}

/// Runs `body` on the stand-ins: here, if this is such a process, else in one, as the test `test`.
pub(crate) fn on_standin(test: &str, variables: &[(&str, &str)], body: impl FnOnce()) {
    if is_inside() {
        return body();
    }
    let Some(folder) = standin::libraries() else { return };
    let ran = ran(&folder, test, variables, Duration::from_secs(240));
    assert!(ran.passed, "{test}: {}", ran.said);
    for line in ran.said.lines().filter(|l| l.starts_with("on cuda")) {
        eprintln!("{line}");
    }
}
