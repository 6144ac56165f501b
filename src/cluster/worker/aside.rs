//! What a session answers on threads of their own, since the transport's must not wait for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::gauge;
use super::outlet::{Cargo, Parcel};
use super::quota::Charge;
use super::session::Session;
use crate::cluster::message::{Measurement, Message, PROTOCOL};
use crate::cluster::question::encode;
use crate::error::{Result, err};

/// The most questions that are answered at once.
const MAX_ASIDES: u64 = 16;

impl Session {
    /// The head of the first frame of a link to another worker that is to be measured.
    pub(super) fn gauge_greeting(&self) -> Result<Vec<u8>> {
        let from = self.name.clone();
        Message::Gauge { protocol: PROTOCOL, session: self.id, from }.encode()
    }

    /// Measures the link to another worker and tells the coordinator.
    pub(super) fn measure(self: &Arc<Self>, ticket: u64, (name, address): (String, String)) {
        let measured = move |session: &Self, link: Result<Measurement>| {
            let link = link.map_err(|e| (&e).into());
            session.send(&Message::Measured { ticket, link });
        };
        let own = Arc::clone(self);
        let run = move || measured(&own, gauge::gauge(&own, &name, &address));
        if let Err(e) = self.aside("gauge", run) {
            measured(self, Err(e));
        }
    }

    /// Tells the coordinator which of the nodes in a question a device here runs.
    pub(super) fn supports(
        self: &Arc<Self>,
        ticket: u64,
        device: String,
        question: Vec<u8>,
        charge: Charge,
    ) {
        let own = Arc::clone(self);
        let run = move || {
            let answers = own.worker.offered.answers(&device, &question, &own.worker.registry);
            drop((question, charge));
            own.supported(ticket, answers.and_then(|answers| encode(&answers)));
        };
        if let Err(e) = self.aside("supports", run) {
            self.supported(ticket, Err(e));
        }
    }

    /// The answer to a question about nodes.
    pub(super) fn supported(&self, ticket: u64, answers: Result<Vec<u8>>) {
        let (error, payload) = match answers {
            Ok(bytes) => (None, Some(Cargo::Bytes(Arc::new(bytes)))),
            Err(e) => (Some((&e).into()), None),
        };
        if let Ok(head) = (Message::Supported { ticket, error }).encode() {
            self.send_parcel(Parcel { head, payload });
        }
    }

    /// Runs something that the transport's threads must not wait for.
    fn aside(self: &Arc<Self>, name: &str, run: impl FnOnce() + Send + 'static) -> Result<()> {
        struct Counted(Arc<Session>);
        impl Drop for Counted {
            fn drop(&mut self) {
                self.0.asides.fetch_sub(1, Ordering::Relaxed);
            }
        }
        let before = self.asides.fetch_add(1, Ordering::Relaxed);
        let counted = Counted(Arc::clone(self));
        if before >= MAX_ASIDES {
            return Err(err!(Limit, "more than {MAX_ASIDES} questions of the session at once"));
        }
        self.worker.spawn(name.to_owned(), move || {
            let _counted = counted;
            run();
        })
    }
}
