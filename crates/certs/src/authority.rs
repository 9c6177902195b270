//! The development authority: a CA of one's own in the data folder, made at first use.
//!
//! It signs with ECDSA on P-256, which everything that speaks TLS 1.2 or 1.3 can verify. Its
//! certificates are for machines whose clients can be given the authority's certificate; public
//! services want a public authority's.

use std::net::IpAddr;
use std::path::{Path, PathBuf};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509Certificate};

use crate::{CertError, files};

/// Days an authority's certificate is valid.
const AUTHORITY_DAYS: u32 = 3650;

/// Days a certificate is valid unless asked otherwise; browsers take no more than 398.
pub const LEAF_DAYS: u32 = 397;

/// Days before its end at which a server's certificate is made anew.
const RENEW_DAYS: i64 = 30;

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A server, under these names.
    Server,
    /// A client, whose name is the certificate's common name.
    Client,
}

/// A development authority.
pub struct Authority {
    folder: PathBuf,
    certificate_pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl std::fmt::Debug for Authority {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authority").field("folder", &self.folder).finish_non_exhaustive()
    }
}

/// A certificate with its key, in PEM.
pub struct Issued {
    /// Certificate and authority.
    pub chain_pem: String,
    /// Private key.
    pub key_pem: String,
}

impl Authority {
    /// Opens the authority in `folder`, or makes one there.
    ///
    /// # Errors
    /// The folder or its files cannot be used.
    pub fn open(folder: &Path) -> Result<Authority, CertError> {
        let (certificate, key) = (folder.join("ca.pem"), folder.join("ca.key"));
        if !certificate.exists() && !key.exists() {
            files::make_private_dir(folder)?;
            create(&certificate, &key)?;
        }
        files::read_key(&key)?;
        let read = |path: &Path| {
            let fail = |source| CertError::File { path: path.to_owned(), source };
            std::fs::read_to_string(path).map_err(fail)
        };
        let certificate_pem = read(&certificate)?;
        let key = KeyPair::from_pem(&read(&key)?)?;
        let issuer = Issuer::from_ca_cert_pem(&certificate_pem, key)?;
        Ok(Authority { folder: folder.to_owned(), certificate_pem, issuer })
    }

    /// Path of the authority's certificate, to be given to clients.
    #[must_use]
    pub fn certificate_path(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// Issues a certificate.
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
        let names = match purpose {
            Purpose::Server => alternatives.to_vec(),
            Purpose::Client => Vec::new(),
        };
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, name);
        set_validity(&mut params, days);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match purpose {
            Purpose::Server => ExtendedKeyUsagePurpose::ServerAuth,
            Purpose::Client => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        let chain_pem = certificate.pem() + &self.certificate_pem;
        Ok(Issued { chain_pem, key_pem: key.serialize_pem() })
    }

    /// The certificate of this machine's server: the one in the folder while it is good for these
    /// names and not about to end, otherwise a new one. Returns the paths of chain and key.
    ///
    /// # Errors
    /// The files cannot be read or written.
    pub fn server_files(&self, names: &[String]) -> Result<(PathBuf, PathBuf), CertError> {
        let (chain, key) = (self.folder.join("server.pem"), self.folder.join("server.key"));
        let good = files::read_chain(&chain).is_ok_and(|chain| serves(&chain, names))
            && files::read_key(&key).is_ok();
        if !good {
            let name = names.first().map_or("localhost", String::as_str);
            let issued = self.issue(name, names, Purpose::Server, LEAF_DAYS)?;
            files::write(&key, issued.key_pem.as_bytes(), true)?;
            files::write(&chain, issued.chain_pem.as_bytes(), false)?;
        }
        Ok((chain, key))
    }
}

fn create(certificate_path: &Path, key_path: &Path) -> Result<(), CertError> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.distinguished_name.push(DnType::CommonName, "Fulmar development CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    set_validity(&mut params, AUTHORITY_DAYS);
    let key = KeyPair::generate()?;
    let certificate = params.self_signed(&key)?;
    files::write(key_path, key.serialize_pem().as_bytes(), true)?;
    files::write(certificate_path, certificate.pem().as_bytes(), false)
}

fn set_validity(params: &mut CertificateParams, days: u32) {
    let now = std::time::SystemTime::now();
    let day = std::time::Duration::from_secs(24 * 3600);
    // A client whose clock is a little behind must not find it too young.
    params.not_before = (now - day / 24).into();
    params.not_after = (now + day * days).into();
}

/// Whether the first certificate covers all these names and does not end soon.
fn serves(chain: &[CertificateDer<'_>], names: &[String]) -> bool {
    let Some((_, leaf)) = chain.first().and_then(|der| X509Certificate::from_der(der).ok()) else {
        return false;
    };
    let left = leaf.validity().time_to_expiration();
    if left.is_none_or(|left| left.whole_days() < RENEW_DAYS) {
        return false;
    }
    let has = alternative_names(&leaf);
    names.iter().all(|name| has.contains(name))
}

/// Host names and addresses a certificate is for.
pub(crate) fn alternative_names(certificate: &X509Certificate<'_>) -> Vec<String> {
    let names = certificate.extensions().iter().filter_map(|extension| {
        match extension.parsed_extension() {
            ParsedExtension::SubjectAlternativeName(names) => Some(&names.general_names),
            _ => None,
        }
    });
    names.flatten().filter_map(general_name).collect()
}

fn general_name(name: &GeneralName<'_>) -> Option<String> {
    match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => match bytes.len() {
            4 => <[u8; 4]>::try_from(*bytes).ok().map(|b| IpAddr::from(b).to_string()),
            16 => <[u8; 16]>::try_from(*bytes).ok().map(|b| IpAddr::from(b).to_string()),
            _ => None,
        },
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn the_authority_and_a_good_server_certificate_stay() {
        let dir = tempfile::tempdir().unwrap();
        let local = names(&["localhost", "127.0.0.1", "::1"]);
        let read = || {
            let authority = Authority::open(dir.path()).unwrap();
            let (chain, _) = authority.server_files(&local).unwrap();
            std::fs::read_to_string(chain).unwrap()
        };
        let first = read();
        assert_eq!(first, read());
        let authority = Authority::open(dir.path()).unwrap();
        authority.server_files(&names(&["broker.example"])).unwrap();
        assert_ne!(first, std::fs::read_to_string(dir.path().join("server.pem")).unwrap());
    }

    #[test]
    fn a_key_others_can_read_is_refused_with_the_remedy() {
        let dir = tempfile::tempdir().unwrap();
        Authority::open(dir.path()).unwrap();
        let key = dir.path().join("ca.key");
        assert_eq!(std::fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
        std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o644)).unwrap();
        let error = Authority::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("chmod 600"), "{error}");
    }

    #[test]
    fn a_clients_name_is_its_common_name() {
        let dir = tempfile::tempdir().unwrap();
        let authority = Authority::open(dir.path()).unwrap();
        let issued = authority.issue("meter-7", &[], Purpose::Client, 1).unwrap();
        let path = dir.path().join("client.pem");
        std::fs::write(&path, issued.chain_pem).unwrap();
        let chain = files::read_chain(&path).unwrap();
        assert_eq!(crate::common_name(&chain[0]).as_deref(), Some("meter-7"));
        assert_eq!(chain.len(), 2);
    }
}
