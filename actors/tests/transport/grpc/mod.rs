//! The suite over gRPC, plaintext and with mutual TLS, and what gRPC has of its own.

mod faults;
mod health;
mod raw;
mod security;
mod strangers;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use brigade_actors::transport::authority::Authority;
use brigade_actors::transport::{
    LinkError, OnLink, Security, Transport, TransportOptions, transport,
};
use crossbeam_channel::{Receiver, bounded};

use super::peer::Pair;

mod plaintext {
    suite!(super::super::plaintext_pair);
}

mod mutual {
    suite!(super::super::mutual_pair);
}

const HOUR: Duration = Duration::from_secs(3600);
const LOOPBACK: &str = "127.0.0.1:0";

fn grpc(options: &TransportOptions) -> Arc<dyn Transport> {
    (transport("grpc").unwrap().open)(options).unwrap()
}

fn plaintext_pair(options: &TransportOptions) -> Pair {
    Pair { server: grpc(options), client: grpc(options), address: LOOPBACK }
}

fn mutual_pair(options: &TransportOptions) -> Pair {
    let authority = Authority::new("test", HOUR).unwrap();
    let side = |name: &str| {
        let issued = authority.issue(name, &["localhost", "127.0.0.1"], HOUR).unwrap();
        grpc(&options.clone().security(issued.security(&authority)))
    };
    Pair { server: side("worker"), client: side("coordinator"), address: LOOPBACK }
}

/// A transport, and whom it turns away.
fn watched(options: TransportOptions) -> (Arc<dyn Transport>, Receiver<(String, LinkError)>) {
    let (sender, refused) = bounded(1000);
    let options = options.on_refused(Arc::new(move |address, why| {
        let _ = sender.send((address.to_owned(), why.clone()));
    }));
    (grpc(&options), refused)
}

/// Counts who gets as far as a link; nobody should.
fn never() -> (OnLink, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let on_link: OnLink = Arc::new(move |_| {
        counted.fetch_add(1, Ordering::SeqCst);
        Err(LinkError::Closed)
    });
    (on_link, count)
}

fn secured(security: Security) -> TransportOptions {
    TransportOptions::new().security(security)
}
