//! Models that are split over several files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;

use crate::error::{Result, bail, err};
use crate::import::gguf::GgufFile;
use crate::import::safetensors::Pairs;

/// Which file of a sharded safetensors model holds each tensor: its `*.index.json`.
#[derive(Debug)]
pub(super) struct ShardIndex {
    files: HashMap<String, PathBuf>,
}

#[derive(Deserialize)]
struct IndexFile {
    weight_map: Pairs<String>,
}

/// Bytes of an index that are read.
const MAX_INDEX: usize = 64 << 20;

impl ShardIndex {
    /// Reads an index that lies in `folder`.
    ///
    /// # Errors
    /// If it is not well formed, or names files that do not lie beside it.
    pub(super) fn parse(bytes: &[u8], folder: &Path) -> Result<Self> {
        if bytes.len() > MAX_INDEX {
            bail!(Limit, "takes {} bytes, more than the limit of {MAX_INDEX}", bytes.len());
        }
        let index: IndexFile = serde_json::from_slice(bytes)
            .map_err(|e| err!(Format, "is no index of a sharded model").with_source(e))?;
        let mut files = HashMap::new();
        for (tensor, file) in index.weight_map.0 {
            let plain = Path::new(&file).file_name().is_some_and(|n| n == file.as_str());
            if !plain {
                bail!(
                    Format,
                    "tensor `{tensor}` is in `{file}`, which does not lie beside the index"
                );
            }
            if files.insert(tensor.clone(), folder.join(file)).is_some() {
                bail!(Duplicate, "names tensor `{tensor}` twice");
            }
        }
        Ok(Self { files })
    }

    /// The file that holds a tensor.
    pub(super) fn file(&self, tensor: &str) -> Result<&Path> {
        self.files.get(tensor).map(PathBuf::as_path).ok_or_else(|| {
            let names = self.files.keys().map(String::as_str);
            err!(UnknownName, "there is no tensor `{tensor}`")
                .with_help(crate::import::closest(tensor, names))
        })
    }
}

/// A GGUF model: one file, or all the parts that it was split into.
#[derive(Debug)]
pub(super) struct GgufParts {
    parts: Vec<Arc<GgufFile>>,
}

impl GgufParts {
    /// The file at `path` with all other parts, which `open` opens.
    ///
    /// # Errors
    /// If a part cannot be opened, or they do not belong together.
    pub(super) fn new(
        first: Arc<GgufFile>,
        path: &Path,
        open: &dyn Fn(&Path) -> Result<Arc<GgufFile>>,
    ) -> Result<Self> {
        let Some((own, count)) = first.split()? else {
            return Ok(Self { parts: vec![first] });
        };
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        let tail = format!("-{:05}-of-{count:05}.gguf", own + 1);
        let Some(stem) = name.strip_suffix(&tail) else {
            return Err(err!(
                Format,
                "`{}` is part {} of {count} by its metadata, but its name does not end in `{tail}`",
                path.display(),
                own + 1
            )
            .with_help("give the parts the names back that they were made with"));
        };
        let mut parts = Vec::with_capacity(count);
        let mut owner: HashMap<&str, usize> = HashMap::new();
        for number in 0..count {
            if number == own {
                parts.push(Arc::clone(&first));
                continue;
            }
            let beside =
                path.with_file_name(format!("{stem}-{:05}-of-{count:05}.gguf", number + 1));
            let part = open(&beside).map_err(|e| {
                e.with_help(format!("the model has {count} parts: get all of them"))
            })?;
            if part.split()? != Some((number, count)) {
                bail!(Format, "`{}` is not part {} of {count}", beside.display(), number + 1);
            }
            parts.push(part);
        }
        for (number, part) in parts.iter().enumerate() {
            for tensor in part.tensors() {
                if let Some(other) = owner.insert(&tensor.name, number) {
                    let (a, b) = (other + 1, number + 1);
                    bail!(Duplicate, "tensor `{}` is in part {a} and in part {b}", tensor.name);
                }
            }
        }
        let told = parts.iter().find_map(|p| p.metadata().get("split.tensors.count"));
        if let Some(told) = told.and_then(crate::import::GgufValue::as_u64)
            && told != owner.len() as u64
        {
            bail!(Format, "the parts have {} tensors, their metadata say {told}", owner.len());
        }
        Ok(Self { parts })
    }

    /// The part that holds a tensor.
    ///
    /// # Errors
    /// If none does.
    pub(super) fn part(&self, tensor: &str) -> Result<&GgufFile> {
        self.parts.iter().find(|p| p.find(tensor).is_some()).map(|p| &**p).ok_or_else(|| {
            let all = self.parts.iter().flat_map(|p| p.tensors());
            err!(UnknownName, "there is no tensor `{tensor}`")
                .with_help(crate::import::closest(tensor, all.map(|t| t.name.as_str())))
        })
    }
}
