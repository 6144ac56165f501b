//! Keeping an actor alive: building its stage, catching its panics, restarting it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use crate::error::{ErrorKind, ItemError};
use crate::stage::{Factory, Stage, StageContext};

/// Runs a piece of user code; a panic becomes an error that says what it said.
pub(crate) fn guarded<T>(
    what: &str,
    run: impl FnOnce() -> Result<T, ItemError>,
) -> Result<T, ItemError> {
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result,
        Err(panic) => Err(panicked(what, &*panic)),
    }
}

/// A panic as an error.
pub(crate) fn panicked(what: &str, panic: &(dyn Any + Send)) -> ItemError {
    let said = panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without a message");
    ItemError::new(ErrorKind::Panicked, format!("{what} panicked: {said}"))
}

/// Builds a stage; a panicking factory is a failing one.
pub(crate) fn build<P>(
    factory: &mut Factory<P>,
    context: StageContext,
) -> Result<Box<dyn Stage<P>>, ItemError> {
    guarded("the factory", || factory(context))
}

/// When a stage that panicked is built anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RestartPolicy {
    /// Restarts of one actor in the life of the pipeline.
    pub(crate) limit: u32,
    /// The pause before the first restart; it doubles with every further one.
    pub(crate) backoff: Duration,
}

/// The longest pause before a restart.
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);

/// The restarts of one actor: a pure state machine.
#[derive(Debug, Default)]
pub(crate) struct Restarts(u32);

impl Restarts {
    /// Counts one more failure; gives the pause before the restart, or `None` past the limit.
    pub(crate) fn next(&mut self, policy: RestartPolicy) -> Option<Duration> {
        if self.0 >= policy.limit {
            return None;
        }
        let doubled = 2_u32.checked_pow(self.0).unwrap_or(u32::MAX);
        self.0 += 1;
        Some(policy.backoff.saturating_mul(doubled).min(LONGEST_BACKOFF))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_longest_one_and_end_at_the_limit() {
        let policy = RestartPolicy { limit: 12, backoff: Duration::from_millis(10) };
        let mut restarts = Restarts::default();
        let pauses: Vec<_> = std::iter::from_fn(|| restarts.next(policy)).collect();
        assert_eq!(pauses.len(), 12);
        assert_eq!(pauses[..3], [10, 20, 40].map(Duration::from_millis));
        assert_eq!(pauses[11], LONGEST_BACKOFF);
        let none = RestartPolicy { limit: 0, ..policy };
        assert_eq!(Restarts::default().next(none), None);
    }
}
