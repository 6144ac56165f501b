//! Who a certificate is for.

use tokio_rustls::rustls::pki_types::CertificateDer;

/// The name in a verified certificate: its first DNS name, else the common name of its subject.
pub(crate) fn identity(chain: Option<&[CertificateDer<'_>]>) -> Option<String> {
    let first = chain?.first()?;
    let parsed = webpki::EndEntityCert::try_from(first).ok()?;
    let dns = parsed.valid_dns_names().next().map(str::to_owned);
    dns.or_else(|| common_name(first))
}

/// The last common name in the subject of a certificate.
pub(crate) fn common_name(certificate: &[u8]) -> Option<String> {
    const SEQUENCE: u8 = 0x30;
    const SET: u8 = 0x31;
    const OID: u8 = 0x06;
    const COMMON_NAME: [u8; 3] = [0x55, 0x04, 0x03];
    let (mut outer, _) = element(certificate, SEQUENCE)?;
    let (mut inner, _) = element(std::mem::take(&mut outer), SEQUENCE)?;
    if inner.first() == Some(&0xa0) {
        inner = element(inner, 0xa0)?.1;
    }
    // Serial number, algorithm, issuer, validity.
    for tag in [0x02, SEQUENCE, SEQUENCE, SEQUENCE] {
        inner = element(inner, tag)?.1;
    }
    let (mut subject, _) = element(inner, SEQUENCE)?;
    let mut name = None;
    while !subject.is_empty() {
        let (set, rest) = element(subject, SET)?;
        subject = rest;
        let (attribute, _) = element(set, SEQUENCE)?;
        let (oid, value) = element(attribute, OID)?;
        if oid == COMMON_NAME {
            let text = element(value, *value.first()?)?.0;
            name = Some(std::str::from_utf8(text).ok()?.to_owned());
        }
    }
    name
}

/// The content of the DER element of this tag at the beginning of `bytes`, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (first, rest) = bytes.split_first()?;
    if *first != tag {
        return None;
    }
    let (length, rest) = rest.split_first()?;
    let (length, rest) = match *length {
        short @ 0..=0x7f => (usize::from(short), rest),
        0x81 => {
            let (length, rest) = rest.split_first()?;
            (usize::from(*length), rest)
        }
        0x82 => {
            let (length, rest) = rest.split_first_chunk::<2>()?;
            (usize::from(u16::from_be_bytes(*length)), rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}
