//! The development authority: a CA of one's own in the data folder, made at first use.
//!
//! It signs with ECDSA on P-256, which everything that speaks TLS 1.2 or 1.3 can verify; the
//! extensions are those RFC 5280 (section 4.2) wants, which strict verifiers insist on. It is for
//! machines whose clients can be given the authority's certificate; public services want a public
//! authority's. There is no revocation: a lost key means a new authority.

use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use fulmar_text::hex;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PublicKeyData,
};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::{CertError, files, inspect, pkcs8};

/// Days an authority's certificate is valid.
const AUTHORITY_DAYS: u32 = 3650;

const DAY: Duration = Duration::from_secs(24 * 3600);

/// Days a certificate is valid unless asked otherwise; browsers take no more than 398.
pub const LEAF_DAYS: u32 = 397;

/// Time before its end at which a server's certificate is made anew.
pub const RENEW: Duration = Duration::from_secs(30 * 24 * 3600);

/// Longest common name in characters (RFC 5280 appendix A, `ub-common-name`).
const MAX_COMMON_NAME: usize = 64;

/// Purpose of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A server, under these names.
    Server,
    /// A client, whose name is the certificate's common name.
    Client,
}

/// The key of a certificate that is issued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LeafKey<'a> {
    /// A new one on P-256, which everything that speaks TLS can verify.
    #[default]
    P256,
    /// A new Ed25519 key: for clients that pin a server's key and have little flash. Browsers do not
    /// take it.
    Ed25519,
    /// The one in this PEM file, as when a certificate is renewed under a key that clients pin.
    File(&'a Path),
}

/// A development authority.
pub struct Authority {
    folder: PathBuf,
    certificate: CertificateDer<'static>,
    certificate_pem: String,
    /// End of its validity: clients would refuse certificates that are valid for longer.
    end: SystemTime,
    issuer: Issuer<'static, KeyPair>,
}

fulmar_text::opaque_debug!(Authority { folder });

/// A certificate with its key, in PEM.
pub struct Issued {
    /// Certificate and authority.
    pub chain_pem: String,
    /// Private key.
    pub key_pem: String,
}

impl Authority {
    /// Opens the authority in `folder`, or makes one there: `ca.pem` and `ca.key`. A key that is
    /// there is never replaced, also not by a second process that comes at the same time.
    ///
    /// # Errors
    /// The folder or its files cannot be used, or do not fit together; the authority has ended.
    pub fn open(folder: &Path) -> Result<Authority, CertError> {
        let (certificate_path, key_path) = (folder.join("ca.pem"), folder.join("ca.key"));
        if !key_path.exists() {
            if certificate_path.exists() {
                return Err(CertError::NoKey { certificate: certificate_path, key: key_path });
            }
            files::make_private_dir(folder)?;
            let key = KeyPair::generate()?;
            keep_first(files::write_new(&key_path, key.serialize_pem().as_bytes(), true))?;
        }
        let key = own_key(&key_path)?;
        if !certificate_path.exists() {
            let pem = self_signed(&key, AUTHORITY_DAYS)?;
            keep_first(files::write_new(&certificate_path, pem.as_bytes(), false))?;
        }
        let mut certificate = files::read_chain(&certificate_path)?.swap_remove(0);
        if !belongs(&certificate, &key) {
            return Err(CertError::Mismatch { certificate: certificate_path, key: key_path });
        }
        let now = SystemTime::now();
        let is_own =
            inspect::describe(&certificate).is_some_and(|own| own.subject.contains(&name_of(&key)));
        if is_own && is_misdated(&certificate, now) && first_plausible() <= now {
            tracing::warn!(file = %certificate_path.display(),
                "the development CA was made while the clock was wrong; made anew with its key: give clients the new file");
            files::write(&certificate_path, self_signed(&key, AUTHORITY_DAYS)?.as_bytes(), false)?;
            certificate = files::read_chain(&certificate_path)?.swap_remove(0);
        }
        let end = end_of(&certificate).unwrap_or(SystemTime::UNIX_EPOCH);
        if end <= SystemTime::now() {
            return Err(CertError::Ended { certificate: certificate_path, key: key_path });
        }
        let issuer = Issuer::from_ca_cert_der(&certificate, key)?;
        let certificate_pem = files::read_text(&certificate_path)?;
        Ok(Authority { folder: folder.to_owned(), certificate, certificate_pem, end, issuer })
    }

    /// Path of the authority's certificate, to be given to clients.
    pub fn certificate_path(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// Issues a certificate for `days` days, or until the authority's own end: of a server named
    /// `name` that is reached by the host names and addresses in `alternatives`, or of the client
    /// `name`, whose alternatives are none. Its key is a new one on P-256.
    ///
    /// # Errors
    /// A name is not one.
    pub fn issue(
        &self,
        name: &str,
        alternatives: &[String],
        purpose: Purpose,
        days: u32,
    ) -> Result<Issued, CertError> {
        self.issue_for(name, alternatives, purpose, days, LeafKey::P256)
    }

    /// The same for another key.
    ///
    /// # Errors
    /// A name is not one; the key cannot be read.
    pub fn issue_for(
        &self,
        name: &str,
        alternatives: &[String],
        purpose: Purpose,
        days: u32,
        key: LeafKey<'_>,
    ) -> Result<Issued, CertError> {
        check_name(name)?;
        let too_long = name.chars().count() > MAX_COMMON_NAME;
        let (names, usage) = match purpose {
            Purpose::Server => (alternatives.to_vec(), ExtendedKeyUsagePurpose::ServerAuth),
            Purpose::Client if too_long => {
                let reason = "a client's name has at most 64 characters";
                return Err(CertError::Name { name: name.to_owned(), reason });
            }
            Purpose::Client => (Vec::new(), ExtendedKeyUsagePurpose::ClientAuth),
        };
        names.iter().try_for_each(|name| check_host(name))?;
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name = rcgen::DistinguishedName::new();
        if !too_long {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        set_validity(&mut params, days);
        params.not_after = params.not_after.min(self.end.into());
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![usage];
        params.use_authority_key_identifier_extension = true;
        let key = match key {
            LeafKey::P256 => KeyPair::generate()?,
            LeafKey::Ed25519 => KeyPair::generate_for(&rcgen::PKCS_ED25519)?,
            LeafKey::File(path) => load_key(path)?,
        };
        let certificate = params.signed_by(&key, &self.issuer)?;
        let chain_pem = certificate.pem() + &self.certificate_pem;
        Ok(Issued { chain_pem, key_pem: pkcs8::pem(&key) })
    }

    /// The certificate of this machine's server: the one in the folder while it is this
    /// authority's, good for these names and not about to end, otherwise a new one. Returns the
    /// paths of chain and key.
    ///
    /// # Errors
    /// The files cannot be read or written.
    pub fn server_files(&self, names: &[String]) -> Result<(PathBuf, PathBuf), CertError> {
        let (chain, key) = (self.folder.join("server.pem"), self.folder.join("server.key"));
        if !self.is_good(&chain, &key, names) {
            let name = names.first().map_or("localhost", String::as_str);
            let issued = self.issue(name, names, Purpose::Server, LEAF_DAYS)?;
            // A crash between the two is noticed next time: they do not belong together then.
            files::write(&key, issued.key_pem.as_bytes(), true)?;
            files::write(&chain, issued.chain_pem.as_bytes(), false)?;
        }
        Ok((chain, key))
    }

    fn is_good(&self, chain: &Path, key: &Path, names: &[String]) -> bool {
        let Ok(chain) = files::read_chain(chain) else { return false };
        let Ok(key) = own_key(key) else { return false };
        let [leaf, authority] = &chain[..] else { return false };
        *authority == self.certificate && belongs(leaf, &key) && serves(leaf, names, self.end)
    }
}

/// Names under which programs on this machine reach its servers: the loopback names, and the host
/// name if it is one.
pub fn local_names() -> Vec<String> {
    let mut names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    if check_host(host).is_ok() && !names.iter().any(|name| name == host) {
        names.push(host.to_owned());
    }
    names
}

/// The first process has written the file; all read it afterwards.
fn keep_first(written: Result<(), CertError>) -> Result<(), CertError> {
    match written {
        Err(CertError::Exists(_)) => Ok(()),
        other => other,
    }
}

/// Loads a key that was written here.
fn own_key(path: &Path) -> Result<KeyPair, CertError> {
    files::take_from_group(path);
    load_key(path)
}

fn load_key(path: &Path) -> Result<KeyPair, CertError> {
    Ok(KeyPair::try_from(&files::read_key(path)?)?)
}

fn self_signed(key: &KeyPair, days: u32) -> Result<String, CertError> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name_of(key));
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, days);
    Ok(params.self_signed(key)?.pem())
}

/// Two authorities of one name would be taken for one another, until a signature is wrong.
fn name_of(key: &KeyPair) -> String {
    let id = ring::digest::digest(&ring::digest::SHA256, &key.subject_public_key_info());
    format!("Fulmar development CA {}", hex::encode(&id.as_ref()[..4]))
}

/// A clock that shows less (2026-01-01) has not been set.
fn first_plausible() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_767_225_600)
}

/// True if a certificate was dated by a clock that was not set, as by earlier versions, or was ahead: clients whose clock is
/// right refuse it.
fn is_misdated(certificate: &CertificateDer<'_>, now: SystemTime) -> bool {
    begin_of(certificate).is_none_or(|begin| begin + DAY < first_plausible() || begin > now)
}

fn set_validity(params: &mut CertificateParams, days: u32) {
    // A clock that is not set will be.
    let now = SystemTime::now().max(first_plausible());
    // A client whose clock is a little behind must not find it too young.
    params.not_before = (now - DAY / 24).into();
    params.not_after = (now + DAY * days).into();
}

fn check_name(name: &str) -> Result<(), CertError> {
    let reason = if name.is_empty() {
        "it is empty"
    } else if name.chars().any(char::is_control) {
        "it contains control characters"
    } else {
        return Ok(());
    };
    Err(CertError::Name { name: name.to_owned(), reason })
}

/// Takes addresses and host names, also with a wildcard as their first label.
fn check_host(name: &str) -> Result<(), CertError> {
    if name.parse::<std::net::IpAddr>().is_ok() {
        return Ok(());
    }
    let label = |label: &str| {
        let letters = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(letters)
    };
    let rest = name.strip_prefix("*.").unwrap_or(name);
    if name.len() <= 253 && rest.split('.').all(label) {
        return Ok(());
    }
    let reason = "it is neither a host name nor an IP address";
    Err(CertError::Name { name: name.to_owned(), reason })
}

/// When its validity begins; `None` before 1970 and for what is no certificate.
pub(crate) fn begin_of(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    time(parsed.validity().not_before.timestamp())
}

/// When its validity ends; `None` before 1970 and for what is no certificate.
pub(crate) fn end_of(certificate: &CertificateDer<'_>) -> Option<SystemTime> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    time(parsed.validity().not_after.timestamp())
}

fn time(seconds: i64) -> Option<SystemTime> {
    let seconds = u64::try_from(seconds).ok()?;
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds))
}

/// Whether the certificate is about this key.
pub(crate) fn belongs(certificate: &CertificateDer<'_>, key: &KeyPair) -> bool {
    X509Certificate::from_der(certificate)
        .is_ok_and(|(_, parsed)| parsed.public_key().raw == key.subject_public_key_info())
}

/// True if a certificate covers all these names and does not end soon, unless its authority does.
fn serves(certificate: &CertificateDer<'_>, names: &[String], authority: SystemTime) -> bool {
    let Ok((_, leaf)) = X509Certificate::from_der(certificate) else { return false };
    let soon = (SystemTime::now() + RENEW).min(authority);
    let begun = begin_of(certificate).is_some_and(|begin| begin <= SystemTime::now());
    if !begun || end_of(certificate).is_none_or(|end| end < soon) {
        return false;
    }
    let has = inspect::alternative_names(&leaf);
    names.iter().all(|name| has.contains(name))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    fn server(folder: &Path, of: &[&str]) -> String {
        let authority = Authority::open(folder).unwrap();
        let (chain, _) = authority.server_files(&names(of)).unwrap();
        fs::read_to_string(chain).unwrap()
    }

    #[test]
    fn the_authority_and_a_good_server_certificate_stay() {
        let dir = tempfile::tempdir().unwrap();
        let first = server(dir.path(), &["localhost", "127.0.0.1", "::1"]);
        assert_eq!(first, server(dir.path(), &["::1", "localhost"]));
        assert_ne!(first, server(dir.path(), &["localhost", "broker.example"]));
    }

    #[test]
    fn a_server_certificate_is_renewed_before_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let first = server(dir.path(), &["localhost"]);
        let authority = Authority::open(dir.path()).unwrap();
        for (days, stays) in [(29, false), (32, true)] {
            let issued =
                authority.issue("x", &names(&["localhost"]), Purpose::Server, days).unwrap();
            fs::write(dir.path().join("server.pem"), &issued.chain_pem).unwrap();
            fs::write(dir.path().join("server.key"), &issued.key_pem).unwrap();
            assert_eq!(server(dir.path(), &["localhost"]) == issued.chain_pem, stays, "{days}");
        }
        assert_ne!(first, server(dir.path(), &["localhost"]));
    }

    #[test]
    fn a_server_certificate_of_another_key_or_authority_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let first = server(dir.path(), &["localhost"]);
        let other = Authority::open(dir.path()).unwrap();
        let other = other.issue("x", &[], Purpose::Server, 90).unwrap();
        fs::write(dir.path().join("server.key"), other.key_pem).unwrap();
        let second = server(dir.path(), &["localhost"]);
        assert_ne!(first, second, "a crash between key and chain");
        fs::remove_file(dir.path().join("ca.pem")).unwrap();
        fs::remove_file(dir.path().join("ca.key")).unwrap();
        assert_ne!(second, server(dir.path(), &["localhost"]), "a new authority");
    }

    #[test]
    fn a_key_others_can_read_is_refused_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        Authority::open(dir.path()).unwrap();
        let key = dir.path().join("ca.key");
        assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        fs::set_permissions(&key, fs::Permissions::from_mode(0o644)).unwrap();
        let error = Authority::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn a_key_without_certificate_gets_one_and_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        Authority::open(dir.path()).unwrap();
        let key = fs::read(dir.path().join("ca.key")).unwrap();
        fs::remove_file(dir.path().join("ca.pem")).unwrap();
        Authority::open(dir.path()).unwrap();
        assert_eq!(key, fs::read(dir.path().join("ca.key")).unwrap());
        fs::remove_file(dir.path().join("ca.key")).unwrap();
        let error = Authority::open(dir.path()).unwrap_err();
        assert!(matches!(error, CertError::NoKey { .. }), "{error}");
        assert!(!dir.path().join("ca.key").exists());
    }

    #[test]
    fn parts_of_two_authorities_are_refused() {
        let (one, two) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        Authority::open(one.path()).unwrap();
        Authority::open(two.path()).unwrap();
        fs::copy(one.path().join("ca.pem"), two.path().join("ca.pem")).unwrap();
        let error = Authority::open(two.path()).unwrap_err();
        assert!(matches!(error, CertError::Mismatch { .. }), "{error}");
    }

    /// Puts a CA into `folder` that is valid for `days` days.
    fn short_lived(folder: &Path, days: u32) {
        let key = KeyPair::generate().unwrap();
        files::write(&folder.join("ca.key"), key.serialize_pem().as_bytes(), true).unwrap();
        fs::write(folder.join("ca.pem"), self_signed(&key, days).unwrap()).unwrap();
    }

    #[test]
    fn an_authority_made_while_the_clock_was_wrong_is_made_anew_with_its_key() {
        let dir = tempfile::tempdir().unwrap();
        short_lived(dir.path(), 100);
        let key = own_key(&dir.path().join("ca.key")).unwrap();
        let now = SystemTime::now();
        for (begin, is_own) in
            [(SystemTime::UNIX_EPOCH + DAY, true), (now + DAY, true), (now + DAY, false)]
        {
            let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
            if is_own {
                params.distinguished_name.push(DnType::CommonName, name_of(&key));
            }
            params.not_before = begin.into();
            params.not_after = (begin + DAY * AUTHORITY_DAYS).into();
            fs::write(dir.path().join("ca.pem"), params.self_signed(&key).unwrap().pem()).unwrap();
            let authority = Authority::open(dir.path()).unwrap();
            assert!(belongs(&authority.certificate, &key) && authority.end > now);
            assert_eq!(is_misdated(&authority.certificate, now), !is_own, "nobody else's is");
        }
    }

    #[test]
    fn nothing_outlives_the_authority_and_an_ended_one_says_so() {
        let dir = tempfile::tempdir().unwrap();
        short_lived(dir.path(), 100);
        let authority = Authority::open(dir.path()).unwrap();
        let path = dir.path().join("leaf.pem");
        for (days, most) in [(365, 100), (50, 50)] {
            let issued = authority.issue("x", &[], Purpose::Client, days).unwrap();
            fs::write(&path, issued.chain_pem).unwrap();
            let leaf = files::read_chain(&path).unwrap().swap_remove(0);
            let left = crate::describe(&leaf).unwrap().days_left;
            assert!((most - 1..=most).contains(&left), "{left} days");
        }
        short_lived(dir.path(), 0);
        let error = Authority::open(dir.path()).unwrap_err();
        assert!(matches!(error, CertError::Ended { .. }), "{error}");
    }

    #[test]
    fn processes_that_come_together_share_one_authority() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("ca");
        let open = || Authority::open(&folder).unwrap().certificate;
        let all: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(open)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(all.iter().all(|certificate| *certificate == all[0]));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 2, "nothing left behind");
    }

    #[test]
    fn a_clients_name_is_its_common_name() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open(dir.path()).unwrap();
        let issued = authority.issue("meter-7", &[], Purpose::Client, 1).unwrap();
        let path = dir.path().join("client.pem");
        fs::write(&path, issued.chain_pem).unwrap();
        let chain = files::read_chain(&path).unwrap();
        assert_eq!(crate::user_name(&chain[0]).as_deref(), Some("meter-7"));
        assert_eq!(chain.len(), 2);
    }

    #[test]
    fn names_that_are_none_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open(dir.path()).unwrap();
        let issue = |name: &str, alternative: &str, purpose| {
            authority.issue(name, &names(&[alternative]), purpose, 1).is_ok()
        };
        assert!(issue("x", "*.example.org", Purpose::Server));
        assert!(issue(&"x".repeat(65), "a", Purpose::Server));
        for bad in ["", "a b", "mqtt://x", "a..b", "*", "héllo", "1.2.3.4:1883"] {
            assert!(!issue("x", bad, Purpose::Server), "{bad:?}");
        }
        assert!(issue(&"é".repeat(64), "", Purpose::Client));
        for bad in ["", "a\nb", &"x".repeat(65)] {
            assert!(!issue(bad, "", Purpose::Client), "{bad:?}");
        }
    }

    #[test]
    fn local_names_are_good_for_a_certificate() {
        let local = local_names();
        assert!(local.starts_with(&names(&["localhost", "127.0.0.1", "::1"])));
        assert!(local.iter().all(|name| check_host(name).is_ok()));
    }
}
