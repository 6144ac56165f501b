//! TLS of links: configurations from PEM, who the peer is, and what went wrong in words.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::{Error as PemError, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    AlertDescription, CertificateError, ClientConfig, Error, InconsistentKeys, RootCertStore,
    ServerConfig,
};

use super::super::error::LinkError;
use super::super::security::Security;
use crate::sync::{Arc, Mutex, lock};

/// What both roles of a process need.
#[derive(Clone, Debug)]
pub(super) struct Configs {
    pub(super) server: Arc<ServerConfig>,
    pub(super) client: Arc<ClientConfig>,
}

/// Where the configurations come from.
#[derive(Debug)]
pub(super) struct Tls {
    security: Security,
    current: Mutex<(Stamp, Configs)>,
}

/// What of files changes when their content does.
type Stamp = Vec<Option<(SystemTime, u64)>>;

fn security<T>(why: impl Into<String>) -> Result<T, LinkError> {
    Err(LinkError::Security { why: why.into() })
}

impl Tls {
    /// `None` where links are not encrypted.
    pub(super) fn new(security: &Security) -> Result<Option<Self>, LinkError> {
        let stamp = stamp(security);
        Ok(load(security)?.map(|configs| Self {
            security: security.clone(),
            current: Mutex::new((stamp, configs)),
        }))
    }

    /// The configurations as the files are now.
    pub(super) fn current(&self) -> Result<Configs, LinkError> {
        let mut current = lock(&self.current);
        let now = stamp(&self.security);
        if now != current.0
            && let Some(configs) = load(&self.security)?
        {
            *current = (now, configs);
        }
        Ok(current.1.clone())
    }

    /// As [`current`](Self::current); where the files cannot be used, as they were, with the reason.
    pub(super) fn current_or_last(&self) -> (Configs, Option<LinkError>) {
        match self.current() {
            Ok(configs) => (configs, None),
            Err(why) => (lock(&self.current).1.clone(), Some(why)),
        }
    }
}

fn stamp(security: &Security) -> Stamp {
    let Security::MutualFiles { authority, certificate, key } = security else {
        return Vec::new();
    };
    [authority, certificate, key]
        .map(|path| {
            let metadata = std::fs::metadata(path).ok()?;
            Some((metadata.modified().ok()?, metadata.len()))
        })
        .to_vec()
}

fn load(from: &Security) -> Result<Option<Configs>, LinkError> {
    match from {
        Security::Plaintext | Security::Insecure => Ok(None),
        Security::Mutual { authority, certificate, key } => {
            configs(&[authority, certificate, key].map(|pem| (pem.as_slice(), None))).map(Some)
        }
        Security::MutualFiles { authority, certificate, key } => {
            let paths = [authority, certificate, key];
            let [a, c, k] = paths.map(|path| read(path));
            let pems = [a?, c?, k?];
            let given: [_; 3] = std::array::from_fn(|n| (&*pems[n], Some(paths[n].as_path())));
            configs(&given).map(Some)
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, LinkError> {
    std::fs::read(path).or_else(|error| security(format!("{}: {error}", path.display())))
}

/// PEM, and the file that it comes from, if it does from one.
type Given<'a> = (&'a [u8], Option<&'a Path>);

/// What was given as this, with its file.
fn named(what: &str, file: Option<&Path>) -> String {
    file.map_or_else(|| what.to_owned(), |file| format!("{what} ({})", file.display()))
}

fn certificates(
    (pem, file): Given<'_>,
    what: &str,
) -> Result<Vec<CertificateDer<'static>>, LinkError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let what = named(what, file);
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => security(format!("there is no certificate in what is given as {what}")),
        Err(error) => security(format!("what is given as {what} is no PEM: {}", pem_words(&error))),
    }
}

fn configs(&[authority, certificate, key]: &[Given<'_>; 3]) -> Result<Configs, LinkError> {
    let chain = certificates(certificate, "the certificate of this side")?;
    let own_key = named("the private key of this side", key.1);
    let key = PrivateKeyDer::from_pem_slice(key.0)
        .or_else(|error| security(format!("{own_key} cannot be read: {}", pem_words(&error))))?;
    let whose = "the certificate of the authority";
    let mut roots = RootCertStore::empty();
    for root in certificates(authority, whose)? {
        let told =
            |e: &Error| format!("{} cannot be used: {}", named(whose, authority.1), words(e));
        roots.add(root).or_else(|error| security(told(&error)))?;
    }
    let roots = Arc::new(roots);
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let unusable = |what: &str, error: &Error| LinkError::Security {
        why: format!("{what} cannot be used: {}", words(error)),
    };
    let pair = format!("{} with {own_key}", named("the certificate of this side", certificate.1));
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|error| LinkError::Security {
                why: format!("{whose} cannot be used: {error}"),
            })?;
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| unusable("TLS 1.3", &error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key.clone_key())
        .map_err(|error| unusable(&pair, &error))?;
    server.alpn_protocols = vec![b"h2".to_vec()];
    // Whoever connects proves who it is, each time: a certificate that has expired since then, or an
    // authority that was replaced, counts at once.
    server.send_tls13_tickets = 0;
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| unusable("TLS 1.3", &error))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|error| unusable(&pair, &error))?;
    client.alpn_protocols = vec![b"h2".to_vec()];
    client.resumption = Resumption::disabled();
    Ok(Configs { server: Arc::new(server), client: Arc::new(client) })
}

/// What an error of a connection says about its security, if that is what it is about.
pub(super) fn explain(error: &io::Error) -> Option<LinkError> {
    let error = error.get_ref()?.downcast_ref::<Error>()?;
    Some(LinkError::Security { why: words(error) })
}

fn words(error: &Error) -> String {
    match error {
        Error::InvalidCertificate(error) => {
            format!("the peer's certificate {}", certificate_words(error))
        }
        Error::NoCertificatesPresented => "the peer shows no certificate".to_owned(),
        Error::InvalidMessage(_) => {
            "the peer does not speak TLS; is one side plaintext?".to_owned()
        }
        Error::PeerIncompatible(why) => {
            format!("the peer's TLS does not fit, which is 1.3 here: {}", spelled(why))
        }
        Error::PeerMisbehaved(why) => {
            format!("the peer does not keep to the rules of TLS: {}", spelled(why))
        }
        Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
            "the key is not that of the certificate".to_owned()
        }
        Error::InconsistentKeys(why) => {
            format!("the key is perhaps not that of the certificate: {}", spelled(why))
        }
        Error::AlertReceived(alert) => match alert {
            AlertDescription::UnknownCA => {
                "the peer does not know the authority of the certificate of this side".to_owned()
            }
            // A signature that does not fit: an authority of this name, with another key.
            AlertDescription::DecryptError => {
                "the peer does not know the authority of the certificate of this side, but another of \
                 the same name"
                    .to_owned()
            }
            AlertDescription::CertificateExpired => {
                "to the peer the certificate of this side has expired, or is not valid yet"
                    .to_owned()
            }
            AlertDescription::CertificateRequired => {
                "the peer wants a certificate, and this side shows none".to_owned()
            }
            AlertDescription::BadCertificate
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::AccessDenied => {
                format!("the peer does not accept the certificate of this side: {}", spelled(alert))
            }
            other => format!("the peer ended the handshake of TLS: {}", spelled(other)),
        },
        Error::General(why) => why.clone(),
        Error::Other(why) => why.to_string(),
        other => spelled(other),
    }
}

fn certificate_words(error: &CertificateError) -> String {
    match error {
        CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
            "has expired; is the clock right?".to_owned()
        }
        CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
            "is not valid yet; is the clock right?".to_owned()
        }
        CertificateError::UnknownIssuer | CertificateError::BadSignature => {
            "is unknown: another authority made it".to_owned()
        }
        CertificateError::NotValidForName => "is for another name".to_owned(),
        CertificateError::NotValidForNameContext { expected, presented } => {
            // As rustls spells names: `DnsName("worker-1")`.
            let bare = |name: &String| name.split('"').nth(1).unwrap_or(name).to_owned();
            let presented: Vec<String> = presented.iter().map(bare).collect();
            format!("is for another name: {}, not {}", presented.join(", "), expected.to_str())
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "is for another purpose".to_owned()
        }
        CertificateError::BadEncoding => "cannot be read: its encoding is wrong".to_owned(),
        CertificateError::Revoked => "was revoked".to_owned(),
        CertificateError::Other(why) => format!("is not accepted: {why}"),
        other => format!("is not accepted: {}", spelled(other)),
    }
}

/// The words of an error that is only a name, such as `BadRecordMac`: "bad record mac".
fn spelled(error: &dyn std::fmt::Debug) -> String {
    let name = format!("{error:?}");
    let name: Vec<char> = name.chars().take_while(char::is_ascii_alphanumeric).collect();
    let mut words = String::new();
    for (at, c) in name.iter().enumerate() {
        let before = at.checked_sub(1).map(|before| name[before]);
        let after = name.get(at + 1);
        let begins = c.is_ascii_uppercase()
            && before.is_some_and(|b| {
                !b.is_ascii_uppercase() || after.is_some_and(|a| a.is_ascii_lowercase())
            });
        if begins {
            words.push(' ');
        }
        let acronym = c.is_ascii_uppercase()
            && (before.is_some_and(|b| b.is_ascii_uppercase())
                || after.is_some_and(|a| a.is_ascii_uppercase()));
        words.push(if acronym { *c } else { c.to_ascii_lowercase() });
    }
    words
}

fn pem_words(error: &PemError) -> String {
    match error {
        PemError::MissingSectionEnd { .. } => "a section of it has no end".to_owned(),
        PemError::IllegalSectionStart { .. } => {
            "a section of it does not begin as it must".to_owned()
        }
        PemError::NoItemsFound => "nothing of that kind is in it".to_owned(),
        PemError::SectionTooLarge => "a section of it is too large".to_owned(),
        PemError::Base64Decode(_) => "it is no base64".to_owned(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio_rustls::rustls::{PeerIncompatible, PeerMisbehaved};

    #[test]
    fn what_went_wrong_is_told_in_words() {
        for (error, says) in [
            (
                Error::AlertReceived(AlertDescription::CertificateUnknown),
                "the peer does not accept the certificate of this side: certificate unknown",
            ),
            (
                Error::AlertReceived(AlertDescription::BadRecordMac),
                "the peer ended the handshake of TLS: bad record mac",
            ),
            (
                Error::PeerIncompatible(PeerIncompatible::NoCipherSuitesInCommon),
                "the peer's TLS does not fit, which is 1.3 here: no cipher suites in common",
            ),
            (
                Error::PeerMisbehaved(PeerMisbehaved::UnsolicitedServerHelloExtension),
                "the peer does not keep to the rules of TLS: unsolicited server hello extension",
            ),
            (
                Error::InvalidCertificate(CertificateError::BadEncoding),
                "the peer's certificate cannot be read: its encoding is wrong",
            ),
            (
                Error::InvalidCertificate(CertificateError::UnknownRevocationStatus),
                "the peer's certificate is not accepted: unknown revocation status",
            ),
            (
                Error::InconsistentKeys(InconsistentKeys::KeyMismatch),
                "the key is not that of the certificate",
            ),
            (Error::FailedToGetCurrentTime, "failed to get current time"),
        ] {
            assert_eq!(words(&error), says);
        }
        assert_eq!(spelled(&AlertDescription::UnknownCA), "unknown CA");
        let cut = PemError::MissingSectionEnd { end_marker: b"-----END".to_vec() };
        assert_eq!(pem_words(&cut), "a section of it has no end");
    }
}
