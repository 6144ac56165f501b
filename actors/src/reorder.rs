//! Restoring the order of items that overtook each other.

use std::collections::VecDeque;
use std::fmt;

/// Gives out in the order of their numbers what was put in in any order.
///
/// Replicas let items overtake each other. Whoever needs them in order (a stage that keeps something
/// from item to item, a consumer of tickets as they are done) puts this in front of itself: every
/// number is announced once, with a value or as one that [has none](Self::skip), and values come out
/// in order, each as soon as all numbers before it were announced.
///
/// A number that nobody announces holds up all that follow. An actor's stage does not see the items
/// that became errors before it, so it can rely on this only where nothing upstream fails.
///
/// It holds as many entries as there are numbers ahead of the first one that is missing: never more
/// than items can be in flight. Once it has held that many, it allocates nothing.
///
/// ```
/// use brigade_actors::Reorder;
///
/// let mut reorder = Reorder::new(0);
/// reorder.put(2, 'c')?;
/// reorder.put(1, 'b')?;
/// assert_eq!(reorder.take(), None);
/// reorder.skip(0)?;
/// assert_eq!(reorder.take(), Some((1, 'b')));
/// assert_eq!(reorder.take(), Some((2, 'c')));
/// # Ok::<(), brigade_actors::ReorderError>(())
/// ```
pub struct Reorder<T> {
    /// The first number that was not announced or not given out yet.
    next: u64,
    /// Announced numbers from `next` on, in order.
    ahead: VecDeque<(u64, Option<T>)>,
}

/// A number that was announced twice, or that lies before the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("number {number} was announced before, or lies before the first number that is expected")]
#[non_exhaustive]
pub struct ReorderError {
    /// The number.
    pub number: u64,
}

impl<T> Reorder<T> {
    /// An empty buffer that expects `first` first.
    #[must_use]
    pub const fn new(first: u64) -> Self {
        Self { next: first, ahead: VecDeque::new() }
    }

    /// Puts in the value of a number.
    ///
    /// # Errors
    ///
    /// [`ReorderError`] if the number was announced before; the value is dropped.
    pub fn put(&mut self, number: u64, value: T) -> Result<(), ReorderError> {
        self.announce(number, Some(value))
    }

    /// Says that a number has no value: its item became an error, or was filtered.
    ///
    /// # Errors
    ///
    /// As [`put`](Self::put).
    pub fn skip(&mut self, number: u64) -> Result<(), ReorderError> {
        self.announce(number, None)
    }

    /// Takes the next value, if every number before it was announced.
    pub fn take(&mut self) -> Option<(u64, T)> {
        while self.ahead.front().is_some_and(|(number, _)| *number == self.next) {
            let (number, value) = self.ahead.pop_front()?;
            self.next = number.saturating_add(1);
            if let Some(value) = value {
                return Some((number, value));
            }
        }
        None
    }

    /// The first number that is missing, or whose value was not taken yet.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// How many announced numbers are held back.
    #[must_use]
    pub fn held(&self) -> usize {
        self.ahead.len()
    }

    fn announce(&mut self, number: u64, value: Option<T>) -> Result<(), ReorderError> {
        let place = self.ahead.partition_point(|(other, _)| *other < number);
        let known = self.ahead.get(place).is_some_and(|(other, _)| *other == number);
        if known || number < self.next {
            return Err(ReorderError { number });
        }
        self.ahead.insert(place, (number, value));
        Ok(())
    }
}

impl<T> fmt::Debug for Reorder<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reorder")
            .field("next", &self.next)
            .field("held", &self.held())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All orders of `rest`, each after `done`.
    fn orders(done: &[u64], rest: &[u64], visit: &mut impl FnMut(&[u64])) {
        if rest.is_empty() {
            visit(done);
        }
        for (place, &number) in rest.iter().enumerate() {
            let (mut done, mut rest) = (done.to_vec(), rest.to_vec());
            done.push(number);
            rest.remove(place);
            orders(&done, &rest, visit);
        }
    }

    #[test]
    fn every_order_in_comes_out_in_order_without_what_was_skipped() {
        let mut tried = 0;
        orders(&[], &[10, 11, 12, 13, 14, 15], &mut |order| {
            for skipped in [None, Some(10), Some(12), Some(15)] {
                let mut reorder = Reorder::new(10);
                let mut out = Vec::new();
                for &number in order {
                    let put = if skipped == Some(number) {
                        reorder.skip(number)
                    } else {
                        reorder.put(number, 2 * number)
                    };
                    assert_eq!(put, Ok(()));
                    while let Some((number, value)) = reorder.take() {
                        assert_eq!(value, 2 * number);
                        out.push(number);
                    }
                }
                let expected: Vec<_> = (10..16).filter(|n| skipped != Some(*n)).collect();
                assert_eq!(out, expected, "{order:?} without {skipped:?}");
                assert_eq!((reorder.held(), reorder.next()), (0, 16));
            }
            tried += 1;
        });
        assert_eq!(tried, 720);
    }

    #[test]
    fn a_number_that_comes_twice_is_refused() {
        let mut reorder = Reorder::new(1);
        assert_eq!(reorder.put(0, ()), Err(ReorderError { number: 0 }));
        reorder.put(3, ()).unwrap();
        assert_eq!(reorder.skip(3), Err(ReorderError { number: 3 }));
        reorder.put(1, ()).unwrap();
        assert_eq!(reorder.take(), Some((1, ())));
        assert!(reorder.put(1, ()).is_err());
        assert_eq!(reorder.held(), 1);
    }

    #[test]
    fn the_buffer_grows_to_what_is_ahead_and_no_further() {
        let mut reorder = Reorder::new(0);
        let mut most = 0;
        for block in 0..1000_u64 {
            for number in [3, 1, 2, 0] {
                reorder.put(4 * block + number, ()).unwrap();
            }
            while reorder.take().is_some() {}
            most = most.max(reorder.ahead.capacity());
        }
        assert!(most <= 8, "{most}");
    }
}
