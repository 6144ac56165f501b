//! Whether the threads of this process had cores to run on.

/// A share of waiting for a core from which on times say more of the machine than of the pipeline.
const CROWDED: f64 = 0.1;

/// What the threads of this process, those that are alive, did so far, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct CoreTime {
    ran: u64,
    waited: u64,
}

impl CoreTime {
    /// `None` where the system does not tell.
    pub(super) fn now() -> Option<Self> {
        let mut sum = Self { ran: 0, waited: 0 };
        for task in std::fs::read_dir("/proc/self/task").ok()?.flatten() {
            // A thread that ended meanwhile has no file any more.
            let Ok(text) = std::fs::read_to_string(task.path().join("schedstat")) else { continue };
            let mut numbers = text.split_whitespace().map_while(|n| n.parse::<u64>().ok());
            sum.ran += numbers.next()?;
            sum.waited += numbers.next()?;
        }
        (sum.ran > 0).then_some(sum)
    }

    /// Of the time since `earlier` in which threads were able to run, the share in which they had no
    /// core.
    pub(super) fn waited_since(&self, earlier: &Self) -> f64 {
        let ran = self.ran.saturating_sub(earlier.ran);
        let waited = self.waited.saturating_sub(earlier.waited);
        waited as f64 / ((ran + waited) as f64).max(1.0)
    }
}

/// Takes out advice that follows from times that were spent waiting for a core, and says so.
pub(super) fn heed(waited: Option<f64>, advice: &mut Vec<String>) {
    let Some(waited) = waited.filter(|w| *w > CROWDED) else { return };
    advice.retain(|a| !a.contains("on handing over"));
    advice.push(format!(
        "the cores were not free: threads that could run had none for {:.0} % of that time, so that \
         these figures are of a busy machine",
        waited * 100.0
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn handing_over_is_not_blamed_for_crowded_cores() {
        let given = || {
            vec![
                "make micro-batches larger: actor `a` spends 9.0 µs per firing on handing over, \
                 beside 1.0 µs of computing"
                    .to_owned(),
                "rebalance".to_owned(),
            ]
        };
        for free in [None, Some(0.0), Some(0.05)] {
            let mut advice = given();
            heed(free, &mut advice);
            assert_eq!(advice, given());
        }
        let mut advice = given();
        heed(Some(0.4), &mut advice);
        assert_eq!(advice.len(), 2);
        assert!(advice[0] == "rebalance" && advice[1].contains("not free"), "{advice:?}");
        assert!(advice[1].contains("40 %"), "{advice:?}");
    }

    #[test]
    fn more_threads_than_cores_wait() {
        let Some(before) = CoreTime::now() else { return };
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        let end = std::time::Instant::now() + std::time::Duration::from_millis(300);
        let spin = || while std::time::Instant::now() < end {};
        let waited = std::thread::scope(|scope| {
            for _ in 0..3 * cores {
                scope.spawn(spin);
            }
            // Those that have ended are not counted, so they are looked at while they spin.
            std::thread::sleep(std::time::Duration::from_millis(250));
            CoreTime::now().map(|now| now.waited_since(&before))
        });
        assert!(waited.is_some_and(|w| w > 0.2 && w <= 1.0), "{waited:?}");
    }
}
