//! The receiving half of a link: hands what comes to its [`Accept`], which may fail or panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::error::LinkError;
use super::link::Core;
use super::{Accept, Incoming};
use crate::sync::Arc;

/// Hands the frames of one link to its [`Accept`], and tells it the end.
pub(crate) struct Intake {
    /// Until it is told the end.
    accept: Option<Box<dyn Accept>>,
    core: Arc<Core>,
    /// The frame whose payload is on its way.
    current: Option<Current>,
}

struct Current {
    incoming: Box<dyn Incoming>,
    filled: usize,
    length: usize,
}

/// Runs code of the user's. A panic is reported by the hook as ever, and ends this link alone.
pub(crate) fn guarded<T>(run: impl FnOnce() -> T) -> Result<T, LinkError> {
    catch_unwind(AssertUnwindSafe(run)).map_err(|_| LinkError::Lost {
        why: "what takes the frames panicked; see its message".to_owned(),
    })
}

impl Intake {
    pub(crate) fn new(accept: Box<dyn Accept>, core: Arc<Core>) -> Self {
        Self { accept: Some(accept), core, current: None }
    }

    /// A head, and the length of the payload behind it.
    pub(crate) fn head(&mut self, head: &[u8], length: u64) -> Result<(), LinkError> {
        let Some(accept) = &mut self.accept else { return Err(LinkError::Closed) };
        let incoming = guarded(|| accept.accept(head, length))??;
        let length = usize::try_from(length).map_err(|_| LinkError::TooLong {
            what: "payload",
            length,
            limit: usize::MAX as u64,
        })?;
        self.core.received(head.len() as u64);
        self.current = Some(Current { incoming, filled: 0, length });
        if length == 0 { self.complete() } else { Ok(()) }
    }

    /// The next piece of the payload; never more than is left of it.
    pub(crate) fn payload(&mut self, piece: &[u8]) -> Result<(), LinkError> {
        let Some(current) = &mut self.current else {
            return Err(LinkError::Malformed { why: "a payload without its head".to_owned() });
        };
        let end = current.filled + piece.len();
        guarded(|| {
            if !current.incoming.is_wanted() {
                return Ok(());
            }
            let buffer = current.incoming.buffer();
            if buffer.len() != current.length {
                return Err(LinkError::Lost {
                    why: format!(
                        "a buffer of {} bytes was given for a payload of {}",
                        buffer.len(),
                        current.length
                    ),
                });
            }
            let Some(place) = buffer.get_mut(current.filled..end) else {
                return Err(LinkError::Malformed { why: "more payload than announced".to_owned() });
            };
            place.copy_from_slice(piece);
            Ok(())
        })??;
        current.filled = end;
        self.core.received_payload(piece.len() as u64);
        if end == current.length { self.complete() } else { Ok(()) }
    }

    fn complete(&mut self) -> Result<(), LinkError> {
        match self.current.take() {
            Some(current) => guarded(|| current.incoming.complete()),
            None => Ok(()),
        }
    }

    /// The link has ended.
    pub(crate) fn closed(mut self, why: LinkError) {
        self.tell(why);
    }

    fn tell(&mut self, why: LinkError) {
        self.current = None;
        if let Some(mut accept) = self.accept.take() {
            // There is no link left that a panic could end.
            let _ = guarded(|| accept.closed(why));
            let _ = guarded(|| drop(accept));
        }
    }
}

impl Drop for Intake {
    /// A task can be dropped before it has told the end, with the runtime that it runs on.
    fn drop(&mut self) {
        if self.accept.is_some() {
            let why = self.core.end(LinkError::Closed);
            self.tell(why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Peer, TransportOptions};
    use super::*;
    use crate::sync::{Mutex, lock};

    struct Told(Arc<Mutex<Vec<LinkError>>>);

    impl Accept for Told {
        fn accept(&mut self, _: &[u8], _: u64) -> Result<Box<dyn Incoming>, LinkError> {
            Err(LinkError::Closed)
        }

        fn closed(&mut self, why: LinkError) {
            lock(&self.0).push(why);
        }
    }

    #[test]
    fn the_end_is_told_once_also_by_a_task_that_is_dropped() {
        let peer = Peer { address: "peer".to_owned(), identity: None };
        let lost = LinkError::Lost { why: "test".to_owned() };
        for (ended, told, expected) in [
            (None, Some(lost.clone()), lost.clone()),
            (None, None, LinkError::Closed),
            (Some(lost.clone()), None, lost.clone()),
        ] {
            let core = Core::new(peer.clone(), &TransportOptions::new());
            let heard = Arc::new(Mutex::new(Vec::new()));
            let intake = Intake::new(Box::new(Told(Arc::clone(&heard))), Arc::clone(&core));
            if let Some(why) = ended {
                core.end(why);
            }
            match told {
                Some(why) => intake.closed(why),
                None => drop(intake),
            }
            assert_eq!(*lock(&heard), [expected]);
        }
    }
}
