//! Names of devices.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::limits::MAX_DEVICE_NUMBER;
use crate::error::{Error, Result, err};

/// The name of a device: a kind and a number, such as `cpu:0` or `cuda:1`; one of another machine has
/// the name of its worker in front, such as `rack2/cuda:0`.
///
/// Written `[a-z][a-z0-9_-]*(:N)?`; without a number it is number 0, and it always displays with
/// one; the highest is [`MAX_DEVICE_NUMBER`]. A worker's name is `[a-z0-9][a-z0-9._-]*`. Ordered by worker (this machine first), by kind,
/// then by number. In files it is a string.
///
/// ```
/// use brigade::device::DeviceId;
/// let cpu: DeviceId = "cpu".parse().unwrap();
/// assert_eq!(cpu, DeviceId::cpu(0));
/// assert_eq!(cpu.to_string(), "cpu:0");
/// assert!("cpu:2".parse::<DeviceId>().unwrap() < "cpu:10".parse().unwrap());
/// assert!("GPU".parse::<DeviceId>().is_err());
/// let remote: DeviceId = "rack2/cpu:1".parse().unwrap();
/// assert_eq!((remote.worker(), remote.kind(), remote.number()), (Some("rack2"), "cpu", 1));
/// assert_eq!(remote.on_its_worker(), DeviceId::cpu(1));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceId {
    worker: Option<Arc<str>>,
    kind: Arc<str>,
    number: u32,
}

impl DeviceId {
    /// A device of this kind.
    ///
    /// # Errors
    /// If the kind is not `[a-z][a-z0-9_-]*`, or the number is above [`MAX_DEVICE_NUMBER`].
    pub fn new(kind: &str, number: u32) -> Result<Self> {
        let mut bytes = kind.bytes();
        let fits = bytes.next().is_some_and(|b| b.is_ascii_lowercase())
            && bytes.all(|b| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-'));
        if !fits {
            return Err(malformed(kind, "its kind does not fit"));
        }
        if number > MAX_DEVICE_NUMBER {
            return Err(too_high(&format!("{kind}:{number}")));
        }
        Ok(Self { worker: None, kind: kind.into(), number })
    }

    /// A CPU device; each number has threads of its own.
    pub fn cpu(number: u32) -> Self {
        Self { worker: None, kind: "cpu".into(), number }
    }

    /// This device of a worker.
    ///
    /// # Errors
    /// If the worker's name is not `[a-z0-9][a-z0-9._-]*`.
    pub fn at(&self, worker: &str) -> Result<Self> {
        let inner = |b: u8| matches!(b, b'a'..=b'z' | b'0'..=b'9' | b'.' | b'_' | b'-');
        let first = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
        if !worker.bytes().next().is_some_and(first) || !worker.bytes().all(inner) {
            let shown: String = worker.chars().take(80).collect();
            return Err(err!(Usage, "`{shown}` is not the name of a worker").with_help(
                "a worker is named `[a-z0-9][a-z0-9._-]*`, such as `rack2` or `10.0.0.7-7000`",
            ));
        }
        Ok(Self { worker: Some(worker.into()), ..self.clone() })
    }

    /// The worker whose device it is; `None` for one of this process.
    pub fn worker(&self) -> Option<&str> {
        self.worker.as_deref()
    }

    /// Its name on its own worker.
    #[must_use]
    pub fn on_its_worker(&self) -> Self {
        Self { worker: None, ..self.clone() }
    }

    /// Whether `name` is how this device displays.
    pub fn is_named(&self, name: &str) -> bool {
        let name = match &self.worker {
            None => name,
            Some(worker) => {
                match name.strip_prefix(&**worker).and_then(|rest| rest.strip_prefix('/')) {
                    Some(rest) => rest,
                    None => return false,
                }
            }
        };
        name.strip_prefix(&*self.kind)
            .and_then(|rest| rest.strip_prefix(':'))
            .is_some_and(|number| number.parse() == Ok(self.number))
    }

    /// The kind, such as `cpu`.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Which one of its kind it is.
    pub fn number(&self) -> u32 {
        self.number
    }
}

fn malformed(given: &str, why: &str) -> Error {
    let shown: String = given.chars().take(80).collect();
    err!(Usage, "`{shown}` is not the name of a device: {why}").with_help(
        "a device is written `[a-z][a-z0-9_-]*(:N)?`, such as `cpu`, `cpu:1` or `wgpu:0`",
    )
}

fn too_high(given: &str) -> Error {
    malformed(given, &format!("the highest number is {MAX_DEVICE_NUMBER}"))
}

impl FromStr for DeviceId {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        if let Some((worker, device)) = s.split_once('/') {
            let device: Self = device.parse().map_err(|e: Error| {
                let why = e.message().rsplit_once(": ").map_or("", |(_, why)| why);
                malformed(s, &format!("what follows `{worker}/` is no device: {why}"))
            })?;
            if device.worker.is_some() {
                return Err(malformed(s, "it names two workers"));
            }
            return device.at(worker);
        }
        let (kind, number) = match s.split_once(':') {
            None => (s, 0),
            Some((kind, digits)) => {
                // `u32::from_str` alone would take a sign.
                let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
                if !plain {
                    return Err(malformed(s, "what follows the colon is not a number"));
                }
                // One that does not even fit into 32 bits is too high as well.
                let number = digits.parse().ok().filter(|n| *n <= MAX_DEVICE_NUMBER);
                (kind, number.ok_or_else(|| too_high(s))?)
            }
        };
        Self::new(kind, number).map_err(|_| malformed(s, "its kind does not fit"))
    }
}

impl TryFrom<String> for DeviceId {
    type Error = Error;

    fn try_from(s: String) -> Result<Self> {
        s.parse()
    }
}

impl From<DeviceId> for String {
    fn from(id: DeviceId) -> Self {
        id.to_string()
    }
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Padding applies to the whole name, so that tables line up.
        match &self.worker {
            None => f.pad(&format!("{}:{}", self.kind, self.number)),
            Some(worker) => f.pad(&format!("{worker}/{}:{}", self.kind, self.number)),
        }
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_normalised() {
        for (given, shown) in [
            ("cpu", "cpu:0"),
            ("cpu:0", "cpu:0"),
            ("my-npu_2:07", "my-npu_2:7"),
            ("x", "x:0"),
            ("w.1/cpu", "w.1/cpu:0"),
            ("10.0.0.7-7000/wgpu:1", "10.0.0.7-7000/wgpu:1"),
        ] {
            let id = given.parse::<DeviceId>().unwrap();
            assert_eq!(id.to_string(), shown);
            assert!(id.is_named(shown) && !id.is_named(id.kind()) && !id.is_named("cpu:17"));
        }
    }

    #[test]
    fn malformed_names_are_refused_with_the_grammar() {
        for given in [
            "",
            ":",
            ":1",
            "cpu:",
            "cpu:x",
            "cpu:+1",
            "cpu:-1",
            "cpu:1:2",
            "Cpu",
            "0cpu",
            " cpu",
            "cpu ",
            "gpu.0",
            "cpu:4096",
            "cpu:4000000000",
            "cpu:99999999999999999999",
            "w/cpu:4000000000",
            "émile",
            "a/b/cpu",
            "a/",
        ] {
            let error = given.parse::<DeviceId>().unwrap_err();
            let text = error.to_string();
            assert!(text.contains("[a-z][a-z0-9_-]*(:N)?"), "{given}: {text}");
            assert!(text.contains(&format!("`{given}`")), "{given}: {text}");
            let high =
                given.ends_with("4096") || given.ends_with("00000000") || given.contains("9999");
            assert_eq!(text.contains("the highest number is 4095"), high, "{given}: {text}");
        }
        assert!("cpu:4095".parse::<DeviceId>().is_ok() && DeviceId::new("cpu", 4096).is_err());
    }

    #[test]
    fn files_hold_strings() {
        let id: DeviceId = serde_json::from_str("\"wgpu\"").unwrap();
        assert_eq!(serde_json::to_string(&id).unwrap(), "\"wgpu:0\"");
        let bytes = bincode::serialize(&id).unwrap();
        assert_eq!(bincode::deserialize::<DeviceId>(&bytes).unwrap(), id);
        assert!(serde_json::from_str::<DeviceId>("\"W\"").is_err());
        assert!(serde_json::from_str::<DeviceId>("3").is_err());
    }
}
