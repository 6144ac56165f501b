//! How the two sides of a link prove who they are.

use std::fmt;
use std::path::PathBuf;

/// How the two sides of a link prove who they are, and whether others can read along.
///
/// Keys are never printed.
#[derive(Clone, Default)]
#[non_exhaustive]
pub enum Security {
    /// No encryption and no proof; loopback addresses alone are taken.
    #[default]
    Plaintext,
    /// No encryption and no proof, at any address: whoever reaches the port is let in, and whoever is
    /// on the way reads along.
    Insecure,
    /// TLS 1.3; each side shows a certificate of the same authority.
    Mutual {
        /// The certificates of the authority, PEM.
        authority: Vec<u8>,
        /// The certificate of this side, and those between it and the authority, PEM.
        certificate: Vec<u8>,
        /// The private key of that certificate, PEM.
        key: Vec<u8>,
    },
    /// As [`Mutual`](Security::Mutual), from files, which are read again when they change: links that
    /// are made from then on use what they say.
    MutualFiles {
        /// The certificates of the authority, a PEM file.
        authority: PathBuf,
        /// The certificate of this side, a PEM file.
        certificate: PathBuf,
        /// The private key of that certificate, a PEM file.
        key: PathBuf,
    },
}

impl fmt::Debug for Security {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plaintext => f.write_str("Plaintext"),
            Self::Insecure => f.write_str("Insecure"),
            Self::Mutual { .. } => f.debug_struct("Mutual").finish_non_exhaustive(),
            Self::MutualFiles { authority, certificate, key } => f
                .debug_struct("MutualFiles")
                .field("authority", authority)
                .field("certificate", certificate)
                .field("key", key)
                .finish(),
        }
    }
}
