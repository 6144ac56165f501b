//! Writing what items gave.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use crate::error::{Result, err};
use crate::import;
use crate::tensor::{DType, Tensor, Value, cast};

/// Where outputs are written.
#[derive(Debug)]
pub(super) struct Results {
    folder: PathBuf,
    archives: bool,
}

impl Results {
    /// Makes the folder.
    pub(super) fn new(folder: &Path, archives: bool) -> Result<Self> {
        std::fs::create_dir_all(folder)
            .map_err(|e| err!(Io, "cannot make folder `{}`", folder.display()).with_source(e))?;
        Ok(Self { folder: folder.to_owned(), archives })
    }

    /// Writes the outputs of an item; gives the files.
    pub(super) fn write(
        &self,
        stem: &str,
        names: &[String],
        outputs: &[Value],
    ) -> Result<Vec<PathBuf>> {
        let mut tensors = Vec::with_capacity(outputs.len());
        for (name, value) in unlike(names).iter().zip(outputs) {
            let tensor = value.tensor().map_err(|e| e.within(&format!("output `{name}`")))?;
            tensors.push((name.clone(), tensor.clone()));
        }
        if self.archives {
            let path = self.folder.join(format!("{}.npz", escape(stem)));
            import::write_npz(&path, &tensors)?;
            return Ok(vec![path]);
        }
        let mut paths = Vec::with_capacity(tensors.len());
        for (name, tensor) in &tensors {
            let path = self.folder.join(format!("{}.{}.npy", escape(stem), escape(name)));
            import::write_npy(&path, tensor).map_err(|e| e.within(&format!("output `{name}`")))?;
            paths.push(path);
        }
        Ok(paths)
    }
}

/// The names; one that was there already with a number, so that no output takes the place of
/// another.
fn unlike(names: &[String]) -> Vec<String> {
    let mut taken: HashSet<String> = names.iter().cloned().collect();
    let mut seen = HashSet::new();
    names
        .iter()
        .map(|name| {
            if seen.insert(name) {
                return name.clone();
            }
            let mut number = 2_usize;
            loop {
                let candidate = format!("{name}_{number}");
                if taken.insert(candidate.clone()) {
                    return candidate;
                }
                number += 1;
            }
        })
        .collect()
}

/// A name as part of a file name: bytes other than letters, digits, `_`, `-` and inner dots of
/// ASCII become `%XX`, so that different names stay different.
fn escape(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    for (i, b) in name.bytes().enumerate() {
        match b {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'_' | b'-' => out.push(char::from(b)),
            b'.' if i > 0 => out.push('.'),
            _ => out += &format!("%{b:02X}"),
        }
    }
    out
}

/// An output in a line: what it is, and where its numbers lie.
pub(super) fn describe(name: &str, value: &Value) -> String {
    let mut line = format!("{name}: {}", value.describe());
    if let Value::Tensor(t) = value
        && let Some((least, mean, most)) = range(t)
    {
        line += &format!(", least {least:.6}, mean {mean:.6}, most {most:.6}");
    }
    line
}

fn range(tensor: &Tensor) -> Option<(f64, f64, f64)> {
    let wide = cast(tensor, DType::F64).ok()?;
    let values = wide.as_slice::<f64>().ok().filter(|v| !v.is_empty())?;
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Some((least, values.iter().sum::<f64>() / values.len() as f64, most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_characters_are_escaped_one_to_one() {
        assert_eq!(escape("logits_0-a.b"), "logits_0-a.b");
        assert_eq!(escape("../x:0"), "%2E.%2Fx%3A0");
        assert_eq!(escape("a/b"), "a%2Fb");
        assert_ne!(escape("a/b"), escape("a%2Fb"));
        assert_eq!(escape("é"), "%C3%A9");
    }

    #[test]
    fn outputs_of_one_name_have_files_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["y", "y", "y_2", "y"].map(str::to_owned);
        let outputs: Vec<Value> = (0..4_i64).map(|k| Value::from(Tensor::scalar(k))).collect();
        let write = |archives| {
            let results = Results::new(folder.path(), archives).unwrap();
            results.write("x", &names, &outputs).unwrap()
        };
        for (k, path) in write(false).iter().enumerate() {
            assert_eq!(import::read_npy(path).unwrap(), Tensor::scalar(k as i64), "{path:?}");
        }
        let archive = import::read_npz(&write(true)[0]).unwrap();
        let read: Vec<&str> = archive.iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(read, ["y", "y_3", "y_2", "y_4"]);
    }

    #[test]
    fn files_and_archives_hold_the_outputs() {
        let folder = tempfile::tempdir().unwrap();
        let names = ["a/b".to_owned(), "c".to_owned()];
        let outputs = [Value::from(Tensor::scalar(1_i64)), Value::from(Tensor::of_i64(&[2, 3]))];
        let to = folder.path().join("deep/er");
        let paths = Results::new(&to, false).unwrap().write("it em", &names, &outputs).unwrap();
        assert_eq!(paths[0], to.join("it%20em.a%2Fb.npy"));
        assert_eq!(import::read_npy(&paths[1]).unwrap(), Tensor::of_i64(&[2, 3]));
        let paths = Results::new(&to, true).unwrap().write("x", &names, &outputs).unwrap();
        assert_eq!(import::read_npz(&paths[0]).unwrap()[0].0, "a/b");
    }
}
