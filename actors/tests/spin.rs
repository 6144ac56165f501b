//! Looking for the next message for a while before sleeping.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

mod kit;

use std::time::Duration;

use brigade_actors::{Options, Pipeline};
use kit::{chain, map, within};

/// Processor time of this process so far; `None` where the system does not tell.
fn processor_time() -> Option<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<_> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks: u64 = fields.get(11)?.parse::<u64>().ok()? + fields.get(12)?.parse::<u64>().ok()?;
    Some(Duration::from_millis(10 * ticks))
}

#[test]
fn spinning_changes_no_result_and_ends_when_nothing_comes() {
    within(Duration::from_secs(60), || {
        let stages = || (0..4).map(|n| map(move |x| x + n)).collect();
        let options = Options::new().in_flight(3).spin(Duration::from_millis(2));
        let pipeline = Pipeline::spawn(chain(stages()), options).unwrap();
        let results: Result<Vec<_>, _> = pipeline.stream((0..200).map(|n| vec![n])).collect();
        let results: Vec<i64> = results.unwrap().into_iter().flatten().collect();
        assert_eq!(results, (6..206).collect::<Vec<_>>());
        // Four actors that went on looking would use at least one core all the time.
        let before = processor_time();
        std::thread::sleep(Duration::from_millis(600));
        if let (Some(before), Some(after)) = (before, processor_time()) {
            let used = after.saturating_sub(before);
            assert!(used < Duration::from_millis(200), "used {used:?} while idle");
        }
    });
}
