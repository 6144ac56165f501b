//! The suite over links inside of the process.

use brigade_actors::transport::{LinkError, TransportOptions, transport};

use super::peer::{Pair, quiet};

fn pair(options: &TransportOptions) -> Pair {
    let both = (transport("local").unwrap().open)(options).unwrap();
    Pair { server: std::sync::Arc::clone(&both), client: both, address: "worker" }
}

suite!(super::pair);

#[test]
fn a_name_is_listened_at_once_and_is_free_again_after_the_close() {
    let pair = pair(&TransportOptions::new());
    let listening = pair.server.listen("a", quiet()).unwrap();
    let taken = pair.server.listen("a", quiet()).err().unwrap();
    assert!(matches!(&taken, LinkError::Address { address, .. } if address == "a"), "{taken}");
    assert!(matches!(pair.server.listen("", quiet()).err(), Some(LinkError::Address { .. })));
    listening.close();
    assert_eq!(pair.server.listen("a", quiet()).unwrap().address(), "a");
}

#[test]
fn names_belong_to_one_value() {
    let (one, other) = (pair(&TransportOptions::new()), pair(&TransportOptions::new()));
    let _listening = one.server.listen("a", quiet()).unwrap();
    let error = other.connect_to("a").err().unwrap();
    assert!(matches!(&error, LinkError::Unreachable { address, .. } if address == "a"), "{error}");
}
