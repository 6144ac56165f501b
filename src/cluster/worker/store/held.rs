//! A value that is held.

use std::sync::Arc;

use crate::cluster::message::Form;
use crate::cluster::worker::quota::{Charge, Ledger};
use crate::error::Result;
use crate::tensor::{Buffer, Value};

/// A value as it lies here, and as it is sent.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) form: Form,
    pub(crate) buffer: Buffer,
    /// What it is charged as, wherever a handle on it is.
    charge: Arc<Charge>,
}

impl Held {
    pub(crate) fn new(form: Form, buffer: Buffer, charge: Charge) -> Self {
        Self { form, buffer, charge: Arc::new(charge) }
    }

    /// A value that was computed, charged to the ledger.
    ///
    /// # Errors
    /// If it cannot be sent, or does not fit.
    pub(crate) fn of(value: &Value, ledger: &Arc<Ledger>) -> Result<Self> {
        let (form, buffer) = Form::of(value)?;
        let charge = ledger.charge(buffer.len() as u64)?;
        Ok(Self::new(form, buffer, charge))
    }

    /// The value, and what keeps it charged.
    pub(crate) fn into_value(self) -> (Result<Value>, Arc<Charge>) {
        (self.form.value(self.buffer), self.charge)
    }

    /// Whether it may go from worker to worker.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.form, Form::Plain { .. })
    }
}
