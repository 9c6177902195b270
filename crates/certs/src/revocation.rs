//! Certificate revocation lists (RFC 5280 section 5), as CAs publish them in PEM or DER files.
//!
//! Signatures are not checked here: a TLS handshake does that, with the CA's key.

use std::fs;
use std::path::Path;

use ring::digest;
use rustls_pki_types::pem::{self, PemObject as _};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer};
use x509_parser::prelude::{CertificateRevocationList, FromDer, X509Certificate};

use crate::CertError;

/// The first byte of a list in DER (X.690, section 8.9).
const SEQUENCE: u8 = 0x30;

/// A certificate by its issuer and serial number, which are unique: the first bytes of their SHA-256.
#[derive(Clone, Copy, Debug, Hash, PartialEq, Eq, PartialOrd, Ord)]
pub struct CertificateId(pub u64);

impl CertificateId {
    fn new(issuer: &[u8], serial: &[u8]) -> CertificateId {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(&(issuer.len() as u64).to_be_bytes());
        context.update(issuer);
        // DER writes a zero byte before a number whose first bit is set; it is not part of the number.
        context.update(without_leading_zeros(serial));
        let digest = context.finish();
        let first = digest.as_ref().first_chunk().copied().unwrap_or_default();
        CertificateId(u64::from_be_bytes(first))
    }

    /// The certificate's identifier; `None` if it cannot be parsed.
    pub fn from_certificate(certificate: &CertificateDer<'_>) -> Option<CertificateId> {
        let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
        Some(CertificateId::new(parsed.issuer().as_raw(), parsed.raw_serial()))
    }
}

/// A number's bytes without those that do not change it.
fn without_leading_zeros(number: &[u8]) -> &[u8] {
    let zeros = number.iter().take_while(|byte| **byte == 0).count();
    &number[zeros..]
}

/// One list.
#[derive(Clone, Debug)]
pub struct RevocationList {
    /// The list as the CA has signed it, in DER.
    pub der: CertificateRevocationListDer<'static>,
    /// The certificates that it revokes.
    pub revoked: Vec<CertificateId>,
    /// When the CA publishes the next list at the latest, in seconds since the Unix epoch.
    pub next_update: Option<i64>,
}

/// Reads the lists of a file: one in DER, or any number in PEM.
///
/// # Errors
/// The file cannot be read, or contains anything but complete lists.
pub fn read_revocation_lists(path: &Path) -> Result<Vec<RevocationList>, CertError> {
    let bytes =
        fs::read(path).map_err(|source| CertError::File { path: path.to_owned(), source })?;
    parse_revocation_lists(path, bytes)
}

/// The lists in the contents of a file; errors name its path.
///
/// # Errors
/// They are anything but complete lists.
pub fn parse_revocation_lists(
    path: &Path,
    bytes: Vec<u8>,
) -> Result<Vec<RevocationList>, CertError> {
    // PEM is text.
    let lists = if bytes.first() == Some(&SEQUENCE) {
        vec![CertificateRevocationListDer::from(bytes)]
    } else {
        let found: Result<Vec<_>, pem::Error> =
            CertificateRevocationListDer::pem_slice_iter(&bytes).collect();
        found.map_err(|source| CertError::Malformed { path: path.to_owned(), source })?
    };
    if lists.is_empty() {
        return Err(CertError::Missing {
            path: path.to_owned(),
            wanted: "revocation list (X509 CRL)",
        });
    }
    let parsed: Option<Vec<_>> = lists.into_iter().map(parse).collect();
    parsed.ok_or_else(|| CertError::RevocationList(path.to_owned()))
}

fn parse(der: CertificateRevocationListDer<'static>) -> Option<RevocationList> {
    // The parser does not look at all bits of the tag.
    if der.first() != Some(&SEQUENCE) {
        return None;
    }
    let (rest, list) = CertificateRevocationList::from_der(&der).ok()?;
    if !rest.is_empty() {
        return None;
    }
    let issuer = list.issuer().as_raw();
    let revoked = list.iter_revoked_certificates();
    let revoked = revoked.map(|one| CertificateId::new(issuer, one.raw_serial())).collect();
    let next_update = list.next_update().map(|time| time.timestamp());
    Some(RevocationList { revoked, next_update, der })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use rcgen::{
        BasicConstraints, CertificateParams, CertificateRevocationListParams, IsCa, Issuer,
        KeyIdMethod, KeyPair, RevokedCertParams, SerialNumber, date_time_ymd,
    };

    /// A certificate with a serial number, and the text of a list that revokes another one.
    fn issued(serial: &[u8], revoked: &[u8]) -> (CertificateDer<'static>, String, Vec<u8>) {
        let key = KeyPair::generate().unwrap();
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = Issuer::from_params(&ca, &key);
        let mut leaf = CertificateParams::default();
        leaf.serial_number = Some(SerialNumber::from_slice(serial));
        let leaf = leaf.signed_by(&KeyPair::generate().unwrap(), &issuer).unwrap();
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2026, 1, 1),
            next_update: date_time_ymd(2026, 2, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: vec![RevokedCertParams {
                serial_number: SerialNumber::from_slice(revoked),
                revocation_time: date_time_ymd(2026, 1, 1),
                reason_code: None,
                invalidity_date: None,
            }],
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = list.signed_by(&issuer).unwrap();
        (leaf.der().clone(), list.pem().unwrap(), list.der().to_vec())
    }

    #[test]
    fn a_list_names_the_certificates_that_it_revokes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("crl");
        // The second has its first bit set.
        for serial in [&[7, 1][..], &[0xC0, 1, 2]] {
            let (leaf, pem, der) = issued(serial, serial);
            let (_, other, _) = issued(serial, &[7, 2]);
            let id = CertificateId::from_certificate(&leaf).unwrap();
            for contents in [pem.clone().into_bytes(), der, (other.clone() + &pem).into_bytes()] {
                fs::write(&path, contents).unwrap();
                let lists = read_revocation_lists(&path).unwrap();
                let list = lists.last().unwrap();
                assert_eq!(list.revoked, [id]);
                assert_eq!(list.next_update, Some(1_769_904_000));
            }
            fs::write(&path, other).unwrap();
            let lists = read_revocation_lists(&path).unwrap();
            assert!(!lists[0].revoked.contains(&id), "another CA, and another number");
        }
    }

    #[test]
    fn half_a_list_is_an_error_that_names_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("crl");
        let (_, pem, der) = issued(&[1], &[2]);
        let half = |bytes: &[u8]| bytes[..bytes.len() / 2].to_vec();
        let longer = [&der[..], b"x"].concat();
        for contents in [half(pem.as_bytes()), half(&der), longer, Vec::new(), b"none".to_vec()] {
            fs::write(&path, contents).unwrap();
            let error = read_revocation_lists(&path).unwrap_err().to_string();
            assert!(error.contains(path.to_str().unwrap()), "{error}");
        }
    }
}
