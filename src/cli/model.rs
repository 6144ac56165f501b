//! Reading the model that a command line names.

use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::console::Console;
use crate::error::{Result, err};
use crate::graph::Graph;
use crate::import::{self, Limits, WeightCache};

/// Reads a model and tells what its import had to say. Its weight files lie in its folder or below
/// `roots`.
pub(super) fn load(path: &Path, roots: &[PathBuf], console: &Console) -> Result<Graph> {
    let imported = import::import_with(path, &Limits::default(), &weights(roots)?)?;
    for notice in &imported.notices {
        console.notice(&format!("notice: {notice}"));
    }
    Ok(imported.graph)
}

/// A cache that reads below these folders.
pub(super) fn weights(roots: &[PathBuf]) -> Result<WeightCache> {
    roots.iter().try_fold(WeightCache::new(), |cache, root| cache.with_root(root))
}

/// The SHA-256 of a file, in hexadecimal.
pub(super) fn sha256(path: &Path) -> Result<String> {
    let hash = || -> Result<String> {
        let mut file = import::open_file(path)?;
        let mut hasher = Sha256::new();
        let mut buffer = vec![0_u8; 1 << 20];
        loop {
            let n = file.read(&mut buffer)?;
            if n == 0 {
                break;
            }
            hasher.update(&buffer[..n]);
        }
        let mut text = String::with_capacity(64);
        for byte in hasher.finalize() {
            let _ = write!(text, "{byte:02x}");
        }
        Ok(text)
    };
    hash().map_err(|e| e.within(&format!("`{}`", path.display())))
}

/// Writes a file whole.
pub(super) fn write(path: &Path, contents: &str) -> Result<()> {
    std::fs::write(path, contents)
        .map_err(|e| err!(Io, "cannot write `{}`", path.display()).with_source(e))
}
