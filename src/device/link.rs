//! What the way between two devices takes.

use std::time::Duration;

/// The latency and the bandwidth between the memories of two devices, as measured or stated.
///
/// ```
/// use std::time::Duration;
/// use brigade::device::LinkFigures;
/// let ethernet = LinkFigures::new(Duration::from_micros(200), 118 << 20);
/// assert_eq!(ethernet.transfer(118 << 20), Duration::from_micros(1_000_200));
/// assert_eq!(LinkFigures::new(Duration::ZERO, 0).transfer(2), Duration::from_secs(2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkFigures {
    latency: Duration,
    bytes_per_s: u64,
}

impl LinkFigures {
    /// A link of this latency, one way, and this bandwidth, which is at least 1 byte a second.
    #[must_use]
    pub fn new(latency: Duration, bytes_per_s: u64) -> Self {
        Self { latency, bytes_per_s: bytes_per_s.max(1) }
    }

    /// The time that a small message takes, one way.
    pub fn latency(&self) -> Duration {
        self.latency
    }

    /// Bytes that go over in a second.
    pub fn bytes_per_s(&self) -> u64 {
        self.bytes_per_s
    }

    /// The time from sending so many bytes until the last of them is there.
    pub fn transfer(&self, bytes: u64) -> Duration {
        self.latency
            + Duration::try_from_secs_f64(self.occupied_s(bytes as f64))
                .unwrap_or(Duration::MAX / 2)
    }

    /// The seconds in which the link carries so many bytes, and nothing else: their latency is not
    /// among them, since the next ones follow at once.
    pub(crate) fn occupied_s(&self, bytes: f64) -> f64 {
        bytes / self.bytes_per_s as f64
    }
}
