//! The latency and the bandwidth of a link, from what goes there and back.

use std::time::{Duration, Instant};

use crate::cluster::message::{MAX_PROBE_BYTES, Measurement};
use crate::error::Result;

/// How long measuring may take if the link lets it: beyond, nothing more is sent.
const BUDGET: Duration = Duration::from_millis(100);

/// How long one answer may take.
pub(crate) const ANSWER: Duration = Duration::from_secs(5);

/// Small messages there and back, whose median counts.
const PINGS: usize = 9;

/// The first probe; each next one has four times as many bytes, as long as the budget lasts.
const FIRST_PROBE: u64 = 16 << 10;

/// Measures a link: `round` sends so many bytes and gives the time until their answer was here; 0 bytes
/// are a small message.
///
/// Small probes come first, so that a slow network is not asked for more than it can carry in the budget;
/// the largest one that was sent says the bandwidth, since the first ones find connections that have
/// not found their pace yet.
///
/// # Errors
/// That of `round`.
pub(crate) fn measure(mut round: impl FnMut(u64) -> Result<Duration>) -> Result<Measurement> {
    let begun = Instant::now();
    // The first one wakes threads up, at both ends.
    round(0)?;
    let mut trips = Vec::with_capacity(PINGS);
    while trips.is_empty() || (trips.len() < PINGS && begun.elapsed() < BUDGET / 2) {
        trips.push(round(0)?);
    }
    trips.sort_unstable();
    let trip = trips[trips.len() / 2];
    let rate = |bytes: u64, took: Duration| {
        // What the way there and back takes is no time of the bytes.
        let net = took.saturating_sub(trip).max(took / 8).max(Duration::from_nanos(1));
        (bytes as f64 / net.as_secs_f64()) as u64
    };
    let probing = Instant::now();
    let mut bytes = FIRST_PROBE;
    let bytes_per_s = loop {
        let took = round(bytes)?;
        let found = rate(bytes, took);
        let next = (bytes * 4).min(MAX_PROBE_BYTES);
        let expected = took.mul_f64(next as f64 / bytes as f64);
        if probing.elapsed() + expected > BUDGET {
            break found;
        }
        if next == bytes {
            // As large as they get: once more, in case somebody else was in the way.
            break found.max(rate(bytes, round(bytes)?));
        }
        bytes = next;
    };
    let latency_ns = u64::try_from((trip / 2).as_nanos()).unwrap_or(u64::MAX);
    Ok(Measurement { latency_ns, bytes_per_s: bytes_per_s.max(1) })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A link that says how long it takes without taking it; gives what was measured and the bytes
    /// that were sent.
    fn over(trip: Duration, bytes_per_s: f64) -> (Measurement, u64) {
        let mut sent = 0;
        let measured = measure(|bytes| {
            sent += bytes;
            Ok(trip + Duration::from_secs_f64(bytes as f64 / bytes_per_s))
        });
        (measured.unwrap(), sent)
    }

    #[test]
    fn latency_and_bandwidth_are_found_on_fast_and_slow_links() {
        for (trip_us, bytes_per_s) in
            [(50, 2e9), (200, 118e6), (30_000, 1e6), (20_000, 12e6), (400, 3e3)]
        {
            let (found, _) = over(Duration::from_micros(trip_us), bytes_per_s);
            assert_eq!(found.latency_ns, trip_us * 500);
            let off = found.bytes_per_s as f64 / bytes_per_s;
            assert!((0.99..1.01).contains(&off), "{found:?} for {bytes_per_s}");
        }
    }

    #[test]
    fn a_slow_link_is_not_asked_for_more_than_it_carries_in_a_moment() {
        // 1 Mbit/s: what 16 KiB take is more than the budget already.
        assert_eq!(over(Duration::from_millis(20), 125e3).1, FIRST_PROBE);
        // 100 Mbit/s carry 1.2 MB in 100 ms.
        let sent = over(Duration::from_millis(1), 12.5e6).1;
        assert!((300_000..1_700_000).contains(&sent), "{sent}");
        // A fast one gets the largest, twice.
        let all: u64 = (0..5).map(|n| FIRST_PROBE << (2 * n)).sum();
        assert_eq!(over(Duration::from_micros(50), 1e9).1, all + MAX_PROBE_BYTES);
    }

    #[test]
    fn an_answer_that_does_not_come_is_an_error() {
        let mut rounds = 0;
        let failed = measure(|_| {
            rounds += 1;
            if rounds < 4 {
                Ok(Duration::from_millis(1))
            } else {
                Err(crate::error::err!(Deadline, "gone"))
            }
        });
        assert!(failed.unwrap_err().to_string().contains("gone"));
    }
}
