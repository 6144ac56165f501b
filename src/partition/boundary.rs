//! What crosses from segment to segment, and which data goes to another device only to come back.

use serde::{Deserialize, Serialize};

use super::{DeviceId, LinkFigures, Segmentation};
use crate::graph::{Dim, Fact};

/// The bytes of a value of this fact, where `symbols` gives its symbolic extents; `None` if dtype,
/// rank or an extent stays unknown, or if it holds strings.
///
/// ```
/// use brigade::graph::{Dim, Fact};
/// use brigade::partition::bytes_of;
/// use brigade::DType;
/// let fact = Fact::new(DType::F32, [Dim::symbol("N"), Dim::fixed(3)]);
/// assert_eq!(bytes_of(&fact, &|s| (s == "N").then_some(2)), Some(24));
/// assert_eq!(bytes_of(&fact, &|_| None), None);
/// ```
pub fn bytes_of(fact: &Fact, symbols: &dyn Fn(&str) -> Option<i64>) -> Option<u64> {
    let size = u64::try_from(fact.dtype?.size()).ok().filter(|s| *s > 0)?;
    let extent = |d: &Dim| u64::try_from(d.evaluate(symbols)?).ok();
    fact.shape.as_ref()?.iter().try_fold(size, |bytes, d| bytes.checked_mul(extent(d)?))
}

/// How a value gets from one segment to another. It is decided when a pipeline is built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EdgePath {
    /// Both compute in the host's memory: a handle moves.
    Host,
    /// Within one memory of devices, that of one or of several: the buffer is handed over where it
    /// lies, at submission.
    Device,
    /// The producer's actor copies it to the host.
    ReadBack,
    /// The consumer's actor copies it to its device.
    Upload,
    /// Between the memories of two devices: the producer's actor copies it to the host, the
    /// consumer's to its device.
    ThroughHost,
    /// From worker to worker, past this process.
    Workers,
}

impl EdgePath {
    /// From one device to another; `memory` says which memory, beside the host's, a device has.
    pub fn between(
        from: &DeviceId,
        to: &DeviceId,
        memory: &dyn Fn(&DeviceId) -> Option<String>,
    ) -> Self {
        if let (Some(a), Some(b)) = (from.worker(), to.worker()) {
            return if a == b { Self::Device } else { Self::Workers };
        }
        match (memory(from), memory(to)) {
            (None, None) => Self::Host,
            (Some(from), Some(to)) if from == to => Self::Device,
            (Some(_), Some(_)) => Self::ThroughHost,
            (Some(_), None) => Self::ReadBack,
            (None, Some(_)) => Self::Upload,
        }
    }
}

impl std::fmt::Display for EdgePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Self::Host => "host",
            Self::Device => "device",
            Self::ReadBack => "read-back",
            Self::Upload => "upload",
            Self::ThroughHost => "through host",
            Self::Workers => "worker to worker",
        })
    }
}

/// A value that one segment makes and another reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Boundary {
    /// The value's name in the unsplit graph.
    pub value: String,
    /// Its fact, such as `f32[N,64,12,80]`.
    pub fact: String,
    /// Its bytes per item, if they are known.
    pub bytes: Option<u64>,
    /// The segment that makes it.
    pub from: usize,
    /// The segment that reads it.
    pub to: usize,
    /// The device that makes it.
    pub from_device: DeviceId,
    /// The device that reads it.
    pub to_device: DeviceId,
    /// How it gets there; `host` unless it is known which devices have memory of their own
    /// ([`PlanReport::with_memories`](super::PlanReport::with_memories)).
    pub path: EdgePath,
    /// Microseconds from sending it until it is there, where the link between the devices is known
    /// ([`PlanReport::with_links`](super::PlanReport::with_links)).
    pub transfer_us: Option<u64>,
}

/// What was measured, or stated, of the way between two places.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredLink {
    /// One end: a worker, or the coordinator.
    pub from: String,
    /// The other end.
    pub to: String,
    /// What a small message takes, one way, in microseconds.
    pub latency_us: u64,
    /// Bytes that go over in a second.
    pub bytes_per_s: u64,
}

impl MeasuredLink {
    /// These figures, of the link between these two.
    pub fn new(from: impl Into<String>, to: impl Into<String>, figures: LinkFigures) -> Self {
        Self {
            from: from.into(),
            to: to.into(),
            latency_us: u64::try_from(figures.latency().as_micros()).unwrap_or(u64::MAX),
            bytes_per_s: figures.bytes_per_s(),
        }
    }

    /// Whether it is the link between these two, in whichever order.
    pub(super) fn is_between(&self, one: &str, other: &str) -> bool {
        (self.from == one && self.to == other) || (self.from == other && self.to == one)
    }
}

/// Data that leaves a device for a segment on another one, whose result comes back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundTrip {
    /// The device that sends and gets back.
    pub home: DeviceId,
    /// The device in between.
    pub away: DeviceId,
    /// The segment in between.
    pub segment: usize,
    /// The nodes of the segment in between, by name.
    pub nodes: Vec<String>,
    /// Bytes that go away per item; `None` if one of the values has no known size.
    pub bytes_out: Option<u64>,
    /// Bytes that come back per item; `None` if one of the values has no known size.
    pub bytes_back: Option<u64>,
}

impl Segmentation {
    /// Everything that crosses from segment to segment, with its bytes where `symbols` gives the
    /// symbolic extents. A value that several segments read is listed for each of them.
    pub fn boundaries(&self, symbols: &dyn Fn(&str) -> Option<i64>) -> Vec<Boundary> {
        self.edges()
            .iter()
            .map(|e| Boundary {
                value: e.value.clone(),
                fact: e.fact.to_string(),
                bytes: bytes_of(&e.fact, symbols),
                from: e.from,
                to: e.to,
                from_device: self.segments()[e.from].device.clone(),
                to_device: self.segments()[e.to].device.clone(),
                path: EdgePath::Host,
                transfer_us: None,
            })
            .collect()
    }

    /// Each segment that gets data directly from a device other than its own and sends results
    /// directly back to that device. On a chain `A → B → A → B` both middle segments are such.
    pub fn round_trips(&self, symbols: &dyn Fn(&str) -> Option<i64>) -> Vec<RoundTrip> {
        let boundaries = self.boundaries(symbols);
        let mut out = Vec::new();
        for segment in self.segments() {
            let away = &segment.device;
            let mut homes: Vec<&DeviceId> = boundaries
                .iter()
                .filter(|b| b.to == segment.index && b.from_device != *away)
                .map(|b| &b.from_device)
                .filter(|home| {
                    boundaries.iter().any(|b| b.from == segment.index && b.to_device == **home)
                })
                .collect();
            homes.sort_unstable();
            homes.dedup();
            for home in homes {
                let total = |chosen: &dyn Fn(&Boundary) -> bool| {
                    let mut sum = Some(0u64);
                    let mut seen: Vec<&str> = Vec::new();
                    for b in boundaries.iter().filter(|b| chosen(b)) {
                        // A value is carried to a device once, however many segments read it.
                        if !seen.contains(&b.value.as_str()) {
                            seen.push(&b.value);
                            sum = sum.and_then(|s| s.checked_add(b.bytes?));
                        }
                    }
                    sum
                };
                out.push(RoundTrip {
                    home: home.clone(),
                    away: away.clone(),
                    segment: segment.index,
                    nodes: segment.graph.nodes().iter().map(|n| n.name.clone()).collect(),
                    bytes_out: total(&|b| b.to == segment.index && b.from_device == *home),
                    bytes_back: total(&|b| b.from == segment.index && b.to_device == *home),
                });
            }
        }
        out
    }
}
