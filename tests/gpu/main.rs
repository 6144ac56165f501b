//! Kernels of the GPU devices, without a GPU: every kernel that the operators' cases need is valid
//! WGSL, and gives the same as the CPU device when its CUDA C runs on a CPU.
//!
//! The CUDA C needs a C++ compiler (`$CXX`, or `c++`); without one it is left out, and
//! `BRIGADE_REQUIRE_CXX=1` makes that a failure.
#![allow(clippy::unwrap_used, clippy::panic)]

mod jobs;
mod shim;

use std::collections::BTreeMap;
use std::sync::OnceLock;

use brigade::gpu::{Kernel, TABLE};
use jobs::{Job, cases, graphs};

/// The kernels of jobs, each text once.
fn kernels(jobs: &[Job]) -> BTreeMap<String, std::sync::Arc<Kernel>> {
    let launches = jobs.iter().flat_map(|j| &j.lowered.launches);
    launches.map(|l| (l.kernel.wgsl(), std::sync::Arc::clone(&l.kernel))).collect()
}

fn all() -> &'static [Job] {
    static ALL: OnceLock<Vec<Job>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut jobs = cases();
        jobs.extend(graphs());
        jobs
    })
}

#[test]
fn every_kernel_is_valid_wgsl_with_its_bindings() {
    use naga::valid::{Capabilities, ValidationFlags, Validator};
    let kernels = kernels(all());
    assert!(kernels.len() > 100, "{} kernels", kernels.len());
    for (text, kernel) in &kernels {
        let module = naga::front::wgsl::parse_str(text)
            .unwrap_or_else(|e| panic!("{}: {}", kernel.name, e.emit_to_string(text)));
        // Nothing that an adapter need not have.
        let mut validator = Validator::new(ValidationFlags::all(), Capabilities::empty());
        if let Err(e) = validator.validate(&module) {
            panic!("{}: {e:?}\n{text}", kernel.name);
        }
        let bound = module.global_variables.iter().filter(|(_, v)| v.binding.is_some());
        assert_eq!(bound.count(), kernel.inputs.len() + 2, "{}", kernel.name);
        // The least that WebGPU promises: threads, bytes of a group, bytes of a uniform buffer.
        assert!(kernel.threads.iter().product::<u32>() <= 256, "{}", kernel.name);
        assert!(kernel.words4 * 16 <= 256 && kernel.inputs.len() < 8, "{}", kernel.name);
        assert!(kernel.group_bytes() <= 16 << 10, "{}", kernel.name);
    }
}

/// What the table says of an operator is what it takes: no dtype that is always refused.
#[test]
fn dtypes_that_are_listed_are_those_that_run() {
    use brigade::DType;
    for (op, dtype) in [
        ("Div", DType::I32),
        ("Pow", DType::I32),
        ("Neg", DType::U32),
        ("ReduceSum", DType::I64),
        ("Mod", DType::F32),
    ] {
        let listed = TABLE.iter().any(|r| r.op == op && r.types.contains(&dtype));
        assert!(!listed, "{op} of {dtype}");
    }
}

#[test]
fn every_operator_of_the_table_has_a_case_that_is_lowered() {
    let jobs = all();
    let missing: Vec<String> = TABLE
        .iter()
        .filter(|row| !jobs.iter().any(|j| j.op == row.op && j.domain == row.domain))
        .map(|row| format!("{row:?}"))
        .collect();
    assert!(missing.is_empty(), "no case of {missing:?} is lowered");
}

#[test]
fn the_cuda_c_gives_what_the_cpu_device_gives() {
    let jobs = all();
    let kernels = kernels(jobs);
    let Some(outputs) = shim::run(jobs, &kernels) else { return };
    let mut failures = Vec::new();
    for (job, got) in jobs.iter().zip(outputs) {
        for (got, want) in got.iter().zip(&job.expected) {
            if let Err(why) = brigade::ops::case::compare(got, want, job.atol, job.rtol) {
                failures.push(format!("{}: {why}", job.name));
            }
        }
    }
    let count = jobs.len();
    assert!(failures.is_empty(), "{} of {count} failed:\n{}", failures.len(), failures.join("\n"));
    eprintln!("{count} graphs, {} kernels", kernels.len());
}

#[test]
fn the_shim_sees_the_faults_that_a_gpu_would_not_tell() {
    let text = r"
        void right(unsigned* y) {
          __shared__ unsigned all[4];
          all[threadIdx.x] = threadIdx.x;
          __syncthreads();
          y[threadIdx.x] = all[3 - threadIdx.x];
        }
        void beyond(unsigned* y) { y[threadIdx.x + 1] = 7; }
        void before(unsigned* y) { y[threadIdx.x] = y[threadIdx.x + 4] + 1; }
        void left_out(unsigned* y) { if (threadIdx.x != 2) y[threadIdx.x] = 7; }
        void leaves(unsigned* y) { if (threadIdx.x < 2) __syncthreads(); y[threadIdx.x] = 7; }
        void apart(unsigned* y) {
          if (threadIdx.x < 2) {
            __syncthreads();
          } else {
            __syncthreads();
          }
          y[threadIdx.x] = 7;
        }
    ";
    let kernels = ["right", "beyond", "before", "left_out", "leaves", "apart"];
    let Some(ran) = shim::run_text(text, &kernels) else { return };
    let refused = |why: &str| Err::<Vec<u32>, _>(format!("{why}\n"));
    assert_eq!(ran[0], Ok(vec![3, 2, 1, 0]));
    assert_eq!(ran[1], refused("beyond: memory beyond a buffer was touched"));
    assert_eq!(ran[2], refused("before: memory beyond a buffer was touched"));
    // What nobody wrote is no number, which no comparison takes for one.
    assert_eq!(ran[3], Ok(vec![7, 7, u32::MAX, 7]));
    assert!(f32::from_bits(u32::MAX).is_nan());
    assert_eq!(ran[4], refused("leaves: a thread left while others wait for it"));
    assert_eq!(ran[5], refused("apart: threads wait at different barriers"));
}

/// With `BRIGADE_CUDA_OUT=FOLDER` the text is left there, for `scripts/check-ptx`.
#[test]
fn texts_are_ascii_and_constants_that_are_not_finite_are_bits() {
    let kernels = kernels(all());
    if let Some(folder) = std::env::var_os("BRIGADE_CUDA_OUT") {
        shim::write_out(folder.as_ref(), &kernels);
    }
    for kernel in kernels.values() {
        let text = kernel.cuda("k");
        assert!(text.is_ascii(), "{text}");
        for word in ["inf", "nan"] {
            assert!(!text.to_ascii_lowercase().contains(&format!("{word}f")), "{text}");
        }
    }
}
