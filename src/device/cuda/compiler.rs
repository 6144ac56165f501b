//! Kernels from text: by NVRTC, and from a folder of those that were compiled before.
//!
//! A file of the folder is named by a hash of everything that its contents depend on (text, GPU, form
//! of the file) and not by the compiler that made it, so that a folder serves where there is no
//! compiler. It says its own hash; one that does not fit is made anew.

use std::ffi::{CStr, CString};
use std::fs;
use std::io::Write as _;
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use cudarc::nvrtc::{result as nvrtc, sys};
use sha2::{Digest, Sha256};

use crate::device::gpu::lock;
use crate::error::{Result, err};

/// The name by which every kernel is called.
pub(super) const ENTRY: &str = "brigade";

/// What a file of the folder begins with; changed when its form or the way kernels are compiled is.
const MAGIC: &[u8; 16] = b"brigade-kernel-2";

const DIGEST: usize = 32;

/// A GPU's compute capability, such as 9 and 0.
pub(super) type Capability = (u32, u32);

/// The version of NVRTC, if it is there.
pub(super) fn version() -> Option<(i32, i32)> {
    // A library that lacks a function is one that is not there.
    std::panic::catch_unwind(loaded_version).unwrap_or(None)
}

fn loaded_version() -> Option<(i32, i32)> {
    // SAFETY: it loads and unloads the library, whose initialisers are those of a compiler.
    if !unsafe { sys::is_culib_present() } {
        return None;
    }
    let (mut major, mut minor) = (0, 0);
    // SAFETY: the pointers are those of local variables.
    unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) }.result().ok()?;
    Some((major, minor))
}

/// Where compiled kernels are kept: `BRIGADE_CUDA_CACHE` if it is set (nowhere if it is empty), else
/// the cache folder of the user.
pub(super) fn folder() -> Option<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    if std::env::var_os("BRIGADE_CUDA_CACHE").is_some() {
        return set("BRIGADE_CUDA_CACHE");
    }
    let user = set("XDG_CACHE_HOME").filter(|p| p.is_absolute());
    let user = user.or_else(|| set("HOME").map(|home| home.join(".cache")));
    user.map(|at| at.join("brigade").join("kernels"))
}

/// The file of a kernel in the folder.
fn file_of(folder: &Path, text: &str, (major, minor): Capability) -> PathBuf {
    let mut hash = Sha256::new();
    hash.update(MAGIC);
    hash.update(format!("sm_{major}{minor}\0"));
    hash.update(text);
    let name: String = hash.finalize().iter().map(|b| format!("{b:02x}")).collect();
    folder.join(name)
}

/// What a file holds, if it is whole.
fn kept(file: &Path) -> Option<Vec<u8>> {
    let all = fs::read(file).ok()?;
    let rest = all.strip_prefix(MAGIC)?;
    let (digest, image) = rest.split_at_checked(DIGEST)?;
    (Sha256::digest(image)[..] == *digest).then(|| image.to_vec())
}

/// Keeps an image; where it cannot be kept it is compiled again next time.
fn keep(file: &Path, image: &[u8]) -> std::io::Result<()> {
    let Some(folder) = file.parent() else { return Ok(()) };
    fs::create_dir_all(folder)?;
    // Written aside and renamed: who reads it at the same time finds all of it or nothing.
    let aside =
        file.with_extension(format!("{}-{:?}", std::process::id(), std::thread::current().id()));
    let written = (|| {
        let mut to = fs::File::create(&aside)?;
        to.write_all(MAGIC)?;
        to.write_all(&Sha256::digest(image))?;
        to.write_all(image)?;
        drop(to);
        fs::rename(&aside, file)
    })();
    if written.is_err() {
        let _ = fs::remove_file(&aside);
    }
    written
}

/// The image of a kernel: from the folder, or compiled.
///
/// # Errors
/// What the compiler says, or that there is none, in words.
pub(super) fn image(
    text: &str,
    capability: Capability,
    folder: Option<&Path>,
    compiler: Option<(i32, i32)>,
) -> std::result::Result<Vec<u8>, String> {
    let file = folder.map(|folder| file_of(folder, text, capability));
    if let Some(image) = file.as_deref().and_then(kept) {
        return Ok(image);
    }
    if compiler.is_none() {
        let looked = match folder {
            Some(folder) => format!("`{}` does not have it", folder.display()),
            None => "no folder of compiled kernels is named".to_owned(),
        };
        return Err(format!(
            "NVRTC, which compiles kernels, was not found, and {looked}; install CUDA's \
             libnvrtc, or name a folder of kernels that were compiled elsewhere by \
             BRIGADE_CUDA_CACHE"
        ));
    }
    let image = compile(text, capability)?;
    if let Some(file) = file {
        let _ = keep(&file, &image);
    }
    Ok(image)
}

/// Whether the folder has the image of a kernel.
pub(super) fn is_kept(text: &str, capability: Capability, folder: &Path) -> bool {
    kept(&file_of(folder, text, capability)).is_some()
}

/// What `work` makes of each item, on all cores.
pub(super) fn at_once<T: Sync, R: Send>(
    items: &[T],
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Vec<Result<R>> {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let next = AtomicUsize::new(0);
    let made: Mutex<Vec<(usize, Result<R>)>> = Mutex::default();
    std::thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            // A compiler wants more of a stack than threads have by themselves.
            let thread = std::thread::Builder::new().stack_size(16 << 20);
            let started = thread.spawn_scoped(scope, || {
                // A thread that panics leaves its item out, which is told below.
                while let Some((i, item)) = Some(next.fetch_add(1, Ordering::Relaxed))
                    .and_then(|i| Some((i, items.get(i)?)))
                {
                    let done = std::panic::catch_unwind(AssertUnwindSafe(|| work(item)));
                    let done = done.unwrap_or_else(|_| Err(err!(Device, "NVRTC lacks a function")));
                    lock(&made).push((i, done));
                }
            });
            if started.is_err() {
                break;
            }
        }
    });
    let mut made = std::mem::take(&mut *lock(&made));
    if made.len() < items.len() {
        return vec![Err(err!(Device, "no thread could be started to compile kernels"))];
    }
    made.sort_by_key(|(i, _)| *i);
    made.into_iter().map(|(_, done)| done).collect()
}

/// Forgets what the folder has of a kernel, which the driver refused.
pub(super) fn forget(text: &str, capability: Capability, folder: Option<&Path>) {
    if let Some(folder) = folder {
        let _ = fs::remove_file(file_of(folder, text, capability));
    }
}

/// Capabilities whose PTX every later GPU takes, from the latest: for GPUs that are later than the
/// compiler.
const PORTABLE: &[Capability] = &[(12, 0), (10, 0), (9, 0), (8, 0), (7, 5), (7, 0), (6, 0)];

fn compile(text: &str, capability: Capability) -> std::result::Result<Vec<u8>, String> {
    match compile_for(text, capability, true) {
        Err(Refusal::Architecture) => {}
        other => return other.map_err(Refusal::words),
    }
    for portable in PORTABLE.iter().filter(|portable| **portable <= capability) {
        match compile_for(text, *portable, false) {
            Err(Refusal::Architecture) => {}
            other => return other.map_err(Refusal::words),
        }
    }
    let (major, minor) = capability;
    Err(format!("NVRTC does not know GPUs of compute capability {major}.{minor}"))
}

enum Refusal {
    /// The compiler does not know such GPUs.
    Architecture,
    Text(String),
}

impl Refusal {
    fn words(self) -> String {
        match self {
            Self::Architecture => "NVRTC does not know such GPUs".to_owned(),
            Self::Text(words) => words,
        }
    }
}

/// A program that is being compiled.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was created once, by `compile_for`.
        let _ = unsafe { nvrtc::destroy_program(self.0) };
    }
}

/// Machine code for just these GPUs, or PTX for them and all later ones.
fn compile_for(
    text: &str,
    (major, minor): Capability,
    exact: bool,
) -> std::result::Result<Vec<u8>, Refusal> {
    let said = |e: nvrtc::NvrtcError| Refusal::Text(format!("NVRTC: {e}"));
    let text = CString::new(text).map_err(|e| Refusal::Text(e.to_string()))?;
    // The program refers to the text, so it is dropped before.
    let program = Program(nvrtc::create_program(&text, None).map_err(said)?);
    let kind = if exact { "sm" } else { "compute" };
    // Multiply-adds are where kernels say so: elsewhere they would differ from the CPU's by more than their
    // order.
    let options = [
        format!("--gpu-architecture={kind}_{major}{minor}"),
        "--std=c++17".to_owned(),
        "--fmad=false".to_owned(),
    ];
    // SAFETY: the program was created above.
    if let Err(e) = unsafe { nvrtc::compile_program(program.0, &options) } {
        if e.0 == sys::nvrtcResult::NVRTC_ERROR_INVALID_OPTION {
            return Err(Refusal::Architecture);
        }
        // SAFETY: as above.
        let log = unsafe { nvrtc::get_program_log(program.0) }.unwrap_or_default();
        let log: Vec<u8> = log.iter().map(|c| *c as u8).collect();
        let log = CStr::from_bytes_until_nul(&log).map(CStr::to_string_lossy);
        return Err(Refusal::Text(format!("NVRTC: {e}: {}", log.unwrap_or_default().trim())));
    }
    if !exact {
        // SAFETY: it was compiled.
        let ptx = unsafe { nvrtc::get_ptx(program.0) }.map_err(said)?;
        return Ok(ptx.iter().map(|c| *c as u8).take_while(|c| *c != 0).collect());
    }
    let mut bytes = 0;
    // SAFETY: the program was compiled; the pointer is that of a local variable.
    unsafe { sys::nvrtcGetCUBINSize(program.0, &raw mut bytes) }.result().map_err(said)?;
    let mut image = vec![0_u8; bytes];
    // SAFETY: it writes so many bytes.
    unsafe { sys::nvrtcGetCUBIN(program.0, image.as_mut_ptr().cast()) }.result().map_err(said)?;
    Ok(image)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_found_again_and_one_that_was_changed_is_not_used() {
        let folder = tempfile::tempdir().unwrap();
        let file = file_of(folder.path(), "text", (9, 0));
        assert_ne!(file, file_of(folder.path(), "text", (8, 0)));
        assert_ne!(file, file_of(folder.path(), "other", (9, 0)));
        assert_eq!(kept(&file), None);
        keep(&file, b"image").unwrap();
        assert_eq!(kept(&file).as_deref(), Some(&b"image"[..]));
        let without = image("text", (9, 0), Some(folder.path()), None);
        assert_eq!(without.as_deref(), Ok(&b"image"[..]));
        let whole = fs::read(&file).unwrap();
        for at in 0..whole.len() {
            let mut bad = whole.clone();
            bad[at] ^= 1;
            fs::write(&file, &bad).unwrap();
            assert_eq!(kept(&file), None, "byte {at}");
            fs::write(&file, &whole[..at]).unwrap();
            assert_eq!(kept(&file), None, "cut at {at}");
        }
        let missing = image("text", (9, 0), Some(folder.path()), None).unwrap_err();
        assert!(missing.contains("BRIGADE_CUDA_CACHE"), "{missing}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left aside");
    }
}
