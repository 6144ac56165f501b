//! Weights in files beside the model.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Component, Path};

use super::pb;
use crate::error::{Error, Result, bail, err};
use crate::import::mmap;
use crate::tensor::Buffer;

/// The model's folder and the files in it that were mapped so far.
pub(super) struct Weights<'a> {
    folder: Option<&'a Path>,
    files: HashMap<String, Buffer>,
}

impl<'a> Weights<'a> {
    pub(super) fn new(folder: Option<&'a Path>) -> Self {
        Self { folder, files: HashMap::new() }
    }

    /// A handle on the `need` bytes that `entries` point at.
    pub(super) fn bytes(
        &mut self,
        entries: &[pb::StringStringEntryProto],
        need: usize,
    ) -> Result<Buffer> {
        let get = |key: &str| {
            let entry = entries.iter().find(|e| e.key.as_deref() == Some(key));
            entry.and_then(|e| e.value.as_deref()).filter(|v| !v.is_empty())
        };
        let number = |key: &str| match get(key).map(str::parse::<usize>) {
            None => Ok(None),
            Some(Ok(n)) => Ok(Some(n)),
            Some(Err(_)) => Err(err!(Format, "its external `{key}` is not a whole number")),
        };
        let location =
            get("location").ok_or_else(|| err!(Format, "its external data have no location"))?;
        let offset = number("offset")?.unwrap_or(0);
        if let Some(length) = number("length")?.filter(|n| *n != need) {
            bail!(Format, "its dims take {need} bytes, but {length} are given in `{location}`");
        }
        let file = self.file(location)?;
        file.range(offset, need).ok_or_else(|| {
            err!(
                Format,
                "it lies at bytes {offset}..+{need} of `{location}`, which has {} bytes",
                file.len()
            )
            .with_help("the file is truncated or of another model: get it again")
        })
    }

    fn file(&mut self, location: &str) -> Result<&Buffer> {
        if !self.files.contains_key(location) {
            let mapped = self.open(location)?;
            self.files.insert(location.to_owned(), mapped);
        }
        self.files
            .get(location)
            .ok_or_else(|| Error::internal(format!("`{location}` was not kept")))
    }

    fn open(&self, location: &str) -> Result<Buffer> {
        let Some(folder) = self.folder else {
            return Err(err!(Missing, "its data are in `{location}`, in no known folder")
                .with_help("give the model's folder, or load the model by its path"));
        };
        let relative = Path::new(location);
        let plain = |c: Component<'_>| matches!(c, Component::Normal(_) | Component::CurDir);
        if !relative.components().all(plain) {
            bail!(Format, "its data are in `{location}`, which lies outside of the model's folder");
        }
        let path = folder.join(relative);
        let named = |e: std::io::Error| {
            err!(Io, "its data are in `{}`, which cannot be opened", path.display())
                .with_source(e)
                .with_help("keep the model's weight files in the folder of the model")
        };
        let inside = folder.canonicalize().map_err(named)?;
        let target = path.canonicalize().map_err(named)?;
        if !target.starts_with(&inside) {
            return Err(err!(
                Format,
                "its data are in `{location}`, a link to `{}` outside of the model's folder",
                target.display()
            )
            .with_help("replace the link by a copy of the file"));
        }
        let file = File::open(&target).map_err(named)?;
        if !file.metadata().map_err(named)?.is_file() {
            bail!(Format, "its data are in `{location}`, which is not a regular file");
        }
        mmap::map(&file).map_err(|e| e.within(&format!("`{location}`")))
    }
}
