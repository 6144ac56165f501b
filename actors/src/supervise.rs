//! Keeping an actor alive: building its stage, catching its panics, restarting it.

use std::any::Any;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::error::{ErrorKind, ItemError};
use crate::spans;
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

/// Drops values one by one. What panics as it is dropped harms nothing but itself: a payload is code
/// of the caller's, and may be dropped on any thread.
pub(crate) fn discard<T>(values: impl IntoIterator<Item = T>) {
    for value in values {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(value))) {
            spans::panicked_in_drop(&panicked("dropping a payload", &*panic));
            // What it panicked with may do so in its turn.
            std::mem::forget(panic);
        }
    }
}

/// Builds a stage; a panicking factory is a failing one.
pub(crate) fn build<P>(
    factory: &mut Factory<P>,
    context: StageContext,
) -> Result<Box<dyn Stage<P>>, ItemError> {
    guarded("the factory", || factory(context))
}

/// When an item whose firing went wrong is given to its actor once more.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RetryPolicy {
    /// Retries of one item at one actor after panics.
    pub(crate) panics: u32,
    /// Retries of one item at one actor after errors that its stage returned.
    pub(crate) failures: u32,
}

impl RetryPolicy {
    /// Whether anything is ever retried, so that inputs have to be kept.
    pub(crate) const fn asks(self) -> bool {
        self.panics > 0 || self.failures > 0
    }

    /// Whether an item that went wrong in this way is tried again after `tries` retries.
    pub(crate) const fn again(self, kind: ErrorKind, tries: u32) -> bool {
        match kind {
            ErrorKind::Panicked => tries < self.panics,
            ErrorKind::Failed => tries < self.failures,
            _ => false,
        }
    }
}

/// When a stage that panicked is built anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RestartPolicy {
    /// Restarts of one actor within the window.
    pub(crate) limit: u32,
    /// How long a restart counts; without it, for the life of the pipeline.
    pub(crate) window: Option<Duration>,
    /// The pause before the first restart; it doubles with every further one.
    pub(crate) backoff: Duration,
}

/// The longest pause before a restart.
const LONGEST_BACKOFF: Duration = Duration::from_secs(10);

/// The restarts of one actor: a pure state machine.
#[derive(Debug, Default)]
pub(crate) struct Restarts(VecDeque<Instant>);

impl Restarts {
    /// Counts one more failure; gives the pause before the restart, or `None` past the limit.
    pub(crate) fn next(&mut self, policy: RestartPolicy, now: Instant) -> Option<Duration> {
        if let Some(window) = policy.window {
            let old = |at: &Instant| now.saturating_duration_since(*at) > window;
            while self.0.front().is_some_and(old) {
                self.0.pop_front();
            }
        }
        let counted = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        if counted >= policy.limit {
            return None;
        }
        let doubled = 2_u32.checked_pow(counted).unwrap_or(u32::MAX);
        self.0.push_back(now);
        Some(policy.backoff.saturating_mul(doubled).min(LONGEST_BACKOFF))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_longest_one_and_end_at_the_limit() {
        let backoff = Duration::from_millis(10);
        let policy = RestartPolicy { limit: 12, window: None, backoff };
        let mut restarts = Restarts::default();
        let now = Instant::now();
        let pauses: Vec<_> = std::iter::from_fn(|| restarts.next(policy, now)).collect();
        assert_eq!(pauses.len(), 12);
        assert_eq!(pauses[..3], [10, 20, 40].map(Duration::from_millis));
        assert_eq!(pauses[11], LONGEST_BACKOFF);
        let none = RestartPolicy { limit: 0, ..policy };
        assert_eq!(Restarts::default().next(none, now), None);
    }

    #[test]
    fn restarts_outside_the_window_are_forgotten_and_the_pause_with_them() {
        let (second, backoff) = (Duration::from_secs(1), Duration::from_millis(10));
        let policy = RestartPolicy { limit: 2, window: Some(10 * second), backoff };
        let (mut restarts, start) = (Restarts::default(), Instant::now());
        assert_eq!(restarts.next(policy, start), Some(backoff));
        assert_eq!(restarts.next(policy, start + 4 * second), Some(2 * backoff));
        assert_eq!(restarts.next(policy, start + 8 * second), None);
        assert_eq!(restarts.next(policy, start + 12 * second), Some(2 * backoff));
        assert_eq!(restarts.next(policy, start + 60 * second), Some(backoff));
    }

    #[test]
    fn retries_are_counted_for_each_kind_and_nothing_else_is_retried() {
        let policy = RetryPolicy { panics: 2, failures: 1 };
        assert!(policy.asks() && !RetryPolicy::default().asks());
        assert!(policy.again(ErrorKind::Panicked, 1) && !policy.again(ErrorKind::Panicked, 2));
        assert!(policy.again(ErrorKind::Failed, 0) && !policy.again(ErrorKind::Failed, 1));
        assert!(!policy.again(ErrorKind::Cancelled, 0) && !policy.again(ErrorKind::Contract, 0));
    }
}
