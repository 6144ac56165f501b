//! Kernels that are compiled where there is no GPU.

use std::sync::Arc;
use std::time::Duration;

use brigade::device::CudaKernels;
use brigade::{Pipeline, Registry};

use super::failures::{errors, tried_with, with};
use super::order::{chain, numbers};
use super::process::{is_inside, ran};
use super::standin;

/// Compiles what `failures::tried` runs into a folder.
#[test]
fn compiled() {
    if !is_inside() {
        return;
    }
    let folder = std::env::var_os("BRIGADE_AHEAD").unwrap();
    let device = match CudaKernels::new(0, (9, 0), folder, Registry::default().ops().clone()) {
        Ok(device) => Arc::new(device),
        Err(e) => return println!("\nat load: {e:#}"),
    };
    let registry = Registry::default().with_device(Arc::clone(&device) as _);
    let pipeline = Pipeline::builder(chain()).registry(registry);
    let pipeline = pipeline.stages(3, &["cuda:0", "cpu:0"]).unwrap().spawn().unwrap();
    for result in pipeline.stream((1..3).map(|rows| [("x", numbers(&[rows, 16], rows))])) {
        result.unwrap();
    }
    println!("\nkernels: {}", device.count());
}

#[test]
fn a_host_with_kernels_that_were_compiled_elsewhere_needs_the_driver_alone() {
    if is_inside() {
        return;
    }
    let Some(folder) = standin::libraries() else { return };
    let driver = with(&folder, &["libcuda.so.1"]);
    let kernels = tempfile::tempdir().unwrap();
    let at = kernels.path().to_str().unwrap();
    let limit = Duration::from_secs(120);
    let without = ran(driver.path(), "ahead::compiled", &[("BRIGADE_AHEAD", at)], limit);
    assert!(errors(&without)[0].contains("NVRTC"), "{}", without.said);
    let made = ran(&folder, "ahead::compiled", &[("BRIGADE_AHEAD", at)], limit);
    assert!(made.passed && made.said.contains("kernels: "), "{}", made.said);
    let there = tried_with(driver.path(), &[("BRIGADE_CUDA_CACHE", at)]);
    assert!(there.said.contains("right: 12"), "{}", there.said);
    // One that was damaged is not used, and cannot be made anew there.
    let first = std::fs::read_dir(kernels.path()).unwrap().next().unwrap().unwrap().path();
    std::fs::write(&first, b"brigade-kernel-1").unwrap();
    let damaged = tried_with(driver.path(), &[("BRIGADE_CUDA_CACHE", at)]);
    assert!(errors(&damaged)[0].contains("does not have it"), "{}", damaged.said);
}
