//! Weights in files beside the model.

use std::path::{Component, Path};
use std::sync::Arc;

use super::pb;
use crate::error::{ErrorKind, Result, bail, err};
use crate::import::WeightCache;
use crate::tensor::Buffer;

/// The model's folder, and a cache that reads below it (and below the roots that it had).
pub(super) struct Weights<'a> {
    folder: Option<&'a Path>,
    cache: &'a WeightCache,
    below: Option<WeightCache>,
    /// The model's file, and where in memory its bytes lie.
    model: Option<(Arc<Path>, std::ops::Range<usize>)>,
}

impl<'a> Weights<'a> {
    pub(super) fn new(folder: Option<&'a Path>, cache: &'a WeightCache) -> Self {
        Self { folder, cache, below: None, model: None }
    }

    /// For tensors of this file, whose bytes are these.
    pub(super) fn of_model(mut self, path: Option<&Path>, bytes: &[u8]) -> Self {
        let start = bytes.as_ptr() as usize;
        self.model = path.map(|path| (path.into(), start..start + bytes.len()));
        self
    }

    /// An aligned copy of bytes of the model's file, which lets go of the file.
    pub(super) fn copy_of(&self, bytes: &[u8]) -> Buffer {
        let copy = Buffer::copy_of_weights(bytes);
        let at = bytes.as_ptr() as usize;
        match &self.model {
            Some((path, file)) if file.contains(&at) && at + bytes.len() <= file.end => {
                copy.of_file(path, (at - file.start) as u64)
            }
            _ => copy,
        }
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

    fn file(&mut self, location: &str) -> Result<Buffer> {
        let Some(folder) = self.folder else {
            return Err(err!(Missing, "its data are in `{location}`, in no known folder")
                .with_help("give the model's folder, or load the model by its path"));
        };
        let relative = Path::new(location);
        let plain = |c: Component<'_>| matches!(c, Component::Normal(_) | Component::CurDir);
        if !relative.components().all(plain) {
            bail!(Format, "its data are in `{location}`, which lies outside of the model's folder");
        }
        let cache = match &mut self.below {
            Some(cache) => cache,
            none => none.insert(self.cache.below(folder)?),
        };
        cache.open(relative).map_err(|e| match e.kind() {
            ErrorKind::Usage => err!(
                Format,
                "its data are in `{location}`, a link that leads out of the model's folder"
            )
            .with_help(
                "replace the link by a copy of the file, or allow its folder: --weights-root",
            ),
            _ => e
                .within(&format!("its data are in `{location}`"))
                .with_help("keep the model's weight files in the folder of the model"),
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::fs::File;
    use std::io::{Seek, SeekFrom, Write};

    use prost::Message;

    use super::super::tests::*;
    use super::*;
    use crate::error::Error;
    use crate::import::{Limits, from_bytes, import_with};
    use crate::{ErrorKind, Tensor};

    pub(in super::super) fn external(name: &str, entries: &[(&str, &str)]) -> pb::TensorProto {
        pb::TensorProto {
            raw_data: None,
            data_location: Some(pb::tensor_proto::DataLocation::External as i32),
            external_data: entries
                .iter()
                .map(|(k, v)| pb::StringStringEntryProto {
                    key: Some((*k).to_owned()),
                    value: Some((*v).to_owned()),
                })
                .collect(),
            ..floats(name, &[0.0; 2])
        }
    }

    fn load_external(
        folder: Option<&Path>,
        tensors: Vec<pb::TensorProto>,
    ) -> Result<Vec<Tensor>, Error> {
        let mut g = body(&["x"], vec![], &["x"]);
        g.initializer = tensors;
        let graph = from_bytes(&model(g).encode_to_vec(), folder, &Limits::default())?.graph;
        Ok(graph.values().iter().filter_map(|v| v.constant.clone()).collect())
    }

    #[test]
    fn external_weights_are_mapped_and_shared() {
        let folder = tempfile::tempdir().unwrap();
        let data: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
        std::fs::create_dir(folder.path().join("sub")).unwrap();
        std::fs::write(folder.path().join("sub/w.bin"), &data).unwrap();
        let w = load_external(
            Some(folder.path()),
            vec![
                external("a", &[("location", "./sub/w.bin")]),
                external("b", &[("location", "./sub/w.bin"), ("offset", "16"), ("length", "8")]),
                external("c", &[("location", "sub/w.bin"), ("offset", "2")]),
            ],
        );
        // Without a length, the dims say how much of the file it is.
        let w = w.unwrap();
        assert_eq!(w[0].as_slice::<f32>().unwrap(), [0.0, 1.0]);
        assert_eq!(w[1].as_slice::<f32>().unwrap(), [4.0, 5.0]);
        assert!(w[0].buffer().same_memory(w[1].buffer()));
        assert_eq!(w[2].as_bytes(), &data[2..10]);
    }

    #[test]
    fn external_weights_stay_in_the_folder_of_the_model() {
        let outside = tempfile::tempdir().unwrap();
        let secret = outside.path().join("secret");
        std::fs::write(&secret, [0; 8]).unwrap();
        let folder = outside.path().join("model");
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("w"), [0; 8]).unwrap();
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(&secret, folder.join("link")).unwrap();
            std::os::unix::fs::symlink(folder.join("w"), folder.join("fine")).unwrap();
            std::os::unix::fs::symlink(outside.path(), folder.join("up")).unwrap();
            load_external(Some(&folder), vec![external("a", &[("location", "fine")])]).unwrap();
        }
        let absolute = secret.to_str().unwrap();
        let cases: [(&[(&str, &str)], &str); 11] = [
            (&[("location", "../secret")], "../secret"),
            (&[("location", "x/../../secret")], "outside"),
            (&[("location", absolute)], "outside"),
            (&[("location", "link")], "link"),
            (&[("location", "up/secret")], "up/secret"),
            (&[("location", "gone.bin")], "gone.bin"),
            (&[("location", ".")], "is a folder"),
            (&[("offset", "0")], "no location"),
            (&[("location", "w"), ("offset", "4")], "8 bytes"),
            (&[("location", "w"), ("length", "7")], "7"),
            (&[("location", "w"), ("offset", "18446744073709551615")], "bytes"),
        ];
        for (entries, word) in cases {
            let error =
                load_external(Some(&folder), vec![external("the_weight", entries)]).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(word) && text.contains("the_weight"), "{entries:?}: {text}");
        }
        let error = load_external(None, vec![external("a", &[("location", "w")])]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Missing);
    }

    /// As download tools lay models out: links to a store beside them, shared between models.
    #[cfg(unix)]
    #[test]
    fn links_may_lead_below_a_weight_root_and_files_are_mapped_once_for_all_models() {
        let all = tempfile::tempdir().unwrap();
        let (store, folder) = (all.path().join("blobs"), all.path().join("model"));
        std::fs::create_dir(&store).unwrap();
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(store.join("abc"), [0; 8]).unwrap();
        std::os::unix::fs::symlink(store.join("abc"), folder.join("w.data")).unwrap();
        let mut g = body(&["x"], vec![], &["x"]);
        g.initializer = vec![external("a", &[("location", "w.data")])];
        let path = folder.join("m.onnx");
        std::fs::write(&path, model(g).encode_to_vec()).unwrap();
        let error = import_with(&path, &Limits::default(), &WeightCache::new()).unwrap_err();
        assert!(error.to_string().contains("--weights-root"), "{error}");
        let cache = WeightCache::new().with_root(&store).unwrap();
        import_with(&path, &Limits::default(), &cache).unwrap();
        import_with(&path, &Limits::default(), &cache).unwrap();
        assert_eq!(cache.stats().files, 1);
    }

    /// A sparse file, so that neither disk nor memory of that size is needed.
    #[test]
    fn weights_above_two_gibibytes_are_mapped_and_not_read() {
        const GIB: u64 = 1 << 30;
        let folder = tempfile::tempdir().unwrap();
        let mut file = File::create(folder.path().join("w.bin")).unwrap();
        file.set_len(6 * GIB).unwrap();
        let tail: Vec<u8> = [1.5_f32, 2.5].iter().flat_map(|v| v.to_le_bytes()).collect();
        let at = 6 * GIB - 8;
        file.seek(SeekFrom::Start(at)).unwrap();
        file.write_all(&tail).unwrap();
        let mut large = external("large", &[("location", "w.bin")]);
        large.dims = vec![3, 1 << 28];
        let offset = at.to_string();
        let last = external("last", &[("location", "w.bin"), ("offset", &offset)]);
        let before = crate::bench::resident_bytes();
        let w = load_external(Some(folder.path()), vec![large, last]).unwrap();
        let after = crate::bench::resident_bytes();
        assert_eq!(w[0].bytes() as u64, 3 * GIB);
        assert_eq!(w[1].as_slice::<f32>().unwrap(), [1.5, 2.5]);
        // Other tests run meanwhile in this process; the file would be six times as much.
        if let (Some(before), Some(after)) = (before, after) {
            assert!(after.saturating_sub(before) < GIB, "{before} bytes, then {after}");
        }
    }

    #[cfg(unix)]
    #[test]
    fn a_pipe_is_refused_and_not_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        let made = std::process::Command::new("mkfifo").arg(folder.path().join("w")).status();
        if !made.is_ok_and(|s| s.success()) {
            return;
        }
        let weight = external("a", &[("location", "w")]);
        let error = load_external(Some(folder.path()), vec![weight]).unwrap_err();
        assert!(error.to_string().contains("regular file"), "{error}");
    }
}
