//! Certificates: the development authority, files, and what is in them.
//!
//! [`authority`] makes and keeps a development CA and issues from it; [`files`] reads PEM with
//! errors that say what to do and writes so that a crash leaves the old file or the new one.
#![forbid(unsafe_code)]

pub mod authority;
pub mod files;

use std::path::PathBuf;

use rustls_pki_types::CertificateDer;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Why a certificate or key cannot be made, read or written.
#[derive(Debug, thiserror::Error)]
pub enum CertError {
    /// The system refuses a file.
    #[error("{path}: {source}")]
    File {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// A private key that others can read.
    #[error("{0}: private key is readable by others; run `chmod 600 {0}`")]
    KeyExposed(PathBuf),
    /// A file without what it should hold.
    #[error("{path}: no {wanted} in PEM form found")]
    Missing {
        /// Which file.
        path: PathBuf,
        /// What was looked for.
        wanted: &'static str,
    },
    /// A file that is there already.
    #[error("{0} exists already; move it away or choose another name")]
    Exists(PathBuf),
    /// The certificate cannot be made.
    #[error("cannot make the certificate: {0}")]
    Generate(#[from] rcgen::Error),
}

/// What a certificate says, as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Description {
    /// Distinguished name of whom it is for.
    pub subject: String,
    /// Distinguished name of who signed it.
    pub issuer: String,
    /// Host names and addresses.
    pub names: Vec<String>,
    /// When its validity begins.
    pub not_before: String,
    /// When its validity ends.
    pub not_after: String,
    /// SHA-256 of the whole certificate, in hexadecimal.
    pub sha256: String,
    /// SHA-256 of its public key in base64, as Chromium's
    /// `--ignore-certificate-errors-spki-list` takes it.
    pub spki_sha256_base64: String,
}

/// Reads a certificate for people; `None` when it is not one.
#[must_use]
pub fn describe(certificate: &CertificateDer<'_>) -> Option<Description> {
    use base64::Engine as _;
    use ring::digest::{SHA256, digest};
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let whole = digest(&SHA256, certificate);
    let hex: Vec<String> = whole.as_ref().iter().map(|byte| format!("{byte:02x}")).collect();
    let spki = digest(&SHA256, parsed.public_key().raw);
    Some(Description {
        subject: parsed.subject().to_string(),
        issuer: parsed.issuer().to_string(),
        names: authority::alternative_names(&parsed),
        not_before: parsed.validity().not_before.to_string(),
        not_after: parsed.validity().not_after.to_string(),
        sha256: hex.concat(),
        spki_sha256_base64: base64::engine::general_purpose::STANDARD.encode(spki),
    })
}

/// The subject's common name.
#[must_use]
pub fn common_name(certificate: &CertificateDer<'_>) -> Option<Box<str>> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    let name = parsed.subject().iter_common_name().next()?.as_str().ok()?;
    Some(name.into())
}

/// Where programs of the same user look for a development authority's certificate, likeliest first.
#[must_use]
pub fn dev_ca_locations() -> Vec<PathBuf> {
    let from_env = std::env::var_os("FULMAR_DATA").map(PathBuf::from);
    let folders = from_env.into_iter().chain([default_data_dir(), PathBuf::from("data")]);
    folders.map(|folder| folder.join("ca").join("ca.pem")).collect()
}

/// The data folder used when none is named: `$XDG_DATA_HOME/fulmar`, or its default, or
/// `/var/lib/fulmar` where there is no home.
#[must_use]
pub fn default_data_dir() -> PathBuf {
    let base = std::env::var_os("XDG_DATA_HOME").map(PathBuf::from);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share"));
    base.or(home).map_or_else(|| PathBuf::from("/var/lib/fulmar"), |base| base.join("fulmar"))
}
