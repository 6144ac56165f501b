//! The session as its users hold it.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

use super::hub::Hub;

/// What whoever uses the session holds: with the last of them it is closed, at once. Threads that look
/// after it hold the hub alone, for moments.
pub(super) struct Open(Arc<Hub>);

impl Open {
    pub(super) fn new(hub: Arc<Hub>) -> Arc<Self> {
        Arc::new(Self(hub))
    }

    pub(super) fn hub(&self) -> &Arc<Hub> {
        &self.0
    }
}

impl Deref for Open {
    type Target = Hub;

    fn deref(&self) -> &Hub {
        &self.0
    }
}

impl fmt::Debug for Open {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.close();
    }
}
