//! The source: how items enter.

use std::task::{Context, Poll};
use std::time::Instant;

use crate::engine::Engine;
use crate::error::PushErrorKind;
use crate::item::Item;
use crate::payload::Payload;
use crate::region::ROOT;
use crate::state::Carried;
use crate::sync::Arc;

/// How long a push waits for a credit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// Not at all.
    None,
    /// Until there is one or the pipeline ends.
    Endless,
    /// Until this instant, which is the item's deadline too.
    Until(Instant),
}

impl Patience {
    const fn deadline(self) -> Option<Instant> {
        match self {
            Self::Until(deadline) => Some(deadline),
            Self::None | Self::Endless => None,
        }
    }
}

impl<P: Payload> Engine<P> {
    /// Checks that there is one input per source port.
    pub(crate) fn check_arity(&self, given: usize) -> Result<(), PushErrorKind> {
        let expected = self.sources.len();
        if given == expected { Ok(()) } else { Err(PushErrorKind::Arity { expected, given }) }
    }

    /// Takes a credit and makes an item of it.
    pub(crate) fn admit(
        &self,
        patience: Patience,
        stream: Option<Arc<Carried<P>>>,
    ) -> Result<Arc<Item<P>>, PushErrorKind> {
        match patience {
            Patience::None => self.credits.try_acquire()?,
            Patience::Endless | Patience::Until(_) => self.credits.acquire(patience.deadline())?,
        }
        self.enter_flight(patience.deadline(), stream)
    }

    /// Like [`admit`](Self::admit) for a future.
    pub(crate) fn poll_admit(
        &self,
        waiter: &mut Option<u64>,
        context: &Context<'_>,
    ) -> Poll<Result<Arc<Item<P>>, PushErrorKind>> {
        match self.credits.poll_acquire(waiter, context) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(Ok(())) => Poll::Ready(self.enter_flight(None, None)),
            Poll::Ready(Err(kind)) => Poll::Ready(Err(kind)),
        }
    }

    fn enter_flight(
        &self,
        deadline: Option<Instant>,
        stream: Option<Arc<Carried<P>>>,
    ) -> Result<Arc<Item<P>>, PushErrorKind> {
        let admitted = Instant::now();
        let shape = &self.regions[ROOT].shape;
        let entered =
            self.enter(|seq, slot| Item::new(seq, slot, deadline, stream, shape, admitted));
        entered.map_err(|cause| {
            self.credits.release().wake();
            PushErrorKind::Closed(cause)
        })
    }
}
