//! HTTP/2 by hand, for peers that do not do what they should.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use super::super::peer::PATIENCE;

pub(super) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A frame of HTTP/2.
pub(super) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = (payload.len() as u32).to_be_bytes()[1..].to_vec();
    bytes.extend_from_slice(&[kind, flags]);
    bytes.extend_from_slice(&stream.to_be_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

/// The fields of a call, not compressed.
fn fields(path: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (name, value) in [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", path),
        (":authority", "x"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ] {
        bytes.push(0);
        for text in [name, value] {
            bytes.push(text.len() as u8);
            bytes.extend_from_slice(text.as_bytes());
        }
    }
    bytes
}

pub(super) fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// A connection on which a link's call has begun, with these bytes of messages.
pub(super) fn call(address: &str, path: &str, messages: &[u8]) -> TcpStream {
    let mut stream = connect(address);
    let mut bytes = PREFACE.to_vec();
    bytes.extend_from_slice(&frame(4, 0, 0, &[]));
    bytes.extend_from_slice(&frame(1, 4, 1, &fields(path)));
    bytes.extend_from_slice(&frame(0, 0, 1, messages));
    stream.write_all(&bytes).unwrap();
    stream
}

/// All that the other side sends until it is gone.
pub(super) fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset is an end too.
    let result = stream.read_to_end(&mut bytes);
    if let Err(error) = result {
        let kind = error.kind();
        assert!(kind == std::io::ErrorKind::ConnectionReset, "not dropped: {error}");
    }
    bytes
}

/// A message of a link: its prefix and head, and a payload of `length` bytes that is not there.
pub(super) fn message(kind: u8, head: &[u8], length: u32) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&(7 + head.len() as u32 + length).to_be_bytes());
    bytes.extend_from_slice(&[kind, 0, 0]);
    bytes.extend_from_slice(&(head.len() as u32).to_le_bytes());
    bytes.extend_from_slice(head);
    bytes
}

pub(super) fn greeting() -> Vec<u8> {
    message(1, b"BRGL\x01\0\0\0raw", 0)
}
