//! Peers that are not what they should be.

use std::io::{ErrorKind, Read as _, Write as _};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use brigade_actors::transport::{Frame, LINK_VERSION, LinkError, TransportOptions};

use super::super::peer::{End, PATIENCE, Pair, taking};
use super::raw::{self, call, connect, greeting, message, read_to_end};
use super::{LOOPBACK, grpc, never, watched};

const PATH: &str = "/brigade.v1.Link/Stream";

#[test]
fn another_version_is_a_readable_refusal_on_both_sides() {
    for (server, client) in [(LINK_VERSION, LINK_VERSION + 1), (7, LINK_VERSION)] {
        let (server_side, refused) = watched(TransportOptions::new().speaking(server));
        let (on_link, count) = never();
        let listening = server_side.listen(LOOPBACK, on_link).unwrap();
        let client_side = grpc(&TransportOptions::new().speaking(client));
        let pair = Pair { server: server_side, client: client_side, address: LOOPBACK };
        let error = pair.connect_to(&listening.address()).err().unwrap();
        let release = env!("CARGO_PKG_VERSION").to_owned();
        let expected =
            LinkError::Version { ours: client, theirs: server, release: release.clone() };
        assert_eq!(error, expected);
        assert!(error.to_string().contains("use one release on both sides"));
        let (_, theirs) = refused.recv_timeout(PATIENCE).unwrap();
        assert_eq!(theirs, LinkError::Version { ours: server, theirs: client, release });
        assert_eq!(count.load(Ordering::SeqCst), 0);
    }
}

#[test]
fn whoever_does_not_speak_the_protocol_is_dropped() {
    let options = TransportOptions::new().greeting_timeout(Duration::from_millis(300));
    let (server, refused) = watched(options);
    let (on_link, count) = never();
    let listening = server.listen(LOOPBACK, on_link).unwrap();
    let address = listening.address();
    let noise: Vec<u8> =
        (0..40_000_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let mut half_a_preface = raw::PREFACE[..10].to_vec();
    half_a_preface.extend_from_slice(b"nonsense, and some more of it");
    let mut long = greeting();
    long[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    let begun = Instant::now();
    let plain =
        [&b""[..], b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", &noise, &half_a_preface, raw::PREFACE];
    let mut streams: Vec<_> = plain
        .into_iter()
        .map(|bytes| {
            let mut stream = connect(&address);
            // It may be gone before all of this is written.
            let _ = stream.write_all(bytes);
            stream
        })
        .collect();
    for first in [
        Vec::new(),
        greeting()[..9].to_vec(),
        long,
        message(1, b"GET / HTTP/1.1", 0),
        message(2, b"no greeting", 4),
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(),
    ] {
        streams.push(call(&address, PATH, &first));
    }
    streams.push(call(&address, "/brigade.v1.Link/Other", &greeting()));
    let peers = streams.len();
    for (n, mut stream) in streams.into_iter().enumerate() {
        read_to_end(&mut stream);
        assert!(begun.elapsed() < Duration::from_secs(3), "peer {n}: {:?}", begun.elapsed());
    }
    for _ in 0..peers {
        refused.recv_timeout(PATIENCE).unwrap();
    }
    assert_eq!(count.load(Ordering::SeqCst), 0);
}

#[test]
fn no_more_than_so_many_wait() {
    let options = TransportOptions::new().waiting(4).greeting_timeout(Duration::from_millis(700));
    let (server, refused) = watched(options);
    let (on_link, _ends) = taking();
    let listening = server.listen(LOOPBACK, on_link).unwrap();
    let address = listening.address();
    let held: Vec<_> = (0..4).map(|_| connect(&address)).collect();
    let begun = Instant::now();
    let mut surplus = connect(&address);
    read_to_end(&mut surplus);
    assert!(begun.elapsed() < Duration::from_millis(600), "{:?}", begun.elapsed());
    let (_, why) = refused.recv_timeout(PATIENCE).unwrap();
    assert!(why.to_string().contains("have not greeted"), "{why}");
    // They are given up, and then there is room.
    for mut stream in held {
        read_to_end(&mut stream);
    }
    let pair = Pair { server, client: grpc(&TransportOptions::new()), address: LOOPBACK };
    // Whoever has greeted does not count.
    let links: Vec<End> = (0..8).map(|_| pair.connect_to(&address).unwrap()).collect();
    assert!(links.iter().all(|end| end.link.is_open()));
}

/// A link whose other end is made by hand.
fn raw_link(
    options: &TransportOptions,
    messages: &[u8],
) -> (End, std::net::TcpStream, Box<dyn brigade_actors::transport::Listening>) {
    // It does not answer to the end of its link.
    let server = grpc(&options.clone().close_timeout(Duration::from_millis(100)));
    let (on_link, ends) = taking();
    let listening = server.listen(LOOPBACK, on_link).unwrap();
    let mut bytes = greeting();
    bytes.extend_from_slice(messages);
    let stream = call(&listening.address(), PATH, &bytes);
    let end = ends.recv_timeout(PATIENCE).unwrap();
    // The transport would close its links.
    std::mem::forget(server);
    (end, stream, listening)
}

#[test]
fn a_payload_that_does_not_come() {
    let options = TransportOptions::new().progress_timeout(Duration::from_millis(300));
    let mut messages = message(2, b"whole", 3);
    messages.extend_from_slice(b"abc");
    messages.extend_from_slice(&message(2, b"promised", 1 << 30));
    let begun = Instant::now();
    let (end, _stream, _listening) = raw_link(&options, &messages);
    assert_eq!(end.frame(), (b"whole".to_vec(), b"abc".to_vec()));
    let why = end.closed();
    assert!(why.to_string().contains("sent nothing of it for 300ms"), "{why}");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[test]
fn a_peer_that_does_not_answer_is_lost() {
    // It reads nothing and answers no ping.
    let options =
        TransportOptions::new().keep_alive(Duration::from_millis(100), Duration::from_millis(200));
    let begun = Instant::now();
    let (end, _stream, _listening) = raw_link(&options, &[]);
    let why = end.closed();
    assert!(why.to_string().contains("did not answer for 200ms"), "{why}");
    assert!(begun.elapsed() < Duration::from_secs(3), "{:?}", begun.elapsed());
    assert_eq!(end.link.send(Frame::head(vec![])), Err(why));
}

#[test]
fn messages_that_cannot_be_end_the_link_and_the_peer_reads_why() {
    for (messages, says) in [
        (greeting(), "a second greeting"),
        (message(9, b"", 0), "unknown kind 9"),
        (message(1, b"BRGL\x01\0\0\0raw", 9), "a payload where there can be none"),
        (vec![1, 0, 0, 0, 7, 2, 0, 0, 0, 0, 0, 0], "compressed"),
    ] {
        let (end, mut stream, _listening) = raw_link(&TransportOptions::new(), &messages);
        let why = end.closed();
        assert!(matches!(&why, LinkError::Malformed { why } if why.contains(says)), "{why}");
        let read = read_to_end(&mut stream);
        let words = says.as_bytes();
        assert!(read.windows(words.len()).any(|window| window == words), "{says}");
    }
}

#[test]
fn a_listener_closes_in_time_whoever_is_connected() {
    let server = grpc(&TransportOptions::new().close_timeout(Duration::from_millis(300)));
    let (on_link, ends) = taking();
    let listening = server.listen(LOOPBACK, on_link).unwrap();
    let address = listening.address();
    let mut idle = connect(&address);
    // It does not answer to the end of its link.
    let mut stubborn = call(&address, PATH, &greeting());
    let end = ends.recv_timeout(PATIENCE).unwrap();
    let begun = Instant::now();
    listening.close();
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    assert_eq!(end.closed(), LinkError::Closed);
    read_to_end(&mut stubborn);
    idle.set_read_timeout(Some(Duration::from_secs(4))).unwrap();
    let mut bytes = [0; 1000];
    loop {
        match idle.read(&mut bytes) {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => panic!("not dropped: {error}"),
        }
    }
    let error = std::net::TcpStream::connect(&address).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}
