//! The suite over gRPC, plaintext and with mutual TLS.

use std::time::Duration;

use brigade_actors::transport::authority::Authority;
use brigade_actors::transport::{TransportOptions, transport};

use super::peer::Pair;

mod plaintext {
    suite!(super::super::plaintext_pair);
}

mod mutual {
    suite!(super::super::mutual_pair);
}

fn plaintext_pair(options: &TransportOptions) -> Pair {
    let open = transport("grpc").unwrap().open;
    Pair { server: open(options).unwrap(), client: open(options).unwrap(), address: "127.0.0.1:0" }
}

fn mutual_pair(options: &TransportOptions) -> Pair {
    let open = transport("grpc").unwrap().open;
    let hour = Duration::from_secs(3600);
    let authority = Authority::new("test", hour).unwrap();
    let side = |name: &str| {
        let issued = authority.issue(name, &["localhost", "127.0.0.1"], hour).unwrap();
        open(&options.clone().security(issued.security(&authority))).unwrap()
    };
    Pair { server: side("worker"), client: side("coordinator"), address: "127.0.0.1:0" }
}
