//! Tickets: the claim to the result of one item.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::engine::Engine;
use crate::error::{ErrorKind, ItemError};
use crate::inbox::Flags;
use crate::item::Item;
use crate::packet::Seq;
use crate::payload::Payload;
use crate::sync::Arc;

/// The claim to the result of one item: one payload per sink port, or why there is none.
///
/// Wait for it, ask for it, or `.await` it on any executor. A ticket that is dropped gives the
/// result up and nothing else: the item runs to its end. A ticket does not keep its pipeline alive;
/// when the pipeline stops, every ticket without a result gets an error that says so.
#[must_use = "the result of the item is in its ticket"]
pub struct Ticket<P: Payload> {
    item: Arc<Item<P>>,
    engine: Arc<Engine<P>>,
}

impl<P: Payload> Ticket<P> {
    pub(crate) const fn new(item: Arc<Item<P>>, engine: Arc<Engine<P>>) -> Self {
        Self { item, engine }
    }

    /// The number of the item.
    #[must_use]
    pub fn seq(&self) -> Seq {
        self.item.seq()
    }

    /// True once the result is there (or was taken).
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.item.result.is_settled()
    }

    /// Waits for the result. Ends at the item's deadline, if it has one, and when the pipeline
    /// stops.
    ///
    /// # Errors
    ///
    /// Why the item has no value.
    pub fn wait(mut self) -> Result<Vec<P>, ItemError> {
        match self.wait_until(None) {
            Some(outcome) => outcome,
            None => Err(ItemError::new(
                ErrorKind::Invalid,
                "the result of this ticket was taken before",
            )),
        }
    }

    /// Waits for the result for at most `timeout`; `None` if it is not there by then, or was taken.
    pub fn wait_timeout(&mut self, timeout: Duration) -> Option<Result<Vec<P>, ItemError>> {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&mut self, until: Option<Instant>) -> Option<Result<Vec<P>, ItemError>> {
        let earliest = [until, self.item.deadline].into_iter().flatten().min();
        if let Some(old) = self.item.queued_until()
            && earliest.is_none_or(|earliest| old < earliest)
        {
            let outcome = self.item.result.take_until(Some(old), self.engine.spin);
            if outcome.is_some() {
                return outcome;
            }
            // Unless it was let in meanwhile, this ends its wait.
            self.engine.sweep_queue();
        }
        if let Some(deadline) = self.item.deadline
            && until.is_none_or(|until| deadline <= until)
        {
            let outcome = self.item.result.take_until(Some(deadline), self.engine.spin);
            if outcome.is_some() {
                return outcome;
            }
            self.give_up(self.item.expired());
        }
        self.item.result.take_until(until, self.engine.spin)
    }

    /// Takes the result if it is there. `None` before, and after it was taken.
    pub fn try_take(&mut self) -> Option<Result<Vec<P>, ItemError>> {
        self.item.result.try_take()
    }

    /// Gives the item up: its result is an error of kind [`ErrorKind::Cancelled`], unless it was
    /// there before. Actors that have not started it skip it; stages that hold it are told.
    pub fn cancel(&self) {
        self.give_up(ItemError::new(ErrorKind::Cancelled, "the caller cancelled the item"));
    }

    fn give_up(&self, error: ItemError) {
        if self.item.abort(error) {
            self.engine.ring_all(Flags::CANCEL);
        }
    }
}

impl<P: Payload> Future for Ticket<P> {
    type Output = Result<Vec<P>, ItemError>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.item.result.poll_take(context)
    }
}

impl<P: Payload> Drop for Ticket<P> {
    fn drop(&mut self) {
        self.item.result.forsake();
    }
}

impl<P: Payload> fmt::Debug for Ticket<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ticket")
            .field("seq", &self.seq())
            .field("done", &self.is_done())
            .finish_non_exhaustive()
    }
}
