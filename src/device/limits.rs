//! How much may be asked for: more is a slip of the finger, and would take the machine down before
//! anything else could refuse it.

use crate::error::{Result, err};

/// The most kernel threads of one actor.
pub const MAX_THREADS: usize = 256;

/// The most items in flight that can be asked for: every edge of a pipeline has room for them.
pub const MAX_IN_FLIGHT: usize = brigade_actors::Options::MOST_ITEMS;

/// The most replicas of one segment: each is a thread.
pub const MAX_REPLICAS: usize = 256;

/// The highest number of a device: each number of a CPU is one more device, and nothing has so many.
pub const MAX_DEVICE_NUMBER: u32 = 4_095;

/// Checks a number of kernel threads, wherever it was said.
pub(crate) fn check_threads(count: usize) -> Result<()> {
    check(count, MAX_THREADS, "kernel threads")
}

/// Checks a number of items in flight, wherever it was said.
pub(crate) fn check_in_flight(count: usize) -> Result<()> {
    check(count, MAX_IN_FLIGHT, "items in flight")
}

/// Checks a number of replicas, wherever it was said.
pub(crate) fn check_replicas(count: usize) -> Result<()> {
    check(count, MAX_REPLICAS, "replicas")
}

fn check(count: usize, most: usize, what: &str) -> Result<()> {
    if (1..=most).contains(&count) {
        return Ok(());
    }
    Err(err!(Usage, "{count} {what} are not possible")
        .with_help(format!("use at least 1 and at most {most}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_are_taken_and_what_lies_beyond_is_named() {
        for (check, most) in [
            (check_threads as fn(usize) -> Result<()>, MAX_THREADS),
            (check_in_flight, MAX_IN_FLIGHT),
            (check_replicas, MAX_REPLICAS),
        ] {
            assert!(check(1).is_ok() && check(most).is_ok());
            for count in [0, most + 1, usize::MAX] {
                let error = check(count).unwrap_err().to_string();
                assert!(error.starts_with(&count.to_string()), "{error}");
                assert!(error.contains(&format!("at most {most}")), "{error}");
            }
        }
    }
}
