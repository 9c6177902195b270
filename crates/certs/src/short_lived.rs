//! Short-lived certificates for WebTransport, which browsers trust by their hash.
//!
//! A page may specify SHA-256 hashes of certificates that it accepts from a server whose CA its browser does not trust
//! (`serverCertificateHashes`, W3C WebTransport, section 6.6). Browsers accept only certificates with an ECDSA key on
//! P-256 that are valid for at most 14 days. There are therefore always two: the certificate in use and its successor,
//! whose hash is published at the same time, so that a page that has read both can be offline during the change. They
//! are self-signed and name no host; only their hash is trusted.
//!
//! This module keeps the files; the caller uses the certificates in TLS, and calls again when they are due to change.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose};
use ring::digest::{SHA256, digest};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};

use crate::authority::{begin_of, belongs, end_of};
use crate::{CertError, files};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Time for which each certificate is in use.
const PERIOD: Duration = Duration::from_secs(10 * 24 * 3600);

/// Validity before and after the time of use, for clients whose clocks are wrong, and for a server that was off when
/// the certificate should have changed. With [`PERIOD`] that makes 13 days, a day less than browsers accept.
const BEFORE: Duration = DAY;
const AFTER: Duration = Duration::from_secs(2 * 24 * 3600);

/// Files, each with a certificate and its key.
const CURRENT: &str = "current.pem";
const NEXT: &str = "next.pem";

/// The certificate in use and its successor, kept in a folder.
#[derive(Debug)]
pub struct ShortLivedCertificates {
    folder: PathBuf,
    current: Pair,
    next: Pair,
}

impl ShortLivedCertificates {
    /// Opens the certificates in `folder`. Creates those that are missing, have expired or do not match.
    ///
    /// # Errors
    /// The files cannot be written.
    pub fn open(folder: &Path, now: SystemTime) -> Result<ShortLivedCertificates, CertError> {
        files::make_private_dir(folder)?;
        let current = match Pair::read(&folder.join(CURRENT)) {
            // One from the future means that the clock was wrong then or is now.
            Some(pair) if pair.begin <= now + BEFORE => pair,
            _ => Pair::generate(now)?,
        };
        let next = match Pair::read(&folder.join(NEXT)) {
            Some(pair) if pair.begin == current.begin + PERIOD => pair,
            _ => Pair::generate(current.begin + PERIOD)?,
        };
        let mut certificates = ShortLivedCertificates { folder: folder.to_owned(), current, next };
        if !certificates.advance(now)? {
            certificates.write()?;
        }
        Ok(certificates)
    }

    /// Puts the successor into use when it is due, and returns whether it was.
    ///
    /// # Errors
    /// The files cannot be written; the old certificate stays in use.
    pub fn advance(&mut self, now: SystemTime) -> Result<bool, CertError> {
        if now < self.next.begin {
            return Ok(false);
        }
        // It may have been off for so long that the successor's time is over too.
        let current =
            if now < self.next.begin + PERIOD { self.next.clone() } else { Pair::generate(now)? };
        let next = Pair::generate(current.begin + PERIOD)?;
        let changed = ShortLivedCertificates { folder: self.folder.clone(), current, next };
        changed.write()?;
        *self = changed;
        Ok(true)
    }

    /// [`ShortLivedCertificates::open`] repairs a crash between the two files: the successor does not match then.
    fn write(&self) -> Result<(), CertError> {
        for (name, pair) in [(CURRENT, &self.current), (NEXT, &self.next)] {
            files::write(&self.folder.join(name), pair.pem.as_bytes(), true)?;
        }
        Ok(())
    }

    /// The certificate in use.
    pub fn certificate(&self) -> CertificateDer<'static> {
        self.current.certificate.clone()
    }

    /// Returns the current certificate's key.
    ///
    /// # Errors
    /// None that a key made here could have.
    pub fn key(&self) -> Result<PrivateKeyDer<'static>, CertError> {
        let key = PrivateKeyDer::from_pem_slice(self.current.pem.as_bytes());
        key.map_err(|source| CertError::Malformed { path: self.folder.join(CURRENT), source })
    }

    /// SHA-256 hashes of the certificate in use and of its successor, which pages must know.
    pub fn hashes(&self) -> [[u8; 32]; 2] {
        [&self.current, &self.next].map(|pair| {
            let mut hash = [0; 32];
            hash.copy_from_slice(digest(&SHA256, &pair.certificate).as_ref());
            hash
        })
    }

    /// When to call [`ShortLivedCertificates::advance`] next.
    pub fn changes_at(&self) -> SystemTime {
        self.next.begin
    }
}

/// A certificate and its key.
#[derive(Clone, Debug)]
struct Pair {
    /// Both, the form they are kept in.
    pem: String,
    certificate: CertificateDer<'static>,
    /// When its use begins.
    begin: SystemTime,
}

impl Pair {
    fn generate(begin: SystemTime) -> Result<Pair, CertError> {
        let mut params = CertificateParams::new(Vec::<String>::new())?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, "Fulmar WebTransport");
        params.not_before = (begin - BEFORE).into();
        params.not_after = (begin + PERIOD + AFTER).into();
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
        let certificate = params.self_signed(&key)?;
        let pem = certificate.pem() + &key.serialize_pem();
        // Certificates contain whole seconds.
        let certificate = certificate.der().clone();
        let begin = begin_of(&certificate).map_or(begin, |from| from + BEFORE);
        Ok(Pair { pem, certificate, begin })
    }

    /// Reads a file that [`Pair::generate`] made; `None` for anything else, which is then made anew.
    fn read(path: &Path) -> Option<Pair> {
        let pem = String::from_utf8(files::read_own_secret(path).ok()?).ok()?;
        let certificate = files::read_chain(path).ok()?.swap_remove(0);
        let key = KeyPair::try_from(&files::read_key(path).ok()?).ok()?;
        let (begin, end) = (begin_of(&certificate)?, end_of(&certificate)?);
        let made_here = belongs(&certificate, &key) && end == begin + BEFORE + PERIOD + AFTER;
        made_here.then_some(Pair { pem, certificate, begin: begin + BEFORE })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use x509_parser::prelude::{FromDer, X509Certificate};

    const SECOND: Duration = Duration::from_secs(1);

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    #[test]
    fn browsers_take_it_by_its_hash() {
        let dir = tempfile::tempdir().unwrap();
        let certificates = ShortLivedCertificates::open(dir.path(), now()).unwrap();
        let certificate = certificates.certificate();
        let (_, parsed) = X509Certificate::from_der(&certificate).unwrap();
        let validity = parsed.validity();
        let days = (validity.not_after.timestamp() - validity.not_before.timestamp()) / 86_400;
        assert_eq!(days, 13, "14 at most");
        let algorithm = &parsed.public_key().algorithm;
        assert_eq!(algorithm.algorithm.to_id_string(), "1.2.840.10045.2.1", "EC");
        let curve = algorithm.parameters.as_ref().unwrap().as_oid().unwrap();
        assert_eq!(curve.to_id_string(), "1.2.840.10045.3.1.7", "P-256");
        let key = KeyPair::try_from(&certificates.key().unwrap()).unwrap();
        assert!(belongs(&certificate, &key));
    }

    #[test]
    fn the_next_hash_is_told_before_it_is_used_and_survives_restarts() {
        let dir = tempfile::tempdir().unwrap();
        let mut certificates = ShortLivedCertificates::open(dir.path(), now()).unwrap();
        let [first, second] = certificates.hashes();
        assert_eq!(certificates.changes_at(), now() + PERIOD);
        assert!(!certificates.advance(now() + PERIOD - SECOND).unwrap());
        assert_eq!(
            ShortLivedCertificates::open(dir.path(), now() + PERIOD - SECOND).unwrap().hashes(),
            [first, second]
        );
        assert!(certificates.advance(now() + PERIOD).unwrap());
        let [in_use, third] = certificates.hashes();
        assert_eq!(in_use, second);
        assert!(third != first && third != second);
        assert_eq!(certificates.changes_at(), now() + 2 * PERIOD);
        assert_eq!(
            ShortLivedCertificates::open(dir.path(), now() + PERIOD).unwrap().hashes(),
            [second, third]
        );
        // The change may as well happen while it was off.
        assert_eq!(
            ShortLivedCertificates::open(dir.path(), now() + 2 * PERIOD).unwrap().hashes()[0],
            third
        );
    }

    #[test]
    fn what_has_ended_or_is_damaged_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let first = ShortLivedCertificates::open(dir.path(), now()).unwrap().hashes();
        let later = ShortLivedCertificates::open(dir.path(), now() + 3 * PERIOD).unwrap();
        assert!(later.hashes().iter().all(|hash| !first.contains(hash)));
        assert_eq!(later.changes_at(), now() + 4 * PERIOD);
        // The clock was wrong: those certificates are not valid yet.
        let earlier = ShortLivedCertificates::open(dir.path(), now()).unwrap();
        assert_eq!(earlier.changes_at(), now() + PERIOD);
        let [current, next] = earlier.hashes();
        std::fs::write(dir.path().join(NEXT), "damaged").unwrap();
        let repaired = ShortLivedCertificates::open(dir.path(), now()).unwrap().hashes();
        assert_eq!(repaired[0], current);
        assert_ne!(repaired[1], next);
        // As a crash between the two files leaves it.
        std::fs::copy(dir.path().join(NEXT), dir.path().join(CURRENT)).unwrap();
        let repaired = ShortLivedCertificates::open(dir.path(), now() + PERIOD).unwrap();
        assert_eq!(repaired.changes_at(), now() + 2 * PERIOD);
    }
}
