//! What becomes of calls that fail: an error that names what failed, or what was asked for all the
//! same; never a panic, never a hang, never a wrong item.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use brigade::{ErrorKind, Pipeline, Tensor};

use super::operators::differs;
use super::order::{chain, numbers, on_cpu};
use super::process::{Ran, is_inside, ran};
use super::standin;

/// Streams items over the GPU and the CPU; says what failed, if something did. What is no error is right.
#[test]
fn tried() {
    if !is_inside() {
        return;
    }
    let graph = chain();
    let oracle = on_cpu(graph.clone());
    let pipeline = Pipeline::builder(graph).stages(3, &["cuda:0", "cpu:0"]).unwrap();
    let pipeline = match pipeline.in_flight(4).spawn() {
        Ok(pipeline) => pipeline,
        Err(e) => return println!("\nat load: {e:#}"),
    };
    let items: Vec<Tensor> = (0..12).map(|n| numbers(&[1 + n % 2, 16], n)).collect();
    let results = pipeline.stream(items.iter().map(|t| [("x", t.clone())]));
    let (mut right, mut failed) = (0, 0);
    for (result, input) in results.zip(&items) {
        match result {
            Ok(got) => {
                let want = oracle.run_values(vec![("x".to_owned(), input.clone().into())]).unwrap();
                let (got, want) = (got[0].tensor().unwrap(), want[0].tensor().unwrap());
                assert_eq!(differs(got, want, 1e-4, 1e-4), None);
                right += 1;
            }
            Err(e) => {
                assert!(matches!(e.kind(), ErrorKind::Device | ErrorKind::Limit), "{e}");
                println!("\nitem: {e:#}");
                failed += 1;
            }
        }
    }
    assert_eq!(right + failed, items.len());
    println!("\nright: {right}");
}

pub(crate) fn tried_with(folder: &Path, variables: &[(&str, &str)]) -> Ran {
    let ran = ran(folder, "failures::tried", variables, Duration::from_secs(60));
    assert!(ran.passed && !ran.said.contains("panicked"), "{variables:?}: {}", ran.said);
    ran
}

/// What a process told as errors.
pub(crate) fn errors(ran: &Ran) -> Vec<&str> {
    let starts = |line: &&str| line.starts_with("item: ") || line.starts_with("at load: ");
    ran.said.lines().filter(starts).collect()
}

/// Kernels are not kept, so that the compiler is asked.
const ANEW: (&str, &str) = ("BRIGADE_CUDA_CACHE", "");

/// How often each entry point is called where nothing fails.
fn calls(folder: &Path) -> BTreeMap<String, usize> {
    let file = tempfile::NamedTempFile::new().unwrap();
    let ran = tried_with(folder, &[("STANDIN_CALLS", file.path().to_str().unwrap()), ANEW]);
    assert!(ran.said.contains("right: 12"), "{}", ran.said);
    let mut calls = BTreeMap::new();
    for name in std::fs::read_to_string(file.path()).unwrap().lines() {
        *calls.entry(name.to_owned()).or_default() += 1;
    }
    calls
}

/// Entry points without which items are computed all the same: what gives back what is no longer
/// needed, what makes graphs of launches, the library for products with what it asks of the driver, and
/// what the compiler is asked for beside the image.
fn is_dispensable(name: &str) -> bool {
    let starts = ["cublasLt", "cuMemFree", "cuGraphDestroy", "cuGraphExecDestroy"];
    let names = [
        "cuCtxGetDevice",
        "cuDevicePrimaryCtxRelease_v2",
        "cuEventDestroy_v2",
        "cuGraphInstantiateWithFlags",
        "cuModuleUnload",
        "cuStreamBeginCapture_v2",
        "cuStreamDestroy_v2",
        "nvrtcDestroyProgram",
        "nvrtcGetProgramLog",
        "nvrtcGetProgramLogSize",
    ];
    starts.iter().any(|s| name.starts_with(s)) || names.contains(&name)
}

#[test]
fn every_call_may_fail() {
    if is_inside() {
        return;
    }
    let Some(folder) = standin::libraries() else { return };
    let calls = calls(&folder);
    for name in
        ["cuLaunchKernel", "cuGraphLaunch", "cublasLtMatmul", "nvrtcCompileProgram", "kernel"]
    {
        assert!(calls.contains_key(name), "{name} is not called: {calls:?}");
    }
    let (mut orders, mut told) = (0, 0);
    for (name, count) in &calls {
        let mut which = vec!["1".to_owned(), (count / 2 + 1).to_string(), "*".to_owned()];
        which.dedup();
        for which in which {
            let order = format!("{name}:{which}");
            let mut variables = vec![("STANDIN_FAIL", order.as_str())];
            if name.starts_with("nvrtc") {
                variables.push(ANEW);
            }
            let ran = tried_with(&folder, &variables);
            let errors = errors(&ran);
            for error in &errors {
                assert!(error.contains("cuda:0"), "{order}: {error}");
            }
            if which == "*" && !is_dispensable(name) {
                assert!(!errors.is_empty(), "{order} is not told: {}", ran.said);
            }
            orders += 1;
            told += usize::from(!errors.is_empty());
        }
    }
    let count = calls.len();
    eprintln!("on cuda:0 {orders} calls of {count} entry points failed, {told} told as errors");
}

#[test]
fn a_device_that_has_touched_what_it_may_not_is_lost() {
    if is_inside() {
        return;
    }
    let Some(folder) = standin::libraries() else { return };
    let ran = tried_with(&folder, &[("STANDIN_FAIL", "kernel:25"), ("STANDIN_DELAY_US", "500")]);
    let errors = errors(&ran);
    // Whatever came first, those at the end all fail, with the reason.
    let last = errors.last().unwrap();
    assert!(
        last.contains("the device is lost") && last.contains("illegal memory access"),
        "{last}"
    );
    assert!(errors.len() >= 4 && errors.last().unwrap().contains("item 11"), "{errors:?}");
}

#[test]
fn memory_that_runs_out_is_an_error_of_the_item() {
    if is_inside() {
        return;
    }
    let Some(folder) = standin::libraries() else { return };
    let ran = tried_with(&folder, &[("STANDIN_MEMORY", "1000000")]);
    let first = errors(&ran)[0].to_owned();
    assert!(first.contains("out of memory") && first.contains("cuda:0"), "{first}");
}

/// A folder with some of the libraries.
pub(crate) fn with(folder: &Path, libraries: &[&str]) -> tempfile::TempDir {
    let some = tempfile::tempdir().unwrap();
    for name in libraries.iter().chain(&["language.h", "entry.h"]) {
        std::os::unix::fs::symlink(folder.join(name), some.path().join(name)).unwrap();
    }
    some
}

#[test]
fn each_library_may_be_absent() {
    if is_inside() {
        return;
    }
    let Some(folder) = standin::libraries() else { return };
    let (driver, compiler) = ("libcuda.so.1", "libnvrtc.so.12");
    let none = with(&folder, &[compiler, "libcublasLt.so.12"]);
    // The library for products needs a driver itself, so that it is not found either.
    let ran = tried_with(none.path(), &[]);
    assert!(errors(&ran)[0].contains("libcuda) was not found"), "{}", ran.said);
    let without_products = with(&folder, &[driver, compiler]);
    let ran = tried_with(without_products.path(), &[ANEW]);
    assert!(ran.said.contains("right: 12"), "{}", ran.said);
    let alone = with(&folder, &[driver]);
    let ran = tried_with(alone.path(), &[ANEW]);
    let first = errors(&ran)[0].to_owned();
    assert!(first.contains("NVRTC") && first.contains("was not found"), "{first}");
    // With kernels that were compiled before, the driver is enough.
    let kernels = tempfile::tempdir().unwrap();
    let kept = [("BRIGADE_CUDA_CACHE", kernels.path().to_str().unwrap())];
    tried_with(without_products.path(), &kept);
    let ran = tried_with(alone.path(), &kept);
    assert!(ran.said.contains("right: 12"), "{}", ran.said);
    let none = [("STANDIN_DEVICES", "0")];
    let ran = tried_with(&folder, &none);
    assert!(errors(&ran)[0].contains("cuda:0"), "{}", ran.said);
}
