//! CUDA C compiled for the CPU and run there.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use brigade::Tensor;
use brigade::gpu::{Kernel, Operand, OutputPlace, Scalar, narrowed, widened};

use super::jobs::Job;

fn compiler() -> Option<String> {
    let name = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    if Command::new(&name).arg("--version").output().is_ok_and(|o| o.status.success()) {
        return Some(name);
    }
    let required = std::env::var_os("BRIGADE_REQUIRE_CXX").is_some_and(|v| v == "1");
    assert!(!required, "BRIGADE_REQUIRE_CXX=1, but `{name}` does not run");
    eprintln!("left out: there is no C++ compiler `{name}` to run CUDA C with");
    None
}

fn c_type(scalar: Scalar) -> &'static str {
    match scalar {
        Scalar::F32 => "float",
        Scalar::I32 => "int",
        Scalar::U32 | Scalar::Bool => "unsigned",
    }
}

/// The text of all kernels, as files of CUDA C.
pub(crate) fn write_out(folder: &Path, kernels: &BTreeMap<String, Arc<Kernel>>) {
    std::fs::create_dir_all(folder).unwrap();
    let mut text = String::new();
    for (i, kernel) in kernels.values().enumerate() {
        text += &kernel.cuda(&entry(i, kernel));
    }
    std::fs::write(folder.join("kernels.cu"), text).unwrap();
}

fn entry(i: usize, kernel: &Kernel) -> String {
    let name: String = kernel.name.chars().take(60).collect();
    format!("k{i}_{name}")
}

/// One program with every kernel, and a table of them.
fn program(kernels: &BTreeMap<String, Arc<Kernel>>) -> String {
    let mut s = "#include \"shim.h\"\n#include \"shim_main.h\"\n".to_owned();
    for (i, kernel) in kernels.values().enumerate() {
        s += &kernel.cuda(&entry(i, kernel));
        let _ = writeln!(s, "static void run{i}(const unsigned* p, char* const* b) {{");
        let _ = write!(s, "  {}(p", entry(i, kernel));
        for (k, ty) in kernel.inputs.iter().enumerate() {
            let _ = write!(s, ", (const {}*)b[{k}]", c_type(*ty));
        }
        let _ = writeln!(s, ", ({}*)b[{}]);\n}}", c_type(kernel.output), kernel.inputs.len());
    }
    s += "const Kernel KERNELS[] = {\n";
    for (i, kernel) in kernels.values().enumerate() {
        let [x, y, z] = kernel.threads;
        let (barriers, buffers) = (kernel.has_barriers(), kernel.inputs.len() + 1);
        let name = entry(i, kernel);
        let _ =
            writeln!(s, "  {{\"{name}\", {{{x}u, {y}u, {z}u}}, {barriers}, {buffers}u, run{i}}},");
    }
    s + "};\n"
}

/// The outputs of the jobs, or `None` after saying that there is no compiler.
pub(crate) fn run(
    jobs: &[Job],
    kernels: &BTreeMap<String, Arc<Kernel>>,
) -> Option<Vec<Vec<Tensor>>> {
    let folder = compiled(&program(kernels))?;
    let numbers: BTreeMap<&str, u32> = kernels.keys().map(String::as_str).zip(0..).collect();
    let mut words: Vec<u8> = Vec::new();
    words.extend((jobs.len() as u32).to_ne_bytes());
    for job in jobs {
        write_job(&mut words, job, &numbers);
    }
    let made = ran(folder.path(), &words).unwrap_or_else(|why| panic!("{why}"));
    let mut rest = &made[..];
    let outputs = jobs.iter().map(|job| read_outputs(job, &mut rest)).collect();
    assert!(rest.is_empty(), "{} bytes are left", rest.len());
    Some(outputs)
}

/// A program of the shim, in a folder of its own, or `None` after saying that there is no compiler.
fn compiled(program: &str) -> Option<tempfile::TempDir> {
    let compiler = compiler()?;
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu");
    std::fs::write(at("kernels.cpp"), program).unwrap();
    let made = Command::new(compiler)
        .args(["-std=c++17", "-O1", "-w", "-fwrapv", "-ffp-contract=off", "-I"])
        .arg(here)
        .arg(at("kernels.cpp"))
        .arg("-o")
        .arg(at("kernels"))
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    Some(folder)
}

/// What a program makes of jobs, or why it gave up.
fn ran(folder: &Path, jobs: &[u8]) -> Result<Vec<u8>, String> {
    let at = |name: &str| folder.join(name);
    std::fs::write(at("jobs"), jobs).unwrap();
    let ran = Command::new(at("kernels")).arg(at("jobs")).arg(at("made")).output().unwrap();
    if !ran.status.success() {
        return Err(String::from_utf8_lossy(&ran.stderr).into_owned());
    }
    Ok(std::fs::read(at("made")).unwrap())
}

/// Runs each kernel of a text of CUDA C, by itself, with four threads on a buffer of four words that
/// nobody has written; `None` after saying that there is no compiler.
pub(crate) fn run_text(text: &str, kernels: &[&str]) -> Option<Vec<Result<Vec<u32>, String>>> {
    let mut program = format!("#include \"shim.h\"\n#include \"shim_main.h\"\n{text}");
    for kernel in kernels {
        let _ = writeln!(
            program,
            "static void run_{kernel}(const unsigned*, char* const* b) {{ {kernel}((unsigned*)b[0]); }}"
        );
    }
    program += "const Kernel KERNELS[] = {\n";
    for kernel in kernels {
        let _ = writeln!(program, "  {{\"{kernel}\", {{4u, 1u, 1u}}, true, 1u, run_{kernel}}},");
    }
    let folder = compiled(&(program + "};\n"))?;
    let one = |number: u32| {
        // One job of one buffer, one launch of one group, and the buffer to write out.
        let job = [1, 1, 16, 0, 1, number, 1, 1, 1, 0, 0, 1, 0];
        let made = ran(folder.path(), bytemuck::cast_slice(&job))?;
        Ok(made.chunks_exact(4).map(|w| u32::from_ne_bytes(w.try_into().unwrap())).collect())
    };
    Some((0..kernels.len() as u32).map(one).collect())
}

fn write_job(to: &mut Vec<u8>, job: &Job, numbers: &BTreeMap<&str, u32>) {
    let lowered = &job.lowered;
    let mut push = |v: u32| to.extend(v.to_ne_bytes());
    // Constants come after the working buffers.
    let mut constants = Vec::new();
    for read in lowered.launches.iter().flat_map(|l| &l.reads) {
        if let Operand::Constant(v) = read
            && !constants.contains(v)
        {
            constants.push(*v);
        }
    }
    let filled = |buffer: usize| {
        let at = lowered.inputs.iter().position(|p| p.buffer == buffer)?;
        Some(narrowed(&job.inputs[at], lowered.inputs[at].range, &job.name).unwrap())
    };
    push((lowered.buffers.len() + constants.len()) as u32);
    let mut contents: Vec<(u32, Option<Vec<u8>>)> = Vec::new();
    for (i, bytes) in lowered.buffers.iter().enumerate() {
        contents.push((*bytes as u32, filled(i).map(|c| c.into_owned())));
    }
    for v in &constants {
        let own = || job.graph.values()[v.index()].constant.as_ref();
        let tensor = lowered.constant(*v).or_else(own).unwrap();
        let bytes = narrowed(tensor, None, &job.name).unwrap().into_owned();
        contents.push((bytes.len() as u32, Some(bytes)));
    }
    for (bytes, filled) in contents {
        to.extend(bytes.to_ne_bytes());
        to.extend(u32::from(filled.is_some()).to_ne_bytes());
        to.extend(filled.unwrap_or_default());
    }
    let mut push = |v: u32| to.extend(v.to_ne_bytes());
    push(lowered.launches.len() as u32);
    for launch in &lowered.launches {
        push(numbers[launch.kernel.wgsl().as_str()]);
        launch.groups.iter().for_each(|g| push(*g));
        for read in &launch.reads {
            push(match read {
                Operand::Buffer(b) => *b as u32,
                Operand::Constant(v) => {
                    let at = constants.iter().position(|c| c == v).unwrap();
                    (lowered.buffers.len() + at) as u32
                }
            });
        }
        push(launch.writes as u32);
        push(launch.words.len() as u32);
        launch.words.iter().for_each(|w| push(*w));
    }
    let buffers: Vec<u32> = lowered
        .outputs
        .iter()
        .filter_map(|o| match o {
            OutputPlace::Buffer { buffer, .. } => Some(*buffer as u32),
            OutputPlace::Constant(_) => None,
        })
        .collect();
    push(buffers.len() as u32);
    buffers.into_iter().for_each(push);
}

fn read_outputs(job: &Job, rest: &mut &[u8]) -> Vec<Tensor> {
    let mut outputs = Vec::new();
    for output in &job.lowered.outputs {
        outputs.push(match output {
            OutputPlace::Constant(t) => t.clone(),
            OutputPlace::Buffer { buffer, dtype, shape } => {
                let size = job.lowered.buffers[*buffer] as usize;
                let (made, after) = rest.split_at(size);
                *rest = after;
                let made = &made[..shape.elements() * 4];
                let mut bytes = vec![0; shape.elements() * dtype.size()];
                widened(made, *dtype, &mut bytes).unwrap();
                Tensor::from_bytes(*dtype, shape.clone(), &bytes).unwrap()
            }
        });
    }
    outputs
}
