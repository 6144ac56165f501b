//! Who is let in, and what those who are not get to read.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use brigade_actors::transport::authority::{
    AUTHORITY_FILE, AUTHORITY_KEY_FILE, Authority, AuthorityError, Issued,
};
use brigade_actors::transport::{LinkError, Security, TransportOptions};
use tokio_rustls::rustls;

use super::super::peer::{PATIENCE, Pair, quiet, taking};
use super::{HOUR, LOOPBACK, grpc, never, secured, watched};

fn why(error: &LinkError) -> &str {
    match error {
        LinkError::Security { why } => why,
        other => panic!("not about security: {other:?}"),
    }
}

fn authority() -> Authority {
    Authority::new("test", HOUR).unwrap()
}

fn worker(authority: &Authority) -> Issued {
    authority.issue("worker", &["127.0.0.1"], HOUR).unwrap()
}

/// What the connecting side and the listening side say; nobody gets in.
fn turned_away(server: Security, client: Security, host: &str) -> (LinkError, LinkError) {
    let (server, refused) = watched(secured(server));
    let (on_link, count) = never();
    let listening = server.listen(LOOPBACK, on_link).unwrap();
    let port = listening.address().rsplit_once(':').unwrap().1.to_owned();
    let client = grpc(&secured(client));
    let pair = Pair { server, client, address: LOOPBACK };
    let begun = Instant::now();
    let error = pair.connect_to(&format!("{host}:{port}")).err().unwrap();
    let (_, theirs) = refused.recv_timeout(PATIENCE).unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), 0);
    (error, theirs)
}

#[test]
fn each_side_knows_who_the_other_is() {
    let pair = super::mutual_pair(&TransportOptions::new());
    let (near, far, listening) = pair.link();
    assert_eq!(near.link.peer().identity.as_deref(), Some("worker"));
    assert_eq!(near.link.peer().address, listening.address());
    assert_eq!(far.link.peer().identity.as_deref(), Some("coordinator"));
    assert!(far.link.peer().address.starts_with("127.0.0.1:"));
    let pair = super::plaintext_pair(&TransportOptions::new());
    assert_eq!(pair.link().0.link.peer().identity, None);
}

#[test]
fn a_certificate_without_dns_names_is_known_by_its_common_name() {
    let authority = authority();
    let server = authority.issue("127.0.0.1", &[], HOUR).unwrap();
    let server = grpc(&secured(server.security(&authority)));
    let client = grpc(&secured(worker(&authority).security(&authority)));
    let pair = Pair { server, client, address: LOOPBACK };
    assert_eq!(pair.link().0.link.peer().identity.as_deref(), Some("127.0.0.1"));
}

#[test]
fn plaintext_is_for_loopback_alone() {
    let plaintext = grpc(&TransportOptions::new());
    for address in ["0.0.0.0:0", "[::]:0"] {
        let error = plaintext.listen(address, quiet()).err().unwrap();
        assert!(why(&error).contains("not a loopback address"), "{error}");
    }
    let (accept, _events) = super::super::peer::Taker::new();
    let deadline = Instant::now() + PATIENCE;
    let error = plaintext.connect("192.0.2.1:7000", Box::new(accept), deadline).err().unwrap();
    assert!(why(&error).contains("192.0.2.1:7000"), "{error}");
    let insecure = grpc(&secured(Security::Insecure));
    let listening = insecure.listen("0.0.0.0:0", quiet()).unwrap();
    assert!(listening.address().starts_with("0.0.0.0:"));
}

#[test]
fn addresses_that_are_none() {
    let grpc = grpc(&TransportOptions::new());
    for address in ["", "worker", "worker:", "worker:0", "worker:70000", "a b:1", "@:1", "x@y"] {
        let (accept, _events) = super::super::peer::Taker::new();
        let error = grpc.connect(address, Box::new(accept), Instant::now() + PATIENCE).err();
        assert!(matches!(error, Some(LinkError::Address { .. })), "{address:?}: {error:?}");
    }
    assert!(matches!(grpc.listen("worker", quiet()).err(), Some(LinkError::Address { .. })));
    let taken = grpc.listen(LOOPBACK, quiet()).unwrap();
    let error = grpc.listen(&taken.address(), quiet()).err();
    assert!(matches!(error, Some(LinkError::Address { .. })), "{error:?}");
}

/// Authorities as two people make them, and as one person makes them twice.
fn two_authorities() -> [(Authority, Authority); 2] {
    let other = Authority::new("another", HOUR).unwrap();
    [(authority(), other), (authority(), authority())]
}

#[test]
fn a_worker_of_another_authority() {
    for (ours, theirs) in two_authorities() {
        let (here, there) = turned_away(
            worker(&theirs).security(&theirs),
            worker(&ours).security(&ours),
            "127.0.0.1",
        );
        assert!(why(&here).contains("another authority made it"), "{here}");
        assert!(why(&there).contains("does not know the authority"), "{there}");
    }
}

#[test]
fn a_coordinator_of_another_authority() {
    for (ours, theirs) in two_authorities() {
        let stranger = worker(&theirs);
        // It trusts the worker's authority, which does not help it.
        let stranger = Security::Mutual {
            authority: ours.certificate().as_bytes().to_vec(),
            certificate: stranger.certificate().as_bytes().to_vec(),
            key: stranger.key().as_bytes().to_vec(),
        };
        let (here, there) = turned_away(worker(&ours).security(&ours), stranger, "127.0.0.1");
        assert!(why(&here).contains("does not know the authority"), "{here}");
        assert!(why(&there).contains("another authority made it"), "{there}");
    }
}

#[test]
fn certificates_that_are_not_valid_now() {
    let authority = authority();
    let now = SystemTime::now();
    let between = |from, until| {
        authority.issue_between("worker", &["127.0.0.1"], from, until).unwrap().security(&authority)
    };
    let valid = || worker(&authority).security(&authority);
    let expired = between(now - 2 * HOUR, now - HOUR);
    let early = between(now + HOUR, now + 2 * HOUR);

    let (here, there) = turned_away(expired.clone(), valid(), "127.0.0.1");
    assert!(why(&here).contains("the peer's certificate has expired"), "{here}");
    assert!(why(&there).contains("certificate of this side has expired"), "{there}");
    let (here, there) = turned_away(valid(), expired, "127.0.0.1");
    assert!(why(&here).contains("certificate of this side has expired"), "{here}");
    assert!(why(&there).contains("the peer's certificate has expired"), "{there}");
    let (here, _) = turned_away(early.clone(), valid(), "127.0.0.1");
    assert!(why(&here).contains("the peer's certificate is not valid yet"), "{here}");
    let (here, there) = turned_away(valid(), early, "127.0.0.1");
    assert!(why(&here).contains("or is not valid yet"), "{here}");
    assert!(why(&there).contains("the peer's certificate is not valid yet"), "{there}");
}

#[test]
fn a_certificate_for_another_name() {
    let authority = authority();
    let server = authority.issue("worker", &["worker.local"], HOUR).unwrap();
    let client = || worker(&authority).security(&authority);
    let (here, _) = turned_away(server.security(&authority), client(), "127.0.0.1");
    assert!(why(&here).contains("for another name"), "{here}");
    assert!(!why(&here).contains("DnsName"), "{here}");
    assert!(why(&here).contains("not 127.0.0.1") && why(&here).contains("worker.local"), "{here}");
    let (here, _) = turned_away(server.security(&authority), client(), "other@127.0.0.1");
    assert!(why(&here).contains("not other"), "{here}");

    let server = grpc(&secured(server.security(&authority)));
    let pair = Pair { server, client: grpc(&secured(client())), address: LOOPBACK };
    let listening = pair.server.listen(LOOPBACK, quiet()).unwrap();
    let link = pair.connect_to(&format!("worker.local@{}", listening.address())).unwrap();
    assert_eq!(link.link.peer().identity.as_deref(), Some("worker"));
}

#[test]
fn one_side_plaintext() {
    let authority = authority();
    let mutual = || worker(&authority).security(&authority);
    let (here, there) = turned_away(Security::Plaintext, mutual(), "127.0.0.1");
    assert!(why(&here).contains("does not speak TLS"), "{here}");
    assert!(matches!(there, LinkError::Lost { .. }), "{there}");
    let (here, there) = turned_away(mutual(), Security::Plaintext, "127.0.0.1");
    assert!(why(&here).contains("the peer speaks TLS, and this side is plaintext"), "{here}");
    assert!(why(&there).contains("does not speak TLS"), "{there}");
}

#[test]
fn a_peer_without_a_certificate() {
    let authority = authority();
    let (server, refused) = watched(secured(worker(&authority).security(&authority)));
    let (on_link, count) = never();
    let listening = server.listen(LOOPBACK, on_link).unwrap();

    let mut roots = rustls::RootCertStore::empty();
    let pem = authority.certificate().as_bytes();
    for root in rustls_pem(pem) {
        roots.add(root).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = "worker".try_into().unwrap();
    let mut tls = rustls::ClientConnection::new(Arc::new(config), name).unwrap();
    let mut socket = TcpStream::connect(listening.address()).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut stream = rustls::Stream::new(&mut tls, &mut socket);
    let result = stream.write_all(b"PRI").and_then(|()| stream.read_exact(&mut [0; 9]));
    assert!(result.unwrap_err().to_string().contains("CertificateRequired"));
    let (_, error) = refused.recv_timeout(PATIENCE).unwrap();
    assert!(why(&error).contains("shows no certificate"), "{error}");
    assert_eq!(count.load(std::sync::atomic::Ordering::SeqCst), 0);
}

fn rustls_pem(pem: &[u8]) -> Vec<rustls::pki_types::CertificateDer<'static>> {
    use rustls::pki_types::pem::PemObject as _;
    rustls::pki_types::CertificateDer::pem_slice_iter(pem).map(Result::unwrap).collect()
}

#[test]
fn what_is_given_as_certificates_is_checked_at_once() {
    let authority = authority();
    let (one, other) = (worker(&authority), worker(&authority));
    let open = |authority: &str, certificate: &str, key: &str| {
        let security = Security::Mutual {
            authority: authority.into(),
            certificate: certificate.into(),
            key: key.into(),
        };
        (brigade_actors::transport::transport("grpc").unwrap().open)(&secured(security)).err()
    };
    let root = authority.certificate();
    for (error, says) in [
        (open("", one.certificate(), one.key()), "authority"),
        (open(root, "", one.key()), "certificate of this side"),
        (open(root, one.certificate(), ""), "private key"),
        (open(root, one.certificate(), other.key()), "the key is not that of the certificate"),
        (open(&root[..root.len() / 2], one.certificate(), one.key()), "a section of it has no end"),
    ] {
        let error = error.unwrap();
        assert!(why(&error).contains(says), "{error}");
        // No names of types and no lists of bytes.
        assert!(!why(&error).contains("Mismatch") && !why(&error).contains('['), "{error}");
    }
    let missing = Security::MutualFiles {
        authority: "/nowhere/a.pem".into(),
        certificate: "/nowhere/c.pem".into(),
        key: "/nowhere/c.key".into(),
    };
    let open = brigade_actors::transport::transport("grpc").unwrap().open;
    assert!(why(&open(&secured(missing)).err().unwrap()).contains("/nowhere/a.pem"));
}

#[test]
fn certificates_are_read_again_when_their_files_change() {
    let folder = tempfile::tempdir().unwrap();
    let authority = authority();
    authority.write(folder.path()).unwrap();
    let files = |(certificate, key)| Security::MutualFiles {
        authority: folder.path().join(AUTHORITY_FILE),
        certificate,
        key,
    };
    let server = files(worker(&authority).write(folder.path()).unwrap());
    let now = SystemTime::now();
    let old = authority.issue_between("coordinator", &[], now - 2 * HOUR, now - HOUR).unwrap();
    let client = files(old.write(folder.path()).unwrap());
    let pair =
        Pair { server: grpc(&secured(server)), client: grpc(&secured(client)), address: LOOPBACK };
    let (on_link, ends) = taking();
    let listening = pair.server.listen(LOOPBACK, on_link).unwrap();
    let error = pair.connect_to(&listening.address()).err().unwrap();
    assert!(why(&error).contains("expired"), "{error}");

    let renewed = Authority::read(folder.path()).unwrap();
    renewed.issue("coordinator", &[], HOUR).unwrap().write(folder.path()).unwrap();
    pair.connect_to(&listening.address()).unwrap();
    let far = ends.recv_timeout(PATIENCE).unwrap();
    assert_eq!(far.link.peer().identity.as_deref(), Some("coordinator"));
}

#[test]
fn an_authority_is_written_once_and_read() {
    let folder = tempfile::tempdir().unwrap();
    let authority = authority();
    authority.write(folder.path()).unwrap();
    let error = authority.write(folder.path()).unwrap_err();
    assert!(error.to_string().contains(AUTHORITY_KEY_FILE), "{error}");
    let (_, key) = worker(&authority).write(folder.path()).unwrap();
    #[cfg(unix)]
    for path in [key, folder.path().join(AUTHORITY_KEY_FILE)] {
        use std::os::unix::fs::PermissionsExt as _;
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{}", path.display());
    }
    // Written again, as at a renewal.
    worker(&authority).write(folder.path()).unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
    assert_eq!(Authority::read(folder.path()).unwrap().certificate(), authority.certificate());
    for name in ["../worker", "a/b", ".hidden"] {
        let issued = authority.issue(name, &[], HOUR);
        let written = issued.and_then(|issued| issued.write(folder.path()));
        assert!(written.is_err(), "{name}");
    }

    let other = Authority::new("test", HOUR).unwrap();
    fs::write(folder.path().join(AUTHORITY_FILE), other.certificate()).unwrap();
    let error = Authority::read(folder.path()).unwrap_err();
    assert!(matches!(error, AuthorityError::Certificate { .. }), "{error}");
    fs::write(folder.path().join(AUTHORITY_FILE), "no certificate").unwrap();
    assert!(Authority::read(folder.path()).unwrap_err().to_string().contains("PEM"));
    fs::remove_file(folder.path().join(AUTHORITY_FILE)).unwrap();
    assert!(matches!(Authority::read(folder.path()), Err(AuthorityError::File { .. })));
}
