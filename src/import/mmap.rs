//! Mapped files.

use std::fs::File;

use crate::error::Result;
use crate::tensor::Buffer;

/// The bytes of a regular file, mapped read-only; the mapping lives as long as a handle on it.
///
/// Whoever changes or truncates the file while it is mapped breaks the process, as with every
/// mapped weight file: replace such files by renaming new ones over them.
///
/// # Errors
/// If the file cannot be mapped.
pub(super) fn map(file: &File) -> Result<Buffer> {
    if file.metadata()?.len() == 0 {
        return Buffer::zeroed(0);
    }
    // SAFETY: the mapping is private and read-only, and nothing in this process writes the file.
    // That no other process truncates it is asked of the user, above and in the documentation.
    let mapped = unsafe { memmap2::Mmap::map(file) }?;
    Ok(Buffer::foreign(mapped))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_those_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weights");
        std::fs::write(&path, b"some bytes").unwrap();
        assert_eq!(map(&File::open(&path).unwrap()).unwrap().as_bytes(), b"some bytes");
        std::fs::write(&path, b"").unwrap();
        assert!(map(&File::open(&path).unwrap()).unwrap().is_empty());
    }
}
