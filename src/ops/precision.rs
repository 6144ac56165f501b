//! What products are computed in.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, err};

/// What products of matrices, and whatever else a device says, take their operands in. Sums are of
/// f32 all the same, and so is everything that is no product; models keep the dtypes that they state.
///
/// It is never narrower than asked for: without a word all is f32.
///
/// ```
/// use brigade::Precision;
/// assert_eq!("bf16".parse::<Precision>()?, Precision::Bf16);
/// assert_eq!(Precision::default().to_string(), "f32");
/// assert!("half".parse::<Precision>().is_err());
/// # Ok::<(), brigade::Error>(())
/// ```
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub enum Precision {
    /// Single precision: 24 significant bits.
    #[default]
    #[serde(rename = "f32")]
    F32,
    /// Operands rounded to 11 significant bits, with the range of f32: what tensor cores of NVIDIA
    /// GPUs take for f32.
    #[serde(rename = "tf32")]
    Tf32,
    /// Operands rounded to 8 significant bits, with the range of f32.
    #[serde(rename = "bf16")]
    Bf16,
    /// Operands rounded to 11 significant bits, with a largest number of 65504.
    #[serde(rename = "f16")]
    F16,
}

impl Precision {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::F32, Self::Tf32, Self::Bf16, Self::F16];

    /// The name in flags and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Precision {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|p| p.name() == text).ok_or_else(|| {
            let shown: String = text.chars().take(80).collect();
            err!(Usage, "`{shown}` is no precision")
                .with_help(format!("use {}", listed(&Self::ALL)))
        })
    }
}

/// Names in words.
pub(crate) fn listed(all: &[Precision]) -> String {
    let names: Vec<&str> = all.iter().map(|p| p.name()).collect();
    match names.as_slice() {
        [before @ .., last] if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        names => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_files_and_flags() {
        for p in Precision::ALL {
            assert_eq!(p.name().parse::<Precision>().unwrap(), p);
            assert_eq!(serde_json::to_string(&p).unwrap(), format!("\"{p}\""));
            let bytes = bincode::serialize(&p).unwrap();
            assert_eq!(bincode::deserialize::<Precision>(&bytes).unwrap(), p);
        }
        let error = "fp16".parse::<Precision>().unwrap_err().to_string();
        assert!(error.contains("`fp16`") && error.contains("f32, tf32, bf16 or f16"), "{error}");
        assert_eq!(listed(&[Precision::F32]), "f32");
    }
}
