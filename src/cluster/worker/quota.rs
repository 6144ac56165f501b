//! Who holds how many bytes: each byte is charged to a stage, the session of the stage, and the
//! worker, until it is freed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Result, err};

/// Bytes that are held in one name, and the most that may be.
#[derive(Debug)]
pub(super) struct Ledger {
    what: String,
    used: AtomicU64,
    most: u64,
    above: Option<Arc<Self>>,
}

impl Ledger {
    /// At most `most` bytes in this name, each of them charged to the one above, too.
    pub(super) fn new(what: impl Into<String>, most: u64, above: Option<&Arc<Self>>) -> Arc<Self> {
        let above = above.map(Arc::clone);
        Arc::new(Self { what: what.into(), used: AtomicU64::new(0), most, above })
    }

    /// Bytes that are held now.
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Charges bytes before they are taken; given back when the charge is dropped.
    ///
    /// # Errors
    /// If they do not fit: names whose limit it is, and the figures.
    pub(super) fn charge(self: &Arc<Self>, bytes: u64) -> Result<Charge> {
        self.take(bytes)?;
        Ok(Charge { ledger: Arc::clone(self), bytes })
    }

    fn take(&self, bytes: u64) -> Result<()> {
        let add = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= self.most);
        if let Err(used) = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            return Err(err!(
                Limit,
                "{} holds {used} bytes and may hold {}: {bytes} more do not fit",
                self.what,
                self.most
            )
            .with_help(
                "raise the limit (of a session: the worker's --quota), cut the model into more stages, or \
                 keep fewer items in flight",
            ));
        }
        if let Some(above) = &self.above
            && let Err(e) = above.take(bytes)
        {
            self.used.fetch_sub(bytes, Ordering::Relaxed);
            return Err(e);
        }
        Ok(())
    }

    fn give_back(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
        if let Some(above) = &self.above {
            above.give_back(bytes);
        }
    }
}

/// Bytes that are held.
#[derive(Debug)]
pub(super) struct Charge {
    ledger: Arc<Ledger>,
    bytes: u64,
}

impl Charge {
    /// Corrects an estimate.
    ///
    /// # Errors
    /// As [`Ledger::charge`]; the charge is as before then.
    pub(super) fn resize(&mut self, bytes: u64) -> Result<()> {
        match bytes.checked_sub(self.bytes) {
            Some(more) => self.ledger.take(more)?,
            None => self.ledger.give_back(self.bytes - bytes),
        }
        self.bytes = bytes;
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.ledger.give_back(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn a_charge_counts_for_all_above_until_it_is_dropped() {
        let worker = Ledger::new("the worker", u64::MAX, None);
        let session = Ledger::new("session `s`", 100, Some(&worker));
        let (a, b) = (
            Ledger::new("stage `a`", 60, Some(&session)),
            Ledger::new("stage `b`", u64::MAX, Some(&session)),
        );
        let mut first = a.charge(50).unwrap();
        let error = a.charge(11).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Limit);
        assert!(error.message().starts_with("stage `a` holds 50 bytes and may hold 60"), "{error}");
        let second = b.charge(50).unwrap();
        let error = b.charge(1).unwrap_err();
        assert!(error.message().starts_with("session `s` holds 100 bytes"), "{error}");
        assert_eq!((a.used(), b.used(), session.used(), worker.used()), (50, 50, 100, 100));
        assert!(first.resize(51).is_err());
        assert_eq!((a.used(), session.used()), (50, 100));
        drop(second);
        first.resize(60).unwrap();
        first.resize(7).unwrap();
        assert_eq!((a.used(), b.used(), session.used(), worker.used()), (7, 0, 7, 7));
        assert!(b.charge(u64::MAX).is_err());
        drop(first);
        assert_eq!((a.used(), session.used(), worker.used()), (0, 0, 0));
    }
}
