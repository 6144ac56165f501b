//! Libraries that stand in for those of CUDA, in C++: a driver, NVRTC and cuBLASLt that compute on the
//! CPU. `standin/orders.h`, `driver.cpp` and `nvrtc.cpp` say what the environment tells them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// The file of each library, what it is called, and the name that links go by.
const LIBRARIES: [(&str, &str, &str); 3] = [
    ("libcuda", "libcuda.so.1", "libcuda.so"),
    ("nvrtc", "libnvrtc.so.12", "libnvrtc.so"),
    ("cublaslt", "libcublasLt.so.12", "libcublasLt.so"),
];

fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/standin")
}

/// Where what CUDA C means on a CPU is.
fn language() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/gpu")
}

fn compiler() -> Option<String> {
    let name = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    if Command::new(&name).arg("--version").output().is_ok_and(|o| o.status.success()) {
        return Some(name);
    }
    let required = std::env::var_os("BRIGADE_REQUIRE_CXX").is_some_and(|v| v == "1");
    assert!(!required, "BRIGADE_REQUIRE_CXX=1, but `{name}` does not run");
    eprintln!("left out: there is no C++ compiler `{name}` for what stands in for CUDA");
    None
}

/// Starts the compiler on a file of the stand-ins.
fn started(compiler: &str, folder: &Path, file: &str) -> Child {
    let mut command = Command::new(compiler);
    command.args(["-std=c++17", "-O1", "-w", "-fPIC", "-fvisibility=hidden", "-c"]);
    command.arg("-I").arg(language());
    command.arg(sources().join(format!("{file}.cpp"))).arg("-o");
    command.arg(folder.join(format!("{file}.o"))).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn finished(child: Child, what: &str) {
    let done = child.wait_with_output().unwrap();
    assert!(done.status.success(), "{what}: {}", String::from_utf8_lossy(&done.stderr));
}

fn compile(compiler: &str, folder: &Path, files: &[&str]) {
    let children: Vec<Child> = files.iter().map(|f| started(compiler, folder, f)).collect();
    for (child, file) in children.into_iter().zip(files) {
        finished(child, file);
    }
}

fn link(compiler: &str, folder: &Path, files: &[&str], output: &str, options: &[&str]) {
    let mut command = Command::new(compiler);
    command.current_dir(folder).args(files.iter().map(|f| format!("{f}.o")));
    command.args(options).args(["-o", output, "-ldl", "-lpthread"]).stderr(Stdio::piped());
    finished(command.spawn().unwrap(), output);
}

/// Builds the libraries and `check`, which shows what they do, in a folder.
fn build(compiler: &str, at: &Path) {
    let checks = ["check", "check_order", "check_libraries"];
    let files: Vec<&str> = LIBRARIES.iter().map(|(file, ..)| *file).chain(checks).collect();
    compile(compiler, at, &files);
    for (file, name, plain) in LIBRARIES {
        let soname = format!("-Wl,-soname,{name}");
        let mut options = vec!["-shared", "-Wl,--no-undefined", "-Wl,-rpath,$ORIGIN", &soname];
        if file == "cublaslt" {
            options.push("./libcuda.so.1");
        }
        link(compiler, at, &[file], name, &options);
        std::os::unix::fs::symlink(name, at.join(plain)).unwrap();
    }
    link(compiler, at, &checks, "check", &[]);
    // What NVRTC compiles with the text.
    for header in [sources().join("entry.h"), language().join("language.h")] {
        std::fs::copy(&header, at.join(header.file_name().unwrap())).unwrap();
    }
}

/// A number for what is built, from which compiler.
fn digest(compiler: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    compiler.hash(&mut hasher);
    let listed = |folder: PathBuf| std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path());
    let mut files: Vec<PathBuf> = listed(sources()).chain(listed(language())).collect();
    files.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/standin.rs"));
    files.sort();
    for file in files {
        std::fs::read(file).unwrap().hash(&mut hasher);
    }
    hasher.finish()
}

/// A folder with the libraries, for `LD_LIBRARY_PATH` of a child, and the program `check`; `None` after
/// saying that there is no compiler. What was built stays in cargo's folder for tests.
pub(crate) fn libraries() -> Option<PathBuf> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let compiler = compiler()?;
        let all = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let folder = all.join(format!("standin-{:016x}", digest(&compiler)));
        if !folder.exists() {
            let made = tempfile::tempdir_in(all).unwrap();
            build(&compiler, made.path());
            // Somebody else may have been faster.
            if std::fs::rename(made.path(), &folder).is_ok() {
                let _ = made.keep();
            }
        }
        Some(folder)
    });
    built.clone()
}
