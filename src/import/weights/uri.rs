//! Where a weight lies, as text.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use crate::error::{Error, Result, bail, err};

/// A parsed `SCHEME://PATH?KEY=VALUE&…#TENSOR`.
///
/// `%XX` stands for a byte in each part: write `%23` for a `#`, `%3F` for a `?` and `%25` for a `%`
/// of a file's or tensor's own name. A path that begins with `/` is absolute
/// (`gguf:///models/m.gguf#t`), any other is relative.
///
/// ```
/// use brigade::import::WeightUri;
/// let uri: WeightUri = "safetensors://my%20models/m.safetensors#layer.0".parse()?;
/// assert_eq!(uri.scheme(), "safetensors");
/// assert_eq!(uri.path().to_str(), Some("my models/m.safetensors"));
/// assert_eq!(uri.tensor(), Some("layer.0"));
/// assert!("no-scheme.gguf".parse::<WeightUri>().is_err());
/// # Ok::<(), brigade::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightUri {
    text: String,
    scheme: String,
    path: PathBuf,
    query: Vec<(String, String)>,
    tensor: Option<String>,
}

impl WeightUri {
    /// What stands before `://`.
    pub fn scheme(&self) -> &str {
        &self.scheme
    }

    /// The path, decoded.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The tensor's name behind the `#`, decoded.
    pub fn tensor(&self) -> Option<&str> {
        self.tensor.as_deref()
    }

    /// The value of a key behind the `?`, decoded.
    pub fn value(&self, key: &str) -> Option<&str> {
        self.query.iter().find(|(k, _)| k == key).map(|(_, v)| v.as_str())
    }

    /// Checks that the keys behind the `?` are among those that a scheme knows.
    ///
    /// # Errors
    /// If one is not; names it.
    pub fn allow(&self, known: &[&str]) -> Result<()> {
        match self.query.iter().find(|(k, _)| !known.contains(&k.as_str())) {
            None => Ok(()),
            Some((key, _)) => Err(err!(Usage, "`{self}` says `{key}`, which has no meaning there")
                .with_help(match known {
                    [] => {
                        format!("`{}://` takes no `?`; write `%3F` for one in a name", self.scheme)
                    }
                    known => format!("known are {}", known.join(", ")),
                })),
        }
    }

    /// The tensor's name, which must be given.
    ///
    /// # Errors
    /// If it is not.
    pub fn required_tensor(&self) -> Result<&str> {
        self.tensor().filter(|t| !t.is_empty()).ok_or_else(|| {
            err!(Usage, "`{self}` names no tensor").with_help(format!(
                "write it behind a `#`: {}://PATH#TENSOR; `brigade inspect FILE` lists them",
                self.scheme
            ))
        })
    }
}

impl fmt::Display for WeightUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Whether a scheme's name is well formed: a lower-case letter, then letters, digits, `+`, `-`, `.`.
pub(super) fn is_scheme(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "+-.".contains(c))
}

impl FromStr for WeightUri {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let (scheme, rest) =
            text.split_once("://").filter(|(s, _)| is_scheme(s)).ok_or_else(|| {
                err!(Usage, "`{text}` is no URI of a weight")
                    .with_help("write SCHEME://PATH#TENSOR, such as safetensors://m.safetensors#w")
            })?;
        let (rest, tensor) = match rest.split_once('#') {
            Some((rest, tensor)) => (rest, Some(decoded_text(text, tensor)?)),
            None => (rest, None),
        };
        let (path, pairs) = match rest.split_once('?') {
            Some((path, pairs)) => (path, Some(pairs)),
            None => (rest, None),
        };
        let mut query: Vec<(String, String)> = Vec::new();
        for pair in pairs.into_iter().flat_map(|p| p.split('&')) {
            let Some((key, value)) = pair.split_once('=').filter(|(k, _)| !k.is_empty()) else {
                bail!(Usage, "`{pair}` in `{text}` is not of the form KEY=VALUE");
            };
            let (key, value) = (decoded_text(text, key)?, decoded_text(text, value)?);
            if query.iter().any(|(k, _)| *k == key) {
                bail!(Duplicate, "`{text}` says `{key}` twice");
            }
            query.push((key, value));
        }
        let path = decoded_path(text, path)?;
        if path.as_os_str().is_empty() {
            return Err(err!(Usage, "`{text}` names no file").with_help(format!(
                "write {scheme}://PATH, or {scheme}:///PATH for an absolute one"
            )));
        }
        Ok(Self { text: text.to_owned(), scheme: scheme.to_owned(), path, query, tensor })
    }
}

/// The bytes that percent-encoding stands for.
fn decoded(uri: &str, part: &str) -> Result<Vec<u8>> {
    let mut out = Vec::with_capacity(part.len());
    let mut bytes = part.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16));
        match (digit(), digit()) {
            (Some(high), Some(low)) => out.push((high * 16 + low) as u8),
            _ => {
                return Err(err!(
                    Usage,
                    "a `%` in `{uri}` is not followed by two hexadecimal digits"
                )
                .with_help("write `%25` for the character itself"));
            }
        }
    }
    if out.contains(&0) {
        bail!(Usage, "`{uri}` holds a NUL");
    }
    Ok(out)
}

fn decoded_text(uri: &str, part: &str) -> Result<String> {
    String::from_utf8(decoded(uri, part)?).map_err(|_| err!(Usage, "`{uri}` is not UTF-8, decoded"))
}

#[cfg(unix)]
fn decoded_path(uri: &str, part: &str) -> Result<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    Ok(PathBuf::from(std::ffi::OsString::from_vec(decoded(uri, part)?)))
}

#[cfg(not(unix))]
fn decoded_path(uri: &str, part: &str) -> Result<PathBuf> {
    decoded_text(uri, part).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_decoded_each_for_itself() {
        let uri: WeightUri = "file:///a%23b/%C3%A9.bin?dtype=f32&shape=2,3".parse().unwrap();
        assert_eq!(uri.path(), Path::new("/a#b/é.bin"));
        assert_eq!((uri.value("shape"), uri.tensor()), (Some("2,3"), None));
        let uri: WeightUri = "gguf://m.gguf#a%3Fb#c%25".parse().unwrap();
        assert_eq!(uri.tensor(), Some("a?b#c%"));
        assert_eq!(uri.to_string(), "gguf://m.gguf#a%3Fb#c%25");
    }

    #[test]
    fn what_is_not_well_formed_is_refused() {
        for text in [
            "m.gguf",
            "://m",
            "GGUF://m",
            "gguf:/m",
            "gguf://",
            "gguf://#t",
            "gguf://a%",
            "gguf://a%2",
            "gguf://a%zz",
            "gguf://a%00",
            "file://a?dtype",
            "file://a?=1",
            "file://a?k=1&k=2",
            "gguf://a#%ff",
            "1x://a",
            "",
        ] {
            assert!(text.parse::<WeightUri>().is_err(), "{text}");
        }
        let uri: WeightUri = "gguf://m?x=1".parse().unwrap();
        assert!(uri.allow(&[]).unwrap_err().to_string().contains("`x`"));
        assert!(uri.required_tensor().is_err());
    }
}
