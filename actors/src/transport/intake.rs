//! The receiving half of a link: hands what comes to its [`Accept`], which may fail or panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::error::LinkError;
use super::link::Core;
use super::{Accept, Incoming};

/// Hands the frames of one link to its [`Accept`], and tells it the end.
pub(crate) struct Intake {
    accept: Box<dyn Accept>,
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
        Self { accept, core, current: None }
    }

    /// A head, and the length of the payload behind it.
    pub(crate) fn head(&mut self, head: &[u8], length: u64) -> Result<(), LinkError> {
        let accept = &mut self.accept;
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
        self.current = None;
        // There is no link left that a panic could end.
        let _ = guarded(|| self.accept.closed(why));
        let _ = guarded(|| drop(self.accept));
    }
}
