//! Which files may be read.

use std::path::{Component, Path, PathBuf};

use crate::error::{Result, err};

/// Where paths start, and the folders that files must lie in.
#[derive(Clone, Debug, Default)]
pub(super) struct Roots {
    base: Option<PathBuf>,
    /// Without links and `..`; empty: anywhere.
    allowed: Vec<PathBuf>,
}

impl Roots {
    /// The folder that relative paths start from.
    pub(super) fn set_base(&mut self, folder: &Path) {
        self.base = Some(folder.to_owned());
    }

    /// Allows one more folder; from the first on, nothing else is.
    pub(super) fn allow(&mut self, folder: &Path) -> Result<()> {
        let real = folder.canonicalize().map_err(|e| {
            err!(Io, "the weight root `{}` cannot be used", folder.display())
                .with_source(e)
                .with_help("name a folder that is there")
        })?;
        if !real.is_dir() {
            return Err(err!(Usage, "the weight root `{}` is no folder", folder.display()));
        }
        self.allowed.push(real);
        Ok(())
    }

    /// The file that `path` names, without links and `..`, if it may be read.
    ///
    /// # Errors
    /// If it may not be, or is not there.
    pub(super) fn resolve(&self, path: &Path) -> Result<PathBuf> {
        let found =
            self.candidates(path).into_iter().find_map(|p| p.canonicalize().ok().zip(Some(p)));
        let first = self.candidates(path).into_iter().next().unwrap_or_else(|| path.to_owned());
        // Roots have no links in them and begin at the top, so that this must, too, to be compared.
        let folder = first.parent().and_then(|folder| match folder.as_os_str().is_empty() {
            true => Path::new(".").canonicalize().ok(),
            false => folder.canonicalize().ok(),
        });
        let name = first.file_name().filter(|_| path.file_name().is_some());
        let place = match (folder, name) {
            (Some(folder), Some(name)) => folder.join(name),
            _ => lexical(&std::path::absolute(&first).unwrap_or_else(|_| first.clone())),
        };
        match found {
            Some((real, _)) if self.admits(&real) => Ok(real),
            // What is not there is told only of places that may be read.
            None if self.allowed.is_empty() || self.admits(&place) => {
                let error = first.canonicalize().err();
                let mut told = err!(Io, "`{}` cannot be opened", first.display());
                if !self.allowed.is_empty() && self.base.is_none() {
                    told = told.with_help(format!(
                        "`{}` is looked for below {}: bring the file there, or name the folder that \
                         has it, too (--weights-root)",
                        path.display(),
                        self.names()
                    ));
                }
                Err(error.into_iter().fold(told, |told, e| told.with_source(e)))
            }
            _ => Err(err!(
                Usage,
                "`{}` does not lie below the weight roots, links and `..` resolved",
                path.display()
            )
            .with_help(format!(
                "weights are read below {} only: bring the file there, or name its folder, too \
                     (--weights-root)",
                self.names()
            ))),
        }
    }

    /// The roots, for people.
    fn names(&self) -> String {
        let roots: Vec<String> =
            self.allowed.iter().map(|r| format!("`{}`", r.display())).collect();
        roots.join(", ")
    }

    fn admits(&self, real: &Path) -> bool {
        self.allowed.is_empty() || self.allowed.iter().any(|root| real.starts_with(root))
    }

    /// A relative path is one in the base folder, else one in the first root that has it.
    fn candidates(&self, path: &Path) -> Vec<PathBuf> {
        match &self.base {
            Some(base) => vec![base.join(path)],
            None if path.is_absolute() || self.allowed.is_empty() => vec![path.to_owned()],
            None => self.allowed.iter().map(|root| root.join(path)).collect(),
        }
    }
}

/// The path with `..` taken off by name, for what is not there to be resolved.
fn lexical(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => {
                out.pop();
            }
            Component::CurDir => {}
            other => out.push(other),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn links_and_dots_are_resolved_before_the_check() {
        let all = tempfile::tempdir().unwrap();
        let (inside, outside) = (all.path().join("in"), all.path().join("out"));
        std::fs::create_dir_all(inside.join("sub")).unwrap();
        std::fs::create_dir(&outside).unwrap();
        std::fs::write(inside.join("w"), b"1").unwrap();
        std::fs::write(outside.join("secret"), b"2").unwrap();
        let mut roots = Roots::default();
        roots.allow(&inside).unwrap();
        let real = inside.canonicalize().unwrap().join("w");
        assert_eq!(roots.resolve(Path::new("w")).unwrap(), real);
        assert_eq!(roots.resolve(Path::new("sub/../w")).unwrap(), real);
        assert_eq!(roots.resolve(&inside.join("sub/../../in/w")).unwrap(), real);
        let refused = |path: &Path| {
            let error = roots.resolve(path).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Usage, "{}: {error}", path.display());
        };
        refused(Path::new("../out/secret"));
        refused(&outside.join("secret"));
        refused(&inside.join("../out/secret"));
        // Whether something outside is there is not told.
        refused(&outside.join("nothing"));
        refused(Path::new("../nothing"));
        refused(Path::new("/etc/passwd"));
        let gone = roots.resolve(Path::new("gone")).unwrap_err();
        assert_eq!(gone.kind(), ErrorKind::Io);
        let help = gone.help().unwrap();
        assert!(
            help.contains("`gone` is looked for below") && help.contains("--weights-root"),
            "{help}"
        );
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink(outside.join("secret"), inside.join("link")).unwrap();
            std::os::unix::fs::symlink(&outside, inside.join("up")).unwrap();
            std::os::unix::fs::symlink(&real, outside.join("back")).unwrap();
            refused(Path::new("link"));
            refused(Path::new("up/secret"));
            assert_eq!(roots.resolve(&outside.join("back")).unwrap(), real);
            // Another root makes the same links fine.
            let mut roots = roots.clone();
            roots.allow(&outside).unwrap();
            assert!(roots.resolve(Path::new("link")).is_ok());
        }
        // A root and a base that are told from the working folder.
        let here = tempfile::tempdir_in(".").unwrap();
        let relative = Path::new(here.path().file_name().unwrap());
        let mut from_here = Roots::default();
        from_here.allow(relative).unwrap();
        from_here.set_base(relative);
        let error = from_here.resolve(Path::new("gone")).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Io, "{error}");
        // A root whose name begins like another one is another one.
        std::fs::create_dir(all.path().join("in2")).unwrap();
        std::fs::write(all.path().join("in2/w"), b"3").unwrap();
        refused(&all.path().join("in2/w"));
        assert!(roots.allow(&all.path().join("no")).is_err());
        assert!(roots.allow(&real).is_err());
    }
}
