//! The `.npz` format of numpy: a zip archive of `.npy` files.

#![forbid(unsafe_code)]

use std::collections::HashSet;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read, Seek, Write};
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

use super::{Limits, npy};
use crate::error::{Result, bail, err};
use crate::tensor::Tensor;

/// Reads the arrays of a `.npz` file in the order of the archive, within the default [`Limits`].
///
/// # Errors
/// If the file cannot be read or is no zip archive, an entry is not an array, or what comes out
/// passes the limits. The message names the file and the entry.
///
/// ```
/// use brigade::{Tensor, import};
/// let path = std::env::temp_dir().join(format!("brigade-doc-{}.npz", std::process::id()));
/// let arrays = [("ids".to_owned(), Tensor::of_i64(&[1, 2])), ("x".to_owned(), Tensor::scalar(1.5_f32))];
/// import::write_npz(&path, &arrays).unwrap();
/// assert_eq!(import::read_npz(&path).unwrap(), arrays);
/// # std::fs::remove_file(&path).unwrap();
/// ```
pub fn read_npz(path: impl AsRef<Path>) -> Result<Vec<(String, Tensor)>> {
    let path = path.as_ref();
    let read = || read_archive(BufReader::new(super::open_file(path)?), &Limits::default());
    read().map_err(|e: crate::Error| e.within(&format!("`{}`", path.display())))
}

pub(crate) fn read_archive(
    reader: impl Read + Seek,
    limits: &Limits,
) -> Result<Vec<(String, Tensor)>> {
    let mut archive = ZipArchive::new(reader).map_err(|e| zip_error(e, "is not a .npz file"))?;
    if archive.len() > limits.max_entries {
        let (n, max) = (archive.len(), limits.max_entries);
        bail!(Limit, "the archive has {n} entries, more than the limit of {max}");
    }
    let mut left = limits.max_bytes;
    let mut seen = HashSet::new();
    let mut out = Vec::new();
    for i in 0..archive.len() {
        let entry = archive.by_index(i).map_err(|e| zip_error(e, "the archive is damaged"))?;
        let file = entry.name().to_owned();
        let Some(key) = file.strip_suffix(".npy") else {
            return Err(err!(Format, "entry `{file}` of the archive is not a .npy file")
                .with_help("save archives with numpy.savez"));
        };
        // A bomb may lie about its size, so that the reader is capped as well.
        let bounded =
            Limits { max_tensor_bytes: limits.max_tensor_bytes.min(left), ..limits.clone() };
        let tensor = npy::read_array(entry, None, &bounded)
            .map_err(|e| e.within(&format!("entry `{file}`")))?;
        left = left.saturating_sub(tensor.bytes() as u64);
        if !seen.insert(key.to_owned()) {
            bail!(Duplicate, "the archive has two entries named `{file}`");
        }
        out.push((key.to_owned(), tensor));
    }
    Ok(out)
}

fn zip_error(error: zip::result::ZipError, what: &str) -> crate::Error {
    match error {
        zip::result::ZipError::Io(io) if io.kind() != std::io::ErrorKind::UnexpectedEof => {
            io.into()
        }
        other => err!(Format, "{what}").with_source(other),
    }
}

/// Writes arrays as an uncompressed `.npz` file, in their order.
///
/// # Errors
/// If the file cannot be written, numpy has no such dtype, or a name is there twice. The message
/// names the file and the array.
pub fn write_npz(path: impl AsRef<Path>, arrays: &[(String, Tensor)]) -> Result<()> {
    let path = path.as_ref();
    let write = || {
        let mut seen = HashSet::new();
        let mut headers = Vec::with_capacity(arrays.len());
        for (name, tensor) in arrays {
            if !seen.insert(name) {
                bail!(Duplicate, "two arrays are named `{name}`");
            }
            headers.push(npy::header_of(tensor).map_err(|e| e.within(&format!("array `{name}`")))?);
        }
        let mut zip = ZipWriter::new(BufWriter::new(File::create(path)?));
        for ((name, tensor), header) in arrays.iter().zip(&headers) {
            let options = SimpleFileOptions::default()
                .compression_method(CompressionMethod::Stored)
                .large_file(tensor.bytes() >= 1 << 31);
            let failed = |e| zip_error(e, "the archive cannot be written");
            zip.start_file(format!("{name}.npy"), options).map_err(failed)?;
            zip.write_all(header)?;
            zip.write_all(tensor.as_bytes())?;
        }
        zip.finish().map_err(|e| zip_error(e, "the archive cannot be written"))?.flush()?;
        Ok(())
    };
    write().map_err(|e: crate::Error| e.within(&format!("`{}`", path.display())))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;
    use crate::{DType, ErrorKind};

    fn archive(entries: &[(&str, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
        let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, bytes) in entries {
            let options = SimpleFileOptions::default().compression_method(method);
            zip.start_file(*name, options).unwrap();
            zip.write_all(bytes).unwrap();
        }
        zip.finish().unwrap().into_inner()
    }

    fn npy(tensor: &Tensor) -> Vec<u8> {
        [&npy::header_of(tensor).unwrap()[..], tensor.as_bytes()].concat()
    }

    #[test]
    fn both_methods_and_the_order_of_keys() {
        let (b, a) = (Tensor::of_i64(&[3, 4]), Tensor::scalar(true));
        let entries = [("b.npy", npy(&b)), ("a/δ.npy", npy(&a))];
        for method in [CompressionMethod::Stored, CompressionMethod::Deflated] {
            let bytes = archive(&entries, method);
            let read = read_archive(Cursor::new(bytes), &Limits::default()).unwrap();
            assert_eq!(read, [("b".to_owned(), b.clone()), ("a/δ".to_owned(), a.clone())]);
        }
    }

    #[test]
    fn bombs_are_capped() {
        let zeros = npy(&Tensor::zeros(DType::U8, [1 << 20]).unwrap());
        let names: Vec<String> = (0..4).map(|i| format!("{i}.npy")).collect();
        let entries: Vec<_> = names.iter().map(|n| (n.as_str(), zeros.clone())).collect();
        let bytes = archive(&entries, CompressionMethod::Deflated);
        assert!(bytes.len() < 10_000);
        let read = |limits: Limits| read_archive(Cursor::new(&bytes), &limits);
        assert_eq!(read(Limits::default()).unwrap().len(), 4);
        let total = Limits { max_bytes: 3 << 20, ..Limits::default() };
        let one = Limits { max_tensor_bytes: 1000, ..Limits::default() };
        let many = Limits { max_entries: 3, ..Limits::default() };
        for limits in [total, one, many] {
            assert_eq!(read(limits).unwrap_err().kind(), ErrorKind::Limit);
        }
    }

    #[test]
    fn faults_name_the_entry_and_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npz");
        let method = CompressionMethod::Stored;
        let mut whole = npy(&Tensor::of_i64(&[1, 2]));
        whole.pop();
        for (bytes, word) in [
            (archive(&[("bad.npy", whole)], method), "bad.npy"),
            (archive(&[("readme.txt", b"hello".to_vec())], method), "readme.txt"),
            (b"\x93NUMPY and so on".to_vec(), "x.npz"),
            (Vec::new(), "x.npz"),
        ] {
            std::fs::write(&path, bytes).unwrap();
            let error = read_npz(&path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Format);
            assert!(error.to_string().contains(word), "{error}");
            assert!(error.to_string().contains("x.npz"), "{error}");
        }
        let mut bytes = archive(&[("a.npy", npy(&Tensor::of_i64(&[7])))], method);
        let at = bytes.windows(8).position(|w| w == 7_i64.to_le_bytes()).unwrap();
        bytes[at] = 8;
        assert!(read_archive(Cursor::new(bytes), &Limits::default()).is_err(), "checksum");
    }

    #[test]
    fn names_are_unique_on_writing() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x.npz");
        let a = ("a".to_owned(), Tensor::scalar(1_u8));
        assert_eq!(write_npz(&path, &[a.clone(), a]).unwrap_err().kind(), ErrorKind::Duplicate);
        assert!(!path.exists());
        write_npz(&path, &[]).unwrap();
        assert_eq!(read_npz(&path).unwrap(), []);
    }
}
