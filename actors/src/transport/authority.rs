//! A private certificate authority, for links whose two sides know each other by certificate.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};

use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, UnixTime};

use super::certificate::common_name;
use super::security::Security;

/// The file of the authority's certificate, which every process of a cluster needs.
pub const AUTHORITY_FILE: &str = "authority.pem";

/// The file of the authority's private key. Whoever has it can make certificates.
pub const AUTHORITY_KEY_FILE: &str = "authority.key";

/// Why certificates could not be made, written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// A file could not be read or written.
    #[error("{}: {why}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system says.
        why: io::Error,
    },
    /// A certificate or a key is not what it should be.
    #[error("{what}: {why}")]
    Certificate {
        /// Which.
        what: String,
        /// What is wrong.
        why: String,
    },
}

fn certificate(what: &str) -> impl Fn(rcgen::Error) -> AuthorityError {
    let what = what.to_owned();
    move |error| AuthorityError::Certificate { what: what.clone(), why: error.to_string() }
}

/// A private certificate authority: makes the certificates of a cluster's processes.
///
/// ```
/// use std::time::Duration;
///
/// use brigade_actors::transport::authority::Authority;
/// use brigade_actors::transport::{TransportOptions, transport};
///
/// let year = Duration::from_secs(365 * 24 * 3600);
/// let authority = Authority::new("my cluster", year)?;
/// let worker = authority.issue("worker-0", &["worker-0.cluster.local", "127.0.0.1"], year)?;
/// let options = TransportOptions::new().security(worker.security(&authority));
/// let grpc = (transport("grpc").ok_or("not built")?.open)(&options)?;
/// # drop(grpc);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Authority {
    certificate: String,
    issuer: Issuer<'static, KeyPair>,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority").finish_non_exhaustive()
    }
}

/// When a certificate is valid: from five minutes ago, since clocks differ, until then.
fn validity(params: &mut CertificateParams, not_before: SystemTime, not_after: SystemTime) {
    params.not_before = not_before.into();
    params.not_after = not_after.into();
}

/// How far the clocks of a cluster may differ.
const SKEW: Duration = Duration::from_secs(300);

fn from_now(validity: Duration) -> (SystemTime, SystemTime) {
    let now = SystemTime::now();
    // Further than a century is as good as a century, and can be written down.
    let validity = validity.min(Duration::from_secs(100 * 365 * 24 * 3600));
    (now - SKEW, now + validity)
}

/// What an authority's certificate says, but for its validity.
fn authority(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = named(name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

fn named(name: &str) -> DistinguishedName {
    let mut subject = DistinguishedName::new();
    subject.push(DnType::CommonName, name);
    subject
}

impl Authority {
    /// A new authority of this name, with a key of its own (ECDSA on P-256), valid from now on.
    ///
    /// # Errors
    ///
    /// [`AuthorityError::Certificate`] if the name cannot stand in a certificate.
    pub fn new(name: &str, validity_of: Duration) -> Result<Self, AuthorityError> {
        let what = certificate("the authority");
        let key = KeyPair::generate().map_err(&what)?;
        let mut params = authority(name);
        let (from, until) = from_now(validity_of);
        validity(&mut params, from, until);
        let made = params.self_signed(&key).map_err(&what)?;
        Ok(Self { certificate: made.pem(), issuer: Issuer::new(params, key) })
    }

    /// The authority whose files are in this folder.
    ///
    /// # Errors
    ///
    /// [`AuthorityError::File`] if a file cannot be read, [`AuthorityError::Certificate`] if it is no
    /// authority.
    pub fn read(folder: &Path) -> Result<Self, AuthorityError> {
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).map_err(|why| AuthorityError::File { path, why })
        };
        let (pem, key) = (read(AUTHORITY_FILE)?, read(AUTHORITY_KEY_FILE)?);
        let key = KeyPair::from_pem(&key).map_err(certificate(AUTHORITY_KEY_FILE))?;
        let not_one = |why: String| AuthorityError::Certificate {
            what: folder.join(AUTHORITY_FILE).display().to_string(),
            why,
        };
        let der = CertificateDer::from_pem_slice(pem.as_bytes())
            .map_err(|error| not_one(format!("no PEM of a certificate: {error}")))?;
        let name = common_name(&der)
            .ok_or_else(|| not_one("it was not made by an authority of this kind".to_owned()))?;
        let read = Self { certificate: pem, issuer: Issuer::new(authority(&name), key) };
        read.check(&der).map_err(|why| {
            not_one(format!("what is made with {AUTHORITY_KEY_FILE} does not belong to it: {why}"))
        })?;
        Ok(read)
    }

    /// Whether certificates that are made here are those of this authority.
    fn check(&self, authority: &CertificateDer<'_>) -> Result<(), String> {
        let minute = Duration::from_secs(60);
        let made = self.issue("check", &[], minute).map_err(|error| error.to_string())?;
        let made = CertificateDer::from_pem_slice(made.certificate.as_bytes())
            .map_err(|error| error.to_string())?;
        let anchor =
            webpki::anchor_from_trusted_cert(authority).map_err(|error| error.to_string())?;
        webpki::EndEntityCert::try_from(&made)
            .and_then(|made| {
                made.verify_for_usage(
                    webpki::ALL_VERIFICATION_ALGS,
                    &[anchor],
                    &[],
                    UnixTime::now(),
                    webpki::KeyUsage::server_auth(),
                    None,
                    None,
                )
                .map(drop)
            })
            .map_err(|error| error.to_string())
    }

    /// Writes the authority into this folder: [`AUTHORITY_FILE`], and [`AUTHORITY_KEY_FILE`] which
    /// its owner alone may read. Never overwrites: whatever an authority has made is worth nothing
    /// without it.
    ///
    /// # Errors
    ///
    /// [`AuthorityError::File`].
    pub fn write(&self, folder: &Path) -> Result<(), AuthorityError> {
        create(&folder.join(AUTHORITY_KEY_FILE), &self.issuer.key().serialize_pem(), true)?;
        create(&folder.join(AUTHORITY_FILE), &self.certificate, false)
    }

    /// The certificate of the authority, PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// A certificate for a process, valid from now on: it may listen and connect. Its `name` is what
    /// peers know the process by, and stands first among the names that it can be dialled by;
    /// `others` are DNS names and IP addresses.
    ///
    /// # Errors
    ///
    /// [`AuthorityError::Certificate`] if a name cannot stand in a certificate.
    pub fn issue(
        &self,
        name: &str,
        others: &[&str],
        validity_of: Duration,
    ) -> Result<Issued, AuthorityError> {
        let (from, until) = from_now(validity_of);
        self.issue_between(name, others, from, until)
    }

    /// As [`issue`](Self::issue), valid between two points in time.
    ///
    /// # Errors
    ///
    /// As [`issue`](Self::issue).
    pub fn issue_between(
        &self,
        name: &str,
        others: &[&str],
        not_before: SystemTime,
        not_after: SystemTime,
    ) -> Result<Issued, AuthorityError> {
        let what = certificate(name);
        let key = KeyPair::generate().map_err(&what)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = named(name);
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        for name in std::iter::once(&name).chain(others) {
            params.subject_alt_names.push(match name.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => {
                    SanType::DnsName((*name).to_owned().try_into().map_err(certificate(name))?)
                }
            });
        }
        validity(&mut params, not_before, not_after);
        let made = params.signed_by(&key, &self.issuer).map_err(&what)?;
        Ok(Issued { name: name.to_owned(), certificate: made.pem(), key: key.serialize_pem() })
    }
}

/// A certificate that an [`Authority`] has made, and its private key.
#[derive(Clone)]
pub struct Issued {
    name: String,
    certificate: String,
    key: String,
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Issued {
    /// The certificate, PEM.
    #[must_use]
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// The private key, PEM.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// What a transport is told, to show this certificate and to take those of the authority.
    #[must_use]
    pub fn security(&self, authority: &Authority) -> Security {
        Security::Mutual {
            authority: authority.certificate.clone().into_bytes(),
            certificate: self.certificate.clone().into_bytes(),
            key: self.key.clone().into_bytes(),
        }
    }

    /// Writes `<name>.pem` and `<name>.key`, which its owner alone may read, into this folder, and
    /// gives their paths. Files of those names are replaced, each at once: who reads them while this
    /// runs sees the old or the new.
    ///
    /// # Errors
    ///
    /// [`AuthorityError::File`].
    pub fn write(&self, folder: &Path) -> Result<(PathBuf, PathBuf), AuthorityError> {
        // A name can hold what means something to a file system.
        if self.name.contains(['/', '\\']) || self.name.starts_with('.') {
            return Err(AuthorityError::Certificate {
                what: self.name.clone(),
                why: "this name cannot be that of a file".to_owned(),
            });
        }
        let [pem, key] = ["pem", "key"].map(|end| folder.join(format!("{}.{end}", self.name)));
        replace(&key, &self.key, true)?;
        replace(&pem, &self.certificate, false)?;
        Ok((pem, key))
    }
}

fn create(path: &Path, text: &str, secret: bool) -> Result<(), AuthorityError> {
    let write = || {
        let mut options = OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        {
            use std::os::unix::fs::OpenOptionsExt as _;
            options.mode(if secret { 0o600 } else { 0o644 });
        }
        let mut file = options.open(path)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()
    };
    write().map_err(|why| AuthorityError::File { path: path.to_owned(), why })
}

fn replace(path: &Path, text: &str, secret: bool) -> Result<(), AuthorityError> {
    let mut name = path.file_name().unwrap_or_default().to_owned();
    name.push(format!(".{}.new", std::process::id()));
    let new = path.with_file_name(name);
    create(&new, text, secret)?;
    fs::rename(&new, path).map_err(|why| {
        // What was not put in its place is of no use.
        let _ = fs::remove_file(&new);
        AuthorityError::File { path: path.to_owned(), why }
    })
}
