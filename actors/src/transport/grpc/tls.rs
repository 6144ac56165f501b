//! TLS of links: configurations from PEM, who the peer is, and what went wrong in words.

use std::io;
use std::path::Path;
use std::time::SystemTime;

use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::version::TLS13;
use tokio_rustls::rustls::{
    AlertDescription, CertificateError, ClientConfig, Error, RootCertStore, ServerConfig,
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
            configs(authority, certificate, key).map(Some)
        }
        Security::MutualFiles { authority, certificate, key } => {
            let [authority, certificate, key] = [read(authority)?, read(certificate)?, read(key)?];
            configs(&authority, &certificate, &key).map(Some)
        }
    }
}

fn read(path: &Path) -> Result<Vec<u8>, LinkError> {
    std::fs::read(path).or_else(|error| security(format!("{}: {error}", path.display())))
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, LinkError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => security(format!("there is no certificate in what is given as {what}")),
        Err(error) => security(format!("what is given as {what} is no PEM: {error}")),
    }
}

fn configs(authority: &[u8], certificate: &[u8], key: &[u8]) -> Result<Configs, LinkError> {
    let chain = certificates(certificate, "the certificate of this side")?;
    let key = PrivateKeyDer::from_pem_slice(key)
        .or_else(|error| security(format!("the private key cannot be read: {error}")))?;
    let mut roots = RootCertStore::empty();
    for root in certificates(authority, "the certificate of the authority")? {
        roots
            .add(root)
            .or_else(|error| security(format!("the authority's certificate: {error}")))?;
    }
    let roots = Arc::new(roots);
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let unusable = |what: &str, error: &dyn std::fmt::Display| LinkError::Security {
        why: format!("{what} cannot be used: {error}"),
    };
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(&roots), Arc::clone(&provider))
            .build()
            .map_err(|error| unusable("the authority", &error))?;
    let mut server = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| unusable("TLS 1.3", &error))?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain.clone(), key.clone_key())
        .map_err(|error| unusable("the certificate with this key", &error))?;
    server.alpn_protocols = vec![b"h2".to_vec()];
    // Whoever connects proves who it is, each time: a certificate that has expired since then, or an
    // authority that was replaced, counts at once.
    server.send_tls13_tickets = 0;
    let mut client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])
        .map_err(|error| unusable("TLS 1.3", &error))?
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|error| unusable("the certificate with this key", &error))?;
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
        Error::PeerIncompatible(error) => {
            format!("the peer's TLS does not fit, which is 1.3 here: {error:?}")
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
                format!("the peer does not accept the certificate of this side: {alert:?}")
            }
            other => format!("the peer ended the handshake of TLS: {other:?}"),
        },
        other => other.to_string(),
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
            format!("is for another name: {}, not {}", presented.join(", "), expected.to_str())
        }
        CertificateError::InvalidPurpose | CertificateError::InvalidPurposeContext { .. } => {
            "is for another purpose".to_owned()
        }
        other => format!("is not accepted: {other}"),
    }
}
