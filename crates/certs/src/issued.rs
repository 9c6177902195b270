//! Certificates that a public authority issues by ACME (RFC 8555): the request, the answer to a challenge
//! (RFC 8737), the file both certificate and key are kept in, and the time for the next one.
//!
//! Files and keys only: orders are placed, challenges answered and certificates shown elsewhere.

use std::io::ErrorKind;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, CustomExtension, DistinguishedName, KeyPair};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::authority::{begin_of, belongs, end_of};
use crate::{CertError, files, inspect};

/// The part of its lifetime by which a certificate may be renewed earlier than at two thirds, so that those of
/// many servers do not come all at once.
const EARLIER: f64 = 1.0 / 30.0;

/// A certificate with its chain and key.
#[derive(Debug)]
pub struct Issued {
    /// Leaf first.
    pub chain: Vec<CertificateDer<'static>>,
    /// The leaf's.
    pub key: PrivateKeyDer<'static>,
    /// When its validity ends.
    pub end: SystemTime,
    begin: SystemTime,
    names: Vec<String>,
}

impl Issued {
    /// Reads what [`write()`] has written; `None` where there is no such file.
    ///
    /// # Errors
    /// The file cannot be read, is open to others, or is damaged.
    pub fn read(path: &Path) -> Result<Option<Issued>, CertError> {
        match files::read_own_secret(path) {
            Ok(pem) => Issued::parse(&pem).map(Some),
            Err(CertError::File { source, .. }) if source.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Checks what an authority has issued. Whether TLS can use it remains to be checked.
    ///
    /// # Errors
    /// It is not for these names, has ended, or is for another key.
    pub fn check(
        chain_pem: &str,
        key_pem: &str,
        names: &[String],
        now: SystemTime,
    ) -> Result<Issued, CertError> {
        let issued = Issued::parse(in_one(chain_pem, key_pem).as_bytes())?;
        if !issued.covers(names) {
            return Err(CertError::Issued("it does not cover the requested names"));
        }
        if issued.end <= now {
            return Err(CertError::Issued("it has expired; is this machine's clock right?"));
        }
        Ok(issued)
    }

    fn parse(pem: &[u8]) -> Result<Issued, CertError> {
        let wrong = CertError::Issued;
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let chain = chain.map_err(|_| wrong("damaged PEM"))?;
        let key = PrivateKeyDer::from_pem_slice(pem).map_err(|_| wrong("no private key"))?;
        let leaf = chain.first().ok_or(wrong("it contains no certificate"))?;
        let validity = begin_of(leaf).zip(end_of(leaf)).filter(|(begin, end)| begin < end);
        let (begin, end) = validity.ok_or(wrong("no certificate, or one without validity"))?;
        let pair = KeyPair::try_from(&key)?;
        if !belongs(leaf, &pair) {
            return Err(wrong("it is for another key"));
        }
        let (_, parsed) = X509Certificate::from_der(leaf).map_err(|_| wrong("no certificate"))?;
        let names = inspect::alternative_names(&parsed);
        Ok(Issued { chain, key, end, begin, names })
    }

    /// Whether it is for all these names.
    pub fn covers(&self, names: &[String]) -> bool {
        let has = |name: &String| self.names.iter().any(|own| own.eq_ignore_ascii_case(name));
        names.iter().all(has)
    }

    /// From its first moment to its last.
    pub fn lifetime(&self) -> Duration {
        self.end.duration_since(self.begin).unwrap_or(Duration::ZERO)
    }

    /// When the next one is to be ordered: when a third of its lifetime is left, or by up to a thirtieth of it
    /// earlier, as `jitter` from 0 to 1 says.
    pub fn renew_at(&self, jitter: f64) -> SystemTime {
        let lifetime = self.lifetime();
        let earlier = lifetime.mul_f64(EARLIER * jitter.clamp(0.0, 1.0));
        self.begin + (lifetime * 2 / 3).saturating_sub(earlier)
    }
}

/// Writes what has been checked, chain and key in one file, so that they always fit.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, chain_pem: &str, key_pem: &str) -> Result<(), CertError> {
    files::write(path, in_one(chain_pem, key_pem).as_bytes(), true)
}

fn in_one(chain_pem: &str, key_pem: &str) -> String {
    format!("{}\n{key_pem}", chain_pem.trim_end())
}

/// A request for a certificate, in DER, and its new key on P-256, in PEM.
///
/// # Errors
/// A name cannot stand in a certificate.
pub fn request(names: &[String]) -> Result<(Vec<u8>, String), CertError> {
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    let request = nameless(names)?.serialize_request(&key)?;
    Ok((request.der().to_vec(), key.serialize_pem()))
}

/// The self-signed certificate that answers a challenge (RFC 8737 section 3), and its key; `digest` is the
/// SHA-256 of the key authorization.
///
/// # Errors
/// The name cannot stand in a certificate.
pub fn challenge(
    name: &str,
    digest: &[u8; 32],
) -> Result<(CertificateDer<'static>, PrivateKeyDer<'static>), CertError> {
    let key = KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256)?;
    let mut params = nameless(&[name.to_owned()])?;
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(digest)];
    let certificate = params.self_signed(&key)?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der());
    Ok((certificate.der().clone(), key.into()))
}

fn nameless(names: &[String]) -> Result<CertificateParams, CertError> {
    let mut params = CertificateParams::new(names)?;
    params.distinguished_name = DistinguishedName::new();
    Ok(params)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    }

    /// Chain and key as an authority's answer has them, valid for `days` from `now()`.
    fn answer(of: &[&str], days: u32) -> (String, String) {
        let key = KeyPair::generate().unwrap();
        let mut params = nameless(&names(of)).unwrap();
        params.not_before = now().into();
        params.not_after = (now() + DAY * days).into();
        (params.self_signed(&key).unwrap().pem(), key.serialize_pem())
    }

    #[test]
    fn it_is_renewed_when_a_third_is_left_and_a_little_earlier_at_most() {
        for (days, at, earliest) in [(90, DAY * 60, DAY * 57), (6, DAY * 4, DAY * 19 / 5)] {
            let (chain, key) = answer(&["a.test"], days);
            let issued = Issued::check(&chain, &key, &names(&["a.test"]), now()).unwrap();
            assert_eq!(issued.renew_at(0.0), now() + at);
            let early = issued.renew_at(1.0);
            let off =
                early.duration_since(now() + earliest).unwrap_or_else(|error| error.duration());
            assert!(off < Duration::from_secs(1), "{early:?}");
            assert_eq!(issued.renew_at(7.0), early, "no earlier than that");
        }
    }

    #[test]
    fn what_was_kept_is_read_again_and_others_cannot_read_it() {
        use std::os::unix::fs::PermissionsExt as _;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("kept.pem");
        assert!(Issued::read(&path).unwrap().is_none());
        let (chain, key) = answer(&["a.test", "b.test"], 90);
        let kept = Issued::check(&chain, &key, &names(&["b.test"]), now()).unwrap();
        write(&path, &chain, &key).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let read = Issued::read(&path).unwrap().unwrap();
        assert_eq!((&read.chain, &read.key, read.end), (&kept.chain, &kept.key, now() + DAY * 90));
        assert!(read.covers(&names(&["A.test", "b.test"])));
        assert!(!read.covers(&names(&["a.test", "c.test"])));
        std::fs::write(&path, "damaged").unwrap();
        Issued::read(&path).unwrap_err();
    }

    #[test]
    fn an_answer_to_another_question_is_refused() {
        let (chain, key) = answer(&["a.test"], 90);
        let (_, other) = answer(&["a.test"], 90);
        let refused = |chain: &str, key: &str, name: &str, now| {
            let wanted = names(&[name]);
            Issued::check(chain, key, &wanted, now).unwrap_err().to_string()
        };
        assert!(refused(&chain, &key, "b.test", now()).contains("names"));
        assert!(refused(&chain, &key, "a.test", now() + DAY * 91).contains("clock"));
        assert!(refused(&chain, &other, "a.test", now()).contains("another key"));
        assert!(refused("", &key, "a.test", now()).contains("no certificate"));
    }

    #[test]
    fn a_challenge_is_answered_with_its_digest_marked_critical() {
        let (certificate, _) = challenge("a.test", &[7; 32]).unwrap();
        let (_, parsed) = X509Certificate::from_der(&certificate).unwrap();
        assert_eq!(inspect::alternative_names(&parsed), ["a.test"]);
        let mut extensions = parsed.extensions().iter();
        let extension = extensions
            .find(|extension| extension.oid.to_id_string() == "1.3.6.1.5.5.7.1.31")
            .unwrap();
        assert!(extension.critical);
        assert_eq!(extension.value, [[4, 32].as_slice(), &[7; 32]].concat(), "OCTET STRING");
    }
}
